"""The corpus that this checkout really has is the one in use; the stand-in says so in one line."""

import os
import subprocess
import sys
from pathlib import Path

import nanogpt
from nanogpt.data import CORPUS_FILE, DATA_DIR

SHOW = "from nanogpt.data import load_corpus as f; c = f(); print(c.name, len(set(c.text)))"
OFFLINE = str(Path(__file__).resolve().parent / "offline")


def run(code, tmp_path, path):
    """What a fresh process with this PYTHONPATH prints, elsewhere: its stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def offline():
    """The PYTHONPATH of a process without a network, which finds the package where tests do."""
    return os.pathsep.join([OFFLINE, os.environ["PYTHONPATH"]])


def test_what_tests_start_is_the_checkout_that_they_stand_in(tmp_path):
    own = Path(__file__).resolve().parent.parent / "nanogpt" / "__init__.py"
    assert Path(nanogpt.__file__).resolve() == own
    for path in (os.environ["PYTHONPATH"], offline()):
        out, _ = run("import nanogpt; print(nanogpt.__file__)", tmp_path, path)
        assert Path(out).resolve() == own


def test_offline_the_corpus_in_place_or_the_stand_in_is_used(tmp_path):
    out, err = run(SHOW, tmp_path, offline())
    if (DATA_DIR / CORPUS_FILE).exists():
        assert out == "Tiny Shakespeare 65" and err == ""
    else:
        assert out == "stand-in 65"
        assert err.count("\n") == 1 and "no network in this test" in err and "stand-in" in err
        assert not (DATA_DIR / CORPUS_FILE).exists()
