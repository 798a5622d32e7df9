"""A server that plans its next step while the pass of this one runs: asynchronous scheduling.

vLLM and SGLang do so by default, so that a GPU need not wait for the CPU's plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch

from nanogpt.serving.server import Request, Server, schedule


class OverlapServer(Server):
    """A `Server` that plans step n + 1 before the verdict of step n; its arguments are the same.

    Before the verdict it knows who may go on, and that each will have one token to do. How many
    tokens come it does not know, so the plan has places for all of them; those of rejected guesses
    are given back. Where that many might not be free, no plan is made, and the step is planned
    after the verdict. Whoever is stopped leaves the plan; whoever has filled the window has more to
    do, and gets what the plan has left. What depends on the tokens themselves (the current one,
    penalties, a grammar's state, the draft's guesses) is no part of it.
    """

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.plan: dict[int, int] | None = None  # of the next step: known tokens of a request
        one = torch.set_num_threads, (torch.get_num_threads(),)
        self.worker = ThreadPoolExecutor(1, "pass", *one)

    def verified(self, batch: Sequence[tuple[Request, int]]) -> list:
        """As Server's, in a thread of its own; the next step is planned meanwhile."""

        @torch.inference_mode()  # each thread has a mode of its own
        def verified(*given):
            return self.verify(*given)

        made = self.worker.submit(verified, *self.inputs(batch))
        plan = self.foresee(batch)
        rows = made.result()
        self.plan = plan
        return rows

    def foresee(self, batch: Sequence[tuple[Request, int]]) -> dict[int, int] | None:
        """The next step, while this batch is in its pass: {id: known tokens}, or None."""
        line: list[Request] = []
        wants = []
        for request, n in batch:
            to_do, most = request.to_do - n, request.position
            if to_do == 0:  # it gets a verdict
                if len(request.tokens) + 1 >= request.end:
                    continue  # and is done
                guesses = len(request.tree.tokens) if request.tree else 0
                to_do, most = 1, min(most + guesses + 1, request.block_size - 1)
            line.append(request)
            wants.append((to_do, self.memory.needs(request, most + 1)))
        running, free = len(line), self.memory.free(line)
        for request in islice(self.queue.waiting, self.limits.max_num_seqs - running):
            request.restart_if_full()
            line.append(request)
            wants.append((request.to_do, self.memory.needs(request, request.position + 1)))
        limits = self.limits.max_num_batched_tokens, self.limits.prefill_chunk
        shares = schedule(wants, running, *limits, free)
        if len(shares) < running:
            return None
        return {request.id: n for request, n in zip(line, shares, strict=False)}

    def shares(self) -> list[int]:
        """As planned, of those who are still there; without a plan, as Server's."""
        plan, self.plan = self.plan or {}, None
        while self.queue.waiting and self.queue.waiting[0].id in plan:
            self.begin()
        if not plan or not self.queue.running:  # none, or nobody of it is left
            return super().shares()
        left, shares = self.limits.max_num_batched_tokens - sum(plan.values()), []
        for request in self.queue.running:
            planned = plan[request.id]
            shares.append(min(request.to_do, self.limits.prefill_chunk, planned + left))
            left -= shares[-1] - planned
        return shares
