"""Does a server sample its own model's distribution? `nanogpt audit http://localhost:8000/v1`

A model too large for a table of its texts still tells what each token's probability was: a server
in the form of OpenAI's completions returns the log-probabilities of the likeliest tokens. So each
token is held against the p of its own text, at every place, by the χ² tests of `nanogpt audit`. No
weights are needed, and no model of ours.

There are two sources of p. By default the texts are drawn first, without log-probabilities, and
then read again in passes that draw nothing (`echo`); the server must return token ids. With --told,
p is what the server says of a token as it draws it. That trusts the pass that drew: if a rejected
guess was left in the cache, its p is wrong, its tokens follow that p, and all looks right. And a
server may stop drafting for a request that asks for log-probabilities (vLLM did before 0.14), so
that --told audits plain decoding.

A file will do, too, of answers drawn at the same settings, each with the log-probabilities of the
likeliest tokens: a JSON response a line, of any server below, whole or as a stream's chunks; a
batch's output; lines that hold a response somewhere. The prompts may differ. What cannot be read is
left out and counted.

Sampling: temperature 1, with or without --top-p; or --top-k K, with any temperature and top-p, if K
or more tokens are listed. Every other field that bends a distribution is sent with its neutral
value. Told log-probabilities may be raw, or hold the temperature, or the cuts as well: say which
with --logprobs if that cannot be seen. Where a setting in force, a copied answer or another reading
explains all, there is no verdict, and exit code 2.

Which question which engine can be asked:

            read again           --told               a log, and what to know
vLLM        yes                  yes                  yes
SGLang      with token ids       yes                  yes; --logprobs tempered
llama.cpp   no: no echo          without a draft      without a draft; else later ones have p = 1
Ollama      no: no ids           no                   of chats and /api/generate; own top-k, min-p
mlx-lm      no: no ids           no                   no: the likeliest is told, not the drawn
LM Studio   no: no ids           no                   no log-probabilities in its completions
TGI         no: no ids           no                   of /generate: details, top_n_tokens
OpenAI      no: no ids           with --listed 5      yes; end tokens are not told
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt.engines import answers, places
from nanogpt.engines.answers import NEAR, read_log, readable, told_of
from nanogpt.engines.places import EDGE, Listed, Report
from nanogpt.proof.statistics import LEVEL, crossing
from nanogpt.sampling import Sampling

SAMPLES, TOKENS, LISTED = 1000, 10, 20
PROMPT = "No more, no more, no "
AT_ONCE = 20  # texts in a request
SAME = 5  # texts: so many that come again are no chance
WHOLE = 0.01  # how near 1 the told probabilities of all that can come are
FITS = 1e-3  # the smallest p of tokens that are those of another temperature
DUE = 20  # tokens: if none came, that is chance in one of exp(20) right logs


def rows_of(told: Sequence[answers.Told], sampling: Sampling, n: int) -> Listed:
    """What is told of tokens, as numbers: the n likeliest are listed whatever came, or more."""
    number: dict[str, int] = {}
    tokens, rows = [], []
    for one in told:
        ranked = sorted(one.top.items(), key=lambda pair: -pair[1])[:n]
        ranked += [("", -math.inf)] * (n - len(ranked))  # nothing else can come
        tokens.append([number.setdefault(name, len(number)) for name, _ in ranked])
        rows.append([logprob for _, logprob in ranked])
    came = torch.tensor([number.get(one.token, -1) for one in told])
    logprob = torch.tensor([one.logprob for one in told], dtype=torch.float64)
    logs = torch.tensor(rows, dtype=torch.float64).view(-1, n)
    return Listed.of(torch.tensor(tokens).view(-1, n), logs, came, logprob, sampling)


def mass(one: answers.Told, n: int | None = None) -> float:
    """The probability of the listed tokens, or of the n likeliest."""
    return sum(map(math.exp, sorted(one.top.values())[-n if n else None :]))


def judge(
    texts: Sequence[Sequence[answers.Told]],
    sampling: Sampling,
    level: float = LEVEL,
    who: str = "",
    source: str = "",
    reading: str | None = None,
) -> Report:
    """The report on texts.

    reading: of READINGS, what the log-probabilities are; None if that must be seen from them.
    Raises ValueError if the texts are too few, too few tokens are listed, or their names are not
    unique.
    """
    told = [one for text in texts for one in text]
    k = sampling.top_k or math.inf
    whole = sum(abs(mass(one) - 1) < WHOLE and len(one.top) <= k + 1 for one in told)
    cut = sampling != Sampling() and whole and whole == len(told)
    guessed = reading or ("processed" if cut else "raw")
    fewest = check_names(told, sampling == Sampling() and reading is None)

    def rows(
        texts: Sequence[Sequence[answers.Told]], held: Sampling, n: int
    ) -> tuple[list[answers.Told], Tensor]:
        """The tokens whose p is known, and the places of each."""
        all_of = [(one, i) for text in texts for i, one in enumerate(text)]
        some = [(one, i) for one, i in all_of if reaches(one, held, n)]
        return [one for one, _ in some], torch.tensor([i for _, i in some])

    def report_of(reading: str, texts: Sequence[Sequence[answers.Told]]) -> Report:
        held = held_against(sampling, reading)
        n = check_listed(fewest, held)
        some, at = rows(texts, held, n)
        how = source + f", {reading}" * (reading != "raw")
        report = places.judge(rows_of(some, held, n), at, level, who, said_of(sampling), how)
        if left_out := sum(map(len, texts)) - len(some):
            report.notes.append(f"{left_out:,} tokens left out, where top-p may keep more than {n}")
        return report

    report = report_of(guessed, texts)
    if report.right:
        return report
    for other in READINGS if reading is None else ():
        new = held_against(sampling, other) != held_against(sampling, guessed)
        if new and (whole or other != "processed") and (found := report_of(other, texts)).right:
            if guessed == "processed":  # all is listed, whatever it is
                return found
            report.doubt = (
                f"all is right if the log-probabilities are {other}, and not {guessed}; if they "
                f"are, say --logprobs {other}"
            )
    if not report.doubt:
        held = held_against(sampling, guessed)
        n = check_listed(fewest, held)
        report.doubt, near = doubt_of(*rows(texts, held, n), held, n)
        report.rows[0].refusal += near
    if not report.doubt and (copies := copies_of(texts)):
        each = {tuple(one.token for one in text): text for text in texts}
        try:
            report.doubt = copies * report_of(guessed, list(each.values())).right
        except ValueError:  # they are too few
            report.doubt = copies
    return report


def reaches(one: answers.Told, sampling: Sampling, n: int) -> bool:
    """Whether the n listed surely hold all that top-p keeps; its own token has no say in it."""
    cut = sampling.top_k is None and sampling.top_p is not None and sampling.top_p < 1
    return not cut or mass(one, n) > min((sampling.top_p or 1) + EDGE, 1 - WHOLE)


READINGS = ("raw", "tempered", "processed")


def held_against(sampling: Sampling, reading: str) -> Sampling:
    """What is still to be done to log-probabilities: all, the cuts alone, or nothing."""
    if reading == "processed":
        return Sampling()
    return replace(sampling, temperature=1.0) if reading == "tempered" else sampling


def said_of(sampling: Sampling) -> str:
    """A Sampling in words."""
    said = f"temperature {sampling.temperature:g}"
    said += f", top-k {sampling.top_k}" * (sampling.top_k is not None)
    return said + f", top-p {sampling.top_p}" * (sampling.top_p is not None)


def check_names(told: Sequence[answers.Told], alone: bool) -> int:
    """How many tokens are listed at the least where more can come.

    alone: whether one token cannot be all that is possible. Raises ValueError where it is, or where
    lists of texts are shorter than others: they hold one text once.
    """
    open_ = [one for one in told if mass(one) < 1 - WHOLE] or told
    single = sum(len(one.top) == 1 for one in told)
    if alone and 0 < single < len(told):
        raise ValueError(
            f"{single} of {len(told)} tokens are told to be the only ones there: llama.cpp says so "
            "of a guess that it accepted; audit it without a draft, or say --logprobs processed"
        )
    asked = max((len(x.top) for x in told if x.top and x.logprob > min(x.top.values())), default=0)
    short = [one for one in open_ if len(one.top) < asked]
    if short and not all(re.fullmatch(r"(token_id:)?\d+", x) for x in short[0].top):
        raise ValueError(
            f"{len(short)} lists of likely tokens are shorter than the {asked} of others, and name "
            "them by text: where two have one text, one is lost; have the server tell ids "
            "(return_tokens_as_token_ids)"
        )
    return min((len(one.top) for one in open_), default=LISTED)


def check_listed(fewest: int, sampling: Sampling) -> int:
    """How many tokens count as listed, where `fewest` always are. Raises ValueError if too few."""
    if sampling.top_k is None:
        if sampling.temperature != 1:
            raise ValueError(
                "a temperature other than 1 needs --top-k: p of the rest is not told; or say "
                "--logprobs processed, if it is in the log-probabilities already"
            )
        if fewest < 2:
            raise ValueError(f"{fewest} tokens are listed at a place; ask for 2 or more")
        return fewest
    if fewest < sampling.top_k:
        raise ValueError(
            f"top-k is {sampling.top_k}, and only {fewest} tokens are listed somewhere"
        )
    return sampling.top_k


# Is it the engine, or a setting?


def copies_of(texts: Sequence[Sequence[answers.Told]]) -> str:
    """What to say where texts are copies of each other, which no chance makes; else nothing."""
    counts = Counter(tuple(one.token for one in text) for text in texts)
    ways = {m: math.log(math.comb(len(texts), m)) for m in set(counts.values())}
    for text in texts:
        m = counts[tuple(one.token for one in text)]
        again = (m - 1) * sum(one.logprob for one in text)
        if m > 1 and ways[m] + again < math.log(LEVEL):
            return (
                f"{m} of {len(texts):,} texts are one, of {len(text)} tokens: is one seed used for "
                "several, or an answer written down several times?"
            )
    return ""


def doubt_of(
    told: Sequence[answers.Told], at: Tensor, sampling: Sampling, n: int
) -> tuple[str, str]:
    """What setting in force explains tokens that are not those of `sampling`, and what else is
    near; both are empty if nothing does.

    A cut: none came of what it leaves out, and DUE or more were due. A temperature: the likeliest
    one with which what is listed passes. One within a tenth is no setting, but an error.
    """
    if (rows_of(told, sampling, n).came > n).any():
        return "", ""  # what cannot come has come
    none = [-math.inf] * n
    rows = [[*sorted(one.top.values(), reverse=True)[:n], *none][:n] for one in told]
    logs = torch.tensor(rows, dtype=torch.float64).view(-1, n)
    log = torch.tensor([one.logprob for one in told], dtype=torch.float64)[:, None]
    here = torch.tensor([one.token in one.top for one in told])[:, None] & (log >= logs[:, -1:])
    rank = torch.where(here, (logs > log).sum(-1, keepdim=True), n)  # n: not listed
    p = logs.exp() if sampling.top_k is None else (logs / sampling.temperature).softmax(-1)
    if sampling.top_p is not None:
        p = p * (p.cumsum(-1) - p < sampling.top_p)
        p = p / p.sum(-1, keepdim=True)
    rest = (1 - p.sum(-1, keepdim=True)).clamp(min=0)
    before = torch.cat([p.cumsum(-1) - p, 1 - rest], -1)
    down = torch.cat([logs, logs[:, -1:]], -1) - logs[:, :1]
    p = torch.cat([p, rest], -1)
    last, most, least = rank.max(), before.gather(1, rank).max(), down.gather(1, rank).min()
    due = {
        f"top-k {int(last) + 1}": float(p[:, last + 1 :].sum()),
        f"top-p {float(most):.2f}": float(p[before > most + NEAR].sum()),
        f"min-p {float(least.exp()):.2g}": float(p[down < least - NEAR].sum()),
    }
    cut, expected = max(due.items(), key=lambda pair: pair[1])
    if expected >= DUE:
        return (
            f"none of {len(told):,} tokens lies beyond {cut}, where {expected:,.0f} were due: is "
            "such a cut in force (a generation_config, a preset, temperature 0), or is the "
            "likeliest told in place of what was drawn?"
        ), ""
    # Which of the listed came, given that one did: the temperature alone says how often
    here = here[:, 0]
    asked, logs, rank = sampling.temperature, logs[here], rank[here]

    def too_likely(cold: float) -> float:
        """The listed tokens' log p at 1 / T, less that of those that came: 0 at the likeliest T."""
        p = (logs * cold).softmax(-1)
        return float((p * logs).nan_to_num(0).sum() - logs.gather(1, rank).sum())

    def likelihood(T: float) -> float:
        return float((logs / T).log_softmax(-1).gather(1, rank).sum())

    T = 1 / crossing(too_likely, 5)
    surely = likelihood(T) - likelihood(asked) > -math.log(LEVEL)
    some = []
    for one in (one for one, keep in zip(told, here.tolist(), strict=True) if keep):
        top = dict(sorted(one.top.items(), key=lambda pair: -pair[1])[:n])
        whole = math.log(sum(math.exp(x / T) for x in top.values()))
        top = {name: x / T - whole for name, x in top.items()}
        some.append(answers.Told(one.token, top[one.token], top))
    if len(some) < places.FEWEST:
        return "", ""
    tests = places.Places(rows_of(some, Sampling(), n), at[here], places.FEWEST)
    if min(x.p for x in tests.found()) < FITS:
        return "", ""
    fits = f"the tokens are those of temperature {T:.2f}"
    if surely and abs(math.log(T / asked)) > math.log(1.1):
        return f"{fits}, not of {asked:g}: is that what the server uses?", ""
    seen, beyond = len(told) - len(some), float(rest.sum())
    if not surely and seen < beyond - 5 * math.sqrt(beyond):
        return (
            f"of what is not among the {n} likeliest, {seen} came where {beyond:,.0f} were due, "
            "and all else is right: is a top-k, top-p or min-p in force?"
        ), ""
    return "", f"; {fits}" * surely


