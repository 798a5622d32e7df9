"""Chapter 01: the judge of *Your turn*, and the chapter's own pictures.

The turn: the forward of a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.model import GPTConfig, Head
from nanogpt.proof.checks import near
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, TARGET, Picture, shown


def judge(mine: Callable) -> None:
    """Judge `mine(head, x, attn_bias)`, one head without a cache: output, (keys, values).

    Raises AssertionError where a result is missing or has another shape, keys or values are not the
    layers', the input is changed, or the output is not the average that the bias allows.
    """
    head, computed = toy_head()
    x = (7.0 * torch.arange(180)).sin().view(2, 5, 18)  # B, T, C; hs is 3
    causal = torch.full((5, 5), -torch.inf).triu(diagonal=1)
    for bias in (torch.zeros(5, 5), causal, causal.T):
        out, (k, v) = head(x, bias)
        given = x.clone(), bias.clone()
        computed.clear()
        try:
            got = mine(head, *given)
        except NotImplementedError:
            raise
        except RuntimeError as error:
            raise AssertionError(
                f"yours raised: {error}; x is (2, 5, 18), and .T reverses all dimensions, "
                ".transpose(-2, -1) swaps the last two"
            ) from error
        unchanged = torch.equal(given[0], x) and torch.equal(given[1], bias)
        assert unchanged, "you changed x or attn_bias in place; work on a copy"
        try:
            output, pair = got
            output, keys, values = (torch.as_tensor(t) for t in (output, *pair))
        except (TypeError, ValueError, RuntimeError) as error:
            message = "return two: the output, and the pair (keys, values), all of them tensors"
            raise AssertionError(message) from error
        for name, t in (("output", output), ("keys", keys), ("values", values)):
            shape, right = tuple(t.shape), "(B, T, hs) = (2, 5, 3)"
            assert shape == (2, 5, 3), f"the shape of the {name} is {shape}, not {right}"
        assert near(keys, k), "the keys that you return are not those of head.key"
        assert near(values, v), "the values that you return are not those of head.value"
        if not near(output, out):
            whys = [why for why, slip in slips_of_a_head(head, x, bias) if near(output, slip)]
            raise AssertionError([*whys, "the output is not the weighted average of the values"][0])
        check_work(computed, 10)


def toy_head() -> tuple[Head, Counter]:
    """A head, C = 18 and hs = 3, and the number of vectors that each of its layers computes."""
    generator = torch.Generator().manual_seed(0)
    head, computed = Head(GPTConfig(n_head=6, n_embd=18)).requires_grad_(False), Counter()
    for name in ("query", "key", "value"):
        layer = getattr(head, name)
        layer.weight.copy_(torch.randn(3, 18, generator=generator) / 2)
        layer.register_forward_pre_hook(
            lambda _, x, name=name: computed.update({name: x[0].shape[:-1].numel()})
        )
    return head, computed


def check_work(computed: Counter, n: int) -> None:
    """Raise AssertionError if a head's layer computed the n vectors that are new several times."""
    for name, vectors in computed.items():
        assert vectors <= 2 * n, (
            f"right, but head.{name} computed {vectors} vectors, and there are {n} new ones "
            "(B · T): one call gives those of all positions"
        )


def slips_of_a_head(head: Head, x: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a head with one slip would put out: (where to look, output (B, T, hs)) of each."""
    q, k, v = head.query(x), head.key(x), head.value(x)
    hs, T, products = q.shape[-1], q.shape[-2], q @ k.transpose(-2, -1)
    scores, scale = products / hs**0.5, "the scores are {}; divide by √hs, the length of a query"
    yield scale.format("not scaled"), (products + bias).softmax(-1) @ v
    yield scale.format("scaled by √C"), (products / x.shape[-1] ** 0.5 + bias).softmax(-1) @ v
    yield scale.format("divided by hs"), (products / hs + bias).softmax(-1) @ v
    yield scale.format("multiplied by √hs"), (products * hs**0.5 + bias).softmax(-1) @ v
    for dim in (0, 1):
        why = "each row of weights must sum to 1; along which dimension does your softmax run?"
        yield why, (scores + bias).softmax(dim) @ v
    why = "rows and columns are swapped: row i belongs to query i, column j to key j"
    yield why, (scores.transpose(-2, -1) + bias).softmax(-1) @ v
    yield "these are averages of the keys, not of the values", (scores + bias).softmax(-1) @ k
    why = "a row sees what attn_bias hides from it; is the bias in the scores?"
    yield why, scores.softmax(-1) @ v
    why = "hidden positions are dropped after the softmax, so a row of weights no longer sums to 1"
    yield why, (scores.softmax(-1) * (bias == 0)) @ v
    hidden = torch.full((T, T), -torch.inf).triu(diagonal=1)
    why = "a row does not see what attn_bias shows it; use the bias that you are given"
    yield why, (scores + hidden).softmax(-1) @ v


@mpl.rc_context(STYLE)
def transformer_block(text: str, channels: int, n_head: int) -> Picture:
    """A block at work on `text`: two branches that add to its stream, and what its heads return.

    Each head hands out a key and a value per token, beside the block's output: a small cache.
    """
    title = "A block adds to its stream twice, and hands out keys and values"
    shows = f"{n_head} heads and then a feed-forward net read the stream, and add what they made."
    axes = sheet(title, 8.8, 4.4, shows)
    letters, shape = shown(text), f"{len(text)} × {channels}"
    for start, end in ((10, 45), (48, 74), (77, 78)):
        arrow(axes, (start, 6), (end, 6), colour=TARGET)
    words(axes, 27, 4.4, "the residual stream goes straight through", fontsize=9)
    for x, name in ((1, "in"), (78, "out")):
        box(axes, x, 3, 9, 6, f"{name}\n{shape}", "target")
    for x, end in ((12, 46.5), (51, 75.5)):  # a branch leaves the stream, and is added to it
        box(axes, end - 1.5, 4.5, 3, 3, "+", "target")
        box(axes, x, 13, 10, 4.5, "LayerNorm")
        arrow(axes, (x + 5, 6), (x + 5, 13))
        arrow(axes, (x + 10, 15.2), (x + 13, 15.2))
        arrow(axes, (end, 13), (end, 7.5))
    for i in range(n_head):
        box(axes, 25 + 14 / n_head * i, 13, 14 / n_head - 0.4, 4.5, str(i + 1), "cached")
    arrow(axes, (38.6, 15.2), (42.5, 15.2))
    box(axes, 42.5, 13, 7, 4.5, "mix")
    box(axes, 64, 13, 20, 4.5, f"{channels} → {4 * channels} → {channels}")
    words(axes, 32, 11.5, f"{n_head} heads gather", fontsize=9)
    words(axes, 74, 19, "feed-forward: each place alone", fontsize=9)
    axes.plot([25, 38.6], [18.4, 18.4], color=GREY, linewidth=1.4)  # all heads alike
    for x, name in ((20, "keys"), (42, "values")):
        arrow(axes, (32, 18.4), (x + (7 if x < 32 else 3), 22))
        words(axes, x + 4, 23.3, name, fontsize=9)
        for i, j in product(range(n_head), range(len(text))):
            box(axes, x + 2 + 3.4 * j, 25 + 4 * i, 3.2, 3.2, letters[j], "cached")
    for i in range(n_head):
        words(axes, 16, 26.6 + 4 * i, f"head {i + 1}", fontsize=9)
    why = "returned, not stored:\nin chapter 02, the next\ncall gets them back"
    words(axes, 74, 32, why, fontsize=9)
    return axes.figure
