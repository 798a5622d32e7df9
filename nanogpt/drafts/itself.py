"""The target as its own draft, made cheaper: fewer blocks, fewer bits, fewer cache entries.

Such a draft needs no cache and no reading of its own: it goes on from the target's. The keys and
values that the target's own first blocks write are the target's, so verification goes on where
drafting stopped; those of a copy with other weights, or another view, are thrown away.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.generate import Proposer, Text, Tree
from nanogpt.model import Begun, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling

EXITS = DATA_DIR / "checkpoints" / "exits.safetensors"
LAYERSKIP = DATA_DIR / "checkpoints" / "layerskip.safetensors"


def exit_head(target: GPTLanguageModel) -> nn.Sequential:
    """A head to train, for any depth: it begins as a copy of the target's own ln_f and lm_head."""
    return copy.deepcopy(nn.Sequential(target.ln_f, target.lm_head)).requires_grad_()


def exit_loss(exits: nn.ModuleDict, target: GPTLanguageModel, x: Tensor) -> Tensor:
    """How badly heads say early what the frozen target will say after tokens x (B, T), in nats.

    exits: a head (..., C) -> (..., V) by the number of blocks before it, as text ("1", "2", …). The
    loss of each is the cross-entropy of its q under the target's p, as in `distil_loss`; their mean
    is returned, from one pass. x: any text that is like the target's.
    """
    with torch.no_grad():
        streams, _ = target.states(x)
        p = torch.softmax(target.lm_head(target.ln_f(streams[-1])), dim=-1)  # (B, T, V)
    losses = [
        F.cross_entropy(head(streams[int(depth) - 1]).flatten(0, 1), p.flatten(0, 1))
        for depth, head in exits.items()
    ]
    return torch.stack(losses).mean()


def layer_dropout(layer: int, n_layer: int, most: float) -> float:
    """How often LayerSkip leaves out block `layer` (from 0) in training: from 0 up to `most`.

    D(l) · most, D(l) = 2^(l/(L-1)) - 1 (Elhoushi et al. 2024, arXiv 2404.16710).
    """
    return most * (2 ** (layer / max(1, n_layer - 1)) - 1)


def layerskip_loss(model, x: Tensor, y: Tensor, generator, most: float = 0.1) -> Tensor:
    """The loss of a model that can be left early, as in LayerSkip, on x and y (B, T), in nats.

    Blocks are left out at random, text by text, the later the likelier (`layer_dropout`), and one
    head, the model's own, is judged after every block. Block l weighs l in the mean, counted from
    1, and the last as much as all others together.
    """
    L = model.config.n_layer
    weights = [*range(1, L), max(1, L * (L - 1) // 2)]
    stream, attn_bias = model.embed(x, None, None, None)
    losses = []
    for layer, block in enumerate(model.blocks):
        kept = torch.rand(len(x), 1, 1, generator=generator) >= layer_dropout(layer, L, most)
        stream = torch.where(kept.to(x.device), block(stream, attn_bias)[0], stream)
        logits = model.lm_head(model.ln_f(stream))
        losses.append(F.cross_entropy(logits.flatten(0, 1), y.flatten()))
    return sum(w * each for w, each in zip(weights, losses, strict=True)) / sum(weights)


class EarlyExitDraft(Proposer):
    """Guesses a chain with the target's first `depth` blocks and a head on top of them.

    head: streams (..., C) -> logits (..., V). K: the most tokens a round. The blocks see each token
    once, for draft and verification alike: what they wrote travels in the tree (`Tree.begun`).
    Raises ValueError for a depth that the target does not have, or K < 1.
    """

    reads = True  # the target's cache

    def __init__(self, target: GPTLanguageModel, depth: int, head: Callable, K: int = 3):
        if not 1 <= depth <= target.config.n_layer:
            raise ValueError(f"depth is {depth}; the target has {target.config.n_layer} blocks")
        if isinstance(K, bool) or not isinstance(K, int) or K < 1:
            raise ValueError(f"K is {K!r}; it must be a whole number from 1")
        self.target, self.depth, self.head, self.K = target, depth, head, K
        self.vocab_size = target.config.vocab_size
        self.ids = torch.arange(self.vocab_size, device=target.device)[:, None, None]

    @torch.no_grad()
    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of min(K, most) tokens, q (N, V), and what the first blocks made of them.

        The last of the chain is drawn but not read: its turn comes in verification.
        """
        token, past_kvs = text.tokens[-1], text.past_kvs
        tokens, rows, streams = [], [], []
        for _ in range(min(self.K, most)):
            idx = self.ids[token]  # (1, 1)
            (*_, stream), past_kvs = self.target.states(idx, past_kvs=past_kvs, depth=self.depth)
            q = sampling.probs(self.head(stream).view(-1))  # (V,)
            token = rng.categorical(q)
            tokens.append(token)
            rows.append(q)
            streams.append(stream)
        if not tokens:
            return Tree.empty(self.vocab_size)
        begun = Begun(self.depth, torch.cat(streams, dim=1), past_kvs)
        return Tree.chain(tokens, torch.stack(rows), begun)


def save_exits(path: Path, exits: nn.ModuleDict, tokenizer: CharTokenizer, facts: dict) -> None:
    """Write exit heads, by depth, and `facts` (anything JSON can hold); in float32."""
    checkpoint.save_module(path, exits, tokenizer, facts, torch.float32)


def load_exits(path: Path = EXITS, device: str | torch.device = "cpu") -> dict[int, nn.Sequential]:
    """The shipped target's exit heads by the number of blocks before them: 1, 2, 3; on its device.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """

    def build(header, tensors):
        V, C = tensors["1.1.weight"].shape  # of the first one's Linear
        head = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, V, bias=False))
        return nn.ModuleDict({depth: copy.deepcopy(head) for depth in "123"})

    make_one = "python data/make_drafts.py exits"
    exits = checkpoint.load_module(path, build, "exit heads", make_one, device)
    return {int(depth): head for depth, head in exits.items()}


