"""The audit of a server over HTTP, on a right one of our own and on wrong ones; and of its logs."""

import contextlib
import functools
import json
import math
import re
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.__main__ import main as nanogpt
from nanogpt.data import CharTokenizer, read_lines
from nanogpt.engines import endpoint, serve
from nanogpt.engines.answers import Told, read_log, told_of
from nanogpt.engines.endpoint import Endpoint, judge, rows_of
from nanogpt.engines.places import Trials
from nanogpt.generate import Generation, Round
from nanogpt.proof.statistics import LEVEL
from nanogpt.sampling import RandomSource, Sampling, cumulative

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
        ([address, "--more", '{"temperature": 0.7}'], "holds temperature; say --temperature"),
        ([address, "--more", '{"top_p": 0.9}'], "holds top_p; say --top-p"),
        ([address, "--more", '{"min_p": 0.1}'], "min_p: 0.1, which bends what is drawn"),
        ([address, "--more", '{"stop": ["a"]}'], "which bends what is drawn; leave it out"),
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


def test_a_server_that_never_guessed_is_not_called_an_audit_of_guesses(served, monkeypatch):
    """Its counters, in vLLM's own form, are read before the texts are drawn and after."""
    name, labels = "vllm:spec_decode_num_", '{engine="0",model_name="m"}'
    told = iter([(5, 9), (105, 159), (7, 7), (7, 7), None, None, 0, 0])

    def metrics(completions):
        if (now := next(told)) == 0:
            return "sglang:spec_accept_length 2.4\n"  # guesses, told by another name
        drafts, kept = now  # None is no pair: an error, and answered as one
        counts = {"drafts_total": drafts, "accepted_tokens_total": kept, "drafts_created": 1.7e9}
        counts |= {"accepted_tokens_per_pos_total": kept, "draft_tokens_total": 900}
        return "# HELP\n" + "".join(f"{name}{x}{labels} {n:.1f}\n" for x, n in counts.items())

    address = served()
    assert Endpoint(address).guesses()[f"{name}drafts_total"] == 0, "of our own server"
    audited(address, texts=20)
    counts = Endpoint(address).guesses()
    assert 0 < counts[f"{name}accepted_tokens_total"] <= 4 * counts[f"{name}drafts_total"]
    monkeypatch.setattr(serve.Completions, "metrics", metrics)
    for said in ("2.50 tokens in each of 100 rounds", "show no guess", *["is not known"] * 2):
        (note,) = (
            note for note in audited(address, texts=20).notes if "guess" in note or "rounds" in note
        )
        assert said in note


def test_no_server_of_a_bug_that_is_of_no_chain():
    for bug in (0, 40):
        with pytest.raises(ValueError, match=f"no bug {bug} of a chain"):
            serve.open_server(bug)
    with pytest.raises(ValueError, match="no draft 'none at all'"):
        serve.open_server(draft="none at all")
    with pytest.raises(ValueError, match="a bug needs a draft"):
        serve.open_server(8, draft="none")


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


# Answers as people's clients and servers write them


WORDS = ["the", " cat", " sat", "\u2028", " é", ".", " on", "\n"]


def entry(i, p, words=WORDS, **more):
    """A token of OpenAI's chats; more: what else is told, by id."""
    log = math.log(p[i]) if p[i] else None
    return {"token": words[i], "logprob": log, **{name: of(i) for name, of in more.items()}}


def pairs(n=400, seed=6, p=P):
    """n texts of 2 tokens, each a pair (token, p)."""
    rng, texts = RandomSource(seed), []
    for _ in range(n):
        first = rng.categorical(p)
        texts.append([(first, p), (rng.categorical(then := p.roll(first)), then)])
    return texts


def best(p, top=4):
    return p.argsort(descending=True, stable=True)[:top].tolist()


def content(text, top=4, words=WORDS, **more):
    """The `content` of a chat's log-probabilities."""
    made = []
    for i, p in text:
        listed = [entry(j, p, words, **more) for j in best(p, top)]
        made.append(entry(i, p, words, **more) | {"top_logprobs": listed})
    return made


