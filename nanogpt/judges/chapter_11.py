"""The judge of chapter 11's *Your turn*: the rewind of a draft's cache."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from nanogpt.cache import trim_kv_cache
from nanogpt.generate import prefill
from nanogpt.toys import toy_target


def rewind(mine: Callable) -> None:
    """Judges a rewind (chapter 11): of (cached, context), how many entries stay, what is read.

    After rejections, a fully accepted round and more, the q that comes of it must be the q of a
    draft without a cache, in float64. Raises AssertionError for another one, and for waste.
    """
    model, text, guesses = toy_target(7, 16, seed=22), [1, 2, 3], [4, 5, 6]
    cached = [*text, *guesses[:-1]]  # the last guess was never read
    cases = [(cached, [*text, *guesses[:n], 0]) for n in range(4)]
    cases += [(cached, [1, 0, 3, 4, 5, 6]), (cached, text), (cached, cached), ([], text)]
    for cached, context in cases:
        where = f"with {cached} cached and the context {context}"
        given = list(cached), list(context)
        answer = mine(*given)
        assert given == (cached, context), f"{where}: your function changes what it is given"
        kept, fed = parts_of_rewind(answer)
        fault = fault_of_rewind(kept, fed, cached, context)
        readable = set(fed) <= set(range(7)) and kept + len(fed) <= 16
        if fed and readable and 0 <= kept <= len(cached):
            past_kvs = trim_kv_cache(prefill(model, cached), kept, 0) if kept else None
            got = model(torch.tensor([fed]), past_kvs=past_kvs)[0][0, -1].softmax(-1)
            right = model(torch.tensor([context]))[0][0, -1].softmax(-1)
            off = float((got - right).abs().max())
            assert off < 1e-9, f"{where}, q is off by {off:.2f}: {fault}"
        assert not fault, f"{where}: {fault}"


def parts_of_rewind(answer) -> tuple[int, list[int]]:
    """The (kept, fed) of an answer. Raises AssertionError if they are no number and no list."""
    a_pair = isinstance(answer, (tuple, list)) and len(answer) == 2
    assert a_pair, f"return two things, (kept, fed), not {answer!r}"
    kept, fed = answer
    try:
        kept = operator.index(kept)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"kept must be a number of entries, not {kept!r}") from None
    try:  # an array may have a batch of one, as a model takes it
        row = fed.reshape(fed.shape[-1:]) if hasattr(fed, "reshape") else fed
        return kept, [operator.index(token) for token in row]
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"fed must be a list of tokens, not {fed!r}") from None


def fault_of_rewind(kept: int, fed: list[int], cached: list[int], context: list[int]) -> str:
    """What is wrong if `kept` entries of `cached` stay and `fed` is read; "" if nothing is."""
    same = [a == b for a, b in zip(cached, context[:-1], strict=False)] + [False]
    if kept == len(context) and cached[:kept] == context and fed in ([], context[-1:]):
        return f"{kept} entries stay, the last token's among them: drop that one, it must be read"
    if not fed:
        return "nothing is read, and without a pass there is no q"
    if not 0 <= kept <= len(cached):
        return f"{kept} entries stay, but the cache holds {len(cached)}"
    for i, token in enumerate(cached[:kept]):
        if context[i : i + 1] != [token]:
            here = f"has {context[i]}" if i < len(context) else "has ended"
            return f"entry {i} keeps token {token}, but the context {here}"
    if fed != context[kept:]:
        return f"{kept} entries stay, so {context[kept:]} must be read, not {fed}"
    if kept < same.index(False):
        return f"{kept} entries stay: {fed} is read, and a part of it is still good in the cache"
    return ""
