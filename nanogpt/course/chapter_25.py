"""Chapter 25: the judge of *Your turn*, and the chapter's own pictures.

The turn: in which slots of the pool new entries go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes

from nanogpt.serving.paged import BlockPool
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, TARGET, Picture, shown

LEFT = "#767676"  # what is left over in a block

TRIES = [  # table, length, n, size
    ([5, 2, 7], 5, 2, 4),
    ([2, 5, 0, 3], 6, 4, 4),
    ([3, 1], 3, 5, 4),
    ([4, 6, 0], 4, 5, 3),
    ([1], 0, 2, 8),
    ([9, 0, 4, 2], 1, 3, 1),
    ([0, 1, 2], 3, 0, 2),
]


def judge(mine: Callable) -> None:
    """Judges my_slots(table, length, n, size): the slots of entries length … length + n - 1.

    Lists, tuples, arrays and tensors of whole numbers are taken. Raises AssertionError for a slot
    that is not the entry's own, too many or too few of them, and a changed table.
    """
    for table, length, n, size in TRIES:
        given, right = list(table), of(table, length, length + n, size)
        where = f"table {table}, length {length}, n = {n}, size {size}"
        made = mine(given, length, n, size)
        assert given == table, f"{where}: the caller's table is changed: {given}"
        assert made is not None, f"{where}: nothing came; return the list of slots"
        try:
            got = [float(slot) for slot in made]
        except (TypeError, ValueError):
            raise AssertionError(f"{where}: {made!r} is no list of whole numbers") from None
        assert got == right, (
            f"{where}: {[int(x) if x == int(x) else x for x in got]}, not {right}: "
            + slip(got, table, length, n, size)
        )


def of(table: Sequence[int], first: int, last: int, size: int) -> list[int]:
    """The slots of entries first … last-1."""
    return [table[i // size] * size + i % size for i in range(first, last)]


def slip(got: Sequence[float], table: Sequence[int], length: int, n: int, size: int) -> str:
    """What probably went wrong."""
    entries, longer = range(length, length + n), [*table, -99, -99]
    if len(got) != n:
        return f"{len(got)} slots came for {n} new entries, one is wanted for each"
    whys = {
        "these are numbers of entries; the table says where they lie": list(entries),
        "these are the slots of the text's first entries; the new ones come after the `length` "
        "entries it has": of(table, 0, n, size),
        "one too far: the entries are counted from 0, so the first new one is number `length`": of(
            longer, length + 1, length + n + 1, size
        ),
        "these are blocks, one for each entry; a slot is a place in a block": [
            table[i // size] for i in entries
        ],
        "a block before another one fills `size` slots, so block b begins at slot b · size": [
            table[i // size] + i % size for i in entries
        ],
        "the block is the quotient by the size, the place in it the remainder; they are swapped": [
            longer[min(i % size, len(table))] * size + i // size for i in entries
        ],
    }
    for why, wrong in whys.items():
        if list(got) == wrong:
            return why
    if n and got[0] == of(table, length, length + 1, size)[0]:
        return "the first is right; where a block ends, the next slot is in the table's next block"
    return "entry i is in block table[…] of the text's own, at some place in it; try one by hand"


def letters(axes: Axes, x: float, y: float, step: float, slots: Sequence[str], n: int) -> None:
    """What is in a block's slots, one beside the other: its n own entries, and what was left."""
    for i, text in enumerate(slots):
        style = {"color": "black" if i < n else LEFT, "ha": "center", "va": "center"}
        axes.text(x + step * (i + 0.5), y, text, fontsize=10, **style)


@mpl.rc_context(STYLE)
def blocks_of_texts(
    stages: Mapping[str, Mapping[str, tuple[Sequence[str], Sequence[int]]]],
    blocks: int,
    size: int,
    title: str,
) -> Picture:
    """Which blocks of a pool hold which text, one band a stage: {what it is: {text: …}}.

    Each text is (its tokens, its table): token i lies in block table[i // size]. In a band, the
    texts stand as they read, the number of its block above each part; below, the pool as it lies.
    A block that texts share is darker and says so; a free one has a dotted edge. In grey, what the
    stage before has left in a slot: nothing is erased before a block is taken again.
    """
    tall = [3.2 + 5.0 * len(texts) + 8.4 for texts in stages.values()]
    shows = f"In turn: {'; '.join(stages)}. Below the texts lie the pool's {blocks} blocks."
    axes, left = sheet(title, 9.4, 0.3 + sum(tall) / 10, shows), 15.0
    wide, y, inside, before = (92 - left) / blocks, 0.5, {}, set()
    step = (wide - 1.4) / size
    for (stage, texts), height in zip(stages.items(), tall, strict=True):
        words(axes, 1, y + 1, stage, ha="left", fontweight="bold")
        held, own = Counter(), {}
        for n, (name, (tokens, table)) in enumerate(texts.items()):
            top = y + 4.2 + 5.0 * n
            words(axes, left - 1, top + 1.3, name, ha="right")
            for i, block in enumerate(table):
                part = [shown(x) for x in tokens[size * i : size * (i + 1)]]
                old = inside.get(block, []) if block in before else []  # one that is taken is empty
                held[block], own[block] = held[block] + 1, len(part)
                inside[block] = part + old[len(part) :]
                box(axes, left + wide * i + 0.3, top, wide - 0.6, 2.6, kind="cached")
                letters(axes, left + wide * i + 0.7, top + 1.3, step, part, size)
                words(axes, left + wide * (i + 0.5), top - 1, f"block {block}", fontsize=8)
        top = y + 4.2 + 5.0 * len(texts)
        words(axes, left - 1, top + 1.6, "the pool", ha="right", fontweight="bold")
        for block in range(blocks):
            kind = ("gone", "cached", "target")[min(held[block], 2)]
            shared = f"shared by {held[block]}" if held[block] > 1 else "used"
            box(axes, left + wide * block + 0.3, top, wide - 0.6, 3.2, kind=kind)
            x, slots = left + wide * block + 0.7, inside.get(block, [])
            letters(axes, x, top + 1.6, step, slots, own.get(block, 0))
            says = f"{block}: {shared if held[block] else 'free'}"
            words(axes, left + wide * (block + 0.5), top + 4.4, says, fontsize=8)
        before = set(held)
        y += height
    return axes.figure


