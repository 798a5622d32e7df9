"""EAGLE: chains and trees on the target's features; what no test of the output sees."""

import gc
import itertools
import math
import weakref

import pytest
import torch
from conftest import TINY, generator_of, make_model, read_text, restarts
from matplotlib.patches import FancyBboxPatch
from series import module_of
from texts import off

from nanogpt import checkpoint
from nanogpt.course.chapter_19 import steps_seen
from nanogpt.data import DATA_DIR, STAND_IN_FILE, get_batch, read_stand_in, train_val_split
from nanogpt.drafts import eagle, transformer
from nanogpt.drafts.eagle import EagleDraft, EagleHead, EagleTree, alpha_by_depth, eagle_loss
from nanogpt.drafts.parallel import depths_of
from nanogpt.generate import autoregressive_generate
from nanogpt.model import causal_mask
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import SLOW_CHECKS, check_incremental, forced_q
from nanogpt.proof.decoders import eagle_decoder
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import deep_toy, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.train import make_optimizer, train
from nanogpt.trees.loop import tree_generate

DRAFTS = {
    "chain": lambda target, head: EagleDraft(target, head, 2),
    "tree": lambda target, head: EagleTree(target, head, k=2, K=2, nodes=4),
}
drafts = pytest.mark.parametrize("draft_of", DRAFTS.values(), ids=DRAFTS)
kinds = pytest.mark.parametrize("kind", TARGETS)
LAYERS = {"hidden": None, "streams": (1, 3)}
layered = pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)

MAKE_DRAFTS = DATA_DIR / "make_drafts.py"


def windows_of(target, n=3, seed=0):
    V, T = target.config.vocab_size, target.config.block_size
    return torch.randint(V, (n, T), generator=generator_of(seed))


# ---- the head


@pytest.mark.two_ways
@pytest.mark.parametrize("norms", [False, True])
def test_a_head_is_a_block_over_embedding_and_feature(norms):
    """The block's arithmetic, head by head as in nanogpt.model, on what fc makes of a pair."""
    target = make_model()
    head = EagleHead(TINY, norms=norms).double().share(target)
    features = torch.randn(1, 5, TINY.n_embd, dtype=torch.float64)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    out, past = head(features, tokens)

    token, feature = target.token_embedding_table(tokens), features
    if norms:
        token, feature = (
            x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()
            for x in (token, feature)
        )
    x = head.fc(torch.cat([token, feature], dim=-1))
    q, k, v = head.qkv(head.ln1(x)).chunk(3, dim=-1)
    mixed = []
    for some in torch.arange(TINY.n_embd).view(TINY.n_head, -1):
        scores = q[..., some] @ k[..., some].mT * len(some) ** -0.5
        weights = scores.masked_fill(~causal_mask(5), -torch.inf).softmax(-1)
        mixed.append(weights @ v[..., some])
    x = x + head.proj(torch.cat(mixed, dim=-1))
    torch.testing.assert_close(out, x + head.ffwd(head.ln2(x)))
    assert past.shape == (2, 1, TINY.n_head, 5, TINY.n_embd // TINY.n_head)
    torch.testing.assert_close(head.logits(out), target.lm_head(head.ln_f(out)))
    assert isinstance(head.ln_f, torch.nn.LayerNorm) == norms


def test_a_head_has_none_of_the_targets_weights():
    target = make_model()
    head = EagleHead(TINY).share(target)
    own = {id(p) for p in head.parameters()}
    assert not own & {id(p) for p in target.parameters()}
    assert len(head.state_dict()) == len(list(head.parameters()))


@pytest.mark.two_ways
def test_pair_by_pair_is_all_pairs_at_once():
    target, _ = deep_toy()
    head, x = random_head(target, (1, 2, 3)), windows_of(target, 1)
    features, hidden = head.features_of(target, x)
    assert features.shape == (1, 16, 12) and hidden.shape == (1, 16, 4)
    whole, _ = head(features[:, :-1], x[:, 1:])
    past, outs = None, []
    for i in range(15):
        out, past = head(features[:, i : i + 1], x[:, i + 1 : i + 2], past)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole)


