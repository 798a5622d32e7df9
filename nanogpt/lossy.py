"""Rules that keep more guesses than they may: faster, and no longer the target's distribution.

Each says at which settings it is exact after all. Arguments and results are those of `accept_tree`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from nanogpt.generate import Tree
from nanogpt.rules import accept_tree
from nanogpt.sampling import check_probabilities
from nanogpt.speculative import residual

# The lossy rules. Each accepts more than is right; what that costs is a total variation.


def longest_path(tree: Tree, passed: Sequence[bool], chances: Sequence[float]) -> list[int]:
    """The longest chain of nodes from the root that all passed; of equally long ones the likeliest.

    passed (N): whether each node may stand after its parent; chances (N): its p there.
    """
    found = {-1: ([], 1.0)}  # of each node that stands: its path and the path's probability
    for node, parent in enumerate(tree.parents):
        if passed[node] and parent in found:
            path, joint = found[parent]
            found[node] = [*path, node], joint * chances[node]
    return max(found.values(), key=lambda one: (len(one[0]), one[1]))[0]


def accept_typical(epsilon: float = 0.09, delta: float = 0.3) -> Callable:
    """A lossy rule: a guess stands where its p > min(epsilon, delta * exp(-entropy of p)).

    The longest path of them stands, and the token after it is drawn from p. No coin is tossed for
    a guess, and q is not read, so the output leans to whatever the draft prefers (Cai et al. 2024,
    arXiv 2401.10774, section 3.3.1; Medusa's code takes the likeliest token after it by default).
    Exact where p is one-hot. Raises ValueError if epsilon or delta is negative.
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


def accept_relaxed(top_k: int, delta: float = 0.0, ratio: float = 1.0) -> Callable:
    """A lossy rule for greedy decoding: a guess stands if it is nearly the likeliest token.

    It must be one of the k likeliest, with p >= ratio * (the largest p) - delta: TensorRT-LLM has
    a delta, proposals for vLLM a ratio. The longest path stands, and the likeliest token follows.
    With top_k = 1 (or delta = 0 and ratio = 1), it is greedy decoding, if no two tokens tie.
    Raises ValueError if top_k < 1, delta < 0, or ratio is not in [0, 1].
    """
    if not (top_k >= 1 and delta >= 0 and 0 <= ratio <= 1):
        raise ValueError(
            f"top_k is {top_k}, delta {delta} and ratio {ratio}; they must be at least 1, at least "
            "0, and in [0, 1]"
        )

    def accept(tree, target_probs, rng):
        check_probabilities(target_probs)
        p, rows = target_probs.numpy(), [parent + 1 for parent in tree.parents]
        ranked = -np.sort(-p, axis=-1)
        least = np.maximum(ranked[:, :top_k][:, -1], ratio * ranked[:, 0] - delta)
        chances = p[rows, tree.tokens]
        path = longest_path(tree, chances >= least[rows], chances)
        return path, int(p[path[-1] + 1 if path else 0].argmax())

    return accept


def accept_thresholds(single: float = 1.0, total: float = 1.0) -> Callable:
    """SGLang's rule, lossy below (1, 1): one coin u for all the children of a node.

    The first child stands whose p >= single, or whose p and its earlier siblings' together come to
    u * total. If none does, the next token is drawn from p without them. At (1, 1), each child x
    stands with probability p(x), and nothing is lost as long as siblings differ. q is not read.
    Raises ValueError unless both are above 0 and at most 1.
    """
    if not (0 < single <= 1 and 0 < total <= 1):
        raise ValueError(f"single is {single}, total {total}; both must be in (0, 1]")

    def accept(tree, target_probs, rng):
        check_probabilities(target_probs)
        p, children = target_probs.numpy(), tree.children
        node, path = -1, []
        while children[node + 1]:
            row, below = p[node + 1], children[node + 1]
            tokens = [tree.tokens[child] for child in below]
            upto = np.minimum(row[tokens].cumsum() / total, 1.0)  # of all coins u
            upto[np.maximum.accumulate(row[tokens] >= single)] = 1.0
            stands = rng.categorical(np.diff(upto, prepend=0.0, append=1.0))
            if stands == len(below):  # none of them
                tried = np.isin(range(len(row)), tokens)
                return path, rng.categorical(residual(row, row * tried))
            node = below[stands]
            path.append(node)
        return path, rng.categorical(p[node + 1])

    return accept


def accept_mixture(weight: float) -> Callable:
    """A lossy rule: accept_tree, with w p + (1 - w) q in the place of p wherever there is a guess.

    weight is w: at 1 nothing is lost, at 0 every drawn guess stands. The token is off by 1 - w
    times the total variation between p and q, and no rule that accepts as much of one drawn guess
    is off by less (DIVERSED, arXiv 2604.07622). Raises ValueError unless w is in [0, 1].
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
