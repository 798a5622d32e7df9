"""The n-gram draft: what follows the last few tokens, counted or learned from the target.

Contexts of every length up to an order form a tree: a node's parent is its context without the
oldest token. The longest context that the tree knows decides. Its row mixes what was seen after it
with its parent's row (back-off).
"""

from __future__ import annotations

import bisect
import functools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer
from nanogpt.generate import check_whole
from nanogpt.sampling import RandomSource, Sampling, check_probabilities
from nanogpt.speculative import Draft

DISTILLED = DATA_DIR / "checkpoints" / "ngram.safetensors"
GREEDY = DATA_DIR / "checkpoints" / "greedy.safetensors"
MAKE = "python data/make_drafts.py {}"


class NGramDraft(Draft):
    """Guesses the next token from the longest context that it knows.

    Node 0 is the empty context, and parents come before their children. `parents`, `tokens` (N,):
    node i is the context of node parents[i] with tokens[i] put before it; `table` (N, V): row i is
    q after node i. Rows become float64 when they are first asked for.
    """

    def __init__(self, parents: np.ndarray, tokens: np.ndarray, table: Tensor):
        self.table, self.vocab_size = table, table.shape[-1]
        self.rows: list[Tensor | None] = [None] * len(table)
        children = np.zeros(table.shape, dtype=np.int32)  # of each node, by token; 0: none
        children[parents[1:], tokens[1:]] = np.arange(1, len(table))
        self.children = memoryview(children)  # which is quicker to read, number by number

    def node(self, context: Sequence[int]) -> int:
        """The node of the longest end of `context` that the tree knows."""
        i = 0
        for token in reversed(context):
            longer = self.children[i, token]
            if longer == 0:
                break
            i = longer
        return i

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all of which may be read."""
        i = self.node(context)
        if self.rows[i] is None:
            q = self.table[i].double()
            self.rows[i] = q / q.sum()  # to float64's last bit: the claimed q is the drawn q
        return self.rows[i]


class Contexts:
    """A tree of contexts, which follows a text forwards, one step a token.

    parents, tokens (N,): in the order of `link`.
    """

    def __init__(self, parents: np.ndarray, tokens: np.ndarray, vocab_size: int):
        self.vocab_size = vocab_size
        *arrays, self.order = automaton(parents, tokens, vocab_size)
        self.edges, self.first, self.shorter, self.nodes = map(memoryview, arrays)

    def step(self, state: int, token: int) -> int:
        """The state that `token` leads to: the longest end of the text with it that is known."""
        edges, first = self.edges, self.first
        while True:
            end = first[state + 1]
            edge = bisect.bisect_left(edges, token, first[state], end)
            if edge < end and edges[edge] == token:
                return edge + 1
            if state == 0:
                return 0
            state = self.shorter[state]

    def state(self, context: Sequence[int]) -> int:
        """The state that `context` leads to, all of which may be read."""
        state = 0
        for token in context[-self.order :]:
            state = self.step(state, token)
        return state

    def node(self, context: Sequence[int]) -> int:
        """The node of the longest end of `context` that the tree knows."""
        return self.nodes[self.state(context)]


class GreedyAutomaton(Contexts, Draft):
    """Guesses for temperature 0: the token that the target most often puts first after a context.

    That is not the head of the best q. A context stands for many texts, and the target's best token
    is not the same in all of them: q shares its probability out, and a vote takes the majority's.
    best (N,): what follows node i; parents, tokens (N,): in the order of `link`.
    """

    def __init__(self, parents, tokens, best: np.ndarray, vocab_size: int):
        super().__init__(parents, tokens, vocab_size)
        self.best = memoryview(best.astype(np.int32)[np.asarray(self.nodes)])  # of each state
        self.rows = torch.eye(vocab_size, dtype=torch.float64)

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all of which may be read: 1 for one token."""
        return self.rows[self.best[self.state(context)]]

    def draw(
        self, context: Sequence[int], K: int, sampling: Sampling, rng: RandomSource
    ) -> tuple[list[int], Tensor]:
        """K tokens and their one-hot q (K, V), whatever the sampling: nothing is drawn."""
        candidates, state = [], self.state(context)
        for _ in range(K):
            candidates.append(self.best[state])
            state = self.step(state, candidates[-1])
        return candidates, self.rows[candidates]


