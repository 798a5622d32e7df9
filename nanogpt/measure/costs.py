"""What a pass, a guess and a round cost on this machine, and what a block of guesses brings."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from statistics import median

import torch

from nanogpt.cache import first
from nanogpt.generate import prefill
from nanogpt.measure.clock import clock, in_turn, keep_memory
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import verify_batch
from nanogpt.speculative import Draft, accept_reject
from nanogpt.trees.rules import prefix_chances
from nanogpt.trees.tree import ReadText, Tree


@torch.inference_mode()
def batch_times(
    target, batches: Sequence[int], widths: Sequence[int], cached: int = 64, repeats: int = 20
) -> dict[tuple[int, int], float]:
    """{(B, n): seconds of verify_batch for B texts, n tokens of each}, timed in turn.

    Of each the median of the repeats. It is all that a round of B texts has in common: the pass,
    its mask, its probabilities. Text b has `cached` tokens in its cache, less b mod 8: lengths that
    differ, as they do in a batch. Raises ValueError where that runs past the window, or leaves a
    text none.
    """
    window = target.config.block_size
    if not 8 <= cached <= window - max(widths):
        raise ValueError(
            f"{cached} cached tokens and {max(widths)} more; the window has {window} "
            "(block_size), and a text needs 8"
        )
    sampling, calls = Sampling(), {}
    for B, n in itertools.product(batches, widths):
        texts = [ReadText(target, [0] * (cached + 1 - b % 8), n) for b in range(B)]
        for text in texts:
            text.read()
        q = torch.eye(target.config.vocab_size, dtype=torch.float64)[[0] * (n - 1)]
        trees = [Tree.chain([0] * (n - 1), q)] * B
        call = functools.partial(verify_batch, target, texts, trees, [sampling] * B)
        for text, (_, _, new_kvs) in zip(texts, call(), strict=True):  # as a round leaves them
            text.past_kvs = first(new_kvs, text.cache_length)
        calls[B, n] = call
    keep_memory()
    seconds = {cell: [] for cell in calls}
    for _ in range(repeats):
        for cell, call in calls.items():
            call()  # a small pass right after a large one is slower than it is among its own
            seconds[cell].append(clock(call)[0])
    return {cell: median(times) for cell, times in seconds.items()}


@torch.inference_mode()
def calibrate(target, draft, sampling: Sampling = Sampling(), times: int = 40) -> dict:
    """What drafting and verifying cost on this machine, in units of a pass over one token.

    draft_cost: one drafted token; verify_cost: a function of K, the pass over K+1 tokens, on the
    straight line from 1 to 17; rest: what else a round costs. They are for theory.best_K.
    """
    context, V = [i % draft.vocab_size for i in range(64)], target.config.vocab_size
    past_kvs, rng = prefill(target, context), RandomSource(0)
    one, many = (torch.zeros(1, n, dtype=torch.int64, device=target.device) for n in (1, 17))
    p = torch.full((17, V), 1 / V, dtype=torch.float64)
    steps = {
        "one": lambda: target(one, past_kvs=past_kvs),
        "draft": lambda: draft.draw(context, 4, sampling, rng),
        "many": lambda: target(many, past_kvs=past_kvs),
        "accept": lambda: accept_reject([0] * 16, p[:16], p, rng),
        "cache": lambda: first(past_kvs, 63),
    }
    # The lower quartile: what else runs on the machine only ever adds.
    cost = in_turn(steps, repeats=times, warm_up=10, quantile=0.25)
    more = max(0.0, cost["many"] - cost["one"]) / 16 / cost["one"]
    return {
        "draft_cost": cost["draft"] / 4 / cost["one"],
        "verify_cost": lambda K: 1 + more * K,
        "rest": (cost["accept"] + cost["cache"]) / cost["one"],
    }


def cost_growth(target, times: int = 300) -> float:
    """How much dearer a pass over one token is after 120 cached tokens than after 20."""
    token = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
    caches = [prefill(target, [0] * length) for length in (20, 120)]
    ratios = []
    with torch.inference_mode():
        caches = [target(token, past_kvs=cache)[2] for cache in caches]
        for _ in range(times):
            seconds = [clock(lambda c=c: target(token, past_kvs=c))[0] for c in caches]
            ratios.append(seconds[1] / seconds[0])
    return median(ratios)


@torch.inference_mode()
def expected_blocks(
    target, draft: Draft, prompts: Sequence[Sequence[int]], Ks: Sequence[int], cuts: int = 8
) -> dict[int, tuple[float, float]]:
    """{K: how many tokens a block of K guesses brings on average, and its standard error}.

    No coin is tossed: after the target's own text, cut at `cuts` places, a block brings the sum of
    its `prefix_chances`. The target writes on after each prompt (all of one length), as far as the
    window leaves room for a block; the error is from the differences between these texts.
    Raises ValueError where the window leaves no room.
    """
    n, K, sampling, rng = len(prompts[0]), max(Ks), Sampling(), RandomSource(0)
    length = target.config.block_size - K  # of prompt and text
    if length < n + cuts:
        raise ValueError(
            f"{n} tokens of prompt, {cuts} cuts and blocks of {K} do not fit into the window of "
            f"{target.config.block_size} (block_size); take fewer guesses"
        )
    past_kvs, texts = None, [list(prompt) for prompt in prompts]
    new = texts
    while len(texts[0]) < length:
        logits, _, past_kvs = target(torch.tensor(new, device=target.device), past_kvs=past_kvs)
        p = sampling.probs(logits[:, -1]).numpy()  # (B, V)
        new = [[rng.categorical(row)] for row in p]
        texts = [text + more for text, more in zip(texts, new, strict=True)]
    sums = torch.zeros(len(texts), K + 1, dtype=torch.float64)
    for cut in torch.linspace(n, length, cuts).long().tolist():
        blocks = [draft.draw(text[:cut], K, sampling, rng) for text in texts]
        filled = [guesses + [0] * (K - len(guesses)) for guesses, _ in blocks]
        read = [text[:cut] + guesses for text, guesses in zip(texts, filled, strict=True)]
        p = sampling.probs(target(torch.tensor(read, device=target.device))[0][:, cut - 1 :])
        for row, (guesses, q), its in zip(sums, blocks, p, strict=True):
            chances = prefix_chances(guesses, q, its[: len(guesses) + 1])
            row += torch.tensor(chances + [0.0] * (K - len(guesses))).cumsum(0) / cuts
    means, errors = sums.mean(0), sums.std(0) / len(texts) ** 0.5
    return {K: (float(means[K]), float(errors[K])) for K in Ks}
