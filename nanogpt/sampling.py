"""From logits to probabilities to tokens. All randomness of the package passes through here.

Probabilities are float64 tensors on the CPU wherever the model runs: the vocabulary is small, and
exactness is the product.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a model's logits become the probabilities that tokens are drawn from.

    temperature: logits are divided by it; 0 is greedy, all probability on the first best token.
    top_k: keep the k likeliest tokens. top_p: of those, keep the smallest set whose probability
    reaches p (Holtzman et al. 2020), the token that crosses p included.
    Raises ValueError if temperature < 0 or not finite, top_k < 1, or top_p outside (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature is {self.temperature}; it must be finite and at least 0 (0 is greedy)"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise ValueError(f"top_k is {self.top_k}; it must be a whole number from 1, or None")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1, or None")

    def probs(self, logits: Tensor) -> Tensor:
        """logits (..., V), any float type and device -> probabilities (..., V), float64, CPU.

        Raises ValueError at temperature 0 where no logit is the largest number.
        """
        logits = logits.detach().cpu()
        if self.temperature == 0:
            if not logits.amax(-1).isfinite().all():
                raise ValueError("logits are NaN or infinite: what does the model compute?")
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
        if self.temperature != 1:  # below the best one first, so that no temperature overflows
            logits = logits.double()
            logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        probs = torch.softmax(logits, dim=-1, dtype=torch.float64)
        if (top_k := self.top_k) is not None:
            probs = keep(probs, lambda ranked: torch.arange(ranked.shape[-1]) < top_k)
        if (top_p := self.top_p) is not None and top_p < 1:
            probs = keep(probs, lambda ranked: ranked.cumsum(-1) - ranked < top_p)
        return probs

    def of_probs(self, probs: Tensor) -> Tensor:
        """The same rule for probabilities (..., V) instead of logits; those of 0 stay 0."""
        if self.temperature == 1 and self.top_k is None and self.top_p is None:
            return probs
        return self.probs(probs.log())  # the softmax of log q is q


def keep(probs: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """probs (..., V) with only those tokens left whose rank `rule` keeps, summing to 1 again.

    `rule` maps the probabilities in descending order (ties: lower token first) to a bool mask.
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(probs).scatter(-1, order, ranked * rule(ranked))
    return kept / kept.sum(-1, keepdim=True)


class Uniforms:
    """NumPy's PCG64, a hundred numbers at a time: asked for one by one, each costs far more."""

    def __init__(self, seed: int):
        self.random = self.numbers(seed).__next__  # the next one

    @staticmethod
    def generator(seed: int | list[int]) -> Generator:
        """PCG64 itself, for many numbers at once."""
        return np.random.default_rng(seed)

    @staticmethod
    def numbers(seed: int) -> Iterator[float]:
        """Its uniform numbers in [0, 1), without end."""
        generator = Uniforms.generator(seed)
        while True:
            yield from generator.random(100).tolist()


class RandomSource:
    """The only randomness of the package: a seeded stream of uniform numbers.

    Each call takes one float64 uniform u in [0, 1) from NumPy's PCG64: the same seed and the same
    probabilities give the same choices everywhere. uniforms: in its place, what has `random()`.
    Raises ValueError if the seed is no whole number from 0.
    """

    def __init__(self, seed: int, uniforms=None):
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed is {seed!r}; it must be a whole number from 0")
        self._uniforms = uniforms or Uniforms(seed)

    def bernoulli(self, probability: float) -> bool:
        """True with `probability`: u < probability, never at 0 and always at 1.

        Raises ValueError unless 0 <= probability <= 1.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; it must be in [0, 1]")
        return bool(self._uniforms.random() < probability)

    def categorical(self, probs: Tensor | np.ndarray, cdf: Sequence[float] | None = None) -> int:
        """A token drawn from probs (V,): the inverse CDF of u. Never one of probability 0.

        `cdf`: their running sums (V,), where they are known already; they are not checked.
        Raises ValueError unless probs are non-negative and sum to 1 within 1e-6.
        """
        sums = cumulative(probs) if cdf is None else cdf
        u = self._uniforms.random() * sums[-1]  # sums[-1] is 1 but for rounding
        return bisect.bisect_right(sums, u)


def cumulative(probs: Tensor | np.ndarray) -> np.ndarray:
    """The running sums of probs (V,). Raises ValueError if they are no probabilities."""
    p = np.asarray(probs)
    cdf = p.cumsum()
    if not (p.min() >= 0 and abs(cdf[-1] - 1) <= 1e-6):
        check_probabilities(p)
    return cdf


def check_probabilities(probs: Tensor | np.ndarray) -> None:
    """Raise ValueError unless probs (..., V) are non-negative and sum to 1 within 1e-6."""
    p = np.asarray(probs)
    if not p.min(initial=0) >= 0:  # NaN fails this too
        raise ValueError("probabilities hold a negative number or NaN; check the logits or weights")
    off = np.abs(p.sum(axis=-1) - 1).max(initial=0)
    if not off <= 1e-6:
        raise ValueError(
            f"probabilities sum to 1 within {off:.1e}, more than 1e-06; divide them by their sum"
        )
