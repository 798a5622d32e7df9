"""Does a text go on alike, whether its beginning was read or found? `nanogpt audit … --prefix`

A server with a prefix cache reads a prompt once, and goes on from what is left of it when the
prompt comes again. With guesses, and a target that has a state, several engines went wrong here in
2026. So each of N prompts is asked four times: before anybody has read it (miss); with other words
in its second half (other); again, now that it can be found (hit); and with its answer, in which
guesses were rejected (on).

The server tells the log-probabilities of the tokens that it draws, and then reads the answers again
(`echo`). What it told and what it reads differ by rounding, after a hit as after a miss. A right
server's hit is further off than twice its miss (and .001) in at most every second prompt, by
chance. So if n of N are, that has a chance of at most P(Binomial(N, 1/2) >= n), whatever the model;
times three, for three kinds. N counts prompts of which more was found than at first, where that is
told. If `echo` itself begins from the cache, a fault stays hidden (vLLM's does not); and a server
that stops guessing for a request with log-probabilities hides its guesses.

What is right may be found too rarely, or a draft may have lost its beginning: that only costs time.
So the report says how much was found, and how often it guessed. The engine is a server's address,
or `nanogpt`: our server, with a random target with states, a random table and head as drafts, and
`--bug 84` to 89 out of the gallery. The exit code is 0 for right; 1 for wrong, or for right but
slow where all that could be found is known; 2 for no verdict: too few prompts, too few found, or a
server that does not tell what it found. To ask a server again, take another --seed: what it has
read before is no miss.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.transformer import common_prefix
from nanogpt.engines import endpoint, places
from nanogpt.engines.answers import told_of
from nanogpt.engines.endpoint import Endpoint, guessed_between
from nanogpt.generate import Generation, check_whole
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.decoders import KINDS
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import Watched, random_draft, random_head, toy_states
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.server import Limits

WORDS = ("the", "king", "my", "lord", "of", "love", "and", "death", "shall", "come", "to", "a")
LETTERS = "abcdefghijklmnopqrstuvwxyz "
ASKED = ("miss", "other", "hit", "on")
NOISE, TIMES = 1e-3, 2  # a gap of log p that is none, and how much larger one may be after a hit
BLOCK, K, WINDOW = 4, 4, 128  # of our own server


def prompts_of(N: int, words: int, seed: int) -> list[tuple[str, str]]:
    """N prompts of so many words, and each with a second half of others.

    They begin with a name of their own, so that none finds the beginning of another.
    """
    rng, even = RandomSource(seed), np.ones(len(WORDS)) / len(WORDS)

    def some(n: int) -> str:
        return "".join(WORDS[rng.categorical(even)] + " " for _ in range(n))

    made = []
    for _ in range(N):
        name = "".join(LETTERS[rng.categorical(np.ones(26) / 26)] for _ in range(8))
        first = f"{name} {some(words - words // 2 - 1)}"
        made.append((first + some(words // 2), first + some(words // 2)))
    return made


@dataclass
class Kind:
    """What came of the prompts asked in one way.

    gaps: of each answer, the mean distance of what was told of a token from what is read of it.
    found: of each prompt, the tokens that were found, or None if that is not known; could: of all
    together, those that might have been. said: of its guesses. guessed: whether there were any,
    where features are read.
    """

    gaps: list[float]
    found: list[int] | None
    could: int
    said: str
    guessed: bool | None = None

    @property
    def total(self) -> int | None:
        """The tokens found of all prompts."""
        return None if self.found is None else sum(self.found)


# Our own server


class Lengths(Watched):
    """A target that notes how many tokens each pass goes on from, and how many it reads."""

    def states(self, idx, pos=None, past_kvs=None, attn_mask=None, depth=None):
        """As the target's, noted."""
        self.passes.append((past_kvs.length if past_kvs is not None else 0, idx.shape[1]))
        return self.target.states(idx, pos, past_kvs, attn_mask, depth)


def found_by(
    passes: Sequence[tuple[int, int]], asked: Sequence[list[int]], made: Sequence[Generation]
) -> list[int]:
    """How many tokens of each prompt its first pass went on from."""
    found, each = [], iter(passes)
    for prompt, answer in zip(asked, made, strict=True):
        length, first = len(prompt), None
        for r in answer.rounds:
            P, T = next(each)
            first = P if first is None else first
            while P + T < length:  # a part of the prompt
                P, T = next(each)
            length += len(r.emitted)
        found.append(first or 0)
    return found


@torch.no_grad()
def gap(target, prompt: list[int], made: Generation) -> float:
    """How far log p of the tokens by the passes that drew them is from that by one pass."""
    own = target(torch.tensor([[*prompt, *made.tokens[:-1]]]))[0][0, len(prompt) - 1 :]
    said = torch.cat([r.target_probs[: len(r.emitted)] for r in made.rounds])[: len(own)]
    off = own.log_softmax(-1) - said.log()
    return float(off.gather(-1, torch.tensor(made.tokens)[:, None]).abs().mean())


