"""The judges of *your turn* say a sentence, whatever comes. test_notebooks_alone tries answers."""

import importlib

import pytest
from series import NAMES

JUDGES = {
    name: importlib.import_module(f"nanogpt.course.chapter_{name[:2]}").judge for name in NAMES[1:]
}
judged = pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)


NO_ANSWERS = {
    "nothing": None,
    "a number": 7,
    "a text": "a text",
    "no list": [],
    "no tuple": (),
    "two nothings": (None, None),
    "a generator": iter(()),
    "a dictionary": {},
}


@judged
@pytest.mark.parametrize("made", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_refused_in_a_sentence(judge, made):
    with pytest.raises(AssertionError) as refused:
        judge(lambda *args, **kwargs: made)
    assert len(str(refused.value).split()) >= 4


@judged
def test_an_untouched_stub_and_an_error_of_the_readers_own_come_through(judge):
    def stub(*args, **kwargs):
        raise NotImplementedError

    def broken(*args, **kwargs):
        raise OverflowError("the reader's own")

    with pytest.raises(NotImplementedError):
        judge(stub)
    with pytest.raises((OverflowError, AssertionError), match="reader's own"):
        judge(broken)
