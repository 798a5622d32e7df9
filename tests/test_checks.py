"""Each check refuses what it is there for: decoders that are wrong in one thing, and slightly.

A check that sees nothing, or only gross errors, would pass them. What else a check says is told
by its message, so that each of its assertions is known to be needed.
"""

import dataclasses
import functools
import importlib.util
import re

import pytest
import torch

from nanogpt.checkpoint import read_header
from nanogpt.drafts import eagle
from nanogpt.drafts.grown import Grown
from nanogpt.generate import Generation, Round
from nanogpt.proof.checks import (
    SAMPLINGS,
    check_acceptance,
    check_accounting,
    check_cache,
    check_draft_cache,
    check_frequencies,
    check_greedy,
    check_incremental,
    check_lossless,
    check_nodes,
    check_pinned_alpha,
    check_siblings,
    check_stop,
    check_support,
    check_trees_lossless,
)
from nanogpt.proof.checks_serving import (
    check_alone,
    check_independent,
    check_leaving,
    check_outcomes,
    check_pool,
    check_preemption,
    check_product,
    check_publish,
    check_ragged,
    random_requests,
)
from nanogpt.proof.decoders import (
    ahead_decoder,
    decoder,
    paged_decoder,
    server_decoder,
    tree_decoder,
)
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.proof.toys import SelfDraft, TableDraft
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate, verify_batch
from nanogpt.serving.constraints import Constraints
from nanogpt.speculative import (
    accept_reject,
    draft_tokens,
    speculative_generate,
    speculative_rounds,
    trim_kv_cache,
    verify_candidates,
)
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import verify_tree
from nanogpt.trees.tree import ReadText, TreeRound

MILLIONTH = 1e-6


def loop(name, module, parts):
    """A function or class of a module of the package, with parts of that module replaced."""
    spec = importlib.util.find_spec(f"nanogpt.{module}")
    second = importlib.util.module_from_spec(spec)  # the package's own stays as it is
    spec.loader.exec_module(second)
    vars(second).update(parts)
    return vars(second)[name]


def near_even(p):
    """Probabilities (..., V), off by about a millionth."""
    return (1 - MILLIONTH) * p + MILLIONTH / p.shape[-1]


def refuses(check, generate, says):
    with pytest.raises(AssertionError, match=says):
        check(generate)


# ---- one text: what is off by a millionth


def verified_off(*args):
    p, new_kvs = verify_candidates(*args)
    return near_even(p), new_kvs


def drafted_off(*args):
    tokens, q = draft_tokens(*args)
    return tokens, near_even(q)


def trimmed_off(*args):
    """Of all its keys and values, one tensor is off: the last head's values."""
    *layers, last = trim_kv_cache(*args)
    *heads, (k, v) = last
    return (*layers, (*heads, (k, v + MILLIONTH)))


def eagle_off(reads_streams):
    """An EagleDraft whose q is off on streams only, or on hidden states only."""

    class Off(eagle.EagleDraft):
        def propose(self, *args):
            tree = super().propose(*args)
            wrong = (self.head.layers is not None) == reads_streams
            return dataclasses.replace(tree, q=near_even(tree.q)) if wrong else tree

    return loop("eagle_decoder", "proof.decoders", {"EagleDraft": Off})


def trees_off(wrong):
    """A tree decoder whose p is off in trees for which `wrong` says so."""

    def verified(target, text, tree, *rest):
        p, *others = verify_tree(target, text, tree, *rest)
        return (near_even(p) if wrong(tree) else p), *others

    return tree_decoder("without", verify=verified)


OFF = {
    "exact": (check_lossless, decoder(verify=verified_off), "output is not the targ"),
    "cache": (check_cache, decoder(trim=trimmed_off), "not that of a fresh prefill: "),
    "draft": (check_draft_cache, decoder(draft=drafted_off), "draft's q is off by"),
    "nodes": (check_nodes, decoder(verify=verified_off), "after the current token p is"),
    "a node": (check_nodes, trees_off(lambda tree: len(tree.tokens) > 2), "p is off by"),
    "hidden": (check_incremental, eagle_off(False), "on hidden states"),
    "streams": (check_incremental, eagle_off(True), r"on layers \(1, 2, 3\)"),
    "depth 1": (
        check_trees_lossless,
        trees_off(lambda t: max(t.parents, default=-9) == -1),
        "K = 1",
    ),
    "depth 2": (
        check_trees_lossless,
        trees_off(lambda t: max(t.parents, default=-9) > -1),
        "K = 2",
    ),
}


