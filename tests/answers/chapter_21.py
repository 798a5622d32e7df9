"""Chapter 21: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_jacobi(ask, guesses):
    rows = [list(guesses)]
    for _ in range(len(guesses)):
        row = ask(rows[-1])[:-1]
        if row == rows[-1]:
            break
        rows.append(row)
    return rows
"""

WORTH = """
def my_worth(tokens, rows, per_row, rest):
    return tokens / (1 + (rows - 1) * per_row + rest)


def my_break_even(tokens, rows, rest):
    return max(0.0, (tokens - 1 - rest) / (rows - 1))
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


RIGHT = {
    0: [
        "my_jacobi = naive_jacobi",
        TEMPLATE,
        """
def my_jacobi(ask, guesses):
    rows, row, left = [], tuple(guesses), len(guesses)
    while not rows or row != rows[-1]:
        rows.append(row)
        if not left:
            break
        row, left = tuple(ask(list(row))[: len(row)]), left - 1
    return rows
""",
        """
def my_jacobi(ask, guesses):
    rows = [np.array(guesses)]
    while len(rows) <= len(guesses):
        row = np.array(ask(rows[-1].tolist()))[:-1]
        if (row == rows[-1]).all():
            return rows
        rows.append(row)
    return rows
""",
        """
def my_jacobi(ask, guesses):
    def on(row, passes):
        if passes == 0:
            return [row]
        new = [*ask(row)][: len(row)]
        return [row] if new == row else [row, *on(new, passes - 1)]

    return on(list(guesses), len(guesses))
""",
        """
def my_jacobi(ask, guesses):
    row = list(guesses)
    yield list(row)
    for _ in guesses:
        new = ask(row)[:-1]
        if new == row:
            return
        row = new
        yield list(row)
""",
        """
def my_jacobi(ask, guesses):
    rows = [torch.tensor(guesses)]
    for _ in range(len(guesses)):
        row = torch.tensor(ask(rows[-1].tolist())[:-1])
        if torch.equal(row, rows[-1]):
            break
        rows.append(row)
    return torch.stack(rows)
""",
    ],
    1: [
        """
def my_read(pool, tokens, N, done):
    for end in range(max(done + 1, N), len(tokens) + 1):
        pool.add(tuple(tokens[end - N : end]))
""",
        """
def my_read(pool, tokens, N, done):
    grams = list(zip(*(tokens[i:] for i in range(N))))
    for at, gram in enumerate(grams):
        if at + N > done:
            pool.add(gram)
""",
    ],
    2: [
        WORTH,
        """
def my_worth(tokens, rows, per_row, rest):
    return tokens / (1 - per_row + rows * per_row + rest)


def my_break_even(tokens, rows, rest):
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        if my_worth(tokens, rows, middle, rest) >= 1:
            low = middle
        else:
            high = middle
    return low
""",
    ],
}

WRONG = {
    0: [
        (slip("ask(rows[-1])[:-1]", "ask(rows[-1])[1:]"), "belongs at place i"),
        (slip("ask(rows[-1])[:-1]", "ask(rows[-1])"), "belongs to none"),
        (
            slip(
                "            break\n        rows.append(row)",
                "            pass\n        rows.append(row)",
            ),
            "not added again",
        ),
        (slip("    return rows\n", "    return rows[1:] or rows\n"), "the given row comes first"),
        (slip("row == rows[-1]", "row[0] == rows[-1][0]"), "stopped too early"),
        (slip("row == rows[-1]", "sorted(row) == sorted(rows[-1])"), "stopped too early"),
        (slip("range(len(guesses))", "range(8)"), "stopped too early"),
        (slip("    return rows\n", "    return rows[-1]\n"), "return all rows"),
        (slip("    return rows\n", "    pass\n"), "return all rows"),
        (slip("range(len(guesses))", "range(99)"), "you asked"),
        (
            """
def my_jacobi(ask, guesses):
    rows = [list(guesses)]
    for i in range(len(guesses)):
        row = list(rows[-1])
        row[i] = ask(row)[i]
        if row == rows[-1]:
            continue
        rows.append(row)
    return rows
""",
            "all places are mended at once",
        ),
        (
            """
def my_jacobi(ask, guesses):
    rows = [guesses]
    for _ in range(len(guesses)):
        row = ask(guesses)[:-1]
        if row == guesses:
            break
        guesses[:] = row
        rows.append(guesses)
    return rows
""",
            "the caller's guesses are changed",
        ),
        (
            """
def my_jacobi(ask, guesses):
    row, rows = list(guesses), []
    rows.append(row)
    for _ in range(len(guesses)):
        new = ask(row)[:-1]
        if new == row:
            break
        row[:] = new
        rows.append(row)
    return rows
""",
            "keep a copy of each row",
        ),
    ],
    1: [
        (  # what spans the border is lost
            """
def my_read(pool, tokens, N, done):
    for at in range(done, len(tokens) - N + 1):
        pool.add(tokens[at : at + N])
""",
            "calls at",
        ),
        (  # everything again at each call
            """
def my_read(pool, tokens, N, done):
    for at in range(len(tokens) - N + 1):
        pool.add(tokens[at : at + N])
""",
            "calls at",
        ),
        (  # the last n-gram is lost
            """
def my_read(pool, tokens, N, done):
    for at in range(max(0, done - N + 1), len(tokens) - N):
        pool.add(tokens[at : at + N])
""",
            "calls at",
        ),
        (  # the caller's text is eaten up
            """
def my_read(pool, tokens, N, done):
    del tokens[: max(0, done - N + 1)]
    while len(tokens) >= N:
        pool.add(tokens[:N])
        tokens.pop(0)
""",
            "changes the text",
        ),
        (  # what came before in the text is not new again
            """
def my_read(pool, tokens, N, done):
    known = {tuple(tokens[i : i + N]) for i in range(done - N + 1)}
    for at in range(max(0, done - N + 1), len(tokens) - N + 1):
        if tuple(tokens[at : at + N]) not in known:
            known.add(tuple(tokens[at : at + N]))
            pool.add(tokens[at : at + N])
""",
            "a repeated one, too",
        ),
        (  # skips what it has just added
            """
def my_read(pool, tokens, N, done):
    grams = [tuple(tokens[i : i + N]) for i in range(len(tokens) - N + 1)]
    for gram in dict.fromkeys(grams[max(0, done - N + 1) :]):
        pool.add(gram)
""",
            "a repeated one, too",
        ),
        (  # newest first
            """
def my_read(pool, tokens, N, done):
    for end in range(len(tokens), max(done, N - 1), -1):
        pool.add(tokens[end - N : end])
""",
            "calls at",
        ),
    ],
    2: [
        (WORTH.replace("(rows - 1)", "rows"), "plain passes"),  # the first row paid twice
        (WORTH.replace("max(0.0, (tokens", "((tokens"), "rest 0.3"),  # loses even with free rows
        (
            WORTH.replace("return tokens", "return max(1.0, tokens").replace(
                "rest)\n", "rest))\n", 1
            ),
            "not .5",
        ),
    ],
}
