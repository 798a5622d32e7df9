"""What is installed without a clone: the wheel holds what it reads, and runs from an empty folder.

The wheel is built offline, from an sdist of a copy of the project, by the setuptools that torch
brings. Installed, in an environment of its own, it sees the packages of the running one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from series import ROOT

from nanogpt import checkpoint, data, train
from nanogpt.data import cache_dir

SHIPPED = [
    "stand_in.txt",
    "records.json",
    *re.findall(r"(?m)^!data/(checkpoints/.*)$", (ROOT / ".gitignore").read_text()),
]
FOREIGN = ["tinyshakespeare/input.txt", "checkpoints/my_target.safetensors"]  # a reader's own


def build(what, source, out):
    """The sdist or the wheel of a project's folder, in `out`."""
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [made] = out.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of an sdist, in a copy where a reader's files lie in data/."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("out")
    for name in ("nanogpt", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in SHIPPED + FOREIGN:
        (copy / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / "data" / (name if name in SHIPPED else "stand_in.txt")
        shutil.copy(source, copy / "data" / name)
    with tarfile.open(build("sdist", copy, out)) as sdist:
        sdist.extractall(out)
    [unpacked] = (path for path in out.iterdir() if path.is_dir())
    return build("wheel", unpacked, out)


def test_the_wheel_holds_the_package_and_what_it_reads_and_nothing_else(wheel):
    held = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "nanogpt").rglob("*.py")]
    modules.append("nanogpt/py.typed")
    assert sorted(held) == sorted(modules + [f"nanogpt/shipped/{name}" for name in SHIPPED])
    assert len(SHIPPED) == 19 and wheel.stat().st_size < 12e6


def test_a_clone_reads_its_own_data_and_keeps_there_what_it_makes():
    assert not data.INSTALLED and data.DATA_DIR == data.CORPUS_DIR == ROOT / "data"
    assert train.MY_TARGET == ROOT / "data" / "checkpoints" / "my_target.safetensors"


HOME = Path("/home/me").absolute()  # on Windows with a drive
CACHES = {
    "Linux": ("linux", {}, ".cache"),
    "Linux, named": ("linux", {"XDG_CACHE_HOME": str(HOME / "x")}, "x"),
    "Linux, no absolute path": ("linux", {"XDG_CACHE_HOME": "x"}, ".cache"),
    "macOS": ("darwin", {"XDG_CACHE_HOME": str(HOME / "x")}, "Library/Caches"),
    "Windows": ("win32", {"LOCALAPPDATA": str(HOME / "x")}, "x"),
    "Windows, not named": ("win32", {}, "AppData/Local"),
}


@pytest.mark.parametrize("platform, environ, below", CACHES.values(), ids=CACHES)
def test_the_corpus_is_kept_in_the_cache_of_each_system(platform, environ, below):
    assert cache_dir(platform, environ, HOME) == HOME / PurePosixPath(below) / "nanogpt"


def test_who_has_no_home_gets_the_folder_for_temporary_files():
    assert cache_dir("linux", {}, Path("~")).is_absolute()


@pytest.mark.parametrize("installed", [False, True])
def test_a_missing_checkpoint_says_what_helps(installed, monkeypatch, tmp_path):
    shipped, own = checkpoint.TARGET.with_name("gone.safetensors"), tmp_path / "own.safetensors"
    monkeypatch.setattr(checkpoint, "INSTALLED", installed)
    monkeypatch.setattr(data, "INSTALLED", installed)
    said = []
    for path in (shipped, own):
        for make_one in ("nanogpt train", "python data/make_drafts.py ngram"):
            with pytest.raises(FileNotFoundError) as raised:
                checkpoint.read_header(path, make_one)
            said.append(str(raised.value).removeprefix(f"no checkpoint at {path}; "))
    train_one, script = "make one with `nanogpt train`", "`python data/make_drafts.py ngram`"
    back = "bring it back with `git checkout -- data/checkpoints/gone.safetensors`"
    again = "install the package again, which brings it"
    if installed:
        wanted = [again, again, train_one, f"make one with {script} in a clone of the project"]
    else:
        wanted = [train_one, f"make one with {script}"]
        wanted = [f"{back}, or {make}" for make in wanted] + wanted
    assert said == wanted


# ---- installed


