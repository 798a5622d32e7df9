"""Chapter 26: the judge of *Your turn*, and the chapter's own pictures.

The turn: which outcomes of a round are worth preparing for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
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
    axes, wide = sheet(title, 9, 1.7 + 0.45 * deepest), 72 / len(prepared)
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


@mpl.rc_context(STYLE)
def working_lanes(runs: Mapping[str, tuple[Sequence, Sequence, Sequence]], title: str) -> Picture:
    """Draft and target on a time axis, as they were recorded: {run: (draft, target, answers)}.

    draft: (start, end, rows) of each pass, in ms; target: (start, end); answers: (when, hit) of
    each time that guesses were asked for. Passes over several rows are cross-hatched.
    """
    last = max(end for draft, target, _ in runs.values() for _, end, *_ in [*draft, *target])
    axes, unit = sheet(title, 9, 1.05 + 1.75 * len(runs)), 70 / last
    fill, edge, _, hatch = KINDS["draft"]
    for i, (name, (draft, target, answers)) in enumerate(runs.items()):
        y = 2 + 17.5 * i
        words(axes, 1, y, name, ha="left", fontweight="bold")
        words(axes, 1, y + 5, "draft", ha="left")
        words(axes, 1, y + 10.5, "target", ha="left")
        for start, end, rows in draft:
            place = (17 + start * unit, y + 3), (end - start) * unit, 4
            one = mpl.patches.Rectangle(*place, facecolor=fill, edgecolor=edge, linewidth=0.8)
            axes.add_patch(one).set_hatch("xxx" if rows > 1 else hatch)
        fill_t, edge_t, *_ = KINDS["target"]
        for start, end in target:
            place = (17 + start * unit, y + 8.5), (end - start) * unit, 4
            one = mpl.patches.Rectangle(*place, facecolor=fill_t, edgecolor=edge_t, linewidth=0.8)
            axes.add_patch(one)
        for when, hit in answers:
            mark, colour = ("\u2713", ACCEPTED) if hit else ("\u2717", REJECTED)
            words(axes, 17 + when * unit, y + 1.4, mark, color=colour, fontweight="bold")
    y = 3 + 17.5 * len(runs)
    arrow(axes, (17, y), (89, y))
    words(axes, 1, y, "time in ms", ha="left")
    step = max(1, round(last / 6))
    for tick in range(0, int(last) + 1, step):
        axes.plot([17 + tick * unit] * 2, [y - 0.6, y + 0.6], color=GREY)
        words(axes, 17 + tick * unit, y + 2.2, str(tick), fontsize=9)
    words(
        axes, 1, y + 5.5, "\u2713 the guesses were ready   \u2717 not all   ", ha="left", fontsize=9
    )
    words(
        axes,
        44,
        y + 5.5,
        "hatched: one text; crossed: all roll-outs in one pass",
        fontsize=9,
        ha="left",
    )
    return axes.figure
