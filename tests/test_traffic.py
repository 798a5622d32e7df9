"""A server under load: every number that a service reports, by hand, and a replay that is one."""

import json
import math
import random
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nanogpt.__main__ import main
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.measure import load, traffic
from nanogpt.measure.traffic import (
    SLO,
    Load,
    Pass,
    Served,
    StepTime,
    Timeline,
    Trace,
    record,
    replay,
)
from nanogpt.proof.toys import SelfDraft, WorstDraft, random_draft, toy_target
from nanogpt.sampling import Sampling
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Limits, Server
from nanogpt.targets.fused import FusedLanguageModel

TOY, WIDE = toy_target(5, 12), toy_target(20, 40)
A = Served(10.0, 10.5, (11.0, 12.0, 14.0), (1, 3, 2), (0, 2, 2))


def test_what_became_of_a_request_by_hand():
    """It comes at 10 s, its first pass begins at 10.5 s; six tokens come in three rounds."""
    assert (A.ttft, A.queueing, A.tokens, A.done) == (1.0, 0.5, 6, 14.0)
    assert A.tpot == 3 / 5, "the five after the first share the time after it"
    assert A.gaps == [1, 0, 0, 2, 0], "a round's tokens come at once"
    first = Served(0.0, 0.0, (2.0, 5.0), (2, 1), (1, 0))
    assert first.gaps == [0, 3] and first.ttft == 2
    one = Served(0.0, 0.0, (2.0,), (1,), (0,))
    assert math.isnan(one.tpot) and one.gaps == []


def test_a_request_meets_an_slo_that_it_reaches_exactly():
    assert A.meets(SLO(1.0, 0.6))
    assert not A.meets(SLO(0.9, 0.6)) and not A.meets(SLO(1.0, 0.5))
    assert Served(0.0, 0.0, (2.0,), (1,), (0,)).meets(SLO(2.0, 0.001)), "one token: none is late"


def steps_of(read):
    """Timeline of which only `read` matters."""
    return Timeline(*[np.zeros(len(read))] * 8, np.array(read))


# Four requests; the first does not count. The window is from 10 to 20 seconds.
RUN = Load(
    [
        Served(0.0, 1.0, (2.0, 12.0), (1, 7), (2, 2), preempted=4, shared=2),
        A,
        Served(15.0, 15.0, (16.0, 19.0), (3, 1), (2, 1), preempted=1, shared=3),
        Served(20.0, 22.0, (25.0,), (1,), (0,), preempted=2),
    ],
    steps_of([4, 0, 1]),
    warm=1,
)


def test_the_report_of_a_run_by_hand():
    slo = SLO(1.0, 0.8)  # A meets it, the next one has 1 s a token, the last comes too late
    assert RUN.ttft.tolist() == [1, 1, 5] and RUN.queueing.tolist() == [0.5, 0, 2]
    assert RUN.tpot.tolist() == [3 / 5, 1], "who has one token is left out"
    assert RUN.itl.tolist() == [1, 0, 0, 2, 0, 0, 0, 3]
    assert RUN.window == (10, 20) and RUN.rate == 3 / 10
    assert RUN.throughput == (8 + 6 + 4) / 10, "who came before counts, who ends later does not"
    assert RUN.goodput(slo) == 1 / 10 and RUN.attainment(slo) == 1 / 3
    assert RUN.goodput(SLO(9, 9)) == 3 / 10, "who does not count, would meet it, too"
    assert RUN.preemptions == 3 and RUN.hit_rate == 5 / (5 + 5)
    assert RUN.tokens_per_pass == 11 / 6
    assert RUN.accepted.tolist() == [3 / 4, 2 / 3]  # 2, 1, 2 and 0 of 2, 2, 2 and 1 guesses


def test_a_report_names_all_of_it():
    told = RUN.report(SLO(1.0, 0.8), (0, 50, 100))
    assert told["ttft"] == {"p0": 1, "p50": 1, "p100": 5}
    assert told["queueing"]["p50"] == 0.5 and told["tpot"]["p100"] == 1 and told["itl"]["p100"] == 3
    assert (told["rate"], told["throughput"], told["goodput"]) == (0.3, 1.8, 0.1)
    assert told["attainment"] == 1 / 3 and told["accepted"] == [3 / 4, 2 / 3]
    assert (told["preemptions"], told["hit_rate"], told["tokens_per_pass"]) == (3, 0.5, 11 / 6)
    assert list(traffic.quantiles(np.arange(101.0)).items()) == [
        ("p50", 50),
        ("p95", 95),
        ("p99", 99),
    ]
    assert traffic.quantiles(np.array([])) == {"p50": 0, "p95": 0, "p99": 0}
    json.dumps(told)


def test_a_report_has_the_names_of_an_engines_own_benchmark():
    told = RUN.report(SLO(1.0, 0.8))
    assert (told["duration"], told["completed"], told["total_output_tokens"]) == (15, 3, 11)
    assert (told["request_throughput"], told["output_throughput"]) == (3 / 15, 11 / 15)
    assert told["request_goodput"] == 1 / 15
    assert (told["mean_ttft_ms"], told["median_ttft_ms"]) == (7000 / 3, 1000)
    assert told["mean_tpot_ms"] == 800 and told["std_tpot_ms"] == 200
    assert told["p99_itl_ms"] == np.percentile([1000, 0, 0, 2000, 0, 0, 0, 3000], 99)
    assert (told["spec_decode_num_drafts"], told["spec_decode_draft_tokens"]) == (4, 7)
    assert (
        told["spec_decode_accepted_tokens"] == 5 and told["spec_decode_acceptance_length"] == 9 / 4
    )
    assert told["spec_decode_acceptance_rate"] == 500 / 7
    assert told["spec_decode_per_position_acceptance_rates"] == [3 / 4, 2 / 4]


