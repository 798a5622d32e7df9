"""Puts the live page together: book/live.html, one file that opens anywhere.

`python book/live.py` writes it anew; a path as argument takes it elsewhere. What stands in
book/live goes in as it is: the page, its style and its scripts, in the page's own order, and
recorded.json of `book/record.py`. The checkpoints go in byte for byte, in base64.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from pathlib import Path

from nanogpt.checkpoint import TARGET
from nanogpt.data import write_atomically
from nanogpt.drafts import ngram, transformer

BOOK = Path(__file__).resolve().parent
SOURCE, PAGE = BOOK / "live", BOOK / "live.html"
FILES = {"target": TARGET, "transformer": transformer.DISTILLED, "distilled": ngram.DISTILLED}


def read(name: str) -> str:
    """A file of book/live."""
    return (SOURCE / name).read_text(encoding="utf-8")


def data(name: str, text: str) -> tuple[str, str]:
    """The page's empty place for data of that name, and the same filled with this JSON."""
    text = text.replace("<", "\\u003c")  # so that no text can end the script element
    place = f'<script type="application/json" id="{name}">'
    return f"{place}{{}}</script>", f"{place}{text}</script>"


def whole() -> str:
    """The page with everything in it. Raises ValueError if it lacks a place for its data."""
    page = re.sub(
        r'<link rel="stylesheet" href="(.+?)">',
        lambda found: f"<style>\n{read(found[1])}</style>",
        read("page.html"),
    )
    page = re.sub(
        r'<script( class="engine")? src="(.+?)"></script>',
        lambda found: f"<script{found[1] or ''}>\n{read(found[2])}</script>",
        page,
    )
    files = {name: base64.b64encode(path.read_bytes()).decode() for name, path in FILES.items()}
    for place, filled in (
        data("recorded", read("recorded.json")),
        data("files", json.dumps(files)),
    ):
        if page.count(place) != 1:
            raise ValueError(f"book/live/page.html must hold {place} once; bring it back with git")
        page = page.replace(place, filled)
    return page


def main() -> None:
    """Write the page to the given path; missing parent folders are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=PAGE, help="where it goes")
    path = parser.parse_args().path
    page = whole().encode()
    write_atomically(path, page)
    print(f"{path}: {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
