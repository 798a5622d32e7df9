"""Answers to the turn (0) and exercises of chapter 07 that must pass, and some that must not."""

LOOP = """
from nanogpt.generate import prefill
def my_speculative_generate(target, draft, prompt_tokens, max_new_tokens, K, sampling, rng):
    tokens, end = list(prompt_tokens), len(prompt_tokens) + max_new_tokens
    past_kvs = None
    while len(tokens) < end:
        unread, n = tokens[cache_length(past_kvs) : -1], len(tokens) - 1
        k = min(K, end - len(tokens) - 1)
        candidates, q = draft_tokens(draft, tokens, k, sampling, rng)
        p, new_kvs = verify_candidates(target, tokens[-1], candidates, past_kvs, sampling, unread)
        emitted = accept_reject(candidates, q, p, rng)
        past_kvs = trim_kv_cache(new_kvs, len(emitted), n)
        tokens += emitted
    return tokens[len(prompt_tokens) :]
"""


def loop(*changes):
    """The right loop with one place changed, or several: old, new, old, new …"""
    made = LOOP
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert made.count(old) == 1, old
        made = made.replace(old, new)
    return made


UNREAD = "tokens[cache_length(past_kvs) : -1]"
ONCE = UNREAD, "tokens[:-1] if past_kvs is None else []"  # only the prompt is ever unread
PREFILLED = "    past_kvs = None\n", "    past_kvs = prefill(target, tokens[:-1])\n"


