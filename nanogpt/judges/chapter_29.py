"""The judge of chapter 29's *Your turn*: a verdict on an engine, from its samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

LEVEL = 0.001  # at most so many right engines may be refused


def pairs(p: np.ndarray, n: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """n pairs of tokens drawn from p (V, V)."""
    u = torch.rand(n, generator=generator).double().numpy()
    drawn = np.searchsorted(np.cumsum(p), u * p.sum(), side="right")
    return [divmod(min(int(x), p.size - 1), len(p)) for x in drawn]


def chain(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The joint distribution (V, V) of a first token (V,) and of a second one after each (V, V)."""
    return first[:, None] * second


def engine_verdict(mine: Callable) -> None:
    """*Your turn* of 29: does an engine that drew these pairs of tokens sample the target's?

    mine(samples, exact) returns True (trust it) or False. Raises AssertionError if it refuses
    right engines more often than it may, or trusts one whose first token, second token, pairs or
    support is wrong, or that only looks right where the likeliest outcome is concerned.
    """
    generator = torch.Generator().manual_seed(29)
    first = np.array([0.4, 0.3, 0.2, 0.1])
    second = np.array([[6, 2, 1, 1], [1, 6, 2, 1], [1, 1, 6, 2], [2, 1, 1, 6]]) / 10
    many = np.array([np.roll(0.5 ** np.arange(9), 2 * i) for i in range(9)])  # most are rare
    many /= many.sum(-1, keepdims=True)
    right = {4: chain(first, second), 9: chain(many[0], many)}
    cases = [(p, n) for p in right.values() for n in (150, 2000)] * 40
    refused = sum(not asked(mine, pairs(p, n, generator), p) for p, n in cases)
    assert refused <= 1, (
        f"you refused {refused} of {len(cases)} right engines (4 or 9 tokens, 150 or 2,000 "
        f"samples): refuse only what luck does less than once in {1 / LEVEL:.0f}, and the fewer "
        "the samples, the further luck goes"
    )
    p = right[4]
    best = np.zeros_like(p)
    best[0, 0] = 1.0
    late = np.array([0.1, 0.2, 0.3, 0.4])
    wrong = {
        "always the likeliest pair, as a greedy engine does": best,
        "a wrong first token": chain(0.8 * first + 0.2 * late, second),
        "a right first token and a wrong second one (look further than token 1)": chain(
            first, 0.6 * second + 0.4 * second[:, ::-1]
        ),
        "each token right on its own, and the second one drawn as if the first had not been "
        "(look at the pairs, not at each place alone)": np.outer(p.sum(1), p.sum(0)),
    }
    for what, q in wrong.items():
        assert not asked(mine, pairs(q, 2000, generator), p), f"you trusted an engine with {what}"
    p = chain(first, np.array([[6, 3, 1, 0], [1, 7, 2, 0], [1, 2, 7, 0], [3, 4, 3, 0]]) / 10)
    strange = pairs(p, 1960, generator) + [(0, 3)] * 40
    assert not asked(mine, strange, p), (
        "you trusted an engine that drew the pair (0, 3) 40 times, whose probability is 0: go over "
        "what came, not only over what was expected"
    )


def asked(mine: Callable, samples: list[tuple[int, int]], p: np.ndarray) -> bool:
    """The reader's verdict on samples of p (V, V); `exact` holds only what can happen."""
    exact = {(i, j): float(x) for (i, j), x in np.ndenumerate(p) if x}
    made = mine(list(samples), dict(exact))
    if isinstance(made, torch.Tensor) and made.dtype == torch.bool and made.numel() == 1:
        made = bool(made)
    came = "nothing" if made is None else f"{made!r:.40}, a {type(made).__name__},"
    assert isinstance(made, (bool, np.bool_)), (
        f"return True to trust the engine and False to refuse it; {came} came"
    )
    return bool(made)
