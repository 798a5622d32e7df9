"""Chapter 35: the judge of *Your turn*, the chapter's own picture, and how it measures.

The turn: the tree of the likeliest paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import matplotlib as mpl
import torch

from nanogpt.measure.bench import RULES
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import SLOW_CHECKS
from nanogpt.proof.checks_serving import SERVING_CHECKS
from nanogpt.proof.gallery import mutant
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show import figures
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown
from nanogpt.speculative import CHAIN, residual, speculative_generate
from nanogpt.trees.loop import TREE
from nanogpt.trees.tree import Proposer, ReadText, Tree

CASES = [  # how deep, how many nodes, and what comes after a path
    (1, 2, {(): [0.2, 0.5, 0.3]}),
    (
        2,
        4,
        {(): [0.6, 0.3, 0.1], (0,): [0.4, 0.35, 0.25], (1,): [0.05, 0.05, 0.9], (2,): [0.8, 0.1]},
    ),
    (3, 3, {(): [0.9, 0.1], (0,): [0.2, 0.8], (0, 1): [0.3, 0.7], (1,): [0.5, 0.5]}),
    (3, 5, {(): [0.5, 0.3, 0.2], (0,): [0.34, 0.33, 0.33], (1,): [0.0, 1.0], (1, 1): [0.9, 0.1]}),
    (2, 9, {(): [0.7, 0.3], (0,): [1.0, 0.0], (1,): [0.4, 0.6]}),
    (9, 3, {(): [0.8, 0.2]}),  # a thousand paths
]


def after_of(rows: dict[tuple[int, ...], Sequence[float]], asked: list | None = None) -> Callable:
    """after(path): the path's row, or one that no other test of the judge needs; `asked` grows."""

    def after(path):
        if asked is not None:
            asked.append(path)
        return list(rows.get(tuple(path), [0.55, 0.45]))

    return after


def worths(after: Callable, depth: int) -> dict[tuple[int, ...], float]:
    """{path: product of q along it} of all paths up to `depth` that can come."""
    found: dict[tuple[int, ...], float] = {}
    level = {(): 1.0}
    for _ in range(depth):
        level = {
            (*path, token): above * q
            for path, above in level.items()
            for token, q in enumerate(after(list(path)))
            if q > 0
        }
        found |= level
    return found


def judge(mine: Callable) -> None:
    """mine(after, depth, nodes) is (tokens, parents) of the tree of the likeliest paths.

    Judged on five small languages. Raises AssertionError with the slip.
    """
    for depth, nodes, rows in CASES:
        asked: list = []
        answer = mine(after_of(rows, asked), depth, nodes)
        assert answer is not None, "nothing came back: return (tokens, parents)"
        assert isinstance(answer, (tuple, list)) and len(answer) == 2, (
            "return two lists: tokens, and of each its parent's number (-1: the current token)"
        )
        assert all(isinstance(part, (tuple, list)) for part in answer), (
            f"{answer!r} came back: return two lists, tokens and their parents' numbers"
        )
        numbers = [hasattr(x, "__index__") for part in answer for x in part]
        assert all(numbers), "tokens and parents are whole numbers"
        tokens, parents = (list(map(int, part)) for part in answer)
        right = worths(after_of(rows), depth)
        judge_tree(tokens, parents, right, depth, min(nodes, len(right)))
        assert len(asked) <= 3 * nodes + 3, (
            f"for {nodes} nodes you asked what comes after {len(asked)} paths: don't list all, "
            "go on only from those in the tree"
        )


def judge_tree(tokens: list[int], parents: list[int], right: dict, depth: int, nodes: int) -> None:
    """One answer of the judge. Raises AssertionError with the slip."""
    assert len(tokens) == len(parents), f"{len(tokens)} tokens and {len(parents)} parents: one each"
    assert all(-1 <= parent < node for node, parent in enumerate(parents)), (
        f"parents are {parents}: a parent is -1, or the number of a node that came before"
    )
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    for path in paths:
        assert len(path) <= depth, f"the path {path} is {len(path)} long, and {depth} is the most"
        assert path in right, f"the path {path} has a token with q = 0: it cannot come"
    assert len(set(paths)) == len(paths), f"a path is there twice: {paths}"
    assert len(paths) == nodes, f"{len(paths)} nodes, not {nodes}"
    best = sorted(right.values(), reverse=True)[:nodes]
    got = sum(right[path] for path in paths)
    if got > sum(best) - 1e-9:
        return
    missing = max((p for p in right if p not in paths), key=right.get)
    why = (
        "the first siblings of a node may be worth less than what hangs on another node"
        if len(missing) > 1
        else "a node's next sibling waits, too, not only its children"
    )
    raise AssertionError(
        f"the paths {sorted(paths)} are worth {got:.3f} together, and {sum(best):.3f} is possible: "
        f"{missing}, worth {right[missing]:.3f}, is missing; a path's worth is the product of all "
        f"q along it; {why}"
    )


