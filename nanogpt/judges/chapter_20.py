"""The judge of chapter 20's *Your turn*: the loss that asks for the token after next."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from nanogpt.drafts.eagle import EagleHead
from nanogpt.model import GPTConfig, GPTLanguageModel


def token_after_next(mine: Callable) -> None:
    """Judges my_mtp_loss(head, hidden, tokens): the mean cross-entropy of token i+2.

    The head is small, random and in float64; hidden (2, 8, 4), tokens (2, 9).
    Raises AssertionError for a pair or a label that is shifted, labels that wrap around, a sum
    where a mean belongs, or a loss without a gradient.
    """
    head, hidden, tokens = toy_layer()
    try:
        got = mine(head, hidden, tokens)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, NotImplementedError):
            raise
        raise AssertionError(
            f"your code stopped with {error}; hidden has 8 places and tokens 9, and the last place "
            "has no label: cut both, so that places, tokens and labels are equally many"
        ) from None
    try:
        value = float(got.detach() if isinstance(got, Tensor) else got)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"the loss came as {got!r}; it is one number, in a tensor") from None
    right = layer_loss(head, hidden, tokens).item()
    fault = slip_of_shift(head, hidden, tokens, value)
    assert abs(value - right) < 1e-4, (
        f"windows of 9 tokens: the loss is {value:.4f}, not {right:.4f}"
        + (f"; {fault}" if fault else "; compare what you pair with the picture above")
    )
    assert isinstance(got, Tensor) and got.requires_grad, (
        "the number is right but carries no gradient, so nothing can be trained with it; keep it a "
        "tensor, without .item() or no_grad"
    )


def toy_layer() -> tuple[EagleHead, Tensor, Tensor]:
    """A random layer for 5 letters, hidden states (2, 8, 4) and tokens (2, 9)."""
    config = GPTConfig(5, 16, n_layer=1, n_head=2, n_embd=4)
    target, head = GPTLanguageModel(config).double(), EagleHead(config, norms=True).double()
    generator = torch.Generator().manual_seed(0)
    for weight in [*target.parameters(), *head.parameters()]:
        torch.nn.init.normal_(weight, generator=generator)
    hidden = torch.randn(2, 8, 4, dtype=torch.float64, generator=generator)
    return head.share(target), hidden, torch.randint(5, (2, 9), generator=generator)


def layer_loss(
    head: EagleHead,
    hidden: Tensor,
    tokens: Tensor,
    pair: int = 1,
    label: int = 2,
    state: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """The loss if the state of i + `state` meets token i + `pair`, asked for token i + `label`.

    hidden (B, T, C), tokens (B, T+1). The defaults are right.
    """
    n = min(hidden.shape[1] - state, tokens.shape[1] - max(pair, label))
    out, _ = head(hidden[:, state : state + n], tokens[:, pair : pair + n])
    labels = tokens[:, label : label + n]
    return F.cross_entropy(head.logits(out).flatten(0, 1), labels.flatten(), reduction=reduction)


def slip_of_shift(head: EagleHead, hidden: Tensor, tokens: Tensor, value: float) -> str:
    """What is wrong with a loss of this `value`, or ""; hidden (B, T, C), tokens (B, T+1)."""
    right = layer_loss(head, hidden, tokens)
    out, _ = head(hidden, tokens[:, 1:])
    rolled = F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 1:].roll(-1, 1).flatten())
    given = F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 1:].flatten())
    peeks = "the layer is asked for the very token that it is given: its label is one place further"
    slips = [
        (peeks, [layer_loss(head, hidden[:, :-1], tokens[:, :-1], 1, 1), given]),
        (
            "each state meets its own token, which it has seen already: it must meet the one after",
            unshifted(head, hidden, tokens),
        ),
        (
            "the labels are a place too far: state i and token i+1 are asked for token i+2",
            [layer_loss(head, hidden, tokens, 1, 3)],
        ),
        (
            "the state is a place too far: that one belongs to the token in its pair, and is not "
            "there yet when the layer guesses",
            [layer_loss(head, hidden, tokens, 1, 2, 1)],
        ),
        (
            "the labels wrap around the window's end: cut the last place, which has none",
            [rolled],
        ),
        (
            "the loss is a mean over all places, not a sum",
            [layer_loss(head, hidden, tokens, reduction="sum"), right * 7],
        ),
        ("λ is not part of this loss: the training multiplies it in", [right * 0.3, right * 0.1]),
    ]
    for said, wrong in slips:
        if any(abs(float(each.detach()) - value) < 1e-6 for each in wrong):
            return said
    return ""


def unshifted(head: EagleHead, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
    """Losses if each state meets its own token, asked for the next but one, or for the next.

    hidden (B, T, C), tokens (B, T+1).
    """
    return [
        layer_loss(head, hidden, tokens, 0, 2),
        layer_loss(head, hidden, tokens, 0, 1),
        layer_loss(head, hidden[:, :-1], tokens[:, :-1], 0, 1),
    ]
