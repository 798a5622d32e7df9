"""One command: its map, one line for what goes wrong, and one meaning of its exit codes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from series import ROOT, cells

from nanogpt.__main__ import COMMANDS, HELP, main
from nanogpt.arena import race
from nanogpt.data import CharTokenizer
from nanogpt.engines import audit
from nanogpt.measure import size

PACKAGE, NOTEBOOKS = ROOT / "nanogpt", ROOT / "notebooks"


def nanogpt(*arguments, **options):
    """A fresh process of `python -m nanogpt`."""
    return subprocess.Popen(
        [sys.executable, "-m", "nanogpt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_is_the_map_of_all_commands(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed == HELP + "\n"
    assert re.findall(r"(?m)^  (\w+)  +\w", printed) == list(COMMANDS)


@pytest.mark.parametrize("word", COMMANDS)
def test_each_command_has_help_under_its_own_name(word, capsys):
    assert main([word, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: nanogpt {word} ")


@pytest.mark.parametrize("word", COMMANDS)
def test_an_unknown_option_is_2_everywhere(word, capsys):
    assert main([word, "--nothing"]) == 2
    assert f"nanogpt {word}: error: " in capsys.readouterr().err


def test_an_unknown_word_is_refused_with_the_known_ones(capsys):
    assert main(["dmeo"]) == 2
    assert (
        capsys.readouterr().err == f"error: no command 'dmeo'; use one of {', '.join(COMMANDS)}\n"
    )


HINT = "NANOGPT_TRACEBACK=1 shows the way there)"
WRONG = {
    "ValueError": (ValueError("K is 0"), "error: K is 0"),
    "OSError": (FileNotFoundError("no checkpoint at x"), "error: no checkpoint at x"),
    "no module": (ModuleNotFoundError("No module named 'y'"), "error: No module named 'y'"),
    "two lines": (ValueError("one\n  two"), "error: one two"),
    "no words": (AssertionError(), f"error: AssertionError (test_command.py, line N; {HINT}"),
    "no words, foreseen": (OSError(), f"error: OSError (test_command.py, line N; {HINT}"),
    "a slip": (KeyError("x"), f"error: KeyError: 'x' (test_command.py, line N; {HINT}"),
    "memory": (MemoryError(), f"error: MemoryError (test_command.py, line N; {HINT}"),
    "torch's memory": (
        torch.OutOfMemoryError("CUDA out\nof memory"),
        f"error: OutOfMemoryError: CUDA out of memory (test_command.py, line N; {HINT}",
    ),
    "a library says yes": (SystemExit(0), f"error: SystemExit: 0 (test_command.py, line N; {HINT}"),
    "a library says no": (SystemExit(1), f"error: SystemExit: 1 (test_command.py, line N; {HINT}"),
    "no Exception": (GeneratorExit(), f"error: GeneratorExit (test_command.py, line N; {HINT}"),
    "nobody reads": (BrokenPipeError(), ""),
    "Ctrl-C": (KeyboardInterrupt(), "stopped"),
    "Ctrl-C with advice": (KeyboardInterrupt("run it again"), "stopped; run it again"),
}


@pytest.mark.parametrize("word", COMMANDS)
def test_whatever_goes_wrong_in_a_command_is_one_line_and_no_verdict(word, monkeypatch, capsys):
    for error, line in WRONG.values():

        def fails(arguments, error=error):
            raise error

        monkeypatch.setattr(f"nanogpt.{COMMANDS[word][0]}.main", fails)
        assert main([word]) == (130 if isinstance(error, KeyboardInterrupt) else 2)
        out, said = capsys.readouterr()
        assert (out, re.sub(r"line \d+", "line N", said)) == ("", line + "\n" * bool(line))


def test_the_way_to_an_error_is_shown_where_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("NANOGPT_TRACEBACK", "1")
    monkeypatch.setattr(size, "main", lambda arguments: [][0])
    assert main(["size"]) == 2
    first, *way, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback") and last.startswith("error: IndexError: list index out")
    assert any("test_command.py" in line for line in way), "down to where it arose"
    monkeypatch.setattr(size, "main", lambda arguments: int("x"))
    assert main(["size"]) == 2 and capsys.readouterr().err.startswith("Traceback"), "foreseen, too"


FAILING = {
    "syntax": ("def f(:", "SyntaxError: "),
    "import": ("\nimport nothing_such", "ModuleNotFoundError: No module named"),
    "memory": ("raise MemoryError", "MemoryError"),
    "torch": ("import torch\ntorch.empty(10**15)", "RuntimeError: "),
    "yes": ("raise SystemExit(0)", "SystemExit: 0"),
    "no": ("raise SystemExit(1)", "SystemExit: 1"),
    "parses": ("import argparse\nargparse.ArgumentParser().exit(1)", "SystemExit: 1"),
    "pipe": ("raise BrokenPipeError('gone')", "BrokenPipeError: gone"),
    "base": ("raise BaseException('x')", "BaseException: x"),
    "deep": ("def f(): f()\nf()", "RecursionError: "),
    "wordless": ("raise ValueError", "ValueError"),
}
FUNCTION = {"audit": "open_engine(folder)", "arena": "make_draft(tokens, vocab_size)"}


@pytest.mark.parametrize("word", FUNCTION)
@pytest.mark.parametrize("code, says", FAILING.values(), ids=FAILING)
def test_a_file_whose_code_fails_is_no_verdict(word, code, says, tmp_path, monkeypatch, capsys):
    """Read, or called. What an engine or a draft does later: test_audit, test_arena."""
    monkeypatch.setattr(audit, "export_pair", lambda *_, **__: None)
    arena = SimpleNamespace(tokens=torch.arange(9), tokenizer=CharTokenizer("ab"), target=None)
    monkeypatch.setattr(race, "open_arena", lambda name: arena)
    file, inside = tmp_path / "mine.py", textwrap.indent(code, "    ")
    for text in (code, f"def {FUNCTION[word]}:\n{inside}"):
        file.write_text(text)
        assert main([word, str(file)]) == 2
        out, said = capsys.readouterr()
        assert out == "" and said.startswith(f"error: {file} ") and said.count("\n") == 1
        assert re.search(rf", line \d: {says}", said)


@pytest.mark.parametrize("answer, code", [(None, 0), (0, 0), (1, 1)])
def test_the_exit_code_is_the_commands_answer(answer, code, monkeypatch):
    monkeypatch.setattr(size, "main", lambda arguments: answer)
    assert main(["size"]) == code


NO_FOLDER = {
    "bench --json": ["bench", "--json"],
    "bench --picture": ["bench", "--picture"],
    "size --picture": ["size", "--picture"],
    "load --json": ["load", "--json"],
    "load --picture": ["load", "--picture"],
    "load --record": ["load", "--record"],
    "audit --json": ["audit", "nanogpt", "--json"],
    "arena --json": ["arena", __file__, "--json"],
    "check --json": ["check", "x", "--json"],
    "arena --new": ["arena", "--new"],
}


@pytest.mark.parametrize("arguments", NO_FOLDER.values(), ids=NO_FOLDER)
def test_a_folder_that_is_not_there_is_named_before_anything_is_done(arguments, tmp_path, capsys):
    none = tmp_path / "none"
    assert main([*arguments, str(none / "x.py")]) == 2
    said = f"error: {none} is no folder: make it, or write x.py elsewhere\n"
    assert capsys.readouterr() == ("", said)
    none.with_suffix(".py").mkdir()
    assert main([*arguments, str(none.with_suffix(".py"))]) == 2
    assert capsys.readouterr().err.endswith("none.py is a folder; name a file in it\n")


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_ctrl_c_is_one_line():
    """While the decoder runs: the first line of the benchmark says that it is there."""
    restored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = nanogpt("bench", "--draft=bigram", "--pairs=100000", env=ENVIRONMENT, **restored)
    assert process.stdout.readline().startswith("bigram draft: built in")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    assert err.splitlines()[-1] == "stopped"


ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1"}


@pytest.mark.skipif(os.name != "posix", reason="Windows has other pipes")
@pytest.mark.parametrize(
    "arguments, unbuffered",
    [
        (["--help"], ""),
        (["size"], ""),  # it is told when all is written out
        (["course", "--notebooks", str(NOTEBOOKS)], "1"),  # and here while it prints
        pytest.param(["size"], "1", marks=pytest.mark.wide),
        pytest.param(["course", "--notebooks", str(NOTEBOOKS)], "", marks=pytest.mark.wide),
    ],
)
def test_a_reader_who_has_seen_enough_gets_no_traceback(arguments, unbuffered):
    process = nanogpt(*arguments, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    process.stdout.close()
    assert (process.stderr.read(), process.wait(300)) == ("", 2)
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
@pytest.mark.parametrize("closed, code", [(">&-", 0), ("2>&- >&-", 0), (">/dev/full", 2)])
def test_an_output_that_cannot_be_written_is_no_verdict(closed, code):
    ran = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m nanogpt --help {closed}"],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    told = "error: [Errno 28] No space left on device\n" if code else ""
    assert (ran.returncode, ran.stderr) == (code, told)


def test_only_the_command_is_run_as_a_program():
    """One entrance and one place where errors end; no module of the package has its own."""
    own = {
        path.relative_to(PACKAGE).as_posix(): found
        for path in PACKAGE.rglob("*.py")
        if (found := re.findall(r"__name__ ==|sys\.exit|raise SystemExit|python -m nanogpt\.\w+",
                                path.read_text(encoding="utf-8")))
    }  # fmt: skip
    assert own == {"__main__.py": ["__name__ ==", "sys.exit"]}


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "data/README.md",
    "book/run.md",
    "book/measured.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_a_page_names_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"(?m)(?:`|^)nanogpt (\w+)", text)
    assert set(named) <= set(COMMANDS) and not re.search(r"python -m nanogpt[. ]\w", text)


def shown(name):
    """[(word, its --options)] of the command lines on a page or in a chapter's text."""
    path = ROOT / name
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in cells(path, "markdown"))
    else:
        text = path.read_text(encoding="utf-8")
    lines = re.findall(r"(?m)(?:`|^)nanogpt (\w+)([^`#\n]*)", text.replace("\\\n", " "))
    return [(word, re.findall(r"--[\w-]+", rest)) for word, rest in lines]


@pytest.mark.parametrize(
    "name", [*PAGES, "data/audits.md", "notebooks/28_sizing.ipynb", "notebooks/29_production.ipynb"]
)
def test_every_option_that_a_page_names_is_the_commands_own(name, capsys):
    for word, options in shown(name):
        if options:
            main([word, "--help"])
            known = re.findall(r"--[\w-]+", capsys.readouterr().out)
            assert set(options) <= set(known), f"{name}: nanogpt {word} {options}"


def test_options_are_found_where_pages_show_them():
    assert ("export", ["--out", "--draft"]) in shown("book/run.md")
    shows = shown("notebooks/28_sizing.ipynb")
    assert any({"--target", "--draft", "--gpu"} <= set(options) for _, options in shows)
