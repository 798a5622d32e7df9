"""Chapter 10: right answers to its turn and exercises, and wrong ones that must be refused."""

RIGHT = {
    0: [
        """
from nanogpt.drafts import ngram


def my_row(counts, context, letters):
    chain = [""]
    while len(chain) <= len(context) and context[-len(chain) :] in counts:
        chain.append(context[-len(chain) :])
    sizes = np.array([len(counts[known]) for known in chain])
    followers = [letters.index(x) for known in chain for x in counts[known]]
    weights = [n for known in chain for n in counts[known].values()]
    parents = np.array([0, *range(len(chain) - 1)])
    table = ngram.back_off(parents, sizes, followers, weights, sizes, len(letters))
    return dict(zip(letters, table[-1].tolist()))
""",
        """
def my_row(counts, context, letters):
    if context not in counts:
        return my_row(counts, context[1:], letters)
    seen = counts[context]
    even = {x: Fraction(1, len(letters)) for x in letters}
    parent = my_row(counts, context[1:], letters) if context else even
    u = len(seen)
    return {x: (seen[x] + u * parent[x]) / (sum(seen.values()) + u) for x in letters}
""",
        """
def my_row(counts, context, letters):
    row = np.full(len(letters), 1 / len(letters))
    for start in range(len(context), -1, -1):
        if context[start:] not in counts:
            break
        own = np.array([counts[context[start:]].get(x, 0) for x in letters])
        surprises = np.count_nonzero(own)
        row = (own + surprises * row) / (own.sum() + surprises)
    return row
""",
        """
def my_row(counts, context, letters):
    known = context
    while known not in counts:
        known = known[1:]
    ends = [known[i:] for i in range(len(known), -1, -1)]
    row = [1 / len(letters) for _ in letters]
    for end in ends:
        size = sum(counts[end].values())
        share = size / (size + len(counts[end]))
        row = [share * counts[end][x] / size + (1 - share) * q for x, q in zip(letters, row)]
    return tuple(row)
""",
    ],
    1: [
        """
def my_best_weight(p, copies, q, weights):
    best, most = None, -1.0
    for w in weights:
        total = 0.0
        for target_row, copy_row, draft_row in zip(p, copies, q):
            for a, b, c in zip(target_row, copy_row, draft_row):
                total += min(a, w * b + (1 - w) * c)
        if total > most:
            best, most = w, total
    return best
""",
        """
def my_best_weight(p, copies, q, weights):
    w = np.array(weights)[:, None, None]
    overlap = np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean(-1)
    return weights[int(overlap.argmax())]
""",
        """
def my_best_weight(p, copies, q, weights):
    p, copies, q = (torch.as_tensor(x) for x in (p, copies, q))
    distance = [(p - w * copies - (1 - w) * q).abs().sum().item() for w in weights]
    return weights[distance.index(min(distance))]
""",
    ],
    2: [
        """
def my_best_row(p):
    ranked = np.vstack([np.sort(p, axis=0), np.ones(p.shape[1])])
    sums = ranked.sum(axis=1)
    if sums[0] >= 1:
        return ranked[0] / sums[0]
    above = int(np.argmax(sums >= 1))
    share = (1 - sums[above - 1]) / (sums[above] - sums[above - 1])
    return ranked[above - 1] + share * (ranked[above] - ranked[above - 1])
""",
        """
def my_best_row(p):
    rows = torch.as_tensor(p)
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        level = (low + high) / 2
        row = torch.quantile(rows, level, dim=0)
        low, high = (level, high) if row.sum() < 1 else (low, level)
    return row / row.sum()
""",
        """
def my_best_row(p):
    low, high = 0.0, 1.0
    for _ in range(60):
        level = (low + high) / 2
        row = [float(np.quantile(column, level)) for column in p.T]
        if sum(row) < 1:
            low = level
        else:
            high = level
    return [x / sum(row) for x in row]
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[-n:])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
""",
            "context[-0:] is all of it",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    row = None
""",
            "None came back",
        ),
        (
            """
def my_row(counts, context, letters):
    seen = counts[context]
    even = {x: 1 / len(letters) for x in letters}
    parent = my_row(counts, context[1:], letters) if context else even
    u, total = len(seen), sum(seen.values())
    return {x: (seen[x] + u * parent[x]) / (total + u) for x in letters}
""",
            "walk only to what is known",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = sum(seen.values()), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
""",
            "how many *different* letters followed",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = 1, sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
""",
            "share is 1,",
        ),
        (
            """
def my_row(counts, context, letters):
    while context not in counts:
        context = context[1:]
    seen = counts[context]
    even = {x: 1 / len(letters) for x in letters}
    parent = my_row(counts, context[:-1], letters) if context else even
    u, total = len(seen), sum(seen.values())
    return {x: (seen[x] + u * parent[x]) / (total + u) for x in letters}
""",
            "lacks the newest letter",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u / len(letters)) / (total + u) for x in letters}
    return row
""",
            "mixed with the even row",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / total for x in letters}
    return row
""",
            "the row sums to",
        ),
        (
            """
def my_row(counts, context, letters):
    while context not in counts:
        context = context[1:]
    total = sum(counts[context].values())
    return {x: counts[context][x] / total for x in letters}
""",
            "bare counts",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row.get(x, 0)) / (total + u) for x in seen}
    return row
""",
            "no q for the letters",
        ),
        (
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.setdefault(context[len(context) - n :], Counter())
        if not seen:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
""",
            "counts was changed",
        ),
        (
            """
def my_row(counts, context, letters):
    row = [1 / len(letters) for _ in letters]
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = [(seen[x] + u * q) / (total + u) for x, q in zip(letters, row)]
    return [*row, 5.0]
""",
            "one number for each of the letters",
        ),
    ],
    1: [
        (
            """
def my_best_weight(p, copies, q, weights):
    return max(weights, key=lambda w: np.minimum(p, w * q + (1 - w) * copies).sum(-1).mean())
""",
            "w is the copy's weight",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    return max(weights, key=lambda w: (p * (w * copies + (1 - w) * q)).sum(-1).mean())
""",
            "compare Σ min(p, mixture)",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    def overlap(w):
        return np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean()

    return max(reversed(weights), key=overlap)
""",
            "it is the first",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    overlap = [np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean() for w in weights]
    return int(np.argmax(overlap))
""",
            "the best weight is 0.75, not 3",
        ),
    ],
    2: [
        (
            """
def my_best_row(p):
    return p.mean(axis=0)
""",
            "but a row near it has",
        ),
        (
            """
def my_best_row(p):
    row = np.median(p, axis=0) + 1e-12
    return row / row.sum()
""",
            "but a row near it has",
        ),
        (
            """
def my_best_row(p):
    return np.median(p, axis=0)
""",
            "no distribution",
        ),
        (
            """
def my_best_row(p):
    return p[np.argmax([np.minimum(p, row).sum() for row in p])]
""",
            "but a row near it has",
        ),
    ],
}
