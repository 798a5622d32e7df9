"""Chapter 12: right answers to its turn and exercises, and wrong ones that must be refused."""

RIGHT = {
    0: [
        """
from nanogpt.drafts.adaptive import by_entropy as my_by_entropy
""",
        """
class my_by_entropy:
    def __init__(self, budget):
        self.budget = budget

    def __call__(self, rounds):
        self.spent = 0.0
        return 16, self.more

    def more(self, q, n):
        self.spent += -sum(x * np.log(x) for x in q.tolist() if x > 0)
        return n < 1 or self.spent <= self.budget
""",
        """
def my_by_entropy(budget):
    paid = []

    def more(q, n):
        del paid[n:]  # a new round asks at n = 0 again
        paid.append(float(torch.special.entr(q).sum()))
        return n == 0 or not sum(paid) > budget

    return lambda rounds: [16, more]
""",
        """
def my_by_entropy(budget):
    def policy(rounds):
        left = [budget]

        def more(q, n):
            left[0] = left[0] - draft_entropy(q)
            if n == 0:
                return True
            return left[0] >= 0

        return 16, more

    return policy
""",
    ],
    1: [
        """
def my_mended_residual(p, q, kept):
    missing = []
    for i in range(len(p)):
        missing.append(p[i] - (min(p[i], q[i]) if kept[i] else 0.0))
    total = sum(missing)
    return [x / total for x in missing]
""",
        """
def my_mended_residual(p, q, kept):
    return residual(p, q * kept)  # the residual of a q that cannot draw what gets dropped
""",
        """
def my_mended_residual(p, q, kept):
    p, q, kept = (torch.as_tensor(x) for x in (p, q, kept))
    q = q.masked_fill(~kept, 0)
    missing = torch.clamp(p - q, min=0)
    return missing / missing.sum()
""",
    ],
    2: [
        """
def my_up_and_down(rounds):
    K = 5
    for r in rounds:
        if len(r.candidates) == 0:
            continue
        if len(r.emitted) == len(r.candidates) + 1:
            K = min(K + 2, 16)
        else:
            K = max(K - 1, 1)
    return K, None
""",
        """
import functools


def my_up_and_down(rounds):
    def step(K, r):
        if not r.candidates:
            return K
        return np.clip(K + (2 if r.n_accepted == len(r.candidates) else -1), 1, 16)

    return [functools.reduce(step, rounds, 5), None]
""",
        """
def my_up_and_down(rounds):
    if not rounds:
        return 5, None
    K, _ = my_up_and_down(rounds[:-1])
    k, accepted = len(rounds[-1].candidates), rounds[-1].n_accepted
    if k:
        K += 2 if accepted == k else -1
    return max(1, min(16, K)), None
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent < budget

        return 16, more

    return policy
""",
            "the sum may be as large as the budget: 16 would be right",
        ),
        (
            """
def my_by_entropy(budget):
    spent = 0.0

    def policy(rounds):
        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "each round has its own budget",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return spent <= budget

        return 16, more

    return policy
""",
            "a round drafts at least 1",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            go_on = n == 0 or spent <= budget
            spent += draft_entropy(q)
            return go_on

        return 16, more

    return policy
""",
            "of the coming token before you draw it",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            if n == 0:
                return True
            spent += draft_entropy(q)
            return spent <= budget

        return 16, more

    return policy
""",
            "is the first token's entropy counted, too?",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent = draft_entropy(q)
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "you looked at each alone",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q) / np.log(2)
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "are these nats?",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += -float((q * q.log()).sum())
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "NaN",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return 64, more

    return policy
""",
            "a round drafts 1 to 16",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return more

    return policy
""",
            "it takes (16, more)",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n, token):
            nonlocal spent
            spent += -float(np.log(q[token]))
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "no token to look at yet",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            q.clamp_(min=1e-9)
            spent += -float((q * q.log()).sum())
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "changed q",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return 16, more

    return policy([])
""",
            "not a policy",
        ),
        (
            """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += -float(q.max().log())
            return n == 0 or spent <= budget

        return 16, more

    return policy
""",
            "a draft that is leaning to one: 12 tokens were drawn",
        ),
    ],
    1: [
        (  # the ordinary residual, as if nothing were dropped
            """
def my_mended_residual(p, q, kept):
    return residual(p, q)
""",
            "not as p",
        ),
        (  # p, as the trap does
            """
def my_mended_residual(p, q, kept):
    return p
""",
            "not as p",
        ),
        (  # not normalised
            """
def my_mended_residual(p, q, kept):
    return p - np.where(kept, np.minimum(p, q), 0)
""",
            "it sums to",
        ),
        (  # p and q swapped
            """
def my_mended_residual(p, q, kept):
    missing = q - np.where(kept, np.minimum(p, q), 0)
    return missing / missing.sum()
""",
            "not as p",
        ),
        (  # what gets dropped may never come at all
            """
def my_mended_residual(p, q, kept):
    missing = np.where(kept, np.maximum(p - q, 0), 0)
    return missing / missing.sum() if missing.sum() else p
""",
            "not as p",
        ),
    ],
    2: [
        (  # the limits only at the end
            """
def my_up_and_down(rounds):
    K = 5
    for r in rounds:
        if r.candidates:
            K += 2 if r.n_accepted == len(r.candidates) else -1
    return min(max(K, 1), 16), None
""",
            "ten full, one not",
        ),
        (  # a round without candidates counts as fully accepted
            """
def my_up_and_down(rounds):
    K = 5
    for r in rounds:
        K += 2 if r.n_accepted == len(r.candidates) else -1
        K = min(max(K, 1), 16)
    return K, None
""",
            "a round without candidates",
        ),
        (  # off by one: the emitted tokens are one more than the accepted candidates
            """
def my_up_and_down(rounds):
    K = 5
    for r in rounds:
        if r.candidates:
            K += 2 if len(r.emitted) == len(r.candidates) else -1
            K = min(max(K, 1), 16)
    return K, None
""",
            "all accepted",
        ),
        (  # looks at the last round only
            """
def my_up_and_down(rounds):
    if not rounds or not rounds[-1].candidates:
        return 5, None
    return (7 if rounds[-1].n_accepted == len(rounds[-1].candidates) else 4), None
""",
            "full, none, none",
        ),
    ],
}
