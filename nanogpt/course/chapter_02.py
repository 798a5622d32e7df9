"""Chapter 02: the judge of *Your turn*, and the chapter's own pictures.

The turn: a cached step of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.course.chapter_01 import check_work, toy_head
from nanogpt.model import causal_mask
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown


def judge(mine: Callable) -> None:
    """*Your turn* of 02: one step of a toy head, for one new token and several, with and without P.

    mine(head, x (B, T, C), past_kv) returns the output (B, T, hs) and the longer (k, v). Raises
    AssertionError for a changed cache, a wrong shape, order or mask.
    """
    head, computed = toy_head()
    head.double()
    x = (7.0 * torch.arange(216, dtype=torch.float64)).sin().view(2, 6, 18)
    for P, T in ((3, 1), (2, 4), (0, 3), (4, 2)):
        bias = torch.zeros(P + T, P + T).masked_fill(~causal_mask(P + T), -torch.inf)
        whole, kv = head(x[:, : P + T], bias)  # without a cache: all of it at once
        past = tuple(t[:, :P].clone() for t in kv) if P else None
        computed.clear()
        made = mine(head, x[:, P : P + T].clone(), past)
        case = f"after P = {P} cached tokens and T = {T} new ones"
        try:
            out, pair = made
            out, new_k, new_v = (torch.as_tensor(t) for t in (out, *pair))
        except (TypeError, ValueError, RuntimeError) as error:
            raise AssertionError("return two things, the output and the pair (k, v)") from error
        assert P == 0 or all(torch.equal(t, old[:, :P]) for t, old in zip(past, kv, strict=True)), (
            "the cache you were given has changed: make new tensors, leave the old"
        )
        for name, t, right in zip("kv", (new_k, new_v), kv, strict=True):
            assert t.shape == right.shape, (
                f"{case}, {name} has shape {tuple(t.shape)}, not (B, P+T, hs) = "
                f"{tuple(right.shape)}: it must hold the old entries and the new ones"
            )
            assert (t - right).abs().max() < 1e-4, (
                f"{case}, the entries of {name} are wrong: the {P} old ones come first, as they "
                "were, then the new ones in order"
            )
        check_output(out, whole[:, P:], case)
        check_work(computed, 2 * T)


def check_output(out: Tensor, right: Tensor, case: str) -> None:
    """A head's output (B, T, hs) is the right one in this case of `cached_step`.

    Raises AssertionError for a wrong shape, or naming the rows that are wrong.
    """
    assert out.shape == right.shape, (
        f"{case}, the output has shape {tuple(out.shape)}, not (B, T, hs) = {tuple(right.shape)}: "
        "only new tokens ask, so it has a row for each of them"
    )
    wrong = [i for i, off in enumerate((out - right).abs().amax((0, 2)).tolist()) if not off < 1e-4]
    look = "may it see every column, and are the scores divided by √hs before the softmax?"
    if right.shape[1] > 1:
        look = "row i may see columns 0 … P + i of the P + T, and no other"
    rows = f"row {wrong[0]}" if len(wrong) == 1 else f"rows {', '.join(map(str, wrong))}"
    assert not wrong, f"{case}, look at {rows} of the output: {look}"


@mpl.rc_context(STYLE)
def cached_step(text: str, weights: Sequence[float]) -> Picture:
    """One step of one head for the last token of `text`: computed, read from the cache, appended.

    weights: with what weight the new token reads each position's value, its own last.
    """
    shows = "The new token's query meets all keys; only its own key and value are appended."
    axes = sheet("One cached step: a column is computed, the others are read", 8.8, 4.3, shows)
    P, w = len(text) - 1, 69 / len(text)
    new = 15 + P * w  # the left edge of the new token's column
    sub = [str(i).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")) for i in range(P + 1)]
    for y, name in ((6, "token"), (13, "query"), (19, "keys"), (24.5, "weights"), (30, "values")):
        words(axes, 1, y, name, ha="left")
    words(axes, 1, 26.4, "(largest in bold)", ha="left", fontsize=8)
    words(axes, 1, 37, "output", ha="left")
    words(axes, (15 + new) / 2, 2, "old tokens: from the cache, nothing is computed", fontsize=9)
    words(axes, new + w / 2, 2, "new token", fontsize=9)
    for i, letter in enumerate(shown(text)):
        x, kind, plus = 15 + i * w, "target" if i == P else "cached", "+" if i == P else ""
        box(axes, x, 4, w - 0.8, 4, letter, "target" if i == P else "gone")
        box(axes, x, 17, w - 0.8, 4, f"{plus}k{sub[i]}", kind)
        strong = {"fontweight": "bold"} if weights[i] >= sorted(weights)[-3:][0] else {}
        words(axes, x + (w - 0.8) / 2, 24.5, f"{weights[i]:.2f}", **strong)
        box(axes, x, 28, w - 0.8, 4, f"{plus}v{sub[i]}", kind)
    for y, name in ((11, f"q{sub[P]}"), (35, "out")):
        box(axes, new, y, w - 0.8, 4, name, "target")
    arrow(axes, (new, 13), (15, 13))
    words(axes, (15 + new) / 2, 11.6, "the only query is compared with every key", fontsize=9)
    arrow(axes, (15, 37), (new, 37))
    words(axes, (15 + new) / 2, 35.6, "the values are averaged by these weights", fontsize=9)
    words(axes, 88, 41, "+ appended: the next step finds them in the cache", ha="right", fontsize=9)
    axes.plot([new - 0.4] * 2, [1, 39], color=GREY, linestyle=":")
    return axes.figure
