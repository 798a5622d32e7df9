"""The speed-up equation, and what follows from it.

Costs are in units of one target pass over one token: draft_cost, the c of one drafted token;
verify_cost, the v of a pass over K+1 tokens; and rest, what a round costs besides. α is the
probability that an examined candidate is accepted, taken as the same and independent at every
position.
"""

from __future__ import annotations

from collections.abc import Callable


def expected_tokens(alpha: float, K: int) -> float:
    """Mean tokens per round, (1 - α^(K+1)) / (1 - α): 1 for α = 0, K+1 for α = 1.

    It counts the resampled or bonus token (Leviathan et al. 2023, equation 1).
    Raises ValueError unless 0 <= alpha <= 1 and K >= 0.
    """
    if not (0 <= alpha <= 1 and K >= 0):
        raise ValueError(f"alpha is {alpha} and K is {K}; it takes 0 <= alpha <= 1 and K >= 0")
    return K + 1.0 if alpha == 1 else (1 - alpha ** (K + 1)) / (1 - alpha)


def speed_up(
    tokens: float, K: int, draft_cost: float = 0.0, verify_cost: float = 1.0, rest: float = 0.0
) -> float:
    """Tokens per unit of time, against 1 for autoregressive decoding.

    tokens: the mean of a round. A round costs K · draft_cost + verify_cost + rest. With
    verify_cost = 1 and rest = 0 it is Leviathan et al.'s theorem 3.8.
    """
    return tokens / (K * draft_cost + verify_cost + rest)


def best_K(
    alpha: float,
    draft_cost: float = 0.0,
    verify_cost: Callable[[int], float] = lambda K: 1.0,
    rest: float = 0.0,
    most: int = 16,
) -> int:
    """The K from 1 to `most` of the largest speed-up; the smallest of equals."""

    def gain(K):
        return speed_up(expected_tokens(alpha, K), K, draft_cost, verify_cost(K), rest)

    # rounded, so that no last bit decides between equals
    return max(range(1, most + 1), key=lambda K: round(gain(K), 12))


def break_even(
    K: int, draft_cost: float = 0.0, verify_cost: float = 1.0, rest: float = 0.0
) -> float:
    """The α at which K tokens a round are just as fast as none; NaN if α = 1 does not suffice.

    At K = 1 it is draft_cost + verify_cost + rest - 1: the draft's cost itself, where checking is
    free (Leviathan et al. 2023, corollary 3.9).
    """
    if speed_up(K + 1, K, draft_cost, verify_cost, rest) < 1:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(60):  # halvings: to the last bit
        middle = (low + high) / 2
        faster = speed_up(expected_tokens(middle, K), K, draft_cost, verify_cost, rest) >= 1
        low, high = (low, middle) if faster else (middle, high)
    return high
