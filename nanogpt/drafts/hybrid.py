"""Two drafts, and a rule which of them guesses: settled before either does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import Proposer, ReadText, Tree


def repeats(context: Sequence[int], least: int = 4) -> bool:
    """Whether the last `least` tokens of `context` stand in it once more, further ahead."""
    end = list(context[-least:])
    return any(list(context[i : i + least]) == end for i in range(len(context) - least))


class Hybrid(Proposer):
    """Asks one draft where it knows the context, the other elsewhere, one of them a round.

    knows(context) settles it, and sees no guess. To have both guess, and keep the guesses that came
    out better, is biased.
    target: that of a draft which goes on from its target's own passes.
    Raises ValueError for drafts of different vocabularies, that read different streams, or that go
    on from different targets.
    """

    def __init__(
        self, knows: Callable[[Sequence[int]], bool], first: Proposer, otherwise: Proposer
    ):
        if otherwise.vocab_size != first.vocab_size:
            raise ValueError(
                f"one draft has {first.vocab_size} tokens and the other {otherwise.vocab_size}; "
                "they must share one tokenizer"
            )
        reading = [draft for draft in (first, otherwise) if draft.reads]
        self.reads = bool(reading)
        self.layers = reading[0].layers if reading else None
        if any(draft.layers != self.layers for draft in reading):
            raise ValueError("the drafts read the streams after different layers; use one")
        own = [d.target for d in (first, otherwise) if d.target is not None]
        self.target = own[0] if own else None
        if any(other.blocks is not self.target.blocks for other in own):
            raise ValueError("the drafts go on from two different targets; use one")
        self.knows, self.first, self.otherwise = knows, first, otherwise
        self.vocab_size = first.vocab_size

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """The guesses of one of the two."""
        draft = self.first if self.knows(text.tokens) else self.otherwise
        return draft.propose(text, most, sampling, rng)
