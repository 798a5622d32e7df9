"""Batches: a text is what it is alone, whatever stands beside it. And `nanogpt serve`."""

import contextlib
import http.client
import itertools
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
import torch
from conftest import TINY, make_model, read_text, restarts, words_in

from nanogpt.cache import first as first_of
from nanogpt.course import chapter_23
from nanogpt.data import CharTokenizer
from nanogpt.drafts.adaptive import adaptive, by_entropy
from nanogpt.drafts.eagle import EagleDraft, EagleTree
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.itself import EarlyExitDraft
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.protocol import Chain, lifted
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.engines import serve
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.measure.costs import batch_times
from nanogpt.proof.checks import tensors
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import Watched, deep_toy, random_draft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import (
    Seat,
    batch_generate,
    batch_mask,
    batch_round,
    joined,
    rows,
    verify_batch,
)
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.trees.loop import propose_tree, tree_generate, verify_tree
from nanogpt.trees.tree import Proposer, ReadText, Tree, keep_path, side_by_side, tree_mask

every_form = pytest.mark.parametrize("form", TARGETS.values(), ids=TARGETS)
WIDE = pytest.mark.wide
WINDOW, V = 8, 7
SAMPLINGS = (Sampling(), Sampling(0), Sampling(0.6), Sampling(top_k=3), Sampling(top_p=0.8))


def whole(low, high, generator):
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def tokens_of(n, generator):
    return torch.randint(V, (n,), generator=generator).tolist()


def chain(tokens, V=V):
    return Tree(tokens, list(range(-1, len(tokens) - 1)), torch.eye(V).double()[tokens])


def random_tree(nodes, depth, generator):
    """Each node's parent is any earlier one that is not too deep; its token is any."""
    parents, depths = [], {-1: 0}
    for node in range(nodes):
        allowed = [n for n in depths if depths[n] < depth]
        parents.append(allowed[whole(0, len(allowed) - 1, generator)])
        depths[node] = depths[parents[-1]] + 1
    tokens = tokens_of(nodes, generator)
    return Tree(tokens, parents, torch.eye(V).double()[tokens])


def same(made, right):
    """Two generations are one: tokens, rounds, passes, and p and q to 1e-9."""
    assert made.tokens == right.tokens
    assert made.prefills == getattr(right, "prefills", 0)  # a plain loop has none
    assert len(made.rounds) == len(right.rounds)
    for mine, other in zip(made.rounds, right.rounds, strict=True):
        assert mine.emitted == other.emitted and mine.candidates == other.candidates
        assert mine.position == other.position and mine.n_examined == other.n_examined
        torch.testing.assert_close(mine.target_probs, other.target_probs, rtol=0, atol=1e-9)
        torch.testing.assert_close(mine.draft_probs, other.draft_probs, rtol=0, atol=1e-9)


# ---- a text in a batch is what it is alone


def random_request(generator):
    """A row's draft, prompt, length, K, sampling, seed and stop token."""
    plain = random_draft(V, seed=whole(0, 3, generator))
    widths = [whole(1, 3, generator) for _ in range(whole(1, 3, generator))]
    siblings = ("with", "without", "fixed")[whole(0, 2, generator)]
    draft = (plain, plain, Grown(plain, widths, siblings))[whole(0, 2, generator)]
    stop = whole(0, V - 1, generator) if whole(0, 2, generator) == 0 else None
    return {
        "draft": draft,
        "prompt": tokens_of(whole(1, 10, generator), generator),
        "n": whole(0, 9, generator),
        "K": whole(3 if draft is not plain else 1, 5, generator),
        "sampling": SAMPLINGS[whole(0, len(SAMPLINGS) - 1, generator)],
        "seed": whole(0, 1000, generator),
        "stop": stop,
    }


def alone(target, draft, prompt, n, K, sampling, seed, stop):
    how = {"sampling": sampling, "rng": RandomSource(seed), "stop_token": stop}
    if isinstance(draft, Proposer):
        return tree_generate(target, draft, prompt, n, **how)
    return speculative_generate(target, draft, prompt, n, K, **how)


def together(target, requests):
    each = {name: [one[name] for one in requests] for name in requests[0]}
    rngs = [RandomSource(seed) for seed in each["seed"]]
    lists = each["draft"], each["prompt"], each["n"], each["K"], each["sampling"]
    return batch_generate(target, *lists, rngs, each["stop"])


SEEDS = [range(60, 100), pytest.param([*range(60), *range(100, 500)], marks=WIDE)]


@pytest.mark.parametrize("seeds", SEEDS, ids=len)
@every_form
def test_in_random_batches_each_row_is_what_it_is_alone(form, seeds):
    """Chains and trees, stops, restarts past the window, no tokens at all; 500 for each target."""
    seen = dict.fromkeys(("restarted", "stopped", "none", "tree"), 0)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        target = form(toy_target(V, WINDOW, seed=seed % 3))
        requests = [random_request(generator) for _ in range(whole(1, 3, generator))]
        for request, made in zip(requests, together(target, requests), strict=True):
            same(made, alone(target, **request))
            seen["restarted"] += restarts(made) > 0
            seen["stopped"] += len(made.tokens) < request["n"]
            seen["none"] += request["n"] == 0
            seen["tree"] += isinstance(request["draft"], Proposer)
    assert min(seen.values()) > len(seeds) / 10, seen


