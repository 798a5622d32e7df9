"""The model keeps its contract: causal, stateless, and the same with a cache as without."""

import dataclasses
import itertools

import pytest
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.model import GPTConfig, GPTLanguageModel, causal_mask


def random_tokens(model, T, B=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (B, T), generator=generator)


def in_chunks(model, idx, sizes, **kwargs):
    """Logits of idx passed in chunks of the given sizes, each behind the cache of those before."""
    past_kvs, parts = None, []
    for chunk in idx.split(sizes, dim=1):
        logits, _, past_kvs = model(chunk, past_kvs=past_kvs, **kwargs)
        parts.append(logits)
    return torch.cat(parts, dim=1), past_kvs


def splits(n):
    """Every way to write n as an ordered sum of positive sizes: 2^(n-1) of them."""
    if n == 0:
        yield []
    for first in range(1, n + 1):
        for rest in splits(n - first):
            yield [first, *rest]


def test_the_default_config_is_the_shipped_targets():
    parameters = sum(p.numel() for p in GPTLanguageModel(GPTConfig()).parameters())
    assert parameters == 215_808


def test_shapes_of_logits_loss_and_cache(tiny):
    idx = random_tokens(tiny, T=5, B=3)
    logits, loss, kvs = tiny(idx, targets=idx)
    assert logits.shape == (3, 5, 11) and loss.shape == ()
    assert len(kvs) == 2 and all(len(layer) == 2 for layer in kvs)
    assert type(kvs) is tuple and all(type(layer) is tuple for layer in kvs)
    assert all(t.shape == (3, 5, 4) for layer in kvs for kv in layer for t in kv)
    assert tiny(idx)[1] is None
    streams, kvs = tiny.states(idx)
    assert (
        [x.shape for x in streams] == 2 * [(3, 5, 8)]
        and cache_length(kvs) == 5
        and cache_length(None) == 0
    )


def test_loss_is_the_mean_negative_log_probability_of_the_targets(tiny):
    idx = random_tokens(tiny, T=6, B=2)
    logits, loss, _ = tiny(idx[:, :-1], targets=idx[:, 1:])
    logp = torch.log_softmax(logits, dim=-1).gather(-1, idx[:, 1:, None])
    assert torch.isclose(loss, -logp.mean())


@pytest.mark.two_ways
def test_every_split_of_a_context_into_chunks_gives_the_same_logits(tiny):
    idx = random_tokens(tiny, T=8, B=2)
    whole, _, kvs = tiny(idx)
    for sizes in splits(8):
        parts, part_kvs = in_chunks(tiny, idx, sizes)
        said = f"in chunks of {sizes}"
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12, msg=said)
        for layer, part_layer in zip(kvs, part_kvs, strict=True):
            for kv, part_kv in zip(layer, part_layer, strict=True):
                torch.testing.assert_close(part_kv, kv, rtol=0, atol=1e-12, msg=said)


@pytest.mark.two_ways
def test_random_splits_of_a_whole_window_on_the_shipped_model():
    model, _ = checkpoint.load()
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        idx = random_tokens(model, T=model.config.block_size, seed=seed)
        cuts = torch.randperm(model.config.block_size - 1, generator=generator)[: seed + 1] + 1
        edges = [0, *sorted(cuts.tolist()), model.config.block_size]
        sizes = [b - a for a, b in itertools.pairwise(edges)]
        with torch.no_grad():
            parts, _ = in_chunks(model, idx, sizes)
            torch.testing.assert_close(parts, model(idx)[0], rtol=0, atol=1e-4)


def test_train_and_eval_mode_agree_with_a_cache_at_dropout_0(tiny):
    idx = random_tokens(tiny, T=9)
    expected, _ = in_chunks(tiny, idx, [4, 1, 4])
    actual, _ = in_chunks(tiny.train(), idx, [4, 1, 4])
    assert torch.equal(actual, expected)


def test_the_model_keeps_no_state_between_calls(tiny):
    idx = random_tokens(tiny, T=6)
    before = {name: t.clone() for name, t in tiny.state_dict().items()}
    _, _, kvs = tiny(idx[:, :3])
    first = tiny(idx[:, 3:], past_kvs=kvs)[0]
    tiny(random_tokens(tiny, T=12, B=2, seed=7))  # another text in between
    second = tiny(idx[:, 3:], past_kvs=kvs)[0]
    assert torch.equal(first, second)
    assert cache_length(kvs) == 3, "a pass must not lengthen the cache that it was handed"
    assert all(torch.equal(before[name], t) for name, t in tiny.state_dict().items())
    with pytest.raises(ValueError, match="zip"):
        tiny(idx[:, 3:], past_kvs=kvs[:1])  # a layer too few


