"""Chapter 23: the judge of *Your turn*, and the chapter's own pictures.

The turn: who stands where, and sees what, in a ragged batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from torch import Tensor

from nanogpt.show.diagrams import box, sheet, strip, words
from nanogpt.show.figures import REJECTED, SERIES, STYLE, Picture, picture, shown


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
def two_rounds(rounds: Sequence[Sequence[tuple[str, str, str, str]]], title: str) -> Picture:
    """Rounds of several texts: at the left what enters the pass, at the right the buffer after it.

    Of each round and text: what is cached, its current token, its guesses, and what the round
    emits. A dot is padding; the thick line is each row's length, and small under a slot stands what
    an earlier round had left there.
    """
    B, widths = len(rounds[0]), [1 + max(len(row[2]) for row in texts) for texts in rounds]
    S = max(len(row[0]) + T for T, texts in zip(widths, rounds, strict=True) for row in texts)
    band, left, size = 5.2 + 5 * B, 8.5, 2.9
    right, rest = left + size * max(widths) + 9, [{} for _ in range(B)]
    wide, high = max(9.2, (right + size * S + 8) / 10), 0.35 + band * len(rounds) / 10
    shows = "What enters each pass, and the buffer after it; a thick line marks where texts end."
    axes = sheet(title, wide, high, shows)
    for r, (T, texts) in enumerate(zip(widths, rounds, strict=True)):
        y, ends = 1 + band * r, []
        words(axes, left, y, f"round {r + 1}: idx, {B} × {T}", ha="left", fontweight="bold")
        words(axes, right, y, f"the buffer, {B} × {S} …, and lengths", ha="left", fontweight="bold")
        for b, (cached, current, guesses, emitted) in enumerate(texts):
            top, n, stay = y + 1.8 + 5 * b, len(cached), len(emitted) - 1
            strip(axes, left, top, f"text {b}", entering(current, guesses, T), size)
            cells = [*((x, "cached") for x in shown(cached)), *written(current, guesses, stay, T)]
            buffer_row(axes, (right, top, size), cells, S, rest[b])
            ends.append((right + size * (n + stay + 1) - 0.2, top))
            words(axes, right + size * S + 0.6, top + 1.5, f"{n} → {n + stay + 1}", ha="left")
        staircase(axes, ends)
    key = "thick line: where each row ends now    small ✗: a rejected entry, just overwritten"
    words(axes, right, 0.7 + band * len(rounds), key, ha="left", fontsize=8.5)
    return axes.figure


def entering(current: str, guesses: str, T: int) -> list[tuple[str, str]]:
    """A row of idx as boxes: the current token, the guesses, padding up to T."""
    own = [("▸" + shown(current), "target"), *((shown(x), "draft") for x in guesses)]
    return own + [("·", "gone")] * (T - len(own))


def written(current: str, guesses: str, stay: int, T: int) -> list[tuple[str, str]]:
    """What a pass of T tokens wrote into a row, as boxes: the first `stay` guesses are kept."""
    fates = [("✓" + shown(x), "accepted") for x in guesses[:stay]]
    fates += [("✗" + shown(x), "rejected") for x in guesses[stay:]]
    own = [("▸" + shown(current), "target"), *fates]
    return own + [("·", "gone")] * (T - len(own))


def buffer_row(
    axes: Axes,
    place: tuple[float, float, float],
    cells: Sequence[tuple[str, str]],
    S: int,
    rest: dict[int, str],
) -> None:
    """Draws a row of S slots, of which a pass left the first as `cells`, and what it wrote over.

    place: its left, top and the size of a slot. rest: the rejected entries in it, slot by slot;
    those of this pass come in, and those that it wrote over go.
    """
    x, top, size = place
    new = {j for j, (_, kind) in enumerate(cells) if kind != "cached"}
    over = {j: rest.pop(j) for j in new & rest.keys()}
    after = [rest.get(j, "") for j in range(len(cells), S)]
    after = [(text, "rejected" if text else "gone") for text in after]
    strip(axes, x, top, "", [*cells, *after], size)
    for j, old in over.items():
        words(axes, x + size * (j + 0.43), top + 3.75, old, fontsize=8, color=REJECTED)
    rest |= {j: text for j, (text, kind) in enumerate(cells) if kind == "rejected"}
    for j in rest:
        line = [x + size * j + 0.5, x + size * (j + 1) - 0.9], [top + 1.5] * 2
        axes.plot(*line, color=REJECTED, linewidth=1.4)


def staircase(axes: Axes, ends: Sequence[tuple[float, float]]) -> None:
    """A thick line down the rows of a buffer, (x, top) being where each row's text ends."""
    xs = [x for x, _ in ends for _ in range(2)]
    ys = [y for _, top in ends for y in (top - 0.4, top + 4.6)]
    axes.plot(xs, ys, color="black", linewidth=2.2)


