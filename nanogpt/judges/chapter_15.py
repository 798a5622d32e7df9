"""The judge of chapter 15's *Your turn*: the loss that teaches each Medusa head its own token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def labels_ahead(mine: Callable) -> None:
    """Judges my_medusa_loss(logits, tokens): Σ .8^i times the mean cross-entropy of head i.

    It is compared with the right sum, in float64, for three heads and for one.
    Raises AssertionError for labels too near or too far, a lost or shifted weight, a sum where a
    mean belongs, labels that wrap around, or a loss without a gradient.
    """
    generator = torch.Generator().manual_seed(0)
    for n_heads in (3, 1):
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
        right = loss_with(logits, tokens).item()
        fault = slip_of_loss(logits, tokens, value)
        assert abs(value - right) < 1e-4, (
            f"{n_heads} heads on windows of 9 tokens: the loss is {value:.4f}, not {right:.4f}"
            + (f"; {fault}" if fault else "; compare your labels with the table above")
        )
        assert isinstance(got, Tensor) and got.requires_grad, (
            "the number is right but carries no gradient, so nothing can be trained with it; keep "
            "it a tensor, without .item() or no_grad"
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