@pytest.mark.parametrize("check, generate, says", OFF.values(), ids=OFF)
def test_a_check_of_numbers_sees_a_millionth(check, generate, says):
    refuses(check, generate, says)


# ---- one text: each case of a check


def sure(candidates, q, p, rng):
    """Whoever is sure is believed: a guess with q = 1 stands without a coin."""
    p = p.clone()
    for i, token in enumerate(candidates):
        p[i] = q[i] if q[i, token] == 1 else p[i]
    return accept_reject(candidates, q, p, rng)


def test_the_enumeration_needs_a_draft_that_is_sure():
    refuses(check_lossless, decoder(accept=sure), "with a one-hot draft, K = 2 and Sampl")


def deaf(to):
    """A decoder that verifies as if this sampling had been none at all."""

    def verified(target, current, candidates, past_kvs, sampling, unread=()):
        sampling = Sampling() if sampling == to else sampling
        return verify_candidates(target, current, candidates, past_kvs, sampling, unread)

    return decoder(verify=verified)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_enumeration_needs_each_sampling(sampling):
    refuses(check_lossless, deaf(sampling), re.escape(f"and {sampling}, tokens"))


@pytest.mark.parametrize("sampling", [Sampling(top_k=2), Sampling(top_p=0.5), Sampling(0)], ids=str)
def test_what_has_probability_0_is_looked_for_with_each_sampling(sampling):
    refuses(check_support, deaf(sampling), re.escape(f"probability 0 ({sampling})"))


def many(candidates, q, p, rng):
    """After three accepted guesses, the next token is another."""
    *kept, last = accept_reject(candidates, q, p, rng)
    return [*kept, (last + (len(kept) >= 3)) % p.shape[-1]]


def stubborn():
    """A rule that gives in: at the tenth rejection of a first guess in a row, it lets it stand."""
    rejected = 0

    def accept(candidates, q, p, rng):
        nonlocal rejected
        emitted = accept_reject(candidates, q, p, rng)
        if not candidates:
            return emitted
        rejected = 0 if len(emitted) > 1 else rejected + 1
        return candidates[:1] if rejected == 10 else emitted

    return accept


def last_of_the_best(draft, context, K, sampling, rng):
    tokens = list(context)
    q = []
    for _ in range(K):
        q.append(draft.get_probs(tokens))
        best = q[-1] == q[-1].max()
        tokens.append(int(best.nonzero()[-1]))
    return tokens[len(context) :], torch.stack(q) if q else torch.empty(0, draft.vocab_size)


def first_of_the_best(candidates, q, p, rng):
    """Compares where both are largest; of equals, argmax takes the first."""
    right = p.argmax(-1).tolist()
    for i, token in enumerate(candidates):
        if int(q[i].argmax()) != right[i]:
            return [*candidates[:i], right[i]]
        assert token is not None
    return [*candidates, right[len(candidates)]]


class Forgetful(ReadText):
    """At its second restart, it reads a token too few."""

    restarts = 0

    def restart_if_full(self):
        before = self.start
        super().restart_if_full()
        self.restarts += self.start != before
        if self.restarts == 2 and self.start != before:
            self.start += 1


def forgetful(target, draft, prompt, n, K=4, sampling=Sampling(), rng=None, stop_token=None):
    """speculative_generate with such a text."""
    text = Forgetful(target, prompt, n, stop_token)
    for _ in speculative_rounds(text, draft, K, sampling, rng):
        pass
    return text.generation()


GREEDY = {
    "target": (lambda: decoder(accept=many), "SelfDraft"),
    "worst": (lambda: decoder(accept=stubborn()), "WorstDraft"),
    "even": (lambda: decoder(draft=last_of_the_best, accept=first_of_the_best), "TableDraft"),
    "restarts": (lambda: forgetful, "greedy decoding differs"),
}


