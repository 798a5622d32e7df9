"""Serving: requests come and go, and share the passes of one target.

A text in a server is what it is alone. Its tokens, its cache and its random numbers are its own;
only the passes are shared, and the memory. Four parts: `Limits`, a `Queue` of who runs and who
waits, `schedule`, which shares out a pass, and the `Server`, which makes passes. How much room
there is, it asks of the memory: `Slots` for caches that texts have to themselves, `Blocks` for a
pool.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor

from nanogpt.cache import KVCache
from nanogpt.drafts.protocol import lifted
from nanogpt.generate import Generation, check_whole
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Part, Seat, drawn_together, verify_batch
from nanogpt.serving.constraints import Constraints, Reply, for_pass
from nanogpt.serving.memory import Blocks, Prefixes, Slots
from nanogpt.serving.paged import BlockPool, PoolFull
from nanogpt.speculative import Draft, Steps, check_vocabulary
from nanogpt.trees.loop import TREE, check_target, commit
from nanogpt.trees.tree import Proposer, Tree


def check_numbers(**numbers: int | None) -> None:
    """Raise ValueError unless each is a whole number from 1, or None."""
    check_whole(1, **{name: number for name, number in numbers.items() if number is not None})


@dataclass(frozen=True)
class Limits:
    """What a server does at a time, and in how much memory, in vLLM's words.

    max_num_seqs: requests that run. max_num_batched_tokens: tokens that a pass computes, one at
    least for each of them; prefill_chunk: of one request's prompt, so that a long one holds nobody
    up. num_blocks: blocks of block_size places for tokens, in all caches together, handed out one
    by one; by default a window for each request. Raises ValueError for numbers out of range.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    prefill_chunk: int = 16
    num_blocks: int | None = None
    block_size: int = 1

    def __post_init__(self):
        check_numbers(**asdict(self))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; a pass has a token for "
                f"each of {self.max_num_seqs} sequences"
            )


def schedule(
    wants: Iterable[tuple[int, int]],
    running: int,
    token_budget: int,
    prefill_chunk: int,
    free: int,
) -> list[int]:
    """How many tokens of each request the next pass computes, for those that take part in it.

    wants: of each request, in order of arrival, how many tokens there are to compute before it may
    guess (its unread ones and the current one), and how many of the free places of the cache they
    take. The first `running` have begun. A pass computes `token_budget` tokens, at most
    `prefill_chunk` of one request, and one at least of each that runs. Where the free places are
    too few for those that run, the last to come make room, and the answer is shorter than
    `running`. Otherwise others begin while places and tokens are left, and it is longer.
    """
    num_scheduled_tokens = []
    for i, (to_do, needs) in enumerate(wants):
        behind = max(0, running - i - 1)  # who run and come later: a token for each
        num_new_tokens = min(to_do, prefill_chunk, token_budget - behind)
        free -= needs
        if free < 0 or (i >= running and num_new_tokens <= 0):
            break
        num_scheduled_tokens.append(num_new_tokens)
        token_budget -= num_new_tokens
    return num_scheduled_tokens


