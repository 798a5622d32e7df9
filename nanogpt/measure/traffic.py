"""A server under load: recorded requests on a virtual clock, and the wall clock beside it.

Every policy meets the same requests at the same moments. `replay` drives the server itself: who is
read, guesses, begins or loses its places is the server's doing, and only its passes are answered
from a recording. A step's time is measured once, and at temperature 0 so is what each guess is
worth: a replay is exact but for the times.

A trace is a file with one request a line, in JSON (JSONL), in any order:

    {"arrival": 0.25, "prompt": 20, "output": 3, "right": [2, 1, 0]}

arrival: when it came, in seconds, from any zero; prompt, output: how many tokens it has, and gets;
right, which may be missing: of each token of the output, how many of the draft's best guesses, from
it on, are the text's own. Where it is missing, no guess is right. Other entries are left alone.
Public traces are read as they are, by the names of their fields (`FORMS`), and so is a table (CSV).
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import math
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

from nanogpt.cache import CacheObject
from nanogpt.data import read_text
from nanogpt.generate import Round
from nanogpt.measure.clock import clock
from nanogpt.measure.costs import batch_times
from nanogpt.measure.service import SLO, Load, Served, Timeline, quantiles
from nanogpt.sampling import Sampling, Uniforms
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Limits, Request, Server
from nanogpt.speculative import Draft

__all__ = ["SLO", "Load", "Served", "Timeline", "quantiles"]  # what `service` measures of a run

# Recordings


class Trace(NamedTuple):
    """A recorded request: tokens of its prompt; of each new token, how many guesses agree there.

    right[i]: so many of the draft's best guesses, from the i-th new token on, are the text's own.
    """

    prompt: int
    right: list[int]


def record(target, draft, prompts, lengths: Sequence[int], most: int) -> list[Trace]:
    """The traces of prompts that are continued greedily, `lengths` tokens each.

    Up to `most` guesses are compared: a replay can ask for no more.
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


def with_coins(traces: Sequence[Trace], alpha: float, most: int, seed: int = 0) -> list[Trace]:
    """The same requests, each guess right with probability `alpha`, by itself.

    For a trace that does not say. Real guesses come in runs: one is right more often after another.
    """
    uniform, made = Uniforms(seed).random, []
    for trace in traces:
        right, run = [], 0
        for _ in trace.right:  # from the last token back: how many from here on
            run = run + 1 if uniform() < alpha else 0
            right.append(min(run, most))
        made.append(Trace(trace.prompt, right[::-1]))
    return made


def write_trace(path: str | Path, traces: Sequence[Trace], arriving: Sequence[float]) -> None:
    """Write requests, traces in turn, arriving (n,) at these seconds, as a trace file."""
    lines = []
    for i, arrival in enumerate(arriving):
        prompt, right = traces[i % len(traces)]
        said = {"arrival": float(arrival), "prompt": prompt, "output": len(right), "right": right}
        lines.append(json.dumps(said) + "\n")
    Path(path).write_text("".join(lines), encoding="utf-8")


