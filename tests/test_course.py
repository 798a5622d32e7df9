"""`nanogpt course`: what stands in a reader's notebooks, what it is worth, and no trace of it.

An answer is tried in this process where nothing of a process of its own is tested: that takes a
hundredth of a second instead of half of one.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import series
import torch
from conftest import ended
from series import GUESS, NAMES, NOTEBOOKS, ROOT, answers, code_lines, solutions, turn

from nanogpt.__main__ import main
from nanogpt.course import command, judged
from nanogpt.course.needed import needed, statements
from nanogpt.course.progress import (
    OPEN,
    PASSED,
    REFUSED,
    UNKNOWN,
    Chapter,
    Exercise,
    Standing,
    Verdict,
    at_sight,
    read,
)

every_chapter = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


# ---- the real chapters


@every_chapter
def test_every_exercise_of_a_chapter_is_found_and_its_stub_is_untouched(path):
    chapter = read(path)
    found = chapter.exercises
    own = [turn(path)] if turn(path) else []
    assert [one.check for one in found] == [check for _, check, *_ in own + solutions(path)]
    numbers = [f"Exercise {n + 1}" for n in range(len(solutions(path)))]
    assert [one.label for one in found] == ["Your turn"] * len(own) + numbers
    assert all(at_sight(chapter, one) == Verdict(OPEN) for one in found)


@every_chapter
def test_a_chapter_says_its_minutes_and_how_many_predictions_wait(path):
    chapter = read(path)
    opening = series.read(path).cells[0].source
    assert opening.startswith(f"# {chapter.number} · {chapter.title}\n")
    assert f"**Minutes** {chapter.minutes}" in opening and chapter.question in opening
    asked = len(re.findall(GUESS, "\n".join(code_lines(path))))
    assert chapter.guesses == (False,) * asked


def test_a_fresh_course_costs_neither_torch_nor_a_process():
    arguments = ["course", "--notebooks", str(ROOT / "notebooks")]
    code = (
        "import subprocess, sys; from nanogpt.__main__ import main; subprocess.Popen = None; "
        f"main({arguments}); assert not {{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    exercises = sum(len(read(path).exercises) for path in NOTEBOOKS)
    assert f"\n0 of {exercises} passed; 0 min done, " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: chapter 00 · Start here, ")


def with_answer(path, number, code, folder):
    """A copy of a chapter with an answer, 0 being *your turn*: the chapter, and the exercise."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    check = read(path).exercises[number].check
    notebook["cells"][check - 1]["source"] = code.strip("\n")
    folder.mkdir(parents=True)
    (folder / path.name).write_text(json.dumps(notebook), encoding="utf-8")
    chapter = read(folder / path.name)
    return chapter, chapter.exercises[number]


def here(answer):
    """The verdict on an answer, tried in this process."""
    main, asked = sys.modules["__main__"], sys.stdin
    try:
        with open(os.devnull) as sys.stdin, torch.enable_grad():  # a chapter may leave it off
            return judged.tried(*answer)
    finally:
        sys.modules["__main__"], sys.stdin = main, asked


def all_here(answers, seconds):
    """What `judged.judged` yields, without its processes."""
    for answer in answers:
        yield answer, here(answer)


@pytest.fixture
def at_once(monkeypatch):
    """`nanogpt course` tries answers in this process, and sees no other course than the given."""
    monkeypatch.setattr(command, "judged", all_here)
    monkeypatch.setattr(command, "PROJECT", ROOT / "tests")


def verdicts(given, folder, seconds=300):
    """The verdicts on answers (path, number, code), in their order."""
    made = [with_answer(*one, folder / str(i)) for i, one in enumerate(given)]
    found = {answer[0].path: verdict for answer, verdict in judged.judged(made, seconds)}
    return [found[chapter.path] for chapter, _ in made]


def test_real_judges_pass_right_answers_and_refuse_wrong_ones_with_their_sentence(tmp_path):
    """One each in a process of its own, as the reader's are."""
    tried, why = [], []
    for path in (NOTEBOOKS[3], NOTEBOOKS[9]):
        right, wrong = answers(path)
        tried += [(path, 0, right[0][0]), (path, 0, wrong[0][0][0])]
        why += [None, wrong[0][0][1]]
    found = verdicts(tried[:1] + tried[-1:], tmp_path)
    made = [with_answer(*one, tmp_path / f"here {i}") for i, one in enumerate(tried[1:-1])]
    found[1:1] = map(here, made)
    for verdict, sentence in zip(found, why, strict=True):
        assert verdict.state == (REFUSED if sentence else PASSED), verdict
        assert (sentence or "") in verdict.said


