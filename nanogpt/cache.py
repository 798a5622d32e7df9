"""The key-value cache, tuples all the way down.

`past_kvs[layer][head]` is (k, v), each (B, P, hs): the keys and values of the P tokens so far.
"""

from __future__ import annotations

import torch
from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head
KVCache = tuple[tuple[KV, ...], ...]  # of every layer and head


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
    if isinstance(past_kvs, PreallocatedCache):
        return past_kvs.length
    k, _ = past_kvs[0][0]  # every layer and head holds the same tokens
    return k.shape[1]


def trim_kv_cache(new_kvs: KVCache, num_accepted: int, cache_len_before_verify: int) -> KVCache:
    """The cache after a round: what it held before, and `num_accepted` entries of the new ones.

    A pass over the current token and K candidates adds K+1 entries. `num_accepted` is the number
    of tokens that came of the round: the accepted candidates and one more. The entries to keep are
    as many: the current token's and the accepted candidates'. The last token of the round has no
    entry yet; it is the next current token.
    """
    keep = cache_len_before_verify + num_accepted
    if isinstance(new_kvs, PreallocatedCache):
        return new_kvs.rolled_back(keep)
    if keep == cache_length(new_kvs):  # every candidate was accepted
        return new_kvs
    kept = (slice(None), slice(keep))  # k[kept] is k[:, :keep], the slices made once for all heads
    return tuple(tuple((k[kept], v[kept]) for k, v in layer) for layer in new_kvs)


class PreallocatedCache:
    """A cache in one buffer of the window's size: a pass writes into it, a rollback moves an index.

    It reads like the tuples, `cache[layer][head]` is (k, v), each (B, P, hs), and is used like
    them: a pass is handed one and returns a longer one. Both share the buffer, so a pass that
    starts again from a shorter cache overwrites what a longer one held; using the longer one
    afterwards is a ValueError.
    """

    def __init__(self, buffer: Tensor, writer: list[int], length: int):
        self.buffer = buffer  # (n_layer, 2, B, n_head, block_size, hs): keys and values
        self.writer = writer  # of each position: the number of the pass that wrote it
        self.length = length
        self.stamp = writer[length - 1] if length else 0

    @classmethod
    def empty(cls, config, B: int, like: Tensor) -> PreallocatedCache:
        """An empty cache for B texts, of the type and on the device of `like`, any tensor.

        Its buffer is (n_layer, 2, B, n_head, block_size, hs).
        """
        shape = (config.n_embd // config.n_head,)
        shape = (config.n_layer, 2, B, config.n_head, config.block_size, *shape)
        return cls(torch.empty(shape, dtype=like.dtype, device=like.device), [0] * shape[4], 0)

    def check(self) -> None:
        """Raise ValueError if these entries are no longer there: another pass overwrote them."""
        if self.length and self.writer[self.length - 1] != self.stamp:
            raise ValueError(
                f"this cache of {self.length} tokens was overwritten by a pass that started from a "
                "shorter one; use the cache that the last pass returned"
            )

    def grown(self, T: int) -> PreallocatedCache:
        """The cache of the pass that writes T entries behind these. Errors are those of `check`."""
        self.check()
        rest = len(self.writer) - self.length
        self.writer[self.length :] = [self.writer[-1] + 1] * rest  # what lay there is stale now
        return PreallocatedCache(self.buffer, self.writer, self.length + T)

    def write(self, layer: int, kv: Tensor) -> Tensor:
        """Put kv (2, B, n_head, T, hs) at the end; returns all of the layer: (2, …, P+T, hs).

        Keys and values are written in one copy: starting one costs more than the bytes do.
        """
        both = self.buffer[layer].narrow(3, 0, self.length)
        T = kv.shape[3]
        both.narrow(3, self.length - T, T).copy_(kv)
        return both

    def rolled_back(self, length: int) -> PreallocatedCache:
        """The first `length` entries, in O(1): nothing is copied. Errors are those of `check`."""
        self.check()
        return PreallocatedCache(self.buffer, self.writer, min(length, self.length))

    def __len__(self) -> int:
        return len(self.buffer)  # layers

    def __getitem__(self, layer: int) -> tuple[KV, ...]:
        """(k, v) of each head of a layer, each (B, P, hs)."""
        keys, values = self.buffer[layer][..., : self.length, :]  # (B, n_head, P, hs) each
        return tuple(zip(keys.unbind(1), values.unbind(1), strict=True))