def load_layerskip(path: Path = LAYERSKIP, device: str | torch.device = "cpu") -> GPTLanguageModel:
    """The target that was trained to be left early. Errors are those of checkpoint.load."""
    return checkpoint.load(path, device, make_one="python data/make_drafts.py layerskip")[0]


def check_whole(least: int, **values: int) -> None:
    """Raise ValueError unless each of the values is a whole number from `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from {least}")


def round_to(weight: Tensor, bits: int) -> Tensor:
    """weight (out, in) with each row rounded to whole multiples of a step of its own.

    The multiples go from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and the row's largest weight, by its
    size, is the last of them (symmetric quantisation, one scale per output channel).
    Raises ValueError unless bits is a whole number from 2.
    """
    check_whole(2, bits=bits)
    top = 2 ** (bits - 1) - 1
    step = weight.abs().amax(dim=1, keepdim=True) / top  # (out, 1)
    step = step.masked_fill(step == 0, 1.0)  # a row of zeros stays one
    return (weight / step).round() * step


def quantized(target: GPTLanguageModel, bits: int) -> GPTLanguageModel:
    """A copy of the target whose linear layers have weights of so many bits, as round_to makes.

    The numbers are rounded, but stored as before: it guesses as a quantised model does, and is as
    large and as slow as the target. Embeddings, biases and LayerNorms stay as they are.
    Raises ValueError as round_to does, and for a target of another kind.
    """
    if type(target) is not GPTLanguageModel:
        raise ValueError("quantise first, then fuse: FusedLanguageModel(quantized(target, bits))")
    model = copy.deepcopy(target).requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(round_to(module.weight, bits))
    return model


def sink_and_window(P: int, sink: int, window: int) -> Tensor:
    """(1, P+1) bool: which entries a token after P cached ones may attend to.

    The first `sink` (attention sinks; Xiao et al. 2023) and the last `window`, its own among them.
    """
    seen = torch.arange(P + 1)[None]
    return (seen < sink) | (seen > P - window)


class CopyDraft(Proposer):
    """Guesses a chain with a copy of the target that goes on from the target's own cache.

    model: the target itself, or one like it with other weights, in the target's form (per-head or
    fused). K: the most tokens a round. window, sink: which entries it reads, as in sink_and_window;
    by default all. What it writes is its own business: verification writes these entries anew.
    Fewer bits are the idea of QSpec (Zhao et al. 2024), fewer entries that of MagicDec (Sadhukhan,
    Chen et al. 2024).
    Raises ValueError for K < 1, window < 1 or sink < 0.
    """

    reads = True  # the target's cache

    def __init__(self, model, K: int = 3, window: int | None = None, sink: int = 0):
        check_whole(1, K=K, window=1 if window is None else window)
        check_whole(0, sink=sink)
        self.model, self.K, self.window, self.sink = model, K, window, sink
        self.vocab_size = model.config.vocab_size
        self.ids = torch.arange(self.vocab_size, device=model.device)[:, None, None]

    @torch.no_grad()
    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of min(K, most) tokens, q (N, V). The text, and its cache, stay as they are."""
        token, past_kvs = text.tokens[-1], text.past_kvs
        tokens, rows, mask = [], [], None
        for _ in range(min(self.K, most)):
            if self.window is not None:
                mask = sink_and_window(cache_length(past_kvs), self.sink, self.window)
                mask = mask.to(self.model.device)
            idx = self.ids[token]  # (1, 1)
            logits, _, past_kvs = self.model(idx, past_kvs=past_kvs, attn_mask=mask)
            q = sampling.probs(logits.view(-1))  # (V,)
            token = rng.categorical(q)
            tokens.append(token)
            rows.append(q)
        return Tree.chain(tokens, torch.stack(rows)) if tokens else Tree.empty(self.vocab_size)


def int8_product(linear: nn.Linear) -> Callable[[Tensor], Tensor] | None:
    """linear's (..., in) -> (..., out) with weights of 8 bits and a kernel that computes with them.

    Inputs are rounded to 7 bits as they come. None where this torch has no such kernel, or the
    weights are not on the CPU.
    """
    if linear.weight.device.type != "cpu":
        return None
    weight = linear.weight.detach().float()
    step = weight.abs().amax(dim=1).double().clamp(min=1e-12) / 127  # (out,)
    zero = torch.zeros(len(weight), dtype=torch.int64)
    bias = None if linear.bias is None else linear.bias.detach().float()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch moves these types elsewhere, and says so
            rounded = torch.quantize_per_channel(weight, step, zero, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(rounded, bias)
        torch.ops.quantized.linear_dynamic(weight[:1] * 0, packed, True)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    # True: inputs of 7 bits, so that the sums fit in 16 on any processor
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, True)
