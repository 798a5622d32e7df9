"""Chapter 27: right answers to its turn and exercises, and wrong ones that must be refused."""

TEMPLATE = """
def my_round_to(weight, bits):
    top = 2 ** (bits - 1) - 1
    rows = []
    for row in weight:
        step = row.abs().max() / top
        rows.append(torch.round(row / step) * step if step > 0 else row)
    return torch.stack(rows)
"""


def slip(old, new, code=TEMPLATE):
    """The right answer with one line changed."""
    assert code.count(old) == 1
    return code.replace(old, new)


ZERO_POINT = """
def my_round_to(weight, bits):
    rows = []
    for row in weight:
        low, high = row.min(), row.max()
        step = (high - low) / (2**bits - 1) if high > low else 1.0
        zero = torch.round(torch.as_tensor(-low / step))
        stored = (torch.round(row / step) + zero).clamp(0, 2**bits - 1)
        rows.append((stored - zero) * step)
    return torch.stack(rows)
"""

GROUPS = """
def my_round_groups(weight, bits, group):
    rows = []
    for row in weight:
        parts = row.split(group)
        rows.append(torch.cat([round_to(part[None], bits)[0] for part in parts]))
    return torch.stack(rows)
"""

CHOICE = """
def my_copy(B, S, least, of_bits, of_window):
    best = None
    for bits, a in of_bits.items():
        for w, b in of_window.items():
            reads = W * bits / 16 + B * kappa * min(S, w or S)
            if a * b >= least and (best is None or reads < best[0]):
                best = reads, bits, w
    return best[1:]
"""

IN_TURN = """
def my_copy(B, S, least, of_bits, of_window):
    bits = min(b for b in of_bits if of_bits[b] >= least)
    rest = [w for w in of_window if of_bits[bits] * of_window[w] >= least]
    return bits, min(rest, key=lambda w: w or S)
"""

WINDOW_FIRST = """
def my_copy(B, S, least, of_bits, of_window):
    w = min((w for w in of_window if of_window[w] >= least), key=lambda w: w or S)
    return min(b for b in of_bits if of_bits[b] * of_window[w] >= least), w
"""

ONE_OR_THE_OTHER = """
def my_copy(B, S, least, of_bits, of_window):
    if S < W / (B * kappa):
        return min(b for b in of_bits if of_bits[b] >= least), None
    return 16, min((w for w in of_window if of_window[w] >= least), key=lambda w: w or S)
"""

RIGHT = {
    0: [
        "from nanogpt.drafts.itself import round_to as my_round_to",
        """
def my_round_to(weight, bits):
    W = weight.numpy()
    top = 2 ** (bits - 1) - 1
    step = np.abs(W).max(axis=1, keepdims=True) / top
    step[step == 0] = 1
    return np.rint(W / step) * step
""",
        TEMPLATE,
        """
def my_round_to(weight, bits):
    top = 2 ** (bits - 1) - 1
    made = []
    for row in weight.tolist():
        step = max(abs(x) for x in row) / top
        made.append([round(x / step) * step if step else 0.0 for x in row])
    return made
""",
    ],
    1: [
        GROUPS,
        """
def my_round_groups(weight, bits, group):
    out, n = weight.shape
    return round_to(weight.reshape(-1, group), bits).reshape(out, n)
""",
    ],
    2: [
        CHOICE,
        """
def my_copy(B, S, least, of_bits, of_window):
    def reads(pair):
        return W * pair[0] + 16 * B * kappa * (S if pair[1] is None else min(S, pair[1]))

    kept = [(b, w) for b in of_bits for w in of_window if of_bits[b] * of_window[w] >= least]
    return sorted(kept, key=reads)[0]
""",
        # a window longer than the text costs what None costs, and loses as little
        slip("a * b >= least", "a * (b if (w or S) < S else 1) >= least", CHOICE),
    ],
}

WRONG = {
    0: [
        (
            slip("    rows = []\n", "    rows = []\n    largest = weight.abs().max()\n").replace(
                "row.abs().max()", "largest"
            ),
            "whole matrix",
        ),
        (
            """
def my_round_to(weight, bits):
    top = 2 ** (bits - 1) - 1
    step = weight.abs().amax(dim=0, keepdim=True) / top
    step[step == 0] = 1
    return torch.round(weight / step) * step
""",
            "by column",
        ),
        (slip("2 ** (bits - 1) - 1", "2 ** (bits - 1)"), "a bit for the sign"),
        (slip("2 ** (bits - 1) - 1", "2 ** bits - 1"), "other sign"),
        (slip("torch.round", "torch.trunc"), "cut off"),
        (slip("torch.round", "torch.floor"), "rounded down"),
        (slip(" * step if step > 0", " if step > 0"), "whole multiples"),
        (slip(" if step > 0 else row", ""), "NaN"),
        (slip("row.abs().max()", "row.max()"), "with its sign"),
        ("def my_round_to(weight, bits):\n    return weight", "nothing is rounded"),
        ("def my_round_to(weight, bits):\n    pass", "nothing came"),
        (
            """
def my_round_to(weight, bits):
    step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    step[step == 0] = 1
    return weight.div_(step).round_().mul_(step)
""",
            "was changed",
        ),
        (ZERO_POINT, "zero-point"),
        (slip("row.min(), row.max()", "min(0, row.min()), max(0, row.max())", ZERO_POINT), "zero-"),
        (
            """
def my_round_to(weight, bits):
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-12)
    return ((weight - low) / step).round() * step + low
""",
            "asymmetric",
        ),
    ],
    1: [
        ("def my_round_groups(weight, bits, group):\n    return round_to(weight, bits)", "group"),
        (RIGHT[1][1].replace("group),", "out * group),"), "group"),
        (
            """
def my_round_groups(weight, bits, group):
    return round_to(weight.reshape(-1, group), bits)
""",
            "shape",
        ),
    ],
    2: [
        (slip("a * b >= least", "True", CHOICE), "less than 0.85"),
        (slip("a * b >= least", "min(a, b) >= least", CHOICE), "less than 0.85"),
        (slip("a * b >= least", "a * b > least", CHOICE), "another pair"),
        (IN_TURN, "another pair"),
        (WINDOW_FIRST, "another pair"),
        (ONE_OR_THE_OTHER, "another pair"),
        (slip("B * kappa * min", "kappa * min", CHOICE), "another pair"),
        (slip("W * bits / 16", "W * bits / 32", CHOICE), "another pair"),
        (
            slip("reads < best[0]", "a * b > of_bits[best[1]] * of_window[best[2]]", CHOICE),
            "another pair",
        ),
        ("def my_copy(B, S, least, of_bits, of_window):\n    return 4, 512", "less than 0.85"),
        ("def my_copy(B, S, least, of_bits, of_window):\n    return 4, 256", "no choice"),
    ],
}
