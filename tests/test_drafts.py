"""The better drafts: what they guess, and that they are lossless under the whole test bench."""

import collections
import copy
import itertools
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import load_tree
from series import module_of
from texts import off

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer, get_batch, load_corpus, train_val_split
from nanogpt.drafts import ngram, transformer
from nanogpt.drafts.learning import NetStudent
from nanogpt.drafts.lookup import PromptLookupDraft, SuffixDraft, WideLookupDraft
from nanogpt.drafts.ngram import (
    NGramAutomaton,
    NGramDraft,
    answering,
    count_ngrams,
    distil_ngrams,
    fit_rows,
    largest_overlap,
)
from nanogpt.drafts.shipped import BEST, DRAFTS
from nanogpt.drafts.transformer import TransformerDraft, common_prefix, window_start
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.bench import RULES
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.checks import CHECKS
from nanogpt.proof.toys import SelfDraft, random_draft, toy_pairs, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, draft_tokens, speculative_generate
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.train import make_optimizer, train

MAKE_DRAFTS = DATA_DIR / "make_drafts.py"


def some_text(V, n=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(V, (n,), generator=generator) * torch.randint(2, (n,), generator=generator)


MAKERS = {
    "counts": lambda V: count_ngrams(some_text(V), V, order=3),
    "automaton": lambda V: counted_automaton(V),
    "lookup": PromptLookupDraft,
    "suffix": SuffixDraft,
    "mixed": lambda V: SuffixDraft(V, least=3, otherwise=random_draft(V)),
    "transformer": lambda V: TransformerDraft(toy_target(V, 6, seed=5)),
}


@pytest.mark.parametrize(
    "make, check",
    [  # the enumerations are long: one draft that copies or counts, and one that computes
        pytest.param(
            *(make, check),
            marks=pytest.mark.wide
            if check == "exact" and name not in ("mixed", "transformer")
            else (),
            id=f"{name}-{check}",
        )
        for name, make in MAKERS.items()
        for check in ("exact", "greedy", "cache", "accounting", "support")
    ],
)
def test_a_draft_is_lossless(make, check):
    """Acceptance is left out: it asks for a draft that is the target."""

    def generate(target, draft, *args, **kwargs):
        return speculative_generate(target, make(target.config.vocab_size), *args, **kwargs)

    CHECKS[check](generate)


# ---- n-grams


def witten_bell(text, context, V):
    """q after `context` by the definition, recursively: no tables, no keys."""
    parent = witten_bell(text, context[1:], V) if context else [1 / V] * V
    n = len(context)
    followers = collections.Counter(
        text[i + n] for i in range(len(text) - n) if text[i : i + n] == context
    )
    if not followers:
        return parent
    total, u = sum(followers.values()), len(followers)
    return [(followers[x] + u * parent[x]) / (total + u) for x in range(V)]


# Tables are made in float32, whose sums differ between processors, so they are compared to 1e-4.


@pytest.mark.parametrize("order", [0, 1, 2, 4])
def test_counts_back_off_as_witten_and_bell_say(order):
    text = some_text(4, 60)
    draft = count_ngrams(text, 4, order)
    for context in ([], [0], [3, 1], [0, 0, 0, 0, 0], [1, 2, 3, 0], text[:9].tolist()):
        expected = witten_bell(text.tolist(), context[len(context) - min(order, len(context)) :], 4)
        torch.testing.assert_close(
            draft.get_probs(context), torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=0
        )


def some_tree(V, n, order):
    """`parents` and `tokens` of the tree that count_ngrams makes of some_text(V, n)."""
    text = some_text(V, n).numpy()[None]
    contexts = [
        np.unique(ngram.context_keys(text[:, :-1], length, V)) for length in range(order + 1)
    ]
    return [x.tolist() for x in ngram.link(contexts, V)]


def test_more_smoothing_leaves_more_to_the_shorter_context():
    text = torch.tensor([0, 1, 0, 1, 0, 1, 2, 2, 2])
    sharp, soft = (count_ngrams(text, 3, 1, smoothing).get_probs([0]) for smoothing in (0.1, 10))
    assert sharp[1] > soft[1]


def counted_automaton(V, n=400, order=3):
    """The tree of count_ngrams, followed forwards."""
    draft = count_ngrams(some_text(V, n), V, order)
    return NGramAutomaton(*map(np.array, some_tree(V, n, order)), draft.table)


BENT = [Sampling(0.7), Sampling(0.7, top_p=0.9), Sampling(top_k=2), Sampling(1.5, 3, 0.8)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0), *BENT], ids=str)
@pytest.mark.parametrize("order", [0, 1, 3, 5])
def test_a_chain_is_what_one_guess_after_another_makes(order, sampling):
    """The same tokens and q after any context, bit by bit where q is as it is; K = 0 makes none."""
    draft = counted_automaton(4, 200, order)
    rng, off = np.random.default_rng(0), 0 if sampling == Sampling() else 1e-12
    for seed in range(100):
        context = rng.integers(4, size=seed % 12).tolist()
        request = context, seed % 9, sampling
        one = draft_tokens(draft, *request, RandomSource(seed))
        other = draft.draw(*request, RandomSource(seed))
        assert one[0] == other[0], context
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=off)
        assert other[1].shape == (seed % 9, 4) and other[1].dtype == torch.float64


