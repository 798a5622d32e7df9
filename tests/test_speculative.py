"""The decoder: its parts keep their contracts, and the whole has the target's own distribution."""

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from texts import off

from nanogpt import checkpoint
from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts.adaptive import adaptive
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.drafts.ngram import count_ngrams
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.proof.checks import check_greedy, check_lossless
from nanogpt.proof.exact import enumerate_outcomes
from nanogpt.proof.toys import (
    SelfDraft,
    TableDraft,
    WorstDraft,
    from_memory,
    random_draft,
    toy_target,
)
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import (
    CHAIN,
    accept_reject,
    draft_tokens,
    residual,
    speculative_generate,
    verify_candidates,
)
from nanogpt.trees.rules import accept_blockwise


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


# ---- the bigram draft


def test_the_bigram_counts_pairs_and_adds_one():
    tokens = torch.tensor([0, 1, 0, 1, 2, 0])
    counts = torch.ones(3, 3, dtype=torch.float64)
    for current, following in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
        counts[current, following] += 1
    draft = BigramDraftModel(tokens, 3)
    torch.testing.assert_close(draft.table, counts / counts.sum(1, keepdim=True))
    assert torch.equal(draft.get_probs([2, 2, 1]), draft.table[1])
    assert draft.table.dtype == torch.float64 and (draft.table > 0).all()


@pytest.mark.parametrize("tokens", [[], [1]])
def test_without_any_pair_the_bigram_is_uniform(tokens):
    draft = BigramDraftModel(torch.tensor(tokens, dtype=torch.int64), 4)
    assert torch.equal(draft.table, torch.full((4, 4), 0.25, dtype=torch.float64))


def test_the_bigram_refuses_tokens_outside_the_vocabulary():
    with pytest.raises(ValueError, match="outside 0 … 2"):
        BigramDraftModel(torch.tensor([0, 3]), 3)


# ---- drafting


@pytest.mark.parametrize(
    "sampling", [Sampling(0.5), Sampling(top_k=2), Sampling(top_p=0.6)], ids=str
)
def test_candidates_come_from_the_very_distributions_that_are_returned(sampling):
    draft = random_draft(3)
    got = enumerate_outcomes(lambda rng: tuple(draft_tokens(draft, [0], 2, sampling, rng)[0]))
    for (a, b), probability in got.items():
        q = [sampling.probs(draft.table[i].log()) for i in (0, a)]
        assert probability == pytest.approx(float(q[0][a] * q[1][b]), abs=1e-15)
    candidates, q = draft_tokens(draft, [0], 2, sampling, RandomSource(0))
    assert q.shape == (2, 3)
    torch.testing.assert_close(q[1], sampling.probs(draft.table[candidates[0]].log()))


def test_no_candidates_are_an_empty_list_and_no_rows():
    candidates, q = draft_tokens(random_draft(3), [0], 0, Sampling(), RandomSource(0))
    assert candidates == [] and q.shape == (0, 3)


# ---- verification


@pytest.mark.two_ways
@pytest.mark.parametrize("K", [0, 1, 5])
def test_row_i_of_one_pass_is_the_ith_sequential_pass(K):
    target, tokens = toy_target(7, 12), [1, 4, 2, 0, 6, 5, 3, 1]
    past_kvs = prefill(target, tokens[:2])
    p, new_kvs = verify_candidates(target, tokens[2], tokens[3 : 3 + K], past_kvs, Sampling())
    assert p.shape == (K + 1, 7) and cache_length(new_kvs) == 3 + K
    for i in range(K + 1):
        logits, _, past_kvs = target(torch.tensor([[tokens[2 + i]]]), past_kvs=past_kvs)
        torch.testing.assert_close(p[i], Sampling().probs(logits[0, -1]))


# ---- accept or reject


def test_accept_reject_yields_the_targets_joint_distribution_in_one_round():
    q, p = random_draft(3, 1).table[:2], random_draft(3, 2).table
    sample = draft_round(q, p)
    first = {i: sum(w for x, w in sample.items() if x[0] == i) for i in range(3)}
    assert first == pytest.approx(dict(enumerate(p[0].tolist())), abs=1e-15)


