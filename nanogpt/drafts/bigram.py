"""The bigram draft: what follows a character in the corpus, counted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.speculative import Draft


class BigramDraftModel(Draft):
    """Guesses the next token from the current one alone, by counts with one added (Laplace).

    train_data (N,) int64 tokens; `table` (V, V) float64: row i is q after token i.
    The added one lets every token be drawn, so that no q is 0.
    Raises ValueError if a token is outside 0 … vocab_size-1.
    """

    def __init__(self, train_data: Tensor, vocab_size: int):
        if len(train_data) and not 0 <= int(train_data.min()) <= int(train_data.max()) < vocab_size:
            raise ValueError(f"train_data holds a token outside 0 … {vocab_size - 1}")
        self.vocab_size = vocab_size
        pairs = train_data[:-1] * vocab_size + train_data[1:]  # one number per pair of tokens
        counts = torch.bincount(pairs, minlength=vocab_size**2).view(vocab_size, vocab_size) + 1
        self.table = counts.double() / counts.sum(dim=-1, keepdim=True)
        self.rows = list(self.table)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, of which only the last token is read."""
        return self.rows[context[-1]]
