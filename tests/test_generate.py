"""Cached decoding equals decoding by recomputation, at any length, and records what it did."""

import dataclasses
import math

import pytest
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.generate import autoregressive_generate, prefill, restart_if_full
from nanogpt.sampling import RandomSource, Sampling


def context_start(index, n_prompt, block_size):
    """The first token that the model sees when it predicts token `index`, by the restart rule.

    Found by stepping through the rule in words, not with the decoder's own code: the window grows
    to block_size tokens, then starts again at half a window before the current token.
    """
    start = max(0, n_prompt - block_size)
    for i in range(n_prompt, index + 1):  # the current token is i - 1
        if (i - 1) - start >= block_size:
            start = (i - 1) - block_size // 2
    return start


def recomputed(model, prompt, n, sampling, rng):
    """The same text without any cache: every token from a pass over its whole context."""
    tokens = list(prompt)
    for i in range(len(prompt), len(prompt) + n):
        context = tokens[context_start(i, len(prompt), model.config.block_size) :]
        logits, _, _ = model(torch.tensor([context]))
        tokens.append(rng.categorical(sampling.probs(logits[0, -1])))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("n_prompt", [1, 2, 5, 11, 12, 13, 30])
@pytest.mark.parametrize("temperature", [0, 1])
def test_cached_decoding_equals_recomputation_over_three_windows(tiny, n_prompt, temperature):
    prompt = torch.randint(11, (n_prompt,), generator=torch.Generator().manual_seed(n_prompt))
    sampling = Sampling(temperature)
    expected = recomputed(tiny, prompt.tolist(), 40, sampling, RandomSource(5))
    made = autoregressive_generate(tiny, prompt.tolist(), 40, sampling, RandomSource(5))
    assert made.tokens == expected


def test_the_shipped_model_in_float64_agrees_with_recomputation_past_its_window():
    model, tokenizer = checkpoint.load()
    model.double()
    prompt = tokenizer.encode("ROMEO:")
    expected = recomputed(model, prompt, 150, Sampling(), RandomSource(0))
    assert autoregressive_generate(model, prompt, 150).tokens == expected


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_smallest_windows_work(block_size):
    model = make_model(dataclasses.replace(TINY, block_size=block_size))
    expected = recomputed(model, [1, 2, 3], 10, Sampling(), RandomSource(5))
    assert autoregressive_generate(model, [1, 2, 3], 10, rng=RandomSource(5)).tokens == expected


def test_the_trace_tells_what_every_pass_did(tiny):
    made = autoregressive_generate(tiny, [1, 2, 3], 20, rng=RandomSource(5))
    assert made.target_passes == len(made.rounds) == 20 and made.tokens_per_pass == 1.0
    assert [token for r in made.rounds for token in r.accepted] == made.tokens
    # 2 cached tokens and one more per pass up to 11, then the restart at 6, half of 12
    assert [r.cache_len for r in made.rounds] == [*range(2, 12), *range(6, 12), *range(6, 10)]
    assert made.prefills == 3
    for r in made.rounds:
        assert r.candidates == [] and r.draft_probs.shape == (0, 11)
        assert r.target_probs.shape == (1, 11) and r.target_probs.dtype == torch.float64


def test_a_prompt_of_one_token_needs_no_prefill(tiny):
    assert autoregressive_generate(tiny, [1], 5).prefills == 0
    assert autoregressive_generate(tiny, [1, 2], 5).prefills == 1


def test_a_stop_token_ends_the_text_and_is_its_last_token(tiny):
    free = autoregressive_generate(tiny, [1], 40, rng=RandomSource(5)).tokens
    stop = free[9]
    first = free.index(stop)
    made = autoregressive_generate(tiny, [1], 40, rng=RandomSource(5), stop_token=stop)
    assert made.tokens == free[: first + 1]


def test_token_0_can_stop_and_be_generated(tiny):
    free = autoregressive_generate(tiny, [1], 200, rng=RandomSource(5)).tokens
    made = autoregressive_generate(tiny, [1], 200, rng=RandomSource(5), stop_token=0)
    assert made.tokens == free[: free.index(0) + 1]


def test_a_stop_token_in_the_prompt_stops_nothing(tiny):
    free = autoregressive_generate(tiny, [1, 4], 5, rng=RandomSource(5)).tokens
    assert 4 not in free
    assert (
        autoregressive_generate(tiny, [1, 4], 5, rng=RandomSource(5), stop_token=4).tokens == free
    )


def test_no_tokens_asked_for_is_no_tokens(tiny):
    made = autoregressive_generate(tiny, [1, 2], 0)
    assert made.tokens == [] and made.target_passes == 0 and math.isnan(made.tokens_per_pass)


def test_without_a_random_source_every_call_gives_the_same_text(tiny):
    texts = [autoregressive_generate(tiny, [1, 2], 30).tokens for _ in range(2)]
    assert (
        texts[0]
        == texts[1]
        == autoregressive_generate(tiny, [1, 2], 30, rng=RandomSource(0)).tokens
    )


def test_the_prompt_is_left_as_it_was(tiny):
    prompt = [1, 2, 3]
    autoregressive_generate(tiny, prompt, 5)
    assert prompt == [1, 2, 3]


def test_prefill_is_the_cache_of_its_tokens(tiny):
    past_kvs = prefill(tiny, [1, 2, 3])
    assert cache_length(past_kvs) == 3 and prefill(tiny, []) is None
    assert torch.equal(past_kvs[1][0][0], tiny(torch.tensor([[1, 2, 3]]))[2][1][0][0])
    assert not past_kvs[0][0][0].requires_grad


def test_a_window_with_room_is_not_restarted(tiny):
    past_kvs = prefill(tiny, list(range(11)))
    kept, prefills = restart_if_full(tiny, [*list(range(11)), 0], past_kvs)
    assert kept is past_kvs and prefills == 0