STEPS = (
    ("① found", "published → table"),
    ("② reserve", "free list → table"),
    ("③ the pass", "writes into entries"),
    ("④ publish", "table → published"),
    ("⑤ cut", "table → free list"),
)


@mpl.rc_context(STYLE)
def who_holds_what(pool: BlockPool, texts: Mapping[str, tuple], title: str) -> Picture:
    """Who refers to whom, from texts to blocks, and what a round does to that.

    texts: {name: (its tokens, as letters, and its PagedCache)}. Each table has an arrow to every
    block that it holds: `references` counts them. Published blocks are marked, and named at the
    right, as is the free list.
    """
    shows = f"{len(texts)} tables point to their blocks; each block counts how many tables hold it."
    axes = sheet(title, 9.4, 1.4 + 0.36 * pool.blocks, shows)
    at = [6.2 + 3.6 * block for block in range(pool.blocks)]
    heads = {8: "Text", 24.5: "PagedCache", 40: "BlockTable", 63.5: "BlockPool.entries"}
    for x, head in {**heads, 84: "the pool's books"}.items():
        words(axes, x, 1.4, head, fontweight="bold")
    words(axes, 63.5, 3.4, "③", color=TARGET)
    inside = {}
    for n, (name, (tokens, cache)) in enumerate(texts.items()):
        (table,), y = cache.tables, 8.5 + 9.5 * n
        box(axes, 2, y, 12, 3, name)
        box(axes, 18, y, 13, 3, f"length {cache.length}")
        box(axes, 34, y, 12, 3, str(table.blocks), "cached")
        for start, end in ((14, 18), (31, 34)):
            arrow(axes, (start, y + 1.5), (end, y + 1.5))
        for i, block in enumerate(table.blocks):
            arrow(axes, (46, y + 1.5), (55, at[block] + 1.2), TARGET)
            part = tokens[i * pool.size : (i + 1) * pool.size]
            inside[block] = " ".join(map(shown, part))
    for block, y in enumerate(at):
        count = pool.references[block]
        kind = ("gone", "cached", "target")[min(count, 2)]
        box(axes, 55, y, 11, 2.4, inside.get(block, ""), kind)
        says = f"{block}: references {count}" + "  ⚑" * (block in pool.keys)
        words(axes, 66.6, y + 1.2, says, fontsize=8, ha="left")
    free = ", ".join(map(str, pool.unused))
    named = ", ".join(str(block) for block in sorted(pool.keys))
    for y, head, what, steps in (
        (7, "free list, longest free first", free, "out: ②    in: ⑤"),
        (18, "published  ⚑", f"key → {named}", "asked: ①    told: ④"),
    ):
        box(axes, 79, y + 1.6, 13.5, 3, what)
        words(axes, 85.7, y, head, fontsize=8)
        words(axes, 85.7, y + 6, steps, fontsize=9, color=TARGET)
    y = at[-1] + 4.6
    for n, (step, what) in enumerate(STEPS):
        box(axes, 2 + 18.3 * n, y, 16, 4.4, f"{step}\n{what}", "plain")
        if n:
            arrow(axes, (18.3 * n - 0.3, y + 2.2), (18.3 * n + 2, y + 2.2))
    return axes.figure


@mpl.rc_context(STYLE)
def film(
    frames: Mapping[str, tuple[Mapping[str, Sequence[int]], Sequence[int], Mapping[int, str], set]],
    title: str,
) -> Picture:
    """A pool's blocks through time, one row a moment: who holds which, and the free list.

    frames: {what happens: (table of each text, the free blocks as they lie in the list, what is in
    each block, which are published)}. A free block is taken from the left and comes back at the
    right. What changed hands says so: found again, taken (and erased), or freed.
    """
    shows = f"Row by row: {'; '.join(frames)}. A freed block keeps its letters until it is taken."
    axes, wide, before = sheet(title, 9.4, 0.1 + 0.62 * len(frames), shows), 7.6, {}
    for n, (what, (held, free, inside, published)) in enumerate(frames.items()):
        y = 1.6 + 6.2 * n
        words(axes, 1, y + 1.6, what, ha="left", fontsize=9)
        taken = [(block, name) for name, table in held.items() for block in table]
        x, gap = 23.0, 92 - 23.0 - wide * (len(taken) + len(free))
        for block, name in [*taken, *((block, "") for block in free)]:
            if not name and gap:
                words(axes, x + gap / 2 - 0.3, y + 1.4, "free:", fontsize=8, color=GREY)
                x, gap = x + gap, 0
            own, kept = inside.get(block, ""), block in published
            box(axes, x, y, wide - 0.6, 2.8, kind="target" if name else "plain" if kept else "gone")
            words(axes, x + wide / 2 - 0.3, y + 1.4, own, color="black" if name or kept else LEFT)
            was = before.get(block)
            news = "found" if was == ("", own) else "taken"
            news = ("freed" if not name else news) if was and bool(was[0]) != bool(name) else ""
            says = f"{name or ''} {block}: {news}" if news else f"{name or ''} {block}"
            words(axes, x + wide / 2 - 0.3, y - 0.9, says.strip(), fontsize=7.5)
            before[block] = (name, own)
            x += wide
    return axes.figure
