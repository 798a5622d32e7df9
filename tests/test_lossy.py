"""The lossy rules: what each costs, to the last digit, by enumeration of the real code."""

import inspect
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import words_in
from texts import off

from nanogpt.course import chapter_18 as chapter
from nanogpt.drafts.grown import Grown
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import TableDraft, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.lossy import accept_fly, accept_mixture, accept_typical, longest_path
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import ReadText, Tree

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]  # toy T
GOOD_P, GOOD_Q = [0.7, 0.2, 0.06, 0.04], [0.6, 0.25, 0.09, 0.06]
KINDS = {"one": (1, "with"), "with": (2, "with"), "without": (2, "without"), "fixed": (2, "fixed")}


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
}


@pytest.mark.parametrize("name", TABLE)
def test_each_rules_bill_on_the_toy(name):
    rule, bills = TABLE[name]
    for kind, (accepted, distance) in zip(KINDS, bills, strict=True):
        got = bill(rule, P, Q, *KINDS[kind])
        assert got[0] == pytest.approx(accepted, abs=5e-4), kind
        assert got[2] == pytest.approx(distance, abs=5e-4 if distance else 1e-12), kind


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
    "FLy": accept_fly(1),
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
        tree = grown.propose(ReadText(target, [0], 3), 2, Sampling(), rng)
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


@pytest.mark.parametrize("kind", TREES)
def test_the_mixture_loses_nothing_at_weight_1_in_whole_texts(kind):
    grown, table = Grown(random_draft(3, seed=2), *TREES[kind]), random_draft(3, seed=5).table
    assert text_off(accept_mixture(1.0), grown, table) < 1e-12


def test_typical_acceptance_and_fly_are_off_in_whole_texts():
    toy, grown = toy_target(3, 8, seed=1), Grown(random_draft(3, seed=2), (1, 1), "with")
    for accept in (accept_typical(), accept_fly(1)):
        assert off(tree_generate, toy, grown, 3, steps=replace(TREE, accept=accept)) > 0.05


@pytest.mark.parametrize("kind", TREES)
def test_greedy_texts_survive_all_but_the_mixture(kind):
    """At temperature 0, p is one-hot: every guess but the greedy one is implausible."""
    toy, grown = toy_target(3, 8, seed=1), Grown(random_draft(3, seed=2), *TREES[kind])
    greedy = autoregressive_generate(toy, [0, 1], 12, Sampling(0)).tokens
    rules = [accept_typical()]
    if kind == "chain":
        rules += [accept_fly(1)]
    for accept in rules:
        for seed in range(3):
            rng = RandomSource(seed)
            steps = replace(TREE, accept=accept)
            made = tree_generate(toy, grown, [0, 1], 12, Sampling(0), rng, steps=steps)
            assert made.tokens == greedy


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


def test_typical_acceptance_is_what_its_judge_asks_for():
    chapter.judge(accept_typical)


@pytest.mark.parametrize("kind", ["drawn", "fixed"])
def test_a_perfect_draft_is_always_kept_and_typical_acceptance_rejects_its_tail(kind):
    """Of drawn guesses, S stand and S (1 - S) of the tokens are wrong: a quarter at worst."""
    tail = [0.5] + [0.025] * 20
    for p, share in ((GOOD_P, 0.9), (P, 1.0), (tail, 0.5)):
        exact, _, off = bill(accept_tree, p, p)
        assert exact == pytest.approx(1) and off < 1e-12
        kept, _, off = bill(accept_typical(), p, p)
        assert kept == pytest.approx(share) and off == pytest.approx(share * (1 - share))
    fixed, _, off = bill(accept_typical(), GOOD_P, GOOD_P, 1, "fixed")
    assert fixed == pytest.approx(1) and off == pytest.approx(0.3), "always the likeliest"


def chain_of(tokens, q=Q):
    """A chain of guesses, each drawn from the same q."""
    rows = torch.tensor([q] * len(tokens), dtype=torch.float64).reshape(-1, len(q))
    return Tree(list(tokens), list(range(-1, len(tokens) - 1)), rows)


