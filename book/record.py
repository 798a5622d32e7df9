"""Decodes for real, and writes the player page with what happened in it.

`python book/record.py` renews book/player.html itself; a path as argument takes the page elsewhere,
as `make book` does. The same machine gives the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from nanogpt import checkpoint
from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.checks import decoder
from nanogpt.data import CharTokenizer, load_corpus, train_val_split, write_atomically
from nanogpt.drafts import DRAFTS
from nanogpt.generate import Round
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import residual, speculative_generate
from nanogpt.tree import Grown, tree_generate

PAGE = Path(__file__).resolve().parent / "player.html"
BEFORE, AFTER = '<script type="application/json" id="traces">', "</script>"
PROMPT = "ROMEO:"

FIELDS = ("name", "draft", "K", "temperature", "seed", "tokens")
TRACES = [  # 200 tokens do not fit into the window of 128
    dict(zip(FIELDS, values, strict=True))
    for values in (
        ("bigram draft, K = 4", "bigram", 4, 1.0, 0, 120),
        ("distilled tree, K = 8", "distilled", 8, 1.0, 0, 120),
        ("distilled tree, K = 8, temperature 0", "distilled", 8, 0.0, 0, 120),
        ("distilled tree, K = 8, past the window", "distilled", 8, 1.0, 1, 200),
        ("a tree of guesses", "distilled", 14, 1.0, 0, 100),
    )
]
TRACES[-1]["tree"] = [2, 2, 1, 1]  # widths, 14 nodes


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


def round_of(r: Round, us: list[float], cache: list[int], restart: bool, tokenizer: CharTokenizer):
    """One round as the page reads it. `us`: of the examined candidates; `cache`: three lengths."""
    n = r.n_accepted
    assert len(us) == r.n_examined
    drafts = []
    for i, token in enumerate(r.candidates):
        p, q = float(r.target_probs[i, token]), float(r.draft_probs[i, token])
        u = us[i] if i < len(us) else None
        fate = "accepted" if i < n else "rejected" if i == n else "unexamined"
        assert u is None or (u < min(1.0, p / q)) == (fate == "accepted")
        drafts.append({"text": tokenizer.decode([token]), "p": p, "q": q, "u": u, "fate": fate})
    token, fate = r.emitted[-1], "bonus" if n == len(r.candidates) else "resampled"
    last = {"text": tokenizer.decode([token]), "fate": fate, "p": float(r.target_probs[n, token])}
    if fate == "resampled":
        last["residual"] = float(residual(r.target_probs[n], r.draft_probs[n])[token])
    return {"restart": restart, "cache": cache, "drafts": drafts, "last": last}


def round_of_tree(r: Round, us: Iterator[float], restart: bool, tokenizer: CharTokenizer) -> dict:
    """One round of a tree as the page reads it. `us`: of all nodes that will be examined."""
    p, drafts = r.target_probs.numpy(), []
    for node, (token, parent) in enumerate(zip(r.candidates, r.parents, strict=True)):
        q = float(r.draft_probs[node, token])
        known = {"p": float(p[parent + 1, token]), "q": q, "u": None, "fate": "unexamined"}
        drafts.append({"text": tokenizer.decode([token]), **known, "parent": parent})
    for before, kept in itertools.zip_longest([-1, *r.path], r.path):
        left = p[before + 1]
        tried = [node for node, parent in enumerate(r.parents) if parent == before]
        for node in tried[: None if kept is None else tried.index(kept) + 1]:
            draft, token = drafts[node], r.candidates[node]
            draft |= {"left": float(left[token]), "u": next(us)}
            draft["fate"] = "accepted" if node == kept else "rejected"
            assert (draft["u"] < min(1.0, draft["left"] / draft["q"])) == (node == kept)
            if node != kept:
                left = residual(left, r.draft_probs[node].numpy())
    token, fate = r.emitted[-1], "resampled" if tried else "bonus"
    last = {"text": tokenizer.decode([token]), "fate": fate, "p": float(p[before + 1, token])}
    if fate == "resampled":
        last["residual"] = float(left[token])
    cache = [r.cache_len, r.cache_len + 1 + len(drafts), r.cache_len + 1 + len(r.path)]
    return {"restart": restart, "cache": cache, "drafts": drafts, "last": last}


def record_tree(target, tokenizer: CharTokenizer, draft, settings: dict) -> dict:
    """The settings, and the rounds of a generation with a tree of guesses a pass."""
    rng, grown = NotingSource(settings["seed"]), Grown(draft, settings["tree"])
    request = tokenizer.encode(PROMPT), settings["tokens"]
    sampling = Sampling(settings["temperature"])
    made = tree_generate(target, grown, *request, sampling=sampling, rng=rng)
    us, rounds, held = iter(rng.noted), [], len(PROMPT) - 1
    for r in made.rounds:
        rounds.append(round_of_tree(r, us, r.cache_len != held, tokenizer))
        held = rounds[-1]["cache"][2]
    assert next(us, None) is None
    return {**settings, "prompt": PROMPT, "rounds": rounds}


def record(target, tokenizer: CharTokenizer, draft, settings: dict) -> dict:
    """The settings, and the rounds that a generation with them took."""
    if "tree" in settings:
        return record_tree(target, tokenizer, draft, settings)
    lengths, rng = [], NotingSource(settings["seed"])

    def noting_trim(new_kvs, num_emitted, cache_len):
        kept = trim_kv_cache(new_kvs, num_emitted, cache_len)
        lengths.append([cache_len, cache_length(new_kvs), cache_length(kept)])
        return kept

    request = {
        "prompt_tokens": tokenizer.encode(PROMPT),
        "max_new_tokens": settings["tokens"],
        "K": settings["K"],
        "sampling": Sampling(settings["temperature"]),
    }
    made = decoder(trim_kv_cache=noting_trim)(target, draft, **request, rng=rng)
    ordinary = RandomSource(settings["seed"])
    assert made.tokens == speculative_generate(target, draft, **request, rng=ordinary).tokens
    us = iter(rng.noted)
    full = [None, *(trimmed for _, _, trimmed in lengths)]
    rounds = [
        round_of(
            r,
            list(itertools.islice(us, r.n_examined)),
            cache,
            restart=before is not None and before != cache[0],
            tokenizer=tokenizer,
        )
        for r, cache, before in zip(made.rounds, lengths, full[:-1], strict=True)
    ]
    assert next(us, None) is None
    return {**settings, "prompt": PROMPT, "rounds": rounds}


def record_all() -> dict:
    """What the page is filled with: the window, the corpus that was counted, and every trace."""
    torch.set_num_threads(1)
    corpus = load_corpus()
    target, tokenizer = checkpoint.load()
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    drafts = {
        name: DRAFTS[name](tokens, tokenizer.vocab_size) for name in {t["draft"] for t in TRACES}
    }
    traces = [record(target, tokenizer, drafts[t["draft"]], t) for t in TRACES]
    return {"window": target.config.block_size, "corpus": corpus.name, "traces": traces}


def filled(page: str, recorded: dict) -> str:
    """The page with `recorded` instead of what it held. Raises ValueError if it has no place."""
    if page.count(BEFORE) != 1:
        raise ValueError(f"the page must hold {BEFORE} once; bring it back with git")
    head, rest = page.split(BEFORE)
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # so that no text can end the script element
    return head + BEFORE + text + rest[rest.index(AFTER) :]


def main() -> None:
    """Write the finished page to the given path; missing parent folders are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=PAGE, help="where it goes")
    path = parser.parse_args().path
    page = filled(PAGE.read_text(encoding="utf-8"), record_all())
    write_atomically(path, page.encode())
    print(f"{path}: {len(TRACES)} traces, {len(page.encode()) // 1000} kB")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
