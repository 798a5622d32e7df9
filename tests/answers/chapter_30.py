"""Answers to the turn (0) and exercises of chapter 30 that must pass, and some that must not."""

SAME = """
def my_accept_same(candidates, draft_probs, target_probs, rng):
    emitted = []
    for i in range(len(candidates) + 1):
        token = rng.categorical(target_probs[i])
        emitted.append(token)
        if i == len(candidates) or token != candidates[i]:
            break
    return emitted
"""


def same(old, new):
    """The right rule with one place changed."""
    assert SAME.count(old) == 1, old
    return SAME.replace(old, new)


RIGHT = {
    0: [
        SAME,
        "from nanogpt.same import accept_same as my_accept_same",
        # NumPy rows, and a tuple
        """
def my_accept_same(candidates, draft_probs, target_probs, rng):
    emitted = ()
    for guess, row in zip(candidates, target_probs.numpy()):
        emitted += (rng.categorical(row),)
        if emitted[-1] != guess:
            return emitted
    return (*emitted, rng.categorical(target_probs[-1].numpy()))
""",
        # round by round, each from the rest
        """
def my_accept_same(candidates, draft_probs, target_probs, rng):
    token = rng.categorical(target_probs[0].tolist())
    if not len(candidates) or token != candidates[0]:
        return [token]
    rest = my_accept_same(candidates[1:], draft_probs[1:], target_probs[1:], rng)
    return [token] + rest
""",
    ],
    1: [
        """
def my_first_to_ring(p, u):
    runs = np.flatnonzero(p)
    return int(runs[(-np.log(u[runs]) / p[runs]).argmin()])
""",
        """
def my_first_to_ring(p, u):
    rings = {x: -np.log(u[x]) / p[x] for x in range(len(p)) if p[x] > 0}
    return min(rings, key=rings.get)
""",
        # u to the power of 1/p, the largest: the same clocks, read backwards
        """
def my_first_to_ring(p, u):
    return max((np.log(u[x]) / p[x], x) for x in range(len(p)) if p[x] > 0)[1]
""",
    ],
    2: [
        """
def my_siblings(q, g, k):
    order = (-scores(q, g)).argsort()[:k]
    return [int(x) for x in order if q[x] > 0]
""",
        """
def my_siblings(q, g, k):
    runs = [x for x in range(len(q)) if q[x] > 0]
    return sorted(runs, key=lambda x: -(np.log(q[x]) + g[x]))[:k]
""",
    ],
}

WRONG = {
    0: [
        (  # rejection sampling
            "from nanogpt.speculative import accept_reject as my_accept_same",
            "a coin was tossed",
        ),
        (  # all rows are drawn first
            """
def my_accept_same(candidates, draft_probs, target_probs, rng):
    drawn = [rng.categorical(row) for row in target_probs]
    n = 0
    while n < len(candidates) and drawn[n] == candidates[n]:
        n += 1
    return drawn[: n + 1]
""",
            "draw no more than you emit",
        ),
        (  # no bonus token
            same("range(len(candidates) + 1)", "range(len(candidates))"),
            "came out instead of",
        ),
        (  # nothing in the place of a wrong guess
            same(
                "        emitted.append(token)\n        if i == len(candidates) or token",
                "        if i < len(candidates) and token == candidates[i]:\n"
                "            emitted.append(token)\n        if i == len(candidates) or token",
            ),
            "came out instead of",
        ),
        (  # the guess stays
            same("emitted.append(token)", "emitted.append([*candidates, token][i])"),
            "is always what is emitted",
        ),
        (  # goes on after a wrong guess
            same(" or token != candidates[i]", ""),
            "the round ends with the first draw that was not guessed",
        ),
        (  # draws the target's token from q
            same(
                "rng.categorical(target_probs[i])",
                "rng.categorical([*draft_probs, target_probs[-1]][i])",
            ),
            "the target draws from its own p",
        ),
        (  # one row for all
            same("target_probs[i]", "target_probs[0]"),
            "one row after another",
        ),
    ],
    1: [
        (  # the last to ring
            RIGHT[1][0].replace("argmin", "argmax"),
            "wins",
        ),
        (  # slower where p is large
            RIGHT[1][0].replace("/", "*"),
            "wins",
        ),
        (  # a letter of probability 0 divides by 0
            """
def my_first_to_ring(p, u):
    return int((-np.log(u) / p).argmin())
""",
            "divide by zero",
        ),
    ],
    2: [
        (  # the likeliest, without the wind
            """
def my_siblings(q, g, k):
    return [int(x) for x in (-q).argsort()[:k] if q[x] > 0]
""",
            "not [",
        ),
        (  # what q cannot draw comes, too
            """
def my_siblings(q, g, k):
    with np.errstate(divide="ignore"):
        return (-(np.log(q) + g)).argsort()[:k].tolist()
""",
            "that q cannot draw",
        ),
        (  # the wrong end
            """
def my_siblings(q, g, k):
    order = scores(q, g).argsort()
    return [int(x) for x in order if q[x] > 0][:k]
""",
            "not [",
        ),
    ],
}
