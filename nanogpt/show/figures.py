"""Every picture of the series, in one visual language.

What has a meaning throughout (p, q, accepted, rejected …) has one of Okabe and Ito's colours
(https://jfly.uni-koeln.de/color/), the lines and bars of other charts have Paul Tol's muted ones
(https://sronpersonalpages.nl/~pault/): people with any kind of colour vision can tell them apart.
A second mark (sign, dash, marker or hatch) always goes with a colour.
"""

from __future__ import annotations

import html
import io
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from nanogpt.data import CharTokenizer
from nanogpt.generate import Generation, Round

TARGET, DRAFT = "#0072B2", "#E69F00"
ACCEPTED, REJECTED, RESAMPLED, BONUS = "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY = "#666666"

SERIES = [  # colour, dash and marker of the first, second … line or bar of a chart
    ("#332288", "-", "o", ""),
    ("#999933", "--", "X", "//"),
    ("#882255", "-.", "s", ".."),
    ("#44AA99", ":", "D", "xx"),
    ("#000000", (0, (5, 1, 1, 1, 1, 1)), "^", "\\\\"),
    ("#CC6677", (0, (1, 1)), "v", "++"),
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


TESTED = (
    "PYTEST_VERSION"  # pytest sets it, and the kernels of the notebooks that it runs inherit it
)


class Picture(Figure):
    """A figure that a notebook shows as a PNG of fixed size, whatever its matplotlib backend.

    The PNG goes with its description, as the alternative text of pages made from the notebook.
    shows: what one sees in it, in a sentence; a chart's title and axes may say enough.
    """

    shows = ""

    @property
    def description(self) -> str:
        """The picture in words: its title, axes, lines or bars, and what one sees."""
        axes = self.axes[0]
        labels = axes.get_legend_handles_labels()[1]
        parts = [
            self.get_suptitle() or axes.get_title(loc="left"),
            f"across: {axes.get_xlabel()}" if axes.get_xlabel() else "",
            f"up: {axes.get_ylabel()}" if axes.get_ylabel() else "",
            "shown: " + ", ".join(labels) if labels else "",
        ]
        said = "; ".join(filter(None, parts))
        said += f"{'' if said.endswith('?') else '.'} {self.shows}" if self.shows else ""
        return said.replace("\n", " ")  # one line, as HTML's alt has it

    def __repr__(self) -> str:
        return f"<Picture: {self.description}>"

    def look(self) -> None:
        """Raise ValueError if words are cut off or lie on others, in a picture of a mechanism.

        There we chose each word's place; in a chart, which has axes, matplotlib did.
        """
        if any(axes.axison for axes in self.axes):
            return
        drawn = [*self.texts, *(thing for axes in self.axes for thing in axes.get_children())]
        texts = [text for text in drawn if isinstance(text, Text) and text.get_text().strip()]
        placed = [(text.get_text(), text.get_window_extent()) for text in texts]
        page = self.bbox
        for said, place in placed:
            if Bbox.union([page, place]).bounds != page.bounds:
                raise ValueError(f"{said!r} is cut off in {self!r}")
        for (a, one), (b, other) in itertools.combinations(placed, 2):
            common = Bbox.intersection(one, other)
            if common is not None and min(common.width, common.height) >= 2:  # pixels
                raise ValueError(f"{a!r} lies on {b!r} in {self!r}")

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100, facecolor="white")
        if TESTED in os.environ:
            self.look()
        return buffer.getvalue(), {"alt": self.description}


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
    height: float = 3.6,
) -> Picture:
    """One line per entry of `ys`, each as long as `x`. The title is the takeaway."""
    axes = picture(title, xlabel, ylabel, 8, height)
    for (label, y), (colour, dash, marker, _) in zip(ys.items(), SERIES, strict=False):
        every = max(1, len(x) // 8)
        axes.plot(x, y, color=colour, linestyle=dash, marker=marker, markevery=every, label=label)
    draw_guess(axes, guess)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0, low), high + 0.05 * abs(high))
    if len(ys) > 4:
        axes.figure.legend(loc="outside lower left", ncols=3)  # five lines leave it no room inside
    elif len(ys) > 1 or guess is not None:
        axes.legend()
    return axes.figure


