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

CONTEXT = """
def my_context_for(share, W, B, kappa, w):
    per_token = B * kappa
    guess = W + per_token * w
    return max(w, (guess / share - W) / per_token)
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
        CONTEXT,
        """
def my_context_for(share, W, B, kappa, w):
    S = w
    if W + B * w * kappa > share * (W + B * w * kappa):
        S = (W * (1 - share) + B * w * kappa) / (share * B * kappa)
    return S
""",
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
        (
            """
def my_round_groups(weight, bits, group):
    out, n = weight.shape
    return round_to(weight.reshape(-1, out * group), bits).reshape(out, n)
""",
            "group",
        ),
        (
            """
def my_round_groups(weight, bits, group):
    return round_to(weight.reshape(-1, group), bits)
""",
            "shape",
        ),
    ],
    2: [
        ("def my_context_for(share, W, B, kappa, w):\n    return W / (B * kappa)", "costs"),
        (slip("guess = W + per_token * w", "guess = per_token * w", CONTEXT), "costs"),
        (slip("(guess / share - W) / per_token", "guess / share / per_token", CONTEXT), "costs"),
    ],
}
