"""Chapter 12: the judge of *Your turn*, and the chapter's own pictures.

The turn: a policy that looks back on the last rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.generate import Round
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, DRAFT, REJECTED, STYLE, Picture, picture, shown


class Watched(list):
    """Rounds that count how many of them are looked at."""

    looks = 0

    def __getitem__(self, i):
        got = super().__getitem__(i)
        self.looks += len(got) if isinstance(i, slice) else 1
        return got

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __reversed__(self):
        return (self[i] for i in range(len(self) - 1, -1, -1))


def judge(mine: Callable) -> None:
    """Judges my_by_acceptance(best, memory): a policy that asks `best` at the α of `memory` rounds.

    Raises AssertionError where K is not the best at that α, where the policy remembers an earlier
    call or changes what it is given, and where it reads more rounds, or asks more often, than it
    has to.
    """
    good, bad, some, full, empty = [(4, 4)], [(4, 0)], [(6, 2)], [(1, 1)], [(0, 0)]
    asked: list[float] = []

    def best(alpha):
        asked.append(float(alpha))
        return round(1000 * float(alpha))  # so that the answer shows the α

    for memory, pairs in (
        (2, []),
        (2, bad + good),  # the example
        (2, empty),
        (2, some),
        (3, good * 2 + some),
        (4, bad * 2 + full),  # fewer rounds than it remembers
        (3, bad * 9 + good * 3),
        (2, good * 9 + bad + some),
        (1, bad * 3 + some),
        (5, good * 2 + some * 2 + bad),
        (2, bad),  # a new text, shorter than the one before
        (3, (bad + good + some) * 200),
    ):
        policy = mine(best, memory)
        assert callable(policy), f"my_by_acceptance is to return a function, not {policy!r}"
        for again in ("", " when asked a second time about the same rounds"):
            rounds = Watched(rounds_of(pairs))
            before = len(asked)
            answer = policy(rounds)
            case = f"with memory {memory} and rounds of (drafted, accepted) {pairs[-9:]}{again}"
            pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and answer[1] is None
            assert pair, f"{case}: policy(rounds) gave {answer!r}, not (K, None)"
            fault = slip_of_estimate(answer[0], pairs, memory)
            assert not fault, f"{case}: {fault}"
            assert len(rounds) == len(pairs), f"{case}: the policy changed the list of rounds"
            assert rounds.looks < 100, (
                f"K is right, but to choose it for round {len(pairs) + 1} you looked at "
                f"{rounds.looks} rounds, where the last {memory} would do"
            )
            assert len(asked) - before <= 2, (
                f"K is right, but you asked best {len(asked) - before} times for one round; once "
                "will do"
            )


def rounds_of(pairs: Sequence[tuple[int, int]]) -> list[Round]:
    """A round for each (drafted, accepted), without probabilities."""
    none = torch.empty(0)
    return [Round([0] * k, none, none, [0] * (n + 1), 0) for k, n in pairs]


def slip_of_estimate(K: object, pairs: Sequence[tuple[int, int]], memory: int) -> str:
    """What is wrong with a K that is α in thousandths, or "" (α may be rounded to hundredths)."""

    def estimate(seen, examined=lambda k, n: min(n + 1, k), accepted=lambda k, n: n, a=13, b=16):
        a += sum(accepted(k, n) for k, n in seen)
        b += sum(examined(k, n) for k, n in seen)
        return a / b if b else 0.0

    last = pairs[-memory:]
    right = estimate(last)
    try:
        alpha = float(K) / 1000
    except (TypeError, ValueError):
        return f"K is {K!r}, not a number"
    if abs(alpha - right) < 0.006:
        return ""
    for fault, wrong in (
        ("you divide by the drafted guesses; examined are fewer", {"examined": lambda k, n: k}),
        (
            "where all were accepted, no further guess was examined",
            {"examined": lambda k, n: n + 1},
        ),
        (
            "accepted are one fewer than emitted: the last token is the target's own",
            {"accepted": lambda k, n: n + 1},
        ),
        ("where are the imagined guesses, 13 of 16? they always count", {"a": 0, "b": 0}),
    ):
        if abs(alpha - estimate(last, **wrong)) < 0.0006:
            return f"{fault}: best should be asked at α = {right:.3f}, not {alpha:.3f}"
    for fault, seen in (
        ("only the last rounds count", pairs),
        ("these are the first rounds, not the last", pairs[:memory]),
        ("the last round counts, too", pairs[:-1][-memory:]),
    ):
        if abs(alpha - estimate(seen)) < 0.0006:
            return f"{fault}: best should be asked at α = {right:.3f}, not {alpha:.3f}"
    return f"best should be asked at α = {right:.3f}; your K is its answer at {alpha:.3f}"


@mpl.rc_context(STYLE)
def asking(likeliest: Sequence[float], tokens: Sequence[str], title: str) -> Picture:
    """One round as a time line: where a policy is asked, what it may look at, what is too late.

    likeliest: the largest probability of each q that `more` was shown; tokens: those drawn, in
    order, one for each yes. Where there are fewer tokens than q, the last answer was no.
    """
    axes = sheet(title, 8, 2.7)
    steps = [("policy(rounds)\n→ (most, more)", "target")]
    for n, p in enumerate(likeliest[:4]):
        yes = n < len(tokens)
        steps.append((f"more(q, {n})?\nlargest q {p:.2f}\n{'yes' if yes else 'no: stop'}", "draft"))
        if yes:
            steps.append((f"draw\n{shown(tokens[n])}", "plain"))
    steps.append(("one pass,\naccept\nor reject", "target"))
    gap, y, h = 1.2, 10, 6.4
    w = (78 - gap * (len(steps) - 1)) / len(steps)
    size = min(8.5, 0.8 * w)  # the words fit into their boxes
    for i, (text, kind) in enumerate(steps):
        x, middle = 1 + i * (w + gap), 1 + i * (w + gap) + w / 2
        box(axes, x, y, w, h, kind=kind)
        words(axes, middle + 0.4 * (kind == "draft"), y + h / 2, text, fontsize=size)
        if i + 1 < len(steps):
            arrow(axes, (x + w, y + h / 2), (x + w + gap, y + h / 2))
        if text.startswith(("policy", "more")):
            arrow(axes, (middle, 7.2), (middle, y), colour=ACCEPTED)
        if text.startswith("draw"):
            arrow(axes, (middle, y + h), (middle, 19.8), colour=REJECTED, dash="--")
    may = "✓ before a draw: a policy may look at earlier rounds, the text, all of q and the clock"
    late = "✗ after a draw: too late. The token stays in the round, however unlikely it looks"
    box(axes, 1, 3.4, 78, 3.8, may, "accepted")
    box(axes, 1, 19.8, 78, 3.8, late, "rejected")
    return axes.figure


@mpl.rc_context(STYLE)
def following(Ks: Sequence[int], accepted: Sequence[int], title: str) -> Picture:
    """K of each round as steps, and how many guesses the round accepted as bars."""
    axes, rounds = picture(title, "round", "guesses", 8, 3.2), np.arange(len(Ks))
    axes.bar(rounds, accepted, 0.8, color=ACCEPTED, hatch="..", edgecolor="white", label="accepted")
    axes.step(rounds, Ks, where="mid", color=DRAFT, linewidth=2, label="K, chosen by the policy")
    axes.legend()
    return axes.figure