def how_far(rule, tokens, p, q=Q):
    """{(how many of these guesses stand, the token after them): probability}."""
    rows = torch.tensor(p, dtype=torch.float64)

    def program(rng):
        path, token = rule(chain_of(tokens, q), rows.clone(), rng)
        assert path == list(range(len(path)))
        return len(path), token

    return enumerate_outcomes(program)


def stands_by_hand(coins, wavers, possible, window):
    """How many guesses stand: coins are those of the exact rule, 1 where it keeps the guess."""
    for i, kept in enumerate(coins):
        enough = i + window < len(coins) and all(coins[i + 1 + step] for step in range(window))
        if not (kept or (wavers[i] and possible[i] and enough)):
            return i
    return len(coins)


SURE_A = [0.98, 0.02, 0.0]  # H = .098


@pytest.mark.pairs
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("tokens", [(2, 0, 0), (0, 0, 2), (2, 2, 0), (2, 2, 2, 2), (1, 2, 0, 1)])
@pytest.mark.parametrize("odd", [None, 0, 1, -1])
def test_fly_is_every_coin_of_the_exact_rule_and_its_witnesses(window, tokens, odd):
    """The row `odd` is sure of another token, which the guess may be impossible in."""
    K = len(tokens)
    odd = K if odd == -1 else odd  # the bonus token's
    p = [SURE_A if i == odd else P for i in range(K + 1)]
    keeps = [min(1.0, p[i][x] / Q[x]) for i, x in enumerate(tokens)]
    due = {}
    for coins in itertools.product((1, 0), repeat=K):
        chance = math.prod(k if coin else 1 - k for k, coin in zip(keeps, coins, strict=True))
        n = stands_by_hand(
            coins, [i != odd for i in range(K)], [p[i][x] > 0 for i, x in enumerate(tokens)], window
        )
        after = np.array(p[n]) if n == K else (np.array(p[n]) - Q).clip(0)
        for token, share in enumerate(after / after.sum()):
            due[n, token] = due.get((n, token), 0.0) + chance * share
    assert total_variation(how_far(accept_fly(window), tokens, p), due) < 1e-12


@pytest.mark.parametrize(
    ("rule", "p", "forgives"),
    [
        (accept_fly(1, 0.80, top_k=2), P, False),  # of .5 and .3: H = .708 nats, 1.02 bits
        (accept_fly(1, 0.70, top_k=2), P, True),
        (accept_fly(1, 0.80), P, True),  # of all three: 1.03
        (accept_fly(1, 0.35, top_k=1), P, False),  # .347
        (accept_fly(1, 0.34, top_k=1), P, True),
        (accept_fly(1, 1.0, top_k=9), P, True),
        (accept_fly(1), [0.93, 0.01, 0.06], False),  # .282
        (accept_fly(1), [0.91, 0.02, 0.07], True),  # .350
        (accept_fly(1, 0.0), [0.6, 0.4, 0.0], False),  # wavers, and c never comes
        (accept_fly(1, 0.6931, top_k=3), [0.5, 0.0, 0.5], True),  # ln 2; 0 ln 0 is 0
        (accept_fly(1, 0.6932, top_k=3), [0.5, 0.0, 0.5], False),
    ],
)
def test_only_a_target_that_wavers_forgives(rule, p, forgives):
    """Guesses c and a: a always stands. c does with p / q, and else only where it is forgiven."""
    made = how_far(rule, (2, 0), [p, P, P])
    falls = sum(chance for (n, _), chance in made.items() if n == 0)
    assert falls == pytest.approx(0 if forgives else 1 - min(1, p[2] / Q[2]))


def test_flys_defaults_are_vllms():
    """The next six guesses, the three likeliest tokens, .3 nats."""
    defaults = inspect.signature(accept_fly).parameters.values()
    assert [one.default for one in defaults] == [6, 0.3, 3]
    for K, forgives in ((7, True), (6, False)):
        falls = how_far(accept_fly(), (2, *[0] * (K - 1)), [P] * (K + 1)).get((0, 0), 0.0)
        assert (falls == 0) == forgives


