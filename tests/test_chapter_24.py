"""What chapter 24 draws, and the line of its first exercise: asserted as data."""

import pytest
from conftest import words_in

from nanogpt.course import chapter_24 as chapter
from nanogpt.proof.toys import random_draft, toy_target
from nanogpt.serving.server import Limits, Server


def test_a_lane_says_what_its_request_did_and_the_bars_say_why():
    """Somebody loses places in exactly the steps in which more are needed than there are."""
    limits = Limits(prefill_chunk=3, num_blocks=15)
    server = Server(toy_target(5, 12, 22), random_draft(5), 4, limits)
    lanes, needed, done = chapter.lanes_and_needs(server, {0: [[0], [1, 2]], 3: [[3, 4, 0]]}, 9)
    lost = {t for lane in lanes.values() for t, (what, _) in enumerate(lane) if what == "lost"}
    assert lost == {t for t, n in enumerate(needed) if n > 15} != set()
    assert lanes["request 2"][:3] == [("", 0)] * 3
    for id, lane in enumerate(lanes.values()):
        assert sum(n for what, n in lane if what == "writes") == len(done[id].tokens) == 9
    picture = chapter.request_lanes(lanes, needed, 15, "Lanes")
    assert {"✗", "needed by those who run", "15 there"} <= set(words_in(picture))
    assert str(max(needed)) in words_in(picture)


def test_rows_of_p_are_dropped_used_for_a_guess_or_for_the_next_token():
    passes = [("ab", "", "", ""), ("c", "d", "efg", "eX"), ("", "X", "hi", "hij")]
    rows = words_in(chapter.rows_of_a_request(passes, "Rows"))
    first, second, third = (rows.index(f"pass {n}") for n in (1, 2, 3))
    assert rows[first:second].count("·") == 2 and rows[first:second].count("●") == 2
    assert rows[second:third] == [
        *("pass 2", "enters", "c", "▸d", "e", "f", "g"),
        *("its row of p", "·", "✓e", "✗↻X", "·", "·"),
        *("its entry", "●", "●", "●", "✗", "✗"),
    ]
    assert rows[third:][-7:] == ["✓h", "✓i", "★j", "its entry", *"●●●"]


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_a_log_axis_is_a_log_axis(log):
    ys = {"a": [1.0, 10.0, 100.0], "b": [2.0, 3.0, 4.0]}
    picture = chapter.curves([1, 10, 100], ys, "T", "rate", "ms", {"a": 50.0, "sworn": 9.0}, log)
    axes = picture.axes[0]
    assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == ("x" in log, "y" in log)
    assert [[*line.get_ydata()] for line in axes.get_lines()[:2]] == [*ys.values()]
    levels = [line for line in axes.get_lines() if len(set(line.get_ydata())) == 1]
    curve = axes.get_lines()[0].get_color()
    assert [line.get_ydata()[0] for line in levels] == [50.0, 9.0]
    assert levels[0].get_color() == curve != levels[1].get_color()


@pytest.mark.parametrize(
    "choose, begins",
    [
        (lambda waiting: 0, 2),
        (lambda waiting: waiting.index(min(waiting)), None),
        (lambda waiting: max(range(len(waiting)), key=lambda i: waiting[i][0]), 0),
    ],
    ids=["first come", "shortest first", "longest first"],
)
def test_the_long_request_waits_as_long_as_the_order_makes_it(choose, begins):
    assert chapter.long_begins(choose, 200) == begins
