"""Small models whose right answers are known, and what stands in for the real thing in a check."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nanogpt.drafts.eagle import EagleHead
from nanogpt.drafts.pairs import PairDraft, PairTokenizer
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sampling import check_probabilities
from nanogpt.speculative import Draft
from nanogpt.targets.state import StateConfig, StateLanguageModel


def at_random(seed: int, *modules: nn.Module) -> None:
    """Large random weights for modules, frozen and in float64: all that they read matters."""
    generator = torch.Generator().manual_seed(seed)
    for module in modules:
        for p in module.double().eval().requires_grad_(False).parameters():
            nn.init.normal_(p, generator=generator)


@functools.cache
def toy_target(
    vocab_size: int, block_size: int, seed: int = 0, n_layer: int = 1
) -> GPTLanguageModel:
    """A small GPT with large random weights in float64: every token of a context matters."""
    model = GPTLanguageModel(GPTConfig(vocab_size, block_size, n_layer, n_head=2, n_embd=4))
    at_random(seed, model)
    model.lm_head.weight *= 0.4  # no token is nearly certain
    return model


@functools.cache
def toy_states(vocab_size: int, block_size: int, seed: int = 0) -> StateLanguageModel:
    """A toy as toy_target is one, of two layers, the first with a state."""
    config = StateConfig(vocab_size, block_size, 2, n_head=2, n_embd=4, recurrent=(1,))
    model = StateLanguageModel(config)
    at_random(seed, model)
    model.lm_head.weight *= 0.4  # no token is nearly certain
    return model


def deep_toy(layers: int = 3) -> tuple[GPTLanguageModel, nn.Module]:
    """A random target of three tokens and several blocks in float64, and a head for its exits."""
    model = GPTLanguageModel(GPTConfig(3, 16, layers, 2, 4))
    head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    at_random(1, model, head)
    for linear in (model.lm_head, head[1]):
        linear.weight *= 0.4  # no token is nearly certain
    return model, head


def random_head(target: GPTLanguageModel, layers=None, seed: int = 0, cls=EagleHead):
    """An EagleHead for a toy, in float64, with large random weights: all that it reads matters."""
    head = cls(target.config, layers)
    at_random(seed, head)
    return head.to(target.device).share(target)


def toy_pairs(vocab_size: int, least: float = 0.0, block_size: int = 8, seed: int = 5) -> PairDraft:
    """A PairDraft on pairs of the letters a, b, …: a random model, whose tokens do not agree."""
    chars = "abcdefghij"[:vocab_size]
    merges = [("a", "b"), ("ab", "a"), ("b", chars[-1])]
    tokenizer = PairTokenizer(chars, merges)
    net = toy_target(tokenizer.vocab_size, block_size, seed)
    return PairDraft(net, tokenizer, least)


def parts(thing) -> list:
    """What is in tuples and lists, and in those in them."""
    if isinstance(thing, (tuple, list)):
        return [x for part in thing for x in parts(part)]
    return [thing]


def plain(found: list) -> bool:
    """Whether these are tensors, numbers and names: a cache that is an object may change."""
    return all(isinstance(x, Tensor | int | str | None) for x in found)


def copied(thing):
    """The same tuples and lists, with copies of their tensors."""
    if isinstance(thing, (tuple, list)):
        return type(thing)([copied(x) for x in thing])
    return thing.clone() if isinstance(thing, Tensor) else thing


def remembered(call: Callable) -> Callable:
    """A function that looks up what it was asked before, number by number, and returns copies."""
    known: dict = {}

    def again(*given, **named):
        asked = parts((given, *named.items()))
        if not plain(asked):
            return call(*given, **named)
        key = tuple(
            (x.dtype, x.shape, x.numpy().tobytes()) if isinstance(x, Tensor) else x for x in asked
        )
        if key in known:
            return copied(known[key])
        made = call(*given, **named)
        if plain(parts(made)):
            known[key] = copied(made)
        return made

    return again


def from_memory(model: GPTLanguageModel) -> GPTLanguageModel:
    """The same model, which does no pass twice: most texts of an enumeration begin alike."""
    own = copy.copy(model)
    own.states = remembered(functools.partial(type(own).states, own))
    own.forward = remembered(functools.partial(type(own).forward, own))
    return own


class TableDraft(Draft):
    """q by the current token: row i of `table` (V, V) after token i."""

    def __init__(self, table: Sequence[Sequence[float]]):
        self.table = torch.as_tensor(table, dtype=torch.float64)
        check_probabilities(self.table)
        self.rows, self.vocab_size = list(self.table), len(self.table)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,): the table's row of the last token."""
        return self.rows[context[-1]]


