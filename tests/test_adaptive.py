"""Draft lengths chosen while decoding: exact, within bounds, and sensible."""

import functools
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
    rounds, runs, guessed = [], [], 0
    for _ in range(n):
        K, more = policy(rounds)
        assert more is None
        rounds += rounds_of([(tokens(guessed) - 1, K)] if K else [(0, 0)])
        guessed += K > 0
        runs = (
            [*runs[:-1], (K, runs[-1][1] + 1)]
            if runs[-1:] and runs[-1][0] == K
            else [*runs, (K, 1)]
        )
    return runs


def test_each_try_that_fails_doubles_the_pause_and_one_that_pays_ends_that():
    policy = while_it_pays(3, 1.5, 2.0, memory=2, pause=4)
    bad = runs_of(policy, lambda i: 1)  # the mean: 1.75, 1.375
    assert bad[:8] == [(3, 1), (0, 4), (3, 1), (0, 8), (3, 1), (0, 16), (3, 1), (0, 32)]
    better = runs_of(policy, lambda i: 3 if i == 2 else 1)  # 1.75, 2.375, 1.69, 1.34
    assert better[3:8] == [(0, 8), (3, 3), (0, 4), (3, 1), (0, 8)]
    assert runs_of(policy, lambda i: 2) == [(3, 120)]


def test_a_text_at_the_border_does_not_flip():
    """Rounds of 1 and 3 tokens in turn, where 2 are worth it: between the bars, all stays."""
    flips = {}
    for band in (0.4, 1e-9):
        policy = while_it_pays(2, 2 - band, 2 + band, memory=8, pause=1)
        flips[band] = len(runs_of(policy, lambda i: 1 + 2 * (i % 2))) - 1
    assert flips[0.4] == 0 and flips[1e-9] > 20, "the second shows that the first is no accident"


def test_a_round_without_room_says_nothing_of_the_guesses():
    policy = while_it_pays(3, 1.5, 2.0, memory=2, pause=4)
    assert policy(rounds_of([(0, 0)] * 9)) == (3, None)
    assert policy(rounds_of([(0, 3)])) == (0, None)


def test_one_policy_for_several_texts_judges_each_by_its_own_rounds():
    """By whatever was asked before, and in whichever order: as a new one that sees it all."""
    random, texts = RandomSource(5), [[], [], []]
    made = [while_it_pays(3, 1.5, 2.0, memory=2, pause=2) for _ in range(2)]
    for _ in range(300):
        rounds = texts[random.categorical([0.5, 0.3, 0.2])]
        K = made[0](rounds)[0]
        fresh = while_it_pays(3, 1.5, 2.0, memory=2, pause=2)
        assert K == fresh(list(rounds))[0] == made[1](rounds[:])[0]
        rounds += rounds_of([(random.categorical([0.6, 0.2, 0.1, 0.1]), 3)] if K else [(0, 0)])
    assert all({0, 3} == {len(r.candidates) for r in rounds} for rounds in texts)


@pytest.mark.parametrize("wrong", [{"high": 1.5}, {"memory": 0.5}, {"pause": 0}])
def test_bars_that_touch_are_refused(wrong):
    with pytest.raises(ValueError, match="low < high"):
        while_it_pays(**{"K": 2, "low": 1.5, "high": 2.0, **wrong})


PAYS = functools.partial(while_it_pays, 2, 1.6, 1.9, memory=2, pause=1)  # flips within a toy's text
WITH_A_CACHE = TransformerDraft(toy_target(2, 8, seed=3))


def alone(prompt, n, draft, noted=None, **how):
    """The exact distribution of a toy's text; notes each round's guesses."""

    def program(rng):
        made = speculative_generate(toy_target(2, 8, seed=1), draft, prompt, n, rng=rng, **how)
        if noted is not None:
            noted.add(tuple(len(r.candidates) for r in made.rounds))
        return tuple(made.tokens)

    return enumerate_outcomes(program)


