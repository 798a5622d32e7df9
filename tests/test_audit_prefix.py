"""The audit of a prefix cache: on ours, right and with each of six bugs, and on servers."""

import functools
import itertools
import re
from collections import Counter

import pytest
import torch

from nanogpt.__main__ import main as nanogpt
from nanogpt.engines import prefix
from nanogpt.engines.endpoint import HITS, Endpoint
from nanogpt.engines.prefix import Kind, audit_nanogpt, audit_server, further, verdict
from nanogpt.sampling import RandomSource

SEEN = {  # bug: what is said of it
    84: "WRONG, goes on otherwise.*hit: ",
    85: "WRONG, goes on otherwise.*hit: ",
    86: "WRONG, goes on otherwise.*where 0 are its own",
    87: "right, but SLOW: .*hit: [0-9,]+ of [0-9,]+ tokens found",
    88: "right, but SLOW: a draft that reads features",
    89: "WRONG, goes on otherwise.*other: ",
}


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug in (84, 87) else pytest.mark.wide) for bug in SEEN]
)
def test_each_bug_of_a_prefix_cache_is_seen(bug):
    said, code = verdict(audit_nanogpt(24 if bug in (86, 87, 88) else 60, 6, 8, 0, bug), 1e-6, True)
    assert code == 1 and re.match(SEEN[bug], said), said


@functools.cache
def right():
    return audit_nanogpt(24, 6, 8, 0)


def test_a_right_server_finds_all_and_goes_on_alike():
    assert verdict(right(), 1e-6, True) == ("right, hit or miss", 0)
    assert all(max(kind.gaps) < 1e-9 for kind in right().values())
    assert right()["hit"].total == right()["hit"].could > 0 == right()["miss"].total


