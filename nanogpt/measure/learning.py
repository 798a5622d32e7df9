"""A text in another style, drafts that learn it while it is served, and what they gain.

The style is programs: a target that has moved from Shakespeare (34).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

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
from nanogpt.proof.toys import TableDraft
from nanogpt.sampling import RandomSource, Sampling, Uniforms
from nanogpt.serving.server import Limits, Server
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
    target, drafter: Proposer, tokenizer: CharTokenizer, seed: int, requests: int = 12, n: int = 96
) -> list[Seen]:
    """The rounds of a server that completes `requests` texts by n letters, four at a time.

    Each begins with the first 16 letters of a program.
    """
    limits, rng = Limits(max_num_seqs=4, prefill_chunk=32), RandomSource(seed)
    server = Server(target, drafter, limits=limits, seed=seed)
    for _ in range(requests):
        server.submit(tokenizer.encode("\n" + program(1, rng))[:16], n)
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


def drafters(table: Draft | None = None, net: GPTLanguageModel | None = None) -> dict:
    """{name: a call for a new drafter} of all that the chapter serves with."""
    table, net = table or ngram.load(), net or transformer.load().model
    V, own = table.vocab_size, transformer.TransformerDraft
    even = TableDraft(torch.full((V, V), 1 / V, dtype=torch.float64))
    return {
        "table, frozen": lambda: Chain(table, 6),
        "table, per request": lambda: LearningDraft(SoftTable(table), 6),
        "table, shared": lambda: LearningDraft(SoftTable(table), 6, shared=True),
        "the same, contexts from 0": lambda: LearningDraft(SoftTable(table, 0), 6, shared=True),
        "from nothing, shared": lambda: LearningDraft(SoftTable(even, 0), 6, shared=True),
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
def sampled(target, n: int, T: int, seed: int) -> tuple[Tensor, Tensor]:
    """n texts (n, T+1) by the target, all from token 0, and its p (n, T, V) of what follows."""
    random, past_kvs, probs = Uniforms.generator(seed), None, []
    texts = torch.zeros(n, 1, dtype=torch.int64)
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
def kept(net: GPTLanguageModel, texts: Tensor, probs: Tensor) -> tuple[float, float]:
    """α, Σ min(p, q) over all places of the texts, and the tokens that a pass over 3 guesses makes.

    A chain of guesses x is drawn with probability Π q(x), and kept with Π min(1, p/q): Σ over all
    chains of Π min(p, q) is the mean of Π min(1, q/p) over texts by the target. No coin is tossed.
    A pass begins at each place alike; in decoding more of them begin where guesses fail, so that it
    makes somewhat fewer tokens a pass.
    """
    log_q = net(texts[:, :-1])[0].double().log_softmax(-1)
    came = texts[:, 1:, None]
    ratio = (log_q.exp().gather(-1, came) / probs.gather(-1, came)).clamp_max(1)[..., 0]
    chains = ratio.unfold(1, 3, 1).cumprod(-1)  # (n, T-2, 3)
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
