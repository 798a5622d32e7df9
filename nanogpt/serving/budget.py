"""One budget of guesses for all texts of a pass: they go where they are likeliest to be kept.

Engines rank the guesses of all requests by their chance to survive, and verify the first so many
(vLLM's adaptive verification, vllm-project/vllm#47808). Here, one heap makes them in that order. So
none is dropped for what it is, and each text, and any two together, is what it is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from nanogpt.drafts.best import Growing, best_first
from nanogpt.generate import Generation
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_round, one_each
from nanogpt.speculative import check_vocabulary
from nanogpt.trees.loop import check_target
from nanogpt.trees.tree import ReadText, Tree


def share(draft: Growing, seats: Sequence[Seat], nodes: int) -> list[Tree]:
    """A tree for each text, `nodes` guesses in all, by one heap."""
    for seat in seats:
        if draft.reads:
            seat.text.read(draft.layers)
    roots = [draft.root(x.text, x.text.room, x.sampling, x.rng) for x in seats]
    return best_first(roots, nodes, draft.vocab_size, draft.sure)


def budget_round(
    target: GPTLanguageModel, draft: Growing, seats: Sequence[Seat], nodes: int
) -> None:
    """One round of every text, of `nodes` guesses in all: what its seat drafts is made before."""
    for seat in seats:
        seat.text.restart_if_full()
    trees = share(draft, seats, nodes)
    made = [
        seat._replace(steps=replace(seat.steps, draft=lambda *_, tree=tree: tree))
        for seat, tree in zip(seats, trees, strict=True)
    ]
    batch_round(target, made)


@torch.inference_mode()
def budget_generate(
    target: GPTLanguageModel,
    draft: Growing,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    samplings: Sampling | Sequence[Sampling] = Sampling(),
    rngs: Sequence[RandomSource] | None = None,
    stop_token: int | Sequence[int | None] | None = None,
) -> list[Generation]:
    """batch_generate, with the draft's `nodes` as one budget for all texts of a pass.

    The other arguments are batch_generate's. Raises ValueError as it does.
    """
    check_target(draft, target)
    check_vocabulary(draft.vocab_size, target.config.vocab_size)
    if any(isinstance(prompt, int) for prompt in prompts):
        raise ValueError("prompts are lists of tokens; write [prompt] for one")
    if not isinstance(rngs, (list, tuple, type(None))):
        raise ValueError("give rngs as a list, one random source for each row")
    B = len(prompts)
    each = (one_each(x, B) for x in (max_new_tokens, stop_token))
    texts = [ReadText(target, *asked) for asked in zip(prompts, *each, strict=True)]
    rngs = one_each([RandomSource(b) for b in range(B)] if rngs is None else list(rngs), B)
    samplings = one_each(samplings, B)
    seats = [Seat(text, draft, *own) for text, *own in zip(texts, samplings, rngs, strict=True)]
    while running := [seat for seat in seats if not seat.text.done]:
        budget_round(target, draft, running, draft.nodes)
    return [text.generation() for text in texts]
