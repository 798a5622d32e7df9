"""Chapter 28: the judge of *Your turn*, and the chapter's own pictures.

The turn: how many texts fit on a machine at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl

from nanogpt.measure.sizing import (
    GPUS,
    GPUSTACK,
    MODELS,
    REACHED,
    Gpu,
    PassTime,
    Plan,
    Published,
    Shape,
    alpha_from_tokens,
    grouped,
    layer_overhead,
)
from nanogpt.show.diagrams import box, sheet, words
from nanogpt.show.figures import SERIES, STYLE, Picture, measured_beside_predicted, picture

GPT_FAST = "https://github.com/meta-pytorch/gpt-fast"
QWEN25 = "https://github.com/QwenLM/Qwen2.5 docs/source/benchmark/speed_benchmark.rst"
QWEN3 = "https://qwen.readthedocs.io/en/latest/getting_started/speed_benchmark.html"
NVIDIA = "https://developer.nvidia.com/blog/boost-llama-3-3-70b-inference-throughput-3x-with-nvidia-tensorrt-llm-speculative-decoding/"
EAGLE3 = "https://huggingface.co/Tengyunw/qwen3_8b_eagle3"
PUBLISHED = (  # plain decoding; all that is sized here, and nothing that calibrates
    Published("gpt-fast", "llama-3.1-8b", "A100", 1, 2, 100, 93.83, GPT_FAST),
    Published("gpt-fast", "llama-3.1-8b", "A100", 2, 2, 100, 149.10, GPT_FAST),
    Published("gpt-fast", "llama-3.1-8b", "A100", 4, 2, 100, 217.21, GPT_FAST),
    Published("gpt-fast", "llama-3.1-8b", "A100", 8, 2, 100, 276.01, GPT_FAST),
    Published("gpt-fast", "llama-3.1-70b", "A100", 2, 2, 100, 16.03, GPT_FAST),
    Published("gpt-fast", "llama-3.1-70b", "A100", 4, 2, 100, 37.45, GPT_FAST),
    Published("gpt-fast", "llama-3.1-70b", "A100", 8, 2, 100, 58.78, GPT_FAST),
    Published("gpt-fast", "mixtral-8x7b", "A100", 2, 2, 100, 96.67, GPT_FAST),
    Published("vLLM 0.6.3", "qwen2.5-7b", "A100", 1, 2, 1000, 84.28, QWEN25),
    Published("vLLM 0.6.3", "qwen2.5-72b", "A100", 4, 2, 1000, 31.37, QWEN25),
    Published("SGLang 0.4.6", "qwen3-0.6b", "H20", 1, 2, 1000, 414.17, QWEN3),
    Published("SGLang 0.4.6", "qwen3-8b", "H20", 1, 2, 1000, 81.73, QWEN3),
    Published("SGLang 0.4.6", "qwen3-8b", "H20", 1, 1, 1000, 150.25, QWEN3),
    Published("SGLang 0.4.6", "qwen3-32b", "H20", 1, 2, 1000, 20.72, QWEN3),
    Published("SGLang 0.4.6", "qwen3-30b-a3b", "H20", 1, 2, 1000, 137.18, QWEN3),
    Published("SGLang 0.4.6", "qwen3-235b-a22b", "H20", 8, 2, 1000, 74.50, QWEN3),
    Published("SGLang 0.5.3", "qwen3-8b", "H100", 1, 2, 343, 1e3 / 7.19, GPUSTACK, 4),
    Published("SGLang 0.5.3", "qwen3-8b", "H100", 1, 1, 343, 1e3 / 5.65, GPUSTACK, 4),
    Published("TensorRT-LLM 1.2", "qwen3-8b", "H100", 1, 2, 343, 1e3 / 7.67, GPUSTACK, 4),
    Published("TensorRT-LLM", "llama-3.3-70b", "H200", 1, 1, 500, 51.14, NVIDIA),
    Published("SGLang", "qwen3-8b", "H200", 1, 2, 500, 187, EAGLE3),
)
# Milliseconds of a pass over n new tokens of each of B texts: {(model, tokens cached): {B: one for
# each n in H200_WIDTHS}}, as examples/gpu/pass_times.py printed them on an NVIDIA H200 (driver 580,
# torch 2.11.0 for CUDA 13.0). Another run, on another such machine, was 5% off at most.
H200_WIDTHS = (1, 2, 3, 5, 9)
H200 = {
    ("llama-3.1-8b", 500): {
        1: (5.77, 6.19, 6.27, 6.31, 6.37),
        4: (6.04, 6.40, 6.46, 6.55, 6.71),
        16: (6.28, 6.71, 6.87, 7.08, 7.77),
        64: (7.38, 8.32, 9.66, 12.72, 19.62),
        128: (9.17, 12.03, 15.33, 22.04, 35.72),
    },
    ("llama-3.1-8b", 2000): {
        1: (6.40, 6.80, 6.86, 6.94, 7.00),
        4: (6.66, 7.02, 7.08, 7.18, 7.33),
        16: (7.01, 7.45, 7.61, 7.84, 8.56),
        64: (10.33, 11.42, 12.88, 15.95, 22.87),
    },
    ("llama-3.2-1b", 500): {
        1: (1.72, 1.81, 1.83, 1.86, 1.88),
        4: (1.73, 1.91, 1.93, 1.98, 1.99),
        16: (1.82, 2.00, 2.03, 2.09, 2.24),
        64: (2.19, 2.49, 2.72, 3.16, 4.52),
        128: (2.70, 3.17, 3.84, 5.01, 7.45),
    },
    ("llama-3.2-1b", 2000): {
        1: (1.88, 2.05, 2.07, 2.09, 2.11),
        4: (1.97, 2.14, 2.18, 2.21, 2.23),
        16: (2.06, 2.23, 2.27, 2.32, 2.47),
        64: (3.17, 3.48, 3.71, 4.15, 5.53),
    },
}


class Crowd(NamedTuple):
    """Published mean times per output token (TPOT, ms) of vLLM under load: {texts: (ms, tokens)}.

    tokens: the mean acceptance length, 1 without a draft, with K guesses; prompt and output: mean
    tokens of a text. model and draft are Shapes: a head's is one layer with its tables.
    """

    model: Shape
    gpu: Gpu
    gpus: int
    draft: Shape | None
    K: int
    prompt: int
    output: int
    times: Mapping[int, tuple[float, float]]

    def plan(self, B: int) -> Plan:
        """The plan that B texts measure."""
        tokens = self.times[B][1]
        return Plan(
            self.model, self.gpu, self.gpus, self.draft,
            alpha=alpha_from_tokens(tokens, self.K) if self.K else 0.0,
            context=self.prompt + self.output // 2, overhead=layer_overhead(), reached=REACHED,
            link=self.gpu.link, prompt=self.prompt, output=self.output,
        )  # fmt: skip


# https://github.com/tomasruizt/vllm-scripts: vLLM of January 2026, prompts of InstructCoder,
# temperature 0; results/logs-2026-01-23 on an H100 of 94 GB that reads 2.4 TB/s, online-throughput
# on two that have no way to each other but the host's memory: taken for PCIe boards.
H100_94 = Gpu(94e9, 2.4e12, 989e12, 1979e12)
QWEN = MODELS["qwen3-32b"], H100_94, 1
LLAMA = MODELS["llama-3.3-70b"], GPUS["H100-PCIE"], 2
ONE_LAYER = {"n_layer": 1, "heads": 64, "cached": 8, "size": 128}
CROWDS = {
    "Qwen3-32B, plain": Crowd(
        *QWEN, None, 0, 148, 200,
        {1: (33.97, 1), 16: (35.46, 1), 32: (37.46, 1), 64: (40.44, 1), 128: (47.11, 1),
         256: (65.43, 1)},
    ),
    "Qwen3-32B, Qwen3-1.7B, K = 4": Crowd(
        *QWEN, grouped(1.72e9, 28, 16, 8, 128), 4, 148, 200,
        {1: (16.98, 2.85), 8: (18.23, 2.86), 16: (19.69, 2.85), 32: (21.71, 2.86),
         64: (28.91, 2.83), 128: (48.97, 2.83)},
    ),
    "Qwen3-32B, Qwen3-4B, K = 4": Crowd(
        *QWEN, grouped(4.02e9, 36, 32, 8, 128), 4, 148, 200,
        {1: (18.72, 3.16), 8: (20.23, 3.12), 16: (21.31, 3.19), 32: (23.71, 3.17),
         64: (31.87, 3.13)},
    ),
    "Qwen3-32B, EAGLE-3, K = 4": Crowd(
        *QWEN, grouped(1.6e9, **ONE_LAYER), 4, 148, 200,
        {1: (16.83, 2.28), 8: (18.15, 2.26), 16: (19.37, 2.27), 32: (21.04, 2.26),
         64: (27.65, 2.25), 128: (46.44, 2.25)},
    ),
    "Llama-3.3-70B on two, plain": Crowd(
        *LLAMA, None, 0, 174, 146,
        {1: (43.31, 1), 8: (47.77, 1), 16: (52.91, 1), 32: (57.24, 1), 64: (68.29, 1)},
    ),
    "Llama-3.3-70B on two, 3.2-1B, K = 4": Crowd(
        *LLAMA, MODELS["llama-3.2-1b"], 4, 174, 146,
        {1: (13.91, 3.97), 8: (17.63, 3.95), 16: (20.77, 4.01), 32: (28.63, 4.01),
         64: (44.78, 3.94)},
    ),
    "Llama-3.3-70B on two, 3.2-1B, K = 7": Crowd(
        *LLAMA, MODELS["llama-3.2-1b"], 7, 174, 146,
        {1: (11.88, 5.38), 8: (14.96, 5.41), 16: (18.67, 5.50), 32: (27.90, 5.47),
         64: (45.97, 5.18)},
    ),
    "Llama-3.3-70B on two, EAGLE-3, K = 4": Crowd(
        *LLAMA, grouped(1.3e9, **ONE_LAYER), 4, 174, 146,
        {1: (15.18, 3.14), 8: (18.73, 3.18), 16: (22.11, 3.19), 32: (29.85, 3.18),
         64: (43.45, 3.16)},
    ),
}  # fmt: skip
CASES = (  # gpus, memory, utilisation, (weights, cache a token) of each model, context; right
    ((2, 100, 0.9, [(50, 2), (30, 1)], 2), 16),  # 180 - 80 bytes of room, 6 a text
    ((2, 80e9, 1.0, [(140e9, 327680), (16e9, 131072)], 2000), 4),
    ((4, 80e9, 0.9, [(140e9, 327680), (16e9, 131072)], 2000), 143),
    ((4, 80e9, 0.9, [(140e9, 327680)], 2000), 225),
    ((2, 80e9, 0.9, [(140e9, 327680), (16e9, 131072)], 2000), 0),  # the weights do not fit
    ((2, 100, 0.9, [(50, 2), (30, 1), (8, 2)], 2), 9),  # two drafts: 92 bytes of room, 10 a text
)


def judge(mine: Callable) -> None:
    """*Your turn* of 28: how many texts fit into the memory of some GPUs, beside the weights.

    mine(gpus, memory, utilisation, models, context) gets models as [(bytes of weights, bytes of
    cache a token), …], the target and then its drafts, none, one or more, and returns a whole
    number (a float that is one will do).
    Raises AssertionError for another number, with the slip that makes it, and for a changed list.
    """
    for (*given, models, context), right in CASES:
        copied = list(models)
        made = mine(*given, copied, context)
        gpus, memory, utilisation = given
        where = f"{gpus} x {memory:g} bytes, {utilisation:.0%} used, models {models}, {context}"
        assert copied == models, f"{where}: the caller's list of models is changed: {copied}"
        try:
            number = float(made)
        except (TypeError, ValueError):
            came = "nothing" if made is None else f"a {type(made).__name__}"
            raise AssertionError(f"{where}: return how many texts fit; {came} came") from None
        why = "" if number == right else slip(number, *given, models, context)
        assert number == right, f"{where} tokens a text: {right} fit, not {number:g}{why}"


def slip(
    number: float, gpus: int, memory: float, part: float, models: Sequence, context: int
) -> str:
    """The well-known slip that makes this number of texts, as the rest of a sentence, or ""."""
    weights, kappa = (sum(sizes) for sizes in zip(*models, strict=True))
    whole = gpus * memory
    tokens = max(0.0, (whole * part - weights) / kappa)
    if abs(number - tokens) < 1 and tokens >= 1:
        return ": that is the number of tokens; a text takes `context` of them"
    if number != int(number) or number == int(tokens / context) + 1:
        return ": a text fits whole or not at all, so round down"
    if number < 0:
        return ": where the weights do not fit, no text does"
    first_two = [sum(sizes) for sizes in zip(*models[:2], strict=True)]
    slips = (  # bytes of room, bytes a token, why not
        (whole * part - first_two[0], first_two[1], "every model in the list takes room, a second "
         "draft as well as the first"),
        (whole * part - weights, models[0][1], "the draft keeps a cache of every text, too"),
        (whole * part - models[0][0], kappa, "the draft's weights lie in the same memory"),
        (whole * part - models[0][0], models[0][1], "the draft has weights, and a cache, too"),
        (whole - weights, kappa, "only `utilisation` of the memory may be used"),
        ((whole - weights) * part, kappa, "`utilisation` is a part of the whole memory, before "
         "the weights are taken off"),
        (gpus * (memory * part - weights), kappa, "the GPUs share one copy of the weights"),
        (memory * part - weights, kappa, "all `gpus` have memory"),
        (gpus * memory / 2**30 * 1e9 * part - weights, kappa, "all sizes are in bytes already"),
        (whole * part, kappa, "the weights take room, too"),
    )  # fmt: skip
    for room, per_token, why in slips:
        fit = room // (per_token * context)
        if number in (fit, max(0, fit)):
            return f": {why}"
    return ": take the weights off the usable memory, and divide the rest by what a text keeps"


def shares_of(plan: Plan) -> list[tuple[str, float, str]]:
    """What lies in a plan's memory when it is full: (what, GB, kind of box) of each part."""
    models, GB = plan.models(), 1e9
    tokens = {m: plan.copies(m) * m.cached(plan.context) / plan.context for m in models}
    names = ("weights", "target"), ("draft's weights", "draft")
    parts = [(what, m.weights / GB, kind) for (what, kind), m in zip(names, models, strict=False)]
    names = ("caches", "cached"), ("draft's caches", "draft")
    for (what, kind), m in zip(names, models, strict=False):
        parts.append((what, plan.capacity() * tokens[m] / GB, kind))
    return [*parts, ("unused", (1 - plan.utilisation) * plan.gpus * plan.gpu.memory / GB, "gone")]


