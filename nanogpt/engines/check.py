"""Does speculative decoding hold on your own models? `nanogpt check TARGET DRAFT`

TARGET and DRAFT are folders, or names on the Hugging Face hub, of causal language models that
transformers loads; they must have one tokenizer. Without a DRAFT, guesses are looked up in the
text. It checks passes of the target (cache, trim, tree, batch); texts at temperature 0, token for
token; and samples at temperature 1, by chi-squared tests of every place. A model whose cache cannot
be trimmed is refused before anything is written; where it can be up to some length, --window says
so. In bfloat16 texts may differ where the two best logits are as good as equal: it says how many.

Prompts are read as they stand, without a chat template. Exit code: 0, right; 1, wrong; 2, it cannot
be checked, or the samples are too few to tell.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nanogpt.data import check_folders
from nanogpt.drafts.grown import Grown
from nanogpt.engines import causal, own
from nanogpt.engines.causal import CausalModel, load_pair
from nanogpt.engines.own import Greedy
from nanogpt.engines.places import Report, sight
from nanogpt.generate import autoregressive_generate, check_whole
from nanogpt.measure.bench import acceptance, pooled
from nanogpt.measure.clock import DEVICES, clock
from nanogpt.proof.statistics import p_text
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft, speculative_generate
from nanogpt.trees.loop import tree_generate

PROMPTS = (
    "def read(path):\n    with open(path) as file:\n        return",
    "The first thing to know about the sea is that",
    "Q: How do I boil an egg?\nA:",
)
PROBE = " ".join([*PROMPTS, *causal.PROBES])
WIDTHS = (2, 2, 1)  # of the trees
PLACES = 10  # tokens of a sample
LEAST = 27  # tokens to check passes on


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of a check."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nanogpt check", description=__doc__, formatter_class=how)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("draft", metavar="DRAFT", nargs="?")
    how = "may be given several times; default: three short ones, of code, prose and a chat"
    parser.add_argument("--prompt", action="append", help=how)
    parser.add_argument("--dtype", choices=[*causal.DTYPES], default="float32")
    parser.add_argument("--K", type=int, default=4, help="guesses a round, default: %(default)s")
    how = "of each greedy text, default: %(default)s"
    parser.add_argument("--tokens", type=int, default=60, help=how)
    how = "texts, of chains and of trees, default: %(default)s"
    parser.add_argument("--samples", type=int, default=200, help=how)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    how = "tokens after which the context restarts, for both; default: as many as a model takes"
    parser.add_argument("--window", type=int, metavar="N", help=how)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is found there, too")
    return parser.parse_args(arguments)


def decoders(target: CausalModel, draft: Draft, K: int) -> dict[str, own.Decode]:
    """The two loops, by name."""

    def chain(prompt, n, sampling, rng):
        return speculative_generate(target, draft, prompt, n, K, sampling, rng)

    def tree(prompt, n, sampling, rng):
        siblings = "without" if sampling.temperature else "fixed"
        return tree_generate(target, Grown(draft, WIDTHS, siblings), prompt, n, sampling, rng)

    return {f"chain of {K}": chain, f"tree {' '.join(map(str, WIDTHS))}": tree}


def check_passes(target: CausalModel, tokens: Sequence[int], say: Callable) -> dict[str, float]:
    """Say how far each of PASSES is off. Returns it."""
    bound, found = own.bound_of(target), {}
    say(f"passes of the target, off by so much of the largest logit (rounding: {bound:.0e}):")
    for name, ask in own.PASSES.items():
        found[name] = off = ask(target, tokens)
        say(f"  {name:<30}{off:8.0e}  {'right' if off <= bound else 'WRONG'}")  # NaN, too
    return found


def check_greedy(
    target: CausalModel, name: str, decode: own.Decode, prompts: list, n: int, say: Callable
) -> list[Greedy]:
    """Say how many texts are plain decoding's own. Returns what was found of each."""
    found = [own.greedy(target, decode, prompt, n) for prompt in prompts]
    differ = [one for one in found if one.place is not None]
    said = f"  {name:<14}{len(found) - len(differ)} of {len(found)} texts equal"
    if differ:
        margins = ", ".join(f"{one.margin:.0e}" for one in differ)
        said += f"; the others part where the logits of the two tokens are {margins} apart"
    say(said)
    return found


def check_samples(
    target: CausalModel, name: str, decode: own.Decode, prompt: list, samples: int, say: Callable
) -> Report:
    """Say what the tests of the samples find. Returns it."""
    report = own.sampled(target, decode, prompt, PLACES, samples)
    [row] = report.rows
    worst = row.worst
    said = f"right, smallest p {p_text(worst.p)}; {sight(row)}"
    if row.refusal:
        said = f"WRONG, {worst.place}, p {p_text(worst.p)}, off by {worst.total_variation:.2f}"
    say(f"  {name:<14}{said}")
    return report


