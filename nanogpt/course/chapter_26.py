"""Chapter 26: the judge of *Your turn*, what the equation allows, and the chapter's own pictures.

The turn: which outcomes of a round are worth preparing for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, REJECTED, STYLE, Picture, shown

ROWS = [[0.1, 0.5, 0.25, 0.15], [0.4, 0.3, 0.2, 0.1], [0.15, 0.05, 0.2, 0.6]]


def judge(mine: Callable) -> None:
    """*Your turn* of 26: the outcomes (k, t) to prepare for, fans[k] of them for each k.

    mine(q, guesses, fans) returns pairs (k, t), in any order. Raises AssertionError for a missing
    or an impossible outcome, for too many, and for changed arguments.
    """
    for guesses, fans in (([1, 0], [1, 2, 1]), ([2, 3], [2, 2, 3]), ([1, 0], [0, 1, 0]), ([], [2])):
        q, given, kept = torch.tensor(ROWS[: len(guesses) + 1]).double(), list(guesses), list(fans)
        where = f"guesses {guesses}, fans {fans}"
        made = mine(q, given, kept)
        assert made is not None, f"{where}: nothing came back; return a list of pairs (k, t)"
        assert (given, kept) == (guesses, fans), f"{where}: the caller's lists were changed"
        pairs = as_pairs(made)
        assert pairs is not None, (
            f"{where}: return a list of pairs (k, t) of whole numbers; {made!r} came"
        )
        fault = slip(pairs, guesses, fans, q)
        assert not fault, f"{where}: {fault}"


def as_pairs(made) -> list[tuple[int, int]] | None:
    """The pairs (k, t) as whole numbers, or None if they are none."""
    try:
        pairs = [(k, t) for k, t in made]
        whole = [(int(k), int(t)) for k, t in pairs]
        return whole if all(a == b for a, b in zip(pairs, whole, strict=True)) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def slip(pairs, guesses, fans, q) -> str:
    """What is wrong with these outcomes, or ""."""
    K, V = len(guesses), q.shape[1]
    for k, t in pairs:
        if not (0 <= k <= K and 0 <= t < V):
            return f"there is no outcome ({k}, {t}): k goes from 0 to {K}, t from 0 to {V - 1}"
        if k < K and t == guesses[k]:
            return f"({k}, {t}) cannot come: token {t} is guess {k}, which was rejected there"
    if len(set(pairs)) < len(pairs):
        return f"an outcome is there twice: {pairs}"
    for k in range(K + 1):
        mine = {t for j, t in pairs if j == k}
        rows = q[k].tolist()
        may = [t for t in range(V) if k == K or t != guesses[k]]
        right = set(sorted(may, key=lambda t: -rows[t])[: fans[k]])
        if mine == right:
            continue
        if len(mine) != len(right):
            why = "after the last guess every token may come" if k == K else ""
            why = why or "leave out the guess before you count, so that the next one moves up"
            return f"{len(mine)} outcomes for k = {k}, not {len(right)}: {why}"
        if k == K:
            return (
                f"for k = {K}, all accepted, the tokens are {sorted(mine)}, not {sorted(right)}: "
                "any token may come there, likeliest first by the last row of q"
            )
        if set(guesses) & (right - mine):
            return (
                f"for k = {k} the tokens are {sorted(mine)}, not {sorted(right)}: only guess {k}, "
                f"token {guesses[k]}, was rejected there; what is guessed elsewhere may come"
            )
        return (
            f"for k = {k} the tokens are {sorted(mine)}, not {sorted(right)}: row {k} of q comes "
            f"after {k} guesses, and the likeliest stand in for the guess that was rejected"
        )
    return ""


@mpl.rc_context(STYLE)
def outcome_cache(
    guesses: Sequence[str],
    prepared: Sequence[Sequence[tuple[str, str]]],
    came: tuple[int, str],
    title: str,
) -> Picture:
    """What a drafter has prepared while it waits: a column for each number of accepted guesses.

    prepared[k]: (the target's token, the roll-out after it), the likeliest first; came: (k, token),
    the outcome. Spaces and line ends are drawn as signs.
    """
    deepest = max(1, *map(len, prepared))
    shows = f"A column of roll-outs for each k; what came is k = {came[0]}, then {shown(came[1])}."
    axes, wide = sheet(title, 9, 1.7 + 0.45 * deepest, shows), 72 / len(prepared)
    words(axes, 1, 2.4, "handed out", ha="left")
    words(axes, 1, 9.4, "so accepted", ha="left")
    words(axes, 1, 14.4, "then \u2192 roll-out", ha="left")
    for k, column in enumerate(prepared):
        x, (hit_k, hit) = 17 + k * wide, came
        if k < len(guesses):
            box(axes, x, 0.6, 0.9 * wide, 3.6, shown(guesses[k]), "draft")
        words(axes, x + 0.45 * wide, 7.6, f"k = {k}", fontweight="bold")
        words(axes, x + 0.45 * wide, 10.2, shown("".join(guesses[:k])) or "nothing", fontsize=9)
        for row, (token, rollout) in enumerate(column):
            right = (k, token) == (hit_k, hit)
            said = f"{shown(token)} \u2192 {shown(rollout)}" + " \u2713" * right
            kind = "accepted" if right else "plain"
            box(axes, x, 12.6 + 4.5 * row, 0.9 * wide, 3.6, said, kind)
    k, token = came
    found = any(token == t for t, _ in prepared[k])
    what = "a hit, used once; the rest is thrown away" if found else "a miss, so draft now"
    y = 14.6 + 4.5 * deepest
    words(axes, 1, y, f"came: k = {k}, then {shown(token)}: {what}", ha="left", fontweight="bold")
    return axes.figure


def allowed(T_d: float, hit: float) -> float:
    """How many times as fast as in turn a round may be; T_d: drafting, in verifications.

    A hit takes as long as the slower of the two, and a miss as long as both. hit: how often.
    """
    return (1 + T_d) / (hit * max(1, T_d) + (1 - hit) * (1 + T_d))


def typical(texts: Sequence[Sequence[tuple]], n: int) -> Sequence[tuple]:
    """n rounds in a row, and the one after, whose hits and then whose time are like most.

    texts: of each the rounds (asked, got, hit, …), times in seconds. The first round of a text,
    which nobody could prepare for, is left out.
    """
    n = min(n, max(map(len, texts)) - 2)
    every = [text[i : i + n + 1] for text in texts for i in range(1, len(text) - n)]
    hits = np.array([sum(hit is True for _, _, hit, *_ in rounds[:-1]) for rounds in every])
    times = np.array([rounds[-1][0] - rounds[0][0] for rounds in every])
    off = abs(hits - hits.mean()).round(), abs(times - np.median(times))
    return every[np.lexsort(off[::-1])[0]]


def drawn(rounds: Sequence[tuple], passes: Sequence[tuple]) -> tuple[list, list, list]:
    """What working_lanes draws of these rounds but the last, in ms from their start.

    rounds: (asked, got, hit, …); passes: (start, end, rows) of the draft; times in seconds.
    """
    begin, end = rounds[0][0], rounds[-1][0]
    target = [(one[1], then[0]) for one, then in pairwise(rounds)]
    kept = [each for each in passes if begin <= each[0] < end]
    draft, target = (
        [(1e3 * (a - begin), 1e3 * (b - begin), *rows) for a, b, *rows in bars]
        for bars in (kept, target)
    )
    return draft, target, [(1e3 * (got - begin), hit) for _, got, hit, *_ in rounds[:-1]]


def hoped_for(hits: Sequence[bool], late: float, check: float) -> tuple[list, list, list]:
    """The same as the equation has it: a hit costs nothing, a miss a draft of `late` ms.

    check: a verification, in ms; preparing takes as long as drafting late.
    """
    now, ready, draft, target, answers = 0.0, 0.0, [], [], []
    for hit in hits:
        if not hit:
            ready = now + late
            draft.append((now, ready, 1))
        now = max(now, ready)
        answers.append((now, hit))
        target.append((now, now + check))
        draft.append((now, now + late, 2))
        now, ready = now + check, now + late
    return draft, target, answers


def gaps(bars: Sequence[tuple], last: float) -> list[tuple[float, float]]:
    """(start, end) of each stretch of 0 … last in which none of these bars (start, end, …) is."""
    edges = [0.0, *(edge for start, end, *_ in bars for edge in (start, end)), last]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def lane(axes, y: float, left: float, unit: float, bars: Sequence[tuple], hatches, look) -> None:
    """One worker's bars (start, end, …) from time 0 at `left` on, with a hatch for each bar."""
    fill, edge = look
    for (start, end, *_), hatch in zip(bars, hatches, strict=True):
        place = (left + start * unit, y), (end - start) * unit, 4
        style = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.8, "hatch": hatch}
        axes.add_patch(mpl.patches.Rectangle(*place, **style))


