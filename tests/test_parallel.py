"""Drafts that guess all tokens at once: Medusa's heads, their labels, their chains and trees."""

import itertools

import pytest
import torch
from conftest import TINY, make_model, random_weights, read_text, restarts
from texts import off

from nanogpt import checkpoint
from nanogpt.drafts import parallel
from nanogpt.drafts.grown import sparse_tree
from nanogpt.drafts.parallel import (
    MedusaDraft,
    MedusaHeads,
    depths_of,
    hidden_states,
    medusa_loss,
    overlap_loss,
)
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.toys import toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS
from nanogpt.train import make_optimizer, train
from nanogpt.trees.loop import tree_generate

SHAPES = {
    "chain": (),
    "best guesses": ([-1, 0], [0, 0]),
    "tree": ([-1, -1, 1, 1], [0, 1, 0, 2]),
    "not level by level": ([-1, 0, -1, 2], [1, 0, 0, 1]),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def test_a_new_head_repeats_lm_head(tiny):
    hidden = torch.randn(2, 5, TINY.n_embd, dtype=torch.float64)
    logits = MedusaHeads.on(tiny, 3)(hidden)
    assert logits.shape == (2, 5, 3, TINY.vocab_size)
    torch.testing.assert_close(logits, tiny.lm_head(hidden).unsqueeze(2).expand(-1, -1, 3, -1))


def test_a_head_is_a_residual_block_and_a_linear_layer():
    heads, h = random_weights(MedusaHeads(TINY, 3)), torch.randn(TINY.n_embd, dtype=torch.float64)
    for i in range(3):
        mixed = h + torch.nn.functional.silu(heads.mix[i] @ h)
        torch.testing.assert_close(heads(h)[i], heads.out[i] @ mixed)


def test_the_loss_asks_head_i_for_the_token_i_places_past_lm_heads():
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]])
    knows = torch.nn.functional.one_hot((tokens.unsqueeze(-1) + torch.tensor([2, 3])) % 5, 5)
    assert medusa_loss(knows * 50.0, tokens) < 1e-6
    for slip in (1, -1):  # a head that looks too far, or repeats lm_head
        wrong = torch.nn.functional.one_hot(
            (tokens.unsqueeze(-1) + torch.tensor([2, 3]) + slip) % 5
        )
        assert medusa_loss(wrong * 50.0, tokens) > 10
    even = medusa_loss(torch.zeros(1, 10, 2, 5), tokens)
    assert float(even) == pytest.approx((0.8 + 0.64) * torch.log(torch.tensor(5.0)).item())


def test_the_overlap_loss_judges_head_i_by_p_as_it_is_i_tokens_later():
    """Heads that say exactly that p are always kept; a place too near or too far, they are not."""
    p = torch.rand(2, 10, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4
    p = p / p.sum(-1, keepdim=True)

    def heads_that_see(*far):
        return torch.stack([p.roll(-i, 1).log() for i in far], dim=2)

    assert overlap_loss(heads_that_see(1, 2), p) == pytest.approx(0, abs=1e-12)
    for far in ((0, 1), (2, 3), (1, 1), (2, 2), (2, 1)):
        assert overlap_loss(heads_that_see(*far), p) > 0.1
    certain = torch.eye(5, dtype=torch.float64)[torch.arange(10) % 5][None]
    even = overlap_loss(torch.zeros(1, 10, 2, 5, dtype=torch.float64), certain)
    assert float(even) == pytest.approx((0.8 + 0.64) * (1 - 1 / 5))


def test_the_overlap_loss_backs_one_story_where_cross_entropy_hedges():
    """By hand: after X (.6) always A, after Y (.4) always B; the head is asked before."""
    tokens = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])  # head 1 is judged by the last ten
    p = torch.eye(2, dtype=torch.float64)[tokens]
    heads = {
        name: torch.tensor(q, dtype=torch.float64).log().expand(1, 11, 1, 2)
        for name, q in {"average": [0.6, 0.4], "always A": [1 - 1e-12, 1e-12]}.items()
    }
    rejected = {name: float(overlap_loss(logits, p)) / 0.8 for name, logits in heads.items()}
    assert rejected == pytest.approx({"average": 0.48, "always A": 0.4}, abs=1e-9)
    labels = torch.cat([torch.zeros(1, 1, dtype=torch.int64), tokens], dim=1)[:, :11]
    nats = {name: medusa_loss(logits, labels) for name, logits in heads.items()}
    assert nats["average"] < nats["always A"]


