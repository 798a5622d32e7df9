"""One prompt, decoded both ways in the terminal. `nanogpt demo --help`

Tokens are coloured by what became of them: accepted, rejected, resampled or bonus.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, PROPOSERS, proposer
from nanogpt.fused import TARGETS
from nanogpt.generate import Generation, Proposer, autoregressive_generate
from nanogpt.measure.clock import DEVICES, clock
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show import figures
from nanogpt.speculative import speculative_generate
from nanogpt.tree import tree_generate


def report(name: str, made: Generation, seconds: float, text: str) -> None:
    """Print one decoder's passes, seconds and text."""
    passes = f"{made.target_passes} passes, {made.tokens_per_pass:.2f} tokens each"
    print(f"--- {name}: {len(made.tokens)} tokens in {passes}, {seconds:.2f} s\n{text}\n")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of the demonstration."""
    parser = argparse.ArgumentParser(prog="nanogpt demo", description=__doc__)
    parser.add_argument("--prompt", default="ROMEO:", help="default: %(default)s")
    parser.add_argument("--target", choices=TARGETS, default="per-head")
    names = [*DRAFTS, *PROPOSERS]
    parser.add_argument("--draft", choices=names, default="distilled", help="default: %(default)s")
    parser.add_argument("--K", type=int, help="drafted tokens, default: what suits the draft")
    how = "guess a tree: so many continuations of each guess, depth by depth, as in 2 2 1 1"
    parser.add_argument("--tree", type=int, nargs="+", metavar="WIDTH", help=how)
    parser.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=300, help="default: %(default)s")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Decode both ways and print both texts. Raises ValueError for settings out of range."""
    given = parse_arguments(arguments)
    torch.set_num_threads(1)
    sampling, seed = Sampling(given.temperature), given.seed
    if given.tree and given.K is not None:
        raise ValueError("--K is the length of a chain, --tree has its own; leave out one of them")
    if given.tree and given.draft in PROPOSERS:
        raise ValueError(f"{given.draft} guesses in a way of its own; leave out --tree")
    K = (BEST | BEST_PROPOSED)[given.draft] if given.K is None else given.K
    target, tokenizer = checkpoint.load(device=given.device)
    prompt, V = tokenizer.encode(given.prompt), target.config.vocab_size
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    target = TARGETS[given.target](target)
    request = {"prompt_tokens": prompt, "max_new_tokens": given.tokens, "sampling": sampling}
    guessed = f"K = {K}"
    if given.draft in PROPOSERS:
        draft = proposer(given.draft, target, ngram.load(), K)
    else:
        draft = DRAFTS[given.draft](tokens, V, target.device)
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
