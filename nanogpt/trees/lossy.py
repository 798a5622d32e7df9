"""Rules that keep more guesses than they may: faster, and no longer the target's distribution.

Each says at which settings it is exact after all. Arguments and results are those of `accept_tree`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from nanogpt.sampling import check_probabilities
from nanogpt.speculative import residual
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import Tree

# The lossy rules. Each accepts more than is right; what that costs is a total variation.


def longest_path(tree: Tree, passed: Sequence[bool], chances: Sequence[float]) -> list[int]:
    """The longest chain of nodes from the root that all passed; of equally long ones the likeliest.

    passed (N): whether each node may stand after its parent; chances (N): its p there.
    """
    found: dict[int, tuple[list[int], float]] = {-1: ([], 1.0)}  # each node's path, and its chance
    for node, parent in enumerate(tree.parents):
        if passed[node] and parent in found:
            path, joint = found[parent]
            found[node] = [*path, node], joint * chances[node]
    return max(found.values(), key=lambda one: (len(one[0]), one[1]))[0]


def accept_typical(epsilon: float = 0.09, delta: float = 0.3) -> Callable:
    """A lossy rule: a guess stands where its p > min(epsilon, delta * exp(-entropy of p)).

    The longest path of them stands, and the token after it is drawn from p. No coin is tossed for
    a guess, and q is not read, so the output leans to whatever the draft prefers (Cai et al. 2024,
    arXiv 2401.10774, section 2.3.1; 3.3.2 sets delta to the root of epsilon; Medusa's code takes
    the likeliest token after the path by default). Exact where p is one-hot, and where no guess
    stands. Raises ValueError if epsilon or delta is negative.
    """
    if not (epsilon >= 0 and delta >= 0):
        raise ValueError(f"epsilon is {epsilon} and delta {delta}; both must be at least 0")

    def accept(tree, target_probs, rng):
        check_probabilities(target_probs)
        p, rows = target_probs.numpy(), [parent + 1 for parent in tree.parents]
        entropy = torch.special.entr(target_probs).sum(-1).numpy()
        least = np.minimum(epsilon, delta * np.exp(-entropy))
        chances = p[rows, tree.tokens]
        path = longest_path(tree, chances > least[rows], chances)
        return path, rng.categorical(p[path[-1] + 1 if path else 0])

    return accept


def accept_fly(window: int = 6, threshold: float = 0.3, top_k: int = 3) -> Callable:
    """A lossy rule for chains: what comes later may forgive a guess that the exact rule rejects.

    A rejected guess stands where p > 0, the target wavers (the entropy of its top_k likeliest
    tokens, in nats, is at least the threshold), and the exact rule keeps all of the next `window`
    guesses. Those at the end of a chain, with fewer than that after them, are never forgiven. A
    rejection draws from the residual, as ever (FLy, arXiv 2511.22972; the defaults are vLLM's).
    Where p is one-hot, nothing is forgiven.
    Raises ValueError if window or top_k is below 1 or the threshold negative, for a tree that is
    no chain, and for a guess with q = 0.
    """
    if not (window >= 1 and threshold >= 0 and top_k >= 1):
        raise ValueError(
            f"window is {window}, threshold {threshold} and top_k {top_k}; they must be at least "
            "1, 0 and 1"
        )

    def accept(tree, target_probs, rng):
        check_probabilities(target_probs)
        p, q, tokens = target_probs.numpy(), tree.q.numpy(), tree.tokens
        if tree.parents != list(range(-1, len(tokens) - 1)):
            raise ValueError(f"the parents are {tree.parents}; FLy's guesses must be a chain")
        if not all(q[i, token] > 0 for i, token in enumerate(tokens)):
            raise ValueError("a guess has q = 0; return the q that the guess was drawn from")
        likeliest = target_probs.topk(min(top_k, p.shape[-1])).values
        wavers = torch.special.entr(likeliest).sum(-1).numpy() >= threshold
        stands = [rng.bernoulli(min(1.0, p[i, x] / q[i, x])) for i, x in enumerate(tokens)]
        for i, token in enumerate(tokens):
            later = stands[i + 1 : i + 1 + window]
            enough = len(later) == window and all(later)
            forgiven = wavers[i] and p[i, token] > 0 and enough
            if not (stands[i] or forgiven):
                return list(range(i)), rng.categorical(residual(p[i], q[i]))
        return list(range(len(tokens))), rng.categorical(p[len(tokens)])

    return accept


def accept_mixture(weight: float) -> Callable:
    """A lossy rule: accept_tree, with w p + (1 - w) q in the place of p wherever there is a guess.

    weight is w: at 1 nothing is lost, at 0 all of a chain stands. The token is off by 1 - w times
    the total variation between p and q, and no rule that accepts as much of one drawn guess is off
    by less (DIVERSED, arXiv 2604.07622). The bonus token is drawn from p itself. Raises ValueError
    unless w is in [0, 1].
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight is {weight}; it must be in [0, 1]")

    def accept(tree, target_probs, rng):
        mixed = target_probs.clone()
        for row, children in enumerate(tree.children):
            if children:
                q = tree.q[children[0]]  # the whole q: the first has no earlier siblings
                mixed[row] = weight * mixed[row] + (1 - weight) * q
        return accept_tree(tree, mixed, rng)

    return accept
