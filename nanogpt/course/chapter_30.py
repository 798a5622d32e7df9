"""Chapter 30: the judge of *Your turn*, and the chapter's own pictures.

The turn: accept a guess if it is what the target draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.drafts.transformer import common_prefix
from nanogpt.same import scores
from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, MARKS, REJECTED, STYLE, Picture

ROWS = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.25, 0.35, 0.4]]  # of p, all different
Q = [0.2, 0.3, 0.5]


class Places:
    """Stands for SameDice: what it draws at each place is written down beforehand."""

    def __init__(self, drawn: Sequence[int], p: np.ndarray):
        self.drawn, self.p, self.asked = drawn, p, 0

    def categorical(self, probs) -> int:
        """The token of the next place. Raises AssertionError if it is not that place's p."""
        row, self.asked = self.asked, self.asked + 1
        assert row < len(self.drawn), (
            f"place {row} of the round was drawn, and the last one is {len(self.drawn) - 1}: after "
            "K guesses there is one token more, and then the round is over"
        )
        given = np.asarray(probs, dtype=float)
        right = given.shape == self.p[row].shape and np.allclose(given, self.p[row], atol=1e-5)
        assert right, (
            f"draw {row} of the round was given {given.tolist()}, not target_probs[{row}], "
            f"{self.p[row].tolist()}: the target draws from its own p, one row after another"
        )
        return self.drawn[row]

    def bernoulli(self, probability: float) -> bool:
        """Raises AssertionError: there is no coin."""
        raise AssertionError("a coin was tossed: here no guess needs one, a draw from p decides")


def judge(mine: Callable) -> None:
    """mine(candidates, draft_probs, target_probs, rng) emits what the target draws, if guessed.

    Judged on every round of up to three guesses of three letters, for everything that the target
    may draw. Raises AssertionError with the slip.
    """
    for K in range(4):
        p = torch.tensor(ROWS[: K + 1], dtype=torch.float64)
        q = torch.tensor([Q] * K, dtype=torch.float64).reshape(K, 3)
        for guesses, drawn in itertools.product(
            itertools.product(range(3), repeat=K), itertools.product(range(3), repeat=K + 1)
        ):
            judge_round(mine, list(guesses), list(drawn), p, q)


def judge_round(mine, guesses: list[int], drawn: list[int], p, q) -> None:
    """One round of the judge: drawn (K+1), what the target draws at each place if asked.

    Raises AssertionError with the slip.
    """
    right = drawn[: common_prefix(guesses, drawn) + 1]
    rng, given = Places(drawn, p.numpy()), (list(guesses), q.clone(), p.clone())
    where = f"guesses {guesses}, and the target draws {right}"
    answer = mine(*given, rng)
    assert answer is not None, "nothing came back: return the list of emitted tokens"
    untouched = given[0] == guesses and given[1].equal(q) and given[2].equal(p)
    assert untouched, "candidates, q or p were changed in place: work on a copy"
    assert hasattr(answer, "__len__") and not isinstance(answer, (str, dict)), (
        f"{answer!r} came back, not a list of tokens"
    )
    assert all(hasattr(token, "__index__") for token in answer), (
        f"{answer!r} came back, and not all of it are tokens"
    )
    got = [int(token) for token in answer]
    if got != right:
        raise AssertionError(
            f"{where}: {got} came out instead of {right}; {slip(got, right, K=len(guesses))}"
        )
    assert rng.asked, f"{where}: nothing was drawn; draw each token, do not take the likeliest"
    assert rng.asked == len(right), (
        f"{where}: {rng.asked} draws for {len(right)} tokens. Each draw moves the dice on to the "
        "next place of the text, so draw no more than you emit"
    )


def slip(got: list[int], right: list[int], K: int) -> str:
    """What was probably done wrong."""
    if len(got) < len(right) and got == right[: len(got)]:
        if len(right) == K + 1 and len(got) == K:
            return "all guesses stood, and the target's own token after them is missing"
        return "where a guess is wrong, the target's own draw takes its place"
    if len(got) > len(right):
        return "the round ends with the first draw that was not guessed"
    return "what the target draws is always what is emitted"


