"""Answers to the exercises of chapter 06 that its checks must take, and some they must refuse."""

RIGHT = {
    1: [
        """
def my_wasted_share(rounds):
    added = wasted = 0
    for r in rounds:
        added += 1 + len(r.candidates)
        wasted += len(r.candidates) - r.n_accepted
    return wasted / added
""",
        """
def my_wasted_share(rounds):
    import numpy as np
    drafted = np.array([len(r.candidates) for r in rounds])
    accepted = np.array([r.n_accepted for r in rounds])
    return (drafted - accepted).sum() / (drafted + 1).sum()
""",
    ],
    2: [
        """
def my_entries_that_stay(cached, context):
    import os
    return len(os.path.commonprefix([list(cached), list(context[:-1])]))
""",
        """
def my_entries_that_stay(cached, context):
    n = min(len(cached), len(context) - 1)
    while cached[:n] != context[:n]:
        n -= 1
    return n
""",
        """
def my_entries_that_stay(cached, context):
    n = min(len(cached), len(context) - 1)
    same = torch.tensor(cached[:n]) == torch.tensor(context[:n])
    return same.int().cumprod(dim=0).sum()
""",
    ],
    3: [
        """
def my_visible(num_emitted, P, K):
    mask = torch.zeros(len(num_emitted), P + K + 1, dtype=torch.bool)
    for row, n in enumerate(num_emitted):
        mask[row, : P + n] = True
    return mask
""",
        """
def my_visible(num_emitted, P, K):
    return [[j < P + int(n) for j in range(P + K + 1)] for n in num_emitted]
""",
        """
def my_visible(num_emitted, P, K):
    import numpy as np
    return np.arange(P + K + 1)[None] < P + num_emitted.numpy()[:, None]
""",
    ],
}

WRONG = {
    1: [
        (  # counts the target's own token as an accepted guess
            """
def my_wasted_share(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return 1 - sum(len(r.emitted) for r in rounds) / drafted
""",
            "K = 3: ",
        ),
        (  # forgets the current token's entry
            """
def my_wasted_share(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return 1 - sum(r.n_accepted for r in rounds) / drafted
""",
            "entries added",
        ),
        (  # a mean of shares is not the share of the whole
            """
def my_wasted_share(rounds):
    shares = [(len(r.candidates) - r.n_accepted) / (len(r.candidates) + 1) for r in rounds]
    return sum(shares) / len(shares)
""",
            "K = 3: ",
        ),
    ],
    2: [
        (  # the last token of the context must be passed again
            """
def my_entries_that_stay(cached, context):
    same = 0
    for old, new in zip(cached, context):
        if old != new:
            break
        same += 1
    return same
""",
            "cached [1, 2, 3], context [1, 2, 3]: 3, not 2",
        ),
        (  # counts equal tokens after the first difference, too
            """
def my_entries_that_stay(cached, context):
    return sum(old == new for old, new in zip(cached, context[:-1]))
""",
            "cached [7, 2, 3], context [1, 2, 3]: 1, not 0",
        ),
        (  # trusts the length
            """
def my_entries_that_stay(cached, context):
    return min(len(cached), len(context) - 1)
""",
            "cached [7, 2, 3], context [1, 2, 3]: 2, not 0",
        ),
    ],
    3: [
        (  # one too many
            """
def my_visible(num_emitted, P, K):
    return torch.arange(P + K + 1) <= P + num_emitted[:, None]
""",
            "row 0 shows entry 3",
        ),
        (  # only the accepted guesses, without the current token
            """
def my_visible(num_emitted, P, K):
    return torch.arange(P + K + 1) < P + num_emitted[:, None] - 1
""",
            "row 0 hides entry 2",
        ),
        (  # forgets what was there before
            """
def my_visible(num_emitted, P, K):
    return torch.arange(K + 1) < num_emitted[:, None]
""",
            "shape (3, 5), not (B, P+K+1) = (3, 7)",
        ),
        (
            """
def my_visible(num_emitted, P, K):
    return (torch.arange(P + K + 1) < P + num_emitted[:, None]).float()
""",
            "the mask is torch.float32, not bool",
        ),
    ],
}
