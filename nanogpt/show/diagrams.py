"""Pictures of mechanisms: what flows where, drawn from a chapter's own tokens and numbers.

The kit is a sheet of paper measured in tenths of an inch, boxes, arrows and words on it; colours
and marks are those of `nanogpt.show.figures`. y runs downward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from nanogpt.show.figures import (
    ACCEPTED,
    BONUS,
    DRAFT,
    GREY,
    MARKS,
    REJECTED,
    RESAMPLED,
    SERIES,
    STYLE,
    TARGET,
    Picture,
    picture,
    shown,
)

KINDS = {  # of a box: fill, edge, dash of the edge, hatch
    "plain": ("white", GREY, "-", ""),
    "target": ("#D6E6F2", TARGET, "-", ""),
    "draft": ("#FBEBCB", DRAFT, "-", "//"),
    "cached": ("#EAF1F7", TARGET, "-", ""),
    "accepted": ("#CFEBE1", ACCEPTED, "-", ""),
    "rejected": ("#FBE0D0", REJECTED, "--", ""),
    "resampled": ("#F6E3ED", RESAMPLED, "-", ""),
    "bonus": ("#DDF0FB", BONUS, "-", ""),
    "gone": ("white", GREY, ":", ""),
}
ROUND = 0.25  # of a box's corners


def sheet(title: str, width: float, height: float, shows: str) -> Axes:
    """Empty paper of 10 · width by 10 · height units, (0, 0) at the top left; inches at 100 dpi.

    A letter is about 0.7 units wide and a line 1.7 units high. shows: a sentence, `Picture.shows`.
    """
    axes = picture("", "", "", width, height)
    axes.figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    axes.figure.shows = shows
    axes.set(xlim=(0, 10 * width), ylim=(10 * height, 0))
    axes.set_axis_off()
    return axes


def box(axes: Axes, x: float, y: float, w: float, h: float, text: str = "", kind="plain") -> None:
    """A box of size (w, h) with its top left corner at (x, y), its text in the middle."""
    fill, edge, dash, hatch = KINDS[kind]
    shape = mpl.patches.FancyBboxPatch(
        (x, y), w, h, boxstyle=f"round,pad=0,rounding_size={ROUND}", facecolor=fill, edgecolor=edge
    )
    shape.set(linewidth=1.4, linestyle=dash)
    axes.add_patch(shape)
    if hatch:  # a hatched stripe at the left edge, so that the text stays readable
        stripe = mpl.patches.Rectangle((x, y), 0.9, h, facecolor=fill, edgecolor=edge, hatch=hatch)
        axes.add_patch(stripe)
    words(axes, x + w / 2 + (0.45 if hatch else 0), y + h / 2, text)


def words(axes: Axes, x: float, y: float, text: str, **style) -> None:
    """Text around (x, y), by default centred."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 10, **style})


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = GREY,
    dash="-",
    bend: float = 0.0,
) -> None:
    """An arrow from start to end; `bend` curves it."""
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.4, "linestyle": dash}
    curve = f"arc3,rad={bend}"
    axes.add_patch(
        mpl.patches.FancyArrowPatch(
            start, end, color=colour, connectionstyle=curve, shrinkA=0, shrinkB=0, **style
        )
    )


