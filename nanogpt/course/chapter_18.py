"""Chapter 18: the judge of *Your turn*, and the chapter's own pictures.

The turn: typical acceptance.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.patheffects import withStroke
from torch import Tensor

from nanogpt.proof.exact import Branch, enumerate_outcomes, total_variation
from nanogpt.show.diagrams import KINDS, box, sheet, words
from nanogpt.show.figures import ACCEPTED, GREY, RESAMPLED, SERIES, STYLE, TARGET, Picture
from nanogpt.trees.lossy import longest_path
from nanogpt.trees.tree import Tree

EVEN, SURE, MEDUSA = [0.25] * 4, [0.0, 1.0, 0.0, 0.0], (0.09, 0.3)  # epsilon, delta
LEANS, TAIL = [0.6, 0.2, 0.15, 0.05], [0.05, 0.7, 0.2, 0.05]
FLAT, HALF, MOST = [0.1, 0.3, 0.3, 0.3], [0.5, 0.4, 0.05, 0.05], [0.9, 0.05, 0.03, 0.02]

CASES = {  # name: (tokens, parents, p (N+1, 4), epsilon, delta)
    "no guess at all": ([], [], [LEANS], *MEDUSA),
    "one unlikely guess": ([3], [-1], [TAIL, EVEN], *MEDUSA),
    "a chain whose second guess is unlikely": ([1, 3], [-1, 0], [TAIL, LEANS, EVEN], *MEDUSA),
    "a likely guess after an unlikely one": ([3, 0], [-1, 0], [TAIL, LEANS, EVEN], *MEDUSA),
    "a p of exactly epsilon": ([2], [-1], [EVEN, LEANS], 0.25, 4.0),
    "a larger epsilon": ([2], [-1], [LEANS, TAIL], 2.0, 0.05),
    "a large delta": ([2], [-1], [LEANS, TAIL], 0.1, 0.9),
    "a large epsilon and delta": ([2], [-1], [LEANS, TAIL], 0.5, 0.5),
    "a p with zeros in it": ([1, 2], [-1, 0], [SURE, LEANS, TAIL], *MEDUSA),
    "a p with one zero in it": ([2], [-1], [[0.5, 0.45, 0.05, 0.0], EVEN], 0.09, 0.1),
    "the longer path through the third child": (
        [0, 1, 2, 0],
        [-1, -1, -1, 2],
        [TAIL, EVEN, SURE, LEANS, EVEN],
        *MEDUSA,
    ),
    "a chain of five, and a likelier guess after it": (
        [2, 0, 1, 0, 1, 1],
        [-1, 0, 1, 2, 3, -1],
        [TAIL, LEANS, TAIL, LEANS, TAIL, EVEN, EVEN],
        *MEDUSA,
    ),
    "a row that wavers after a sure one": ([1, 0], [-1, 0], [SURE, FLAT, TAIL], 2.0, 0.3),
    "a surer row after one that wavers": ([1, 1], [-1, 0], [FLAT, LEANS, SURE], 2.0, 0.7),
    "two paths of two, the one with the less likely end": (  # .5 · .4 = .20, .2 · .9 = .18
        [2, 0, 0, 1],
        [-1, -1, 0, 1],
        [[0.5, 0.1, 0.2, 0.2], MOST, HALF, EVEN, LEANS],
        *MEDUSA,
    ),
    "two paths of two, the one with the less likely beginning": (  # .3 · .65 = .195, .45 · .42
        [0, 1, 0, 1],
        [-1, -1, 0, 1],
        [[0.3, 0.45, 0.2, 0.05], [0.65, 0.2, 0.1, 0.05], [0.4, 0.42, 0.1, 0.08], EVEN, LEANS],
        *MEDUSA,
    ),
}

PLACES = {  # of the labels of a rule's points, beside their marker: across, up, aligned
    "o": (-13, -12, "right"),
    "X": (6, -12, "left"),
    "s": (2, 6, "left"),
}

BARS = {  # what is wrong, if a rule does in all cases what this bar does
    "the smaller of the two bars counts, not the larger": lambda e, d, H: np.maximum(
        e, d * np.exp(-H)
    ),
    "a surer p needs a higher bar: it is delta * exp(-H), and the entropy H = -Σ p ln p is never "
    "negative": lambda e, d, H: np.minimum(e, d * np.exp(H)),
    "the bar has to come down with the entropy; where is delta * exp(-H)?": lambda e, d, H: (
        e + 0 * H
    ),
    "the bar is never above epsilon; where is the smaller of the two?": lambda e, d, H: (
        d * np.exp(-H)
    ),
    "is this entropy in nats? exp(-H) goes with the natural logarithm": lambda e, d, H: np.minimum(
        e, d * np.exp(-H / np.log(2))
    ),
    "epsilon and delta are swapped": lambda e, d, H: np.minimum(d, e * np.exp(-H)),
}


def judge(mine: Callable) -> None:
    """Judges my_accept_typical(epsilon, delta): a rule(tree, target_probs, rng) -> (path, token).

    It is walked down every branch on small trees, and compared with accept_typical.
    Raises AssertionError where another path stands, another token follows or from another p, where
    q or a coin decides, or where p is changed.
    """
    rules = {name: made_by(mine, epsilon, delta) for name, (*_, epsilon, delta) in CASES.items()}
    found = {}  # of each case: the outcomes
    for name, (tokens, parents, p, _, _) in CASES.items():
        rule, tree, p = rules[name], tree_of(tokens, parents), torch.tensor(p, dtype=torch.float64)
        made = enumerate_outcomes(lambda rng: outcome(rule, tree, p, rng, name))  # noqa: B023
        paths = {path for path, _ in made}
        assert len(paths) == 1, (
            f"{name}: the same guesses stand in one run and fall in the next; no coin is tossed "
            "for a guess"
        )
        found[name] = paths.pop(), {token: chance for (_, token), chance in made.items()}
    for name, (path, _) in found.items():
        right = path_of(*CASES[name])
        if path != right:
            said = f"{name}: the path is {list(path)}, not {list(right)}"
            raise AssertionError(f"{said}; {slip_of_path(name, path, right, found)}")
    for name, (path, chances) in found.items():
        slip_of_token(name, path, chances)
        tokens, parents, p, *bars = CASES[name]
        if tuple(bars) == MEDUSA:  # one rule, from tree to tree
            tree, p = tree_of(tokens, parents), torch.tensor(p, dtype=torch.float64)
            again, _ = outcome(rules["one unlikely guess"], tree, p, Branch(()), name)
            assert again == path, (
                f"{name}: after other trees, the rule's path is {list(again)}, not "
                f"{list(path)}; what it remembers of a tree belongs inside the rule"
            )


def made_by(mine: Callable, epsilon: float, delta: float) -> Callable:
    """The reader's rule. Raises AssertionError if it is no function."""
    rule = mine(epsilon, delta)
    assert callable(rule), (
        f"my_accept_typical({epsilon}, {delta}) returned {rule!r}; it returns the rule, a "
        "function of tree, target_probs and rng"
    )
    return rule