def test_training_finds_the_token_that_lm_head_does_not_know():
    """Hidden states that hold the second next token, not the next: head 1 must learn to read it."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (64, 12), generator=generator)
    hidden = torch.nn.functional.one_hot(tokens.roll(-2, 1), TINY.n_embd).float()
    heads = MedusaHeads(TINY, 1)
    torch.nn.init.normal_(heads.out, std=0.1, generator=generator)

    def loss_of(generator):
        rows = torch.randint(len(tokens), (16,), generator=generator)
        return medusa_loss(heads(hidden[rows]), tokens[rows])

    losses = [loss for _, loss in train(heads, make_optimizer(heads), loss_of, 400, peak=0.03)]
    assert losses[-1] < 0.1 < losses[0]
    guesses = heads(hidden)[:, :-2, 0].argmax(-1)
    assert (guesses == tokens[:, 2:]).float().mean() > 0.99


@pytest.mark.pairs
@shapes
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.5), Sampling(top_k=2), Sampling(top_p=0.8)],
    ids=["T 1", "T .5", "top-k", "top-p"],
)
def test_the_text_is_the_targets_own(kind, sampling, shape):
    toy = toy_target(3, 8, seed=1)
    draft, fast = (
        MedusaDraft(random_weights(MedusaHeads(toy.config, 2)), *shape),
        TARGETS[kind](toy),
    )
    assert off(tree_generate, fast, draft, 3, sampling, own=toy) < 1e-12


@pytest.mark.parametrize("shape", [(), ([-1, -1, 1], [1, 0, 1])], ids=["chain", "tree"])
def test_a_text_that_starts_with_one_token_is_the_targets_own(shape):
    """Its first round has no hidden state to look at; a restart lies within it."""
    toy = toy_target(2, 4, seed=3)
    draft = MedusaDraft(random_weights(MedusaHeads(toy.config, 2)), *shape)
    assert off(tree_generate, toy, draft, 4, prompt=[1]) < 1e-12


@pytest.mark.two_ways
@shapes
@pytest.mark.parametrize("kind", TARGETS)
def test_greedy_text_is_equal_over_restarts(kind, shape):
    target = make_model()
    heads = MedusaHeads.on(target, 2).requires_grad_(False)
    greedy = autoregressive_generate(target, [1, 2, 3], 60, Sampling(0)).tokens
    made = tree_generate(
        TARGETS[kind](target), MedusaDraft(heads, *shape), [1, 2, 3], 60, sampling=Sampling(0)
    )
    assert made.tokens == greedy and restarts(made) > 1


def test_a_chain_claims_the_q_it_was_drawn_from(tiny):
    sampling = Sampling(0.7, top_k=3)
    heads, text = random_weights(MedusaHeads(TINY, 3)), read_text(tiny, [1, 2, 3], 10)
    tree = MedusaDraft(heads).propose(text, 5, sampling, RandomSource(0))
    assert tree.parents == [-1, 0, 1] and len(tree.tokens) == 3
    torch.testing.assert_close(tree.q, sampling.probs(heads(text.hidden[-1])))
    rng = RandomSource(0)
    assert tree.tokens == [rng.categorical(row) for row in tree.q]


def test_a_tree_holds_the_ranked_tokens_with_one_hot_q_and_is_cut_where_there_is_no_room(tiny):
    heads, text = random_weights(MedusaHeads(TINY, 2)), read_text(tiny, [1, 2, 3], 10)
    order = heads(text.hidden[-1]).argsort(descending=True).tolist()
    draft = MedusaDraft(heads, [-1, 0, -1, 2, 2], [0, 1, 3, 0, 2])
    tree = draft.propose(text, 2, Sampling(), RandomSource(0))
    assert tree.parents == [-1, 0, -1, 2, 2]
    near, far = order
    assert tree.tokens == [near[0], far[1], near[3], far[0], far[2]]
    assert tree.q.sum() == 5 and all(tree.q[i, token] == 1 for i, token in enumerate(tree.tokens))
    cut = draft.propose(text, 1, Sampling(), RandomSource(0))
    assert (cut.tokens, cut.parents) == ([near[0], near[3]], [-1, -1])


def test_a_tree_that_is_cut_keeps_its_parents_wherever_deep_nodes_stand(tiny):
    """By hand: x, its child y, y's child z, then a and its child b; z is too deep."""
    heads, text = random_weights(MedusaHeads(TINY, 3)), read_text(tiny, [1, 2, 3], 10)
    draft = MedusaDraft(heads, [-1, 0, 1, -1, 3], [0, 1, 0, 2, 0])
    tree = draft.propose(text, 2, Sampling(), RandomSource(0))
    near, far, _ = heads(text.hidden[-1]).argsort(descending=True).tolist()
    assert (tree.tokens, tree.parents) == ([near[0], far[1], near[2], far[0]], [-1, 0, -1, 2])


@pytest.mark.parametrize("n", [5, 7, 12])
def test_a_sparse_tree_that_is_cut_is_its_upper_part(tiny, n):
    """In sparse_tree's order a deep node comes before a shallow one that is worth less."""
    parents, ranks = sparse_tree([[0.8, 0.1], [0.7, 0.2], [0.6, 0.3]], n)
    depths = depths_of(parents)
    assert depths != sorted(depths)
    heads, text = random_weights(MedusaHeads(TINY, 3)), read_text(tiny, [1, 2, 3], 10)
    order = heads(text.hidden[-1]).argsort(descending=True).tolist()
    tree = MedusaDraft(heads, parents, ranks).propose(text, 2, Sampling(), RandomSource(0))

    def path(node, parents, tokens):
        return () if node < 0 else (*path(parents[node], parents, tokens), tokens[node])

    whole = [order[depth][rank] for depth, rank in zip(depths, ranks, strict=True)]
    upper = [path(node, parents, whole) for node in range(n) if depths[node] < 2]
    assert [path(i, tree.parents, tree.tokens) for i in range(len(tree.tokens))] == upper


