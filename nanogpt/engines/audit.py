"""Does an engine sample the target's own distribution? `nanogpt audit transformers`

Our pair is small enough that its distribution is known exactly. So an engine that runs it, as
`nanogpt.engines.export` writes it, can be held against the truth: at temperature 0 token by token;
at temperature 1 by the first tokens of thousands of samples, each place for itself and all of them
jointly, by Pearson's χ² test (1900). The greedy test alone sees nothing of a wrong accept rule.

An engine is `transformers`; `nanogpt` (with `--bug N`: out of the gallery); or a file with a
function `open_engine(folder)` that returns an `Engine` of `nanogpt.engines.adapters`. The
repository has two of those in `examples/engines/`, for OpenVINO GenAI and vLLM, which show how one
is written. The exit code is 0 for a right engine, 1 for a wrong one, 2 for one that cannot be
audited.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import check_folders
from nanogpt.drafts import transformer
from nanogpt.engines.adapters import ENGINES, Engine, Generate, open_any
from nanogpt.engines.export import export_pair
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.exact import total_variation
from nanogpt.proof.statistics import (
    LEVEL,
    Joint,
    chi_squared,
    draws,
    exact_joint,
    marginal,
    next_probs,
    p_value,
    power,
    surely_seen,
)
from nanogpt.sampling import RandomSource

GREEDY = ("ROMEO:", "What say", "The king", "O, ", "First Citizen:\n")  # each continued so far:
GREEDY_TOKENS = 100
TIE = 1e-4  # float32 engines may choose either of two logits that are as close
PROMPT = "No more, no more, no "  # every third guess is rejected here, and lookup finds repeats
DEPTH = 3  # tokens of a sample that are tested
PLACES = ((0,), (1,), (2,), (0, 1, 2))
SAMPLES = 3000
AT_ONCE = 100  # samples in a call


def resampled(target: GPTLanguageModel, draft: GPTLanguageModel) -> Callable[[Tensor], Tensor]:
    """As next_probs, of a decoder that on rejection draws from p instead of the residual.

    min(p, q) is what it accepts; the rest of the time it draws from p. That is bug 1 of the
    gallery, and where each wrong engine that we have met comes near to.
    """

    def probs(rows: Tensor) -> Tensor:
        p, q = next_probs(target)(rows), next_probs(draft)(rows)
        accepted = torch.minimum(p, q)
        return accepted + (1 - accepted.sum(-1, keepdim=True)) * p

    return probs


@dataclass(frozen=True)
class Test:
    """One χ² test: the places of the tokens, its p-value, and the total variation beside it."""

    places: str
    p: float
    total_variation: float


def compare(samples: Counter, exact: dict[tuple, Joint]) -> list[Test]:
    """One test of the samples' tokens for each entry {places: distribution} of `exact`."""
    n, tests = sum(samples.values()), []
    for places, right in exact.items():
        counts = marginal(samples, places)
        p = p_value(*chi_squared(counts, right, n))
        distance = total_variation({x: count / n for x, count in counts.items()}, right)
        tests.append(Test(called(places), p, distance))
    return tests


def shown(p: float) -> str:
    """A p-value in print; the smallest are 0 by rounding."""
    return f"{p:.2g}" if p > 1e-300 else "<1e-300"


def called(places: Sequence[int]) -> str:
    """The places' name: "token 2", or "tokens 1-3" jointly."""
    first, last = places[0] + 1, places[-1] + 1
    return f"token {first}" if first == last else f"tokens {first}-{last}"


@dataclass(frozen=True)
class Power:
    """What a test sees: any bias of `surely` or more; and `resampled`, off by `other`, so often."""

    places: str
    surely: float
    other: float
    power: float


def powers(
    exact: dict[tuple, Joint], other: dict[tuple, Joint], n: int, level: float
) -> list[Power]:
    """The power of each test on n samples. Raises ValueError if n are too few for a test."""
    found = []
    for places, right in exact.items():
        shift, freedom = chi_squared({x: n * p for x, p in other[places].items()}, right, n)
        if freedom < 1:
            few = f"{n} samples are too few for a test of {called(places)} after this prompt"
            raise ValueError(f"{few}; take some thousands")
        seen = power(freedom, shift, level)
        distance = total_variation(other[places], right)
        found.append(Power(called(places), surely_seen(freedom, n, level), distance, seen))
    return found


