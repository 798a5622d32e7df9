"""Chapter 31: the judge of *Your turn*, and the chapter's own pictures.

The turn: what each row of a pass comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import matplotlib as mpl
from torch import Tensor

from nanogpt.same import SAME, SameDice
from nanogpt.sampling import Sampling
from nanogpt.serving.grammar import Grammar
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, TARGET, Picture, shown
from nanogpt.speculative import Draft, speculative_rounds, verify_candidates
from nanogpt.trees.tree import ReadText

CASES = [  # guesses and their parents
    ([], []),
    ([5, 6, 7], [-1, 0, 1]),
    ([5], [-1]),
    ([5, 5, 5], [-1, 0, 1]),
    ([5, 6], [-1, -1]),
    ([5, 6, 7, 8], [-1, -1, 0, 1]),
    ([5, 6, 7, 5, 6], [-1, 0, 0, 1, 3]),
    ([5, 6, 7, 8, 9, 5], [-1, 0, -1, 2, 0, 3]),
]


def judge(mine: Callable) -> None:
    """mine(past, tokens, parents, after): the past of the current token's row, then of each node's.

    Raises AssertionError with the slip.
    """
    for tokens, parents in CASES:
        judge_pass(mine, tokens, parents)


def judge_pass(mine: Callable, tokens: list[int], parents: list[int]) -> None:
    """One pass of the judge. Raises AssertionError with the slip."""
    past = "1, 2"  # of the reply so far: nothing that an answer could add a token to by itself

    def after(before: str, token: int) -> str:
        assert isinstance(before, str), f"after({before!r}, …): give it a past, and then a token"
        assert isinstance(token, int), f"after(…, {token!r}): one token at a time"
        return f"{before}, {token}"

    right = [past]
    for token, parent in zip(tokens, parents, strict=True):
        right.append(after(right[parent + 1], token))
    given = list(tokens), list(parents)
    answer = mine(past, *given, after)
    assert given == (tokens, parents), "tokens or parents were changed in place: work on a copy"
    assert hasattr(answer, "__len__") and not isinstance(answer, (str, dict)), (
        f"{answer!r} came back, not a list of pasts"
    )
    got = list(answer)
    where = f"guesses {tokens} with parents {parents}, after a reply of [{past}]"
    assert len(got) == len(right), (
        f"{where}: {len(got)} pasts came back, and {len(right)} are needed, one for each row: that "
        "of the current token, and one for each guess"
    )
    for row, (have, want) in enumerate(zip(got, right, strict=True)):
        assert have == want, (
            f"{where}: row {row} comes after [{want}], and you said {have!r}; "
            f"{slip(got, right, past, tokens, parents)}"
        )


def slip(got: list, right: list, past: str, tokens: list[int], parents: list[int]) -> str:
    """What was probably done wrong."""
    if not all(isinstance(one, str) for one in got):
        return "a past may look like anything: only after(past, token) can add a token to it"
    if all(one == past for one in got):
        return "each row has guesses of its own before it, and yours all have the same past"
    if got[0] != past:
        return "row 0 is the current token's: no guess comes before it"
    chained = [past]
    for token in tokens:
        chained.append(f"{chained[-1]}, {token}")
    if got == chained:
        return "a guess follows its parent, which need not be the guess before it in the list"
    off = [past]
    for token, parent in zip(tokens, parents, strict=True):
        off.append(f"{off[parent]}, {token}")
    if got == off:
        return "row 0 is the current token's, so the row of node j is at j + 1"
    if got[1:] == right[:-1]:
        return "a guess's own row comes after the guess itself, too"
    if got[1:] == [f"{past}, {token}" for token in tokens]:
        return "what comes before the parent belongs to the past as well"
    return "start from the parent's past, and add the guess"


def naive_reply(
    rule: Callable, target, draft: Draft, prompt: Sequence[int], n: int, K: int, seed: int
) -> list[int]:
    """n tokens by the same dice, all rows of a pass changed alike, by rule(logits, reply)."""
    text = ReadText(target, prompt, n)

    class Alike(Sampling):
        """The rule for all rows, with what is written when the pass begins."""

        def probs(self, logits: Tensor) -> Tensor:
            return Sampling().probs(rule(logits, text.tokens[text.n_prompt :]))

    def verify(model, current, candidates, past_kvs, sampling, unread=()):
        return verify_candidates(model, current, candidates, past_kvs, Alike(), unread)

    steps, rng = replace(SAME, verify=verify), SameDice(seed, len(prompt))
    for _ in speculative_rounds(text, draft, K, rng=rng, steps=steps):
        pass
    return text.tokens[text.n_prompt :]


@mpl.rc_context(STYLE)
def way_out(title: str) -> Picture:
    """What stands between the logits and the client, and what depends on the tokens before."""
    shows = (
        "From the logits by rules, sampling and stop strings to the client; an arrow leads back."
    )
    axes = sheet(title, 9.4, 2.35, shows)
    steps = [
        ("logits\na row a guess", "target"),
        ("rules\nrow by row", "plain"),
        ("sampling:\np", "target"),
        ("accept,\nreplace", "accepted"),
        ("the end?\nstop strings", "plain"),
        ("hold back,\nsend", "plain"),
        ("client", "bonus"),
    ]
    wide, gap = 10.6, 3.1
    for i, (text, kind) in enumerate(steps):
        x = 1 + i * (wide + gap)
        box(axes, x, 5.5, wide, 5.2, text, kind)
        if i:
            arrow(axes, (x - gap + 0.2, 8.1), (x - 0.2, 8.1))
    middle = [1 + i * (wide + gap) + wide / 2 for i in range(len(steps))]
    axes.plot([middle[4]] * 2, [11, 14.6], color=GREY, linewidth=1.4)
    axes.plot([middle[1], middle[4]], [14.6, 14.6], color=GREY, linewidth=1.4)
    arrow(axes, (middle[1], 14.6), (middle[1], 11))
    words(axes, (middle[1] + middle[4]) / 2, 16.4, "the reply so far: state, counts", color=GREY)
    words(axes, middle[1], 3.2, "grammar, penalties,\nbias, min-p", fontsize=9, color=GREY)
    words(axes, middle[3], 3.6, "knows nothing of rules", fontsize=9, color=GREY)
    words(axes, middle[5], 3.6, "what is out is out", fontsize=9, color=GREY)
    arrow(axes, (middle[0], 18.8), (middle[0], 11), dash="--")
    words(axes, 1, 20.2, "guesses, made under the same rules", ha="left", color=GREY)
    return axes.figure


def ranges(letters: Sequence[str]) -> str:
    """Letters in few signs: "A–Z ↵ :"."""
    found = []
    for _, run in groupby(enumerate(sorted(letters)), key=lambda pair: ord(pair[1]) - pair[0]):
        run = [letter for _, letter in run]
        found.append("".join(map(shown, run)) if len(run) < 3 else f"{run[0]}–{run[-1]}")
    return " ".join(found)


@mpl.rc_context(STYLE)
def automaton(grammar: Grammar, vocabulary: Sequence[str], title: str) -> Picture:
    """The states of a small grammar from left to right, and the letters that lead on."""
    count = len(grammar)
    shows = f"{count} states in a row; letters lead on, stay in a state, or lead back."
    axes = sheet(title, 9.4, 2.6, shows)
    gap, y = 90 / count, 13.0
    at = [3 + gap * i for i in range(count)]
    for state, x in enumerate(at):
        last = bool(grammar.matches[state])
        box(axes, x - 2, y - 1.8, 4, 3.6, str(state), "accepted" if last else "target")
        if last:
            words(axes, x, y + 3.4, "✓ the end", fontsize=9)
        if grammar.over[state]:
            continue
        arrows: dict[int, list[str]] = {}
        for token in grammar.allowed[state].nonzero()[0]:
            arrows.setdefault(int(grammar.next[state, token]), []).append(vocabulary[token])
        for there, letters in arrows.items():
            said = ranges(letters)
            if there == state:
                arrow(axes, (x - 1.2, y - 2), (x + 1.2, y - 2), bend=-1.6)
                words(axes, x, y - 6.6, said, fontsize=9)
            elif there == state + 1:
                arrow(axes, (x + 2.2, y), (at[there] - 2.2, y))
                words(axes, (x + at[there]) / 2, y - 1.4, said, fontsize=9)
            else:
                bend = 0.35 if there > state else -0.35
                arrow(axes, (x, y + 2), (at[there], y + 2), bend=bend, colour=TARGET)
                words(axes, (x + at[there]) / 2, y + 6.6 + abs(there - state), said, fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def streamed(rounds: Sequence[tuple[str, str, str]], title: str) -> Picture:
    """What is sent after each round, what is held back, and what a stop string takes away.

    rounds: of each, the letters that are sent by then, those held back, those taken away.
    """
    out, _, never = map(shown, rounds[-1])
    shows = f"“{out}” is sent round by round; “{never}” is held back and never sent."
    axes = sheet(title, 9.4, 0.9 + 0.5 * len(rounds), shows)
    longest = max(sum(map(len, parts)) for parts in rounds)
    wide = min(3.2, 74 / longest)
    for i, parts in enumerate(rounds):
        y = 4 + 5 * i
        words(axes, 1, y + 1.5, f"after round {i + 1}", ha="left", fontsize=9)
        x = 14.0
        for text, kind, mark in zip(
            parts, ("accepted", "draft", "gone"), ("sent ✓", "held", "never sent"), strict=True
        ):
            for letter in text:
                box(axes, x, y, wide - 0.3, 3, shown(letter), kind)
                x += wide
            if text:
                words(axes, x - wide * len(text) / 2 - 0.15, y - 0.7, mark, fontsize=8, color=GREY)
    return axes.figure
