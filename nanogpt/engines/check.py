"""Does speculative decoding hold on your own models? `nanogpt check TARGET DRAFT`

TARGET and DRAFT are folders, or names on the Hugging Face hub, of causal language models that
transformers loads; they must have one tokenizer. Without a DRAFT, guesses are looked up in the
text. Checked are passes of the target (cache, trim, tree, batch); texts at temperature 0, token for
token; and samples at temperature 1, by chi-squared tests of every place. A model whose cache cannot
be trimmed is refused before anything is written. In bfloat16 texts may differ where the two best
logits are as good as equal: how many do is told.

Prompts are read as they stand, without a chat template. Exit code: 0, right; 1, wrong; 2, it cannot
be checked, or the samples are too few to tell.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch

from nanogpt.drafts.grown import Grown
from nanogpt.engines import causal, own
from nanogpt.engines.causal import CausalModel, load_pair
from nanogpt.engines.places import sight
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.bench import pooled
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
    parser = argparse.ArgumentParser(
        prog="nanogpt check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    return parser.parse_args(arguments)


def decoders(target: CausalModel, draft: Draft, K: int) -> dict[str, own.Decode]:
    """The two loops, by name."""

    def chain(prompt, n, sampling, rng):
        return speculative_generate(target, draft, prompt, n, K, sampling, rng)

    def tree(prompt, n, sampling, rng):
        siblings = "without" if sampling.temperature else "fixed"
        return tree_generate(target, Grown(draft, WIDTHS, siblings), prompt, n, sampling, rng)

    return {f"chain of {K}": chain, f"tree {' '.join(map(str, WIDTHS))}": tree}


def check_passes(target: CausalModel, tokens: Sequence[int], say: Callable) -> list[str]:
    """Say how far each of PASSES is off. Returns what is wrong."""
    bound, wrong = own.bound_of(target), []
    say(f"passes of the target, off by so much of the largest logit (rounding: {bound:.0e}):")
    for name, ask in own.PASSES.items():
        off = ask(target, tokens)
        right = off <= bound  # False for NaN, too
        say(f"  {name:<30}{off:8.0e}  {'right' if right else 'WRONG'}")
        if not right:
            wrong.append(name.partition(":")[0])
    return wrong


def check_greedy(
    target: CausalModel, name: str, decode: own.Decode, prompts: list, n: int, say: Callable
) -> list[str]:
    """Say how many texts are plain decoding's own. Returns what is wrong: no tie explains it."""
    bound = own.bound_of(target)
    found = [own.greedy(target, decode, prompt, n) for prompt in prompts]
    differ = [one for one in found if one.place is not None]
    said = f"  {name:<14}{len(found) - len(differ)} of {len(found)} texts equal"
    if differ:
        margins = ", ".join(f"{one.margin:.0e}" for one in differ)
        said += f"; the others part where the logits of the two tokens are {margins} apart"
    say(said)
    return [] if all(one.margin <= bound for one in differ) else [f"greedy, {name}"]


def check_samples(
    target: CausalModel, name: str, decode: own.Decode, prompt: list, samples: int, say: Callable
) -> tuple[list[str], bool]:
    """Say what the tests of the samples find. Returns what is wrong, and whether they are blind."""
    report = own.sampled(target, decode, prompt, PLACES, samples)
    [row] = report.rows
    worst = row.worst
    said = f"right, smallest p {p_text(worst.p)}; {sight(row)}"
    if row.refusal:
        said = f"WRONG, {worst.place}, p {p_text(worst.p)}, off by {worst.total_variation:.2f}"
    say(f"  {name:<14}{said}")
    return ([] if report.right else [f"samples, {name}"]), report.blind


def race(target: CausalModel, draft: Draft, prompts: list, n: int, K: int, say: Callable) -> None:
    """Say what the draft brings at temperature 1: α, tokens a pass, and both times."""
    plain, fast, made = 0.0, 0.0, []
    for seed, prompt in enumerate(prompts):
        given = target, prompt, n, Sampling(), RandomSource(seed)
        plain += clock(partial(autoregressive_generate, *given))[0]
        given = target, draft, prompt, n, K, Sampling(), RandomSource(seed)
        seconds, one = clock(partial(speculative_generate, *given))
        fast, made = fast + seconds, [*made, one]
    accepted = sum(r.n_accepted for one in made for r in one.rounds)
    examined = sum(r.n_examined for one in made for r in one.rounds)
    ratio, error = pooled(made)
    say(f"at temperature 1, {len(prompts)} texts of {n} tokens, chains of {K}:")
    say(f"  α {accepted / max(1, examined):.2f}, {ratio:.2f} ± {error:.2f} tokens a pass")
    say(f"  plain {plain:.1f} s, with the draft {fast:.1f} s: {plain / fast:.2f}× in this one run")


def check(
    target: CausalModel,
    draft: Draft,
    prompts: list[list[int]],
    probe: list[int],
    K: int = 4,
    n: int = 60,
    samples: int = 200,
    say: Callable[[str], None] = print,
) -> int:
    """Ask everything of a pair and say what is found. Returns the exit code.

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
    wrong, blind = check_passes(target, probe, say), False
    loops = decoders(target, draft, K)
    say(f"at temperature 0, {len(prompts)} texts of {n} tokens:")
    for name, decode in loops.items():
        wrong += check_greedy(target, name, decode, prompts, n, say)
    say(f"at temperature 1, {samples} texts of {PLACES} tokens, χ² of every place:")
    for name, decode in loops.items():
        found, unseen = check_samples(target, name, decode, prompts[0], samples, say)
        wrong, blind = wrong + found, blind or unseen
    race(target, draft, prompts, n, K, say)
    verdict = f"WRONG in {', '.join(wrong)}" if wrong else "right"
    if blind and not wrong:
        verdict += f", but a wrong decoder passed as well: {samples} samples are too few, give more"
    say(f"verdict: {verdict}")
    return 1 if wrong else 2 if blind else 0


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
    for what, least in (("K", 1), ("tokens", 1), ("samples", 10)):
        if (value := getattr(given, what)) < least:
            raise ValueError(f"{what} is {value}; it must be a whole number from {least}")
    if given.device == "cpu":
        torch.set_num_threads(1)
    target, reader, draft = load_pair(given.target, given.draft, given.dtype, given.device)
    print(told("target", target))
    print(told("draft", draft.model) if given.draft else "draft: prompt lookup")
    prompts = [reader.encode(text) for text in given.prompt or PROMPTS]
    probe = reader.encode(PROBE)
    if not all(prompts):
        raise ValueError("a prompt is empty; give at least one token to start from")
    return check(target, draft, prompts, probe, given.K, given.tokens, given.samples)
