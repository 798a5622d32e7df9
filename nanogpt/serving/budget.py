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
    check_draft(draft, target.config.vocab_size)
    check_target(draft, target)
    if any(isinstance(prompt, int) for prompt in prompts):
        raise ValueError("prompts are lists of tokens; write [prompt] for one")
    if not isinstance(rngs, (list, tuple, type(None))):
        raise ValueError("give rngs as a list, one random source for each row")
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

    Everything else is the server's. A request may get all of them, so where its memory does not
    take that many, it does not guess; and a request with a draft step of its own guesses by itself.
    """

    def __init__(self, target: GPTLanguageModel, draft: Growing, **named):
        super().__init__(target, draft, **({"nodes": draft.nodes} | named))
        self.wait: list[tuple[Request, int, int]] = []

    def shares_guesses(self, request: Request) -> bool:
        """Whether its guesses are made with the others': they are not there, and nobody's own."""
        own = request.steps.draft is not TREE.draft  # by the same dice, say
        return not own and request.tree is None and request.room > 0

    def charge(self, request: Request, most: int) -> int:
        """Guesses that are shared are charged together, when they are made."""
        return 0 if self.shares_guesses(request) else most

    def guess(self, request: Request, n: int, most: int) -> None:
        """Its guesses wait until it is known who else guesses, if it shares them."""
        if self.shares_guesses(request):
            self.wait.append((request, n, most))
        else:
            super().guess(request, n, most)

    def batch(self) -> list[tuple[Request, int]]:
        """Who takes part in the next pass, with how many known tokens; and all guess together."""
        self.wait = []
        batch = super().batch()
        left = self.budget - sum(n for _, n in batch)
        left -= sum(len(request.tree.tokens) for request, _ in batch if request.tree is not None)
        nodes = min(left, max((most for _, _, most in self.wait), default=0))
        sharing = []
        for request, n, most in self.wait:
            if 0 < nodes <= most:
                sharing.append((request, n))
            else:
                request.tree = request.no_tree
        self.share_guesses(sharing, nodes)
        return [(request, n) for request, n in batch if request.id in self.queue.by_id]

    def share_guesses(self, sharing: list[tuple[Request, int]], nodes: int) -> None:
        """Make them. If the draft fails, each guesses by itself, so that one request is dropped."""
        if not sharing:
            return
        try:
            trees = share(self.draft, [request for request, _ in sharing], nodes)
        except Exception:
            for request, n in sharing:
                self.safely(request, super().guess, request, n, nodes // len(sharing))
            return
        for (request, n), tree in zip(sharing, trees, strict=True):
            request.tree = tree
            self.safely(request, self.memory.reserve, request, n + len(tree.tokens))