@mpl.rc_context(STYLE)
def measured_beside_predicted(
    curves: Mapping[str, tuple[Sequence, Sequence, Sequence, Sequence]],
    title: str,
    xlabel: str,
    ylabel: str,
    level: float | None = 1.0,
) -> Picture:
    """Of each curve (x, measured, (low, high) of each, predicted): points with bars, and a line.

    level: where a thin line runs across, if anywhere; for speed-ups, at plain decoding.
    """
    axes = picture(title, xlabel, ylabel, 8, 3.8)
    for (label, (x, measured, spread, predicted)), (colour, dash, marker, _) in zip(
        curves.items(), SERIES, strict=False
    ):
        low, high = np.transpose(spread)
        bars = [np.subtract(measured, low), np.subtract(high, measured)]
        axes.plot(x, predicted, color=colour, linestyle=dash, label=f"{label}, predicted")
        points = {"color": colour, "marker": marker, "linestyle": "", "capsize": 3}
        axes.errorbar(x, measured, np.maximum(bars, 0), label=f"{label}, measured", **points)
    if level is not None:
        axes.axhline(level, color=GREY, linewidth=0.8)
    axes.set_ylim(0)
    axes.figure.legend(loc="outside lower left", ncols=2)
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
    spread: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Picture:
    """Groups of bars, one group per label, one bar per entry of `ys`. The title is the takeaway.

    spread: of some entries, (low, high) beside each bar, its quartiles for instance.
    """
    axes = picture(title, xlabel, ylabel, width, height)
    places, bar_width = np.arange(len(labels)), 0.8 / len(ys)
    for i, ((label, y), (colour, _, _, hatch)) in enumerate(zip(ys.items(), SERIES, strict=False)):
        at = places + (i - (len(ys) - 1) / 2) * bar_width
        axes.bar(at, y, bar_width, color=colour, hatch=hatch, edgecolor="white", label=label)
        if spread and label in spread:
            low, high = np.transpose(spread[label])
            reach = np.maximum([np.subtract(y, low), np.subtract(high, y)], 0)
            axes.errorbar(at, y, reach, color="black", linestyle="", capsize=3)
    draw_guess(axes, guess)
    axes.set_xticks(places, labels)
    axes.grid(axis="x", visible=False)
    if len(ys) > 1 or guess is not None:
        axes.figure.legend(loc="outside lower left", ncols=4)  # never over a bar
    return axes.figure


