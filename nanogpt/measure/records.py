"""The records: published speeds, and ours, each row with all that its number depends on.

`data/records.json` is the one list; book/records.md and chapter 35 show it. `nanogpt bench
--records` prints rows of ours, measured there and then, in the same fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from nanogpt.data import DATA_DIR

FILE = DATA_DIR / "records.json"
FIELDS = ("method", "speed-up", "model", "task", "temperature", "batch", "machine", "budget")
FIELDS += ("baseline", "date", "source")


def load(path: str | Path = FILE) -> list[dict[str, str]]:
    """The rows, as the file has them.

    Raises ValueError for a row that lacks a field, leaves one empty or has one too many: what a
    source does not say is "not stated".
    """
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    for number, row in enumerate(rows, 1):
        for field in (*FIELDS, *row):
            if field not in FIELDS or not row.get(field, "").strip():
                raise ValueError(
                    f"row {number} ({row.get('method')}): {field!r} is empty, missing or no field; "
                    'write "not stated" where the source does not say'
                )
    return rows


def table(rows: Sequence[dict[str, str]], fields: Sequence[str] = FIELDS) -> str:
    """Some fields of the rows as a table in Markdown; an address becomes a link of its host."""
    lines = [fields, ["---"] * len(fields), *([row[field] for field in fields] for row in rows)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return re.sub(r"https://([^/\s]+)(\S*[^\s;,.|])", r"[\1](https://\1\2)", text)
