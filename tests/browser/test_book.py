"""The reading copy, opened from disk: whole, offline, fit for a phone, an e-reader and paper."""

import functools
import posixpath
import re
import zipfile
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from pages import DESKTOP, PHONE
from series import NOTEBOOKS, ROOT, cells, glossary

from nanogpt.proof.bugs import BUGS

SITE = ROOT / "build" / "book"
EPUB = SITE / "speculative-decoding-from-scratch.epub"
PAGES = ["index.html", "see.html", "run.html", "gallery.html", "explorer.html", "live.html"]
PAGES += ["questions.html", "glossary.html", "test_yourself.html", "api.html", "print.html"]
PAGES += [f"notebooks/{path.stem}.html" for path in NOTEBOOKS]
every_page = pytest.mark.parametrize("name", PAGES)

if not (SITE / "live.html").exists():
    pytest.skip("no book in build/book: make book", allow_module_level=True)


def address(name):
    return (SITE / name).as_uri()


@every_page
def test_a_page_loads_offline_fits_a_desktop_and_a_phone_and_shows_its_pictures(same_page, name):
    same_page.context.set_offline(True)
    same_page.goto(address(name))
    for width, height in (DESKTOP, PHONE):
        same_page.set_viewport_size({"width": width, "height": height})
        scroll, inner = same_page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert scroll <= inner == width, "the page scrolls sideways"
    described = same_page.locator("meta[name=description]").count()
    assert same_page.title() and (described == 1 or name == "print.html")
    if name.startswith("notebooks/"):
        path = ROOT / name.replace(".html", ".ipynb")
        assert_pictures_are_described(same_page, path)


def assert_pictures_are_described(page, path):
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
        page.wait_for_load_state("load")  # what is still coming would be cut off: a fault
        page.locator(".related-pages a.next-page").click()
        assert page.url == address(f"notebooks/{path.stem}.html")
    page.wait_for_load_state("load")
    page.locator(".related-pages a.prev-page").click()
    assert page.url == address(f"notebooks/{NOTEBOOKS[-2].stem}.html")