def tree_of(tokens: list[int], parents: list[int]) -> Tree:
    """The tree of a case, with a q that says nothing of p."""
    q = torch.tensor([SURE, LEANS, EVEN, TAIL, EVEN, EVEN][: len(tokens)], dtype=torch.float64)
    return Tree(tokens, parents, q.reshape(-1, 4))


def outcome(rule: Callable, tree: Tree, p: Tensor, rng, case: str) -> tuple[tuple[int, ...], int]:
    """(path, token) as the rule returns them. Raises AssertionError if they are no such pair."""
    given = p.clone()
    returned = rule(tree, given, rng)
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    assert pair, f"{case}: the rule returned {returned!r}; it returns a pair, (path, token)"
    try:
        path, token = tuple(map(operator.index, returned[0])), operator.index(returned[1])
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(
            f"{case}: the rule returned {returned!r}; path is a list of nodes, and token a whole "
            "number, drawn from p even where no guess stands"
        ) from None
    assert torch.equal(given, p), f"{case}: your rule changed target_probs; work on a copy"
    return path, token


def path_of(tokens, parents, p, epsilon, delta, bar=None, slip="") -> tuple[int, ...]:
    """The path of a case by another bar, or with another slip."""
    p, tree = np.array(p), tree_of(tokens, parents)
    H = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    if slip in ("first", "mean"):
        H = np.full(len(p), H[0] if slip == "first" else H.mean())
    if slip == "last made":
        *_, epsilon, delta = list(CASES.values())[-1]
    bar = bar(epsilon, delta, H) if bar else np.minimum(epsilon, delta * np.exp(-H))
    rows = [parent + 1 for parent in parents]
    own = list(range(1, len(rows) + 1))
    chances = p[own if slip in ("row", "rows") else rows, tokens]
    if slip == "q":
        chances = tree.q.numpy()[range(len(rows)), tokens]
    bar = bar[own if slip == "rows" else rows]
    passed = chances >= bar if slip == "on" else chances > bar
    return tuple(longest_path(tree, passed, p[rows, tokens] if slip == "q" else chances))


