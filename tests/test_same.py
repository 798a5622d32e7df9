"""The same dice: token for token the text of plain decoding, whatever guesses; and a fair draw."""

import functools
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import drained, restarts
from texts import off

from nanogpt import checkpoint, same
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.adaptive import adaptive, by_entropy
from nanogpt.drafts.ahead import AheadDraft, Drafter, Inline, Worker
from nanogpt.drafts.eagle import EagleDraft, EagleHead, EagleTree
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.itself import EarlyExitDraft
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft
from nanogpt.drafts.lookup import PromptLookupDraft, SuffixDraft
from nanogpt.drafts.parallel import BlockDraft, BlockDrafter, MedusaDraft, MedusaHeads
from nanogpt.drafts.protocol import lifted
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, proposer
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.clock import prompts_of
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.checks_promises import RULES
from nanogpt.proof.gallery import served
from nanogpt.proof.statistics import chi_squared, chi_squared_limit, p_value
from nanogpt.proof.toys import SelfDraft, WorstDraft, random_draft, random_head, toy_target
from nanogpt.same import (
    SAME,
    SAME_TREE,
    Favourites,
    SameDice,
    accept_same,
    accept_same_tree,
    at_one_place,
    noise,
    scores,
)
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import server as serving
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.constraints import complete
from nanogpt.serving.paged import BlockPool, on_pool
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Proposer, ReadText, Tree

FORMS = {"per-head": lambda target: target, "fused": FusedLanguageModel}
TOYS = {
    (V, window, form): make(toy_target(V, window, seed=V))
    for V, window in ((3, 4), (7, 8))
    for form, make in FORMS.items()
}
SAMPLINGS = (
    *(Sampling(T) for T in (0.7, 1.0, 1.5)),
    *(Sampling(1.0, top_k=2), Sampling(1.5, top_p=0.8), Sampling(0.7, top_k=3, top_p=0.9)),
)
PAIRS = [  # p, q
    ([0.7, 0.3], [0.4, 0.6]),
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.6, 0.3, 0.1], [0.1, 0.3, 0.6]),
    ([0.7, 0.2, 0.1], [0.3, 0.4, 0.3]),
]


def dice(seed, prompt):
    return SameDice(seed, len(prompt))


def decoders(target, prompt, K):
    """{name: decode(prompt, n, sampling, rng, stop)}: chains, trees and lists, drawn and not."""
    V, n_prompt = target.config.vocab_size, min(len(prompt), target.config.block_size)
    table = random_draft(V)
    chains = {
        "table": table,
        "itself": SelfDraft(target, n_prompt),
        "worst": WorstDraft(target, n_prompt),
        "lookup": PromptLookupDraft(V),
    }
    trees = {
        "with": Grown(table, [2, 2], "with"),
        "without": Grown(table, [2, 1, 2], "without"),
        "fixed": Grown(table, [2, 2], "fixed"),
        "favourites": Favourites(table, 6),
        "jacobi": JacobiDraft(V, K),
        "lifted": lifted(table, K),
    }

    def chain(draft, steps=SAME):
        return lambda prompt, n, sampling, rng, stop: speculative_generate(
            target, draft, prompt, n, K, sampling, rng, stop, steps=steps
        )

    def tree(draft):
        return lambda prompt, n, sampling, rng, stop: tree_generate(
            target, draft, prompt, n, sampling, rng, stop, steps=SAME_TREE
        )

    found = {name: chain(draft) for name, draft in chains.items()}
    policy = at_one_place(adaptive(by_entropy(1.0)))
    found["adaptive"] = chain(table, replace(SAME, draft=policy))
    return found | {name: tree(draft) for name, draft in trees.items()}


NAMES = list(decoders(TOYS[3, 4, "fused"], [0], 2))


