"""Chapter 12: the judge of *Your turn*, a draft that is lost, a race, the chapter's own pictures.

The turn: a policy that looks back on the last rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

from nanogpt.generate import Generation, Round
from nanogpt.measure.clock import clock
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, DRAFT, REJECTED, STYLE, Picture, picture, shown
from nanogpt.speculative import Draft


class Lost(Draft):
    """A draft that is lost wherever lost(context) is true: it says q (V,) of the wrong letters.

    A guess costs what it costs the draft.
    """

    def __init__(self, draft: Draft, lost: Callable[[Sequence[int]], bool]):
        self.draft, self.lost, self.vocab_size = draft, lost, draft.vocab_size

    def fresh(self) -> Lost:
        """One for another text, lost in the same places."""
        return Lost(self.draft.fresh(), self.lost)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """The draft's q (V,), or where it is lost, each letter's chance for the next one."""
        q = self.draft.get_probs(context)
        return q.roll(1) if self.lost(context) else q


def race(
    names: Sequence, prompts: Sequence, decode: Callable[..., Generation]
) -> tuple[dict[Hashable, np.ndarray], dict[Hashable, list[Round]]]:
    """{name: seconds of decode(name, prompt) for each prompt}, all in turn; and {name: rounds}."""
    seconds: dict = {name: [] for name in names}
    rounds: dict = {name: [] for name in names}
    for turn, prompt in enumerate([prompts[0], *prompts]):  # the first: warm-up
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            took, made = clock(functools.partial(decode, name, prompt))
            if turn:
                seconds[name].append(took)
                rounds[name] += made.rounds
    return {name: np.array(its) for name, its in seconds.items()}, rounds


def quartiles(ratios: Sequence[float]) -> str:
    """Their median, and the quartiles beside it."""
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f} … {high:.2f})"


def beside(ratios: Sequence[float]) -> str:
    """Seconds of others over the policy's: the quartiles, and who is faster, if one can tell."""
    low, high = np.quantile(ratios, [0.25, 0.75])
    verdict = "faster" if low > 1 else "slower" if high < 1 else "cannot tell"
    return f"policy {quartiles(ratios)}: {verdict}"


def catching_up(draft: Draft, text: Sequence[int], n: int, unread=(16, 48)) -> dict[int, str]:
    """{u: how many times as long a guess takes after u unread tokens as after 1}, in n pairs."""
    took: dict[int, list[float]] = {u: [] for u in (1, *unread)}
    for _ in range(n):
        for u, seconds in took.items():
            own = draft.fresh()
            own.get_probs(text[:-u])
            seconds.append(clock(functools.partial(own.get_probs, text))[0])
    return {u: quartiles(np.divide(took[u], took[1])) for u in unread}


class CountedRounds(list):
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
    asked, none, policies = [], torch.empty(0), {}

    def best(alpha):
        asked.append(alpha)
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
        if memory not in policies:  # one for several texts
            policies[memory] = mine(best, memory)
        policy = policies[memory]
        assert callable(policy), f"my_by_acceptance is to return a function, not {policy!r}"
        rounds = CountedRounds(Round([0] * k, none, none, [0] * (n + 1), 0) for k, n in pairs)
        before = len(asked)
        answer = policy(rounds)
        case = f"with memory {memory} and rounds of (drafted, accepted) {pairs[-9:]}"
        pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and answer[1] is None
        assert pair, f"{case}: policy(rounds) gave {answer!r}, not (K, None)"
        looks, calls = rounds.looks, len(asked) - before
        fault = slip_of_estimate(answer[0], pairs, memory)
        if fault and not slip_of_estimate(mine(best, memory)(rounds)[0], pairs, memory):
            fault = "the policy remembers an earlier call, about another text; start anew each time"
        assert not fault, f"{case}: {fault}"
        assert len(rounds) == len(pairs), f"{case}: the policy changed the list of rounds"
        assert looks < 100, (
            f"K is right, but to choose it for round {len(pairs) + 1} you looked at {looks} "
            f"rounds, where the last {memory} would do"
        )
        assert calls <= 2, f"K is right, but you asked best {calls} times; once a round will do"


def slip_of_estimate(K: object, pairs: Sequence[tuple[int, int]], memory: int) -> str:
    """What is wrong with a K that is α in thousandths, or "" (α may be rounded to hundredths)."""

    def sums(seen, a=13, b=16):
        return a + sum(n for _, n in seen), b + sum(min(n + 1, k) for k, n in seen)

    last = pairs[-memory:]
    a, b = sums(last)
    try:
        alpha = float(K) / 1000
    except (TypeError, ValueError):
        return f"K is {K!r}, not a number"
    if abs(alpha - a / b) < 0.006:
        return ""
    said = f"best should be asked at α = {a / b:.3f}; your K is its answer at {alpha:.3f}"
    for fault, (x, y) in {
        "you divide by the drafted guesses; fewer were examined": (a, 16 + sum(k for k, _ in last)),
        "where all were accepted, no further guess was examined": (a, 16 + a - 13 + len(last)),
        "a round accepts one token less than it emits, not all": (a + len(last), b),
        "where are the imagined guesses, 13 of 16? they always count": sums(last, 0, 0),
        "only the last rounds count": sums(pairs),
        "these are the first rounds, not the last": sums(pairs[:memory]),
        "the last round counts, too": sums(pairs[:-1][-memory:]),
    }.items():
        if y and abs(alpha - x / y) < 0.0006:
            return f"{fault}: {said}"
    return said


@mpl.rc_context(STYLE)
def asking(likeliest: Sequence[float], tokens: Sequence[str], title: str) -> Picture:
    """One round as a time line: where a policy is asked, what it may look at, what is too late.

    likeliest: the largest probability of each q that `more` was shown; tokens: those drawn, in
    order, one for each yes. Where there are fewer tokens than q, the last answer was no.
    """
    shows = f"A question stands before each draw; after {len(tokens)} draws comes the pass."
    axes = sheet(title, 8, 2.7, shows)
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
    axes.figure.legend(loc="outside lower left", ncols=2)  # never over a line
    return axes.figure
