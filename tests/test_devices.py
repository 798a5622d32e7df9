"""On a GPU, all is what it is on the CPU: a real GPU where there is one, else a pretended one."""

import copy
from functools import partial

import pytest
import torch
from conftest import NAMES, REAL, make_model, sure
from pretend import Pretend

from nanogpt import checkpoint
from nanogpt.course import demo
from nanogpt.data import get_batch
from nanogpt.drafts import ahead, best, eagle, itself, parallel, transformer
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.learning import LearningDraft, NetStudent, SoftTable
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft
from nanogpt.drafts.parallel import hidden_states
from nanogpt.drafts.shipped import DRAFTS
from nanogpt.engines import causal, own
from nanogpt.generate import autoregressive_generate
from nanogpt.measure import bench
from nanogpt.measure.clock import clock
from nanogpt.measure.costs import calibrate, cost_growth
from nanogpt.model import GPTConfig
from nanogpt.proof.checks import SLOW_CHECKS
from nanogpt.proof.checks_serving import SERVING_CHECKS
from nanogpt.proof.decoders import (
    ahead_decoder,
    decoder,
    eagle_decoder,
    paged_decoder,
    server_decoder,
    tree_decoder,
)
from nanogpt.proof.toys import SelfDraft, Watched, at_random, random_draft, random_head, toy_states
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.paged import on_pool
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.targets.state import WAYS
from nanogpt.train import evaluate, make_optimizer, on_text, train
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import tree_mask

FORMS = {
    "per-head": lambda target: target,
    "fused": FusedLanguageModel,
    "paged": lambda target: on_pool(target, blocks=64, size=3),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)

# In make test the decoders run on one device: a GPU of the machine's own, or the pretended one that
# refuses most, as mps has no float64. Of drafts, each kind does something else there.
WIDE = pytest.mark.wide
CUDA, MPS = NAMES
SEEN = [*REAL, MPS]
one_device = pytest.mark.parametrize(
    "device", [pytest.param(x, marks=() if x in SEEN else WIDE) for x in NAMES], indirect=True
)


def close(actual, expected, floats):
    """The same numbers, computed there and here."""
    bound = 1e-9 if floats == torch.float64 else 1e-4
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=bound)


def same(decode, device, floats, samplings=(Sampling(), Sampling(0))):
    """decode(model, rng) gives the same tokens there and here, sampled and greedily."""
    model = make_model(dtype=floats)
    there = copy.deepcopy(model).to(device)
    for sampling in samplings:
        here, made = (decode(m, sampling, RandomSource(3)) for m in (model, there))
        assert [m.tokens for m in made] == [m.tokens for m in here]
        for r in made[0].rounds:
            assert r.target_probs.dtype == r.draft_probs.dtype == torch.float64
            assert r.target_probs.device.type == r.draft_probs.device.type == "cpu"


# ---- the pretended device


def test_a_pretended_device_refuses_what_a_real_one_refuses():
    with Pretend("cuda") as pretend:
        here, there = torch.arange(6.0), torch.arange(6.0, device="cuda")
        assert there.device == torch.device("cuda:0") and here.device.type == "cpu"
        refused = (
            lambda: here + there,
            lambda: there.view(2, 3) @ here.view(3, 2),
            lambda: torch.cat([there, here]),
            lambda: here[there.long()],
            lambda: torch.where(here > 2, there, 0.0),
            lambda: there.add_(here),
            lambda: there.__setitem__(there.long(), here),
        )
        for mixed in refused:
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        for array in (there.numpy, there[2:].numpy, lambda: there.detach().__array__()):
            with pytest.raises(TypeError, match="numpy"):
                array()
        assert pretend.calls
    with Pretend("mps"):
        single = torch.arange(6.0, device="mps")
        for double in (single.double, lambda: single.sum(dtype=torch.float64)):
            with pytest.raises(TypeError, match="float64"):
                double()
        assert single.cpu().double().dtype == torch.float64