def test_a_row_is_bent_as_a_sampling_bends_it():
    """Also where probabilities are equal or 0, and where the temperature leaves only the best."""
    rng, settings = np.random.default_rng(0), itertools.product
    for T, k, top_p in settings((0.001, 0.3, 1, 1.5), (None, 1, 3, 30), (None, 0.311, 0.977, 1.0)):
        for equal in (False, True):
            q = rng.dirichlet(np.ones(20) * 0.3)
            q = np.append(np.round(9 * q) if equal else q, 1)  # whole numbers: many are the same
            got = ngram.bent(q / q.sum(), Sampling(float(T), k, top_p))
            right = Sampling(float(T), k, top_p).of_probs(torch.from_numpy(q / q.sum()))
            np.testing.assert_allclose(got / got.sum(), right, rtol=0, atol=1e-12)


def test_a_greedy_draft_follows_the_longest_context_that_it_knows():
    parents, tokens = some_tree(4, 200, 3)
    best = np.random.default_rng(0).integers(4, size=len(parents))
    draft, known = ngram.GreedyAutomaton(*map(np.array, (parents, tokens)), best, 4), {}
    known = {context: best[node] for context, node in contexts_in(parents, tokens).items()}
    for seed in range(100):
        text = np.random.default_rng(seed).integers(4, size=seed % 9).tolist()
        guesses, q = draft.draw(text, 5, Sampling(0), RandomSource(0))
        for guess, row in zip(guesses, q, strict=True):
            ends = (tuple(text[i:]) for i in range(len(text) + 1))
            assert guess == next(known[end] for end in ends if end in known)
            assert row.tolist() == draft.get_probs(text).tolist() == np.eye(4)[guess].tolist()
            text.append(guess)
    assert draft.draw([0], 0, Sampling(0), RandomSource(0))[1].shape == (0, 4)


def test_contexts_vote_and_one_that_says_what_a_shorter_one_says_is_left_out():
    """By hand, from the third token on: 1 comes most often, after 3 come 0 and 1, after 2 one 3."""
    texts = np.array([[1, 1, 2, 3, 0], [0, 3, 1, 0, 1], [1, 1, 1, 1, 1]], dtype=np.uint8)
    believed = {b"": 0, bytes([0]): 2, bytes([4]): 3}
    kept = module_of(MAKE_DRAFTS).vote(texts, 2, order=1, least=2, best=believed)
    assert kept == {b"": 1, bytes([3]): 0, bytes([4]): 3}  # of 2 there is too little


def pruned_automaton(nodes=25):
    """A tree that lacks the beginnings of some contexts that it has: 2 0 without 2, say."""
    parents, tokens, means = distil_ngrams(*samples(), order=4, nodes=nodes, least=1)
    return NGramAutomaton(parents, tokens, torch.from_numpy(means))


def contexts_in(parents, tokens):
    """{context: node} of a tree, by walking the edges one by one."""
    known = [()]
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        known.append((int(token), *known[parent]))
    return {context: node for node, context in enumerate(known)}


def test_a_chain_follows_contexts_whose_beginnings_the_tree_does_not_know():
    """What was read of a context before its last token must not be forgotten."""
    draft = pruned_automaton()
    parents, tokens, _ = distil_ngrams(*samples(), order=4, nodes=25, least=1)
    known = contexts_in(parents, tokens)
    assert any(context[:-1] not in known for context in known), "a tree with such contexts"
    rng = np.random.default_rng(0)
    for seed in range(300):
        context = rng.integers(4, size=seed % 9).tolist()
        candidates, q = draft.draw(context, 6, Sampling(), RandomSource(seed))
        for i, row in enumerate(q):
            assert torch.equal(row, draft.get_probs(context + candidates[:i])), context


def confident(V, least, order=2):
    """A counted tree whose rows have alphas of their own."""
    draft, tree = count_ngrams(some_text(V, 60), V, order), some_tree(V, 60, order)
    alphas = np.random.default_rng(1).uniform(0.4, 1.0, len(draft.table))
    return NGramAutomaton(*map(np.array, tree), draft.table, alphas, least)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9)], ids=str)
