"""A draft that reads byte pairs, for a target that reads letters.

`PairTokenizer` has a token for each letter, and for each pair of tokens that was merged (Sennrich
et al. 2016, arXiv 1508.07909). A model on its tokens says q of the next *token*; the target wants q
of the next *letter*. Three ways to get there: `PairDraft` sums over the tokens that begin with the
letter, `SharedDraft` keeps the tokens that are letters, and `TextDraft` guesses text, without q.
"""

from __future__ import annotations

import bisect
import copy
import operator
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.cache import first
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft

PAIRS = DATA_DIR / "checkpoints" / "pairs.safetensors"
MERGES, SHAPE = 256, {"n_layer": 1, "n_head": 2, "n_embd": 48}  # of the shipped one
WORD = re.compile("[^A-Za-z]?[A-Za-z]+|[^A-Za-z]")


def words(text: str) -> list[str]:
    """The text in pieces that no token crosses: a word, with what stands just before it."""
    return WORD.findall(text)


def joined(parts: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """The parts of a word, with this pair made one wherever it occurs, from the left."""
    made = []
    for part in parts:
        if made and (made[-1], part) == pair:
            made[-1] += part
        else:
            made.append(part)
    return made


def learn_merges(text: str, n: int) -> list[tuple[str, str]]:
    """The n pairs that are merged, in order: each time, the commonest in the words of `text`.

    Of equally common ones, the last in the alphabet. Fewer than n where no pair is left.
    """
    counts = Counter(words(text))
    split, pairs, merges = {word: list(word) for word in counts}, Counter(), []

    def count(word: str, sign: int) -> None:
        """Add the pairs of a word as it is split now, or take them away."""
        for pair in pairwise(split[word]):
            pairs[pair] += sign * counts[word]

    for word in split:
        count(word, 1)
    while len(merges) < n and any(pairs.values()):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in split:
            if best[0] + best[1] in word:
                count(word, -1)
                split[word] = joined(split[word], best)
                count(word, 1)
    return merges


class PairTokenizer:
    """Tokens of text: a token for each character of `chars`, and one for what each merge makes.

    Each word starts as its letters; then the merges are made, the earliest first.
    Raises ValueError if a merge joins what is no token yet.
    """

    def __init__(self, chars: str, merges: Sequence[tuple[str, str]]):
        self.letters = CharTokenizer(chars)
        self.merges = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        known = dict.fromkeys(chars)
        for pair in self.merges:
            if missing := [part for part in pair if part not in known]:
                raise ValueError(f"merge {pair} joins {missing[0]!r}, which is no token yet")
            known["".join(pair)] = None
        self.tokens = list(known)
        self.vocab_size = len(self.tokens)
        self.number = {token: i for i, token in enumerate(self.tokens)}
        self._split: dict[str, list[int]] = {}  # the words met so far

    def split(self, word: str) -> list[str]:
        """The tokens of one word, as they are spelled."""
        parts = list(word)
        while pairs := self.merges.keys() & pairwise(parts):
            parts = joined(parts, min(pairs, key=self.merges.get))
        return parts

    def encode(self, text: str) -> list[int]:
        """Tokens of `text`. Raises ValueError at the first character outside the vocabulary."""
        self.letters.encode(text)
        tokens = []
        for word in words(text):
            if word not in self._split:
                self._split[word] = [self.number[part] for part in self.split(word)]
            tokens += self._split[word]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`."""
        return "".join(self.tokens[token] for token in tokens)


class Spelling:
    """From probabilities of tokens to probabilities of the next letter.

    Sorted by the alphabet, the tokens that begin alike stand together, so that each sum is over
    one stretch. order (W,): the tokens so sorted.
    """

    def __init__(self, tokens: Sequence[str], chars: str):
        self.tokens, self.chars = tokens, chars
        self.order = np.array(sorted(range(len(tokens)), key=tokens.__getitem__))
        self.longest = max(map(len, tokens))
        self.stretches: dict[str, tuple] = {}
        spelled = [tokens[i] for i in self.order]
        for begun in {token[:n] for token in tokens for n in range(len(token) + 1)}:
            low = bisect.bisect_left(spelled, begun)
            itself = spelled[low] == begun
            stop, starts, letters = low + itself, [], []
            while stop < len(spelled) and spelled[stop].startswith(begun):
                letter = spelled[stop][len(begun)]
                if not letters or letters[-1] != letter:
                    starts.append(stop)
                    letters.append(letter)
                stop += 1
            where = np.array([chars.index(letter) for letter in letters], dtype=int)
            self.stretches[begun] = (low if itself else None), stop, np.array(starts, int), where

    def after(self, q: np.ndarray, begun: str) -> tuple[float, np.ndarray]:
        """What q (W,), in this order, has for a token of which the letters `begun` are written.

        Returns the probability that they are the whole token, and for each next letter (V,) that
        of the tokens that go on with it. Together, they are that of all tokens that begin so.
        """
        letters = np.zeros(len(self.chars))
        if begun not in self.stretches:
            return 0.0, letters
        itself, stop, starts, where = self.stretches[begun]
        if len(starts):
            letters[where] = np.add.reduceat(q[:stop], starts)
        return (0.0 if itself is None else float(q[itself])), letters


class TokenDraft(Draft):
    """What the three drafts share: a model on tokens that has read a text of letters.

    tokens: those that its cache holds, in a window cut as in TransformerDraft; rows: q (W,) after
    each. Asked about others, it keeps what the two have in common from the start and reads on:
    letters that were rejected, or that make other tokens now, need no protocol of their own. (It
    has no `model`: that would be one of letters.)
    Raises ValueError if the model has another vocabulary than the tokenizer.
    """

    def __init__(self, net: GPTLanguageModel, tokenizer: PairTokenizer):
        if net.config.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"the model has {net.config.vocab_size} tokens and its tokenizer "
                f"{tokenizer.vocab_size}; give it the one that it was trained with"
            )
        self.net, self.tokenizer, self.vocab_size = net, tokenizer, tokenizer.letters.vocab_size
        self.tokens: list[int] = []
        self.rows: list[np.ndarray] = []
        self.past_kvs = None

    def encode(self, context: Sequence[int]) -> list[int]:
        """The tokens of a context of letters, the target's tokens."""
        return self.tokenizer.encode(self.tokenizer.letters.decode(context))

    @torch.no_grad()
    def read(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """q (W,) after each of the last tokens, of as many as fit the window."""
        half = max(1, self.net.config.block_size // 2)
        over = len(tokens) - self.net.config.block_size
        tokens = tokens[max(0, -(-over // half) * half) :]
        kept = sum(takewhile(bool, map(operator.eq, self.tokens, tokens)))
        if kept < len(self.tokens):
            self.past_kvs = first(self.past_kvs, kept) if kept else None
            self.tokens, self.rows = self.tokens[:kept], self.rows[:kept]
        if new := tokens[kept:]:
            idx = torch.tensor([new], device=self.net.device)
            logits, _, self.past_kvs = self.net(idx, past_kvs=self.past_kvs)
            self.rows += list(Sampling().probs(logits[0]).numpy())
            self.tokens = list(tokens)
        return self.rows

    def fresh(self) -> TokenDraft:
        """A draft of the same model that has read nothing: one for each text."""
        other = copy.copy(self)
        other.tokens, other.rows, other.past_kvs = [], [], None
        return other


class Cover:
    """A token that may be the next letter's: after `before`, and `begun` of it is written.

    weight: how likely so; q (W,): of the token, in the spelling's order; ends, letters (V,): as in
    Spelling.after.
    """

    def __init__(self, spelling: Spelling, weight: float, before: list[int], q, begun: str):
        self.weight, self.before, self.q, self.begun = weight, before, q, begun
        self.ends, self.letters = spelling.after(q, begun)


class PairDraft(TokenDraft):
    """q of the next letter: the sum over all tokens that begin with what is written, and with it.

    Where the token that is being spelled began is not known: the last tokens of the text may be
    growing still, or the next one begins. q is summed over all of these places (`covers`), along
    the one split that the tokenizer makes.
    A chain goes on without a pass as long as the token that it spells does. Where the letters are
    a whole token, the pass that says what would come after it is made if the token is as likely as
    `least` to end there; if not, q is that of the letters that go on. At 0, each is the whole sum.
    Where q is not taken as it is (another temperature, constraints), each letter is asked for, and
    a pass brings one.
    Raises ValueError for a `least` outside 0 … 1.
    """

    def __init__(self, net: GPTLanguageModel, tokenizer: PairTokenizer, least: float = 0.5):
        super().__init__(net, tokenizer)
        if not 0 <= least <= 1:
            raise ValueError(f"least is {least}; it is a probability, 0 … 1")
        self.least = least
        self.spelling = Spelling(tokenizer.tokens, tokenizer.letters.chars)

    def covers(self, context: Sequence[int]) -> list[Cover]:
        """The tokens that the next letter may belong to, after the tokens of `context`."""
        tokens = self.encode(context)
        rows = self.read(tokens)
        covers, begun, n = [], "", len(rows)
        tokens = tokens[len(tokens) - n :]
        while n > 0 and len(begun) < self.spelling.longest:
            covers.append((n, begun))
            n -= 1
            begun = self.tokenizer.tokens[tokens[n]] + begun
        weight, made = 1.0, []
        for n, begun in reversed(covers):
            q = rows[n - 1]
            made.append(Cover(self.spelling, weight, tokens[:n], q[self.spelling.order], begun))
            if begun:
                weight *= q[tokens[n]]
        return made

    def spelled(self, covers: list[Cover], letter: int) -> list[Cover]:
        """The covers after one more letter; where a token may end with it, the next one's."""
        char, spelling = self.tokenizer.letters.chars[letter], self.spelling
        grown = [
            Cover(spelling, c.weight, c.before, c.q, c.begun + char)
            for c in covers
            if c.letters[letter] > 0
        ]
        ends = sum(c.weight * c.ends for c in grown)
        if ends > 0 and ends >= self.least * (ends + mass(grown).sum()):
            likeliest = max(grown, key=lambda c: c.weight * c.ends)
            before = [*likeliest.before, self.tokenizer.number[likeliest.begun]]
            q = self.read(before)[-1][spelling.order]
            grown.append(Cover(spelling, ends, before, q, ""))
        return grown

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the letter after `context`, at temperature 1."""
        return torch.from_numpy(normalised(mass(self.covers(context))))

    def draw(
        self, context: Sequence[int], K: int, sampling: Sampling, rng: RandomSource
    ) -> tuple[list[int], Tensor]:
        """K letters, and the q (K, V) that each was drawn from, with a pass for each token."""
        if sampling != Sampling():
            return Draft.draw(self, context, K, sampling, rng)
        letters, rows, covers = [], [], self.covers(context) if K else []
        while len(letters) < K:
            if letters:
                covers = self.spelled(covers, letters[-1])
            rows.append(normalised(mass(covers)))
            letters.append(rng.categorical(rows[-1]))
        return letters, torch.from_numpy(np.array(rows).reshape(K, self.vocab_size))


def mass(covers: Sequence[Cover]) -> np.ndarray:
    """What all covers together have for each next letter (V,)."""
    return sum(cover.weight * cover.letters for cover in covers)


def normalised(masses: np.ndarray) -> np.ndarray:
    """The same in sum 1."""
    return masses / masses.sum()


class SharedDraft(TokenDraft):
    """q on the tokens that the target has too, the letters, in sum 1: TLI (Timor et al. 2025)."""

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the letter after `context`: what its token has, among the letters."""
        row = self.read(self.encode(context))[-1]
        return torch.from_numpy(normalised(row[: self.vocab_size]))


class TextDraft(TokenDraft):
    """Guesses the likeliest tokens, and hands on their text: there is no q for its letters.

    Each guess is certain of itself (q is one-hot), so that it is kept with probability p. What it
    has written it goes on with as long as the text agrees; else it reads the text anew.
    """

    ahead: tuple[list[int], int] = [], 0  # letters that it has written, and how many are text

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,): 1 for the next letter of what it writes."""
        written, known = self.ahead
        n = len(context)
        if not (known <= n < len(written) and written[:n] == list(context)):
            likeliest = self.read(self.encode(context))[-1].argmax()
            more = self.tokenizer.letters.encode(self.tokenizer.tokens[likeliest])
            written = [*context, *more]
            self.ahead = written, n
        q = torch.zeros(self.vocab_size, dtype=torch.float64)
        q[written[n]] = 1
        return q

    def fresh(self) -> TextDraft:
        """A draft of the same model that has read and written nothing."""
        other = super().fresh()
        other.ahead = [], 0
        return other


def save(path: Path, net: GPTLanguageModel, tokenizer: PairTokenizer, facts: dict) -> None:
    """Write a model on byte pairs, in float16, with its merges in the header."""
    shape = {"config": vars(net.config), "merges": list(tokenizer.merges)}
    checkpoint.save_module(path, net, tokenizer.letters, facts, **shape)


def load(path: Path = PAIRS, device: str | torch.device = "cpu") -> PairDraft:
    """The shipped draft, on a device. Errors are those of checkpoint.load."""
    make_one = "python data/make_drafts.py pairs"
    net = checkpoint.load_module(
        path,
        lambda header, _: GPTLanguageModel(GPTConfig(**header["config"])),
        "draft on byte pairs",
        make_one,
        device,
    )
    header = checkpoint.read_header(path, make_one)
    return PairDraft(net, PairTokenizer(header["vocabulary"], map(tuple, header["merges"])))
