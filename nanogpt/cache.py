"""The key-value cache of the P tokens so far, tuples all the way down: `past_kvs[layer][head]`."""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head: k and v, each (B, P, hs)


class CacheObject:
    """A cache of `length` entries that reads like the tuples. It registers its own `first`."""

    length: int

    def __getitem__(self, layer: int) -> tuple[KV, ...]:
        raise NotImplementedError


KVCache = tuple[tuple[KV, ...], ...] | CacheObject  # of every layer and head


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
    k, _ = past_kvs[0][0]  # every layer and head holds the same tokens
    return k.shape[1]


cache_length = by_kind = singledispatch(cache_length)
by_kind.register(CacheObject, lambda kvs: kvs.length)


def appended(past_kv: KV | None, k: Tensor, v: Tensor) -> KV:
    """One head's P old keys and values, if any, then T new ones: two (B, P+T, hs)."""
    if past_kv is None:
        return k, v
    return torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)


@singledispatch
def first(kvs: KVCache, n: int) -> KVCache:
    """The first n entries of a cache of tuples; an object registers its own."""
    if n == cache_length(kvs):
        return kvs
    return tuple(tuple((k[:, :n], v[:, :n]) for k, v in x) for x in kvs)  # type: ignore[union-attr]


def trim_kv_cache(new_kvs: KVCache, num_emitted: int, position: int) -> KVCache:
    """The cache after a round: the entries before the current token, and `num_emitted` more.

    A pass over the current token and K candidates adds K+1 entries. As many stay as the round emits
    tokens: the current token's and the accepted candidates'. The last emitted token has none yet:
    it is the next current token.
    """
    return first(new_kvs, position + num_emitted)