class Request(Reply):
    """A reply that is read a part at a time, and what else is its own.

    tree: the guesses for the next pass, None before they are made. arrived, began: when it was
    submitted, and first took part in a pass; came: of each round, when its tokens were there.
    preempted: how often it lost its places; shared: entries of the cache that it found made.
    error: what the server dropped it for, None otherwise.
    steps: how it drafts, accepts and trims. The other arguments and the errors are Reply's.
    """

    def __init__(
        self,
        target,
        prompt,
        max_new_tokens,
        stop_token,
        sampling,
        rng,
        id,
        constraints=Constraints(),
        steps=TREE,
    ):
        super().__init__(target, prompt, max_new_tokens, stop_token, constraints)
        self.sampling, self.rng, self.id, self.steps = sampling, rng, id, steps
        self.tree: Tree | None = None
        self.arrived, self.began = 0.0, None
        self.came: list[float] = []
        self.preempted = self.shared = 0
        self.error: Exception | None = None

    @property
    def to_do(self) -> int:
        """How many tokens there are to compute before it may guess: unread, and the current one."""
        return len(self.unread) + 1

    @property
    def rows(self) -> Sampling:
        """What makes p of its logits: its sampling, under its constraints if it has some."""
        return for_pass(self, self.sampling, self.tree or self.no_tree, skip=len(self.unread))

    def part(self, n: int) -> tuple[Part, Tree]:
        """Its next n tokens for a pass, and its guesses: the first, and the others as a tree."""
        known, guesses = [*self.unread, self.tokens[-1]][:n], self.tree or self.no_tree
        before = len(known) - 1
        parents = [*range(-1, before - 1), *(parent + before for parent in guesses.parents)]
        first = Part(known[:1], self.past_kvs, self.cache_length)
        return first, Tree(known[1:] + guesses.tokens, parents, guesses.q)

    @property
    def no_tree(self) -> Tree:
        """No guesses."""
        return Tree.empty(self.target.config.vocab_size)

    def take_part(self, n: int, p: Tensor, hidden: Tensor | None, new_kvs: KVCache) -> None:
        """What a pass over n of its tokens, and its guesses, brings: more of the cache, or a round.

        p (n + guesses, V); hidden (n + guesses, C), None where the draft reads none; new_kvs with
        all these entries.
        Raises ValueError where p is NaN, also of a part that needs no verdict: nobody may find it.
        """
        unread, tree, self.tree = len(self.unread), self.tree, None  # no guess is judged twice
        if p.isnan().any():
            raise ValueError("its logits are NaN or infinite: what does the model compute?")
        if n > unread:
            p = p[unread:].clone()  # the pass's own can go
            path, token = self.steps.accept(tree or self.no_tree, p, self.rng)
            past_kvs = self.steps.trim(new_kvs, path, self.position)
            commit(self, tree or self.no_tree, p, path, token, past_kvs, hidden)
        else:
            if hidden is not None and self.hidden is not None:
                hidden = torch.cat([self.hidden, hidden])
            elif self.cache_length:  # of a part of the context: no use to a draft
                hidden = None
            self.past_kvs, self.hidden = new_kvs, hidden
            self.prefills += 1


def memory_of(
    target: GPTLanguageModel, limits: Limits, guesses: int, share: bool
) -> Slots | Blocks:
    """The blocks of the target's pool; without one, places, by default a window for each request.

    guesses: places beside each window. Of a target with states, beginnings are kept by blocks of
    block_size tokens or, if that is 1, of prefill_chunk, where a pass over a prompt ends.
    Raises ValueError for num_blocks beside a pool.
    """
    pool = getattr(target, "cache", None)
    if limits.block_size != 1 and (limits.num_blocks is None or isinstance(pool, BlockPool)):
        raise ValueError(
            f"block_size is {limits.block_size}: it goes with num_blocks, and a target's pool has "
            "blocks of its own size"
        )
    if not isinstance(pool, BlockPool):
        places = limits.max_num_seqs * (target.config.block_size + guesses)
        if limits.num_blocks is not None:
            places = limits.num_blocks * limits.block_size
        if share and hasattr(target, "remembering"):  # with states, whatever is around it
            block = limits.block_size if limits.block_size > 1 else limits.prefill_chunk
            return Prefixes(places, block)
        return Slots(places)
    if limits.num_blocks is not None:
        raise ValueError(
            f"num_blocks is {limits.num_blocks}, and the target's pool has {pool.blocks} blocks of "
            f"{pool.size}; leave num_blocks out, or make the pool smaller"
        )
    return Blocks(pool, share)


# Requests


class Queue:
    """Who runs and who waits, both in order of arrival."""

    def __init__(self):
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.by_id: dict[int, Request] = {}

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.waiting

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, request: Request) -> None:
        """A new request waits at the end of the line; if nothing is asked of it, for nothing."""
        self.by_id[request.id] = request
        (self.running if request.done else self.waiting).append(request)

    def remove(self, id: int) -> Request:
        """Take a request out. Raises ValueError if none of this id is there (any more)."""
        if id not in self.by_id:
            raise ValueError(f"no request {id!r} is running or waiting")
        request = self.by_id.pop(id)
        (self.running if request in self.running else self.waiting).remove(request)
        return request

    def begin(self) -> Request:
        """The first that waits runs."""
        self.running.append(self.waiting.popleft())
        return self.running[-1]

    def preempt(self) -> Request:
        """The last that runs waits again, before all others."""
        self.waiting.appendleft(self.running.pop())
        return self.waiting[0]


