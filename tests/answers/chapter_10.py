"""Chapter 10: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts import ngram


def my_row(counts, context, letters):
    chain = [""]
    while len(chain) <= len(context) and context[-len(chain) :] in counts:
        chain.append(context[-len(chain) :])
    sizes = np.array([len(counts[known]) for known in chain])
    followers = [letters.index(x) for known in chain for x in counts[known]]
    weights = [n for known in chain for n in counts[known].values()]
    parents = np.array([0, *range(len(chain) - 1)])
    table = ngram.back_off(parents, sizes, followers, weights, sizes, len(letters))
    return dict(zip(letters, table[-1].tolist()))
""",
        """
def my_row(counts, context, letters):
    if context not in counts:
        return my_row(counts, context[1:], letters)
    seen = counts[context]
    even = {x: Fraction(1, len(letters)) for x in letters}
    parent = my_row(counts, context[1:], letters) if context else even
    u = len(seen)
    return {x: (seen[x] + u * parent[x]) / (sum(seen.values()) + u) for x in letters}
""",
        """
def my_row(counts, context, letters):
    row = np.full(len(letters), 1 / len(letters))
    for start in range(len(context), -1, -1):
        if context[start:] not in counts:
            break
        own = np.array([counts[context[start:]].get(x, 0) for x in letters])
        surprises = np.count_nonzero(own)
        row = (own + surprises * row) / (own.sum() + surprises)
    return row
""",
        """
def my_row(counts, context, letters):
    known = context
    while known not in counts:
        known = known[1:]
    ends = [known[i:] for i in range(len(known), -1, -1)]
    row = [1 / len(letters) for _ in letters]
    for end in ends:
        size = sum(counts[end].values())
        share = size / (size + len(counts[end]))
        row = [share * counts[end][x] / size + (1 - share) * q for x, q in zip(letters, row)]
    return tuple(row)
""",
    ],
    1: [
        """
def my_best_weight(p, copies, q, weights):
    best, most = None, -1.0
    for w in weights:
        total = 0.0
        for target_row, copy_row, draft_row in zip(p, copies, q):
            for a, b, c in zip(target_row, copy_row, draft_row):
                total += min(a, w * b + (1 - w) * c)
        if total > most:
            best, most = w, total
    return best
""",
        """
def my_best_weight(p, copies, q, weights):
    w = np.array(weights)[:, None, None]
    overlap = np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean(-1)
    return weights[int(overlap.argmax())]
""",
        """
def my_best_weight(p, copies, q, weights):
    p, copies, q = (torch.as_tensor(x) for x in (p, copies, q))
    distance = [(p - w * copies - (1 - w) * q).abs().sum().item() for w in weights]
    return weights[distance.index(min(distance))]
""",
    ],
    2: [
        """
def my_places(text, contexts):
    at = {context: [] for context in contexts}
    for i in range(len(text)):
        start = 0
        while text[start:i] not in contexts:
            start += 1
        at[text[start:i]].append(i)
    return at
""",
        """
def my_places(text, contexts):
    return {
        c: [
            i
            for i in range(len(text))
            if c == max((k for k in contexts if text[:i].endswith(k)), key=len)
        ]
        for c in contexts
    }
""",
        """
def my_places(text, contexts):
    left, found = set(range(len(text))), {}
    for c in sorted(contexts, key=len, reverse=True):
        found[c] = {i for i in left if text[max(0, i - len(c)) : i] == c}
        left -= found[c]
    return found
""",
        """
def my_places(text, contexts):
    found = {c: [] for c in contexts}
    for i in range(len(text)):
        context = ""
        for x in reversed(text[:i]):
            if x + context not in contexts:
                break
            context = x + context
        found[context].append(i)
    return found
""",
    ],
}

