"""Chapter 24: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_schedule(wants, running, token_budget, prefill_chunk, free):
    shares, left = [], token_budget
    for i, (to_do, needs) in enumerate(wants):
        free -= needs
        if free < 0:
            break
        kept = max(0, running - i - 1)
        n = min(to_do, prefill_chunk, left - kept)
        if n == 0 and i >= running:
            break
        shares.append(n)
        left -= n
    return shares
"""


def slip(old, new):
    """The right answer with one line changed."""
    assert TEMPLATE.count(old) == 1
    return TEMPLATE.replace(old, new)


RIGHT = {
    0: [
        "from nanogpt.serving.server import schedule as my_schedule",
        TEMPLATE,
        """
def my_schedule(wants, running, token_budget, prefill_chunk, free):
    fits = 0
    while fits < len(wants) and sum(needs for _, needs in wants[: fits + 1]) <= free:
        fits += 1
    shares = [1] * min(running, fits)  # a token for each, and then the rest
    for i, (to_do, _) in enumerate(wants[:fits]):
        own = shares[i] if i < running else 0
        n = min(to_do, prefill_chunk, token_budget - sum(shares) + own)
        if i < running:
            shares[i] = n
        elif n and fits >= running:
            shares.append(n)
        else:
            break
    return tuple(shares)
""",
        """
def my_schedule(wants, running, token_budget, prefill_chunk, free):
    if not wants:
        return []
    to_do, needs = np.array(wants).T
    wanted = np.minimum(to_do, prefill_chunk)
    fits = np.cumsum(needs) <= free
    fits = len(wants) if fits.all() else int(fits.argmin())
    extra = np.where(np.arange(len(wants)) < running, wanted - 1, wanted)
    spare = token_budget - running - (np.cumsum(extra) - extra)
    given = np.clip(np.minimum(extra, spare), 0, None) + (np.arange(len(wants)) < running)
    begins = (given > 0).cumprod().sum()
    return given[: min(fits, begins)]
""",
        """
def my_schedule(wants, running, token_budget, prefill_chunk, free):
    behind = running
    for i, (to_do, needs) in enumerate(wants):
        behind, free = behind - 1, free - needs
        n = min(to_do, prefill_chunk, token_budget - max(behind, 0))
        if free < 0 or n < 1:
            return
        yield n
        token_budget -= n
""",
    ],
    1: [
        """
def my_next(waiting, patience):
    late = [i for i, (_, waited) in enumerate(waiting) if waited >= patience]
    return late[0] if late else min(range(len(waiting)), key=lambda i: waiting[i][0])
""",
        """
def my_next(waiting, patience):
    best = 0
    for i, (to_do, waited) in enumerate(waiting):
        if waited >= patience:
            return i
        if to_do < waiting[best][0]:
            best = i
    return best
""",
        """
def my_next(waiting, patience):
    to_do, waited = np.array(waiting).T
    return (waited >= patience).argmax() if (waited >= patience).any() else to_do.argmin()
""",
    ],
}
WRONG = {
    0: [
        ("def my_schedule(*_): pass", "nothing came back"),
        ("def my_schedule(*_): return 3", "is no list of whole numbers"),
        (
            slip("min(to_do, prefill_chunk, left - kept)", "min(to_do, left - kept)"),
            "more than `prefill_chunk`",
        ),
        (
            slip(
                "min(to_do, prefill_chunk, left - kept)",
                "min(to_do, prefill_chunk if i >= running else token_budget, left - kept)",
            ),
            "`prefill_chunk` holds for those that run",
        ),
        (slip("        left -= n\n", ""), "what is left of the budget"),
        (slip("left - kept)", "left)"), "or they stand still"),
        (
            slip("max(0, running - i - 1)", "len(wants) - i - 1"),
            "none is kept back for those that wait",
        ),
        (slip("max(0, running - i - 1)", "running * (i < running - 1)"), "or they stand still"),
        (
            slip("left - kept)", "left - kept, token_budget // max(1, running))"),
            "what is over goes to the first",
        ),
        (
            """
def my_schedule(wants, running, token_budget, prefill_chunk, free):
    shares = []
    for i, (to_do, needs) in enumerate(wants):
        free -= needs
        if free < 0 or (i >= running and sum(shares) >= token_budget):
            break
        shares.append(0)
    wanted = [min(to_do, prefill_chunk) for to_do, _ in wants]
    while token_budget > sum(shares) and any(n < w for n, w in zip(shares, wanted)):
        for i in range(len(shares)):  # in turn
            if shares[i] < wanted[i] and sum(shares) < token_budget:
                shares[i] += 1
    while len(shares) > running and not shares[-1]:
        shares.pop()
    return shares
""",
            "what is left of the budget",
        ),
        (
            slip(
                "        free -= needs\n        if free < 0:\n            break",
                "        if needs > free:\n            continue\n        free -= needs",
            ),
            "nobody overtakes",
        ),
        (
            slip("        if n == 0 and i >= running:\n            break\n", ""),
            "nobody begins with 0",
        ),
        (slip("free < 0", "free <= 0"), "all may be filled"),
        (
            slip("        free -= needs\n        if free < 0:", "        if needs > free:"),
            "places are added up",
        ),
        (slip("free -= needs", "free -= min(to_do, prefill_chunk)"), "`to_do` counts tokens"),
        (
            slip("free -= needs", "free -= needs * min(to_do, prefill_chunk) // to_do"),
            "not for a part",
        ),
        (slip("if free < 0:", "if i >= running and free < 0:"), "makes room"),
        (
            slip(
                "    shares, left = [], token_budget\n",
                "    shares, left, wants = [], token_budget, list(wants)\n"
                "    while sum(needs for _, needs in wants[:running]) > free:\n"
                "        wants.remove(max(wants[:running], key=lambda one: one[1]))\n"
                "        running -= 1\n",
            ),
            "whoever holds the most",
        ),
        (
            slip(
                "    shares, left = [], token_budget\n",
                "    shares, left, wants = [], token_budget, list(wants)\n"
                "    while sum(needs for _, needs in wants[:running]) > free:\n"
                "        wants.append(wants.pop(running - 1))\n"
                "        running -= 1\n",
            ),
            "nobody begins",
        ),
        (
            slip(
                "    shares, left = [], token_budget\n",
                "    shares, left = [], token_budget\n    wants.sort()\n",
            ),
            "is changed",
        ),
    ],
    1: [
        ("def my_next(waiting, patience): pass", "nothing came back"),
        (
            "def my_next(waiting, patience): return min(range(len(waiting)), "
            "key=lambda i: waiting[i][0])",
            "has waited long enough",
        ),
        ("def my_next(waiting, patience): return 0", "the shortest"),
        (
            """
def my_next(waiting, patience):
    late = [i for i, (_, waited) in enumerate(waiting) if waited > patience]
    return late[0] if late else min(range(len(waiting)), key=lambda i: waiting[i][0])
""",
            "exactly",
        ),
        (
            """
def my_next(waiting, patience):
    late = [i for i, (_, waited) in enumerate(waiting) if waited >= patience]
    return min(late or range(len(waiting)), key=lambda i: waiting[i][0])
""",
            "who came first",
        ),
        (
            """
def my_next(waiting, patience):
    late = [i for i, (_, waited) in enumerate(waiting) if waited >= patience]
    return late[0] if late else min(range(len(waiting))[::-1], key=lambda i: waiting[i][0])
""",
            "a tie",
        ),
        (
            """
def my_next(waiting, patience):
    return min(range(len(waiting)), key=lambda i: waiting[i][0] - waiting[i][1] / patience)
""",
            "not",
        ),
    ],
}
