"""Chapter 15: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_medusa_loss(logits, tokens):
    loss = 0.0
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        loss += 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss
"""

DISTANCE = """
def my_distance(logits, texts, most):
    losses = []
    for far in range(1, most + 1):
        guesses, labels = logits[:, :-far], texts[:, far:]
        loss = F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
        losses.append(float(loss))
    return 1 + losses.index(min(losses))
"""

TOLD = """
def my_told(q, row, base):
    weight = torch.nan_to_num(q * row / base, nan=0.0, posinf=0.0)
    return weight / weight.sum() if weight.any() else q
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts.parallel import medusa_loss as my_medusa_loss
""",
        """
def my_medusa_loss(logits, tokens):
    B, T, n_heads, V = logits.shape
    total = 0.0
    for head in range(n_heads):
        ahead = head + 2
        guesses = logits[:, : T - ahead, head].reshape(-1, V)
        total = total + 0.8 ** (head + 1) * F.cross_entropy(guesses, tokens[:, ahead:].reshape(-1))
    return total
""",
        """
def my_medusa_loss(logits, tokens):
    T, losses = tokens.shape[1], []
    for i in range(1, logits.shape[2] + 1):
        places = torch.arange(T - 1 - i)
        said = torch.log_softmax(logits[:, places, i - 1], dim=-1)
        true = said.gather(-1, tokens[:, places + 1 + i].unsqueeze(-1))
        losses.append(-true.mean() * 0.8**i)
    return torch.stack(losses).sum()
""",
        """
def my_medusa_loss(logits, tokens):
    def of(i):
        labels = torch.full_like(tokens, -100)  # cross_entropy leaves these out
        labels[:, : -1 - i] = tokens[:, 1 + i :]
        return F.cross_entropy(logits[:, :, i - 1].transpose(1, 2), labels)

    return sum(0.8**i * of(i) for i in range(1, logits.shape[2] + 1))
""",
    ],
    1: [
        """
def my_distance(logits, texts, most):
    said = torch.log_softmax(logits, -1)
    means = []
    for far in range(1, most + 1):
        true = said[:, :-far].gather(-1, texts[:, far:, None])
        means.append(true.mean())
    return torch.stack(means).argmax() + 1
""",
        """
def my_distance(logits, texts, most):
    def loss(far):
        T = texts.shape[1]
        return F.cross_entropy(logits[:, : T - far].transpose(1, 2), texts[:, far:]).item()

    return min(range(1, most + 1), key=loss)
""",
    ],
    2: [
        """
def my_told(q, row, base):
    out = []
    for a, b, c in zip(q.tolist(), row.tolist(), base.tolist()):
        out.append(a * b / c if c else 0.0)
    return [x / sum(out) for x in out] if sum(out) else q
""",
        TOLD,
        """
def my_told(q, row, base):  # in place
    before = q.clone()
    q *= row
    q[base > 0] /= base[base > 0]
    q[base == 0] = 0
    q /= q.sum()
    return before if q.isnan().any() else q
""",
    ],
}

