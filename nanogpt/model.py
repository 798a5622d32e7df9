"""The target model: a small GPT whose heads keep no state.

What a decoder keeps between calls, keys and values, is returned as a value and handed back.

Shapes: B batch, T tokens in this call, P cached ones, V vocabulary, C = n_embd, hs = head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt.cache import KV, KVCache, appended, cache_length


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model; the defaults are the shipped target's (215,808 parameters).

    Raises ValueError for a size below 1, n_embd no multiple of n_head, dropout outside [0, 1).
    """

    vocab_size: int = 65
    block_size: int = 128  # the window: the most positions a pass may see
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd {self.n_embd} is no multiple of n_head {self.n_head}; "
                "each head gets n_embd / n_head channels"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be in [0, 1)")


def causal_mask(T: int, P: int = 0, device: torch.device | None = None) -> Tensor:
    """(T, P+T) bool, True where row i (position P+i) may attend to column j: j <= P + i."""
    return torch.ones(T, P + T, dtype=torch.bool, device=device).tril(diagonal=P)


class Head(nn.Module):
    """One head of masked self-attention (Vaswani et al. 2017, section 3.2.1), without biases."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        head_size = config.n_embd // config.n_head
        self.key = nn.Linear(config.n_embd, head_size, bias=False)
        self.query = nn.Linear(config.n_embd, head_size, bias=False)
        self.value = nn.Linear(config.n_embd, head_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attn_bias: Tensor, past_kv: KV | None = None) -> tuple[Tensor, KV]:
        """x (B, T, C), past_kv two (B, P, hs) or None -> (B, T, hs), keys and values (B, P+T, hs).

        attn_bias (T, P+T) or (B, T, P+T) is 0 where a row may attend and -inf where it may not.
        """
        q = self.query(x)  # (B, T, hs)
        k, v = appended(past_kv, self.key(x), self.value(x))  # (B, P+T, hs) each
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)  # (B, T, P+T)
        weights = self.dropout(F.softmax(scores + attn_bias, dim=-1))
        return weights @ v, (k, v)


class MultiHeadAttention(nn.Module):
    """Several heads side by side, their outputs concatenated and mixed."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = nn.ModuleList([Head(config) for _ in range(config.n_head)])
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, attn_bias: Tensor, past_heads: tuple[KV, ...] | None = None
    ) -> tuple[Tensor, tuple[KV, ...]]:
        """x (B, T, C) -> (B, T, C) and one (k, v) per head; past_heads the same, or None."""
        pasts = past_heads or [None] * len(self.heads)
        results = [h(x, attn_bias, past) for h, past in zip(self.heads, pasts, strict=True)]
        out = torch.cat([out for out, _ in results], dim=-1)  # n_head of (B, T, hs) -> (B, T, C)
        return self.dropout(self.proj(out)), tuple(kv for _, kv in results)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, applied at each position alone."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.ReLU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.net(x)


class Block(nn.Module):
    """Attention, then feed-forward, each after a LayerNorm and added to the residual stream."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.sa = MultiHeadAttention(config)
        self.ffwd = FeedForward(config)
        self.ln1 = nn.LayerNorm(config.n_embd)
        self.ln2 = nn.LayerNorm(config.n_embd)

    def forward(
        self, x: Tensor, attn_bias: Tensor, past_heads: tuple[KV, ...] | None = None
    ) -> tuple[Tensor, tuple[KV, ...]]:
        """x (B, T, C) -> (B, T, C) and the block's new keys and values."""
        attended, new_heads = self.sa(self.ln1(x), attn_bias, past_heads)
        x = x + attended
        return x + self.ffwd(self.ln2(x)), new_heads


class GPTLanguageModel(nn.Module):
    """A decoder-only transformer over tokens, laid out like GPT-2; it keeps no state between calls.

    It differs in ReLU for GELU, an untied `lm_head`, and no biases on query, key and value.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.1)  # a narrow model learns faster than at 0.02
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where `idx` must be."""
        return self.lm_head.weight.device

    def positions(self, idx: Tensor, P: int, pos: Tensor | None = None) -> Tensor:
        """Positions (T,) of idx (B, T) after P cached tokens: P … P+T-1, or the given `pos`.

        Raises ValueError where one lies outside the window.
        """
        T = idx.shape[1]
        inside = P + T <= self.config.block_size
        if pos is None:
            pos = torch.arange(P, P + T, device=idx.device)
        else:
            inside = 0 <= int(pos.min()) and int(pos.max()) < self.config.block_size
        if not inside:
            raise ValueError(
                f"{T} tokens after {P} cached ones run past the window of {self.config.block_size}"
                " positions (block_size); pass fewer tokens, or restart with a shorter context"
            )
        return pos

    def embed(self, idx, pos, past_kvs, attn_mask) -> tuple[Tensor, Tensor]:
        """The residual stream before the blocks (B, T, C), and the bias that all their heads add.

        The bias is (T, P+T) or (B, T, P+T), -inf where a row may not attend. Errors: `states`'s.
        """
        T, P = idx.shape[1], cache_length(past_kvs)
        pos = self.positions(idx, P, pos)
        mask = causal_mask(T, P, idx.device) if attn_mask is None else attn_mask
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)
        return x, torch.where(mask, 0.0, -torch.inf)

    def states(
        self,
        idx: Tensor,
        pos: Tensor | None = None,
        past_kvs: KVCache | None = None,
        attn_mask: Tensor | None = None,
        depth: int | None = None,
    ) -> tuple[list[Tensor], KVCache]:
        """idx (B, T) int64 -> the residual stream (B, T, C) after each block, and the new cache.

        `pos` (T,) or (B, T) are the positions, by default P … P+T-1. `past_kvs[layer][head]` is
        (k, v), each (B, P, hs), or None for P = 0; the new cache has the same form with length
        P+T. `attn_mask` (T, P+T) or (B, T, P+T) bool, True = may attend; causal by default.
        `depth`: stop after so many blocks. Raises ValueError past the window.
        """
        x, attn_bias = self.embed(idx, pos, past_kvs, attn_mask)
        streams, new_kvs = [], []
        past: Any = past_kvs or [None] * len(self.blocks)
        for block, past_heads in zip(self.blocks[:depth], past, strict=depth is None):
            x, new_heads = block(x, attn_bias, past_heads)
            streams.append(x)
            new_kvs.append(new_heads)
        return streams, tuple(new_kvs)

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        pos: Tensor | None = None,
        past_kvs: KVCache | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, KVCache]:
        """idx, targets (B, T) -> logits (B, T, V), mean cross-entropy in nats or None, new cache.

        `pos`, `past_kvs` and `attn_mask` are those of `states`, and so are the errors.
        """
        streams, new_kvs = self.states(idx, pos, past_kvs, attn_mask)
        logits = self.lm_head(self.ln_f(streams[-1]))
        if targets is None:
            return logits, None, new_kvs
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten()), new_kvs
