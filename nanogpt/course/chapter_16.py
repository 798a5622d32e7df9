"""Chapter 16: the judge of *Your turn*, and the chapter's own pictures.

The turn: who may see whom in a tree, and where each one stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

from nanogpt.measure.clock import clock
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show.diagrams import arrow, box, sheet, strip, words
from nanogpt.show.figures import ACCEPTED, GREY, SERIES, STYLE, Picture, picture, shown
from nanogpt.trees.loop import propose_tree, verify_tree
from nanogpt.trees.rules import accept_tree
from nanogpt.trees.tree import Proposer, ReadText, keep_path

TREES = (  # a chain longer than any habit; two of a length, for who remembers the last one; none
    ([-1, 0, 1], 2),
    ([-1, -1, 0, 1, 1], 0),
    ([-1, 0, 1, 2, 3, 4, 5], 9),
    ([-1, 0, -1, 0, 3, 2, 3], 9),
    ([], 3),
)


def judge(mine: Callable) -> None:
    """*Your turn* of 16: the mask and the positions of a pass over the current token and a tree.

    mine(parents, P) returns the mask (N+1, P+N+1), True or 1 where a row may attend, and the
    positions (N+1,), as tensors, arrays or lists. Raises AssertionError for a wrong shape, row or
    position, and for a changed list.
    """
    for parents, P in TREES:
        given, N = list(parents), len(parents)
        where = f"parents {parents}, P = {P}"
        made = mine(given, P)
        assert given == parents, f"{where}: the caller's list of parents is changed: {given}"
        pair = isinstance(made, (tuple, list)) and len(made) == 2
        came = "nothing" if made is None else f"a {type(made).__name__}"
        assert pair, f"{where}: return two things, the mask and the positions; {came} came"
        mask, pos = map(as_numbers, made)
        assert mask is not None and pos is not None, (
            f"{where}: the mask is rows of True and False, and the positions are whole numbers; "
            "attention adds a mask of floats to the scores"
        )
        shape, wanted = tuple(mask.shape), (N + 1, P + N + 1)
        assert shape == wanted, (
            f"{where}: the mask has shape {shape}, not (N+1, P+N+1) = {wanted}: a row for the "
            "current token and each node, a column for each cached token and each row"
        )
        fault = slip_of_mask(mask.bool(), parents, P)
        assert not fault, f"{where}: {fault}"
        assert pos.shape == (N + 1,), (
            f"{where}: the positions have shape {tuple(pos.shape)}, not (N+1,) = ({N + 1},): one "
            "for each row of the mask"
        )
        fault = slip_of_positions(pos.tolist(), parents, P)
        assert not fault, f"{where}: {fault}"


def as_numbers(made) -> Tensor | None:
    """A mask or positions as a tensor, or None if they are no whole numbers."""
    try:
        rows = torch.stack([torch.as_tensor(row) for row in made])
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if rows.is_floating_point() else rows


def path_of(node: int, parents: Sequence[int]) -> list[int]:
    """The node itself and its ancestors, upward; nothing for the current token, -1."""
    return [node, *path_of(parents[node], parents)] if node >= 0 else []


def slip_of_mask(mask: Tensor, parents: Sequence[int], P: int) -> str:
    """What is wrong with a mask (N+1, P+N+1) of the right shape, or ""."""
    for row, seen in enumerate(mask.tolist()):
        node = row - 1
        who = f"node {node}" if row else "the current token"
        path, nodes = path_of(node, parents), [i for i, s in enumerate(seen[P + 1 :]) if s]
        if not all(seen[:P]):
            return f"{who} does not see the cache: all {P} cached tokens come before it"
        if row and not seen[P]:
            return f"{who} does not see the current token, which every path starts from"
        if not seen[P + row]:
            return f"{who} does not see itself; a token attends to its own key, too"
        unseen = [n for n in path if n not in nodes]
        if unseen:
            what = "its parent" if unseen[0] == parents[node] else f"node {unseen[0]}; go on up"
            return f"{who} does not see {what}: its path from the current token is {path[::-1]}"
        stranger = [n for n in nodes if n not in path]
        if stranger:
            kind = "comes later, and nobody may see the future" if stranger[0] > node else ""
            kind = kind or "is on another branch: only ancestors may be seen, no cousins"
            return f"{who} sees node {stranger[0]}, which {kind}"
    return ""


def slip_of_positions(pos: Sequence[float], parents: Sequence[int], P: int) -> str:
    """What is wrong with the positions, one for each row, or ""."""
    right = [P + len(path_of(node, parents)) for node in range(-1, len(parents))]
    if list(pos) == right:
        return ""
    whys = {
        tuple(range(P, P + len(right))): "these are the slots: position by index is right for a "
        "chain only; count the tokens before each one on its own path",
        tuple(p - P for p in right): "the cached tokens come before all of them",
        tuple(p + 1 for p in right): "a token does not come before itself; the current one is at P",
        tuple(p - 1 for p in right): "the current token is at P, its children at P + 1",
    }
    why = whys.get(tuple(pos), "siblings stand at the same place, one after their parent's")
    return f"the positions are {[int(p) for p in pos]}, not {right}: {why}"


@torch.inference_mode()
def greedy_texts(target: GPTLanguageModel, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
    """The prompts (B, T), and n greedy tokens after each, all in one batch: (B, T+n)."""
    idx, past_kvs = [torch.tensor(prompts)], None
    for _ in range(n):
        logits, _, past_kvs = target(idx[-1], past_kvs=past_kvs)
        idx.append(logits[:, -1:].argmax(-1))
    return torch.cat(idx, 1)


@torch.inference_mode()
def round_times(
    target: GPTLanguageModel, drafts: Mapping[int, Proposer], prompt: Sequence[int], turns: int
) -> dict[int, np.ndarray]:
    """Of each draft, the times (turns,) of a greedy round; a plain step is 1. All in turn."""
    text, greedy, rng = ReadText(target, prompt, 9), Sampling(0), RandomSource(0)
    text.read()
    idx = torch.tensor([text.tokens[-1:]])

    def plain() -> None:
        logits = target(idx, past_kvs=text.past_kvs)[0]
        rng.categorical(greedy.probs(logits[0, -1]))

    def whole(draft: Proposer) -> None:
        tree = propose_tree(draft, text, text.room, greedy, rng)
        p, _, new_kvs = verify_tree(target, text, tree, greedy)
        keep_path(new_kvs, accept_tree(tree, p, rng)[0], text.position)

    def often(draft: Proposer | None) -> None:
        for _ in range(20):  # so long that others disturb all alike
            plain() if draft is None else whole(draft)

    took: dict[int, list[float]] = {n: [] for n in [0, *drafts]}
    for _ in range(turns):
        for n, times in took.items():
            times.append(clock(lambda n=n: often(drafts.get(n)))[0])
    return {n: np.array(took[n]) / np.median(took[0]) for n in drafts}


@mpl.rc_context(STYLE)
def who_sees_whom(prompt: str, nodes: Sequence[str], parents: Sequence[int], mask) -> Picture:
    """A tree's mask (N+1, P+N+1): a row for each token of the pass, with its slot and position."""
    P, N = len(prompt) - 1, len(nodes)
    n_shown, left = min(4, P), 20
    letters = [*shown(prompt[P - n_shown :]), *map(shown, nodes)]
    size = min(4.6, 44 / len(letters))
    end = left + size * len(letters)
    shows = f"Dots mark what each of {N} nodes sees; siblings share a position, but no slot."
    title = "A node sees the cache, its own path and itself"
    axes = sheet(title, 8, 0.85 + 0.28 * (N + 1), shows)
    middle = left + size * (n_shown + 0.5)
    words(axes, middle - 2.5, 1.2, f"in the cache: {P}", fontsize=9, ha="right")
    words(axes, middle + 2.5, 1.2, f"nodes: {N}", fontsize=9, ha="left")
    for name, x in (("sees", left - 1), ("slot", end + 6), ("position", end + 15)):
        words(axes, x, 3.7, name, fontsize=9, ha="right" if name == "sees" else "center")
    for x, letter in enumerate(letters):
        mark = "▸" if x == n_shown else ""
        words(axes, left + size * (x + 0.5) - 0.2, 3.7, mark + letter, fontweight="bold")
    for row, letter in enumerate(letters[n_shown:]):
        y, node = 5 + 2.8 * row, row - 1
        before = f"after {letters[n_shown + 1 + parents[node]]}" if row else "current"
        words(axes, left - 6, y + 1.2, before, ha="right", fontsize=9, color=GREY)
        words(axes, left - 1, y + 1.2, letter, ha="right", fontweight="bold")
        for x in range(len(letters)):
            sees = bool(mask[row][P - n_shown + x])
            own = "target" if x == n_shown + row else "cached"
            kind, mark = (own, "●") if sees else ("gone", "")
            box(axes, left + size * x, y, size - 0.4, 2.4, mark, kind)
        position = int(sum(map(bool, mask[row]))) - 1
        words(axes, end + 6, y + 1.2, str(P + row))
        words(axes, end + 15, y + 1.2, str(position), fontweight="bold")
    return axes.figure