def random_case(seed):
    """A target, and a request: prompts longer than the window as well, and stop tokens."""
    generator = np.random.default_rng(seed)
    (V, window, _), target = list(TOYS.items())[seed % len(TOYS)]
    prompt = generator.integers(V, size=generator.integers(1, 2 * window)).tolist()
    n, K = int(generator.integers(1, 3 * window)), int(generator.integers(1, window + 2))
    stop = int(generator.integers(V)) if seed % 3 == 0 else None
    sampling = SAMPLINGS[generator.integers(len(SAMPLINGS))]
    return target, K, (prompt, n, sampling), stop


@pytest.mark.parametrize(
    "texts",
    [60, pytest.param(600, marks=pytest.mark.wide), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_texts_are_token_for_token_those_of_plain_decoding(texts):
    """Eleven decoders in turn, both forms of the target, all in float64."""
    over, accepted = 0, Counter()
    for seed in range(texts):
        target, K, (prompt, n, sampling), stop = random_case(seed)
        plain = TOYS[target.config.vocab_size, target.config.block_size, "fused"]
        own = autoregressive_generate(plain, prompt, n, sampling, dice(seed, prompt), stop)
        name = NAMES[seed % len(NAMES)]
        decode = decoders(target, prompt, K)[name]
        made = decode(prompt, n, sampling, dice(seed, prompt), stop)
        assert made.tokens == own.tokens, f"{name}, seed {seed}: {made.tokens}, not {own.tokens}"
        over += restarts(own) > 0
        accepted[name] += sum(r.n_accepted for r in made.rounds)
    assert over > texts / 6, "few texts pass the window"
    assert accepted["itself"] > accepted["table"] > accepted["worst"]


def test_another_seed_is_another_text_and_another_index_as_well():
    target, prompt = TOYS[7, 8, "fused"], [1, 2, 3]
    texts = {
        tuple(autoregressive_generate(target, prompt, 20, rng=SameDice(seed, index)).tokens)
        for seed, index in itertools.product(range(4), (3, 4))
    }
    assert len(texts) == 8


def test_a_draft_that_is_the_target_is_always_right():
    for prompt, seed in (([0, 1], 0), ([2] * 6, 1)):
        target = TOYS[7, 8, "per-head"]
        draft = SelfDraft(target, len(prompt[-8:]))
        made = speculative_generate(
            target, draft, prompt, 30, 4, rng=dice(seed, prompt), steps=SAME
        )
        assert made.alpha == 1


def test_a_draft_that_is_the_target_is_always_right_in_trees_batches_and_servers():
    target, prompts = TOYS[7, 8, "fused"], ([0, 1], [2, 3])
    itself = SelfDraft(target, 2)
    for draft in (lifted(itself, 3), Favourites(itself, 3, sharpness=1e6)):  # it is sure
        rngs = [dice(seed, prompt) for seed, prompt in enumerate(prompts)]
        made = batch_generate(target, draft, prompts, 30, rngs=rngs, steps=SAME_TREE)
        rng = dice(2, prompts[0])
        made.append(tree_generate(target, draft, prompts[0], 30, rng=rng, steps=SAME_TREE))
        server = serving.Server(target, draft, 3)
        for seed, prompt in enumerate(prompts):
            server.submit(prompt, 30, rng=dice(seed, prompt), steps=SAME_TREE)
        while server.requests or server.finished:
            made += server.step().values()
        for r in (r for one in made for r in one.rounds):
            assert len(r.emitted) == len(r.candidates) + 1
        assert all(len(one.rounds) < 12 for one in made)


@pytest.mark.parametrize("how", ["plain", "chain", "tree"])
def test_a_text_that_is_cut_short_goes_on_elsewhere_as_it_would_have(how):
    """Its tokens are the new prompt: index and window are where they were, within the window."""
    target, prompt, table = TOYS[7, 8, "fused"], [3, 1], random_draft(7)
    for seed in range(10):
        whole = autoregressive_generate(target, prompt, 6, rng=dice(seed, prompt)).tokens
        longer = [*prompt, *whole[:3]]
        asked, rng = (longer, 3), dice(seed, longer)
        if how == "plain":
            made = autoregressive_generate(target, *asked, rng=rng)
        elif how == "chain":
            made = speculative_generate(target, table, *asked, 2, rng=rng, steps=SAME)
        else:
            made = tree_generate(target, Favourites(table, 4), *asked, rng=rng, steps=SAME_TREE)
        assert made.tokens == whole[3:]


# ---- The shipped drafts, a batch, a server


@pytest.fixture(scope="module")
def shipped():
    """The fused target, two prompts, and the tokens that drafts are counted from."""
    target, tokenizer = checkpoint.load()
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    return FusedLanguageModel(target), prompts_of(held_out, 2), tokens


@functools.cache
def plain_text(target, prompt, seed):
    """Plain decoding's text by these dice, the same whatever draft it is held against."""
    return autoregressive_generate(target, list(prompt), 32, rng=dice(seed, prompt))


def assert_one_text(own, made, prompt, seed):
    """One text; in float32, it may part at a tie of the two that came furthest, as at T = 0."""
    pairs = enumerate(zip(own.tokens, made.tokens, strict=True))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is not None:
        p = own.rounds[at].target_probs[0]
        best = np.sort(scores(p, noise(seed, len(prompt) + at, len(p))))[-2:]
        assert best[1] - best[0] < 1e-4, f"they part at token {at}, which is no tie: {best}"


@pytest.mark.two_ways
@pytest.mark.parametrize("name", [*DRAFTS, *BEST_PROPOSED])
def test_every_shipped_draft_gives_the_text_of_plain_decoding(name, shipped):
    target, prompts, tokens = shipped
    K = (BEST | BEST_PROPOSED)[name]
    if name in DRAFTS:
        draft = DRAFTS[name](tokens, target.config.vocab_size)
    else:
        draft = proposer(name, target, ngram.load(), K)
        target = draft.target or target
    for seed, prompt in enumerate(prompts):
        own = plain_text(target, tuple(prompt), seed)
        if isinstance(draft, Proposer):
            rng = dice(seed, prompt)
            made = tree_generate(target, draft, prompt, 32, rng=rng, steps=SAME_TREE)
        else:
            rng = dice(seed, prompt)
            made = speculative_generate(target, draft, prompt, 32, K, rng=rng, steps=SAME)
        assert_one_text(own, made, prompt, seed)
        assert made.target_passes <= own.target_passes


@pytest.mark.two_ways
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_row_of_a_batch_is_the_plain_text_of_its_own_dice(form):
    target, table = form(toy_target(7, 8, seed=7)), random_draft(7)
    prompts = [[1], [2, 3, 4], [5] * 11, [6, 0]]
    drafts = [table, Favourites(table, 5), Grown(table, [2, 2]), table]
    samplings = [Sampling(T) for T in (0.7, 1.0, 1.5, 1.0)]
    rngs = [dice(b, prompt) for b, prompt in enumerate(prompts)]
    asked = target, drafts, prompts, 20, [3, 1, 1, 1], samplings, rngs
    for b, made in enumerate(batch_generate(*asked, steps=SAME_TREE)):
        rng = dice(b, prompts[b])
        own = autoregressive_generate(target, prompts[b], 20, samplings[b], rng)
        assert made.tokens == own.tokens


@pytest.mark.parametrize("form", [*FORMS, "paged"])
@pytest.mark.parametrize("capacity", [20, None])
def test_a_request_is_the_plain_text_of_its_dice_however_it_is_served(form, capacity):
    """With preemption, in parts of two tokens, over restarts, beside one with the usual rule."""
    toy, scarce = toy_target(7, 8, seed=7), capacity is not None
    plain = FusedLanguageModel(toy)
    if form == "paged":
        first = torch.zeros(1, dtype=torch.float64)
        pool = BlockPool(toy.config, 5 if capacity else 16, 4, first)
        target, capacity = FusedLanguageModel(toy, pool), None
    else:
        target = FORMS[form](toy)
    limits = serving.Limits(3, prefill_chunk=2, num_blocks=capacity)
    server = serving.Server(target, random_draft(7), 3, limits)
    prompts = [[i % 7] * (1 + 3 * i) for i in range(4)]
    asked = [(prompt, 20, Sampling(0.8)) for prompt in prompts]
    ids = [
        server.submit(*one, rng=dice(seed, one[0]), steps=SAME_TREE)
        for seed, one in enumerate(asked)
    ]
    server.submit([1, 2], 20)
    requests = list(server.queue.by_id.values())
    done = drained(server)
    assert any(request.preempted for request in requests) == scarce
    for seed, (id, one) in enumerate(zip(ids, asked, strict=True)):
        own = autoregressive_generate(plain, *one, rng=dice(seed, one[0]))
        assert done[id].tokens == own.tokens


# ---- Draft by loop by cache: the sampled twin of every test of greedy equality


def random_weights(module):
    """The module in float64, with large random matrices and plain norms: all it reads matters."""
    generator = torch.Generator().manual_seed(0)
    for name, p in module.double().requires_grad_(False).named_parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, generator=generator)
        elif name.endswith("bias"):
            p.zero_()
    return module.eval()


# Another token three places back moves p by a TV of a third: a wrong entry of a cache would show.
DEEP = random_weights(GPTLanguageModel(GPTConfig(3, 16, n_layer=3, n_head=2, n_embd=16)))
DEEP.lm_head.weight *= 0.6
EXITS = random_weights(torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)))
TABLE = random_draft(3)
MODEL = TransformerDraft(toy_target(3, 16, seed=3))  # with a cache of its own
HEADS = random_weights(MedusaHeads(DEEP.config, 2))
BLOCK = random_weights(BlockDrafter(DEEP.config, (1, 3), K=3, reach=3, rank=2))
LAYER = random_weights(EagleHead(DEEP.config, norms=True)).share(DEEP)
GUESSERS = {  # of a target: one draft for all texts of a loop
    "table": lambda target: TABLE,
    "transformer": lambda target: MODEL,
    "lookup": lambda target: PromptLookupDraft(3),
    "suffix": lambda target: SuffixDraft(3),
    "grown": lambda target: Grown(MODEL, (2, 1, 2)),
    "favourites": lambda target: Favourites(MODEL, 6),
    "ahead": lambda target: AheadDraft(Inline(Drafter(TABLE, 3, [1] * 4))),
    "ahead-transformer": lambda target: AheadDraft(Inline(Drafter(MODEL, 3, [2] * 4))),
    "jacobi": lambda target: JacobiDraft(3, 3),
    "lookahead": lambda target: LookaheadDraft(3, 3, 3, 2),
    "exit": lambda target: EarlyExitDraft(target, 1, EXITS, 3),
    "medusa": lambda target: MedusaDraft(HEADS),
    "medusa-tree": lambda target: MedusaDraft(HEADS, [-1, -1, 1], [1, 0, 1]),
    "eagle": lambda target: EagleDraft(target, random_head(DEEP), 3),
    "eagle3": lambda target: EagleDraft(target, random_head(DEEP, (1, 3)), 3),
    "eagle-tree": lambda target: EagleTree(target, random_head(DEEP, (1, 2)), 2, 3, nodes=4),
    "mtp": lambda target: EagleDraft(target, LAYER, 3),
    "block-apart": lambda target: BlockDraft(target, BLOCK, markov=False),
    "block-markov": lambda target: BlockDraft(target, BLOCK),
}
CACHES = {  # of a target; in a pool, four blocks of 4 places hold a window
    "per-head": lambda target, blocks: target,
    "fused": lambda target, blocks: FusedLanguageModel(target),
    "paged": lambda target, blocks: on_pool(target, blocks, 4),
}
ASKED = [  # prompt, temperature; 18 new tokens each, over restarts
    ([2], 0.7),
    ([1, 1, 0, 2] * 5, 1.4),
]
OWN = [
    autoregressive_generate(DEEP, prompt, 18, Sampling(T), dice(seed, prompt)).tokens
    for seed, (prompt, T) in enumerate(ASKED)
]


