"""Pictures show what they are given, at a fixed size, on whatever matplotlib backend."""

import matplotlib as mpl
import pytest
import torch

from nanogpt.data import CharTokenizer
from nanogpt.generate import Generation, Round
from nanogpt.show import diagrams, figures
from nanogpt.trees.tree import TreeRound


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
    png, _ = picture._repr_png_()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png_size(png) == (800, 360)


def test_a_picture_describes_itself_to_those_who_cannot_see_it():
    lines = figures.lines([1, 2], {"a": [1, 2], "b": [2, 3]}, "T", "x", "y", guess=2)
    assert lines.description == "T; across: x; up: y; shown: a, b, your guess: 2"
    assert lines._repr_png_()[1] == {"alt": lines.description}
    grid = figures.grid([[0, 0.5]], ["one\nrow"], ["a\nb", " c"], "T", "x", "y")
    said = "1 rows, “one row” to “one row”; 2 columns, “a b” to “c”."
    assert repr(grid) == f"<Picture: T; across: x; up: y. {said}>"
    assert diagrams.sheet("Why?", 3, 2, "So.").figure.description == "Why? So."
    marks = figures.grid([[0, 1]], ["r"], ["c", "d"], "T", "x", "y", text={0: "·", 1: "✓"}.get)
    assert [t.get_text() for t in marks.axes[0].texts] == ["·", "✓"]


def test_lines_show_their_data_and_the_guess():
    (axes,) = figures.lines([1, 2, 3], {"a": [1, 2, 4]}, "T", "x", "y", guess=2.5).axes
    assert axes.lines[0].get_ydata().tolist() == [1, 2, 4]
    assert set(axes.lines[1].get_ydata()) == {2.5}
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["a", "your guess: 2.5"]


def test_bars_show_their_data():
    (axes,) = figures.bars(["k", "l"], {"a": [1, 2], "b": [3, 2]}, "T", "x", "y").axes
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, 2]
    assert len({bar.get_hatch() for bar in axes.patches}) == 2, "never colour alone"


def test_bars_show_their_spread():
    ys, spread = {"a": [1, 2], "b": [3, 2]}, {"a": [(0.5, 1.5), (1.5, 3)]}
    (axes,) = figures.bars(["k", "l"], ys, "T", "x", "y", spread=spread).axes
    ends = [line.tolist() for bars in axes.containers[1:2] for line in bars[2][0].get_segments()]
    assert [(a[1], b[1]) for a, b in ends] == [(0.5, 1.5), (1.5, 3)]


def test_bars_of_quartiles_show_medians_and_where_the_middle_half_lies():
    numbers = {"a": {1: [1, 2, 3, 4, 5], 3: [2, 2, 2, 2, 2]}, "b": {1: [0, 1, 8], 3: [3, 4, 5]}}
    (axes,) = figures.quartile_bars(numbers, "T", "x", "y").axes
    assert [bar.get_height() for bar in axes.patches] == [3, 2, 1, 4]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "3"]
    (_, _, (first,)) = axes.containers[1] if len(axes.containers[1]) == 3 else (0, 0, (None,))
    low, high = first.get_segments()[0][:, 1]
    assert (low, high) == (2, 4)


def test_drawing_leaves_the_readers_own_style_alone():
    before = dict(mpl.rcParams)
    figures.lines([1], {"a": [1]}, "T", "x", "y")
    assert dict(mpl.rcParams) == before


def a_generation():
    """Two rounds on a vocabulary of 'ab<': one accepted, one rejected and resampled; one bonus."""
    p = torch.tensor([[0.5, 0.25, 0.25]] * 3, dtype=torch.float64)
    rounds = [Round([0, 1], p[:2], p, [0, 2], 3), Round([], p[:0], p[:1], [1], 5)]
    return figures.token_trace(Generation([0, 2, 1], rounds), CharTokenizer("a\n<"))


def test_a_token_trace_tells_every_tokens_fate_in_plain_text():
    assert str(a_generation()) == "  1  ✓a ✗⏎ ↻<\n  2  ★⏎"


