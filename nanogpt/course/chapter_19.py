"""Chapter 19: the judge of *Your turn*, and the chapter's own pictures.

The turn: which feature stands beside which token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, GREY, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
    """Judges my_pairs(hidden (P, F), tokens, known): the pairs that the drafter has not read yet.

    It is asked in the middle of a text, at its start, after a restart, for the last pair alone, and
    where no pair is new. The features may be a tensor or a list of rows, the tokens a tensor or a
    list. Raises AssertionError for a token beside its own feature, or two places on, for pairs that
    are counted from the text's start, for those known already, and for wrong shapes and types.
    """
    for n, P, known, where in (
        (9, 8, 5, "three tokens were accepted"),
        (6, 5, 0, "nothing is known yet"),
        (9, 4, 1, "a restart has dropped the oldest features"),
        (12, 5, 0, "a restart has just happened"),
        (7, 6, 5, "one pair is new"),
        (8, 7, 7, "all pairs are known: none is new"),
    ):
        hidden = torch.arange(1.0, 2 * P + 1).view(P, 2)
        tokens = [(7 * i + 3) % 11 for i in range(n)]
        case = f"{n} tokens, {P} features, {known} pairs known ({where})"
        given = list(tokens), hidden.clone()
        got = mine(hidden, tokens, known)
        assert tokens == given[0] and torch.equal(hidden, given[1]), (
            f"{case}: the text's own tokens or features were changed; copy what you need"
        )
        features, after = taken(got, case, P - known)
        fault = slip(features, after, hidden.double(), tokens, known)
        new = hidden[known:].double()
        assert features.shape == new.shape and torch.equal(features, new), (
            f"{case}: {len(features)} features came, where the last {len(new)} are wanted, those "
            f"of the tokens whose pairs are new{fault}"
        )
        right = tokens[n - (P - known) :]
        assert after == right, (
            f"{case}: the tokens beside the features are {after}, not {right}, of {tokens}{fault}"
        )


def taken(got, case: str, n: int) -> tuple[Tensor, list[int]]:
    """(features (n, 2) float64, the tokens after them) of an answer, in any form that is right.

    Raises AssertionError for any other.
    """
    assert isinstance(got, (tuple, list)) and len(got) == 2, (
        f"{case}: {type(got).__name__} came back; return two things, the features and the "
        "tokens beside them"
    )
    try:
        features, after = got
        if isinstance(features, (list, tuple)):  # rows
            features = torch.stack([torch.as_tensor(row) for row in features]) if features else []
        features = torch.as_tensor(features).double().reshape(-1, 2)
        after = torch.as_tensor(after).flatten()
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(
            f"{case}: {got[0]!r} and {got[1]!r} came; the features are a tensor "
            f"{(n, 2)}, the tokens a list or a tensor of {n} whole numbers"
        ) from None
    assert not (after.is_floating_point() and len(after)), (
        f"{case}: the tokens are {after.dtype} numbers; they are whole ones, places in a table"
    )
    return features, after.long().tolist()


def slip(features: Tensor, after: list, hidden: Tensor, tokens: list, known: int) -> str:
    """What is wrong with these pairs, features (n, F) and the tokens after them, or "".

    hidden (P, F): those of the cached tokens; tokens: all, the current one last.
    """
    n, P = len(tokens), len(hidden)
    own = tokens[n - 1 - P : n - 1]  # the tokens that the features belong to
    slips = [
        (
            "; where nothing is new, the count is 0, and a slice from -0 on is a slice from the "
            "start: count from the front, len(tokens) - new",
            known == P and (len(features) > 0 or len(after) > 0),
        ),
        ("; all pairs came again: leave out those that are known", len(features) == P > P - known),
        (
            "; each feature stands beside its own token: it meets the one that was drawn from it, "
            "the token after",
            after in (own[known:], own),
        ),
        (
            "; a token two places on is not drawn yet when the guess is made: the last pair ends "
            "with the current token",
            len(after) > 1 and after[:-1] == tokens[known - P :][1:],
        ),
        (
            "; the current token is missing: it stands beside the last feature",
            after == tokens[known - P : -1],
        ),
        (
            "; you counted from the text's start: after a restart the first feature is not the "
            "first token's, so count from the end",
            n - 1 > P and after[:1] in (tokens[known : known + 1], tokens[known + 1 : known + 2]),
        ),
    ]
    return next((said for said, holds in slips if holds), "")


@mpl.rc_context(STYLE)
def one_feature_two_draws(
    read: str,
    feature: Sequence[float],
    draws: Sequence[tuple[str, float, Sequence[tuple[str, float]]]],
    title: str,
) -> Picture:
    """A text, its last feature as a strip of shades, and what may be drawn from it.

    draws: of each, the token, its probability, and the likeliest tokens after it with theirs.
    """
    said = " or ".join(f"{shown(token)} (then {shown(after[0][0])})" for token, _, after in draws)
    shows, rows = f"From one strip of shades comes {said}.", 7.5 * len(draws)
    axes = sheet(title, 8.4, max(1.9, 0.85 + 0.75 * len(draws)), shows)
    words(axes, 1, 1.6, "read by the target", ha="left")
    for i, char in enumerate(read):
        box(axes, 1 + 3 * i, 3.2, 3, 3.2, shown(char), "cached")
    middle = 6.5 + rows / 2
    state = max(4, 3 * len(read) - 0.5)
    arrow(axes, (state, 6.4), (state, middle - 1.8), TARGET)
    low, high = min(feature), max(feature)
    for i, value in enumerate(feature):  # dark is large
        shade = str(0.95 - 0.85 * (value - low) / (high - low or 1))
        cell = mpl.patches.Rectangle(
            (1 + 34 * i / len(feature), middle - 1.8), 34 / len(feature), 3.6
        )
        axes.add_patch(cell).set(facecolor=shade, linewidth=0)
    axes.add_patch(mpl.patches.Rectangle((1, middle - 1.8), 34, 3.6, fill=False, edgecolor=TARGET))
    words(axes, 18, middle + 3.4, f"one feature: {len(feature)} numbers")
    words(axes, 46, 1.6, "drawn from it")
    words(axes, 70, 1.6, "so the target then says")
    for n, (token, p, after) in enumerate(draws):
        y = 7.5 * n + 10.2
        arrow(axes, (35.5, middle), (41, y), DRAFT, dash="--")
        box(axes, 41, y - 1.8, 10, 3.6, f"{shown(token)}  {p:.2f}", "plain")
        arrow(axes, (51, y), (55, y))
        for i, (then, chance) in enumerate(after[:3]):
            box(axes, 55.5 + 9.2 * i, y - 1.8, 8.6, 3.6, f"{shown(then)}  {chance:.2f}", "target")
    return axes.figure


@mpl.rc_context(STYLE)
def feature_pairs(read: str, guesses: str, title: str) -> Picture:
    """What EAGLE's head reads: above, features; below each, the token beside it; then its guess.

    read: the last tokens, the current one last; the features after those that the target has made
    are the head's own outputs (hatched). Dashed: a guess, once drawn, is the next column's token.
    """
    tokens, true = [shown(x) for x in read + guesses], len(read) - 1
    wide, left = min(10.0, 74 / (true + len(guesses) - 1)), 15.0
    shows = "Each feature enters one block with its token; a guess becomes the next column's token."
    axes = sheet(title, (left + wide * (true + len(guesses) - 1) + 3) / 10, 2.95, shows)
    words(axes, left, 1.6, "the target's", ha="left", color=TARGET)
    if len(guesses) > 1:
        end = left + wide * (true + len(guesses) - 1) - 1
        words(axes, end, 1.6, "the head's own", ha="right")
    for y, name in ((5.2, "feature of"), (11.2, "token after it")):
        words(axes, left - 1.5, y, name, ha="right")
    words(axes, left - 1.5, 17.2, "one block", ha="right", fontweight="bold")
    words(axes, left - 1.5, 24.2, "lm_head: guess", ha="right")
    for i in range(true + len(guesses) - 1):
        x, kind = left + wide * i, "target" if i < true else "draft"
        at = x + wide / 2 - 0.5
        box(axes, x, 3.4, wide - 1, 3.6, tokens[i], kind)
        box(axes, x, 9.4, wide - 1, 3.6, tokens[i + 1], "plain")
        arrow(axes, (at, 13), (at, 15.4))
        if true - 1 <= i:
            box(axes, x, 22.4, wide - 1, 3.6, f"▸{tokens[i + 2]}", "draft")
            arrow(axes, (at, 19), (at, 22.4), DRAFT)
        if true - 1 <= i < true + len(guesses) - 2:  # what is drawn is the next column's token
            arrow(axes, (at + wide / 2 - 0.9, 22.4), (x + wide + 0.9, 13), DRAFT, dash="--")
        if true <= i:  # its feature is the output of the column before
            arrow(axes, (x - 1.2, 16), (x - 0.1, 6.5), DRAFT, bend=-0.25)
    axes.add_patch(
        mpl.patches.FancyBboxPatch(
            (left, 15.4), wide * (true + len(guesses) - 1) - 1, 3.6, boxstyle="round,pad=0"
        )
    ).set(facecolor="#F4F4F4", edgecolor=GREY, linewidth=1.4, zorder=0.5)
    return axes.figure


@mpl.rc_context(STYLE)
def steps_seen(masks: Sequence[Tensor], title: str) -> Picture:
    """What each place sees in each step of `unrolled`; masks: of step s, (T, (s+1) T) bool.

    A block of cells a step, a row a place; its columns are the entries of each step. Blue: a true
    pair; hatched: the head's own. The first s rows of step s have no guess, and are left empty.
    """
    T, side, left = len(masks[0]), 2.6, 13.0
    wide = [side * T * (s + 1) + 0.9 * s for s in range(len(masks))]
    tall = side * T + 4.6
    shows = "From step to step, fewer true pairs are seen, and one more diagonal of its guesses."
    axes = sheet(title, (left + wide[-1] + 14) / 10, (tall * len(masks) + 1) / 10, shows)
    for s, mask in enumerate(masks):
        top = tall * s + 3.6
        words(axes, 0.5, top + side * T / 2, f"step {s}:\nguess {s + 1}", ha="left", weight="bold")
        for of in range(s + 1):
            x = left + of * (side * T + 0.9)
            said = "true pairs" if of == 0 else f"own, step {of}"
            words(axes, x + side * T / 2, top - 1.1, said, fontsize=9, color=GREY)
            for place, column in product(range(s, T), range(T)):
                sees = bool(mask[place, of * T + column])
                kind = ("target" if of == 0 else "draft") if sees else "gone"
                at = x + side * column, top + side * place
                box(axes, *at, side - 0.3, side - 0.3, "", kind)
        for place in range(T):
            said = f"place {place}" if place >= s else f"place {place}: no guess"
            end = left + wide[s] + 0.8
            words(axes, end, top + side * (place + 0.45), said, ha="left", fontsize=9)
    return axes.figure
