"""Does speculative decoding hold on a pair of your own? What `nanogpt check` asks of it.

Four questions about passes of the target alone, since a wrong mask or position is a wrong p
everywhere; then whole texts, at temperature 0 and in samples, by chains and by trees. p is the
target's own, from passes that draw nothing. What is compared is logits, as a share of the largest:
for a model of transformers up to `causal.BOUNDS`, since it rounds in float32 even where its weights
are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogpt.cache import first
from nanogpt.engines.causal import BOUNDS, relative
from nanogpt.engines.places import Listed, Report, judge
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.toys import context_start
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import verify_batch
from nanogpt.trees.loop import verify_tree
from nanogpt.trees.tree import ReadText, Tree, keep_path

LISTED = 20  # likeliest tokens that the χ² tests tell apart at a place
RAW = Sampling()
Decode = Callable[[Sequence[int], int, Sampling, RandomSource], Generation]  # prompt, tokens


@torch.no_grad()
def logits_of(model: GPTLanguageModel, tokens: Sequence[int]) -> Tensor:
    """Logits (T, V) after each token, from one pass over all of them."""
    return model(model_row(model, tokens))[0][0]


@torch.no_grad()
def in_parts(model: GPTLanguageModel, tokens: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Logits (T, V) after each token, from passes over so many tokens, and a last one."""
    rows, kvs, at = [], None, 0
    for size in [*sizes, len(tokens) - sum(sizes)]:
        logits, _, kvs = model(model_row(model, tokens[at : at + size]), past_kvs=kvs)
        rows.append(logits[0])
        at += size
    return torch.cat(rows)


def cached(model: GPTLanguageModel, tokens: Sequence[int]) -> float:
    """How far passes with a cache are from one without: of one token, of several, of the rest."""
    return relative(in_parts(model, tokens, (1, 1, 3, 1)), logits_of(model, tokens))


@torch.no_grad()
def trimmed(model: GPTLanguageModel, tokens: Sequence[int]) -> float:
    """How far a text is off after five guesses were read and trimmed, at each half of it.

    The cache before the guesses is used again as well: it must be what it was.
    """
    whole, n, worst = logits_of(model, tokens), len(tokens) // 2, 0.0
    before = model(model_row(model, tokens[:n]))[2]
    for guesses in ([tokens[-1]] * 5, tokens[:5]):
        after = model(model_row(model, guesses), past_kvs=before)[2]
        for kvs in (first(after, n), before):
            logits = model(model_row(model, tokens[n:]), past_kvs=kvs)[0][0]
            worst = max(worst, relative(logits, whole[n:]))
    return worst


def model_row(model: GPTLanguageModel, tokens: Sequence[int]) -> Tensor:
    """The tokens as idx (1, T), where the model is."""
    return torch.tensor([list(tokens)], device=model.device)


PARENTS = [-1, 0, 1, -1, 3, 3, 5, -1]  # a tree with a branch, and a path through second siblings
PATH = [3, 5, 6]


def some_tree(tokens: Sequence[int], V: int) -> Tree:
    """A tree of PARENTS, of the last of these tokens."""
    return Tree(list(tokens[-len(PARENTS) :]), PARENTS, torch.empty(len(PARENTS), V))


def a_text(model: GPTLanguageModel, tokens: Sequence[int]) -> ReadText:
    """A text of these tokens, all but the last in its cache."""
    text = ReadText(model, list(tokens), 30)
    text.past_kvs = model(model_row(model, tokens[:-1]))[2]
    return text


@torch.no_grad()
def branched(model: GPTLanguageModel, tokens: Sequence[int]) -> float:
    """How far p of a tree's nodes, and of what follows a kept path, are from their own chains'.

    As a share of the largest logit, where p is the softmax of logits: compared are log p.
    """
    n = len(tokens) // 2
    text, tree = a_text(model, tokens[:n]), some_tree(tokens, model.config.vocab_size)
    p, _, new_kvs = verify_tree(model, text, tree, RAW)
    paths = [[]]
    for node, parent in enumerate(PARENTS):
        paths.append([*paths[parent + 1], node])
    worst = 0.0
    for row, path in zip(p, paths, strict=True):
        chain = [*tokens[:n], *(tree.tokens[node] for node in path)]
        worst = max(worst, apart(row, logits_of(model, chain)[-1]))
    kvs = keep_path(new_kvs, PATH, n - 1)
    kept = [*tokens[:n], *(tree.tokens[node] for node in PATH)]
    logits = model(model_row(model, [tokens[0]]), past_kvs=kvs)[0][0]
    return max(worst, relative(logits[-1], logits_of(model, [*kept, tokens[0]])[-1]))


