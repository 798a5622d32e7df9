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
from nanogpt.proof.statistics import LEVEL, RANKS, p_text, p_value, score, surely_seen
from nanogpt.sampling import RandomSource, Sampling

GREEDY_TOKENS = 100  # of each text at temperature 0
TIE = 1e-4  # float32 engines may choose either of two logits that are as close
FEWEST = 50  # tokens in a test of one place, where p is listed
OWN = 63  # listed tokens with a cell of their own
SLACK = 0.5  # of a logit: so far below the cut, rounding does not bring a token
EDGE = 0.01  # of the mass of a nucleus: so near its edge, rounding may cut a token or keep it
SPOILED = 0.25  # of the control's tokens
CONTROL = "a right server with every fourth token the likeliest"


# Of N tokens: by letter and by rank, the exact p (N, C) of each cell, and the cell (N,) of each
Cells = Sequence[tuple[Tensor, Tensor]]


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

    def cells(self) -> Cells:
        """The likeliest of all have a letter of their own; the last two columns a cell each."""
        N, n = self.tokens.shape
        totals = torch.zeros(int(self.tokens.max()) + 1, dtype=self.p.dtype)
        totals.index_add_(0, self.tokens.flatten(), self.p[:, :n].flatten())
        own = totals.argsort(descending=True, stable=True)[:OWN]
        own = own[totals[own] > 0]
        letter = torch.full(totals.shape, len(own))
        letter[own] = torch.arange(len(own))
        rank = torch.bucketize(torch.arange(n), torch.tensor(RANKS), right=True)

        def summed(cell: Tensor, C: int) -> tuple[Tensor, Tensor]:
            cell = torch.cat([cell, torch.tensor([C, C + 1]).expand(N, 2)], dim=1)
            rows = torch.zeros(N, C + 2, dtype=self.p.dtype).scatter_add(1, cell, self.p)
            return rows, cell.gather(1, self.came[:, None])[:, 0]

        return summed(letter[self.tokens], len(own) + 1), summed(rank.expand(N, n), len(RANKS) + 1)

    def spoiled(self, seed: int) -> Listed:
        """Tokens drawn from these p, but one in four, by chance, is the likeliest there."""
        rng, came = RandomSource(seed), []
        for row in self.p:
            drawn = rng.categorical(row)
            came.append(0 if rng.bernoulli(SPOILED) and row[0] > 0 else drawn)
        return self._replace(came=torch.tensor(came))


# Places


@dataclass(frozen=True)
class Place:
    """Two tests of the tokens at one place of the texts, or at all: which came, and of which rank.

    letters, ranks: their p-values. total_variation: of the letters that came from those expected;
    surely: from which on they are refused with probability .99 or more.
    """

    place: str
    letters: float
    ranks: float
    total_variation: float
    surely: float

    @property
    def p(self) -> float:
        """The smaller p-value."""
        return min(self.letters, self.ranks)

    @classmethod
    def of(cls, place: str, cells: Cells, level: float) -> Place:
        """The two tests of these tokens."""
        ps, freedoms = [], []
        for rows, came in cells:
            statistic, freedom = score(rows, came)
            freedoms.append(max(1, freedom))  # 0: all is certain
            ps.append(p_value(statistic, freedoms[-1]))
        rows, came = cells[0]
        off = torch.bincount(came, minlength=rows.shape[-1]) - rows.sum(0)
        distance, n = float(off.abs().sum()) / 2 / len(rows), len(rows)
        return cls(place, *ps, distance, surely_seen(freedoms[0], n, level))


