"""Drafts that make all their guesses in one go: Medusa's heads, and a block drafter.

Extra heads beside `lm_head` look at the same hidden state and guess the tokens after the next one
(Cai et al. 2024, arXiv 2401.10774). No guess knows the others. A block drafter asks a small model
of its own for all places at once, and may tell each place afterwards what was drawn before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.model import FeedForward, GPTConfig, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.trees.tree import Proposer, ReadText, Tree, side_by_side

MEDUSA = DATA_DIR / "checkpoints" / "medusa.safetensors"
KEPT = DATA_DIR / "checkpoints" / "medusa_kept.safetensors"  # trained with overlap_loss
BLOCK = DATA_DIR / "checkpoints" / "block.safetensors"


def hidden_states(model: GPTLanguageModel, idx: Tensor) -> Tensor:
    """What `lm_head` reads: idx (B, T) -> (B, T, C)."""
    return model.ln_f(model.states(idx)[0][-1])


class MedusaHeads(nn.Module):
    """n_heads heads: the i-th, from 1, guesses the token i places after the one lm_head predicts.

    Each is h + SiLU(W h), then a linear layer without bias (Cai et al. 2024, section 2.1.1). W is 0
    at first. The weights of all heads lie in two tensors, so that a product serves all of them.
    """

    def __init__(self, config: GPTConfig, n_heads: int):
        super().__init__()
        V, C = config.vocab_size, config.n_embd
        self.config = config
        self.mix = nn.Parameter(torch.zeros(n_heads, C, C))  # W of each head
        self.out = nn.Parameter(torch.zeros(n_heads, V, C))

    @classmethod
    def on(cls, target: GPTLanguageModel, n_heads: int) -> MedusaHeads:
        """New heads for this target: at first each repeats its lm_head."""
        heads = cls(target.config, n_heads).to(target.lm_head.weight)
        heads.out.data[:] = target.lm_head.weight.detach()
        return heads

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., C), after the last LayerNorm -> logits (..., n_heads, V)."""
        n, C = self.mix.shape[:2]
        mixed = F.linear(hidden, self.mix.flatten(0, 1)).unflatten(-1, (n, C))
        features = hidden.unsqueeze(-2) + F.silu(mixed)  # (..., n_heads, C)
        return torch.einsum("...nc,nvc->...nv", features, self.out)


def medusa_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Σ .8^i times the cross-entropy of head i, in nats (Cai et al. 2024, section 2.2.1).

    logits (B, T, n_heads, V) after each of tokens (B, T). lm_head predicts the next token; head i,
    from 1, is asked for the token i places further on.
    """
    loss = logits.new_zeros(())
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        loss = loss + 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss


def overlap_loss(logits: Tensor, p: Tensor) -> Tensor:
    """Σ .8^i times the share of head i's draws that the target rejects: 1 - Σ min(p, q).

    logits (B, T, n_heads, V) and the target's p (B, T, V), after the same tokens. What head i, from
    1, says after a token is judged by p as it is i tokens later. The cross-entropy is least at the
    average of these p, this at the q that is kept most (LK losses, arXiv 2602.23881).
    """
    loss = logits.new_zeros(())
    for i in range(1, logits.shape[2] + 1):
        q = torch.softmax(logits[:, :-i, i - 1], dim=-1)
        kept = torch.minimum(q, p[:, i:]).sum(-1).mean()
        loss = loss + 0.8**i * (1 - kept)
    return loss


class MedusaDraft(Proposer):
    """Guesses with Medusa's heads, all of them from the hidden state that is there already.

    By default a chain: its i-th token is drawn from head i's own q. With `parents` and `ranks` a
    tree of the same shape every time: node i is the ranks[i]-th likeliest token (from 0) of the
    head at its depth, and its q is one-hot, for it was not drawn.
    Raises ValueError for a tree deeper than there are heads, or without a rank for each node.
    """

    reads = True  # the hidden states

    def __init__(
        self,
        heads: MedusaHeads,
        parents: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
    ):
        self.heads, self.vocab_size = heads, heads.config.vocab_size
        self.parents, self.ranks = parents, ranks
        self.depths = depths_of(parents or [])
        deepest, n_heads = 1 + max(self.depths, default=-1), len(heads.mix)
        if deepest > n_heads:
            raise ValueError(f"the tree is {deepest} deep, for {n_heads} heads; cut it")
        n_nodes, n_ranks = len(self.depths), len(ranks or [])
        if n_ranks != n_nodes:
            raise ValueError(f"{n_nodes} parents, {n_ranks} ranks; one rank each")

    @torch.no_grad()
    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain or a tree, `most` deep at most; empty where no token has been read yet.

        The hidden state is that of the token before the current one: its lm_head predicted the
        current token, and head 1 guesses the next.
        """
        if text.hidden is None or most < 1:
            return Tree.empty(self.vocab_size)
        logits = self.heads(text.hidden[-1])[:most]  # (depth, V)
        if self.parents is not None:
            return self.fixed(logits.argsort(descending=True, stable=True).tolist())
        q = sampling.probs(logits)
        tokens = [rng.categorical(row) for row in q]
        return Tree.chain(tokens, q)

    def fixed(self, order: list[list[int]]) -> Tree:
        """The tree filled with tokens: order[d] are those for depth d, the likeliest first.

        Deeper nodes are left out.
        """
        tokens, parents, new = [], [], {-1: -1}
        for node, depth in enumerate(self.depths):
            if depth < len(order):
                new[node] = len(tokens)
                tokens.append(order[depth][self.ranks[node]])
                parents.append(new[self.parents[node]])
        one_hot = torch.eye(self.vocab_size, dtype=torch.float64)[tokens]
        return Tree(tokens, parents, one_hot)


