"""A server under load: every time and every share of a replay and of its report, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.fused import FusedLanguageModel
from nanogpt.measure import traffic
from nanogpt.measure.traffic import Load, Logged, StepTime, Trace, record, replay
from nanogpt.proof.toys import SelfDraft, WorstDraft, random_draft, toy_target
from nanogpt.sampling import Sampling

TOY = toy_target(5, 12)

# Two requests: 10 to 14 s with three tokens, 11 to 13 s with two.
REPORT = Load(np.array([[10, 11.5, 14, 3], [11, 12, 13, 2.0]]), np.array([[14, 2, 1.0]]))


def test_the_report_of_two_requests_by_hand():
    """The first token is waited for from the arrival on; the others share the time after it."""
    assert REPORT.first.tolist() == [1.5, 1]
    assert REPORT.each.tolist() == [2.5 / 2, 1 / 1]
    assert REPORT.goodput == 5 / 4, "from 10 s, when the first came, to 14 s, when both were done"
    one = Load(np.array([[0, 2, 2, 1.0]]), REPORT.steps)
    assert one.each.tolist() == [0], "a single token has none after it"


def test_a_report_without_its_warm_up_by_hand():
    later = REPORT.after(1)
    assert later.requests.tolist() == [[11, 12, 13, 2]] and later.steps is REPORT.steps
    assert (later.first.tolist(), later.each.tolist(), later.goodput) == ([1], [1], 1)


def told(traces, arriving, K, seconds=lambda *_: 1.0, **limits):
    """A replay, and what each of its steps was told to cost for."""
    asked = []

    def step_time(*what):
        asked.append(what)
        return seconds(*what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic.functools, "cache", lambda f: f)  # every step is to ask
        return replay(traces, arriving, K, step_time, **limits), asked


def test_a_replay_of_two_requests_by_hand():
    """A reads two tokens and its current one, with a guess that is right; then B comes."""
    run, asked = told([Trace(3, [2, 1, 0]), Trace(1, [0, 0])], [10.0, 10.5], lambda _: 1)
    assert run.steps.tolist() == [[11, 1, 1], [12, 2, 1], [13, 1, 1]]
    assert asked == [(1, 4, 1, 4), (2, 2, 1, 3), (1, 1, 0, 1)]  # rows, width, guesses, tokens
    assert run.requests.tolist() == [[10, 11, 12, 3], [10.5, 12, 13, 2]]
    assert run.goodput == 5 / 3


def test_a_step_costs_what_it_is_told_and_the_clock_never_goes_back():
    """The second request arrives while the last of the first is written; the third, much later."""
    run, _ = told([Trace(1, [0])], [0.0, 0.5, 9.0], lambda _: 0, lambda rows, *_: 2.0 * rows)
    assert run.steps[:, 0].tolist() == [2, 4, 11]
    assert run.requests[:, 1].tolist() == [2, 4, 11], "each begins when the server is free"


def test_a_request_that_waits_for_a_turn_is_not_charged():
    """Both have begun, and the second finds the pass full: one row, one guess, as in a server."""
    run, asked = told([Trace(1, [0] * 3)], [0.0, 0.0], lambda n: n - 1, budget=2)
    assert run.steps[:2, 1].tolist() == [2, 2]
    assert asked[:2] == [(2, 1, 0, 2), (1, 2, 1, 2)]
    server = Logged(TOY, random_draft(5), budget=2, policy=lambda n: n - 1)
    for _ in range(2):
        server.submit([0], 3, Sampling(0))
    for _ in range(2):
        server.step()
    assert [note[:3] for note in server.log] == [what[:3] for what in asked[:2]]


def test_a_guess_counts_as_often_as_there_is_room_for_it():
    """Three right guesses: K, what the text has left, and what the width lets in, are each less."""
    for K, width, ends in ((3, 16, 1), (1, 16, 2), (3, 2, 2), (0, 16, 4), (3, 1, 4)):
        run, _ = told([Trace(1, [3, 2, 1, 0])], [0.0], lambda _, K=K: K, width=width)
        assert len(run.steps) == ends, (K, width)


def test_a_closed_loops_client_sends_the_next_when_its_last_is_done():
    run, _ = told([Trace(1, [0, 0]), Trace(1, [0])], [0.0, 7.0, 1.0, 7.0], lambda _: 0, clients=1)
    assert run.requests[:, 0].tolist() == [0, 2, 3, 5]
    assert run.requests[:, 2].tolist() == [2, 3, 5, 6]


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


TABLE = {(1, 1): 1.0, (1, 3): 2.0, (4, 1): 4.0, (4, 3): 8.0}


def test_the_time_of_a_step_by_hand():
    """Between the four passes on straight lines; and fixed, per row, per guess beside them."""
    bare = StepTime(TABLE, 0, 0, 0)
    assert [bare(*at, 0) for at in TABLE] == [*TABLE.values()]
    assert bare(1, 2, 0) == 1.5 and bare(2, 1, 0) == 2 and bare(2, 2, 0) == pytest.approx(3)
    assert bare(9, 9, 0) == 8, "no pass is guessed at beyond those that were measured"
    cost = StepTime(TABLE, 100, 10, 1000)
    assert cost(1, 1, 0) == 1 + 100 + 10 and cost(4, 3, 0) == 8 + 100 + 40
    assert cost(1, 1, 3, 77) == 1 + 100 + 10 + 3000, "a pass is a rectangle: tokens do not count"


def test_what_is_measured_of_a_step_is_what_it_took(monkeypatch):
    """A clock that we know: every pass, and every step's rest, come back as they were put in."""
    taken = {(1, 1): 5.0, (1, 16): 7.0, (4, 1): 3.0, (4, 16): 11.0}  # a small pass that was slow
    right = {(1, 1): 3.0, (1, 16): 7.0, (4, 1): 3.0, (4, 16): 11.0}
    bare = StepTime(right, 0, 0, 0)

    def clock(step):
        done = step()
        rows, width, guesses, _ = step.__self__.log[-1]
        return bare(rows, width, 0) + 0.5 + 0.25 * rows + 0.125 * guesses, done

    monkeypatch.setattr(traffic, "batch_times", lambda *_, **__: taken)
    monkeypatch.setattr(traffic, "clock", clock)
    target, prompts = FusedLanguageModel(TOY), [[i % 5] * (1 + i % 4) for i in range(6)]
    cost = StepTime.measured(target, PromptLookupDraft(5), prompts, [6] * 6, (1, 4), 3)
    assert cost.passes == right, "a pass takes no longer than a larger one"
    parts = cost.fixed, cost.per_row, cost.per_guess
    assert parts == pytest.approx((0.5, 0.25, 0.125), abs=1e-9)


def test_a_log_counts_rows_width_guesses_and_filled_places():
    """Two requests in passes of three tokens each: a prompt of five is read in two parts."""
    server = Logged(TOY, random_draft(5), 2, width=3)
    for prompt in ([0, 1, 2, 3, 4], [1]):
        server.submit(prompt, 4, Sampling(0))
    server.step(), server.step()
    assert server.log[0] == (2, 3, 4, 6), "both have two guesses; of five tokens, three are read"
    assert server.log[1][0] == 2 and server.log[1][3] >= 3 + 3 + 1


def test_requests_served_for_real_begin_when_they_arrive(monkeypatch):
    """By a clock that ticks once a look: the first token, the end, and the steps' own ends."""
    ticks = iter(range(1000))
    monkeypatch.setattr(traffic, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    server = traffic.Server(TOY, rows=2)
    run = traffic.serve(server, [[1], [2]], [1, 2], [0.0, 2.0])
    # the run begins at 0; each turn looks twice: before a step, and after it
    assert run.steps[:, 0].tolist() == [2, 4, 6]
    assert run.requests.tolist() == [[0, 2, 2, 1], [2, 4, 6, 2]]
