"""Pictures show what they are given, at a fixed size, on whatever matplotlib backend."""

import matplotlib as mpl
import pytest

from nanogpt import figures


def png_size(png):
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.parametrize(
    "picture",
    [
        figures.lines([1, 2, 3], {"a": [1, 2, 3], "b": [3, 2, 1]}, "T", "x", "y", guess=2.5),
        figures.bars(["k", "l"], {"a": [1, 2], "b": [3, 2]}, "T", "x", "y", guess=2.5),
        figures.grid([[0, 1], [0.5, 0.25]], ["r", "s"], ["c", "d"], "T", "x", "y", 8, 3.6),
    ],
    ids=["lines", "bars", "grid"],
)
def test_a_picture_has_title_axes_and_a_fixed_size(picture):
    (axes,) = picture.axes
    assert axes.get_title(loc="left") == "T"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
    png = picture._repr_png_()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png_size(png) == (800, 360)


def test_lines_show_their_data_and_the_guess():
    (axes,) = figures.lines([1, 2, 3], {"a": [1, 2, 4]}, "T", "x", "y", guess=2.5).axes
    assert axes.lines[0].get_ydata().tolist() == [1, 2, 4]
    assert set(axes.lines[1].get_ydata()) == {2.5}
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["a", "your guess: 2.5"]


def test_bars_show_their_data():
    (axes,) = figures.bars(["k", "l"], {"a": [1, 2], "b": [3, 2]}, "T", "x", "y").axes
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, 2]
    assert len({bar.get_hatch() for bar in axes.patches}) == 2, "never colour alone"


def test_drawing_leaves_the_readers_own_style_alone():
    before = dict(mpl.rcParams)
    figures.lines([1], {"a": [1]}, "T", "x", "y")
    assert dict(mpl.rcParams) == before
