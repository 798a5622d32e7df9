"""Chapter 16: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_tree_mask(parents, P):
    N = len(parents)
    mask = torch.zeros(N + 1, P + N + 1, dtype=torch.bool)
    mask[:, : P + 1] = True
    pos = [P]
    for row, parent in enumerate(parents, start=1):
        mask[row] |= mask[parent + 1]
        mask[row, P + row] = True
        pos.append(pos[parent + 1] + 1)
    return mask, torch.tensor(pos)
"""

SIZE = """
def my_best_size(values, B, time):
    gains = [(1 + sum(values[:n])) / time(B * (n + 1)) for n in range(len(values) + 1)]
    return int(np.argmax(gains))
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


RIGHT = {
    0: [
        """
def my_tree_mask(parents, P):
    mask = tree_mask(parents, P)
    return mask, mask.sum(-1) - 1
""",
        """
def my_tree_mask(parents, P):
    def path(node):
        return [] if node < 0 else path(parents[node]) + [node]

    rows, pos = [], []
    for node in range(-1, len(parents)):
        seen = path(node)
        rows.append([1] * (P + 1) + [int(n in seen) for n in range(len(parents))])
        pos.append(P + len(seen))
    return rows, pos
""",
        """
def my_tree_mask(parents, P):
    n = len(parents) + 1
    step = np.eye(n, dtype=int)  # a row sees itself …
    for row, parent in enumerate(parents, start=1):
        step[row, parent + 1] = 1  # … and its parent
    seen = np.linalg.matrix_power(step, n) > 0
    mask = np.concatenate([np.ones((n, P), dtype=bool), seen], axis=1)
    return [mask, mask.sum(1) - 1]
""",
        TEMPLATE,
    ],
    1: [
        """
def my_first_path(parents, correct):
    children = Tree([0] * len(parents), parents, None).children
    node, path = -1, []
    while True:
        good = [child for child in children[node + 1] if correct[child]]
        if not good:
            return path
        node = good[0]
        path.append(node)
""",
        """
def my_first_path(parents, correct):
    path = []
    for node, parent in enumerate(parents):  # parents come first, siblings in order
        if correct[node] and parent == (path[-1] if path else -1):
            path.append(node)
    return tuple(path)
""",
    ],
    2: [
        """
def my_best_size(values, B, time):
    best, size = B / time(B), 0
    tokens = 1.0
    for n, value in enumerate(values, start=1):
        tokens += value
        if B * tokens / time(B * n + B) > best:
            best, size = B * tokens / time(B * n + B), n
    return size
""",
        SIZE,
    ],
}

WRONG = {
    0: [
        (slip("mask[row] |= mask[parent + 1]", "mask[row, : P + row] = True"), "no cousins"),
        (slip("mask[:, : P + 1] = True", "mask[:, P] = True"), "does not see the cache"),
        (slip("mask[row, P + row] = True", "pass"), "does not see itself"),
        (
            slip("mask[row] |= mask[parent + 1]", "mask[row, P + 1 + parent] = True"),
            "does not see node 0; go on up",
        ),
        (  # its parent and grandparent, and nobody above
            slip(
                "mask[row] |= mask[parent + 1]",
                "above = [-1, *parents][parent + 1]\n"
                "        mask[row, P + 1 + parent] = mask[row, P + 1 + above] = True",
            ),
            "node 3 does not see node 0; go on up",
        ),
        (  # four steps up at most
            slip(
                "mask[row] |= mask[parent + 1]",
                "above = [-1, *parents]\n        for _ in range(4):\n"
                "            mask[row, P + 1 + parent], parent = True, above[parent + 1]",
            ).replace("pos[parent + 1] + 1", "int(mask[row].sum()) - 1"),
            "node 5 does not see node 0; go on up",
        ),
        (slip("torch.tensor(pos)", "torch.tensor(pos, dtype=torch.float)"), "whole numbers"),
        (  # the last tree of as many nodes
            """
remembered = {}


def my_tree_mask(parents, P):
    if len(parents) not in remembered:
        mask = tree_mask(parents, P)
        remembered[len(parents)] = mask, mask.sum(-1) - 1
    return remembered[len(parents)]
