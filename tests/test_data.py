"""The corpus in its three states, and the tokens made of it."""

import contextlib
import errno
import hashlib
import http.server
import os
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from nanogpt import checkpoint, data
from nanogpt.data import CharTokenizer, get_batch, load_corpus, train_val_split

CONTENT = b"To be, or not to be." * 5000  # stands for the corpus where its checksum is patched in
NOWHERE = "http://127.0.0.1:9/input.txt"  # the discard port: nothing listens there


@contextlib.contextmanager
def server(answer):
    """A local HTTP server whose GET is `answer(handler)`; yields its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            with contextlib.suppress(ConnectionError):
                answer(self)

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/input.txt"
    finally:
        httpd.shutdown()
        httpd.server_close()


def send(handler, content, length=None):
    handler.send_response(200)
    handler.send_header("Content-Length", str(length or len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    handler.wfile.flush()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder with a stand-in, where CONTENT passes for the corpus."""
    monkeypatch.setattr(data, "CORPUS_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(data, "DATA_DIR", tmp_path)
    (tmp_path / data.STAND_IN_FILE).write_bytes(b"a stand-in")
    return tmp_path


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_corpus_in_place_is_read_without_a_network(folder):
    path = folder / data.CORPUS_FILE
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    corpus = load_corpus(folder, NOWHERE)
    assert (corpus.name, corpus.text.encode()) == ("Tiny Shakespeare", CONTENT)


def test_a_corpus_is_fetched_once_and_kept(folder, capsys):
    requests = []
    with server(lambda handler: (requests.append(1), send(handler, CONTENT))) as url:
        for _ in range(2):
            corpus = load_corpus(folder, url)
            assert (corpus.name, corpus.text.encode()) == ("Tiny Shakespeare", CONTENT)
    assert len(requests) == 1
    assert files(folder) == ["stand_in.txt", str(data.CORPUS_FILE)]
    assert "corpus" in capsys.readouterr().err, "a progress bar"


def cut_off(handler):
    send(handler, CONTENT[:5000], length=len(CONTENT))


def wrong_content(handler):
    send(handler, CONTENT.replace(b"not", b"now"))


def refused(handler):
    handler.send_error(404)


def no_http(handler):
    handler.wfile.write(b"220 mail.example ESMTP\r\n")


def silent(handler):
    handler.server.gave_up.append(not handler.server.released.wait(60))


def dribbling(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1200):  # a minute
        if handler.server.released.wait(0.05):
            return
        handler.wfile.write(b"x")
        handler.wfile.flush()
    handler.server.gave_up.append(True)


@pytest.mark.parametrize(
    "answer,why,patience",
    [
        (cut_off, f"closed after 5000 of {len(CONTENT)} bytes", {}),
        (wrong_content, "what came has SHA-256", {}),
        (refused, "404", {}),
        (no_http, "220 mail.example", {}),
        (silent, "timed out", {"timeout": 0.5}),
        (dribbling, "not done after 1 s", {"limit": 1.0}),
    ],
    ids=lambda answer: getattr(answer, "__name__", None),
)
def test_a_failed_download_leaves_nothing_behind_and_the_stand_in_steps_in(
    folder, capsys, monkeypatch, answer, why, patience
):
    """However busy the machine is: a server that is slow goes on until it is told to end."""
    released, gave_up = threading.Event(), []
    kind = http.server.ThreadingHTTPServer
    monkeypatch.setattr(kind, "released", released, raising=False)
    monkeypatch.setattr(kind, "gave_up", gave_up, raising=False)
    with server(answer) as url:
        corpus = load_corpus(folder, url, **{"timeout": 30, "limit": 60} | patience)
        assert not any(gave_up), "who waited for all of it waited for a minute"
        released.set()
    assert (corpus.name, corpus.text) == ("stand-in", "a stand-in")
    assert files(folder) == ["stand_in.txt"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "stand-in" in line]
    assert len(lines) == 1 and str(data.CORPUS_FILE) in lines[0] and why in lines[0]


def test_no_network_and_no_corpus_means_the_stand_in_and_one_line(folder, capsys):
    assert load_corpus(folder, NOWHERE).name == "stand-in"
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "could not be fetched" in err


def test_a_folder_that_cannot_be_written_means_the_stand_in(folder):
    (folder / data.CORPUS_FILE.parent).write_text("a file where the folder should be")
    with server(lambda handler: send(handler, CONTENT)) as url:
        assert load_corpus(folder, url).name == "stand-in"


def test_a_damaged_corpus_is_refused_with_both_sums_and_left_alone(folder):
    path = folder / data.CORPUS_FILE
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError) as error:
        load_corpus(folder, NOWHERE)
    assert hashlib.sha256(CONTENT[:-1]).hexdigest() in str(error.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(error.value)
    assert path.read_bytes() == CONTENT[:-1]


def test_a_missing_stand_in_says_how_to_get_it_back(folder):
    (folder / data.STAND_IN_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="git checkout"):
        load_corpus(folder, NOWHERE)


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    data.write_atomically(path, b"old")

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(data.os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        data.write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and files(tmp_path) == ["file"]


def test_a_full_disk_is_named_and_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    data.write_atomically(path, b"old")

    def full(temporary, content):
        temporary.open("wb").close()  # begun, and then
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(data.Path, "write_bytes", full)
    with pytest.raises(OSError) as error:
        data.write_atomically(path, b"new")
    assert str(error.value) == (
        f"{path} cannot be written (no space left on device), and is as it was; make room, or "
        "choose another place where you may write"
    )
    assert path.read_bytes() == b"old" and files(tmp_path) == ["file"]


def test_the_stand_in_has_the_65_characters_and_the_size_of_the_original():
    corpus = data.read_stand_in(data.DATA_DIR / data.STAND_IN_FILE)
    vocabulary = checkpoint.read_header(checkpoint.TARGET)["vocabulary"]
    assert CharTokenizer.from_text(corpus.text).chars == vocabulary
    assert 1_000_000 < len(corpus.text) < 1_200_000


def test_tokens_decode_to_the_text_they_encode():
    tokenizer = CharTokenizer.from_text("hello world")
    assert tokenizer.chars == " dehlorw" and tokenizer.vocab_size == 8
    assert tokenizer.encode("hell") == [3, 2, 4, 4]
    assert tokenizer.decode(tokenizer.encode("lord low")) == "lord low"
    assert tokenizer.encode("") == []


def test_a_vocabulary_with_a_character_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        CharTokenizer("aba")


def test_the_split_keeps_order_and_loses_nothing():
    train, val = train_val_split(torch.arange(100))
    assert torch.equal(torch.cat([train, val]), torch.arange(100)) and len(val) == 10


def test_a_batch_holds_windows_and_their_next_tokens_from_the_whole_text():
    tokens = torch.arange(50)
    generator = torch.Generator().manual_seed(0)
    x, y = get_batch(tokens, 2000, 8, generator)
    assert x.shape == y.shape == (2000, 8)
    assert torch.equal(x + 1, y)
    assert x.min() == 0 and y.max() == 49, "the first and the last window can be drawn"


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="8 tokens are too few"):
        get_batch(torch.arange(8), 1, 8, torch.Generator())


def test_the_longest_common_substring_is_found():
    longest = runpy.run_path(str(data.DATA_DIR / "make_stand_in.py"))["longest_common_substring"]
    assert longest("xxto be or notyy", "be or not to be") == "be or not"
    assert longest("abc", "xyz") == "" and longest("", "a") == "" and longest("aa", "a") == "a"
    long = "".join(chr(97 + i * i % 26) for i in range(100))
    assert longest("0" + long + "1", "2" + long) == long


def test_the_command_says_in_one_line_that_a_corpus_is_damaged(tmp_path):
    """On a copy of the command, whose data folder is its neighbour."""
    package, damaged = tmp_path / "nanogpt", tmp_path / "data" / data.CORPUS_FILE
    package.mkdir()
    for name in ("__init__.py", "__main__.py", "data.py"):
        shutil.copy(Path(data.__file__).with_name(name), package)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"something else")
    command = [sys.executable, "-m", "nanogpt", "data"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert damaged.read_bytes() == b"something else"


def test_a_server_need_not_say_how_long_its_answer_is(folder):
    def unsized(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT)

    with server(unsized) as url:
        assert load_corpus(folder, url).name == "Tiny Shakespeare"


def test_two_processes_that_write_a_file_at_once_leave_one_whole_file(tmp_path, monkeypatch):
    """The second comes in while the first has written its part and not renamed it yet."""
    path, replace, numbers = tmp_path / "file", os.replace, iter((1, 2))
    monkeypatch.setattr(os, "getpid", lambda: next(numbers))

    def late(part, whole):
        monkeypatch.setattr(os, "replace", replace)
        data.write_atomically(path, b"of the second")
        replace(part, whole)

    monkeypatch.setattr(os, "replace", late)
    data.write_atomically(path, b"of the first")
    assert path.read_bytes() == b"of the first" and list(tmp_path.iterdir()) == [path]
