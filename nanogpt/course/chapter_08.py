"""Chapter 08: the judge of *Your turn*, and the chapter's own pictures.

The turn: a check that catches a bug.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import matplotlib as mpl

from nanogpt.cache import trim_kv_cache
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.decoders import decoder
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture
from nanogpt.speculative import accept_reject, residual, speculative_generate


def judge(mine: Callable) -> None:
    """Judges a check of a decoder (chapter 08): it takes three right ones and refuses seven wrong.

    Raises AssertionError if it refuses a right one, never fails, or looks at too little.
    """

    def drafts_nothing(target, draft, prompt_tokens, max_new_tokens, K=4, *rest, **named):
        return autoregressive_generate(target, prompt_tokens, max_new_tokens, *rest, **named)

    for name, right in {
        "speculative_generate": speculative_generate,
        "a decoder that drafts nothing": drafts_nothing,
        "a decoder that draws once per candidate": decoder(accept=one_draw),
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
        if said is False:
            look = "It returned False, but a check must raise an AssertionError."
        raise AssertionError(f"your check passes {name}. {look}")


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
    """A right accept_reject of draft_probs (K, V), target_probs (K+1, V): one draw a candidate."""
    p, q = target_probs.numpy(), draft_probs.numpy()
    for i, token in enumerate(candidates):
        kept = min(1.0, p[i, token] / q[i, token])
        outcome = (1 - kept) * residual(p[i], q[i])
        outcome[token] += kept
        drawn = rng.categorical(outcome)
        if drawn != token:
            return [*candidates[:i], drawn]
    return [*candidates, rng.categorical(p[len(candidates)])]


def too_kind(candidates, draft_probs, target_probs, rng) -> list[int]:
    """A wrong accept_reject: a rejected guess is kept after all, once in a thousand times."""
    kept = accept_reject(candidates, draft_probs, target_probs, rng)
    n = len(kept) - 1
    if n < len(candidates) and rng.bernoulli(0.001):
        return [*candidates[: n + 1], rng.categorical(target_probs[n + 1])]
    return kept


def first_token_anew(target, draft, prompt_tokens, max_new_tokens, *rest, **named):
    """A wrong decoder: each position's letters are spread as they should be, but not the texts."""
    made = speculative_generate(target, draft, prompt_tokens, max_new_tokens, *rest, **named)
    first = speculative_generate(target, draft, prompt_tokens, 1, *rest, **named)
    return dataclasses.replace(made, tokens=first.tokens + made.tokens[1:])


def back_to_front(*request, **named):
    """A wrong decoder: its texts have the right probabilities, but not each its own."""
    made = speculative_generate(*request, **named)
    return dataclasses.replace(made, tokens=made.tokens[::-1])


def biased_decoders() -> list[tuple]:
    """Seven wrong decoders: what each does, the decoder, what a check that passes it should ask."""
    samples = "(If you sample: enough texts?)"
    chance = "Are its texts random, is anything drafted, and sometimes rejected?"
    two = f"Is K large enough, and the text long enough, for a round to draft two? {samples}"
    bonus = f"Does a round sometimes accept all its candidates, and add one token? {samples}"
    kinds = [
        ("the decoder that resamples from p", lambda i, p, q: p, lambda p: p[-1], chance),
        ("a decoder that resamples from p at the second candidate only",
         lambda i, p, q: p if i else residual(p, q), lambda p: p[-1], two),
        ("a decoder that draws the bonus token one row too early",
         lambda i, p, q: residual(p, q), lambda p: p[max(0, len(p) - 2)], bonus),
    ]  # fmt: skip
    exact = "How far off may its probabilities be? Rounding needs no more than 1e-9."
    late = decoder(trim=lambda kvs, n, before: trim_kv_cache(kvs, n + 1, before))
    return [
        *((name, decoder(accept=ends_with(*draws)), look) for name, *draws, look in kinds),
        ("a decoder that keeps one guess in a thousand too many", decoder(accept=too_kind), exact),
        ("a decoder whose cache keeps a rejected token", late, "Is there time for a second round?"),
        (
            "a decoder whose letters are right position by position, but not its texts",
            first_token_anew,
            "Compare the distributions of whole texts.",
        ),
        ("a decoder that writes its texts back to front", back_to_front, "Compare text by text."),
    ]


@mpl.rc_context(STYLE)
def checks_of_a_round(notes: Mapping[str, str], title: str) -> Picture:
    """A decoder's round, and each check of it below what it looks at; notes: {check: its words}."""
    axes = sheet(title, 9, 4.4, f"Each check stands below what it looks at: {', '.join(notes)}.")
    flow = [
        (1, "draft\nq, K guesses", "draft"),
        (24.5, "target, one pass\np for each", "target"),
        (48, "accept or reject", "plain"),
        (71.5, "trim the cache", "cached"),
    ]
    for x, text, kind in flow:
        box(axes, x, 6, 17.5, 5.5, text, kind)
    for x, *_ in flow[1:]:
        arrow(axes, (x - 6, 8.7), (x, 8.7))
    arrow(axes, (80, 6), (10, 6), bend=0.09)
    words(axes, 45, 2.0, "the next round", fontsize=9)
    box(axes, 1, 26.5, 88, 4, "the text that comes out")
    arrow(axes, (64, 11.5), (64, 26.5))
    words(axes, 67.3, 19, "tokens", fontsize=9)
    inside = {"draft": 9.7, "acceptance": 54, "cache": 80.2}
    outside = [name for name in notes if name not in inside]
    places = {name: (at, 16.5, 11.5) for name, at in inside.items()}
    step = 88 / max(1, len(outside))
    places |= {name: (1 + (i + 0.5) * step, 35, 30.5) for i, name in enumerate(outside)}
    for name, note in notes.items():
        x, y, looks_at = places[name]
        axes.plot([x, x], [y, looks_at], color=GREY, linestyle=":")
        box(axes, x - 8.2, y, 16.4, 7.5, "", "gone")
        words(axes, x, y + 1.6, f"{name}?", fontweight="bold")
        words(axes, x, y + 4.9, note, fontsize=9)
    return axes.figure
