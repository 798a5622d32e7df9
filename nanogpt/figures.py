"""Every picture of the series, in one visual language.

`python -m nanogpt.figures` takes the README's picture from the stored outputs of chapter 00.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which people with any kind of
colour vision can tell apart; a second mark (dash, marker or hatch) always goes with a colour.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
README_PICTURE = NOTEBOOKS / "pictures" / "passes.png"

TARGET, DRAFT = "#0072B2", "#E69F00"
ACCEPTED, REJECTED, RESAMPLED, BONUS = "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY = "#666666"

SERIES = [  # colour, dash and marker of the first, second … line or bar of a chart
    (TARGET, "-", "o", ""),
    (REJECTED, "--", "X", "//"),
    (ACCEPTED, "-.", "s", ".."),
    (DRAFT, ":", "D", "xx"),
]

STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


class Picture(Figure):
    """A figure that a notebook shows as a PNG of fixed size, whatever its matplotlib backend."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100, facecolor="white")
        return buffer.getvalue()


def picture(title: str, xlabel: str, ylabel: str, width: float, height: float) -> Axes:
    """The empty axes of a new picture; `axes.figure` is the Picture. Sizes in inches at 100 dpi."""
    figure = Picture(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return axes


def draw_guess(axes: Axes, guess: float | None) -> None:
    """A dotted line at the reader's own guess, beside the result."""
    if guess is not None:
        axes.axhline(guess, color=GREY, linestyle=(0, (1, 2)), label=f"your guess: {guess:g}")


@mpl.rc_context(STYLE)
def lines(
    x: Sequence[float],
    ys: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    guess: float | None = None,
    width: float = 8,
    height: float = 3.6,
) -> Picture:
    """One line per entry of `ys`, each as long as `x`. The title is the takeaway."""
    axes = picture(title, xlabel, ylabel, width, height)
    for (label, y), (colour, dash, marker, _) in zip(ys.items(), SERIES, strict=False):
        every = max(1, len(x) // 8)
        axes.plot(x, y, color=colour, linestyle=dash, marker=marker, markevery=every, label=label)
    draw_guess(axes, guess)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0, low), high + 0.05 * abs(high))
    if len(ys) > 1 or guess is not None:
        axes.legend()
    return axes.figure


@mpl.rc_context(STYLE)
def bars(
    labels: Sequence[str],
    ys: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    guess: float | None = None,
    width: float = 8,
    height: float = 3.6,
) -> Picture:
    """Groups of bars, one group per label, one bar per entry of `ys`. The title is the takeaway."""
    axes = picture(title, xlabel, ylabel, width, height)
    places, bar_width = np.arange(len(labels)), 0.8 / len(ys)
    for i, ((label, y), (colour, _, _, hatch)) in enumerate(zip(ys.items(), SERIES, strict=False)):
        at = places + (i - (len(ys) - 1) / 2) * bar_width
        axes.bar(at, y, bar_width, color=colour, hatch=hatch, edgecolor="white", label=label)
    draw_guess(axes, guess)
    axes.set_xticks(places, labels)
    axes.grid(axis="x", visible=False)
    if len(ys) > 1 or guess is not None:
        axes.legend()
    return axes.figure


@mpl.rc_context(STYLE)
def grid(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    xlabel: str,
    ylabel: str,
    width: float = 5,
    height: float = 4,
) -> Picture:
    """A table of numbers from 0 (white) to 1 (blue), each written into its cell."""
    axes = picture(title, xlabel, ylabel, width, height)
    axes.imshow(np.asarray(values, dtype=float), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            colour = "white" if value > 0.5 else "black"
            axes.text(j, i, f"{float(value):.2f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    return axes.figure


def stored_pictures(notebook: Path) -> list[bytes]:
    """The PNGs among the stored outputs of a notebook, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    encoded = [
        output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    return [base64.b64decode(png) for png in encoded]


def main() -> None:
    README_PICTURE.parent.mkdir(exist_ok=True)
    README_PICTURE.write_bytes(stored_pictures(NOTEBOOKS / "00_start_here.ipynb")[0])
    print(f"wrote {README_PICTURE}")


if __name__ == "__main__":
    main()
