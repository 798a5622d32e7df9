"""A small transformer as the draft, with a cache of its own.

It is a GPTLanguageModel like the target, with fewer layers, trained on the same text or distilled
from the target's probabilities.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.cache import KVCache, first
from nanogpt.data import DATA_DIR
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sampling import Sampling
from nanogpt.speculative import Draft

TRAINED = DATA_DIR / "checkpoints" / "transformer_trained.safetensors"
DISTILLED = DATA_DIR / "checkpoints" / "transformer_distilled.safetensors"
SMALL = GPTConfig(n_layer=1, n_head=2)  # of the shipped ones: 66,432 parameters


class TransformerDraft(Draft):
    """Guesses with a model, which reads only the tokens that it has not read yet.

    `tokens` are those that its cache holds. Asked about a context, it keeps what the two have in
    common from the start, drops the rest, and reads on: a rejected token needs no protocol of its
    own. A context longer than the window is cut to a length that depends on its own length alone,
    so that q depends on nothing but the context.
    """

    def __init__(self, model: GPTLanguageModel):
        self.model, self.vocab_size = model, model.config.vocab_size
        self.tokens: list[int] = []
        self.past_kvs: KVCache | None = None

    def begin(self, context: Sequence[int]) -> list[int]:
        """Drop what the cache holds beyond `context`, cut to the window; returns what is unread."""
        context = list(context[window_start(len(context), self.model.config.block_size) :])
        kept = common_prefix(self.tokens, context[:-1])  # the last token is always read
        if kept < len(self.tokens):
            self.past_kvs = first(self.past_kvs, kept) if kept else None
        self.tokens = context
        return context[kept:]

    @torch.no_grad()
    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, at temperature 1."""
        idx = torch.tensor([self.begin(context)], device=self.model.device)
        logits, _, self.past_kvs = self.model(idx, past_kvs=self.past_kvs)
        return Sampling().probs(logits[0, -1])

    def fresh(self) -> TransformerDraft:
        """A draft of the same model that has read nothing: one for each text."""
        other = copy.copy(self)
        other.tokens, other.past_kvs = [], None
        return other


def distil_loss(model: GPTLanguageModel, target: GPTLanguageModel, x: Tensor) -> Tensor:
    """How badly `model` gives the target's probabilities after tokens x (B, T), in nats.

    The mean cross-entropy of the model's q under the target's p (Hinton et al. 2015): KL(p‖q) and
    the entropy of p, which no training removes. x: any text; the target's own is best.
    """
    with torch.no_grad():
        p = torch.softmax(target(x)[0], dim=-1)  # (B, T, V)
    return F.cross_entropy(model(x)[0].flatten(0, 1), p.flatten(0, 1))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens a and b have in common from the start."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def window_start(length: int, block_size: int) -> int:
    """Where a window's view of a text of `length` starts: a multiple of half a window."""
    half = max(1, block_size // 2)
    return max(0, -(-(length - block_size) // half) * half)


def load(path: Path = DISTILLED, device: str | torch.device = "cpu") -> TransformerDraft:
    """A shipped draft, DISTILLED or TRAINED, on a device. Errors are those of checkpoint.load."""
    model, _ = checkpoint.load(path, device, make_one="python data/make_drafts.py")
    return TransformerDraft(model)