def test_a_run_where_all_come_at_once_ends_with_the_last_of_them():
    run = Load([Served(1.0, 1.0, (3.0,), (4,), (3,)), Served(1.0, 3.0, (6.0,), (2,), (1,))], None)
    assert run.window == (1, 6) and run.throughput == 6 / 5


def test_the_first_requests_do_not_count_and_some_must_be_left():
    assert Load(RUN.requests, RUN.steps).after(2).ttft.tolist() == [1, 5]
    with pytest.raises(ValueError, match="of 4 requests, 4 do not count: leave some"):
        RUN.after(4)


def flat(rows, width, guesses, tokens):
    """Seconds of a step that is the dearer, the more is in it."""
    return 1 + rows / 10 + width / 100 + guesses / 1000 + tokens / 10000


def columns(run, *names):
    """These numbers of each step."""
    return list(zip(*(getattr(run.steps, name).tolist() for name in names), strict=True))


def test_a_replay_of_two_requests_by_hand():
    """A reads two tokens and its current one, with a guess that is right; then B comes."""
    run = replay([Trace(3, [2, 1, 0]), Trace(1, [0, 0])], [10.0, 10.5], lambda _: 1, lambda *_: 1)
    assert columns(run, "end", "rows", "width", "guesses", "tokens", "read") == [
        (11, 1, 4, 1, 4, 2),
        (12, 2, 2, 1, 3, 0),
        (13, 1, 1, 0, 1, 0),
    ]
    assert run.requests == [
        Served(10, 10, (11, 12), (2, 1), (1, 0)),
        Served(10.5, 11, (12, 13), (1, 1), (1, 0)),
    ]


def test_a_replay_in_short_memory_by_hand():
    """Six places, three a request after two rounds: the second makes room, and is read again."""
    six = Limits(num_blocks=6)
    run = replay([Trace(2, [0, 0, 0])], [0.0, 0.0], lambda _: 0, lambda *_: 1, limits=six)
    assert columns(run, "running", "waiting", "rows", "read") == [
        (2, 0, 2, 2),
        (2, 0, 2, 0),
        (0, 1, 1, 0),
        (0, 0, 1, 3),
    ]
    first, second = run.requests
    assert first == Served(0, 0, (1, 2, 3), (1, 1, 1), (0, 0, 0))
    assert second == Served(0, 0, (1, 2, 4), (1, 1, 1), (0, 0, 0), preempted=1)
    assert replay([Trace(2, [0] * 3)], [0.0] * 2, lambda _: 0, lambda *_: 1).preemptions == 0


def test_what_a_preempted_request_has_written_is_found_in_a_pool():
    """Blocks of two: it comes back to those that it published, if they may be shared."""
    given = [Trace(2, [0] * 5)], [0.0, 0.0], lambda _: 0, lambda *_: 1
    limits = Limits(num_blocks=5, block_size=2)
    alone = replay(*given, limits=limits, share=False)
    run = replay(*given, limits=limits)
    assert run.preemptions == alone.preemptions == 1
    assert alone.hit_rate == 0 and run.requests[1].shared > 0 == run.requests[0].shared
    assert run.steps.read.sum() + run.requests[1].shared == alone.steps.read.sum()


def test_a_step_costs_what_is_in_it_and_the_clock_never_goes_back():
    """The second request arrives while the last of the first is written; the third, much later."""
    run = replay([Trace(1, [0])], [0.0, 0.5, 9.0], lambda _: 0, lambda rows, *_: 2.0 * rows)
    assert run.steps.end.tolist() == [2, 4, 11]
    assert [request.came for request in run.requests] == [(2,), (4,), (11,)]
    limits = Limits(max_num_seqs=4, prefill_chunk=3)
    run = replay([Trace(4, [2, 1, 0])], [0.0] * 9, lambda _: 2, flat, limits=limits)
    told = [flat(*what) for what in columns(run, "rows", "width", "guesses", "tokens")]
    assert np.diff(run.steps.end, prepend=0) == pytest.approx(told)


def test_who_waits_is_not_charged_and_counts_for_no_policy():
    two = Limits(max_num_seqs=2)
    run = replay([Trace(1, [0, 0])], [0.0] * 3, lambda n: n + 1, lambda *_: 1, limits=two)
    assert columns(run, "rows", "K") == [(2, 3), (2, 3), (1, 2), (1, 2)]
    assert run.steps.waiting.tolist() == [1, 1, 0, 0]


def test_a_guess_counts_as_often_as_there_is_room_for_it():
    """Three right guesses: K, what the text has left, and what the pass has left, are each less."""
    for K, budget, ends in ((3, 16, 1), (1, 16, 2), (3, 2, 2), (0, 16, 4), (3, 1, 4)):
        run = replay([Trace(1, [3, 2, 1, 0])], [0], lambda _, K=K: K, flat, 0, Limits(1, budget))
        assert len(run.steps.end) == ends, (K, budget)


def test_a_closed_loops_client_sends_the_next_when_its_last_is_done():
    traces, later = [Trace(1, [0, 0]), Trace(1, [0])], math.inf
    run = replay(traces, [0.0, later, later, later], lambda _: 0, lambda *_: 1, clients=1)
    assert [request.arrived for request in run.requests] == [0, 2, 3, 5]
    assert [request.done for request in run.requests] == [2, 3, 5, 6]
    run = replay(traces, [0.0] * 3 + [later] * 9, lambda _: 1, lambda *_: 0.5, 3)
    assert max(run.steps.running + run.steps.waiting) <= 3 and len(run.requests) == 12


