"""The lossy rules: what each costs, to the last digit, by enumeration of the real code."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nanogpt.drafts.grown import Grown
from nanogpt.generate import Text, Tree, autoregressive_generate
from nanogpt.lossy import (
    accept_mixture,
    accept_relaxed,
    accept_thresholds,
    accept_typical,
    longest_path,
)
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import TableDraft, random_draft, toy_target
from nanogpt.rules import accept_tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show import figures
from nanogpt.tree import TREE, tree_generate

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]  # toy T
GOOD_P, GOOD_Q = [0.7, 0.2, 0.06, 0.04], [0.6, 0.25, 0.09, 0.06]
KINDS = {
    "one": (1, "with"),
    "with": (2, "with"),
    "without": (2, "without"),
    "fixed": (2, "fixed"),
}


def bill(rule, p, q, width=1, siblings="with"):
    """(acceptance, {token: probability}, total variation from p) of one round of one depth."""
    grown = Grown(TableDraft([q] * len(q)), (width,), siblings)
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (p, q))

    def program(rng):
        tokens, rows = zip(*grown.pick(q, width, Sampling(), rng), strict=True)
        tree = Tree(list(tokens), [-1] * len(tokens), torch.stack(rows))
        path, token = rule(tree, p.expand(len(tree.tokens) + 1, -1).clone(), rng)
        return bool(path), tree.tokens[path[0]] if path else token

    accepted, made = 0.0, {}
    for (stood, token), chance in enumerate_outcomes(program).items():
        accepted += chance * stood
        made[token] = made.get(token, 0.0) + chance
    return accepted, made, total_variation(made, dict(enumerate(p.tolist())))


TABLE = {  # (acceptance, total variation) for each of KINDS, on toy T
    "exact": (accept_tree, [(0.6, 0), (0.76, 0), (0.9, 0), (0.7, 0)]),
    "typical": (accept_typical(), [(1, 0.4), (1, 0.16), (1, 0.2), (1, 0.5)]),
    "mixture": (accept_mixture(0.7), [(0.72, 0.12), (0.832, 0.12), (0.93, 0.12), (0.79, 0.24)]),
    "thresholds": (accept_thresholds(1, 1), [(0.28, 0), (0.56, 0.0606), (0.62, 0), (0.7, 0)]),
    "relaxed": (accept_relaxed(1), [(0.2, 0.5), (0.36, 0.5), (0.55, 0.5), (1, 0.5)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_rules_bill_on_the_toy(name):
    rule, bills = TABLE[name]
    for kind, (accepted, off) in zip(KINDS, bills, strict=True):
        got = bill(rule, P, Q, *KINDS[kind])
        assert got[0] == pytest.approx(accepted, abs=5e-4), kind
        assert got[2] == pytest.approx(off, abs=5e-4 if off else 1e-12), kind


def test_typical_accepts_less_than_the_exact_rule_where_the_draft_is_good_and_is_off():
    """As in vllm#8639: even a draft that is the target itself is rejected in the tail."""
    exact, typical = (bill(rule, GOOD_P, GOOD_Q) for rule in (accept_tree, accept_typical()))
    assert exact[0] == pytest.approx(0.9) and typical[0] == pytest.approx(0.85)
    assert typical[2] == pytest.approx(0.085) and exact[2] < 1e-12
    perfect = bill(accept_typical(), GOOD_P, GOOD_P)
    assert perfect[0] == pytest.approx(0.9) and perfect[2] == pytest.approx(0.09)


def some_pairs(n):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 2, 4, dtype=torch.float64, generator=generator)
    return torch.softmax(2 * logits, -1).tolist()


RULES = {
    "exact": accept_tree,
    "mixture": accept_mixture(0.4),
    "typical": accept_typical(),
    "strict typical": accept_typical(0.3, 0.9),
    "thresholds": accept_thresholds(0.4, 0.6),
    "relaxed": accept_relaxed(2, 0.2),
}