@pytest.mark.parametrize("least", [0.0, 0.3, 0.6, 1.0])
def test_a_chain_stops_before_the_guess_that_would_make_the_whole_too_unlikely(least, sampling):
    """The same guesses from the same seed, only fewer: as many as the alphas by hand say."""
    whole, draft = confident(3, 0.0), confident(3, least)
    lengths = set()
    for seed in range(60):
        context = np.random.default_rng(seed).integers(3, size=seed % 5).tolist()
        tokens, q = whole.draw(context, 6, sampling, RandomSource(seed))
        fewer, rows = draft.draw(context, 6, sampling, RandomSource(seed))
        joint, right = 1.0, 0
        for i in range(6):
            joint *= whole.alphas[whole.node(context + tokens[:i])]
            if i and joint < least:
                break
            right += 1
        assert fewer == tokens[:right] and torch.equal(rows, q[:right])
        lengths.add(right)
    assert lengths == {6} if least == 0 else 1 <= min(lengths) < 6
    assert draft.draw([0], 0, Sampling(), RandomSource(0))[0] == []


@pytest.mark.parametrize("sampling", BENT, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_chain_of_bent_rows_is_exact_over_a_restart(rule, sampling):
    toy, draft = toy_target(3, 4, seed=2), counted_automaton(3, 60, 2)
    how = {"prompt": [0, 1, 2], "K": 2, "steps": replace(CHAIN, accept=RULES[rule])}
    assert off(speculative_generate, toy, draft, 4, sampling, **how) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9)], ids=str)
def test_a_chain_that_stops_by_its_rows_is_exact(rule, form, sampling):
    toy, draft = toy_target(2, 4, seed=2), confident(2, 0.5)
    target, drafted = TARGETS[form](toy), set()
    how = {"own": toy, "K": 3, "steps": replace(CHAIN, accept=RULES[rule])}
    how["look"] = lambda made: drafted.update(len(r.candidates) for r in made.rounds)
    assert off(speculative_generate, target, draft, 4, sampling, **how) < 1e-12
    assert {1, 2} <= drafted


def test_a_row_alpha_is_its_mean_overlap_and_few_places_are_not_many():
    tokens, probs = samples()
    parts = distil_ngrams(tokens, probs, order=3, nodes=12, least=1)
    rows, node = fit_rows(*parts, tokens, probs), answering(*parts[:2], tokens, 4)
    alphas = ngram.row_alphas(*parts[:2], rows, tokens, probs)
    shared = np.minimum(probs, rows[node]).sum(-1)
    for i in range(len(rows)):
        here = shared[node == i]
        right = (here.sum() + 8 * shared.mean()) / (len(here) + 8)
        assert alphas[i] == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan")])
def test_no_chance_lies_outside_0_to_1(least):
    with pytest.raises(ValueError, match="a chance is in"):
        ngram.load(least=least)


def test_contexts_may_be_longer_than_64_bits_can_number():
    """Of 4 tokens, 31 fit into them as one number; here they are as long as the text repeats."""
    text = np.array([some_text(4, 40).tolist() * 5])
    probs = np.random.default_rng(0).dirichlet(np.ones(4), (1, text.shape[1] - 1))
    parents, tokens, means = distil_ngrams(text, probs, order=60, nodes=10**6, least=2)
    longest = max(map(len, contexts_in(parents, tokens)))
    assert longest == 60, "the text of 40 comes five times, so any 60 come twice and more"
    draft = NGramAutomaton(parents, tokens, torch.from_numpy(means))
    for end in range(100, 110):
        context = text[0, :end].tolist()
        candidates, q = draft.draw(context, 6, Sampling(), RandomSource(end))
        for i, row in enumerate(q):
            assert torch.equal(row, draft.get_probs(context + candidates[:i]))
    here = text[0, :-1].tolist()  # p after a context of 60, by hand: the mean, its parent once more
    node, deep = contexts_in(parents, tokens), tuple(here[100:160])
    places = [i for i in range(60, len(here) + 1) if tuple(here[i - 60 : i]) == deep]
    own = probs[0, [i - 1 for i in places]].sum(0) + means[node[deep[1:]]]
    np.testing.assert_allclose(means[node[deep]], own / (len(places) + 1), atol=1e-4)


def test_the_shipped_trees_chains_are_drawn_from_what_it_says_of_each_context():
    text = checkpoint.load()[1].encode((DATA_DIR / "stand_in.txt").read_text())
    draft = ngram.load()
    for seed in range(50):
        context = text[37 * seed :][: 1 + seed % 20]
        candidates, q = draft.draw(context, 8, Sampling(), RandomSource(seed))
        for i, row in enumerate(q):
            assert torch.equal(row, draft.get_probs(context + candidates[:i])), context


