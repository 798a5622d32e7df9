"""Renders the executed series to a static site: `make book`, or `python book/build.py`.

The notebooks are shown as they are stored, nothing is executed but the generations that the player
page shows. The site, build/book/index.html, needs no network and no server.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "book-source", ROOT / "build" / "book"
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "data/README.md"]


def describe_pictures(notebook: dict) -> None:
    """Hand each picture's description, stored with it, to the renderer, which asks the cell."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            described = output.get("metadata", {}).get("image/png", {})
            if "alt" in described:
                cell["metadata"]["mystnb"] = {"image": {"alt": described["alt"]}}


def lead_to_pages(notebook: dict) -> None:
    """Let the links to the two pages to play with, made for JupyterLab, lead to the site's."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = "".join(cell["source"])
            link = r"\[([^\]]+)\]\(/files/book/(\w+\.html)\)"
            cell["source"] = re.sub(link, r'<a href="../\2">\1</a>', source)


def main() -> None:
    """Lay the sources out in build/book-source as in the repository, and render them."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "book", SOURCE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "notebooks" / "pictures", SOURCE / "notebooks" / "pictures")
    for page in PAGES:
        (SOURCE / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, SOURCE / page)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        describe_pictures(notebook)
        lead_to_pages(notebook)
        text = json.dumps(notebook, ensure_ascii=False)
        (SOURCE / "notebooks" / path.name).write_text(text, encoding="utf-8")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    subprocess.run([*sphinx, SOURCE, SITE], check=True)
    subprocess.run([sys.executable, ROOT / "book" / "record.py", SITE / "player.html"], check=True)
    print(f"the book: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
