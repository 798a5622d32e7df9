"""Exact distributions of a few tokens, and what a sample of so many can tell from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling, cumulative

Joint = Mapping[tuple[int, ...], float]  # {tokens: probability}, or how often they came
LEVEL = 1e-6


# The truth


def next_probs(model: GPTLanguageModel) -> Callable[[Tensor], Tensor]:
    """rows (N, T) -> p (N, V) of the token after each row, at temperature 1."""

    @torch.no_grad()
    def probs(rows: Tensor) -> Tensor:
        return torch.cat([Sampling().probs(model(part)[0][:, -1]) for part in rows.split(500)])

    return probs


def exact_joint(probs: Callable[[Tensor], Tensor], prompt: Sequence[int], depth: int) -> Joint:
    """{tokens: probability} of all V**depth ways to continue the prompt, by the chain rule.

    probs: rows (N, T) -> (N, V), what follows each row.
    """
    rows = torch.tensor([list(prompt)])
    joint = probs(rows)  # (1, V)
    V = joint.shape[-1]
    for _ in range(depth - 1):
        tokens = torch.arange(V).repeat(len(rows))[:, None]
        each = rows.repeat_interleave(V, 0)
        rows = torch.cat([each, tokens], dim=1)  # each row, each token
        joint = joint.flatten()[:, None] * probs(rows)
    return dict(
        zip(itertools.product(range(V), repeat=depth), joint.flatten().tolist(), strict=True)
    )


def marginal(joint: Joint, places: Sequence[int]) -> Joint:
    """The same distribution, or the same counts, of the tokens at some places only."""
    found = Counter()
    for tokens, p in joint.items():
        found[tuple(tokens[i] for i in places)] += p
    return found


# The test


def p_value(statistic: float, freedom: int) -> float:
    """How likely chance alone is to exceed a χ² of so many degrees of freedom."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*half))


def crossing(rising: Callable[[float], float], high: float) -> float:
    """Where a rising function crosses 0, between 0 and `high`, by halving."""
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def power(freedom: int, shift: float, level: float = LEVEL) -> float:
    """How likely the test is to refuse what is off by `shift`: a noncentral χ² above the limit.

    shift: the χ² of the expected counts themselves. It adds two degrees of freedom for each of
    Poisson(shift / 2) events.
    """
    if shift == float("inf"):
        return 1.0
    limit = crossing(lambda x: level - p_value(x, freedom), 10 * freedom + 2000)
    mean, half = torch.tensor([shift / 2, limit / 2], dtype=torch.float64)
    events = torch.arange(int(shift / 2 + 10 * shift**0.5 + 30), dtype=torch.float64)
    weights = torch.distributions.Poisson(mean).log_prob(events).exp()
    return min(1.0, float(weights @ torch.special.gammaincc(freedom / 2 + events, half)))


def surely_seen(freedom: int, n: int, level: float = LEVEL) -> float:
    """The total variation from which on n samples are refused with probability .99, at least.

    Whatever the bias is: off by t, its shift is at least 4nt² (Cauchy and Schwarz).
    """
    return crossing(lambda t: power(freedom, 4 * n * t * t, level) - 0.99, 1.0)


def draws(joint: Joint, n: int, seed: int) -> Counter:
    """How often each outcome comes among n samples of a distribution."""
    outcomes, p, rng = list(joint), np.array([*joint.values()]), RandomSource(seed)
    cdf = cumulative(p).tolist()  # made once for all samples
    return Counter(outcomes[rng.categorical(p, cdf)] for _ in range(n))


def chi_squared(counts: dict, exact: dict, n: int) -> tuple[float, int]:
    """χ² of observed counts against n times the exact probabilities, and its degrees of freedom.

    Outcomes expected fewer than 5 times are put into one cell. If even those together are expected
    fewer than 5 times, they are left out; χ² is infinite if they came far more often than that.
    """
    rare_seen = rare_expected = statistic = 0.0
    cells = 0
    for x in counts.keys() | exact.keys():
        seen, expected = counts.get(x, 0), n * exact.get(x, 0.0)
        if expected < 5:
            rare_seen, rare_expected = rare_seen + seen, rare_expected + expected
        else:
            statistic, cells = statistic + (seen - expected) ** 2 / expected, cells + 1
    if rare_expected >= 5:
        statistic, cells = statistic + (rare_seen - rare_expected) ** 2 / rare_expected, cells + 1
    elif rare_seen > 5 + 10 * rare_expected:
        statistic = float("inf")
    return statistic, cells - 1


def chi_squared_limit(freedom: int, sigmas: float = 4.0) -> float:
    """The χ² that chance exceeds as rarely as a normal variable strays by `sigmas` above its mean.

    By Wilson and Hilferty's approximation.
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + sigmas * spread**0.5) ** 3