def first(path, number, codes, folder):
    """The first answer that uses nothing which its chapter defines further down: (i, verdict)."""
    for i, code in enumerate(codes):
        [found] = verdicts([(path, number, code)], folder / str(i))
        if "further down" not in found.said:
            return i, found
    raise AssertionError(f"{path.name}: every answer to exercise {number} reads on")


@pytest.mark.slow
@every_chapter
def test_every_exercise_passes_a_right_answer_and_refuses_a_wrong_one(path, tmp_path):
    right, wrong = answers(path)
    for number, exercise in enumerate(read(path).exercises):
        _, found = first(path, number, right[number], tmp_path / f"right {number}")
        assert found == Verdict(PASSED), f"{exercise.heading}: {found}"
        codes, why = zip(*wrong[number], strict=True)
        i, found = first(path, number, codes, tmp_path / f"wrong {number}")
        assert found.state == REFUSED and why[i] in found.said, f"{exercise.heading}: {found}"


# ---- a toy of a chapter

OPENING = """# 05 · A toy

**Question** Does it double?

**Needs** [04 · Verification](04_verification.ipynb); nothing else.

**Minutes** 20 with the exercises"""
SETTINGS = "import math\n\nfrom nanogpt.course.notebook import attempt\n\nfactor = 2"
PLOT = 'raise SystemError("a plot that nobody needs")'
STUB = 'def my_twice(x):\n    """2 x."""\n    raise NotImplementedError'
CHECK = """def check_twice(twice):
    got = twice(2)
    assert got == 2 * factor, f"twice 2 is 4,\\n  not {got}"


attempt(check_twice, my_twice)"""
RIGHT, TURN = "def my_twice(x):\n    return 2 * x", "Your turn · Twice"


def text(source):
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source):
    return {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}


def write(folder, *answer, name="05_toy.ipynb", before=(), check=CHECK, after=()):
    """A chapter with *your turn*; `answer` are the cells between its heading and its check."""
    cells = [text(OPENING), code(SETTINGS), code(PLOT), *map(code, before)]
    cells += [text(f"### {TURN} · 5 min"), *map(code, answer), code(check), *map(code, after)]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return read(folder / name)


def verdict(chapter, seconds=None):
    """On the chapter's first exercise; with seconds, in a process of its own."""
    answer = chapter, chapter.exercises[0]
    if seen := at_sight(*answer):
        return seen
    if seconds is None:
        return here(answer)
    [(_, found)] = judged.judged([answer], seconds)
    return found


STATES = {
    "the stub": ([STUB], OPEN, ""),
    "a stub without a docstring": (["def my_twice(x):\n    raise NotImplementedError()"], OPEN, ""),
    "no stub": ([], OPEN, "no cell before the check defines my_twice"),
    "right": ([RIGHT], PASSED, ""),
    "by another name": ([f"{RIGHT}\n\nbest = my_twice".replace("my_twice", "two"),
                         "my_twice = two"], PASSED, ""),
    "wrong": ([RIGHT.replace("2", "3")], REFUSED, "twice 2 is 4, not 6"),
    "half": (["def my_twice(x):\n    y = x\n    raise NotImplementedError"], OPEN,
             "not finished yet"),
    "an error": (["def my_twice(x):\n    y = x\n    return y / 0"], REFUSED,
                 "ZeroDivisionError: division by zero (line 3 of its cell)"),
    "another signature": (["def my_twice():\n    return 2"], REFUSED,
                          "TypeError: my_twice() takes 0 positional arguments but 1 was given"),
    "not Python": (["def my_twice(x)\n    return 2 * x"], REFUSED,
                   "SyntaxError: expected ':' (line 1 of its cell)"),
    "a line lost": (["    # my_twice\nreturn 2 * x"], REFUSED,
                    "SyntaxError: 'return' outside function (line 2 of its cell)"),
    "no module": (["import no_such_module\n\nmy_twice = no_such_module.twice"], REFUSED,
                  "ModuleNotFoundError: No module named 'no_such_module' (line 1 of its cell)"),
    "in a new cell": ([STUB, RIGHT], PASSED, ""),
    "the last one counts": ([RIGHT, RIGHT.replace("2", "3")], REFUSED, "twice 2 is 4, not 6"),
    "back to the stub": ([RIGHT, STUB], OPEN, ""),
    "with a helper": ([STUB, "def add(*x):\n    return sum(x)",
                       "def my_twice(x):\n    return add(x, x)"], PASSED, ""),
    "with magics": (["%%time\n!ls\n" + RIGHT], PASSED, ""),
    "it ends Python": (["import os\n\n\ndef my_twice(x):\n    os._exit(3)"], UNKNOWN,
                       "it ended Python (exit code 3) before its check was over"),
    "it leaves": (["import sys\n\n\ndef my_twice(x):\n    sys.exit(0)"], REFUSED,
                  "SystemExit: 0 (line 5 of its cell)"),
    "it asks": (["def my_twice(x):\n    return int(input(x))"], REFUSED,
                "EOFError: EOF when reading a line (line 2 of its cell)"),
    "it prints": (["def my_twice(x):\n    print('no' * 100_000)\n    return 2 * x"], PASSED, ""),
    "it asserts": (["def my_twice(x):\n    assert x == 1"], REFUSED,
                   "AssertionError (line 2 of its cell)"),
    "a long sentence": (["def my_twice(x):\n    return 'x' * 100_000"], REFUSED,
                        f"twice 2 is 4, not {'x' * 482} …"),
}  # fmt: skip


