"""Chapter 09: the judge of *Your turn*, and the chapter's own pictures.

The turn: the expected tokens of a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import matplotlib as mpl

from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture

SUMS = [f"__{side}{op}__" for op in ("add", "sub", "mul", "truediv", "pow") for side in ("", "r")]


def counting(kind: type, calls: Counter, *names: str) -> type:
    """A subclass of `kind` that counts in `calls` how often these of its methods are called."""

    def counted(name):
        def method(self, *others):
            calls[name] += 1
            return getattr(kind, name)(self, *others)

        return method

    return type(kind.__name__, (kind,), {name: counted(name) for name in names})


def judge(mine: Callable) -> None:
    """Judges the mean tokens of a round (chapter 09): a sum of powers of alpha, edges included.

    Raises AssertionError with the name of the slip; walking all 2^K ways of the coins is one.
    """
    cases = [(0.6, 3), (0.3, 1), (0.8, 5), (1.0, 4), (0.0, 3), (0.5, 0), (1.0, 0), (0.0, 0)]
    cases += [(0.999, 4), (0.9, 14)]
    for alpha, K in cases:
        right, where = sum(alpha**i for i in range(K + 1)), f"α = {alpha}, K = {K}"
        try:
            got = mine(counting(float, calls := Counter(), *SUMS)(alpha), K)
        except ZeroDivisionError as error:
            raise AssertionError(f"{where}: a division by zero, but the mean is {right}") from error
        assert got is not None, f"{where}: it returns nothing; the mean of a round is a number"
        try:
            got = float(got + 0)  # float alone would take a string
        except (TypeError, ValueError, RuntimeError):
            raise AssertionError(f"{where}: return one number, the mean, not {got!r}") from None
        slips = {
            right + alpha**K: "the bonus token is counted twice; it is in the sum already",
            right + alpha ** (K + 1): "one term too many; K candidates bring at most K + 1 tokens",
            right - 1: "that counts the accepted candidates; the target adds one token of its own",
            right - alpha**K: "one term too few: α^K, for the round in which all are accepted",
            right - (K + 1) * alpha**K: "the outcome in which all are accepted is missing",
            1 + K * alpha: "that examines candidate i even where an earlier one was rejected",
        }
        near = [why for slip, why in slips.items() if abs(slip - got) < 1e-4]
        if abs(got - right) < 0.1:
            near += ["close; if you toss coins, do not: work out the exact mean"]
        near += ["are all K + 1 terms in it, for a large K as well?"] * (K > 9)
        assert abs(got - right) < 1e-4, (  # an answer in float32 is right, too
            f"{where}: {got:.4f}, but a round brings {right:.4f} on average"
            f"{': ' + near[0] if near else ''}"
        )
        assert K < 9 or calls.total() < 2**K, (
            f"{where}: right, but it calculates with alpha {calls.total():,} times, twice as often "
            "with each candidate more; a sum over tokens has K + 1 terms"
        )


@mpl.rc_context(STYLE)
def lanes(K: int, draft_cost: float, verify_cost: float, rest: float, emitted: int) -> Picture:
    """One round on a time axis, draft and target in two lanes, above plain passes, one a token.

    Costs in plain passes; emitted: the tokens of the round. The title says how it went.
    """
    drafted = K * draft_cost
    end = drafted + verify_cost + rest
    title = f"A round: {emitted} tokens in the time of {end:.2f} plain passes"
    shows = "Above: guesses, then the pass that checks them. Below: the target alone, pass by pass."
    axes = sheet(title, 8.5, 3.1, shows)
    unit = 64 / max(end, emitted)  # of the sheet, for one plain pass
    for y, name in ((4.5, "draft"), (10, f"target, {K + 1} tokens"), (19.5, "target alone")):
        words(axes, 1, y + 2, name, ha="left")
    steps = K if draft_cost * unit > 1.5 else 1  # too narrow to tell apart: one box for all
    fill, edge, _, hatch = KINDS["draft"]
    for i in range(steps):  # hatched all over: a stripe would look like a part of the cost
        at, wide = (17 + i * drafted / steps * unit, 4.5), drafted / steps * unit
        guess = mpl.patches.Rectangle(at, wide, 4, facecolor=fill, edgecolor=edge, linewidth=1.4)
        axes.add_patch(guess).set_hatch(hatch[0])
    words(axes, 17, 2.7, f"{K} guesses, c = {draft_cost:g} each", ha="left", fontsize=9)
    checked = 17 + (drafted + verify_cost) * unit
    box(axes, 17 + drafted * unit, 10, verify_cost * unit, 4, f"v = {verify_cost:g}", "target")
    if rest:
        box(axes, checked, 10, rest * unit, 4)
        words(axes, checked, 8.6, f"r = {rest:g}", ha="left", fontsize=9)
    for i in range(emitted):
        box(axes, 17 + i * unit, 19.5, unit, 4, "1", "target")
    axes.plot([17 + end * unit] * 2, [10, 17], color=GREY, linestyle=":")
    words(axes, 16.2 + end * unit, 16, f"{emitted} tokens are out", ha="right", fontsize=9)
    axes.plot([17 + emitted * unit] * 2, [19.5, 26.5], color=GREY, linestyle=":")
    words(axes, 16.2 + emitted * unit, 25.5, f"{emitted} tokens are out", ha="right", fontsize=9)
    arrow(axes, (17, 28.8), (83, 28.8))
    words(axes, 1, 28.8, "time", ha="left")
    return axes.figure
