"""Copies of the target as its drafts: fewer bits, fewer entries, and nothing of theirs is kept."""

import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import drained, read_text
from texts import off
from torch import nn

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts.itself import CopyDraft, int8_product, quantized, round_to, sink_and_window
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.checks import tensors
from nanogpt.proof.toys import Watched, deep_toy, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Limits, Server
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.trees.loop import TREE, tree_generate, tree_rounds, verify_tree
from nanogpt.trees.tree import keep_path

both = pytest.mark.parametrize("form", TARGETS)


def toy(vocab_size=3, window=8, seed=1):
    """A toy target of two blocks in float64: every token of a context matters."""
    return toy_target(vocab_size, window, seed, n_layer=2)


def copy_of(model, form, bits=None, **options):
    """A draft in this form of the target; bits: None for the target's own weights."""
    return CopyDraft(TARGETS[form](quantized(model, bits) if bits else model), **options)


CHEAP = {  # every way to be cheaper, alone and together
    "8 bits": {"bits": 8},
    "2 bits": {"bits": 2},
    "itself only": {"window": 1},
    "sink and itself": {"window": 1, "sink": 1},
    "window and sink": {"window": 2, "sink": 1},
    "both": {"bits": 3, "window": 2},
    "neither": {},
}
cheap = pytest.mark.parametrize("how", CHEAP.values(), ids=CHEAP)


def test_a_row_is_rounded_to_its_own_steps():
    given = [[0.9, -0.38, 0.1, -0.7], [30, -11, 4, 0], [0] * 4]
    weight = torch.tensor(given, dtype=torch.float64)
    right = torch.tensor([[3, -1, 0, -2], [3, -1, 0, 0], [0] * 4])
    step = torch.tensor([[0.3], [10], [0]], dtype=torch.float64)
    before = weight.clone()
    assert torch.allclose(round_to(weight, 3), right * step, rtol=0, atol=1e-9)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12])
def test_few_numbers_remain_and_none_is_moved_by_more_than_half_a_step(bits):
    weight = torch.randn(6, 50, generator=torch.Generator().manual_seed(bits)).double()
    made, top = round_to(weight, bits), 2 ** (bits - 1) - 1
    step = weight.abs().amax(1, keepdim=True) / top
    assert ((made - weight).abs() <= step / 2 + 1e-9).all()
    whole = made / step
    assert torch.allclose(whole, whole.round(), rtol=0, atol=1e-9)
    assert whole.round().abs().max() == top
    assert torch.allclose(round_to(made, bits), made, rtol=0, atol=1e-9)  # again changes nothing


def test_every_linear_layer_is_rounded_and_nothing_else():
    target = toy()
    before = {name: t.clone() for name, t in target.state_dict().items()}
    made = quantized(target, 4)
    linear = {f"{n}.weight" for n, m in made.named_modules() if isinstance(m, nn.Linear)}
    assert "lm_head.weight" in linear and len(linear) == 2 * (3 * 2 + 3) + 1
    for name, t in made.state_dict().items():
        right = round_to(before[name], 4) if name in linear else before[name]
        assert torch.equal(t, right), name
        assert torch.equal(target.state_dict()[name], before[name]), name
    assert not any(p.requires_grad for p in made.parameters())


def test_a_fused_target_is_not_quantised_in_half():
    with pytest.raises(ValueError, match="FusedLanguageModel\\(quantized"):
        quantized(FusedLanguageModel(toy()), 4)


@pytest.mark.parametrize(
    ("P", "sink", "window", "seen"),
    [
        (0, 0, 1, [0]),
        (5, 0, 1, [5]),
        (5, 0, 3, [3, 4, 5]),
        (5, 2, 1, [0, 1, 5]),
        (5, 4, 3, [0, 1, 2, 3, 4, 5]),
        (5, 9, 9, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_token_sees_the_sink_and_the_window(P, sink, window, seen):
    mask = sink_and_window(P, sink, window)
    assert mask.shape == (1, P + 1) and mask.dtype == torch.bool
    assert mask[0].nonzero().flatten().tolist() == seen


@pytest.mark.pairs
@both
@cheap
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=2)], ids=str)
def test_the_output_is_the_targets_own(form, how, sampling):
    model = toy(3 if sampling.top_k else 2)
    target, draft = TARGETS[form](model), copy_of(model, form, K=2, **how)
    assert off(tree_generate, target, draft, 3, sampling) < 1e-12


