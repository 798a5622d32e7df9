"""The audit of a server over HTTP, on a right one of our own and on wrong ones; and of its logs."""

import contextlib
import functools
import json
import math
import re
import threading
import urllib.error
import urllib.request

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.__main__ import main as nanogpt
from nanogpt.data import CharTokenizer
from nanogpt.engines import endpoint, serve
from nanogpt.engines.endpoint import Endpoint, Told, judge, rows_of, told_of
from nanogpt.engines.places import Trials
from nanogpt.generate import Generation, Round
from nanogpt.proof.statistics import LEVEL
from nanogpt.sampling import RandomSource, Sampling

TEXTS, TOKENS = 80, 10
WIDE = pytest.mark.wide
STALE = 13  # the bug of the gallery that leaves a rejected guess in the cache


@contextlib.contextmanager
def serving(*given, **settings):
    """The address of a server of ours, which ends with the block."""
    server = serve.open_server(*given, **settings)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def served():
    """served(bug=None, …): the address of a server of ours, which ends with the test.

    It drafts by lookup, which costs no passes, where the test is not about its draft.
    """
    with contextlib.ExitStack() as servers:
        yield lambda bug=None, draft="lookup": servers.enter_context(serving(bug, draft))


def audited(address, told=False, sampling=Sampling(), texts=TEXTS, n=TOKENS, **more):
    server = Endpoint(address, more=more)
    return server.audit(endpoint.PROMPT, n, texts, sampling, told=told)


def found(report):
    """The places of a report on one server or log."""
    [row] = report.rows
    return row.places["temperature 1"]


def names(report):
    return [place.place for place in found(report)]


@functools.cache
def audit_of(bug, told=False):
    """The report on a server with this bug in it, for all tests that ask for it."""
    with serving(bug, "lookup") as address:
        return audited(address, told)


# Servers


@pytest.mark.parametrize(
    "draft", [pytest.param(x, marks=() if x == "transformer" else WIDE) for x in serve.DRAFTS]
)
def test_a_right_server_is_not_refused(served, draft):
    report = audited(served(draft=draft))
    assert report.exit_code == 0 and report.samples == TEXTS
    assert report.options == "p read again, of the 20 likeliest"
    assert names(report) == ["all places", *(f"token {i + 1}" for i in range(TOKENS))]


@pytest.mark.parametrize("bug, first", [pytest.param(11, 1, marks=WIDE), (8, 5), (STALE, 2)])
def test_a_wrong_server_is_refused_from_where_its_bug_comes_in(bug, first):
    """Bug 11 accepts every guess; with K = 4, bug 8's first bonus token is the fifth or sixth."""
    report = audit_of(bug)
    assert not report.right and not report.blind
    failed = [place.place for place in found(report)[1:] if place.p < LEVEL]
    assert not {f"token {i}" for i in range(1, first)} & set(failed)


def test_what_is_told_by_a_pass_that_is_wrong_itself_agrees_with_what_it_drew():
    """The rejected guess in the cache: p is wrong, and the tokens follow it."""
    assert audit_of(STALE, told=True).right and not audit_of(STALE).right


def test_a_bonus_token_is_seen_by_what_is_told():
    assert not audit_of(8, told=True).right


def test_the_server_tells_the_targets_own_log_probabilities(served):
    server, (target, tokenizer) = Endpoint(served()), checkpoint.load()
    (choice,) = server.complete("What say", 6, logprobs=5, return_token_ids=True)
    told, tokens = told_of(choice), choice["token_ids"]
    assert choice["text"] == tokenizer.decode(tokens)
    assert [one.token for one in told] == list(choice["text"])
    (again,) = server.read_again([choice], 5)
    assert [one.token for one in again] == [f"token_id:{token}" for token in tokens]
    row = torch.tensor([choice["prompt_token_ids"] + tokens])
    with torch.no_grad():
        logs = target(row)[0][0, 7:-1].log_softmax(-1)
    for i, token in enumerate(tokens):
        assert told[i].logprob == pytest.approx(float(logs[i, token]), abs=1e-4)
        assert again[i].logprob == pytest.approx(float(logs[i, token]), abs=1e-4)
        assert 5 <= len(again[i].top) <= 6 and again[i].top[again[i].token] == again[i].logprob


def test_a_cut_is_tested_and_a_wider_one_is_refused(served):
    cut, address = Sampling(0.7, top_k=8), served()
    assert audited(address, sampling=cut, texts=40).right
    wider = audited(address, sampling=cut, texts=40, top_k=12)  # `more` has the last word
    assert not wider.right and wider.rows[0].worst.p == 0
    hotter = audited(address, sampling=cut, texts=40, temperature=1.5)
    assert not hotter.right and hotter.rows[0].worst.p > 0


