"""Chapter 15: the judge of *Your turn*, and the chapter's own pictures.

The turn: the loss that teaches each Medusa head its own token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, GREY, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
    """Judges my_medusa_loss(logits, tokens): Σ .8^i times the mean cross-entropy of head i.

    It is compared with the right sum, in float64, for five heads and for one; so is the gradient
    that each head gets from it.
    Raises AssertionError for labels too near or too far, a lost or shifted weight, a sum where a
    mean belongs, labels that wrap around, or a loss that does not teach every head.
    """
    generator = torch.Generator().manual_seed(0)
    for n_heads in (5, 1):
        shape = (2, 9, n_heads, 5)
        logits = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        tokens = torch.randint(5, shape[:2], generator=generator)
        got = mine(logits, tokens)
        try:
            value = float(got.detach() if isinstance(got, Tensor) else got)
        except (TypeError, ValueError, RuntimeError):
            raise AssertionError(
                f"for {n_heads} heads the loss came as {got!r}; it is one number, in a tensor"
            ) from None
        right = loss_with(logits, tokens)
        fault = slip_of_loss(logits, tokens, value)
        assert abs(value - right.item()) < 1e-4, (
            f"{n_heads} heads on windows of 9 tokens: the loss is {value:.4f}, not {right:.4f}"
            + (f"; {fault}" if fault else "; compare your labels with the table above")
        )
        assert isinstance(got, Tensor) and got.requires_grad, (
            "the number is right but carries no gradient, so nothing can be trained with it; keep "
            "it a tensor, without .item() or no_grad"
        )
        judge_gradients(got, right, logits)


def judge_gradients(got: Tensor, right: Tensor, logits: Tensor) -> None:
    """Each head's share of the gradient of `got`, a loss of logits (B, T, n_heads, V), is right's.

    Raises AssertionError with the first head that learns nothing from it, or something else.
    """
    (mine,) = torch.autograd.grad(got, logits, allow_unused=True)
    (wanted,) = torch.autograd.grad(right, logits)
    mine = torch.zeros_like(wanted) if mine is None else mine
    for i in range(1, logits.shape[2] + 1):
        its, ours = mine[:, :, i - 1], wanted[:, :, i - 1]
        assert its.any(), (
            f"the number is right, but head {i} of {logits.shape[2]} gets no gradient from it and "
            "would never learn; keep each head's part a tensor, without float(), .item() or detach"
        )
        assert torch.allclose(its, ours, atol=1e-6), (
            f"the number is right, but head {i}'s gradient is not: a part of its loss is cut off "
            "(detach, float or .item), so training would pull it elsewhere"
        )


def loss_with(
    logits: Tensor, tokens: Tensor, far: int = 1, decay=lambda i: 0.8**i, reduction: str = "mean"
) -> Tensor:
    """The loss of logits (B, T, n_heads, V) with labels `far` + i tokens on: 1 is right."""
    total = logits.new_zeros(())
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : logits.shape[1] - far - i, i - 1], tokens[:, far + i :]
        found = F.cross_entropy(guesses.flatten(0, 1), labels.flatten(), reduction=reduction)
        total = total + decay(i) * found
    return total


def slip_of_loss(logits: Tensor, tokens: Tensor, value: float) -> str:
    """What is wrong with a loss of this `value` for logits (B, T, n_heads, V), or ""."""
    n = logits.shape[2]
    right = loss_with(logits, tokens)
    rolled = sum(
        0.8**i
        * F.cross_entropy(logits[:, :, i - 1].flatten(0, 1), tokens.roll(-1 - i, 1).flatten())
        for i in range(1, n + 1)
    )
    backwards = sum(
        0.8**i
        * F.cross_entropy(logits[:, 1 + i :, i - 1].flatten(0, 1), tokens[:, : -1 - i].flatten())
        for i in range(1, n + 1)
    )
    slips = [
        (
            "head 1 was asked for the next token, which lm_head already predicts: its label is one "
            "place further on",
            loss_with(logits, tokens, far=0),
        ),
        ("the labels are a place too far: head 1's is two after t", loss_with(logits, tokens, 2)),
        ("all heads were asked for the same token", same_label(logits, tokens, 1)),
        ("all heads were asked for the same token", same_label(logits, tokens, 2)),
        (
            "the weights are missing: head i's is .8 to the power i",
            loss_with(logits, tokens, decay=lambda i: 1),
        ),
        (
            "the weights start at 1: head 1's is .8 already",
            loss_with(logits, tokens, decay=lambda i: 0.8 ** (i - 1)),
        ),
        (
            "each head's cross-entropy is a mean over its places, not a sum",
            loss_with(logits, tokens, reduction="sum"),
        ),
        ("the heads' losses are added up, not averaged", right / n),
        ("labels wrap around the window's end: cut the places that have none", rolled),
        ("guesses and labels are shifted against each other: labels lie ahead", backwards),
    ]
    return next((said for said, wrong in slips if abs(wrong.item() - value) < 1e-6), "")


def same_label(logits: Tensor, tokens: Tensor, far: int) -> Tensor:
    """The loss of logits (B, T, n_heads, V) if every head's label lies `far` tokens on."""
    return sum(
        0.8**i * F.cross_entropy(logits[:, :-far, i - 1].flatten(0, 1), tokens[:, far:].flatten())
        for i in range(1, logits.shape[2] + 1)
    )


