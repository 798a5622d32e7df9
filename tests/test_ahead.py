"""A draft that works while the target verifies: nothing is lost, and nobody waits for the dead."""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ended
from series import ROOT, cells, read

from nanogpt.course import chapter_26
from nanogpt.drafts import ahead
from nanogpt.drafts.ahead import AheadDraft, Branching, BranchingModel, Drafter, Inline, Worker
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Round, autoregressive_generate
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Proposer

GREEDY, V = Sampling(0), 5
CHAPTER = ROOT / "notebooks" / "26_speculating_on_speculation.ipynb"


def target(V=V, block_size=32):
    return toy_target(V, block_size, seed=1)


def neural(V=V, block_size=32, form=lambda model: model):
    return TransformerDraft(form(toy_target(V, block_size, seed=7)))


def draft_of(name, V=V, block_size=32):
    return random_draft(V) if name == "table" else neural(V, block_size, TARGETS[name])


every_draft = pytest.mark.parametrize("name", ["table", *TARGETS])


def test_the_fan_out_of_the_paper():
    shares = ahead.fan_out(24, 5, a=0.8, r=1)
    assert [f"{F:.1f}" for F in shares] == ["4.5", "4.0", "3.6", "3.2", "2.9", "5.8"]
    assert sum(shares) == pytest.approx(24) and ahead.wholes(shares) == [4, 4, 4, 3, 3, 6]


@pytest.mark.parametrize("a", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("r", [0.5, 1, 2])
def test_the_geometric_fan_out_is_the_best_share_of_a_budget(a, r):
    """Where the chance of a miss falls as F^-r, no small shift of the budget finds more."""
    K, shares = 3, np.array(ahead.fan_out(20, 3, a, r))
    ends = np.array([a**k * (1 - a) for k in range(K)] + [a**K])  # how likely each k is
    misses = (ends * shares**-r).sum()
    for i in range(K + 1):
        for j in range(K + 1):
            moved = shares.copy()
            moved[i] += 0.01
            moved[j] -= 0.01
            assert (ends * moved**-r).sum() >= misses - 1e-12


def test_the_guess_that_was_rejected_cannot_be_the_targets_token():
    q = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]).double()
    assert ahead.likely_outcomes(q, [1], [9, 9]) == [(0, 0), (0, 2), (1, 2), (1, 1), (1, 0)]
    assert ahead.likely_outcomes(q, [0], [1, 0]) == [(0, 1)]


def test_saguaro_sampling_by_hand():
    q = torch.tensor([[0.5, 0.3, 0.2]] * 3, dtype=torch.float64)
    tilted = ahead.tilted(q, q, [2, 1, 0], 0.25)  # .125, .075, .2; .125, .3, .2; as it was
    right = [[0.3125, 0.1875, 0.5], [0.2, 0.48, 0.32], [0.5, 0.3, 0.2]]
    torch.testing.assert_close(tilted, torch.tensor(right, dtype=torch.float64))
    torch.testing.assert_close(ahead.tilted(q, q, [3] * 3, 0.5), q)


def exact_and_made(name, K, fans, C, sampling, n, V=3):
    """Total variation from the target's own, and how many answers were hits, and were not."""
    toy, draft, seen = target(V, 16), draft_of(name, V, 16), []

    def decoded(rng):
        mine = AheadDraft(Inline(Drafter(draft, K, fans, C)), shared=True)
        made = tree_generate(toy, mine, [0, 1], n, sampling=sampling, rng=rng)
        seen.extend(answer.hit for answer in mine.answers[1:] if answer.tokens)
        return tuple(made.tokens)

    off = total_variation(enumerate_outcomes(decoded), exact_continuations(toy, n, sampling))
    return off, sum(seen), len(seen) - sum(seen)


