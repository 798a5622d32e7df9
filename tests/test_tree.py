"""Trees of guesses: a node is its own chain, a kept path is a fresh prefill, greedy is equal."""

import itertools

import pytest
import torch
from conftest import TINY, generator_of, make_model, whole
from texts import off

from nanogpt.cache import cache_length
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown, counted_tree, path_value, paths_of, sparse_tree
from nanogpt.drafts.parallel import hidden_states
from nanogpt.generate import autoregressive_generate, autoregressive_rounds, prefill
from nanogpt.proof.checks import tensors
from nanogpt.proof.toys import Watched, deep_toy, random_draft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import tree_generate, tree_rounds, verify_tree
from nanogpt.trees.tree import Proposer, ReadText, Tree, keep_path, tree_mask

SIBLINGS = ("with", "without", "fixed")
FORMS = {"per-head": lambda target: target, "fused": FusedLanguageModel}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def random_tree(nodes, depth, vocab_size, generator):
    """Each node's parent is any earlier one that is not too deep; its token is any."""
    parents, depths = [], {-1: 0}
    for node in range(nodes):
        allowed = [n for n in depths if depths[n] < depth]
        parents.append(allowed[whole(0, len(allowed) - 1, generator)])
        depths[node] = depths[parents[-1]] + 1
    tokens = torch.randint(vocab_size, (nodes,), generator=generator).tolist()
    return Tree(tokens, parents, torch.eye(vocab_size, dtype=torch.float64)[tokens])


def path_to(tree, node):
    """The nodes from the root down to `node`, itself included; none for the current token."""
    path = []
    while node >= 0:
        path.insert(0, node)
        node = tree.parents[node]
    return path


def cases(n, window=12):
    """(P, tree): few and many nodes, flat and deep, also more nodes than the window has slots."""
    for seed in range(n):
        generator = generator_of(seed)
        P = whole(0, window - 2, generator)
        depth = whole(1, window - 1 - P, generator)
        yield P, random_tree(whole(0, 24, generator), depth, TINY.vocab_size, generator)


some_or_all = pytest.mark.parametrize("many", [12, pytest.param(40, marks=pytest.mark.wide)])


def text_of(target, P, read=True):
    text = ReadText(target, [(3 * i + 1) % TINY.vocab_size for i in range(P + 1)], 50)
    if read:
        text.read()
    return text


# ---- the mask


def test_the_mask_of_a_small_tree_by_hand():
    """Nodes a and b after the current token c, x after a, y and z after b; two cached tokens."""
    mask = tree_mask([-1, -1, 0, 1, 1], 2)
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [
        # cache  c  a  b  x  y  z
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 0, 0, 1],
    ]


def test_the_mask_shows_the_cache_and_the_own_path_and_no_cousin():
    for P, tree in cases(40):
        mask, N = tree_mask(tree.parents, P), len(tree.tokens)
        assert mask.shape == (N + 1, P + N + 1) and mask[:, : P + 1].all()
        for node in range(-1, N):
            seen = (mask[node + 1, P + 1 :].nonzero()[:, 0]).tolist()
            assert seen == path_to(tree, node)
            assert int(mask[node + 1].sum()) - 1 == P + len(path_to(tree, node)), "its position"


def test_a_chains_mask_is_the_causal_one():
    assert torch.equal(tree_mask([-1, 0, 1], 3), torch.ones(4, 7).tril(3).bool())


# ---- one pass, many continuations


