"""Drafts that learn while they serve: what they learn, from whom, and that the text stays exact."""

import math
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from conftest import drained
from texts import off

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer
from nanogpt.drafts import ngram, transformer
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.learning import (
    LearningDraft,
    NetStudent,
    SoftTable,
    forward_kl,
    hybrid,
    overlap,
    rejection,
    reverse_kl,
    said,
    unsampled,
)
from nanogpt.drafts.protocol import Chain
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.engines.adapters import open_nanogpt
from nanogpt.generate import autoregressive_generate
from nanogpt.measure import learning as lab
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.exact import total_variation
from nanogpt.proof.toys import TableDraft, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.grammar import Grammar
from nanogpt.serving.paged import on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import tree_generate, tree_rounds
from nanogpt.trees.tree import ReadText


def table(V=3, seed=0):
    """A soft table over a random draft."""
    return SoftTable(random_draft(V, seed), 0, 2)


def net(V=3):
    """A net that takes a large step every other round."""
    return NetStudent(TransformerDraft(toy_target(V, 8, seed=5)), every=2, rate=0.05).copy()


STUDENTS = {"table": table, "net": net}
every_student = pytest.mark.parametrize("make", STUDENTS.values(), ids=STUDENTS)
shared_or_not = pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])


# ---- What is learnt


def test_a_row_is_added_after_each_context_and_the_base_counts_as_the_prior():
    base = TableDraft([[0.2, 0.8], [0.5, 0.5]])
    draft, p = SoftTable(base, 1, 2, prior=2.0), torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    draft.learn([0, 1, 0], p)  # the last token's p: after (1,), and after (0, 1)
    one = (2 * torch.tensor([0.5, 0.5]) + p[0]) / 3
    assert torch.allclose(draft.get_probs([1, 1]), one)
    assert torch.allclose(draft.get_probs([0, 1]), (2 * one + p[0]) / 3)
    assert torch.equal(draft.get_probs([1, 0]), base.get_probs([1, 0])), "nothing was said after 0"


def test_a_table_that_hears_p_often_says_p():
    draft, p = table(), torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    for _ in range(200):
        draft.learn([0, 1, 2], p[None])
    assert torch.allclose(draft.get_probs([0, 1]), p, atol=1e-3)


def test_a_context_is_no_longer_than_the_text():
    draft = table()
    draft.learn([0], torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64))
    assert set(draft.sums) == {()}


@every_student
def test_a_copy_knows_as_much_and_teaches_nothing_back(make):
    own, p = make(), torch.tensor([[0.7, 0.2, 0.1]] * 4, dtype=torch.float64)
    own.learn([0, 1, 0, 1], p)
    before = own.get_probs([0, 1])
    other = own.copy()
    assert torch.equal(other.get_probs([0, 1]), before)
    other.learn([0, 1, 0, 1], p)
    assert torch.equal(own.get_probs([0, 1]), before)
    assert not torch.equal(other.get_probs([0, 1]), before)


@pytest.mark.parametrize(
    "drafter",
    [
        lambda table: LearningDraft(table, 3),
        lambda table: LearningDraft(table, 3, shared=True),
        lambda table: Chain(table, 3),
    ],
    ids=["apart", "shared", "frozen"],
)
def test_over_a_base_that_remembers_no_token_of_a_batch_is_read_twice(drafter):
    """Each text has a cache of its own there, or one throws the others' away."""
    base, read = deepcopy(toy_target(3, 64, seed=5)), []
    base.register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    draft = drafter(SoftTable(TransformerDraft(base), 0, 2))
    prompts, rngs = [[0, 1, 2, 1], [2, 0]], [RandomSource(seed) for seed in range(2)]
    made = batch_generate(toy_target(3, 64), draft, prompts, 30, samplings=Sampling(), rngs=rngs)
    guesses = sum(len(done.draft_probs) for text in made for done in text.rounds)
    assert 0 < sum(read) <= sum(map(len, prompts)) + 2 * 30 + guesses


def test_a_lesson_lowers_the_nets_loss_on_its_rows_and_reads_no_more_than_the_window():
    student, tokens = net(), [0, 1, 2, 1, 0, 2, 2, 1, 0, 1, 2]  # longer than the window of 8
    p = torch.tensor([[0.7, 0.2, 0.1]] * 10, dtype=torch.float64)

    def loss():
        return float(forward_kl(student.get_probs(tokens[:-1])[None].log(), p[:1]))

    before = loss()
    for _ in range(5):
        student.learn(tokens, p)
    assert loss() < 0.5 * before and student.lessons == 5


