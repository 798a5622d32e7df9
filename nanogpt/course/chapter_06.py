"""Chapter 06: the judge of *Your turn*, and the chapter's own pictures.

The turn: the trim.
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import torch

from nanogpt.proof.checks import tensors
from nanogpt.show.diagrams import box, sheet, strip, words
from nanogpt.show.figures import REJECTED, STYLE, Picture, shown


def judge(mine: Callable) -> None:
    """*Your turn* of 06: the cache after a round, asked of caches whose entries are numbered.

    mine(new_kvs, num_emitted, position) returns a cache of the same layers and heads, each k and v
    (B, P, hs). Raises AssertionError for a wrong length, wrong entries, a lost layer or a changed
    argument.
    """
    for before, K, emitted in ((3, 4, 2), (3, 4, 1), (3, 4, 5), (0, 1, 1)):
        keep, n = before + emitted, before + K + 1
        rows = torch.arange(float(n)) + torch.tensor([[0.0], [0.25]])
        numbers = rows[..., None].repeat(1, 1, 3)  # two rows, three channels
        layer = tuple((numbers + head, -numbers - head) for head in range(3))
        cache = (layer, tuple((k + 100, v - 100) for k, v in layer))
        given = [t.clone() for t in tensors(cache)]
        made = mine(cache, emitted, before)
        where = f"{before} entries before, K = {K}, {emitted} emitted"
        assert made is not None, "nothing came back: return the cache that is left"
        assert all(map(torch.equal, tensors(cache), given)), "the cache that it was given changed"
        try:
            assert all(isinstance(x, (tuple, list)) for x in (made, made[0], made[0][0]))
            got = [torch.as_tensor(t) for t in tensors(made)]
        except (AssertionError, LookupError, TypeError, ValueError, RuntimeError) as error:
            message = "the cache is layers of heads of pairs, all of them tuples or lists: "
            raise AssertionError(message + "made[0][0] is the (k, v) of a head") from error
        assert len(got) == 12, f"2 layers of 3 heads, k and v, make 12 tensors, not {len(got)}"
        slips = {emitted: "those from before the round are lost", n: "nothing is cut off"}
        slips |= {0: "nothing is left", keep - 1: "an entry of the text is lost"}
        slips |= {keep + 1: "a rejected guess stays"}
        for i, (left, right) in enumerate(zip(got, given, strict=True)):
            name = f"{'kv'[i % 2]} of layer {i // 6}, head {i // 2 % 3}"
            shape, wanted = tuple(left.shape), (2, keep, 3)
            why = slips.get(shape[1], "") if len(shape) == 3 else "three dimensions go in"
            assert shape == wanted, f"{where}: {name} is {shape}, not {wanted}: {why}"
            same = torch.equal(left.float(), right[:, :keep])
            assert same, f"{where}: the entries in {name} are not the first {keep} that were there"


@mpl.rc_context(STYLE)
def left_behind(text: str, rejected: str, own: str) -> Picture:
    """A text whose last guess was replaced, the cache that still holds it, and what comes of it."""
    same = [(letter, "cached") for letter in shown(text)]
    rows = {
        "the text says": [*same, ("↻" + own, "resampled")],
        "the cache holds": [*same, ("✗" + rejected, "rejected")],
        "the next pass reads": [*same, (rejected, "cached"), ("▸" + own, "target")],
    }
    shows = f"The cache ends with the rejected {rejected}; the next pass reads {own} behind it."
    axes = sheet(f"The text has forgotten the {rejected}; the cache has not", 8, 1.75, shows)
    for i, (label, cells) in enumerate(rows.items()):
        strip(axes, 20, 1 + 4.6 * i, label, cells, min(4, 58 / (len(same) + 2)))
    return axes.figure


@mpl.rc_context(STYLE)
def trim(prompt: str, guesses: str, emitted: str) -> Picture:
    """A round in the cache: before the pass, after it, judged and cut, and the next pass."""
    n, K, P = len(emitted) - 1, len(guesses), len(prompt) - 1
    n_shown = min(6, P)
    new, marks = [*shown(prompt[-1] + guesses)], ["", *["✓"] * n, *["✗"] * (K - n)]
    kinds = ["cached", *["accepted"] * n, *["rejected"] * (K - n)]
    earlier = ["…"] * (n_shown < P) + [*shown(prompt[-n_shown - 1 : -1])]
    old = [(letter, "cached") for letter in earlier]
    stays = [*old, *((letter, "cached") for letter in new[: n + 1])]
    guessed = [(letter, "draft") for letter in new[1:]]
    rows = {
        f"before: {P} entries": old,
        f"after the pass: {P + K + 1}": [*old, ("▸" + new[0], "target"), *guessed],
        "judged": [*old, *((m + x, kind) for m, x, kind in zip(marks, new, kinds, strict=True))],
        f"trimmed: {P + n + 1}": [*stays, *[("", "gone")] * (K - n)],
        "the next pass begins": [*stays, ("▸" + shown(emitted[-1]), "target")],
    }
    shows = f"{K} guesses enter the cache, {n} stay, and {shown(emitted[-1])} begins the next pass."
    axes = sheet("The trim cuts off the rejected guesses, and nothing else", 8, 2.5, shows)
    size, left = min(4, 46 / (len(old) + K + 1)), 20
    for i, (label, cells) in enumerate(rows.items()):
        strip(axes, left, 1 + 4.6 * i, label, cells, size)
    cut, end = left + size * (len(old) + n + 1) - 0.2, left + size * (len(old) + K + 1) + 1
    axes.plot([cut, cut], [9.5, 18.7], color=REJECTED, linestyle="--", linewidth=1.6)
    own = ("★", "bonus") if n == K else ("↻", "resampled")
    box(axes, end, 10.2, size - 0.4, 3, own[0] + shown(emitted[-1]), own[1])
    words(axes, end + size, 11.7, "drawn after the\npass: no entry", ha="left", fontsize=9)
    return axes.figure
