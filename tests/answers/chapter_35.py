"""Answers to the turn (0) and exercises of chapter 35 that must pass, and some that must not."""

TREE = """
def my_tree(after, depth, nodes):
    tokens, parents, waiting, n = [], [], [], 0

    def open_up(node, path, worth):
        nonlocal n
        if len(path) < depth:
            for token, q in enumerate(after(path)):
                if q > 0:
                    heapq.heappush(waiting, (-worth * q, n, node, [*path, token]))
                    n += 1

    open_up(-1, [], 1.0)
    while waiting and len(tokens) < nodes:
        value, _, parent, path = heapq.heappop(waiting)
        tokens.append(path[-1])
        parents.append(parent)
        open_up(len(tokens) - 1, path, -value)
    return tokens, parents
"""

LENGTHS = """
def my_lengths(chances, rows):
    ranked = []
    for r, row in enumerate(chances):
        survives = 1.0
        for i, chance in enumerate(row):
            survives *= chance
            ranked.append((-survives, r, i))
    first = sorted(ranked)[:rows]
    return [sum(1 for _, r, _ in first if r == own) for own in range(len(chances))]
"""

RECYCLED = """
def my_recycled(passes, k):
    table = {}
    for read, rows in passes:
        for token, p in zip(read, rows):
            order = sorted(range(len(p)), key=lambda i: -p[i])
            table[token] = order[:k]
    return table
"""


def changed(source, old, new):
    """An answer with one place changed."""
    assert source.count(old) == 1, old
    return source.replace(old, new)


RIGHT = {
    0: [
        TREE,
        # a list, searched anew each time
        """
def my_tree(after, depth, nodes):
    tokens, parents, waiting = [], [], [(q, -1, [t]) for t, q in enumerate(after([]))]
    while len(tokens) < nodes:
        waiting = [w for w in waiting if w[0] > 0]
        if not waiting:
            break
        best = max(waiting, key=lambda w: w[0])
        waiting.remove(best)
        worth, parent, path = best
        tokens.append(path[-1])
        parents.append(parent)
        if len(path) < depth:
            node = len(tokens) - 1
            waiting += [(worth * q, node, [*path, t]) for t, q in enumerate(after(path))]
    return tokens, parents
""",
        # by the package's own
        """
def my_tree(after, depth, nodes):
    width = 3

    def rows(path):
        q = list(after(path))
        return torch.tensor(q + [0.0] * (width - len(q))).double()

    (tree,) = best_first([Root(rows, depth, Sampling(), None)], nodes, width)
    return tree.tokens, tree.parents
""",
    ],
    1: [
        LENGTHS,
        # guess after guess
        """
def my_lengths(chances, rows):
    taken, reached = [0] * len(chances), [1.0] * len(chances)
    for _ in range(rows):
        open_ = [r for r in range(len(chances)) if taken[r] < len(chances[r])]
        if not open_:
            break
        best = max(open_, key=lambda r: reached[r] * chances[r][taken[r]])
        reached[best] *= chances[best][taken[best]]
        taken[best] += 1
    return taken
""",
    ],
    2: [
        RECYCLED,
        # from the newest back
        """
def my_recycled(passes, k):
    table = {}
    for read, rows in reversed(passes):
        for token, p in reversed(list(zip(read, rows))):
            if token not in table:
                table[token] = torch.tensor(p).topk(k).indices.tolist()
    return table
""",
    ],
}

WRONG = {
    0: [
        (changed(TREE, "-worth * q, n", "-q, n"), "the product of all q along it"),
        (changed(TREE, "-worth * q, n", "-worth - q, n"), "the product of all q along it"),
        (  # a chain
            """
def my_tree(after, depth, nodes):
    tokens = []
    while len(tokens) < min(depth, nodes):
        q = after(tokens)
        tokens.append(q.index(max(q)))
    return tokens, list(range(-1, len(tokens) - 1))
""",
            "nodes, not",
        ),
        (  # level by level
            changed(
                TREE, "heapq.heappush(waiting, (-worth * q, n,", "waiting.append((-worth * q, n,"
            ).replace("heapq.heappop(waiting)", "waiting.pop(0)"),
            "is missing",
        ),
        (changed(TREE, "if len(path) < depth:", "if True:"), "is the most"),
        (changed(TREE, "if q > 0:", "if True:"), "cannot come"),
        (changed(TREE, "parents.append(parent)", "parents.append(parent + 1)"), "parents are"),
        (changed(TREE, "return tokens, parents", "return tokens"), "return two lists"),
        (changed(TREE, "return tokens, parents", "pass"), "nothing came back"),
        (  # lists all paths, and sorts them
            """
def my_tree(after, depth, nodes):
    paths, level = [], [((), 1.0)]
    for _ in range(depth):
        level = [((*p, t), w * q) for p, w in level for t, q in enumerate(after(list(p))) if q > 0]
        paths += level
    best = [path for path, _ in sorted(paths, key=lambda each: (-each[1], len(each[0])))][:nodes]
    return [p[-1] for p in best], [best.index(p[:-1]) if p[1:] else -1 for p in best]
""",
            "don't list all",
        ),
    ],
    1: [
        (
            changed(LENGTHS, "survives *= chance", "survives = chance"),
            "what survives is the product: you verify",
        ),
        (  # of equal ones, the earlier place first
            changed(LENGTHS, "(-survives, r, i)", "(-survives, i, r)").replace(", r, _", ", _, r"),
            "the earlier request",
        ),
        (  # even shares
            """
def my_lengths(chances, rows):
    return [min(len(row), rows // len(chances)) for row in chances]
""",
            "you verify",
        ),
        (  # the first come
            """
def my_lengths(chances, rows):
    taken = []
    for row in chances:
        taken.append(min(len(row), rows))
        rows -= taken[-1]
    return taken
""",
            "you verify",
        ),
    ],
    2: [
        (changed(RECYCLED, "order[:k]", "table.get(token, order[:k])"), "not {"),  # the oldest
        (changed(RECYCLED, "-p[i]", "p[i]"), "not {"),
        (changed(RECYCLED, "order[:k]", "order"), "not {"),
        (  # adds up all rows of a token
            """
def my_recycled(passes, k):
    table = {}
    for read, rows in passes:
        for token, p in zip(read, rows):
            table[token] = [a + b for a, b in zip(table.get(token, [0] * len(p)), p)]
    return {t: sorted(range(len(p)), key=lambda i: -p[i])[:k] for t, p in table.items()}
""",
            "not {0: [0, 1]}",
        ),
    ],
}
