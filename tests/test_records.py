"""Chapter 35: trees by one heap, one budget for all, a hybrid; and its page."""

import copy
import itertools
import json
import math
import re
from dataclasses import replace

import pytest
import torch
from conftest import drained, random_weights, sure
from texts import off

from nanogpt import checkpoint
from nanogpt.arena import referee
from nanogpt.course import chapter_35
from nanogpt.drafts import ngram, parallel
from nanogpt.drafts.adaptive import load_stop
from nanogpt.drafts.best import BestFirst, BlockTree, Root, best_first
from nanogpt.drafts.hybrid import Hybrid, repeats
from nanogpt.drafts.lookup import SuffixDraft
from nanogpt.drafts.protocol import Chain
from nanogpt.generate import autoregressive_generate
from nanogpt.measure import bench, records
from nanogpt.proof.checks_serving import product_of
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import Led, from_memory, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_generate
from nanogpt.serving.budget import budget_generate, share
from nanogpt.serving.server import Server
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.rules import accept_traversal, accept_tree
from nanogpt.trees.tree import ReadText

SAMPLINGS = Sampling(), Sampling(0.5), Sampling(0), Sampling(top_k=2)


def wild_block(target, K=2):
    """A block drafter with random weights, in float64."""
    return random_weights(parallel.BlockDrafter(target.config, (1,), K=K, reach=3, rank=2))


def drafts_of(V, target, nodes=3):
    """{name: a draft} of each kind that this chapter builds."""
    draft, drafter = random_draft(V), wild_block(target)
    drawn, told = BestFirst(draft, nodes, sure), parallel.BlockDraft(target, drafter)
    return {
        "fixed": BestFirst(draft, nodes),
        "drawn": drawn,
        "block fixed": BlockTree(told, nodes),
        "block drawn": BlockTree(told, nodes, sure),
        "block apart": BlockTree(parallel.BlockDraft(target, drafter, markov=False), nodes, sure),
        "hybrid": Hybrid(lambda context: repeats(context, 1), Chain(SuffixDraft(V)), drawn),
    }


@pytest.mark.pairs
@pytest.mark.parametrize("name", drafts_of(2, toy_target(2, 8)))
@pytest.mark.parametrize("rule", [accept_tree, accept_traversal])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_output_is_the_targets_own(name, rule, sampling):
    """By enumeration of the real loop, over a restart; drawn siblings are among the guesses."""
    target = from_memory(toy_target(2, 4, seed=1))
    draft, steps = drafts_of(2, target)[name], replace(TREE, accept=rule)
    assert off(tree_generate, target, draft, 4, sampling, steps=steps) < 1e-12


@pytest.mark.parametrize("name", drafts_of(5, toy_target(5, 8)))
@pytest.mark.parametrize("form", TARGETS)
def test_greedy_texts_are_the_targets_own(name, form):
    target = TARGETS[form](toy_target(5, 8, seed=7))
    draft = drafts_of(5, target, nodes=6)[name]
    own = autoregressive_generate(target, [0, 1, 2], 30, Sampling(0)).tokens
    made = tree_generate(target, draft, [0, 1, 2], 30, Sampling(0))
    assert made.tokens == own and len(set(own)) > 2


def test_a_fixed_tree_holds_the_likeliest_paths():
    """As a list of all paths has them, for random rows; and in the order of their worth."""
    V, depth, generator = 4, 3, torch.Generator().manual_seed(0)
    for _ in range(5):
        rows = {
            path: torch.rand(V, generator=generator, dtype=torch.float64)
            for d in range(depth)
            for path in itertools.product(range(V), repeat=d)
        }
        rows = {path: q / q.sum() for path, q in rows.items()}
        root = Root(lambda path, rows=rows: rows[tuple(path)], depth, Sampling(), None)
        (tree,) = best_first([root], 20, V)
        right = chapter_35.worths(lambda path, rows=rows: rows[tuple(path)].tolist(), depth)
        paths = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        values = [right[path] for path in paths]
        assert values == pytest.approx(sorted(right.values(), reverse=True)[:20])
        assert tree.q.argmax(-1).tolist() == tree.tokens and tree.q.sum() == 20


def test_fewer_nodes_are_the_beginning_of_more():
    target = toy_target(5, 16)
    for sharp in (None, sure):
        text = ReadText(target, [0, 1], 9)
        small, large = (
            BestFirst(random_draft(5), n, sharp).propose(text, 6, Sampling(), RandomSource(3))
            for n in (4, 12)
        )
        assert large.tokens[:4] == small.tokens and large.parents[:4] == small.parents


