"""The judge of chapter 26's *Your turn*: which outcomes of a round are worth preparing for."""

from __future__ import annotations

from collections.abc import Callable

import torch

ROWS = [[0.1, 0.5, 0.25, 0.15], [0.4, 0.3, 0.2, 0.1], [0.15, 0.05, 0.2, 0.6]]


def outcomes(mine: Callable) -> None:
    """*Your turn* of 26: the outcomes (k, t) to prepare for, fans[k] of them for each k.

    mine(q, guesses, fans) returns pairs (k, t), in any order. Raises AssertionError for a missing
    or an impossible outcome, for too many, and for changed arguments.
    """
    for guesses, fans in (([1, 0], [1, 2, 1]), ([2, 3], [2, 2, 3]), ([1, 0], [0, 1, 0]), ([], [2])):
        q, given, kept = torch.tensor(ROWS[: len(guesses) + 1]).double(), list(guesses), list(fans)
        where = f"guesses {guesses}, fans {fans}"
        made = mine(q, given, kept)
        assert made is not None, f"{where}: nothing came back; return a list of pairs (k, t)"
        assert (given, kept) == (guesses, fans), f"{where}: the caller's lists were changed"
        pairs = as_pairs(made)
        assert pairs is not None, (
            f"{where}: return a list of pairs (k, t) of whole numbers; {made!r} came"
        )
        fault = slip(pairs, guesses, fans, q)
        assert not fault, f"{where}: {fault}"


def as_pairs(made) -> list[tuple[int, int]] | None:
    """The pairs (k, t) as whole numbers, or None if they are none."""
    try:
        pairs = [(k, t) for k, t in made]
        whole = [(int(k), int(t)) for k, t in pairs]
        return whole if all(a == b for a, b in zip(pairs, whole, strict=True)) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def slip(pairs, guesses, fans, q) -> str:
    """What is wrong with these outcomes, or ""."""
    K, V = len(guesses), q.shape[1]
    for k, t in pairs:
        if not (0 <= k <= K and 0 <= t < V):
            return f"there is no outcome ({k}, {t}): k goes from 0 to {K}, t from 0 to {V - 1}"
        if k < K and t == guesses[k]:
            return f"({k}, {t}) cannot come: token {t} is guess {k}, which was rejected there"
    if len(set(pairs)) < len(pairs):
        return f"an outcome is there twice: {pairs}"
    for k in range(K + 1):
        mine = {t for j, t in pairs if j == k}
        rows = q[k].tolist()
        may = [t for t in range(V) if k == K or t != guesses[k]]
        right = set(sorted(may, key=lambda t: -rows[t])[: fans[k]])
        if mine == right:
            continue
        if len(mine) != len(right):
            why = "after the last guess every token may come" if k == K else ""
            why = why or "leave out the guess before you count, so that the next one moves up"
            return f"{len(mine)} outcomes for k = {k}, not {len(right)}: {why}"
        if k == K:
            return (
                f"for k = {K}, all accepted, the tokens are {sorted(mine)}, not {sorted(right)}: "
                "any token may come there, likeliest first by the last row of q"
            )
        return (
            f"for k = {k} the tokens are {sorted(mine)}, not {sorted(right)}: row {k} of q comes "
            f"after {k} guesses, and the likeliest stand in for the guess that was rejected"
        )
    return ""
