"""The judge of chapter 24's *Your turn*: who gets how much of a pass."""

from __future__ import annotations

from collections.abc import Callable

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


def schedule(mine: Callable) -> None:
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