# The audit


@dataclass(frozen=True)
class Truth:
    """What an engine is held against, worked out once.

    target: in float64. greedy: the prompts that are continued at temperature 0. prompt: the one of
    the samples; exact and other: {places: distribution} of what follows it, the target's own and
    the `resampled` one.
    """

    target: GPTLanguageModel
    greedy: list[list[int]]
    prompt: list[int]
    text: str
    exact: dict[tuple, Joint]
    other: dict[tuple, Joint]

    @classmethod
    def of(cls, target, draft, tokenizer, prompt: str = PROMPT) -> Truth:
        """The truth about a pair of models, after a prompt. Raises ValueError as encode does."""
        target, draft = copy.deepcopy(target).double(), copy.deepcopy(draft).double()
        tokens = tokenizer.encode(prompt)
        if not 1 <= len(tokens) <= target.config.block_size - DEPTH - 1:
            most = target.config.block_size - DEPTH - 1
            raise ValueError(f"the prompt has {len(tokens)} tokens; take 1 to {most}")
        tables = []
        for probs in (next_probs(target), resampled(target, draft)):
            joint = exact_joint(probs, tokens, DEPTH)
            tables.append({places: marginal(joint, places) for places in PLACES})
        return cls(target, [tokenizer.encode(text) for text in GREEDY], tokens, prompt, *tables)


class Refused(Exception):
    """What is wrong with a mode, in one line."""


@dataclass
class Row:
    """What was found out about one mode. `refusal` is empty if it is right.

    greedy: how many of the prompts are continued as by the target; ties: tokens where its best two
    logits are within TIE and the other one came. counts: what the engine told, "greedy" and "at 1".
    """

    mode: str
    greedy: int = 0
    ties: int = 0
    tests: list[Test] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    refusal: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """The audit of an engine: a row for each mode, and what the tests can see.

    engine, version, options: exactly what was run, as in Engine. greedy: how many texts of
    GREEDY_TOKENS tokens. chance: the tests of as many samples drawn from the exact distribution
    itself.
    """

    engine: str
    version: str
    options: str
    prompt: str
    greedy: int
    samples: int
    level: float
    seed: int
    power: list[Power]
    chance: list[Test]
    rows: list[Row] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether every mode is."""
        return not any(row.refusal for row in self.rows)


def answers(
    generate: Generate, prompts: list[list[int]], n: int, temperature: float, seed: int, V: int
) -> list[list[int]]:
    """The n new tokens of each prompt. Raises Refused unless so many came, each below V."""
    try:
        made = [list(tokens) for tokens in generate(prompts, n, temperature, seed)]
    except Exception as error:
        said = (str(error).strip() or "no reason given").splitlines()[0]
        raise Refused(f"it raised {type(error).__name__}: {said}") from error
    if len(made) != len(prompts):
        raise Refused(f"{len(made)} answers came to {len(prompts)} prompts")
    for tokens in made:
        if len(tokens) != n:
            raise Refused(f"{len(tokens)} tokens came where {n} were asked for")
        for token in tokens:
            if not isinstance(token, Integral) or not 0 <= token < V:
                raise Refused(f"{token!r} came, which is none of the tokens 0 to {V - 1}")
    return made


@torch.no_grad()
def behind_the_best(
    target: GPTLanguageModel, prompt: Sequence[int], tokens: Sequence[int]
) -> Tensor:
    """How far each token's logit is below the target's best there, (n,): 0 where it is greedy's.

    Each is judged after the text that it follows, so that after a tie the comparison goes on.
    """
    logits = target(torch.tensor([[*prompt, *tokens[:-1]]]))[0][0, len(prompt) - 1 :]  # (n, V)
    return logits.amax(-1) - logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def audit_greedy(row: Row, generate: Generate, truth: Truth) -> None:
    """Fill in the row's greedy texts. Raises Refused if one is not the target's."""
    V, refusals = truth.target.config.vocab_size, []
    made = answers(generate, truth.greedy, GREEDY_TOKENS, 0.0, 0, V)
    for i, (prompt, tokens) in enumerate(zip(truth.greedy, made, strict=True), 1):
        behind = behind_the_best(truth.target, prompt, tokens).tolist()
        row.ties += sum(0 < x <= TIE for x in behind)
        at = next((t for t, x in enumerate(behind) if x > TIE), None)
        if at is None:
            row.greedy += 1
        else:
            refusals.append(f"greedy text {i}, token {at + 1}: {behind[at]:.2g} below the best")
    if refusals:
        raise Refused(refusals[0])


def audit_samples(
    row: Row, generate: Generate, truth: Truth, samples: int, seed: int, level: float, bar: tqdm
) -> None:
    """Fill in the row's tests of so many samples. Raises Refused if one of them fails."""
    V, counts = truth.target.config.vocab_size, Counter()
    for done in range(0, samples, AT_ONCE):
        prompts = [list(truth.prompt) for _ in range(min(AT_ONCE, samples - done))]
        # One token more than is tested: engines do not guess the last one.
        for tokens in answers(generate, prompts, DEPTH + 1, 1.0, seed + done, V):
            counts[tuple(tokens[:DEPTH])] += 1
        bar.update(len(prompts))
    row.tests = compare(counts, truth.exact)
    worst = min(row.tests, key=lambda test: test.p)
    if not worst.p >= level:
        off = f"off by a total variation of {worst.total_variation:.2f}"
        raise Refused(f"{worst.places} {off}, p {shown(worst.p)}")


