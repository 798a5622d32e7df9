"""The judge of chapter 16's *Your turn*: who may see whom in a tree, and where each one stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def tree_mask(mine: Callable) -> None:
    """*Your turn* of 16: the mask and the positions of a pass over the current token and a tree.

    mine(parents, P) returns the mask (N+1, P+N+1), True or 1 where a row may attend, and the
    positions (N+1,), as tensors, arrays or lists. Raises AssertionError for a wrong shape, row or
    position, and for a changed list.
    """
    trees = ([-1, 0, 1], 2), ([-1, -1, 0, 1, 1], 2), ([-1, 0, -1, 0, 3, 2, 3], 0), ([], 3)
    for parents, P in trees:
        given, N = list(parents), len(parents)
        where = f"parents {parents}, P = {P}"
        made = mine(given, P)
        assert given == parents, f"{where}: the caller's list of parents is changed: {given}"
        pair = isinstance(made, (tuple, list)) and len(made) == 2
        came = "nothing" if made is None else f"a {type(made).__name__}"
        assert pair, f"{where}: return two things, the mask and the positions; {came} came"
        mask, pos = map(as_numbers, made)
        assert mask is not None and pos is not None, (
            f"{where}: the mask is rows of True and False, and the positions are whole numbers"
        )
        shape, wanted = tuple(mask.shape), (N + 1, P + N + 1)
        assert shape == wanted, (
            f"{where}: the mask has shape {shape}, not (N+1, P+N+1) = {wanted}: a row for the "
            "current token and each node, a column for each cached token and each row"
        )
        assert bool(((mask == 0) | (mask == 1)).all()), (
            f"{where}: the mask holds {mask.flatten().unique().tolist()}; it says True (or 1) "
            "where a row may attend and False where it may not, nothing else"
        )
        fault = slip_of_mask(mask.bool(), parents, P)
        assert not fault, f"{where}: {fault}"
        assert pos.shape == (N + 1,), (
            f"{where}: the positions have shape {tuple(pos.shape)}, not (N+1,) = ({N + 1},): one "
            "for each row of the mask"
        )
        fault = slip_of_positions(pos.tolist(), parents, P)
        assert not fault, f"{where}: {fault}"


def as_numbers(made) -> Tensor | None:
    """A mask or positions (...,) as a tensor of float64, or None if they are no numbers."""
    try:
        rows = [torch.as_tensor(row) for row in made]
        return torch.stack(rows).double() if rows else torch.zeros(0).double()
    except (TypeError, ValueError, RuntimeError):
        return None


def path_of(node: int, parents: Sequence[int]) -> list[int]:
    """The node itself and its ancestors, upward; nothing for the current token, -1."""
    return [node, *path_of(parents[node], parents)] if node >= 0 else []


def slip_of_mask(mask: Tensor, parents: Sequence[int], P: int) -> str:
    """What is wrong with a mask (N+1, P+N+1) of the right shape, or ""."""
    for row, seen in enumerate(mask.tolist()):
        node = row - 1
        who = f"node {node}" if row else "the current token"
        path, nodes = path_of(node, parents), [i for i, s in enumerate(seen[P + 1 :]) if s]
        if not all(seen[:P]):
            return f"{who} does not see the cache: all {P} cached tokens come before it"
        if row and not seen[P]:
            return f"{who} does not see the current token, which every path starts from"
        if not seen[P + row]:
            return f"{who} does not see itself; a token attends to its own key, too"
        if not set(path) <= set(nodes):
            parent = "only its parent; go on up" if parents[node] in nodes else "not its parent"
            return f"{who} sees {parent}: its path from the current token is {path[::-1]}"
        stranger = [n for n in nodes if n not in path]
        if stranger:
            kind = "comes later, and nobody may see the future" if stranger[0] > node else ""
            kind = kind or "is on another branch: only ancestors may be seen, no cousins"
            return f"{who} sees node {stranger[0]}, which {kind}"
    return ""


def slip_of_positions(pos: Sequence[float], parents: Sequence[int], P: int) -> str:
    """What is wrong with the positions, one for each row, or ""."""
    right = [P + len(path_of(node, parents)) for node in range(-1, len(parents))]
    if list(pos) == right:
        return ""
    whys = {
        tuple(range(P, P + len(right))): "these are the slots: position by index is right for a "
        "chain only; count the tokens before each one on its own path",
        tuple(p - P for p in right): "the cached tokens come before all of them",
        tuple(p + 1 for p in right): "a token does not come before itself; the current one is at P",
        tuple(p - 1 for p in right): "the current token is at P, its children at P + 1",
    }
    why = whys.get(tuple(pos), "siblings stand at the same place, one after their parent's")
    return f"the positions are {[int(p) for p in pos]}, not {right}: {why}"
