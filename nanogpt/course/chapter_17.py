"""Chapter 17: the judge of *Your turn*, and the chapter's own pictures.

The turn: accept a path of a tree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.generate import Tree
from nanogpt.proof.exact import Branch, enumerate_outcomes, total_variation
from nanogpt.rules import accept_tree
from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, REJECTED, RESAMPLED, STYLE, Picture, shown
from nanogpt.speculative import residual

P, Q, Q_LATER = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0]  # Q_LATER: Q without c
OTHERS = [[0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7], [0.25, 0.35, 0.4], [0.6, 0.3, 0.1]]
TREES = {  # what it is: tokens, parents, q of each node, the simplest first
    "no guess": ([], [], []),
    "one guess": ([2], [-1], [Q]),
    "a chain of two": ([2, 0], [-1, 0], [Q, Q_LATER]),
    "a guess with p = q": ([1], [-1], [P]),
    "two siblings drawn without replacement": ([2, 1], [-1, -1], [Q, Q_LATER]),
    "two siblings drawn with replacement, alike": ([2, 2], [-1, -1], [Q, Q]),
    "two fixed siblings": ([2, 0], [-1, -1], [[0, 0, 1], [1, 0, 0]]),
    "three siblings": ([2, 1, 0], [-1] * 3, [Q, Q_LATER, [1, 0, 0]]),
    "a second sibling with a child": ([2, 1, 1], [-1, -1, 1], [Q, Q_LATER, Q]),
    "two levels, siblings apart": ([2, 1, 1, 0, 2], [-1, 0, -1, 0, 2], [Q, Q, Q_LATER, P, P]),
}


def judge(mine: Callable) -> None:
    """mine(tree, target_probs, rng) accepts a path and adds a token as the rule of chapter 17 does.

    Judged by the exact distribution of (path, token) on ten small trees, not by its draws.
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
        assert total_variation(got, exact) < 1e-5, (  # wrong rules are off by hundredths
            f"{name} (tokens {tokens}, parents {parents}): path {list(worst[0])} with token "
            f"{worst[1]} comes with probability {got.get(worst, 0):.3f} instead of "
            f"{exact.get(worst, 0):.3f}; {slip_of(seen)}"
        )


def outcome(rule: Callable, name: str, rng) -> tuple[tuple[int, ...], int]:
    """(path, token) of a rule on one of TREES. Raises AssertionError if that is not their form."""
    tokens, parents, rows = TREES[name]
    q = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    p = torch.tensor([P, *OTHERS[: len(tokens)]], dtype=torch.float64)
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
        if slip == "shallow":
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
    "row": "p is read from a wrong row: after node i it is target_probs[i + 1]",
}


def slip_of(seen: dict[str, dict]) -> str:
    """A sentence on what most likely went wrong: the slip that comes to the same on all trees."""
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
    return "children in order, each against what is left of p; the rest drawn from what is left"


@mpl.rc_context(STYLE)
def tries(
    steps: Sequence[tuple[Sequence[float], Sequence[float]]], letters: str, title: str
) -> Picture:
    """One sibling after another: (what is left of p, q) of each try, and what is left at last.

    The last entry's q is None: nobody guesses any more, and the token is drawn from what is left.
    """
    axes, top, reached = sheet(title, 9.4, 3.5), 24.0, 1.0
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
    axes, left = sheet(title, 9.4, 1.1 + 0.85 * len(rows)), 25
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


@mpl.rc_context(STYLE)
def coins_of_a_block(
    guesses: str,
    one_by_one: Sequence[tuple[float, bool]],
    block: Sequence[tuple[float, bool]],
    title: str,
) -> Picture:
    """The same guesses judged both ways: (chance, whether the coin falls right) of each guess.

    Above, from the first guess on, until one fails; below, from the last back, until one falls
    right.
    """
    axes, wide = sheet(title, 9.4, 4.1), min(12.0, 70 / len(guesses))
    first = next((i for i, (_, right) in enumerate(one_by_one) if not right), len(guesses))
    last = max((i for i, (_, right) in enumerate(block) if right), default=-1)
    for y, name, coins, kept in (
        (4, "one by one", one_by_one, first),
        (24, "as a block", block, last + 1),
    ):
        words(axes, 1, y + 4.5, name, ha="left", fontweight="bold")
        forward = name == "one by one"
        for i, (letter, (chance, right)) in enumerate(zip(guesses, coins, strict=True)):
            x, tossed = 19 + wide * i, i <= first if forward else i >= last
            kind = "accepted" if i < kept else "rejected" if i == kept else "gone"
            box(axes, x, y, wide - 1.5, 4, shown(letter), kind)
            mark = ("✓" if right else "✗") if tossed else "not tossed"
            colour = (ACCEPTED if right else REJECTED) if tossed else GREY
            words(axes, x + wide / 2 - 0.7, y + 6, f"{chance:.2f}", fontsize=9)
            words(
                axes, x + wide / 2 - 0.7, y + 8.4, mark, color=colour, fontsize=13 if tossed else 7
            )
        start, end = (19, 17 + wide * len(guesses))[:: 1 if forward else -1]
        arrow(axes, (start, y + 11), (end, y + 11))
        order = "coins from the first on, to the first ✗" if forward else "coins from the last back"
        said = order if forward else f"{order}, to the first ✓"
        words(axes, 19 + wide * len(guesses) / 2, y + 13, f"{said}: {kept} kept", fontsize=9)
    return axes.figure