def alone(cache, guesser):
    """One text after the other, by one draft."""
    target = CACHES[cache](DEEP, 16)
    draft = GUESSERS[guesser](target)
    for seed, (prompt, T) in enumerate(ASKED):
        asked = target, draft, prompt, 18
        how = {"sampling": Sampling(T), "rng": dice(seed, prompt)}
        if isinstance(draft, Proposer):
            yield tree_generate(*asked, steps=SAME_TREE, **how)
        else:
            yield speculative_generate(*asked, 3, steps=SAME, **how)


def in_a_batch(cache, guesser):
    """All of them in the same passes."""
    target = CACHES[cache](DEEP, 32)
    prompts, samplings = [prompt for prompt, _ in ASKED], [Sampling(T) for _, T in ASKED]
    rngs = [dice(seed, prompt) for seed, prompt in enumerate(prompts)]
    asked = target, GUESSERS[guesser](target), prompts, 18, 3, samplings, rngs
    return batch_generate(*asked, steps=SAME_TREE)


def in_a_server(cache, guesser):
    """With room for one and a half of them, so that some are preempted."""
    target = CACHES[cache](DEEP, 6)
    limits = serving.Limits(3, prefill_chunk=4, num_blocks=None if cache == "paged" else 24)
    server = serving.Server(target, GUESSERS[guesser](target), 3, limits)
    for seed, (prompt, T) in enumerate(ASKED):
        server.submit(prompt, 18, Sampling(T), dice(seed, prompt), steps=SAME_TREE)
    requests, done = server.requests, drained(server)
    assert any(request.preempted for request in requests)
    return [done[id] for id in range(len(ASKED))]


