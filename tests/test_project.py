"""The project's files agree: pins stand once, commands and layout are what the README says."""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile

import pytest
import torch
from series import ROOT

import nanogpt

if sys.version_info >= (3, 11):
    import tomllib
else:  # tomllib came with Python 3.11; pip brings the same parser under another name
    from pip._vendor import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERIES = PROJECT["optional-dependencies"]["series"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_dependency_is_pinned_in_pyproject():
    assert all(re.match(r"[a-z-]+==[\d.]+(; |$)", pin) for pin in SERIES)
    pinned = {pin.split("==")[0] for pin in SERIES}
    assert {re.split(r"[>=]", d)[0] for d in PROJECT["dependencies"]} <= pinned


def test_versions_are_pinned_nowhere_else():
    for name in ("Makefile", "environment.yml", "README.md", ".ci/run"):
        assert not re.search(r"==\s*\d", read(name)), f"{name} pins a version"


def test_make_conda_and_readme_install_the_same_pins():
    assert "-e '.[series]'" in read("Makefile")
    assert "-e .[series]" in read("environment.yml")
    assert '-e ".[series]"' in read("README.md")


def test_make_and_environment_offer_a_python_that_the_package_allows():
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert f"(3, {low}) <= v <= (3, {int(high) - 1})" in read("Makefile")
    conda = int(re.search(r"python=3\.(\d+)", read("environment.yml")).group(1))
    assert int(low) <= conda < int(high)
    assert f'python: ["3.{low}", "3.{int(high) - 1}"]' in read(".github/workflows/test.yml")


def test_what_others_run_for_a_reader_installs_the_same_and_calls_what_there_is():
    """Workflows, the dev container and Binder: their pins, make's targets, the command's words."""
    assert "-e .[series]" in read(".binder/requirements.txt").splitlines()
    assert "nanogpt course --copy my_notebooks" in read(".binder/postBuild")
    names = [".github/workflows/test.yml", ".github/workflows/book.yml"]
    run = "\n".join(map(read, [*names, ".devcontainer/devcontainer.json"]))
    called = re.findall(r"make (\S+) (?:PYTHON|&&)", run)
    assert called == ["test", "book", ".venv/installed"]
    assert all(re.search(rf"(?m)^{re.escape(target)}:", read("Makefile")) for target in called)
    assert 'pip install -e ".[series]"' in run


def test_a_preview_of_a_page_to_play_with_has_words_and_the_whole_address_of_a_picture(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book")
    from build import in_the_site

    page, picture = read("book/explorer.html"), '"og:image" content="{}/_images/race.gif"'
    assert page.count("<meta property=") == 3 and '<meta name="description" content="' in page
    for url, folder in {"": ".", "https://here/course": "https://here/course"}.items():
        monkeypatch.setenv("BOOK_URL", url)
        assert picture.format(folder) in in_the_site(page)
    assert "BOOK_URL: ${{ steps.pages.outputs.base_url }}" in read(".github/workflows/book.yml")


def test_all_pages_name_one_version_and_the_changelog_says_what_it_is():
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in read("CITATION.cff")
    assert re.search(r"(?m)^## (.+)$", read("CHANGELOG.md")).group(1) == version


def test_the_six_lines_of_the_package_and_the_readme_run_anywhere_without_a_network(tmp_path):
    readme = read("README.md")
    [lines], [prints] = (re.findall(rf"```{x}\n(.+?)```", readme, re.S) for x in ("python", "text"))
    assert textwrap.indent(lines, "    ") in nanogpt.__doc__
    done = in_a_fresh_process(lines, tmp_path)
    assert done.stdout.strip() == prints.strip(), done.stderr


def test_the_package_offers_its_names_and_imports_what_has_them_when_asked(tmp_path):
    code = """
import sys, nanogpt
assert {*nanogpt.__all__} < {*dir(nanogpt)} and "torch" not in sys.modules
from nanogpt import *
print(*(f"{thing.__module__}.{thing.__name__}" for thing in map(globals().get, nanogpt.__all__)))
"""
    done = in_a_fresh_process(code, tmp_path)
    assert done.stdout.split() == [f"nanogpt.{m}.{name}" for name, m in nanogpt.NAMES.items()]
    with pytest.raises(AttributeError, match="module 'nanogpt' has no attribute 'laod'"):
        _ = nanogpt.laod


def in_a_fresh_process(code, folder):
    """What a program of these lines prints, run in a folder, with no network."""
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'offline'}"}
    how = {"cwd": folder, "env": os.environ | path, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, "-c", code], **how)