def each_place(cells: Cells, at: Tensor, level: float, fewest: int = 1) -> list[Place]:
    """The tests of all places together, then of each that so many tokens reach.

    at (N,): where in its text each token stands, from 0.
    """
    places = [Place.of("all places", cells, level)]
    for i in range(int(at.max()) + 1):
        if int((here := at == i).sum()) >= fewest:
            some = [(rows[here], came[here]) for rows, came in cells]
            places.append(Place.of(f"token {i + 1}", some, level))
    return places


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
    each. counts: what the engine told, "greedy" and "at 1".
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

    @property
    def name(self) -> str:
        """The mode, and K where it drafts."""
        return self.mode if self.K is None else f"{self.mode}, K = {self.K}"

    @property
    def worst(self) -> Place:
        """The place with the smallest p-value."""
        return min((x for places in self.places.values() for x in places), key=lambda x: x.p)

    @property
    def surely(self) -> tuple[float, float]:
        """The biases that would have been refused at every setting: over all places, and at one."""
        together = max(places[0].surely for places in self.places.values())
        return together, max(x.surely for places in self.places.values() for x in places)


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
        """Whether a decoder that is known to be wrong was not refused: the samples are too few."""
        return not all(row.refusal for row in self.controls)

    @property
    def exit_code(self) -> int:
        """0: all is right; 1: a mode is wrong; 2: in doubt, or one failed, or a control passed."""
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

    at (N,): where in its text each token stands, from 0. The control is as many tokens of the same
    p, a fourth of them the likeliest there. source: where p comes from.
    Raises ValueError if the tokens are too few.
    """
    if len(at) < FEWEST:
        raise ValueError(f"{len(at)} tokens came; {FEWEST} are the fewest for a test")
    places = each_place(listed.cells(), at, level, FEWEST)
    row = Row(who, refusal=refusal(places, level), places={setting: places})
    wrong = Place.of("all places", listed.spoiled(0).cells(), level)
    control = Row(CONTROL, refusal=f"p {p_text(wrong.p)}" if wrong.p < level else "")
    texts, source = int((at == 0).sum()), f"p {source}, of the {listed.tokens.shape[1]} likeliest"
    return Report(who, "", source, "", 0, texts, level, None, rows=[row], controls=[control])


# As lines


def listed_table(report: Report) -> list[str]:
    """The report on listed rows as lines: every place, and the verdict."""
    [row], [control] = report.rows, report.controls
    [(setting, places)] = row.places.items()
    lines = [
        f"{report.engine}: {report.samples:,} texts, {setting}; {report.options}",
        f"{'':<14}{'letters':>10}{'ranks':>10}{'TV':>8}{'any bias, from':>16}",
    ]
    for place in places:
        ps = "".join(f"{p_text(p):>10}" for p in (place.letters, place.ranks))
        lines.append(f"{place.place:<14}{ps}{place.total_variation:>8.3f}{place.surely:>16.3f}")
    right = f"right; a bias of {places[0].surely:.2f} over all places would be refused"
    wrong = f"none: {row.refusal}, but {report.doubt}" if report.doubt else f"WRONG, {row.refusal}"
    return [
        *lines,
        f"Wrong is p < {report.level:g}.",
        *report.notes,
        f"verdict: {wrong if row.refusal else right}",
        said_of(control, "texts"),
    ]


def said_of(control: Row, samples: str = "samples") -> str:
    """Whether a decoder that is known to be wrong was refused."""
    seen = f"refused, {control.refusal}" if control.refusal else f"NOT SEEN: take more {samples}"
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
    ]


def places_table(rows: Sequence[Row]) -> list[str]:
    """The tests of every place as lines: all of them together, and the worst one."""
    lines = []
    for row in rows:
        for setting, (together, *each) in row.places.items():
            worst = min(each, key=lambda place: place.p)
            ps = "".join(f"{p_text(p):>10}" for p in (together.letters, together.ranks, worst.p))
            surely = f"{together.surely:>7.3f}{max(place.surely for place in each):>7.3f}"
            lines.append(f"{row.name:<20}{setting:<16}{len(each):>3}{ps}  {worst.place:<9}{surely}")
    columns = f"{'letters':>10}{'ranks':>10}{'worst p':>10}  {'at':<9}{'all':>7}{'one':>7}"
    head = [
        "",
        "Every place, each token by the p of its own text. A bias of the size in the last columns,",
        "over all n places or at one of them, is refused with probability .99 or more.",
        f"{'':<36}{'n':>3}{columns}",
    ]
    return head + lines if lines else []


def verdicts(report: Report) -> list[str]:
    """A sentence for each mode and control, and one where the controls make them worthless."""
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
    if not row.places:
        return "right"
    together, one = row.surely
    said = f"right; a bias of {together:.2f}, or of {one:.2f} at one place, would have been refused"
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
