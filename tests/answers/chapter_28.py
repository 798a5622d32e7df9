"""Chapter 28: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_texts(gpus, memory, utilisation, models, context):
    room = gpus * memory * utilisation - sum(w for w, _ in models)
    per_text = context * sum(kappa for _, kappa in models)
    return max(0, int(room // per_text))
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


RIGHT = {
    0: [
        """
def my_texts(gpus, memory, utilisation, models, context):
    w, kappa = (sum(sizes) for sizes in zip(*models))
    every = Shape(1, 1, 1, weight_bytes=w, value_bytes=kappa)
    plan = Plan(every, Gpu(memory, 1, 1), gpus, context=context, utilisation=utilisation)
    return plan.texts()
""",
        TEMPLATE,
        """
def my_texts(gpus, memory, utilisation, models, context):
    room = gpus * memory * utilisation
    for w, kappa in models:
        room -= w
    n = 0
    while (n + 1) * sum(context * kappa for _, kappa in models) <= room:
        n += 1
    return n
""",
        """
def my_texts(gpus, memory, utilisation, models, context):
    w, kappa = np.sum(models, axis=0)
    tokens = (gpus * memory * utilisation - w) / kappa
    return np.floor(max(0.0, tokens) / context)  # a float that is whole
""",
    ],
    1: [
        """
def my_gpus(memory, utilisation, models, context, texts):
    kept = sum(w + texts * context * kappa for w, kappa in models)
    return int(np.ceil(kept / (memory * utilisation)))
""",
        """
def my_gpus(memory, utilisation, models, context, texts):
    n = 1
    while True:
        room = n * memory * utilisation - sum(w for w, _ in models)
        if room >= texts * context * sum(kappa for _, kappa in models):
            return n
        n += 1
""",
    ],
    2: [
        """
def my_most_readers(rate, promise, most):
    best = 0
    for B in range(1, most + 1):
        if rate(B) >= B * promise:
            best = B
    return best
""",
        """
def my_most_readers(rate, promise, most):
    for B in range(most, 0, -1):
        if rate(B) / B >= promise:
            return B
    return 0
""",
    ],
}

WRONG = {
    0: [
        (slip("sum(kappa for _, kappa in models)", "models[0][1]"), "keeps a cache of every text"),
        (slip("sum(w for w, _ in models)", "models[0][0]"), "lie in the same memory"),
        (
            slip("sum(w for w, _ in models)", "models[0][0]").replace(
                "sum(kappa for _, kappa in models)", "models[0][1]"
            ),
            "has weights, and a cache, too",
        ),
        (slip("gpus * memory * utilisation", "gpus * memory"), "only `utilisation`"),
        (
            slip(
                "gpus * memory * utilisation - sum(w for w, _ in models)",
                "(gpus * memory - sum(w for w, _ in models)) * utilisation",
            ),
            "a part of the whole memory",
        ),
        (
            slip("sum(w for w, _ in models)", "gpus * sum(w for w, _ in models)"),
            "share one copy",
        ),
        (slip("gpus * memory * utilisation", "memory * utilisation"), "have memory"),
        (slip("context * sum", "sum"), "the number of tokens"),
        (slip("int(room // per_text)", "room / per_text"), "round down"),
        (slip("int(room // per_text)", "int(room // per_text) + 1"), "round down"),
        (slip("max(0, int(room // per_text))", "int(room // per_text)"), "no text does"),
        (slip(" - sum(w for w, _ in models)", ""), "the weights take room"),
        (slip("return max", "max"), "nothing came"),
        (TEMPLATE.replace("in models", "in models[:2]"), "a second draft as well as the first"),
        (
            TEMPLATE.replace("in models", "in (models[0], models[-1])"),
            "divide the rest by what a text keeps",
        ),
    ],
    1: [
        (  # rounds to the nearest
            """
def my_gpus(memory, utilisation, models, context, texts):
    kept = sum(w + texts * context * kappa for w, kappa in models)
    return max(1, round(kept / (memory * utilisation)))
""",
            "too few: 105 bytes have to lie somewhere",
        ),
        (  # only whole servers: 1, 2, 4, 8, …
            """
def my_gpus(memory, utilisation, models, context, texts):
    kept = sum(w + texts * context * kappa for w, kappa in models)
    n = 1
    while n * memory * utilisation < kept:
        n *= 2
    return n
""",
            "more than it takes: 3 would do",
        ),
        (  # the weights fit, and nothing else
            """
def my_gpus(memory, utilisation, models, context, texts):
    return int(np.ceil(sum(w for w, _ in models) / (memory * utilisation)))
""",
            "too few",
        ),
    ],
    2: [
        (  # the machine's rate is not a reader's
            """
def my_most_readers(rate, promise, most):
    return max([B for B in range(1, most + 1) if rate(B) >= promise], default=0)
""",
            "is everybody's together",
        ),
        (  # stops at the first batch that breaks the promise
            """
def my_most_readers(rate, promise, most):
    B = 0
    while B < most and rate(B + 1) / (B + 1) >= promise:
        B += 1
    return B
""",
            "look at every batch up to `most`",
        ),
        (  # a binary search
            """
def my_most_readers(rate, promise, most):
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if rate(middle) >= middle * promise:
            low = middle
        else:
            high = middle - 1
    return low
""",
            "look at every batch up to `most`",
        ),
        (  # the powers of two only
            """
def my_most_readers(rate, promise, most):
    tried = [B for B in (2**i for i in range(20)) if B <= most]
    return max([B for B in tried if rate(B) >= B * promise], default=0)
""",
            "the promise is kept up to `most`",
        ),
        (  # more than the promise
            """
def my_most_readers(rate, promise, most):
    kept = [B for B in range(1, most + 1) if rate(B) / B > promise]
    return max(kept, default=0)
""",
            "exactly the promise keeps it",
        ),
    ],
}
