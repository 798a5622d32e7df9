"""Renders the executed series as a site, an EPUB and a page to print: `python book/build.py`.

The notebooks are shown as they are stored; nothing is executed. The site, build/book/index.html,
needs no network and no server.
"""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from colab import for_colab
from paper import printable
from yourself import yourself_page

from nanogpt.measure import records
from nanogpt.proof.bugs import BUGS, Bug
from nanogpt.proof.checks import CHECKS, SLOW_CHECKS
from nanogpt.proof.checks_promises import PROMISE_CHECKS
from nanogpt.proof.checks_serving import SERVING_CHECKS
from nanogpt.proof.decoders import KINDS
from nanogpt.proof.gallery import PACKAGE, edited

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SOURCE, READ = BUILD / "book-source", BUILD / "book-doctrees"
SITE, PACKED = BUILD / "book", BUILD / "book-epub"
EPUB = "speculative-decoding-from-scratch.epub"
EFFECTS = {
    "biased": "Writes another distribution.",
    "slow": "Exact, but slower.",
    "error": "Wrong length, count or memory.",
}
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]
PAGES += ["data/README.md", "data/audits.md"]


def describe_pictures(notebook: dict) -> None:
    """Hand each picture's description, stored with it, to the renderer, which asks the cell."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            described = output.get("metadata", {}).get("image/png", {})
            if "alt" in described:
                cell["metadata"]["mystnb"] = {"image": {"alt": described["alt"]}}


def leading_to_pages(text: str, folder: str = "") -> str:
    """The Markdown of a file in the repository's `folder`, its links turned to the site's pages.

    The book's folder is the site's root; all else lies in the site as in the repository. A page to
    play with is no document of Sphinx's, so a link to one is written out. A heading of a chapter is
    named as in JupyterLab, #The-rule, and becomes Sphinx's #the-rule.
    """
    if folder == "book":
        text = text.replace("](../", "](")
    else:
        text = re.sub(r"\]\((\.\./)?book/", r"](\1", text)
    text = re.sub(r"(?<=\.ipynb)#[^)\s]+", lambda anchor: slug(anchor[0]), text)
    return re.sub(r"\[([^\]]+)\]\(((?:\.\./)?\w+\.html)\)", r'<a href="\2">\1</a>', text)


def slug(anchor: str) -> str:
    """A heading's name in a link, as Sphinx makes it of JupyterLab's."""
    return "#" + re.sub(r"[^\w-]", "", anchor.lower())


def lead_to_pages(notebook: dict) -> None:
    """Let a chapter's links lead to the site's pages."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = leading_to_pages("".join(cell["source"]), "notebooks")


def linked(seen_in: str) -> str:
    """Where a bug was found, in Markdown: a link for each repository, issue or pull request."""
    linked, repository = [], ""
    for part in re.split(r"([;,] )", seen_in):
        if found := re.match(r"([\w-]+/[\w.-]+)?(?:#(\d+))?", part):
            repository = found[1] or repository
            if found[0]:
                issue = f"/issues/{found[2]}" if found[2] else ""
                link = f"[{found[0]}](https://github.com/{repository}{issue})"
                part = link + part[found.end() :]
        linked.append(part)
    return "".join(linked)


def as_diff(bug: Bug) -> str:
    """The edit that makes the bug, with two lines around it."""
    real = (PACKAGE / f"{bug.module}.py").read_text(encoding="utf-8")
    files = real.splitlines(), edited(bug, bug.module).splitlines()
    _, _, *lines = difflib.unified_diff(*files, n=2, lineterm="")
    return "\n".join(lines)