def test_a_token_trace_is_inline_html_that_escapes_its_tokens_and_shows_p_and_q():
    html = a_generation()._repr_html_()
    assert "&lt;" in html and "<script" not in html and "class=" not in html
    assert 'title="accepted: p = 0.500, q = 0.500"' in html
    assert ">1</span> <" in html and "line-through" not in html, "hard to read, without styles too"
    assert 'title="resampled: p = 0.250"' in html
    for colour, mark, _ in figures.MARKS.values():
        assert colour in html and mark in html, "never colour alone"


def test_the_terminals_text_is_what_was_returned_and_the_legend_counts():
    trace = a_generation()
    assert trace.text(colour=False) == "a<\n"
    assert trace.legend(colour=False) == "✓ 1 accepted, ✗ 1 rejected, ↻ 1 resampled, ★ 1 bonus"
    assert trace.text(colour=True).startswith("\x1b[32ma\x1b[0m")


def test_a_trees_trace_shows_the_path_it_kept_and_how_many_siblings_it_refused():
    """'<' is refused, '⏎' accepted, and of its children 'a' and '⏎' none: 'a' comes instead."""
    p = torch.tensor([[0.5, 0.25, 0.25]] * 5, dtype=torch.float64)
    tree = TreeRound([2, 1, 0, 1], p[:4], p, [1, 0], 3, [-1, -1, 1, 1], [1])
    leaf = TreeRound([2, 1], p[:2], p[:3], [1, 0], 5, [-1, -1], [1])
    chain = TreeRound([0, 1], p[:2], p[:3], [0, 2], 3, [-1, 0], [0])
    tokenizer = CharTokenizer("a\n<")
    trace = figures.token_trace(Generation([1, 0] * 2 + [0, 2], [tree, leaf, chain]), tokenizer)
    assert str(trace) == "  1  ✓⏎(✗1) ↻a(✗2)\n  2  ✓⏎(✗1) ★a\n  3  ✓a ✗⏎ ↻<"
    assert trace.text(colour=False) == "\na\naa<"
    assert trace.legend(colour=False).startswith("✓ 3 accepted, ✗ 5 rejected, ↻ 2 resampled, ★ 1")
    assert "siblings refused before it: 2" in trace._repr_html_() and "✗2" in trace._repr_html_()


def test_the_overlap_splits_p_and_q_at_what_both_have():
    (axes,) = figures.overlap("ab", [0.7, 0.3], [0.4, 0.6], "T").axes
    heights = [round(bar.get_height(), 9) for bar in axes.patches]
    assert heights == [
        *(0.4, 0.3, 0.3, 0.0),  # p: accepted, then missing
        *(0.4, 0.3, 0.0, 0.3),  # q: accepted, then rejected
        *(0.7, 0.3, 0.4, 0.6),  # and both whole
    ]


def test_a_traces_picture_can_be_drawn():
    picture = figures.trace_picture(a_generation(), "T", columns=2)
    assert picture.axes[0].get_title(loc="left") == "T"
    assert picture._repr_png_()[0][:4] == b"\x89PNG"


def test_a_guess_of_0_is_drawn_like_any_other():
    for picture in (
        figures.lines([1, 2], {"a": [1, 2]}, "T", "x", "y", guess=0),
        figures.bars(["k"], {"a": [1]}, "T", "x", "y", guess=0.0),
    ):
        assert "your guess: 0" in picture.description


def test_a_trees_trace_has_the_p_and_the_q_of_each_tokens_own_row():
    """'⏎' is the second child of the current token, 'a' comes after it: p of rows 0 and 2."""
    p, q = torch.arange(15.0).view(5, 3).double() / 100, torch.arange(12.0).view(4, 3) / 10
    tree = TreeRound([2, 1, 0, 1], q, p, [1, 0], 3, [-1, -1, 1, 1], [1])
    (marks,) = figures.token_trace(Generation([1, 0], [tree]), CharTokenizer("a\n<")).rounds
    assert [(round(m.p, 9), m.q and round(m.q, 6)) for m in marks] == [(0.01, 0.4), (0.06, None)]
