"""The fused target is the per-head target, and its cache forgets by moving an index."""

import pytest
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.proof.checks import CHECKS, tensors
from nanogpt.proof.toys import Watched
from nanogpt.sampling import RandomSource
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel, PreallocatedCache


def fused(target):
    """The fused form of a model, or of the one that is being watched."""
    if isinstance(target, Watched):
        return target.around(FusedLanguageModel(target.target))
    return FusedLanguageModel(target)


def generate(target, *args, **kwargs):
    return speculative_generate(fused(target), *args, **kwargs)


@pytest.mark.two_ways
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_fused_target_passes_the_whole_test_bench(check):
    check(generate)


@pytest.mark.two_ways
@pytest.mark.parametrize(
    "dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["the same", "close"]
)
def test_its_logits_are_the_per_head_targets(dtype, tolerance):
    """In float64 they are the same function; in float32, close enough to decode."""
    target = checkpoint.load()[0].to(dtype)
    other, generator = FusedLanguageModel(target), torch.Generator().manual_seed(0)
    idx = torch.randint(65, (3, 128), generator=generator)
    with torch.no_grad():
        logits, loss, _ = other(idx, idx)
        expected, expected_loss, _ = target(idx, idx)
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)
    assert float(loss) == pytest.approx(float(expected_loss), abs=tolerance)


@pytest.mark.two_ways
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
    torch.testing.assert_close(tensors(past_kvs), tensors(cache))


@pytest.mark.two_ways
def test_positions_and_masks_are_the_callers():
    model = make_model()
    other = FusedLanguageModel(model)
    idx = torch.tensor([[1, 2, 3], [3, 4, 5]])
    pos, mask = torch.tensor([5, 2, 7]), torch.eye(3, dtype=torch.bool)
    with torch.no_grad():
        for given in (mask, torch.stack([mask, mask | mask.roll(1, 0)])):
            mine, right = (m(idx, pos=pos, attn_mask=given)[0] for m in (other, model))
            torch.testing.assert_close(mine, right)
    with pytest.raises(ValueError, match="block_size"):
        other(torch.zeros(1, 13, dtype=torch.int64))


def test_a_rollback_copies_nothing():
    model = FusedLanguageModel(make_model())
    cache = prefill(model, [1, 2, 3, 4, 5])
    trimmed = trim_kv_cache(cache, 2, 1)
    assert cache_length(trimmed) == 3 and trimmed.buffer is cache.buffer
    assert trimmed[0][0][0].data_ptr() == cache[0][0][0].data_ptr()
    assert cache_length(cache.kept(99)) == 5, "no more than there is, as with tuples"


@pytest.mark.two_ways
def test_a_rolled_back_cache_is_that_of_a_fresh_prefill():
    model = FusedLanguageModel(make_model())
    with torch.no_grad():
        _, _, cache = model(torch.tensor([[7, 8, 9]]), past_kvs=prefill(model, [1, 2]))
        _, _, cache = model(torch.tensor([[4]]), past_kvs=trim_kv_cache(cache, 1, 2))
    torch.testing.assert_close(tensors(cache), tensors(prefill(model, [1, 2, 7, 4])))


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
        model(torch.tensor([[9]]), past_kvs=long.kept(1))
        with pytest.raises(ValueError, match="overwritten"):
            model(torch.tensor([[7]]), past_kvs=long)
        with pytest.raises(ValueError, match="overwritten"):
            long.kept(4)
        with pytest.raises(ValueError, match="overwritten"):
            long[0]


def test_a_cache_of_tuples_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="prefill with this model"):
        FusedLanguageModel(model)(torch.tensor([[1]]), past_kvs=prefill(model, [1, 2]))


@pytest.mark.two_ways
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


# ---- slots are not positions


TREE = [-1, -1, -1, 0, 0, 1, 2, 3, 3]  # parents of nine nodes; positions are depths


def tree_pass(parents, P):
    """Positions (N+1,) and mask (N+1, P+N+1) of the current token and a tree after P tokens."""
    sees = torch.eye(len(parents) + 1, dtype=torch.bool)
    for i, parent in enumerate(parents, start=1):
        sees[i] |= sees[parent + 1]
    mask = torch.cat([torch.ones(len(sees), P, dtype=torch.bool), sees], dim=1)
    return mask.sum(-1) - 1, mask


@pytest.mark.two_ways
@pytest.mark.parametrize("P", [0, 5, 9])
def test_a_tree_may_be_wider_than_the_window_is_long(P):
    """Nine nodes four deep, and a window of 12: there are more entries than positions."""
    model = make_model()
    other, tokens = FusedLanguageModel(model), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    pos, mask = tree_pass(TREE, P)
    if int(pos.max()) >= TINY.block_size:
        pos, mask = tree_pass([-1] * 9, P)
    idx = torch.tensor([[7, *range(1, 10)]])
    with torch.no_grad():
        expected, _, wide = model(idx, pos=pos, attn_mask=mask, past_kvs=prefill(model, tokens[:P]))
        got, _, cache = other(idx, pos=pos, attn_mask=mask, past_kvs=prefill(other, tokens[:P]))
        torch.testing.assert_close(got, expected)
        assert cache_length(cache) == P + 10
        torch.testing.assert_close(tensors(cache), tensors(wide))
        after = cache.kept(P + 1)  # the current token stays
        again, _, _ = other(torch.tensor([[8]]), past_kvs=after)
        fresh = model(torch.tensor([[*tokens[:P], 7, 8]]))[0][:, -1:]
        torch.testing.assert_close(again, fresh)


