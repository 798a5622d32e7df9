"""A draft that works while the target verifies: speculating on what speculation will give.

A round ends in an outcome (k, t): k guesses were accepted, and the target added t. While the target
is busy, the drafter prepares a roll-out for each of the likeliest outcomes. If one of them comes
true, the next guesses are there at once; if not, they are drafted then, as ever (Kumar, Dao and May
2026, Speculative Speculative Decoding, arXiv 2603.03251).

`Drafter` does the work, and `AheadDraft` is the draft that tree_generate asks. Between them stands
who runs the drafter: `Inline`, in this process, or `Worker`, a process of its own.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from nanogpt.same import SameDice
from nanogpt.sampling import RandomSource, Sampling, Uniforms, check_probabilities
from nanogpt.trees.tree import Proposer, ReadText, Tree, keep_path

Outcome = tuple[int, int]  # k accepted, then this token
LATEST = 2000  # answers that are remembered
TEXTS = itertools.count()  # a number for each text


def fan_out(budget: int, K: int, a: float, r: float = 1.0) -> list[float]:
    """F_0 … F_K: how many outcomes to prepare for each number of accepted guesses; sum: budget.

    a: how likely a guess is accepted; r: the chance that the target's token is not among the F
    first falls as F^-r. F_k = F_0 a^(k/(1+r)), and the last, where no residual is drawn from,
    has the factor (1-a)^(-1/(1+r)) more: no other shares of the budget miss less often.
    Raises ValueError unless 0 < a < 1, r > 0 and K and the budget are at least 1.
    """
    if not (0 < a < 1 and r > 0 and K >= 1 and budget >= 1):
        raise ValueError(
            f"budget is {budget}, K {K}, a {a} and r {r}; budget and K must be at "
            "least 1, a in (0, 1) and r above 0"
        )
    shares = [a ** (k / (1 + r)) for k in range(K + 1)]
    shares[K] *= (1 - a) ** (-1 / (1 + r))
    return [budget * share / sum(shares) for share in shares]


def wholes(shares: Sequence[float]) -> list[int]:
    """Shares as whole numbers of the same (rounded) sum: the largest remainders are rounded up."""
    numbers = [int(share) for share in shares]
    left = sorted(range(len(shares)), key=lambda i: numbers[i] - shares[i])
    for i in left[: round(sum(shares)) - sum(numbers)]:
        numbers[i] += 1
    return numbers


def likely_outcomes(q: Tensor, guesses: Sequence[int], fans: Sequence[int]) -> list[Outcome]:
    """The outcomes (k, t) to prepare for: for each k, the fans[k] likeliest tokens t.

    q (K+1, V): after the current token and after each of the K guesses. Where guess k would have
    been rejected, it cannot be the target's token; after the last one, any token may come.
    """
    found = []
    for k, order in enumerate(q.argsort(dim=-1, descending=True, stable=True).tolist()):
        best = order[: fans[k] + 1]
        may = [t for t in best if k == len(guesses) or t != guesses[k]]
        found += [(k, t) for t in may[: fans[k]]]
    return found


def tilted(q: Tensor, raw: Tensor, fans: Sequence[int], C: float) -> Tensor:
    """q (n, V) with the fans[i] tokens that are likeliest by raw[i] made C times as likely.

    It is normalised again. A guess drawn from it that is rejected is rejected in favour of just
    these tokens (Saguaro sampling). raw (n, V): q before sampling; tokens as likely as the last of
    them count as well.
    """
    F = torch.tensor(fans)[:, None]  # (n, 1)
    least = raw.topk(max(1, *fans)).values.gather(-1, (F - 1).clamp(min=0))
    q = torch.where((raw >= least) & (F > 0), C * q, q)
    return q / q.sum(-1, keepdim=True)


class Branching:
    """What may follow a text, as a tree that grows: q after any node, of any draft.

    Node 0 is the current token; every other one is added below its parent.
    """

    def __init__(self, draft):
        self.draft, self.vocab_size = draft, draft.vocab_size

    def begin(self, context: Sequence[int]) -> None:
        """A new text: context, whose last token becomes node 0."""
        self.context = list(context)
        self.tokens, self.parents = [self.context[-1]], [-1]

    def add(self, parent: int, token: int) -> int:
        """The number of a new node."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """The nodes from 0 down to this one."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def after(self, nodes: Sequence[int]) -> Tensor:
        """The draft's q (n, V) after each of n nodes, at temperature 1; each is asked for once."""
        texts = [[self.tokens[n] for n in self.path(node)] for node in nodes]
        return torch.stack([self.draft.get_probs(self.context[:-1] + text) for text in texts])

    def forget(self, node: int) -> None:
        """A leaf is to be asked for once more: nothing to do for a draft without a cache."""

    def settle(self, current: int, last: int) -> list[int]:
        """`current` is the new node 0, and the path from it to `last` stays; the rest is dropped.

        Returns the new numbers of that path.
        """
        path = self.path(last)
        kept = [self.tokens[node] for node in path]
        at = path.index(current)
        self.begin(self.context[:-1] + kept[: at + 1])
        return [0, *(self.add(i, token) for i, token in enumerate(kept[at + 1 :]))]


