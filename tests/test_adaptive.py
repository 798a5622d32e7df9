"""Draft lengths chosen while decoding: exact, within bounds, and sensible."""

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
)
from nanogpt.generate import Round
from nanogpt.proof.checks import CHECKS
from nanogpt.proof.decoders import decoder
from nanogpt.proof.toys import SelfDraft, WorstDraft, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, Draft, draft_tokens, speculative_generate
from nanogpt.theory import best_K

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
