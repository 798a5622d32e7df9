"""The same dice for draft and target: a text that no draft can change.

Every place of a text has noise of its own, made from a seed and the place's index alone. A token is
the winner of a race, argmax(log p + noise), which is a draw from p. The draft races its q with the
same noise, and a guess stands if, and only if, it is what the target draws (Daliri et al. 2024,
arXiv 2408.07978). So the text is token for token that of plain decoding.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nanogpt.generate import Draft, Proposer, Text, Tree
from nanogpt.sampling import RandomSource, Sampling, Uniforms, check_probabilities
from nanogpt.speculative import CHAIN, More, draw_chain
from nanogpt.tree import TREE, propose_tree


def noise(seed: int, index: int, vocab_size: int) -> np.ndarray:
    """g (V,): a Gumbel number for each token that may stand at `index`, from seed and index alone.

    PCG64 makes them, so they are the same in every decoder, on every machine.
    """
    return Uniforms.generator([seed, index]).gumbel(size=vocab_size)


def scores(probs: Tensor | np.ndarray, g: np.ndarray) -> np.ndarray:
    """log p + g (V,): how far each token came in the race; -inf where p is 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probs)) + g


class SameDice(RandomSource):
    """A random source in which a number belongs to a place of the text, not to a turn.

    index: of the next token to be drawn, counted from the prompt's first: len(prompt) at the start,
    however much of the prompt is read, and wherever the window is. A draw moves it on.
    Raises ValueError if seed or index is no whole number from 0.
    """

    def __init__(self, seed: int, index: int):
        super().__init__(seed)
        if not isinstance(index, int) or index < 0:
            raise ValueError(f"index is {index!r}; it is len(prompt) where the text begins")
        self.seed, self.index = seed, index

    def categorical(self, probs: Tensor | np.ndarray, cdf: Sequence[float] | None = None) -> int:
        """The token that wins the race of this place, a draw from probs (V,); then, the next place.

        Raises ValueError unless probs are non-negative and sum to 1 within 1e-6.
        """
        if cdf is None:
            check_probabilities(probs)
        g = noise(self.seed, self.index, len(probs))
        self.index += 1
        return int(scores(probs, g).argmax())


def accept_same(
    candidates: Sequence[int], draft_probs: Tensor, target_probs: Tensor, rng: RandomSource
) -> list[int]:
    """The tokens that the round emits: the target's own draws, as far as they were guessed.

    draft_probs (K, V) and target_probs (K+1, V) are as in accept_reject; q is not read. Exact with
    any rng that no guess depends on, and with SameDice whatever the guesses are.
    Raises ValueError if a row of p that is drawn from is no distribution.
    """
    emitted = []
    for p, guess in zip(target_probs, [*candidates, None], strict=True):
        emitted.append(rng.categorical(p))
        if emitted[-1] != guess:
            return emitted


def accept_same_tree(tree: Tree, target_probs: Tensor, rng: RandomSource) -> tuple[list[int], int]:
    """The path of the target's own draws through the tree, and the first that is not in it.

    tree and target_probs (N+1, V) are as in accept_tree; q is not read.
    Raises ValueError if a row of p that is drawn from is no distribution.
    """
    children, path = tree.children, []
    while True:
        node = path[-1] if path else -1
        token = rng.categorical(target_probs[node + 1])
        guessed = [child for child in children[node + 1] if tree.tokens[child] == token]
        if not guessed:
            return path, token
        path.append(guessed[0])


def draft_same(
    draft: Draft,
    context: Sequence[int],
    K: int,
    sampling: Sampling,
    rng: SameDice,
    more: More | None = None,
) -> tuple[list[int], Tensor]:
    """What draw_chain returns; the target then draws from the same place on, with the same noise."""
    start = rng.index
    drawn = draw_chain(draft, context, K, sampling, rng, more)
    rng.index = start
    return drawn


def propose_same(
    draft: Proposer, text: Text, most: int, sampling: Sampling, rng: SameDice
) -> Tree:
    """What propose_tree returns; the target then draws from the same place on."""
    start = rng.index
    tree = propose_tree(draft, text, most, sampling, rng)
    rng.index = start
    return tree


SAME = replace(CHAIN, draft=draft_same, accept=accept_same)
SAME_TREE = replace(TREE, draft=propose_same, accept=accept_same_tree)


class Favourites(Proposer):
    """A tree of the likeliest paths, by the draft's own race: for SAME_TREE, with its SameDice.

    From no node on, the best next token or sibling is added, up to `nodes`. What a token is worth
    is the softmax of log q + g, times what its parent is worth; siblings share the noise of their
    place, so the k best are k draws without replacement (Kool et al. 2019, arXiv 1903.06059).
    Raises ValueError for fewer than 1 node.
    """

    def __init__(self, draft: Draft, nodes: int):
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}; a tree has 1 at least")
        self.draft, self.nodes, self.vocab_size = draft, nodes, draft.vocab_size
        self.new = draft.fresh if isinstance(draft, Draft) else lambda: draft

    def propose(self, text: Text, most: int, sampling: Sampling, rng: SameDice) -> Tree:
        """A tree at most `most` deep; q (N, V) is one-hot, for nothing judges by it."""
        own, tokens, parents, depths = text.memory(self, self.new), [], [], []
        waiting: list[tuple] = []  # (-worth, its parent, rank, tokens by rank, their worths)

        def race(parent: int, context: list[int], depth: int, worth: float) -> None:
            q = sampling.of_probs(own.get_probs(context))
            came = scores(q, noise(rng.seed, rng.index + depth, self.vocab_size))
            share = np.exp(came - came.max())
            order = np.argsort(-share, kind="stable")
            worths = worth * (share / share.sum())[order]
            heapq.heappush(waiting, (-worths[0], parent, 0, context, order, worths, depth))

        if most > 0:
            race(-1, text.tokens, 0, 1.0)
        while waiting and len(tokens) < self.nodes:
            value, parent, rank, context, order, worths, depth = heapq.heappop(waiting)
            if value == 0:
                break  # the draft cannot draw what is left
            tokens.append(int(order[rank]))
            parents.append(parent)
            if rank + 1 < len(order):
                nxt = (-worths[rank + 1], parent, rank + 1, context, order, worths, depth)
                heapq.heappush(waiting, nxt)
            if depth + 1 < most:
                race(len(tokens) - 1, [*context, tokens[-1]], depth + 1, -value)
        q = torch.nn.functional.one_hot(torch.tensor(tokens, dtype=torch.int64), self.vocab_size)
        return Tree(tokens, parents, q.double())
