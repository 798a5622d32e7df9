"""Chapter 24: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_schedule(wants, running, budget, width, capacity):
    shares, places = [], 0
    for i, (to_do, needs) in enumerate(wants):
        places += needs
        if places > capacity:
            break
        n = min(to_do, width, budget)
        if n == 0 and i >= running:
            break
        shares.append(n)
        budget -= n
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
def my_schedule(wants, running, budget, width, capacity):
    fits = 0
    while fits < len(wants) and sum(needs for _, needs in wants[: fits + 1]) <= capacity:
        fits += 1
    shares = []
    for to_do, _ in wants[:fits]:
        shares.append(min(to_do, width, budget - sum(shares)))
    while len(shares) > min(running, fits) and shares[-1] == 0:
        shares.pop()
    return tuple(shares)
""",
        """
def my_schedule(wants, running, budget, width, capacity):
    if not wants:
        return []
    to_do, needs = np.array(wants).T
    wanted = np.minimum(to_do, width)
    before = np.cumsum(wanted) - wanted
    shares = np.clip(np.minimum(wanted, budget - before), 0, None)
    inside = (np.cumsum(needs) <= capacity) & ((shares > 0) | (np.arange(len(wants)) < running))
    return shares[: len(wants) if inside.all() else int(inside.argmin())]
""",
    ],
    1: [
        """
def my_shortest_first(waiting, left):
    begun, rest = [], list(enumerate(waiting))
    while rest:
        i, (to_do, places) = min(rest, key=lambda one: (one[1][0], one[0]))
        if places > left:
            return begun
        left -= places
        begun.append(i)
        rest.remove((i, (to_do, places)))
    return begun
""",
        """
def my_shortest_first(waiting, left):
    order = np.argsort([to_do for to_do, _ in waiting], kind="stable")
    if not len(order):
        return ()
    used = np.cumsum([waiting[i][1] for i in order])
    return [int(i) for i, n in zip(order, used) if n <= left]
""",
    ],
    2: [
        """
def my_calm(table, last, running):
    return last + int(np.sign(table[running - 1] - last))
""",
        """
def my_calm(table, last, running):
    return max(last - 1, min(last + 1, table[running - 1]))
""",
    ],
}
WRONG = {
    0: [
        ("def my_schedule(*_): pass", "nothing came back"),
        ("def my_schedule(*_): return 3", "is no list of whole numbers"),
        (slip("min(to_do, width, budget)", "min(to_do, budget)"), "more than `width`"),
        (slip("        budget -= n\n", ""), "what is left of the budget"),
        (
            slip(
                "places > capacity:\n            break",
                "places > capacity:\n            places -= needs\n            continue",
            ),
            "nobody overtakes",
        ),
        (slip(" and i >= running", ""), "keeps its places"),
        (
            slip("        if n == 0 and i >= running:\n            break\n", ""),
            "nobody begins with 0",
        ),
        (slip("places > capacity", "places >= capacity"), "all may be filled"),
        (slip("places > capacity", "needs > capacity"), "places are added up"),
        (slip("places > capacity", "i >= running and places > capacity"), "makes room"),
        (
            slip("    shares, places = [], 0", "    shares, places = [], 0\n    wants.sort()"),
            "is changed",
        ),
    ],
    1: [
        (
            """
def my_shortest_first(waiting, left):
    begun = []
    for i, (_, places) in enumerate(waiting):
        if places <= left:
            left -= places
            begun.append(i)
    return begun
""",
            "room for all",
        ),
        (
            """
def my_shortest_first(waiting, left):
    begun = []
    for i in sorted(range(len(waiting)), key=lambda i: waiting[i][0]):
        if waiting[i][1] <= left:
            left -= waiting[i][1]
            begun.append(i)
    return begun
""",
            "does not fit: stop",
        ),
        (
            """
def my_shortest_first(waiting, left):
    begun = []
    for i in sorted(range(len(waiting)), key=lambda i: waiting[i][0]):
        left -= waiting[i][1]
        if left <= 0:
            break
        begun.append(i)
    return begun
""",
            "not",
        ),
    ],
    2: [
        ("def my_calm(table, last, running): return table[running - 1]", "a crowd comes"),
        (
            """
def my_calm(table, last, running):
    return last + 1 if table[running - 1] > last else last - 1
""",
            "already there",
        ),
        (
            """
def my_calm(table, last, running):
    wanted = table[running % len(table)]
    return last + (wanted > last) - (wanted < last)
""",
            "not",
        ),
    ],
}
