"""The judge of chapter 17's *Your turn*: accept a path of a tree."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from nanogpt.exact import Branch, enumerate_outcomes, total_variation
from nanogpt.generate import Tree
from nanogpt.rules import accept_tree
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


def accept_siblings(mine: Callable) -> None:
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