def test_the_shipped_tree_takes_little():
    tracemalloc.start()
    _tree = load_tree()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 66e6 < held < 110e6  # bytes; 254,597 rows of 65 float32 are 66e6


def test_a_chain_of_the_largest_uniforms_stays_inside_the_vocabulary():
    """Rows may sum to a little less than 1 by rounding; what is drawn is a share of their sum."""
    V, largest = 50, SimpleNamespace(random=lambda: 1 - 2**-53)
    parents, tokens = np.zeros(V + 1, int), np.r_[0, :V]  # a context for each token
    rows = np.random.default_rng(0).dirichlet(np.ones(V), V + 1)
    draft = NGramAutomaton(parents, tokens, torch.from_numpy(rows))
    assert (rows.cumsum(-1)[:, -1] < 1).any()
    for x, sampling in itertools.product(range(V), (Sampling(), Sampling(0.7))):
        assert draft.draw([x], 2, sampling, RandomSource(0, largest))[0] == [V - 1, V - 1]


def test_a_tree_that_is_made_in_inference_mode_is_no_other():
    with torch.inference_mode():
        draft = counted_automaton(4)
    made = draft_tokens(draft, [1], 5, Sampling(), RandomSource(1))
    assert made[0] == draft_tokens(counted_automaton(4), [1], 5, Sampling(), RandomSource(1))[0]


def test_an_order_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="do not fit into 64 bits"):
        count_ngrams(some_text(65), 65, 10)
    with pytest.raises(ValueError, match="nodes is 0"):
        distil_ngrams(*samples(), order=2, nodes=0)


def samples(V=4, texts=8, length=60):
    target = toy_target(V, 64, seed=2)
    tokens = torch.stack([some_text(V, length, seed) for seed in range(texts)])
    with torch.no_grad():
        probs = Sampling().probs(target(tokens[:, :-1])[0])
    return tokens.numpy(), probs.numpy()


def test_a_distilled_row_is_the_mean_of_the_targets_p():
    tokens, probs = samples()
    parents, edges, means = distil_ngrams(tokens, probs, order=2, nodes=10_000, least=1)
    draft = NGramDraft(parents, edges, torch.from_numpy(means).double())
    root = probs.mean((0, 1))
    np.testing.assert_allclose(draft.get_probs([]).numpy(), root, atol=1e-4)
    here = tokens[:, :-1] == 2
    one = (probs[here].sum(0) + root) / (here.sum() + 1)  # the parent counts as one more
    np.testing.assert_allclose(draft.get_probs([2]).numpy(), one, atol=1e-4)
    pair = (tokens[:, :-2] == 0) & (tokens[:, 1:-1] == 2)
    two = (probs[:, 1:][pair].sum(0) + one) / (pair.sum() + 1)
    np.testing.assert_allclose(draft.get_probs([3, 0, 2]).numpy(), two, atol=1e-4)


def test_a_context_that_occurs_as_often_as_asked_is_looked_at():
    """By hand: context 7 comes twice, 5 three times, 9 once."""
    keys = np.array([7, 5, 9, 5, 7, 5, -1, -1, -1])  # below 0: no context, however often
    probs = np.array(
        [[1.0, 0], [0, 1.0], [1.0, 0], [0.5, 0.5], [0, 1.0], [1.0, 0], *[[1.0, 0]] * 3]
    )
    for least, contexts, means in (
        (1, [5, 7, 9], [[0.5, 0.5], [0.5, 0.5], [1, 0]]),
        (2, [5, 7], [[0.5, 0.5], [0.5, 0.5]]),
        (3, [5], [[0.5, 0.5]]),
        (4, [], np.zeros((0, 2))),
    ):
        here, mean, counts = ngram.mean_probs(keys, probs, least)
        assert here.tolist() == contexts and counts.tolist() == [3, 2, 1][: len(contexts)]
        np.testing.assert_allclose(mean, means, atol=1e-4)


def test_a_frequent_context_that_is_a_little_off_buys_more_than_a_rare_one_that_is_far_off():
    """40 places after 0, 2 after 1: by hand 40 · .042 = 1.7 acceptances against 2 · .57 = 1.1."""
    text = np.array([[0] * 20 + [1] + [0] * 20 + [1, 0]])
    after = {0: [0.7, 0.2, 0.1], 1: [0.0, 0.0, 1.0]}
    probs = np.array([[after[token] for token in text[0, :-1].tolist()]])
    parents, tokens, _ = distil_ngrams(text, probs, order=1, nodes=2, least=1)
    assert contexts_in(parents, tokens) == {(): 0, (0,): 1}


