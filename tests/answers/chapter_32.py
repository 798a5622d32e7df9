"""Answers to the turn (0) and exercises of chapter 32 that must pass, and some that must not."""

NEXT = """
def my_next_letter(q, tokens, begun):
    sums = {}
    for p, token in zip(q, tokens):
        if token.startswith(begun):
            key = token[len(begun):][:1]
            sums[key] = sums.get(key, 0) + p
    total = sum(sums.values())
    return {key: p / total for key, p in sums.items()}
"""

SPLIT = """
def my_split(word, merges):
    parts = list(word)
    while True:
        fits = [m for m in merges if m in set(pairwise(parts))]
        if not fits:
            return parts
        made = []
        for part in parts:
            if made and (made[-1], part) == fits[0]:
                made[-1] += part
            else:
                made.append(part)
        parts = made
"""

CLAIMS = """
def my_claims(q, tokens, drawn):
    rows = []
    for n in range(len(drawn)):
        sums = Counter()
        for p, token in zip(q, tokens):
            if token.startswith(drawn[:n]) and len(token) > n:
                sums[token[n]] += p
        rows.append({key: p / sums.total() for key, p in sums.items()})
    return rows
"""


def changed(source, old, new):
    """An answer with one place changed."""
    assert source.count(old) == 1, old
    return source.replace(old, new)


RIGHT = {
    0: [
        NEXT,
        "from nanogpt.course.chapter_32 import shares as my_next_letter",
        # with every letter as a key, and NumPy numbers
        """
def my_next_letter(q, tokens, begun):
    q = np.array(q) * [token[:len(begun)] == begun for token in tokens]
    q = q / q.sum()
    n = len(begun)
    rests = [token[n:n + 1] for token in tokens]
    return {key: sum(p for p, rest in zip(q, rests) if rest == key) for key in ["", *"abcxyz"]}
""",
        # by the package's own
        """
def my_next_letter(q, tokens, begun):
    spelling = pairs.Spelling(tokens, "abc")
    ends, letters = spelling.after(np.array(q)[spelling.order], begun)
    all_of_them = ends + letters.sum()
    return {"": ends / all_of_them} | dict(zip("abc", letters / all_of_them))
""",
    ],
    1: [
        SPLIT,
        # merge after merge, each once: what a merge joins was made before it
        """
def my_split(word, merges):
    parts = list(word)
    for left, right in merges:
        i = 0
        while i < len(parts) - 1:
            if (parts[i], parts[i + 1]) == (left, right):
                parts[i:i + 2] = [left + right]
            i += 1
    return parts
""",
    ],
    2: [
        CLAIMS,
        # from the turn's answer, without the end
        """
def my_claims(q, tokens, drawn):
    rows = []
    for n in range(len(drawn)):
        row = naive_next_letter(q, tokens, drawn[:n])
        ends = row.pop("", 0)
        rows.append({key: p / (1 - ends) for key, p in row.items()})
    return rows
""",
    ],
}

WRONG = {
    0: [
        (  # not divided
            changed(NEXT, "p / total for", "p for"),
            "divide by what all tokens",
        ),
        (  # the token that ends is left out
            changed(
                NEXT,
                "if token.startswith(begun):",
                "if token.startswith(begun) and token != begun:",
            ),
            "it may end here",
        ),
        (  # left out, but divided by all
            changed(
                NEXT, "for key, p in sums.items()}", 'for key, p in sums.items() if key != ""}'
            ),
            "under '', is nothing",
        ),
        (  # the whole rest is the key
            changed(NEXT, "[len(begun):][:1]", "[len(begun):]"),
            "ask for the next letter only",
        ),
        (  # wherever it stands
            changed(NEXT, "token.startswith(begun)", "begun in token"),
            "came out instead of",
        ),
        (changed(NEXT, "token[len(begun):]", "token.replace(begun, '')"), "came out instead"),
        (  # its last letter
            changed(NEXT, "[len(begun):][:1]", "[len(begun):][-1:]"),
            "counts for the letter that it goes on with",
        ),
        (  # the tokens are counted
            changed(NEXT, "sums.get(key, 0) + p", "sums.get(key, 0) + 1"),
            "came out instead of",
        ),
        (  # the likeliest only
            changed(NEXT, "return {key", "return {max(sums, key=sums.get): 1.0}\n    return {key"),
            "came out instead of",
        ),
        (  # a list
            changed(
                NEXT, "return {key: p / total for key, p in sums.items()}", "return sums.values()"
            ),
            "not a dictionary",
        ),
    ],
    1: [
        (  # the longest token that fits, from the left
            """
def my_split(word, merges):
    known, parts = {a + b for a, b in merges} | set(word), []
    while word:
        n = max(n for n in range(1, len(word) + 1) if word[:n] in known)
        parts.append(word[:n])
        word = word[n:]
    return parts
""",
            "and should be",
        ),
        (  # the leftmost pair first
            """
def my_split(word, merges):
    parts = list(word)
    while True:
        fits = [i for i, pair in enumerate(pairwise(parts)) if pair in merges]
        if not fits:
            return parts
        parts[fits[0]:fits[0] + 2] = ["".join(parts[fits[0]:fits[0] + 2])]
""",
            "and should be",
        ),
        (  # the last merge first
            changed(SPLIT, "for m in merges if", "for m in reversed(merges) if"),
            "and should be",
        ),
        ("def my_split(word, merges):\n    return [word]", "and should be"),
    ],
    2: [
        (  # the token's probability
            """
def my_claims(q, tokens, drawn):
    p = q[tokens.index(drawn)]
    return [{letter: p} for letter in drawn]
""",
            "sums to",
        ),
        (  # with the tokens that would have ended
            """
def my_claims(q, tokens, drawn):
    return [naive_next_letter(q, tokens, drawn[:n]) | {"": 0} for n in range(len(drawn))]
""",
            "the token that would have ended there is out",
        ),
        (  # the first letter's, again and again
            changed(CLAIMS, "token.startswith(drawn[:n]) and len(token) > n", "len(token) > n"),
            "drawn from another row",
        ),
        (changed(CLAIMS, "drawn[:n]", "drawn[: min(n, 2)]"), "drawn from another row"),
        (  # one row for all
            changed(CLAIMS, "return rows", "return rows[:1]"),
            "one a letter",
        ),
    ],
}
