"""Chapter 12: the judge of *Your turn*, and the chapter's own pictures.

The turn: a policy that spends a budget of entropy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.drafts.adaptive import adaptive
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import TableDraft, toy_target
from nanogpt.sampling import Sampling
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, REJECTED, STYLE, Picture, shown
from nanogpt.speculative import CHAIN, speculative_generate


def judge(mine: Callable) -> None:
    """Judges my_by_entropy(budget): a policy that drafts while a round's entropies fit the budget.

    It is asked as `draft_while` asks it, for two rounds in a row, and then decodes a toy's texts.
    Raises AssertionError where it draws too many or too few, shares a round's sum with the next,
    asks for a token, changes q, or where the texts are no longer the target's own.
    """
    rows = {
        "sure": [[1.0, 0, 0, 0]],
        "wavering, then sure, in turn": [[0.5, 0.5, 0, 0], [1.0, 0, 0, 0]],
        "wavering between two tokens": [[0.5, 0.5, 0, 0]],
        "lost among four": [[0.25] * 4],
        "leaning to one": [[0.85, 0.15, 0, 0]],
        "sure, then wavering, in turn": [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0]],
    }
    for budget in (2.0, 0.5, 1.5, 0.0):  # at 0, who is sure drafts on
        policy = mine(budget)
        assert callable(policy), f"my_by_entropy({budget}) is {policy!r}, not a policy: a function"
        for name, q in rows.items():
            q = torch.tensor(q, dtype=torch.float64)
            first, second = drawn_by_policy(policy, q), drawn_by_policy(policy, q)
            case = f"a budget of {budget} and a draft that is {name}: {first} tokens were drawn"
            assert first > 0, f"{case}; a round drafts at least 1, whatever it costs"
            fault = slip_of_budget(budget, torch.special.entr(q).sum(-1), first)
            assert not fault, f"{case}; {fault}"
            assert second == first, (
                f"{case} in the first round and {second} in the next; each round has its own "
                "budget, so start anew whenever policy(rounds) is called"
            )
    toy, draft, lengths = toy_target(2, 8, seed=1), TableDraft([[0.9, 0.1], [0.5, 0.5]]), set()

    def program(rng):
        steps = replace(CHAIN, draft=adaptive(mine(1.2)))
        made = speculative_generate(toy, draft, [0, 1], 3, rng=rng, steps=steps)
        lengths.update(len(r.candidates) for r in made.rounds)
        return tuple(made.tokens)

    off = total_variation(enumerate_outcomes(program), exact_continuations(toy, 3, Sampling()))
    assert off < 1e-12, f"a toy's texts are not the target's own: total variation {off:.1e}"
    assert len(lengths) > 1, "all rounds of a toy's texts draft equally many; does q matter?"


def slip_of_budget(budget: float, entropies: Tensor, n: int) -> str:
    """What is wrong with n drawn tokens, their q having these `entropies` (m,) in turn, or ""."""
    costs = [float(entropies[i % len(entropies)]) for i in range(17)]
    sums = [sum(costs[: i + 1]) for i in range(17)]

    def first(too_much):
        return max(1, next((i for i in range(16) if too_much(i)), 16))

    right = first(lambda i: sums[i] > budget)
    for fault, wrong in (
        (
            "count the q of the coming token before you draw it",
            lambda i: i and sums[i - 1] > budget,
        ),
        (
            "a round's entropies add up, but you looked at each alone",
            lambda i: costs[i] > budget,
        ),
        (
            "are these nats? an entropy takes the natural logarithm",
            lambda i: sums[i] / 0.6931 > budget,
        ),
        (
            "is the first token's entropy counted, too?",
            lambda i: sums[i] - costs[0] > budget,
        ),
        ("the sum may be as large as the budget", lambda i: sums[i] >= budget),
        ("0 · log 0 is NaN in floats, and counts 0", lambda i: i > 0),
    ):
        if n == first(wrong) != right:
            return f"{fault}: {right} would be right"
    return "" if n == right else f"the first costs {costs[0]:.2f} nats; the budget pays for {right}"


def drawn_by_policy(policy: Callable, rows: Tensor) -> int:
    """How many tokens a policy lets a draft draw whose q are `rows` (n, V), over and over.

    Raises AssertionError for a policy that cannot be asked as `draft_while` asks it.
    """
    answer = policy([])
    pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and callable(answer[1])
    assert pair, f"policy(rounds) returned {answer!r}; it takes (16, more), more being a function"
    most, more = answer
    try:
        most = operator.index(most)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"policy(rounds) allows {most!r} tokens, no whole number") from None
    assert 1 <= most <= 16, f"policy(rounds) allows {most} tokens; a round drafts 1 to 16"
    for n in range(most):
        q = rows[n % len(rows)].clone()
        try:
            go_on = more(q, n)
        except TypeError as error:
            raise AssertionError(
                f"more(q, n) failed: {error}; it is asked before the draw, with q and n alone, and "
                "there is no token to look at yet"
            ) from error
        assert torch.equal(q, rows[n % len(rows)]), "more(q, n) changed q; a draw will come from it"
        if not go_on:
            return n
    return most


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