OF_A_PROCESS = {"right", "wrong", "half", "it ends Python", "it leaves", "it asks", "it prints"}


@pytest.mark.parametrize("name", STATES)
def test_an_answer_is_what_the_notebook_would_make_of_it_from_top_to_bottom(name, tmp_path):
    cells, state, said = STATES[name]
    chapter = write(tmp_path, *cells)
    assert verdict(chapter, 60 if name in OF_A_PROCESS else None) == Verdict(state, said)


def test_of_two_names_an_answer_to_one_is_judged(tmp_path):
    """The other one is still a stub: the check says no, or comes to the stub."""
    check = "def both(f, g):\n    assert f() == 1, 'f is 1'\n    g()\n\n\nattempt(both, my_f, my_g)"
    stubs = "def my_f():\n    raise NotImplementedError\n\n\n{}"
    stubs = stubs.format(stubs.format("").replace("my_f", "my_g"))
    assert verdict(write(tmp_path, stubs, check=check)) == Verdict(OPEN)
    wrong = stubs + "def my_f():\n    return 2"
    assert verdict(write(tmp_path, wrong, check=check)) == Verdict(REFUSED, "f is 1")
    right = wrong.replace("2", "1")
    assert verdict(write(tmp_path, right, check=check)) == Verdict(OPEN, "not finished yet")


CLASS = """class MyDouble:
    def __init__(self, x):
        self.x = x
"""
METHOD = "    def twice(self):\n        raise NotImplementedError"
PIECE = "from nanogpt.course.notebook import add_to\n\n\n@add_to(MyDouble)\n" + METHOD.replace(
    "    def", "def"
).replace("        raise", "    raise")
CHECK_CLASS = (
    "def check(made):\n    assert made(2).twice() == 4, 'no'\n\n\nattempt(check, MyDouble)"
)
CLASSES = {"whole": [f"{CLASS}\n{METHOD}"], "in pieces": [CLASS, PIECE]}


@pytest.mark.parametrize("cells", CLASSES.values(), ids=CLASSES)
def test_a_class_is_untouched_while_its_methods_are_stubs(cells, tmp_path):
    assert verdict(write(tmp_path, *cells, check=CHECK_CLASS)) == Verdict(OPEN)
    cells = [cell.replace("raise NotImplementedError", "return 2 * self.x") for cell in cells]
    assert verdict(write(tmp_path, *cells, check=CHECK_CLASS)) == Verdict(PASSED)


ENDLESS = "no end after 1 s of computing: an endless loop? `--seconds 5` waits longer"


@pytest.fixture
def patient(monkeypatch):
    """On a machine however busy, the time of an answer ends before its parent's patience."""
    monkeypatch.setattr(judged, "PATIENCE", 60)


@pytest.mark.usefixtures("patient")
def test_an_endless_loop_ends_with_all_that_it_started(tmp_path):
    loop = f"""import subprocess, sys
def my_twice(x):
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    while True:
        print("more", x)"""
    assert verdict(write(tmp_path, loop), seconds=1) == Verdict(UNKNOWN, ENDLESS)
    if os.name == "posix":
        assert ended(int((tmp_path / "pid").read_text()))


posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@posix
@pytest.mark.usefixtures("patient")
def test_an_endless_loop_that_lets_no_other_thread_run_ends_as_well(tmp_path):
    loop = "import itertools\n\n\ndef my_twice(x):\n    return sum(itertools.repeat(0))"
    assert verdict(write(tmp_path, loop), seconds=1) == Verdict(UNKNOWN, ENDLESS)


