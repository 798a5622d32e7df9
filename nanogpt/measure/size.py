"""Will speculative decoding pay? Your model, GPU and load, as a table, a picture or JSON.

A model is a name, the config.json of a Hugging Face folder, or numbers: PARAMETERS,LAYERS,ENTRY,
where a token leaves ENTRY numbers in a layer's cache (2 x heads x head size): 70B,80,2x8x128.
With experts: PARAMETERS:ACTIVE,LAYERS,ENTRY,CHOSEN/EXPERTS, such as 30B:3B,48,2x4x128,8/128.
A GPU is a name, or MEMORY,BANDWIDTH,FLOPS with 16, and perhaps with 8 and 4 bits, and its LINK to
others, in bytes a second (else PCIe's): 80G,3.35T,989T.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nanogpt.data import check_folders, read_text
from nanogpt.measure.configs import counted
from nanogpt.measure.sizing import (
    CALIBRATION,
    GPUS,
    MODELS,
    REACHED,
    Gpu,
    Plan,
    Shape,
    alpha_from_tokens,
    check_numbers,
    layer_overhead,
)
from nanogpt.show import figures

MOST = 32  # guesses tried for the best K
FEW = 64  # tokens of a pass; with more, chapter 28's measurements are off by up to BAND
BAND = 0.2
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def number_of(text: str) -> float:
    """A number as people write it: 70e9, 70B, 1.5T, 80GB or 2x8x128. Raises ValueError."""
    product = 1.0
    for factor in text.upper().split("X"):
        found = re.fullmatch(r"(\d*\.?\d+(?:E\+?\d+)?)(?:([KMGT])B?|(B))?", factor)
        if not found:
            raise ValueError(f"{text!r} is no number; write it as 70e9, 70B, 1.5T or 2x8x128")
        product *= float(found[1]) * UNITS.get(found[2] or found[3], 1)
    return product


def written(text: str) -> Shape:
    """The Shape of PARAMETERS,LAYERS,ENTRY, or of PARAMETERS:ACTIVE,LAYERS,ENTRY,CHOSEN/EXPERTS.

    An ENTRY of three factors, 2x8x128, has eight heads, and one of two, 1x576, a single one.
    Raises ValueError if it is neither.
    """
    size, layers, entry, *experts = text.split(",")
    total, *active = size.split(":")
    factors = entry.lower().split("x")
    cached = int(number_of(factors[-2])) if len(factors) > 1 else 0
    shape = Shape(
        number_of(total), int(number_of(layers)), int(number_of(entry)), cached_heads=cached
    )
    if not experts and not active:
        return shape
    chosen, slash, number = "".join(experts).partition("/")
    if not slash or not active:
        raise ValueError(
            f"{text!r} has experts in part; write PARAMETERS:ACTIVE,LAYERS,ENTRY,CHOSEN/EXPERTS, "
            "such as 30B:3B,48,2x4x128,8/128"
        )
    counts = {"experts": int(number_of(number)), "chosen": int(number_of(chosen))}
    return replace(shape, active=number_of(active[0]), **counts)


def read(path: Path) -> dict:
    """The JSON object in a file. Raises ValueError for none."""
    text = read_text(path)
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} has no JSON object in it, but a {type(config).__name__}")
    return config


def model_of(text: str, weight_bytes: float | None = None) -> Shape:
    """A Shape from a name in MODELS, a path to a config.json or its folder, or its numbers.

    weight_bytes replaces the model's own. Raises ValueError for what is none of these.
    """
    path = Path(text)
    if text.lower() in MODELS:
        shape = MODELS[text.lower()]
    elif path.exists():
        path = path / "config.json" if path.is_dir() else path
        config, beside = read(path), path.with_name("hf_quant_config.json")
        if beside.exists():  # where NVIDIA's tool says how the weights are stored
            config = {"quantization_config": read(beside).get("quantization")} | config
        shape = counted(config, str(path), weight_bytes)
    elif text.count(",") in (2, 3):
        shape = written(text)
    else:
        raise ValueError(
            f"{text!r} is no model; name one of {', '.join(MODELS)}, give the path of a "
            "config.json, or PARAMETERS,LAYERS,ENTRY such as 70B,80,2x8x128"
        )
    if weight_bytes is None:
        return shape
    return replace(shape, weight_bytes=weight_bytes, expert_bytes=0)


def gpu_of(text: str) -> Gpu:
    """A Gpu from a name in GPUS, or MEMORY,BANDWIDTH,FLOPS[,FLOPS8,FLOPS4,LINK], 0 for none.

    Raises ValueError for neither, and for numbers without units.
    """
    if text.upper() in GPUS:
        return GPUS[text.upper()]
    if text.count(",") not in (2, 3, 4, 5):
        raise ValueError(
            f"{text!r} is no GPU; name one of {', '.join(GPUS)}, or give "
            "MEMORY,BANDWIDTH,FLOPS such as 80G,3.35T,989T"
        )
    gpu = Gpu(*map(number_of, text.split(",")))
    if min(gpu[:3]) < 1e6:
        raise ValueError(
            f"{text!r} means {gpu.memory:g} bytes, {gpu.bandwidth:g} bytes a second and "
            f"{gpu.flops:g} operations a second; give the units, such as 80G,3.35T,989T"
        )
    return gpu


def batches_of(plan: Plan, most: int | None = None) -> list[int]:
    """1, 2, 4, … up to the texts that fit with the draft, which come last; up to `most`, if given.

    Raises ValueError if the weights, or one text, do not fit, and says how many GPUs it takes.
    """
    fit_at_once = plan.texts()
    if not fit_at_once:
        one = plan.gpu.memory * plan.utilisation
        needed = sum(m.weights + plan.copies(m) * m.cached(plan.context) for m in plan.models())
        enough = (n for n in range(1, 10_000) if replace(plan, gpus=n).texts())
        take = next((f"take {n} GPUs, " for n in enough), "take larger GPUs, ")
        raise ValueError(
            f"weights and one text of {plan.context:,} tokens take {needed / 1e9:.1f} GB, and "
            f"{plan.gpus} x {one / 1e9:.1f} GB may be used: {take}"
            "fewer bytes a weight, or a shorter context"
        )
    last = min(fit_at_once, most or fit_at_once)
    return [*(2**i for i in range(last.bit_length()) if 2**i < last), last]


def described(model: Shape, context: int) -> str:
    """A model in a line: its weights, the bytes assumed for each, its experts and its cache."""
    width = f"{model.weight_bytes:g} bytes a weight assumed"
    if model.expert_bytes:
        width += f", {model.expert_bytes:.3g} of the experts'"
    experts = ""
    if model.active:
        experts = f" ({model.active / 1e9:.4g}B active, {model.chosen} of {model.experts} experts)"
    kappa = model.cached(context) / context / 2**10
    size = f"{model.parameters / 1e9:.4g}B weights{experts}, {model.weights / 1e9:.1f} GB"
    return f"{size} ({width}); a token's cache {kappa:.1f} KiB"


def said(number: float, rows: int, form: str) -> str:
    """A number, or, of a pass over more than FEW tokens, the band that it lies in."""
    if rows <= FEW:
        return format(number, form)
    return "-".join(format(number * by, form) for by in (1 - BAND, 1 + BAND))


def assumed(plan: Plan) -> list[str]:
    """The lines that say what the numbers leave out, or take for granted."""
    lines = ["time    the roofline alone: no server is as fast (leave out --overhead 0)"]
    if plan.overhead:
        starts = [1e6 * layer_overhead([row]) for row in CALIBRATION]
        least, most = min(starts), max(starts)
        lines = [
            f"time    the roofline with {plan.reached:.0%} of the operations, and "
            f"{1e6 * plan.overhead:.0f} us a layer (engines: {least:.0f} to {most:.0f}) "
            "of each pass"
            + f"; {plan.link / 1e9:g} GB/s between GPUs" * (plan.gpus > 1)
            + "; no sampling"
        ]
    lines.append(
        f"load    prompts of {plan.prompt:,} tokens pass with the others', for {plan.output:,} each"
        if plan.output
        else "load    newcomers' prompts are left out; name --prompt and --output to count them"
    )
    if plan.tree:  # ITL 11.05 ms: Qwen3-8B-FP8 with EAGLE-3, H100, GPUSTACK's page
        lines.append(
            "tree    growing it between the passes is left out: a round of four texts with trees "
            "of 16 took SGLang 0.5.3 1.7 times what is sized here"
        )
    if not plan.draft:
        lines.append(
            f"no draft: guesses cost nothing, as with lookup, and alpha {plan.alpha:g} is high for "
            "that, unless texts repeat themselves; name a --draft to count one"
        )
    return lines


def fitting(plan: Plan) -> list[str]:
    """The lines that say which models and GPUs these are, and what fits."""
    lines = [
        f"{name:7} {described(model, plan.context)}"
        for name, model in zip(("target", "draft"), plan.models(), strict=False)
    ]
    gpu, room = plan.gpu, plan.gpus * plan.gpu.memory * plan.utilisation / 1e9
    rate = gpu.rate(plan.target.expert_bytes or plan.target.weight_bytes)
    without = f" (without the draft {plan.capacity(False):,}, {plan.texts(False):,})"
    return [
        *lines,
        f"GPUs    {plan.gpus} x {gpu.memory / 1e9:g} GB, {gpu.bandwidth / 1e12:g} TB/s, "
        f"{rate / 1e12:g} TFLOPS with the target's weights; {room:.1f} GB may be used",
        f"room    for {plan.capacity():,} tokens, {plan.texts():,} texts (requests) of "
        f"{plan.context:,}" + without * (plan.draft is not None),
    ]


def best(plan: Plan, B: int) -> str:
    """The best K for B texts; with a + where a larger one might be better still."""
    K = plan.best_K(B, MOST)
    return f"{K}+" if K == MOST else str(K)


def ends(plan: Plan, K: int, last: int) -> str:
    """Where K guesses are slower than none, among 1 to `last` texts."""
    losing = {B for B in range(1, last + 1) if plan.speed_up(B, K) < 1}
    starts, stops = ([B for B in sorted(losing) if B + by not in losing] for by in (-1, 1))
    said = ", ".join(f"{a:,} to {b:,}" for a, b in zip(starts, stops, strict=True))
    full = "all that fit" if last == plan.texts() else "no more were tried"
    return f"K={K}: slower with {said} texts" if said else f"K={K}: pays up to {last:,} ({full})"


def waits(plan: Plan) -> str:
    """The line that says how long a text waits for its first token."""
    first = f"TTFT    {1e3 * plan.prompt_seconds(False):.0f} ms for {plan.context:,} tokens alone"
    drafted = f", {1e3 * plan.prompt_seconds():.0f} with the draft's" * (plan.draft is not None)
    return first + drafted


def filled(plan: Plan) -> list[str]:
    """The lines that compare a full memory with a full one without a draft, for several alphas."""
    B, without = plan.texts(), plan.texts(False)

    def gain(alpha: float) -> str:
        other = replace(plan, alpha=alpha)
        return said(other.full_gain(MOST), plan.rows(B, other.best_K(B, MOST)), ".2f")

    return [
        f"memory full: {B:,} texts with K={best(plan, B)} against {without:,} without a draft: "
        f"{gain(plan.alpha)} times the tokens a second",
        "the same for alpha " + ", ".join(f"{alpha:g}: {gain(alpha)}" for alpha in ALPHAS),
    ]


def pace(plan: Plan, B: int, K: int) -> str:
    """Tokens a second of B texts, and a text's milliseconds a token (TPOT)."""
    rows = plan.rows(B, K)
    each = said(1e3 * plan.token_seconds(B, K), rows, ".1f")
    return f"{said(plan.rate(B, K), rows, ',.0f'):>14} {each:>11}"