def test_drawn_siblings_come_from_what_is_left():
    """Each q is that of its place without its earlier siblings; and there are siblings."""
    text, draft = ReadText(toy_target(5, 16), [0, 1], 9), random_draft(5)
    tree = BestFirst(draft, 12, sure).propose(text, 4, Sampling(), RandomSource(0))
    assert not tree.is_chain
    for parent, children in enumerate(tree.children):
        context = text.tokens[-1] if parent == 0 else tree.tokens[parent - 1]
        left = draft.get_probs([context]).clone()
        for child in children:
            assert torch.allclose(tree.q[child], left / left.sum(), atol=1e-12)
            left[tree.tokens[child]] = 0


def test_guesses_of_a_sampling_are_drawn_by_it():
    text, draft = ReadText(toy_target(5, 16), [0, 1], 9), random_draft(5)
    tree = BestFirst(draft, 1, sure).propose(text, 4, Sampling(0.5), RandomSource(0))
    assert torch.allclose(tree.q[0], Sampling(0.5).of_probs(draft.get_probs([1])), atol=1e-12)


def test_a_guess_is_made_where_it_is_likeliest_to_be_kept():
    """Two texts, by hand: the sure one gets the second guess before the other gets its first."""
    rows = [torch.tensor(q).double() for q in ([0.9, 0.1], [0.6, 0.4])]

    def lengths(nodes):
        roots = [Root(lambda path, q=q: q, 3, Sampling(), Led([0, 0, 0])) for q in rows]
        made = best_first(roots, nodes, 2, sure=lambda q: float(q.max()))
        return [len(tree.tokens) for tree in made]

    assert [lengths(n) for n in (1, 2, 3, 4)] == [[1, 0], [2, 0], [3, 0], [3, 1]]  # .729, then .6


@pytest.mark.two_ways
def test_a_told_block_tree_has_the_chains_q():
    """Whatever path is asked about: q as BlockDraft has it after the same token."""
    target = toy_target(5, 16, seed=1)
    drafter = wild_block(target, K=3)
    text = ReadText(target, [0, 1, 2], 9)
    text.read(drafter.layers)
    root = BlockTree(parallel.BlockDraft(target, drafter), 5).root(text, 9, Sampling(), None)
    assert root.depth == 3
    for tokens in itertools.product(range(5), repeat=3):
        chain = parallel.BlockDraft(target, drafter).propose(text, 3, Sampling(), Led(tokens))
        for i in range(3):
            assert torch.allclose(root.after(list(tokens[:i])), chain.q[i], atol=1e-9)


@pytest.mark.two_ways
@pytest.mark.parametrize("name", drafts_of(5, toy_target(5, 8)))
def test_alone_in_a_batch_and_in_a_server_they_take_as_many_passes(name):
    """At temperature 0 and 1: the same texts, and as many rounds."""
    target = toy_target(5, 8, seed=7)
    prompts = [[0, 1], [3, 2, 4, 1], [2]]
    for sampling in (Sampling(0), Sampling()):
        draft = drafts_of(5, target, nodes=5)[name]
        alone = [
            tree_generate(target, draft, prompt, 14, sampling, RandomSource(b))
            for b, prompt in enumerate(prompts)
        ]
        others = [batch_generate(target, draft, prompts, 14, samplings=sampling)]
        server = Server(target, draft, seed=0)
        for b, prompt in enumerate(prompts):
            server.submit(prompt, 14, sampling, RandomSource(b))
        served = drained(server)
        if draft.reads:  # a server's first round after a read is without such guesses
            assert sampling.temperature or [served[b].tokens for b in range(3)] == [
                made.tokens for made in alone
            ]
        else:
            others.append([served[b] for b in range(3)])
        for made in others:
            assert [m.tokens for m in made] == [m.tokens for m in alone]
            assert [m.target_passes for m in made] == [m.target_passes for m in alone]


# One budget


def joint(decode, requests, window=4):
    """The law of two texts together, beside the product of what each is alone."""
    target = from_memory(toy_target(2, window, seed=1))
    got = enumerate_outcomes(lambda rng: decode(target, rng))
    return total_variation(got, product_of(target, requests))


REQUESTS = [([0, 1], 2, Sampling()), ([1], 3, Sampling(0.5))]


