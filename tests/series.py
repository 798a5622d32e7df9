"""The notebooks and the book's pages as data: what the tests of the series read."""

import functools
import importlib.util
import math
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
GLOSSARY, QUESTIONS = ROOT / "book" / "glossary.md", ROOT / "book" / "questions.md"


@functools.cache
def read(path):
    """The notebook, parsed once for all who ask: who changes it takes a copy."""
    return nbformat.read(path, as_version=4)


def cells(path, kind):
    return [cell for cell in read(path).cells if cell.cell_type == kind]


def tags(cell):
    return cell.metadata.get("tags", [])


def output_text(cell):
    """All that a cell printed, returned or raised, as plain text."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts += [output.evalue, re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output.traceback))]
        else:
            parts.extend(v for k, v in output.data.items() if k.startswith("text/"))
    return "\n".join(parts)


def turn(path):
    """*Your turn*: (stub cell's index, its check cell's index), or None in a chapter without."""
    nb = read(path)
    found = [i for i, cell in enumerate(nb.cells) if {"exercise", "your-turn"} <= set(tags(cell))]
    assert len(found) <= 1, f"{path.name}: more than one turn"
    if found:
        assert "check" in tags(nb.cells[found[0] + 1]), f"{path.name}: the turn has no check"
        return found[0], found[0] + 1
    return None


def solutions(path):
    """Each exercise's (stub cell's index, its check cell's index, the solution's code)."""
    found, nb = [], read(path)
    for i, cell in enumerate(nb.cells):
        if "exercise" in tags(cell) and "your-turn" not in tags(cell):
            check, after = nb.cells[i + 1], nb.cells[i + 2]
            assert "check" in tags(check), f"{path.name}: no check cell after {cell.source!r}"
            code = re.search(r"<details>.*?```python\n(.*?)```", after.source, re.DOTALL)
            assert code, f"{path.name}: no solution after the check of {cell.source!r}"
            found.append((i, i + 1, code.group(1)))
    return found


def module_of(file):
    """The module in a file that is no part of the package, run anew."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(path):
    """Answers to *your turn* (0) and the exercises: {number: right}, {number: (wrong, why)}."""
    file = ROOT / "tests" / "answers" / f"chapter_{path.stem[:2]}.py"
    if not file.exists():
        return {}, {}
    module = module_of(file)
    return module.RIGHT, module.WRONG


def prose(path):
    """All that the chapter says, in one string, code blocks aside."""
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


ENTRY = r"(?m)^### (.+)\n\n(.+?)((?: · \[\d\d\]\(\S+\))+)$"  # of the glossary


def glossary():
    """{term: (what it means, the chapters that define it)} of the glossary's page."""
    entries = re.findall(ENTRY, GLOSSARY.read_text(encoding="utf-8"))
    return {term: (says, re.findall(r"\[(\d\d)\]", links)) for term, says, links in entries}


def anchors(path):
    """What a link may name of a page after #: its headings, as JupyterLab and code hosts do.

    In a notebook, "The-rule"; in a Markdown file, "the-rule".
    """
    notebook = path.suffix == ".ipynb"
    titles = re.findall(r"(?m)^#+ (.+)$", prose(path) if notebook else path.read_text("utf-8"))
    names = [title if notebook else re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {name.replace(" ", "-") for name in names}


def lost_links(text, page):
    """The relative links of a page's text that lead to no file, or to no heading of one."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        to = page.parent / name if name else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            yield link


NUMBER = r"\d+(?:,\d{3})*\.\d+"


def prose_decimals(source, number=NUMBER):
    """Decimal numbers of a markdown cell that no source is quoted for, code blocks aside."""
    source = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    source = re.sub(r"\(https?:[^)]*\)", "", source)
    for sentence in re.split(r"(?<=[.!?])\s|\n", source):
        if "quoted:" in sentence:
            continue
        for found in re.finditer(rf"(?<![\w.#])(?<!section )({number})(?![\w]|\.\d)", sentence):
            yield found.group(1)


def as_floats(numbers):
    return {float(number.replace(",", "")) for number in numbers}


def outputs(path):
    """All that the notebook's cells put out, as plain text."""
    return "\n".join(output_text(cell) for cell in cells(path, "code"))


def printed(path):
    """The decimal numbers in a notebook's outputs."""
    return as_floats(re.findall(rf"(?<![\w.]){NUMBER}", outputs(path)))


def code_lines(path, but=("exercise", "check")):
    """The chapter's lines of code, blank ones too, without cells that have a tag in `but`."""
    shown = [c for c in cells(path, "code") if not set(but) & set(tags(c))]
    return [line for cell in shown for line in cell.source.splitlines()]


TIMED = r"(?m)^### (?:Exercise \d|Your turn) · .+ · (\d+) min$"


def minutes(path):
    """What a chapter takes: a minute for 180 words or 12 lines, and its exercises; up to 5 more.

    The folded cell of imports and settings is not read.
    """
    read = code_lines(path, but=("exercise", "check", "hide-input"))
    words, lines = len(prose(path).split()), sum(bool(line.strip()) for line in read)
    exercises = sum(map(int, re.findall(TIMED, prose(path))))
    return 5 * math.ceil((words / 180 + lines / 12 + exercises) / 5)


GUESS = r"(?m)^(my_guess = )None  # such as (.+)$"  # where the reader predicts: a cell of its own


def guesses(path):
    """How often the reader is asked for a guess."""
    return sum(len(re.findall(GUESS, cell.source)) for cell in cells(path, "code"))


def attempted(path):
    """(number, index of the stub, of its check, solution) of *your turn* (0) and the exercises."""
    yours = [(0, *turn(path), answers(path)[0][0][0])] if turn(path) else []
    return yours + [(n, *found) for n, found in enumerate(solutions(path), start=1)]