def sized(plan: Plan, Ks: Sequence[int], most: int | None = None) -> list[str]:
    """The lines that say what fits, what is gained with each K and batch, and where it ends."""
    batches = batches_of(plan, most)
    heads = "".join(f"{f'K={K}':>11}" for K in Ks)
    lines = [
        *fitting(plan),
        *assumed(plan),
        f"alpha {plan.alpha:.3g}; times as fast as plain decoding of as many texts:",
        f"texts {'plain, token/s':>14} {'ms a token':>11}{heads}   best K"
        f" {'token/s':>14} {'ms a token':>11}",
    ]
    for B in batches:
        gains = "".join(f"{said(plan.speed_up(B, K), plan.rows(B, K), '.2f'):>11}" for K in Ks)
        fast = pace(plan, B, plan.best_K(B, MOST))
        lines.append(f"{B:5} {pace(plan, B, 0)}{gains} {best(plan, B):>8} {fast}")
    if plan.rows(batches[-1], max(Ks)) > FEW:
        lines.append(f"a band, where a pass reads more than {FEW} tokens; below, its middle counts")
    lines += [ends(plan, K, min(batches[-1], 4096)) for K in Ks]
    return [*lines, *filled(plan), waits(plan)]


def as_json(plan: Plan, Ks: Sequence[int], most: int | None = None) -> dict:
    """The same numbers for a program: sizes in bytes, times in seconds; no bands."""
    rows = [
        {
            "texts": B,
            "plain_tokens_per_second": plan.rate(B, 0),
            "speed_up": {str(K): plan.speed_up(B, K) for K in Ks},
            "tokens_per_second": {str(K): plan.rate(B, K) for K in Ks},
            "tpot": {str(K): plan.token_seconds(B, K) for K in (0, *Ks)},
            "best_K": plan.best_K(B, MOST),
        }
        for B in batches_of(plan, most)
    ]
    return {
        "plan": asdict(plan),
        "tokens_that_fit": plan.capacity(),
        "texts_that_fit": plan.texts(),
        "texts_that_fit_without_draft": plan.texts(False),
        "batches": rows,
        "full_gain_by_alpha": {f"{a:g}": replace(plan, alpha=a).full_gain(MOST) for a in ALPHAS},
        "ttft": plan.prompt_seconds(),
        "tpot_plain": plan.token_seconds(1, 0),
    }