def test_pruning_keeps_what_buys_most_and_its_parents():
    tokens, probs = samples()
    full = distil_ngrams(tokens, probs, order=3, nodes=10_000, least=1)
    few = distil_ngrams(tokens, probs, order=3, nodes=9, least=1)
    assert 9 <= len(few[0]) <= 9 + 2 * 9 < len(full[0])
    assert (few[0][1:] < np.arange(1, len(few[0]))).all(), "a parent comes before its children"

    def overlap(parts):
        draft = NGramDraft(*parts[:2], torch.from_numpy(parts[2]).double())
        q = [[draft.get_probs(t[: i + 1].tolist()).numpy() for i in range(59)] for t in tokens]
        return np.minimum(probs, np.array(q)).sum(-1).mean()

    root_only = np.minimum(probs, probs.mean((0, 1))).sum(-1).mean()
    assert root_only < overlap(few) < overlap(full)


def test_a_place_is_answered_by_the_longest_context_that_the_tree_knows():
    tokens, probs = samples()
    parents, edges, _ = distil_ngrams(tokens, probs, order=3, nodes=30, least=1)
    contexts = contexts_in(parents, edges)
    found = answering(parents, edges, tokens, 4)
    assert found.shape == (8, 59)
    for text, nodes in zip(tokens.tolist(), found.tolist(), strict=True):
        for i, node in enumerate(nodes):
            ends = [tuple(text[start : i + 1]) for start in range(i + 2)]
            assert node == next(contexts[end] for end in ends if end in contexts)


def mean_overlap(p, q):
    return np.minimum(p, q).sum(-1).mean()


def test_no_row_overlaps_more_than_the_one_of_largest_overlap():
    generator = np.random.default_rng(0)
    by_hand = [[[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]]
    np.testing.assert_allclose(largest_overlap(np.array(by_hand)), [[0.8, 0.1, 0.1]])
    for m in (1, 2, 3, 10, 60):
        p = generator.dirichlet(np.full(5, 0.3), size=(7, m))
        rows = largest_overlap(p)
        np.testing.assert_allclose(rows.sum(-1), 1)
        assert rows.min() >= 0
        for places, q in zip(p, rows, strict=True):
            best = mean_overlap(places, q)
            for size in (0.3, 0.1, 0.01):
                for other in (places.mean(0), *places[:20], *np.eye(5)):
                    there = (1 - size) * q + size * other
                    assert mean_overlap(places, there) < best + 1e-9, (m, size)
    np.testing.assert_allclose(largest_overlap(p[:, :1]), p[:, 0])  # one place: its p


def test_a_fitted_row_is_for_the_places_that_it_answers():
    tokens, probs = samples()
    parts = distil_ngrams(tokens, probs, order=3, nodes=12, least=1)
    rows, node = fit_rows(*parts, tokens, probs), answering(*parts[:2], tokens, 4)
    few = fit_rows(*parts, tokens, probs, most=5)
    for i in range(len(rows)):
        places = probs[node == i]
        right = largest_overlap(np.concatenate([parts[2][i, None], places])[None])[0]
        np.testing.assert_allclose(rows[i], right if len(places) else parts[2][i], atol=1e-4)
        if len(places) <= 5:
            np.testing.assert_allclose(few[i], rows[i], atol=1e-4)
    assert mean_overlap(probs, rows[node]) > mean_overlap(probs, parts[2][node]) + 1e-4
    assert not np.allclose(few, rows, atol=1e-4)


def test_a_stored_tree_says_what_it_said_but_for_rounding(tmp_path):
    tokens, probs = samples()
    parts = distil_ngrams(tokens, probs, order=3, nodes=60, least=1)
    path = tmp_path / "tree.safetensors"
    ngram.save(path, CharTokenizer("abcd"), {"note": 1}, *parts)
    draft, stored = NGramDraft(*parts[:2], torch.from_numpy(parts[2]).double()), ngram.load(path)
    for text in tokens:
        context = text[:9].tolist()
        difference = (draft.get_probs(context) - stored.get_probs(context)).abs().max()
        assert difference < 0.02
    assert checkpoint.read_header(path)["facts"] == {"note": 1}
    assert set(stored.alphas) == {1.0}, "not known, so it never stops"
    alphas = np.linspace(0, 1, len(parts[0]))
    ngram.save(path, CharTokenizer("abcd"), {}, *parts, alphas)
    np.testing.assert_allclose(np.asarray(ngram.load(path, least=0.1).alphas), alphas, atol=0.002)


def test_what_was_left_out_of_a_stored_row_comes_from_its_parents(tmp_path):
    """By hand, in whole 255ths: after 0 comes 0 or 1, or else what comes after anything."""
    roots = np.array([[150, 130, 120, 100], [180, 120, 0, 0]]) / 255
    path = tmp_path / "tree.safetensors"
    ngram.save(path, CharTokenizer("abcd"), {}, np.zeros(2, int), np.zeros(2, int), roots**2)
    anything, after_0 = roots**2
    anything = anything + (1 - anything.sum()) / 4
    right = after_0 + (1 - after_0.sum()) * anything
    q = ngram.load(path).get_probs([3, 0])
    torch.testing.assert_close(q, torch.from_numpy(right), atol=1e-4, rtol=0)


def test_a_checkpoint_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"lacks alphas.*make_drafts\.py ngram"):
        ngram.load(checkpoint.TARGET)
    with pytest.raises(ValueError, match=r"holds no model.*make_drafts\.py"):
        transformer.load(ngram.DISTILLED)


