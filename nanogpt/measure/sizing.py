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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from statistics import median
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
    `window` tokens. prompt_attention: as `attention`, where a prompt's tokens meet (a latent is
    made into keys and values for them); 0 means the same.
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
    prompt_attention: float = 0

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
    def width(self) -> float:
        """Numbers of a token between two layers, by the rule of 12 width² weights a layer."""
        return math.sqrt((self.active or self.parameters) / (12 * self.n_layer))

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

    def prompt_flops(self, tokens: int) -> float:
        """Operations of attention over a prompt: each token meets those before it."""
        w = min(tokens, self.window)
        met = (self.n_layer - self.windowed) * tokens**2 / 2
        met += self.windowed * (w * tokens - w**2 / 2)
        return met * (self.prompt_attention or self.attention)

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
    parameters: float,
    n_layer: int,
    heads: int,
    rank: int,
    rotary: int,
    plain: int,
    value: int,
    **more: float,
) -> Shape:
    """The Shape of a model with multi-head latent attention (DeepSeek-V2, section 2.1).

    Every head's scores use the latent and the rotary part, its value the latent alone: that is
    how engines run it, with the matrices that would make keys and values taken into the queries
    (https://github.com/deepseek-ai/FlashMLA, its notes on the kernel of April 2025). Over a prompt
    they make keys of plain + rotary numbers and values of `value`, which is less work.
    """
    return Shape(
        parameters,
        n_layer,
        rank + rotary,
        cached_heads=1,
        attention=2 * heads * (2 * rank + rotary),
        prompt_attention=2 * heads * (plain + rotary + value),
        **more,
    )


MIXED = {"experts": 128, "chosen": 8}  # Qwen3's
MXFP4 = 17 / 32  # 32 weights of 4 bits and a scale of 8 (OCP Microscaling Formats 1.0, section 5)
OSS = {"cached": 8, "size": 64, "chosen": 4, "expert_bytes": MXFP4, "window": 128}  # gpt-oss
DEEPSEEK = latent(
    671e9, 61, 128, 512, 64, 128, 128, weight_bytes=1, active=37e9, experts=256, chosen=8
)
MODELS = {  # from their config.json files and reports; parameters as the reports round them
    "llama-2-7b": grouped(6.74e9, 32, 32, 32, 128),
    "llama-3-8b": grouped(8e9, 32, 32, 8, 128),
    "llama-3-70b": grouped(70e9, 80, 64, 8, 128),
    "llama-3.1-8b": grouped(8.03e9, 32, 32, 8, 128),
    "llama-3.1-70b": grouped(70.6e9, 80, 64, 8, 128),
    "llama-3.1-405b": grouped(405.9e9, 126, 128, 8, 128),
    "llama-3.2-1b": grouped(1.24e9, 16, 32, 8, 64),
    "llama-3.3-70b": grouped(70.6e9, 80, 64, 8, 128),
    "qwen2.5-1.5b": grouped(1.54e9, 28, 12, 2, 128),
    "qwen2.5-7b": grouped(7.62e9, 28, 28, 4, 128),
    "qwen2.5-72b": grouped(72.7e9, 80, 64, 8, 128),
    "qwen3-0.6b": grouped(0.6e9, 28, 16, 8, 128),
    "qwen3-8b": grouped(8.19e9, 36, 32, 8, 128),
    "qwen3-32b": grouped(32.8e9, 64, 64, 8, 128),
    "qwen3-30b-a3b": grouped(30.5e9, 48, 32, 4, 128, active=3.3e9, **MIXED),
    "qwen3-235b-a22b": grouped(235e9, 94, 64, 4, 128, active=22e9, **MIXED),
    "gpt-oss-20b": grouped(20.9e9, 24, 64, active=3.6e9, experts=32, windowed=12, **OSS),
    "gpt-oss-120b": grouped(116.8e9, 36, 64, active=5.1e9, experts=128, windowed=18, **OSS),
    "mixtral-8x7b": grouped(46.7e9, 32, 32, 8, 128, active=12.9e9, experts=8, chosen=2),
    "deepseek-v3": DEEPSEEK,
    "deepseek-r1": DEEPSEEK,
}


