"""What χ² tests find at every place of the texts that were drawn, and what an audit says of it.

An audit makes rows: of each token that came the exact p of its own text, whole or of the likeliest
tokens. From there on all audits are one: rows -> cells -> places -> report -> lines and exit code.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nanogpt.data import check_folders
from nanogpt.proof.statistics import LEVEL, RANKS, crossing, of_counts, of_pairs, p_text, p_values
from nanogpt.sampling import RandomSource, Sampling, Uniforms

GREEDY_TOKENS = 100  # of each text at temperature 0
TIE = 1e-4  # float32 engines may choose either of two logits that are as close
FEWEST = 50  # tokens in a test of one place, where p is listed
OWN = 63  # listed tokens with a cell of their own
SLACK = 0.5  # of a logit: so far below the cut, rounding does not bring a token
EDGE = 0.01  # of the mass of a nucleus: so near its edge, rounding may cut a token or keep it
EACH = 5  # tokens of a round: K = 4 guesses and a bonus
DISTANCE = 0.35  # of a bad draft from its target
CUT = 20  # tokens that a server keeps at most where nothing is asked, if it cuts
SIMULATED = 20  # wrong engines of each kind


class Listed(NamedTuple):
    """N tokens, each with the n likeliest ones at its place: their numbers (N, n), likeliest first.

    p (N, n + 2): of each of these; then of all that are not told apart; then 0, of what cannot
    come. came (N,): the column of the token that came.
    """

    tokens: Tensor
    p: Tensor
    came: Tensor

    @classmethod
    def of(
        cls, tokens: Tensor, logs: Tensor, came: Tensor, log: Tensor, sampling: Sampling
    ) -> Listed:
        """Of the n likeliest and their log-probabilities (N, n), and those (N,) of what came.

        The nth is not told apart, nor what is as likely, so that which tokens are does not depend
        on the one that came. With top-k, the nth is the last that is kept; with top-p, neither is
        what rounding may cut or keep told apart. Without a cut, no token is impossible: the rest
        has a probability, however the listed ones were rounded.
        """
        border = logs[:, -1:]
        cut = sampling.top_k is not None
        whole = not cut and sampling.temperature == 1
        p = logs.exp() if whole else (logs / sampling.temperature).softmax(-1)
        apart, beyond = logs > border, (log < border[:, 0] - SLACK) & cut
        if sampling.top_p is not None and sampling.top_p < 1:
            before = p.cumsum(-1) - p
            apart = apart & (before < sampling.top_p - EDGE)
            p = p * (before < sampling.top_p)
            p = p / p.sum(-1, keepdim=True)
            past = (before > sampling.top_p + EDGE) & (log[:, None] <= logs)
            beyond = beyond | past.any(1)
        p = p * apart
        rest = (1 - p.sum(-1, keepdim=True)).clamp(min=0 if cut else 1 / max(1, len(p)))
        p, rest = (x / (p.sum(-1, keepdim=True) + rest) for x in (p, rest))
        here = (tokens == came[:, None]) & apart
        column = torch.where(here.any(1), here.int().argmax(1), tokens.shape[1] + beyond.long())
        return cls(tokens, torch.cat([p, rest, torch.zeros_like(rest)], dim=1), column)

    @classmethod
    def whole(cls, p: Tensor, came: Tensor) -> Listed:
        """Of all tokens' p (N, V), and the tokens (N,) that came."""
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        column = (order == came[:, None]).int().argmax(1)
        never = ranked.gather(1, column[:, None])[:, 0] == 0
        p = torch.cat([ranked, torch.zeros_like(ranked[:, :2])], dim=1)
        return cls(order, p, torch.where(never, p.shape[1] - 1, column))

    @property
    def group(self) -> Tensor:
        """A number (N,) for each pair of tokens that are the two likeliest somewhere."""
        return self.tokens[:, :2].unique(dim=0, return_inverse=True)[1]

    def letters(self, group: Tensor) -> Tensor:
        """The cell (N, n + 2) of each column: the likeliest tokens of a group have one each."""
        N, n = self.tokens.shape
        size = int(self.tokens.max()) + 1
        keys, key = (group[:, None] * size + self.tokens).unique(return_inverse=True)
        totals = torch.zeros(len(keys), dtype=self.p.dtype)
        totals.index_add_(0, key.flatten(), self.p[:, :n].flatten())
        order = totals.argsort(descending=True, stable=True)
        order = order[(keys[order] // size).argsort(stable=True)]  # group by group
        begins = torch.searchsorted(keys // size, keys // size)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        own = torch.where(totals > 0, rank - begins, OWN).clamp(max=OWN)
        return torch.cat([own[key], torch.tensor([OWN, OWN + 1]).expand(N, 2)], dim=1)

    def ranks(self) -> Tensor:
        """The cell (N, n + 2) of each column: a range of ranks; the last two columns one each."""
        N, n = self.tokens.shape
        rank = torch.bucketize(torch.arange(n), torch.tensor(RANKS), right=True)
        return torch.cat([rank, torch.tensor([1, 2]) + len(RANKS)]).expand(N, n + 2)

    def at(self, here: Tensor) -> Listed:
        """Those of these tokens."""
        return Listed(*(x[here] for x in self))


# The tests


class Trials:
    """Three tests of tokens, each by the p of its own text, for whatever came or might have come.

    By letter and by rank, how often each came, summed over the texts. And where two texts are
    alike, in that the same two tokens are likeliest, whether what came to one of them agrees with
    what came to the other more than p has it: so a bias is seen that differs from text to text.
    """

    def __init__(self, listed: Listed):
        self.cells, self.group = [], listed.group
        for cell in (listed.letters(torch.zeros_like(self.group)), listed.ranks()):
            rows = torch.zeros(len(cell), int(cell.max()) + 1, dtype=listed.p.dtype)
            rows.scatter_add_(1, cell, listed.p)
            self.cells.append((cell, rows, *of_counts(rows)))
        self.cell = listed.letters(self.group)
        rows = torch.zeros(len(self.cell), OWN + 2, dtype=listed.p.dtype)
        self.agree = of_pairs(rows.scatter_add_(1, self.cell, listed.p), self.group)

    def __call__(self, came: Tensor) -> Tensor:
        """p-values (3, S) of columns (N, S): by letter, by rank, of texts that are alike."""
        found = []
        for cell, rows, statistic, freedom in self.cells:
            seen = cell.gather(1, came)  # (N, S)
            counts = torch.zeros(rows.shape[1], came.shape[1], dtype=rows.dtype)
            counts.scatter_add_(0, seen, torch.ones_like(seen, dtype=rows.dtype))
            value = statistic(counts.T)
            value[(rows.gather(1, seen) == 0).any(0)] = float("inf")
            found.append(p_values(value, max(1, freedom)))  # 0: all is certain
        return torch.stack([*found, p_values(*self.agree(self.cell.gather(1, came)))])


# Places


@dataclass(frozen=True)
class Place:
    """The tests of the tokens at one place of the texts, or at all: their p-values.

    letters, ranks: of how often each came; alike: of texts that are alike. total_variation: of the
    letters that came from those expected, summed over the texts. surely: in reports before `alike`,
    from which of these on a sum is refused with probability .99 or more.
    """

    place: str
    letters: float
    ranks: float
    total_variation: float
    surely: float | None = None
    alike: float = 1.0

    @property
    def p(self) -> float:
        """The smallest p-value."""
        return min(self.letters, self.ranks, self.alike)


class Kind(NamedTuple):
    """A kind of wrong engine, and how many of those that were simulated were refused."""

    name: str
    refused: int
    simulated: int = SIMULATED

    @property
    def seen(self) -> bool:
        """Whether nearly all of them were."""
        return self.refused >= 0.9 * self.simulated


class Places:
    """The tests of all places together, then of each that so many tokens reach.

    at (N,): where in its text each token stands, from 0.
    """

    def __init__(self, listed: Listed, at: Tensor, fewest: int = 1):
        self.listed, self.at = listed, at
        self.here = {"all places": torch.ones_like(at, dtype=torch.bool)}
        for i in range(int(at.max()) + 1):
            if int((here := at == i).sum()) >= fewest:
                self.here[f"token {i + 1}"] = here
        self.tests = {name: Trials(listed.at(here)) for name, here in self.here.items()}

    def found(self) -> list[Place]:
        """What the tests say of what came."""
        made = []
        for name, here in self.here.items():
            tests, came = self.tests[name], self.listed.came[here, None]
            cell, rows, *_ = tests.cells[0]
            seen = torch.bincount(cell.gather(1, came)[:, 0], minlength=rows.shape[1])
            distance = float((seen - rows.sum(0)).abs().sum()) / 2 / len(rows)
            letters, ranks, alike = tests(came)[:, 0].tolist()
            made.append(Place(name, letters, ranks, distance, alike=alike))
        return made

    def kinds(self, level: float, each: int = EACH) -> list[Kind]:
        """How many engines of each kind the tests refuse, after these very texts.

        each: tokens, of which one is a bonus, where all guesses are accepted.
        """
        found, generator = [], Uniforms.generator(0)
        for name, q in wrong(self.listed, self.at, each).items():
            cdf = q.cumsum(-1)
            u = torch.from_numpy(generator.random((len(q), SIMULATED))) * cdf[:, -1:]
            came = torch.searchsorted(cdf, u, right=True)  # (N, S)
            least = [tests(came[self.here[x]]).amin(0) for x, tests in self.tests.items()]
            refused = int((torch.stack(least).amin(0) < level).sum())
            found.append(Kind(name, refused))
        return found


def wrong(listed: Listed, at: Tensor, each: int = EACH) -> dict[str, Tensor]:
    """{kind: what a wrong engine of that kind draws from in place of p (N, n + 2)}."""
    p, n = listed.p, listed.tokens.shape[1]
    each = min(each, int(at.max()) + 1)
    there = ((at + 1) % each == 0)[:, None]
    best = torch.zeros_like(p)
    best[:, 0] = 1

    size = int(listed.tokens.max()) + 1
    keys, key = (listed.group[:, None] * size + listed.tokens).unique(return_inverse=True)
    noise = torch.zeros_like(p)  # one for each token after texts that are alike
    noise[:, :n] = torch.from_numpy(Uniforms.generator(0).standard_normal(len(keys)))[key]

    def draft(scale: float) -> Tensor:
        q = p * (scale * noise).exp()
        return q / q.sum(-1, keepdim=True)

    told = float(p[:, :n].sum())  # what is not told apart is as far away, and does not show

    def distance(scale: float) -> float:
        return float((draft(scale) - p).abs().sum()) / 2 / told

    scale = crossing(lambda x: distance(x) - DISTANCE, 10.0)
    hot, cut, k = p ** (1 / 1.05), p.clone(), min(n, CUT) - 1
    cut[:, k:] = 0
    cut[:, 0] += 1e-12  # where nothing else is left
    often = f"one token in {each}"
    return {
        f"{often} the likeliest (a bonus by argmax)": torch.where(there, best, p),
        f"{often} from a draft {distance(scale):.2f} away": torch.where(there, draft(scale), p),
        "a temperature 5 % too high": hot / hot.sum(-1, keepdim=True),
        f"only the {k} likeliest come": cut / cut.sum(-1, keepdim=True),
    }


# Reports


@dataclass(frozen=True)
class Test:
    """One χ² test: the places of the tokens, its p-value, and the total variation beside it."""

    places: str
    p: float
    total_variation: float

    @property
    def place(self) -> str:
        """The same, as a Place calls it."""
        return self.places


@dataclass(frozen=True)
class Power:
    """What a test sees: any bias of `surely` or more; and `resampled`, off by `other`, so often."""

    places: str
    surely: float
    other: float
    power: float


@dataclass
class Row:
    """What was found out about one mode, server or loop. `refusal` is empty if it is right.

    failure: what it raised in place of answers; of those that came, the row tells all the same.
    K: how many tokens it drafts, None if it drafts none. greedy: how many of the prompts are
    continued as by the target; ties: tokens where its best two logits are within TIE and the other
    one came. tests: of the first tokens, at temperature 1; places: by setting, of all places and of
    each. kinds: after the first setting's texts. counts: what the engine told, "greedy" and "at 1".
    """

    mode: str
    greedy: int = 0
    ties: int = 0
    tests: list[Test] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    refusal: str = ""
    seconds: float = 0.0
    K: int | None = None
    places: dict[str, list[Place]] = field(default_factory=dict)
    failure: str = ""
    kinds: list[Kind] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The mode, and K where it drafts."""
        return self.mode if self.K is None else f"{self.mode}, K = {self.K}"

    @property
    def worst(self) -> Place:
        """The place with the smallest p-value."""
        return min((x for places in self.places.values() for x in places), key=lambda x: x.p)


@dataclass
class Report:
    """An audit: a row for each mode, and what the tests can see.

    engine, version, options: exactly what was run, and how. samples: of each mode and setting.
    notes: what else to know of them. doubt: why what was refused may be right; empty if it is not.
    controls: what was found out about decoders that are known to be wrong. Of engines that run our
    pair, greedy: how many texts of how many tokens; power and chance: what the tests of the first
    tokens see, and those of as many samples drawn from the exact distribution itself; untaken: what
    the engine could have been asked, if it took such constraints.
    """

    engine: str
    version: str
    options: str
    prompt: str
    greedy: int
    samples: int
    level: float
    seed: int | None
    power: list[Power] = field(default_factory=list)
    chance: list[Test] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    controls: list[Row] = field(default_factory=list)
    untaken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubt: str = ""

    @property
    def right(self) -> bool:
        """Whether every mode is."""
        return not any(row.refusal for row in self.rows)

    @property
    def blind(self) -> bool:
        """Whether what is grossly wrong was not refused, a control or the first kind: too few."""
        seen = [kind.seen for row in self.rows for kind in row.kinds[:1]]
        return not all([*seen, *(bool(row.refusal) for row in self.controls)])

    @property
    def exit_code(self) -> int:
        """0: all is right; 1: a mode is wrong; 2: in doubt, or one failed, or `blind`."""
        unsure = self.doubt or self.blind or any(row.failure for row in self.rows)
        return 1 if not (self.right or self.doubt) else 2 if unsure else 0


def refusal(tests: Sequence[Test | Place], level: float) -> str:
    """What the worst of the tests is refused for, in one line; empty if all are passed."""
    worst = min(tests, key=lambda test: test.p)
    if worst.p >= level:
        return ""
    off = f"off by a total variation of {worst.total_variation:.2f}"
    return f"{worst.place} {off}, p {p_text(worst.p)}"


def judge(
    listed: Listed,
    at: Tensor,
    level: float = LEVEL,
    who: str = "",
    setting: str = "",
    source: str = "",
) -> Report:
    """The report on rows of which tokens are listed: all places, then each that enough texts reach.

    at (N,): where in its text each token stands, from 0. source: where p comes from.
    Raises ValueError if the tokens are too few.
    """
    if len(at) < FEWEST:
        raise ValueError(f"{len(at)} tokens came; {FEWEST} are the fewest for a test")
    tests = Places(listed, at, FEWEST)
    found, kinds = tests.found(), tests.kinds(level)
    row = Row(who, refusal=refusal(found, level), places={setting: found}, kinds=kinds)
    texts, source = int((at == 0).sum()), f"p {source}, of the {listed.tokens.shape[1]} likeliest"
    return Report(who, "", source, "", 0, texts, level, None, rows=[row])


# As lines


def listed_table(report: Report) -> list[str]:
    """The report on listed rows as lines: every place, what would have been seen, the verdict."""
    [row] = report.rows
    [(setting, places)] = row.places.items()
    lines = [
        f"{report.engine}: {report.samples:,} texts, {setting}; {report.options}",
        f"{'':<14}{'letters':>10}{'ranks':>10}{'alike':>10}{'TV':>8}",
    ]
    for place in places:
        ps = "".join(f"{p_text(p):>10}" for p in (place.letters, place.ranks, place.alike))
        lines.append(f"{place.place:<14}{ps}{place.total_variation:>8.3f}")
    wrong = f"none: {row.refusal}, but {report.doubt}" if report.doubt else f"WRONG, {row.refusal}"
    said = wrong if row.refusal else f"right; {sight(row)}"
    if report.blind and not row.refusal:
        said = f"none: take more texts, these are too few; {sight(row)}"
    told = (*TOLD, f"Wrong is p < {report.level:g}.", *report.notes)
    return [*lines, *told, *kinds_table(report), f"verdict: {said}"]


TOLD = (
    "p of three tests of each token by its own text: how often each letter and each rank came, and",
    "whether texts with the same two likeliest tokens are off in the same way (alike). TV: letters",
    "summed over the texts, so that what differs from text to text may cancel.",
)


def kinds_table(report: Report) -> list[str]:
    """Which kinds of wrong engine the tests would have refused, as lines."""
    lines = []
    for row in report.rows:
        if row.kinds:
            of = f" of {row.name}" * (len(report.rows) > 1)
            lines.append(f"Wrong engines simulated after these texts{of}; refused were")
            lines += [f"{x.refused:>4} of {x.simulated}   {x.name}" for x in row.kinds]
    return lines


def sight(row: Row) -> str:
    """The same of one row, in one line."""
    seen, unseen = (
        ", ".join(x.name for x in row.kinds if x.seen == wanted) for wanted in (True, False)
    )
    parts = [f"would have refused: {seen}"] * bool(seen)
    return "; ".join(parts + [f"would have missed some of: {unseen}"] * bool(unseen))


def said_of(control: Row) -> str:
    """Whether a decoder that is known to be wrong was refused."""
    seen = f"refused, {control.refusal}" if control.refusal else "NOT SEEN: take more samples"
    return f"control, {control.name}: {seen}"


def per(counts: dict[str, int], made: str, of: str) -> str:
    """One count divided by another, or a dash where the engine does not tell."""
    return f"{counts[made] / counts[of]:.2f}" if counts.get(of) and made in counts else "-"


def table(report: Report) -> list[str]:
    """The report as lines: what each mode got, what chance gets, what the tests can see."""

    def line(name, greedy, cells, passes="", accepted=""):
        columns = f"{name:<17}{greedy:>6}" + "".join(f"{cell:>15}" for cell in cells)
        return f"{columns}{passes:>8}{accepted:>10}".rstrip()

    def tested(tests):
        return [f"{p_text(test.p)} {test.total_variation:.3f}" for test in tests]

    names = [power.places for power in report.power]
    ran = f"{report.engine} {report.version}" + f" ({report.options})" * bool(report.options)
    lines = [
        f"{ran}: {report.samples:,} samples after {report.prompt!r}",
        line("", "greedy", names, "tokens", "accepted"),
        line("", "", ["p    TV"] * len(names), "a pass", "greedy/1"),
    ]
    for row in [*report.rows, *(row for row in report.controls if row.tests)]:
        greedy, at_1 = (row.counts.get(name, {}) for name in ("greedy", "at 1"))
        made = greedy | {"tokens": report.greedy * GREEDY_TOKENS}
        accepted = "/".join(per(counts, "accepted", "drafted") for counts in (greedy, at_1))
        cells = tested(row.tests) or ["-"] * len(names)
        right = f"{row.greedy}/{report.greedy}"
        lines.append(line(row.name, right, cells, per(made, "tokens", "passes"), accepted))
    other = [f"{x.power:.2f} {x.other:.3f}" for x in report.power]
    return [
        *lines,
        line("exact draws", "", tested(report.chance)),
        line("any bias, from", "", [f"{x.surely:.3f}" for x in report.power]),
        line("resampling p", "", other),
        f"Wrong is p < {report.level:g}. Exact draws: what chance alone does, p and distance (TV).",
        "Any bias of so much TV is refused with probability .99 or more; a draft whose rejections",
        "are resampled from p, off by the TV given, with the probability before it.",
        *places_table(report.rows + report.controls),
        *kinds_table(report),
    ]


def places_table(rows: Sequence[Row]) -> list[str]:
    """The tests of every place as lines: all of them together, and the worst one."""
    lines = []
    for row in rows:
        for setting, (together, *each) in row.places.items():
            worst = min(each, key=lambda place: place.p)
            ps = "".join(f"{p_text(p):>10}" for p in (together.letters, together.ranks, worst.p))
            alike = f"{p_text(together.alike):>8}"
            lines.append(f"{row.name:<20}{setting:<16}{len(each):>3}{ps}  {worst.place:<9}{alike}")
    columns = f"{'letters':>10}{'ranks':>10}{'worst p':>10}  {'at':<9}{'alike':>8}"
    head = ["", f"Every place: {TOLD[0]}", TOLD[1], f"{'':<36}{'n':>3}{columns}"]
    return head + lines if lines else []


def verdicts(report: Report) -> list[str]:
    """A sentence for each mode and control, and one where too few samples make them worthless."""
    found = []
    for row in report.rows:
        tokens = "1 greedy token" if row.ties == 1 else f"{row.ties} greedy tokens"
        ties = f" ({tokens} from a tie within {TIE:g})" if row.ties else ""
        wrong = f"WRONG, {row.refusal}" if row.refusal else "no verdict" if row.failure else ""
        said = "; ".join(filter(None, [wrong or right(row), row.failure]))
        found.append(f"{row.name}: {said}{ties}")
    found += map(said_of, report.controls)
    if report.untaken:
        found.append(f"the engine takes no such constraints: {', '.join(report.untaken)}")
    if report.right and report.blind:
        found.append("no verdict: with so few samples, a bug that is there was not seen, either")
    return found


def right(row: Row) -> str:
    """What it means that a row is not refused."""
    said = f"right; {sight(row)}" if row.kinds else "right"
    if row.K and any(counts.get("drafted") == 0 for counts in row.counts.values()):
        said += "; but no guess was drafted, so its accept rule was not met"
    return said


# What every command of an audit takes, and how it ends


def parser_of(prog: str, description: str, prompt: str, samples: int) -> argparse.ArgumentParser:
    """A parser of the arguments that every audit takes."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=prog, description=description, formatter_class=how)
    how = "texts, default: %(default)s"
    parser.add_argument("--samples", type=int, default=samples, help=how)
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    how = "a right engine fails a test so rarely, default: %(default)s"
    parser.add_argument("--level", type=float, default=LEVEL, help=how)
    how = "of the samples, default: %(default)r"
    parser.add_argument("--prompt", default=prompt, help=how)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    return parser


def check_given(given: argparse.Namespace) -> None:
    """Raise ValueError or OSError where one of those arguments makes no sense."""
    check_folders(given.json)
    if not 0 < given.level < 1:
        raise ValueError(f"level is {given.level}; it must be between 0 and 1")
    RandomSource(given.seed)  # refuses a seed below 0


def conclude(report: Report, lines: Sequence[str], file: Path | None) -> int:
    """Print the lines, and write the report to a file if one is given. Returns the exit code."""
    print(*lines, sep="\n")
    if file:
        file.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    return report.exit_code