def test_a_pretended_device_allows_what_a_real_one_allows():
    with Pretend("cuda"):
        here, there = torch.arange(6.0), torch.arange(6.0).to("cuda")
        assert (there * here[2]).device == there[here.long()].device == there.device
        assert (there + 1).cpu().tolist() == [1, 2, 3, 4, 5, 6] == [*map(int, there + 1)]
        view = there.view(2, 3)[1]
        view.copy_(here[:3])
        assert there.tolist() == [0, 1, 2, 0, 1, 2] and here.tolist() == [0, 1, 2, 3, 4, 5]
        assert torch.zeros(2).to(there).device == there.new_zeros(2).device == there.device
        linear = torch.nn.Linear(6, 2).to("cuda")
        assert copy.deepcopy(linear).weight.device == linear(there).device == there.device
        linear(there).sum().backward()
        assert linear.weight.grad.device == there.device
    assert there.device.type == "cpu", "outside, it is what it always was"


def test_a_forgotten_move_is_an_error(device, floats):
    def forgetful(target, current_token, candidates, past_kvs, sampling, unread):
        idx = torch.tensor([[*unread, current_token, *candidates]])
        logits, _, new_kvs = target(idx, past_kvs=past_kvs)
        return sampling.probs(logits[0, len(unread) :]), new_kvs

    target = make_model(dtype=floats).to(device)
    with pytest.raises(RuntimeError, match=r"same device|device type"):
        decoder(verify=forgetful)(target, random_draft(11), [1, 2], 5)


# ---- the model and its decoders


@one_device
@forms
@torch.no_grad()
def test_a_pass_over_a_cache_and_a_tree_gives_the_same_logits(form, device, floats):
    model, idx = make_model(dtype=floats), torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    there, parents = form(copy.deepcopy(model).to(device)), [-1, -1, 0]
    expected, _, _ = model(idx[:, :3], targets=idx[:, :3])
    mask = tree_mask(parents, 3)
    right = model(idx[:, 3:], None, mask.sum(-1) - 1, model(idx[:, :3])[2], mask)[0]
    logits, loss, past_kvs = there(idx[:, :3].to(device), idx[:, :3].to(device))
    assert logits.device.type == loss.device.type == there.device.type == device.type
    close(logits, expected, floats)
    mask = mask.to(device)
    nodes = there(idx[:, 3:].to(device), None, mask.sum(-1) - 1, past_kvs, mask)[0]
    close(nodes, right, floats)
    if form != FORMS["per-head"]:  # two texts of different lengths
        two = idx[0, :6].view(2, 3).to(device)
        past_kvs = there(two)[2].kept([3, 2])
        logits = there(idx[:, 6:].expand(2, 1).to(device), past_kvs=past_kvs)[0]
        alone = [torch.cat([idx[:, i:j], idx[:, 6:]], dim=1) for i, j in ((0, 3), (3, 5))]
        close(logits[:, 0], torch.stack([model(each)[0][0, -1] for each in alone]), floats)


@one_device
@forms
def test_one_text_is_the_same(form, device, floats):
    small = make_model(GPTConfig(11, 16, 1, 1, 4), seed=5)

    def decode(model, sampling, rng):
        target = form(model)
        own = copy.deepcopy(small).to(model.device, model.lm_head.weight.dtype)
        draft = transformer.TransformerDraft(form(own))
        request = [1, 2, 3], 11  # past the window of 12
        return [
            autoregressive_generate(target, *request, sampling, rng),
            speculative_generate(target, random_draft(11), *request, 3, sampling, rng),
            speculative_generate(target, draft, *request, 3, sampling, rng),
            speculative_generate(target, SelfDraft(model, 3), *request, 3, sampling, rng),
            tree_generate(target, Grown(draft, (2, 1)), *request, sampling=sampling, rng=rng),
        ]

    same(decode, device, floats)


@one_device
@forms
def test_batches_and_servers_are_the_same(form, device, floats):
    prompts, lengths = [[1, 2], [3], [4, 5, 6, 7]], [4, 3, 10]

    def decode(model, sampling, rng):
        target, draft, batches = form(model), random_draft(11), [batch_generate, server_decoder]
        if form == FORMS["paged"]:
            batches.append(paged_decoder)
        return [
            made
            for generate in batches
            for made in generate(target, draft, prompts, lengths, 2, sampling, None)
        ]

    def trees(model, sampling, rng):
        draft = Grown(random_draft(11), (2, 1))
        return batch_generate(form(model), draft, prompts, lengths, 2, sampling)

    same(decode, device, floats)
    same(trees, device, floats)


def head_of(model, layers=None):
    """An EagleHead of random weights, on the model's device and in its type."""
    head = random_head(copy.deepcopy(model).cpu(), layers)
    return head.to(model.device, model.lm_head.weight.dtype).share(model)


