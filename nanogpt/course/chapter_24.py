"""Chapter 24: the judge of *Your turn*, and the chapter's own pictures.

The turn: who gets how much of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import matplotlib as mpl

from nanogpt.sampling import Sampling
from nanogpt.show.diagrams import arrow, box, sheet, strip, words
from nanogpt.show.figures import GREY, REJECTED, SERIES, STYLE, Picture, picture, shown

CASES = (  # what it is about, wants, running, (token_budget, prefill_chunk, free), right
    ("nobody is there", [], 0, (8, 4, 9), []),
    ("there is room for all", [(3, 3), (1, 1)], 0, (8, 4, 9), [3, 1]),
    ("a new prompt is read in parts", [(9, 9), (2, 2)], 0, (16, 4, 99), [4, 2]),
    ("a prompt that runs is read in parts", [(9, 9), (2, 2)], 1, (16, 4, 99), [4, 2]),
    ("the budget ends in the middle of a share", [(4, 4), (3, 3)], 0, (5, 4, 99), [4, 1]),
    ("the budget ends between two shares", [(4, 4), (3, 3)], 1, (4, 4, 99), [4]),
    ("the budget is small, and all run", [(4, 4), (3, 3), (2, 2)], 3, (4, 4, 99), [2, 1, 1]),
    ("one reads, and two write", [(9, 9), (1, 1), (1, 1)], 3, (8, 9, 99), [6, 1, 1]),
    ("two read", [(4, 4), (3, 3)], 2, (5, 4, 99), [4, 1]),
    ("places are exactly enough", [(2, 5), (2, 4)], 2, (16, 4, 9), [2, 2]),
    ("no place is free, and none is needed", [(1, 0), (3, 2)], 1, (16, 4, 0), [1]),
    ("places run out for one who waits", [(2, 5), (2, 4), (2, 1)], 1, (16, 4, 9), [2, 2]),
    ("part of a prompt would fit", [(2, 5), (9, 9)], 1, (16, 4, 9), [2]),
    ("a smaller one comes after", [(2, 5), (2, 5), (2, 2)], 1, (16, 4, 9), [2]),
    ("places run out for one who runs", [(2, 5), (2, 5)], 2, (16, 4, 9), [2]),
    ("the first has the most", [(2, 6), (1, 2), (1, 3)], 3, (16, 4, 9), [2, 1]),
    ("one makes room, and a smaller one waits", [(2, 5), (2, 5), (2, 2)], 2, (16, 4, 9), [2]),
    ("two must make room", [(2, 5), (2, 5), (2, 5)], 3, (16, 4, 9), [2]),
    ("all must make room", [(2, 5), (1, 1)], 2, (16, 4, 4), []),
)
WHYS = {  # of the first slip: why
    "a new prompt is read in parts": "no request gets more than `prefill_chunk` tokens in one pass",
    "a prompt that runs is read in parts": "`prefill_chunk` holds for those that run as well: the "
    "rest of a long prompt is as long",
    "the budget ends in the middle of a share": "whoever is last gets what is left of the budget",
    "the budget ends between two shares": "nobody begins with 0 tokens, and none is kept back for "
    "those that wait: a list ends before them",
    "the budget is small, and all run": "a token for each that runs and comes later is kept back, "
    "or they stand still; what is over goes to the first",
    "one reads, and two write": "one token is kept back for each, and no more: the first takes "
    "the rest",
    "two read": "in order of arrival: the second gets more than one only of what the first leaves",
    "places are exactly enough": "`free` is the number of places there are; all may be filled",
    "no place is free, and none is needed": "whoever needs no more places goes on: `needs` counts "
    "places, and `to_do` counts tokens",
    "places run out for one who waits": "places are added up over all that take part; the one that "
    "would need more than are free waits",
    "part of a prompt would fit": "who begins needs places for all of its context, not for a part",
    "a smaller one comes after": "nobody overtakes: stop at the first that has no places",
    "places run out for one who runs": "the last to come makes room, and the list is shorter than "
    "`running`",
    "the first has the most": "the last to come makes room, whoever holds the most places",
    "one makes room, and a smaller one waits": "where a place was taken away, nobody begins",
    "two must make room": "as many make room, from the end, as it takes",
    "all must make room": "where even the first does not fit, the list is empty",
}


def judge(mine: Callable) -> None:
    """*Your turn* of 24: the shares of a pass.

    mine(wants, running, token_budget, prefill_chunk, free) returns a list of whole numbers (or a
    tuple, an array or a generator). Raises AssertionError for a wrong share or length, and for a
    changed list.
    """
    for name, wants, running, limits, right in CASES:
        given = list(wants)
        got = mine(given, running, *limits)
        names = "token_budget, prefill_chunk, free"
        where = f"{name}: wants {wants}, running {running}, {names} {limits}"
        assert got is not None, f"{where}: nothing came back; return the list of shares"
        try:
            shares = [int(n) for n in got]
        except (TypeError, ValueError):
            raise AssertionError(f"{where}: {got!r} is no list of whole numbers") from None
        assert given == wants, f"{where}: the caller's list is changed: {given}"
        why = WHYS.get(name, "each gets what it has to do, as long as there is enough")
        assert shares == right, f"{where}: {shares}, not {right}; {why}"


def long_begins(choose: Callable, passes: int = 1000) -> int | None:
    """The pass in which a long request gets the only seat; None if none of so many.

    choose(waiting) is the index of who is next; waiting: (to do, passes waited), in order of
    arrival. The long one takes 9 passes and is there from the start; a short one, of 2, comes every
    second pass.
    """
    waiting, free_at = [(2, 0), (9, 0)], 0
    for now in range(passes):
        if now and now % 2 == 0:
            waiting.append((2, now))
        if now >= free_at:
            to_do, _ = waiting.pop(choose([(n, now - since) for n, since in waiting]))
            if to_do == 9:
                return now
            free_at = now + to_do
    return None


@mpl.rc_context(STYLE)
def shared_pass(rows: Sequence[tuple[str, str, str, str]], budget: int, title: str) -> Picture:
    """Who gets how much of a pass: of each request (name, tokens it reads, its current, guesses).

    A box is a token of the budget: a thin edge is read, ▸ the current one, hatched a guess; dotted
    is what nobody wanted. The budget is filled in the order in which it is given away.
    """
    widest = max(len("".join(parts)) for _, *parts in rows)
    shows = f"{len(rows)} requests share {budget} tokens: first what must be read, then guesses."
    axes = sheet(title, 8.5, 0.95 + 0.55 * len(rows), shows)
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
        words(axes, x + 1, y + 1.8, said, ha="left", fontsize=9)
    y, one = 4 + 5.5 * len(rows), 56 / budget
    words(axes, 1, y + 1.8, f"budget: {budget}", ha="left", fontweight="bold")
    known = "".join("c" * len(read) + "t" * len(current) for _, read, current, _ in rows)
    whole = known + "".join("d" * len(guesses) for *_, guesses in rows)
    for i in range(budget):
        kind = {"c": "cached", "t": "target", "d": "draft"}[whole[i]] if i < len(whole) else "gone"
        box(axes, 20 + i * one, y, 0.85 * one, 3.6, "", kind)
    words(axes, 77, y + 1.8, f"{len(whole)} used", ha="left", fontsize=9)
    return axes.figure


@mpl.rc_context(STYLE)
def rows_of_a_request(passes: Sequence[tuple[str, str, str, str]], title: str) -> Picture:
    """A request in pass after pass: what enters, which rows of p are used for what, what stays.

    Of each pass: the unread tokens in it, the current one, its guesses, and what the round emits;
    without a current token there is no round.
    """
    widest = max(len("".join(parts[:3])) for parts in passes)
    size, band = min(4.2, 68 / (widest + 1)), 14.6
    shows = "Three rows a pass: what enters, what its p is used for, and which entries stay."
    axes = sheet(title, max(8.5, (20 + size * (widest + 1)) / 10), 0.1 * band * len(passes), shows)
    for i, (unread, current, guesses, emitted) in enumerate(passes):
        y, known, kept = 3.4 + band * i, len(unread + current), len(emitted) - 1
        words(axes, 1, y - 1.2, f"pass {i + 1}", ha="left", fontweight="bold")
        enters = [(shown(x), "cached") for x in unread]
        enters += [("▸" + shown(x), "target") for x in current]
        enters += [(shown(x), "draft") for x in guesses]
        rows = [("·", "gone")] * len(unread)  # of p: dropped
        for k, guess in enumerate(guesses[: kept + 1] if current else ""):
            rows.append((f"✓{shown(guess)}", "accepted") if k < kept else ("✗", "rejected"))
        if current and kept == len(guesses):
            rows.append((f"★{shown(emitted[-1])}", "bonus"))
        elif current:
            rows[-1] = (f"✗↻{shown(emitted[-1])}", "resampled")
        rows += [("·", "gone")] * (len(enters) - len(rows))
        stays = [("●", "cached")] * (known + max(0, kept))
        stays += [("✗", "rejected")] * (len(enters) - len(stays))
        for k, (label, cells) in enumerate(
            (("enters", enters), ("its row of p", rows), ("its entry", stays))
        ):
            strip(axes, 16, y + 3.7 * k, label, cells, size)
    return axes.figure


def lanes_and_needs(server, coming: Mapping[int, Sequence], n_new: int) -> tuple[dict, list, dict]:
    """What each request did in each step, what those that ran needed, and all generations.

    coming: {step: prompts that arrive before it}, each continued greedily by n_new tokens. The
    first answer is for `request_lanes`; the second has, of each step, the places that the requests
    which ran needed for their contexts and current tokens.
    """
    lanes, needed, done = {}, [], {}
    while len(needed) <= max(coming) or server.requests:
        for prompt in coming.get(len(needed), []):
            server.submit(prompt, n_new, Sampling(0))
        before = [(r, len(r.tokens), r.cache_length) for r in server.requests]
        needs = sum(r.position + 1 for r in server.queue.running)
        done |= server.step()
        for r, length, cached in before:
            lane = lanes.setdefault(f"request {r.id}", [("", 0)] * len(needed))
            wrote, read = len(r.tokens) - length, r.cache_length - cached
            what = "writes" if wrote else "lost" if read < 0 else "reads"
            lane.append((what if wrote or read else "waits", wrote or read))
        needed.append(needs)
    return lanes, needed, done


@mpl.rc_context(STYLE)
def request_lanes(
    lanes: Mapping[str, Sequence[tuple[str, int]]],
    needed: Sequence[int],
    places: int,
    title: str,
) -> Picture:
    """Requests as lanes over the steps of a server: (what, how many tokens) of each step.

    what: "waits", "reads", "writes", "lost" (its places, for others), or "" before and after. Below
    the lanes a bar for each step: the places that all who ran needed, beside those there are.
    """
    steps = max(len(lane) for lane in lanes.values())
    shows = f"Where {len(lanes)} requests need more than {places} places, the newest loses its own."
    axes = sheet(title, 8.5, 2.3 + 0.5 * len(lanes), shows)
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
    y = 12.5 + 5 * len(lanes)  # the floor of the bars
    words(axes, 1, y - 6.2, "needed by\nthose who run", ha="left", fontsize=9)
    for step, n in enumerate(needed[:steps]):
        high, full = 6 * n / places, n > places
        kind = "rejected" if full else "cached"
        box(axes, 12 + step * unit, y - high, 0.92 * unit, high, "", kind if n else "gone")
        style = {"fontweight": "bold", "color": REJECTED} if full else {}
        words(axes, 12 + (step + 0.46) * unit, y + 1.3, str(n), fontsize=9, **style)
    axes.plot([12, 84], [y - 6] * 2, color=GREY, linestyle="--")
    words(axes, 84.5, y - 6, f"{places}\nthere", ha="right", va="center", fontsize=9, zorder=5)
    arrow(axes, (12, y + 4), (84, y + 4))
    words(axes, 1, y + 4, "steps", ha="left")
    legend = ("waits", "gone", ""), ("reads", "cached", "4"), ("writes", "accepted", "+3")
    for k, (what, kind, said) in enumerate((*legend, ("loses its places", "rejected", "✗"))):
        box(axes, 12 + 15 * k, y + 6, 3.5, 3.2, said, kind)
        words(axes, 16.2 + 15 * k, y + 7.6, what, ha="left", fontsize=9)
    return axes.figure


PARTS = {"shares": "plan", "batch": "guesses", "verified": "pass", "take_part": "verdict"}


def steps_of(server, requests: Sequence[tuple], clock: Callable[[], float] = perf_counter):
    """{part: mean seconds of a step}, the whole "step" included, and the texts {id: tokens}.

    server: one whose methods may be wrapped. requests: (prompt, new tokens), continued greedily.
    "ahead": of an OverlapServer, the next step's plan, made while the pass runs.
    """
    took = dict.fromkeys(["step", "ahead", *PARTS.values()], 0.0)

    def timed(do: Callable, part: str) -> Callable:
        def done(*given):
            began = clock()
            try:
                return do(*given)
            finally:
                took[part] += clock() - began

        return done

    for name, part in (PARTS | {"foresee": "ahead", "step": "step"}).items():
        if hasattr(server, name):
            setattr(server, name, timed(getattr(server, name), part))
    for request in requests:
        server.submit(*request, Sampling(0))
    texts, steps = {}, 0
    while server.requests or server.finished:
        texts |= {id: made.tokens for id, made in server.step().items()}
        steps += 1
    took["guesses"] -= took["plan"]  # made within `batch`
    return {part: seconds / steps for part, seconds in took.items()}, texts


@mpl.rc_context(STYLE)
def two_lanes(servers: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> Picture:
    """Two steps of each server on a time axis: the CPU's work, and beneath it the pass.

    servers: of each name, what `steps_of` says of several runs, of which the medians are drawn;
    "ahead" is the CPU's during the pass.
    """
    axes = picture(title, "ms", "", 8, 1.2 + 1.1 * len(servers))
    fills = dict(zip(("plan", "guesses", "verdict", "pass"), SERIES, strict=False))
    for i, runs in enumerate(servers.values()):
        ms = {part: 1000 * median(run[part] for run in runs) for part in runs[0]}
        at = 0.0
        for part in ("plan", "guesses", "pass", "verdict") * 2:
            bars = [(part, at, ms[part], 3 * i + (part == "pass"))]
            if part == "pass":
                bars.append(("plan", at, ms["ahead"], 3 * i))
            for what, left, wide, y in bars:
                colour, _, _, hatch = fills[what]
                look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}
                axes.broken_barh([(left, wide)], (y, 0.8), linewidth=0, **look)
            at += ms[part]
    ends = [f"{name}: {lane}" for name in servers for lane in ("CPU", "pass")]
    axes.set_yticks([3 * (i // 2) + i % 2 + 0.4 for i in range(len(ends))], ends)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    marks = [
        mpl.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=part)
        for part, (colour, _, _, hatch) in fills.items()
    ]
    axes.figure.legend(handles=marks, loc="outside lower left", ncols=4)
    return axes.figure


@mpl.rc_context(STYLE)
def curves(
    x: Sequence[float],
    ys: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    levels: Mapping[str, float] | None = None,
    log: str = "",
) -> Picture:
    """A line for each policy, as long as `x`; log: "x", "y" or "xy", the axes with a log scale.

    levels: values drawn as dotted lines across, those with a policy's name in its colour.
    """
    axes, styles = picture(title, xlabel, ylabel, 8, 3.8), {}
    for (name, y), (colour, dash, marker, _) in zip(ys.items(), SERIES, strict=False):
        axes.plot(x, y, color=colour, linestyle=dash, marker=marker, label=name)
        styles[name] = colour
    for name, level in (levels or {}).items():
        label = None if name in styles else name
        axes.axhline(level, color=styles.get(name, GREY), linestyle=(0, (1, 2)), label=label)
    for axis in log:
        getattr(axes, f"set_{axis}scale")("log")
        ticks = getattr(axes, f"{axis}axis")
        ticks.set_major_formatter("{x:g}")
        if axis == "x":
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    if "y" not in log:
        axes.set_ylim(0)
    axes.figure.legend(loc="outside lower left", ncols=5)
    return axes.figure
