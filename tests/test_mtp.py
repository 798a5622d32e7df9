"""Multi-token prediction: its loss, its training, and the target as its own draft."""

import pytest
import torch
from conftest import TINY, make_model, random_weights, restarts
from texts import off

from nanogpt import checkpoint
from nanogpt.data import get_batch
from nanogpt.drafts import eagle
from nanogpt.drafts.eagle import EagleDraft, EagleHead, JointLoss, mtp_loss
from nanogpt.drafts.parallel import hidden_states
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof.toys import toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS
from nanogpt.train import make_optimizer, on_text, train
from nanogpt.trees.loop import tree_generate


def random_layer(target):
    """An MTP layer in float64 that knows nothing."""
    return random_weights(EagleHead(target.config, norms=True)).share(target)


class Knows:
    """In place of a layer: it says `far` more than the token that it reads, for sure."""

    def __init__(self, far):
        self.far = far

    def unrolled(self, features, tokens, steps):
        assert features.shape[:2] == tokens.shape
        return [torch.nn.functional.one_hot((tokens + self.far) % 9, 9) * 50.0] * steps

    def logits(self, out):
        return out


def test_the_label_is_the_token_after_the_one_that_the_layer_reads():
    tokens = torch.arange(9).repeat(2, 1)  # each token one more than the one before
    hidden = torch.zeros(2, 8, 4)
    assert mtp_loss(Knows(1), hidden, tokens) < 1e-6
    assert mtp_loss(Knows(1), hidden, tokens, steps=3) < 1e-6
    assert mtp_loss(Knows(0), hidden, tokens) > 10  # the token that it reads
    assert mtp_loss(Knows(2), hidden, tokens) > 10