REACHED = 0.65  # of a data sheet's operations: the products of a crowd in chapter 28, on an H200
PCIE = 30e9  # bytes a second of an all-reduce without NVLink, and …
WAIT = 12e-6  # … what each takes besides; both fit chapter 28's Llama-3.3-70B


class Gpu(NamedTuple):
    """Bytes of memory, bytes read from it a second, dense operations a second by their width.

    flops: with 16 bits; flops8 and flops4: with 8 and 4, 0 where it cannot. link: bytes a second
    to the other GPUs in one direction: NVLink's as the sheets have it.
    """

    memory: float
    bandwidth: float
    flops: float
    flops8: float = 0
    flops4: float = 0
    link: float = PCIE

    def rate(self, weight_bytes: float) -> float:
        """Operations a second with weights of so many bytes.

        Of 16, 8 and 4 bits, those nearest count (scales make 4 bits 4.25 or 4.5). What it cannot
        multiply as it is, engines unpack to 16 bits.
        """
        rates = {2: self.flops, 1: self.flops8, 0.5: self.flops4}
        nearest = min(rates, key=lambda width: abs(width - weight_bytes))
        return rates[nearest] or self.flops


# The makers' product pages and data sheets (nvidia.com/en-us/data-center, SXM where there is one;
# the Blackwell data sheet for B200 in an HGX board and one GPU of a GB200 NVL72; the Ada GPU
# architecture paper for the 4090, sums of 32 bits; amd.com/en/products/accelerators/instinct);
# what they quote "with sparsity" is halved. B300 and RTX-PRO-6000: as the press was told.
GPUS = {
    "A100": Gpu(80e9, 2.039e12, 312e12, link=300e9),
    "H20": Gpu(96e9, 4.0e12, 148e12, 296e12, link=450e9),
    "H100": Gpu(80e9, 3.35e12, 989e12, 1979e12, link=450e9),
    "H100-PCIE": Gpu(80e9, 2.0e12, 756e12, 1513e12),
    "H100-NVL": Gpu(94e9, 3.9e12, 835e12, 1671e12, link=300e9),
    "H200": Gpu(141e9, 4.8e12, 989e12, 1979e12, link=450e9),
    "B200": Gpu(180e9, 7.7e12, 2250e12, 4500e12, 9000e12, link=900e9),
    "B300": Gpu(288e9, 8.0e12, 2250e12, 4500e12, 13500e12, link=900e9),
    "GB200": Gpu(186e9, 8.0e12, 2500e12, 5000e12, 10000e12, link=900e9),
    "L4": Gpu(24e9, 0.3e12, 121e12, 242e12),
    "L40S": Gpu(48e9, 0.864e12, 362e12, 733e12),
    "RTX4090": Gpu(24e9, 1.008e12, 165.2e12, 330.3e12),
    "RTX-PRO-6000": Gpu(96e9, 1.792e12, 503.8e12, 1007.6e12, 2015.2e12),
    "MI300X": Gpu(192e9, 5.3e12, 1307e12, 2614e12, link=448e9),
    "MI355X": Gpu(288e9, 8.0e12, 2500e12, 5000e12, 10000e12, link=538e9),
}


