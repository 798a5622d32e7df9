"""The draft models, one per file, and the shipped ones by name.

A draft has `vocab_size` and `get_probs(context)`, which takes all tokens so far (list[int]) and
returns q at temperature 1, (V,) float64. It may have a `chain(context, K, rng)`, too: what
draft_tokens makes of get_probs, sooner. A draft that guesses trees, or reads the target, has
`propose(text, most, sampling, rng)` instead, and is decoded by `tree.tree_generate`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nanogpt.drafts import ngram, transformer
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.drafts.lookup import PromptLookupDraft, SuffixDraft
from nanogpt.fused import FusedLanguageModel
from nanogpt.sampling import table_rows


def counted_bigram(tokens: Tensor, vocab_size: int) -> BigramDraftModel:
    """The bigram of tokens (N,), the running sums of its rows remembered."""
    draft = BigramDraftModel(tokens, vocab_size)
    draft.rows = table_rows(draft.table)
    return draft


DRAFTS: dict[str, Callable] = {  # of the tokens to count, the vocabulary's size, and a device
    "bigram": lambda tokens, V, device="cpu": counted_bigram(tokens, V),  # tables are on the CPU
    "counts": lambda tokens, V, device="cpu": ngram.count_ngrams(tokens, V, order=4, smoothing=4),
    "distilled": lambda tokens, V, device="cpu": ngram.load(),
    "lookup": lambda tokens, V, device="cpu": PromptLookupDraft(V),
    "suffix": lambda tokens, V, device="cpu": SuffixDraft(V),
    "transformer": lambda tokens, V, device="cpu": transformer.load(transformer.TRAINED, device),
    "transformer-distilled": lambda tokens, V, device="cpu": transformer.load(device=device),
    "transformer-fused": lambda tokens, V, device="cpu": transformer.TransformerDraft(
        FusedLanguageModel(transformer.load(device=device).model)  # the distilled one, fastest
    ),
}

BEST = {  # the K that suits each on a laptop
    "bigram": 3,
    "counts": 6,
    "distilled": 10,
    "lookup": 2,
    "suffix": 2,
    "transformer": 3,
    "transformer-distilled": 3,
    "transformer-fused": 2,
}
BEST_BLOCKS = BEST | {"distilled": 24}  # the same where guesses are judged as a block
