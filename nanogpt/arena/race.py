"""The arena: a draft of your own, judged, and then raced against the shipped ones.

`nanogpt arena --new my_draft.py` writes a draft to begin with, and
`nanogpt arena my_draft.py` judges and races it. The file has one function,
`make_draft(tokens, vocab_size)`, or `make_draft(tokens, vocab_size, target)` for a draft that reads
the target; it returns a `Draft` or a `Proposer`. It may also say `K = 6`, the guesses of
a round, or `POLICY = "entropy"`, and `RULE = "block"`. `nanogpt.arena.referee` says what is asked
of it, and what cannot be seen.

The race is that of `nanogpt.measure.bench`: pairs in turn, medians with quartiles, and no winner
where quartiles overlap. Its rounds are judged as well, after the clock has stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from nanogpt.arena import template
from nanogpt.arena.inquiry import Run, judge_race
from nanogpt.arena.referee import FRESH, Arena, Entry, Refused, blamed, enter, judge, open_arena
from nanogpt.data import check_folders
from nanogpt.drafts.shipped import (
    BEST,
    BEST_BLOCKS,
    BEST_PROPOSED,
    DRAFTS,
    NODES,
    PROPOSERS,
    proposer,
)
from nanogpt.generate import Generation
from nanogpt.measure import bench
from nanogpt.measure.bench import Pair, Row, Setting
from nanogpt.measure.clock import clock, prompts_of
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.theory import best_K

YOURS = "yours"  # the reader's draft, among the names of the shipped ones
BLOCKS = "blocks"  # the distilled draft, its guesses judged as a block
AGAINST = ("bigram", "counts", "distilled", BLOCKS, "transformer-distilled")


def suited_K(entry: Entry, arena: Arena, prompts: list[list[int]]) -> int:
    """The K that theory gives for the draft's α on a few texts, and its cost on this machine."""
    rounds = []
    for seed, prompt in enumerate(prompts):
        rng = RandomSource(seed)
        rounds += speculative_generate(arena.target, entry.draft, prompt, 60, 4, rng=rng).rounds
    alpha = Generation([], rounds).alpha
    return best_K(alpha, **bench.calibrate(arena.target, entry.draft))


def settings_of(entry: Entry, arena: Arena, against: Sequence[str]) -> list[Setting]:
    """The settings of a race: the entry's first. Its K, if it has none, is looked for."""
    K = entry.K
    if K is None and not (entry.proposes or entry.policy):
        K = suited_K(entry, arena, prompts_of(arena.held_out, 3))
    rows = [Setting(arena.name, YOURS, K, 1.0, entry.rule, entry.policy)]
    for name in dict.fromkeys(against):
        if name == BLOCKS:
            rows.append(Setting(arena.name, "distilled", BEST_BLOCKS["distilled"], 1.0, "block"))
        else:
            rows.append(
                Setting(arena.name, name, (BEST | BEST_PROPOSED)[name], 1.0, nodes=NODES.get(name))
            )
    return rows


def ready(setting: Setting, arena: Arena, drafts: dict) -> dict:
    """What `bench.measure` is asked for a setting, but for the prompt."""
    target, sampling = arena.target, Sampling(setting.temperature)
    if setting.draft in PROPOSERS:
        table = drafts.get("distilled")
        draft = proposer(setting.draft, target, table, setting.K, setting.nodes)
        target = draft.target or target  # a draft may have one of its own
    else:
        draft = drafts[setting.draft]
    policy = bench.policy_of(setting.policy, target, draft, sampling)
    asked = {"target": target, "draft": draft, "K": setting.K, "sampling": sampling}
    return asked | {"rule": setting.rule, "policy": policy}


def progress(total: int, what: str) -> tqdm:
    """A bar that counts to `total`; where nobody watches, a line every half a minute at most."""
    every = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(total=total, desc=what, mininterval=every, maxinterval=max(every, 10.0))


def run(
    settings: list[Setting], arena: Arena, drafts: dict, prompts: list[list[int]], tokens: int
) -> list[list[Pair]]:
    """Each setting's pairs, `tokens` tokens each: all settings on a prompt before the next one.

    After the warm-up, a line on stderr says about how long the rest will take.
    """
    asked, seconds, short = [], 0.0, min(tokens, 40)
    with progress(len(settings), "warm-up") as bar:
        for setting in settings:
            asked.append(ready(setting, arena, drafts))
            warm = functools.partial(bench.measure, prompt=prompts[0], n=short, seed=0, **asked[-1])
            seconds += clock(warm)[0]
            bar.update()
    minutes = seconds * tokens / short * len(prompts) / 60
    print(f"{len(settings)} rows, about {minutes:.1f} minutes", file=sys.stderr)
    pairs: list[list[Pair]] = [[] for _ in settings]
    gc.collect()
    gc.freeze()  # the rows of a draft's table are not to be walked in somebody's turn
    with progress(len(prompts) * len(settings), "pairs") as bar:
        for seed, prompt in enumerate(prompts):
            for how, mine in zip(asked, pairs, strict=True):
                mine.append(bench.measure(prompt=prompt, n=tokens, seed=seed, **how))
                bar.update()
    gc.unfreeze()
    return pairs


