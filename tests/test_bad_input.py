"""Bad input: what is refused, and in which words. The messages stand here whole, to be read aloud.

One line each: what was given, what is allowed, what to do. Nothing is decoded before a refusal.
Those of files, and what becomes of the files, are tested where files are: test_data,
test_checkpoint, test_train.
"""

import math

import pytest
import torch

from nanogpt.data import CharTokenizer
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.toys import random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import accept_reject, speculative_generate


class NoPass:
    """A target of three tokens that fails the test if a pass is made."""

    config, device = toy_target(3, 8).config, torch.device("cpu")

    def __call__(self, *_, **__):
        raise AssertionError("a pass was made")


def refusal(call) -> str:
    """The message with which `call` is refused: one line."""
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


def rows(*lists):
    return torch.tensor(lists, dtype=torch.float64)


@pytest.mark.parametrize("K", [0, -1, 2.0, None, True])
def test_K(K):
    assert refusal(lambda: speculative_generate(NoPass(), random_draft(3), [0], 5, K)) == (
        f"K is {K}; it must be a whole number from 1"
    )


DECODERS = {
    "autoregressive": autoregressive_generate,
    "speculative": lambda target, *request: speculative_generate(target, random_draft(3), *request),
}
OF_PROMPT = (
    "of the prompt is no whole number in 0 … 2; make tokens of text with this model's tokenizer"
)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "prompt,n,message",
    [
        ([], 5, "the prompt is empty; give at least one token to start from"),
        ([1, 3], 5, f"token 3 at index 1 {OF_PROMPT}"),
        ([-1], 5, f"token -1 at index 0 {OF_PROMPT}"),
        ("ROMEO:", 5, f"token 'R' at index 0 {OF_PROMPT}"),
        ([0.0], 5, f"token 0.0 at index 0 {OF_PROMPT}"),
        (torch.tensor([2]), 5, f"token tensor(2) at index 0 {OF_PROMPT}"),
        ([0], -1, "max_new_tokens is -1; it must be at least 0"),
        ([0], 2.5, "max_new_tokens is 2.5; it must be a whole number from 0"),
        ([0], True, "max_new_tokens is True; it must be a whole number from 0"),
    ],
    ids=str,
)
def test_the_request(decoder, prompt, n, message):
    assert refusal(lambda: DECODERS[decoder](NoPass(), prompt, n)) == message


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_tokens_are_no_mistake(decoder):
    assert DECODERS[decoder](toy_target(3, 8), [0], 0).tokens == []


def test_vocabularies():
    assert refusal(lambda: speculative_generate(NoPass(), random_draft(4), [0], 5)) == (
        "the draft has a vocabulary of 4 tokens and the target one of 3; they must share one "
        "tokenizer"
    )


@pytest.mark.parametrize(
    "given,message",
    [
        *(
            (
                {"temperature": t},
                f"temperature is {t}; it must be finite and at least 0 (0 is greedy)",
            )
            for t in (-0.1, math.nan, math.inf)
        ),
        *(
            ({"top_k": k}, f"top_k is {k}; it must be a whole number from 1, or None")
            for k in (0, 2.5)
        ),
        *(
            ({"top_p": p}, f"top_p is {p}; it must be above 0 and at most 1, or None")
            for p in (0.0, 1.01, math.nan)
        ),
    ],
    ids=str,
)
def test_the_sampling_rule(given, message):
    assert refusal(lambda: Sampling(**given)) == message


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_the_seed(seed):
    assert (
        refusal(lambda: RandomSource(seed)) == f"seed is {seed}; it must be a whole number from 0"
    )


NEGATIVE = "probabilities hold a negative number or NaN; check the logits or weights"
OFF = "probabilities sum to 1 within {}, more than 1e-06; divide them by their sum"


@pytest.mark.parametrize(
    "wrong,message",
    [
        ([0.5, math.nan], NEGATIVE),
        ([1.5, -0.5], NEGATIVE),
        ([0.5, 0.4], OFF.format("1.0e-01")),
        ([0.5, 0.5 + 2e-6], OFF.format("2.0e-06")),
        ([math.inf, 0.0], OFF.format("inf")),
    ],
    ids=str,
)
def test_probabilities(wrong, message):
    p, wrong = rows([0.5, 0.5], [0.5, 0.5]), rows(wrong)
    rng = RandomSource(0)
    assert refusal(lambda: rng.categorical(wrong[0])) == message
    assert refusal(lambda: accept_reject([0], wrong, p, rng)) == message, "of the draft"
    for i in range(2):  # of the target, at the candidate or behind it
        broken = p.clone()
        broken[i] = wrong
        assert refusal(lambda p=broken: accept_reject([0], rows([0.5, 0.5]), p, rng)) == message


@pytest.mark.parametrize("probability", [-1e-9, 1.1, math.nan])
def test_a_probability(probability):
    assert refusal(lambda: RandomSource(0).bernoulli(probability)) == (
        f"probability is {probability}; it must be in [0, 1]"
    )


def test_a_candidate_that_the_draft_cannot_draw():
    p, q = rows(*[[0.5, 0.5]] * 3), rows([0.5, 0.5], [1.0, 0.0])
    assert refusal(lambda: accept_reject([0, 1], q, p, RandomSource(0))) == (
        "candidate 1 at index 1 has q = 0: the draft returned a token that it says it cannot draw; "
        "return the q that the token was drawn from"
    )


def test_a_character():
    assert refusal(lambda: CharTokenizer.from_text("caf").encode("café")) == (
        "character 'é' at index 3 is not among the 3 of the vocabulary; leave it out or write it "
        "with characters of the corpus"
    )
