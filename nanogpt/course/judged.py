"""Answers, each tried in a process of its own: an endless loop or a crash harms nothing.

Such a process runs what the check of an exercise needs of its notebook, as Jupyter would from top
to bottom, and reports a verdict. It writes no file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from nanogpt.course.needed import needed, statements
from nanogpt.course.progress import OPEN, PASSED, REFUSED, UNKNOWN, Chapter, Exercise, Verdict, read

Answer = tuple[Chapter, Exercise]
AT_ONCE = min(4, os.cpu_count() or 1)
GRACE = 10  # seconds past its time after which a process ends itself, as its parent has not
LONGEST = 500  # characters of a sentence
START = "import sys; sys.path[:] = sys.argv[4:]; from nanogpt.course import judged; judged.report()"
OLDER = "this copy is older than the package"
SAYS = {"passed": Verdict(PASSED), "not attempted yet": Verdict(OPEN, "not finished yet")}


def judged(answers: Sequence[Answer], seconds: float) -> Iterator[tuple[Answer, Verdict]]:
    """Each answer with its verdict, as they come; none takes more than so many seconds.

    Several are tried at once. When nobody asks any more, what still runs is ended.
    """
    waiting, running = list(answers), []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(Trial(waiting.pop(0), seconds))
            for trial in [trial for trial in running if trial.done]:
                running.remove(trial)
                yield trial.answer, trial.verdict()
            time.sleep(0.02)
    finally:
        for trial in running:
            trial.stop()


class Trial:
    """An answer and the process that tries it, until it is done or its time is over."""

    def __init__(self, answer: Answer, seconds: float):
        self.answer, self.seconds = answer, seconds
        chapter, exercise = answer
        path = chapter.path.resolve()
        given = [path, exercise.check, seconds, path.parent, *map(os.path.abspath, sys.path)]
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", START, *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=path.parent,
            env={"OMP_NUM_THREADS": "1"} | os.environ | {"MPLBACKEND": "Agg"},
            start_new_session=True,  # so that what it starts ends with it
        )
        self.until = time.monotonic() + seconds

    @property
    def done(self) -> bool:
        """Whether there is a verdict."""
        return self.process.poll() is not None or time.monotonic() > self.until

    def verdict(self) -> Verdict:
        """What the process reported; or that it came to no end, or to an end of its own."""
        late = self.process.poll() is None
        reported = self.stop()
        if late:
            longer = f"`--seconds {5 * self.seconds:g}` waits longer"
            return Verdict(UNKNOWN, f"no end within {self.seconds:g} s: an endless loop? {longer}")
        try:
            return Verdict(**json.loads(reported))
        except ValueError:
            code = self.process.returncode
            return Verdict(UNKNOWN, f"it ended Python (exit code {code}) before its check was over")

    def stop(self) -> bytes:
        """End the process and what it has started; returns what it reported."""
        if self.process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        return self.process.communicate()[0]


def report() -> None:
    """Try the answer that the command line names, and write its verdict, in JSON.

    All else that is printed goes nowhere.
    """
    path, check, seconds = sys.argv[1:4]
    faulthandler.dump_traceback_later(float(seconds) + GRACE, exit=True)
    with open(os.dup(1), "w", encoding="utf-8") as out, open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        chapter = read(Path(path))
        [exercise] = [own for own in chapter.exercises if str(own.check) == check]
        json.dump(asdict(tried(chapter, exercise)), out)


class LastLine(io.TextIOBase):
    """Takes all that is printed, and keeps the end of it."""

    text = ""

    def write(self, text: str) -> int:
        """Take it; returns its length."""
        self.text = (self.text + text)[-100:]
        return len(text)

    def line(self) -> str:
        """The last line."""
        return self.text.strip().rpartition("\n")[2]


def tried(chapter: Chapter, exercise: Exercise) -> Verdict:
    """The verdict of an exercise's check, run here, after what it needs."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")  # as in a notebook
    verdict = Verdict(UNKNOWN, "its check says neither yes nor no")
    for statement in needed(statements(chapter.code), exercise.check):
        with contextlib.redirect_stdout(LastLine()) as printed:
            try:
                exec(statement.code, vars(module))
            except BaseException as error:  # SystemExit, too
                return failed(error, statement.cell, chapter, exercise)
        verdict = SAYS.get(printed.line(), verdict)
    return verdict


def failed(error: BaseException, cell: int, chapter: Chapter, exercise: Exercise) -> Verdict:
    """The verdict where running a cell raised an error: whose is it?"""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:5] == "cell "]
    own = any(exercise.first < int(f.filename[5:]) < exercise.check for f in frames)
    if of_package(error) and not own:
        asked = sentence(error).partition(" (")[0]  # without the place where the package lies
        return Verdict(UNKNOWN, f"{OLDER}: {asked}")
    if own:
        where = f" (line {frames[-1].lineno} of its cell)"
        return Verdict(REFUSED, sentence(error, where + below(error, chapter, exercise)))
    if cell == exercise.check:
        return Verdict(REFUSED, sentence(error))
    return Verdict(UNKNOWN, f"a cell that its check needs fails: {sentence(error)}")


def below(error: BaseException, chapter: Chapter, exercise: Exercise) -> str:
    """Of a name that is not defined: whether the chapter defines it further down, and how."""
    later = {i: source for i, source in chapter.code.items() if i > exercise.check}
    bound = {name for statement in statements(later) for name in statement.binds}
    unknown = isinstance(error, NameError) and error.name in bound
    return "; it comes further down" * unknown


def of_package(error: BaseException) -> bool:
    """Whether somebody asked the package for what it does not have."""
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
        return error.obj.__name__.startswith("nanogpt")
    return isinstance(error, ImportError) and (error.name or "").startswith("nanogpt")


def sentence(error: BaseException, where: str = "") -> str:
    """An error in one line: what a check says as it is, anything else with its kind and place."""
    said = " ".join(str(error).split())
    if isinstance(error, AssertionError) and said:
        where = ""
    else:
        said = f"{type(error).__name__}: {said}".removesuffix(": ")
    return said[:LONGEST] + " …" * (len(said) > LONGEST) + where