@pytest.mark.two_ways
def test_without_a_mask_every_entry_before_is_seen_however_many_there_are():
    """Positions of the caller's own may come twice: more entries than positions are read."""
    model = make_model()
    other, idx = FusedLanguageModel(model), torch.arange(9)[None]
    with torch.no_grad():
        expected, _, _ = model(idx, pos=torch.arange(3, 12), past_kvs=prefill(model, [1] * 8))
        got, _, _ = other(idx, pos=torch.arange(3, 12), past_kvs=prefill(other, [1] * 8))
    torch.testing.assert_close(got, expected)


def test_a_cache_that_grew_leaves_the_one_before_it_alone():
    other = FusedLanguageModel(make_model())
    with torch.no_grad():
        small = prefill(other, [1, 2, 3])
        pos, mask = tree_pass([-1] * 12, 3)
        _, _, large = other(torch.ones(1, 13, dtype=torch.int64), pos=pos, attn_mask=mask,
                            past_kvs=small)  # fmt: skip
        assert large.buffer.shape[-2] > small.buffer.shape[-2] == TINY.block_size
        assert cache_length(small) == 3 and small[0] and cache_length(large.kept(4)) == 4
        held = large[0][0][0].clone()
        other(torch.tensor([[5, 6]]), past_kvs=small)  # writes into the small buffer
        assert torch.equal(large[0][0][0], held), "no pass of the small one overwrites the large"


# ---- each text of a batch has its own length


@pytest.mark.two_ways
def test_texts_of_different_lengths_go_on_as_each_alone():
    """Rows are trimmed to lengths of their own, read on, and are what they are alone."""
    model = make_model()
    other, generator = FusedLanguageModel(model), torch.Generator().manual_seed(2)
    texts = torch.randint(11, (3, 12), generator=generator)
    lengths = [5, 2, 7]
    with torch.no_grad():
        _, _, cache = other(texts[:, :8])  # past each text's own length stands what was rejected
        cache = cache.kept(lengths)
        assert cache.lengths == (5, 2, 7) and cache_length(cache) == 7
        for T in (3, 1):
            parts = torch.stack([t[n : n + T] for t, n in zip(texts, lengths, strict=True)])
            logits, _, cache = other(parts, past_kvs=cache)
            lengths = [n + T for n in lengths]
            for row, text, n in zip(logits, texts, lengths, strict=True):
                alone = model(text[None, :n])[0][0, -T:]
                torch.testing.assert_close(row, alone)
        cache = cache.kept([6, 6, 6])
        logits, _, _ = other(texts[:, 6:7], past_kvs=cache)
        expected = model(texts[:, :7])[0][:, -1:]
        torch.testing.assert_close(logits, expected)


def test_a_batch_past_the_window_in_one_text_is_refused():
    other = FusedLanguageModel(make_model())
    with torch.no_grad():
        _, _, cache = other(torch.zeros(2, 11, dtype=torch.int64))
        with pytest.raises(ValueError, match="block_size"):
            other(torch.zeros(2, 2, dtype=torch.int64), past_kvs=cache.kept([3, 11]))


def test_an_overwritten_text_of_a_batch_is_noticed():
    other = FusedLanguageModel(make_model())
    with torch.no_grad():
        _, _, long = other(torch.zeros(2, 6, dtype=torch.int64))
        other(torch.zeros(2, 1, dtype=torch.int64), past_kvs=long.kept([6, 2]))
        with pytest.raises(ValueError, match="overwritten"):
            long.kept([2, 2])


def test_a_batchs_cache_is_stale_once_a_row_of_it_was_written_over():
    """A row is a view: what a pass writes into its slots, it writes into the batch's."""
    other = FusedLanguageModel(make_model())
    with torch.no_grad():
        _, _, whole = other(torch.zeros(2, 6, dtype=torch.int64))
        first, second = whole.rows([6, 6])
        other(torch.ones(1, 1, dtype=torch.int64), past_kvs=second)  # behind all entries
        assert cache_length(whole.kept(6)) == 6, "nothing of the batch's was touched"
        other(torch.ones(1, 1, dtype=torch.int64), past_kvs=second.kept(4))
        for use in (lambda: whole[0], lambda: whole.kept(5), lambda: whole.rows([5, 5])):
            with pytest.raises(ValueError, match="overwritten"):
                use()
        assert cache_length(first.kept(6)) == 6, "the other row is as it was"


def test_rows_that_grew_out_of_their_batch_are_joined_from_their_own_buffers():
    """Each row went on alone, past the slots of the batch: its entries lie elsewhere by then."""
    other = FusedLanguageModel(make_model())
    pos, mask = tree_pass([-1] * 12, 3)
    with torch.no_grad():
        _, _, whole = other(torch.tensor([[1, 2, 3], [4, 5, 6]]))
        wide = [
            other(torch.full((1, 13), b), pos=pos, attn_mask=mask, past_kvs=row)[2]
            for b, row in enumerate(whole.rows([3, 3]))
        ]
        for parts in ([cache.kept(4) for cache in wide], [prefill(other, [7, 8]), wide[1]]):
            joined = PreallocatedCache.joined(parts)
            for b, own in enumerate(parts):
                for mine, right in zip(tensors(joined), tensors(own), strict=True):
                    assert torch.equal(mine[b, : own.length], right[0])
