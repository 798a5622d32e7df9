"""The test bench of promises: one text from the same dice, and what a request asks for beside it.

Of two kinds of decoders, with `speculative_generate`'s arguments, that decode plainly where the
draft is None: a `same_decoder`, whose rng is a SameDice, and a `constrained_decoder`, which takes
`constraints` by name and returns a Completion. Each check raises an AssertionError that says in one
sentence what is wrong and where; it returns None if nothing is.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from nanogpt.drafts.grown import Grown
from nanogpt.drafts.transformer import common_prefix
from nanogpt.generate import autoregressive_generate
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.checks import VARIED, exact_continuations
from nanogpt.proof.decoders import Decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.proof.toys import Deaf, SelfDraft, TableDraft, WorstDraft, random_draft, toy_target
from nanogpt.same import Favourites, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Completion, Constraints, Past, complete
from nanogpt.serving.grammar import Grammar

TEMPERATURES = (Sampling(), Sampling(0.7), Sampling(1.5, top_k=4), Sampling(top_p=0.8))


def check_same(generate: Decoder, cases: int = 40) -> None:
    """By the same dice, each text is token for token the decoder's own without a draft.

    Over restarts, with chains and trees, at several temperatures; and a draft that is the target is
    always right. It does not see what both do wrong alike. generate: a `same_decoder`.
    """
    generator = torch.Generator().manual_seed(0)
    for case in range(cases):
        target = toy_target(7, 8, seed=VARIED[case % 5])
        n_prompt, K, n = (int(torch.randint(1, x, (1,), generator=generator)) for x in (13, 6, 25))
        prompt = torch.randint(7, (n_prompt,), generator=generator).tolist()
        seen, table = min(n_prompt, 8), random_draft(7)
        drafts = table, SelfDraft(target, seen), WorstDraft(target, seen), Grown(table, (2, 2))
        draft = (*drafts, Favourites(table, 6))[case % 5]
        asked = prompt, n, K, TEMPERATURES[case % 4]
        plain = generate(target, None, *asked, SameDice(case, n_prompt)).tokens
        made = generate(target, draft, *asked, SameDice(case, n_prompt))
        same = common_prefix(made.tokens, plain)
        assert made.tokens == plain, (
            f"seed {case}, prompt {prompt}, K = {K}, {type(draft).__name__}: token {same} of {n} "
            f"is {made.tokens[same : same + 1]}, and without a draft {plain[same : same + 1]}"
        )
        if isinstance(draft, SelfDraft) and not isinstance(draft, WorstDraft):
            for i, r in enumerate(made.rounds):
                assert len(r.emitted) == len(r.candidates) + 1, (
                    f"seed {case}, round {i}: of {r.candidates}, guessed by the target's own p, "
                    f"{r.emitted[:-1]} are accepted: whose noise are they drawn by?"
                )


def check_fair(generate: Decoder, n: int = 300, length: int = 2) -> None:
    """Texts of the seeds 0, 1, … come as often as the target says, jointly, by a χ² test.

    Without a draft, and with one that is mostly wrong. It sees what both do wrong alike, if it is
    far off: two tokens by one noise, each of them right alone. generate: a `same_decoder`.
    """
    target, wrong = toy_target(3, 8, seed=2), TableDraft([[0.9, 0.05, 0.05]] * 3)
    exact = exact_continuations(target, length, Sampling())
    for name, draft in (("without a draft", None), ("with a draft", wrong)):
        counts = Counter(
            tuple(generate(target, draft, [0, 1], length, 1, Sampling(), SameDice(i, 2)).tokens)
            for i in range(n)
        )
        statistic, freedom = chi_squared(counts, exact, n)
        limit = chi_squared_limit(freedom)
        assert statistic < limit, (
            f"{name}, the texts of {n} seeds are not spread as the target's: χ² = {statistic:.1f} "
            f"at {freedom} degrees of freedom, where {limit:.1f} is already out of reach by chance"
        )


LETTERS = "abc"
RULES = {
    "a grammar": Constraints(grammar=Grammar("(a[bc]|b[ac])*", LETTERS)),
    "penalties": Constraints(presence=0.8, frequency=0.7, repetition=1.6),
    "a bias and min-p": Constraints(bias={1: -1.2}, min_p=0.3),
    "all of them": Constraints(Grammar("(a|bc*)*", LETTERS), {0: 0.5}, 0.4, 0.3, 1.3, 0.05),
}


@functools.cache
def exact_replies(
    target: GPTLanguageModel, prompt: tuple[int, ...], n: int, what: str
) -> dict[tuple[int, ...], float]:
    """{reply: probability} of plain decoding under one of RULES."""
    return enumerate_outcomes(
        lambda rng: tuple(complete(target, prompt, n, RULES[what], rng=rng).tokens)
    )


def check_constraints(generate: Decoder, n: int = 3, K: int = 2) -> None:
    """Under constraints, n tokens have the joint distribution of plain decoding, by enumeration.

    A grammar, penalties, a bias and min-p; drafts that know nothing of them, as a chain and as a
    tree; the last prompt is read anew on the way. generate: a `constrained_decoder`.
    """
    target, table = toy_target(3, 8, seed=1), Deaf(random_draft(3))
    one_hot = Deaf(TableDraft([[0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    runs = [(what, "a random draft", table, [0, 1], n) for what in RULES]
    runs += [("all of them", "a one-hot draft", one_hot, [0, 1], n)]
    runs += [("all of them", "a tree", Grown(table, (2, 1)), [0, 1], n - 1)]
    runs += [("all of them", "a random draft", table, [0, 1, 2, 0, 1, 2, 2], n)]
    for what, name, draft, prompt, length in runs:
        rules = RULES[what]
        exact = exact_replies(target, tuple(prompt), length, what)
        got = enumerate_outcomes(
            lambda rng, prompt=prompt, length=length, rules=rules, draft=draft: tuple(
                generate(
                    target, draft, prompt, length, K, Sampling(), rng, constraints=rules
                ).tokens
            )
        )
        distance = total_variation(got, exact)
        worst = max(got | exact, key=lambda x: abs(got.get(x, 0) - exact.get(x, 0)))
        assert distance < 1e-12, (
            f"under {what}, with {name} and K = {K}, the reply {spelt(worst)} comes with "
            f"probability {got.get(worst, 0):.4f} instead of {exact.get(worst, 0):.4f}; total "
            f"variation {distance:.1e}"
        )


def spelt(tokens: Sequence[int]) -> str:
    """Tokens of the checks' vocabulary as letters."""
    return repr("".join(LETTERS[token] for token in tokens))