RIGHT = {
    0: [
        "from nanogpt.speculative import speculative_generate as my_speculative_generate",
        LOOP,
        loop(*ONCE),
        loop(*PREFILLED),  # a pass more, for the prompt alone
        # always K guesses, and the text cut at the end; drafts and trims by hand
        """
from nanogpt.generate import prefill
def my_speculative_generate(target, draft, prompt_tokens, max_new_tokens, K, sampling, rng):
    tokens, made, cache = list(prompt_tokens), [], prefill(target, prompt_tokens[:-1])
    while len(made) < max_new_tokens:
        rows, candidates, held = [], [], len(tokens) - 1
        for _ in range(K):
            rows.append(sampling.of_probs(draft.get_probs([*tokens, *candidates])))
            candidates.append(rng.categorical(rows[-1]))
        p, cache = verify_candidates(target, tokens[-1], candidates, cache, sampling)
        emitted = accept_reject(candidates, torch.stack(rows), p, rng)
        n = held + len(emitted)
        cache = tuple(tuple((k[:, :n], v[:, :n]) for k, v in layer) for layer in cache)
        made, tokens = made + emitted, tokens + emitted
    return tuple(made[:max_new_tokens])
""",
        # the draft is handed tensors and tuples; it drafts before the cache is cut
        """
from nanogpt.generate import prefill
def my_speculative_generate(target, draft, prompt_tokens, max_new_tokens, K, sampling, rng):
    text, n = torch.tensor(prompt_tokens), 0
    cache = prefill(target, text[:-1])
    while n < max_new_tokens:
        candidates, rows = (), [torch.empty(0, draft.vocab_size).double()]
        while len(candidates) < min(K, max_new_tokens - n - 1):
            context = torch.cat([text, torch.tensor(candidates, dtype=torch.int64)])
            q = sampling.of_probs(draft.get_probs(context if n else tuple(context.tolist())))
            candidates += (rng.categorical(q),)
            rows.append(q[None])
        cache = trim_kv_cache(cache, len(text) - 1, 0) if n else cache
        p, cache = verify_candidates(target, int(text[-1]), candidates, cache, sampling)
        new = accept_reject(candidates, torch.cat(rows), p, rng)
        text, n = torch.cat([text, torch.tensor(new)]), n + len(new)
    return text[len(prompt_tokens) :].numpy()
""",
    ],
    1: [
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
    2: [
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
    0: [
        (  # the current token's entry is lost
            loop(*ONCE, "len(emitted), n)", "len(emitted) - 1, n)"),
            "one entry is missing: the current token's stays, too",
        ),
        (  # a rejected guess stays in the cache
            loop("len(emitted), n)", "len(emitted) + 1, n)"),
            "what did the trim keep?",
        ),
        (loop("trim_kv_cache(new_kvs, len(emitted), n)", "new_kvs"), "what did the trim keep?"),
        (loop("past_kvs = None", "past_kvs = prefill(target, tokens)"), "has it already"),
        (  # the prompt is never read
            loop(UNREAD, "[]"),
            "begins with token 1 on a cache of 0, and goes on with",
        ),
        (  # its last token only, and the one before
            loop(UNREAD, "tokens[-2:-1] if past_kvs is None else []"),
            "what has not been read comes first, at the start that is the prompt",
        ),
        (  # the current token stands twice in the pass
            loop(UNREAD, "tokens[cache_length(past_kvs) :]"),
            "is the current token in it twice?",
        ),
        (  # the trim counts from what was cached before the pass
            loop("len(emitted), n)", "len(emitted), cache_length(past_kvs))", *ONCE),
            "the trim counts what stands before the current token",
        ),
        (  # the pass begins with the wrong token
            loop("target, tokens[-1], cand", "target, prompt_tokens[-1], cand"),
            "the last token so far comes first",
        ),
        (loop("end - len(tokens) - 1", "end - len(tokens)"), "a round of k candidates emits up to"),
        (
            loop("while len(tokens) < end:", "while len(tokens) < end - 1:"),
            "you returned 11 tokens, not 12: the last one is a plain step with k = 0",
        ),
        (  # the prompt's tokens are counted as new ones
            loop("len(prompt_tokens) + max_new_tokens", "max_new_tokens"),
            "you returned 9 tokens, not 12: did the prompt's tokens count, too?",
        ),
        (
            loop("list(prompt_tokens), len", "prompt_tokens, len"),
            "changed in place: work on a copy",
        ),
        (  # the draft guesses what follows the prompt, in every round
            loop("draft_tokens(draft, tokens, k", "draft_tokens(draft, prompt_tokens, k"),
            "was asked about [2, 5, 1], but the text so far is",
        ),
        (  # the draft is handed the last token only
            loop("draft_tokens(draft, tokens, k", "draft_tokens(draft, tokens[-1:], k"),
            "it must see the whole text so far",
        ),
        (loop("return tokens[len(prompt_tokens) :]", "return tokens"), "the prompt came back"),
        (loop("    return tokens[len(prompt_tokens) :]\n", ""), "nothing came back"),
        (  # forgets the bonus token and the replacement
            loop("tokens += emitted", "tokens += emitted[:-1] or emitted"),
            "the last token so far comes first",
        ),
        (loop("        tokens += emitted\n", ""), "does the text grow in every round?"),
        (  # no candidates, so one pass a token
            loop("k = min(K, end - len(tokens) - 1)", "k = 0"),
            "one pass checks all of them",
        ),
        (loop("k = min(K, end", "k = min(1, end"), "you made 6 passes where 3 would do"),
        (  # the bonus token is thrown away
            loop("- len(tokens) - 1)", "- len(tokens))", "p, rng)\n", "p, rng)[: max(k, 1)]\n"),
            "you made 4 passes where 3 would do",
        ),
        (  # the draft says each q a second time
            loop(
                "        p, new_kvs",
                "        told = [draft.get_probs([*tokens, *candidates[:i]]) for i in range(k)]\n"
                "        q = sampling.of_probs(torch.stack(told)) if told else q\n"
                "        p, new_kvs",
            ),
            "the draft was asked 6 times before one pass",
        ),
        (
            loop("k = min(K, end", "k = min(K - 1, end"),
            "where 3 would do: a round may have 3 candidates",
        ),
        (  # what it cuts too much is read again
            loop("len(emitted), n)", "len(emitted) - 1, n)"),
            "reads 5 tokens on a cache of 2, where 4 would do",
        ),
        (  # what the prompt's pass read is never kept
            loop("len(emitted), n)", "len(emitted), cache_length(past_kvs))"),
            "where 4 would do: keep what a pass has read",
        ),
        (loop("trim_kv_cache(new_kvs, len(emitted), n)", "None"), "where 4 would do"),  # no cache
        (  # one round per call, the cache made anew each time
            """
from nanogpt.generate import prefill
def my_speculative_generate(target, draft, prompt_tokens, max_new_tokens, K, sampling, rng):
    if max_new_tokens == 0:
        return torch.tensor([], dtype=torch.int64)
    tokens = torch.tensor(prompt_tokens).tolist()
    candidates, q = draft_tokens(draft, tokens, min(K, max_new_tokens - 1), sampling, rng)
    kvs = prefill(target, tokens[:-1])
    p, _ = verify_candidates(target, tokens[-1], candidates, kvs, sampling)
    emitted = accept_reject(candidates, q, p, rng)
    left = max_new_tokens - len(emitted)
    rest = my_speculative_generate(target, draft, tokens + emitted, left, K, sampling, rng)
    return torch.cat([torch.tensor(emitted), rest])
""",
            "where 4 would do",
        ),
        (  # more candidates than it may have
            loop("k = min(K, end", "k = min(K + 3, end"),
            "a round has at most K = 3 candidates",
        ),
        (
            loop("past_kvs, sampling, unread)", "past_kvs, Sampling(), unread)"),
            "greedy, the text is",
        ),
        (  # the same random numbers in every round
            loop("(candidates, q, p, rng)", "(candidates, q, p, RandomSource(0))"),
            "do all draws come from rng",
        ),
    ],
    1: [
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
    2: [
        (  # the first stop of the set, not of the block
            """
def my_until_stop(emitted, stop_tokens):
    for stop in sorted(stop_tokens):
        if stop in emitted:
            return emitted[: emitted.index(stop) + 1]
    return emitted
""",
            "block [7, 6, 5], stops [6, 7]: [7, 6] instead of [7]",
        ),
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