def spell(text, words=WORDS):
    return "".join(words[i] for i, _ in text)


def chat(text, finish="length", said=None, **more):
    message = {"content": spell(text, more.get("words", WORDS)) if said is None else said}
    told = {"content": content(text, **more)}
    return {"choices": [{"finish_reason": finish, "message": message, "logprobs": told}]}


def completion(text, key=lambda i: WORDS[i], token=None, said=None):
    tops = [{key(j): math.log(p[j]) for j in best(p)} for _, p in text]
    logs = [math.log(p[i]) for i, p in text]
    told = {"tokens": [(token or key)(i) for i, _ in text], "token_logprobs": logs}
    said = spell(text) if said is None else said
    return {"choices": [{"text": said, "logprobs": told | {"top_logprobs": tops}}]}


def sglang(text):
    def three(i, p):
        return [math.log(p[i]), i, None]

    tops = [[three(j, p) for j in best(p)] for _, p in text]
    told = {"output_token_logprobs": [three(*x) for x in text], "output_top_logprobs": tops}
    return {"text": spell(text), "meta_info": told | {"finish_reason": {"type": "length"}}}


def tgi(text):
    def one(i, p):
        return {"id": i, "text": WORDS[i], "logprob": math.log(p[i])}

    tops = [[one(j, p) for j in best(p)] for _, p in text]
    told = {"tokens": [one(*x) for x in text], "top_tokens": tops, "finish_reason": "length"}
    return {"generated_text": spell(text), "details": told}


def post_sampling(text):
    told = [
        {"id": i, "token": WORDS[i], "prob": float(p[i]),
         "top_probs": [{"id": j, "token": WORDS[j], "prob": float(p[j])} for j in best(p)]}
        for i, p in text
    ]  # fmt: skip
    return {"content": spell(text), "completion_probabilities": told}


def of_the_likeliest(text):
    """mlx-lm's: the first of the list in place of the token that came."""
    told = chat(text)
    for x in told["choices"][0]["logprobs"]["content"]:
        x |= {name: x["top_logprobs"][0][name] for name in ("token", "logprob")}
    return told


def stream(text, i):
    for k in range(len(text)):
        delta = {"content": spell(text[k : k + 1])}
        told = {"content": content(text[k : k + 1])}
        yield {"id": f"c{i}", "choices": [{"index": 0, "delta": delta, "logprobs": told}]}
    yield {"id": f"c{i}", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


def completion_stream(text, i):
    """Chunks that do not say that they are some: a client's, one a line."""
    for k in range(len(text)):
        [choice] = completion(text[k : k + 1])["choices"]
        finish = "length" if k == len(text) - 1 else None
        yield {"id": f"c{i}", "choices": [choice | {"index": 0, "finish_reason": finish}]}


ALIKE = ["\ufffd" if i < 3 else word for i, word in enumerate(WORDS)]  # of the likeliest


def alike(i):
    return [0xF0, 0x9F, 0x90 + i] if i < 3 else list(WORDS[i].encode())


@pytest.mark.parametrize(
    "written, code, said",
    [
        (chat, 0, ""),
        (completion, 0, ""),
        (lambda x: completion(x, lambda i: "bytes:" + "".join(map(r"\x{:02x}".format, alike(i)))
                              if WORDS[i] == " é" else WORDS[i]), 0, ""),  # OpenAI's
        (lambda x: completion(x, "token_id:{}".format), 0, ""),
        (lambda x: completion(x, str, int), 0, ""),  # mlx-lm's of 2024
        (sglang, 0, ""),
        (tgi, 0, ""),
        (post_sampling, 0, ""),
        (lambda x: {"response": spell(x), "done": True, "logprobs": content(x)}, 0, ""),  # Ollama
        (lambda x: {"output": [{"content": [{"text": spell(x), "logprobs": content(x)}]}]}, 0, ""),
        (lambda x: {"response": {"status_code": 200, "body": chat(x)}, "error": None}, 0, ""),
        (lambda x: {"request": {"logprobs": True, "top_logprobs": 4}, "response": chat(x)}, 0, ""),
        (lambda x: chat(x, words=ALIKE, bytes=alike), 0, ""),
        (lambda x: chat(x, words=ALIKE), 0, ""),  # the list tells them apart
        (lambda x: chat(x, said=spell(x)[1:].replace(" ", "")), 0, ""),  # a part, without spaces
        (lambda x: completion(x, lambda i: ALIKE[i], said=""), 2, "where two have one text"),
        (of_the_likeliest, 2, "is not what was drawn"),
        (lambda x: completion(x, said="no"), 2, "is not what was drawn"),
    ],
)  # fmt: skip
def test_a_right_engine_is_never_wrong_for_how_it_writes(tmp_path, capsys, written, code, said):
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(written(x), ensure_ascii=False) for x in pairs()), "utf-8")
    assert nanogpt(["audit", str(path)]) == code
    out = "".join(capsys.readouterr())
    assert said in out and "WRONG" not in out and ("400 texts" in out) == (not code)


