"""Chapter 11: right answers to its exercises, and the wrong ones that its checks must refuse."""

RIGHT = {
    1: [
        """
def my_overlap_loss(logits, p):
    return (torch.softmax(logits, dim=-1) - p).abs().sum(dim=-1).mean() / 2
""",
        """
def my_overlap_loss(logits, p):
    q = logits.log_softmax(-1).exp()
    return F.relu(p - q).sum(-1).mean()
""",
        """
def my_overlap_loss(logits, p):
    logits, p = logits.reshape(-1, logits.shape[-1]), p.reshape(-1, p.shape[-1])
    losses = []
    for row, wanted in zip(logits, p):
        q = row.softmax(0)
        losses.append(1 - sum(torch.minimum(a, b) for a, b in zip(wanted, q)))
    return torch.stack(losses).mean()
""",
        """
def my_overlap_loss(logits, p):
    q = torch.softmax(logits.float(), dim=-1)
    return 1 - torch.where(q < p, q, p.float()).sum(-1).mean()
""",
    ],
    2: [
        """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    needed = []
    for K in range(1, 17):
        cost = K * draft_cost + 1 + verify_cost * K + rest
        if (K + 1) / cost < wanted:
            continue
        low, high = 0.0, 1.0
        for _ in range(40):
            alpha = (low + high) / 2
            if sum(alpha**i for i in range(K + 1)) / cost >= wanted:
                high = alpha
            else:
                low = alpha
        needed.append(high)
    return min(needed, default=math.nan)
""",
        """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    alpha = np.arange(1_000_001) / 1_000_000
    fastest = np.zeros_like(alpha)
    tokens = np.ones_like(alpha)
    for K in range(1, 17):
        tokens = 1 + alpha * tokens
        fastest = np.maximum(fastest, tokens / (K * (draft_cost + verify_cost) + 1 + rest))
    enough = alpha[fastest >= wanted]
    return enough[0] if len(enough) else np.nan
""",
        """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    def reached(alpha):
        tokens = [theory.expected_tokens(alpha, K) for K in range(17)]
        return max(
            theory.speed_up(tokens[K], K, draft_cost, 1 + verify_cost * K, rest)
            for K in range(1, 17)
        )

    if reached(1.0) < wanted:
        return torch.tensor(math.nan)
    alpha = 0.0
    for step in (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6):
        while reached(min(1.0, alpha + step)) < wanted:
            alpha += step
    return alpha + step
""",
    ],
    3: [
        """
def my_first_reads(rounds):
    reads = []
    for before, _ in zip(rounds, rounds[1:]):
        if before.n_accepted == len(before.candidates):
            reads.append(2)
        else:
            reads.append(1)
    return reads
""",
        """
def my_first_reads(rounds):
    return np.array([2 if len(r.emitted) > len(r.candidates) else 1 for r in rounds[:-1]])
""",
        """
def my_first_reads(rounds):
    for i in range(1, len(rounds)):
        yield 1 + int(rounds[i - 1].n_accepted >= len(rounds[i - 1].candidates))
""",
    ],
}

WRONG = {
    1: [
        (
            """
def my_overlap_loss(logits, p):
    return (1 - torch.minimum(p, logits.exp()).sum(-1)).mean()
""",
            "take the softmax",
        ),
        (
            """
def my_overlap_loss(logits, p):
    return (1 - torch.minimum(p, torch.softmax(logits, dim=-1)).sum(-1)).sum()
""",
            "the mean loss is 0.15, not 0.3000",
        ),
        (
            """
def my_overlap_loss(logits, p):
    return torch.minimum(p, torch.softmax(logits, dim=-1)).sum(-1).mean()
""",
            "the mean loss is 0.15, not 0.8500",
        ),
        (
            """
def my_overlap_loss(logits, p):
    q = torch.softmax(logits.detach(), dim=-1)
    return (1 - torch.minimum(p, q).sum(-1)).mean()
""",
            "no gradient flows back",
        ),
        (
            """
def my_overlap_loss(logits, p):
    return (1 - torch.minimum(p, torch.softmax(logits, dim=-1)).sum(-1)).mean().item()
""",
            "no gradient flows back",
        ),
        (
            """
def my_overlap_loss(logits, p):
    return F.cross_entropy(logits.flatten(0, -2), p.flatten(0, -2))
""",
            "the mean loss is 0.15",
        ),
    ],
    2: [
        (
            """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    for i in range(1001):
        if theory.speed_up(1 + i / 1000, 1, draft_cost, 1 + verify_cost, rest) >= wanted:
            return i / 1000
    return math.nan
""",
            "one between 0 and 1 does it, at its best K",
        ),
        (
            """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    low, high = 0.0, 1.0
    for _ in range(40):
        alpha = (low + high) / 2
        K = theory.best_K(alpha, draft_cost, lambda K: 1 + verify_cost * K, rest)
        tokens = theory.expected_tokens(alpha, K)
        good = theory.speed_up(tokens, K, draft_cost, 1 + verify_cost * K, rest) >= wanted
        low, high = (low, alpha) if good else (alpha, high)
    return high
""",
            "no α will do: NaN",
        ),
        (
            """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    for alpha in np.linspace(0, 1, 100_001):
        for K in range(1, 17):
            tokens = alpha * (1 - alpha**K) / (1 - alpha) if alpha < 1 else K
            if tokens / (K * draft_cost + 1 + K * verify_cost + rest) >= wanted:
                return alpha
    return math.nan
""",
            "at its best K",
        ),
        (
            """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    for alpha in np.linspace(0, 1, 100_001):
        for K in range(1, 17):
            tokens = theory.expected_tokens(alpha, K)
            if theory.speed_up(tokens, K, draft_cost, 1.0, rest) >= wanted:
                return alpha
    return math.nan
""",
            "at its best K",
        ),
        (
            """
def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    for alpha in np.linspace(0, 1, 10_001):
        for K in range(1, 17):
            tokens = theory.expected_tokens(alpha, K)
            if theory.speed_up(tokens, K, draft_cost, 1 + verify_cost * K, rest) >= wanted:
                return alpha
""",
            "no α will do: NaN",
        ),
    ],
    3: [
        (
            """
def my_first_reads(rounds):
    return [1 for r in rounds[:-1]]
""",
            "two after a fully accepted round",
        ),
        (
            """
def my_first_reads(rounds):
    return [1 + (r.n_accepted == len(r.candidates)) for r in rounds]
""",
            "one after a rejection",
        ),
        (
            """
def my_first_reads(rounds):
    return [1 + (r.n_accepted == len(r.candidates)) for r in rounds[1:]]
""",
            "one after a rejection",
        ),
        (
            """
def my_first_reads(rounds):
    return [1 + (r.n_accepted < len(r.candidates)) for r in rounds[:-1]]
""",
            "one after a rejection",
        ),
        (
            """
def my_first_reads(rounds):
    return [len(r.emitted) for r in rounds[:-1]]
""",
            "one after a rejection",
        ),
    ],
}
