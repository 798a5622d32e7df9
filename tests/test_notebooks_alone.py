"""Each notebook alone: from another folder, without a network, its exercises answered.

Every exercise gets its solution, then the other answers of tests/answers: the check takes each
right one and refuses each wrong one with its sentence. Of the other cells, those run that a check
needs, as in `nanogpt course`; nbval runs them all, as they are. `pytest -m slow
tests/test_notebooks_alone.py` runs each as it is and then answered, all cells twice in one kernel:
the reader guesses, another process keeps a core busy, and no cell may come near its limit.
"""

import contextlib
import copy
import os
import re
import subprocess
import sys
import time

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from series import GUESS, NAMES, NOTEBOOKS, ROOT, answers, attempted, guesses, output_text, read

from nanogpt.course.needed import needed, statements

pytestmark = pytest.mark.alone

SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LIMIT = int(re.search(r"--nbval-cell-timeout=(\d+)", SETTINGS)[1])  # seconds for a cell
BUSY = "import time; end = time.monotonic() + 1800\nwhile time.monotonic() < end: pass"


def files():
    """Every file of the project that a notebook could leave behind or change, with its time."""
    return {
        path: path.stat().st_mtime_ns
        for folder in ("notebooks", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }


def answered(path, again):
    """The notebook's cells with guesses and answers filled in, and what each check shall say.

    What answers *your turn* may need what the chapter builds after it: the first time, it stands
    at the end.
    """
    nb, expected = copy.deepcopy(read(path)), []
    right, wrong = answers(path)
    inserted = {i: [] for i in range(len(nb.cells))}
    for cell in nb.cells:
        cell.source = re.sub(GUESS, r"\1\2", cell.source)
    for number, stub, check, solution in attempted(path):
        source, place = nb.cells[check].source, check
        if number or again:
            nb.cells[stub].source = solution
            expected.append((nb.cells[check], None))
            more = []
        else:
            more, place = [new_code_cell(solution), new_code_cell(source)], len(nb.cells) - 1
            expected.append((more[-1], None))
        for code in right[number]:
            more += [new_code_cell(code), new_code_cell(source)]
            expected.append((more[-1], None))
        for code, why in wrong[number]:
            failing = {"tags": ["raises-exception"]}
            more += [new_code_cell(code), new_code_cell(source, metadata=failing)]
            expected.append((more[-1], why))
        inserted[place] += [*more, new_code_cell(solution)]  # what follows may use it
    cells = []
    for i, cell in enumerate(nb.cells):
        cells += [cell, *inserted[i]]
    return cells, expected


def of_checks(cells, checks):
    """These checks, the answer before each, and of other cells the lines that matter to them."""
    code = {i: cell.source for i, cell in enumerate(cells) if cell.cell_type == "code"}
    notebook, whole = statements(code), set()
    for i in code:
        if any(cells[i] is check for check in checks):
            whole |= {i - 1, i}
    own = {statement for i in whole for statement in needed(notebook, i)}
    own |= {s for s in notebook if getattr(s.node, "module", "") == "__future__"}
    for i in code:
        if i not in whole:
            nodes = [s.node for s in notebook if s.cell == i and s in own]
            lines = code[i].splitlines()
            starts = [min(n.lineno for n in (node, *decorators(node))) for node in nodes]
            parts = [lines[a - 1 : node.end_lineno] for a, node in zip(starts, nodes, strict=True)]
            cells[i].source = "\n".join(line for part in parts for line in part)
    return [cell for cell in cells if cell.cell_type == "code" and cell.source]


def decorators(node):
    return getattr(node, "decorator_list", [])


@contextlib.contextmanager
def busy():
    """Another process wants a core all the time; it would end some day without us, too.

    Where the other workers of this run keep every core busy, none is made.
    """
    if int(os.getenv("PYTEST_XDIST_WORKER_COUNT", "1")) >= max(2, os.cpu_count() or 1):
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def execute(client, first, most=LIMIT * 2 / 3):
    """Run all cells, the first so many beside a busy process.

    Raises where a cell fails that is not tagged to; AssertionError where one of these first cells
    takes more than `most` seconds: on a slower machine, it would pass nbval's limit.
    """
    code = [(i, cell) for i, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]
    with client.setup_kernel():
        with busy():
            for i, cell in code:
                if i < first:
                    started = time.monotonic()
                    client.execute_cell(cell, i)
                    took = time.monotonic() - started
                    said = f"{took:.1f} s beside a busy process, {most:.0f} at most: {cell.source}"
                    assert took <= most, said
        for i, cell in code:
            if i >= first:
                client.execute_cell(cell, i)


def test_a_cell_that_takes_long_beside_a_busy_process_is_named(tmp_path):
    slow = new_code_cell("import time; time.sleep(1.2)")
    nb = new_notebook(cells=[new_code_cell("1"), slow, new_code_cell("2")])
    client = NotebookClient(nb, timeout=LIMIT, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(AssertionError, match=r"beside a busy process, 1 at most: import time"):
        execute(client, first=3, most=1)
    assert nb.cells[2].execution_count is None
    execute(client, first=1, most=1)  # the other half may take its time
    assert nb.cells[2].execution_count == 3


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_alone_offline_and_its_checks_judge_answers(
    path, times, tmp_path, monkeypatch
):
    """Two times: as it is, and again in the same kernel with everything answered; all its cells."""
    offline = str(ROOT / "tests" / "offline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([offline, os.environ["PYTHONPATH"]]))
    once, (again, expected) = copy.deepcopy(read(path)).cells, answered(path, times > 1)
    if times == 1:
        again = of_checks(again, [cell for cell, _ in expected])
    for i, cell in enumerate(again):
        cell["id"] = f"again-{i}"
    probe = new_code_cell(
        "import urllib.request\n"
        "try: urllib.request.urlopen('http://example.org', timeout=5)\n"
        "except OSError as error: print(error)"
    )
    both = new_notebook(cells=[*once[: len(once) * (times - 1)], *again, probe])
    before = files()
    client = NotebookClient(
        both, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    execute(client, first=len(once) * (times - 1))
    assert "no network in this test" in output_text(probe), "the network was not blocked"
    shown = "\n".join(output_text(cell) for cell in again if cell.cell_type == "code")
    if times > 1:
        assert shown.count("your guess: ") >= guesses(path), "a guess is not said again"
    for cell, why in expected:
        said = output_text(cell).strip()
        answer = both.cells[both.cells.index(cell) - 1].source
        if why is None:
            assert said.splitlines()[-1:] == ["passed"], f"refused: {answer}\n{said[-600:]}"
        else:
            assert cell.outputs, f"nothing came of: {answer}"
            refused = cell.outputs[-1].get("ename") == "WrongAnswer" and why in said
            assert refused, f"not refused with {why!r}: {answer}\n{said[-600:]}"
    assert list(tmp_path.iterdir()) == [], "the notebook left files in its working directory"
    assert files() == before, "the notebook changed or left files in the project"