def slip_of_path(name: str, path: tuple, right: tuple, found: dict) -> str:
    """What is wrong with this path, in a sentence."""
    tokens, parents = CASES[name][:2]
    if path and path == tuple(tokens[node] for node in right):
        return "a path holds the nodes' numbers, not their tokens"
    if any(not 0 <= node < len(tokens) for node in path):
        return f"nodes are counted from 0, and this tree has {len(tokens)}"
    if any(parents[node] not in (-1, *path) for node in path):
        return "a node stands only where its parent does; a path begins at the root"
    if any(parents[node] != before for node, before in zip(path, (-1, *path), strict=False)):
        return "a path goes down, from each node to a child of it"
    slips = {
        "a guess stands where its p is above the bar, not on it": {"slip": "on"},
        "the bar is for the target's p of a guess, not for the draft's q": {"slip": "q"},
        "p of a node stands in its parent's row, parents[node] + 1": {"slip": "row"},
        "p and entropy of a node stand in its parent's row, parents[node] + 1": {"slip": "rows"},
        "the entropy is that of row 0 for every node; each row of p has an entropy and a bar of "
        "its own": {"slip": "first"},
        "the entropy is the mean of all rows; each row of p has an entropy and a bar of its own": {
            "slip": "mean"
        },
        "a rule keeps the epsilon and delta that it was made with, whatever rule is made after "
        "it": {"slip": "last made"},
    }
    slips |= {fault: {"bar": bar} for fault, bar in BARS.items()}
    for fault, change in slips.items():
        if all(path_of(*CASES[case], **change) == was for case, (was, _) in found.items()):
            return fault
    if "zero" in name:
        return "0 · ln 0 is NaN in floats, and counts 0"
    if len(path) < len(right):
        return "the longest of all paths that stand counts; look at every child, however deep"
    if len(path) == len(right):
        return "of equally long paths, the likeliest counts: the largest product of their p"
    return "a guess stands only where p > min(epsilon, delta * exp(-H))"


def slip_of_token(name: str, path: tuple, chances: dict[int, float]) -> None:
    """Raises AssertionError unless the token after this path is drawn from the right p."""
    p = CASES[name][2]
    row = path[-1] + 1 if path else 0
    if total_variation(chances, dict(enumerate(p[row]))) < 1e-9:
        return
    said = f"{name}: after the path {list(path)}, the token"
    assert len(chances) > 1, (
        f"{said} is always {next(iter(chances))}; draw it with rng from row {row} of target_probs"
    )
    for other in range(len(p)):
        assert total_variation(chances, dict(enumerate(p[other]))) > 1e-9, (
            f"{said} is drawn from row {other} of target_probs; the row after the last node that "
            f"stands is {row}"
        )
    came = ", ".join(f"{token}: {chance:.2f}" for token, chance in sorted(chances.items()))
    raise AssertionError(
        f"{said} comes as {came}; draw it from row {row} of target_probs as it is, with nothing "
        "taken out"
    )