@pytest.mark.pairs
@every_draft
@pytest.mark.parametrize("C", [1.0, 0.3])
@pytest.mark.parametrize("fan", [1, 0], ids=["hits", "misses"])
def test_lossless_by_enumeration_hits_and_misses(name, C, fan):
    V = 3 if name == "table" else 2  # a network's passes take longer
    off, hits, misses = exact_and_made(name, 2, [fan] * 3, C, Sampling(), 3, V)
    assert off < 1e-12 and (hits > 0) == (fan > 0)
    assert fan or misses > 0


@pytest.mark.parametrize("sampling", [Sampling(0.5, top_k=2), Sampling(top_p=0.7)])
def test_lossless_with_temperature_and_cuts(sampling):
    assert exact_and_made("table", 2, [1, 1, 1], 0.5, sampling, 3)[0] < 1e-12


def test_lossless_over_several_rounds():
    off, hits, misses = exact_and_made("table", 1, [1, 1], 1.0, Sampling(), 4, V=2)
    assert off < 1e-12 and hits > 0 and misses > 0


@pytest.mark.two_ways
@every_draft
def test_greedy_is_the_targets_own_text_over_restarts(name):
    """Windows of target and draft are left behind, and the request ends in the middle."""
    for n, K in ((1, 3), (7, 2), (50, 3), (40, 1)):
        mine = AheadDraft(Inline(Drafter(draft_of(name), K, [2] * (K + 1))))
        made = tree_generate(target(), mine, [1, 2, 3], n, sampling=GREEDY)
        assert made.tokens == autoregressive_generate(target(), [1, 2, 3], n, GREEDY).tokens


def contexts_of(tree, nodes):
    return [tree.context[:-1] + [tree.tokens[n] for n in tree.path(node)] for node in nodes]


