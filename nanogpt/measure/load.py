"""How many requests can a server take? A trace at several rates, with guesses and without.

TRACE is a file with one request a line, in JSON, such as
{"arrival": 0.25, "prompt": 20, "output": 3, "right": [2, 1, 0]}: when it came, in seconds; the
tokens of its prompt and of its output; and, if that is known, of each token of the output, how
many guesses are right from there on. Mooncake's, Azure's, BurstGPT's and Qwen's traces are read as
they are, by their fields or columns; of any other file in JSON or CSV, name them with --fields.
Without a TRACE, requests are drawn from the corpus and recorded with our target and draft; --record
writes them into such a file.

Each policy serves the same requests, at rates that are shares of what the best one can do. The
server is the real one and its clock a virtual one: a step takes what our target takes for a pass
of that size on this machine, which is measured first, with 48 tokens of each text in the cache.
That differs from call to call: --steps FILE keeps the table, and a later call reads it, so that two
policies are compared on one machine. Or write it yourself, for an engine of your own, as in
{"passes": [[1, 1, 0.02], [1, 64, 0.03], [8, 1, 0.02], [8, 64, 0.05]], "per_guess": 0.0001}: rows,
tokens of each, seconds of the pass; and beside it the seconds of a guess (per_row, fixed: of a row,
of any step).

The first fifth of the requests do not count; tokens a second are those of all requests that
finish while others still come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import check_folders, load_corpus, train_val_split
from nanogpt.drafts.shipped import DRAFTS
from nanogpt.measure import traffic
from nanogpt.measure.clock import clock, prompts_of
from nanogpt.measure.traffic import SLO, StepTime, Trace
from nanogpt.sampling import Uniforms
from nanogpt.serving.server import Limits, check_numbers
from nanogpt.show import figures
from nanogpt.targets.fused import FusedLanguageModel

TEXTS, SHORTEST, LONGEST = 64, 8, 64  # of the corpus; tokens of the output
WIDEST = 80  # tokens of a row in a pass that is measured; the window has no more beside 48
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5)  # of the best policy's limit
MOST, BY_LOAD = 8, "load"  # guesses, where none are given; their number follows the load


@dataclass(frozen=True)
class Ours:
    """Our target and a draft, and requests for them: prompts, and how many tokens each gets."""

    target: FusedLanguageModel
    draft: object
    prompts: list[list[int]]
    lengths: list[int]

    @classmethod
    def loaded(cls, draft: str, seed: int) -> Ours:
        """With prompts of the corpus and lengths that are drawn."""
        per_head, tokenizer = checkpoint.load()
        tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
        made, uniform = DRAFTS[draft](tokens, tokenizer.vocab_size), Uniforms(seed).random
        lengths = [SHORTEST + int((LONGEST + 1 - SHORTEST) * uniform()) for _ in range(TEXTS)]
        return cls(FusedLanguageModel(per_head), made, prompts_of(held_out, TEXTS), lengths)

    def recorded(self, most: int) -> list[Trace]:
        """The traces of the requests, with a bar, as it takes seconds."""
        traces = []
        for i in tqdm(range(0, TEXTS, 16), desc="recording requests"):
            prompts, lengths = self.prompts[i : i + 16], self.lengths[i : i + 16]
            traces += traffic.record(self.target, self.draft, prompts, lengths, most)
        return traces

    def step_time(self, rows: int, chunk: int, K: int) -> StepTime:
        """What a step takes on this machine, up to so many rows, each reading and guessing."""
        print("measuring what a step takes on this machine, a minute …", file=sys.stderr)
        batches = sorted({b for b in (1, 4, 16) if b < rows} | {max(2, rows)})
        given = self.target, self.draft, self.prompts, self.lengths
        widths = sorted({1, 2, 4, 8, 16, min(WIDEST, max(24, chunk + K))})
        return StepTime.measured(*given, batches, max(1, K), widths)


@dataclass(frozen=True)
class LoadTest:
    """A load test: whose requests arrive when, what a step takes, the SLO, the server's limits.

    arriving: the trace's own seconds, None where they are drawn, with this burstiness and seed.
    """

    traces: Sequence[Trace]
    arriving: Sequence[float] | None
    requests: int
    step_time: StepTime
    slo: SLO
    burstiness: float
    seed: int
    limits: Limits

    def policy(self, K: int | str, most: int) -> Callable[[int], int]:
        """So many guesses always, or by the number of requests in the pass, up to `most`."""
        if K != BY_LOAD:
            return lambda _: K
        Ks = traffic.best_Ks(self.traces, self.step_time, self.limits.max_num_seqs, most)
        return lambda running: Ks[running - 1]

    def limit(self, policy: Callable) -> float:
        """Tokens a second of a server that is always full."""
        return traffic.limit(self.traces, policy, self.step_time, self.requests, self.limits)

    def arrivals(self, rate: float) -> Sequence[float]:
        """When the requests come, so many a second on average."""
        if self.arriving is None:
            return traffic.arrivals(rate, self.requests, self.seed, self.burstiness)
        return traffic.at_rate(self.arriving, rate)

    def check(self) -> None:
        """Raise ValueError for requests that this server can not take, or that have no rate."""
        self.arrivals(1.0)
        longest = max(self.traces, key=lambda trace: trace.prompt + len(trace.right))
        traffic.Replay([longest], self.step_time, traffic.AMPLE, self.limits).line_up(0)

    def seconds(self, runs: int) -> float:
        """What so many replays take on this machine, roughly: by the steps of a few requests."""

        def steps(traces: Sequence[Trace]) -> int:
            chunk = self.limits.prefill_chunk
            return sum(-(-trace.prompt // chunk) + len(trace.right) for trace in traces)

        n = 1
        while n < len(self.traces) and steps(self.traces[:n]) < 500:
            n += 1
        few, how = self.traces[:n], (lambda _: 0, self.step_time)
        took, _ = clock(lambda: traffic.replay(few, [0.0] * n, *how, limits=self.limits))
        turns = self.requests / len(self.traces)
        return took / steps(few) * steps(self.traces) * turns * runs

    def run(self, policy: Callable, rate: float) -> dict:
        """The report of one policy at one rate."""
        coming = self.arrivals(rate)
        run = traffic.replay(self.traces, coming, policy, self.step_time, limits=self.limits)
        return run.after(self.requests // 5).report(self.slo)


def name_of(K: int | str) -> str:
    """A policy's name in the table."""
    return "K by load" if K == BY_LOAD else f"K = {K}" if K else "no guesses"


