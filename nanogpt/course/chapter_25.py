"""Chapter 25: the judge of *Your turn*, and the chapter's own pictures.

The turn: in which slots of the pool new entries go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl

from nanogpt.show.diagrams import box, sheet, words
from nanogpt.show.figures import STYLE, Picture, shown

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
        assert got == right, f"{where}: {[tidy(x) for x in got]}, not {right}: " + slip(
            got, table, length, n, size
        )


def of(table: Sequence[int], first: int, last: int, size: int) -> list[int]:
    """The slots of entries first … last-1."""
    return [table[i // size] * size + i % size for i in range(first, last)]


def tidy(slot: float) -> float | int:
    """A whole number without its decimal point."""
    return int(slot) if slot == int(slot) else slot


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
    A block that texts share is darker and says so; a free one has a dotted edge, and in grey what
    it held the stage before.
    """
    tall = [3.2 + 5.0 * len(texts) + 8.4 for texts in stages.values()]
    axes, left = sheet(title, 9.4, 0.3 + sum(tall) / 10), 15.0
    wide, y, inside = (92 - left) / blocks, 0.5, {}
    for (stage, texts), height in zip(stages.items(), tall, strict=True):
        words(axes, 1, y + 1, stage, ha="left", fontweight="bold")
        held = {}
        for n, (name, (tokens, table)) in enumerate(texts.items()):
            top = y + 4.2 + 5.0 * n
            words(axes, left - 1, top + 1.3, name, ha="right")
            for i, block in enumerate(table):
                own = " ".join(shown(x) for x in tokens[size * i : size * (i + 1)])
                held[block], inside[block] = held.get(block, 0) + 1, own
                box(axes, left + wide * i + 0.3, top, wide - 0.6, 2.6, own, "cached")
                words(axes, left + wide * (i + 0.5), top - 1, f"block {block}", fontsize=8)
        top = y + 4.2 + 5.0 * len(texts)
        words(axes, left - 1, top + 1.6, "the pool", ha="right", fontweight="bold")
        for block in range(blocks):
            count = held.get(block, 0)
            kind = ("gone", "cached", "target")[min(count, 2)]
            says = f"{block}: " + (
                f"shared by {count}" if count > 1 else "used" if count else "free"
            )
            middle, holds = left + wide * (block + 0.5), inside.get(block, "")
            box(axes, left + wide * block + 0.3, top, wide - 0.6, 3.2, kind=kind)
            words(axes, middle, top + 1.6, holds, color="black" if count else "#767676")
            words(axes, middle, top + 4.4, says, fontsize=8)
        y += height
    return axes.figure