@mpl.rc_context(STYLE)
def working_lanes(runs: Mapping[str, tuple[Sequence, Sequence, Sequence]], title: str) -> Picture:
    """Draft and target on a time axis: {run: (draft, target, answers)}; who idles is grey.

    draft: (start, end, rows) of each pass, in ms; target: (start, end); answers: (when, hit) of
    each time that guesses were there, hit None where nothing was prepared. Passes over several
    rows are cross-hatched.
    """
    last = max(end for draft, target, _ in runs.values() for _, end, *_ in [*draft, *target])
    shows = f"When draft and target work: {'; '.join(runs)}. In turn, one waits for the other."
    axes, unit, left = sheet(title, 9, 1.05 + 1.65 * len(runs), shows), 72 / last, 15
    for i, (name, (draft, target, answers)) in enumerate(runs.items()):
        y, own = 2 + 16.5 * i, max(end for _, end, *_ in [*draft, *target])
        words(axes, 1, y, name, ha="left", fontweight="bold")
        for at, label, bars, kind in (
            (3, "draft", draft, "draft"),
            (8.5, "target", target, "target"),
        ):
            words(axes, 1, y + at + 2, label, ha="left")
            fill, edge, _, hatch = KINDS[kind]
            crossed = ["xxx" if rest and rest[0] > 1 else hatch for _, _, *rest in bars]
            idle = gaps(bars, own)  # first, so that the bars' edges are whole
            lane(axes, y + at, left, unit, idle, ["...."] * len(idle), ("#F4F4F4", "#C4C4C4"))
            lane(axes, y + at, left, unit, bars, crossed, (fill, edge))
        for when, hit in answers:
            mark, colour = ("\u2713", ACCEPTED) if hit else ("\u2717", REJECTED)
            if hit is not None:
                words(axes, left + when * unit, y + 1.4, mark, color=colour, fontweight="bold")
    time_axis(axes, 3 + 16.5 * len(runs), left, unit, last)
    return axes.figure


def time_axis(axes, y: float, left: float, unit: float, last: float) -> None:
    """Milliseconds from 0 to last, and under them what the marks and hatches say."""
    arrow(axes, (left, y), (left + 73, y))
    words(axes, 1, y, "time in ms", ha="left")
    for tick in range(0, int(last) + 1, max(1, round(last / 6))):
        axes.plot([left + tick * unit] * 2, [y - 0.6, y + 0.6], color=GREY)
        words(axes, left + tick * unit, y + 2.2, str(tick), fontsize=9)
    said = (
        "\u2713 hit   \u2717 miss     striped: one text     crossed: all roll-outs in one pass"
        "     dotted grey: idle, or Python between two passes"
    )
    words(axes, 1, y + 5.5, said, ha="left", fontsize=9)
