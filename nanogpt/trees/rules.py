"""Rules that accept or reject the guesses of a tree, or of a chain as a whole.

Like `accept_reject`, each takes probabilities and a RandomSource and nothing else, so that it can
be run down every branch: what it does to the distribution of the output is computed, not believed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from nanogpt.sampling import RandomSource, check_probabilities
from nanogpt.speculative import residual
from nanogpt.trees.tree import Tree


def accept_tree(tree: Tree, target_probs: Tensor, rng: RandomSource) -> tuple[list[int], int]:
    """The accepted nodes from the root down, and the token that the target adds after them.

    target_probs (N+1, V): p after the current token, then after node 0, 1, … The children of a
    node are tried in order, each against what its rejected siblings left of p: recursive rejection
    sampling (Jeon et al. 2024, arXiv 2402.14160; Miao et al. 2024, SpecInfer, VerifyStochastic in
    algorithm 2). One rule for siblings drawn with replacement, without, and not drawn at all: the
    difference is in the tree's q.
    Raises ValueError if a distribution is none, or a node has q = 0.
    """
    p, q, children = target_probs.numpy(), tree.q.numpy(), tree.children
    check_probabilities(np.concatenate([p, q]))
    path: list[int] = []
    node = -1
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


def prefix_chances(
    candidates: Sequence[int], draft_probs: Tensor, target_probs: Tensor
) -> list[float]:
    """P_0 … P_K: with what chance accept_blockwise keeps the first i candidates, or more.

    draft_probs (K, V) and target_probs (K+1, V) are as in accept_reject. P_0 = 1, then
    P_i = min(1, P_i-1 p/q): the chance given the first i candidates, averaged over those after them
    and over the coins (Sun et al. 2024, arXiv 2403.10444). So, averaged over drawn blocks,
    sum(prefix_chances(…)) is the number of tokens that a block emits, without tossing a coin.
    Raises ValueError if a distribution is none, or a candidate has q = 0.
    """
    p, q, chances = target_probs.numpy(), draft_probs.numpy(), [1.0]
    check_probabilities(p)
    check_probabilities(q)
    for i, token in enumerate(candidates):
        if q.item(i, token) == 0:
            raise ValueError(
                f"candidate {token} at index {i} has q = 0: the draft returned a token that it "
                "says it cannot draw; return the q that the token was drawn from"
            )
        chances.append(min(1.0, chances[i] * p.item(i, token) / q.item(i, token)))
    return chances


def accept_blockwise(
    candidates: Sequence[int], draft_probs: Tensor, target_probs: Tensor, rng: RandomSource
) -> list[int]:
    """The tokens that the round emits, judged as a block: more of them than accept_reject's.

    draft_probs (K, V) and target_probs (K+1, V) are as in accept_reject, and so is the distribution
    of what is emitted. With P_i of prefix_chances, and S_i, the sum of max(0, P_i p - q) after
    candidate i, the last i with u_i <= S_i / (S_i + 1 - P_i) counts, wherever the candidates before
    it failed (Sun et al. 2024, arXiv 2403.10444). Coins are tossed from the last candidate back, so
    that the first one that falls right decides. K may depend on the candidates before the last:
    with a policy that chooses before each draw, nothing changes, for what is drawn next follows q
    given its prefix, and the argument needs no more.
    Raises ValueError if a distribution is none, or a candidate has q = 0.
    """
    joint = prefix_chances(candidates, draft_probs, target_probs)  # P_0 … P_K
    p, q, K = target_probs.numpy(), draft_probs.numpy(), len(candidates)
    if rng.bernoulli(joint[K]):
        return [*candidates, rng.categorical(p[K])]
    above = np.maximum(np.array(joint[:K])[:, None] * p[:K] - q, 0)
    excess = above.sum(axis=-1).tolist()  # S_0 … S_K-1
    for i in range(K - 1, -1, -1):
        off = excess[i] + (1 - joint[i])
        if i == 0 or rng.bernoulli(excess[i] / off if off > 0 else 1.0):
            break
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
