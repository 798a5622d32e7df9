"""Answers to the turn (0) and exercises of chapter 11: right ones of several kinds, wrong ones."""

TURN = """
def my_rewind(cached, context):
    kept = 0
    while kept < min(len(cached), len(context) - 1) and cached[kept] == context[kept]:
        kept += 1
    return kept, context[kept:]
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts.transformer import common_prefix


def my_rewind(cached, context):
    kept = common_prefix(cached, context[:-1])
    return kept, context[kept:]
""",
        """
def my_rewind(cached, context):
    kept = 0
    while kept < len(cached) and kept < len(context) - 1 and cached[kept] == context[kept]:
        kept += 1
    return [kept, tuple(context[kept:])]
""",
        """
import numpy as np


def my_rewind(cached, context):
    n = min(len(cached), len(context) - 1)
    same = np.array(cached[:n], dtype=int) == np.array(context[:n], dtype=int)
    kept = np.cumprod(same).sum()
    return kept, np.array(context)[kept:]
""",
        """
def my_rewind(cached, context):
    for kept in range(len(context) - 1, -1, -1):
        if context[:kept] == cached[:kept]:
            return torch.tensor(kept), torch.tensor([context[kept:]])
""",
    ],
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
import numpy as np


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
}

WRONG = {
    0: [
        (
            """
def my_rewind(cached, context):
    return len(cached), context[len(cached) :] or context[-1:]
""",
            "entry 3 keeps token 4, but the context has 0",
        ),
        (
            TURN.replace(
                "while kept < min(len(cached), len(context) - 1) and cached[kept] == "
                "context[kept]:",
                "for a, b in zip(cached, context):\n        if a != b:\n            break",
            ),
            "3 entries stay, the last token's among them: drop that one",
        ),
        (
            TURN.replace("(context) - 1", "(context)").replace(
                "[kept:]", "[kept:] or context[-1:]"
            ),
            "the last token's among them: drop that one, it must be read",
        ),
        (
            TURN.replace("return kept", "return cached[:kept]"),
            "kept must be a number of entries, not [1, 2, 3]",
        ),
        (
            TURN.replace("context[kept:]", "len(context) - kept"),
            "fed must be a list of tokens, not 1",
        ),
        (
            TURN.replace("kept += 1", "kept += 1\n    kept = min(kept + 1, len(cached))"),
            "nothing is read",
        ),
        (
            TURN.replace("return", "kept = min(kept + 1, len(cached))\n    return").replace(
                "kept:]", "kept:] or context[-1:]"
            ),
            "entry 3 keeps token 4, but the context has 0",
        ),
        (
            """
def my_rewind(cached, context):
    kept = min(len(cached), len(context) - 1)
    return kept, context[kept:]
""",
            "entry 1 keeps token 2, but the context has 0",
        ),
        (
            """
def my_rewind(cached, context):
    for kept, (a, b) in enumerate(zip(cached, context)):
        if a != b:
            return kept, context[kept:]
    return len(cached), context[len(cached) :] or context[-1:]
""",
            "but the context has ended",
        ),
        (TURN.replace("[kept:]", "[-1:]"), "so [6, 0] must be read, not [0]"),
        (
            """
def my_rewind(cached, context):
    kept = sum(a == b for a, b in zip(cached, context[:-1]))
    return kept, context[kept:]
""",
            "entry 1 keeps token 2, but the context has 0",
        ),
        (
            """
def my_rewind(cached, context):
    return 0, context
""",
            "still good in the cache",
        ),
        (
            """
def my_rewind(cached, context):
    kept = max(0, min(len(cached), len(context) - 2))
    while cached[:kept] != context[:kept]:
        kept -= 1
    return kept, context[kept:]
""",
            "still good in the cache",
        ),
        (TURN.replace(", context[kept:]", ""), "return two things, (kept, fed), not 3"),
        (
            """
def my_rewind(cached, context):
    last = context.pop()
    while cached != context[: len(cached)]:
        cached.pop()
    return len(cached), context[len(cached) :] + [last]
""",
            "changes what it is given",
        ),
        (
            """
def my_rewind(cached, context):
    from os.path import commonprefix

    kept = len(commonprefix([bytes(cached), bytes(context[:-1])]))
    return kept, context[kept:]
""",
            "any tokens may come, and many",
        ),
        (
            """
def my_rewind(cached, context):
    from os.path import commonprefix

    kept = len(commonprefix(["".join(map(str, tokens)) for tokens in (cached, context[:-1])]))
    return kept, context[kept:]
""",
            "3 entries stay, but the cache holds 2",
        ),
        (
            TURN.replace(
                "while kept < min(len(cached), len(context) - 1) and cached[kept] == "
                "context[kept]:",
                "for token in cached:\n"
                "        if token not in context[:-1] or context.index(token) != kept:\n"
                "            break",
            ),
            "still good in the cache",
        ),
        (
            TURN.replace(
                ") and cached[kept] == context[kept]:",
                "):\n        if set(cached[: kept + 1]) != set(context[: kept + 1]):\n"
                "            break",
            ),
            "entry 2 keeps token 0, but the context has 1",
        ),
        (
            """
def my_rewind(cached, context):
    if not cached or len(context) == 1 or cached[0] != context[0]:
        return 0, context
    kept, fed = my_rewind(cached[1:], context[1:])
    return kept + 1, fed
""",
            "any tokens may come, and many",
        ),
        (
            TURN.replace("len(context) - 1", "max(1, len(context) - 1)").replace(
                "[kept:]", "[kept:] or context[-1:]"
            ),
            "1 entries stay, the last token's among them",
        ),
    ],
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
import numpy as np


def my_alpha_needed(wanted, draft_cost, verify_cost, rest):
    for alpha in np.linspace(0, 1, 100_001):
        for K in range(1, 17):
            tokens = alpha * (1 - alpha**K) / (1 - alpha) if alpha < 1 else K
            if tokens / (K * draft_cost + 1 + K * verify_cost + rest) >= wanted:
                return alpha
    return math.nan
""",
            "a smaller α than 0.9106 will do",
        ),
        (
            """
import numpy as np


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
import numpy as np


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
}
