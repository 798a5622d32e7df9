"""Chapter 17: the judge of *Your turn*, and the chapter's own pictures.

The turn: accept a path of a tree.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.proof.exact import Branch, enumerate_outcomes, total_variation
from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import (
    ACCEPTED,
    GREY,
    REJECTED,
    RESAMPLED,
    SERIES,
    STYLE,
    TARGET,
    Picture,
    shown,
)
from nanogpt.speculative import residual
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import Tree

P, Q, Q_LATER = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0]  # Q_LATER: Q without c
OTHERS = [[0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7], [0.25, 0.35, 0.4], [0.6, 0.3, 0.1]]
TREES = {  # what it is: tokens, parents, q of each node, the simplest first
    "no guess": ([], [], []),
    "one guess": ([2], [-1], [Q]),
    "a chain of two": ([2, 0], [-1, 0], [Q, Q_LATER]),
    "a guess with p = q": ([1], [-1], [P]),
    "two siblings drawn without replacement": ([2, 1], [-1, -1], [Q, Q_LATER]),
    "four siblings drawn with replacement": ([2, 2, 1, 0], [-1] * 4, [Q] * 4),
    "two fixed siblings": ([2, 0], [-1, -1], [[0, 0, 1], [1, 0, 0]]),
    "three siblings": ([2, 1, 0], [-1] * 3, [Q, Q_LATER, [1, 0, 0]]),
    "a second sibling with a child": ([2, 1, 1], [-1, -1, 1], [Q, Q_LATER, Q]),
    "two levels, siblings apart": ([2, 1, 1, 0, 2], [-1, 0, -1, 0, 2], [Q, Q, Q_LATER, P, P]),
    "a chain of six": ([2, 0, 1] * 2, [-1, 0, 1, 2, 3, 4], [Q, Q_LATER, P] * 2),
    "four levels, siblings on the last": (
        *([2, 0, 1, 0, 2], [-1, 0, 1, 2, 2]),
        [Q, P, Q, Q, [0, 0.25, 0.75]],
    ),
}


def judge(mine: Callable) -> None:
    """mine(tree, target_probs, rng) accepts a path and adds a token as the rule of chapter 17 does.

    Judged by the exact distribution of (path, token) on a dozen small trees, not by its draws.
    Raises AssertionError with the likeliest slip.
    """
    seen, right = {}, {}
    for name in TREES:
        try:
            alike = {outcome(mine, name, Branch(())) for _ in range(50)}
            assert len(alike) == 1, "not all chance comes from `rng`: ask it for coins and draws"
            seen[name] = enumerate_outcomes(functools.partial(outcome, mine, name))
        except (AssertionError, NotImplementedError):  # a sentence already, or an untouched stub
            raise
        except Exception as error:  # most often, what was drawn from is no distribution
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        right[name] = enumerate_outcomes(functools.partial(outcome, accept_tree, name))
    for name, (tokens, parents, _) in TREES.items():
        got, exact = seen[name], right[name]
        worst = max(got | exact, key=lambda x: abs(got.get(x, 0) - exact.get(x, 0)))
        off = total_variation(got, exact)
        assert off < 1e-5, (  # wrong rules are off by hundredths
            f"{name} (tokens {tokens}, parents {parents}): path {list(worst[0])} with token "
            f"{worst[1]} comes with probability {got.get(worst, 0):.3f} instead of "
            f"{exact.get(worst, 0):.3f}; {slip_of(seen, off)}"
        )


def outcome(rule: Callable, name: str, rng) -> tuple[tuple[int, ...], int]:
    """(path, token) of a rule on one of TREES. Raises AssertionError if that is not their form."""
    tokens, parents, rows = TREES[name]
    q = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    p = torch.tensor([P, *OTHERS, Q][: len(tokens) + 1], dtype=torch.float64)
    draw = rng.categorical
    rng.categorical = lambda probs: draw(torch.as_tensor(probs))  # a list will do
    tree, probs = Tree(list(tokens), list(parents), q.clone()), p.clone()
    answer = rule(tree, probs, rng)
    assert answer is not None, "nothing came back: return (path, token)"
    untouched = tree.q.equal(q) and probs.equal(p) and tree.tokens == tokens
    assert untouched, "tree or target_probs were changed in place: work on a copy"
    pair = isinstance(answer, (tuple, list)) and len(answer) == 2
    assert pair and hasattr(answer[0], "__len__"), (
        f"{answer!r} came back, not (path, token): a list of nodes, and one token"
    )
    path, above = [int(node) for node in answer[0]], -1
    for node in path:
        assert 0 <= node < len(tokens) and parents[node] == above, (
            f"{name}: the path {path} is no chain of nodes from the root down (parents {parents}); "
            "it holds indices of nodes, not tokens, and not the current token"
        )
        above = node
    return tuple(path), int(answer[1])


def wrong_rule(tree, target_probs, rng, slip):
    """accept_tree with one slip: a key of SLIPS."""
    p, q, children, node, path = target_probs.numpy(), tree.q.numpy(), tree.children, -1, []
    while True:
        row = p[node] if slip == "row" else p[node + 1]
        left, seen = row, []
        for child in children[node + 1]:
            token, own = tree.tokens[child], q[child]
            if slip == "copies" and token in seen:
                continue
            seen.append(token)
            against = row if slip in ("stale", "both") else left
            own = q[children[node + 1][0]] if slip == "first" else own
            if rng.bernoulli(min(1.0, against[token] / own[token] if own[token] else 1.0)):
                break
            if slip == "zeroed":
                left = left.copy()
                left[token] = 0
                left = left / left.sum() if left.sum() > 0 else row
            elif slip != "both":
                left = residual(row if slip == "last" else left, own)
        else:
            return path, rng.categorical(row if slip == "fresh" else left)
        path.append(child)
        node = child
        if len(path) == {"shallow": 1, "two levels": 2, "three levels": 3}.get(slip):
            return path, rng.categorical(p[node + 1])


SLIPS = {
    "both": "the second sibling is still judged by p, and the token drawn from p: both must use "
    "what the rejected siblings left",
    "stale": "the second sibling is still judged by p; judge it by what the first one left",
    "last": "what is left is taken from p anew after each rejection; take it from what was left",
    "fresh": "where no child was kept, the token is drawn from p; draw it from what is left",
    "first": "all siblings are judged by the first one's q; each has its own, tree.q[child]",
    "copies": "a copy of a rejected token is skipped; it was drawn, so it is judged like others",
    "zeroed": "a rejection takes away the whole q of the node, not just its token",
    "shallow": "an accepted node's children are never looked at; go on below it",
    "two levels": "the walk ends after two levels; go on below each node that is kept",
    "three levels": "the walk ends after three levels; go on below each node that is kept",
    "row": "p is read from a wrong row: after node i it is target_probs[i + 1]",
}


def slip_of(seen: dict[str, dict], off: float) -> str:
    """A sentence on what most likely went wrong: the slip that comes to the same on all trees."""
    if off < 5e-3:
        return f"off by {off:.0e}: is a number rounded, or one added to it? Leave p / q as it is"
    for slip, sentence in SLIPS.items():
        wrong = functools.partial(wrong_rule, slip=slip)
        try:
            if all(
                total_variation(got, enumerate_outcomes(functools.partial(outcome, wrong, name)))
                < 1e-5
                for name, got in seen.items()
            ):
                return sentence
        except (AssertionError, ValueError):  # that slip cannot even be drawn from
            continue
    return "all children in order, each against what is left of p; the rest drawn from what is left"


@mpl.rc_context(STYLE)
def tries(
    steps: Sequence[tuple[Sequence[float], Sequence[float]]], letters: str, title: str
) -> Picture:
    """One sibling after another: (what is left of p, q) of each try, and what is left at last.

    The last entry's q is None: nobody guesses any more, and the token is drawn from what is left.
    """
    rest = ", ".join(f"{letter} {x:.2f}" for letter, x in zip(letters, steps[1][0], strict=True))
    shows = f"Each try keeps what q shares with what is left of p; the second one meets {rest}."
    axes, top, reached = sheet(title, 9.4, 3.5, shows), 24.0, 1.0
    panel, bar = 92 / len(steps), 68 / len(steps) / (len(letters) * 2 + 2)
    for n, (left, q) in enumerate(steps):
        x = 2 + panel * n
        said = f"try {n + 1}: p against q" if n == 0 else f"try {n + 1}: what is left, against q"
        said = "no guess left: ↻ drawn" if q is None else said
        words(axes, x + panel / 2 - 3, 2.2, said, fontweight="bold", fontsize=9)
        for i, letter in enumerate(letters):
            at = x + i * 2.4 * bar
            pairs = [(at, left[i], "target")] + ([] if q is None else [(at + bar, q[i], "draft")])
            for place, height, kind in pairs:
                fill, edge, _, hatch = KINDS["resampled" if q is None else kind]
                shape = mpl.patches.Rectangle((place, top), bar, -18 * height)
                shape.set(facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=1.2)
                axes.add_patch(shape)
                words(axes, place + bar / 2, top - 18 * height - 1, f"{height:.2f}", fontsize=8)
            words(axes, at + bar * (0.5 if q is None else 1), top + 1.6, letter)
        if q is None:
            words(axes, x + panel / 2 - 3, 29, f"↻ {reached:.2f}", color=RESAMPLED, fontsize=12)
            continue
        kept = reached * float(np.minimum(left, q).sum())
        reached -= kept
        words(axes, x + panel / 2 - 7, 29, f"✓ {kept:.2f}", color=ACCEPTED, fontsize=12)
        words(axes, x + panel / 2 + 2, 29, f"✗ {reached:.2f}", color=REJECTED, fontsize=12)
        arrow(axes, (x + panel / 2 + 5.5, 29), (x + panel, 29), colour=REJECTED, dash="--")
    bars = "left bar: p, or what is left of it; hatched: q"
    words(axes, 47, 33, f"{bars}      ✓ kept   ✗ rejected: on to the next", color=GREY, fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def told_and_made(
    rows: Mapping[str, Sequence[tuple[float, float] | None]], columns: Sequence[str], title: str
) -> Picture:
    """Ways to make siblings against the q that a rule is told: (distance, kept) of each, or None.

    An exact pair is marked ✓, the others ✗ with their total variation.
    """
    exact = [cell[0] < 1e-12 for cells in rows.values() for cell in cells if cell]
    shows = f"Of {len(exact)} pairs of a way to draw and a claimed q, {sum(exact)} are exact."
    axes, left = sheet(title, 9.4, 1.1 + 0.85 * len(rows), shows), 25
    wide = (92 - left) / len(columns)
    for j, name in enumerate(columns):
        words(axes, left + wide * (j + 0.5), 2.2, name, fontweight="bold", fontsize=9)
    for i, (name, cells) in enumerate(rows.items()):
        y = 5 + 8.5 * i
        words(axes, left - 1, y + 3.5, name, ha="right", fontweight="bold", fontsize=9)
        for j, cell in enumerate(cells):
            said, kind = "–", "gone"
            if cell is not None:
                distance, kept = cell
                exact = distance < 1e-12
                kind = "accepted" if exact else "rejected"
                said = "✓ exact" if exact else f"✗ off by {distance:.3f}"
                said += f"\nkeeps {kept:.3f}"
            box(axes, left + wide * j + 0.5, y, wide - 1, 7, said, kind)
    return axes.figure


def joint_of_k_seq(
    p: np.ndarray, q: np.ndarray, k: int, rho: float
) -> dict[tuple[tuple[int, ...], int], float]:
    """{(the k guesses, the token): probability} of k-SEQ, for exercise 1; p and q (V,)."""
    keep = np.minimum(1, p / (rho * q))
    rest = (p - (1 - (1 - (q * keep).sum()) ** k) * q * keep / (q * keep).sum()).clip(0)
    rest, joint = rest / max(rest.sum(), 1e-300), {}
    for guesses in itertools.product(range(len(p)), repeat=k):
        reached = float(q[list(guesses)].prod())
        for x in guesses:
            joint[guesses, x] = joint.get((guesses, x), 0.0) + reached * keep[x]
            reached *= 1 - keep[x]
        for x, share in enumerate(rest):
            joint[guesses, x] = joint.get((guesses, x), 0.0) + reached * share
    return joint


def best_rho(p: np.ndarray, q: np.ndarray, k: int) -> tuple[float, float]:
    """(the least ρ that k-SEQ allows, what it keeps): 1 - (1 - β)^k = ρβ, by halving."""
    low, high = 1.0, float(k)
    for _ in range(60):
        rho = (low + high) / 2
        beta = np.minimum(q, p / rho).sum()
        low, high = (rho, high) if 1 - (1 - beta) ** k > rho * beta else (low, rho)
    return rho, 1 - (1 - beta) ** k


def least_cut(sets: Mapping[frozenset[int], float], p: Sequence[float]) -> tuple[float, set[int]]:
    """(the most that can flow, the tokens H of the cut): basins in H, springs with one outside."""
    cuts = [{*H} for n in range(len(p) + 1) for H in itertools.combinations(range(len(p)), n)]
    caps = [sum(p[x] for x in H) + sum(a for s, a in sets.items() if s - H) for H in cuts]
    return min(zip(caps, cuts, strict=True), key=lambda pair: pair[0])


def largest_flow(
    sets: Mapping[frozenset[int], float], p: Sequence[float]
) -> dict[tuple[frozenset[int], int], float]:
    """{(set of guesses, token): amount}: as much of the sets as fits into their tokens' p.

    A set fills a token that has room; if none has, another set makes room by filling another token.
    """
    flow, filled = {(s, x): 0.0 for s in sets for x in s}, [0.0] * len(p)
    for spring in sorted(sets, key=sorted):
        amount = sets[spring]
        while amount > 1e-12:
            ways, seen = [[(spring, x)] for x in sorted(spring)], set()
            for way in ways:
                x = way[-1][1]
                if filled[x] < p[x] - 1e-12:
                    break
                if x not in seen:
                    others = [s for s in sorted(sets, key=sorted) if flow.get((s, x), 0) > 1e-12]
                    ways += [[*way, (s, y)] for s in others for y in sorted(s)]
                    seen.add(x)
            else:  # the rest spills
                break
            back = [(s, before) for (_, before), (s, _) in itertools.pairwise(way)]
            part = min(amount, p[x] - filled[x], *(flow[pair] for pair in back))
            for pair in way:
                flow[pair] += part
            for pair in back:
                flow[pair] -= part
            filled[x], amount = filled[x] + part, amount - part
    return flow


@mpl.rc_context(STYLE)
def springs_and_basins(
    sets: Mapping[frozenset[int], float], p: Sequence[float], letters: str, title: str
) -> Picture:
    """Sets of guesses as springs above, tokens as basins below, a largest flow between them.

    sets: {set of guesses: probability}. What the least cut goes through has a thick dashed edge.
    """
    (most, H), flow = least_cut(sets, p), largest_flow(sets, p)
    shows = f"{most:.2f} flows from guesses to tokens; dashed frames mark the cut that stops more."
    axes = sheet(title, 9.4, 4.5, shows)
    order, wide = sorted(sets, key=lambda s: (sum(s) / len(s), len(s))), 80 / len(sets)
    gap, filled = 80 / len(p), [sum(flow.get((s, x), 0) for s in sets) for x in range(len(p))]
    words(axes, 1, 6, "springs:\nguesses", ha="left", fontsize=9)
    words(axes, 1, 32, "basins:\ntokens", ha="left", fontsize=9)
    for i, spring in enumerate(order):
        x, name = 13 + wide * i, " ".join(letters[token] for token in sorted(spring))
        spills = sets[spring] - sum(flow[spring, token] for token in spring)
        over = f"\n{spills:.2f} spills" if spills > 1e-12 else ""
        box(axes, x, 3, wide - 3, 6, f"{name}: {sets[spring]:.2f}{over}", "target")
        mark_cut(axes, (x, 3, wide - 3, 6), bool(spring - H))
        for token in sorted(spring):
            amount, start = flow[spring, token], (x + (wide - 3) / 2, 9.7)
            end = 13 + gap * token + (gap - 4) * (i + 1) / (len(order) + 1), 27.2
            arrow(axes, start, end, *((TARGET, "-") if amount > 1e-12 else (GREY, ":")))
            if amount > 1e-12:
                middle = [a + 0.2 * (b - a) for a, b in zip(start, end, strict=True)]
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                words(axes, *middle, f"{amount:.2f}", fontsize=8, bbox=paper)
    for token, held in enumerate(p):
        place = 13 + gap * token, 28, gap - 4, 8
        box(axes, *place, kind="gone")
        level = 8 * filled[token] / held
        axes.add_patch(mpl.patches.Rectangle((place[0], 36 - level), gap - 4, level, fc="#D6E6F2"))
        said = f"{letters[token]} holds {held:.2f}\n{filled[token]:.2f} came"
        words(axes, place[0] + gap / 2 - 2, 32, said)
        mark_cut(axes, place, token in H)
    said = f"dashed: the cut, {most:.2f} in all; so much flows, and no more can; dotted: dry"
    words(axes, 53, 41, said, color=REJECTED)
    return axes.figure


def mark_cut(axes: mpl.axes.Axes, place: tuple[float, float, float, float], cut: bool) -> None:
    """A thick dashed edge around a place (x, y, width, height), if the cut goes through it."""
    x, y, w, h = place
    edge = {"fill": False, "edgecolor": REJECTED, "linewidth": 2.6, "linestyle": (0, (3, 1.5))}
    if cut:
        axes.add_patch(mpl.patches.Rectangle((x - 0.6, y - 0.6), w + 1.2, h + 1.2, **edge))


@mpl.rc_context(STYLE)
def coins_of_a_block(
    guesses: str,
    one_by_one: Sequence[tuple[float, bool]],
    block: Sequence[tuple[float, bool]],
    P: Sequence[float],
    title: str,
) -> Picture:
    """The same guesses judged both ways: (chance, whether the coin falls right) of each guess.

    Above, P_0 … P_K as a line beside the product of the chances one by one. Below, coins from the
    first guess on, until one fails, and from the last back, until one falls right.
    """
    shows = "Below the lines, coins tossed from the first guess on, and from the last guess back."
    axes, wide = sheet(title, 9.4, 5.7, shows), min(12.0, 70 / len(guesses))
    at = [19 + wide * (i + 0.5) - 0.75 for i in range(-1, len(guesses))]
    alone = np.cumprod([1.0, *(chance for chance, _ in one_by_one)])
    words(axes, 1, 4, "P_i, and the\nproduct, after\ni guesses", ha="left", fontweight="bold")
    for y, label, (colour, dash, marker, _), up in (
        (alone, "one by one: the product", SERIES[0], 2.2),
        (P, "as a block: P", SERIES[1], -2.2),
    ):
        axes.plot(at, [17 - 14 * x for x in y], color=colour, linestyle=dash, marker=marker)
        name, style = label.replace(": ", ":\n"), {"ha": "left", "fontsize": 8, "color": colour}
        words(axes, at[-1] + 0.5 * wide, 3.5 if up < 0 else 8, name, **style)
        for x, value in zip(at[1:], y[1:], strict=True):
            words(axes, x, 17 - 14 * value + up, f"{value:.2f}", fontsize=8, color=colour)
    for y, name, coins in ((23, "one by one", one_by_one), (41, "as a block", block)):
        row_of_coins(axes, y, wide, name, guesses, coins)
    return axes.figure


def row_of_coins(
    axes: mpl.axes.Axes,
    y: float,
    wide: float,
    name: str,
    guesses: str,
    coins: Sequence[tuple[float, bool]],
) -> None:
    """The guesses in boxes, the chance of each one's coin, and whether it was tossed, and fell."""
    forward, falls = name == "one by one", [right for _, right in coins]
    first = falls.index(False) if False in falls else len(coins)
    last = max((i for i, right in enumerate(falls) if right), default=-1)
    kept = first if forward else last + 1
    words(axes, 1, y + 4.5, name, ha="left", fontweight="bold")
    for i, (letter, (chance, right)) in enumerate(zip(guesses, coins, strict=True)):
        x, tossed = 19 + wide * i, i <= first if forward else i >= last
        kind = "accepted" if i < kept else "rejected" if i == kept else "gone"
        box(axes, x, y, wide - 1.5, 4, shown(letter), kind)
        mark = ("✓" if right else "✗") if tossed else "not tossed"
        colour = (ACCEPTED if right else REJECTED) if tossed else GREY
        middle = x + wide / 2 - 0.7
        words(axes, middle, y + 6, f"{chance:.2f}", fontsize=9)
        words(axes, middle, y + 8.4, mark, color=colour, fontsize=13 if tossed else 7)
    start, end = (19, 17 + wide * len(guesses))[:: 1 if forward else -1]
    arrow(axes, (start, y + 11), (end, y + 11))
    order = "coins from the first on, to the first ✗"
    order = order if forward else "coins from the last back, to the first ✓"
    words(axes, 19 + wide * len(guesses) / 2, y + 13, f"{order}: {kept} kept", fontsize=9)
