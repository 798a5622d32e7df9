"""Serving: several texts in one pass, each with a length, a draft length and a random source.

A text in a batch is what it is alone. Its tokens, its cache and its random numbers are its own;
only the pass of the target is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nanogpt.cache import KVCache, keep_path
from nanogpt.drafts.protocol import Draft, Proposer, lifted
from nanogpt.generate import Generation, Text, Tree
from nanogpt.model import GPTLanguageModel
from nanogpt.rules import accept_tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import verify_batch
from nanogpt.serving.paged import PoolFull
from nanogpt.speculative import check_draft
from nanogpt.tree import check_target, commit


def schedule(
    wants: Sequence[tuple[int, int]], running: int, budget: int, width: int, capacity: int
) -> list[int]:
    """How many tokens of each request the next pass computes, for those that take part in it.

    wants: of each request, in order of arrival, how many tokens there are to compute, and how many
    places of the cache it needs. The first `running` have begun. A pass computes `budget` tokens,
    at most `width` of one request. Where `capacity` places are too few for those that have begun,
    the last to come make room, and the answer is shorter than `running`. Otherwise others begin
    while places and tokens are left, and it is longer. A share of 0 waits for a turn.
    """
    shares, places = [], 0
    for i, (to_do, needs) in enumerate(wants):
        left, places = budget - sum(shares), places + needs
        if places > capacity or (i >= running and left == 0):
            break
        shares.append(min(to_do, width, left))
    return shares


class Part(NamedTuple):
    """What a pass needs to know of a text: its next token, after those in its cache."""

    tokens: list[int]
    past_kvs: KVCache | None
    cache_len: int
    unread: tuple[int, ...] = ()  # the tokens after the first come as a tree


class Request(Text):
    """A text that is read a part at a time, and what else is its own.

    tree: the guesses for the next pass, None before they are made; most: how many of them there is
    room for. The first arguments and the errors are those of Text.
    """

    def __init__(self, target, prompt, max_new_tokens, stop_token, sampling, rng, id):
        super().__init__(target, prompt, max_new_tokens, stop_token)
        self.sampling, self.rng, self.id = sampling, rng, id
        self.tree, self.most = None, 0

    def forget(self) -> None:
        """Give the cache back and drop the guesses; the same context is read again later."""
        self.tree, self.most = None, 0
        self.past_kvs = self.hidden = None

    @property
    def to_do(self) -> int:
        """How many tokens there are to compute: unread ones, the current one, the guesses.

        A request without guesses waits for them until it is read: the current token stays out.
        """
        return len(self.unread) + (1 + len(self.tree.tokens) if self.tree else 0)

    def part(self, n: int) -> tuple[Part, Tree]:
        """Its next n tokens for a pass: the first, and the others as a tree after it."""
        known = [*self.unread, self.tokens[-1]][:n]
        guesses, before = (self.tree or self.no_tree).cut(n - len(known)), len(known) - 1
        parents = [*range(-1, before - 1), *(parent + before for parent in guesses.parents)]
        first = Part(known[:1], self.past_kvs, self.cache_len)
        return first, Tree(known[1:] + guesses.tokens, parents, guesses.q)

    @property
    def no_tree(self) -> Tree:
        """No guesses."""
        return Tree.empty(self.target.config.vocab_size)

    def take_part(self, n: int, p: Tensor, hidden: Tensor | None, new_kvs: KVCache) -> None:
        """What a pass over n of its tokens brings: more of the cache, or a round.

        p (n, V); hidden (n, C), None where the draft reads none; new_kvs with all n entries.
        """
        unread, tree = len(self.unread), self.tree
        if n > unread:
            self.tree = None  # whatever happens from here on, no guess is judged twice
            tree, p = tree.cut(n - unread - 1), p[unread:].clone()  # the pass's own can go
            path, token = accept_tree(tree, p, self.rng)
            commit(self, tree, p, path, token, keep_path(new_kvs, path, self.position), hidden)
        else:
            if hidden is not None and self.hidden is not None:
                hidden = torch.cat([self.hidden, hidden])
            elif self.past_kvs is not None:  # of a part of the context: no use to a draft
                hidden = None
            self.past_kvs, self.hidden = new_kvs, hidden
            self.prefills += 1


def check_server(
    draft: Draft | Proposer | None,
    policy: Callable[[int], int],
    what: str,
    V: int,
    **numbers: int | None,
) -> int:
    """The most guesses that a policy allows. Raises ValueError for settings that are out of range.

    what: where the policy's numbers come from; numbers: budget, rows, capacity (or None) and width,
    by name.
    """
    for name, number in numbers.items():
        if name == "capacity" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}; it must be a whole number from 1")
    most = [policy(running) for running in range(1, numbers["rows"] + 1)]
    for n in most:
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ValueError(f"{what} is {n!r}; it must be a whole number from 0")
    if max(most) and draft is None:
        raise ValueError(f"{what} is {max(most)} and there is no draft; give one, or K = 0")
    if draft is not None:
        check_draft(draft, V)
    return max(most)


class FrontDesk:
    """Where requests line up for a server, in order of arrival, and leave again.

    requests: those that are there; the first `running` have begun. block: places of the cache that
    are handed out together; padding: tokens of a pass that take places, whatever they are. Settings
    and errors are those of Server.
    """

    def __init__(
        self,
        target: GPTLanguageModel,
        draft: Draft | Proposer | None = None,
        K: int | None = None,
        budget: int = 256,
        rows: int = 32,
        capacity: int | None = None,
        width: int = 16,
        nodes: int | None = None,
        policy: Callable[[int], int] | None = None,
    ):
        window, V = target.config.block_size, target.config.vocab_size
        K = (4 if draft is not None else 0) if K is None else K
        self.trees = isinstance(draft, Proposer)  # of more guesses than tokens that they may become
        if self.trees:
            fixed = width - 1 if nodes is None else nodes
        else:  # a chain has no more nodes than it is deep
            fixed = K if nodes is None else min(K, nodes)
        self.policy = policy or (lambda _: fixed)
        what = "a number of the policy" if policy else "K" if nodes is None else "nodes"
        numbers = {"budget": budget, "rows": rows, "capacity": capacity, "width": width}
        self.most = check_server(draft, self.policy, what, V, **numbers)
        self.target, self.draft = target, None
        if draft is not None:
            self.draft = lifted(draft, K if policy is None else self.most)
            check_target(self.draft, target)
        self.reads = draft is not None and self.draft.reads
        pool = getattr(target, "cache", None)
        self.block, self.padding = getattr(pool, "size", 1), width * hasattr(pool, "blocks")
        all_places = rows * (window + self.most * self.trees)
        if hasattr(pool, "blocks"):
            all_places = pool.blocks * pool.size
        self.capacity = all_places if capacity is None else capacity
        self.budget, self.rows, self.width = budget, rows, width
        self.no_guess = Tree.empty(V)
        self.requests: list[Request] = []
        self.running = self.submitted = 0
        self.finished: dict[int, Generation] = {}
        self.errors: list[str] = []

    @property
    def waiting(self) -> int:
        """How many requests have not begun, or have lost their places."""
        return len(self.requests) - self.running

    def places(self, context: int, guesses: int) -> int:
        """How many blocks of the cache a request needs; what pads a pass takes room in a pool."""
        return -(-(context + max(1 + guesses, self.padding)) // self.block)

    def submit(
        self,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling = Sampling(),
        rng: RandomSource | None = None,
        stop_token: int | None = None,
    ) -> int:
        """Line up a request; returns its id: 0, 1, … `rng` defaults to RandomSource(id).

        Raises ValueError for a bad request, or one that is too long for the cache.
        """
        rng = rng or RandomSource(self.submitted)
        asked = prompt_tokens, max_new_tokens, stop_token
        request = Request(self.target, *asked, sampling, rng, self.submitted)
        longest = min(request.end, request.block_size) - 1
        needs = self.block * self.places(longest, self.most if self.trees else 0)
        if needs > self.capacity:
            raise ValueError(
                f"the request may need {needs} places in the cache, and there are "
                f"{self.capacity} in all; ask for fewer tokens, or give the server more"
            )
        self.requests.append(request)
        self.submitted += 1
        return request.id

    def cancel(self, id: int) -> Generation:
        """Drop a request, running or waiting; returns what it has written so far.

        Raises ValueError if no request of this id is there (any more).
        """
        for i, request in enumerate(self.requests):
            if request.id == id:
                del self.requests[i]
                self.running -= i < self.running
                request.past_kvs = request.hidden = None
                return request.generation()
        raise ValueError(f"no request {id!r} is running or waiting")

    def safely(self, request: Request, do: Callable, *args) -> None:
        """Do it; where it fails, this request is dropped with a note, and no other is touched.

        A draft that works in the target's cache may find it full: there are no guesses this time.
        """
        try:
            do(*args)
        except Exception as error:
            if isinstance(error, PoolFull) and do == self.guess:
                request.tree, request.most = self.no_guess, 0
                if request.past_kvs is not None:  # what it took beyond that goes back
                    request.past_kvs = request.past_kvs.kept(request.cache_len)
                return
            self.cancel(request.id)
            self.errors.append(f"request {request.id} is dropped: {error}")


class Server(FrontDesk):
    """Continuous batching: requests come and go, and every pass takes what fits.

    K: how deep a draft with get_probs guesses, by default 4; a Proposer has a depth of its own.
    nodes: the most guesses of a request in a pass: by default K, or for a Proposer what `width`
    leaves. policy: chooses them instead, of the number of running requests; of nothing that was
    drafted, or the output is biased. budget: tokens that a pass computes; width: of one request, so
    that a long prompt holds nobody up; rows: requests that run at a time. capacity: places for
    tokens in all caches together, by default a window for each row, or the pool that the target
    keeps its caches in.
    Raises ValueError for a draft of another vocabulary, and for numbers that are out of range.
    """

    def guess(self, request: Request, nodes: int) -> None:
        """Up to so many guesses for a request's next pass."""
        tree, most = self.no_guess, nodes if self.trees else min(nodes, request.room)
        if most > 0:
            deep = min(nodes, request.room)
            tree = self.draft.propose(request, deep, request.sampling, request.rng)
        request.tree, request.most = tree.cut(most), most

    def settle(self) -> None:
        """Between two passes: the finished leave, and all others have guesses."""
        for request in [request for request in self.requests if request.done]:
            self.finished[request.id] = self.cancel(request.id)
        nodes = self.policy(max(1, self.running))
        for request in [request for request in self.requests if request.tree is None]:
            request.restart_if_full()
            if not (self.reads and request.unread):  # it looks at what is to be read first
                self.safely(request, self.guess, request, nodes)

    def batch(self) -> list[tuple[Request, int]]:
        """Who takes part in the next pass, with how many tokens. Others have no cache."""
        line = self.requests[: self.rows]
        wants = [(request.to_do, self.places(request.position, request.most)) for request in line]
        places = self.capacity // self.block
        shares = schedule(wants, self.running, self.budget, self.width, places)
        for request in self.requests[len(shares) :]:
            if request.past_kvs is not None:  # it is preempted
                request.forget()
        self.running = len(shares)
        return [(request, n) for request, n in zip(line, shares, strict=False) if n]

    @torch.inference_mode()
    def step(self) -> dict[int, Generation]:
        """One pass for all that fit; returns the requests that it finished, by id.

        Requests change only after the pass: interrupted, step can be called again. Where one fails
        by itself (its random source, say), it is dropped and the others go on; then step raises
        RuntimeError with its id. What is finished is returned by the next call.
        """
        self.settle()
        if batch := self.batch():
            parts, trees = zip(*[request.part(n) for request, n in batch], strict=True)
            samplings = [request.sampling for request, _ in batch]
            layers = [self.draft and self.draft.layers] * len(parts)
            verified = verify_batch(self.target, parts, trees, samplings, layers)
            for (request, n), (p, hidden, new_kvs) in zip(batch, verified, strict=True):
                seen = hidden if self.reads else None
                self.safely(request, request.take_part, n, p, seen, new_kvs)
        self.settle()
        if self.errors:
            errors, self.errors = self.errors, []
            raise RuntimeError("; ".join(errors) + "; call step again for the others")
        finished, self.finished = self.finished, {}
        return finished