@pytest.mark.two_ways
@layered
def test_the_unrolled_steps_are_what_a_draft_does(layers):
    """At every place: true pairs as far as it is told to read them, then its own outputs."""
    target, _ = deep_toy()
    head, x, steps = random_head(target, layers), windows_of(target, 2), 4
    features = head.features_of(target, x)[0][:, :-1]
    tokens = x[:, 1:]
    outs = head.unrolled(features, tokens, steps)
    for s, i in itertools.product(range(steps), range(15)):
        if i < s:
            continue
        out, past = head(features[:, : i - s + 1], tokens[:, : i - s + 1])
        for own in range(i - s + 1, i + 1):
            out, past = head(out[:, -1:], tokens[:, own : own + 1], past)
        torch.testing.assert_close(outs[s][:, i], out[:, -1])


def test_the_masks_of_the_unrolled_steps_by_hand_and_as_drawn():
    """What each place of a window of five sees, (step, place); its picture fills as much."""
    target, masks = make_model(), []

    class Watched(EagleHead):
        def forward(self, features, tokens, past=None, mask=None):
            masks.append(mask)
            return super().forward(features, tokens, past, mask)

    blank = torch.zeros(1, 5, TINY.n_embd).double(), torch.zeros(1, 5, dtype=torch.long)
    Watched(TINY).double().share(target).unrolled(*blank, steps=3)
    said = {  # of (step, place): all that it sees, as step.place
        (0, 0): "0.0",
        (0, 4): "0.0 0.1 0.2 0.3 0.4",
        (1, 1): "0.0 1.1",
        (1, 4): "0.0 0.1 0.2 0.3 1.4",
        (2, 2): "0.0 1.1 2.2",
        (2, 4): "0.0 0.1 0.2 1.3 2.4",
    }
    boxes = [p for p in steps_seen(masks, "T").axes[0].patches if isinstance(p, FancyBboxPatch)]
    filled = sum(box.get_linestyle() == "-" for box in boxes)
    assert filled == sum(int(mask[step:].sum()) for step, mask in enumerate(masks))
    for (step, place), right in said.items():
        seen = [divmod(column, 5) for column in masks[step][place].nonzero().flatten().tolist()]
        assert " ".join(f"{s}.{i}" for s, i in seen) == right


# ---- the text is the target's own


@pytest.mark.pairs
@drafts
@kinds
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.5), Sampling(top_k=2)], ids=["T 1", "T .5", "top-k"]
)
def test_the_text_is_the_targets_own(kind, draft_of, sampling):
    toy = toy_target(3, 8, seed=1)
    fast = TARGETS[kind](toy)
    draft = draft_of(fast, random_head(toy))
    assert off(tree_generate, fast, draft, 3, sampling, own=toy) < 1e-12


@pytest.mark.parametrize(
    "draft_of",
    [
        lambda target, head: EagleDraft(target, head, 3),
        lambda target, head: EagleTree(target, head, k=2, K=3, nodes=5),
    ],
    ids=["chain", "tree"],
)
def test_three_guesses_and_the_bonus_are_the_targets_own(draft_of):
    toy = toy_target(2, 8, seed=1)
    assert off(tree_generate, toy, draft_of(toy, random_head(toy)), 4) < 1e-12


@pytest.mark.pairs
@drafts
@kinds
@layered
def test_a_text_over_a_restart_is_the_targets_own(kind, draft_of, layers):
    """Its first round has no feature to read; with the second it begins anew."""
    target, _ = deep_toy()
    toy = make_model(type(target.config)(2, 4, 3, 2, 4), seed=3)
    fast = TARGETS[kind](toy)
    draft = draft_of(fast, random_head(toy, layers))
    restarted = set()
    look = {"own": toy, "look": lambda made: restarted.add(restarts(made))}
    assert off(tree_generate, fast, draft, 5, prompt=[1], **look) < 1e-12 and max(restarted) > 0