@every_form
def test_a_row_has_its_own_rows_of_p_its_hidden_states_and_its_cache(form):
    """verify_batch beside verify_tree, on trees wider than the window, caches to 1e-9."""
    target, wider = form(make_model()), 0  # a window of 12
    for seed in range(15):
        generator = torch.Generator().manual_seed(seed)
        texts, trees = [], []
        for b in range(4):
            P = whole(0, 10, generator)
            text = ReadText(target, tokens_of(P + 1, generator), 20)
            if b < 2:  # the others are read in the same pass
                text.read()
            depth = TINY.block_size - 1 - P
            size = whole(0, 14, generator)
            trees.append(random_tree(size, depth, generator) if depth else chain([]))
            texts.append(text)
            wider += P + 1 + len(trees[-1].tokens) > TINY.block_size
        trees = [Tree(x.tokens, x.parents, x.q) for x in trees]
        samplings = [SAMPLINGS[(seed + b) % len(SAMPLINGS)] for b in range(4)]
        right, layers = [], [None, (1, 2), None, (1, 2)]
        for text, tree, sampling, read in zip(texts, trees, samplings, layers, strict=True):
            own = ReadText(target, text.tokens, 20)  # its own buffer
            if text.past_kvs is not None:
                own.read()
            right.append(verify_tree(target, own, tree, sampling, read))
        made = verify_batch(target, texts, trees, samplings, layers)
        for mine, other in zip(made, right, strict=True):
            assert mine[0].dtype == torch.float64 and mine[0].shape == other[0].shape
            assert mine[1].shape == other[1].shape
            pairs = zip(
                [*mine[:2], *tensors(mine[2])], [*other[:2], *tensors(other[2])], strict=True
            )
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert wider > 5, "trees wider than the window are among them"


@every_form
def test_after_every_round_a_rows_cache_is_that_of_a_fresh_prefill(form):
    target, generator = form(toy_target(V, WINDOW)), torch.Generator().manual_seed(5)
    draft = random_draft(V)
    grown = Grown(draft, [2, 2, 1])
    prompts = [tokens_of(n, generator) for n in (1, 3, 8, 2)]
    texts = [ReadText(target, prompt, 30) for prompt in prompts]
    seats = [
        Seat(text, (Chain(draft, 3), grown)[b % 2], Sampling(), RandomSource(b))
        for b, text in enumerate(texts)
    ]
    for turn in range(12):
        batch_round(
            target, seats if turn % 3 else seats[::-1][: 2 + turn % 2]
        )  # any rows, any order
        for text in texts:
            if text.past_kvs is None:
                continue
            P = text.cache_length
            fresh = prefill(target, text.tokens[-1 - P : -1])
            for mine, right in zip(tensors(text.past_kvs), tensors(fresh), strict=True):
                torch.testing.assert_close(mine, right, rtol=0, atol=1e-9)
    assert min(text.start for text in texts) > 0, "all restarted"


@every_form
def test_after_every_round_a_rows_hidden_states_are_those_of_its_cached_tokens(form):
    """Along the path that was kept, also where it leads through a later sibling."""
    model, later = deep_toy()[0], 0
    target = form(model)
    grown, layers = Grown(random_draft(3), [2, 2], "fixed"), (1, 3)
    drafts = [
        EagleTree(target, random_head(target), k=2, K=3, nodes=6),
        grown,
        EagleTree(target, random_head(target, layers), k=3, K=2, nodes=8),
    ]
    prompts, read = ([0, 1], [2, 2, 0, 1], [1]), (None, None, layers)
    texts = [ReadText(target, prompt, 40) for prompt in prompts]
    grown.reads = True  # it does not, but what is kept for it is looked at
    seats = [
        Seat(text, draft, Sampling(), RandomSource(b))
        for b, (text, draft) in enumerate(zip(texts, drafts, strict=True))
    ]
    for _ in range(12):  # over a restart
        batch_round(target, seats)
        for text, wanted in zip(texts, read, strict=True):
            cached = torch.tensor([text.tokens[text.start :][: text.cache_length]])
            streams, _ = model.states(cached)
            fresh = side_by_side(streams, wanted) if wanted else model.ln_f(streams[-1])
            torch.testing.assert_close(text.hidden, fresh[0], rtol=0, atol=1e-9)
            path = text.rounds[-1].path
            later += path != list(range(len(path)))
    assert later > 5 and max(text.start for text in texts) > 0


def test_drafts_that_read_the_target_are_what_they_are_alone():
    """EAGLE on its hidden states and on several blocks, an early exit, and a chain beside them."""
    target, exit_head = deep_toy()
    plain = random_draft(3)
    drafts = [
        EagleDraft(target, random_head(target), 2),
        plain,
        EagleDraft(target, random_head(target, (1, 3)), 2),
        EarlyExitDraft(target, 1, exit_head, 2),
        EagleTree(target, random_head(target, (1, 3)), k=2, K=2, nodes=4),
    ]
    prompts, n = [[0, 1], [2], [1, 1, 0, 2], [0, 2, 1], [2, 0]], 30  # past the window of 16
    made = batch_generate(target, drafts, prompts, n, 2)
    for b, (draft, prompt) in enumerate(zip(drafts, prompts, strict=True)):
        right = alone(target, draft, prompt, n, 2, Sampling(), b, None)
        same(made[b], right)


@every_form
def test_a_draft_with_a_cache_of_its_own_is_right_shared_and_not(form):
    target, model = form(toy_target(V, WINDOW)), toy_target(V, 64, seed=3)
    prompts = [[0, 1], [2, 3, 4], [5]]
    own = batch_generate(target, [TransformerDraft(model) for _ in prompts], prompts, 14, 3)
    shared = batch_generate(target, TransformerDraft(model), prompts, 14, 3)
    for b, prompt in enumerate(prompts):
        right = alone(target, TransformerDraft(model), prompt, 14, 3, Sampling(), b, None)
        same(own[b], right)
        same(shared[b], right)


def test_a_policy_chooses_a_rows_k():
    target, draft, prompts = toy_target(V, WINDOW), random_draft(V), [[0, 1], [2]]
    step = adaptive(by_entropy(2.0))
    made = batch_generate(target, [lifted(draft, 3, step), draft], prompts, 12, 3)
    steps = replace(CHAIN, draft=step)
    how = {"steps": steps, "rng": RandomSource(0)}
    same(made[0], speculative_generate(target, draft, [0, 1], 12, **how))
    same(made[1], alone(target, draft, [2], 12, 3, Sampling(), 1, None))