class Form(NamedTuple):
    """Whose trace it is, the names of its three fields, and the seconds of its unit of time.

    and_has: a further field, where those three are not its alone.
    """

    whose: str
    arrival: str
    prompt: str
    output: str
    unit: float = 1.0
    and_has: str = ""


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FORMS = (  # the first that fits
    Form("ours", "arrival", "prompt", "output"),
    Form("Qwen's", "timestamp", "input_length", "output_length", and_has="chat_id"),
    Form("Mooncake's", "timestamp", "input_length", "output_length", UNITS["ms"]),
    Form("Azure's", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    Form("BurstGPT's", "Timestamp", "Request tokens", "Response tokens"),
)
EXAMPLE = '{"arrival": 0.25, "prompt": 20, "output": 3}'


def read_trace(
    path: str | Path, fields: Sequence[str] | None = None
) -> tuple[list[Trace], list[float]]:
    """The requests of a trace file and when they arrive, the first at 0 seconds.

    fields: the names of arrival, prompt and output there, by default those of `FORMS`; the first
    may end in a unit, as in "sent:ms". A request with an output of 0 tokens, as a failed one is
    written, is left out; stderr says how many are. Raises ValueError for what is no request, with
    its line, and OSError where there is no file.
    """
    form, found, left_out = None, [], 0
    if fields:
        arrival, _, unit = fields[0].rpartition(":")
        named = (arrival, UNITS[unit]) if unit in UNITS and arrival else (fields[0], 1.0)
        form = Form("yours", named[0], *fields[1:], named[1])
    for number, record in records(path):
        try:
            form = form or form_of(record)
            arrival, trace = request_of(record, form)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        left_out += trace is None
        found += [(arrival, trace)] if trace else []
    if not found:
        raise ValueError(f"{path} has no request; write one a line, in JSON: {EXAMPLE}")
    if left_out:
        print(
            f"{path}: {left_out} requests with an output of 0 tokens are left out", file=sys.stderr
        )
    found.sort(key=lambda one: one[0])
    return [trace for _, trace in found], [arrival - found[0][0] for arrival, _ in found]


def records(path: str | Path) -> Iterator[tuple[int, dict]]:
    """The lines of a file, numbered, as records: JSON objects, or the rows of a table by its head.

    Lines end as any system ends them, and nowhere else. Raises ValueError for what is neither.
    """
    text = read_text(path)
    lines, start = io.StringIO(text, newline=None), text.lstrip()
    if start[:1] in ("{", "["):
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    said = None
                if not isinstance(said, dict):
                    why = f"this is no JSON object; write a request as {EXAMPLE}"
                    raise ValueError(f"{path}, line {number}: {why}")
                yield number, said
        return
    head = start.partition("\n")[0]
    table = csv.reader(lines, delimiter=max(",;\t", key=head.count))
    try:
        names: list[str] = []
        for row in table:
            cells = [cell.strip() for cell in row]
            if any(cells) and names:
                row_of = dict(zip(names, map(number_in, cells), strict=False))
                yield table.line_num, dict.fromkeys(names) | row_of
            names = names or (cells if any(cells) else [])
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {table.line_num}: this is no row of a table: {error}"
        ) from None


def number_in(cell: str) -> float | str:
    """The number that a table's cell holds, or else its text."""
    try:
        return float(cell)
    except ValueError:
        return cell


def form_of(record: dict) -> Form:
    """The form that a record has. Raises ValueError for none."""
    for form in FORMS:
        if {*form[1:4], form.and_has or form.arrival} <= {*record}:
            return form
    known = "; ".join(f"{', '.join(form[1:4])} ({form.whose})" for form in FORMS)
    raise ValueError(
        f"its fields are {', '.join(map(str, record)) or 'none'}, and those of a trace {known}: "
        "name yours with --fields ARRIVAL PROMPT OUTPUT"
    )


def request_of(record: dict, form: Form) -> tuple[float, Trace | None]:
    """When a record's request arrives, in seconds, and it; None if its output has 0 tokens.

    Raises ValueError, with the field's own name, for what is none.
    """
    said = record.get(form.arrival)
    arrival = seconds_of(said, form.unit)
    if arrival is None:
        raise ValueError(f'"{form.arrival}" is {said!r}; give seconds, such as 0.25')
    counts = []
    for name, least in ((form.output, 0), (form.prompt, 1)):
        count = record.get(name)
        if isinstance(count, float) and count.is_integer():
            count = int(count)
        if not whole(count, least):
            raise ValueError(f'"{name}" is {record.get(name)!r}; give a number of tokens, from 1')
        if count == 0:
            return arrival, None
        counts.append(count)
    n, prompt = counts
    right = record.get("right", [0] * n)
    if not isinstance(right, list) or len(right) != n:
        raise ValueError(f'"right" must be a list of {n} numbers, one for each token of the output')
    for i, count in enumerate(right):
        if not whole(count, 0) or count > n - i:
            raise ValueError(
                f'"right" has {count!r} at index {i}; {n - i} tokens come from there on, and it '
                "says how many of them are guessed"
            )
    return arrival, Trace(prompt, right)


def seconds_of(said, unit: float) -> float | None:
    """A number of units, or a date and time from 1970 on, in seconds; None for anything else."""
    if isinstance(said, int | float) and not isinstance(said, bool):
        return said * unit if abs(said) <= sys.float_info.max else None
    day = r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?"
    parts = re.fullmatch(day, said) if isinstance(said, str) else None
    try:
        to_the_second, fraction, zone = parts.groups("")
        moment = datetime.fromisoformat(to_the_second + (zone.strip("Z") or "+00:00"))
        return moment.timestamp() + float(fraction or 0)
    except (AttributeError, ValueError):  # no date, or none of the calendar
        return None


