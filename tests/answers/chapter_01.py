"""Answers to the exercises of chapter 01: right ones of several kinds, well-known wrong ones."""

RIGHT = {
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
    1: [
        (  # no biases anywhere
            """
def my_parameter_count(config):
    V, W, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    return 2 * V * C + W * C + L * (12 * C**2 + 4 * C) + 2 * C
""",
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
            """
def my_parameter_count(config):
    V, W, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    return V * C + W * C + L * (12 * C**2 + 10 * C) + 2 * C
""",
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
