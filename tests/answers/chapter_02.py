"""Answers to the turn (0) and exercises of chapter 02: right ones of several kinds, wrong ones."""

TURN = """
def my_cached_step(head, x, past_kv):
    q, k, v = head.query(x), head.key(x), head.value(x)
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    T, n = q.shape[1], k.shape[1]
    hidden = ~torch.ones(T, n, dtype=torch.bool).tril(n - T)
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    return F.softmax(scores, dim=-1) @ v, (k, v)
"""

RIGHT = {
    0: [
        """
from nanogpt.model import causal_mask

def my_cached_step(head, x, past_kv):
    T, P = x.shape[1], 0 if past_kv is None else past_kv[0].shape[1]
    bias = torch.zeros(T, P + T).masked_fill(~causal_mask(T, P), -torch.inf)
    return head(x, bias, past_kv)
""",
        """
def my_cached_step(head, x, past_kv):
    k, v = head.key(x), head.value(x)
    if past_kv:
        k, v = torch.cat((past_kv[0], k), -2), torch.cat((past_kv[1], v), -2)
    rows, columns = torch.arange(x.shape[1])[:, None], torch.arange(k.shape[1])
    may_see = columns <= rows + k.shape[1] - x.shape[1]
    out = F.scaled_dot_product_attention(head.query(x), k, v, attn_mask=may_see)
    return out, (k, v)
""",
        """
def my_cached_step(head, x, past_kv):  # one token after another: no mask at all
    outs = []
    for t in range(x.shape[1]):
        new = x[:, t : t + 1]
        q, k, v = head.query(new), head.key(new), head.value(new)
        if past_kv is not None:
            k = torch.cat([past_kv[0], k], dim=1)
            v = torch.cat([past_kv[1], v], dim=1)
        past_kv = [k, v]
        weights = torch.softmax(q @ k.mT / math.sqrt(k.shape[-1]), dim=-1)
        outs.append(weights @ v)
    return [torch.cat(outs, dim=1), past_kv]
""",
        """
import numpy as np

def my_cached_step(head, x, past_kv):
    old_k, old_v = past_kv or (head.key(x)[:, :0], head.value(x)[:, :0])
    q, k, v = (layer(x).float().numpy() for layer in (head.query, head.key, head.value))
    k, v = np.concatenate([old_k, k], axis=1), np.concatenate([old_v, v], axis=1)
    (B, T, hs), P = q.shape, old_k.shape[1]
    out = np.zeros((B, T, hs))
    for i in range(T):
        seen = P + i + 1
        weights = np.exp(np.einsum("bd,bnd->bn", q[:, i], k[:, :seen]) / hs**0.5)
        weights /= weights.sum(axis=-1, keepdims=True)
        out[:, i] = np.einsum("bn,bnd->bd", weights, v[:, :seen])
    return out, (k, v)
""",
    ],
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
        _, past_kvs = target.states(torch.tensor([chunk]), pos=pos, past_kvs=past_kvs)
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
}

WRONG = {
    0: [
        (  # the cache is forgotten
            """
def my_cached_step(head, x, past_kv):
    q, k, v = head.query(x), head.key(x), head.value(x)
    T, n = q.shape[1], k.shape[1]
    hidden = ~torch.ones(T, n, dtype=torch.bool).tril(n - T)
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    return F.softmax(scores, dim=-1) @ v, (k, v)
""",
            "k has shape (2, 1, 3), not (B, P+T, hs) = (2, 4, 3)",
        ),
        (  # only the new entries come back
            TURN.replace("value(x)", "value(x)\n    new = k, v").replace("(k, v)", "new"),
            "it must hold the old entries and the new ones",
        ),
        (  # new before old
            TURN.replace(
                "([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)",
                "([k, past_kv[0]], dim=1), torch.cat([v, past_kv[1]], dim=1)",
            ),
            "the 3 old ones come first",
        ),
        (  # PyTorch's is_causal hides the cache: it is aligned with the first column
            """
def my_cached_step(head, x, past_kv):
    q, k, v = head.query(x), head.key(x), head.value(x)
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True), (k, v)
""",
            "T = 1 new ones, look at row 0 of the output: may it see every column",
        ),
        (  # no mask: nobody notices with one new token
            """
def my_cached_step(head, x, past_kv):
    q, k, v = head.query(x), head.key(x), head.value(x)
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5)
    return F.softmax(scores, dim=-1) @ v, (k, v)
""",
            "T = 4 new ones, look at rows 0, 1, 2 of the output: row i may see columns",
        ),
        (  # each row sees the cache and itself, but no other new token
            TURN.replace(
                "scores =",
                "hidden |= torch.ones(T, n, dtype=torch.bool).tril(n - T - 1)\n"
                "    hidden[:, : n - T] = False\n    scores =",
            ),
            "look at rows 1, 2, 3 of the output",
        ),
        (  # not scaled
            TURN.replace("(-2, -1) * q.shape[-1] ** -0.5", "(-2, -1)"),
            "are the scores divided by √hs",
        ),
        (  # old tokens ask again
            TURN.replace("v], dim=1)", "v], dim=1)\n    q = k"),
            "not (B, T, hs) = (2, 1, 3): only new tokens ask",
        ),
        (  # the pair is lost
            TURN.replace(", (k, v)", ""),
            "return two things, the output and the pair (k, v)",
        ),
        (  # three things
            TURN.replace("(k, v)", "k, v"),
            "return two things, the output and the pair (k, v)",
        ),
        (  # the cache is overwritten in place
            TURN.replace(
                "value(x)",
                "value(x)\n    if past_kv is not None:\n        past_kv[0][:, -1:] = k[:, :1]",
            ),
            "the cache you were given has changed",
        ),
        (  # computes the new tokens again for each of them
            """
def my_cached_step(head, x, past_kv):
    outs = []
    for t in range(x.shape[1]):
        q, k, v = (layer(x[:, : t + 1]) for layer in (head.query, head.key, head.value))
        if past_kv is not None:
            k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
        scores = q[:, -1:] @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        outs.append(F.softmax(scores, dim=-1) @ v)
    return torch.cat(outs, dim=1), (k, v)
""",
            "right, but head.query computed 20 vectors, and there are 8 new ones",
        ),
        (  # a mask for a cache of two tokens
            """
def my_cached_step(head, x, past_kv):
    q, k, v = head.query(x), head.key(x), head.value(x)
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if x.shape[1] > 1:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(2 if past_kv else 0)
        scores = scores.masked_fill(~seen, -torch.inf)
    return F.softmax(scores, dim=-1) @ v, (k, v)
""",
            "after P = 4 cached tokens and T = 2 new ones, look at rows 0, 1",
        ),
    ],
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
}