@mpl.rc_context(STYLE)
def kept_path(
    prompt: str, nodes: Sequence[str], path: Sequence[int], tried: Sequence[int]
) -> Picture:
    """A tree's round in the cache: after the pass, judged, and gathered.

    path: the nodes that stay, from the root down; tried: those that were refused. The others were
    never looked at.
    """
    P, N = len(prompt) - 1, len(nodes)
    n_shown, left = min(3, P), 24
    old = [(x, "cached") for x in ["…"] * (n_shown < P) + [*shown(prompt[P - n_shown : P])]]
    fates = ["accepted" if n in path else "rejected" if n in tried else "gone" for n in range(N)]
    marks = {"accepted": "✓", "rejected": "✗", "gone": ""}
    letters = [*map(shown, nodes)]
    stays = [(letters[n], "cached") for n in path]
    current = shown(prompt[-1])
    rows = {
        f"after the pass: {P + N + 1}": [*old, ("▸" + current, "target")]
        + [(x, "draft") for x in letters],
        "judged": [*old, (current, "cached")]
        + [(marks[f] + x, f) for x, f in zip(letters, fates, strict=True)],
        f"gathered: {P + 1 + len(path)}": [*old, (current, "cached"), *stays]
        + [("", "gone")] * (N - len(path)),
    }
    shows = f"Arrows bring {len(path)} of {N} nodes right behind the cache; the others are gone."
    axes = sheet("The path closes up: slots are positions again", 8, 1.95, shows)
    size, first = (
        min(4.2, 53 / (len(old) + N + 1)),
        left + min(4.2, 53 / (len(old) + N + 1)) * (len(old) + 1),
    )
    for (label, cells), y in zip(rows.items(), (0.8, 5.4, 12.4), strict=True):
        strip(axes, left, y, label, cells, size)
    for place, node in enumerate(path):
        start = (first + size * (node + 0.5) - 0.2, 8.4)
        arrow(axes, start, (first + size * (place + 0.5) - 0.2, 12.4), colour=ACCEPTED)
    return axes.figure