def apart(p: Tensor, logits: Tensor) -> float:
    """How far p (V,) is from the softmax of logits (V,): of their logarithms, by the largest."""
    logits = logits.cpu().double()
    right = torch.log_softmax(logits, -1)
    likely = right > -20  # of the others, p may be 0 by rounding
    return float((p.log() - right)[likely].abs().max() / logits.abs().max())


@torch.no_grad()
def batched(model: GPTLanguageModel, tokens: Sequence[int]) -> float:
    """How far p of three texts in one pass, two of them with trees, is from each alone."""
    V, made = model.config.vocab_size, []
    for n in (len(tokens) // 2, len(tokens) // 3, 3):
        tree = some_tree(tokens[: n + 9], V) if n > 3 else Tree.empty(V)
        made.append((a_text(model, tokens[:n]), tree))
    texts, trees = zip(*made, strict=True)
    together = verify_batch(model, texts, trees, [RAW] * len(texts))
    worst = 0.0
    for (text, tree), (p, _, _) in zip(made, together, strict=True):
        alone = verify_tree(model, text, tree, RAW)[0]
        for row, right in zip(p, alone, strict=True):
            worst = max(worst, apart(row, right.clamp(min=1e-300).log()))
    return worst


PASSES = {
    "cache: in parts = at once": cached,
    "trim: guesses leave no trace": trimmed,
    "tree: a node = its chain": branched,
    "batch: a text = it alone": batched,
}


@dataclass(frozen=True)
class Greedy:
    """A text at temperature 0, of a decoder and of the target itself.

    place: the first token at which they differ, None if none does. margin: how far apart the
    target's logits of these two tokens are, of the largest; 0 where the texts are equal.
    """

    place: int | None
    margin: float


def greedy(target: GPTLanguageModel, decode: Decode, prompt: Sequence[int], n: int) -> Greedy:
    """n tokens after a prompt, held against plain decoding."""
    right = autoregressive_generate(target, prompt, n, Sampling(0)).tokens
    got = decode(prompt, n, Sampling(0), RandomSource(0)).tokens
    for place, (a, b) in enumerate(zip(right, got, strict=True)):
        if a != b:
            prompt = list(prompt)[-target.config.block_size :]
            start = context_start(len(prompt) + place, len(prompt), target.config.block_size)
            logits = logits_of(target, [*prompt, *right[:place]][start:])[-1].cpu().double()
            return Greedy(place, float((logits[a] - logits[b]).abs() / logits.abs().max()))
    return Greedy(None, 0.0)


@torch.no_grad()
def rows_of(
    target: GPTLanguageModel, prompt: Sequence[int], texts: Sequence[Sequence[int]]
) -> Listed:
    """Of each text's tokens the likeliest, from passes that draw nothing."""
    rows = []
    kvs = target(model_row(target, prompt[:-1]))[2] if len(prompt) > 1 else None
    for text in texts:  # after a prompt that was read once
        logits = target(model_row(target, [prompt[-1], *text[:-1]]), past_kvs=kvs)[0][0]
        logs, came = torch.log_softmax(logits.cpu().double(), -1), torch.tensor(text)
        top = logs.topk(min(LISTED, logs.shape[-1]))
        log = logs.gather(1, came[:, None])[:, 0]
        rows.append(Listed.of(top.indices, top.values, came, log, RAW))
    return Listed(*map(torch.cat, zip(*rows, strict=True)))


def sampled(
    target: GPTLanguageModel, decode: Decode, prompt: Sequence[int], n: int, samples: int
) -> Report:
    """The χ² tests of each place and of all, of so many texts of n tokens, at temperature 1.

    Raises ValueError if they are too few for a test.
    """
    texts = [decode(prompt, n, RAW, RandomSource(seed)).tokens for seed in range(samples)]
    return judge(rows_of(target, prompt, texts), torch.arange(n).repeat(samples))


def bound_of(model: GPTLanguageModel) -> float:
    """How far two ways to compute the same logits may be apart by rounding, of the largest."""
    return BOUNDS[model.lm_head.weight.dtype]
