"""Chapter 07: the judge of *Your turn*, and the chapter's own pictures.

The turn: the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import matplotlib as mpl
import torch

from nanogpt.cache import cache_length
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.proof.checks import exact_continuations, tensors
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import SelfDraft, Watched, WorstDraft, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show.diagrams import arrow, box, sheet, words
from nanogpt.show.figures import GREY, STYLE, Picture, shown
from nanogpt.speculative import Draft


def judge(mine: Callable) -> None:
    """mine(target, draft, prompt_tokens, max_new_tokens, K, sampling, rng) writes as the target.

    Returns the new tokens. Judged inside the window: greedy, beside autoregressive decoding, with
    a look at every pass; then sampling, by enumeration. Raises AssertionError.
    """
    model = toy_target(11, 64, seed=25)
    oneself, worst = SelfDraft(model, 3), WorstDraft(model, 3)
    for draft in (worst, oneself, random_draft(11)):
        for prompt, n, K in (([2, 5, 1], 12, 3), ([4], 7, 2), ([2, 5, 1], 1, 4)):
            target, given, rng = Counted(model), list(prompt), RandomSource(0)
            asked = Asked(draft, target)
            made = mine(target, asked, given, n, K, Sampling(0), rng)
            assert given == prompt, "the prompt was changed in place: work on a copy"
            made = new_tokens(made, n, prompt)
            right = autoregressive_generate(model, prompt, n, Sampling(0)).tokens
            wrong = off_track(asked, prompt + made, len(prompt))
            wrong = wrong or (made != right and asked.doubled(K))
            where = f"{type(draft).__name__}, prompt {prompt}, {n} tokens, K = {K}"
            assert not wrong and made == right, (
                f"{where}: greedy, the text is {made} instead of {right}; "
                f"{wrong or 'each pass began well; do target and draft get the sampling?'}"
            )
            blind = asked.blind(prompt + made, len(prompt))
            assert not blind, f"{where}: {blind}"
            asks = max(Counter(i for i, _ in asked.contexts).values(), default=0)
            assert asks <= K, (
                f"{where}: the draft was asked {asks} times before one pass; a round has at most "
                f"K = {K} candidates: ask once for each, and keep the q that it says"
            )
            alone = bool(asked.contexts and asked.contexts[0][0])  # one for the prompt is fine
            assert draft is not oneself or n < 12 or len(target.passes) - alone <= 3, (
                f"{where}: every guess was right, but you made {len(target.passes)} passes where "
                f"3 would do: a round may have {K} candidates, and one pass checks all of them and "
                "adds a bonus token"
            )
            wasted = read_again(target, len(prompt), K)
            assert not wasted, f"{where}: the text is right, but {wasted}"
    small, table = toy_target(2, 32, seed=7), random_draft(2)
    for K, sampling in ((2, Sampling()), (1, Sampling(0.5))):

        def program(rng, K=K, sampling=sampling):
            made = mine(Counted(small), table, [0, 1], 3, K, sampling, rng)
            return tuple(new_tokens(made, 3, [0, 1]))

        got, right = enumerate_outcomes(program), exact_continuations(small, 3, sampling)
        off = max(got | right, key=lambda x: abs(got.get(x, 0) - right.get(x, 0)))
        assert total_variation(got, right) < 1e-9, (
            f"K = {K}, {sampling}: greedy texts are right, but sampled ones are not: {off} comes "
            f"with probability {got.get(off, 0):.3f} instead of {right.get(off, 0):.3f}; do all "
            "draws come from rng, and do draft and target get the same sampling?"
        )


class Counted(Watched):
    """A target that stops a decoder which makes far more passes than its text has tokens."""

    def __call__(self, idx, past_kvs=None, **kwargs):
        assert len(self.passes) < 60, "60 passes and no end: does the text grow in every round?"
        return super().__call__(idx, past_kvs, **kwargs)


class Asked(Draft):
    """A draft that remembers each context it is asked about, and before which pass."""

    def __init__(self, draft, target: Watched):
        self.draft, self.target, self.vocab_size = draft, target, draft.vocab_size
        self.contexts: list[tuple[int, tuple[int, ...]]] = []

    def get_probs(self, context) -> torch.Tensor:
        """The draft's q (V,)."""
        self.contexts.append((len(self.target.passes), tuple(int(token) for token in context)))
        return self.draft.get_probs(context)

    def doubled(self, K: int) -> str:
        """What is wrong with the first pass that is longer than text and guesses, or ""."""
        for i, context in self.contexts:
            given, past_kvs = self.target.passes[i] if i < len(self.target.passes) else ([], None)
            new = len(context) - cache_length(past_kvs)
            if len(given) > new + K:
                return (
                    f"pass {i + 1} of the target reads {len(given)} tokens, where the text has "
                    f"{new} new ones and there are {K} guesses: is the current token in it twice? "
                    "What is unread stops before it"
                )
        return ""

    def blind(self, text: list[int], n_prompt: int) -> str:
        """What is wrong with the first context that is not the text so far, or ""."""
        for i, context in self.contexts:
            _, past_kvs = self.target.passes[i] if i < len(self.target.passes) else ([], None)
            # the current token is not cached yet; of the prompt, nothing need be
            so_far = text[: max(cache_length(past_kvs) + 1, n_prompt)]
            if list(context[: len(so_far)]) != so_far:
                return (
                    f"before pass {i + 1} of the target, the draft was asked about {[*context]}, "
                    f"but the text so far is {so_far}: it must see the whole text so far"
                )
        return ""


