"""Chapter 19: right answers to its turn and exercises, and wrong ones that must be refused."""


def rerank(kept):
    """An answer to exercise 1 that returns `kept`, given the nodes' values."""
    return f"""
def my_rerank(q, parents, n):
    value = []
    for x, parent in zip(q, parents):
        value.append(x * (value[parent] if parent >= 0 else 1))
    return {kept}
"""


RIGHT = {
    0: [
        """
def my_pairs(hidden, tokens, known):
    new = len(hidden) - known
    return hidden[known:], torch.tensor(tokens[len(tokens) - new :])
""",
        """
def my_pairs(hidden, tokens, known):  # rows and tokens in lists
    first = len(tokens) - 1 - len(hidden)  # the first feature's token
    features, after = [], []
    for i in range(known, len(hidden)):
        features.append(hidden[i])
        after.append(tokens[first + i + 1])
    return features, after
""",
        """
def my_pairs(hidden, tokens, known):  # lined up at their ends, by zip
    pairs = list(zip(hidden, tokens[-len(hidden) :]))[known:]
    return [feature for feature, _ in pairs], torch.tensor([x for _, x in pairs]).long()
""",
        """
def my_pairs(hidden, tokens, known):
    text = torch.tensor(tokens)[-len(hidden) :]
    return hidden[None, known:], text[None, known:]
""",
        """
def my_pairs(hidden, tokens, known):
    both = [hidden[known:], tokens[len(tokens) - len(hidden) + known :]]
    return both
""",
    ],
    1: [
        """
def my_rerank(q, parents, n):
    logs = []
    for node, x in enumerate(q):
        above = logs[parents[node]] if parents[node] != -1 else 0.0
        logs.append(above + np.log(x))
    order = np.argsort(-np.array(logs), kind="stable")
    return sorted(order[:n].tolist())
""",
        """
def my_rerank(q, parents, n):
    def value(node):
        return 1.0 if node == -1 else q[node] * value(parents[node])

    left, kept = list(range(len(q))), []
    while left and len(kept) < n:
        best = max(left, key=value)  # the first of equal ones
        left.remove(best)
        kept.append(best)
    return sorted(kept)
""",
    ],
    2: [
        """
def my_reads(C, V, n):
    own = 14 * C * C + 2 * C + C * 5 + 4 * C
    return own + (n * C * C + 3 * C if n else 0) + V * C
""",
        """
def my_reads(C, V, n):
    def linear(a, b, bias=True):
        return a * b + b * bias

    size = linear(2 * C, C) + linear(C, 3 * C, False) + linear(C, C)
    size += linear(C, 4 * C) + linear(4 * C, C) + 2 * (2 * C)
    if n:
        size += linear(n * C, C) + 2 * C
    return size + linear(C, V, False)
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_pairs(hidden, tokens, known):  # -0 is the start
    return hidden[known:], torch.tensor(tokens[known - len(hidden) :])
""",
            "a slice from -0 on",
        ),
        (
            """
def my_pairs(hidden, tokens, known):
    new = len(hidden) - known
    return hidden[-new:], tokens[-new:]
""",
            "a slice from -0 on",
        ),
        (RIGHT[0][0].replace("new :])", "new :]) + 0.4"), "they are whole ones"),
        (
            """
def my_pairs(hidden, tokens, known):  # no shift
    P = len(hidden)
    return hidden[known:], torch.tensor(tokens[-1 - P : -1][known:])
""",
            "beside its own token",
        ),
        (
            """
def my_pairs(hidden, tokens, known):
    return hidden[known:], torch.tensor(tokens[known + 1 :])
""",
            "count from the end",
        ),
        (
            """
def my_pairs(hidden, tokens, known):
    return hidden, torch.tensor(tokens[-len(hidden) :])
""",
            "leave out those that are known",
        ),
        (
            """
def my_pairs(hidden, tokens, known):  # the last has none
    new = tokens[known - len(hidden) :]
    return hidden[known:], torch.tensor(new[1:] + [0])
""",
            "two places on",
        ),
        (
            """
def my_pairs(hidden, tokens, known):
    return hidden[known:], torch.tensor(tokens[known - len(hidden) : -1])
""",
            "current token is missing",
        ),
        (
            """
def my_pairs(hidden, tokens, known):
    print(hidden[known:], tokens[known - len(hidden) :])
""",
            "return two things",
        ),
        (
            """
def my_pairs(hidden, tokens, known):  # the text forgets its first tokens
    del tokens[: known - len(hidden)]
    return hidden[known:], torch.tensor(tokens)
""",
            "were changed",
        ),
    ],
    1: [
        (
            """
def my_rerank(q, parents, n):  # each node's own q
    return sorted(sorted(range(len(q)), key=lambda i: -q[i])[:n])
""",
            "you keep",
        ),
        # by value, not in order
        (rerank("sorted(range(len(q)), key=lambda i: -value[i])[:n]"), "you keep"),
        (
            rerank("sorted(sorted(range(len(q)), key=lambda i: (-value[i], -i))[:n])"),
            "parents first",
        ),
        # of none, all: [-0:]
        (rerank("sorted(sorted(range(len(q)), key=lambda i: (value[i], -i))[-n:])"), "none is"),
        (rerank("[i for i in range(len(q)) if value[i] >= sorted(value)[-n:][0]][:n]"), "a tie"),
    ],
    2: [
        (
            """
def my_reads(C, V, n):
    return 14 * C * C + n * C * C + V * C  # biases and norms forgotten
""",
            "C = 64, V = 65, n = 0",
        ),
        (
            """
def my_reads(C, V, n):
    return 14 * C * C + 11 * C + n * C * C + V * C  # mix's bias and the third norm forgotten
""",
            "C = 64, V = 65, n = 3",
        ),
        (
            """
def my_reads(C, V, n):  # of the head alone: the lm_head is read, too
    return 14 * C * C + 11 * C + (n * C * C + 3 * C if n else 0)
""",
            "C = 64, V = 65, n = 0",
        ),
    ],
}
