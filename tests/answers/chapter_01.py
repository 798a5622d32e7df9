"""Answers to the turn and the exercises of chapter 01: right ones of several kinds, wrong ones."""

TURN = """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
    return F.softmax(scores + attn_bias, dim=-1) @ v, (k, v)
"""

RIGHT = {
    0: [
        """
from nanogpt.model import Head

my_head_forward = Head.forward
""",
        """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    scores = torch.einsum("bth,bsh->bts", q, k) / math.sqrt(k.shape[-1])
    scores = scores.masked_fill(attn_bias == -math.inf, -1e9)
    return F.softmax(scores, dim=2) @ v, [k, v]
""",
        """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_bias), (k, v)
""",
        """
def my_head_forward(head, x, attn_bias):
    B, T, _ = x.shape
    q, k, v = (layer(x).double() for layer in (head.query, head.key, head.value))
    out = torch.zeros_like(v)
    for b in range(B):
        for i in range(T):
            seen = [j for j in range(T) if attn_bias[i, j] == 0]
            weights = [math.exp(q[b, i] @ k[b, j] / math.sqrt(k.shape[-1])) for j in seen]
            for j, weight in zip(seen, weights):
                out[b, i] += weight / sum(weights) * v[b, j]
    return out, (k, v)
""",
        """
import numpy as np

def my_head_forward(head, x, attn_bias):
    x = x.numpy()
    q, k, v = (x @ layer.weight.detach().numpy().T for layer in (head.query, head.key, head.value))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(k.shape[-1]) + attn_bias.numpy()
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v, (k, v)
""",
        # a position at a time: no vector is computed twice
        """
def my_head_forward(head, x, attn_bias):
    q, k, v = (
        torch.stack([layer(x[:, t]) for t in range(x.shape[1])], dim=1)
        for layer in (head.query, head.key, head.value)
    )
    scores = torch.einsum("bic,bjc->bij", q, k) * k.shape[-1] ** -0.5 + attn_bias
    return torch.einsum("bij,bjc->bic", scores.softmax(dim=-1), v), (k, v)
""",
    ],
    1: [
        """
def my_parameter_count(config):
    C = config.n_embd
    count = config.vocab_size * C + config.block_size * C  # two tables
    for _ in range(config.n_layer):
        head_size = C // config.n_head
        for _ in range(config.n_head):
            count += 3 * C * head_size
        count += C * C + C  # proj
        count += C * 4 * C + 4 * C  # up
        count += 4 * C * C + C  # down
        count += 2 * (C + C)  # two LayerNorms
    return count + 2 * C + C * config.vocab_size
""",
        """
def my_parameter_count(config):
    V, W, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    return 2 * V * C + W * C + L * (12 * C**2 + 10 * C) + 2 * C
""",
        """
import numpy as np

def my_parameter_count(config):
    C = config.n_embd
    shapes = [(config.vocab_size, C), (config.block_size, C), (C,), (C,), (config.vocab_size, C)]
    block = 3 * [(C, C)] + [(C, C), (C,)] + [(4 * C, C), (4 * C,), (C, 4 * C), (C,)] + 4 * [(C,)]
    return np.sum([np.prod(shape) for shape in shapes + config.n_layer * block])
""",
    ],
    2: [
        """
import numpy as np

def my_bits_and_perplexity(nats):
    bits = nats * np.log2(np.e)
    return [bits, 2**bits]
""",
        """
def my_bits_and_perplexity(nats):
    nats = torch.tensor(nats)
    return nats / torch.tensor(2.0).log(), nats.exp()
""",
    ],
    3: [
        """
def my_sliding_mask(T, width):
    mask = torch.zeros(T, T, dtype=torch.bool)
    for i in range(T):
        mask[i, max(0, i - width + 1) : i + 1] = True
    return mask
""",
        """
import numpy as np

def my_sliding_mask(T, width):
    back = np.arange(T)[:, None] - np.arange(T)
    return (back >= 0) & (back < width)
""",
        """
def my_sliding_mask(T, width):
    return [[j <= i and i - j < width for j in range(T)] for i in range(T)]
""",
    ],
}

