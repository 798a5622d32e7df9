"""Chapter 20: right answers to its turn and exercises, and wrong ones that must be refused."""

TURN = """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    loss = F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
    return loss
"""

ROOTS = """
def my_least_alpha(K, guess, wide):  # the roots of 1 + α + … + α^K - cost
    cost = K * guess + wide
    roots = np.roots([1.0] * K + [1 - cost])
    found = [r.real for r in roots if abs(r.imag) < 1e-9 and -1e-9 <= r.real <= 1 + 1e-9]
    return found[0] if found else np.inf
"""

RIGHT = {
    0: [
        """
from nanogpt.drafts.eagle import mtp_loss as my_mtp_loss
""",
        """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    logits = head.logits(out)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
""",
        """
def my_mtp_loss(head, hidden, tokens):
    said, T = [], hidden.shape[1]
    for row in range(len(tokens)):
        out, _ = head(hidden[row : row + 1, : T - 1], tokens[row : row + 1, 1:T])
        logs = torch.log_softmax(head.logits(out)[0], dim=-1)
        said += [-logs[i, int(tokens[row, i + 2])] for i in range(T - 1)]
    return torch.stack(said).mean()
""",
        """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    labels = torch.full_like(tokens[:, 1:], -100)  # cross_entropy leaves these out
    labels[:, :-1] = tokens[:, 2:]
    return F.cross_entropy(head.logits(out).transpose(1, 2), labels)
""",
        """
def my_mtp_loss(head, hidden, tokens):
    (out,) = head.unrolled(hidden[:, :-1], tokens[:, 1:-1], 1)
    logs = head.logits(out).log_softmax(-1)
    return -logs.gather(-1, tokens[:, 2:, None]).mean().view(1)
""",
        """
def my_mtp_loss(head, hidden, tokens):
    hidden, tokens = hidden.clone(), tokens.clone()  # its own: it may do with them what it likes
    hidden[:, -1], tokens[:, 0] = 0, 0
    out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
    ],
    1: [
        """
def my_alpha(p, q):
    return 1 - (p - q).abs().sum() / 2
""",
        """
def my_alpha(p, q):
    return 1 - (p - q).clamp(min=0).sum()  # as much is too little as is too much
""",
        """
def my_alpha(p, q):
    return sum(min(a, b) for a, b in zip(p.tolist(), q.tolist()))
""",
    ],
    2: [
        """
import math

def my_least_alpha(K, guess, wide):
    cost, low, high = K * guess + wide, 0.0, 1.0
    if cost > K + 1:
        return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        gains = sum(middle**d for d in range(K + 1)) >= cost
        low, high = (low, middle) if gains else (middle, high)
    return high
""",
        """
def my_least_alpha(K, guess, wide):
    alphas = np.linspace(0, 1, 100_001)
    tokens = sum(alphas**d for d in range(K + 1))
    pays = tokens >= K * guess + wide
    return alphas[pays][0] if pays.any() else float("inf")
""",
        ROOTS,
    ],
}

WRONG = {
    0: [
        (TURN.replace("1:-1]", ":-2]"), "meets its own token"),
        (
            TURN.replace("[:, :-1]", "").replace("1:-1]", "1:]").replace("2:]", "1:]"),
            "the very token that it is given",
        ),
        (TURN.replace("-1]", "-2]").replace("2:]", "3:]"), "a place too far"),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    labels = tokens[:, 1:].roll(-1, 1)
    return F.cross_entropy(head.logits(out).flatten(0, 1), labels.flatten())
""",
            "wrap around",
        ),
        (TURN.replace("[:, :-1]", "[:, 1:]"), "the state is a place too far"),
        (TURN.replace("flatten())", "flatten(), reduction='sum')"), "a mean over all places"),
        (TURN.replace("return", "return 0.3 *"), "λ is not part"),
        (TURN.replace("return loss", "return loss.item()"), "no gradient"),
        (TURN.replace("[:, :-1]", ""), "equally many"),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    head(hidden[:, :-1], tokens[:, 1:-1])
""",
            "it is one number",
        ),
        (TURN.replace("[:, :-1]", "[:, :-1].detach()"), "no gradient reaches the target's states"),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    with torch.no_grad():
        out, _ = head(hidden[:, :-1], tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
            "no gradient reaches the target's states",
        ),
        (
            TURN.replace("return loss", "return torch.tensor(loss.item(), requires_grad=True)"),
            "no gradient reaches the target's states",
        ),
        (
            RIGHT[0][1].replace(
                "head.logits(out", "F.linear(head.ln_f(out), head.shared[1].weight.detach()"
            ),
            "no gradient reaches lm_head",
        ),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    states = torch.cat([hidden[:, :4], hidden[:, 4:-1].detach()], dim=1)
    out, _ = head(states, tokens[:, 1:-1])
    return F.cross_entropy(head.logits(out).flatten(0, 1), tokens[:, 2:].flatten())
""",
            "some of the places are cut off",
        ),
        (
            TURN.replace("    return", "    loss.backward()\n    return"),
            "leave .backward() to the training",
        ),
        (TURN.replace("    return", "    hidden *= 0.5\n    return"), "changed hidden itself"),
        (
            """
def my_mtp_loss(head, hidden, tokens):
    out, _ = head(hidden, tokens[:, 1:])
    tokens[:, -1] = -100  # nothing is asked for in the last place
    labels = torch.cat([tokens[:, 2:], tokens[:, -1:]], dim=1)
    return F.cross_entropy(head.logits(out).flatten(0, 1), labels.flatten())
""",
            "changed tokens itself",
        ),
    ],
    1: [
        (
            """
def my_alpha(p, q):
    distance = (p - q).abs().sum() / 2  # the total variation
    return 1 - distance / 2
""",
            "half of the distance",
        ),
        (
            """
def my_alpha(p, q):
    return (p * q).sum()
""",
            "three letters: 0.280, not 0.600",
        ),
        (
            """
def my_alpha(p, q):
    return 1 - (p - q).abs().sum()
""",
            "three letters",
        ),
        (
            """
def my_alpha(p, q):
    return 1 - (p - q).abs().max()  # only the worst letter
""",
            "two letters too many",
        ),
        (
            """
def my_alpha(p, q):
    return 1 - (q - p).max()
""",
            "two letters too many",
        ),
    ],
    2: [
        (
            """
def my_least_alpha(K, guess, wide):
    return guess + wide - 1  # right for a single guess only
""",
            "K = 3",
        ),
        (
            """
def my_least_alpha(K, guess, wide):
    cost = K * guess + wide
    return min(1.0, max(0.0, np.roots([1.0] * K + [1 - cost]).real.max()))
""",
            "no α pays",
        ),
        (ROOTS.replace("1 + 1e-9", "1 - 1e-9"), "K = 1, guess 0.5, wide 1.5: some α from 0 to 1"),
        (ROOTS.replace("-1e-9 <= r", "1e-9 <= r"), "guess 0.0, wide 1.0: some α from 0 to 1 pays"),
        (
            """
def my_least_alpha(K, guess, wide):
    return (K * guess + wide - 1) / K  # each guess as if it were always reached
""",
            "pays back nothing",
        ),
        (
            """
def my_least_alpha(K, guess, wide):
    alphas = np.linspace(0, 1, 10_001)
    pays = sum(alphas**d for d in range(K + 1)) >= guess + wide  # one guess is paid for
    return alphas[pays][0] if pays.any() else np.inf
""",
            "K = 3",
        ),
    ],
}
