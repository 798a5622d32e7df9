"""Answers to the turn (0) and exercises of chapter 31 that must pass, and some that must not."""

TURN = """
def my_pasts(past, tokens, parents, after):
    pasts = [past]
    for token, parent in zip(tokens, parents):
        pasts.append(after(pasts[parent + 1], token))
    return pasts
"""

HELD = """
def my_held_back(reply, stops):
    waiting = [stop[:n] for stop in stops for n in range(1, len(stop))]
    held = max([len(x) for x in waiting if reply.endswith(x)], default=0)
    for half in range(4):
        try:
            reply[: len(reply) - half].decode()
            return max(held, half)
        except UnicodeDecodeError:
            pass
"""

RIGHT = {
    0: [
        TURN,
        # each from the root, along its path
        """
def my_pasts(past, tokens, parents, after):
    def of(node):
        return past if node == -1 else after(of(parents[node]), tokens[node])

    return [of(node) for node in range(-1, len(tokens))]
""",
        # a dictionary of nodes, and a tuple
        """
def my_pasts(past, tokens, parents, after):
    known = {-1: past}
    for node, token in enumerate(tokens):
        known[node] = after(known[parents[node]], token)
    return tuple(known.values())
""",
    ],
    1: [
        """
def my_held_back(reply, stops):
    waiting = [stop[:n] for stop in stops for n in range(1, len(stop))]
    held = max([len(x) for x in waiting if reply.endswith(x)], default=0)
    while reply[: len(reply) - held].decode(errors="replace").endswith("\N{REPLACEMENT CHARACTER}"):
        held += 1
    return held
""",
        """
def my_held_back(reply, stops):
    held = 0
    for n in range(1, len(reply) + 1):
        end = reply[-n:]
        if any(stop.startswith(end) and stop != end for stop in stops):
            held = n
    for n in range(1, min(4, len(reply)) + 1):
        first = reply[-n]
        if first >= 0xC0:  # a letter of several bytes begins here
            size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return max(held, n) if n < size else held
        if first < 0x80:
            break
    return held
""",
    ],
    2: [
        """
def my_forced(grammar, state, most):
    tokens = []
    while len(tokens) < most and grammar.allowed[state].sum() == 1:
        tokens.append(int(grammar.allowed[state].argmax()))
        state = int(grammar.next[state, tokens[-1]])
    return tokens
""",
        """
def my_forced(grammar, state, most):
    choices = [t for t in range(grammar.vocab_size) if grammar.allowed[state, t]]
    if grammar.over[state] or len(choices) != 1 or most == 0:
        return ()
    return (*choices, *my_forced(grammar, grammar.next[state, choices[0]], most - 1))
""",
    ],
}

WRONG = {
    0: [
        (  # the reply's for all
            """
def my_pasts(past, tokens, parents, after):
    return [past] * (len(tokens) + 1)
""",
            "yours all have the same past",
        ),
        (  # a chain, whatever the parents
            TURN.replace(", parent in zip(tokens, parents)", " in tokens").replace(
                "parent + 1", "-1"
            ),
            "which need not be the guess before it in the list",
        ),
        (  # no row for the current token
            TURN.replace("return pasts", "return pasts[1:]"),
            "that of the current token, and one for each guess",
        ),
        (  # before the guess instead of after it
            """
def my_pasts(past, tokens, parents, after):
    pasts = [past]
    for token in tokens:
        pasts.append(after(pasts[-1], token))
    return [past, *pasts[:-1]]
""",
            "a guess's own row comes after the guess itself, too",
        ),
        (  # its own token alone
            """
def my_pasts(past, tokens, parents, after):
    return [past] + [after(past, token) for token in tokens]
""",
            "what comes before the parent belongs to the past as well",
        ),
        (  # the parent's index, without the row of the current token
            TURN.replace("parent + 1", "max(parent, 0)"),
            "row",
        ),
        (  # the parent's own row, one too early
            TURN.replace("parent + 1", "parent"),
            "the row of node j is at j + 1",
        ),
        (  # takes the guesses away
            """
def my_pasts(past, tokens, parents, after):
    pasts = [past]
    while tokens:
        pasts.append(after(pasts[parents.pop(0) + 1], tokens.pop(0)))
    return pasts
""",
            "changed in place",
        ),
        (  # takes it for a tuple
            TURN.replace("after(pasts[parent + 1], token)", "(*pasts[parent + 1], token)"),
            "only after(past, token) can add",
        ),
        (  # all tokens at once
            """
def my_pasts(past, tokens, parents, after):
    return [past] + [after(past, tokens[: i + 1]) for i in range(len(tokens))]
""",
            "one token at a time",
        ),
    ],
    1: [
        (HELD.replace("max(held, half)", "held"), "half a letter"),  # stops only, as for letters
        (HELD.replace("max(held, half)", "half"), "may still become a stop"),  # halves only
        (HELD.replace("max(held, half)", "min(len(reply), held + half)"), "must wait"),  # their sum
        (HELD.replace("range(4)", "range(3)"), "return a number"),  # no letter of four bytes
        (  # the first beginning that fits
            """
def my_held_back(reply, stops):
    half = 0
    while reply[: len(reply) - half].decode(errors="replace").endswith("\N{REPLACEMENT CHARACTER}"):
        half += 1
    for n in range(1, len(reply) + 1):
        if any(stop.startswith(reply[-n:]) and len(stop) > n for stop in stops):
            return max(n, half)
    return half
""",
            "may still become a stop",
        ),
    ],
    2: [
        (  # one at most
            """
def my_forced(grammar, state, most):
    if most and grammar.allowed[state].sum() == 1:
        return [int(grammar.allowed[state].argmax())]
    return []
""",
            "must come",
        ),
        (  # ends where it may end, not where it must
            RIGHT[2][0].replace("grammar.allowed[state].sum() == 1", "not grammar.matches[state]"),
            "must come",
        ),
        (  # stays where it is
            """
def my_forced(grammar, state, most):
    one = grammar.allowed[state].sum() == 1
    return [int(grammar.allowed[state].argmax())] * (most * bool(one))
""",
            "must come",
        ),
        (  # how many, not which
            """
def my_forced(grammar, state, most):
    n = 0
    while n < most and grammar.allowed[state].sum() == 1:
        state, n = int(grammar.next[state, grammar.allowed[state].argmax()]), n + 1
    return n
""",
            "return a list",
        ),
    ],
}
