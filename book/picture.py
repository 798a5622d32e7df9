"""The README's picture, taken from the stored outputs of chapter 00: `python book/picture.py`"""

import base64
import json
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CHAPTER = NOTEBOOKS / "00_start_here.ipynb"
PICTURE = NOTEBOOKS / "pictures" / "trace.png"


def stored_pictures(notebook: Path) -> list[bytes]:
    """The PNGs among the stored outputs of a notebook, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    encoded = [
        output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    return [base64.b64decode(png) for png in encoded]


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(stored_pictures(CHAPTER)[0])
    print(f"wrote {PICTURE}")