@posix
@pytest.mark.usefixtures("patient")
def test_a_right_answer_is_no_endless_loop_however_busy_the_machine_is(tmp_path):
    """It takes longer than its time, as nothing of the processor is left to it for a while."""
    wake = "import os, sys, time; time.sleep(1.2); os.kill(int(sys.argv[1]), 18)"
    answer = f"""import os, signal, subprocess, sys
def my_twice(x):
    child = [sys.executable, "-c", {wake!r}.replace("18", str(int(signal.SIGCONT)))]
    subprocess.Popen([*child, str(os.getpid())])
    os.kill(os.getpid(), signal.SIGSTOP)
    return 2 * x"""
    assert verdict(write(tmp_path, answer), seconds=1) == Verdict(PASSED)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_computes_now_and_then_is_no_endless_loop(tmp_path):
    """It gets a tenth of the processor, and takes as long as that makes it."""
    answer = """import time
def my_twice(x):
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        time.sleep(0.1)
        until = time.process_time() + 0.01
        while time.process_time() < until: pass
    return 2 * x"""
    assert verdict(write(tmp_path, answer), seconds=1) == Verdict(PASSED)


@pytest.mark.parametrize("wait, patience", [("time.sleep(600)", 60), ("time.sleep(.005)", 1)])
def test_what_waits_for_ever_is_given_up_and_not_called_endless(
    wait, patience, tmp_path, monkeypatch
):
    """What computes nothing, in its time; what computes a little all the time, later."""
    monkeypatch.setattr(judged, "PATIENCE", patience)
    answer = f"import time\n\n\ndef my_twice(x):\n    while True:\n        {wait}"
    found = verdict(write(tmp_path, answer), seconds=1)
    why = "it hardly computed: it waits for something, or the machine is busy"
    assert found == Verdict(UNKNOWN, f"no end in 1 s, and {why}; `--seconds 5` waits longer")


def test_who_stops_listening_ends_what_still_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(judged, "AT_ONCE", 2)
    slow = f"""import os, time
def my_twice(x):
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(600)"""
    chapters = write(tmp_path / "slow", slow), write(tmp_path / "quick", RIGHT)
    coming = judged.judged([(chapter, chapter.exercises[0]) for chapter in chapters], 600)
    assert next(coming)[0][0] == chapters[1]
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.1)
    coming.close()
    if os.name == "posix":
        assert ended(int((tmp_path / "pid").read_text()))


def test_nothing_is_written_beside_or_into_the_notebooks(tmp_path, monkeypatch, capsys):
    """Those of the reader's own files that lie beside them are found."""
    (tmp_path / "helper.py").write_text("def times(n):\n    return lambda x: n * x")
    (tmp_path / "number.txt").write_text("2")
    answer = "from helper import times\n\nmy_twice = times(int(open('number.txt').read()))"
    write(tmp_path, STUB, answer)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.chdir(tmp_path.parent)
    before = {path: path.stat() for path in tmp_path.iterdir()}
    assert main(["course", "--notebooks", str(tmp_path)]) == 0
    assert "05  T✓" in capsys.readouterr().out
    after = {path: path.stat() for path in tmp_path.iterdir()}
    assert {p: (s.st_mtime_ns, s.st_size) for p, s in after.items()} == {
        p: (s.st_mtime_ns, s.st_size) for p, s in before.items()
    }


# ---- whose fault it is


def test_a_copy_older_than_the_package_is_named_and_not_the_answer(tmp_path):
    old = CHECK.replace("def check", "from nanogpt.course import chapter_0 as chapter\n\ndef check")
    said = "this copy is older than the package: ImportError: cannot import name 'chapter_0' from "
    assert verdict(write(tmp_path, RIGHT, check=old)) == Verdict(UNKNOWN, said + "'nanogpt.course'")
    gone = "import nanogpt.course as chapter\n\nattempt(chapter.judge, my_twice)"
    said = "this copy is older than the package: AttributeError: module 'nanogpt.course' has no "
    said += "attribute 'judge'"
    assert verdict(write(tmp_path, RIGHT, check=gone)) == Verdict(UNKNOWN, said)
    own = "from nanogpt.course import nothing\n\nmy_twice = nothing.twice"
    assert verdict(write(tmp_path, own)).state == REFUSED