def random_weights(module, like):
    """The module with random weights, on a model's device and in its type."""
    at_random(7, module)
    return module.to(like.device, like.lm_head.weight.dtype)


def exit_draft(model, target):
    head = copy.deepcopy(torch.nn.Sequential(model.ln_f, model.lm_head)).cpu()
    return itself.EarlyExitDraft(target, 1, random_weights(head, model), K=3)


def adapter_draft(model, target):
    head = itself.exit_head(copy.deepcopy(model).cpu(), "block")
    return itself.AdapterDraft(target, 1, random_weights(head, model), K=3)


def medusa(model, *shape):
    heads = random_weights(parallel.MedusaHeads(model.config, 2), model)
    return parallel.MedusaDraft(heads, *shape)


def block_draft(model, target, markov):
    drafter = parallel.BlockDrafter(model.config, (1, 2), K=3, reach=4, rank=2)
    return parallel.BlockDraft(target, random_weights(drafter, model), markov=markov)


def net_of(model):
    """A net that learns, where the model is."""
    own = random_weights(copy.deepcopy(model).cpu(), model)
    return NetStudent(transformer.TransformerDraft(own), every=2, rate=0.05).copy()


def ahead_draft(model):
    drafter = ahead.Drafter(transformer.TransformerDraft(model), 2, [1, 1, 1])
    return ahead.AheadDraft(ahead.Inline(drafter), shared=True)


READERS = {  # of the target's knowledge: from a model and its form
    "exit": exit_draft,
    "exit with a block": adapter_draft,
    "copy": lambda model, target: itself.CopyDraft(target, 3, window=3, sink=1),
    "eagle": lambda model, target: eagle.EagleDraft(target, head_of(model), 3),
    "eagle-3": lambda model, target: eagle.EagleDraft(target, head_of(model, (1, 2)), 3),
    "eagle-tree": lambda model, target: eagle.EagleTree(target, head_of(model), k=2, K=3, nodes=5),
    "medusa": lambda model, target: medusa(model),
    "medusa-tree": lambda model, target: medusa(model, [-1, -1, 0], [0, 1, 0]),
    "block-apart": lambda model, target: block_draft(model, target, markov=False),
    "block-markov": lambda model, target: block_draft(model, target, markov=True),
    "jacobi": lambda model, target: JacobiDraft(11, 3),
    "lookahead": lambda model, target: LookaheadDraft(11, 3, 3, 3),
    "ahead": lambda model, target: ahead_draft(model),
    "block tree": lambda model, target: best.BlockTree(block_draft(model, target, True), 5, sure),
    "learning table": lambda model, target: LearningDraft(SoftTable(random_draft(11), 0, 2), 3),
    "learning net": lambda model, target: LearningDraft(net_of(model), 3),
}


# Those that another one of their kind is the like of; and of the per-head ones, all but one.
LIKE = ("eagle", "eagle-3", "medusa", "block-apart", "jacobi")
READ = [pytest.param(x, "fused", marks=WIDE if x in LIKE else ()) for x in READERS]
READ += [pytest.param(x, "per-head", marks=WIDE) for x in ("exit", "copy", "eagle-tree")]
READ += [("eagle-3", "per-head")]


@one_device
@pytest.mark.parametrize(("reader", "form"), READ)
def test_drafts_that_read_the_target_are_the_same(reader, form, device, floats):
    def decode(model, sampling, rng):
        target = FORMS[form](model)
        draft = READERS[reader](model, target)
        return [tree_generate(target, draft, [1, 2, 3], 11, sampling=sampling, rng=rng)]

    same(decode, device, floats, [Sampling()])


@one_device
@pytest.mark.parametrize("way", WAYS)
def test_a_target_with_a_state_is_the_same(way, device, floats):
    prompts = [[1, 2], [4, 5, 6, 7]]
    made = []
    for where in ("cpu", device):
        target = copy.deepcopy(toy_states(11, 16)).to(floats).to(where).remembering(way)
        draft, cold = random_draft(11), Sampling(0)
        texts = [speculative_generate(target, draft, x, 14, 3, cold) for x in prompts]
        texts += [tree_generate(target, Grown(draft, (2, 1), "fixed"), prompts[1], 14, cold)]
        texts += batch_generate(target, draft, prompts, 14, 3, cold)
        made.append([(one.tokens, len(one.rounds)) for one in texts])
    assert made[0] == made[1]


