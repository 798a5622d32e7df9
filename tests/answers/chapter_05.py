"""Answers to the turn (0) and exercises of chapter 05 that must pass, and some that must not."""

ACCEPT = """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    for i, x in enumerate(candidates):
        p, q = target_probs[i], draft_probs[i]
        if not rng.bernoulli(min(1.0, float(p[x] / q[x]))):
            left = (p - q).clamp(min=0)
            return [*candidates[:i], rng.categorical(left / left.sum())]
    return [*candidates, rng.categorical(target_probs[len(candidates)])]
"""


def accept(old, new):
    """The right rule with one place changed."""
    assert ACCEPT.count(old) == 1, old
    return ACCEPT.replace(old, new)


RIGHT = {
    0: [
        "from nanogpt.speculative import accept_reject as my_accept_reject",
        # plain Python, and tuples
        """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    emitted = ()
    for x, q, p in zip(candidates, draft_probs.tolist(), target_probs.tolist()):
        if rng.bernoulli(min(1, p[x] / q[x])):
            emitted += (x,)
            continue
        left = [max(0, p_y - q_y) for p_y, q_y in zip(p, q)]
        return (*emitted, rng.categorical([x / sum(left) for x in left]))
    return (*emitted, rng.categorical(target_probs[-1]))
""",
        # everything is drawn first, as on a GPU: what would replace each guess, then the coins
        """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    K = len(candidates)
    bonus = rng.categorical(target_probs[K])
    left = (target_probs[:K] - draft_probs).clamp(min=0)
    empty = left.sum(dim=-1, keepdim=True) == 0
    left = torch.where(empty, target_probs[:K], left)
    instead = [rng.categorical(row / row.sum()) for row in left]
    picked = torch.tensor(candidates, dtype=torch.int64)[:, None]
    ratios = (target_probs[:K].gather(1, picked) / draft_probs.gather(1, picked))[:, 0]
    kept = [rng.bernoulli(min(1.0, ratio)) for ratio in ratios.tolist()]
    n = kept.index(False) if False in kept else K
    return [*candidates[:n], instead[n] if n < K else bonus]
""",
        # without a coin: a draw from (accepted, rejected); NumPy in float32
        """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    q, p = draft_probs.float().numpy(), target_probs.float().numpy()
    emitted = []
    for i, x in enumerate(candidates):
        accepted = min(1.0, float(p[i, x] / q[i, x]))
        if rng.categorical(np.array([accepted, 1 - accepted])) == 1:
            left = np.maximum(p[i] - q[i], 0)
            emitted.append(torch.tensor(rng.categorical(left / left.sum())))
            return np.array(emitted)
        emitted.append(x)
    return np.array([*emitted, rng.categorical(p[len(candidates)])])
""",
        # coin · q < p, and the residual as it is, through its running sum
        """
def my_accept_reject(candidates, draft_probs, target_probs, rng, i=0):
    if i == len(candidates):
        return [rng.categorical(target_probs[i])]
    x, p, q = candidates[i], target_probs[i], draft_probs[i]
    if p[x] >= q[x] or rng.bernoulli((p[x] / q[x]).item()):
        return [x] + my_accept_reject(candidates, draft_probs, target_probs, rng, i + 1)
    left = torch.relu(p - q)
    return [rng.categorical(left.div_(left.sum()))]
""",
    ],
    1: [
        # token by token, in plain Python
        """
def my_resampled_from_p(p, q):
    p, q = p.tolist(), q.tolist()
    alpha = sum(map(min, zip(p, q)))
    return [min(p[x], q[x]) + (1 - alpha) * p[x] for x in range(len(p))]
""",
        # the total variation for what is rejected; float32
        """
def my_resampled_from_p(p, q):
    p, q = p.float(), q.float()
    rejected = (p - q).abs().sum() / 2
    return q * (p / q.clamp(min=1e-9)).clamp(max=1) + rejected * p
""",
    ],
    2: [
        # the package's own rule, handed one-hot rows
        """
def my_accept_sure(candidates, target_probs, rng):
    q = torch.nn.functional.one_hot(torch.tensor(candidates), target_probs.shape[1])
    return accept_reject(candidates, q.double(), target_probs, rng)
""",
        # draws from p and compares: the same chances with one draw instead of a coin
        """
def my_accept_sure(candidates, target_probs, rng):
    for i, token in enumerate(candidates):
        drawn = rng.categorical(target_probs[i])
        if drawn != token:
            return [*candidates[:i], drawn]
    return [*candidates, rng.categorical(target_probs[-1])]
""",
        """
def my_accept_sure(candidates, target_probs, rng):
    emitted = []
    for token, p in zip(candidates, target_probs.numpy()):
        if rng.bernoulli(p[token]):
            emitted.append(token)
            continue
        rest = np.array([0 if i == token else x for i, x in enumerate(p)])
        emitted.append(rng.categorical(rest / rest.sum()))
        return tuple(emitted)
    emitted.append(rng.categorical(target_probs[len(candidates)]))
    return tuple(emitted)
""",
    ],
}