@functools.cache
def made_in(loop, cache, name):
    """Asked by the case itself, and by the others of the same draft."""
    return list(loop(cache, name))


@pytest.mark.pairs
@pytest.mark.parametrize("loop", [alone, in_a_batch, in_a_server])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", GUESSERS)
def test_a_draft_gives_the_text_of_plain_decoding_in_every_loop_and_cache(name, cache, loop):
    """And in as many rounds in a batch as alone: it guesses the same, by the noise of the place."""
    made = made_in(loop, cache, name)
    tokens = [one.tokens for one in made]
    assert tokens == OWN, f"{tokens}, not {OWN}"
    assert sum(r.n_accepted for one in made for r in one.rounds) > 0
    if loop is not in_a_server:  # whatever the cache
        first = made_in(alone, "per-head", name)
        assert [len(one.rounds) for one in made] == [len(one.rounds) for one in first]


LONG = toy_target(3, 64, seed=3)  # all of a text fits, and what a draft with a cache reads of it
AHEAD = {"table": TABLE, "transformer": TransformerDraft(toy_target(3, 64, seed=5))}


@pytest.mark.parametrize("fan", [0, 1, 3])
@pytest.mark.parametrize("draft", AHEAD.values(), ids=AHEAD)
def test_drafting_ahead_guesses_what_would_be_guessed_in_turn(draft, fan):
    """Round for round, hit or miss: what the drafter prepares, it draws by the noise of its place.

    With all outcomes prepared, each round is a hit.
    """
    for seed, (prompt, T) in enumerate(ASKED):
        asked, sampling = (prompt, 24), Sampling(T)
        own = autoregressive_generate(LONG, *asked, sampling, dice(seed, prompt))
        ahead = AheadDraft(Inline(Drafter(draft, 3, [fan] * 4)))
        made = tree_generate(LONG, ahead, *asked, sampling, dice(seed, prompt), steps=SAME_TREE)
        turns = speculative_generate(
            LONG, draft, *asked, 3, sampling, dice(seed, prompt), steps=SAME
        )
        assert made.tokens == turns.tokens == own.tokens
        assert [r.candidates for r in made.rounds] == [r.candidates for r in turns.rounds]
        hits = [answer.hit for answer in ahead.answers[1:] if answer.tokens]
        assert hits and all(hits) == (fan == 3) and any(hits) == (fan > 0)