def draft_round(q, p):
    """The exact outcomes of a round whose two candidates are drawn from q's rows."""

    def program(rng):
        candidates = [rng.categorical(row) for row in q]
        return tuple(accept_reject(candidates, q, p, rng))

    return enumerate_outcomes(program)


@pytest.mark.parametrize(
    "p,q,chance",
    [([0.6, 0.4], [0.3, 0.7], 1.0), ([0.2, 0.8], [0.8, 0.2], 0.25), ([0.0, 1.0], [0.5, 0.5], 0.0)],
)
def test_a_candidate_is_accepted_with_probability_min_1_p_over_q(p, q, chance):
    outcomes = enumerate_outcomes(lambda rng: len(accept_reject([0], rows(q), rows(p, p), rng)))
    assert outcomes.get(2, 0.0) == pytest.approx(chance, abs=1e-15)


def test_the_residual_is_what_p_has_more_than_q():
    torch.testing.assert_close(
        residual(rows(0.5, 0.3, 0.2), rows(0.2, 0.2, 0.6)), rows(0.75, 0.25, 0.0)
    )


def test_where_p_equals_q_but_for_rounding_the_residual_is_p():
    p = rows(0.5, 0.5)
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p * (1 - 1e-16), p), p * (1 - 1e-16))


# ---- the random numbers


def naive_speculative(target, draft, prompt, n, K, seed):
    """Chapter 07 in plain lists: no cache, nothing remembered, one uniform number per choice."""
    uniform = np.random.default_rng(seed).random

    def draw(probs):
        u, total = uniform() * sum(probs), 0.0
        for token, probability in enumerate(probs):
            total += probability
            if u < total:
                return token

    def p_after(tokens):
        with torch.no_grad():
            return Sampling().probs(target(torch.tensor([tokens]))[0][0, -1]).tolist()

    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        drafted, k = [], min(K, len(prompt) + n - len(tokens) - 1)
        for _ in range(k):
            q = draft.get_probs(tokens + drafted).tolist()
            drafted.append(draw(q))
        for i, token in enumerate(drafted):
            q, p = draft.get_probs(tokens).tolist(), p_after(tokens)
            if not uniform() < min(1, p[token] / q[token]):
                rest = [max(0, a - b) for a, b in zip(p, q, strict=True)]
                tokens.append(draw([x / sum(rest) for x in rest]))
                break
            tokens.append(drafted[i])
        else:
            tokens.append(draw(p_after(tokens)))
    return tokens[len(prompt) :]


@pytest.mark.two_ways
@pytest.mark.parametrize("K", [1, 4])
def test_a_seed_gives_the_tokens_that_the_plainest_decoder_gives(K):
    target, draft = toy_target(7, 64), count_ngrams(torch.arange(60) ** 2 % 7, 7, order=2)
    for seed in range(4):
        expected = naive_speculative(target, draft, [0, 1], 40, K, seed)
        made = speculative_generate(target, draft, [0, 1], 40, K, rng=RandomSource(seed))
        assert made.tokens == expected, seed


def naive_block(candidates, q, p, rng):
    """Block verification by its formulas, a coin for every candidate from the last back."""
    joint = [1.0]
    for i, token in enumerate(candidates):
        joint.append(min(1.0, joint[-1] * float(p[i, token] / q[i, token])))
    if rng.bernoulli(joint[-1]):
        return [*candidates, rng.categorical(p[len(candidates)])]
    for i in range(len(candidates) - 1, -1, -1):
        left = (joint[i] * p[i] - q[i]).clamp(min=0)
        above, lost = float(left.sum()), 1 - joint[i]
        if i == 0 or rng.bernoulli(above / (above + lost) if above + lost else 1.0):
            return [*candidates[:i], rng.categorical(left / above if above else p[i])]


