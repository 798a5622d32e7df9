"""Autoregressive decoding with a cache, and the record that every decoder keeps of what it did.

Two rules hold for every decoder of the package, and `Text` keeps both. The cache is behind by
whatever has not been read yet: at least the current token, at the start the whole prompt. All of it
enters with the next pass. And when the context has filled the window, it restarts with half a
window, so text can be of any length, and where a context starts never depends on how many passes
were made.

What the loops ask of a draft stands here as well: `Draft`, `ChainDraft`, `Proposer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from nanogpt.cache import KVCache, cache_length
from nanogpt.model import Begun, GPTLanguageModel, side_by_side
from nanogpt.sampling import RandomSource, Sampling

T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """What one target pass did.

    candidates: the K drafted tokens; draft_probs (K, V) and target_probs (K+1, V): the q and p
    they were judged by; emitted: the 1 … K+1 tokens that the round adds to the text, its accepted
    candidates and one token of the target's; cache_len: how many tokens of the context come before
    the current one. In plain autoregressive decoding, K is 0.
    Raises ValueError if nothing is emitted.
    """

    candidates: list[int]
    draft_probs: Tensor
    target_probs: Tensor
    emitted: list[int]
    cache_len: int

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
class TreeRound(Round):
    """What one target pass over a tree of candidates did.

    parents (K): of each candidate; path: the accepted nodes from the root down.
    """

    parents: list[int]
    path: list[int]

    @property
    def n_examined(self) -> int:
        """How many levels were examined: those accepted, and the next if there is one."""
        last = self.path[-1] if self.path else -1
        return self.n_accepted + 1 if last in self.parents else self.n_accepted


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

    @classmethod
    def chain(cls, tokens: list[int], q: Tensor, begun: Begun | None = None) -> Tree:
        """The tree in which each token follows the one before it."""
        return cls(tokens, list(range(-1, len(tokens) - 1)), q, begun)

    @classmethod
    def empty(cls, vocab_size: int) -> Tree:
        """The tree of no guesses."""
        return cls([], [], torch.empty(0, vocab_size, dtype=torch.float64))

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    def cut(self, n: int) -> Tree:
        """Its first n nodes, at least 0; parents stay, as they come before their children."""
        n = max(n, 0)
        return Tree(self.tokens[:n], self.parents[:n], self.q[:n], self.begun)

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
    cache, for a draft that looks at it before it guesses.
    """

    tokens: list[int]
    rounds: list[Round]
    prefills: int

    @property
    def target_passes(self) -> int:
        """Target passes that returned tokens: one per round."""
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
        """Accepted candidates per examined one, an estimate of α; NaN if none was drafted.

        A candidate after a rejected one was never examined.
        """
        examined = sum(r.n_examined for r in self.rounds)
        return sum(r.n_accepted for r in self.rounds) / examined if examined else float("nan")


def check_whole(least: int, **values: int) -> None:
    """Raise ValueError unless each of the values is a whole number from `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from {least}")


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
    one. start: where in them the context begins. past_kvs: the cache of the context, as far as it
    has been read; hidden (P, C): what the target made of the cached tokens, None where the decoder
    does not keep it. rng: its random numbers, where a loop is given none.
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
        self.start, self.past_kvs, self.hidden = 0, None, None
        self.rounds: list[Round] = []
        self.prefills = 0
        self.memories: dict[int, tuple] = {}
        self.rng = RandomSource(0)

    @property
    def cache_len(self) -> int:
        """How many tokens the cache holds."""
        return cache_length(self.past_kvs)

    @property
    def position(self) -> int:
        """How many tokens of the context come before the current one."""
        return len(self.tokens) - 1 - self.start

    @property
    def unread(self) -> list[int]:
        """Those of them that the cache does not hold yet: they enter with the next pass."""
        return self.tokens[self.start + self.cache_len : -1]

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
            self.past_kvs = self.hidden = None

    @torch.no_grad()
    def read(self, layers: Sequence[int] | None = None) -> None:
        """Read all but the current token, in a pass of its own: for drafts that look at it first.

        `hidden` then holds the trunk's hidden states, or with `layers` the streams after these
        blocks (P, n C).
        """
        if unread := self.unread:
            whole = self.past_kvs is None  # a part of the context is no use to a draft
            idx = torch.tensor([unread], device=self.target.device)
            streams, self.past_kvs = self.target.states(idx, past_kvs=self.past_kvs)
            seen = side_by_side(streams, layers) if layers else self.target.ln_f(streams[-1])
            self.hidden = seen[0] if whole else None
            self.prefills += 1

    def memory(self, draft, new: Callable[[], T]) -> T:
        """What `draft` remembers of this text: `new()` at first, and gone when the text is."""
        known, memory = self.memories.get(id(draft), (None, None))
        if known is not draft:  # it is kept as well, so that nothing else gets its id
            self.memories[id(draft)] = draft, memory = draft, new()
        return memory

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


class Draft:
    """What guesses a chain, token by token: q of what comes after a context.

    Any object with these two will do. One that inherits from here may also remember what it has
    read: `fresh` is then the same draft before it read anything, one for each text. model: what it
    asks, if that is a model with a cache.
    """

    vocab_size: int
    model: GPTLanguageModel | None = None

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all tokens so far, at temperature 1; float64."""
        raise NotImplementedError

    def fresh(self) -> Draft:
        """This draft for another text."""
        return self


class ChainDraft(Draft):
    """A draft that draws a whole chain by itself, sooner than one q after another."""

    def chain(self, context: Sequence[int], K: int, rng: RandomSource) -> tuple[list[int], Tensor]:
        """K tokens, and the q (K, V) that they were drawn from: what draft_tokens returns."""
        raise NotImplementedError


class Proposer:
    """What guesses a tree for a text, or looks at what the target made of it.

    reads: whether it looks at the text's cache or hidden states, so that all of the text is read
    before it is asked. layers: after which blocks, from 1, the streams that it wants in place of
    the hidden states. target: the one that it guesses for, if that is a target of its own.
    """

    vocab_size: int
    reads: bool = False
    layers: Sequence[int] | None = None
    target: GPTLanguageModel | None = None

    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A tree of guesses after the text's last token, at most `most` deep."""
        raise NotImplementedError


@torch.inference_mode()
def autoregressive_rounds(
    text: Text, sampling: Sampling = Sampling(), rng: RandomSource | None = None
) -> Iterator[Round]:
    """Write the text to its end, one token a pass; yields each round when its token is there."""
    rng = rng or text.rng
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
    """The target's own continuation of the prompt, one token per pass.

    Returns max_new_tokens tokens, or fewer if they end with `stop_token`. Only the last block_size
    tokens of the prompt are read. `rng` defaults to RandomSource(0).
    Raises ValueError for an empty prompt, a token outside the vocabulary, or max_new_tokens < 0.
    """
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    for _ in autoregressive_rounds(text, sampling, rng):
        pass
    return text.generation()