@pytest.mark.parametrize("make, says", GREEDY.values(), ids=GREEDY)
def test_greedy_texts_are_compared_with_every_draft_and_over_two_restarts(make, says):
    refuses(check_greedy, make(), says)


def unsampled(draft, context, K, sampling, rng):
    """Guesses as at temperature 1, whatever the sampling: right, and slower."""
    return draft_tokens(draft, context, K, Sampling(), rng)


def four_coins(candidates, q, p, rng):
    """Four coins for each guess, and a residual that makes up for it: right, and slower."""
    for i, token in enumerate(candidates):
        stands = (p[i] / q[i]).nan_to_num(0).clamp(max=1.0) ** 4
        if not rng.bernoulli(float(stands[token])):
            left = (p[i] - q[i] * stands).clamp(min=0)
            return [*candidates[:i], rng.categorical(left / left.sum())]
    return [*candidates, rng.categorical(p[len(candidates)])]


def test_decoders_that_are_right_but_slower_show_in_the_acceptance_alone():
    """Each of its two halves: a draft equal to the target; and the sum of min(p, q)."""
    for part, rule, says in (
        ("draft", unsampled, r"equal to the target was rejected: .*temperature=0.7"),
        ("accept", four_coins, r"candidates were accepted where Σ min\(p, q\) says"),
    ):
        slower = decoder(**{part: rule})
        check_lossless(slower, n=2)
        check_greedy(slower)
        refuses(functools.partial(check_acceptance, n=600), slower, says)


def four_coins_a_node(tree, p, rng):
    """accept_tree for trees of one child a node, with four_coins."""
    emitted = four_coins(tree.tokens, tree.q, p, rng)
    return list(range(len(emitted) - 1)), emitted[-1]


def test_trees_that_are_right_but_slower_show_in_the_acceptance_alone():
    slower = tree_decoder("with", (1,), accept=four_coins_a_node)
    check_lossless(slower, n=2, K=1)
    refuses(
        functools.partial(check_siblings, n=600),
        slower,
        r"nodes were accepted where Σ min\(r, q\) says",
    )


EVEN = torch.full((1, 2), 0.5, dtype=torch.float64)
ONE, OTHER = torch.eye(2, dtype=torch.float64)[None].unbind(1)


def rounds_with(accepted, n, parents=None):
    """n rounds of one guess each, Σ min(p, q) = 1/2, so many of them accepted."""
    p = torch.cat([ONE, EVEN])
    yes, no = ([0], EVEN, p, [0, 0], 1), ([1], EVEN, p, [0], 1)
    if parents:
        yes, no = TreeRound(*yes, parents, [0]), TreeRound(*no, parents, [])
    else:
        yes, no = Round(*yes), Round(*no)
    return [yes] * accepted + [no] * (n - accepted)


@pytest.mark.parametrize("check", [check_acceptance, check_siblings])
def test_the_band_of_an_acceptance_is_four_standard_errors(check):
    """Of 400 guesses, 200 ± 10 are to be accepted: 240 are too many for chance, 239 are not."""
    whole = torch.cat([EVEN, EVEN])
    sure = [Round([0], EVEN, whole, [0, 0], 1)]

    def made(accepted):
        def generate(target, draft, *_):
            rounds = sure if isinstance(draft, SelfDraft) else rounds_with(accepted, 400)
            return Generation([0], rounds)

        return generate

    for fine in (161, 200, 239):
        check(made(fine))
    for wrong in (159, 241):
        refuses(check, made(wrong), f"{wrong} .*were accepted where .* says 200.0 ± 10.0")


def test_the_band_of_the_shipped_heads_alpha_is_four_standard_errors():
    alpha, _ = read_header(eagle.EAGLE3)["facts"]["alpha"][0]
    n = 500
    sigma = (n * alpha * (1 - alpha)) ** 0.5

    def made(sigmas):
        accepted = round(n * alpha + sigmas * sigma)
        return lambda *_: Generation([0], rounds_with(accepted, n))

    for fine in (-3.8, 0, 3.8):
        check_pinned_alpha(made(fine))
    for wrong in (-4.2, 4.2):
        refuses(check_pinned_alpha, made(wrong), "guesses were accepted where the head's own α")


