"""Does an engine sample the target's own distribution? `nanogpt audit transformers`

Our pair is small enough that its distribution is known exactly. So an engine that runs it, as
`nanogpt.engines.export` writes it, can be held against the truth. At temperature 0, token by token;
that alone sees nothing of a wrong accept rule. In samples, by χ² tests: the first three tokens
jointly (Pearson 1900), and every place up to 2 K + 2, so that accepted guesses, what replaces a
rejected one and bonus tokens are all among them. There, each token is judged by the p of its own
text, which one pass of the target tells. So that test needs no table of all texts, and would do for
a model of any size.

Each mode runs at temperature 1, at .7 with top-p .9 and with top-k 20, drafting 4 tokens and 1.
Where an engine takes them, it is asked for a grammar, for penalties, a bias and min-p, too, each at
temperature 1 and with the first K. Every report says which kinds of wrong engine it would have
refused; under constraints, decoders that are known to be wrong are asked as well.

An engine is `transformers`; `nanogpt` (with `--bug N`: out of the gallery); or a file with a
function `open_engine(folder)` that returns an `Engine` of `nanogpt.engines.adapters`. The
repository has two of those in `examples/engines/`, for OpenVINO GenAI and vLLM, which show how one
is written. A server's address, http://…/v1, or a log of its answers, answers.jsonl, is audited on
its own model, whatever that is: `nanogpt audit http://localhost:8000/v1 --help`. A prefix cache, a
server's or ours, is audited by `nanogpt audit nanogpt --prefix`. The exit code is 0 for a right
engine, 1 for a wrong one, 2 for one that cannot be audited.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer
from nanogpt.drafts import transformer
from nanogpt.engines import endpoint, places, prefix
from nanogpt.engines.adapters import ENGINES, Engine, Generate, open_any, open_nanogpt
from nanogpt.engines.export import export_pair
from nanogpt.engines.places import TIE, Listed, Places, Power, Report, Row, Test
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
    own_logits,
    own_probs,
    p_value,
    power,
    surely_seen,
)
from nanogpt.sampling import Sampling
from nanogpt.serving.constraints import Constraints, Past
from nanogpt.serving.grammar import Grammar

GREEDY = ("ROMEO:", "What say", "The king", "O, ", "First Citizen:\n")  # each continued so far:
ROUNDING = 1e-5  # of a sum of probabilities, in float32
PROMPT = "No more, no more, no "  # every third guess is rejected here, and lookup finds repeats
DEPTH = 3  # tokens of a sample that are tested jointly, at temperature 1
PLACES = ((0,), (1,), (2,), (0, 1, 2))
SETTINGS = {
    "T 1": Sampling(),
    "T .7, top-p .9": Sampling(0.7, top_p=0.9),
    "top-k 20": Sampling(top_k=20),
}
# Asked where an engine takes them, at temperature 1: arguments of Constraints. The grammar begins
# with an o, so that all texts do; then in turn come letters of which the draft guesses many wrong.
RULES = {
    "grammar": {"grammar": "o([m-z ][a-l]){50}"},
    "penalties": {"presence": 2.0, "frequency": 1.0},
    "repetition": {"repetition": 1.5},
    "bias": {"bias": {"e": -2.0, "o": 1.0, " ": 1.0}},
    "min-p": {"min_p": 0.1},
}
# What is wrong under constraints, the bug, and what it is asked for.
CONTROLS = (
    ("dropped", 70, "grammar"),
    ("first row", 71, "grammar"),
    ("first row", 71, "penalties"),
    ("first row", 71, "repetition"),
)
SAMPLES = 1000
AT_ONCE = 100  # samples in a call
# After so many samples there is a look before the last one, at a share of the level: a small one
# (for the rarest of cells) after the first call, and again while a control is not seen.
LOOKS = {AT_ONCE: 1e-4}
MORE_LOOKS = {AT_ONCE: 1e-4, 4 * AT_ONCE: 0.2, 7 * AT_ONCE: 0.2}


def rules_of(tokenizer: CharTokenizer) -> dict[str, Constraints]:
    """RULES over the tokens of a vocabulary. Raises ValueError if it lacks a letter of theirs."""
    made = {}
    for name, asked in RULES.items():
        given = dict(asked)
        if "grammar" in asked:
            given["grammar"] = Grammar(asked["grammar"], tokenizer.chars)
        if "bias" in asked:
            given["bias"] = {tokenizer.encode(x)[0]: by for x, by in asked["bias"].items()}
        made[name] = Constraints(**given)
    return made


def asks(constraints: Constraints) -> set[str]:
    """The fields that are not as they are by default."""
    names = (x.name for x in dataclasses.fields(Constraints))
    return {x for x in names if getattr(constraints, x) != getattr(Constraints(), x)}


def resampled(
    target: GPTLanguageModel, draft: GPTLanguageModel, prompt: Sequence[int] = ()
) -> Callable[[Tensor], Tensor]:
    """As next_probs, of a decoder that on rejection draws from p instead of the residual.

    min(p, q) is what it accepts; the rest of the time it draws from p. That is bug 1 of the
    gallery, and where each wrong engine that we have met comes near to.
    """

    p_after, q_after = next_probs(target, prompt), next_probs(draft, prompt)

    def probs(rows: Tensor) -> Tensor:
        p, q = p_after(rows), q_after(rows)
        accepted = torch.minimum(p, q)
        return accepted + (1 - accepted.sum(-1, keepdim=True)) * p

    return probs


def compare(samples: Counter, exact: dict[tuple, Joint]) -> list[Test]:
    """One test of the samples' tokens for each entry {tokens: distribution} of `exact`."""
    n, tests = sum(samples.values()), []
    for tokens, right in exact.items():
        counts = marginal(samples, tokens)
        p = p_value(*chi_squared(counts, right, n))
        too_often = (max(0.0, count / n - right[x]) for x, count in counts.items())
        tests.append(Test(called(tokens), p, sum(too_often)))
    return tests


