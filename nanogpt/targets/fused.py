"""The same target, faster: one product for all queries, keys and values, and a preallocated cache.

The per-head model of `nanogpt.model` is written to be read. This one does the same arithmetic in
fewer, larger operations, with the same weights and the same contracts, so that every decoder and
every check runs on it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt.cache import KV, CacheObject, first
from nanogpt.model import GPTLanguageModel, causal_mask
from nanogpt.trees.tree import select


class PreallocatedCache(CacheObject):
    """A cache in one buffer: a pass writes into its free slots, a rollback moves an index.

    It reads like the tuples, `cache[layer][head]` is (k, v), each (B, P, hs), and is used like
    them: a pass is handed one and returns a longer one. Slot i holds the i-th entry of a text,
    whatever its position; each text of a batch has a length of its own, and P is the longest.
    Both caches share the buffer, so a pass that starts again from a shorter cache overwrites what a
    longer one held; using the longer one afterwards is a ValueError.
    """

    def __init__(
        self,
        buffer: Tensor,
        starts: list[list[int]],
        lengths: tuple[int, ...],
        part_of: tuple[Tensor, int] | None = None,
    ):
        self.buffer = buffer  # (n_layer, 2, B, n_head, slots, hs): keys and values
        self.starts = starts  # of each text: from which slot each pass wrote into its row
        self.known = [len(of) for of in starts]  # passes so far: they left these entries alone
        self.lengths = lengths  # of each text: how many entries it has
        self.length = max(lengths)
        self.even = min(lengths) == self.length  # all texts have as many
        self.part_of = part_of  # of a single row: the batch's buffer that it is a view of, and row

    @classmethod
    def empty(cls, config, B: int, like: Tensor) -> PreallocatedCache:
        """An empty cache for B texts, of the type and on the device of `like`, any tensor.

        Its buffer is (n_layer, 2, B, n_head, block_size, hs), and grows where that is too little.
        """
        hs, slots = config.n_embd // config.n_head, config.block_size
        # Zeros: what a shorter text has not written is masked, but 0 times a NaN would be NaN.
        with torch.inference_mode(False):  # for passes outside of it, too
            buffer = like.new_zeros(config.n_layer, 2, B, config.n_head, slots, hs)
        return cls(buffer, [[] for _ in range(B)], (0,) * B)

    @classmethod
    def joined(
        cls, caches: Sequence[PreallocatedCache | None], more: Sequence[int] | None = None
    ) -> PreallocatedCache:
        """One cache for several texts, from a cache of each; None is an empty one.

        more: of each text, how many tokens the next pass has that are its own; padding is written
        behind them, and overwritten later.
        Nothing is copied where they are the rows of one batch, in their order (`rows`).
        Errors are those of `check`; ValueError if all of them are None.
        """
        some = [cache for cache in caches if cache is not None]
        if not some:
            raise ValueError("no text has a cache; give the model None")
        for cache in some:
            cache.check()
        lengths = tuple([cache.length if cache else 0 for cache in caches])
        whole, _ = some[0].part_of or (None, 0)
        rows = [cache.part_of if cache else None for cache in caches]
        if (
            whole is not None
            and len(rows) == whole.shape[2]
            and all(row and row[0] is whole and row[1] == b for b, row in enumerate(rows))
        ):
            return cls(whole, [cache.starts[0] for cache in some], lengths)
        n_layer, _, _, n_head, _, hs = some[0].buffer.shape
        slots = max(cache.buffer.shape[4] for cache in some)
        with torch.inference_mode(False):
            buffer = some[0].buffer.new_zeros(n_layer, 2, len(caches), n_head, slots, hs)
        for b, own in enumerate(caches):
            if own:
                buffer[:, :, b, :, : own.length] = own.buffer[:, :, 0, :, : own.length]
        return cls(buffer, [[] for _ in caches], lengths)

    def rows(self, lengths: Sequence[int]) -> list[PreallocatedCache]:
        """The first entries of each text as a cache of its own: views, nothing is copied.

        Errors are those of `check`.
        """
        self.check()
        return [
            PreallocatedCache(self.buffer[:, :, b : b + 1], self.starts[b : b + 1], (n,), whole)
            for b, n in enumerate(lengths)
            for whole in [(self.buffer, b)]
        ]

    def check(self) -> None:
        """Raise ValueError if these entries are no longer there: another pass overwrote them."""
        for b, starts in enumerate(self.starts):
            if any(start < self.lengths[b] for start in starts[self.known[b] :]):
                raise ValueError(
                    f"this cache of {self.lengths[b]} tokens was overwritten by a pass that "
                    "started from a shorter one; use the cache that the last pass returned"
                )
            self.known[b] = len(starts)

    def grown(self, T: int) -> PreallocatedCache:
        """The cache of the pass that writes T entries after these, in a larger buffer if need be.

        Errors are those of `check`.
        """
        self.check()
        buffer, starts, slots = self.buffer, self.starts, self.buffer.shape[4]
        if self.length + T > slots:  # a buffer of its own: nobody else writes there yet
            with torch.inference_mode(False):
                buffer = F.pad(buffer, (0, 0, 0, max(slots, self.length + T - slots)))
            starts = [[] for _ in starts]
        for of, n in zip(starts, self.lengths, strict=True):
            of.append(n)
        whole = self.part_of if buffer is self.buffer else None
        return PreallocatedCache(buffer, starts, tuple([n + T for n in self.lengths]), whole)

    def write(self, layer: int, kv: Tensor) -> Tensor:
        """Put kv (2, B, n_head, T, hs) at the end of each text; returns the layer: (2, …, P+T, hs).

        Keys and values are written in one copy: starting one costs more than the bytes do.
        """
        both, T = self.buffer[layer].narrow(3, 0, self.length), kv.shape[3]
        if self.even:
            both.narrow(3, self.length - T, T).copy_(kv)
        else:
            slots = torch.tensor(self.lengths)[:, None] - T + torch.arange(T)  # (B, T)
            both[:, torch.arange(len(slots))[:, None], :, slots] = kv.permute(1, 3, 0, 2, 4)
        return both

    def kept(self, lengths: int | Sequence[int]) -> PreallocatedCache:
        """The first entries of each text: one length for all, or one for each. Nothing is copied.

        Errors are those of `check`.
        """
        self.check()
        each = [lengths] * len(self.lengths) if isinstance(lengths, int) else lengths
        kept = tuple(map(min, each, self.lengths))
        return PreallocatedCache(self.buffer, self.starts, kept, self.part_of)

    def gathered(self, slots: Sequence[int]) -> PreallocatedCache:
        """The entries in these slots, in their order, of a cache of one text. They are moved.

        The first that does not stay where it is starts a pass of its own: a longer cache that
        shares the buffer is stale afterwards. Errors are those of `check`.
        """
        self.check()
        stay = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        moved = self.buffer[..., slots[stay:], :]  # a copy
        self.buffer[..., stay : len(slots), :] = moved
        for of in self.starts:
            of.append(stay)
        kept = (len(slots),) * len(self.lengths)
        return PreallocatedCache(self.buffer, self.starts, kept, self.part_of)

    def __len__(self) -> int:
        return len(self.buffer)  # layers

    def __getitem__(self, layer: int) -> tuple[KV, ...]:
        """(k, v) of each head of a layer, each (B, P, hs). Errors are those of `check`.

        In a text with fewer than P entries, whatever follows its own is meaningless.
        """
        self.check()
        keys, values = self.buffer[layer][..., : self.length, :]  # (B, n_head, P, hs) each
        return tuple(zip(keys.unbind(1), values.unbind(1), strict=True))


first.register(PreallocatedCache, PreallocatedCache.kept)
select.register(PreallocatedCache, PreallocatedCache.gathered)


class FusedLanguageModel(GPTLanguageModel):
    """A GPTLanguageModel's weights with one product for q, k and v of all heads of a layer.

    Logits equal the given target's up to rounding. Its caches begin as `cache.empty(…)`: a
    PreallocatedCache, or one that is used like it; tuples are a ValueError. For decoding: no
    dropout, no gradient. Give it a target that is on its device, and of its type, already.
    """

    blocks: Any  # Blocks; a type checker would know only Module

    def __init__(self, target: GPTLanguageModel, cache=PreallocatedCache):
        nn.Module.__init__(self)  # the target's own modules are used, nothing is initialised
        self.config, self.cache = target.config, cache
        self.token_embedding_table = target.token_embedding_table
        self.position_embedding_table = target.position_embedding_table
        self.blocks, self.ln_f = target.blocks, target.ln_f
        self.lm_head = target.lm_head
        self.qkv = [  # of each layer (3 C, C): the queries of all heads, then keys, then values
            torch.cat(
                [getattr(h, name).weight for name in ("query", "key", "value") for h in b.sa.heads]
            ).detach()
            for b in self.blocks
        ]
        T = self.config.block_size
        mask = causal_mask(T, device=self.device)
        self.bias = torch.zeros(T, T).to(self.qkv[0]).masked_fill(~mask, -torch.inf)

    def attn_bias(self, past_kvs: PreallocatedCache, T: int, attn_mask: Tensor | None) -> Tensor:
        """What T tokens after a cache may attend to, for any number of heads.

        The caller's mask (T, P+T) or (B, T, P+T), column i being slot i; else the causal bias, and
        (B, 1, T, P+T) bool where texts have lengths of their own.
        """
        P = past_kvs.length
        if attn_mask is not None:
            return attn_mask if attn_mask.dim() == 2 else attn_mask[:, None]
        if not past_kvs.even:
            last = torch.tensor(past_kvs.lengths)[:, None] + torch.arange(T)  # (B, T) slots
            return (torch.arange(P + T) <= last[..., None])[:, None].to(self.device)
        if P + T > len(self.bias):  # only with positions of the caller's own
            return causal_mask(T, P, self.device)
        return self.bias[P : P + T, : P + T]

    def embed(self, idx, pos, past_kvs, attn_mask) -> tuple[Tensor, Tensor]:
        """As GPTLanguageModel.embed, idx (B, T) -> (B, T, C); the bias is as in `attn_bias`.

        Raises ValueError past the window, and for a cache of tuples.
        """
        T = idx.shape[1]
        if isinstance(past_kvs, tuple):
            raise ValueError("past_kvs are tuples, another model's; prefill with this model itself")
        if pos is None and not past_kvs.even:
            pos = (torch.tensor(past_kvs.lengths)[:, None] + torch.arange(T)).to(self.device)
        pos = self.positions(idx, past_kvs.length, pos)
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)  # (B, T, C)
        return x, self.attn_bias(past_kvs, T, attn_mask)

    def layer(self, i: int, x: Tensor, bias: Tensor, new_kvs: PreallocatedCache) -> Tensor:
        """Block i: x (B, T, C) -> (B, T, C), its keys and values written into the cache."""
        (B, T, C), block = x.shape, self.blocks[i]
        qkv = F.linear(block.ln1(x), self.qkv[i]).view(B, T, 3, self.config.n_head, -1)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, B, n_head, T, hs)
        k, v = new_kvs.write(i, qkv[1:])  # (B, n_head, P+T, hs) each
        attended = F.scaled_dot_product_attention(qkv[0], k, v, attn_mask=bias)
        x = x + block.sa.proj(attended.transpose(1, 2).reshape(B, T, C))
        return x + block.ffwd(block.ln2(x))

    @torch.no_grad()
    def states(  # type: ignore[override]  # of the caches, it takes its own kind only
        self,
        idx: Tensor,
        pos: Tensor | None = None,
        past_kvs: PreallocatedCache | None = None,
        attn_mask: Tensor | None = None,
        depth: int | None = None,
    ) -> tuple[list[Tensor], PreallocatedCache]:
        """As GPTLanguageModel.states, streams (B, T, C), but the cache has all blocks.

        Those past `depth` are not written: it serves for the same depth. Where the texts of a batch
        have lengths of their own, each goes on from its own.
        Raises ValueError past the window, and for a cache of tuples.
        """
        B, T = idx.shape
        if past_kvs is None:
            past_kvs = self.cache.empty(self.config, B, like=self.qkv[0])
        x, bias = self.embed(idx, pos, past_kvs, attn_mask)
        new_kvs, streams = past_kvs.grown(T), []
        for i in range(len(self.blocks) if depth is None else depth):
            x = self.layer(i, x, bias, new_kvs)
            streams.append(x)
        return streams, new_kvs


# The two forms of a target, by name.
TARGETS = {"per-head": lambda target: target, "fused": FusedLanguageModel}