@mpl.rc_context(STYLE)
def batch_masks(
    rows: Sequence[tuple[str, str, str]], pos, mask, before: Sequence[int], title: str
) -> Picture:
    """The mask (B, T, P+T) of a batch as a table for each text, and its positions (B, T).

    Of each text: what is cached, its current token, its guesses; before: in how many columns before
    its first it has nothing ("0").
    """
    B, T, columns = len(rows), len(pos[0]), len(mask[0][0])
    side, left = min(2.6, max(1.6, 64 / B / columns)), 11
    step = max(side * columns + 4, 66 / B)
    shows = f"{B} tables of dots: each token sees its own text up to itself, and nothing else."
    axes = sheet(title, max(9, (left + step * B) / 10), 0.9 + 0.26 * T, shows)
    for b, ((cached, current, guesses), first) in enumerate(zip(rows, before, strict=True)):
        x0, letters = left + step * b, [*shown(cached + current + guesses)]
        for j, letter in enumerate(["0"] * first + letters):
            colour = "#767676" if j < first else "black"
            words(axes, x0 + side * (j + 0.5) - 0.1, 3.6, letter, fontsize=8, color=colour)
        words(axes, x0, 1.2, f"text {b}: {len(cached)} cached", ha="left", fontsize=9)
        for t in range(T):
            y, own = 5 + 2.6 * t, t <= len(guesses)
            name = f"▸{letters[len(cached)]}" if t == 0 else "·"
            name = letters[len(cached) + t] if 0 < t and own else name
            words(axes, x0 - 0.6, y + 1.1, f"{name} {int(pos[b][t])}", ha="right", fontsize=8)
            for j in range(columns):
                sees = bool(mask[b][t][j])
                kind = ("cached" if j < first + len(cached) else "target") if sees else "gone"
                kind = kind if own else "gone"
                box(axes, x0 + side * j, y, side - 0.3, 2.2, "●" if sees else "", kind)
    return axes.figure


@mpl.rc_context(STYLE)
def gains(
    sizes: Sequence[int],
    measured: Mapping[str, Sequence[Sequence[float]]],
    predicted: Mapping[str, Sequence[float]],
    title: str,
) -> Picture:
    """How many times as fast as plain decoding each draft is, for each number of texts.

    measured: of each draft and size, its quartiles (low, middle, high); predicted: of each draft
    and size, drawn dashed. A ring is where the line of the medians crosses 1; both scales are log.
    """
    axes = picture(title, "texts in the batch, B", "times as fast as plain", 8, 4.2)
    for (name, quartiles), (colour, _, marker, _) in zip(measured.items(), SERIES, strict=False):
        low, middle, high = np.transpose(quartiles)
        bars = np.maximum([middle - low, high - middle], 0)
        style = {"color": colour, "marker": marker, "capsize": 3}
        axes.errorbar(sizes, middle, bars, label=f"{name}, measured", **style)
        axes.plot(sizes, predicted[name], "--", color=colour, label=f"{name}, predicted")
        for B in crossings(sizes, middle):
            axes.plot([B], [1], "o", markersize=13, fillstyle="none", color=colour, zorder=4)
            place = {"textcoords": "offset points", "xytext": (10, 8), "zorder": 5}
            halo = [withStroke(linewidth=2.5, foreground="white")]
            axes.annotate(f"B ≈ {B:.2g}", (B, 1), color=colour, path_effects=halo, **place)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [str(B) for B in sizes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.figure.legend(loc="outside lower left", ncols=3)
    return axes.figure


def crossings(sizes: Sequence[float], gains: Sequence[float]) -> list[float]:
    """Where the line through (size, gain), straight on log scales, crosses 1."""
    x, y = np.log(sizes), np.log(gains)
    return [
        float(np.exp(a + (b - a) * u / (u - v)))
        for a, b, u, v in zip(x, x[1:], y, y[1:], strict=False)
        if (u > 0) != (v > 0)
    ]
