"""Chapter 08: right answers that its checks must take, and wrong ones that they must refuse."""

RIGHT = {
    1: [
        """
def my_two_samples(counts_a, counts_b):
    statistic, seen = 0.0, 0
    for outcome in set(counts_a) | set(counts_b):
        a, b = counts_a.get(outcome, 0), counts_b.get(outcome, 0)
        if a + b == 0:
            continue
        middle = (a + b) / 2  # what each side is expected to have
        statistic += (a - middle) ** 2 / middle + (b - middle) ** 2 / middle
        seen += 1
    return statistic, seen - 1
""",
        """
def my_two_samples(counts_a, counts_b):
    keys = sorted(set(counts_a) | set(counts_b))
    a = np.array([counts_a.get(key, 0) for key in keys], dtype=float)
    b = np.array([counts_b.get(key, 0) for key in keys], dtype=float)
    seen = a + b > 0
    return ((a - b)[seen] ** 2 / (a + b)[seen]).sum(), seen.sum() - 1
""",
        """
def my_two_samples(counts_a, counts_b):
    from collections import Counter

    a, b = Counter(counts_a), Counter(counts_b)
    both = +(a + b)  # without the zeros
    return [sum((a[x] - b[x]) ** 2 / both[x] for x in both), len(both) - 1]
""",
    ],
    2: [
        """
def my_stop_check(generate):
    target = toy_target(7, 8)
    for seed in range(8):
        def text(stop=None):
            return generate(
                target, SelfDraft(target, 2), [0, 1], 20, 4, Sampling(), RandomSource(seed),
                stop_token=stop,
            ).tokens

        whole = text()
        for stop in range(7):
            right = []
            for token in whole:
                right.append(token)
                if token == stop:
                    break
            assert text(stop) == right, (seed, stop)
""",
        """
def my_stop_check(generate):
    target = toy_target(7, 8)
    for seed in range(10):
        free = generate(
            target, SelfDraft(target, 2), [0, 1], 24, 5, Sampling(), RandomSource(seed)
        ).tokens
        for stop in range(7):
            tokens = generate(
                target, SelfDraft(target, 2), [0, 1], 24, 5, Sampling(), RandomSource(seed),
                stop_token=stop,
            ).tokens
            if free[: len(tokens)] != tokens:
                raise AssertionError("not the beginning of the free text")
            if stop in free and (tokens[-1] != stop or tokens.count(stop) != 1):
                raise AssertionError("it does not end at the first stop token")
            if stop not in free and len(tokens) != len(free):
                raise AssertionError("it ends without a stop token")
""",
        """
def my_stop_check(generate):
    # against plain decoding's text at temperature 0, where no random number is used
    target = toy_target(7, 8)
    for prompt in itertools.product(range(7), repeat=2):
        free = autoregressive_generate(target, list(prompt), 24, Sampling(0)).tokens
        for stop in range(7):
            right = free[: free.index(stop) + 1] if stop in free else free
            draft = SelfDraft(target, 2)
            made = generate(
                target, draft, list(prompt), 24, 3, Sampling(0), RandomSource(0), stop_token=stop
            )
            assert made.tokens == right, (prompt, stop)
""",
    ],
    3: [
        """
def my_smallest_suite(caught):
    names, best = list(caught), None
    everything = set().union(*caught.values())
    for bits in range(2 ** len(names)):
        suite = [name for i, name in enumerate(names) if bits >> i & 1]
        if set().union(*(caught[name] for name in suite)) == everything:
            if best is None or len(suite) < len(best):
                best = suite
    return best
""",
        """
def my_smallest_suite(caught):
    def cover(missing):
        if not missing:
            return ()
        bug = min(missing)  # one of the checks that catch this bug must be in the suite
        suites = [(name, *cover(missing - caught[name])) for name in caught if bug in caught[name]]
        return min(suites, key=len)

    return set(cover(set().union(*caught.values())))
""",
    ],
}

