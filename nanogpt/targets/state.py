"""A target with a state: two of its four layers keep no entries, only one matrix a head.

Gated linear attention: S_t = g_t S_{t-1} + k_t v_t', and a token reads q_t S_t. No slot of S can be
cut off, so each way to go back after a round remembers something else of the last pass: a state
after each token (`States`), the one before it (`Snapshot`), or what went into it (`Inputs`). A
`StateCache` holds that, and reads like the tuples.

Shapes: B texts, T tokens of this pass, P before it, H heads, hs = head size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.cache import KV, CacheObject, KVCache, first
from nanogpt.data import DATA_DIR
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.trees.tree import select

SHIPPED = DATA_DIR / "checkpoints" / "state.safetensors"
MAKE = "python data/make_drafts.py state"


@dataclass(frozen=True)
class StateConfig(GPTConfig):
    """GPTConfig, and which layers, from 1, have a state in place of entries.

    Raises ValueError as GPTConfig does, and for a layer that is not there.
    """

    recurrent: tuple[int, ...] = (2, 4)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "recurrent", tuple(self.recurrent))  # a list, in a file
        for layer in self.recurrent:
            if not 1 <= layer <= self.n_layer:
                raise ValueError(f"recurrent layer {layer}; there are layers 1 … {self.n_layer}")


class Pass(NamedTuple):
    """What a layer with a state took in during a pass."""

    S: Tensor  # (B, H, hs, hs), before it
    k: Tensor  # (B, H, T, hs)
    v: Tensor  # (B, H, T, hs)
    log_g: Tensor  # (B, H, T), below 0: the gates' logarithms
    path: Tensor  # (T, T) or (B, 1, T, T) bool: row i, the pass's tokens up to i

    @property
    def decay(self) -> Tensor:
        """(B, H, T, T): what is left at token i of what j wrote; 0 off i's path."""
        since = self.gates[..., :, None] - self.gates[..., None, :]
        return since.masked_fill(~self.path, -torch.inf).exp()

    @property
    def gates(self) -> Tensor:
        """(B, H, T): log of what is left of S after each token, on its path."""
        return (self.path.to(self.log_g) @ self.log_g[..., None])[..., 0]

    def read(self, q: Tensor) -> Tensor:
        """What each query (B, H, T, hs) finds in S and on its path, all at once."""
        found = (q @ self.k.transpose(-2, -1) * self.decay) @ self.v
        return found + self.gates.exp()[..., None] * (q @ self.S)

    def states(self) -> Tensor:
        """(B, H, T+1, hs, hs): S before the pass and after each token."""
        wrote = torch.einsum("bhij,bhjd,bhje->bhide", self.decay, self.k, self.v)
        after = self.gates.exp()[..., None, None] * self.S[:, :, None] + wrote
        return torch.cat([self.S[:, :, None], after], dim=2)


def replayed(S: Tensor, k: Tensor, v: Tensor, log_g: Tensor, taken: Tensor | float = 1.0) -> Tensor:
    """S (B, H, hs, hs) after the tokens where `taken` (B, 1, T) is 1, or all."""
    log_g = log_g * taken
    since = log_g.flip(-1).cumsum(-1).flip(-1)  # to the end, its own gate too
    weights = (since - log_g).exp() * taken
    return log_g.sum(-1).exp()[..., None, None] * S + (k * weights[..., None]).transpose(-2, -1) @ v


class Entries:
    """What a layer of attention remembers of a pass: its keys and values, old and new."""

    def __init__(self, heads: tuple[KV, ...], before: Sequence[int], lengths: Sequence[int]):
        self.heads, self.P = heads, before[0]  # how many entries may not be undone
        self.skip = [max(lengths) - n for n in lengths]  # zeros in front of a shorter text

    def after(self, rows: Sequence[int]) -> tuple[KV, ...]:
        """The heads' entries before the pass, and of these tokens of it."""
        if list(rows) == list(range(len(rows))):
            return first((self.heads,), self.P + len(rows))[0]
        return select((self.heads,), [*range(self.P), *(self.P + row for row in rows)])[0]

    def reached(self, rows: list[int]) -> list[int]:
        """As many of these rows as it can go back to: all."""
        return rows

    def of(self, b: int, before: int, n: int) -> Entries:
        """Those of text b, which has n in all, `before` of them for good."""
        own = slice(b, b + 1), slice(self.skip[b], self.skip[b] + n)
        return Entries(tuple((k[own], v[own]) for k, v in self.heads), [before], [n])

    held = 0  # bytes of states