def depths_of(parents: Sequence[int]) -> list[int]:
    """How deep each node of a tree lies; those after the current token, at 0."""
    depths = []
    for parent in parents:
        depths.append(0 if parent == -1 else depths[parent] + 1)
    return depths


def accuracies(logits: Tensor, tokens: Tensor, n_ranks: int = 8) -> list[list[float]]:
    """Of each head, how often the right token was its guess of rank 0, 1, … n_ranks - 1.

    logits (B, T, n_heads, V): of the heads at each of tokens (B, T).
    """
    order = logits.topk(n_ranks, dim=-1).indices.cpu()  # (B, T, n_heads, n_ranks)
    tokens = tokens.cpu()
    return [
        (order[:, : -2 - head, head] == tokens[:, 2 + head :, None]).double().mean((0, 1)).tolist()
        for head in range(order.shape[2])
    ]


def load_accuracies(path: Path = MEDUSA) -> list[list[float]]:
    """Those of the shipped heads on text that they were not trained on. Errors are `load`'s."""
    load(path)
    return checkpoint.read_header(path)["facts"]["accuracies"]


def save(path: Path, heads: MedusaHeads, tokenizer: CharTokenizer, facts: dict) -> None:
    """Write the heads, in float16."""
    shape = {"config": dataclasses.asdict(heads.config)}
    checkpoint.save_module(path, {"heads": heads}, tokenizer, facts, **shape)


def load(path: Path = MEDUSA, device: str | torch.device = "cpu") -> MedusaHeads:
    """The shipped heads, trained on the shipped target, which stayed as it is; in float32.

    On the device of their target. path: MEDUSA, or KEPT for those that learned to be kept.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """
    make_one = f"python data/make_drafts.py {'medusa_kept' if path == KEPT else 'medusa'}"

    def build(header, tensors):
        return {"heads": MedusaHeads(GPTConfig(**header["config"]), len(tensors["heads/mix"]))}

    return checkpoint.load_module(path, build, "heads of Medusa's", make_one, device)["heads"]


