"""Chapter 20: the judge of *Your turn*, and the chapter's own pictures.

The turn: the loss that asks for the token after next.
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import torch
from torch import Tensor
from torch.nn import functional as F

from nanogpt.drafts.eagle import EagleHead
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, RESAMPLED, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
    """Judges my_mtp_loss(head, hidden, tokens): the mean cross-entropy of token i+2.

    The head is small, random and in float64; hidden (2, 8, 4), tokens (2, 9).
    Raises AssertionError for a pair or a label that is shifted, labels that wrap around, a sum
    where a mean belongs, arguments that are changed, or a loss whose gradient does not reach the
    states, the layer and what it shares with the target.
    """
    head, hidden, tokens = toy_layer()
    parts = {"the target's states": hidden, "the layer": head.fc.weight}
    parts |= zip(("the embeddings", "lm_head"), (x.weight for x in head.shared), strict=True)
    right = layer_loss(head, hidden, tokens)
    gradients = torch.autograd.grad(right, list(parts.values()))
    got, value = answer_of(mine, head, hidden, tokens)
    fault = slip_of_shift(head, hidden, tokens, value)
    assert abs(value - right.item()) < 1e-4, (
        f"windows of 9 tokens: the loss is {value:.4f}, not {right.item():.4f}"
        + (f"; {fault}" if fault else "; compare what you pair with the picture above")
    )
    assert isinstance(got, Tensor) and got.requires_grad, (
        "the number is right but carries no gradient, so nothing can be trained with it; keep it a "
        "tensor, without .item() or no_grad"
    )
    for (name, part), due in zip(parts.items(), gradients, strict=True):
        judge_gradient(got, name, part, due)


def answer_of(
    mine: Callable, head: EagleHead, hidden: Tensor, tokens: Tensor
) -> tuple[object, float]:
    """What `mine` returns, and its value; it is handed copies, which have to stay as they are.

    Raises AssertionError if it stops, changes them, or returns no number.
    """
    states, given = hidden * 1, tokens.clone()  # a part of a graph, as in training
    try:
        got = mine(head, states, given)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, NotImplementedError):
            raise
        raise AssertionError(
            f"your code stopped with {error}; hidden has 8 places and tokens 9, and the last place "
            "has no label: cut both, so that places, tokens and labels are equally many"
        ) from None
    for name, now, before in (("hidden", states, hidden), ("tokens", given, tokens)):
        assert now.shape == before.shape and torch.equal(now, before), (
            f"your code changed {name} itself, which the target's own loss still needs; "
            "slice it, or copy it first"
        )
    try:
        return got, float(got.detach() if isinstance(got, Tensor) else got)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"the loss came as {got!r}; it is one number, in a tensor") from None


def judge_gradient(got: Tensor, name: str, part: Tensor, due: Tensor) -> None:
    """Raises AssertionError unless the gradient of `got` in this part is `due`, of its shape."""
    try:
        (came,) = torch.autograd.grad(got, part, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise AssertionError(
            f"the number is right, but no gradient can be taken of it ({error}); return the loss, "
            "and leave .backward() to the training"
        ) from None
    why = {
        "the target's states": "the target never hears the second question, and that is all that "
        "tells this layer from chapter 19's; leave out detach and no_grad"
    }
    assert came is not None and came.abs().max() > 0, (
        f"the number is right, but no gradient reaches {name}: "
        + why.get(name, "nothing is learned there; leave out detach and no_grad")
    )
    assert torch.allclose(came, due), (
        f"the number is right, but the gradient in {name} is not the loss's own (off by "
        f"{float((came - due).abs().max()):.1e}); some of the places are cut off from it"
    )


def toy_layer() -> tuple[EagleHead, Tensor, Tensor]:
    """A random layer for 5 letters, hidden states (2, 8, 4), with a gradient, and tokens (2, 9)."""
    config = GPTConfig(5, 16, n_layer=1, n_head=2, n_embd=4)
    target, head = GPTLanguageModel(config).double(), EagleHead(config, norms=True).double()
    generator = torch.Generator().manual_seed(0)
    for weight in [*target.parameters(), *head.parameters()]:
        torch.nn.init.normal_(weight, generator=generator)
    hidden = torch.randn(2, 8, 4, dtype=torch.float64, generator=generator)
    tokens = torch.randint(5, (2, 9), generator=generator)
    return head.share(target), hidden.requires_grad_(), tokens


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
            [
                layer_loss(head, hidden, tokens, 0, 2),
                layer_loss(head, hidden, tokens, 0, 1),
                layer_loss(head, hidden[:, :-1], tokens[:, :-1], 0, 1),
            ],
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
        ("the labels wrap around the window's end: cut the last place, which has none", [rolled]),
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


@mpl.rc_context(STYLE)
def guessing_itself(
    read: str, drawn: tuple[str, float], guess: tuple[str, float], title: str
) -> Picture:
    """A target with a layer of its own for multi-token prediction, after it has read `read`.

    drawn: the next token, from the target's p, and its probability; guess: the layer's guess of the
    one after. Each column is a token: its state, beside the token after it, goes into the layer,
    which is asked for the token after that.
    """
    after, left, wide = [*read[1:], drawn[0]], 14.5, 9.2
    right = left + wide * len(read) - 0.7
    shows = f"The MTP layer reads each state and the token after it, and guesses {shown(guess[0])}."
    axes = sheet(title, max(8, (right + 16) / 10), 3.3, shows)
    for y, said in ((3.6, "asked for"), (12.6, "token after it"), (18.6, "its state")):
        words(axes, left - 1.5, y, said, ha="right")
    words(axes, left - 1.5, 28.6, "token", ha="right")
    box(axes, left, 22.4, right - left, 2.6, "the target's blocks", "target")
    box(axes, left, 7, right - left, 2.6, "one more block: the MTP layer", "draft")
    for i, char in enumerate(read):
        x, last = left + wide * i, i == len(read) - 1
        box(axes, x, 27, 4, 3.2, shown(char), "cached")
        box(axes, x, 17, 4, 3.2, "state", "target")
        box(axes, x + 4.5, 11, 4, 3.2, shown(after[i]), "resampled" if last else "cached")
        arrow(axes, (x + 2, 27), (x + 2, 25), TARGET)
        arrow(axes, (x + 2, 22.4), (x + 2, 20.2), TARGET)
        arrow(axes, (x + 2, 17), (x + 2, 9.6), TARGET)
        arrow(axes, (x + 6.5, 11), (x + 6.5, 9.6))
        arrow(axes, (x + 4.2, 7), (x + 4.2, 5.2), DRAFT)
        token = f"{shown(guess[0])} {guess[1]:.2f}" if last else shown(after[i + 1])
        box(axes, x + (0.2 if last else 2.1), 2, 8 if last else 4.2, 3.2, token, "draft")
    words(axes, right + 1.5, 3.6, "the guess", ha="left")
    arrow(axes, (right - 4.5, 18.6), (right + 4, 18.6), TARGET)
    box(axes, right + 4, 17, 9, 3.2, "lm_head", "target")
    arrow(axes, (right + 8.5, 17), (right + 8.5, 14.2), TARGET)
    box(axes, right + 4, 11, 9, 3.2, f"{shown(drawn[0])} {drawn[1]:.2f}", "resampled")
    arrow(axes, (right + 4, 12.6), (right, 12.6), RESAMPLED)
    return axes.figure


@mpl.rc_context(STYLE)
def three_ways(last: str, tokens: str, title: str) -> Picture:
    """Three ways to guess more than one token ahead, side by side, after a target has read `last`.

    tokens: the next token and the two after it, which all three are asked for.
    """
    shows = "Heads on one state; a chain of modules; and one layer that reads its own output."
    axes = sheet(title, 10.3, 3.5, shows)
    words(axes, 17, 4, "heads side by side\n(Gloeckle et al. 2024)")
    state = box_of_state(axes, 12.5, last)
    for i, (x, token) in enumerate(zip((2.5, 12.5, 22.5), tokens, strict=True)):
        box(axes, x, 17, 9, 3.2, f"head {i + 1}", "draft" if i else "target")
        arrow(axes, state, (x + 4.5, 20.2), TARGET)
        said(axes, x + 2.5, token, i)
    words(axes, 17, 32.5, "no head knows what another said")
    chain(axes, 36, last, tokens, ("module 1", "module 2"))
    words(axes, 51.5, 4, "a chain of D modules\n(DeepSeek-V3; here D = 2)")
    words(axes, 51.5, 32.5, "each module has weights of its own")
    chain(axes, 70.5, last, tokens, ("layer", "again"))
    words(axes, 86, 4, "one layer, used again\n(engines do so, and ours)")
    words(axes, 86, 32.5, "the second time, on its own output")
    return axes.figure


def box_of_state(axes: mpl.axes.Axes, x: float, last: str) -> tuple[float, float]:
    """Draws the target's state of the token `last`; the middle of the box's upper edge."""
    box(axes, x, 26, 9, 3.2, f"state of {shown(last)}", "target")
    return x + 4.5, 26


def said(axes: mpl.axes.Axes, x: float, token: str, place: int) -> None:
    """A token that has been said, the target's own at place 0, above the box that said it."""
    box(axes, x, 9, 4, 3.2, shown(token), "draft" if place else "resampled")
    arrow(axes, (x + 2, 17), (x + 2, 12.2), DRAFT if place else TARGET)


def chain(axes: mpl.axes.Axes, x: float, last: str, tokens: str, modules: tuple[str, str]) -> None:
    """The lm_head and two modules in a row: each reads the token before, and what came out."""
    state = box_of_state(axes, x, last)
    for i, name in enumerate(("lm_head", *modules)):
        left = x + 11 * i
        box(axes, left, 17, 9, 3.2, name, "draft" if i else "target")
        said(axes, left + 2.5, tokens[i], i)
        if i:  # the token before it, from above
            colour = DRAFT if i > 1 else RESAMPLED
            arrow(axes, (left - 4.5, 10.6), (left + 1.2, 17), colour, bend=-0.15)
    arrow(axes, state, (x + 4.5, 20.2), TARGET)
    arrow(axes, (state[0] + 4.5, 27.6), (x + 15.5, 20.2), TARGET, bend=0.3)
    arrow(axes, (x + 20, 18.6), (x + 22, 18.6), DRAFT)
