"""What a request asks beside a sampling: a grammar, penalties, a bias, stop strings, logprobs.

All of it depends on the tokens before, so each row of a pass has rules of its own: those after the
guesses that lead to it. They change the target's logits, and what a draft says; the loops, and the
rules that accept or reject, know nothing of them, and so the reply has the distribution of plain
decoding under the same constraints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanogpt.cache import KVCache
from nanogpt.generate import Round, autoregressive_rounds
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.grammar import Grammar
from nanogpt.speculative import CHAIN, Draft, Steps, speculative_rounds, verify_candidates
from nanogpt.trees.loop import TREE, tree_rounds, verify_tree
from nanogpt.trees.tree import Proposer, ReadGeneration, ReadText, T, Tree, TreeRound


class Past(NamedTuple):
    """What the rules know of a reply so far: the grammar's state, and how often each token came.

    A value: what guesses would make of it is another one, and there is nothing to take back.
    """

    state: int = 0
    counts: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class Constraints:
    """What a request asks beside a sampling; each changes logits, before temperature and top-p.

    grammar: what the reply must match; it ends where nothing may follow. bias: {token: what is
    added to its logit}. presence: taken from the logit of each token that the reply holds;
    frequency: as often as it holds it (both as OpenAI's API has them). repetition: the logits of
    tokens in prompt or reply are divided by it if positive, else multiplied (Keskar et al. 2019,
    CTRL, as in transformers). min_p: tokens whose probability is below min_p times the largest are
    forbidden (here at temperature 1, as in llama.cpp; elsewhere after the temperature). stop:
    strings, as tokens, that end the reply and are not part of it. logprobs: whether log p of each
    place is kept.
    Raises ValueError for numbers that are not finite, or out of range, and for an empty stop.
    """

    grammar: Grammar | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    min_p: float = 0.0
    stop: Sequence[Sequence[int]] = ()
    logprobs: bool = False

    def __post_init__(self):
        numbers = {"presence": self.presence, "frequency": self.frequency}
        numbers |= {f"bias of token {token}": by for token, by in self.bias.items()}
        for name, number in numbers.items():
            if not math.isfinite(number):
                raise ValueError(f"{name} is {number}; it must be finite (0 changes nothing)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; it must be from 0 (no change) to 1")
        if not (math.isfinite(self.repetition) and self.repetition > 0):
            raise ValueError(
                f"repetition is {self.repetition}; it must be above 0 (1 changes nothing)"
            )
        if isinstance(self.stop, str) or any(isinstance(s, (str, int)) for s in self.stop):
            raise ValueError("stop is a list of strings as tokens; write [tokenizer.encode(…)]")
        if any(len(string) == 0 for string in self.stop):
            raise ValueError("a stop string is empty; it would end every reply before its start")

    @property
    def change_logits(self) -> bool:
        """Whether any of them does: stop strings and logprobs do not."""
        numbers = self.presence, self.frequency, self.min_p, self.repetition
        return self.grammar is not None or bool(self.bias) or numbers != (0, 0, 0, 1)

    @property
    def by_row(self) -> bool:
        """Whether the rows of a pass are looked at one by one."""
        return self.change_logits or self.logprobs

    @property
    def free(self) -> bool:
        """Whether nothing is asked at all."""
        return not (self.by_row or self.stop)

    def check(self, vocab_size: int) -> None:
        """Raise ValueError for tokens that there are not, or where there is nothing to write."""
        if self.grammar is not None and self.grammar.vocab_size != vocab_size:
            raise ValueError(
                f"the grammar is over {self.grammar.vocab_size} tokens and the target has "
                f"{vocab_size}; make it with this model's tokenizer"
            )
        if self.ended(Past()):
            raise ValueError("the grammar matches the empty text alone; there is nothing to write")
        for token in [*self.bias, *(token for string in self.stop for token in string)]:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"bias or stop names token {token!r}; tokens are 0 to {vocab_size - 1}"
                )

    def after(self, past: Past, token: int) -> Past:
        """The past with one token more."""
        state = past.state if self.grammar is None else int(self.grammar.next[past.state, token])
        return Past(state, {**past.counts, token: past.counts.get(token, 0) + 1})

    def logits(self, logits: Tensor, pasts: Sequence[Past], prompt: Collection[int] = ()) -> Tensor:
        """logits (R, V), each row after its own past -> what the rules make of them, float64.

        prompt: the tokens that count for `repetition` beside those of the reply. A forbidden token
        has -inf. Where the grammar is over, or was left, a row is free: nobody reads it.
        """
        if not (self.change_logits and pasts):
            return logits.double()
        changed = logits.double().numpy().copy()
        if (self.presence, self.frequency, self.repetition) != (0, 0, 1):
            counts = np.zeros_like(changed)
            for row, past in zip(counts, pasts, strict=True):
                row[list(past.counts)] = [*past.counts.values()]
            if self.repetition != 1:
                seen = counts > 0
                seen[:, list(prompt)] = True
                changed[seen] *= np.where(changed[seen] > 0, 1 / self.repetition, self.repetition)
            changed -= self.frequency * counts + self.presence * (counts > 0)
        changed[:, list(self.bias)] += [*self.bias.values()]
        if self.grammar is not None:
            allowed = self.grammar.allowed[[past.state for past in pasts]]  # (R, V)
            changed = np.where(allowed, changed, -np.inf)
        if self.min_p > 0:
            least = changed.max(-1, keepdims=True) + math.log(self.min_p)
            changed = np.where(changed >= least, changed, -np.inf)
        return torch.from_numpy(changed)

    def ruled(self, q: Tensor, pasts: Sequence[Past], prompt: Collection[int] = ()) -> Tensor:
        """What the rules make of a draft's q (R, V), each row after its own past.

        All that are allowed are as likely where the draft has none of them.
        """
        changed = self.logits(q.log(), pasts, prompt)
        none = ~changed.amax(-1).isfinite()  # (R,)
        if none.any():
            states = [past.state for past in pasts]
            allowed = self.grammar.allowed[states] if self.grammar else np.ones(q.shape, bool)
            changed[none] = torch.from_numpy(np.where(allowed, 0.0, -np.inf))[none]
        return changed.softmax(-1)

    def ended(self, past: Past) -> bool:
        """Whether the grammar is over: the reply matches, and nothing may follow."""
        return self.grammar is not None and bool(self.grammar.over[past.state])

    def found(self, reply: Sequence[int]) -> int | None:
        """How many tokens come before a stop string that ends `reply`; None if none does."""
        ends = [len(s) for s in self.stop if list(reply[-len(s) :]) == list(s)]
        return len(reply) - max(ends) if ends else None

    def held_back(self, reply: Sequence[int]) -> int:
        """How many of the last tokens may yet become a stop string: not to be sent before.

        The longest end of `reply` that is a beginning of one.
        """
        longest = max((len(s) for s in self.stop), default=0)
        for n in range(min(longest - 1, len(reply)), 0, -1):
            end = list(reply[len(reply) - n :])
            if any(list(s[:n]) == end for s in self.stop if len(s) > n):
                return n
        return 0


FREE = Constraints()  # nothing is asked


class RowSampling:
    """A reply's sampling, for the rows of one pass: each comes after other tokens.

    tree: the guesses of the pass, by default none, as in plain decoding; skip: how many rows come
    before the current token's.
    """

    def __init__(self, sampling: Sampling, reply: Reply, tree: Tree | None = None, skip: int = 0):
        self.sampling, self.reply, self.tree, self.skip = sampling, reply, tree, skip

    def after(self, candidates: Sequence[int]) -> RowSampling:
        """The same for a pass over a chain of guesses."""
        guesses = Tree.chain(list(candidates), torch.empty(0))
        return RowSampling(self.sampling, self.reply, guesses)

    def probs(self, logits: Tensor) -> Tensor:
        """logits (…, R, V) -> p (…, R, V), float64: after the current token, then after each node.

        Rows before them, and those after, are sampled without constraints.
        """
        reply, rules = self.reply, self.reply.constraints
        pasts = [reply.past]
        if self.tree is not None:
            for token, parent in zip(self.tree.tokens, self.tree.parents, strict=True):
                pasts.append(rules.after(pasts[parent + 1], token))
        rows = logits.detach().cpu().double().flatten(0, -2)
        own = rows[self.skip : self.skip + len(pasts)]  # none of them in a part of a prompt
        reply.said = own.log_softmax(-1)
        ruled = rules.logits(own, pasts[: len(own)], reply.prompt)
        rows = torch.cat([rows[: self.skip], ruled, rows[self.skip + len(own) :]])
        return self.sampling.probs(rows).reshape(logits.shape)


def for_pass(text: ReadText, sampling: Sampling, tree: Tree, skip: int = 0) -> Sampling:
    """What makes p of a pass's logits: the sampling, or that of a reply's rows after these guesses.

    skip: how many rows of the pass come before the current token's.
    """
    if isinstance(text, Reply) and text.constraints.by_row:
        return RowSampling(sampling, text, tree, skip)  # type: ignore[return-value]  # it has probs
    return sampling


@dataclass(frozen=True, kw_only=True)
class Completion(ReadGeneration):
    """A generation, and what an API says of it.

    finish_reason: "stop" after a stop string or token, or where the grammar is over; "length" where
    all tokens that were asked for are there; None of a reply that was broken off. logprobs (n, V),
    if they were asked for: log p of whatever might have stood there, as the target has it, before
    temperature, penalties and mask. processed (n, V): after all of them, what was drawn from.
    """

    finish_reason: str | None
    logprobs: Tensor
    processed: Tensor


class Obedient(Draft):
    """A draft's q under the constraints of one reply: what is forbidden is not guessed.

    Where one token alone may come, it is guessed without asking. Exact, as without it: the q that
    is claimed is the q that is drawn from.
    """

    def __init__(self, draft: Draft, reply: Reply):
        self.draft, self.reply, self.vocab_size = draft, reply, draft.vocab_size
        self.pasts: dict[tuple[int, ...], Past] = {}

    def past(self, context: Sequence[int]) -> Past:
        """What the rules know after `context`: the reply so far, and guesses."""
        n = len(self.reply.tokens)
        if self.pasts.get(()) is not self.reply.past:
            self.pasts = {(): self.reply.past}
        guesses = tuple(context[n:])
        if guesses not in self.pasts:
            before = self.past(context[:-1])
            self.pasts[guesses] = self.reply.constraints.after(before, guesses[-1])
        return self.pasts[guesses]

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,), float64; all equal among the tokens allowed where the draft has none of them."""
        if (q := self.forced(context)) is not None:
            return q
        said, reply = self.draft.get_probs(context)[None], self.reply
        return reply.constraints.ruled(said, [self.past(context)], reply.prompt)[0]

    def forced(self, context: Sequence[int]) -> Tensor | None:
        """q (V,) where one token alone may come."""
        if (grammar := self.reply.constraints.grammar) is None:
            return None
        allowed = grammar.allowed[self.past(context).state]
        return torch.from_numpy(allowed.astype(float)) if allowed.sum() == 1 else None


class Reply(ReadText):
    """A text that is written under constraints, and what an API says of it.

    The first arguments are those of Text. Raises ValueError as Text does, and for constraints that
    name tokens which there are not, or leave nothing to write.
    """

    def __init__(
        self,
        target: GPTLanguageModel,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        stop_token: int | None = None,
        constraints: Constraints = FREE,
    ):
        super().__init__(target, prompt_tokens, max_new_tokens, stop_token)
        constraints.check(target.config.vocab_size)
        self.constraints, self.past = constraints, Past()
        self.prompt = frozenset(self.tokens)
        self.finish_reason: str | None = None
        self.said = torch.empty(0)  # log p of the last pass's rows
        self.raw: list[Tensor] = []  # of each token, (V,)
        self.processed: list[Tensor] = []

    @property
    def done(self) -> bool:
        """True once all tokens asked for are there, or something has ended it."""
        return self.finish_reason is not None or super().done

    @property
    def sendable(self) -> list[int]:
        """The new tokens, without those that a stop string may yet take back."""
        reply = self.tokens[self.n_prompt :]
        held = 0 if self.done else self.constraints.held_back(reply)
        return reply[: len(reply) - held]

    def memory(self, draft, new: Callable[[], T]) -> T:
        """What ReadText.memory keeps; a Draft is asked under the constraints.

        What else guesses (heads, EAGLE) does not know of them: exact, with more dead guesses.
        """
        if not self.constraints.change_logits:
            return super().memory(draft, new)

        def bound():
            own = new()
            return Obedient(own, self) if isinstance(own, Draft) else own

        return super().memory(draft, bound)

    def take(self, done: Round, past_kvs: KVCache, hidden: Tensor | None = None) -> None:
        """Add a round's tokens, as far as the reply goes."""
        before = len(self.tokens)
        super().take(done, past_kvs, hidden)
        new = self.tokens[before:]
        if not self.constraints.free:
            del self.tokens[before:]
            self.take_tokens(new, done)
        if self.finish_reason is None and super().done:
            self.finish_reason = "stop" if new[-1] == self.stop_token else "length"

    def take_tokens(self, new: Sequence[int], done: Round) -> None:
        """Add the tokens of a round one by one, up to the first that ends the reply."""
        for token, row in zip(new, self.rows_of(done), strict=False):
            self.tokens.append(token)
            self.past = self.constraints.after(self.past, token)
            if self.constraints.logprobs:
                self.raw.append(self.said[row])
                self.processed.append(done.target_probs[row].log())
            found = self.constraints.found(self.tokens[self.n_prompt :])
            if found is not None:
                del self.tokens[self.n_prompt + found :]
                del self.raw[found:], self.processed[found:]
            if found is not None or self.constraints.ended(self.past):
                self.finish_reason = "stop"
                return

    @staticmethod
    def rows_of(done: Round) -> list[int]:
        """The row of p that each emitted token was judged by, or drawn from."""
        if isinstance(done, TreeRound):
            return [0, *(node + 1 for node in done.path)]
        return list(range(len(done.emitted)))

    def generation(self) -> Completion:
        """The new tokens, their trace, and what an API says of them."""
        made, V = super().generation(), self.target.config.vocab_size
        raw, processed = (
            torch.stack(rows) if rows else torch.empty(0, V, dtype=torch.float64)
            for rows in (self.raw, self.processed)
        )
        return Completion(
            **vars(made), finish_reason=self.finish_reason, logprobs=raw, processed=processed
        )


def verify_candidates_for(target, current_token, candidates, past_kvs, sampling, unread=()):
    """verify_candidates by a RowSampling: each row under the constraints after its own guesses."""
    rows = sampling.after(candidates)
    return verify_candidates(target, current_token, candidates, past_kvs, rows, unread)


def verify_tree_for(target, text, tree, sampling, layers=None) -> tuple[Tensor, Tensor, KVCache]:
    """verify_tree, each row under the constraints after the path to its node."""
    return verify_tree(target, text, tree, for_pass(text, sampling, tree), layers)


def by_rows(steps: Steps) -> Steps:
    """A chain's steps for a RowSampling; the draft, Obedient if need be, gets the plain one."""

    def draft(own, reply, K, sampling, rng):
        return steps.draft(reply.memory(own, lambda: own), reply, K, sampling.sampling, rng)

    return replace(steps, draft=draft, verify=verify_candidates_for)


def complete(
    target: GPTLanguageModel,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    constraints: Constraints = FREE,
    draft: Draft | Proposer | None = None,
    K: int = 4,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
    steps: Steps | None = None,
) -> Completion:
    """The target's reply to the prompt under constraints: plain, or with either kind of draft.

    The other arguments and the errors are those of speculative_generate; steps are by default
    CHAIN, or TREE for a Proposer. With a lossless rule, the reply has the distribution of plain
    decoding under the same constraints, whatever the draft.
    """
    reply = Reply(target, prompt_tokens, max_new_tokens, stop_token, constraints)
    rows: Sampling = sampling
    if constraints.by_row:
        rows = RowSampling(sampling, reply)  # type: ignore[assignment]  # it has probs
    if draft is None:
        rounds = autoregressive_rounds(reply, rows, rng)
    elif isinstance(draft, Proposer):
        steps = replace(steps or TREE, verify=verify_tree_for)
        rounds = tree_rounds(reply, draft, sampling, rng, steps)
    else:
        steps = steps or CHAIN
        steps = by_rows(steps) if constraints.by_row else steps
        rounds = speculative_rounds(reply, draft, K, rows, rng, steps)
    for _ in rounds:
        pass
    return reply.generation()
