"""How far a reader is: what stands in their notebook, read without running anything.

A notebook is JSON, and its syntax shows whether a stub is still untouched. `judged` says what an
answer is worth.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanogpt.course.needed import parsed, statements, writers

PASSED, REFUSED, OPEN, UNKNOWN = "passed", "refused", "not attempted", "not judged"
CHAPTERS = "[0-9][0-9]_*.ipynb"
OPENING = {  # what the first cell says, and where
    "title": r"(?m)^# \d\d · (.+)$",
    "question": r"(?m)^\*\*Question\*\* (.+)$",
    "needs": r"(?m)^\*\*Needs\*\* (.+)$",
    "minutes": r"(?m)^\*\*Minutes\*\* (\d+)",
}
HEADING = r"(?m)^### (Your turn|Exercise \d+) · (.+) · (\d+) min\b"
CODE = r"(?ms)^```.*?^```"  # in a cell of text
LINK = r"\[([^\]]+)\]\([^)]+\)"


@dataclass(frozen=True)
class Verdict:
    """What became of an answer: one of the four states, and perhaps why, in one line."""

    state: str
    said: str = ""


@dataclass(frozen=True)
class Exercise:
    """*Your turn* or an exercise: its heading and cell, its check's cell, what the check tries.

    check is None where no cell calls `attempt`; names are those of the functions or the class.
    """

    label: str
    title: str
    minutes: int
    first: int
    check: int | None = None
    names: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """As the chapter has it."""
        return f"{self.label} · {self.title}"


@dataclass(frozen=True)
class Chapter:
    """A chapter as it stands in the reader's notebook.

    code: the cells of code, by their place; guesses: of each prediction whether it is filled in;
    problem: why the notebook cannot be read, or nothing.
    """

    path: Path
    title: str
    question: str = ""
    needs: str = ""
    minutes: int = 0
    code: dict[int, str] | None = None
    exercises: tuple[Exercise, ...] = ()
    guesses: tuple[bool, ...] = ()
    problem: str = ""

    @property
    def number(self) -> str:
        """Its two digits."""
        return self.path.name[:2]


@dataclass(frozen=True)
class Standing:
    """A chapter, and a verdict on each of its exercises."""

    chapter: Chapter
    verdicts: tuple[Verdict, ...]

    @property
    def waiting(self) -> list[tuple[Exercise, Verdict]]:
        """The exercises that have not passed."""
        pairs = zip(self.chapter.exercises, self.verdicts, strict=True)
        return [(exercise, verdict) for exercise, verdict in pairs if verdict.state != PASSED]

    @property
    def begun(self) -> bool:
        """Whether the reader has left anything in it."""
        return any(self.chapter.guesses) or any(v.state != OPEN for v in self.verdicts)


def reached(found: Sequence[Standing]) -> int:
    """The place of the last chapter that the reader has begun, -1 before the first."""
    return max((i for i, standing in enumerate(found) if standing.begun), default=-1)


def done(found: Sequence[Standing]) -> int:
    """Minutes: of a chapter without anything open all of them, of another those of its exercises.

    A chapter that has no exercises is done when it, or a later one, has been begun.
    """
    minutes = 0
    for i, standing in enumerate(found):
        open_ones = sum(exercise.minutes for exercise, _ in standing.waiting)
        whole = sum(exercise.minutes for exercise in standing.chapter.exercises)
        finished = not standing.waiting and i <= reached(found)
        minutes += standing.chapter.minutes if finished else whole - open_ones
    return minutes


def paths(folder: Path) -> list[Path]:
    """The chapters' notebooks of a folder, in order; of several with one number, the first.

    JupyterLab's duplicates, `05_name-Copy1.ipynb`, come after what they were made from.
    """
    found = {}
    for path in sorted(folder.glob(CHAPTERS), key=lambda path: (len(path.name), path.name)):
        found.setdefault(path.name[:2], path)
    return sorted(found.values())


def read(path: Path) -> Chapter:
    """The chapter in a notebook; if it cannot be read, its `problem` says why."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except OSError as error:
        return Chapter(path, path.stem, problem=f"{path.name} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        why = "no cells" if isinstance(error, (KeyError, TypeError)) else error
        return Chapter(path, path.stem, problem=f"{path.name} is no notebook: {why}")
    return Chapter(
        path,
        **{"title": path.stem} | opening(sources),
        code={i: source for i, (kind, source) in enumerate(sources) if kind == "code"},
        exercises=tuple(exercises(sources)),
        guesses=tuple(guesses(sources)),
    )


def opening(sources: Sequence[tuple[str, str]]) -> dict:
    """Title, question, needs and minutes, those that the first cell has."""
    text = sources[0][1] if sources else ""
    parts = {part: re.search(where, text) for part, where in OPENING.items()}
    plain = {part: re.sub(LINK, r"\1", said[1]) for part, said in parts.items() if said}
    return plain | {"minutes": int(plain.get("minutes", 0))}


def exercises(sources: Sequence[tuple[str, str]]) -> list[Exercise]:
    """A chapter's exercises. Of several checks of the same names, the last one is meant."""
    found = []
    for i, (kind, source) in enumerate(sources):
        if kind == "markdown":
            for label, title, minutes in re.findall(HEADING, re.sub(CODE, "", source)):
                found.append(Exercise(label, title, int(minutes), i))
        elif kind == "code" and found:
            names = attempted(source)
            if names and found[-1].names in ((), names):
                found[-1] = replace(found[-1], check=i, names=names)
    return found


def top(source: str, word: str) -> list[ast.stmt]:
    """The statements of a cell of code, if it has that word and is Python."""
    try:
        return parsed(source) if word in source else []
    except (SyntaxError, ValueError):
        return []


def attempted(source: str) -> tuple[str, ...]:
    """The names that a cell hands to `attempt` after the check, none in other cells."""
    for node in top(source, "attempt"):
        match node:
            case ast.Expr(ast.Call(ast.Name("attempt"), [_, *mine])):
                return tuple(part.id for part in mine if isinstance(part, ast.Name))
    return ()


def guesses(sources: Sequence[tuple[str, str]]) -> Iterator[bool]:
    """Of each prediction, whether None has given way to something."""
    for kind, source in sources:
        for node in top(source, "my_guess") if kind == "code" else ():
            match node:
                case ast.Assign([ast.Name("my_guess")], value):
                    yield not (isinstance(value, ast.Constant) and value.value is None)


def at_sight(chapter: Chapter, exercise: Exercise) -> Verdict | None:
    """The verdict that needs no judge: nothing is there to be judged; or None."""
    if exercise.check is None:
        return Verdict(UNKNOWN, "no cell after its heading calls `attempt` on an answer")
    cells = {
        i: source
        for i, source in chapter.code.items()
        if i < exercise.check and any(name in source for name in exercise.names)
    }
    for i, source in cells.items():
        if i > exercise.first and (error := no_python(source)):
            return Verdict(REFUSED, error)
    notebook = statements(cells)
    made = {name: [notebook[i].node for i in writers(notebook, name)] for name in exercise.names}
    if all(untouched(nodes) for nodes in made.values()):
        missing = [name for name, nodes in made.items() if not nodes]
        return Verdict(OPEN, f"no cell before the check defines {missing[0]}" if missing else "")
    return None


def no_python(source: str) -> str:
    """Why a cell is no Python, or nothing."""
    try:
        parsed(source)
    except SyntaxError as error:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno} of its cell)"
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def untouched(nodes: Sequence[ast.stmt]) -> bool:
    """Whether all that defines a name, newest first, is stubs; what is not there is untouched."""
    methods = [functions(node) for node in nodes]
    if None in methods:
        return False
    stubs = [is_stub(function) for found in methods for function in found]
    return all(stubs) and bool(stubs or not nodes)


def functions(node: ast.stmt) -> list[ast.FunctionDef] | None:
    """A function, or a class's methods, `__init__` and its like aside; None of anything else."""
    inside = node.body if isinstance(node, ast.ClassDef) else [node]
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return None
    found = [part for part in inside if isinstance(part, ast.FunctionDef)]
    return [function for function in found if not function.name.startswith("__")]


def is_stub(function: ast.FunctionDef) -> bool:
    """Whether the body, a docstring aside, is `raise NotImplementedError`."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    match body:
        case [
            ast.Raise(
                ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"), [])
            )
        ]:
            return True
    return False
