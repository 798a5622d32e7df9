"""Does speculative decoding hold on a model of yours? `nanogpt check --help`

The model's cache, its masks and its trims, then greedy and sampled texts, chains and trees.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nanogpt.cache import trim_kv_cache
from nanogpt.drafts.grown import Grown
from nanogpt.engines.audit import each_place
from nanogpt.engines.causal import BOUNDS, DTYPES, CausalModel, load_pair, relative
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.measure.clock import clock
from nanogpt.model import tree_mask
from nanogpt.proof.statistics import LEVEL, own_probs, shown
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate
from nanogpt.tree import tree_generate

PROMPT = "The king said to the people of the town:"
PLACES = 3  # tokens of each sampled text
WIDTHS = [2, 1, 1]  # of the tree


@torch.no_grad()
def cache_error(model: CausalModel, tokens: Sequence[int]) -> float:
    """Token by token against one pass: the largest difference of logits, relative."""
    whole, kvs, parts = model(model.row(tokens))[0], None, []
    for token in tokens:
        logits, _, kvs = model(model.row([token]), past_kvs=kvs)
        parts.append(logits)
    return relative(torch.cat(parts, dim=1), whole)


@torch.no_grad()
def tree_error(model: CausalModel, tokens: Sequence[int]) -> float:
    """Each node of a tree after the tokens against its own chain, as cache_error."""
    parents = [-1, -1, 0, 0, 2]
    nodes = [tokens[i % len(tokens)] for i in range(len(parents))]
    start, current = tokens[:-1], tokens[-1]
    _, _, kvs = model(model.row(start))
    mask = tree_mask(parents, len(start)).to(model.device)
    hidden, _ = model.trunk(model.row([current, *nodes]), mask.sum(-1) - 1, kvs, mask)
    logits, worst = model.lm_head(hidden)[0], 0.0
    for node in range(len(nodes)):
        path, at = [], node
        while at >= 0:
            path, at = [nodes[at], *path], parents[at]
        alone = model(model.row([*tokens, *path]))[0][0, -1]
        worst = max(worst, relative(logits[node + 1], alone))
    return worst


@torch.no_grad()
def trim_error(model: CausalModel, tokens: Sequence[int]) -> float:
    """Two guesses trimmed and another token read, against a text without them."""
    _, _, kvs = model(model.row(tokens))
    before = [(k.clone(), v.clone()) for ((k, v),) in kvs]
    n, current = len(tokens), tokens[-1]
    _, _, grown = model(model.row([current, tokens[0], tokens[1]]), past_kvs=kvs)
    for (k, v), ((old_k, old_v),) in zip(before, kvs, strict=True):
        if not (torch.equal(k, old_k) and torch.equal(v, old_v)):
            return float("inf")  # a pass has changed the cache that it was handed
    trimmed = trim_kv_cache(grown, 1, n)
    got = model(model.row([tokens[1]]), past_kvs=trimmed)[0][:, -1]
    return relative(got, model(model.row([*tokens, current, tokens[1]]))[0][:, -1])


@torch.no_grad()
def first_difference(
    model: CausalModel, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> tuple[int, float] | None:
    """Where two greedy texts part, and how near the two tokens are there; None if they do not.

    Near: the difference of their logits, as a share of the largest logit.
    """
    for at, (a, b) in enumerate(zip(plain, other, strict=True)):
        if a != b:
            logits = model(model.row([*prompt, *plain[:at]]))[0][0, -1].double()
            return at, float((logits[a] - logits[b]).abs() / logits.abs().max())
    return None


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, what came of it, and whether that is as it should be."""

    name: str
    said: str
    right: bool


def greedy(
    model: CausalModel, prompt: Sequence[int], name: str, plain: Generation, made: Generation
) -> Finding:
    """Two greedy texts, equal or parted at a tie: closer than rounding may move two logits."""
    parted = first_difference(model, prompt, plain.tokens, made.tokens)
    if parted is None:
        return Finding(f"greedy, {name}", f"{len(plain.tokens)} tokens, all equal", True)
    (at, gap), most = parted, 2 * BOUNDS[model.dtype]
    why = "a near-tie, which rounding decides" if gap <= most else "no tie"
    said = f"parts at token {at + 1} of {len(plain.tokens)}, gap {gap:.1e} of {most:.1e}: {why}"
    return Finding(f"greedy, {name}", said, gap <= most)