class NGramAutomaton(Contexts, Draft):
    """The guesses of NGramDraft, many in a row.

    parents, tokens (N,): in the order of `link`; table (N, V), which must stay as it is: rows are
    made float64, and bent as the sampling says, whenever they are asked for. (Few are asked for
    twice.) alphas (N,): of each row the chance that a guess from it is accepted; 1 if not known.
    least: a chain stops before the guess with which the product of its rows' alphas would fall
    below. (Which row comes next depends on the guesses before it alone, so no guess is dropped that
    was drawn.) greedy: makes the draft that is asked at temperature 0.
    Raises ValueError if a row is no distribution, or `least` is not in [0, 1].
    """

    def __init__(
        self,
        parents: np.ndarray,
        tokens: np.ndarray,
        table: Tensor,
        alphas: np.ndarray | None = None,
        least: float = 0.0,
        greedy: Callable[[], Draft] | None = None,
    ):
        if not 0 <= least <= 1:
            raise ValueError(f"least is {least}; a chance is in [0, 1], and 0 never stops")
        check_probabilities(table)
        super().__init__(parents, tokens, table.shape[-1])
        self.least, self.table, self.greedy = least, table, greedy
        self.numbers = table.numpy()  # which gives a row sooner
        self.alphas = memoryview(np.ones(len(table)) if alphas is None else alphas)

    def row(self, i: int, sampling: Sampling | None = None) -> tuple[np.ndarray, np.ndarray]:
        """q (V,) after node i, bent by a sampling, and its running sums (V,) up to a factor."""
        q = self.numbers[i].astype(float)
        if sampling is not None:
            q = bent(q, sampling)
        sums = np.add.accumulate(q)
        q /= sums[-1]  # to float64's last bit: the claimed q is the drawn q
        return q, sums

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, all of which may be read."""
        return torch.from_numpy(self.row(self.node(context))[0])

    def draw(
        self, context: Sequence[int], K: int, sampling: Sampling, rng: RandomSource
    ) -> tuple[list[int], Tensor]:
        """What draft_tokens makes of get_probs: K tokens, and the q (K, V) that they are from.

        At temperature 0, what `greedy` makes of it. Fewer if the chain stops before, by the alphas
        of temperature 1, whatever the sampling; at least one if K is.
        """
        if sampling.temperature == 0:
            draw = self.greedy().draw if self.greedy else super().draw
            return draw(context, K, sampling, rng)
        bending = None if sampling == Sampling() else sampling
        candidates, rows, state, joint = [], [], self.state(context), 1.0
        for _ in range(K):
            i = self.nodes[state]
            if self.least:
                joint *= self.alphas[i]
                if joint < self.least and candidates:
                    break
            q, sums = self.row(i, bending)
            token = rng.categorical(q, memoryview(sums))  # which bisect reads fast
            state = self.step(state, token)
            candidates.append(token)
            rows.append(q)
        return candidates, torch.from_numpy(np.array(rows).reshape(-1, self.vocab_size))


def bent(q: np.ndarray, sampling: Sampling) -> np.ndarray:
    """What sampling.of_probs makes of q (V,), up to a factor and rounding, in far less time.

    A guess is drawn from one row, and a call of torch costs more than a row of 65 numbers.
    """
    if sampling.temperature < 0.1:
        q = q / q.max()  # or a large power would leave nothing
    if sampling.temperature != 1:
        q = q ** (1 / sampling.temperature)
    if sampling.top_k is None and sampling.top_p is None:
        return q
    ranked, n = np.sort(q)[::-1], min(sampling.top_k or len(q), len(q))
    if sampling.top_p is not None and sampling.top_p < 1:
        sums = np.add.accumulate(ranked[:n])  # a rank stays if those above sum to less than top_p
        n = min(int(sums.searchsorted(sampling.top_p * sums[-1])) + 1, n)
    if n < len(q) and ranked[n] > 0:  # something is to go
        q = q * (q >= ranked[n - 1])
        if ranked[n] == ranked[n - 1]:  # of equal ones the lower token stays
            tied = np.flatnonzero(q == ranked[n])
            q[tied[n - np.count_nonzero(q > ranked[n]) :]] = 0
    return q


def automaton(
    parents: np.ndarray, tokens: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The tree's contexts as states, to follow a text through (Aho and Corasick 1975).

    A state is the longest known end of the text; 0 is the empty one. Known are the contexts, and
    their beginnings, so that what was known before a token is all that is needed after it.
    Returns edges (S-1,), the token of each edge, which leads to the state of the next number;
    first (S+1,): edges[first[s] : first[s + 1]] leave state s, in order; shorter (S,), of each
    state the longest known end of it, without its first token; nodes (S,), the node that answers;
    and the tree's order: so many tokens lead from state 0 to the right state.
    parents, tokens (N,): in the order of `link`.
    """
    V, walking = vocab_size, np.arange(1, len(parents))  # all contexts, from their oldest token on
    state, answers, levels, start = np.zeros_like(walking), walking, [], 1
    while len(walking):  # one token further into each, into the state of that beginning
        both, mine = np.unique(state * V + tokens[walking], return_inverse=True)
        state, walking = start + mine, parents[walking]
        ended = walking == 0
        levels.append((start, both, state[ended], answers[ended]))
        start += len(both)
        state, answers, walking = state[~ended], answers[~ended], walking[~ended]

    leads = np.concatenate([[-1], *(both for _, both, _, _ in levels)])  # to state 1, 2, …; rising
    shorter, nodes = np.zeros(start, dtype=np.int32), np.zeros(start, dtype=np.int32)
    for level, (start, both, contexts, its) in enumerate(levels):
        known, (state, token) = np.arange(start, start + len(both)), np.divmod(both, V)
        looking = np.arange(len(both) if level else 0)  # a first token has only the empty end
        while len(looking):
            state[looking] = shorter[state[looking]]
            wanted = state[looking] * V + token[looking]
            at = np.searchsorted(leads, wanted)
            hit = leads[np.minimum(at, len(leads) - 1)] == wanted
            shorter[known[looking[hit]]] = at[hit]
            looking = looking[~hit & (state[looking] > 0)]
        nodes[known] = nodes[shorter[known]]
        nodes[contexts] = its
    state, edges = np.divmod(leads[1:], V)
    first = np.searchsorted(state, np.arange(len(leads) + 1)).astype(np.int32)
    return edges.astype(np.int32), first, shorter, nodes, len(levels)


