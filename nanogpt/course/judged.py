"""Answers, each tried in a process of its own: an endless loop or a crash harms nothing.

Such a process runs what the check of an exercise needs of its notebook, as Jupyter would from top
to bottom, and reports a verdict. It writes no file.

Its time is what it computes, not what a clock on the wall says: on a busy machine, a right answer
is slow, too, and nobody may call it an endless loop.
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
import threading
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
LOOKS = 10  # how often a process looks, in its time, whether it still computes
LEAST, LOOKING = 1e-3, 5e-3  # of its time, what it must compute meanwhile; seconds, looks aside
PATIENCE = 10  # times its time, until nobody waits for it any more, whatever it does
GRACE = 60  # seconds past that after which a process ends itself, as its parent has not
LONGEST = 500  # characters of a sentence
START = "import sys; sys.path[:] = sys.argv[4:]; from nanogpt.course import judged; judged.report()"
OLDER = "this copy is older than the package"
SAYS = {"passed": Verdict(PASSED), "not attempted yet": Verdict(OPEN, "not finished yet")}


def endless(seconds: float) -> Verdict:
    """On an answer that has computed all its time."""
    longer = f"`--seconds {5 * seconds:g}` waits longer"
    return Verdict(UNKNOWN, f"no end after {seconds:g} s of computing: an endless loop? {longer}")


def stuck(seconds: float) -> Verdict:
    """On an answer that came to no end in so many seconds, and hardly computed."""
    longer = f"`--seconds {5 * seconds:g}` waits longer"
    why = "it waits for something, or the machine is busy"
    return Verdict(UNKNOWN, f"no end in {seconds:g} s, and it hardly computed: {why}; {longer}")


def judged(answers: Sequence[Answer], seconds: float) -> Iterator[tuple[Answer, Verdict]]:
    """Each answer with its verdict, as they come; none computes more than so many seconds.

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
        self.until = time.monotonic() + PATIENCE * seconds

    @property
    def done(self) -> bool:
        """Whether there is a verdict."""
        return self.process.poll() is not None or time.monotonic() > self.until

    def verdict(self) -> Verdict:
        """What the process reported; or that it came to no end, or to an end of its own."""
        late = self.process.poll() is None
        reported = self.stop()
        if late:
            return stuck(PATIENCE * self.seconds)
        try:
            return Verdict(**json.loads(reported))
        except ValueError:
            code = self.process.returncode
            if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
                return endless(self.seconds)
            return Verdict(UNKNOWN, f"it ended Python (exit code {code}) before its check was over")

    def stop(self) -> bytes:
        """End the process and what it has started; returns what it reported."""
        if hasattr(os, "killpg"):  # it may have ended, and what it started goes on
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of zombies
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        return self.process.communicate()[0]


def report() -> None:
    """Try the answer that the command line names, and write its verdict, in JSON.

    All else that is printed goes nowhere.
    """
    path, check, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    faulthandler.dump_traceback_later(PATIENCE * seconds + GRACE, exit=True)
    over = threading.Event()
    with open(os.dup(1), "w", encoding="utf-8") as out, open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        threading.Thread(target=watch, args=(seconds, out, over), daemon=True).start()
        if hasattr(signal, "setitimer"):  # ends what never lets another thread run as well
            signal.setitimer(signal.ITIMER_PROF, seconds)
        chapter = read(Path(path))
        [exercise] = [own for own in chapter.exercises if str(own.check) == check]
        verdict = tried(chapter, exercise)
        over.set()
        json.dump(asdict(verdict), out)


def watch(seconds: float, out: io.TextIOBase, over: threading.Event) -> None:
    """End this process when it has computed for so many seconds, or stood still for as many.

    Still it stands if it has hardly computed at LOOKS looks in turn. Looks are counted, and not
    the time between them: where others have the processor, this thread gets to look as late as the
    answer gets to compute.
    """
    used, looks = time.process_time(), 0
    while not over.wait(seconds / LOOKS):
        looks, now = looks + 1, time.process_time()
        if now - used > LEAST * seconds + LOOKING:
            used, looks = now, 0
        if now > seconds or looks == LOOKS:
            json.dump(asdict(endless(seconds) if now > seconds else stuck(seconds)), out)
            out.flush()
            os._exit(0)


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
