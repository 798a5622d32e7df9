"""The honest benchmark: speculative decoding against cached autoregressive decoding, in pairs.

`python -m nanogpt.bench --help`. One process, one thread, warmed up; for each prompt both decoders
in turn, so that a machine that slows down slows both; medians of the pairwise ratios. Prompts are
from the validation split. The draft is counted before the clock starts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate

PROMPT = 20  # characters


class Timed:
    """A target whose passes are timed: `seconds` is their sum."""

    def __init__(self, target):
        self.target, self.config, self.device = target, target.config, target.device
        self.seconds = 0.0

    def __call__(self, *args, **kwargs):
        started = time.perf_counter()
        result = self.target(*args, **kwargs)
        self.seconds += time.perf_counter() - started
        return result


@dataclass(frozen=True)
class Pair:
    """One prompt, decoded both ways: seconds of each, and of the speculative one's passes."""

    plain_seconds: float
    seconds: float
    target_seconds: float
    made: Generation

    @property
    def speed_up(self) -> float:
        """Autoregressive over speculative seconds."""
        return self.plain_seconds / self.seconds

    @property
    def outside(self) -> float:
        """The share of the speculative seconds that was not spent in the target's passes."""
        return 1 - self.target_seconds / self.seconds


def clock(decode: Callable[[], Generation]) -> tuple[float, Generation]:
    """Seconds that `decode` took, and what it returned."""
    started = time.perf_counter()
    made = decode()
    return time.perf_counter() - started, made


def measure(
    target, draft, prompt: list[int], n: int, K: int, sampling: Sampling, seed: int
) -> Pair:
    """Both decoders on one prompt, the autoregressive one first, n tokens each."""
    timed = Timed(target)
    request = {"prompt_tokens": prompt, "max_new_tokens": n, "sampling": sampling}
    plain, _ = clock(lambda: autoregressive_generate(timed, **request, rng=RandomSource(seed)))
    timed.seconds = 0.0
    seconds, made = clock(
        lambda: speculative_generate(timed, draft, K=K, **request, rng=RandomSource(seed))
    )
    return Pair(plain, seconds, timed.seconds, made)


def row(K: int, pairs: list[Pair]) -> str:
    """A line of the table: medians, and the quartiles of the speed-up."""
    ratios = sorted(pair.speed_up for pair in pairs)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    alpha = median(pair.made.alpha for pair in pairs)
    per_pass = median(pair.made.tokens_per_pass for pair in pairs)
    outside = median(pair.outside for pair in pairs)
    return (
        f"{K:3d}  {median(ratios):7.2f}×  {low:5.2f} … {high:4.2f}  {alpha:5.2f}  "
        f"{per_pass:11.2f}  {outside:14.0%}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises ValueError for settings out of range."""
    parser = argparse.ArgumentParser(prog="python -m nanogpt.bench", description=__doc__)
    parser.add_argument("--K", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--pairs", type=int, default=20, help="prompts, default: %(default)s")
    parser.add_argument("--tokens", type=int, default=100, help="each, default: %(default)s")
    parser.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    given = parser.parse_args(arguments)
    if given.pairs < 1 or given.tokens < 1:
        raise ValueError(f"pairs {given.pairs} and tokens {given.tokens} must be at least 1")
    torch.set_num_threads(1)
    sampling, corpus = Sampling(given.temperature), load_corpus()
    target, tokenizer = checkpoint.load()
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    started = time.perf_counter()
    draft = BigramDraftModel(tokens, tokenizer.vocab_size)
    print(f"bigram draft, counted in {time.perf_counter() - started:.2f} s; {corpus.name}")
    distance = (len(held_out) - PROMPT) // given.pairs
    prompts = [held_out[i * distance :][:PROMPT].tolist() for i in range(given.pairs)]
    measure(target, draft, prompts[0], 50, given.K[0], sampling, 0)  # warm up
    pairs: dict[int, list[Pair]] = {K: [] for K in given.K}
    for seed, prompt in enumerate(tqdm(prompts, desc="pairs")):
        for K in given.K:
            pairs[K].append(measure(target, draft, prompt, given.tokens, K, sampling, seed))
    print(
        f"{given.pairs} pairs of {given.tokens} tokens, temperature {given.temperature}, 1 thread"
    )
    print("  K  speed-up     quartiles      α  tokens/pass  outside passes")
    for K in given.K:
        print(row(K, pairs[K]))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
