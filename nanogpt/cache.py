"""The key-value cache, tuples all the way down.

`past_kvs[layer][head]` is (k, v), each (B, P, hs): the keys and values of the P tokens so far.
"""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head


class CacheObject:
    """A cache that is no tuple. Where it is, it registers its own `cache_length` and `first`."""


KVCache = tuple[tuple[KV, ...], ...] | CacheObject  # of every layer and head


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
    k, _ = past_kvs[0][0]  # every layer and head holds the same tokens
    return k.shape[1]


def first(kvs: KVCache | None, n: int) -> KVCache | None:
    """The cache's first n entries."""
    if kvs is None or n == cache_length(kvs):
        return kvs
    return tuple(tuple((k[:, :n], v[:, :n]) for k, v in layer) for layer in kvs)


cache_length, first = singledispatch(cache_length), singledispatch(first)


def trim_kv_cache(new_kvs: KVCache, num_emitted: int, position: int) -> KVCache:
    """The cache after a round: the entries before the current token, and `num_emitted` more.

    A pass over the current token and K candidates adds K+1 entries. The round emits the accepted
    candidates and one token more; as many entries stay: the current token's and the accepted
    candidates'. The last token of the round has no entry yet: it is the next current token.
    """
    return first(new_kvs, position + num_emitted)
