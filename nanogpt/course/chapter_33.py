"""Chapter 33: the judge of *Your turn*, and the chapter's own pictures.

The turn: a state, rebuilt from what the kept tokens of a pass put in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown

KEPT = [[0, 1, 2, 3], [0], [], [0, 2], [1, 3], [0, 1, 3], [2]]


def rebuilt(S: Tensor, k: Tensor, v: Tensor, g: Tensor, kept: Sequence[int]) -> Tensor:
    """S (hs, hs) after these rows of k, v (T, hs) and g (T), one after another."""
    for row in kept:
        S = g[row] * S + torch.outer(k[row], v[row])
    return S


def judge(mine: Callable) -> None:
    """mine(S, k, v, g, kept) is the state (hs, hs) after the kept tokens.

    Raises AssertionError with the slip.
    """
    generator = torch.Generator().manual_seed(33)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    for kept in KEPT:
        S, k, v = drawn(3, 3), drawn(4, 3), drawn(4, 3)
        g = torch.rand(4, dtype=torch.float64, generator=generator) * 0.8 + 0.1
        given = [x.clone() for x in (S, k, v, g)]
        answer = mine(*given, list(kept))
        for name, x, was in zip("Skvg", given, (S, k, v, g), strict=True):
            assert torch.equal(x, was), f"{name} was changed in place: work on a copy"
        right = rebuilt(S, k, v, g, kept)
        assert answer is not None, "nothing came back: return the state, (hs, hs)"
        assert isinstance(answer, Tensor), f"{answer!r} came back: return a tensor, (hs, hs)"
        assert answer.shape == right.shape, (
            f"a tensor {tuple(answer.shape)} came back: a state is (hs, hs), here {(3, 3)}"
        )
        off = float((answer - right).abs().max())
        if not off < 1e-9:
            raise AssertionError(
                f"with kept = {kept} of 4 tokens, the state is off by {off:.2g}; "
                + slip(answer, S, k, v, g, kept)
            )


def slip(answer: Tensor, S, k, v, g, kept: Sequence[int]) -> str:
    """What was probably done wrong."""

    def same(x: Tensor) -> bool:
        return bool((answer - x).abs().max() < 1e-9)

    if not kept:
        return "nothing was kept, so it is S, as it was"
    if same(rebuilt(S, k, v, g, range(len(g)))):
        return "all tokens are in it: take only the rows in kept"
    if same(rebuilt(S, k, v, g, range(len(kept)))):
        return f"the first {len(kept)} tokens are in it: kept lists the rows, not how many"
    if same(rebuilt(S, k, v, torch.ones_like(g), kept)):
        return "nothing fades: each token's gate multiplies the state before it writes"
    if same(rebuilt(S, v, k, g, kept)):
        return "k and v have changed places: k is down the side, torch.outer(k, v)"
    after = S
    for row in kept:
        after = g[row] * (after + torch.outer(k[row], v[row]))
    if same(after):
        return "the gate faded the token's own writing: fade first, then write"
    if same(rebuilt(S, k, v, g, kept[::-1])):
        return "the tokens came in the wrong order: kept is from the first to the last"
    if same(rebuilt(torch.zeros_like(S), k, v, g, kept)):
        return "it began with zeros: S is the state before the pass"
    return "one after another, in the order of kept: S = g S + outer(k, v)"


@mpl.rc_context(STYLE)
def slots_and_state(text: str, guesses: str, kept: int, title: str) -> Picture:
    """A round, twice: a cache whose slots are cut, and a state that was written over.

    guesses: after the text; the first `kept` of them were accepted.
    """
    shows = f"{kept} of {len(guesses)} guesses stay: the slots are cut, but the state holds all."
    axes = sheet(title, 8.6, 2.3, shows)
    left, size = 16.0, min(5.0, 60 / (len(text) + len(guesses)))
    kinds = ["cached"] * len(text) + ["accepted"] * kept + ["rejected"] * (len(guesses) - kept)
    words(axes, 1, 3.5, "attention", ha="left")
    words(axes, 1, 5.5, "a slot a token", ha="left", fontsize=8, color=GREY)
    for i, (letter, kind) in enumerate(zip(text + guesses, kinds, strict=True)):
        box(axes, left + size * i, 2.5, size - 0.5, 3, shown(letter), kind)
    x = left + size * (len(text) + kept) - 0.25
    axes.plot([x, x], [1.6, 6.6], color="black", linestyle="--")
    words(axes, x, 8.0, "cut here", fontsize=9)
    words(axes, 1, 13.5, "a state", ha="left")
    words(axes, 1, 15.5, "written over", ha="left", fontsize=8, color=GREY)
    names = ["S before", *(f"{shown(letter)} in it" for letter in guesses)]
    looks = ["gone"] * (len(names) - 1) + ["rejected"]
    gap = (len(text) + len(guesses)) * size / len(names)
    for i, (name, kind) in enumerate(zip(names, looks, strict=True)):
        box(axes, left + gap * i, 12.3, gap - 2.6, 4, name, kind)
        if i:
            arrow(axes, (left + gap * i - 2.4, 14.3), (left + gap * i - 0.2, 14.3))
    words(axes, left + gap * (kept + 0.5) - 1.3, 18.2, "needed", fontsize=9)
    words(axes, left + gap * len(guesses) + gap / 2 - 1.3, 18.2, "there", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def three_ways(guesses: str, kept: int, title: str) -> Picture:
    """What each way holds after a pass over the current token and the guesses, and goes on from."""
    shows = "The next round goes on from one of the states, the snapshot, or a state and inputs."
    axes = sheet(title, 9.4, 2.9, shows)
    tokens, left, gap = ["now", *map(shown, guesses)], 24.0, 9.0
    rows = {
        "states": ["S", *["S"] * len(tokens)],
        "snapshot": ["S", *[""] * (len(tokens) - 1), "S"],
        "inputs": ["S", *["k v g"] * len(tokens)],
    }
    said = {
        "states": "take one",
        "snapshot": "read the kept ones again",
        "inputs": "put the kept ones in",
    }
    for i, name in enumerate(["before", *tokens]):
        words(axes, left + gap * i + 3.7, 2.2, name, fontweight="bold" if i else "normal")
    for r, (way, cells) in enumerate(rows.items()):
        y = 4.5 + 7 * r
        words(axes, 1, y + 1.2, way, ha="left", fontweight="bold")
        words(axes, 1, y + 3.4, said[way], ha="left", fontsize=8, color=GREY)
        for i, cell in enumerate(cells):
            on = i == kept + 1 if way == "states" else i == 0 or (way == "inputs" and i <= kept + 1)
            if cell:
                box(axes, left + gap * i, y, gap - 1.6, 4, cell, "accepted" if on else "gone")
    words(axes, 1, 26.5, "green: what the next round goes on from", ha="left", fontsize=9)
    return axes.figure
