"""Answers to the exercises of chapter 04 that its checks must take, and some they must refuse."""

TURN = """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    logits, _, cache = target(torch.tensor([[current_token, *candidates]]), past_kvs=past_kvs)
    return sampling.probs(logits[0]), cache
"""

RIGHT = {
    0: [
        "from nanogpt.speculative import verify_candidates as my_verify",
        """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    current = torch.tensor([[*unread, current_token]])
    idx = torch.cat([current, torch.tensor([candidates], dtype=torch.long)], dim=1)
    logits, loss, cache = target(idx, past_kvs=past_kvs)
    return [sampling.probs(row) for row in logits.squeeze(0)[len(unread) :]], cache
""",
        # mask and positions by hand, numpy, another type of number
        """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    tokens = list(unread) + [current_token] + list(candidates)
    T, P = len(tokens), cache_length(past_kvs)
    mask = torch.tensor([[j <= P + i for j in range(P + T)] for i in range(T)])
    pos = torch.arange(P, P + T)
    logits, _, cache = target(torch.tensor([tokens]), None, pos, past_kvs, mask)
    rows = np.empty((T, logits.shape[-1]), dtype=np.float32)
    for i in range(T):
        rows[i] = sampling.probs(logits[0, i]).numpy()
    return rows[-1 - len(candidates) :], cache
""",
        # the layers and the last one called by themselves
        """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([(*unread, current_token, *candidates)])
    streams, cache = target.states(idx, None, past_kvs)
    hidden = target.ln_f(streams[-1][0, len(unread) :])
    return [sampling.probs(target.lm_head(hidden)), cache]
""",
    ],
    1: [
        """
def my_free_tokens(bytes_each, bandwidth, flops):
    return flops * bytes_each // (2 * bandwidth)
""",
        """
def my_free_tokens(bytes_each, bandwidth, flops):
    T = 1
    while 2 * (T + 1) / flops <= bytes_each / bandwidth:
        T += 1
    return T
""",
    ],
    2: [
        """
def my_matching(candidates, target_probs):
    best = np.asarray(target_probs).argmax(axis=-1)[: len(candidates)]
    return np.cumprod(best == np.array(candidates, dtype=int)).sum()
""",
        """
def my_matching(candidates, target_probs):
    n = 0
    while n < len(candidates) and target_probs[n, candidates[n]] == 1:
        n += 1
    return n
""",
    ],
    3: [
        """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    B = len(candidate_lists)
    current = torch.full((B, 1), current_token)
    idx = torch.cat([current, torch.tensor(candidate_lists)], dim=1)
    batch = []
    for layer in past_kvs:
        heads = []
        for k, v in layer:
            heads.append((torch.cat([k] * B), torch.cat([v] * B)))
        batch.append(tuple(heads))
    logits, _, _ = target(idx, past_kvs=tuple(batch))
    return np.stack([sampling.probs(rows).numpy() for rows in logits])
""",
        # a tree in one sequence: the current token once, each list hidden from the others
        """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    B, K, P = len(candidate_lists), len(candidate_lists[0]), cache_length(past_kvs)
    tokens = [current_token] + [token for guess in candidate_lists for token in guess]
    pos = torch.tensor([P] + [P + 1 + i for _ in range(B) for i in range(K)])
    mask = torch.zeros(len(tokens), P + len(tokens), dtype=torch.bool)
    mask[:, : P + 1] = True
    for b in range(B):
        first = 1 + b * K
        block = torch.ones(K, K, dtype=torch.bool).tril()
        mask[first : first + K, P + first : P + first + K] = block
    idx = torch.tensor([tokens])
    logits, _, _ = target(idx, pos=pos, past_kvs=past_kvs, attn_mask=mask)
    rows = [[0, *range(1 + b * K, 1 + b * K + K)] for b in range(B)]
    return sampling.probs(logits[0, rows])
""",
    ],
}

