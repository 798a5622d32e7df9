"""The judge of chapter 04's *Your turn*: one pass for K + 1 answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanogpt.cache import cache_length
from nanogpt.checks import near, tensors
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

    def trunk(idx, *args, **kwargs):
        passes.append(1)
        shape = tuple(idx.shape)
        assert len(shape) == 2, f"the tokens that the pass got have shape {shape}, not (B, T)"
        return type(target).trunk(target, idx, *args, **kwargs)

    target.trunk = trunk  # every pass comes through here, also that of target.forward
    try:
        for P, sampling in ((3, Sampling()), (3, Sampling(0.5, top_k=3)), (0, Sampling())):
            text = [3, 1, 4, 1, 5, 2, 6, 0][: P + 5]
            given, past_kvs = text[P + 1 :], prefill(target, text[:P])
            passes.clear()
            made = mine(target, text[P], given, past_kvs, sampling)
            try:
                rows, new_kvs = made
                rows, n = torch.stack([torch.as_tensor(r) for r in rows]), cache_length(new_kvs)
                cache = [torch.as_tensor(t) for t in tensors(new_kvs)]
            except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
                message = "return two things, target_probs and the new cache, in this order"
                raise AssertionError(message) from error
            assert len(passes) < 2, f"{len(passes)} passes: all 5 tokens are known, one will do"
            assert given == text[P + 1 :], f"the caller's list of candidates is changed: {given}"
            check_rows(rows, target, text, P, sampling)
            assert n == P + 5, (
                f"the cache that came back holds {n} tokens, not {P + 5}: "
                f"return the new one: the {P} from before and all 5 of the pass"
            )
            fresh = tensors(prefill(target, text))
            assert len(cache) == len(fresh) and all(map(near, cache, fresh)), (
                f"the cache that came back has the right length, {n}, but not the keys and values "
                "of the text's tokens: return it as the pass made it"
            )
    finally:
        del target.trunk


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
    alone = target(torch.tensor([text[P:]]))[0][0]
    slips = {  # what the rows would be
        "these are logits; `sampling` turns them into probabilities": logits,
        "`sampling` was not asked": Sampling().probs(logits),
        "it is p one token further on": torch.cat([right[1:], right[-1:]]),
        "the pass did not see the cache": sampling.probs(alone),
    }
    for i, row in enumerate(rows):
        whys = [why for why, slip in slips.items() if near(row, slip[i])]
        why = [*whys, "look at the tokens, positions and mask you gave"][0]
        after = f"the current token and {i} candidates"
        assert near(row, right[i]), (
            f"row {i} is not p after {after} (P = {P}, temperature {sampling.temperature}): {why}"
        )
