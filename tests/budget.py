"""What the project weighs, beside what it may weigh.

`python tests/budget.py` prints all of it, and the slowest tests and cells of the last `make test`.
With --check, as `make lint` calls it, it fails above a number below. Whoever makes something
smaller lowers its number; whoever raises one says why in the commit.
"""

import argparse
import json
import os

from series import NOTEBOOKS, ROOT, code_lines, prose

CORE = ["cache", "model", "sampling", "generate", "speculative"]  # chapter 07's decoder
MOST = {
    "lines of chapter 07's five files": 850,
    "lines of the package": 32022,
    "lines of the tests": 40390,
    "words of README": 1497,
    "words of the series": 92438,
    "lines of code of the series": 14728,
}
PROMISED = 12  # minutes of `make test` after the install, on two quiet cores
LAST = ROOT / ".pytest_cache" / "v" / "budget" / "last"  # what the last whole run took


def lines(folder):
    """How many there are in the Python files of a folder of the project."""
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in folder.rglob("*.py"))


def weights():
    """{what: how many}, with the names of MOST."""
    core = [(ROOT / "nanogpt" / f"{name}.py").read_text(encoding="utf-8") for name in CORE]
    counted = [
        sum(len(text.splitlines()) for text in core),
        lines(ROOT / "nanogpt"),
        lines(ROOT / "tests"),
        len((ROOT / "README.md").read_text(encoding="utf-8").split()),
        sum(len(prose(path).split()) for path in NOTEBOOKS),
        sum(len(code_lines(path)) for path in NOTEBOOKS),
    ]
    return dict(zip(MOST, counted, strict=True))


def heavier(counted):
    """A line for each number that is above what it may be."""
    return [
        f"error: {n:,} {what}, {MOST[what]:,} at most: take something away, or raise the number in "
        "tests/budget.py and say why in the commit"
        for what, n in counted.items()
        if n > MOST[what]
    ]


def took(seconds, load):
    """The last line of `make test`."""
    minutes, rest = divmod(round(seconds), 60)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f", load {load:.1f} before" if load is not None else ""
    return (
        f"make test took {minutes} min {rest} s on {cores} cores{busy}; "
        f"{PROMISED} minutes are promised on two quiet ones"
    )


def remember(seconds, load, durations):
    """Keep what a whole run took: durations is {test: seconds}."""
    LAST.parent.mkdir(parents=True, exist_ok=True)
    new = LAST.with_name(f"{os.getpid()}")  # another run may read or write it at the same time
    new.write_text(json.dumps([seconds, load, durations]), encoding="utf-8")
    new.replace(LAST)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail above the numbers")
    check, counted = parser.parse_args().check, weights()
    for what, n in counted.items():
        print(f"{n:8,} {what} ({MOST[what]:,} at most)")
    if not check and LAST.exists():
        seconds, load, durations = json.loads(LAST.read_text(encoding="utf-8"))
        print(took(seconds, load))
        for kind in ("notebooks/", "tests/"):
            its = sorted((s, test) for test, s in durations.items() if test.startswith(kind))
            print(f"\n{sum(s for s, _ in its):.0f} s in {kind} The slowest:")
            print(*(f"{s:8.1f} s {test}" for s, test in its[:-21:-1]), sep="\n")
    if check and heavier(counted):
        raise SystemExit("\n".join(heavier(counted)))


if __name__ == "__main__":
    main()
