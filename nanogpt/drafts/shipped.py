"""The shipped drafts, by name, and the K that suits each.

DRAFTS have q of a context and are decoded by `speculative_generate`; PROPOSERS guess trees, or read
the target, and are decoded by `tree_generate`.
"""

from __future__ import annotations

from collections.abc import Callable

from nanogpt.drafts import eagle, itself, ngram, pairs, parallel, transformer
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.drafts.grown import Grown, sparse_tree
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft
from nanogpt.drafts.lookup import PromptLookupDraft, SuffixDraft
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.trees.tree import Proposer

DRAFTS: dict[str, Callable] = {  # of the tokens to count, the vocabulary's size, and a device
    "bigram": lambda tokens, V, device="cpu": BigramDraftModel(tokens, V),  # tables are on the CPU
    "counts": lambda tokens, V, device="cpu": ngram.count_ngrams(tokens, V, order=4, smoothing=4),
    "distilled": lambda tokens, V, device="cpu": ngram.load(),
    "confident": lambda tokens, V, device="cpu": ngram.load(least=0.04),  # a chain stops by itself
    "lookup": lambda tokens, V, device="cpu": PromptLookupDraft(V),
    "suffix": lambda tokens, V, device="cpu": SuffixDraft(V),
    "transformer": lambda tokens, V, device="cpu": transformer.load(transformer.TRAINED, device),
    "transformer-distilled": lambda tokens, V, device="cpu": transformer.load(device=device),
    "transformer-fused": lambda tokens, V, device="cpu": transformer.TransformerDraft(
        FusedLanguageModel(transformer.load(device=device).model)  # the distilled one, fastest
    ),
    "pairs": lambda tokens, V, device="cpu": fused_pairs(device),
}

BEST = {  # the K that suits each on a laptop
    "bigram": 3,
    "counts": 6,
    "distilled": 10,
    "confident": 12,
    "lookup": 2,
    "suffix": 2,
    "transformer": 3,
    "transformer-distilled": 3,
    "transformer-fused": 2,
    "pairs": 4,
}
BEST_BLOCKS = BEST | {  # where guesses are judged as a block: passes over multiples of 8 tokens
    "distilled": 31,
    "confident": 47,
}


def fused_pairs(device) -> pairs.PairDraft:
    """The draft that reads byte pairs, its model in the fused form."""
    draft = pairs.load(device=device)
    return pairs.PairDraft(FusedLanguageModel(draft.net), draft.tokenizer)


def mtp_draft(target, table, K: int):
    """A layer for multi-token prediction, with a target of its own in the form of the given one."""
    own, layers = eagle.load_mtp(device=target.device)
    own = TARGETS["fused"](own) if isinstance(target, TARGETS["fused"]) else own
    draft = eagle.EagleDraft(own, layers["once" if K == 1 else "again"], K)
    draft.target = own
    return draft


PROPOSERS: dict[str, Callable] = {  # of the target, a table, K, and for some the number of nodes
    "exit": lambda target, table, K: itself.EarlyExitDraft(
        target, 1, itself.load_exits(device=target.device, adapter="hidden layer")[1], K
    ),
    "medusa": lambda target, table, K: parallel.MedusaDraft(parallel.load(device=target.device)),
    "medusa-tree": lambda target, table, K, nodes: parallel.MedusaDraft(
        parallel.load(device=target.device), *sparse_tree(parallel.load_accuracies()[:K], nodes)
    ),
    "tree": lambda target, table, K: Grown(table, [2, 2, *[1] * (K - 2)][:K], "without"),
    "eagle": lambda target, table, K: eagle.EagleDraft(target, eagle.load(device=target.device), K),
    "eagle3": lambda target, table, K: eagle.EagleDraft(
        target, eagle.load(eagle.EAGLE3, target.device), K
    ),
    "eagle-tree": lambda target, table, K, nodes: eagle.EagleTree(
        target, eagle.load(eagle.EAGLE3, target.device), K=K, nodes=nodes
    ),
    "mtp": mtp_draft,
    "jacobi": lambda target, table, K: JacobiDraft(target.config.vocab_size, K),
    "lookahead": lambda target, table, K: LookaheadDraft(target.config.vocab_size, K, G=K),
    "block-apart": lambda target, table, K: parallel.BlockDraft(
        target, parallel.load_block(device=target.device), K, markov=False
    ),
    "block-markov": lambda target, table, K: parallel.BlockDraft(
        target, parallel.load_block(device=target.device), K
    ),
}
BEST_PROPOSED = {  # K; of "lookahead", how many columns and n-grams
    **{"exit": 4, "medusa": 4, "medusa-tree": 4, "tree": 8},
    **{"eagle": 2, "eagle3": 3, "eagle-tree": 4, "mtp": 2},
    **{"jacobi": 3, "lookahead": 3, "block-apart": 3, "block-markov": 4},
}
NODES = {"medusa-tree": 12, "eagle-tree": 8}  # of trees that are made as large as one likes


def proposer(name: str, target, table, K: int, nodes: int | None = None) -> Proposer:
    """A draft of PROPOSERS. nodes: those of its tree, by default the ones of NODES.

    Raises ValueError for nodes, or a K, where a draft has no choice.
    """
    if name == "medusa" and K != BEST_PROPOSED[name]:
        raise ValueError(f"medusa guesses with all of its {BEST_PROPOSED[name]} heads; leave out K")
    if name in NODES:
        return PROPOSERS[name](target, table, K, NODES[name] if nodes is None else nodes)
    if nodes is not None:
        raise ValueError(f"{name} has no nodes to choose; leave them out, or use one of {[*NODES]}")
    return PROPOSERS[name](target, table, K)