@pytest.mark.two_ways
@some_or_all
@every_form
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_nodes_p_is_its_own_chains_p(form, read, many):
    """Whether the text has been read before, or enters in the same pass."""
    model = make_model()
    target, wider = form(model), 0
    for P, tree in cases(many):
        text = text_of(target, P, read)
        p, hidden, new_kvs = verify_tree(target, text, tree, Sampling(0.7, top_k=8))
        assert hidden.shape[0] == len(text.unread) + 1 + len(tree.tokens)
        hidden = hidden[len(text.unread) :]
        assert p.shape == (len(tree.tokens) + 1, TINY.vocab_size)
        assert hidden.shape == (len(tree.tokens) + 1, TINY.n_embd)
        assert cache_length(new_kvs) == P + 1 + len(tree.tokens)
        wider += cache_length(new_kvs) > TINY.block_size
        for node in range(-1, len(tree.tokens)):
            chain = torch.tensor([text.tokens + [tree.tokens[n] for n in path_to(tree, node)]])
            with torch.no_grad():
                last = hidden_states(model, chain)[0, -1]
            torch.testing.assert_close(hidden[node + 1], last)
            alone = Sampling(0.7, top_k=8).probs(model.lm_head(last))
            torch.testing.assert_close(p[node + 1], alone)
    assert wider > many / 8, "trees wider than the window has slots left are among them"


@every_form
def test_a_tree_deeper_than_the_window_is_refused(form):
    target = form(make_model())
    text, chain = text_of(target, 9), [-1, 0, 1]
    with pytest.raises(ValueError, match="block_size"):
        verify_tree(target, text, Tree([1, 2, 3], chain, torch.eye(11)[:3]), Sampling())


# ---- the path that is kept


@pytest.mark.two_ways
@some_or_all
@every_form
def test_a_kept_path_is_a_fresh_prefill(form, many):
    """Any path, most of them through a second or a later sibling: then entries move."""
    model, moved = make_model(), 0
    target = form(model)
    for P, tree in cases(many):
        for node in range(-1, len(tree.tokens)):
            text, path = text_of(target, P), path_to(tree, node)
            _, _, new_kvs = verify_tree(target, text, tree, Sampling())
            kept = keep_path(new_kvs, path, P)
            fresh = prefill(model, text.tokens + [tree.tokens[n] for n in path])
            assert cache_length(kept) == P + 1 + len(path)
            torch.testing.assert_close(tensors(kept), tensors(fresh))
            moved += path != list(range(len(path)))
    assert moved > 5 * many


@pytest.mark.two_ways
@every_form
def test_the_pass_after_a_kept_path_goes_on_from_it(form):
    model = make_model()
    target = form(model)
    tree = Tree([5, 6, 7, 8], [-1, -1, 1, 1], torch.eye(11, dtype=torch.float64)[[5, 6, 7, 8]])
    text = text_of(target, 3)
    _, _, new_kvs = verify_tree(target, text, tree, Sampling())
    kept = keep_path(new_kvs, [1, 3], 3)
    with torch.no_grad():
        logits = target(torch.tensor([[9]]), past_kvs=kept)[0][0, -1]
        right = model(torch.tensor([[*text.tokens, 6, 8, 9]]))[0][0, -1]
    torch.testing.assert_close(logits, right)


def after_a_tree(target):
    """The cache before a pass over a tree of three siblings, and the one after it."""
    before = prefill(target, [1, 2, 3])
    mask = tree_mask([-1, -1, -1], 3)
    with torch.no_grad():
        new_kvs = target(torch.tensor([[4, 5, 6, 7]]), None, mask.sum(-1) - 1, before, mask)[2]
    return before, new_kvs


def test_a_moved_path_leaves_longer_caches_stale_and_shorter_ones_whole():
    target = FusedLanguageModel(make_model())
    before, new_kvs = after_a_tree(target)
    entries = [t.clone() for t in tensors(before)]
    kept = keep_path(new_kvs, [2], 3)
    with pytest.raises(ValueError, match="overwritten"):
        target(torch.tensor([[8]]), past_kvs=new_kvs)
    with pytest.raises(ValueError, match="overwritten"):
        keep_path(new_kvs, [1], 3)
    assert all(map(torch.equal, tensors(before), entries))
    assert cache_length(kept) == 5
    target(torch.tensor([[8]]), past_kvs=kept)
    target(torch.tensor([[8]]), past_kvs=before)  # and this pass overwrites the path
    with pytest.raises(ValueError, match="overwritten"):
        target(torch.tensor([[8]]), past_kvs=kept)