@pytest.mark.parametrize("shape", [(), ([-1], [0])], ids=["chain", "tree"])
def test_nothing_is_guessed_without_a_state_or_without_room(tiny, shape):
    draft = MedusaDraft(random_weights(MedusaHeads(TINY, 1)), *shape)
    for text, most in ((read_text(tiny, [1], 5), 3), (read_text(tiny, [1, 2], 5), 0)):
        tree = draft.propose(text, most, Sampling(), RandomSource(0))
        assert tree.tokens == [] and tree.q.shape == (0, TINY.vocab_size)


def test_depths():
    assert depths_of([-1, -1, 0, 2, 1]) == [0, 0, 1, 2, 1]
    assert depths_of([]) == []


@pytest.mark.parametrize(
    "shape, why",
    [(([-1, 0, 1], [0, 0, 0]), "3 deep, for 2 heads"), (([-1, 0], [0]), "one rank each")],
)
def test_a_tree_that_the_heads_cannot_fill_is_refused(shape, why):
    with pytest.raises(ValueError, match=why):
        MedusaDraft(MedusaHeads(TINY, 2), *shape)


def test_the_shipped_heads_guess_their_own_tokens():
    """Each head's loss is lowest at the distance that it was trained for."""
    target, tokenizer = checkpoint.load()
    stand_in = (parallel.DATA_DIR / "stand_in.txt").read_text()[-64 * 128 :]
    texts = torch.tensor(tokenizer.encode(stand_in)).view(64, 128)
    for heads in map(parallel.load, (parallel.MEDUSA, parallel.KEPT)):
        with torch.no_grad():
            logits = heads(hidden_states(target, texts))
        assert logits.dtype == torch.float32 and logits.shape[2] == 4
        for i in range(4):
            losses = [
                torch.nn.functional.cross_entropy(
                    logits[:, :-far, i].flatten(0, 1), texts[:, far:].flatten()
                )
                for far in range(1, 7)
            ]
            assert 1 + losses.index(min(losses)) == i + 2


def test_heads_that_learned_to_be_kept_are_kept_more_often():
    """Than those with as many updates on the cross-entropy, at every distance."""
    target, tokenizer = checkpoint.load()
    text = (parallel.DATA_DIR / "stand_in.txt").read_text()[-64 * 128 :]
    with torch.no_grad():
        hidden = hidden_states(target, torch.tensor(tokenizer.encode(text)).view(64, 128))
        p = torch.softmax(target.lm_head(hidden), dim=-1)
        old, new = (parallel.load(path)(hidden) for path in (parallel.MEDUSA, parallel.KEPT))
    for i in range(1, 5):
        kept = [
            torch.minimum(torch.softmax(heads[:, :-i, i - 1], dim=-1), p[:, i:]).sum(-1).mean()
            for heads in (old, new)
        ]
        assert kept[0] + 0.01 < kept[1]
    steps = [checkpoint.read_header(x)["facts"]["steps"] for x in (parallel.MEDUSA, parallel.KEPT)]
    assert steps == [4000, 4000]


def test_a_file_of_heads_comes_back(tmp_path, monkeypatch):
    tokenizer = checkpoint.load()[1]
    target = make_model(dtype=torch.float32)
    heads = MedusaHeads.on(target, 2)
    parallel.save(tmp_path / "heads", heads, tokenizer, {})
    loaded = parallel.load(tmp_path / "heads")
    torch.testing.assert_close(loaded.out, heads.out.detach(), rtol=0, atol=1e-3)
    assert loaded.mix.shape == (2, 8, 8)
    with pytest.raises(FileNotFoundError, match="py medusa`"):
        parallel.load(tmp_path / "nothing")
    monkeypatch.setattr(parallel, "KEPT", tmp_path / "nothing either")
    with pytest.raises(FileNotFoundError, match="py medusa_kept"):
        parallel.load(parallel.KEPT)


def test_accuracies_count_the_rank_of_the_token_that_came():
    """lm_head looks one token ahead, head i (from 1) i more: an oracle is right at rank 0."""
    tokens = torch.randint(7, (3, 12), generator=torch.Generator().manual_seed(0))
    logits = torch.zeros(3, 12, 2, 7)
    for head, rank in ((0, 0), (1, 1)):  # the second head has another token above the right one
        labels = tokens.roll(-2 - head, dims=1)
        logits[:, :, head].scatter_(-1, labels[..., None], 2.0 - rank)
        if rank:
            logits[:, :, head].scatter_(-1, (labels[..., None] + 1) % 7, 3.0)
    assert parallel.accuracies(logits, tokens, n_ranks=3) == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_the_shipped_heads_first_guesses_are_right_most_often():
    rows = parallel.load_accuracies()
    assert len(rows) == 4 and all(row == sorted(row, reverse=True) for row in rows)
    assert all(near[0] > far[0] for near, far in itertools.pairwise(rows))
