"""Answers to the exercises of chapter 06 that its checks must take, and some they must refuse."""

TURN = """
def my_trim(new_kvs, num_emitted, position):
    keep = position + num_emitted
    return tuple(tuple((k[:, :keep], v[:, :keep]) for k, v in layer) for layer in new_kvs)
"""

RIGHT = {
    0: [
        "from nanogpt.cache import trim_kv_cache as my_trim",
        """
def my_trim(new_kvs, num_emitted, position):
    trimmed = []
    for layer in new_kvs:
        heads = []
        for k, v in layer:
            keep = position + num_emitted
            heads.append((k[:, :keep, :].clone(), v[:, :keep, :].clone()))
        trimmed.append(heads)
    return trimmed
""",
        # from the other end: what goes, not what stays
        """
def my_trim(new_kvs, num_emitted, position):
    K = cache_length(new_kvs) - position - 1
    goes = K - (num_emitted - 1)
    def cut(t):
        return t[:, :-goes] if goes else t
    return tuple(tuple((cut(k), cut(v)) for k, v in layer) for layer in new_kvs)
""",
        # by hand, entry for entry, in numpy
        """
def my_trim(new_kvs, num_emitted, position):
    def kept(t):
        stays = range(position + num_emitted)
        return torch.cat([t.narrow(1, i, 1) for i in stays], dim=1).numpy()
    return [[[kept(t) for t in head] for head in layer] for layer in new_kvs]
""",
    ],
    1: [
        """
def my_wasted_share(rounds):
    added = wasted = 0
    for r in rounds:
        added += 1 + len(r.candidates)
        wasted += len(r.candidates) - r.n_accepted
    return wasted / added
""",
        """
def my_wasted_share(rounds):
    import numpy as np
    drafted = np.array([len(r.candidates) for r in rounds])
    accepted = np.array([r.n_accepted for r in rounds])
    return (drafted - accepted).sum() / (drafted + 1).sum()
""",
    ],
    2: [
        """
def my_visible(num_emitted, P, K):
    mask = torch.zeros(len(num_emitted), P + K + 1, dtype=torch.bool)
    for row, n in enumerate(num_emitted):
        mask[row, : P + n] = True
    return mask
""",
        """
def my_visible(num_emitted, P, K):
    return [[j < P + int(n) for j in range(P + K + 1)] for n in num_emitted]
""",
        """
def my_visible(num_emitted, P, K):
    import numpy as np
    return np.arange(P + K + 1)[None] < P + num_emitted.numpy()[:, None]
""",
    ],
}