def test_a_seed_that_is_not_used_is_seen(served):
    with pytest.raises(ValueError, match="same 20 texts came for two seeds"):
        audited(served(), texts=40, seed=3)


def test_a_token_drawn_after_the_reading_is_not_read(served, monkeypatch):
    """Some servers draw one where none is asked for."""
    complete, server = Endpoint.complete, Endpoint(served())
    (choice,) = server.complete("What say", 6, return_token_ids=True)
    right = server.read_again([choice], 5)
    monkeypatch.setattr(Endpoint, "complete", lambda self, rows, n, **fields: complete(
        self, [[*row, 1] for row in rows], n, **fields))  # fmt: skip
    assert server.read_again([choice], 5) == right and len(right[0]) == 6


def test_a_server_that_reads_other_tokens_is_refused(served, monkeypatch):
    complete, server = Endpoint.complete, Endpoint(served())
    (choice,) = server.complete("What say", 6, return_token_ids=True)
    monkeypatch.setattr(Endpoint, "complete", lambda self, rows, n, **fields: complete(
        self, [row[1:] for row in rows], n, **fields))  # fmt: skip
    with pytest.raises(OSError, match="reads 14 tokens as 13"):
        server.read_again([choice], 5)


def test_a_server_that_returns_no_ids_can_only_be_taken_at_its_word(served):
    address = served()
    with pytest.raises(ValueError, match="no token ids to read again; use --told"):
        audited(address, texts=5, return_token_ids=False)
    assert audited(address, told=True, texts=30, return_token_ids=False).right


def test_what_goes_wrong_at_the_server_is_one_line(served, capsys):
    address = served()
    for arguments, said in (
        (["http://127.0.0.1:9/v1", "--model", "m"], "gave no answer that can be read"),
        ([address, "--prompt", "½"], "answered 400"),
        ([address, "--more", '{"temperature": -1}'], "answered 400"),
        ([address, "--more", '{"n": 3}'], "returned 3 texts for n = 20"),
        ([address, "--more", "[1]"], "--more is no JSON object"),
        ([address, "--temperature", "0"], "no distribution to test"),
        ([address, "--temperature", ".7"], "needs --top-k"),
        ([address, "--top-k", "30"], "top-k is 30, and only 20 tokens are listed"),
        ([address, "--samples", "0"], "samples is 0"),
        ([address, "--level", "2"], "level is 2"),
        ([address, "--json", "no/such/folder.json"], "folder"),
    ):
        assert nanogpt(["audit", *arguments]) == 2
        out, error = capsys.readouterr()
        line = error.strip().splitlines()[-1]
        assert line.startswith("error: ") and said in line and not out


def test_the_command_says_its_verdict_and_returns_it(served, capsys, tmp_path):
    file = tmp_path / "report.json"
    few = ["--samples", str(TEXTS), "--tokens", str(TOKENS)]
    assert nanogpt(["audit", served(), *few, "--json", str(file)]) == 0
    assert "verdict: right; would have refused: one token in" in capsys.readouterr().out
    assert json.loads(file.read_text())["options"].startswith("p read again")
    assert nanogpt(["audit", served(8), *few]) == 1
    assert "verdict: WRONG, token" in capsys.readouterr().out
    assert nanogpt(["audit", served(), "--samples", "20", "--tokens", "3"]) == 2
    assert "verdict: none: take more texts" in capsys.readouterr().out


def test_no_server_of_a_bug_that_is_of_no_chain():
    for bug in (0, 40):
        with pytest.raises(ValueError, match=f"no bug {bug} of a chain"):
            serve.open_server(bug)
    with pytest.raises(ValueError, match="no draft 'none at all'"):
        serve.open_server(draft="none at all")


# Logs


def as_chat(choice):
    """The same log-probabilities in the form of a chat."""
    content = [
        {"token": one.token, "logprob": one.logprob,
         "top_logprobs": [{"token": x, "logprob": y} for x, y in one.top.items()]}
        for one in told_of(choice)
    ]  # fmt: skip
    return {"message": {"content": choice["text"]}, "logprobs": {"content": content}}


@pytest.fixture
def log(served, tmp_path):
    """log(bug): a file of answers to different prompts, half of them in each form."""

    def written(bug=None):
        server, lines = Endpoint(served(bug)), []
        for i, prompt in enumerate(["What say", "ROMEO:", "The king", "O, "] * 5):
            choices = server.complete(prompt, 10, n=3, seed=3 * i, logprobs=10)
            lines += [json.dumps({"choices": list(map(as_chat, choices) if i % 2 else choices)})]
        path = tmp_path / f"answers {bug}.jsonl"
        path.write_text("\n".join([*lines[:10], "", *lines[10:]]) + "\n", encoding="utf-8")
        return path

    return written