class InjectedBlock(nn.Module):
    """A block of a transformer whose rows read features, too: as keys and values beside their own.

    The features are injected there and go no further (DFlash, arXiv 2602.06036). All rows see all
    others: there is nothing to hide, for no row holds a token that another one guesses.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        C, self.n_head = config.n_embd, config.n_head
        self.query = nn.Linear(C, C, bias=False)
        self.key_value = nn.Linear(C, 2 * C, bias=False)
        self.proj, self.ffwd = nn.Linear(C, C), FeedForward(config)
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)

    def forward(self, x: Tensor, seen: Tensor, may: Tensor | None = None) -> Tensor:
        """x (B, K, C), seen (B, w, C) -> (B, K, C). may (B, 1, 1, w+K) bool: True = is there."""
        rows, (B, K, C) = self.ln1(x), x.shape
        read = torch.cat([seen, rows], dim=1)  # (B, w+K, C)
        q = self.query(rows).view(B, K, self.n_head, -1).transpose(1, 2)
        kv = self.key_value(read).view(B, -1, 2, self.n_head, C // self.n_head)
        k, v = kv.permute(2, 0, 3, 1, 4)  # (B, n_head, w+K, hs) each
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        x = x + self.proj(attended.transpose(1, 2).reshape(B, K, C))
        return x + self.ffwd(self.ln2(x))


class BlockDrafter(nn.Module):
    """Guesses the next K tokens in one pass: the current token, then a MASK for each later place.

    layers: after which of the target's blocks, from 1, the streams are read; the last `reach`
    places of them, projected to C. What comes out goes through the target's lm_head. A low-rank
    table, W1[token] W2, says how a token changes the logits of the place after it (DSpark's Markov
    head, arXiv 2607.05147).
    """

    def __init__(self, config: GPTConfig, layers: Sequence[int], K: int, reach=16, rank=32):
        super().__init__()
        C, V = config.n_embd, config.vocab_size
        self.config, self.layers, self.K, self.reach = config, tuple(layers), K, reach
        n = len(self.layers) * C
        self.project = nn.Sequential(nn.LayerNorm(n), nn.Linear(n, C, bias=False))
        self.token = nn.Embedding(V + 1, C)  # the last one is MASK
        self.place = nn.Embedding(K, C)
        self.distance = nn.Embedding(reach, C)  # of a feature; the last one's is the nearest
        self.block, self.ln = InjectedBlock(config), nn.LayerNorm(C)
        self.w1, self.w2 = nn.Embedding(V, rank), nn.Linear(rank, V, bias=False)
        for table in (self.token, self.place, self.distance, self.w1):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.w2.weight)  # at first it corrects nothing

    def forward(self, seen: Tensor, tokens: Tensor, may: Tensor | None = None) -> Tensor:
        """What lm_head reads: (B, K, C); row i guesses the token i+1 places after the current one.

        seen (B, w, C): projected features of the last w <= reach tokens before the current ones,
        tokens (B). may (B, 1, 1, w+K) bool: what is there to be read; all, by default.
        """
        B, w = seen.shape[:2]
        idx = torch.full((B, self.K), self.config.vocab_size, device=tokens.device)
        idx[:, 0] = tokens
        x = self.token(idx) + self.place.weight
        seen = seen + self.distance.weight[self.reach - w :]
        return self.ln(self.block(x, seen, may))

    def corrected(self, logits: Tensor, before: Tensor) -> Tensor:
        """logits (..., V) of a place, told which token (...) stands before it."""
        return logits + self.w2(self.w1(before))


def guess_blocks(drafter, target, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
    """What a block drafter guesses in the middle of texts x (B, T), where the future is known.

    starts (B, A): where the current tokens of A blocks a text stand, from 1 to T-K. Returns logits
    (B A, K, V), not corrected; the token (B A, K) before each place; the target's p (B A, K, V).
    """
    rows = torch.arange(len(x))[:, None, None]
    back = starts[..., None] + torch.arange(-drafter.reach, 0)  # (B, A, reach)
    places = starts[..., None] + torch.arange(drafter.K)  # (B, A, K)
    with torch.no_grad():
        streams, _ = target.states(x)
        p = torch.softmax(target.lm_head(target.ln_f(streams[-1])), dim=-1)
    features = drafter.project(side_by_side(streams, drafter.layers))  # (B, T, C)
    seen = features[rows, back.clamp(min=0)].flatten(0, 1)
    before = x[rows, places].flatten(0, 1)
    may = F.pad(back >= 0, (0, drafter.K), value=True).flatten(0, 1)[:, None, None]
    hidden = drafter(seen, before[:, 0], may.to(x.device))
    return target.lm_head(hidden), before, p[rows, places].flatten(0, 1)


def block_loss(drafter, target, x: Tensor, generator, n_starts: int = 24) -> Tensor:
    """How badly a block drafter guesses in the middle of texts x (B, T), in nats.

    The cross-entropy under the target's p of each place's q as it is, and of the same told the
    token before; place i, from 0, weighs .9^i in the mean. Of each text, n_starts blocks are
    guessed. x: any text; the target's own is best.
    """
    B, T = x.shape
    starts = torch.randint(1, T - drafter.K + 1, (B, n_starts), generator=generator)
    apart, before, p = guess_blocks(drafter, target, x, starts)
    told = drafter.corrected(apart, before)
    said = torch.log_softmax(apart, -1) + torch.log_softmax(told, -1)  # (B n_starts, K, V)
    nats = -(p * said).sum(-1).mean(0)  # (K)
    far = 0.9 ** torch.arange(drafter.K, device=x.device)
    return (far * nats).sum() / far.sum()


class BlockDraft(Proposer):
    """Guesses a chain of up to K tokens from one pass of a block drafter.

    markov: each token is drawn from its logits corrected by the token drawn before it; otherwise
    all are drawn apart. The q that is claimed is the one that the token was drawn from.
    Raises ValueError unless 1 <= K <= the drafter's (the default).
    """

    reads = True  # the hidden states

    def __init__(self, target: GPTLanguageModel, drafter: BlockDrafter, K=None, markov=True):
        self.K = drafter.K if K is None else K
        if not 1 <= self.K <= drafter.K:
            raise ValueError(f"K is {K}; this drafter has 1 to {drafter.K} places")
        self.drafter, self.lm_head, self.markov = drafter, target.lm_head, markov
        self.layers, self.vocab_size = drafter.layers, drafter.config.vocab_size

    def seen(self, text: ReadText) -> Tensor:
        """Its last features (w, C), each projected once; a restart makes all of them new."""
        kept = text.memory(self, lambda: {"start": None})
        if kept["start"] != text.start or len(kept["features"]) > len(text.hidden):
            kept |= {"start": text.start, "features": self.drafter.project(text.hidden[:0])}
        known = len(kept["features"])
        if known < len(text.hidden):
            new = self.drafter.project(text.hidden[known:])
            kept["features"] = torch.cat([kept["features"], new])
        return kept["features"][-self.drafter.reach :]

    @torch.no_grad()
    def propose(self, text: ReadText, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain of min(K, most) guesses; empty where no token has been read yet."""
        n = min(self.K, most)
        if text.hidden is None or n < 1:
            return Tree.empty(self.vocab_size)
        before = torch.tensor(text.tokens[-1:], device=text.hidden.device)
        logits = self.lm_head(self.drafter(self.seen(text)[None], before)[0, :n])  # (n, V)
        tokens, rows = [], []
        for row in logits:
            row = self.drafter.corrected(row, before)[0] if self.markov else row
            rows.append(sampling.probs(row))
            tokens.append(rng.categorical(rows[-1]))
            before = before.new_tensor(tokens[-1:])
        return Tree.chain(tokens, torch.stack(rows))


def save_block(path: Path, drafter: BlockDrafter, tokenizer: CharTokenizer, facts: dict) -> None:
    """Write the drafter in float16."""
    shape = {
        "layers": drafter.layers,
        "K": drafter.K,
        "reach": drafter.reach,
        "rank": drafter.w1.embedding_dim,
    }
    config = dataclasses.asdict(drafter.config)
    checkpoint.save_module(path, drafter, tokenizer, facts, config=config, shape=shape)


def load_block(path: Path = BLOCK, device: str | torch.device = "cpu") -> BlockDrafter:
    """The shipped block drafter, trained on the shipped target; in float32, on its device.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """

    def build(header, tensors):
        return BlockDrafter(GPTConfig(**header["config"]), **header["shape"])

    make_one = "python data/make_drafts.py block"
    return checkpoint.load_module(path, build, "block drafter", make_one, device)