def test_flys_price_on_the_toy():
    """K = 3: the first letter is on the line, and the witnesses are off as well."""
    p, grown = torch.tensor(P, dtype=torch.float64), Grown(TableDraft([Q] * 3), (1, 1, 1), "with")

    def program(rng):
        tree = grown.propose(ReadText(toy_target(3, 8), [0], 9), 3, Sampling(), rng)
        path, token = accept_fly(2)(tree, p.expand(4, -1).clone(), rng)
        made = [*(tree.tokens[node] for node in path), token]
        while len(made) < 3:
            made.append(rng.categorical(p))
        return len(path), tuple(made[:3])

    stands, letters, texts = 0.0, np.zeros((3, 3)), {}
    for (kept, text), chance in enumerate_outcomes(program).items():
        stands += chance * (kept > 0)
        texts[text] = texts.get(text, 0.0) + chance
        for place, token in enumerate(text):
            letters[place, token] += chance
    assert stands == pytest.approx(0.6 + 0.4 * 0.6**2)
    off = abs(letters - P).sum(1) / 2
    assert off.tolist() == pytest.approx([0.144, 0.024, 0.024])
    own = {text: math.prod(P[x] for x in text) for text in itertools.product(range(3), repeat=3)}
    assert total_variation(texts, own) == pytest.approx(0.144)


def test_fly_judges_chains_of_guesses_that_can_come():
    rule, rows = accept_fly(1), torch.tensor([P] * 3, dtype=torch.float64)
    two = Tree([0, 1], [-1, -1], torch.tensor([Q, Q], dtype=torch.float64))
    with pytest.raises(ValueError, match="must be a chain"):
        rule(two, rows, RandomSource(0))
    with pytest.raises(ValueError, match="q = 0"):
        rule(chain_of([0, 1], [0.0, 0.5, 0.5]), rows, RandomSource(0))


@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_fly_is_the_exact_rule_where_nothing_is_forgiven(K):
    """The window is as long as the chain, or the target never wavers."""
    p = torch.tensor([GOOD_P] * (K + 1), dtype=torch.float64)
    q = torch.tensor([GOOD_Q] * K, dtype=torch.float64)

    def program(rule):
        def run(rng):
            tokens = [rng.categorical(row) for row in q]
            path, token = rule(Tree(tokens, list(range(-1, K - 1)), q), p.clone(), rng)
            return tuple(tokens[: len(path)]), token

        return enumerate_outcomes(run)

    exact = program(accept_tree)
    for rule in (accept_fly(K), accept_fly(1, 99.0), accept_fly(1, 0.63, top_k=1)):
        assert total_variation(program(rule), exact) < 1e-12
    if K > 1:
        assert total_variation(program(accept_fly(K - 1)), exact) > 0.01


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


def test_the_two_panels_show_their_points_their_lines_and_their_band():
    groups = {"a": {"drawn": [(1, 2, "x"), (2, 3, "y", 0.5)]}, "b": {"fixed": [(0.5, 1, "z")]}}
    lines = {"drawn": ([0, 1], [1, 0]), "fixed": ([0, 1], [2, 0])}
    drawn = chapter.drawn_and_fixed(
        groups, {"b": "fixed", "a": "fixed"}, "T", "X", "Y", lines, ("band", 0, 1)
    )
    assert drawn._repr_png_()[0][:4] == b"\x89PNG"
    left, right = drawn.axes
    (a,), (b,) = ([line for line in axes.lines if hasattr(line, "said")] for axes in (left, right))
    assert a.get_markerfacecolor() == "white" and b.get_markerfacecolor() == b.get_color()
    assert [text.get_text() for text in left.texts] == ["x", "y"]
    assert a.get_xydata().tolist() == [[1, 2], [2, 3]] and b.get_xydata().tolist() == [[0.5, 1]]
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert {"a", "b", "band", "the least that a rule pays"} < set(legend)


def test_witnesses_shows_who_is_forgiven_and_what_is_thrown_away():
    drawn = chapter.witnesses({"one": [1, 0, 1, 1], "two": [0, 1, 0, 1]}, 2, "T")
    assert [text for text in words_in(drawn) if text in "✓✗ → ✓"] == [
        "✓",
        "✗ → ✓",
        "✓",
        "✓",
        *"✗✓✗✓",
    ]
    assert drawn._repr_png_()[0][:4] == b"\x89PNG"
