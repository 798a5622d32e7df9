"""What texts of a target with states may begin with: kept after the verdict, at ends of blocks."""

import pytest
import torch

from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.lookahead import LookaheadDraft
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import prefill
from nanogpt.proof.checks import exact_continuations, tensors
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import random_draft, random_head, toy_states, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.memory import Prefixes, Slots
from nanogpt.serving.paged import block_key
from nanogpt.serving.server import Limits, Server
from nanogpt.targets.state import WAYS

LOOPS = {"chain": (random_draft(2), 1), "tree": (Grown(random_draft(2), [2, 1], "without"), None)}


def answered(server, *ids):
    """Step until these are answered; returns their tokens."""
    done = {}
    while not done.keys() >= set(ids):
        done |= server.step()
    return [tuple(done[id].tokens) for id in ids]


def product(target, *asked):
    """{texts: probability} of independent continuations of prompts, each (tokens, n)."""
    joint = {(): 1.0}
    for prompt, n in asked:
        one = exact_continuations(target, n, prompt=tuple(prompt))
        joint = {(*texts, x): p * q for texts, p in joint.items() for x, q in one.items()}
    return joint


@pytest.mark.two_ways
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_hit_is_a_miss_after_another_text_and_over_restarts(way, loop):
    """A, then B, then A again, whose window of six ends in between.

    A pass over a prompt goes past the end of the block, and guesses, where the way can go back.
    """
    chunk = 4 if way == "snapshot" else 16
    target, found = toy_states(2, 6, seed=1).remembering(way), set()
    A, B = [0, 1, 1, 0, 1], [1, 1, 1, 0, 1]

    def texts(rng):
        server = Server(target, *LOOPS[loop], Limits(4, 64, chunk, num_blocks=20, block_size=2))
        first = answered(server, server.submit(A, 2, rng=rng))
        answered(server, server.submit(B, 3, rng=RandomSource(1)))
        id = server.submit(A, 2, rng=rng)
        request = server.queue.by_id[id]
        again = answered(server, id)
        found.add(request.shared)
        return (*first, *again)

    assert total_variation(enumerate_outcomes(texts), product(target, (A, 2), (A, 2))) < 1e-12
    assert min(found) >= 4  # more where its window was full, and it began anew


@pytest.mark.two_ways
@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_lost_its_places_finds_its_beginning(way):
    target, found = toy_states(2, 8, seed=1).remembering(way), set()
    few = Limits(2, 32, 4, num_blocks=5, block_size=2)

    def texts(rng):
        server = Server(target, *LOOPS["chain"], few)
        ids = [server.submit(x, 3, rng=rng) for x in ([0, 1, 1, 0], [1, 1, 0, 1])]
        requests = server.requests
        made = answered(server, *ids)
        found.update((request.preempted, request.shared > 0) for request in requests)
        return tuple(made)

    exact = product(target, ([0, 1, 1, 0], 3), ([1, 1, 0, 1], 3))
    assert total_variation(enumerate_outcomes(texts), exact) < 1e-12
    assert (0, False) in found and any(lost and again for lost, again in found)


DRAFTS = {
    "table": random_draft(5),
    "tree": Grown(random_draft(5), [2, 1], "without"),
    "transformer": TransformerDraft(toy_target(5, 24, seed=3)),
    "lookup": PromptLookupDraft(5),
    "lookahead": LookaheadDraft(5),
}
EACH = [pytest.param(x, marks=() if x == "table" else pytest.mark.wide) for x in DRAFTS]


@pytest.mark.parametrize("draft", EACH)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_kept_is_a_fresh_prefill_of_what_its_key_names(way, draft):
    """Thirty requests that begin alike, some at once, in so few places that what is old goes."""
    target, draws = toy_states(5, 24).remembering(way), torch.Generator().manual_seed(0)
    limits = Limits(3, 64, 5, num_blocks=40, block_size=3)
    server = Server(target, DRAFTS[draft], limits=limits, seed=0)
    names, requests = {}, {}
    memory = server.memory
    assert isinstance(memory, Prefixes)
    for i in range(30):
        prompt = [0, 1, 2, 3][: i % 5] + torch.randint(5, (6,), generator=draws).tolist()
        id = server.submit(prompt, 8 + i % 30, Sampling(0.8))
        requests[server.queue.by_id[id]] = set()
        for _ in range(i % 4):
            server.step()
        for request, starts in requests.items():
            starts.add(request.start)
            for start in starts:
                context, key = request.tokens[start:], b""
                for end in range(3, len(context) + 1, 3):
                    key = block_key(key, context[end - 3 : end])
                    names[key] = context[:end]
        assert len(memory.kept) <= 40
        for key, cache in memory.kept.items():
            fresh = prefill(target, names[key])
            for ours, right in zip(tensors(cache), tensors(fresh), strict=True):
                assert torch.allclose(ours, right, rtol=0, atol=1e-9), names[key]
    assert memory.kept


def test_what_was_found_longest_ago_goes_first():
    target = toy_states(5, 16)
    server = Server(target, None, limits=Limits(1, 16, 4, num_blocks=5, block_size=4))
    texts = [[n, 1, 2, 3, 4] for n in range(5)]
    for text in (*texts, texts[0]):  # four entries each are kept, and there is room for five texts
        answered(server, server.submit(text, 1))
    id = server.submit([4, 4, 4, 4, 4], 1)
    answered(server, id)
    shared = []
    for text in (texts[0], texts[1]):
        request = server.queue.by_id[server.submit(text, 1)]
        answered(server, request.id)
        shared.append(request.shared)
    assert shared == [4, 0]


def test_who_does_not_share_has_a_memory_to_itself():
    target, seats = toy_states(3, 16), Limits(2, 16, 4)
    head = EagleDraft(target, random_head(target), 2)
    assert isinstance(Server(target, None, limits=seats).memory, Prefixes)
    assert type(Server(target, None, limits=seats, share=False).memory) is Slots
    assert type(Server(target, head, limits=seats).memory) is Slots  # it reads the states


def test_a_text_that_begins_with_what_is_there_takes_fewer_passes():
    server = Server(toy_states(5, 64), None, limits=Limits(1, 16, 8))
    prompt, passes = [*range(5)] * 8, []
    for _ in range(2):
        id, n = server.submit(prompt, 1), 0
        while id not in server.step():
            n += 1
        passes.append(n + 1)
    assert passes == [5, 1]
