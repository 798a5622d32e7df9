"""Answers to the turn (0) and exercises of chapter 17 that must pass, and some that must not."""

ACCEPT = """
def my_accept_tree(tree, target_probs, rng):
    p, q, path, node = target_probs.numpy(), tree.q.numpy(), [], -1
    while True:
        left = p[node + 1]
        for child in tree.children[node + 1]:
            x = tree.tokens[child]
            if rng.bernoulli(min(1.0, left[x] / q[child][x])):
                path.append(child)
                node = child
                break
            left = residual(left, q[child])
        else:
            return path, rng.categorical(left)
"""


def accept(*changes):
    """The right rule with some places changed."""
    wrong = ACCEPT
    for old, new in changes:
        assert wrong.count(old) == 1, old
        wrong = wrong.replace(old, new)
    return wrong


TWO_LEVELS = "    return path, rng.categorical(p[node + 1])\n"

K_SEQ = """
def my_k_seq(tokens, p, q, rho, rng):
    for x in tokens:
        if rng.bernoulli(min(1.0, p[x] / (rho * q[x]))):
            return x
    once = np.minimum(q, p / rho)
    beta = once.sum()
    missing = (p - once * (1 - (1 - beta) ** len(tokens)) / beta).clip(0)
    return rng.categorical(missing / missing.sum())
"""


def k_seq(old, new):
    """The right answer with one place changed."""
    assert K_SEQ.count(old) == 1, old
    return K_SEQ.replace(old, new)


GAIN = """
def my_gain(p, q, K):
    gain = 0.0
    for guesses in product(range(len(q)), repeat=K):
        chance = q[list(guesses)].prod()
        if chance == 0:
            continue
        P = alone = 1.0
        for x in guesses:
            P, alone = min(1.0, P * p[x] / q[x]), alone * min(1.0, p[x] / q[x])
            gain += chance * (P - alone)
    return gain
"""


def gain(old, new):
    """The right answer with one place changed."""
    assert GAIN.count(old) == 1, old
    return GAIN.replace(old, new)


RIGHT = {
    0: [
        "from nanogpt.trees.rules import accept_tree as my_accept_tree",
        ACCEPT,
        # recursion, torch, and nodes found by their parents
        """
def my_accept_tree(tree, target_probs, rng, node=-1):
    left = target_probs[node + 1].clone()
    for child, parent in enumerate(tree.parents):
        if parent != node:
            continue
        x, q = tree.tokens[child], tree.q[child]
        if left[x] >= q[x] or rng.bernoulli(float(left[x] / q[x])):
            path, token = my_accept_tree(tree, target_probs, rng, child)
            return (child, *path), token
        rest = torch.relu(left - q)
        left = rest / rest.sum()
    return (), rng.categorical(left)
""",
        # plain Python, NumPy integers, no else of a loop, a list as probabilities
        """
def my_accept_tree(tree, target_probs, rng):
    path, node, going = [], -1, True
    while going:
        left, going = target_probs[node + 1].tolist(), False
        for child in tree.children[node + 1]:
            q, x = tree.q[child].tolist(), tree.tokens[child]
            if rng.bernoulli(min(1, left[x] / q[x])):
                path, node, going = path + [np.int64(child)], child, True
                break
            excess = [max(0.0, a - b) for a, b in zip(left, q)]
            if sum(excess) > 0:
                left = [e / sum(excess) for e in excess]
    return np.array(path, dtype=np.int64), torch.tensor(rng.categorical(left))
""",
    ],
    1: [
        K_SEQ,
        # which try is kept first, drawn at once
        """
def my_k_seq(tokens, p, q, rho, rng):
    keep = np.minimum(1, p / (rho * q))
    chances, reached = [], 1.0
    for x in tokens:
        chances.append(reached * keep[x])
        reached -= chances[-1]
    which = rng.categorical(np.array([*chances, reached]))
    if which < len(tokens):
        return tokens[which]
    beta = (q * keep).sum()
    missing = p - q * keep * (1 - (1 - beta) ** len(tokens)) / beta
    missing = np.maximum(missing, 0)
    return rng.categorical(torch.from_numpy(missing / missing.sum()))
""",
    ],
    2: [
        GAIN,
        # beginning by beginning, with how likely the draft is to come there; a NumPy number
        """
def my_gain(p, q, K):
    begun, gain = [(1.0, 1.0, 1.0)], np.float64(0)
    for _ in range(K):
        begun = [
            (chance * q[x], min(1, P * p[x] / q[x]), alone * min(1, p[x] / q[x]))
            for chance, P, alone in begun
            for x in np.flatnonzero(q)
        ]
        gain += sum(chance * (P - alone) for chance, P, alone in begun)
    return gain
""",
        # with the chapter's own functions
        """
def my_gain(p, q, K):
    ps, qs, gain = torch.tensor(np.array([p] * (K + 1))), torch.tensor(np.array([q] * K)), 0
    for guesses in product(np.flatnonzero(q).tolist(), repeat=K):
        better = sum(prefix_chances(guesses, qs, ps)[1:])
        better -= alone(list(guesses), qs, ps).cumprod().sum()
        gain += q[list(guesses)].prod() * better
    return torch.tensor(gain)
""",
    ],
}

