"""Chapter 29: the judge of *Your turn*, and the chapter's own pictures.

The turn: a verdict on an engine, from its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.proof.statistics import LEVEL as REFUSED
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown

LEVEL = 0.001  # at most so many right engines may be refused


def pairs(p: np.ndarray, n: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """n pairs of tokens drawn from p (V, V)."""
    u = torch.rand(n, generator=generator).double().numpy()
    drawn = np.searchsorted(np.cumsum(p), u * p.sum(), side="right")
    return [divmod(min(int(x), p.size - 1), len(p)) for x in drawn]


def chain(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The joint distribution (V, V) of a first token (V,) and of a second one after each (V, V)."""
    return first[:, None] * second


def judge(mine: Callable) -> None:
    """*Your turn* of 29: does an engine that drew these pairs of tokens sample the target's?

    mine(samples, exact) returns True (trust it) or False. Raises AssertionError if it refuses
    right engines more often than it may, or trusts one whose first token, second token, pairs or
    support is wrong, that only looks right where the likeliest outcome is concerned, or that shows
    how wrong it is in few samples.
    """
    generator = torch.Generator().manual_seed(29)
    first = np.array([0.4, 0.3, 0.2, 0.1])
    second = np.array([[6, 2, 1, 1], [1, 6, 2, 1], [1, 1, 6, 2], [2, 1, 1, 6]]) / 10
    many = np.array([np.roll(0.5 ** np.arange(9), 2 * i) for i in range(9)])  # most are rare
    many /= many.sum(-1, keepdims=True)
    right = {4: chain(first, second), 9: chain(many[0], many)}
    cases = [(p, n) for p in right.values() for n in (150, 2000)] * 40
    refused = sum(not asked(mine, pairs(p, n, generator), p) for p, n in cases)
    assert refused <= 1, (
        f"you refused {refused} of {len(cases)} right engines (4 or 9 tokens, 150 or 2,000 "
        f"samples): refuse only what luck does less than once in {1 / LEVEL:.0f}, and the fewer "
        "the samples, the further luck goes"
    )
    for what, q in wrong_engines(first, second).items():
        trusted = asked(mine, pairs(q, 2000, generator), right[4])
        assert not trusted, f"you trusted an engine with {what}"
    assert not asked(mine, [(0, 0)] * 150, right[4]), (
        "you trusted an engine that drew the pair (0, 0) 150 times in a row: few samples are no "
        "reason to trust, they only leave luck more room"
    )
    p = chain(first, np.array([[6, 3, 1, 0], [1, 7, 2, 0], [1, 2, 7, 0], [3, 4, 3, 0]]) / 10)
    strange = pairs(p, 1960, generator) + [(0, 3)] * 40
    assert not asked(mine, strange, p), (
        "you trusted an engine that drew the pair (0, 3) 40 times, whose probability is 0: go over "
        "what came, not only over what was expected"
    )


