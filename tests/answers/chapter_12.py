"""Chapter 12: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_by_acceptance(best, memory):
    def policy(rounds):
        accepted, examined = 13, 16
        for r in rounds[-memory:]:
            accepted += r.n_accepted
            examined += r.n_examined
        return best(accepted / examined), None

    return policy
"""

ANSWER_2 = """
def my_by_entropy(budget):
    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return 16, more

    return policy
"""

RIGHT = {
    0: [
        """
def my_by_acceptance(best, memory):
    def policy(rounds):
        last = rounds[-memory:]
        accepted = 13 + sum(r.n_accepted for r in last)
        return best(accepted / (16 + sum(r.n_examined for r in last))), None

    return policy
""",
        """
def my_by_acceptance(best, memory):  # a table, as ours has
    table = [best(i / 100) for i in range(101)]

    def policy(rounds):
        n = len(rounds)
        accepted, examined = 13, 16
        for i in range(max(0, n - memory), n):
            kept, drafted = len(rounds[i].emitted) - 1, len(rounds[i].candidates)
            accepted += kept
            examined += kept + (kept < drafted)
        return [table[round(100 * accepted / examined)], None]

    return policy
""",
        """
class my_by_acceptance:  # from the newest round back
    def __init__(self, best, memory):
        self.best, self.memory = best, memory

    def __call__(self, rounds):
        from itertools import islice

        pairs = [(13, 16)]
        pairs += [(r.n_accepted, r.n_examined) for r in islice(reversed(rounds), self.memory)]
        accepted, examined = torch.tensor(pairs, dtype=torch.float64).sum(0)
        return self.best(accepted / examined), None
""",
        """
def my_by_acceptance(best, memory):  # every guess as 1 or 0
    def policy(rounds):
        fates = [1] * 13 + [0] * 3
        for r in rounds[-memory:]:
            fates += ([1] * r.n_accepted + [0])[: r.n_examined]
        return best(np.mean(fates)), None

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
}

WRONG = {
    0: [
        (  # drafted instead of examined
            TURN.replace("r.n_examined", "len(r.candidates)"),
            "you divide by the drafted guesses",
        ),
        (  # one more examined than there were
            TURN.replace("n_examined", "n_accepted + 1"),
            "no further guess was examined",
        ),
        (  # emitted instead of accepted
            TURN.replace("r.n_accepted", "len(r.emitted)"),
            "one token less than it emits",
        ),
        (  # nothing imagined
            TURN.replace("13, 16", "0, 0").replace(
                "/ examined", "/ examined if examined else 13 / 16"
            ),
            "where are the imagined guesses",
        ),
        (  # imagined only until there are rounds
            """
def my_by_acceptance(best, memory):
    def policy(rounds):
        last = rounds[-memory:]
        if len(last) < memory:
            accepted, examined = 13, 16
        else:
            accepted, examined = 0, 1e-9
        for r in last:
            accepted += r.n_accepted
            examined += r.n_examined
        return best(accepted / examined), None

    return policy
""",
            "where are the imagined guesses",
        ),
        (  # the whole text
            TURN.replace("[-memory:]", ""),
            "only the last rounds count",
        ),
        (  # the first rounds
            TURN.replace("-memory:", ":memory"),
            "the first rounds, not the last",
        ),
        (  # without the newest round
            TURN.replace("memory:", "memory - 1 : -1"),
            "the last round counts, too",
        ),
        (  # a mean of the rounds' ratios
            """
def my_by_acceptance(best, memory):
    def policy(rounds):
        ratios = [13 / 16]
        for r in rounds[-memory:]:
            if r.n_examined:
                ratios.append(r.n_accepted / r.n_examined)
        return best(np.mean(ratios)), None

    return policy
""",
            "your K is its answer at",
        ),
        (  # the sums live on from call to call
            """
def my_by_acceptance(best, memory):
    accepted, examined = 13, 16

    def policy(rounds):
        nonlocal accepted, examined
        for r in rounds[-memory:]:
            accepted += r.n_accepted
            examined += r.n_examined
        return best(accepted / examined), None

    return policy
""",
            "the policy remembers an earlier call",
        ),
        (  # remembered by how many rounds there were, in whichever text
            """
def my_by_acceptance(best, memory):
    known = {}

    def policy(rounds):
        if len(rounds) not in known:
            last = rounds[-memory:]
            accepted = 13 + sum(r.n_accepted for r in last)
            known[len(rounds)] = best(accepted / (16 + sum(r.n_examined for r in last)))
        return known[len(rounds)], None

    return policy
""",
            "the policy remembers an earlier call",
        ),
        (  # K alone
            TURN.replace(", None", ""),
            "not (K, None)",
        ),
        (  # no policy, but a K
            """
def my_by_acceptance(best, memory):
    return best(13 / 16), None
""",
            "is to return a function",
        ),
        (  # wasted: reads the whole text in every round
            """
def my_by_acceptance(best, memory):
    def policy(rounds):
        accepted, examined = 13, 16
        for age, r in enumerate(reversed(rounds)):
            accepted += r.n_accepted * (age < memory)
            examined += r.n_examined * (age < memory)
        return best(accepted / examined), None

    return policy
""",
            "where the last 3 would do",
        ),
        (  # wasted: asks best after every round that it adds
            """
def my_by_acceptance(best, memory):
    def policy(rounds):
        accepted, examined = 13, 16
        K = best(accepted / examined)
        for r in rounds[-memory:]:
            accepted += r.n_accepted
            examined += r.n_examined
            K = best(accepted / examined)
        return K, None

    return policy
""",
            "times; once a round will do",
        ),
        (  # drops the old rounds from the list that it was given
            """
def my_by_acceptance(best, memory):
    def policy(rounds):
        del rounds[:-memory]
        accepted = 13 + sum(r.n_accepted for r in rounds)
        return best(accepted / (16 + sum(r.n_examined for r in rounds))), None

    return policy
""",
            "the policy changed the list of rounds",
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
        (
            ANSWER_2.replace("= budget", " budget"),
            "1 drawn, not 16",
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
            "in the next, with a budget of its own",
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
            "3 drawn, not 2",
        ),
        (
            ANSWER_2.replace("spent +", "spent "),
            "16 drawn, not 2",
        ),
    ],
}
