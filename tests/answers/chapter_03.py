"""Answers to the turn (0) and exercises of chapter 03: right ones of several kinds, wrong ones."""

TURN = """
def my_counted_table(tokens, V):
    counts = torch.bincount(tokens[:-1] * V + tokens[1:], minlength=V * V).view(V, V) + 1
    return counts / counts.sum(dim=1, keepdim=True)
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts.bigram import BigramDraftModel

def my_counted_table(tokens, V):
    return BigramDraftModel(tokens, V).table
""",
        """
def my_counted_table(tokens, V):
    table = torch.ones(V, V)
    for first, second in zip(tokens, tokens[1:]):
        table[first, second] += 1
    return table / table.sum(dim=1, keepdim=True)
""",
        # a list of rows
        """
def my_counted_table(tokens, V):
    rows = []
    for i in range(V):
        row = torch.bincount(tokens[1:][tokens[:-1] == i], minlength=V) + 1
        rows.append(row / row.sum())
    return rows
""",
        """
import numpy as np

def my_counted_table(tokens, V):
    counts = np.ones((V, V))
    np.add.at(counts, (tokens[:-1].numpy(), tokens[1:].numpy()), 1)
    return counts / counts.sum(axis=1, keepdims=True)
""",
        """
def my_counted_table(tokens, V):
    one_hot = torch.nn.functional.one_hot(tokens, V).double()
    counts = one_hot[:-1].T @ one_hot[1:] + 1
    return torch.nn.functional.normalize(counts, p=1, dim=1)
""",
        """
from collections import Counter

def my_counted_table(tokens, V):
    text = tokens.tolist()
    pairs, firsts = Counter(zip(text, text[1:])), Counter(text[:-1])
    return [[(pairs[i, j] + 1) / (firsts[i] + V) for j in range(V)] for i in range(V)]
""",
    ],
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
class MyCopyDraft(Draft):
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
class MyCopyDraft(Draft):
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

class MyCopyDraft(Draft):
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
    0: [
        (  # what comes before, not after
            TURN.replace("[:-1] * V + tokens[1:]", "[1:] * V + tokens[:-1]"),
            "row i is for what comes after token i",
        ),
        (  # no smoothing: an empty row is NaN
            TURN.replace("(V, V) + 1", "(V, V)"),
            "add one to every count before you divide",
        ),
        (  # each column is divided by its sum
            TURN.replace("1, keepdim=True", "0"),
            "the rows sum to",
        ),
        (  # counts, no probabilities
            TURN.replace("counts / counts.sum(dim=1, keepdim=True)", "counts"),
            "the rows sum to 7, 5, 3, not to 1",
        ),
        (  # divided by the sum of the whole table
            TURN.replace("dim=1, keepdim=True", ""),
            "divide each row by its own sum",
        ),
        (  # a pair that occurs twice is counted once
            """
def my_counted_table(tokens, V):
    counts = torch.ones(V, V)
    counts[tokens[:-1], tokens[1:]] += 1
    return counts / counts.sum(dim=1, keepdim=True)
""",
            "a pair that occurs twice counts twice",
        ),
        (  # the end of the text is followed by its beginning
            TURN.replace("[:-1] * V + tokens[1:]", " * V + tokens.roll(-1)"),
            "a text has an end",
        ),
        (  # the last pair is lost
            TURN.replace(
                "def my_counted_table(tokens, V):",
                "def my_counted_table(tokens, V):\n    tokens = tokens[:-1]",
            ),
            "N tokens have N-1 pairs",
        ),
        (  # as many rows as tokens that occur
            TURN.replace(
                "def my_counted_table(tokens, V):",
                "def my_counted_table(tokens, V):\n    V = int(tokens.max()) + 1",
            ),
            "for V = 5 the table has shape (3, 3), not (5, 5)",
        ),
        (  # the text is changed
            """
def my_counted_table(tokens, V):
    tokens *= V
    counts = torch.bincount(tokens[:-1] + tokens[1:] // V, minlength=V * V).view(V, V) + 1
    return counts / counts.sum(dim=1, keepdim=True)
""",
            "the tokens you were given have changed",
        ),
        (  # nothing is returned
            TURN.replace("counts / counts.sum(dim=1, keepdim=True)", "None"),
            "nothing came back",
        ),
        (  # a pair's number in base 10
            """
def my_counted_table(tokens, V):
    table = torch.ones(V, V)
    for number in (tokens[:-1] * 10 + tokens[1:]).tolist():
        table[number // 10, number % 10] += 1
    return table / table.sum(dim=1, keepdim=True)
""",
            "does yours take tokens of two digits",
        ),
        (  # counts of one byte
            RIGHT[0][1]
            .replace("ones(V, V", "ones(V, V, dtype=torch.uint8")
            .replace(", tokens", "[:-1], tokens"),
            "and counts of hundreds?",
        ),
    ],
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
class MyCopyDraft(Draft):
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
class MyCopyDraft(Draft):
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
class MyCopyDraft(Draft):
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
class MyCopyDraft(Draft):
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