def test_a_seed_gives_the_block_that_its_formulas_give():
    p, q = random_draft(5, 1).table, random_draft(5, 2).table[:4]
    for seed in range(200):
        candidates = [RandomSource(seed + i).categorical(row) for i, row in enumerate(q)]
        expected, got = (
            rule(candidates, q, p, RandomSource(seed)) for rule in (naive_block, accept_blockwise)
        )
        assert got == expected, seed


def while_sure(rounds):
    """A policy that looks at q before each draw: how far it goes depends on what was drawn."""
    return 3, lambda q, n: n == 0 or float(q.max()) >= 0.6


@pytest.mark.parametrize("rule", [accept_reject, accept_blockwise])
@pytest.mark.parametrize("V,n", [(2, 4), (3, 3)])
def test_lengths_chosen_before_each_draw_lose_nothing_under_either_rule(rule, V, n):
    target, rest = toy_target(V, 8, seed=1), 1 / (V - 1)
    draft = TableDraft(
        [[0.7] + [0.3 * rest] * (V - 1)] + [[0.5] + [0.5 * rest] * (V - 1)] * (V - 1)
    )
    lengths, steps = set(), replace(CHAIN, draft=adaptive(while_sure), accept=rule)
    how = {"steps": steps, "look": lambda made: lengths.add(len(made.rounds[0].candidates))}
    assert off(speculative_generate, target, draft, n, prompt=[0], **how) < 1e-12
    assert len(lengths) > 1, "the first rounds differ in length"


# ---- trimming


@pytest.mark.two_ways
@pytest.mark.parametrize("num_emitted", [1, 2, 3, 4])
def test_the_trimmed_cache_is_that_of_a_fresh_prefill(num_emitted):
    target, tokens = toy_target(7, 12), [1, 4, 2, 0, 6, 5]
    _, new_kvs = verify_candidates(target, 2, [0, 6, 5], prefill(target, [1, 4]), Sampling())
    trimmed, fresh = (
        trim_kv_cache(new_kvs, num_emitted, 2),
        prefill(target, tokens[: 2 + num_emitted]),
    )
    for layer, right in zip(trimmed, fresh, strict=True):
        for kv, right_kv in zip(layer, right, strict=True):
            torch.testing.assert_close(kv, right_kv)
    assert cache_length(new_kvs) == 6, "the cache that was handed in is left as it was"


# ---- the whole


class Nearly(SelfDraft):
    def get_probs(self, context):
        q = super().get_probs(context)
        return q + rows(1e-13, -1e-13)[0]


MADE = {  # good, bad, one-hot, with zeros, equal, nearly equal
    "equal": lambda target: SelfDraft(target, 2),
    "nearly": lambda target: Nearly(target, 2),
    "worst": lambda target: WorstDraft(target, 2),
    "random": lambda target: random_draft(2),
    "zeros": lambda target: TableDraft([[0.0, 1.0], [0.5, 0.5]]),
}


@pytest.mark.parametrize(
    "K, name",  # where p and q differ by rounding, each guess may be rejected: most of the paths
    [
        pytest.param(K, name, marks=wide)
        for K in (1, 2, 3)
        for name in MADE
        for wide in [pytest.mark.wide if K > 1 and name in ("equal", "nearly") else ()]
    ]
    + [(4, "worst"), pytest.param(4, "random", marks=pytest.mark.wide)],
)
def test_the_joint_distribution_of_whole_texts_is_the_targets_own(K, name):
    """Several rounds, every kind of draft."""
    target, n = from_memory(toy_target(2, 8, seed=1)), 4 if K < 4 else 5
    draft = MADE[name](target)
    assert off(speculative_generate, target, draft, n, K=K) < 1e-12


def test_the_joint_distribution_is_the_targets_across_a_restart():
    target = from_memory(toy_target(2, 4, seed=2))
    assert off(speculative_generate, target, random_draft(2), 5, K=3) < 1e-12


def test_lossless_with_other_lengths():
    check_lossless(speculative_generate, n=2, K=4)
    check_lossless(speculative_generate, n=4, K=1)


MANY = pytest.param(2000, marks=pytest.mark.slow)


