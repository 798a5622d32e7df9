"""The block drafter: one pass for all guesses, drawn apart or told the token before."""

import pytest
import torch
from conftest import TINY, make_model, random_weights, read_text, restarts
from texts import off

from nanogpt import checkpoint
from nanogpt.data import get_batch
from nanogpt.drafts import parallel
from nanogpt.drafts.parallel import BlockDraft, BlockDrafter, block_loss, guess_blocks
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.toys import deep_toy, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS
from nanogpt.train import make_optimizer, train
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Tree, side_by_side

SAMPLINGS = {
    "T 1": Sampling(),
    "T .5": Sampling(0.5),
    "top-k": Sampling(top_k=2),
    "top-p": Sampling(top_p=0.8),
}
samplings = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
markov = pytest.mark.parametrize("markov", [True, False], ids=["markov", "apart"])
kinds = pytest.mark.parametrize("kind", TARGETS)


def random_drafter(config, layers=(1,), K=2, reach=3, seed=0):
    """A drafter in float64 that knows nothing, its correction as large as its logits."""
    return random_weights(BlockDrafter(config, layers, K, reach, rank=2), seed)


@pytest.mark.pairs
@markov
@kinds
@samplings
def test_the_text_is_the_targets_own(kind, sampling, markov):
    toy = toy_target(3, 8, seed=1)
    draft = BlockDraft(toy, random_drafter(toy.config), markov=markov)
    assert off(tree_generate, TARGETS[kind](toy), draft, 3, sampling, own=toy) < 1e-12


@markov
@kinds
def test_a_text_that_starts_with_one_token_and_restarts_is_the_targets_own(kind, markov):
    toy = toy_target(2, 4, seed=3)
    draft = BlockDraft(toy, random_drafter(toy.config), markov=markov)
    assert off(tree_generate, TARGETS[kind](toy), draft, 5, prompt=[1], own=toy) < 1e-12


def test_several_layers_are_the_targets_own():
    toy, _ = deep_toy()
    drafter = random_drafter(toy.config, (1, 2, 3))
    assert off(tree_generate, toy, BlockDraft(toy, drafter), 3) < 1e-12


class Claims(BlockDraft):
    """Draws from the corrected q and claims the one that was not corrected."""

    def propose(self, text, most, sampling, rng):
        tree = super().propose(text, most, sampling, rng)
        if not tree.tokens:
            return tree
        before = torch.tensor(text.tokens[-1:])
        logits = self.lm_head(self.drafter(self.seen(text)[None], before)[0])
        return Tree(tree.tokens, tree.parents, sampling.probs(logits[: len(tree.tokens)]))


def test_the_wrong_claim_is_caught_by_enumeration_and_not_by_greedy_text():
    toy = toy_target(3, 8, seed=1)
    wrong = Claims(toy, random_drafter(toy.config))
    assert off(tree_generate, toy, wrong, 3) > 0.01


def prompts(target, many):
    V = target.config.vocab_size
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(V, (1 + i % 9,), generator=generator).tolist() for i in range(many)]


@pytest.mark.parametrize(
    "many", [3, pytest.param(9, marks=pytest.mark.wide), pytest.param(500, marks=pytest.mark.slow)]
)
@markov
@kinds
def test_greedy_text_is_equal_over_restarts(kind, markov, many):
    target = make_model()
    layers = tuple(range(1, target.config.n_layer + 1))
    fast, drafter = TARGETS[kind](target), random_drafter(target.config, layers, K=4)
    draft = BlockDraft(target, drafter, markov=markov)
    for prompt in prompts(target, many):
        greedy = autoregressive_generate(fast, prompt, 24, Sampling(0)).tokens
        made = tree_generate(fast, draft, prompt, 24, sampling=Sampling(0))
        assert made.tokens == greedy and restarts(made) > 0


@markov
@samplings
def test_q_is_what_each_token_was_drawn_from(sampling, markov):
    target = make_model()
    drafter = random_drafter(target.config, (1, 2), K=4)
    text = read_text(target, [1, 2, 3, 0, 2], 10, drafter.layers)
    tree = BlockDraft(target, drafter, markov=markov).propose(text, 9, sampling, RandomSource(5))
    assert tree.parents == [-1, 0, 1, 2] and tree.q.dtype == torch.float64
    seen = drafter.project(text.hidden)[-drafter.reach :]
    logits = target.lm_head(drafter(seen[None], torch.tensor([2]))[0])
    rng, before = RandomSource(5), 2
    for i, token in enumerate(tree.tokens):
        table = drafter.w1.weight @ drafter.w2.weight.T  # (V, V)
        q = sampling.probs(logits[i] + table[before] if markov else logits[i])
        torch.testing.assert_close(tree.q[i], q)
        assert token == rng.categorical(q)
        before = token


