"""Drafts without a model: Jacobi's chain and the lookahead window, lossless and in step."""

import itertools

import pytest
import torch
from conftest import restarts, whole
from series import NOTEBOOKS, answers
from texts import off

from nanogpt.course import chapter_21 as chapter
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft, NGramPool
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.toys import Watched, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import ReadText

both = pytest.mark.parametrize("form", TARGETS)
SMALL = {
    "jacobi 1": lambda V: JacobiDraft(V, 1),
    "jacobi 3": lambda V: JacobiDraft(V, 3),
    "window 2 x 3": lambda V: LookaheadDraft(V, 2, 3, 2),
    "window 3 x 2": lambda V: LookaheadDraft(V, 3, 2, 1),
    "one column": lambda V: LookaheadDraft(V, 1, 4, 2),
    "no pool": lambda V: LookaheadDraft(V, 2, 3, 0),
    "reading": lambda V: chapter.Reading(V, 2, 3, 2),
}
every_draft = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)


@pytest.mark.pairs
@both
@every_draft
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5), Sampling(top_k=2)], ids=str)
def test_the_output_is_the_targets_own(form, make, sampling):
    target = TARGETS[form](toy_target(3, 8, seed=1))
    assert off(tree_generate, target, make(3), 3, sampling) < 1e-12


@pytest.mark.parametrize("letters", [2, pytest.param(3, marks=pytest.mark.wide)])
@both
@every_draft
def test_it_is_lossless_where_the_context_restarts(form, make, letters):
    target = TARGETS[form](toy_target(letters, 4, seed=2))
    assert off(tree_generate, target, make(letters), 4) < 1e-12


def greedy_case(case):
    """(accepted, accepted from other rows than the first) where the tokens must be equal."""
    generator = torch.Generator().manual_seed(case)
    model = toy_target(7, 8 + 8 * (case % 3), seed=case % 5)
    target = TARGETS[("per-head", "fused")[case % 2]](model)
    size = whole(1, 6, generator), whole(2, 5, generator), whole(0, 4, generator)
    draft = JacobiDraft(7, size[0]) if case % 4 == 3 else LookaheadDraft(7, *size)
    prompt = torch.randint(7, (whole(1, 12, generator),), generator=generator).tolist()
    n = whole(0, 40, generator)
    stop = whole(0, 6, generator) if case % 3 == 0 else None
    expected = autoregressive_generate(model, prompt, n, Sampling(0), stop_token=stop).tokens
    made = tree_generate(target, draft, prompt, n, sampling=Sampling(0), stop_token=stop)
    assert made.tokens == expected, (case, size)
    assert len(made.rounds) <= n
    rounds = [r for r in made.rounds if r.path]
    return len(rounds), sum(r.path != list(range(len(r.path))) for r in rounds)


@pytest.mark.parametrize(
    "cases, least", [(48, (100, 30)), pytest.param(2000, (3000, 1000), marks=pytest.mark.slow)]
)
def test_greedy_text_equals_autoregressive_decoding(cases, least):
    accepted, aside = map(sum, zip(*map(greedy_case, range(cases)), strict=True))
    assert accepted > least[0] and aside > least[1], "guesses stand, and not only a chain's"


# ---- Jacobi


def greedy_after(model, tokens):
    """The greedy token after each of `tokens`, from the start: one pass."""
    return model(torch.tensor([tokens]))[0][0].argmax(-1).tolist()


@pytest.mark.two_ways
@pytest.mark.parametrize("m", [1, 4, 9])
def test_each_round_is_a_step_of_the_fixed_point_iteration(m):
    """The guesses of a round are what the pass before it said, in their places."""
    for seed in range(5):
        model, prompt = toy_target(7, 64, seed=seed), [0, seed]
        made = tree_generate(model, JacobiDraft(7, m), prompt, 30, sampling=Sampling(0))
        text, rows = list(prompt), [prompt[-1]] * m
        for r in made.rounds:
            guesses = rows[: len(r.candidates)]
            assert r.candidates == guesses
            said = greedy_after(model, text + guesses)[len(text) - 1 :]
            right = next((i for i, g in enumerate(guesses) if g != said[i]), len(guesses))
            assert r.emitted == said[: right + 1]
            rows = said[right + 1 :]
            text += r.emitted
            rows += [(rows or text)[-1]] * m


def test_a_jacobi_chain_takes_what_the_last_pass_said_and_repeats_at_its_open_end():
    target, draft = toy_target(7, 64), JacobiDraft(7, 4)
    text = ReadText(target, [3, 5], 20)
    first = draft.propose(text, 9, Sampling(), RandomSource(0))
    assert (first.tokens, first.parents) == ([5] * 4, [-1, 0, 1, 2])
    assert torch.equal(first.q, torch.eye(7).double()[[5] * 4])
    assert draft.propose(text, 2, Sampling(), RandomSource(0)).tokens == [5, 5]
    nothing = draft.propose(text, 0, Sampling(), RandomSource(0))
    assert nothing.tokens == [] and nothing.q.shape == (0, 7)