class States:
    """Way 1: a state after each token of the pass."""

    def __init__(self, done: Pass, sure: Sequence[int], own: Sequence[int]):
        self.states = done.states()  # (B, H, T+1, hs, hs)

    def after(self, rows: Sequence[int]) -> tuple[tuple[Tensor]]:
        """((S,),) after these tokens of the pass."""
        return ((self.states[:, :, rows[-1] + 1 if rows else 0],),)

    def reached(self, rows: list[int]) -> list[int]:
        """As many of these rows as it can go back to: all."""
        return rows

    def of(self, b: int, before: int, n: int) -> States:
        """What belongs to text b."""
        other = copy.copy(self)
        other.states = self.states[b : b + 1, :, : n - before + 1]
        return other

    @property
    def held(self) -> int:
        """Bytes of states that it holds: one for each token, and the one before."""
        return size_of(self.states)


class Snapshot:
    """Way 2: the state before the guesses; what is kept is read once more."""

    def __init__(self, done: Pass, sure: Sequence[int], own: Sequence[int]):
        k = done.k
        row = torch.arange(k.shape[2], device=k.device)
        self.before, self.last = (
            replayed(*done[:4], (row < torch.tensor(n, device=k.device)[:, None, None]).to(k))
            for n in (sure, own)  # after those that are sure to stay, and all
        )
        self.T = [all_ - n for all_, n in zip(own, sure, strict=True)]

    def after(self, rows: Sequence[int]) -> tuple[tuple[Tensor]]:
        """((S,),) after none or all of the tokens that were not sure to stay."""
        return ((self.last if rows else self.before,),)

    def reached(self, rows: list[int]) -> list[int]:
        """As many of these rows as it can go back to: all of the pass, or none."""
        return rows if len(rows) == self.T[0] else []

    def of(self, b: int, before: int, n: int) -> Snapshot:
        """What belongs to text b."""
        other = copy.copy(self)
        other.before, other.last = self.before[b : b + 1], self.last[b : b + 1]
        other.T = [n - before if n - before == self.T[b] else -1]  # -1: was padded
        return other

    @property
    def held(self) -> int:
        """Bytes of states that it holds: the one that goes on, and one before."""
        return size_of(self.before, self.last)


class Inputs:
    """Way 3: the state before the pass, and the pass's keys, values and gates."""

    def __init__(self, done: Pass, sure: Sequence[int], own: Sequence[int]):
        *self.what, _ = done

    def after(self, rows: Sequence[int]) -> tuple[tuple[Tensor]]:
        """((S,),) after these tokens of the pass, rebuilt."""
        S, *tokens = self.what
        if len(rows) < tokens[0].shape[2]:
            tokens = [t[:, :, list(rows)] for t in tokens]
        return ((replayed(S, *tokens),),)

    def reached(self, rows: list[int]) -> list[int]:
        """As many of these rows as it can go back to: all."""
        return rows

    def of(self, b: int, before: int, n: int) -> Inputs:
        """What belongs to text b."""
        other = copy.copy(self)
        S, *tokens = self.what
        other.what = [S[b : b + 1], *(t[b : b + 1, :, : n - before] for t in tokens)]
        return other

    @property
    def held(self) -> int:
        """Bytes that it holds: of one state, and of what the tokens put in."""
        return size_of(*self.what)


Way = type[States] | type[Snapshot] | type[Inputs]
WAYS: dict[str, Way] = {"states": States, "snapshot": Snapshot, "inputs": Inputs}