@pytest.mark.parametrize("name", RULES)
def test_no_rule_pays_less_than_the_distance_between_p_and_q(name):
    """With one guess drawn from q: off + rejected >= TV(p, q), and the mixture is on that line."""
    for p, q in some_pairs(6):
        accepted, made, off = bill(RULES[name], p, q)
        apart = total_variation(dict(enumerate(p)), dict(enumerate(q)))
        assert off + 1 - accepted > apart - 1e-12
        if name in ("exact", "mixture"):
            assert off + 1 - accepted == pytest.approx(apart, abs=1e-12)
        if name == "mixture":
            mixed = [0.4 * a + 0.6 * b for a, b in zip(p, q, strict=True)]
            assert total_variation(made, dict(enumerate(mixed))) < 1e-12


TREES = {
    "chain": ((1, 1), "with"),
    "siblings without replacement": ((2, 1), "without"),
    "fixed siblings": ((2, 2), "fixed"),
    "siblings with replacement": ((2, 1), "with"),
}


def text_off(rule, grown, table):
    """How far three tokens are off: a round of `rule`, then draws from the target's own p.

    The target's p is a row of `table` (V, V), that of the last token.
    """

    target = toy_target(len(table), 8)  # nobody asks it: the table has its p

    def program(rng):
        tree = grown.propose(Text(target, [0], 3), 2, Sampling(), rng)
        path, token = rule(tree, table[[0, *tree.tokens]], rng)
        made = [*(tree.tokens[node] for node in path), token]
        while len(made) < 3:
            made.append(rng.categorical(table[made[-1]]))
        return tuple(made)

    own = {
        (a, b, c): float(table[0, a] * table[a, b] * table[b, c])
        for a, b, c in itertools.product(range(len(table)), repeat=3)
    }
    return total_variation(enumerate_outcomes(program), own)


@pytest.mark.parametrize("rule", ["mixture", "thresholds"])
@pytest.mark.parametrize("kind", TREES)
def test_which_rules_lose_nothing_in_whole_texts(rule, kind):
    """The mixture at w = 1 always; thresholds at (1, 1) for all trees whose siblings differ."""
    grown, table = Grown(random_draft(3, seed=2), *TREES[kind]), random_draft(3, seed=5).table
    off = text_off(
        {"mixture": accept_mixture(1.0), "thresholds": accept_thresholds(1, 1)}[rule], grown, table
    )
    if rule == "thresholds" and kind == "siblings with replacement":
        assert off > 0.05
    else:
        assert off < 1e-12


def test_lossy_thresholds_and_typical_acceptance_are_off_in_whole_texts():
    toy, grown = toy_target(3, 8, seed=1), Grown(random_draft(3, seed=2), (1, 1), "with")
    own = exact_continuations(toy, 3, Sampling())
    for accept in (accept_typical(), accept_thresholds(0.3, 1), accept_thresholds(1, 0.5)):
        made = enumerate_outcomes(
            lambda rng, steps=replace(TREE, accept=accept): tuple(
                tree_generate(toy, grown, [0, 1], 3, rng=rng, steps=steps).tokens
            )
        )
        assert total_variation(made, own) > 0.1


@pytest.mark.parametrize("kind", TREES)
def test_greedy_texts_survive_all_but_the_mixture(kind):
    """At temperature 0, p is one-hot: every guess but the greedy one is implausible."""
    toy, grown = toy_target(3, 8, seed=1), Grown(random_draft(3, seed=2), *TREES[kind])
    greedy = autoregressive_generate(toy, [0, 1], 12, Sampling(0)).tokens
    rules = [accept_typical(), accept_thresholds(0.3, 0.5), accept_relaxed(3, 0.6)]
    for accept in (*rules, accept_relaxed(3, ratio=0.3)):
        for seed in range(3):
            rng = RandomSource(seed)
            steps = replace(TREE, accept=accept)
            made = tree_generate(toy, grown, [0, 1], 12, Sampling(0), rng, steps=steps)
            assert made.tokens == greedy


