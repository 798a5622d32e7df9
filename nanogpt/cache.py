"""The key-value cache, tuples all the way down.

`past_kvs[layer][head]` is (k, v), each (B, P, hs): the keys and values of the P tokens so far.
"""

from __future__ import annotations

from torch import Tensor

KV = tuple[Tensor, Tensor]  # of one head
KVCache = tuple[tuple[KV, ...], ...]  # of every layer and head


def cache_length(past_kvs: KVCache | None) -> int:
    """Number of tokens P that the cache holds; 0 for None, the empty cache."""
    if past_kvs is None:
        return 0
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
    return tuple(tuple((k[:, :keep], v[:, :keep]) for k, v in layer) for layer in new_kvs)
