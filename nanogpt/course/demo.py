"""One prompt, decoded both ways in the terminal. `nanogpt demo --help`

Tokens are coloured by what became of them: accepted, rejected, resampled or bonus. With --model,
the target is a model of transformers, and so is the draft; without --draft, it copies the text.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple

import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, PROPOSERS, proposer
from nanogpt.engines.causal import load_pair
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.measure.clock import DEVICES, clock
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show import figures
from nanogpt.speculative import Draft, speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Proposer

NAMES = [*DRAFTS, *PROPOSERS]
LOOKUP = "lookup"  # where no draft is named for a model of transformers
OF_THEIRS = 4  # guesses in a round, for such a model


def report(name: str, made: Generation, seconds: float, text: str) -> None:
    """Print one decoder's passes, seconds and text."""
    passes = f"{made.target_passes} passes, {made.tokens_per_pass:.2f} tokens each"
    print(f"--- {name}: {len(made.tokens)} tokens in {passes}, {seconds:.2f} s\n{text}\n")


class Pair(NamedTuple):
    """What decodes: a target, who reads and writes its tokens, and a draft."""

    target: GPTLanguageModel
    tokenizer: object
    draft: Draft | Proposer
    stop: int | None = None


def of_ours(given: argparse.Namespace) -> Pair:
    """The shipped target, and the draft that was asked for. Raises ValueError for another name."""
    if given.draft not in NAMES:
        raise ValueError(f"no draft {given.draft!r}; use one of {', '.join(NAMES)}")
    target, tokenizer = checkpoint.load(device=given.device)
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    target = TARGETS[given.target](target)
    if given.draft in PROPOSERS:
        draft = proposer(given.draft, target, ngram.load(), given.K)
    else:
        draft = DRAFTS[given.draft](tokens, target.config.vocab_size, target.device)
    return Pair(target, tokenizer, draft)


def of_theirs(given: argparse.Namespace) -> Pair:
    """A model of transformers, and a draft that is one too, or looks the text up."""
    draft = None if given.draft == LOOKUP else given.draft
    target, reader, draft = load_pair(given.model, draft, "float32", given.device, given.window)
    return Pair(target, reader, draft, reader.end)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of the demonstration."""
    parser = argparse.ArgumentParser(prog="nanogpt demo", description=__doc__)
    parser.add_argument("--prompt", default="ROMEO:", help="default: %(default)s")
    parser.add_argument("--target", choices=TARGETS, help="of ours, default: per-head")
    parser.add_argument("--model", help="a folder, or a name on the hub, in place of our target")
    how = "with --model: tokens after which its context, and its draft's, restart"
    parser.add_argument("--window", type=int, metavar="N", help=how)
    drafts = f"default: distilled; others: {', '.join(NAMES[:-1])} or {NAMES[-1]}"
    parser.add_argument("--draft", help=f"{drafts}; with --model, a folder or a name, too")
    parser.add_argument("--K", type=int, help="drafted tokens, default: what suits the draft")
    how = "guess a tree: so many continuations of each guess, depth by depth, as in 2 2 1 1"
    parser.add_argument("--tree", type=int, nargs="+", metavar="WIDTH", help=how)
    parser.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=300, help="default: %(default)s")
    given = parser.parse_args(arguments)
    if given.target is None and not given.model:
        given.target = "per-head"
    if given.draft is None:
        given.draft = LOOKUP if given.model else "distilled"
    return given


def main(arguments: list[str] | None = None) -> None:
    """Decode both ways and print both texts. Raises ValueError for settings out of range."""
    given = parse_arguments(arguments)
    torch.set_num_threads(1)
    sampling, seed = Sampling(given.temperature), given.seed
    if given.tree and given.K is not None:
        raise ValueError("--K is the length of a chain, --tree has its own; leave out one of them")
    if given.tree and given.draft in PROPOSERS and not given.model:
        raise ValueError(f"{given.draft} guesses in a way of its own; leave out --tree")
    if given.K is None:
        given.K = OF_THEIRS if given.model else (BEST | BEST_PROPOSED).get(given.draft)
    if given.model and given.target:
        raise ValueError("--target is a form of our own model; leave it out with --model")
    if given.window is not None and not given.model:
        raise ValueError("--window is for models of transformers; leave it out without --model")
    K, guessed = given.K, f"K = {given.K}"
    target, tokenizer, draft, stop = of_theirs(given) if given.model else of_ours(given)
    prompt = tokenizer.encode(given.prompt)
    request = {"prompt_tokens": prompt, "max_new_tokens": given.tokens, "sampling": sampling}
    request["stop_token"] = stop
    if given.tree:  # at temperature 0 there is one token to draw, so the likeliest are taken
        draft = Grown(draft, given.tree, "without" if sampling.temperature else "fixed")
        guessed = f"a tree of widths {' '.join(map(str, given.tree))}"
    guesses_trees = isinstance(draft, Proposer)
    if guesses_trees:
        target = draft.target or target  # what it guesses for, if it has its own

    def plain() -> Generation:
        return autoregressive_generate(target, **request, rng=RandomSource(seed))

    def speculative() -> Generation:
        if guesses_trees:
            return tree_generate(target, draft, **request, rng=RandomSource(seed))
        return speculative_generate(target, draft, K=K, **request, rng=RandomSource(seed))

    speculative(), plain()  # warm up
    (slow_seconds, slow), (fast_seconds, fast) = clock(plain), clock(speculative)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    trace = figures.token_trace(fast, tokenizer)
    report("autoregressive", slow, slow_seconds, given.prompt + tokenizer.decode(slow.tokens))
    report("speculative", fast, fast_seconds, given.prompt + trace.text(colour))
    print("the first rounds:", *trace.lines(colour)[:12], sep="\n", end="\n\n")
    print(f"{given.draft} draft, {guessed}: α {fast.alpha:.2f}, {trace.legend(colour)}")
    print(f"speed-up in this one run: {slow_seconds / fast_seconds:.2f}×")
