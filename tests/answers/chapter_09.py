"""Chapter 09: right answers that its checks must take, and wrong ones that they must refuse."""

RIGHT = {
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
    3: [
        """
def my_most_texts(machine, weight_bytes, K):
    texts = 0
    while True:
        arithmetic = pass_flops(1, (texts + 1) * (K + 1)) / machine.flops
        reading = pass_bytes(1, weight_bytes) / machine.bandwidth
        if arithmetic > reading * (1 + 1e-12):
            return texts
        texts += 1
""",
        """
def my_most_texts(machine, weight_bytes, K):
    # the intensity of n texts, 2 n (K + 1) / weight_bytes, may reach the ridge
    return machine.ridge * weight_bytes // (2 * (K + 1))
""",
        """
def my_most_texts(machine, weight_bytes, K):
    def fits(n):
        return arithmetic_intensity(n * (K + 1), weight_bytes) <= machine.ridge

    return max((n for n in range(1, 2000) if fits(n)), default=0)
""",
    ],
}

WRONG = {
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
    3: [
        (
            """
def my_most_texts(machine, weight_bytes, K):
    return int(machine.ridge / (K + 1))  # right for weights of two bytes only
""",
            "4 bytes",
        ),
        (
            """
def my_most_texts(machine, weight_bytes, K):
    return int(machine.ridge * weight_bytes / 2 / K + 1e-9)  # the current token forgotten
""",
            "K = 1: 10, not 5",
        ),
        (
            """
def my_most_texts(machine, weight_bytes, K):
    return max(1, int(machine.ridge * weight_bytes / 2 / (K + 1) + 1e-9))
""",
            "K = 12: 1, not 0",
        ),
        (
            """
def my_most_texts(machine, weight_bytes, K):
    return int(machine.ridge * weight_bytes / 2)  # tokens, not texts
""",
            "K = 1: 10, not 5",
        ),
    ],
}
