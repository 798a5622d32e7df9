"""Cached decoding equals decoding by recomputation, at any length, and records what it did."""

import dataclasses
import math
import weakref

import pytest
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.drafts.parallel import hidden_states
from nanogpt.generate import Round, autoregressive_generate, autoregressive_rounds, prefill
from nanogpt.proof.toys import Watched, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import ReadText


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


@pytest.mark.two_ways
@pytest.mark.parametrize("n_prompt", [1, 2, 5, 11, 12, 13, 30])
@pytest.mark.parametrize("temperature", [0, 1])
def test_cached_decoding_equals_recomputation_over_three_windows(tiny, n_prompt, temperature):
    prompt = torch.randint(11, (n_prompt,), generator=torch.Generator().manual_seed(n_prompt))
    sampling = Sampling(temperature)
    expected = recomputed(tiny, prompt.tolist(), 40, sampling, RandomSource(5))
    made = autoregressive_generate(tiny, prompt.tolist(), 40, sampling, RandomSource(5))
    assert made.tokens == expected


@pytest.mark.two_ways
def test_the_shipped_model_in_float64_agrees_with_recomputation_past_its_window():
    model, tokenizer = checkpoint.load()
    model.double()
    prompt = tokenizer.encode("ROMEO:")
    expected = recomputed(model, prompt, 150, Sampling(), RandomSource(0))
    assert autoregressive_generate(model, prompt, 150).tokens == expected


@pytest.mark.two_ways
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_smallest_windows_work(block_size):
    model = make_model(dataclasses.replace(TINY, block_size=block_size))
    expected = recomputed(model, [1, 2, 3], 10, Sampling(), RandomSource(5))
    assert autoregressive_generate(model, [1, 2, 3], 10, rng=RandomSource(5)).tokens == expected


def test_the_trace_tells_what_every_pass_did(tiny):
    made = autoregressive_generate(tiny, [1, 2, 3], 20, rng=RandomSource(5))
    assert made.target_passes == len(made.rounds) == 20 and made.tokens_per_pass == 1.0
    assert [token for r in made.rounds for token in r.emitted] == made.tokens
    # 2 tokens before the current one and one more per pass up to 11, then a restart at half of 12
    assert [r.position for r in made.rounds] == [*range(2, 12), *range(6, 12), *range(6, 10)]
    for r in made.rounds:
        assert r.candidates == [] and r.draft_probs.shape == (0, 11)
        assert r.target_probs.shape == (1, 11) and r.target_probs.dtype == torch.float64


def test_every_pass_writes_a_token_and_reads_what_was_unread():
    """Also the first one, and those after a restart; nothing is read twice."""
    watched = Watched(toy_target(7, 8))
    made = autoregressive_generate(watched, [1, 2, 3], 12, rng=RandomSource(5))
    text = [1, 2, 3, *made.tokens]
    assert (
        [given for given, _ in watched.passes]
        == [
            text[:3],
            *([token] for token in text[3:8]),
            text[4:9],  # the window of 8 is full: half of it, and the current token
            *([token] for token in text[9:12]),
            text[8:13],
            [text[13]],
        ]
    )


@pytest.mark.two_ways
def test_a_draft_that_looks_first_has_the_text_read_in_a_pass_of_its_own(tiny):
    text = ReadText(tiny, [1, 2, 3], 5)
    assert (text.unread, text.position, text.hidden) == ([1, 2], 2, None)
    text.read()
    assert (text.unread, text.cache_length, text.prefills) == ([], 2, 1)
    idx = torch.tensor([[1, 2]])
    hidden, fresh = hidden_states(tiny, idx), tiny(idx)[2]
    torch.testing.assert_close(text.hidden, hidden[0])
    torch.testing.assert_close(text.past_kvs[1][1][0], fresh[1][1][0])
    text.read()
    assert text.prefills == 1, "there is nothing more to read"


