"""Continuous batching: whoever shares its passes, a request is what it is alone."""

import copy
import gc
import itertools
import random
import re
from dataclasses import replace

import pytest
import torch
from conftest import load_tree

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.itself import CopyDraft
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.proof.checks_serving import product_of
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import deep_toy, random_draft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import server as serve
from nanogpt.serving.batch import verify_batch
from nanogpt.serving.paged import BlockPool, PoolFull, on_pool
from nanogpt.serving.server import Limits, Queue, Request, Server, schedule
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import TREE
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import Proposer, Tree

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


@pytest.mark.parametrize("servers", [12, pytest.param(20, marks=pytest.mark.wide)])
@pytest.mark.parametrize("form", FORMS)
def test_a_request_in_the_server_is_the_request_alone(form, servers, preempted):
    """Greedily always; drawn, with the same random numbers, where no guess was dropped."""
    rnd, drawn = random.Random(f"a server, {form}"), 0
    for _ in range(servers):
        roomy, K = rnd.random() < 0.5, rnd.randrange(1, 5)
        limits = Limits(rnd.randrange(1, 6), rnd.choice([5, 20]), 3)
        if form != "paged":
            limits = replace(limits, num_blocks=rnd.randrange(20, 40))
        if roomy:
            limits = Limits(2)
        draft = DRAFT if roomy or rnd.random() < 0.5 else Grown(DRAFT, (2, 1))
        server, asked, done = Server(FORMS[form](), draft, K, limits), [], {}
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
        server = Server(
            target, EagleDraft(target, head, 3), 3, Limits(num_blocks=capacity, prefill_chunk=5)
        )
        prompts = [[0, 1, 2, 0, 1, 2, 2], [1], [2, 0]]
        for prompt in prompts:
            server.submit(prompt, 20, Sampling(0))
        done, seen = {}, 0
        while server.requests:
            done |= server.step()
            for request in server.requests:
                if request.hidden is not None:
                    cached = request.tokens[request.start :][: request.cache_length]
                    true, _ = head.features_of(target, torch.tensor([cached]))
                    torch.testing.assert_close(request.hidden, true[0], rtol=0, atol=1e-9)
                    seen += 1
        assert seen > 10
        for i, prompt in enumerate(prompts):
            right = autoregressive_generate(target, prompt, 20, Sampling(0))
            assert done[i].tokens == right.tokens
    assert preempted


ASKED = [([0], 3), ([1, 0], 3)]
PAIR, PAIR_DRAFT, FEW = toy_target(2, 6), random_draft(2), Limits(num_blocks=6)


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
    return product_of(PAIR, ASKED)


@pytest.mark.parametrize(
    "draft, K, own",
    [
        (PAIR_DRAFT, 1, {}),
        (PAIR_DRAFT, 1, {"limits": FEW}),
        (PAIR_DRAFT, 2, {"limits": replace(FEW, max_num_seqs=2), "policy": lambda n: 3 - n}),
        pytest.param(
            PAIR_DRAFT,
            1,
            {"limits": Limits(2, 3, 2, num_blocks=6)},  # a token for each of 2 rows, and one
            marks=pytest.mark.slow,
        ),
        (Grown(PAIR_DRAFT, (2,)), 2, {"limits": FEW, "nodes": 2}),
    ],
    ids=["room for all", "preempted", "K by load", "a small budget", "trees"],
)
def test_two_requests_get_what_each_would_get_alone(draft, K, own, product, preempted):
    """The joint distribution is the product of the singles."""
    assert total_variation(joint(lambda: Server(PAIR, draft, K, **own)), product) < 1e-12
    assert preempted or not own


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
    server = Server(target, DRAFT, **K, limits=Limits(max_num_seqs=3, num_blocks=capacity))
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
    server = Server(TOY, DRAFT, 2, Limits(num_blocks=5, block_size=2))
    with pytest.raises(ValueError, match=r"may need 12 places.*there are 10 in all; ask for fewer"):
        server.submit([0, 1, 2], 30)
    assert not server.requests and server.submit([0, 1, 2], 7) == 0
    assert len(drained(server)[0].tokens) == 7
    pool = BlockPool(TOY.config, 5, 2, torch.zeros(1, dtype=torch.float64))
    paged = Server(FusedLanguageModel(TOY, pool), DRAFT, 2)
    with pytest.raises(ValueError, match=r"may need 12 places.*there are 10 in all"):
        paged.submit([0, 1, 2], 30)
    with pytest.raises(ValueError, match="the target's pool has 5 blocks of 2; leave num_blocks"):
        Server(FusedLanguageModel(TOY, pool), DRAFT, 2, Limits(num_blocks=24))
    for target in (TOY, FusedLanguageModel(TOY, pool)):
        with pytest.raises(ValueError, match="block_size is 4: it goes with num_blocks, and a"):
            Server(target, DRAFT, 2, Limits(block_size=4))


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
    ],
)
def test_settings_out_of_range_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Server(TOY, **{"draft": DRAFT, **settings})


