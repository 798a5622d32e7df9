"""The target as its own draft: lossless, its first blocks run once, and exits that are trained."""

from dataclasses import replace

import pytest
import torch
from conftest import random_weights, read_text
from texts import off
from torch import nn

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.data import get_batch
from nanogpt.drafts import itself
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof.checks import tensors
from nanogpt.proof.toys import at_random
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.train import make_optimizer, train
from nanogpt.trees.loop import TREE, tree_generate, tree_rounds, verify_tree
from nanogpt.trees.tree import ReadText, Tree

both = pytest.mark.parametrize("form", TARGETS)
verify_begun = itself.going_on(verify_tree)
GOING_ON = replace(TREE, verify=verify_begun)


def toy(form="per-head", layers=3, vocab_size=3, window=8, seed=1):
    """A toy target of several blocks in float64, and a head that agrees with none of them."""
    model = GPTLanguageModel(GPTConfig(vocab_size, window, layers, 2, 4))
    head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, vocab_size, bias=False))
    at_random(seed, model, head)
    model.lm_head.weight *= 0.4
    return TARGETS[form](model), head


samplings = pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5, top_k=2)], ids=str)


@pytest.mark.pairs
@both
@pytest.mark.parametrize("K", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, 3])
@samplings
def test_the_output_is_the_targets_own(form, K, depth, sampling):
    target, head = toy(form, vocab_size=3 if sampling.top_k else 2)
    draft = itself.EarlyExitDraft(target, depth, head, K)
    assert off(tree_generate, target, draft, 3, sampling, steps=GOING_ON) < 1e-12


@pytest.mark.parametrize("letters", [2, pytest.param(3, marks=pytest.mark.wide)])
@both
def test_it_is_lossless_where_the_context_restarts(form, letters):
    target, head = toy(form, vocab_size=letters, window=4)
    draft = itself.EarlyExitDraft(target, 2, head, 2)
    assert off(tree_generate, target, draft, 4, steps=GOING_ON) < 1e-12


@pytest.mark.pairs
@both
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("K", [1, 5])
def test_greedy_decoding_is_equal_over_restarts(form, depth, seed, K):
    target, head = toy(form, vocab_size=7, seed=seed)
    draft = itself.EarlyExitDraft(target, depth, head, K)
    made = tree_generate(target, draft, [0, 1, 2], 24, sampling=Sampling(0), steps=GOING_ON)
    assert made.tokens == autoregressive_generate(target, [0, 1, 2], 24, Sampling(0)).tokens
    assert max(len(r.candidates) for r in made.rounds) <= K


@pytest.mark.two_ways
@pytest.mark.pairs
@both
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("prompt", [[0], [0, 1, 2]])
def test_a_begun_chain_is_verified_as_any_chain(form, depth, prompt):
    target, head = toy(form)
    text = read_text(target, prompt, 20)
    tree = itself.EarlyExitDraft(target, depth, head, 3).propose(
        text, text.room, Sampling(), RandomSource(1)
    )
    assert isinstance(tree, itself.BegunTree)
    assert tree.begun.depth == depth and tree.begun.stream.shape == (1, 3, 4)
    assert cache_length(tree.begun.past_kvs) == text.cache_length + 3  # not the last drafted one
    read = []
    target.blocks[0].ffwd.register_forward_hook(lambda _, x, __: read.append(x[0].shape[1]))
    p, seen, new_kvs = verify_begun(target, text, tree, Sampling(), (depth, 3))
    assert read == ([1] if text.past_kvs else [4]), "the first block reads the last guess alone"
    cache = [t.clone() for t in tensors(new_kvs)]
    again = read_text(target, prompt, 20)
    plain = Tree(tree.tokens, tree.parents, tree.q)
    right_p, right_seen, right_kvs = verify_tree(target, again, plain, Sampling(), (depth, 3))
    assert torch.allclose(p, right_p, rtol=0, atol=1e-9)
    assert torch.allclose(seen, right_seen, rtol=0, atol=1e-9)
    for t, right in zip(cache, tensors(right_kvs), strict=True):
        assert torch.allclose(t, right, rtol=0, atol=1e-9)


