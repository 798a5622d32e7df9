"""How far you are: every chapter, and what the judges say of your answers.

It reads your notebooks and tries each answer in a process of its own. It changes nothing. Without
--notebooks, it looks in ./my_notebooks, ./notebooks and ., then in the cloned project.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanogpt.course.judged import OLDER, Answer, judged
from nanogpt.course.progress import (
    OPEN,
    PASSED,
    REFUSED,
    UNKNOWN,
    Chapter,
    Exercise,
    Standing,
    at_sight,
    done,
    paths,
    reached,
    read,
)

PROJECT = Path(__file__).resolve().parents[2]
OWN, COPY = "notebooks", "my_notebooks"
MARKS = {PASSED: "✓", REFUSED: "✗", OPEN: "·", UNKNOWN: "?"}
PLAIN = {PASSED: "+", REFUSED: "x", OPEN: ".", UNKNOWN: "?"}  # where those cannot be written
COLOURS = {PASSED: "32", REFUSED: "31"}
WIDE = 110  # columns, where nobody says how many there are
DAY = 24 * 60 * 60
LEAST = 20  # columns that a question must have to be shown


def folder_of(given: Path | None) -> Path:
    """The folder with the reader's chapters. Raises ValueError if there is none."""
    if given is not None:
        if not paths(given):
            raise ValueError(f"no chapters in {given}: their files are 00_start_here.ipynb, …")
        return given
    for place in (Path(COPY), Path(OWN), Path("."), PROJECT / COPY, PROJECT / OWN):
        if paths(place):
            return place
    raise ValueError(
        "no chapters here: run it in the cloned project, or say where your notebooks are, "
        f"as in `nanogpt course --notebooks {COPY}`"
    )


def copy(folder: Path) -> None:
    """Copy the course's chapters, without what their cells show, into a folder: those not there.

    Raises ValueError if there is nothing to copy, or the folder is the course's own.
    """
    own = PROJECT / OWN
    if not paths(own):
        raise ValueError("no chapters to copy: this package does not lie in the cloned project")
    if own in (folder.resolve(), *folder.resolve().parents):
        raise ValueError(f"{folder} is the course itself; copy it beside, as {COPY}")
    folder.mkdir(parents=True, exist_ok=True)
    new = [path for path in paths(own) if not (folder / path.name).exists()]
    for path in new:
        part = folder / f"{path.name}.part"  # if the disk is full, no half of a chapter is left
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}
        part.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(folder / path.name)
    kept = len(paths(own)) - len(new)
    print(f"{folder}: {len(new)} chapter{'s' * (len(new) != 1)} copied, {kept} left as they were")


def standings(chapters: Sequence[Chapter], seconds: float) -> Iterator[Standing]:
    """Each chapter with its verdicts, in order, as soon as they are there."""
    answers = [(chapter, exercise) for chapter in chapters for exercise in chapter.exercises]
    verdicts = {key(answer): at_sight(*answer) for answer in answers}
    tried = [answer for answer in answers if verdicts[key(answer)] is None]
    if tried:
        print(f"trying {len(tried)} answer{'s' * (len(tried) > 1)} …", file=sys.stderr)
    with contextlib.closing(judged(tried, seconds)) as coming:
        for chapter in chapters:
            own = [key((chapter, exercise)) for exercise in chapter.exercises]
            while any(verdicts[one] is None for one in own):
                answer, verdict = next(coming)
                verdicts[key(answer)] = verdict
            yield Standing(chapter, tuple(verdicts[one] for one in own))


def key(answer: Answer) -> tuple[Path, Exercise]:
    """What tells an answer from all others."""
    chapter, exercise = answer
    return chapter.path, exercise


def signs() -> dict[str, str]:
    """Each state's mark, in characters that the output can have."""
    try:
        "".join(MARKS.values()).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return PLAIN
    return MARKS


