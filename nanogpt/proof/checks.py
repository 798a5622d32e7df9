"""The test bench: checks of a speculative decoder that take the decoder to test as an argument.

A decoder is a function with `speculative_generate`'s arguments. Each check runs it on the small
models of `nanogpt.proof.toys`, and raises an AssertionError that says in one sentence what is wrong
and where; it returns None if nothing is. `nanogpt.proof.decoders` makes decoders of the package's
loops and parts of your own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.drafts import eagle
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.transformer import TransformerDraft, common_prefix
from nanogpt.generate import Generation, Round, autoregressive_generate, prefill
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.decoders import Decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.proof.toys import (
    Led,
    SecondBest,
    SelfDraft,
    TableDraft,
    Watched,
    WorstDraft,
    Zeros,
    context_start,
    deep_toy,
    random_draft,
    random_head,
    toy_pairs,
    toy_states,
    toy_target,
)
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import residual
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.targets.state import WAYS


def parents_of(r: Round) -> list[int]:
    """The parents of a round's candidates: those of a chain are -1, 0, 1, …"""
    return getattr(r, "parents", [*range(-1, len(r.candidates) - 1)])  # a mutant has its own class


def path_of(r: Round) -> list[int]:
    """The accepted nodes of a round: those of a chain are 0, 1, …"""
    return getattr(r, "path", [*range(r.n_accepted)])


def contexts(r: Round, text: Sequence[int]) -> list[list[int]]:
    """What each row of a round's target_probs comes after: the text, and a node's path in it."""
    found = [list(text)]
    for token, parent in zip(r.candidates, parents_of(r), strict=True):
        found.append([*found[parent + 1], token])
    return found


SAMPLINGS = (Sampling(0.5), Sampling(top_k=2), Sampling(top_p=0.7))


@functools.cache
def exact_continuations(
    target: GPTLanguageModel,
    n: int,
    sampling: Sampling = Sampling(),
    prompt: tuple[int, ...] = (0, 1),
    stop: int | None = None,
) -> dict[tuple[int, ...], float]:
    """{n tokens, or up to a stop token: probability} of the target's own continuations."""
    return enumerate_outcomes(
        lambda rng: tuple(autoregressive_generate(target, prompt, n, sampling, rng, stop).tokens)
    )


def check_joint(generate: Decoder, request: tuple, name: str, bound: float = 1e-12) -> float:
    """The joint distribution of n tokens after a prompt is the target's own, by enumeration.

    request: target, draft, prompt, n, K, sampling; name: the draft's, for the message. Returns the
    total variation, which is below `bound`.
    """
    target, _, prompt, n, K, sampling = request
    exact = exact_continuations(target, n, sampling, tuple(prompt))
    got = enumerate_outcomes(lambda rng: tuple(generate(*request, rng).tokens))
    distance = total_variation(got, exact)
    worst = max(got | exact, key=lambda x: abs(got.get(x, 0) - exact.get(x, 0)))
    assert distance < bound, (
        f"the output is not the target's: with {name}, K = {K} and {sampling}, tokens {worst} "
        f"come with probability {got.get(worst, 0):.4f} instead of {exact.get(worst, 0):.4f}; "
        f"total variation {distance:.1e}"
    )
    return distance