def test_a_process_drafts_ahead_by_the_same_dice(monkeypatch):
    forked = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)  # it starts at once
    draft, prompt = AHEAD["transformer"], ASKED[0][0]
    asked, rngs = (prompt, 24), [dice(0, prompt) for _ in range(2)]

    class Patient(AheadDraft):  # so that something is prepared
        def propose(self, *given):
            time.sleep(0.03)
            return super().propose(*given)

    with Worker(Drafter(draft, 3, [3] * 4)) as worker:
        made = tree_generate(LONG, Patient(worker), *asked, rng=rngs[0], steps=SAME_TREE)
        assert worker.process is not None
    turns = speculative_generate(LONG, draft, *asked, 3, rng=rngs[1], steps=SAME)
    guessed = [(r.candidates, r.emitted) for r in turns.rounds]
    assert [(r.candidates, r.emitted) for r in made.rounds] == guessed


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_constrained_reply_is_the_plain_one_by_the_same_dice(rules):
    """Alone, with a chain and a tree; in a batch; and in a server with too little room."""
    prompts = [[0, 1], [2], [1, 1, 0, 2] * 5]
    rngs = [dice(seed, prompt) for seed, prompt in enumerate(prompts)]
    own = [
        complete(DEEP, prompt, 16, rules, rng=dice(seed, prompt))
        for seed, prompt in enumerate(prompts)
    ]
    made = batch_generate(
        DEEP, MODEL, prompts, 16, 3, rngs=rngs, constraints=rules, steps=SAME_TREE
    )
    limits = serving.Limits(max_num_seqs=3, prefill_chunk=4, num_blocks=24)
    server = serving.Server(DEEP, MODEL, 3, limits)
    for seed, prompt in enumerate(prompts):
        asked = {"constraints": rules, "steps": SAME_TREE}
        server.submit(prompt, 16, rng=dice(seed, prompt), **asked)
    done = drained(server)
    for seed, (prompt, plain) in enumerate(zip(prompts, own, strict=True)):
        found = [made[seed], done[seed]]
        for draft, steps in ((TABLE, SAME), (MODEL, SAME), (Favourites(TABLE, 5), SAME_TREE)):
            rng = dice(seed, prompt)
            found.append(complete(DEEP, prompt, 16, rules, draft, 3, rng=rng, steps=steps))
        for one in found:
            assert (one.tokens, one.finish_reason) == (plain.tokens, plain.finish_reason)