@pytest.mark.parametrize("name", ["fixed", "drawn", "block fixed", "block drawn"])
def test_two_texts_under_one_budget_are_independent(name):
    def decode(target, rng):
        draft = drafts_of(2, target)[name]
        made = budget_generate(target, draft, *zip(*REQUESTS, strict=True), rngs=[rng, rng])
        return tuple(tuple(text.tokens) for text in made)

    assert joint(decode, REQUESTS) < 1e-12


@pytest.mark.parametrize("name", ["fixed", "drawn"])
def test_two_texts_are_independent_over_restarts_with_guesses(name):
    requests, seen = [([1], 5, Sampling()), ([0, 1], 2, Sampling(0.5))], 0

    def decode(target, rng):
        nonlocal seen
        draft = drafts_of(2, target, nodes=2)[name]
        made = budget_generate(target, draft, *zip(*requests, strict=True), rngs=[rng, rng])
        for last, r in itertools.pairwise(made[0].rounds):
            seen += bool(r.position <= last.position and r.candidates)
        return tuple(tuple(text.tokens) for text in made)

    assert joint(decode, requests, window=3) < 1e-12 and seen > 100


@pytest.mark.parametrize("name", ["fixed", "drawn", "block fixed", "block drawn"])
def test_one_text_under_a_budget_is_what_it_is_alone(name):
    """Over restarts of the window, with guesses in the round after each; round for round."""
    target = toy_target(5, 8, seed=7)
    for sampling in (Sampling(0), Sampling()):
        draft = drafts_of(5, target, nodes=5)[name]
        (made,) = budget_generate(target, draft, [[0, 1]], 25, sampling, [RandomSource(4)])
        alone = tree_generate(target, draft, [0, 1], 25, sampling, RandomSource(4))
        assert made.tokens == alone.tokens
        assert [r.candidates for r in made.rounds] == [r.candidates for r in alone.rounds]


def test_one_budget_is_as_large_as_even_shares():
    target, draft = toy_target(5, 16), BestFirst(random_draft(5), 9, sure)
    seats = [
        Seat(ReadText(target, prompt, 9), draft, Sampling(), RandomSource(b))
        for b, prompt in enumerate([[0, 1], [3], [2, 2]])
    ]
    assert sum(len(tree.tokens) for tree in share(draft, seats, 9)) == 9


# A hybrid


def test_a_hybrid_asks_one_of_the_two_and_the_context_says_which():
    target = toy_target(5, 16)
    hybrid = Hybrid(repeats, Chain(SuffixDraft(5), 2), Chain(random_draft(5), 2))
    again = ReadText(target, [0, 1, 2, 3, 4, 0, 1, 2, 3], 9)
    tree = hybrid.propose(again, 9, Sampling(), RandomSource(0))
    assert tree.tokens == [4, 0] and tree.q.max() == 1
    new = ReadText(target, [0, 1, 2, 3, 4, 0, 1, 2, 2], 9)
    assert hybrid.propose(new, 9, Sampling(), RandomSource(0)).q.max() < 1


def test_a_hybrid_keeps_at_least_what_the_lookup_of_it_keeps_in_a_refrain():
    target, tokenizer = checkpoint.load()
    fused, V = FusedLanguageModel(target), target.config.vocab_size
    refrain = tokenizer.encode("When that I was a boy, I sang all day.\n" * 2)
    tree = BlockTree(parallel.BlockDraft(fused, parallel.load_block()), 8)
    hybrid = Hybrid(repeats, Chain(SuffixDraft(V), 8), tree)
    made = [
        tree_generate(fused, draft, refrain, 60, Sampling(0))
        for draft in (hybrid, Chain(SuffixDraft(V), 8))
    ]
    assert made[0].tokens_per_pass > made[1].tokens_per_pass


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: budget_generate(toy_target(3, 8), BestFirst(random_draft(3), 2), [1, 2], 4),
            "prompts are lists",
        ),
        (
            lambda: budget_generate(
                toy_target(3, 8), BestFirst(random_draft(3), 2), [[1]], 4, rngs=RandomSource(0)
            ),
            "give rngs as a list",
        ),
        (
            lambda: Hybrid(repeats, Chain(SuffixDraft(3)), Chain(random_draft(4))),
            "3 tokens and the other 4",
        ),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# The real target


@pytest.mark.two_ways
def test_the_shipped_block_makes_a_tree_of_the_targets_own_text():
    target, tokenizer = checkpoint.load()
    exact = copy.deepcopy(target).double()
    draft = BlockTree(parallel.BlockDraft(exact, parallel.load_block().double()), 12)
    prompt = tokenizer.encode("ROMEO:")
    own = autoregressive_generate(exact, prompt, 150, Sampling(0)).tokens
    made = tree_generate(exact, draft, prompt, 150, Sampling(0))
    assert made.tokens == own and made.tokens_per_pass > 2