def test_a_tree_that_is_not_compressed_is_refused(tmp_path):
    path, names = tmp_path / "old.safetensors", "children tokens sizes followers weights alphas"
    tensors = {name: torch.ones(9, dtype=torch.uint8) for name in names.split()}
    checkpoint.save_tensors(path, tensors, {"vocabulary": "abcd", "facts": {}})
    with pytest.raises(ValueError, match=r"no tree of ours.*make_drafts\.py ngram"):
        ngram.load(path)


def test_a_missing_tree_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py"):
        ngram.load(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py"):
        transformer.load(tmp_path / "none.safetensors")


def test_the_answer_depends_on_the_context_alone():
    """Asked in any order, again, about a list that grows, shrinks or is changed in place."""
    draft, V = count_ngrams(some_text(4, 200), 4, order=3), 4
    known = contexts_in(*some_tree(4, 200, 3))
    assert len(known) == len(draft.table)

    def right(context):
        """The row of the longest end that is known."""
        starts = range(len(context) + 1)
        node = next(known[end] for i in starts if (end := tuple(context[i:])) in known)
        return draft.table[node].double() / draft.table[node].double().sum()

    rng, context = np.random.default_rng(0), []
    for _ in range(300):
        change = rng.integers(4)
        if change == 0 and context:
            context[rng.integers(len(context))] = int(rng.integers(V))
        elif change == 1:
            del context[rng.integers(len(context) + 1) :]
        else:
            context.append(int(rng.integers(V)))
        other = rng.integers(V, size=5).tolist()
        for asked in (context, other, context, tuple(context)):
            assert torch.equal(draft.get_probs(asked), right(asked)), asked


# ---- copying


def guess(draft, context):
    q = draft.get_probs(context)
    assert q.sum() == 1 and q.max() == 1
    return int(q.argmax())


def test_prompt_lookup_takes_the_first_match_of_the_longest_end():
    draft = PromptLookupDraft(10, most=2)
    assert guess(draft, [1, 2, 3, 9, 2, 4, 1, 2]) == 3, "1 2 was followed by 3"
    assert guess(draft, [2, 5, 2, 6, 2]) == 5, "the first 2"
    assert guess(draft, [7, 7, 7]) == 7, "a match may overlap the end"
    assert guess(draft, [1, 2, 3]) == 3, "nothing found: the last token again"
    assert guess(draft, [4]) == 4


def longest_repeated_end(context, most=None, first=False):
    """What followed the latest earlier occurrence of the longest end, by trying all lengths.

    most: the longest end to look for. first: of its occurrences, the earliest.
    """
    for n in range(min(most or len(context), len(context) - 1), 0, -1):
        starts = range(len(context) - n)  # an occurrence may overlap the end itself
        for start in starts if first else reversed(starts):
            if context[start : start + n] == context[-n:]:
                return context[start + n], n
    return None, 0


@pytest.mark.parametrize("most", [1, 2, 3])
def test_prompt_lookup_finds_what_trying_all_places_finds(most):
    draft = PromptLookupDraft(3, most)
    assert guess(PromptLookupDraft(10, 2), [1, 9, 1, 1, 1]) == 1, "1 1 overlaps the end 1 1"
    for seed in range(300):
        context = some_text(3, 1 + seed % 12, seed).tolist()
        follower, _ = longest_repeated_end(context, most, first=True)
        assert guess(draft, context) == (context[-1] if follower is None else follower), context


def test_the_suffix_draft_finds_the_longest_end_that_occurred():
    draft, other = SuffixDraft(3), random_draft(3)
    mixed = SuffixDraft(3, least=3, otherwise=other)
    for seed in range(300):
        context = some_text(3, 1 + seed % 25, seed).tolist()
        follower, n = longest_repeated_end(context)
        assert guess(draft, context) == (context[-1] if follower is None else follower), context
        if n < 3:
            assert torch.equal(mixed.get_probs(context), other.get_probs(context))
        else:
            assert guess(mixed, context) == follower


def test_lookups_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="share one tokenizer"):
        SuffixDraft(5, otherwise=random_draft(4))
    with pytest.raises(ValueError, match="256 at most"):
        PromptLookupDraft(257)