def race(
    target: CausalModel, draft: Draft, prompts: list, n: int, K: int, say: Callable
) -> dict[str, float | None]:
    """Say what the draft brings at temperature 1: α, tokens a pass, and both times. Returns it."""
    plain, fast, made = 0.0, 0.0, []
    for seed, prompt in enumerate(prompts):
        given = target, prompt, n, Sampling(), RandomSource(seed)
        plain += clock(partial(autoregressive_generate, *given))[0]
        given = target, draft, prompt, n, K, Sampling(), RandomSource(seed)
        seconds, one = clock(partial(speculative_generate, *given))
        fast, made = fast + seconds, [*made, one]
    (alpha, off), (ratio, error) = pooled(made, acceptance), pooled(made)
    said = "no guess" if math.isnan(alpha) else f"α {alpha:.2f} ± {off:.2f}"
    say(f"at temperature 1, {len(prompts)} texts of {n} tokens, chains of {K}:")
    say(f"  {said}, {ratio:.2f} ± {error:.2f} tokens a pass (± from prompt to prompt)")
    say(f"  plain {plain:.1f} s, with the draft {fast:.1f} s: {plain / fast:.2f}× in this one run")
    found = {"alpha": None if math.isnan(alpha) else alpha, "tokens_a_pass": ratio}
    return found | {"plain_seconds": plain, "seconds": fast}


def check(
    target: CausalModel,
    draft: Draft,
    prompts: list[list[int]],
    probe: list[int],
    K: int = 4,
    n: int = 60,
    samples: int = 200,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Ask everything of a pair and say what is found. Returns it, with "wrong" and "exit_code".

    Raises ValueError if the window is too short for a prompt or for the passes, or for too few
    samples.
    """
    window = target.config.block_size
    if (longest := max(map(len, prompts))) + PLACES > window:
        raise ValueError(
            f"a prompt has {longest} tokens, and {PLACES} more are drawn; the window has {window}"
        )
    probe = probe[: min(64, window - 8)]
    if len(probe) < LEAST:
        raise ValueError(
            f"a window of {window} leaves {len(probe)} tokens to check passes on; "
            f"it takes {LEAST} or more"
        )
    bound, loops = own.bound_of(target), decoders(target, draft, K)
    passes = check_passes(target, probe, say)
    wrong = [name.partition(":")[0] for name, off in passes.items() if not off <= bound]
    greedy, sampled = {}, {}
    say(f"at temperature 0, {len(prompts)} texts of {n} tokens:")
    for name, decode in loops.items():
        greedy[name] = check_greedy(target, name, decode, prompts, n, say)
        if any(not one.margin <= bound for one in greedy[name]):  # no tie explains it
            wrong.append(f"greedy, {name}")
    say(f"at temperature 1, {samples} texts of {PLACES} tokens, χ² of every place:")
    for name, decode in loops.items():
        sampled[name] = check_samples(target, name, decode, prompts[0], samples, say)
        wrong += [f"samples, {name}"] * (not sampled[name].right)
    blind = any(report.blind for report in sampled.values())
    gain = race(target, draft, prompts, n, K, say)
    verdict = f"WRONG in {', '.join(wrong)}" if wrong else "right"
    if blind and not wrong:
        verdict = f"none: {samples} samples are too few to see what is grossly wrong; give more"
    say(f"verdict: {verdict}")
    asked = {name: list(map(dataclasses.asdict, found)) for name, found in greedy.items()}
    return {
        "exit_code": 1 if wrong else 2 if blind else 0,
        "wrong": wrong,
        "rounding": bound,
        "passes": passes,
        "greedy": asked,
        "samples": {name: dataclasses.asdict(report) for name, report in sampled.items()},
        "at_1": gain,
    }


def told(what: str, model: CausalModel) -> str:
    """A model in one line."""
    weights, c = sum(p.numel() for p in model.model.parameters()), model.config
    return (
        f"{what}: {type(model.model).__name__}, {weights:,} weights, {c.vocab_size:,} tokens, "
        f"window {c.block_size:,}, {str(model.dtype).removeprefix('torch.')}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Load a pair and check it. Returns the exit code.

    Raises ValueError for bad settings, and as `causal.load` does.
    """
    given = parse_arguments(arguments)
    check_whole(1, K=given.K, tokens=given.tokens)
    check_whole(10, samples=given.samples)
    check_folders(given.json)
    if given.device == "cpu":
        torch.set_num_threads(1)
    names = given.target, given.draft
    target, reader, draft = load_pair(*names, given.dtype, given.device, given.window)
    pair = [told("target", target)]
    pair.append(told("draft", draft.model) if given.draft else "draft: prompt lookup")
    print(*pair, sep="\n")
    prompts = [reader.encode(text) for text in given.prompt or PROMPTS]
    probe = reader.encode(PROBE)
    if not all(prompts):
        raise ValueError("a prompt is empty; give at least one token to start from")
    found = check(target, draft, prompts, probe, given.K, given.tokens, given.samples)
    if given.json:
        text = json.dumps({"pair": pair, "names": names, **found}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return found["exit_code"]
