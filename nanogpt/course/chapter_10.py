"""Chapter 10: the judge of *Your turn*, and the chapter's own pictures.

The turn: back-off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import matplotlib as mpl

from nanogpt.course.chapter_09 import counting
from nanogpt.show.diagrams import KINDS, arrow, box, sheet, words
from nanogpt.show.figures import DRAFT, GREY, STYLE, Picture, shown

WHOLE = "__iter__", "keys", "items"  # of a dictionary: who calls them goes through all of it


def judge(mine: Callable) -> None:
    """Judges my_row(counts, context, letters): the row {letter: q} after a context, backed off.

    A list of q in the order of `letters` will do. Raises AssertionError where a row is none, is not
    the longest known context's, does not mix with its parent as Witten and Bell do, `counts` is
    changed, or far more of it is looked at than the walk needs.
    """
    cases = [("abracadabra", 2, "abcdr", x) for x in ("", "a", "ra", "cr", "za", "bra", "zz")]
    cases += [("one hen, then ten", 3, " ,ehnotz", x) for x in ("the", "a hen", "on", "z")]
    for text, order, letters, context in cases:
        counts, letters = counts_of(text, order), list(letters)
        right = row_of(counts, context, letters)
        known = next(context[i:] for i in range(len(context) + 1) if context[i:] in counts)
        case = f"{text!r}, after {context!r}"
        case += f", of which counts knows {known!r}" * (known != context)
        try:
            calls = Counter()
            watched = counting(dict, calls, "get", "__getitem__", *WHOLE)(counts)
            got = mine(watched, context, letters)
        except KeyError as error:
            raise AssertionError(f"{case}: KeyError {error}; walk only to what is known") from error
        same = repr(watched) == repr(counts_of(text, order))  # an entry of 0 is a change, too
        assert same, f"{case}: counts was changed; leave it alone"
        assert got is not None, f"{case}: None came back; return {{letter: q}}"
        try:
            row = got if isinstance(got, Mapping) else dict(zip(letters, got, strict=True))
            got = {x: float(q) for x, q in row.items()}
        except (TypeError, ValueError, RuntimeError):
            raise AssertionError(
                f"{case}: return {{letter: q}}, one number for each of the letters, not {got!r}"
            ) from None
        missing = "".join(x for x in letters if x not in got)
        assert not missing, f"{case}: no q for the letters {missing}; each has a share above 0"
        more = [x for x in got if x not in letters]
        assert not more, f"{case}: a q for {more[0]!r}, which is none of the letters"
        for fault, wrong in slips_of_back_off(counts, known, letters):
            assert same_row(wrong, right) or not same_row(got, wrong), f"{case}: {fault}"
        total = sum(got.values())
        assert abs(total - 1) < 1e-4, (
            f"{case}: the row sums to {total:.3f}; divide by all sightings"
        )
        worst = max(letters, key=lambda x: abs(got[x] - right[x]))
        assert same_row(got, right), (
            f"{case}: q({worst}) is {got[worst]:.4f} instead of {right[worst]:.4f}; is every row "
            "on the way mixed with the one before it, down to the even row?"
        )
        most = 3 * len(letters) * (len(context) + 1)  # so an answer may look for each letter anew
        looks = "all" if any(calls[name] for name in WHOLE) else calls.total()
        assert looks != "all" and looks <= most, (
            f"{case}: right, but it looks at {looks} contexts where {len(known) + 1} will do; go "
            "from the root outward, a letter a step, and make each row once"
        )


def counts_of(text: str, order: int) -> dict[str, Counter]:
    """{context: how often each letter followed it}, of contexts up to `order` letters."""
    counts = {}
    for n in range(order + 1):
        for i in range(n, len(text)):
            counts.setdefault(text[i - n : i], Counter())[text[i]] += 1
    return counts


def row_of(counts, context: str, letters, surprises: Callable = len, newest=False) -> dict:
    """{letter: q} after `context`. Slips: other `surprises`, or the `newest` letter dropped."""
    seen, row = counts.get(context), dict.fromkeys(letters, 1 / len(letters))
    if context:
        row = row_of(counts, context[:-1] if newest else context[1:], letters, surprises, newest)
    return mixed(seen, row, surprises(seen)) if seen else row


def mixed(seen: Mapping, row: Mapping, u: float) -> dict:
    """The counts `seen` and u imagined ones, spread as `row` says."""
    total = sum(seen.values()) + u
    return {x: (seen.get(x, 0) + u * row[x]) / total for x in row}


def same_row(a: Mapping, b: Mapping) -> bool:
    """Whether two rows agree, to 1e-4: a table may hold 32-bit numbers."""
    return all(abs(a[x] - b[x]) < 1e-4 for x in b)


def slips_of_back_off(counts, known: str, letters: list[str]) -> Iterator[tuple[str, dict]]:
    """What is wrong with the row after the context `known`, and that row, for well-known slips."""
    seen, V = counts[known], len(letters)
    even, root = dict.fromkeys(letters, 1 / V), row_of(counts, "", letters)
    yield "these are its bare counts; its parent's row has no share in it", mixed(seen, even, 0)
    yield "this is the even row, as if nothing were known", even
    yield "this is the root's row; walk to the longest end that is known", root
    wrong = row_of(counts, known[1:], letters)
    yield "this is its parent's row; its own counts have no share in it", wrong
    wrong = row_of(counts, known, letters, newest=True)
    yield "its parent lacks the newest letter; it must lack the oldest, the first", wrong
    for what, u in (
        ("the number of followers", lambda seen: sum(seen.values())),
        ("1", lambda seen: 1),
        ("the number of all letters", lambda seen: V),
    ):
        wrong = row_of(counts, known, letters, u)
        yield f"its parent's share is {what}, not how many *different* letters followed", wrong
    whole = even
    for n in range(len(known) + 1):
        whole = mixed(counts[known[-n:]], whole, len(counts[known[-n:]]))
    yield "was n = 0 the empty context? context[-0:] is all of it, not its last 0 letters", whole
    bare = mixed(counts[known[1:]], even, 0)
    for what, above in (("the even row", even), ("the root's row", root), ("bare counts", bare)):
        wrong = mixed(seen, above, len(seen))
        yield f"mixed with {what}; mix with its parent's row, which is mixed itself", wrong


@mpl.rc_context(STYLE)
def context_walk(walk: Sequence[tuple[str, Mapping[str, int]]], title: str) -> Picture:
    """A walk back through a text: (context, {follower: how often}), from the empty context on.

    Each known context shows what its row is made of: its own counts and, weighted by how many
    different followers it has, the row above. One without followers is unknown, and ends the walk.
    """
    known = shown([context for context, seen in walk if seen][-1])
    shows = f"From nothing to “{known}”, each row mixes its own counts with the row above."
    axes = sheet(title, 8, 0.7 + 0.48 * len(walk), shows)
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
