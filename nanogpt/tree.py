"""Decoding with trees of guesses: one pass checks them all, and one path is kept.

Everything that is not a plain chain of `speculative_generate` runs in this loop: a draft that reads
the target's hidden states, one that proposes a tree, a rule that is not accept_reject.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nanogpt.cache import KVCache, keep_path
from nanogpt.generate import Generation, Round, Text, Tree
from nanogpt.model import GPTLanguageModel, side_by_side, tree_mask
from nanogpt.rules import accept_tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import check_draft

AcceptTree = Callable[[Tree, Tensor, RandomSource], tuple[list[int], int]]


class Layered(Text):
    """A text that keeps the streams after some of the target's blocks instead of its hidden states.

    layers: after which blocks, from 1; `hidden` is then (P, n C). None: a Text like any other. The
    other arguments and errors are those of Text.
    """

    def __init__(self, target, prompt_tokens, max_new_tokens, stop_token=None, layers=None):
        self.layers = layers
        super().__init__(target, prompt_tokens, max_new_tokens, stop_token)

    @torch.no_grad()
    def read(self, tokens: list[int]) -> None:
        """As Text.read, with what is kept beside the cache."""
        if self.layers is None or not tokens:
            return super().read(tokens)
        idx = torch.tensor([tokens], device=self.target.device)
        streams, self.past_kvs = self.target.states(idx)
        self.hidden = side_by_side(streams, self.layers)[0]
        self.prefills += 1


@torch.no_grad()
def verify_tree(
    target: GPTLanguageModel,
    text: Text,
    tree: Tree,
    sampling: Sampling,
    layers: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, KVCache]:
    """The target's p after the current token and after each node, from one pass.

    Returns target_probs (N+1, V), row 0 after the current token and row i+1 after node i, their
    hidden states (N+1, C), or with `layers` the streams after these blocks (N+1, n C), and the
    cache with all N+1 entries.
    """
    idx = torch.tensor([[text.tokens[-1], *tree.tokens]], device=target.device)
    mask = pos = None  # as the model has them for a chain
    if tree.parents != list(range(-1, len(tree.tokens) - 1)):
        mask = tree_mask(tree.parents, text.cache_len).to(target.device)
        pos = mask.sum(-1) - 1
    streams, new_kvs = target.states(idx, pos, text.past_kvs, mask, begun=tree.begun)
    hidden = target.ln_f(streams[-1])[0]
    seen = side_by_side(streams, layers)[0] if layers else hidden
    return sampling.probs(target.lm_head(hidden)), seen, new_kvs


class Grown:
    """Grows trees from a draft with get_probs: widths[d] children for every node at depth d.

    siblings: "with" replacement, "without", or "fixed" (the draft's likeliest ones, not drawn,
    whatever the sampling).
    Raises ValueError for a width below 1, or another word.
    """

    def __init__(self, draft, widths: Sequence[int], siblings: str = "without"):
        if siblings not in ("with", "without", "fixed"):
            raise ValueError(f"siblings is {siblings!r}; use 'with', 'without' or 'fixed'")
        if not widths or any(not isinstance(w, int) or w < 1 for w in widths):
            raise ValueError(f"widths is {widths!r}; it takes a whole number from 1 per depth")
        self.draft, self.widths, self.siblings = draft, widths, siblings
        self.vocab_size = draft.vocab_size
        self.one_hot = torch.eye(draft.vocab_size, dtype=torch.float64)

    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree of depth `most` at most, level by level. q (N, V) is given earlier siblings."""
        tokens, parents, rows = [], [], []
        level = [(-1, text.tokens)]
        for width in self.widths[:most]:
            below = []
            for node, context in level:
                q = self.draft.get_probs(context)
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


@torch.inference_mode()
def tree_generate(
    target: GPTLanguageModel,
    draft,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    accept: AcceptTree = accept_tree,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
) -> Generation:
    """The target's continuation of the prompt, with a tree of guesses a pass.

    `draft.propose(text, most, sampling, rng)` makes the tree, at most `most` deep; `accept` chooses
    a path of it and the token after. `draft.layers`, if it has any: the blocks whose streams it
    reads instead of the hidden states. The other arguments are as in speculative_generate, and with
    a lossless rule so is the distribution of the output.
    Raises ValueError for a bad request, or a draft with another vocabulary.
    """
    check_draft(draft, 1, target.config.vocab_size)
    layers = getattr(draft, "layers", None)
    text = Layered(target, prompt_tokens, max_new_tokens, stop_token, layers)
    rng = rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        tree = draft.propose(text, text.room, sampling, rng)
        p, hidden, new_kvs = verify_tree(target, text, tree, sampling, layers)
        path, token = accept(tree, p, rng)
        past_kvs = keep_path(new_kvs, path, text.cache_len)

        kept = hidden[[0, *(node + 1 for node in path)]]
        if text.hidden is not None:
            kept = torch.cat([text.hidden, kept])
        emitted = [*(tree.tokens[node] for node in path), token]
        done = Round(tree.tokens, tree.q, p, emitted, text.cache_len, tree.parents, path)
        text.take(done, past_kvs, kept)
    return text.generation()
