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
from nanogpt.generate import Generation, Text, Tree
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_round, one_each
from nanogpt.serving.server import Request, Server
from nanogpt.speculative import check_draft
from nanogpt.tree import TREE, check_target


def share(draft: Growing, seats: Sequence[Seat | Request], nodes: int) -> list[Tree]:
    """A tree for each text, `nodes` guesses in all, by one heap."""
    texts = [seat.text if isinstance(seat, Seat) else seat for seat in seats]
    for text in texts:
        if draft.reads:
            text.read(draft.layers)
    roots = [
        draft.root(text, text.room, seat.sampling, seat.rng)
        for text, seat in zip(texts, seats, strict=True)
    ]
    return best_first(roots, nodes, draft.vocab_size, draft.sure)


def budget_round(target: GPTLanguageModel, seats: Sequence[Seat], nodes: int) -> None:
    """One round of every text, of `nodes` guesses in all: what its seat drafts is made before."""
    for seat in seats:
        seat.text.restart_if_full()
    trees = share(seats[0].draft, seats, nodes)
    made = [
        seat._replace(steps=replace(seat.steps, draft=lambda *_, tree=tree: tree))
        for seat, tree in zip(seats, trees, strict=True)
    ]
    batch_round(target, made)


@torch.inference_mode()
def budget_generate(
    target,
    draft: Growing,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    samplings: Sampling | Sequence[Sampling] = Sampling(),
    rngs: Sequence[RandomSource] | None = None,
    stop_token: int | Sequence[int | None] | None = None,
) -> list[Generation]:
    """batch_generate, with the draft's `nodes` as one budget for all texts of a pass.

    The other arguments, and what is raised, are batch_generate's.
    """
    check_draft(draft, target.config.vocab_size)
    check_target(draft, target)
    B = len(prompts)
    each = (one_each(x, B) for x in (max_new_tokens, stop_token))
    texts = [Text(target, *asked) for asked in zip(prompts, *each, strict=True)]
    rngs = one_each([RandomSource(b) for b in range(B)] if rngs is None else list(rngs), B)
    samplings = one_each(samplings, B)
    seats = [Seat(text, draft, *own) for text, *own in zip(texts, samplings, rngs, strict=True)]
    while running := [seat for seat in seats if not seat.text.done]:
        budget_round(target, running, draft.nodes)
    return [text.generation() for text in texts]


class BudgetServer(Server):
    """A Server that shares out `draft.nodes` guesses of a pass by one heap, not evenly.

    Everything else is the server's. Guesses that may not fit its budget or its memory are not made,
    and a request with a draft step of its own guesses by itself.
    """

    def __init__(self, target, draft: Growing, **named):
        super().__init__(target, draft, **({"nodes": draft.nodes} | named))
        self.wait: list[tuple[Request, int, int]] = []

    def guess(self, request: Request, n: int, most: int) -> None:
        """Its guesses wait until it is known who else guesses, if they are not there already."""
        own = request.steps.draft is not TREE.draft  # by the same dice, say
        if own or request.tree is not None or not most or not request.room:
            super().guess(request, n, most)
        else:
            self.wait.append((request, n, most))

    def batch(self) -> list[tuple[Request, int]]:
        """Who takes part in the next pass, with how many known tokens; and all guess together."""
        self.wait = []
        batch = super().batch()
        waiting = [entry for entry in self.wait if entry[0].id in self.queue.by_id]
        if waiting:
            nodes = min(self.draft.nodes, *(most for _, _, most in waiting))  # any may get all
            trees = share(self.draft, [request for request, _, _ in waiting], nodes)
            for (request, n, _), tree in zip(waiting, trees, strict=True):
                self.memory.reserve(request, n + len(tree.tokens))
                request.tree = tree
        return batch
