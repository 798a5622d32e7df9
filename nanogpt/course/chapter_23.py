"""Chapter 23: the judge of *Your turn*, and the chapter's own pictures.

The turn: who stands where, and sees what, in a ragged batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.show.diagrams import box, sheet, strip, words
from nanogpt.show.figures import MARKS, STYLE, Picture, shown


def judge(mine: Callable) -> None:
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
    """Positions or a mask as a tensor of float64, or None if they are no numbers."""
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


@mpl.rc_context(STYLE)
def ragged_batch(rows: Sequence[tuple[str, str, str, str]], title: str) -> Picture:
    """A pass over several texts, a row each, and what every row keeps of it.

    Of each text: what is cached, its current token, its guesses, and what the round emits. A dot is
    padding: computed, and dropped. Of a long text the last letters are shown.
    """
    T, left = 1 + max(len(guesses) for _, _, guesses, _ in rows), 14
    most = max(1, min(max(len(cached) for cached, *_ in rows), 17 - T))
    size, step = min(4, 64 / (most + T)), 4.2
    axes = sheet(title, 8, 0.95 + 2 * step * len(rows) / 10)
    second, said = 5.4 + step * len(rows), []
    words(axes, left, 1.4, f"in the pass: a rectangle of {len(rows)} × {T} tokens", ha="left")
    words(axes, left, second, "kept: every row ends where it ends", ha="left")
    for b, (cached, current, guesses, emitted) in enumerate(rows):
        stay, old = len(emitted) - 1, [*shown(cached[max(0, len(cached) - most) :])]
        before = [(x, "cached") for x in ["…", *old[1:]]] if len(cached) > most else None
        before = [(x, "cached") for x in old] if before is None else before
        padding = [("·", "gone")] * (T - 1 - len(guesses))
        inside = [("▸" + shown(current), "target"), *((shown(x), "draft") for x in guesses)]
        fates = [("✓" + shown(x), "accepted") for x in guesses[:stay]]
        fates += [("✗" + shown(x), "rejected") for x in guesses[stay:]]
        y, label = 3.2 + step * b, f"text {b}: {len(cached)} cached"
        strip(axes, left, y, label, [*before, *inside, *padding], size)
        y, cells = y + second - 1.2, [*before, (shown(current), "cached"), *fates]
        strip(axes, left, y, f"then {len(cached) + 1 + stay} cached", cells, size)
        last = "bonus" if stay == len(guesses) else "resampled"
        end = left + size * (len(before) + 1 + len(guesses))
        words(axes, end + 1, y + 1.5, f"next: {MARKS[last][1]} {shown(emitted[-1])}", ha="left")
        said.append(f"text {b}: {len(cached)} cached, {len(guesses)} guesses, {stay} kept")
    axes.figure.rows = said
    return axes.figure


@mpl.rc_context(STYLE)
def batch_masks(rows: Sequence[tuple[str, str, str]], pos, mask, title: str) -> Picture:
    """The mask (B, T, P+T) of a batch as a table for each text, and its positions (B, T).

    Of each text: what is cached, its current token, its guesses; its slots begin in column 0.
    """
    B, T, columns = len(rows), len(pos[0]), len(mask[0][0])
    side, left = min(2.6, 64 / B / columns), 11
    step = max(side * columns + 4, 66 / B)
    axes, said = sheet(title, 9, 0.9 + 0.26 * T), []
    for b, (cached, current, guesses) in enumerate(rows):
        x0, letters = left + step * b, [*shown(cached + current + guesses)]
        for j, letter in enumerate(letters):
            words(axes, x0 + side * (j + 0.5) - 0.1, 3.6, letter, fontsize=8)
        words(axes, x0, 1.2, f"text {b}: {len(cached)} cached", ha="left", fontsize=9)
        for t in range(T):
            y, own = 5 + 2.6 * t, t <= len(guesses)
            name = f"▸{letters[len(cached)]}" if t == 0 else "·"
            name = letters[len(cached) + t] if 0 < t and own else name
            words(axes, x0 - 0.6, y + 1.1, f"{name} {int(pos[b][t])}", ha="right", fontsize=8)
            for j in range(columns):
                sees = bool(mask[b][t][j])
                kind = ("cached" if j < len(cached) else "target") if sees and own else "gone"
                box(axes, x0 + side * j, y, side - 0.3, 2.2, "●" if sees else "", kind)
            seen = sum(map(bool, mask[b][t]))
            said.append(f"text {b}, {name} at position {int(pos[b][t])} sees {seen} slots")
    axes.figure.rows = said
    return axes.figure
