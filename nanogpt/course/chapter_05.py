"""Chapter 05: the judge of *Your turn*, and the chapter's own pictures.

The turn: accept or reject.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch

from nanogpt.drafts.transformer import common_prefix
from nanogpt.proof.exact import Branch, enumerate_outcomes, total_variation
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, REJECTED, STYLE, Picture
from nanogpt.speculative import accept_reject

ROUNDS = [  # guesses, q (K, V) and p (K+1, V), the simplest first
    ([], [], [[0.5, 0.3, 0.2]]),  # nothing was guessed: a plain draw
    ([0], [[0.2, 0.5, 0.3]], [[0.5, 0.1, 0.4], [0.1, 0.2, 0.7]]),  # always accepted
    ([1], [[0.2, 0.4, 0.1, 0.3]], [[0.6, 0.0, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4]]),  # never: p = 0
    ([1], [[0.2, 0.5, 0.3]], [[0.5, 0.1, 0.4], [0.1, 0.2, 0.7]]),  # now and then
    ([2], [[0.0, 0.0, 1.0]], [[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]),  # q = 1, as of a look-up
    ([0], [[0.5, 0.3, 0.2]], [[0.5, 0.3, 0.2], [0.0, 0.6, 0.4]]),  # p = q: nothing is left
    ([1, 2], [[0.2, 0.5, 0.3]] * 2, [[0.5, 0.3, 0.2], [0.4, 0.5, 0.1], [0.1, 0.7, 0.2]]),
    ([1, 0, 1], [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.6, 0.4], [0.9, 0.1], [0, 1]]),
]


def judge(mine: Callable) -> None:
    """mine(candidates, draft_probs, target_probs, rng) emits tokens as the rule of chapter 05 does.

    Judged by the exact distribution of what it emits, not by its draws, for no guess, one and two.
    Raises AssertionError with the likeliest slip.
    """
    for guesses, q_rows, p_rows in ROUNDS:
        p = torch.tensor(p_rows, dtype=torch.float64)
        q = torch.tensor(q_rows, dtype=torch.float64) if guesses else p[:0]
        where = f"guesses {guesses}, q {q_rows}, p {p_rows}"

        def emitted(rule, rng, guesses=guesses, p=p, q=q):
            draw, given = rng.categorical, (list(guesses), q.clone(), p.clone())
            rng.categorical = lambda probs: draw(torch.as_tensor(probs))  # a list will do
            tokens = rule(*given, rng)
            assert tokens is not None, "nothing came back: return the emitted tokens"
            untouched = given[0] == guesses and given[1].equal(q) and given[2].equal(p)
            assert untouched, "candidates, q or p were changed in place: work on a copy"
            return tuple(int(token) for token in tokens)

        right = enumerate_outcomes(functools.partial(emitted, accept_reject))
        try:
            refuse_own_chance(functools.partial(emitted, mine))
            got = enumerate_outcomes(functools.partial(emitted, mine))
        except (AssertionError, NotImplementedError):  # a sentence already, or an untouched stub
            raise
        except Exception as error:  # a ValueError says that what was drawn from is no distribution
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise AssertionError(f"{where}: {kind}{error}") from error
        worst = max(got | right, key=lambda x: abs(got.get(x, 0) - right.get(x, 0)))
        assert total_variation(got, right) < 1e-5, (  # wrong rules: hundredths; float32: 1e-7
            f"{where}: {worst} comes out with probability {got.get(worst, 0):.3f} instead of "
            f"{right.get(worst, 0):.3f}; {slip_of(guesses, q_rows, p_rows, got)}"
        )


def refuse_own_chance(program: Callable[[Branch], tuple[int, ...]]) -> None:
    """Raise AssertionError if 100 runs in which rng says the same do not end alike."""
    branches = [Branch(()) for _ in range(100)]
    if len({program(branch) for branch in branches}) > 1:
        asked = any(branch.depth for branch in branches)
        said = "not all chance comes from `rng`" if asked else "you never asked `rng`"
        raise AssertionError(f"{said}: use rng.bernoulli and rng.categorical only")


def slip_of(guesses: list[int], q: list, p: list, got: dict[tuple[int, ...], float]) -> str:
    """What was probably done wrong, by the look of what comes out of a round."""
    K, kept, last, instead = len(guesses), 0.0, {}, {}
    for tokens, P in got.items():
        same = common_prefix(tokens, guesses)
        if len(tokens) > K + 1 or same < len(tokens) - 1:
            return f"a round ends with the first rejection or the bonus token; {tokens} goes on"
        ends = last if len(tokens) == K + 1 else instead if len(tokens) == 1 else {}
        ends.update({token: ends.get(token, 0) + P for token in tokens[-1:]})
        kept += P * (len(tokens) > 1)
    if K > 2:
        return "with two guesses all is right; does place i use row i of p and q, at any K?"
    if K:
        p_x, q_x = p[0][guesses[0]], q[0][guesses[0]]
        if not kept and p_x and len(got) > 1:
            return "no guess is ever kept; keep it where rng.bernoulli(min(1, p/q)) says True"
        if p_x and p_x != q_x and abs(kept - min(1, q_x / p_x)) < 1e-5:
            return f"its first guess stays with {kept:.2f}, which is q/p; the rule says p/q"
        more = np.subtract(q[0], p[0]).clip(0)
        for name, row in (("p", p[0]), ("q", q[0]), ("max(0, q - p)", more)):
            if like(instead, row):
                return f"a rejected guess's replacement looks drawn from {name}, not the residual"
    if any(list(tokens) == guesses[: len(tokens)] for tokens in got):
        if all(p[i][x] >= q[i][x] for i, x in enumerate(guesses)):
            return "no guess was rejected, so the target adds a bonus token; it is missing"
        return "a rejected guess must not stay in the text; another token takes its place"
    if K and abs(kept - min(1, p_x / q_x)) > 1e-5:
        return f"its first guess stays with {kept:.2f}; the rule says {min(1, p_x / q_x):.2f}"
    if len(last) == 1 and max(p[K]) < 1:
        return f"the bonus token is always {min(last)}; draw it with rng, do not take the likeliest"
    if any(like(last, row) for row in p[:K]):
        return f"the bonus token comes from a wrong row of p; it belongs to row {K}"
    return "look at what replaces a rejected guess: is it max(0, p - q), divided by its sum?"


def like(seen: dict[int, float], row: Sequence[float]) -> bool:
    """Whether tokens were seen in the proportions of row."""
    total, whole = sum(seen.values()), sum(row)
    shares = ((seen.get(x, 0) / total, w / whole) for x, w in enumerate(row))
    return total > 0 and whole > 0 and all(abs(a - b) < 1e-5 for a, b in shares)


@mpl.rc_context(STYLE)
def branches(
    leaves: Mapping[tuple[str, str], float], own: Mapping[str, float], title: str
) -> Picture:
    """A round of two guesses as a tree: {(first step, second step): probability} of its branches.

    A step is "✓ a" (accepted) or "✗ b ↻ a" (rejected, and what came instead), and ends with the
    letter of the text. own: {text: probability} as the target says.
    """
    sums = ", ".join(f"{text} {P:.2f}" for text, P in own.items())
    shows = f"Each guess is kept or replaced; the branches of each text add up: {sums}."
    axes = sheet(title, 9.6, 0.42 * len(leaves) + 0.55, shows)
    top, step, firsts = 5.0, 4.2, {}
    for i, (first, _) in enumerate(leaves):
        firsts.setdefault(first, []).append(top + step * i)
    for x, name in ((24, "first guess"), (50.5, "second guess"), (63.5, "text")):
        words(axes, x, 1.2, name, color=GREY, fontsize=9)
    root = sum(map(sum, firsts.values())) / len(leaves)
    box(axes, 1, root - 2, 8, 4, "start", "target")

    def edge(start, end, chance, label):
        colour, dash = (REJECTED, "--") if label.startswith("✗") else (ACCEPTED, "-")
        arrow(axes, start, end, colour=colour, dash=dash)
        rise = (end[1] - start[1]) / (end[0] - start[0])
        aside = (2.6, 0.9 * np.sign(rise)) if abs(rise) > 0.6 else (2.8, 2.8 * rise - 1.2)
        near = np.add(np.mean([start, end], axis=0), aside)
        words(axes, *near, f"{chance:.2f}", fontsize=9)
        kind = "resampled" if "↻" in label else "accepted"
        box(axes, *np.subtract(end, (0, 1.6)), 11, 3.2, label, kind)

    for first, ys in firsts.items():
        y, P = sum(ys) / len(ys), sum(leaves[leaf] for leaf in leaves if leaf[0] == first)
        edge((9, root), (18.5, y), P, first)
        over = "the round is over:\nanother one starts" if "↻" in first else "the round goes on"
        words(axes, 24, y + (3.6 if "↻" in first else 2.8), over, color=GREY, fontsize=8)
        for place, leaf in zip(ys, [leaf for leaf in leaves if leaf[0] == first], strict=True):
            edge((29.5, y), (45, place), leaves[leaf] / P, leaf[1])
            text = first[-1] + leaf[1][-1]
            words(axes, 63.5, place, f"{text}  {leaves[leaf]:.2f}", fontweight="bold")
            if "↻" not in first + leaf[1]:
                box(axes, 56.5, place - 1.3, 3, 2.6, "★", "bonus")
    for i, (text, P) in enumerate(own.items()):
        parts = [x for (a, b), x in leaves.items() if a[-1] + b[-1] == text]
        said = " + ".join(f"{x:.2f}" for x in parts) + f" = {sum(parts):.2f}"
        at = top + 1 + i * (step * len(leaves) - 6) / max(1, len(own) - 1)
        box(axes, 68, at - 2.4, 27.5, 4.8, f"{text}: {said}\nthe target says {P:.2f}", "target")
    words(
        axes, 56.5, top + step * len(leaves) - 0.8, "★ then a bonus token", color=GREY, fontsize=8
    )
    return axes.figure