def test_a_model_of_transformers_passes_its_checks_there(device, floats):
    transformers = pytest.importorskip("transformers")
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.LlamaConfig(
        vocab_size=7, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **none,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(floats).to(device)
    target, tokens = causal.CausalModel(model, 48), [i * i % 7 for i in range(30)]
    assert target.device.type == device.type
    for name, ask in own.PASSES.items():
        assert ask(target, tokens) <= own.bound_of(target), name
    draft = causal.CausalDraft(target, 7)
    found = own.greedy(target, lambda *asked: speculative_generate(
        target, draft, asked[0], asked[1], 3, *asked[2:]
    ), [1, 2], 12)  # fmt: skip
    assert found.place is None or found.margin <= own.bound_of(target)


def moved(generate, device):
    """A decoder whose target, and draft if it is a network, are moved to the device first."""

    def on_device(target, draft, *args, **kwargs):
        inner = target.target if isinstance(target, Watched) else target
        inner = copy.deepcopy(inner).to(device)
        if isinstance(inner, FusedLanguageModel):  # what it stacked lies where it was made
            inner = FusedLanguageModel(inner, inner.cache)
        target = target.around(inner) if isinstance(target, Watched) else inner
        if isinstance(draft, transformer.TransformerDraft):
            draft = transformer.TransformerDraft(copy.deepcopy(draft.model).to(device))
        if isinstance(draft, eagle.EagleHead):
            draft = copy.deepcopy(draft).to(device)
        return generate(target, draft, *args, **kwargs)

    return on_device


CHECKED = {
    "chain": (speculative_generate, "greedy cache draft support"),
    "tree": (tree_decoder("without"), "cache nodes draft"),
    "eagle": (eagle_decoder, "cache incremental"),
    "batch": (batch_generate, "ragged"),
    "server": (server_decoder, "ragged"),
    "paged": (paged_decoder, "ragged"),
    "ahead": (ahead_decoder, "draft"),
}
FIRST = ["chain cache", "chain draft", "tree nodes", "eagle incremental", "server ragged"]
CASES = [(name, check) for name, (_, checks) in CHECKED.items() for check in checks.split()]
CASES = [pytest.param(*x, marks=() if " ".join(x) in FIRST else WIDE) for x in CASES]
ALL_CHECKS = SLOW_CHECKS | SERVING_CHECKS


@pytest.mark.parametrize(("name", "check"), CASES)
def test_a_decoder_passes_its_checks_there(name, check, device):
    if device.type == "mps":
        pytest.skip("the checks are exact, in float64, which mps has not")
    ALL_CHECKS[check](moved(CHECKED[name][0], device))


# ---- training, loading, timing


def one_step(model, seed=0):
    """The losses of an update of each kind of training, of a model and what belongs to it."""
    tokens = (torch.arange(300) ** 2 % 11).to(model.device)
    config = model.config

    def fresh(module):
        return random_weights(module, model).requires_grad_()

    frozen = copy.deepcopy(model).requires_grad_(False)
    trained = copy.deepcopy(model)
    exits = torch.nn.ModuleDict(
        {f"1 {name}": itself.exit_head(frozen, name).to(frozen.device) for name in itself.ADAPTERS}
    )
    heads, drafter = (
        fresh(parallel.MedusaHeads(config, 2)),
        fresh(parallel.BlockDrafter(config, (1, 2), K=3, reach=4, rank=2)),
    )
    head, layer = (fresh(eagle.EagleHead(config, norms=norms)) for norms in (False, True))
    windows = tokens[:24].view(2, 12)
    hidden, joint = hidden_states(frozen, windows), eagle.JointLoss(frozen, layer, 1)

    def windows_of(generator):
        return get_batch(tokens, 2, 12, generator)

    def loss_of_heads(generator):
        rows = torch.randint(2, (2,), generator=generator)
        return parallel.medusa_loss(heads(hidden[rows]), windows[rows])

    kinds = [
        (trained, on_text(trained, tokens.cpu(), 2)),
        (trained, lambda g: transformer.distil_loss(trained, frozen, windows_of(g)[0])),
        (exits, lambda g: itself.exit_loss(exits, frozen, windows_of(g)[0])),
        (trained, lambda g: itself.layerskip_loss(trained, *windows_of(g), g, most=0.5)),
        (heads, loss_of_heads),
        (head, lambda g: eagle.eagle_loss(head, frozen, windows_of(g)[0], g, 2, noise=0.1)),
        (layer, lambda g: joint(*windows_of(g))),
        (drafter, lambda g: parallel.block_loss(drafter, frozen, windows_of(g)[0], g, 3)),
    ]
    losses = [
        loss
        for learner, loss_of in kinds
        for _, loss in train(learner, make_optimizer(learner), loss_of, 1, seed=seed)
    ]
    losses += joint.said[0]
    losses.append(evaluate(trained, tokens))
    head.requires_grad_(False)
    losses += [a for a, _ in eagle.alpha_by_depth(head, frozen, windows, 2)]
    guessed = heads.requires_grad_(False)(hidden)
    return losses + parallel.accuracies(guessed, windows, 3)[0]


@one_device
def test_training_is_the_same(device, floats):
    here = one_step(make_model(dtype=floats))
    there = one_step(make_model(dtype=floats).to(device))
    bound = 1e-9 if floats == torch.float64 else 1e-3
    assert there == pytest.approx(here, abs=bound) and len(here) == 16


@one_device
def test_every_shipped_network_is_loaded_where_it_is_wanted(device):
    networks = [
        checkpoint.load(device=device)[0],
        transformer.load(device=device).model,
        *(eagle.load(path, device) for path in (eagle.EAGLE, eagle.EAGLE3)),
        *(lambda own, layers: (own, *layers.values()))(*eagle.load_mtp(device=device)),
        parallel.load(device=device),
        parallel.load_block(device=device),
        *(
            exit_head
            for name in itself.ADAPTERS
            for exit_head in itself.load_exits(device=device, adapter=name).values()
        ),
        itself.load_layerskip(device=device),
    ]
    for network in networks:
        assert {p.device.type for p in network.parameters()} == {device.type}
    for name in ("transformer", "transformer-distilled", "transformer-fused"):
        assert DRAFTS[name](None, 65, device).model.device.type == device.type
    assert itself.int8_product(networks[0].blocks[0].sa.proj) is None, "a kernel of the CPU"


@one_device
def test_the_bench_races_there(device, floats, capsys, monkeypatch):
    monkeypatch.setattr(bench, "cost_growth", partial(cost_growth, times=2))
    small = ["--target=fused", f"--device={device.type}", "--pairs=1", "--tokens=4"]
    racers = ["transformer-fused", "eagle-tree", "mtp", "block-markov"]
    bench.main(["--draft", *racers, *small])
    printed = capsys.readouterr().out
    assert f"1 pairs of 4 tokens each, on {device.type}" in printed
    assert [line.split()[1] for line in printed.splitlines() if "│" in line][1:] == racers
    target = make_model(GPTConfig(11, 96, 1, 1, 4), dtype=floats).to(device)
    costs = calibrate(target, random_draft(11), times=2)
    assert costs["draft_cost"] > 0 < costs["rest"] and costs["verify_cost"](4) >= 1


@one_device
def test_the_demo_writes_one_text_both_ways_there(device, capsys):
    small = ["--tokens=8", "--target=fused", "--temperature=0", f"--device={device.type}"]
    demo.main(["--draft=eagle-tree", *small])
    parts = capsys.readouterr().out.split("--- ")[1:]
    plain, guessed = (part.split("\n", 1)[1].rstrip() for part in parts)
    assert guessed.startswith(plain), "greedy: both decoders write the same"


def test_the_clock_waits_for_a_gpu_before_it_starts_and_before_it_stops(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("waited"))
    clock(lambda: seen.append("worked"))
    assert seen == ["waited", "worked", "waited"]
    seen.clear()
    bench.Timed(lambda: seen.append("worked"))()
    assert seen == ["waited", "worked", "waited"]


@pytest.mark.parametrize("name", ["cuda", "mps", "meta"])
@pytest.mark.parametrize("load", [bench.main, demo.main, checkpoint.load])
def test_a_device_that_is_not_there_is_refused_in_one_line(load, name):
    if name in REAL:
        pytest.skip(f"{name} is there")
    given = {"device": name} if load is checkpoint.load else {"arguments": ["--device", name]}
    with pytest.raises((ValueError, SystemExit), match=f"device '{name}' cannot be used here|2"):
        load(**given)
