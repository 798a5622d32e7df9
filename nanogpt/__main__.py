"""One command for all that the package does: `nanogpt WORD …`, or `python -m nanogpt WORD …`."""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {  # word: (module, what it does)
    "course": ("course.command", "how far you are: your answers, and what the judges say of them"),
    "demo": ("course.demo", "one prompt, decoded both ways, in the terminal"),
    "bench": ("measure.bench", "drafts against plain decoding, in pairs"),
    "load": ("measure.load", "how many requests a second a server stands, and within an SLO"),
    "size": ("measure.size", "will it pay? your model, GPU and load"),
    "check": ("engines.check", "does it hold on a model of yours? any of transformers"),
    "export": ("engines.export", "our models as folders for other engines"),
    "audit": ("engines.audit", "is an engine lossless?"),
    "serve": ("engines.serve", "our models behind an address, in the form of OpenAI's"),
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
NOT_DONE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    word, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if word in ("-h", "--help"):
        print(HELP)
        return 0
    if word not in COMMANDS:
        return not_done(f"error: no command {word!r}; use one of {', '.join(COMMANDS)}")
    try:
        code = importlib.import_module(f"nanogpt.{COMMANDS[word][0]}").main(rest) or 0
        sys.stdout.flush()  # so that who has stopped reading is met here, and not at the exit
        return code
    except BrokenPipeError:  # as in `nanogpt size | head -1`: nothing to say to anybody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE
    except (ValueError, OSError, ImportError) as error:
        return not_done(f"error: {error}")
    except KeyboardInterrupt as stopped:
        return not_done("; ".join(["stopped", *map(str, stopped.args)]))


def not_done(why: str) -> int:
    """Say why, in one line; returns the exit code."""
    print(" ".join(why.split()), file=sys.stderr)
    return NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