@pytest.mark.parametrize("rule", [accept_relaxed(1, 0.5), accept_relaxed(3), accept_relaxed(2)])
@pytest.mark.parametrize("kind", TREES)
def test_relaxed_acceptance_that_relaxes_nothing_is_greedy_decoding(rule, kind):
    """Of the p at temperature 1; with top_k = 1, or with delta = 0 and ratio = 1."""
    toy, grown = toy_target(3, 8, seed=1), Grown(random_draft(3, seed=2), *TREES[kind])
    greedy = autoregressive_generate(toy, [0, 1], 12, Sampling(0)).tokens
    steps = replace(TREE, accept=rule)
    made = tree_generate(toy, grown, [0, 1], 12, rng=RandomSource(0), steps=steps)
    assert made.tokens == greedy


def test_relaxed_acceptance_by_difference_and_by_ratio():
    p = torch.tensor([P], dtype=torch.float64)
    none = RandomSource(0)
    for rule, standing in (
        (accept_relaxed(3, 0.2 + 1e-12), {0, 1}),
        (accept_relaxed(3, 0.19), {0}),
        (accept_relaxed(3, ratio=0.6 - 1e-12), {0, 1}),
        (accept_relaxed(3, ratio=0.3), {0, 1, 2}),
        (accept_relaxed(2, ratio=0.3), {0, 1}),
        (accept_relaxed(9, 1.0), {0, 1, 2}),  # more than there are tokens
        (accept_relaxed(3, 0.21, ratio=0.8), {0, 1, 2}),  # from .8 · .5 - .21 = .19
        (accept_relaxed(3, 0.19, ratio=0.8), {0, 1}),  # from .21
    ):
        for token in range(3):
            tree = Tree([token], [-1], p)
            path, after = rule(tree, p.expand(2, -1).clone(), none)
            assert (path == [0]) == (token in standing) and after == 0


def stands(rule, p, token):
    """Whether a single guess stands."""
    p = torch.tensor(p, dtype=torch.float64)
    return rule(Tree([token], [-1], p[None]), p.expand(2, -1).clone(), RandomSource(0))[0] == [0]


def test_typical_acceptance_goes_by_the_entropy_in_nats():
    """By hand: the entropy is 1.375 nats, the bar .6 · exp(-1.375) = .152; with bits, .083."""
    p = [0.5, 0.16, 0.14, 0.1, 0.1]
    assert [stands(accept_typical(0.2, 0.6), p, x) for x in range(5)] == [1, 1, 0, 0, 0]
    for p in torch.tensor(some_pairs(40)).flatten(0, 1).tolist():
        bar = 0.6 * math.exp(sum(x * math.log(x) for x in p))
        for x in range(4):
            assert stands(accept_typical(1.0, 0.6), p, x) == (p[x] > bar)
            assert stands(accept_typical(0.2, 99.0), p, x) == (p[x] > 0.2)


def test_a_guess_on_the_bar_does_not_stand():
    """¼ of 1, ½ and ¼ are floats."""
    assert not stands(accept_typical(0.25, 99.0), [0.25] * 4, 0)
    assert stands(accept_typical(0.25, 99.0), [0.5, 0.25, 0.25], 0)
    assert not stands(accept_typical(1.0, 1.0), [1.0, 0.0], 0)  # exp(-0) = 1


BRANCHING = Tree([1, 2, 0, 2], [-1, -1, 1, 2], torch.full((4, 3), 1 / 3, dtype=torch.float64))