# ---- the window


class Watching(LookaheadDraft):
    """Checks, at each proposal, the tree and the window against the target's own words."""

    proposals = 0

    def propose(self, text, most, sampling, rng):
        before = text.memory(self, lambda: self.window(text)).asked is not None
        rows = [list(row) for row in text.memory(self, None).rows] if before else None
        tree = super().propose(text, most, sampling, rng)
        self.proposals += 1
        window = text.memory(self, None)
        depths = []
        for parent in tree.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        assert max(depths, default=0) <= most
        siblings = list(zip(tree.parents, tree.tokens, strict=True))
        assert len(set(siblings)) == len(siblings), "no token twice after one parent"
        size = self.W - 1 + self.W * (self.N - 2) + self.G * (self.N - 1)
        assert len(tree.tokens) <= size
        assert torch.equal(tree.q, torch.eye(self.vocab_size).double()[tree.tokens])
        assert window.rows[0][0] == text.tokens[-1]
        assert [len(row) for row in window.rows] == [self.W] * (self.N - 1)
        assert all(len(after) <= self.G for after in window.pool.seen.values())
        self.holds_column_by_column(tree, window, most)
        if rows and text.rounds:
            moved = [*rows[1:], window.rows[-1]]
            assert [window.rows[0][1:], *window.rows[1:]] == [moved[0][1:], *moved[1:]]
        return tree

    def holds_column_by_column(self, tree, window, most):
        """Every token of the window that is not too deep is a node after its ancestors."""
        nodes = {(p, t): n for n, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        for i in range(self.W):
            node = -1
            path = window.rows[0][1 : i + 1] + [row[i] for row in window.rows[1:]]
            for token in path[:most]:
                node = nodes[node, token]


@both
@pytest.mark.parametrize("size", [(1, 2, 1), (4, 2, 2), (3, 4, 2), (6, 3, 0)], ids=str)
def test_the_tree_holds_the_window_and_is_no_larger_than_it_need_be(form, size):
    for seed, sampling in enumerate([Sampling(0), Sampling(), Sampling(0.5)]):
        draft = Watching(7, *size)
        target = TARGETS[form](toy_target(7, 16, seed=seed))
        tree_generate(target, draft, [0, 1], 40, sampling=sampling, rng=RandomSource(seed))
        assert draft.proposals > 10


class Moving(LookaheadDraft):
    """Checks that the new last row is what the target says after each column."""

    moves = 0

    def move(self, window, text):
        before = [list(row) for row in window.rows]
        super().move(window, text)
        if text.rounds:
            passed = text.tokens[: len(text.tokens) - len(text.rounds[-1].emitted)]
            for i in range(len(window.ends)):
                above = before[0][1 : i + 1] + [row[i] for row in before[1:]]
                said = greedy_after(text.target, passed + above)[-1]
                assert (self.N == 2 and i == 0) or window.rows[-1][i] == said
                gram = *(row[i] for row in before), said
                assert gram[1:] in window.pool.after(gram[0])
                self.moves += 1


@pytest.mark.two_ways
@pytest.mark.parametrize("size", [(4, 2, 9), (3, 4, 9), (1, 3, 9)], ids=str)
def test_what_the_target_says_after_the_last_row_is_the_new_row_and_makes_the_n_grams(size):
    target, draft = toy_target(7, 64, seed=3), Moving(7, *size)
    made = tree_generate(target, draft, [0, 1], 40, sampling=Sampling(0.7))
    assert draft.moves > size[0] * len(made.rounds) / 2


def test_a_proposal_without_a_pass_changes_nothing():
    target, draft = toy_target(7, 64), LookaheadDraft(7, 3, 3, 2)
    text = ReadText(target, [0, 1], 20)
    one, two = (draft.propose(text, 9, Sampling(), RandomSource(0)) for _ in range(2))
    assert (one.tokens, one.parents) == (two.tokens, two.parents)
    assert text.memory(draft, None).pool.seen == {}
    assert draft.propose(text, 0, Sampling(), RandomSource(0)).tokens == []


def test_a_new_window_holds_the_texts_last_tokens_and_repeats_a_short_text():
    target, draft = toy_target(7, 64), LookaheadDraft(7, 2, 3, 2)
    assert draft.window(ReadText(target, [0, 1, 2, 3, 4, 5], 9)).rows == [[2, 3], [4, 5]]
    assert draft.window(ReadText(target, [6, 1, 2], 9)).rows == [[2, 6], [1, 2]]


class Twice(LookaheadDraft):
    """Asked twice before each pass."""

    def propose(self, text, *rest):
        one, two = (super(Twice, self).propose(text, *rest) for _ in range(2))
        assert (one.tokens, one.parents) == (two.tokens, two.parents)
        return two


def test_asked_twice_it_learns_once_from_each_pass():
    target = toy_target(7, 32, seed=2)
    once, twice = (
        tree_generate(target, cls(7, 4, 3, 3), [0, 1], 40, sampling=Sampling(0))
        for cls in (LookaheadDraft, Twice)
    )
    assert [r.candidates for r in once.rounds] == [r.candidates for r in twice.rounds]


def test_each_text_has_a_window_of_its_own_and_takes_it_with_it():
    target = toy_target(7, 32)

    def made(draft, seed):
        prompt, rng = [seed, 1, 2], RandomSource(seed)
        return tree_generate(target, draft, prompt, 30, sampling=Sampling(0), rng=rng)

    shared = LookaheadDraft(7, 4, 3, 3)
    for seed in (0, 3, 0):
        alone, after_others = made(LookaheadDraft(7, 4, 3, 3), seed), made(shared, seed)
        assert [r.candidates for r in alone.rounds] == [r.candidates for r in after_others.rounds]


def test_two_texts_in_turn_are_what_each_is_alone():
    target, draft = toy_target(7, 32), LookaheadDraft(7, 3, 3, 2)
    texts = [ReadText(target, [0, 1], 9), ReadText(target, [4, 2], 9)]
    first = [draft.propose(t, 9, Sampling(), RandomSource(0)).tokens for t in texts]
    again = [
        LookaheadDraft(7, 3, 3, 2).propose(t, 9, Sampling(), RandomSource(0)).tokens for t in texts
    ]
    assert first == again and first[0] != first[1]


def test_the_pool_keeps_the_latest_and_each_once():
    pool = NGramPool(2)
    for gram in ([1, 2, 3], [1, 4, 5], [1, 2, 3], [2, 2, 2]):
        pool.add(gram)
    assert pool.after(1) == [(2, 3), (4, 5)] and pool.after(2) == [(2, 2)] and pool.after(9) == []
    pool.add([1, 6, 6])
    assert pool.after(1) == [(6, 6), (2, 3)], "the oldest goes, and what came again is not old"
    nothing = NGramPool(0)
    nothing.add([1, 2])
    assert nothing.after(1) == []


def test_both_run_in_one_pass_a_round():
    for draft in (JacobiDraft(7, 3), LookaheadDraft(7, 4, 3, 3)):
        watched = Watched(toy_target(7, 32))
        made = tree_generate(watched, draft, [0, 1], 60, rng=RandomSource(4))
        assert len(watched.passes) == len(made.rounds) and restarts(made) > 0


def test_the_pool_is_worth_something():
    """A greedy text that runs in a circle: the pool soon knows the circle."""
    target = FusedLanguageModel(toy_target(7, 64, seed=1))
    with_pool, without, chain = (
        tree_generate(target, draft, [0, 1], 60, sampling=Sampling(0)).tokens_per_pass
        for draft in (LookaheadDraft(7, 4, 4, 3), LookaheadDraft(7, 4, 4, 0), JacobiDraft(7, 4))
    )
    assert with_pool > without >= 1 and with_pool > chain >= 1


# ---- chapter 21: a pool that reads the text


def test_a_pool_that_reads_holds_the_latest_of_the_text_after_what_the_window_made():
    target, draft = toy_target(7, 64, seed=3), chapter.Reading(7, 2, 3, 9)
    text = ReadText(target, [0, 1, 2, 0, 1, 3], 20)
    tree = draft.propose(text, 9, Sampling(), RandomSource(0))
    pool = text.memory(draft, None).pool
    assert pool.after(0) == [(1, 3), (1, 2)] and pool.after(1) == [(2, 0)]
    assert pool.after(3) == [], "nothing follows the current token yet"
    assert tree.parents[0] == -1


def test_a_reading_pool_is_told_how_much_it_has_read():
    calls = []
    draft = chapter.Reading(
        7, 2, 3, 9, lambda pool, tokens, N, done: calls.append((len(tokens), N, done))
    )
    made = tree_generate(toy_target(7, 64), draft, [0, 1, 2], 5, sampling=Sampling(0))
    ends = itertools.accumulate([3, *(len(r.emitted) for r in made.rounds)])
    ends = list(ends)[:-1]  # after the last round nobody asks
    assert calls == [(n, 3, done) for done, n in zip([0, *ends], ends, strict=False)]


def test_the_check_of_its_exercise_takes_right_answers_and_refuses_wrong_ones():
    chapter.check_read(chapter.read_along)
    right, wrong = answers(next(path for path in NOTEBOOKS if path.stem.startswith("21")))
    for code, why in [*((code, None) for code in right[1]), *wrong[1]]:
        space = {}
        exec(code, space)
        if why is None:
            chapter.check_read(space["my_read"])
        else:
            with pytest.raises(AssertionError, match=why):
                chapter.check_read(space["my_read"])
