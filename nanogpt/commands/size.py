"""Will speculative decoding pay? Your model, GPU and load, as a table and a picture."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nanogpt.data import check_folders
from nanogpt.measure.configs import counted
from nanogpt.measure.sizing import GPUS, MODELS, Gpu, Plan, Shape, check_numbers
from nanogpt.show import figures

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


def model_of(text: str, weight_bytes: float | None = None) -> Shape:
    """A Shape from a name in MODELS, a path to a config.json or its folder, or its numbers.

    weight_bytes replaces the model's own. Raises ValueError for what is none of these.
    """
    path = Path(text)
    if text.lower() in MODELS:
        shape = MODELS[text.lower()]
    elif path.exists():
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as JSON ({error})") from None
        shape = counted(config if isinstance(config, dict) else {}, str(path), weight_bytes)
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
    """A Gpu from a name in GPUS, or MEMORY,BANDWIDTH,FLOPS. Raises ValueError for neither."""
    if text.upper() in GPUS:
        return GPUS[text.upper()]
    if text.count(",") != 2:
        raise ValueError(
            f"{text!r} is no GPU; name one of {', '.join(GPUS)}, or give "
            "MEMORY,BANDWIDTH,FLOPS such as 80G,3.35T,989T"
        )
    return Gpu(*map(number_of, text.split(",")))


def batches_of(plan: Plan, most: int | None = None) -> list[int]:
    """1, 2, 4, … up to the texts that fit with the draft, which come last; up to `most`, if given.

    Raises ValueError if the weights, or one text, do not fit, and says how many GPUs it takes.
    """
    fit_at_once = plan.texts()
    if not fit_at_once:
        one = plan.gpu.memory * plan.utilisation
        needed = sum(m.weights + plan.context * m.per_token for m in plan.models())
        raise ValueError(
            f"weights and one text of {plan.context:,} tokens take {needed / 1e9:.1f} GB, and "
            f"{plan.gpus} x {one / 1e9:.1f} GB may be used: take {math.ceil(needed / one)} GPUs, "
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


def sized(plan: Plan, Ks: Sequence[int], most: int | None = None) -> list[str]:
    """The lines that say what fits, what is gained with each K and batch, and where it ends."""
    lines = []
    for name, model in zip(("target", "draft"), plan.models(), strict=False):
        lines.append(f"{name:7} {described(model, plan.context)}")
    gpu, room = plan.gpu, plan.gpus * plan.gpu.memory * plan.utilisation / 1e9
    lines += [
        f"GPUs    {plan.gpus} x {gpu.memory / 1e9:g} GB, {gpu.bandwidth / 1e12:g} TB/s, "
        f"{gpu.flops / 1e12:g} TFLOPS; {room:.1f} GB may be used",
        f"room    for {plan.capacity():,} tokens, {plan.texts():,} texts of {plan.context:,}"
        + f" (without the draft {plan.capacity(False):,}, {plan.texts(False):,})"
        * (plan.draft is not None),
        f"alpha {plan.alpha:g}; times as fast as plain decoding of as many texts:",
        "texts   plain, tokens/s " + "".join(f"{f'K={K}':>7}" for K in Ks) + "   best K",
    ]
    for B in batches_of(plan, most):
        gains = "".join(f"{plan.speed_up(B, K):7.2f}" for K in Ks)
        lines.append(f"{B:5}   {plan.rate(B, 0):15,.0f} {gains} {plan.best_K(B):8}")
    last = min(batches_of(plan, most)[-1], 4096)
    for K in Ks:
        losing = {B for B in range(1, last + 1) if plan.speed_up(B, K) < 1}
        starts, ends = ([B for B in sorted(losing) if B + by not in losing] for by in (-1, 1))
        said = ", ".join(f"{a:,} to {b:,}" for a, b in zip(starts, ends, strict=True))
        lines.append(
            f"K={K}: slower with {said} texts" if said else f"K={K}: pays up to {last:,} texts"
        )
    if plan.draft:
        B, without = plan.texts(), plan.texts(False)
        K = plan.best_K(B)
        ratio = plan.rate(B, K) / plan.rate(without, 0)
        lines.append(
            f"memory full: {B:,} texts with K={K} against {without:,} without a draft: "
            f"{ratio:.2f} times the tokens a second"
        )
    return lines


def curves(plan: Plan, Ks: Sequence[int], most: int | None = None) -> figures.Picture:
    """The speed-up against the batch, a line for each K."""
    batches = batches_of(plan, most)
    found = {f"K = {K}": [plan.speed_up(B, K) for B in batches] for K in Ks}
    chart = figures.lines(
        batches,
        found,
        "What speculation gains, by the roofline",
        f"texts at once, of {plan.context:,} tokens each",
        "times as fast as plain",
    )
    chart.axes[0].set_xscale("log", base=2)
    chart.axes[0].axhline(1, color="black", linewidth=0.8)
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
    parser.add_argument("--bytes", type=float, help="bytes a weight of the target, such as 0.5")
    parser.add_argument("--draft-bytes", type=float, help="bytes a weight of the draft")
    parser.add_argument("--gpu", default="H100", help=f"{', '.join(GPUS)}, or 80G,3.35T,989T")
    parser.add_argument("--gpus", type=int, default=1, help="how many, default: %(default)s")
    parser.add_argument(
        "--utilisation", type=float, default=0.9, help="the part of the memory in use"
    )
    parser.add_argument("--context", type=int, default=2000, help="tokens a text")
    parser.add_argument("--batch", type=int, help="texts at once, at most")
    parser.add_argument("--alpha", type=float, default=0.8, help="acceptance of a guess")
    parser.add_argument("--K", type=int, nargs="+", default=[1, 3, 5, 8], help="guesses a round")
    parser.add_argument("--overhead", type=float, default=0.0, help="milliseconds, every pass")
    parser.add_argument(
        "--dp-attention", action="store_true", help="each text's attention on one GPU"
    )
    parser.add_argument("--picture", type=Path, help="draw the gains into this PNG")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises ValueError for a plan that cannot be."""
    given = parse_arguments(arguments)
    check_numbers(1, K=min(given.K), batch=1 if given.batch is None else given.batch)
    if given.draft_bytes and not given.draft:
        raise ValueError("--draft-bytes without a --draft: name the draft, or leave both out")
    check_folders(given.picture)
    plan = Plan(
        model_of(given.target, given.bytes),
        gpu_of(given.gpu),
        given.gpus,
        model_of(given.draft, given.draft_bytes) if given.draft else None,
        given.alpha,
        given.context,
        given.utilisation,
        given.overhead / 1000,
        given.dp_attention,
    )
    print(*sized(plan, given.K, given.batch), sep="\n")
    if given.picture:
        given.picture.write_bytes(curves(plan, given.K, given.batch)._repr_png_()[0])
