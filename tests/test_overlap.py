"""A server that plans a step ahead: its texts are those of each alone, in every kind of memory."""

import random
from contextlib import suppress
from functools import partial

import pytest

from nanogpt.drafts.grown import Grown
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.checks_serving import check_product
from nanogpt.proof.decoders import paged_decoder, server_decoder
from nanogpt.proof.toys import random_draft, toy_states, toy_target
from nanogpt.sampling import Sampling
from nanogpt.serving.overlap import OverlapServer
from nanogpt.serving.paged import on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.targets.state import WAYS


def crowd(seed: int, memory: str, tree: bool) -> OverlapServer:
    """A server whose requests come, stop and are cancelled at random, with each text checked."""
    dice = random.Random(seed)
    target = toy_target(5, 12, seed % 7)
    if memory == "states":
        target = toy_states(5, 12, seed % 7).remembering(list(WAYS)[seed % 3])
    places = {} if memory == "pool" else {"num_blocks": dice.randint(14, 40)}
    limits = Limits(dice.randint(1, 4), dice.randint(8, 20), dice.randint(1, 8), **places)
    draft = Grown(random_draft(5), (2, 1)) if tree else random_draft(5)
    served = target
    if memory == "pool":
        served = on_pool(FusedLanguageModel(target), dice.randint(10, 20), 2)
    server = OverlapServer(served, draft, None if tree else 3, limits)
    asked, done = {}, {}

    def submit():
        prompt = [dice.randrange(5) for _ in range(dice.randint(1, 13))]
        request = prompt, dice.randint(0, 20), dice.choice([None, 0, 1])
        with suppress(ValueError):  # more than all places there are
            asked[server.submit(*request[:2], Sampling(0), stop_token=request[2])] = request

    for _ in range(5):
        submit()
    while server.requests or server.finished:
        done |= {id: made.tokens for id, made in server.step().items()}
        if dice.random() < 0.1 and len(asked) < 8:
            submit()
        if dice.random() < 0.05 and server.requests:
            leaver = dice.choice(server.requests).id
            server.cancel(leaver)
            del asked[leaver]
    for id, (prompt, n, stop) in asked.items():
        alone = autoregressive_generate(target, prompt, n, Sampling(0), stop_token=stop)
        assert done[id] == alone.tokens, (seed, id)
    return server


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("memory", ["slots", "pool", "states"])
def test_in_a_crowd_each_text_is_what_it_is_alone(memory, tree, monkeypatch):
    """Stops, cancels, restarts of the window, preemption; and most steps are planned ahead."""
    plans, lost = [], []
    foresee, preempt = OverlapServer.foresee, Server.preempt
    monkeypatch.setattr(OverlapServer, "foresee", lambda *x: plans.append(foresee(*x)) or plans[-1])
    monkeypatch.setattr(Server, "preempt", lambda x: lost.append(x) or preempt(x))
    for seed in range(12):
        crowd(seed, memory, tree)
    assert sum(plan is not None for plan in plans) > 0.6 * len(plans)
    assert any(plan is None for plan in plans) and lost, "places that may not do"


@pytest.mark.parametrize("decoder", [server_decoder, paged_decoder])
def test_two_texts_planned_ahead_are_the_targets_own(decoder):
    check_product(partial(decoder, kind=OverlapServer))


@pytest.mark.parametrize(
    ("window", "lengths"), [(24, [60] * 9), (12, [1 + 3 * i % 7 for i in range(20)])]
)
def test_a_plan_costs_no_steps(window, lengths):
    """Who has filled the window is read on at once, and a seat is free where an end is certain."""
    target, draft, steps = toy_target(5, window), random_draft(5), []
    for kind in (Server, OverlapServer):
        server = kind(target, draft, 2, Limits(3, prefill_chunk=13))
        for i, n in enumerate(lengths):
            server.submit([i % 5, 1], n, Sampling(0))
        steps.append(0)
        while server.requests:
            server.step()
            steps[-1] += 1
    assert steps[1] <= steps[0] + 1