WRONG = {
    0: [
        (  # the first row of the batch stands for all
            """
def my_trim(new_kvs, num_emitted, position):
    keep = position + num_emitted
    return [[[t[:1, :keep].repeat(len(t), 1, 1) for t in kv] for kv in x] for x in new_kvs]
""",
            "the entries in k of layer 0, head 0 are not the first 5",
        ),
        (  # as many heads as layers
            """
def my_trim(new_kvs, num_emitted, position):
    keep, n = position + num_emitted, len(new_kvs)
    cut = [[[t[:, :keep] for t in new_kvs[i][j]] for j in range(n)] for i in range(n)]
    return cut
""",
            "2 layers of 3 heads, k and v, make 12 tensors, not 8",
        ),
        (  # the layers put into one flat list
            """
def my_trim(new_kvs, num_emitted, position):
    keep = position + num_emitted
    return [(k[:, :keep], v[:, :keep]) for layer in new_kvs for k, v in layer]
""",
            "the cache is layers of heads of pairs",
        ),
        (  # a generator: no tuple is made of it
            TURN.replace("return tuple", "return "),
            "all of them tuples or lists",
        ),
        (  # the last emitted token has no entry
            TURN.replace("+ num_emitted", "+ num_emitted + 1"),
            "a rejected guess stays",
        ),
        (  # only the accepted guesses, without the current token
            TURN.replace("+ num_emitted", "+ num_emitted - 1"),
            "an entry of the text is lost",
        ),
        (  # nothing at all
            """
def my_trim(new_kvs, num_emitted, position):
    return new_kvs
""",
            "nothing is cut off",
        ),
        (  # the new entries alone
            """
def my_trim(new_kvs, num_emitted, position):
    return tuple(tuple((k[:, :num_emitted], v[:, :num_emitted]) for k, v in x) for x in new_kvs)
""",
            "k of layer 0, head 0 is (2, 2, 3), not (2, 5, 3): those from before the round",
        ),
        (  # the last ones, not the first
            TURN.replace("[:, :keep], v[:, :keep]", "[:, -keep:], v[:, -keep:]"),
            "the entries in k of layer 0, head 0 are not the first 5",
        ),
        (  # rows of the batch in place of entries
            TURN.replace("[:, :keep], v[:, :keep]", "[:keep], v[:keep]"),
            "k of layer 0, head 0 is (2, 8, 3), not (2, 5, 3)",
        ),
        (  # the keys alone
            TURN.replace("v[:, :keep]", "v"),
            "v of layer 0, head 0 is (2, 8, 3), not (2, 5, 3)",
        ),
        (  # the first layer alone
            """
def my_trim(new_kvs, num_emitted, position):
    keep = position + num_emitted
    return (tuple((k[:, :keep], v[:, :keep]) for k, v in new_kvs[0]),)
""",
            "make 12 tensors, not 6",
        ),
        (  # erased, not cut off: a 0 is an entry, too
            """
def my_trim(new_kvs, num_emitted, position):
    for layer in new_kvs:
        for k, v in layer:
            k[:, position + num_emitted :] = 0
            v[:, position + num_emitted :] = 0
    return new_kvs
""",
            "the cache that it was given changed",
        ),
        (  # from the other end, where 0 is no end
            """
def my_trim(new_kvs, num_emitted, position):
    goes = cache_length(new_kvs) - position - num_emitted
    return tuple(tuple((k[:, :-goes], v[:, :-goes]) for k, v in layer) for layer in new_kvs)
""",
            "5 emitted: k of layer 0, head 0 is (2, 0, 3), not (2, 8, 3): nothing is left",
        ),
        (TURN.replace("return tuple", "tuple"), "nothing came back"),
    ],
    1: [
        (  # counts the target's own token as an accepted guess
            """
def my_wasted_share(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return 1 - sum(len(r.emitted) for r in rounds) / drafted
""",
            "K = 3: ",
        ),
        (  # forgets the current token's entry
            """
def my_wasted_share(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return 1 - sum(r.n_accepted for r in rounds) / drafted
""",
            "entries added",
        ),
        (  # a mean of shares is not the share of the whole
            """
def my_wasted_share(rounds):
    shares = [(len(r.candidates) - r.n_accepted) / (len(r.candidates) + 1) for r in rounds]
    return sum(shares) / len(shares)
""",
            "K = 3: ",
        ),
    ],
    2: [
        (  # one too many
            """
def my_visible(num_emitted, P, K):
    return torch.arange(P + K + 1) <= P + num_emitted[:, None]
""",
            "row 0 shows entry 3",
        ),
        (  # only the accepted guesses, without the current token
            """
def my_visible(num_emitted, P, K):
    return torch.arange(P + K + 1) < P + num_emitted[:, None] - 1
""",
            "row 0 hides entry 2",
        ),
        (  # forgets what was there before
            """
def my_visible(num_emitted, P, K):
    return torch.arange(K + 1) < num_emitted[:, None]
""",
            "shape (3, 5), not (B, P+K+1) = (3, 7)",
        ),
        (
            """
def my_visible(num_emitted, P, K):
    return (torch.arange(P + K + 1) < P + num_emitted[:, None]).float()
""",
            "the mask is torch.float32, not bool",
        ),
    ],
}