def greedy_cases(n):
    for seed in range(n):
        generator = generator_of(seed)
        n_prompt, K, k = (int(torch.randint(1, 7, (), generator=generator)) for _ in range(3))
        prompt = torch.randint(11, (n_prompt,), generator=generator).tolist()
        layers = (None, (1, 2))[seed % 2]
        yield seed, prompt, layers, k, K, list(TARGETS)[seed // 2 % 2]


def check_greedy_text(seed, prompt, layers, k, K, kind):
    target = make_model(seed=seed % 7)
    fast, head = TARGETS[kind](target), random_head(target, layers, seed)
    own = autoregressive_generate(target, prompt, 30, Sampling(0)).tokens
    for draft in (EagleDraft(fast, head, K), EagleTree(fast, head, k, K, nodes=2 * k)):
        made = tree_generate(fast, draft, prompt, 30, sampling=Sampling(0))
        assert made.tokens == own and restarts(made) > 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.wide if case[0] >= 8 else ())
        for case in greedy_cases(36)
    ],
    ids=lambda case: case[0],
)
def test_greedy_text_is_equal(case):
    check_greedy_text(*case)


@pytest.mark.slow
def test_greedy_text_is_equal_in_2000_cases():
    for case in greedy_cases(2000):
        check_greedy_text(*case)


# ---- what the output does not show


@pytest.mark.two_ways
@kinds
def test_round_by_round_is_teacher_forced(kind):
    def fast(target, *args, **kwargs):
        return eagle_decoder(TARGETS[kind](target), *args, **kwargs)

    check_incremental(fast)


OF_OUTPUT = ("greedy", "cache", "nodes", "acceptance", "accounting", "support", "the text")


@pytest.mark.parametrize(
    "bug, check",
    [  # in every run each bug passes a check and each check a bug
        pytest.param(bug, check, marks=pytest.mark.wide if j % 6 != i else ())
        for i, bug in enumerate(BUGS[46:52])
        for j, check in enumerate(OF_OUTPUT)
    ],
    ids=lambda given: getattr(given, "number", given),
)
def test_no_test_of_the_output_sees_what_only_slows(bug, check):
    slow = mutant(bug)
    if check != "the text":
        SLOW_CHECKS[check](slow)
        return
    toy = toy_target(3, 8, seed=1)
    assert off(slow, toy, random_head(toy), 3, K=2) < 1e-12


def test_a_tree_verified_as_a_chain_is_still_the_targets_own():
    slow = mutant(BUGS[52])
    for check in ("exact", "greedy", "cache", "nodes", "acceptance", "accounting", "support"):
        SLOW_CHECKS[check](slow)


def paths_of(tokens, parents):
    """The tokens from the root down to each node."""
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@pytest.mark.two_ways
@layered
def test_a_tree_holds_the_most_valuable_nodes_with_teacher_forced_values(layers):
    """Against every path of the vocabulary, where nothing is left out before the last choice."""
    target, _ = deep_toy()
    head, V, K, nodes = random_head(target, layers), 3, 3, 14
    text = read_text(target, [0, 1, 2, 0, 1], 10, layers)
    draft = EagleTree(target, head, k=27, K=K, nodes=nodes)
    tree = draft.propose(text, 9, None, None)
    values = {(): 1.0}
    for depth in range(K):
        for path in [path for path in values if len(path) == depth]:
            q = forced_q(head, target, text.tokens, path)
            values |= {(*path, x): values[path] * float(q[x]) for x in range(V)}
    tokens, parents, logarithms = draft.grow(*draft.read(text), K)
    everything = paths_of(tokens, parents)
    assert sorted(everything) == sorted(values)[1:]
    for path, value in zip(everything, logarithms, strict=True):
        assert math.exp(value) == pytest.approx(values[path], abs=1e-9)
    paths = paths_of(tree.tokens, tree.parents)
    best = sorted(values, key=values.get, reverse=True)[1 : nodes + 1]
    assert sorted(paths) == sorted(best)
    for siblings in tree.children:
        own = [values[paths[node]] for node in siblings]
        assert own == sorted(own, reverse=True), "the likeliest is tried first"
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert torch.equal(tree.q, torch.eye(V, dtype=torch.float64)[tree.tokens])