def test_a_cell_that_fails_before_the_answer_is_not_the_answers_fault(tmp_path):
    before = ["width = 1 / 0"]
    check = CHECK.replace("2 * factor", "2 * factor + 0 * width")
    said = "a cell that its check needs fails: ZeroDivisionError: division by zero"
    assert verdict(write(tmp_path, RIGHT, before=before, check=check)) == Verdict(UNKNOWN, said)


def test_a_name_that_comes_further_down_is_said_so(tmp_path):
    cell = "def my_twice(x):\n    return ours(x)"
    said = "NameError: name 'ours' is not defined (line 2 of its cell)"
    assert verdict(write(tmp_path, cell)) == Verdict(REFUSED, said)
    found = verdict(write(tmp_path, cell, after=["def ours(x):\n    return 2 * x"]))
    assert found == Verdict(REFUSED, f"{said}; it comes further down")


# ---- what a check needs


def kept(*cells):
    """Of cells of code, of which the last is the check, the first line of what it needs."""
    notebook = statements(dict(enumerate(cells)))
    sources = [cells[part.cell].splitlines()[part.node.lineno - 1] for part in
               needed(notebook, len(cells) - 1)]  # fmt: skip
    return sources[:-1]


NEEDED = {
    "names, and what they come from": (["a = 1", "b = a", "c = 2", "b"], ["a = 1", "b = a"]),
    "no plot": (["a = 1", "figures.lines(a)", "print(a)", "a"], ["a = 1"]),
    "the last value": (["a = 1", "a = 2", "a"], ["a = 2"]),
    "the value it had then": (["a = 1", "b = a", "a = 2", "b"], ["a = 1", "b = a"]),
    "what a function reads when it is called": (
        ["a = 1", "def f(): return a", "a = 2", "f()"], ["def f(): return a", "a = 2"]),
    "and when it was called before": (
        ["a = 1", "def f(): return a", "b = f()", "a = 2", "(b, f())"],
        ["a = 1", "def f(): return a", "b = f()", "a = 2"]),
    "and through what holds it, and may have called it": (
        ["a = 1", "def f(): return a", "g = [f]", "a = 2", "g[0]()"],
        ["a = 1", "def f(): return a", "g = [f]", "a = 2"]),
    "sums and lists": (["a = []", "a += [1]", "a.append(2)", "a[0] = 3", "a"],
                       ["a = []", "a += [1]", "a.append(2)", "a[0] = 3"]),
    "pieces of a class": (["class A: pass", "class B: pass", "@add_to(A)\ndef f(self): pass", "A"],
                          ["class A: pass", "def f(self): pass"]),
    "not a loop's own variable": (
        ["a = 0", "b = []", "for a in [1]: b.append(a)", "b"],
        ["b = []", "for a in [1]: b.append(a)"]),
    "nor a comprehension's": (["a = 0", "b = [a for a in [1]]", "b"], ["b = [a for a in [1]]"]),
    "what a comprehension reads": (["a = 0", "b = [a for _ in [1]]", "b"],
                                   ["a = 0", "b = [a for _ in [1]]"]),
    "what may not happen": (["a = 0", "if c: a = 1", "a"], ["a = 0", "if c: a = 1"]),
    "of either branch": (["a = 0", "if c: a, b = 1, 1\nelse: b = a", "b"],
                         ["a = 0", "if c: a, b = 1, 1"]),
    "every import of a part": (
        ["import os.path", "import os", "os.path"], ["import os.path", "import os"]),
    "settings of a module, where it is imported": (
        ["import torch\ntorch.set(1)", "torch.set(2)", "torch.x"],
        ["import torch", "torch.set(1)"]),
    "what a class and a default read": (
        ["a = b = c = 1", "c = 2", "class A(a):\n    x = b\n    def f(self, y=c): pass", "A"],
        ["a = b = c = 1", "c = 2", "class A(a):"]),
    "what a class read when it was made": (
        ["a = 1", "class A: x = a", "a = 2", "A"], ["a = 1", "class A: x = a"]),
    "what a function read that was called at once": (
        ["a = 1", "b = sorted([3], key=lambda x: a)", "a = 2", "b"],
        ["a = 1", "b = sorted([3], key=lambda x: a)", "a = 2"]),
    "what a method reads is not the class's": (
        ["x = 0", "class A:\n    x = 1\n    def f(self): return x", "A"], ["x = 0", "class A:"]),
    "what a class has is its own": (
        ["x = 0", "class A:\n    x = 1\n    y = x", "A"], ["class A:"]),
    "not what comes after": (["a = 1", "a"], ["a = 1"]),
}  # fmt: skip


