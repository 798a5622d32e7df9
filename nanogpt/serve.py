"""Serving: several texts in one pass, each with a length, a draft length and a random source.

A text in a batch is what it is alone. Its tokens, its cache and its random numbers are its own;
only the pass of the target is shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.cache import KVCache, cache_length, joined, keep_path, rows
from nanogpt.generate import Generation, Round, Text, Tree
from nanogpt.model import GPTLanguageModel, side_by_side, tree_mask
from nanogpt.rules import accept_tree
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import check_draft, draft_tokens
from nanogpt.tree import Layered


def propose(draft, text: Text, K: int, sampling: Sampling, rng: RandomSource) -> Tree:
    """The draft's guesses for a text: its own tree, or a chain of up to K tokens."""
    most = min(K, text.room)
    if hasattr(draft, "propose"):
        return draft.propose(text, most, sampling, rng)
    tokens, q = draft_tokens(draft, text.tokens, most, sampling, rng)
    return Tree(tokens, list(range(-1, len(tokens) - 1)), q)


@torch.no_grad()
def verify_batch(
    target: GPTLanguageModel,
    texts: Sequence[Text],
    trees: Sequence[Tree],
    samplings: Sequence[Sampling],
    layers: Sequence[int] | None = None,
) -> list[tuple[Tensor, Tensor, KVCache]]:
    """verify_tree for several texts in one pass: of each, p (N+1, V), hidden (N+1, C), new cache.

    Texts differ in length and trees in size (N): the pass is as wide as the largest tree, and what
    the others have too much of is computed and dropped. `layers` as in verify_tree.
    """
    sizes = [1 + len(tree.tokens) for tree in trees]
    lengths = torch.tensor([text.cache_len for text in texts])[:, None]  # (B, 1)
    past_kvs, before = joined([text.past_kvs for text in texts])
    P, T = cache_length(past_kvs), max(sizes)
    rounds = zip(texts, trees, sizes, strict=True)
    idx = torch.tensor([[x.tokens[-1], *y.tokens, *[0] * (T - n)] for x, y, n in rounds])

    pos = lengths + torch.arange(T)  # (B, T), as in a chain
    first, columns = torch.tensor(before)[:, None, None], torch.arange(P + T)
    last = first + pos[..., None]  # (B, T, 1): a chain sees all from its first to its own
    mask = (first <= columns) & (columns <= last)  # (B, T, P+T)
    for b, (tree, n) in enumerate(zip(trees, sizes, strict=True)):
        if tree.parents != list(range(-1, n - 2)):
            seen = tree_mask(tree.parents, int(lengths[b]))
            mask[b, :n, before[b] : before[b] + seen.shape[1]] = seen
            pos[b, :n] = seen.sum(-1) - 1
    pos = pos.clamp(max=target.config.block_size - 1)  # of what is dropped, past the window

    idx, pos, mask = (x.to(target.device) for x in (idx, pos, mask))
    streams, new_kvs = target.states(idx, pos, past_kvs, mask)
    hidden = target.ln_f(streams[-1])
    logits = target.lm_head(hidden).cpu()  # (B, T, V)
    p = {sampling: sampling.probs(logits) for sampling in set(samplings)}
    kept = rows(new_kvs, before, [text.cache_len + n for text, n in zip(texts, sizes, strict=True)])
    seen = side_by_side(streams, layers) if layers else hidden
    return [(p[samplings[b]][b, :n], seen[b, :n], kept[b]) for b, n in enumerate(sizes)]


def one_each(given, B: int) -> list:
    """`given` if it is a list of B things, one for each row; else the same thing for all rows.

    Raises ValueError for a list of another length.
    """
    if not isinstance(given, (list, tuple)):
        return [given] * B
    if len(given) != B:
        raise ValueError(f"{len(given)} values for {B} prompts; give one for each, or one for all")
    return list(given)


@torch.inference_mode()
def batch_generate(
    target: GPTLanguageModel,
    draft,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    K: int | Sequence[int] = 4,
    samplings: Sampling | Sequence[Sampling] = Sampling(),
    rngs: Sequence[RandomSource] | None = None,
    stop_token: int | Sequence[int | None] | None = None,
) -> list[Generation]:
    """The target's continuation of each prompt, all of them in shared passes.

    max_new_tokens, K, samplings and stop_token are one for all rows, or a list with one for each;
    rngs is one for each, by default RandomSource(0), RandomSource(1), … A finished row leaves the
    batch. Each row is what it is alone, in speculative_generate, or in tree_generate for a draft
    that has `propose`. Returns the generations in the order of the prompts.
    Raises ValueError for a list of the wrong length, and as speculative_generate does.
    """
    B = len(prompts)
    lengths, Ks, stops = (one_each(x, B) for x in (max_new_tokens, K, stop_token))
    samplings = one_each(samplings, B)
    rngs = one_each(rngs, B) if rngs is not None else [RandomSource(b) for b in range(B)]
    for k in Ks:
        check_draft(draft, k, target.config.vocab_size)
    layers = getattr(draft, "layers", None)
    requests = zip(prompts, lengths, stops, strict=True)
    texts = [Layered(target, *request, layers) for request in requests]
    running = [b for b in range(B) if not texts[b].done]
    while running:
        batch = [texts[b] for b in running]
        for text in batch:
            text.restart_if_full()
        trees = [propose(draft, texts[b], Ks[b], samplings[b], rngs[b]) for b in running]
        verified = verify_batch(target, batch, trees, [samplings[b] for b in running], layers)
        for b, tree, (p, hidden, new_kvs) in zip(running, trees, verified, strict=True):
            text = texts[b]
            path, token = accept_tree(tree, p, rngs[b])
            past_kvs = keep_path(new_kvs, path, text.cache_len)
            emitted = [*(tree.tokens[node] for node in path), token]
            done = Round(tree.tokens, tree.q, p, emitted, text.cache_len, tree.parents, path)
            kept = None
            if hasattr(draft, "propose"):  # it reads what the target knew
                kept = hidden[[0, *(node + 1 for node in path)]]
                kept = kept if text.hidden is None else torch.cat([text.hidden, kept])
            text.take(done, past_kvs, kept)
        running = [b for b in running if not texts[b].done]
    return [text.generation() for text in texts]
