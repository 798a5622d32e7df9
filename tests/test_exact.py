"""Enumeration is exact: every path once, weighted by its probability."""

import pytest
import torch

from nanogpt.proof.exact import enumerate_outcomes, total_variation


def p(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_two_draws_and_a_coin():
    def program(rng):
        first = rng.categorical(p(0.5, 0.25, 0.25))
        return (first, rng.bernoulli(0.25)) if first else (first, rng.categorical(p(0.5, 0.5)))

    assert enumerate_outcomes(program) == {
        (0, 0): 0.25, (0, 1): 0.25,
        (1, True): 0.0625, (1, False): 0.1875,
        (2, True): 0.0625, (2, False): 0.1875,
    }  # fmt: skip


def test_the_same_outcome_on_several_paths_is_added_up():
    two_coins = enumerate_outcomes(lambda rng: rng.bernoulli(0.5) + rng.bernoulli(0.5))
    assert two_coins == {0: 0.25, 1: 0.5, 2: 0.25}


def test_branches_of_probability_0_are_not_walked():
    walked = []

    def program(rng):
        walked.append((rng.bernoulli(0.0), rng.bernoulli(1.0), rng.categorical(p(0.0, 1.0))))
        return walked[-1]

    assert enumerate_outcomes(program) == {(False, True, 1): 1.0} and len(walked) == 1


def test_a_program_that_draws_nothing_has_one_outcome():
    assert enumerate_outcomes(lambda rng: "x") == {"x": 1.0}


@pytest.mark.parametrize("draw", [lambda r: r.bernoulli(1.5), lambda r: r.categorical(p(0.5, 0.4))])
def test_bad_probabilities_are_refused_as_by_a_random_source(draw):
    with pytest.raises(ValueError):
        enumerate_outcomes(draw)


def test_total_variation():
    assert total_variation({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0
    assert total_variation({"a": 1.0}, {"b": 1.0}) == 1
    assert total_variation({"a": 0.7, "b": 0.3}, {"a": 0.4, "b": 0.6}) == pytest.approx(0.3)