def test_only_the_best_nodes_of_a_depth_are_read_on():
    target = make_model()
    text, head = read_text(target, [1, 2, 3], 9), random_head(target)
    tree = EagleTree(target, head, k=2, K=3, nodes=100).propose(text, 9, None, None)
    depths = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    assert [depths.count(d) for d in (1, 2, 3)] == [2, 4, 4], "two of the four have children"
    cut = EagleTree(target, head, k=2, K=3, nodes=100).propose(text, 1, None, None)
    assert cut.parents == [-1, -1], "no deeper than there is room"


@pytest.mark.parametrize("k", [2, 3])
def test_the_nodes_that_are_read_on_are_the_most_valuable_of_their_depth(k):
    target, later = make_model(), 0
    for seed in range(10):
        draft = EagleTree(target, random_head(target, seed=seed), k, K=4, nodes=100)
        _, parents, values = draft.grow(*draft.read(read_text(target, [1, 2, 3], 9)), 4)
        depths = depths_of(parents)
        for depth in range(3):
            level = [node for node in range(len(parents)) if depths[node] == depth]
            best = sorted(level, key=lambda node: -values[node])[:k]
            assert sorted(best) == sorted({parent for parent in parents if parent in level})
            later += sorted(best) != level[:k]
    assert later > 5, "they are not always the first"


# ---- a draft and its texts


def test_a_chain_claims_the_q_it_was_drawn_from():
    target, sampling = make_model(), Sampling(0.7, top_k=3)
    head, text = random_head(target), read_text(target, [1, 2, 3], 10)
    tree = EagleDraft(target, head, 3).propose(text, 5, sampling, RandomSource(0))
    assert tree.parents == [-1, 0, 1]
    for i, q in enumerate(tree.q):
        right = forced_q(head, target, [1, 2, 3], tree.tokens[:i], sampling)
        torch.testing.assert_close(q, right)
    rng = RandomSource(0)
    assert tree.tokens == [rng.categorical(row) for row in tree.q]


@drafts
def test_nothing_is_guessed_without_a_feature_or_without_room(draft_of):
    target = make_model()
    draft = draft_of(target, random_head(target))
    for text, most in ((read_text(target, [1], 5), 3), (read_text(target, [1, 2], 5), 0)):
        tree = draft.propose(text, most, Sampling(), RandomSource(0))
        assert tree.tokens == [] and tree.q.shape == (0, TINY.vocab_size)


@drafts
def test_one_text_says_nothing_to_the_next(draft_of):
    """Two texts in turn, and the same text asked twice, get what each gets alone."""
    target = make_model()
    head = random_head(target)
    prompts = ([1, 2, 3, 4], [5, 6, 7, 8, 9], [1, 2, 3, 5])
    texts = [read_text(target, prompt, 10) for prompt in prompts]
    both = draft_of(target, head)
    for text in [*texts, *texts, texts[0], texts[0]]:
        alone = draft_of(target, head).propose(text, 5, Sampling(), RandomSource(0))
        got = both.propose(text, 5, Sampling(), RandomSource(0))
        assert got.tokens == alone.tokens
        torch.testing.assert_close(got.q, alone.q)


def test_a_draft_does_not_keep_a_text_alive():
    target = make_model()
    draft, text = EagleDraft(target, random_head(target)), read_text(target, [1, 2, 3], 9)
    draft.propose(text, 3, Sampling(), RandomSource(0))
    known = weakref.ref(text)
    del text
    gc.collect()
    assert known() is None


