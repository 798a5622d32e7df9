"""Drafts that ask the target itself: guess again what its last pass said after the last guesses.

Those guesses were mostly wrong (Jacobi iteration), but what was said after them may be collected in
a pool of n-grams and tried later (lookahead decoding). All q are one-hot: nothing is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import Proposer, ReadText, Tree


class JacobiDraft(Proposer):
    """Guesses a chain of m tokens: what the last pass said after each of its guesses.

    At first, and at the open end, the last token is repeated. At temperature 0 this is Jacobi
    decoding (Song et al. 2021; Santilli et al. 2023), with what is right already taken at once.
    Raises ValueError for m < 1.
    """

    def __init__(self, vocab_size: int, m: int):
        if m < 1:
            raise ValueError(f"m is {m}; guess at least 1 token")
        self.vocab_size, self.m = vocab_size, m
        self.one_hot = torch.eye(vocab_size, dtype=torch.float64)

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of min(m, most) guesses. q (m, V) is one-hot."""
        guesses, n = [], min(self.m, most)
        if text.rounds:  # row i said what comes after i guesses: those emitted are settled
            last = text.rounds[-1]
            guesses = last.target_probs.argmax(-1).tolist()[len(last.emitted) :]
        guesses += [(guesses or text.tokens)[-1]] * n
        return Tree.chain(guesses[:n], self.one_hot[guesses[:n]])


class NGramPool:
    """The n-grams seen lately, by their first token: of each, the last `most` that continue it."""

    def __init__(self, most: int):
        self.most, self.seen = most, {}

    def add(self, gram: Sequence[int]) -> None:
        """Remember the n-gram; one that is known already counts as new again."""
        after = self.seen.setdefault(gram[0], {})
        after.pop(tuple(gram[1:]), None)
        after[tuple(gram[1:])] = None
        if len(after) > self.most:
            del after[next(iter(after))]  # the oldest

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What may follow the token, the latest first."""
        return list(self.seen.get(token, ()))[::-1]


@dataclass
class Window:
    """A text's lookahead window: rows of guesses, and the pool of n-grams that they left.

    rows[j][i] is the guess for the place i + j after the current token, rows[0][0] being that token
    itself. asked: after how many rounds the last tree was; ends: its nodes of the last row.
    """

    rows: list[list[int]]
    pool: NGramPool
    asked: int | None = None
    ends: list[int] | None = None


class LookaheadDraft(Proposer):
    """Lookahead decoding (Fu et al. 2024): a window of W columns, n-grams of N tokens, G at a time.

    Row 0 of the window continues the text; below each of its tokens hangs a column of N - 2 more,
    each what a former pass said after the one above. What this pass says after the last row makes
    W n-grams, which go to the pool. The window and the pool's n-grams after the current token are
    one tree, where equal beginnings are one path; all of it may be accepted. (The authors' code
    fills its window row by row, from random tokens of the prompt, and verifies the n-grams alone.)
    Raises ValueError unless W >= 1, N >= 2 and G >= 0.
    """

    def __init__(self, vocab_size: int, W: int = 5, N: int = 4, G: int = 5):
        if W < 1 or N < 2 or G < 0:
            raise ValueError(f"W, N, G are {W}, {N}, {G}; it takes W >= 1, N >= 2 and G >= 0")
        self.vocab_size, self.W, self.N, self.G = vocab_size, W, N, G
        self.one_hot = torch.eye(vocab_size, dtype=torch.float64)

    def window(self, text: ReadText) -> Window:
        """A new window for the text: its last tokens, and an empty pool."""
        size = self.W * (self.N - 1)
        fill = (text.tokens * size)[-size:]
        rows = [fill[at : at + self.W] for at in range(0, size, self.W)]
        return Window(rows, NGramPool(self.G))

    def move(self, window: Window, text: ReadText) -> None:
        """A step on: what the last pass said after the last row is the new last row."""
        if window.asked == len(text.rounds) - 1:  # the last round verified it, or its beginning
            said = text.rounds[-1].target_probs.argmax(-1).tolist()
            verified = itertools.takewhile(lambda node: node + 1 < len(said), window.ends)
            new = [said[node + 1] for node in verified]
            for gram in zip(*window.rows, new, strict=False):  # columns that were cut made none
                window.pool.add(gram)
            window.rows = [*window.rows[1:], new + window.rows[-1][len(new) :]]
        window.rows[0][0] = text.tokens[-1]

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """The window and the n-grams, cut at depth `most`. q (nodes, V) is one-hot."""
        window = text.memory(self, lambda: self.window(text))
        self.move(window, text)
        nodes: dict[tuple[int, int], int] = {}  # (parent, token): node

        def grown(parent: int, token: int) -> int:
            return nodes.setdefault((parent, token), len(nodes))

        row = [-1]
        for token in window.rows[0][1 : most + 1]:
            row.append(grown(row[-1], token))
        for depth, below in enumerate(window.rows[1:], start=1):
            deep = row[: max(0, most + 1 - depth)]
            row = [grown(above, token) for above, token in zip(deep, below, strict=False)]
        for gram in window.pool.after(text.tokens[-1]):
            node = -1
            for token in gram[:most]:
                node = grown(node, token)
        window.asked, window.ends = len(text.rounds), row
        tokens = [token for _, token in nodes]
        return Tree(tokens, [parent for parent, _ in nodes], self.one_hot[tokens])
