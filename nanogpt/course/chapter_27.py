"""Chapter 27: the judge of *Your turn*, and the chapter's own pictures.

The turn: a matrix of weights, rounded to few bits row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.patheffects import withStroke
from torch import Tensor

from nanogpt.show.diagrams import box, sheet, strip, words
from nanogpt.show.figures import DRAFT, GREY, SERIES, STYLE, Picture, picture, shown

BY_HAND = [[0.9, -0.38, 0.1, -0.7], [0.03, 0.5, -0.3, 0.009], [0.0, 0.0, 0.0, 0.0]]


def judge(mine: Callable) -> None:
    """Judges my_round_to(weight, bits): each row in whole multiples of its own step.

    weight (out, in) is float64; a tensor, an array or lists may come back. The largest weight of a
    row is to be its last multiple, 2^(bits-1) - 1. Raises AssertionError.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    drawn[2] *= 100  # rows are not alike
    for name, weight, every in (
        ("three rows by hand", torch.tensor(BY_HAND, dtype=torch.float64), (3, 4, 2)),
        ("a drawn matrix of 5 rows", drawn, (4, 2, 8)),
    ):
        for bits in every:
            where, given = f"{name}, {bits} bits", weight.clone()
            got = as_matrix(mine(given, bits), where)
            assert torch.equal(given, weight), f"{where}: the caller's weight was changed; copy it"
            assert got.shape == weight.shape, (
                f"{where}: the shape is {tuple(got.shape)}, not that of the weight, "
                f"{tuple(weight.shape)}"
            )
            zero = bool((weight[-1] == 0).all())
            assert not (zero and got[-1].isnan().any()), (
                f"{where}: a row of zeros became NaN: its largest weight is 0, and so is its step"
            )
            assert bool(got.isfinite().all()), f"{where}: some of it is no finite number"
            for row, (came, true) in enumerate(zip(got, weight, strict=True)):
                fault = slip_of_row(came, true, weight, bits)
                assert not fault, f"{where}, row {row}: {fault}"


def as_matrix(made, where: str) -> Tensor:
    """What came as a tensor (out, in) of float64, or an AssertionError."""
    assert made is not None, f"{where}: nothing came; return the rounded weights"
    try:
        return torch.stack([torch.as_tensor(row, dtype=torch.float64).detach() for row in made])
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(
            f"{where}: a {type(made).__name__} came that is no matrix of numbers"
        ) from None


def rounded(weights: Tensor, largest: Tensor, top: int) -> Tensor:
    """Weights of any shape, rounded to whole multiples of largest / top."""
    step = torch.where(largest > 0, largest, 1.0) / top
    return (weights / step).round() * step


def with_zero_point(weights: Tensor, bits: int, through_0: bool, whole: bool) -> Tensor:
    """A row (in,) in 2^bits - 1 equal steps from its smallest weight to its largest.

    through_0: the range reaches to 0 at least; whole: the number that means 0 is a whole one.
    """
    ends = torch.cat([weights, weights.new_zeros(1)]) if through_0 else weights
    low, high = ends.min(), ends.max()
    step = (high - low) / (2**bits - 1) if high > low else 1.0
    if not whole:
        return ((weights - low) / step).round() * step + low
    zero = (-low / step).round()
    return (((weights / step).round() + zero).clamp(0, 2**bits - 1) - zero) * step