@pytest.mark.two_ways
@kinds
def test_what_is_kept_of_a_text_equals_what_is_computed_afresh(kind):
    target = make_model()
    drafter = random_drafter(target.config, (1, 2), K=3)
    fast, asked = TARGETS[kind](target), []

    class Checked(BlockDraft):
        def seen(self, text):
            kept = super().seen(text)
            streams, _ = target.states(torch.tensor([text.tokens[-1 - text.cache_length : -1]]))
            fresh = drafter.project(side_by_side(streams, self.layers)[0])
            torch.testing.assert_close(kept, fresh[-drafter.reach :])
            asked.append(text.start)
            return kept

    draft = Checked(target, drafter)
    for prompt in ([1, 2, 3, 4], [3], [1, 2, 3, 4]):  # the last: a new text of the same tokens
        tree_generate(fast, draft, prompt, 40, rng=RandomSource(2))
    assert len(set(asked)) > 2


class Stale(BlockDraft):
    """Does not notice that a text has restarted."""

    def seen(self, text):
        kept = text.memory(self, lambda: {"features": self.drafter.project(text.hidden)})
        new = self.drafter.project(text.hidden[len(kept["features"]) :])
        kept["features"] = torch.cat([kept["features"], new])
        return kept["features"][-self.drafter.reach :]


def test_features_of_before_a_restart_are_seen_in_the_guesses_only():
    """The text stays exact: that is why the kept features have a check of their own."""
    target = make_model()
    drafter, prompt = random_drafter(target.config, (1, 2), K=3), [1, 2, 3]
    good, stale = (
        tree_generate(target, draft(target, drafter), prompt, 40, rng=RandomSource(1))
        for draft in (BlockDraft, Stale)
    )
    assert [r.candidates for r in good.rounds] != [r.candidates for r in stale.rounds]
    toy = toy_target(2, 4, seed=3)
    stale = Stale(toy, random_drafter(toy.config))
    assert off(tree_generate, toy, stale, 4, prompt=[1, 0]) < 1e-12


@pytest.mark.two_ways
def test_guesses_in_the_middle_of_a_text_are_those_of_the_draft():
    """What is trained is what decodes: fewer than `reach` features behind, just enough, more."""
    target = make_model()
    drafter = random_drafter(target.config, (1, 2), K=3, reach=4)
    x = torch.tensor([prompts(target, 12)[8] * 2])[:, :12]
    starts = torch.tensor([[1, 3, 4, 8]])
    logits, before, p = guess_blocks(drafter, target, x, starts)
    own = torch.softmax(target(x)[0][0], -1)
    for i, start in enumerate(starts[0].tolist()):
        text = read_text(target, x[0, : start + 1].tolist(), 10, drafter.layers)
        tree = BlockDraft(target, drafter, markov=False).propose(
            text, 3, Sampling(), RandomSource(0)
        )
        torch.testing.assert_close(tree.q, torch.softmax(logits[i], -1))
        assert before[i].tolist() == x[0, start : start + 3].tolist()
        torch.testing.assert_close(p[i], own[start : start + 3])


@markov
def test_nothing_is_guessed_without_features_or_without_room(markov):
    target = make_model()
    draft = BlockDraft(target, random_drafter(target.config, (1,)), markov=markov)
    for prompt, most in (([1], 3), ([1, 2], 0)):
        text = read_text(target, prompt, 5, (1,))
        tree = draft.propose(text, most, Sampling(), RandomSource(0))
        assert tree.tokens == [] and tree.q.shape == (0, draft.vocab_size)


def test_a_chain_is_as_long_as_asked_and_its_guesses_do_not_depend_on_that():
    target = make_model()
    drafter = random_drafter(target.config, (1,), K=4)
    text = read_text(target, [1, 2, 3], 9, (1,))
    long = BlockDraft(target, drafter).propose(text, 9, Sampling(), RandomSource(0))
    for K, most in ((2, 9), (4, 2), (None, 2)):
        short = BlockDraft(target, drafter, K).propose(text, most, Sampling(), RandomSource(0))
        assert short.tokens == long.tokens[:2]
        torch.testing.assert_close(short.q, long.q[:2])


def test_a_new_drafter_corrects_nothing():
    drafter, logits = BlockDrafter(TINY, (1,), 3), torch.randn(3, TINY.vocab_size)
    assert torch.equal(drafter.corrected(logits, torch.tensor([0, 1, 2])), logits)


