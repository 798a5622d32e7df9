"""Continuous batching: whoever shares its passes, a request is what it is alone."""

import gc
import random

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.drafts import ngram
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.itself import CopyDraft
from nanogpt.fused import FusedLanguageModel
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.measure import traffic
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import deep_toy, random_draft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import server as serve
from nanogpt.serving.batch import verify_batch
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Queue, Server, schedule
from nanogpt.speculative import speculative_generate

TOY, DRAFT = toy_target(5, 12), random_draft(5)
FUSED = FusedLanguageModel(TOY)
FORMS = {"per-head": lambda: TOY, "fused": lambda: FUSED}
FORMS["paged"] = lambda: FusedLanguageModel(
    TOY, BlockPool(TOY.config, 40, 2, torch.zeros(1, dtype=torch.float64))
)


def drained(server, most=5000):
    """All that is still to be finished. A server that stands still is an error, not a wait."""
    done = {}
    while server.requests or server.finished:
        done |= server.step()
        most -= 1
        assert most, f"requests {[request.id for request in server.requests]} never end"
    return done


@pytest.fixture
def preempted(monkeypatch):
    """The ids of the requests that lost their places, in order."""
    lost, preempt = [], Queue.preempt

    def noted(queue):
        request = preempt(queue)
        lost.append(request.id)
        return request

    monkeypatch.setattr(Queue, "preempt", noted)
    return lost


@pytest.mark.parametrize(
    "wants, running, limits, shares",
    [
        ([], 0, (8, 4, 9), []),
        ([(1, 1)], 0, (8, 4, 9), [1]),
        ([(9, 9), (5, 2)], 1, (8, 4, 99), [4, 4]),  # a long prompt is read in parts
        ([(9, 9), (9, 9)], 2, (8, 3, 99), [3, 3]),  # whether it has begun or not
        ([(3, 3), (9, 9)], 1, (5, 4, 99), [3, 2]),  # what is left of the budget
        ([(5, 5), (2, 2)], 1, (5, 9, 99), [5]),  # nobody begins with nothing
        ([(5, 5), (2, 2)], 2, (5, 9, 99), [4, 1]),  # whoever has begun has a token in each pass
        ([(9, 9), (9, 9), (1, 1)], 3, (4, 9, 99), [2, 1, 1]),
        ([(1, 1), (9, 9), (9, 9)], 1, (4, 9, 99), [1, 3]),  # the first that waits, then the next
        ([(2, 5), (2, 5), (2, 2)], 2, (9, 9, 9), [2]),  # preempted; nobody overtakes it
        ([(2, 5), (2, 5), (2, 2)], 1, (9, 9, 9), [2]),  # first come, first served
        ([(2, 5), (2, 4), (2, 1)], 1, (9, 9, 9), [2, 2]),
        ([(2, 0), (2, 0)], 1, (9, 9, 0), [2, 2]),  # who needs no place needs none to be free
        ([(2, 1), (2, 0)], 2, (9, 9, 0), []),
    ],
)
def test_a_pass_is_shared_out(wants, running, limits, shares):
    assert schedule(wants, running, *limits) == shares


@pytest.mark.parametrize("form", FORMS)
def test_a_request_in_the_server_is_the_request_alone(form, preempted):
    """Greedily always; drawn, with the same random numbers, where no guess was dropped."""
    rnd, drawn = random.Random(f"a server, {form}"), 0
    for _ in range(20):
        roomy, K = rnd.random() < 0.5, rnd.randrange(1, 5)
        limits = {"rows": rnd.randrange(1, 6), "budget": rnd.choice([5, 20]), "chunk": 3}
        if form != "paged":
            limits["capacity"] = rnd.randrange(20, 40)
        if roomy:
            limits = {"rows": 2}
        draft = DRAFT if roomy or rnd.random() < 0.5 else Grown(DRAFT, (2, 1))
        server, asked, done = Server(FORMS[form](), draft, K, **limits), [], {}
        for _ in range(5):
            prompt = [rnd.randrange(5) for _ in range(rnd.randrange(1, 15))]
            how = rnd.randrange(20), Sampling(rnd.choice([0, 1.0])), rnd.choice([None, 3])
            asked.append((prompt, *how))
            n, sampling, stop = how
            own = RandomSource(len(asked) - 1)
            assert server.submit(prompt, n, sampling, own, stop) == len(asked) - 1
            done |= server.step() if rnd.random() < 0.5 else {}
        done |= drained(server)
        for i, (prompt, n, sampling, stop) in enumerate(asked):
            more = (n, K) if sampling.temperature and roomy else (n,)
            alone = speculative_generate if len(more) == 2 else autoregressive_generate
            if sampling.temperature and not roomy:
                continue
            given = [] if alone is autoregressive_generate else [DRAFT]
            right = alone(TOY, *given, prompt, *more, sampling, RandomSource(i), stop)
            assert done[i].tokens == right.tokens, (form, i)
            drawn += len(more) - 1
    assert drawn and (preempted or form == "paged")


