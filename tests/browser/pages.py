"""What the tests of this folder share: sizes of a window, and what the book's own pages promise."""

import contextlib

from series import ROOT

DESKTOP, PHONE = (1280, 900), (375, 750)


@contextlib.contextmanager
def out_of_sight(page):
    """What is written there can be read meanwhile; a step needs no layout, most of its time."""
    page.evaluate("document.body.hidden = true")
    try:
        yield
    finally:
        page.evaluate("document.body.hidden = false")


def assert_leads_back(page, asked: list[str], address: str, title: str):
    """A page to play with asked for itself alone, and leads to the book and to two chapters."""
    own = ("data:", "blob:")  # the page itself holds them
    assert [url for url in asked if not url.startswith(own)] == [address], asked
    links = page.locator("a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert links[0] == "index.html"
    for chapter in ("05_rejection_sampling", "07_speculative_generate"):
        assert f"notebooks/{chapter}.html" in links
        assert (ROOT / "notebooks" / f"{chapter}.ipynb").exists()
    assert page.get_attribute("html", "lang") == "en" and title in page.title()