@pytest.mark.parametrize(
    "limits, complaint",
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be a whole number from 1"),
        ({"max_num_batched_tokens": 2.5}, "max_num_batched_tokens is 2.5"),
        ({"prefill_chunk": True}, "prefill_chunk is True"),
        ({"max_num_batched_tokens": 31}, "is 31; a pass has a token for each of 32 sequences"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"block_size": 0}, "block_size is 0"),
    ],
)
def test_limits_out_of_range_are_refused(limits, complaint):
    with pytest.raises(ValueError, match=complaint):
        Limits(**limits)


def reading(target):
    """A draft that reads the target's hidden states, and takes its guesses as they come."""
    return EagleDraft(target, random_head(target), 3)


def test_guesses_need_no_memory_of_their_own():
    """What holds a window holds every request; a server with more room only guesses more."""
    target = deep_toy()[0]  # with a window of 16
    passes = []
    for capacity in (16, 16 + 3):
        for policy in (lambda running: running, lambda running: 4 - running):
            limits = Limits(max_num_seqs=3, num_blocks=capacity)
            server = Server(target, reading(target), limits=limits, policy=policy)
            server.submit([0], 30, Sampling(0))
            passes.append(drained(server)[0].target_passes)
    right = autoregressive_generate(target, [0], 30, Sampling(0)).tokens
    server.submit([0], 30, Sampling(0))
    assert drained(server)[1].tokens == right
    assert passes[0] >= passes[2] and passes[1] >= passes[3]


def test_rows_full_of_windows_and_guesses_fit_by_default(preempted):
    """Nobody is preempted where nobody asked for less room than there may be need for."""
    target = deep_toy()[0]
    server = Server(target, reading(target), K=3, limits=Limits(max_num_seqs=3))
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
                few = Limits(num_blocks=needs - 1)
                Server(TOY, draft, 3, few, nodes=3).submit([1] * n_prompt, n)
            server = Server(TOY, draft, 3, Limits(num_blocks=needs), nodes=3)
            server.submit([1] * n_prompt, n)
            assert len(drained(server, 99)[0].tokens) == n


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_step_loses_nothing(form, monkeypatch):
    """Wherever Ctrl-C comes in, step can be called again, and the texts are the same."""
    asked = [([1, 2, 3], 14), ([4], 9), ([0] * 8, 11)]
    right = [plain_text(TOY, prompt, n) for prompt, n in asked]
    pass_of, accept = verify_batch, accept_tree

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

    for when in (1, 2, 3, 5, 7):
        for name, do, before in (
            ("verify_batch", pass_of, True),
            ("verify_batch", pass_of, False),
            ("accept", accept, False),
        ):
            once = interrupted(do, when, before)
            steps = replace(TREE, accept=once) if name == "accept" else TREE
            server, done = Server(FORMS[form](), DRAFT, 2, Limits(prefill_chunk=4)), {}
            for prompt, n in asked:
                server.submit(prompt, n, Sampling(0), steps=steps)
            if name == "verify_batch":
                monkeypatch.setattr(serve, name, once)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    done |= server.step()
            done |= drained(server)
            monkeypatch.undo()
            assert [done[i].tokens for i in range(3)] == right