class BranchingModel(Branching):
    """The same for a transformer: one pass reads any nodes, with a tree's mask over one cache.

    K: how long a chain may be. What it reads begins at a multiple of half a window, so that two
    chains after the current token always fit. Raises ValueError where half a window is too short.
    """

    def __init__(self, draft, K: int):
        super().__init__(draft)
        self.model, self.reach = draft.model, 2 * K + 1
        self.window = self.model.config.block_size
        if self.window - self.window // 2 < self.reach:
            raise ValueError(
                f"K is {K}; half the draft's window of {self.window} must hold 2 K + 1 tokens"
            )

    def begin(self, context: Sequence[int]) -> None:
        """As Branching.begin; nothing has been read."""
        super().begin(context)
        half, over = self.window // 2, len(context) + self.reach - self.window
        self.start = max(0, -(-over // half) * half)
        self.past_kvs, self.read = None, 0  # how many entries it has
        self.sees: dict[int, bytes] = {}  # of each node that was read: 1 for each entry it sees

    @torch.no_grad()
    def after(self, nodes: Sequence[int]) -> Tensor:
        """As Branching.after, q (n, V), in one pass over these and what was not read above them."""
        # What node 0 follows and was not read: all, or guesses of which the last was accepted.
        prefix = self.context[self.start + self.read : -1] if 0 not in self.sees else []
        fresh, first, sees = [], self.read + len(prefix), self.sees
        for node in nodes:
            above = []
            while node >= 0 and node not in sees:
                above.append(node)
                sees[node] = None  # soon
                node = self.parents[node]
            fresh += reversed(above)
        width, rows = first + len(fresh), []
        for slot, node in enumerate(fresh, start=first):
            seen = sees[self.parents[node]] if node else bytes([1]) * first  # the text before it
            sees[node] = seen + bytes(slot - len(seen)) + b"\1"
            rows.append(sees[node].ljust(width, b"\0"))
        mask = np.frombuffer(b"".join(rows), dtype=bool).reshape(-1, width)
        if prefix:
            mask = np.concatenate([np.tri(len(prefix), width, self.read, dtype=bool), mask])
        idx = torch.tensor([prefix + [self.tokens[node] for node in fresh]])
        pos, mask = torch.from_numpy(mask.sum(-1) - 1), torch.from_numpy(mask.copy())
        device = self.model.device
        logits, _, self.past_kvs = self.model(
            idx.to(device), None, pos.to(device), self.past_kvs, mask.to(device)
        )
        self.read = width
        if fresh != list(nodes):  # some are only above others, or out of order
            logits = logits[:, [len(sees[node]) - 1 - width for node in nodes]]  # from the end
        return Sampling().probs(logits[0, -len(nodes) :])

    def forget(self, node: int) -> None:
        """As Branching.forget; its entry stays, and nobody sees it."""
        del self.sees[node]

    def settle(self, current: int, last: int) -> list[int]:
        """As Branching.settle; the entries of the path that stays move together in the cache."""
        before, start = min(len(self.context) - 1 - self.start, self.read), self.start
        past_kvs = self.past_kvs
        slots = [len(self.sees[node]) - 1 for node in self.path(last) if node in self.sees]
        path = super().settle(current, last)  # which begins anew
        if past_kvs is not None and self.start == start:
            slots = [*range(before), *slots]
            self.past_kvs, self.read = keep_path(past_kvs, slots, -1), len(slots)
            now = len(self.context) - 1 - start  # node 0's entry
            for node in path[: max(0, len(slots) - now)]:
                self.sees[node] = bytes([1]) * (now + node + 1)
        return path


@dataclass(frozen=True)
class Question:
    """What the drafter is asked each round: how it went, and how many guesses there is room for.

    text: which one, no two have the same number; number: of the round in its text; context: all
    tokens so far; outcome: of the last round, None if the text is new; source: gives the random
    numbers of a round's outcomes, from its number.
    """

    text: int
    number: int
    context: Sequence[int] | None
    outcome: Outcome | None
    room: int
    sampling: Sampling
    source: Callable[[int], Callable[[Outcome], RandomSource]]

    def follows(self, last: Question | None) -> bool:
        """Whether this is about the same text as the last one, a round later."""
        before = self.text, self.number - 1
        return last is not None and self.outcome is not None and before == (last.text, last.number)


@dataclass
class Answer:
    """The next guesses: tokens (n) and q (n, V).

    drawn: how many of them were there already when they were asked for; passes: the drafter's since
    the last answer, (start, end, rows) each, in seconds of time.perf_counter.
    """

    tokens: list[int]
    q: np.ndarray
    drawn: int
    passes: list[tuple[float, float, int]]

    @property
    def hit(self) -> bool:
        """Whether all of them were there."""
        return len(self.tokens) == self.drawn > 0


class Numbers:
    """A source for each outcome of each round, from one seed.

    Each outcome has K numbers that no other has, whether a roll-out is prepared, in which order, or
    on a miss: the text depends on the seeds alone, and not on who was faster.
    """

    def __init__(self, seed: int, K: int, vocab_size: int):
        self.seed, self.K, self.vocab_size = seed, K, vocab_size

    def __call__(self, number: int) -> Callable[[Outcome], RandomSource]:
        K, V = self.K, self.vocab_size
        numbers = Uniforms.generator([self.seed, number]).random((K + 1) * V * K)

        def source(outcome: Outcome) -> RandomSource:
            first = (outcome[0] * V + outcome[1]) * K
            return RandomSource(0, Given(numbers[first : first + K].tolist()))

        return source


class Places:
    """The same dice for every outcome: known ahead, as they belong to places, not to turns.

    dice: the verifier's, before it draws in this round, whose number it is.
    """

    def __init__(self, dice: SameDice, number: int):
        self.seed, self.index, self.number = dice.seed, dice.index, number

    def __call__(self, number: int) -> Callable[[Outcome], RandomSource]:
        """Of this round, the dice of its own places; of the next, those after an outcome's."""
        ahead = number - self.number  # 0 or 1
        return lambda outcome: SameDice(self.seed, self.index + ahead * (outcome[0] + 1))


class Given:
    """Uniform numbers for a RandomSource: these, in turn."""

    def __init__(self, numbers: Sequence[float]):
        self.random = iter(numbers).__next__  # the next one


@dataclass
class Rollout:
    """Guesses for one outcome: the nodes (the target's token first), tokens and q so far.

    raw: q before sampling and tilting, to rank by; wanted: how many guesses it is to have.
    """

    nodes: list[int]
    source: RandomSource
    wanted: int = 0
    tokens: list[int] = field(default_factory=list)
    q: list[np.ndarray] = field(default_factory=list)
    raw: list[np.ndarray] = field(default_factory=list)


class Drafter:
    """Drafts after what came, and prepares for what may come; asked about one text at a time.

    A question about a different text begins with that text's whole context.

    draft: any with get_probs; of one that has a `model`, the model is asked, many nodes in a pass.
    K: guesses a round; fans: F_0 … F_K, how many outcomes to prepare for each number of accepted
    guesses; C: Saguaro sampling, 1 being none.
    Raises ValueError for K or fans that do not fit, or C outside (0, 1].
    """

    def __init__(self, draft, K: int, fans: Sequence[int], C: float = 1.0):
        if K < 1 or len(fans) != K + 1 or min(fans) < 0:
            raise ValueError(f"K is {K} and fans {fans}; give K + 1 numbers from 0, and K from 1")
        if not 0 < C <= 1:
            raise ValueError(f"C is {C}; it must be above 0 and at most 1")
        self.K, self.C, self.vocab_size = K, C, draft.vocab_size
        self.fans = [min(fan, self.vocab_size) for fan in fans]  # there are no more tokens
        model = getattr(draft, "model", None) is not None
        self.tree = BranchingModel(draft, K) if model else Branching(draft)
        self.question: Question | None = None  # the last one
        self.given: Rollout | None = None  # the guesses that were handed out, and may come true
        self.settled = False
        self.prepared: dict[Outcome, Rollout] = {}
        self.passes: list[tuple[float, float, int]] = []

    def answer(self, question: Question) -> Answer:
        """The guesses for what came: those that were prepared, or else drafted now.

        A roll-out is for one outcome, drawn fresh and used once; which one is used depends on the
        outcome alone; its q is what it was drawn from.
        """
        rollout = self.rollout_for(question)
        self.question, wanted = question, min(self.K, question.room)
        drawn, rollout.wanted = min(wanted, len(rollout.tokens)), wanted
        while len(rollout.tokens) < wanted:
            self.extend([rollout])
        self.given, self.settled, self.prepared = rollout, False, {}  # nothing is used twice
        passes, self.passes = self.passes, []
        q = np.array(rollout.q[:wanted]).reshape(wanted, self.vocab_size)
        return Answer(rollout.tokens[:wanted], q, drawn, passes)

    def rollout_for(self, question: Question) -> Rollout:
        """What was prepared for what came, or a roll-out with nothing drawn yet."""
        outcome = question.outcome
        if not question.follows(self.question):  # the whole context is new
            self.tree.begin(question.context)
            outcome = outcome or (0, question.context[-1])
            return Rollout([0], question.source(question.number)(outcome))
        self.settle()
        if outcome in self.prepared:
            rollout = self.prepared[outcome]
            if len(rollout.raw) > len(rollout.tokens) < min(self.K, question.room):
                rollout.raw.pop()  # there is more room than was foreseen: the last is read again
                self.tree.forget(rollout.nodes[-1])
            return rollout
        k, t = outcome
        node = self.tree.add(self.given.nodes[k], t)
        return Rollout([node], question.source(question.number)(outcome))

    def settle(self) -> None:
        """Move the tree to the guesses that were handed out, once."""
        if not self.settled:
            nodes = self.given.nodes[: 1 + self.given.wanted]
            self.given.nodes = self.tree.settle(nodes[0], nodes[-1])
            self.settled = True

    def extend(self, rollouts: Sequence[Rollout]) -> None:
        """One pass reads the last of each, and draws one more guess for those that want it."""
        raw = self.timed([rollout.nodes[-1] for rollout in rollouts])
        for rollout, row in zip(rollouts, raw.numpy(), strict=True):
            rollout.raw.append(row)
        short = [i for i, each in enumerate(rollouts) if len(each.tokens) < each.wanted]
        if not short:
            return
        raw = raw if len(short) == len(rollouts) else raw[short]
        q = self.question.sampling.of_probs(raw)
        if self.C < 1:
            q = tilted(q, raw, [self.fans[len(rollouts[i].tokens)] for i in short], self.C)
        check_probabilities(q)
        q, cdf = q.numpy(), q.numpy().cumsum(axis=-1)
        for row, i in enumerate(short):
            rollout = rollouts[i]
            token = rollout.source.categorical(q[row], cdf[row])
            rollout.nodes.append(self.tree.add(rollout.nodes[-1], token))
            rollout.tokens.append(token)
            rollout.q.append(q[row])

    def timed(self, nodes: Sequence[int]) -> Tensor:
        """The draft's q (n, V) after these nodes, the pass noted."""
        started = time.perf_counter()
        raw = self.tree.after(nodes)
        self.passes.append((started, time.perf_counter(), len(nodes)))
        return raw

    def prepare(self) -> Iterator[None]:
        """Roll out the likeliest outcomes of the round that is being verified; yields after a pass.

        If a question comes first, whatever was drawn is kept: the roll-out that is asked for is
        finished, the others are dropped.
        """
        self.settle()
        given, question = self.given, self.question
        guesses = given.tokens[: given.wanted]
        if len(given.raw) == len(guesses):  # the last was drawn, and not read
            self.extend([given])
            yield
        q = torch.from_numpy(np.stack(given.raw[: len(guesses) + 1]))
        source = question.source(question.number + 1)
        for k, t in likely_outcomes(q, guesses, self.fans):
            wanted = min(self.K, question.room - k - 1)
            if wanted > 0:
                node = self.tree.add(given.nodes[k], t)
                self.prepared[k, t] = Rollout([node], source((k, t)), wanted)
        while short := [r for r in self.prepared.values() if len(r.raw) <= r.wanted]:
            self.extend(short)  # at last, the last guesses are read: the next round begins there
            yield


class Inline:
    """Runs a drafter here and now: it has prepared everything before it is asked again.

    prepare: False drafts only what is asked for.
    """

    def __init__(self, drafter: Drafter, prepare: bool = True):
        self.drafter, self.prepare = drafter, prepare

    def ask(self, question: Question) -> Answer:
        """The drafter's answer."""
        if self.prepare and question.follows(self.drafter.question):
            for _ in self.drafter.prepare():
                pass
        return self.drafter.answer(question)


def give_way() -> None:
    """Let whoever else wants this processor have it now, and come back at once if nobody does."""
    getattr(os, "sched_yield", lambda: time.sleep(0))()  # Windows has the second only


def stay_awake(pipe, seconds: float = 0.001) -> None:
    """Wait for something to come, for so long at most, without falling asleep: waking takes time.

    Between two looks it gives way: on a busy machine, the process that it waits for may need this
    very processor.
    """
    until = time.perf_counter() + seconds
    while not pipe.poll() and time.perf_counter() < until:
        give_way()


def work(pipe, pickled: bytes) -> None:
    """A worker's whole life: it answers, prepares until the next question, and ends with its pipe.

    Ctrl-C is for its parent. When that is gone, however it went, the pipe closes. A question of
    None is answered with None. With nothing left to do, it stays awake for a moment.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    drafter, busy = pickle.loads(pickled), iter(())
    gc.freeze()  # the garbage collector skips what is there now
    try:
        with torch.inference_mode():
            pipe.send("ready")
            while True:
                while not pipe.poll() and next(busy, "done") != "done":
                    pass
                stay_awake(pipe)
                number, question = pipe.recv()  # waits if there is nothing left to prepare
                pipe.send((number, question and drafter.answer(question)))
                busy = drafter.prepare() if question else busy
    except (EOFError, OSError):
        return


class Worker:
    """Runs a drafter in a process of its own: `with Worker(drafter) as worker: …`.

    patience: seconds to wait for an answer, and 20 times that for the process to start. A process
    that is dead, or does not answer, is replaced by the drafter in this one: slower, with a line of
    warning, and the same tokens. The process ends with the `with`, or with this process.
    """

    def __init__(self, drafter: Drafter):
        self.drafter, self.patience = drafter, 5.0
        self.process = self.pipe = None
        self.asked, self.last = 0, None  # how many questions, and which was the last

    def __enter__(self) -> Worker:
        context = multiprocessing.get_context("spawn")  # the same on every system
        self.pipe, its = context.Pipe()
        self.last = None  # a new process knows of no text
        given = its, pickle.dumps(self.drafter)
        self.process = context.Process(target=work, args=given, daemon=True)
        self.process.start()
        its.close()  # so that the pipe breaks if the process does
        try:
            if not self.pipe.poll(20 * self.patience):
                raise TimeoutError
            self.pipe.recv()
        except (EOFError, OSError, TimeoutError):
            self.give_up()
        except BaseException:  # such as Ctrl-C
            self.close()
            raise
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.pipe.close()
            self.process.join(1.0)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
            self.process.close()
            self.process = None

    def give_up(self) -> None:
        """Go on without the process."""
        self.process.kill()
        self.close()
        warnings.warn("the draft process is gone; drafting goes on in this one", stacklevel=2)

    def ask(self, question: Question) -> Answer:
        """The worker's answer, or, without one, this process's own."""
        if self.process is not None:
            known = replace(question, context=None) if question.follows(self.last) else question
            self.last = question
            try:
                return self.reply(known)
            except (EOFError, OSError, TimeoutError):
                self.give_up()
        return self.drafter.answer(question)

    def reply(self, question: Question | None) -> Answer | None:
        """What the process says. Raises an OSError or EOFError if it is gone, or TimeoutError."""
        self.asked += 1
        self.pipe.send((self.asked, question))
        stay_awake(self.pipe)
        while self.pipe.poll(self.patience):
            number, answer = self.pipe.recv()
            if number == self.asked:  # an older one was asked by a run that was stopped
                return answer
        raise TimeoutError


class AheadDraft(Proposer):
    """A draft for tree_generate whose drafter works while the target verifies.

    by: an Inline or a Worker. shared: draw the guesses from the verifier's source, which only an
    Inline can; with the same dice (a SameDice), either does in any case. For one text at a time: if
    texts take turns at one AheadDraft, each round is a new text. Several AheadDrafts may share a
    `by`, or a drafter: what they write stays the same, but nothing is prepared where somebody else
    asked in between. answers: what the drafter answered, in order, the latest 2,000; waits: when
    each was asked for and when it was there, in seconds of time.perf_counter.
    """

    def __init__(self, by: Inline | Worker, shared: bool = False):
        self.by, self.shared, self.vocab_size = by, shared, by.drafter.vocab_size
        self.answers: list[Answer] = []
        self.waits: list[tuple[float, float]] = []
        self.text: Callable[[], ReadText | None] = lambda: None
        self.number, self.round, self.source, self.guesses = 0, 0, None, []

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of up to K guesses; the drafter goes on working when it is returned."""
        asked, outcome = time.perf_counter(), None
        known = self.text() is text
        done = text.rounds[-1] if known and len(text.rounds) == self.round + 1 else None
        if done and done.emitted[:-1] == self.guesses[: done.n_accepted]:  # and not another loop's
            outcome = done.n_accepted, done.emitted[-1]
        else:
            self.text, self.source = weakref.ref(text), self.new_source(rng)
            self.number = next(TEXTS)
        self.round = len(text.rounds)
        if isinstance(rng, SameDice):
            self.source = Places(rng, self.round)
        asks = self.number, self.round, text.tokens, outcome, most, sampling, self.source
        answer = self.by.ask(Question(*asks))
        self.note(answer, (asked, time.perf_counter()))
        self.guesses = tokens = answer.tokens
        return Tree.chain(tokens, torch.from_numpy(answer.q))

    def note(self, answer: Answer, wait: tuple[float, float]) -> None:
        """Remember an answer and how long it took, and forget what is long past."""
        self.answers.append(answer)
        self.waits.append(wait)
        del self.answers[:-LATEST], self.waits[:-LATEST]

    def new_source(self, rng: RandomSource) -> Callable[[int], Callable[[Outcome], RandomSource]]:
        """The random numbers of a new text: the verifier's, or a source of their own."""
        if self.shared:
            return lambda number: lambda outcome: rng
        seed = sum(rng.bernoulli(0.5) << bit for bit in range(32))
        return Numbers(seed, self.by.drafter.K, self.vocab_size)
