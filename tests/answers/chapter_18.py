"""Chapter 18: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_accept_typical(epsilon, delta):
    def rule(tree, target_probs, rng):
        p = target_probs.numpy()
        H = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
        bar = np.minimum(epsilon, delta * np.exp(-H))
        best, paths = ([], 1.0), {-1: ([], 1.0)}
        for node, parent in enumerate(tree.parents):
            chance = p[parent + 1, tree.tokens[node]]
            if parent in paths and chance > bar[parent + 1]:
                path, joint = paths[parent]
                paths[node] = [*path, node], joint * chance
                if (len(path) + 1, joint * chance) > (len(best[0]), best[1]):
                    best = paths[node]
        path = best[0]
        return path, rng.categorical(target_probs[path[-1] + 1 if path else 0])

    return rule
"""


def slipped(old, new):
    """The turn's answer with one line changed."""
    assert TURN.count(old) == 1, old
    return TURN.replace(old, new)


PERFECT = """
def my_perfect(p, epsilon, delta):
    H = -sum(x * np.log(x) for x in p if x > 0)
    bar = min(epsilon, delta * np.exp(-H))
    stands = sum(x for x in p if x > bar)
    return 1.0, stands, stands * (1 - stands)
"""

TIE = "(len(path) + 1, joint * chance) > (len(best[0]), best[1])"

RIGHT = {
    0: [
        """
from nanogpt.trees.lossy import accept_typical as my_accept_typical
""",
        TURN,
        """
def my_accept_typical(epsilon, delta):
    def rule(tree, target_probs, rng):
        def bar(row):
            entropy = -sum(x * np.log(x) for x in row.tolist() if x > 0)
            return min(epsilon, delta * np.exp(-entropy))

        def below(node):
            row = target_probs[node + 1]
            ways = [((), 1.0)]
            for child in tree.children[node + 1]:
                chance = float(row[tree.tokens[child]])
                if chance > bar(row):
                    path, joint = below(child)
                    ways.append(((child, *path), chance * joint))
            return max(ways, key=lambda way: (len(way[0]), way[1]))

        path, _ = below(-1)
        last = path[-1] if path else -1
        return path, rng.categorical(target_probs[last + 1])

    return rule
""",
        """
class my_accept_typical:
    def __init__(self, epsilon, delta):
        self.epsilon, self.delta = epsilon, delta

    def __call__(self, tree, target_probs, rng):
        H = torch.special.entr(target_probs).sum(-1)
        bar = torch.clamp(self.delta * torch.exp(-H), max=self.epsilon)
        rows = torch.tensor(tree.parents, dtype=torch.long) + 1
        p = target_probs[rows, torch.tensor(tree.tokens, dtype=torch.long)]
        stands, logs, depth = [], [], []
        for node, parent in enumerate(tree.parents):
            stands.append(bool(p[node] > bar[rows[node]]) and (parent < 0 or stands[parent]))
            logs.append(float(p[node].log()) + (logs[parent] if parent >= 0 else 0.0))
            depth.append(1 + (depth[parent] if parent >= 0 else 0))
        standing = [node for node in range(len(stands)) if stands[node]]
        node = max(standing, key=lambda i: (depth[i], logs[i]), default=-1)
        token, path = rng.categorical(target_probs[node + 1]), []
        while node >= 0:
            path.insert(0, node)
            node = tree.parents[node]
        return [path, token]
""",
    ],
    1: [
        PERFECT,
        """
def my_perfect(p, epsilon, delta):
    exact, _ = bill(ways(accept_tree, p, p), p)
    return (exact, *bill(ways(accept_typical(epsilon, delta), p, p), p))
""",
        """
def my_perfect(p, epsilon, delta):
    p = np.array(p)
    bar = min(epsilon, delta * np.exp((p * np.log(np.maximum(p, 1e-300))).sum()))
    stood = np.where(p > bar, p, 0.0)
    made = stood + (1 - stood.sum()) * p
    return [np.minimum(p, p).sum(), stood.sum(), np.maximum(made - p, 0).sum()]
""",
    ],
    2: [
        """
def my_fooling(p):
    same = sum(x * np.log(x) for x in p)
    first = (same - np.log(p[2])) / (np.log(p[0]) - np.log(p[2]))
    return [first, 0.0, 1 - first]
""",
        """
def my_fooling(p):
    up, down = np.log2(p[0] / p[1]), np.log2(p[1] / p[2])
    moved = p[1] / (up + down)
    return np.array([p[0] + moved * down, 0.0, p[2] + moved * up])
""",
        """
def my_fooling(p):
    def loss(made):
        return -sum(x * np.log(y) for x, y in zip(made, p))

    low, high = 0.0, 1.0
    for _ in range(60):
        first = (low + high) / 2
        if loss([first, 0.0, 1 - first]) > loss(p):
            low = first
        else:
            high = first
    return [first, 0.0, 1 - first]
""",
    ],
}

