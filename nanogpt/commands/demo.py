"""One prompt, decoded both ways in the terminal. `nanogpt demo --help`

Tokens are coloured by what became of them: accepted, rejected, resampled or bonus. With --model, on
a model of your own (`nanogpt check` says what that may be): --draft is then one as well, and
without it guesses are looked up in the text.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple

import torch

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, PROPOSERS, proposer
from nanogpt.engines.causal import Reader, load_pair
from nanogpt.fused import TARGETS
from nanogpt.generate import Draft, Generation, Proposer, autoregressive_generate
from nanogpt.measure.clock import DEVICES, clock
from nanogpt.model import GPTLanguageModel
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
    how = f"{', '.join(names)}, by default distilled; with --model, a folder or a name"
    parser.add_argument("--draft", metavar="DRAFT", help=how)
    how = "a folder, or a name on the Hugging Face hub, in place of our target"
    parser.add_argument("--model", metavar="TARGET", help=how)
    parser.add_argument("--K", type=int, help="drafted tokens, default: what suits the draft")
    how = "guess a tree: so many continuations of each guess, depth by depth, as in 2 2 1 1"
    parser.add_argument("--tree", type=int, nargs="+", metavar="WIDTH", help=how)
    parser.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=300, help="default: %(default)s")
    given = parser.parse_args(arguments)
    given.draft = given.draft or (None if given.model else "distilled")
    return given


class Setting(NamedTuple):
    """What decodes: a target, its tokenizer, a draft; how it guesses, and what that is called."""

    target: GPTLanguageModel
    tokenizer: CharTokenizer | Reader
    draft: Draft | Proposer
    name: str
    K: int


def shipped(given: argparse.Namespace) -> Setting:
    """Ours. Raises ValueError for a draft that there is not."""
    name = given.draft
    if name not in [*DRAFTS, *PROPOSERS]:
        raise ValueError(f"no draft {name!r}; there are {', '.join([*DRAFTS, *PROPOSERS])}")
    if given.tree and name in PROPOSERS:
        raise ValueError(f"{name} guesses in a way of its own; leave out --tree")
    K = (BEST | BEST_PROPOSED)[name] if given.K is None else given.K
    target, tokenizer = checkpoint.load(device=given.device)
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    target = TARGETS[given.target](target)
    if name in PROPOSERS:
        draft = proposer(name, target, ngram.load(), K)
        return Setting(draft.target or target, tokenizer, draft, name, K)
    draft = DRAFTS[name](tokens, target.config.vocab_size, target.device)
    return Setting(target, tokenizer, draft, name, K)


def own(given: argparse.Namespace) -> Setting:
    """The reader's. Errors are those of load_pair."""
    target, tokenizer, draft = load_pair(given.model, given.draft, device=given.device)
    K = 4 if given.K is None else given.K
    return Setting(target, tokenizer, draft, given.draft or "prompt lookup", K)


def main(arguments: list[str] | None = None) -> None:
    """Decode both ways and print both texts. Raises ValueError for settings out of range."""
    given = parse_arguments(arguments)
    torch.set_num_threads(1)
    sampling, seed = Sampling(given.temperature), given.seed
    if given.tree and given.K is not None:
        raise ValueError("--K is the length of a chain, --tree has its own; leave out one of them")
    target, tokenizer, draft, name, K = own(given) if given.model else shipped(given)
    prompt = tokenizer.encode(given.prompt)
    request = {"prompt_tokens": prompt, "max_new_tokens": given.tokens, "sampling": sampling}
    guessed = f"K = {K}"
    if given.tree:  # at temperature 0 there is one token to draw, so the likeliest are taken
        draft = Grown(draft, given.tree, "without" if sampling.temperature else "fixed")
        guessed = f"a tree of widths {' '.join(map(str, given.tree))}"
    guesses_trees = isinstance(draft, Proposer)

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
    print(f"{name} draft, {guessed}: α {fast.alpha:.2f}, {trace.legend(colour)}")
    print(f"speed-up in this one run: {slow_seconds / fast_seconds:.2f}×")
