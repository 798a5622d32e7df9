"""The judge of chapter 02's *Your turn*: a cached step of a head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanogpt.model import causal_mask
from nanogpt.toys import toy_target


def cached_step(mine: Callable) -> None:
    """*Your turn* of 02: one step of a toy head, for one new token and several, with and without P.

    mine(head, x (B, T, C), past_kv) returns the output (B, T, hs) and the longer (k, v). Raises
    AssertionError for a changed cache, a wrong shape, order or mask.
    """
    head = toy_target(5, 8).blocks[0].sa.heads[0]
    x = (7.0 * torch.arange(48, dtype=torch.float64)).sin().view(2, 6, 4)
    for P, T in ((3, 1), (2, 4), (0, 3)):
        bias = torch.zeros(P + T, P + T).masked_fill(~causal_mask(P + T), -torch.inf)
        whole, kv = head(x[:, : P + T], bias)  # without a cache: all of it at once
        past = tuple(t[:, :P].clone() for t in kv) if P else None
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
