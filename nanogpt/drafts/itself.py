"""The target as its own draft, made cheaper: fewer blocks, fewer bits, fewer cache entries.

Such a draft needs no cache and no reading of its own: it goes on from the target's. The keys and
values that the target's own first blocks write are the target's, so verification goes on where
drafting stopped; those of a copy with other weights, or another view, are thrown away.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.cache import CacheObject, KVCache, cache_length
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.generate import check_whole
from nanogpt.model import FeedForward, GPTConfig, GPTLanguageModel, causal_mask
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import Proposer, ReadText, Tree

EXITS = DATA_DIR / "checkpoints" / "exits.safetensors"
LAYERSKIP = DATA_DIR / "checkpoints" / "layerskip.safetensors"


class HiddenLayer(nn.Module):
    """An adapter for an exit: one hidden layer at each position alone, added to the stream.

    It is the second half of a block, with a LayerNorm of its own. At first it adds nothing.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln, self.ffwd = nn.LayerNorm(config.n_embd), FeedForward(config)
        for p in self.ffwd.net[2].parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return x + self.ffwd(self.ln(x))


class OwnBlock(nn.Module):
    """An adapter for an exit: a block, attention and a hidden layer. At first it adds nothing.

    The idea of Kangaroo (Liu et al. 2024, arXiv 2404.18911), whose adapter has no hidden layer.
    Queries, keys and values of all heads are one product, as in the fused target.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        C = config.n_embd
        self.n_head, self.ln, self.hidden = config.n_head, nn.LayerNorm(C), HiddenLayer(config)
        self.qkv, self.proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        nn.init.normal_(self.qkv.weight, std=0.1)  # as the target's own begin
        for p in self.proj.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        """Streams of whole texts (B, T, C) -> (B, T, C)."""
        return self.read(x)[0]

    def read(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The streams x (B, T, C) of tokens that come after P others -> (B, T, C), and its cache.

        The cache, keys and values, is (2, B, n_head, P+T, hs); `past` that of the P others.
        """
        B, T, C = x.shape
        qkv = self.qkv(self.ln(x)).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        past = qkv[1:] if past is None else torch.cat([past, qkv[1:]], dim=3)
        mask = causal_mask(T, past.shape[3] - T, x.device)
        attended = F.scaled_dot_product_attention(qkv[0], *past, attn_mask=mask)
        return self.hidden(x + self.proj(attended.transpose(1, 2).reshape(B, T, C))), past


ADAPTERS = {  # what a stream goes through before the head
    "linear": lambda config: None,
    "hidden layer": HiddenLayer,
    "block": OwnBlock,
}


def exit_head(target: GPTLanguageModel, adapter: str = "linear") -> nn.Sequential:
    """An exit to train, for any depth: it begins as a copy of the target's own ln_f and lm_head.

    adapter: one of ADAPTERS, what the stream (B, T, C) goes through first; "linear" is nothing.
    """
    head = copy.deepcopy(nn.Sequential(target.ln_f, target.lm_head)).requires_grad_()
    first = ADAPTERS[adapter](target.config)
    if first is None:
        return head
    return nn.Sequential(first.to(target.lm_head.weight), *head)


