"""Answers to the exercises of chapter 05 that its checks must take, and some they must refuse."""

RIGHT = {
    1: [
        # as NumPy, with a while loop, and a list of tensors' numbers
        """
def my_greedy_accept(candidates, target_probs):
    best = np.asarray(target_probs).argmax(axis=1)
    n = 0
    while n < len(candidates) and candidates[n] == best[n]:
        n += 1
    return best[: n + 1]
""",
        # asks for p of the candidate instead of the best token
        """
def my_greedy_accept(candidates, target_probs):
    emitted = []
    for token, p in zip(candidates, target_probs):
        if p[token] < 1:
            break
        emitted.append(token)
    emitted.append(torch.argmax(target_probs[len(emitted)]))
    return tuple(emitted)
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
    3: [
        """
def my_samples_needed(p, bias):
    return np.ceil(16 * p * (1 - p) / bias**2).astype(int)
""",
        """
def my_samples_needed(p, bias):
    low, high = 1, 2
    while bias < 4 * (p * (1 - p) / high) ** 0.5:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if bias < 4 * (p * (1 - p) / middle) ** 0.5:
            low = middle + 1
        else:
            high = middle
    return low
""",
        """
def my_samples_needed(p, bias):
    return np.ceil((4 / bias) ** 2 * p * (1 - p))
""",
    ],
}

WRONG = {
    1: [
        (  # without the target's own token after the guesses
            """
def my_greedy_accept(candidates, target_probs):
    best = target_probs.argmax(dim=-1).tolist()
    for i, token in enumerate(candidates):
        if token != best[i]:
            return best[: i + 1]
    return best[: len(candidates)]
""",
            "guesses [2, 0, 1], target [2, 0, 1, 1]: [2, 0, 1], not [2, 0, 1, 1]",
        ),
        (  # keeps what comes after a wrong guess
            """
def my_greedy_accept(candidates, target_probs):
    best = target_probs.argmax(dim=-1).tolist()
    return best[: len(candidates) + 1]
""",
            "guesses [2, 0, 2], target [2, 0, 1, 1]: [2, 0, 1, 1], not [2, 0, 1]",
        ),
        (  # keeps the wrong guess itself
            """
def my_greedy_accept(candidates, target_probs):
    best = target_probs.argmax(dim=-1).tolist()
    for i, token in enumerate(candidates):
        if token != best[i]:
            return candidates[: i + 1]
    return [*candidates, best[len(candidates)]]
""",
            "guesses [2, 0, 2], target [2, 0, 1, 1]: [2, 0, 2], not [2, 0, 1]",
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
    3: [
        (  # two standard errors
            """
def my_samples_needed(p, bias):
    return int(np.ceil(4 * p * (1 - p) / bias**2))
""",
            "make it 2.003 standard errors, short of four",
        ),
        (  # rounded down
            """
def my_samples_needed(p, bias):
    return int(16 * p * (1 - p) / bias**2)
""",
            "414 samples make it 3.996 standard errors, short of four",
        ),
        (
            """
def my_samples_needed(p, bias):
    return 16 * p * (1 - p) / bias**2
""",
            "is no whole number",
        ),
        (  # the variance where the standard deviation belongs
            """
def my_samples_needed(p, bias):
    return int(np.ceil((4 * p * (1 - p) / bias) ** 2))
""",
            "standard errors, short of four",
        ),
    ],
}
