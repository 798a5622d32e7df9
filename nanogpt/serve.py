"""Serving: several texts in one pass, each with a length, a draft length and a random source.

A text in a batch is what it is alone. Its tokens, its cache and its random numbers are its own;
only the pass of the target is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nanogpt.cache import KVCache, joined, keep_path, rows
from nanogpt.generate import Generation, Round, Text, Tree
from nanogpt.model import GPTLanguageModel, side_by_side, tree_mask
from nanogpt.paged import PoolFull
from nanogpt.rules import accept_tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Policy, check_draft, draft_tokens
from nanogpt.tree import Layered


def propose(draft, text: Text, K: int | Policy, sampling: Sampling, rng: RandomSource) -> Tree:
    """The draft's guesses for a text, up to K deep: its own tree, or else a chain of tokens."""
    most, more = K(text.rounds) if callable(K) else (K, None)
    most = min(most, text.room)
    if hasattr(draft, "propose"):
        return draft.propose(text, most, sampling, rng)
    tokens, q = draft_tokens(draft, text.tokens, most, sampling, rng, more)
    return Tree(tokens, list(range(-1, len(tokens) - 1)), q)


def batch_mask(
    trees: Sequence[Tree], lengths: Sequence[int], before: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Positions (B, T) and mask (B, T, P+T) of a pass over a tree for each of B texts.

    lengths: how many tokens each text has cached; before: in how many columns before them it has
    nothing. T is the current token and the largest tree; in a smaller one, the rest of the row sees
    what its current token sees, and is to be dropped.
    """
    sizes = torch.tensor([1 + len(tree.tokens) for tree in trees])[:, None]
    P = max(a + n for a, n in zip(before, lengths, strict=True))
    T = int(sizes.max())
    step = torch.arange(T) * (torch.arange(T) < sizes)  # 0, 1, … and then 0 again
    pos = torch.tensor(lengths)[:, None] + step  # as in chains
    first, column = torch.tensor(before)[:, None, None], torch.arange(P + T)
    mask = (first <= column) & (column <= first + pos[..., None])
    for b, tree in enumerate(trees):
        N = len(tree.tokens)
        if tree.parents != list(range(-1, N - 1)):
            own = tree_mask(tree.parents, lengths[b])
            mask[b, : N + 1, before[b] : before[b] + own.shape[1]] = own
            pos[b, : N + 1] = own.sum(-1) - 1
    return pos, mask


@torch.no_grad()
def verify_batch(
    target: GPTLanguageModel,
    texts: Sequence[Text],
    trees: Sequence[Tree],
    samplings: Sequence[Sampling],
) -> list[tuple[Tensor, Tensor, KVCache]]:
    """verify_tree for several texts in one pass: of each, p (N+1, V), hidden (N+1, C), new cache.

    Texts differ in length and trees in size (N). The pass is as wide as the largest tree; in the
    other rows, the surplus is computed and dropped. `hidden` are the streams after the text's
    `layers` (N+1, n C), if it has any. A tree's `begun` is not used.
    Raises ValueError unless there is a tree and a sampling for each text, and past the window.
    """
    if not len(texts) == len(trees) == len(samplings) > 0:
        raise ValueError("give a tree and a sampling for each text, and one text at least")
    lengths = [text.cache_len for text in texts]
    past_kvs, before = joined([text.past_kvs for text in texts])
    pos, mask = batch_mask(trees, lengths, before)
    tokens = [[x.tokens[-1], *tree.tokens] for x, tree in zip(texts, trees, strict=True)]
    idx = torch.tensor([(each + [0] * pos.shape[1])[: pos.shape[1]] for each in tokens])
    idx, pos, mask = (x.to(target.device) for x in (idx, pos, mask))  # (B, T), …, (B, T, P+T)
    streams, new_kvs = target.states(idx, pos, past_kvs, mask)
    hidden = target.ln_f(streams[-1])
    logits = target.lm_head(hidden).cpu()  # (B, T, V)
    p = torch.empty(logits.shape, dtype=torch.float64)
    for sampling in set(samplings):
        its = [b for b, one in enumerate(samplings) if one == sampling]
        p[its] = sampling.probs(logits[its])

    own = rows(new_kvs, before, [P + len(x) for P, x in zip(lengths, tokens, strict=True)])
    verified = []
    for b, text in enumerate(texts):
        n, layers = len(tokens[b]), getattr(text, "layers", None)
        seen = [x[b, :n] for x in streams]
        seen = side_by_side(seen, layers) if layers else hidden[b, :n]
        verified.append((p[b, :n], seen, own[b]))
    return verified


class Seat(NamedTuple):
    """A text's place in a batch, with what is its own: draft, K, sampling, random numbers.

    A draft that has a cache of its own is correct, but slow, where several texts share it.
    """

    text: Text
    draft: object
    K: int | Policy
    sampling: Sampling
    rng: RandomSource


@torch.inference_mode()
def batch_round(target: GPTLanguageModel, seats: Sequence[Seat]) -> None:
    """One round of every text: each drafts, one pass verifies all, each keeps what it accepts."""
    for seat in seats:
        seat.text.restart_if_full()
    texts = [seat.text for seat in seats]
    trees = [propose(x.draft, x.text, x.K, x.sampling, x.rng) for x in seats]
    verified = verify_batch(target, texts, trees, [seat.sampling for seat in seats])
    for seat, tree, one in zip(seats, trees, verified, strict=True):
        text, (p, hidden, new_kvs) = seat.text, one
        P = text.cache_len
        path, token = accept_tree(tree, p, seat.rng)
        past_kvs = keep_path(new_kvs, path, P)
        emitted = [*(tree.tokens[node] for node in path), token]
        done = Round(tree.tokens, tree.q, p, emitted, P, tree.parents, path)
        kept = None
        if hasattr(seat.draft, "propose"):  # it reads what the target knew
            kept = hidden[[0, *(node + 1 for node in path)]]
            kept = kept if text.hidden is None else torch.cat([text.hidden, kept])
        text.take(done, past_kvs, kept)


def one_each(given, B: int) -> list:
    """`given` if it is a list of B things, one for each row; else the same thing for all rows.

    Raises ValueError for a list of another length.
    """
    if not isinstance(given, (list, tuple)):
        return [given] * B
    if len(given) != B:
        raise ValueError(f"{len(given)} values for {B} prompts; give one for each, or one for all")
    return list(given)


@torch.inference_mode()
def batch_generate(
    target: GPTLanguageModel,
    draft,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    K: int | Policy | Sequence[int | Policy] = 4,
    samplings: Sampling | Sequence[Sampling] = Sampling(),
    rngs: Sequence[RandomSource] | None = None,
    stop_token: int | Sequence[int | None] | None = None,
) -> list[Generation]:
    """The target's continuation of each prompt, all of them in shared passes.

    draft, max_new_tokens, K, samplings and stop_token are one for all rows, or a list with one for
    each; rngs is a list, by default RandomSource(0), RandomSource(1), … A finished row leaves the
    batch. Each row is what it is alone, in speculative_generate, or for a draft that has `propose`
    (K: at most so deep) in tree_generate. Returns the generations in the order of the prompts.
    Raises ValueError for a list of the wrong length, and as speculative_generate does.
    """
    if any(isinstance(prompt, int) for prompt in prompts):
        raise ValueError("prompts are lists of tokens; write [prompt] for one")
    B = len(prompts)
    rngs = [RandomSource(b) for b in range(B)] if rngs is None else rngs
    if not isinstance(rngs, (list, tuple)):
        raise ValueError("give rngs as a list, one random source for each row")
    drafts, Ks, samplings = (one_each(x, B) for x in (draft, K, samplings))
    lengths, stops = one_each(max_new_tokens, B), one_each(stop_token, B)
    rngs = one_each(rngs, B)
    for one, k in zip(drafts, Ks, strict=True):
        check_draft(one, k, target.config.vocab_size)
    seats = []
    for b, prompt in enumerate(prompts):
        layers = getattr(drafts[b], "layers", None)
        text = Layered(target, prompt, lengths[b], stops[b], layers)
        seats.append(Seat(text, drafts[b], Ks[b], samplings[b], rngs[b]))
    while running := [seat for seat in seats if not seat.text.done]:
        batch_round(target, running)
    return [seat.text.generation() for seat in seats]


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
    """What a pass needs to know of a text: its next tokens, after those in its cache."""

    tokens: list[int]
    past_kvs: KVCache | None
    cache_len: int
    layers: Sequence[int] | None


class Request(Layered):
    """A text that is read a part at a time, and what else is its own.

    start: where in `tokens` its context begins. What is still to be read is what of the context,
    the current token aside, the cache does not hold. tree: the guesses for the next pass, None
    before they are made; most: how many of them there is room for. The first arguments and the
    errors are those of Text.
    """

    def __init__(self, target, prompt, max_new_tokens, stop_token, layers, sampling, rng, id):
        self.sampling, self.rng, self.id = sampling, rng, id
        self.tree, self.most = None, 0
        super().__init__(target, prompt, max_new_tokens, stop_token, layers)

    def read(self, tokens: list[int]) -> None:
        """Only note which tokens are to be read: the passes to come compute them."""
        self.past_kvs = self.hidden = None
        self.start = len(self.tokens) - 1 - len(tokens)
        self.prefills += bool(tokens)

    def forget(self) -> None:
        """Give the cache back and drop the guesses; the same context is read again later."""
        self.tree, self.most = None, 0
        self.read(self.tokens[self.start : -1])

    @property
    def context(self) -> int:
        """How many tokens of its context come before the current one."""
        return len(self.tokens) - 1 - self.start

    @property
    def unread(self) -> int:
        """How many of these the cache does not hold."""
        return self.context - self.cache_len

    @property
    def to_do(self) -> int:
        """How many tokens there are to compute: unread ones, the current one, the guesses."""
        return self.unread + 1 + len(self.tree.tokens)

    @property
    def room(self) -> int:
        """As Text.room, once all is read."""
        return min(self.end - len(self.tokens), self.block_size - self.context) - 1

    def part(self, n: int) -> tuple[Part, Tree]:
        """Its next n tokens for a pass: the first, and the others as a tree after it."""
        known = self.tokens[self.start + self.cache_len :][:n]
        guesses, before = cut(self.tree, n - len(known)), len(known) - 1
        parents = [*range(-1, before - 1), *(parent + before for parent in guesses.parents)]
        first = Part(known[:1], self.past_kvs, self.cache_len, self.layers)
        return first, Tree(known[1:] + guesses.tokens, parents, guesses.q)

    def take_part(self, n: int, p: Tensor, hidden: Tensor | None, new_kvs: KVCache) -> None:
        """What a pass over n of its tokens brings: more of the cache, or a round.

        p (n, V); hidden (n, C), None where the draft reads none; new_kvs with all n entries.
        """
        unread, tree = self.unread, self.tree
        path, emitted = [], []
        if n > unread:
            self.tree = None  # whatever happens from here on, no guess is judged twice
            tree, p = cut(tree, n - unread - 1), p[unread:].clone()  # the pass's own can go
            path, token = accept_tree(tree, p, self.rng)
            emitted = [*(tree.tokens[node] for node in path), token]
            new_kvs = keep_path(new_kvs, path, self.context)
        if hidden is not None:
            stay = [*range(min(n, unread + 1)), *(unread + 1 + node for node in path)]
            hidden = torch.cat([hidden[:0] if self.hidden is None else self.hidden, hidden[stay]])
        if emitted:
            done = Round(tree.tokens, tree.q, p, emitted, self.context, tree.parents, path)
            self.take(done, new_kvs, hidden)
        else:
            self.past_kvs, self.hidden = new_kvs, hidden


def cut(tree: Tree, n: int) -> Tree:
    """A tree's first n nodes, at least 0; parents stay, as they come before their children."""
    n = max(n, 0)
    return Tree(tree.tokens[:n], tree.parents[:n], tree.q[:n])


def check_server(draft, K: Callable[[int], int], vocab_size: int, **numbers: int | None) -> int:
    """The largest K of a server. Raises ValueError for settings that are out of range.

    numbers: budget, rows, capacity (or None) and width, by name.
    """
    for name, number in numbers.items():
        if name == "capacity" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}; it must be a whole number from 1")
    Ks = [K(running) for running in range(1, numbers["rows"] + 1)]
    for k in Ks:
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ValueError(f"K is {k!r}; it must be a whole number from 0")
    if max(Ks) and draft is None:
        raise ValueError(f"K is {max(Ks)} and there is no draft; give one, or K = 0")
    if draft is not None:
        check_draft(draft, 1, vocab_size)
    return max(Ks)