def test_the_loss_weighs_each_place_less_than_the_one_before():
    """Each place's cross-entropies under p, apart and told, by hand; place i weighs .9^i."""
    target = make_model()
    drafter = random_drafter(target.config, (1, 2), K=3, reach=4)
    x = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(3))
    starts = torch.randint(1, 10, (2, 5), generator=torch.Generator().manual_seed(8))
    apart, before, p = guess_blocks(drafter, target, x, starts)
    by_hand = 0.0
    for i, weight in enumerate((1, 0.9, 0.81)):
        for said in (apart, drafter.corrected(apart, before)):
            q = torch.softmax(said[:, i], -1)
            by_hand += weight * -(p[:, i] * q.log()).sum(-1).mean() / 2.71
    got = block_loss(drafter, target, x, torch.Generator().manual_seed(8), n_starts=5)
    torch.testing.assert_close(got, by_hand, rtol=1e-5, atol=0)  # .9^i is a float32


def test_told_the_token_before_a_place_learns_what_apart_it_cannot():
    """The target's next token hangs on the last one alone: told of it, all is known."""
    target = make_model(dtype=torch.float32).requires_grad_(False)
    silent = [target.position_embedding_table.weight, target.ln_f.bias]
    for block in target.blocks:
        silent += [*block.sa.proj.parameters(), *block.ffwd.net[2].parameters()]
    for weight in silent:
        weight.zero_()
    V = target.config.vocab_size
    target.lm_head.weight.mul_(6)  # and sure of what comes next
    tokens = torch.randint(V, (2000,), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    drafter = BlockDrafter(target.config, (2,), K=3, reach=2, rank=V)

    def loss_of(generator):
        return block_loss(drafter, target, get_batch(tokens, 8, 12, generator)[0], generator)

    run = train(drafter, make_optimizer(drafter, 0.0), loss_of, 250, peak=0.03)
    losses = [loss for _, loss in run]
    x = tokens[:1200].view(-1, 12)
    with torch.no_grad():
        apart, before, p = guess_blocks(drafter, target, x, torch.full((len(x), 1), 4))
        shared = [
            torch.minimum(p, said.softmax(-1)).sum(-1).mean(0)
            for said in (apart, drafter.corrected(apart, before))
        ]
    assert losses[-1] < losses[0] and shared[1].min() > 0.9
    assert (shared[0][1:] < shared[1][1:] - 0.2).all()


def test_the_shipped_drafter_keeps_more_where_it_is_told():
    """In the bands of what its training found on text that it had not seen."""
    target, tokenizer = checkpoint.load()
    alphas = checkpoint.read_header(parallel.BLOCK)["facts"]["alphas"]
    text = (parallel.DATA_DIR / "stand_in.txt").read_text()[-32 * 128 :]
    x = torch.tensor(tokenizer.encode(text)).view(32, 128)
    drafter = parallel.load_block()
    with torch.no_grad():
        starts = torch.arange(8, 120, 16).expand(32, -1)
        apart, before, p = guess_blocks(drafter, target, x, starts)
    for name, said in {"apart": apart, "markov": drafter.corrected(apart, before)}.items():
        shared = torch.minimum(p, said.softmax(-1)).sum(-1).mean(0)
        assert (shared - torch.tensor(alphas[name])).abs().max() < 0.08
    assert all(told > alone for alone, told in zip(alphas["apart"], alphas["markov"], strict=True))


def test_a_file_of_a_drafter_comes_back(tmp_path):
    tokenizer = checkpoint.load()[1]
    drafter = BlockDrafter(TINY, (1, 2), 3, reach=5, rank=4)
    parallel.save_block(tmp_path / "block", drafter, tokenizer, {"steps": 1})
    loaded = parallel.load_block(tmp_path / "block")
    assert (loaded.layers, loaded.K, loaded.reach) == ((1, 2), 3, 5)
    for name, tensor in drafter.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)
    with pytest.raises(FileNotFoundError, match="py block"):
        parallel.load_block(tmp_path / "nothing")
    with pytest.raises(ValueError, match="py block"):
        parallel.load_block(parallel.MEDUSA)


def test_what_is_kept_of_a_text_is_never_more_than_was_read_of_it(tiny):
    """A text that lost its cache is read anew: until then, nothing was seen of its end."""
    drafter = BlockDrafter(TINY, (1,), K=2, reach=4).double()
    draft, text = BlockDraft(tiny, drafter), read_text(tiny, [1, 2, 3, 4, 5, 6], 5, (1,))
    whole = text.hidden
    for n in (5, 3, 4, 1):
        text.hidden = whole[:n]
        right = drafter.project(text.hidden)[-4:]
        torch.testing.assert_close(draft.seen(text), right)
