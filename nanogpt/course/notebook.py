"""What a notebook needs, besides its subject, to let its reader build."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable


class WrongAnswer(AssertionError):
    """What a check says of an answer. A notebook shows the sentence, and no traceback.

    Of an error that the check met in the answer, its cause, it shows the answer's line as well.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: its documentation, *Custom exception tracebacks*."""
        said = [f"\x1b[31m✗ {self}\x1b[0m"]
        for frame, line in traceback.walk_tb(self.__cause__ and self.__cause__.__traceback__):
            if frame.f_globals.get("__name__") == "__main__":
                code = linecache.getline(frame.f_code.co_filename, line).strip()
                said[1:] = [f"in {frame.f_code.co_name}, line {line}: {code}"]
        return said


def attempt(check: Callable, *mine) -> None:
    """Run `check` on the reader's own code and print how it went.

    Prints "not attempted yet" if the code is an untouched stub (a NotImplementedError that says
    nothing), "passed" if nothing is wrong. Raises WrongAnswer with what the check says;
    any error of the code itself is let through.
    """
    try:
        check(*mine)
    except NotImplementedError as error:
        if str(error):  # PyTorch's own, for a type that an operation does not take
            raise
        print("not attempted yet")
    except AssertionError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        package = frame.f_globals.get("__name__", "").startswith("nanogpt.")
        its_cell = getattr(getattr(check, "__code__", None), "co_filename", "")  # not the answer's
        if not str(error) or not (package or frame.f_code.co_filename == its_cell):
            raise
        raise WrongAnswer(str(error)) from error.__cause__
    else:
        print("passed")


def add_to(cls: type) -> Callable:
    """A decorator: what stands below it becomes a method of `cls`, a class that comes in pieces.

    Takes functions, class methods and properties.
    """

    def added(method):
        setattr(cls, getattr(method, "fget", method).__name__, method)
        return method

    return added


def your_guess(guess: float | str | None, form: str = "") -> str:
    """ "your guess: 0.50" in the given format, or, for None, "you did not guess"."""
    return "you did not guess" if guess is None else f"your guess: {guess:{form}}"