def test_whoever_cancels_a_waiting_request_takes_no_place_from_the_running(preempted):
    server = Server(FUSED, DRAFT, 3, Limits(max_num_seqs=2))
    for prompt in ([1], [2, 3], [4]):
        server.submit(prompt, 15)
    server.step()
    before = [request.cache_length for request in server.requests[:2]]
    server.cancel(2)
    assert (server.running, server.waiting) == (2, 0) and all(before)
    server.step()
    assert (server.running, server.waiting) == (2, 0) and not preempted
    assert all(r.cache_length > n for r, n in zip(server.requests, before, strict=True))


def test_a_cancelled_request_leaves_the_others_as_they_are():
    server = Server(FUSED, DRAFT, 3, Limits(max_num_seqs=2))
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


@pytest.mark.parametrize("each", [12, pytest.param(100, marks=pytest.mark.wide)])
def test_requests_leave_nothing_behind(each):
    """On the shipped pair in a small pool: no more objects after each part, all blocks back."""
    target, draft = checkpoint.load()[0], load_tree()
    pool = BlockPool(target.config, 40, 16, torch.zeros(1))
    server = Server(FusedLanguageModel(target, pool), draft, policy=lambda n: 6 if n < 8 else 3)
    rnd, counts = random.Random(0), []
    for _ in range(5):
        done = 0
        for _ in range(each):
            prompt = [rnd.randrange(65) for _ in range(rnd.randrange(1, 30))]
            server.submit(prompt, rnd.randrange(1, 13), Sampling(rnd.choice([0, 1.0])))
            done += len(server.step())
        done += len(drained(server))
        gc.collect()
        assert done == each and pool.free == pool.blocks
        counts.append(len(gc.get_objects()))
    assert max(counts[1:]) - counts[1] < 200  # a request that stayed would be more by itself


def test_what_a_draft_took_before_it_found_the_pool_full_goes_back():
    """Four tokens want four blocks, two are free: the current one has its own, and no guess any."""
    pool = BlockPool(TOY.config, 20, 1, torch.zeros(1, dtype=torch.float64))
    target = FusedLanguageModel(TOY, pool)
    server = Server(target, CopyDraft(target, 3), 3, Limits(prefill_chunk=3))
    server.submit([0, 1, 2], 9, Sampling(0))
    server.step()
    (request,) = server.requests
    request.past_kvs = request.past_kvs.kept(request.cache_length)
    hogs = [prefill(target, [0]) for _ in range(pool.free - 2)]  # each holds a block
    server.safely(request, server.guess, request, 1, 3)
    assert request.tree.tokens == [] and not server.errors
    assert pool.free == 1 and len(request.past_kvs.tables[0].blocks) == request.cache_length + 1
    pool.check([*hogs, request.past_kvs])


def test_a_draft_that_finds_the_pool_full_guesses_another_time(preempted):
    """It writes in the target's own cache, before room was made for the pass."""
    pool = BlockPool(TOY.config, 14, 1, torch.zeros(1, dtype=torch.float64))
    target = FusedLanguageModel(TOY, pool)
    server = Server(target, CopyDraft(target, 2), 2, Limits(prefill_chunk=3))
    prompts = [[0, 1, 2], [3, 4], [1] * 6, [2]]
    for prompt in prompts:
        server.submit(prompt, 9, Sampling(0))
    done = drained(server)
    for i, prompt in enumerate(prompts):
        assert done[i].tokens == autoregressive_generate(TOY, prompt, 9, Sampling(0)).tokens
    assert preempted and pool.free == 14


# ---- faults, streams and whatever may come