def context_keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """(B, T-n+1): the last n tokens up to each place as one number, the newest token first.

    So a context's number divided by vocab_size is that of the context without its oldest token.
    tokens (B, T) int64. Raises ValueError if the number of a context and its follower could pass
    64 bits: with 65 tokens, for n above 9.
    """
    if vocab_size ** (n + 1) > 2**63:
        raise ValueError(
            f"contexts of {n} tokens of {vocab_size} do not fit into 64 bits; use a lower order"
        )
    T = tokens.shape[1]
    keys = np.zeros((len(tokens), T - n + 1), dtype=np.int64)
    for back in range(n):
        keys = keys * vocab_size + tokens[:, n - 1 - back : T - back]
    return keys


def link(
    contexts: list[np.ndarray], vocab_size: int, names: list[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`parents` (N,) and `tokens` (N,) of the tree of these contexts.

    contexts[n]: the numbers of its contexts of n tokens, in order: vocab_size times the number of
    the context without its oldest token, and that token; contexts[0] is [0]. names: what the
    longer ones call each instead of its number.
    """
    parents, tokens, before = [np.zeros(1, int)], [np.zeros(1, int)], 0
    for shorter, keys in zip(names or contexts, contexts[1:], strict=False):
        parents.append(before + np.searchsorted(shorter, keys // vocab_size))
        tokens.append(keys % vocab_size)  # the oldest token
        before += len(shorter)
    return np.concatenate(parents), np.concatenate(tokens)


def back_off(parents, sizes, followers, weights, backoff, vocab_size: int) -> Tensor:
    """The table (N, V) float32: q(x) ∝ weight(x) + backoff · q_parent(x), level by level.

    sizes (N,): how many entries of `followers` and `weights` each node has; backoff (N,). The
    parent of the root is the even distribution.
    """
    table = np.zeros((len(parents), vocab_size), dtype=np.float32)
    places = np.repeat(np.arange(0, table.size, vocab_size), sizes)
    places += followers
    table.ravel()[places] = weights
    table[0] = table[0] + backoff[0] / vocab_size
    table[0] /= table[0].sum()
    first = 1
    while first < len(parents):
        last = int(np.searchsorted(parents, first))  # those whose parents are done
        last = min(last, first + 4096)  # what is made on the way stays in the processor's cache
        level = slice(first, last)
        table[level] += backoff[level, None] * table[parents[level]]
        table[level] /= table[level].sum(-1, keepdims=True)
        first = last
    return torch.from_numpy(table)


def count_ngrams(
    train_data: Tensor, vocab_size: int, order: int, smoothing: float = 1.0
) -> NGramDraft:
    """The draft of contexts up to `order` tokens, by counts, smoothed as by Witten and Bell.

    A context seen with u different followers mixes its counts with smoothing · u times its parent's
    row (at 1: Witten and Bell 1991, method C). train_data (N,) int64.
    Raises ValueError for an order below 0, or too high for context_keys.
    """
    check_whole(0, order=order)
    text = train_data.numpy()[None]  # (1, N)
    contexts, sizes, followers, counts = [], [], [], []
    for n in range(order + 1):
        pairs = context_keys(text[:, :-1], n, vocab_size) * vocab_size + text[:, n:]
        pairs, count = np.unique(pairs, return_counts=True)  # each context with each follower
        keys, size = np.unique(pairs // vocab_size, return_counts=True)
        contexts.append(keys)
        sizes.append(size)
        followers.append(pairs % vocab_size)
        counts.append(count)
    parents, tokens = link(contexts, vocab_size)
    sizes, followers, counts = (np.concatenate(x) for x in (sizes, followers, counts))
    table = back_off(parents, sizes, followers, counts, smoothing * sizes, vocab_size)
    return NGramDraft(parents, tokens, table)


def mean_probs(
    keys: np.ndarray, probs: np.ndarray, least: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The contexts that occur `least` times or more, and the mean of `probs` after each.

    keys (M,), probs (M, V) -> contexts (U,) in order, means (U, V) float32, counts (U,). A key
    below 0 is no context.
    """
    order = np.argsort(keys, kind="stable")
    contexts, counts = np.unique(keys, return_counts=True)
    kept = (counts >= least) & (contexts >= 0)
    order, contexts, counts = order[np.repeat(kept, counts)], contexts[kept], counts[kept]
    if len(contexts) == 0:
        return contexts, np.zeros((0, probs.shape[-1]), np.float32), counts
    sums = np.add.reduceat(probs[order].astype(np.float32), np.cumsum(counts) - counts)
    return contexts, sums / counts[:, None], counts


def distil_ngrams(
    tokens: np.ndarray, target_probs: np.ndarray, order: int, nodes: int, least: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The contexts that buy most, with the target's own mean p after each, for NGramDraft.

    tokens (B, T): texts; target_probs (B, T-1, V): the target's p of each token but the first. What
    a context buys is how often it occurs times how far (in total variation) its p is from its
    parent's: the acceptances lost without it. The best `nodes` are kept, and their parents;
    contexts seen fewer than `least` times are not looked at.
    Returns parents (N,), tokens (N,), means (N, V).
    Raises ValueError for nodes below 1.
    """
    check_whole(1, nodes=nodes)
    V, texts = target_probs.shape[-1], tokens[:, :-1].astype(int)
    contexts, place = [np.zeros(1, int)], np.zeros_like(texts)  # place: which one ends there
    means, gains = [target_probs.mean((0, 1), dtype=float)[None]], [np.full(1, np.inf)]
    for n in range(1, order + 1):
        place = place[:, 1:] if n > 1 else place
        older = texts[:, : place.shape[1]]
        keys = np.where(place < 0, -1, place * V + older)  # those of n tokens, one token longer
        here, mean, counts = mean_probs(
            keys.ravel(), target_probs[:, n - 1 :].reshape(-1, V), least
        )
        if len(here) == 0:
            break  # no longer one came often enough
        parent = means[-1][here // V]
        mean = (mean * counts[:, None] + parent) / (counts[:, None] + 1)  # a few are not many
        contexts.append(here)
        means.append(mean)
        gains.append(counts * np.abs(mean - parent).sum(-1) / 2)
        place = np.minimum(np.searchsorted(here, keys), len(here) - 1)
        place[here[place] != keys] = -1
    dear = np.sort(np.concatenate(gains))[-nodes:][0]
    kept = [gain >= dear for gain in gains]
    for n in range(len(contexts) - 1, 0, -1):  # a node's parent stays with it
        kept[n - 1][contexts[n][kept[n]] // V] = True
    contexts, means = ([x[k] for x, k in zip(xs, kept, strict=True)] for xs in (contexts, means))
    return *link(contexts, V, [np.flatnonzero(k) for k in kept]), np.concatenate(means)


def answering(parents, tokens, texts: np.ndarray, vocab_size: int) -> np.ndarray:
    """(B, T-1): the node of the tree that guesses what follows each token of `texts` (B, T).

    parents, tokens (N,): as in NGramDraft, in the order of `link`.
    """
    edges = parents.astype(int) * vocab_size + tokens  # in order, as `link` made them
    edges[0] = -1  # the root hangs on nothing
    texts = texts[:, :-1].astype(int)
    node, walking, back = np.zeros_like(texts), np.ones(texts.shape, bool), 0
    while walking.any():
        edge = node[walking] * vocab_size + np.roll(texts, back, axis=1)[walking]
        child = np.minimum(np.searchsorted(edges, edge), len(edges) - 1)
        known = edges[child] == edge
        walking[walking] = known
        node[walking] = child[known]
        walking[:, : back + 1] = False  # no older token is left
        back += 1
    return node


def largest_overlap(probs: np.ndarray) -> np.ndarray:
    """The rows q (G, V) of largest mean overlap Σ min(p, q) with m rows p each: probs (G, m, V).

    Raise q(x) a little, and it wins at the places where p(x) > q(x). At the best row their number
    is the same for every x: each q(x) is the same quantile of its m values p(x), at the level that
    lets the row sum to 1.
    """
    ranked = np.sort(probs, axis=1)
    ranked = np.concatenate([ranked, np.ones_like(ranked[:, :1])], axis=1)
    sums = ranked.sum(-1)  # (G, m+1), ascending
    above = np.maximum((sums < 1).sum(-1), 1)  # the first that sums to 1 or more
    each = np.arange(len(probs))
    low, high = sums[each, above - 1, None], sums[each, above, None]
    share = np.clip((1 - low) / (high - low), 0, 1)
    q = ranked[each, above - 1] * (1 - share) + ranked[each, above] * share
    return q / q.sum(-1, keepdims=True)


def fit_rows(parents, tokens, means, texts, target_probs, most: int = 512) -> np.ndarray:
    """The rows (N, V) float32 of largest overlap for a tree: each for the places that it answers.

    A place is answered by the longest context that the tree knows there; its shorter ones need not
    please it. Each row's own mean counts as one more place. At most `most` places, evenly spread,
    are looked at for a row. parents, tokens (N,), means (N, V): from distil_ngrams; texts (B, T),
    target_probs (B, T-1, V): as there.
    """
    V = means.shape[-1]
    probs, rows = target_probs.reshape(-1, V), means.astype(np.float32)
    node = answering(parents, tokens, texts, V).ravel()
    order = np.argsort(node, kind="stable")
    counts = np.bincount(node, minlength=len(parents))
    first, sizes = np.cumsum(counts) - counts, np.minimum(counts, most)
    for n in np.unique(sizes[sizes > 0]):
        those = np.flatnonzero(sizes == n)
        for some in np.array_split(those, len(those) * n * V // 10**7 + 1):  # to spare memory
            places = order[first[some, None] + np.arange(n) * counts[some, None] // n]
            p = np.concatenate([rows[some, None], probs[places]], axis=1, dtype=np.float32)
            rows[some] = largest_overlap(p)
    return rows


def row_alphas(parents, tokens, rows, texts, target_probs) -> np.ndarray:
    """(N,): of each row its mean overlap Σ min(p, q) at the places that it answers.

    Eight places of the mean of all are mixed in, for few are not many. Arguments as in fit_rows.
    """
    node = answering(parents, tokens, texts, rows.shape[-1])
    shared = [
        np.minimum(rows[its], p.astype(np.float32)).sum(-1)
        for its, p in zip(node, target_probs, strict=True)
    ]
    sums = np.bincount(node.ravel(), np.concatenate(shared), len(parents))
    counts = np.bincount(node.ravel(), minlength=len(parents))
    return (sums + 8 * sums.sum() / counts.sum()) / (counts + 8)


def save(
    path: Path, tokenizer: CharTokenizer, facts: dict, parents, tokens, rows, alphas=None
) -> None:
    """Write a distilled draft, compressed: the roots of its rows in whole 255ths, from 6 up.

    Roots are finer where probabilities are small; what is below (6/255)² is left out. alphas: of
    row_alphas, in whole 255ths as well; 1 if not given.
    """
    weights = np.round(np.sqrt(rows) * 255).astype(np.uint8)
    weights[weights < 6] = 0
    arrays = {
        "tokens": tokens,
        "sizes": (weights > 0).sum(-1),
        "followers": np.nonzero(weights)[1],
        "weights": weights[weights > 0],
        "alphas": np.round(255 * (np.ones(len(parents)) if alphas is None else alphas)),
    }
    save_bytes(path, tokenizer, facts, parents, arrays)


def save_greedy(path: Path, tokenizer: CharTokenizer, facts: dict, parents, tokens, best) -> None:
    """Write what a GreedyAutomaton is made of, compressed. Arrays (N,) as there."""
    save_bytes(path, tokenizer, facts, parents, {"tokens": tokens, "best": best})


def save_bytes(path: Path, tokenizer: CharTokenizer, facts: dict, parents, arrays: dict) -> None:
    """Write a tree, and arrays of whole numbers below 256, compressed."""
    arrays = {"children": np.bincount(parents[1:], minlength=len(parents)), **arrays}
    packed = {name: zlib.compress(x.astype(np.uint8).tobytes(), 9) for name, x in arrays.items()}
    tensors = {
        name: torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for name, content in packed.items()
    }
    checkpoint.save_tensors(path, tensors, {"vocabulary": tokenizer.chars, "facts": facts})


def load_bytes(path: Path, names: Sequence[str], make_one: str) -> tuple[int, list[np.ndarray]]:
    """The size of the vocabulary, and the arrays that save_bytes wrote, parents for children.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """
    header, tensors = checkpoint.load_tensors(path, ("children", *names), make_one)
    try:
        contents = [zlib.decompress(tensors[name].numpy()) for name in ("children", *names)]
    except zlib.error as error:
        raise ValueError(
            f"{path} is no tree of ours ({error}); {checkpoint.remedy(path, make_one)}"
        ) from error
    children, *arrays = (np.frombuffer(content, np.uint8) for content in contents)
    parents = np.concatenate([[0], np.repeat(np.arange(len(children)), children)])
    return len(header["vocabulary"]), [parents, *arrays]


def load(path: Path = DISTILLED, least: float = 0.0) -> NGramAutomaton:
    """The distilled draft in a file. What was left out of a row is taken from its parent's.

    At temperature 0 the shipped one asks load_greedy's. Raises FileNotFoundError if there is no
    such file, ValueError if it is none of ours, or for a bad `least`.
    """
    names, make_one = ("tokens", "sizes", "followers", "weights", "alphas"), MAKE.format("ngram")
    V, (parents, tokens, sizes, followers, roots, alphas) = load_bytes(path, names, make_one)
    weights, sizes = ((np.arange(256) / 255) ** 2)[roots], sizes.astype(int)
    used = np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights, minlength=len(sizes))
    backoff = np.maximum(1 - used, 0)
    table = back_off(parents, sizes, followers, weights, backoff, V)
    greedy = load_greedy if path == DISTILLED else None
    return NGramAutomaton(parents, tokens.astype(int), table, alphas / 255, least, greedy)


@functools.cache
def load_greedy(path: Path = GREEDY) -> GreedyAutomaton:
    """The draft for temperature 0 in a file, read once. Raises what `load` raises."""
    V, (parents, tokens, best) = load_bytes(path, ("tokens", "best"), MAKE.format("greedy"))
    return GreedyAutomaton(parents, tokens.astype(int), best, V)
