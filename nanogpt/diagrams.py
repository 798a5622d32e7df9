"""Pictures of mechanisms: what flows where, drawn from a chapter's own tokens and numbers.

The kit is a sheet of paper measured in tenths of an inch, boxes, arrows and words on it; colours
and marks are those of `nanogpt.figures`. y runs downward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from nanogpt.figures import (
    ACCEPTED,
    BONUS,
    DRAFT,
    GREY,
    MARKS,
    REJECTED,
    RESAMPLED,
    SERIES,
    STYLE,
    TARGET,
    Mark,
    Picture,
    picture,
    shown,
)

KINDS = {  # of a box: fill, edge, dash of the edge, hatch
    "plain": ("white", GREY, "-", ""),
    "target": ("#D6E6F2", TARGET, "-", ""),
    "draft": ("#FBEBCB", DRAFT, "-", "//"),
    "cached": ("#EAF1F7", TARGET, "-", ""),
    "accepted": ("#CFEBE1", ACCEPTED, "-", ""),
    "rejected": ("#FBE0D0", REJECTED, "--", ""),
    "resampled": ("#F6E3ED", RESAMPLED, "-", ""),
    "bonus": ("#DDF0FB", BONUS, "-", ""),
    "gone": ("white", GREY, ":", ""),
}
ROUND = 0.25  # of a box's corners


def sheet(title: str, width: float, height: float) -> Axes:
    """Empty paper of 10 · width by 10 · height units, (0, 0) at the top left; inches at 100 dpi.

    A letter is about 0.7 units wide and a line 1.7 units high.
    """
    axes = picture("", "", "", width, height)
    axes.figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    axes.set(xlim=(0, 10 * width), ylim=(10 * height, 0))
    axes.set_axis_off()
    return axes


def box(axes: Axes, x: float, y: float, w: float, h: float, text: str = "", kind="plain") -> None:
    """A box of size (w, h) with its top left corner at (x, y), its text in the middle."""
    fill, edge, dash, hatch = KINDS[kind]
    shape = mpl.patches.FancyBboxPatch(
        (x, y), w, h, boxstyle=f"round,pad=0,rounding_size={ROUND}", facecolor=fill, edgecolor=edge
    )
    shape.set(linewidth=1.4, linestyle=dash)
    axes.add_patch(shape)
    if hatch:  # a hatched stripe at the left edge, so that the text stays readable
        stripe = mpl.patches.Rectangle((x, y), 0.9, h, facecolor=fill, edgecolor=edge, hatch=hatch)
        axes.add_patch(stripe)
    words(axes, x + w / 2 + (0.45 if hatch else 0), y + h / 2, text)


def words(axes: Axes, x: float, y: float, text: str, **style) -> None:
    """Text around (x, y), by default centred; it goes into the picture's description, too."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 10, **style})
    if text:
        axes.figure.rows.append(text.replace("\n", " "))


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = GREY,
    dash="-",
    bend: float = 0.0,
) -> None:
    """An arrow from start to end; `bend` curves it."""
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.4, "linestyle": dash}
    curve = f"arc3,rad={bend}"
    axes.add_patch(
        mpl.patches.FancyArrowPatch(
            start, end, color=colour, connectionstyle=curve, shrinkA=0, shrinkB=0, **style
        )
    )


@mpl.rc_context(STYLE)
def rewind(cases: Mapping[str, tuple[Sequence[str], Sequence[str], int]], title: str) -> Picture:
    """A draft's cache against the new context, two strips a case: {name: (cached, context, kept)}.

    The first `kept` tokens of both are the same; the rest of the cache is dropped (✗, struck
    through), the rest of the context is read (▸). Of a long common part, the last nine are shown.
    """
    axes, cell, left = sheet(title, 8, 1.75 * max(1, len(cases))), 3.6, 17.0
    for n, (name, (cached, context, kept)) in enumerate(cases.items()):
        y, skip = 17.5 * n + 1.5, max(0, kept - 9)
        common = ["…"] * (skip > 0) + list(cached[skip:kept])
        split = left + cell * len(common)
        words(axes, 0.5, y + 6.7, name, ha="left", fontweight="bold")
        for top, label, rest, kind, mark in (
            (y + 0.6, "in the cache", cached[kept:], "rejected", "✗"),
            (y + 9.6, "new context", context[kept:], "draft", "▸"),
        ):
            words(axes, left - 0.8, top + 1.6, label, ha="right")
            for i, token in enumerate(common):
                box(axes, left + cell * i, top, cell, 3.2, token, "cached")
            for i, token in enumerate(rest):
                box(axes, split + cell * i, top, cell, 3.2, mark + token, kind)
            end, done = split + cell * len(rest), "dropped" if kind == "rejected" else "read"
            said = f"{mark} {len(rest)} {done}" if rest else f"nothing {done}"
            words(axes, end + 1, top + 1.6, said, ha="left", fontweight="bold")
        struck = [split + 0.4, split + cell * (len(cached) - kept) - 0.4]
        if kept < len(cached):
            axes.plot(struck, [y + 2.2] * 2, color=REJECTED, linewidth=1.4)
        axes.vlines([left, split], y + 3.8, y + 9.6, color=GREY, linestyle=":")
        words(axes, max(split + left, 2 * left + 18) / 2, y + 6.7, f"the same: {kept} stay")
    return axes.figure


@mpl.rc_context(STYLE)
def checks_of_a_round(notes: Mapping[str, str], title: str) -> Picture:
    """A decoder's round, and each check of it below what it looks at; notes: {check: its words}."""
    axes = sheet(title, 9, 4.4)
    flow = [
        (1, "draft\nq, K guesses", "draft"),
        (24.5, "target, one pass\np for each", "target"),
        (48, "accept or reject", "plain"),
        (71.5, "trim the cache", "cached"),
    ]
    for x, text, kind in flow:
        box(axes, x, 6, 17.5, 5.5, text, kind)
    for x, *_ in flow[1:]:
        arrow(axes, (x - 6, 8.7), (x, 8.7))
    arrow(axes, (80, 6), (10, 6), bend=0.09)
    words(axes, 45, 2.0, "the next round", fontsize=9)
    box(axes, 1, 26.5, 88, 4, "the text that comes out")
    arrow(axes, (64, 11.5), (64, 26.5))
    words(axes, 67.3, 19, "tokens", fontsize=9)
    inside = {"draft": 9.7, "acceptance": 54, "cache": 80.2}
    outside = [name for name in notes if name not in inside]
    places = {name: (at, 16.5, 11.5) for name, at in inside.items()}
    step = 88 / max(1, len(outside))
    places |= {name: (1 + (i + 0.5) * step, 35, 30.5) for i, name in enumerate(outside)}
    for name, note in notes.items():
        x, y, looks_at = places[name]
        axes.plot([x, x], [y, looks_at], color=GREY, linestyle=":")
        box(axes, x - 8.2, y, 16.4, 7.5, "", "gone")
        words(axes, x, y + 1.6, f"{name}?", fontweight="bold")
        words(axes, x, y + 4.9, note, fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def lanes(K: int, draft_cost: float, verify_cost: float, rest: float, emitted: int) -> Picture:
    """One round on a time axis, draft and target in two lanes, above plain passes, one a token.

    Costs in plain passes; emitted: the tokens of the round. The title says how it went.
    """
    drafted = K * draft_cost
    end = drafted + verify_cost + rest
    axes = sheet(f"A round: {emitted} tokens in the time of {end:.2f} plain passes", 8.5, 3.1)
    unit = 64 / max(end, emitted)  # of the sheet, for one plain pass
    for y, name in ((4.5, "draft"), (10, f"target, {K + 1} tokens"), (19.5, "target alone")):
        words(axes, 1, y + 2, name, ha="left")
    steps = K if draft_cost * unit > 1.5 else 1  # too narrow to tell apart: one box for all
    fill, edge, _, hatch = KINDS["draft"]
    for i in range(steps):  # hatched all over: a stripe would look like a part of the cost
        at, wide = (17 + i * drafted / steps * unit, 4.5), drafted / steps * unit
        guess = mpl.patches.Rectangle(at, wide, 4, facecolor=fill, edgecolor=edge, linewidth=1.4)
        axes.add_patch(guess).set_hatch(hatch[0])
    words(axes, 17, 2.7, f"{K} guesses, c = {draft_cost:g} each", ha="left", fontsize=9)
    checked = 17 + (drafted + verify_cost) * unit
    box(axes, 17 + drafted * unit, 10, verify_cost * unit, 4, f"v = {verify_cost:g}", "target")
    if rest:
        box(axes, checked, 10, rest * unit, 4)
        words(axes, checked, 8.6, f"r = {rest:g}", ha="left", fontsize=9)
    for i in range(emitted):
        box(axes, 17 + i * unit, 19.5, unit, 4, "1", "target")
    axes.plot([17 + end * unit] * 2, [10, 17], color=GREY, linestyle=":")
    words(axes, 16.2 + end * unit, 16, f"{emitted} tokens are out", ha="right", fontsize=9)
    axes.plot([17 + emitted * unit] * 2, [19.5, 26.5], color=GREY, linestyle=":")
    words(axes, 16.2 + emitted * unit, 25.5, f"{emitted} tokens are out", ha="right", fontsize=9)
    arrow(axes, (17, 28.8), (83, 28.8))
    words(axes, 1, 28.8, "time", ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def cost_of_a_pass(
    tokens: Sequence[int], arithmetic: Sequence[float], reading: Mapping[str, float], title: str
) -> Picture:
    """Seconds of a pass against the tokens in it, by the roofline: the slower of two lines.

    arithmetic: its milliseconds at each of `tokens`; reading: {which weights: milliseconds}, the
    slowest first. A ★ marks where a pass stops waiting for memory.
    """
    axes = picture(title, "tokens in the pass", "milliseconds of a pass", 8, 4.4)
    slowest = max(reading.values())
    idle = {"color": "#EEEEEE", "hatch": "..", "edgecolor": "#BBBBBB", "linewidth": 0}
    axes.fill_between(tokens, arithmetic, slowest, where=np.less(arithmetic, slowest), **idle)
    axes.plot(tokens, arithmetic, color=GREY, linestyle=":", label="arithmetic alone")
    per_token = (arithmetic[-1] - arithmetic[0]) / (tokens[-1] - tokens[0])
    for (name, took), (colour, dash, _, _) in zip(reading.items(), SERIES, strict=False):
        cost = np.maximum(arithmetic, took)
        axes.plot(tokens, cost, color=colour, linestyle=dash, linewidth=2.2, label=name)
        bend = took / per_token
        axes.plot(bend, took, marker="*", color=colour, markersize=13)
        note = f"{int(bend + 1e-9)} tokens"
        words(axes, bend + 0.02 * tokens[-1], took, note, ha="left", va="top", fontsize=9)
    middle = 0.3 * slowest / per_token
    words(axes, middle, 1.05 * slowest, "waits for memory", va="bottom", fontsize=9)
    words(axes, middle, 0.7 * slowest, "idle arithmetic, free for guesses", fontsize=9)
    axes.set_ylim(0)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.97))
    return axes.figure


