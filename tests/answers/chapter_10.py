"""Chapter 10: right answers to its exercises, and the wrong ones that its checks must refuse."""

RIGHT = {
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
def my_kept(parents, gains, nodes):
    kept = {0}
    for node in sorted(range(len(gains)), key=gains.__getitem__, reverse=True)[:nodes]:
        while node not in kept:
            kept.add(node)
            node = parents[node]
    return kept
""",
        """
def my_kept(parents, gains, nodes):
    keep = np.zeros(len(gains), dtype=bool)
    keep[np.argsort(-np.array(gains))[:nodes]] = True
    for _ in parents:
        keep[np.array(parents)[keep]] = True
    return np.flatnonzero(keep)
""",
        """
def my_kept(parents, gains, nodes):
    def ancestors(node):
        return [node] if node == 0 else [node, *ancestors(parents[node])]

    best = torch.topk(torch.tensor(gains, dtype=torch.float), nodes).indices.tolist()
    return sorted(node for i in best for node in ancestors(i))
""",
    ],
    3: [
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
def my_kept(parents, gains, nodes):
    return set(sorted(range(len(gains)), key=lambda i: -gains[i])[:nodes])
""",
            "all ancestors",
        ),
        (
            """
def my_kept(parents, gains, nodes):
    best = set(sorted(range(len(gains)), key=lambda i: -gains[i])[:nodes])
    return best | {parents[i] for i in best}
""",
            "all ancestors",
        ),
        (
            """
def my_kept(parents, gains, nodes):
    kept = set(sorted(range(len(gains)), key=lambda i: -gains[i])[:nodes])
    for node in list(kept):
        while node != 0:
            kept.add(node)
            node = parents[node]
    return kept
""",
            "[0, 2], not [2]",
        ),
        (
            """
def my_kept(parents, gains, nodes):
    kept = set()
    for node in sorted(range(len(gains)), key=lambda i: -gains[i]):
        while node not in kept and len(kept) < nodes:
            kept.add(node)
            node = parents[node]
    return kept
""",
            "all ancestors",
        ),
    ],
    3: [
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