""",
            "on another branch",
        ),
        (slip("pos[parent + 1] + 1", "pos[-1] + 1"), "position by index"),
        (slip("pos = [P]", "pos = [0]"), "the cached tokens come before"),
        (slip("pos = [P]", "pos = [P + 1]"), "does not come before itself"),
        (
            slip("mask[:, : P + 1] = True", "mask[:, :P] = True\n    mask[0, P] = True").replace(
                "mask[row] |= mask[parent + 1]", "mask[row, P + 1 :] |= mask[parent + 1, P + 1 :]"
            ),
            "does not see the current token",
        ),
        (slip("mask[:, : P + 1] = True", "mask[:, :P] = True"), "the current token does not"),
        (slip("return mask, torch.tensor(pos)", "return mask"), "return two things"),
        (slip("return mask, torch.tensor(pos)", "return mask[1:], pos[1:]"), "a row for the"),
        (slip("return mask, torch.tensor(pos)", "return mask, pos[1:]"), "one for each row"),
        (
            slip("return mask,", "return torch.zeros(mask.shape).masked_fill(~mask, -1e9),"),
            "attention adds a mask of floats to the scores",
        ),
        (
            slip(
                "return mask,",
                "mask[:, P:] = mask[:, P:] | mask[:, P:].clone().T\n    return mask,",
            ),
            "nobody may see the future",
        ),
    ],
    1: [
        (  # looks at the first child alone: a chain
            """
def my_first_path(parents, correct):
    children = Tree([0] * len(parents), parents, None).children
    node, path = -1, []
    while children[node + 1] and correct[children[node + 1][0]]:
        node = children[node + 1][0]
        path.append(node)
    return path
""",
            "a second sibling",
        ),
        (  # every correct node, whether or not its parent was kept
            """
def my_first_path(parents, correct):
    return [node for node in range(len(parents)) if correct[node]]
""",
            "its parent",
        ),
        (  # its parent is looked at, and nobody above
            """
def my_first_path(parents, correct):
    return [
        i for i, p in enumerate(parents) if correct[i] and (p == -1 or correct[p])
    ]
""",
            "its grandparent is not",
        ),
        (  # two levels only
            """
def my_first_path(parents, correct):
    firsts = [i for i, p in enumerate(parents) if p == -1 and correct[i]][:1]
    return firsts + [i for i, p in enumerate(parents) if p in firsts and correct[i]][:1]
""",
            "a long chain",
        ),
        (  # of siblings, the first and the last
            """
def my_first_path(parents, correct):
    path = []
    while of := [i for i, p in enumerate(parents) if p == [-1, *path][-1]]:
        if not (good := [i for i in (of[0], of[-1]) if correct[i]]):
            break
        path.append(good[0])
    return path
""",
            "a second sibling",
        ),
    ],
    2: [
        (  # the most tokens, whatever they cost
            """
def my_best_size(values, B, time):
    return len(values)
""",
            "per unit of time",
        ),
        (  # forgets the token that every pass makes
            SIZE.replace("(1 + sum(values[:n]))", "sum(values[:n])"),
            "a pass makes a token anyway",
        ),
        (  # one text's rows
            SIZE.replace("time(B * (n + 1))", "time(n + 1)"),
            "rows by the eight",
        ),
        (  # one current token for all texts
            SIZE.replace("time(B * (n + 1))", "time(B * n + 1)"),
            "four current tokens",
        ),
        (  # without the current tokens
            SIZE.replace("time(B * (n + 1))", "time(max(B, B * n))"),
            "each row takes its time",
        ),
        (  # one row too many
            SIZE.replace("time(B * (n + 1))", "time(B * (n + 1) + 1)"),
            "rows by the eight",
        ),
        (  # stops at the first node that does not pay, though later ones might
            """
def my_best_size(values, B, time):
    def gain(n):
        return (1 + sum(values[:n])) / time(B * (n + 1))

    n = 0
    while n < len(values) and gain(n + 1) > gain(n):
        n += 1
    return n
""",
            "a step of the cost",
        ),
    ],
}