def test_the_state_is_that_of_the_token_before(tiny):
    """A loss on true states that would not change if the last one did: it has no label."""
    layer = random_layer(tiny)
    tokens = torch.randint(TINY.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(2, 8, TINY.n_embd, dtype=torch.float64)
    loss, other = mtp_loss(layer, hidden, tokens), hidden.clone()
    other[:, -1] += 1
    assert mtp_loss(layer, other, tokens) == loss
    other[:, 0] += 1
    assert mtp_loss(layer, other, tokens) != loss
    out, _ = layer(hidden[:, :1], tokens[:, 1:2])
    one = torch.nn.functional.cross_entropy(layer.logits(out)[:, 0], tokens[:, 2])
    torch.testing.assert_close(mtp_loss(layer, hidden[:, :2], tokens[:, :3]), one)


def test_the_question_reaches_every_state_that_has_a_label(tiny):
    """What tells MTP from a head that is hired later: the trunk hears it, in the last step, too."""
    layer = random_layer(tiny)
    tokens = torch.randint(TINY.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    for steps in (1, 3):
        hidden = torch.randn(2, 8, TINY.n_embd, dtype=torch.float64, requires_grad=True)
        mtp_loss(layer, hidden, tokens, steps).backward()
        reached = hidden.grad.abs().sum(-1) > 0
        assert reached[:, :-1].all() and not reached[:, -1].any(), steps


SMALL = GPTConfig(vocab_size=9, block_size=12, n_layer=1, n_head=2, n_embd=16)


def together(model, joint, tokens, steps, batch_size=8, seed=0):
    """Train what learns of a target and its layer; both losses of each update."""

    def loss_of(generator):
        return joint(*get_batch(tokens, batch_size, 12, generator))

    for _ in train(model, make_optimizer(model), loss_of, steps, seed=seed):
        pass
    return joint.said


def test_a_layer_without_weight_leaves_the_training_of_the_target_alone(monkeypatch):
    """The same start, batches and rates as a target's alone: with no λ it is the same training."""
    tokens = torch.randint(9, (400,), generator=torch.Generator().manual_seed(0))
    alone, joined = (make_model(SMALL, seed=3).requires_grad_() for _ in range(2))
    head = EagleHead(SMALL, norms=True).to(alone.lm_head.weight)
    monkeypatch.setattr(eagle, "mtp_loss", lambda *_: torch.zeros(()))
    run = train(alone, make_optimizer(alone), on_text(alone, tokens, 4), 8, seed=5)
    losses = [loss for _, loss in run]
    both = torch.nn.ModuleList([joined, head])
    said = together(both, JointLoss(joined, head, 8), tokens, 8, batch_size=4, seed=5)
    for step, ((own, ahead), loss) in enumerate(zip(said, losses, strict=True)):
        assert ahead == 0 and own == pytest.approx(loss, rel=1e-9), step


def test_the_second_question_weighs_less_later_on():
    target, head = make_model(SMALL), EagleHead(SMALL, norms=True)
    joint = JointLoss(target, head.to(target.lm_head.weight), 37)
    x = torch.arange(24).view(2, 12) % 9
    sums = [float(joint(x, (x + 1) % 9).detach()) for _ in range(37)]
    weights = [(total - own) / ahead for total, (own, ahead) in zip(sums, joint.said, strict=True)]
    assert weights == pytest.approx([0.3] * 25 + [0.1] * 12)  # 10 of 14.8


def test_the_target_learns_from_both_questions():
    target, head = make_model(SMALL).requires_grad_(), EagleHead(SMALL, norms=True)
    head, tokens = head.to(target.lm_head.weight), torch.arange(13)[None] % 9  # one window
    JointLoss(target, head, 1)(tokens[:, :12], tokens[:, 1:]).backward()
    got = target.blocks[0].ffwd.net[0].weight.grad.clone()
    target.zero_grad()
    hidden = hidden_states(target, tokens[:, :12])
    own = torch.nn.functional.cross_entropy(target.lm_head(hidden)[0], tokens[0, 1:])
    (own + 0.3 * mtp_loss(head, hidden, tokens)).backward()
    torch.testing.assert_close(got, target.blocks[0].ffwd.net[0].weight.grad)


def test_both_learn_and_both_questions_reach_what_is_shared():
    tokens = torch.arange(900) % 9  # 0, 1, … 8, 0, 1, …
    torch.manual_seed(0)
    target, head = GPTLanguageModel(SMALL), EagleHead(SMALL, norms=True)
    both = torch.nn.ModuleList([target, head])
    said = together(both, JointLoss(target, head, 200), tokens, 200)
    assert said[0][0] > 1.5 and said[-1][0] < 0.3 and said[-1][1] < 0.3
    target.zero_grad()
    idx = tokens[:13].view(1, 13)
    mtp_loss(head, hidden_states(target, idx[:, :-1]).detach(), idx).backward()
    assert target.lm_head.weight.grad.abs().max() > 0
    assert target.token_embedding_table.weight.grad.abs().max() > 0


def test_a_frozen_target_stays_as_it_is():
    torch.manual_seed(0)
    target, head = GPTLanguageModel(SMALL).requires_grad_(False), EagleHead(SMALL, norms=True)
    before = {name: t.clone() for name, t in target.state_dict().items()}
    said = together(head, JointLoss(target, head, 30, unroll=3), torch.arange(900) % 9, 30)
    assert said[-1][1] < said[0][1]
    assert all(torch.equal(t, before[name]) for name, t in target.state_dict().items())


@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize(
    ("sampling", "letters"),
    [
        (Sampling(), 2),
        (Sampling(0.5, top_k=2), 3),
        pytest.param(Sampling(), 3, marks=pytest.mark.wide),
    ],
    ids=str,
)
def test_the_text_is_the_targets_own_over_a_restart(form, K, sampling, letters):
    toy = toy_target(letters, 4, seed=1)
    model, restarted = TARGETS[form](toy), []
    draft = EagleDraft(model, random_layer(toy), K)
    look = {"own": toy, "look": lambda made: restarted.append(restarts(made))}
    assert off(tree_generate, model, draft, 4, sampling, **look) < 1e-12 and min(restarted) > 0


@pytest.fixture(scope="module")
def shipped():
    return eagle.load_mtp()


def test_the_shipped_target_is_a_shakespeare_and_its_layers_guess_it(shipped):
    target, layers = shipped
    facts = checkpoint.read_header(eagle.MTP)["facts"]
    assert facts["val_loss"] < 1.6 and facts["without"]["val_loss"] < 1.6
    for name, layer in layers.items():
        draft, rounds = EagleDraft(target, layer, 1), []
        for seed in range(3):
            rng = RandomSource(seed)
            rounds += tree_generate(target, draft, [1, 40, 50], 80, rng=rng).rounds
        kept = sum(r.n_accepted for r in rounds) / sum(r.n_examined for r in rounds)
        assert kept > 0.6, name


def test_only_the_layer_trained_on_its_own_outputs_goes_on(shipped):
    target, layers = shipped
    text = "First Citizen:\nBefore we proceed any further, hear me speak."
    windows = torch.tensor(checkpoint.load()[1].encode(text)[:60]).view(2, 30)
    alphas = {n: eagle.alpha_by_depth(layer, target, windows, 3) for n, layer in layers.items()}
    once, again = ([a for a, _ in alphas[name]] for name in ("once", "again"))
    assert once[0] - once[2] > 0.1 > abs(once[0] - again[0])
    assert again[2] > once[2] + 0.1


def test_the_file_says_that_the_trunk_looks_ahead_and_nothing_else_does():
    found = checkpoint.read_header(eagle.MTP)["facts"]["ahead"]
    nats, alpha = found["nats"], found["alpha"]
    assert {len(rows) for rows in (*nats.values(), *alpha.values())} == {3}
    for kind in ("", ", own embeddings"):  # in every seed, with what is shared and without
        assert max(nats["mtp" + kind]) < min(nats["plain" + kind]) - 0.05
        assert min(alpha["mtp" + kind]) > max(alpha["plain" + kind])
    assert abs(sum(nats["layerskip"]) - sum(nats["plain"])) < 0.1  # any other training
    assert len(found["pairs"]) == 10 and max(found["pairs"]) < 0.05


def test_a_file_without_layers_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py mtp"):
        eagle.load_mtp(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="holds no target with MTP layers"):
        eagle.load_mtp(checkpoint.TARGET)
