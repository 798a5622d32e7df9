"""The fused target is the per-head target, and its cache forgets by moving an index."""

import pytest
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.cache import PreallocatedCache, cache_length, trim_kv_cache
from nanogpt.checks import CHECKS, Watched, tensors
from nanogpt.fused import FusedLanguageModel
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.sampling import RandomSource
from nanogpt.speculative import speculative_generate


def fused(target):
    """The fused form of a model, or of the one that is being watched."""
    if isinstance(target, Watched):
        if not isinstance(target.target, FusedLanguageModel):
            target.target = FusedLanguageModel(target.target)
        return target
    return FusedLanguageModel(target)


def generate(target, *args, **kwargs):
    return speculative_generate(fused(target), *args, **kwargs)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_fused_target_passes_the_whole_test_bench(check):
    check(generate)


def test_its_logits_are_the_per_head_targets():
    target, _ = checkpoint.load()
    other, generator = FusedLanguageModel(target), torch.Generator().manual_seed(0)
    idx = torch.randint(65, (3, 128), generator=generator)
    with torch.no_grad():
        logits, loss, _ = other(idx, idx)
        expected, expected_loss, _ = target(idx, idx)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert float(loss) == pytest.approx(float(expected_loss), abs=1e-5)


@pytest.mark.parametrize("splits", [(1, 11), (5, 1, 1, 5), (3, 4, 2, 3), (1,) * 12])
def test_any_split_gives_the_same_logits_and_the_same_cache(splits):
    model = make_model()
    other = FusedLanguageModel(model)
    idx = torch.randint(TINY.vocab_size, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, _, cache = model(idx)
        past_kvs, got = None, []
        for part in idx.split(splits, dim=1):
            logits, _, past_kvs = other(part, past_kvs=past_kvs)
            got.append(logits)
    torch.testing.assert_close(torch.cat(got, 1), expected)
    assert cache_length(past_kvs) == 12 and len(past_kvs) == len(cache)
    for mine, right in zip(tensors(past_kvs), tensors(cache), strict=True):
        torch.testing.assert_close(mine, right)


def test_positions_and_masks_are_the_callers():
    model = make_model()
    other = FusedLanguageModel(model)
    idx = torch.tensor([[1, 2, 3], [3, 4, 5]])
    pos, mask = torch.tensor([5, 2, 7]), torch.eye(3, dtype=torch.bool)
    with torch.no_grad():
        for given in (mask, torch.stack([mask, mask | mask.roll(1, 0)])):
            torch.testing.assert_close(
                other(idx, pos=pos, attn_mask=given)[0], model(idx, pos=pos, attn_mask=given)[0]
            )
    with pytest.raises(ValueError, match="block_size"):
        other(torch.zeros(1, 13, dtype=torch.int64))


def test_a_rollback_copies_nothing():
    model = FusedLanguageModel(make_model())
    cache = prefill(model, [1, 2, 3, 4, 5])
    trimmed = trim_kv_cache(cache, 2, 1)
    assert cache_length(trimmed) == 3 and trimmed.buffer is cache.buffer
    assert trimmed[0][0][0].data_ptr() == cache[0][0][0].data_ptr()


def test_a_rolled_back_cache_is_that_of_a_fresh_prefill():
    model = FusedLanguageModel(make_model())
    with torch.no_grad():
        _, _, cache = model(torch.tensor([[7, 8, 9]]), past_kvs=prefill(model, [1, 2]))
        _, _, cache = model(torch.tensor([[4]]), past_kvs=trim_kv_cache(cache, 1, 2))
    for mine, right in zip(tensors(cache), tensors(prefill(model, [1, 2, 7, 4])), strict=True):
        torch.testing.assert_close(mine, right)


def test_a_cache_can_be_used_again_until_it_is_overwritten():
    model = FusedLanguageModel(make_model())
    with torch.no_grad():
        short = prefill(model, [1, 2, 3])
        first = model(torch.tensor([[4]]), past_kvs=short)
        again = model(torch.tensor([[4]]), past_kvs=short)
        assert torch.equal(first[0], again[0])
        longer = again[2]
        model(torch.tensor([[5]]), past_kvs=trim_kv_cache(longer, 1, 1))
        with pytest.raises(ValueError, match="overwritten by a pass"):
            model(torch.tensor([[5]]), past_kvs=longer)
        with pytest.raises(ValueError, match="overwritten by a pass"):
            model(torch.tensor([[5]]), past_kvs=short)


def test_an_overwritten_part_is_noticed_behind_a_shorter_overwrite():
    """The pass from P = 1 writes one entry; all that lay behind it is stale nevertheless."""
    model = FusedLanguageModel(make_model())
    with torch.no_grad():
        long = prefill(model, [1, 2, 3, 4, 5, 6])
        model(torch.tensor([[9]]), past_kvs=long.rolled_back(1))
        with pytest.raises(ValueError, match="overwritten"):
            model(torch.tensor([[7]]), past_kvs=long)
        with pytest.raises(ValueError, match="overwritten"):
            long.rolled_back(4)


def test_a_cache_of_tuples_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="prefill with this model"):
        FusedLanguageModel(model)(torch.tensor([[1]]), past_kvs=prefill(model, [1, 2]))


def test_texts_are_the_same_past_the_window():
    target, tokenizer = checkpoint.load()
    prompt = tokenizer.encode("JULIET:")
    texts = [
        autoregressive_generate(model, prompt, 200, rng=RandomSource(3)).tokens
        for model in (target.double(), FusedLanguageModel(target.double()))
    ]
    assert texts[0] == texts[1]


def test_an_empty_cache_is_of_the_models_type():
    cache = PreallocatedCache.empty(TINY, 2, like=torch.zeros(1, dtype=torch.float64))
    assert cache.buffer.dtype == torch.float64 and cache_length(cache) == 0