def whole(number, least: int) -> bool:
    """Whether it is a whole number from `least`."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


# Arrivals


def arrivals(rate: float, n: int, seed: int = 0, burstiness: float = 1.0) -> np.ndarray:
    """When n requests arrive, (n,) seconds, `rate` a second on average.

    Gaps are of a gamma distribution of shape `burstiness` (vLLM's word in its load test): 1, a
    Poisson process; below, they come in bursts; above, more evenly. Their standard deviation is
    1 / sqrt(burstiness) of their mean. Raises ValueError unless both are above 0.
    """
    if not (0 < rate < math.inf and 0 < burstiness < math.inf):
        raise ValueError(f"rate is {rate:g} and burstiness {burstiness:g}; both must be above 0")
    if burstiness == 1:
        uniform = Uniforms(seed).random
        return np.cumsum([-np.log(1 - uniform()) / rate for _ in range(n)])
    return np.cumsum(Uniforms.generator(seed).gamma(burstiness, 1 / (burstiness * rate), n))


def at_rate(arriving: Sequence[float], rate: float) -> np.ndarray:
    """The same arrivals, faster or slower, so that `rate` a second come on average, the first at 0.

    Raises ValueError where all of them come at once.
    """
    seconds = np.asarray(arriving, dtype=float) - arriving[0]
    if not seconds[-1] > 0:
        raise ValueError(
            "all requests arrive at once; such a trace has no rate (with --burstiness, arrivals "
            "are drawn)"
        )
    return seconds * (len(seconds) - 1) / seconds[-1] / rate


# Steps, and their time


class Pass(NamedTuple):
    """What a pass is like: its rows, their width, guesses and tokens of all.

    read: tokens that only fill the cache, those before the current ones.
    """

    rows: int
    width: int
    guesses: int
    tokens: int
    read: int

    @classmethod
    def of(cls, batch: Sequence[tuple[Request, int]]) -> Pass:
        """The pass of requests, each with so many known tokens and its guesses."""
        guesses = [len(request.tree.tokens) if request.tree else 0 for request, _ in batch]
        widths = [n + k for (_, n), k in zip(batch, guesses, strict=True)]
        read = sum(min(n, request.to_do - 1) for request, n in batch)
        return cls(len(batch), max(widths, default=0), sum(guesses), sum(widths), read)


@contextmanager
def watched(server: Server) -> Iterator[list[Pass]]:
    """What a server does from now on: a pass a step."""
    passes: list[Pass] = []
    choose = server.batch

    def batch() -> list[tuple[Request, int]]:
        chosen = choose()
        passes.append(Pass.of(chosen))
        return chosen

    server.batch = batch
    try:
        yield passes
    finally:
        server.batch = choose


def on_line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """y at x: on straight lines through the points, and above them on the last line.

    Raises ValueError below them, and above a single one.
    """
    if x in xs:
        return ys[xs.index(x)]
    if x < xs[0] or len(xs) < 2:
        raise ValueError(
            f"measured at {', '.join(map(str, xs))}, which does not say what {x} takes"
        )
    i = min(bisect_right(xs, x), len(xs) - 1)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


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
        cls,
        target,
        draft,
        prompts,
        lengths: Sequence[int],
        batches: Sequence[int] = (1, 4, 16),
        K: int = 8,
        widths: Sequence[int] = (1, 2, 4, 8, 16, 24),
    ) -> StepTime:
        """The passes on their own, and the rest from steps of a server with and without guesses.

        Medians; and no pass takes longer than a larger one. A greedy server takes the same steps
        each time, so that each has a median of three. The rest is fitted to these by least squares.
        """
        passes = batch_times(target, batches, widths, 48, repeats=12)
        passes = {
            (b, n): min(t for (B, N), t in passes.items() if b <= B and n <= N) for b, n in passes
        }
        bare, notes, rest = cls(passes, 0, 0, 0), [], []
        for rows, guesses in itertools.product(batches[1:], (0, K)):
            runs = []
            for _ in range(3):
                server = Server(target, draft, guesses, Limits(max_num_seqs=rows))
                for prompt, n in list(zip(prompts, lengths, strict=True))[: 3 * rows // 2]:
                    server.submit(prompt, min(n, 24), Sampling(0))
                runs.append([])
                with watched(server) as seen:
                    while server.requests:
                        runs[-1].append(clock(server.step)[0])
            notes += [(1, one.rows, one.guesses) for one in seen]
            passed = [bare(one.rows, one.width, 0) for one in seen]
            rest += np.subtract(np.median(runs, axis=0), passed).tolist()
        return cls(passes, *np.linalg.lstsq(np.array(notes), rest, rcond=None)[0].clip(0).tolist())

    def told(self) -> dict:
        """The table as --json and --steps write it: passes are [rows, tokens of each, seconds]."""
        parts = {name: getattr(self, name) for name in ("fixed", "per_row", "per_guess")}
        return parts | {"passes": [[*size, seconds] for size, seconds in self.passes.items()]}

    @classmethod
    def read(cls, path: Path) -> StepTime:
        """The table of such a file; beside its passes, what it leaves out costs nothing.

        Raises ValueError if it does not say what every step takes, OSError if it is not there.
        """
        example = '{"passes": [[1, 1, 0.02], [1, 64, 0.03], …]}: rows, tokens of each, seconds'
        try:
            said = json.loads(read_text(path))
            passes = {(rows, width): seconds for rows, width, seconds in said["passes"]}
            rest = [said.get(name, 0.0) for name in ("fixed", "per_row", "per_guess")]
            right = all(0 < seconds < math.inf for seconds in passes.values())
            right = right and all(0 <= seconds < math.inf for seconds in rest)
            right = right and all(whole(n, 1) for size in passes for n in size)
        except (ValueError, KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise ValueError(f"{path} is no table of what steps take; write {example}")
        sizes = [sorted({1, *one}) for one in zip(*passes, strict=True)] or [[1], [1]]
        absent = [size for size in itertools.product(*sizes) if size not in passes]
        if absent or min(map(len, sizes)) < 2:
            what = f"{absent[0]}" if absent else "more than one number of rows, or of tokens,"
            raise ValueError(f"{path} does not say what a pass of {what} takes; write {example}")
        return cls(passes, *rest)

    def __call__(self, rows: int, width: int, guesses: int, tokens: int = 0) -> float:
        """Seconds of a step; between the passes that were measured, and above, on straight lines.

        A pass is a rectangle: how many of its tokens somebody needs makes no difference. Raises
        ValueError below all that was measured, and above it where that is only one size.
        """
        batches, widths = (sorted(set(sizes)) for sizes in zip(*self.passes, strict=True))
        seconds = [on_line(width, widths, [self.passes[b, w] for w in widths]) for b in batches]
        rest = self.fixed + self.per_row * rows + self.per_guess * guesses
        return on_line(rows, batches, seconds) + rest


def best_Ks(traces: Sequence[Trace], step_time: Callable, rows: int, most: int) -> list[int]:
    """Of 1, 2 … `rows` requests in a pass, how many guesses make the most tokens in their time.

    Up to `most`. For a policy: lambda running: Ks[running - 1].
    """
    right = np.array([n for trace in traces for n in trace.right])
    tokens = 1 + np.cumsum([0, *((right >= i).mean() for i in range(1, most + 1))])

    def rate(B: int, K: int) -> float:
        return tokens[K] / step_time(B, K + 1, B * K, B * (K + 1))

    return [max(range(most + 1), key=lambda K, B=B: rate(B, K)) for B in range(1, rows + 1)]


# Runs


class Virtual:
    """A clock that stands still, but for what it is told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, until: float) -> None:
        """It is as late as that."""
        self.now = max(self.now, until)