def test_a_log_of_different_prompts_in_both_forms_is_audited(log, capsys):
    assert nanogpt(["audit", str(log())]) == 0
    out = capsys.readouterr().out
    assert "60 texts" in out and "p told, of the 10 likeliest" in out
    assert nanogpt(["audit", str(log(11))]) == 1


def test_what_is_no_log_is_one_line(tmp_path, capsys):
    path = tmp_path / "answers.jsonl"
    bare = json.dumps({"choices": [{"text": "a"}]})
    for content, said in (
        ("{}", "line 1: no response to read"),
        ("\n\nnothing", "line 3: no response to read"),
        (bare, "line 1: no response to read (an answer has no log-probabilities"),
        ("", "0 tokens came"),
    ):
        path.write_text(content)
        assert nanogpt(["audit", str(path)]) == 2
        assert said in capsys.readouterr().err
    assert nanogpt(["audit", "no such answers.jsonl"]) == 2


def test_ids_name_tokens_where_the_server_tells_them():
    """llama.cpp's form: two ids may have one text."""
    entry = {"id": 7, "token": "\ufffd", "logprob": -1.0}
    top = [entry, {"id": 9, "token": "\ufffd", "logprob": -2.0}]
    (one,) = told_of({"logprobs": {"content": [entry | {"top_logprobs": top}]}})
    assert one == Told("7", -1.0, {"7": -1.0, "9": -2.0})


# The tests of what is told


P = torch.tensor([0.35, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02], dtype=torch.float64)


def told(token, p=P, top=4):
    """What a server says: the likeliest `top`, and the one that came."""
    names = dict.fromkeys([*p.argsort(descending=True, stable=True)[:top].tolist(), token])
    return Told(str(token), math.log(p[token]), {str(i): math.log(p[i]) for i in names})


def drawn(n, rng, p=P, change=lambda p: p):
    """n texts of 2 tokens; the second's p is the first's, turned by the token that came."""
    texts = []
    for _ in range(n):
        first = rng.categorical(change(p))
        then = p.roll(first)
        texts.append([told(first), told(rng.categorical(change(then)), then)])
    return texts


def test_which_tokens_are_listed_does_not_depend_on_the_one_that_came():
    rows = rows_of([told(token) for token in range(8)], Sampling(), 4)
    right = torch.tensor([0.35, 0.2, 0.15, 0, 0.3, 0], dtype=torch.float64)  # the fourth: border
    assert torch.allclose(rows.p, right.expand(8, -1)) and rows.came.tolist() == [0, 1, 2, *[4] * 5]
    tied = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1], dtype=torch.float64)
    rows = rows_of([told(token, tied, 3) for token in range(5)], Sampling(), 3)
    assert ((rows.p > 0) == torch.tensor([True, True, False, True, False])).all()


def test_right_tokens_fail_a_test_as_rarely_as_its_level_says():
    rng = RandomSource(1)
    ps = [
        p
        for _ in range(60)
        for place in found(judge(drawn(100, rng), Sampling()))
        for p in (place.letters, place.ranks, place.alike)
    ]
    low = sum(p < 0.05 for p in ps) / len(ps)
    assert 0.02 < low < 0.09 and min(ps) > 1e-5  # 540 tests, a third of them of the same tokens


@pytest.mark.parametrize(
    "change",
    [
        lambda p: torch.softmax(p.log() / 0.6, -1),
        lambda p: torch.where(p < 0.09, 0.0, p) / p[p >= 0.09].sum(),  # the tail is forgotten
        lambda p: p.roll(1),
    ],
)
def test_wrong_tokens_are_refused(change):
    report = judge(drawn(600, RandomSource(2), change=change), Sampling())
    assert not report.right


def test_the_cells_hold_the_whole_p_and_what_cannot_come():
    cut = Sampling(0.5, top_k=3)
    listed = rows_of([told(token) for token in range(8)], cut, 3)
    (letter, letters, *_), (_, ranks, *_) = Trials(listed).cells
    assert torch.allclose(letters.sum(1), torch.ones(8, dtype=torch.float64))
    assert torch.allclose(ranks.sum(1), torch.ones(8, dtype=torch.float64))
    kept = cut.probs(P.log())
    assert torch.allclose(letters[0, :2], kept[:2]) and letters[0, -1] == 0
    never = letters.shape[1] - 1
    # The third is the border; the fourth is within SLACK of it, the fifth is not.
    came = letter.gather(1, listed.came[:, None])[:, 0]
    assert came.tolist() == [0, 1, never - 1, never - 1, never, never, never, never]


def test_a_text_that_ends_early_is_tested_as_far_as_it_goes():
    texts = drawn(80, RandomSource(3))
    texts[40:] = [text[:1] for text in texts[40:]]
    report = judge(texts, Sampling())
    assert names(report) == ["all places", "token 1"]  # 40 are too few
    with pytest.raises(ValueError, match="49 tokens came"):
        judge([text[:1] for text in texts[:49]], Sampling())


