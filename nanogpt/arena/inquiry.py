"""After the race: are its own rounds what they claim to be?

Before the race a draft knows that it is watched. Here the rounds that the clock saw are judged,
when it has stopped: their guesses by the q that they were drawn from, this q by what the draft says
when it is asked again, the target's p by its copy in float64, and the texts by that copy as well.
A text that is wrong is seen, whoever made it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogpt.arena.referee import (
    Arena,
    Entry,
    Node,
    Refused,
    answers,
    blamed,
    check_drawn,
    check_spread,
    check_untouched,
    quoted,
)
from nanogpt.generate import Generation, Round
from nanogpt.proof.checks import contexts, parents_of, path_of
from nanogpt.proof.toys import SelfDraft, context_start

SAMPLE = 30  # rounds that are gone through row by row
IN_RACE = "in the race "


@dataclass(frozen=True)
class Run:
    """One text of the race: its prompt, and what was made of it."""

    prompt: list[int]
    made: Generation

    @property
    def rounds(self) -> Iterator[tuple[list[int], Round]]:
        """Each round, and all tokens before it."""
        text = list(self.prompt)
        for r in self.made.rounds:
            yield list(text), r
            text += r.emitted


def judge_race(entry: Entry, arena: Arena, runs: Sequence[Run]) -> str:
    """What was seen of the entry's rounds. Raises Refused at the first fault."""
    check_untouched(arena)
    with blamed(entry.path, "it fails when the race is judged"):
        check_kept(runs)
        sample = spaced([one for run in runs for one in run.rounds])
        guesses, p = check_guesses(runs), check_target_probs(arena, len(runs[0].prompt), sample)
        texts = check_texts(arena, runs)
        if not entry.proposes:
            check_same_q(entry, arena, sample)
    check_untouched(arena)
    return f"{sum(len(run.made.rounds) for run in runs)} rounds: {guesses}; {p}; {texts}"


def spaced(rounds: Sequence, most: int = SAMPLE) -> list:
    """At most so many of them, evenly spread."""
    return list(rounds[:: -(-len(rounds) // most)])


def check_kept(runs: Sequence[Run]) -> None:
    """Rounds are as they were judged: what was accepted is what was guessed. Raises Refused."""
    for run in runs:
        emitted = [token for r in run.made.rounds for token in r.emitted]
        kept = all(
            [r.candidates[node] for node in path_of(r)] == r.emitted[:-1] for r in run.made.rounds
        )
        if not kept or emitted != run.made.tokens:
            raise Refused(f"{IN_RACE}its guesses changed after they were judged; return new lists")


def check_guesses(runs: Sequence[Run]) -> str:
    """The race's guesses are drawn from the q that they claim. Raises Refused."""
    nodes: list[Node] = []
    for run in runs:
        for r in run.made.rounds:
            depths: list[int] = []
            for parent in parents_of(r):
                depths.append(depths[parent] + 1 if parent >= 0 else 0)
            nodes += zip(depths, r.candidates, r.draft_probs, strict=True)
    if not nodes:
        return "it never guessed"
    return f"guesses {check_drawn(nodes, IN_RACE)}"


def check_same_q(entry: Entry, arena: Arena, sample: Sequence[tuple[list[int], Round]]) -> None:
    """The q of some rounds is what the draft says when it is asked again. Raises Refused."""
    for text, r in sample:
        asked = contexts(r, text)[:-1]
        for context, mine, again in zip(
            asked, r.draft_probs, answers(entry, arena, asked), strict=True
        ):
            off = float((mine - again).abs().max())
            if off > 1e-4:
                raise Refused(
                    f"{IN_RACE}q was another: asked again {quoted(context, arena)}, get_probs is "
                    f"off by {off:.2g}; it must depend on the context alone"
                )


def check_target_probs(
    arena: Arena, n_prompt: int, sample: Sequence[tuple[list[int], Round]]
) -> str:
    """The p of some rounds, after each guess of theirs, is the float64 target's. Raises Refused."""
    exact, worst = SelfDraft(arena.exact, n_prompt), 0.0
    for text, r in sample:
        for context, p in zip(contexts(r, text), r.target_probs, strict=True):
            with torch.inference_mode():
                off = float((p - exact.get_probs(context)).abs().max())
            if off > 1e-4:
                raise Refused(
                    f"{IN_RACE}the target's p {quoted(context, arena)} was off by {off:.2g} from "
                    "that in float64; a draft may only read the target, and its cache"
                )
            worst = max(worst, off)
    return f"p of {len(sample)} off by {worst:.0e} at most"


@torch.inference_mode()
def exact_rows(arena: Arena, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The float64 target's p (n, V) of each of n new tokens after a prompt, contexts restarting."""
    text, rows = [*prompt, *tokens], []
    while len(rows) < len(tokens):
        i, window = len(prompt) + len(rows), arena.exact.config.block_size
        start = context_start(i, len(prompt), window)
        idx = torch.tensor([text[start : min(start + window, len(text) - 1)]])
        p = arena.exact(idx)[0][0].softmax(-1, dtype=torch.float64)
        rows += p[i - 1 - start :]
    return torch.stack(rows)


def check_texts(arena: Arena, runs: Sequence[Run]) -> str:
    """The race's texts are spread as the target's own, token by token. Raises Refused."""
    nodes: list[Node] = []
    for run in runs:
        p = exact_rows(arena, run.prompt, run.made.tokens)
        nodes += [(0, token, row) for token, row in zip(run.made.tokens, p, strict=True)]
    fault = f"{IN_RACE}{len(nodes)} tokens are not spread as the target's own"
    return f"tokens {check_spread(nodes, fault)}"