def check_lossless(generate: Decoder, n: int = 3, K: int = 2) -> None:
    """The joint distribution of n tokens is the target's own, to 1e-12, by enumeration.

    With temperature, top-k and top-p, of n - 1 tokens.
    """
    target, random = toy_target(3, 8, seed=1), random_draft(3)
    one_hot = TableDraft([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    cases = [(random, "a random draft", n, Sampling())]
    cases += [(one_hot, "a one-hot draft", n, Sampling())]
    cases += [(random, "a random draft", n - 1, sampling) for sampling in SAMPLINGS]
    for draft, name, length, sampling in cases:
        check_joint(generate, (target, draft, [0, 1], length, K, sampling), name)


VARIED = (8, 9, 10, 22, 48)  # seeds of toys whose greedy texts go on varying


@functools.cache
def greedy_text(target: GPTLanguageModel, prompt: tuple[int, ...], n: int) -> list[int]:
    """The target's own n tokens after the prompt at temperature 0."""
    return autoregressive_generate(target, prompt, n, Sampling(0)).tokens


def check_same_text(
    generate: Decoder, target, draft, prompt: list[int], n: int, K: int, seed: int
) -> None:
    """At temperature 0, the n tokens after a prompt are autoregressive decoding's own."""
    expected, rng = greedy_text(target, tuple(prompt), n), RandomSource(seed)
    got = generate(target, draft, prompt, n, K, Sampling(0), rng).tokens
    same = common_prefix(got, expected)
    assert got == expected, (
        f"greedy decoding differs from the target's own: prompt {prompt}, K = {K}, "
        f"{type(draft).__name__}: token {same} of {n} is {got[same : same + 1]} instead of "
        f"{expected[same : same + 1]}"
    )


def check_greedy(generate: Decoder, cases: int = 8, seed: int = 0) -> None:
    """At temperature 0, the tokens are autoregressive decoding's own, over up to three windows."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        target = toy_target(7, 8, seed=VARIED[case % 5])
        n_prompt, K = (int(torch.randint(1, 13, (1,), generator=generator)) for _ in range(2))
        n = int(torch.randint(1, 25, (1,), generator=generator))
        prompt = torch.randint(7, (n_prompt,), generator=generator).tolist()
        seen = min(n_prompt, 8)
        even = TableDraft(torch.full((7, 7), 1 / 7))
        itself = SelfDraft(target, seen)
        drafts = (random_draft(7), even, itself, WorstDraft(target, seen))
        check_same_text(generate, target, drafts[case % 4], prompt, n, K, case)


def check_acceptance(generate: Decoder, n: int = 120) -> None:
    """A draft equal to the target is always accepted, and others as often as Σ min(p, q) says.

    This is what catches bugs that slow decoding down without changing its output.
    """
    target = toy_target(7, 8)
    for sampling in (Sampling(), Sampling(0.7)):
        made = generate(target, SelfDraft(target, 2), [0, 1], 24, 3, sampling, RandomSource(1))
        for i, r in enumerate(made.rounds):
            assert len(r.emitted) == len(r.candidates) + 1, (
                f"a draft equal to the target was rejected: {sampling}, round {i}, candidates "
                f"{r.candidates}, emitted {r.emitted}"
            )
    made = generate(target, random_draft(7), [0, 1], n, 3, Sampling(), RandomSource(2))
    expected = variance = accepted = 0.0
    for r in made.rounds:
        for i in range(r.n_examined):
            overlap = float(torch.minimum(r.target_probs[i], r.draft_probs[i]).sum())
            expected, variance = expected + overlap, variance + overlap * (1 - overlap)
        accepted += r.n_accepted
    assert abs(accepted - expected) <= 4 * variance**0.5, (
        f"{accepted:.0f} candidates were accepted where Σ min(p, q) says {expected:.1f} "
        f"± {variance**0.5:.1f}"
    )


def check_draft_cache(generate: Decoder, n: int = 12, K: int = 3) -> None:
    """A draft with a cache of its own says what it would say without one, whatever was accepted.

    Nothing else sees it: with a wrong q the text is still right, only slower.
    """
    model = toy_target(7, 64, seed=3)
    for target in (toy_target(7, 64), model):  # some are rejected, or all accepted
        draft, fresh, tokens = TransformerDraft(model), SelfDraft(model, 2), [0, 1]
        made = generate(target, draft, tokens, n, K, Sampling(), RandomSource(4))
        for i, r in enumerate(made.rounds):
            before = contexts(r, tokens)
            for j, (q, parent) in enumerate(zip(r.draft_probs, parents_of(r), strict=True)):
                right = fresh.get_probs(before[parent + 1]) * (q > 0)  # without earlier siblings
                right /= right.sum()
                assert torch.allclose(q, right, rtol=0, atol=1e-9), (
                    f"round {i}, candidate {j}: the draft's q is off by "
                    f"{float((q - right).abs().max()):.2f} from what it gives without a cache"
                )
            tokens += r.emitted


def check_cache(generate: Decoder, n: int = 20, K: int = 3) -> None:
    """Before every round, the cache is that of a fresh prefill, and what it lacks is read.

    It may lack the whole context at first, or after a restart; later, only the current token.
    """
    for length in (3, n):  # the first is too short for a wrong cache to run past the window
        check_cache_of(generate, length, K)


def check_cache_of(generate: Decoder, n: int, K: int) -> None:
    """As check_cache, for one text of n new tokens."""
    prompt, target = [0, 1, 2], toy_target(7, 8)
    watched = Watched(target)
    made = generate(watched, random_draft(7), prompt, n, K, Sampling(), RandomSource(3))
    text = prompt + made.tokens
    passes, current, last = iter(watched.passes), len(prompt) - 1, None
    for i, r in enumerate(made.rounds):
        start = context_start(current + 1, len(prompt), 8)
        where = f"round {i}, after the text {text[: current + 1]}"
        given, past_kvs = next(passes)
        if cache_length(past_kvs) + len(given) <= current - start:  # a prefill, before it guessed
            given, past_kvs = next(passes)
        P = cache_length(past_kvs)
        assert P == current - start or (P == 0 and start != last), (
            f"the cache holds {P} tokens instead of {current - start}: {where}"
        )
        fresh = prefill(target, text[start : start + P])
        pairs = zip(tensors(past_kvs), tensors(fresh), strict=True)
        assert all(torch.allclose(t, right, rtol=0, atol=1e-9) for t, right in pairs), (
            f"the cache is not that of a fresh prefill: {where}"
        )
        unread = text[start + P : current + 1]
        assert given[: len(unread)] == unread, (
            f"the pass starts with tokens {given[: len(unread)]} instead of {unread}: {where}"
        )
        current, last = current + len(r.emitted), start


def near(value: Tensor, right: Tensor) -> bool:
    """Whether a tensor has the shape of `right` and its numbers, to 1e-4."""
    return value.shape == right.shape and bool(((value - right).abs() < 1e-4).all())


def tensors(past_kvs) -> list[Tensor]:
    """All keys and values of a cache, in order, each (B, P, hs), on the CPU."""
    return [torch.as_tensor(t).cpu() for layer in past_kvs or () for kv in layer for t in kv]


def check_accounting(generate: Decoder) -> None:
    """Exactly the tokens asked for, stops where it must, and statistics that match the trace."""
    target = toy_target(7, 8)

    def run(draft, n, K, **kwargs):
        return generate(target, draft, [0, 1], n, K, Sampling(), RandomSource(9), **kwargs)

    itself = SelfDraft(target, 2)
    cases = [(itself, n, K) for n, K in ((0, 1), (1, 4), (2, 4), (5, 4), (7, 3), (9, 3))]
    for draft, n, K in (*cases, (itself, 24, 3), (random_draft(7), 24, 2)):
        free = run(draft, n, K).tokens
        assert len(free) == n, (
            f"{len(free)} tokens came where {n} were asked for (K = {K}, window 8)"
        )
        for stop in set(free[-K - 1 :]) if draft is itself else range(7):  # in the last round
            check_stop(run(draft, n, K, stop_token=stop), stop, free)


def check_stop(made: Generation, stop: int, free: list[int]) -> None:
    """The text is the free one up to the first `stop`, and its statistics match its trace."""
    expected = free[: free.index(stop) + 1] if stop in free else free
    assert made.tokens == expected, (
        f"stop token {stop}: the text is {made.tokens} and should end as {expected}"
    )
    rounds = [(len(r.emitted), len(r.candidates)) for r in made.rounds]
    accepted, drafted = sum(e - 1 for e, _ in rounds), sum(c for _, c in rounds)
    examined = sum(len(r.emitted) - 1 + goes_on(r) for r in made.rounds)
    for name, right in (
        ("tokens_per_pass", len(made.tokens) / len(rounds)),
        ("acceptance_rate", accepted / drafted if drafted else None),
        ("alpha", accepted / examined if examined else None),
    ):
        got = getattr(made, name)
        assert right is None or abs(got - right) < 1e-12, (
            f"{name} is {got:.3f} where the trace (emitted, drafted per round) {rounds} with "
            f"{len(made.tokens)} tokens returned gives {right:.3f}"
        )


def goes_on(r: Round) -> bool:
    """Whether a round had a candidate after those that it accepted."""
    last = [-1, *path_of(r)][-1]
    return last in parents_of(r)


def check_support(generate: Decoder, n: int = 12) -> None:
    """No token of probability 0 is ever emitted, not even at the uniform number 0."""
    target, rng = toy_target(7, 8), RandomSource(0, Zeros())
    for sampling in (Sampling(top_k=2), Sampling(top_p=0.5), Sampling(0)):
        tokens = [0, 1]
        for token in generate(target, random_draft(7), [0, 1], n, 3, sampling, rng).tokens:
            p = sampling.probs(SelfDraft(target, 2).logits(tokens))
            assert p[token] > 0, (
                f"token {token} came after {tokens} though the target gives it probability 0 "
                f"({sampling})"
            )
            tokens.append(token)


def check_frequencies(
    generate: Decoder, n: int = 400, seed: int = 5, length: int = 2, V: int = 3
) -> None:
    """n sampled texts of `length` tokens out of V are spread as the target's own are, by a χ² test.

    Weaker than enumeration, but it sees the one thing that enumeration cannot: how a decoder uses
    the random numbers themselves.
    """
    target, q = toy_target(V, 8, seed=2), [0.9] + [0.1 / (V - 1)] * (V - 1)
    draft, rng, counts = TableDraft([q] * V), RandomSource(seed), {}
    for _ in range(n):
        made = generate(target, draft, [0, 1], length, 1, Sampling(), rng)
        counts[tuple(made.tokens)] = counts.get(tuple(made.tokens), 0) + 1
    exact = exact_continuations(target, length, Sampling())
    statistic, freedom = chi_squared(counts, exact, n)
    limit = chi_squared_limit(freedom)
    assert statistic < limit, (
        f"{n} sampled texts are not spread as the target's: χ² = {statistic:.1f} at {freedom} "
        f"degrees of freedom, where {limit:.1f} is already out of reach by chance"
    )


def check_trees_lossless(generate: Decoder) -> None:
    """As check_lossless, but rounds of a single level first: most wrong rules show there at once.

    A tree of two levels takes seconds to enumerate.
    """
    check_lossless(generate, n=2, K=1)
    check_lossless(generate, n=3, K=2)


def check_siblings(generate: Decoder, n: int = 120) -> None:
    """Each sibling that a tree's walk comes to is accepted as often as its p and q say.

    That is with probability Σ min(r, q): q as it was drawn, r what its rejected siblings left of p.
    For a draft equal to the target it is 1. A chain's acceptance is the same thing.
    """
    target = toy_target(7, 8)
    for draft in (SelfDraft(target, 2), random_draft(7)):
        made = generate(target, draft, [0, 1], n, 3, Sampling(), RandomSource(2))
        expected = variance = accepted = 0.0
        for i, r in enumerate(made.rounds):
            parents, node = parents_of(r), -1
            path = path_of(r)
            kept = [r.candidates[x] for x in path]
            assert kept == r.emitted[:-1], f"round {i} keeps {kept} and emits {r.emitted}"
            for chosen in [*path, None]:
                left = r.target_probs[node + 1].numpy()
                for child in (x for x, parent in enumerate(parents) if parent == node):
                    q = r.draft_probs[child].numpy()
                    overlap = float(min(1.0, (left.clip(max=q)).sum()))
                    expected, variance = expected + overlap, variance + overlap * (1 - overlap)
                    if child == chosen:
                        break
                    left = residual(left, q)
                else:
                    assert chosen is None, f"round {i}: node {chosen} is no child of node {node}"
                node = chosen
            accepted += len(path)
        assert abs(accepted - expected) <= 4 * variance**0.5 + 1e-6, (
            f"{type(draft).__name__}: {accepted:.0f} nodes were accepted where Σ min(r, q) says "
            f"{expected:.1f} ± {variance**0.5:.1f}"
        )


def check_nodes(generate: Decoder, n: int = 30, K: int = 3) -> None:
    """The p of every node is that of its own chain alone: as if no other branch were there."""
    target, text = toy_target(7, 8), [0, 1]
    fresh = SelfDraft(target, len(text))
    made = generate(target, random_draft(7), text, n, K, Sampling(), RandomSource(6))
    for i, r in enumerate(made.rounds):
        for j, context in enumerate(contexts(r, text)):
            off = float((r.target_probs[j] - fresh.get_probs(context)).abs().max())
            which = f"node {j - 1}" if j else "the current token"
            assert off < 1e-9, (
                f"round {i}: after {which} p is off by {off:.2f} from that of its own chain "
                f"{context[len(text) :]}, alone after {text}"
            )
        text = text + r.emitted


def check_rounds(generate: Decoder) -> None:
    """As check_frequencies, over two to four rounds: it sees random numbers that come back."""
    check_frequencies(generate, length=4, V=2)


@torch.no_grad()
def forced_q(
    head: eagle.EagleHead,
    target: GPTLanguageModel,
    known: Sequence[int],
    guessed: Sequence[int],
    sampling: Sampling = Sampling(),
) -> Tensor:
    """The head's q (V,) of the guess after `guessed`, teacher-forced: without a draft or a cache.

    known: the tokens of the target's cache and the current one. The head reads all their pairs at
    once, with the target's true features from a pass of its own; then, in place of those of the
    guesses, its own outputs.
    """
    cached = torch.tensor([known[:-1]], device=target.device)
    features, _ = head.share(target).features_of(target, cached)
    tokens = torch.tensor([[*known[1:], *guessed]], device=target.device)
    features = torch.nn.functional.pad(features, (0, 0, 0, len(guessed)))  # never read
    out = head.unrolled(features, tokens, 1 + len(guessed))[-1]
    return sampling.probs(head.logits(out[0, -1]))


def check_incremental(generate: Decoder, n: int = 40, K: int = 3) -> None:
    """What an EAGLE draft makes round by round is what its head makes of the true features at once.

    After any rejection, after full acceptance and over restarts; on the hidden states and on three
    streams. generate: an `eagle_decoder`. Nothing else sees it: the output stays the target's own.
    """
    target, _ = deep_toy()
    for layers in (None, (1, 2, 3)):
        head, text = random_head(target, layers), [0, 1, 2]
        made = generate(target, head, text, n, K, Sampling(), RandomSource(1))
        true_features(
            head, target, text, made, f"on layers {layers}" if layers else "on hidden states"
        )


def true_features(head, target, text: list[int], made: Generation, where: str) -> None:
    """Raise AssertionError unless each q is what the head makes of the target's true features."""
    for i, r in enumerate(made.rounds):
        known = text[-1 - r.position :]
        for j, q in enumerate(r.draft_probs):
            off = float((q - forced_q(head, target, known, r.candidates[:j])).abs().max())
            assert off < 1e-9, (
                f"round {i}, guess {j + 1}, {where}, {r.position} tokens cached: q is off by "
                f"{off:.1e} from what the head makes of the target's true features"
            )
        text = text + r.emitted


def check_pinned_alpha(generate: Decoder, n: int = 300, K: int = 3) -> None:
    """The shipped EAGLE-3 head's guesses are accepted as often as its file says, on the target.

    generate: an `eagle_decoder`. It sees what costs many guesses, not what costs a few: its band is
    four standard errors wide.
    """
    target, tokenizer = checkpoint.load()
    head, facts = eagle.load(eagle.EAGLE3), checkpoint.read_header(eagle.EAGLE3)["facts"]
    prompt, rng = tokenizer.encode("ROMEO:"), RandomSource(5)
    made = generate(FusedLanguageModel(target), head, prompt, n, K, Sampling(), rng)
    expected = variance = 0.0
    for r in made.rounds:
        for alpha, _ in facts["alpha"][: r.n_examined]:
            expected, variance = expected + alpha, variance + alpha * (1 - alpha)
    accepted = sum(r.n_accepted for r in made.rounds)
    assert abs(accepted - expected) <= 4 * variance**0.5, (
        f"{accepted} guesses were accepted where the head's own α says {expected:.1f} "
        f"± {variance**0.5:.1f}"
    )


def check_second_siblings(generate: Decoder, n: int = 24) -> None:
    """Where every second sibling is right, a greedy round accepts one of each depth.

    α is known here: it is 1. generate: `tree_decoder("fixed", (2, 2))`. A tree that is verified as
    something else gives the right text, more slowly.
    """
    target = toy_target(7, 8)
    made = generate(target, SecondBest(target, 2), [0, 1], n, 2, Sampling(0), RandomSource(1))
    left = n
    for i, r in enumerate(made.rounds):
        right = min(2, left - 1, 7 - r.position)
        assert r.n_accepted == right, (
            f"round {i} accepts {r.n_accepted} of {len(r.candidates)} nodes, where one of each of "
            f"{right} depths is the target's own choice"
        )
        left -= len(r.emitted)


def check_spelling(generate: Decoder, n: int = 30, K: int = 3) -> None:
    """The q of each letter is what a draft on byte pairs says that has read the text just now.

    However its letters were split before, after any rejection and over restarts. generate: a
    `pairs_decoder`. Nothing else sees it: the output stays the target's own.
    """
    target = toy_target(3, 8, seed=1)
    for least in (0.0, 0.5):
        draft, text = toy_pairs(3, least), [0, 1]
        made = generate(target, draft.fresh(), text, n, K, Sampling(), RandomSource(2))
        for i, r in enumerate(made.rounds):
            _, right = draft.fresh().draw(text, len(r.candidates), Sampling(), Led(r.candidates))
            off = float((r.draft_probs - right).abs().max()) if r.candidates else 0
            assert off < 1e-9, (
                f"round {i}: the draft's q is off by {off:.1e} from what it says of the text when "
                "it reads it anew"
            )
            text = text + r.emitted


GUESSES = (3, 0, 1, 3, 0, 0, 2)  # round by round, again and again


def check_states(generate: Decoder, n: int = 40) -> None:
    """A target with a state goes on, after every round, from that of a fresh prefill.

    By each way back, in chains and trees, after rounds without a guess as well, and over restarts;
    and the p of each guess is that of its own chain. generate: a `state_decoder`.
    """
    for way in WAYS:
        target, prompt = toy_states(7, 8).remembering(way), [0, 1, 2]
        chains = random_draft(7), SelfDraft(target, 3)
        policy = {"policy": lambda rounds: (GUESSES[len(rounds) % len(GUESSES)], None)}
        for draft, named in (
            *((draft, policy) for draft in chains),
            (Grown(random_draft(7), [2, 1], "without"), {}),
        ):
            watched, rng = Watched(target), RandomSource(3)
            made = generate(watched, draft, prompt, n, 3, sampling=Sampling(), rng=rng, **named)
            who = f"{way}, {type(draft).__name__}"
            check_states_of(target, prompt, made, watched.passes, who)


def check_states_of(target, prompt: list[int], made: Generation, passes: list, who: str) -> None:
    """As check_states, for one text; passes: what each was given, `who` made it."""
    text, kept = list(prompt), "at first"
    fresh_draft = SelfDraft(target, len(prompt))
    for i, (r, (given, past_kvs)) in enumerate(zip(made.rounds, passes, strict=True)):
        start = context_start(len(text), len(prompt), 8)
        P = past_kvs.length if past_kvs else 0  # a mutant's cache has a class of its own
        fresh = prefill(target, text[start : start + P])
        pairs = zip(tensors(past_kvs), tensors(fresh), strict=True) if P else ()
        off = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
        assert off < 1e-9, (
            f"{who}, round {i}, {kept}: the cache is off by {off:.1e} from that of a fresh prefill "
            f"of its {P} tokens"
        )
        unread = text[start + P :]
        assert given[: len(unread)] == unread, f"{who}, round {i}: {given} was read, not {unread}"
        for p, context in zip(r.target_probs, contexts(r, text), strict=True):
            off = float((p - fresh_draft.get_probs(context)).abs().max())
            assert off < 1e-9, (
                f"{who}, round {i}, {kept}: p after {context[len(text) :]} is off by {off:.1e} "
                "from that of its own chain alone"
            )
        text, kept = text + r.emitted, f"after {r.n_accepted} of {len(r.candidates)} were kept"


CHECKS: dict[str, Callable[[Decoder], None]] = {
    "exact": check_lossless,
    "frequencies": check_frequencies,
    "greedy": check_greedy,
    "acceptance": check_acceptance,
    "cache": check_cache,
    "draft": check_draft_cache,
    "accounting": check_accounting,
    "support": check_support,
}
TREE_CHECKS = CHECKS | {  # of trees, and of chains as well
    "exact": check_trees_lossless,
    "acceptance": check_siblings,
    "nodes": check_nodes,
    "rounds": check_rounds,
}
SLOW_CHECKS = TREE_CHECKS | {  # of drafts and trees that read features: what no output shows
    "incremental": check_incremental,
    "alpha": check_pinned_alpha,
    "second": check_second_siblings,
    "spelling": check_spelling,
    "states": check_states,  # of a state_decoder
}