@pytest.mark.two_ways
def test_a_step_is_adams_in_the_window_that_the_draft_reads():
    student, p = net(), torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    for tokens in ([0, 1, 2, 1], [0, 1, 2, 1, 0, 2, 2, 1, 0], [0, 1, 2, 1, 0, 2, 2, 1, 0, 1]):
        own, twin = student.copy(), deepcopy(student.draft.model)
        optimizer = torch.optim.Adam(twin.parameters(), 0.05, fused=True)
        start = transformer.window_start(len(tokens) - 1, 8)
        log_q = twin(torch.tensor([tokens[start:-1]]))[0][0, -2:].log_softmax(-1)
        forward_kl(log_q, p).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
        own.learn(tokens, p)
        for one, other in zip(own.draft.model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_a_net_that_learns_is_not_the_shipped_one():
    weights = [w.clone() for w in toy_target(3, 8, seed=5).parameters()]
    student = net()
    student.learn([0, 1, 2], torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64))
    for was, now in zip(weights, toy_target(3, 8, seed=5).parameters(), strict=True):
        assert torch.equal(was, now)


def test_a_reader_drops_what_other_weights_made():
    student = net()
    reader = student.reader()
    reader.get_probs([0, 1, 2, 0])
    student.learn([0, 1, 2], torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64))
    new = TransformerDraft(student.draft.model).get_probs([0, 1, 2, 0, 1])
    assert torch.allclose(reader.get_probs([0, 1, 2, 0, 1]), new, rtol=0, atol=1e-9)


@pytest.mark.two_ways
def test_the_rows_of_a_round_are_those_that_its_tokens_were_judged_by():
    target = toy_target(7, 16)
    tree = Grown(random_draft(7), (2, 2, 1))
    text = ReadText(target, [0, 1], 14)
    for done in tree_rounds(text, tree, rng=RandomSource(3)):
        rows, start = said(done), len(text.tokens) - len(done.emitted)
        for n, row in enumerate(rows[: len(text.tokens) - start]):
            logits = target(torch.tensor([text.tokens[: start + n]]))[0][0, -1]
            assert torch.allclose(row, Sampling().probs(logits), rtol=0, atol=1e-9)
    made = speculative_generate(target, random_draft(7), [0, 1], 14, 3, rng=RandomSource(3))
    assert all(len(said(done)) == len(done.emitted) for done in made.rounds)


def test_the_temperature_is_undone():
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)).double()
    for temperature in (0.5, 1.0, 2.0):
        sampling = Sampling(temperature)
        plain = unsampled(sampling.probs(logits), sampling)
        assert torch.allclose(plain, Sampling().probs(logits), rtol=0, atol=1e-9)
    greedy = Sampling(0).probs(logits)
    assert torch.equal(unsampled(greedy, Sampling(0)), greedy)
    cut = Sampling(0.5, top_k=2)
    assert ((unsampled(cut.probs(logits), cut) > 0).sum(-1) == 2).all()


# ---- Losses


def test_the_losses_are_0_where_q_is_p_and_what_their_names_say_elsewhere():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]], dtype=torch.float64)
    for loss in (forward_kl, reverse_kl, rejection, hybrid):
        assert abs(float(loss(p.log(), p))) < 1e-9 < float(loss(q.log(), p))
    assert torch.allclose(overlap(q.log(), p), torch.tensor([0.7, 0.6], dtype=torch.float64))
    assert math.isclose(float(rejection(q.log(), p)), 0.35)
    assert math.isclose(float(forward_kl(q.log(), p)), float((p * (p / q).log()).sum() / 2))
    assert math.isclose(float(reverse_kl(q.log(), p)), float((q * (q / p).log()).sum() / 2))
    one = torch.eye(3).double()[:2]
    assert math.isclose(
        float(forward_kl(q.log(), one)), -float(q.diagonal().log().mean()), rel_tol=1e-9
    )


def test_the_hybrid_is_kl_at_eta_0_and_tv_far_above_and_its_weight_has_no_gradient():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    logits = torch.tensor([[0.3, 0.1, -0.5]], dtype=torch.float64, requires_grad=True)

    def gradient(loss):
        return torch.autograd.grad(loss(logits.log_softmax(-1), p), logits)[0]

    assert torch.allclose(gradient(partial(hybrid, eta=0.0)), gradient(forward_kl))
    assert torch.allclose(gradient(partial(hybrid, eta=1e3)), gradient(rejection))
    weight = math.exp(-3 * float(overlap(logits.detach().log_softmax(-1), p)))
    mixed = weight * gradient(forward_kl) + (1 - weight) * gradient(rejection)
    assert torch.allclose(gradient(hybrid), mixed)


# ---- Exact, in every loop, with every cache


