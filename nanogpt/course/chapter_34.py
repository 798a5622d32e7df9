"""Chapter 34: the judge of *Your turn*, and the chapter's own pictures.

The turn: q of a table that adds up what the target said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, REJECTED, SERIES, STYLE, Picture, picture

PRIORS = [0.5, 1.0, 4.0]
BASE = {"a": [0.2, 0.5, 0.3], "b": [0.6, 0.1, 0.3], "c": [0.1, 0.1, 0.8]}
LESSONS = [
    ("a", [0.7, 0.2, 0.1]),
    ("b", [0.1, 0.8, 0.1]),
    ("a", [0.5, 0.3, 0.2]),
    ("a", [0.7, 0.2, 0.1]),
]


def learnt(base: Sequence[float], lessons: Sequence, context: str, prior: float) -> list[float]:
    """The right q."""
    rows = [row for known, row in lessons if known == context]
    total = prior + len(rows)
    return [(prior * q + sum(row[x] for row in rows)) / total for x, q in enumerate(base)]


def judge(mine: Callable) -> None:
    """mine(base, lessons, context, prior) is q of what follows the context, as a list.

    Judged after no, one and several lessons. Raises AssertionError with the slip.
    """
    for prior in PRIORS:
        for n in range(len(LESSONS) + 1):
            for context, q in BASE.items():
                judge_answer(mine, q, LESSONS[:n], context, prior)


def judge_answer(mine: Callable, q: list[float], lessons: list, context: str, prior: float) -> None:
    """One answer of the judge. Raises AssertionError with the slip."""
    base, taught = list(q), [(known, list(row)) for known, row in lessons]
    answer = mine(base, taught, context, prior)
    assert base == q and taught == lessons, (
        "base or a lesson was changed in place: whoever holds that row now claims another q than "
        "was drawn from; build a new one"
    )
    assert answer is not None and hasattr(answer, "__len__"), (
        f"{answer!r} came back: return a list, one probability for each of the {len(q)} letters"
    )
    numbers = not isinstance(answer, str) and all(hasattr(x, "__float__") for x in answer)
    assert numbers, f"{answer!r} came back: a list of probabilities, one for each letter"
    got = [float(x) for x in answer]
    right = learnt(q, lessons, context, prior)
    if len(got) == len(right) and np.allclose(got, right, rtol=0, atol=1e-9):
        return
    said = f"base {q}, prior {prior}, {len(lessons)} lessons, after {context!r}: {np.round(got, 3)}"
    raise AssertionError(
        f"{said} came out instead of {np.round(right, 3)}; {slip(got, q, lessons, context, prior)}"
    )


def slip(got: list[float], q: list[float], lessons: list, context: str, prior: float) -> str:
    """What was probably done wrong."""
    rows = [row for known, row in lessons if known == context]

    def same(other) -> bool:
        return len(got) == len(other) and np.allclose(got, other, rtol=0, atol=1e-9)

    if len(got) != len(q):
        return f"it has {len(got)} numbers, and there are {len(q)} letters"
    if rows and same(np.mean(rows, axis=0)):
        return "the base is forgotten: it counts like `prior` rows of its own"
    if same(learnt(q, [(context, row) for _, row in lessons], context, prior)):
        return f"lessons after other contexts count, too: only those after {context!r} should"
    if rows and same(learnt(q, [(context, rows[-1])], context, prior)):
        return "only the last lesson counts: all of them should"
    hard = [(context, np.eye(len(q))[int(np.argmax(row))].tolist()) for row in rows]
    if rows and same(learnt(q, hard, context, prior)):
        return "each lesson adds 1 to its likeliest letter: add the whole row"
    if abs(sum(got) - 1) > 1e-9:
        return f"it sums to {sum(got):.3f}: divide by prior + the number of rows"
    return "prior times the base, plus the rows after this context, divided by their number"


# Pictures


@mpl.rc_context(STYLE)
def when_to_learn(title: str) -> Picture:
    """A round on a time axis: what is drawn, judged and learnt, and where an update may stand."""
    shows = "The update comes after the verdict, never between draw and verdict."
    axes = sheet(title, 9.4, 2.9, shows)
    parts = [
        ("draw\nfrom q", "draft", 11),
        ("pass: p of\nall places", "target", 17),
        ("judge by\np and q", "accepted", 12),
        ("learn\nfrom p", "bonus", 11),
        ("draw\nfrom new q", "draft", 14),
    ]
    x, edges = 4.0, []
    for text, kind, width in parts:
        box(axes, x, 10, width, 5, text, kind)
        edges.append((x, x + width))
        x += width + 4
    for (_, end), (start, _) in itertools.pairwise(edges):
        arrow(axes, (end, 12.5), (start, 12.5))
    for before, after, colour, mark, note in (
        (0, 2, REJECTED, "✗", "no update here: it would claim a q\nthat no guess was drawn from"),
        (2, 4, ACCEPTED, "✓", "here, nothing waits\nfor a verdict"),
    ):
        left, right = edges[before][1] + 0.5, edges[after][0] - 0.5
        axes.plot([left, left, right, right], [18, 19.5, 19.5, 18], color=colour, linewidth=1.6)
        words(axes, (left + right) / 2, 23, f"{mark} {note}", fontsize=9.5, color=colour)
    words(axes, 4, 7.5, "time →", ha="left", fontsize=9, color=GREY)
    return axes.figure


@mpl.rc_context(STYLE)
def with_errors(
    x: Sequence[float],
    ys: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    level: tuple[str, float] | None = None,
) -> Picture:
    """One line per entry, (values, errors), with a bar of one standard error at each point.

    level: (label, value) of a thin line across.
    """
    axes = picture(title, xlabel, ylabel, 8.4, 4.2)
    for (label, (y, error)), (colour, dash, marker, _) in zip(ys.items(), SERIES, strict=False):
        look = {"color": colour, "linestyle": dash, "marker": marker, "capsize": 3}
        axes.errorbar(x, y, error, label=label, **look)
    if level is not None:
        axes.axhline(level[1], color=GREY, linewidth=1, linestyle="--", label=level[0])
    axes.set_ylim(0, 1)
    axes.figure.legend(loc="outside lower left", ncols=3)
    return axes.figure