class Bad(Proposer):
    """A draft that breaks its word in one text: the one that begins with 4."""

    reads, layers, vocab_size = False, None, 5

    def __init__(self, tokens=None):
        self.tokens = tokens

    def propose(self, text, most, sampling, rng):
        """A chain of two; in that text, what `tokens` says, or an error."""
        if text.tokens[0] != 4:
            return Tree.chain([0, 1][:most], torch.eye(5, dtype=torch.float64)[:2][:most])
        if self.tokens is None:
            raise OSError("the draft is out")
        return Tree.chain(self.tokens, torch.full((len(self.tokens), 5), 0.2, dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "draft, told",
    [(Bad(), "the draft is out"), (Bad([7]), "the draft guesses 7"), (Bad([-1]), "guesses -1")],
    ids=["an error", "no token", "a negative one"],
)
def test_a_draft_that_fails_in_one_text_ends_that_one_alone(form, draft, told):
    target = FORMS[form]()
    server, done = Server(target, draft, 2, nodes=2), {}
    for prompt in ([0, 1], [4, 1], [2]):
        server.submit(prompt, 9, Sampling(0))
    with pytest.raises(RuntimeError, match=f"request 1 is dropped: .*{told}.*call step again"):
        server.step()
    done |= drained(server)
    assert sorted(done) == [0, 2]
    for i, prompt in ((0, [0, 1]), (2, [2])):
        assert done[i].tokens == autoregressive_generate(TOY, prompt, 9, Sampling(0)).tokens
    if form == "paged":
        assert target.cache.free == target.cache.blocks


@pytest.mark.parametrize("chunk", [1, 16], ids=["read in parts", "in one"])
def test_a_text_whose_logits_are_no_numbers_ends_alone_and_nobody_finds_what_it_left(chunk):
    """Its blocks are not published, wherever in its prompt the NaN comes."""
    plain = toy_target(5, 12, seed=22)
    sick = copy.deepcopy(plain)
    sick.token_embedding_table.weight.data[4] = torch.nan
    pool = BlockPool(plain.config, 20, 1, torch.zeros(1, dtype=torch.float64))
    target, limits = FusedLanguageModel(sick, pool), Limits(prefill_chunk=chunk)
    server, done = Server(target, Bad(), 2, limits, nodes=2), {}
    good = [p for p in ([0, 1], [2], [3, 0, 1]) if 4 not in plain_text(plain, p)]
    assert good
    for prompt in (*good, [0, 4, 1], [0, 4, 1], *good):
        server.submit(prompt, 6, Sampling(0))
    said = []
    while server.requests or server.finished:
        try:
            done |= server.step()
        except RuntimeError as error:
            said.append(str(error))
    assert " ".join(said).count("is dropped: its logits are NaN") == 2
    asked = [*good, None, None, *good]
    for i, prompt in enumerate(asked):
        assert (i in done) == (prompt is not None)
        assert prompt is None or done[i].tokens == plain_text(plain, prompt)
    assert pool.free == pool.blocks and pool.entries[:, :, list(pool.keys)].isfinite().all()


def plain_text(target, prompt, n=6):
    """The greedy continuation."""
    return autoregressive_generate(target, prompt, n, Sampling(0)).tokens


def test_replicas_do_not_write_the_same_text():
    """Chapter 23 calls that worthless. Whoever gives a seed gets the same again."""
    made = []
    for seed in (None, None, 7, 7):
        server = Server(TOY, DRAFT, 2, seed=seed)
        ids = [server.submit([1, 2], 30) for _ in range(2)]
        done = drained(server)
        made.append([done[id].tokens for id in ids])
    assert made[0] != made[1] and made[2] == made[3] and made[2][0] != made[2][1]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_streamed_as_rounds_end_while_others_are_served(form):
    target = toy_target(5, 12, seed=22)
    server, came = Server({"per-head": target}.get(form, FusedLanguageModel(target)), DRAFT, 3), []
    if form == "paged":
        server = Server(on_pool(target, 30, 2), DRAFT, 3)
    ids = [server.submit(prompt, 20, Sampling(0)) for prompt in ([1], [2, 3])]
    (request, other) = server.requests
    for token in server.stream(ids[0]):
        came.append(token)
        assert request.tokens[request.n_prompt :][: len(came)] == came
    assert came == plain_text(target, [1], 20) and len(request.rounds) < 20
    assert len(other.rounds) > 0
    done = drained(server)
    assert {id: made.tokens for id, made in done.items()} == {
        ids[1]: plain_text(target, [2, 3], 20)
    }


def test_a_cancelled_requests_blocks_are_free_whoever_still_has_its_cache():
    target = on_pool(TOY, 30, 2)
    server = Server(target, DRAFT, 3)
    server.submit([1, 2], 9)
    server.step()
    kept = server.requests[0].past_kvs  # in an error's traceback, say
    server.cancel(0)
    assert kept is not None and target.cache.free == 30


def test_whoever_streams_is_told_of_anothers_fault_and_is_not_cancelled():
    server = Server(FUSED, Bad(), 2, nodes=2)
    mine, other = server.submit([0, 1], 9, Sampling(0)), server.submit([4, 1], 9, Sampling(0))
    with pytest.raises(RuntimeError, match=f"request {other} is dropped"):
        list(server.stream(mine))
    assert [request.id for request in server.requests] == [mine]
    assert list(server.stream(mine)) == plain_text(TOY, [0, 1], 9)


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_of_all_that_run_is_no_full_pool(form):
    """The one seat is that of a request whose draft fails, and another waits for it."""
    server = Server(FORMS[form](), Bad(), 2, Limits(max_num_seqs=1), nodes=2)
    for prompt in ([4, 1], [0, 1]):
        server.submit(prompt, 9, Sampling(0))
    with pytest.raises(RuntimeError, match="request 0 is dropped: the draft is out"):
        server.step()
    assert drained(server)[1].tokens == plain_text(TOY, [0, 1], 9)


def test_whoever_stops_listening_cancels_and_whoever_listens_late_hears_all():
    server = Server(FUSED, DRAFT, 3)
    ids = [server.submit([i], 12, Sampling(0)) for i in range(3)]
    stream = server.stream(ids[0])
    first = next(stream)
    stream.close()
    assert first == plain_text(TOY, [0], 1)[0] and [r.id for r in server.requests] == ids[1:]
    while ids[1] not in server.finished:
        server.advance()
    assert list(server.stream(ids[1])) == plain_text(TOY, [1], 12)
    assert ids[1] not in server.finished
    with pytest.raises(ValueError, match="no request 9 is running or waiting"):
        next(server.stream(9))


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.wide) for i in (1, 2))])
@pytest.mark.parametrize("form", ["tuples", "buffer", "pool", "a pool that others use"])
def test_whatever_comes_every_text_is_what_it_is_alone(form, seed):
    """Thousands of operations: submit, step, stream, cancel, faults; and others fork and drop."""
    target, rnd = toy_target(5, 12, seed=22), random.Random(f"{form}, {seed}")
    pool = BlockPool(target.config, 18, 2, torch.zeros(1, dtype=torch.float64))
    form_of = {"tuples": target, "buffer": FusedLanguageModel(target)}
    model = form_of.get(form, FusedLanguageModel(target, pool))
    limits = Limits(4, 9, 3, 36 if form in form_of else None)
    server = Server(model, Bad(), 2, limits, nodes=2)
    alone, asked, held, done, lost, busy = {}, {}, [], {}, set(), 0

    def step():
        try:
            done.update(server.step())
        except PoolFull:
            assert held
            del held[0]
        except RuntimeError as error:
            told = re.findall(r"request (\d+) is dropped: the draft is out", str(error))
            assert told
            lost.update(map(int, told))

    operations = 840 if seed else 420
    for _ in range(operations):
        what = rnd.random()
        if what < 0.25 and len(server.requests) < 8:
            prompt = [rnd.choice([0, 1, 2, 3, 3, 3]) for _ in range(rnd.randrange(1, 9))]
            prompt[0] = 4 if rnd.random() < 0.05 else prompt[0]
            n = rnd.randrange(12)
            asked[server.submit(prompt, n, Sampling(0))] = tuple(prompt), n
        elif what < 0.3 and server.requests:
            id = rnd.choice(server.requests).id
            made = server.cancel(id).tokens
            (prompt, n), lost = asked[id], lost | {id}
            assert made == plain_text(target, list(prompt), n)[: len(made)]
        elif what < 0.35 and server.requests:
            id = rnd.choice(server.requests).id
            stream = server.stream(id)
            for _ in range(rnd.randrange(4)):
                try:
                    next(stream, None)
                except (PoolFull, RuntimeError) as error:
                    lost.update(map(int, re.findall(r"request (\d+) is dropped", str(error))))
                    held[:1] = []
                    break
            stream.close()
            lost |= {id} - {request.id for request in server.requests}
        elif what < 0.45 and form == "a pool that others use":
            if held and rnd.random() < 0.6:
                if rnd.random() < 0.5:
                    del held[rnd.randrange(len(held))]
                else:
                    held.append(held[0].fork())
            elif pool.free > 6:
                held.append(prefill(model, [rnd.randrange(4) for _ in range(5)]))
        else:
            step()
        busy += len(server.requests) > 1
        if form not in form_of:
            pool.check([*held, *(r.past_kvs for r in server.requests if r.past_kvs is not None)])
    held.clear()
    while server.requests or server.finished:
        step()
    assert set(asked) == set(done) | lost and busy > operations / 3
    for id, made in done.items():
        prompt, n = asked[id]
        if (prompt, n) not in alone:
            alone[prompt, n] = plain_text(target, list(prompt), n)
        assert made.tokens == alone[prompt, n], (id, prompt, n)
    assert (len(done) > operations / 20 and form in form_of) or pool.free == pool.blocks


