"""Chapter 32: the judge of *Your turn*, and the chapter's own picture.

The turn: q of the next letter from q over tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl

from nanogpt.show.diagrams import KINDS, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown

TOKENS = ["a", "b", "c", "ab", "abb", "abca", "ba", "abba", "aab", "abcb"]
QS = [
    [0.10, 0.05, 0.05, 0.20, 0.10, 0.05, 0.15, 0.10, 0.05, 0.15],
    [0.02, 0.20, 0.08, 0.30, 0.05, 0.10, 0.05, 0.15, 0.04, 0.01],
    [0.50, 0.00, 0.00, 0.00, 0.25, 0.00, 0.10, 0.00, 0.00, 0.15],
]
BEGUN = ["", "a", "ab", "abc", "b", "ba", "c", "abb", "abcb"]


def shares(q: Sequence[float], tokens: Sequence[str], begun: str) -> dict[str, float]:
    """What may come after `begun`, by the sums: {next letter, or "" for the end: probability}."""
    sums: dict[str, float] = {}
    for p, token in zip(q, tokens, strict=True):
        if token.startswith(begun):
            key = token[len(begun) : len(begun) + 1]
            sums[key] = sums.get(key, 0.0) + p
    total = sum(sums.values())
    return {key: p / total for key, p in sums.items() if p > 0}


def judge(mine: Callable) -> None:
    """mine(q, tokens, begun) is {next letter, or "" for the end of the token: probability}.

    Judged on three q over ten tokens, after every beginning that one of them has. Raises
    AssertionError with the slip.
    """
    for q in QS:
        for begun in BEGUN:
            right = shares(q, TOKENS, begun) if any(by_start(q, begun)) else None
            if right is None:
                continue
            given = (list(q), list(TOKENS))
            answer = mine(*given, begun)
            assert given == (q, TOKENS), "q or tokens were changed in place: work on a copy"
            judge_answer(answer, q, begun, right)


def by_start(q: Sequence[float], begun: str) -> list[float]:
    """q of the tokens that begin with `begun`."""
    return [p for p, token in zip(q, TOKENS, strict=True) if token.startswith(begun)]


def judge_answer(answer, q: list[float], begun: str, right: Mapping[str, float]) -> None:
    """One answer of the judge. Raises AssertionError with the slip."""
    assert answer is not None, "nothing came back: return a dictionary {letter: probability}"
    assert isinstance(answer, Mapping), (
        f"{answer!r} came back, not a dictionary such as {{'a': 0.7, '': 0.3}}"
    )
    for key, p in answer.items():
        assert isinstance(key, str), f"the key {key!r} is no letter: keys are texts, such as 'a'"
        assert len(key) <= 1, (
            f"{key!r} is a key: ask for the next letter only, the first that comes after {begun!r}"
        )
        number = hasattr(p, "__float__") and not isinstance(p, str)
        assert number and math.isfinite(float(p)), f"{p!r} under {key!r} is no probability"
    got = {key: float(p) for key, p in answer.items() if float(p) != 0}
    if same(got, right):
        return
    said = {key: round(p, 3) for key, p in sorted(got.items())}
    raise AssertionError(
        f"after {begun!r}, with q {q} for {TOKENS}: {said} came out instead of "
        f"{ {key: round(p, 3) for key, p in sorted(right.items())} }; {slip(got, q, begun, right)}"
    )


def same(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Whether two answers agree."""
    return all(abs(a.get(key, 0) - b.get(key, 0)) < 1e-9 for key in a.keys() | b.keys())


def slip(got: dict, q: Sequence[float], begun: str, right: Mapping[str, float]) -> str:
    """What was probably done wrong."""
    total = sum(by_start(q, begun))
    if not got:
        return "nothing in it has a probability"
    if same(got, {key: p * total for key, p in right.items()}):
        return (
            f"divide by what all tokens that begin with {begun!r} have together, {total:.2f}: "
            "only they are possible now"
        )
    going = {key: p for key, p in right.items() if key}
    rest = sum(going.values())
    if right.get("") and rest and same(got, {key: p / rest for key, p in going.items()}):
        return f"{begun!r} is a token itself: it may end here, and its share stands under ''"
    if right.get("") and same(got, going):
        return f"{begun!r} is a token itself: where its share should stand, under '', is nothing"
    if abs(sum(got.values()) - 1) > 1e-9:
        return f"it sums to {sum(got.values()):.3f}, not to 1"
    if got.keys() - right.keys():
        extra = sorted(got.keys() - right.keys())[0]
        return f"no token that begins with {begun!r} and can be drawn goes on with {extra!r}"
    return f"each token that begins with {begun!r} counts for the letter that it goes on with"


@mpl.rc_context(STYLE)
def over_letters(
    text: str,
    rows: Sequence[tuple[str, Sequence[tuple[str, str]], str]],
    title: str,
    now: int | None = None,
) -> Picture:
    """Tokens as boxes over the letters that they spell: one row for each way to split a text.

    rows: (label, its tokens as (text, kind of KINDS), a note on the right). now: after how many
    letters the written text ends; a line stands there.
    """
    longest = max(len(text), *(sum(len(t) for t, _ in tokens) for _, tokens, _ in rows))
    wide = min(6.0, 58 / longest)
    shows = f"Tokens as boxes over “{shown(text)}”: {'; '.join(label for label, *_ in rows)}."
    axes = sheet(title, 9.4, 1.0 + 0.46 * len(rows), shows)
    left = 17.0
    for i, letter in enumerate(text):
        words(axes, left + wide * (i + 0.5), 1.8, shown(letter), fontweight="bold")
    for row, (label, tokens, note) in enumerate(rows):
        y, x = 4.2 + 4.6 * row, left
        words(axes, 1, y + 1.6, label, ha="left", fontsize=9)
        for token, kind in tokens:
            box(axes, x + 0.25, y, wide * len(token) - 0.5, 3.2, shown(token), kind)
            x += wide * len(token)
        words(axes, left + wide * longest + 1, y + 1.6, note, ha="left", fontsize=9, color=GREY)
    if now is not None:
        x = left + wide * now
        axes.plot([x, x], [0.6, 4.0 + 4.6 * len(rows)], color=KINDS["rejected"][1], linestyle="--")
    return axes.figure