def test_a_path_that_stands_already_copies_nothing():
    target = FusedLanguageModel(make_model())
    _, new_kvs = after_a_tree(target)
    kept = keep_path(new_kvs, [0], 3)
    assert kept.buffer is new_kvs.buffer and cache_length(kept) == 5
    assert cache_length(keep_path(new_kvs, [], 3)) == 4
    target(torch.tensor([[8]]), past_kvs=new_kvs)  # nothing was moved: still good


def test_gathered_takes_any_slots_in_order():
    target = FusedLanguageModel(make_model())
    cache = prefill(target, [1, 2, 3, 4, 5])
    before = [t.clone() for t in tensors(cache)]
    for mine, old in zip(tensors(cache.gathered([0, 2, 4])), before, strict=True):
        assert torch.equal(mine, old[:, [0, 2, 4]])


# ---- the loop


class RandomTrees(Proposer):
    """A draft of random trees, as deep as allowed, their q one-hot."""

    def __init__(self, vocab_size, seed):
        self.vocab_size, self.generator = vocab_size, generator_of(seed)

    def propose(self, text, most, sampling, rng):
        nodes = whole(0, 12, self.generator) if most else 0
        return random_tree(nodes, max(1, most), self.vocab_size, self.generator)


class Likely(RandomTrees):
    """The same, but half of its tokens are the target's own greedy choice after their parents."""

    def __init__(self, target, seed):
        super().__init__(target.config.vocab_size, seed)
        self.target = target

    def propose(self, text, most, sampling, rng):
        tree = super().propose(text, most, sampling, rng)
        for node in range(len(tree.tokens)):
            if whole(0, 1, self.generator):
                path = [tree.tokens[n] for n in path_to(tree, node)[:-1]]
                seen = text.tokens[text.start :]
                logits = self.target(torch.tensor([seen + path]))[0][0, -1]
                tree.tokens[node] = int(logits.argmax())
        return Tree(tree.tokens, tree.parents, torch.eye(self.vocab_size).double()[tree.tokens])


def greedy_case(case):
    """How many nodes beside a first child were accepted, where the tokens must be equal."""
    generator = generator_of(case)
    model = toy_target(7, 8, seed=case % 5)
    target = FORMS[("per-head", "fused")[case % 2]](model)
    widths = tuple(whole(1, 3, generator) for _ in range(whole(1, 5, generator)))
    drafts = [Grown(random_draft(7, case), widths, siblings) for siblings in SIBLINGS]
    draft = [*drafts, RandomTrees(7, case), Likely(model, case)][case % 5]
    prompt = torch.randint(7, (whole(1, 12, generator),), generator=generator).tolist()
    n = whole(0, 25, generator)
    expected = autoregressive_generate(model, prompt, n, Sampling(0)).tokens
    made = tree_generate(target, draft, prompt, n, sampling=Sampling(0), rng=RandomSource(case))
    assert made.tokens == expected, (case, widths, draft)
    firsts = [
        {c[0] for c in Tree(r.candidates, r.parents, None).children if c} for r in made.rounds
    ]
    pairs = zip(made.rounds, firsts, strict=True)
    return sum(node not in first for r, first in pairs for node in r.path)


@pytest.mark.two_ways
@pytest.mark.parametrize(
    "cases, least", [(60, 20), pytest.param(2000, 500, marks=pytest.mark.slow)]
)
def test_greedy_trees_equal_autoregressive_decoding(cases, least):
    assert sum(map(greedy_case, range(cases))) > least, "paths lead through later siblings, too"


@pytest.mark.two_ways
@every_form
@pytest.mark.parametrize("K", [1, 3, 6])
def test_a_lifted_chain_makes_speculative_generates_tokens(form, K):
    """From the same seed, over restarts, whatever the siblings: a chain has none."""
    target, draft = form(toy_target(7, 8)), random_draft(7)
    for sampling in (Sampling(), Sampling(0.6), Sampling(top_k=3)):
        chain = speculative_generate(target, draft, [0, 1], 40, K, sampling, RandomSource(K))
        for siblings in ("with", "without"):
            lifted = Grown(draft, (1,) * K, siblings)
            made = tree_generate(target, lifted, [0, 1], 40, sampling=sampling, rng=RandomSource(K))
            assert made.tokens == chain.tokens
            assert [r.n_accepted for r in made.rounds] == [r.n_accepted for r in chain.rounds]
            assert [r.n_examined for r in made.rounds] == [r.n_examined for r in chain.rounds]


