"""The corpus and its tokens: find or fetch the text, map characters to tokens, split, cut batches.

`nanogpt data` puts the corpus in place and says which one the series will use.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import hashlib
import http.client
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm


def cache_dir(platform: str, environ: Mapping[str, str], home: Path) -> Path:
    """The user's folder for what can be fetched again, where each system keeps such folders."""
    if platform == "win32":
        named, usual = environ.get("LOCALAPPDATA", ""), home / "AppData" / "Local"
    elif platform == "darwin":
        named, usual = "", home / "Library" / "Caches"
    else:
        named, usual = environ.get("XDG_CACHE_HOME", ""), home / ".cache"
    base = Path(named) if Path(named).is_absolute() else usual
    # who has no home gets the folder for temporary files
    return (base if base.is_absolute() else Path(tempfile.gettempdir())) / "nanogpt"


PACKAGE = Path(__file__).resolve().parent
INSTALLED = (PACKAGE / "shipped").is_dir()  # from a wheel, which brings these files, or in a clone
DATA_DIR = PACKAGE / "shipped" if INSTALLED else PACKAGE.parent / "data"
HOME = Path(os.path.expanduser("~"))
CORPUS_DIR = cache_dir(sys.platform, os.environ, HOME) if INSTALLED else DATA_DIR
CORPUS_FILE = Path("tinyshakespeare") / "input.txt"  # below that folder
STAND_IN_FILE = Path("stand_in.txt")
CORPUS_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
CORPUS_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class Corpus:
    """A text and where it came from."""

    name: str  # "Tiny Shakespeare" or "stand-in"
    text: str
    sha256: str


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that no reader ever sees half of it.

    It goes to a temporary name in the same folder and is renamed when it is all there. Missing
    parent folders are made. Raises OSError if that cannot be done; what was there before stays.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:  # no space, no permission, no folder
        why = (error.strerror or str(error)).lower()
        raise OSError(
            f"{path} cannot be written ({why}), and is as it was; make room, or choose another "
            "place where you may write"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_folders(*paths: Path | None) -> None:
    """Raise ValueError unless each path that is given lies in a folder, and is none itself."""
    for path in filter(None, paths):
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent} is no folder: make it, or write {path.name} elsewhere")


def read_text(path: str | Path) -> str:
    """What a file of somebody else's says: UTF-8, or UTF-16 where a mark at its start says so.

    Raises ValueError with the file's name if it is no such text, OSError if there is none.
    """
    content = Path(path).read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        at = f"byte {error.start}: {error.reason}"
        raise ValueError(f"{path} is no UTF-8 ({at}); save it as UTF-8") from None


def read_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a file that are not blank, each with its number, from 1.

    Only a newline ends a line: a string of JSON may hold U+2028 and U+0085, at which
    `str.splitlines` cuts. The errors are those of read_text.
    """
    lines = read_text(path).split("\n")
    return [(i, line.strip()) for i, line in enumerate(lines, 1) if line.strip()]


def bring_back(path: Path) -> str:
    """How to get a file of DATA_DIR again, for messages."""
    if INSTALLED:
        return "install the package again, which brings it"
    return f"bring it back with `git checkout -- data/{path.relative_to(DATA_DIR).as_posix()}`"


def fetch(url: str, timeout: float = 10.0, limit: float = 120.0) -> bytes:
    """The content behind `url`, with a progress bar on stderr.

    Raises OSError if the server cannot be reached, is silent for `timeout` seconds, closes before
    all is there, or takes longer than `limit` seconds in all.
    """
    started, parts = time.monotonic(), []
    with urllib.request.urlopen(url, timeout=timeout) as response:
        expected = int(response.headers.get("Content-Length") or 0)
        with tqdm(total=expected or None, unit="B", unit_scale=True, desc="corpus") as bar:
            while part := response.read1(1 << 16):
                parts.append(part)
                bar.update(len(part))
                if time.monotonic() - started > limit:
                    raise TimeoutError(f"not done after {limit:g} s")
    content = b"".join(parts)
    if len(content) < expected:
        raise ConnectionError(f"the connection closed after {len(content)} of {expected} bytes")
    return content


def read_corpus(path: Path) -> Corpus:
    """Tiny Shakespeare as it lies at `path`. Raises ValueError if the file is another one."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != CORPUS_SHA256:
        raise ValueError(
            f"{path} is not Tiny Shakespeare: its SHA-256 is {found}, expected {CORPUS_SHA256}; "
            "move the file away and run again to fetch a fresh copy"
        )
    return Corpus("Tiny Shakespeare", content.decode("ascii"), found)


