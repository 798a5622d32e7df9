"""Chapter 03: the judge of *Your turn*, and the chapter's own pictures.

The turn: the counted table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, GREY, STYLE, Picture, picture, shown


def judge(mine: Callable) -> None:
    """*Your turn* of 03: the table of pairs, one added to each count, of four texts.

    mine(tokens (N,), V) returns rows of probabilities (V, V), as a tensor, an array or lists.
    Raises AssertionError for a changed text, a wrong shape, or a wrong entry, with its likely slip.
    """
    long = [11, 1, 1, 11, 0] + [1, 0] * 300
    small = ([0, 1, 0, 0, 1, 0, 2], 3), ([2, 2, 2, 0], 5), ([3, 0, 1] * 9 + [3, 3], 4)
    for text, V in (*small, (long, 12)):
        tokens, named = torch.tensor(text), f"the text {text}"
        if text is long:
            named = (
                f"a text of {len(text)} tokens that begins {text[:8]} (the short ones are right)"
            )
        try:
            table = mine(tokens, V)
        except NotImplementedError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            raise AssertionError(
                f"in {named}, of {V} possible tokens, yours raised: {error}; is there room "
                "for pairs, and tokens, that never occur?"
            ) from error
        assert tokens.tolist() == text, "the tokens you were given have changed; leave them alone"
        assert table is not None, "nothing came back: return a (V, V) table"
        try:
            if isinstance(table, (tuple, list)):  # of rows of any kind
                table = torch.stack([torch.as_tensor(row) for row in table])
            table = torch.as_tensor(table, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"return a (V, V) table: a tensor, an array or a list of rows; {error}"
            raise AssertionError(message) from error
        assert table.shape == (V, V), (
            f"for V = {V} the table has shape {tuple(table.shape)}, not ({V}, {V}): a row for each "
            "token of the vocabulary, even one that never occurs"
        )
        right = counted(text, V) + 1
        right = right / right.sum(1, keepdim=True)
        off = (table - right).abs()
        if not bool((off < 1e-6).all()):  # also where it is NaN
            i, j = divmod(int(off.nan_to_num(nan=9.0).argmax()), V)  # the worst
            raise AssertionError(
                f"in {named}, token {j} after token {i} gets {table[i, j]:.3f}, not "
                f"{right[i, j]:.3f}: {slip_of_table(table, text, V)}"
            )


def counted(text: list[int], V: int) -> Tensor:
    """How often token j follows token i in the text, (V, V)."""
    pairs = torch.tensor([i * V + j for i, j in pairwise(text)])
    return torch.bincount(pairs, minlength=V * V).view(V, V).double()


def slip_of_table(table: Tensor, text: list[int], V: int) -> str:
    """What somebody probably did who made this table (V, V) of the text: a sentence that helps."""
    n = counted(text, V)
    slips = {
        "the table is on its side: row i is for what comes after token i": n.T + 1,
        "the last pair is missing: N tokens have N-1 pairs": counted(text[:-1], V) + 1,
        "a text has an end: the last token has no follower": counted([*text, text[0]], V) + 1,
        "a pair that occurs twice counts twice": n.clamp(max=1) + 1,
        "add one to every count before you divide": n,
    }
    for why, counts in slips.items():
        if torch.allclose(table, counts / counts.sum(1, keepdim=True), equal_nan=True):
            return why
    sums = table.sum(1)
    if not bool(((sums - 1).abs() < 1e-6).all()):
        said = ", ".join(f"{s:.3g}" for s in sums.tolist())
        return (
            f"the rows sum to {said}, not to 1: after counting, divide each row by its own sum "
            "(keepdim=True makes the sums a column)"
        )
    if len(text) > 100:
        return "does yours take tokens of two digits, and counts of hundreds?"
    return "count the pairs by hand and compare"


@mpl.rc_context(STYLE)
def draft_chain(current: str, guesses: str, q: Sequence, chars: Sequence[str]) -> Picture:
    """How a table drafts: the current character picks a row, a draw from it picks the next row.

    q: the row (V,) that each guess was drawn from; its likeliest few entries are shown.
    """
    title = "The current character picks a row; the draw picks the next"
    shows = f"After “{shown(current)}”, a draw from each row in turn guesses “{shown(guesses)}”."
    axes = sheet(title, 8.8, 0.95 * len(guesses) + 0.9, shows)
    for i, (before, drawn) in enumerate(zip([current, *guesses], guesses, strict=False)):
        y, row = 2 + 9.5 * i, dict(zip(chars, q[i].tolist(), strict=True))
        best = sorted(row, key=row.get, reverse=True)[:6]
        best += [drawn] * (drawn not in best)
        box(axes, 9, y, 6, 5, shown(before), "draft" if i else "target")
        words(axes, 1, y + 2.5, f"guess {i}" if i else "current", ha="left")
        arrow(axes, (15, y + 2.5), (23, y + 2.5))
        words(axes, 19, y + 1.1, "its row", fontsize=9)
        for j, char in enumerate(best):
            x, text = 23 + 9 * j, f"{shown(char)}  {row[char]:.2f}"
            box(axes, x, y, 8.4, 5, text, "draft" if char == drawn else "plain")
            if char == drawn:
                axes.plot([x + 4.2, x + 4.2, 12], [y + 5, y + 7.2, y + 7.2], color=GREY)
                arrow(axes, (12, y + 7.2), (12, y + 9.5))
                words(axes, x + 3.4, y + 6.3, "drawn", ha="right", fontsize=9)
        if len(row) > len(best):
            words(axes, 23 + 9 * len(best), y + 2.5, "…", ha="left")
    end = 2 + 9.5 * len(guesses)
    box(axes, 9, end, 6, 5, shown(guesses[-1]), "draft")
    words(axes, 1, end + 2.5, f"guess {len(guesses)}", ha="left")
    words(axes, 19, end + 2.5, "each guess keeps the whole row that it was drawn from", ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def map_of_pairs(table: Tensor, chars: str, marked: Sequence[str]) -> Picture:
    """The table (V, V) of a vocabulary in sorted order: white is 0, the darkest blue its largest.

    marked: pairs of characters whose cells are circled and named.
    """
    title = "After most characters, only a few others are likely"
    axes = picture(title, "next character", "current character", 8, 7.4)
    image = axes.imshow(table, cmap="Blues", vmin=0, aspect="auto")
    axes.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01)
    starts = [chars.index(first) for first in "!Aa"] + [len(chars)]
    names = ["⏎␣", shown(chars[2 : starts[1]]), "A … Z", "a … z"]
    middles = [(a + b - 1) / 2 for a, b in pairwise([0, *starts])]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.grid(visible=False)
    for start in starts[:3]:
        axes.axhline(start - 0.5, color=GREY, linewidth=0.8)
        axes.axvline(start - 0.5, color=GREY, linewidth=0.8)
    for pair in marked:
        y, x = map(chars.index, pair)
        axes.plot(x, y, "o", markersize=13, fillstyle="none", color=DRAFT, markeredgewidth=2)
        axes.text(x + 1.5, y, f"{pair[0]} → {shown(pair[1])}", va="center")
    axes.text(middles[2], middles[3], "empty", ha="center", va="center", color=GREY)
    pairs = ", ".join(f"{a} → {shown(b)}" for a, b in marked)
    axes.figure.shows = f"Most cells are nearly white; circled are {pairs}."
    return axes.figure
