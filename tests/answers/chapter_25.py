"""Chapter 25: right answers to its turn and exercises, and wrong ones that must be refused."""

RIGHT = {
    0: [
        """
def my_slots(table, length, n, size):
    return [table[i // size] * size + i % size for i in range(length, length + n)]
""",
        """
def my_slots(table, length, n, size):
    all_slots = [block * size + place for block in table for place in range(size)]
    return tuple(all_slots[length : length + n])
""",
        """
def my_slots(table, length, n, size):
    entries = torch.arange(length, length + n)
    return torch.tensor(table)[entries // size] * size + entries % size
""",
        """
def my_slots(table, length, n, size):
    block, place = np.divmod(np.arange(length, length + n), size)
    return np.array(table)[block] * size + place
""",
    ],
    1: [
        """
def my_wanted(length, held, K, size):
    need = (length + K + size) // size
    return need - held if need > held else 0
""",
        """
def my_wanted(length, held, K, size):
    more = 0
    while (held + more) * size < length + 1 + K:
        more += 1
    return more
""",
    ],
    2: [
        """
def my_keys(tokens, size):
    keys, before = [], None
    for start in range(0, len(tokens) - size + 1, size):
        before = (before, *tokens[start : start + size])
        keys.append(before)
    return keys
""",
        """
def my_keys(tokens, size):
    return [str(tokens[: (n + 1) * size]) for n in range(len(tokens) // size)]
""",
        """
def my_keys(tokens, size):
    keys = []
    for end in range(size, len(tokens) + 1, size):
        before = keys[-1] if keys else b""
        own = np.array(tokens[end - size : end], dtype=np.int64).tobytes()
        keys.append(hashlib.sha256(before + own).digest())
    return keys
""",
        """
def my_keys(tokens, size):
    def keys():
        before = 0
        for start in range(0, len(tokens) // size * size, size):
            before = hash((before, *tokens[start : start + size]))
            yield before

    return keys()
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_slots(table, length, n, size):
    return [table[i // size] * size + i % size for i in range(n)]
""",
            "the text's first entries",
        ),
        (
            """
def my_slots(table, length, n, size):
    first = table[length // size] * size + length % size
    return list(range(first, first + n))
""",
            "the table's next block",
        ),
        (
            """
def my_slots(table, length, n, size):
    return [table[i // size] + i % size for i in range(length, length + n)]
""",
            "begins at slot",
        ),
        (
            """
def my_slots(table, length, n, size):
    return [table[i // size] for i in range(length, length + n)]
""",
            "a slot is a place in a block",
        ),
        (
            """
def my_slots(table, length, n, size):
    return list(range(length, length + n))
""",
            "numbers of entries",
        ),
        (
            """
def my_slots(table, length, n, size):
    long = [*table, 0]
    return [long[i // size] * size + i % size for i in range(length + 1, length + n + 1)]
""",
            "one too far",
        ),
        (
            """
def my_slots(table, length, n, size):
    return [table[i // size] * size + i % size for i in range(length, length + n - 1)]
""",
            "one is wanted for each",
        ),
        (
            """
def my_slots(table, length, n, size):
    [table[i // size] * size + i % size for i in range(length, length + n)]
""",
            "nothing came",
        ),
        (
            """
def my_slots(table, length, n, size):
    slots = []
    for i in range(length, length + n):
        slots.append(table[i // size] * size + i % size)
    table.append(99)
    return slots
""",
            "table is changed",
        ),
        (
            """
def my_slots(table, length, n, size):
    return table[length // size] * size + length % size
""",
            "no list of whole numbers",
        ),
    ],
    1: [
        (
            """
def my_wanted(length, held, K, size):
    return max(0, -(-(length + K) // size) - held)
""",
            "K + 1 does not",
        ),
        (
            """
def my_wanted(length, held, K, size):
    return -(-(length + K + 1) // size) - held
""",
            "reserved already",
        ),
        (
            """
def my_wanted(length, held, K, size):
    return int(length % size + K + 1 > size)
""",
            "blocks for",
        ),
    ],
    2: [
        (
            """
def my_keys(tokens, size):
    return [tuple(tokens[i : i + size]) for i in range(0, len(tokens) - size + 1, size)]
""",
            "the same tokens, but later",
        ),
        (
            """
def my_keys(tokens, size):
    return [(n, tuple(tokens[n * size : (n + 1) * size])) for n in range(len(tokens) // size)]
""",
            "token 0 is another: block 1 needs a new key",
        ),
        (
            """
def my_keys(tokens, size):
    return [(end, sum(tokens[:end])) for end in range(size, len(tokens) + 1, size)]
""",
            "two tokens of the first block change places: block 0",
        ),
        (
            """
def my_keys(tokens, size):
    return [tuple(sorted(tokens[:end])) for end in range(size, len(tokens) + 1, size)]
""",
            "two tokens of the first block change places: block 0",
        ),
        (
            """
def my_keys(tokens, size):
    ends = range(size, len(tokens) + 1, size)
    return [(tuple(sorted(tokens[: end - size])), *tokens[end - size : end]) for end in ends]
""",
            "change places: block 1 needs a new key",
        ),
        (
            """
def my_keys(tokens, size):
    return [
        (tokens[0], tokens[end - size], end) for end in range(size, len(tokens) + 1, size)
    ]
""",
            "token 1 is another: block 0",
        ),
        (
            """
def my_keys(tokens, size):
    own = [tuple(tokens[end - size : end]) for end in range(size, len(tokens) + 1, size)]
    return [(n, own[max(0, n - 1)], block) for n, block in enumerate(own)]
""",
            "token 0 is another: block 2 needs a new key",
        ),
        (
            """
def my_keys(tokens, size):
    ends = range(size, len(tokens) + 1, size)
    return ["".join(map(str, tokens[:end])) for end in ends]
""",
            "1, 12 and 11, 2",
        ),
        (
            """
def my_keys(tokens, size):
    return [tuple(tokens) + (end,) for end in range(size, len(tokens) + 1, size)]
""",
            "the same six tokens",
        ),
        (
            """
def my_keys(tokens, size):
    return [tuple(tokens[: i + size]) for i in range(0, len(tokens), size)]
""",
            "only full ones count",
        ),
        (
            """
def my_keys(tokens, size):
    return [object() for _ in range(len(tokens) // size)]
""",
            "the same six tokens",
        ),
    ],
}
