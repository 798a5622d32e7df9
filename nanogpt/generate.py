"""Autoregressive decoding with a cache, and the record that every decoder keeps of what it did.

Two rules hold for every decoder of the package, and `Text` keeps both. The cache is one token
behind: it holds every token up to, not including, the current one, which enters with the next pass.
And when the cache has filled the window, the context restarts with half a window, so text can be
of any length, and where a context starts never depends on how many passes were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogpt.cache import KVCache, cache_length
from nanogpt.model import Begun, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling


@dataclass(frozen=True)
class Round:
    """What one target pass did.

    candidates: the K drafted tokens; draft_probs (K, V) and target_probs (K+1, V): the q and p
    they were judged by; emitted: the 1 … K+1 tokens that the round adds to the text, its accepted
    candidates and one token of the target's; cache_len: how many tokens the cache held before the
    pass. In plain autoregressive decoding, K is 0. Where the candidates are a tree, `parents` (K)
    are its, and `path` the accepted nodes from the root down; a chain has None.
    """

    candidates: list[int]
    draft_probs: Tensor
    target_probs: Tensor
    emitted: list[int]
    cache_len: int
    parents: list[int] | None = None
    path: list[int] | None = None

    @property
    def n_accepted(self) -> int:
        """How many candidates were accepted: the last emitted token is the target's own."""
        return len(self.emitted) - 1

    @property
    def n_examined(self) -> int:
        """How many places were examined: those accepted, and the next if it had a candidate."""
        if self.path is None:
            return min(self.n_accepted + 1, len(self.candidates))
        return self.n_accepted + ((self.path[-1] if self.path else -1) in self.parents)


@dataclass(frozen=True)
class Tree:
    """Guesses that branch: each node is a token that may follow its parent.

    tokens (N); parents (N), each before its children, -1 being the current token (a chain has
    -1, 0, 1, …); q (N, V): what each token was drawn from, GIVEN its earlier siblings (one-hot for
    a token that was not drawn). begun: what the draft worked out with the target's own first
    blocks, for the current token and the first nodes.
    """

    tokens: list[int]
    parents: list[int]
    q: Tensor
    begun: Begun | None = None

    @property
    def children(self) -> list[list[int]]:
        """The nodes after the current token, then after node 0, 1, …; siblings in their order."""
        found = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found


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
        return sum(r.n_accepted for r in self.rounds) / drafted if drafted else float("nan")

    @property
    def alpha(self) -> float:
        """Accepted candidates per examined one, an estimate of α; NaN if none was drafted.

        A candidate after a rejected one was never examined.
        """
        examined = sum(r.n_examined for r in self.rounds)
        return sum(r.n_accepted for r in self.rounds) / examined if examined else float("nan")


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
def prefill(target: GPTLanguageModel, tokens: Sequence[int] | Tensor) -> KVCache | None:
    """The cache of `tokens` at positions 0, 1, …: one pass. None for no tokens.

    One text, or (B, T) tokens of several side by side. Raises ValueError past the window.
    """
    idx = torch.atleast_2d(torch.as_tensor(tokens, device=target.device))  # (B, T)
    return target(idx)[2] if idx.numel() else None


class Text:
    """One text that is being written: its tokens, the cache, and the rounds so far.

    tokens: the last block_size tokens of the prompt, then all new ones; the last is the current
    one. past_kvs: the cache of those before it, or of the last of them since a restart; hidden
    (P, C): their hidden states, None where the decoder does not keep them.
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
        self.n_prompt = len(self.tokens)
        self.end = self.n_prompt + max_new_tokens
        self.rounds: list[Round] = []
        self.prefills = 0
        self.read(self.tokens[:-1])

    @property
    def cache_len(self) -> int:
        """How many tokens the cache holds."""
        return cache_length(self.past_kvs)

    @property
    def room(self) -> int:
        """How many tokens may be drafted: what the request and the window leave, less one."""
        return min(self.end - len(self.tokens), self.block_size - self.cache_len) - 1

    @property
    def done(self) -> bool:
        """True once all tokens asked for are there, or the last one is the stop token."""
        new = self.tokens[self.n_prompt :]
        return len(self.tokens) >= self.end or new[-1:] == [self.stop_token]

    @torch.no_grad()
    def read(self, tokens: list[int]) -> None:
        """The cache, and the hidden states, of `tokens` at positions 0, 1, …: one pass, if any."""
        self.past_kvs = self.hidden = None
        if tokens:
            idx = torch.tensor([tokens], device=self.target.device)
            hidden, self.past_kvs = self.target.trunk(idx)
            self.hidden = hidden[0]
            self.prefills += 1

    def restart_if_full(self) -> None:
        """Make room where the cache fills the window: half a window of tokens is read afresh."""
        if self.cache_len == self.block_size:
            self.read(self.tokens[-1 - self.block_size // 2 : -1])

    def take(self, done: Round, past_kvs: KVCache, hidden: Tensor | None = None) -> None:
        """Add a round's tokens, up to the stop token, and the cache that goes with them.

        hidden (P, C): of the tokens in that cache, if they are kept.
        """
        emitted = done.emitted
        if self.stop_token in emitted:
            emitted = emitted[: emitted.index(self.stop_token) + 1]
        self.rounds.append(done)
        self.tokens += emitted
        self.past_kvs, self.hidden = past_kvs, hidden

    def generation(self) -> Generation:
        """The new tokens and their trace."""
        return Generation(self.tokens[self.n_prompt :], self.rounds, self.prefills)


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
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    rng = rng or RandomSource(0)
    while not text.done:
        text.restart_if_full()
        current = torch.tensor([text.tokens[-1:]], device=target.device)  # (1, 1)
        logits, _, past_kvs = target(current, past_kvs=text.past_kvs)
        p = sampling.probs(logits[0])  # (1, V)
        emitted = [rng.categorical(p[0])]
        text.take(Round([], p[:0], p, emitted, text.cache_len), past_kvs)  # nothing was drafted
    return text.generation()