WRONG = {
    0: [
        (slipped("delta * np.exp(-H)", "delta * np.exp(H)"), "a surer p needs a higher bar"),
        (slipped("chance > bar", "chance >= bar"), "not on it"),
        (
            slipped(
                "parent in paths and chance > bar[parent + 1]",
                "parent in paths and tree.q[node, tree.tokens[node]] > bar[parent + 1]",
            ),
            "not for the draft's q",
        ),
        (slipped("np.minimum(epsilon", "np.maximum(epsilon"), "the smaller of the two bars"),
        (
            slipped("np.minimum(epsilon, delta * np.exp(-H))", "np.full(len(p), epsilon)"),
            "where is delta",
        ),
        (
            slipped("np.minimum(epsilon, delta * np.exp(-H))", "delta * np.exp(-H)"),
            "never above epsilon",
        ),
        (slipped("np.log(np.maximum(p, 1e-300))", "np.log2(np.maximum(p, 1e-300))"), "in nats?"),
        (
            slipped(
                "np.minimum(epsilon, delta * np.exp(-H))", "np.minimum(delta, epsilon * np.exp(-H))"
            ),
            "swapped",
        ),
        (slipped("np.log(np.maximum(p, 1e-300))", "np.log(p)"), "NaN"),
        (  # Python's min(epsilon, nan) is epsilon
            slipped("np.log(np.maximum(p, 1e-300))", "np.log(p)").replace(
                "np.minimum(epsilon, delta * np.exp(-H))",
                "[min(epsilon, delta * np.exp(-h)) for h in H]",
            ),
            "NaN",
        ),
        (slipped("p[parent + 1, tree", "p[node + 1, tree"), "parent's row"),
        (
            slipped(
                "(len(path) + 1, joint * chance) > (len(best[0]), best[1])",
                "len(best[0]) == 0 or parent in best[0]",
            ),
            "the longest of all paths",
        ),
        (
            slipped(
                "(len(path) + 1, joint * chance) > (len(best[0]), best[1])",
                "len(path) + 1 > len(best[0])",
            ),
            "the largest product",
        ),
        (  # the draft's order does not matter, the root does
            slipped("parent in paths and chance", "chance").replace(
                "paths[parent]", "paths.get(parent, ([], 1.0))"
            ),
            "only where its parent does",
        ),
        (  # vllm#5131 asked for this: what comes if no guess stands?
            slipped(
                "return path, rng",
                "if not path:\n            return [], None\n        return path, rng",
            ),
            "even where no guess stands",
        ),
        (slipped("[path[-1] + 1 if path else 0]", "[0]"), "is drawn from row 0"),
        (
            slipped(
                "rng.categorical(target_probs[path[-1] + 1 if path else 0])",
                "int(p[path[-1] + 1 if path else 0].argmax())",
            ),
            "is always",
        ),
        (
            slipped(
                "        return path, rng.categorical(target_probs[path[-1] + 1 if path else 0])",
                "        row = target_probs[path[-1] + 1 if path else 0].clone()\n"
                "        for child in tree.children[path[-1] + 1 if path else 0]:\n"
                "            row[tree.tokens[child]] = 0\n"
                "        return path, rng.categorical(row / row.sum())",
            ),
            "as it is",
        ),
        (
            slipped(
                "chance > bar[parent + 1]", "rng.bernoulli(min(1.0, chance / bar[parent + 1]))"
            ),
            "no coin is tossed",
        ),
        (
            slipped("return path, rng", "return [tree.tokens[i] for i in path], rng"),
            "not their tokens",
        ),
        (
            slipped("p = target_probs.numpy()", "p = target_probs.numpy()\n        p += 1e-9"),
            "changed",
        ),
        (slipped("return path, rng.categorical", "return rng.categorical"), "it returns a pair"),
        (
            """
def my_accept_typical(epsilon, delta):
    return epsilon
""",
            "it returns the rule",
        ),
        (slipped("np.exp(-H))", "np.exp(-H[0]) * np.ones(len(p)))"), "that of row 0"),
        (slipped("np.exp(-H))", "np.exp(-H.mean()) * np.ones(len(p)))"), "mean of all rows"),
        (slipped("path, joint = paths[parent]", "path, joint = paths[parent][0], 1.0"), "product"),
        (TURN.replace("1.0", "0.0").replace("joint * chance", "joint + chance"), "product"),
        (TURN.replace("1.0", "0.0").replace("joint * chance", "max(joint, chance)"), "product"),
        (TURN.replace("joint * chance", "min(joint, chance)"), "product"),
        (TURN.replace("joint * chance", "joint if path else chance"), "product"),
        (slipped(TIE, "len(path) + 1 >= len(best[0])"), "the largest product"),
        (slipped(TIE, "len(path) + 1 > len(best[0]) or joint * chance > best[1]"), "the longest"),
        (slipped("in paths and", "in paths and len(paths[parent][0]) < 4 and"), "however deep"),
        (  # two children at most
            slipped("in paths and", "in paths and tree.parents[:node].count(parent) < 2 and"),
            "the longest of all",
        ),
        (  # what stood in other trees stands on
            TURN.replace("best, paths = ([], 1.0), {-1: ([], 1.0)}", "best = ([], 1.0)").replace(
                "    def rule", "    paths = {-1: ([], 1.0)}\n\n    def rule"
            ),
            "belongs inside the rule",
        ),
        (slipped("in paths and", "in paths and len(paths[parent][0]) < 2 and"), "however deep"),
        (
            "KEPT = {}\n"
            + slipped(
                "    def rule(tree",
                "    KEPT.update(epsilon=epsilon, delta=delta)\n\n    def rule(tree",
            ).replace("np.minimum(epsilon, delta", "np.minimum(KEPT['epsilon'], KEPT['delta']"),
            "that it was made with",
        ),
    ],
    1: [
        (  # what Medusa's paper says: two independent draws that agree
            PERFECT.replace("return 1.0", "return sum(x * x for x in p)"),
            "the exact rule keeps",
        ),
        (  # what is rejected is drawn anew, and may come after all
            PERFECT.replace("stands * (1", "(1"),
            "drawn anew",
        ),
        (
            PERFECT.replace("min(epsilon, delta * np.exp(-H))", "epsilon"),
            "typical acceptance keeps",
        ),
        (PERFECT.replace("x > bar", "x >= bar"), "typical acceptance keeps"),
        (PERFECT.replace(" if x > 0", ""), "typical acceptance keeps"),
        (
            """
def my_perfect(p, epsilon, delta):
    return 1.0, 1.0
""",
            "three numbers",
        ),
    ],
    2: [
        (
            """
def my_fooling(p):
    return [p[0] / (p[0] + p[2]), 0.0, p[2] / (p[0] + p[2])]
""",
            "the loss is",
        ),
        (
            """
def my_fooling(p):
    return list(p)
""",
            "never comes",
        ),
        (
            """
def my_fooling(p):
    return [p[0], 0.0, p[2]]
""",
            "add up to",
        ),
        (
            """
def my_fooling(p):
    return [1.5, 0.0, -0.5]
""",
            "below 0",
        ),
        (
            """
def my_fooling(p):
    return 1.0
""",
            "three numbers",
        ),
    ],
}