def read_again(target: Watched, n_prompt: int, K: int) -> str:
    """What the first pass wastes that reads more than the current token and K guesses, or ""."""
    seen = 0  # tokens that some pass has read
    for i, (given, past_kvs) in enumerate(target.passes):
        if seen >= n_prompt - 1 and i and len(given) > K + 1:
            return (
                f"pass {i + 1} of the target reads {len(given)} tokens on a cache of "
                f"{cache_length(past_kvs)}, where {K + 1} would do: keep what a pass has read, the "
                "current token's entry and those of the accepted candidates"
            )
        seen = max(seen, cache_length(past_kvs) + len(given))
    return ""


def new_tokens(made, n: int, prompt: list[int]) -> list[int]:
    """What a decoder returned, as a list of n tokens. Raises AssertionError if it is not."""
    assert made is not None, "nothing came back: return the new tokens"
    try:
        made = [int(token) for token in getattr(made, "tokens", made)]
    except (TypeError, ValueError) as error:
        raise AssertionError("return the new tokens alone, one list of numbers") from error
    if len(made) == n + len(prompt) and made[: len(prompt)] == prompt:
        raise AssertionError("the prompt came back, too: return the new tokens only")
    hint = "a round of k candidates emits up to k + 1 tokens; how many are left to write?"
    if len(made) == n - len(prompt):
        hint = "did the prompt's tokens count, too?"
    elif len(made) == n - 1:
        hint = "the last one is a plain step with k = 0"
    assert len(made) == n, f"you returned {len(made)} tokens, not {n}: {hint}"
    return made


def off_track(asked: Asked, text: list[int], n_prompt: int) -> str:
    """What is wrong with the first pass that does not go on where its cache ends, or ""."""
    watched = asked.target
    for i, (given, past_kvs) in enumerate(watched.passes):
        P = cache_length(past_kvs)
        fresh = tensors(prefill(watched.target, text[:P])) if 0 < P < len(text) else []
        same = P < len(text) and all(
            torch.allclose(kept, right, rtol=0, atol=1e-9)
            for kept, right in zip(tensors(past_kvs), fresh, strict=False)
        )
        where = f"pass {i + 1} of the target begins with token {given[0]} on a cache of {P}"
        if not same:
            return f"{where}, not that of the text's first {P} tokens: what did the trim keep?"
        known = max(n_prompt, P + 1)  # tokens of the text, the last of them the current one
        if given[: known - P] != text[P : min(known, P + len(given))]:
            return f"{where}, {slip(asked, i, text, n_prompt)}"
    return ""