def test_the_record_of_a_tree_is_a_path_of_it():
    """What is kept is what is emitted, and each node is a child of the one before it."""
    rows = torch.full((4, 7), 1 / 7, dtype=torch.float64)
    for path, says in (([0, 2], "node 2 is no child of node 0"), ([1], r"keeps \[2\] and emits")):
        wrong = TreeRound(
            [1, 2, 1], rows[:3], rows, [1, 1, 5][-len(path) - 1 :], 1, [-1, -1, 1], path
        )
        refuses(check_siblings, lambda *_, r=wrong: Generation([0], [r]), says)


def longer(*args):
    return trim_kv_cache(args[0], args[1] + 1, args[2])


def another_token(target, current, *rest):
    return verify_candidates(target, (current + 1) % 7, *rest)


def test_the_cache_before_a_round_is_looked_at_in_three_ways():
    for parts, says in (
        ({"trim": longer}, r"cache holds \d+ tokens instead of"),
        ({"trim": trimmed_off}, "the cache is not that of a fresh prefill"),
        ({"verify": another_token}, r"the pass starts with tokens .* instead of .*"),
    ):
        refuses(check_cache, decoder(**parts), says)


def changed(change):
    """A decoder whose answer is changed before it is returned."""
    return lambda *args, **kwargs: change(speculative_generate(*args, **kwargs))


def deaf_to_stops(*args, stop_token=None):
    return speculative_generate(*args)


def test_lengths_and_stops_are_counted():
    short = changed(lambda made: dataclasses.replace(made, tokens=made.tokens[:23]))
    refuses(check_accounting, short, "23 tokens came where 24 were asked for")
    refuses(check_accounting, deaf_to_stops, r"stop token \d: the text is .* should end as")


@pytest.mark.parametrize("name", ["tokens_per_pass", "acceptance_rate", "alpha"])
def test_every_statistic_is_compared_with_its_trace(name):
    """Of a chain with a round that examined one of three guesses, and one that accepted two."""
    p = torch.full((4, 7), 1 / 7, dtype=torch.float64)
    rounds = [Round([1, 2, 3], p[:3], p, [4], 1), Round([1, 2, 3], p[:3], p, [1, 2, 5], 2)]
    text = [4, 1, 2, 5]
    right = Generation(text, rounds)
    assert (right.tokens_per_pass, right.acceptance_rate, right.alpha) == (2, 1 / 3, 1 / 2)
    check_stop(right, 6, text)
    off = property(lambda self: getattr(Generation, name).fget(self) + 1e-9)
    wrong = type("Off", (Generation,), {name: off})(text, rounds)
    with pytest.raises(AssertionError, match=f"{name} is "):
        check_stop(wrong, 6, text)
    refuses(check_accounting, changed(lambda m: type(wrong)(*vars(m).values())), f"{name} is ")


def test_chi_squared_by_hand():
    """(60 - 50)² / 50 twice; what is rare is one cell, and what cannot come at all is infinite."""
    assert chi_squared({0: 60, 1: 40}, {0: 0.5, 1: 0.5}, 100) == (4.0, 1)
    rare = {0: 0.94, 1: 0.03, 2: 0.03}  # 3 times each of 100: together, 6
    assert chi_squared({0: 94, 1: 6}, rare, 100) == (0.0, 1)
    assert chi_squared({0: 85, 1: 15}, rare, 100) == pytest.approx((81 / 94 + 81 / 6, 1))
    half = {0: 0.5, 1: 0.5}
    for impossible, infinite in ((5, False), (6, True)):
        counts = {0: 50, 1: 50, 2: impossible}
        assert (chi_squared(counts, half, 100)[0] == float("inf")) == infinite
    assert chi_squared({0: 50, 1: 48, 2: 2}, half | {2: 0.0}, 100) == (0.08, 1)


def test_the_limit_of_chi_squared_is_that_of_the_tables():
    for freedom, sigmas, limit in ((10, 1.644854, 18.307), (30, 2.326348, 50.892)):
        assert chi_squared_limit(freedom, sigmas) == pytest.approx(limit, rel=2e-3)
    assert chi_squared_limit(8) == chi_squared_limit(8, 4.0) > chi_squared_limit(8, 3.0)


