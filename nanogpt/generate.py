"""Autoregressive decoding with a cache, and the record that every decoder keeps of what it did.

Two rules hold for every decoder of the package. The cache is one token behind: it holds every
token up to, not including, the current one, which enters with the next pass. And when the cache
has filled the window, the context restarts with half a window, so that text of any length can be
generated and where a context starts never depends on how many passes were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogpt.cache import KVCache, cache_length
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling


@dataclass(frozen=True)
class Round:
    """What one target pass did.

    candidates: the K drafted tokens; draft_probs (K, V) and target_probs (K+1, V): the q and p
    they were judged by; accepted: the 1 … K+1 tokens that came of it; cache_len: how many tokens
    the cache held before the pass. A round of plain autoregressive decoding has K = 0.
    """

    candidates: list[int]
    draft_probs: Tensor
    target_probs: Tensor
    accepted: list[int]
    cache_len: int


@dataclass(frozen=True)
class Generation:
    """The new tokens, and the trace they came from.

    rounds: one per target pass that returned tokens; prefills: the passes that only filled the
    cache, at the start and at each restart.
    """

    tokens: list[int]
    rounds: list[Round]
    prefills: int

    @property
    def target_passes(self) -> int:
        """Target passes after the prefills: one per round."""
        return len(self.rounds)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens returned per target pass after the prefills; NaN if there was none."""
        return len(self.tokens) / self.target_passes if self.rounds else float("nan")

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates per drafted one (as vLLM counts); NaN if none was drafted."""
        drafted = sum(len(r.candidates) for r in self.rounds)
        accepted = sum(len(r.accepted) - 1 for r in self.rounds)
        return accepted / drafted if drafted else float("nan")

    @property
    def alpha(self) -> float:
        """Accepted candidates per examined one, an estimate of α; NaN if none was drafted.

        A candidate behind a rejected one was never examined.
        """
        examined = sum(min(len(r.accepted), len(r.candidates)) for r in self.rounds)
        accepted = sum(len(r.accepted) - 1 for r in self.rounds)
        return accepted / examined if examined else float("nan")


def check_request(prompt_tokens: Sequence[int], max_new_tokens: int, vocab_size: int) -> None:
    """Raise ValueError unless the prompt is usable and max_new_tokens a whole number from 0."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number from 0")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 0")
    if len(prompt_tokens) == 0:
        raise ValueError("the prompt is empty; give at least one token to start from")
    for i, token in enumerate(prompt_tokens):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(
                f"token {token!r} at index {i} of the prompt is no whole number in "
                f"0 … {vocab_size - 1}; make tokens of text with this model's tokenizer"
            )


@torch.no_grad()
def prefill(target: GPTLanguageModel, tokens: Sequence[int]) -> KVCache | None:
    """The cache of `tokens` at positions 0, 1, …: one pass. None for no tokens.

    Raises ValueError past the window.
    """
    if len(tokens) == 0:
        return None
    _, _, past_kvs = target(torch.tensor([list(tokens)], device=target.device))
    return past_kvs


def restart_if_full(
    target: GPTLanguageModel, tokens: Sequence[int], past_kvs: KVCache | None
) -> tuple[KVCache | None, int]:
    """A cache with room for the last of `tokens`, and the prefills that took (0 or 1).

    `past_kvs` is handed back while the window has room. When it is full, the half window of tokens
    before the current one is prefilled afresh.
    """
    block_size = target.config.block_size
    if cache_length(past_kvs) < block_size:
        return past_kvs, 0
    return prefill(target, tokens[-1 - block_size // 2 : -1]), 1


@torch.inference_mode()
def autoregressive_generate(
    target: GPTLanguageModel,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
) -> Generation:
    """The target's own continuation of the prompt, one token per pass.

    Returns max_new_tokens tokens, or fewer if they end with `stop_token`. Only the last block_size
    tokens of the prompt are read. `rng` defaults to RandomSource(0).
    Raises ValueError for an empty prompt, a token outside the vocabulary, or max_new_tokens < 0.
    """
    check_request(prompt_tokens, max_new_tokens, target.config.vocab_size)
    rng = rng or RandomSource(0)
    tokens = list(prompt_tokens)[-target.config.block_size :]
    past_kvs, new_tokens, rounds = prefill(target, tokens[:-1]), [], []
    prefills = int(past_kvs is not None)  # a prompt of one token needs none
    while len(new_tokens) < max_new_tokens and stop_token not in new_tokens[-1:]:
        past_kvs, restarts = restart_if_full(target, tokens, past_kvs)
        cache_len = cache_length(past_kvs)
        current = torch.tensor([tokens[-1:]], device=target.device)  # (1, 1)
        logits, _, past_kvs = target(current, past_kvs=past_kvs)
        p = sampling.probs(logits[0])  # (1, V)
        token = rng.categorical(p[0])
        rounds.append(Round([], p[:0], p, [token], cache_len))
        tokens.append(token)
        new_tokens.append(token)
        prefills += restarts
    return Generation(new_tokens, rounds, prefills)
