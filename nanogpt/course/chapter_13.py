"""Chapter 13: the judge of *Your turn*, and the chapter's own pictures.

The turn: a fair clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from unittest import mock

import matplotlib as mpl

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture


def judge(mine: Callable) -> None:
    """Judges mine(old, new, prompts) -> speed-up where `new` is twice as fast, or three times.

    Raises AssertionError for a ratio upside down (in all pairs or half of them), times of different
    prompts compared, means, a single pair, no warm-up, one decoder after the other, always the same
    one first, or swapped only once; and for runs that nobody needs.
    """
    pace, start = {"old": 2.0, "new": 1.0}, {"old": 30.0, "new": 3.0}
    texts = {"old": (4.0, 6.0, 12.0), "new": (4.0, 2.0, 6.0)}
    bad = {"old": (2.0, 2.0, 99.0, 99.0, 2.0), "new": (1.0,) * 5}
    for n, why, right, seconds in (
        (4, "old takes 3 seconds, new takes 1", 3, lambda who, *_: 3.0 if who == "old" else 1.0),
        (3, "prompt by prompt, the ratios are 1, 3 and 2", 2, lambda who, i, *_: texts[who][i]),
        (3, "prompt by prompt, the ratios are 2, 1 and 3", 2, lambda who, i, *_: texts[who][i - 1]),
        (5, "accidents (here on two prompts) must not count", 2, lambda who, i, *_: bad[who][i]),
        (2, "a slow first call must not count", 2, lambda who, *r: pace[who] + start[who] * r[-1]),
    ):
        got, *_ = raced(mine, seconds, n)
        down = " (it is upside down)" if abs(got - 1 / right) < 0.01 else ""
        if abs(got - 5 / 3) < 0.01:
            down = " (the mean of 3 and ⅓: in half of your pairs the ratio is upside down)"
        assert abs(got - right) < 0.01, (
            f"{why}: the speed-up is {right}; you report {got:.2f}{down}"
        )
    got, ran, _ = raced(mine, lambda who, i, others, _: pace[who] * 1.1**others, 20)
    turns = sum(a != b for (_, a), (_, b) in pairwise(ran[-32:]))  # 31 if they alternate
    _, many, untimed = raced(mine, lambda who, *_: pace[who], 300)
    old_last = list(dict(many).values()).count("old")  # prompts; a coin's lie within 150 ± 45
    slows = "on a machine that slows down with every run, the speed-up is still 2; you report"
    why = "one decoder ran long after the other" if turns < 12 else "who goes first in each pair?"
    tossed = turns >= 12 and abs(old_last - 150) <= 45 and abs(got - 2) < 0.25
    fair = abs(got - 2) < 0.1 or tossed
    assert fair, f"{slows} {got:.2f}: {why}"
    got, *_ = raced(mine, lambda who, i, others, _: pace[who] * 1.3 ** min(others, 72), 60)
    assert abs(got - 2) < 0.15, (
        "on a machine that slows down at first and then stays slow, the speed-up is still 2; you "
        f"report {got:.2f}: swap who goes first from pair to pair, not once"
    )
    assert max(untimed, len(many) - 1200) <= 300, (
        f"right, but you made {len(many)} runs for 300 prompts and did not time {untimed} of them; "
        "each prompt makes one pair, and one call of each decoder is warm-up enough"
    )


def raced(mine: Callable, seconds: Callable, n: int) -> tuple[float, list[tuple[int, str]], int]:
    """What mine(old, new, prompts) reports, (prompt, who) as they ran, and how many were not timed.

    The machine is made up. A run of `who` on prompt i, after so many others, takes
    seconds(who, i, others, is_its_first); the prompts are lists of one token, the numbers below n.
    Raises AssertionError if no number or no time comes, or if a result is called.
    """
    now, looks, ran = [0.0], set(), []

    def decoder_of(who):
        def decode(prompt, *_, **__):
            [i] = prompt
            now[0] += seconds(who, i, len(ran), who not in (w for _, w in ran))
            ran.append((i, who))

        return decode

    def look():
        looks.add(len(ran))
        return now[0]

    with (
        mock.patch("time.perf_counter", look),
        mock.patch("time.perf_counter_ns", lambda: round(1e9 * look())),
    ):
        try:
            got = mine(decoder_of("old"), decoder_of("new"), [[i] for i in range(n)])
        except TypeError as error:
            assert "not callable" not in str(error), (
                "give clock a function: clock(lambda: old(prompt)); "
                f"clock(old(prompt)) hands it a result ({error})"
            )
            raise
    assert isinstance(got, (int, float)) or getattr(got, "ndim", 1) == 0, (
        f"return one number, the speed-up; this is {got!r}"
    )
    assert looks, "you never looked at the clock: take each time with clock(lambda: old(prompt))"
    return float(got), ran, sum(not {i, i + 1} <= looks for i in range(len(ran)))


@mpl.rc_context(STYLE)
def buffer(rows: Sequence[tuple[str, Sequence[float], int, int]], title: str) -> Picture:
    """A preallocated cache over time, a row each: (label, slots, valid entries, just written).

    Valid slots have a solid edge, new ones a ▸; whatever else lies in the buffer is dotted.
    """
    lengths = " → ".join(str(length) for _, _, length, _ in rows)
    shows = f"The length goes {lengths}; what lies behind it stays until a pass overwrites it."
    axes = sheet(title, 8, 0.8 + 0.8 * len(rows), shows)
    for i, (label, slots, length, written) in enumerate(rows):
        y = 3 + 8 * i
        words(axes, 1, y + 2, label, ha="left")
        for j, entry in enumerate(slots):
            kind = "gone" if j >= length else "target" if j >= length - written else "cached"
            mark = "▸ " if kind == "target" else ""
            box(axes, 27 + 7 * j, y, 6.6, 4, f"{mark}{entry:g}", kind)
        words(axes, 26.1 + 7 * length, y + 5.6, f"▲ length {length}", ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def fair_race(orders: Mapping[str, Sequence[Sequence[tuple[str, float]]]], title: str) -> Picture:
    """Runs of two decoders on a time axis, a lane for each order: groups of ("old"/"new", seconds).

    Under a group of both stands old / new, under one of a single decoder its median; at the end of
    each lane, the speed-up that it reports.
    """
    shows = "In blocks, the later decoder looks slow; in swapped pairs, the two are level."
    axes, kinds = sheet(title, 8, 3.1, shows), {"old": "target", "new": "draft"}
    unit = 60 / max(sum(s for group in lane for _, s in group) for lane in orders.values())
    for y, (order, groups) in zip((5.5, 18.5), orders.items(), strict=True):
        words(axes, 1, y - 2.2, order, ha="left", fontweight="bold")
        x, ratios, medians = 1.0, [], {}
        for group in groups:
            left, mine = x, {}
            for who, seconds in group:
                box(axes, x, y, unit * seconds, 4, who, kinds[who])
                mine.setdefault(who, []).append(seconds)
                x += unit * seconds
            axes.plot([left, left, x, x], [y + 4.5, y + 5.1, y + 5.1, y + 4.5], color=GREY)
            medians |= {who: median(seconds) for who, seconds in mine.items()}
            if len(mine) == 2:
                ratios.append(medians["old"] / medians["new"])
            note = f"{ratios[-1]:.2f}" if len(mine) == 2 else f"median {medians[who]:.2f} s"
            words(axes, (left + x) / 2, y + 6.6, note, fontsize=9)
            x += 1.2
        reported = median(ratios) if ratios else medians["old"] / medians["new"]
        words(axes, 73, y + 2, f"reports\n{reported:.2f}", fontweight="bold")
    arrow(axes, (1, 28.5), (66, 28.5))
    words(axes, 68.5, 28.5, "time", fontsize=9)
    return axes.figure
