"""Each notebook alone: from another folder, twice in a row, without a network, exercises solved."""

import copy
import os

import nbformat
import pytest
from nbclient import NotebookClient
from series import NAMES, NOTEBOOKS, ROOT, output_text, read, solutions


def files():
    """Every file of the project that a notebook could leave behind or change, with its time."""
    return {
        path: path.stat().st_mtime_ns
        for folder in ("notebooks", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_alone_twice_offline_and_its_solutions_pass(path, tmp_path, monkeypatch):
    offline = str(ROOT / "tests" / "offline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([offline, os.environ.get("PYTHONPATH", "")]))
    once = read(path)
    again = copy.deepcopy(once)
    for stub, _, solution in solutions(path):
        again.cells[stub].source = solution
    for i, cell in enumerate(again.cells):
        cell["id"] = f"again-{i}"
    probe = nbformat.v4.new_code_cell(
        "import urllib.request\n"
        "try: urllib.request.urlopen('http://example.org', timeout=5)\n"
        "except OSError as error: print(error)"
    )
    both = nbformat.v4.new_notebook(cells=[*once.cells, *again.cells, probe])
    before = files()
    client = NotebookClient(
        both, timeout=90, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails that is not tagged to
    assert "no network in this test" in output_text(probe), "the network was not blocked"
    for _, check, _ in solutions(path):
        assert output_text(both.cells[check]).strip() == "not attempted yet"
        assert output_text(both.cells[check + len(once.cells)]).strip() == "passed"
    assert list(tmp_path.iterdir()) == [], "the notebook left files in its working directory"
    assert files() == before, "the notebook changed or left files in the project"
