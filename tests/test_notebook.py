"""What the notebooks need: stubs tried, classes in pieces, guesses that may be missing."""

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

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


@pytest.mark.parametrize(
    ("answer", "lines", "last"),
    [
        ("lambda x: x", 1, "✗ twice 2 is 4"),
        ("shortens", 2, "in shortens, line 2: return x[:1]"),
        ("asserts", 0, "mine"),  # what the answer itself raises keeps its traceback
        ("lambda x: x / 0", 0, "division by zero"),
    ],
)
def test_a_notebook_shows_the_sentence_alone(answer, lines, last, capsys):
    """It is an error all the same."""
    shell = InteractiveShell()
    shell.run_cell("from nanogpt.course.notebook import attempt")
    shell.run_cell("def shortens(x):\n    return x[:1]")
    shell.run_cell("def asserts(x):\n    assert x == 4, 'mine'")
    shell.run_cell('''def check(double):
    try:
        twice = double(2)
    except TypeError as error:
        raise AssertionError(f"double(2): {error}") from error
    assert twice == 4, "twice 2 is 4"''')
    capsys.readouterr()
    done = shell.run_cell(f"attempt(check, {answer})")
    said = capsys.readouterr().out.splitlines()
    assert not done.success and last in said[-1] and ("Traceback" in str(said)) == (not lines)
    assert len(said) == lines or not lines
    assert isinstance(done.error_in_exec, ZeroDivisionError if "/" in answer else AssertionError)


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
