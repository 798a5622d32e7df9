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


DRAFTS: dict[str, Callable] = {  # from the tokens to count and the vocabulary's size
    "bigram": counted_bigram,
    "counts": lambda tokens, V: ngram.count_ngrams(tokens, V, order=4, smoothing=4),
    "distilled": lambda tokens, V: ngram.load(),
    "lookup": lambda tokens, V: PromptLookupDraft(V),
    "suffix": lambda tokens, V: SuffixDraft(V),
    "transformer": lambda tokens, V: transformer.load(transformer.TRAINED),
    "transformer-distilled": lambda tokens, V: transformer.load(transformer.DISTILLED),
    "transformer-fused": lambda tokens, V: transformer.TransformerDraft(
        FusedLanguageModel(transformer.load().model)  # the distilled one, at its fastest
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
