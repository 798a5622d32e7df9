"""The exact distribution of any program that draws from a RandomSource, by walking every branch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from nanogpt.sampling import check_probabilities


class Branch:
    """Stands for a RandomSource on one path through a program.

    Follows the choices it is given, then takes the first possible one at every new draw, and
    remembers the alternatives and the path's probability.
    """

    def __init__(self, choices: tuple[int, ...]):
        self.choices = list(choices)
        self.probability = 1.0
        self.alternatives: list[tuple[int, ...]] = []
        self.depth = 0

    def _choose(self, options: list[tuple[int, float]]) -> int:
        """The choice at this draw among (value, probability) pairs of positive probability."""
        if self.depth == len(self.choices):
            self.alternatives += [(*self.choices, value) for value, _ in options[1:]]
            self.choices.append(options[0][0])
        value = self.choices[self.depth]
        self.depth += 1
        self.probability *= dict(options)[value]
        return value

    def bernoulli(self, probability: float) -> bool:
        """True on one branch and False on another, where both are possible.

        Raises ValueError unless 0 <= probability <= 1.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; it must be in [0, 1]")
        options = [(1, float(probability)), (0, 1 - float(probability))]
        return bool(self._choose([(value, p) for value, p in options if p > 0]))

    def categorical(self, probs: Tensor, cdf: Sequence[float] | None = None) -> int:
        """Each token of positive probability in probs (V,), on a branch of its own."""
        check_probabilities(probs)
        return self._choose([(i, p) for i, p in enumerate(probs.tolist()) if p > 0])


def enumerate_outcomes(program: Callable[[Branch], Hashable]) -> dict[Hashable, float]:
    """{outcome: probability} of `program(rng)`, exact but for float64 rounding.

    The program is run once per path of choices, in full; it must draw nothing but from `rng`.
    Branches of probability 0 are not walked.
    """
    outcomes: dict[Hashable, float] = {}
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        branch = Branch(waiting.pop())
        outcome = program(branch)
        outcomes[outcome] = outcomes.get(outcome, 0.0) + branch.probability
        waiting += branch.alternatives
    return outcomes


def total_variation(a: dict[Hashable, float], b: dict[Hashable, float]) -> float:
    """Half the sum of |a - b| over all outcomes: 0 for the same distribution, 1 for disjoint."""
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a | b) / 2
