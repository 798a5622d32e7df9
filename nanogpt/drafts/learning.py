"""Drafts that learn while they serve, from what every pass says anyway.

A pass over K guesses says the target's p at each place it was asked about, and that is what a draft
is distilled from. A `LearningDraft` looks, before it guesses, at the rounds of its text that it has
not learnt from yet: a table adds their rows up, a net takes a step. So nothing changes between a
draw and its verdict, and the q that a guess is judged by is the one that it was drawn from.

What is learnt is the text's own and is dropped with it, or it is shared by all texts that the
drafter serves. Then the guesses of one text depend on what others wrote: one drafter for each
tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nanogpt.generate import Round, check_whole
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft, check_draft
from nanogpt.trees.tree import Proposer, ReadText, Tree, TreeRound

Loss = Callable[[Tensor, Tensor], Tensor]


class Student(Draft):
    """A draft that can be taught. every: how many rounds of a text make a lesson."""

    every: int = 1

    def learn(self, tokens: Sequence[int], probs: Tensor) -> None:
        """Take a lesson: probs (n, V) is the target's p of each of the last n `tokens`."""
        raise NotImplementedError

    def copy(self) -> Student:
        """One that knows as much, and goes on to learn for itself."""
        raise NotImplementedError

    def reader(self) -> Draft:
        """What guesses for one text, with all that is learnt."""
        return self.fresh()


