"""Answers to the turn (0) and exercises of chapter 34 that must pass, and some that must not."""

LEARNT = """
def my_learnt(base, lessons, context, prior):
    rows = [row for known, row in lessons if known == context]
    total = prior + len(rows)
    return [(prior * q + sum(row[x] for row in rows)) / total for x, q in enumerate(base)]
"""

BIAS = """
def my_bias(p, q, late):
    kept = [b * min(1, a / c) for a, b, c in zip(p, q, late)]
    rest = [max(0, a - c) for a, c in zip(p, late)]
    total = sum(rest)
    again = [r / total for r in rest] if total > 1e-12 else p
    return [k + (1 - sum(kept)) * r for k, r in zip(kept, again)]
"""

TRUST = """
def my_trust(first, second):
    odds = sum(np.log(second)) - sum(np.log(first))
    return 1 / (1 + np.exp(min(odds, 700)))
"""


def changed(source, old, new):
    """An answer with one place changed."""
    assert source.count(old) == 1, old
    return source.replace(old, new)


RIGHT = {
    0: [
        LEARNT,
        "from nanogpt.course.chapter_34 import learnt as my_learnt",
        # in NumPy
        """
def my_learnt(base, lessons, context, prior):
    q = prior * np.array(base)
    for known, row in lessons:
        if known == context:
            q = q + row
    return q / q.sum()
""",
        # one lesson after another, each with the weight that it has by then
        """
def my_learnt(base, lessons, context, prior):
    q, weight = list(base), prior
    for known, row in lessons:
        if known == context:
            q = [(weight * a + b) / (weight + 1) for a, b in zip(q, row)]
            weight += 1
    return q
""",
    ],
    1: [
        BIAS,
        # by enumeration of one round
        """
def my_bias(p, q, late):
    got = [0.0] * len(p)
    excess = np.maximum(np.subtract(p, late), 0)
    again = excess / excess.sum() if excess.sum() > 1e-12 else np.array(p)
    for guess, chance in enumerate(q):
        stays = min(1.0, p[guess] / late[guess])
        got[guess] += chance * stays
        for token in range(len(p)):
            got[token] += chance * (1 - stays) * again[token]
    return got
""",
    ],
    2: [
        TRUST,
        # the larger one first
        """
def my_trust(first, second):
    a, b = np.log(first).sum(), np.log(second).sum()
    most = max(a, b)
    return np.exp(a - most) / (np.exp(a - most) + np.exp(b - most))
""",
        # a tensor without dimensions
        """
def my_trust(first, second):
    a, b = (torch.tensor(each).double().log().sum() for each in (first, second))
    return torch.sigmoid(a - b)
""",
    ],
}

WRONG = {
    0: [
        (  # 1 for the likeliest letter
            changed(LEARNT, "sum(row[x] for row", "sum(row[x] == max(row) for row"),
            "add the whole row",
        ),
        (changed(LEARNT, " if known == context", ""), "lessons after other contexts count"),
        (changed(LEARNT, " == context]", " == context][-1:]"), "only the last lesson counts"),
        (  # the base is forgotten
            """
def my_learnt(base, lessons, context, prior):
    rows = [row for known, row in lessons if known == context]
    return np.mean(rows, axis=0) if rows else base
""",
            "the base is forgotten",
        ),
        (changed(LEARNT, ") / total", ")"), "divide by prior + the number of rows"),
        (changed(LEARNT, "prior + len(rows)", "1 + len(rows)"), "divide by prior"),
        (  # in place: somebody may hold that row
            """
def my_learnt(base, lessons, context, prior):
    rows = [row for known, row in lessons if known == context]
    for x in range(len(base)):
        base[x] = (prior * base[x] + sum(row[x] for row in rows)) / (prior + len(rows))
    return base
""",
            "changed in place",
        ),
        ("def my_learnt(base, lessons, context, prior):\n    pass", "return a list"),
    ],
    1: [
        ("def my_bias(p, q, late):\n    return p", "judged and replaced by late"),
        ("def my_bias(p, q, late):\n    return q", "judged and replaced by late"),
        (  # drawn from late as well
            changed(BIAS, "[b * min(1, a / c) for", "[c * min(1, a / c) for"),
            "judged and replaced by late",
        ),
        (  # the residual of the q that was drawn from
            changed(BIAS, "a - c) for a, c in zip(p, late)", "a - c) for a, c in zip(p, q)"),
            "judged and replaced by late",
        ),
        (  # what is rejected is lost
            changed(BIAS, "k + (1 - sum(kept)) * r", "k"),
            "sums to",
        ),
    ],
    2: [
        (  # the products, as they are
            """
def my_trust(first, second):
    a, b = float(np.prod(first)), float(np.prod(second))
    return a / (a + b)
""",
            "add logarithms",
        ),
        (  # without a limit: no longer text has a weight
            """
def my_trust(first, second):
    from math import exp, log
    return 1 / (1 + exp(sum(map(log, second)) - sum(map(log, first))))
""",
            "exp overflows above 709",
        ),
        (changed(TRUST, "1 / (1 + np.exp(min(odds, 700)))", "None"), "is no weight"),
        (  # a list of one
            changed(TRUST, "return 1 / (1 + np.exp(min(odds, 700)))",
                    "return np.array([1 / (1 + np.exp(min(odds, 700)))])"),
            "is no weight",
        ),
        (  # place by place: rounded to 1, it stays there
            """
def my_trust(first, second):
    weight = 0.5
    for a, b in zip(first, second):
        weight = weight * a / (weight * a + (1 - weight) * b)
    return weight
""",
            "stays at 1",
        ),
        (  # of a hundred places
            changed(TRUST, "sum(np.log(second)) - sum(np.log(first))",
                    "sum(np.log(second[-100:])) - sum(np.log(first[-100:]))"),
            "the product of what it gave",
        ),
        (  # the means
            """
def my_trust(first, second):
    a, b = sum(first), sum(second)
    return a / (a + b) if first else 0.5
""",
            "the product of what it gave",
        ),
        (changed(TRUST, "sum(np.log(second)) - sum(np.log(first))",
                 "sum(np.log(first)) - sum(np.log(second))"), "the product of what it gave"),
        (  # the last place only
            """
def my_trust(first, second):
    return first[-1] / (first[-1] + second[-1]) if first else 0.5
""",
            "the product of what it gave",
        ),
    ],
}  # fmt: skip