def called(tokens: Sequence[int]) -> str:
    """The name of a test of these: "token 2", or "tokens 1-3" jointly."""
    first, last = tokens[0] + 1, tokens[-1] + 1
    return f"token {first}" if first == last else f"tokens {first}-{last}"


def powers(
    exact: dict[tuple, Joint], other: dict[tuple, Joint], n: int, level: float
) -> list[Power]:
    """The power of each test on n samples. Raises ValueError if n are too few for a test."""
    found = []
    for tokens, right in exact.items():
        shift, freedom = chi_squared({x: n * p for x, p in other[tokens].items()}, right, n)
        if freedom < 1:
            few = f"{n} samples are too few for a test of {called(tokens)} after this prompt"
            raise ValueError(f"{few}; take some thousands")
        seen = power(freedom, shift, level)
        distance = total_variation(other[tokens], right)
        found.append(Power(called(tokens), surely_seen(freedom, n, level), distance, seen))
    return found


# The audit


@dataclass(frozen=True)
class Truth:
    """What an engine is held against, worked out once.

    target: in float64. greedy: the prompts that are continued at temperature 0. prompt: the one of
    the samples; exact and other: {places: distribution} of what follows it, the target's own and
    the `resampled` one. rules: the constraints that may be asked for, by name.
    """

    target: GPTLanguageModel
    greedy: list[list[int]]
    prompt: list[int]
    text: str
    exact: dict[tuple, Joint]
    other: dict[tuple, Joint]
    rules: Mapping[str, Constraints] = field(default_factory=dict)

    @classmethod
    def of(cls, target, draft, tokenizer, prompt: str = PROMPT) -> Truth:
        """The truth about a pair of models, after a prompt. Raises ValueError as encode does."""
        target, draft = copy.deepcopy(target).double(), copy.deepcopy(draft).double()
        tokens = tokenizer.encode(prompt)
        if not 1 <= len(tokens) <= target.config.block_size - DEPTH - 1:
            most = target.config.block_size - DEPTH - 1
            raise ValueError(f"the prompt has {len(tokens)} tokens; take 1 to {most}")
        tables = []
        for probs in (next_probs(target, tokens), resampled(target, draft, tokens)):
            joint = exact_joint(probs, tokens, DEPTH)
            tables.append({tokens: marginal(joint, tokens) for tokens in PLACES})
        return cls(target, [tokenizer.encode(text) for text in GREEDY], tokens, prompt, *tables)


