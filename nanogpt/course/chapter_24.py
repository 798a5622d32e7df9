"""Chapter 24: the judge of *Your turn*, and the chapter's own pictures.

The turn: who gets how much of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import STYLE, Picture, shown

CASES = (  # what it is about, wants, running, (budget, width, capacity), right
    ("nobody is there", [], 0, (8, 4, 9), []),
    ("there is room for all", [(3, 3), (1, 1)], 0, (8, 4, 9), [3, 1]),
    ("a long prompt is read in parts", [(9, 9), (2, 2)], 0, (16, 4, 99), [4, 2]),
    ("the budget ends in the middle of a share", [(4, 4), (3, 3)], 0, (5, 4, 99), [4, 1]),
    ("the budget ends between two shares", [(4, 4), (3, 3)], 1, (4, 4, 99), [4]),
    ("the budget is used up", [(4, 4), (3, 3), (2, 2)], 2, (4, 4, 99), [4, 0]),
    ("places are exactly enough", [(2, 5), (2, 4)], 2, (16, 4, 9), [2, 2]),
    ("places run out for one who waits", [(2, 5), (2, 4), (2, 1)], 1, (16, 4, 9), [2, 2]),
    (
        "a smaller one comes after one that does not fit",
        [(2, 5), (2, 5), (2, 2)],
        1,
        (16, 4, 9),
        [2],
    ),
    ("places run out for one who has begun", [(2, 5), (2, 5)], 2, (16, 4, 9), [2]),
    ("one is preempted, and a smaller one waits", [(2, 5), (2, 5), (2, 2)], 2, (16, 4, 9), [2]),
    ("two must make room", [(2, 5), (2, 5), (2, 5)], 3, (16, 4, 9), [2]),
)
WHYS = {  # of the first slip: why
    "a smaller one comes after one that does not fit": "nobody overtakes: stop at the first one "
    "that has no places",
    "one is preempted, and a smaller one waits": "where a place was taken away, nobody begins",
    "the budget is used up": "a running request may get 0 and keeps its places; the list goes on",
    "the budget ends between two shares": "nobody begins with 0 tokens: a list ends before them",
    "places run out for one who has begun": "the last to come makes room, and the list is shorter "
    "than `running`",
    "two must make room": "drop as many from the end as it takes",
    "places run out for one who waits": "places are added up over all that take part; the one that "
    "would pass the capacity waits",
    "places are exactly enough": "capacity is the number of places there are; all may be filled",
    "a long prompt is read in parts": "no request gets more than `width` tokens in one pass",
    "the budget ends in the middle of a share": "whoever is last gets what is left of the budget",
}


def judge(mine: Callable) -> None:
    """*Your turn* of 24: the shares of a pass.

    mine(wants, running, budget, width, capacity) returns a list of whole numbers (or a tuple, or an
    array). Raises AssertionError for a wrong share or length, and for a changed list.
    """
    for name, wants, running, limits, right in CASES:
        given = list(wants)
        got = mine(given, running, *limits)
        where = f"{name}: wants {wants}, running {running}, budget, width, capacity {limits}"
        assert given == wants, f"{where}: the caller's list is changed: {given}"
        assert got is not None, f"{where}: nothing came back; return the list of shares"
        try:
            shares = [int(n) for n in got]
        except (TypeError, ValueError):
            raise AssertionError(f"{where}: {got!r} is no list of whole numbers") from None
        why = WHYS.get(name, "each gets what it has to do, as long as there is enough")
        assert shares == right, f"{where}: {shares}, not {right}; {why}"


@mpl.rc_context(STYLE)
def shared_pass(rows: Sequence[tuple[str, str, str, str]], budget: int, title: str) -> Picture:
    """Who gets how much of a pass: of each request (name, tokens it reads, its current, guesses).

    A box is a token of the budget: a thin edge is read, ▸ the current one, hatched a guess; dotted
    is what nobody wanted.
    """
    widest = max(len("".join(parts)) for _, *parts in rows)
    axes = sheet(title, 8.5, 1.5 + 0.55 * len(rows))
    unit = min(5.0, 56 / widest)
    for i, (name, *parts) in enumerate(rows):
        y, x = 3 + 5.5 * i, 20.0
        words(axes, 1, y + 1.8, name, ha="left")
        for part, kind, mark in zip(
            parts, ("cached", "target", "draft"), ("", "▸", ""), strict=True
        ):
            for letter in part:
                box(axes, x, y, 0.9 * unit, 3.6, mark + shown(letter), kind)
                x += unit
        said = ", ".join(
            f"{len(part)} {what}"
            for part, what in zip(parts, ("to read", "current", "guesses"), strict=True)
            if part
        )
        words(axes, x + 1, y + 1.8, said or "waits for a turn", ha="left", fontsize=9)
    y, one = 4 + 5.5 * len(rows), 56 / budget
    words(axes, 1, y + 1.8, f"budget: {budget}", ha="left", fontweight="bold")
    whole = "".join("ctd"[k] * len(part) for _, *parts in rows for k, part in enumerate(parts))
    for i in range(budget):
        kind = {"c": "cached", "t": "target", "d": "draft"}[whole[i]] if i < len(whole) else "gone"
        box(axes, 20 + i * one, y, 0.85 * one, 3.6, "", kind)
    words(axes, 77, y + 1.8, f"{len(whole)} used", ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def request_lanes(lanes: Mapping[str, Sequence[tuple[str, int]]], title: str) -> Picture:
    """Requests as lanes over the steps of a server: (what, how many tokens) of each step.

    what: "waits", "reads", "writes", "lost" (its places, for others), or "" before and after.
    """
    steps = max(len(lane) for lane in lanes.values())
    axes = sheet(title, 8.5, 1.5 + 0.5 * len(lanes))
    unit, kinds = 72 / steps, {"waits": "gone", "reads": "cached", "writes": "accepted"}
    marks = {"waits": "", "reads": "", "writes": "+", "lost": "✗"}
    for i, (name, lane) in enumerate(lanes.items()):
        y = 2.5 + 5 * i
        words(axes, 1, y + 1.8, name, ha="left")
        for step, (what, n) in enumerate(lane):
            if what:
                said = marks[what] + (str(n) if what in ("reads", "writes") else "")
                where = axes, 12 + step * unit, y, 0.92 * unit, 3.6, said
                box(*where, kinds.get(what, "rejected"))
    y = 4.5 + 5 * len(lanes)
    arrow(axes, (12, y), (84, y))
    words(axes, 1, y, "steps", ha="left")
    legend = ("waits", "gone", ""), ("reads", "cached", "4"), ("writes", "accepted", "+3")
    for k, (what, kind, said) in enumerate((*legend, ("loses its places", "rejected", "✗"))):
        box(axes, 12 + 15 * k, y + 2.5, 3.5, 3.2, said, kind)
        words(axes, 16.2 + 15 * k, y + 4.1, what, ha="left", fontsize=9)
    return axes.figure
