"""All questions from memory, of every chapter: the page test_yourself, which build.py writes."""

import json
import re
from pathlib import Path

BOOK = Path(__file__).resolve().parent
RECAP = r"\*\*Three questions, from memory\*\*(.+?)<details>.+?</summary>(.+?)</details>"


def asked(last_cell: str) -> list[tuple[str, str]]:
    """The questions of a chapter's last cell, each with its answer, in Markdown."""
    parts = re.search(RECAP, last_cell, re.DOTALL).groups()
    questions, answers = (re.findall(r"(?m)^\d+\. (.+)$", part) for part in parts)
    return list(zip(questions, answers, strict=True))


def folded(number: int, question: str, answer: str) -> str:
    """A question as the item of a list, its answer folded away below."""
    lines = [f"{number}. {question}", "<details><summary>Answer</summary>", answer, "</details>"]
    return "\n\n   ".join(lines)


def section(path: Path) -> str:
    """A chapter's title, the question that it answers, a link to it, and what it asks."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    opening, last = ("".join(cells[i]["source"]) for i in (0, -1))
    title = re.match("# (.+)", opening)[1]
    question = re.search(r"\*\*Question\*\* (.+)", opening)[1]
    asks = [folded(i, *pair) for i, pair in enumerate(asked(last), 1)]
    return "\n\n".join([f"## {title}", f"[{question}](../notebooks/{path.name})", *asks])


def yourself_page() -> str:
    """The page in Markdown, as if in the book's folder: an introduction, then all chapters."""
    chapters = sorted((BOOK.parent / "notebooks").glob("*.ipynb"))
    text = (BOOK / "test_yourself.md").read_text(encoding="utf-8")
    introduction = text.partition("\n---\n")[0].strip()  # the rest is for who reads that file
    return "\n\n".join([introduction, *map(section, chapters)]) + "\n"