def quartile_bars(
    numbers: Mapping[str, Mapping[object, Sequence[float]]], title: str, xlabel: str, ylabel: str
) -> Picture:
    """Groups of bars from {bar: {group: numbers}}: each the median, with its quartiles beside it.

    Every bar has the same groups.
    """
    three = {
        bar: np.quantile(list(groups.values()), [0.25, 0.5, 0.75], axis=1)
        for bar, groups in numbers.items()
    }
    labels = [str(group) for group in next(iter(numbers.values()))]
    middles = {bar: middle for bar, (_, middle, _) in three.items()}
    spread = {bar: list(zip(low, high, strict=True)) for bar, (low, _, high) in three.items()}
    return bars(labels, middles, title, xlabel, ylabel, spread=spread)


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
    text: Callable[[float], str] = "{:.2f}".format,
) -> Picture:
    """A table of numbers from 0 (white) to the largest (blue), each written into its cell."""
    axes = picture(title, xlabel, ylabel, width, height)
    values = np.asarray(values, dtype=float)
    top = values.max()
    axes.imshow(values, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            colour = "white" if value > 0.5 * top else "black"
            axes.text(j, i, text(float(value)), ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    ends = [" ".join(label.split()) for label in (rows[0], rows[-1], columns[0], columns[-1])]
    said = "{} rows, “{}” to “{}”; {} columns, “{}” to “{}”."
    axes.figure.shows = said.format(len(rows), *ends[:2], len(columns), *ends[2:])
    return axes.figure


@mpl.rc_context(STYLE)
def overlap(labels: Sequence[str], p: Sequence[float], q: Sequence[float], title: str) -> Picture:
    """p and q as bars side by side, each split at what both have.

    q's bar: the part that is accepted and the part that is rejected. p's bar: the same accepted
    part, and the residual, which is missing. Over all tokens, as much is rejected as is missing.
    """
    axes = picture(title, "token", "probability", 8, 3.6)
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    common, places, half = np.minimum(p, q), np.arange(len(labels)), 0.38
    at_p, at_q, white = places - half / 2, places + half / 2, {"edgecolor": "white"}
    kept = {"color": ACCEPTED, "hatch": "", **white}
    axes.bar(at_p, common, half, label="✓ accepted min(p, q)", **kept)
    missing = {"color": RESAMPLED, "hatch": "..", "label": "↻ missing max(0, p − q)"}
    axes.bar(at_p, p - common, half, bottom=common, **missing, **white)
    axes.bar(at_q, common, half, **kept)
    refused = {"color": REJECTED, "hatch": "xx", "label": "✗ rejected max(0, q − p)"}
    axes.bar(at_q, q - common, half, bottom=common, **refused, **white)
    for at, heights, colour, line, label in (
        (at_p, p, TARGET, "-", "target p"),
        (at_q, q, DRAFT, "--", "draft q"),
    ):
        outline = {"fill": False, "edgecolor": colour, "linewidth": 2, "linestyle": line}
        axes.bar(at, heights, half, label=label, **outline)
    axes.set_xticks(places, labels)
    axes.grid(axis="x", visible=False)
    axes.figure.legend(loc="outside lower left", ncols=3)
    return axes.figure


MARKS = {  # what became of a token: colour and mark, in HTML and in the terminal
    "accepted": (ACCEPTED, "✓", "32"),
    "rejected": (REJECTED, "✗", "31"),
    "resampled": (RESAMPLED, "↻", "35"),
    "bonus": (BONUS, "★", "36"),
}


@dataclass(frozen=True)
class Mark:
    """A token in a trace: its text, what became of it, and the p and q it was judged by.

    refused: how many siblings, guesses for the same place of a tree, were rejected before it.
    """

    text: str
    fate: str
    p: float
    q: float | None = None
    refused: int = 0

    @property
    def label(self) -> str:
        """Its sign and text, blanks made visible; and the siblings refused, if any."""
        siblings = f"({MARKS['rejected'][1]}{self.refused})" * bool(self.refused)
        return MARKS[self.fate][1] + shown(self.text) + siblings


class TokenTrace:
    """A generation, round by round: HTML in a notebook, plain text in print().

    Each row is one target pass: the drafted tokens with ✓ or ✗, then the token that replaced a
    rejected one (↻) or the bonus token (★). Tokens after a rejected one were never examined and
    are not shown. Of a tree, the path that was kept is shown, (✗2) beside a token before which two
    of its siblings were refused. p and q are in the tooltips.
    """

    def __init__(self, generation: Generation, tokenizer: CharTokenizer):
        self.rounds = [trace_of(r, tokenizer) for r in generation.rounds]

    def lines(self, colour: bool) -> list[str]:
        """One numbered line per round, each token with its mark, in ANSI colours if `colour`."""
        rows = [[in_terminal(m.label, m.fate, colour) for m in marks] for marks in self.rounds]
        return [f"{i:3d}  {' '.join(row)}" for i, row in enumerate(rows, start=1)]

    def __str__(self) -> str:
        return "\n".join(self.lines(colour=False))

    __repr__ = __str__

    def text(self, colour: bool) -> str:
        """The text that the rounds returned, each token in its ANSI colour if `colour`."""
        kept = [m for marks in self.rounds for m in marks if m.fate != "rejected"]
        return "".join(in_terminal(m.text, m.fate, colour) for m in kept)

    def legend(self, colour: bool) -> str:
        """How many tokens had each fate, in the order of MARKS."""
        every = [m for marks in self.rounds for m in marks]
        fates = [m.fate for m in every] + ["rejected"] * sum(m.refused for m in every)
        words = [f"{MARKS[fate][1]} {fates.count(fate)} {fate}" for fate in MARKS]
        coloured = (in_terminal(w, fate, colour) for w, fate in zip(words, MARKS, strict=True))
        return ", ".join(coloured)

    def _repr_html_(self) -> str:
        rows = [
            f'<div style="white-space:nowrap"><span style="color:{GREY};display:inline-block;'
            f'width:2.5em;text-align:right;padding-right:0.7em">{i}</span> '
            + " ".join(html_of(mark) for mark in marks)
            + "</div>"
            for i, marks in enumerate(self.rounds, start=1)
        ]
        legend = " ".join(html_of(Mark(fate, fate, 0.0)) for fate in MARKS)
        style = "font-family:monospace;font-size:14px;line-height:1.9;overflow-x:auto"
        return f'<div style="{style}">{"".join(rows)}<div>{legend}</div></div>'


def token_trace(generation: Generation, tokenizer: CharTokenizer) -> TokenTrace:
    """The trace of a generation, to show or print."""
    return TokenTrace(generation, tokenizer)


@mpl.rc_context(STYLE)
def trace_picture(trace: TokenTrace, title: str, columns: int = 4) -> Picture:
    """A token trace as a picture, its rounds in reading order in columns side by side."""
    per_column = -(-len(trace.rounds) // columns)
    cells = max(len(marks) for marks in trace.rounds) + 1.6  # and the number of the round
    axes = picture(title, "", "", 8, 0.7 + 0.3 * per_column)
    for i, marks in enumerate(trace.rounds):
        left, y = i // per_column * cells, i % per_column
        axes.text(left + 0.8, y + 0.5, str(i + 1), ha="right", va="center", color=GREY, fontsize=9)
        for x, mark in enumerate(marks, start=1):
            colour = MARKS[mark.fate][0]
            border = {"facecolor": "white", "edgecolor": colour, "linewidth": 1.6}
            corner = (left + x, y + 0.1)
            axes.add_patch(mpl.patches.Rectangle(corner, 0.9, 0.8, **border))
            place = {"ha": "center", "va": "center", "fontsize": 9}
            axes.text(left + x + 0.45, y + 0.5, mark.label, **place)
    axes.set_xlim(0, columns * cells)
    axes.set_ylim(per_column, 0)
    axes.set_axis_off()
    handles = [mpl.patches.Patch(fc="w", ec=c, label=f"{s} {f}") for f, (c, s, _) in MARKS.items()]
    axes.figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=9)
    return axes.figure


def in_terminal(text: str, fate: str, colour: bool) -> str:
    """`text` in the ANSI colour of a fate, or as it is."""
    return f"\x1b[{MARKS[fate][2]}m{text}\x1b[0m" if colour else text


def shown(text: str) -> str:
    """A token's text with blanks made visible."""
    return text.replace(" ", "␣").replace("\n", "⏎")


def trace_of(r: Round, tokenizer: CharTokenizer) -> list[Mark]:
    """The marks of one round: accepted candidates, a rejected one if any, and the last token.

    Where guesses have siblings, the path that was kept, each token with how many were refused.
    """
    parents = getattr(r, "parents", [])  # a chain's round has none
    if len(set(parents)) < len(parents):
        return trace_of_tree(r, tokenizer)
    marks = []
    for i, token in enumerate(r.candidates[: r.n_examined]):
        fate = "accepted" if i < r.n_accepted else "rejected"
        p, q = float(r.target_probs[i, token]), float(r.draft_probs[i, token])
        marks.append(Mark(tokenizer.decode([token]), fate, p, q))
    last, fate = r.emitted[-1], "bonus" if r.n_accepted == len(r.candidates) else "resampled"
    p = float(r.target_probs[r.n_accepted, last])
    return [*marks, Mark(tokenizer.decode([last]), fate, p)]


def trace_of_tree(r: Round, tokenizer: CharTokenizer) -> list[Mark]:
    """The marks of a tree's round: the path that was kept, and the target's own token."""
    marks = []
    for before, node in zip([-1, *r.path], [*r.path, None], strict=True):
        siblings = [n for n, parent in enumerate(r.parents) if parent == before]
        if node is None:
            token, fate = r.emitted[-1], "resampled" if siblings else "bonus"
            q, refused = None, len(siblings)
        else:
            token, fate = r.candidates[node], "accepted"
            q, refused = float(r.draft_probs[node, token]), siblings.index(node)
        p = float(r.target_probs[before + 1, token])
        marks.append(Mark(tokenizer.decode([token]), fate, p, q, refused))
    return marks


def html_of(mark: Mark) -> str:
    """One token as an inline-styled span: colour, mark, and its probabilities in the tooltip."""
    colour, sign, _ = MARKS[mark.fate]
    title = mark.fate if not mark.p else f"{mark.fate}: p = {mark.p:.3f}"
    title += "" if mark.q is None else f", q = {mark.q:.3f}"
    siblings = ""
    if mark.refused:
        title += f"; siblings refused before it: {mark.refused}"
        siblings = f'<small style="color:{REJECTED}"> {MARKS["rejected"][1]}{mark.refused}</small>'
    style = f"border:2px solid {colour};border-radius:4px;padding:0 4px;"
    text = html.escape(shown(mark.text))
    return f'<span style="{style}" title="{title}">{sign}{text}{siblings}</span>'