class Refused(Exception):
    """What is wrong with a mode, in one line."""


class Failed(Refused):
    """What a mode raised in place of an answer, in one line: no verdict on what it would write."""


def answers(
    generate: Generate, prompts: list[list[int]], n: int, sampling: Sampling, seed: int, V: int
) -> list[list[int]]:
    """The n new tokens of each prompt. Raises Refused for others, Failed for none."""
    try:
        made = [list(tokens) for tokens in generate(prompts, n, sampling, seed)]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        said = (str(error).strip() or "no reason given").splitlines()[0]
        raise Failed(f"it raised {type(error).__name__}: {said}") from error
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
    made = answers(generate, truth.greedy, places.GREEDY_TOKENS, Sampling(0), 0, V)
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


class Plan(NamedTuple):
    """What every mode of an audit is asked: so many samples of each setting, from this seed on."""

    truth: Truth
    settings: Sequence[str] = ("T 1",)  # of SETTINGS, and of the truth's rules
    samples: int = SAMPLES
    seed: int = 0
    level: float = LEVEL
    looks: Mapping[int, float] = LOOKS


def samples_of(
    generate: Generate, plan: Plan, n: int, sampling: Sampling, bar: tqdm
) -> Iterator[Tensor]:
    """The plan's samples of n tokens after its prompt, (samples, n): those so far, call by call.

    Raises Refused if they are none, or if another seed gives the same ones again.
    """
    truth, samples, seed = plan.truth, plan.samples, plan.seed
    V, made = truth.target.config.vocab_size, []
    for done in range(0, samples, AT_ONCE):
        prompts = [list(truth.prompt) for _ in range(min(AT_ONCE, samples - done))]
        # One token more than is tested: engines do not guess the last one.
        made.append(answers(generate, prompts, n + 1, sampling, seed + done, V))
        if len(made) == 2 and made[0] == made[1] and len(prompts) == AT_ONCE:
            raise Refused(f"the same {AT_ONCE} samples came for two seeds: is the seed used?")
        bar.update(len(prompts))
        yield torch.tensor([tokens[:n] for call in made for tokens in call])


def rounded(truth: Truth, made: Tensor, sampling: Sampling) -> Tensor:
    """p (N, n, V) of each token of made (N, n), by the prompt and what was made before it.

    An engine's float32 may cut off its tail one token later than float64 does, or keep the other of
    two that are as likely. So where a token came that is cut off by less than ROUNDING of top-p, or
    that is within TIE of the last one kept, p is that of a tail cut off just below it.
    """
    whole = own_probs(truth.target, truth.prompt, made, Sampling(sampling.temperature))
    cut = dataclasses.replace(sampling, temperature=1.0)
    p = cut.of_probs(whole)
    if sampling.top_p is not None:
        cut = dataclasses.replace(cut, top_p=min(1.0, sampling.top_p + ROUNDING))
    came = whole.gather(-1, made[..., None])  # (N, n, 1)
    last = whole.where(p > 0, 1.0).amin(-1, keepdim=True)
    near = (came >= (1 - TIE) * last) | (cut.of_probs(whole).gather(-1, made[..., None]) > 0)
    down_to_it = whole.where(whole >= came, 0.0)
    down_to_it /= down_to_it.sum(-1, keepdim=True)
    return torch.where(near & (p.gather(-1, made[..., None]) == 0), down_to_it, p)