# ---- A fair draw


def test_the_noise_of_a_place_is_the_same_everywhere_and_independent_of_its_neighbours():
    known = [noise(7, 0, 2), noise(7, 1, 2)]
    first = [-0.46925, 2.90854, 0.42305, 2.79054]
    assert np.allclose(np.concatenate(known), first, rtol=0, atol=1e-3)
    assert np.array_equal(noise(7, 0, 5)[:2], known[0])  # of the vocabulary's size, too
    others = np.random.default_rng(7), np.random.default_rng([7, 1])  # coins; 7 + (1 << 32)
    for place, other in zip(known, others, strict=True):
        assert not np.allclose(place, other.gumbel(size=2), rtol=0, atol=1e-3)
    assert not np.allclose(noise(7 + (1 << 32), 0, 2), known[1], rtol=0, atol=1e-3)
    many = np.array([noise(3, i, 2) for i in range(4000)])
    assert abs(many.mean() - 0.5772) < 0.06  # Euler's constant; 4 standard errors
    correlations = np.corrcoef(np.concatenate([many[1:], many[:-1]], axis=1).T)
    assert abs(correlations - np.eye(4)).max() < 4 / 4000**0.5


def joint_of(decode, n_texts):
    """How often each text came, over the seeds 0, 1, …"""
    return Counter(tuple(decode(seed).tokens) for seed in range(n_texts))


