"""Chapter 11: the judge of *Your turn*, and the chapter's own pictures.

The turn: the rewind of a draft's cache.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import torch

from nanogpt.cache import trim_kv_cache
from nanogpt.generate import prefill
from nanogpt.proof.toys import toy_target
from nanogpt.show.diagrams import box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture


def judge(mine: Callable) -> None:
    """Judges a rewind (chapter 11): of (cached, context), how many entries stay, what is read.

    After rejections, a fully accepted round and more, the q that comes of it must be the q of a
    draft without a cache, in float64. Tokens that repeat, a vocabulary above 255 and a long text
    are tried without a model. Raises AssertionError for another q, and for waste.
    """
    model, text, guesses = toy_target(7, 16, seed=22), [1, 2, 3], [4, 5, 6]
    cached = [*text, *guesses[:-1]]  # the last guess was never read
    cases = [(cached, [*text, *guesses[:n], 0]) for n in range(4)]
    cases += [(cached, [1, 0, 3, 4, 5, 6]), (cached, text), (cached, cached), ([], text)]
    cases += [([0, 1, 0, 2], [0, 1, 1, 2]), ([1, 1], [1, 1, 1]), ([1, 23], [12, 3, 4, 0])]
    cases += [(cached, [1]), ([300], [300, 6]), ([*range(7)] * 300, [*range(7)] * 300 + [0])]
    for cached, context in cases:
        where = f"with {reprlib.repr(cached)} cached and the context {reprlib.repr(context)}"
        given = list(cached), list(context)
        try:
            answer = mine(*given)
        except (ValueError, RecursionError) as error:
            raise AssertionError(f"{where}: {error}; any tokens may come, and many") from error
        assert given == (cached, context), f"{where}: your function changes what it is given"
        kept, fed = parts_of_rewind(answer)
        fault = fault_of_rewind(kept, fed, cached, context)
        readable = {*fed, *cached} <= set(range(7)) and kept + len(fed) <= 16 >= len(cached)
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


@mpl.rc_context(STYLE)
def rewind(cases: Mapping[str, tuple[Sequence[str], Sequence[str], int]], title: str) -> Picture:
    """A draft's cache against the new context, two strips a case: {name: (cached, context, kept)}.

    The first `kept` tokens of both are the same; the rest of the cache is dropped (✗), the rest of
    the context is read (▸).
    """
    said = (f"{name}, {n} and {len(new) - n}" for name, (_, new, n) in cases.items())
    shows = f"Entries kept and tokens read: {'; '.join(said)}."
    axes, cell, left = sheet(title, 8, 1.75 * len(cases), shows), 3.6, 17.0
    for n, (name, (cached, context, kept)) in enumerate(cases.items()):
        y, split = 17.5 * n + 1.5, left + cell * kept
        words(axes, 0.5, y + 6.7, name, ha="left", fontweight="bold")
        for top, label, rest, kind, mark in (
            (y + 0.6, "in the cache", cached[kept:], "rejected", "✗"),
            (y + 9.6, "new context", context[kept:], "plain", "▸"),
        ):
            words(axes, left - 0.8, top + 1.6, label, ha="right")
            for i, token in enumerate([*cached[:kept], *rest]):
                shown = "cached" if i < kept else kind
                box(axes, left + cell * i, top, cell, 3.2, token, shown)
            end, done = split + cell * len(rest), "dropped" if kind == "rejected" else "read"
            said = f"{mark} {len(rest)} {done}" if rest else f"nothing {done}"
            words(axes, end + 1, top + 1.6, said, ha="left", fontweight="bold")
        axes.vlines([left, split], y + 3.8, y + 9.6, color=GREY, linestyle=":")
        words(axes, max(split + left, 2 * left + 18) / 2, y + 6.7, f"the same: {kept} stay")
    return axes.figure