def tested(test: LoadTest, Ks: Sequence, rates: Sequence[float] | None, most: int) -> dict:
    """All that the command finds, for JSON: the limits in tokens a second, and a report a run."""
    policies = {name_of(K): test.policy(K, most) for K in Ks}
    with tqdm(policies.items(), desc="limits") as bar:  # closed before an error is printed
        limits = {name: test.limit(policy) for name, policy in bar}
    tokens = sum(len(trace.right) for trace in test.traces) / len(test.traces)
    best = max(limits.values()) / tokens  # requests a second
    rates = sorted(rates or [share * best for share in SHARES])
    with tqdm(list(itertools.product(rates, policies)), desc="replays") as bar:
        runs = [{"policy": name, **test.run(policies[name], rate)} for rate, name in bar]
    return {
        "slo": test.slo._asdict(),
        "limits": limits,
        "server": asdict(test.limits),
        "step": test.step_time.told(),
        "runs": runs,
    }


HEADER = (
    "            a second: come  in SLO  tokens   in SLO   TTFT p50    p95   TPOT p50    p95"
    "   queueing p95   preemptions"
)


def line(run: dict) -> str:
    """A row of the table on screen; times in ms."""
    ttft, tpot, wait = ([1e3 * s for s in run[t].values()] for t in ("ttft", "tpot", "queueing"))
    return (
        f"{run['policy']:12} {run['rate']:13.1f} {run['goodput']:7.1f} {run['throughput']:7.0f} "
        f"{run['attainment']:8.0%} {ttft[0]:10.1f} {ttft[1]:6.1f} {tpot[0]:10.2f} {tpot[1]:6.2f} "
        f"{wait[1]:14.1f} {run['preemptions']:13}"
    )


