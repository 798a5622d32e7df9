"""Does a server sample its own model's distribution? `nanogpt audit http://localhost:8000/v1`

A model too large for a table of its texts still tells what each token's probability was: a server
in the form of OpenAI's completions returns the log-probabilities of the likeliest tokens. So each
token is held against the p of its own text, at every place, by the χ² tests of `nanogpt audit`. No
weights are needed, and no model of ours.

Two sources of p. By default the texts are drawn first, without log-probabilities, and then read
again in passes that draw nothing (`echo`); the server must return token ids. With --told, p is what
the server says of a token as it draws it. That trusts the pass that drew: if a rejected guess was
left in the cache, its p is wrong, its tokens follow that p, and all looks right. And a server may
stop drafting for a request that asks for log-probabilities (vLLM did before 0.14), so that --told
audits plain decoding.

A file will do, too: a JSON response a line, of completions or of chats, each with log-probabilities
and drawn at the same settings. The prompts may differ. What such a log says is told.

Sampling: temperature 1 without cuts; or --top-k K, with any temperature, if K or more tokens are
listed. Texts that ended must hold their end token, as vLLM's token ids do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from nanogpt.engines import places
from nanogpt.engines.places import Listed, Report
from nanogpt.proof.statistics import LEVEL
from nanogpt.sampling import Sampling

SAMPLES, TOKENS, LISTED = 1000, 10, 20
PROMPT = "No more, no more, no "
AT_ONCE = 20  # texts in a request


@dataclass(frozen=True)
class Told:
    """One token: its name, its log-probability, and {name: log-probability} of the likeliest."""

    token: str
    logprob: float
    top: dict[str, float]


def told_of(choice: dict[str, Any]) -> list[Told]:
    """What a choice of a completion, or of a chat, says of its tokens.

    Raises ValueError if it has no log-probabilities of the likeliest tokens.
    """
    said = choice.get("logprobs") or {}
    if said.get("content"):  # of a chat, and of llama.cpp
        return [Told(name(x), x["logprob"], listed(x["top_logprobs"])) for x in said["content"]]
    if not said.get("top_logprobs"):
        raise ValueError("an answer has no log-probabilities of the likeliest tokens")
    three = zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True)
    return [Told(token, logprob, top or {}) for token, logprob, top in three]


def name(entry: dict[str, Any]) -> str:
    """A token's name: its id where the server tells it, since two ids may have one text."""
    return str(entry.get("id", entry["token"]))