def curves(plan: Plan, Ks: Sequence[int], most: int | None = None) -> figures.Picture:
    """The speed-up against the batch, a line for each K; memory's end, if it is in the picture."""
    batches = batches_of(plan, most)
    found = {f"K = {K}": [plan.speed_up(B, K) for B in batches] for K in Ks}
    chart = figures.lines(
        batches,
        found,
        "What speculation gains, by the roofline" + " and starts" * (plan.overhead > 0),
        f"texts at once, of {plan.context:,} tokens each",
        "times as fast as plain",
    )
    axes = chart.axes[0]
    axes.set_xscale("log", base=2)
    axes.axhline(1, color="black", linewidth=0.8)
    if batches[-1] == plan.texts():
        axes.axvline(batches[-1], color="black", linestyle=":", label="memory full")
        axes.legend()
    return chart


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The plan of the command line."""
    parser = argparse.ArgumentParser(
        prog="nanogpt size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = f"{', '.join(MODELS)}, a path or three numbers"
    parser.add_argument("--target", default="llama-3-8b", help=f"{names}; default: %(default)s")
    parser.add_argument("--draft", help="a model, too; without one, guesses cost nothing")
    parser.add_argument(
        "--parallel", action="store_true", help="the draft guesses all K in one pass"
    )
    parser.add_argument("--bytes", type=float, help="bytes a weight of the target, such as 0.5")
    parser.add_argument("--draft-bytes", type=float, help="bytes a weight of the draft")
    parser.add_argument("--gpu", default="H100", help=f"{', '.join(GPUS)}, or 80G,3.35T,989T")
    parser.add_argument("--gpus", type=int, default=1, help="how many, default: %(default)s")
    parser.add_argument(
        "--utilisation",
        type=float,
        default=0.9,
        help="the part of the memory in use, default: %(default)s",
    )
    parser.add_argument(
        "--context",
        type=int,
        help="tokens a text, default: 2000, or the prompt and half of the output",
    )
    parser.add_argument(
        "--prompt", type=int, default=0, help="tokens of a text's prompt, which joins the passes, …"
    )
    parser.add_argument("--output", type=int, default=0, help="… for so many tokens of its own")
    parser.add_argument(
        "--tree", type=int, default=0, help="tokens of a text in a check, if guesses are a tree"
    )
    parser.add_argument("--batch", type=int, help="texts at once, at most")
    parser.add_argument("--alpha", type=float, help="acceptance of a guess, default: 0.8")
    parser.add_argument(
        "--accepted", type=float, help="instead: tokens a round, as engines report them, …"
    )
    parser.add_argument("--at-K", type=int, help="… with so many guesses a round")
    parser.add_argument(
        "--K", type=int, nargs="+", default=[1, 3, 5, 8], help="guesses a round, default: 1 3 5 8"
    )
    parser.add_argument(
        "--overhead",
        type=float,
        help="microseconds a layer takes besides, in every pass; default: "
        f"{1e6 * layer_overhead():.0f}, the median of four published rates; "
        "0: the roofline alone",
    )
    parser.add_argument(
        "--dp-attention", action="store_true", help="each text's attention on one GPU"
    )
    parser.add_argument("--picture", type=Path, help="draw the gains into this PNG")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args(arguments)


def alpha_given(given: argparse.Namespace) -> float:
    """The alpha of --alpha, or that of --accepted at --at-K. Raises ValueError for half of it."""
    if (given.accepted is None) != (given.at_K is None):
        raise ValueError("--accepted and --at-K belong together, such as --accepted 2.8 --at-K 5")
    if given.accepted is None:
        return 0.8 if given.alpha is None else given.alpha
    if given.alpha is not None:
        raise ValueError("--alpha and --accepted say the same thing: give one of them")
    return alpha_from_tokens(given.accepted, given.at_K)


def overhead_given(given: argparse.Namespace) -> float:
    """Seconds a layer of --overhead, or the calibrated ones. Raises ValueError below 0."""
    if given.overhead is None:
        return layer_overhead()
    if not 0 <= given.overhead < math.inf:
        raise ValueError(f"--overhead is {given.overhead:g} microseconds a layer; give 0 or more")
    return given.overhead / 1e6


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line. Raises ValueError for one that cannot be."""
    if given.draft_bytes and not given.draft:
        raise ValueError("--draft-bytes without a --draft: name the draft, or leave both out")
    if given.parallel and not given.draft:
        raise ValueError("--parallel without a --draft: name the draft, or leave both out")
    if bool(given.prompt) != bool(given.output):
        raise ValueError("--prompt and --output belong together, such as --prompt 500 --output 200")
    gpu, overhead = gpu_of(given.gpu), overhead_given(given)
    context = 2000 if given.context is None else given.context
    if given.context is None and given.output:
        context = given.prompt + given.output // 2
    return Plan(
        model_of(given.target, given.bytes),
        gpu,
        given.gpus,
        model_of(given.draft, given.draft_bytes) if given.draft else None,
        alpha_given(given),
        context,
        given.utilisation,
        overhead,
        given.dp_attention,
        given.parallel,
        REACHED if overhead else 1.0,
        gpu.link if overhead else 0.0,
        given.prompt,
        given.output,
        given.tree,
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises ValueError for a plan that cannot be."""
    given = parse_arguments(arguments)
    check_numbers(1, K=min(given.K), batch=1 if given.batch is None else given.batch)
    check_folders(given.picture)
    plan = plan_of(given)
    if given.json:
        print(json.dumps(as_json(plan, given.K, given.batch), indent=2))
    else:
        print(*sized(plan, given.K, given.batch), sep="\n")
    if given.picture:
        given.picture.write_bytes(curves(plan, given.K, given.batch)._repr_png_()[0])