@mpl.rc_context(STYLE)
def memory_shares(plans: Mapping[str, Plan], title: str) -> Picture:
    """The memory of each plan, full of texts, as a bar: its weights, caches, and what is kept free.

    Each part is as wide as it is large; parts too narrow for their words have them below.
    """
    rows = {name: shares_of(plan) for name, plan in plans.items()}
    room = [(name, x) for name, parts in rows.items() for what, x, _ in parts if what == "caches"]
    shows = f"Left for caches, in GB: {', '.join(f'{x:.0f} in {name}' for name, x in room)}."
    axes = sheet(title, 9, 0.4 + 1.15 * len(rows), shows)
    unit = 66 / max(sum(size for _, size, _ in parts) for parts in rows.values())
    for i, (name, parts) in enumerate(rows.items()):
        x, y = 22.0, 1.5 + 11.5 * i
        words(axes, 1, y + 2.5, name, ha="left", fontweight="bold")
        for what, size, kind in parts:
            wide, said = size * unit, f"{what}\n{size:.0f}"
            roomy = wide > 0.75 * len(what) + 1.5
            box(axes, x, y, max(wide, 0.2), 5, said if roomy else "", kind)
            if not roomy and what:
                words(axes, x + wide / 2, y + 7, said, fontsize=9)
            x += wide
    words(axes, 88, 11.5 * len(rows) + 1.2, "sizes in GB", ha="right", fontsize=9)
    return axes.figure