class Reading(RandomTrees):
    """Random trees; and each time, whether the text's hidden states and cache are fresh ones."""

    reads = True

    def __init__(self, model, seed):
        super().__init__(model.config.vocab_size, seed)
        self.model, self.seen, self.prefilled = model, 0, 0

    def propose(self, text, most, sampling, rng):
        cached = text.tokens[text.start : -1]
        assert (text.hidden is None) == (not cached)
        if cached:
            idx = torch.tensor([cached])
            hidden, fresh = hidden_states(self.model, idx), self.model(idx)[2]
            torch.testing.assert_close(text.hidden, hidden[0])
            torch.testing.assert_close(tensors(text.past_kvs), tensors(fresh))
            self.seen += 1
        return super().propose(text, most, sampling, rng)


@pytest.mark.two_ways
@every_form
def test_hidden_states_stay_those_of_the_cached_tokens(form):
    model = toy_target(7, 8)
    for seed in range(6):
        draft = Reading(model, seed)
        prompt = [0, 1, 2][: 1 + seed % 3]
        made = tree_generate(form(model), draft, prompt, 30, rng=RandomSource(seed))
        assert draft.seen >= len(made.rounds) - 1 and made.prefills > 2


def test_a_round_examines_one_place_a_token_and_notes_its_path():
    made = tree_generate(
        toy_target(7, 16), Grown(random_draft(7), (2, 2)), [0, 1], 40, rng=RandomSource(1)
    )
    for r in made.rounds:
        assert [r.candidates[node] for node in r.path] == r.emitted[:-1]
        assert r.n_examined == min(r.n_accepted + 1, 2 if len(r.candidates) > 2 else 1) or (
            len(r.candidates) == 0 == r.n_examined
        )
    assert {len(r.path) for r in made.rounds} == {0, 1, 2}
    assert 0 < made.alpha < 1 and made.tokens_per_pass > 1


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_a_trees_text_is_the_targets_own(siblings):
    """By enumeration: the rule is chapter 17's, the loop is ours."""
    target, draft = toy_target(3, 8, seed=1), Grown(random_draft(3), (2, 1), siblings)
    assert off(tree_generate, target, draft, 2) < 1e-12


def test_one_pass_a_round_and_stop_tokens_inside_a_path():
    watched = Watched(toy_target(7, 32))
    free = tree_generate(watched, Grown(random_draft(7), (3, 2)), [0, 1], 20, rng=RandomSource(4))
    assert len(watched.passes) == len(free.rounds) + free.prefills
    stop = free.tokens[5]
    cut = tree_generate(
        toy_target(7, 32),
        Grown(random_draft(7), (3, 2)),
        [0, 1],
        20,
        rng=RandomSource(4),
        stop_token=stop,
    )
    assert cut.tokens == free.tokens[: free.tokens.index(stop) + 1]


# ---- which tree


def test_grown_trees_have_their_widths_and_say_what_they_drew_from():
    draft, text = random_draft(7), ReadText(toy_target(7, 32), [0, 1], 20)
    q = draft.get_probs([1])
    for siblings in SIBLINGS:
        tree = Grown(draft, (3, 2, 1), siblings).propose(text, 9, Sampling(), RandomSource(0))
        assert [len(c) for c in tree.children] == [3, *[2] * 3, *[1] * 6, *[0] * 6]
        assert all(parent < node for node, parent in enumerate(tree.parents))
        if siblings == "with":
            assert torch.equal(tree.q[:3], torch.stack([q] * 3))
        else:
            assert len(set(tree.tokens[:3])) == 3
        if siblings == "without":
            assert torch.equal(tree.q[0], q) and tree.q[1, tree.tokens[0]] == 0
            assert tree.q[2, tree.tokens[:2]].tolist() == [0, 0]
        if siblings == "fixed":
            assert tree.tokens[:3] == q.argsort(descending=True)[:3].tolist()
            assert torch.equal(tree.q, torch.eye(7).double()[tree.tokens])
        torch.testing.assert_close(tree.q.sum(-1), torch.ones(len(tree.q)).double())
        assert len(Grown(draft, (3, 2)).propose(text, 1, Sampling(), RandomSource(0)).tokens) == 3
        assert Grown(draft, (3, 2)).propose(text, 0, Sampling(), RandomSource(0)).tokens == []


