"""Chapter 22: the judge of *Your turn*, and the chapter's own pictures.

The turn: guesses of one pass, each told the token before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.sampling import Sampling
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, RESAMPLED, STYLE, TARGET, Picture, shown

V, PLACES, CURRENT = 3, 3, 2


def judge(mine: Callable) -> None:
    """Judges my_told(logits, table, current, sampling, rng) -> (tokens, q).

    Every outcome of three places over three letters is enumerated: how often it comes, and the q
    that is claimed with it, at temperature 1 and .5.
    Raises AssertionError for a q that is not the conditional that the token was drawn from, a
    correction from the wrong token or in the wrong place, a rule that is not applied.
    """
    generator = torch.Generator().manual_seed(0)
    logits, table = (
        torch.randn(n, V, dtype=torch.float64, generator=generator) for n in (PLACES, V)
    )
    for sampling in (Sampling(), Sampling(0.5)):
        given = logits.clone(), table.clone(), CURRENT, sampling

        def program(rng, given=given, sampling=sampling):
            tokens, q = taken(mine(*given, rng))
            assert torch.equal(given[0], logits) and torch.equal(given[1], table), (
                "the logits or the table were changed in place; add to a new tensor"
            )
            check_claim(logits, table, sampling, tokens, q)
            return tokens

        drawn_wrong(logits, table, sampling, enumerate_outcomes(program))


def taken(got) -> tuple[tuple[int, ...], Tensor]:
    """The tokens and the q (K, V) of an answer. Raises AssertionError if it has another form."""
    assert isinstance(got, tuple) and len(got) == 2, (
        f"your function returned {type(got).__name__}; return two things: the tokens, and q"
    )
    tokens, q = got
    assert tokens is not None and q is not None, (
        "your function returned None for the tokens or for q; both are wanted, a row of q a token"
    )
    if isinstance(q, (list, tuple)):
        assert all(isinstance(row, Tensor) for row in q), "q holds no tensors; a row (V,) a token"
        q = torch.stack(list(q)) if q else torch.empty(0, V)
    tokens = tuple(int(token) for token in tokens)
    assert len(tokens) == PLACES, f"{PLACES} rows of logits, but {len(tokens)} tokens; one a row"
    q = torch.as_tensor(q)
    assert q.shape == (PLACES, V), f"q has the shape {tuple(q.shape)}; a row (V,) for each token"
    return tokens, q.double()


def rows_of(logits: Tensor, table: Tensor, sampling: Sampling, tokens, how: str = "right"):
    """q (K, V) for these tokens, by the right way or a wrong one."""
    before = [CURRENT, *tokens[:-1]]
    if how == "apart":
        return sampling.probs(logits)
    if how == "current":
        return sampling.probs(logits + table[CURRENT])
    if how == "itself":
        return sampling.probs(logits + table[list(tokens)])
    if how == "transposed":
        return sampling.probs(logits + table.T[before])
    if how == "no rule":
        return torch.softmax(logits + table[before], -1)
    if how == "all before":
        return sampling.probs(logits + table[before].cumsum(0))
    if how == "first apart":
        return sampling.probs(torch.cat([logits[:1], (logits + table[before])[1:]]))
    return sampling.probs(logits + table[before])


WRONG = {
    "apart": "it is that of the logits alone; claim the q that the token was drawn from, after the "
    "correction",
    "current": "every place was corrected by the current token; from place 2 on, the token before "
    "is the one that you drew last",
    "itself": "each place was corrected by its own token; it is the token BEFORE it that is known",
    "transposed": "the table was read by column; row x says what token x does to the next place",
    "no rule": "the sampling rule is missing; q is sampling.probs of the corrected logits",
    "all before": "the corrections of all tokens so far were added up; only the last one counts",
    "first apart": "place 1 was not corrected; the current token stands before it",
}


def check_claim(logits: Tensor, table: Tensor, sampling: Sampling, tokens, q: Tensor) -> None:
    """Raise AssertionError unless q (K, V) are the conditionals of these tokens."""
    right = rows_of(logits, table, sampling, tokens)
    if torch.allclose(q, right, rtol=0, atol=1e-9):
        return
    for how, said in WRONG.items():
        wrong = rows_of(logits, table, sampling, tokens, how)
        if torch.allclose(q, wrong, rtol=0, atol=1e-9):
            raise AssertionError(f"for tokens {list(tokens)} the q is not right: {said}")
    off = (q - right).abs().amax(-1)
    place = 1 + int((off > 1e-9).nonzero()[0])
    raise AssertionError(
        f"for tokens {list(tokens)}, q of place {place} is {said_of(q[place - 1])}, not "
        f"{said_of(right[place - 1])}; add the row of the token before to the logits, then sample"
    )


def said_of(row: Tensor) -> list[float]:
    """A distribution (V,), short."""
    return [round(x, 3) for x in row.tolist()]


def drawn_wrong(logits: Tensor, table: Tensor, sampling: Sampling, found: dict) -> None:
    """Raise AssertionError unless `found`, {tokens: probability}, is drawn by the q (K, V)."""

    def chance(tokens):
        q = rows_of(logits, table, sampling, tokens)
        return float(torch.stack([row[token] for row, token in zip(q, tokens, strict=True)]).prod())

    off = total_variation(found, {tokens: chance(tokens) for tokens in found})
    assert off < 1e-9, (
        f"the q you claim is right, but the tokens are not drawn from it: over all outcomes they "
        f"are off by {off:.3f}; draw with rng.categorical(q) of that very row"
    )


@mpl.rc_context(STYLE)
def masked_block(read: str, said: Sequence[tuple[str, float]], title: str) -> Picture:
    """A block drafter's one pass over the last token read and a mask for each later place.

    said: of each place, the token drawn and its q. The dashed arrows are the only way in which one
    guess hears of another: the token drawn corrects the logits of the place after it.
    """
    left, wide = max(28, 3.2 * len(read) + 4), 12.5
    right = left + wide * len(said) - 3.5
    axes = sheet(title, max(8, (right + 2) / 10), 3.6)
    for i, char in enumerate(read[:-1]):
        box(axes, 1 + 3.2 * i, 27, 3.2, 3.2, shown(char), "target")
    words(axes, 1, 32, "features of the text: only read", ha="left")
    axes.plot([2.6, 2.6], [27, 21.2], color=TARGET, linewidth=1.4)
    arrow(axes, (2.6, 21.2), (left - 1, 21.2), TARGET)
    words(axes, 3.6, 19.4, "keys, values", ha="left", fontsize=9)
    box(axes, left - 1, 18.8, right - left + 2, 4.8, "the drafter: one pass", "draft")
    for i, (token, q) in enumerate(said):
        x = left + wide * i
        box(axes, x, 27, 9, 3.2, "MASK" if i else shown(read[-1]), "gone" if i else "cached")
        words(axes, x + 4.5, 32, f"place {i + 1}", fontsize=9)
        arrow(axes, (x + 4.5, 27), (x + 4.5, 23.6))
        arrow(axes, (x + 4.5, 18.8), (x + 4.5, 15.2))
        box(axes, x, 12, 9, 3.2, "logits", "plain")
        arrow(axes, (x + 4.5, 12), (x + 4.5, 5.6), DRAFT)
        box(axes, x, 2.4, 9, 3.2, f"{shown(token)}  {q:.2f}", "draft")
        if i + 1 < len(said):
            arrow(axes, (x + 9, 4), (x + wide + 0.5, 12), RESAMPLED, dash="--")
    words(axes, left - 1.5, 4, "drawn, and its q", ha="right")
    words(axes, left - 1.5, 8.6, "dashed: corrected by\nthe token drawn before", ha="right")
    return axes.figure