def wrong_engines(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """{what is wrong: the joint distribution (V, V)} of engines that nobody should trust."""
    p, best = chain(first, second), np.zeros_like(second)
    best[0, 0] = 1.0
    return {
        "always the likeliest pair, as a greedy engine does": best,
        "a wrong first token": chain(0.8 * first + 0.2 * first[::-1], second),
        "a right first token and a wrong second one (look further than token 1)": chain(
            first, 0.6 * second + 0.4 * second[:, ::-1]
        ),
        "each token right on its own, and the second one drawn as if the first had not been "
        "(look at the pairs, not at each place alone)": np.outer(p.sum(1), p.sum(0)),
    }


def asked(mine: Callable, samples: list[tuple[int, int]], p: np.ndarray) -> bool:
    """The reader's verdict on samples of p (V, V); `exact` holds only what can happen."""
    exact = {(i, j): float(x) for (i, j), x in np.ndenumerate(p) if x}
    made = mine(list(samples), dict(exact))
    if isinstance(made, torch.Tensor) and made.dtype == torch.bool and made.numel() == 1:
        made = bool(made)
    came = "nothing" if made is None else f"{made!r:.40}, a {type(made).__name__},"
    assert isinstance(made, (bool, np.bool_)), (
        f"return True to trust the engine and False to refuse it; {came} came"
    )
    return bool(made)


def told(report: Mapping, settings: Sequence[str]) -> dict[str, list[tuple[str, bool]]]:
    """Of a recorded audit: {mode: [(what it said, whether it passed)], greedy and by setting}."""
    modes: dict[str, list[Mapping]] = {}
    for row in report["rows"]:
        modes.setdefault(row["mode"], []).append(row)
    said = {}
    for mode, rows in modes.items():
        same = min(row["greedy"] for row in rows)
        said[mode] = [(f"{same} of 5", same == 5), *(at(rows, setting) for setting in settings)]
    return said


def at(rows: Sequence[Mapping], setting: str) -> tuple[str, bool]:
    """What a mode's tests said at a setting, over every K that ran, and whether it passed."""
    if not all(setting in row["places"] for row in rows):
        return "an error", False
    places = [place for row in rows for place in row["places"][setting]]
    p = [min(place["letters"], place["ranks"]) for place in places]
    wrong = [place for place, each in zip(places, p, strict=True) if each < REFUSED]
    off = [place["total_variation"] for place in wrong]
    return (f"off by {max(off):.2f}", False) if off else (f"p = {min(p):.1g}", True)


@mpl.rc_context(STYLE)
def where_the_draft_comes_in(prompt: str, first: str, second: str, title: str) -> Picture:
    """How an engine makes its first two tokens, and which of the tests meets the draft's part."""
    shows = "The prompt, the target's pass, token 1; only then draft, verdict and token 2."
    axes = sheet(title, 9, 2.7, shows)
    flow = [
        (1, 13, shown(prompt), "plain", "the prompt"),
        (20, 15, "target's pass\np", "target", "prefill"),
        (41, 7, shown(first), "plain", "token 1"),
        (54, 13, "draft\nguesses, q", "draft", "round 1"),
        (70, 9, "accept\nor reject", "plain", ""),
        (82, 7, shown(second), "plain", "token 2"),
    ]
    for (x, w, text, kind, name), after in zip(flow, [*flow[1:], None], strict=True):
        box(axes, x, 5, w, 6, text, kind)
        words(axes, x + w / 2, 3.2, name, fontsize=9, color=GREY)
        if after:
            arrow(axes, (x + w, 8), (after[0], 8))
    tests = [
        (44.5, "a test of token 1\nnever meets the draft"),
        (85.5, "a test of token 2\nor of both does"),
    ]
    for x, text in tests:
        arrow(axes, (x, 16), (x, 11.6))
        words(axes, min(x, 79), 18.4, text)
    said = "greedy: p has one outcome, so whatever is drawn instead is the same token"
    words(axes, 45, 24.4, said)
    axes.plot([1, 89], [21.9, 21.9], color=GREY, linewidth=0.8)
    return axes.figure


@mpl.rc_context(STYLE)
def verdicts(
    rows: Mapping[str, Sequence[tuple[str, bool]]], columns: Sequence[str], title: str
) -> Picture:
    """A table of tests: {engine: (what it said, whether it passed) for each column}."""
    left, wide = 30.0, min(14.5, 59 / len(columns))
    bad = [name for name, cells in rows.items() if not all(passed for _, passed in cells)]
    shows = f"Rows that fail a test: {'; '.join(bad) or 'none'}."
    axes = sheet(title, 9, 0.55 + 0.4 * len(rows), shows)
    for j, name in enumerate(columns):
        words(axes, left + wide * (j + 0.5), 2, name, fontsize=9, color=GREY)
    for i, (name, cells) in enumerate(rows.items()):
        words(axes, left - 1, 5.4 + 4 * i, name, ha="right")
        for j, (said, passed) in enumerate(cells):
            kind, mark = ("accepted", "✓") if passed else ("rejected", "✗")
            box(axes, left + wide * j + 0.3, 3.8 + 4 * i, wide - 0.6, 3.2, f"{mark} {said}", kind)
    return axes.figure