def test_no_requests_are_refused():
    with pytest.raises(ValueError, match="no request arrives"):
        replay([Trace(1, [0])], [], lambda _: 0, lambda *_: 1)


def test_past_its_limit_a_server_does_what_it_can():
    """The tokens a second stay where they are, whatever comes, in ample and in short memory."""
    rnd = random.Random(0)
    traces = [Trace(20, [0] * rnd.randrange(8, 40)) for _ in range(40)]
    traces = traffic.with_coins(traces, 0.6, 4)
    tokens = sum(len(trace.right) for trace in traces) / 40
    for K, places in ((0, None), (3, None), (3, 300)):
        given, limits = (lambda _, K=K: K, flat), Limits(max_num_seqs=8, num_blocks=places)
        limit = traffic.limit(traces, *given, limits=limits)
        for share in (1.5, 3):
            coming = traffic.arrivals(share * limit / tokens, 250)
            run = replay(traces, coming, *given, limits=limits).after(50)
            assert run.throughput == pytest.approx(limit, rel=0.08), (K, places, share)
            assert run.goodput(SLO(10, 2)) < 0.2 * run.rate, "nearly all wait too long"
        coming = traffic.arrivals(0.3 * limit / tokens, 250)
        run = replay(traces, coming, *given, limits=limits).after(50)
        assert run.throughput == pytest.approx(run.rate * tokens, rel=0.08)


# The replay beside the server


