"""The benchmark measures pairs, and says what it measured."""

import re

import pytest

from nanogpt.bench import Pair, Timed, main, row
from nanogpt.checks import random_draft, toy_target
from nanogpt.generate import Generation
from nanogpt.sampling import RandomSource
from nanogpt.speculative import speculative_generate


def test_it_prints_a_row_for_each_K(capsys):
    main(["--K", "1", "3", "--pairs", "2", "--tokens", "10"])
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"bigram draft, counted in \d+\.\d\d s", lines[0])
    assert [line.split()[0] for line in lines[-2:]] == ["1", "3"]
    assert all("×" in line and "%" in line for line in lines[-2:])


def test_the_speed_up_and_the_time_outside_are_ratios_of_the_seconds():
    pair = Pair(3.0, 2.0, 1.5, Generation([1, 2], [], 0))
    assert pair.speed_up == 1.5 and pair.outside == 0.25


def test_a_row_shows_the_median_pair():
    made = speculative_generate(toy_target(7, 8), random_draft(7), [0, 1], 20, 2)
    pairs = [Pair(ratio, 1.0, 0.8, made) for ratio in (1.0, 9.0, 2.0)]
    assert row(2, pairs).split()[:2] == ["2", "2.00×"] and row(2, pairs).endswith("20%")


def test_a_timed_target_is_the_same_target():
    target, draft = toy_target(7, 8), random_draft(7)
    timed = Timed(target)
    same = [
        speculative_generate(t, draft, [0], 20, 2, rng=RandomSource(1)) for t in (target, timed)
    ]
    assert same[0].tokens == same[1].tokens and timed.seconds > 0


@pytest.mark.parametrize("wrong", [["--pairs=0"], ["--tokens=0"], ["--K=0"], ["--temperature=-1"]])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        main(wrong)
