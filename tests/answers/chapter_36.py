"""Answers to the turn (0) and exercises of chapter 36 that must pass, and some that must not."""

PASS = """
def my_pass(engine, Ledger, tokens, past):
    ledger = Ledger([list(layer) for layer in past or ((), ())])
    outputs = engine(tokens, ledger)
    return outputs, tuple(tuple(layer) for layer in ledger.layers)
"""

FIT = """
def my_fitted(q, size):
    q = list(q)[:size] + [0.0] * (size - len(q))
    total = sum(q)
    return [p / total for p in q]
"""

PART = """
def my_verdict(plain, other, logits, tie):
    for place, (a, b) in enumerate(zip(plain, other)):
        if a != b:
            apart = abs(logits[place][a] - logits[place][b])
            return "tie" if apart <= tie else "wrong"
    return "equal"
"""
BEST = """
def my_verdict(plain, other, logits, tie):
    for place, (a, b) in enumerate(zip(plain, other)):
        if a != b:
            best, second = sorted(logits[place], reverse=True)[:2]
            return "tie" if best - second <= tie else "wrong"
    return "equal"
"""


def changed(source, old, new):
    """An answer with one place changed."""
    assert source.count(old) == 1, old
    return source.replace(old, new)


RIGHT = {
    0: [
        PASS,
        # a deep copy
        """
def my_pass(engine, Ledger, tokens, past):
    import copy
    ledger = Ledger(copy.deepcopy(past)) if past else Ledger()
    return engine(tokens, ledger), tuple(ledger.layers)
""",
        # with an empty one to begin with, filled by hand
        """
def my_pass(engine, Ledger, tokens, past):
    ledger = Ledger()
    for layer, entries in zip(ledger.layers, past or ()):
        layer.extend(entries)
    return engine(tokens, ledger), [layer[:] for layer in ledger.layers]
""",
    ],
    1: [
        FIT,
        """
def my_fitted(q, size):
    made = torch.zeros(size, dtype=torch.float64)
    made[: len(q)] = torch.as_tensor(q[:size], dtype=torch.float64)
    return made / made.sum()
""",
    ],
    2: [
        PART,
        """
def my_verdict(plain, other, logits, tie):
    parted = [i for i in range(len(plain)) if plain[i] != other[i]]
    if not parted:
        return "equal"
    row = torch.as_tensor(logits[parted[0]], dtype=torch.float64)
    a, b = row[plain[parted[0]]], row[other[parted[0]]]
    return "wrong" if (a - b).abs() > tie else "tie"
""",
    ],
}

WRONG = {
    0: [
        (  # the very lists
            """
def my_pass(engine, Ledger, tokens, past):
    ledger = Ledger(past or ([], []))
    return engine(tokens, ledger), tuple(ledger.layers)
""",
            "changed the past that it was handed",
        ),
        (changed(PASS, "tuple(tuple(layer) for layer in ledger.layers)", "ledger"), "itself"),
        (  # it forgets
            changed(PASS, "[list(layer) for layer in past or ((), ())]", "[[], []]"),
            "does the engine see",
        ),
        (changed(PASS, "tuple(tuple(layer) for layer in ledger.layers)", "past"), "is no past"),
        (changed(PASS, "return outputs, tuple", "return tuple"), "the outputs are"),
        (
            changed(PASS, "tuple(layer) for", "tuple(layer[:-1]) for"),
            "entries in its layers after 8 tokens",
        ),
        (  # one ledger for all passes
            """
book = None


def my_pass(engine, Ledger, tokens, past):
    global book
    book = book if past else Ledger()
    return engine(tokens, book), tuple(tuple(layer) for layer in book.layers)
""",
            "does the engine see",
        ),
    ],
    1: [
        (changed(FIT, "p / total for", "p for"), "sums to"),
        (changed(FIT, "list(q)[:size] +", "list(q) +"), "numbers came for"),
        (changed(FIT, "[0.0] *", "[1e-3] *"), "the draft never draws"),
    ],
    2: [
        (changed(PART, '"equal"', '"tie"'), "the texts are equal"),
        (PART.replace("logits[place]", "logits[-1]"), "first place"),
        (BEST, "the logits of the two tokens"),
        (changed(PART, "<= tie", "<= 1"), "first place"),
    ],
}