@mpl.rc_context(STYLE)
def heads_ahead(read: str, said: Sequence[tuple[str, float]], title: str) -> Picture:
    """One hidden state, and what is read off it: lm_head's token, then a guess of each head.

    said: of lm_head and of each head, a token and its probability. Nothing leads from one guess to
    another: the later tokens are guessed by heads that have not seen the earlier ones.
    """
    left, wide = max(18, 3.2 * len(read) + 6), 11.5
    shows = f"One state leads to lm_head and {len(said) - 1} heads; no arrow joins guess to guess."
    axes = sheet(title, max(8, (left + wide * len(said) + 1) / 10), 2.9, shows)
    for i, char in enumerate(read):
        box(axes, 1 + 3.2 * i, 3.2, 3.2, 3.2, shown(char), "cached")
    words(axes, 1, 1.6, "read by the trunk", ha="left")
    state = max(6, 1 + 3.2 * (len(read) - 0.5))
    arrow(axes, (state, 6.4), (state, 21.4), TARGET)
    box(axes, state - 4.6, 21.4, 9.2, 4.4, "its last\nhidden state", "target")
    for i, (token, p) in enumerate(said):
        x, kind = left + wide * i, "draft" if i else "target"
        words(axes, x + 4.5, 1.6, "drawn next" if i == 0 else f"{i} after that")
        box(axes, x, 3.2, 9, 3.2, f"{shown(token)}  {p:.2f}", kind)
        box(axes, x, 11.5, 9, 3.2, f"head {i}" if i else "lm_head", kind)
        arrow(axes, (x + 4.5, 11.5), (x + 4.5, 6.4), DRAFT if i else TARGET)
        arrow(axes, (x + 4.5, 23.6), (x + 4.5, 14.7))
    last = left + wide * (len(said) - 1) + 4.5
    axes.plot([state + 4.6, last], [23.6, 23.6], color=GREY, linewidth=1.4)
    words(axes, last, 27.2, "the same state for all", ha="right")
    return axes.figure


@mpl.rc_context(STYLE)
def squares(
    tables: Mapping[str, Sequence[Sequence[float]]], rows: str, columns: str, title: str, top: int
) -> Picture:
    """Distributions of two letters as squares: the first letter down, the second across.

    tables: {name: one for every pair, of rows and columns}; the first is the truth, and beside the
    others stands what they have in common with it, which is what is kept of a guess. Shown are the
    `top` rows and columns that weigh most in the first; a colour is the root of a probability.
    """
    tables = {name: np.asarray(table, dtype=float) for name, table in tables.items()}
    truth = next(iter(tables.values()))
    down, across = (np.argsort(-truth.sum(axis), kind="stable")[:top] for axis in (1, 0))
    width, height, side = 0.2 + 2.9 * len(tables), 3.6, 2.25  # inches
    figure = Picture(figsize=(width, height))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for i, (name, table) in enumerate(tables.items()):
        axes = figure.add_axes(
            ((0.65 + 2.9 * i) / width, 0.65 / height, side / width, side / height)
        )
        part = table[np.ix_(down, across)]
        axes.imshow(np.sqrt(part), cmap="Blues", vmin=0, vmax=np.sqrt(truth.max()))
        kept = "" if table is truth else f"\nin common {np.minimum(truth, table).sum():.2f}"
        axes.set_title(name + kept, fontsize=10.5, fontweight="normal")
        axes.set_xticks(range(len(across)), [shown(columns[i]) for i in across], fontsize=9)
        axes.set_yticks(range(len(down)), [shown(rows[i]) for i in down], fontsize=9)
        axes.set(xlabel="second", ylabel="first")
        axes.grid(visible=False)
        if top <= 3:
            for (down_, across_), value in np.ndenumerate(part):
                colour = "white" if value > 0.3 else "black"
                axes.text(across_, down_, f"{value:.2f}", ha="center", va="center", color=colour)
    said = (axes.get_title(loc="left").replace("\n", ", ") for axes in figure.axes)
    figure.shows = f"Tables of letter pairs: {'; '.join(said)}."
    return figure
