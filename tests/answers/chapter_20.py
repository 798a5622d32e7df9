"""Chapter 20: right answers to its turn and exercises, and wrong ones that must be refused."""

RIGHT = {
    0: [
        """
from nanogpt.drafts.eagle import mtp_loss as my_mtp_loss
""",
        """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    logits = head.logits(out)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
""",
        """
def my_mtp_loss(head, hidden, tokens):
    said, T = [], hidden.shape[1]
    for row in range(len(tokens)):
        out, _ = head(hidden[row : row + 1, : T - 1], tokens[row : row + 1, 1:T])
        logs = torch.log_softmax(head.logits(out)[0], dim=-1)
        said += [-logs[i, int(tokens[row, i + 2])] for i in range(T - 1)]
    return torch.stack(said).mean()
""",
        """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    labels = torch.full_like(tokens[:, 1:], -100)  # cross_entropy leaves these out
    labels[:, :-1] = tokens[:, 2:]
    return F.cross_entropy(head.logits(out).transpose(1, 2), labels)
""",
    ],
    1: [
        """
def my_alpha(p, q):
    return 1 - (p - q).abs().sum() / 2
""",
        """
def my_alpha(p, q):
    return sum(min(a, b) for a, b in zip(p.tolist(), q.tolist()))
""",
    ],
    2: [
        """
def my_least_alpha(guess, wide):
    return guess + wide - 1
""",
        """
def my_least_alpha(guess, wide):
    for alpha in np.linspace(0, 1, 1_000_001):
        if 1 + alpha >= guess + wide:
            return float(alpha)
    return guess + wide - 1
""",
    ],
    3: [
        """
def my_best_K(alphas, guess, slope):
    best, fastest, tokens, chance = 0, 1.0, 1.0, 1.0
    for K, alpha in enumerate(alphas, start=1):
        chance *= alpha
        tokens += chance
        if tokens / (1 + K * guess + K * slope) > fastest:
            best, fastest = K, tokens / (1 + K * guess + K * slope)
    return best
""",
        """
def my_best_K(alphas, guess, slope):
    tokens = np.concatenate([[1], 1 + np.cumsum(np.cumprod(alphas))])
    K = np.arange(len(tokens))
    return int(np.argmax(tokens / (1 + (guess + slope) * K)))
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, :-2])  # each state with its own token
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
            "meets its own token",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 1:].flatten())
""",
            "the very token that it is given",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-2], tokens[:, 1:-2])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 3:].flatten())
""",
            "a place too far",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    labels = tokens[:, 1:].roll(-1, 1)
    return F.cross_entropy(head.logits(out).flatten(0, 1), labels.flatten())
""",
            "wrap around",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, 1:], tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
            "the state is a place too far",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    return F.cross_entropy(
        head.logits(out).flatten(0, 1), tokens[:, 2:].flatten(), reduction="sum"
    )
""",
            "a mean over all places",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    loss = F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
    return 0.3 * loss
""",
            "λ is not part",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten()).item()
""",
            "no gradient",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
            "equally many",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    head(hidden[:, :-1], tokens[:, 1:-1])
""",
            "it is one number",
        ),
    ],
    1: [
        (
            """
def my_alpha(p, q):
    distance = (p - q).abs().sum() / 2  # the total variation
    return 1 - distance / 2
""",
            "half of the distance",
        ),
        (
            """
def my_alpha(p, q):
    return (p * q).sum()
""",
            "equal distributions",
        ),
        (
            """
def my_alpha(p, q):
    return 1 - (p - q).abs().sum()
""",
            "three letters",
        ),
    ],
    2: [
        (
            """
def my_least_alpha(guess, wide):
    return guess  # the wider pass is forgotten
""",
            "pays back nothing",
        ),
        (
            """
def my_least_alpha(guess, wide):
    return (guess + wide) / 2
""",
            "pays back nothing",
        ),
    ],
    3: [
        (
            """
def my_best_K(alphas, guess, slope):
    def speed(K):
        return (1 + sum(alphas[:K])) / (1 + (guess + slope) * K)  # each reached every time

    return max(range(len(alphas) + 1), key=speed)
""",
            "three middling guesses",
        ),
        (
            """
def my_best_K(alphas, guess, slope):
    return len(alphas)
""",
            "a layer that collapses",
        ),
        (
            """
def my_best_K(alphas, guess, slope):
    def speed(K):
        return (1 + np.cumprod(alphas[:K]).sum()) / (1 + (guess + slope) * K)

    return max(range(1, len(alphas) + 1), key=speed)  # always one guess at least
""",
            "guesses too dear",
        ),
    ],
}
