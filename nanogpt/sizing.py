"""What a pass costs on a machine: operations, bytes, and the roofline."""

from __future__ import annotations

from dataclasses import dataclass

from nanogpt.model import GPTConfig


@dataclass(frozen=True)
class Machine:
    """What a machine can do per second: floating-point operations, and bytes read from memory."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """One kernel's roofline (Williams et al. 2009): the slower of computing and moving.

        A kernel overlaps the two. Kernels run one after the other, so their seconds add up.
        """
        return max(flops / self.flops, moved / self.bandwidth)

    @property
    def ridge(self) -> float:
        """The arithmetic intensity, in operations per byte, from which computing is the slower."""
        return self.flops / self.bandwidth


def pass_flops(parameters: float, T: int) -> float:
    """Floating-point operations of a pass over T tokens: 2 a weight and token, attention aside."""
    return 2 * parameters * T


def pass_bytes(parameters: float, weight_bytes: float) -> float:
    """Bytes of weights that a pass of a dense model reads, whatever its T: each of them once."""
    return parameters * weight_bytes


def pass_seconds(
    machine: Machine, parameters: float, T: int, weight_bytes: float, cache_bytes: float = 0.0
) -> float:
    """Seconds of a pass over T tokens by the roofline, kernel by kernel.

    The matrix products and the reading of the cache are different kernels: their times add up.
    Attention's own arithmetic is left out.
    """
    weights = pass_bytes(parameters, weight_bytes)
    products = machine.seconds(pass_flops(parameters, T), weights)
    return products + machine.seconds(0, cache_bytes)


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
