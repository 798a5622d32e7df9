"""The pictures of chapter 00."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, MARKS, STYLE, Mark, Picture, shown


@mpl.rc_context(STYLE)
def guess_and_check(before: str, guesses: str, marks: Sequence[Mark]) -> Picture:
    """One round after the text `before`: the draft's guesses, one pass, and what became of each.

    marks: of the judged guesses, with their p and q, and of the token that the target adds.
    """
    *judged, last = marks
    fates, n = [mark.fate for mark in marks], len(guesses)
    end = "one replaced" if "rejected" in fates else "a bonus added"
    title = f"{n} guesses, one pass of the target: {fates.count('accepted')} kept, {end}"
    kept, own = shown(guesses[: fates.count("accepted")]), shown(last.text)
    shows = f"Of “{shown(guesses)}”, “{kept}” stays; then the target writes “{own}” itself."
    axes, left, step = sheet(title, 8.4, 4.2, shows), 34, min(7, 49 / (n + 1))
    columns = [left + step * j for j in range(n)]
    w, middle = step - 0.5, step / 2 - 0.25
    names = {5: "the draft\nguesses", 15: "the target\nreads it all", 25: "✓ keep  ✗ cut"}
    for y, name in (names | {37.5: "the text now"}).items():
        words(axes, 1, y, name, ha="left")
    for y in (3, 35.5):
        for i, letter in enumerate(shown(before[-6:])):
            box(axes, 15 + 3.1 * i, y, 2.8, 4, letter)
    box(axes, 15, 13, columns[-1] + w - 15, 4, "one pass over text and guesses", "target")
    for j, (x, letter) in enumerate(zip(columns, shown(guesses), strict=True)):
        box(axes, x, 3, w, 4, letter, "draft")
        arrow(axes, (x + middle, 7), (x + middle, 13))
        fate = fates[j] if j < len(judged) else "gone"
        box(axes, x, 23, w, 4, MARKS[fate][1] + letter if fate in MARKS else letter, fate)
        if j < len(judged):
            arrow(axes, (x + middle, 17), (x + middle, 23))
            p_and_q = f"p {judged[j].p:.2f}\nq {judged[j].q:.2f}"
            words(axes, x + middle, 29.5, p_and_q if step > 4 else "", fontsize=8)
        if fate == "accepted":
            box(axes, x, 35.5, w, 4, MARKS[fate][1] + letter, fate)
    if len(judged) < n:
        words(axes, columns[len(judged)], 29, "nobody looks at these", ha="left", fontsize=8)
    x = left + step * fates.count("accepted")
    box(axes, x, 35.5, w, 4, MARKS[last.fate][1] + shown(last.text), last.fate)
    return axes.figure


@mpl.rc_context(STYLE)
def map_of_the_round(
    stations: Mapping[str, tuple[str, str]], loop: str, whole: Sequence[Sequence[str]]
) -> Picture:
    """The stations of a round, {kind of box: (what happens, its chapters)}, and the way back.

    loop: the chapter that ties them together. whole: those about all of it, in rows of boxes below.
    """
    shows = "Guess, check, keep or replace, trim, and again: below each step stand its chapters."
    title, step = "Every chapter has its place in one round", 84 / len(stations)
    axes = sheet(title, 8.6, 5.8, shows)
    middles = [step * (i + 0.5) - 1 for i in range(len(stations))]
    for x, (kind, (what, chapters)) in zip(middles, stations.items(), strict=True):
        left = x - step / 2 + 2
        box(axes, left, 10, step - 4, 5, what, kind)
        words(axes, left + 1, 16.5, chapters, ha="left", va="top", fontsize=9, linespacing=1.5)
        if x > middles[0]:
            arrow(axes, (left - 4, 12.5), (left, 12.5))
    way = [middles[-1], middles[-1], middles[0], middles[0]]
    axes.plot(way, [10, 6, 6, 7], color=GREY, linewidth=1.4)
    arrow(axes, (middles[0], 6), (middles[0], 10))
    words(axes, 42, 4.5, loop, fontsize=9)
    words(axes, 42, 37, "and the whole of it", fontsize=9)
    for row, chapters in enumerate(whole):
        wide = 84 / len(chapters)
        for i, chapter in enumerate(chapters):
            box(axes, 1 + wide * i, 39.5 + 6 * row, wide - 1, 5, chapter)
    return axes.figure