# ---- transformers


def test_common_prefix_and_window_start():
    assert [common_prefix([1, 2, 3], x) for x in ([], [1], [1, 2, 4], [1, 2, 3, 4], [0])] == [
        *(0, 1, 2, 3, 0)
    ]
    starts = [window_start(length, 8) for length in range(1, 22)]
    assert starts == [0] * 8 + [4] * 4 + [8] * 4 + [12] * 4 + [16]
    assert all(0 < length - window_start(length, 7) <= 7 for length in range(1, 50))


def test_a_draft_with_a_cache_depends_on_its_context_alone():
    """Asked in any order, about any context, it says what a fresh one says."""
    model = toy_target(5, 8, seed=3)
    old, generator = TransformerDraft(model), torch.Generator().manual_seed(0)
    context = [0]
    for _ in range(200):
        cut = int(torch.randint(1, len(context) + 1, (1,), generator=generator))
        more = torch.randint(5, (int(torch.randint(0, 4, (1,), generator=generator)),))
        context = context[:cut] + more.tolist()
        fresh = TransformerDraft(model).get_probs(context)
        torch.testing.assert_close(old.get_probs(context), fresh, atol=1e-12, rtol=0)


def test_a_transformer_draft_that_is_the_target_is_always_accepted():
    target = toy_target(7, 64)
    made = speculative_generate(target, TransformerDraft(target), [0, 1], 30, 4)
    assert all(len(r.emitted) == len(r.candidates) + 1 for r in made.rounds)
    assert made.tokens and isinstance(SelfDraft(target, 2).get_probs([0]), torch.Tensor)


def test_the_distilling_loss_is_the_cross_entropy_under_the_targets_p():
    target, model = (toy_target(5, 16, seed=seed) for seed in (1, 2))
    x = some_text(5, 32, seed=3).view(2, 16)
    p, q = (torch.softmax(m(x)[0], -1) for m in (target, model))
    by_hand = -(p * q.log()).sum(-1).mean()
    torch.testing.assert_close(transformer.distil_loss(model, target, x), by_hand)


def test_distilling_brings_a_model_nearer_to_the_target():
    target = copy.deepcopy(toy_target(5, 16, seed=1)).float()  # the toy is shared
    torch.manual_seed(0)
    config = transformer.GPTConfig(5, 16, n_layer=1, n_head=1, n_embd=8)
    model = transformer.GPTLanguageModel(config)
    optimizer = make_optimizer(model)

    def loss_of(generator):
        x, _ = get_batch(some_text(5), 8, 16, generator)
        return transformer.distil_loss(model, target, x)

    losses = [loss for _, loss in train(model, optimizer, loss_of, 60)]
    with torch.no_grad():
        x = some_text(5, 128, seed=9).view(8, 16)
        p = torch.softmax(target(x)[0], -1)
        entropy = -(p * p.log()).sum(-1).mean()
    assert sum(losses[-5:]) / 5 < losses[0] and losses[-1] > entropy * 0.8
    assert all(p.grad is None for p in target.parameters()), "the target does not learn"


# ---- the shipped ones


def test_the_shipped_drafts_are_small_and_say_what_made_them():
    folder = DATA_DIR / "checkpoints"
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < 12e6
    assert checkpoint.read_header(ngram.DISTILLED)["facts"]["characters"] > 1e6
    for path in (transformer.TRAINED, transformer.DISTILLED):
        assert checkpoint.read_header(path)["facts"]["steps"] > 0


@pytest.fixture(scope="module")
def written():
    """150 tokens by the shipped target, and its p of each."""
    target, tokenizer = checkpoint.load()
    made = autoregressive_generate(target, tokenizer.encode("ROMEO:"), 150, rng=RandomSource(7))
    return tokenizer.encode("ROMEO:"), made


def alpha(draft, written):
    """Mean Σ min(p, q) along the text."""
    prompt, made = written
    overlaps = []
    for i, r in enumerate(made.rounds):
        q = draft.get_probs([*prompt, *made.tokens[:i]])
        overlaps.append(float(torch.minimum(q, r.target_probs[0]).sum()))
    return sum(overlaps) / len(overlaps)


def test_the_shipped_drafts_are_as_good_as_they_are_said_to_be(written):
    _, tokenizer = checkpoint.load()
    text = torch.tensor(tokenizer.encode(load_corpus().text))
    counts = count_ngrams(train_val_split(text)[0], 65, 4, 4.0)
    assert alpha(ngram.load(), written) > 0.85
    assert 0.72 < alpha(transformer.load(), written) < 0.9
    assert 0.7 < alpha(transformer.load(transformer.TRAINED), written) < 0.9
    assert 0.7 < alpha(counts, written) < alpha(ngram.load(), written)