@pytest.mark.parametrize("cases", [20, pytest.param(60, marks=pytest.mark.wide), MANY])
def test_greedy_equality_on_a_fixed_sample_of_random_cases(cases):
    check_greedy(speculative_generate, cases=cases, seed=1)


def float32_case(case):
    """One greedy text both ways in float32: None if equal, else the best logits' distance there."""
    generator = torch.Generator().manual_seed(case)
    n_prompt, K, n = (int(torch.randint(1, m, (1,), generator=generator)) for m in (13, 13, 25))
    prompt = torch.randint(7, (n_prompt,), generator=generator).tolist()[-8:]
    target = copy.deepcopy(toy_target(7, 8, seed=case % 5)).float()
    even, same = TableDraft(torch.full((7, 7), 1 / 7)), SelfDraft(target, len(prompt))
    draft = (random_draft(7), even, same, WorstDraft(target, len(prompt)))[case % 4]
    plain = autoregressive_generate(target, prompt, n, Sampling(0)).tokens
    fast = speculative_generate(target, draft, prompt, n, K, Sampling(0)).tokens
    assert len(plain) == len(fast) == n
    for i in range(n):
        if plain[i] != fast[i]:
            best = same.logits(prompt + plain[:i]).topk(2).values
            return float(best[0] - best[1])
    return None


@pytest.mark.two_ways
@pytest.mark.parametrize("cases", [24, MANY])
def test_greedy_equality_in_float32_on_a_fixed_sample(cases):
    distances = [float32_case(case) for case in range(cases)]
    assert all(distance < 1e-4 for distance in distances if distance is not None)


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_text_of_three_windows_has_the_length_asked_for_and_no_draft_crosses_the_border(
    temperature,
):
    target = toy_target(7, 8)
    made = speculative_generate(
        target, random_draft(7), [1] * 11, 24, 5, Sampling(temperature), RandomSource(1)
    )
    assert len(made.tokens) == 24 == sum(len(r.emitted) for r in made.rounds)
    assert all(r.position + 1 + len(r.candidates) <= 8 for r in made.rounds)


@functools.cache
def real_models():
    corpus = load_corpus()
    target, tokenizer = checkpoint.load()
    tokens, val_tokens = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    return target, BigramDraftModel(tokens, 65), val_tokens.tolist()


@pytest.mark.two_ways
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.wide) for seed in (1, 2))]
)
def test_greedy_in_float32_differs_only_where_the_two_best_logits_are_close(seed):
    target, draft, val = real_models()
    prompt, n = val[1000 * seed : 1000 * seed + 20], 100
    plain = autoregressive_generate(target, prompt, n, Sampling(0))
    fast = speculative_generate(target, draft, prompt, n, 4, Sampling(0))
    if plain.tokens != fast.tokens:
        i = next(i for i in range(n) if plain.tokens[i] != fast.tokens[i])
        text = (prompt + plain.tokens)[: len(prompt) + i]
        best = SelfDraft(target, len(prompt)).logits(text).topk(2).values
        assert best[0] - best[1] < 1e-4


def test_measured_alpha_of_the_bigram_is_the_overlap_of_p_and_q():
    target, draft, val = real_models()
    made = speculative_generate(target, draft, val[:20], 600, 4, rng=RandomSource(0))
    overlaps, accepted = [], 0
    for r in made.rounds:
        for i in range(r.n_examined):
            overlaps.append(float(torch.minimum(r.target_probs[i], r.draft_probs[i]).sum()))
        accepted += r.n_accepted
    error = math.sqrt(sum(a * (1 - a) for a in overlaps)) / len(overlaps)
    assert made.alpha == pytest.approx(accepted / len(overlaps))
    assert abs(made.alpha - sum(overlaps) / len(overlaps)) < 2 * error
    assert 0.3 < made.alpha < 0.6


def test_the_statistics_of_a_generation_without_drafts_are_nan():
    made = autoregressive_generate(toy_target(7, 8), [1], 3)
    assert math.isnan(made.alpha) and math.isnan(made.acceptance_rate)