WRONG = {
    0: [
        (accept(("left[x] / q", "p[node + 1][x] / q")), "still judged by p; judge it by what"),
        (accept(("residual(left, q[child])", "left")), "both must use what the rejected"),
        (
            accept(("residual(left, q[child])", "residual(p[node + 1], q[child])")),
            "taken from p anew",
        ),
        (accept(("rng.categorical(left)", "rng.categorical(p[node + 1])")), "draw it from what"),
        (
            accept(
                ("left[x] / q[child][x]", "left[x] / q[tree.children[node + 1][0]][x]"),
                ("residual(left, q[child])", "residual(left, q[tree.children[node + 1][0]])"),
            ),
            "judged by the first one's q",
        ),
        (
            accept(
                ("        left = p[node + 1]\n", "        left, seen = p[node + 1], []\n"),
                (
                    "            if rng",
                    "            if x in seen:\n                continue\n"
                    "            seen.append(x)\n            if rng",
                ),
            ),
            "a copy of a rejected token is skipped",
        ),
        (
            accept(
                ("residual(left, q[child])", "left * (np.arange(3) != x) / (left.sum() - left[x])")
            ),
            "takes away the whole q",
        ),
        (
            accept(
                (
                    "                break\n",
                    "                return path, rng.categorical(p[node + 1])\n",
                )
            ),
            "an accepted node's children are never looked at",
        ),
        # levels written out by hand: as deep as the trees that one thinks of
        (accept(("while True", "for _ in range(2)")) + TWO_LEVELS, "ends after two levels"),
        (accept(("while True", "for _ in range(3)")) + TWO_LEVELS, "ends after three levels"),
        (accept(("while True", "for _ in range(5)")) + TWO_LEVELS, "a chain of six"),
        (accept(("in tree.children[node + 1]", "in tree.children[node + 1][:3]")), "all children"),
        (
            accept(
                ("min(1.0, left[x] / q[child][x])", "min(1.0, round(left[x] / q[child][x], 3))")
            ),
            "number rounded",
        ),
        (accept(("/ q[child][x]", "/ (q[child][x] + 1e-4)")), "or one added"),
        (accept(("left = p[node + 1]", "left = p[node]")), "read from a wrong row"),
        (accept(("path.append(child)", "path.append(x)")), "indices of nodes, not tokens"),
        (
            accept(("path, node = target_probs", "path, node = target_probs")).replace(
                "[], -1\n", "[-1], -1\n"
            ),
            "and not the current token",
        ),
        (
            accept(("            return path, rng", "            path, rng")).replace(
                "while True", "for _ in range(9)"
            ),
            "nothing came back",
        ),
        (
            accept(("return path, rng.categorical(left)", "return rng.categorical(left)")),
            "not (path",
        ),
        (accept(("residual(left, q[child])", "(left - q[child]).clip(0)")), "sum to 1 within"),
        (accept(("min(1.0, left[x] / q[child][x])", "left[x] / q[child][x]")), "must be in [0, 1]"),
        (
            accept(
                ("rng.bernoulli(min(1.0, left[x] / q[child][x]))", "np.random.rand() < left[x]")
            ),
            "not all chance comes from `rng`",
        ),
        (
            accept(
                (
                    "        left = p[node + 1]\n",
                    "        left = p[node + 1]\n        left *= 1.0 - 1e-9\n",
                )
            ),
            "changed in place",
        ),
    ],
    1: [
        (
            k_seq(
                "missing = (p - once * (1 - (1 - beta) ** len(tokens)) / beta)", "missing = (p - q)"
            ),
            "what is missing of p?",
        ),
        (k_seq("(rho * q[x])", "q[x]"), "what is missing of p?"),
        (
            k_seq("(p - once * (1 - (1 - beta) ** len(tokens)) / beta).clip(0)", "p"),
            "what is missing of p?",
        ),
        (k_seq("    return rng", "    rng"), "nothing came back"),
        # exact, and not k-SEQ: what is kept is another question
        ("def my_k_seq(tokens, p, q, rho, rng):\n    return rng.categorical(p)", "not k-SEQ"),
        (
            """
def my_k_seq(tokens, p, q, rho, rng):
    for x in tokens:  # one after the other
        if rng.bernoulli(min(1.0, p[x] / q[x])):
            return x
        p = residual(p, q)
    return rng.categorical(p)
""",
            "not k-SEQ",
        ),
        (
            """
def my_k_seq(tokens, p, q, rho, rng):
    if rng.bernoulli(min(1.0, p[tokens[0]] / q[tokens[0]])):  # the first guess alone
        return tokens[0]
    return rng.categorical(residual(p, q))
""",
            "not k-SEQ",
        ),
        (
            k_seq("    for x in tokens", "    rho = float(len(tokens))\n    for x in tokens"),
            "not k-SEQ",
        ),
    ],
    2: [
        (gain("min(1.0, P * p[x] / q[x])", "P * p[x] / q[x]"), "enumeration of both rules"),
        (gain("min(1.0, P * p[x] / q[x])", "P * min(1.0, p[x] / q[x])"), "you say 0.0000"),
        (gain("chance * (P - alone)", "(P - alone) / len(q) ** K"), "enumeration of both rules"),
        (gain("            gain += ", "        gain += "), "enumeration of both rules"),
        (gain("q[list(guesses)].prod()", "p[list(guesses)].prod()"), "enumeration of both rules"),
        (gain("    return gain", "    return gain / K"), "enumeration of both rules"),
        (gain("repeat=K", "repeat=min(K, 3)"), "K = 4"),
        (gain("    return gain", "    gain"), "is not one number"),
        (gain("    return gain", "    return p - q"), "is not one number"),
    ],
}