def exit_loss(exits: nn.ModuleDict, target: GPTLanguageModel, x: Tensor) -> Tensor:
    """How badly heads say early what the frozen target will say after tokens x (B, T), in nats.

    exits: a head (B, T, C) -> (B, T, V) by the number of blocks before it, as text ("1", "2", …),
    and a name after it where there are several ("1 block"). The loss of each is the cross-entropy
    of its q under the target's p, as in `distil_loss`; their mean is returned, from one pass.
    x: any text that is like the target's.
    """
    with torch.no_grad():
        streams, _ = target.states(x)
        p = torch.softmax(target.lm_head(target.ln_f(streams[-1])), dim=-1)  # (B, T, V)
    losses = [
        F.cross_entropy(head(streams[int(name.split()[0]) - 1]).flatten(0, 1), p.flatten(0, 1))
        for name, head in exits.items()
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


class Begun(NamedTuple):
    """What the target's first blocks have made of the m tokens that have been read of a pass."""

    depth: int  # how many blocks they have been through
    stream: Tensor  # (1, m, C), after those
    past_kvs: KVCache  # of those: P+m tokens


@dataclass(frozen=True)
class BegunTree(Tree):
    """A chain of guesses, and what the target's first blocks made of all it follows but the last.

    begun: of the current token and every guess but the last, which was drawn and not read.
    """

    begun: Begun


@singledispatch
def go_on(past_kvs: KVCache, lower: KVCache, target, x: Tensor, depth: int):
    """x (1, T, C) after the first `depth` blocks -> the streams after the others, the whole cache.

    past_kvs: the target's cache of P tokens; lower: that of its first blocks, of P+T.
    """
    T, P = x.shape[1], cache_length(past_kvs)
    attn_bias = torch.zeros(T, P + T).masked_fill(~causal_mask(T, P), -torch.inf)
    streams, new_kvs = [], [*lower]
    for layer, block in enumerate(target.blocks[depth:], start=depth):
        x, new_heads = block(x, attn_bias.to(x), past_kvs[layer])
        streams.append(x)
        new_kvs.append(new_heads)
    return streams, tuple(new_kvs)


@go_on.register(CacheObject)
def go_on_in_place(past_kvs, lower, target, x: Tensor, depth: int):
    """The first blocks' entries lie where those of the pass belong: a chain fits the buffer."""
    T, streams = x.shape[1], []
    attn_bias, new_kvs = target.attn_bias(past_kvs, T, None), past_kvs.grown(T)
    for layer in range(depth, len(target.blocks)):
        x = target.layer(layer, x, attn_bias, new_kvs)
        streams.append(x)
    return streams, new_kvs


class Halfway:
    """A target for the pass over a BegunTree: what has been through its first blocks goes on."""

    def __init__(self, target, begun: Begun):
        self.target, self.begun = target, begun

    def __getattr__(self, name):
        return getattr(self.target, name)

    def states(self, idx: Tensor, pos, past_kvs, attn_mask) -> tuple[list, KVCache]:
        """As the target's, of a chain; the streams below the last of the first blocks are None."""
        depth, stream, lower = self.begun
        (*_, x), lower = self.target.states(idx[:, -1:], past_kvs=lower, depth=depth)
        x = torch.cat([stream, x], dim=1)  # from here on, all T tokens
        streams, new_kvs = go_on(past_kvs, lower, self.target, x, depth)
        return [None] * (depth - 1) + [x, *streams], new_kvs


def going_on(verify: Callable) -> Callable:
    """The step `verify`, but what has been through the first blocks goes on from there.

    That is a BegunTree after at least one cached token, all of the text before it being read.
    """

    def verified(target, text: ReadText, tree: Tree, *how):
        if isinstance(tree, BegunTree) and text.past_kvs is not None and not text.unread:
            target = Halfway(target, tree.begun)
        return verify(target, text, tree, *how)

    return verified


class EarlyExitDraft(Proposer):
    """Guesses a chain with the target's first `depth` blocks and a head on top of them.

    head: streams (..., C) -> logits (..., V). K: the most tokens a round. What the blocks wrote
    travels in the tree, a BegunTree. `going_on` makes use of it; without that step, the pass runs
    these blocks again: the same text, later.
    Raises ValueError for a depth that the target does not have, or K < 1.
    """

    reads = True  # the target's cache

    def __init__(self, target: GPTLanguageModel, depth: int, head: Callable, K: int = 3):
        if not 1 <= depth <= target.config.n_layer:
            raise ValueError(f"depth is {depth}; the target has {target.config.n_layer} blocks")
        check_whole(1, K=K)
        self.target, self.depth, self.head, self.K = target, depth, head, K
        self.vocab_size = target.config.vocab_size
        self.ids = torch.arange(self.vocab_size, device=target.device)[:, None, None]

    @torch.no_grad()
    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A BegunTree of min(K, most) tokens, q (N, V); the empty tree for none."""
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
        parents = [*range(-1, len(tokens) - 1)]
        return BegunTree(tokens, parents, torch.stack(rows), begun)


@dataclass
class OwnCache:
    """What a draft's own block has read of a text: its keys and values, of true tokens alone.

    start: where the text's context began then; after a restart, all positions are new.
    """

    start: int
    past: Tensor | None = None  # (2, 1, n_head, P, hs)


class AdapterDraft(EarlyExitDraft):
    """Guesses a chain with the target's first `depth` blocks and one of its own, as in Kangaroo.

    head: an exit_head with the adapter "block". The block's cache is its own, of the streams after
    block `depth`. It reads each token's true stream once, with the first guess of a round; what it
    read of guesses is forgotten after the round.
    Raises ValueError for a depth that the target does not have, or K < 1.
    """

    def __init__(self, target: GPTLanguageModel, depth: int, head: nn.Sequential, K: int = 3):
        super().__init__(target, depth, head, K)
        self.layers = (depth,)  # the streams that the loop keeps for it

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of min(K, most) tokens, q (N, V); none where the text's streams are not known."""
        P = text.position  # tokens before the current one
        own = text.memory(self, lambda: OwnCache(text.start))
        if own.start != text.start:
            own.start, own.past = text.start, None
        if P and text.hidden is None:
            return Tree.empty(self.vocab_size)
        (block, *rest), past = self.head, own.past
        past = None if past is None else past[..., :P, :]  # where it is asked twice

        def head(stream: Tensor) -> Tensor:  # (1, 1, C): the current token's, then a guess's
            nonlocal past
            known = 0 if past is None else past.shape[3]
            if known < P:  # the first of a round
                stream = torch.cat([text.hidden[None, known:], stream], dim=1)
            x, past = block.read(stream, past)
            own.past = past[..., : P + 1, :]
            return nn.Sequential(*rest)(x[:, -1:])

        plain = EarlyExitDraft(self.target, self.depth, head, self.K)
        return plain.propose(text, most, sampling, rng)


def save_exits(
    path: Path, exits: nn.ModuleDict, config: GPTConfig, tokenizer: CharTokenizer, facts: dict
) -> None:
    """Write exits of a target of this config, by depth and adapter ("1 block"), in float16.

    facts: anything JSON can hold.
    """
    shape = {"config": dataclasses.asdict(config), "exits": [*exits]}
    checkpoint.save_module(path, exits, tokenizer, facts, **shape)


def load_exits(
    path: Path = EXITS, device: str | torch.device = "cpu", adapter: str = "linear"
) -> dict[int, nn.Sequential]:
    """The shipped target's exits with this adapter, by the number of blocks before them.

    Linear ones come after block 1, 2 and 3, the others after 1 and 2: a block of its own after the
    third of four is all that an exit could save.
    Raises ValueError for an adapter that is none of ADAPTERS, or a file that is none of ours,
    FileNotFoundError if there is no such file.
    """
    if adapter not in ADAPTERS:
        raise ValueError(f"no adapter is called {adapter!r}; use one of {[*ADAPTERS]}")

    def build(header, tensors):
        names = [name.split(" ", 1) for name in header["exits"]]
        target = GPTLanguageModel(GPTConfig(**header["config"]))
        return nn.ModuleDict(
            {f"{E} {adapter}": exit_head(target, adapter) for E, each in names if each == adapter}
        )

    make_one = "python data/make_drafts.py exits"
    exits = checkpoint.load_module(path, build, "exits", make_one, device)
    return {int(name.split()[0]): head for name, head in exits.items()}


def load_layerskip(path: Path = LAYERSKIP, device: str | torch.device = "cpu") -> GPTLanguageModel:
    """The target that was trained to be left early. Errors are those of checkpoint.load."""
    return checkpoint.load(path, device, make_one="python data/make_drafts.py layerskip")[0]


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
    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
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