def test_what_a_draft_remembers_is_the_texts_and_goes_with_it(tiny):
    one, other = ReadText(tiny, [1], 5), ReadText(tiny, [1], 5)
    draft, second, kept = object(), object(), weakref.ref(one)
    assert one.memory(draft, list) is one.memory(draft, list) is not other.memory(draft, list)
    assert one.memory(second, list) is not one.memory(draft, list)
    del one
    assert kept() is None, "nothing else holds the text"


def test_a_loop_hands_out_its_rounds_as_they_come(tiny):
    text, seen = ReadText(tiny, [1, 2, 3], 20), []
    for r in autoregressive_rounds(text, rng=RandomSource(5)):
        seen.append(r.emitted[0])
        assert text.tokens[3:] == seen and text.rounds[-1] is r
    assert seen == autoregressive_generate(tiny, [1, 2, 3], 20, rng=RandomSource(5)).tokens


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
    text = ReadText(tiny, list(range(11)), 5)
    text.read()
    before = text.past_kvs
    text.restart_if_full()
    assert text.past_kvs is before and text.start == 0


def test_a_full_window_restarts_with_the_half_window_before_the_current_token(tiny):
    text = ReadText(tiny, list(range(11)), 5)
    text.read()
    for token in (3, 1):
        _, _, longer = tiny(torch.tensor([text.tokens[-1:]]), past_kvs=text.past_kvs)
        text.take(Round([], torch.empty(0, 11), torch.empty(1, 11), [token], 0), longer)
    assert text.cache_length == 12
    text.restart_if_full()
    assert text.past_kvs is None and text.position == 6
    assert text.unread == [6, 7, 8, 9, 10, 3] and text.tokens[-1] == 1


@pytest.mark.two_ways
def test_several_texts_are_prefilled_as_each_alone(tiny):
    texts = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(0))
    together = prefill(tiny, texts)
    for i, text in enumerate(texts):
        alone = prefill(tiny, text.tolist())
        torch.testing.assert_close(together[1][0][1][i], alone[1][0][1][0])


def test_a_text_says_how_much_may_be_drafted_and_when_it_is_done(tiny):
    text = ReadText(tiny, [1, 2, 3], 4, stop_token=7)
    assert (text.cache_length, text.position, text.room, text.done) == (0, 2, 3, False)
    some = Round([4, 7, 9], torch.empty(3, 11), torch.empty(4, 11), [4, 7, 9], 2)
    text.take(some, prefill(tiny, [1, 2, 3, 4, 7]))
    assert text.tokens == [1, 2, 3, 4, 7] and text.done, "it ends with the stop token"
    made = text.generation()
    assert made.tokens == [4, 7] and made.rounds == [some]
    assert ReadText(tiny, [1, 2, 3], 1).room == 0, "one token left: nothing to draft"
    assert ReadText(tiny, list(range(11)), 9).room == 1, (
        "the window leaves one place beside the next"
    )
    assert not ReadText(tiny, [1, 7], 2, stop_token=7).done, (
        "a stop token of the prompt stops nothing"
    )


def test_a_round_counts_what_was_accepted_and_what_was_examined():
    none = torch.empty(0)
    counts = [
        (r.n_accepted, r.n_examined)
        for r in (Round([1, 2], none, none, emitted, 0) for emitted in ([5], [1, 5], [1, 2, 5]))
    ]
    assert counts == [(0, 1), (1, 2), (2, 2)]
    assert (Round([], none, none, [5], 0).n_accepted, Round([], none, none, [5], 0).n_examined) == (
        0,
        0,
    )


def test_hidden_states_of_a_part_of_a_text_are_not_kept(tiny):
    """Another loop has read the first tokens: their states are not there, and half are no use."""
    text = ReadText(tiny, [1, 2, 3, 4], 5)
    text.past_kvs = prefill(tiny, [1])
    text.read()
    assert (text.unread, text.cache_length, text.hidden) == ([], 3, None)
    text.past_kvs = None  # as after a restart
    text.read()
    assert len(text.hidden) == text.cache_length == 3, "of the whole text, they are"
