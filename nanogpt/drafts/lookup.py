"""Drafts without a model: they copy from the text itself.

If the last few tokens occurred before, such a draft is sure that what followed then follows now.
All q are one-hot: nothing is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.speculative import Draft


class PromptLookupDraft(Draft):
    """Guesses what followed the first earlier occurrence of the last few tokens (Saxena 2023).

    The last `most` tokens are looked for in the text before them, then fewer.
    Where nothing is found, the last token is guessed again: the target decides anyway.
    Raises ValueError for most < 1, or a vocabulary of more than 256 tokens.
    """

    def __init__(self, vocab_size: int, most: int = 3):
        if most < 1:
            raise ValueError(f"most is {most}; it must be at least 1")
        self.vocab_size, self.most = vocab_size, most
        self.rows = one_hot_rows(vocab_size)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`: 1 for one token."""
        text = bytes(context)
        for n in range(min(self.most, len(text) - 1), 0, -1):
            found = text.find(text[-n:], 0, len(text) - 1)  # it may overlap itself
            if found >= 0:
                return self.rows[text[found + n]]
        return self.rows[text[-1]]


class WideLookupDraft(Draft):
    """PromptLookupDraft for any vocabulary: a token is a character of a text, not a byte.

    Raises ValueError for most < 1, and for more tokens than there are characters.
    """

    def __init__(self, vocab_size: int, most: int = 3):
        if most < 1:
            raise ValueError(f"most is {most}; it must be at least 1")
        if vocab_size > sys.maxunicode:
            raise ValueError(f"{vocab_size} tokens; there are {sys.maxunicode} characters")
        self.vocab_size, self.most = vocab_size, most

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`: 1 for one token."""
        text, guess = "".join(map(chr, context)), context[-1]
        for n in range(min(self.most, len(text) - 1), 0, -1):
            found = text.find(text[-n:], 0, len(text) - 1)  # it may overlap itself
            if found >= 0:
                guess = context[found + n]
                break
        q = torch.zeros(self.vocab_size, dtype=torch.float64)
        q[guess] = 1
        return q


class SuffixDraft(Draft):
    """Guesses what followed the latest occurrence of the longest repeated end of the text.

    Ends shorter than `least` tokens are left to another draft, if one is given (after the idea of
    SuffixDecoding, Oliaro et al. 2024). Raises ValueError for least < 1, for a vocabulary of more
    than 256 tokens, or one that is not the other draft's.
    """

    def __init__(self, vocab_size: int, least: int = 1, otherwise=None):
        if least < 1:
            raise ValueError(f"least is {least}; it must be at least 1")
        if otherwise is not None and otherwise.vocab_size != vocab_size:
            raise ValueError(
                f"the other draft has {otherwise.vocab_size} tokens and this one {vocab_size}; "
                "they must share one tokenizer"
            )
        self.vocab_size, self.least, self.otherwise = vocab_size, least, otherwise
        self.rows = one_hot_rows(vocab_size)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`: 1 for one token, or the other draft's q."""
        text, guess, n = bytes(context), None, self.least
        while n < len(text):  # an end that has not occurred has no longer one that has
            found = text.rfind(text[-n:], 0, len(text) - 1)
            if found < 0:
                break
            guess = text[found + n]
            while n < len(text) and found > 0 and text[found - 1] == text[-n - 1]:
                found, n = found - 1, n + 1  # as far back as the two go together
            n += 1
        if guess is None and self.otherwise is not None:
            return self.otherwise.get_probs(context)
        return self.rows[text[-1] if guess is None else guess]


def one_hot_rows(vocab_size: int) -> list[Tensor]:
    """Row i (V,) is 1 at token i. Raises ValueError for more tokens than a byte can tell apart."""
    if vocab_size > 256:
        raise ValueError(
            f"the vocabulary has {vocab_size} tokens; these drafts search bytes, so 256 at most"
        )
    return list(torch.eye(vocab_size, dtype=torch.float64))
