"""Chapter 21: the judge of *Your turn*, the check of its first exercise, and its own pictures.

The turn: Jacobi iteration, a row of guesses until it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes

from nanogpt.drafts.lookahead import LookaheadDraft, NGramPool, Window
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, TARGET, Picture, shown
from nanogpt.trees.tree import ReadText


def judge(mine: Callable) -> None:
    """Judges my_jacobi(ask, guesses): every row of guesses, from the first to the fixed point.

    Any rows of whole numbers will do: lists, a stacked tensor, a generator. Raises AssertionError
    for rows that are shifted or mended one by one, a row that is missing or comes twice, a pass too
    many, and for changed guesses.
    """
    for name, rule, guesses in CASES:
        asked: list[list[int]] = []

        def ask(row, rule=rule, asked=asked):
            row = [int(token) for token in row]
            asked.append(row)
            return [rule(row[:i]) for i in range(len(row) + 1)]

        given, m = list(guesses), len(guesses)
        where = f"{name}, guesses {guesses}"
        rows = as_lists(mine(ask, given), where)
        assert given == guesses, f"{where}: the caller's guesses are changed, to {given}"
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


def as_lists(made, where: str) -> list[list[int]]:
    """What was returned, as a list of lists of tokens; a generator runs here."""
    rows = list(made) if isinstance(made, Iterable) and not isinstance(made, (str, dict)) else []
    assert rows and all(map(is_row, rows)), (
        f"{where}: return all rows of guesses, each a list of tokens, not {made!r}"
    )
    return [[int(token) for token in row] for row in rows]


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
    ("after 0 comes 1, then 2, then 0", lambda t: (t[-1] + 1) % 3 if t else 1, [2, 1, 0] * 4),
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
    places = len(rows[-1])
    shows = f"The right letters grow from the left: all {places} after {len(rows) - 1} passes."
    axes = sheet(title, max(8, (left + wide * places + 12) / 10), 0.55 + 0.38 * len(rows), shows)
    words(axes, left, 1.4, f"after {shown(read)!r}, at the same time:", ha="left", fontsize=9)
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
    return axes.figure


@mpl.rc_context(STYLE)
def sliding_row(guesses: str, said: str, emitted: str, then: str, title: str) -> Picture:
    """A round of Jacobi's chain by place: guesses, what the pass says, and the next guesses.

    said has a letter more than the guesses: its first are emitted, and the rest are guessed again.
    """
    size, left, kept = 6.0, 17.0, len(emitted) - 1
    places = len(emitted) + len(then)
    shows = f"{kept} guesses are right; what the pass says after the wrong one moves down."
    axes = sheet(title, max(8, (left + size * (places + 1)) / 10), 2.3, shows)
    names = ["+" + str(place + 1) for place in range(places)]
    for place, name in enumerate(names):
        words(axes, left + size * place + 2.5, 2.4, name, fontsize=9, color=GREY)
    last = "resampled" if kept < len(guesses) else "bonus"
    kinds = ["accepted"] * kept + ["rejected"] + ["gone"] * len(guesses)
    fates = ["accepted"] * kept + [last] + ["target"] * len(said)
    marks = {"accepted": "✓", "rejected": "✗", "resampled": "↻", "bonus": "★", "target": "▸"}
    rows = {
        "guesses": [(g, kind, i) for i, (g, kind) in enumerate(zip(guesses, kinds, strict=False))],
        "the pass says": [
            (s, kind, i) for i, (s, kind) in enumerate(zip(said, fates, strict=False))
        ],
        "next guesses": [(g, "draft", kept + 1 + i) for i, g in enumerate(then)],
    }
    for j, (name, cells) in enumerate(rows.items()):
        y = 4.4 + 6.8 * j
        words(axes, left - 1.5, y + 1.7, name, ha="right")
        for letter, kind, place in cells:
            x = left + size * place
            box(axes, x, y, size - 1, 3.4, marks.get(kind, "") + shown(letter), kind)
            if j == 2 and place < len(said):
                arrow(axes, (x + 2.5, y - 3.2), (x + 2.5, y - 0.2), colour=TARGET)
    return axes.figure


@mpl.rc_context(STYLE)
def lookahead_windows(passes: Sequence[tuple], column: int, title: str) -> Picture:
    """Two passes of a lookahead window, side by side: row 1 of the first is row 0 of the second.

    passes: for each, (rows, what the pass says after the last row). Row j, column i stands i + j
    places after the current token. A thick line runs down one column: with the letter ▸ that the
    pass says, it is an n-gram for the pool.
    """
    (rows, _), _ = passes
    size, left = 4.4, 13.0
    wide, deep = size * (len(rows[0]) + len(rows)), 6.2
    shows = "Arrows lead from each row of one window to the row above it in the next window."
    axes = sheet(title, max(8, (left + 2 * wide + 15) / 10), 1.4 + 0.62 * len(rows), shows)
    names = [f"row {j}" for j in range(len(rows))] + ["the pass says"]
    for j, name in enumerate(names):
        words(axes, left - 1.5, 8.3 + deep * j, name, ha="right")
    second = left + wide + 13
    for x, (above, new), name in zip((left, second), passes, ("one pass", "the next"), strict=True):
        words(axes, x, 2.2, name, ha="left", fontweight="bold")
        draw_window(axes, x, size, above, new, column)
    for j in range(1, len(rows) + 1):  # each row moves up, and one place on
        start = left + size * (len(rows[0]) + j), 8.3 + deep * j
        arrow(axes, start, (second + size * (j - 1) - 1.5, 8.3 + deep * (j - 1)))
        middle = (start[0] + second + size * (j - 1)) / 2 - 0.7
        said = f"becomes row {j - 1}"
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        words(axes, middle, 8.3 + deep * (j - 0.5), said, fontsize=9, color=GREY, bbox=paper)
    return axes.figure


def draw_window(axes: Axes, left: float, size: float, rows, new: str, column: int) -> None:
    """One window by place, its top left corner at `left`: row j is j places further on."""
    for place in range(len(rows[0]) + len(rows)):
        name = "now" if place == 0 else f"+{place}"
        words(axes, left + size * place + 1.8, 4.9, name, fontsize=9, color=GREY)
    for j, row in enumerate([*rows, new]):
        y = 6.6 + 6.2 * j
        for i, letter in enumerate(row):
            x, thick = left + size * (i + j), i == column
            kind = "target" if i + j == 0 or j == len(rows) else "draft"
            if j:  # down its column
                line = {"color": TARGET if thick else GREY, "linewidth": 3 if thick else 1}
                axes.plot([x - size + 1.8, x + 1.8], [y - 2.8, y], **line)
            elif i:
                axes.plot([x - 0.8, x], [y + 1.7] * 2, color=GREY, linewidth=1)
            mark = "▸" if kind == "target" else ""
            box(axes, x, y, size - 0.8, 3.4, mark + shown(letter), kind)


# ---- exercise 1: a pool that reads the text


class Reading(LookaheadDraft):
    """Lookahead decoding whose pool is filled from the text, too.

    read(pool, tokens, N, done) adds the n-grams that end after the first `done` tokens.
    """

    def __init__(self, vocab_size: int, W: int, N: int, G: int, read: Callable | None = None):
        super().__init__(vocab_size, W, N, G)
        self.read = read or read_along

    def window(self, text: ReadText) -> Window:
        """A new window, whose pool has read nothing yet."""
        window = super().window(text)
        window.done = 0
        return window

    def move(self, window: Window, text: ReadText) -> None:
        """A step on; then the pool reads what is new in the text."""
        super().move(window, text)
        self.read(window.pool, list(text.tokens), self.N, window.done)
        window.done = len(text.tokens)


def read_along(pool: NGramPool, tokens: Sequence[int], N: int, done: int) -> None:
    """Adds each occurrence of N tokens that ends after the first `done`, oldest first."""
    for end in range(max(done + 1, N), len(tokens) + 1):
        pool.add(tokens[end - N : end])


def check_read(read: Callable) -> None:
    """Judges my_read(pool, tokens, N, done): each occurrence once, in its order, nothing changed.

    Raises AssertionError for an occurrence that is missing, comes twice or too late, and for
    changed tokens.
    """
    whole = [3, 1, 4, 3, 1, 4, 1, 5, 1, 4]  # 3 1 4 and others occur twice
    for N in (2, 3, 4):
        for stops in ([10], [4, 10], [1, 2, 5, 6, 10], [10, 10]):
            notes, done = Notes(), 0
            for stop in stops:
                given = whole[:stop]
                read(notes, given, N, done)
                assert given == whole[:stop], f"your function changes the text, to {given}"
                done = stop
            right = [tuple(whole[i : i + N]) for i in range(len(whole) - N + 1)]
            said = f"N = {N}, {whole} read in calls at {stops} tokens: added {notes.added}"
            missing = ": every occurrence counts, a repeated one, too"
            why = missing if set(right) == set(notes.added) else ""
            assert notes.added == right, f"{said}, not {right}{why}"
    full = NGramPool(2)
    read(full, [1, 2, 1, 3, 1, 4, 1, 3], 2, 0)
    assert full.after(1) == [(3,), (4,)], f"oldest first, so 3 is the latest: {full.after(1)}"


class Notes:
    """A pool that only writes down what is added, and when."""

    def __init__(self):
        self.added: list[tuple[int, ...]] = []

    def add(self, gram: Sequence[int]) -> None:
        """Write it down."""
        self.added.append(tuple(gram))