# Servers

NEUTRAL: dict[str, Any] = {  # what bends a distribution, where a server's own defaults would
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
}
OFFERED = NEUTRAL | {"return_token_ids": True, "return_tokens_as_token_ids": True}
LADDER = [  # what to leave out, one after the other, where a server does not say what it refuses
    ("return_token_ids", "return_tokens_as_token_ids"),
    ("top_k", "min_p", "repetition_penalty"),
    ("top_k", "logit_bias"),
    ("n",),
    ("seed",),
    ("top_p", "presence_penalty", "frequency_penalty"),
]
# In vLLM's metrics, of all that the server writes: rounds with guesses, and what of them stood.
COUNTED = tuple(f"vllm:spec_decode_num_{x}_total" for x in ("drafts", "accepted_tokens"))
HITS = "vllm:prefix_cache_hits_total"  # tokens of prompts that it did not read
OWN = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p", "n": "--samples"}
OWN |= {"seed": "--seed", "max_tokens": "--tokens", "logprobs": "--listed", "prompt": "--prompt"}
BENDING = (  # and so these have no place in --more
    "min_tokens", "stop", "stop_token_ids", "bad_words", "allowed_token_ids", "best_of", "echo",
    "stream", "suffix", "use_beam_search", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "regex", "ebnf",
    "typical_p", "typical", "tfs_z", "top_a", "min_keep", "mirostat", "xtc_probability", "samplers",
    "dry_multiplier", "dynatemp_range", "repeat_penalty", "no_repeat_ngram_size", "options",
    "eta_cutoff", "epsilon_cutoff", "smoothing_factor", "top_n_sigma", "logits_processors",
    "custom_logit_processor", "prompt_logprobs", "max_completion_tokens", "truncate_prompt_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Endpoint:
    """A server in the form of OpenAI's completions: its address, up to /v1, and what it is asked.

    model: None takes the first that it offers. more: further fields of every request.
    """

    url: str
    given_model: str | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    timeout: float = 600.0

    def ask(self, path: str, body: dict[str, Any] | None = None, read=json.load) -> Any:
        """The answer to a POST of the body, or to a GET. Raises OSError with what is wrong."""
        data = None if body is None else json.dumps(body | self.more).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        address = f"{self.url.rstrip('/')}/{path}"
        try:
            request = urllib.request.Request(address, data, headers)
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return read(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise OSError(f"{address} answered {error.code}: {said[:300]}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise OSError(f"{address} gave no answer that can be read: {error}") from error

    @cached_property
    def model(self) -> str:
        """The model's name. Raises OSError if the server offers none."""
        if self.given_model:
            return self.given_model
        offered = self.ask("models").get("data")
        if not offered:
            raise OSError(f"{self.url} names no model; name one with --model")
        return offered[0]["id"]

    def complete(self, prompt: str | list, max_tokens: int, **fields) -> list[dict[str, Any]]:
        """The choices for prompts, so many new tokens each. Raises OSError if none come."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, **fields}
        answer = self.ask("completions", body)
        if not (choices := answer.get("choices")):
            raise OSError(f"{self.url} returned no choices, but {json.dumps(answer)[:300]}")
        return sorted(choices, key=lambda choice: choice.get("index") or 0)

    def metrics(self) -> str:
        """What it counts: beside /v1, not under it; "" if it tells nothing."""
        above = replace(self, url=self.url.rstrip("/").removesuffix("/v1"), timeout=10.0)
        with contextlib.suppress(OSError):
            return above.ask("metrics", read=lambda answer: answer.read().decode())
        return ""

    def guesses(self) -> Counter[str]:
        """Since it started, by COUNTED and HITS: guesses, kept, prompts found; none if not told."""
        counts = Counter[str]()
        with contextlib.suppress(ValueError):
            for line in self.metrics().splitlines():
                if line.startswith((*COUNTED, HITS)):
                    name, n = line.rsplit(None, 1)
                    counts[name.partition("{")[0]] += int(float(n))
        return counts

    def settle(
        self, prompt: str, n: int, N: int, seed: int, fields: dict[str, Any]
    ) -> tuple[dict[str, Any], bool, list[dict[str, Any]]]:
        """The fields that a server takes, whether a seed is one, and its first choices, for n = N.

        What it refuses by name it does not know, and that bends nothing: NEUTRAL and the like are
        left out until it answers. Raises OSError if it refuses `fields` themselves.
        """
        more = {x: y for x, y in OFFERED.items() if x not in fields} | {"n": N, "seed": seed}
        ways, first = [(), *LADDER, *itertools.accumulate(LADDER)], None
        while True:
            sent = {x: y for x, y in more.items() if x not in ways[0]}
            try:
                choices = self.complete(prompt, n, **fields, **sent)
                break
            except OSError as error:
                cause = error.__cause__
                code = cause.code if isinstance(cause, urllib.error.HTTPError) else None
                hung_up = isinstance(cause, HTTPException | ConnectionResetError)
                if code not in (400, 422, 500) and not hung_up:
                    raise
                said = str(error).replace("\\n", " ")  # in JSON
                named = [x for x in sent if re.search(rf"\b{x}\b", said)]
                first = first or error
                if len(named) == 1:
                    if more.pop(named[0]) == -1:
                        more[named[0]] = 0  # the other word for all tokens
                    first = None
                elif not ways[1:]:  # it names nothing, or the whole request
                    raise first from None
                else:
                    ways.pop(0)
        taken = {x: y for x, y in sent.items() if x not in ("n", "seed")}
        return fields | taken, "seed" in sent, choices

    def draw(
        self, prompt: str, n: int, texts: int, seed: int | None, at_once: int = AT_ONCE, **fields
    ) -> list[dict[str, Any]]:
        """One choice for each text. seed: None sends none. at_once: for 1, no `n` is sent.

        Raises OSError if none or too many come, ValueError if two seeds give the same texts.
        """
        made: list[dict[str, Any]] = []
        came: list[Any] = []
        with tqdm(total=texts, unit="text", disable=None, desc="drawing") as bar:
            while len(made) < texts:
                N = min(at_once, texts - len(made))
                how = fields | ({"n": N} if at_once > 1 else {})
                how |= {} if seed is None else {"seed": seed + len(made)}
                choices = self.complete(prompt, n, **how)
                if len(choices) > N:
                    raise OSError(f"{self.url} returned {len(choices)} texts for n = {N}")
                made += choices
                came += [choice.get("token_ids") or choice.get("text") for choice in choices]
                if at_once > 1 or len(came) % AT_ONCE == 0:
                    many = len(choices) if at_once > 1 else AT_ONCE
                    new, before = came[-many:], came[: len(came) - many]
                    if many >= SAME and before[-max(at_once, many) :][:many] == new:
                        raise ValueError(
                            f"the same {many} texts came for two seeds: is the seed used?"
                        )
                bar.update(len(choices))
        return made

    def read_again(self, choices: Sequence[dict[str, Any]], top: int) -> list[list[answers.Told]]:
        """What the server says of each text's tokens in a pass that draws nothing.

        Raises ValueError if the choices have no token ids, OSError if the prompt does not come
        back with them.
        """
        ids = ("token_ids", "prompt_token_ids")
        if any(choice.get(name) is None for choice in choices for name in ids):
            raise ValueError("the server returns no token ids to read again; use --told")
        texts = []
        fields = {"echo": True, "logprobs": top, "temperature": 1.0}
        with tqdm(total=len(choices), unit="text", disable=None, desc="reading") as bar:
            for done in range(0, len(choices), AT_ONCE):
                some = choices[done : done + AT_ONCE]
                rows = [[*one["prompt_token_ids"], *one["token_ids"]] for one in some]
                read = self.complete(rows, 0, return_tokens_as_token_ids=True, **fields)
                if len(read) != len(rows):
                    raise OSError(f"{self.url} returned {len(read)} texts for {len(rows)} prompts")
                for choice, one, row in zip(read, some, rows, strict=True):
                    try:
                        said = told_of(choice)[: len(row)]
                    except ValueError as error:
                        raise ValueError(
                            f"no prompt comes back with echo; use --told ({error})"
                        ) from None
                    if len(said) < len(row):
                        raise OSError(f"{self.url} reads {len(row)} tokens as {len(said)}")
                    texts.append(said[len(one["prompt_token_ids"]) :])
                bar.update(len(some))
        return texts

    def audit(
        self, prompt: str, n: int, texts: int, sampling: Sampling, top: int = LISTED,
        seed: int = 0, level: float = LEVEL, told: bool = False, reading: str | None = None,
    ) -> Report:  # fmt: skip
        """Draw texts and judge them. Raises ValueError or OSError if that cannot be done."""
        fields = {"temperature": sampling.temperature}
        fields |= {} if sampling.top_k is None else {"top_k": sampling.top_k}
        fields |= {} if sampling.top_p is None else {"top_p": sampling.top_p}
        fields |= {"logprobs": top} if told else {}
        N = min(AT_ONCE, texts)
        fields, seeded, first = self.settle(prompt, n, N, seed, fields)
        if told:  # what cannot be read is said before the rest is drawn
            readable((f"text {i}", choice) for i, choice in enumerate(first, 1))
        else:
            self.read_again(first[:1], top)
        came, notes = [choice.get("token_ids") or choice.get("text") for choice in first], []
        at_once = min(len(first), N)
        if at_once > 1 and all(x == came[0] for x in came):
            at_once = 1
            notes.append(f"all {len(came)} texts of a request are one, so each was asked for alone")
        before = self.guesses()
        choices = self.draw(prompt, n, texts, seed if seeded else None, at_once, **fields)
        notes.append(guessed_between(before, self.guesses()))
        said: Sequence[Sequence[answers.Told]]
        if told:
            said, more = readable((f"text {i}", choice) for i, choice in enumerate(choices, 1))
            notes += more
        else:
            said, reading = self.read_again(choices, top), "raw"
        source = "told" if told else "read again"
        report = judge(said, sampling, level, f"{self.model} at {self.url}", source, reading)
        report.notes += notes
        return report


def guessed_between(before: Counter[str], after: Counter[str]) -> str:
    """What a server's counters of guesses say of the texts that it wrote in between."""
    if not (before and after):  # vLLM has them where guesses are on; other engines, other names
        return "whether it guessed at all is not known: its /metrics has none of vLLM's counters"
    rounds, kept = (after[name] - before[name] for name in COUNTED)
    if not rounds:
        return "its counters show no guess: what was audited may be plain decoding"
    return f"by its counters: {1 + kept / rounds:.2f} tokens in each of {rounds:,} rounds"


# The command


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of an audit over HTTP, or of a file."""
    parser = places.parser_of("nanogpt audit ADDRESS", __doc__, PROMPT, SAMPLES)
    parser.add_argument("address", help="http://…/v1, or a file of responses, .jsonl")
    parser.add_argument("--model", help="default: the first that the server offers")
    how = "of each text: more than twice the draft's K, default: %(default)s"
    parser.add_argument("--tokens", type=int, default=TOKENS, help=how)
    parser.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--top-k", type=int, help="default: all tokens")
    parser.add_argument("--top-p", type=float, help="default: 1, all of them")
    how = "likeliest tokens to ask for, default: %(default)s"
    parser.add_argument("--listed", type=int, default=LISTED, help=how)
    parser.add_argument("--told", action="store_true", help="trust the pass that draws")
    how = "what told log-probabilities are: of the model, with the temperature in them, or with all"
    parser.add_argument("--logprobs", choices=READINGS, help=how + "; default: it is looked at")
    how = "further fields of each request, such as '{\"ignore_eos\": true}'"
    parser.add_argument("--more", type=json.loads, default={}, metavar="JSON", help=how)
    return parser.parse_args(arguments)


def checked(given: argparse.Namespace) -> Sampling:
    """The settings' Sampling. Raises ValueError if they make no sense."""
    for what, least in (("samples", 1), ("tokens", 1), ("listed", 2)):
        if (value := getattr(given, what)) < least:
            raise ValueError(f"{what} is {value}; it must be a whole number from {least}")
    if not isinstance(given.more, dict):
        raise ValueError('--more is no JSON object, such as {"ignore_eos": true}')
    for name, value in given.more.items():
        if name in OWN and value != NEUTRAL.get(name, object()):
            raise ValueError(f"--more holds {name}; say {OWN[name]}, which the audit knows of")
        if name in BENDING or value != NEUTRAL.get(name, value):
            raise ValueError(
                f"--more holds {name}: {json.dumps(value)}, which bends what is drawn; leave it out"
            )
    places.check_given(given)
    sampling = Sampling(given.temperature, given.top_k, given.top_p)
    if not sampling.temperature:
        raise ValueError("temperature is 0: there is no distribution to test")
    if given.logprobs and not (given.told or not is_address(given.address)):
        raise ValueError("--logprobs says what is told: use it with --told, or of a log")
    if is_address(given.address):
        check_listed(given.listed, held_against(sampling, given.logprobs or "raw"))
        return sampling
    usual = parse_arguments([given.address])
    for name in ("model", "tokens", "listed", "told", "more", "samples", "seed", "prompt"):
        if getattr(given, name) != getattr(usual, name):
            raise ValueError(f"--{name} is for a server; {given.address} is a file: leave it out")
    return sampling


def is_address(given: str) -> bool:
    """Whether this is a server's, and no file."""
    return given.startswith(("http://", "https://"))


def main(arguments: list[str] | None = None) -> int:
    """Audit a server or a file, print the table and the verdict. Returns the exit code.

    1 if it is wrong; 2 if that is in doubt, or what is grossly wrong would not have been seen.
    Raises ValueError or OSError if there is nothing to audit.
    """
    given = parse_arguments(arguments)
    sampling = checked(given)
    if is_address(given.address):
        server = Endpoint(given.address, given.model, given.more)
        report = server.audit(
            given.prompt, given.tokens, given.samples, sampling,
            given.listed, given.seed, given.level, given.told, given.logprobs,
        )  # fmt: skip
    else:
        texts, notes = read_log(Path(given.address))
        try:
            report = judge(texts, sampling, given.level, given.address, "told", given.logprobs)
        except ValueError as error:
            raise ValueError("; ".join([f"{given.address}: {error}", *notes])) from None
        report.notes += notes
    return places.conclude(report, places.listed_table(report), given.json)