WRONG = {
    0: [
        (  # what the cache lacks is not read
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[current_token, *candidates]])
    logits, _, new_kvs = target(idx, past_kvs=past_kvs)
    return sampling.probs(logits[0]), new_kvs
""",
            "3 of them unread, temperature 1.0): the unread tokens did not enter",
        ),
        (  # its rows come back, too
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[*unread, current_token, *candidates]])
    logits, _, new_kvs = target(idx, past_kvs=past_kvs)
    return sampling.probs(logits[0]), new_kvs
""",
            "shape (8, 7), not (K+1, V) = (5, 7): a row for the current token",
        ),
        (  # it is read in a pass of its own
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    if unread:
        _, _, past_kvs = target(torch.tensor([unread]), past_kvs=past_kvs)
    idx = torch.tensor([[current_token, *candidates]])
    logits, _, new_kvs = target(idx, past_kvs=past_kvs)
    return sampling.probs(logits[0]), new_kvs
""",
            "2 passes: all 8 tokens are known, one will do",
        ),
        (  # the current token before what stands before it
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[current_token, *unread, *candidates]])
    logits, _, new_kvs = target(idx, past_kvs=past_kvs)
    return sampling.probs(logits[0, len(unread) :]), new_kvs
""",
            "look at the tokens, positions and mask you gave",
        ),
        (  # without a batch
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    logits, _, new_kvs = target(torch.tensor([current_token, *candidates]), past_kvs=past_kvs)
    return sampling.probs(logits), new_kvs
""",
            "the target takes tokens (B, T)",
        ),
        (  # a pass for each question
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    rows = []
    for token in [current_token, *candidates]:
        logits, _, past_kvs = target(torch.tensor([[token]]), past_kvs=past_kvs)
        rows.append(sampling.probs(logits[0, -1]))
    return torch.stack(rows), past_kvs
""",
            "5 passes: all 5 tokens are known, one will do",
        ),
        (  # the same, past __call__
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    rows = []
    for token in [current_token, *candidates]:
        logits, _, past_kvs = target.forward(torch.tensor([[token]]), past_kvs=past_kvs)
        rows.append(sampling.probs(logits[0, -1]))
    return torch.stack(rows), past_kvs
""",
            "5 passes: all 5 tokens are known, one will do",
        ),
        (  # without the current token
            TURN.replace("[current_token, *candidates]", "candidates"),
            "shape (4, 7), not (K+1, V) = (5, 7)",
        ),
        (  # the batch of one still there
            TURN.replace("logits[0]", "logits"),
            "shape (1, 5, 7), not (K+1, V) = (5, 7)",
        ),
        (  # only the last row, as plain decoding takes it
            TURN.replace("logits[0]", "logits[:, -1]"),
            "shape (1, 7), not (K+1, V) = (5, 7)",
        ),
        (  # the row of a guess, not the row before it
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    logits, _, cache = target(torch.tensor([[current_token, *candidates]]), past_kvs=past_kvs)
    rows = (torch.arange(len(candidates) + 1) + 1).clamp(max=len(candidates))
    return sampling.probs(logits[0, rows]), cache
""",
            "it is p one token further on",
        ),
        (  # no cache
            TURN.replace(", past_kvs=past_kvs", ""),
            "the pass did not see the cache",
        ),
        (  # logits, not probabilities
            TURN.replace("sampling.probs(logits[0])", "logits[0]"),
            "these are logits",
        ),
        (  # a softmax that forgets temperature and top-k
            TURN.replace("sampling.probs(logits[0])", "torch.softmax(logits[0], dim=-1)"),
            "`sampling` was not asked",
        ),
        (  # positions from 0
            TURN.replace("logits, _, cache = target(", "idx = ").replace(
                "]])",
                "]])\n    pos = torch.arange(idx.shape[1])\n"
                "    logits, _, cache = target(idx, pos=pos",
            ),
            "look at the tokens, positions and mask you gave",
        ),
        (  # no causal mask: row 0 sees the guesses
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[current_token, *candidates]])
    mask = torch.ones(idx.shape[1], cache_length(past_kvs) + idx.shape[1], dtype=torch.bool)
    logits, _, cache = target(idx, past_kvs=past_kvs, attn_mask=mask)
    return sampling.probs(logits[0]), cache