def reply_of(
    free: Sequence[int], n: int, strings: Sequence[Sequence[int]], stop: int | None, last: int
) -> tuple[list[int], str]:
    """Where a reply of n tokens ends that would go on as `free`, and its finish_reason.

    After its first stop token, where the grammar is over after `last` tokens, or before the stop
    string that came first to its end; of several at the same place, the longest.
    """
    for length in range(1, n + 1):
        text = list(free[:length])
        found = [len(string) for string in strings if text[-len(string) :] == string]
        if found or text[-1] == stop or length == last:
            return text[: length - max(found, default=0)], "stop"
    return list(free[:n]), "length"


@functools.cache
def endings() -> list[tuple]:
    """Requests that are told to end in every order, and how they do at temperature 0.

    Each is the place where it ends, a draft that is its target, prompt, max_new_tokens, stop token,
    constraints; and the reply, and why it ends. The last two are of another text than the others.
    """
    # Of greedy texts: five tokens that differ, the context restarting after the third; a long one.
    prompts, places = {89: [5, 6, 0, 1, 2, 3], 48: [0, 1]}, (2, 3, 4)
    asked = itertools.product((3, 5), (1, *places), places, (1, *places))
    cases = sorted({(89, n, *(min(place, n) for place in at)) for n, *at in asked})  # n: never
    cases += [(48, 4, 1, 3, 9), (48, 22, 99, 16, 99)]
    requests, grammars = [], {over: Grammar(f".{{{over + 1}}}", "abcdefg") for over in (1, *places)}
    itself = {seed: SelfDraft(toy_target(7, 8, seed=seed), len(x)) for seed, x in prompts.items()}
    texts = {
        seed: autoregressive_generate(draft.target, prompts[seed], 22, Sampling(0)).tokens
        for seed, draft in itself.items()
    }
    for seed, n, token, at, over in cases:
        own, prompt, free = itself[seed], prompts[seed], texts[seed]
        strings = [free[at : at + 2], free[at - 1 : at + 1], free[at - 2 : at + 1]]
        strings = [[prompt[-1], free[0]], *filter(None, strings[:: 1 if at % 2 else -1])]
        stop, grammar = free[token] if token < n else None, grammars.get(over) if over < n else None
        asked = Constraints(grammar, stop=strings, logprobs=True)
        ends = reply_of(free, n, strings, stop, over + 1)
        requests.append((min(n - 1, token, at, over), own, prompt, n, stop, asked, *ends))
    return requests