@pytest.mark.parametrize(
    "bad, said",
    [
        ('{"error": {"message": "overloaded"}}', "1 of 401 answers are left out; the first, line"),
        ('{"choices": [{"finish_reason": "stop", "logprobs": {"content": []}}]}', "1 of"),
        ('{"choices": [{"text": "a", "logprobs": null}]}', "no log-probabilities of the likeliest"),
        ('{"choices": [{"text": "a", "finish_reason": "stop", "logprobs": null}]}', "1 of 401"),
        ('{"choices": [{"logprobs": {"content": [{"token": "a"}]}}]}', "its form is not known"),
        (json.dumps(chat([(0, P)])).replace("-1.0", "1.0"), "it must be 0 or less"),
        (json.dumps(chat([(0, P)]))[:-9], "line 401: no response to read"),
        ("", ""),
    ],
)  # fmt: skip
def test_one_bad_answer_is_left_out_and_counted(tmp_path, capsys, bad, said):
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join([*map(json.dumps, map(chat, pairs())), bad]), "utf-8")
    assert nanogpt(["audit", str(path)]) == 0
    assert said in capsys.readouterr().out
    path.write_text("\n".join([bad, *map(json.dumps, map(chat, pairs()))]), "utf-8")
    assert len(read_log(path)[0]) == 400, "what comes after it is read"
    path = path.rename(tmp_path / "answers.log")  # by any name, and with what a file has no say in
    assert nanogpt(["audit", "--json", str(tmp_path / "x.jsonl"), str(path), "--told"]) == 2
    assert "error: --told is for a server; " in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_lines_end_where_they_do_in_every_encoding(tmp_path, mark, end):
    lines = [json.dumps(chat(x), ensure_ascii=False) for x in pairs(30)]
    assert "\u2028" in "".join(lines)
    whole, path = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    path.write_bytes(end.join(lines).encode(mark))
    streamed = [
        f"data: {json.dumps(y)}{end}" for i, x in enumerate(pairs(30)) for y in stream(x, i)
    ]
    whole.write_text(f"[{','.join(lines)}]", "utf-8")
    assert "\ufeff" not in read_lines(path)[0][1]
    texts, notes = read_log(path)
    assert len(texts) == 30 and not notes and read_log(whole) == (texts, [])
    path.write_bytes("".join([*streamed, "data: [DONE]"]).encode(mark))
    assert read_log(path) == (texts, [])
    chunks = [json.dumps(y) for i, x in enumerate(pairs(30)) for y in completion_stream(x, i)]
    path.write_bytes(end.join(chunks).encode(mark))
    assert [len(x) for x in read_log(path)[0]] == [2] * 30
    path.write_bytes(("\ufeff" + end.join(lines)).encode("utf-16-be"))
    assert read_log(path) == (texts, [])


