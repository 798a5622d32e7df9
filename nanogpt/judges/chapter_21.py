"""The judge of chapter 21's *Your turn*: Jacobi iteration, a row of guesses until it stands."""

from __future__ import annotations

from collections.abc import Callable


def fixed_point(mine: Callable) -> None:
    """Judges my_jacobi(ask, guesses): every row of guesses, from the first to the fixed point.

    Raises AssertionError for rows that are shifted or mended one by one, a row that is missing or
    comes twice, a pass too many, and for changed guesses.
    """
    for name, rule, guesses in CASES:
        asked: list[list[int]] = []

        def ask(row, rule=rule, asked=asked):
            row = [int(token) for token in row]
            asked.append(row)
            return [rule(row[:i]) for i in range(len(row) + 1)]

        given, m = list(guesses), len(guesses)
        rows = mine(ask, given)
        where = f"{name}, guesses {guesses}"
        assert given == guesses, f"{where}: the caller's guesses are changed, to {given}"
        assert isinstance(rows, (list, tuple)) and rows and all(map(is_row, rows)), (
            f"{where}: return all rows of guesses, each a list of tokens, not {rows!r}"
        )
        rows = [[int(token) for token in row] for row in rows]
        right = rows_of(rule, guesses)
        assert rows == right, f"{where}: your rows are {rows}, not {right}{slip(rows, right, m)}"
        assert len(asked) <= m, (
            f"{where}: you asked {len(asked)} times; after {m} passes all {m} tokens are right, so "
            "no pass is needed to see it"
        )
        assert len(asked) <= len(right), (
            f"{where}: you asked {len(asked)} times, and {len(right)} were enough: one pass for "
            "the whole row at once, and one that changes nothing"
        )


def is_row(row) -> bool:
    """Whether this is a row of whole numbers."""
    try:
        return [int(token) == token for token in row] == [True] * len(row)
    except (TypeError, ValueError):
        return False


def rows_of(rule: Callable, guesses: list[int]) -> list[list[int]]:
    """The right rows, where rule(tokens) is the token after `tokens`."""
    rows = [guesses]
    while True:
        row = [rule(rows[-1][:i]) for i in range(len(guesses))]
        if row == rows[-1]:
            return rows
        rows.append(row)


def slip(rows: list[list[int]], right: list[list[int]], m: int) -> str:
    """What is wrong with these rows, as the end of a sentence, or ""."""
    if rows[0] != right[0]:
        if rows == right[1:]:
            return ": the given row comes first"
        if all(row == rows[0] for row in rows) and rows[0] == right[-1]:
            return ": every entry is the same list; keep a copy of each row"
        return ": the first row is the given one, as it was"
    if any(len(row) != m for row in rows):
        return f": the row has {m} places, and the last of the {m + 1} answers belongs to none"
    if len(rows) > len(right) and rows[: len(right)] == right:
        return ": a row that the pass did not change is not added again"
    if len(rows) < len(right) and rows == right[: len(rows)]:
        return ": it stopped too early; go on until a whole row stays as it is"
    if rows[-1] == right[-1]:
        return ": the last row is right, but not the way there; all places are mended at once"
    return ": entry i of the answer, after the first i guesses, belongs at place i"


CASES = [  # a name, the token after some tokens, the guesses
    ("after 0 comes 1, after 1 comes 2, then 0", lambda t: (t[-1] + 1) % 3 if t else 1, [0] * 5),
    ("the next is the sum of all so far and 1", lambda t: (sum(t) + 1) % 7, [0, 3, 3, 6, 2, 1]),
    ("always 4, whatever came before", lambda t: 4, [0, 1, 2, 3]),
    ("the place's own number", lambda t: len(t), [0, 1, 2]),
    ("the first choice decides", lambda t: t[0] if t else 2, [5, 5, 5, 5]),
    ("0, and 3 after it, then 1", lambda t: [0, 3, 1][min(len(t), 2)], [2]),
]
