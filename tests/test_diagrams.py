"""The pictures of mechanisms: each is shown by a chapter, and none needs its colours.

While the chapters are tested, each looks at itself (`Picture.look`): nothing is cut off, and no
words lie on others.
"""

import importlib
import inspect
import re

import pytest
from conftest import words_in
from series import NAMES, NOTEBOOKS, cells

from nanogpt.course import chapter_00, chapter_05, chapter_06
from nanogpt.show import diagrams, figures
from nanogpt.show.figures import Mark

HOMES = [diagrams, *(importlib.import_module(f"nanogpt.course.chapter_{n[:2]}") for n in NAMES)]
DRAWN = {
    name
    for home in HOMES
    for name, function in inspect.getmembers(home, inspect.isfunction)
    if function.__module__ == home.__name__ and function.__annotations__.get("return") == "Picture"
}


def test_every_picture_is_shown_by_a_chapter():
    sources = [cell.source for path in NOTEBOOKS for cell in cells(path, "code")]
    calls = set(re.findall(r"\b(?:diagrams|chapter)\.(\w+)\(", "\n".join(sources)))
    assert len(DRAWN) > 40 and DRAWN <= calls, DRAWN - calls


def sheet_with(placed, title):
    axes = diagrams.sheet(title, 3, 2, "Words.")
    for x, text in placed:
        diagrams.words(axes, x, 10, text)
    return axes.figure


@pytest.mark.parametrize(
    ("placed", "title", "said"),
    [
        ([(8, "one"), (20, "other")], "A title", None),
        ([(8, "one"), (9, "other")], "A title", "'one' lies on 'other'"),
        ([(8, "one")], "A title that is far too long for so small a sheet", "sheet' is cut off"),
    ],
)
def test_a_picture_looks_at_itself_while_the_chapters_are_tested(placed, title, said, monkeypatch):
    picture = sheet_with(placed, title)
    monkeypatch.delenv(figures.TESTED)
    picture._repr_png_()  # a reader's own is shown as it is
    monkeypatch.setenv(figures.TESTED, "9")
    if said:
        with pytest.raises(ValueError, match=said):
            picture._repr_png_()
    else:
        assert picture._repr_png_()[0][:4] == b"\x89PNG"


def test_a_chart_is_laid_out_by_matplotlib_and_not_looked_at():
    chart = figures.bars(["a very long name"] * 9, {"a": [1] * 9}, "T", "x", "y")
    assert chart._repr_png_()[0][:4] == b"\x89PNG"


def test_what_is_drawn_twice_needs_no_colour():
    """Fates differ in their edge or carry a mark, so that a grey copy tells them apart."""
    marks = {kind: (dash, hatch) for kind, (_, _, dash, hatch) in diagrams.KINDS.items()}
    assert marks["rejected"] != marks["accepted"] and marks["draft"] != marks["target"]
    assert marks["gone"] not in (marks["plain"], marks["cached"])
    leaves = {("✓ a", "✓ a"): 0.49, ("✓ a", "✗ b ↻ a"): 0.21, ("✗ b ↻ a", "✓ a"): 0.3}
    judged = [Mark("a", "accepted", 0.5, 0.4)] * 3
    refused = [Mark("b", "rejected", 0.1, 0.3), Mark("d", "resampled", 0.2)]
    for picture in (
        chapter_06.trim("that is the ", "heap", "head"),
        chapter_00.guess_and_check("what ", "aaabcd", judged + refused),
        chapter_05.branches(leaves, {"aa": 1.0, "ab": 0.0}, "T"),
    ):
        said = "".join(words_in(picture))
        assert "✓" in said and "✗" in said and "↻" in said, said
    kept = chapter_00.guess_and_check("what ", "aaa", [*judged, Mark("d", "bonus", 0.2)])
    assert "★" in "".join(words_in(kept))