def crowd(seed):
    """Requests for a toy with a draft, and the limits of a server that they press on."""
    rnd, roomy = random.Random(seed), seed % 2 == 1
    target, V, most = (WIDE, 20, 31) if roomy else (TOY, 5, 13)
    draft = rnd.choice([random_draft(V, seed=3), SelfDraft(target, 2)])
    prompts = [[rnd.randrange(V) for _ in range(rnd.randrange(1, 14))] for _ in range(12)]
    prompts = [[i] * roomy + prompt for i, prompt in enumerate(prompts)]  # none begins alike
    lengths = [rnd.randrange(1, 16) for _ in prompts]
    rows, block = rnd.randrange(1, 6), rnd.choice([1, 2, 3])
    budget, chunk, few = rnd.choice([rows, rows + 2, 20]), rnd.randrange(1, 6), -(-most // block)
    limits = Limits(rows, budget, chunk, rnd.randrange(few, 3 * few), block)
    arriving = sorted(rnd.choice([0.0, 40 * rnd.random()]) for _ in prompts)
    return target, draft, prompts, lengths, arriving, limits, roomy


def fewer_in_a_crowd(running):
    return 4 if running < 3 else 1


def really_served(target, draft, prompts, lengths, arriving, limits, share):
    """The load of a server that computes, on a clock that moves by `flat` a pass."""
    fused = FusedLanguageModel(target)
    if limits.block_size > 1:
        like = torch.zeros(1, dtype=torch.float64)
        pool = BlockPool(target.config, limits.num_blocks, limits.block_size, like)
        fused = FusedLanguageModel(target, pool)
        limits = replace(limits, num_blocks=None, block_size=1)
    how = {"policy": fewer_in_a_crowd, "clock": traffic.Virtual(), "share": share}
    server = Server(fused, draft, limits=limits, **how)
    choose = server.batch

    def batch():
        chosen = choose()
        server.clock.now += flat(*Pass.of(chosen)[:4])
        return chosen

    server.batch = batch
    return traffic.drive(
        server, arriving, lambda i: server.submit(prompts[i], lengths[i], Sampling(0))
    )


def test_a_replay_takes_the_steps_of_the_server():
    """Step for step and time for time, and the same of each request: also where places are short.

    In windows and in a pool, with prefixes shared and not, and over restarts.
    """
    preempted, shared, guessed = {1: 0, 2: 0, 3: 0}, 0, 0
    for seed in range(20):
        target, draft, prompts, lengths, arriving, limits, share = crowd(seed)
        traces = record(target, draft, prompts, lengths, 4)
        told = replay(
            traces, arriving, fewer_in_a_crowd, flat, 0, limits, target.config.block_size, share
        )
        real = really_served(target, draft, prompts, lengths, arriving, limits, share)
        for name, ours, its in zip(Timeline._fields, told.steps, real.steps, strict=True):
            assert ours.tolist() == its.tolist(), (seed, name)
        assert told.requests == real.requests, seed
        preempted[limits.block_size] += told.preemptions
        shared += sum(request.shared for request in told.requests)
        guessed += sum(map(sum, (request.guessed for request in told.requests)))
    assert min(preempted.values()) > 2 and shared > 5 and guessed > 200, "it was put to the test"


# Recordings, and their files


def test_a_record_counts_the_right_guesses_up_to_the_most():
    """A draft that is the target is right as far as it is asked; the worst one never is."""
    n, most = 5, 3
    for draft, right in ((SelfDraft(TOY, 2), [3, 3, 3, 2, 1]), (WorstDraft(TOY, 2), [0] * 5)):
        (trace,) = record(TOY, draft, [[0, 1]], [n], most)
        assert trace == Trace(2, right)


def test_a_record_is_what_greedy_guesses_come_to():
    """Counted again: from each token on, guess by guess, until one is not the text's own."""
    draft, prompts, lengths = random_draft(5, seed=5), [[0, 1], [2], [4, 3, 3]], [9, 8, 7]
    made = traffic.batch_generate(TOY, draft, prompts, lengths, 1, Sampling(0))
    traces = record(TOY, draft, prompts, lengths, 4)
    for prompt, own, trace in zip(prompts, made, traces, strict=True):
        likeliest = draft.table.argmax(-1).tolist()
        text = [*prompt, *own.tokens]
        for i, n in enumerate(trace.right):
            at = len(prompt) + i
            agree = [likeliest[text[j - 1]] == text[j] for j in range(at, len(text))][:4]
            assert n == [*agree, False].index(False)
        assert trace.prompt == len(prompt)
    assert max(n for trace in traces for n in trace.right) > 1


def test_coins_are_right_in_runs_that_fit_together():
    (all_right, none) = (traffic.with_coins([Trace(2, [0] * 5)], a, 3)[0] for a in (1, 0))
    assert all_right == Trace(2, [3, 3, 3, 2, 1]) and none == Trace(2, [0] * 5)
    (trace,) = traffic.with_coins([Trace(1, [9] * 4000)], 0.6, 50)
    for n, after in zip(trace.right, trace.right[1:], strict=False):
        assert n in (0, after + 1), "a run is one shorter a token later"
    assert np.mean(np.array(trace.right) > 0) == pytest.approx(0.6, abs=0.05)


def test_a_trace_file_brings_back_what_was_written(tmp_path):
    traces, path = [Trace(20, [2, 1, 0]), Trace(3, [0])], tmp_path / "trace.jsonl"
    traffic.write_trace(path, traces, [0.0, 0.5, 2.0])
    assert traffic.read_trace(path) == ([*traces, traces[0]], [0.0, 0.5, 2.0])
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {"arrival": 0, "prompt": 20, "output": 3, "right": [2, 1, 0]}


def test_a_trace_file_may_be_anybodys(tmp_path):
    """In any order and from any zero, with empty lines, further entries and no word of guesses."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival": 1003, "prompt": 7, "output": 2, "user": "b"}\n\n'
        '{"arrival": 1000.5, "prompt": 9, "output": 1}\n'
    )
    assert traffic.read_trace(path) == ([Trace(9, [0]), Trace(7, [0, 0])], [0, 2.5])


PUBLIC = {
    "Mooncake's": '{"timestamp": 27, "input_length": 7, "output_length": 2, "hash_ids": [0]}\n'
    '{"timestamp": 3027, "input_length": 9, "output_length": 1, "hash_ids": [0, 1]}\n',
    "Qwen's": '{"chat_id": 1, "timestamp": 61.5, "input_length": 7, "output_length": 2}\n'
    '{"chat_id": 2, "timestamp": 64.5, "input_length": 9, "output_length": 1}\n',
    "Azure's": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:59:59.9799600,7,2\r\n"
    "2023-11-16 19:00:02.9799600,9,1\r\n",
    "Azure's of 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,7,2\n2024-05-10 00:00:03.009930+00:00,9,1\n",
    "BurstGPT's": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,7,2,9,API log\n6,GPT-4,3,0,3,API log\n8,GPT-4,9,1,10,API log\n",
    "a mark, CR LF, and U+2028 in a text": "\ufeff"
    '{"arrival": 1, "prompt": 7, "output": 2, "text": "a\u2028b\x85c\u2029"}\r\n\r\n'
    '{"arrival": 4, "prompt": 9, "output": 1}\r\n',
    "a line end in a cell, and whole numbers with a point": "\n arrival;who;prompt;output\n"
    '1.0;"a\nb";7.0;2.0\n;;;\n4.0;c;9.0;1.0',
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_trace_is_read_as_it_is(name, tmp_path, capsys):
    path = tmp_path / "trace"
    path.write_bytes(PUBLIC[name].encode())
    traces, arriving = traffic.read_trace(path)
    assert traces == [Trace(7, [0, 0]), Trace(9, [0])] and arriving == pytest.approx([0, 3])
    left_out = f"{path}: 1 requests with an output of 0 tokens are left out\n"
    assert capsys.readouterr().err == (left_out if name == "BurstGPT's" else "")


@pytest.mark.parametrize(
    "unit, size", [("", 1), (":s", 1), (":ms", 1e3), (":us", 1e6), (":ns", 1e9)]
)
def test_the_fields_of_any_other_trace_are_named(unit, size, tmp_path):
    """JSON or a table; a name may have a colon, and a date has no unit."""
    path, fields = tmp_path / "trace", [f"at:{unit}" if unit else "at", "in", "out"]
    at = fields[0].removesuffix(unit) if unit else "at"
    for times in ((2 * size, 5 * size), ("2026-02-01T00:00:02Z", "2026-02-01 01:00:05+01:00")):
        rows = [{at: time, "in": 7, "out": n} for time, n in zip(times, (2, 1), strict=True)]
        table = "\n".join([f"{at}\tin\tout", *("\t".join(map(str, x.values())) for x in rows)])
        for text in ("\n".join(map(json.dumps, rows)), table):
            path.write_text(text)
            traces, arriving = traffic.read_trace(path, fields)
            assert traces == [Trace(7, [0, 0]), Trace(7, [0])]
            assert arriving == pytest.approx([0, 3])


def test_a_date_has_a_fraction_of_a_second_in_as_many_digits_as_it_likes():
    early, late = (traffic.seconds_of(f"2024-05-10 00:00:0{x}", 1) for x in ("2", "5.2500000"))
    assert late - early == 3.25
    assert traffic.seconds_of("2024-05-10 00:00:02.500000000Z", 1) - early == 0.5


@pytest.mark.parametrize(
    "data, said",
    [
        ('{"t": 1}'.encode("utf-16"), ", line 1: its fields are t, and those of a trace arrival"),
        ('{"a": "é"}'.encode("latin-1"), " is no UTF-8 (byte 7: invalid"),
        (b"[1, 2]", ", line 1: this is no JSON object"),
        (b"[" * 100_000, ", line 1: this is no JSON object"),
        (b'{"t": 1}', ", line 1: its fields are t, and those of a trace arrival, prompt, output"),
        (b"a,b\n1,2", ", line 2: its fields are a, b, and those of a trace arrival, prompt"),
        (b"arrival,prompt,output\n1,2", ', line 2: "output" is None; give a number of tokens'),
        (b"arrival,prompt,output\n\n1,2,x", ", line 3: \"output\" is 'x'; give a number"),
        (b"arrival,prompt,output\nnan,2,1", ', line 2: "arrival" is nan; give seconds'),
        (b"arrival,prompt,output\n2024-02-30 00:00:00,2,1", "\"arrival\" is '2024-02-30 00:00:00'"),
        (b"arrival,prompt,output\n1,2," + b"9" * 200_000, ", line 2: this is no row of a table"),
        (b"arrival,prompt,output\n1,2,0", " has no request; write one a line, in JSON"),
        (b"\n", " has no request; write one a line, in JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_the_file(data, said, tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(ValueError) as refused:
        traffic.read_trace(path)
    assert str(refused.value).startswith(str(path)) and said in str(refused.value)
    assert "\n" not in str(refused.value)


BAD = {
    "not JSON": ("{arrival: 1}", "this is no JSON object; write a request as {"),
    "a list": ("[1, 2]", "this is no JSON object"),
    "no arrival": ('{"prompt": 1, "output": 1}', '"arrival" is None; give seconds'),
    "NaN": ('{"arrival": NaN, "prompt": 1, "output": 1}', '"arrival" is nan'),
    "a word": ('{"arrival": "1", "prompt": 1, "output": 1}', "\"arrival\" is '1'"),
    "no prompt": (
        '{"arrival": 0, "prompt": 0, "output": 1}',
        '"prompt" is 0; give a number of tok',
    ),
    "half": ('{"arrival": 0, "prompt": 1, "output": 1.5}', '"output" is 1.5; give a number'),
    "true": ('{"arrival": 0, "prompt": true, "output": 1}', '"prompt" is True'),
    "short": ('{"arrival": 0, "prompt": 1, "output": 2, "right": [1]}', "a list of 2 numbers"),
    "too many": (
        '{"arrival": 0, "prompt": 1, "output": 2, "right": [2, 2]}',
        '"right" has 2 at index 1; 1 tokens come from there on',
    ),
    "negative": ('{"arrival": 0, "prompt": 1, "output": 1, "right": [-1]}', '"right" has -1'),
}


@pytest.mark.parametrize("line, said", BAD.values(), ids=BAD)
def test_a_bad_line_is_named(line, said, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival": 0, "prompt": 1, "output": 2, "right": [2, 1]}\n' + line + "\n")
    with pytest.raises(ValueError) as refused:
        traffic.read_trace(path)
    assert str(refused.value).startswith(f"{path}, line 2: ") and said in str(refused.value)
    assert "\n" not in str(refused.value)


# Arrivals


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_arrivals_have_their_rate_and_their_bursts(burstiness):
    coming = traffic.arrivals(50.0, 20000, burstiness=burstiness)
    gaps = np.diff(coming, prepend=0)
    assert (gaps >= 0).all() and gaps.mean() == pytest.approx(1 / 50, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.06)
    again, other = (traffic.arrivals(50.0, 9, seed, burstiness) for seed in (0, 1))
    assert coming[:9].tolist() == again.tolist() != other.tolist()


def test_a_traces_own_arrivals_can_come_faster():
    assert traffic.at_rate([3.0, 4.0, 7.0], 1.0).tolist() == [0, 0.5, 2]
    with pytest.raises(ValueError, match="all requests arrive at once"):
        traffic.at_rate([3.0, 3.0], 1.0)


# The time of a step


def test_a_table_of_steps_is_kept_in_a_file(tmp_path):
    path, cost = tmp_path / "steps.json", StepTime(TABLE, 1.0, 0.5, 0.25)
    path.write_text(json.dumps(cost.told()))
    assert StepTime.read(path) == cost
    path.write_text('\ufeff{"passes": [[1, 1, 2], [8, 1, 3], [1, 64, 4], [8, 64, 5]]}', "utf-8")
    assert StepTime.read(path)(8, 64, 99) == 5, "what is left out costs nothing"


ALL = [[1, 1, 1.0], [1, 9, 1.0], [4, 1, 1.0], [4, 9, 1.0]]


@pytest.mark.parametrize(
    "told, said",
    [
        ([], "is no table of what steps take; write"),
        ({"passes": [[1, 1]]}, "is no table of what steps take"),
        ({"passes": [*ALL[:3], [4, 9, 0]]}, "is no table of what steps take"),
        ({"passes": [*ALL[:3], [4, 9, "1"]]}, "is no table of what steps take"),
        ({"passes": [*ALL, [0, 1, 1.0]]}, "is no table of what steps take"),
        ({"passes": ALL, "per_guess": -1}, "is no table of what steps take"),
        ({"passes": ALL[:3]}, r"does not say what a pass of \(4, 9\) takes"),
        ({"passes": ALL[2:]}, r"does not say what a pass of \(1, 1\) takes"),
        ({"passes": ALL[:2]}, "more than one number of rows, or of tokens, takes"),
        ({"passes": []}, r"does not say what a pass of \(1, 1\) takes"),
    ],
)
def test_what_is_no_table_of_steps_is_refused(told, said, tmp_path):
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=said):
        StepTime.read(path)


TABLE = {(1, 1): 1.0, (1, 3): 2.0, (4, 1): 4.0, (4, 3): 8.0}


def test_the_time_of_a_step_by_hand():
    """Between the four passes on straight lines; and fixed, per row, per guess beside them."""
    bare = StepTime(TABLE, 0, 0, 0)
    assert [bare(*at, 0) for at in TABLE] == [*TABLE.values()]
    assert bare(1, 2, 0) == 1.5 and bare(2, 1, 0) == 2 and bare(2, 2, 0) == pytest.approx(3)
    cost = StepTime(TABLE, 100, 10, 1000)
    assert cost(1, 1, 0) == 1 + 100 + 10 and cost(4, 3, 0) == 8 + 100 + 40
    assert cost(1, 1, 3, 77) == 1 + 100 + 10 + 3000, "a pass is a rectangle: tokens do not count"


def test_a_step_larger_than_all_that_was_measured_goes_on_along_the_line():
    bare = StepTime(TABLE | {(1, 5): 6.0, (4, 5): 9.0}, 0, 0, 0)
    assert bare(1, 7, 0) == 10 and bare(4, 7, 0) == 10, "as from 3 to 5"
    assert bare(7, 1, 0) == 7 and bare(10, 3, 0) == 20
    for at in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="does not say what 0 takes"):
            bare(*at, 0)
    with pytest.raises(ValueError, match="measured at 1, which does not say what 2 takes"):
        StepTime({(1, 1): 1.0}, 0, 0, 0)(1, 2, 0)


def test_what_is_measured_of_a_step_is_what_it_took(monkeypatch):
    """A clock that we know: every pass, and every step's rest, come back as they were put in."""
    taken = {(1, 1): 5.0, (1, 16): 7.0, (4, 1): 3.0, (4, 16): 11.0}  # a small pass that was slow
    right = {(1, 1): 3.0, (1, 16): 7.0, (4, 1): 3.0, (4, 16): 11.0}
    bare, watched, servers = StepTime(right, 0, 0, 0), traffic.watched, []

    def clock(step):
        done = step()
        rows, width, guesses, *_ = servers[-1][-1]
        return bare(rows, width, 0) + 0.5 + 0.25 * rows + 0.125 * guesses, done

    @contextmanager
    def seen(server):
        with watched(server) as noted:
            servers.append(noted)
            yield noted

    monkeypatch.setattr(traffic, "batch_times", lambda *_, **__: taken)
    monkeypatch.setattr(traffic, "clock", clock)
    monkeypatch.setattr(traffic, "watched", seen)
    target, prompts = FusedLanguageModel(TOY), [[i % 5] * (1 + i % 4) for i in range(6)]
    cost = StepTime.measured(target, PromptLookupDraft(5), prompts, [6] * 6, (1, 4), 3)
    assert cost.passes == right, "a pass takes no longer than a larger one"
    parts = cost.fixed, cost.per_row, cost.per_guess
    assert parts == pytest.approx((0.5, 0.25, 0.125), abs=1e-9)


def test_the_time_of_a_step_is_measured_in_its_parts():
    target, prompts = FusedLanguageModel(toy_target(5, 64)), [[i % 5] * 9 for i in range(6)]
    draft, widths = random_draft(5), (1, 2, 8)
    cost = StepTime.measured(target, draft, prompts, [5] * 6, (1, 4), 4, widths)
    assert set(cost.passes) == {(b, n) for b in (1, 4) for n in widths}
    assert cost(1, 1, 0) > 0 and min(cost.fixed, cost.per_row, cost.per_guess) >= 0
    assert cost(6, 9, 0) >= cost(4, 8, 0) >= cost(2, 8, 0) >= cost(1, 2, 0) >= cost.passes[1, 1]


def test_the_best_K_makes_the_most_tokens_in_its_time():
    """Half of the first guesses are right, no second: one guess is free alone, and not for two."""
    traces = [Trace(1, [1, 0])]

    def seconds(rows, width, guesses, tokens):
        assert (width, guesses, tokens) == (1 + guesses // rows, rows * (width - 1), rows * width)
        return max(2, 0.9 * tokens)

    assert traffic.best_Ks(traces, seconds, 2, 2) == [1, 0]


# For real


def test_requests_served_for_real_begin_when_they_arrive(monkeypatch):
    """By a clock that moves a second a look, and where somebody sleeps: an idle server does."""
    now, slept = [0.0], []

    def look():
        now[0] += 1
        return now[0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    clocks = SimpleNamespace(perf_counter=look, sleep=sleep)
    monkeypatch.setattr(traffic, "time", clocks)
    server = Server(TOY, limits=Limits(max_num_seqs=2))
    run = traffic.serve(server, [[1], [2, 3]], [1, 2], [0.0, 50.0])
    first, second = run.requests
    assert (first.arrived, second.arrived) == (0, 50), "not when the server had time for them"
    assert 0 < first.began < first.done < 20 < 50 < second.began < second.came[0] < second.done < 80
    assert (first.made, second.made) == ((1,), (1, 1))
    assert len(slept) == 1 and 20 < slept[0] < 50
    assert (np.diff(run.steps.end) > 0).all() and run.steps.read.tolist() == [0, 1, 0]


def test_a_load_is_served_for_real():
    server = Server(FusedLanguageModel(TOY), random_draft(5), 2)
    run = traffic.serve(server, [[1, 2], [3]], [5, 4], traffic.arrivals(1000.0, 6))
    assert [request.tokens for request in run.requests] == [5, 4] * 3 and not server.requests
    assert (run.ttft > 0).all() and (run.queueing >= 0).all() and (run.tpot >= 0).all()
    assert server.batch.__func__ is Server.batch, "it is watched no longer"


# The command


@pytest.fixture
def quick(monkeypatch):
    """Our models stay away: recordings and step times that are known."""
    step_time = StepTime({(1, 1): 1e-3, (1, 9): 2e-3, (16, 1): 4e-3, (16, 9): 8e-3}, 0, 0, 1e-5)
    traces = [Trace(20, [2, 1, 0] * 5), Trace(9, [1, 0] * 10)]
    ours = SimpleNamespace(recorded=lambda most: traces, step_time=lambda *_: step_time)
    monkeypatch.setattr(load.Ours, "loaded", lambda *_: ours)


def test_load_prints_writes_and_draws(quick, tmp_path, capsys):
    table, drawn, kept = (tmp_path / name for name in ("load.json", "load.png", "trace.jsonl"))
    files = ["--json", table, "--picture", drawn, "--record", kept]
    asked = ["--requests", "40", "--rate", "90", "30", "--slo", "100", "5"]
    assert main(["load", *asked, *map(str, files)]) == 0
    found, printed = json.loads(table.read_text()), capsys.readouterr().out.splitlines()
    assert [run["policy"] for run in found["runs"]][:4] == [
        "no guesses",
        "K = 2",
        "K = 8",
        "K by load",
    ]
    assert found["slo"] == {"ttft": 0.1, "tpot": 0.005} and len(found["runs"]) == 8
    assert found["runs"][0]["rate"] < found["runs"][4]["rate"], "from the lowest rate up"
    assert printed[4:13] == [load.HEADER, *map(load.line, found["runs"])]
    assert "a step    1.00 ms for one row of one token, 4.00 for 16, 8.00 for 16 of 9" in printed[1]
    assert drawn.read_bytes()[:4] == b"\x89PNG"
    assert len(traffic.read_trace(kept)[0]) == 40


def test_load_replays_a_users_trace_as_it_came(quick, tmp_path, capsys):
    """Its arrivals are its own, faster; without a word on guesses, none are made."""
    path, table = tmp_path / "mine.jsonl", tmp_path / "load.json"
    lines = [{"arrival": i // 2, "prompt": 20, "output": 9} for i in range(40)]  # in pairs
    path.write_text("\n".join(map(json.dumps, lines)))
    assert main(["load", str(path), "--rate", "50", "--json", str(table)]) == 0
    (run,) = json.loads(table.read_text())["runs"]
    assert run["policy"] == "no guesses"
    assert run["rate"] == pytest.approx(32 / (15 / 19 * 39 / 50)), "from the fifth pair on"
    assert 'write "right", or give --alpha' in capsys.readouterr().out
    assert main(["load", str(path), "--rate", "50", "--alpha", "0.8", "--K", "0", "4", "--json",
                 str(table), "--requests", "20", "--burstiness", "0.5"]) == 0  # fmt: skip
    none, four = json.loads(table.read_text())["runs"]
    assert none["tokens_per_pass"] == 1 and four["tokens_per_pass"] > 2
    assert f"requests  20: {path}" in capsys.readouterr().out


def test_load_writes_what_steps_take_and_reads_it_without_our_models(quick, tmp_path, monkeypatch):
    """Two calls are on one machine; and the table may be anybody's."""
    steps, path, found = (tmp_path / name for name in ("steps.json", "trace", "load.json"))
    path.write_bytes(PUBLIC["Azure's"].encode() + b"2023-11-16 19:00:04,40,3\n" * 4)
    asked = ["load", str(path), "--alpha", "0.8", "--steps", str(steps), "--json", str(found)]
    assert main(asked) == 0
    first = json.loads(found.read_text())
    assert json.loads(steps.read_text()) == first["step"]
    monkeypatch.setattr(load.Ours, "loaded", lambda *_: pytest.fail("nothing is measured"))
    assert main(asked) == 0 and json.loads(found.read_text()) == first
    told = json.loads(steps.read_text())
    told["passes"] = [[*size, 10 * seconds] for *size, seconds in told["passes"]]
    steps.write_text(json.dumps(told))
    assert main(asked) == 0
    assert json.loads(found.read_text())["slo"]["tpot"] == pytest.approx(10 * first["slo"]["tpot"])
    assert steps.read_text() == json.dumps(told), "what is read is not written"
    flat = {"passes": [[rows, n, 1.0] for rows in (1, 2) for n in (1, 64)]}
    steps.write_text(json.dumps(flat))
    assert main(asked) == 0 and json.loads(found.read_text())["server"]["prefill_chunk"] > 16


def test_the_slo_and_the_chunk_follow_from_what_a_step_takes():
    """A pass of 48 tokens takes twice one of a token, and a prompt is read in its parts."""
    step = StepTime({(1, 1): 1.0, (1, 48): 2.0, (2, 1): 1.0, (2, 48): 2.0}, 0, 0, 0)
    assert [load.chunk_of(step, budget) for budget in (9, 16, 31, 32, 256)] == [9, 16, 16, 32, 32]
    steep = StepTime({(1, 1): 1.0, (1, 2): 9.0, (2, 1): 1.0, (2, 2): 9.0}, 0, 0, 0)
    assert load.chunk_of(steep, 256) == 16
    slo = load.slo_of([Trace(90, [0]), Trace(102, [0])], step, 48)
    assert slo == (10 * (2.0 + 2.0), 2.0)
    assert load.slo_of([Trace(49, [0])], step, 48) == (10 * (2.0 + 1.0), 2.0)


def test_load_says_before_it_starts_how_long_it_may_take(quick, capsys, monkeypatch):
    """By a clock that we know: 40 requests of about 15 steps, at two rates and the limits."""
    monkeypatch.setattr(load, "clock", lambda do: (0.5, do()))
    assert main(["load", "--requests", "40", "--rate", "90", "30", "--K", "0", "4"]) == 0
    steps = 2 + 15, 1 + 20
    seconds = 0.5 / sum(steps) * sum(steps) * 20 * 6
    said = f"6 replays of 40 requests, about {load.about(seconds)} on this machine; --requests N"
    assert said in capsys.readouterr().err
    assert [load.about(s) for s in (0.1, 119, 121, 7199, 9000)] == [
        "1 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
    ]


def test_what_cannot_be_is_refused_before_a_step_is_measured(tmp_path, monkeypatch, capsys):
    traces = [Trace(20, [0] * 15)]
    ours = SimpleNamespace(recorded=lambda _: traces, step_time=lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(load.Ours, "loaded", lambda *_: ours)
    once, bad = tmp_path / "once.csv", tmp_path / "steps.json"
    once.write_text("arrival,prompt,output\n1,2,3\n1,2,3\n")
    bad.write_text("{}")
    for asked, said in (
        ([str(once)], "all requests arrive at once; such a trace has no rate (with --burstiness"),
        (["--capacity", "34"], "the request may need 35 places in the cache, and there are 34"),
        (["--steps", str(bad)], "is no table of what steps take"),
        (["--fields", "a", "b", "c"], "--fields are those of a TRACE; give one"),
        ([str(once), "--fields", "a", "b", "c"], 'once.csv, line 2: "a" is None; give seconds'),
    ):
        assert main(["load", *asked]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]


def test_load_meets_its_limits(quick, tmp_path):
    table = tmp_path / "load.json"
    short = ["--capacity", "64", "--block", "8", "--rows", "4", "--chunk", "8", "--budget", "40"]
    assert main(["load", "--rate", "99", "--K", "4", *short, "--json", str(table)]) == 0
    found = json.loads(table.read_text())
    assert Limits(**found["server"]) == Limits(4, 40, 8, 64 // 8, 8)
    assert found["runs"][0]["preemptions"] > 0


REFUSED = {
    "--K -1": "error: --K takes numbers from 0, and `load`",
    "--alpha 2": "error: --alpha is 2; a guess is right with 0 to 1",
    "--rate 0": "error: --rate, --slo and --burstiness are numbers above 0",
    "--slo 1 0": "error: --rate, --slo and --burstiness are numbers above 0",
    "--burstiness 0": "error: --rate, --slo and --burstiness are numbers above 0",
    "--rows 0": "error: rows is 0; it must be a whole number from 1",
    "--requests 0": "error: requests is 0; it must be a whole number from 1",
    "--budget 9": "error: --budget 9 has no token for each of 16 --rows",
    "--block 16": "error: --block 16 needs --capacity, the tokens that blocks hold",
    "--capacity 9 --block 16": "error: --capacity 9 holds no --block of 16",
    "none.jsonl": "error: [Errno 2] No such file or directory: 'none.jsonl'",
    "x --record y": "error: --record writes what is drawn from the corpus; leave out the TRACE",
    "--capacity 20": "error: the request may need 35 places in the cache, and there are 20 in all; "
    "ask for fewer tokens, or give the server more",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_load_refuses_what_cannot_be_in_one_line(arguments, quick, capsys):
    assert main(["load", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1].split("\r")[-1] == REFUSED[arguments]


def test_who_ends_with_the_window_counts_and_who_ends_as_it_begins_does_not():
    """Throughput, where ends and arrivals are at the same second."""
    made = [(0.0, 2.0, 5), (2.0, 6.0, 3), (4.0, 4.5, 2), (6.0, 9.0, 7)]  # arrival, end, tokens
    run = Load([Served(came, came, (end,), (n,), (0,)) for came, end, n in made], None).after(1)
    assert run.window == (2, 6) and run.throughput == (3 + 2) / 4


def test_what_load_prints_is_in_milliseconds_and_a_guess_in_microseconds():
    """Seconds of a run that every unit shows in other digits."""
    times = {"ttft": (0.0625, 0.125), "tpot": (0.0025, 0.00375), "queueing": (0.5, 0.25)}
    run = {name: {"p50": a, "p95": b} for name, (a, b) in times.items()}
    run |= {"policy": "K = 2", "rate": 3.25, "goodput": 2.75, "throughput": 812.0}
    said = load.line(run | {"attainment": 0.84, "preemptions": 6}).split()
    assert said[3:7] == ["3.2", "2.8", "812", "84%"]
    assert said[7:] == ["62.5", "125.0", "2.50", "3.75", "250.0", "6"], "ms"
    step = StepTime({(1, 1): 2e-3, (4, 1): 3e-3, (1, 9): 4e-3, (4, 9): 5e-3}, 0, 0, 25e-6)
    limits = Limits(4, 64, 8, 24, 4)
    asked = [Trace(20, [0] * 7)], None, 40, step, SLO(0.25, 0.0125), 1.0, 0, limits
    told = " ".join(load.said(load.LoadTest(*asked), "drawn"))
    for part in ("2.00 ms for one row", "3.00 for 4, 5.00 for 4 of 9; a guess 25 µs", "24 blocks"):
        assert part in told
    assert "20 tokens of prompt and 7 of output" in told and "within 250 ms" in told
    assert "each other in 12.5 ms on average" in told
