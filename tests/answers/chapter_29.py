"""Chapter 29: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_verdict(samples, exact):
    counts, n = Counter(samples), len(samples)
    statistic, freedom = chi_squared(counts, exact, n)
    return p_value(statistic, freedom) > 1e-3
"""

NAIVE_CHI = """
def my_verdict(samples, exact):
    n, counts = len(samples), Counter(samples)
    statistic = sum((counts[x] - n * p) ** 2 / (n * p) for x, p in exact.items())
    return statistic < chi_squared_limit(len(exact) - 1)
"""

POOLED = """
def my_verdict(samples, exact):
    n, counts = len(samples), Counter(samples)
    if set(counts) - set(exact):
        return False
    cells = {}
    for x, p in exact.items():
        name = x if n * p >= 5 else "rare"
        seen, expected = cells.get(name, (0, 0))
        cells[name] = seen + counts[x], expected + n * p
    statistic = sum((seen - e) ** 2 / e for seen, e in cells.values())
    return np.bool_(p_value(statistic, len(cells) - 1) > 1e-4)
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


MARGINAL = """
def my_verdict(samples, exact):
    n = len(samples)
    for place in PLACES:
        counts, right = Counter(s[place] for s in samples), {}
        for x, p in exact.items():
            right[x[place]] = right.get(x[place], 0) + p
        if p_value(*chi_squared(counts, right, n)) < 1e-3:
            return False
    return True
"""

DISTANCE = """
def my_verdict(samples, exact):
    counts, n = Counter(samples), len(samples)
    off = sum(abs(counts[x] / n - p) for x, p in exact.items()) / 2
    return off < LIMIT
"""

NEEDED = """
def my_samples_needed(exact, other, level=1e-6):
    n = 100
    while True:
        shift, freedom = chi_squared({x: n * p for x, p in other.items()}, exact, n)
        if power(freedom, shift, level) >= 0.99:
            return n
        n *= 2
"""


def needed(old, new):
    """The right answer to exercise 1 with another level or power in its test."""
    head, test = NEEDED.split("if power(")
    assert test.count(old) == 1
    return head + "if power(" + test.replace(old, new)


RIGHT = {
    0: [
        TEMPLATE,
        """
def my_verdict(samples, exact):
    statistic, freedom = chi_squared(Counter(samples), exact, len(samples))
    return statistic < chi_squared_limit(freedom)
""",
        POOLED,
        """
def my_verdict(samples, exact):
    rng, n = np.random.default_rng(0), len(samples)
    outcomes, p = list(exact), np.array(list(exact.values()))
    counts = Counter(samples)
    if set(counts) - set(outcomes):
        return False
    def off(seen):
        return np.abs(seen / n - p).sum(-1)
    chance = off(rng.multinomial(n, p / p.sum(), size=1000))
    return bool(off(np.array([counts[x] for x in outcomes])) <= chance.max())
""",
    ],
    1: [
        NEEDED,
        """
def my_samples_needed(exact, other, level=1e-6):
    def seen(n):
        expected = {x: n * other.get(x, 0.0) for x in exact.keys() | other.keys()}
        statistic, freedom = chi_squared(expected, exact, n)
        return power(freedom, statistic, level)

    return next(n for n in (100 * 2**i for i in range(40)) if seen(n) >= 0.99)
""",
    ],
    2: [
        "from nanogpt.arena.template import make_draft as my_make_draft",
        """
def my_make_draft(tokens, vocab_size):
    return bigram.BigramDraftModel(tokens, vocab_size)
""",
    ],
}
WRONG = {
    0: [
        (slip("> 1e-3", "> 0.05"), "refuse only what luck does"),
        (NAIVE_CHI, "refuse only what luck does"),
        (MARGINAL.replace("PLACES", "[0]"), "look further than token 1"),
        (MARGINAL.replace("PLACES", "[0, 1]"), "look at the pairs"),
        (MARGINAL.replace("PLACES", "[1]"), "you trusted an engine with"),
        (DISTANCE.replace("LIMIT", "0.05"), "you refused"),
        (DISTANCE.replace("LIMIT", "0.5"), "you trusted an engine with a wrong first token"),
        (
            """
def my_verdict(samples, exact):
    return Counter(samples).most_common(1)[0][0] == max(exact, key=exact.get)
""",
            "you",
        ),
        ("def my_verdict(samples, exact):\n    return True", "you trusted"),
        ("def my_verdict(samples, exact):\n    return False", "you refused 160 of 160"),
        (
            slip("return p_value(statistic, freedom) > 1e-3", "return p_value(statistic, freedom)"),
            "return True to trust",
        ),
        (POOLED.replace("        return False\n", "        pass\n"), "probability is 0"),
        (
            slip("return p_value", "return n < 1000 or p_value"),  # too few to say anything
            "few samples are no reason to trust",
        ),
    ],
    1: [
        (  # where χ² reaches the limit on average
            NEEDED.replace(
                "power(freedom, shift, level) >= 0.99", "p_value(shift, freedom) < level"
            ),
            "which is not .99",
        ),
        (NEEDED.replace("{x: n * p for x, p in other.items()}", "other"), "not "),
        ("def my_samples_needed(exact, other, level=1e-6):\n    return 1000", "return one of 100"),
        ("def my_samples_needed(exact, other, level=1e-6):\n    pass", "return one of 100"),
        (needed("level", "1e-6"), "and so many are enough"),  # ignores its argument
        (needed("level", "1e-5"), "which is not .99"),
        (needed("level", "0.05"), "which is not .99"),
        (needed("0.99", "0.9"), "which is not .99"),
        (needed("0.99", "0.95"), "which is not .99"),
        (needed("0.99", "0.999"), "and so many are enough"),
    ],
    2: [
        ("def my_make_draft(tokens, vocab_size):\n    pass", "return draft"),
        (
            """
class Noise(Draft):
    vocab_size = 65

    def get_probs(self, context):
        q = torch.rand(65, dtype=torch.float64)
        return q / q.sum()

def my_make_draft(tokens, vocab_size):
    return Noise()
""",
            "must depend on the context alone",
        ),
        (
            """
class Scores(Draft):
    vocab_size = 65

    def get_probs(self, context):
        return torch.ones(65, dtype=torch.float64)

def my_make_draft(tokens, vocab_size):
    return Scores()
""",
            "sum",
        ),
    ],
}
