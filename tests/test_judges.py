"""The judges of *your turn* say a sentence, whatever comes. test_notebooks_alone tries answers."""

import inspect

import pytest
from series import NAMES

from nanogpt import judges

JUDGES = dict(inspect.getmembers(judges, inspect.isfunction))
judged = pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)


def test_each_chapter_has_its_judge():
    homes = sorted(judge.__module__.rpartition("_")[2] for judge in JUDGES.values())
    assert homes == [name[:2] for name in NAMES[1:]]


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
