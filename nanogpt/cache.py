"""The key-value cache, tuples all the way down.

`past_kvs[layer][head]` is (k, v), each (B, P, hs): the keys and values of the P tokens so far.
A cache of another kind, as a faster target keeps one (`nanogpt.fused`), reads the same way and is a
`CacheObject`; the functions here take both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head
KVCache = tuple[tuple[KV, ...], ...]  # of every layer and head


class CacheObject(Protocol):
    """What is asked of a cache that is no tuple: `nanogpt.fused`, `nanogpt.serving.paged`."""

    length: int  # P, the most that a text of the batch has
    lengths: tuple[int, ...]  # of each text
    even: bool  # all texts have as many

    def grown(self, T: int) -> CacheObject:
        """One with room for T more entries of each text, to be written by the pass."""

    def write(self, layer: int, kv: Tensor) -> Tensor:
        """Put the pass's kv (2, B, n_head, T, hs) there; returns the layer (2, …, P+T, hs)."""

    def kept(self, length: int) -> CacheObject:
        """The first `length` entries."""

    def gathered(self, slots: Sequence[int]) -> CacheObject:
        """The entries in these slots, moved together."""

    def rows(self, lengths: Sequence[int]) -> list[CacheObject]:
        """Of a batch, each text's own, with so many entries."""


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
    if not isinstance(past_kvs, tuple):
        return past_kvs.length
    k, _ = past_kvs[0][0]  # every layer and head holds the same tokens
    return k.shape[1]


def first(kvs: KVCache | None, n: int) -> KVCache | None:
    """The cache's first n entries."""
    if kvs is None or n == cache_length(kvs):
        return kvs
    if not isinstance(kvs, tuple):
        return kvs.kept(n)
    return tuple(tuple((k[:, :n], v[:, :n]) for k, v in layer) for layer in kvs)


def select(kvs: KVCache, slots: Sequence[int]) -> KVCache:
    """The entries in these slots, moved together in this order."""
    if not isinstance(kvs, tuple):
        return kvs.gathered(slots)
    stay = torch.tensor(slots, device=kvs[0][0][0].device)
    return tuple(
        tuple((k.index_select(1, stay), v.index_select(1, stay)) for k, v in layer) for layer in kvs
    )


def trim_kv_cache(new_kvs: KVCache, num_emitted: int, cache_len_before_verify: int) -> KVCache:
    """The cache after a round: the entries before the current token, and `num_emitted` more.

    A pass over the current token and K candidates adds K+1 entries. The round emits the accepted
    candidates and one token more; as many entries stay: the current token's and the accepted
    candidates'. The last token of the round has no entry yet: it is the next current token.
    """
    return first(new_kvs, cache_len_before_verify + num_emitted)


def keep_path(new_kvs: KVCache, path: Sequence[int], cache_len_before_verify: int) -> KVCache:
    """The cache after a tree's round: the entries up to the current token's, and the path's.

    A pass over the current token and a tree adds an entry for each: the current token's, then those
    of the nodes in their order. `path` are the accepted nodes from the root down; their entries
    move together, so that slots are positions again.
    """
    nodes = cache_len_before_verify + 1  # node 0's slot
    if list(path) == list(range(len(path))):  # they stand together already
        return first(new_kvs, nodes + len(path))
    return select(new_kvs, [*range(nodes), *(nodes + node for node in path)])
