"""Speculative decoding: draft, verify, accept or reject, trim.

p is the target's probability, q the draft's, as in Leviathan et al. 2023 (Algorithm 1) and Chen
et al. 2023 (Algorithm 2); K is the number of drafted tokens (their γ and K).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nanogpt.cache import KVCache, trim_kv_cache
from nanogpt.generate import Generation, Round, Text
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling, check_probabilities

More = Callable[[Tensor, int], bool]
Policy = Callable[[list[Round]], tuple[int, More | None]]
Accept = Callable[[Sequence[int], Tensor, Tensor, RandomSource], list[int]]


def draft_tokens(
    draft,
    context: Sequence[int],
    K: int,
    sampling: Sampling,
    rng: RandomSource,
    more: More | None = None,
) -> tuple[list[int], Tensor]:
    """K tokens drawn one after another from the draft, and the q that each was drawn from.

    Returns candidates (K tokens) and draft_probs (K, V), with `sampling` applied to the draft's
    probabilities as it is to the target's logits: the claimed q is the sampled q. `more(q, n)`, if
    given, is asked before each draw, after n tokens have been drawn, whether to draw from q at all.
    It never sees the token. A draft may have a `chain`, which does the same sooner where q is taken
    as it is.
    """
    if more is None and sampling == Sampling() and hasattr(draft, "chain"):
        return draft.chain(context, K, rng)
    tokens, draft_probs = list(context), []
    for n in range(K):
        q = sampling.of_probs(draft.get_probs(tokens))  # (V,)
        if more is not None and not more(q, n):
            break
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
) -> tuple[Tensor, KVCache]:
    """The target's p for each candidate and for the token after them, from one pass.

    Returns target_probs (K+1, V), row i being p after the current token and the first i
    candidates, and the cache with all K+1 tokens in it.
    """
    idx = torch.from_numpy(np.array([[current_token, *candidates]], dtype=np.int64))  # (1, K+1)
    logits, _, new_kvs = target(idx.to(target.device), past_kvs=past_kvs)
    return sampling.probs(logits[0]), new_kvs


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
    """max(0, p - q) normalised, (V,): p's excess over q.

    p itself where p and q differ by no more than rounding, so that nothing is left.
    """
    excess = (p - q).clip(0)
    total = excess.sum()
    return excess / total if total > 0 else p


def check_draft(draft, K: int | Policy, vocab_size: int) -> None:
    """Raise ValueError unless K is a whole number from 1 or a policy, and vocabularies agree."""
    if not callable(K) and (isinstance(K, bool) or not isinstance(K, int) or K < 1):
        raise ValueError(f"K is {K!r}; it must be a whole number from 1, or a policy")
    if draft.vocab_size != vocab_size:
        raise ValueError(
            f"the draft has a vocabulary of {draft.vocab_size} tokens and the target one of "
            f"{vocab_size}; they must share one tokenizer"
        )


@torch.inference_mode()
def speculative_generate(
    target: GPTLanguageModel,
    draft,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    K: int | Policy = 4,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
    accept: Accept | None = None,
) -> Generation:
    """The target's continuation of the prompt, with several tokens a pass where the draft is good.

    Tokens, stop token, window and `rng` are as in autoregressive_generate, and so is the
    distribution of the output, for any draft and K: a number, or a policy that is asked before
    each round, K(rounds so far), for the most tokens to draft and the `more` of draft_tokens.
    `accept` is the rule: accept_reject by default, or another with its arguments.
    Raises ValueError for a bad request, K < 1, or a draft with another vocabulary.
    """
    check_draft(draft, K, target.config.vocab_size)
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    rng = rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        most, more = K(text.rounds) if callable(K) else (K, None)
        k = min(most, text.room)

        candidates, q = draft_tokens(draft, text.tokens, k, sampling, rng, more)
        p, new_kvs = verify_candidates(target, text.tokens[-1], candidates, text.past_kvs, sampling)
        emitted = (accept or accept_reject)(candidates, q, p, rng)
        past_kvs = trim_kv_cache(new_kvs, len(emitted), text.cache_len)

        text.take(Round(candidates, q, p, emitted, text.cache_len), past_kvs)
    return text.generation()