@pytest.mark.parametrize("cells, wanted", NEEDED.values(), ids=NEEDED)
def test_a_check_gets_what_it_needs_and_no_more(cells, wanted):
    assert kept(*cells) == wanted


def test_a_future_import_counts_for_the_whole_notebook(tmp_path):
    late = "def my_twice(x: no_such_type):\n    return 2 * x"
    assert verdict(write(tmp_path, late)).state == REFUSED
    found = verdict(write(tmp_path, "from __future__ import annotations", late))
    assert found == Verdict(PASSED)


# ---- the notebooks that readers have


def said(arguments, capsys, code=0):
    """The lines that `nanogpt course` prints."""
    assert main(["course", *map(str, arguments)]) == code
    return capsys.readouterr().out.splitlines()


def spoiled(folder):
    """Chapters of which most are broken, each in a way of its own."""
    write(folder, RIGHT)
    write(folder, STUB, name="06_gone.ipynb", check="pass")
    for name, content in {
        "07_cut.ipynb": '{"cells": [',
        "08_empty.ipynb": "",
        "09_list.ipynb": "[1]",
        "10_number.ipynb": '{"cells": 3}',
        "11_cell.ipynb": '{"cells": [{"cell_type": "code"}]}',
        "12_bytes.ipynb": b"\xff\xfe",
    }.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (folder / "13_folder.ipynb").mkdir()
    (folder / "05_toy-Copy1.ipynb").write_text("another 05")


@pytest.mark.usefixtures("at_once")
def test_a_broken_notebook_has_its_line_and_the_others_go_on(tmp_path, capsys):
    spoiled(tmp_path)
    lines = said(["--notebooks", tmp_path], capsys)
    shown = {line[:2]: line for line in lines if re.match(r"\d\d  ", line)}
    assert shown["05"] == "05  T✓   20  A toy  Does it double?"
    assert shown["06"] == "06  T?   20  A toy  Does it double?"
    assert "    Your turn: no cell after its heading calls `attempt` on an answer" in lines
    assert shown["08"].startswith("08  08_empty.ipynb is no notebook: Expecting value")
    for number in ("09", "10", "11"):
        assert shown[number].endswith("is no notebook: no cells")
    assert "12_bytes.ipynb is no notebook: " in shown["12"]
    assert "13_folder.ipynb cannot be read: " in shown["13"]
    assert "1 of 2 passed, 1 not judged; 20 min done, 20 min left" in lines
    assert any(line.startswith("For the course's form of a chapter: ") for line in lines)


def test_tags_are_not_needed_and_headings_may_be_marked(tmp_path):
    chapter = write(tmp_path, RIGHT)
    path = chapter.path
    path.write_text(path.read_text(encoding="utf-8").replace("5 min", "5 min, done!"), "utf-8")
    assert verdict(read(path)) == Verdict(PASSED)


def test_what_looks_like_a_heading_in_a_solution_is_none(tmp_path):
    chapter = write(tmp_path, RIGHT)
    notebook = json.loads(chapter.path.read_text(encoding="utf-8"))
    notebook["cells"].append(text("```python\n### Exercise 9 · a comment · 5 min\n```"))
    chapter.path.write_text(json.dumps(notebook), encoding="utf-8")
    assert len(read(chapter.path).exercises) == 1


def test_of_several_checks_of_one_answer_the_last_one_counts(tmp_path):
    wrong, demonstration = RIGHT.replace("2", "3"), "attempt(check_twice, lambda x: 2 * x)"
    assert verdict(write(tmp_path, wrong, after=[RIGHT, CHECK])) == Verdict(PASSED)
    found = verdict(write(tmp_path, wrong, after=[RIGHT, demonstration]))
    assert found.state == REFUSED


def test_chapters_that_the_copy_lacks_are_named(tmp_path, monkeypatch, capsys):
    project, mine = tmp_path / "project", tmp_path / "mine"
    monkeypatch.setattr(command, "PROJECT", project)
    project.mkdir()
    write(project / "notebooks", STUB, after=[])
    write(project / "notebooks", STUB, name="06_new.ipynb")
    write(mine, STUB)
    lines = said(["--notebooks", mine], capsys)
    copy = f"`nanogpt course --copy {mine}`"
    assert lines[-1] == f"New in the course, not in your copy: 06 · A toy; {copy} adds it."
    bare = {"cells": [text(OPENING), code(SETTINGS)]}
    (mine / "05_toy.ipynb").write_text(json.dumps(bare), encoding="utf-8")
    assert f"In the course, not in your chapter 05: {TURN}." in said(["--notebooks", mine], capsys)