# ---- the joint distribution of two rows


@every_form
@pytest.mark.parametrize("kind", ("chain", "tree"))
def test_two_rows_are_independent_and_each_is_the_targets_own(form, kind):
    """Different K, samplings, stops: the joint distribution is the product of the target's own."""
    target, draft = form(toy_target(2, 8, seed=1)), random_draft(2)
    second = Grown(draft, [2]) if kind == "tree" else draft
    prompts, lengths, stops = [[0, 1], [1]], [3, 2], [1, None]
    samplings = [Sampling(), Sampling(0.5)]
    joint = enumerate_outcomes(
        lambda rng: tuple(
            tuple(made.tokens)
            for made in batch_generate(
                target, [draft, second], prompts, lengths, [2, 1], samplings, [rng, rng], stops
            )
        )
    )
    singles = [
        enumerate_outcomes(
            lambda rng, row=row: tuple(
                autoregressive_generate(target, *row[:3], rng, row[3]).tokens
            )
        )
        for row in zip(prompts, lengths, samplings, stops, strict=True)
    ]
    product = {
        (a, b): p * q
        for (a, p), (b, q) in itertools.product(*(single.items() for single in singles))
    }
    assert total_variation(joint, product) < 1e-12


# ---- rows come and go


class Rows(Watched):
    """A target that remembers how many rows and columns each pass had."""

    def states(self, idx, pos=None, past_kvs=None, attn_mask=None, depth=None):
        self.passes.append(tuple(idx.shape))
        return self.target.states(idx, pos, past_kvs, attn_mask, depth)


def test_finished_rows_leave_and_no_pass_is_wider_than_its_largest_row():
    target, draft = Rows(toy_target(V, 64)), random_draft(V)
    made = batch_generate(target, draft, [[0]] * 4, [3, 9, 0, 1], [4, 2, 4, 4])
    assert [len(each.tokens) for each in made] == [3, 9, 0, 1]
    rounds = [len(each.rounds) for each in made]
    assert len(target.passes) == max(rounds), "a pass serves all rows"
    for turn, shape in enumerate(target.passes):
        running = [each.rounds[turn] for each in made if len(each.rounds) > turn]
        assert shape == (len(running), 1 + max(len(r.candidates) for r in running))


def test_the_generations_come_in_the_order_of_the_prompts():
    target, draft, prompts = toy_target(V, 32), random_draft(V), [[b] for b in range(V)]
    lengths = [5, 1, 9, 2, 0, 7, 3]
    made = batch_generate(target, draft, prompts, lengths, samplings=Sampling(0))
    for prompt, n, each in zip(prompts, lengths, made, strict=True):
        assert each.tokens == autoregressive_generate(target, prompt, n, Sampling(0)).tokens
    assert batch_generate(target, draft, [], 5) == []


def test_the_default_sources_are_one_for_each_row():
    target, draft = toy_target(V, 32), random_draft(V)
    made = batch_generate(target, draft, [[0, 1]] * 3, 20)
    for b, each in enumerate(made):
        assert each.tokens == alone(target, draft, [0, 1], 20, 4, Sampling(), b, None).tokens
    assert len({tuple(each.tokens) for each in made}) == 3


# ---- positions and mask


def test_the_mask_of_two_chains_by_hand():
    """Three and one tokens cached, one and two guesses; flush left, and then flush right."""
    left = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]
    left = left, [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
    trees = [chain([0]), chain([0, 1])]
    pos, mask = batch_mask(trees, [3, 1], [0, 0])
    assert pos.tolist() == [[3, 4, 3], [1, 2, 3]]
    assert mask.int().tolist() == list(left)
    pos, mask = batch_mask(trees, [3, 1], [0, 2])
    assert pos.tolist() == [[3, 4, 3], [1, 2, 3]]
    assert mask[0].int().tolist() == left[0]
    assert mask[1].int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]


def test_a_single_trees_mask_is_its_own_and_padding_stays_in_the_window():
    tree = Tree([1, 2, 3], [-1, -1, 0], torch.eye(V).double()[[1, 2, 3]])
    pos, mask = batch_mask([tree, chain([0] * 6)], [2, 0], [0, 2])
    own = tree_mask(tree.parents, 2)
    assert torch.equal(mask[0, :4, :6], own) and pos[0, :4].tolist() == [2, 3, 3, 4]
    assert not mask[0, :4, 6:].any() and pos[0, 4:].tolist() == [2, 2, 2]
    assert mask.any(-1).all(), "a row that sees nothing would be NaN"


# ---- caches of several texts


def texts_of(target, lengths, generator):
    return [read_text(target, tokens_of(n + 1, generator), 20) for n in lengths]


@every_form
def test_joined_and_parted_a_cache_is_what_it_was(form):
    target, generator = form(toy_target(V, 16)), torch.Generator().manual_seed(0)
    for lengths in ([3, 5, 0, 1], [4, 4], [0, 2], [6]):
        texts = texts_of(target, lengths, generator)
        caches = [text.past_kvs for text in texts]
        right = [[x.clone() for x in tensors(cache)] for cache in caches]
        whole, before = joined(caches)
        for cache, mine in zip(rows(whole, before, lengths), right, strict=True):
            for a, b in zip(tensors(cache), mine, strict=bool(mine)):
                torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert joined([None, None]) == (None, [0, 0])


def test_what_a_shorter_text_has_not_written_is_zeros():
    """0 times a NaN is NaN, whatever the mask says."""
    target, generator = TARGETS["fused"](toy_target(V, 16)), torch.Generator().manual_seed(0)
    for form in (toy_target(V, 16), target):
        texts = texts_of(form, [1, 6], generator)
        whole, before = joined([text.past_kvs for text in texts])
        for x in tensors(whole):
            empty = x[0, : before[0]] if before[0] else x[0, 1:]
            assert len(empty) == 5 and not empty.any()