WRONG = {
    0: [
        (  # all three dimensions reversed
            """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    scores = q @ k.permute(2, 1, 0) / q.shape[-1] ** 0.5
    return (scores + attn_bias).softmax(dim=-1) @ v, (k, v)
""",
            ".transpose(-2, -1) swaps the last two",
        ),
        (
            """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    return F.softmax(q @ k.transpose(-2, -1) + attn_bias, dim=-1) @ v, (k, v)
""",
            "the scores are not scaled",
        ),
        (TURN.replace("k.shape", "x.shape"), "the scores are scaled by √C"),
        (TURN.replace("dim=-1", "dim=1"), "along which dimension does your softmax run?"),
        (  # forgets the bias
            TURN.replace("scores + attn_bias", "scores"),
            "a row sees what attn_bias hides from it",
        ),
        (  # masks the weights
            """
def my_head_forward(head, x, attn_bias):
    q, k, v = head.query(x), head.key(x), head.value(x)
    weights = F.softmax(q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5, dim=-1)
    return weights.masked_fill(attn_bias < 0, 0) @ v, (k, v)
""",
            "dropped after the softmax",
        ),
        (  # its own mask
            TURN.replace(
                "return",
                "scores = scores.masked_fill(~causal_mask(x.shape[1]), -torch.inf)\n    return",
            ).replace(" + attn_bias", ""),
            "use the bias that you are given",
        ),
        (TURN.replace("q @ k.", "k @ q."), "rows and columns are swapped"),
        (TURN.replace(", (k, v)", ""), "return two: the output, and the pair"),
        (TURN.replace("(k, v)", "(v, k)"), "the keys that you return are not those of head.key"),
        (  # returns the weights
            TURN.replace("(scores + attn_bias, dim=-1) @ v", "(scores + attn_bias, dim=-1)"),
            "the shape of the output is (2, 5, 5)",
        ),
        (
            """
def my_head_forward(head, x, attn_bias):
    x -= x.mean(dim=-1, keepdim=True)
    return head(x, attn_bias)
""",
            "you changed x or attn_bias in place",
        ),
        (  # computes all of it again for each row
            """
def my_head_forward(head, x, attn_bias):
    rows = []
    for i in range(x.shape[1]):
        q, k, v = head.query(x), head.key(x), head.value(x)
        scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        rows.append(((scores + attn_bias).softmax(dim=-1) @ v)[:, i])
    return torch.stack(rows, dim=1), (k, v)
""",
            "head.query computed 50 vectors, and there are 10 new ones",
        ),
        (  # divides by the 4 of the shipped target, whatever the head's size
            TURN.replace("k.shape[-1] ** 0.5", "4"),
            "not the weighted average of the values",
        ),
    ],
    1: [
        (  # no biases anywhere
            RIGHT[1][1].replace("10", "4"),
            "has 215,808 parameters, not 214,272",
        ),
        (  # every head counted at full width
            """
def my_parameter_count(config):
    V, W, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    heads = 3 * config.n_head * C**2
    return 2 * V * C + W * C + L * (heads + 9 * C**2 + 10 * C) + 2 * C
""",
            "has 215,808 parameters",
        ),
        (  # lm_head tied to the embedding
            RIGHT[1][1].replace("return 2 *", "return"),
            "has 215,808 parameters",
        ),
    ],
    2: [
        (
            """
def my_bits_and_perplexity(nats):
    return nats * math.log(2), math.exp(nats)
""",
            "an even bet on 2 characters is 1.0000 bits",
        ),
        (
            """
def my_bits_and_perplexity(nats):
    return nats / math.log(2), 2**nats
""",
            "has perplexity 2",
        ),
        (
            """
def my_bits_and_perplexity(nats):
    return math.exp(nats), nats / math.log(2)
""",
            "1.0000 bits, not 2.0000",
        ),
    ],
    3: [
        (  # one column too many
            """
def my_sliding_mask(T, width):
    return causal_mask(T) & ~causal_mask(T).tril(diagonal=-width - 1)
""",
            "width 2: row 2 sees columns [0, 1, 2], not [1, 2]",
        ),
        (  # sees ahead
            """
def my_sliding_mask(T, width):
    i, j = torch.arange(T)[:, None], torch.arange(T)
    return (i - j).abs() < width
""",
            "row 0 sees columns [0, 1], not [0]",
        ),
        (
            """
def my_sliding_mask(T, width):
    return (causal_mask(T) & ~causal_mask(T).tril(diagonal=-width)).float()
""",
            "not bool",
        ),
    ],
}