WRONG = {
    0: [
        (
            """
def my_medusa_loss(logits, tokens):  # head 1 repeats lm_head
    loss = 0.0
    for i in range(logits.shape[2]):
        offset = i + 1
        guesses, labels = logits[:, :-offset, i], tokens[:, offset:]
        loss += 0.8**offset * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss
""",
            "which lm_head already predicts",
        ),
        (
            TURN.replace(
                "[:, : -1 - i, i - 1], tokens[:, 1 + i :]",
                "[:, : -2 - i, i - 1], tokens[:, 2 + i :]",
            ),
            "a place too far",
        ),
        (TURN.replace("0.8**i * F", "F"), "weights are missing"),
        (TURN.replace("logits.shape[2]", "min(3, logits.shape[2])"), "compare your labels"),
        (
            """
def my_medusa_loss(logits, tokens):
    loss = 0.0
    for i in range(logits.shape[2]):
        guesses, labels = logits[:, : -2 - i, i], tokens[:, 2 + i :]
        loss += 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss
""",
            "weights start at 1",
        ),
        (
            """
def my_medusa_loss(logits, tokens):
    loss = 0.0
    for i in range(1, logits.shape[2] + 1):
        labels = tokens.roll(-1 - i, 1)
        loss += 0.8**i * F.cross_entropy(logits[:, :, i - 1].flatten(0, 1), labels.flatten())
    return loss
""",
            "wrap around",
        ),
        (
            TURN.replace(
                "(guesses.flatten(0, 1), labels.flatten())",
                "(guesses.flatten(0, 1), labels.flatten()).item()",
            ),
            "no gradient",
        ),
        (
            """
def my_medusa_loss(logits, tokens):  # the sum so far is a number, so only the last head learns
    loss = 0.0
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        its = 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
        loss = its if i == 1 else loss.item() + its
    return loss
""",
            "head 1 of 5 gets no gradient",
        ),
        (
            """
def my_medusa_loss(logits, tokens):  # only the first head learns
    loss = 0.0
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        its = 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
        loss = its if i == 1 else loss + its.item()
    return loss
""",
            "head 2 of 5 gets no gradient",
        ),
        (
            """
def my_medusa_loss(logits, tokens):  # the weights are added to the number, not to the gradient
    loss = 0.0
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        its = F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
        loss = loss + its + (0.8**i - 1) * its.detach()
    return loss
""",
            "head 1's gradient is not",
        ),
        (
            """
def my_medusa_loss(logits, tokens):  # a gradient, but of something else
    with torch.no_grad():
        loss = 0.0
        for i in range(1, logits.shape[2] + 1):
            guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
            loss += 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss + torch.zeros(1, requires_grad=True).sum()
""",
            "head 1 of 5 gets no gradient",
        ),
        (
            TURN.replace(
                "[:, : -1 - i, i - 1], tokens[:, 1 + i :]",
                "[:, 1 + i :, i - 1], tokens[:, : -1 - i]",
            ),
            "labels lie ahead",
        ),
        (
            """
def my_medusa_loss(logits, tokens):
    losses = []
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        losses.append(0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten()))
""",
            "it is one number",
        ),
    ],
    1: [
        (
            """
def my_distance(logits, texts, most):
    losses = []
    for far in range(1, most + 1):
        labels = texts.roll(-far, 1)  # the text's beginning at its end
        losses.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item())
    return 1 + losses.index(min(losses))
""",
            "not 3",
        ),
        (DISTANCE.replace("1 + losses", "losses"), "looks 1 ahead"),
        (
            DISTANCE.replace("flatten())", "flatten(), reduction='sum')"),
            "sums are small where few places have a label",
        ),
        (  # the same places for all
            DISTANCE.replace(":-far]", ": texts.shape[1] - most]").replace(
                "far:]", "far : texts.shape[1] - most + far]"
            ),
            "sums are small where few places have a label",
        ),
        (  # a row's logits may all be high
            DISTANCE.replace(
                "F.cross_entropy(guesses.flatten(0, 1), labels.flatten())",
                "-guesses.gather(-1, labels[..., None]).mean()",
            ),
            "looks 2 ahead",
        ),
        (DISTANCE.replace("[:,", "[:1,"), "looks 2 ahead"),  # the first text
        (DISTANCE.replace("most + 1", "6"), "means over the places"),
        (
            """
def my_distance(logits, texts, most):
    right = []
    for far in range(1, most + 1):
        hits = logits[:, :-far].argmax(-1) == texts[:, far:]
        right.append(hits.float().mean().item())
    return 1 + right.index(max(right))
""",
            "the lower cross-entropy",
        ),
    ],
    2: [
        (
            """
def my_told(q, row, base):
    return q * row / (q * row).sum()
""",
            "three letters",
        ),
        (
            TOLD.replace("if weight.any() else q", "").replace("posinf=0.0", ""),
            "a token that never occurs",
        ),
        (TOLD.replace("weight / weight.sum() if weight.any() else q", "weight"), "after an A"),
        (TOLD.replace("if weight.any() else q", ""), "nothing is left"),
        (TOLD.replace(".any()", ".sum() > 1e-3"), "after an A"),
        (TOLD.replace("base,", "(base + 1e-9),"), "a rare token"),
    ],
}