def test_rows_of_one_buffer_are_joined_again_without_a_copy():
    target, draft = TARGETS["fused"](toy_target(V, 64)), random_draft(V)
    texts = texts_of(target, [3, 5, 1], torch.Generator().manual_seed(0))
    seats = [Seat(x, Chain(draft, 2), Sampling(), RandomSource(b)) for b, x in enumerate(texts)]
    batch_round(target, seats)
    whole = joined([text.past_kvs for text in texts])[0].buffer
    for _ in range(3):
        batch_round(target, seats)
        assert joined([text.past_kvs for text in texts])[0].buffer is whole
    fewer = joined([text.past_kvs for text in texts[:2]])[0].buffer
    other = joined([text.past_kvs for text in texts[::-1]])[0].buffer
    assert whole.data_ptr() not in (fewer.data_ptr(), other.data_ptr())


def test_a_rows_cache_is_stale_once_a_pass_of_the_batch_wrote_over_it():
    target = TARGETS["fused"](toy_target(V, 64))
    texts = texts_of(target, [3, 5], torch.Generator().manual_seed(0))
    trees, samplings = [chain([1, 2]), chain([3, 4])], [Sampling()] * 2
    first = [x[2] for x in verify_batch(target, texts, trees, samplings)]
    for text, cache, keep in zip(texts, first, (3, 8), strict=True):
        text.past_kvs = first_of(cache, keep)  # row 0 gives two back, row 1 keeps all
    verify_batch(target, texts, [chain([5]), chain([6])], samplings)
    for use in (lambda: first[0][0], lambda: joined(first), lambda: first[0].kept(2)):
        with pytest.raises(ValueError, match="was overwritten"):
            use()
    assert len(tensors(first[1])) == 4, "the other row's is as good as ever"