def painted(marks: str) -> str:
    """Marks in their colours, on a terminal."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        for state, colour in COLOURS.items():
            marks = marks.replace(signs()[state], f"\x1b[{colour}m{signs()[state]}\x1b[0m")
    return marks


def cut(text: str, columns: int) -> str:
    """The text, or its beginning where there is no room for it."""
    return text if len(text) <= columns else text[: max(0, columns - 1)].rstrip() + "…"


def line(standing: Standing, marks: int, titles: int, columns: int) -> str:
    """A chapter's line: marks and title, so wide, minutes, and the question where it has room."""
    chapter, sign = standing.chapter, signs()
    if chapter.problem:
        return f"{chapter.number}  {chapter.problem}"
    short = [exercise.label.split()[-1].replace("turn", "T") for exercise in chapter.exercises]
    states = [sign[verdict.state] for verdict in standing.verdicts]
    shown = " ".join(map("".join, zip(short, states, strict=True)))
    beside = f"{chapter.number}  {shown:<{marks}}  "
    text = f"{chapter.minutes:>3}  {chapter.title:<{titles}}  "
    room = columns - len(beside + text)
    text += cut(chapter.question, room) if room >= LEAST else ""
    return painted(beside) + cut(text.rstrip(), columns - len(beside))


def notes(standing: Standing) -> Iterator[str]:
    """A line for each reason why answers could not be judged."""
    found = {}
    for exercise, verdict in standing.waiting:
        if verdict.state == UNKNOWN:
            found.setdefault(verdict.said, []).append(exercise.label)
    for said, labels in found.items():
        yield f"    {', '.join(labels)}: {said}"


def hours(minutes: int) -> str:
    """As in "2 h 5 min"."""
    whole, rest = divmod(minutes, 60)
    return " ".join([f"{whole} h"] * (whole > 0) + [f"{rest} min"] * (rest > 0 or not whole))


def total(found: Sequence[Standing]) -> str:
    """How many answers pass, and how many minutes of the course are done."""
    states = [verdict.state for standing in found for verdict in standing.verdicts]
    counts = [f"{n} {state}" for state in (REFUSED, UNKNOWN) if (n := states.count(state))]
    counts = ", ".join([f"{states.count(PASSED)} of {len(states)} passed", *counts])
    past, whole = done(found), sum(standing.chapter.minutes for standing in found)
    return f"{counts}; {hours(past)} done, {hours(whole - past)} left"


def step(found: Sequence[Standing], where: str = "") -> str:
    """What to do next, in a sentence; where: the option that says where the notebooks are.

    What was refused; or else what is open where the reader is, or further on; or else before that.
    """
    here = max(reached(found), 0)
    refused = [s for s in found if any(v.state == REFUSED for _, v in s.waiting)]
    for standing in [*refused, *found[here:], *found[:here]]:
        chapter, ahead = standing.chapter, not any(s.begun for s in found[found.index(standing) :])
        name = f"chapter {chapter.number} · {chapter.title}"
        name += f", {hours(chapter.minutes)}" * ahead
        for exercise, verdict in sorted(standing.waiting, key=lambda x: x[1].state != REFUSED):
            task = f"Next: {exercise.heading}, {exercise.minutes} min, in {name}"
            why = f"; `nanogpt course {chapter.number}{where}` says why it has not passed"
            return f"{task}{why * (verdict.state != OPEN)}."
        if ahead and not chapter.problem:
            return f"Next: {name}."
    open_ones = [s.chapter.number for s in found if not all(s.chapter.guesses)]
    left = f"; predictions are left in {', '.join(open_ones)}" if open_ones else ""
    return f"Every answer passes{left}."


def bring(folder: Path) -> str:
    """The command that copies what the folder lacks."""
    return f"`nanogpt course --copy {folder}`"


def renewal(folder: Path, found: Sequence[Standing]) -> Iterator[str]:
    """A line on what to do where a notebook is broken, or too old for the package."""
    older = any(v.said.startswith(OLDER) for standing in found for v in standing.verdicts)
    if not older and not any(standing.chapter.problem for standing in found):
        return
    if folder.resolve() == PROJECT / OWN:
        yield "`git checkout -- notebooks` brings the chapters back; what you wrote there is lost."
    else:
        yield f"For the course's form of a chapter: rename yours, and {bring(folder)} copies it."