def slip(asked: Asked, i: int, text: list[int], n_prompt: int) -> str:
    """What went wrong in pass i, which begins with other tokens than those that its cache lacks."""
    earlier, (given, past_kvs) = asked.target.passes[:i], asked.target.passes[i]
    P = cache_length(past_kvs)
    so_far = next((len(context) for before, context in asked.contexts if before == i), P + 2)
    if earlier and earlier[0][0][:n_prompt] == text[:n_prompt] and P < n_prompt - 1:
        return (
            f"where the first pass had read all {n_prompt} tokens of the prompt: the trim counts "
            "what stands before the current token, whether it was in the cache before the pass or "
            "was read by it"
        )
    if P < n_prompt - 1:
        unread = text[P:n_prompt]
        return (
            f"and goes on with {given[1:]}, where the prompt has {unread}: what has not been read "
            "comes first, at the start that is the prompt"
        )
    if P == n_prompt and len(earlier) == 1 and earlier[0][0] == text[:P]:
        return "which has it already: the prompt's last token enters with the guesses"
    if so_far > P + 1 and text[P + 1 : P + 2] == given[:1]:
        return "so one entry is missing: the current token's stays, too"
    return f"where the text has {text[P]}: the last token so far comes first"


def letters_of(axes, drafted: str, emitted: str) -> None:
    """The letters of a round in its picture: those that are guessed, and what became of them."""
    K, n = len(drafted), len(emitted) - 1
    for i, letter in enumerate(drafted):
        box(axes, 19.2 + 4.3 * i, 1.2, 4, 3, shown(letter), "draft")
    last = ("★", "bonus") if n == K else ("↻", "resampled")
    for i, letter in enumerate(emitted):
        mark, fate = ("✓", "accepted") if i < n else last
        x, y = 81 + 4.2 * (i % 4), 5.7 + 3.5 * (i // 4)
        box(axes, x, y, 3.9, 3.2, f"{mark}{shown(letter)}", fate)


@mpl.rc_context(STYLE)
def round_flow(text: str, drafted: str, emitted: str, cached: int, V: int, title: str) -> Picture:
    """A round as a flow of data: the four calls, and what each of them hands on.

    text: what stood before the round, drafted and emitted: its letters; cached: the entries before
    the pass; V: the size of the vocabulary.
    """
    shows = "Text and cache go through draft, check, verdict and trim, and come out longer."
    axes, K, n = sheet(title, 9.8, 3.7, shows), len(drafted), len(emitted) - 1
    for x, y, name, kind in (
        (20, 5, "draft_tokens", "draft"),
        (40, 16, "verify_candidates", "target"),
        (62, 5, "accept_reject", "plain"),
        (62, 27, "trim_kv_cache", "plain"),
    ):
        box(axes, x, y, 17, 4.6, name, kind)
    for start, end, said, (x, y) in (
        ((13, 7.3), (20, 7.3), "", (0, 0)),
        ((9, 10), (40, 17.3), f"current token “{shown(text[-1])}”", (18.5, 14.7)),
        ((13, 29.3), (40, 19.5), f"cache of {cached}", (21.5, 23.2)),
        ((37, 7.3), (62, 7.3), f"candidates, q ({K}, {V})", (50, 6.1)),
        ((31, 9.6), (43, 16), f"{K} candidates", (43, 12)),
        ((53, 16), (66, 9.6), f"p ({K + 1}, {V})", (64.5, 13.2)),
        ((53, 20.6), (66, 27), f"cache of {cached + K + 1}", (53, 25)),
        ((72, 9.6), (72, 27), f"{n + 1} emitted: keep {cached} + {n + 1}", (82.5, 19)),
        ((79, 7.3), (81, 7.3), "", (0, 0)),
        ((79, 29.3), (81, 29.3), "", (0, 0)),
    ):
        arrow(axes, start, end)
        words(axes, x, y, said, fontsize=9)
    box(axes, 1, 5, 12, 4.6, shown(text[-8:]), "target")
    box(axes, 1, 27, 12, 4.6, f"cache of {cached}", "cached")
    letters_of(axes, drafted, emitted)
    box(axes, 81, 27, 12, 4.6, f"cache of {cached + n + 1}", "cached")
    for x, y, said in (
        (7, 3.6, "text so far"),
        (89, 4.2, "new text"),
        (49, 34.7, "text and cache go into the next round; the last token waits outside the cache"),
    ):
        words(axes, x, y, said, color=GREY, fontsize=9)
    return axes.figure
