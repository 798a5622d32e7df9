"""Answers to the exercises of chapter 13: right ones of several kinds, well-known wrong ones."""

RIGHT = {
    1: [
        """
def my_reported_speed_up(pairs, warm_up):
    times = np.array(pairs[warm_up:])
    return np.median(times[:, 0] / times[:, 1])
""",
        """
def my_reported_speed_up(pairs, warm_up):
    ratios = []
    for i, (plain, fast) in enumerate(pairs):
        if i >= warm_up:
            ratios.append(plain / fast)
    ratios.sort()
    n = len(ratios)
    if n % 2 == 1:
        return ratios[n // 2]
    return (ratios[n // 2 - 1] + ratios[n // 2]) / 2
""",
        """
def my_reported_speed_up(pairs, warm_up):
    plain, fast = torch.tensor(pairs[warm_up:], dtype=torch.float64).T
    return (plain / fast).quantile(0.5)
""",
    ],
    2: [
        """
def my_limit(pair, draft, rest):
    share, left = pair.shares, 1.0
    left -= (1 - draft) * share["draft"]
    for part in ("accept", "cache"):
        left -= (1 - rest) * share[part]
    left -= (1 - rest) * (1 - sum(share.values()))  # the loop
    return pair.speed_up / left
""",
        """
def my_limit(pair, draft, rest):
    seconds = {part: share * pair.seconds for part, share in pair.shares.items()}
    seconds["loop"] = pair.seconds - sum(seconds.values())
    factor = {"prefill": 1, "target": 1, "draft": draft}
    new = sum(s * factor.get(part, rest) for part, s in seconds.items())
    return np.float64(pair.plain_seconds) / new
""",
    ],
    3: [
        """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    batch = 1
    while batch <= most:
        plain = pass_seconds(machine, parameters, batch, weight_bytes)
        verify = pass_seconds(machine, parameters, batch * (K + 1), weight_bytes)
        if speed_up(expected_tokens(alpha, K), K, verify_cost=verify / plain) <= 1:
            return batch
        batch += 1
""",
        """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    tokens = sum(alpha**i for i in range(K + 1))
    reading = weight_bytes / machine.bandwidth
    per_token = 2 / machine.flops
    batches = np.arange(1, most + 1)
    plain = np.maximum(reading, batches * per_token)
    round_ = np.maximum(reading, batches * (K + 1) * per_token)
    too_large = batches[tokens * plain <= round_ * (1 + 1e-12)]
    return too_large[0] if len(too_large) else None
""",
    ],
    4: [
        """
def my_entries_written(rounds):
    copied = written = 0
    for r in rounds:
        written += len(r.candidates) + 1
        copied += r.cache_len + len(r.candidates) + 1
    return copied, written
""",
        """
def my_entries_written(rounds):
    before = np.array([r.cache_len for r in rounds])
    new = np.array([1 + len(r.candidates) for r in rounds])
    return [(before + new).sum(), new.sum()]
""",
    ],
}

WRONG = {
    1: [
        (  # the mean of the ratios
            """
def my_reported_speed_up(pairs, warm_up):
    return mean(plain / fast for plain, fast in pairs[warm_up:])
""",
            "one accident must not count",
        ),
        (  # the ratio of the medians
            """
def my_reported_speed_up(pairs, warm_up):
    plain, fast = zip(*pairs[warm_up:])
    return median(plain) / median(fast)
""",
            "each pair has a ratio",
        ),
        (  # upside down
            """
def my_reported_speed_up(pairs, warm_up):
    return median(fast / plain for plain, fast in pairs[warm_up:])
""",
            "every pair says 2",
        ),
        (  # the warm-up counts
            """
def my_reported_speed_up(pairs, warm_up):
    return median(plain / fast for plain, fast in pairs)
""",
            "the first three are warm-up",
        ),
        (  # the upper one of the two in the middle
            """
def my_reported_speed_up(pairs, warm_up):
    ratios = sorted(plain / fast for plain, fast in pairs[warm_up:])
    return ratios[len(ratios) // 2]
""",
            "of 1 and 3",
        ),
    ],
    2: [
        (  # the prefill is the target's, too
            """
def my_limit(pair, draft, rest):
    in_target, in_draft = pair.shares["target"], pair.shares["draft"]
    left = in_target + draft * in_draft + rest * (1 - in_target - in_draft)
    return pair.speed_up / left
""",
            "prefill and target",
        ),
        (  # the loop is forgotten
            """
def my_limit(pair, draft, rest):
    s = pair.shares
    left = s["prefill"] + s["target"] + draft * s["draft"]
    return pair.speed_up / (left + rest * (s["accept"] + s["cache"]))
""",
            "the pair's own speed-up",
        ),
        (  # upside down
            """
def my_limit(pair, draft, rest):
    in_target = pair.shares["prefill"] + pair.shares["target"]
    in_draft = pair.shares["draft"]
    left = in_target + draft * in_draft + rest * (1 - in_target - in_draft)
    return pair.speed_up * left
""",
            "a free draft saves",
        ),
    ],
    3: [
        (  # a round has K+1 tokens a text, not K
            """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    for batch in range(1, most + 1):
        plain = pass_seconds(machine, parameters, batch, weight_bytes)
        verify = pass_seconds(machine, parameters, batch * K, weight_bytes)
        if expected_tokens(alpha, K) * plain <= verify:
            return batch
    return None
""",
            "not 59",
        ),
        (  # exactly as fast is no gain
            """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    for batch in range(1, most + 1):
        plain = pass_seconds(machine, parameters, batch, weight_bytes)
        verify = pass_seconds(machine, parameters, batch * (K + 1), weight_bytes)
        if expected_tokens(alpha, K) * plain < verify:
            return batch
    return None
""",
            "not 1",
        ),
        (  # the last one that pays
            """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    for batch in range(1, most + 1):
        plain = pass_seconds(machine, parameters, batch, weight_bytes)
        verify = pass_seconds(machine, parameters, batch * (K + 1), weight_bytes)
        if expected_tokens(alpha, K) * plain <= verify:
            return batch - 1
    return None
""",
            "58, not 59",
        ),
        (  # `most` is forgotten
            """
def my_batch_too_large(machine, parameters, weight_bytes, alpha, K, most=10_000):
    batch = 1
    while True:
        plain = pass_seconds(machine, parameters, batch, weight_bytes)
        verify = pass_seconds(machine, parameters, batch * (K + 1), weight_bytes)
        if expected_tokens(alpha, K) * plain <= verify:
            return batch
        batch += 1
""",
            "up to 20 texts: 59, not None",
        ),
    ],
    4: [
        (  # the current token is in the pass, too
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) for r in rounds)
    return sum(r.cache_len for r in rounds) + new, new
""",
            "not (11, 1)",
        ),
        (  # after the trim
            """
def my_entries_written(rounds):
    new = sum(len(r.emitted) for r in rounds)
    return sum(r.cache_len for r in rounds) + new, new
""",
            "not (15, 5)",
        ),
        (  # in the wrong order
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) + 1 for r in rounds)
    return new, sum(r.cache_len for r in rounds) + new
""",
            "not (11, 1)",
        ),
        (  # the old entries only
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) + 1 for r in rounds)
    return sum(r.cache_len for r in rounds), new
""",
            "not (11, 1)",
        ),
    ],
}
