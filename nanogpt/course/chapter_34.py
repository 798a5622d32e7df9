"""Chapter 34: the judge of *Your turn*, its text in another style, its runs and its pictures.

The turn: q of a table that adds up what the target said.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.drafts import ngram, transformer
from nanogpt.drafts.learning import (
    LearningDraft,
    Loss,
    NetStudent,
    SoftTable,
    forward_kl,
    hybrid,
    overlap,
    rejection,
    reverse_kl,
)
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.protocol import Chain
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling, Uniforms
from nanogpt.serving.server import Limits, Server
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, REJECTED, SERIES, STYLE, Picture, picture
from nanogpt.speculative import Draft
from nanogpt.trees.tree import Proposer

MOVED = DATA_DIR / "checkpoints" / "moved.safetensors"
NAMES = ["ash", "bee", "cow", "doe", "elk", "fox", "gnu", "hen"]
LINES = [
    "let {0} be {1} - {2};\n",
    "if {0}: call {1}, {2};\n",
    "for {0} in {1}:\n  print {0} & {2};\n",
    "while {0}: send {1} to {2};\n",
    "return {0}, {1};\n\n",
]


def chosen(things: Sequence[str], rng: RandomSource) -> str:
    """One of them, each as likely."""
    return things[rng.categorical(np.full(len(things), 1 / len(things)))]


def program(lines: int, rng: RandomSource) -> str:
    """So many lines of a made-up programming language, in the 65 letters of the target."""

    def line() -> str:
        return chosen(LINES, rng).format(*(chosen(NAMES, rng) for _ in range(3)))

    return "".join(line() for _ in range(lines))


WORDS = {
    "noun": ["moon", "rose", "lark", "king", "sea", "bell", "thorn", "ship", "crown", "rain"],
    "verb": ["sing", "weep", "sail", "burn", "wake", "fall", "turn", "shine"],
    "kind": ["pale", "merry", "cold", "golden", "weary", "sweet", "wild", "dark"],
}
VERSES = [
    "The {kind} {noun} doth {verb},\n",
    "And where the {noun}s {verb}, a {kind} {noun} will {verb};\n",
    "O {verb} no more, thou {kind} {noun}!\n",
    "So {verb} by {noun} and {noun},\n",
]
SAYINGS = [
    "Marry, sir, your {noun} is but a {kind} {noun}, and so say I.\n",
    "I say your {noun} will {verb}; and when it {verb}s, sir, mark me, 'tis {kind}.\n",
    "What, {verb}? A {noun} may {verb}, sir, and yet be {kind}.\n",
    "Nay, sir, I know a {noun}, and a {noun}, and so say I.\n",
]


def filled(line: str, rng: RandomSource) -> str:
    """The line with a word in each gap."""
    while gap := re.search(r"{(\w+)}", line):
        line = line.replace(gap[0], chosen(WORDS[gap[1]], rng), 1)
    return line


def song(songs: int, rng: RandomSource) -> str:
    """So many songs: after every two lines of a verse, the same two lines come again."""
    made = ""
    for _ in range(songs):
        refrain = "".join(filled(line, rng) for line in (chosen(VERSES, rng), VERSES[2]))
        for _ in range(3):
            made += "".join(filled(chosen(VERSES, rng), rng) for _ in range(2)) + refrain + "\n"
    return made


def speech(lines: int, rng: RandomSource) -> str:
    """So many lines of a play in which one speaker only, of few turns of phrase, is ever heard."""
    return "".join(f"COSTARD:\n{filled(chosen(SAYINGS, rng), rng)}\n" for _ in range(lines))


def load_moved(device: str | torch.device = "cpu") -> GPTLanguageModel:
    """The target, fine-tuned on such programs. Errors are those of checkpoint.load."""
    return checkpoint.load(MOVED, device, make_one="python data/make_drafts.py moved")[0]


# Serving


class Seen(NamedTuple):
    """A round in a server: how many tokens had been served, and how many in its own text."""

    served: int
    place: int
    accepted: int
    examined: int
    emitted: int


def serve(
    target,
    drafter: Proposer,
    tokenizer: CharTokenizer,
    seed: int,
    requests: int = 12,
    n: int = 96,
    rows: int = 4,
    write: Callable[[int, RandomSource], str] = program,
) -> list[Seen]:
    """The rounds of a server that completes `requests` texts by n letters, `rows` at a time.

    Each begins with the first 16 letters of a text that `write` makes up.
    """
    limits, rng = Limits(max_num_seqs=rows, prefill_chunk=32), RandomSource(seed)
    server = Server(target, drafter, limits=limits, seed=seed)
    for _ in range(requests):
        server.submit(tokenizer.encode("\n" + write(1, rng))[:16], n)
    texts, known, rounds, served = server.requests, [0] * requests, [], 0
    while server.requests:
        server.step()
        for i, text in enumerate(texts):
            for done in text.rounds[known[i] :]:
                place = sum(len(r.emitted) for r in text.rounds[: known[i]])
                emitted = len(done.emitted)
                rounds.append(Seen(served, place, done.n_accepted, done.n_examined, emitted))
                served, known[i] = served + emitted, known[i] + 1
    return rounds


class Even(Draft):
    """A draft that knows nothing: every token is as likely."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.q = torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,), always the same."""
        return self.q