@pytest.mark.parametrize("letters", [2, pytest.param(3, marks=pytest.mark.wide)])
@both
def test_it_is_lossless_where_the_context_restarts(form, letters):
    model = toy(letters, window=4)
    target, draft = TARGETS[form](model), copy_of(model, form, 2, K=2, window=2)
    assert off(tree_generate, target, draft, 4) < 1e-12


@pytest.mark.pairs
@both
@cheap
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("K", [1, 5])
def test_greedy_decoding_is_equal_over_restarts(form, how, seed, K):
    model = toy(vocab_size=7, seed=seed)
    target, draft = TARGETS[form](model), copy_of(model, form, K=K, **how)
    right = autoregressive_generate(target, [0, 1, 2], 16, Sampling(0)).tokens
    made = tree_generate(target, draft, [0, 1, 2], 16, sampling=Sampling(0))
    assert made.tokens == right
    assert max(len(r.candidates) for r in made.rounds) <= K


@pytest.mark.pairs
@both
@pytest.mark.parametrize("how", [{}, {"window": 16}, {"window": 3, "sink": 13}], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_copy_that_lacks_nothing_is_always_accepted(form, how, temperature):
    model = toy(window=16)
    target = TARGETS[form](model)
    draft, sampling = copy_of(model, form, K=4, **how), Sampling(temperature)
    made = tree_generate(target, draft, [0, 1], 40, sampling=sampling)
    assert made.alpha == 1


@pytest.mark.pairs
@both
@cheap
@pytest.mark.parametrize("seed", range(3))
def test_accepted_as_often_as_the_overlap_says(form, how, seed):
    model = toy(vocab_size=5, window=32)
    target, draft = TARGETS[form](model), copy_of(model, form, K=3, **how)
    accepted = expected = variance = 0.0
    made = tree_generate(target, draft, [0, 1], 30, rng=RandomSource(seed))
    for r in made.rounds:
        for p, q in zip(r.target_probs, r.draft_probs[: r.n_examined], strict=False):
            alpha = float(torch.minimum(p, q).sum())
            expected, variance = expected + alpha, variance + alpha * (1 - alpha)
        accepted += r.n_accepted
    assert abs(accepted - expected) <= 4 * abs(variance) ** 0.5 + 1e-9


@pytest.mark.two_ways
@both
@cheap
def test_q_is_that_of_one_pass_after_the_targets_entries(form, how):
    """The copy's incremental pass is its teacher-forced one: only its mask and weights differ."""
    model = toy(vocab_size=4, window=32)
    target, draft = TARGETS[form](model), copy_of(model, form, K=4, **how)
    prompt = [0, 1, 2, 3, 0, 2]
    text = read_text(target, prompt, 20)
    tree = draft.propose(text, text.room, Sampling(), RandomSource(3))
    assert tree.parents == [-1, 0, 1, 2]
    P, K = len(prompt) - 1, 4
    idx = torch.tensor([[prompt[-1], *tree.tokens[:-1]]])
    mask = torch.ones(K, P + K, dtype=torch.bool).tril(P)
    for i in range(K if draft.window else 0):
        mask[i, : P + i + 1] = sink_and_window(P + i, draft.sink, draft.window)
    logits = draft.model(idx, past_kvs=read_text(target, prompt, 20).past_kvs, attn_mask=mask)[0]
    assert torch.allclose(tree.q, Sampling().probs(logits[0]), rtol=0, atol=1e-9)


@both
@cheap
def test_nothing_of_the_copys_stays_in_the_cache(form, how):
    """After every round the cache is that of the target's own fresh prefill."""
    model = toy(vocab_size=4, window=32)
    target, draft = TARGETS[form](model), copy_of(model, form, K=3, **how)
    text, before, propose = read_text(target, [0, 1, 2], 14), [], draft.propose

    def watched(text, *asked):
        before[:] = [t.clone() for t in tensors(text.past_kvs)]
        tree = propose(text, *asked)
        for t, right in zip(tensors(text.past_kvs), before, strict=True):
            assert torch.equal(t, right)  # proposing left the text's entries alone
        return tree

    draft.propose = watched
    for _ in tree_rounds(text, draft, rng=RandomSource(5)):
        fresh = tensors(prefill(target, text.tokens[:-1]))
        torch.testing.assert_close(tensors(text.past_kvs), fresh)


def test_entries_that_are_kept_change_the_text():
    """Why all K+1 are written again: with the copy's own, the distribution is another."""
    target, kept = toy(), []

    class Hoarder(CopyDraft):
        def propose(self, text, most, sampling, rng):
            tree = super().propose(text, most, sampling, rng)
            read = torch.tensor([[text.tokens[-1], *tree.tokens[:-1]]])
            kept[:] = [self.model(read, past_kvs=text.past_kvs)[2]]
            return tree

    def keep_the_copys(new_kvs, path, before):
        right = keep_path(new_kvs, path, before)
        m = min(cache_length(kept[0]), cache_length(right))
        return tuple(
            tuple(
                tuple(torch.cat([own[:, :m], t[:, m:]], 1) for own, t in zip(a, b, strict=True))
                for a, b in zip(mine, layer, strict=True)
            )
            for mine, layer in zip(kept[0], right, strict=True)
        )

    broken = partial(tree_generate, steps=replace(TREE, trim=keep_the_copys))
    for bits, n, wrong in ((2, 1, False), (2, 3, True)):
        draft = Hoarder(quantized(target, bits), 1)
        assert (off(broken, target, draft, n) > 1e-4) is wrong


@pytest.mark.two_ways
@both
def test_rows_of_a_batch_are_what_they_are_alone(form):
    model = toy(vocab_size=4, window=16)
    target = TARGETS[form](model)
    draft = copy_of(model, form, 3, K=3, window=4, sink=1)
    prompts, samplings = ([0, 1], [2], [3, 0, 1, 2, 2]), (Sampling(), Sampling(0.5), Sampling(0))
    rngs = [RandomSource(seed) for seed in range(3)]
    made = batch_generate(target, draft, prompts, [30, 9, 20], 3, samplings, rngs)
    for seed, (prompt, n, sampling) in enumerate(zip(prompts, (30, 9, 20), samplings, strict=True)):
        alone = tree_generate(target, draft, prompt, n, sampling=sampling, rng=RandomSource(seed))
        assert made[seed].tokens == alone.tokens


@pytest.mark.two_ways
def test_on_a_paged_cache_and_in_a_server_the_text_is_the_same():
    model = toy(vocab_size=4, window=16)
    pool = BlockPool(model.config, 60, 3, like=model.lm_head.weight)
    target = FusedLanguageModel(model, pool)
    draft = CopyDraft(FusedLanguageModel(quantized(model, 3), pool), 3, window=4, sink=1)
    alone = {}
    server = Server(target, draft, 3, Limits(max_num_seqs=2))
    for seed, (prompt, n) in enumerate((([0, 1], 25), ([2], 9), ([3, 0, 1], 14))):
        right = copy_of(model, "per-head", 3, K=3, window=4, sink=1)
        made = tree_generate(model, right, prompt, n, rng=RandomSource(seed))
        paged = tree_generate(target, draft, prompt, n, rng=RandomSource(seed))
        assert paged.tokens == made.tokens
        greedy = tree_generate(model, right, prompt, n, Sampling(0))
        alone[server.submit(prompt, n, Sampling(0))] = greedy.tokens
    finished = drained(server)
    assert {which: made.tokens for which, made in finished.items()} == alone
    del paged, finished, server
    gc.collect()
    assert pool.free == pool.blocks


@both
def test_in_a_server_too_a_copy_that_lacks_nothing_is_always_accepted(form):
    """It guesses from the text's own cache, never from an empty one: at first, and after restarts.

    A prompt is read in parts, and more requests wait than run at a time.
    """
    target = TARGETS[form](toy(vocab_size=5, window=16))
    limits = Limits(max_num_seqs=2, prefill_chunk=4)
    server = Server(target, CopyDraft(target, 3), 3, limits)
    for seed, prompt in enumerate(([0, 1], [2], [3, 0, 1, 4, 2, 2, 0, 1, 3], [4, 4, 1])):
        server.submit(prompt, 40, Sampling(), RandomSource(seed))
    finished = drained(server).values()
    assert [made.alpha for made in finished] == [1] * 4
    assert all(any(r.n_examined == 3 for r in made.rounds) for made in finished)


def test_a_guess_reads_one_token_at_its_own_position():
    target = toy(vocab_size=4, window=32)
    watched = Watched(quantized(target, 4))
    text = read_text(target, [0, 1, 2, 3], 20)
    tree = CopyDraft(watched, 3, window=2).propose(text, text.room, Sampling(), RandomSource(0))
    given = [(tokens, cache_length(past)) for tokens, past in watched.passes]
    assert given == [([token], 3 + i) for i, token in enumerate([3, *tree.tokens[:-1]])]


@both
def test_no_room_means_an_empty_tree(form):
    model = toy()
    text = read_text(TARGETS[form](model), [0], 1)
    tree = copy_of(model, form, 4).propose(text, text.room, Sampling(), RandomSource(0))
    assert tree.tokens == tree.parents == [] and tree.q.shape == (0, 3)


def test_a_copy_of_another_vocabulary_is_refused_before_any_pass():
    with pytest.raises(ValueError, match="4"):
        tree_generate(toy(3), CopyDraft(toy(4)), [0, 1], 4)


@pytest.mark.parametrize("shape", [(3, 5), (64, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_8_bit_product_is_near_the_true_one_or_absent(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(*shape, bias=bias)
    product = int8_product(linear)
    if product is None:
        pytest.skip("this PyTorch has no 8-bit product")
    x = torch.randn(7, shape[0])
    with torch.no_grad():
        right = linear(x)
    scale = float(right.abs().max())
    assert product(x).shape == right.shape
    assert float((product(x) - right).abs().max()) < 0.05 * scale  # a few of 127 steps
    each = product(torch.eye(shape[0])) - (linear.bias.detach() if bias else 0)
    rounded = round_to(linear.weight.detach().double(), 8).T
    assert torch.allclose(each.double(), rounded, rtol=0, atol=1e-4)  # zeros and ones are exact


def test_a_machine_without_the_kernel_gets_none(monkeypatch):
    def refuse(*args):
        raise RuntimeError("Didn't find engine for operation quantized::linear_prepack")

    monkeypatch.setattr(torch, "quantize_per_channel", refuse)
    assert int8_product(nn.Linear(4, 4)) is None
    monkeypatch.delattr(torch, "quantize_per_channel")  # as a later torch may have it
    assert int8_product(nn.Linear(4, 4)) is None


def test_on_the_shipped_target_more_bits_and_more_entries_guess_better():
    target, tokenizer = checkpoint.load()
    tokens = torch.tensor(tokenizer.encode(load_corpus().text))
    fused = FusedLanguageModel(target)
    prompts = prompts_of(train_val_split(tokens)[1], 3)

    def alpha(draft):
        made = [
            tree_generate(fused, draft, p, 40, rng=RandomSource(i)) for i, p in enumerate(prompts)
        ]
        return sum(m.alpha for m in made) / len(made)

    bits = [alpha(CopyDraft(FusedLanguageModel(quantized(target, b)))) for b in (2, 4, 8)]
    assert bits[0] < 0.5 < 0.75 < bits[1] and bits[2] > 0.95
    windows = [alpha(CopyDraft(fused, window=w, sink=4)) for w in (2, 32)]
    assert windows[0] < 0.75 < 0.85 < windows[1]


def test_deep_toys_serve_both_forms():
    """The chapter's own toy: the copies must disagree with it, or enumeration proves little."""
    model, _ = deep_toy(layers=2)
    text = read_text(model, [0, 1], 9)
    p, _, _ = verify_tree(
        model, text, CopyDraft(model, 1).propose(text, 1, Sampling(), RandomSource(0)), Sampling()
    )
    for draft in (CopyDraft(quantized(model, 2), 1), CopyDraft(model, 1, window=1)):
        q = draft.propose(text, 1, Sampling(), RandomSource(0)).q[0]
        assert 0.02 < float((p[0] - q).abs().sum()) / 2 < 0.9