class Wall:
    """Seconds since it was made."""

    def __init__(self):
        self.zero = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.zero

    def wait(self, until: float) -> None:
        """Sleep until then."""
        time.sleep(max(0.0, until - self()))


def drive(
    server: Server, arriving: Sequence[float], submit: Callable[[int], int], clients: int = 0
) -> Load:
    """Requests 0, 1, … reach a server at these seconds of its clock, a Virtual or a Wall.

    submit(i) lines up request i and returns its id. With `clients`, only so many of `arriving`
    count: the next request comes when one is done (a closed loop). Raises ValueError for none.
    """
    arriving, sent, ends, now = list(arriving), [], [], server.clock
    if not arriving:
        raise ValueError("no request arrives; give a second for each")
    issued = clients or len(arriving)
    with watched(server) as seen:
        while len(server.queue) or len(sent) < len(arriving):
            while len(sent) < issued and arriving[len(sent)] <= now():
                sent.append(server.queue.by_id[submit(len(sent))])
            if not len(server.queue):
                now.wait(arriving[len(sent)])
                continue
            done = server.step()
            K = server.policy(max(1, seen[-1].rows))
            ends.append((now(), server.running, server.waiting, K))
            for _ in list(done)[: len(arriving) - issued]:  # its client sends the next
                arriving[issued], issued = now(), issued + 1
    pairs = zip(sent, arriving, strict=True)
    served = [Served.of(request, arrived) for request, arrived in pairs]
    rows = [(*end, *one) for end, one in zip(ends, seen, strict=True)]
    return Load(served, Timeline(*map(np.array, zip(*rows, strict=True))))