def compete(
    entry: Entry, arena: Arena, against: Sequence[str] = AGAINST, pairs: int = 40, tokens: int = 100
) -> tuple[list[Row], str]:
    """The rows of a race over `pairs` held-out prompts, fastest median first; and what was judged.

    against: names of DRAFTS, of PROPOSERS, or BLOCKS. Each is measured against the target alone in
    pairs, all of them on a prompt before the next one. When the clock has stopped, the entry's
    rounds are judged. Raises Refused if it fails in the race, or its rounds are not what they say.
    """
    wanted = ["distilled" if name in (BLOCKS, "tree") else name for name in against]
    drafts = {
        name: DRAFTS[name](arena.tokens, arena.tokenizer.vocab_size)
        for name in dict.fromkeys(wanted)
        if name in DRAFTS
    }
    prompts = prompts_of(arena.held_out, pairs)
    with blamed(entry.path, "it fails in the race"):
        settings = settings_of(entry, arena, against)
        raced = run(settings, arena, {YOURS: entry.draft, **drafts}, prompts, tokens)
    mine = [Run(p, pair.made) for p, pair in zip(prompts, raced[0], strict=True)]
    seen = judge_race(entry, arena, mine)
    rows = [bench.summary(setting, its) for setting, its in zip(settings, raced, strict=True)]
    return sorted(rows, key=lambda row: -row.speed_up), seen


def spans(rows: list[Row]) -> list[tuple[str, tuple[float, float]]]:
    """Each contestant's name and quartiles; last the target alone, which is 1 by definition."""
    names = [row.setting.draft + " blocks" * (row.setting.rule == "block") for row in rows]
    return [*zip(names, [row.quartiles for row in rows], strict=True), ("plain", (1.0, 1.0))]


def place(rows: list[Row]) -> tuple[int, int]:
    """The best and the worst place that the entry's quartiles leave open, among all and plain."""
    (low, high), others = split(rows)
    ahead = sum(lowest > high for _, (lowest, _) in others)
    behind = sum(highest < low for _, (_, highest) in others)
    return 1 + ahead, 1 + len(others) - behind


def split(rows: list[Row]) -> tuple[tuple[float, float], list[tuple[str, tuple[float, float]]]]:
    """The entry's quartiles, and the names and quartiles of the others."""
    mine = next(row for row in rows if row.setting.draft == YOURS)
    return mine.quartiles, spans([row for row in rows if row is not mine])


def strip(low: float, middle: float, high: float, most: float, width: int = 28) -> str:
    """Quartiles and median on a scale from 0 to `most`: ├─●─┤, and a bar at 1, the target alone."""
    marks = [" "] * (width + 1)

    def at(value: float) -> int:
        return round(min(value, most) / most * width)

    marks[at(1)] = "│"
    marks[at(low) : at(high) + 1] = "─" * (at(high) + 1 - at(low))
    marks[at(low)], marks[at(high)], marks[at(middle)] = "├", "┤", "●"
    return "".join(marks).rstrip()


COLUMNS = "{:2}{:22} {:>10} {:5} {:>5} {:>11} {:>8} {:>8}  {:13} {}"
HEAD = ("", "draft", "K", "rule", "α", "tokens/pass", "µs/guess", "speed-up", "quartiles")


def table(rows: list[Row]) -> list[str]:
    """The lines of the table, sorted by the median; an arrow marks the entry's."""
    most = max(1.0, *(row.quartiles[1] for row in rows))
    plain = "", "plain", "–", "–", "–", "1.00", "–", "1.00×", "", strip(1, 1, 1, most)
    lines = [(-1.0, COLUMNS.format(*plain).rstrip())]
    for row in rows:
        s, (low, high) = row.setting, row.quartiles
        cells = (
            "→" if s.draft == YOURS else "",
            s.draft,
            "own" if s.K is s.policy is None else bench.depth(s),
            s.rule,
            "–" if row.alpha is None else f"{row.alpha:.2f}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.guess_seconds * 1e6:.0f}",
            f"{row.speed_up:.2f}×",
            f"{low:.2f} … {high:.2f}",
            strip(low, row.speed_up, high, most),
        )
        lines.append((-row.speed_up, COLUMNS.format(*cells)))
    scale = f"0 … {most:.1f}×, │ is plain"
    return [COLUMNS.format(*HEAD, scale), *(text for _, text in sorted(lines))]


