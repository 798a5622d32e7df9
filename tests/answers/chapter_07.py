"""Answers to the exercises of chapter 07 that its checks must take, and some they must refuse."""

HEAD = """
def my_generate(
    target, draft, prompt_tokens, max_new_tokens, K, sampling, rng=None, stop_token=None
):
    rng = rng or RandomSource(0)
"""

LOOP = (
    HEAD
    + """
    text = Text(target, prompt_tokens, max_new_tokens, stop_token)
    while not text.done:
        text.restart_if_full()
        k = min(K, text.room)
        candidates, q = draft_tokens(draft, text.tokens, k, sampling, rng)
        p, new_kvs = verify_candidates(target, text.tokens[-1], candidates, text.past_kvs, sampling)
        emitted = accept_reject(candidates, q, p, rng)
        past_kvs = trim_kv_cache(new_kvs, len(emitted), text.cache_len)
        text.take(Round(candidates, q, p, emitted, text.cache_len), past_kvs)
    return text.generation()
"""
)


def loop(old, new):
    """The right loop with one line changed."""
    assert LOOP.count(old) == 1, old
    return LOOP.replace(old, new)


RIGHT = {
    1: [
        # loose names instead of a Text
        HEAD
        + """
    from nanogpt.generate import restart
    block_size = target.config.block_size
    tokens = list(prompt_tokens)[-block_size:]
    past_kvs, new_tokens, rounds = prefill(target, tokens[:-1]), [], []
    prefills = int(past_kvs is not None)
    while len(new_tokens) < max_new_tokens and stop_token not in new_tokens:
        if cache_length(past_kvs) == block_size:
            past_kvs, prefills = restart(target, tokens), prefills + 1
        cache_len = cache_length(past_kvs)
        k = min(K, max_new_tokens - len(new_tokens) - 1, block_size - cache_len - 1)
        candidates, q = draft_tokens(draft, tokens, k, sampling, rng)
        p, new_kvs = verify_candidates(target, tokens[-1], candidates, past_kvs, sampling)
        emitted = accept_reject(candidates, q, p, rng)
        past_kvs = trim_kv_cache(new_kvs, len(emitted), cache_len)
        rounds.append(Round(candidates, q, p, emitted, cache_len))
        for token in emitted:
            tokens.append(token)
            new_tokens.append(token)
            if token == stop_token:
                break
    return Generation(new_tokens, rounds, prefills)
""",
        # drafts by hand, and asks for p row by row
        loop(
            "        candidates, q = draft_tokens(draft, text.tokens, k, sampling, rng)\n",
            """
        candidates, rows = [], []
        for _ in range(k):
            rows.append(sampling.of_probs(draft.get_probs(text.tokens + candidates)))
            candidates.append(rng.categorical(rows[-1]))
        q = torch.stack(rows) if rows else torch.empty(0, draft.vocab_size).double()
""",
        ),
    ],
    2: [
        """
def my_unseen(rounds):
    drafted = unseen = 0
    for r in rounds:
        drafted += len(r.candidates)
        unseen += max(0, len(r.candidates) - len(r.emitted))
    return unseen / drafted if drafted else 0
""",
        """
def my_unseen(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    if drafted == 0:
        return 0.0
    return torch.tensor([len(r.candidates) - r.n_examined for r in rounds]).sum() / drafted
""",
    ],
    3: [
        """
def my_until_stop(emitted, stop_tokens):
    first = [i for i, token in enumerate(emitted) if token in stop_tokens]
    return emitted[: first[0] + 1] if first else emitted
""",
        """
def my_until_stop(emitted, stop_tokens):
    ends = [emitted.index(stop) + 1 for stop in stop_tokens if stop in emitted]
    return tuple(emitted[: min(ends, default=len(emitted))])
""",
    ],
}

WRONG = {
    1: [
        (  # a rejected guess stays in the cache
            loop(
                "trim_kv_cache(new_kvs, len(emitted),", "trim_kv_cache(new_kvs, len(emitted) + 1,"
            ),
            "the cache holds",
        ),
        (  # the current token's entry is lost
            loop(
                "trim_kv_cache(new_kvs, len(emitted),", "trim_kv_cache(new_kvs, len(emitted) - 1,"
            ),
            "the cache holds",
        ),
        (  # drafts past the window
            loop("min(K, text.room)", "min(K, text.end - len(text.tokens) - 1)"),
            "run past the window",
        ),
        (  # forgets that the target adds a token of its own
            loop(
                "min(K, text.room)",
                "min(K, text.end - len(text.tokens), text.block_size - text.cache_len - 1)",
            ),
            "differs from the target's own",
        ),
        (  # the same random numbers in every round
            loop("reject(candidates, q, p, rng)", "reject(candidates, q, p, RandomSource(0))"),
            "the output is not the target's",
        ),
        (  # goes on after the stop
            loop("max_new_tokens, stop_token)", "max_new_tokens)"),
            "stop token 0: the text is",
        ),
    ],
    2: [
        (  # a full acceptance emits one more than it has candidates
            """
def my_unseen(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return sum(len(r.candidates) - len(r.emitted) for r in rounds) / drafted if drafted else 0.0
""",
            "the three rounds by hand: 0.250 instead of 0.333",
        ),
        (  # the rejected candidate was examined, too
            """
def my_unseen(rounds):
    drafted = sum(len(r.candidates) for r in rounds)
    return sum(len(r.candidates) - r.n_accepted for r in rounds) / drafted if drafted else 0.0
""",
            "the three rounds by hand: 0.500 instead of 0.333",
        ),
    ],
    3: [
        (  # without the stop token itself
            """
def my_until_stop(emitted, stop_tokens):
    for i, token in enumerate(emitted):
        if token in stop_tokens:
            return emitted[:i]
    return emitted
""",
            "block [5, 6, 7], stops [6]: [5] instead of [5, 6]",
        ),
        (  # takes the legal token 0 for "no token"
            """
def my_until_stop(emitted, stop_tokens):
    for i, token in enumerate(emitted):
        if token and token in stop_tokens:
            return emitted[: i + 1]
    return emitted
""",
            "block [5, 0, 7], stops [0]: [5, 0, 7] instead of [5, 0]",
        ),
        (  # looks at the last token only
            """
def my_until_stop(emitted, stop_tokens):
    while emitted and emitted[-1] in stop_tokens and emitted[-2] in stop_tokens:
        emitted = emitted[:-1]
    return emitted
""",
            "stops [6]: [5, 6, 7] instead of [5, 6]",
        ),
    ],
}
