"""Draft lengths chosen while decoding: exact, within bounds, and sensible."""

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.drafts import adaptive
from nanogpt.drafts.adaptive import (
    MOST,
    StopRule,
    by_acceptance,
    by_entropy,
    draft_entropy,
    features,
    fit_stop,
    while_it_pays,
)
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Round
from nanogpt.proof.checks import CHECKS, exact_continuations
from nanogpt.proof.checks_serving import product_of
from nanogpt.proof.decoders import decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import SelfDraft, WorstDraft, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import CHAIN, Draft, draft_tokens, speculative_generate
from nanogpt.theory import best_K
from nanogpt.trees.loop import TREE, propose_tree

POLICIES = {
    "acceptance": by_acceptance(0.02, lambda K: 1 + 0.03 * K),
    "entropy": by_entropy(1.5),
}


def chosen_by(policy):
    """What speculative_generate takes for a policy."""
    return {"steps": replace(CHAIN, draft=adaptive.adaptive(policy))}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_is_lossless(policy, check):
    asked = chosen_by(policy)

    def generate(target, draft, prompt, n, K, *args, **kwargs):
        return speculative_generate(target, draft, prompt, n, K, *args, **asked, **kwargs)

    check(generate)


def test_a_rule_that_discards_a_token_it_has_seen_is_biased():
    def draft_tokens_looking(draft, context, K, sampling, rng):
        tokens, draft_probs = list(context), []
        for _ in range(K):
            q = sampling.of_probs(draft.get_probs(tokens))
            token = rng.categorical(q)
            if q[token] < 0.3:  # the wrong thing to look at
                break
            tokens.append(token)
            draft_probs.append(q)
        none = torch.empty(0, draft.vocab_size).double()
        return tokens[len(context) :], torch.stack(draft_probs) if draft_probs else none

    with pytest.raises(AssertionError, match="not the target's"):
        CHECKS["exact"](decoder(draft=draft_tokens_looking))


def drafted(policy, draft_of, n=40):
    """How many tokens each full round drafted."""
    target = toy_target(7, 64)
    made = speculative_generate(
        target, draft_of(target), [0, 1], n, rng=RandomSource(1), **chosen_by(policy)
    )
    return [len(r.candidates) for r in made.rounds[:-3]]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_keeps_its_bounds(policy):
    for make in (lambda t: SelfDraft(t, 2), lambda t: WorstDraft(t, 2), lambda t: random_draft(7)):
        assert all(1 <= k <= MOST for k in drafted(policy, make))


def rounds_of(pairs):
    """Rounds in which `accepted` of `drafted` candidates were accepted."""
    none = torch.empty(0)
    return [Round([0] * k, none, none, [0] * (a + 1), 0) for a, k in pairs]


def test_acceptance_lengthens_and_shortens_the_draft():
    policy = POLICIES["acceptance"]
    good, bad = rounds_of([(8, 8)] * 30), rounds_of([(0, 8)] * 30)
    assert policy(bad)[0] <= 2 < policy([])[0] < policy(good)[0] == MOST
    assert policy(bad + good)[0] == policy(good)[0], "only the last rounds count"


RECORDS = {  # (accepted, drafted) of each round so far
    "none": [],
    "one": [(2, 4)],
    "half": [(2, 4)] * 10,
    "nothing": [(0, 8)] * 5,
    "all": [(3, 3)] * 9,
    "mixed": [(1, 5), (5, 5), (0, 2)] * 8,
}


