"""The test bench of servers: checks of decoders that write several texts at once.

A batch decoder is a function with `batch_generate`'s arguments. Each check runs it on the small
models of `nanogpt.proof.toys`, and raises an AssertionError that says in one sentence what is wrong
and in which row; it returns None if nothing is. `paged_decoder` and `server_decoder` are batch
decoders as well, each with checks of its own; `ahead_decoder` writes one text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from nanogpt.drafts.eagle import EagleDraft, EagleHead
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.learning import NetStudent
from nanogpt.drafts.lookahead import LookaheadDraft
from nanogpt.drafts.transformer import TransformerDraft, common_prefix
from nanogpt.generate import Generation, autoregressive_generate, prefill
from nanogpt.proof.checks import (
    check_lossless,
    check_stop,
    contexts,
    exact_continuations,
    tensors,
    true_features,
)
from nanogpt.proof.checks_promises import check_ending, endings
from nanogpt.proof.decoders import NET, TABLE, BatchDecoder, Decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.proof.toys import (
    SelfDraft,
    Watched,
    context_start,
    deep_toy,
    random_draft,
    random_head,
    toy_states,
    toy_target,
)
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import paged
from nanogpt.serving.constraints import Completion, Constraints, complete
from nanogpt.serving.grammar import Grammar
from nanogpt.serving.server import Limits
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.targets.state import WAYS
from nanogpt.trees.loop import tree_generate

SAMPLINGS = [Sampling(), Sampling(0), Sampling(0.7), Sampling(top_k=3), Sampling(top_p=0.8)]


class WatchedRows(Watched):
    """A target that keeps count of its passes: their rows, and the places of the cache they fill.

    blocks: before each pass of a batch, how many blocks of the target's pool, if it has one, are
    held, and how many its rows need for what they have and what the pass writes. Caches are not
    kept: they would hold their blocks.
    """

    def __init__(self, target):
        super().__init__(target)
        self.pool = getattr(target, "cache", None)  # of the decoder's own target, in the end
        self.rows: list[int] = []
        self.places: list[int] = []
        self.blocks: list[tuple[int, int]] = []

    def states(self, idx, pos=None, *args, **kwargs):
        """As the target's; its rows are counted."""
        self.rows.append(len(idx))
        if pos is not None and pos.dim() == 2:  # (B, T): what is dropped has no place of its own
            lengths = pos[:, 0]
            after = lengths + 1 + (pos > lengths[:, None]).sum(1)
            self.places.append(int(after.sum()))
            if hasattr(self.pool, "free"):
                need = sum(-(-n // self.pool.size) for n in after.tolist())
                self.blocks.append((self.pool.blocks - self.pool.free, need))
        return self.target.states(idx, pos, *args, **kwargs)

    def around(self, target) -> WatchedRows:
        """The same count, kept of another target's passes."""
        other = WatchedRows(target)
        other.rows, other.places, other.blocks = self.rows, self.places, self.blocks
        self.pool = other.pool
        return other


def random_requests(case: int, V: int = 7) -> list[tuple]:
    """One to five requests: prompt, max_new_tokens, K, sampling, seed, stop token or None."""
    generator = torch.Generator().manual_seed(case)

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    requests = []
    for b in range(1 + case % 5):
        prompt = [below(V) for _ in range(1 + below(12))]
        stop = below(V) if below(3) == 0 else None
        sampling = SAMPLINGS[below(len(SAMPLINGS))]
        requests.append((prompt, below(20), 1 + below(4), sampling, 10 * case + b, stop))
    return requests


def run(generate: BatchDecoder, target, draft, requests: Sequence[tuple], **named) -> list:
    """A batch decoder's answers to such requests."""
    prompts, lengths, Ks, samplings, seeds, stops = map(list, zip(*requests, strict=True))
    rngs = [RandomSource(seed) for seed in seeds]
    made = generate(target, draft, prompts, lengths, Ks, samplings, rngs, stops, **named)
    assert len(made) == len(requests), f"{len(made)} answers to {len(requests)} prompts"
    return made


ASKED = (
    Constraints(),
    Constraints(Grammar("([a-d]|[e-g].[a-e])*", "abcdefg"), stop=[[4, 1], [4, 2]], logprobs=True),
    Constraints(presence=0.8, frequency=0.7, repetition=1.6, stop=[[6]]),
    Constraints(Grammar("(..[a-d]){3}", "abcdefg"), frequency=-0.4, min_p=0.05),
    Constraints(bias={1: -1.2}, presence=-0.5, logprobs=True),
)


def check_reply(made: Completion, alone: Completion, who: str) -> None:
    """Raise AssertionError unless a reply, and what is said of it, is what it is alone."""
    same = common_prefix(made.tokens, alone.tokens)
    assert made.tokens == alone.tokens, (
        f"{who}: token {same} is {made.tokens[same : same + 1]} instead of "
        f"{alone.tokens[same : same + 1]}"
    )
    why = made.finish_reason, alone.finish_reason
    assert why[0] == why[1], f"{who}: its finish_reason is {why[0]!r} instead of {why[1]!r}"
    for name in ("logprobs", "processed"):
        got, right = getattr(made, name), getattr(alone, name)
        assert got.shape == right.shape and torch.allclose(got, right, rtol=0, atol=1e-9), (
            f"{who}: its {name} are not those of its own tokens"
        )


def check_alone(generate: BatchDecoder, cases: int = 6) -> None:
    """Each text of a random batch is what it is alone: with its own K, sampling, rng and rules.

    Sampled and greedy, over restarts; on both forms of the target, with chains and with trees;
    under constraints. And one to five that share a pass end as in check_stops.
    """
    for case in range(cases):
        target, draft = toy_target(7, 8, seed=case % 5), random_draft(7)
        if case % 2:
            target = FusedLanguageModel(target)
        tree = case % 3 == 2
        drafts = Grown(draft, (2, 2, 1, 1)) if tree else draft
        requests = random_requests(5 * case + 4)  # five: they end one after another
        if tree:
            requests = [(*request[:2], 4, *request[3:]) for request in requests]
        which = [(case + b) % 5 for b in range(5)]
        rules = [ASKED[i] for i in which]
        answers = run(generate, target, drafts, requests, constraints=rules)
        for b, (request, made) in enumerate(zip(requests, answers, strict=True)):
            prompt, n, K, sampling, _, _ = request
            alone = text_alone(case % 5, tree, which[b], tuple(prompt), *request[1:])
            whose = f"prompt {prompt}, {n} tokens, K = {K}, {sampling}"
            check_reply(made, alone, f"row {b} of 5 is not what it is alone: {whose}")
    *short, one, two = endings()
    first = [x for x in short if x[3] == 3]  # all of them share the first pass, …
    second = [x for x in short if x[0] > 2]  # … or the one after the window is full
    for B, some in itertools.product(range(1, 6), (first, second, [one, two])):
        for i in range(0, len(some), B):
            requests = (some * 5)[i : i + B]
            _, drafts, prompts, n, stops, asked, *_ = map(list, zip(*requests, strict=True))
            target = FusedLanguageModel(drafts[0].target)
            greedy = 3, Sampling(0), None
            made = generate(target, drafts[0], prompts, n, *greedy, stops, constraints=asked)
            for own, request in zip(made, requests, strict=True):
                check_ending(own, request)


@functools.cache  # the same requests for every decoder that is checked
def text_alone(toy: int, tree: bool, which: int, prompt, n, K, sampling, seed, stop) -> Completion:
    """What check_alone asks for, written alone on the toy of a seed, as a chain or a tree."""
    target, draft = FusedLanguageModel(toy_target(7, 8, seed=toy)), random_draft(7)
    draft = Grown(draft, (2, 2, 1, 1)) if tree else draft
    return complete(target, prompt, n, ASKED[which], draft, K, sampling, RandomSource(seed), stop)


def check_product(generate: BatchDecoder) -> None:
    """The joint distribution of two texts is the product of the target's own, to 1e-12.

    By enumeration, with two prompts, lengths, K, samplings and stop tokens.
    """
    target, draft = toy_target(2, 8, seed=1), random_draft(2)
    requests = [([0, 1], 2, 1, Sampling(), None), ([1], 3, 2, Sampling(0.5), 0)]
    prompts, lengths, Ks, samplings, stops = map(list, zip(*requests, strict=True))
    singles = [
        exact_continuations(target, n, sampling, tuple(prompt), stop)
        for prompt, n, _, sampling, stop in requests
    ]
    exact = {(a, b): singles[0][a] * singles[1][b] for a, b in itertools.product(*singles)}
    got = enumerate_outcomes(
        lambda rng: tuple(
            tuple(made.tokens)
            for made in generate(target, draft, prompts, lengths, Ks, samplings, [rng, rng], stops)
        )
    )
    distance = total_variation(got, exact)
    worst = max(got | exact, key=lambda x: abs(got.get(x, 0) - exact.get(x, 0)))
    assert distance < 1e-12, (
        f"two texts in a batch are not the target's own: {worst} come with probability "
        f"{got.get(worst, 0):.4f} instead of {exact.get(worst, 0):.4f}; total variation "
        f"{distance:.1e}"
    )


def check_independent(generate: BatchDecoder, n: int = 400, seed: int = 0) -> None:
    """Rows that are handed no random source do not draw the same numbers, by a χ² test of pairs.

    Enumeration cannot see it: there, whatever is drawn twice is two draws.
    """
    target, draft = toy_target(2, 8, seed=2), random_draft(2, seed)
    made = generate(target, draft, [[0, 1]] * n, 2, 1)
    exact = product_of(target, [([0, 1], 2)] * 2)
    counts = {}
    for a, b in zip(made[::2], made[1::2], strict=True):
        pair = tuple(a.tokens), tuple(b.tokens)
        counts[pair] = counts.get(pair, 0) + 1
    statistic, freedom = chi_squared(counts, exact, n // 2)
    limit = chi_squared_limit(freedom)
    equal = sum(count for (a, b), count in counts.items() if a == b)
    assert statistic < limit, (
        f"neighbours in a batch are not independent: {equal} of {n // 2} pairs are the same text; "
        f"χ² = {statistic:.1f} at {freedom} degrees of freedom, where {limit:.1f} is already out "
        "of reach by chance"
    )


def own_probs(
    target, prompt: Sequence[int], made: Generation, whose: str, sampling: Sampling = Sampling()
) -> None:
    """Raise AssertionError unless each round's p is that of the text alone, and its cache as long.

    The target's window is 8.
    """
    fresh, text = SelfDraft(target, len(prompt)), list(prompt)
    for i, r in enumerate(made.rounds):
        where = f"{whose}, round {i}, after {len(text)} tokens"
        cached = len(text) - 1 - context_start(len(text), len(prompt), 8)
        assert r.position == cached, (
            f"the cache holds {r.position} tokens instead of {cached}: {where}"
        )
        for j, context in enumerate(contexts(r, text)):
            off = float((r.target_probs[j] - sampling.probs(fresh.logits(context))).abs().max())
            which = f"candidate {j - 1}" if j else "the current token"
            assert off < 1e-9, (
                f"after {which}, p is off by {off:.2g} from that of the text alone: {where}"
            )
        text += r.emitted


def check_ragged(generate: BatchDecoder, n: int = 20) -> None:
    """The p that each row is judged by is that of its own text, however long the others are.

    By its own sampling; of five rows that end one after another, so that any number shares a pass.
    """
    target = toy_target(7, 8)
    prompts = [[0, 1], [2], [3, 4, 5, 6, 0], [1, 1, 1], [6, 5]]
    lengths = [n, n // 2, n - 2, n // 4, n - 4]
    Ks, stops, tree = [3, 1, 2, 4, 2], [None, 6, 4, 3, 0], Grown(random_draft(7), (2, 1, 1))
    for draft, form in ((random_draft(7), target), (tree, FusedLanguageModel(target))):
        rngs = [RandomSource(seed) for seed in range(len(prompts))]
        answers = generate(form, draft, prompts, lengths, Ks, SAMPLINGS, rngs, stops)
        for b, (prompt, made) in enumerate(zip(prompts, answers, strict=True)):
            own_probs(target, prompt, made, f"row {b}", SAMPLINGS[b])
            got, stop = made.tokens, stops[b]
            assert stop not in got[:-1] and (len(got) == lengths[b] or got[-1] == stop), (
                f"row {b} has {got} where {lengths[b]} tokens were asked for, or up to a {stop}"
            )


def check_leaving(generate: BatchDecoder) -> None:
    """Each row has its own length and stop, ends there, and costs no pass after it."""
    target, draft = WatchedRows(paged.on_pool(toy_target(7, 8), 64, 3)), random_draft(7)
    requests = [
        ([0, 1], n, K, Sampling(), b, None)
        for b, (n, K) in enumerate([(0, 1), (1, 4), (2, 4), (24, 3), (5, 2), (24, 1)])
    ]
    free = run(generate, target, draft, requests)
    for b, (made, request) in enumerate(zip(free, requests, strict=True)):
        got = len(made.tokens)
        assert got == request[1], f"row {b} has {got} tokens where {request[1]} were asked for"
    for stop in range(7):
        stopped = [(*request[:5], (stop + b) % 7) for b, request in enumerate(requests)]
        target.rows.clear()
        answers = run(generate, target, draft, stopped)
        for b, (made, whole) in enumerate(zip(answers, free, strict=True)):
            if made.rounds:
                check_stop(made, (stop + b) % 7, whole.tokens)
            before = [token for r in made.rounds[:-1] for token in r.emitted]
            assert (stop + b) % 7 not in before and len(before) < max(1, requests[b][1]), (
                f"row {b} goes on after its end: it had {before} before its last pass"
            )
        rows, needed = sum(target.rows), sum(len(x.rounds) + x.prefills for x in answers)
        assert rows <= needed, (
            f"the target's passes had {rows} rows in all where the texts needed {needed} at most"
        )


def check_outcomes(generate: Decoder) -> None:
    """What was prepared for an outcome is drawn fresh, used once, for it alone, and is lossless.

    By enumeration, hits and misses; and each q is the draft's own after the text that came.
    generate: an `ahead_decoder`, for one text.
    """
    check_lossless(generate, n=3, K=1)
    target, draft, text = toy_target(7, 8), SelfDraft(toy_target(7, 64, seed=3), 2), [0, 1]
    made = generate(target, draft, text, 24, 3, Sampling(), RandomSource(1))
    for i, r in enumerate(made.rounds):
        for j, (q, context) in enumerate(zip(r.draft_probs, contexts(r, text), strict=False)):
            off = float((q - draft.get_probs(context)).abs().max())
            assert off < 1e-9, (
                f"round {i}, guess {j + 1}: q is off by {off:.2f} from the draft's own after the "
                f"text that came, {context}"
            )
        text = text + r.emitted


def check_pool(generate: BatchDecoder, cases: int = 6) -> None:
    """Texts hold no more blocks than their entries need, and none once they are done.

    With one K for all, so that what is reserved for guesses is used. generate: a `paged_decoder`.
    """
    for case in range(cases):
        size, K = 1 + case % 4, 1 + case % 3
        target = WatchedRows(paged.on_pool(toy_target(7, 8, seed=case % 5), 64, size))
        requests = [(*request[:2], K, *request[3:]) for request in random_requests(case)]
        failed = ""
        try:
            run(generate, target, random_draft(7), requests)
        except (IndexError, ValueError) as error:  # the pool is large enough
            failed = f"{type(error).__name__}: {error}"
        assert not failed, (
            f"a pass finds no block that was reserved for it, with blocks of {size}: {failed}"
        )
        for i, (held, need) in enumerate(target.blocks):
            assert held <= need, (
                f"{held} blocks of {size} are held before pass {i} where the texts need {need}"
            )
        pool = target.pool
        assert pool.free == pool.blocks, (
            f"{pool.blocks - pool.free} of {pool.blocks} blocks are held when all texts are done"
        )
        assert not any(pool.references), f"references to free blocks: {pool.references}"


def beginnings(tokens: Sequence[int], size: int) -> dict[bytes, tuple[int, ...]]:
    """Of a text, every beginning of whole blocks by the key that it is published under."""
    keys, found = [b""], {}
    for end in range(size, len(tokens) + 1, size):
        keys.append(paged.block_key(keys[-1], tokens[end - size : end]))
        found[keys[-1]] = tuple(tokens[:end])
    return found


def check_publish(generate: BatchDecoder, cases: int = 6) -> None:
    """What texts publish in a block is the entries of its key, and of final tokens only.

    So a text that finds them is what it is alone. generate: a `paged_decoder`.
    """
    for case in range(cases):
        size, own = 1 + case % 3, toy_target(7, 8, seed=case % 5)
        target, draft = WatchedRows(paged.on_pool(own, 64, size)), random_draft(7, case)
        requests = random_requests(case)
        texts = [
            (*prompt[-8:], *made.tokens)
            for (prompt, *_), made in zip(
                requests, run(generate, target, draft, requests), strict=True
            )
        ]
        fused, pool = FusedLanguageModel(own), target.pool
        parts = {}
        for text in texts:
            for i in range(len(text)):
                parts |= beginnings(text[i:], size)
        for key, block in pool.published.items():
            assert key in parts, (
                f"a block of {size} is published for tokens that are in no text of {texts}"
            )
            n = len(parts[key])
            fresh = prefill(fused, parts[key]).buffer[:, :, 0, :, n - size : n]
            off = float((pool.entries[:, :, block].transpose(2, 3) - fresh).abs().max())
            assert off < 1e-9, (
                f"the block that is published for the tokens {parts[key]} holds entries that are "
                f"off by {off:.1e} from theirs"
            )
        again = [(list(text[:8]), 6, 2, Sampling(), 0, None) for text in texts]
        for request, made in zip(again, run(generate, target, draft, again), strict=True):
            alone = speculative_generate(own, draft, *request[:4], RandomSource(0)).tokens
            assert made.tokens == alone, (
                f"after {request[0]}, found in blocks of {size}, come {made.tokens} instead of "
                f"{alone}"
            )


def check_leftovers(generate: BatchDecoder, cases: int = 4) -> None:
    """What others left in a block changes no text, be it no number.

    Masked is not enough: its weight is 0, and 0 times a NaN is a NaN. generate: a `paged_decoder`.
    """
    for case in range(cases):
        size, own = 1 + case, toy_target(7, 8, seed=case)
        target, draft = paged.on_pool(own, 64, size), random_draft(7, case)
        target.cache.entries.fill_(torch.nan if case % 2 else torch.inf)
        prompts = [[0, 1, 2, 3, 4, 5, 6], [1], [2, 3], [4, 4, 4, 4]]
        try:
            made = [x.tokens for x in generate(target, draft, prompts, 12, 2, Sampling(0))]
        except (RuntimeError, ValueError) as error:  # NaN where probabilities should be
            made = error
        alone = [autoregressive_generate(own, x, 12, Sampling(0)).tokens for x in prompts]
        assert made == alone, (
            f"in blocks of {size} that held what is no number, the texts are {made} "
            f"instead of {alone}: who erases a block?"
        )


def check_turns(generate: BatchDecoder, n: int = 12) -> None:
    """Each request that runs moves in each pass: no guess outranks a neighbour's current token.

    generate: a `server_decoder`.
    """
    prompts = [[0, 1, 2, 3, 4], [5], [6, 6], [1, 2, 3]]
    watched = WatchedRows(toy_target(7, 32))
    limits = Limits(len(prompts), max_num_batched_tokens=len(prompts))
    generate(watched, random_draft(7), prompts, n, 3, Sampling(0), limits=limits)
    passes, most = len(watched.rows), n + max(map(len, prompts))
    assert passes <= most, (
        f"{len(prompts)} texts of {n} tokens take {passes} passes where {most} are enough: a pass "
        f"has {len(prompts)} tokens; whose guesses come before another's current token?"
    )


def check_held(generate: BatchDecoder, n: int = 10) -> None:
    """A pool in which somebody else holds blocks serves all requests: some make room.

    generate: a `server_decoder`. Raises AssertionError as all checks do.
    """
    prompts = [[0, 1, 2], [1], [2, 3], [1, 1, 1, 1]]
    for size in (1, 2):
        own = toy_target(7, 8)
        target, draft = paged.on_pool(own, 24 // size, size), random_draft(7)
        other = prefill(target, [1, 2, 3, 4, 5, 6, 0, 1])
        try:
            answers = generate(target, draft, prompts, n, 3, Sampling(0))
        except (RuntimeError, ValueError) as error:  # PoolFull is a ValueError
            raise AssertionError(f"nobody makes room where others hold blocks: {error}") from None
        for b, (prompt, made) in enumerate(zip(prompts, answers, strict=True)):
            alone = autoregressive_generate(own, prompt, n, Sampling(0)).tokens
            assert made.tokens == alone, (
                f"with 8 of 24 places held by another, row {b} is {made.tokens} instead of {alone}"
            )
        assert other.length == 8


def product_of(target, requests: Iterable[tuple]) -> dict[tuple, float]:
    """{(one text, the other): chance} if each of two requests is written by itself.

    requests: (prompt, length), or (prompt, length, sampling), of each.
    """
    one, two = (
        exact_continuations(target, n, *sampling, prompt=tuple(prompt))
        for prompt, n, *sampling in requests
    )
    return {(a, b): one[a] * two[b] for a, b in itertools.product(one, two)}


def check_preemption(generate: BatchDecoder) -> None:
    """With too few places for all, texts are the target's own, and no pass takes more places.

    generate: a `server_decoder`. The joint distribution by enumeration, then greedily.
    """
    target, draft = toy_target(2, 8, seed=1), random_draft(2)
    prompts, lengths = [[0, 1], [1]], [3, 3]
    exact = product_of(target, zip(prompts, lengths, strict=True))
    few = Limits(num_blocks=6)
    got = enumerate_outcomes(
        lambda rng: tuple(
            tuple(made.tokens)
            for made in generate(target, draft, prompts, lengths, 1, rngs=[rng, rng], limits=few)
        )
    )
    distance = total_variation(got, exact)
    assert distance < 1e-12, (
        f"with 6 places for two texts, their joint distribution is not the target's own: total "
        f"variation {distance:.1e}"
    )
    watched = WatchedRows(toy_target(7, 8))
    prompts, n, places = [[0, 1], [2], [3, 4, 5], [6]], 14, 20
    few, rules = Limits(prefill_chunk=2, num_blocks=places), ASKED[-1]
    alone = [complete(watched.target, x, n, rules, sampling=Sampling(0)) for x in prompts]
    for K in (1, 3):
        watched.places.clear()
        draft = SelfDraft(watched.target, 1)
        asked = {"constraints": rules, "limits": few}
        answers = generate(watched, draft, prompts, n, K, Sampling(0), **asked)
        most = max(watched.places)
        assert most <= places, (
            f"a pass takes {most} places of the cache where there are {places} in all (K = {K})"
        )
        for b, (made, right) in enumerate(zip(answers, alone, strict=True)):
            check_reply(made, right, f"row {b} of {len(prompts)}, in {places} places, K = {K}")
        own = Sampling(), [RandomSource(b) for b in range(len(prompts))]
        answers = generate(watched, draft, prompts, n, K, *own, limits=few)
        for b, made in enumerate(answers):
            own_probs(watched.target, prompts[b], made, f"row {b} of {places} places")


def check_prefix(generate: BatchDecoder, n: int = 12) -> None:
    """A text that begins with what another has left goes on as if it had read it all.

    Of a target with states, by each way back, in chains and a tree: text A, another that begins
    otherwise, A with a part of its answer, and both again. Whatever a pass goes on from is that
    of a fresh prefill; what was there is found; and a draft that reads features loses nothing.
    generate: a `server_decoder`, of requests in turn.
    """
    A, B = [0, 1, 2, 3, 4, 5], [0, 6, 2, 3, 4, 5]
    for way in WAYS:
        target = toy_states(7, 48).remembering(way)
        chunk = 2 if way == "snapshot" else 16  # it comes back to where a pass has ended
        limits = Limits(num_blocks=200, block_size=2, prefill_chunk=chunk)
        asked = {"samplings": Sampling(), "limits": limits}
        tree = [Grown(random_draft(7), [2, 1], "without")] if way == "inputs" else []
        for draft in (random_draft(7), *tree):
            [first] = generate(target, draft, [A], n, 2, rngs=[RandomSource(0)], **asked)
            longer = A + first.tokens[: n - 2]
            prompts, watched = [A, B, longer, A, B], Watched(target)
            rngs = [RandomSource(0) for _ in prompts]
            made = generate(watched, draft, prompts, n, 2, rngs=rngs, **asked)
            passes = iter(watched.passes)
            for i, (prompt, answer) in enumerate(zip(prompts, made, strict=True)):
                who = f"{way}, {type(draft).__name__}, text {i + 1}"
                least = 0 if i < 2 or (way == "snapshot" and i == 2) else (len(prompt) - 1) // 2 * 2
                check_beginning(target, prompt, answer, passes, least, who)
    target = toy_states(7, 48)
    head = random_head(target)
    draft, rngs = EagleDraft(target, head, 2), [RandomSource(0), RandomSource(0)]
    miss, hit = generate(target, draft, [A, A], n, 2, rngs=rngs, **asked)
    for r, other in zip(miss.rounds, hit.rounds, strict=False):
        assert r.candidates == other.candidates, (
            f"after a hit, EAGLE's head guesses {other.candidates} where after a miss it guessed "
            f"{r.candidates}: whose features has it not seen?"
        )


def check_beginning(target, prompt: list[int], made: Generation, passes, least: int, who: str):
    """Each pass of a text goes on from a fresh prefill's cache; the first has so many tokens."""
    text, rounds, first = list(prompt), iter(made.rounds), True
    while len(text) < len(prompt) + len(made.tokens):
        given, past_kvs = next(passes)
        P = past_kvs.length if past_kvs is not None else 0
        fresh = prefill(target, text[:P]) if P else ()
        pairs = zip(tensors(past_kvs), tensors(fresh), strict=True) if P else ()
        off = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
        assert off < 1e-9, (
            f"{who}: after {P} of {len(text)} tokens, it goes on from a cache that is off by "
            f"{off:.1e} from that of a fresh prefill"
        )
        assert not first or P >= least, (
            f"{who} finds {P} of its first {least} tokens, and all of them had been read"
        )
        first = False
        if P + len(given) >= len(text):
            text += next(rounds).emitted


class CountedHead(EagleHead):
    """A head that counts the pairs that it reads."""

    read = 0

    def forward(self, features, tokens, past=None, mask=None):
        """As an EagleHead's."""
        self.read += tokens.shape[1]
        return super().forward(features, tokens, past, mask)


def check_memory(generate: BatchDecoder, n: int = 30) -> None:
    """One draft for several texts is as fast as it is for each alone, whatever it remembers.

    Lookahead needs no more passes, and EAGLE's head reads no more pairs, each of its own text.
    generate: a `server_decoder`, with room for all guesses.
    """
    target, _ = deep_toy()
    prompts = [[0, 1], [2], [1, 1, 0, 2], [0, 2, 1], [1]]
    ample = {"limits": Limits(max_num_batched_tokens=1000, prefill_chunk=64), "nodes": 60}
    rngs = [RandomSource(b) for b in range(len(prompts))]
    lookahead, lengths = LookaheadDraft(3), [*range(n, 0, -6)]  # they end one after another
    together = generate(target, lookahead, prompts, lengths, samplings=Sampling(0), **ample)
    for b, (made, prompt) in enumerate(zip(together, prompts, strict=True)):
        alone = tree_generate(target, lookahead, prompt, lengths[b], Sampling(0))
        assert len(made.rounds) <= len(alone.rounds), (
            f"lookahead needs {len(made.rounds)} passes for row {b}, and {len(alone.rounds)} for "
            "the same text alone: what does it take for the answer to its last guesses?"
        )
    head = random_head(target, cls=CountedHead)
    draft = EagleDraft(target, head, 2)
    answers = generate(target, draft, prompts, lengths, 2, rngs=rngs, **ample)
    together, head.read = head.read, 0
    for b, prompt in enumerate(prompts):
        tree_generate(target, EagleDraft(target, head, 2), prompt, lengths[b], rng=RandomSource(b))
    assert together <= head.read, (
        f"EAGLE's head reads {together} pairs for {len(prompts)} texts in a server, and "
        f"{head.read} for the same ones one by one: whose text does the draft remember?"
    )
    for b, (prompt, made) in enumerate(zip(prompts, answers, strict=True)):
        true_features(head, target, prompt, made, f"row {b}")


def check_apart(generate: BatchDecoder, n: int = 24) -> None:
    """Where each text teaches its own draft, it is in a batch what it is alone: tokens, and q.

    q to 1e-9, for what it learns from, the p of a wider pass, differs in its last bits.
    generate: a `learning_decoder`.
    """
    target, prompts = toy_target(3, 8), [[0, 1], [1, 2, 0]]
    for draft in (random_draft(3), TransformerDraft(toy_target(3, 8, seed=5))):
        rngs = [RandomSource(seed) for seed in range(4)]
        both = generate(target, draft, prompts + prompts, n, 3, Sampling(), rngs)
        for b, made in enumerate(both):
            own = prompts[b % 2]
            [alone] = generate(target, draft, [own], n, 3, Sampling(), [RandomSource(b)])
            for i, (one, other) in enumerate(zip(made.rounds, alone.rounds, strict=False)):
                same = one.draft_probs.shape == other.draft_probs.shape
                off = float((one.draft_probs - other.draft_probs).abs().sum()) if same else 1.0
                assert off < 1e-9, (
                    f"row {b}, round {i}: the draft guesses by another q than for the same text "
                    f"alone, off by {off:.1e}: who taught it?"
                )
            assert made.tokens == alone.tokens, (
                f"row {b} is {made.tokens}, and alone {alone.tokens}: who taught its draft?"
            )


def check_taught(generate: BatchDecoder) -> None:
    """Two texts are the target's own, whatever was learnt on the way, to 1e-12 by enumeration.

    Each for itself, and by a shared draft. generate: a `learning_decoder`.
    """
    target, draft, prompts = toy_target(2, 8, seed=1), random_draft(2), [[0, 1], [1]]
    exact = product_of(target, [(prompt, 3) for prompt in prompts])
    for shared in (False, True):
        got = enumerate_outcomes(
            lambda rng, shared=shared: tuple(
                tuple(made.tokens)
                for made in generate(
                    target, draft, prompts, 3, 1, Sampling(), [rng, rng], shared=shared
                )
            )
        )
        distance = total_variation(got, exact)
        assert distance < 1e-12, (
            f"two texts by a draft that learns{', shared' * shared} are not the target's own: "
            f"total variation {distance:.1e}; was each guess judged by the q that it was drawn "
            "from?"
        )


def taught_table(draft, text: Sequence[int], n_prompt: int, said: Sequence[torch.Tensor]):
    """q (V,) after `text` of a table that was told p (`said`) of each token after the prompt."""
    q = draft.get_probs(text).clone()
    for length in range(TABLE["first"], TABLE["order"] + 1):
        end = list(text[len(text) - length :])
        rows = [
            p
            for place, p in enumerate(said, n_prompt)
            if place >= length and list(text[place - length : place]) == end
        ]
        if len(text) < length or not rows:
            break
        q = (TABLE["prior"] * q + torch.stack(rows).sum(0)) / (TABLE["prior"] + len(rows))
    return q


def check_lessons(generate: BatchDecoder, n: int = 30) -> None:
    """Each q is what the rounds before have taught, worked out anew from the trace.

    A table's from its definition; a net's by the same steps, and all of the text is read again.
    generate: a `learning_decoder`.
    """
    target, prompt = toy_target(3, 8), [0, 1]
    for draft in (random_draft(3), TransformerDraft(toy_target(3, 8, seed=5))):
        [made] = generate(target, draft, [prompt], n, 3, Sampling(), [RandomSource(0)])
        learns = isinstance(draft, TransformerDraft)
        net = NetStudent(draft, **NET).copy() if learns else None
        text, said, new = list(prompt), [], []
        for i, done in enumerate(made.rounds):
            if net and i and i % net.every == 0:
                net.learn(text, torch.stack(new))
                new = []
            for j, q in enumerate(done.draft_probs):
                context = text + done.candidates[:j]
                right = net.get_probs(context) if net else taught_table(draft, context, 2, said)
                off = float((q - right).abs().max())
                assert off < 1e-9, (
                    f"round {i}, guess {j + 1}: q is off by {off:.1e} from what the rounds before "
                    "have taught: from which lesson, or by which weights, is it?"
                )
            rows = list(done.target_probs[: len(done.emitted)])  # of a chain
            text, said, new = text + done.emitted, said + rows, new + rows


SERVING_CHECKS: dict[str, Callable] = {
    "alone": check_alone,
    "product": check_product,
    "independent": check_independent,
    "ragged": check_ragged,
    "leaving": check_leaving,
    "pool": check_pool,  # of a paged_decoder
    "publish": check_publish,
    "leftovers": check_leftovers,
    "preemption": check_preemption,  # of a server_decoder
    "turns": check_turns,
    "held": check_held,
    "memory": check_memory,
    "prefix": check_prefix,  # of one that is asked in turn
    "outcomes": check_outcomes,  # of an ahead_decoder
    "taught": check_taught,  # of a learning_decoder
    "apart": check_apart,
    "lessons": check_lessons,
}
