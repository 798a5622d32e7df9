"""The corpus that this checkout really has is the one in use; the stand-in says so in one line."""

import os
import subprocess
import sys

from nanogpt.data import CORPUS_FILE, DATA_DIR

SHOW = "from nanogpt.data import load_corpus as f; c = f(); print(c.name, len(set(c.text)))"


def load_offline(tmp_path):
    """What a fresh offline process gets from load_corpus: its stdout and stderr."""
    offline = os.path.join(os.path.dirname(__file__), "offline")
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": offline},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_offline_the_corpus_in_place_or_the_stand_in_is_used(tmp_path):
    out, err = load_offline(tmp_path)
    if (DATA_DIR / CORPUS_FILE).exists():
        assert out == "Tiny Shakespeare 65" and err == ""
    else:
        assert out == "stand-in 65"
        assert err.count("\n") == 1 and "no network in this test" in err and "stand-in" in err
        assert not (DATA_DIR / CORPUS_FILE).exists()