def gains(plan: Plan, K: int) -> tuple[list[int], list[float]]:
    """(1, 2, 4, … texts, and all that fit; how many times as fast K guesses make each batch)."""
    Bs = [2**i for i in range(12) if 2**i < plan.texts()] + [plan.texts()]
    return Bs, [plan.speed_up(B, K) for B in Bs]


@mpl.rc_context(STYLE)
def gain_curves(curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], title: str) -> Picture:
    """{name: (batches, times as fast as plain)}, each ending at a bar, where memory is full."""
    axes = picture(title, "texts at once", "times as fast as plain", 8, 3.8)
    for (name, (batches, gains)), (colour, dash, marker, _) in zip(
        curves.items(), SERIES, strict=False
    ):
        look = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4}
        axes.plot(batches, gains, label=name, **look)
        axes.plot(batches[-1], gains[-1], color=colour, marker="|", markersize=22, mew=3, ls="")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.05 * max(max(gains) for _, gains in curves.values()))
    axes.plot([], [], color="black", marker="|", markersize=14, mew=3, ls="", label="memory full")
    axes.figure.legend(loc="outside lower left", ncols=4)  # never over a line
    return axes.figure


def hidden_cells(
    times: Mapping[tuple[int, int], float],
    found: PassTime,
    hidden: Sequence[tuple[int, int]],
    title: str,
) -> Picture:
    """Measured {(B, n): seconds} beside a fit, for every second B; what it has not seen is ringed.

    Has a time for each of its B with each of its n.
    """
    batches, widths = (sorted(set(sizes)) for sizes in zip(*times, strict=True))
    curves = {}
    for B in batches[::2]:
        points = [1e3 * times[B, n] for n in widths]
        fitted = [1e3 * found(B, n) for n in widths]
        curves[f"B = {B}"] = widths, points, [(ms, ms) for ms in points], fitted
    what = (title, "tokens of each text, n", "ms a pass")
    chart = measured_beside_predicted(curves, *what, level=None)
    ringed = [(n, 1e3 * times[B, n]) for B, n in hidden if B in batches[::2]]
    rings = {"marker": "o", "s": 180, "facecolors": "none", "edgecolors": "black"}
    chart.axes[0].scatter(*zip(*ringed, strict=True), **rings)
    return chart