@mpl.rc_context(STYLE)
def two_races(
    p: Sequence[float], q: Sequence[float], g: Sequence[float], letters: str, title: str
) -> Picture:
    """The same wind in two races: from log p, and from log q, each letter is carried by its g.

    In each race, the letter that comes furthest wins, and is marked.
    """
    starts = [np.log(row) for row in (p, q)]
    ends = [scores(row, np.asarray(g)) for row in (p, q)]
    low = min(np.min(starts), np.min(ends))
    unit = 22 / (max(np.max(starts), np.max(ends)) - low)
    winners = [int(end.argmax()) for end in ends]
    first, other = (letters[winner] for winner in winners)
    shows = f"With the same wind, {first} wins the target's race, and {other} wins the draft's."
    axes = sheet(title, 9.4, 1.5 + 0.52 * len(letters), shows)
    bottom = 6 + 5.2 * len(letters)
    for left, kind, name, start, end, winner in zip(
        (1, 48), ("target", "draft"), ("log p", "log q"), starts, ends, winners, strict=True
    ):
        words(axes, left + 22, 1.6, f"the {kind}'s race", fontweight="bold")
        words(axes, left + 38, 1.6, f"{name} + wind", color=GREY, fontsize=9)
        colour = KINDS[kind][1]
        for i, letter in enumerate(letters):
            y = 5.5 + 5.2 * i
            a, b = (left + 5 + unit * (x - low) for x in (start[i], end[i]))
            words(axes, left + 1, y, letter, fontweight="bold")
            axes.plot([a], [y], marker="o", color=colour, markersize=6)
            arrow(axes, (a, y), (b, y), colour=colour, dash="-" if kind == "target" else "--")
            axes.plot([b, b], [y - 1.3, y + 1.3], color=colour, linewidth=3)
            sum_of = f"{start[i]:.2f} {'+' if g[i] >= 0 else '−'} {abs(g[i]):.2f} = {end[i]:.2f}"
            style = {"fontweight": "bold"} if i == winner else {"color": GREY}
            words(axes, left + 38, y, sum_of.replace("-", "−"), fontsize=9, **style)
        wins = f"{letters[winner]} wins"
        box(axes, left + 12, bottom, 14, 3, wins, kind)
    agreed = winners[0] == winners[1]
    said, colour = ("✓ accepted", ACCEPTED) if agreed else ("✗ not what the target drew", REJECTED)
    words(axes, 47, bottom + 5.6, said, color=colour, fontsize=11)
    return axes.figure


@mpl.rc_context(STYLE)
def winds_of_places(
    texts: Sequence[tuple[str, Sequence[tuple[str, str]]]], n_prompt: int, title: str
) -> Picture:
    """One wind per place of the text, read by whoever stands there.

    texts: (name, cells) each; a cell is (letter, kind of KINDS) from the prompt's first on.
    """
    longest = max(len(cells) for _, cells in texts)
    shows = f"The rows have the same letters, and differ in marks: {'; '.join(dict(texts))}."
    axes = sheet(title, 9.4, 0.75 + 0.7 * len(texts), shows)
    wide = 80 / longest
    for i in range(longest):
        x = 13 + wide * i
        words(axes, x + wide / 2, 1.2, f"{i}", color=GREY, fontsize=8)
        if i >= n_prompt:
            words(axes, x + wide / 2, 3.4, f"g{i}", fontsize=8)
    words(axes, 1, 1.2, "place", ha="left", color=GREY, fontsize=9)
    words(axes, 1, 3.4, "its wind", ha="left", fontsize=9)
    for row, (name, cells) in enumerate(texts):
        y = 5.6 + 7 * row
        words(axes, 1, y + 2.6, name, ha="left", fontsize=9)
        for i, (letter, kind) in enumerate(cells):
            mark = MARKS[kind][1] if kind in MARKS else ""
            box(axes, 13 + wide * i + 0.2, y, wide - 0.4, 5.2, f"{letter}\n{mark}".strip(), kind)
    return axes.figure