N_TEXTS = 300


def test_texts_by_the_same_dice_come_as_often_as_the_target_says():
    """Joint counts of five tokens over a restart: not a token alone, but how they go together."""
    target, prompt = FusedLanguageModel(toy_target(2, 4, seed=1)), [0, 1, 1]
    exact = exact_continuations(target, 5, prompt=(0, 1, 1))
    counts = joint_of(
        lambda seed: autoregressive_generate(target, prompt, 5, rng=dice(seed, prompt)), N_TEXTS
    )
    statistic, freedom = chi_squared(counts, exact, N_TEXTS)
    assert statistic < chi_squared_limit(freedom), p_value(statistic, freedom)


def test_an_index_that_counts_within_the_window_repeats_its_noise_and_counts_tell():
    """Both decoders make the mistake alike, so their texts agree: only the counts see it."""
    target, prompt, window = FusedLanguageModel(toy_target(2, 4, seed=1)), [0, 1, 1], 4

    class InTheWindow(SameDice):
        def categorical(self, probs, cdf=None):
            index, self.index = self.index, self.index % (window // 2)
            token = super().categorical(probs, cdf)
            self.index = index + 1
            return token

    def plain(seed):
        return autoregressive_generate(target, prompt, 5, rng=InTheWindow(seed, len(prompt)))

    def drafted(seed):
        rng = InTheWindow(seed, len(prompt))
        return speculative_generate(target, random_draft(2), prompt, 5, 3, rng=rng, steps=SAME)

    assert all(plain(seed).tokens == drafted(seed).tokens for seed in range(30))
    exact = exact_continuations(target, 5, prompt=(0, 1, 1))
    statistic, freedom = chi_squared(joint_of(plain, N_TEXTS), exact, N_TEXTS)
    assert statistic > 2 * chi_squared_limit(freedom)


def test_the_rule_is_exact_with_independent_draws_too_by_enumeration():
    """Accept if equal, without any shared noise: no bias, and only Σ p q is accepted."""
    target, draft = toy_target(2, 8, seed=2), random_draft(2)
    chain = replace(CHAIN, accept=accept_same)
    assert off(speculative_generate, target, draft, 3, K=2, steps=chain) < 1e-12

    def of_tree(*asked, rng, **how):
        rng.index = 0  # for the step that rewinds it: an enumeration draws anew every time
        return tree_generate(*asked, rng=rng, steps=SAME_TREE, **how)

    assert off(of_tree, target, Grown(draft, [2, 1], "without"), 3) < 1e-12


# ---- How often the two agree


def agreement(p, q):
    """The chance that both races have one winner: Σ_x 1 / Σ_y max(p_y / p_x, q_y / q_x)."""
    p, q = np.asarray(p), np.asarray(q)
    both = [x for x in range(len(p)) if p[x] > 0 and q[x] > 0]
    return sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both)


@pytest.mark.parametrize("p, q", PAIRS)
def test_draft_and_target_agree_as_often_as_the_formula_says(p, q):
    n = 400_000
    g = np.random.default_rng(0).gumbel(size=(n, len(p)))
    seen = ((np.log(p) + g).argmax(-1) == (np.log(q) + g).argmax(-1)).mean()
    exact = agreement(p, q)
    assert abs(seen - exact) < 4 * (exact * (1 - exact) / n) ** 0.5


def test_they_agree_at_least_as_often_as_the_bound_and_no_oftener_than_the_overlap():
    generator = np.random.default_rng(1)
    for V in (2, 3, 10, 65):
        for p, q in generator.dirichlet(np.full(V, 0.4), (200, 2)):
            apart = abs(p - q).sum() / 2
            assert (1 - apart) / (1 + apart) - 1e-9 <= agreement(p, q) <= 1 - apart + 1e-9
            if V == 2:
                assert abs(agreement(p, q) - (1 - apart)) < 1e-9


