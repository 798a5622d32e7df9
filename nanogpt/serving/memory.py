"""Where the caches of a server's texts live, and which parts of them others may begin with.

`Slots` counts the entries of caches that texts have to themselves. `Blocks` are those of a pool
(`nanogpt.serving.paged`), where texts that begin alike share them. `Prefixes` does the same for a
target with states (`nanogpt.targets.state`): a state cannot be cut into blocks, so a whole cache is
kept at each end of a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from nanogpt.cache import KVCache
from nanogpt.serving.paged import BlockPool, PagedCache, block_key
from nanogpt.targets.state import StateCache


class Request(Protocol):
    """What a memory needs of a request, as `nanogpt.serving.server` has it."""

    tokens: list[int]
    start: int
    past_kvs: KVCache | None
    hidden: Tensor | None
    shared: int

    @property
    def cache_length(self) -> int:
        """How many entries its cache has."""
        ...


def context_of(request: Request) -> list[int]:
    """The tokens whose entries a cache may hold: all before the current one."""
    return request.tokens[request.start : -1]


class Slots:
    """So many places for entries, of caches that texts have to themselves."""

    size = 1  # places that are handed out together

    def __init__(self, places: int):
        self.places = places

    def free(self, running: Sequence[Request]) -> int:
        """Places that nobody holds."""
        return self.places - sum(request.cache_length for request in running)

    def needs(self, request: Request, n: int) -> int:
        """How many of the free ones a request takes, to have the first n entries of its context."""
        return n - request.cache_length

    def begin(self, request: Request) -> None:
        """What a request has before it is read: nothing."""

    def reserve(self, request: Request, T: int) -> None:
        """Room for T entries more: it is there."""

    def trim(self, request: Request) -> None:
        """Give back the room that was reserved: there is none."""

    def keep(self, request: Request) -> None:
        """What may be kept for others: nothing."""

    def drop(self, request: Request) -> None:
        """Take a request's cache away."""
        request.past_kvs = request.hidden = None


class Blocks:
    """The places of a pool, which is asked what is free, whoever else holds blocks there.

    share: whether a request begins with the blocks that others have published.
    """

    def __init__(self, pool: BlockPool, share: bool = True):
        self.pool, self.size, self.places, self.share = pool, pool.size, pool.blocks, share

    def free(self, running: Sequence[Request]) -> int:
        """Blocks that nobody holds."""
        return self.pool.free

    def needs(self, request: Request, n: int) -> int:
        """How many free blocks a request takes, to have the first n entries of its context."""
        if request.past_kvs is not None:
            return self.cache(request).wanted(n - request.cache_length)
        blocks = self.pool.known(context_of(request))[0] if self.share else []
        held = sum(self.pool.references[block] > 0 for block in blocks)
        return -(-n // self.size) - held

    def cache(self, request: Request) -> PagedCache:
        """What a request has in the pool's blocks."""
        assert isinstance(request.past_kvs, PagedCache)
        return request.past_kvs

    def begin(self, request: Request) -> None:
        """Begin with what is there already."""
        if request.past_kvs is None:
            found = self.pool.found(context_of(request)) if self.share else None
            request.past_kvs = found or self.pool.empty(None, 1, None)
            request.shared += request.cache_length

    def reserve(self, request: Request, T: int) -> None:
        """Room for T entries more. Raises PoolFull."""
        self.cache(request).reserve(T)

    def trim(self, request: Request) -> None:
        """Give back the room that was reserved."""
        request.past_kvs = self.cache(request).kept(request.cache_length)

    def keep(self, request: Request) -> None:
        """Let others find what is final in a request's cache."""
        if self.share:
            self.pool.publish(context_of(request), self.cache(request))

    def drop(self, request: Request) -> None:
        """Give a request's blocks back now, whoever still has its cache in hand."""
        if request.past_kvs is not None:
            self.cache(request).free()
        request.past_kvs = request.hidden = None


class Prefixes(Slots):
    """As Slots, for a target with states: what texts have begun with is kept, to begin others with.

    A cache is kept at each end of `block` tokens, as soon as it is final and if it can go back to
    just there. A later text begins with the longest one of its context. Nothing in a StateCache
    ever changes, so any number of texts may go on from it. At most as many are kept as the places
    have blocks; what was used longest ago goes first, and of one text the longest. (Each has its
    own copy of the entries of attention; an engine would share those, in blocks.)
    """

    def __init__(self, places: int, block: int):
        super().__init__(places)
        self.block = block
        self.kept: OrderedDict[bytes, StateCache] = OrderedDict()  # block_key -> up to its end

    def keys(self, context: Sequence[int]) -> list[bytes]:
        """Of each full block of a context, its key."""
        keys: list[bytes] = []
        for end in range(self.block, len(context) + 1, self.block):
            own = context[end - self.block : end]
            keys.append(block_key(keys[-1] if keys else b"", own))
        return keys

    def there(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of a text's keys for which something is kept: it was read now."""
        there = [key for key in keys if key in self.kept]
        for key in reversed(there):
            self.kept.move_to_end(key)
        return there

    def begin(self, request: Request) -> None:
        """Begin with what is there already."""
        if request.past_kvs is None:
            if there := self.there(self.keys(context_of(request))):
                request.past_kvs = self.kept[there[-1]]
            request.shared += request.cache_length

    def keep(self, request: Request) -> None:
        """Let others find what is final: after the verdict, and not after the pass."""
        cache, keys = request.past_kvs, self.keys(context_of(request))
        assert isinstance(cache, StateCache)
        for i, key in enumerate(keys, 1):
            end = i * self.block
            if key not in self.kept and cache.before[0] <= end <= cache.length:
                made = cache.kept(end)
                if made.length == end:  # a snapshot may come back shorter
                    self.kept[key] = StateCache.joined([made])
        self.there(keys)
        while len(self.kept) > self.places // self.block:
            self.kept.popitem(last=False)
