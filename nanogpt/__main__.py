"""One command for all that the package does: `nanogpt WORD …`, or `python -m nanogpt WORD …`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback

COMMANDS = {  # word: (module, what it does)
    "course": ("course.command", "how far you are: your answers, and what the judges say of them"),
    "demo": ("course.demo", "one prompt, decoded both ways, in the terminal"),
    "bench": ("measure.bench", "drafts against plain decoding, in pairs"),
    "load": ("measure.load", "requests a second that a server can take, and within an SLO"),
    "size": ("measure.size", "will it pay? your model, GPU and load"),
    "advise": ("engines.advise", "which K, for your pair and your prompts? it may say none"),
    "check": ("engines.check", "does it hold on a model of yours? any of transformers"),
    "export": ("engines.export", "our models as folders for other engines"),
    "audit": ("engines.audit", "is an engine lossless?"),
    "serve": ("engines.serve", "our models behind an address, in the form of OpenAI's"),
    "arena": ("arena.race", "a draft of your own, judged and raced against ours"),
    "train": ("train", "the target from scratch; goes on where it stopped"),
    "data": ("data", "puts the corpus in place, and says which one is in use"),
}
TRACEBACK = "NANOGPT_TRACEBACK"
HELP = "\n".join(
    [
        "usage: nanogpt WORD [arguments]",
        "",
        "Speculative decoding from scratch, on a small GPT.",
        "",
        *(f"  {word:8}{does}" for word, (_, does) in COMMANDS.items()),
        "",
        "`nanogpt WORD --help` has the arguments. Exit codes: 0, done; 1, done, and the answer",
        "is no (an engine is wrong, a draft is refused); 2, no answer, for the reason given;",
        f"130, stopped by Ctrl-C. {TRACEBACK}=1 shows where an error arose.",
    ]
)
NO_ANSWER, STOPPED = 2, 130


def run(word: str, *rest: str) -> int:
    """A command's exit code. Whatever goes wrong on the way is raised."""
    if word in ("-h", "--help"):
        print(HELP)
        return 0
    if word not in COMMANDS:
        raise ValueError(f"no command {word!r}; use one of {', '.join(COMMANDS)}")
    try:
        return importlib.import_module(f"nanogpt.{COMMANDS[word][0]}").main([*rest]) or 0
    except SystemExit as ended:
        *_, (frame, _) = traceback.walk_tb(ended.__traceback__)
        if frame.f_globals["__name__"] != "argparse":
            raise  # by a file of the reader's, say: it is no answer
        return int(ended.code or 0)  # after --help, or an argument that is none


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code, which is NO_ANSWER for all that may be raised."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this, and reads the code alone
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    with contextlib.suppress(AttributeError):  # in a notebook
        sys.stdout.reconfigure(errors="replace")  # an α that cannot be written is no reason to stop
    try:
        code = run(*((sys.argv[1:] if arguments is None else arguments) or ["--help"]))
        sys.stdout.flush()  # so that who has stopped reading is met here, and not at the exit
        return code
    except BrokenPipeError:  # as in `nanogpt size | head -1`: nothing to say to anybody
        return ended(NO_ANSWER, "")
    except KeyboardInterrupt as stopped:
        return ended(STOPPED, "; ".join(["stopped", *map(str, stopped.args)]))
    except BaseException as error:
        why = str(error)
        if not isinstance(error, (ValueError, OSError, ImportError)) or not why:  # not foreseen
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            at = f"{os.path.basename(frame.f_code.co_filename)}, line {line}"
            kind = f"{type(error).__name__}: {why}".removesuffix(": ")
            why = f"{kind} ({at}; {TRACEBACK}=1 shows the way there)"
        return ended(NO_ANSWER, f"error: {why}", traceback.format_exc())


def ended(code: int, why: str, way: str = "") -> int:
    """Say why, in one line, after the way there if that is wanted; returns the exit code."""
    line = " ".join(why.split()) + "\n" * bool(why)
    for stream, text in ((sys.stdout, ""), (sys.stderr, way * (TRACEBACK in os.environ) + line)):
        try:
            print(text, end="", file=stream, flush=True)
        except (OSError, ValueError):  # nobody reads it: the exit must not try again
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
