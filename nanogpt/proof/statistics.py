"""Exact distributions of a few tokens, and what a sample of so many can tell from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from nanogpt.cache import KVCache
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling, cumulative

Joint = Mapping[tuple[int, ...], float]  # {tokens: probability}, or how often they came
LEVEL = 1e-6
LEAST = 5.0  # outcomes expected in a cell of a χ² test, and the variance of what it sums


# The truth


def next_probs(model: GPTLanguageModel, prompt: Sequence[int] = ()) -> Callable[[Tensor], Tensor]:
    """rows (N, T) -> p (N, V) of the token after each row, at temperature 1.

    prompt: tokens that all rows begin with, if there are any; they are read once.
    """
    start = list(prompt[:-1])  # the last token is always read, for what follows it

    @torch.no_grad()
    def probs(rows: Tensor) -> Tensor:
        if not start:
            parts = (model(part)[0] for part in rows.split(500))
        else:
            kvs = model(torch.tensor([start]))[2]
            parts = (
                model(part[:, len(start) :], past_kvs=repeated(kvs, len(part)))[0]
                for part in rows.split(500)
            )
        return torch.cat([Sampling().probs(logits[:, -1]) for logits in parts])

    return probs


def repeated(kvs: KVCache, B: int) -> KVCache:
    """The cache of one text as that of a batch of B which all begin with it."""
    return tuple(
        tuple((k.expand(B, -1, -1), v.expand(B, -1, -1)) for k, v in layer) for layer in kvs
    )


@torch.no_grad()
def own_logits(model: GPTLanguageModel, prompt: Sequence[int], made: Tensor) -> Tensor:
    """Logits (N, n, V) of each token of made (N, n), after the prompt and the tokens before it.

    In batches; a prompt is read once if its cache is of tuples, and with each sample otherwise.
    """
    rows = torch.cat([torch.tensor([list(prompt)]).expand(len(made), -1), made[:, :-1]], dim=1)
    first = len(prompt) - 1  # what follows the prompt
    start = model(rows[:1, :first])[2] if first else None
    if not isinstance(start, tuple):
        return torch.cat([model(part)[0][:, first:] for part in rows.split(250)])
    parts = rows[:, first:].split(250)
    return torch.cat([model(part, past_kvs=repeated(start, len(part)))[0] for part in parts])


def own_probs(
    model: GPTLanguageModel, prompt: Sequence[int], made: Tensor, sampling: Sampling
) -> Tensor:
    """p (N, n, V) of each token of made (N, n), as own_logits."""
    return sampling.probs(own_logits(model, prompt, made))


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


def p_values(statistics: Tensor, freedom: float) -> Tensor:
    """p_value of each of them."""
    half = torch.full_like(statistics, freedom / 2)
    return torch.special.gammaincc(half, statistics / 2)


def crossing(rising: Callable[[float], float], high: float) -> float:
    """Where a rising function crosses 0, between 0 and `high`, by halving."""
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


@cache
def critical_value(freedom: int, level: float) -> float:
    """The χ² that chance exceeds with probability `level`."""
    return crossing(lambda x: level - p_value(x, freedom), 10 * freedom + 2000)


def power(freedom: int, shift: float, level: float = LEVEL) -> float:
    """How likely the test is to refuse what is off by `shift`: a noncentral χ² above the limit.

    shift: the χ² of the expected counts themselves. It adds two degrees of freedom for each of
    Poisson(shift / 2) events.
    """
    if shift == float("inf"):
        return 1.0
    limit = critical_value(freedom, level)
    mean, half = torch.tensor([shift / 2, limit / 2], dtype=torch.float64)
    events = torch.arange(int(shift / 2 + 10 * shift**0.5 + 30), dtype=torch.float64)
    weights = torch.distributions.Poisson(mean).log_prob(events).exp()
    return min(1.0, float(weights @ torch.special.gammaincc(freedom / 2 + events, half)))


@cache  # many places have the same freedom
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
    often, rare_expected = {}, 0.0
    for x, p in exact.items():
        if n * p < 5:
            rare_expected += n * p
        else:
            often[x] = n * p
    rare_seen = sum(seen for x, seen in counts.items() if x not in often)
    statistic = sum((counts.get(x, 0) - expected) ** 2 / expected for x, expected in often.items())
    cells = len(often)
    if rare_expected >= 5:
        statistic, cells = statistic + (rare_seen - rare_expected) ** 2 / rare_expected, cells + 1
    elif rare_seen > 5 + 10 * rare_expected:
        statistic = float("inf")
    return statistic, cells - 1


def score(rows: Tensor, came: Tensor) -> tuple[float, int]:
    """χ² of n outcomes, each with probabilities of its own, and its degrees of freedom.

    rows (n, C): of each outcome, the exact probabilities of C cells; came (n,): the cell it fell
    into. Equal rows make it Pearson's χ². Outcomes may depend on those before them, as the tokens
    of a text do, since each is judged by its row. χ² is infinite if one came whose probability is
    0.
    """
    if not (rows.gather(1, came[:, None]) > 0).all():
        return float("inf"), rows.shape[1] - 1
    statistic, freedom = of_counts(rows)
    counts = torch.bincount(came, minlength=rows.shape[1]).to(rows.dtype)
    return float(statistic(counts)), freedom


def of_counts(rows: Tensor) -> tuple[Callable[[Tensor], Tensor], int]:
    """counts (..., C) -> χ² (...) of outcomes that rows (n, C) are right about, and its freedom.

    The number of outcomes in each cell, less the number expected, then has mean 0 and the
    covariance Σ diag(p) - p pᵀ, and χ² is its square by that. The rarest cells are put together
    until LEAST outcomes are expected in each; and what varies by less counts as if it varied by
    LEAST: where all rows are nearly certain, one rare outcome is no proof.
    """
    cell = merged(rows.sum(0))
    together = torch.zeros(rows.shape[1], int(cell.max()) + 1, dtype=rows.dtype)
    together[torch.arange(len(cell)), cell] = 1
    rows = rows @ together
    expected, covariance = rows.sum(0), torch.diag(rows.sum(0)) - rows.T @ rows
    values, vectors = torch.linalg.eigh(covariance)
    varies = values > 1e-9 * len(rows)  # one direction, at least, does not: all cells together

    def statistic(counts: Tensor) -> Tensor:
        off = counts @ together - expected
        return ((off @ vectors) ** 2 / values.clamp(min=LEAST)).sum(-1)

    return statistic, int(varies.sum())


def of_pairs(rows: Tensor, group: Tensor) -> Callable[[Tensor], tuple[Tensor, float]]:
    """A test of whether outcomes of one group agree more than their own rows have it.

    rows (n, C): as in score; group (n,): of each outcome a number, known before it came. Returns
    cells (n, S) -> a χ² (S,) and its degrees of freedom, which are not whole. What came less what
    was expected, e - p (C,), has mean 0 whatever the others are; so has the product of two of them,
    and their sum over all pairs of a group. It is off where a group is biased in one direction,
    though another is biased in the opposite one. The sum's variance is exact. It is one of squares
    of normal numbers, each times an eigenvalue, less its mean; with the largest for all, a χ² has
    no smaller cumulant. The half is for outcomes so rare that a pair of them is all that comes.
    """
    G, C = int(group.max()) + 1, rows.shape[1]
    expected = torch.zeros(G, C, dtype=rows.dtype).index_add_(0, group, rows)
    square = (rows**2).sum(-1)
    itself = square - 2 * (rows**3).sum(-1) + square**2  # tr C², where C = diag(p) - p pᵀ
    variance, largest, each = -2 * float(itself.sum()), 0.0, []
    for some in rows[group.argsort()].split(torch.bincount(group, minlength=G).tolist()):
        covariance = torch.diag(some.sum(0)) - some.T @ some
        variance += 2 * float((covariance**2).sum())
        each.append((2 * float(covariance.diagonal().max()), some))
    # No eigenvalue is above twice the largest variance: what is beside it in its row sums to it.
    for most, some in sorted(each, key=lambda x: -x[0]):
        if most > largest:
            covariance = torch.diag(some.sum(0)) - some.T @ some
            largest = max(largest, float(torch.linalg.eigvalsh(covariance)[-1]))
    variance = max(variance, 2 * LEAST**2)  # where all is nearly certain, a pair is no proof
    scale = largest + 0.5
    freedom = variance / (2 * scale**2)

    def statistic(cells: Tensor) -> tuple[Tensor, float]:
        S = cells.shape[1]
        counts = torch.zeros(G * C, S, dtype=rows.dtype)
        counts.scatter_add_(0, group[:, None] * C + cells, torch.ones_like(cells, dtype=rows.dtype))
        pairs = ((counts - expected.flatten()[:, None]) ** 2).sum(0)
        pairs -= (1 + square[:, None] - 2 * rows.gather(1, cells)).sum(0)  # of each with itself
        return (freedom + pairs / scale).clamp(min=0), freedom

    return statistic


def merged(expected: Tensor, least: float = LEAST) -> Tensor:
    """The new number of each of C cells: the rarest become one, in which `least` are expected."""
    order = expected.argsort()
    total = expected[order].cumsum(0)
    n = max(int((expected < least).sum()), 1 + int((total < least).sum()))
    cell = torch.zeros(len(expected), dtype=torch.int64)
    cell[order[n:]] = torch.arange(1, len(expected) - min(n, len(expected)) + 1)
    return cell


RANKS = (1, 2, 3, 5, 9)  # the likeliest token, the second, the third, the 4th and 5th, …


def by_rank(p: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """rows (n, C) and cells (n,) for `score`, of p (n, V) and tokens (n,): how likely each was.

    A cell is a range of ranks. What flattens p, sharpens it or forgets its tail shows here, though
    it may be a different letter each time.
    """
    ranked, order = p.sort(dim=-1, descending=True, stable=True)
    rank = (order == tokens[:, None]).int().argmax(-1)  # from 0
    edges = torch.tensor([edge for edge in RANKS if edge < p.shape[-1]])
    cell = torch.bucketize(torch.arange(p.shape[-1]), edges, right=True)
    rows = torch.zeros(len(p), len(edges) + 1, dtype=p.dtype).index_add_(1, cell, ranked)
    return rows, cell[rank]


def p_text(p: float) -> str:
    """A p-value in print; the smallest are 0 by rounding."""
    return f"{p:.2g}" if p > 1e-300 else "<1e-300"


def chi_squared_limit(freedom: int, sigmas: float = 4.0) -> float:
    """The χ² that chance exceeds as rarely as a normal variable strays by `sigmas` above its mean.

    By Wilson and Hilferty's approximation.
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + sigmas * spread**0.5) ** 3