def said(
    test: LoadTest, source: str, measured: str = "our target, measured on this machine"
) -> list[str]:
    """The lines that say what is replayed on what."""
    step, limits = test.step_time, test.limits
    n = len(test.traces)
    prompt = sum(trace.prompt for trace in test.traces) / n
    output = sum(len(trace.right) for trace in test.traces) / n
    rows, width = max(step.passes)
    unit = f"blocks of {limits.block_size}" if limits.block_size > 1 else "places"
    memory = f"{limits.num_blocks} {unit}" if limits.num_blocks else "as much as they need"
    span = f", over {test.arriving[-1]:.4g} s" if test.arriving else ""
    return [
        f"requests  {test.requests}: {source}{span}; {prompt:.0f} tokens of prompt and "
        f"{output:.0f} of output on average",
        f"a step    {1e3 * step(1, 1, 0):.2f} ms for one row of one token, "
        f"{1e3 * step(rows, 1, 0):.2f} for {rows}, {1e3 * step(rows, width, 0):.2f} for {rows} of "
        f"{width}; a guess {1e6 * step.per_guess:.0f} µs ({measured})",
        f"server    {limits.max_num_seqs} rows, {limits.max_num_batched_tokens} tokens a pass, "
        f"{limits.prefill_chunk} of a prompt; memory: {memory}",
        f"SLO       the first token within {1e3 * test.slo.ttft:g} ms, each other in "
        f"{1e3 * test.slo.tpot:g} ms on average; times below in ms",
    ]


def ends(found: dict) -> list[str]:
    """The lines that sum it up."""
    limits = ", ".join(f"{name} {limit:.0f}" for name, limit in found["limits"].items())
    most = {name: max(run["goodput"] for run in found["runs"] if run["policy"] == name)
            for name in found["limits"]}  # fmt: skip
    best = ", ".join(f"{name} {goodput:.1f}" for name, goodput in most.items())
    return [f"tokens a second, always full: {limits}", f"most requests/s within the SLO: {best}"]


def picture(found: dict) -> figures.Picture:
    """Goodput against the rate, a line for each policy."""
    runs = {name: [r for r in found["runs"] if r["policy"] == name] for name in found["limits"]}
    rates = [run["rate"] for run in next(iter(runs.values()))]
    curves = {name: [run["goodput"] for run in mine] for name, mine in runs.items()}
    slo = found["slo"]
    chart = figures.lines(
        rates,
        curves,
        f"Goodput: TTFT within {1e3 * slo['ttft']:g} ms, TPOT {1e3 * slo['tpot']:g} ms",
        "requests that come, a second",
        "requests within the SLO, a second",
    )
    chart.axes[0].plot(rates, rates, color=figures.GREY, linewidth=0.8, label="all that come")
    chart.axes[0].legend()
    return chart


