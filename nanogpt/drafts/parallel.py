"""Drafts that make all their guesses in one go: Medusa's heads.

Extra heads beside `lm_head` look at the same hidden state and guess the tokens after the next one
(Cai et al. 2024, arXiv 2401.10774). No guess knows the others.
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
from nanogpt.generate import Text, Tree
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling

MEDUSA = DATA_DIR / "checkpoints" / "medusa.safetensors"
MEDUSA2 = DATA_DIR / "checkpoints" / "medusa2.safetensors"


class MedusaHeads(nn.Module):
    """n_heads heads: the i-th, from 1, guesses the token i places after the one lm_head predicts.

    Each is h + SiLU(W h), then a linear layer without bias (Cai et al. 2024, section 2.1). W starts
    at 0. The weights of all heads lie in two tensors, so that a product serves all of them.
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
        """hidden (..., C), after the trunk's last LayerNorm -> logits (..., n_heads, V)."""
        n, C = self.mix.shape[:2]
        mixed = F.linear(hidden, self.mix.flatten(0, 1)).unflatten(-1, (n, C))
        features = hidden.unsqueeze(-2) + F.silu(mixed)  # (..., n_heads, C)
        return torch.einsum("...nc,nvc->...nv", features, self.out)


class MedusaDraft:
    """Guesses with Medusa's heads, all of them from the hidden state that is there already.

    By default a chain: its i-th token is drawn from head i's own q. With `parents` and `ranks` a
    tree of the same shape every time: node i is the ranks[i]-th likeliest token (from 0) of the
    head at its depth, and its q is one-hot, for it was not drawn.
    Raises ValueError for a tree deeper than there are heads, or without a rank for each node.
    """

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
    def propose(self, text: Text, most: int, sampling: Sampling, rng: RandomSource) -> Tree:
        """A chain or a tree, `most` deep at most; empty where no token has been read yet.

        The hidden state is that of the token before the current one: its lm_head predicted the
        current token, and head 1 guesses the next.
        """
        if text.hidden is None or most < 1:
            return Tree([], [], torch.empty(0, self.vocab_size, dtype=torch.float64))
        logits = self.heads(text.hidden[-1])[:most]  # (depth, V)
        if self.parents is not None:
            return self.fixed(logits.argsort(descending=True, stable=True).tolist())
        q = sampling.probs(logits)
        tokens = [rng.categorical(row) for row in q]
        return Tree(tokens, list(range(-1, len(tokens) - 1)), q)

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
    order = logits.topk(n_ranks, dim=-1).indices  # (B, T, n_heads, n_ranks)
    return [
        (order[:, : -2 - head, head] == tokens[:, 2 + head :, None]).double().mean((0, 1)).tolist()
        for head in range(order.shape[2])
    ]


def load_accuracies(path: Path = MEDUSA) -> list[list[float]]:
    """Those of the shipped heads on text that they were not trained on. Errors are `load`'s."""
    load(path)
    return checkpoint.read_header(path)["facts"]["accuracies"]


def save(
    path: Path,
    heads: MedusaHeads,
    tokenizer: CharTokenizer,
    facts: dict,
    target: GPTLanguageModel | None = None,
) -> None:
    """Write the heads, and the target if it was trained with them, in float16."""
    tensors = {f"heads/{name}": t for name, t in heads.state_dict().items()}
    if target is not None:
        tensors |= {f"target/{name}": t for name, t in target.state_dict().items()}
    header = {
        "config": dataclasses.asdict(heads.config),
        "vocabulary": tokenizer.chars,
        "facts": facts,
    }
    tensors = {name: t.detach().cpu().half().contiguous() for name, t in tensors.items()}
    checkpoint.save_tensors(path, tensors, header)


def load(path: Path = MEDUSA) -> MedusaHeads:
    """The shipped heads, trained on the shipped target, which stayed as it is; in float32.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """
    names = ("heads/mix", "heads/out")
    header, tensors = checkpoint.load_tensors(path, names, "python data/make_drafts.py medusa")
    mix, out = (tensors[name].float() for name in names)
    heads = MedusaHeads(GPTConfig(**header["config"]), len(mix))
    heads.load_state_dict({"mix": mix, "out": out})
    return heads.requires_grad_(False).eval()


def load_with_target(path: Path = MEDUSA2) -> tuple[GPTLanguageModel, MedusaHeads]:
    """The target and the heads that were trained together (Medusa-2), in float32.

    Errors are those of `load`.
    """
    heads = load(path)
    target = GPTLanguageModel(heads.config)
    names = [f"target/{name}" for name in target.state_dict()]
    _, tensors = checkpoint.load_tensors(path, names, "python data/make_drafts.py medusa2")
    target.load_state_dict({name.removeprefix("target/"): tensors[name].float() for name in names})
    return target.requires_grad_(False).eval(), heads
