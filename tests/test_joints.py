"""Every shipped draft in every loop: what it is alone it is in a batch and in a server, as fast.

Exact and slow is the commonest failure, and no test of the text sees it: at temperature 0 the text
is the target's own whatever is guessed. So the passes are compared.
"""

import functools
import itertools
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import drained, sure

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.ahead import AheadDraft, Drafter, Inline
from nanogpt.drafts.best import BestFirst
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.hybrid import Hybrid, repeats
from nanogpt.drafts.itself import EarlyExitDraft
from nanogpt.drafts.learning import LearningDraft, NetStudent, SoftTable
from nanogpt.drafts.lookup import SuffixDraft
from nanogpt.drafts.protocol import Chain, lifted
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, proposer
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import autoregressive_generate, autoregressive_rounds
from nanogpt.measure.clock import prompts_of
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import (
    SelfDraft,
    deep_toy,
    random_draft,
    random_head,
    toy_states,
    toy_target,
)
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.budget import budget_generate
from nanogpt.serving.constraints import FREE, Constraints, complete
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import CHAIN, speculative_generate, speculative_rounds
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.targets.state import WAYS
from nanogpt.trees.loop import tree_generate, tree_rounds
from nanogpt.trees.tree import Proposer, ReadText, Tree

GREEDY, NEW = Sampling(0), 40
AMPLE = {"limits": Limits(max_num_batched_tokens=10_000, prefill_chunk=128), "nodes": 100}


@pytest.fixture(scope="module")
def shipped():
    """The fused target, three prompts, and the tokens that drafts are counted from."""
    target, tokenizer = checkpoint.load()
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    return FusedLanguageModel(target), prompts_of(held_out, 3), tokens


def draft_of(name, K, target, tokens):
    """A shipped draft by its name, and the target that it guesses for."""
    if name in DRAFTS:
        return DRAFTS[name](tokens, target.config.vocab_size), target
    draft = proposer(name, target, ngram.load(), K)
    return draft, draft.target or target


def in_each_loop(target, draft, K, prompts, n, loops=("alone", "batch", "server")):
    """{loop: the generations of the prompts}: one draft serves all texts of a loop."""
    alone = tree_generate if isinstance(draft, Proposer) else speculative_generate
    how = {} if isinstance(draft, Proposer) else {"K": K}

    def served():
        server = Server(target, draft, K, **AMPLE)
        ids = [server.submit(prompt, n, GREEDY) for prompt in prompts]
        done = drained(server)
        return [done[id] for id in ids]

    decode = {
        "alone": lambda: [alone(target, draft, p, n, sampling=GREEDY, **how) for p in prompts],
        "batch": lambda: batch_generate(target, draft, prompts, n, K, GREEDY),
        "server": served,
    }
    return {loop: decode[loop]() for loop in loops}