def ruled(truth: Truth, made: Tensor, rules: Constraints) -> Tensor:
    """p (N, n, V) of each token of made (N, n) under constraints, by what was made before it.

    As in `rounded`, the last token that min-p keeps may be one that float32 keeps.
    """
    logits = own_logits(truth.target, truth.prompt, made)  # (N, n, V)
    N, n, _ = logits.shape
    pasts: list[Past] = []
    for tokens in made.tolist():
        pasts += itertools.accumulate(tokens[:-1], rules.after, initial=Past())

    def probs(rules: Constraints) -> Tensor:
        changed = rules.logits(logits.flatten(0, 1), pasts, truth.prompt)
        return Sampling().probs(changed).unflatten(0, (N, n))

    p = probs(rules)
    if rules.min_p:
        lower = probs(dataclasses.replace(rules, min_p=(1 - TIE) * rules.min_p))
        p = torch.where(p.gather(-1, made[..., None]) > 0, p, lower)
    return p


def depth(K: int | None) -> int:
    """Tokens of a sample: enough for a second round of K guesses and a bonus."""
    return max(2 * (K or 0) + 2, DEPTH)


def audit_samples(row: Row, setting: str, generate: Generate, plan: Plan, bar: tqdm) -> None:
    """Fill in the row's tests of one setting's samples. Raises Refused if one of them fails.

    They are looked at now and then, and the level is divided between the looks: what a share of it
    refuses is not asked for more.
    """
    n, rules = depth(row.K), plan.truth.rules.get(setting)
    sampling = SETTINGS.get(setting, Sampling())
    asked = generate if rules is None else functools.partial(generate, constraints=rules)
    early = {at: share for at, share in plan.looks.items() if at < plan.samples}
    shares = early | {plan.samples: 1 - sum(early.values())}
    for made in samples_of(asked, plan, n, sampling, bar):
        if share := shares.get(len(made)):
            said = look(row, setting, made, plan, plan.level * share)
            if said:
                bar.update(plan.samples - len(made))
                raise Refused(said + f", in {len(made):,} samples" * (len(made) in early))


def look(row: Row, setting: str, made: Tensor, plan: Plan, level: float) -> str:
    """Fill in the row's tests of these samples. Returns what they are refused for, or nothing."""
    truth, rules = plan.truth, plan.truth.rules.get(setting)
    sampling = SETTINGS.get(setting, Sampling())
    p = rounded(truth, made, sampling) if rules is None else ruled(truth, made, rules)
    N, n = made.shape
    found = Places(Listed.whole(p.flatten(0, 1), made.flatten()), torch.arange(n).repeat(N))
    row.places[setting] = found.found()
    tests = []
    if sampling == Sampling() and rules is None:
        firsts = Counter(map(tuple, made[:, :DEPTH].tolist()))
        row.tests = tests = compare(firsts, truth.exact)
    if N == plan.samples and row.K and not row.kinds:
        row.kinds = found.kinds(plan.level, row.K + 1)
    said = places.refusal([*tests, *row.places[setting]], level)
    kind = f"{setting}, " * (rules is not None or sampling != Sampling())
    broken = int((p.gather(-1, made[..., None]) == 0).any(1).sum()) if rules is not None else 0
    if broken:
        kind += f"{broken:,} of {N:,} texts hold a letter that must not come, "
    return said and kind + said


def audit_mode(engine: Engine, mode: str, K: int | None, plan: Plan, bar: tqdm) -> Row:
    """One mode of the engine: the greedy texts, then the samples, whatever came of the others."""
    row, generate, count = Row(mode, K=K), engine.modes[mode], engine.counts or dict
    parts = {"greedy": functools.partial(audit_greedy, row, generate, plan.truth)}
    for setting in plan.settings:
        name = "at 1" if setting == "T 1" else setting
        parts[name] = functools.partial(audit_samples, row, setting, generate, plan, bar)
    start, refusals, failures = time.perf_counter(), [], []
    for name, part in parts.items():
        before = count()
        try:
            part()
        except Refused as refusal:
            (failures if isinstance(refusal, Failed) else refusals).append(str(refusal))
        row.counts[name] = {key: now - before.get(key, 0) for key, now in count().items()}
    row.refusal, row.failure = ("; ".join(dict.fromkeys(said)) for said in (refusals, failures))
    row.seconds = time.perf_counter() - start
    return row