class Installed:
    """An environment with the wheel, and an empty folder and home to run its command in."""

    def __init__(self, folder, wheel):
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        self.folder, self.home = folder / "empty", folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        self.packages = next((folder / "env").rglob("site-packages"))
        # -I: on a PYTHONPATH with a clone in it, pip takes the package for installed already
        pip = [self.bin / "python", "-I", "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
        subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True)
        torch = Path(sys.modules["torch"].__file__).parent.parent
        (self.packages / "torch_of_the_tests.pth").write_text(str(torch))
        kept = "PATH", "SYSTEMROOT", "OMP_NUM_THREADS"
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= dict.fromkeys(("HOME", "USERPROFILE", "LOCALAPPDATA"), str(self.home))
        self.environment |= {"PYTHONPATH": str(ROOT / "tests" / "offline")}
        self.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        self.brought = self.files()

    def files(self):
        package = self.packages / "nanogpt"
        return {path for path in package.rglob("*") if "__pycache__" not in path.parts}

    def run(self, *arguments, code=0):
        """What the command prints, on stdout and stderr."""
        done = subprocess.run(
            [self.bin / "nanogpt", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def refused(self, *arguments):
        """The one line of a command that cannot be done."""
        _, err = self.run(*arguments, code=2)
        assert err.startswith("error: ") and err.count("\n") == 1
        return err


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.mark.alone
def test_all_commands_run_in_an_empty_environment_and_folder(installed):
    assert "nanogpt WORD" in installed.run()[0]
    out, err = installed.run("data")
    corpus = installed.home.joinpath(*data.CORPUS_FILE.parts)
    assert out.startswith("stand-in: 1,115,4") and err.count("\n") == 1
    assert str(installed.home) in err and str(Path("nanogpt", data.CORPUS_FILE)) in err
    assert "texts plain, token/s" in installed.run("size", "--picture=size.png")[0]
    assert "10 tokens in" in installed.run("demo", "--tokens=10")[0]
    small = "--pairs=1", "--tokens=8"
    assert "1 pairs of 8 tokens" in installed.run("bench", "--draft=bigram", *small)[0]
    installed.run("arena", "--new", "x.py")
    judged, _ = installed.run("arena", "x.py", "--judge-only")
    assert re.findall(r"(?m)^ok  (\w+)", judged) == ["q", "guesses", "exact", "greedy"]
    raced, _ = installed.run("arena", "x.py", "--against=bigram", *small, "--json=x.json")
    assert "yours: place" in raced
    installed.run("export", "--out=pair", "--draft")
    tiny = "--steps=1", "--n-layer=1", "--n-head=1", "--n-embd=4", "--block-size=16"
    assert "saved to my_target.safetensors" in installed.run("train", *tiny)[0]
    made = {path.name for path in installed.folder.iterdir()}
    assert made == {"size.png", "x.py", "x.json", "pair", "my_target.safetensors"}
    assert len(json.loads((installed.folder / "x.json").read_text())["rows"]) == 2
    assert installed.files() == installed.brought, "nothing is written into the package"
    assert not corpus.exists()


@pytest.mark.alone
def test_a_refused_draft_is_1_and_a_missing_one_is_2(installed):
    (installed.folder / "bad.py").write_text("make_draft = None\n")
    out, _ = installed.run("arena", "bad.py", "--judge-only", code=1)
    assert out.startswith("bad.py is refused: it has no function make_draft")
    assert "there is no file gone.py" in installed.refused("arena", "gone.py")


@pytest.mark.alone
def test_the_corpus_is_looked_for_in_the_cache_and_not_in_the_package(installed):
    said = installed.run("data")[1]
    corpus = Path(re.search(r"put it at (.*)\.$", said)[1])
    corpus.parent.mkdir(parents=True)
    corpus.write_bytes(b"something else")
    assert installed.home in corpus.parents
    assert f"{corpus} is not Tiny Shakespeare" in installed.refused("data")
    corpus.unlink()


@pytest.mark.alone
def test_without_a_shipped_file_the_message_says_what_helps(installed):
    for name, word in (("checkpoints/target.safetensors", "demo"), ("stand_in.txt", "data")):
        file, away = installed.packages / "nanogpt" / "shipped" / name, installed.home / "away"
        file.rename(away)
        said = installed.run(word, code=2)[1]
        away.rename(file)
        line = said.splitlines()[-1]  # that the stand-in is used comes first
        assert str(file) in line and line.endswith("install the package again, which brings it")