def test_a_token_changes_no_logits_before_it(tiny):
    idx = random_tokens(tiny, T=10)
    for i in range(10):
        changed = idx.clone()
        changed[0, i] = (changed[0, i] + 1) % tiny.config.vocab_size
        difference = (tiny(idx)[0] - tiny(changed)[0]).abs().amax(-1)[0]  # (T,)
        assert (difference[:i] == 0).all() and (difference[i:] > 1e-9).all()


@pytest.mark.parametrize("T,P", [(1, 0), (1, 5), (4, 0), (3, 2)])
def test_the_causal_mask_lets_a_row_see_the_cache_and_itself(T, P):
    mask = causal_mask(T, P)
    expected = [[j <= P + i for j in range(P + T)] for i in range(T)]
    assert mask.dtype == torch.bool and mask.tolist() == expected


@pytest.mark.two_ways
def test_an_attention_mask_decides_who_sees_whom(tiny):
    """Two continuations side by side in one pass, as tree verification will need it."""
    prefix, a, b = random_tokens(tiny, T=4), torch.tensor([[3]]), torch.tensor([[9]])
    _, _, kvs = tiny(prefix)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]], dtype=torch.bool)
    pos = torch.tensor([4, 4])
    both = tiny(torch.cat([a, b], dim=1), pos=pos, past_kvs=kvs, attn_mask=mask)[0]
    batched = tiny(torch.cat([a, b], 1), pos=pos, past_kvs=kvs, attn_mask=mask.expand(1, 2, 6))[0]
    alone = [tiny(token, past_kvs=kvs)[0][0, 0] for token in (a, b)]
    torch.testing.assert_close(both[0], torch.stack(alone), rtol=0, atol=1e-12)
    assert torch.equal(both, batched)


@pytest.mark.two_ways
def test_positions_continue_from_the_cache(tiny):
    idx = random_tokens(tiny, T=7)
    _, _, kvs = tiny(idx[:, :4])
    given = tiny(idx[:, 4:], pos=torch.tensor([4, 5, 6]), past_kvs=kvs)[0]
    assert torch.equal(given, tiny(idx[:, 4:], past_kvs=kvs)[0])
    restarted = tiny(idx[:, 4:], pos=torch.tensor([0, 1, 2]), past_kvs=kvs)[0]
    assert (given - restarted).abs().max() > 1e-3


@pytest.mark.parametrize("T,P", [(13, 0), (1, 12), (5, 8)])
def test_running_past_the_window_names_the_sizes(tiny, T, P):
    past_kvs = tiny(random_tokens(tiny, P))[2] if P else None
    with pytest.raises(ValueError, match=rf"{T} tokens after {P} cached ones .* window of 12"):
        tiny(random_tokens(tiny, T), past_kvs=past_kvs)


@pytest.mark.parametrize("position", [-1, 12])
def test_a_position_outside_the_window_is_refused(tiny, position):
    with pytest.raises(ValueError, match="window of 12"):
        tiny(torch.tensor([[0]]), pos=torch.tensor([position]))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="n_embd"):
        dataclasses.replace(TINY, n_embd=10, n_head=4)


def test_dropout_acts_in_training_only():
    config = dataclasses.replace(TINY, dropout=0.5)
    model = make_model(config)
    idx = random_tokens(model, T=6)
    assert torch.equal(model(idx)[0], model(idx)[0])
    model.train()
    assert not torch.equal(model(idx)[0], model(idx)[0])


@pytest.mark.parametrize("size", [0, -1, -2])
@pytest.mark.parametrize("name", ["vocab_size", "block_size", "n_layer", "n_head", "n_embd"])
def test_a_size_below_1_is_refused_by_its_name(name, size):
    with pytest.raises(ValueError, match=f"{name} is {size}; it must be at least 1"):
        dataclasses.replace(TINY, **{name: size})


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0, float("nan")])
def test_a_dropout_that_is_no_part_of_1_is_refused(dropout):
    with pytest.raises(ValueError, match="it must be in "):
        dataclasses.replace(TINY, dropout=dropout)
