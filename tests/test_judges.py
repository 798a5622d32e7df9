"""The judges of *your turn* take right answers, refuse wrong ones, and always say a sentence."""

import __future__

import ast
import contextlib
import functools
import importlib
import re

import pytest
from series import NAMES, NOTEBOOKS, answers, read, tags, turn

from nanogpt.course.notebook import add_to
from nanogpt.proof.toys import from_memory, toy_target

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


# ---- right and wrong answers, without a kernel: test_notebooks_alone tries them in the chapters


def definitions(path):
    """What a chapter imports and defines, its exercises aside. Nothing else of it is run."""
    space = {}
    for cell in read(path).cells:
        if cell.cell_type != "code" or {"exercise", "check"} & set(tags(cell)):
            continue
        for part in ast.parse(re.sub(r"(?m)^[%!].*", "", cell.source)).body:
            if isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                with contextlib.suppress(NameError):  # it needs what the chapter computes
                    run(ast.Module([part], []), space)
                space["add_to"] = add_to_its_own
    return space


def add_to_its_own(cls):
    """The chapters' add_to; a class of the package stays as it is for all other tests."""
    ours = cls.__module__.startswith("nanogpt")
    return (lambda method: method) if ours else add_to(cls)


def run(code, space):
    """Execute code, text or a tree, in a namespace; annotations are not looked at."""
    flags = __future__.annotations.compiler_flag
    exec(compile(code, "<answer>", "exec", flags, dont_inherit=True), space)


def judged_name(path):
    """The name of the function that a chapter's check cell hands to its judge."""
    call = read(path).cells[turn(path)[1]].source
    return re.fullmatch(r"attempt\(chapter\.judge, (\w+)\)", call.strip())[1]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # a wrong answer's own
@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=NAMES[1:])
def test_a_judge_takes_right_answers_and_refuses_wrong_ones_with_their_sentence(path):
    judge, known, (right, wrong) = JUDGES[path.stem], definitions(path), answers(path)
    right = right[0][:1] if path.stem.startswith("08") else right[0]  # each takes seconds there
    if "08" in path.stem:  # all decoders pass the same toys, whatever they make of it
        toy = functools.cache(lambda *of, **more: from_memory(toy_target(*of, **more)))
        known["toy_target"] = toy
    assert right and wrong[0]
    for code, why in [*((code, None) for code in right), *wrong[0]]:
        space = dict(known)
        run(code, space)
        try:
            judge(space[judged_name(path)])
        except AssertionError as refused:
            assert why is not None, f"refused: {code}\n{refused}"
            assert why in str(refused), f"not refused with {why!r}: {code}\n{refused}"
        else:
            assert why is None, f"taken: {code}"
