"""Chapter 08: right answers that its checks must take, and wrong ones that they must refuse."""

RIGHT = {
    0: [
        """
from nanogpt.proof.checks import check_lossless as my_check
""",
        """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)

    def own(rng):
        return tuple(autoregressive_generate(target, [0, 1], 3, Sampling(), rng).tokens)

    def made(rng):
        return tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)

    off = total_variation(enumerate_outcomes(made), enumerate_outcomes(own))
    if off > 1e-9:
        raise AssertionError(f"off by {off}")
""",
        """
def my_check(generate):
    # text by text, the target's p multiplied by hand, with a prompt of one token
    target = toy_target(3, 8, seed=1)
    draft = TableDraft([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8]])
    got = enumerate_outcomes(
        lambda rng: tuple(
            generate(target, draft, [2], 3, K=2, sampling=Sampling(0.8), rng=rng).tokens
        )
    )
    for text in itertools.product(range(3), repeat=3):
        right, tokens = 1.0, [2]
        for token in text:
            p = torch.softmax(target(torch.tensor([tokens]))[0][0, -1] / 0.8, dim=-1)
            right, tokens = right * float(p[token]), [*tokens, token]
        assert abs(got.get(text, 0.0) - right) < 1e-8, (text, got.get(text), right)
    return got
""",
        """
def my_check(generate):
    # several K, the even draft, and the largest difference instead of the total variation
    target, draft = toy_target(3, 8, seed=2), TableDraft([[1 / 3] * 3] * 3)

    def run(decode):
        return enumerate_outcomes(lambda rng: str(decode(rng).tokens))

    right = run(lambda rng: autoregressive_generate(target, [0, 1], 3, rng=rng))
    for K in (1, 2, 3):
        got = run(lambda rng: generate(target, draft, [0, 1], 3, K, rng=rng))
        assert set(got) <= set(right), "texts that cannot come"
        for text in right:
            if not abs(right[text] - got.get(text, 0)) < 1e-10:
                raise AssertionError(text)
""",
        """
def my_check(generate):
    # the arguments by name
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    got = enumerate_outcomes(
        lambda rng: tuple(
            generate(
                target, draft, [0, 1], max_new_tokens=3, K=2, sampling=Sampling(), rng=rng
            ).tokens
        )
    )
    assert total_variation(got, exact_continuations(target, 3, Sampling())) < 1e-9
""",
    ],
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
}

WRONG = {
    0: [
        (  # the right probabilities, whichever text has them
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    got = enumerate_outcomes(
        lambda rng: tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)
    )
    right = sorted(exact_continuations(target, 3, Sampling()).values())
    assert np.allclose(sorted(got.values()), right, rtol=0, atol=1e-9)
""",
            "writes its texts back to front. Compare text by text.",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    got = enumerate_outcomes(
        lambda rng: tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)
    )
    assert total_variation(got, exact_continuations(target, 3, Sampling())) < 0.01
""",
            "one guess in a thousand too many. How far off may its probabilities be?",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    for seed in range(20):  # the same seed need not give the same text
        right = speculative_generate(target, draft, [0, 1], 6, 2, Sampling(), RandomSource(seed))
        made = generate(target, draft, [0, 1], 6, 2, Sampling(), RandomSource(seed))
        assert made.tokens == right.tokens, "another text"
""",
            "your check refuses a decoder that drafts nothing, which is right",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(7, 8), random_draft(7)
    for K in (1, 2, 5):
        right = autoregressive_generate(target, [0, 1], 20, Sampling(0)).tokens
        assert generate(target, draft, [0, 1], 20, K, Sampling(0)).tokens == right
""",
            "your check passes the decoder that resamples from p. Are its texts random",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)

    def own(rng):
        return tuple(autoregressive_generate(target, [0, 1], 3, Sampling(), rng).tokens)

    def made(rng):
        return tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)

    return total_variation(enumerate_outcomes(made), enumerate_outcomes(own)) < 1e-9
""",
            "the decoder that resamples from p. It returned False, but a check must raise",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    one = enumerate_outcomes(  # with one token asked for, nothing is drafted
        lambda rng: tuple(generate(target, draft, [0, 1], 1, 4, Sampling(), rng).tokens)
    )
    assert total_variation(one, exact_continuations(target, 1, Sampling())) < 1e-9
""",
            "is anything drafted",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    two = enumerate_outcomes(  # K = 2, but two tokens leave room for one guess only
        lambda rng: tuple(generate(target, draft, [0, 1], 2, 2, Sampling(), rng).tokens)
    )
    assert total_variation(two, exact_continuations(target, 2, Sampling())) < 1e-9
""",
            "at the second candidate only. Is K large enough, and the text long enough",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    made = enumerate_outcomes(
        lambda rng: tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)
    )
    assert made == exact_continuations(target, 3, Sampling())  # to the last bit
""",
            "your check refuses speculative_generate, which is right",
        ),
        (
            """
def my_check(generate):
    target, rng, counts = toy_target(3, 8, seed=1), RandomSource(0), {}
    for _ in range(30):  # far too few
        made = generate(target, random_draft(3), [0, 1], 3, 2, Sampling(), rng)
        counts[tuple(made.tokens)] = counts.get(tuple(made.tokens), 0) + 1
    exact = exact_continuations(target, 3, Sampling())
    for text, seen in counts.items():
        assert abs(seen / 30 - exact[text]) < 0.3
""",
            "your check passes the decoder that resamples from p",
        ),
        (
            """
def my_check(generate):
    target, draft = toy_target(3, 8, seed=1), random_draft(3)
    right = exact_continuations(target, 3, Sampling())
    made = enumerate_outcomes(
        lambda rng: tuple(generate(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens)
    )

    def letters(texts, i):  # each position on its own
        return [sum(p for text, p in texts.items() if text[i] == x) for x in range(3)]

    for i in range(3):
        for a, b in zip(letters(made, i), letters(right, i)):
            assert abs(a - b) < 1e-9, i
""",
            "right position by position, but not its texts. Compare",
        ),
    ],
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
}
