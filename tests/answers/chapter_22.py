"""Chapter 22: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_told(logits, table, current, sampling, rng):
    tokens, rows, before = [], [], current
    for row in logits:
        q = sampling.probs(row + table[before])
        before = rng.categorical(q)
        tokens.append(before)
        rows.append(q)
    return tokens, torch.stack(rows)
"""

SCHEDULE = """
def my_schedule(sure, cost):
    tokens, reached, n = 1.0, 1.0, 0
    while n < len(sure):
        reached *= sure[n]
        if (tokens + reached) / cost[n + 1] <= tokens / cost[n]:
            break
        tokens, n = tokens + reached, n + 1
    return n
"""

RIGHT = {
    0: [
        TURN,
        """
def my_told(logits, table, current, sampling, rng):
    every = sampling.probs(logits[:, None] + table)  # (K, V, V): after each token there could be
    tokens, q = [current], torch.empty_like(logits)
    for i in range(len(logits)):
        q[i] = every[i, tokens[-1]]
        tokens.append(rng.categorical(q[i]))
    return tuple(tokens[1:]), q
""",
        """
def my_told(logits, table, current, sampling, rng):
    def rest(rows, before):
        if len(rows) == 0:
            return [], []
        q = sampling.probs(rows[0] + table[before])
        token = rng.categorical(q)
        tokens, others = rest(rows[1:], token)
        return [token, *tokens], [q, *others]

    return rest(logits, current)
""",
        """
def my_told(logits, table, current, sampling, rng):
    both = [current], []
    for row in logits:
        both[1].append(sampling.probs(row + table[both[0][-1]]))
        both[0].append(rng.categorical(both[1][-1]))
    return [both[0][1:], [row.tolist() for row in both[1]]]
""",
    ],
    1: [
        """
def my_schedule(sure, cost):
    worth, tokens, reached = [1 / cost[0]], 1.0, 1.0
    for s, c in zip(sure, cost[1:]):
        reached *= s
        tokens += reached
        worth.append(tokens / c)
        if worth[-1] <= worth[-2]:
            return len(worth) - 2
    return len(worth) - 1
""",
        """
import math


def my_schedule(sure, cost):
    def worth(n):
        return (1 + sum(math.prod(sure[:i]) for i in range(1, n + 1))) / cost[n]

    return next((n for n in range(len(sure)) if worth(n + 1) <= worth(n)), len(sure))
""",
    ],
    2: [
        """
def my_thin(table, r):
    U, S, Vt = torch.linalg.svd(table)
    root = S[:r].sqrt()
    return U[:, :r] * root, root[:, None] * Vt[:r]
""",
        """
def my_thin(table, r):
    _, basis = torch.linalg.eigh(table.T @ table)  # eigenvalues rise
    basis = basis[:, -r:]
    return table @ basis, basis.T
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_told(logits, table, current, sampling, rng):
    tokens, before = [], current
    for row in logits:
        before = rng.categorical(sampling.probs(row + table[before]))
        tokens.append(before)
    return tokens, sampling.probs(logits)
""",
            "that of the logits alone",
        ),
        (
            """
def my_told(logits, table, current, sampling, rng):
    q = sampling.probs(logits + table[current])
    return [rng.categorical(row) for row in q], q
""",
            "corrected by the current token",
        ),
        (
            """
def my_told(logits, table, current, sampling, rng):
    q = sampling.probs(logits)
    return [rng.categorical(row) for row in q], q
""",
            "that of the logits alone",
        ),
        (
            """
def my_told(logits, table, current, sampling, rng):
    tokens = [rng.categorical(q) for q in sampling.probs(logits)]
    return tokens, sampling.probs(logits + table[[current, *tokens[:-1]]])
""",
            "not drawn from it",
        ),
        (TURN.replace("[before]", "[:, before]"), "read by column"),
        (
            TURN.replace(
                "sampling.probs(row + table[before])", "torch.softmax(row + table[before], -1)"
            ),
            "sampling rule is missing",
        ),
        (TURN.replace("[before]", "[before] * bool(rows)"), "place 1 was not corrected"),
        (
            TURN.replace("table[before]", "table[[current, *tokens]].sum(0)"),
            "only the last one counts",
        ),
        (
            """
def my_told(logits, table, current, sampling, rng):
    for row in logits:
        current = rng.categorical(sampling.probs(row + table[current]))
""",
            "return two things",
        ),
        (
            """
def my_told(logits, table, current, sampling, rng):
    tokens, before = [], current
    for i in range(len(logits)):
        logits[i] += table[before]
        before = rng.categorical(sampling.probs(logits[i]))
        tokens.append(before)
    return tokens, sampling.probs(logits)
""",
            "changed in place",
        ),
        (TURN.replace("[], [], current", "[], [], -1"), "q of place 1"),
        (  # V places
            TURN.replace("row in", "_, row in zip(table,").replace("logits:", "logits):"),
            "4 rows of logits, but 3 tokens",
        ),
        (  # half a correction
            TURN.replace("[before]", "[before] / 2"),
            "add the row of the token before to the logits",
        ),
        (  # neither top-k nor greedy
            TURN.replace(
                "sampling.probs(row + table[before])",
                "torch.softmax((row + table[before]) / sampling.temperature, -1)",
            ),
            "sampling rule is missing",
        ),
        (  # the rule chooses before the correction
            """
def my_told(logits, table, current, sampling, rng):
    tokens, rows, before = [], [], current
    for row in logits:
        allowed = sampling.probs(row) > 0
        corrected = (row + table[before]).where(allowed, -torch.inf)
        q = torch.softmax(corrected / (sampling.temperature or 1), -1)
        before = rng.categorical(q)
        tokens.append(before)
        rows.append(q)
    return tokens, torch.stack(rows)
""",
            "chose among the bare logits",
        ),
        (  # a rounded q
            """
def my_told(logits, table, current, sampling, rng):
    tokens, rows, before = [], torch.zeros(logits.shape), current
    for i, row in enumerate(logits):
        q = sampling.probs(row + table[before])
        before = rng.categorical(q)
        tokens.append(before)
        rows[i] = q
    return tokens, rows
""",
            "q is float32",
        ),
        (TURN.replace("torch.stack(rows)", "[q.float().numpy() for q in rows]"), "q is float32"),
        (  # drawn from a rounded q
            TURN.replace(
                "before = rng", "rounded = q.to(torch.bfloat16).double()\n        before = rng"
            ).replace("categorical(q", "categorical(rounded / rounded.sum()"),
            "not drawn from it",
        ),
    ],
    1: [
        (
            """
def my_schedule(sure, cost):
    reached = [1.0]
    for s in sure:
        reached.append(reached[-1] * s)
    worth = [sum(reached[: n + 1]) / cost[n] for n in range(len(cost))]
    return worth.index(max(worth))
""",
            "a fall, and a rise after it",
        ),
        (
            """
def my_schedule(sure, cost):
    n = 0
    while n < len(sure) and (1 + sum(sure[: n + 1])) / cost[n + 1] > (1 + sum(sure[:n])) / cost[n]:
        n += 1
    return n
""",
            "later guesses are reached less",
        ),
        (  # if the first step pays, the best of all
            """
def my_schedule(sure, cost):
    reached = [1.0]
    for s in sure:
        reached.append(reached[-1] * s)
    worth = [sum(reached[: n + 1]) / cost[n] for n in range(len(cost))]
    if len(worth) < 2 or worth[1] <= worth[0]:
        return 0
    return worth.index(max(worth))
""",
            "a bargain after that",
        ),
        (  # goes on where the next is worth as much
            SCHEDULE.replace("<=", "<"),
            "as much is not more",
        ),
        (SCHEDULE.replace("*= sure[n]", "*= sure[0]"), "sure after the first"),
        (SCHEDULE.replace("len(sure)", "min(3, len(sure))"), "sure after the first"),
        (SCHEDULE.replace("/ cost[n]", "/ (cost[n] if n else 1)"), "sure after the first"),
    ],
    2: [
        (
            """
def my_thin(table, r):
    U, S, Vt = torch.linalg.svd(table)
    return U[:, :r], Vt[:r]
""",
            "is possible",
        ),
        (
            """
def my_thin(table, r):
    U, S, Vt = torch.linalg.svd(table)
    return U[:r] * S[:r, None], Vt[:, :r]
""",
            "shapes",
        ),
        (
            """
def my_thin(table, r):
    return table[:, :r], torch.eye(len(table)).double()[:r]
""",
            "is possible",
        ),
    ],
}
