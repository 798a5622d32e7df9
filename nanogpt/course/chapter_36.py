"""Chapter 36: the judge of *Your turn*, its picture, and the pair that is made on the spot.

The turn: a pass of an engine whose cache changes in place, as a value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module

import matplotlib as mpl
import torch
from torch import Tensor

from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture

# The texts: three kinds, of which two lie on every machine that has Python

PROGRAMS = "argparse", "calendar", "cmd", "difflib", "heapq", "optparse", "random", "textwrap"
LETTERS = 250_000  # of each kind


def plain(text: str) -> str:
    """The text in printable ASCII and line ends: what a tokenizer of bytes has one token for."""
    return "".join(char for char in text if char == "\n" or " " <= char <= "~")


def texts(play: str) -> dict[str, str]:
    """{kind: text}: a play, the programs of Python's library, and its language reference."""
    code = "\n".join(inspect.getsource(import_module(name)) for name in PROGRAMS)
    manual = "\n".join(import_module("pydoc_data.topics").topics.values())
    kinds = {"play": play, "program": code, "manual": manual}
    return {kind: plain(text[:LETTERS]) for kind, text in kinds.items()}


def train(model, parts: Sequence[Tensor], steps: int, rate: float, seed: int = 0) -> float:
    """Train a model of transformers on parts (N,) of tokens in turn; returns its last loss.

    12 rows of 48 tokens a step: AdamW, one cycle.
    """
    generator = torch.Generator().manual_seed(seed)
    adam = torch.optim.AdamW(model.parameters(), lr=rate)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=steps)
    for _ in range(steps):
        rows = []
        for b in range(12):
            part = parts[b % len(parts)]
            at = int(torch.randint(len(part) - 49, (1,), generator=generator))
            rows.append(part[at : at + 49])
        idx = torch.stack(rows)
        loss = model(input_ids=idx, labels=idx, use_cache=False).loss
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        cycle.step()
    return float(loss.detach())


# The turn


class Ledger:
    """What an engine remembers of a text: in each of two layers, a list with an entry a token."""

    def __init__(self, layers: Sequence[Sequence[int]] = ((), ())):
        self.layers = list(layers)  # the engine appends to what it is given
        if all(isinstance(layer, tuple) for layer in self.layers):
            self.layers = [list(layer) for layer in layers]


def engine(tokens: Sequence[int], ledger: Ledger) -> list[int]:
    """A number for each token, from all entries up to its own. Adds the tokens to the ledger."""
    first, second = ledger.layers
    out = []
    for token in tokens:
        first.append(token + 1)
        second.append(3 * token + len(first))
        out.append(sum(i * a + b for i, (a, b) in enumerate(zip(first, second, strict=True))) % 97)
    return out


TEXT = [4, 1, 3, 3, 0, 2, 4, 1]


def judge(mine: Callable) -> None:
    """mine(engine, Ledger, tokens, past) is (outputs, the new past), and changes nothing.

    past: None, or what it returned before, cut to its first n entries. Raises AssertionError with
    the slip.
    """
    right = engine(TEXT, Ledger())
    whole, past = answer(mine, TEXT, None)
    assert whole == right, f"after {TEXT}, the outputs are {whole} instead of {right}"
    kept(past, len(TEXT))
    _, half = answer(mine, TEXT[:5], None)
    before = frozen(half)
    for tokens in (TEXT[5:], [0, 0], TEXT[5:]):
        outputs, _ = answer(mine, tokens, half)
        if frozen(half) != before:
            raise AssertionError(
                f"a pass over {tokens} changed the past that it was handed: it had "
                f"{len(before[0])} entries a layer and has {len(half[0])}. Give the engine copies"
            )
        expected = engine([*TEXT[:5], *tokens], Ledger())[5:]
        assert outputs == expected, (
            f"{tokens} after {TEXT[:5]}: {outputs} came instead of {expected}; does the engine see "
            "the past that it was handed, all of it and nothing else?"
        )
    _, longer = answer(mine, [2, 2, 2], half)
    kept(longer, 8)
    cut = tuple(layer[:6] for layer in longer)  # two of the three were rejected
    outputs, _ = answer(mine, [1, 0], cut)
    expected = engine([*TEXT[:5], 2, 1, 0], Ledger())[6:]
    assert outputs == expected, (
        f"after a trim to 6 entries, {outputs} came instead of {expected}: what was cut off is "
        "still seen"
    )