def audit_mode(
    engine: Engine, mode: str, truth: Truth, samples: int, seed: int, level: float, bar: tqdm
) -> Row:
    """One mode of the engine: the greedy texts, then the samples, whatever came of the first."""
    row, generate, count = Row(mode), engine.modes[mode], engine.counts or dict
    parts = {
        "greedy": functools.partial(audit_greedy, row, generate, truth),
        "at 1": functools.partial(audit_samples, row, generate, truth, samples, seed, level, bar),
    }
    start = time.perf_counter()
    for name, part in parts.items():
        before = count()
        try:
            part()
        except Refused as refusal:
            found = [row.refusal] if row.refusal else []
            row.refusal = "; ".join(dict.fromkeys([*found, str(refusal)]))
        row.counts[name] = {key: now - before.get(key, 0) for key, now in count().items()}
    row.seconds = time.perf_counter() - start
    return row


def audit(
    engine: Engine,
    truth: Truth,
    samples: int = SAMPLES,
    seed: int = 0,
    level: float = LEVEL,
    progress: bool = False,
) -> Report:
    """Every mode of the engine against the truth: the greedy texts, then the samples.

    Raises ValueError if the samples are too few for a test.
    """
    power = powers(truth.exact, truth.other, samples, level)
    jointly = [*truth.exact.values()][-1]
    chance = compare(draws(jointly, samples, seed), truth.exact)
    report = Report(
        engine.name,
        engine.version,
        engine.options,
        truth.text,
        len(truth.greedy),
        samples,
        level,
        seed,
        power,
        chance,
    )
    silent = None if progress else True  # None: but in a terminal
    with tqdm(total=len(engine.modes) * samples, unit="sample", disable=silent) as bar:
        for mode in engine.modes:
            bar.set_description(f"{engine.name} {mode}")
            report.rows.append(audit_mode(engine, mode, truth, samples, seed, level, bar))
            bar.n = len(report.rows) * samples
    return report


# The verdict


def per(counts: dict[str, int], made: str, of: str) -> str:
    """One count divided by another, or a dash where the engine does not tell."""
    return f"{counts[made] / counts[of]:.2f}" if counts.get(of) and made in counts else "-"