def size_of(*tensors: Tensor) -> int:
    """Bytes of the numbers in these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


class Given:
    """What a pass goes on from, as it is: nothing of it can be undone."""

    def __init__(self, value: tuple):
        self.value = value

    def after(self, rows: Sequence[int]) -> tuple:
        """The value, whatever the rows: there are none."""
        return self.value


class StateCache(CacheObject):
    """Of each layer of a target with states, what it remembers of the last pass.

    It reads like the tuples: `cache[layer]` is (k, v) for each head of a layer of attention, and
    ((S,),) for one with a state, S (B, H, hs, hs). Nothing in it ever changes. It goes back within
    the last pass and no further. If only the state before the pass is remembered, it goes back to
    that: it is then `due` entries shorter than it was asked to be, and the loops read those tokens
    again with the next pass, as they read whatever a cache does not hold.
    """

    def __init__(
        self,
        layers: Sequence,
        before: Sequence[int],
        lengths: Sequence[int],
        taken: Sequence[int] | None = None,
        due: Sequence[int] | None = None,
        more: Sequence[int] | None = None,
    ):
        self.layers = list(layers)
        self.before = tuple(before)
        self.lengths = tuple(lengths)
        self.length = max(self.lengths)
        self.even = min(self.lengths) == self.length  # all texts have as many
        rows = range(self.length - self.before[0])
        self.taken = list(rows if taken is None else taken)  # tokens of the last pass
        self.due = tuple(due or [0] * len(self.lengths))  # sure to be read next
        self.more = more  # how many tokens of its own each text has in the next pass

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> tuple:
        """What the next pass goes on from: (k, v) of each head, or ((S,),)."""
        return self.layers[layer].after(self.taken)

    def kept(self, length: int) -> StateCache:
        """The first `length` entries. Errors are those of `gathered`."""
        return self.gathered(range(length))

    def gathered(self, slots: Sequence[int]) -> StateCache:
        """The entries in these slots, in order, or as many as it can go back to.

        Raises ValueError for slots that leave out what came before the last pass.
        """
        P, slots = self.before[0], list(slots)
        rows = [self.taken[slot - P] for slot in slots[P:]]
        if slots[:P] != list(range(P)) or rows != sorted(rows):
            raise ValueError(
                f"a state has no slots: after a pass over {self.length - P} tokens "
                f"it goes back to {P} or more, in their order, not to {len(slots)}; "
                "read the text anew"
            )
        held = min((layer.reached(rows) for layer in self.layers), key=len)
        lengths = [P + len(held)] * len(self.lengths)
        due = [len(rows) - len(held)] * len(self.lengths)
        return StateCache(self.layers, self.before, lengths, held, due)

    @classmethod
    def joined(
        cls, caches: Sequence[StateCache | None], more: Sequence[int] | None = None
    ) -> StateCache:
        """One cache for several texts, from a cache of each; None is an empty one.

        Entries are moved to the right, zeros before them. more: of each text, how many tokens the
        next pass has that are its own. Raises ValueError if all of them are None.
        """
        some = next((cache for cache in caches if cache is not None), None)
        if some is None:
            raise ValueError("no text has a cache; give the model None")
        lengths = [cache.length if cache else 0 for cache in caches]
        P, layers = max(lengths), []
        for i in range(len(some)):
            nothing = [tuple(t[:, :0] if t.dim() == 3 else t * 0 for t in kv) for kv in some[i]]
            each = [cache[i] if cache else nothing for cache in caches]
            together = (
                tuple(torch.cat([padded(t, P) for t in ts]) for ts in zip(*heads, strict=True))
                for heads in zip(*each, strict=True)  # one head's, of every text
            )
            layers.append(Given(tuple(together)))
        due = [cache.due[0] if cache else 0 for cache in caches]
        return cls(layers, lengths, lengths, [], due, more)

    def rows(self, lengths: Sequence[int]) -> list[StateCache]:
        """Each text's own cache: its first `lengths` entries."""
        return [
            StateCache([layer.of(b, P, n) for layer in self.layers], [P], [n], due=[due])
            for b, (P, n, due) in enumerate(zip(self.before, lengths, self.due, strict=True))
        ]

    @property
    def held(self) -> int:
        """Bytes that its layers with a state hold."""
        return sum(layer.held for layer in self.layers)


first.register(StateCache, StateCache.kept)
select.register(StateCache, StateCache.gathered)


def padded(t: Tensor, P: int) -> Tensor:
    """Entries (1, n, hs) with zeros in front, (1, P, hs); a state as it is."""
    return F.pad(t, (0, 0, P - t.shape[1], 0)) if t.dim() == 3 else t


class GatedLinearAttention(nn.Module):
    """Heads that write k v' into a state, which fades, and read it with q.

    One gate a head and token, as in Mamba-2; Yang et al. 2023 have one for each row of S.
    """

    def __init__(self, config: StateConfig):
        super().__init__()
        C, self.n_head = config.n_embd, config.n_head
        self.query, self.key, self.value = (nn.Linear(C, C, bias=False) for _ in range(3))
        self.gate = nn.Linear(C, config.n_head)
        self.proj = nn.Linear(C, C)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def heads(self):
        """Raises ValueError: no keys and values of this layer are kept."""
        raise ValueError(
            "a layer with a state has no keys and values to fuse, or to keep in "
            "pages; decode with this target as it is, not fused or on a pool"
        )

    def forward(
        self, x: Tensor, attn_bias: Tensor, past: tuple[tuple[Tensor]] | None = None
    ) -> tuple[Tensor, Pass]:
        """x (B, T, C), attn_bias (T, P+T) or (B, T, P+T), past ((S,),) or None.

        Returns the output (B, T, C) and what it took in.
        """
        B, T, C = x.shape
        q, k, v = (
            linear(x).view(B, T, self.n_head, -1).transpose(1, 2)  # (B, H, T, hs)
            for linear in (self.query, self.key, self.value)
        )
        k = k * k.shape[-1] ** -0.5
        log_g = F.logsigmoid(self.gate(x)).transpose(1, 2) / 16  # at first g = .96
        S = x.new_zeros(B, self.n_head, *2 * k.shape[-1:]) if past is None else past[0][0]
        path = attn_bias[..., -T:] == 0
        done = Pass(S, k, v, log_g, path[:, None] if path.dim() == 3 else path)
        out = F.rms_norm(done.read(q), k.shape[-1:], eps=1e-5)
        return self.dropout(self.proj(out.transpose(1, 2).reshape(B, T, C))), done


