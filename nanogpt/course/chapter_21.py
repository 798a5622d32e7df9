"""Chapter 21: the judge of *Your turn*, and the chapter's own pictures.

The turn: Jacobi iteration, a row of guesses until it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl

from nanogpt.show.diagrams import box, sheet, words
from nanogpt.show.figures import GREY, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
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


@mpl.rc_context(STYLE)
def rows_of_guesses(read: str, rows: Sequence[str], title: str) -> Picture:
    """Jacobi iteration: the row of guesses at first, and after each pass, below one another.

    What agrees with the last row from the start on is marked ✓: it will not change any more.
    """
    wide, left = min(3.6, 70 / len(rows[-1])), 15
    axes = sheet(title, max(8, (left + wide * len(rows[-1]) + 12) / 10), 0.55 + 0.38 * len(rows))
    words(axes, left, 1.4, f"after {shown(read)!r}, at the same time:", ha="left", fontsize=9)
    said = []
    for n, row in enumerate(rows):
        y, right = 3.2 + 3.8 * n, 0
        while right < len(row) and row[right] == rows[-1][right]:
            right += 1
        words(axes, left - 1.5, y + 1.5, f"pass {n}" if n else "guessed", ha="right")
        for i, letter in enumerate(row):
            kind, mark = ("accepted", "✓") if i < right else ("draft", "")
            box(axes, left + wide * i, y, wide - 0.4, 3, "", kind)
            shift = 0 if i < right else 0.45
            letters = f"{mark if wide > 3 else ''}{shown(letter)}"
            words(axes, left + wide * (i + 0.5) - 0.2 + shift, y + 1.5, letters)
        words(axes, left + wide * len(row) + 1, y + 1.5, f"✓ {right}", ha="left")
        said.append(f"{f'pass {n}' if n else 'guessed'}: {shown(row)}, {right} right")
    axes.figure.rows = said
    return axes.figure


@mpl.rc_context(STYLE)
def lookahead_window(
    rows: Sequence[str], new: str, column: int, pool: Sequence[str], title: str
) -> Picture:
    """A lookahead window by position: row j, column i stands i + j places after the current token.

    new: what the pass says after the last row. A thick line runs down one column: with its last
    letter ▸, it is the n-gram that goes to the pool, whose n-grams after the current token stand
    at the right.
    """
    size, left, names = 5.0, 14.0, [f"row {j}" for j in range(len(rows))]
    places = len(rows[0]) + len(rows)
    axes = sheet(title, max(8, (left + size * places + 17) / 10), 0.75 + 0.62 * (len(rows) + 1))
    for j, (name, row) in enumerate(zip([*names, "this pass says"], [*rows, new], strict=True)):
        y = 4.4 + 6.2 * j
        words(axes, left - 1.5, y + 1.7, name, ha="right")
        for i, letter in enumerate(row):
            x, thick = left + size * (i + j), {"linewidth": 3 if i == column else 1}
            kind = "target" if i + j == 0 or j == len(rows) else "draft"
            if j:  # down its column
                line = {"color": TARGET if i == column else GREY, **thick}
                axes.plot([x - size + 2, x + 2], [y - 2.8, y], **line)
            elif i:
                axes.plot([x - 0.8, x], [y + 1.7] * 2, color=GREY, linewidth=1)
            box(
                axes, x, y, size - 0.8, 3.4, ("▸" if kind == "target" else "") + shown(letter), kind
            )
    for place in range(places):
        name = "now" if place == 0 else f"+{place}"
        words(axes, left + size * place + 2, 2.4, name, fontsize=9, color=GREY)
    x = left + size * places + 2
    words(axes, x, 4.8, f"pool, after {shown(rows[0][0])}", ha="left", fontweight="bold")
    for n, gram in enumerate(pool or ["nothing yet"]):
        words(axes, x, 8.2 + 2.6 * n, shown(gram) if pool else gram, ha="left", family="monospace")
    return axes.figure