def audit_nanogpt(N: int, words: int, n: int, seed: int, bug: int | None = None) -> dict[str, Kind]:
    """What comes of each kind of prompt, by the table; guesses by a head, where features count."""
    target, V = toy_states(len(LETTERS), WINDOW), len(LETTERS)
    decode: Callable = KINDS["prefix"].decoder if bug is None else mutant(BUGS[bug - 1])
    pairs = [[[*map(LETTERS.index, x)] for x in pair] for pair in prompts_of(N, words, seed)]
    first, other = ([pair[i] for pair in pairs] for i in (0, 1))
    limits = Limits(block_size=BLOCK, num_blocks=64 * N)

    def served(draft, asked: Sequence[list[int]]) -> tuple[list[Generation], list[int]]:
        watched, rngs = Lengths(target), [RandomSource(seed + i) for i in range(len(asked))]
        made = decode(watched, draft, asked, n, K, Sampling(), rngs, limits=limits)
        return made, found_by(watched.passes, asked, made)

    draft, head = random_draft(V), EagleDraft(target, random_head(target), K)
    answers, _ = served(draft, first)  # as they will be again: by the same seeds
    on = [prompt + made.tokens for prompt, made in zip(first, answers, strict=True)]
    asked = [*first, *other, *first, *on]
    made, found = served(draft, asked)
    guesses, _ = served(head, first[:5] * 2) if bug in (None, 88) else ([], [])
    kinds = {}
    for i, name in enumerate(ASKED):
        part = slice(i * N, (i + 1) * N)
        rounds = [r for one in made[part] for r in one.rounds]
        said = f"{sum(len(r.emitted) for r in rounds) / len(rounds):.2f} tokens a round"
        gaps = [gap(target, *pair) for pair in zip(asked[part], made[part], strict=True)]
        lengths = [len(one) for one in asked[part]]
        if name == "other":
            lengths = [common_prefix(*pair) + 1 for pair in pairs]
        could = sum((n - 1) // BLOCK * BLOCK for n in lengths) * (i > 0)  # nothing, of a miss
        own = guesses[5:] if name == "hit" else guesses[:5]
        guessed = any(r.candidates for one in own for r in one.rounds) if own else None
        kinds[name] = Kind(gaps, found[part], could, said, guessed)
    return kinds


# A server


def audit_server(server: Endpoint, N: int, words: int, n: int, seed: int) -> dict[str, Kind]:
    """What comes of each kind of prompt. Raises ValueError or OSError if that cannot be audited."""
    fields: dict[str, Any] = {"temperature": 1.0, "logprobs": 2}
    fields, seeded, choices = server.settle(" ".join(WORDS), n, 1, seed, fields)
    server.read_again(choices, 2)  # what cannot be read is said before all is drawn
    pairs = prompts_of(N, words, seed)
    prompts: dict[str, Sequence[Any]] = {x: [pair[x == "other"] for pair in pairs] for x in ASKED}
    kinds = {}
    for name in ASKED:
        counts, choices, found = [server.guesses()], [], []
        for i, prompt in enumerate(tqdm(prompts[name], unit="text", disable=None, desc=name)):
            own = {"seed": seed + i + N * ASKED.index(name)} if seeded else {}
            asked = {"model": server.model, "prompt": prompt, "max_tokens": n}
            answer = server.ask("completions", asked | fields | own)
            choices.append(answer["choices"][0])
            details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
            found.append(details.get("cached_tokens"))
            counts.append(server.guesses())
        if set(found) != {None}:
            found = [n or 0 for n in found]  # SGLang tells no 0
        elif endpoint.HITS in counts[-1]:
            found = [b[endpoint.HITS] - a[endpoint.HITS] for a, b in itertools.pairwise(counts)]
        else:
            found = None
        gaps = [
            float(np.mean([abs(a.logprob - b.logprob) for a, b in zip(told, read, strict=False)]))
            for told, read in zip(map(told_of, choices), server.read_again(choices, 2), strict=True)
        ]
        could = sum(len(one["prompt_token_ids"]) for one in choices)
        kinds[name] = Kind(gaps, found, could, guessed_between(counts[0], counts[-1]))
        if name == "miss":
            prompts["on"] = [one["prompt_token_ids"] + one["token_ids"] for one in choices]
    return kinds


# The verdict


def newly(kinds: dict[str, Kind], name: str) -> list[bool]:
    """Of which prompts more was found than at first; not of any if that is not told."""
    kind, first = kinds[name], kinds["miss"].found
    first = first or [0] * len(kind.gaps)
    return [a > b for a, b in zip(kind.found or [0] * len(first), first, strict=True)]


def further(kinds: dict[str, Kind], name: str) -> tuple[int, int, float]:
    """How many of those newly found are further off than a miss's noise, of how many, and the bound
    of its chance; of all, if none was found.

    Right, it is at most as likely as a coin's head for each prompt: that the miss is as far from
    the other by TIMES is just as likely, and both cannot be.
    """
    found, pairs = newly(kinds, name), zip(kinds[name].gaps, kinds["miss"].gaps, strict=True)
    off = [hit > TIMES * miss + NOISE for hit, miss in pairs]
    off = [x for x, counts in zip(off, found, strict=True) if counts or not any(found)]
    n, N = sum(off), len(off)
    return n, N, sum(math.comb(N, i) for i in range(n, N + 1)) / 2**N


def few(N: int, level: float) -> bool:
    """Whether N prompts could not be refused at the level, even if all were further off."""
    return 3 * 2.0**-N >= level  # three tests


def verdict(kinds: dict[str, Kind], level: float, exactly: bool) -> tuple[str, int]:
    """What is to be said, and the exit code. exactly: whether all that could be found must be."""
    wrong = []
    for name in ASKED[1:]:
        n, N, chance = further(kinds, name)
        if 3 * chance < level:
            wrong.append(f"{name}: {n} of {N} further off than a miss (p <= {3 * chance:.1g})")
    wrong += [
        f"{name}: finds {kind.total:,} tokens where {kind.could:,} are its own"
        for name, kind in kinds.items()
        if exactly and (kind.total or 0) > kind.could
    ]
    if wrong:
        return "WRONG, goes on otherwise from what was found; " + "; ".join(wrong), 1
    if None in (kinds["hit"].found, kinds["on"].found):
        said = "none: what comes again is as what comes first, but whether it was found is not told"
        return f"{said}: no cached_tokens in usage, and no {endpoint.HITS} in /metrics", 2
    slow = [
        f"{name}: {kinds[name].total:,} of {kinds[name].could:,} tokens found"
        for name in ASKED[1:]
        if exactly and kinds[name].total != kinds[name].could
    ]
    if kinds["miss"].guessed and not kinds["hit"].guessed:
        slow.append("a draft that reads features guesses after a miss, and not after a hit")
    n = min(sum(newly(kinds, name)) for name in ("hit", "on"))
    if few(n, level) and not slow:
        said = f"none: of {n} prompts more was found when they came again; is the cache on?"
        return f"{said} If so, take more --words or --samples; after another run, another --seed", 2
    return (f"right, but SLOW: {'; '.join(slow)}", 1) if slow else ("right, hit or miss", 0)


def table(kinds: dict[str, Kind]) -> list[str]:
    """Of each kind: what was found, how far what was told is from what is read, its guesses."""
    lines = [f"{'':<7}{'found of tokens':>17}{'median gap':>12}{'further':>9}   guesses"]
    for name, kind in kinds.items():
        share = f"{'-' if kind.total is None else f'{kind.total:,}'} of {kind.could:,}"
        n = "" if name == "miss" else "{} of {}".format(*further(kinds, name))
        lines.append(f"{name:<7}{share:>17}{np.median(kind.gaps):>12.2g}{n:>9}   {kind.said}")
    return lines


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The settings of an audit of a prefix cache."""
    parser = places.parser_of("nanogpt audit ENGINE --prefix", __doc__, "", 60)
    parser.add_argument("engine", help="nanogpt, or http://…/v1")
    parser.add_argument("--bug", type=int, metavar="N", help="of nanogpt, with this bug in it")
    how = "of each prompt, default: 10; let it be more than two of the server's blocks"
    parser.add_argument("--words", type=int, default=10, help=how)
    parser.add_argument("--tokens", type=int, default=10, help="of each answer, default: 10")
    parser.add_argument("--model", help="of a server; default: the first that it offers")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Audit a prefix cache, print the table and the verdict. Returns the exit code.

    Raises ValueError or OSError if there is nothing to audit.
    """
    given = parse_arguments(arguments)
    places.check_given(given)
    check_whole(1, samples=given.samples, tokens=given.tokens)
    check_whole(4, words=given.words)
    if few(given.samples, given.level):
        raise ValueError(f"--samples {given.samples} are too few for level {given.level:g}")
    asked = given.samples, given.words, given.tokens, given.seed
    torch.set_num_threads(1)
    if endpoint.is_address(given.engine):
        if given.bug is not None:
            raise ValueError("--bug goes with the engine nanogpt")
        kinds = audit_server(Endpoint(given.engine, given.model), *asked)
    elif given.engine != "nanogpt":
        raise ValueError(f"--prefix asks a server's address, or nanogpt; not {given.engine}")
    else:
        bugs = [bug.number for bug in BUGS if bug.decoder == "prefix"]
        if given.bug is not None and given.bug not in bugs:
            raise ValueError(f"bug {given.bug} is none of a prefix cache; those are {bugs}")
        longest = given.words * 6 + 8 + 2 * given.tokens
        if longest > WINDOW:
            raise ValueError(
                f"{given.words} words and two answers of {given.tokens} may have {longest} letters,"
                f" and the window has {WINDOW}; take fewer"
            )
        kinds = audit_nanogpt(*asked, given.bug)
    said, code = verdict(kinds, given.level, given.engine == "nanogpt")
    print(f"{given.engine}: {given.samples:,} prompts of {given.words} words")
    print(*table(kinds), f"Wrong is p < {given.level:g}.", f"verdict: {said}", sep="\n")
    if given.json:
        report = {"verdict": said} | {x: dataclasses.asdict(y) for x, y in kinds.items()}
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return code
