"""Answers to the turn (0) and exercises of chapter 33 that must pass, and some that must not."""

REBUILT = """
def my_rebuilt(S, k, v, g, kept):
    for row in kept:
        S = g[row] * S + torch.outer(k[row], v[row])
    return S
"""

READ = """
def my_read(S, q, k, v, g, parents):
    rows = []
    for node in range(len(parents)):
        out, left, at = 0, 1, node
        while at != -1:
            out = out + left * (q[node] @ k[at]) * v[at]
            left, at = left * g[at], parents[at]
        rows.append(out + left * (q[node] @ S))
    return torch.stack(rows)
"""

ENDS = """
def my_ends(P, T, kept, size, snapshot):
    ends = [n for n in range(P + 1, P + kept + 1) if n % size == 0]
    return [n for n in ends if not snapshot or n == P + T]
"""


def changed(source, old, new):
    """An answer with one place changed."""
    assert source.count(old) == 1, old
    return source.replace(old, new)


RIGHT = {
    0: [
        REBUILT,
        "from nanogpt.course.chapter_33 import rebuilt as my_rebuilt",
        # without a loop
        """
def my_rebuilt(S, k, v, g, kept):
    k, v, g = k[kept], v[kept], g[kept]
    left = torch.cat([g, torch.ones(1, dtype=g.dtype)]).flip(0).cumprod(0).flip(0)
    return left[0] * S + (k * left[1:, None]).T @ v
""",
        # by the package's own
        """
def my_rebuilt(S, k, v, g, kept):
    k, v, log_g = k[kept][None, None], v[kept][None, None], g[kept].log()[None, None]
    return replayed(S[None, None], k, v, log_g)[0, 0]
""",
    ],
    1: [
        READ,
        # a state for each node
        """
def my_read(S, q, k, v, g, parents):
    states = [S]
    for node, parent in enumerate(parents):
        states.append(g[node] * states[parent + 1] + torch.outer(k[node], v[node]))
    return torch.stack([q[i] @ S for i, S in enumerate(states[1:])])
""",
    ],
    2: [
        ENDS,
        # block by block
        """
def my_ends(P, T, kept, size, snapshot):
    if snapshot:
        return [P + T] * (kept == T and (P + T) % size == 0)
    return [*range((P // size + 1) * size, P + kept + 1, size)]
""",
    ],
}

WRONG = {
    0: [
        (changed(REBUILT, "in kept", "in range(len(g))"), "all tokens are in it"),
        (changed(REBUILT, "in kept", "in range(len(kept))"), "not how many"),
        (changed(REBUILT, "g[row] * S", "S"), "nothing fades"),
        (changed(REBUILT, "(k[row], v[row])", "(v[row], k[row])"), "have changed places"),
        (
            changed(
                REBUILT,
                "g[row] * S + torch.outer(k[row], v[row])",
                "g[row] * (S + torch.outer(k[row], v[row]))",
            ),
            "fade first, then write",
        ),
        (changed(REBUILT, "in kept", "in kept[::-1]"), "in the wrong order"),
        (
            changed(REBUILT, "    for", "    S = torch.zeros_like(S)\n    for"),
            "it began with zeros",
        ),
        (changed(REBUILT, "return S", "return S if kept else S * 0"), "is S, as it was"),
        (changed(REBUILT, "return S", "return S[0]"), "a state is (hs, hs)"),
        (changed(REBUILT, "return S", "return None"), "nothing came back"),
        (changed(REBUILT, "return S", "return S.tolist()"), "return a tensor"),
        (  # in place
            REBUILT.replace("= g[row", "*= g[row").replace("row] * S +", "row]\n        S +="),
            "S was changed in place",
        ),
        (changed(REBUILT, "g[row] *", "g[row] ** 2 *"), "one after another, in the order of kept"),
    ],
    1: [
        (changed(READ, "parents[at]", "at - 1"), "from its parent's state"),  # brothers too
        (  # four steps up at most
            changed(READ, "while at", "for _ in range(4):\n            if at").replace(
                "at != -1:\n", "at == -1:\n                break\n"
            ),
            "otherwise",
        ),
        (  # before it fades
            changed(READ, "left, at = left * g[at]", "left, at = left"),
            "faded by its own gate",
        ),
        (changed(READ, "return torch.stack(rows)", "return rows"), "return a tensor"),
        (changed(READ, "torch.stack(rows)", "rows[-1]"), "a row for each node"),
        (  # before it wrote
            changed(
                READ, "out, left, at = 0, 1, node", "out, left, at = 0, g[node], parents[node]"
            ),
            "it reads after it wrote",
        ),
        (  # no number at all, as a logarithm of 0 minus another gives it
            changed(READ, "torch.stack(rows)", "torch.stack(rows) * torch.nan"),
            "reads otherwise",
        ),
    ],
    2: [
        (changed(ENDS, "P + kept + 1", "P + T + 1"), "8 was not reached"),
        (changed(ENDS, "P + kept + 1", "P + kept"), "a block's last"),
        (changed(ENDS, "range(P + 1", "range(P"), "before this pass"),
        (changed(ENDS, "not snapshot or n == P + T", "True"), "does not go back to 8"),
        (changed(ENDS, "not snapshot or n == P + T", "not snapshot"), "the pass ends at 8"),
        (changed(ENDS, "n == P + T", "n == P + kept"), "not where the pass did end"),
        (changed(ENDS, "n == P + T", "kept == T and (P + T) % size == 0"), "goes back to 12"),
        (changed(ENDS, "return [n", "return len(ends) or [n"), "return a list"),
    ],
}