class FrontDesk:
    """Where requests line up for a server, in order of arrival, and leave again.

    requests: those that are there; the first `running` have begun. block: places of the cache that
    are handed out together; padding: tokens of a pass that take places, whatever they are. Settings
    and errors are those of Server.
    """

    def __init__(
        self,
        target: GPTLanguageModel,
        draft=None,
        K: int | Callable[[int], int] = 0,
        budget: int = 256,
        rows: int = 32,
        capacity: int | None = None,
        width: int = 16,
    ):
        window, V = target.config.block_size, target.config.vocab_size
        self.target, self.draft, self.K = target, draft, K if callable(K) else lambda _: K
        self.reads = hasattr(draft, "propose")  # it may want what the target knew
        numbers = {"budget": budget, "rows": rows, "capacity": capacity, "width": width}
        self.most = check_server(draft, self.K, V, **numbers)
        pool = getattr(target, "cache", None)
        self.block, self.padding = getattr(pool, "size", 1), width * hasattr(pool, "blocks")
        all_places = rows * (window + self.most * self.reads)
        if hasattr(pool, "blocks"):
            all_places = pool.blocks * pool.size
        self.capacity = all_places if capacity is None else capacity
        self.budget, self.rows, self.width = budget, rows, width
        self.no_guess = Tree([], [], torch.empty(0, V, dtype=torch.float64))
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
        layers, rng = getattr(self.draft, "layers", None), rng or RandomSource(self.submitted)
        asked = prompt_tokens, max_new_tokens, stop_token
        request = Request(self.target, *asked, layers, sampling, rng, self.submitted)
        longest = min(request.end, request.block_size) - 1
        needs = self.block * self.places(longest, self.most if self.reads else 0)
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

    K: the most guesses of a request in a pass, a number from 0 or a function of the number of
    running requests; of nothing that was drafted, or the output is biased. budget: tokens that a
    pass computes; width: of one request, so that a long prompt holds nobody up; rows: requests that
    run at a time. capacity: places for tokens in all caches together, by default a window for each
    row, or the pool that the target keeps its caches in.
    Raises ValueError for a draft of another vocabulary, and for numbers that are out of range.
    """

    def guess(self, request: Request, K: int) -> None:
        """Up to K guesses for a request's next pass."""
        request.restart_if_full()
        tree, most = self.no_guess, K if self.reads else min(K, request.room)
        if most > 0:
            tree = propose(self.draft, request, K, request.sampling, request.rng)
        request.tree, request.most = cut(tree, most), most

    def settle(self) -> None:
        """Between two passes: the finished leave, and all others have guesses."""
        for request in [request for request in self.requests if request.done]:
            self.finished[request.id] = self.cancel(request.id)
        K = self.K(max(1, self.running))
        for request in [request for request in self.requests if request.tree is None]:
            self.safely(request, self.guess, request, K)

    def batch(self) -> list[tuple[Request, int]]:
        """Who takes part in the next pass, with how many tokens. Others have no cache."""
        line = self.requests[: self.rows]
        wants = [(request.to_do, self.places(request.context, request.most)) for request in line]
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
            verified = verify_batch(self.target, parts, trees, samplings)
            for (request, n), (p, hidden, new_kvs) in zip(batch, verified, strict=True):
                seen = hidden if self.reads else None
                self.safely(request, request.take_part, n, p, seen, new_kvs)
        self.settle()
        if self.errors:
            errors, self.errors = self.errors, []
            raise RuntimeError("; ".join(errors) + "; call step again for the others")
        finished, self.finished = self.finished, {}
        return finished