@mpl.rc_context(STYLE)
def promised_and_made(
    sizes: Sequence[int], ways: Mapping[str, tuple[Sequence, Sequence, Sequence]]
) -> Picture:
    """What trees promise less what their rounds make, and what they make beyond the first way's.

    ways: {name: (promised, made, error)}, tokens a pass, one of each a size.
    """
    axes = picture("Promised, less what was made", "nodes of the tree", "tokens a pass", 8, 3.9)
    figure = axes.figure
    beside = figure.add_subplot(122)
    axes.set_subplotspec(beside.get_gridspec()[0])
    first, most = np.array(next(iter(ways.values()))[1]), []
    beside.set(title=f"Made, against the {next(iter(ways))}", xlabel="nodes of the tree")
    for (name, (promised, made, error)), (colour, dash, marker, _) in zip(
        ways.items(), SERIES, strict=False
    ):
        style = {"color": colour, "linestyle": dash, "marker": marker, "capsize": 3}
        axes.errorbar(sizes, np.subtract(promised, made), error, label=name, **style)
        beside.errorbar(sizes, made - first, error, **style)
        most.append(f"{name} {np.abs(np.subtract(promised, made)).max():.2f}")
    figure.shows = f"The most that a promise is off: {', '.join(most)}."
    for half in (axes, beside):
        half.axhline(0, color=GREY, linewidth=0.8)
        half.set_xscale("log", base=2)
        half.set_xticks(sizes, [str(n) for n in sizes])
    figure.legend(loc="outside lower left", ncols=3)
    return figure


@mpl.rc_context(STYLE)
def tokens_per_time(
    sizes: Sequence[int], machines: Mapping[str, tuple[Sequence, Sequence, Sequence]]
) -> Picture:
    """Tokens in the time of a plain step against a tree's nodes, and each machine's best size.

    machines: {name: (low, middle, high)}, one of each a size: the quartiles.
    """
    title = "The same trees on three machines (★: the best size)"
    axes = picture(title, "nodes of the tree", "tokens in the time of a plain step", 8, 4)
    for (name, (low, middle, high)), (colour, dash, marker, _), lift in zip(
        machines.items(), SERIES, (10, 10, -20), strict=False
    ):
        axes.plot(sizes, middle, color=colour, linestyle=dash, marker=marker, label=name)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        best = max(range(len(sizes)), key=lambda i: middle[i])
        at = sizes[best], middle[best]
        axes.plot(*at, color=colour, marker="*", markersize=17, markeredgecolor="white")
        place = {"textcoords": "offset points", "xytext": (0, lift), "ha": "center"}
        axes.annotate(f"{at[0]} nodes", at, color=colour, **place)
    axes.axhline(1, color=GREY, linewidth=0.8, label="plain decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_ylim(0, 1.2 * max(max(middle) for _, middle, _ in machines.values()))
    axes.figure.legend(loc="outside lower left", ncols=4)
    return axes.figure
