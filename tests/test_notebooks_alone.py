"""Each notebook alone: from another folder, twice in a row, without a network, exercises answered.

The second time, the reader guesses, and every exercise gets its solution, then the other answers of
tests/answers: the check takes each right one and refuses each wrong one with its sentence.
"""

import copy
import os
import re

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from series import GUESS, NAMES, NOTEBOOKS, ROOT, answers, output_text, read, solutions, turn

pytestmark = pytest.mark.alone


def files():
    """Every file of the project that a notebook could leave behind or change, with its time."""
    return {
        path: path.stat().st_mtime_ns
        for folder in ("notebooks", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }


def attempted(path):
    """(number, index of the stub, of its check, solution) of *your turn* (0) and the exercises."""
    yours = [(0, *turn(path), answers(path)[0][0][0])] if turn(path) else []
    return yours + [(n, *found) for n, found in enumerate(solutions(path), start=1)]


def answered(path):
    """The notebook's cells with guesses and answers filled in, and what each check shall say."""
    nb, expected = copy.deepcopy(read(path)), []
    right, wrong = answers(path)
    inserted = {}
    for cell in nb.cells:
        cell.source = re.sub(GUESS, r"\1\2", cell.source)
    for number, stub, check, solution in attempted(path):
        nb.cells[stub].source, source = solution, nb.cells[check].source
        expected.append((nb.cells[check], None))
        more = []
        for code in right[number]:
            more += [new_code_cell(code), new_code_cell(source)]
            expected.append((more[-1], None))
        for code, why in wrong[number]:
            failing = {"tags": ["raises-exception"]}
            more += [new_code_cell(code), new_code_cell(source, metadata=failing)]
            expected.append((more[-1], why))
        inserted[check] = [*more, new_code_cell(solution)]  # what follows may use it
    cells = []
    for i, cell in enumerate(nb.cells):
        cells += [cell, *inserted.get(i, [])]
    return cells, expected


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_alone_twice_offline_and_its_checks_judge_answers(
    path, tmp_path, monkeypatch
):
    offline = str(ROOT / "tests" / "offline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([offline, os.environ.get("PYTHONPATH", "")]))
    once, (again, expected) = copy.deepcopy(read(path)), answered(path)
    for i, cell in enumerate(again):
        cell["id"] = f"again-{i}"
    probe = new_code_cell(
        "import urllib.request\n"
        "try: urllib.request.urlopen('http://example.org', timeout=5)\n"
        "except OSError as error: print(error)"
    )
    both = new_notebook(cells=[*once.cells, *again, probe])
    before = files()
    client = NotebookClient(
        both, timeout=90, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails that is not tagged to
    assert "no network in this test" in output_text(probe), "the network was not blocked"
    for _, _, check, _ in attempted(path):
        assert output_text(once.cells[check]).strip() == "not attempted yet"
    asked = sum(len(re.findall(GUESS, cell.source)) for cell in once.cells)
    for cells, said in ((once.cells, "you did not guess"), (again, "your guess: ")):
        shown = "\n".join(output_text(cell) for cell in cells if cell.cell_type == "code")
        assert shown.count(said) >= asked, f"{said!r} is not said of each of {asked} guesses"
    for cell, why in expected:
        said = output_text(cell).strip()
        answer = both.cells[both.cells.index(cell) - 1].source
        if why is None:
            assert said == "passed", f"refused: {answer}\n{said[-600:]}"
        else:
            assert cell.outputs, f"nothing came of: {answer}"
            refused = cell.outputs[-1].get("ename") == "AssertionError" and why in said
            assert refused, f"not refused with {why!r}: {answer}\n{said[-600:]}"
    assert list(tmp_path.iterdir()) == [], "the notebook left files in its working directory"
    assert files() == before, "the notebook changed or left files in the project"