def gallery_page() -> str:
    """All bugs of the gallery in Markdown: what each does, where it was found, what sees it.

    By the chapter that shows them, in the order of the first of each.
    """
    page, shown = [], {}
    for bug in BUGS:
        shown.setdefault(bug.chapter or KINDS[bug.decoder].chapter, []).append(bug)
    for chapter, bugs in shown.items():
        [path] = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
        opening = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
        title = re.match("# (.+)", "".join(opening))[1]
        page.append(f"## {title}\n\nShown in [chapter {chapter}](../notebooks/{path.name}).")
        for bug in bugs:
            found = f"Found in {linked(bug.seen_in)}." if bug.seen_in else "An edit of our own."
            page += [
                f"### {bug.number} · {bug.title}",
                f"**{EFFECTS[bug.kind]}** The check that sees it: *{bug.caught_by}*. {found}",
                f"```{{code-block}} diff\n:caption: nanogpt/{bug.module}.py\n\n{as_diff(bug)}\n```",
            ]
    rows = ["| check | what it holds a decoder to |", "|---|---|"]
    for name, check in (SLOW_CHECKS | SERVING_CHECKS | PROMISE_CHECKS | CHECKS).items():
        summary = " ".join(check.__doc__.split("\n\n")[0].split())
        rows.append(f"| *{name}* | {summary} |")
    text = (ROOT / "book" / "gallery.md").read_text(encoding="utf-8")
    return "\n\n".join([text, *page, "## The checks", "\n".join(rows)]) + "\n"


def records_page() -> str:
    """The records in Markdown: an introduction, then all fields of all rows."""
    text = (ROOT / "book" / "records.md").read_text(encoding="utf-8")
    return f"{text}\n{records.table(records.load())}\n"


ALONE = ["explorer.html", "live.html"]  # pages to play with
WRITTEN = {  # longer than their file
    "gallery.md": gallery_page,
    "records.md": records_page,
    "test_yourself.md": yourself_page,
}


def sources() -> Iterator[tuple[str, str]]:
    """(where in book-source, text) of all that Sphinx reads, laid out as in the repository."""
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        yield name, leading_to_pages(text, Path(name).parent.name)
    for path in (ROOT / "book").glob("*.md"):
        written = WRITTEN[path.name]() if path.name in WRITTEN else path.read_text(encoding="utf-8")
        yield path.name, leading_to_pages(written, "book")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        describe_pictures(notebook)
        lead_to_pages(notebook)
        yield f"notebooks/{path.name}", json.dumps(notebook, ensure_ascii=False)


def sphinx(builder: str, out: Path) -> list[str | Path]:
    """The command that renders one form; both share what is read. A warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder]
    return [*command, "-d", READ, SOURCE, out]


def lay_out() -> None:
    """Write build/book-source anew; nothing of an earlier book is left."""
    for folder in (SOURCE, READ, SITE, PACKED):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "book", SOURCE, ignore=shutil.ignore_patterns("__pycache__", "live"))
    shutil.copytree(ROOT / "notebooks" / "pictures", SOURCE / "notebooks" / "pictures")
    for name, text in sources():
        (SOURCE / name).parent.mkdir(exist_ok=True)
        (SOURCE / name).write_text(text, encoding="utf-8")


def in_the_site(page: str) -> str:
    """A page to play with: its links lead somewhere here; its picture for previews is the site's.

    A preview needs the picture's whole address, so whoever publishes the site sets BOOK_URL.
    """
    page = page.replace('<nav aria-label="The book" hidden>', '<nav aria-label="The book">')
    pictures = (os.environ.get("BOOK_URL") or ".").rstrip("/") + "/_images/"
    return page.replace('og:image" content="notebooks/pictures/', f'og:image" content="{pictures}')


def main() -> None:
    """Lay out the sources, and render them: a site, the page to print made of it, and an EPUB."""
    lay_out()
    subprocess.run(sphinx("html", SITE), check=True)
    subprocess.run(sphinx("epub", PACKED), check=True)
    shutil.copy(PACKED / EPUB, SITE)
    for page in ALONE:
        text = (SITE / page).read_text(encoding="utf-8")
        (SITE / page).write_text(in_the_site(text), encoding="utf-8")
    (SITE / "print.html").write_text(printable(SITE), encoding="utf-8")
    if repository := os.environ.get("GITHUB_REPOSITORY"):  # the workflow's
        for_colab(SITE / "colab", repository, os.environ["GITHUB_SHA"])
    print(f"the book: {SITE / 'index.html'}, beside it print.html and {EPUB}")


if __name__ == "__main__":
    main()
