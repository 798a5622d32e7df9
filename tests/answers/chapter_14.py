"""Chapter 14: right answers to its turn and exercises, and wrong ones that must be refused."""

NAPKIN = """
def my_early_exit(target, depth, head, text, K, rng):
    token, past_kvs = text.tokens[-1], text.past_kvs
    tokens, rows, streams = [], [], []
    for _ in range(K):
        idx = torch.tensor([[token]])
        found, past_kvs = target.states(idx, past_kvs=past_kvs, depth=depth)
        q = Sampling().probs(head(found[-1])[0, 0])
        token = rng.categorical(q)
        tokens.append(token)
        rows.append(q)
        streams.append(found[-1])
    begun = Begun(depth, torch.cat(streams, dim=1), past_kvs)
    return BegunTree(tokens, list(range(-1, K - 1)), torch.stack(rows), begun)
"""

ANSWER_1 = """
def my_best_exit(alphas, costs, most):
    best, fastest = None, 1.0
    for depth, alpha in alphas.items():
        for K in range(1, most + 1):
            tokens = sum(alpha**i for i in range(K + 1))
            if tokens / (1 + K * costs[depth]) > fastest:
                best, fastest = (depth, K), tokens / (1 + K * costs[depth])
    return best
"""

ANSWER_2 = """
def my_dearest(alpha, better, E, L, most):
    goal = kindest(alpha, E / L, most=most)
    K = range(1, most + 1)
    return L * max((theory.expected_tokens(better, k) / goal - 1) / k for k in K) - E
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts.itself import EarlyExitDraft as Shipped


def my_early_exit(target, depth, head, text, K, rng):
    return Shipped(target, depth, head, K).propose(text, K, Sampling(), rng)
""",
        NAPKIN,
        """
def my_early_exit(target, depth, head, text, K, rng):
    def grow(tokens, rows, streams, past_kvs):
        if len(tokens) == K + 1:
            q, stream = torch.stack(rows), torch.cat(streams, 1)
            return BegunTree(tokens[1:], [i - 1 for i in range(K)], q, (depth, stream, past_kvs))
        (*_, x), past_kvs = target.states(torch.tensor([tokens[-1:]]), None, past_kvs, None, depth)
        q = Sampling().probs(head(x).flatten())
        return grow([*tokens, rng.categorical(q)], [*rows, q], [*streams, x], past_kvs)

    return grow(text.tokens[-1:], [], [], text.past_kvs)
""",
        """
class my_early_exit:
    def __new__(cls, target, depth, head, text, K, rng):
        q = torch.zeros(K, target.config.vocab_size, dtype=torch.float64)
        stream = torch.zeros(1, K, target.config.n_embd, dtype=torch.float64)
        tokens, kvs = [text.tokens[-1]], text.past_kvs
        for i in range(K):
            streams, kvs = target.states(torch.tensor([[tokens[i]]]), past_kvs=kvs, depth=depth)
            stream[:, i] = streams[-1][:, 0]
            q[i] = Sampling().probs(head(stream[0, i]))
            tokens.append(rng.categorical(q[i]))
        return BegunTree(tuple(tokens[1:]), tuple(range(-1, K - 1)), q, Begun(depth, stream, kvs))
""",
    ],
    1: [
        ANSWER_1,
        """
def my_best_exit(alphas, costs, most):
    rows = []
    for depth in alphas:
        K = theory.best_K(alphas[depth], costs[depth], most=most)
        tokens = theory.expected_tokens(alphas[depth], K)
        rows.append((theory.speed_up(tokens, K, costs[depth]), depth, K))
    speed, depth, K = max(rows)
    return [depth, K] if speed > 1 else None
""",
    ],
    2: [
        """
def my_dearest(alpha, better, E, L, most):
    goal = kindest(alpha, E / L, most=most)
    low, high = 0.0, 10.0 * L
    for _ in range(80):  # halvings
        middle = (low + high) / 2
        faster = kindest(better, (E + middle) / L, most=most) > goal
        low, high = (middle, high) if faster else (low, middle)
    return low
""",
        """
def my_dearest(alpha, better, E, L, most):
    def tokens(a, K):
        return sum(a**i for i in range(K + 1))

    goal = max(tokens(alpha, K) / (1 + K * E / L) for K in range(1, most + 1))
    each = [(tokens(better, K) / goal - 1) / K for K in range(1, most + 1)]
    return torch.tensor(each, dtype=torch.float64).max() * L - E
""",
    ],
}