def test_at_temperature_0_the_shipped_tree_guesses_what_the_target_puts_first():
    """More of the target's own letters than the heads of its rows, and the same text."""
    target, tokenizer = checkpoint.load()
    double, draft = FusedLanguageModel(target.double()), load_tree()
    heads, asked = NGramAutomaton.__new__(NGramAutomaton), []
    heads.__dict__.update(draft.__dict__ | {"greedy": None})
    text = torch.tensor(tokenizer.encode((DATA_DIR / "stand_in.txt").read_text()))
    for prompt in prompts_of(text, 20):
        own = autoregressive_generate(double, prompt, 60, Sampling(0)).tokens
        passes = []
        for each in (draft, heads):
            made = speculative_generate(double, each, prompt, 60, 15, Sampling(0))
            assert made.tokens == own
            passes.append(made.target_passes)
        asked.append(passes)
    voted, of_heads = np.array(asked).sum(0)
    assert 1200 / voted > 7 and 1.1 * voted < of_heads


def test_what_makes_the_greedy_draft_writes_the_targets_best_tokens():
    """As a request does, which reads the prompt alone: not what was drawn before it."""
    target, _ = checkpoint.load()
    texts = module_of(MAKE_DRAFTS).write_greedy(
        target, texts=8, burn=20, start=4, length=20, seed=0
    )
    assert texts.shape == (8, 24) and len({*map(bytes, texts[:, :4])}) > 1
    for text in texts.tolist():
        assert text[4:] == autoregressive_generate(target, text[:4], 20, Sampling(0)).tokens


def test_what_makes_the_drafts_records_the_targets_own_probabilities():
    target = toy_target(5, 8)
    tokens, probs = module_of(MAKE_DRAFTS).write_texts(target, texts=3, length=20, seed=0)
    assert tokens.shape == (3, 20) and probs.shape == (3, 19, 5)
    for i in (1, 7, 8, 9, 19):  # the window, full at 8, starts again from 4 before the current
        start = 0 if i <= 8 else 4 * ((i - 9) // 4 + 1)
        with torch.no_grad():
            context = torch.from_numpy(tokens[:, start:i].astype(int))
            p = torch.softmax(target(context)[0][:, -1], -1)
        np.testing.assert_allclose(probs[:, i - 1], p.numpy(), atol=1e-3)
    with pytest.raises(ValueError, match="no draft is called nothing"):
        module_of(MAKE_DRAFTS).main(["nothing"])


def test_the_shipped_drafts_by_name_are_ready_to_be_drawn_from():
    tokens = some_text(65, 300)
    assert DRAFTS.keys() == BEST.keys()
    for name in ("bigram", "distilled", "lookup"):
        draft = DRAFTS[name](tokens, 65)
        q = draft.get_probs([1])
        assert draft.vocab_size == 65 and q.dtype == torch.float64 and q.shape == (65,), name


def test_lookups_find_what_trying_all_places_finds_in_every_short_text():
    """With matches that begin at the first letter, end at the last but one, or overlap the end."""
    drafts = [(most, PromptLookupDraft(2, most), WideLookupDraft(2, most)) for most in (1, 2, 9)]
    suffix = SuffixDraft(2)
    for n in range(1, 8):
        for context in map(list, itertools.product(range(2), repeat=n)):
            for most, *two in drafts:
                follower, _ = longest_repeated_end(context, most, first=True)
                right = context[-1] if follower is None else follower
                assert [guess(draft, context) for draft in two] == [right] * 2, context
            follower, _ = longest_repeated_end(context)
            assert guess(suffix, context) == (context[-1] if follower is None else follower)


def test_a_window_of_one_token_is_a_window_too():
    """Half of it is none: whoever reads on from the half still reads the last token."""
    model, student = toy_target(3, 1), NetStudent(TransformerDraft(copy.deepcopy(toy_target(3, 1))))
    assert [window_start(n, 1) for n in (1, 2, 5)] == [0, 1, 4]
    letters = toy_pairs(3, block_size=1)
    for context in ([1], [1, 2], [0, 1, 2, 0]):
        right = Sampling().probs(model(torch.tensor([context[-1:]]))[0][0, -1])
        q = TransformerDraft(model).get_probs(context)
        torch.testing.assert_close(q, right)
        assert float(letters.get_probs(context).sum()) == pytest.approx(1)
    student.learn([0, 1, 2, 0], torch.full((2, 3), 1 / 3, dtype=torch.float64))
    assert student.lessons == 1