def test_only_new_pairs_are_read_and_a_restart_begins_anew():
    target, calls = make_model(), []
    head = random_head(target)
    draft = EagleDraft(target, head, 3)
    forward = head.forward

    def watched(features, tokens, past=None, mask=None):
        calls.append((tokens.shape[1], past.shape[3]))
        return forward(features, tokens, past, mask)

    head.forward = watched
    made = tree_generate(target, draft, [1, 2, 3], 30)
    seen, expected, before = 0, [], -1
    for r in made.rounds:
        if r.position < before:
            seen = 0  # a restart
        if r.candidates:
            expected.append((r.position - seen, seen))
            expected += [(1, r.position + i) for i in range(len(r.candidates) - 1)]
            seen = r.position
        before = r.position
    assert calls == expected and made.prefills > 2


def test_a_head_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"the head is 8 wide .* the target 4"):
        EagleDraft(deep_toy()[0], EagleHead(TINY))


# ---- training, and what is shipped


def by_hand(head, target, window, depth):
    """(p, q) (n, V) each at every place that a guess number `depth` can stand at."""
    tokens = window.tolist()
    p = torch.softmax(target(window[None])[0][0], dim=-1)
    rows = [
        (
            p[end],
            forced_q(head, target, tokens[: end + 2 - depth], tokens[end + 2 - depth : end + 1]),
        )
        for end in range(depth, len(tokens))
    ]
    return tuple(torch.stack(each) for each in zip(*rows, strict=True))


@pytest.mark.two_ways
@layered
def test_alpha_by_depth_is_the_overlap_at_every_place(layers):
    target, _ = deep_toy()
    head, windows = random_head(target, layers), windows_of(target, 3)
    for depth, (alpha, error) in enumerate(alpha_by_depth(head, target, windows, 3), start=1):
        each = []
        for window in windows:
            p, q = by_hand(head, target, window, depth)
            each.append(float(torch.minimum(p, q).sum(-1).mean()))
        assert alpha == pytest.approx(sum(each) / 3, abs=1e-9)
        spread = sum((x - alpha) ** 2 for x in each) / 2
        assert error == pytest.approx((spread / 3) ** 0.5, abs=1e-9)


@pytest.mark.parametrize("match", [False, True])
def test_the_loss_is_that_of_each_step_under_the_targets_p(match):
    target, _ = deep_toy()
    data = torch.randint(3, (100,), generator=generator_of(5))
    head = random_head(target).requires_grad_(True)
    x, _ = get_batch(data, 2, 16, generator_of(7))
    expected = 0.0
    for depth, weight in ((1, 1.0), (2, 0.8)):
        pairs = [by_hand(head, target, window, depth) for window in x]
        asked = [-(p * q.log()).sum(-1).mean() for p, q in pairs]
        asked = torch.stack(asked).mean()
        if match:
            features, hidden = head.features_of(target, x)
            out = head.unrolled(features[:, :-1], x[:, 1:], depth)[-1][:, depth - 1 :]
            off = (out - hidden[:, depth:]).abs()
            asked = torch.where(off < 1, off**2 / 2, off - 0.5).mean() + 0.1 * asked
        expected += weight * float(asked.detach())
    loss = eagle_loss(head, target, x, generator_of(0), unroll=2, match=match)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-9)


def test_noise_moves_the_features_and_nothing_else():
    target, _ = deep_toy()
    data = torch.randint(3, (100,), generator=generator_of(5))

    def first_loss(noise):
        x, _ = get_batch(data, 16, 16, generator_of(0))
        return float(eagle_loss(random_head(target), target, x, generator_of(1), noise=noise))

    assert 0 < abs(first_loss(0.0) - first_loss(1e-3)) < 0.1 < abs(first_loss(0.0) - first_loss(9))