@dataclass(frozen=True)
class Entries(CacheObject):
    """A cache without entries: only how many there would be."""

    length: int

    def grown(self, T: int) -> Entries:
        """With T entries more."""
        return Entries(self.length + T)

    def kept(self, length: int) -> Entries:
        """The first of them."""
        return Entries(length)


class Told(Draft):
    """A draft of as many guesses as are asked for: which are right, a recording says."""

    vocab_size = 2**31
    q = torch.empty(0, 0)  # nobody draws from it

    def draw(self, context, K: int, sampling=None, rng=None) -> tuple[list[int], torch.Tensor]:
        """K tokens, any, and no q."""
        return [0] * K, self.q


class Replay(Server):
    """A server whose passes are answered from recordings. All else is the server's own doing.

    traces: of requests 0, 1, … in turn; step_time(rows, width, guesses, tokens): seconds of a pass.
    Every token of request i is i, so that only what it wrote itself is ever found made. window: of
    the target, after which a context restarts. Blocks of more than one place are a pool's. The
    other arguments and the errors are the server's.
    """

    def __init__(self, traces, step_time, window: int, limits: Limits = Limits(), **how):
        config = SimpleNamespace(
            vocab_size=Told.vocab_size, block_size=window, n_layer=1, n_head=1, n_embd=1
        )
        pool = None
        if limits.num_blocks is not None and limits.block_size > 1:
            pool = BlockPool(config, limits.num_blocks, limits.block_size, torch.zeros(1))
            limits = replace(limits, num_blocks=None, block_size=1)  # the pool's
        target = SimpleNamespace(config=config, cache=pool)
        super().__init__(target, Told(), limits=limits, clock=Virtual(), seed=0, **how)
        self.traces, self.step_time = traces, step_time

    def line_up(self, i: int) -> int:
        """Submit request i; returns its id."""
        trace = self.traces[i % len(self.traces)]
        return self.submit([i] * trace.prompt, len(trace.right))

    def advance(self) -> None:
        """As Server.advance; the pass takes its time, and what it brings is on record."""
        self.retire()
        batch = self.batch()
        self.clock.now += self.step_time(*Pass.of(batch)[:4])
        for request, n in batch:
            self.answer(request, n)
        self.retire()

    def answer(self, request: Request, n: int) -> None:
        """As Server.take_part: more of the cache or, after the last of the unread, a round."""
        right = self.traces[request.id % len(self.traces)].right
        unread, guesses = len(request.unread), len(request.tree.tokens) if request.tree else 0
        cache = (request.past_kvs or Entries(0)).grown(n + guesses)
        request.tree = None
        if n > unread:
            accepted = min(guesses, right[len(request.tokens) - request.n_prompt])
            emitted = [request.id] * (accepted + 1)
            done = Round([0] * guesses, Told.q, Told.q, emitted, request.position)
            request.take(done, cache.kept(request.position + len(emitted)))
            request.came.append(self.clock())
        else:
            request.past_kvs = cache
        self.memory.keep(request)


AMPLE = 2**31  # a window that no context fills


def replay(
    traces: Sequence[Trace],
    arriving: Sequence[float],
    policy: Callable[[int], int],
    step_time: Callable[[int, int, int, int], float],
    clients: int = 0,
    limits: Limits = Limits(),
    window: int = AMPLE,
    share: bool = True,
) -> Load:
    """What a Server with this policy does: traces in turn, arriving (n,) at these seconds.

    Its clock moves by step_time(rows, width, guesses, tokens) a step. With `clients`, only so many
    of `arriving` count: the next request comes when one is done (a closed loop). Without
    num_blocks, caches hold as many tokens as they like; window, share: as in Replay.
    """
    step_time = functools.cache(step_time)
    server = Replay(traces, step_time, window, limits, policy=policy, share=share)
    return drive(server, arriving, server.line_up, clients)


def limit(traces, policy, step_time, requests: int = 256, limits: Limits = Limits()) -> float:
    """Tokens a second of a server that never lacks a request: no rate of arrivals brings more.

    A closed loop of a client for each of max_num_seqs.
    """
    n = limits.max_num_seqs
    arriving = [0.0] * n + [math.inf] * requests
    return replay(traces, arriving, policy, step_time, n, limits).after(n).throughput


def serve(server: Server, prompts, lengths: Sequence[int], arriving: Sequence[float]) -> Load:
    """The same for real: greedy requests, prompts in turn, submitted at these seconds (n,).

    The server's clock starts anew.
    """
    server.clock = Wall()

    def line_up(i: int) -> int:
        at = i % len(prompts)
        return server.submit(prompts[at], lengths[at], Sampling(0))

    return drive(server, arriving, line_up)
