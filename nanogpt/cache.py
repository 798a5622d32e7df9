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


def joined(caches: Sequence[KVCache | None]) -> tuple[KVCache | None, list[int]]:
    """One cache for a batch of texts, and the column where each text's own entries begin.

    caches: of one text each; None is an empty one. Tuples are moved to the right, zeros before
    them, so that the entries of the next pass follow in the same column for all; caches of another
    kind begin in column 0 and let each text go on in a column of its own.
    """
    some = next((cache for cache in caches if cache is not None), None)
    if some is None:
        return None, [0] * len(caches)
    if len(caches) == 1:
        return some, [0]
    if not isinstance(some, tuple):
        return type(some).joined(caches), [0] * len(caches)
    lengths = torch.tensor([cache_length(cache) for cache in caches])[:, None]  # (B, 1)
    P = int(lengths.max())
    before = P - lengths
    # All texts' entries in one row, zeros in front; then each slot's place in that row.
    place = torch.arange(P) - before + lengths.cumsum(0) - lengths + 1  # (B, P)
    place = place.where(torch.arange(P) >= before, 0)
    nothing = torch.zeros_like(some[0][0][0][:, :1])
    place = place.to(nothing.device)

    def column(layer: int, head: int, which: int) -> Tensor:
        own = [cache[layer][head][which] for cache in caches if cache is not None]
        return torch.cat([nothing, *own], dim=1)[0, place]  # (B, P, hs)

    return tuple(
        tuple((column(i, h, 0), column(i, h, 1)) for h in range(len(layer)))
        for i, layer in enumerate(some)
    ), before[:, 0].tolist()


def rows(new_kvs: KVCache, before: Sequence[int], lengths: Sequence[int]) -> list[KVCache]:
    """The batch's cache as one for each text: its first `lengths` entries from its column on."""
    if not isinstance(new_kvs, tuple):
        return new_kvs.rows(lengths)
    return [
        tuple(tuple((k[own], v[own]) for k, v in layer) for layer in new_kvs)
        for b, (s, n) in enumerate(zip(before, lengths, strict=True))
        for own in [(slice(b, b + 1), slice(s, s + n))]
    ]
