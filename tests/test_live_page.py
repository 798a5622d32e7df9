"""The live page in the repository is what its parts make, to the last byte."""

import base64
import json
import re

import pytest
from series import ROOT, module_of

from nanogpt import checkpoint
from nanogpt.drafts import ngram
from nanogpt.generate import autoregressive_generate
from nanogpt.sampling import Sampling
from nanogpt.speculative import speculative_generate


@pytest.fixture(scope="module")
def live():
    return module_of(ROOT / "book" / "live.py")


@pytest.fixture(scope="module")
def page(live):
    return live.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date(live, page):
    assert page == live.whole(), "book/live.html is older than its parts: python book/live.py"


def test_it_holds_the_shipped_files_byte_for_byte(live, page):
    text = re.search(r'id="files">(.+?)</script>', page)[1]
    for name, encoded in json.loads(text).items():
        assert base64.b64decode(encoded) == live.FILES[name].read_bytes()


def test_nothing_in_it_comes_from_elsewhere(live, page):
    scripts = re.findall(r'<script(?: class="engine")? src="(.+?)">', live.read("page.html"))
    assert {f"live/{name}" for name in scripts} | {"live/exact.js"} == {
        path.relative_to(live.BOOK).as_posix() for path in live.SOURCE.glob("*.js")
    }
    assert len(re.findall(r'<script(?: class="engine")?>\n"use strict";', page)) == len(scripts)
    assert not re.findall(
        r'(?:src|href)="(?!(?:index|explorer|gallery|glossary|notebooks/\w+)\.html|data:,)', page
    )


def test_a_page_without_a_place_for_its_data_says_so(live, monkeypatch):
    monkeypatch.setattr(live, "read", lambda name: "{}")
    with pytest.raises(ValueError, match=r"must hold .+ once; bring it back with git"):
        live.whole()


def test_the_readmes_film_shows_what_it_says():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = r"!\[.* same (\d+) letters: .* in (\d+) passes .*, .* in (\d+)\]\((.+)\)"
    n, fast, slow, film = re.search(said, text).groups()
    assert (ROOT / film).exists()
    target, tokenizer = checkpoint.load()
    request = target.double(), tokenizer.encode("ROMEO:"), int(n), Sampling(0)
    plain = autoregressive_generate(*request)
    target, prompt, n, greedy = request
    tree = ngram.load()
    tree.greedy = None  # the page guesses by the rows
    made = speculative_generate(target, tree, prompt, n, 8, greedy)
    assert made.tokens == plain.tokens
    assert (made.target_passes, plain.target_passes) == (int(fast), int(slow))