def slip_of_row(got: Tensor, true: Tensor, weight: Tensor, bits: int) -> str:
    """What is wrong with a rounded row (in,), or ""."""
    top, largest = 2 ** (bits - 1) - 1, true.abs().max()
    right = rounded(true, largest, top)

    def same(other: Tensor) -> bool:
        return bool(torch.allclose(got, other, rtol=0, atol=1e-9 + 1e-4 * float(largest)))

    if same(right):
        return ""
    step = float(largest) / top if largest > 0 else 1.0
    known = {
        "these are the whole multiples; times the step, they are weights again": right / step,
        "the step is that of the whole matrix; each row has one of its own": rounded(
            true, weight.abs().max(), top
        ),
        "it is cut off, not rounded to the nearest multiple": (true / step).trunc() * step,
        "it is rounded down, not to the nearest multiple": (true / step).floor() * step,
        f"the largest weight is 2^(bits-1) = {top + 1} steps; with a bit for the sign, "
        f"{top} is the last": rounded(true, largest, top + 1),
        f"the step is a {2**bits - 1}th of the largest weight; half of the numbers are for the "
        "other sign": rounded(true, largest, 2**bits - 1),
        "the step comes from the largest weight with its sign; take its size": rounded(
            true, true.max().clamp(min=0), top
        ),
        "nothing is rounded": true,
    }
    asymmetric = [
        with_zero_point(true, bits, through_0, whole)
        for through_0 in (False, True)
        for whole in (False, True)
    ]
    columns = rounded(weight, weight.abs().amax(dim=0), top)
    if any(same(row) for row in asymmetric):
        match = (
            "this is the asymmetric scheme, with a zero-point: from the row's smallest weight to "
            f"its largest in {2**bits - 1} steps. A good one, but asked is the symmetric one: 0 "
            f"stays 0, and the largest by size is {top} steps"
        )
    elif any(same(row) for row in columns):
        match = "the step is by column; a row is an output, and gets one step"
    else:
        match = next((said for said, other in known.items() if same(other)), "")
    said = [round(x, 3) for x in got.tolist()], [round(x, 3) for x in right.tolist()]
    return f"{match or 'it'} ({said[0]} came instead of {said[1]})"


