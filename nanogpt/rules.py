"""Rules that accept or reject the guesses of a tree, or of a chain as a whole.

Like `accept_reject`, each takes probabilities and a RandomSource and nothing else, so that it can
be run down every branch: what it does to the distribution of the output is computed, not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nanogpt.generate import Tree
from nanogpt.sampling import RandomSource, check_probabilities
from nanogpt.speculative import residual


def accept_tree(tree: Tree, target_probs: Tensor, rng: RandomSource) -> tuple[list[int], int]:
    """The accepted nodes from the root down, and the token that the target adds after them.

    target_probs (N+1, V): p after the current token, then after node 0, 1, … The children of a
    node are tried in order, each against what its rejected siblings left of p (Miao et al. 2024,
    SpecInfer, VerifyStochastic in algorithm 2). One rule for siblings drawn with replacement,
    without, and not drawn at all: the difference is in the tree's q.
    Raises ValueError if a distribution is none, or a node has q = 0.
    """
    p, q, children = target_probs.numpy(), tree.q.numpy(), tree.children
    check_probabilities(np.concatenate([p, q]))
    node, path = -1, []
    while True:
        left = p[node + 1]
        for child in children[node + 1]:
            token = tree.tokens[child]
            if q[child, token] == 0:
                raise ValueError(
                    f"token {token} of node {child} has q = 0: the draft returned a token that it "
                    "says it cannot draw; return the q that it was drawn from, given its siblings"
                )
            if rng.bernoulli(min(1.0, left[token] / q[child, token])):
                break
            left = residual(left, q[child])
        else:
            return path, rng.categorical(left)
        node = child
        path.append(child)


def accept_blockwise(
    candidates: Sequence[int], draft_probs: Tensor, target_probs: Tensor, rng: RandomSource
) -> list[int]:
    """The tokens that the round emits, judged as a block: more of them than accept_reject's.

    draft_probs (K, V) and target_probs (K+1, V) are as in accept_reject, and so is the distribution
    of what is emitted. With P_i, how likely the target is to have come as far as candidate i (never
    above 1), and S_i, what p then has in excess of q, the last i with u_i <= S_i / (S_i + 1 - P_i)
    counts, wherever the candidates before it failed (Sun et al. 2024, arXiv 2403.10444). Coins are
    tossed from the last candidate back, so that the first one that falls right decides. K may
    depend on the candidates before the last: with a policy that chooses before each draw, nothing
    changes, for what is drawn next follows q given its prefix, and the argument needs no more.
    Raises ValueError if a distribution is none, or a candidate has q = 0.
    """
    p, q, K = target_probs.numpy(), draft_probs.numpy(), len(candidates)
    check_probabilities(p)
    check_probabilities(q)
    joint = [1.0]  # P_0 … P_K
    for i, token in enumerate(candidates):
        if q.item(i, token) == 0:
            raise ValueError(
                f"candidate {token} at index {i} has q = 0: the draft returned a token that it "
                "says it cannot draw; return the q that the token was drawn from"
            )
        joint.append(min(1.0, joint[i] * p.item(i, token) / q.item(i, token)))
    if rng.bernoulli(joint[K]):
        return [*candidates, rng.categorical(p[K])]
    above = np.maximum(np.array(joint[:K])[:, None] * p[:K] - q, 0)
    excess = above.sum(axis=-1).tolist()  # S_0 … S_K-1
    for i in range(K - 1, -1, -1):
        off = excess[i] + (1 - joint[i])
        if i == 0 or rng.bernoulli(excess[i] / off if off > 0 else 1.0):
            left = above[i] / excess[i] if excess[i] > 0 else p[i]  # as in residual
            return [*candidates[:i], rng.categorical(left)]


def accept_traversal(tree: Tree, target_probs: Tensor, rng: RandomSource) -> tuple[list[int], int]:
    """The accepted path and the token after it, a tree's leaves judged first.

    tree and target_probs (N+1, V) are as in accept_tree. What accept_blockwise is to accept_reject:
    a leaf is kept, with all before it, with the chance that the target came as far; a rejected one
    is taken away, and its parent's p and chance become what it left of them. On a chain it is
    accept_blockwise (traversal verification, Weng et al. 2025, arXiv 2505.12398).
    Raises ValueError if a distribution is none, or a node has q = 0.
    """
    p, q, children = list(target_probs.numpy()), tree.q.numpy(), tree.children
    check_probabilities(np.concatenate([p, q]))
    joint = {-1: 1.0}  # P of each node that was come to
    while True:
        node, path = -1, []
        while children[node + 1]:
            child = children[node + 1][0]
            token = tree.tokens[child]
            if q[child, token] == 0:
                raise ValueError(
                    f"token {token} of node {child} has q = 0: the draft returned a token that it "
                    "says it cannot draw; return the q that it was drawn from, given its siblings"
                )
            if child not in joint:
                joint[child] = min(1.0, joint[node] * p[node + 1][token] / q[child, token])
            node = child
            path.append(node)
        if node == -1 or rng.bernoulli(joint[node]):
            return path, rng.categorical(p[node + 1])
        parent = tree.parents[node]
        children[parent + 1].pop(0)
        before = joint[parent] * p[parent + 1]
        left = (before - q[node]).clip(0).sum()
        off = left + 1 - joint[parent]
        if left > 0:
            p[parent + 1] = residual(before, q[node])
        joint[parent] = min(1.0, left / off) if off > 0 else 1.0


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