""",
            "row 0 is not p after the current token and 0 candidates",
        ),
        (  # the cache from before
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[current_token, *candidates]])
    return sampling.probs(target(idx, past_kvs=past_kvs)[0][0]), past_kvs
""",
            "the cache that came back holds 3 tokens, not 8",
        ),
        (  # a cache of the right length with nothing in it
            TURN.replace(
                "return",
                "cache = tuple(tuple((k * 0, v * 0) for k, v in layer) for layer in cache)\n"
                "    return",
            ),
            "not the keys and values of the text's tokens",
        ),
        (  # in the caller's list
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    candidates.insert(0, current_token)
    logits, _, cache = target(torch.tensor([candidates]), past_kvs=past_kvs)
    return sampling.probs(logits[0]), cache
""",
            "the caller's list of candidates is changed",
        ),
        (TURN.replace("(logits[0]), cache", "(logits[0])"), "return two things"),
        (  # a copy of the text for each question
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    B, n = len(candidates) + 1, len(unread)
    copies = past_kvs and tuple(
        tuple((k.expand(B, -1, -1), v.expand(B, -1, -1)) for k, v in layer) for layer in past_kvs
    )
    idx = torch.tensor([[*unread, current_token, *candidates]] * B)
    logits, _, kvs = target(idx, past_kvs=copies)
    rows = torch.stack([logits[i, n + i] for i in range(B)])
    return sampling.probs(rows), tuple(tuple((k[:1], v[:1]) for k, v in layer) for layer in kvs)
""",
            "the pass read 25 tokens: 5 are enough",
        ),
        (  # one pass for the cache, then the blocks by hand for each row
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx, rows = torch.tensor([[*unread, current_token, *candidates]]), []
    for n in range(len(unread) + 1, idx.shape[1] + 1):
        x, bias = target.embed(idx[:, :n], None, past_kvs, None)
        for block, past in zip(target.blocks, past_kvs or [None] * len(target.blocks)):
            x, _ = block(x, bias, past)
        rows.append(sampling.probs(target.lm_head(target.ln_f(x[0, -1]))))
    return rows, target(idx, past_kvs=past_kvs)[2]
""",
            "6 passes: all 5 tokens are known",
        ),
        (  # five rows, whatever K is
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    logits, _, kvs = target(
        torch.tensor([[*unread, current_token, *candidates]]), past_kvs=past_kvs
    )
    return sampling.probs(logits[0, -5:]), kvs
""",
            "shape (5, 7), not (K+1, V) = (3, 7)",
        ),
        (  # a rule of its own, without top-p
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    idx = torch.tensor([[*unread, current_token, *candidates]])
    logits, _, kvs = target(idx, past_kvs=past_kvs)
    logits = logits[0, len(unread) :] / sampling.temperature
    if sampling.top_k:
        least = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits.softmax(dim=-1), kvs
""",
            "`sampling` has a top-p, too",
        ),
        (  # no guess: an empty list becomes a tensor of floats
            """
def my_verify(target, current_token, candidates, past_kvs, sampling, unread=()):
    tokens = [torch.tensor([*unread, current_token]), torch.tensor(candidates)]
    logits, _, kvs = target(torch.cat(tokens)[None], past_kvs=past_kvs)
    return sampling.probs(logits[0, len(unread) :]), kvs
""",
            "with candidates [] yours raised",
        ),
    ],
    1: [
        (  # a multiplication and an addition are two operations
            """
def my_free_tokens(bytes_each, bandwidth, flops):
    return int(bytes_each / bandwidth * flops)
""",
            "295 tokens fit, not 590",
        ),
        (
            """
def my_free_tokens(bytes_each, bandwidth, flops):
    return round(bytes_each / bandwidth * flops / 2)
""",
            "73 tokens fit, not 74",
        ),
    ],
    2: [
        (  # goes on after the first wrong guess
            """
def my_matching(candidates, target_probs):
    best = target_probs.argmax(dim=-1).tolist()
    return sum(token == right for token, right in zip(candidates, best))
""",
            "guesses [1, 1, 2], target [1, 0, 2, 2]: 1, not 2",
        ),
        (  # counts the target's own token, too
            """
def my_matching(candidates, target_probs):
    right = 0
    for token, row in zip(candidates, target_probs):
        if int(row.argmax()) != token:
            break
        right += 1
    return right + 1
""",
            "3, not 4",
        ),
        (  # reads the row of the guess instead of the row before it
            """
def my_matching(candidates, target_probs):
    right = 0
    for token, row in zip(candidates, target_probs[1:]):
        if int(row.argmax()) != token:
            break
        right += 1
    return right
""",
            "3, not 0",
        ),
    ],
    3: [
        (
            """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    rows = []
    for candidates in candidate_lists:
        rows.append(verify_candidates(target, current_token, candidates, past_kvs, sampling)[0])
    return torch.stack(rows)
""",
            "one pass is enough, not 3",
        ),
        (  # without the cache, the prompt is forgotten
            """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    idx = torch.tensor([[current_token, *candidates] for candidates in candidate_lists])
    logits, _, _ = target(idx)
    return sampling.probs(logits)
""",
            "'quest': row",
        ),
        (  # without the current token, row 0 is missing
            """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    B = len(candidate_lists)
    past_kvs = tuple(
        tuple((k.expand(B, -1, -1), v.expand(B, -1, -1)) for k, v in layer) for layer in past_kvs
    )
    logits, _, _ = target(torch.tensor(candidate_lists), past_kvs=past_kvs)
    return sampling.probs(logits)
""",
            "shape (3, 5, 65), not (B, K+1, V) = (3, 6, 65)",
        ),
        (  # one sequence, but each list sees the lists before it
            """
def my_verify_several(target, current_token, candidate_lists, past_kvs, sampling):
    B, K, P = len(candidate_lists), len(candidate_lists[0]), cache_length(past_kvs)
    tokens = [current_token] + [token for guess in candidate_lists for token in guess]
    pos = torch.tensor([P] + [P + 1 + i for _ in range(B) for i in range(K)])
    logits, _, _ = target(torch.tensor([tokens]), pos=pos, past_kvs=past_kvs)
    rows = [[0, *range(1 + b * K, 1 + b * K + K)] for b in range(B)]
    return sampling.probs(logits[0, rows])
""",
            "'quiet': row",
        ),
    ],
}