def guesses(text: str) -> int | str:
    """A number of guesses, or the word for K by load."""
    return text if text == BY_LOAD else int(text)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of a load test."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nanogpt load", description=__doc__, formatter_class=how)
    add = parser.add_argument
    add("trace", nargs="?", type=Path, help="a file of requests; default: drawn from the corpus")
    add("--record", type=Path, metavar="FILE", help="write those into this file, in its form")
    how = "in TRACE, such as sent:ms tokens_in tokens_out (units: s, ms, us, ns); dates are dates"
    add("--fields", nargs=3, metavar=("ARRIVAL", "PROMPT", "OUTPUT"), help=how)
    add("--steps", type=Path, metavar="FILE", help="the table of what steps take: read from this "
        "file, or if there is none, measured and written into it")  # fmt: skip
    add("--requests", type=int, help="so many of them, default: 300, or all of the TRACE")
    add("--draft", choices=list(DRAFTS), default="distilled", help="default: %(default)s")
    how = f"guesses: numbers, and `{BY_LOAD}` for K by load; default: 0 2 8 {BY_LOAD}"
    add("--K", nargs="+", type=guesses, help=how)
    add("--alpha", type=float, help="each guess is right so often, by itself, whatever TRACE says")
    add("--rate", nargs="+", type=float, help="requests a second; default: shares of the limit")
    how = "below 1, requests come in bursts (gamma gaps); 1: Poisson; default: 1, or as in TRACE"
    add("--burstiness", type=float, help=how)
    add("--slo", nargs=2, type=float, metavar=("TTFT", "TPOT"),
        help="milliseconds to the first token and a token after it, default: ten times what the "
        "mean prompt takes alone, and twice a step of one token")  # fmt: skip
    add("--rows", type=int, default=16, help="requests in a pass, default: %(default)s")
    add("--budget", type=int, default=256, help="tokens in a pass, default: %(default)s")
    how = "of them of one prompt, default: as many as take twice a step of one token, 16 or more"
    add("--chunk", type=int, help=how)
    add("--capacity", type=int, help="tokens in all caches together, default: what they need")
    add("--block", type=int, default=1, help="of a pool in blocks of so many, default: %(default)s")
    add("--seed", type=int, default=0, help="of what is drawn, default: %(default)s")
    how = "write all that was found to this file, each run under vllm bench serve's names, too"
    add("--json", type=Path, metavar="FILE", help=how)
    add("--picture", type=Path, metavar="FILE", help="draw the goodput into this PNG")
    return parser.parse_args(arguments)


def check(given: argparse.Namespace) -> None:
    """Raise ValueError for what cannot be, before anything is done."""
    check_folders(given.record, given.json, given.picture, given.steps)
    whole = {name: getattr(given, name) for name in ("requests", "rows", "chunk", "block")}
    check_numbers(**whole, budget=given.budget, capacity=given.capacity)
    if given.trace and given.record:
        raise ValueError("--record writes what is drawn from the corpus; leave out the TRACE")
    if given.fields and not given.trace:
        raise ValueError("--fields are those of a TRACE; give one")
    if given.budget < given.rows:
        raise ValueError(f"--budget {given.budget} has no token for each of {given.rows} --rows")
    if given.capacity is None and given.block != 1:
        raise ValueError(f"--block {given.block} needs --capacity, the tokens that blocks hold")
    if given.capacity is not None and given.capacity < given.block:
        raise ValueError(f"--capacity {given.capacity} holds no --block of {given.block}")
    if given.alpha is not None and not 0 <= given.alpha <= 1:
        raise ValueError(f"--alpha is {given.alpha:g}; a guess is right with 0 to 1")
    positive = [
        *(given.rate or []),
        *(given.slo or []),
        *([given.burstiness] if given.burstiness else []),
    ]
    if not all(0 < number < math.inf for number in positive) or given.burstiness == 0:
        raise ValueError("--rate, --slo and --burstiness are numbers above 0")
    if min([0, *(K for K in given.K or [] if K != BY_LOAD)]) < 0:
        raise ValueError(f"--K takes numbers from 0, and `{BY_LOAD}`")


def chunk_of(step_time: StepTime, budget: int) -> int:
    """Tokens of a prompt in a pass: a power of two, 16 or more, if the budget has as many.

    The most that take, alone, no longer than two passes of a token.
    """
    sizes = [2**i for i in range(5, budget.bit_length()) if 2**i <= budget]
    twice = 2 * step_time(1, 1, 0)
    return max([min(16, budget), *(n for n in sizes if step_time(1, n, 0) <= twice)])


