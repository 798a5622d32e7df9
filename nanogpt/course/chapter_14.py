"""Chapter 14: the judge of *Your turn*, and the chapter's own pictures.

The turn: a draft that is the target's own first blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.cache import cache_length
from nanogpt.drafts.itself import BegunTree, going_on
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.checks import tensors
from nanogpt.proof.exact import enumerate_outcomes
from nanogpt.proof.toys import Watched, deep_toy
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show.diagrams import box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown
from nanogpt.trees.loop import verify_tree
from nanogpt.trees.tree import ReadText, Tree


def judge(mine: Callable) -> None:
    """Judges my_early_exit(target, depth, head, text, K, rng) -> BegunTree.

    Its q are looked at one by one, then the passes it made, what it hands on, and its draws, by
    enumeration. Raises AssertionError.
    """
    model, head = deep_toy()
    for depth, K, prompt in ((1, 3, [0, 1, 2]), (2, 2, [2, 1, 0, 1]), (2, 1, [1, 2])):
        target, text = Watched(model), ReadText(model, prompt, 9)
        text.read()
        case = f"depth {depth}, K = {K}, after the tokens {prompt}"
        target.passes.clear()
        tree = as_chain(mine(target, depth, head, text, K, RandomSource(1)), K, case)
        assert text.tokens == prompt and cache_length(text.past_kvs) == len(prompt) - 1, (
            f"{case}: the text was changed; copy what you need of it"
        )
        for i, row in enumerate(tree.q):
            logits = stream_of(model, depth, [*prompt, *tree.tokens[:i]])
            right = Sampling().probs(head(logits))
            fault = slip_of_row(row, right, model, depth, [*prompt, *tree.tokens[:i]])
            near = row.dtype == right.dtype and torch.allclose(row, right, rtol=0, atol=1e-9)
            assert near, f"{case}: row {i} of q {fault}"
        read = [len(tokens) for tokens, _ in target.passes]
        assert len(read) <= K, (
            f"{case}: {len(read)} calls of states; {K} guesses take {K}: the last guess is drawn "
            "and not read"
        )
        assert sum(read) <= K, (
            f"{case}: {sum(read)} tokens were read where {K} do; give each call the cache that the "
            "call before it returned, and only the newest token"
        )
        check_begun(tree, model, depth, prompt, case)
        plain = Tree(tree.tokens, tree.parents, tree.q)
        p, _, _ = going_on(verify_tree)(model, text, tree, Sampling())
        right, _, _ = verify_tree(model, ReadText(model, prompt, 9), plain, Sampling())
        assert torch.allclose(p, right, rtol=0, atol=1e-9), (
            f"{case}: a pass that goes on from your `begun` finds another p than a plain one"
        )
    check_draws(mine, model, head)


def stream_of(model: GPTLanguageModel, depth: int, tokens: list[int]) -> Tensor:
    """The stream (C,) of the last of these tokens after block `depth`, without a cache."""
    return model.states(torch.tensor([tokens]), depth=depth)[0][-1][0, -1]


def as_chain(made, K: int, case: str) -> BegunTree:
    """What came, if it is a chain of K tokens with q (K, 3) and a `begun`; else AssertionError."""
    parts = ("tokens", "parents", "q", "begun")
    assert all(hasattr(made, part) for part in parts), (
        f"{case}: {made!r:.60} came; return BegunTree(tokens, parents, q, begun)"
    )
    tokens, parents = list(made.tokens), list(made.parents)
    assert len(tokens) == K, f"{case}: {len(tokens)} tokens came instead of {K}"
    assert parents == list(range(-1, K - 1)), (
        f"{case}: parents {parents}; in a chain each follows the one before, the first follows -1"
    )
    assert isinstance(made.q, Tensor) and made.q.shape == (K, 3), (
        f"{case}: q has the shape {tuple(getattr(made.q, 'shape', ()))}, not (K, V) = ({K}, 3)"
    )
    return BegunTree([int(t) for t in tokens], parents, made.q, made.begun)


def slip_of_row(row: Tensor, right: Tensor, model, depth: int, tokens: list[int]) -> str:
    """What a wrong row (V,) of q looks like."""
    if row.dtype != right.dtype:
        return f"is {str(row.dtype)[6:]}; Sampling().probs gives float64, keep that"
    stream = stream_of(model, depth, tokens)
    own = Sampling().probs(model.lm_head(model.ln_f(stream)))
    if torch.allclose(row, own, rtol=0, atol=1e-6):
        return "comes from the target's own ln_f and lm_head; use `head`"
    if float(row.max()) == 1:
        return "is one-hot; it is the distribution that the token was drawn from"
    if abs(float(row.sum()) - 1) > 1e-6:
        return f"sums to {float(row.sum()):.2f}; logits become q with Sampling().probs"
    said = [round(x, 3) for x in row.tolist()], [round(x, 3) for x in right.tolist()]
    return (
        f"is {said[0]} instead of {said[1]}: is it the newest token that goes in, after the cache "
        "of all before it, and out after the right block?"
    )


def check_begun(tree: BegunTree, model, depth: int, prompt: list[int], case: str) -> None:
    """`begun` holds the depth, the streams of the current token and all guesses but the last."""
    assert isinstance(tree.begun, tuple) and len(tree.begun) == 3, (
        f"{case}: begun is {tree.begun!r:.40}; it takes Begun(depth, stream, past_kvs)"
    )
    K, (E, stream, kvs) = len(tree.tokens), tree.begun
    assert E == depth, f"{case}: begun says depth {E!r}"
    shape = tuple(getattr(stream, "shape", ()))
    assert shape == (1, K, 4), (
        f"{case}: the stream in begun is {shape}, not (1, {K}, 4): of the current token and every "
        "guess but the last"
    )
    right, right_kvs = model.states(torch.tensor([[*prompt, *tree.tokens[:-1]]]), depth=depth)
    assert torch.allclose(stream, right[-1][:, len(prompt) - 1 :], rtol=0, atol=1e-9), (
        f"{case}: the stream in begun is not that after block {depth}; is it in order, and before "
        "the head?"
    )
    length = len(prompt) - 1 + K
    assert cache_length(kvs) == length, (
        f"{case}: the cache in begun holds {cache_length(kvs)} tokens instead of {length}"
    )
    pairs = zip(tensors(kvs), tensors(right_kvs), strict=False)
    assert len(kvs) == depth and all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in pairs), (
        f"{case}: the cache in begun is not that of the first {depth} blocks"
    )


def check_draws(mine: Callable, model, head) -> None:
    """Every guess is drawn from its q, and by the rng that was given."""

    def program(rng):
        text = ReadText(model, [0, 1], 9)
        text.read()
        return tuple(int(t) for t in mine(model, 1, head, text, 2, rng).tokens)

    got, right = enumerate_outcomes(program), {}
    for a, b in product(range(3), repeat=2):
        q = [Sampling().probs(head(stream_of(model, 1, [0, 1, *before]))) for before in ([], [a])]
        right[a, b] = float(q[0][a] * q[1][b])
    chance, (a, b) = max((abs(got.get(pair, 0.0) - right[pair]), pair) for pair in right)
    assert chance < 1e-9, (
        f"the guesses {[a, b]} come with probability {got.get((a, b), 0.0):.3f} instead of "
        f"{right[a, b]:.3f}: draw each from its own q, with rng.categorical"
    )


@mpl.rc_context(STYLE)
def said_by_block(text: str, said: Sequence[str], title: str) -> Picture:
    """What the head says is next after each block, the last one on top, and each letter of text.

    said: one text per block, as long as `text`. Filled and bold: what the last block says, too.
    """
    same = [str(sum(map(str.__eq__, row, said[-1]))) for row in said]
    shows = f"Letters on which a block agrees with the last one: {', '.join(same)}."
    axes, size = sheet(title, 9, 0.36 * len(said) + 1.15, shows), 80 / len(text)
    for n, letter in enumerate(text):
        words(axes, 9.5 + size * (n + 0.5), 2 + 3.6 * len(said) + 1.6, shown(letter), color=GREY)
    words(axes, 8.6, 2 + 3.6 * len(said) + 1.6, "the text", ha="right", color=GREY)
    for layer, guesses in enumerate(said):
        y = 2 + 3.6 * (len(said) - 1 - layer)
        words(axes, 8.6, y + 1.6, f"block {layer + 1}", ha="right")
        for n, (guess, final) in enumerate(zip(guesses, said[-1], strict=True)):
            same, x = guess == final, 9.5 + size * n
            box(axes, x, y, size - 0.4, 3.2, "", "target" if same else "gone")
            weight = "bold" if same else "normal"
            words(axes, x + size / 2 - 0.2, y + 1.6, shown(guess), fontweight=weight)
    note = "filled and bold: what the last block says, too; dotted: something else"
    words(axes, 9.5, 2 + 3.6 * len(said) + 5.2, note, ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def first_blocks(current: str, guesses: str, depth: int, layers: int, title: str) -> Picture:
    """Which pass runs which block for which token, with a cache of the draft's own and with one.

    A column is a token, a row a block; each box is one run of a block, which writes that token's
    keys and values. Hatched: run while drafting (▸, the exit's guess); plain: in the target's pass.
    """
    K, tokens = len(guesses), [shown(x) for x in current + guesses]
    runs = (K + 1) * layers
    shows = f"Runs of a block: {K * depth + runs} with two caches, {runs} with one."
    axes, size = sheet(title, 9, 0.52 * layers + 1.45, shows), min(8, 34 / (K + 1))
    for left, name, twice in ((10, "weights shared, caches not", True), (53, "one cache", False)):
        words(axes, left, 1.2, name, ha="left", fontweight="bold")
        for n, layer in product(range(K + 1), range(layers)):
            x, y = left + size * n, 3.2 + 5.2 * (layers - 1 - layer)
            early, says = layer < depth and n < K, "p" if layer == layers - 1 else ""
            guess = f"▸{tokens[n + 1]}" if n < K and layer == depth - 1 else ""
            if early and twice:  # once for each cache
                box(axes, x, y + 0.2, size - 0.5, 2.3, guess, "draft")
                box(axes, x, y + 2.6, size - 0.5, 2.2, "", "target")
            else:
                kind = "draft" if early else "target"
                box(axes, x, y + 0.2, size - 0.5, 4.6, guess if early else says, kind)
        bottom = 3.2 + 5.2 * layers
        for n, token in enumerate(tokens):
            words(axes, left + size * (n + 0.5) - 0.2, bottom + 1.2, token, family="monospace")
        count = f"{K * depth} + {runs} = {K * depth + runs}" if twice else f"{runs}"
        words(axes, left, bottom + 4.2, f"runs of a block: {count}", ha="left")
    for layer in range(layers):
        words(axes, 8.8, 5.7 + 5.2 * (layers - 1 - layer), f"block {layer + 1}", ha="right")
    said = "hatched: the draft's, token by token, ▸ its guess; plain: the target's one pass, to p"
    words(axes, 10, bottom + 7.2, said, ha="left")
    return axes.figure
