"""The rules for trees and blocks lose nothing, and keep what theory says; the wrong ones do not."""

import dataclasses
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import texts
import torch

from nanogpt.course.chapter_17 import largest_flow, least_cut
from nanogpt.drafts.grown import Grown
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.decoders import tree_decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import TableDraft, from_memory, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, accept_reject, residual, speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.rules import accept_blockwise, accept_traversal, accept_tree, prefix_chances
from nanogpt.trees.tree import Tree

RULES = (accept_tree, accept_traversal)
SIBLINGS = ("with", "without", "fixed")
SAMPLINGS = (Sampling(0.5), Sampling(top_k=2), Sampling(top_p=0.7))


def seeds(few, many):
    """A parameter: the first few in every run, the others wide."""
    more = (pytest.param(seed, marks=pytest.mark.wide) for seed in range(few, many))
    return pytest.mark.parametrize("seed", [*range(few), *more])


block = functools.partial(speculative_generate, steps=replace(CHAIN, accept=accept_blockwise))


def off(generate, n, K, sampling=Sampling(), V=3, prompt=(0, 1), fused=False):
    """Total variation between a decoder's n tokens and the target's own, by enumeration."""
    own = from_memory(toy_target(V, 8, seed=1))
    target = FusedLanguageModel(own) if fused else own
    return texts.off(generate, target, random_draft(V), n, sampling, prompt, own, K=K)


@pytest.mark.pairs
@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize(
    ("widths", "n", "V"), [((2, 1), 3, 2), ((2, 2), 3, 2), ((3,), 2, 3)], ids=str
)
def test_trees_lose_nothing(accept, siblings, widths, n, V):
    assert off(tree_decoder(siblings, widths, accept=accept), n, len(widths), V=V) < 1e-12


# Drawn with replacement, a tree of three depths has as many paths as all the others together.
@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize(
    "siblings", ["without", "fixed", pytest.param("with", marks=pytest.mark.wide)]
)
def test_trees_of_three_depths_lose_nothing(accept, siblings):
    assert off(tree_decoder(siblings, (2, 1, 1), accept=accept), 4, 3, V=2) < 1e-12


@pytest.mark.pairs
@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [((2, 1), 2, 3), ((2, 2), 3, 2)], ids=str)
def test_trees_lose_nothing_under_temperature_and_filters(accept, siblings, sampling, shape):
    widths, n, V = shape
    assert off(tree_decoder(siblings, widths, accept=accept), n, 2, sampling, V=V) < 1e-12


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_trees_lose_nothing_over_a_restart_nor_on_the_fused_target(siblings):
    """The window is 8: a prompt of 7 fills it with the second token."""
    prompt = (0, 1, 0, 0, 1, 1, 0)
    assert off(tree_decoder(siblings, (2, 1)), 4, 2, V=2, prompt=prompt) < 1e-12
    assert off(tree_decoder(siblings, (2, 1)), 3, 2, V=2, fused=True) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize("siblings", SIBLINGS)
def test_larger_trees_lose_nothing(accept, siblings):
    assert off(tree_decoder(siblings, (2, 1), accept=accept), 3, 2) < 1e-12
    assert off(tree_decoder(siblings, (2, 1, 1), accept=accept), 4, 3, V=2) < 1e-12
    if siblings != "with":
        assert off(tree_decoder(siblings, (2, 2), accept=accept), 3, 2) < 1e-12


@pytest.mark.parametrize(("n", "K", "V"), [(2, 1, 3), (3, 2, 3), (4, 3, 2), (5, 4, 2)])
def test_blocks_lose_nothing(n, K, V):
    assert off(block, n, K, V=V) < 1e-12


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_blocks_lose_nothing_under_temperature_and_filters(sampling):
    assert off(block, 3, 2, sampling) < 1e-12
    assert off(block, 4, 3, sampling, V=2) < 1e-12


