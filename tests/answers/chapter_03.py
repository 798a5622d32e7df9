"""Answers to the exercises of chapter 03: right ones of several kinds, well-known wrong ones."""

RIGHT = {
    1: [
        """
def my_triple_counts(tokens, V):
    counts = torch.zeros(V, V, V, dtype=torch.int64)
    for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
        counts[a, b, c] += 1
    return counts
""",
        """
import numpy as np

def my_triple_counts(tokens, V):
    t, counts = tokens.numpy(), np.zeros((V, V, V))
    np.add.at(counts, (t[:-2], t[1:-1], t[2:]), 1)
    return counts
""",
        """
def my_triple_counts(tokens, V):
    counts = torch.zeros(V, V, V)
    ones = torch.ones(len(tokens) - 2)
    return counts.index_put((tokens[:-2], tokens[1:-1], tokens[2:]), ones, accumulate=True)
""",
    ],
    2: [
        """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        follower = {}
        for token, after in zip(context, context[1:]):
            follower[token] = after
        if context[-1] not in follower:
            return torch.ones(self.vocab_size).double() / self.vocab_size
        q = torch.zeros(self.vocab_size, dtype=torch.float64)
        q[follower[context[-1]]] = 1.0
        return q
""",
        """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        text = torch.tensor(context)
        places = (text[:-1] == text[-1]).nonzero().flatten()
        if not len(places):
            return torch.full((self.vocab_size,), 1 / self.vocab_size)
        return torch.eye(self.vocab_size)[text[places[-1] + 1]]
""",
        """
import numpy as np

class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        backwards = list(context)[::-1]
        try:
            at = backwards.index(backwards[0], 1)
        except ValueError:
            return torch.from_numpy(np.full(self.vocab_size, 1 / self.vocab_size))
        return torch.nn.functional.one_hot(
            torch.tensor(backwards[at - 1]), self.vocab_size
        ).double()
""",
    ],
}

WRONG = {
    1: [
        (  # [c, b, a]
            """
def my_triple_counts(tokens, V):
    triples = (tokens[2:] * V + tokens[1:-1]) * V + tokens[:-2]
    return torch.bincount(triples, minlength=V**3).view(V, V, V)
""",
            "occurs",
        ),
        (  # only the pairs
            """
def my_triple_counts(tokens, V):
    return torch.bincount(tokens[:-1] * V + tokens[1:], minlength=V * V).view(V, V)
""",
            "shape (3, 3), not (3, 3, 3)",
        ),
        (  # the last triple is lost
            """
def my_triple_counts(tokens, V):
    counts = torch.zeros(V, V, V, dtype=torch.int64)
    for i in range(len(tokens) - 3):
        counts[tokens[i], tokens[i + 1], tokens[i + 2]] += 1
    return counts
""",
            "5 triples, not 4",
        ),
        (  # += does not add up where a triple occurs twice
            """
def my_triple_counts(tokens, V):
    counts = torch.zeros(V, V, V, dtype=torch.int64)
    counts[tokens[:-2], tokens[1:-1], tokens[2:]] += 1
    return counts
""",
            "triples, not",
        ),
    ],
    2: [
        (  # the first place, not the latest
            """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        q = torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)
        if context[-1] in context[:-1]:
            q.zero_()
            q[context[context.index(context[-1]) + 1]] = 1
        return q
""",
            "context [0, 1, 0, 2, 0]: got [0.0, 1.0, 0.0, 0.0]",
        ),
        (  # the token itself, not the one after it
            """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        q = torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)
        if context[-1] in context[:-1]:
            q.zero_()
            q[context[-1]] = 1
        return q
""",
            "context [0, 1, 0]: got [1.0, 0.0, 0.0, 0.0]",
        ),
        (  # no even bet
            """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        q = torch.zeros(self.vocab_size, dtype=torch.float64)
        for i in range(len(context) - 2, -1, -1):
            if context[i] == context[-1]:
                q[context[i + 1]] = 1
                break
        return q
""",
            "context [0, 1, 2]: got [0.0, 0.0, 0.0, 0.0]",
        ),
        (  # every place counts, not the latest alone
            """
class MyCopyDraft:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def get_probs(self, context):
        q = torch.zeros(self.vocab_size, dtype=torch.float64)
        for token, after in zip(context, context[1:]):
            if token == context[-1]:
                q[after] += 1
        return q / q.sum() if q.sum() else q + 1 / self.vocab_size
""",
            "context [0, 1, 0, 2, 0]: got [0.0, 0.5, 0.5, 0.0]",
        ),
    ],
}