def slo_of(traces: Sequence[Trace], step_time: StepTime, chunk: int) -> SLO:
    """Ten times what the mean prompt takes alone, and twice a step of one token; in two digits."""
    prompt = max(1, round(sum(trace.prompt for trace in traces) / len(traces)))
    parts = [chunk] * (prompt // chunk) + [prompt % chunk] * (prompt % chunk > 0)
    seconds = 10 * sum(step_time(1, n, 0) for n in parts), 2 * step_time(1, 1, 0)
    return SLO(*(float(f"{one:.2g}") for one in seconds))


def test_of(given: argparse.Namespace, read: tuple | None, most: int) -> LoadTest:
    """The load test of the command line; read: the TRACE, if there is one.

    What cannot be is refused before a step is measured.
    """
    known = StepTime.read(given.steps) if given.steps and given.steps.exists() else None
    ours = None if read and known else Ours.loaded(given.draft, given.seed)
    traces, arriving = read or (ours.recorded(most), None)
    if read and given.requests:
        traces, arriving = traces[: given.requests], arriving[: given.requests]
    if given.alpha is not None:
        traces = traffic.with_coins(traces, given.alpha, most, given.seed)
    num_blocks = given.capacity and given.capacity // given.block  # --capacity is in places
    chunk = given.chunk or min(16, given.budget)
    test = LoadTest(
        traces,
        arriving if given.burstiness is None else None,
        len(traces) if read else given.requests or 300,
        known,
        given.slo and SLO(*(milliseconds / 1e3 for milliseconds in given.slo)),
        given.burstiness or 1.0,
        given.seed,
        Limits(given.rows, given.budget, chunk, num_blocks, given.block),
    )
    test.check()
    step_time = known or ours.step_time(given.rows, given.chunk or WIDEST, most)
    if given.steps and not known:
        given.steps.write_text(json.dumps(step_time.told(), indent=1), encoding="utf-8")
    chunk = given.chunk or chunk_of(step_time, given.budget)
    return replace(
        test,
        step_time=step_time,
        slo=test.slo or slo_of(traces, step_time, chunk),
        limits=replace(test.limits, prefill_chunk=chunk),
    )


def about(seconds: float) -> str:
    """A time in words, to plan by."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{math.ceil(seconds)} s"


def policies_of(given: argparse.Namespace, read: tuple | None) -> list[int | str]:
    """The numbers of guesses to try; where nobody knows which are right, none."""
    known = not read or given.alpha is not None or any(any(trace.right) for trace in read[0])
    return list(dict.fromkeys(given.K or ([0, 2, 8, BY_LOAD] if known else [0])))


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises ValueError or OSError for what cannot be tested."""
    given = parse_arguments(arguments)
    check(given)
    torch.set_num_threads(1)
    read = traffic.read_trace(given.trace, given.fields) if given.trace else None
    Ks = policies_of(given, read)
    most = max([MOST * (BY_LOAD in Ks), *(K for K in Ks if K != BY_LOAD)])
    from_file = bool(given.steps and given.steps.exists())
    test = test_of(given, read, most)
    runs = len(Ks) * (1 + len(given.rate or SHARES))
    how_long = f"{runs} replays of {test.requests} requests, about {about(test.seconds(runs))}"
    print(f"{how_long} on this machine; --requests N takes fewer", file=sys.stderr)
    found = tested(test, Ks, given.rate, most)
    source = str(given.trace or f"of the corpus, recorded with the {given.draft} draft")
    how = [f"of {given.steps}"] if from_file else []
    print(*said(test, source, *how), HEADER, *map(line, found["runs"]), *ends(found), sep="\n")
    if Ks == [0]:
        print('no guesses: the trace does not say which are right; write "right", or give --alpha')
    if given.record:
        lowest = test.arrivals(found["runs"][0]["rate"])
        traffic.write_trace(given.record, test.traces, lowest)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    if given.picture:
        given.picture.write_bytes(picture(found)._repr_png_()[0])