def test_blocks_lose_nothing_over_a_restart_nor_on_the_fused_target():
    assert off(block, 4, 3, V=2, prompt=(0, 1, 0, 0, 1, 1, 0)) < 1e-12
    assert off(block, 4, 3, V=2, fused=True) < 1e-12


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


P, Q = row(0.5, 0.3, 0.2), row(0.2, 0.2, 0.6)  # a toy of one token


def drawn(siblings, rng, k=2, q=Q):
    """A tree of k siblings, and nothing below."""
    picked = Grown(TableDraft(torch.stack([q] * len(q))), [k], siblings).pick(q, k, Sampling(), rng)
    return Tree([t for t, _ in picked], [-1] * len(picked), torch.stack([r for _, r in picked]))


def first_token(make_tree, rule, p=P):
    """(acceptance, total variation) of the first token, by enumeration."""

    def program(rng):
        tree = make_tree(rng)
        path, token = rule(tree, torch.stack([p] * (len(tree.tokens) + 1)), rng)
        return (tree.tokens[path[0]] if path else token), bool(path)

    seen = enumerate_outcomes(program)
    tokens = {x: seen.get((x, True), 0) + seen.get((x, False), 0) for x in range(len(p))}
    accepted = sum(chance for (_, kept), chance in seen.items() if kept)
    return accepted, total_variation(tokens, dict(enumerate(p.tolist())))


def one_hot(tree):
    """The same siblings, as if they had not been drawn."""
    eye = torch.eye(tree.q.shape[1], dtype=torch.float64)
    return dataclasses.replace(tree, q=eye[tree.tokens])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("siblings", "k", "kept"), [
    ("without", 1, 0.600), ("with", 2, 0.760), ("without", 2, 0.900), ("fixed", 2, 0.700),
])  # fmt: skip
def test_how_much_each_kind_of_siblings_keeps(rule, siblings, k, kept):
    accepted, distance = first_token(lambda rng: drawn(siblings, rng, k), rule)
    assert accepted == pytest.approx(kept, abs=1e-12) and distance < 1e-12


@pytest.mark.parametrize(("siblings", "kept"), [("with", 0.456), ("without", 0.620)])
def test_the_one_hot_rule_is_exact_for_drawn_siblings_and_keeps_less(siblings, kept):
    accepted, distance = first_token(lambda rng: one_hot(drawn(siblings, rng)), accept_tree)
    assert accepted == pytest.approx(kept, abs=1e-12) and distance < 1e-12


def told(rows_of):
    """accept_tree, told these rows as q; none of them is checked."""

    def rule(tree, p, rng):
        left = p[0].numpy()
        for token, q in zip(tree.tokens, rows_of(tree), strict=True):
            if rng.bernoulli(min(1.0, left[token] / q[token])):
                return [tree.tokens.index(token)], 0
            left = residual(left, q)
        return [], rng.categorical(left)

    return rule


def whole(tree):
    return [Q.numpy()] * 2


def zeroed(tree):
    return [Q.numpy(), np.where(np.arange(3) == tree.tokens[0], 0, Q.numpy())]


def softmax_of_top(tree):
    """As if drawn without replacement from the two likeliest tokens, c and a."""
    return [np.array([0.25, 0, 0.75]), np.array([1.0, 0, 0])]


def without_from_all(tree):
    return [Q.numpy(), np.array([0.5, 0.5, 0])]


@pytest.mark.parametrize(("siblings", "rows_of", "distance"), [
    ("without", zeroed, 0.100),
    ("without", whole, 0.100),
    ("fixed", softmax_of_top, 1 / 6),
    ("fixed", without_from_all, 0.300),
])  # fmt: skip
def test_how_far_off_a_wrong_q_is(siblings, rows_of, distance):
    accepted, got = first_token(lambda rng: drawn(siblings, rng), told(rows_of))
    assert got == pytest.approx(distance, abs=1e-12)
    if rows_of is zeroed:
        assert accepted == pytest.approx(1.0), "it reads as perfect"


