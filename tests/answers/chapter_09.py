"""Chapter 09: right answers that its checks must take, and wrong ones that they must refuse."""

RIGHT = {
    0: [
        """
from nanogpt.theory import expected_tokens as my_expected_tokens
""",
        """
def my_expected_tokens(alpha, K):
    tokens, reached = 1, 1
    for _ in range(K):
        reached *= alpha
        tokens += reached
    return tokens
""",
        """
def my_expected_tokens(alpha, K):
    # over outcomes: n tokens where candidate n is the first to be rejected, K + 1 if none is
    stopped = sum((i + 1) * alpha**i * (1 - alpha) for i in range(K))
    return stopped + (K + 1) * alpha**K
""",
        """
def my_expected_tokens(alpha, K):
    return torch.tensor(float(alpha)).pow(torch.arange(K + 1)).sum()  # in float32
""",
        """
def my_expected_tokens(alpha, K):
    import numpy as np

    return np.polyval(np.ones(K + 1), alpha)
""",
        """
def my_expected_tokens(alpha, K):
    tokens = 0
    for kept in range(K + 1):  # each outcome's probability anew
        probability = Fraction(1) if kept == K else 1 - Fraction(alpha)
        for _ in range(kept):
            probability = probability * alpha
        tokens += (kept + 1) * probability
    return tokens
""",
    ],
    1: [
        """
def my_alpha(tokens, K):
    import numpy as np

    # the root in [0, 1] of α^K + … + α + 1 - tokens; at a double place rounding may leave it
    roots = np.roots([1.0] * K + [1.0 - tokens])
    return max(float(root.real) for root in roots if abs(root.imag) < 1e-9)
""",
        """
def my_alpha(tokens, K):
    alpha = 0.5
    for _ in range(100):  # Newton's method
        value = sum(alpha**i for i in range(K + 1)) - tokens
        slope = sum(i * alpha ** (i - 1) for i in range(1, K + 1))
        alpha -= value / slope
    return alpha
""",
        """
def my_alpha(tokens, K):
    tried = [i / 20_000 for i in range(20_001)]
    return min(tried, key=lambda alpha: abs(expected_tokens(alpha, K) - tokens))
""",
    ],
    2: [
        """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    gained = sum(alpha**i for i in range(K + 1)) - verify_cost - rest
    return gained / K if gained > 0 else 0
""",
        """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        if speed_up(expected_tokens(alpha, K), K, middle, verify_cost, rest) >= 1:
            low = middle
        else:
            high = middle
    return low
""",
        """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    import numpy as np

    powers = np.power(alpha, np.arange(K + 1))
    return np.clip((powers.sum() - verify_cost - rest) / K, 0, None)
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_expected_tokens(alpha, K):
    return sum(alpha**i for i in range(K + 1)) + alpha**K
""",
            "the bonus token is counted twice",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return sum(alpha**i for i in range(K + 2))
""",
            "one term too many",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return sum(alpha**i for i in range(1, K + 1))
""",
            "the target adds one token of its own",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return K if alpha == 1 else (1 - alpha**K) / (1 - alpha)
""",
            "one term too few",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return (1 - alpha ** (K + 1)) / (1 - alpha)
""",
            "α = 1.0, K = 4: a division by zero, but the mean is 5.0",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return 1 + K * alpha
""",
            "even where an earlier one was rejected",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    tokens = 1.0
    for i in range(K):
        tokens += alpha ** (i + 1)
""",
            "it returns nothing",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    a = torch.tensor(float(alpha), dtype=torch.float64)
    return (1 - a ** (K + 1)) / (1 - a)  # 0 / 0 is nan in torch, and raises nothing
""",
            "α = 1.0, K = 4: nan",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return sum((1 - alpha) * alpha**i * (i + 1) for i in range(K))  # without the bonus round
""",
            "the outcome in which all are accepted is missing",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    rng, rounds, tokens = RandomSource(0), 5000, 0
    for _ in range(rounds):
        kept = 0
        while kept < K and rng.bernoulli(alpha):
            kept += 1
        tokens += kept + 1
    return tokens / rounds
""",
            "work out the exact mean",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return sum(alpha**i for i in range(min(K, 5) + 1))  # "more do not matter"
""",
            "are all K + 1 terms in it",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    if K > 9:
        return 1 / (1 - alpha)  # what no K passes
    return K + 1 if alpha == 1 else (1 - alpha ** (K + 1)) / (1 - alpha)
""",
            "are all K + 1 terms in it",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    return K + 1 if alpha > 0.99 else (1 - alpha ** (K + 1)) / (1 - alpha)
""",
            "α = 0.999, K = 4: 5.0000",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    from itertools import product, takewhile

    tokens = 0
    for coins in product((True, False), repeat=K):
        probability = 1
        for heads in coins:
            probability *= alpha if heads else 1 - alpha
        tokens += probability * (1 + len(list(takewhile(bool, coins))))
    return tokens
""",
            "a sum over tokens has K + 1 terms",
        ),
        (
            """
def my_expected_tokens(alpha, K):
    if K == 0:
        return 1
    before = my_expected_tokens(alpha, K - 2) if K > 1 else 0
    more = my_expected_tokens(alpha, K - 1) - before
    return my_expected_tokens(alpha, K - 1) + alpha * more
""",
            "twice as often with each candidate more",
        ),
    ],
    1: [
        (
            """
def my_alpha(tokens, K):
    return (tokens - 1) / K  # the acceptance rate per drafted token
""",
            "not 0.3",
        ),
        (
            """
def my_alpha(tokens, K):
    return 1 - 1 / tokens  # as if K never ended
""",
            "tokens, K = 1",
        ),
        (
            """
def my_alpha(tokens, K):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, K) < tokens + 1:  # the bonus token once more
            low = middle
        else:
            high = middle
    return high
""",
            "not 0.0",
        ),
        (
            """
def my_alpha(tokens, K):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, K) < tokens:
            low = middle
        else:
            high = middle
""",
            "it returns nothing",
        ),
    ],
    2: [
        (
            """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    return alpha  # right at K = 1 only
""",
            "and should be 1",
        ),
        (
            """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    return (expected_tokens(alpha, K) - verify_cost - rest) / K  # below 0, too
""",
            "even a free draft is slower there",
        ),
        (
            """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    return max(0.0, (expected_tokens(alpha, K) - 1) / K)  # as if checking were free
""",
            "v = 1.2",
        ),
        (
            """
def my_dearest_draft(alpha, K, verify_cost=1.0, rest=0.0):
    return max(0.0, expected_tokens(alpha, K) - verify_cost - rest)  # of a round, not a token
""",
            "K = 4",
        ),
    ],
}
