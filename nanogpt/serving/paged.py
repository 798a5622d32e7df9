"""Caches in blocks of a common pool: a text takes memory as it grows and gives it back at once.

A `BlockPool` stands where FusedLanguageModel takes a cache, so every decoder runs on it unchanged.
Texts that begin alike share blocks; one that writes into a shared block writes into a copy of it.
"""

from __future__ import annotations

import hashlib
import weakref
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.cache import KV, CacheObject, first
from nanogpt.generate import check_whole
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.tree import select


class PoolFull(ValueError):
    """A pass needs more blocks than are free. Nothing was written."""


def block_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block: by its own tokens, and by the name of the block before it.

    So it stands for all tokens up to the block's end, at the price of the block's own.
    """
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Memory for the entries of many texts: `blocks` blocks, each for `size` entries of one text.

    `entries` (n_layer, 2, blocks + 1, size, n_head, hs) holds their keys and values; the last block
    is nobody's, what pads a pass is written there. `references` counts the tables that hold a
    block. One that none holds is free, and remembers what was published in it until it is taken
    again: those without go first, and then the one that was free longest. Their type and device
    are those of the tensor `like`.
    Raises ValueError unless `blocks` and `size` are whole numbers from 1.
    """

    def __init__(self, config, blocks: int, size: int, like: Tensor):
        check_whole(1, blocks=blocks, size=size)
        self.blocks, self.size = blocks, size
        n_head, hs = config.n_head, config.n_embd // config.n_head
        with torch.inference_mode(False):  # for later passes outside of it, too
            self.entries = like.new_zeros(config.n_layer, 2, blocks + 1, size, n_head, hs)
        self.references = [0] * blocks
        self.unused = OrderedDict.fromkeys(
            range(blocks)
        )  # the free blocks, first to be taken first
        self.published: dict[bytes, int] = {}  # block_key -> the block
        self.keys: dict[int, bytes] = {}  # the same, by block

    @property
    def free(self) -> int:
        """How many blocks no text holds."""
        return len(self.unused)

    def empty(self, config, B: int, like: Tensor | None) -> PagedCache:
        """An empty cache for B texts, of no block yet. Its memory is the pool's, not as `like`."""
        return PagedCache([BlockTable(self) for _ in range(B)], (0,) * B)

    def take(self) -> int:
        """The first of the free blocks. What was published in it is forgotten, and erased.

        Erased, since a masked entry has weight 0, and 0 times a NaN is a NaN.
        """
        block = next(iter(self.unused))
        self.hold(block)
        if block in self.keys:
            del self.published[self.keys.pop(block)]
        self.entries[:, :, block] = 0
        return block

    def hold(self, block: int) -> None:
        """One table more holds this block."""
        self.references[block] += 1
        self.unused.pop(block, None)

    def release(self, blocks: list[int]) -> None:
        """One table less holds these blocks. Empties the list, from its end.

        A free block in which nothing is published is taken before those that can still be found.
        """
        while blocks:
            block = blocks.pop()
            self.references[block] -= 1
            if not self.references[block]:
                self.unused[block] = None
                self.unused.move_to_end(block, last=block in self.keys)

    def wanted(
        self, tables: Sequence[BlockTable], lengths: Sequence[int], more: Sequence[int]
    ) -> int:
        """How many blocks `more` entries of each text would take, copies of shared ones too."""
        new, shared = 0, Counter[int]()
        for table, n, T in zip(tables, lengths, more, strict=True):
            touched = table.blocks[n // self.size : -(-(n + T) // self.size)]
            shared.update(block for block in touched if self.references[block] > 1)
            new += max(0, -(-(n + T) // self.size) - len(table.blocks))
        # Of all the tables that hold a block, the last to write may keep it.
        return new + sum(min(n, self.references[block] - 1) for block, n in shared.items())

    def reserve(
        self, tables: Sequence[BlockTable], lengths: Sequence[int], more: Sequence[int]
    ) -> None:
        """Give each text room for `more` entries of its own, in blocks that it alone holds.

        Raises PoolFull, before anything is changed, where there are too few free blocks.
        """
        wanted = self.wanted(tables, lengths, more)
        if wanted > self.free:
            raise PoolFull(
                f"the pool is full: blocks of {self.size} wanted {wanted}, free "
                f"{self.free} of {self.blocks}, for {max(more)} entries more in a text; "
                "drop a text, or make the pool larger"
            )
        for table, n, T in zip(tables, lengths, more, strict=True):
            for i in range(n // self.size, -(-(n + T) // self.size)):
                if i == len(table.blocks):
                    table.blocks.append(self.take())
                elif self.references[table.blocks[i]] > 1:  # copy on write
                    old, new = table.blocks[i], self.take()
                    self.entries[:, :, new] = self.entries[:, :, old]
                    table.blocks[i] = new
                    self.release([old])

    def publish(self, tokens: Sequence[int], cache: PagedCache) -> None:
        """Let other texts find the full blocks of a text that begins with `tokens`.

        The tokens must be final: whoever publishes an entry never writes it again. What the table
        has published before is not named again; of equal blocks, the first is found, and no other.
        """
        (table,) = cache.tables
        for i in range(len(table.keys), min(len(tokens), cache.length) // self.size):
            own, block = tokens[i * self.size : (i + 1) * self.size], table.blocks[i]
            table.keys.append(block_key(table.keys[-1] if i else b"", own))
            if table.keys[i] not in self.published and block not in self.keys:
                self.published[table.keys[i]], self.keys[block] = block, table.keys[i]

    def known(self, tokens: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """The published blocks that hold the first of these tokens, and their keys."""
        blocks: list[int] = []
        keys: list[bytes] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            key = block_key(keys[-1] if keys else b"", tokens[end - self.size : end])
            if key not in self.published:
                break
            blocks.append(self.published[key])
            keys.append(key)
        return blocks, keys

    def found(self, tokens: Sequence[int]) -> PagedCache | None:
        """A cache of the first of these tokens, in published blocks, or None.

        Nothing is computed, nothing is copied.
        """
        blocks, keys = self.known(tokens)
        length = len(blocks) * self.size
        return PagedCache([BlockTable(self, blocks, keys)], [length]) if blocks else None

    def check(self, caches: Sequence[PagedCache]) -> None:
        """Raise AssertionError unless the books are right; caches: all that there are."""
        tables = {id(table): table for cache in caches for table in cache.tables}.values()
        held = Counter(block for table in tables for block in table.blocks)
        assert held == Counter(dict(enumerate(self.references))), (
            f"references {self.references} are not the blocks' entries in tables, {dict(held)}"
        )
        used = sum(count > 0 for count in self.references)
        assert self.free + used == self.blocks and not set(self.unused) & set(held), (
            f"{self.free} free and {used} used blocks are not {self.blocks}"
        )
        assert self.published == {key: block for block, key in self.keys.items()}, (
            f"published {self.published} are not the keys by block, {self.keys}"
        )


class BlockTable:
    """Where one text's entries lie: the i-th in block blocks[i // size], at place i % size there.

    All caches of the text share its table. Once the last of them is dropped, its blocks go back.
    """

    def __init__(self, pool: BlockPool, blocks: Sequence[int] = (), keys: Sequence[bytes] = ()):
        self.pool, self.blocks = pool, list(blocks)
        self.keys = list(keys)  # of the blocks that it has published, or found
        for block in self.blocks:
            pool.hold(block)
        self.starts: list[int] = []  # from which entry on each pass, or cut, changed something
        weakref.finalize(self, pool.release, self.blocks).atexit = False

    def slots(self, first: int, last: int) -> list[int]:
        """The slots of entries first … last-1, counted through the whole pool."""
        size = self.pool.size
        return [self.blocks[i // size] * size + i % size for i in range(first, last)]

    def cut(self, n: int) -> None:
        """Give back the blocks after the first n entries. Nothing is erased."""
        keep = -(-n // self.pool.size)
        del self.keys[n // self.pool.size :]
        if keep < len(self.blocks):
            self.starts.append(keep * self.pool.size)
            surplus = self.blocks[keep:]
            del self.blocks[keep:]
            self.pool.release(surplus)


class PagedCache(CacheObject):
    """The caches of one or more texts in a pool's blocks: a table and a length for each.

    It is used like a PreallocatedCache: `cache[layer][head]` is (k, v), each (B, P, hs). A pass
    reserves its blocks before it writes, a rollback gives back those it no longer needs. All
    caches of a text share its table; one that a later pass or rollback has cut into is a
    ValueError.
    """

    def __init__(
        self,
        tables: Sequence[BlockTable],
        lengths: Sequence[int],
        more: Sequence[int] | None = None,
    ):
        self.tables, self.lengths, self.pool = tables, tuple(lengths), tables[0].pool
        self.more = more  # of each text, how many tokens the next pass has that are its own
        self.known = [len(table.starts) for table in tables]
        self.length = max(lengths)
        self.even = min(lengths) == self.length
        self.written = self.read = torch.empty(0)  # slots a pass writes (B T), blocks it reads

    def check(self) -> None:
        """Raise ValueError if these entries are no longer there: written anew, or given back."""
        for b, (table, n) in enumerate(zip(self.tables, self.lengths, strict=True)):
            if any(start < n for start in table.starts[self.known[b] :]):
                raise ValueError(
                    f"this cache of {n} tokens was overwritten or given back after it was made; "
                    "use the cache that the last pass returned"
                )
            self.known[b] = len(table.starts)

    def wanted(self, T: int) -> int:
        """How many free blocks T entries more for each text would take."""
        return self.pool.wanted(self.tables, self.lengths, [T] * len(self.tables))

    def reserve(self, T: int) -> None:
        """Have room for T entries more for each text. Errors: PoolFull, and those of `check`."""
        self.check()
        self.pool.reserve(self.tables, self.lengths, [T] * len(self.tables))

    def grown(self, T: int) -> PagedCache:
        """The cache of a pass that writes T entries more; what pads a text takes no room in it.

        Errors are `reserve`'s.
        """
        self.check()
        more = self.more or [T] * len(self.tables)
        self.pool.reserve(self.tables, self.lengths, more)
        for table, n in zip(self.tables, self.lengths, strict=True):
            table.starts.append(n)
        new = PagedCache(self.tables, [n + T for n in self.lengths])
        nowhere = self.pool.blocks * self.pool.size
        slots = [
            table.slots(n, n + own) + [nowhere] * (T - own)
            for table, n, own in zip(self.tables, self.lengths, more, strict=True)
        ]
        new.written = torch.tensor(slots, device=self.pool.entries.device).flatten()
        new.read = new.index()  # the blocks of all texts
        return new

    def index(self) -> Tensor:
        """(B, n), flat: each text's blocks, n for the longest; a shorter one repeats its last."""
        n = -(-self.length // self.pool.size)
        rows = [(table.blocks + table.blocks[-1:] * n)[:n] for table in self.tables]
        rows = [row or [0] * n for row in rows]  # of a text without an entry
        return torch.tensor(rows, dtype=torch.int64, device=self.pool.entries.device).flatten()

    def write(self, layer: int, kv: Tensor) -> Tensor:
        """Write kv (2, B, n_head, T, hs); returns the whole layer (2, …, P+T, hs)."""
        flat = self.pool.entries[layer].flatten(1, 2)  # (2, slots, n_head, hs), a view
        flat.index_copy_(1, self.written, kv.transpose(2, 3).flatten(1, 2))
        return self.layer(layer, self.read)

    def layer(self, layer: int, index: Tensor) -> Tensor:
        """A layer's entries, gathered from the blocks: (2, B, n_head, P, hs)."""
        found = self.pool.entries[layer].index_select(1, index)
        # (2, B n, size, n_head, hs) -> (2, B, n size, n_head, hs)
        rows = found.view(2, len(self.tables), -1, *found.shape[3:])
        return rows[:, :, : self.length].transpose(2, 3)

    def kept(self, lengths: int | Sequence[int]) -> PagedCache:
        """The first entries of each text: one length for all, or one for each.

        Blocks that are no longer needed go back. Errors are those of `check`.
        """
        self.check()
        each = [lengths] * len(self.lengths) if isinstance(lengths, int) else lengths
        kept = tuple(map(min, each, self.lengths))
        for table, n in zip(self.tables, kept, strict=True):
            table.cut(n)
        return PagedCache(self.tables, kept)

    def gathered(self, slots: Sequence[int]) -> PagedCache:
        """The entries in these slots, in their order, of a cache of one text. They are moved.

        Errors are those of `reserve`.
        """
        self.check()
        (table,), n = self.tables, len(slots)
        stay = next((i for i, slot in enumerate(slots) if slot != i), n)
        self.pool.reserve(self.tables, (stay,), (n - stay,))  # a shared block is not written
        flat, own = self.pool.entries.flatten(2, 3), table.slots(0, self.length)
        moved = flat[:, :, [own[slot] for slot in slots[stay:]]]  # a copy
        flat[:, :, own[stay:n]] = moved
        table.starts.append(stay)
        table.cut(n)
        return PagedCache(self.tables, (n,))

    def fork(self) -> PagedCache:
        """The same entries for texts of their own. Blocks are copied on write."""
        self.check()
        size, pairs = self.pool.size, zip(self.tables, self.lengths, strict=True)
        tables = [
            BlockTable(self.pool, table.blocks[: -(-n // size)], table.keys[: n // size])
            for table, n in pairs
        ]
        return PagedCache(tables, self.lengths)

    @classmethod
    def joined(
        cls, caches: Sequence[PagedCache | None], more: Sequence[int] | None = None
    ) -> PagedCache:
        """One cache for several texts, from a cache of each; None is an empty one. No copy.

        more: of each text, how many tokens the next pass has that are its own, and no padding; by
        default all. A text that comes twice goes on as two (`fork`). Errors are those of `check`;
        ValueError if all of them are None.
        """
        some = [cache for cache in caches if cache is not None]
        if not some:
            raise ValueError("no text has a cache; give the model None")
        for cache in some:
            cache.check()
        tables = []
        for own in caches:
            table = BlockTable(some[0].pool) if own is None else own.tables[0]
            tables.append(own.fork().tables[0] if own and table in tables else table)
        return cls(tables, [cache.length if cache else 0 for cache in caches], more)

    def rows(self, lengths: Sequence[int]) -> list[PagedCache]:
        """The first entries of each text as a cache of its own. Errors are those of `check`."""
        kept = self.kept(lengths)
        return [
            PagedCache([table], [n]) for table, n in zip(kept.tables, kept.lengths, strict=True)
        ]

    def free(self) -> None:
        """Give all blocks back now; no cache of these texts is of use afterwards."""
        for table in self.tables:
            table.cut(0)

    def __len__(self) -> int:
        return len(self.pool.entries)  # layers

    def __getitem__(self, layer: int) -> tuple[KV, ...]:
        """(k, v) of each head of a layer, each (B, P, hs). Errors are those of `check`.

        In a text with fewer than P entries, whatever follows its own is meaningless.
        """
        self.check()
        keys, values = self.layer(layer, self.index())
        return tuple(zip(keys.unbind(1), values.unbind(1), strict=True))


first.register(PagedCache, PagedCache.kept)
select.register(PagedCache, PagedCache.gathered)


def on_pool(target, blocks: int, size: int = 16) -> FusedLanguageModel:
    """The fused form of a target, on a pool of `blocks` blocks for `size` entries each."""
    pool = BlockPool(target.config, blocks, size, like=target.lm_head.weight)
    return FusedLanguageModel(target, pool)