@pytest.mark.usefixtures("at_once")
def test_what_is_next(tmp_path, capsys):
    """A chapter to read, a turn, an answer that is wrong; then what is left."""
    opening = {"cells": [text(OPENING.replace("05", "04")), code("my_guess = None  # such as 1")]}
    (tmp_path / "04_read.ipynb").write_text(json.dumps(opening), encoding="utf-8")
    where = f"`nanogpt course 05 --notebooks {tmp_path}`"
    for answer, total, next_ in (
        (STUB, "0 of 1 passed; 0 min done, 40 min left", "Next: chapter 04 · A toy, 20 min."),
        (
            RIGHT.replace("2", "3"),
            "0 of 1 passed, 1 refused; 20 min done, 20 min left",
            f"Next: {TURN}, 5 min, in chapter 05 · A toy; {where} says why it has not passed.",
        ),
        (
            RIGHT,
            "1 of 1 passed; 40 min done, 0 min left",
            "Every answer passes; predictions are left in 04.",
        ),
    ):
        write(tmp_path, answer)
        lines = said(["--notebooks", tmp_path], capsys)
        assert lines[lines.index("") + 1 :][:2] == [total, next_]
    opening["cells"][1] = code("my_guess = 0.5")
    (tmp_path / "04_read.ipynb").write_text(json.dumps(opening), encoding="utf-8")
    assert "Every answer passes." in said(["--notebooks", tmp_path], capsys)
    write(tmp_path, STUB)
    lines = said(["--notebooks", tmp_path], capsys)
    assert f"Next: {TURN}, 5 min, in chapter 05 · A toy, 20 min." in lines


@pytest.mark.usefixtures("at_once")
def test_a_refused_answer_comes_first_and_then_what_is_open_from_here_on(tmp_path, capsys):
    """Whoever skipped a chapter is not sent back to it before the rest is done."""
    wrong, path = RIGHT.replace("2", "3"), tmp_path / "05_toy.ipynb"

    def next_of(*answers):
        for number, answer in reversed([*enumerate(answers, start=5)]):
            write(tmp_path, answer)
            chapter = path.read_text(encoding="utf-8").replace("05 ·", f"{number:02} ·")
            (tmp_path / f"{number:02}_toy.ipynb").write_text(chapter, encoding="utf-8")
        return next(x for x in said(["--notebooks", tmp_path], capsys) if x.startswith("Next"))

    assert ", in chapter 06 " in next_of(STUB, wrong, STUB)
    assert ", in chapter 07 " in next_of(STUB, RIGHT, STUB)
    assert ", in chapter 05 " in next_of(STUB, RIGHT, RIGHT)


@pytest.mark.usefixtures("at_once")
def test_one_chapter_in_detail(tmp_path, capsys):
    predictions = ["my_guess = None  # such as 1", "my_guess = 3  # such as 5\nsteps = 1"]
    write(tmp_path, RIGHT.replace("2", "3"), after=predictions)
    assert said(["5", "--notebooks", tmp_path], capsys) == [
        "05 · A toy, 20 min",
        "Does it double?",
        "Needs 04 · Verification; nothing else.",
        "",
        "✗ refused        Your turn · Twice · 5 min",
        "    twice 2 is 4, not 6",
        "predictions: 1 of 2 filled in",
    ]