class SoftTable(Student):
    """A table that adds p up after each context, over what another draft says.

    The last `first` … `order` tokens are a context each. q is `base`'s, then, from the shortest
    context to the longest one that was met: q = (prior · q + the sum of its rows) / (prior + their
    number). These are counts in which a place adds a distribution instead of a token.
    It only grows: by at most order - first + 1 rows of V numbers for each token that it was told
    of. A shared one lives as long as its drafter, so mind its memory where V is large.
    Raises ValueError unless 0 <= first <= order and prior > 0.
    """

    def __init__(self, base: Draft, first: int = 3, order: int = 6, prior: float = 1.0):
        if not 0 <= first <= order or not prior > 0:
            raise ValueError(
                f"first, order and prior are {first}, {order} and {prior}; it takes "
                "0 <= first <= order and prior > 0"
            )
        check_draft(base)
        self.base, self.vocab_size = base, base.vocab_size
        self.first, self.order, self.prior = first, order, prior
        self.sums: dict[tuple[int, ...], np.ndarray] = {}

    def contexts(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The contexts that `tokens` end with, the shortest first."""
        longest = min(self.order, len(tokens))
        return [tuple(tokens[len(tokens) - n :]) for n in range(self.first, longest + 1)]

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`."""
        q = self.base.get_probs(context).numpy()
        for known in self.contexts(context):
            if known not in self.sums:
                break  # nor was a longer one met
            q = self.prior * q + self.sums[known]
            q = q / q.sum()
        return torch.from_numpy(q)

    def learn(self, tokens: Sequence[int], probs: Tensor) -> None:
        """Add each row to the sums of the contexts before its place."""
        for place, row in enumerate(probs.numpy(), start=len(tokens) - len(probs)):
            for context in self.contexts(tokens[:place]):
                self.sums[context] = self.sums.get(context, 0) + row

    def fresh(self) -> SoftTable:
        """The same table for another text: what one is told, the other knows."""
        base = self.base.fresh()
        other = SoftTable(base, self.first, self.order, self.prior)
        other.sums = self.sums
        return other

    def copy(self) -> SoftTable:
        """One that knows as much, and goes on to learn for itself."""
        other = self.fresh()
        other.sums = dict(self.sums)  # a sum is replaced, never changed
        return other


def overlap(log_q: Tensor, p: Tensor) -> Tensor:
    """Σ min(p, q) of each row (n,): the chance that a guess is kept."""
    return torch.minimum(log_q.exp(), p).sum(-1)


def forward_kl(log_q: Tensor, p: Tensor) -> Tensor:
    """KL(p‖q) of rows (n, V), their mean. Of one-hot p: the cross-entropy of these tokens."""
    return F.kl_div(log_q, p, reduction="none").sum(-1).mean()


def reverse_kl(log_q: Tensor, p: Tensor) -> Tensor:
    """KL(q‖p) of rows (n, V), their mean. A p of 0 counts as 1e-9."""
    return (log_q.exp() * (log_q - p.clamp_min(1e-9).log())).sum(-1).mean()


def rejection(log_q: Tensor, p: Tensor) -> Tensor:
    """1 - Σ min(p, q) of rows (n, V), their mean: the chance that a guess is rejected."""
    return 1 - overlap(log_q, p).mean()


def hybrid(log_q: Tensor, p: Tensor, eta: float = 3.0) -> Tensor:
    """λ KL(p‖q) + (1 - λ) TV of rows (n, V), their mean; λ = exp(-η Σ min(p, q)), held fixed.

    The LK hybrid of Samarin et al. 2026: KL where p and q hardly meet, TV where they do.
    """
    kept = overlap(log_q, p)
    weight = (-eta * kept.detach()).exp()
    kl = F.kl_div(log_q, p, reduction="none").sum(-1)
    return (weight * kl + (1 - weight) * (1 - kept)).mean()


class NetStudent(Student):
    """A small transformer that takes a step of Adam in each lesson.

    draft: a TransformerDraft, say; its model itself learns, so give a copy of one that is to stay.
    A step looks at the places of the lesson once, in the window that the text ends with. every:
    rounds of a text in a lesson; rate: of Adam; loss: of log q and p, both (n, V).
    """

    def __init__(self, draft: Draft, every: int = 8, rate: float = 2e-3, loss: Loss = forward_kl):
        self.draft, self.vocab_size = draft, draft.vocab_size
        self.every, self.rate, self.loss = every, rate, loss
        weights = draft.model.requires_grad_(True).parameters()
        self.optimizer = torch.optim.Adam(weights, rate, fused=True)
        self.lessons = 0

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all of which is read."""
        return self.reader().get_probs(context)

    def learn(self, tokens: Sequence[int], probs: Tensor) -> None:
        """A step towards those of the rows (n, V) that the window holds."""
        model, size = self.draft.model, self.draft.model.config.block_size
        half = max(1, size // 2)
        start = max(0, -(-(len(tokens) - 1 - size) // half) * half)  # as the draft reads it
        n = min(len(probs), len(tokens) - 1 - start)
        with torch.inference_mode(False), torch.enable_grad():
            idx = torch.tensor([list(tokens[start:-1])], device=model.device)
            log_q = model(idx)[0][0, -n:].log_softmax(-1)
            p = probs[-n:].clone().to(log_q.device, log_q.dtype)
            self.optimizer.zero_grad()
            self.loss(log_q, p).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
        self.lessons += 1

    def copy(self) -> NetStudent:
        """One with the same weights, and an optimizer that begins anew."""
        with torch.inference_mode(False):
            own = deepcopy(self.draft.fresh())
            return NetStudent(own, self.every, self.rate, self.loss)

    def reader(self) -> Draft:
        """A reader with a cache, for one text."""
        return NetReader(self)


class NetReader(Draft):
    """Reads one text with a net that learns: what other weights made of it is not kept."""

    def __init__(self, student: NetStudent):
        self.student, self.vocab_size = student, student.vocab_size
        self.draft, self.lessons = student.draft.fresh(), student.lessons

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, at temperature 1."""
        if self.lessons != self.student.lessons:
            self.draft = self.student.draft.fresh()
            self.lessons = self.student.lessons
        return self.draft.get_probs(context)


def said(done: Round) -> Tensor:
    """The target's p (n, V) of each token that a round emitted."""
    if not isinstance(done, TreeRound):
        return done.target_probs[: len(done.emitted)]
    return done.target_probs[[0, *(node + 1 for node in done.path)]]


def unsampled(probs: Tensor, sampling: Sampling) -> Tensor:
    """p (n, V) before its temperature, where there is a way back: not from 0.

    What top_k and top_p have cut off stays 0.
    """
    if sampling.temperature == 0:
        return probs
    return Sampling(1 / sampling.temperature).of_probs(probs)


@dataclass
class Pupil:
    """What a drafter keeps of one text: who learns, who guesses, and what was learnt from.

    rounds: how many of the text's; place: where in its tokens the next of them begins.
    """

    student: Student
    reader: Draft
    place: int
    rounds: int = 0

    def study(self, text: ReadText, sampling: Sampling) -> None:
        """Learn from the rounds that are new, if there are enough for a lesson."""
        new = text.rounds[self.rounds :]
        if len(new) < self.student.every:
            return
        probs = torch.cat([said(done) for done in new])
        self.place += len(probs)
        self.rounds = len(text.rounds)
        self.student.learn(text.tokens[: self.place], unsampled(probs, sampling))


class LearningDraft(Proposer):
    """Guesses chains of K, and learns from every round of a text before it guesses again.

    shared: whether all texts teach one student, and are guessed by it. Else each has a copy of its
    own, which goes when the text does. The last rounds of a text teach nothing: nobody asks again.
    Raises ValueError for K < 1.
    """

    def __init__(self, student: Student, K: int = 4, shared: bool = False):
        check_whole(1, K=K)
        self.student, self.K, self.shared = student, K, shared
        self.vocab_size = student.vocab_size

    def pupil(self, text: ReadText) -> Pupil:
        """A new text's."""
        student = self.student if self.shared else self.student.copy()
        return Pupil(student, student.reader(), text.n_prompt)

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of at most `most` tokens, q (N, V)."""
        own = text.memory(self, lambda: self.pupil(text))
        own.study(text, sampling)
        drawn = own.reader.draw(text.tokens, min(self.K, most), sampling, rng)
        return Tree.chain(*drawn)
