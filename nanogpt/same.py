"""The same dice for draft and target: a text that no draft can change.

Every place of a text has noise of its own, made from a seed and the place's index alone. A token is
the winner of a race, argmax(log p + noise), which is a draw from p. The draft races its q with the
same noise, and a guess stands if, and only if, it is what the target draws (Daliri et al. 2024,
arXiv 2408.07978). So the text is token for token that of plain decoding.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import Tensor

from nanogpt.generate import Text
from nanogpt.sampling import RandomSource, Sampling, Uniforms, check_probabilities
from nanogpt.speculative import CHAIN, Draft, check_draft, draft_chain
from nanogpt.trees.loop import TREE, propose_tree
from nanogpt.trees.tree import Proposer, ReadText, Tree


def noise(seed: int, index: int, vocab_size: int) -> np.ndarray:
    """g (V,): a Gumbel number for each token that may stand at `index`, from seed and index alone.

    PCG64 makes them, so they are the same in every decoder, on every machine. The index is a
    spawn_key: [seed, 0] as a seed would be seed itself, whose numbers toss other coins.
    """
    return Uniforms.generator(SeedSequence(seed, spawn_key=(index,))).gumbel(size=vocab_size)


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


def at_one_place(step: Callable) -> Callable:
    """A draft step, of chains or trees, after which the target draws from the same place on.

    A draft that draws several nodes for one place (Grown, say) moves on with each, so that most are
    drawn by another place's noise: the text is the same, and fewer are kept than of Favourites.
    """

    def drawn(draft, text: Text, K: int, sampling: Sampling, rng: SameDice):
        start = rng.index
        guesses = step(draft, text, K, sampling, rng)
        rng.index = start
        return guesses

    return drawn


SAME = replace(CHAIN, draft=at_one_place(draft_chain), accept=accept_same)
SAME_TREE = replace(TREE, draft=at_one_place(propose_tree), accept=accept_same_tree)


class Favourites(Proposer):
    """A tree of the likeliest paths, by the draft's own race: for SAME_TREE, with its SameDice.

    From no node on, the best next token or sibling is added, up to `nodes`. What a token is worth
    is the softmax of sharpness · (log q + g), times what its parent is worth. Siblings share the
    noise of their place, so the k best of them are k draws without replacement (Kool et al. 2019,
    arXiv 1903.06059). The sharpness fits the shipped table: the closer q is to p, the larger.
    Raises ValueError for fewer than 1 node, or a sharpness that is not positive.
    """

    def __init__(self, draft: Draft, nodes: int, sharpness: float = 3.0):
        if not (nodes >= 1 and sharpness > 0):
            raise ValueError(
                f"nodes is {nodes} and sharpness {sharpness}; they must be at least 1, and above 0"
            )
        check_draft(draft)
        self.draft, self.nodes, self.sharpness = draft, nodes, sharpness
        self.vocab_size = draft.vocab_size

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: SameDice) -> Tree:
        """A tree at most `most` deep; q (N, V) is one-hot, for nothing judges by it."""
        own, tokens, parents = text.memory(self, self.draft.fresh), [], []
        waiting: list[tuple[float, int, int, list[int]]] = []  # (-worth, parent, token, context)

        def race(parent: int, context: list[int], worth: float) -> None:
            """All tokens that may come after `context` wait to be added."""
            depth = len(context) - len(text.tokens)
            q = sampling.of_probs(own.get_probs(context))
            came = scores(q, noise(rng.seed, rng.index + depth, self.vocab_size))
            share = np.exp(self.sharpness * (came - came.max()))
            best = (-share).argsort(kind="stable")[: self.nodes]
            for token, part in zip(best.tolist(), share[best] / share.sum(), strict=True):
                if part > 0 and depth < most:
                    heapq.heappush(waiting, (-worth * part, parent, token, context))

        race(-1, text.tokens, 1.0)
        while waiting and len(tokens) < self.nodes:
            value, parent, token, context = heapq.heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            race(len(tokens) - 1, [*context, token], -value)
        q = torch.eye(self.vocab_size, dtype=torch.float64)[tokens]
        return Tree(tokens, parents, q)
