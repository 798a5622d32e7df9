"""Guesses that branch: their values, the mask of a pass over them, the cache of one path.

A `Tree` is what a `Proposer` guesses for a text. A pass over the current token and a tree adds an
entry for each; `keep_path` leaves those of the path that was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nanogpt.cache import KVCache, first
from nanogpt.generate import Generation, Round, Text
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling

T = TypeVar("T")


@dataclass(frozen=True)
class Tree:
    """Guesses that branch: each node is a token that may follow its parent.

    tokens (N); parents (N), each before its children, -1 being the current token (a chain has
    -1, 0, 1, …); q (N, V): what each token was drawn from, GIVEN its earlier siblings (one-hot for
    a token that was not drawn).
    """

    tokens: list[int]
    parents: list[int]
    q: Tensor

    @classmethod
    def chain(cls, tokens: list[int], q: Tensor) -> Tree:
        """The tree in which each token follows the one before it."""
        return cls(tokens, list(range(-1, len(tokens) - 1)), q)

    @classmethod
    def empty(cls, vocab_size: int) -> Tree:
        """The tree of no guesses."""
        return cls([], [], torch.empty(0, vocab_size, dtype=torch.float64))

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    def cut(self, n: int) -> Tree:
        """Its first n nodes, at least 0; parents stay, as they come before their children."""
        n = max(n, 0)
        return Tree(self.tokens[:n], self.parents[:n], self.q[:n])

    @property
    def children(self) -> list[list[int]]:
        """The nodes after the current token, then after node 0, 1, …; siblings in their order."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found


@dataclass(frozen=True)
class TreeRound(Round):
    """What one target pass over a tree of candidates did.

    parents (K): of each candidate; path: the accepted nodes from the root down.
    """

    parents: list[int]
    path: list[int]

    @property
    def n_examined(self) -> int:
        """How many levels were examined: those accepted, and the next if there is one."""
        last = self.path[-1] if self.path else -1
        return self.n_accepted + 1 if last in self.parents else self.n_accepted


def side_by_side(streams: Sequence[Tensor], layers: Sequence[int]) -> Tensor:
    """The streams (..., C) after these blocks, from 1, one beside the other: (..., n C)."""
    return torch.cat([streams[layer - 1] for layer in layers], dim=-1)


@dataclass(frozen=True)
class ReadGeneration(Generation):
    """A Generation, and how many passes only filled the cache, for a draft that looks at it."""

    prefills: int


class ReadText(Text):
    """A text for drafts that look at what the target made of it, or remember what they have read.

    hidden (P, C): of the tokens in the cache, None where the decoder does not keep it; prefills:
    the passes that only read. The arguments and the errors are those of Text.
    """

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.hidden: Tensor | None = None
        self.prefills = 0
        self.memories: dict[int, tuple] = {}

    def restart_if_full(self) -> None:
        """Text's own; what was made of the old context goes."""
        super().restart_if_full()
        if self.past_kvs is None:
            self.hidden = None

    @torch.no_grad()
    def read(self, layers: Sequence[int] | None = None) -> None:
        """Read all but the current token, in a pass of its own: for drafts that look at it first.

        `hidden` then holds what `lm_head` reads, or with `layers` the streams after these
        blocks (P, n C).
        """
        if unread := self.unread:
            whole = self.past_kvs is None  # a part of the context is no use to a draft
            idx = torch.tensor([unread], device=self.target.device)
            streams, self.past_kvs = self.target.states(idx, past_kvs=self.past_kvs)
            seen = side_by_side(streams, layers) if layers else self.target.ln_f(streams[-1])
            self.hidden = seen[0] if whole else None
            self.prefills += 1

    def memory(self, draft, new: Callable[[], T]) -> T:
        """What `draft` remembers of this text: `new()` at first, and gone when the text is."""
        known, memory = self.memories.get(id(draft), (None, None))
        if known is not draft:  # it is kept as well, so that nothing else gets its id
            self.memories[id(draft)] = draft, memory = draft, new()
        return memory

    def take(self, done: Round, past_kvs: KVCache, hidden: Tensor | None = None) -> None:
        """Add a round's tokens, the cache that goes with them, and the hidden states of that."""
        super().take(done, past_kvs)
        self.hidden = hidden

    def generation(self) -> ReadGeneration:
        """The new tokens and their trace."""
        return ReadGeneration(self.tokens[self.n_prompt :], self.rounds, self.prefills)


class Proposer:
    """What guesses a tree for a text, or looks at what the target made of it.

    reads: whether it looks at the text's cache or hidden states, so that all of the text is read
    before it is asked. layers: after which blocks, from 1, the streams that it wants in place of
    the hidden states. target: the one that it guesses for, if that is a target of its own.
    """

    vocab_size: int
    reads: bool = False
    layers: Sequence[int] | None = None
    target: GPTLanguageModel | None = None

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree of guesses after the text's last token, at most `most` deep."""
        raise NotImplementedError


def tree_mask(parents: Sequence[int], P: int) -> Tensor:
    """(N+1, P+N+1) bool: the current token and the nodes, after P cached tokens.

    Each row may attend to the cache, to itself and to its ancestors. Its sum less one is the
    token's position: how many tokens come before it on its own path.
    """
    N = len(parents)
    mask = np.zeros((N + 1, P + N + 1), dtype=bool)
    mask[0, : P + 1] = True  # the current token sees the cache and itself
    for row, parent in enumerate(parents, start=1):
        mask[row] = mask[parent + 1]  # whatever its parent sees
        mask[row, P + row] = True
    return torch.from_numpy(mask)


@singledispatch
def select(kvs: KVCache, slots: Sequence[int]) -> KVCache:
    """The entries in these slots, moved together in this order."""
    assert isinstance(kvs, tuple)  # an object registers its own
    stay = torch.tensor(slots, device=kvs[0][0][0].device)
    return tuple(
        tuple((k.index_select(1, stay), v.index_select(1, stay)) for k, v in layer) for layer in kvs
    )


def keep_path(new_kvs: KVCache, path: Sequence[int], position: int) -> KVCache:
    """The cache after a tree's round: the entries up to the current token's, and the path's.

    A pass over the current token and a tree adds an entry for each: the current token's, then those
    of the nodes in their order. `path` are the accepted nodes from the root down; their entries
    move together, so that slots are positions again.
    """
    nodes = position + 1  # node 0's slot
    if list(path) == list(range(len(path))):  # they stand together already
        return first(new_kvs, nodes + len(path))
    return select(new_kvs, [*range(nodes), *(nodes + node for node in path)])
