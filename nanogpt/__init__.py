"""Speculative decoding from scratch, on a small GPT. In six lines:

    from nanogpt import RandomSource, Sampling, load, speculative_generate
    from nanogpt.drafts import ngram

    target, tokenizer = load()
    prompt, rng = tokenizer.encode("JULIET:"), RandomSource(1)
    done = speculative_generate(target, ngram.load(), prompt, 200, 10, Sampling(0.8), rng)
    print(tokenizer.decode(done.tokens), f"({done.tokens_per_pass:.1f} tokens per pass)")

This is the map of the house. The decoder of chapter 07 lies flat: five files, to be read in this
order, in an hour. In brackets, the chapters that build them.

    cache        the tuple cache: its length, keep the first n                    (02, 06)
    model        the target: a GPT whose heads keep no state                      (01)
    sampling     logits -> probabilities -> a token; the only randomness          (02, 05)
    generate     a text being written, its rounds, plain decoding                 (02, 07)
    speculative  draft, verify, accept or reject, trim                            (03 to 07)

Beside them lie

    data, checkpoint, train     the corpus, files, training                       (01)
    theory       the speed-up equation                                            (09)
    same         the same dice: text that does not depend on the draft            (30)

and a folder for each further question:

    trees/       guesses that branch tree: the values, the mask, the path; loop (16); rules: exact
                                     ones for trees and blocks (17); lossy: others (18)
    targets/     who writes?         fused: the same target in fewer operations (13); state: one
                                     that keeps a state in place of a cache (33)
    drafts/      who guesses?        bigram, n-grams, lookup, lookahead, a transformer, one that
                                     reads byte pairs, the target itself, parallel heads (Medusa)
                                     and blocks, EAGLE, ahead, grown trees, best-first trees,
                                     hybrids, adaptive K, learning while serving; shipped: those
                                     that come with it
    serving/     many at once, and   batch, server, paged cache, one budget of guesses for all;
                 what each asks?     constraints, and grammar: a regular expression as an automaton
    proof/       is it right?        checks: lossless, cache, counts, by exact enumeration; toys,
                                     decoders, the gallery of bugs
    measure/     is it faster?       bench: the speed-up, in pairs; costs; clock; traffic, what a
                                     service measures; sizing, configs; the words size and load;
                                     learning: what drafts that learn gain
    engines/     is theirs right?    export, adapters, places, audit; endpoint: over HTTP;
                                     serve: a server to try that on; causal, own: any model of
                                     transformers as a target; the words check: does it hold,
                                     and advise: which K, or none
    arena/       is yours better?    template: start your own draft here; referee, race
    course/      the exercises       of each chapter its judge and its drawings; how far a reader
                                     is: progress, judged, needed; the words course and demo
    show/        pictures            figures, and the kit of diagrams

`nanogpt --help` lists every word. A module imports only what stands above it, but `same` imports
trees/, and what draws imports show/.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAMES = {  # what a program begins with, by the module that has it
    "load": "checkpoint",
    "Sampling": "sampling",
    "RandomSource": "sampling",
    "autoregressive_generate": "generate",
    "speculative_generate": "speculative",
    "tree_generate": "trees.loop",
    "batch_generate": "serving.batch",
    "Server": "serving.server",
}
__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    """One of NAMES, its module imported when asked for: `nanogpt course` needs no torch.

    Raises AttributeError for any other.
    """
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{NAMES[name]}"), name)


def __dir__() -> list[str]:
    """What is here already, and NAMES."""
    return sorted({*globals(), *NAMES})
