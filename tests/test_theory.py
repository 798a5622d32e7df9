"""The equation agrees with simulation, with enumeration, and with sums done by hand."""

import math

import pytest

from nanogpt.proof.exact import enumerate_outcomes
from nanogpt.theory import best_K, break_even, expected_tokens, speed_up


def tokens_of_a_round(alphas):
    """A program that tosses the coins of one round and returns how many tokens come of it."""

    def program(rng):
        tokens = 1
        for alpha in alphas:
            if not rng.bernoulli(alpha):
                return tokens
            tokens += 1
        return tokens

    return program


@pytest.mark.parametrize("K", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.95, 1.0])
def test_expected_tokens_are_the_enumerated_mean(alpha, K):
    outcomes = enumerate_outcomes(tokens_of_a_round([alpha] * K))
    mean = sum(tokens * probability for tokens, probability in outcomes.items())
    assert expected_tokens(alpha, K) == pytest.approx(mean, abs=1e-12)


def test_speed_up_is_tokens_over_the_cost_of_a_round():
    assert speed_up(3.0, 4) == 3.0
    assert speed_up(3.0, 4, draft_cost=0.1, verify_cost=1.4, rest=0.2) == pytest.approx(3 / 2)


@pytest.mark.parametrize("rest", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("steep", [4, 6])
def test_the_best_K_is_that_of_the_costs_it_was_given(steep, rest):
    """A pass over more than `steep` guesses costs twice as much; K is found by trying all."""

    def cost(K):
        return 1.0 if K <= steep else 2.0

    chosen = set()
    for i in range(20):
        alpha = 0.05 * i
        tokens = [sum(alpha**i for i in range(K + 1)) for K in range(1, 17)]
        gains = [n / (0.1 * K + cost(K) + rest) for K, n in enumerate(tokens, start=1)]
        chosen.add(best_K(alpha, 0.1, cost, rest))
        assert gains[best_K(alpha, 0.1, cost, rest) - 1] == pytest.approx(max(gains), abs=1e-12)
    assert steep in chosen and len(chosen) > 3
    assert best_K(0.0, 0.1) == 1 and best_K(1.0, 0.1) == 16 and best_K(1.0, 0.1, most=5) == 5


@pytest.mark.parametrize("costs", [{}, {"draft_cost": 0.2}, {"verify_cost": 1.3}, {"rest": 0.4}])
def test_with_one_guess_break_even_is_what_a_round_costs_more_than_a_pass(costs):
    """1 + α tokens for draft_cost + verify_cost + rest."""
    assert break_even(1, **costs) == pytest.approx(sum(costs.values()) % 1, abs=1e-12)


def test_at_break_even_the_speed_up_is_one():
    assert break_even(1, draft_cost=0.3) == pytest.approx(0.3)  # corollary 3.9: α > c
    for K, costs in ((4, (0.1, 1.2, 0.1)), (1, (0.5, 1.1, 0.0)), (12, (0.01, 1.3, 0.2))):
        alpha = break_even(K, *costs)
        assert speed_up(expected_tokens(alpha, K), K, *costs) == pytest.approx(1)
    assert math.isnan(break_even(2, draft_cost=2.0))
    assert math.isnan(break_even(2, draft_cost=1.01)), "3 tokens for 2 · 1.01 + 1"
    assert break_even(2, draft_cost=1.0) == pytest.approx(1), "3 tokens for 2 + 1: it just suffices"