WRONG = {
    0: [
        (  # never keeps a guess
            "def my_accept_reject(candidates, q, p, rng):\n    return [rng.categorical(p[0])]",
            "no guess is ever kept",
        ),
        (
            accept("draft_probs[i]", "draft_probs[0]"),
            "does place i use row i of p and q, at any K?",
        ),
        (  # a token that comes twice is found at its first place
            accept("candidates[:i]", "candidates[: candidates.index(x)]"),
            "does place i use row i",
        ),
        (accept("enumerate(candidates)", "enumerate(candidates[:2])"), "at any K?"),
        (accept("rng.categorical(left / left.sum())", "rng.categorical(p)"), "looks drawn from p"),
        (accept("rng.categorical(left / left.sum())", "rng.categorical(q)"), "looks drawn from q"),
        (accept("p[x] / q[x]", "q[x] / p[x] if p[x] else 0"), "which is q/p; the rule says p/q"),
        (accept("(p - q)", "(q - p)"), "looks drawn from max(0, q - p)"),
        (accept("left / left.sum()", "left"), "divide them by their sum"),
        (accept("min(1.0, float(p[x] / q[x]))", "float(p[x] / q[x])"), "it must be in [0, 1]"),
        (accept(", rng.categorical(target_probs[len(candidates)])]", "]"), "it is missing"),
        (accept("target_probs[len(candidates)]", "target_probs[len(candidates) - 1]"), "wrong row"),
        (
            accept(
                "rng.categorical(target_probs[len(candidates)])",
                "int(target_probs[len(candidates)].argmax())",
            ),
            "do not take the likeliest",
        ),
        (
            accept("[*candidates[:i], rng", "[*candidates[:i], x, rng"),
            "its first guess stays with 1.00; the rule says 0.00",
        ),
        (  # keeps the rejected guess, and ends there
            accept("[*candidates[:i], rng.categorical(left / left.sum())]", "candidates[: i + 1]"),
            "must not stay in the text",
        ),
        (  # goes on after a rejection
            """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    emitted = []
    for x, p, q in zip(candidates, target_probs, draft_probs):
        if rng.bernoulli(min(1.0, float(p[x] / q[x]))):
            emitted.append(x)
        else:
            left = (p - q).clamp(min=0)
            emitted.append(rng.categorical(left / left.sum()))
    return [*emitted, rng.categorical(target_probs[-1])]
""",
            "a round ends with the first rejection",
        ),
        (  # one coin for the whole block
            """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    at = range(len(candidates))
    ratios = [float(target_probs[i, x] / draft_probs[i, x]) for i, x in zip(at, candidates)]
    if rng.bernoulli(min([1.0, *ratios])):
        return [*candidates, rng.categorical(target_probs[len(candidates)])]
    left = (target_probs[0] - draft_probs[0]).clamp(min=0)
    return [rng.categorical(left / left.sum())]
""",
            "its first guess stays with 0.33; the rule says 0.60",
        ),
        (accept("(p - q)", "p.sub_(q)"), "changed in place"),
        (accept("    return [*candidates, rng", "    [*candidates, rng"), "nothing came back"),
        (  # all chance from elsewhere
            """
def my_accept_reject(candidates, draft_probs, target_probs, rng):
    for i, x in enumerate(candidates):
        p, q = target_probs[i], draft_probs[i]
        if torch.rand(()) >= p[x] / q[x]:
            left = (p - q).clamp(min=0)
            return [*candidates[:i], int(torch.multinomial(left, 1))]
    return [*candidates, int(torch.multinomial(target_probs[-1], 1))]
""",
            "you never asked `rng`: use rng.bernoulli and rng.categorical only",
        ),
        (  # the coin from elsewhere
            accept("rng.bernoulli(min(1.0, float(p[x] / q[x])))", "np.random.rand() < p[x] / q[x]"),
            "not all chance comes from `rng`: use rng.bernoulli and rng.categorical only",
        ),
        (  # the replacement from elsewhere
            accept("rng.categorical(left / left.sum())", "int(torch.multinomial(left, 1))"),
            "not all chance comes from `rng`: use rng.bernoulli and rng.categorical only",
        ),
        (
            accept("target_probs[len(candidates)]", "target_probs[len(candidates) + 1]"),
            "guesses []",
        ),
        (accept("rng.bernoulli(min(1.0", "rng.coin(min(1.0"), "AttributeError"),
    ],
    1: [
        (  # from the residual: that is right, and not what was asked
            "def my_resampled_from_p(p, q):\n    return p",
            "p [0.7, 0.3], q [0.4, 0.6]: [0.7 0.3], not [0.61 0.39]",
        ),
        (  # what is kept is forgotten
            """
def my_resampled_from_p(p, q):
    return (1 - torch.minimum(p, q).sum()) * p
""",
            "[0.21 0.09], not [0.61 0.39]",
        ),
        (  # all that is not kept of a token becomes the same token
            """
def my_resampled_from_p(p, q):
    return torch.minimum(p, q) + (q - p).clamp(min=0)
""",
            "[0.4 0.6], not [0.61 0.39]",
        ),
    ],
    2: [
        (  # from p, not from what is left of it
            """
def my_accept_sure(candidates, target_probs, rng):
    for i, token in enumerate(candidates):
        if not rng.bernoulli(float(target_probs[i, token])):
            return [*candidates[:i], rng.categorical(target_probs[i])]
    return [*candidates, rng.categorical(target_probs[len(candidates)])]
""",
            "guesses [0]: ",
        ),
        (  # zeroed, not normalised
            """
def my_accept_sure(candidates, target_probs, rng):
    for i, token in enumerate(candidates):
        p = target_probs[i].clone()
        if not rng.bernoulli(float(p[token])):
            p[token] = 0
            return [*candidates[:i], rng.categorical(p)]
    return [*candidates, rng.categorical(target_probs[len(candidates)])]
""",
            "divide them by their sum",
        ),
        (  # the bonus token read one row off
            """
def my_accept_sure(candidates, target_probs, rng):
    for i, token in enumerate(candidates):
        p = target_probs[i].clone()
        if not rng.bernoulli(float(p[token])):
            p[token] = 0
            return [*candidates[:i], rng.categorical(p / p.sum())]
    return [*candidates, rng.categorical(target_probs[len(candidates) - 1])]
""",
            "comes with probability",
        ),
    ],
}
