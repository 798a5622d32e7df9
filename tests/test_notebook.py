"""What the notebooks need: stubs tried, classes in pieces, guesses that may be missing."""

import pytest
import torch

from nanogpt.course.notebook import add_to, attempt, your_guess


def check_doubling(double):
    assert double(2) == 4, "twice 2 is 4"


def test_an_untouched_stub_is_not_attempted(capsys):
    def stub(x):
        raise NotImplementedError

    attempt(check_doubling, stub)
    assert capsys.readouterr().out == "not attempted yet\n"


def test_a_right_answer_passes(capsys):
    attempt(check_doubling, lambda x: 2 * x)
    assert capsys.readouterr().out == "passed\n"


def test_a_wrong_answer_hears_why(capsys):
    with pytest.raises(AssertionError, match="twice 2 is 4"):
        attempt(check_doubling, lambda x: x)
    assert capsys.readouterr().out == ""


def test_an_error_of_pytorch_is_no_untouched_stub(capsys):
    def check(mine):
        mine()

    with pytest.raises(NotImplementedError, match="not implemented for"):
        attempt(check, lambda: torch.softmax(torch.tensor([1, 2]), -1))
    assert capsys.readouterr().out == ""


def test_a_class_comes_in_pieces():
    class Counter:
        def __init__(self):
            self.n = 0

    @add_to(Counter)
    def up(self):
        self.n += 1
        return self.n

    @add_to(Counter)
    @classmethod
    def at(cls, n):
        counter = cls()
        counter.n = n
        return counter

    @add_to(Counter)
    @property
    def even(self):
        return self.n % 2 == 0

    assert Counter.at(4).up() == 5 and Counter.at(4).even and not Counter.at(5).even


def test_a_guess_may_be_missing():
    assert your_guess(None, ".2f") == "you did not guess"
    assert your_guess(0.5, ".2f") == "your guess: 0.50"
    assert your_guess(0) == "your guess: 0"
    assert your_guess("rise") == "your guess: rise"