def test_the_longest_path_counts_and_of_equals_the_likeliest():
    assert longest_path(BRANCHING, [True] * 4, [0.9, 0.1, 0.1, 0.1]) == [1, 2, 3]
    assert longest_path(BRANCHING, [True, True, False, True], [0.3, 0.4, 1, 1]) == [1]
    assert longest_path(BRANCHING, [True, True, False, True], [0.4, 0.3, 1, 1]) == [0]
    assert longest_path(BRANCHING, [False, False, True, True], [1] * 4) == []
    two = Tree([0, 1, 0, 1], [-1, -1, 0, 1], torch.full((4, 3), 1 / 3))
    assert longest_path(two, [True] * 4, [0.9, 0.2, 0.3, 0.6]) == [0, 2], ".27, not .12"
    assert longest_path(two, [True] * 4, [0.6, 0.3, 0.2, 0.9]) == [1, 3], ".12, not .27"
    assert longest_path(Tree([], [], torch.empty(0, 3)), [], []) == []


def sglang(u, chances, single, total):
    """The child that SGLang's loop takes for the coin u, or None."""
    reach = 0.0
    for child, chance in enumerate(chances):
        reach += chance
        if u <= reach / total or chance >= single:
            return child
    return None


@pytest.mark.parametrize("siblings", [[0, 1, 2], [2, 2, 0], [1], [2, 1]])
@pytest.mark.parametrize(("single", "total"), [(1, 1), (0.3, 1), (1, 0.5), (0.25, 0.7)])
def test_thresholds_are_one_coin_for_all_children(siblings, single, total):
    """Each child's share of the coins in [0, 1] is what the rule gives it."""
    p = torch.tensor(P, dtype=torch.float64)
    tree = Tree(siblings, [-1] * len(siblings), p.expand(len(siblings), -1))
    rows = p.expand(len(siblings) + 1, -1).clone()
    rule = accept_thresholds(single, total)
    made = enumerate_outcomes(lambda rng: next(iter(rule(tree, rows, rng)[0]), None))
    chances = [P[token] for token in siblings]
    edges = sorted({0.0, 1.0, *np.minimum(np.cumsum(chances) / total, 1).tolist()})
    due = {}
    for low, high in itertools.pairwise(edges):
        child = sglang((low + high) / 2, chances, single, total)
        due[child] = due.get(child, 0.0) + high - low
    assert total_variation(made, due) < 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: accept_mixture(-0.1),
        lambda: accept_mixture(1.1),
        lambda: accept_mixture(float("nan")),
        lambda: accept_typical(-0.1, 0.3),
        lambda: accept_typical(0.1, float("nan")),
        lambda: accept_relaxed(0),
        lambda: accept_relaxed(1, -0.1),
        lambda: accept_relaxed(1, ratio=1.5),
        lambda: accept_thresholds(0, 1),
        lambda: accept_thresholds(1, 1.5),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


@pytest.mark.parametrize("name", RULES)
def test_what_is_no_distribution_is_refused_and_p_is_left_alone(name):
    tree = Tree([0, 1], [-1, 0], torch.tensor([GOOD_Q] * 2).double())
    p = torch.tensor([GOOD_P] * 3).double()
    before = p.clone()
    RULES[name](tree, p, RandomSource(0))
    assert torch.equal(p, before)
    with pytest.raises(ValueError, match="probabilities"):
        RULES[name](tree, 2 * p, RandomSource(0))
    empty = Tree([], [], torch.empty(0, 4).double())
    path, token = RULES[name](empty, p[:1], RandomSource(0))
    assert path == [] and 0 <= token < 4


def test_the_frontier_shows_its_points_its_line_and_its_band():
    groups = {"a": [(1, 2, "x"), (2, 3, "y", 0.5)], "b": [(0.5, 1, "z")]}
    drawn = figures.frontier(groups, "T", "X", "Y", ("line", [0, 1], [1, 0]), ("band", 0, 1), 2.0)
    said = drawn.description
    for word in ("T", "across: X", "up: Y", "a x: 1.00, 2.00", "b z: 0.50, 1.00", "line", "band"):
        assert word in said
    assert drawn._repr_png_()[0][:4] == b"\x89PNG"