@dataclass(frozen=True)
class Plan:
    """A target, perhaps a draft, and the GPUs that share their weights evenly.

    alpha: the acceptance of a guess. context: tokens in each text's cache. utilisation: the part
    of the memory that weights and caches may take. overhead: seconds that each layer of a pass
    takes besides (`layer_overhead`). parallel: the draft guesses all K in one pass.
    dp_attention: each text's attention runs on one GPU; otherwise every text's heads are dealt out
    to all GPUs, and a head that is the only one lies on each of them (tensor parallelism). The
    copies of attention's weights that dp_attention takes are not counted.
    reached: the part of the GPUs' operations a second that products reach. link: bytes a second
    between GPUs, which all-reduce twice a layer; 0 leaves that out. prompt, output: tokens of a
    text, whose prompt passes in the others' passes; 0 leaves it out. tree: tokens of a text that a
    check reads, where guesses are a tree of depth K; 0: K + 1.
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
    parallel: bool = False
    reached: float = 1.0
    link: float = 0.0
    prompt: int = 0
    output: int = 0
    tree: int = 0

    def __post_init__(self):
        check_numbers(1, gpus=self.gpus, context=self.context)
        memory, bandwidth, flops, *narrow = self.gpu
        check_numbers(1, memory=memory, bandwidth=bandwidth, flops=flops)
        check_numbers(0, narrow=min(narrow))
        check_numbers(0, link=self.link, prompt=self.prompt, output=self.output, tree=self.tree)
        check_numbers(0.01, reached=self.reached)
        check_numbers(0, overhead=self.overhead, alpha=self.alpha, utilisation=self.utilisation)
        if self.alpha > 1:
            raise ValueError(f"alpha is {self.alpha}; it is a part of 1, such as 0.8")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation is {self.utilisation}; it is a part of 1, such as 0.9")

    @property
    def machine(self) -> Machine:
        """All GPUs as one, with 16 bits, nothing lost between them."""
        return self.machine_for(2)

    def machine_for(self, weight_bytes: float) -> Machine:
        """All GPUs as one, at the rate that belongs to the weights' precision."""
        flops = self.gpus * self.gpu.rate(weight_bytes) * self.reached
        return Machine(flops, self.gpus * self.gpu.bandwidth)

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
            one = replace(self, gpus=1).machine
            return model.attention_seconds(one, math.ceil(B / self.gpus), n, self.context)
        copies = self.copies(model)
        return model.attention_seconds(self.machine, B, n, self.context, copies)

    def exchange_seconds(self, model: Shape, T: int) -> float:
        """Two all-reduces a layer of T tokens' numbers, of 2 bytes, round the ring of GPUs."""
        if not self.link or self.gpus == 1:
            return 0.0
        turns = 2 * (self.gpus - 1) / self.gpus
        wait = WAIT if self.link <= PCIE else 0.0  # NVLink's is little more than a start
        return 2 * model.n_layer * (wait + turns * T * model.width * 2 / self.link)

    def pass_seconds(self, model: Shape, B: int, n: int) -> float:
        """A model's pass over n tokens of each of B texts."""
        machine = self.machine_for(model.expert_bytes or model.weight_bytes)
        products = model.product_seconds(machine, B * n)
        starts = model.n_layer * self.overhead
        others = starts + self.exchange_seconds(model, B * n)
        return products + self.attention_seconds(model, B, n) + others

    def round_seconds(self, B: int, K: int) -> float:
        """A round of B texts: K passes of the draft, and one of the target over K+1 tokens each."""
        check = self.pass_seconds(self.target, B, self.rows(B, K) // B)
        if not self.draft or not K:
            return check
        if self.parallel:
            return self.pass_seconds(self.draft, B, K) + check
        return K * self.pass_seconds(self.draft, B, 1) + check

    def newcomers(self, drafted: bool = True) -> float:
        """Seconds of prompts for each token that comes out; 0 without an `output`.

        A text's prompt goes through the passes of the others, which read the weights anyway: it
        takes arithmetic and all-reduces. Guesses do not shorten it.
        """
        if not self.output:
            return 0.0
        total = 0.0
        for model in self.models(drafted):
            machine = self.machine_for(model.expert_bytes or model.weight_bytes)
            total += pass_flops(model.active or model.parameters, self.prompt) / machine.flops
            total += model.prompt_flops(self.prompt) / self.machine.flops
            total += self.exchange_seconds(model, self.prompt)
        return total / self.output

    def rows(self, B: int, K: int) -> int:
        """Tokens that a pass of the target reads."""
        return B * ((self.tree or K + 1) if K else 1)

    def prompt_seconds(self, drafted: bool = True) -> float:
        """Until a text's first token (TTFT), if it is alone: its prompt through each model."""
        total = 0.0
        for model in self.models(drafted):
            machine = self.machine_for(model.expert_bytes or model.weight_bytes)
            total += model.product_seconds(machine, self.context)
            total += self.machine.seconds(model.prompt_flops(self.context), 0)
            total += model.n_layer * self.overhead
        return total

    def token_seconds(self, B: int, K: int) -> float:
        """A text's mean seconds from one token to the next (TPOT), with B texts at once."""
        return B / self.rate(B, K)

    def full_gain(self, most: int = 16) -> float:
        """Tokens a second of a full memory, best K, against a full one without a draft."""
        with_it, without = self.texts(), self.texts(drafted=False)
        return self.rate(with_it, self.best_K(with_it, most)) / self.rate(without, 0)

    def rate(self, B: int, K: int) -> float:
        """Tokens a second of B texts with K guesses each; K = 0 is plain decoding."""
        brought = B * expected_tokens(self.alpha, K)
        prompts = brought * self.newcomers(K > 0)
        return brought / (self.round_seconds(B, K) + prompts)

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


def alpha_from_tokens(tokens: float, K: int) -> float:
    """The alpha at which rounds of K guesses bring so many tokens: `expected_tokens` backwards.

    tokens: what engines report as mean accepted length, the target's own token included.
    Raises ValueError unless it is from 1 to K + 1.
    """
    check_numbers(1, K=K)
    if not 1 <= tokens <= K + 1:
        raise ValueError(
            f"{tokens} tokens a round: with K={K} guesses it is 1 to {K + 1}, the target's own "
            "token included"
        )
    low, high = 0.0, 1.0
    for _ in range(60):  # halvings: to the last bit
        middle = (low + high) / 2
        fewer = expected_tokens(middle, K) < tokens
        low, high = (middle, high) if fewer else (low, middle)
    return high


class Published(NamedTuple):
    """A published rate of plain decoding: tokens a second of each of `texts` at once.

    They have `context` tokens on average; model and gpu are names in MODELS and GPUS.
    """

    engine: str
    model: str
    gpu: str
    gpus: int
    weight_bytes: float
    context: int
    rate: float
    source: str
    texts: int = 1

    def sized(self, overhead: float = 0.0) -> float:
        """The rate that its plan foretells."""
        return 1 / self.plan(overhead).token_seconds(self.texts, 0)

    def plan(self, overhead: float = 0.0) -> Plan:
        """The plan that it measures."""
        target = replace(MODELS[self.model], weight_bytes=self.weight_bytes)
        return Plan(target, GPUS[self.gpu], self.gpus, context=self.context, overhead=overhead)


# Three engines of 2023 to 2025; contexts are the middle of what the sources generate.
GPUSTACK = "https://docs.gpustack.ai/latest/performance-lab/qwen3-8b/h100-latency/"
CALIBRATION = (
    Published(
        "SGLang", "llama-3.1-8b", "H100", 1, 2, 500, 158.34,
        "https://docs.sglang.io/advanced_features/speculative_decoding.html",
    ),
    Published(
        "gpt-fast", "llama-2-7b", "A100", 1, 2, 100, 104.9,
        "https://github.com/meta-pytorch/gpt-fast",
    ),
    Published(
        "vLLM 0.6.3", "qwen2.5-1.5b", "A100", 1, 2, 1000, 183.33,
        "https://github.com/QwenLM/Qwen2.5 docs/source/benchmark/speed_benchmark.rst",
    ),
    Published("vLLM 0.11", "qwen3-8b", "H100", 1, 2, 343, 1e3 / 7.38, GPUSTACK, texts=4),
)  # fmt: skip


def layer_overhead(rates: Sequence[Published] = CALIBRATION) -> float:
    """Seconds that a layer takes besides its roofline: the median of what published rates leave."""
    left = [1 / row.rate - 1 / row.sized() for row in rates]
    layers = [MODELS[row.model].n_layer for row in rates]
    return median(seconds / n for seconds, n in zip(left, layers, strict=True))


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