@pytest.mark.parametrize("asked", ["again", pytest.param("exact", marks=pytest.mark.wide)])
def test_the_arena_lets_a_tree_of_the_chapters_race(asked, tmp_path):
    entry = """
from nanogpt.drafts import ngram
from nanogpt.drafts.adaptive import load_stop
from nanogpt.drafts.best import BestFirst

def make_draft(tokens, vocab_size):
    return BestFirst(ngram.load(), 15, load_stop())
"""
    (tmp_path / "mine.py").write_text(entry)
    house = referee.open_arena()
    entered = referee.enter(tmp_path / "mine.py", house)
    assert entered.proposes
    assert getattr(referee, f"check_{asked}")(entered, house)
    referee.check_untouched(house)


def test_the_average_tokens_are_what_comes_out_on_average():
    """The sum over a tree's nodes, beside the enumeration of the rule."""
    target, draft = toy_target(3, 8, seed=1), BestFirst(random_draft(3), 6, sure)
    text = ReadText(target, [0, 1], 5)
    tree = draft.propose(text, 3, Sampling(), RandomSource(0))
    p, _, _ = TREE.verify(target, text, tree, Sampling())
    lengths = enumerate_outcomes(lambda rng: 1 + len(accept_tree(tree, p, rng)[0]))
    right = sum(n * chance for n, chance in lengths.items())
    assert math.isclose(chapter_35.average_tokens(tree, p), right, abs_tol=1e-9)


def test_the_shipped_stop_serves_the_table():
    """sure is asked of q alone; the shipped one tells easy places from hard ones."""
    stop, table = load_stop(), ngram.load()
    even = torch.full((table.vocab_size,), 1 / table.vocab_size, dtype=torch.float64)
    certain = torch.eye(table.vocab_size, dtype=torch.float64)[3]
    assert 0 < stop(even) < stop(certain) < 1


def test_a_sibling_is_as_likely_as_its_elders_are_refused_and_it_is_kept():
    """Where a guess is kept nine times in ten, a chain comes before a second sibling."""
    q = torch.tensor([0.9, 0.1], dtype=torch.float64)
    for told in (None, lambda q: 0.9):
        root = Root(lambda path: q, 3, Sampling(), RandomSource(0))
        (tree,) = best_first([root], 4, 2, told)
        assert tree.parents == [-1, 0, 1, -1], "values .9, .81, .73, and then .1"


@pytest.mark.parametrize("field", records.FIELDS)
def test_a_record_says_all_that_its_number_depends_on(field, tmp_path):
    """The file does, and a row that lacks a field, or says nothing in it, is refused."""
    rows = records.load()
    for wrong in ({field: None}, {field: " "}):
        row = {k: v for k, v in (rows[0] | wrong).items() if v is not None}
        (tmp_path / "wrong.json").write_text(json.dumps([rows[1], row]))
        with pytest.raises(ValueError, match=f"row 2 .*'{field}' is empty"):
            records.load(tmp_path / "wrong.json")
    assert all(re.match(r"\d{4}(-\d\d){0,2}$|not stated$", row["date"]) for row in rows)
    assert all(re.match(r"https://|`nanogpt bench --records ", row["source"]) for row in rows)


def test_a_record_of_ours_names_the_command_that_measures_it():
    """What was parsed from the command is the row's setting."""
    for draft, rule, cuts in (
        ("distilled", "block", {"top_k": 9, "top_p": 0.9}),
        ("block-markov", "token", {}),
    ):
        setting = bench.Setting("fused", draft, 4, 0.5, rule, **cuts)
        row = bench.Row(setting, 1, (1, 1), 1, None, None, None, 1, 1, 0, 0, {}, 0)
        made = bench.record(row, "1 thread", 7, 50, "a text")
        command = made["source"].strip("`").split()
        assert made["speed-up"].startswith("1.00 (1.00 to 1.00, quartiles of 7 pairs); 1.00 ±")
        heat = "0.5, top-k 9, top-p 0.9" if cuts else "0.5"
        assert (made["temperature"], made["batch"], made["budget"]) == (heat, "1", "K = 4")
        assert made.keys() == set(records.FIELDS) and made["model"].endswith("target, fused")
        given = bench.parse_arguments(command[2:])
        assert (given.pairs, given.tokens, given.records) == (7, 50, True)
        assert bench.settings_of(given) == [setting]