@pytest.mark.parametrize("layers", [None, (1, 3)], ids=["hidden states", "layers"])
def test_a_draft_that_reads_the_target_finds_its_true_features(layers, preempted):
    """Hidden states are kept like the cache: read in parts, over restarts and preemptions."""
    target = deep_toy()[0]
    head = random_head(target, layers)
    for capacity in (60, 21):
        server = Server(target, EagleDraft(target, head, 3), 3, capacity=capacity, chunk=5)
        prompts = [[0, 1, 2, 0, 1, 2, 2], [1], [2, 0]]
        for prompt in prompts:
            server.submit(prompt, 20, Sampling(0))
        done, seen = {}, 0
        while server.requests:
            done |= server.step()
            for request in server.requests:
                if request.hidden is not None:
                    cached = request.tokens[request.start :][: request.cache_len]
                    true, _ = head.features_of(target, torch.tensor([cached]))
                    torch.testing.assert_close(request.hidden, true[0], rtol=0, atol=1e-9)
                    seen += 1
        assert seen > 10
        for i, prompt in enumerate(prompts):
            right = autoregressive_generate(target, prompt, 20, Sampling(0))
            assert done[i].tokens == right.tokens
    assert preempted


ASKED = [([0], 4), ([1, 0], 3)]
PAIR, PAIR_DRAFT = toy_target(2, 6), random_draft(2)


def joint(server):
    """The exact distribution of what two requests get from it together."""

    def program(rng):
        made = server()
        for prompt, n in ASKED:
            made.submit(prompt, n, Sampling(), rng)
        done = drained(made)
        return tuple(tuple(done[i].tokens) for i in range(len(ASKED)))

    return enumerate_outcomes(program)


@pytest.fixture(scope="module")
def product():
    """The product of what each of them gets from the target alone."""
    one, two = (
        enumerate_outcomes(
            lambda rng, p=prompt, n=n: tuple(
                autoregressive_generate(PAIR, p, n, Sampling(), rng).tokens
            )
        )
        for prompt, n in ASKED
    )
    return {(a, b): one[a] * two[b] for a in one for b in two}


@pytest.mark.parametrize(
    "draft, K, limits",
    [
        (PAIR_DRAFT, 1, {}),
        (PAIR_DRAFT, 1, {"capacity": 6}),
        (PAIR_DRAFT, 2, {"capacity": 7, "rows": 2, "policy": lambda running: 3 - running}),
        pytest.param(
            PAIR_DRAFT,
            1,
            {"capacity": 6, "budget": 3, "chunk": 2},
            marks=pytest.mark.slow,
        ),
        (Grown(PAIR_DRAFT, (2,)), 2, {"capacity": 6, "nodes": 2}),
    ],
    ids=["room for all", "preempted", "K by load", "a small budget", "trees"],
)
def test_two_requests_get_what_each_would_get_alone(draft, K, limits, product, preempted):
    """The joint distribution is the product of the singles."""
    assert total_variation(joint(lambda: Server(PAIR, draft, K, **limits)), product) < 1e-12
    assert preempted or not limits


