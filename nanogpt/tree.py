"""Decoding with trees of guesses: one pass checks them all, and one path is kept.

Everything that is not a plain chain of `speculative_generate` runs in this loop: a draft that reads
the target's hidden states, one that proposes a tree, a rule that is not accept_reject.
"""

from __future__ import annotations

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