def test_a_report_is_wrong_at_its_level_and_blind_at_its_level():
    texts = drawn(200, RandomSource(5))
    for level, code in ((LEVEL, 0), (1.0, 1), (0.0, 2)):
        assert judge(texts, Sampling(), level).exit_code == code


# What a request may ask beside a sampling


def answered(fields, **settings):
    """The choice that a server of ours gives to these fields."""
    server = serve.open_server(**settings)
    completions = server.RequestHandlerClass.do_POST.__closure__[0].cell_contents
    server.server_close()
    body = {"prompt": "ROMEO:\n", "max_tokens": 40, "seed": 3, **fields}
    return completions.answer(body)["choices"][0]


@pytest.mark.parametrize(
    "draft", [pytest.param(x, marks=WIDE if x == "lookup" else ()) for x in serve.DRAFTS]
)
def test_a_server_keeps_what_its_requests_ask(draft):
    free = answered({}, draft=draft)
    assert free["finish_reason"] == "length" and len(free["text"]) == 40
    stop = free["text"][12:15]
    cut = answered({"stop": stop, "logprobs": 1}, draft=draft)
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert cut["finish_reason"] == "stop" and len(cut["logprobs"]["tokens"]) == len(cut["text"])
    assert None not in cut["logprobs"]["token_logprobs"]
    assert answered({"stop": [stop, "zzz"]}, draft=draft)["text"] == cut["text"]
    speech = answered({"structured_outputs": {"regex": "[A-Z][a-z ]{9}[.!]"}}, draft=draft)
    assert re.fullmatch("[A-Z][a-z ]{9}[.!]", speech["text"]) and speech["finish_reason"] == "stop"
    _, tokenizer = checkpoint.load()
    bias = {str(tokenizer.encode("z")[0]): 100}
    assert answered({"logit_bias": bias}, draft=draft)["text"] == "z" * 40
    once = answered({"presence_penalty": 100, "max_tokens": 30}, draft=draft)["text"]
    assert len(set(once)) == 30
    assert answered({"frequency_penalty": 100, "max_tokens": 30}, draft=draft)["text"] == once
    assert answered({"min_p": 1.0}, draft=draft) == answered({"temperature": 0}, draft=draft)
    other = answered({"repetition_penalty": 50.0}, draft=draft)["text"]
    assert other != free["text"] and not set(other[:9]) & set("ROMEO:\n")


def test_what_a_server_does_not_keep_it_refuses():
    for fields, said in (
        ({"stream": True}, "does not stream"),
        ({"structured_outputs": {"regex": "(a"}}, "a ( that nothing closes"),
        ({"min_p": 2}, "min_p is 2"),
        ({"stop": ""}, None),
        ({"stop": [""]}, "a stop string is empty"),
        ({"logit_bias": {"99": 1}}, "bias or stop names token 99"),
    ):
        if said is None:
            assert answered(fields)["finish_reason"] == "length"
            continue
        with pytest.raises(ValueError, match=re.escape(said)):
            answered(fields)
    with pytest.raises(ValueError, match="a server with a bug takes no constraints"):
        answered({"presence_penalty": 1}, bug=STALE)


def test_two_requests_at_once_are_answered_one_after_the_other():
    """Drafts keep books of one text: nobody may come in while a text is being written."""
    both, came = threading.Barrier(2), []

    def decode(*_):
        try:
            both.wait(0.2)
            came.append("two at once")
        except threading.BrokenBarrierError:  # nobody else is in here
            came.append("alone")
        row = torch.full((1, 2), 0.5, dtype=torch.float64)
        return Generation([1], [Round([], row[:0], row, [1], 0)])

    completions = serve.Completions(decode, None, None, CharTokenizer("ab"))
    body = {"prompt": "ab", "max_tokens": 1}
    threads = [threading.Thread(target=completions.answer, args=(body,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == ["alone", "alone"]


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"repetition_penalty": 0}, "repetition is 0; it must be above 0"),
        ({"structured_outputs": {"regex": ""}}, "matches the empty text alone"),
        ({"logprobs": -1}, ""),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "", "echo": True}, ""),
    ],
)
def test_what_is_0_negative_or_empty_is_no_default_and_every_request_has_its_answer(
    served, fields, said
):
    body = json.dumps({"prompt": "O, ", "max_tokens": 2, **fields}).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(served(draft="none") + "/completions", body, timeout=60)
    assert refused.value.code == 400
    assert said in json.loads(refused.value.read())["error"]["message"]


def test_what_is_null_is_the_default():
    null = dict.fromkeys(("repetition_penalty", "structured_outputs", "min_p", "stop", "top_k"))
    assert answered(null, draft="none") == answered({}, draft="none")