@pytest.mark.two_ways
@both
def test_the_cache_is_that_of_a_fresh_prefill_after_every_round(form):
    target, head = toy(form, vocab_size=4, window=32)
    draft, text = itself.EarlyExitDraft(target, 2, head, 3), read_text(target, [0, 1, 2], 24)
    accepted = set()
    for done in tree_rounds(text, draft, rng=RandomSource(5), steps=GOING_ON):
        fresh = tensors(prefill(target, text.tokens[:-1]))
        torch.testing.assert_close(tensors(text.past_kvs), fresh)
        accepted.add(done.n_accepted)
    assert len(accepted) > 2  # all lengths, or nearly


@pytest.mark.two_ways
@both
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.5), Sampling(0), Sampling(top_k=2)], ids=str
)
def test_with_all_blocks_and_the_targets_head_it_is_always_accepted(form, sampling):
    target, _ = toy(form)
    head = nn.Sequential(target.ln_f, target.lm_head)
    made = tree_generate(
        target, itself.EarlyExitDraft(target, 3, head, 4), [0, 1], 24, sampling=sampling
    )
    assert made.alpha == 1
    for r in made.rounds:  # its q is the target's p
        torch.testing.assert_close(r.draft_probs, r.target_probs[: len(r.candidates)])


def test_a_draft_that_may_guess_nothing_says_so_with_an_empty_tree():
    target, head = toy()
    tree = itself.EarlyExitDraft(target, 1, head).propose(
        read_text(target, [0], 1), 0, Sampling(), RandomSource(0)
    )
    assert tree.tokens == [] and tree.q.shape == (0, 3)


def test_layer_dropout_goes_from_none_to_all_of_it():
    layer_dropout = itself.layer_dropout
    assert [layer_dropout(layer, 4, 0.2) for layer in (0, 3)] == [0, pytest.approx(0.2)]
    assert layer_dropout(1, 3, 1.0) == pytest.approx(2**0.5 - 1)
    assert layer_dropout(0, 1, 0.5) == 0  # a single block is never left out


def block_by_block(model, x, y):
    """The streams after each block, and the loss of the model's own head on each."""
    stream, bias = model.embed(x, None, None, None)
    streams, losses = [], []
    for block in model.blocks:
        stream, _ = block(stream, bias)
        logits = model.lm_head(model.ln_f(stream))
        streams.append(stream)
        losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()))
    return streams, losses


def windows():
    return torch.randint(3, (2, 2, 8), generator=torch.Generator().manual_seed(4))  # x, y


def with_adapter(model, adapter):
    """An exit in float64 that agrees with nobody: random weights, the adapter's among them."""
    return random_weights(itself.exit_head(model, adapter), seed=2)


@pytest.mark.pairs
@both
@pytest.mark.parametrize("K", [1, 2])
@pytest.mark.parametrize("depth", [1, 2])
@samplings
def test_with_a_block_of_its_own_the_output_is_the_targets_too(form, K, depth, sampling):
    target, _ = toy(form, vocab_size=3 if sampling.top_k else 2)
    draft = itself.AdapterDraft(target, depth, with_adapter(target, "block"), K)
    assert off(tree_generate, target, draft, 3, sampling, steps=GOING_ON) < 1e-12


@pytest.mark.two_ways
@pytest.mark.pairs
@both
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5)], ids=str)
def test_its_q_is_that_of_the_adapter_over_the_whole_text(form, depth, sampling):
    """Round by round, over restarts: each q as if the whole context were read at once."""
    model, _ = toy(window=12, vocab_size=7)
    target, head = TARGETS[form](model), with_adapter(model, "block")
    draft = itself.AdapterDraft(target, depth, head, 3)
    made = tree_generate(target, draft, [0, 1, 2], 30, sampling=sampling, rng=RandomSource(2))
    text, accepted = [0, 1, 2], set()
    for r in made.rounds:
        context = text[len(text) - 1 - r.position :]
        for i, row in enumerate(r.draft_probs):
            streams, _ = model.states(torch.tensor([[*context, *r.candidates[:i]]]), depth=depth)
            right = sampling.probs(head(streams[-1])[0, -1])
            assert torch.allclose(row, right, rtol=0, atol=1e-9)
        text += r.emitted
        accepted.add(r.n_accepted)
    assert len(accepted) > 2 and min(r.position for r in made.rounds[3:]) < 8  # it restarted