WRONG = {
    0: [
        (  # one call too many, as if the last guess had a follower
            NAPKIN.replace(
                "    begun =",
                "    found, past_kvs = target.states(\n"
                "        torch.tensor([[token]]), past_kvs=past_kvs, depth=depth\n    )\n"
                "    streams.append(found[-1])\n    begun =",
            ),
            "the last guess is drawn and not read",
        ),
        (  # the whole text again for every guess
            """
def my_early_exit(target, depth, head, text, K, rng):
    tokens, rows = list(text.tokens), []
    for _ in range(K):
        streams, kvs = target.states(torch.tensor([tokens]), depth=depth)
        q = Sampling().probs(head(streams[-1][0, -1]))
        tokens.append(rng.categorical(q))
        rows.append(q)
    n = len(text.tokens)
    begun = Begun(depth, streams[-1][:, n - 1 :], kvs)
    return BegunTree(tokens[n:], list(range(-1, K - 1)), torch.stack(rows), begun)
""",
            "only the newest token",
        ),
        (  # forgets the longer cache
            NAPKIN.replace("found, past_kvs = target", "found, new_kvs = target"),
            "is it the newest token that goes in, after the cache of all before it",
        ),
        (NAPKIN.replace("head(found[-1])", "target.lm_head(target.ln_f(found[-1]))"), "use `head`"),
        (NAPKIN.replace(", depth=depth)", ")"), "out after the right block"),
        (NAPKIN.replace("rng.categorical(q)", "int(q.argmax())"), "rng.categorical"),
        (NAPKIN.replace("Sampling().probs(head(", "Sampling(0).probs(head("), "is one-hot"),
        (NAPKIN.replace("range(-1, K - 1)", "range(K)"), "the first follows -1"),
        (NAPKIN.replace("rows.append(q)", "rows.append(q.float())"), "float32; Sampling().probs"),
        (
            NAPKIN.replace("torch.stack(rows), begun)", "torch.stack(rows), None)"),
            "begun is None; it takes",
        ),
        (NAPKIN.replace("torch.stack(rows), begun)", "rows, begun)"), "q has the shape"),
        (NAPKIN.replace("Begun(depth,", "Begun(depth - 1,"), "begun says depth"),
        (NAPKIN.replace("torch.cat(streams, dim=1)", "streams[-1]"), "every guess but the last"),
        (  # all blocks run, and their cache goes along
            NAPKIN.replace("depth=depth)", "depth=None)").replace("found[-1]", "found[depth - 1]"),
            "the cache in begun is not that of the first",
        ),
        (
            NAPKIN.replace(", past_kvs)\n    return", ", text.past_kvs)\n    return"),
            "the cache in begun holds",
        ),
        (
            NAPKIN.replace("torch.cat(streams, dim=1)", "target.ln_f(torch.cat(streams, dim=1))"),
            "before the head",
        ),
        (  # writes the guesses into the text
            NAPKIN.replace(
                "        rows.append(q)\n",
                "        rows.append(q)\n        text.tokens.append(token)\n",
            ),
            "the text was changed",
        ),
        (
            NAPKIN.replace(
                "return BegunTree(tokens, list(range(-1, K - 1)), torch.stack(rows), begun)",
                "return tokens, rows",
            ),
            "return BegunTree(tokens, parents, q, begun)",
        ),
    ],
    1: [
        (  # the most α for its cost, and then K
            """
def my_best_exit(alphas, costs, most):
    depth = max(alphas, key=lambda E: alphas[E] / costs[E])
    K = theory.best_K(alphas[depth], costs[depth], most=most)
    tokens = theory.expected_tokens(alphas[depth], K)
    return (depth, K) if theory.speed_up(tokens, K, costs[depth]) > 1 else None
""",
            "cheap, but blind",
        ),
        (  # the best for one guess, and then its K
            """
def my_best_exit(alphas, costs, most):
    def gain(depth, K):
        return theory.speed_up(theory.expected_tokens(alphas[depth], K), K, costs[depth])

    depth = max(alphas, key=lambda depth: gain(depth, 1))
    K = max(range(1, most + 1), key=lambda K: gain(depth, K))
    return (depth, K) if gain(depth, K) > 1 else None
""",
            "best in a chain",
        ),
        (  # the best α, whatever it costs
            """
def my_best_exit(alphas, costs, most):
    depth = max(alphas, key=alphas.get)
    return depth, theory.best_K(alphas[depth], costs[depth], most=most)
""",
            "as fast as plain",
        ),
        (ANSWER_1.replace("1.0", "0.0"), "as fast as plain"),  # always an exit
        (ANSWER_1.replace("> f", ">= f"), "as fast as plain"),
        (ANSWER_1.replace("1.0", "1.05"), "hardly faster"),
        (ANSWER_1.replace("most + 1", "most"), "never wrong"),
        (ANSWER_1.replace("most + 1", "min(most, 5) + 1"), "a longer chain pays"),
        (  # depths counted, not read
            ANSWER_1.replace("(depth, K)", "(1 + list(alphas).index(depth), K)"),
            "late is dear",
        ),
    ],
    2: [
        (  # the adapter guesses as many as the exit that reads for nothing
            """
def my_dearest(alpha, better, E, L, most):
    K = theory.best_K(alpha, E / L, most=most)
    goal = kindest(alpha, E / L, most=most)
    return L * (theory.expected_tokens(better, K) / goal - 1) / K - E
""",
            "blocks of adapter",
        ),
        (ANSWER_2.replace("- E", "- E / L"), "blocks of adapter"),  # in steps instead of blocks
        (ANSWER_2.replace(" - E", ""), "blocks of adapter"),  # the blocks below, counted as its own
        (ANSWER_2.replace("return", "return min(L,").replace("- E", "- E)"), "blocks of adapter"),
        (  # α alone
            """
def my_dearest(alpha, better, E, L, most):
    return E * (better / alpha - 1)
""",
            "blocks of adapter",
        ),
        (ANSWER_2.replace("most=most", "most=40").replace("most + 1", "41"), "blocks of adapter"),
    ],
}
