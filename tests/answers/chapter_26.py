"""Chapter 26: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_outcomes(q, guesses, fans):
    found = []
    for k in range(len(guesses) + 1):
        order = q[k].argsort(descending=True).tolist()
        may = [t for t in order if k == len(guesses) or t != guesses[k]]
        found += [(k, t) for t in may[: fans[k]]]
    return found
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


RIGHT = {
    0: [
        "from nanogpt.drafts.ahead import likely_outcomes as my_outcomes",
        """
def my_outcomes(q, guesses, fans):
    rows = q.clone()
    for k, guess in enumerate(guesses):
        rows[k, guess] = -1
    pairs = set()
    for k, n in enumerate(fans):
        best = rows[k].topk(min(n, rows.shape[1] - (k < len(guesses)))).indices
        pairs |= {(k, int(t)) for t in best}
    return pairs
""",
        """
def my_outcomes(q, guesses, fans):
    for k, row in enumerate(q.tolist()):
        left = dict(enumerate(row))
        if k < len(guesses):
            del left[guesses[k]]
        for t in sorted(left, key=left.get, reverse=True)[: fans[k]]:
            yield k, t
""",
        TEMPLATE,
    ],
    1: [
        """
def my_gain(T_d, hit):
    return (1 + T_d) / (hit * max(1, T_d) + (1 - hit) * (1 + T_d))
""",
        """
def my_gain(T_d, hit):
    miss = 1 - hit
    one_after_the_other = 1 + T_d
    together = T_d if T_d > 1 else 1.0
    mean = hit * together + miss * one_after_the_other
    return one_after_the_other / mean
""",
    ],
}

WRONG = {
    0: [
        (slip("k == len(guesses) or t != guesses[k]", "True"), "cannot come"),
        (slip("range(len(guesses) + 1)", "range(len(guesses))"), "every token may come"),
        (slip("may[: fans[k]]", "may[:1]"), "outcomes for k"),
        (slip("q[k].argsort(descending=True)", "q[k].argsort()"), "the likeliest"),
        (slip("[(k, t) for t in may", "[(k + 1, t) for t in may"), "there is no outcome"),
        (slip("[(k, t) for t in may", "[(t, k) for t in may"), "there is no outcome"),
        (slip("found += [(k, t) for t in may[: fans[k]]]", "found += may[: fans[k]]"), "pairs"),
        (slip("return found", "pass"), "nothing came back"),
        (slip("return found", "return found + found"), "twice"),
        (
            slip(
                "may = [t for t in order if k == len(guesses) or t != guesses[k]]",
                "may = [t for t in order if t not in guesses[k:] + guesses[-1:]]",
            ),
            "guessed elsewhere",
        ),
        (
            slip("found += [(k, t) for t in may[: fans[k]]]", "top = order[: fans[k]]").replace(
                "top = order[: fans[k]]",
                "top = order[: fans[k]]\n        found += [(k, t) for t in top if t in may]",
            ),
            "leave out the guess before you count",
        ),
    ],
    1: [
        (  # forgets that a miss costs both
            """
def my_gain(T_d, hit):
    return hit * (1 + T_d) / max(1, T_d)
""",
            "a miss",
        ),
        (  # speeds averaged, not times
            """
def my_gain(T_d, hit):
    return hit * (1 + T_d) / max(1, T_d) + (1 - hit)
""",
            "times",
        ),
        (  # drafting is always hidden
            """
def my_gain(T_d, hit):
    return (1 + T_d) / (hit + (1 - hit) * (1 + T_d))
""",
            "slower than a verification",
        ),
        (  # on a miss, what is hidden on a hit comes again
            """
def my_gain(T_d, hit):
    return (1 + T_d) / (max(1, T_d) + (1 - hit) * T_d)
""",
            "however slow drafting is",
        ),
    ],
}