def test_the_bound_is_that_of_a_coin():
    """Ten hits of twelve: (66 + 12 + 1) / 4096; and noise alone, twice as large or not, is none."""
    kinds = {
        "miss": Kind([0.01] * 12, None, 9, ""),
        "hit": Kind([0.03] * 10 + [0.0] * 2, None, 9, ""),
    }
    assert further(kinds, "hit") == (10, 12, 79 / 4096)
    kinds["hit"].found = [1] * 6 + [0] * 6
    assert further(kinds, "hit") == (6, 6, 1 / 64), "of those that were found"
    kinds["miss"].found = [1] * 12
    assert further(kinds, "hit") == (10, 12, 79 / 4096), "nothing is new"
    kinds["hit"] = Kind([0.0209] * 12, None, 9, "")
    assert further(kinds, "hit") == (0, 12, 1.0)
    draws = torch.rand(2, 400, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chances = [
        further({"miss": Kind(a, None, 0, ""), "hit": Kind(b, None, 0, "")}, "hit")[2]
        for a, b in zip(*draws.tolist(), strict=True)
    ]
    assert min(chances) > 1e-6  # of 400 right ones, whose noise is far from 0


def test_what_was_found_of_too_few_or_before_has_no_verdict():
    """A fault of each hit, seen by those 30 of 60 that are found; not by 5, nor the second time."""
    for finds, said in (("abcdefghijklm", "WRONG"), ("ab", "none: of . prompts more was found")):
        got = verdict(audit_server(Pretended(0.05, "some", finds), 60, 8, 6, 0), 1e-6, False)
        assert re.match(said, got[0]) and got[1] == 1 + (said != "WRONG"), got
    server = Pretended(0.05)
    assert verdict(audit_server(server, 30, 8, 6, 0), 1e-6, False)[1] == 1
    said, code = verdict(audit_server(server, 30, 8, 6, 0), 1e-6, False)
    assert code == 2 and said.endswith("after another run, another --seed")
    assert verdict(audit_server(server, 30, 8, 6, 1), 1e-6, False)[1] == 1


class Pretended(Endpoint):
    """A server of random rows by the last two tokens, and what it has found of prompts.

    off: how far log p is off after a hit; tells: whether it says what it has found, "some" as
    SGLang, which tells no 0; finds: the first letters of prompts that it keeps.
    """

    def __init__(self, off=0.0, tells=True, finds=prefix.LETTERS):
        super().__init__("http://nowhere/v1", "toy")
        vars(self).update(off=off, tells=tells, finds=finds, seen=set(), hits=0)
        rows = torch.randn(27, 27, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        vars(self).update(rows=rows.log_softmax(-1))

    def ask(self, path, body=None, read=None):
        prompt = body["prompt"]
        if body.get("echo"):
            return {"choices": [self.choice(row, row, i, 0) for i, row in enumerate(prompt)]}
        tokens = [*map(prefix.LETTERS.index, prompt)] if isinstance(prompt, str) else list(prompt)
        start, rng = tuple(tokens[:12]), RandomSource(body.get("seed", 0))
        found = 12 * (start in self.seen) * (prefix.LETTERS[start[0]] in self.finds)
        self.seen.add(start)
        vars(self).update(hits=self.hits + found)
        for _ in range(body["max_tokens"]):
            tokens.append(rng.categorical(self.rows[tokens[-1]].exp().numpy()))
        made = self.choice(tokens, tokens[-body["max_tokens"] :], 0, self.off * (found > 0))
        made |= {"prompt_token_ids": tokens[: -body["max_tokens"]]}
        told = self.tells is True or (self.tells == "some" and found)
        usage = {"prompt_tokens_details": {"cached_tokens": found}} if told else None
        return {"choices": [made], "usage": usage}

    def guesses(self):
        return Counter({HITS: self.hits} if self.tells == "counter" else {})

    def choice(self, tokens, shown, index, off):
        logs = [None] + [float(self.rows[a, b]) - off for a, b in itertools.pairwise(tokens)]
        logs = logs[len(tokens) - len(shown) :]
        names = [f"token_id:{x}" for x in shown]
        tops = [
            None if log is None else {x: log, "other": log - 1}
            for x, log in zip(names, logs, strict=True)
        ]
        said = {"tokens": names, "token_logprobs": logs, "top_logprobs": tops}
        return {"index": index, "token_ids": list(shown), "text": "", "logprobs": said}


@pytest.mark.parametrize(
    "server, said, code",
    [
        (Pretended(), "right, hit or miss", 0),
        (Pretended(tells="counter"), "right, hit or miss", 0),
        (Pretended(tells="some"), "right, hit or miss", 0),
        (Pretended(0.05), "WRONG, goes on otherwise", 1),
        (Pretended(0.05, tells=False), "WRONG, goes on otherwise", 1),
        (Pretended(tells=False), "none: .*whether it was found is not told", 2),
        (Pretended(finds=""), "none: of 0 prompts more was found .*; is the cache on", 2),
    ],
)
def test_servers(server, said, code):
    got = verdict(audit_server(server, 30, 8, 6, 0), 1e-6, False)
    assert got[1] == code and re.match(said, got[0]), got


@pytest.mark.parametrize(
    "given, why",
    [
        (["transformers"], "a server's address, or nanogpt"),
        (["nanogpt", "--bug", "3"], "none of a prefix cache"),
        (["http://127.0.0.1:9/v1", "--bug", "84"], "goes with the engine nanogpt"),
        (["nanogpt", "--words", "2"], "words is 2"),
        (["nanogpt", "--words", "40"], "the window has 128"),
        (["nanogpt", "--samples", "20"], "--samples 20 are too few for level 1e-06"),
        (["http://127.0.0.1:9/v1"], "no answer that can be read"),
    ],
)
def test_what_cannot_be_audited_is_one_line(given, why, capsys):
    assert nanogpt(["audit", *given, "--prefix"]) == 2
    error = capsys.readouterr().err
    assert re.search(why, error) and error.count("\n") == 1


def test_the_command_says_what_it_has_seen(capsys, tmp_path):
    file = tmp_path / "report.json"
    asked = ["audit", "--prefix", "nanogpt", "--samples", "24", "--words", "6", "--json", str(file)]
    assert nanogpt(asked) == 0
    out = capsys.readouterr().out
    assert "24 prompts of 6 words" in out and out.endswith("verdict: right, hit or miss\n")
    assert '"verdict": "right, hit or miss"' in file.read_text()