def same_policy(
    draft: Draft | Proposer | None, K: int | None, nodes: int | None, prefill_chunk: int
) -> Callable[[int], int]:
    """As many guesses of a request in every pass, as `Server` says of K and nodes."""
    if K is None:
        K = 0 if draft is None else 4
    if isinstance(draft, Proposer):
        most = prefill_chunk - 1 if nodes is None else nodes
    else:
        most = K if nodes is None else min(K, nodes)
    return lambda running: most


class Server:
    """Continuous batching: requests come and go, and every pass takes what fits.

    limits: how much it does at a time. K: how deep a `Draft` guesses, by default 4; a Proposer has
    a depth of its own.
    nodes: the most guesses of a request in a pass: by default K, or for a Proposer what
    prefill_chunk leaves. policy: chooses them instead, of the number of requests in the pass; of
    nothing that was drafted, or the output is biased. A target on a BlockPool has the pool's
    blocks, and no num_blocks beside them. share: whether requests on a pool share the blocks of
    what they begin with; with a draft that reads the target's states, no. seed: of the requests
    that bring no random numbers; by default another for every server. clock: seconds, for what a
    request notes of its times.
    Raises ValueError for a draft of another vocabulary, for numbers that are out of range, and for
    num_blocks beside a pool.
    """

    def __init__(
        self,
        target: GPTLanguageModel,
        draft: Draft | Proposer | None = None,
        K: int | None = None,
        limits: Limits = Limits(),
        nodes: int | None = None,
        policy: Callable[[int], int] | None = None,
        share: bool = True,
        seed: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.target, self.limits, self.clock = target, limits, clock
        self.V = target.config.vocab_size
        self.trees = isinstance(draft, Proposer)  # of more guesses than tokens that they may become
        self.policy = policy or same_policy(draft, K, nodes, limits.prefill_chunk)
        what = "a number of the policy" if policy else "K" if nodes is None else "nodes"
        most = self.most_guesses(what)
        self.draft: Proposer | None = None
        if draft is not None:
            self.draft = lifted(draft, most)
            check_target(self.draft, target)
            check_vocabulary(self.draft.vocab_size, self.V)
        elif most:
            raise ValueError(f"{what} is {most} and there is no draft; give one, or K = 0")
        self.layers = None if self.draft is None else self.draft.layers
        self.reads = self.draft is not None and self.draft.reads
        self.memory = memory_of(target, limits, most * self.trees, share and not self.reads)
        self.seed = secrets.randbits(62) if seed is None else seed
        self.queue, self.submitted = Queue(), 0
        self.finished: dict[int, Generation] = {}
        self.errors: list[str] = []

    def most_guesses(self, what: str) -> int:
        """The most that the policy allows. Raises ValueError for what is no number of guesses."""
        most = [self.policy(running) for running in range(1, self.limits.max_num_seqs + 1)]
        for n in most:
            check_whole(0, **{what: n})
        return max(most)

    @property
    def requests(self) -> list[Request]:
        """All that are there, in order of arrival."""
        return list(self.queue)

    @property
    def running(self) -> int:
        """How many requests have begun."""
        return len(self.queue.running)

    @property
    def waiting(self) -> int:
        """How many have not, or have lost their places."""
        return len(self.queue.waiting)

    def submit(
        self,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling = Sampling(),
        rng: RandomSource | None = None,
        stop_token: int | None = None,
        constraints: Constraints = Constraints(),
        steps: Steps = TREE,
    ) -> int:
        """Line up a request; returns its id: 0, 1, … `rng` defaults to one of the server's seed.

        steps: how it drafts, accepts and trims; the server verifies, for all together.
        Raises ValueError for a bad request, or one that is too long for the cache.
        """
        id = self.submitted
        rng = rng or RandomSource((self.seed << 32) + id)
        asked = prompt_tokens, max_new_tokens, stop_token
        request = Request(self.target, *asked, sampling, rng, id, constraints, steps)
        longest = min(request.end, request.block_size)  # its context, and the current token
        needs, size = -(-longest // self.memory.size), self.memory.size
        if needs > self.memory.places:
            raise ValueError(
                f"the request may need {needs * size} places in the cache, and there are "
                f"{self.memory.places * size} in all; ask for fewer tokens, or give the server more"
            )
        request.arrived = self.clock()
        self.queue.add(request)
        self.submitted += 1
        return id

    def cancel(self, id: int) -> Generation:
        """Drop a request, running or waiting; returns what it has written so far.

        Raises ValueError if no request of this id is there (any more).
        """
        request = self.queue.remove(id)
        self.memory.drop(request)
        return request.generation()

    def safely(self, request: Request, do: Callable, *args) -> None:
        """Do it; where it fails, this request is dropped with a note, and no other is touched."""
        try:
            do(*args)
        except Exception as error:
            request.error = error
            self.cancel(request.id)
            self.errors.append(f"request {request.id} is dropped: {error}")

    # A step

    def retire(self) -> None:
        """The finished leave, and who has filled the window begins anew. No waiting one is done."""
        for request in [request for request in self.queue.running if request.done]:
            self.finished[request.id] = self.cancel(request.id)
        for request in self.queue.running:
            if request.position == request.block_size:
                self.memory.drop(request)
                request.restart_if_full()
                self.memory.begin(request)

    def preempt(self) -> Request:
        """The last that runs loses its places and its guesses, and waits before all others."""
        request = self.queue.preempt()
        self.memory.drop(request)
        request.tree, request.preempted = None, request.preempted + 1
        return request

    def begin(self) -> None:
        """The first that waits runs, and begins with what is there already."""
        request = self.queue.begin()
        request.began = self.clock() if request.began is None else request.began
        self.memory.begin(request)

    def shares(self) -> list[int]:
        """How many known tokens of each request that runs the next pass has.

        The last to come make room where there is too little, and then nobody begins.
        """
        queue, limits, new = self.queue, self.limits, True
        while True:
            seats = limits.max_num_seqs - self.running
            line = [*queue.running, *islice(queue.waiting, seats * new)]
            for request in line:
                request.restart_if_full()  # those that wait: the others have
            wants = ((r.to_do, self.memory.needs(r, r.position + 1)) for r in line)
            free = self.memory.free(queue.running)
            most = limits.max_num_batched_tokens, limits.prefill_chunk
            num_scheduled_tokens = schedule(wants, self.running, *most, free)
            if len(num_scheduled_tokens) >= self.running:
                break
            self.preempt()
            new = False
        while self.running < len(num_scheduled_tokens):
            self.begin()
        pairs = zip(queue.running, num_scheduled_tokens, strict=True)
        return [min(n, request.to_do) for request, n in pairs]

    def batch(self) -> list[tuple[Request, int]]:
        """Who takes part in the next pass, with how many known tokens; and their guesses are made.

        Guesses take what is left of the budget and of the memory, and only whoever is read guesses.
        """
        batch = list(zip(self.queue.running, self.shares(), strict=True))
        for request, n in batch:
            self.memory.reserve(request, n)
        token_budget = self.limits.max_num_batched_tokens - sum(n for _, n in batch)
        nodes = self.policy(max(1, len(batch)))
        held = {r: self.memory.needs(r, r.position + 1) for r, _ in batch}
        free = self.memory.free(self.queue.running) - sum(held.values())
        asked = []
        for request, n in batch:
            if n < request.to_do or (self.reads and request.unread):
                continue
            room = nodes * (request.room > 0) if self.trees else min(nodes, request.room)
            most = min(room if request.tree is None else len(request.tree.tokens), token_budget)
            last = request.position + 1
            while most and self.memory.needs(request, last + most) - held[request] > free:
                most -= 1
            free -= self.memory.needs(request, last + most) - held[request]
            token_budget -= most
            asked.append((request, n, most))
        self.guess_together(asked)
        for request, n, most in asked:
            self.safely(request, self.guess, request, n, most)
        return [(request, n) for request, n in batch if request.id in self.queue.by_id]

    def guess_together(self, asked: Sequence[tuple[Request, int, int]]) -> None:
        """Make the guesses of those whose drafts share passes; where that fails, each is asked."""
        new = [(request, most) for request, _, most in asked if most and request.tree is None]
        if self.draft is not None:
            seats = [Seat(r, self.draft, r.sampling, r.rng, r.steps) for r, _ in new]
            with contextlib.suppress(Exception):
                trees = drawn_together(seats, [min(most, r.room) for r, most in new])
                for i, tree in trees.items():
                    new[i][0].tree = tree

    def guess(self, request: Request, n: int, most: int) -> None:
        """Up to so many guesses for a request's next pass, beside n known tokens.

        Raises ValueError for guesses that are no tokens. A draft that works in the target's pool
        may find it full: there are no guesses this time, and it gives back what it took.
        """
        if request.tree is not None:  # drawn with others, or of a pass that was interrupted
            request.tree = request.tree.cut(most)
        elif not most or not request.room:
            request.tree = request.no_tree
        try:
            self.memory.reserve(request, n + most)
            if request.tree is None:
                deep = min(most, request.room)
                asked = self.draft, request, deep, request.sampling, request.rng
                tree = request.steps.draft(*asked)
                for token in tree.tokens:
                    if not 0 <= token < self.V:
                        raise ValueError(f"the draft guesses {token}; tokens are 0 to {self.V - 1}")
                request.tree = tree.cut(most)
        except PoolFull:
            request.tree = request.no_tree
            self.memory.trim(request)
            self.memory.reserve(request, n)

    def inputs(self, batch: Sequence[tuple[Request, int]]) -> tuple:
        """What a pass needs of each who takes part: part, guesses, what makes p of logits."""
        parts, trees = zip(*[request.part(n) for request, n in batch], strict=True)
        return parts, trees, [request.rows for request, _ in batch]

    def verified(self, batch: Sequence[tuple[Request, int]]) -> list:
        """One pass: of each who takes part its p, hidden and new_kvs, as `Request.take_part`'s."""
        return self.verify(*self.inputs(batch))

    def verify(self, parts, trees, samplings) -> list:
        """`verify_batch`, with the layers that the draft reads."""
        return verify_batch(self.target, parts, trees, samplings, [self.layers] * len(parts))

    def advance(self) -> None:
        """One pass for all that fit.

        Requests change only after the pass: interrupted, it can be called again. Where one fails by
        itself (its draft or its random source, say), it is dropped and the others go on; then
        RuntimeError is raised with its id. Raises PoolFull if the pool, which others use as well,
        has no room for anybody.
        """
        self.retire()
        batch = self.batch()
        if not batch and not self.errors and self.queue.waiting:
            first = self.queue.waiting[0]
            raise PoolFull(
                f"request {first.id} needs {self.memory.needs(first, first.position + 1)} blocks, "
                f"and {self.memory.free([])} are free: others hold the rest"
            )
        if batch:
            rows = self.verified(batch)
            for (request, n), (p, hidden, new_kvs) in zip(batch, rows, strict=True):
                seen = hidden if self.reads else None
                self.safely(request, self.take_part, request, n, p, seen, new_kvs)
        self.retire()
        if self.errors:
            errors, self.errors = self.errors, []
            raise RuntimeError("; ".join(errors) + "; call step again for the others")

    def take_part(self, request: Request, n: int, p, hidden, new_kvs) -> None:
        """What a pass brings to a request, and what others may have of it."""
        rounds = len(request.rounds)
        request.take_part(n, p, hidden, new_kvs)
        self.memory.keep(request)
        request.came += [self.clock()] * (len(request.rounds) - rounds)

    @torch.inference_mode()
    def step(self) -> dict[int, Generation]:
        """One pass for all that fit; returns the requests that it finished, by id.

        Errors are those of `advance`; what is finished is returned by the next call.
        """
        self.advance()
        finished, self.finished = self.finished, {}
        return finished

    def stream(self, id: int) -> Iterator[int]:
        """A request's tokens, as they come; the server steps for all while they are awaited.

        Whoever stops listening cancels the request. Raises ValueError if none of this id is there,
        and what `advance` raises: the request goes on, and may be streamed anew, from its start.
        """
        if id in self.finished:
            yield from self.finished.pop(id).tokens
            return
        if id not in self.queue.by_id:
            raise ValueError(f"no request {id!r} is running or waiting")
        request, shown = self.queue.by_id[id], 0
        try:
            while True:
                new = request.sendable
                yield from new[shown:]
                shown = len(new)
                if id not in self.queue.by_id:
                    break
                with torch.inference_mode():
                    self.advance()
            self.finished.pop(id, None)
        except GeneratorExit:  # nobody listens any more
            if id in self.queue.by_id:
                self.cancel(id)
            raise