@mpl.rc_context(STYLE)
def what_a_rule_makes(
    rules: Mapping[str, Mapping[tuple[int, tuple[int, ...]], float]],
    p: Sequence[float],
    tokens: Sequence[str],
    title: str,
) -> Picture:
    """Where each rule's next token comes from, beside p: a panel a rule, a column a token.

    rules: {name: {(how many guesses stood, the text): probability}}; p (V); of the text, the first
    token counts. A column is what stood (✓) and what was drawn instead (↻); where it does not end
    at the line of p, the text is off.
    """
    rules = {
        name: {(stood > 0, text[0]): chance for (stood, text), chance in found.items()}
        for name, found in rules.items()
    }
    made = [chance for ways in rules.values() for chance in ways.values()]
    shows = "For each rule, columns of what stood and what was drawn instead, beside p as a line."
    axes, foot, tall = sheet(title, 9, 3.6, shows), 25.5, 17.0 / max([*p, *made])
    wide = 88 / len(rules)
    column = (wide - 3) / len(tokens)
    for i, (name, ways) in enumerate(rules.items()):
        left = 1 + i * wide
        for token, (said, chance) in enumerate(zip(tokens, p, strict=True)):
            x, y = left + 1 + token * column, foot
            for stood, kind, mark in ((True, "accepted", "✓"), (False, "resampled", "↻")):
                h = tall * ways.get((stood, token), 0.0)
                if h > 0.2:
                    fill, edge, _, _ = KINDS[kind]
                    hatch = "" if stood else "//"
                    shape = mpl.patches.Rectangle((x, y - h), 0.7 * column, h, hatch=hatch)
                    shape.set(facecolor=fill, edgecolor=edge)
                    axes.add_patch(shape)
                if h > 2.2:
                    style = {"ha": "center", "va": "center", "fontsize": 9.5}
                    axes.text(x + 0.35 * column, y - h / 2, mark, **style)
                y -= h
            level = [foot - tall * chance] * 2
            axes.plot([x - 0.3, x + 0.7 * column + 0.3], level, color=TARGET, linewidth=2.6)
            words(axes, x + 0.35 * column, foot + 1.4, said)
        stood = sum(chance for (kept, _), chance in ways.items() if kept)
        made = [ways.get((True, t), 0.0) + ways.get((False, t), 0.0) for t in range(len(tokens))]
        off = sum(abs(a - b) for a, b in zip(made, p, strict=True)) / 2
        words(axes, left + wide / 2 - 0.5, 4.4, name, fontweight="bold")
        words(axes, left + wide / 2 - 0.5, 29.6, f"stands {stood:.2f}\noff {off:.2f}", fontsize=9.5)
    axes.plot([1, 88], [foot] * 2, color=GREY, linewidth=0.8)
    words(axes, 1, 34.2, "✓ the guess stands", ha="left", color=ACCEPTED)
    words(axes, 27, 34.2, "↻ rejected: drawn instead", ha="left", color=RESAMPLED)
    words(axes, 57, 34.2, "▬ p, where each column should end", ha="left", color=TARGET)
    return axes.figure


@mpl.rc_context(STYLE)
def witnesses(rounds: Mapping[str, Sequence[int]], window: int, title: str) -> Picture:
    """FLy's rounds, one below the other: guesses that the exact rule keeps (1) or rejects (0).

    A rejected guess turns to ✓ if all of the next `window` are kept: a frame goes around those
    witnesses. What comes after a rejection is thrown away.
    """
    shows = f"Frames mark the witnesses. Rows: {'; '.join(rounds)}."
    axes, high = sheet(title, 9, 1.0 + 0.75 * len(rounds), shows), 7.5
    frame = {"fill": False, "edgecolor": GREY, "linestyle": "--", "linewidth": 1.4}
    for place in range(max(map(len, rounds.values()))):
        words(axes, 5.5 + 8 * place, 4.4, f"guess {place + 1}", fontsize=9, color=GREY)
    for i, (name, stands) in enumerate(rounds.items()):
        top, over = 6.4 + high * i, False
        words(axes, 52, top + 2.3, name, ha="left")
        for place, stood in enumerate(stands):
            later = stands[place + 1 : place + 1 + window]
            forgiven = not (over or stood) and len(later) == window and all(later)
            kind = "gone" if over else "accepted" if stood or forgiven else "rejected"
            said = "✗ → ✓" if forgiven else "✓" if stood else "✗"
            box(axes, 2 + 8 * place, top, 7, 4.6, said, kind)
            if not (over or stood):
                corner, wide = (9.4 + 8 * place, top - 0.7), 8 * len(later) - 0.2
                axes.add_patch(mpl.patches.Rectangle(corner, wide, 6, **frame))
            over = over or not (stood or forgiven)
    words(axes, 2, 6.6 + high * len(rounds), "- -  its witnesses", ha="left", color=GREY)
    return axes.figure


