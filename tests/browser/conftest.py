"""A real Chromium for the tests of this folder. `make browser` runs them; `pytest` alone does not.

Each page may talk to this machine only. The browser finds no other host, and to ask one fails the
test, and so do a request that fails and an error of the page's own.
"""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # series.py

from pages import DESKTOP

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"]
HERE = {"localhost", "127.0.0.1", "", None}  # the last two: file:, data: and blob: addresses


def chromium() -> str | None:
    """The program: $CHROMIUM, or one on the PATH; None if there is none."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser():
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on the PATH and no $CHROMIUM")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Faults(list):
    """What went wrong on a page: its own errors, failed requests, requests to other hosts."""

    def none(self):
        """AssertionError that says them, if there are any; the next test is not to blame."""
        found, self[:] = [*self], []
        assert not found, "\n".join(found)

    def watch(self, page):
        page.on("pageerror", lambda error: self.append(f"page error: {error}"))
        page.on("requestfailed", lambda r: self.append(f"failed: {r.url} {r.failure}"))
        page.on(
            "response", lambda r: r.status >= 400 and self.append(f"status {r.status}: {r.url}")
        )
        page.on("console", lambda m: m.type == "error" and self.append(f"console: {m.text}"))

    def guard(self, request):
        if urlsplit(request.url).hostname not in HERE:
            self.append(f"outside: {request.url}")


@contextlib.contextmanager
def opening(browser):
    """A function that opens new, empty windows; at the end, nothing may be in their faults."""
    opened = []

    def open_one(size=DESKTOP, **options):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **options
        )
        page = context.new_page()
        page.faults = Faults()
        page.faults.watch(page)
        context.on("request", page.faults.guard)
        opened.append((context, page))
        return page

    yield open_one
    for context, page in opened:
        context.close()
        page.faults.none()


@pytest.fixture
def open_page(browser):
    """open_page(size=DESKTOP, **options): a new, empty browser window's page.

    The test fails at its end if anything is in page.faults.
    """
    with opening(browser) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def module_page(browser):
    """The same, for a page that all tests of a file share: a large one takes a second to open."""
    with opening(browser) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def kept(module_page):
    return module_page()


@pytest.fixture
def same_page(kept):
    """The one page of a file, which goes from address to address: a new window takes longer."""
    kept.set_viewport_size(dict(zip(("width", "height"), DESKTOP, strict=True)))
    yield kept
    kept.goto("about:blank")  # or the next size is laid out here first
    kept.faults.none()
