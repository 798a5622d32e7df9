"""The key-value cache, tuples all the way down.

`past_kvs[layer][head]` is (k, v), each (B, P, hs): the keys and values of the P tokens so far.
A cache of another kind, as a faster target keeps one (`nanogpt.fused`), reads the same way and has
`length` and the texts' own `lengths` (`even`: all the same), `grown(T)`, `write(layer, kv)`,
`kept(length)`, `gathered(slots)`, and for a batch `joined(caches)` and `rows(lengths)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head
KVCache = tuple[tuple[KV, ...], ...]  # of every layer and head


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
    if not isinstance(past_kvs, tuple):
        return past_kvs.length
    k, _ = past_kvs[0][0]  # every layer and head holds the same tokens
    return k.shape[1]


def trim_kv_cache(new_kvs: KVCache, num_emitted: int, cache_len_before_verify: int) -> KVCache:
    """The cache after a round: what it held before, and `num_emitted` of the new entries.

    A pass over the current token and K candidates adds K+1 entries. The round emits the accepted
    candidates and one token more; as many entries stay: the current token's and the accepted
    candidates'. The last token of the round has no entry yet: it is the next current token.
    """
    keep = cache_len_before_verify + num_emitted
    if not isinstance(new_kvs, tuple):
        return new_kvs.kept(keep)
    if keep == cache_length(new_kvs):  # every candidate was accepted
        return new_kvs
    kept = (slice(None), slice(keep))  # k[kept] is k[:, :keep], the slices made once for all heads
    return tuple(tuple((k[kept], v[kept]) for k, v in layer) for layer in new_kvs)


def keep_path(new_kvs: KVCache, path: Sequence[int], cache_len_before_verify: int) -> KVCache:
    """The cache after a tree's round: what it held before, the current token's entry, the path's.

    A pass over the current token and a tree adds an entry for each: the current token's, then those
    of the nodes in their order. `path` are the accepted nodes from the root down; their entries
    move together, so that slots are positions again.
    """
    first = cache_len_before_verify + 1  # node 0's slot
    if list(path) == list(range(len(path))):  # they stand together already
        return trim_kv_cache(new_kvs, 1 + len(path), cache_len_before_verify)
    slots = [*range(first), *(first + node for node in path)]
    if not isinstance(new_kvs, tuple):
        return new_kvs.gathered(slots)
    stay = torch.tensor(slots, device=new_kvs[0][0][0].device)  # made once for all heads
    return tuple(
        tuple((k.index_select(1, stay), v.index_select(1, stay)) for k, v in layer)
        for layer in new_kvs
    )