def test_what_is_no_text_is_said_with_its_name(tmp_path, capsys):
    (path := tmp_path / "answers.jsonl").write_bytes(b'{"choices": "\xe9"}')
    assert nanogpt(["audit", str(path)]) == 2
    assert "answers.jsonl is no UTF-8 (byte 13" in capsys.readouterr().err


def test_places_where_end_tokens_are_not_told_are_not_judged(tmp_path):
    """OpenAI's logs leave them out: a text that ended drew one more token than is told."""
    path = tmp_path / "answers.jsonl"
    texts = [x for x in pairs() if spell(x[:1]).strip()]
    ends = [chat(x[:1] if i < 4 else x, "stop" if i < 4 else "length") for i, x in enumerate(texts)]
    for few, longest, said in ((3, 2, 0), (4, 1, 1)):
        some = [*ends[:few], *map(chat, texts[4:])]
        path.write_text("\n".join(map(json.dumps, some)), "utf-8")
        read, notes = read_log(path)
        assert max(map(len, read)) == longest and len(notes) == said
    told = [chat(x, "stop", said=spell(x[:1])) for x in texts]  # here the last one is the end
    path.write_text("\n".join(map(json.dumps, told)), "utf-8")
    read, notes = read_log(path)
    assert max(map(len, read)) == 2 and not notes
    some = [chat([], "stop")] * 4 + [chat(x) for x in texts]
    path.write_text("\n".join(map(json.dumps, some)), "utf-8")
    with pytest.raises(ValueError, match="4 answers ended without their end token"):
        read_log(path)


def test_null_is_no_probability_at_all(tmp_path):
    kept = torch.where(P < 0.1, 0.0, P) / P[P >= 0.1].sum()
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(chat(x, top=6)) for x in pairs(p=kept)), "utf-8")
    assert "null" in path.read_text() and nanogpt(["audit", str(path), "--top-k", "4"]) == 0


# Is it the engine, or a setting?


FLAT = torch.softmax(torch.linspace(0, 5, 40, dtype=torch.float64), -1)


def flat_texts(how=Sampling(), n=1200, top=20, tell=lambda p: p, seed=7):
    """n texts of one token, drawn as `how` says; told is what `tell` makes of p."""
    rng, drawn_from, said = RandomSource(seed), how.probs(FLAT.log()), tell(FLAT)
    listed = {str(i): math.log(said[i]) for i in best(said, top) if said[i]}
    cdf = cumulative(drawn_from).tolist()
    tokens = [rng.categorical(drawn_from, cdf) for _ in range(n)]
    return [[Told(str(i), math.log(said[i]) if said[i] else -math.inf, listed)] for i in tokens]


@pytest.mark.parametrize(
    "asked, did, code, said",
    [
        (Sampling(), Sampling(1, 10), 2, "such a cut in force"),
        (Sampling(), Sampling(1, None, 0.6), 2, "such a cut in force"),
        (Sampling(), Sampling(1, 24), 2, "of what is not among the 20 likeliest"),
        (Sampling(), Sampling(0.6, 10, 0.9), 2, "such a cut in force"),
        (Sampling(), Sampling(0), 2, "such a cut in force"),
        (Sampling(), Sampling(0.5), 2, "those of temperature 0."),
        (Sampling(), Sampling(1.6), 2, "those of temperature 1."),
        (Sampling(1, 10), Sampling(1, 10), 0, ""),
        (Sampling(1, 10), Sampling(1, 14), 1, ""),
        (Sampling(0.7, 10), Sampling(0.7, 10), 0, ""),
        (Sampling(1, None, 0.5), Sampling(1, None, 0.5), 0, ""),
        (Sampling(1, None, 0.5), Sampling(1, None, 0.7), 1, ""),
        (Sampling(1, None, 0.5), Sampling(1, None, 0.3), 2, "such a cut in force"),
        (Sampling(0.7, 15, 0.8), Sampling(0.7, 15, 0.8), 0, ""),
    ],
)  # fmt: skip
def test_a_setting_in_force_is_no_wrong_engine(asked, did, code, said):
    report = judge(flat_texts(did, 4000), asked, reading="raw")
    assert report.exit_code == code and said in report.doubt, report.doubt


