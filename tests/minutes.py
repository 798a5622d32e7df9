"""Writes how long each chapter takes into its opening and the README: `make minutes`.

With --check it writes nothing, says which files it would change, and fails if there are any.
"""

import argparse
import json
import re

from series import NOTEBOOKS, ROOT, TIMED, minutes, prose, read, solutions, turn

SAID = r"(?m)^\*\*Minutes\*\* (\d+)"  # of an opening; what follows is the author's
HEAD = "| chapter | question | minutes |\n|---|---|---|\n"
PATH = r"(?m)^(\| [^|[]+ \| (chapters [^|:]+|all)\b[^|]* \| )\d+ h \|$"  # an hour is one of reading


def checked(path):
    """The chapter's minutes, if its opening has a place for them and every exercise has a time."""
    if not re.search(SAID, read(path).cells[0].source):
        raise SystemExit(f"error: {path.name}: no **Minutes** in the opening")
    timed, tried = len(re.findall(TIMED, prose(path))), len(solutions(path)) + bool(turn(path))
    if timed != tried:
        wanted = "### Exercise 1 · its title · 5 min"
        raise SystemExit(f"error: {path.name}: {tried} exercises, {timed} headings like {wanted}")
    return minutes(path)


def in_opening(path):
    """The notebook's file with its minutes in the opening."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    opening = "".join(notebook["cells"][0]["source"])
    right = re.sub(SAID, f"**Minutes** {checked(path)}", opening, count=1)
    if right == opening:
        return text
    notebook["cells"][0]["source"] = right.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def row(path):
    """A chapter's line in the README: title and question are those of its opening."""
    opening = read(path).cells[0].source
    title = re.match(r"# (.*)", opening).group(1)
    question = re.search(r"\*\*Question\*\* (.*)", opening).group(1)
    return f"| [{title}](notebooks/{path.name}) | {question} | {minutes(path)} |\n"


def together(chapters):
    """The hours, rounded, of "chapters 00, 03 to 07" or of "all"."""
    spans = re.findall(r"(\d\d)(?: to (\d\d))?", chapters) or [(0, len(NOTEBOOKS) - 1)]
    asked = {n for first, last in spans for n in range(int(first), int(last or first) + 1)}
    return round(sum(minutes(NOTEBOOKS[number]) for number in asked) / 60)


def in_readme(text):
    """The README with its table of chapters, and what its paths through them take."""
    before, after = text.split(HEAD)
    after = re.sub(r"\A(\|.*\n)*", lambda _: "".join(map(row, NOTEBOOKS)), after)
    text = before + HEAD + after
    return re.sub(PATH, lambda found: f"{found.group(1)}{together(found.group(2))} h |", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it would")
    check = parser.parse_args().check
    readme = ROOT / "README.md"
    files = {path: in_opening(path) for path in NOTEBOOKS}
    files[readme] = in_readme(readme.read_text(encoding="utf-8"))
    stale = [path for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"error: {path.name}: other minutes" if check else f"wrote {path.name}")
        if not check:
            path.write_text(files[path], encoding="utf-8")
    if check and stale:
        raise SystemExit("run `make minutes`")


if __name__ == "__main__":
    main()
