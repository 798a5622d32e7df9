"""Speculative decoding from scratch, on a small GPT. This is the map of the house.

The core: read it in this order, in an hour or two. In brackets, the chapters that build it.

    cache        the tuple cache: its length, keep the first n, keep these slots  (02, 06, 16)
    model        the target: a GPT whose heads keep no state                      (01, 14, 16)
    sampling     logits -> probabilities -> a token; the only randomness          (02, 05)
    generate     a text being written, its rounds, plain decoding; and what a     (02, 07)
                 draft is: Draft, Proposer, Tree
    speculative  draft, verify, accept or reject, trim                            (03 to 07)
    rules        exact rules for trees and blocks                                 (17)
    tree         the same loop with a tree of guesses                             (16)

Those seven are the decoder. Beside them stand

    same         the same dice: text that does not depend on the draft            (30)
    constraints  what a request asks: a grammar, penalties, stop strings, logprobs (31)
    grammar      a regular expression as an automaton over tokens                 (31)
    lossy        rules that are not exact: typical acceptance (Medusa) and others (18)
    fused        the same target in fewer operations, a preallocated cache        (13)
    state        a target that keeps a state in place of a cache                  (33)
    theory       the speed-up equation                                            (09)
    data, checkpoint, train     the corpus, files, training                       (01)

and a folder for each further question:

    show/        pictures            figures, and the kit of diagrams
    drafts/      who guesses?        bigram, n-grams, lookup, lookahead, a transformer, one that
                                     reads byte pairs, the target itself, parallel heads (Medusa)
                                     and blocks, EAGLE, ahead, grown trees, best-first trees,
                                     hybrids, adaptive K, learning while serving; shipped: those
                                     that come with it
    serving/     many at once?       batch, server, paged cache, one budget of guesses for all
    proof/       is it right?        checks: lossless, cache, counts, by exact enumeration; toys,
                                     decoders, the gallery of bugs
    measure/     is it faster?       bench: the speed-up, in pairs; clock; traffic, and what a
                                     service measures; sizing, configs
    engines/     is theirs right?    export, adapters, audit; endpoint: over HTTP, on any model;
                                     serve: a server to try that on; causal, own: any model of
                                     transformers as a target, and does it hold
    arena/       is yours better?    template: start your own draft here; referee, race, and
                                     what judges the race: inquiry, seal
    course/      the exercises       of each chapter its judge and its drawings; how far a reader
                                     is: progress, judged, needed
    commands/    course, demo, check, size, load; `nanogpt --help` lists every command

Each file of the core, and each folder, imports only what stands above it.
"""