WRONG = {
    1: [
        (
            """
def my_two_samples(counts_a, counts_b):
    keys = counts_a.keys() | counts_b.keys()
    pairs = [(counts_a.get(x, 0), counts_b.get(x, 0)) for x in keys]
    pairs = [(a, b) for a, b in pairs if a + b]
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs)  # not less one
""",
            "2 degrees of freedom, not 1",
        ),
        (
            """
def my_two_samples(counts_a, counts_b):
    pairs = [(counts_a[x], counts_b[x]) for x in counts_a.keys() | counts_b.keys()]
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1
""",
            "may be missing on one side",
        ),
        (
            """
def my_two_samples(counts_a, counts_b):
    pairs = [(counts_a.get(x, 0), counts_b.get(x, 0)) for x in counts_a.keys() | counts_b.keys()]
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1  # 0 and 0
""",
            "counted 0 times on both",
        ),
        (
            """
def my_two_samples(counts_a, counts_b):
    pairs = [(a, counts_b.get(x, 0)) for x, a in counts_a.items()]
    pairs = [(a, b) for a, b in pairs if b]
    return sum((a - b) ** 2 / b for a, b in pairs), len(pairs) - 1  # b as if it were exact
""",
            "χ² 4.0, not",
        ),
    ],
    2: [
        (
            """
def my_stop_check(generate):
    target = toy_target(7, 8)
    for seed in range(5):
        for stop in range(7):
            draft, rng = SelfDraft(target, 2), RandomSource(seed)
            made = generate(target, draft, [0, 1], 24, 3, Sampling(), rng, stop_token=stop)
            assert stop not in made.tokens[:-1], "it goes on after the stop token"
""",
            "the stop token is missing: your check says 'passed'",
        ),
        (
            """
def my_stop_check(generate):
    target = toy_target(7, 8)
    for seed in range(5):
        draft, rng = SelfDraft(target, 2), RandomSource(seed)
        free = generate(target, draft, [0, 1], 24, 3, Sampling(), rng).tokens
        for stop in set(free):
            draft, rng = SelfDraft(target, 2), RandomSource(seed)
            made = generate(target, draft, [0, 1], 24, 3, Sampling(), rng, stop_token=stop)
            assert made.tokens[-1] == stop and made.tokens.count(stop) == 1
""",
            "the token before the stop token is missing: your check says 'passed'",
        ),
        (
            """
def my_stop_check(generate):
    target = toy_target(7, 8)

    def run(stop):
        draft, rng = SelfDraft(target, 2), RandomSource(0)
        return generate(target, draft, [0, 1], 24, 3, Sampling(), rng, stop_token=stop).tokens

    free = run(None)
    for stop in range(7):
        assert run(stop) == (free[: free.index(stop)] if stop in free else free)  # without it
""",
            "it rejects the right decoder",
        ),
        (
            """
def my_stop_check(generate):
    target = toy_target(7, 8)

    def run(seed, stop):
        draft, rng = SelfDraft(target, 2), RandomSource(seed)
        return generate(target, draft, [0, 1], 24, 3, Sampling(), rng, stop_token=stop).tokens

    for seed in range(5):
        free = run(seed, None)
        for stop in range(1, 7):  # token 0 forgotten
            assert run(seed, stop) == (free[: free.index(stop) + 1] if stop in free else free)
""",
            "bug 32",
        ),
    ],
    3: [
        (
            """
def my_smallest_suite(caught):
    suite, missing = set(), set().union(*caught.values())
    while missing:  # always the check that catches most of what is missing
        best = max(caught, key=lambda name: len(caught[name] & missing))
        suite.add(best)
        missing -= caught[best]
    return suite
""",
            "2 checks are enough, not 3",
        ),
        (
            """
def my_smallest_suite(caught):
    return set(caught)
""",
            "checks are enough",
        ),
        (
            """
def my_smallest_suite(caught):
    return {max(caught, key=lambda name: len(caught[name]))}
""",
            "misses",
        ),
        (
            """
def my_smallest_suite(caught):
    everything = set().union(*caught.values())
    for size in range(len(caught) + 1):
        for names in itertools.combinations(caught, size):
            if set().union(*(caught[name] for name in names)) == everything:
                return size  # how many, not which
""",
            "return names out of",
        ),
    ],
}
