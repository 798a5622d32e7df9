"""Renders the executed series to a static site: `make book`, or `python book/build.py`.

The notebooks are shown as they are stored; nothing is executed. The site, build/book/index.html, needs no network and no server.
"""

import difflib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nanogpt.proof.bugs import BUGS, Bug
from nanogpt.proof.checks import CHECKS, SLOW_CHECKS
from nanogpt.proof.checks_serving import SERVING_CHECKS
from nanogpt.proof.gallery import PACKAGE, edited

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "book-source", ROOT / "build" / "book"
GROUPS = {  # the gallery's parts: the last bug of each, and the chapter that shows them
    "Chains": (32, "08_equivalence"),
    "Trees and blocks": (46, "17_lossless_trees"),
    "Drafts that read features": (53, "19_eagle"),
    "Batches": (58, "23_batches"),
    "Paged caches": (61, "25_paged_cache"),
    "Drafting ahead": (63, "26_speculating_on_speculation"),
    "A server": (len(BUGS), "24_continuous_batching"),
}
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


def leading_to_pages(text: str, up: str = "") -> str:
    """The Markdown, its links to the two pages to play with turned from the repository's files to
    the site's pages, `up` from where it stands.
    """
    link = r"\[([^\]]+)\]\((?:\.\./)?book/(\w+\.html)\)"
    return re.sub(link, rf'<a href="{up}\2">\1</a>', text)


def lead_to_pages(notebook: dict) -> None:
    """Let a chapter's links to the two pages to play with lead to the site's."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = leading_to_pages("".join(cell["source"]), up="../")


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
    """All bugs of nanogpt.gallery in Markdown: what each does, where it was found, what sees it."""
    page, first = [], 1
    for group, (last, chapter) in GROUPS.items():
        page.append(f"## {group}\n\nShown in [chapter {chapter[:2]}](notebooks/{chapter}.ipynb).")
        for bug in BUGS[first - 1 : last]:
            found = f"Found in {linked(bug.seen_in)}." if bug.seen_in else "An edit of our own."
            page += [
                f"### {bug.number} · {bug.title}",
                f"**{EFFECTS[bug.kind]}** The check that sees it: *{bug.caught_by}*. {found}",
                f"```{{code-block}} diff\n:caption: nanogpt/{bug.module}.py\n\n{as_diff(bug)}\n```",
            ]
        first = last + 1
    rows = ["| check | what it holds a decoder to |", "|---|---|"]
    for name, check in (SLOW_CHECKS | SERVING_CHECKS | CHECKS).items():
        summary = " ".join(check.__doc__.split("\n\n")[0].split())
        rows.append(f"| *{name}* | {summary} |")
    text = (ROOT / "book" / "gallery.md").read_text(encoding="utf-8")
    return "\n\n".join([text, *page, "## The checks", "\n".join(rows)]) + "\n"


def main() -> None:
    """Lay the sources out in build/book-source as in the repository, and render them."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "book", SOURCE, ignore=shutil.ignore_patterns("__pycache__", "live*"))
    shutil.copytree(ROOT / "notebooks" / "pictures", SOURCE / "notebooks" / "pictures")
    for page in PAGES:
        (SOURCE / page).parent.mkdir(exist_ok=True)
        text = leading_to_pages((ROOT / page).read_text(encoding="utf-8"))
        (SOURCE / page).write_text(text, encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        describe_pictures(notebook)
        lead_to_pages(notebook)
        text = json.dumps(notebook, ensure_ascii=False)
        (SOURCE / "notebooks" / path.name).write_text(text, encoding="utf-8")
    (SOURCE / "gallery.md").write_text(gallery_page(), encoding="utf-8")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    subprocess.run([*sphinx, SOURCE, SITE], check=True)
    subprocess.run([sys.executable, ROOT / "book" / "live.py", SITE / "live.html"], check=True)
    print(f"the book: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