def read_stand_in(path: Path) -> Corpus:
    """The text sampled from our own model. Raises FileNotFoundError if it is missing."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing, and it belongs to the project: {bring_back(path)}"
        )
    content = path.read_bytes()
    return Corpus("stand-in", content.decode("ascii"), hashlib.sha256(content).hexdigest())


def load_corpus(
    folder: Path = CORPUS_DIR, url: str = CORPUS_URL, timeout: float = 10.0, limit: float = 120.0
) -> Corpus:
    """The real corpus if it is in place or can be fetched, else the stand-in.

    A fetched corpus is kept in `folder`: that of the data in a clone, the user's cache where the
    package was installed without one. After any OSError, what was fetched being another file
    included, the stand-in is used, and one line on stderr says so.
    Raises ValueError if the file in place is not Tiny Shakespeare; it is left alone.
    """
    path = folder / CORPUS_FILE
    if path.exists():
        return read_corpus(path)
    try:
        content = fetch(url, timeout, limit)
        found = hashlib.sha256(content).hexdigest()
        if found != CORPUS_SHA256:
            raise OSError(f"what came has SHA-256 {found}, expected {CORPUS_SHA256}")
        write_atomically(path, content)
    except (OSError, http.client.HTTPException) as error:  # no network, cut off, wrong, no space
        why = " ".join(str(error).split())  # whatever the server said, on one line
        print(
            f"Tiny Shakespeare could not be fetched ({why}): using the stand-in corpus, text "
            f"sampled from our own model. For the real one, put it at {path}.",
            file=sys.stderr,
        )
        return read_stand_in(DATA_DIR / STAND_IN_FILE)
    return read_corpus(path)


class CharTokenizer:
    """One token per character: token i is the i-th character of `chars`.

    Raises ValueError if a character occurs twice.
    """

    def __init__(self, chars: str):
        if len(set(chars)) < len(chars):
            raise ValueError(f"a character occurs twice in the vocabulary {chars!r}")
        self.chars = chars
        self.vocab_size = len(chars)
        self._token = {char: token for token, char in enumerate(chars)}

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """The tokenizer of every character that occurs in `text`, in sorted order."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> list[int]:
        """Tokens of `text`. Raises ValueError at the first character outside the vocabulary."""
        for i, char in enumerate(text):
            if char not in self._token:
                raise ValueError(
                    f"character {char!r} at index {i} is not among the {self.vocab_size} of the "
                    "vocabulary; leave it out or write it with characters of the corpus"
                )
        return [self._token[char] for char in text]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`."""
        return "".join(self.chars[token] for token in tokens)


def train_val_split(tokens: Tensor, val_fraction: float = 0.1) -> tuple[Tensor, Tensor]:
    """The first part of `tokens` (N,) to train on, and the last `val_fraction` held out."""
    n_train = int(len(tokens) * (1 - val_fraction))
    return tokens[:n_train], tokens[n_train:]


def get_batch(
    tokens: Tensor, batch_size: int, block_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs x and targets y (batch_size, block_size): random windows, y one token later than x.

    Raises ValueError if `tokens` (N,) is too short for one window.
    """
    if len(tokens) <= block_size:
        raise ValueError(
            f"{len(tokens)} tokens are too few for one window of {block_size} and its next token"
        )
    starts = torch.randint(len(tokens) - block_size, (batch_size, 1), generator=generator)
    window = tokens[starts + torch.arange(block_size + 1)]  # (batch_size, block_size + 1)
    return window[:, :-1], window[:, 1:]


def main(arguments: list[str] | None = None) -> None:
    """Put the corpus in place and print which one is in use."""
    argparse.ArgumentParser(prog="nanogpt data", description=main.__doc__).parse_args(arguments)
    corpus = load_corpus()
    tokenizer = CharTokenizer.from_text(corpus.text)
    print(f"{corpus.name}: {len(corpus.text):,} characters, {tokenizer.vocab_size} different ones")
