"""Trees of the most promising guesses, grown by one heap, from whatever has q.

Each guess goes where it is likeliest to be kept, as far as that is known before it is made. A guess
that was made stays. So the tree may follow what was drawn, and yet its output is the target's own;
and one heap may grow the trees of several texts at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nanogpt.generate import check_whole
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft, check_draft
from nanogpt.trees.tree import Proposer, ReadText, Tree

Sure = Callable[[Tensor], float]  # of q (V,): how likely a guess from it is kept


class Root(NamedTuple):
    """Where a tree begins: after(path) is q (V,) after a path of guesses, at most `depth` long."""

    after: Callable[[list[int]], Tensor]
    depth: int
    sampling: Sampling
    rng: RandomSource


def best_first(
    roots: Sequence[Root], nodes: int, vocab_size: int, sure: Sure | None = None
) -> list[Tree]:
    """A tree for each root, `nodes` in all: each guess is made where it is likeliest to be kept.

    With `sure`, guesses are drawn, siblings without replacement, and sure(q) says how likely one is
    kept, before it is drawn. Without, and for a text at temperature 0, each is the likeliest token
    that is left, its q is one-hot, and its chance is its own q: DDTree (arXiv 2604.12989).
    """
    drawn = [sure is not None and root.sampling.temperature > 0 for root in roots]
    made = [([], [], []) for _ in roots]  # tokens, parents, rows of q
    waiting, tick = [], itertools.count()  # of equal chances, the first that waited

    def wait(i: int, parent: int, path: list[int], reached: float, q: Tensor) -> None:
        """One more guess after this path waits to be made: all that is known of it is q."""
        kept = sure(q) if drawn[i] else float(q.max())
        if kept > 0:
            entry = -reached * kept, next(tick), i, parent, path, reached, q, kept
            heapq.heappush(waiting, entry)

    def open_up(i: int, node: int, path: list[int], reached: float) -> None:
        """The first child of a node waits."""
        if len(path) < roots[i].depth:
            q = roots[i].after(path)
            offered = roots[i].sampling.of_probs(q) if drawn[i] else q
            wait(i, node, path, reached, offered)

    for i in range(len(roots)):
        open_up(i, -1, [], 1.0)
    for _ in range(nodes):
        if not waiting:
            break
        _, _, i, parent, path, reached, q, kept = heapq.heappop(waiting)
        token = roots[i].rng.categorical(q) if drawn[i] else int(q.argmax())
        tokens, parents, rows = made[i]
        tokens.append(token)
        parents.append(parent)
        only = one_hot(torch.tensor(token), vocab_size).double()
        rows.append(q if drawn[i] else only)
        open_up(i, len(tokens) - 1, [*path, token], reached * kept)
        left = q.clone()  # for the next sibling, if this one is rejected
        left[token] = 0
        if left.any():
            wait(i, parent, path, reached * (1 - kept), left / left.sum())
    return [
        Tree(*tree, torch.stack(rows)) if rows else Tree.empty(vocab_size) for *tree, rows in made
    ]


class Growing(Proposer):
    """Proposes a tree of `nodes` guesses, grown by best_first from its root; sure as there.

    Raises ValueError unless nodes is a whole number from 1.
    """

    def __init__(self, vocab_size: int, nodes: int, sure: Sure | None = None):
        check_whole(1, nodes=nodes)
        self.vocab_size, self.nodes, self.sure = vocab_size, nodes, sure

    def root(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Root:
        """Where the text's next tree begins; it may be `most` deep."""
        raise NotImplementedError

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree at most `most` deep, q (N, V)."""
        root = self.root(text, most, sampling, rng)
        return best_first([root], self.nodes, self.vocab_size, self.sure)[0]


class BestFirst(Growing):
    """The most promising guesses of a `Draft`."""

    def __init__(self, draft: Draft, nodes: int, sure: Sure | None = None):
        check_draft(draft)
        super().__init__(draft.vocab_size, nodes, sure)
        self.draft = draft

    def root(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Root:
        """The draft is asked about the text and the path."""
        own = text.memory(self, self.draft.fresh)
        return Root(lambda path: own.get_probs([*text.tokens, *path]), most, sampling, rng)


class BlockTree(Growing):
    """The most promising guesses of a block drafter, as deep as its block, from one pass of it.

    block: a BlockDraft. If it is told the token before (markov), so is a node of its parent's
    (JetSpec's head, arXiv 2606.18394, is told the whole path); otherwise all nodes of a depth have
    the same q, as in DDTree. Raises ValueError as Growing does.
    """

    reads = True  # the hidden states

    def __init__(self, block, nodes: int, sure: Sure | None = None):
        super().__init__(block.vocab_size, nodes, sure)
        self.block, self.layers = block, block.layers

    @torch.no_grad()
    def root(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Root:
        """The drafter's pass is made now, and q of each place after each token it may follow.

        (K V V) numbers: nothing for 65 letters. With many tokens, ask for the rows one by one.
        """
        if text.hidden is None or most < 1:
            return Root(lambda path: None, 0, sampling, rng)
        block, current = self.block, text.tokens[-1]
        before = torch.tensor([current], device=text.hidden.device)
        hidden = block.drafter(block.seen(text)[None], before)[0]  # (K, C)
        logits = block.lm_head(hidden)[:, None]  # (K, 1, V)
        if block.markov:
            tokens = torch.arange(self.vocab_size, device=text.hidden.device)
            logits = block.drafter.corrected(logits, tokens)
        q = Sampling().probs(logits)  # (K, V, V), or (K, 1, V) where nobody is told

        def after(path: list[int]) -> Tensor:
            row = [current, *path][-1] if block.markov else 0
            return q[len(path), row]

        return Root(after, min(block.K, most), sampling, rng)
