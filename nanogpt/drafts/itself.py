"""The target as its own draft: its first blocks guess, and the rest of it checks.

The draft needs no cache and no reading of its own. The keys and values that its blocks write are
the target's, so verification goes on where drafting stopped.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.generate import Text, Tree
from nanogpt.model import Begun, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling

EXITS = DATA_DIR / "checkpoints" / "exits.safetensors"
LAYERSKIP = DATA_DIR / "checkpoints" / "layerskip.safetensors"


def exit_head(target: GPTLanguageModel) -> nn.Sequential:
    """A head to train, for any depth: it begins as a copy of the target's own ln_f and lm_head."""
    return copy.deepcopy(nn.Sequential(target.ln_f, target.lm_head)).requires_grad_()


class EarlyExitDraft:
    """Guesses a chain with the target's first `depth` blocks and a head on top of them.

    head: streams (..., C) -> logits (..., V). K: the most tokens a round. The blocks see each token
    once, for draft and verification alike: what they wrote travels in the tree (`Tree.begun`).
    Raises ValueError for a depth that the target does not have, or K < 1.
    """

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
            return Tree([], [], torch.empty(0, self.vocab_size).double())
        begun = Begun(self.depth, torch.cat(streams, dim=1), past_kvs)
        return Tree(tokens, list(range(-1, len(tokens) - 1)), torch.stack(rows), begun)


def save_exits(path: Path, exits: nn.ModuleDict, tokenizer: CharTokenizer, facts: dict) -> None:
    """Write exit heads, by depth, and `facts` (anything JSON can hold)."""
    tensors = {name: t.detach().contiguous() for name, t in exits.state_dict().items()}
    checkpoint.save_tensors(path, tensors, {"vocabulary": tokenizer.chars, "facts": facts})


def load_exits(path: Path = EXITS) -> dict[int, nn.Sequential]:
    """The shipped target's exit heads by the number of blocks before them: 1, 2, 3.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """
    names = ("0.weight", "0.bias", "1.weight")  # LayerNorm, Linear
    wanted = [f"{depth}.{name}" for depth in (1, 2, 3) for name in names]
    _, tensors = checkpoint.load_tensors(path, wanted, "python data/make_drafts.py exits")
    exits = {}
    for depth in (1, 2, 3):
        V, C = tensors[f"{depth}.1.weight"].shape
        exits[depth] = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, V, bias=False)).eval()
        exits[depth].load_state_dict({name: tensors[f"{depth}.{name}"] for name in names})
    return exits


def load_layerskip(path: Path = LAYERSKIP) -> GPTLanguageModel:
    """The target that was trained to be left early. Errors are those of checkpoint.load."""
    return checkpoint.load(path, make_one="python data/make_drafts.py layerskip")[0]
