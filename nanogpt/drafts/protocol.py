"""How a draft's chain becomes a tree, so that batches and servers take any draft.

A `Draft` guesses one token after another (`speculative_generate` takes one); a `Proposer` guesses a
tree for a text, or looks at what the target made of it (`tree_generate`). `lifted` makes the second
of the first.

Three words: K is how deep a draft guesses; *nodes*, how many guesses of a text a pass may hold; a
*policy* chooses one of them, round by round. What a draft remembers of one text is kept by the text
(`text.memory`), so that one draft serves many.
"""

from __future__ import annotations

from collections.abc import Callable

from nanogpt.generate import check_whole
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft, check_draft, draft_chain
from nanogpt.trees.tree import Proposer, ReadText, Tree


class Chain(Proposer):
    """A draft as a proposer: a chain of K tokens, or of as many as its step draws.

    step: what draws it, as in Steps. `adaptive` of a policy heeds no K: it draws as many as the
    text has room for, and what is beyond `most` goes unread.
    Raises ValueError for what is no draft, or K < 0.
    """

    def __init__(self, draft: Draft, K: int = 4, step: Callable = draft_chain):
        check_whole(0, K=K)  # 0: no guesses
        check_draft(draft)
        self.draft, self.K, self.step = draft, K, step
        self.vocab_size = draft.vocab_size

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of at most `most` tokens, q (N, V)."""
        own = text.memory(self, self.draft.fresh)
        tokens, q = self.step(own, text, min(self.K, most), sampling, rng)
        return Tree.chain(tokens[:most], q[:most])  # looks at no token: exact


def lifted(draft: Draft | Proposer, K: int = 4, step: Callable = draft_chain) -> Proposer:
    """The draft itself if it is a proposer, with a depth of its own, or else its chains."""
    return draft if isinstance(draft, Proposer) else Chain(draft, K, step)