class StateLanguageModel(GPTLanguageModel):
    """A GPTLanguageModel some of whose layers have a state; its caches are `StateCache`s.

    way: what such a layer remembers of a pass, one of WAYS; `remembering` is the same model with
    another. Its contract is GPTLanguageModel's, but an early exit cannot begin a pass.
    """

    def __init__(self, config: StateConfig):
        super().__init__(config)
        self.way: Way = Inputs
        for layer in config.recurrent:
            self.blocks[layer - 1].sa = GatedLinearAttention(config).apply(self._init_weights)

    def remembering(self, way: str) -> StateLanguageModel:
        """The same model, with the same weights, and another way back.

        Raises ValueError for a way that is none of WAYS.
        """
        if way not in WAYS:
            raise ValueError(f"way is {way!r}; it is one of {[*WAYS]}")
        other = copy.copy(self)
        other.way = WAYS[way]
        return other

    def embed(self, idx, pos, past_kvs, attn_mask) -> tuple[Tensor, Tensor]:
        """As GPTLanguageModel.embed; a mask has column i for slot i of each text.

        Raises ValueError past the window, for texts of different lengths without `pos` and
        `attn_mask`, and for a mask that hides a token that was read.
        """
        if past_kvs is not None and attn_mask is not None:
            P, lengths = past_kvs.length, torch.tensor(past_kvs.lengths, device=idx.device)[:, None]
            if not past_kvs.even:  # their entries stand to the right
                column = torch.arange(attn_mask.shape[-1], device=idx.device) - P + lengths
                column = column[:, None].expand_as(attn_mask)
                attn_mask = attn_mask.gather(2, column.clamp(min=0)) & (column >= 0)
            if (attn_mask[..., :P].sum(-1) != lengths).any():
                raise ValueError("the mask hides a cached token, and a state cannot leave one out")
        elif past_kvs is not None and not past_kvs.even:
            raise ValueError("texts of different lengths need pos and attn_mask")
        return super().embed(idx, pos, past_kvs, attn_mask)

    def states(
        self,
        idx: Tensor,
        pos: Tensor | None = None,
        past_kvs: KVCache | None = None,
        attn_mask: Tensor | None = None,
        depth: int | None = None,
    ) -> tuple[list[Tensor], StateCache]:
        """As GPTLanguageModel.states, streams (B, T, C) of all blocks.

        Raises ValueError as `embed` does, for another model's cache, and for a pass over the first
        blocks only.
        """
        if not isinstance(past_kvs, StateCache | None):
            raise ValueError(
                f"past_kvs are a {type(past_kvs).__name__}, another model's; prefill with this "
                "model itself"
            )
        if depth is not None:
            raise ValueError(
                "an early exit leaves its states after its own guesses, and the pass cannot go on "
                "from there; use a draft that reads tokens"
            )
        streams, layers = super().states(idx, pos, past_kvs, attn_mask)
        assert isinstance(layers, tuple)
        B, T = idx.shape
        old = StateCache((), [0] * B, [0] * B) if past_kvs is None else past_kvs
        own = old.more or [T] * B
        if past_kvs is None and attn_mask is not None:  # what fills up a row does not see itself
            own = attn_mask.diagonal(dim1=-2, dim2=-1).sum(-1).expand(B).tolist()
        due = old.due if self.way is Snapshot else [0] * B
        sure = [min(pair) for pair in zip(due, own, strict=True)]
        before = [n + s for n, s in zip(old.lengths, sure, strict=True)]
        made = [
            self.way(layer, sure, own)
            if isinstance(layer, Pass)
            else Entries(layer, before, old.lengths)
            for layer in layers
        ]
        due = [n - s for n, s in zip(due, sure, strict=True)]
        return streams, StateCache(made, before, [n + T for n in old.lengths], due=due)


def load(path: Path = SHIPPED, device: str | torch.device = "cpu") -> StateLanguageModel:
    """The shipped target with states, in eval mode. Errors are those of checkpoint.load_module."""
    model = checkpoint.load_module(
        path,
        lambda header, _: StateLanguageModel(StateConfig(**header["config"])),
        "target with states",
        MAKE,
        device,
    )
    return model.requires_grad_()