def lacking(folder: Path, found: Sequence[Standing]) -> Iterator[str]:
    """Lines on what the course has and the reader's copy has not."""
    mine = {standing.chapter.number: standing.chapter for standing in found}
    course = {path.name[:2]: read(path) for path in paths(PROJECT / OWN)}
    new = [f"{n} · {chapter.title}" for n, chapter in course.items() if n not in mine]
    if new:
        adds = f"{bring(folder)} adds {'them' if new[1:] else 'it'}"
        yield f"New in the course, not in your copy: {', '.join(new)}; {adds}."
    for n in sorted(mine.keys() & course.keys()):
        have = {exercise.label for exercise in mine[n].exercises}
        gone = [one.heading for one in course[n].exercises if one.label not in have]
        if gone and not mine[n].problem:
            yield f"In the course, not in your chapter {n}: {', '.join(gone)}."


def detail(standing: Standing) -> Iterator[str]:
    """The lines on one chapter: its question, and each exercise with what its judge says."""
    chapter = standing.chapter
    if chapter.problem:
        yield chapter.problem
        return
    yield f"{chapter.number} · {chapter.title}, {hours(chapter.minutes)}"
    if chapter.question:
        yield chapter.question
    if chapter.needs:
        yield f"Needs {chapter.needs}"
    yield ""
    for exercise, verdict in zip(chapter.exercises, standing.verdicts, strict=True):
        mark = painted(signs()[verdict.state])
        yield f"{mark} {verdict.state:<13}  {exercise.heading} · {exercise.minutes} min"
        if verdict.said:
            yield f"    {verdict.said}"
    if chapter.guesses:
        yield f"predictions: {sum(chapter.guesses)} of {len(chapter.guesses)} filled in"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Which chapters, where, and how long an answer may take."""
    parser = argparse.ArgumentParser(prog="nanogpt course", description=__doc__)
    add, either = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    either("chapter", nargs="?", help="one of them, as in 05: what its judges say")
    how = "copy the chapters, without outputs, into this folder, those not in it, and do no more"
    either("--copy", type=Path, metavar="FOLDER", help=how)
    add("--notebooks", type=Path, metavar="FOLDER", help="where your notebooks are")
    how = "what an answer may compute before it is given up, default: %(default)g"
    add("--seconds", type=float, default=60, help=how)
    return parser.parse_args(arguments)


def show(folder: Path, chapters: Sequence[Chapter], seconds: float, where: str) -> None:
    """Print a line for each chapter, and what to make of them all; where: as `step` has it."""
    print(f"{folder}: your turn (T) and the exercises, minutes, chapter, question")
    print(painted("  ".join(f"{sign} {state}" for state, sign in signs().items())))
    columns = shutil.get_terminal_size((WIDE, 0)).columns
    marks = max(len(" ".join(["T·"] * len(chapter.exercises))) for chapter in chapters)
    titles = max((len(chapter.title) for chapter in chapters if not chapter.problem), default=0)
    found = []
    for standing in standings(chapters, seconds):
        found.append(standing)
        print(line(standing, marks, titles, columns), *notes(standing), sep="\n", flush=True)
    news = () if folder.resolve() == PROJECT / OWN else lacking(folder, found)
    print("", total(found), step(found, where), *renewal(folder, found), *news, sep="\n")


def main(arguments: list[str] | None = None) -> None:
    """Print how far the reader is. Raises ValueError for what is not there, OSError in a copy."""
    given = parse_arguments(arguments)
    if not 0 < given.seconds <= DAY:
        raise ValueError(f"--seconds {given.seconds:g}: give an answer some time, a day at most")
    if given.copy:
        return copy(given.copy)
    folder = folder_of(given.notebooks)
    files = {path.name[:2]: path for path in paths(folder)}
    if given.chapter is None:
        where = f" --notebooks {folder}" if given.notebooks else ""
        return show(folder, [read(path) for path in files.values()], given.seconds, where)
    chapter = given.chapter.zfill(2)
    if chapter not in files:
        raise ValueError(f"no chapter {chapter} in {folder}; it has {', '.join(files)}")
    [standing] = standings([read(files[chapter])], given.seconds)
    print(*detail(standing), *renewal(folder, [standing]), sep="\n")