def test_a_row_that_is_copied_out_of_the_batch_is_safe_from_it():
    target = TARGETS["fused"](toy_target(V, 64))
    texts = texts_of(target, [3, 5], torch.Generator().manual_seed(0))
    for text, (_, _, new_kvs) in zip(
        texts, verify_batch(target, texts, [chain([])] * 2, [Sampling()] * 2), strict=True
    ):
        text.past_kvs = keep_path(new_kvs, [], text.cache_length)
    other, _ = joined([text.past_kvs for text in texts[::-1]])  # a copy, in another order
    right = [x.clone() for x in tensors(other)]
    for text in texts:
        text.past_kvs = text.past_kvs.kept(2)
    verify_batch(target, texts, [chain([1, 1])] * 2, [Sampling()] * 2)
    for a, b in zip(tensors(other), right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


# ---- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"K": [1, 2, 3]}, "3 values for 2 prompts"),
        ({"max_new_tokens": [4]}, "1 values for 2 prompts"),
        ({"samplings": [Sampling()] * 3}, "3 values for 2 prompts"),
        ({"stop_token": []}, "0 values for 2 prompts"),
        ({"rngs": [RandomSource(0)]}, "1 values for 2 prompts"),
        ({"rngs": RandomSource(0)}, "one random source for each row"),
        ({"draft": [random_draft(V)]}, "1 values for 2 prompts"),
        ({"draft": [random_draft(V), random_draft(5)]}, "vocabulary of 5 tokens"),
        ({"draft": random_draft(5)}, "vocabulary of 5 tokens"),
        ({"K": 0}, "K is 0"),
        ({"K": [2, 1.5]}, "K is 1.5"),
        ({"prompts": [0, 1]}, r"write \[prompt\] for one"),
        ({"prompts": [[0], []]}, "the prompt is empty"),
        ({"prompts": [[0], [V]]}, "token 7 at index 0"),
        ({"max_new_tokens": [3, -1]}, "max_new_tokens is -1"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_input_is_one_clear_line(given, message):
    request = {"draft": random_draft(V), "prompts": [[0], [1, 2]], "max_new_tokens": 3}
    with pytest.raises(ValueError, match=message):
        batch_generate(toy_target(V, 8), **request | given)


@every_form
def test_verify_batch_refuses_lists_that_do_not_fit_and_texts_past_the_window(form):
    target = form(toy_target(V, WINDOW))
    texts = texts_of(target, [7, 2], torch.Generator().manual_seed(0))
    for given in ((texts, [chain([])], [Sampling()] * 2), ([], [], [])):
        with pytest.raises(ValueError, match="give a tree and a sampling for each text"):
            verify_batch(target, *given)
    with pytest.raises(ValueError, match="run past the window of 8"):
        verify_batch(target, texts, [chain([1]), chain([])], [Sampling()] * 2)
    verify_batch(target, texts, [chain([]), chain([1, 2, 3])], [Sampling()] * 2)


def test_propose_goes_no_deeper_than_the_text_has_room():
    target, draft = toy_target(V, WINDOW), random_draft(V)
    text = ReadText(target, [0, 1], 3)
    tree = Chain(draft, 9).propose(text, text.room, Sampling(), RandomSource(0))
    assert len(tree.tokens) == 2 and tree.is_chain
    tree = propose_tree(Grown(draft, [2, 1, 1, 1]), text, 1, Sampling(), RandomSource(0))
    assert tree.parents == [-1, -1]


# ---- what a pass costs


@every_form
def test_the_times_of_passes_are_those_that_were_asked_for(form):
    target = form(toy_target(V, 32))
    times = batch_times(target, (1, 3), (1, 4), cached=10, repeats=2)
    assert list(times) == [(1, 1), (1, 4), (3, 1), (3, 4)] and min(times.values()) > 0
    for cached in (7, 29):
        with pytest.raises(
            ValueError, match=f"{cached} cached tokens and 4 more; the window has 32"
        ):
            batch_times(target, (1,), (1, 4), cached=cached)


# ---- what the chapter draws


def test_the_picture_of_two_rounds_says_which_rejected_entries_the_next_round_overwrites():
    """By hand: two of three guesses are rejected, and a narrower pass comes; none of two."""
    first = [("ab", "c", "def", "dz"), ("uv", "w", "xy", "xyz")]
    then = [("abcd", "z", "", "q"), ("uvwxy", "z", "", "q")]
    drawn = chapter_23.two_rounds([first, then], "Two rounds of two texts")
    said = words_in(drawn)
    assert [x for x in said if " → " in x] == ["2 → 4", "2 → 5", "4 → 5", "5 → 6"]
    assert [x for x in said if x[0] == "✗"] == ["✗e", "✗f", "✗f", "✗e"]  # the last one is small
    small = [x.get_text() for x in drawn.axes[0].texts if x.get_fontsize() == 8]
    assert small == ["✗e"]


def test_a_line_crosses_one_where_it_does_on_log_scales():
    sizes, gains = (1, 4, 16, 64), (4, 0.25, 0.5, 2)
    assert chapter_23.crossings(sizes, gains) == pytest.approx([2, 32])
    assert chapter_23.crossings(sizes, (3, 2, 1.5, 1.1)) == []
    assert chapter_23.crossings(sizes, (0.9, 0.5, 0.2, 0.1)) == []


def test_no_random_sources_are_none_for_a_row_and_not_the_default():
    for rngs in ([], [RandomSource(0)] * 3):
        with pytest.raises(ValueError, match=f"{len(rngs)} values for 2 prompts"):
            batch_generate(toy_target(7, 8), random_draft(7), [[1], [2]], 3, rngs=rngs)


# ---- `nanogpt serve`


@contextlib.contextmanager
def listening(decode=speculative_generate):
    """A toy behind an address, by this decoder: its completions, and ask(body, path, data).

    ask returns the status and the answer, JSON where it is that; data: the body as it is sent.
    """
    target, tokenizer = toy_target(V, WINDOW), CharTokenizer("abcdefg")
    completions = serve.Completions(decode, target, PromptLookupDraft(V), tokenizer)
    server = serve.HTTPServer(("127.0.0.1", 0), serve.handler(completions))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(body=None, path="/v1/completions", data=None):
        data = json.dumps(body).encode() if data is None and body is not None else data
        address = f"http://127.0.0.1:{server.server_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, data), timeout=120) as got:
                code, said = got.status, got.read().decode()
        except urllib.error.HTTPError as error:
            code, said = error.code, error.read().decode()
        with contextlib.suppress(ValueError):
            said = json.loads(said)
        return code, said

    ask.port = server.server_port
    try:
        yield completions, ask
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def ask():
    with listening() as (_, ask):
        yield ask


def refused(answer, said, code=400):
    """The answer is a refusal in one line that has these words."""
    assert answer[0] == code and list(answer[1]) == ["error"]
    line = answer[1]["error"]["message"]
    assert said in line and len(line.splitlines()) == 1 and len(line) < 200
    return True


NOT_KEPT = {
    "structured_outputs": [{"json": {"type": "object"}}, {"choice": ["a"]}, {}, "a", {"regex": 1}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}],
    "stream": [0, "no"],
    "stream_options": [{"include_usage": True}, {"include_usage": 0}, {"a": False}, [], True],
    **{name: ["a+"] for name in ("guided_regex", "guided_json", "guided_choice", "grammar")},
    **{name: [[0], {}] for name in ("stop_token_ids", "bad_words", "tools", "messages")},
    **{name: [4, 0.5, True] for name in ("min_tokens", "best_of", "typical_p", "top_a")},
    **{name: [0] for name in ("max_completion_tokens", "n_predict", "prompt_logprobs", "xtc")},
    **{key: [-1, 1.5, "1", True, [1], 1e309] for key in ("seed", "n", "max_tokens")},
    **{key: [-2, 0.5, "5", False, 10**30] for key in ("logprobs", "top_k")},
    **{key: [-1, "1", True, [], 10**400, -(10**400)] for key in ("temperature", "top_p", "min_p")},
    **{key: ["0", False, float("nan"), 1e300] for key in ("presence_penalty", "frequency_penalty")},
    "repetition_penalty": [0, -1, 1e-300, True],
    "prompt": [
        None,
        [],
        {},
        3,
        True,
        "ab½",
        [True],
        [7],
        [1.0],
        [-1],
        ["a", 1],
        [[0], []],
        "",
        [""],
    ],
    "stop": [1, True, {}, [1], ["a", None], "", [""], "½"],
    "logit_bias": [[], "a", {"a": 1}, {"1": "x"}, {"1": 101}, {" 1": 1}, {"1_0": 1}, {"-1": 1}],
    "echo": [1, "yes", []],
    "use_beam_search": [True],
    "include_stop_str_in_output": [True],
    "length_penalty": [2],
    "suffix": ["x"],
    "return_token_ids": [1],
    "model": ["gpt-4", 1, ""],
    "user": [1],
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_a_server_does_not_keep_it_refuses_by_name(ask, name):
    for value in NOT_KEPT[name]:
        said = name if name not in ("prompt", "stop") else ""  # or by the character, or its token
        assert refused(ask({"prompt": "ab", "max_tokens": 2, name: value}), said), (name, value)


def test_what_cannot_be_together_or_would_take_too_long_is_refused(ask):
    for fields, said in (
        ({"logprobs": 1, "top_p": 0.5}, "read again with echo"),
        ({"prompt": ["a"] * 65, "n": 2}, "n times the prompts is 130; it must be 128 or fewer"),
        ({"logit_bias": {"9": 1}}, "bias or stop names token 9"),
        ({"structured_outputs": {"regex": "(a"}}, "a ( that nothing closes"),
        ({"structured_outputs": {"regex": ""}}, "matches the empty text alone"),
        ({"structured_outputs": {"regex": "a{²}"}}, "{ without a whole number and }"),
        ({"stop": ["a", "b" * 201]}, "it must be a text of up to 200 letters, or a list of those"),
        ({"structured_outputs": {"regex": "((a{99}){99}){99}"}}, "5000 letters, written out"),
        ({"structured_outputs": {"regex": "(" * 2000 + "a" + ")" * 2000}}, "nested too deeply"),
        ({"prompt": "ab" * WINDOW, "echo": True, "logprobs": 1}, "past the window of 8"),
    ):
        assert refused(ask({"prompt": "ab", "max_tokens": 2, **fields}), said)


def test_null_is_the_default_and_so_is_what_asks_for_nothing(ask):
    plain = {"prompt": "ab", "seed": 3}
    right = ask(plain)
    assert right[0] == 200 and len(right[1]["choices"][0]["text"]) == 16
    kept = [*serve.NUMBERS, *serve.FLAGS, *serve.NEUTRAL, "stop", "logit_bias", "model", "user"]
    assert ask({**dict.fromkeys([*kept, "structured_outputs", "no such field"]), **plain}) == right
    neutral = {name: default for name, (default, *_) in serve.NUMBERS.items()}
    neutral |= {name: value[-1] for name, value in serve.NEUTRAL.items()}
    neutral |= {"top_k": -1, "best_of": 1, "stop": [], "logit_bias": {}, "model": "nanogpt"}
    assert ask({**neutral, **plain}) == right
    said = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "presence_penalty": 0}
    said |= {"frequency_penalty": 0, "repetition_penalty": 1, "n": 1, "max_tokens": 16}
    assert {name: serve.NUMBERS[name][0] for name in said} == said, "OpenAI's defaults, and vLLM's"


def test_what_is_no_request_for_completions_is_one_line(ask):
    body = json.dumps({"prompt": "ab"}).encode()
    for answer, code, said in (
        (ask({"messages": []}, "/v1/chat/completions"), 404, "POST a prompt to /v1/completions"),
        (ask(path="/v1/completions"), 404, "nothing at /v1/completions; GET"),
        *((ask(data=data), 400, "the body is no JSON object") for data in (b"[]", b"3", b"null")),
        *((ask(data=data), 400, "the body is no JSON: ") for data in (b"", b"{", b"\xff", b"'a'")),
        (ask(data=b"[" * 100_000), 400, "nested too deeply"),
    ):
        assert refused(answer, said, code)
    assert ask(data=body.decode().encode("utf-16"))[0] == 200
    assert ask(path="/v1/models/?limit=1")[1]["data"][0]["id"] == "nanogpt"
    for head in ("", "Content-Length: x\r\n", f"Content-Length: {10**9}\r\n"):
        with socket.create_connection(("127.0.0.1", ask.port), timeout=60) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
            answer = b"".join(iter(lambda raw=raw: raw.recv(9999), b""))  # to the end: it closes
        assert answer.startswith(b"HTTP/1.1 411 ") and b"send a Content-Length" in answer


def test_a_prompt_is_echoed_before_what_is_drawn_and_its_log_probabilities_with_it(ask):
    fields = {"prompt": "abc", "max_tokens": 4, "seed": 5, "logprobs": 0, "return_token_ids": True}
    (drawn,), (both,) = (ask({**fields, "echo": x})[1]["choices"] for x in (False, True))
    (read,) = ask({**fields, "echo": True, "max_tokens": 0})[1]["choices"]
    assert (read["text"], both["text"]) == ("abc", "abc" + drawn["text"])
    first, later, all_of_it = (one["logprobs"]["token_logprobs"] for one in (read, drawn, both))
    assert first[0] is None and len(later) == 4 and all_of_it == [*first, *later]
    assert [len(top) for top in both["logprobs"]["top_logprobs"][1:]] == [1] * 6


def test_requests_without_a_seed_have_dice_of_their_own(ask):
    fields = {"prompt": "ab", "max_tokens": 30}
    texts = [ask(fields)[1]["choices"][0]["text"] for _ in range(3)]
    assert len(set(texts)) == 3
    assert ask({**fields, "seed": 0}) == ask({**fields, "seed": 0}), "0 is a seed"
    (a, b), (c, d) = (
        [x["text"] for x in ask({**fields, "n": 2, "seed": seed})[1]["choices"]] for seed in (6, 7)
    )
    assert b == c and len({a, b, d}) == 3, "text i by the seed + i"
    two = [ask({**fields, "prompt": ["ab", "ab"], **x})[1]["choices"] for x in ({}, {"seed": 1})]
    assert [len({x["text"] for x in choices}) for choices in two] == [2, 1], "of each prompt"


def test_two_hundred_connections_at_once_are_answered_alike(ask):
    """All knock before anybody is let in."""
    fields, gate, came = {"prompt": "ab", "max_tokens": 4, "seed": 1}, threading.Barrier(200), []

    def client():
        gate.wait(120)
        came.append(ask(fields))

    threads = [threading.Thread(target=client) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == [ask(fields)] * 200


def test_a_client_that_leaves_takes_its_work_with_it(capfd):
    """Its text would never end; the next one waits for the drafts."""
    began, ended = threading.Event(), threading.Event()

    def endless(target, draft, prompt, n, K, sampling, rng):
        if n == 1:
            return speculative_generate(target, draft, prompt, n, K, sampling, rng)
        began.set()
        try:
            while True:
                rng.bernoulli(0.5)
        finally:
            ended.set()

    with listening(endless) as (_, ask):
        data = json.dumps({"prompt": "ab", "max_tokens": 2}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", ask.port)) as raw:
            raw.sendall(head.encode() + data)
            assert began.wait(60)
        assert ended.wait(60) and ask({"prompt": "ab", "max_tokens": 1})[0] == 200
    assert capfd.readouterr() == ("", "")


def test_what_nobody_foresaw_is_one_line_and_the_server_goes_on(capfd):
    def breaks(*_):
        raise KeyError("a fault\nof ours")

    with listening(breaks) as (completions, ask):
        assert refused(ask({"prompt": "ab"}), "the server failed: KeyError", 500)
        completions.decode = speculative_generate
        assert ask({"prompt": "ab"})[0] == 200
        completions.tokenizer = None  # so that the request cannot even be read
        assert refused(ask({"prompt": "ab"}), "the server failed: AttributeError", 500)
    out, error = capfd.readouterr()
    assert not out and [x.split()[3] for x in error.splitlines()] == [
        "KeyError:",
        "AttributeError:",
    ]


def test_the_metrics_count_guesses_as_engines_do():
    """Held against the rounds themselves; those without a guess do not count."""
    rounds = []

    def kept(*given):
        made = speculative_generate(*given)
        rounds.extend(made.rounds)
        return made

    with listening(kept) as (_, ask):
        code, none = ask(path="/metrics")
        assert code == 200 and none.splitlines()[0] == "vllm:spec_decode_num_drafts_total 0"
        ask({"prompt": "abab", "max_tokens": 60, "temperature": 0, "n": 2})
        told = dict(line.rsplit(" ", 1) for line in ask(path="/metrics")[1].splitlines())
    guessed = [r for r in rounds if r.candidates]
    per_place = [sum(r.n_accepted > i for r in guessed) for i in range(4)]
    assert 0 < per_place[1] < per_place[0] < len(guessed) < len(rounds)
    right = [len(guessed), sum(len(r.candidates) for r in guessed), sum(per_place), *per_place]
    assert [int(number) for number in told.values()] == right
    names = ["drafts", "draft_tokens", "accepted_tokens", *["accepted_tokens_per_pos"] * 4]
    assert [x.split("{")[0] for x in told] == [f"vllm:spec_decode_num_{x}_total" for x in names]
    assert [x for x in told if 'position="3"' in x] == [list(told)[-1]]
    with listening() as (_, ask):
        ask({"prompt": "abab", "max_tokens": 60, "temperature": 0, "logit_bias": {"0": 1}})
        assert ask(path="/metrics")[1] != none, "texts under constraints count as well"


def streamed(ask, fields):
    """The pieces of a streamed answer, as a load test reads them: each event, up to the last."""
    data = json.dumps({**fields, "stream": True}).encode()
    address = f"http://127.0.0.1:{ask.port}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(address, data), timeout=120) as got:
        assert got.headers["Content-Type"] == "text/event-stream"
        events = got.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and all(x[:6] == "data: " for x in events[:-1])
    return [json.loads(event[6:]) for event in events[:-2]]


STREAMED = [
    {},
    {"n": 3, "temperature": 0.7},
    {"prompt": ["ab", [1, 2, 3], "g"], "n": 2, "echo": True},
    {"logprobs": 2, "return_token_ids": True},
    {"logprobs": 1, "echo": True, "return_token_ids": True, "return_tokens_as_token_ids": True},
    {"stop": ["ab", "fgc", "dd"], "max_tokens": 60, "logprobs": 0},
    {"structured_outputs": {"regex": "(ab|c){4}g"}, "frequency_penalty": 1.0, "logprobs": 0},
    {"max_tokens": 0},
    {"max_tokens": 0, "echo": True, "logprobs": 1},
]


@pytest.mark.parametrize("fields", STREAMED, ids=str)
def test_a_stream_is_the_answer_in_pieces(ask, fields):
    """Text, reason, ids and log-probabilities, whatever is asked; and the usage after them."""
    fields = {"prompt": "ab", "max_tokens": 30, "seed": 4, **fields}
    answer = ask(fields)[1]
    *pieces, last = streamed(ask, {**fields, "stream_options": {"include_usage": True}})
    assert last == {**answer, "choices": []} and all(piece["usage"] is None for piece in pieces)
    assert "usage" not in streamed(ask, fields)[-1]
    for choice in answer["choices"]:
        its = [c for x in pieces for c in x["choices"] if c["index"] == choice["index"]]
        assert [c["finish_reason"] for c in its] == [None] * (len(its) - 1) + [
            its[-1]["finish_reason"]
        ]
        assert its[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(c["text"] for c in its) == choice["text"]
        assert (len(its) > 1) == (fields["max_tokens"] > 0), "as they come"
        if "token_ids" in choice:
            assert [x for c in its for x in c["token_ids"]] == choice["token_ids"]
            assert [c.get("prompt_token_ids") for c in its[:2]] == [[0, 1], None]
        for name, all_of_it in choice.get("logprobs", {}).items():
            assert [x for c in its for x in c["logprobs"][name]] == all_of_it


def test_an_engines_own_load_test_can_be_pointed_at_it(ask):
    """What vLLM's sends, and how it reads: a time for each piece, and tokens by the usage."""
    asked = {"model": "nanogpt", "prompt": "abcabc", "temperature": 0.0, "max_tokens": 25}
    asked |= {"repetition_penalty": 1.0, "logprobs": None, "ignore_eos": True, "stream": True}
    pieces = streamed(ask, {**asked, "stream_options": {"include_usage": True}})
    came = [piece["choices"][0]["text"] for piece in pieces if piece["choices"]]
    assert pieces[-1]["usage"] == {"prompt_tokens": 6, "completion_tokens": 25, "total_tokens": 31}
    assert len("".join(came)) == 25 and all(came)


def test_many_requests_share_passes_and_each_is_what_it_is_alone():
    with listening() as (completions, ask):
        completions.target = target = Rows(completions.target)
        fields = [{"prompt": "ab", "max_tokens": 20, "seed": i} for i in range(40)]
        gate, came = threading.Barrier(40), {}

        def client(i):
            gate.wait(120)
            came[i] = "".join(x["choices"][0]["text"] for x in streamed(ask, fields[i]))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone, passes = 0, len(target.passes)
        for i in range(40):
            made = alone_with(completions, [0, 1], 20, i)
            alone += len(made.rounds)
            assert came[i] == completions.tokenizer.decode(made.tokens)
        assert passes < alone / 2, (passes, alone)


def alone_with(completions, prompt, n, seed):
    given = completions.target, completions.draft, prompt, n, completions.K
    return speculative_generate(*given, Sampling(), RandomSource(seed))


@contextlib.contextmanager
def half_read(ask, fields):
    """The connection of a stream of which a few bytes were read."""
    data = json.dumps({**fields, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", ask.port), timeout=60) as raw:
        raw.sendall(head.encode() + data)
        assert raw.recv(15) == b"HTTP/1.1 200 OK"
        yield raw


def test_whoever_leaves_a_stream_cancels_and_whoever_is_slow_holds_nobody_up(capfd):
    long = {"prompt": "ab", "max_tokens": 4096, "n": 12}
    with listening() as (completions, ask):
        with half_read(ask, long), half_read(ask, long):
            queue = completions.engine.server.queue
            assert len(queue) > 12, "both are being written"
            assert ask({"prompt": "ab", "max_tokens": 5})[0] == 200, "there are seats"
            assert len(queue) > 12, "nobody had to wait for them"
        end = time.monotonic() + 60
        while len(queue):
            assert time.monotonic() < end, "they write for nobody"
            time.sleep(0.01)
        engine = completions.engine
    assert not engine.thread.is_alive(), "the server is closed, and so is its engine"
    assert capfd.readouterr() == ("", "")


class Breaks(PromptLookupDraft):
    """A lookup that fails in one text, after a while."""

    def fresh(self):
        return self

    def get_probs(self, context):
        if context[0] == 6 and len(context) > 20:
            raise KeyError("a fault\nof ours")
        if context[0] == 5:
            raise ValueError("a fault, and no client's")
        return super().get_probs(context)

    def draw(self, context, K, sampling, rng):
        self.get_probs(context)
        return super().draw(context, K, sampling, rng)


def test_what_fails_in_a_stream_is_its_last_event_and_no_other_text_has_it(capfd):
    with listening() as (completions, ask):
        completions.draft = Breaks(V)
        with half_read(ask, {"prompt": "ga", "max_tokens": 4000}) as raw:
            said = b"".join(iter(lambda: raw.recv(9999), b"")).decode().split("\n\n")
        assert json.loads(said[-2][6:])["error"]["message"].startswith(
            "the server failed: KeyError"
        )
        assert said[-1] == "" and len(said) > 3 and "DONE" not in said[-3]
        assert refused(ask({"prompt": "ga", "max_tokens": 4000}), "KeyError", 500)
        assert refused(ask({"prompt": "fa", "max_tokens": 9}), "ValueError: a fault, and no", 500)
        assert ask({"prompt": "ab", "max_tokens": 30})[0] == 200
        for wrong in ({"prompt": "ab½"}, {"logit_bias": {"9": 1}}, {"n": 0}):
            assert refused(ask({"prompt": "ab", "stream": True, **wrong}), "")
    out, error = capfd.readouterr()
    failed = [x.split()[3] for x in error.splitlines()]
    assert not out and failed == ["KeyError:", "KeyError:", "ValueError:"]


def test_a_decoder_with_a_bug_sends_each_text_in_one_piece():
    with listening(lambda *given: speculative_generate(*given)) as (completions, ask):
        fields = {"prompt": "ab", "max_tokens": 20, "seed": 5, "n": 2, "logprobs": 1}
        pieces = streamed(ask, fields)
        assert [piece["choices"][0] for piece in pieces] == ask(fields)[1]["choices"]
        assert completions.opened is None and len(pieces) == 2


def test_a_port_that_is_taken_is_named(ask):
    one = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=60)
    for _ in range(2):  # one connection serves one request after the other
        one.request("POST", "/v1/completions", json.dumps({"prompt": "ab", "max_tokens": 2}))
        assert one.getresponse().read()
        time.sleep(0.2)
    with pytest.raises(OSError, match=f"port {ask.port}: .*; choose another with --port"):
        serve.open_server(draft="none", port=ask.port)


def test_no_body_breaks_a_server_and_nonsense_has_no_text(ask):
    """What is answered had known fields only, and numbers where numbers belong."""
    hypothesis, st = map(pytest.importorskip, ("hypothesis", "hypothesis.strategies"))
    letters = st.text("ab(|)*+?{2}[]^-.½", max_size=6)
    numbers = st.sampled_from([-1, 0, 1, 2, 0.5, 1e-320, 1e308, -(10**400), float("nan")])
    json_of = st.recursive(
        st.none() | st.booleans() | numbers | letters,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(letters, x, max_size=3),
    )
    patterns = letters.map(lambda x: {"structured_outputs": {"regex": x}})
    biases = st.dictionaries(st.sampled_from("0169x"), numbers).map(lambda x: {"logit_bias": x})
    kept = [*serve.NUMBERS, *serve.FLAGS, "prompt", "stop", "structured_outputs", "logit_bias"]
    passed = [*serve.NEUTRAL, "best_of", "model", "user"]
    names = st.sampled_from([*kept, *passed, "messages", "tools", "guided_regex", "logit bias"])
    any_of = st.dictionaries(names, json_of, max_size=4)

    @hypothesis.settings(deadline=None, max_examples=200, derandomize=True, database=None)
    @hypothesis.given(json_of | any_of | patterns | biases)
    def holds(body):
        if isinstance(body, dict):
            body = {"prompt": "ab", "max_tokens": 2, **body}
        code, said = ask(data=json.dumps(body).encode())
        if code != 200:
            assert refused((code, said), "")
            return
        given = {name: value for name, value in body.items() if value is not None}
        assert set(given) <= {*kept, *passed} and given["prompt"]
        for name in {*given} & {*serve.NUMBERS}:
            assert type(given[name]) in (int, float) and abs(given[name]) <= 2
        assert len(said["choices"]) >= 1
        json.dumps(said, allow_nan=False)

    holds()
