"""Trees grown from any draft that has q, and fixed trees of the most valuable nodes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.generate import Draft, Proposer, Text, Tree
from nanogpt.sampling import RandomSource, Sampling


class Grown(Proposer):
    """Grows trees from a draft with get_probs: widths[d] children for every node at depth d.

    siblings: "with" replacement, "without", or "fixed" (the draft's likeliest ones, not drawn,
    whatever the sampling).
    Raises ValueError for a width below 1, or another word.
    """

    def __init__(self, draft: Draft, widths: Sequence[int], siblings: str = "without"):
        if siblings not in ("with", "without", "fixed"):
            raise ValueError(f"siblings is {siblings!r}; use 'with', 'without' or 'fixed'")
        if not widths or any(not isinstance(w, int) or w < 1 for w in widths):
            raise ValueError(f"widths is {widths!r}; it takes a whole number from 1 per depth")
        self.draft, self.widths, self.siblings = draft, widths, siblings
        self.vocab_size = draft.vocab_size
        self.new = draft.fresh if isinstance(draft, Draft) else lambda: draft
        self.one_hot = torch.eye(draft.vocab_size, dtype=torch.float64)

    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree of depth `most` at most, level by level. q (N, V) is given earlier siblings."""
        tokens, parents, rows = [], [], []
        level, own = [(-1, text.tokens)], text.memory(self, self.new)
        for width in self.widths[:most]:
            below = []
            for node, context in level:
                q = own.get_probs(context)
                for token, row in self.pick(q, width, sampling, rng):
                    below.append((len(tokens), [*context, token]))
                    tokens.append(token)
                    parents.append(node)
                    rows.append(row)
            level = below
        q = torch.stack(rows) if rows else torch.empty(0, self.vocab_size).double()
        return Tree(tokens, parents, q)

    def pick(
        self, q: Tensor, width: int, sampling: Sampling, rng: RandomSource
    ) -> list[tuple[int, Tensor]]:
        """Up to `width` siblings, and the q (V,) that each was drawn from, given those before."""
        if self.siblings == "fixed":
            order = q.argsort(descending=True, stable=True)[:width].tolist()
            return [(token, self.one_hot[token]) for token in order if q[token] > 0]
        q, picked = sampling.of_probs(q), []
        while len(picked) < width:
            token = rng.categorical(q)
            picked.append((token, q))
            if self.siblings == "without":
                left = q * (1 - self.one_hot[token])
                if not left.sum() > 0:  # every token that it could draw is there
                    break
                q = left / left.sum()
        return picked


def sparse_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> tuple[list[int], list[int]]:
    """The parents and ranks (from 0) of a tree of `nodes` nodes, the most valuable ones.

    accuracies[d][r]: how often the token at depth d was the guess of rank r. A node's value is the
    product of the accuracies on its path: how likely the whole path is right, if depths were
    independent. From no node on, the best next sibling or first child of those chosen is added
    (Cai et al. 2024, Medusa); where accuracies fall with the rank, no other tree of as many
    nodes has a larger sum. Nodes come in the order in which they were added, so that the first n
    are the tree of n nodes; fewer than asked for if there are no more.
    Raises ValueError for fewer than 1 node, or a depth without accuracies.
    """
    if nodes < 1 or not accuracies or not all(len(row) for row in accuracies):
        raise ValueError(f"{nodes} nodes of {accuracies!r}; give 1 or more, of 1 or more depths")
    parents, ranks = [], []
    edge = [(-accuracies[0][0], (0,), -1, 1.0)]  # minus its value, path, parent, parent's value
    while edge and len(parents) < nodes:
        value, path, parent, above = heapq.heappop(edge)
        sibling = (*path[:-1], path[-1] + 1), parent, above
        child = (*path, 0), len(parents), -value
        for new, before, base in (sibling, child):
            row = accuracies[len(new) - 1] if len(new) <= len(accuracies) else []
            if new[-1] < len(row):
                heapq.heappush(edge, (-base * row[new[-1]], new, before, base))
        parents.append(parent)
        ranks.append(path[-1])
    return parents, ranks


def path_values(
    accuracies: Sequence[Sequence[float]], parents: Sequence[int], ranks: Sequence[int]
) -> list[float]:
    """Of each node of such a tree, the product of the accuracies on its path."""
    values, depths = [], []
    for parent, rank in zip(parents, ranks, strict=True):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        values.append((values[parent] if parent >= 0 else 1.0) * accuracies[depths[-1]][rank])
    return values