def table(report: Report) -> list[str]:
    """The report as lines: what each mode got, what chance gets, what the tests can see."""

    def line(name, greedy, cells, passes="", accepted=""):
        columns = f"{name:<17}{greedy:>6}" + "".join(f"{cell:>15}" for cell in cells)
        return f"{columns}{passes:>8}{accepted:>10}".rstrip()

    def tested(tests):
        return [f"{shown(test.p)} {test.total_variation:.3f}" for test in tests]

    names = [power.places for power in report.power]
    ran = f"{report.engine} {report.version}" + f" ({report.options})" * bool(report.options)
    lines = [
        f"{ran}: {report.samples:,} samples after {report.prompt!r}",
        line("", "greedy", names, "tokens", "accepted"),
        line("", "", ["p    TV"] * len(names), "a pass", "greedy/1"),
    ]
    for row in report.rows:
        greedy, at_1 = (row.counts.get(name, {}) for name in ("greedy", "at 1"))
        made = greedy | {"tokens": report.greedy * GREEDY_TOKENS}
        accepted = "/".join(per(counts, "accepted", "drafted") for counts in (greedy, at_1))
        cells = tested(row.tests) or ["-"] * len(names)
        right = f"{row.greedy}/{report.greedy}"
        lines.append(line(row.mode, right, cells, per(made, "tokens", "passes"), accepted))
    other = [f"{x.power:.2f} {x.other:.3f}" for x in report.power]
    return [
        *lines,
        line("exact draws", "", tested(report.chance)),
        line("any bias, from", "", [f"{x.surely:.3f}" for x in report.power]),
        line("resampling p", "", other),
        f"Wrong is p < {report.level:g}. Exact draws: what chance alone does, p and distance (TV).",
        "Any bias of so much TV is refused with probability .99 or more; a draft whose rejections",
        "are resampled from p, off by the TV given, with the probability before it.",
    ]


def verdicts(report: Report) -> list[str]:
    """One sentence for each mode."""
    found = []
    for row in report.rows:
        tokens = "1 greedy token" if row.ties == 1 else f"{row.ties} greedy tokens"
        ties = f" ({tokens} from a tie within {TIE:g})" if row.ties else ""
        found.append(f"{row.mode}: {f'WRONG, {row.refusal}' if row.refusal else 'right'}{ties}")
    return found


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of an audit."""
    parser = argparse.ArgumentParser(
        prog="nanogpt audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = f"{', '.join(ENGINES)}, or a file with a function open_engine(folder)"
    parser.add_argument("engine", help=what)
    parser.add_argument("--bug", type=int, metavar="N", help="of nanogpt, with this bug in it")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    how = "a right engine fails a test so rarely, default: %(default)s"
    parser.add_argument("--level", type=float, default=LEVEL, help=how)
    parser.add_argument("--prompt", default=PROMPT, help="of the samples, default: %(default)r")
    parser.add_argument(
        "--K", type=int, default=4, help="drafted tokens, if it takes K; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    return parser.parse_args(arguments)


def audited(given: argparse.Namespace) -> Report:
    """The report that the settings ask for, of an engine on freshly exported folders.

    Raises ValueError, OSError or ImportError if there is nothing to audit.
    """
    check_folders(given.json)
    if given.bug is not None and given.engine != "nanogpt":
        raise ValueError("--bug goes with the engine nanogpt")
    if not 0 < given.level < 1:
        raise ValueError(f"level is {given.level}; it must be between 0 and 1")
    if given.K < 1:
        raise ValueError(f"K is {given.K}; it must be a whole number from 1")
    RandomSource(given.seed)  # refuses a seed below 0
    target, tokenizer = checkpoint.load()
    draft, _ = checkpoint.load(transformer.DISTILLED)
    with tempfile.TemporaryDirectory() as folder:
        export_pair(Path(folder))
        export_pair(Path(folder, "wide"), wide=True)
        engine = open_any(given.engine, Path(folder), given.K, given.bug)
        truth = Truth.of(target, draft, tokenizer, given.prompt)
        return audit(engine, truth, given.samples, given.seed, given.level, progress=True)


def main(arguments: list[str] | None = None) -> int:
    """Audit an engine and print the table and the verdict. Returns the exit code, 1 if wrong.

    Raises ValueError, OSError or ImportError if there is nothing to audit.
    """
    given = parse_arguments(arguments)
    torch.set_num_threads(1)
    report = audited(given)
    print(*table(report), *verdicts(report), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    return 0 if report.right else 1
