"""The same target, faster: one product for all queries, keys and values, and a preallocated cache.

The per-head model of `nanogpt.model` is written to be read. This one does the same arithmetic in
fewer, larger operations, with the same weights and the same contracts, so that every decoder and
every check runs on it unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt.cache import PreallocatedCache, cache_length
from nanogpt.model import GPTLanguageModel, causal_mask


class FusedLanguageModel(GPTLanguageModel):
    """A GPTLanguageModel's weights with one product for q, k and v of all heads of a layer.

    Logits equal the given target's up to rounding (1e-5 in float32). The cache that it returns is
    a PreallocatedCache, and `past_kvs` must be one, else ValueError. For decoding: no dropout, no
    gradient. Give it a target that is on its device, and of its type, already.
    """

    def __init__(self, target: GPTLanguageModel):
        nn.Module.__init__(self)  # the target's own modules are used, nothing is initialised
        self.config = target.config
        self.token_embedding_table = target.token_embedding_table
        self.position_embedding_table = target.position_embedding_table
        self.blocks, self.ln_f, self.lm_head = target.blocks, target.ln_f, target.lm_head
        self.qkv = [  # of each layer (3 C, C): the queries of all heads, then keys, then values
            torch.cat(
                [getattr(h, name).weight for name in ("query", "key", "value") for h in b.sa.heads]
            ).detach()
            for b in target.blocks
        ]
        T = self.config.block_size
        mask = causal_mask(T, device=self.device)
        self.bias = torch.zeros(T, T).to(self.qkv[0]).masked_fill(~mask, -torch.inf)

    @torch.no_grad()
    def trunk(
        self,
        idx: Tensor,
        pos: Tensor | None = None,
        past_kvs: PreallocatedCache | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, PreallocatedCache]:
        """As GPTLanguageModel.trunk: idx (B, T) -> hidden states (B, T, C) and the new cache.

        Raises ValueError past the window, and for a cache that is no PreallocatedCache.
        """
        (B, T), P, C = idx.shape, cache_length(past_kvs), self.config.n_embd
        pos = self.positions(T, P, pos)
        if past_kvs is None:
            past_kvs = PreallocatedCache.empty(self.config, B, like=self.qkv[0])
        if not isinstance(past_kvs, PreallocatedCache):
            raise ValueError("past_kvs is not a PreallocatedCache; prefill with this model itself")
        new_kvs = past_kvs.grown(T)
        bias = self.bias[P : P + T, : P + T]
        if attn_mask is not None:  # (T, P+T) or (B, T, P+T), for every head the same
            bias = attn_mask if attn_mask.dim() == 2 else attn_mask[:, None]
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)  # (B, T, C)
        for layer, (block, weight) in enumerate(zip(self.blocks, self.qkv, strict=True)):
            qkv = F.linear(block.ln1(x), weight).view(B, T, 3, self.config.n_head, -1)
            qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, B, n_head, T, hs)
            k, v = new_kvs.write(layer, qkv[1:])  # (B, n_head, P+T, hs) each
            attended = F.scaled_dot_product_attention(qkv[0], k, v, attn_mask=bias)
            x = x + block.sa.proj(attended.transpose(1, 2).reshape(B, T, C))
            x = x + block.ffwd(block.ln2(x))
        return self.ln_f(x), new_kvs
