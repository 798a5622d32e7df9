"""Trees grown from any draft that has q, and fixed trees of the most valuable nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft, check_draft
from nanogpt.trees.tree import Proposer, ReadText, Tree


class Grown(Proposer):
    """Grows trees from a `Draft`: widths[d] children for every node at depth d.

    siblings: "with" replacement, "without", or "fixed" (the draft's likeliest ones, not drawn,
    whatever the sampling).
    Raises ValueError for a width below 1, or another word.
    """

    def __init__(self, draft: Draft, widths: Sequence[int], siblings: str = "without"):
        if siblings not in ("with", "without", "fixed"):
            raise ValueError(f"siblings is {siblings!r}; use 'with', 'without' or 'fixed'")
        if not widths or any(not isinstance(w, int) or w < 1 for w in widths):
            raise ValueError(f"widths is {widths!r}; it takes a whole number from 1 per depth")
        check_draft(draft)
        self.draft, self.widths, self.siblings = draft, widths, siblings
        self.vocab_size = draft.vocab_size

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree of depth `most` at most, level by level. q (N, V) is given earlier siblings."""
        tokens, parents, rows = [], [], []
        level, own = [(-1, text.tokens)], text.memory(self, self.draft.fresh)
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
            kept = [token for token in order if q[token] > 0]
            return [(token, one_hot(torch.tensor(token), len(q)).double()) for token in kept]
        q, picked = sampling.of_probs(q), []
        while len(picked) < width:
            token = rng.categorical(q)
            picked.append((token, q))
            if self.siblings == "without" and len(picked) < width:
                left = q.clone()
                left[token] = 0
                if not left.sum() > 0:  # every token that it could draw is there
                    break
                q = left / left.sum()
        return picked


def path_value(accuracies: Sequence[Sequence[float]], path: Sequence[int]) -> float:
    """How likely a path is right if depths were independent: the product of its accuracies.

    path: of each node from the root down, its rank among its siblings, from 0.
    """
    return math.prod(accuracies[depth][rank] for depth, rank in enumerate(path))


def paths_of(parents: Sequence[int], ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each node, its path: the ranks from the root down to its own."""
    paths = []
    for parent, rank in zip(parents, ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths


def tree_of(paths: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Of each path's last node, the parent and the rank; every path comes after its beginnings."""
    numbers = {path: node for node, path in enumerate(paths)}
    parents = [numbers.get(path[:-1], -1) for path in paths]
    return parents, [path[-1] for path in paths]


def sparse_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> tuple[list[int], list[int]]:
    """The parents and ranks (from 0) of a tree of `nodes` nodes, the most valuable ones.

    accuracies[d][r]: how often the token at depth d was the guess of rank r. A node's value is its
    path's (`path_value`). From no node on, the best next sibling or first child of those chosen is
    added (Cai et al. 2024, Medusa); where accuracies fall with the rank, no other tree of as many
    nodes has a larger sum. Nodes come in the order in which they were added, so that the first n
    are the tree of n nodes; fewer than asked for if there are no more.
    Raises ValueError for fewer than 1 node, or a depth without accuracies.
    """
    sizes, paths = [len(row) for row in accuracies], []
    if nodes < 1 or not sizes or not all(sizes):
        raise ValueError(f"{nodes} nodes of {accuracies!r}; give 1 or more, of 1 or more depths")
    while len(paths) < min(nodes, sum(np.cumprod(sizes))):
        new = {(0,)}  # the frontier: what may come next
        for path in paths:
            new |= {(*path[:-1], path[-1] + 1), (*path, 0)}
        new = {p for p in new if len(p) <= len(sizes) and p[-1] < sizes[len(p) - 1]}
        new -= {*paths}
        paths.append(min(new, key=lambda path: (-path_value(accuracies, path), path)))
    return tree_of(paths)


def counted_tree(rows: Sequence[Sequence[int]], nodes: int) -> tuple[list[int], list[int]]:
    """The parents and ranks (from 0) of the `nodes` paths that came true most often.

    rows: of each place where a round could begin, the rank that the token which came had among the
    guesses of depth 0, 1, …: whole paths are counted, and no depth is taken for independent. No
    other tree of as many nodes would have kept more of these rows. A parent comes true wherever its
    child does, so it stands before it, and the first n nodes are the tree of n nodes; fewer than
    asked for if no more came true.
    Raises ValueError for fewer than 1 node, or no row.
    """
    if nodes < 1 or not len(rows):
        raise ValueError(f"{nodes} nodes of {len(rows)} rows; give 1 or more of each")
    counts = Counter(tuple(row[:depth]) for row in rows for depth in range(1, len(row) + 1))
    return tree_of(sorted(counts, key=lambda path: (-counts[path], len(path), path))[:nodes])