@every_student
@shared_or_not
def test_the_text_is_the_targets_own_whatever_is_learnt_on_the_way(make, shared):
    target = toy_target(2, 4, seed=1)  # over a restart

    def anew(target, make, *asked, **how):
        return tree_generate(target, LearningDraft(make(2), 1, shared), *asked, **how)

    assert off(anew, target, make, 4) < 1e-12


@every_student
@pytest.mark.parametrize("form", ["tuples", "fused", "paged"])
def test_greedy_texts_are_plain_decodings_in_every_loop_with_every_cache(make, form):
    own = toy_target(3, 8)
    target = {"tuples": own, "fused": FusedLanguageModel(own), "paged": on_pool(own, 64, 3)}[form]
    prompts, greedy = [[0, 1], [2], [1, 1, 0]], Sampling(0)
    plain = [autoregressive_generate(own, x, 12, greedy).tokens for x in prompts]
    for shared in (False, True):
        draft = LearningDraft(make(), 3, shared)
        assert [tree_generate(target, draft, x, 12, greedy).tokens for x in prompts] == plain
        draft = LearningDraft(make(), 3, shared)
        made = batch_generate(target, draft, prompts, 12, samplings=greedy)
        assert [x.tokens for x in made] == plain
        limits = Limits(max_num_seqs=2, prefill_chunk=8)
        server = Server(target, LearningDraft(make(), 3, shared), limits=limits)
        for prompt in prompts:
            server.submit(prompt, 12, greedy)
        answers = drained(server)
        assert [answers[i].tokens for i in range(3)] == plain


def test_a_grammar_holds_while_a_draft_learns():
    letters = CharTokenizer("abc")
    asked = Constraints(grammar=Grammar("(ab|c)*", "abc"))
    draft = LearningDraft(table(), 3, shared=True)
    made = complete(toy_target(3, 8), [0, 1], 16, asked, draft, rng=RandomSource(0))
    assert letters.decode(made.tokens).replace("ab", "").strip("c") in ("", "a")


# ---- Whose lessons


@every_student
def test_apart_a_request_is_bit_for_bit_what_it_is_alone_and_shared_it_is_not(make):
    """By one drafter after another request, in the loop and in a server of one row."""

    def second(shared, neighbour, serve):
        draft = LearningDraft(make(), 3, shared)
        prompts = [[2, 2, 1]] * neighbour + [[0, 1]]
        if not serve:
            made = [
                tree_generate(toy_target(3, 8), draft, x, 18, rng=RandomSource(len(x)))
                for x in prompts
            ]
            return made[-1]
        server = Server(toy_target(3, 8), draft, limits=Limits(max_num_seqs=1))
        for prompt in prompts:
            server.submit(prompt, 18, rng=RandomSource(len(prompt)))
        return drained(server)[neighbour]

    def same(a, b):
        rows = zip(a.rounds, b.rounds, strict=False)
        equal = all(torch.equal(one.draft_probs, other.draft_probs) for one, other in rows)
        return equal and a.tokens == b.tokens and a.alpha == b.alpha

    for serve in (False, True):
        assert same(second(False, 0, serve), second(False, 1, serve))
        assert not same(second(True, 0, serve), second(True, 1, serve))


def test_what_a_text_has_taught_goes_with_it():
    draft = LearningDraft(table(), 3)
    tree_generate(toy_target(3, 8), draft, [0, 1], 20, rng=RandomSource(0))
    assert draft.student.sums == {}
    shared = LearningDraft(table(), 3, shared=True)
    tree_generate(toy_target(3, 8), shared, [0, 1], 20, rng=RandomSource(0))
    assert shared.student.sums


@shared_or_not
def test_what_was_drawn_is_what_is_claimed(shared):
    """In a batch where a neighbour's lesson comes between a draw and its verdict."""
    rngs = [RandomSource(seed) for seed in range(3)]
    claimed = []

    class Watched(LearningDraft):
        def propose(self, text, most, sampling, rng):
            tree = super().propose(text, most, sampling, rng)
            claimed.append((text, len(text.rounds), tree.q.clone()))
            return tree

    texts = [[0, 1], [2], [1, 0, 2]]
    made = batch_generate(toy_target(3, 8), Watched(table(), 3, shared), texts, 20, rngs=rngs)
    judged = [r.draft_probs for x in made for r in x.rounds]
    drawn = {id(text): [] for text, _, _ in claimed}
    for text, _, q in claimed:
        drawn[id(text)].append(q)
    flat = [q for rows in drawn.values() for q in rows]
    assert all(torch.equal(a, b) for a, b in zip(judged, flat, strict=True))


# ---- The moved target


@pytest.fixture(scope="module")
def moved():
    """The moved target, fused, and its tokenizer."""
    return FusedLanguageModel(lab.load_moved()), checkpoint.load()[1]


