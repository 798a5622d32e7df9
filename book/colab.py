"""Copies of the chapters for Colab, which has PyTorch but not this package."""

import json
import re
from pathlib import Path

from nanogpt.course.command import copy

INSTALL = """\
# Colab has all that the package needs: pip brings the package alone, and no other PyTorch.
from importlib.util import find_spec

if find_spec("nanogpt") is None:
    %pip install -q "nanogpt @ git+https://github.com/{repository}@{ref}"
"""


def for_colab(folder: Path, repository: str, ref: str) -> None:
    """Write the chapters without outputs into a folder; the first cell of each installs.

    A repository is "owner/name", on GitHub; links to other files lead there. Raises ValueError if
    the chapters are not here.
    """
    copy(folder)
    source = INSTALL.format(repository=repository, ref=ref)
    first = {"cell_type": "code", "id": "install", "metadata": {}, "source": source}
    first |= {"outputs": [], "execution_count": None}
    there = f"](https://github.com/{repository}/blob/{ref}/notebooks/"
    for path in folder.glob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            cell["source"] = re.sub(r"\]\((?=[\w./]+\.(?:ipynb|html|md)\b)", there, text)
        notebook["cells"].insert(0, first)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