def test_fixed_siblings_are_the_same_at_any_temperature_and_drawn_ones_end_with_their_q():
    draft, text = random_draft(7), ReadText(toy_target(7, 32), [0, 1], 20)
    grown = {s: Grown(draft, (3,), s) for s in SIBLINGS}
    greedy = {s: g.propose(text, 9, Sampling(0), RandomSource(0)) for s, g in grown.items()}
    warm = grown["fixed"].propose(text, 9, Sampling(), RandomSource(0))
    assert greedy["fixed"].tokens == warm.tokens and len(warm.tokens) == 3
    assert len(greedy["without"].tokens) == 1, "all that a greedy q can draw"
    assert len(set(greedy["with"].tokens)) == 1


def test_fixed_siblings_are_all_that_the_draft_can_draw_however_rare():
    q = torch.tensor([1e-3, 0.995 - 1e-9, 0.0, 4e-3, 1e-9], dtype=torch.float64)
    for width, tokens in ((2, [1, 3]), (3, [1, 3, 0]), (5, [1, 3, 0, 4])):
        picked = Grown(random_draft(5), (1,), "fixed").pick(q, width, Sampling(), RandomSource(0))
        assert [token for token, _ in picked] == tokens
        assert all(row[token] == 1 == row.sum() for token, row in picked)


@pytest.mark.parametrize(
    "wrong,why", [((), "widths"), ((2, 0), "widths"), ((1.5,), "widths")], ids=str
)
def test_impossible_widths_are_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        Grown(random_draft(3), wrong)
    with pytest.raises(ValueError, match="siblings"):
        Grown(random_draft(3), (1,), "both")


def best_by_trying(value, depths, width, nodes):
    """The largest sum of values of `nodes` paths of which each has its parent among them."""
    ranks = range(width)
    every = [p for depth in range(1, depths + 1) for p in itertools.product(ranks, repeat=depth)]
    best = 0.0
    for chosen in itertools.combinations(every, nodes):
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            best = max(best, sum(map(value, chosen)))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_sparse_tree_is_the_best_of_its_size(seed):
    depths, width = 2 + seed % 2, 3 - seed % 2
    accuracies = torch.rand(depths, width, generator=generator_of(seed))
    accuracies = (accuracies / 2).sort(dim=1, descending=True).values.tolist()

    def value(path):
        return path_value(accuracies, path)

    for nodes in range(1, 8):
        paths = paths_of(*sparse_tree(accuracies, nodes))
        made = sum(map(value, paths))
        assert made == pytest.approx(best_by_trying(value, depths, width, nodes), abs=1e-12)
        assert len(set(paths)) == len(paths) == nodes


def test_a_paths_value_is_the_product_along_it():
    assert path_value([[0.5, 0.25], [0.5, 0.125]], (1, 1)) == 0.03125
    assert paths_of([-1, 0, -1, 2, 1], [0, 1, 1, 0, 0]) == [(0,), (0, 1), (1,), (1, 0), (0, 1, 0)]


@pytest.mark.parametrize("seed", range(8))
def test_the_counted_tree_would_have_kept_most_of_its_rows(seed):
    depths, width = 2 + seed % 2, 3 - seed % 2
    rows = torch.randint(width, (12, depths), generator=generator_of(seed)).tolist()

    def share(path):
        return sum(tuple(row[: len(path)]) == path for row in rows)

    for nodes in range(1, 8):
        parents, ranks = counted_tree(rows, nodes)
        paths = paths_of(parents, ranks)
        assert all(parent < node for node, parent in enumerate(parents))
        assert sum(map(share, paths)) == best_by_trying(share, depths, width, nodes)
        assert len(set(paths)) == len(paths) <= nodes
        assert counted_tree(rows, 99)[0][:nodes] == parents, "smaller ones are its start"