def imports_of(path):
    line = r"(?m)^(?:from|import) nanogpt(?:\.(\w+))?(?: import (.*))?"
    return re.findall(line, path.read_text())


ORDER = ["cache", "model", "sampling", "generate", "speculative"]  # chapter 07's decoder
ORDER += ["data", "checkpoint", "theory", "train", "trees", "same", "targets", "drafts", "serving"]
ORDER += ["show", "proof", "measure", "engines", "arena", "course"]
MODULES = sorted((ROOT / "nanogpt").rglob("[a-z]*.py"))
every_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda p: p.relative_to(ROOT / "nanogpt").as_posix()
)


def room(path):
    return path.relative_to(ROOT / "nanogpt").parts[0].removesuffix(".py")


@every_module
def test_imports_run_downward_only(path):
    """A flat file imports what stands before it, and a folder that and its own files."""
    own = room(path)
    above = ORDER[: ORDER.index(own)] + [own] * (path.parent.name == own)
    for module, names in imports_of(path):
        for name in [module] if module else names.split(", "):
            assert name in above, f"{path.name} imports {name}, which stands below {own}"


def files_of(path):
    """The files that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("nanogpt"):
            base = ROOT.joinpath(*node.module.split("."))
            for file in [base, *(base / alias.name for alias in node.names)]:
                if file.with_suffix(".py").exists():
                    yield file.with_suffix(".py")


def test_no_two_modules_import_each_other_even_round_about():
    graphlib.TopologicalSorter({path: set(files_of(path)) for path in MODULES}).prepare()


def test_no_draft_imports_another_and_none_imports_training():
    """Each is one file's idea; only the list of the shipped ones knows them all."""
    for path in (ROOT / "nanogpt" / "drafts").glob("[a-z]*.py"):
        needs = set(files_of(path))
        assert not {ROOT / f"nanogpt/{name}.py" for name in ("train", "trees/loop")} & needs
        rooms = {room(file) for file in needs}
        assert "drafts" not in rooms or path.name == "shipped.py", path.name


def test_nothing_but_random_source_and_training_draws_random_numbers():
    draws = r"manual_seed|np\.random|torch\.rand|multinomial|import random"
    for path in (ROOT / "nanogpt").rglob("*.py"):
        own = r"torch\.Generator\(\)\.manual_seed|torch\.rand\w*\([^\n]*generator=generator\)"
        found = re.findall(draws, re.sub(own, "", read(path)))
        allowed = {
            "sampling.py": ["np.random"],
            "train.py": ["manual_seed"] * 2,
            "advise.py": ["np.random"],  # which prompts count again, and no token
            # it sets the generators of a reader's draft, to see whether the draft draws from them
            "referee.py": ["import random", "manual_seed", "np.random"],
        }
        assert found == allowed.get(path.name, []), f"{path.name}: {found}"


def test_the_tests_refuse_a_float32_bound_that_holds_on_some_processors_only():
    single, double = torch.ones(2), torch.ones(2, dtype=torch.float64)
    for compare in (torch.testing.assert_close, torch.allclose):
        compare(single, single + 9e-5, rtol=0, atol=1e-4)
        compare(single, single, rtol=0, atol=0)
        compare(double, double + 9e-10, rtol=0, atol=1e-9)
        with pytest.raises(AssertionError, match="allow 1e-4, or compare in float64"):
            compare(single, single, rtol=0, atol=1e-5)
        with pytest.raises(AssertionError, match="allow 1e-4, or compare in float64"):
            compare(single, single)


def test_the_corpus_is_not_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert "tinyshakespeare" not in listed.stdout


def test_the_package_runs_from_any_folder(tmp_path):
    command = [sys.executable, "-m", "nanogpt", "train", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def put(script, line):
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)


