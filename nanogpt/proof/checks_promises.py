"""The test bench of promises: one text from the same dice, and what a request asks for beside it.

Of two kinds of decoders, with `speculative_generate`'s arguments, that decode plainly where the
draft is None: a `same_decoder`, whose rng is a SameDice, and a `constrained_decoder`, which takes
`constraints` by name and returns a Completion. Each check raises an AssertionError that says in one
sentence what is wrong and where; it returns None if nothing is.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from nanogpt.drafts.grown import Grown
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.checks import VARIED, exact_continuations, iter_equal
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
        same = sum(1 for _ in iter_equal(made.tokens, plain))
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


def first_stop(free: Sequence[int], stop: Sequence[int]) -> int | None:
    """How many tokens of a text come before the stop string; None if it never comes."""
    n = len(stop)
    return next((i for i in range(len(free) - n + 1) if list(free[i : i + n]) == list(stop)), None)


def check_stops(generate: Decoder, n: int = 24, K: int = 3) -> None:
    """A reply ends before its first stop string, wherever in a round that is, and says why.

    Strings of two and three tokens that come, and some that do not: every fifth of two.
    generate: a `constrained_decoder`.
    """
    target = toy_target(7, 8)

    def run(draft, stop=()):
        asked = Constraints(stop=stop, logprobs=True)
        rng = RandomSource(9)
        return generate(target, draft, [0, 1], n, K, Sampling(), rng, constraints=asked)

    for draft in (None, SelfDraft(target, 2), random_draft(7)):
        free = run(draft).tokens
        strings = [free[i : i + m] for m in (2, 3) for i in range(0, n - m, m)]
        for stop in strings + [[i // 7, i % 7] for i in range(0, 49, 5)]:
            made, at = run(draft, [stop]), first_stop(free, stop)
            expected, why = (free, "length") if at is None else (free[:at], "stop")
            assert made.tokens == expected, (
                f"stop string {stop}: the reply has {len(made.tokens)} tokens and should end after "
                f"{len(expected)}, where the string begins in {free}"
            )
            assert made.finish_reason == why, f"{made.finish_reason!r}, not {why!r}: stop {stop}"
            rows = len(made.logprobs), len(made.processed)
            assert rows == (len(expected), len(expected)), (
                f"{rows} rows of log p come with {len(expected)} tokens: stop string {stop}"
            )


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
