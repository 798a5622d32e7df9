"""The judge of chapter 04's *Your turn*: one pass for K + 1 answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanogpt.cache import cache_length
from nanogpt.generate import prefill
from nanogpt.sampling import Sampling
from nanogpt.toys import toy_target


def verify(mine: Callable) -> None:
    """*Your turn* of 04: one pass over the current token and K candidates, on a toy target.

    mine(target, current_token, candidates, past_kvs, sampling) returns target_probs (K+1, V), as
    an array or a list of rows, and the new cache. Raises AssertionError for more than one pass, a
    changed list, and a wrong shape, row or cache.
    """
    target, passes = toy_target(7, 16), []

    def watch(_, given):
        passes.append(1)
        shape = tuple(given[0].shape) if given else (1, 5)
        assert len(shape) == 2, f"the tokens that the pass got have shape {shape}, not (B, T)"

    hook = target.register_forward_pre_hook(watch)
    try:
        for P, sampling in ((3, Sampling()), (3, Sampling(0.5, top_k=3)), (0, Sampling())):
            text = [3, 1, 4, 1, 5, 2, 6, 0][: P + 5]
            given, past_kvs = text[P + 1 :], prefill(target, text[:P])
            passes.clear()
            made = mine(target, text[P], given, past_kvs, sampling)
            assert isinstance(made, (tuple, list)) and len(made) == 2, (
                f"return two things, target_probs and the new cache, not a {type(made).__name__}"
            )
            assert len(passes) < 2, f"{len(passes)} passes: all 5 tokens are known, one will do"
            assert given == text[P + 1 :], f"the caller's list of candidates is changed: {given}"
            check_rows(
                torch.stack([torch.as_tensor(r) for r in made[0]]), target, text, P, sampling
            )
            assert cache_length(made[1]) == P + 5, (
                f"the cache that came back holds {cache_length(made[1])} tokens, not {P + 5}: "
                f"return the new one: the {P} from before and all 5 of the pass"
            )
    finally:
        hook.remove()


def check_rows(rows: Tensor, target, text: list[int], P: int, sampling: Sampling) -> None:
    """Rows (K+1, V) of a pass over text[P:] are p after each of its tokens.

    Raises AssertionError that names the first wrong row, and the slip that makes such a row.
    """
    logits = target(torch.tensor([text]))[0][0, P:]  # the whole text at once needs no cache
    right = sampling.probs(logits)
    assert rows.shape == right.shape, (
        f"target_probs has shape {tuple(rows.shape)}, not (K+1, V) = {tuple(right.shape)}: "
        "a row for the current token and one for each candidate"
    )
    slips = {  # what row 0 would be
        "these are logits; `sampling` turns them into probabilities": logits[0],
        "`sampling` was not asked": Sampling().probs(logits[0]),
        "it is p one token further on": right[1],
        "the pass did not see the cache": sampling.probs(target(torch.tensor([text[P:]]))[0][0, 0]),
    }
    same = {why: (rows[0] - slip).abs().max() < 1e-4 for why, slip in slips.items()}
    why = next((w for w, s in same.items() if s), "look at the tokens, positions and mask you gave")
    for i, off in enumerate((rows - right).abs().amax(dim=-1).tolist()):
        after = f"the current token and {i} candidates"
        assert off < 1e-4, (
            f"row {i} is not p after {after} (P = {P}, temperature {sampling.temperature}): {why}"
        )