@functools.cache
def ids(page):
    """The ids of a page, each of which it may have once."""
    found = re.findall(r' id="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(found) == len(set(found)), f"{page.name}: {[i for i in found if found.count(i) > 1]}"
    return set(found)


def test_no_link_of_the_book_leads_nowhere():
    for source in sorted(SITE.rglob("*.html")):
        text = re.sub(r"<pre.*?</pre>", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"]+)', text):
            file, _, anchor = re.sub(r"\?[^#]*", "", link).partition("#")
            if not re.match(r"[a-z]+:", link):
                to = source.parent / file if file else source
                assert to.exists(), f"{source.name}: {link}"
                assert not anchor or unquote(anchor) in ids(to), f"{source.name}: {link}"


def test_the_search_finds_without_a_server(open_page):
    page = open_page()
    page.goto(address("search.html") + "?q=residual")
    found = page.locator("#search-results li a", has_text="Rejection sampling")
    found.first.wait_for()  # they come one after another


def test_a_printed_chapter_has_its_text_and_no_navigation(open_page):
    page = open_page()
    page.goto(address(f"notebooks/{NOTEBOOKS[5].stem}.html"))
    page.emulate_media(media="print")
    assert page.locator("h1").first.is_visible()
    assert not page.locator(".sidebar-drawer").is_visible()


@pytest.mark.parametrize(
    ("chapter", "name"), [(0, "explorer"), (0, "live"), (5, "explorer"), (7, "live")]
)
def test_a_chapter_leads_to_the_pages_to_play_with(open_page, chapter, name):
    page = open_page()
    page.goto(address(f"notebooks/{NOTEBOOKS[chapter].stem}.html"))
    page.locator(f"article a[href='../{name}.html']").first.click()
    page.wait_for_function(f"window.{name}?.state || window.{name}?.ready")
    assert page.url == address(f"{name}.html")
    assert page.locator("nav a").first.is_visible()


def test_the_gallery_shows_every_bug_with_its_edit_and_its_check():
    source = (SITE / "gallery.html").read_text(encoding="utf-8")
    assert source.count("<h3>") == len(BUGS) == source.count('<div class="highlight-diff')
    for bug in BUGS:
        assert f"sees it: <em>{bug.caught_by}</em>" in source


@pytest.mark.parametrize("page", ["records", f"notebooks/{NOTEBOOKS[35].stem}"])
def test_a_table_that_a_cell_or_a_build_writes_is_one(page):
    source = (SITE / f"{page}.html").read_text(encoding="utf-8")
    assert source.count("<td") >= 100 and "| ---" not in source and "| \N{EM DASH} |" not in source


def test_a_block_that_scrolls_is_reached_by_keyboard_and_only_code_is_copied(open_page):
    page = open_page()
    page.goto(address("gallery.html"))
    scrolls = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.tabIndex)"
    assert set(page.locator("pre").evaluate_all(scrolls)) == {0}
    page.goto(address(f"notebooks/{NOTEBOOKS[5].stem}.html"))
    assert page.locator(".cell_output .copybtn").count() == 0 < page.locator(".copybtn").count()


def test_test_yourself_folds_every_answer_and_unfolds_it_on_paper(open_page):
    page = open_page()
    page.goto(address("test_yourself.html"))
    answers = page.locator("article details")
    assert answers.count() == page.locator("article ol > li").count() >= 3 * len(NOTEBOOKS)
    text = answers.first.locator("p")
    assert not text.is_visible()
    page.emulate_media(media="print")
    assert text.bounding_box()["height"] > 0


def test_every_word_of_the_glossary_has_an_anchor():
    source = (SITE / "glossary.html").read_text(encoding="utf-8")
    anchors = dict(re.findall(r'<h3>(.+?)<a class="headerlink" href="#([^"]+)"', source))
    assert list(anchors) == list(glossary())
    assert set(anchors.values()) <= ids(SITE / "glossary.html")


def test_a_formula_is_set_and_not_shown_as_it_is_written():
    written = [cell.source for path in NOTEBOOKS for cell in cells(path, "markdown")]
    formulas = sum(source.count("$$") // 2 for source in written)
    pages = [page.read_text(encoding="utf-8") for page in SITE.glob("notebooks/*.html")]
    assert sum(page.count('<math display="block"') for page in pages) == formulas > 0
    assert not any(r"\mathrm" in page for page in pages)


# On paper


PAPER = """() => ({
    sheets: [...document.querySelectorAll('article')]
        .filter(a => getComputedStyle(a).breakBefore == 'page').map(a => a.id),
    contents: [...document.querySelectorAll('nav a')].map(a => a.getAttribute('href').slice(1)),
    cut: [...document.querySelectorAll('pre')]
        .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
    folded: document.querySelectorAll('details:not([open])').length,
})"""


def test_the_page_to_print_has_every_chapter_on_a_new_sheet_and_cuts_no_line(open_page):
    page = open_page((700, 1000))  # about as wide as the text on A4
    page.emulate_media(media="print")
    page.goto(address("print.html"))
    paper = page.evaluate(PAPER)
    assert paper["sheets"] == paper["contents"]
    assert paper["sheets"][: len(NOTEBOOKS)] == [path.stem for path in NOTEBOOKS]
    assert paper["cut"] == [] and paper["folded"] == 0


def test_the_page_to_print_leads_nowhere_else_and_shows_all_pictures():
    paper = (SITE / "print.html").read_text(encoding="utf-8")
    body = re.sub(r"<pre.*?</pre>", "", paper, flags=re.DOTALL).split("<body")[1]
    assert all(re.match("#|https?:", link) for link in re.findall(r'href="([^"]+)"', body))
    outputs = [o for path in NOTEBOOKS for cell in cells(path, "code") for o in cell.outputs]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert body.count('<img alt="') == pictures


# On an e-reader


XHTML = "{http://www.w3.org/1999/xhtml}"


@functools.cache
def epub():
    """{file: what is in it} of the EPUB; a document is parsed, which fails where it is no XML."""
    with zipfile.ZipFile(EPUB) as packed:
        first = packed.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
        held = {name: packed.read(name) for name in packed.namelist()}
    assert held.pop("mimetype") == b"application/epub+zip"
    xml = (".xhtml", ".opf", ".ncx", ".xml")
    return {n: ElementTree.fromstring(h) if n.endswith(xml) else h for n, h in held.items()}


def documents():
    return {name: held for name, held in epub().items() if name.endswith(".xhtml")}


def test_the_epub_lists_all_that_it_holds_and_which_of_it_has_formulas():
    opf = "{http://www.idpf.org/2007/opf}"
    listed = epub()["content.opf"].iter(f"{opf}item")
    items = {item.get("href"): item.get("properties") for item in listed}
    assert set(items) | {"content.opf", "META-INF/container.xml"} == set(epub())
    math = "{http://www.w3.org/1998/Math/MathML}math"
    having = {name for name, held in documents().items() if held.find(f".//{math}") is not None}
    assert {name for name, has in items.items() if has == "mathml"} == having


def test_the_contents_of_the_epub_name_every_chapter():
    listed = {link.get("href") for link in epub()["nav.xhtml"].iter(f"{XHTML}a")}
    assert {f"notebooks/{path.stem}.xhtml" for path in NOTEBOOKS} <= listed


def test_the_epub_has_no_script_no_lost_link_and_a_description_of_each_picture():
    for name, held in documents().items():
        assert held.find(f".//{XHTML}script") is None, name
        for element in held.iter():
            link = element.get("href") or element.get("src") or "https:"
            file, _, anchor = unquote(link).partition("#")
            if not re.match("https?:|mailto:", link):
                folder = posixpath.dirname(name)
                to = posixpath.normpath(posixpath.join(folder, file)) if file else name
                assert to in epub(), f"{name}: {link}"
                assert not anchor or held_ids(to) >= {anchor}, f"{name}: {link}"
            if element.tag == f"{XHTML}img":
                assert len(element.get("alt")) > 20, f"{name}: {link}"


@functools.cache
def held_ids(name):
    """The ids of a document of the EPUB."""
    return {element.get("id") for element in epub()[name].iter()}