def test_the_dice_agree_as_the_formula_says():
    """SameDice's own noise, place by place: what the loops draw by."""
    (p, q), n = PAIRS[3], 4000
    agreed = 0
    for index in range(n):
        first = SameDice(0, index).categorical(np.array(q))
        agreed += first == SameDice(0, index).categorical(np.array(p))
    exact = agreement(p, q)
    assert abs(agreed / n - exact) < 4 * (exact * (1 - exact) / n) ** 0.5


def test_siblings_are_draws_without_replacement_and_one_more_never_hurts():
    """Grown's second sibling at one place is the race's second: q without the first, renormalised.

    Favourites' siblings are those that came furthest.
    """
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for index in range(200):
        order = (-scores(q, noise(0, index, 3))).argsort().tolist()
        first = SameDice(0, index).categorical(q)
        left = q.clone()
        left[first] = 0
        second = SameDice(0, index).categorical(left / left.sum())
        assert [first, second] == order[:2]


def test_favourites_make_the_best_tree_of_so_many_nodes():
    target, table = toy_target(3, 8), random_draft(3)
    for seed in range(20):
        text, rng = ReadText(target, [0, 2], 6), SameDice(seed, 2)
        worths = path_worths(table, [0, 2], 3, rng)
        for nodes in (1, 2, 5):  # fewer than there are tokens, and more
            tree, paths = Favourites(table, nodes).propose(text, 3, Sampling(), rng), []
            for token, parent in zip(tree.tokens, tree.parents, strict=True):
                paths.append((*(paths[parent] if parent >= 0 else ()), token))
            assert paths == sorted(worths, key=worths.get, reverse=True)[:nodes]


def path_worths(table, context, depth, rng, sharpness=3.0):
    """{path: worth} of all paths of up to `depth` tokens, one by one."""
    found = {(): 1.0}
    for n in range(1, depth + 1):
        for path in itertools.product(range(3), repeat=n):
            q = table.get_probs([*context, *path[:-1]])
            share = np.exp(sharpness * scores(q, noise(rng.seed, rng.index + n - 1, 3)))
            found[path] = found[path[:-1]] * share[path[-1]] / share.sum()
    return {path: worth for path, worth in found.items() if path}


# ---- Bugs, and bad input


def test_noise_that_drew_the_guess_may_not_draw_its_replacement(monkeypatch):
    """Bug 68 of the gallery, counted: p/q with the guess's own noise is off, and ours is not."""
    p, q = (torch.tensor(row).double() for row in ([0.5, 0.5, 0], [0.05, 0.35, 0.6]))
    (bug,) = (bug for bug in BUGS if bug.number == 68)
    wrong, n, off = served(bug)["nanogpt_with_a_bug.same"], 3000, {}
    once = functools.cache(same.noise)  # both draw by it, again and again
    for module in (same, wrong):
        monkeypatch.setattr(module, "noise", once)
        counts = Counter()
        for seed in range(n):
            rng = module.SameDice(seed, 0)
            guess, rng.index = rng.categorical(q), 0
            counts[module.accept_same([guess], q[None], torch.stack([p, p]), rng)[0]] += 1
        off[module] = chi_squared(counts, {0: 0.5, 1: 0.5}, n)[0]
    assert off[same] < chi_squared_limit(1) < off[wrong] / 2


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: SameDice(0, 0).categorical(np.array([0.5, 0.4])), "sum to 1"),
        (lambda: accept_same([0], torch.ones(1, 2), torch.ones(2, 2), RandomSource(0)), "sum to"),
        (lambda: accept_same_tree(Tree.empty(2), torch.ones(1, 2), RandomSource(0)), "sum to 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_the_same_dice_are_the_loops_of_chapters_07_and_16_with_two_other_steps():
    assert (SAME.verify, SAME.trim) == (CHAIN.verify, CHAIN.trim)
    assert SAME.accept is accept_same