@pytest.fixture
def make(tmp_path):
    """make(*arguments): what `make` says in a folder with the Makefile and nothing installed."""
    if os.name != "posix" or shutil.which("make") is None:
        pytest.skip("needs make")
    folder = tmp_path / "my folder ü"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)

    put(folder / "python", f"""exec '{sys.executable}' "$@\"""")  # no blanks in its path

    def run(*arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        return subprocess.run(
            ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
        )

    run.folder = folder
    return run


def assert_error(done, message):
    first = done.stderr.splitlines()[0]
    assert done.returncode == 2 and first == f"error: {message}", done.stderr


@pytest.mark.parametrize("version", ["3.9", "3.15", "2.7"])
def test_make_refuses_a_python_that_the_package_does_not_run_on(make, version):
    pretend = f"import sys; sys.version_info = ({version.replace('.', ', ')}); exec(sys.argv[1])"
    put(make.folder / "other_python", f"""exec '{sys.executable}' -c "{pretend}" "$2\"""")
    message = (
        f"./other_python is Python {version}; this needs 3.10 to 3.14: make PYTHON=python3.12 …"
    )
    assert_error(make("test", "PYTHON=./other_python"), message)
    assert not (make.folder / ".venv").exists()


def test_a_second_make_does_not_install_beside_the_first(make):
    (make.folder / ".installing").mkdir()
    again = "run this again when it is done (if there is none: rmdir .installing)"
    done = make("test", "PYTHON=./python")
    assert_error(done, f"another make is installing into .venv: {again}")
    assert (make.folder / ".installing").exists() and not (make.folder / ".venv").exists()


def test_an_install_that_fails_leaves_the_way_free_for_the_next(make):
    broken = "mkdir -p .venv/bin; printf '#!/bin/sh\\nexit 1\\n' > .venv/bin/python"
    broken += "; chmod +x .venv/bin/python"  # a pip that cannot install
    whole = f"""exec '{sys.executable}' "$@\""""
    put(make.folder / "python", f'case "$*" in "-m venv .venv") {broken};; *) {whole};; esac')
    done = make("test", "PYTHON=./python")
    assert done.returncode == 2 and (make.folder / ".venv").exists()
    assert not (make.folder / ".installing").exists()
    assert not (make.folder / ".venv" / "installed").exists()


def test_make_takes_the_cpu_build_from_its_index_or_says_that_it_could_not(make):
    """A folder with a wheel of torch stands in the index's place, then one that is not there."""
    pytest.importorskip("pip")
    [pin] = (pin for pin in SERIES if pin.startswith("torch=="))
    version = pin.removeprefix("torch==") + "+cpu"
    index = make.folder / "simple" / "torch"
    index.mkdir(parents=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(index / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        wheel.writestr(f"{info}/RECORD", "")
    (index / "index.html").write_text(f"<a href='torch-{version}-py3-none-any.whl'>it</a>")
    pip = f"""echo "$@" >> asked; case "$*" in *--index-url*)
    exec '{sys.executable}' "$@" --isolated --target got;; esac"""
    put(make.folder / "pip", pip)
    whole = f"""exec '{sys.executable}' "$@\""""
    made = "mkdir -p .venv/bin; cp pip .venv/bin/python"
    put(make.folder / "python", f'case "$*" in "-m venv .venv") {made};; *) {whole};; esac')
    for there in (True, False):
        url = (index.parent if there else make.folder / "gone").as_uri()
        done = make(".venv/installed", "PYTHON=./python", f"TORCH_INDEX={url}")
        assert done.returncode == 0, done.stderr
        assert (f"note: {pin} did not come from {url}: pip takes its usual" in done.stdout) != there
        assert (make.folder / "got" / info).exists()
        (make.folder / ".venv" / "installed").unlink()
    make(".venv/installed", "PYTHON=./python", "TORCH_INDEX=")
    asked = (make.folder / "asked").read_text().splitlines()
    calls = [("--index-url" in line, "-e .[series]" in line) for line in asked]
    assert calls == [*[(True, False), (False, True)] * 2, (False, True)]


def test_make_says_where_it_cannot_write(make):
    make.folder.chmod(0o555)
    if os.access(make.folder, os.W_OK):
        pytest.skip("root may write anywhere")
    done = make("test", "PYTHON=./python")
    assert_error(done, f"{make.folder} cannot be written: copy the project to where you may write")