def placing(rows: list[Row]) -> str:
    """The entry's place, in one sentence, as far as the quartiles say it."""
    (low, high), others = split(rows)
    first, last = place(rows)
    open_to = [name for name, (a, b) in others if a <= high and b >= low]
    slower = [name for name, (_, b) in others if b < low]
    faster = [name for name, (a, _) in others if a > high]
    if open_to:
        said = f"{first} to {last} of {len(others) + 1}: its quartiles overlap with those of "
        said += ", ".join(open_to)
    else:
        said = f"{first} of {len(others) + 1}: no other's quartiles overlap with its own"
    for names, word in ((slower, "faster"), (faster, "slower")):
        if names:
            said += f"; {word} than {', '.join(names)}"
    return f"place {said}"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """What is to be judged, and how it is to be raced."""
    parser = argparse.ArgumentParser(
        prog="nanogpt arena",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*DRAFTS, BLOCKS, *(name for name in PROPOSERS if name != "mtp")]  # which has its own
    parser.add_argument("file", nargs="?", type=Path, help="your draft, such as my_draft.py")
    parser.add_argument("--new", type=Path, metavar="FILE", help="write a draft to begin with")
    parser.add_argument("--judge-only", action="store_true", help="do not race it")
    parser.add_argument("--target", choices=list(TARGETS), default="fused")
    named = f"{', '.join(AGAINST)} by default; or of {', '.join(known)}"
    parser.add_argument(
        "--against", nargs="+", choices=known, default=list(AGAINST), metavar="NAME", help=named
    )
    parser.add_argument("--pairs", type=int, default=40, help="prompts, default: %(default)s")
    parser.add_argument("--tokens", type=int, default=100, help="each, default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the rows and the place to this file")
    return parser.parse_args(arguments)


def begin(path: Path) -> None:
    """Write the template to a new file. Raises ValueError if there is one, or it is no .py."""
    if path.suffix != ".py":
        raise ValueError(f"{path} should end in .py")
    check_folders(path)
    if path.exists():
        raise ValueError(f"{path} is there already, and stays as it is; give --new another name")
    command = f"nanogpt arena {shlex.quote(str(path))}"
    source = Path(template.__file__).read_text(encoding="utf-8")
    source = source.replace("nanogpt arena my_draft.py", command, 1)
    with path.open("x", encoding="utf-8") as file:
        file.write(source)
    print(f"{path}: a draft that counts three characters in a row. Now: {command}")


def main(arguments: list[str] | None = None) -> int:
    """Write a draft to begin with, or judge one and race it. Returns the exit code, 1 if refused.

    Raises ValueError for arguments out of range.
    """
    given = parse_arguments(arguments)
    if given.new:
        begin(given.new)
        return 0
    if given.file is None:
        raise ValueError(
            f"give the file of your draft; `{FRESH} my_draft.py` writes one to begin with"
        )
    if given.pairs < 1 or given.tokens < 1:
        raise ValueError(f"pairs {given.pairs} and tokens {given.tokens} must be at least 1")
    check_folders(given.json)
    if not given.file.is_file():
        fresh = f"`{FRESH} {shlex.quote(str(given.file))}`"
        raise ValueError(f"there is no file {given.file}; {fresh} writes one to begin with")
    torch.set_num_threads(1)
    arena = open_arena(given.target)
    try:
        entry = enter(given.file, arena)
        print(f"{given.file}: made in {entry.seconds:.2f} s")
        for name, seen in judge(entry, arena):
            print(f"ok  {name:7} {seen}", flush=True)
        if given.judge_only:
            return 0
        rows, seen = compete(entry, arena, given.against, given.pairs, given.tokens)
        print(f"ok  {'race':7} {seen}")
    except Refused as error:
        print(f"{given.file} is refused: {error}")
        return 1
    how = f"{given.target} target, 1 thread, {arena.corpus}"
    print(f"{given.pairs} pairs of {given.tokens} tokens each, {how}")
    print(*table(rows), f"{YOURS}: {placing(rows)}", sep="\n")
    if given.json:
        found = {"place": place(rows), "rows": [dataclasses.asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=1))
    return 0