@pytest.mark.two_ways
@pytest.mark.parametrize("trees", [6, pytest.param(20, marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", TARGETS)
def test_one_pass_says_what_the_draft_says_of_each_chain_alone(name, trees):
    """After any growth and any move of the root: q is that of the node's own text."""
    rng, K = np.random.default_rng(0), 3
    for _ in range(trees):
        model = toy_target(V, 32, seed=7)
        tree = BranchingModel(TransformerDraft(TARGETS[name](model)), K)
        tree.begin(rng.integers(V, size=rng.integers(1, 60)).tolist())
        for _ in range(6):
            nodes = [tree.add(0, int(rng.integers(V)))]
            while len(nodes) < 8:
                at = int(rng.choice([0, *nodes]))
                if len(tree.path(at)) <= 2 * K:
                    nodes.append(tree.add(at, int(rng.integers(V))))
            asked = rng.permutation(nodes)[:5].tolist()
            q = tree.after(asked)
            for row, text in zip(q, contexts_of(tree, asked), strict=True):
                alone = model(torch.tensor([text[tree.start :]]))[0][0, -1]
                torch.testing.assert_close(row, torch.softmax(alone, -1))
            last = int(rng.choice([n for n in nodes if len(tree.path(n)) <= K + 1]))
            current = int(rng.choice(tree.path(last)))
            texts = contexts_of(tree, [current, last])
            path = tree.settle(current, last)
            assert contexts_of(tree, [0, path[-1]]) == texts


def test_any_draft_with_get_probs_branches_the_same_way():
    tree, draft = Branching(random_draft(V)), random_draft(V)
    tree.begin([1, 2])
    a, b = tree.add(0, 3), tree.add(0, 4)
    q = tree.after([0, a, b])
    assert torch.equal(q, torch.stack([draft.get_probs([t]) for t in (2, 3, 4)]))
    c = tree.add(b, 0)
    assert tree.settle(b, c) == [0, 1] and (tree.context, tree.tokens) == ([1, 2, 4], [4, 0])


def test_a_hit_is_what_would_have_been_drafted_on_a_miss():
    """Each outcome of each round has numbers of its own: fans change times, and no text."""
    texts = {
        tuple(tree_generate(target(), AheadDraft(by), [1, 2, 3], 40, rng=RandomSource(3)).tokens)
        for by in (
            Inline(Drafter(neural(), 3, [0] * 4)),
            Inline(Drafter(neural(), 3, [1] * 4)),
            Inline(Drafter(neural(), 3, [5] * 4)),
            Inline(Drafter(neural(), 3, [5] * 4), prepare=False),
        )
    }
    assert len(texts) == 1


@every_draft
def test_a_roll_out_that_was_made_short_goes_on_where_there_is_more_room(name):
    """As in a server: 2 guesses, and then 3. What was read to its end is read once more."""
    ahead = AheadDraft(Inline(Drafter(draft_of(name), 3, [V] * 4)))
    propose, draft, text, longer = ahead.propose, draft_of(name), [1], 0
    ahead.propose = lambda text, most, *given: propose(
        text, min(most, 2 + len(text.rounds) % 2), *given
    )
    made = tree_generate(target(), ahead, text, 28, rng=RandomSource(2))
    for r, answer in zip(made.rounds, ahead.answers, strict=True):
        for j, q in enumerate(r.draft_probs):
            right = draft.get_probs([*text, *r.candidates[:j]])
            torch.testing.assert_close(q, right)
        longer += 0 < answer.drawn < len(answer.tokens)
        text = text + r.emitted
    assert longer > 1


def test_with_all_outcomes_prepared_every_answer_is_a_hit():
    draft = AheadDraft(Inline(Drafter(neural(), 3, [V] * 4)))
    made = tree_generate(target(), draft, [1, 2, 3], 25, rng=RandomSource(0))
    assert all(answer.hit for answer in draft.answers[1:] if answer.tokens)
    assert made.tokens_per_pass > 1 and made.prefills == 0


@pytest.mark.parametrize("texts", [1, pytest.param(6, marks=pytest.mark.wide)])
@pytest.mark.parametrize("K", [1, 2, 3])
def test_a_question_in_the_middle_of_the_work_gets_a_whole_answer(K, texts):
    """What was begun is finished, what was not is drafted: the text stays the same."""
    steps = np.random.default_rng(K)

    class Hasty(Inline):
        def ask(self, question):
            if question.outcome is not None:
                for _, _ in zip(range(steps.integers(K + 3)), self.drafter.prepare(), strict=False):
                    pass
            return self.drafter.answer(question)

    drawn = set()
    for seed in range(texts):  # over several windows, where a round has no room for a guess
        hasty = AheadDraft(Hasty(Drafter(neural(), K, [2] * (K + 1))))
        whole = AheadDraft(Inline(Drafter(neural(), K, [2] * (K + 1))))
        one, other = (
            tree_generate(target(), draft, [1, 2, 3], 80, rng=RandomSource(seed)).tokens
            for draft in (hasty, whole)
        )
        assert one == other
        drawn |= {answer.drawn for answer in hasty.answers}
    assert drawn == set(range(K + 1))  # none, some, and all of what was asked for


def test_a_batch_may_use_it_though_each_round_begins_anew():
    draft = AheadDraft(Inline(Drafter(neural(), 2, [1] * 3)))
    prompts = [[1, 2, 3], [4, 0]]
    made = batch_generate(target(), draft, prompts, 12, 2, [GREEDY] * 2, [RandomSource(0)] * 2)
    for prompt, one in zip(prompts, made, strict=True):
        assert one.tokens == autoregressive_generate(target(), prompt, 12, GREEDY).tokens


def test_guesses_that_fill_half_the_drafts_window_are_refused():
    with pytest.raises(ValueError, match="half the draft's window of 32"):
        Drafter(neural(), 8, [1] * 9)


class EachItsOwn(Proposer):
    """A draft that asks one AheadDraft per text; by: a function that says where it asks."""

    def __init__(self, by, vocab_size=V):
        self.by, self.vocab_size, self.drafts = by, vocab_size, {}

    def propose(self, text, *request):
        if id(text) not in self.drafts:
            self.drafts[id(text)] = AheadDraft(self.by())
        return self.drafts[id(text)].propose(text, *request)


TWO = [1, 2, 3], [4, 0]


def in_turns(by, sampling=GREEDY, n=12, model=None):
    """Two texts whose rounds take turns, each with an AheadDraft of its own, which asks by()."""
    draft, rngs = EachItsOwn(by), [RandomSource(0), RandomSource(1)]
    made = batch_generate(model or target(), draft, TWO, n, 2, [sampling] * 2, rngs)
    assert len(draft.drafts) == 2
    return made


def tokens_of(texts):
    return [each.tokens for each in texts]


@functools.cache
def alone(sampling=GREEDY, n=12):
    """The same two texts, one after the other, and each with a drafter of its own."""
    made = []
    for seed, prompt in enumerate(TWO):
        draft = AheadDraft(Inline(Drafter(neural(), 2, [1] * 3)))
        rng = RandomSource(seed)
        made.append(tree_generate(target(), draft, prompt, n, sampling=sampling, rng=rng).tokens)
    return made


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("prepare", [True, False])
def test_two_ahead_drafts_at_one_drafter_write_what_each_writes_alone(sampling, prepare):
    """Neither gets the other's guesses: not at one Inline, and not at two of the same drafter."""
    drafter = Drafter(neural(), 2, [1] * 3)
    one = Inline(drafter, prepare)
    for by in (lambda: one, lambda: Inline(drafter, prepare)):
        assert tokens_of(in_turns(by, sampling)) == alone(sampling)


def test_a_perfect_draft_stays_perfect_when_two_ask_it():
    one = Inline(Drafter(neural(), 2, [1] * 3))
    for made in in_turns(lambda: one, Sampling(), 40, toy_target(V, 32, seed=7)):
        assert made.alpha == 1


def test_a_question_follows_the_one_before_it_of_the_same_text_only():
    def question(text, number, outcome=(0, 1)):
        return ahead.Question(text, number, [1, 2], outcome, 3, GREEDY, None)

    assert question(7, 4).follows(question(7, 3)) and question(7, 4).follows(question(7, 3, None))
    assert not question(7, 4).follows(None) and not question(7, 4, None).follows(question(7, 3))
    assert not question(7, 4).follows(question(8, 3)) and not question(7, 4).follows(question(7, 4))
    assert not question(7, 4).follows(question(7, 2))


def test_only_the_latest_answers_are_remembered(monkeypatch):
    seen, by = [], Inline(Drafter(neural(), 1, [1, 1]))
    ask = by.ask
    monkeypatch.setattr(by, "ask", lambda question: seen.append(ask(question)) or seen[-1])
    monkeypatch.setattr(ahead, "LATEST", 4)
    draft = AheadDraft(by)
    tree_generate(target(), draft, [1, 2, 3], 30, rng=RandomSource(0))
    assert len(seen) > 4 and len(draft.waits) == 4
    assert all(kept is one for kept, one in zip(draft.answers, seen[-4:], strict=True))
    assert all(asked <= came for asked, came in draft.waits)


def test_two_texts_of_one_draft_have_random_numbers_of_their_own():
    """Else their first guesses are the same, and where all are accepted, so are the texts."""
    draft, first = AheadDraft(Inline(Drafter(neural(), 5, [1] * 6))), set()
    for seed in range(8):
        tree_generate(target(), draft, [1, 2, 3], 8, rng=RandomSource(seed))
        first.add(tuple(draft.answers[0].tokens))
        draft.answers.clear()
    assert len(first) > 4


def test_guesses_that_were_asked_for_twice_follow_the_same_text():
    """No round was taken in between: what came of the last one is in the text already."""

    class Written:
        tokens, rounds = [1, 2, 3], []

    def asked(draft):
        return draft.propose(text, 8, Sampling(), RandomSource(0))

    text, draft = Written(), AheadDraft(Inline(Drafter(neural(), 2, [1] * 3)))
    guesses = asked(draft).tokens
    text.tokens = [1, 2, 3, *guesses, 4]
    text.rounds = [Round(guesses, None, None, [*guesses, 4], 3)]
    for _ in range(3):
        tree = asked(draft)
        right = [neural().get_probs(text.tokens + tree.tokens[:i]) for i in range(2)]
        torch.testing.assert_close(tree.q, torch.stack(right))


def test_each_depth_is_tilted_by_its_own_fan():
    """Saguaro sampling favours as many tokens as are prepared for just that number accepted."""
    table, fans, C, texts = random_draft(V), [4, 1, 2, 3], 0.3, []

    class Noted(AheadDraft):
        def propose(self, text, *request):
            texts.append(list(text.tokens))
            return super().propose(text, *request)

    draft = Noted(Inline(Drafter(table, 3, fans, C)))
    tree_generate(target(), draft, [1, 2, 3], 40, rng=RandomSource(0))
    for text, answer in zip(texts, draft.answers, strict=True):
        for i, q in enumerate(answer.q):
            raw = table.get_probs(text + answer.tokens[:i])[None]
            right = ahead.tilted(raw, raw, [fans[i]], C)[0]
            torch.testing.assert_close(torch.from_numpy(q), right)
    assert {answer.drawn for answer in draft.answers} >= {0, 3}


def test_who_waits_awake_gives_way_each_time_and_falls_asleep_soon(monkeypatch):
    """Beside a busy process, the one that is to answer may need the very processor it waits on."""
    done = []

    class Empty:
        def poll(self):
            done.append("look")
            return len(done) > 10**6

    monkeypatch.setattr(ahead, "give_way", lambda: done.append("give way"))
    ahead.stay_awake(Empty(), 0.01)  # a fast machine looks 500,000 times in a tenth of a second
    assert len(done) < 10**6, "nothing comes, and it is still awake"
    assert done[:-1] == ["look", "give way"] * (len(done) // 2) and len(done) > 2


def race(monkeypatch, capsys, free):
    """What the race of chapter 26, cut short, prints where so many processors are free.

    Also the numbers of threads that it asks for; nobody gets more than one here.
    """
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    shown = {cell.id: cell.source for cell in read(CHAPTER).cells}
    codes, chapter = {cell.id for cell in cells(CHAPTER, "code")}, {}
    exec(shown["26-imports"], chapter)
    exec(shown["26-knobs2"], chapter)
    held_out = torch.tensor(chapter["tokenizer"].encode(chapter["load_corpus"]().text))[-9000:]
    chapter |= {
        "neural": chapter["bench"].DRAFTS["transformer-fused"](None, None),
        "target": chapter["targets"]["fused"],
        "prompts": chapter["prompts_of"](held_out, 2),
        "fan_out": ahead.fan_out,
        "free_cores": lambda wanted: min(wanted, free),
        "alpha": 0.8,
        "n_prompts": 1,
        "n_tokens": 24,
        "rounds_shown": 2,
    }
    if free < 2:  # nobody asks it
        chapter["Worker"] = contextlib.nullcontext
    began = list(shown).index("26-race")
    for name in list(shown)[began : 1 + list(shown).index("26-lanes2")]:
        if name in codes:
            exec(shown[name], chapter)
    return capsys.readouterr().out, max(threads)


def test_chapter_26_races_where_two_processors_are_free(monkeypatch, capsys, forked):
    said, threads = race(monkeypatch, capsys, free=2)
    assert "two cores were free for 1 of 1 prompts" in said and said.count("at once over ") == 4
    assert "at once, as raced: the draft is busy" in said and "this allows" in said
    assert "at once, as the equation has it: the draft is busy" in said and threads == 2


def test_chapter_26_says_what_it_cannot_race_where_one_processor_is_free(monkeypatch, capsys):
    said, threads = race(monkeypatch, capsys, free=1)
    assert "two cores were free for 0 of 1 prompts" in said
    assert "in turn, as raced: the draft is busy" in said and "at once" not in said and threads == 1


@pytest.mark.parametrize("T_d", [0.25, 1.0])
@pytest.mark.parametrize("hits", [[True, False, True, True], [False, False], [True] * 3])
def test_the_lanes_of_the_equation_are_as_long_as_it_says(T_d, hits):
    check = 4.0
    draft, checks, answers = chapter_26.hoped_for(hits, T_d * check, check)
    allowed = chapter_26.allowed(T_d, np.mean(hits))
    assert checks[-1][1] == pytest.approx(len(hits) * (1 + T_d) * check / allowed)
    assert [hit for _, hit in answers] == hits
    assert sum(rows == 1 for *_, rows in draft) == hits.count(False)


def test_what_the_equation_allows_by_hand():
    by_hand = {(0.5, 1): 1.5, (0.5, 0): 1.0, (0.5, 0.5): 1.2, (2.0, 1): 1.5, (2.0, 0.5): 1.2}
    for (T_d, hit), gain in by_hand.items():
        assert chapter_26.allowed(T_d, hit) == pytest.approx(gain)


def test_typical_rounds_have_most_texts_hits_and_then_their_length():
    def text(hits, seconds):
        return [(i * seconds, i * seconds + 0.1, hit, []) for i, hit in enumerate(hits)]

    lucky, common = text([True] * 6, 1.0), text([True, True, False, True, False, True], 2.0)
    slow, unlucky = text([True, True, False, True, False, True], 9.0), text([False] * 6, 1.0)
    found = chapter_26.typical([lucky, slow, common, unlucky], 3)
    assert found in (common[1:5], common[2:6]) and sum(hit for *_, hit, _ in found[:-1]) in (1, 2)
    draft, checks, answers = chapter_26.drawn(found, [(4.0, 4.05, 1), (99.0, 99.5, 2)])
    assert len(checks) == len(answers) == 3 and len(draft) == 1
    assert checks[0] == pytest.approx((100, 2000))


def test_idle_is_what_lies_between_the_bars():
    assert chapter_26.gaps([(1, 2, 3), (2, 5, 1)], 6) == [(0.0, 1), (5, 6)]
    assert chapter_26.gaps([], 2) == [(0.0, 2)]


# Real processes: they start in a few seconds each, so that one serves several questions.


FORK = "fork" if sys.platform == "linux" else "spawn"  # it starts at once


@pytest.fixture
def forked(monkeypatch):
    """Where it is not asked how the process starts."""
    context = multiprocessing.get_context(FORK)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


def written(by, n=40, draft=AheadDraft):
    return tree_generate(target(), draft(by), [1, 2, 3], n, rng=RandomSource(3)).tokens


class Unlucky(AheadDraft):
    """Something happens to the worker in the middle of a text."""

    happens = staticmethod(lambda process: process.kill())

    def propose(self, text, *request):
        if len(text.rounds) == 3 and self.by.process is not None:
            self.happens(self.by.process)
        return super().propose(text, *request)


class Stopped(Unlucky):
    happens = staticmethod(lambda process: os.kill(process.pid, signal.SIGSTOP))


class Interrupted(Unlucky):
    happens = staticmethod(lambda process: os.kill(process.pid, signal.SIGINT))


def test_a_process_writes_the_same_text_and_ends_with_its_context():
    drafter = Drafter(neural(form=FusedLanguageModel), 3, [2, 2, 2, 2])
    expected = written(Inline(drafter))
    before = multiprocessing.active_children()
    with Worker(drafter) as worker:
        process = worker.process
        assert written(worker) == expected
        if os.name == "posix":
            assert written(worker, draft=Interrupted) == expected  # Ctrl-C is not for it
        draft = AheadDraft(worker)
        with pytest.raises(KeyboardInterrupt):  # a run that is stopped, its answer still to come
            stopped = AheadDraft(Interrupting(worker))
            tree_generate(target(), stopped, [1, 2, 3], 40, rng=RandomSource(3))
        made = tree_generate(target(), draft, [1, 2, 3], 40, rng=RandomSource(3))
        together = tokens_of(in_turns(lambda: Inline(drafter), Sampling()))
        assert tokens_of(in_turns(lambda: worker, Sampling())) == together
        assert tokens_of(in_turns(lambda: worker)) == alone()
        assert made.tokens == expected and worker.process is process
        pid = process.pid
        with pytest.warns(UserWarning, match="the draft process is gone; drafting goes on"):
            assert written(worker, draft=Unlucky) == expected
        assert worker.process is None and written(worker) == expected
        assert tokens_of(in_turns(lambda: worker, Sampling())) == together
    assert multiprocessing.active_children() == before
    assert os.name != "posix" or ended(pid)


class Interrupting:
    """Ctrl-C while the answer is on its way."""

    def __init__(self, worker):
        self.worker, self.drafter = worker, worker.drafter

    def ask(self, question):
        if question.number == 2:
            self.worker.asked += 1
            self.worker.pipe.send((self.worker.asked, question))
            raise KeyboardInterrupt
        return self.worker.ask(question)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.timeout(300)  # it would hang without its patience
def test_a_hung_process_is_given_up(forked):
    drafter = Drafter(neural(), 3, [2, 2, 2, 2])
    with Worker(drafter) as worker:
        pid, worker.patience = worker.process.pid, 2.0
        with pytest.warns(UserWarning, match="the draft process is gone"):
            tokens = written(worker, draft=Stopped)
    assert tokens == written(Inline(drafter)) and ended(pid)


def parent(pipe):
    with Worker(Drafter(random_draft(3), 1, [1, 1])) as worker:
        pipe.send(worker.process.pid)
        time.sleep(60)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_the_process_ends_when_its_parent_is_killed():
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context(FORK).Process(target=parent, args=(its,))
    process.start()
    try:
        pid = mine.recv()
        assert not ended(pid, 0.1)
    finally:
        process.kill()
        process.join()
    assert ended(pid)


@pytest.mark.two_ways
def test_the_shipped_draft_guesses_as_it_does_alone():
    """Greedy guesses of the real drafter are those of get_probs, wherever no two letters tie."""
    from nanogpt import checkpoint
    from nanogpt.drafts import transformer

    real, tokenizer = checkpoint.load()
    draft = transformer.load()
    prompt = tokenizer.encode("ROMEO:\nBut soft! what light")
    alone = speculative_generate(real, draft, prompt, 40, 3, GREEDY)
    mine = AheadDraft(Inline(Drafter(draft, 3, [2] * 4)))
    made = tree_generate(real, mine, prompt, 40, sampling=GREEDY)
    assert made.tokens == alone.tokens
    assert [r.candidates for r in made.rounds] == [r.candidates for r in alone.rounds]


def test_each_outcome_of_each_round_has_numbers_of_its_own():
    source, again = ahead.Numbers(7, 3, 5), ahead.Numbers(7, 3, 5)
    even, drawn = torch.full((10**5,), 1e-5, dtype=torch.float64), []
    for number in range(3):
        for outcome in [(k, t) for k in range(4) for t in range(5)]:
            here, same = source(number)(outcome), again(number)(outcome)
            drawn += [here.categorical(even) for _ in range(3)]
            assert drawn[-3:] == [same.categorical(even) for _ in range(3)]
    assert len(set(drawn)) > 0.99 * len(drawn)
    assert source(0)((0, 0)).categorical(even) != ahead.Numbers(8, 3, 5)(0)((0, 0)).categorical(
        even
    )


def test_a_guess_that_nobody_read_is_read_once_it_is_settled():
    """It was the last one, all were accepted, and the window left no room for another."""
    model = toy_target(5, 20, seed=3)
    tree = BranchingModel(TransformerDraft(model), 1)
    tree.begin([1, 0, 2, 1])
    read = tree.add(0, 3)
    tree.after([read])
    unread = tree.add(read, 4)
    last = tree.add(unread, 0)
    assert tree.settle(last, last) == [0]
    right = Sampling().probs(model(torch.tensor([[1, 0, 2, 1, 3, 4, 0]]))[0][0, -1:])
    torch.testing.assert_close(tree.after([0]), right)
