"""The reading copy, opened from disk: whole, offline, and fit for a phone."""

import re

import pytest
from pages import DESKTOP, PHONE
from series import NOTEBOOKS, ROOT, cells

from nanogpt.proof.bugs import BUGS

SITE = ROOT / "build" / "book"
PAGES = ["index.html", "see.html", "run.html", "gallery.html", "explorer.html", "player.html"]
PAGES += [f"notebooks/{path.stem}.html" for path in NOTEBOOKS]
every_page = pytest.mark.parametrize("name", PAGES)

if not (SITE / "player.html").exists():
    pytest.skip("no book in build/book: make book", allow_module_level=True)


def address(name):
    return (SITE / name).as_uri()


@every_page
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_page_loads_offline_and_fits_its_width(open_page, name, size):
    page = open_page(size)
    page.context.set_offline(True)
    page.goto(address(name))
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    scroll, inner = page.evaluate(widths)
    assert scroll <= inner, "the page scrolls sideways"
    assert page.title()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_chapter_shows_its_pictures_with_their_descriptions(open_page, path):
    page = open_page()
    page.goto(address(f"notebooks/{path.stem}.html"))
    outputs = [o for cell in cells(path, "code") for o in cell.outputs if "data" in o]
    stored = [o.metadata["image/png"]["alt"] for o in outputs if "image/png" in o.data]
    images = page.locator(".cell_output img")
    shown = images.evaluate_all("all => all.map(i => [i.alt, i.complete && i.naturalWidth > 0])")
    assert shown == [[alt, True] for alt in stored]
    assert all(len(alt) > 20 for alt in stored)


def test_next_leads_through_all_chapters_in_order_and_previous_back(open_page):
    page = open_page()
    page.goto(address(f"notebooks/{NOTEBOOKS[0].stem}.html"))
    for path in NOTEBOOKS[1:]:
        page.wait_for_load_state(
            "load"
        )  # what is still coming would be cut off, and told as a fault
        page.locator(".related-pages a.next-page").click()
        assert page.url == address(f"notebooks/{path.stem}.html")
    page.wait_for_load_state("load")
    page.locator(".related-pages a.prev-page").click()
    assert page.url == address(f"notebooks/{NOTEBOOKS[-2].stem}.html")


def test_no_link_of_the_book_leads_nowhere():
    for source in sorted(SITE.rglob("*.html")):
        text = re.sub(r"<pre.*?</pre>", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if not re.match(r"[a-z]+:", link):
                assert (source.parent / link).exists(), f"{source.name}: {link}"


def test_the_search_finds_without_a_server(open_page):
    page = open_page()
    page.goto(address("search.html") + "?q=residual")
    found = page.locator("#search-results li a")
    found.first.wait_for()
    assert any("Rejection sampling" in text for text in found.all_inner_texts())


def test_a_printed_chapter_has_its_text_and_no_navigation(open_page):
    page = open_page()
    page.goto(address(f"notebooks/{NOTEBOOKS[5].stem}.html"))
    page.emulate_media(media="print")
    assert page.locator("h1").first.is_visible()
    assert not page.locator(".sidebar-drawer").is_visible()


@pytest.mark.parametrize(
    ("chapter", "name"), [(0, "explorer"), (0, "player"), (5, "explorer"), (7, "player")]
)
def test_a_chapter_leads_to_the_pages_to_play_with(open_page, chapter, name):
    page = open_page()
    page.goto(address(f"notebooks/{NOTEBOOKS[chapter].stem}.html"))
    page.locator(f"article a[href='../{name}.html']").first.click()
    assert page.url == address(f"{name}.html") and page.evaluate(f"{name}.state")
    assert page.locator("nav a").first.is_visible()


def test_the_gallery_shows_every_bug_with_its_edit_and_its_check():
    source = (SITE / "gallery.html").read_text(encoding="utf-8")
    assert source.count("<h3>") == len(BUGS) == source.count('<div class="highlight-diff')
    for bug in BUGS:
        assert f"sees it: <em>{bug.caught_by}</em>" in source
