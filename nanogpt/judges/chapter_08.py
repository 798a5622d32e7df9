"""The judge of chapter 08's *Your turn*: a check that catches a bug."""

from __future__ import annotations

from collections.abc import Callable

from nanogpt.cache import trim_kv_cache
from nanogpt.checks import decoder
from nanogpt.generate import autoregressive_generate
from nanogpt.speculative import residual, speculative_generate


def check(mine: Callable) -> None:
    """Judges a check of a decoder (chapter 08): it takes three right ones and refuses four wrong.

    Raises AssertionError if it refuses a right one, never fails, or looks at too little.
    """

    def drafts_nothing(target, draft, prompt, n, K=4, *rest, **named):
        return autoregressive_generate(target, prompt, n, *rest, **named)

    for name, right in {
        "speculative_generate": speculative_generate,
        "a decoder that drafts nothing": drafts_nothing,
        "a decoder that draws once per candidate": decoder(accept_reject=one_draw),
    }.items():
        try:
            mine(right)
        except AssertionError as error:
            raise AssertionError(
                f"your check refuses {name}, which is right (it says {str(error)[:200]!r}): right "
                "decoders may use random numbers differently and round differently, so compare "
                "probabilities, and allow 1e-9"
            ) from error
    for name, wrong, look in biased_decoders():
        try:
            said = mine(wrong)
        except Exception:  # it passed the right ones, so whatever it raises is about this one
            continue
        returned = "" if said is None else f" (it returned {said!r}, but a check must raise)"
        raise AssertionError(f"your check passes {name}{returned}: {look}")


def ends_with(replacement, bonus) -> Callable:
    """accept_reject with other last draws: from replacement(i, p, q), or bonus(p) if all is kept.

    Of candidates drawn with draft_probs (K, V), judged by target_probs (K+1, V).
    """

    def accept_reject(candidates, draft_probs, target_probs, rng):
        p, q = target_probs.numpy(), draft_probs.numpy()
        for i, token in enumerate(candidates):
            if not rng.bernoulli(min(1.0, p[i, token] / q[i, token])):
                return [*candidates[:i], rng.categorical(replacement(i, p[i], q[i]))]
        return [*candidates, rng.categorical(bonus(p))]

    return accept_reject


def one_draw(candidates, draft_probs, target_probs, rng) -> list[int]:
    """accept_reject, as right as the package's, with one draw for a candidate where that has two.

    Of draft_probs (K, V) and target_probs (K+1, V).
    """
    p, q = target_probs.numpy(), draft_probs.numpy()
    for i, token in enumerate(candidates):
        kept = min(1.0, p[i, token] / q[i, token])
        outcome = (1 - kept) * residual(p[i], q[i])
        outcome[token] += kept
        drawn = rng.categorical(outcome)
        if drawn != token:
            return [*candidates[:i], drawn]
    return [*candidates, rng.categorical(p[len(candidates)])]


def biased_decoders() -> list[tuple]:
    """Four wrong decoders: what each does, the decoder, what a check that passes it should ask."""

    def resampling_right(i, p, q):
        return residual(p, q)

    def last_row(p):
        return p[-1]

    chance = "does chance decide its texts, is anything drafted, and now and then rejected?"
    longer = "a round drafts at most one token fewer than are still asked for: are K and the text "
    longer += "long enough for every way through a round (and, if it samples, are there many)?"
    kinds = [
        ("the decoder that resamples from p", lambda i, p, q: p, last_row, chance),
        ("a decoder that resamples from p at the second candidate only",
         lambda i, p, q: p if i else residual(p, q), last_row, longer),
        ("a decoder that draws the bonus token one row too early",
         resampling_right, lambda p: p[max(0, len(p) - 2)], longer),
    ]  # fmt: skip
    late = decoder(trim_kv_cache=lambda kvs, n, before: trim_kv_cache(kvs, n + 1, before))
    return [
        *((name, decoder(accept_reject=ends_with(*draws)), look) for name, *draws, look in kinds),
        ("a decoder whose cache keeps a rejected token", late, "is there time for a second round?"),
    ]
