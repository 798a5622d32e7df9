"""Autoregressive decoding with a cache, and the record that every decoder keeps of what it did.

Two rules hold for every decoder of the package, and `Text` keeps both. The cache is behind by
whatever has not been read yet: at least the current token, at the start the whole prompt. All of it
enters with the next pass. And when the context has filled the window, it restarts with half a
window, wherever that falls in a round: where a context starts never depends on the passes made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    they were judged by; emitted: the 1 … K+1 tokens that the round adds to the text, its accepted
    candidates and one token of the target's; position: how many tokens of the context come before
    the current one. In plain autoregressive decoding, K is 0.
    Raises ValueError if nothing is emitted.
    """

    candidates: list[int]
    draft_probs: Tensor
    target_probs: Tensor
    emitted: list[int]
    position: int

    def __post_init__(self):
        if not self.emitted:
            raise ValueError("a round emits no token; a rule returns what it keeps, and one more")

    @property
    def n_accepted(self) -> int:
        """How many candidates were accepted: the last emitted token is the target's own."""
        return len(self.emitted) - 1

    @property
    def n_examined(self) -> int:
        """How many candidates were examined: those accepted, and the next if there is one."""
        return min(self.n_accepted + 1, len(self.candidates))


@dataclass(frozen=True)
class Generation:
    """The new tokens, and the trace they came from: one round per target pass."""

    tokens: list[int]
    rounds: list[Round]

    @property
    def target_passes(self) -> int:
        """How many rounds there were."""
        return len(self.rounds)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens returned per target pass; NaN if there was none."""
        return len(self.tokens) / self.target_passes if self.rounds else float("nan")

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates per drafted one (as vLLM counts); NaN if none was drafted."""
        drafted = sum(len(r.candidates) for r in self.rounds)
        return sum(r.n_accepted for r in self.rounds) / drafted if drafted else float("nan")

    @property
    def alpha(self) -> float:
        """Accepted candidates per examined one, an estimate of α; NaN if none was drafted."""
        examined = sum(r.n_examined for r in self.rounds)
        return sum(r.n_accepted for r in self.rounds) / examined if examined else float("nan")


def check_whole(least: int, **values: int) -> None:
    """Raise ValueError unless each of the values is a whole number from `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from {least}")


def check_request(prompt_tokens: Sequence[int], max_new_tokens: int, vocab_size: int) -> None:
    """Raise ValueError unless the prompt is usable and max_new_tokens a whole number from 0."""
    check_whole(0, max_new_tokens=max_new_tokens)
    if len(prompt_tokens) == 0:
        raise ValueError("the prompt is empty; give at least one token to start from")
    for i, token in enumerate(prompt_tokens):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(
                f"token {token!r} at index {i} of the prompt is no whole number in "
                f"0 … {vocab_size - 1}; make tokens of text with this model's tokenizer"
            )


@torch.no_grad()
def prefill(target: GPTLanguageModel, tokens: Sequence[int] | Tensor) -> KVCache | None:
    """The cache of tokens (T,) or (B, T); None for none. Raises ValueError past the window."""
    idx = torch.atleast_2d(torch.as_tensor(tokens, device=target.device))  # (B, T)
    return target(idx)[2] if idx.numel() else None


class Text:
    """One text that is being written: its tokens, the cache, and the rounds so far.

    tokens: the last block_size tokens of the prompt, then all new ones; the last is the current
    one. start: where in them the context begins. past_kvs: the cache of what has been read of it.
    Raises ValueError for a bad prompt or max_new_tokens.
    """

    def __init__(
        self,
        target: GPTLanguageModel,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        stop_token: int | None = None,
    ):
        check_request(prompt_tokens, max_new_tokens, target.config.vocab_size)
        self.target, self.stop_token = target, stop_token
        self.block_size = target.config.block_size
        self.tokens = list(prompt_tokens)[-self.block_size :]
        self.start, self.n_prompt = 0, len(self.tokens)
        self.end = self.n_prompt + max_new_tokens
        self.past_kvs: KVCache | None = None
        self.rounds: list[Round] = []

    @property
    def cache_length(self) -> int:
        """How many tokens the cache holds."""
        return cache_length(self.past_kvs)

    @property
    def position(self) -> int:
        """How many tokens of the context come before the current one."""
        return len(self.tokens) - 1 - self.start

    @property
    def unread(self) -> list[int]:
        """Those of them that the cache does not hold yet: they enter with the next pass."""
        return self.tokens[self.start + self.cache_length : -1]

    @property
    def room(self) -> int:
        """How many tokens may be drafted: what the request and the window leave, less one."""
        return min(self.end - len(self.tokens), self.block_size - self.position) - 1

    @property
    def done(self) -> bool:
        """True once all tokens asked for are there, or the last one is the stop token."""
        new = self.tokens[self.n_prompt :]
        return len(self.tokens) >= self.end or new[-1:] == [self.stop_token]

    def restart_if_full(self) -> None:
        """Make room where the context fills the window: go on from the last half of it, unread."""
        if self.position == self.block_size:
            self.start = len(self.tokens) - 1 - self.block_size // 2
            self.past_kvs = None

    def take(self, done: Round, past_kvs: KVCache) -> None:
        """Add a round's tokens, up to the stop token, and the cache that goes with them."""
        emitted = done.emitted
        if self.stop_token in emitted:
            emitted = emitted[: emitted.index(self.stop_token) + 1]
        self.rounds.append(done)
        self.tokens += emitted
        self.past_kvs = past_kvs

    def generation(self) -> Generation:
        """The new tokens and their trace."""
        return Generation(self.tokens[self.n_prompt :], self.rounds)


@torch.inference_mode()
def autoregressive_rounds(
    text: Text, sampling: Sampling = Sampling(), rng: RandomSource | None = None
) -> Iterator[Round]:
    """Write the text to its end, one token a pass; yields each round. rng: RandomSource(0) anew."""
    rng = rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        idx = torch.tensor([[*text.unread, text.tokens[-1]]], device=text.target.device)  # (1, T)
        logits, _, past_kvs = text.target(idx, past_kvs=text.past_kvs)
        p = sampling.probs(logits[0, -1:])  # (1, V)
        emitted = [rng.categorical(p[0])]
        text.take(Round([], p[:0], p, emitted, text.position), past_kvs)  # nothing was drafted
        yield text.rounds[-1]


def autoregressive_generate(
    target: GPTLanguageModel,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    rng: RandomSource | None = None,
    stop_token: int | None = None,
) -> Generation:
    """The target's own continuation of the prompt, one token per pass. rng: RandomSource(0) anew.

    Returns max_new_tokens tokens, or fewer if they end with `stop_token`.
    Raises ValueError for an empty prompt, a token outside the vocabulary, or max_new_tokens < 0.
    """
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    for _ in autoregressive_rounds(text, sampling, rng):
        pass
    return text.generation()
