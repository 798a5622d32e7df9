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


RIGHT = {
    0: [
        """
from nanogpt.lossy import accept_typical as my_accept_typical
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
        """
def my_weight(p, q, most):
    distance = sum(abs(a - b) for a, b in zip(p, q)) / 2
    if distance <= most:
        return 0.0
    return 1 - most / distance
""",
        """
def my_weight(p, q, most):
    p, q = np.array(p), np.array(q)
    distance = 1 - np.minimum(p, q).sum()
    return max(0.0, 1 - most / max(distance, 1e-300))
""",
        """
def my_weight(p, q, most):
    low, high = 0.0, 1.0
    for _ in range(60):
        w = (low + high) / 2
        off = sum(abs((1 - w) * (b - a)) for a, b in zip(p, q)) / 2
        low, high = (w, high) if off > most else (low, w)
    return high
""",
    ],
    2: [
        """
def my_shifts(logits, theta):
    best, second = sorted(logits, reverse=True)[:2]
    stands = (theta * best - second) / (1 - theta)
    return max(stands, -best) + 1.0, -second
""",
        """
def my_shifts(logits, theta):
    second = float(np.sort(logits)[-2])
    return 1e9, -second
""",
        """
def my_shifts(logits, theta):
    best, second = sorted(logits)[-1], sorted(logits)[-2]
    gap = best - second
    return gap / (1 - theta) - second + 1.0, gap * theta / 2 / (1 - theta) - second
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
        (
            slipped("[path[-1] + 1 if path else 0]", "[0]"),
            "is drawn from row 0",
        ),
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
    ],
    1: [
        (  # the weight of q, not of p
            """
def my_weight(p, q, most):
    distance = sum(abs(a - b) for a, b in zip(p, q)) / 2
    return min(1.0, most / distance) if distance else 0.0
""",
            "more than",
        ),
        (  # twice the total variation
            """
def my_weight(p, q, most):
    distance = sum(abs(a - b) for a, b in zip(p, q))
    return max(0.0, 1 - most / distance) if distance else 0.0
""",
            "a smaller weight",
        ),
        (  # on the safe side, and as slow as ever
            """
def my_weight(p, q, most):
    return 1.0
""",
            "a smaller weight",
        ),
        (  # below 0 where everything may stand
            """
def my_weight(p, q, most):
    distance = sum(abs(a - b) for a, b in zip(p, q)) / 2
    return 1 - most / distance if distance else 0.0
""",
            "from 0 to 1",
        ),
    ],
    2: [
        (
            """
def my_shifts(logits, theta):
    return 0.0, 0.0
""",
            "not let the second stand",
        ),
        (
            """
def my_shifts(logits, theta):
    return 1e9, -1e9
""",
            "not above 0",
        ),
        (
            """
def my_shifts(logits, theta):
    return 1e9, 1e9
""",
            "lets the second stand",
        ),
        (
            """
def my_shifts(logits, theta):
    return 1e9
""",
            "two numbers",
        ),
    ],
}
