# Judge it and race it: nanogpt arena my_draft.py
"""A draft of your own, to begin with: what follows the last two characters, counted.

Change what you like; the arena asks for no more than `make_draft`. It is given the text to learn
from, and a third argument, if you write one, is the target itself. What it returns inherits `Draft`
and has `vocab_size` and `get_probs(context)`: all tokens so far, list[int] -> q, the probabilities
that the next token is drawn from, a tensor (V,) of float64 that sums to 1.
"""

from __future__ import annotations

import torch

from nanogpt.speculative import Draft

K = 4  # guesses a round. POLICY = "acceptance" chooses it; RULE = "block" judges them as a block


class TrigramDraft(Draft):
    """Counts of three characters in a row, mixed with those of two where three are rare."""

    def __init__(self, tokens, V):
        pairs = torch.bincount(tokens[:-1] * V + tokens[1:], minlength=V**2)
        two = pairs.view(V, V).double() + 1  # the added one lets every token be drawn
        two /= two.sum(-1, keepdim=True)
        triples = (tokens[:-2] * V + tokens[1:-1]) * V + tokens[2:]
        three = torch.bincount(triples, minlength=V**3).view(V, V, V) + 4 * two
        three /= three.sum(-1, keepdim=True)
        self.vocab_size = V
        self.two, self.three = list(two), list(three.view(V * V, V))

    def get_probs(self, context):
        """q (V,) of the token after `context`, of which the last two tokens are read."""
        if len(context) < 2:
            return self.two[context[-1]]
        return self.three[context[-2] * self.vocab_size + context[-1]]


def make_draft(tokens, vocab_size):
    """Your draft. tokens (N,) int64: the text to learn from, none of the prompts in it."""
    return TrigramDraft(tokens, vocab_size)
