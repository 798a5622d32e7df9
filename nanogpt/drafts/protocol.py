"""What is asked of a draft, and how a chain becomes a tree.

`Draft`: `vocab_size` and `get_probs(context)`, q of the next token; `speculative_generate` takes
one. `ChainDraft`: one that draws whole chains itself, sooner. `Proposer`: what guesses a tree for a
text, or looks at what the target made of it; `tree_generate` takes one. Batches and servers take
any of them: `lifted` makes a proposer of a draft.

Three words: K is how deep a draft guesses; *nodes*, how many guesses of a text a pass may hold; a
*policy* chooses one of them, round by round. What a draft remembers of one text is kept by the text
(`text.memory`), so that one draft serves many.
"""

from __future__ import annotations

from nanogpt.generate import ChainDraft, Draft, Proposer, Text, Tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Policy, draw_chain

__all__ = ["Chain", "ChainDraft", "Draft", "Proposer", "lifted"]


class Chain(Proposer):
    """A draft with get_probs as a proposer: a chain of K tokens, or of as many as a policy says."""

    def __init__(self, draft: Draft, K: int = 4, policy: Policy | None = None):
        self.draft, self.K, self.policy = draft, K, policy
        self.vocab_size = draft.vocab_size
        self.new = draft.fresh if isinstance(draft, Draft) else lambda: draft

    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of at most `most` tokens, q (N, V)."""
        K, more = self.policy(text.rounds) if self.policy else (self.K, None)
        own = text.memory(self, self.new)
        return Tree.chain(*draw_chain(own, text.tokens, min(K, most), sampling, rng, more))


def lifted(draft: Draft | Proposer, K: int = 4, policy: Policy | None = None) -> Proposer:
    """The draft itself if it is a proposer, with a depth of its own, or else its chains."""
    return draft if isinstance(draft, Proposer) else Chain(draft, K, policy)