def test_a_counted_tree_by_hand_sees_that_depths_depend():
    """Depth 1's first guess is right three times in five: after depth 0's first, and never else."""
    rows = [[0, 0], [1, 1], [0, 0], [1, 2], [0, 0]]
    assert counted_tree(rows, 2) == ([-1, 0], [0, 0])
    assert counted_tree(rows, 3) == ([-1, 0, -1], [0, 0, 1])
    assert counted_tree(rows, 99) == ([-1, 0, -1, 2, 2], [0, 0, 1, 1, 2]), "all that came true"
    for wrong in ((rows, 0), ([], 2)):
        with pytest.raises(ValueError, match="give 1 or more of each"):
            counted_tree(*wrong)


def test_a_sparse_tree_by_hand():
    """Values: a .6, aa .6 · .5 = .3, b .2, aaa .3 · .4 = .12, ab .6 · .2 = .12, ba .2 · .5 = .1."""
    accuracies = [[0.6, 0.2], [0.5, 0.2], [0.4, 0.1]]
    parents, ranks = sparse_tree(accuracies, 6)
    paths = paths_of(parents, ranks)
    assert paths[:3] == [(0,), (0, 0), (1,)] and set(paths[3:5]) == {(0, 0, 0), (0, 1)}
    assert paths[5] == (1, 0) and all(parent < node for node, parent in enumerate(parents))
    for n in range(1, 6):
        assert sparse_tree(accuracies, n) == (parents[:n], ranks[:n]), "smaller ones are its start"
    assert len(sparse_tree(accuracies, 99)[0]) == 2 + 4 + 8, "there are no more"
    assert sparse_tree([[0.5], [0.5]], 2) == ([-1, 0], [0, 0]), "one guess a depth: a chain"
    for wrong in (([], 3), ([[0.5], []], 3), ([[0.5]], 0)):
        with pytest.raises(ValueError, match="nodes"):
            sparse_tree(*wrong)


def test_a_text_that_another_loop_began_has_no_hidden_states_before_its_restart():
    """A part of them would be taken for those of the first tokens."""
    target, _ = deep_toy()
    text, rng = ReadText(target, [0, 1, 2], 24), RandomSource(1)
    for _ in itertools.islice(autoregressive_rounds(text, Sampling(), rng), 3):
        pass
    guessed = []
    for done in tree_rounds(text, EagleDraft(target, random_head(target)), Sampling(), rng):
        assert text.hidden is None or len(text.hidden) == text.cache_length
        guessed.append((text.start > 0, len(done.candidates) > 0))
    assert (False, True) not in guessed and (True, True) in guessed


class Looking(Proposer):
    """Guesses two tokens, and has the text's states kept, of which it reads nothing."""

    reads, vocab_size = True, TINY.vocab_size

    def propose(self, text, most, sampling, rng):
        q = torch.full((min(2, most), TINY.vocab_size), 1 / TINY.vocab_size).double()
        return Tree.chain([rng.categorical(row) for row in q], q)


def test_where_another_loop_began_a_text_no_states_are_kept_before_its_restart(tiny):
    """Those of its first tokens are gone, and the others alone would be taken for them."""
    text, kept = ReadText(tiny, [1, 2, 3], 24), []
    next(autoregressive_rounds(text))
    for _ in tree_rounds(text, Looking()):
        assert (text.hidden is None) == (text.start == 0)
        if text.hidden is not None:
            assert len(text.hidden) == text.cache_length
            context = torch.tensor([text.tokens[text.start :][: text.cache_length]])
            torch.testing.assert_close(
                text.hidden, hidden_states(tiny, context)[0], rtol=0, atol=1e-9
            )
        kept.append(text.hidden is not None)
    assert {*kept} == {False, True}