def test_a_request_began_when_it_first_ran_however_often_it_lost_its_places(preempted):
    limits = Limits(max_num_seqs=3, num_blocks=14)
    server = Server(TOY, DRAFT, limits=limits, seed=0, clock=itertools.count().__next__)
    for prompt in ([0, 1], [3, 2, 4, 1], [2]):
        server.submit(prompt, 9)
    requests, began = server.requests, {}
    while server.requests:
        server.step()
        for request in requests:
            if request.began is not None:
                assert began.setdefault(request.id, request.began) == request.began
    assert preempted and len(began) == 3


def test_states_of_a_part_that_was_read_after_others_are_no_use_to_a_draft():
    """Whoever hands a request a cache hands it no states: those of the rest alone are not kept."""
    target, p = toy_target(7, 16), torch.full((2, 7), 1 / 7, dtype=torch.float64)
    request = Request(target, [1, 2, 3, 4, 5], 3, None, Sampling(), RandomSource(0), 0)
    request.past_kvs = prefill(target, [1])
    request.take_part(2, p, torch.ones(2, 4, dtype=torch.float64), prefill(target, [1, 2, 3]))
    assert (request.hidden, request.cache_length, request.prefills) == (None, 3, 1)


def test_a_request_that_began_at_0_seconds_began_then_also_if_it_lost_its_places():
    """0 is a time, and no time is None: a clock may begin at 0."""
    seconds = itertools.count()
    limits, clock = Limits(num_blocks=20), lambda: next(seconds) // 8
    server = Server(toy_target(7, 16), limits=limits, clock=clock)
    for prompt in ([1, 2, 3], [4, 5, 6]):
        server.submit(prompt, 9)
    requests, began = server.requests, {}
    while server.requests:
        server.step()
        for request in requests:
            if request.began is not None:
                assert began.setdefault(request.id, request.began) == request.began
    assert requests[1].preempted and began == {0: 0, 1: 0}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_servers_seed_is_a_number_also_if_it_is_0(seed):
    texts = []
    for _ in range(2):
        server = Server(toy_target(7, 16), seed=seed)
        id = server.submit([1, 2], 9)
        texts.append(list(server.stream(id)))
    assert texts[0] == texts[1]
