"""A server under load: recorded requests on a virtual clock, and the wall clock beside it.

Every policy meets the same requests at the same moments. A step's time is measured once, and at
temperature 0 so is what each guess is worth: a replay is exact but for the times.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nanogpt.measure.bench import batch_times
from nanogpt.measure.clock import clock
from nanogpt.sampling import Sampling, Uniforms
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.server import Server, schedule


class Trace(NamedTuple):
    """A recorded request: tokens of its prompt; of each new token, how many guesses agree there.

    right[i]: so many of the draft's best guesses, from the i-th new token on, are the text's own.
    """

    prompt: int
    right: list[int]


def record(target, draft, prompts, lengths: Sequence[int], most: int) -> list[Trace]:
    """The traces of prompts that are continued greedily, `lengths` tokens each.

    Up to `most` guesses are compared.
    """
    traces = []
    made = batch_generate(target, draft, prompts, list(lengths), most, Sampling(0))
    for prompt, tokens in zip(prompts, [m.tokens for m in made], strict=True):
        right = []
        for i in range(len(tokens)):
            n, after = 0, tokens[i : i + most]
            while n < len(after):
                if int(draft.get_probs([*prompt, *tokens[: i + n]]).argmax()) != after[n]:
                    break
                n += 1
            right.append(n)
        traces.append(Trace(len(prompt), right))
    return traces


class Logged(Server):
    """A server that notes of each pass its rows, its width, its guesses and the places it fills."""

    def batch(self) -> list:
        """As Server.batch, noted in `log`."""
        chosen = super().batch()
        shares = [n for _, n in chosen] or [0]
        guesses = sum(len(request.tree.tokens) for request, _ in chosen if request.tree)
        filled = sum(request.cache_len + n for request, n in chosen)
        self.__dict__.setdefault("log", []).append((len(chosen), max(shares), guesses, filled))
        return chosen


@dataclass(frozen=True)
class StepTime:
    """What a step of a server takes, in seconds.

    passes: {(rows, width): seconds of the pass}; and beside it fixed, per row and per guess.
    """

    passes: dict[tuple[int, int], float]
    fixed: float
    per_row: float
    per_guess: float

    @classmethod
    def measured(
        cls, target, draft, prompts, lengths: Sequence[int], batches=(1, 4, 16), K=8
    ) -> StepTime:
        """The passes on their own, and the rest from steps of a server with and without guesses.

        Medians; and no pass takes longer than a larger one. A greedy server takes the same steps
        each time, so that each has a median of three. The rest is fitted to these by least squares.
        """
        passes = batch_times(target, batches, (1, 2, 4, 8, 16), 48, repeats=12)
        passes = {
            (b, n): min(t for (B, N), t in passes.items() if b <= B and n <= N) for b, n in passes
        }
        bare, notes, rest = cls(passes, 0, 0, 0), [], []
        for seats, guesses in itertools.product(batches[1:], (0, K)):
            runs = []
            for _ in range(3):
                server = Logged(target, draft, guesses, rows=seats)
                for prompt, n in list(zip(prompts, lengths, strict=True))[: 3 * seats // 2]:
                    server.submit(prompt, min(n, 24), Sampling(0))
                runs.append([])
                while server.requests:
                    runs[-1].append(clock(server.step)[0])
            notes += [(1, B, guessed) for B, _, guessed, _ in server.log]
            passed = [bare(B, n, 0) for B, n, *_ in server.log]
            rest += np.subtract(np.median(runs, axis=0), passed).tolist()
        return cls(passes, *np.linalg.lstsq(np.array(notes), rest, rcond=None)[0].clip(0).tolist())

    def __call__(self, rows: int, width: int, guesses: int, tokens: int = 0) -> float:
        """Seconds of a step; between the passes that were measured, on a straight line.

        A pass is a rectangle: how many of its tokens somebody needs makes no difference.
        """
        batches, widths = (sorted(set(sizes)) for sizes in zip(*self.passes, strict=True))
        seconds = [np.interp(width, widths, [self.passes[b, w] for w in widths]) for b in batches]
        rest = self.fixed + self.per_row * rows + self.per_guess * guesses
        return float(np.interp(rows, batches, seconds)) + rest


def arrivals(rate: float, n: int, seed: int = 0) -> np.ndarray:
    """When n requests arrive, (n,) seconds, `rate` a second on average: exponential gaps."""
    uniform = Uniforms(seed).random
    return np.cumsum([-np.log(1 - uniform()) / rate for _ in range(n)])


@dataclass(frozen=True)
class Load:
    """What a run was like.

    requests (n, 4): when each arrived, wrote its first token, was done; and its tokens. steps (m,
    3): of each, the time at its end, the requests in it, K.
    """

    requests: np.ndarray
    steps: np.ndarray

    def after(self, warm: int) -> Load:
        """Without the first `warm` requests."""
        return Load(self.requests[warm:], self.steps)

    @property
    def first(self) -> np.ndarray:
        """Seconds from arrival to the first token, (n,)."""
        return self.requests[:, 1] - self.requests[:, 0]

    @property
    def each(self) -> np.ndarray:
        """Seconds a token after the first one, (n,)."""
        return (self.requests[:, 2] - self.requests[:, 1]) / np.maximum(1, self.requests[:, 3] - 1)

    @property
    def goodput(self) -> float:
        """Tokens of these requests a second, from the first arrival to the last end."""
        return float(self.requests[:, 3].sum() / (self.requests[:, 2].max() - self.requests[0, 0]))


def replay(
    traces: Sequence[Trace],
    arriving: Sequence[float],
    policy: Callable[[int], int],
    step_time: Callable[[int, int, int, int], float],
    clients: int = 0,
    rows: int = 32,
    budget: int = 256,
    width: int = 16,
) -> Load:
    """What a Server with this policy would do: traces in turn, arriving (n,) at these seconds.

    Its clock moves by step_time(rows, width, guesses, tokens) a step. With `clients`, only so many
    of `arriving` count: the next request comes when one is done (a closed loop).
    """
    arriving, line, facts, log = list(arriving), [], {}, []
    step_time = functools.cache(step_time)
    now, running, came, issued = 0.0, 0, 0, clients or len(arriving)
    while line or came < len(arriving):
        now = now if line else max(now, arriving[came])
        while came < issued and arriving[came] <= now:
            trace = traces[came % len(traces)]
            line.append({"id": came, "trace": trace, "unread": trace.prompt - 1, "at": 0})
            came += 1
        k = policy(max(1, running))
        for r in line:  # whoever needs guesses makes them
            r.setdefault("k", min(k, len(r["trace"].right) - r["at"] - 1))
        wants = [(r["unread"] + 1 + r["k"], 0) for r in line[:rows]]
        shares = schedule(wants, running, budget, width, 0)
        running = len(shares)
        guesses = sum(r["k"] for r, n in zip(line, shares, strict=False) if n)
        now += step_time(sum(n > 0 for n in shares), max(shares), guesses, sum(shares))
        log.append((now, running, k))
        for r, n in zip(list(line), shares, strict=False):
            ready, r["unread"] = n - r["unread"], max(0, r["unread"] - n)
            if ready > 0:  # its current token was in the pass
                facts.setdefault(r["id"], [arriving[r["id"]], now])
                r["at"] += 1 + min(ready - 1, r["trace"].right[r["at"]])
                del r["k"]
            if r["at"] == len(r["trace"].right):
                facts[r["id"]] += [now, r["at"]]
                line.remove(r)
                running -= 1
                if issued < len(arriving):  # its client sends the next
                    arriving[issued], issued = now, issued + 1
    return Load(np.array([facts[i] for i in range(len(facts))]), np.array(log))


def serve(server: Server, prompts, lengths: Sequence[int], arriving: Sequence[float]) -> Load:
    """The same for real: greedy requests, prompts in turn, submitted at these seconds (n,)."""
    facts, log, came, done, begin = {}, [], 0, 0, time.perf_counter()
    while done < len(arriving):
        now = time.perf_counter() - begin
        while came < len(arriving) and arriving[came] <= now:
            i = came % len(prompts)
            server.submit(prompts[i], lengths[i], Sampling(0))
            came += 1
        requests = list(server.requests)
        finished, now = server.step(), time.perf_counter() - begin
        log.append((now, server.running, server.policy(max(1, server.running))))
        for request in requests:
            if len(request.tokens) > request.n_prompt:
                facts.setdefault(request.id, [arriving[request.id], now])
        for id, made in finished.items():
            facts[id] += [now, len(made.tokens)]
            done += 1
    return Load(np.array([facts[i] for i in range(len(arriving))]), np.array(log))


def lanes_of(server: Server, coming: dict[int, list], n_new: int) -> tuple[dict, dict]:
    """What each request did in each step, for `diagrams.request_lanes`, and all generations.

    coming: {step: prompts that arrive before it}, each continued greedily by n_new tokens.
    """
    lanes, done, step = {}, {}, 0
    while step <= max(coming) or server.requests:
        for prompt in coming.get(step, []):
            server.submit(prompt, n_new, Sampling(0))
        before = [(r, len(r.tokens), r.cache_len) for r in server.requests]
        done |= server.step()
        for r, length, cached in before:
            lane = lanes.setdefault(f"request {r.id}", [("", 0)] * step)
            wrote, read = len(r.tokens) - length, r.cache_len - cached
            what = "writes" if wrote else "lost" if read < 0 else "reads"
            lane.append((what if wrote or read else "waits", wrote or read))
        step += 1
    return lanes, done
