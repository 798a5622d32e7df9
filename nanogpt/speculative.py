"""Speculative decoding: draft, verify, accept or reject, trim.

p is the target's probability, q the draft's, as in Leviathan et al. 2023 (Algorithm 1) and Chen
et al. 2023 (Algorithm 2); K is the number of drafted tokens (their γ and K).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nanogpt.cache import KVCache, trim_kv_cache
from nanogpt.generate import Generation, Round, Text, check_whole
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling, check_probabilities


class Draft:
    """What guesses, token by token. Yours inherits it, and brings vocab_size and get_probs.

    fresh, draw: for one that remembers what it has read, or draws a whole chain sooner.
    """

    vocab_size: int

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all tokens so far, at temperature 1; float64."""
        raise NotImplementedError

    def fresh(self) -> Draft:
        """This draft for another text, before it has read anything."""
        return self

    def draw(
        self, context: Sequence[int], K: int, sampling: Sampling, rng: RandomSource
    ) -> tuple[list[int], Tensor]:
        """What draft_tokens returns, of K tokens or fewer."""
        return draft_tokens(self, context, K, sampling, rng)


def draft_tokens(
    draft: Draft, context: Sequence[int], K: int, sampling: Sampling, rng: RandomSource
) -> tuple[list[int], Tensor]:
    """K tokens drawn one after another from the draft, and the q that each was drawn from.

    Returns candidates (K tokens) and draft_probs (K, V), with `sampling` applied to the draft's
    probabilities as it is to the target's logits: the claimed q is the sampled q.
    """
    tokens, draft_probs = list(context), []
    for _ in range(K):
        q = sampling.of_probs(draft.get_probs(tokens))  # (V,)
        draft_probs.append(q)
        tokens.append(rng.categorical(q))
    q = torch.stack(draft_probs) if draft_probs else torch.empty(0, draft.vocab_size).double()
    return tokens[len(context) :], q


@torch.no_grad()
def verify_candidates(
    target: GPTLanguageModel,
    current_token: int,
    candidates: Sequence[int],
    past_kvs: KVCache | None,
    sampling: Sampling,
    unread: Sequence[int] = (),
) -> tuple[Tensor, KVCache]:
    """The target's p for each candidate and for the token after them, from one pass.

    unread: tokens before the current one that the cache does not hold yet; they enter as well.
    Returns target_probs (K+1, V), row i being p after the current token and the first i
    candidates, and the cache with all tokens of the pass in it.
    """
    idx = torch.tensor([[*unread, current_token, *candidates]], device=target.device)  # (1, T)
    logits, _, new_kvs = target(idx, past_kvs=past_kvs)
    return sampling.probs(logits[0, len(unread) :]), new_kvs


def accept_reject(
    candidates: Sequence[int], draft_probs: Tensor, target_probs: Tensor, rng: RandomSource
) -> list[int]:
    """The tokens that the round emits: 1 … K+1 of them, distributed as the target's own.

    draft_probs (K, V) are the q of the K candidates, target_probs (K+1, V) the p.
    Candidate i is accepted with probability min(1, p/q). The first rejected one is replaced by a
    token drawn from the residual, max(0, p - q) normalised, and ends the round; if none is
    rejected, a bonus token is drawn from the last row of p.
    Raises ValueError if a distribution is none, or a candidate has q = 0.
    """
    p, q = target_probs.numpy(), draft_probs.numpy()  # reading a number from an array is cheap
    check_probabilities(np.concatenate([p, q]))
    for i, token in enumerate(candidates):
        if q[i, token] == 0:
            raise ValueError(
                f"candidate {token} at index {i} has q = 0: the draft returned a token that it "
                "says it cannot draw; return the q that the token was drawn from"
            )
        if not rng.bernoulli(min(1.0, p[i, token] / q[i, token])):
            return [*candidates[:i], rng.categorical(residual(p[i], q[i]))]
    return [*candidates, rng.categorical(p[len(candidates)])]


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """p's excess over q, max(0, p - q) normalised, (V,); p itself where rounding leaves none."""
    excess = (p - q).clip(0)
    total = excess.sum()
    return excess / total if total > 0 else p


def check_vocabulary(vocab_size: int, own: int) -> None:
    """Raise ValueError unless a draft's vocabulary has as many tokens as the target's own."""
    if vocab_size != own:
        raise ValueError(
            f"the draft has a vocabulary of {vocab_size} tokens and the target one of {own}; they "
            "must share one tokenizer"
        )


def check_draft(draft: Draft) -> None:
    """Raise ValueError for a class, or what cannot draw as a Draft does: yours inherits it."""
    if isinstance(draft, type) or not hasattr(draft, "draw"):
        raise ValueError(
            f"the draft is a {type(draft).__name__}; let its class inherit from "
            "nanogpt.speculative.Draft"
        )


def draft_chain(
    draft: Draft, text: Text, K: int, sampling: Sampling, rng: RandomSource
) -> tuple[list[int], Tensor]:
    """What the draft guesses after the text, and its q: K tokens, or as many as have room."""
    return draft.draw(text.tokens, min(K, text.room), sampling, rng)


@dataclass(frozen=True)
class Steps:
    """The four steps of a round. `replace(CHAIN, accept=mine)` puts another function in a place.

    Each takes and returns what the function does that stands in its place in CHAIN.
    """

    draft: Callable
    verify: Callable
    accept: Callable
    trim: Callable


CHAIN = Steps(draft_chain, verify_candidates, accept_reject, trim_kv_cache)


@torch.inference_mode()
def speculative_rounds(
    text: Text,
    draft: Draft,
    K: int = 4,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    steps: Steps = CHAIN,
) -> Iterator[Round]:
    """Write the text to its end; yields each round. Draft and default rng begin anew."""
    check_whole(1, K=K)
    check_draft(draft)
    check_vocabulary(draft.vocab_size, text.target.config.vocab_size)
    own, rng = draft.fresh(), rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        current, past_kvs, n = text.tokens[-1], text.past_kvs, text.position

        candidates, q = steps.draft(own, text, K, sampling, rng)
        p, new_kvs = steps.verify(text.target, current, candidates, past_kvs, sampling, text.unread)
        emitted = steps.accept(candidates, q, p, rng)
        past_kvs = steps.trim(new_kvs, len(emitted), n)

        text.take(Round(candidates, q, p, emitted, n), past_kvs)
        yield text.rounds[-1]


def speculative_generate(
    target: GPTLanguageModel,
    draft: Draft,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    K: int = 4,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
    steps: Steps = CHAIN,
) -> Generation:
    """The target's continuation of the prompt, with several tokens a pass where the draft is good.

    All else is as in autoregressive_generate, and so is the distribution of the output, for any
    draft and K, the most tokens to draft a round. steps: the four functions that make a round.
    Raises ValueError for a bad request, K < 1, no draft, or one with another vocabulary.
    """
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    for _ in speculative_rounds(text, draft, K, sampling, rng, steps):
        pass
    return text.generation()
