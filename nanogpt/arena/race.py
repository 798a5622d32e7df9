"""The arena: a draft of your own, judged, and then raced against the shipped ones.

`nanogpt arena --new my_draft.py` writes a draft to begin with, and
`nanogpt arena my_draft.py` judges and races it. The file has one function,
`make_draft(tokens, vocab_size)`, or `make_draft(tokens, vocab_size, target)` for a draft that reads
the target; it returns a `Draft` or a `Proposer`. It may also say `K = 6`, the guesses of
a round, or `POLICY = "entropy"`, and `RULE = "block"`. `nanogpt.arena.referee` says what is asked
of it, and what cannot be seen.

The race is that of `nanogpt.measure.bench`: pairs in turn, medians with quartiles, and no winner
where quartiles overlap. Its guesses are judged as well, after the clock has stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from nanogpt.arena import template
from nanogpt.arena.referee import (
    FRESH,
    USUAL_K,
    Arena,
    Entry,
    Failed,
    Refused,
    blamed,
    check_guesses,
    check_text,
    check_untouched,
    enter,
    judge,
    open_arena,
)
from nanogpt.data import check_folders, write_atomically
from nanogpt.drafts.shipped import BEST, BEST_BLOCKS, BEST_PROPOSED, DRAFTS, NODES, PROPOSERS
from nanogpt.measure import bench
from nanogpt.measure.bench import Row, Setting
from nanogpt.measure.clock import prompts_of
from nanogpt.targets.fused import TARGETS

YOURS = "yours"  # the reader's draft, among the names of the shipped ones
BLOCKS = "blocks"  # the distilled draft, its guesses judged as a block
AGAINST = ("bigram", "counts", "distilled", BLOCKS, "transformer-distilled")


def settings_of(entry: Entry, arena: Arena, against: Sequence[str]) -> list[Setting]:
    """The settings of a race: the entry's first."""
    K = entry.K or (None if entry.proposes or entry.policy else USUAL_K)
    rows = [Setting(arena.name, YOURS, K, 1.0, entry.rule, entry.policy)]
    for name in dict.fromkeys(against):
        if name == BLOCKS:
            rows.append(Setting(arena.name, "distilled", BEST_BLOCKS["distilled"], 1.0, "block"))
        else:
            best = (BEST | BEST_PROPOSED)[name]
            rows.append(Setting(arena.name, name, best, 1.0, nodes=NODES.get(name)))
    return rows


def compete(
    entry: Entry, arena: Arena, against: Sequence[str] = AGAINST, pairs: int = 40, tokens: int = 100
) -> tuple[list[Row], str]:
    """The rows of a race over `pairs` held-out prompts, fastest median first; and what was judged.

    against: names of DRAFTS, of PROPOSERS, or BLOCKS. `bench.run` measures each against the target
    alone. When the clock has stopped, the entry's guesses and texts are judged. Raises Refused if
    it fails in the race, or they are not what they should be.
    """
    wanted = dict.fromkeys("distilled" if name in (BLOCKS, "tree") else name for name in against)
    drafts = {YOURS: entry.draft}
    for name in [name for name in wanted if name in DRAFTS]:
        drafts[name] = DRAFTS[name](arena.tokens, arena.tokenizer.vocab_size)
    prompts = prompts_of(arena.held_out, pairs)
    with blamed(entry.path, "it fails in the race"):
        settings = settings_of(entry, arena, against)
        measured = bench.run(settings, {arena.name: arena.target}, drafts, prompts, tokens)
        made = [pair.made for pair in measured[0]]
        seen = check_guesses(entry, arena, prompts, made)
        check_text(made)
    check_untouched(arena)
    rows = [bench.summary(setting, its) for setting, its in zip(settings, measured, strict=True)]
    return sorted(rows, key=lambda row: -row.speed_up), seen


def placing(rows: list[Row]) -> tuple[tuple[int, int], str]:
    """The best and the worst place that the entry's quartiles leave open, and a sentence on it.

    Among all rows, and plain decoding, which is 1 by definition.
    """
    low, high = next(row.quartiles for row in rows if row.setting.draft == YOURS)
    others = {
        row.setting.draft + " blocks" * (row.setting.rule == "block"): row.quartiles
        for row in rows
        if row.setting.draft != YOURS
    } | {"plain": (1.0, 1.0)}
    slower = [name for name, (_, its_high) in others.items() if its_high < low]
    faster = [name for name, (its_low, _) in others.items() if its_low > high]
    level = [name for name in others if name not in slower + faster]
    first, last = 1 + len(faster), 1 + len(others) - len(slower)
    if level:
        sentence = f"place {first} to {last} of {len(others) + 1}: its quartiles overlap with "
        sentence += f"those of {', '.join(level)}"
    else:
        sentence = f"place {first} of {len(others) + 1}: no other's quartiles overlap with its own"
    for names, word in ((slower, "faster"), (faster, "slower")):
        if names:
            sentence += f"; {word} than {', '.join(names)}"
    return (first, last), sentence


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """What is to be judged, and how it is to be raced."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nanogpt arena", description=__doc__, formatter_class=how)
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
    write_atomically(path, source.encode())  # where the disk is full, no half of it is left
    print(f"{path}: a draft that counts three characters in a row. Now: {command}")


def main(arguments: list[str] | None = None) -> int:
    """Write a draft to begin with, or judge one and race it. Returns the exit code, 1 if refused.

    Raises ValueError for arguments out of range, and for a draft whose code fails.
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
    except Failed as error:
        raise ValueError(f"{given.file} cannot be judged: {error}") from error
    except Refused as error:
        print(f"{given.file} is refused: {error}")
        return 1
    how = f"{given.target} target, 1 thread, {arena.corpus}"
    print(f"{given.pairs} pairs of {given.tokens} tokens each, {how}")
    place, sentence = placing(rows)
    print(bench.HEADER, *map(bench.line, rows), f"{YOURS}: {sentence}", sep="\n")
    if given.json:
        found = {"place": place, "rows": [dataclasses.asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=1))
    return 0