def test_it_reads_each_true_stream_once():
    """The first guess of a round brings the streams that it has not read; each other brings one."""
    target, _ = toy(window=32, vocab_size=7)
    head, rows = with_adapter(target, "block"), []
    draft = itself.AdapterDraft(target, 2, head, 3)
    real = head[0].read
    head[0].read = lambda x, past=None: (rows.append(x.shape[1]), real(x, past))[1]
    made = tree_generate(target, draft, [0, 1, 2, 3], 20, rng=RandomSource(1))
    for before, r in zip([None, *made.rounds], made.rounds, strict=False):
        if r.candidates:
            # of the prompt all; then what was accepted, and the current one
            new = 4 if before is None else before.n_accepted + 1
            assert rows[: len(r.candidates)] == [new, *[1] * (len(r.candidates) - 1)]
            del rows[: len(r.candidates)]
    assert rows == []


def test_asked_twice_it_answers_the_same_and_without_streams_nothing():
    target, _ = toy()
    draft = itself.AdapterDraft(target, 1, with_adapter(target, "block"), 2)
    text = ReadText(target, [0, 1, 2], 9)
    text.read(draft.layers)
    first, again = (draft.propose(text, 2, Sampling(), RandomSource(3)) for _ in range(2))
    assert first.tokens == again.tokens and torch.allclose(first.q, again.q, rtol=0, atol=1e-9)
    text.hidden = None  # as on a text that another loop began
    assert draft.propose(text, 2, Sampling(), RandomSource(3)).tokens == []