@mpl.rc_context(STYLE)
def entries_written_twice(
    before: str, current: str, guesses: str, kept: int, title: str
) -> Picture:
    """A round in one cache: what a copy of the target writes, and what the target writes over it.

    before: the tokens with entries of the target; guesses: K, of which `kept` are accepted. Of a
    long text, the last nine letters are shown.
    """
    K, letters = len(guesses), [*shown(current + guesses)]
    old = [(letter, "cached") for letter in ["…"] * (len(before) > 9) + [*shown(before[-9:])]]
    anew = [(letter, "target") for letter in letters]
    rows = {
        "before the round": (old, "all the target's"),
        "the copy drafts": (
            [*old, *[(letter, "draft") for letter in letters[:K]], ("", "gone")],
            f"{K} entries, by the copy",
        ),
        "the target checks": ([*old, *anew], f"all {K + 1} written again"),
        "kept": (
            [*old, *anew[: kept + 1], *[("", "gone")] * (K - kept)],
            f"{kept + 1} of those, as ever",
        ),
    }
    shows = f"The copy writes {K} entries, the target writes over them, and {kept + 1} stay."
    axes, left = sheet(title, 9, 2.15, shows), 19
    size = min(4, 48 / (len(old) + K + 1))
    for i, (label, (cells, said)) in enumerate(rows.items()):
        strip(axes, left, 1 + 4.6 * i, label, cells, size)
        words(axes, left + size * (len(old) + K + 1) + 1, 2.5 + 4.6 * i, said, ha="left")
    start = left + size * len(old) - 0.5
    axes.plot([start, start], [0.6, 19.2], color=GREY, linestyle=":", linewidth=1.2)
    said = "hatched: rounded weights or a narrow view; plain blue: the target's own"
    words(axes, left, 20.3, said, ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def masked_entries(text: str, guesses: str, masks: Sequence[Sequence[bool]], title: str) -> Picture:
    """Which entries each guess of a windowed copy reads: a row for a guess, a column for an entry.

    text: read so far, the current token last; masks[i]: of guess i, True where it may attend, over
    the text and the guesses before it. Blue: the target's entries; hatched: the copy's own.
    """
    P, letters = len(text) - 1, [*shown(text + guesses)]
    shows = f"Each of {len(masks)} guesses reads the first entries and the last, none between."
    axes, left = sheet(title, 9, 0.95 + 0.33 * len(masks), shows), 15
    size = min(3.2, 70 / len(masks[-1]))
    for i, mask in enumerate(masks):
        y = 3.2 + 3.3 * i
        words(axes, left - 1, y + 1.3, f"to guess ▸{letters[P + 1 + i]}", ha="right")
        for j, seen in enumerate(mask):
            kind = "gone" if not seen else "draft" if j >= P else "cached"
            box(axes, left + size * j, y, size - 0.3, 2.6, letters[j] if seen else "", kind)
    read = ", ".join(str(sum(mask)) for mask in masks)
    bottom = 3.2 + 3.3 * len(masks) + 1.4
    words(axes, left, 1.5, f"the text so far: {P} entries of the target", ha="left", fontsize=9)
    said = f"entries read: {read} of {', '.join(str(len(mask)) for mask in masks)}"
    words(axes, left, bottom, f"{said};  hatched: written by the copy", ha="left")
    return axes.figure


CHOICES = {  # of the map: mark and colour
    "none": ("○", "white"),
    "1B draft": ("▲", DRAFT),
    "4 bits": ("●", SERIES[0][0]),
    "window 512": ("■", SERIES[5][0]),
    "both": ("◆", SERIES[3][0]),
}


@mpl.rc_context(STYLE)
def map_of_copies(
    best: Mapping[tuple[int, int], tuple[str, float] | None],
    border: Callable[[float], float],
    title: str,
    caption: str,
) -> Picture:
    """Which draft is the fastest for B texts (across) of S tokens each (up), and by how much.

    best: {(B, S): (one of CHOICES, its speed-up)}, None where the caches do not fit; B and S are
    powers of two, without gaps. border: B -> S*, a line. caption: what is assumed.
    """
    Bs, Ss = (sorted({key[i] for key in best}) for i in (0, 1))
    axes = picture(title, "texts at once, B", "context length S (tokens)", 9, 5.8)
    for (B, S), found in best.items():
        mark_choice(axes, Bs.index(B), Ss.index(S), found)
    x = np.array([-0.5, len(Bs) - 0.5])
    y = [np.log2(border(Bs[0] * 2**at) / Ss[0]) for at in x]  # straight: S* is a number over B
    (line,) = axes.plot(x, y, color="black", linewidth=2.2, linestyle="--", label="S*")
    axes.set(xlim=x, ylim=(-0.5, len(Ss) - 0.5))
    axes.set_xticks(range(len(Bs)), Bs)
    axes.set_yticks(range(len(Ss)), [f"{S:,}" for S in Ss])
    axes.grid(visible=False)
    edge = {"edgecolor": GREY, "alpha": 0.4}
    keys = [
        mpl.patches.Patch(facecolor=colour, label=f"{mark} {name}", **edge)
        for name, (mark, colour) in CHOICES.items()
    ]
    axes.figure.legend(handles=[*keys, line], loc="outside right center")
    axes.figure.supxlabel(caption, x=0.01, ha="left", fontsize=9)
    names, gains = zip(*filter(None, best.values()), strict=True)
    said = ", ".join(f"{name} {names.count(name)}" for name in CHOICES)
    axes.figure.shows = f"How many cells each wins: {said}. The largest gain is {max(gains):.2f}."
    return axes.figure


def mark_choice(axes, x: int, y: int, found: tuple[str, float] | None) -> None:
    """One cell of the map: a coloured square with a mark and a speed-up, or grey and empty."""
    mark, colour = CHOICES[found[0]] if found else ("", "#EEEEEE")
    square = mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white")
    square.set_alpha(0.4 if found else 1)
    axes.add_patch(square)
    clear = {"zorder": 5, "path_effects": [withStroke(linewidth=2.5, foreground="white")]}
    if found:
        axes.text(x, y, f"{mark} {found[1]:.2f}", ha="center", va="center", fontsize=9, **clear)