@pytest.mark.two_ways
@pytest.mark.parametrize(("texts", "n"), [(2, 24), pytest.param(3, 60, marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", [*DRAFTS, *BEST_PROPOSED])
def test_a_draft_gives_as_many_tokens_a_pass_in_every_loop(name, texts, n, shipped):
    """Prompts whose text is one in every loop: in float32, it may part at a tie of two logits."""
    target, prompts, tokens = shipped
    K = (BEST | BEST_PROPOSED)[name]
    draft, target = draft_of(name, K, target, tokens)
    loops = in_each_loop(target, draft, K, prompts[:texts], n)
    same = [
        made
        for made in zip(*loops.values(), strict=True)
        if len({tuple(g.tokens) for g in made}) == 1
    ]
    assert same, f"{name}: no text is the same in every loop"
    passes = [
        sum(getattr(g, "prefills", 0) + len(g.rounds) for g in made)
        for made in zip(*same, strict=True)
    ]
    pairs = zip(loops, passes, strict=True)
    said = ", ".join(f"{loop} {len(same) * n / needed:.3f}" for loop, needed in pairs)
    # A server reads the current token with the last of its prompt: one round without guesses.
    assert passes[0] == passes[1] >= passes[2], f"{name}, tokens a pass: {said}"


@pytest.mark.parametrize("form", TARGETS.values(), ids=TARGETS)
def test_over_restarts_the_text_is_the_targets_own_where_unread_tokens_and_guesses_share_a_pass(
    form,
):
    """By enumeration, against p of fresh contexts: plain, with a chain, and with a tree."""
    own, prompt, n = toy_target(2, 4, seed=1), [0, 1, 1], 5  # a window of 4: two restarts
    fresh, draft, target = SelfDraft(own, len(prompt)), random_draft(2), form(own)
    exact = {(): 1.0}
    for _ in range(n):
        exact = {
            (*tokens, token): p * float(row[token])
            for tokens, p in exact.items()
            for row in [fresh.get_probs([*prompt, *tokens])]
            for token in range(2)
        }
    for decode in (
        lambda rng: autoregressive_generate(target, prompt, n, rng=rng),
        lambda rng: speculative_generate(target, draft, prompt, n, 3, rng=rng),
        lambda rng: tree_generate(target, Grown(draft, (2, 1)), prompt, n, rng=rng),
    ):
        got = enumerate_outcomes(lambda rng, decode=decode: tuple(decode(rng).tokens))
        assert total_variation(got, exact) < 1e-12


def reads(model):
    """How many tokens each pass of a model reads, noted from now on."""
    noted, forward = [], model.forward

    def watched(idx, *given, **how):
        noted.append(idx.shape[1])
        return forward(idx, *given, **how)

    model.forward = watched
    return noted


@pytest.mark.two_ways
@pytest.mark.parametrize("lift", [lambda d: d, lambda d: Grown(d, (2, 1))], ids=["chain", "tree"])
def test_a_transformer_that_serves_several_texts_reads_each_once(lift):
    """One draft for a batch: as many tokens as a draft for each, alone."""
    target, prompts = (
        toy_target(7, 64),
        [[0, 1, 2, 3, 4, 5], [6, 5, 4, 3, 2, 1], [1, 1, 2, 2, 3, 3]],
    )

    def read_by(drafts, generate):
        model = deepcopy(toy_target(7, 64, seed=3))
        noted = reads(model)
        generate(drafts(model))
        return sum(noted)

    one = read_by(
        lambda model: lift(TransformerDraft(model)),
        lambda draft: batch_generate(target, draft, prompts, 16, 3, GREEDY),
    )
    each = read_by(
        lambda model: [lift(TransformerDraft(model)) for _ in prompts],
        lambda drafts: batch_generate(target, drafts, prompts, 16, 3, GREEDY),
    )
    assert one == each


class SilentIn(Proposer):
    """A draft that does not guess in some rounds, {prompt: their numbers}."""

    def __init__(self, draft, rounds):
        self.draft, self.rounds, self.vocab_size = draft, rounds, draft.vocab_size
        self.reads, self.layers, self.target = draft.reads, draft.layers, draft.target

    def propose(self, text, most, sampling, rng):
        if len(text.rounds) in self.rounds[tuple(text.tokens[: text.n_prompt])]:
            return Tree.empty(self.vocab_size)
        return self.draft.propose(text, most, sampling, rng)


@pytest.mark.two_ways
@pytest.mark.parametrize("name", ["transformer-fused", "lookahead", "eagle3", "block-markov"])
def test_a_preempted_request_is_no_slower_once_it_is_read_again(name, shipped):
    """What a draft remembers outlives the cache: one round without guesses, and then as before.

    So it takes no more rounds than a text whose draft is silent in that same round.
    """
    target, prompts, tokens = shipped
    K = (BEST | BEST_PROPOSED)[name]
    draft, target = draft_of(name, K, target, tokens)

    def served(draft, times):
        server = Server(target, draft, K, **AMPLE)
        for prompt in prompts:
            server.submit(prompt, NEW, GREEDY)
        done = {}
        for _ in range(times):
            for _ in range(4):
                done |= server.step()
            server.preempt()
        done |= drained(server)
        return [done[id] for id in range(len(prompts))]

    def quiet(made):  # the last round may have no room for guesses
        return [i for i, r in enumerate(made.rounds[:-1]) if not r.candidates]

    undisturbed, preempted, pairs = served(draft, 0), served(draft, 2), 0
    for own, made in zip(undisturbed, preempted, strict=True):
        assert len(quiet(made)) <= len(quiet(own)) + 2
    silent = {tuple(x): quiet(made) for x, made in zip(prompts, preempted, strict=True)}
    for own, made in zip(served(SilentIn(lifted(draft, K), silent), 0), preempted, strict=True):
        if own.tokens == made.tokens:  # but for ties in float32
            pairs += 1
            assert len(made.rounds) <= len(own.rounds)
    assert pairs


def test_one_eagle_reads_each_pair_of_each_text_once():
    """Four texts in a batch, one draft: as many pairs as four drafts read, and no more."""
    target, _ = deep_toy()
    prompts = [[0, 1], [2], [1, 1, 0, 2], [0, 2, 1]]

    def pairs_read(drafts):
        head = random_head(target)
        read, forward = [], head.forward

        def watched(features, tokens, past=None, mask=None):
            read.append(tokens.shape[1])
            return forward(features, tokens, past, mask)

        head.forward = watched
        rngs = [RandomSource(b) for b in range(4)]
        batch_generate(target, drafts(head), prompts, 30, rngs=rngs)
        return sum(read)

    one = pairs_read(lambda head: EagleDraft(target, head, 2))
    each = pairs_read(lambda head: [EagleDraft(target, head, 2) for _ in prompts])
    assert one == each


# ---- the drafts of Part VI, and its targets


def net():
    """A net that takes a step every other round."""
    return NetStudent(TransformerDraft(deepcopy(toy_target(5, 16, seed=5))), 2, 0.05).copy()


LATE = {
    "best-first": lambda: BestFirst(random_draft(5), 4),
    "best-first, drawn": lambda: BestFirst(random_draft(5), 4, sure),
    "hybrid": lambda: Hybrid(
        lambda context: repeats(context, 1), Chain(SuffixDraft(5), 3), BestFirst(random_draft(5), 4)
    ),
    "learning table": lambda: LearningDraft(SoftTable(random_draft(5), 0, 2), 3),
    "learning net": lambda: LearningDraft(net(), 3),
}


def a_llama():
    """A model of transformers, of random weights, behind the target's contract."""
    transformers = pytest.importorskip("transformers")
    from nanogpt.engines.causal import CausalModel

    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=5, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, **none,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.7)
    return CausalModel(model, 16)


OTHERS = {way: lambda way=way: toy_states(5, 16, seed=22).remembering(way) for way in WAYS}
OTHERS["transformers"] = a_llama
PROMPTS = [[0, 1], [3], [2, 4, 2]]


@functools.cache
def other(kind):
    """A target of Part VI, and its own greedy texts."""
    target = OTHERS[kind]()
    own = [autoregressive_generate(target, p, 20, GREEDY).tokens for p in PROMPTS]
    assert all(len(set(text)) > 2 for text in own), "a text of one token shows no wrong cache"
    return target, own


@functools.cache
def in_one_loop(name, kind, loop):
    """Asked by the case itself, and by the others of the same draft and target."""
    target, _ = other(kind)
    return in_each_loop(target, LATE[name](), 3, PROMPTS, 20, [loop])[loop]


@pytest.mark.pairs
@pytest.mark.parametrize("loop", ["alone", "batch", "server"])
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", LATE)
def test_the_drafts_of_part_six_meet_its_targets_in_every_loop(name, kind, loop):
    """Over restarts: the text is plain decoding's, and passes are as many alone as in a batch."""
    made, first = in_one_loop(name, kind, loop), in_one_loop(name, kind, "alone")
    assert [g.tokens for g in made] == other(kind)[1]
    passes, right = ([len(g.rounds) for g in texts] for texts in (made, first))
    # A server reads the current token with the last of its prompt: one round without guesses.
    if loop == "server":
        assert all(b <= a + 1 for a, b in zip(right, passes, strict=True)), (right, passes)
    else:
        assert passes == right


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["best-first", "best-first, drawn"])
def test_one_budget_serves_the_targets_of_part_six(name, kind):
    target, own = other(kind)
    batch = budget_generate(target, LATE[name](), PROMPTS, 20, GREEDY)
    assert [g.tokens for g in batch] == own
    assert sum(len(g.rounds) for g in batch) < 3 * 20


# ---- one text in several hands


def test_rounds_taken_up_again_are_those_of_one_run():
    """Whoever is handed the text, and its rng, goes on where the last one stopped."""
    target, draft = toy_target(7, 8), random_draft(7)
    for rounds in (
        autoregressive_rounds,
        lambda text, **how: speculative_rounds(text, draft, 3, **how),
        lambda text, **how: tree_rounds(text, Grown(draft, (2, 1)), **how),
    ):
        whole, pieces = ReadText(target, [1], 30), ReadText(target, [1], 30)
        for _ in rounds(whole, rng=RandomSource(0)):
            pass
        rng = RandomSource(0)
        while not pieces.done:
            next(iter(rounds(pieces, rng=rng)))
        assert pieces.tokens == whole.tokens


def test_one_draft_for_two_texts_that_take_turns_reads_each_once():
    target, model = toy_target(7, 64), toy_target(7, 64, seed=3)
    noted, prompts = reads(model), ([0, 1, 2, 3, 4, 5], [6, 5, 4, 3, 2, 1])

    def read_by(drafts):
        noted.clear()
        texts = [ReadText(target, prompt, 16) for prompt in prompts]
        runs = [
            speculative_rounds(text, draft, 3, GREEDY)
            for text, draft in zip(texts, drafts, strict=True)
        ]
        for turn in itertools.zip_longest(*runs):
            assert turn
        return sum(noted)

    one = TransformerDraft(model)
    assert read_by([one, one]) == read_by([TransformerDraft(model) for _ in prompts])


@pytest.mark.parametrize("inside", ["alone", "first", "otherwise"])
@pytest.mark.parametrize("own", ["exit", "mtp"])
def test_a_draft_that_goes_on_from_another_targets_passes_is_refused(own, inside):
    """By itself, and as either draft of a hybrid."""
    target, head = deep_toy()
    draft = EarlyExitDraft(target, 1, head)
    if own == "mtp":
        draft = EagleDraft(target, random_head(target), 2)
        draft.target = target
    table = Chain(random_draft(target.config.vocab_size), 2)
    if inside == "first":
        draft = Hybrid(repeats, draft, table)
    if inside == "otherwise":
        draft = Hybrid(repeats, table, draft)
    other = deepcopy(target)
    assert tree_generate(target, draft, [0, 1], 5).tokens
    for decode, *asked in ((tree_generate, [0, 1], 5), (batch_generate, [[0, 1]], 5), (Server,)):
        with pytest.raises(ValueError, match=r"decode with draft.target"):
            decode(other, draft, *asked)


def test_two_drafts_that_go_on_from_different_targets_make_no_hybrid():
    target, head = deep_toy()
    one, other = (EarlyExitDraft(model, 1, head) for model in (target, deepcopy(target)))
    assert Hybrid(repeats, one, EarlyExitDraft(target, 1, head)).target is target
    with pytest.raises(ValueError, match="two different targets"):
        Hybrid(repeats, one, other)


@pytest.mark.parametrize("parents", [[1, -1], [-2, -1], [0, -1], [-1, 1], [5, -1]])
def test_a_tree_whose_parents_do_not_come_first_is_refused(parents):
    class Tangled(Proposer):
        vocab_size = 3

        def propose(self, text, most, sampling, rng):
            return Tree([0, 1], parents, torch.full((2, 3), 1 / 3, dtype=torch.float64))

    target = toy_target(3, 8)
    for decode in (
        lambda: tree_generate(target, Tangled(), [0], 6),
        lambda: batch_generate(target, Tangled(), [[0], [1]], 6),
    ):
        with pytest.raises(ValueError, match="each node's comes before it, or is -1"):
            decode()


def test_what_one_draft_remembers_is_never_anothers():
    """A copy of a text has the memories under the ids of drafts that may be gone."""
    text, draft = ReadText(toy_target(3, 8), [0], 5), random_draft(3)
    text.memories[id(draft)] = random_draft(3), "another's"
    assert text.memory(draft, lambda: "its own") == "its own" == text.memory(draft, lambda: "new")


def test_a_fused_model_that_a_loop_has_used_is_of_use_outside_of_it():
    target = FusedLanguageModel(toy_target(7, 8))
    draft = TransformerDraft(FusedLanguageModel(toy_target(7, 8, seed=3)))
    text = ReadText(target, [1, 2], 20)
    next(iter(speculative_rounds(text, draft, 3)))
    assert draft.get_probs([1, 2]).sum() == pytest.approx(1)
    _, _, new_kvs = target(torch.tensor([text.tokens[-1:]]), past_kvs=text.past_kvs)
    assert new_kvs.length == text.cache_length + 1
    a, b = (next(iter(batch_generate(target, draft, [[1], [2, 3]], 9))) for _ in range(2))
    assert a.tokens == b.tokens


def test_a_server_with_a_draft_guesses_unless_it_is_told_not_to():
    target, draft = toy_target(7, 64), SelfDraft(toy_target(7, 64), 1)
    rounds = []
    for K in ({}, {"K": 4}, {"K": 0}):
        server = Server(target, draft, **K)
        server.submit([1], 20, GREEDY)
        rounds.append(len(drained(server)[0].rounds))
    assert rounds[0] == rounds[1] < rounds[2] == 20


def test_a_draft_ahead_does_not_take_another_loops_round_for_its_own():
    """Its guesses were never verified: the round that came is of a chain."""
    target, table = toy_target(7, 64), random_draft(7)
    ahead = AheadDraft(Inline(Drafter(table, 2, [1, 1, 1])))
    text, rng = ReadText(target, [1, 2], 40), RandomSource(3)
    lost = ahead.propose(text, 2, Sampling(), rng)  # and the pass was interrupted
    done = next(iter(speculative_rounds(text, SelfDraft(target, 2), 3, rng=rng)))
    assert done.candidates[: len(lost.tokens)] != lost.tokens, "other guesses: a test needs them"
    for r in tree_rounds(text, ahead, rng=rng):
        context = text.tokens[: len(text.tokens) - len(r.emitted)]
        for guess, q in enumerate(r.draft_probs):
            right = table.get_probs([*context, *r.candidates[:guess]])
            assert torch.equal(q, right)


def test_a_transformers_pass_that_fails_leaves_its_books_right():
    draft, right = (TransformerDraft(toy_target(7, 64, seed=3)) for _ in range(2))
    draft.get_probs([1, 2, 3, 4, 5])
    forward, draft.model.forward = draft.model.forward, None
    with pytest.raises(TypeError):
        draft.get_probs([1, 2, 6])
    draft.model.forward = forward
    for context in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 0]):
        assert torch.allclose(draft.get_probs(context), right.get_probs(context), atol=1e-12)


