"""One command for all that the package does: `nanogpt WORD …`, or `python -m nanogpt WORD …`."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {  # word: (module, what it does)
    "demo": ("commands.demo", "one prompt, decoded both ways, in the terminal"),
    "bench": ("measure.bench", "drafts against plain decoding, in pairs"),
    "size": ("commands.size", "will it pay? your model, GPU and load"),
    "export": ("engines.export", "our models as folders for other engines"),
    "audit": ("engines.audit", "is an engine lossless?"),
    "arena": ("arena.race", "a draft of your own, judged and raced against ours"),
    "train": ("train", "the target from scratch; goes on where it stopped"),
    "data": ("data", "puts the corpus in place, and says which one is in use"),
}
HELP = "\n".join(
    [
        "usage: nanogpt WORD [arguments]",
        "",
        "Speculative decoding from scratch, on a small GPT.",
        "",
        *(f"  {word:8}{does}" for word, (_, does) in COMMANDS.items()),
        "",
        "`nanogpt WORD --help` has the arguments. Exit codes: 0, done; 1, done, and the answer",
        "is no (an engine is wrong, a draft is refused); 2, not done, for the reason given.",
    ]
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    word, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if word in ("-h", "--help"):
        print(HELP)
        return 0
    if word not in COMMANDS:
        print(f"error: no command {word!r}; use one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(f"nanogpt.{COMMANDS[word][0]}").main(rest) or 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