def sampled(
    model: CausalModel, prompt: Sequence[int], name: str, decode: Callable, n: int
) -> Finding:
    """χ² by place of n sampled texts, against the p of the model's own full passes."""
    made = torch.tensor(
        [decode(Sampling(), RandomSource(seed), PLACES).tokens for seed in range(n)]
    )
    p = own_probs(model, prompt, made, Sampling())
    places = each_place(p, made, LEVEL)
    worst = min(places, key=lambda place: place.p)
    surely = max(place.surely for place in places)
    said = f"{n} texts of {PLACES} tokens, smallest p-value {shown(worst.p)} ({worst.place}); "
    said += f"{surely:.2f} off at one place would be seen"
    return Finding(f"sampled, {name}", said, worst.p > LEVEL)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """What to check, and how much of it."""
    parser = argparse.ArgumentParser(prog="nanogpt check", description=__doc__)
    parser.add_argument("target", help="a folder, or a name on the hub")
    parser.add_argument("draft", nargs="?", help="the same; default: prompt lookup")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument("--prompt", default=PROMPT, help="default: %(default)r")
    parser.add_argument("--K", type=int, default=4, help="drafted tokens, default: %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="of greedy text, %(default)s")
    parser.add_argument("--samples", type=int, default=300, help="default: %(default)s")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Check, print a line for each finding and a verdict; 0 if all hold, 1 if not.

    Raises ValueError for bad input or a model that is refused, OSError if it cannot be had.
    """
    given = parse_arguments(arguments)
    if given.tokens < 1 or given.samples < 100:
        raise ValueError("take --tokens from 1 and --samples from 100")
    torch.set_num_threads(1)
    model, reader, draft = load_pair(given.target, given.draft, given.dtype)
    prompt = reader.encode(given.prompt)
    if len(prompt) < 3 or len(prompt) + 5 > model.config.block_size:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens; 3 to {model.config.block_size - 5} are wanted"
        )

    def plain(sampling, rng, n):
        return autoregressive_generate(model, prompt, n, sampling, rng)

    def chain(sampling, rng, n):
        return speculative_generate(model, draft, prompt, n, given.K, sampling, rng)

    def tree(sampling, rng, n):
        grown = Grown(draft, WIDTHS, "without" if sampling.temperature else "fixed")
        return tree_generate(model, grown, prompt, n, sampling, rng)

    loops, most, found = {"chain": chain, "tree": tree}, BOUNDS[model.dtype], []

    def tell(finding: Finding) -> None:
        found.append(finding)
        print(f"{'ok ' if finding.right else 'NOT'}  {finding.name:16}{finding.said}", flush=True)

    for name, error in ("cache", cache_error), ("tree mask", tree_error), ("trim", trim_error):
        off = error(model, prompt)
        tell(Finding(name, f"off by {off:.1e} of the largest logit, bound {most:.1e}", off <= most))
    texts = {"plain": plain, **loops}
    made = {
        name: clock(lambda do=do: do(Sampling(0), RandomSource(0), given.tokens))
        for name, do in texts.items()
    }
    for name in loops:
        tell(greedy(model, prompt, name, made["plain"][1], made[name][1]))
    for name, decode in loops.items():
        tell(sampled(model, prompt, name, decode, given.samples))
    for name, (seconds, text) in made.items():
        alpha = f", α {text.alpha:.2f}" if name == "chain" else ""
        per = f"{text.tokens_per_pass:.2f} tokens a pass{alpha}"
        print(f"     {name:16}{per}, {seconds:.2f} s for {len(text.tokens)} tokens, greedy")
    wrong = [finding.name for finding in found if not finding.right]
    print(f"verdict: {'does not hold: ' + '; '.join(wrong) if wrong else 'it holds'}")
    return 1 if wrong else 0
