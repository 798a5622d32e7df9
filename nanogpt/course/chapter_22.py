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

V, PLACES, CURRENT = 3, 4, 1
RULES = Sampling(), Sampling(0.5), Sampling(top_k=2), Sampling(0)


def judge(mine: Callable) -> None:
    """Judges my_told(logits, table, current, sampling, rng) -> (tokens, q).

    Every outcome of four places over three letters is enumerated: how often it comes, and the q
    that is claimed with it, at temperature 1, .5, with top-k and greedy.
    Raises AssertionError for a q that is not the conditional that the token was drawn from, a
    correction from the wrong token or in the wrong place, a rule that is not applied, or too early.
    """
    generator = torch.Generator().manual_seed(0)
    logits, table = (
        torch.randn(n, V, dtype=torch.float64, generator=generator) for n in (PLACES, V)
    )
    for sampling in RULES:
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
    found = f"{len(got)} things" if isinstance(got, (list, tuple)) else type(got).__name__
    assert isinstance(got, (list, tuple)) and len(got) == 2, (
        f"your function returned {found}; return two things: the tokens, and q"
    )
    tokens, q = got
    assert tokens is not None and q is not None, (
        "your function returned None for the tokens or for q; both are wanted, a row of q a token"
    )
    if isinstance(q, (list, tuple)):
        rows = [torch.as_tensor(x, dtype=None if hasattr(x, "dtype") else torch.float64) for x in q]
        q = torch.stack(rows) if rows else torch.empty(0, V)
    tokens = tuple(int(token) for token in tokens)
    assert len(tokens) == PLACES, f"{PLACES} rows of logits, but {len(tokens)} tokens; one a row"
    q = torch.as_tensor(q)
    assert q.shape == (PLACES, V), f"q has the shape {tuple(q.shape)}; a row (V,) for each token"
    assert q.dtype == torch.float64, (
        f"q is {str(q.dtype)[6:]}; sampling.probs returns float64, and a rounded q is not the one "
        "that the token was drawn from"
    )
    return tokens, q


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
    if how == "rule first":
        allowed = sampling.probs(logits) > 0
        return torch.softmax((logits + table[before]).where(allowed, -torch.inf), -1)
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
    "rule first": "the sampling rule chose among the bare logits, and the correction came after "
    "it; correct first, then call sampling.probs",
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
        f"{said_of(right[place - 1])} (off by {float(off[place - 1]):.1e}); add the row of the "
        "token before to the logits, then sample"
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
        f"are off by {off:.1e}; draw with rng.categorical(q) of that very row"
    )


@mpl.rc_context(STYLE)
def masked_block(read: str, said: Sequence[tuple[str, float]], title: str) -> Picture:
    """A block drafter's one pass over the last token read and a mask for each later place.

    said: of each place, the token drawn and its q. The dashed arrows are the only way in which one
    guess hears of another: the token drawn corrects the logits of the place after it.
    """
    left, wide = max(28, 3.2 * len(read) + 4), 12.5
    right = left + wide * len(said) - 3.5
    shows = f"A pass reads a token and {len(said) - 1} masks; each draw is told to the next place."
    axes = sheet(title, max(8, (right + 2) / 10), 3.6, shows)
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


@mpl.rc_context(STYLE)
def blocks_in_text(text: str, starts: Sequence[int], reach: int, K: int, title: str) -> Picture:
    """Blocks that start at `starts` of a finished text: what each reads, fills in and aims at."""
    size, left = 3.2, 15
    shows = f"{len(starts)} blocks under a text: each reads what is before it and guesses on."
    axes = sheet(title, (left + size * len(text) + 2) / 10, 0.7 + 1.08 * len(starts), shows)
    words(axes, left - 1.5, 3.2, "a finished text", ha="right")
    for i, char in enumerate(text):
        box(axes, left + size * i, 1.8, size - 0.4, 2.8, shown(char), "target")
    for line, start in enumerate(starts):
        y = 8 + 11 * line
        words(axes, left - 1.5, y + 1.4, "it reads, and is given", ha="right", fontsize=9)
        words(axes, left - 1.5, y + 6.2, "each row is asked for", ha="right", fontsize=9)
        for i in range(max(0, start - reach), start):
            box(axes, left + size * i, y, size - 0.4, 2.8, "h", "cached")
        for i in range(K):
            x = left + size * (start + i)
            box(axes, x, y, size - 0.4, 2.8, "M" if i else shown(text[start]), "draft")
            arrow(axes, (x + 1.4, y + 2.8), (x + size + 1.4, y + 5))
            box(axes, x + size, y + 5, size - 0.4, 2.6, shown(text[start + i + 1]), "accepted")
    return axes.figure


@mpl.rc_context(STYLE)
def three_ways(current: str, guesses: Sequence[str], title: str) -> Picture:
    """How three drafts come by the same K guesses: rows of input, passes, and which row says what.

    EAGLE: a pass of one row for each guess. DFlash: one pass, of whose K+1 rows the current token's
    says nothing. DSpark and ours: one pass of K rows, each asked for the token after its own place.
    """
    K, wide, left = len(guesses), 9.0, 24
    ways = (
        ("EAGLE", f"{K} passes of 1 row", [shown(current), *map(shown, guesses[:-1])]),
        ("DFlash", f"1 pass of {K + 1} rows", [shown(current), *["MASK"] * K]),
        ("DSpark, and ours", f"1 pass of {K} rows", [shown(current), *["MASK"] * (K - 1)]),
    )
    shows = "EAGLE feeds each guess back; DFlash throws away a row; DSpark, like ours, uses all."
    axes = sheet(title, (left + wide * (K + 1) + 3) / 10, 4.6, shows)
    for i in range(K + 1):
        words(axes, left + wide * i + 3.5, 1, f"place n+{i}" if i else "place n", fontsize=9)
    for line, (name, passes, rows) in enumerate(ways):
        y = 3 + 14 * line
        words(axes, left - 2, y + 1.6, name, ha="right", fontweight="bold")
        words(axes, left - 2, y + 4.2, passes, ha="right", fontsize=9)
        for i, row in enumerate(rows):
            x, masked = left + wide * i, row == "MASK"
            box(axes, x, y, 7, 3, row, "gone" if masked else "draft" if i else "cached")
            if name == "DFlash" and i == 0:
                words(axes, x + 3.5, y + 5.4, "thrown away", fontsize=9)
                continue
            to = i if name == "DFlash" else i + 1  # the place that this row is asked for
            end = left + wide * to + 3.5
            arrow(axes, (x + 3.5, y + 3), (end, y + 7))
            box(axes, end - 3.5, y + 7, 7, 3, shown(guesses[to - 1]), "draft")
            if name == "EAGLE" and to < K:
                arrow(axes, (end + 1.5, y + 7), (end + 1.5, y + 3), RESAMPLED, dash="--")
    words(axes, 1, 45, "dashed: drawn, and read by the next pass", ha="left", fontsize=9)
    return axes.figure


def cut(table: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """W1 (V, r), W2 (r, V): the best rank-r approximation W1 W2 of a table (V, V)."""
    U, S, Vt = torch.linalg.svd(table)
    return U[:, :r] * S[:r], Vt[:r]