def test_skipped_duplicates_are_off():
    def skips(tree, p, rng):
        kept = 1 if tree.tokens[0] == tree.tokens[1] else 2
        return accept_tree(Tree(tree.tokens[:kept], tree.parents[:kept], tree.q[:kept]), p, rng)

    _, distance = first_token(lambda rng: drawn("with", rng), skips)
    assert distance == pytest.approx(0.040, abs=1e-12)


def bound(sets, p=P):
    """The most that any exact rule keeps: of a flow from the sets of drafts to their tokens."""
    tokens = range(len(p))
    every = itertools.chain.from_iterable(itertools.combinations(tokens, n) for n in range(4))
    return min(
        1 + float(p[list(H)].sum()) - sum(x for drafts, x in sets.items() if drafts <= set(H))
        for H in every
    )


@pytest.mark.parametrize(("siblings", "most"), [("with", 0.840), ("without", 1.0), ("fixed", 0.7)])
def test_the_bound(siblings, most):
    sets = enumerate_outcomes(lambda rng: frozenset(drawn(siblings, rng).tokens))
    assert bound(sets) == pytest.approx(most, abs=1e-12)
    assert least_cut(sets, P.tolist())[0] == pytest.approx(most, abs=1e-12)


@seeds(5, 20)
def test_the_flow_that_chapter_17_draws_is_the_least_cut(seed):
    """Any sets of guesses, any p: nothing overflows, and no more than the cut's could flow."""
    generator, V = np.random.default_rng(seed), 4
    p, sets = generator.dirichlet(np.ones(V)), {}
    for n in (1, 2, 3):
        for tokens in itertools.combinations(range(V), n):
            if generator.random() < 0.5:
                sets[frozenset(tokens)] = generator.exponential()
    sets = {tokens: x / sum(sets.values()) for tokens, x in sets.items()}
    flow, (most, H) = largest_flow(sets, p), least_cut(sets, p)
    assert most == pytest.approx(sum(flow.values()), abs=1e-9)
    assert most == pytest.approx(sum(p[x] for x in H) + sum(sets[s] for s in sets if s - H))
    assert min(flow.values()) > -1e-12 and all(token in tokens for tokens, token in flow)
    for x in range(V):
        assert sum(a for (_, token), a in flow.items() if token == x) <= p[x] + 1e-9
    for tokens, x in sets.items():
        assert sum(a for (s, _), a in flow.items() if s == tokens) <= x + 1e-9


def test_k_seq_keeps_more_than_one_after_the_other():
    """SpecTr's rule (Sun et al. 2023): two tries with p / ρ in the place of p."""
    p, q, k = P.numpy(), Q.numpy(), 2
    low, high = 1.0, 2.0
    for _ in range(60):
        rho = (low + high) / 2
        beta = np.minimum(q, p / rho).sum()
        low, high = (rho, high) if 1 - (1 - beta) ** k > rho * beta else (low, rho)
    kept = 1 - (1 - beta) ** k

    def rule(tree, _, rng):
        for i, token in enumerate(tree.tokens):
            if rng.bernoulli(min(1.0, p[token] / (rho * q[token]))):
                return [i], 0
        left = (p - np.minimum(q, p / rho) * kept / beta).clip(0)
        return [], rng.categorical(left / left.sum())

    accepted, distance = first_token(lambda rng: drawn("with", rng), rule)
    assert rho == pytest.approx(1.463, abs=5e-4) and distance < 1e-12
    assert accepted == pytest.approx(kept) == pytest.approx(0.785, abs=5e-4)


def judged(rule, p, q, K):
    """{emitted: probability} of a round of K guesses, the same p and q everywhere."""
    rows = torch.stack([p] * (K + 1)), torch.stack([q] * K)
    return enumerate_outcomes(
        lambda rng: tuple(rule([rng.categorical(q) for _ in range(K)], rows[1], rows[0], rng))
    )


def accepted_in(outcomes):
    return sum(chance * (len(emitted) - 1) for emitted, chance in outcomes.items())


THIRDS = row(1 / 3, 2 / 3), row(2 / 3, 1 / 3)