def test_a_decoder_that_leans_by_its_numbers_is_refused_by_frequencies():
    """Where its coins say no to the first guess, they are tossed again."""

    def lenient(candidates, q, p, rng):
        kept = accept_reject(candidates, q, p, rng)
        return accept_reject(candidates, q, p, rng) if len(kept) == 1 and candidates else kept

    refuses(check_frequencies, decoder(accept=lenient), "not spread as the target's: χ²")


# ---- several texts


def batch_off(wrong=lambda target, trees: True):
    """verify_batch, with p off by a millionth in passes for which `wrong` says so."""

    def verified(target, texts, trees, samplings, layers=None):
        made = verify_batch(target, texts, trees, samplings, layers)
        off = near_even if wrong(target, trees) else lambda p: p
        return [(off(p), *rest) for p, *rest in made]

    return {"verify_batch": verified}


def fused(target):
    return hasattr(target, "qkv")


FUSED_OFF = batch_off(lambda target, _: fused(target))
HEADS_OFF = batch_off(lambda target, _: not fused(target))
TREES_OFF = batch_off(lambda _, trees: any(len(set(t.parents)) < len(t.parents) for t in trees))
Off = loop("Server", "serving.server", batch_off())
server_off = functools.partial(server_decoder, kind=Off)


class Mixed(TableDraft):
    """A draft that draws from, and claims, a q that is off by a millionth."""

    def __init__(self, draft):
        self.draft, self.vocab_size = draft, draft.vocab_size

    def get_probs(self, context):
        return near_even(self.draft.get_probs(context))


def ahead_off(target, draft, *args, **kwargs):
    return ahead_decoder(target, Mixed(draft), *args, **kwargs)


def entries_off(target, *args, **kwargs):
    """Right answers, and then the pool's entries are moved by a millionth."""
    made = paged_decoder(target, *args, **kwargs)
    target.pool.entries += MILLIONTH
    return made


BATCHES_OFF = {
    "product": (
        check_product,
        loop("batch_generate", "serving.batch", batch_off()),
        "texts in a batch",
    ),
    "fused": (check_ragged, loop("batch_generate", "serving.batch", FUSED_OFF), "p is off by"),
    "per-head": (check_ragged, loop("batch_generate", "serving.batch", HEADS_OFF), "p is off by"),
    "trees": (check_ragged, loop("batch_generate", "serving.batch", TREES_OFF), "p is off by"),
    "preemption": (check_preemption, server_off, "their joint distribution is not the target's"),
    "outcomes": (check_outcomes, ahead_off, "q is off by"),
    "publish": (check_publish, entries_off, "holds entries that are off by"),
}


@pytest.mark.parametrize("check, generate, says", BATCHES_OFF.values(), ids=BATCHES_OFF)
def test_a_check_of_batches_sees_a_millionth(check, generate, says):
    refuses(check, generate, says)


def asked_otherwise(decode=batch_generate, **other):
    """A batch decoder that is asked for something else than it was asked for."""
    names = ("max_new_tokens", "K", "samplings", "rngs", "stop_token")

    def generate(target, draft, prompts, *args, **kwargs):
        asked = dict(zip(names, args, strict=False)) | kwargs
        return decode(target, draft, prompts, **asked | other)

    return generate