def drafters(table: Draft | None = None, net: GPTLanguageModel | None = None) -> dict:
    """{name: a call for a new drafter} of all that the chapter serves with."""
    table, net = table or ngram.load(), net or transformer.load().model
    V, own = table.vocab_size, transformer.TransformerDraft
    return {
        "table, frozen": lambda: Chain(table, 6),
        "table, per request": lambda: LearningDraft(SoftTable(table), 6),
        "table, shared": lambda: LearningDraft(SoftTable(table), 6, shared=True),
        "the same, contexts from 0": lambda: LearningDraft(SoftTable(table, 0), 6, shared=True),
        "from nothing, shared": lambda: LearningDraft(SoftTable(Even(V), 0), 6, shared=True),
        "prompt lookup": lambda: Chain(PromptLookupDraft(V), 6),
        "net, frozen": lambda: Chain(own(net), 3),
        "net, shared": lambda: LearningDraft(
            NetStudent(own(copy.deepcopy(net)), 4), 3, shared=True
        ),
    }


def alphas(rounds: Sequence[Seen], width: int, windows: int, by: str = "served") -> list[float]:
    """α in each window of so many tokens `served` (or by `place`); NaN where none was examined."""
    kept, asked = np.zeros(windows), np.zeros(windows)
    for seen in rounds:
        at = min(getattr(seen, by) // width, windows - 1)
        kept[at] += seen.accepted
        asked[at] += seen.examined
    with np.errstate(invalid="ignore"):
        return (kept / asked).tolist()


def mean_and_error(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Of each column, the mean over the rows (seeds), and its standard error."""
    numbers = np.array(rows, dtype=float)
    errors = numbers.std(0, ddof=1) / math.sqrt(len(numbers))
    return numbers.mean(0).tolist(), errors.tolist()


# Losses

LOSSES: dict[str, tuple[Loss, bool]] = {  # and whether its rows are the tokens that came, alone
    "cross-entropy": (forward_kl, True),
    "KL(p‖q)": (forward_kl, False),
    "KL(q‖p)": (reverse_kl, False),
    "TV": (rejection, False),
    "LK hybrid": (hybrid, False),
}


@torch.no_grad()
def sampled(target, n: int, T: int, seed: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """n texts (n, T+1) by the target, all from one token, and its p (n, T, V) of what follows."""
    random, past_kvs, probs = Uniforms.generator(seed), None, []
    texts = torch.full((n, 1), first)
    for _ in range(T):
        logits, _, past_kvs = target(texts[:, -1:], past_kvs=past_kvs)
        probs.append(Sampling().probs(logits[:, -1]))
        u = torch.from_numpy(random.random((n, 1)))
        new = torch.searchsorted(probs[-1].cumsum(-1), u).clamp_max(probs[-1].shape[-1] - 1)
        texts = torch.cat([texts, new], dim=1)
    return texts, torch.stack(probs, dim=1)


def trained(
    net: GPTLanguageModel, loss: Loss, texts: Tensor, rows: Tensor, updates: int, rate: float
) -> GPTLanguageModel:
    """A copy of the net after so many updates, 8 texts each, in their order."""
    net = copy.deepcopy(net).requires_grad_(True)
    optimizer = torch.optim.Adam(net.parameters(), rate, fused=True)
    for i in range(updates):
        some = torch.arange(8 * i, 8 * i + 8) % len(texts)
        log_q = net(texts[some, :-1])[0].log_softmax(-1).flatten(0, 1)
        optimizer.zero_grad()
        loss(log_q, rows[some].flatten(0, 1).to(log_q.dtype)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net


@torch.no_grad()
def kept(net: GPTLanguageModel, texts: Tensor, probs: Tensor, K: int = 3) -> tuple[float, float]:
    """α, Σ min(p, q) over all places of the texts, and the tokens that a pass over K guesses makes.

    A chain of guesses x is drawn with probability Π q(x), and kept with Π min(1, p/q): Σ over all
    chains of Π min(p, q) is the mean of Π min(1, q/p) over texts by the target. No coin is tossed.
    A pass begins at each place alike; in decoding more of them begin where guesses fail, so that it
    makes somewhat fewer tokens a pass.
    """
    log_q = net(texts[:, :-1])[0].double().log_softmax(-1)
    came = texts[:, 1:, None]
    ratio = (log_q.exp().gather(-1, came) / probs.gather(-1, came)).clamp_max(1)[..., 0]
    chains = ratio.unfold(1, K, 1).cumprod(-1)  # (n, T-K+1, K)
    return float(overlap(log_q, probs).mean()), 1 + float(chains.mean((0, 1)).sum())


def by_loss(
    target, net: GPTLanguageModel, seed: int, updates: int = 100, rate: float = 3e-3
) -> dict[str, tuple[float, float]]:
    """{loss: α and tokens a pass} of nets that begin alike and learn from the same rows."""
    texts, probs = sampled(target, 64, 64, 2 * seed)
    fresh = sampled(target, 64, 64, 2 * seed + 1)
    alone = torch.nn.functional.one_hot(texts[:, 1:], probs.shape[-1]).double()
    return {
        name: kept(trained(net, loss, texts, alone if hard else probs, updates, rate), *fresh)
        for name, (loss, hard) in LOSSES.items()
    }


# The judge

PRIORS = [0.5, 1.0, 4.0]
BASE = {"a": [0.2, 0.5, 0.3], "b": [0.6, 0.1, 0.3], "c": [0.1, 0.1, 0.8]}
LESSONS = [
    ("a", [0.7, 0.2, 0.1]),
    ("b", [0.1, 0.8, 0.1]),
    ("a", [0.5, 0.3, 0.2]),
    ("a", [0.7, 0.2, 0.1]),
]


def learnt(base: Sequence[float], lessons: Sequence, context: str, prior: float) -> list[float]:
    """The right q."""
    rows = [row for known, row in lessons if known == context]
    total = prior + len(rows)
    return [(prior * q + sum(row[x] for row in rows)) / total for x, q in enumerate(base)]


def judge(mine: Callable) -> None:
    """mine(base, lessons, context, prior) is q of what follows the context, as a list.

    Judged after no, one and several lessons. Raises AssertionError with the slip.
    """
    for prior in PRIORS:
        for n in range(len(LESSONS) + 1):
            for context, q in BASE.items():
                judge_answer(mine, q, LESSONS[:n], context, prior)


def judge_answer(mine: Callable, q: list[float], lessons: list, context: str, prior: float) -> None:
    """One answer of the judge. Raises AssertionError with the slip."""
    base, taught = list(q), [(known, list(row)) for known, row in lessons]
    answer = mine(base, taught, context, prior)
    assert base == q and taught == lessons, (
        "base or a lesson was changed in place: whoever holds that row now claims another q than "
        "was drawn from; build a new one"
    )
    assert answer is not None and hasattr(answer, "__len__"), (
        f"{answer!r} came back: return a list, one probability for each of the {len(q)} letters"
    )
    numbers = not isinstance(answer, str) and all(hasattr(x, "__float__") for x in answer)
    assert numbers, f"{answer!r} came back: a list of probabilities, one for each letter"
    got = [float(x) for x in answer]
    right = learnt(q, lessons, context, prior)
    if len(got) == len(right) and np.allclose(got, right, rtol=0, atol=1e-9):
        return
    said = f"base {q}, prior {prior}, {len(lessons)} lessons, after {context!r}: {np.round(got, 3)}"
    raise AssertionError(
        f"{said} came out instead of {np.round(right, 3)}; {slip(got, q, lessons, context, prior)}"
    )


def slip(got: list[float], q: list[float], lessons: list, context: str, prior: float) -> str:
    """What was probably done wrong."""
    rows = [row for known, row in lessons if known == context]

    def same(other) -> bool:
        return len(got) == len(other) and np.allclose(got, other, rtol=0, atol=1e-9)

    if len(got) != len(q):
        return f"it has {len(got)} numbers, and there are {len(q)} letters"
    if rows and same(np.mean(rows, axis=0)):
        return "the base is forgotten: it counts like `prior` rows of its own"
    if same(learnt(q, [(context, row) for _, row in lessons], context, prior)):
        return f"lessons after other contexts count, too: only those after {context!r} should"
    if rows and same(learnt(q, [(context, rows[-1])], context, prior)):
        return "only the last lesson counts: all of them should"
    hard = [(context, np.eye(len(q))[int(np.argmax(row))].tolist()) for row in rows]
    if rows and same(learnt(q, hard, context, prior)):
        return "each lesson adds 1 to its likeliest letter: add the whole row"
    if abs(sum(got) - 1) > 1e-9:
        return f"it sums to {sum(got):.3f}: divide by prior + the number of rows"
    return "prior times the base, plus the rows after this context, divided by their number"


# Pictures


@mpl.rc_context(STYLE)
def when_to_learn(title: str) -> Picture:
    """A round on a time axis: what is drawn, judged and learnt, and where an update may stand."""
    axes = sheet(title, 9.4, 2.9)
    parts = [
        ("draw\nfrom q", "draft", 11),
        ("pass: p of\nall places", "target", 17),
        ("judge by\np and q", "accepted", 12),
        ("learn\nfrom p", "bonus", 11),
        ("draw\nfrom new q", "draft", 14),
    ]
    x, edges = 4.0, []
    for text, kind, width in parts:
        box(axes, x, 10, width, 5, text, kind)
        edges.append((x, x + width))
        x += width + 4
    for (_, end), (start, _) in itertools.pairwise(edges):
        arrow(axes, (end, 12.5), (start, 12.5))
    for before, after, colour, mark, note in (
        (0, 2, REJECTED, "✗", "no update here: it would claim a q\nthat no guess was drawn from"),
        (2, 4, ACCEPTED, "✓", "here, nothing waits\nfor a verdict"),
    ):
        left, right = edges[before][1] + 0.5, edges[after][0] - 0.5
        axes.plot([left, left, right, right], [18, 19.5, 19.5, 18], color=colour, linewidth=1.6)
        words(axes, (left + right) / 2, 23, f"{mark} {note}", fontsize=9.5, color=colour)
    words(axes, 4, 7.5, "time →", ha="left", fontsize=9, color=GREY)
    return axes.figure


@mpl.rc_context(STYLE)
def with_errors(
    x: Sequence[float],
    ys: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    level: tuple[str, float] | None = None,
    guess: float | None = None,
) -> Picture:
    """One line per entry, (values, errors), with a bar of one standard error at each point.

    level: (label, value) of a thin line across.
    """
    axes = picture(title, xlabel, ylabel, 8.4, 4.2)
    for (label, (y, error)), (colour, dash, marker, _) in zip(ys.items(), SERIES, strict=False):
        look = {"color": colour, "linestyle": dash, "marker": marker, "capsize": 3}
        axes.errorbar(x, y, error, label=label, **look)
    if level is not None:
        axes.axhline(level[1], color=GREY, linewidth=1, linestyle="--", label=level[0])
    if guess is not None:
        axes.axhline(guess, color="black", linestyle=":", label=f"your guess: {guess:g}")
    axes.set_ylim(0, 1)
    axes.figure.legend(loc="outside lower left", ncols=3)
    return axes.figure