def seconds(engine: Engine, mode: str, plan: Plan, K: int, tried: int = 20) -> float:
    """How long a mode's samples may take, by a few of them at temperature 1; 0 if it fails."""
    n = depth(None if mode == "plain" else K) + 1
    V, asked = plan.truth.target.config.vocab_size, [list(plan.truth.prompt)] * tried
    start = time.perf_counter()
    try:
        answers(engine.modes[mode], asked, n, Sampling(), plan.seed, V)
    except Refused:  # what is wrong with it is said when it is asked in earnest
        return 0.0
    return (time.perf_counter() - start) * len(plan.settings) * plan.samples / tried


def audit(engine: Engine, plan: Plan, K: int = 4, progress: bool = False) -> Report:
    """Every mode of the engine against the truth: the greedy texts, then the samples.

    K: how many tokens the engine drafts; a mode named "plain" drafts none. Of the truth's rules
    those are asked that the engine takes.
    Raises ValueError if the samples are too few for a test.
    """
    truth, settings, samples, seed, level, _ = plan
    power = powers(truth.exact, truth.other, samples, level)
    jointly = [*truth.exact.values()][-1]
    chance = compare(draws(jointly, samples, seed), truth.exact)
    told = engine.name, engine.version, engine.options, truth.text
    report = Report(*told, len(truth.greedy), samples, level, seed, power, chance)
    for name in settings:
        if name in truth.rules and not asks(truth.rules[name]) <= set(engine.takes):
            report.untaken.append(name)
    plan = plan._replace(settings=[name for name in settings if name not in report.untaken])
    total = len(engine.modes) * len(plan.settings) * samples
    if progress:
        needs = sum(seconds(engine, mode, plan, K) for mode in engine.modes)
        tell(f"{engine.name}, K = {K}: {total:,} samples, about {needs:.0f} s")
    with Lines(total=total, unit="sample", disable=not progress) as bar:
        for mode in engine.modes:
            row_K = None if mode == "plain" else K
            bar.set_description(f"{engine.name} {Row(mode, K=row_K).name}", refresh=False)
            report.rows.append(audit_mode(engine, mode, row_K, plan, bar))
            if progress:
                tell(f"{report.rows[-1].name}: done in {report.rows[-1].seconds:.0f} seconds")
            bar.n = len(report.rows) * len(plan.settings) * samples
    return report


def tell(what: str) -> None:
    """Print how far the audit is, at once."""
    if sys.stderr.isatty():
        tqdm.write(what, file=sys.stdout)
    else:
        print(what, flush=True)


class Lines(tqdm):
    """A bar; where there is no terminal, a line every 30 seconds, with what is left."""

    def __init__(self, **named):
        self.terminal = sys.stderr.isatty()
        super().__init__(**named, mininterval=0.1 if self.terminal else 30, miniters=1)

    def display(self, msg=None, pos=None):
        """Show where it is."""
        if self.terminal:
            return super().display(msg, pos)
        if 0 < self.n < self.total:
            left = (self.total - self.n) * self.format_dict["elapsed"] / self.n
            print(
                f"{self.desc}{self.n:,} of {self.total:,} samples, about {left:.0f} s to go",
                flush=True,
            )
        return True


