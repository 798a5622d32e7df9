"""Speculative decoding from scratch, on a small GPT. This is the map of the house.

The core: read it in an hour, in this order. In brackets, the chapters that build it.

    model        the target: a GPT whose heads keep no state                      (01, 14, 16)
    cache        the tuple cache: its length, keep the first n, keep these slots  (02, 06, 16)
    sampling     logits -> probabilities -> a token; the only randomness          (02, 05)
    generate     a text being written, its rounds, plain decoding                 (02, 07)
    speculative  draft, verify, accept or reject, trim                            (03 to 07)
    rules        exact rules for trees and blocks                                 (17)
    tree         the same loop with a tree of guesses                             (16)

Those seven are the decoder. Beside them stand

    lossy        rules that are no longer exact                                   (18)
    fused        the same target in fewer operations, a preallocated cache        (13)
    theory       the speed-up equation                                            (09)
    data, checkpoint, train     the corpus, files, training                       (01)

and a folder for each further question:

    drafts/      who guesses?        bigram, n-grams, lookup, lookahead, a transformer, the target
                                     itself, parallel heads, EAGLE, ahead, grown trees, adaptive K
    serving/     many at once?       batch, server, paged cache
    proof/       is it right?        exact enumeration, toys, decoders, checks, the gallery of bugs
    measure/     is it faster?       clock, bench, sizing, traffic
    engines/     is theirs right?    export, adapters, audit
    arena/       is yours better?    template, referee, race
    show/        pictures            figures, and the kit of diagrams
    course/      the exercises       of each chapter its judge and its drawings
    commands/    demo, size          `nanogpt --help` lists every command

Imports run downward only: the core imports nothing from a folder.
"""