@pytest.mark.parametrize(
    "other",
    [
        {"stop_token": None},
        {"samplings": Sampling()},
        {"rngs": None},
        {"max_new_tokens": 9},
        {"constraints": Constraints()},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_a_row_asks_for_is_its_own(other):
    refuses(check_alone, asked_otherwise(**other), "is not what it is alone")


def test_requests_are_of_every_kind():
    """Of six batches: stops that come and none, all samplings, all K, texts past a window."""
    requests = [request for case in range(4, 30, 5) for request in random_requests(case)]
    prompts, lengths, Ks, samplings, seeds, stops = zip(*requests, strict=True)
    assert {None} < set(stops) and 0 < stops.count(None) < len(stops) - 3
    assert len(set(samplings)) == 5 and set(Ks) == {1, 2, 3, 4}
    assert len(set(seeds)) == len(seeds) and max(map(len, prompts)) > 8
    assert max(len(p) + n for p, n in zip(prompts, lengths, strict=True)) > 16


def test_rows_of_which_some_pairs_are_copies_are_not_independent():
    """One pair in three: χ² is a few times what chance allows, and not ten times."""

    def generate(target, draft, prompts, *args):
        rngs = [RandomSource(b - (b % 2 if b % 6 < 2 else 0)) for b in range(len(prompts))]
        return batch_generate(target, draft, prompts, *args, rngs=rngs)

    with pytest.raises(AssertionError, match="neighbours in a batch are not indep") as caught:
        check_independent(generate)
    said = re.search(r"χ² = ([\d.]+) at .* where ([\d.]+) is", str(caught.value))
    assert float(said[1]) < 10 * float(said[2])


def extra_pass(target, *args, **kwargs):
    """Right answers, and a pass of one row that nobody needs."""
    made = batch_generate(target, *args, **kwargs)
    target.states(torch.tensor([[0]]))
    return made


def test_a_row_that_leaves_is_looked_at_in_each_way():
    short = asked_otherwise(max_new_tokens=[0, 1, 2, 23, 5, 24])
    for generate, says in (
        (extra_pass, r"the target's passes had \d+ rows in all where the texts needed \d+ at most"),
        (short, "row 3 has 23 tokens where 24 were asked for"),
        (asked_otherwise(stop_token=None), r"stop token \d: the text is .* should end as"),
        (lambda *args: batch_generate(*args)[:-1], "5 answers to 6 prompts"),
    ):
        refuses(check_leaving, generate, says)


def with_rounds(change):
    """Right answers, whose rounds are not what they were."""

    def generate(*args, **kwargs):
        made = batch_generate(*args, **kwargs)
        return [dataclasses.replace(one, rounds=change(one.rounds)) for one in made]

    return generate


def test_what_rounds_say_of_themselves_is_looked_at():
    one_more = with_rounds(
        lambda rounds: [dataclasses.replace(r, position=r.position + 1) for r in rounds]
    )
    refuses(check_ragged, one_more, r"the cache holds \d+ tokens instead of \d+: row 0, round 0")
    goes_on = with_rounds(lambda rounds: [*rounds, *rounds[-1:]])
    refuses(check_leaving, goes_on, "goes on after its end")


@pytest.mark.parametrize("kind", ["fused", "tree"])
def test_each_row_is_compared_on_both_forms_and_with_trees(kind):
    """An error that only one form of the target has, or only a tree, is seen."""

    def generate(target, draft, *args, **named):
        made = batch_generate(target, draft, *args, **named)
        off = isinstance(*{"fused": (target, FusedLanguageModel), "tree": (draft, Grown)}[kind])
        return [dataclasses.replace(x, tokens=x.tokens[::-1]) for x in made] if off else made

    refuses(check_alone, generate, "is not what it is alone")


def test_blocks_that_stay_when_all_is_done_are_counted():
    held = []

    def holding(target, *args, **kwargs):
        made = paged_decoder(target, *args, **kwargs)
        held.append(target.pool.take())
        return made

    def miscounting(target, *args, **kwargs):
        made = paged_decoder(target, *args, **kwargs)
        target.pool.references[0] -= 1
        return made

    def failing(*args, **kwargs):
        raise IndexError("no such block")

    refuses(check_pool, holding, "1 of 64 blocks are held when all texts are done")
    refuses(check_pool, miscounting, "references to free blocks")
    refuses(check_pool, failing, "finds no block that was reserved for it, .*: no such block")


def test_texts_that_find_others_blocks_are_compared():
    """Right blocks, and wrong answers where they are found: the same prompts, a second time."""
    asked = 0

    def generate(target, draft, prompts, *args):
        nonlocal asked
        asked += 1
        made = paged_decoder(target, draft, prompts, *args)
        if asked % 2:
            return made
        return [dataclasses.replace(one, tokens=one.tokens[::-1]) for one in made]

    refuses(check_publish, generate, "found in blocks of .*, come")


def test_preempted_texts_are_compared_greedily_as_well():
    def generate(target, draft, prompts, lengths, *args, **kwargs):
        made = server_decoder(target, draft, prompts, lengths, *args, **kwargs)
        if lengths == 14:
            made[2] = dataclasses.replace(made[2], tokens=made[2].tokens[::-1])
        return made

    refuses(check_preemption, generate, "row 2 of 4, in 20 places")