def test_training_raises_alpha_and_unrolled_training_raises_it_deeper():
    target = make_model(dtype=torch.float32).requires_grad_(False)
    generator = generator_of(1)
    data = torch.randint(11, (4000,), generator=generator)
    windows = data.unfold(0, 12, 12)[:100]
    before = {name: t.clone() for name, t in target.state_dict().items()}
    alphas = {}
    for unroll in (0, 1, 3):
        torch.manual_seed(0)
        head = EagleHead(TINY, (1, 2))
        if unroll:

            def loss_of(generator, head=head, unroll=unroll):
                x, _ = get_batch(data, 16, 12, generator)
                return eagle_loss(head, target, x, generator, unroll)

            losses = [loss for _, loss in train(head, make_optimizer(head), loss_of, 90)]
            assert losses[-1] < losses[0]
        alphas[unroll] = [alpha for alpha, _ in alpha_by_depth(head, target, windows, 3)]
    assert alphas[0][0] + 0.1 < min(alphas[1][0], alphas[3][0]), alphas
    assert all(alphas[0][d] < alphas[1][d] < alphas[3][d] for d in (1, 2)), alphas
    assert all(torch.equal(t, before[name]) for name, t in target.state_dict().items())


def unseen():
    """The shipped target, and its tokenizer's last tenth of the stand-in in windows (N, 128)."""
    target, tokenizer = checkpoint.load()
    text = read_stand_in(DATA_DIR / STAND_IN_FILE).text
    _, data = train_val_split(torch.tensor(tokenizer.encode(text)))
    return target, tokenizer, data.unfold(0, 128, 128)


@pytest.mark.parametrize("path", [eagle.EAGLE, eagle.EAGLE3], ids=["eagle", "eagle3"])
def test_a_shipped_head_has_the_alpha_that_its_file_says(path):
    """On other windows than those that the file's were measured on."""
    target, _, windows = unseen()
    head, facts = eagle.load(path), checkpoint.read_header(path)["facts"]
    assert facts["corpus"] == "stand-in" and facts["steps"] > 0 and facts["seconds"] > 0
    assert next(head.parameters()).dtype == torch.float32
    assert not any(p.requires_grad for p in head.parameters())
    again = alpha_by_depth(head, FusedLanguageModel(target), windows[512:576])
    for (alpha, error), (known, its_error) in zip(again, facts["alpha"], strict=True):
        assert abs(alpha - known) < 4 * (error**2 + its_error**2) ** 0.5
        assert 0 < its_error < 0.005


def test_what_is_shipped_shows_what_unrolled_training_is_for():
    one, three = (
        [alpha for alpha, _ in checkpoint.read_header(path)["facts"]["alpha"]]
        for path in (eagle.EAGLE, eagle.EAGLE3)
    )
    assert one[0] > 0.7 and three[0] > 0.75
    assert three[0] - three[3] < 0.05 and min(three[1:]) > max(one[1:])


def test_what_is_left_out_in_the_ablation_is_left_out_at_every_depth():
    target, make = deep_toy()[0], module_of(MAKE_DRAFTS)
    head, x = random_head(target, cls=make.Blinkered), windows_of(target, 2)
    features = head.features_of(target, x)[0][:, :-1]
    head.instead = target.position_embedding_table.weight[1:]
    outs = head.unrolled(features, x[:, 1:], 3)
    for other in (torch.zeros_like(features), torch.randn_like(features)):
        for out, same in zip(outs, head.unrolled(other, x[:, 1:], 3), strict=True):
            torch.testing.assert_close(out, same, rtol=0, atol=0)
    for s in (1, 2):  # nothing goes stale: a later guess is the first one
        torch.testing.assert_close(outs[s][:, s:], outs[0][:, s:])
    head.instead, head.shifted = None, False
    out, _ = head(features, x[:, 1:])
    own = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:-1]], dim=1)  # each feature's own token
    torch.testing.assert_close(out, EagleHead.forward(head, features, own)[0])