@mpl.rc_context(STYLE)
def drawn_and_fixed(
    groups: Mapping[str, Mapping[str, Sequence[tuple]]],
    own: Mapping[str, str],
    title: str,
    xlabel: str,
    ylabel: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    band: tuple[str, float, float] | None = None,
) -> Picture:
    """What is gained (across) and given up (up) with drawn guesses, left, and with fixed, right.

    groups: {rule: {"drawn" or "fixed": [(x, y, label), …]}}, or (x, y, label, reach) for a bar from
    y - reach to y + reach. own: {rule: its engine's kinds}, all rules, in the order of their
    colours; points of its own kind are filled. lines: {kind: (xs, ys)}, the least that a rule pays;
    band: its name, from, to. The title is the takeaway.
    """
    figure, handles = Picture(figsize=(9, 5), layout="constrained"), {}
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, kind in zip(both, ("drawn", "fixed"), strict=True):
        axes.set_title(f"{kind} guesses", fontweight="normal")
        axes.set(xlabel=xlabel, ylabel=ylabel if kind == "drawn" else "")
        if band:
            handles[band[0]] = axes.axhspan(*band[1:], color=TARGET, alpha=0.15, linewidth=0)
        if lines:
            (line,) = axes.plot(*lines[kind], color=GREY, linestyle="--")
            handles["the least that a rule pays"] = line
        for name, kinds in groups.items():
            look = SERIES[list(own).index(name)]
            points_of_a_rule(axes, look, kinds.get(kind, []), kind in own[name])
            handles[name] = mpl.lines.Line2D([], [], **drawn_as(look))
        axes.margins(0.12)
    figure.shows = f"Drawn guesses on the left, fixed ones on the right: {'; '.join(groups)}."
    for axes in both:
        label_points(axes)
    handles["filled: its own engine's guesses"] = mpl.lines.Line2D([], [], marker="o", color=GREY)
    handles["filled: its own engine's guesses"].set(linestyle="")
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)
    return figure


def drawn_as(look: tuple) -> dict:
    """Colour, dash and marker of one of SERIES."""
    colour, dash, marker, _ = look
    return {"color": colour, "linestyle": dash, "linewidth": 0.9, "marker": marker}


def points_of_a_rule(axes, look: tuple, points: Sequence[tuple], own: bool) -> None:
    """The points of one rule, connected, and filled where they are its own engine's."""
    if not points:
        return
    style = drawn_as(look)
    (line,) = axes.plot(*zip(*(one[:2] for one in points), strict=True), **style)
    line.set_markerfacecolor(style["color"] if own else "white")
    line.said = [str(one[2]) for one in points]
    for x, y, _, *reach in points:
        if reach:
            axes.errorbar(x, y, reach[0], color=style["color"], capsize=2, linewidth=0.9)


def label_points(axes) -> None:
    """What each point stands for, beside it; one label for several that are close together."""
    wide, high = np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())
    for line in (line for line in axes.lines if hasattr(line, "said")):
        runs = []  # of points that are close to the first of them
        for x, y, said in zip(*line.get_data(), line.said, strict=True):
            if runs and max(abs(x - runs[-1][0]) / wide, abs(y - runs[-1][1]) / high) < 0.05:
                runs[-1][2:] = [runs[-1][2], said]
            else:
                runs.append([x, y, said])
        style = {"fontsize": 8.5, "color": line.get_color(), "zorder": 4}
        style["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
        for x, y, *said in runs:
            own = PLACES.get(line.get_marker(), (7, -4, "left"))
            *where, style["ha"] = own if len(said) == 1 else (-7, -3, "right")
            style |= {"textcoords": "offset points", "xytext": where}
            axes.annotate(" … ".join(said), (x, y), **style)