def test_a_temperature_that_is_a_little_off_is_an_error():
    report = judge(flat_texts(Sampling(0.93), 20000), Sampling())
    assert report.exit_code == 1
    assert re.search(r"the tokens are those of temperature 0\.9\d$", report.rows[0].refusal)


HOT = Sampling(0.5, 10)


@pytest.mark.parametrize(
    "tell, reading, code, said",
    [
        (lambda p: p, None, 0, ""),
        (HOT.of_probs, None, 0, "processed"),
        (HOT.of_probs, "processed", 0, "processed"),
        (Sampling(0.5).of_probs, "tempered", 0, "tempered"),
        (Sampling(0.5).of_probs, None, 2, "say --logprobs tempered"),
        (Sampling(0.5).of_probs, "raw", 2, "those of temperature"),
    ],
)
def test_log_probabilities_are_raw_or_tempered_or_processed(tell, reading, code, said):
    report = judge(flat_texts(HOT, tell=tell), HOT, reading=reading)
    assert report.exit_code == code and said in report.doubt + report.options


def test_processed_log_probabilities_are_not_cut_again():
    how = Sampling(0.5, 10, 0.8)
    report = judge(flat_texts(how, tell=how.of_probs), how, reading="processed")
    assert report.exit_code == 0, report.doubt


def test_texts_that_are_copies_are_no_wrong_engine():
    once = drawn(60, RandomSource(8))
    once = [[*a, *b, *c] for a, b, c in zip(once[::3], once[1::3], once[2::3], strict=True)]
    report = judge(once * 20, Sampling())
    assert report.exit_code == 2 and "is one seed used for several" in report.doubt
    wrong = drawn(600, RandomSource(2), change=lambda p: p.roll(1))
    assert judge([*wrong, *wrong[:1] * 40], Sampling()).exit_code == 1, "copies excuse no engine"


def test_right_tokens_that_are_rounded_are_not_impossible():
    """As bfloat16 has them: the listed may sum to more than 1, and another may come."""
    top, shares = {"0": math.log(0.9), "1": math.log(0.11)}, {0: 0.9, 1: 0.11, 2: 0.001}
    came = [i for i, p in shares.items() for _ in range(int(1000 * p))]
    texts = [[Told(str(i), math.log(shares[i]), top)] for i in came]
    assert judge(texts, Sampling()).right


# Servers that answer in a way of their own


