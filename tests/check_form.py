"""Prints where a chapter leaves the form of the others: warnings, for people to judge.

None of them is an error: a chapter with a reason to be longer, or to ask one exercise more, is
right. `make check` calls it, and goes on.
"""

import ast
import re
from statistics import mean

from series import NAMES, NOTEBOOKS, cells, code_lines, glossary, prose, read, solutions, tags, turn

START = NOTEBOOKS[0]  # nothing is built there
NO_ENGINE = ("00", "01", "03", "08", "09", "10", "13")  # no engine has a step like theirs


def words(path):
    """How many."""
    return len(prose(path).split())


def size(path):
    """A chapter of twice the length is two chapters, or says something twice."""
    unfolded = [cell for cell in cells(path, "code") if "hide-input" not in tags(cell)]
    longest = max(len(cell.source.splitlines()) for cell in unfolded)
    counted = {
        "words": (words(path), 3000),
        "lines of code": (len(code_lines(path)), 520),
        "cells": (len(read(path).cells), 70),
        "lines in one cell": (longest, 40),
    }
    for what, (number, most) in counted.items():
        if number > most:
            yield f"{number:,} {what}, more than {most:,}"
    for cell in cells(path, "code"):
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno >= 30:
                yield f"{node.name} has more than 30 lines in one cell: @add_to gives it in pieces"


def opening(path):
    """What a reader wants to know first, and links to the chapters around it."""
    said = read(path).cells[0].source
    for label in ("Question", "You will", "Needs", "Minutes", "Builds"):
        if f"**{label}** " not in said:
            yield f"the opening lacks {label}"
    here = NAMES.index(path.stem)
    for name in {*NAMES[max(0, here - 1) : here + 2]} - {path.stem}:
        if f"({name}.ipynb)" not in said:
            yield f"the opening has no link to {name}"


def story(path):
    """Before the imports, which are folded away, and of at least twenty words."""
    shown = read(path).cells
    at = next((i for i, c in enumerate(shown) if "set_num_threads" in c.source), None)
    if at is None:
        yield "no cell sets the number of threads"
        return
    if "hide-input" not in tags(shown[at]) or not shown[at].metadata.jupyter.source_hidden:
        yield "the cell of imports is not folded"
    before = [cell for cell in shown[:at] if cell.cell_type == "markdown"]
    if len(before) < 2 or len(before[1].source.split()) < 20:
        yield "no story comes before the imports"


def your_turn(path):
    """A heading with a time and a hint, a stub that says what it does, its judge; then ours."""
    shown = read(path).cells
    if path == START:
        return
    if not turn(path):
        yield "the reader builds nothing: no *your turn*"
        return
    stub, check = turn(path)
    if "<summary>Hint</summary>" not in shown[stub - 1].source:
        yield "*your turn* has no hint"
    body = ast.parse(shown[stub].source).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    if len(names) != 1 or not names[0].startswith("my_") or not ast.get_docstring(body[-1]):
        yield "the stub of *your turn* is not one `my_…` with a docstring"
    elif f"attempt(chapter.judge, {names[0]})" not in shown[check].source:
        yield f"the check after the stub is not `attempt(chapter.judge, {names[0]})`"
    built = re.findall(r"`(\w+)`", re.search(r"\*\*Builds\*\* (.*)", shown[0].source).group(1))
    ours = rf"(?m)^ *(?:def|class) (?:naive_\w+|{'|'.join(built)})\b"
    after = [cell for cell in shown[check:] if cell.cell_type == "code"]
    if not any(re.search(ours, cell.source) for cell in after):
        yield "nothing of ours is shown after *your turn*"


def exercises(path):
    """Two to four, besides *your turn*."""
    if path != START and not 2 <= len(solutions(path)) <= 4:
        yield f"{len(solutions(path))} exercises, not two to four"


def mechanism(path):
    """At least one picture of what flows where."""
    drawn = r"\b(diagrams|chapter)\.(?!judge)\w+\("
    shown = [o for c in cells(path, "code") if re.search(drawn, c.source) for o in c.outputs]
    if not any("image/png" in output.get("data", {}) for output in shown):
        yield "no picture of a mechanism"


def real_code(path):
    """Engines by name, with links."""
    found = re.findall(r"(?ms)^\*\*In real code\.\*\*(.*?)(?:^#|\Z)", prose(path))
    if path.stem[:2] in NO_ENGINE:
        return
    if len(found) != 1 or found[0].count("](https://") < 2:
        yield "not one **In real code.** with two links"


def ending(path):
    """What a reader takes away."""
    last = cells(path, "markdown")[-1].source
    for part in ("## Recap", "**Three questions, from memory**", "<details>", "**Sources**"):
        if part not in last:
            yield f"the last cell lacks {part}"


LABELS = {"question", "you will", "needs", "minutes", "builds", "back", "next", "sources"}
LABELS |= {"three questions, from memory", "break it.", "in real code."}
LABELS |= {"predict", "build", "look", "check", "break"}


def terms(path):
    """A term is bold where it first appears, and then in the glossary."""
    known = LABELS | {term.lower() for term in glossary()}
    for bold in re.findall(r"\*\*(.+?)\*\*", prose(path)):
        term = bold.lower()
        if not {term, term + "s", term.rstrip("s")} & known:
            yield f"{bold!r} is bold, but not in the glossary"


def series():
    """Of all chapters together, and of the glossary."""
    for what, count, most in (
        ("words", words, 2400),
        ("lines of code", lambda path: len(code_lines(path)), 420),
    ):
        average = mean(map(count, NOTEBOOKS))
        if average > most:
            yield f"a chapter has {average:,.0f} {what} on average, more than {most:,}"
    for term, (meaning, _) in glossary().items():
        if len(meaning.split()) > 25:
            yield f"{term} has more than 25 words in the glossary"


EACH = [size, opening, story, your_turn, exercises, mechanism, real_code, ending, terms]


def main():
    found = [f"{path.stem}: {said}" for path in NOTEBOOKS for rule in EACH for said in rule(path)]
    found += [f"the series: {said}" for said in series()]
    for said in found:
        print(f"warning: {said}")
    print(f"{len(found)} warnings about the form of {len(NOTEBOOKS)} chapters")


if __name__ == "__main__":
    main()
