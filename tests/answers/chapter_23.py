"""Chapter 23: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_batch_mask(cached, sizes):
    T, P = max(sizes), max(cached)
    pos, mask = [], []
    for old, n in zip(cached, sizes):
        own = [old + t if t < n else old for t in range(T)]
        pos.append(own)
        mask.append([[j <= p for j in range(P + T)] for p in own])
    return pos, mask
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


FLAT = """
def my_flat_batch(cached, sizes):
    positions, starts, lengths = [], [0], []
    for old, n in zip(cached, sizes):
        positions += range(old, old + n)
        starts.append(len(positions))
        lengths.append(old + n)
    return positions, starts, lengths
"""


def flat(old, new):
    """The right answer to exercise 1 with one line changed."""
    assert FLAT.count(old) == 1
    return FLAT.replace(old, new)


RIGHT = {
    0: [
        """
def my_batch_mask(cached, sizes):
    trees = [Tree([0] * (n - 1), list(range(-1, n - 2)), None) for n in sizes]
    return batch_mask(trees, cached, [0] * len(cached))
""",
        """
def my_batch_mask(cached, sizes):
    lens, n = torch.tensor(cached)[:, None], torch.tensor(sizes)[:, None]
    step = torch.arange(max(sizes)).minimum(n - 1)  # padding repeats the row's last token
    pos = lens + step
    return pos, torch.arange(max(cached) + max(sizes)) <= pos[..., None]
""",
        TEMPLATE,
        """
def my_batch_mask(cached, sizes):
    B, T, P = len(cached), max(sizes), max(cached)
    pos, mask = np.zeros((B, T), dtype=int), np.zeros((B, T, P + T), dtype=int)
    mask[:, :, 0] = 1
    for b in range(B):
        for t in range(sizes[b]):
            pos[b, t] = cached[b] + t
            mask[b, t, : cached[b] + t + 1] = 1
    return [pos, mask]
""",
    ],
    1: [
        FLAT,
        """
def my_flat_batch(cached, sizes):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    text = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(starts[-1]) - starts[text] + np.array(cached)[text]
    return positions, starts, np.add(cached, sizes)
""",
    ],
    2: [
        """
def my_last_winner(times, n, E, own):
    good = [
        B
        for B, width in times
        if width == n and E / (times[B, n] + B * own) > 1 / times[B, 1]
    ]
    return max(good, default=None)
""",
        """
def my_last_winner(times, n, E, own):
    for B in sorted({B for B, _ in times}, reverse=True):
        plain, speculative = B / times[B, 1], B * E / (times[B, n] + B * own)
        if speculative > plain:
            return B
""",
    ],
}

WRONG = {
    0: [
        ("def my_batch_mask(cached, sizes):\n    pass", "return two things"),
        (slip("return pos, mask", "return mask, pos"), "shape"),
        (
            slip("own = [old + t if t < n else old for t in range(T)]", "own = [P] * T"),
            "the cached tokens have 0, 1, …",
        ),
        (
            slip("old + t if t < n else old for", "P + t if t < n else old for"),
            "these follow the longest text",
        ),
        (slip("old + t if t < n else old for", "old + t for"), "give padding that of the current"),
        (slip("old + t if t < n else old for", "t if t < n else 0 for"), "come before all of them"),
        (
            slip("j <= p for j in range(P + T)", "j <= P + p - old for j in range(P + T)"),
            "not from the longest",
        ),
        (slip("j <= p for j", "j < p for j"), "does not see itself"),
        (slip("j <= p for j", "j <= old or j == p for j"), "are its past, too"),
        (slip("j <= p for j", "j < old + n for j"), "nobody sees the future"),
        (
            slip("for p in own])", "for p in own[:n]] + [[False] * (P + T)] * (T - n))"),
            "a softmax over nothing is NaN",
        ),
        (slip("for j in range(P + T)", "for j in range(P + n)"), "mask"),
        (slip("T, P = max(sizes), max(cached)", "T, P = sizes.pop(), max(cached)"), "changed"),
    ],
    1: [
        (flat("range(old, old + n)", "range(n)"), "positions"),
        (flat("starts.append(len(positions))", "starts.append(n)"), "starts"),
        (flat("lengths.append(old + n)", "lengths.append(n)"), "lengths"),
        (flat("lengths.append(old + n)", "lengths.append(old)"), "lengths"),
        (flat("positions, starts, lengths\n", "positions, starts\n"), "three lists"),
        ("def my_flat_batch(cached, sizes):\n    pass", "three lists"),
    ],
    2: [
        (
            """
def my_last_winner(times, n, E, own):
    return max(B for B, _ in times if E * times[B, 1] > times[B, n])
""",
            "each text's own work",
        ),
        (
            """
def my_last_winner(times, n, E, own):
    return max(B for B, _ in times if E * times[B, 1] > times[B, n] + own)
""",
            "each text's own work",
        ),
        ("def my_last_winner(times, n, E, own):\n    return 4", "tokens a round"),
        (
            """
def my_last_winner(times, n, E, own):
    good = [B for B, _ in times if E * times[B, 1] >= times[B, n] + B * own]
    return max(good, default=None)
""",
            "are not more",
        ),
        (
            """
def my_last_winner(times, n, E, own):
    last = None
    for B in sorted({B for B, _ in times}):
        if E * times[B, 1] <= times[B, n] + B * own:
            break
        last = B
    return last
""",
            "may come back",
        ),
        (
            """
def my_last_winner(times, n, E, own):
    for B in [B for B, width in times if width == 1][::-1]:
        if E * times[B, 1] > times[B, n] + B * own:
            return B
""",
            "more tokens a round",
        ),
    ],
}