@pytest.mark.parametrize("draft", [random_draft(2), WITH_A_CACHE], ids=["table", "cache"])
def test_text_with_pauses_is_the_targets_own(draft):
    own, noted = exact_continuations(toy_target(2, 8, seed=1), 6, Sampling()), set()
    made = alone([0, 1], 6, draft, noted, **chosen_by(PAYS()))
    assert total_variation(made, own) <= 1e-12
    assert any(n[0] and not n[1] and n[2] for n in noted if len(n) > 2), "off, and on again"

    def peeking(own, text, K, sampling, rng):  # this round's guesses, and then whether to guess
        tokens, q = own.draw(text.tokens, min(2, text.room), sampling, rng)
        worth = 1 + sum(float(row[token]) for token, row in zip(tokens, q, strict=True))
        return (tokens, q) if worth >= 1.6 else ([], q[:0])

    peeked = alone([0, 1], 6, draft, steps=replace(CHAIN, draft=peeking))
    assert total_variation(peeked, own) > 1e-3


def test_a_draft_with_a_cache_reads_after_a_pause_what_was_written_in_it():
    model = toy_target(5, 16, seed=3)
    made = speculative_generate(
        toy_target(5, 16), TransformerDraft(model), [0, 1], 60, **chosen_by(PAYS(pause=5))
    )
    text, paused, late = [0, 1], 0, 0
    for r in made.rounds:
        for i, q in enumerate(r.draft_probs):
            context = text + r.candidates[:i]
            assert (q - TransformerDraft(model).get_probs(context)).abs().max() < 1e-9
        paused, late = (0, late + (paused > 4)) if r.candidates else (paused + 1, late)
        text += r.emitted
    assert late >= 2, "it paused, and guessed again"


def of_a_request(policy):
    """A request's own steps in a server: its guesses are as many as the policy says."""

    def propose(draft, text, most, *how):
        return propose_tree(draft, text, min(most, policy(text.rounds)[0]), *how)

    return replace(TREE, draft=propose)


def written(server, requests):
    """What a server writes for (prompt, n, rng, steps) each, and how many guesses each round."""
    ids = [
        server.submit(prompt, n, Sampling(), rng, steps=steps) for prompt, n, rng, steps in requests
    ]
    done = {}
    while len(done) < len(ids):
        done |= server.step()
    return [done[i] for i in ids]


@pytest.mark.parametrize("draft", [random_draft(2), WITH_A_CACHE], ids=["table", "cache"])
def test_the_texts_of_a_server_with_pauses_are_the_product_of_each_alone(draft):
    """Two requests, each with a policy of its own, in so few places that one is preempted."""
    two, noted = [([0, 1], 4), ([1], 3)], set()

    def program(rng):
        server = Server(toy_target(2, 8, seed=1), draft, 2, Limits(2, num_blocks=6))
        made = written(server, [(*asked, rng, of_a_request(PAYS())) for asked in two])
        noted.update(len(r.candidates) for m in made for r in m.rounds[1:-1])
        return tuple(tuple(m.tokens) for m in made)

    a, b = (alone(*asked, draft) for asked in two)
    product = {(x, y): a[x] * b[y] for x in a for y in b}
    assert total_variation(enumerate_outcomes(program), product) <= 1e-12 and 0 in noted


@pytest.mark.parametrize("shared", [False, True])
def test_in_a_server_each_pauses_as_it_does_alone(shared):
    """Some with a policy, some without; one policy may serve them all."""
    target, draft = toy_target(5, 16), TransformerDraft(toy_target(5, 16, seed=3))
    one, server = PAYS(), Server(target, draft, 2)
    asked = [([i % 5, 1], 20 + i, None if i == 2 else one if shared else PAYS()) for i in range(5)]
    steps = [TREE if policy is None else of_a_request(policy) for *_, policy in asked]
    requests = [(p, n, RandomSource(i), steps[i]) for i, (p, n, _) in enumerate(asked)]
    for i, made in enumerate(written(server, requests)):
        prompt, n, policy = asked[i]
        how = chosen_by(PAYS()) if policy else {"K": 2}
        single = speculative_generate(target, draft, prompt, n, rng=RandomSource(i), **how)
        assert made.tokens == single.tokens
        assert [r.candidates for r in made.rounds] == [r.candidates for r in single.rounds]
