"""What a service measures of the requests that it served, in the field's words.

TTFT, time to first token: from a request's arrival on. TPOT, time per output token after the first.
ITL, inter-token latency: the gap before each of them, one by one; under speculation tokens come in
bursts. Queueing: from the arrival to the first pass that the request is part of. SLO, service-level
objective: the TTFT and the TPOT that users are promised. Throughput counts tokens, goodput the
requests that meet the SLO (Zhong et al. 2024, DistServe, arXiv 2401.09670). Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nanogpt.serving.server import Request

PERCENTILES = (50, 95, 99)


class SLO(NamedTuple):
    """What users are promised: at most so many seconds to the first token, and for each other."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class Served:
    """What became of one request.

    arrived, began: when it was sent, and when the first pass began that it was part of. Of each of
    its rounds, came: when its tokens were there; made: how many they are; guessed: how many guesses
    it had. preempted: how often it lost its places; shared: entries of the cache that it found
    made.
    """

    arrived: float
    began: float
    came: tuple[float, ...]
    made: tuple[int, ...]
    guessed: tuple[int, ...]
    preempted: int = 0
    shared: int = 0

    @classmethod
    def of(cls, request: Request, arrived: float) -> Served:
        """What a finished request has noted."""
        made = tuple(len(r.emitted) for r in request.rounds)
        guessed = tuple(len(r.candidates) for r in request.rounds)
        came = tuple(request.came)
        return cls(arrived, request.began, came, made, guessed, request.preempted, request.shared)

    @property
    def done(self) -> float:
        """When its last token was there."""
        return self.came[-1]

    @property
    def tokens(self) -> int:
        """How many tokens it wrote."""
        return sum(self.made)

    @property
    def queueing(self) -> float:
        """Seconds from its arrival to its first pass."""
        return self.began - self.arrived

    @property
    def ttft(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.came[0] - self.arrived

    @property
    def tpot(self) -> float:
        """Seconds a token after the first; NaN if it has none."""
        return (self.done - self.came[0]) / (self.tokens - 1) if self.tokens > 1 else np.nan

    @property
    def gaps(self) -> list[float]:
        """Seconds before each token after the first: those of a round come at once."""
        found = [0.0] * (self.made[0] - 1)
        for before, came, made in zip(self.came, self.came[1:], self.made[1:], strict=False):
            found += [came - before, *[0.0] * (made - 1)]
        return found

    def meets(self, slo: SLO) -> bool:
        """Whether it kept the promise."""
        return self.ttft <= slo.ttft and not self.tpot > slo.tpot  # NaN: no token to be late


class Timeline(NamedTuple):
    """Of each step of a server, arrays (m,).

    end: the time; running, waiting: requests then; K: the policy's guesses; and the pass that it
    made: rows, width of the widest, guesses of all, tokens of all, and how many of those were read
    for the cache alone.
    """

    end: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    K: np.ndarray
    rows: np.ndarray
    width: np.ndarray
    guesses: np.ndarray
    tokens: np.ndarray
    read: np.ndarray


@dataclass(frozen=True)
class Load:
    """A run: all requests in order of arrival, the steps, and how many of the first do not count.

    Times are arrays, a number for each request that counts (ITL: for each token). What is per
    second is per second of the window: from the first arrival that counts to the last, so that the
    server's line is never cut off; where all came at once, to the last end.
    """

    requests: Sequence[Served]
    steps: Timeline
    warm: int = 0

    def after(self, warm: int) -> Load:
        """The same run, where the first `warm` requests do not count: they met an empty server.

        Raises ValueError where none is left.
        """
        if not 0 <= warm < len(self.requests):
            raise ValueError(f"of {len(self.requests)} requests, {warm} do not count: leave some")
        return replace(self, warm=warm)

    @property
    def counted(self) -> Sequence[Served]:
        """The requests that count."""
        return self.requests[self.warm :]

    @property
    def ttft(self) -> np.ndarray:
        """Seconds from arrival to the first token, (n,)."""
        return np.array([request.ttft for request in self.counted])

    @property
    def tpot(self) -> np.ndarray:
        """Seconds a token after the first, of the requests that have one."""
        return np.array([request.tpot for request in self.counted if request.tokens > 1])

    @property
    def itl(self) -> np.ndarray:
        """Seconds before each token that is not a request's first, of all these requests."""
        return np.array([gap for request in self.counted for gap in request.gaps])

    @property
    def queueing(self) -> np.ndarray:
        """Seconds from arrival to the first pass, (n,)."""
        return np.array([request.queueing for request in self.counted])

    @property
    def window(self) -> tuple[float, float]:
        """From the first arrival that counts to the last; if they are one, to the last end."""
        first, last = self.counted[0].arrived, self.counted[-1].arrived
        return first, last if last > first else max(request.done for request in self.requests)

    def per_second(self, amount: float) -> float:
        """An amount, per second of the window."""
        first, last = self.window
        return float(amount / (last - first))

    @property
    def rate(self) -> float:
        """Requests that came a second."""
        return self.per_second(len(self.counted))

    @property
    def throughput(self) -> float:
        """Tokens a second, of all requests that finished in the window, whenever they came."""
        first, last = self.window
        finished = [request for request in self.requests if first < request.done <= last]
        return self.per_second(sum(request.tokens for request in finished))

    def goodput(self, slo: SLO) -> float:
        """Requests a second that met the SLO, of those that count."""
        return self.per_second(sum(request.meets(slo) for request in self.counted))

    def attainment(self, slo: SLO) -> float:
        """The share of the requests that count which met the SLO."""
        return float(np.mean([request.meets(slo) for request in self.counted]))

    @property
    def preemptions(self) -> int:
        """How often one of these requests lost its places."""
        return sum(request.preempted for request in self.counted)

    @property
    def hit_rate(self) -> float:
        """Of the context's entries that all requests needed, the share that they found made."""
        shared = sum(request.shared for request in self.requests)
        return float(shared / max(1, shared + self.steps.read.sum()))

    @property
    def accepted(self) -> np.ndarray:
        """Of the rounds with a 1st, 2nd … guess, the share that accepted so many."""
        guessed = np.array([n for request in self.counted for n in request.guessed])
        made = np.array([n for request in self.counted for n in request.made])
        most = range(1, guessed.max() + 1)
        return np.array([(made[guessed >= i] > i).mean() for i in most])

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of a request for each pass that brought it any."""
        rounds = sum(len(request.made) for request in self.counted)
        return sum(request.tokens for request in self.counted) / rounds

    def report(self, slo: SLO, percentiles: Sequence[float] = PERCENTILES) -> dict:
        """All of it by name, for a table or JSON; of times the percentiles, {"p50": …}."""
        times = {name: getattr(self, name) for name in ("ttft", "tpot", "itl", "queueing")}
        return {
            "rate": self.rate,
            "throughput": self.throughput,
            "goodput": self.goodput(slo),
            "attainment": self.attainment(slo),
            **{name: quantiles(seconds, percentiles) for name, seconds in times.items()},
            "preemptions": self.preemptions,
            "hit_rate": self.hit_rate,
            "accepted": self.accepted.tolist(),
            "tokens_per_pass": self.tokens_per_pass,
            **self.bench_serve(slo),
        }

    def bench_serve(self, slo: SLO) -> dict:
        """The requests that count under the names of `vllm bench serve --save-result`.

        Times in ms, from the first arrival to the last end in seconds; the acceptance rate in per
        cent of drafted guesses.
        """
        duration = max(request.done for request in self.counted) - self.counted[0].arrived
        tokens = sum(request.tokens for request in self.counted)
        told = {
            "duration": duration,
            "completed": len(self.counted),
            "total_output_tokens": tokens,
            "request_throughput": len(self.counted) / duration,
            "request_goodput": sum(request.meets(slo) for request in self.counted) / duration,
            "output_throughput": tokens / duration,
        }
        for name in ("ttft", "tpot", "itl"):
            ms = 1000 * getattr(self, name) if len(getattr(self, name)) else np.zeros(1)
            for what, of in (("mean", np.mean), ("median", np.median), ("std", np.std)):
                told[f"{what}_{name}_ms"] = float(of(ms))
            told[f"p99_{name}_ms"] = float(np.percentile(ms, 99))
        rounds = [
            (drafted, made - 1)
            for request in self.counted
            for drafted, made in zip(request.guessed, request.made, strict=True)
            if drafted
        ]
        if rounds:
            drafted, accepted = (sum(each) for each in zip(*rounds, strict=True))
            most = range(1, max(n for n, _ in rounds) + 1)
            told |= {
                "spec_decode_num_drafts": len(rounds),
                "spec_decode_draft_tokens": drafted,
                "spec_decode_accepted_tokens": accepted,
                "spec_decode_acceptance_rate": 100 * accepted / drafted,
                "spec_decode_acceptance_length": 1 + accepted / len(rounds),
                "spec_decode_per_position_acceptance_rates": [
                    sum(n >= i for _, n in rounds) / len(rounds) for i in most
                ],
            }
        return told


def quantiles(seconds: np.ndarray, percentiles: Sequence[float] = PERCENTILES) -> dict[str, float]:
    """{"p50": seconds …}: so many per cent are no longer. 0 where there are none."""
    found = np.percentile(seconds, percentiles) if len(seconds) else np.zeros(len(percentiles))
    return {f"p{at:g}": float(value) for at, value in zip(percentiles, found, strict=True)}
