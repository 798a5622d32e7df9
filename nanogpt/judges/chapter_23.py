"""The judge of chapter 23's *Your turn*: who stands where, and sees what, in a ragged batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def batch_mask(mine: Callable) -> None:
    """*Your turn* of 23: the positions and the mask of a pass over texts of different lengths.

    mine(cached, sizes) returns the positions (B, T) and the mask (B, T, P+T), True or 1 where a
    row may attend, P being the longest cache and T the largest size; as tensors, arrays or lists.
    Raises AssertionError for a wrong shape, position or row, and for a changed list.
    """
    for cached, sizes in (([3, 1], [2, 3]), ([0, 4, 2], [1, 1, 4]), ([2, 2], [3, 3]), ([5], [2])):
        given, where = (list(cached), list(sizes)), f"cached {cached}, sizes {sizes}"
        made = mine(*given)
        assert given == (cached, sizes), f"{where}: the caller's lists are changed: {given}"
        pair = isinstance(made, (tuple, list)) and len(made) == 2
        came = "nothing" if made is None else f"a {type(made).__name__}"
        assert pair, f"{where}: return two things, the positions and the mask; {came} came"
        pos, mask = map(as_numbers, made)
        assert pos is not None and mask is not None, (
            f"{where}: the positions are rows of whole numbers, and the mask is True and False"
        )
        B, P, T = len(cached), max(cached), max(sizes)
        for name, x, wanted, why in (
            ("positions have", pos, (B, T), "a row for each text, as wide as the largest"),
            ("mask has", mask, (B, T, P + T), "a column for each slot: the longest cache, and T"),
        ):
            shape = tuple(x.shape)
            assert shape == wanted, f"{where}: the {name} shape {shape}, not {wanted}: {why}"
        assert bool(((mask == 0) | (mask == 1)).all()), (
            f"{where}: the mask holds {mask.flatten().unique().tolist()}; it says True (or 1) "
            "where a row may attend and False where it may not, nothing else"
        )
        for b, (old, n) in enumerate(zip(cached, sizes, strict=True)):
            fault = slip_of_positions(pos[b].tolist(), old, n, P)
            fault = fault or slip_of_mask(mask[b].bool(), old, n, P)
            assert not fault, f"{where}, text {b}: {fault}"


def as_numbers(made) -> Tensor | None:
    """Positions or a mask (...,) as a tensor of float64, or None if they are no numbers."""
    try:
        return torch.stack([torch.as_tensor(row).double() for row in made])
    except (TypeError, ValueError, RuntimeError):
        try:
            return torch.tensor([[list(row) for row in text] for text in made]).double()
        except (TypeError, ValueError, RuntimeError):
            return None


def slip_of_positions(pos: Sequence[float], old: int, n: int, P: int) -> str:
    """What is wrong with a text's positions (T,), the first n its own, or ""."""
    right, came = list(range(old, old + n)), [int(p) for p in pos]
    if came[:n] != right:
        whys = {
            tuple(range(P, P + n)): "these follow the longest text; each text goes on from its own",
            tuple(range(n)): "the cached tokens come before all of them",
            tuple(range(old + 1, old + n + 1)): "the current token comes right after the cached",
        }
        why = whys.get(tuple(came[:n]), "the cached tokens have 0, 1, …, and these come next")
        return f"its {n} tokens stand at {came[:n]}, not {right}: {why}"
    outside = [p for p in came[n:] if not 0 <= p < old + n]
    if outside:
        return (
            f"padding stands at {outside[0]}, where the text has no token: near the end of the "
            "window there is no such position; give padding that of the current token"
        )
    return ""


def slip_of_mask(mask: Tensor, old: int, n: int, P: int) -> str:
    """What is wrong with a text's mask (T, P+T), its first n rows its own, or ""."""
    for t, row in enumerate(mask.tolist()):
        who = f"token {t} of the pass"
        if not any(row):
            return f"row {t} sees nothing: a softmax over nothing is NaN, and 0 × NaN is NaN again"
        if t >= n:  # padding: whatever it sees is dropped
            continue
        seen, right = [j for j, sees in enumerate(row) if sees], list(range(old + t + 1))
        if seen == right:
            continue
        if not all(row[:old]):
            return f"{who} does not see the whole cache of its text: slots 0 … {old - 1}"
        if not row[old + t]:
            return f"{who} does not see itself, in slot {old + t}"
        if len(seen) < len(right):
            return f"{who} sees slots {seen}: the tokens of the pass before it are its past, too"
        late = seen[-1]
        if late < old + n and late != P + t:
            return f"{who} sees slot {late}, a later token of the pass: nobody sees the future"
        return (
            f"{who} sees slots up to {late}, but its text has only {old + t + 1} entries by then: "
            "count from its own cache, not from the longest"
        )
    return ""