WIDTHS = {
    100: "05  T·   20  A toy  Does it double?",
    34: "05  T·   20  A toy",
    14: "05  T·   20…",
    1: "05  T·  …",
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("columns, shown", WIDTHS.items(), ids=map(str, WIDTHS))
def test_a_line_fits_the_terminal(columns, shown, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    write(tmp_path, STUB)
    assert shown in said(["--notebooks", tmp_path], capsys)


def test_colours_are_for_terminals_and_come_with_their_marks(monkeypatch):
    assert command.painted("T✓ 1✗ 2·") == "T✓ 1✗ 2·"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert command.painted("T✓ 1✗ 2·") == "T\x1b[32m✓\x1b[0m 1\x1b[31m✗\x1b[0m 2·"
    monkeypatch.setenv("NO_COLOR", "1")
    assert command.painted("T✓ 1✗ 2·") == "T✓ 1✗ 2·"


def test_an_output_without_these_marks_gets_plain_ones(tmp_path):
    write(tmp_path, RIGHT)
    for arguments, line in ([], b"05  T+   20  A toy"), (["05"], b"05 ? A toy, 20 min"):
        command = [sys.executable, "-m", "nanogpt", "course", "--notebooks", str(tmp_path)]
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run([*command, *arguments], capture_output=True, env=environment)
        assert done.returncode == 0 and line in done.stdout, done.stderr


# ---- where they are


def test_the_readers_copy_is_looked_for_before_the_course(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "PROJECT", tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    none = "error: no chapters here: run it in the cloned project, or say where your notebooks are"
    assert main(["course"]) == 2 and capsys.readouterr().err.startswith(none)
    (tmp_path / "project").mkdir()
    for name in ("project/notebooks", "project/my_notebooks", ".", "notebooks", "my_notebooks"):
        write(tmp_path / name, STUB)
        where = tmp_path / name if name.startswith("project") else name
        assert said([], capsys)[0].startswith(f"{where}: your turn (T) and ")


WRONG = {
    "no such folder": (["--notebooks", "none"], "no chapters in none: their files are "),
    "no such chapter": (["06"], "no chapter 06 in .; it has 05"),
    "no number": (["my_notebooks"], "no chapter my_notebooks in .; it has 05"),
    "no time": (["--seconds", "0"], "--seconds 0: give an answer some time"),
    "no end of time": (["--seconds", "inf"], "--seconds inf: give an answer some time"),
    "nothing to copy": (["--copy", "mine"], "no chapters to copy: this package does not lie in"),
}


@pytest.mark.parametrize("arguments, line", WRONG.values(), ids=WRONG)
def test_what_is_not_there_is_one_line_and_2(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "PROJECT", tmp_path / "project")
    write(tmp_path, STUB)
    monkeypatch.chdir(tmp_path)
    assert main(["course", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {line}") and err.count("\n") == 1


def test_a_copy_takes_what_is_missing_and_overwrites_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "PROJECT", tmp_path)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "notebooks", STUB)
    stored = tmp_path / "notebooks" / "05_toy.ipynb"
    text = stored.read_text(encoding="utf-8")
    text = text.replace('"outputs": []', '"execution_count": 7, "outputs": ["shown"]')
    stored.write_text(text, encoding="utf-8")
    (tmp_path / "notebooks" / "pictures").mkdir()
    assert said(["--copy", "my/copy"], capsys) == ["my/copy: 1 chapter copied, 0 left as they were"]
    mine = tmp_path / "my" / "copy" / "05_toy.ipynb"
    cells = [json.loads(p.read_text(encoding="utf-8"))["cells"] for p in (stored, mine)]
    assert all(a["source"] == b["source"] for a, b in zip(*cells, strict=True))
    assert "shown" in str(cells[0]) and "shown" not in str(cells[1]), "a copy spoils nothing"
    assert "'execution_count': 7" not in str(cells[1])
    mine.write_text("my own", encoding="utf-8")
    write(tmp_path / "notebooks", STUB, name="06_new.ipynb")
    said(["--copy", "my/copy"], capsys)
    assert mine.read_text(encoding="utf-8") == "my own"
    assert sorted(p.name for p in mine.parent.iterdir()) == ["05_toy.ipynb", "06_new.ipynb"]
    for folder in ("notebooks", "notebooks/inside", "my/../notebooks"):
        assert main(["course", "--copy", folder]) == 2
    assert "is the course itself" in capsys.readouterr().err


def test_links_of_a_chapter_lead_somewhere_from_a_copy_beside_the_course():
    """To the project, or to another chapter: nothing that lies in `notebooks` alone."""
    for path in NOTEBOOKS:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", series.prose(path)):
            beside = (ROOT / command.COPY / link).resolve()
            assert link.removesuffix(".ipynb") in NAMES or beside.exists(), f"{path.name}: {link}"


def test_git_leaves_the_readers_copy_alone_and_a_page_says_how_to_make_one():
    assert f"{command.COPY}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    lines = (ROOT / "book" / "run.md").read_text(encoding="utf-8").splitlines()
    assert f"nanogpt course --copy {command.COPY}" in lines


def test_of_one_chapter_what_was_refused_comes_before_what_is_open():
    """A chapter's exercises are named in their order, but a wrong answer first."""
    first, second = Exercise("Your turn", "one", 5, 1, 2), Exercise("Exercise 1", "two", 5, 3, 4)
    chapter = Chapter(Path("05_toy.ipynb"), "A toy", exercises=(first, second))
    states = Verdict(OPEN), Verdict(REFUSED, "no")
    assert command.step([Standing(chapter, states)]).startswith("Next: Exercise 1 · two")
    assert command.step([Standing(chapter, states[::-1])]).startswith("Next: Your turn · one")