def controls(plan: Plan, K: int, progress: bool = False) -> list[Row]:
    """Samples of our own decoder, wrong: those of CONTROLS whose rules are among the settings."""
    wrong = [each for each in CONTROLS if each[-1] in plan.settings]
    truth = dataclasses.replace(plan.truth, greedy=[])  # they are refused by their samples
    rows = []
    with Lines(total=len(wrong) * plan.samples, unit="sample", disable=not progress) as bar:
        for name, bug, setting in wrong:
            bar.set_description(f"control: {name}", refresh=False)
            engine = open_nanogpt(Path(), K, bug)
            asked = plan._replace(truth=truth, settings=(setting,), looks=MORE_LOOKS)
            row = audit_mode(engine, "draft", K, asked, bar)
            rows.append(dataclasses.replace(row, mode=name))
    return rows


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of an audit."""
    parser = places.parser_of("nanogpt audit", __doc__, PROMPT, SAMPLES)
    what = f"{', '.join(ENGINES)}, a file with open_engine(folder), or a server's address"
    parser.add_argument("engine", help=what)
    parser.add_argument("--bug", type=int, metavar="N", help="of nanogpt, with this bug in it")
    how = "drafted tokens, if it takes K, one audit for each; default: 4 1"
    parser.add_argument("--K", type=int, nargs="+", default=[4, 1], help=how)
    which = parser.add_mutually_exclusive_group()
    how = "the first K and temperature 1 alone: the fewest samples"
    which.add_argument("--quick", action="store_true", help=how)
    how = "the first K, temperature 1 and the constraints alone"
    which.add_argument("--constraints", action="store_true", help=how)
    return parser.parse_args(arguments)


def audited(given: argparse.Namespace) -> Report:
    """The report that the settings ask for, of an engine on freshly exported folders.

    Raises ValueError, OSError or ImportError if there is nothing to audit.
    """
    places.check_given(given)
    if given.bug is not None and given.engine != "nanogpt":
        raise ValueError("--bug goes with the engine nanogpt")
    if min(given.K) < 1:
        raise ValueError(f"K is {min(given.K)}; it must be a whole number from 1")
    target, tokenizer = checkpoint.load()
    draft, _ = checkpoint.load(transformer.DISTILLED)
    with tempfile.TemporaryDirectory() as folder:
        export_pair(Path(folder))
        export_pair(Path(folder, "wide"), wide=True)
        tokenizer.encode(given.prompt)  # what cannot be audited is said before the work begins
        engine = open_any(given.engine, Path(folder), given.K[0], given.bug)
        tell(f"Working out what comes after {given.prompt!r} how often …")
        truth = Truth.of(target, draft, tokenizer, given.prompt)
        truth = dataclasses.replace(truth, rules=rules_of(tokenizer))
        one = given.quick or given.constraints
        settings = [*SETTINGS][: 1 if one else None] + [*truth.rules] * (not given.quick)
        plan = Plan(truth, settings, given.samples, given.seed, given.level)
        report = audit(engine, plan, given.K[0], True)
        for K in given.K[1:] * (not one):  # what drafts nothing, and the constraints, are done
            engine = open_any(given.engine, Path(folder), K, given.bug)
            drafting = {mode: f for mode, f in engine.modes.items() if mode != "plain"}
            engine = dataclasses.replace(engine, modes=drafting)
            report.rows += audit(engine, plan._replace(settings=[*SETTINGS]), K, True).rows
        ruled = {name for row in report.rows for name in row.counts}
        report.controls = controls(plan._replace(settings=ruled), given.K[0], True)
        return report


def main(arguments: list[str] | None = None) -> int:
    """Audit an engine and print the table and the verdict. Returns the exit code.

    1 if a mode is wrong; 2 if none is, but one failed, or what is wrong would not have been seen.
    Raises ValueError, OSError or ImportError if there is nothing to audit.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--prefix" in arguments:
        return prefix.main([x for x in arguments if x != "--prefix"])
    for before, x in zip(["", *arguments], arguments, strict=False):
        flag = before in ("--told", "--quick", "--constraints")
        if before.startswith("--") and "=" not in before and not flag:
            continue  # an option's value
        log = x.endswith(".jsonl") or (Path(x).is_file() and not x.endswith(".py"))
        if endpoint.is_address(x) or (log and x not in ENGINES):
            return endpoint.main(arguments)
    given = parse_arguments(arguments)
    torch.set_num_threads(1)
    report = audited(given)
    return places.conclude(report, [*places.table(report), *places.verdicts(report)], given.json)