def test_a_rule_that_emits_nothing_is_refused():
    nothing = replace(CHAIN, accept=lambda *_: [])
    with pytest.raises(ValueError, match="a round emits no token"):
        speculative_generate(toy_target(7, 8), random_draft(7), [1], 5, steps=nothing)


def test_greedy_refuses_logits_that_are_no_numbers():
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="logits are NaN or infinite"):
            GREEDY.probs(torch.tensor([[0.0, bad, 1.0]]))
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        GREEDY.probs(torch.full((1, 3), -torch.inf))
    assert GREEDY.probs(torch.tensor([-torch.inf, 1.0, 0.0])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", ["medusa-tree", "eagle-tree", "eagle", "lookahead"])
def test_no_nodes_are_a_number_too_and_not_the_default(name):
    target, _ = checkpoint.load()
    for nodes in (0, -1):
        with pytest.raises(ValueError, match="nodes"):
            proposer(name, target, None, BEST_PROPOSED[name], nodes)


def test_an_end_repeats_if_it_stands_anywhere_before_from_the_first_token_to_the_last_but_one():
    for n in range(1, 8):
        for context in map(list, itertools.product(range(2), repeat=n)):
            for least in (1, 2, 3):
                starts = range(n - least)  # a match may overlap the end, and begin the text
                again = any(context[i:][:least] == context[-least:] for i in starts)
                assert repeats(context, least) == (again and n > least), context
    assert repeats([1, 2, 3, 4, 9, 1, 2, 3, 4]) and not repeats([1, 2, 3, 4, 9, 2, 3, 4])


@pytest.mark.parametrize("kind", [GPTLanguageModel, FusedLanguageModel])
def test_a_batch_asks_its_drafts_at_once_and_each_text_is_what_it_is_alone(kind):
    """K guesses cost K passes of the draft, not K for each text; over windows of its own."""
    target, small = toy_target(7, 16), toy_target(7, 8, seed=3)
    small = small if kind is GPTLanguageModel else kind(small)
    draft, passes = TransformerDraft(small), []
    small.ln_f.register_forward_hook(lambda _, given, made: passes.append(len(made)))
    prompts = [[1, 2, 3], [4], [1, 2, 6, 5, 0, 3, 1], [1, 2, 3]]
    Ks, lengths = [3, 4, 1, 3], [40, 25, 40, 40]
    samplings = [Sampling(0.7), Sampling(), Sampling(top_k=3), Sampling(0)]
    asked = [FREE, Constraints(bias={2: 1.0}, presence=0.5), FREE, Constraints(repetition=1.5)]
    rngs = [RandomSource(b) for b in range(4)]
    made = batch_generate(target, draft, prompts, lengths, Ks, samplings, rngs, constraints=asked)
    assert set(passes) >= {2, 3, 4} and len(passes) < 0.6 * sum(passes), "texts share its passes"
    passes.clear()
    server = Server(target, draft, 3, Limits(max_num_seqs=4), seed=0)
    for b, prompt in enumerate(prompts):
        how = samplings[b], RandomSource(b), None, asked[b]
        server.submit(prompt, lengths[b], *how)
    served = drained(server)
    assert set(passes) >= {2, 3, 4} and len(passes) < 0.7 * sum(passes), "in a server, too"
    for b, (prompt, n) in enumerate(zip(prompts, lengths, strict=True)):
        if Ks[b] == 3:
            assert served[b].tokens == made[b].tokens
            assert [r.candidates for r in served[b].rounds] == [
                r.candidates for r in made[b].rounds
            ]
        how = asked[b], draft, Ks[b], samplings[b], RandomSource(b)
        alone = complete(target, prompt, n, *how)
        assert made[b].tokens == alone.tokens
        assert [r.candidates for r in made[b].rounds] == [r.candidates for r in alone.rounds]
        for ours, its in zip(made[b].rounds, alone.rounds, strict=True):
            assert torch.allclose(ours.draft_probs, its.draft_probs, atol=1e-12)


def test_a_text_that_fails_where_drafts_are_asked_at_once_fails_alone():
    few = SimpleNamespace(random=iter([0.5] * 9).__next__)  # then StopIteration
    target, draft = toy_target(7, 16), TransformerDraft(toy_target(7, 8, seed=3))
    server, sources = (
        Server(target, draft, 3),
        [RandomSource(0), RandomSource(1, few), RandomSource(2)],
    )
    for b, rng in enumerate(sources):
        server.submit([1, b], 30, rng=rng)
    with pytest.raises(RuntimeError, match="request 1 is dropped"):
        drained(server)
    made = drained(server)
    for b in (0, 2):
        alone = batch_generate(target, draft, [[1, b]], 30, 3, rngs=[RandomSource(b)])
        assert made[b].tokens == alone[0].tokens