def completed(outcomes, p, n):
    """The texts of n tokens that the rounds begin, the rest drawn from p."""
    texts = {}
    for emitted, chance in outcomes.items():
        for rest in itertools.product(range(len(p)), repeat=n - len(emitted)):
            text, weight = (*emitted, *rest), chance * float(np.prod(p.numpy()[list(rest)]))
            texts[text] = texts.get(text, 0.0) + weight
    return texts


def own(p, n):
    texts = itertools.product(range(len(p)), repeat=n)
    return {text: float(np.prod(p.numpy()[list(text)])) for text in texts}


def test_a_block_keeps_more():
    p, q = THIRDS
    assert accepted_in(judged(accept_reject, p, q, 2)) == pytest.approx(10 / 9)
    assert accepted_in(judged(accept_blockwise, p, q, 2)) == pytest.approx(11 / 9)


@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_a_block_never_keeps_less_and_is_exact(K):
    for p, q in (THIRDS, (P, Q)):
        if len(p) ** K > 50:
            continue
        outcomes = judged(accept_blockwise, p, q, K)
        assert accepted_in(outcomes) >= accepted_in(judged(accept_reject, p, q, K)) - 1e-12
        assert total_variation(completed(outcomes, p, K + 1), own(p, K + 1)) < 1e-12


def blocks_of(K, seed, V=3):
    """(its probability, the guesses, q (K, V), p (K+1, V)) of each block of K guesses.

    p and q are drawn anew after every beginning, as a language has them.
    """
    generator = np.random.default_rng(seed)
    rows = {
        begun: torch.from_numpy(generator.dirichlet(np.ones(V), 2))
        for n in range(K + 1)
        for begun in itertools.product(range(V), repeat=n)
    }
    for guesses in itertools.product(range(V), repeat=K):
        p, q = torch.stack([rows[guesses[:n]] for n in range(K + 1)], dim=1)
        yield float(q[range(K), guesses].prod()), list(guesses), q[:K], p


@seeds(2, 5)
def test_the_chance_of_a_prefix_is_how_often_it_is_kept(seed):
    """Of all blocks that begin alike, by enumeration. Their sum is what a block emits."""
    K, kept, chances, tokens, sums = 3, {}, {}, 0.0, 0.0
    for weight, guesses, q, p in blocks_of(K, seed):
        P = prefix_chances(guesses, q, p)
        assert len(P) == K + 1 and P[0] == 1
        one_by_one = (p[range(K), guesses] / q[range(K), guesses]).clip(max=1).cumprod(0).tolist()
        assert all(a >= b - 1e-12 for a, b in zip(P[1:], one_by_one, strict=True))
        sums += weight * sum(P)
        emitted = enumerate_outcomes(
            lambda rng, block=(guesses, q, p): tuple(accept_blockwise(*block, rng))
        )
        for text, chance in emitted.items():
            tokens += weight * chance * len(text)
            for n in range(K + 1):
                begun = tuple(guesses[:n])
                share = weight * chance * (len(text) > n)
                kept[begun] = kept.get(begun, 0.0) + share
                chances[begun] = P[n], float(q[range(n), begun].prod())
    assert tokens == pytest.approx(sums, abs=1e-12)
    for begun, (P_i, drawn_so) in chances.items():
        assert kept[begun] == pytest.approx(P_i * drawn_so, abs=1e-12), begun


@pytest.mark.parametrize("q", [Q, row(0, 1, 0), row(0, 0, 1)])
def test_one_guess_and_sure_guesses_are_judged_alike(q):
    """So the claim that a one-hot q makes a block more conservative is a false alarm."""
    for K in (1, 2) if q.max() == 1 else (1,):
        a, b = (judged(rule, P, q, K) for rule in (accept_reject, accept_blockwise))
        assert total_variation(a, b) < 1e-12