def listed(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """{name: log-probability}."""
    return {name(entry): entry["logprob"] for entry in entries}


def rows_of(told: Sequence[Told], sampling: Sampling, n: int) -> Listed:
    """What is told of tokens, as numbers: the n likeliest are listed whatever came, or more."""
    number: dict[str, int] = {}
    tokens, logs = [], []
    for one in told:
        ranked = sorted(one.top.items(), key=lambda pair: -pair[1])[:n]
        tokens.append([number.setdefault(name, len(number)) for name, _ in ranked])
        logs.append([logprob for _, logprob in ranked])
    came = torch.tensor([number.get(one.token, -1) for one in told])
    logprob = torch.tensor([one.logprob for one in told], dtype=torch.float64)
    logs = torch.tensor(logs, dtype=torch.float64).view(-1, n)
    return Listed.of(torch.tensor(tokens).view(-1, n), logs, came, logprob, sampling)


def judge(
    texts: Sequence[Sequence[Told]],
    sampling: Sampling,
    level: float = LEVEL,
    who: str = "",
    source: str = "",
) -> Report:
    """The report on texts. Raises ValueError if they are too few, or too few tokens are listed."""
    told = [one for text in texts for one in text]
    fewest = min((len(one.top) for one in told), default=LISTED)
    rows = rows_of(told, sampling, check_listed(fewest, sampling))
    at = torch.tensor([i for text in texts for i in range(len(text))])
    setting = f"temperature {sampling.temperature:g}"
    setting += f", top-k {sampling.top_k}" * (sampling.top_k is not None)
    return places.judge(rows, at, level, who, setting, source)


def check_listed(fewest: int, sampling: Sampling) -> int:
    """How many tokens count as listed, where `fewest` always are. Raises ValueError if too few."""
    if sampling.top_k is None:
        if sampling != Sampling():
            raise ValueError("a temperature other than 1 needs --top-k: p of the rest is not told")
        if fewest < 2:
            raise ValueError(f"{fewest} tokens are listed at a place; ask for 2 or more")
        return fewest
    if fewest < sampling.top_k:
        raise ValueError(
            f"top-k is {sampling.top_k}, and only {fewest} tokens are listed somewhere"
        )
    return sampling.top_k


# Servers and files


@dataclass(frozen=True)
class Endpoint:
    """A server in the form of OpenAI's completions: its address, up to /v1, and what it is asked.

    model: None takes the first that it offers. more: further fields of every request.
    """

    url: str
    given_model: str | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    timeout: float = 600.0

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a POST of the body, or to a GET. Raises OSError with what is wrong."""
        data = None if body is None else json.dumps(body | self.more).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        address = f"{self.url.rstrip('/')}/{path}"
        try:
            request = urllib.request.Request(address, data, headers)
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
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
        choices = self.ask("completions", body).get("choices")
        if not choices:
            raise OSError(f"{self.url} returned no choices")
        return sorted(choices, key=lambda choice: choice.get("index", 0))

    def draw(self, prompt: str, n: int, texts: int, seed: int, **fields) -> list[dict[str, Any]]:
        """One choice for each text.

        Raises OSError if other than so many come, ValueError if two seeds give the same texts.
        """
        made, before = [], None
        with tqdm(total=texts, unit="text", disable=None, desc="drawing") as bar:
            for done in range(0, texts, AT_ONCE):
                N = min(AT_ONCE, texts - done)
                choices = self.complete(prompt, n, n=N, seed=seed + done, **fields)
                if len(choices) != N:
                    raise OSError(f"{self.url} returned {len(choices)} texts for n = {N}")
                came = [choice.get("token_ids") or choice.get("text") for choice in choices]
                if came == before and N == AT_ONCE:
                    raise ValueError(f"the same {N} texts came for two seeds: is the seed used?")
                made, before = made + choices, came
                bar.update(N)
        return made

    def read_again(self, choices: Sequence[dict[str, Any]], top: int) -> list[list[Told]]:
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
                for choice, one, row in zip(read, some, rows, strict=True):
                    said = told_of(choice)[: len(row)]
                    if len(said) < len(row):
                        raise OSError(f"{self.url} reads {len(row)} tokens as {len(said)}")
                    texts.append(said[len(one["prompt_token_ids"]) :])
                bar.update(len(some))
        return texts

    def audit(
        self, prompt: str, n: int, texts: int, sampling: Sampling, top: int = LISTED,
        seed: int = 0, level: float = LEVEL, told: bool = False,
    ) -> Report:  # fmt: skip
        """Draw texts and judge them. Raises ValueError or OSError if that cannot be done."""
        fields = {"temperature": sampling.temperature, "return_token_ids": True}
        if sampling.top_k is not None:
            fields["top_k"] = sampling.top_k
        if told:
            fields |= {"logprobs": top, "return_tokens_as_token_ids": True}
        choices = self.draw(prompt, n, texts, seed, **fields)
        said = list(map(told_of, choices)) if told else self.read_again(choices, top)
        source = "told" if told else "read again"
        return judge(said, sampling, level, f"{self.model} at {self.url}", source)


def read_log(path: Path) -> list[list[Told]]:
    """The tokens of every choice of a file of responses, one a line. Raises ValueError, OSError."""
    texts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                texts += [told_of(choice) for choice in json.loads(line)["choices"]]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: no response to read ({error})") from error
    return texts


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
    how = "likeliest tokens to ask for, default: %(default)s"
    parser.add_argument("--listed", type=int, default=LISTED, help=how)
    parser.add_argument("--told", action="store_true", help="trust the pass that draws")
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
    places.check_given(given)
    sampling = Sampling(given.temperature, given.top_k)
    if not sampling.temperature:
        raise ValueError("temperature is 0: there is no distribution to test")
    check_listed(given.listed, sampling)
    return sampling


def main(arguments: list[str] | None = None) -> int:
    """Audit a server or a file, print the table and the verdict. Returns the exit code.

    1 if it is wrong; 2 if it is not, but the control was not refused either.
    Raises ValueError or OSError if there is nothing to audit.
    """
    given = parse_arguments(arguments)
    sampling = checked(given)
    if given.address.startswith(("http://", "https://")):
        server = Endpoint(given.address, given.model, given.more)
        report = server.audit(
            given.prompt, given.tokens, given.samples, sampling,
            given.listed, given.seed, given.level, given.told,
        )  # fmt: skip
    else:
        texts = read_log(Path(given.address))
        report = judge(texts, sampling, given.level, given.address, "told")
    return places.conclude(report, places.listed_table(report), given.json)