@pytest.mark.parametrize(
    "K, capacity, n_new",
    [({"K": 4}, 19, 11), ({"policy": lambda running: (8, 5, 2)[running - 1]}, 30, 18)],
    ids=["the same K", "K by load"],
)
def test_guesses_fit_into_what_was_reserved(K, capacity, n_new, monkeypatch, preempted):
    """Bug 64: no pass fills more places than there are, also after a preemption."""
    target, filled = toy_target(5, 24 if capacity > 24 else 12), []

    def watched(*args):
        verified = pass_of(*args)
        filled.append(sum(cache_length(new_kvs) for *_, new_kvs in verified))
        return verified

    pass_of = verify_batch
    monkeypatch.setattr(serve, "verify_batch", watched)
    server = Server(target, DRAFT, **K, rows=3, capacity=capacity)
    for prompt in ([0], [1, 2]):
        server.submit(prompt, n_new, Sampling(0))
    drained(server)
    assert 0.7 * capacity < max(filled) <= capacity and preempted


def test_a_preempted_request_drops_its_guesses_and_its_places(monkeypatch):
    """Bug 64: guesses that an interrupted pass has left may not fit any more."""
    server = Server(TOY, DRAFT, 4)
    for prompt in ([0], [1, 2]):
        server.submit(prompt, 11, rng=RandomSource(0))
    server.step()
    monkeypatch.setattr(serve, "verify_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        server.step()
    monkeypatch.undo()
    assert all(request.tree is not None for request in server.requests)
    request = server.preempt()
    assert (request.tree, request.past_kvs, request.hidden) == (None, None, None)
    assert (request.preempted, server.running, server.waiting) == (1, 1, 1)
    assert all(len(made.tokens) == 11 for made in drained(server).values())


def test_a_request_longer_than_the_cache_is_refused_at_once():
    server = Server(TOY, DRAFT, 2, capacity=10)
    with pytest.raises(ValueError, match=r"may need 12 places.*there are 10 in all; ask for fewer"):
        server.submit([0, 1, 2], 30)
    assert not server.requests and server.submit([0, 1, 2], 7) == 0
    assert len(drained(server)[0].tokens) == 7
    pool = BlockPool(TOY.config, 5, 2, torch.zeros(1, dtype=torch.float64))
    paged = Server(FusedLanguageModel(TOY, pool), DRAFT, 2)
    with pytest.raises(ValueError, match="may need 12 places.*there are 10 in all"):
        paged.submit([0, 1, 2], 30)
    with pytest.raises(ValueError, match="the target's pool has 5 blocks of 2; leave capacity out"):
        Server(FusedLanguageModel(TOY, pool), DRAFT, 2, capacity=24)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"K": -1}, "K is -1; it must be a whole number from 0"),
        ({"policy": lambda running: 0.5}, "a number of the policy is 0.5"),
        (
            {"policy": lambda running: 2 - running},
            "of the policy is -1; it must",
        ),  # of three requests
        (
            {"policy": lambda running: 3 if running < 32 else 1.5},
            "of the policy is 1.5",
        ),  # of all rows
        (
            {"policy": lambda running: running - 1, "draft": None},
            "policy is 31 and there is no draft",
        ),
        ({"nodes": -1}, "nodes is -1; it must be a whole number from 0"),
        ({"K": 2, "draft": None}, "there is no draft"),
        ({"draft": random_draft(4)}, "vocabulary of 4 tokens and the target one of 5"),
        ({"rows": 0}, "rows is 0; it must be a whole number from 1"),
        ({"budget": 2.5}, "budget is 2.5"),
        ({"chunk": True}, "chunk is True"),
        ({"budget": 31}, "budget is 31; a pass has a token for each of 32 rows"),
        ({"capacity": 0}, "capacity is 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Server(TOY, **{"draft": DRAFT, **settings})


def reading(target):
    """A draft that reads the target's hidden states, and takes its guesses as they come."""
    return EagleDraft(target, random_head(target), 3)


def test_guesses_need_no_memory_of_their_own():
    """What holds a window holds every request; a server with more room only guesses more."""
    target = deep_toy()[0]  # with a window of 16
    passes = []
    for capacity in (16, 16 + 3):
        for policy in (lambda running: running, lambda running: 4 - running):
            server = Server(target, reading(target), policy=policy, rows=3, capacity=capacity)
            server.submit([0], 30, Sampling(0))
            passes.append(drained(server)[0].target_passes)
    right = autoregressive_generate(target, [0], 30, Sampling(0)).tokens
    server.submit([0], 30, Sampling(0))
    assert drained(server)[1].tokens == right
    assert passes[0] >= passes[2] and passes[1] > passes[3]


def test_rows_full_of_windows_and_guesses_fit_by_default(preempted):
    """Nobody is preempted where nobody asked for less room than there may be need for."""
    target = deep_toy()[0]
    server = Server(target, reading(target), K=3, rows=3)
    for i in range(3):
        server.submit([i] * 14, 30, Sampling(0))
    done = drained(server)
    assert not preempted and [len(done[i].tokens) for i in range(3)] == [30] * 3


def test_a_request_that_needs_all_places_is_served_and_one_more_is_refused():
    """By hand, of every limit: what is accepted is also finished, with guesses and without."""
    for draft in (DRAFT, Grown(DRAFT, (2, 1))):
        for n_prompt, n in ((1, 5), (3, 7), (6, 30), (30, 2)):
            needs = min(min(n_prompt, 12) + n, 12)  # its context, and the current token
            with pytest.raises(ValueError, match=f"may need {needs} places"):
                Server(TOY, draft, 3, capacity=needs - 1, nodes=3).submit([1] * n_prompt, n)
            server = Server(TOY, draft, 3, capacity=needs, nodes=3)
            server.submit([1] * n_prompt, n)
            assert len(drained(server, 99)[0].tokens) == n


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_step_loses_nothing(form, monkeypatch):
    """Wherever Ctrl-C comes in, step can be called again, and the texts are the same."""
    asked = [([1, 2, 3], 14), ([4], 9), ([0] * 8, 11)]
    pass_of, accept = verify_batch, serve.accept_tree

    def interrupted(do, after, before=False):
        def once(*args):
            nonlocal after
            after -= 1
            if not after and before:
                raise KeyboardInterrupt
            result = do(*args)
            if not after:
                raise KeyboardInterrupt
            return result

        return once

    for when in range(1, 8):
        for name, do, before in (
            ("verify_batch", pass_of, True),
            ("verify_batch", pass_of, False),
            ("accept_tree", accept, False),
        ):
            server, done = Server(FORMS[form](), DRAFT, 2, chunk=4), {}
            for prompt, n in asked:
                server.submit(prompt, n, Sampling(0))
            monkeypatch.setattr(serve, name, interrupted(do, when, before))
            with pytest.raises(KeyboardInterrupt):
                while True:
                    done |= server.step()
            done |= drained(server)
            monkeypatch.undo()
            for i, (prompt, n) in enumerate(asked):
                right = autoregressive_generate(TOY, prompt, n, Sampling(0))
                assert done[i].tokens == right.tokens


def test_whoever_cancels_a_waiting_request_takes_no_place_from_the_running(preempted):
    server = Server(FUSED, DRAFT, 3, rows=2)
    for prompt in ([1], [2, 3], [4]):
        server.submit(prompt, 15)
    server.step()
    before = [request.cache_len for request in server.requests[:2]]
    server.cancel(2)
    assert (server.running, server.waiting) == (2, 0) and all(before)
    server.step()
    assert (server.running, server.waiting) == (2, 0) and not preempted
    assert all(r.cache_len > n for r, n in zip(server.requests, before, strict=True))


def test_a_cancelled_request_leaves_the_others_as_they_are():
    server = Server(FUSED, DRAFT, 3, rows=2)
    for prompt in ([1], [2, 3], [4]):
        server.submit(prompt, 15, rng=RandomSource(server.submitted))
    server.step()
    server.step()
    so_far = server.cancel(0).tokens
    assert so_far and (server.running, server.waiting) == (1, 1)
    done = drained(server)
    for i, prompt in ((1, [2, 3]), (2, [4])):
        right = speculative_generate(TOY, DRAFT, prompt, 15, 3, rng=RandomSource(i))
        assert done[i].tokens == right.tokens
    whole = speculative_generate(TOY, DRAFT, [1], 15, 3, rng=RandomSource(0)).tokens
    assert whole[: len(so_far)] == so_far and 0 not in done
    with pytest.raises(ValueError, match="no request 0 is running or waiting"):
        server.cancel(0)


class Failing(RandomSource):
    """Breaks off after some numbers."""

    def categorical(self, probs, row=None):
        """As RandomSource's, ten times."""
        self.drawn = getattr(self, "drawn", 0) + 1
        if self.drawn > 10:
            raise OSError("the dice are gone")
        return super().categorical(probs, row)


def test_what_fails_for_one_request_is_nothing_to_the_others():
    server = Server(FUSED, DRAFT, 3)
    for i, prompt in enumerate(([1], [2, 3], [4])):
        server.submit(prompt, 15, rng=(Failing if i == 1 else RandomSource)(i))
    done = {}
    with pytest.raises(RuntimeError, match="request 1 is dropped: the dice are gone; call step"):
        while True:
            done |= server.step()
    done |= drained(server)
    for i, prompt in ((0, [1]), (2, [4])):
        right = speculative_generate(TOY, DRAFT, prompt, 15, 3, rng=RandomSource(i))
        assert done[i].tokens == right.tokens
    assert 1 not in done


def test_nothing_is_asked_of_a_server_without_requests():
    server = Server(TOY)
    assert server.step() == {} and (server.running, server.waiting) == (0, 0)
    assert server.submit([1, 2], 0) == 0
    assert server.step()[0].tokens == [] and not server.requests


def test_without_a_draft_it_decodes_token_by_token():
    server = Server(FUSED)
    server.submit([1, 2], 9, rng=RandomSource(0))
    (made,) = drained(server).values()
    right = autoregressive_generate(TOY, [1, 2], 9, rng=RandomSource(0))
    assert made.tokens == right.tokens and made.target_passes == 9


def test_500_requests_leave_nothing_behind():
    """On the shipped pair in a small pool: no more objects after each hundred, all blocks back."""
    target, draft = checkpoint.load()[0], ngram.load()
    pool = BlockPool(target.config, 40, 16, torch.zeros(1))
    server = Server(FusedLanguageModel(target, pool), draft, policy=lambda n: 6 if n < 8 else 3)
    rnd, counts = random.Random(0), []
    for _ in range(5):
        done = 0
        for _ in range(100):
            prompt = [rnd.randrange(65) for _ in range(rnd.randrange(1, 30))]
            server.submit(prompt, rnd.randrange(1, 13), Sampling(rnd.choice([0, 1.0])))
            done += len(server.step())
        done += len(drained(server))
        gc.collect()
        assert done == 100 and pool.free == pool.blocks
        counts.append(len(gc.get_objects()))
    assert max(counts[1:]) - counts[1] < 200  # a request that stayed would be more by itself


def test_a_replay_takes_the_steps_of_the_server(monkeypatch):
    """Step for step: rows, width, guesses and K, for whatever arrives while it runs."""
    rnd, draft = random.Random(0), random_draft(5, seed=3)
    prompts = [[rnd.randrange(5) for _ in range(rnd.randrange(1, 6))] for _ in range(12)]
    lengths = [rnd.randrange(2, 7) for _ in prompts]  # no text reaches the window
    traces = traffic.record(TOY, draft, prompts, lengths, 4)
    assert [len(trace.right) for trace in traces] == lengths
    assert max(max(trace.right) for trace in traces) > 0
    arriving, told = [0.0] * 6 + [2.5] * 6, []

    def step_time(*what):
        told.append(what)
        return 1.0

    def K(running):
        return 4 if running < 3 else 1

    monkeypatch.setattr(traffic.functools, "cache", lambda f: f)  # `told` is to see every step
    run = traffic.replay(traces, arriving, K, step_time, rows=4, budget=9, chunk=3)
    server, written = traffic.Logged(FUSED, draft, policy=K, rows=4, budget=9, chunk=3), {}
    for step in range(len(told)):
        for prompt, n, at in zip(prompts, lengths, arriving, strict=True):
            if step - 1 < at <= step:
                server.submit(prompt, n, Sampling(0))
        written |= server.step()
    assert not server.requests and len(written) == len(run.requests) == 12
    assert [note[:3] for note in server.log] == [what[:3] for what in told]
    tokens = [len(made.tokens) for _, made in sorted(written.items())]
    assert tokens == run.requests[:, 3].tolist() == lengths
    assert run.goodput == pytest.approx(sum(lengths) / len(told))
    assert len(run.after(5).first) == 7 and (run.first >= 1).all() and (run.each >= 0).all()


def test_a_closed_loop_never_has_more_requests_than_clients():
    traces = [traffic.Trace(4, [0, 1, 0]), traffic.Trace(2, [1, 0])]
    run = traffic.replay(traces, [0.0] * 3 + [float("inf")] * 9, lambda _: 1, lambda *_: 0.5, 3)
    assert len(run.requests) == 12 and run.steps[:, 1].max() <= 3
    later = run.requests[3:, 0]
    assert set(later) <= set(run.requests[:, 2])  # each arrives when one is done


def test_a_load_is_served_for_real():
    server = Server(FUSED, DRAFT, 2)
    run = traffic.serve(server, [[1, 2], [3]], [5, 4], traffic.arrivals(1000.0, 6))
    assert run.requests[:, 3].tolist() == [5, 4] * 3 and not server.requests
    assert (run.first > 0).all() and (run.each >= 0).all() and len(run.steps) > 0
    gaps = traffic.arrivals(50.0, 4000)
    assert (gaps[1:] > gaps[:-1]).all() and 75 < gaps[-1] < 85


def test_the_time_of_a_step_is_measured_in_its_parts():
    target, draft = checkpoint.load()[0], ngram.load()
    prompts, lengths = [[i] * 9 for i in range(48)], [5] * 48
    cost = traffic.StepTime.measured(FusedLanguageModel(target), draft, prompts, lengths, (1, 4), 4)
    assert cost(1, 1, 0) > 0 and min(cost.fixed, cost.per_row, cost.per_guess) >= 0
    assert cost(4, 8, 0) >= cost(2, 8, 0) >= cost(1, 2, 0) >= cost.passes[1, 1]


def test_what_a_draft_took_before_it_found_the_pool_full_goes_back():
    """Three guesses want two more blocks; one is free. It is free again when they are given up."""
    pool = BlockPool(TOY.config, 20, 1, torch.zeros(1, dtype=torch.float64))
    target = FusedLanguageModel(TOY, pool)
    server = Server(target, CopyDraft(target, 3), 3, chunk=3)
    server.submit([0, 1, 2], 9, Sampling(0))
    server.step()
    (request,) = server.requests
    request.past_kvs = request.past_kvs.kept(request.cache_len)
    hogs = [prefill(target, [0]) for _ in range(pool.free - 1)]  # each holds a block
    server.safely(request, server.guess, request, 3)
    assert request.tree.tokens == [] and not server.errors
    assert pool.free == 1 and len(request.past_kvs.tables[0].blocks) == request.cache_len
    pool.check([*hogs, request.past_kvs])


def test_a_draft_that_finds_the_pool_full_guesses_another_time(preempted):
    """It writes in the target's own cache, before room was made for the pass."""
    pool = BlockPool(TOY.config, 14, 1, torch.zeros(1, dtype=torch.float64))
    target = FusedLanguageModel(TOY, pool)
    server = Server(target, CopyDraft(target, 2), 2, chunk=3)
    prompts = [[0, 1, 2], [3, 4], [1] * 6, [2]]
    for prompt in prompts:
        server.submit(prompt, 9, Sampling(0))
    done = drained(server)
    for i, prompt in enumerate(prompts):
        assert done[i].tokens == autoregressive_generate(TOY, prompt, 9, Sampling(0)).tokens
    assert preempted and pool.free == 14
