"""Decodes for real, and records what happened, for the live page to play.

`python book/record.py` renews book/live/recorded.json; a path as argument takes it elsewhere. The
same machine gives the same bytes. Where a checkpoint has changed, it is to be recorded again; then
`python book/live.py` puts it into the page.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, load_corpus, train_val_split, write_atomically
from nanogpt.drafts.shipped import BEST_PROPOSED, DRAFTS, PROPOSERS, proposer
from nanogpt.generate import Round
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import residual, speculative_generate
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Proposer, TreeRound

RECORDED = Path(__file__).resolve().parent / "live" / "recorded.json"
PROMPT = "ROMEO:"

FIELDS = ("name", "draft", "K", "temperature", "seed", "tokens")
TRACES = [  # 200 tokens do not fit into the window of 128
    dict(zip(FIELDS, values, strict=True))
    for values in (
        ("bigram draft, K = 4", "bigram", 4, 1.0, 0, 120),
        ("distilled tree, K = 8", "distilled", 8, 1.0, 0, 120),
        ("distilled tree, K = 8, temperature 0", "distilled", 8, 0.0, 0, 120),
        ("distilled tree, K = 8, past the window", "distilled", 8, 1.0, 1, 200),
        ("a tree of guesses", "tree", 4, 1.0, 0, 100),
        *(
            (name, draft, BEST_PROPOSED[draft], 1.0, 0, 60)
            for name, draft in (
                ("an early exit (chapter 14)", "exit"),
                ("Medusa's tree (chapter 16)", "medusa-tree"),
                ("EAGLE-3's chain (chapter 19)", "eagle3"),
                ("EAGLE-2's tree (chapter 19)", "eagle-tree"),
                ("multi-token prediction (chapter 20)", "mtp"),
                ("lookahead (chapter 21)", "lookahead"),
                ("a block drafter (chapter 22)", "block-markov"),
            )
        ),
    )
]
DISTILLED = "Draft: an n-gram tree distilled from the target (chapter 10)"
ABOUT = {  # who guesses; the page puts numbers of the trace, and the corpus, for what is in {}
    "bigram": "Draft: a bigram counted in {corpus}, which sees one letter back. "
    "K = {K} guesses a round",
    "distilled": DISTILLED + ". K = {K} guesses a round",
    "tree": DISTILLED + ". A tree of up to {most} guesses a round, 2 · 2 · 1 · 1 after each",
    "exit": "Draft: the target itself, left early (chapter 14). An exit of its own reads what the "
    "first of its four blocks made of each token. K = {K} guesses a round",
    "medusa-tree": "Draft: Medusa's heads (chapter 15), which fill a fixed tree (chapter 16). All "
    "of them read one hidden state of the target, each head looks one letter further ahead, and "
    "none knows what another guessed. A tree of {most} guesses, of the same shape every round",
    "eagle3": "Draft: EAGLE-3's head (chapter 19). It reads what three of the target's blocks made "
    "of each token, and the token that came next. K = {K} guesses a round",
    "eagle-tree": "Draft: EAGLE-3's head again, which now grows EAGLE-2's tree (chapter 19): wide "
    "where the head is unsure. It reads what three of the target's blocks made of each token, and "
    "the token that came next. Its {most} most promising guesses a round",
    "mtp": "Draft: a layer for multi-token prediction (chapter 20). It was trained together with a "
    "target of its own, which writes this text. It reads that target's hidden state of each token, "
    "and the token that came next. K = {K} guesses a round",
    "lookahead": "Draft: no model at all (chapter 21). Lookahead keeps a window of guesses, which "
    "each pass of the target corrects, and a pool of the n-grams that came of it. It reads nothing "
    "but the text and the target's former answers. A tree of both, up to {most} guesses a round",
    "block-markov": "Draft: a block drafter that tells each guess its neighbour (chapter 22). It "
    "reads what three of the target's blocks made of the last 16 letters, and fills in all places "
    "in one pass; then each guess hears the one before it. K = {K} guesses a round",
}
SOURCES = {"lookahead": "from its window or its pool"}  # of what is neither drawn nor the likeliest


class Noting:
    """Uniform numbers, the last of them noted."""

    def __init__(self, seed: int):
        self.uniforms, self.last = np.random.default_rng(seed), 0.0

    def random(self) -> float:
        """The next uniform number."""
        self.last = self.uniforms.random()
        return self.last


class NotingSource(RandomSource):
    """A RandomSource that notes the u of every bernoulli."""

    def __init__(self, seed: int):
        self.uniforms = Noting(seed)
        super().__init__(seed, self.uniforms)
        self.noted: list[float] = []

    def bernoulli(self, probability: float) -> bool:
        """As RandomSource.bernoulli."""
        happened = super().bernoulli(probability)
        self.noted.append(self.uniforms.last)
        return happened


def round_of(r: Round, us: Iterator[float], restart: bool, tokenizer: CharTokenizer) -> dict:
    """One round as the page reads it. `us`: of all candidates that will be examined.

    What is so in a chain is left out: a parent that is the candidate before, and what is left of p
    where no sibling was refused.
    """
    p, q, drafts = r.target_probs.numpy(), r.draft_probs.numpy(), []
    tree = isinstance(r, TreeRound)
    parents = r.parents if tree else list(range(-1, len(r.candidates) - 1))
    path = r.path if tree else list(range(r.n_accepted))
    for node, (token, parent) in enumerate(zip(r.candidates, parents, strict=True)):
        known = {"p": float(p[parent + 1, token]), "q": float(q[node, token])}
        known |= {"parent": parent} if parent != node - 1 else {}
        drafts.append({"text": tokenizer.decode([token]), **known, "u": None, "fate": "unexamined"})
    for before, kept in itertools.zip_longest([-1, *path], path):
        left = p[before + 1]
        tried = [node for node, parent in enumerate(parents) if parent == before]
        for node in tried[: None if kept is None else tried.index(kept) + 1]:
            draft, token = drafts[node], r.candidates[node]
            if node != tried[0]:
                draft["left"] = float(left[token])
            draft |= {"u": next(us), "fate": "accepted" if node == kept else "rejected"}
            assert (draft["u"] < min(1.0, left[token] / draft["q"])) == (node == kept)
            if node != kept:
                left = residual(left, q[node])
    token, fate = r.emitted[-1], "resampled" if tried else "bonus"
    last = {"text": tokenizer.decode([token]), "fate": fate, "p": float(p[before + 1, token])}
    if fate == "resampled":
        last["residual"] = float(left[token])
    cache = [r.position, r.position + 1 + len(drafts), r.position + 1 + len(path)]
    return {"restart": restart, "cache": cache, "drafts": drafts, "last": last}


def record(target, tokenizer: CharTokenizer, draft, settings: dict) -> dict:
    """The settings, and the rounds that a generation with them took."""
    rng = NotingSource(settings["seed"])
    request = tokenizer.encode(PROMPT), settings["tokens"]
    how = {"sampling": Sampling(settings["temperature"]), "rng": rng}
    if isinstance(draft, Proposer):
        target = draft.target or target
        made = tree_generate(target, draft, *request, **how)
    else:
        made = speculative_generate(target, draft, *request, K=settings["K"], **how)
    us, rounds, held = iter(rng.noted), [], len(PROMPT) - 1
    for r in made.rounds:
        restart = held == target.config.block_size
        assert restart or r.position == held
        rounds.append(round_of(r, us, restart, tokenizer))
        held = rounds[-1]["cache"][2]
    assert next(us, None) is None
    texts = {"about": ABOUT[settings["draft"]], "source": SOURCES.get(settings["draft"])}
    return {**settings, **texts, "prompt": PROMPT, "rounds": rounds}


def record_all() -> dict:
    """What the page plays: the window, the corpus, its counted pairs, and every trace."""
    torch.set_num_threads(1)
    corpus = load_corpus()
    target, tokenizer = checkpoint.load()
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    table = DRAFTS["distilled"](tokens, tokenizer.vocab_size)
    traces = []
    for settings in TRACES:
        name, K = settings["draft"], settings["K"]
        if name in PROPOSERS:
            draft = proposer(name, target, table, K)
        else:
            draft = DRAFTS[name](tokens, tokenizer.vocab_size)
        traces.append(record(target, tokenizer, draft, settings))
    return {
        "window": target.config.block_size,
        "corpus": corpus.name,
        "counts": pair_counts(tokens, tokenizer.vocab_size),
        "traces": traces,
    }


def pair_counts(tokens: Tensor, vocab_size: int) -> list[list[int]]:
    """How often each token follows each, and one more: what the bigram draft divides."""
    pairs = tokens[:-1] * vocab_size + tokens[1:]
    return (torch.bincount(pairs, minlength=vocab_size**2).view(vocab_size, -1) + 1).tolist()


def main() -> None:
    """Write the traces to the given path; missing parent folders are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=RECORDED, help="where they go")
    path = parser.parse_args().path
    text = json.dumps(record_all(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    write_atomically(path, text.encode())
    print(f"{path}: {len(TRACES)} traces, {len(text.encode()) // 1000} kB")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