def test_the_moved_target_is_small_and_its_header_has_what_the_chapter_draws():
    assert lab.MOVED.stat().st_size < 500_000
    facts = checkpoint.read_header(lab.MOVED)["facts"]
    assert facts["steps"] == 200 and facts["val_loss"] < 0.5 < 3 < facts["loss_before"]
    record = facts["learning"]
    assert list(record["served"]) == list(lab.drafters(random_draft(3), toy_target(3, 8)))
    for name, runs in record["served"].items():
        assert len(runs["served"]) == record["seeds"] >= 5, name
    for seeds in record["rates"].values():
        assert list(seeds) == list(lab.LOSSES)


def test_a_shared_table_climbs_back_and_a_frozen_one_does_not(moved):
    target, tokenizer = moved
    base, last, passes = ngram.load(), {}, {}
    for name, draft in {
        "frozen": Chain(base, 6),
        "shared": LearningDraft(SoftTable(base), 6, shared=True),
    }.items():
        rounds = lab.serve(target, draft, tokenizer, 0, 8, 64)
        last[name] = lab.alphas(rounds, 256, 2)[1]
        passes[name] = len(rounds)
        assert sum(seen.emitted for seen in rounds) == 8 * 64
    assert last["frozen"] < 0.45 < 0.55 < last["shared"]
    assert passes["shared"] < 0.8 * passes["frozen"]


def test_the_recorded_start_of_the_curves_is_what_a_run_gives(moved):
    """Within their errors: a processor's last bits make other texts."""
    target, tokenizer = moved
    runs = checkpoint.read_header(lab.MOVED)["facts"]["learning"]["served"]
    rounds = lab.serve(target, Chain(ngram.load(), 6), tokenizer, 0, 4, 96)
    alpha = lab.alphas(rounds, 384, 1)[0]
    assert abs(alpha - sum(runs["table, frozen"]["served"][0]) / 12) < 0.1


@pytest.mark.parametrize("rounds", [160, pytest.param(640, marks=pytest.mark.wide)])
@pytest.mark.parametrize("after", [False, True], ids=["old", "moved"])
def test_tokens_a_pass_without_coins_are_those_of_rounds_that_begin_at_any_place(
    moved, after, rounds
):
    """By a net that overlaps the one target, where a third guess counts, and hardly the other."""
    target = moved[0] if after else FusedLanguageModel(checkpoint.load()[0])
    net = transformer.load().model
    texts, probs = lab.sampled(target, 64, 64, seed=3)
    _, expected = lab.kept(net, texts, probs)
    emitted, rng = [], RandomSource(0)
    for i in range(rounds):
        text = ReadText(target, texts[i % 64, : 1 + 13 * i % 62].tolist(), 4)
        done = next(tree_rounds(text, Chain(TransformerDraft(net), 3), rng=rng))
        emitted.append(len(done.emitted))
    error = np.std(emitted, ddof=1) / math.sqrt(len(emitted))
    assert abs(np.mean(emitted) - expected) < 4 * error, (np.mean(emitted), error, expected)


def test_sampled_texts_are_the_targets_and_so_is_their_p():
    target = toy_target(3, 16)
    texts, probs = lab.sampled(target, 400, 3, seed=0)
    counts = {}
    for text in texts[:, 1:].tolist():
        counts[tuple(text)] = counts.get(tuple(text), 0) + 1 / len(texts)
    assert total_variation(counts, exact_continuations(target, 3, prompt=(0,))) < 0.12
    logits = target(texts[:, :-1])[0]
    assert torch.allclose(probs, Sampling().probs(logits), rtol=0, atol=1e-9)


def test_all_losses_begin_with_the_same_net_and_leave_it_alone(moved):
    target, _ = moved
    net = transformer.load().model
    before = deepcopy(net.state_dict())
    found = lab.by_loss(target, net, seed=1, updates=6)
    assert list(found) == list(lab.LOSSES)
    start = lab.kept(net, *lab.sampled(target, 64, 64, 3))
    assert all(alpha > start[0] for alpha, _ in found.values())
    assert all(torch.equal(before[name], w) for name, w in net.state_dict().items())


def test_the_moved_targets_errors_name_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "MOVED", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py moved"):
        lab.load_moved()


@pytest.mark.parametrize("number", [bug.number for bug in BUGS if bug.decoder == "learning"])
def test_an_audit_can_be_held_against_a_bug_of_a_draft_that_learns(number, tmp_path):
    engine = open_nanogpt(tmp_path, bug=number)
    for name in ("draft", "lookup"):
        made = engine.modes[name]([[1, 2, 3], [4]], 6, Sampling(), 0)
        assert [len(tokens) for tokens in made] == [6, 6]