@mpl.rc_context(STYLE)
def scorecard(
    rows: Sequence[str],
    columns: Mapping[str, tuple[Sequence[float], Sequence[str], float | None]],
    title: str,
) -> Picture:
    """A bar per row and column, each column (values, texts, guess) with a scale of its own.

    A guess that is not None is drawn as a dotted line across its column.
    """
    shows = f"Bars for {'; '.join(rows)}. Columns: {'; '.join(columns)}."
    axes, left = sheet(title, 8, 0.8 + 0.3 * len(rows), shows), 17.0
    for i, name in enumerate(rows):
        words(axes, 15.5, 4.5 + 3 * i, name, ha="right")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # so no guess crosses a text
    clear = {"ha": "left", "fontsize": 9, "bbox": paper}
    roomy = [10 + max(map(len, [heading, *columns[heading][1]])) for heading in columns]
    for (heading, (values, texts, guess)), room, look in zip(
        columns.items(), np.array(roomy) * 62 / sum(roomy), SERIES, strict=False
    ):
        scale = (room - 1 - 0.85 * max(map(len, texts))) / max(values)
        words(axes, left, 1.2, heading, ha="left", fontsize=9, color=GREY)
        for i, (value, text) in enumerate(zip(values, texts, strict=True)):
            y, style = 3.4 + 3 * i, {"facecolor": look[0], "hatch": look[3], "edgecolor": "white"}
            axes.add_patch(mpl.patches.Rectangle((left, y), value * scale, 2.2, **style))
            words(axes, left + value * scale + 0.5, y + 1.1, text, **clear)
        if guess is not None:
            x, bottom = left + guess * scale, 3.2 + 3 * len(rows)
            axes.plot([x, x], [3, bottom], color="black", linestyle=(0, (1, 2)))
            words(axes, x, bottom + 1, f"your guess: {guess:g}", fontsize=9)
        left += room
    return axes.figure


def strip(axes: Axes, x: float, y: float, label: str, cells: Sequence, size: float) -> None:
    """A cache as a row of boxes from (x, y) on, its label before it; cells: (text, kind) each."""
    words(axes, x - 1.5, y + 1.5, label, ha="right")
    for i, (letter, kind) in enumerate(cells):
        box(axes, x + size * i, y, size - 0.4, 3, letter, kind)


def laid_out(parents: Sequence[int]) -> list[tuple[int, float]]:
    """(depth, row) of the current token and each node: leaves a row each, parents in the middle."""
    places, leaves = {}, iter(range(len(parents) + 1))

    def place(node, depth):
        below = [place(child, depth + 1) for child, above in enumerate(parents) if above == node]
        row = (below[0] + below[-1]) / 2 if below else next(leaves)
        places[node] = (depth, row)
        return row

    place(-1, 0)
    return [places[node] for node in range(-1, len(parents))]


@mpl.rc_context(STYLE)
def tree_of_guesses(
    root: str, nodes: Sequence[str], parents: Sequence[int], kinds: Sequence[str], title: str
) -> Picture:
    """A tree from left to right: the current token, and the nodes with what became of each.

    kinds: of each node, a key of KINDS; a path that is kept has thick edges. What the target adds
    is a node like others, "resampled" or "bonus".
    """
    places = laid_out(parents)
    depth, rows = max(d for d, _ in places), max(row for _, row in places) + 1
    path = "".join(x for x, kind in zip(nodes, kinds, strict=True) if kind == "accepted")
    stays = f" “{shown(path)}” is accepted." if path else ""
    shows = f"After “{shown(root)}”, {len(nodes)} nodes, up to {depth} deep.{stays}"
    axes = sheet(title, 8, 0.5 + 0.34 * rows, shows)
    step = min(15, 72 / (depth + 1))
    size = min(9.0, 0.6 * step)
    at = [(2 + step * d, 1.2 + 3.4 * row) for d, row in places]
    for node, (kind, parent) in enumerate(zip(kinds, parents, strict=True)):
        (x, y), (left, top) = at[node + 1], at[parent + 1]
        kept = kind in ("accepted", "resampled", "bonus")
        line = {"color": KINDS[kind][1] if kept else GREY, "linestyle": "-" if kept else ":"}
        axes.plot([left + size, x], [top + 1.2, y + 1.2], linewidth=2.4 if kept else 1.2, **line)
    box(axes, *at[0], size, 2.4, "▸" + shown(root), "target")
    for (x, y), text, kind in zip(at[1:], nodes, kinds, strict=True):
        mark = MARKS[kind][1] if kind in MARKS else ""
        box(axes, x, y, size, 2.4, mark + shown(text), kind)
        if kind == "rejected":
            axes.plot([x + 0.8, x + size - 0.8], [y + 1.2] * 2, color=REJECTED, linewidth=1.4)
    return axes.figure