def test_what_is_shipped_was_trained_alike_and_the_net_without_features_lies_between():
    """One budget for all; EAGLE's first guess is worse than a one-layer net's, EAGLE-3's better."""
    target, _, windows = unseen()
    paths = (eagle.EAGLE, eagle.EAGLE3, transformer.DISTILLED)
    facts = [checkpoint.read_header(path)["facts"] for path in paths]
    assert len({known["steps"] for known in facts}) == 1
    assert facts[0]["batch_size"] == facts[1]["batch_size"] == 16  # on_windows' own, as the net's
    net, fast = transformer.load().model, FusedLanguageModel(target)
    (alpha, error), *_ = module_of(MAKE_DRAFTS).alphas_of_net(net, fast, windows[:128])
    assert facts[0]["alpha"][0][0] + 4 * error < alpha < facts[1]["alpha"][0][0]
    rows = facts[0]["ablation"]["alpha"]
    for name in ("without the feature", "the place instead of the feature"):
        flat = [alpha for alpha, _ in rows[name]]
        assert max(flat) - min(flat) < 0.005, "no feature, nothing that goes stale"
    gone, place, whole = (
        rows[x][0][0] for x in ("without the feature", "the place instead of the feature", "EAGLE")
    )
    assert gone + 0.05 < place < whole - 0.02


def test_the_accepted_guesses_are_as_many_as_alpha_says():
    """Σ min(p, q) of a decoder's own rounds, against the teacher-forced head; and their count."""
    target, tokenizer, _ = unseen()
    head, fast = eagle.load(eagle.EAGLE3), FusedLanguageModel(target)
    prompt = tokenizer.encode("ROMEO:")
    made = tree_generate(fast, EagleDraft(fast, head, 3), prompt, 250, rng=RandomSource(3))
    expected = variance = 0.0
    for r in made.rounds:
        overlap = torch.minimum(r.target_probs[:-1], r.draft_probs).sum(-1)[: r.n_examined]
        expected += float(overlap.sum())
        variance += float((overlap * (1 - overlap)).sum())
    accepted = sum(r.n_accepted for r in made.rounds)
    assert abs(accepted - expected) < 4 * variance**0.5
    assert made.alpha > 0.65 and made.tokens_per_pass > 2


@layered
@pytest.mark.parametrize("norms", [False, True])
def test_a_file_comes_back(tmp_path, layers, norms):
    target, tokenizer = deep_toy()[0].float(), checkpoint.load()[1]
    head = EagleHead(target.config, layers, norms)
    eagle.save(tmp_path / "head", head, tokenizer, {"steps": 3})
    back = eagle.load(tmp_path / "head")
    assert back.layers == layers and back.config == target.config
    for name, t in head.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], t, rtol=0, atol=1e-3)
    x = windows_of(target, 1)
    outs = []
    for each in (head, back):
        features, _ = each.share(target).features_of(target, x)
        outs.append(each.logits(each(features[:, :-1], x[:, 1:])[0]))
    torch.testing.assert_close(*outs, rtol=0, atol=1e-2)


def test_a_file_that_holds_no_head_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="py eagle eagle3"):
        eagle.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no head of EAGLE's"):
        eagle.load(checkpoint.TARGET)


def test_noise_is_uniform_around_the_true_features_and_each_places_own():
    (target, _), seen = deep_toy(), []
    head = random_head(target)
    x = torch.randint(3, (40, 16), generator=generator_of(3))
    unrolled = head.unrolled
    head.unrolled = lambda features, *more: seen.append(features) or unrolled(features, *more)
    for noise in (0.0, 0.25):
        eagle_loss(head, target, x, generator_of(1), noise=noise)
    moved = (seen[1] - seen[0]) / 0.25  # 2,400 numbers, from -1 to 1
    assert moved.abs().max() <= 1 and moved.unique().numel() > 0.99 * moved.numel()
    assert abs(moved.mean()) < 0.06, "five standard errors"
    assert 0.54 < moved.std() < 0.61, "0.577"
    for dim in range(3):  # neither texts, places nor channels are moved alike
        assert moved.mean(dim).std() < 0.4
