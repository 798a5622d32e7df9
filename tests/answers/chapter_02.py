"""Answers to the exercises of chapter 02: right ones of several kinds, well-known wrong ones."""

RIGHT = {
    1: [
        """
def my_cache_bytes(n_layer, n_head, head_size, P, bytes_per_number):
    per_token = 0
    for _ in range(n_layer):
        for _ in range(n_head):
            per_token += head_size + head_size  # a key and a value
    return per_token * P * bytes_per_number
""",
        """
import numpy as np

def my_cache_bytes(n_layer, n_head, head_size, P, bytes_per_number):
    shape = (n_layer, 2, n_head, P, head_size)
    return int(np.prod(shape, dtype=np.int64)) * bytes_per_number
""",
    ],
    2: [
        """
def my_chunked_prefill(target, tokens, size):
    past_kvs = None
    for chunk in torch.tensor(tokens).split(size):
        past_kvs = target(chunk[None], past_kvs=past_kvs)[2]
    return past_kvs
""",
        """
def my_chunked_prefill(target, tokens, size):
    past_kvs, done = None, 0
    while done < len(tokens):
        chunk = tokens[done : done + size]
        pos = torch.arange(done, done + len(chunk))
        _, past_kvs = target.trunk(torch.tensor([chunk]), pos=pos, past_kvs=past_kvs)
        done += len(chunk)
    return past_kvs
""",
        """
def my_chunked_prefill(target, tokens, size, past_kvs=None):
    if not tokens:
        return past_kvs
    first = torch.tensor([tokens[:size]], device=target.device)
    return my_chunked_prefill(target, tokens[size:], size, target(first, past_kvs=past_kvs)[2])
""",
    ],
    3: [
        """
def my_min_p(probs, min_p):
    kept = probs * (probs >= min_p * probs.max(dim=-1, keepdim=True).values)
    return kept / kept.sum(dim=-1, keepdim=True)
""",
        """
import numpy as np

def my_min_p(probs, min_p):
    p = np.asarray(probs)
    p = np.where(p < min_p * p.max(axis=-1, keepdims=True), 0, p)
    return p / p.sum(axis=-1, keepdims=True)
""",
        """
def my_min_p(probs, min_p):
    result = probs.clone().float()
    for row in result.view(-1, probs.shape[-1]):
        row[row < min_p * row.max()] = 0
        row /= row.sum()
    return result
""",
    ],
}

WRONG = {
    1: [
        (  # keys only
            """
def my_cache_bytes(n_layer, n_head, head_size, P, bytes_per_number):
    return n_layer * n_head * head_size * P * bytes_per_number
""",
            "40 of our tokens take 81,920 bytes, not 40,960",
        ),
        (  # numbers, not bytes
            """
def my_cache_bytes(n_layer, n_head, head_size, P, bytes_per_number):
    return 2 * n_layer * n_head * head_size * P
""",
            "take 81,920 bytes",
        ),
        (  # four bytes whatever they ask
            """
def my_cache_bytes(n_layer, n_head, head_size, P, bytes_per_number):
    return 2 * n_layer * n_head * head_size * P * 4
""",
            "the large model takes 1,342,177,280 bytes",
        ),
    ],
    2: [
        (  # each chunk starts from nothing
            """
def my_chunked_prefill(target, tokens, size):
    for i in range(0, len(tokens), size):
        _, _, past_kvs = target(torch.tensor([tokens[i : i + size]]))
    return past_kvs
""",
            "size 1: the cache holds 1 tokens, not 50",
        ),
        (  # positions start again with every chunk
            """
def my_chunked_prefill(target, tokens, size):
    past_kvs = None
    for i in range(0, len(tokens), size):
        chunk = torch.tensor([tokens[i : i + size]])
        pos = torch.arange(chunk.shape[1])
        _, _, past_kvs = target(chunk, pos=pos, past_kvs=past_kvs)
    return past_kvs
""",
            "size 1: keys or values are not prefill's",
        ),
        (  # the last, shorter chunk is lost
            """
def my_chunked_prefill(target, tokens, size):
    past_kvs = None
    for i in range(0, len(tokens) - size + 1, size):
        _, _, past_kvs = target(torch.tensor([tokens[i : i + size]]), past_kvs=past_kvs)
    return past_kvs
""",
            "size 7: passes over [7, 7, 7, 7, 7, 7, 7] tokens",
        ),
        (  # all in one pass
            """
def my_chunked_prefill(target, tokens, size):
    return target(torch.tensor([tokens]))[2]
""",
            "size 1: passes over [50] tokens",
        ),
    ],
    3: [
        (  # an absolute threshold
            """
def my_min_p(probs, min_p):
    kept = probs * (probs >= min_p)
    return kept / kept.sum(dim=-1, keepdim=True)
""",
            "min_p = 0.5: got",
        ),
        (  # not renormalised
            """
def my_min_p(probs, min_p):
    return probs * (probs >= min_p * probs.max(dim=-1, keepdim=True).values)
""",
            "min_p = 0.5: got",
        ),
        (  # the largest of all rows
            """
def my_min_p(probs, min_p):
    kept = probs * (probs >= min_p * probs.max())
    return kept / kept.sum(dim=-1, keepdim=True)
""",
            "min_p = 0.5: got",
        ),
        (  # more than, not at least
            """
def my_min_p(probs, min_p):
    return keep(probs, lambda ranked: ranked > min_p * ranked[..., :1])
""",
            "min_p = 1.0: got",
        ),
    ],
}
