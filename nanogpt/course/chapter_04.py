"""Chapter 04: the judge of *Your turn*, and the chapter's own pictures.

The turn: one pass for K + 1 answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.cache import cache_length
from nanogpt.generate import prefill
from nanogpt.proof.checks import near, tensors
from nanogpt.proof.toys import toy_target
from nanogpt.sampling import Sampling
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, GREY, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
    """*Your turn* of 04: one pass over the current token and K candidates, on a toy target.

    mine(target, current_token, candidates, past_kvs, sampling, unread) returns target_probs
    (K+1, V), as an array or a list of rows, and the new cache. Raises AssertionError for more than
    one pass, a changed list, and a wrong shape, row or cache.
    """
    target, passes = toy_target(7, 16), []

    block = target.blocks[0]  # every pass comes through here
    hook = block.register_forward_pre_hook(lambda _, x: passes.append(x[0].shape[:-1].numel()))
    plain, text = Sampling(), [3, 1, 4, 1, 5, 2, 6, 0]
    try:  # P tokens before the current one, of which the cache holds the first n
        for P, n, K, sampling in (
            (3, 3, 4, plain),
            (3, 3, 4, Sampling(0.5, top_k=4, top_p=0.8)),
            (0, 0, 4, plain),
            (3, 0, 4, plain),
            (3, 1, 2, plain),
            (2, 2, 0, plain),
        ):
            judge_pass(mine, target, passes, text[: P + 1 + K], P, n, sampling)
    finally:
        hook.remove()


def judge_pass(
    mine: Callable, target, passes: list, text: list[int], P: int, n: int, sampling: Sampling
) -> None:
    """One case of the judge: text[P] is current, the cache holds text[:n], and text[n:P] is unread.

    passes: how many tokens each pass of the target reads. Raises AssertionError.
    """
    given, unread, past_kvs = text[P + 1 :], text[n:P], prefill(target, text[:n])
    passes.clear()
    try:
        made = mine(target, text[P], given, past_kvs, sampling, unread)
    except NotImplementedError:
        raise
    except (RuntimeError, IndexError) as error:
        message = f"with candidates {given} yours raised: {error}; the target takes tokens (B, T)"
        raise AssertionError(message) from error
    try:
        rows, new_kvs = made
        rows, length = torch.stack([torch.as_tensor(r) for r in rows]), cache_length(new_kvs)
        cache = [torch.as_tensor(t) for t in tensors(new_kvs)]
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        message = "return two things, target_probs and the new cache, in this order"
        raise AssertionError(message) from error
    T = len(text) - n
    assert len(passes) < 2, f"{len(passes)} passes: all {T} tokens are known, one will do"
    assert sum(passes) <= T, (
        f"the pass read {sum(passes)} tokens: {T} are enough: each token once, in a batch of 1"
    )
    assert given == text[P + 1 :], f"the caller's list of candidates is changed: {given}"
    assert unread == text[n:P], f"the caller's list of unread tokens is changed: {unread}"
    check_rows(rows, target, text, P, n, sampling)
    assert length == len(text), (
        f"the cache that came back holds {length} tokens, not {len(text)}: "
        f"return the new one: the {n} from before and all {T} of the pass"
    )
    fresh = tensors(prefill(target, text))
    assert len(cache) == len(fresh) and all(map(near, cache, fresh)), (
        f"the cache that came back has the right length, {length}, but not the keys and values "
        "of the text's tokens: return it as the pass made it"
    )


def check_rows(rows: Tensor, target, text: list[int], P: int, n: int, sampling: Sampling) -> None:
    """Rows (K+1, V) of a pass over text[n:] are p after each token of text[P:].

    Raises AssertionError that names the first wrong row, and the slip that makes such a row.
    """
    logits = target(torch.tensor([text]))[0][0, P:]  # the whole text at once needs no cache
    right = sampling.probs(logits)
    assert rows.shape == right.shape, (
        f"target_probs has shape {tuple(rows.shape)}, not (K+1, V) = {tuple(right.shape)}: "
        "a row for the current token and one for each candidate, none for an unread token"
    )
    alone = target(torch.tensor([text[P:]]))[0][0]
    skipped = target(torch.tensor([text[:n] + text[P:]]))[0][0, n:]
    slips = {  # what the rows would be
        "these are logits; `sampling` turns them into probabilities": logits,
        "`sampling` was not asked": Sampling().probs(logits),
        "`sampling` has a top-p, too": replace(sampling, top_p=None).probs(logits),
        "it is p one token further on": torch.cat([right[1:], right[-1:]]),
        "the unread tokens did not enter": sampling.probs(skipped),
        "the pass did not see the cache": sampling.probs(alone),
    }
    for i, row in enumerate(rows):
        whys = [why for why, slip in slips.items() if near(row, slip[i])]
        why = [*whys, "look at the tokens, positions and mask you gave"][0]
        after = f"the current token and {i} candidates"
        where = f"P = {P}, {P - n} of them unread, temperature {sampling.temperature}"
        assert near(row, right[i]), f"row {i} is not p after {after} ({where}): {why}"


@mpl.rc_context(STYLE)
def questions(prompt: str, guesses: str) -> Picture:
    """K+1 questions: in plain decoding each waits for a letter, with guesses none does."""
    tail, n = shown(prompt[-4:]), len(guesses) + 1
    step, end = min(5.2, 34 / n), 4.3 + 2.7 * n
    shows = f"Left: {n} passes, each waiting for the last. Right: one pass that gives {n} answers."
    axes = sheet("One pass for each question, or one for all of them", 8, 0.75 + 0.27 * n, shows)
    words(axes, 1, 1.5, "without guesses: each pass waits", ha="left", fontweight="bold")
    words(axes, 51, 1.5, "with guesses: no question waits", ha="left", fontweight="bold")
    box(axes, 62.5, 3, 8, 2.7 * n, "", "target")
    words(axes, 66.5, 3 + 1.35 * n, "one\npass")
    for i in range(n):
        y, x = 4.3 + 2.7 * i, 2 + step * i
        box(axes, x, y - 1, 9.5, 2, "", "target")
        words(axes, x + 4.75, y, tail + "?" * i, fontsize=9, family="monospace")
        if i:
            arrow(axes, (x - step + 9.5, y - 2.7), (x - step / 2 + 9.5, y - 1), bend=-0.5)
        words(axes, 61, y, tail + shown(guesses[:i]), ha="right", fontsize=9, family="monospace")
        arrow(axes, (61.2, y), (62.5, y), colour=DRAFT if i else TARGET)
        arrow(axes, (70.5, y), (72.5, y), colour=TARGET)
        words(axes, 73, y, f"p for {shown(guesses[i])}" if i < n - 1 else "p, free ★", ha="left")
    arrow(axes, (2, end), (47, end))
    words(axes, 48, end, "time", ha="left", color=GREY)
    return axes.figure


@mpl.rc_context(STYLE)
def one_pass(prompt: str, guesses: str) -> Picture:
    """The pass of a verification: its tokens and positions across, its rows and mask down."""
    K, P, left = len(guesses), len(prompt) - 1, 10
    n_shown = min(6, P)
    letters = [*shown(prompt[-n_shown - 1 :] + guesses)]
    letters[n_shown] = "▸" + letters[n_shown]
    kinds = ["cached"] * n_shown + ["target"] + ["draft"] * K
    title = "Row i sees i guesses, and its p judges the next one"
    shows = (
        "A staircase: each row sees the cache, the current token, and a guess more than the last."
    )
    axes = sheet(title, 8, 0.78 + 0.28 * (K + 1), shows)
    size = min(3.6, 50 / len(letters))
    middle = left + size * (n_shown + 0.5) - 0.15
    words(axes, middle, 1.2, "current", fontsize=9)
    words(axes, middle - 3.5, 1.2, f"in the cache: {P}", ha="right", fontsize=9)
    words(axes, middle + 3.5, 1.2, f"guesses: {K}", ha="left", fontsize=9)
    words(axes, left - 1, 3.2, "position", ha="right", fontsize=9, color=GREY)
    for x in range(len(letters)):
        place = left + size * (x + 0.5) - 0.15
        words(axes, place, 3.2, str(P - n_shown + x), fontsize=9, color=GREY)
    for i in range(K + 1):
        y, end, sees = 4.6 + 2.8 * i, left + size * len(letters), n_shown + 1 + i
        for x, kind in enumerate(kinds):
            seen = (letters[x], kind) if x < sees else ("", "gone")
            box(axes, left + size * x, y, size - 0.3, 2.4, *seen)
        arrow(axes, (end, y + 1.2), (end + 3, y + 1.2), colour=TARGET)
        judged = f"p for {letters[sees]}" if i < K else "p for one more ★"
        words(axes, left - 1, y + 1.2, f"row {i}", ha="right")
        words(axes, end + 3.6, y + 1.2, judged, ha="left")
    return axes.figure
