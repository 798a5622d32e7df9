"""The speed-up equation, and what follows from it.

Costs are in units of one target pass over one token: the draft's cost c of one drafted token, the
verify cost v of a pass over K+1 tokens, and what a round costs besides. α is the probability that
an examined candidate is accepted, taken as the same and independent at every position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanogpt.model import GPTConfig


def expected_tokens(alpha: float, K: int) -> float:
    """Mean tokens per round, (1 - α^(K+1)) / (1 - α): 1 for α = 0, K+1 for α = 1.

    It counts the resampled or bonus token (Leviathan et al. 2023, equation 1).
    Raises ValueError unless 0 <= alpha <= 1 and K >= 0.
    """
    if not (0 <= alpha <= 1 and K >= 0):
        raise ValueError(f"alpha is {alpha} and K is {K}; it takes 0 <= alpha <= 1 and K >= 0")
    return K + 1.0 if alpha == 1 else (1 - alpha ** (K + 1)) / (1 - alpha)


def expected_tokens_by_position(alphas: Sequence[float]) -> float:
    """The same where candidate i is accepted with probability alphas[i] once it is examined."""
    tokens, reached = 1.0, 1.0
    for alpha in alphas:
        reached *= alpha  # all candidates so far accepted
        tokens += reached
    return tokens


def speed_up(tokens: float, K: int, draft: float = 0.0, verify: float = 1.0, rest: float = 0.0):
    """Tokens per unit of time, against 1 for autoregressive decoding.

    tokens: the mean of a round. A round costs K · draft + verify + rest. With verify = 1 and
    rest = 0 it is Leviathan et al.'s theorem 3.8.
    """
    return tokens / (K * draft + verify + rest)


def best_K(
    alpha: float,
    draft: float = 0.0,
    verify: Callable[[int], float] = lambda K: 1.0,
    rest: float = 0.0,
    most: int = 16,
) -> int:
    """The K from 1 to `most` of the largest speed-up; the smallest of equals."""
    return max(
        range(1, most + 1),
        # rounded, so that no last bit decides between equals
        key=lambda K: round(speed_up(expected_tokens(alpha, K), K, draft, verify(K), rest), 12),
    )


def break_even(K: int, draft: float = 0.0, verify: float = 1.0, rest: float = 0.0) -> float:
    """The α at which K tokens a round are just as fast as none; NaN if α = 1 does not suffice.

    At K = 1 it is draft + verify + rest - 1: the draft's cost itself, where checking is free
    (Leviathan et al. 2023, corollary 3.9).
    """
    if speed_up(K + 1, K, draft, verify, rest) < 1:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(60):  # halvings: to the last bit
        middle = (low + high) / 2
        faster = speed_up(expected_tokens(middle, K), K, draft, verify, rest) >= 1
        low, high = (low, middle) if faster else (middle, high)
    return high


@dataclass(frozen=True)
class Machine:
    """What a machine can do per second: floating-point operations, and bytes read from memory."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """The roofline (Williams et al. 2009): the slower of computing and moving, overlapped."""
        return max(flops / self.flops, moved / self.bandwidth)

    @property
    def ridge(self) -> float:
        """The arithmetic intensity, in operations per byte, from which computing is the slower."""
        return self.flops / self.bandwidth


def pass_flops(parameters: float, T: int) -> float:
    """Floating-point operations of a pass over T tokens: 2 a weight and token, attention aside."""
    return 2 * parameters * T


def pass_bytes(parameters: float, weight_bytes: float, cache_bytes: float = 0.0) -> float:
    """Bytes that a pass reads, whatever its T: every weight once, and the cache."""
    return parameters * weight_bytes + cache_bytes


def arithmetic_intensity(T: int, weight_bytes: float) -> float:
    """Operations per byte read in a pass over T tokens, the cache aside: 2 T / weight_bytes."""
    return pass_flops(1, T) / pass_bytes(1, weight_bytes)


def kv_cache_bytes(n_layer: int, kv_width: int, tokens: int, value_bytes: float = 4) -> float:
    """Bytes of a cache: a key and a value of kv_width numbers a token and layer.

    kv_width is head size times the heads that have keys of their own: n_embd of a GPTConfig, less
    with grouped-query attention.
    """
    return 2 * n_layer * kv_width * tokens * value_bytes


def parameters(config: GPTConfig) -> int:
    """How many weights a GPTLanguageModel of this shape has."""
    C, V = config.n_embd, config.vocab_size
    block = 3 * C * C + (C + 1) * C + (C + 1) * 4 * C + (4 * C + 1) * C + 2 * 2 * C
    return config.n_layer * block + (V + config.block_size) * C + 2 * C + V * C