WRONG = {
    0: [
        (TURN.replace("len(context) - n :", "-n:"), "context[-0:] is all of it"),
        (TURN.replace("return row", "row = None"), "None came back"),
        (
            """
def my_row(counts, context, letters):
    seen = counts[context]
    even = {x: 1 / len(letters) for x in letters}
    parent = my_row(counts, context[1:], letters) if context else even
    u, total = len(seen), sum(seen.values())
    return {x: (seen[x] + u * parent[x]) / (total + u) for x in letters}
""",
            "walk only to what is known",
        ),
        (TURN.replace("len(seen)", "sum(seen.values())"), "how many *different* letters followed"),
        (TURN.replace("len(seen)", "1"), "share is 1,"),
        (
            """
def my_row(counts, context, letters):
    while context not in counts:
        context = context[1:]
    seen = counts[context]
    even = {x: 1 / len(letters) for x in letters}
    parent = my_row(counts, context[:-1], letters) if context else even
    u, total = len(seen), sum(seen.values())
    return {x: (seen[x] + u * parent[x]) / (total + u) for x in letters}
""",
            "lacks the newest letter",
        ),
        (TURN.replace("* row[x]", "/ len(letters)"), "mixed with the even row"),
        (TURN.replace("(total + u)", "total"), "the row sums to"),
        (
            """
def my_row(counts, context, letters):
    while context not in counts:
        context = context[1:]
    total = sum(counts[context].values())
    return {x: counts[context][x] / total for x in letters}
""",
            "bare counts",
        ),
        (
            TURN.replace(
                "(seen[x] + u * row[x]) / (total + u) for x in letters",
                "(seen[x] + u * row.get(x, 0)) / (total + u) for x in seen",
            ),
            "no q for the letters",
        ),
        (
            TURN.replace("get", "setdefault")
            .replace(":]", ":], Counter()")
            .replace("seen is None", "not seen"),
            "counts was changed",
        ),
        (
            """
def my_row(counts, context, letters):
    row = [1 / len(letters) for _ in letters]
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        u, total = len(seen), sum(seen.values())
        row = [(seen[x] + u * q) / (total + u) for x, q in zip(letters, row)]
    return [*row, 5.0]
""",
            "one number for each of the letters",
        ),
        (  # a fixed share of each row on the way, whatever its counts
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for n in range(len(context) + 1):
        seen = counts.get(context[len(context) - n :])
        if seen is None:
            break
        total = sum(seen.values())
        row = {x: 0.7 * seen[x] / total + 0.3 * row[x] for x in letters}
    return row
""",
            "down to the even row",
        ),
        (TURN.replace("return row", 'return {**row, "others": 0.0}'), "none of the letters"),
        (  # right for contexts of two letters
            TURN.replace("len(context) +", "min(2, len(context)) +"),
            "its own counts have no share in it",
        ),
        (  # only the letters that ever came
            TURN.replace(
                "def my_row(counts, context, letters):",
                'def my_row(counts, context, letters):\n    letters = sorted(counts[""])',
            ),
            "no q for the letters z",
        ),
        (  # an alphabet of five
            TURN.replace("len(letters)", "5"),
            "the row sums to",
        ),
        (  # right, but each row is made again for each letter of the next one
            """
def my_row(counts, context, letters):
    while context not in counts:
        context = context[1:]
    seen, shorter, even = counts[context], context[1:], 1 / len(letters)
    u, total = len(seen), sum(counts[context].values())
    return {
        x: (seen[x] + u * (my_row(counts, shorter, letters)[x] if context else even)) / (total + u)
        for x in letters
    }
""",
            "contexts where 3 will do",
        ),
        (  # right, but it goes through all contexts of a text
            """
def my_row(counts, context, letters):
    row = {x: 1 / len(letters) for x in letters}
    for known, seen in sorted(counts.items(), key=lambda item: len(item[0])):
        if context.endswith(known):
            u, total = len(seen), sum(seen.values())
            row = {x: (seen[x] + u * row[x]) / (total + u) for x in letters}
    return row
""",
            "go from the root outward, a letter a step",
        ),
        (  # an entry of 0 looks like a follower to whoever asks next
            TURN.replace(
                "row = {x: (",
                "for x in letters:\n            seen.setdefault(x, 0)\n        row = {x: (",
            ),
            "counts was changed",
        ),
    ],
    1: [
        (
            """
def my_best_weight(p, copies, q, weights):
    return max(weights, key=lambda w: np.minimum(p, w * q + (1 - w) * copies).sum(-1).mean())
""",
            "w is the copy's weight",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    return max(weights, key=lambda w: (p * (w * copies + (1 - w) * q)).sum(-1).mean())
""",
            "compare Σ min(p, mixture)",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    def overlap(w):
        return np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean()

    return max(reversed(weights), key=overlap)
""",
            "it is the first",
        ),
        (
            """
def my_best_weight(p, copies, q, weights):
    overlap = [np.minimum(p, w * copies + (1 - w) * q).sum(-1).mean() for w in weights]
    return int(np.argmax(overlap))
""",
            "the best weight is 0.75, not 3",
        ),
    ],
    2: [
        (
            """
def my_places(text, contexts):
    return {c: [i for i in range(len(text)) if text[:i].endswith(c)] for c in contexts}
""",
            "where a longer one is known, it answers",
        ),
        (
            """
def my_places(text, contexts):
    places = {context: [] for context in contexts}
    for i in range(len(text)):
        known = (text[start : i + 1] for start in range(i + 2))
        places[next(c for c in known if c in places)].append(i)
    return places
""",
            "place i has seen text[:i]",
        ),
        (
            """
def my_places(text, contexts):
    places = {}
    for i in range(len(text)):
        context = next(text[start:i] for start in range(i + 1) if text[start:i] in contexts)
        places.setdefault(context, []).append(i)
    return places
""",
            "an empty one will do",
        ),
        (
            """
def my_places(text, contexts):
    found = {c: [i for i in range(len(text)) if text[:i].endswith(c)] for c in contexts}
    print(found)
""",
            "not None",
        ),
        (
            """
def my_places(text, contexts):
    places = {context: [] for context in contexts}
    for i in range(len(text)):
        known = (text[start:i] for start in range(i, -1, -1) if text[start:i] in places)
        places[next(known)].append(i)
    return places
""",
            "answers",
        ),
    ],
}