class Stub(BaseHTTPRequestHandler):
    """A right server of one token's distribution, FLAT; its class's `dialect` is its way."""

    dialect, asked = "", 0

    def do_GET(self):
        self.out(200, {"data": [{"id": "m"}]})

    def do_POST(self):
        type(self).asked += 1
        body, dialect = (
            json.loads(self.rfile.read(int(self.headers["Content-Length"]))),
            self.dialect,
        )
        unknown = {
            "strict": {"return_token_ids", "return_tokens_as_token_ids", "top_k", "min_p"},
            "curt": {"top_k", "min_p", "repetition_penalty"},
            "hangs up": {"return_token_ids"},
            "no n or seed": {"n", "seed"},
            "curt, no n": {"n"},
            "curt, no seed": {"seed"},
            "curt, old": {"return_token_ids", "top_k", "n", "seed", "top_p"},
        }.get(dialect, set()) & set(body)
        bends = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        bends |= {"repetition_penalty": 1.0, "logit_bias": {}}
        if dialect == "defaults" and any(body.get(x) != y for x, y in bends.items()):
            return self.out(503, {"error": "a default of mine bends"})
        if dialect == "hangs up" and unknown:
            return self.close_connection  # nothing is answered
        if unknown or (dialect == "from 0" and body["top_k"] < 0):
            said = (
                "bad request"
                if dialect.startswith("curt")
                else f"unknown:\n{sorted(unknown or ['top_k'])[0]}\n  not permitted"
            )
            return self.out(422 if "," in dialect else 400, {"error": {"message": said}})
        defaults = {"temperature": 0.6, "top_k": 10, "top_p": 0.8} if dialect == "defaults" else {}
        how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | defaults | body
        how |= {"top_p": 0.6} if dialect == "cuts" else {}
        top_k = how["top_k"] if how["top_k"] > 0 else None
        p = Sampling(how["temperature"], top_k, how["top_p"]).probs(FLAT.log())
        n = 1 if dialect == "no n" else min(body.get("n", 1), 8 if dialect == "few" else 99)
        seed = body.get("seed", secrets.randbelow(2**40))
        choices = []
        for i in range(n):
            rng = RandomSource(seed + i * (dialect != "one seed"))
            text = [(rng.categorical(p), FLAT) for _ in range(2)]
            tops = [{f"w{j} ": math.log(FLAT[j]) for j in {*best(FLAT, 20), k}} for k, _ in text]
            logs = [math.log(FLAT[k]) for k, _ in text]
            names = [f"w{k} " for k, _ in text]
            told = {"tokens": names, "token_logprobs": logs, "top_logprobs": tops}
            index = None if dialect == "null" else i
            told = told if body.get("logprobs") and dialect != "silent" else None
            choices.append({"index": index, "text": "".join(names), "logprobs": told})
        return self.out(200, {"choices": choices})

    def out(self, code, said):
        data = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "dialect, more, code, said",
    [
        ("defaults", (), 0, "right"),  # a generation_config, where the request is silent
        ("defaults", ("--top-p", ".5"), 0, "top-p 0.5"),
        ("defaults", ("--top-k", "9", "--temperature", ".7"), 0, "temperature 0.7, top-k 9"),
        ("cuts", (), 2, "such a cut in force"),  # whatever is asked
        ("no n", (), 0, "right"),
        ("no n or seed", (), 0, "right"),
        ("few", (), 0, "right"),
        ("null", (), 0, "right"),
        ("strict", (), 0, "right"),
        ("strict", ("--top-k", "9"), 2, "unknown:\\ntop_k"),  # what was asked is not left out
        ("curt", (), 0, "right"),
        ("curt, no n", (), 0, "right"),
        ("curt, no seed", (), 0, "right"),
        ("curt, old", (), 0, "right"),
        ("from 0", (), 0, "right"),
        ("hangs up", (), 0, "right"),
        ("one seed", (), 0, "all 20 texts of a request are one"),
        ("silent", (), 2, "no log-probabilities of the likeliest"),
    ],
)  # fmt: skip
def test_servers_are_asked_in_the_way_of_each(capsys, dialect, more, code, said):
    handler = type("Handler", (Stub,), {"dialect": dialect})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        asked = ["--samples", "400", "--tokens", "2", "--told", *more]
        assert nanogpt(["audit", address, *asked]) == code
        assert said in "".join(capsys.readouterr())
        if dialect == "silent":
            assert handler.asked == 1
        if dialect == "strict" and not code:
            assert handler.asked < 40, "n was not taken for what is refused"
        server.shutdown()


def test_a_server_without_ids_is_refused_after_one_reply(capsys):
    handler = type("Handler", (Stub,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        assert nanogpt(["audit", "--constraints", url]) == 2  # an engine's: the address is one
        assert "nanogpt audit ADDRESS: error: unrecognized" in capsys.readouterr().err
        assert nanogpt(["audit", url]) == 2
        assert "no token ids to read again; use --told" in capsys.readouterr().err
        assert handler.asked == 1
        server.shutdown()


# What a request may ask beside a sampling


def answered(fields, **settings):
    """The choice that a server of ours gives to these fields."""
    server = serve.open_server(**settings)
    completions = server.RequestHandlerClass.do_POST.__closure__[0].cell_contents
    server.server_close()
    body = {"prompt": "ROMEO:\n", "max_tokens": 40, "seed": 3, **fields}
    return completions.answer(completions.asked(body))["choices"][0]


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
    fields = completions.asked({"prompt": "ab", "max_tokens": 1})
    threads = [threading.Thread(target=completions.answer, args=(fields,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == ["alone", "alone"]
