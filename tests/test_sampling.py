"""From logits to tokens: exact, seeded, and loud about bad numbers."""

import math

import numpy as np
import pytest
import torch

from nanogpt.sampling import RandomSource, Sampling, cumulative

LOGITS = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64).log()


def probs(logits=LOGITS, **settings):
    return Sampling(**settings).probs(logits)


def assert_probs(actual, expected):
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_temperature_1_is_the_softmax_in_float64_for_any_leading_shape():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    p = probs(logits)
    assert p.dtype == torch.float64 and p.shape == (2, 3, 5)
    torch.testing.assert_close(p, logits.double().exp() / logits.double().exp().sum(-1, True))


def test_temperature_divides_the_logits():
    assert_probs(probs(temperature=0.5), [25 / 34, 4 / 34, 4 / 34, 1 / 34])


def test_greedy_is_one_hot_on_the_first_best_token():
    assert_probs(
        probs(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]), temperature=0),
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
    )


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_in_the_limit_and_never_nan(temperature):
    assert_probs(probs(torch.tensor([1.0, 80.0, -900.0]), temperature=temperature), [0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "k,expected",
    [
        (1, [1, 0, 0, 0]),
        (2, [5 / 7, 2 / 7, 0, 0]),
        (4, [0.5, 0.2, 0.2, 0.1]),
        (9, [0.5, 0.2, 0.2, 0.1]),
    ],
)
def test_top_k_keeps_exactly_k_tokens_and_the_lower_of_a_tie(k, expected):
    assert_probs(probs(top_k=k), expected)


@pytest.mark.parametrize(
    "p,expected",
    [
        (0.01, [1, 0, 0, 0]),
        (0.49, [1, 0, 0, 0]),
        (0.51, [5 / 7, 2 / 7, 0, 0]),  # the token that crosses the threshold stays
        (0.71, [5 / 9, 2 / 9, 2 / 9, 0]),
        (1.0, [0.5, 0.2, 0.2, 0.1]),
    ],
)
def test_top_p_keeps_the_token_that_crosses_the_threshold(p, expected):
    assert_probs(probs(top_p=p), expected)


def test_a_set_that_reaches_p_exactly_is_large_enough():
    """½ and ¼ are floats: no rounding decides."""
    logits = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).log()
    assert_probs(probs(logits, top_p=0.5), [1, 0, 0, 0])
    assert_probs(probs(logits, top_p=0.75), [2 / 3, 1 / 3, 0, 0])


def test_top_p_counts_within_what_top_k_left():
    assert_probs(probs(top_k=2, top_p=0.7), [1, 0, 0, 0])  # 5/7 already reaches 0.7


def test_top_p_1_keeps_the_faintest_token():
    logits = torch.linspace(0, -60, 65)
    assert (probs(logits, top_p=1.0) > 0).all()


def test_the_uniform_numbers_are_pcg64s_own():
    """Fetched by the hundred, they are those that come one by one."""
    mine, numpys = RandomSource(3)._uniforms, np.random.default_rng(3)
    assert [mine.random() for _ in range(301)] == [numpys.random() for _ in range(301)]


def test_known_running_sums_give_the_same_token():
    rows = torch.softmax(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double(), -1)
    one, other = RandomSource(1), RandomSource(1)
    sums = memoryview(rows.numpy().cumsum(-1).ravel())
    for i in range(500):
        known = sums[7 * (i % 5) : 7 * (i % 5) + 7]
        assert one.categorical(rows[i % 5], known) == other.categorical(rows[i % 5])


def test_the_running_sums_are_those_of_the_row_as_it_is_now():
    row = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert cumulative(row).tolist() == [0.2, 1.0]
    row[:] = torch.tensor([0.0, 1.0])
    assert cumulative(row).tolist() == [0.0, 1.0] and RandomSource(0).categorical(row) == 1


def test_the_same_seed_gives_the_same_choices():
    """Pinned: these must never change, on any machine or with any later version."""
    rng = RandomSource(0)
    p = torch.full((10,), 0.1, dtype=torch.float64)
    assert [rng.categorical(p) for _ in range(8)] == [6, 2, 0, 0, 8, 9, 6, 7]
    assert [rng.bernoulli(0.5) for _ in range(6)] == [False, False, False, True, False, True]


def test_categorical_is_the_inverse_cdf_of_one_uniform():
    p = probs()
    uniforms = np.random.default_rng(3).random(1000)
    rng = RandomSource(3)
    for u in uniforms:
        token = rng.categorical(p)
        assert float(p[:token].sum()) - 1e-12 <= u < float(p[: token + 1].sum()) + 1e-12


def test_bernoulli_comes_as_often_as_its_probability():
    rng, n = RandomSource(1), 20_000
    accepted = sum(rng.bernoulli(0.3) for _ in range(n))
    assert abs(accepted / n - 0.3) < 4 * math.sqrt(0.3 * 0.7 / n)


class Uniforms:
    """Stands for NumPy's generator: hands out the numbers it is given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


LARGEST = 1 - 2**-53  # the largest float64 below 1, and the largest uniform


@pytest.mark.parametrize("u,token", [(0.0, 1), (0.5, 3), (LARGEST, 3)])
def test_a_token_of_probability_0_is_never_drawn(u, token):
    rng = RandomSource(0, Uniforms(u))
    assert rng.categorical(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).double()) == token


@pytest.mark.parametrize("total", [1 - 9e-7, 1 - 2**-53, 1 + 2**-52, 1 + 9e-7])
def test_the_largest_uniform_stays_inside_the_vocabulary(total):
    rng = RandomSource(0, Uniforms(LARGEST))
    assert rng.categorical(torch.tensor([total / 2, total / 2, 0.0]).double()) == 1


def test_bernoulli_never_happens_at_0_and_always_at_1():
    rng = RandomSource(0, Uniforms(0.0, LARGEST))
    assert rng.bernoulli(0.0) is False and rng.bernoulli(1.0) is True


@pytest.mark.parametrize(
    "rule",
    [Sampling(), Sampling(0.5), Sampling(0), Sampling(top_k=2), Sampling(top_p=0.6)],
    ids=str,
)
def test_probabilities_are_treated_like_their_logits(rule):
    torch.testing.assert_close(rule.of_probs(LOGITS.exp()), rule.probs(LOGITS), rtol=0, atol=1e-12)
    with_zero = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    assert rule.of_probs(with_zero)[1] == 0
