"""Decoding with trees of guesses: one pass checks them all, and one path is kept.

Everything that is not a plain chain of `speculative_generate` runs in this loop: a draft that reads
the target's hidden states, one that proposes a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nanogpt.cache import KVCache
from nanogpt.generate import Generation, Round
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Steps, check_vocabulary
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import (
    Proposer,
    ReadText,
    Tree,
    TreeRound,
    keep_path,
    side_by_side,
    tree_mask,
)


def check_target(draft: Proposer, target: GPTLanguageModel) -> None:
    """Raise ValueError for what is no proposer, or one that guesses for another target."""
    if not hasattr(draft, "propose"):
        raise ValueError(
            f"the draft is a {type(draft).__name__} and proposes no tree; `lifted`, of "
            "nanogpt.drafts.protocol, makes its chains trees"
        )
    if draft.target is not None and draft.target.blocks is not target.blocks:
        raise ValueError("the draft guesses for a target of its own; decode with draft.target")


def propose_tree(
    draft: Proposer, text: ReadText, most: int, sampling: Sampling, rng: RandomSource
) -> Tree:
    """The draft's guesses, at most `most` deep. What it looks at is read before it is asked."""
    if draft.reads:
        text.read(draft.layers)
    return draft.propose(text, most, sampling, rng)


def with_unread(text: ReadText, tree: Tree) -> Tree:
    """All that a pass reads of the text, after the first token: what is unread comes as a chain.

    Its first token is the first unread one, or else the current one. No q: none of this is judged.
    Raises ValueError for a tree in which a parent does not come before its child.
    """
    if not all(-1 <= parent < node for node, parent in enumerate(tree.parents)):
        raise ValueError(f"parents are {tree.parents}; each node's comes before it, or is -1")
    n = len(text.unread)
    tokens = [*text.unread, text.tokens[-1], *tree.tokens][1:]
    parents = [*range(-1, n - 1), *(n + parent for parent in tree.parents)]
    return Tree(tokens, parents, tree.q)


@torch.no_grad()
def verify_tree(
    target: GPTLanguageModel,
    text: ReadText,
    tree: Tree,
    sampling: Sampling,
    layers: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, KVCache]:
    """The target's p after the current token and after each node, from one pass.

    What is unread of the text, u tokens, enters as well. Returns target_probs (N+1, V), row 0 after
    the current token and row i+1 after node i; the hidden states of all that was read (u+N+1, C),
    or with `layers` the streams after these blocks (u+N+1, n C); and the cache with all of it.
    """
    unread, whole = text.unread, with_unread(text, tree)
    idx = torch.tensor([[*unread, text.tokens[-1], *tree.tokens]], device=target.device)
    mask = pos = None  # as the model has them for a chain
    if not whole.is_chain:
        mask = tree_mask(whole.parents, text.cache_length).to(target.device)
        pos = mask.sum(-1) - 1
    streams, new_kvs = target.states(idx, pos, text.past_kvs, mask)
    hidden = target.ln_f(streams[-1])[0]
    seen = side_by_side(streams, layers)[0] if layers else hidden
    return sampling.probs(target.lm_head(hidden[len(unread) :])), seen, new_kvs


TREE = Steps(propose_tree, verify_tree, accept_tree, keep_path)


def commit(
    text: ReadText,
    tree: Tree,
    p: Tensor,
    path: list[int],
    token: int,
    past_kvs: KVCache,
    hidden: Tensor | None = None,
) -> None:
    """Add a round to the text: the tokens of the path and the one after, and what goes with them.

    p (N+1, V); past_kvs: the cache with the path in it; hidden: what verify_tree returned, None
    where no draft looks at it.
    """
    if hidden is not None:
        u = len(text.unread)
        hidden = hidden[[*range(u + 1), *(u + 1 + node for node in path)]]
        if text.hidden is not None:
            hidden = torch.cat([text.hidden, hidden])
        elif text.past_kvs is not None:  # of a part of the context: no use to a draft
            hidden = None
    emitted = [*(tree.tokens[node] for node in path), token]
    done = TreeRound(tree.tokens, tree.q, p, emitted, text.position, tree.parents, path)
    text.take(done, past_kvs, hidden)


@torch.inference_mode()
def tree_rounds(
    text: ReadText,
    draft: Proposer,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    steps: Steps = TREE,
) -> Iterator[Round]:
    """Write the text to its end; yields each round when its tokens are there.

    On a text that another loop has begun, a draft that looks at hidden states has none before the
    next restart, and does not guess.
    """
    check_target(draft, text.target)
    check_vocabulary(draft.vocab_size, text.target.config.vocab_size)
    rng = rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        tree = steps.draft(draft, text, text.room, sampling, rng)
        p, hidden, new_kvs = steps.verify(text.target, text, tree, sampling, draft.layers)
        path, token = steps.accept(tree, p, rng)
        past_kvs = steps.trim(new_kvs, path, text.position)

        commit(text, tree, p, path, token, past_kvs, hidden if draft.reads else None)
        yield text.rounds[-1]


def tree_generate(
    target: GPTLanguageModel,
    draft: Proposer,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
    steps: Steps = TREE,
) -> Generation:
    """The target's continuation of the prompt, with a tree of guesses a pass.

    `steps`: the four functions that make a round; `replace(TREE, accept=mine)` has another rule.
    The other arguments are as in speculative_generate, and with a lossless rule so is the
    distribution of the output.
    Raises ValueError for a bad request, or a draft with another vocabulary.
    """
    text = ReadText(target, prompt_tokens, max_new_tokens, stop_token)
    for _ in tree_rounds(text, draft, sampling, rng, steps):
        pass
    return text.generation()