def random_draft(vocab_size: int, seed: int = 0) -> TableDraft:
    """A draft that knows nothing of the target: a random table."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab_size, vocab_size, dtype=torch.float64, generator=generator)
    return TableDraft(torch.softmax(logits, dim=-1))


class Deaf:
    """Guesses as a draft does, and is none: no reply makes it obey its constraints."""

    def __init__(self, draft: Draft):
        self.vocab_size, self.fresh = draft.vocab_size, lambda: Deaf(draft.fresh())
        self.get_probs, self.draw = draft.get_probs, draft.draw


def context_start(index: int, n_prompt: int, block_size: int) -> int:
    """Where the context of token `index` starts: 0, or where the last restart put it."""
    start = 0
    for current in range(n_prompt - 1, index):
        if current - start >= block_size:
            start = current - block_size // 2
    return start


class SelfDraft(Draft):
    """A draft that is the target itself: q = p at every position, by recomputing the context."""

    def __init__(self, target: GPTLanguageModel, n_prompt: int):
        self.target, self.n_prompt, self.vocab_size = target, n_prompt, target.config.vocab_size
        self.known: dict[tuple[int, ...], Tensor] = {}  # logits, by what the target was given

    def logits(self, context: Sequence[int]) -> Tensor:
        """The target's logits (V,) of the token after `context`."""
        start = context_start(len(context), self.n_prompt, self.target.config.block_size)
        given = tuple(context[start:])
        if given not in self.known:
            idx = torch.tensor([given], device=self.target.device)
            self.known[given] = self.target(idx)[0][0, -1].cpu()
        return self.known[given]

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,): the target's own p at temperature 1."""
        return torch.softmax(self.logits(context), dim=-1, dtype=torch.float64)


class WorstDraft(SelfDraft):
    """The draft that knows the target and is always wrong: sure of its least likely token."""

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,): 1 for the token that the target likes least."""
        logits = self.logits(context)
        return nn.functional.one_hot(logits.argmin(), len(logits)).double()


class SecondBest(SelfDraft):
    """A draft whose best guess is the target's last choice, and whose second is its first."""

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,): on two tokens, the target's least and most likely."""
        logits = self.logits(context)
        q = torch.zeros(len(logits), dtype=torch.float64)
        q[logits.argmin()], q[logits.argmax()] = 0.6, 0.4
        return q


class Watched:
    """A target that remembers what every pass was given."""

    def __init__(self, target: GPTLanguageModel):
        self.target, self.config, self.device = target, target.config, target.device
        self.passes: list[tuple] = []

    def __call__(self, idx, past_kvs=None, **kwargs):
        self.passes.append((idx[0].tolist(), past_kvs))
        return self.target(idx, past_kvs=past_kvs, **kwargs)

    def states(self, idx, pos=None, past_kvs=None, attn_mask=None, depth=None):
        """As the target's, remembered."""
        self.passes.append((idx[0].tolist(), past_kvs))
        return self.target.states(idx, pos, past_kvs, attn_mask, depth)

    def __getattr__(self, name):
        return getattr(self.target, name)

    def around(self, target) -> Watched:
        """The same record, kept of another target's passes."""
        other = type(self)(target)
        other.passes = self.passes
        return other


class Led:
    """Stands for a RandomSource: it draws the tokens that it is given, whatever q says."""

    def __init__(self, tokens: Sequence[int]):
        self.tokens = iter(tokens)

    def categorical(self, probs) -> int:
        """The next of them."""
        return next(self.tokens)


class Zeros:
    """Uniform numbers for a RandomSource: every one is 0, the rarest and the lowest."""

    def random(self) -> float:
        """A uniform number in [0, 1): the lowest."""
        return 0.0