def check_ending(made: Completion, request: tuple) -> None:
    """A reply to one of `endings` ends where and as it should."""
    *_, n, stop, asked, expected, why = request
    which = f"stop strings {asked.stop}, stop token {stop}, {n} tokens"
    which += ", a grammar" if asked.grammar else ""
    assert made.tokens == expected, (
        f"{which}: the reply is {made.tokens} and should end as {expected}, by what comes first"
    )
    assert made.finish_reason == why, f"{made.finish_reason!r}, not {why!r}: {which}"
    rows = len(made.logprobs), len(made.processed)
    assert rows == (len(expected), len(expected)), (
        f"{rows} rows of log p come with {len(expected)} tokens: {which}"
    )


def check_stops(generate: Decoder, K: int = 3) -> None:
    """A reply ends where it is first told to, wherever in a round that is, and says why.

    Stop strings, a stop token, a grammar's end and the last token asked for, in every order and at
    one place, in the round that fills the window and in the next; strings that come later, are
    shorter, or begin in the prompt, change nothing. generate: a `constrained_decoder`.
    """
    for i, request in enumerate(endings()):
        _, own, prompt, n, stop, asked, *_ = request
        for draft in (own, None, random_draft(7, 1)) if i % 5 == 0 or len(prompt) == 2 else (own,):
            rule = K, Sampling(0), None, stop
            made = generate(own.target, draft, prompt, n, *rule, constraints=asked)
            check_ending(made, request)


def check_logprobs(generate: Decoder, n: int = 20, K: int = 3) -> None:
    """Each token's log p is the target's own after the text before it: raw, and under the rules.

    Of accepted guesses, of those that replace a rejected one, and of bonus tokens; over restarts.
    generate: a `constrained_decoder`.
    """
    target, prompt, sampling = toy_target(3, 8, seed=1), [0, 1], Sampling(0.8)
    asked = Constraints(presence=0.8, frequency=0.3, bias={1: -0.4}, logprobs=True)
    for draft in (None, random_draft(3), Grown(random_draft(3), (2, 1))):
        made: Completion = generate(
            target, draft, prompt, n, K, sampling, RandomSource(4), constraints=asked
        )
        own, text, past = SelfDraft(target, len(prompt)), list(prompt), Past()
        rows = zip(made.tokens, made.logprobs, made.processed, strict=True)
        for i, (token, raw, processed) in enumerate(rows):
            logits = own.logits(text)
            ruled = sampling.probs(asked.logits(logits[None], [past], prompt))[0].log()
            for name, got, right in (
                ("before the rules", raw, logits.log_softmax(-1)),
                ("after them", processed, ruled),
            ):
                assert torch.allclose(got, right, rtol=0, atol=1e-9), (
                    f"token {i}, {type(draft).__name__}: log p {name} is {float(got[token]):.3f}, "
                    f"and the target's own is {float(right[token]):.3f}"
                )
            text.append(token)
            past = asked.after(past, token)


PROMISE_CHECKS: dict[str, Callable] = {
    "same": check_same,  # of a same_decoder
    "fair": check_fair,
    "constraints": check_constraints,  # of a constrained_decoder
    "stops": check_stops,
    "logprobs": check_logprobs,
}