def answer(mine: Callable, tokens: list[int], past) -> tuple[list[int], tuple]:
    """What mine returned, as a pair. Raises AssertionError if it is none."""
    said = mine(engine, Ledger, list(tokens), past)
    assert said is not None, "nothing came back: return (outputs, past)"
    assert isinstance(said, tuple) and len(said) == 2, f"{said!r} came back, not (outputs, past)"
    outputs, new = said
    assert not isinstance(new, Ledger), (
        "the past is the ledger itself, which the next pass changes: return its entries"
    )
    assert hasattr(outputs, "__len__"), f"{outputs!r} came for the outputs: return a list"
    return list(outputs), new


def frozen(past) -> tuple:
    """The entries as they are now."""
    return tuple(tuple(layer) for layer in past)


def kept(past, n: int) -> None:
    """Raise AssertionError unless the past has two layers of n entries."""
    sized = hasattr(past, "__len__") and all(hasattr(layer, "__len__") for layer in past)
    assert sized, f"{past!r} is no past: return a tuple with the entries of each layer"
    lengths = [len(layer) for layer in past]
    assert lengths == [n, n], (
        f"the past has {lengths} entries in its layers after {n} tokens; it takes {[n, n]}"
    )


# The pictures


@mpl.rc_context(STYLE)
def through_the_adapter(title: str, n: int = 5, guesses: int = 3, stay: int = 1) -> Picture:
    """What a pass does with a cache: the loop's value, the model's object, a longer value, cut."""
    shows = "Their object is made of the loop's cache, and the loop's longer cache of their object."
    axes = sheet(title, 9.4, 3.0, shows)
    size = 3.2

    def slots(x: float, y: float, kinds: Sequence[str]) -> None:
        for i, kind in enumerate(kinds):
            box(axes, x + size * i, y, size - 0.5, 2.6, "", kind)

    words(axes, 1, 3.0, "the loop", ha="left", fontweight="bold")
    words(axes, 1, 5.0, "values", ha="left", fontsize=8, color=GREY)
    words(axes, 1, 15.0, "the adapter", ha="left", fontweight="bold")
    words(axes, 1, 17.0, "no copy", ha="left", fontsize=8, color=GREY)
    words(axes, 1, 25.0, "their model", ha="left", fontweight="bold")
    words(axes, 1, 27.0, "an object", ha="left", fontsize=8, color=GREY)
    slots(16, 2.4, ["cached"] * n)
    words(axes, 16 + size * n / 2, 7.2, "past_kvs", fontsize=9)
    slots(40, 2.4, ["cached"] * (n + 1) + ["draft"] * guesses)
    words(axes, 40 + size * (n + 1 + guesses) / 2, 7.2, "new_kvs", fontsize=9)
    slots(72, 2.4, ["cached"] * (n + 1) + ["accepted"] * stay)
    words(axes, 72 + size * (n + 1 + stay) / 2, 7.2, "trimmed", fontsize=9)
    arrow(axes, (40 + size * (n + 1 + guesses) + 0.2, 3.7), (71.4, 3.7))
    box(axes, 17, 14, 14, 4, "theirs( )", "plain")
    box(axes, 46, 14, 14, 4, "ours( )", "plain")
    box(axes, 22, 24, 34, 4, "DynamicCache of this one pass", "target")
    arrow(axes, (24, 8.6), (24, 13.6))
    arrow(axes, (24, 18.4), (28, 23.6))
    arrow(axes, (49, 23.6), (53, 18.4))
    arrow(axes, (53, 13.6), (53, 8.6))
    return axes.figure