@mpl.rc_context(STYLE)
def transformer_block(text: str, channels: int, n_head: int) -> Picture:
    """A block at work on `text`: two branches that add to its stream, and what its heads return.

    Each head hands out a key and a value per token, beside the block's output: a small cache.
    """
    axes = sheet("A block adds to its stream twice, and hands out keys and values", 8.8, 4.4)
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


@mpl.rc_context(STYLE)
def buffer(rows: Sequence[tuple[str, Sequence[float], int, int]], title: str) -> Picture:
    """A preallocated cache over time, a row each: (label, slots, valid entries, just written).

    Valid slots have a solid edge, new ones a ▸; whatever else lies in the buffer is dotted.
    """
    axes = sheet(title, 8, 0.8 + 0.8 * len(rows))
    for i, (label, slots, length, written) in enumerate(rows):
        y = 3 + 8 * i
        words(axes, 1, y + 2, label, ha="left")
        for j, entry in enumerate(slots):
            kind = "gone" if j >= length else "target" if j >= length - written else "cached"
            mark = "▸ " if kind == "target" else ""
            box(axes, 27 + 7 * j, y, 6.6, 4, f"{mark}{entry:g}", kind)
        words(axes, 26.1 + 7 * length, y + 5.6, f"▲ length {length}", ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def fair_race(orders: Mapping[str, Sequence[Sequence[tuple[str, float]]]], title: str) -> Picture:
    """Runs of two decoders on a time axis, a lane for each order: groups of ("old"/"new", seconds).

    Under a group of both stands old / new, under one of a single decoder its median; at the end of
    each lane, the speed-up that it reports.
    """
    axes, kinds = sheet(title, 8, 3.1), {"old": "target", "new": "draft"}
    unit = 60 / max(sum(s for group in lane for _, s in group) for lane in orders.values())
    for y, (order, groups) in zip((5.5, 18.5), orders.items(), strict=True):
        words(axes, 1, y - 2.2, order, ha="left", fontweight="bold")
        x, ratios, medians = 1.0, [], {}
        for group in groups:
            left, mine = x, {}
            for who, seconds in group:
                box(axes, x, y, unit * seconds, 4, who, kinds[who])
                mine.setdefault(who, []).append(seconds)
                x += unit * seconds
            axes.plot([left, left, x, x], [y + 4.5, y + 5.1, y + 5.1, y + 4.5], color=GREY)
            medians |= {who: median(seconds) for who, seconds in mine.items()}
            if len(mine) == 2:
                ratios.append(medians["old"] / medians["new"])
            note = f"{ratios[-1]:.2f}" if len(mine) == 2 else f"median {medians[who]:.2f} s"
            words(axes, (left + x) / 2, y + 6.6, note, fontsize=9)
            x += 1.2
        reported = median(ratios) if ratios else medians["old"] / medians["new"]
        words(axes, 73, y + 2, f"reports\n{reported:.2f}", fontweight="bold")
    arrow(axes, (1, 28.5), (66, 28.5))
    words(axes, 68.5, 28.5, "time", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def cached_step(text: str, weights: Sequence[float]) -> Picture:
    """One step of one head for the last token of `text`: computed, read from the cache, appended.

    weights: with what weight the new token reads each position's value, its own last.
    """
    axes = sheet("One cached step: a column is computed, the others are read", 8.8, 4.3)
    P, w = len(text) - 1, 69 / len(text)
    new = 15 + P * w  # the left edge of the new token's column
    sub = [str(i).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")) for i in range(P + 1)]
    for y, name in ((6, "token"), (13, "query"), (19, "keys"), (24.5, "weights"), (30, "values")):
        words(axes, 1, y, name, ha="left")
    words(axes, 1, 26.4, "(largest in bold)", ha="left", fontsize=8)
    words(axes, 1, 37, "output", ha="left")
    words(axes, (15 + new) / 2, 2, "old tokens: from the cache, nothing is computed", fontsize=9)
    words(axes, new + w / 2, 2, "new token", fontsize=9)
    for i, letter in enumerate(shown(text)):
        x, kind, plus = 15 + i * w, "target" if i == P else "cached", "+" if i == P else ""
        box(axes, x, 4, w - 0.8, 4, letter, "target" if i == P else "gone")
        box(axes, x, 17, w - 0.8, 4, f"{plus}k{sub[i]}", kind)
        strong = {"fontweight": "bold"} if weights[i] >= sorted(weights)[-3:][0] else {}
        words(axes, x + (w - 0.8) / 2, 24.5, f"{weights[i]:.2f}", **strong)
        box(axes, x, 28, w - 0.8, 4, f"{plus}v{sub[i]}", kind)
    for y, name in ((11, f"q{sub[P]}"), (35, "out")):
        box(axes, new, y, w - 0.8, 4, name, "target")
    arrow(axes, (new, 13), (15, 13))
    words(axes, (15 + new) / 2, 11.6, "the only query is compared with every key", fontsize=9)
    arrow(axes, (15, 37), (new, 37))
    words(axes, (15 + new) / 2, 35.6, "the values are averaged by these weights", fontsize=9)
    words(axes, 88, 41, "+ appended: the next step finds them in the cache", ha="right", fontsize=9)
    axes.plot([new - 0.4] * 2, [1, 39], color=GREY, linestyle=":")
    return axes.figure


@mpl.rc_context(STYLE)
def context_walk(walk: Sequence[tuple[str, Mapping[str, int]]], title: str) -> Picture:
    """A walk back through a text: (context, {follower: how often}), from the empty context on.

    Each known context shows what its row is made of: its own counts and, weighted by how many
    different followers it has, the row above. One without followers is unknown, and ends the walk.
    """
    axes = sheet(title, 8, 0.7 + 0.48 * len(walk))
    row = dict.fromkeys(walk[0][1], 1 / len(walk[0][1]))
    headings = "context", "followers", "its row: own counts | the row above", "so the likeliest are"
    for x, heading in zip((8, 25, 46, 68), headings, strict=True):
        words(axes, x, 1.5, heading, color=GREY, fontsize=9)
    for i, (context, seen) in enumerate(walk):
        y, name = 3 + 4.8 * i, shown(context) or "(nothing)"
        box(axes, 1, y, 14, 3.2, ("✓ " if seen else "✗ ") + name, "accepted" if seen else "gone")
        if not seen:
            words(axes, 17, y + 1.6, "never seen: stop, the row above answers", ha="left")
            break
        total, u = sum(seen.values()), len(seen)
        words(axes, 25, y + 1.6, f"{total:,} ({u} different)")
        own = 22 * total / (total + u)
        box(axes, 35, y, own, 3.2, f"{100 * total / (total + u):.1f} %")
        rest = mpl.patches.Rectangle((35 + own, y), 22 - own, 3.2, facecolor=KINDS["draft"][0])
        axes.add_patch(rest).set(edgecolor=DRAFT, hatch="//")
        row = {x: (seen.get(x, 0) + u * row[x]) / (total + u) for x in row}
        best = sorted(row, key=row.get, reverse=True)[:3]
        words(axes, 68, y + 1.6, "   ".join(f"{shown(x)} {row[x]:.2f}" for x in best))
        if i:
            arrow(axes, (46, y - 1.6), (46, y), dash=":")
    return axes.figure


@mpl.rc_context(STYLE)
def scorecard(
    rows: Sequence[str],
    columns: Mapping[str, tuple[Sequence[float], Sequence[str], float | None]],
    title: str,
) -> Picture:
    """A bar per row and column, each column (values, texts, guess) with a scale of its own.

    A guess that is not None is drawn as a dotted line across its column.
    """
    axes, left = sheet(title, 8, 0.8 + 0.3 * len(rows)), 17.0
    for i, name in enumerate(rows):
        words(axes, 15.5, 4.5 + 3 * i, name, ha="right")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # so no guess crosses a text
    clear = {"ha": "left", "fontsize": 9, "bbox": paper}
    roomy = [10 + max(map(len, [heading, *columns[heading][1]])) for heading in columns]
    for (heading, (values, texts, guess)), room, look in zip(
        columns.items(), np.array(roomy) * 62 / sum(roomy), SERIES, strict=False
    ):
        scale = (room - 1 - 0.85 * max(map(len, texts))) / max(values)
        words(axes, left, 1.2, heading, ha="left", fontsize=9, color=GREY)
        for i, (value, text) in enumerate(zip(values, texts, strict=True)):
            y, style = 3.4 + 3 * i, {"facecolor": look[0], "hatch": look[3], "edgecolor": "white"}
            axes.add_patch(mpl.patches.Rectangle((left, y), value * scale, 2.2, **style))
            words(axes, left + value * scale + 0.5, y + 1.1, text, **clear)
        if guess is not None:
            x, bottom = left + guess * scale, 3.2 + 3 * len(rows)
            axes.plot([x, x], [3, bottom], color="black", linestyle=(0, (1, 2)))
            words(axes, x, bottom + 1, f"your guess: {guess:g}", fontsize=9)
        left += room
    return axes.figure


@mpl.rc_context(STYLE)
def branches(
    leaves: Mapping[tuple[str, str], float], own: Mapping[str, float], title: str
) -> Picture:
    """A round of two guesses as a tree: {(first step, second step): probability} of its branches.

    A step is "✓ a" (accepted) or "✗ b ↻ a" (rejected, and what came instead), and ends with the
    letter of the text. own: {text: probability} as the target says.
    """
    axes = sheet(title, 9.6, 0.42 * len(leaves) + 0.55)
    top, step, firsts = 5.0, 4.2, {}
    for i, (first, _) in enumerate(leaves):
        firsts.setdefault(first, []).append(top + step * i)
    for x, name in ((24, "first guess"), (50.5, "second guess"), (63.5, "text")):
        words(axes, x, 1.2, name, color=GREY, fontsize=9)
    root = sum(map(sum, firsts.values())) / len(leaves)
    box(axes, 1, root - 2, 8, 4, "start", "target")

    def edge(start, end, chance, label):
        colour, dash = (REJECTED, "--") if label.startswith("✗") else (ACCEPTED, "-")
        arrow(axes, start, end, colour=colour, dash=dash)
        rise = (end[1] - start[1]) / (end[0] - start[0])
        aside = (2.6, 0.9 * np.sign(rise)) if abs(rise) > 0.6 else (2.8, 2.8 * rise - 1.2)
        near = np.add(np.mean([start, end], axis=0), aside)
        words(axes, *near, f"{chance:.2f}", fontsize=9)
        kind = "resampled" if "↻" in label else "accepted"
        box(axes, *np.subtract(end, (0, 1.6)), 11, 3.2, label, kind)

    for first, ys in firsts.items():
        y, P = sum(ys) / len(ys), sum(leaves[leaf] for leaf in leaves if leaf[0] == first)
        edge((9, root), (18.5, y), P, first)
        over = "the round is over:\nanother one starts" if "↻" in first else "the round goes on"
        words(axes, 24, y + (3.6 if "↻" in first else 2.8), over, color=GREY, fontsize=8)
        for place, leaf in zip(ys, [leaf for leaf in leaves if leaf[0] == first], strict=True):
            edge((29.5, y), (45, place), leaves[leaf] / P, leaf[1])
            text = first[-1] + leaf[1][-1]
            words(axes, 63.5, place, f"{text}  {leaves[leaf]:.2f}", fontweight="bold")
            if "↻" not in first + leaf[1]:
                box(axes, 56.5, place - 1.3, 3, 2.6, "★", "bonus")
    for i, (text, P) in enumerate(own.items()):
        parts = [x for (a, b), x in leaves.items() if a[-1] + b[-1] == text]
        said = " + ".join(f"{x:.2f}" for x in parts) + f" = {sum(parts):.2f}"
        at = top + 1 + i * (step * len(leaves) - 6) / max(1, len(own) - 1)
        box(axes, 68, at - 2.4, 27.5, 4.8, f"{text}: {said}\nthe target says {P:.2f}", "target")
    words(
        axes, 56.5, top + step * len(leaves) - 0.8, "★ then a bonus token", color=GREY, fontsize=8
    )
    return axes.figure


@mpl.rc_context(STYLE)
def round_flow(text: str, drafted: str, emitted: str, cached: int, V: int, title: str) -> Picture:
    """A round as a flow of data: the four calls, and what each of them hands on.

    text: what stood before the round, drafted and emitted: its letters; cached: the entries before
    the pass; V: the size of the vocabulary.
    """
    axes, K, n = sheet(title, 9.8, 3.7), len(drafted), len(emitted) - 1
    for x, y, name, kind in (
        (20, 5, "draft_tokens", "draft"),
        (40, 16, "verify_candidates", "target"),
        (62, 5, "accept_reject", "plain"),
        (62, 27, "trim_kv_cache", "plain"),
    ):
        box(axes, x, y, 17, 4.6, name, kind)
    for start, end, said, (x, y) in (
        ((13, 7.3), (20, 7.3), "", (0, 0)),
        ((9, 10), (40, 17.3), f"current token “{shown(text[-1])}”", (18.5, 14.7)),
        ((13, 29.3), (40, 19.5), f"cache of {cached}", (21.5, 23.2)),
        ((37, 7.3), (62, 7.3), f"candidates, q ({K}, {V})", (50, 6.1)),
        ((31, 9.6), (43, 16), f"{K} candidates", (43, 12)),
        ((53, 16), (66, 9.6), f"p ({K + 1}, {V})", (64.5, 13.2)),
        ((53, 20.6), (66, 27), f"cache of {cached + K + 1}", (53, 25)),
        ((72, 9.6), (72, 27), f"{n + 1} emitted: keep {cached} + {n + 1}", (82.5, 19)),
        ((79, 7.3), (81, 7.3), "", (0, 0)),
        ((79, 29.3), (81, 29.3), "", (0, 0)),
    ):
        arrow(axes, start, end)
        words(axes, x, y, said, fontsize=9)
    box(axes, 1, 5, 12, 4.6, shown(text[-8:]), "target")
    box(axes, 1, 27, 12, 4.6, f"cache of {cached}", "cached")
    for i, letter in enumerate(drafted):
        box(axes, 19.2 + 4.3 * i, 1.2, 4, 3, shown(letter), "draft")
    for i, letter in enumerate(emitted):
        mark, fate = (
            ("✓", "accepted") if i < n else ("★", "bonus") if n == K else ("↻", "resampled")
        )
        box(
            axes, 81 + 4.2 * (i % 4), 5.7 + 3.5 * (i // 4), 3.9, 3.2, f"{mark}{shown(letter)}", fate
        )
    box(axes, 81, 27, 12, 4.6, f"cache of {cached + n + 1}", "cached")
    for x, y, said in (
        (7, 3.6, "text so far"),
        (89, 4.2, "new text"),
        (49, 34.7, "text and cache go into the next round; the last token waits outside the cache"),
    ):
        words(axes, x, y, said, color=GREY, fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def guess_and_check(before: str, guesses: str, marks: Sequence[Mark]) -> Picture:
    """One round after the text `before`: the draft's guesses, one pass, and what became of each.

    marks: of the judged guesses, with their p and q, and of the token that the target adds.
    """
    *judged, last = marks
    fates, n = [mark.fate for mark in marks], len(guesses)
    end = "one replaced" if "rejected" in fates else "a bonus added"
    title = f"{n} guesses, one pass of the target: {fates.count('accepted')} kept, {end}"
    axes, left, step = sheet(title, 8.4, 4.2), 34, min(7, 49 / (n + 1))
    columns = [left + step * j for j in range(n)]
    w, middle = step - 0.5, step / 2 - 0.25
    names = {5: "the draft\nguesses", 15: "the target\nreads it all", 25: "✓ keep  ✗ cut"}
    for y, name in (names | {37.5: "the text now"}).items():
        words(axes, 1, y, name, ha="left")
    for y in (3, 35.5):
        for i, letter in enumerate(shown(before[-6:])):
            box(axes, 15 + 3.1 * i, y, 2.8, 4, letter)
    box(axes, 15, 13, columns[-1] + w - 15, 4, "one pass over text and guesses", "target")
    for j, (x, letter) in enumerate(zip(columns, shown(guesses), strict=True)):
        box(axes, x, 3, w, 4, letter, "draft")
        arrow(axes, (x + middle, 7), (x + middle, 13))
        fate = fates[j] if j < len(judged) else "gone"
        box(axes, x, 23, w, 4, MARKS[fate][1] + letter if fate in MARKS else letter, fate)
        if j < len(judged):
            arrow(axes, (x + middle, 17), (x + middle, 23))
            p_and_q = f"p {judged[j].p:.2f}\nq {judged[j].q:.2f}"
            words(axes, x + middle, 29.5, p_and_q if step > 4 else "", fontsize=8)
        if fate == "accepted":
            box(axes, x, 35.5, w, 4, MARKS[fate][1] + letter, fate)
    if len(judged) < n:
        words(axes, columns[len(judged)], 29, "nobody looks at these", ha="left", fontsize=8)
    x = left + step * fates.count("accepted")
    box(axes, x, 35.5, w, 4, MARKS[last.fate][1] + shown(last.text), last.fate)
    return axes.figure


@mpl.rc_context(STYLE)
def draft_chain(current: str, guesses: str, q: Sequence, chars: Sequence[str]) -> Picture:
    """How a table drafts: the current character picks a row, a draw from it picks the next row.

    q: the row (V,) that each guess was drawn from; its likeliest few entries are shown.
    """
    axes = sheet(
        "The current character picks a row; the draw picks the next", 8.8, 0.95 * len(guesses) + 0.9
    )
    for i, (before, drawn) in enumerate(zip([current, *guesses], guesses, strict=False)):
        y, row = 2 + 9.5 * i, dict(zip(chars, q[i].tolist(), strict=True))
        best = sorted(row, key=row.get, reverse=True)[:6]
        best += [drawn] * (drawn not in best)
        box(axes, 9, y, 6, 5, shown(before), "draft" if i else "target")
        words(axes, 1, y + 2.5, f"guess {i}" if i else "current", ha="left")
        arrow(axes, (15, y + 2.5), (23, y + 2.5))
        words(axes, 19, y + 1.1, "its row", fontsize=9)
        for j, char in enumerate(best):
            x, text = 23 + 9 * j, f"{shown(char)}  {row[char]:.2f}"
            box(axes, x, y, 8.4, 5, text, "draft" if char == drawn else "plain")
            if char == drawn:
                axes.plot([x + 4.2, x + 4.2, 12], [y + 5, y + 7.2, y + 7.2], color=GREY)
                arrow(axes, (12, y + 7.2), (12, y + 9.5))
                words(axes, x + 3.4, y + 6.3, "drawn", ha="right", fontsize=9)
        if len(row) > len(best):
            words(axes, 23 + 9 * len(best), y + 2.5, "…", ha="left")
    end = 2 + 9.5 * len(guesses)
    box(axes, 9, end, 6, 5, shown(guesses[-1]), "draft")
    words(axes, 1, end + 2.5, f"guess {len(guesses)}", ha="left")
    words(axes, 19, end + 2.5, "each guess keeps the whole row that it was drawn from", ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def map_of_the_round(
    stations: Mapping[str, tuple[str, str]], loop: str, whole: Sequence[Sequence[str]]
) -> Picture:
    """The stations of a round, {kind of box: (what happens, its chapters)}, and the way back.

    loop: the chapter that ties them together. whole: those about all of it, in rows of boxes below.
    """
    axes, step = sheet("Every chapter has its place in one round", 8.6, 4.9), 84 / len(stations)
    middles = [step * (i + 0.5) - 1 for i in range(len(stations))]
    for x, (kind, (what, chapters)) in zip(middles, stations.items(), strict=True):
        left = x - step / 2 + 2
        box(axes, left, 10, step - 4, 5, what, kind)
        words(axes, left + 1, 16.5, chapters, ha="left", va="top", fontsize=9, linespacing=1.5)
        if x > middles[0]:
            arrow(axes, (left - 4, 12.5), (left, 12.5))
    way = [middles[-1], middles[-1], middles[0], middles[0]]
    axes.plot(way, [10, 6, 6, 7], color=GREY, linewidth=1.4)
    arrow(axes, (middles[0], 6), (middles[0], 10))
    words(axes, 42, 4.5, loop, fontsize=9)
    words(axes, 42, 33.5, "and the whole of it", fontsize=9)
    for row, chapters in enumerate(whole):
        wide = 84 / len(chapters)
        for i, chapter in enumerate(chapters):
            box(axes, 1 + wide * i, 36 + 6 * row, wide - 1, 5, chapter)
    return axes.figure


def said_of(strips: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """The rows of a description: each strip's label and what stands in its cells."""
    return [f"{label}: {' '.join(x for x, _ in cells)}" for label, cells in strips.items()]


@mpl.rc_context(STYLE)
def left_behind(text: str, rejected: str, own: str) -> Picture:
    """A text whose last guess was replaced, the cache that still holds it, and what comes of it."""
    same = [(letter, "cached") for letter in shown(text)]
    rows = {
        "the text says": [*same, ("↻" + own, "resampled")],
        "the cache holds": [*same, ("✗" + rejected, "rejected")],
        "the next pass reads": [*same, (rejected, "cached"), ("▸" + own, "target")],
    }
    axes = sheet(f"The text has forgotten the {rejected}; the cache has not", 8, 1.75)
    for i, (label, cells) in enumerate(rows.items()):
        strip(axes, 20, 1 + 4.6 * i, label, cells, min(4, 58 / (len(same) + 2)))
    axes.figure.rows = said_of(rows)
    return axes.figure


def strip(axes: Axes, x: float, y: float, label: str, cells: Sequence, size: float) -> None:
    """A cache as a row of boxes from (x, y) on, its label before it; cells: (text, kind) each."""
    words(axes, x - 1.5, y + 1.5, label, ha="right")
    for i, (letter, kind) in enumerate(cells):
        box(axes, x + size * i, y, size - 0.4, 3, letter, kind)


@mpl.rc_context(STYLE)
def questions(prompt: str, guesses: str) -> Picture:
    """K+1 questions: in plain decoding each waits for a letter, with guesses none does."""
    tail, n = shown(prompt[-4:]), len(guesses) + 1
    step, end = min(5.2, 34 / n), 4.3 + 2.7 * n
    axes = sheet("One pass for each question, or one for all of them", 8, 0.75 + 0.27 * n)
    words(axes, 1, 1.5, "without guesses: each pass waits", ha="left", fontweight="bold")
    words(axes, 51, 1.5, "with guesses: no question waits", ha="left", fontweight="bold")
    box(axes, 62.5, 3, 8, 2.7 * n, "", "target")
    words(axes, 66.5, 3 + 1.35 * n, "one\npass")
    for i in range(n):
        y, x = 4.3 + 2.7 * i, 2 + step * i
        box(axes, x, y - 1, 9.5, 2, "", "target")
        words(axes, x + 4.75, y, tail + "?" * i, fontsize=9, family="monospace")
        if i:
            arrow(axes, (x - step + 9.5, y - 2.7), (x - step / 2 + 9.5, y - 1), bend=-0.5)
        words(axes, 61, y, tail + shown(guesses[:i]), ha="right", fontsize=9, family="monospace")
        arrow(axes, (61.2, y), (62.5, y), colour=DRAFT if i else TARGET)
        arrow(axes, (70.5, y), (72.5, y), colour=TARGET)
        words(axes, 73, y, f"p for {shown(guesses[i])}" if i < n - 1 else "p, free ★", ha="left")
    arrow(axes, (2, end), (47, end))
    words(axes, 48, end, "time", ha="left", color=GREY)
    return axes.figure


@mpl.rc_context(STYLE)
def one_pass(prompt: str, guesses: str) -> Picture:
    """The pass of a verification: its tokens and positions across, its rows and mask down."""
    K, P, left = len(guesses), len(prompt) - 1, 10
    n_shown = min(6, P)
    letters = [*shown(prompt[-n_shown - 1 :] + guesses)]
    letters[n_shown] = "▸" + letters[n_shown]
    kinds = ["cached"] * n_shown + ["target"] + ["draft"] * K
    axes = sheet("Row i sees i guesses, and its p judges the next one", 8, 0.78 + 0.28 * (K + 1))
    size = min(3.6, 50 / len(letters))
    middle = left + size * (n_shown + 0.5) - 0.15
    words(axes, middle, 1.2, "current", fontsize=9)
    words(axes, middle - 3.5, 1.2, f"in the cache: {P}", ha="right", fontsize=9)
    words(axes, middle + 3.5, 1.2, f"guesses: {K}", ha="left", fontsize=9)
    words(axes, left - 1, 3.2, "position", ha="right", fontsize=9, color=GREY)
    for x in range(len(letters)):
        place = left + size * (x + 0.5) - 0.15
        words(axes, place, 3.2, str(P - n_shown + x), fontsize=9, color=GREY)
    axes.figure.rows.clear()  # of the description: what follows is enough
    for i in range(K + 1):
        y, end, sees = 4.6 + 2.8 * i, left + size * len(letters), n_shown + 1 + i
        for x, kind in enumerate(kinds):
            seen = (letters[x], kind) if x < sees else ("", "gone")
            box(axes, left + size * x, y, size - 0.3, 2.4, *seen)
        arrow(axes, (end, y + 1.2), (end + 3, y + 1.2), colour=TARGET)
        judged = f"p for {letters[sees]}" if i < K else "p for one more ★"
        words(axes, left - 1, y + 1.2, f"row {i}", ha="right")
        words(axes, end + 3.6, y + 1.2, judged, ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def trim(prompt: str, guesses: str, emitted: str) -> Picture:
    """A round in the cache: before the pass, after it, judged and cut, and the next pass."""
    n, K, P = len(emitted) - 1, len(guesses), len(prompt) - 1
    n_shown = min(6, P)
    new, marks = [*shown(prompt[-1] + guesses)], ["", *["✓"] * n, *["✗"] * (K - n)]
    kinds = ["cached", *["accepted"] * n, *["rejected"] * (K - n)]
    earlier = ["…"] * (n_shown < P) + [*shown(prompt[-n_shown - 1 : -1])]
    old = [(letter, "cached") for letter in earlier]
    stays = [*old, *((letter, "cached") for letter in new[: n + 1])]
    guessed = [(letter, "draft") for letter in new[1:]]
    rows = {
        f"before: {P} entries": old,
        f"after the pass: {P + K + 1}": [*old, ("▸" + new[0], "target"), *guessed],
        "judged": [*old, *((m + x, kind) for m, x, kind in zip(marks, new, kinds, strict=True))],
        f"trimmed: {P + n + 1}": [*stays, *[("", "gone")] * (K - n)],
        "the next pass begins": [*stays, ("▸" + shown(emitted[-1]), "target")],
    }
    axes = sheet("The trim cuts off the rejected guesses, and nothing else", 8, 2.5)
    size, left = min(4, 46 / (len(old) + K + 1)), 20
    for i, (label, cells) in enumerate(rows.items()):
        strip(axes, left, 1 + 4.6 * i, label, cells, size)
    cut, end = left + size * (len(old) + n + 1) - 0.2, left + size * (len(old) + K + 1) + 1
    axes.plot([cut, cut], [9.5, 18.7], color=REJECTED, linestyle="--", linewidth=1.6)
    own = ("★", "bonus") if n == K else ("↻", "resampled")
    box(axes, end, 10.2, size - 0.4, 3, own[0] + shown(emitted[-1]), own[1])
    words(axes, end + size, 11.7, "drawn after the\npass: no entry", ha="left", fontsize=9)
    rows["judged"].append((own[0] + shown(emitted[-1]), own[1]))
    axes.figure.rows = said_of(rows)
    return axes.figure


@mpl.rc_context(STYLE)
def asking(likeliest: Sequence[float], tokens: Sequence[str], title: str) -> Picture:
    """One round as a time line: where a policy is asked, what it may look at, what is too late.

    likeliest: the largest probability of each q that `more` was shown; tokens: those drawn, in
    order, one for each yes. Where there are fewer tokens than q, the last answer was no.
    """
    axes = sheet(title, 8, 2.7)
    steps = [("policy(rounds)\n→ (most, more)", "target")]
    for n, p in enumerate(likeliest[:4]):
        yes = n < len(tokens)
        steps.append((f"more(q, {n})?\nlargest q {p:.2f}\n{'yes' if yes else 'no: stop'}", "draft"))
        if yes:
            steps.append((f"draw\n{shown(tokens[n])}", "plain"))
    steps.append(("one pass,\naccept\nor reject", "target"))
    gap, y, h = 1.2, 10, 6.4
    w = (78 - gap * (len(steps) - 1)) / len(steps)
    size = min(8.5, 0.8 * w)  # the words fit into their boxes
    for i, (text, kind) in enumerate(steps):
        x, middle = 1 + i * (w + gap), 1 + i * (w + gap) + w / 2
        box(axes, x, y, w, h, kind=kind)
        words(axes, middle + 0.4 * (kind == "draft"), y + h / 2, text, fontsize=size)
        if i + 1 < len(steps):
            arrow(axes, (x + w, y + h / 2), (x + w + gap, y + h / 2))
        if text.startswith(("policy", "more")):
            arrow(axes, (middle, 7.2), (middle, y), colour=ACCEPTED)
        if text.startswith("draw"):
            arrow(axes, (middle, y + h), (middle, 19.8), colour=REJECTED, dash="--")
    may = "✓ before a draw: a policy may look at earlier rounds, the text, all of q and the clock"
    late = "✗ after a draw: too late. The token stays in the round, however unlikely it looks"
    box(axes, 1, 3.4, 78, 3.8, may, "accepted")
    box(axes, 1, 19.8, 78, 3.8, late, "rejected")
    return axes.figure


@mpl.rc_context(STYLE)
def what_a_rule_makes(
    rules: Mapping[str, Mapping[tuple[bool, int], float]],
    p: Sequence[float],
    tokens: Sequence[str],
    title: str,
) -> Picture:
    """Where each rule's next token comes from, beside p: a panel a rule, a column a token.

    rules: {name: {(whether the guess stood, token): probability}}; p (V). A column is what stood
    (✓) and what was drawn instead (↻); where it does not end at the line of p, the text is off.
    """
    made = [chance for ways in rules.values() for chance in ways.values()]
    axes, foot, tall = sheet(title, 9, 3.6), 25.5, 17.0 / max([*p, *made])
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


def laid_out(parents: Sequence[int]) -> list[tuple[int, float]]:
    """(depth, row) of the current token and each node: leaves a row each, parents in the middle."""
    children, places, leaves = (
        [[] for _ in range(len(parents) + 1)],
        {},
        iter(range(len(parents) + 1)),
    )
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)

    def place(node, depth):
        below = [place(child, depth + 1) for child in children[node + 1]]
        row = (below[0] + below[-1]) / 2 if below else next(leaves)
        places[node] = (depth, row)
        return row

    place(-1, 0)
    return [places[node] for node in range(-1, len(parents))]


@mpl.rc_context(STYLE)
def tree_of_guesses(
    root: str, nodes: Sequence[str], parents: Sequence[int], kinds: Sequence[str], title: str
) -> Picture:
    """A tree from left to right: the current token, and the nodes with what became of each.

    kinds: of each node, a key of KINDS; a path that is kept has thick edges. What the target adds
    is a node like others, "resampled" or "bonus".
    """
    places = laid_out(parents)
    depth, rows = max(d for d, _ in places), max(row for _, row in places) + 1
    axes = sheet(title, 8, 0.5 + 0.34 * rows)
    step = min(15, 72 / (depth + 1))
    size = min(9.0, 0.6 * step)
    at = [(2 + step * d, 1.2 + 3.4 * row) for d, row in places]
    for node, (kind, parent) in enumerate(zip(kinds, parents, strict=True)):
        (x, y), (left, top) = at[node + 1], at[parent + 1]
        kept = kind in ("accepted", "resampled", "bonus")
        line = {"color": KINDS[kind][1] if kept else GREY, "linestyle": "-" if kept else ":"}
        axes.plot([left + size, x], [top + 1.2, y + 1.2], linewidth=2.4 if kept else 1.2, **line)
    box(axes, *at[0], size, 2.4, "▸" + shown(root), "target")
    for (x, y), text, kind in zip(at[1:], nodes, kinds, strict=True):
        mark = MARKS[kind][1] if kind in MARKS else ""
        box(axes, x, y, size, 2.4, mark + shown(text), kind)
        if kind == "rejected":
            axes.plot([x + 0.8, x + size - 0.8], [y + 1.2] * 2, color=REJECTED, linewidth=1.4)
    axes.figure.rows = [f"after {shown(root)}"]
    for node, (text, kind, parent) in enumerate(zip(nodes, kinds, parents, strict=True)):
        before = shown(root) if parent < 0 else shown(nodes[parent])
        axes.figure.rows.append(f"node {node}: {before} → {shown(text)} {kind}")
    return axes.figure


@mpl.rc_context(STYLE)
def who_sees_whom(prompt: str, nodes: Sequence[str], parents: Sequence[int], mask) -> Picture:
    """A tree's mask (N+1, P+N+1): a row for each token of the pass, with its slot and position."""
    P, N = len(prompt) - 1, len(nodes)
    n_shown, left = min(4, P), 20
    letters = [*shown(prompt[P - n_shown :]), *map(shown, nodes)]
    size = min(4.6, 44 / len(letters))
    end = left + size * len(letters)
    axes = sheet("A node sees the cache, its own path and itself", 8, 0.85 + 0.28 * (N + 1))
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
    axes.figure.rows = [
        f"{letter} in slot {P + row} at position {int(sum(map(bool, mask[row]))) - 1} sees "
        + " ".join(x for i, x in enumerate(letters) if mask[row][P - n_shown + i])
        for row, letter in enumerate(letters[n_shown:])
    ]
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
    axes = sheet("The path closes up: slots are positions again", 8, 1.95)
    size, first = (
        min(4.2, 53 / (len(old) + N + 1)),
        left + min(4.2, 53 / (len(old) + N + 1)) * (len(old) + 1),
    )
    for (label, cells), y in zip(rows.items(), (0.8, 5.4, 12.4), strict=True):
        strip(axes, left, y, label, cells, size)
    for place, node in enumerate(path):
        start = (first + size * (node + 0.5) - 0.2, 8.4)
        arrow(axes, start, (first + size * (place + 0.5) - 0.2, 12.4), colour=ACCEPTED)
    axes.figure.rows = said_of(rows)
    return axes.figure


@mpl.rc_context(STYLE)
def first_blocks(current: str, guesses: str, depth: int, layers: int, title: str) -> Picture:
    """Which pass runs which block for which token, with a cache of the draft's own and with one.

    A column is a token, a row a block; each box is one run of a block, which writes that token's
    keys and values. Hatched: run while drafting (▸, the exit's guess); plain: in the target's pass.
    """
    K, tokens = len(guesses), [shown(x) for x in current + guesses]
    axes, size = sheet(title, 9, 0.52 * layers + 1.45), min(8, 34 / (K + 1))
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
        bottom, runs = 3.2 + 5.2 * layers, (K + 1) * layers
        for n, token in enumerate(tokens):
            words(axes, left + size * (n + 0.5) - 0.2, bottom + 1.2, token, family="monospace")
        count = f"{K * depth} + {runs} = {K * depth + runs}" if twice else f"{runs}"
        words(axes, left, bottom + 4.2, f"runs of a block: {count}", ha="left")
    for layer in range(layers):
        words(axes, 8.8, 5.7 + 5.2 * (layers - 1 - layer), f"block {layer + 1}", ha="right")
    said = "hatched: the draft's, token by token, ▸ its guess; plain: the target's one pass, to p"
    words(axes, 10, bottom + 7.2, said, ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def heads_ahead(read: str, said: Sequence[tuple[str, float]], title: str) -> Picture:
    """One hidden state, and what is read off it: lm_head's token, then a guess of each head.

    said: of lm_head and of each head, a token and its probability. Nothing leads from one guess to
    another: the later tokens are guessed by heads that have not seen the earlier ones.
    """
    left, wide = max(18, 3.2 * len(read) + 6), 11.5
    axes = sheet(title, max(8, (left + wide * len(said) + 1) / 10), 2.9)
    for i, char in enumerate(read):
        box(axes, 1 + 3.2 * i, 3.2, 3.2, 3.2, shown(char), "cached")
    words(axes, 1, 1.6, "read by the trunk", ha="left")
    state = max(6, 1 + 3.2 * (len(read) - 0.5))
    arrow(axes, (state, 6.4), (state, 21.4), TARGET)
    box(axes, state - 4.6, 21.4, 9.2, 4.4, "its last\nhidden state", "target")
    for i, (token, p) in enumerate(said):
        x, kind = left + wide * i, "draft" if i else "target"
        words(axes, x + 4.5, 1.6, "drawn next" if i == 0 else f"{i} after that")
        box(axes, x, 3.2, 9, 3.2, f"{shown(token)}  {p:.2f}", kind)
        box(axes, x, 11.5, 9, 3.2, f"head {i}" if i else "lm_head", kind)
        arrow(axes, (x + 4.5, 11.5), (x + 4.5, 6.4), DRAFT if i else TARGET)
        arrow(axes, (x + 4.5, 23.6), (x + 4.5, 14.7))
    last = left + wide * (len(said) - 1) + 4.5
    axes.plot([state + 4.6, last], [23.6, 23.6], color=GREY, linewidth=1.4)
    words(axes, last, 27.2, "the same state for all", ha="right")
    return axes.figure


@mpl.rc_context(STYLE)
def tries(
    steps: Sequence[tuple[Sequence[float], Sequence[float]]], letters: str, title: str
) -> Picture:
    """One sibling after another: (what is left of p, q) of each try, and what is left at last.

    The last entry's q is None: nobody guesses any more, and the token is drawn from what is left.
    """
    axes, top, reached = sheet(title, 9.4, 3.5), 24.0, 1.0
    panel, bar = 92 / len(steps), 68 / len(steps) / (len(letters) * 2 + 2)
    for n, (left, q) in enumerate(steps):
        x = 2 + panel * n
        said = f"try {n + 1}: p against q" if n == 0 else f"try {n + 1}: what is left, against q"
        said = "no guess left: ↻ drawn" if q is None else said
        words(axes, x + panel / 2 - 3, 2.2, said, fontweight="bold", fontsize=9)
        for i, letter in enumerate(letters):
            at = x + i * 2.4 * bar
            pairs = [(at, left[i], "target")] + ([] if q is None else [(at + bar, q[i], "draft")])
            for place, height, kind in pairs:
                fill, edge, _, hatch = KINDS["resampled" if q is None else kind]
                shape = mpl.patches.Rectangle((place, top), bar, -18 * height)
                shape.set(facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=1.2)
                axes.add_patch(shape)
                words(axes, place + bar / 2, top - 18 * height - 1, f"{height:.2f}", fontsize=8)
            words(axes, at + bar * (0.5 if q is None else 1), top + 1.6, letter)
        if q is None:
            words(axes, x + panel / 2 - 3, 29, f"↻ {reached:.2f}", color=RESAMPLED, fontsize=12)
            continue
        kept = reached * float(np.minimum(left, q).sum())
        reached -= kept
        words(axes, x + panel / 2 - 7, 29, f"✓ {kept:.2f}", color=ACCEPTED, fontsize=12)
        words(axes, x + panel / 2 + 2, 29, f"✗ {reached:.2f}", color=REJECTED, fontsize=12)
        arrow(axes, (x + panel / 2 + 5.5, 29), (x + panel, 29), colour=REJECTED, dash="--")
    bars = "left bar: p, or what is left of it; hatched: q"
    words(axes, 47, 33, f"{bars}      ✓ kept   ✗ rejected: on to the next", color=GREY, fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def told_and_made(
    rows: Mapping[str, Sequence[tuple[float, float] | None]], columns: Sequence[str], title: str
) -> Picture:
    """Ways to make siblings against the q that a rule is told: (distance, kept) of each, or None.

    An exact pair is marked ✓, the others ✗ with their total variation.
    """
    axes, left = sheet(title, 9.4, 1.1 + 0.85 * len(rows)), 25
    wide = (92 - left) / len(columns)
    for j, name in enumerate(columns):
        words(axes, left + wide * (j + 0.5), 2.2, name, fontweight="bold", fontsize=9)
    for i, (name, cells) in enumerate(rows.items()):
        y = 5 + 8.5 * i
        words(axes, left - 1, y + 3.5, name, ha="right", fontweight="bold", fontsize=9)
        for j, cell in enumerate(cells):
            said, kind = "–", "gone"
            if cell is not None:
                distance, kept = cell
                exact = distance < 1e-12
                kind = "accepted" if exact else "rejected"
                said = "✓ exact" if exact else f"✗ off by {distance:.3f}"
                said += f"\nkeeps {kept:.3f}"
            box(axes, left + wide * j + 0.5, y, wide - 1, 7, said, kind)
    return axes.figure


@mpl.rc_context(STYLE)
def coins_of_a_block(
    guesses: str,
    one_by_one: Sequence[tuple[float, bool]],
    block: Sequence[tuple[float, bool]],
    title: str,
) -> Picture:
    """The same guesses judged both ways: (chance, whether the coin falls right) of each guess.

    Above, from the first guess on, until one fails; below, from the last back, until one falls
    right.
    """
    axes, wide = sheet(title, 9.4, 4.1), min(12.0, 70 / len(guesses))
    first = next((i for i, (_, right) in enumerate(one_by_one) if not right), len(guesses))
    last = max((i for i, (_, right) in enumerate(block) if right), default=-1)
    for y, name, coins, kept in (
        (4, "one by one", one_by_one, first),
        (24, "as a block", block, last + 1),
    ):
        words(axes, 1, y + 4.5, name, ha="left", fontweight="bold")
        forward = name == "one by one"
        for i, (letter, (chance, right)) in enumerate(zip(guesses, coins, strict=True)):
            x, tossed = 19 + wide * i, i <= first if forward else i >= last
            kind = "accepted" if i < kept else "rejected" if i == kept else "gone"
            box(axes, x, y, wide - 1.5, 4, shown(letter), kind)
            mark = ("✓" if right else "✗") if tossed else "not tossed"
            colour = (ACCEPTED if right else REJECTED) if tossed else GREY
            words(axes, x + wide / 2 - 0.7, y + 6, f"{chance:.2f}", fontsize=9)
            words(
                axes, x + wide / 2 - 0.7, y + 8.4, mark, color=colour, fontsize=13 if tossed else 7
            )
        start, end = (19, 17 + wide * len(guesses))[:: 1 if forward else -1]
        arrow(axes, (start, y + 11), (end, y + 11))
        order = "coins from the first on, to the first ✗" if forward else "coins from the last back"
        said = order if forward else f"{order}, to the first ✓"
        words(axes, 19 + wide * len(guesses) / 2, y + 13, f"{said}: {kept} kept", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def rows_of_guesses(read: str, rows: Sequence[str], title: str) -> Picture:
    """Jacobi iteration: the row of guesses at first, and after each pass, below one another.

    What agrees with the last row from the start on is marked ✓: it will not change any more.
    """
    wide, left = min(3.6, 70 / len(rows[-1])), 15
    axes = sheet(title, max(8, (left + wide * len(rows[-1]) + 12) / 10), 0.55 + 0.38 * len(rows))
    words(axes, left, 1.4, f"after {shown(read)!r}, at the same time:", ha="left", fontsize=9)
    said = []
    for n, row in enumerate(rows):
        y, right = 3.2 + 3.8 * n, 0
        while right < len(row) and row[right] == rows[-1][right]:
            right += 1
        words(axes, left - 1.5, y + 1.5, f"pass {n}" if n else "guessed", ha="right")
        for i, letter in enumerate(row):
            kind, mark = ("accepted", "✓") if i < right else ("draft", "")
            box(axes, left + wide * i, y, wide - 0.4, 3, "", kind)
            shift = 0 if i < right else 0.45
            letters = f"{mark if wide > 3 else ''}{shown(letter)}"
            words(axes, left + wide * (i + 0.5) - 0.2 + shift, y + 1.5, letters)
        words(axes, left + wide * len(row) + 1, y + 1.5, f"✓ {right}", ha="left")
        said.append(f"{f'pass {n}' if n else 'guessed'}: {shown(row)}, {right} right")
    axes.figure.rows = said
    return axes.figure


@mpl.rc_context(STYLE)
def lookahead_window(
    rows: Sequence[str], new: str, column: int, pool: Sequence[str], title: str
) -> Picture:
    """A lookahead window by position: row j, column i stands i + j places after the current token.

    new: what the pass says after the last row. A thick line runs down one column: with its last
    letter ▸, it is the n-gram that goes to the pool, whose n-grams after the current token stand
    at the right.
    """
    size, left, names = 5.0, 14.0, [f"row {j}" for j in range(len(rows))]
    places = len(rows[0]) + len(rows)
    axes = sheet(title, max(8, (left + size * places + 17) / 10), 0.75 + 0.62 * (len(rows) + 1))
    for j, (name, row) in enumerate(zip([*names, "this pass says"], [*rows, new], strict=True)):
        y = 4.4 + 6.2 * j
        words(axes, left - 1.5, y + 1.7, name, ha="right")
        for i, letter in enumerate(row):
            x, thick = left + size * (i + j), {"linewidth": 3 if i == column else 1}
            kind = "target" if i + j == 0 or j == len(rows) else "draft"
            if j:  # down its column
                line = {"color": TARGET if i == column else GREY, **thick}
                axes.plot([x - size + 2, x + 2], [y - 2.8, y], **line)
            elif i:
                axes.plot([x - 0.8, x], [y + 1.7] * 2, color=GREY, linewidth=1)
            box(
                axes, x, y, size - 0.8, 3.4, ("▸" if kind == "target" else "") + shown(letter), kind
            )
    for place in range(places):
        name = "now" if place == 0 else f"+{place}"
        words(axes, left + size * place + 2, 2.4, name, fontsize=9, color=GREY)
    x = left + size * places + 2
    words(axes, x, 4.8, f"pool, after {shown(rows[0][0])}", ha="left", fontweight="bold")
    for n, gram in enumerate(pool or ["nothing yet"]):
        words(axes, x, 8.2 + 2.6 * n, shown(gram) if pool else gram, ha="left", family="monospace")
    return axes.figure


@mpl.rc_context(STYLE)
def one_feature_two_draws(
    read: str,
    feature: Sequence[float],
    draws: Sequence[tuple[str, float, Sequence[tuple[str, float]]]],
    title: str,
) -> Picture:
    """A text, its last feature as a strip of shades, and what may be drawn from it.

    draws: of each, the token, its probability, and the likeliest tokens after it with theirs.
    """
    axes, rows = sheet(title, 8.4, max(1.9, 0.85 + 0.75 * len(draws))), 7.5 * len(draws)
    words(axes, 1, 1.6, "read by the target", ha="left")
    for i, char in enumerate(read):
        box(axes, 1 + 3 * i, 3.2, 3, 3.2, shown(char), "cached")
    middle = 6.5 + rows / 2
    state = max(4, 3 * len(read) - 0.5)
    arrow(axes, (state, 6.4), (state, middle - 1.8), TARGET)
    low, high = min(feature), max(feature)
    for i, value in enumerate(feature):  # dark is large
        shade = str(0.95 - 0.85 * (value - low) / (high - low or 1))
        cell = mpl.patches.Rectangle(
            (1 + 34 * i / len(feature), middle - 1.8), 34 / len(feature), 3.6
        )
        axes.add_patch(cell).set(facecolor=shade, linewidth=0)
    axes.add_patch(mpl.patches.Rectangle((1, middle - 1.8), 34, 3.6, fill=False, edgecolor=TARGET))
    words(axes, 18, middle + 3.4, f"one feature: {len(feature)} numbers")
    words(axes, 46, 1.6, "drawn from it")
    words(axes, 70, 1.6, "so the target then says")
    for n, (token, p, after) in enumerate(draws):
        y = 7.5 * n + 10.2
        arrow(axes, (35.5, middle), (41, y), DRAFT, dash="--")
        box(axes, 41, y - 1.8, 10, 3.6, f"{shown(token)}  {p:.2f}", "plain")
        arrow(axes, (51, y), (55, y))
        for i, (then, chance) in enumerate(after[:3]):
            box(axes, 55.5 + 9.2 * i, y - 1.8, 8.6, 3.6, f"{shown(then)}  {chance:.2f}", "target")
    return axes.figure


@mpl.rc_context(STYLE)
def feature_pairs(read: str, guesses: str, title: str) -> Picture:
    """What EAGLE's head reads: above, features; below each, the token beside it; then its guess.

    read: the last tokens, the current one last; the features after those that the target has made
    are the head's own outputs (hatched).
    """
    tokens, true = [shown(x) for x in read + guesses], len(read) - 1
    wide, left = min(10.0, 74 / (true + len(guesses) - 1)), 15.0
    axes = sheet(title, (left + wide * (true + len(guesses) - 1) + 3) / 10, 2.95)
    words(axes, left, 1.6, "the target's", ha="left", color=TARGET)
    if len(guesses) > 1:
        end = left + wide * (true + len(guesses) - 1) - 1
        words(axes, end, 1.6, "the head's own", ha="right")
    for y, name in ((5.2, "feature of"), (11.2, "token after it")):
        words(axes, left - 1.5, y, name, ha="right")
    words(axes, left - 1.5, 17.2, "one block", ha="right", fontweight="bold")
    words(axes, left - 1.5, 24.2, "lm_head: guess", ha="right")
    for i in range(true + len(guesses) - 1):
        x, kind = left + wide * i, "target" if i < true else "draft"
        at = x + wide / 2 - 0.5
        box(axes, x, 3.4, wide - 1, 3.6, tokens[i], kind)
        box(axes, x, 9.4, wide - 1, 3.6, tokens[i + 1], "plain")
        arrow(axes, (at, 13), (at, 15.4))
        if true - 1 <= i:
            box(axes, x, 22.4, wide - 1, 3.6, f"▸{tokens[i + 2]}", "draft")
            arrow(axes, (at, 19), (at, 22.4), DRAFT)
        if true <= i:  # its feature is the output of the column before
            arrow(axes, (x - 1.2, 16), (x - 0.1, 6.5), DRAFT, bend=-0.25)
    axes.add_patch(
        mpl.patches.FancyBboxPatch(
            (left, 15.4), wide * (true + len(guesses) - 1) - 1, 3.6, boxstyle="round,pad=0"
        )
    ).set(facecolor="#F4F4F4", edgecolor=GREY, linewidth=1.4)
    return axes.figure


@mpl.rc_context(STYLE)
def masked_block(read: str, said: Sequence[tuple[str, float]], title: str) -> Picture:
    """A block drafter's one pass over the last token read and a mask for each later place.

    said: of each place, the token drawn and its q. The dashed arrows are the only way in which one
    guess hears of another: the token drawn corrects the logits of the place after it.
    """
    left, wide = max(28, 3.2 * len(read) + 4), 12.5
    right = left + wide * len(said) - 3.5
    axes = sheet(title, max(8, (right + 2) / 10), 3.6)
    for i, char in enumerate(read[:-1]):
        box(axes, 1 + 3.2 * i, 27, 3.2, 3.2, shown(char), "target")
    words(axes, 1, 32, "features of the text: only read", ha="left")
    axes.plot([2.6, 2.6], [27, 21.2], color=TARGET, linewidth=1.4)
    arrow(axes, (2.6, 21.2), (left - 1, 21.2), TARGET)
    words(axes, 3.6, 19.4, "keys, values", ha="left", fontsize=9)
    box(axes, left - 1, 18.8, right - left + 2, 4.8, "the drafter: one pass", "draft")
    for i, (token, q) in enumerate(said):
        x = left + wide * i
        box(axes, x, 27, 9, 3.2, "MASK" if i else shown(read[-1]), "gone" if i else "cached")
        words(axes, x + 4.5, 32, f"place {i + 1}", fontsize=9)
        arrow(axes, (x + 4.5, 27), (x + 4.5, 23.6))
        arrow(axes, (x + 4.5, 18.8), (x + 4.5, 15.2))
        box(axes, x, 12, 9, 3.2, "logits", "plain")
        arrow(axes, (x + 4.5, 12), (x + 4.5, 5.6), DRAFT)
        box(axes, x, 2.4, 9, 3.2, f"{shown(token)}  {q:.2f}", "draft")
        if i + 1 < len(said):
            arrow(axes, (x + 9, 4), (x + wide + 0.5, 12), RESAMPLED, dash="--")
    words(axes, left - 1.5, 4, "drawn, and its q", ha="right")
    words(axes, left - 1.5, 8.6, "dashed: corrected by\nthe token drawn before", ha="right")
    return axes.figure


@mpl.rc_context(STYLE)
def guessing_itself(
    read: str, drawn: tuple[str, float], guess: tuple[str, float], title: str
) -> Picture:
    """A target with a layer of its own for multi-token prediction, after it has read `read`.

    drawn: the next token, from the target's p, and its probability; guess: the layer's guess of the
    one after. Each column is a token: its state, beside the token after it, goes into the layer,
    which is asked for the token after that.
    """
    after, left, wide = [*read[1:], drawn[0]], 14.5, 9.2
    right = left + wide * len(read) - 0.7
    axes = sheet(title, max(8, (right + 16) / 10), 3.3)
    for y, said in ((3.6, "asked for"), (12.6, "token after it"), (18.6, "its state")):
        words(axes, left - 1.5, y, said, ha="right")
    words(axes, left - 1.5, 28.6, "token", ha="right")
    box(axes, left, 22.4, right - left, 2.6, "the target's blocks", "target")
    box(axes, left, 7, right - left, 2.6, "one more block: the MTP layer", "draft")
    for i, char in enumerate(read):
        x, last = left + wide * i, i == len(read) - 1
        box(axes, x, 27, 4, 3.2, shown(char), "cached")
        box(axes, x, 17, 4, 3.2, "state", "target")
        box(axes, x + 4.5, 11, 4, 3.2, shown(after[i]), "resampled" if last else "cached")
        arrow(axes, (x + 2, 27), (x + 2, 25), TARGET)
        arrow(axes, (x + 2, 22.4), (x + 2, 20.2), TARGET)
        arrow(axes, (x + 2, 17), (x + 2, 9.6), TARGET)
        arrow(axes, (x + 6.5, 11), (x + 6.5, 9.6))
        arrow(axes, (x + 4.2, 7), (x + 4.2, 5.2), DRAFT)
        token = f"{shown(guess[0])} {guess[1]:.2f}" if last else shown(after[i + 1])
        box(axes, x + (0.2 if last else 2.1), 2, 8 if last else 4.2, 3.2, token, "draft")
    words(axes, right + 1.5, 3.6, "the guess", ha="left")
    arrow(axes, (right - 4.5, 18.6), (right + 4, 18.6), TARGET)
    box(axes, right + 4, 17, 9, 3.2, "lm_head", "target")
    arrow(axes, (right + 8.5, 17), (right + 8.5, 14.2), TARGET)
    box(axes, right + 4, 11, 9, 3.2, f"{shown(drawn[0])} {drawn[1]:.2f}", "resampled")
    arrow(axes, (right + 4, 12.6), (right, 12.6), RESAMPLED)
    return axes.figure


@mpl.rc_context(STYLE)
def entries_written_twice(
    before: str, current: str, guesses: str, kept: int, title: str
) -> Picture:
    """A round in one cache: what a copy of the target writes, and what the target writes over it.

    before: the tokens with entries of the target; guesses: K, of which `kept` are accepted. Of a
    long text, the last nine letters are shown.
    """
    K, letters = len(guesses), [*shown(current + guesses)]
    old = [(letter, "cached") for letter in ["…"] * (len(before) > 9) + [*shown(before[-9:])]]
    anew = [(letter, "target") for letter in letters]
    rows = {
        "before the round": (old, "all the target's"),
        "the copy drafts": (
            [*old, *[(letter, "draft") for letter in letters[:K]], ("", "gone")],
            f"{K} entries, by the copy",
        ),
        "the target checks": ([*old, *anew], f"all {K + 1} written again"),
        "kept": (
            [*old, *anew[: kept + 1], *[("", "gone")] * (K - kept)],
            f"{kept + 1} of those, as ever",
        ),
    }
    axes, left = sheet(title, 9, 2.15), 19
    size = min(4, 48 / (len(old) + K + 1))
    for i, (label, (cells, said)) in enumerate(rows.items()):
        strip(axes, left, 1 + 4.6 * i, label, cells, size)
        words(
            axes,
            left + size * len(rows["before the round"][0]) + size * (K + 1) + 1,
            2.5 + 4.6 * i,
            said,
            ha="left",
        )
    start = left + size * len(old) - 0.5
    axes.plot([start, start], [0.6, 19.2], color=GREY, linestyle=":", linewidth=1.2)
    said = "hatched: rounded weights or a narrow view; plain blue: the target's own"
    words(axes, left, 20.3, said, ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def masked_entries(text: str, guesses: str, masks: Sequence[Sequence[bool]], title: str) -> Picture:
    """Which entries each guess of a windowed copy reads: a row for a guess, a column for an entry.

    text: read so far, the current token last; masks[i]: of guess i, True where it may attend, over
    the text and the guesses before it. Blue: the target's entries; hatched: the copy's own.
    """
    P, letters = len(text) - 1, [*shown(text + guesses)]
    axes, left = sheet(title, 9, 0.95 + 0.33 * len(masks)), 15
    size = min(3.2, 70 / len(masks[-1]))
    for i, mask in enumerate(masks):
        y = 3.2 + 3.3 * i
        words(axes, left - 1, y + 1.3, f"to guess ▸{letters[P + 1 + i]}", ha="right")
        for j, seen in enumerate(mask):
            kind = "gone" if not seen else "draft" if j >= P else "cached"
            box(axes, left + size * j, y, size - 0.3, 2.6, letters[j] if seen else "", kind)
    read = ", ".join(str(sum(mask)) for mask in masks)
    bottom = 3.2 + 3.3 * len(masks) + 1.4
    words(axes, left, 1.5, f"the text so far: {P} entries of the target", ha="left", fontsize=9)
    said = f"entries read: {read} of {', '.join(str(len(mask)) for mask in masks)}"
    words(axes, left, bottom, f"{said};  hatched: written by the copy", ha="left")
    return axes.figure


@mpl.rc_context(STYLE)
def blocks_of_texts(
    stages: Mapping[str, Mapping[str, tuple[Sequence[str], Sequence[int]]]],
    blocks: int,
    size: int,
    title: str,
) -> Picture:
    """Which blocks of a pool hold which text, one band a stage: {what it is: {text: …}}.

    Each text is (its tokens, its table): token i lies in block table[i // size]. In a band, the
    texts stand as they read, the number of its block above each part; below, the pool as it lies.
    A block that texts share is darker and says so; a free one has a dotted edge, and in grey what
    it held the stage before.
    """
    tall = [3.2 + 5.0 * len(texts) + 8.4 for texts in stages.values()]
    axes, left = sheet(title, 9.4, 0.3 + sum(tall) / 10), 15.0
    wide, y, inside = (92 - left) / blocks, 0.5, {}
    for (stage, texts), height in zip(stages.items(), tall, strict=True):
        words(axes, 1, y + 1, stage, ha="left", fontweight="bold")
        held = {}
        for n, (name, (tokens, table)) in enumerate(texts.items()):
            top = y + 4.2 + 5.0 * n
            words(axes, left - 1, top + 1.3, name, ha="right")
            for i, block in enumerate(table):
                own = " ".join(shown(x) for x in tokens[size * i : size * (i + 1)])
                held[block], inside[block] = held.get(block, 0) + 1, own
                box(axes, left + wide * i + 0.3, top, wide - 0.6, 2.6, own, "cached")
                words(axes, left + wide * (i + 0.5), top - 1, f"block {block}", fontsize=8)
        top = y + 4.2 + 5.0 * len(texts)
        words(axes, left - 1, top + 1.6, "the pool", ha="right", fontweight="bold")
        for block in range(blocks):
            count = held.get(block, 0)
            kind = ("gone", "cached", "target")[min(count, 2)]
            says = f"{block}: " + (
                f"shared by {count}" if count > 1 else "used" if count else "free"
            )
            middle, holds = left + wide * (block + 0.5), inside.get(block, "")
            box(axes, left + wide * block + 0.3, top, wide - 0.6, 3.2, kind=kind)
            words(axes, middle, top + 1.6, holds, color="black" if count else "#767676")
            words(axes, middle, top + 4.4, says, fontsize=8)
        y += height
    return axes.figure


@mpl.rc_context(STYLE)
def ragged_batch(rows: Sequence[tuple[str, str, str, str]], title: str) -> Picture:
    """A pass over several texts, a row each, and what every row keeps of it.

    Of each text: what is cached, its current token, its guesses, and what the round emits. A dot is
    padding: computed, and dropped. Of a long text the last letters are shown.
    """
    T, left = 1 + max(len(guesses) for _, _, guesses, _ in rows), 14
    most = max(1, min(max(len(cached) for cached, *_ in rows), 17 - T))
    size, step = min(4, 64 / (most + T)), 4.2
    axes = sheet(title, 8, 0.95 + 2 * step * len(rows) / 10)
    second, said = 5.4 + step * len(rows), []
    words(axes, left, 1.4, f"in the pass: a rectangle of {len(rows)} × {T} tokens", ha="left")
    words(axes, left, second, "kept: every row ends where it ends", ha="left")
    for b, (cached, current, guesses, emitted) in enumerate(rows):
        stay, old = len(emitted) - 1, [*shown(cached[max(0, len(cached) - most) :])]
        before = [(x, "cached") for x in ["…", *old[1:]]] if len(cached) > most else None
        before = [(x, "cached") for x in old] if before is None else before
        padding = [("·", "gone")] * (T - 1 - len(guesses))
        inside = [("▸" + shown(current), "target"), *((shown(x), "draft") for x in guesses)]
        fates = [("✓" + shown(x), "accepted") for x in guesses[:stay]]
        fates += [("✗" + shown(x), "rejected") for x in guesses[stay:]]
        y, label = 3.2 + step * b, f"text {b}: {len(cached)} cached"
        strip(axes, left, y, label, [*before, *inside, *padding], size)
        y, cells = y + second - 1.2, [*before, (shown(current), "cached"), *fates]
        strip(axes, left, y, f"then {len(cached) + 1 + stay} cached", cells, size)
        last = "bonus" if stay == len(guesses) else "resampled"
        end = left + size * (len(before) + 1 + len(guesses))
        words(axes, end + 1, y + 1.5, f"next: {MARKS[last][1]} {shown(emitted[-1])}", ha="left")
        said.append(f"text {b}: {len(cached)} cached, {len(guesses)} guesses, {stay} kept")
    axes.figure.rows = said
    return axes.figure


@mpl.rc_context(STYLE)
def batch_masks(rows: Sequence[tuple[str, str, str]], pos, mask, title: str) -> Picture:
    """The mask (B, T, P+T) of a batch as a table for each text, and its positions (B, T).

    Of each text: what is cached, its current token, its guesses; its slots begin in column 0.
    """
    B, T, columns = len(rows), len(pos[0]), len(mask[0][0])
    side, left = min(2.6, 64 / B / columns), 11
    step = max(side * columns + 4, 66 / B)
    axes, said = sheet(title, 9, 0.9 + 0.26 * T), []
    for b, (cached, current, guesses) in enumerate(rows):
        x0, letters = left + step * b, [*shown(cached + current + guesses)]
        for j, letter in enumerate(letters):
            words(axes, x0 + side * (j + 0.5) - 0.1, 3.6, letter, fontsize=8)
        words(axes, x0, 1.2, f"text {b}: {len(cached)} cached", ha="left", fontsize=9)
        for t in range(T):
            y, own = 5 + 2.6 * t, t <= len(guesses)
            name = f"▸{letters[len(cached)]}" if t == 0 else "·"
            name = letters[len(cached) + t] if 0 < t and own else name
            words(axes, x0 - 0.6, y + 1.1, f"{name} {int(pos[b][t])}", ha="right", fontsize=8)
            for j in range(columns):
                sees = bool(mask[b][t][j])
                kind = ("cached" if j < len(cached) else "target") if sees and own else "gone"
                box(axes, x0 + side * j, y, side - 0.3, 2.2, "●" if sees else "", kind)
            seen = sum(map(bool, mask[b][t]))
            said.append(f"text {b}, {name} at position {int(pos[b][t])} sees {seen} slots")
    axes.figure.rows = said
    return axes.figure


@mpl.rc_context(STYLE)
def shared_pass(rows: Sequence[tuple[str, str, str, str]], budget: int, title: str) -> Picture:
    """Who gets how much of a pass: of each request (name, tokens it reads, its current, guesses).

    A box is a token of the budget: a thin edge is read, ▸ the current one, hatched a guess; dotted
    is what nobody wanted.
    """
    widest = max(len("".join(parts)) for _, *parts in rows)
    axes = sheet(title, 8.5, 1.5 + 0.55 * len(rows))
    unit = min(5.0, 56 / widest)
    for i, (name, *parts) in enumerate(rows):
        y, x = 3 + 5.5 * i, 20.0
        words(axes, 1, y + 1.8, name, ha="left")
        for part, kind, mark in zip(
            parts, ("cached", "target", "draft"), ("", "▸", ""), strict=True
        ):
            for letter in part:
                box(axes, x, y, 0.9 * unit, 3.6, mark + shown(letter), kind)
                x += unit
        said = ", ".join(
            f"{len(part)} {what}"
            for part, what in zip(parts, ("to read", "current", "guesses"), strict=True)
            if part
        )
        words(axes, x + 1, y + 1.8, said or "waits for a turn", ha="left", fontsize=9)
    y, one = 4 + 5.5 * len(rows), 56 / budget
    words(axes, 1, y + 1.8, f"budget: {budget}", ha="left", fontweight="bold")
    whole = "".join("ctd"[k] * len(part) for _, *parts in rows for k, part in enumerate(parts))
    for i in range(budget):
        kind = {"c": "cached", "t": "target", "d": "draft"}[whole[i]] if i < len(whole) else "gone"
        box(axes, 20 + i * one, y, 0.85 * one, 3.6, "", kind)
    words(axes, 77, y + 1.8, f"{len(whole)} used", ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def request_lanes(lanes: Mapping[str, Sequence[tuple[str, int]]], title: str) -> Picture:
    """Requests as lanes over the steps of a server: (what, how many tokens) of each step.

    what: "waits", "reads", "writes", "lost" (its places, for others), or "" before and after.
    """
    steps = max(len(lane) for lane in lanes.values())
    axes = sheet(title, 8.5, 1.5 + 0.5 * len(lanes))
    unit, kinds = 72 / steps, {"waits": "gone", "reads": "cached", "writes": "accepted"}
    marks = {"waits": "", "reads": "", "writes": "+", "lost": "✗"}
    for i, (name, lane) in enumerate(lanes.items()):
        y = 2.5 + 5 * i
        words(axes, 1, y + 1.8, name, ha="left")
        for step, (what, n) in enumerate(lane):
            if what:
                said = marks[what] + (str(n) if what in ("reads", "writes") else "")
                where = axes, 12 + step * unit, y, 0.92 * unit, 3.6, said
                box(*where, kinds.get(what, "rejected"))
    y = 4.5 + 5 * len(lanes)
    arrow(axes, (12, y), (84, y))
    words(axes, 1, y, "steps", ha="left")
    legend = ("waits", "gone", ""), ("reads", "cached", "4"), ("writes", "accepted", "+3")
    for k, (what, kind, said) in enumerate((*legend, ("loses its places", "rejected", "✗"))):
        box(axes, 12 + 15 * k, y + 2.5, 3.5, 3.2, said, kind)
        words(axes, 16.2 + 15 * k, y + 4.1, what, ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def outcome_cache(
    guesses: Sequence[str],
    prepared: Sequence[Sequence[tuple[str, str]]],
    came: tuple[int, str],
    title: str,
) -> Picture:
    """What a drafter has prepared while it waits: a column for each number of accepted guesses.

    prepared[k]: (the target's token, the roll-out after it), the likeliest first; came: (k, token),
    the outcome. Spaces and line ends are drawn as signs.
    """
    deepest = max(1, *map(len, prepared))
    axes, wide = sheet(title, 9, 1.7 + 0.45 * deepest), 72 / len(prepared)
    words(axes, 1, 2.4, "handed out", ha="left")
    words(axes, 1, 9.4, "so accepted", ha="left")
    words(axes, 1, 14.4, "then \u2192 roll-out", ha="left")
    for k, column in enumerate(prepared):
        x, (hit_k, hit) = 17 + k * wide, came
        if k < len(guesses):
            box(axes, x, 0.6, 0.9 * wide, 3.6, shown(guesses[k]), "draft")
        words(axes, x + 0.45 * wide, 7.6, f"k = {k}", fontweight="bold")
        words(axes, x + 0.45 * wide, 10.2, shown("".join(guesses[:k])) or "nothing", fontsize=9)
        for row, (token, rollout) in enumerate(column):
            right = (k, token) == (hit_k, hit)
            said = f"{shown(token)} \u2192 {shown(rollout)}" + " \u2713" * right
            kind = "accepted" if right else "plain"
            box(axes, x, 12.6 + 4.5 * row, 0.9 * wide, 3.6, said, kind)
    k, token = came
    found = any(token == t for t, _ in prepared[k])
    what = "a hit, used once; the rest is thrown away" if found else "a miss, so draft now"
    y = 14.6 + 4.5 * deepest
    words(axes, 1, y, f"came: k = {k}, then {shown(token)}: {what}", ha="left", fontweight="bold")
    return axes.figure


@mpl.rc_context(STYLE)
def working_lanes(runs: Mapping[str, tuple[Sequence, Sequence, Sequence]], title: str) -> Picture:
    """Draft and target on a time axis, as they were recorded: {run: (draft, target, answers)}.

    draft: (start, end, rows) of each pass, in ms; target: (start, end); answers: (when, hit) of
    each time that guesses were asked for. Passes over several rows are cross-hatched.
    """
    last = max(end for draft, target, _ in runs.values() for _, end, *_ in [*draft, *target])
    axes, unit = sheet(title, 9, 1.05 + 1.75 * len(runs)), 70 / last
    fill, edge, _, hatch = KINDS["draft"]
    for i, (name, (draft, target, answers)) in enumerate(runs.items()):
        y = 2 + 17.5 * i
        words(axes, 1, y, name, ha="left", fontweight="bold")
        words(axes, 1, y + 5, "draft", ha="left")
        words(axes, 1, y + 10.5, "target", ha="left")
        for start, end, rows in draft:
            place = (17 + start * unit, y + 3), (end - start) * unit, 4
            one = mpl.patches.Rectangle(*place, facecolor=fill, edgecolor=edge, linewidth=0.8)
            axes.add_patch(one).set_hatch("xxx" if rows > 1 else hatch)
        fill_t, edge_t, *_ = KINDS["target"]
        for start, end in target:
            place = (17 + start * unit, y + 8.5), (end - start) * unit, 4
            one = mpl.patches.Rectangle(*place, facecolor=fill_t, edgecolor=edge_t, linewidth=0.8)
            axes.add_patch(one)
        for when, hit in answers:
            mark, colour = ("\u2713", ACCEPTED) if hit else ("\u2717", REJECTED)
            words(axes, 17 + when * unit, y + 1.4, mark, color=colour, fontweight="bold")
    y = 3 + 17.5 * len(runs)
    arrow(axes, (17, y), (89, y))
    words(axes, 1, y, "time in ms", ha="left")
    step = max(1, round(last / 6))
    for tick in range(0, int(last) + 1, step):
        axes.plot([17 + tick * unit] * 2, [y - 0.6, y + 0.6], color=GREY)
        words(axes, 17 + tick * unit, y + 2.2, str(tick), fontsize=9)
    words(
        axes, 1, y + 5.5, "\u2713 the guesses were ready   \u2717 not all   ", ha="left", fontsize=9
    )
    words(
        axes,
        44,
        y + 5.5,
        "hatched: one text; crossed: all roll-outs in one pass",
        fontsize=9,
        ha="left",
    )
    return axes.figure


@mpl.rc_context(STYLE)
def heads_side_by_side(n_head: int, n_embd: int, title: str) -> Picture:
    """Above, each head's three small matrices; below, the one wide matrix that GPT-2 keeps.

    The first head is drawn filled and its way down with arrows, the last one's with dashed ones.
    """
    axes, wide = sheet(title, 9, 2.8), 76 / (3 * n_head)
    last, size, gap = n_head - 1, f"({n_embd // n_head}, {n_embd})", 5.0 / n_head
    for i in range(n_head):
        start = 8 + (3 * wide + gap) * i
        words(axes, start + 1.5 * wide, 1.8, f"head {i + 1}", fontsize=9, color=GREY)
        for j, letter in enumerate("qkv"):
            above, below = start + wide * j, 8 + wide * (j * n_head + i) + 2 * j
            kind, name = "plain" if i else "cached", f"{letter}{i + 1}"
            box(axes, above, 3.2, wide - 0.5, 3.6, name, kind)
            box(axes, below, 16, wide - 0.5, 3.6, name, kind)
            if i in (0, last):
                ends = (above + wide / 2, 6.9), (below + wide / 2, 15.9)
                arrow(axes, *ends, GREY if i else TARGET, "--" if i else "-")
    words(axes, 1, 5, f"ours\n{size}", ha="left", fontsize=9)
    words(axes, 1, 17.8, "c_attn", ha="left", fontsize=9)
    for j, name in enumerate(("queries", "keys", "values")):
        words(axes, 8 + wide * (j + 0.5) * n_head + 2 * j, 21.2, name)
    words(axes, 46, 24.6, f"one matrix, written transposed: ({n_embd}, {3 * n_embd})")
    return axes.figure


@mpl.rc_context(STYLE)
def where_the_draft_comes_in(prompt: str, first: str, second: str, title: str) -> Picture:
    """How an engine makes its first two tokens, and which of the tests meets the draft's part."""
    axes = sheet(title, 9, 2.7)
    flow = [
        (1, 13, shown(prompt), "plain", "the prompt"),
        (20, 15, "target's pass\np", "target", "prefill"),
        (41, 7, shown(first), "plain", "token 1"),
        (54, 13, "draft\nguesses, q", "draft", "round 1"),
        (70, 9, "accept\nor reject", "plain", ""),
        (82, 7, shown(second), "plain", "token 2"),
    ]
    for (x, w, text, kind, name), after in zip(flow, [*flow[1:], None], strict=True):
        box(axes, x, 5, w, 6, text, kind)
        words(axes, x + w / 2, 3.2, name, fontsize=9, color=GREY)
        if after:
            arrow(axes, (x + w, 8), (after[0], 8))
    tests = [
        (44.5, "a test of token 1\nnever meets the draft"),
        (85.5, "a test of token 2\nor of both does"),
    ]
    for x, text in tests:
        arrow(axes, (x, 16), (x, 11.6))
        words(axes, min(x, 79), 18.4, text)
    said = "greedy: p has one outcome, so whatever is drawn instead is the same token"
    words(axes, 45, 24.4, said)
    axes.plot([1, 89], [21.9, 21.9], color=GREY, linewidth=0.8)
    return axes.figure


@mpl.rc_context(STYLE)
def verdicts(
    rows: Mapping[str, Sequence[tuple[str, bool]]], columns: Sequence[str], title: str
) -> Picture:
    """A table of tests: {engine: (what it said, whether it passed) for each column}."""
    left, wide = 30.0, min(14.5, 59 / len(columns))
    axes = sheet(title, 9, 0.55 + 0.4 * len(rows))
    for j, name in enumerate(columns):
        words(axes, left + wide * (j + 0.5), 2, name, fontsize=9, color=GREY)
    for i, (name, cells) in enumerate(rows.items()):
        words(axes, left - 1, 5.4 + 4 * i, name, ha="right")
        for j, (said, passed) in enumerate(cells):
            kind, mark = ("accepted", "✓") if passed else ("rejected", "✗")
            box(axes, left + wide * j + 0.3, 3.8 + 4 * i, wide - 0.6, 3.2, f"{mark} {said}", kind)
    return axes.figure


@mpl.rc_context(STYLE)
def memory_shares(rows: Mapping[str, Sequence[tuple[str, float, str]]], title: str) -> Picture:
    """A machine's memory as a bar, one a row: {row: [(what lies there, GB, kind of box), …]}.

    Each part is as wide as it is large; parts too narrow for their words have them below.
    """
    axes = sheet(title, 9, 0.4 + 1.15 * len(rows))
    unit = 66 / max(sum(size for _, size, _ in parts) for parts in rows.values())
    for i, (name, parts) in enumerate(rows.items()):
        x, y = 22.0, 1.5 + 11.5 * i
        words(axes, 1, y + 2.5, name, ha="left", fontweight="bold")
        for what, size, kind in parts:
            wide, said = size * unit, f"{what}\n{size:.0f}"
            roomy = wide > 0.75 * len(what) + 1.5
            box(axes, x, y, max(wide, 0.2), 5, said if roomy else "", kind)
            if not roomy and what:
                words(axes, x + wide / 2, y + 7, said, fontsize=9)
            x += wide
    words(axes, 88, 11.5 * len(rows) + 1.2, "sizes in GB", ha="right", fontsize=9)
    return axes.figure