@pytest.mark.parametrize(("wrong", "distance"), [("break", 1 / 3), ("h = P", 1 / 6)])
def test_how_far_off_wrong_blocks_are(wrong, distance):
    p, q = THIRDS

    def rule(candidates, draft_probs, target_probs, rng):
        P_i, kept, shortfall = 1.0, 0, residual(p.numpy(), q.numpy())
        for i, x in enumerate(candidates, start=1):
            P_i = min(1.0, P_i * float(p[x] / q[x]))
            S = (P_i * p.numpy() - q.numpy()).clip(0).sum()
            h = P_i if i == len(candidates) or wrong == "h = P" else S / (S + 1 - P_i)
            if rng.bernoulli(min(1.0, h)):
                kept, shortfall = i, residual(P_i * p.numpy(), q.numpy())
            elif wrong == "break":
                break
        last = p.numpy() if kept == len(candidates) else shortfall
        return [*candidates[:kept], rng.categorical(last / last.sum())]

    texts = completed(judged(rule, p, q, 2), p, 3)
    assert total_variation(texts, own(p, 3)) == pytest.approx(distance)


def test_the_last_draw_without_P_is_invisible_with_two_tokens():
    bug = next(bug for bug in BUGS if bug.number == 41)
    assert off(mutant(bug), 4, 3, V=2) < 1e-12 < 1e-6 < off(mutant(bug), 3, 2)


@seeds(6, 20)
def test_on_a_chain_each_tree_rule_is_its_chain_rule(seed):
    """The same kept and the same drawn, by enumeration, for random p and q."""
    generator, K = np.random.default_rng(seed), 1 + seed % 3
    p, q = (torch.from_numpy(generator.dirichlet(np.ones(3), n)) for n in (K + 1, K))
    candidates = generator.integers(3, size=K).tolist()
    tree = Tree(candidates, list(range(-1, K - 1)), q)

    def emitted(rng, rule):
        path, token = rule(tree, p, rng)
        assert path == list(range(len(path)))
        return (*[candidates[node] for node in path], token)

    for of_trees, of_chains in ((accept_tree, accept_reject), (accept_traversal, accept_blockwise)):
        got = enumerate_outcomes(functools.partial(emitted, rule=of_trees))
        right = enumerate_outcomes(lambda rng, rule=of_chains: tuple(rule(candidates, q, p, rng)))
        assert total_variation(got, right) < 1e-12


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_the_last_leaf_first_keeps_at_least_as_much(siblings):
    target, draft, kept = toy_target(2, 8, seed=1), random_draft(2), []
    for accept in RULES:
        counts = enumerate_outcomes(
            lambda rng, accept=accept: tree_generate(
                *(target, Grown(draft, (2, 1), siblings), [0, 1], 3, Sampling(), rng),
                steps=replace(TREE, accept=accept),
            ).rounds[0].n_accepted
        )  # fmt: skip
        kept.append(sum(n * chance for n, chance in counts.items()))
    assert kept[1] >= kept[0] - 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_bad_trees_are_refused(rule):
    p = torch.stack([P, P])
    with pytest.raises(ValueError, match=r"token 1 of node 0 has q = 0"):
        rule(Tree([1], [-1], row(1, 0, 0)[None]), p, RandomSource(0))
    with pytest.raises(ValueError, match="sum to 1 within"):
        rule(Tree([0], [-1], row(1, 1, 0)[None]), p, RandomSource(0))
    with pytest.raises(ValueError, match="negative number or NaN"):
        rule(Tree([0], [-1], Q[None]), p * float("nan"), RandomSource(0))


def test_a_bad_block_is_refused():
    with pytest.raises(ValueError, match=r"candidate 1 at index 0 has q = 0"):
        accept_blockwise([1], row(1, 0, 0)[None], torch.stack([P, P]), RandomSource(0))
    for p, q in ((torch.stack([P, 2 * P]), Q[None]), (torch.stack([P, P]), 2 * Q[None])):
        with pytest.raises(ValueError, match="sum to 1 within"):
            accept_blockwise([0], q, p, RandomSource(0))
        with pytest.raises(ValueError, match="sum to 1 within"):
            prefix_chances([0], q, p)
