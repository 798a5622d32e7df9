"""The judge of chapter 27's *Your turn*: a matrix of weights, rounded to few bits row by row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BY_HAND = [[0.9, -0.38, 0.1, -0.7], [0.03, 0.5, -0.3, 0.009], [0.0, 0.0, 0.0, 0.0]]


def round_rows(mine: Callable) -> None:
    """Judges my_round_to(weight, bits): each row in whole multiples of its own step.

    weight (out, in) is float64; a tensor, an array or lists may come back. The largest weight of a
    row is to be its last multiple, 2^(bits-1) - 1. Raises AssertionError.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    drawn[2] *= 100  # rows are not alike
    for name, weight, every in (
        ("three rows by hand", torch.tensor(BY_HAND, dtype=torch.float64), (3, 4, 2)),
        ("a drawn matrix of 5 rows", drawn, (4, 2, 8)),
    ):
        for bits in every:
            where, given = f"{name}, {bits} bits", weight.clone()
            got = as_matrix(mine(given, bits), where)
            assert torch.equal(given, weight), f"{where}: the caller's weight was changed; copy it"
            assert got.shape == weight.shape, (
                f"{where}: the shape is {tuple(got.shape)}, not that of the weight, "
                f"{tuple(weight.shape)}"
            )
            zero = bool((weight[-1] == 0).all())
            assert not (zero and got[-1].isnan().any()), (
                f"{where}: a row of zeros became NaN: its largest weight is 0, and so is its step"
            )
            assert bool(got.isfinite().all()), f"{where}: some of it is no finite number"
            for row, (came, true) in enumerate(zip(got, weight, strict=True)):
                fault = slip_of_row(came, true, weight, bits)
                assert not fault, f"{where}, row {row}: {fault}"


def as_matrix(made, where: str) -> Tensor:
    """What came as a tensor (out, in) of float64, or an AssertionError."""
    assert made is not None, f"{where}: nothing came; return the rounded weights"
    try:
        return torch.stack([torch.as_tensor(row, dtype=torch.float64).detach() for row in made])
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(
            f"{where}: a {type(made).__name__} came that is no matrix of numbers"
        ) from None


def rounded(weights: Tensor, largest: Tensor, top: int) -> Tensor:
    """weights (...,) in multiples of largest / top."""
    step = torch.where(largest > 0, largest, 1.0) / top
    return (weights / step).round() * step


def slip_of_row(got: Tensor, true: Tensor, weight: Tensor, bits: int) -> str:
    """What is wrong with a rounded row (in,), or ""."""
    top, largest = 2 ** (bits - 1) - 1, true.abs().max()
    right = rounded(true, largest, top)

    def same(other: Tensor) -> bool:
        return bool(torch.allclose(got, other, rtol=0, atol=1e-9 + 1e-4 * float(largest)))

    if same(right):
        return ""
    step = float(largest) / top if largest > 0 else 1.0
    known = {
        "these are the whole multiples; times the step, they are weights again": right / step,
        "the step is that of the whole matrix; each row has one of its own": rounded(
            true, weight.abs().max(), top
        ),
        "it is cut off, not rounded to the nearest multiple": (true / step).trunc() * step,
        "it is rounded down, not to the nearest multiple": (true / step).floor() * step,
        f"the largest weight is 2^(bits-1) = {top + 1} steps; with a bit for the sign, "
        f"{top} is the last": rounded(true, largest, top + 1),
        f"the step is a {2**bits - 1}th of the largest weight; half of the numbers are for the "
        "other sign": rounded(true, largest, 2**bits - 1),
        "the step comes from the largest weight with its sign; take its size": rounded(
            true, true.max().clamp(min=0), top
        ),
        "nothing is rounded": true,
    }
    columns = rounded(weight, weight.abs().amax(dim=0), top)
    if any(same(row) for row in columns):
        match = "the step is by column; a row is an output, and gets one step"
    else:
        match = next((said for said, other in known.items() if same(other)), "")
    said = [round(x, 3) for x in got.tolist()], [round(x, 3) for x in right.tolist()]
    return f"{match or 'it'} ({said[0]} came instead of {said[1]})"