@mpl.rc_context(STYLE)
def one_list(
    texts: Sequence[tuple[str, Sequence[tuple[str, float, int | None]]]], title: str
) -> Picture:
    """Chains of several texts, and in which order their guesses were made.

    texts: (the text's end, its guesses as (token, its chance to be kept, its turn)); a turn of None
    is a guess that waits: its q is known, its token is not drawn.
    """
    longest = max(len(guesses) for _, guesses in texts)
    shows = "Each guess has its chance and its turn: the likeliest of all texts is drawn first."
    axes = sheet(title, max(6.5, 1.8 + 0.92 * longest), 0.5 + 0.75 * len(texts), shows)
    for row, (end, guesses) in enumerate(texts):
        y = 3.4 + 7.4 * row
        words(axes, 8.5, y + 1.7, f"… {shown(end)}", ha="center", fontweight="bold")
        for i, (token, chance, turn) in enumerate(guesses):
            x = 17 + 9.2 * i
            arrow(axes, (x - 2.4, y + 1.7), (x - 0.2, y + 1.7), GREY)
            kind = "gone" if turn is None else "draft"
            box(axes, x, y, 6.4, 3.4, "?" if turn is None else shown(token), kind)
            said = "waits" if turn is None else f"turn {turn}"
            words(axes, x + 3.2, y - 1.0, f"{chance:.2f}", fontsize=9)
            words(axes, x + 3.2, y + 4.5, said, fontsize=9, color=GREY)
    return axes.figure


def average_tokens(tree: Tree, p: torch.Tensor) -> float:
    """The tokens that accept_tree brings for a tree and p (N+1, V), on average over its coins."""
    rows, q, children = p.numpy(), tree.q.numpy(), tree.children

    def below(node: int, reached: float) -> float:
        total, left = 0.0, rows[node + 1]
        for child in children[node + 1]:
            token = tree.tokens[child]
            here = reached * min(1.0, left[token] / q[child, token])
            total += here + below(child, here)
            reached, left = reached - here, residual(left, q[child])
        return total

    return 1 + below(-1, 1.0)


@torch.inference_mode()
def at_places(
    target, draft: Proposer, places: Sequence[Sequence[int]], T: float = 1
) -> torch.Tensor:
    """average_tokens after each of these contexts, at temperature T."""
    found = []
    for i, context in enumerate(places):
        text = ReadText(target, context, 40)
        tree = TREE.draft(draft, text, text.room, Sampling(T), RandomSource(i))
        p, _, _ = TREE.verify(target, text, tree, Sampling(T), draft.layers)
        found.append(average_tokens(tree, p))
    return torch.tensor(found)


def written(target, draft, starts: Sequence[Sequence[int]], T: float) -> list[list[int]]:
    """The starts with 100 tokens more of the target's own, by guesses judged as a block."""
    steps, texts = replace(CHAIN, accept=RULES["block"]), []
    for seed, start in enumerate(starts):
        asked = target, draft, start, 100, 31, Sampling(T), RandomSource(seed)
        texts.append([*start, *speculative_generate(*asked, steps=steps).tokens])
    return texts


def equal_rows(
    found: Mapping[str, Sequence[tuple[float, float]]],
    sizes: Sequence[int],
    title: str,
    guess: float | None = None,
) -> Picture:
    """{way: [(tokens a pass, error) of each size]} as bars, and printed; NaN: there is none."""
    means = {name: [m for m, _ in row] for name, row in found.items()}
    bands = {name: [(m - e, m + e) for m, e in row] for name, row in found.items()}
    for name, row in found.items():
        said = (f"{m:5.2f} ± {e:.2f}" if m == m else f"{'–':>6}      " for m, e in row)
        print(f"{name:17}", "  ".join(said))
    labels = [f"{n} rows" for n in sizes]
    return figures.bars(labels, means, title, "", "tokens a pass", guess, spread=bands)


def caught(title: str) -> str:
    """What the check of a bug of the gallery says of it; title: how the bug's begins."""
    bug = next(bug for bug in BUGS if bug.title.startswith(title))
    try:
        (SLOW_CHECKS | SERVING_CHECKS)[bug.caught_by](mutant(bug))
    except AssertionError as error:
        return f"{bug.title}: {error}"
    return f"{bug.title}: nobody sees it"
