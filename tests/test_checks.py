"""The reader's test bench tells an untouched stub from a right and a wrong answer."""

import pytest

from nanogpt.checks import attempt


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
