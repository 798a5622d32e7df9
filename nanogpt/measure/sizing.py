"""What a pass costs on a machine, what fits into its memory, and whether speculation pays there.

Operations, bytes and the roofline; models and GPUs by their sizes; a plan that puts them together;
and a fit to a machine's own times. `nanogpt size` sizes a plan of yours:

    nanogpt size --target llama-3-70b --draft llama-3-8b --gpu H100 --gpus 4

A model is one of the named ones, the `config.json` of a Hugging Face folder, or three numbers:
parameters, layers, and the numbers that a token leaves in a layer's cache, which for keys and
values is 2 x heads x head size: 70e9,80,2x8x128 or 70B,80,2048. A mixture of experts takes the
parameters that are active and the experts as well: 30B:3B,48,2x4x128,8/128.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np

from nanogpt.model import GPTConfig
from nanogpt.theory import expected_tokens


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


def experts_touched(T: int, experts: int, chosen: int) -> float:
    """How many of a layer's experts T tokens read on average, if each picks `chosen` by lot.

    E(1 - (1 - k/E)^T): a real router has favourites, so it is an estimate from above.
    """
    return experts * (1 - (1 - chosen / experts) ** T)


def check_numbers(least: float, **given: float) -> None:
    """Raises ValueError for a number below `least`, NaN, infinity, or no number."""
    for name, number in given.items():
        if not isinstance(number, Real) or not least <= number < math.inf:
            raise ValueError(f"{name} is {number!r}; give a number from {least:g} on")


@dataclass(frozen=True)
class Shape:
    """A model's size: all that its memory and its passes depend on.

    entry: the numbers that a token leaves in a layer's cache. With keys and values, 2 · heads that
    have their own · head size; with multi-head latent attention, the latent's and the rotary
    part's sizes, once (DeepSeek-V3: 512 + 64). active: in a mixture of experts, the parameters that
    one token uses, `chosen` of each layer's `experts` among them; 0 means all of them.
    cached_heads: into how many heads an entry can be dealt out (a latent: 1); 0 means as many as
    there are GPUs. attention: operations of a query token with one cached token, in a layer, over
    all heads; 0 leaves them out. expert_bytes: bytes a weight of the experts, where theirs are
    others (gpt-oss); 0 means the same. windowed: how many layers see, and keep, only the last
    `window` tokens.
    Raises ValueError for sizes that no model has.
    """

    parameters: float
    n_layer: int
    entry: int
    weight_bytes: float = 2
    value_bytes: float = 2
    active: float = 0
    experts: int = 0
    chosen: int = 0
    cached_heads: int = 0
    attention: float = 0
    expert_bytes: float = 0
    windowed: int = 0
    window: int = 0

    def __post_init__(self):
        check_numbers(1, parameters=self.parameters, n_layer=self.n_layer, entry=self.entry)
        check_numbers(0.01, weight_bytes=self.weight_bytes, value_bytes=self.value_bytes)
        check_numbers(0, cached_heads=self.cached_heads, attention=self.attention)
        check_numbers(0, expert_bytes=self.expert_bytes, window=self.window)
        if self.active and not (
            0 < self.active <= self.parameters and 0 < self.chosen < self.experts
        ):
            raise ValueError(
                f"active {self.active:g} of {self.parameters:g} parameters, "
                f"{self.chosen} of {self.experts} experts: a token uses a part of "
                "both; give all three, or none"
            )

    @property
    def one_expert(self) -> float:
        """Parameters of one expert, in all layers; 0 if there are none."""
        if not self.active:
            return 0.0
        return (self.parameters - self.active) / (self.experts - self.chosen)

    def stored(self, touched: float) -> float:
        """Bytes of all weights but experts, and of `touched` experts a layer."""
        shared = self.parameters - self.experts * self.one_expert
        every = pass_bytes(shared, self.weight_bytes)
        width = self.expert_bytes or self.weight_bytes
        return every + pass_bytes(touched * self.one_expert, width)

    @property
    def weights(self) -> float:
        """Bytes of the weights."""
        return self.stored(self.experts)

    @property
    def per_token(self) -> float:
        """Bytes of cache that each token of a text takes, κ, where no window ends."""
        return self.n_layer * self.entry * self.value_bytes

    def seen(self, context: float) -> float:
        """Cached tokens that a token meets, summed over the layers."""
        whole = (self.n_layer - self.windowed) * context
        return whole + self.windowed * min(context, self.window)

    def cached(self, context: float) -> float:
        """Bytes of the cache of a text of so many tokens."""
        return self.seen(context) * self.entry * self.value_bytes

    def moved(self, T: int) -> float:
        """Bytes of weights that a pass over T tokens reads: of the experts, those that it needs."""
        if not self.active:
            return self.weights
        return self.stored(experts_touched(T, self.experts, self.chosen))

    def product_seconds(self, machine: Machine, T: int) -> float:
        """Roofline of the matrix products of a pass over T tokens."""
        return machine.seconds(pass_flops(self.active or self.parameters, T), self.moved(T))

    def attention_seconds(
        self, machine: Machine, B: int, n: int, context: float, copies: float = 1
    ) -> float:
        """Roofline of attention: n tokens of each of B texts meet the cache.

        A cache of `context` tokens is read once for all n, `copies` of it on as many GPUs; each of
        the n computes with all of it.
        """
        flops = B * n * self.seen(context) * self.attention
        return machine.seconds(flops, copies * B * self.cached(context))

    def seconds(self, machine: Machine, B: int, n: int, context: float) -> float:
        """Roofline of a pass over n tokens of each of B texts that have `context` tokens cached."""
        products = self.product_seconds(machine, B * n)
        return products + self.attention_seconds(machine, B, n, context)


def grouped(
    parameters: float, n_layer: int, heads: int, cached: int, size: int, **more: float
) -> Shape:
    """The Shape of a model with `heads` query heads that share `cached` pairs of key and value.

    A query takes 2 · size operations for a score and as many for its part of the value.
    """
    return Shape(
        parameters,
        n_layer,
        2 * cached * size,
        cached_heads=cached,
        attention=4 * heads * size,
        **more,
    )


def latent(
    parameters: float, n_layer: int, heads: int, rank: int, rotary: int, **more: float
) -> Shape:
    """The Shape of a model with multi-head latent attention (DeepSeek-V2, section 2.1).

    Every head's scores use the latent and the rotary part, its value the latent alone: that is
    how engines run it, with the matrices that would make keys and values taken into the queries
    (https://github.com/deepseek-ai/FlashMLA, its notes on the kernel of April 2025).
    """
    work = 2 * heads * (2 * rank + rotary)
    return Shape(parameters, n_layer, rank + rotary, cached_heads=1, attention=work, **more)


MODELS = {  # from their config.json files and reports; parameters as the reports round them
    "llama-3-70b": grouped(70e9, 80, 64, 8, 128),
    "llama-3-8b": grouped(8e9, 32, 32, 8, 128),
    "llama-3.2-1b": grouped(1.24e9, 16, 32, 8, 64),
    "mixtral-8x7b": grouped(46.7e9, 32, 32, 8, 128, active=12.9e9, experts=8, chosen=2),
    "deepseek-v3": latent(
        671e9, 61, 128, 512, 64, weight_bytes=1, active=37e9, experts=256, chosen=8
    ),
}


class Gpu(NamedTuple):
    """Bytes of memory, bytes read from it a second, dense operations a second by their width.

    flops: with 16 bits; flops8 and flops4: with 8 and 4, 0 where it cannot.
    """

    memory: float
    bandwidth: float
    flops: float
    flops8: float = 0
    flops4: float = 0

    def rate(self, weight_bytes: float) -> float:
        """Operations a second with weights of so many bytes.

        Of 16, 8 and 4 bits, those nearest count (scales make 4 bits 4.25 or 4.5). What it cannot
        multiply as it is, engines unpack to 16 bits.
        """
        rates = {2: self.flops, 1: self.flops8, 0.5: self.flops4}
        nearest = min(rates, key=lambda width: abs(width - weight_bytes))
        return rates[nearest] or self.flops


# The makers' product pages (nvidia.com/en-us/data-center, SXM where there is one; amd.com); what
# they quote "with sparsity" is halved.
GPUS = {
    "A100": Gpu(80e9, 2.039e12, 312e12),
    "H100": Gpu(80e9, 3.35e12, 989e12, 1979e12),
    "H200": Gpu(141e9, 4.8e12, 989e12, 1979e12),
    "L4": Gpu(24e9, 0.3e12, 121e12, 242e12),
    "L40S": Gpu(48e9, 0.864e12, 362e12, 733e12),
    "MI300X": Gpu(192e9, 5.3e12, 1307e12, 2614e12),
}


@dataclass(frozen=True)
class Plan:
    """A target, perhaps a draft, and the GPUs that share their weights evenly.

    alpha: the acceptance of a guess. context: tokens in each text's cache. utilisation: the part
    of the memory that weights and caches may take. overhead: seconds that each pass takes besides.
    dp_attention: each text's attention runs on one GPU; otherwise every text's heads are dealt out
    to all GPUs, and a head that is the only one lies on each of them (tensor parallelism).
    Without a draft, guesses cost nothing (prompt lookup). Raises ValueError for what cannot be.
    """

    target: Shape
    gpu: Gpu
    gpus: int = 1
    draft: Shape | None = None
    alpha: float = 0.8
    context: int = 2000
    utilisation: float = 0.9
    overhead: float = 0.0
    dp_attention: bool = False

    def __post_init__(self):
        check_numbers(1, gpus=self.gpus, context=self.context)
        memory, bandwidth, flops, *narrow = self.gpu
        check_numbers(1, memory=memory, bandwidth=bandwidth, flops=flops)
        check_numbers(0, narrow=min(narrow))
        check_numbers(0, overhead=self.overhead, alpha=self.alpha, utilisation=self.utilisation)
        if self.alpha > 1 or not 0 < self.utilisation <= 1:
            raise ValueError(
                f"alpha is {self.alpha} and utilisation {self.utilisation}; both "
                "are parts of 1, such as 0.8 and 0.9"
            )

    @property
    def machine(self) -> Machine:
        """All GPUs as one, with 16 bits, nothing lost between them."""
        return self.machine_for(2)

    def machine_for(self, weight_bytes: float) -> Machine:
        """All GPUs as one, at the rate that belongs to the weights' precision."""
        return Machine(self.gpus * self.gpu.rate(weight_bytes), self.gpus * self.gpu.bandwidth)

    def models(self, drafted: bool = True) -> list[Shape]:
        """The target and, unless it is left out, the draft."""
        return [self.target] + [self.draft] * (drafted and self.draft is not None)

    def copies(self, model: Shape) -> float:
        """How often a cache lies in memory: more than once where heads run out."""
        if self.dp_attention or not model.cached_heads:
            return 1.0
        return self.gpus / min(self.gpus, model.cached_heads)

    def capacity(self, drafted: bool = True) -> int:
        """Tokens whose caches fit beside the weights; 0 if the weights do not fit."""
        models = self.models(drafted)
        room = self.gpus * self.gpu.memory * self.utilisation
        room -= sum(model.weights for model in models)
        texts = sum(self.copies(x) * x.cached(self.context) for x in models)
        return max(0, int(room / (texts / self.context)))

    def texts(self, drafted: bool = True) -> int:
        """Texts that fit at once."""
        return self.capacity(drafted) // self.context

    def attention_seconds(self, model: Shape, B: int, n: int) -> float:
        """A model's attention in a pass over n tokens of B texts, with 16 bits."""
        if self.dp_attention:  # the GPU with the most texts is the last
            one = Machine(self.gpu.flops, self.gpu.bandwidth)
            return model.attention_seconds(one, math.ceil(B / self.gpus), n, self.context)
        copies = self.copies(model)
        return model.attention_seconds(self.machine, B, n, self.context, copies)

    def pass_seconds(self, model: Shape, B: int, n: int) -> float:
        """A model's pass over n tokens of each of B texts."""
        machine = self.machine_for(model.expert_bytes or model.weight_bytes)
        products = model.product_seconds(machine, B * n)
        return products + self.attention_seconds(model, B, n) + self.overhead

    def round_seconds(self, B: int, K: int) -> float:
        """A round of B texts: K passes of the draft, and one of the target over K+1 tokens each."""
        check = self.pass_seconds(self.target, B, K + 1)
        if not self.draft or not K:
            return check
        return K * self.pass_seconds(self.draft, B, 1) + check

    def rate(self, B: int, K: int) -> float:
        """Tokens a second of B texts with K guesses each; K = 0 is plain decoding."""
        return B * expected_tokens(self.alpha, K) / self.round_seconds(B, K)

    def speed_up(self, B: int, K: int) -> float:
        """How many times as fast as plain decoding of as many texts."""
        return self.rate(B, K) / self.rate(B, 0)

    def best_K(self, B: int, most: int = 16) -> int:
        """The K up to `most` of the highest rate; 0 where no guess pays."""
        return max(range(most + 1), key=lambda K: round(self.speed_up(B, K), 12))

    def break_even(self, K: int, most: int = 4096) -> int | None:
        """The smallest batch at which K guesses are slower than none; None up to `most` texts."""
        found = (B for B in range(1, most + 1) if self.speed_up(B, K) < 1)
        return next(found, None)


class PassTime(NamedTuple):
    """Seconds of a pass on a machine as it is: what `fit` finds.

    fixed: what every pass takes (reading the weights, starting kernels); per_text and per_token;
    free: so many tokens are computed while the weights are read.
    """

    fixed: float
    per_text: float
    per_token: float
    free: float = 0.0

    def __call__(self, B: int, n: int) -> float:
        """Seconds of a pass over n tokens of each of B texts."""
        paid = max(0.0, B * n - self.free)
        return self.fixed + B * self.per_text + paid * self.per_token


def check_cells(times: Mapping[tuple[int, int], float]) -> None:
    """Raises ValueError without two batch sizes, two widths, four cells, or a positive time."""
    batches, widths = (set(sizes) for sizes in zip(*times, strict=True)) if times else ((), ())
    if min(len(batches), len(widths)) < 2 or len(times) < 4 or not min(times.values()) > 0:
        raise ValueError(
            f"{len(times)} cells with {len(batches)} batch sizes and {len(widths)} widths; give "
            "{(B, n): seconds > 0} with two of each at least, and four cells"
        )


def fit(times: Mapping[tuple[int, int], float]) -> PassTime:
    """The PassTime nearest to measured {(B, n): seconds}: least squares of the relative errors.

    No number in it is negative. Raises ValueError for cells that cannot tell them apart.
    """
    check_cells(times)
    B, T = np.array([(b, b * n) for b, n in times], dtype=float).T
    seconds, found = np.array(list(times.values())), []
    for free in (0.0, *np.geomspace(T.min(), T.max() / 2, 101)[1:]):
        columns = np.stack([np.ones_like(B), B, np.maximum(0, T - free)], axis=1)
        columns /= seconds[:, None]  # so that all should add up to 1
        for kept in itertools.product((False, True), repeat=3):  # the others: 0
            numbers, used = np.zeros(3), list(kept)
            part = columns[:, used]
            numbers[used] = np.linalg.lstsq(part, np.ones_like(B), rcond=None)[0]
            if (numbers >= 0).all():
                off = float(((columns @ numbers - 1) ** 2).sum())
                found.append((off, PassTime(*numbers.tolist(), float(free))))
    return min(found, key=lambda pair: pair[0])[1]
