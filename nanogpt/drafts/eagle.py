"""Drafts that carry the target's own features on: EAGLE, its trees, and EAGLE-3.

A head of one block reads the feature of each token and the token that came after it, and gives the
feature of that one: the target's `lm_head` makes a q of it (Li et al. 2024, arXiv 2401.15077).
Its next guess starts from its own feature, until the target has read the tokens and has true ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.generate import check_whole
from nanogpt.model import GPTConfig, GPTLanguageModel, causal_mask
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import Proposer, ReadText, Tree, side_by_side, tree_mask

EAGLE = DATA_DIR / "checkpoints" / "eagle.safetensors"
EAGLE3 = DATA_DIR / "checkpoints" / "eagle3.safetensors"
MTP = DATA_DIR / "checkpoints" / "mtp.safetensors"


class EagleHead(nn.Module):
    """One block that reads pairs, a feature and the token after it, and gives the next feature.

    layers: None for EAGLE, whose feature is the target's hidden state after `ln_f`; for EAGLE-3 two
    or more of the target's blocks, from 1, whose streams stand side by side, and are mixed into one
    feature first (Li et al. 2025, arXiv 2503.01840). norms: RMSNorm for feature and embedding
    before they meet, as in DeepSeek-V3's multi-token prediction. With either, a LayerNorm of the
    head's own stands before the lm_head, and what is read next is the output before it.
    The embeddings and the lm_head are the target's (`share`); they are no weights of the head.
    Raises ValueError for one layer, or one that is none of the target's.
    """

    def __init__(self, config: GPTConfig, layers: Sequence[int] | None = None, norms: bool = False):
        nn.Module.__init__(self)
        check_layers(layers, config.n_layer)
        C = config.n_embd
        self.config, self.layers, self.shared = config, layers, ()
        self.mix = nn.Linear(len(layers) * C, C) if layers else nn.Identity()
        self.norm_feature = nn.RMSNorm(C) if norms else nn.Identity()
        self.norm_token = nn.RMSNorm(C) if norms else nn.Identity()
        self.fc = nn.Linear(2 * C, C)
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv = nn.Linear(C, 3 * C, bias=False)  # of all heads, in one product
        self.proj = nn.Linear(C, C)
        self.ffwd = nn.Sequential(nn.Linear(C, 4 * C), nn.ReLU(), nn.Linear(4 * C, C))
        self.ln_f = nn.LayerNorm(C) if layers or norms else nn.Identity()
        for linear in (self.qkv, self.proj, *self.ffwd[::2]):  # as the target's own begin
            nn.init.normal_(linear.weight, std=0.1)

    def share(self, target: GPTLanguageModel) -> EagleHead:
        """Read with this target's embeddings, and guess with its lm_head; returns the head.

        To be called before anything else; the draft and the training do.
        Raises ValueError if the target has another width.
        """
        own, its = self.config.n_embd, target.config.n_embd
        if own != its:
            raise ValueError(
                f"the head is {own} wide (n_embd), the target {its}; use one made for it"
            )
        # In a tuple, modules are no part of this one: neither trained nor saved with it.
        self.shared = target.token_embedding_table, target.lm_head
        return self

    def empty(self, B: int = 1) -> Tensor:
        """The cache of no pair: (2, B, n_head, 0, hs)."""
        n_head = self.config.n_head
        return self.fc.weight.new_zeros(2, B, n_head, 0, self.config.n_embd // n_head)

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        past: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """features (B, T, F), tokens (B, T) -> outputs (B, T, C), and the cache with T pairs more.

        features[t] is of token t and tokens[t] is the one AFTER it; F is the target's (n C with
        `layers`), or C for what the head has put out itself. past (2, B, n_head, P, hs): keys and
        values of P pairs. mask (T, P+T) bool, True = may attend, causal by default. No positions
        are added: the features know theirs, and with them α came out the same (.73 both).
        """
        (B, T), C = tokens.shape, self.config.n_embd
        past = self.empty(B) if past is None else past
        P = past.shape[3]
        if mask is None and T > 1:  # a single pair may see all
            mask = causal_mask(T, P, tokens.device)
        table, _ = self.shared
        token = self.norm_token(table(tokens))
        feature = self.mix(features) if features.shape[-1] > C else features
        x = self.fc(torch.cat([token, self.norm_feature(feature)], dim=-1))  # (B, T, C)

        qkv = self.qkv(self.ln1(x)).view(B, T, 3, self.config.n_head, -1).permute(2, 0, 3, 1, 4)
        new_past = torch.cat([past, qkv[1:]], dim=3)  # (2, B, n_head, P+T, hs)
        attended = F.scaled_dot_product_attention(qkv[0], *new_past, attn_mask=mask)
        x = x + self.proj(attended.transpose(1, 2).reshape(B, T, C))
        return x + self.ffwd(self.ln2(x)), new_past

    def features_of(self, target: GPTLanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the head reads of tokens (B, T), (B, T, F), and their hidden states (B, T, C)."""
        streams, _ = target.states(tokens)
        hidden = target.ln_f(streams[-1])
        return side_by_side(streams, self.layers) if self.layers else hidden, hidden

    def logits(self, out: Tensor) -> Tensor:
        """Outputs (..., C) -> the target's lm_head of them, (..., V)."""
        return self.shared[1](self.ln_f(out))

    def unrolled(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """The outputs (B, T, C) of `steps` steps in a row, teacher-forced; EAGLE-3 trains on them.

        features (B, T, F), tokens (B, T) as in forward. Step 0 reads the features. At place i, step
        s reads what step s-1 put out at i-1 in place of the feature, and sees what that one saw,
        and itself: the true pairs up to i-s, then one entry of each step. So does a draft that has
        guessed s tokens. The first s places of step s mean nothing.
        """
        T, outs = tokens.shape[1], []
        past, mask = None, causal_mask(T, device=tokens.device)
        itself = torch.eye(T, dtype=torch.bool, device=tokens.device)
        for _ in range(steps):
            out, past = self(features, tokens, past, mask)
            outs.append(out)
            features, mask = out.roll(1, 1), torch.cat([mask.roll(1, 0), itself], dim=1)
        return outs


def check_layers(layers: Sequence[int] | None, n_layer: int) -> None:
    """Raise ValueError for one layer alone, or one that is none of the target's n_layer blocks."""
    if layers is not None and not (len(layers) > 1 and all(1 <= x <= n_layer for x in layers)):
        raise ValueError(
            f"layers is {layers}; give two or more of the target's blocks, 1 … {n_layer}, "
            "or None for its hidden states"
        )


def eagle_loss(
    head: EagleHead,
    target: GPTLanguageModel,
    x: Tensor,
    generator: torch.Generator,
    unroll: int = 1,
    match: bool = False,
    noise: float = 0.0,
) -> Tensor:
    """How badly a head guesses what a target, which stays as it is, says after x (B, T), in nats.

    The loss of a step is the cross-entropy of q under the target's p (its probabilities, not the
    next token: the same gradient on average, with less noise). unroll: how many steps, each on the
    outputs of the one before, as in EAGLE-3's training-time test; step s, from 0, weighs .8^s.
    match: EAGLE's loss instead, smooth L1 between output and true feature plus a tenth of the
    cross-entropy, for a head whose output is a hidden state. noise: the true features are moved by
    up to this much, uniformly, so that the head bears with features that are nearly right. x: text
    like the target's; its own is best.
    """
    with torch.no_grad():
        features, hidden = head.share(target).features_of(target, x)
        p = torch.softmax(target.lm_head(hidden[:, 1:]), dim=-1)  # after the pairs' tokens
        moved = 2 * torch.rand(features.shape, generator=generator) - 1
        features = features + noise * moved.to(features.device)
    loss = 0.0
    for s, out in enumerate(head.unrolled(features[:, :-1], x[:, 1:], unroll)):
        out, right = out[:, s:], hidden[:, 1 + s :]  # before place s, step s means nothing
        asked = F.cross_entropy(head.logits(out).flatten(0, 1), p[:, s:].flatten(0, 1))
        if match:
            asked = F.smooth_l1_loss(out, right) + 0.1 * asked
        loss = loss + 0.8**s * asked
    return loss


def mtp_loss(head, hidden: Tensor, tokens: Tensor, steps: int = 1) -> Tensor:
    """How badly the layer guesses the token after next: mean cross-entropy, in nats.

    hidden (B, T, C): the target's hidden states of the first T of tokens (B, T+1). The layer reads
    that of token i and token i+1, and is asked for token i+2 (DeepSeek-V3, arXiv 2412.19437,
    section 2.2). steps > 1: it then goes on from its own outputs, as a draft does (the head's
    `unrolled`), and the loss is the mean over the steps.
    """
    outs = head.unrolled(hidden[:, :-1], tokens[:, 1:-1], steps)
    losses = [
        F.cross_entropy(head.logits(out[:, s:]).flatten(0, 1), tokens[:, 2 + s :].flatten())
        for s, out in enumerate(outs)
    ]
    return torch.stack(losses).mean()


class JointLoss:
    """What a target and its MTP layer learn together: the target's own loss plus λ times mtp_loss.

    λ is .3 for the first 10 / 14.8 of the updates and .1 for the rest, as DeepSeek-V3 did with its
    tokens (section 4.2). unroll: mtp_loss's `steps`. `said`: of each update so far the two losses,
    in nats, without λ.
    """

    def __init__(self, target, head: EagleHead, updates: int, unroll: int = 1):
        self.target, self.head = target, head.share(target)
        self.updates, self.unroll = updates, unroll
        self.said: list[tuple[float, float]] = []

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of the next update, on windows x and y (B, T), y one token later."""
        hidden = self.target.ln_f(self.target.states(x)[0][-1])
        logits = self.target.lm_head(hidden)
        own = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        ahead = mtp_loss(self.head, hidden, torch.cat([x, y[:, -1:]], dim=1), self.unroll)
        weight = 0.3 if len(self.said) < self.updates * 10 / 14.8 else 0.1
        self.said.append((own.item(), ahead.item()))
        return own + weight * ahead


@dataclass
class Pairs:
    """What a head has read of a text: the cache of its pairs, and how many of them are true.

    start: where the text's context began then; after a restart, all positions are new.
    """

    start: int
    past: Tensor  # (2, 1, n_head, P, hs)
    true: int = 0


class EagleDraft(Proposer):
    """Guesses a chain of up to K tokens, each drawn from the head's q after those before it.

    Once a token is cached by the target, the head reads its true feature, all new ones in one pass,
    and their entries stay. What it read of its own features is forgotten after each round.
    Raises ValueError for K < 1.
    """

    reads = True  # the features

    def __init__(self, target: GPTLanguageModel, head: EagleHead, K: int = 3):
        check_whole(1, K=K)
        self.head, self.K, self.layers = head.share(target), K, head.layers
        self.vocab_size, self.device = target.config.vocab_size, target.device

    @torch.no_grad()
    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """Up to min(K, most) guesses, q (N, V); none where no token has been read yet."""
        if text.hidden is None or most < 1:
            return Tree.empty(self.vocab_size)
        out, past = self.read(text)
        return self.guess(out, past, min(self.K, most), sampling, rng)

    def read(self, text: ReadText) -> tuple[Tensor, Tensor]:
        """The output of the last true pair (1, 1, C), and the cache of all P pairs.

        They are (feature of the first token, second token) … (feature of the last cached token,
        current token). Only those not read before are read, in one pass.
        """
        P = len(text.hidden)
        pairs = text.memory(self, lambda: Pairs(0, self.head.empty()))
        if pairs.start != text.start:  # a restart: new positions, so new features
            pairs.start, pairs.true = text.start, 0
        known = min(pairs.true, P - 1)  # the last pair is always read: a guess starts from it
        tokens = torch.tensor([text.tokens[known - P :]], device=self.device)
        out, past = self.head(text.hidden[None, known:], tokens, pairs.past[..., :known, :])
        pairs.past, pairs.true = past, P
        return out[:, -1:], past

    def guess(
        self, out: Tensor, past: Tensor, K: int, sampling: Sampling, rng: RandomSource
    ) -> Tree:
        """A chain of K tokens, after the output (1, 1, C) of the last of the pairs in `past`."""
        tokens, rows = [], []
        while True:
            q = sampling.probs(self.head.logits(out).view(-1))  # (V,)
            tokens.append(rng.categorical(q))
            rows.append(q)
            if len(tokens) == K:
                return Tree.chain(tokens, torch.stack(rows))
            token = torch.tensor([tokens[-1:]], device=self.device)
            # Its own output in place of a feature; the entry is in `past` and not in what is kept.
            out, past = self.head(out, token, past)


class EagleTree(EagleDraft):
    """Guesses a tree that is wide where the head is unsure, as EAGLE-2 does.

    A node's value is the product of the head's q on its path: how likely the target is to come that
    way, as far as the head knows (Li et al. 2024, arXiv 2406.16858). At each of K depths, the k
    most valuable nodes of the last one get their k likeliest tokens as children. Of all, the
    `nodes` most valuable are verified. Nothing is drawn, so q is one-hot.
    Raises ValueError for k, K or nodes below 1.
    """

    def __init__(
        self, target: GPTLanguageModel, head: EagleHead, k: int = 4, K: int = 4, nodes: int = 10
    ):
        super().__init__(target, head, K)
        check_whole(1, k=k, nodes=nodes)
        self.k, self.nodes = k, nodes
        self.one_hot = torch.eye(self.vocab_size, dtype=torch.float64)

    def grow(self, out: Tensor, past: Tensor, K: int) -> tuple[list[int], list[int], list[float]]:
        """All nodes after the output (1, 1, C), K deep: their tokens, parents and values' logs."""
        P, level = past.shape[3], [-1]  # level: the nodes whose outputs are in `out`
        tokens, parents, values = [], [], []
        read, below = [-1], []  # what the head has read; of each, its parent in `read`
        for depth in range(1, K + 1):
            log_q = torch.log_softmax(self.head.logits(out[0]).cpu().double(), dim=-1)  # (n, V)
            log_q, best = log_q.sort(dim=-1, descending=True, stable=True)
            first = len(tokens)
            for row, node in enumerate(level):
                above = values[node] if depth > 1 else 0.0
                tokens += best[row, : self.k].tolist()
                values += (above + log_q[row, : self.k]).tolist()
                parents += [node] * (len(tokens) - len(parents))
            if depth == K:
                return tokens, parents, values
            rows = {node: row for row, node in enumerate(level)}
            level = best_of(range(first, len(tokens)), values, self.k)
            # One pass over the level: each node sees the true pairs, its ancestors and itself.
            below += [read.index(parents[node]) - 1 for node in level]
            read += level
            mask = tree_mask(below, P - 1)[-len(level) :].to(self.device)
            features = out[:, [rows[parents[node]] for node in level]]
            idx = torch.tensor([[tokens[node] for node in level]], device=self.device)
            out, past = self.head(features, idx, past, mask)

    def guess(
        self, out: Tensor, past: Tensor, K: int, sampling: Sampling, rng: RandomSource
    ) -> Tree:
        """The best tree, K deep, after the output (1, 1, C) of the last of the pairs in `past`."""
        tokens, parents, values = self.grow(out, past, K)
        # A node's value is at most its parent's, so that the parents of those kept are kept.
        kept = best_of(range(len(tokens)), values, self.nodes)
        new = {-1: -1} | {node: i for i, node in enumerate(kept)}
        tokens = [tokens[node] for node in kept]
        return Tree(tokens, [new[parents[node]] for node in kept], self.one_hot[tokens])


def best_of(nodes: Sequence[int], values: Sequence[float], n: int) -> list[int]:
    """The n nodes of the largest values, the first of equal ones; in their own order."""
    return sorted(sorted(nodes, key=lambda node: -values[node])[:n])


@torch.no_grad()
def alpha_by_depth(
    head: EagleHead, target: GPTLanguageModel, windows: Tensor, depths: int = 4
) -> list[tuple[float, float]]:
    """(α, its standard error) of the 1st, 2nd, … guess of a round, at temperature 1.

    windows (N, T): texts that the target wrote. α at depth d is Σ min(p, q), its mean over all
    places of the windows: p of the target after the true tokens, q of the head's guess number d
    after the same tokens, of which it reads true features but for the last d-1, where it reads its
    own outputs. So it is how often guess d is accepted where those before it were, if the tokens
    accepted were the text's own. The standard error is over the windows.
    """
    head.share(target)
    means = [[] for _ in range(depths)]
    for some in windows.split(64):
        features, hidden = head.features_of(target, some)
        p = torch.softmax(target.lm_head(hidden[:, 1:]).cpu().double(), dim=-1)  # (B, T-1, V)
        for d, out in enumerate(head.unrolled(features[:, :-1], some[:, 1:], depths)):
            q = torch.softmax(head.logits(out).cpu().double(), dim=-1)
            overlap = torch.minimum(p, q).sum(-1)[:, d:]  # before place d there is no guess
            means[d].append(overlap.mean(1))
    means = [torch.cat(each) for each in means]  # (N,) each
    return [(float(m.mean()), float(m.std() / len(m) ** 0.5)) for m in means]


def save(path: Path, head: EagleHead, tokenizer: CharTokenizer, facts: dict) -> None:
    """Write the head in float16, and `facts` (anything JSON can hold). No weight of the target."""
    shape = {
        "config": dataclasses.asdict(head.config),
        "layers": head.layers,
        "norms": isinstance(head.norm_token, nn.RMSNorm),
    }
    checkpoint.save_module(path, head, tokenizer, facts, **shape)


def load(path: Path = EAGLE, device: str | torch.device = "cpu") -> EagleHead:
    """A shipped head, EAGLE or EAGLE3, in float32, on the device of its target.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """

    def build(header, tensors):
        norms, layers = header["norms"], header["layers"]
        return EagleHead(GPTConfig(**header["config"]), layers and tuple(layers), norms)

    make_one = "python data/make_drafts.py eagle eagle3"
    return checkpoint.load_module(path, build, "head of EAGLE's", make_one, device)


def save_mtp(
    path: Path,
    target: GPTLanguageModel,
    layers: dict[str, EagleHead],
    tokenizer: CharTokenizer,
    facts: dict,
) -> None:
    """Write a target and its MTP layers, by name, in float16, and `facts` as in `save`."""
    shape = {"config": dataclasses.asdict(target.config), "layers": list(layers)}
    checkpoint.save_module(path, {"target": target, **layers}, tokenizer, facts, **shape)


def load_mtp(
    path: Path = MTP, device: str | torch.device = "cpu"
) -> tuple[GPTLanguageModel, dict[str, EagleHead]]:
    """The shipped target that was trained with an MTP layer, and its layers, in float32.

    "once" is the layer as it was trained with the target, for one guess; "again" the same, then
    trained on its own outputs. Raises FileNotFoundError if there is no such file, ValueError if it
    is none of ours.
    """

    def build(header, tensors):
        target = GPTLanguageModel(GPTConfig(**header["config"]))
        names = header["layers"] or ()  # a head of EAGLE's has None there, or numbers
        return {"target": target} | {n: EagleHead(target.config, norms=True) for n in names}

    make_one = "python data/make_drafts.py mtp"
    layers = checkpoint.load_module(path, build, "target with MTP layers", make_one, device)
    target = layers.pop("target")
    return target, {name: layer.share(target) for name, layer in layers.items()}