@pytest.mark.parametrize("adapter", itself.ADAPTERS)
def test_an_exit_begins_as_the_targets_own_head(adapter):
    target, _ = toy()
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    head = itself.exit_head(target, adapter).double()
    torch.testing.assert_close(head(x), target.lm_head(target.ln_f(x)))
    assert all(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize("adapter", ["hidden layer", "block"])
def test_a_hidden_layer_looks_at_one_position_and_a_block_at_those_before_it(adapter):
    target, _ = toy()
    layer = with_adapter(target, adapter)[0]
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    moved = x.clone()
    moved[0, 2, 0] += 1.0
    changed = (layer(moved) - layer(x))[0].abs().amax(-1) > 1e-9
    after = adapter == "block"
    assert changed.tolist() == [False, False, True, after, after]


@pytest.mark.two_ways
def test_an_own_block_reads_in_pieces_as_it_reads_at_once():
    block = with_adapter(toy()[0], "block")[0]
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    whole, cache = block.read(x)
    first, past = block.read(x[:, :2])
    rest, past = block.read(x[:, 2:], past)
    assert torch.allclose(torch.cat([first, rest], 1), whole, rtol=0, atol=1e-9)
    assert torch.allclose(past, cache, rtol=0, atol=1e-9) and past.shape == (2, 2, 2, 6, 2)


def test_an_adapter_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no adapter is called 'two'"):
        itself.load_exits(adapter="two")


def test_the_loss_of_exits_is_the_mean_of_theirs_under_the_targets_p():
    model, head = toy()
    exits = nn.ModuleDict({"1": head, "3 linear": itself.exit_head(model)})
    x, y = windows()
    streams, _ = block_by_block(model, x, y)
    p = torch.softmax(model(x)[0], -1)
    q = [torch.softmax(head(streams[0]), -1), torch.softmax(exits["3 linear"](streams[2]), -1)]
    by_hand = sum(-(p * each.log()).sum(-1).mean() for each in q) / 2
    torch.testing.assert_close(itself.exit_loss(exits, model, x), by_hand)


def test_layerskip_weighs_the_last_block_like_all_others_together():
    """1, 2, 3 and 6 of twelve for four blocks; no block is left out at random here."""
    model, (x, y) = toy(layers=4)[0], windows()
    _, losses = block_by_block(model, x, y)
    by_hand = (losses[0] + 2 * losses[1] + 3 * losses[2] + 6 * losses[3]) / 12
    generator = torch.Generator().manual_seed(0)
    got = itself.layerskip_loss(model, x, y, generator, most=0.0)
    torch.testing.assert_close(got, by_hand)


def test_layerskip_leaves_blocks_out_text_by_text_and_the_first_never():
    """At `most` 1, the last block is left out for sure: what it says is what is below it says."""
    model, (x, y) = toy()[0], windows()
    x, y = (each[:1].repeat(200, 1) for each in (x, y))
    (first, second, _), _ = block_by_block(model, x[:1], y[:1])
    seen = []

    def said(stream):
        seen.append(stream)
        return real(stream)

    real, model.ln_f = model.ln_f, nn.Identity()
    model.ln_f.forward = said
    itself.layerskip_loss(model, x, y, torch.Generator().manual_seed(0), most=1.0)
    assert all(torch.allclose(row, first[0], rtol=0, atol=1e-9) for row in seen[0])
    left = [torch.allclose(row, first[0], rtol=0, atol=1e-9) for row in seen[1]]
    kept = [torch.allclose(row, second[0], rtol=0, atol=1e-9) for row in seen[1]]
    assert all(a != b for a, b in zip(left, kept, strict=True))
    assert abs(sum(left) / 200 - (2**0.5 - 1)) < 0.15  # four standard errors
    assert torch.equal(seen[2], seen[1])


def test_exits_learn_and_the_target_stays_as_it_is():
    model, _ = toy()
    model = model.float()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    exits = nn.ModuleDict({"1": itself.exit_head(model), "3": itself.exit_head(model)})
    tokens = torch.randint(3, (500,), generator=torch.Generator().manual_seed(0))

    def loss_of(generator):
        return itself.exit_loss(exits, model, get_batch(tokens, 16, 8, generator)[0])

    losses = [x for _, x in train(exits, make_optimizer(exits), loss_of, 40)]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_layerskip_teaches_every_block():
    torch.manual_seed(0)
    model = GPTLanguageModel(GPTConfig(3, 8, 3, 2, 8))
    tokens = torch.tensor([0, 1, 2] * 100)

    def loss_of(generator):
        x, y = get_batch(tokens, 16, 8, generator)
        return itself.layerskip_loss(model, x, y, generator)

    losses = [x for _, x in train(model, make_optimizer(model), loss_of, 80)]
    assert losses[-1] < 0.4 < losses[0]
    streams, _ = model.eval().states(tokens[None, :8])
    for stream in streams:  # every exit knows what comes next
        assert model.lm_head(model.ln_f(stream))[0, 2:-1].argmax(-1).tolist() == [0, 1, 2, 0, 1]


def test_the_shipped_exits_and_the_shipped_layerskip_target():
    exits = itself.load_exits()
    assert sorted(exits) == [1, 2, 3] and itself.EXITS.stat().st_size < 410_000
    facts = checkpoint.read_header(itself.EXITS)["facts"]
    assert facts["steps"] == 4000  # as for all heads that learn from the frozen target
    assert itself.LAYERSKIP.stat().st_size <= 450_000
    model = itself.load_layerskip()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    header = checkpoint.read_header(itself.LAYERSKIP)["facts"]
    assert header["val_loss"] < 1.6 and header["corpus"] == "Tiny Shakespeare"
    assert 0 < header["val_loss"] - header["control"]["val_loss"] < 0.03  # what its exits cost
    fused = FusedLanguageModel(checkpoint.load()[0])
    alphas = [
        tree_generate(fused, itself.EarlyExitDraft(fused, E, exits[E], 3), [1], 100).alpha
        for E in exits
    ]
    assert alphas[0] > 0.4 and alphas[2] > 0.65
    for E in (1, 2):  # better readers of the same streams
        hidden, block = (itself.load_exits(adapter=name)[E] for name in ("hidden layer", "block"))
        drafts = itself.EarlyExitDraft(fused, E, hidden, 3), itself.AdapterDraft(fused, E, block, 3)
        read = [tree_generate(fused, draft, [1], 100).alpha for draft in drafts]
        assert min(read) > alphas[E - 1]


def test_what_is_no_file_of_exits_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py exits"):
        itself.load_exits(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="lacks"):
        itself.load_exits(checkpoint.TARGET)