@pytest.mark.parametrize("pairs", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("rest", [0.0, 2.0])
def test_the_draft_is_as_long_as_the_acceptance_of_examined_candidates_says(pairs, rest):
    """A candidate after a rejected one was not examined: of 4 with 2 accepted, 3 were."""

    def cost(K):
        return 1 + 0.03 * K

    examined = 16 + sum(min(a + 1, k) for a, k in pairs)
    accepted = 13 + sum(a for a, _ in pairs)
    K, more = by_acceptance(0.02, cost, rest)(rounds_of(pairs))
    alpha = round(100 * accepted / examined) / 100
    assert K == best_K(alpha, 0.02, cost, rest) and more is None


def test_what_is_imagined_and_how_much_is_remembered_can_be_chosen():
    def policy(**settings):
        return by_acceptance(0.1, lambda K: 1.0, **settings)

    assert policy(imagined=(10, 6))([])[0] == best_K(0.6, 0.1)
    assert policy(imagined=(10, 9))([])[0] == best_K(0.9, 0.1) > best_K(0.6, 0.1)
    rounds = rounds_of([(0, 4)] * 3 + [(4, 4)] * 5)
    for memory, alpha in ((5, 26 / 30), (6, 26 / 31), (8, 26 / 33)):
        K = policy(imagined=(10, 6), memory=memory)(rounds)[0]
        assert K == best_K(round(100 * alpha) / 100, 0.1)


def test_entropy_is_spent_by_uncertain_drafts():
    sure = torch.tensor([1.0, 0.0], dtype=torch.float64)
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert draft_entropy(sure) == 0 and draft_entropy(even) == pytest.approx(math.log(2))
    most, more = by_entropy(1.5)([])
    assert most == MOST
    assert [more(q, n) for n, q in enumerate([even, sure, even, even])] == [True, True, True, False]
    assert by_entropy(0.0)([])[1](even, 0), "one token is always drafted"
    _, fresh = by_entropy(1.5)([])
    assert fresh(even, 0), "each round has a budget of its own"


def test_what_is_spent_to_the_last_bit_still_allows_a_draw():
    """At most the budget: a sum that floats hold."""
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    _, more = by_entropy(2 * draft_entropy(even))([])
    assert [more(even, n) for n in range(3)] == [True, True, False]


def test_what_the_learned_stop_sees_of_q():
    q = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    assert features(q) == (1.0, 0.5, 0.375)
    assert StopRule([1.0, 2.0, -4.0])(q) == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_the_fit_finds_the_weights_that_made_the_data():
    generator = torch.Generator().manual_seed(0)
    rows = torch.softmax(3 * torch.randn(500, 6, dtype=torch.float64, generator=generator), -1)
    x = torch.tensor([features(q) for q in rows], dtype=torch.float64)
    true = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    stop = fit_stop(x, torch.sigmoid(x @ true))
    assert stop.weights == pytest.approx(true.tolist(), abs=1e-6)
    assert stop(rows[0]) == pytest.approx(float(torch.sigmoid(x[0] @ true)), abs=1e-6)


def test_a_stop_rule_is_stored_and_the_shipped_one_is_there(tmp_path):
    path = tmp_path / "stop.safetensors"
    adaptive.save_stop(StopRule([1.0, 2.0, 3.0]), {"positions": 1}, path)
    assert adaptive.load_stop(path).weights == [1.0, 2.0, 3.0]
    assert len(adaptive.load_stop().weights) == 3
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py stop"):
        adaptive.load_stop(tmp_path / "none")
    with pytest.raises(ValueError, match="lacks weights"):
        adaptive.load_stop(checkpoint.TARGET)


def test_a_policy_is_asked_before_each_draw_of_a_draft_that_could_make_its_chain_at_once():
    """The draft's own `draw` asks nobody, so it is not taken where a policy looks at q."""

    class AtOnce(Draft):
        vocab_size = 2

        def get_probs(self, context):
            return torch.tensor([0.5, 0.5], dtype=torch.float64)

        def draw(self, context, K, sampling, rng):
            return draft_tokens(self, context, K, Sampling(), rng)

    asked = {**chosen_by(lambda rounds: (4, lambda q, n: n < 2)), "rng": RandomSource(0)}
    made = speculative_generate(toy_target(2, 8), AtOnce(), [0], 12, **asked)
    assert max(len(r.candidates) for r in made.rounds) == 2


# ---- guessing only while it pays


def runs_of(policy, tokens, n=120):
    """[(K, for how many rounds), …] on a text whose i-th round with guesses emits tokens(i)."""
    rounds, Ks = [], []
    for _ in range(n):
        i, K = sum(map(bool, Ks)), policy(rounds)[0]
        rounds += rounds_of([(tokens(i) - 1, K)] if K else [(0, 0)])
        Ks.append(K)
    return [(K, len(list(run))) for K, run in itertools.groupby(Ks)]


def test_each_try_that_fails_doubles_the_pause_and_one_that_pays_ends_that():
    policy = while_it_pays(3, 1.4, 2.0, memory=3, pause=4)
    bad = runs_of(policy, lambda i: 1)  # the mean, in each try: 1.7, 1.47, 1.31
    assert bad[:7] == [(3, 2), (0, 4), (3, 2), (0, 8), (3, 2), (0, 16), (3, 2)]
    better = runs_of(policy, lambda i: 3 if i == 4 else 1)  # 1.7, 2.13, 1.76, 1.5, 1.34
    assert better[3:8] == [(0, 8), (3, 4), (0, 4), (3, 2), (0, 8)]
    assert policy(rounds_of([(0, 0)] * 9))[0] == 3, "without room, nothing is said of guesses"
    with pytest.raises(ValueError, match="low < high"):
        while_it_pays(2, 1.5, 1.5)


def test_a_text_at_the_border_does_not_flip():
    """Rounds of 1 and 3 tokens in turn, where 2 are worth it: between the bars, all stays."""
    flips = {}
    for band in (0.4, 1e-9):  # the second shows that the first is no accident
        policy = while_it_pays(2, 2 - band, 2 + band, pause=1)
        flips[band] = len(runs_of(policy, lambda i: 1 + 2 * (i % 2))) - 1
    assert flips[0.4] == 0 and flips[1e-9] > 20


TOY, PAYS = toy_target(2, 8, seed=1), functools.partial(while_it_pays, 2, 1.6, 1.9, 1, 1)
EITHER = pytest.mark.parametrize(
    "draft", [random_draft(2), TransformerDraft(toy_target(2, 8, seed=3))], ids=["table", "cache"]
)


@EITHER
def test_text_with_pauses_is_the_targets_own(draft):
    seen = set()

    def peeking(own, text, K, sampling, rng):  # at this round's guesses: may it pay?
        tokens, q = own.draw(text.tokens, min(2, text.room), sampling, rng)
        worth = 1 + sum(float(row[token]) for token, row in zip(tokens, q, strict=True))
        return (tokens, q) if worth >= 1.6 else ([], q[:0])

    def off(n, step):
        def program(rng):
            how = {"rng": rng, "steps": replace(CHAIN, draft=step)}
            made = speculative_generate(TOY, draft, [0, 1], n, **how)
            seen.add(tuple(len(r.candidates) > 0 for r in made.rounds[:3]))
            return tuple(made.tokens)

        return total_variation(enumerate_outcomes(program), exact_continuations(TOY, n, Sampling()))

    assert off(5, adaptive.adaptive(PAYS())) <= 1e-12
    assert (True, False, True) in seen, "off, and on again"
    assert off(3, peeking) > 1e-3


def test_a_draft_with_a_cache_reads_after_a_pause_what_was_written_in_it():
    target, model, text, paused = toy_target(5, 16), toy_target(5, 16, seed=3), [0, 1], []
    how = chosen_by(while_it_pays(2, 1.6, 1.9, 1, 5))
    for r in speculative_generate(target, TransformerDraft(model), text, 60, **how).rounds:
        for i, q in enumerate(r.draft_probs):
            right = TransformerDraft(model).get_probs(text + r.candidates[:i])
            assert (q - right).abs().max() < 1e-9
        paused.append(0 if r.candidates else paused[-1] + 1)
        text = text + r.emitted
    assert sum(a > 4 and b == 0 for a, b in itertools.pairwise(paused)) >= 2, "on again, twice"


def written(target, draft, requests, limits=Limits()):
    """What a server writes for requests (prompt, n, rng, policy), each with steps of its own."""

    def steps(policy):
        def propose(draft, text, most, *how):
            return propose_tree(draft, text, min(most, policy(text.rounds)[0]), *how)

        return replace(TREE, draft=propose) if policy else TREE

    server, done = Server(target, draft, 2, limits), {}
    for prompt, n, rng, policy in requests:
        server.submit(prompt, n, Sampling(), rng, steps=steps(policy))
    while server.requests:
        done |= server.step()
    return [done[i] for i in range(len(requests))]


@EITHER
def test_two_in_a_server_pause_and_are_the_product_of_each_alone(draft):
    two, paused = [([0, 1], 4), ([1], 3)], set()

    def program(rng):
        asked = [(*request, rng, PAYS()) for request in two]
        made = written(TOY, draft, asked, Limits(2, num_blocks=6))  # one is preempted
        paused.update(PAYS()(m.rounds[:1])[0] == 0 < len(m.rounds[1:]) for m in made)
        return tuple(tuple(m.tokens) for m in made)

    assert total_variation(enumerate_outcomes(program), product_of(TOY, two)) <= 1e-12
    assert True in paused


def test_in_a_server_each_pauses_as_it_does_alone():
    """Two share a policy, one has none, two have one each."""
    target, draft = toy_target(5, 16), TransformerDraft(toy_target(5, 16, seed=3))
    one, prompts = PAYS(), [[i, 1] for i in range(5)]
    policies = [one, one, None, PAYS(), PAYS()]
    asked = [(x, 20 + x[0], RandomSource(x[0]), policies[x[0]]) for x in prompts]
    for (prompt, n, _, policy), made in zip(asked, written(target, draft, asked), strict=True):
        how = chosen_by(PAYS()) if policy else {"K": 2}
        own = speculative_generate(target, draft, prompt, n, rng=RandomSource(prompt[0]), **how)
        assert made.tokens == own.tokens
        assert [r.candidates for r in made.rounds] == [r.candidates for r in own.rounds]
