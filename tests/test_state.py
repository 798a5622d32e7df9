"""A target with a state: one pass is the recurrence, and each way back is a fresh prefill."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from conftest import drained
from texts import off

from nanogpt import checkpoint
from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.adaptive import adaptive
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, PROPOSERS, proposer
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import GUESSES, check_states, tensors
from nanogpt.proof.decoders import constrained_decoder, same_decoder, server_decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import random_draft, toy_states, toy_target
from nanogpt.same import SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate, verify_batch
from nanogpt.serving.constraints import Constraints
from nanogpt.serving.paged import on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.targets import state
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.targets.state import WAYS, Inputs, Pass, StateCache, StateConfig, replayed
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import ReadText, Tree, keep_path, tree_mask

every_way = pytest.mark.parametrize("way", WAYS)
TOY = toy_states(7, 16)
GREEDY = {"sampling": Sampling(0)}


def equal(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-9)


def same_cache(cache, other):
    """Whether two caches hold the same entries and states, to 1e-9."""
    pairs = zip(tensors(cache), tensors(other), strict=True)
    return cache_length(cache) == cache_length(other) and all(equal(a, b) for a, b in pairs)


def random_pass(parents, hs=4, B=2, H=3, seed=0):
    """Queries (B, H, T, hs), and a pass over a tree of nodes with these parents."""
    T, rng = len(parents), torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(B, H, *shape, dtype=torch.float64, generator=rng)

    path = tree_mask(parents, 0)[1:, 1:]
    log_g = torch.nn.functional.logsigmoid(drawn(T))
    return drawn(T, hs), Pass(drawn(hs, hs), drawn(T, hs), drawn(T, hs), log_g, path)


def one_after_another(S, k, v, log_g, rows):
    """The state after these tokens, by the recurrence itself."""
    for t in rows:
        S = log_g[..., t, None, None].exp() * S + k[..., t, :, None] * v[..., t, None, :]
    return S


def up(parents, node):
    """The node's path, from the first token down."""
    return [] if node < 0 else [*up(parents, parents[node]), node]


TREES = [[-1, 0, 1, 2, 3], [-1, -1, 0, 0, 1, 4], [-1, 0, 0, 2, 1, -1], [-1]]


# ---- One pass, and the recurrence


@pytest.mark.parametrize("parents", TREES, ids=str)
def test_a_pass_reads_and_leaves_what_the_recurrence_does_along_each_path(parents):
    q, done = random_pass(parents)
    read, states = done.read(q), done.states()
    assert torch.equal(states[:, :, 0], done.S)
    for node in range(len(parents)):
        S = one_after_another(*done[:4], up(parents, node))
        assert equal(states[:, :, node + 1], S)
        assert equal(read[:, :, node], (q[:, :, node, None] @ S)[:, :, 0])


def test_replayed_is_the_recurrence_over_all_tokens_or_those_taken():
    _, done = random_pass([-1, 0, 1, 2])
    S, k, v, log_g, _ = done
    assert equal(replayed(S, k, v, log_g), one_after_another(S, k, v, log_g, range(4)))
    taken = torch.tensor([[[1.0, 0, 1, 0]]], dtype=torch.float64)
    assert equal(replayed(S, k, v, log_g, taken), one_after_another(S, k, v, log_g, [0, 2]))
    assert equal(replayed(S, k[:, :, :0], v[:, :, :0], log_g[..., :0]), S)


@pytest.mark.two_ways
@every_way
def test_in_chunks_it_is_the_model_in_one_pass(way):
    model, idx = TOY.remembering(way), torch.randint(7, (2, 12), generator=torch.manual_seed(1))
    whole, _, cache = TOY(idx)
    past, parts = None, []
    for a, b in itertools.pairwise((0, 5, 6, 12)):
        logits, _, past = model(idx[:, a:b], past_kvs=past)
        parts.append(logits)
    assert equal(torch.cat(parts, 1), whole) and same_cache(past, cache)


def test_nothing_that_comes_later_changes_a_token():
    idx = torch.randint(7, (1, 10), generator=torch.manual_seed(2))
    other = idx.clone()
    other[0, 6:] = (other[0, 6:] + 1) % 7
    assert equal(TOY(idx)[0][:, :6], TOY(other)[0][:, :6])


# ---- Three ways back


@pytest.mark.two_ways
@every_way
@pytest.mark.parametrize("kept", range(5))
def test_after_a_chain_the_cache_is_that_of_a_fresh_prefill(way, kept):
    model = TOY.remembering(way)
    cache = prefill(model, [1, 2, 3])
    before = [t.clone() for t in tensors(cache)]
    _, _, new = model(torch.tensor([[4, 5, 6, 0]]), past_kvs=cache)
    back = trim_kv_cache(new, kept, 3)
    held = 3 if way == "snapshot" and kept < 4 else 3 + kept
    assert cache_length(back) == held, "a snapshot goes back to all or nothing"
    assert sum(back.due) == 3 + kept - held
    assert same_cache(back, prefill(TOY, [1, 2, 3, 4, 5, 6, 0][:held]))
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), before, strict=True))
    assert cache_length(new) == 7, "going back makes another cache"


@pytest.mark.two_ways
@every_way
@pytest.mark.parametrize("path", [[], [0], [1], [0, 2], [1, 4], [1, 4, 5]], ids=str)
def test_after_a_tree_the_cache_is_that_of_a_fresh_prefill_of_the_path(way, path):
    model, tokens = TOY.remembering(way), [5, 6, 0, 1, 2, 3]
    mask = tree_mask([-1, -1, 0, 0, 1, 4], 3)
    idx = torch.tensor([[4, *tokens]])
    _, _, new = model(idx, None, mask.sum(-1) - 1, prefill(model, [1, 2, 3]), mask)
    back = keep_path(new, path, 3)
    text = [1, 2, 3, 4, *(tokens[node] for node in path)]
    assert same_cache(back, prefill(TOY, text[: cache_length(back)]))
    assert cache_length(back) == (3 if way == "snapshot" else len(text))


@every_way
def test_deeper_than_the_last_pass_is_refused_in_one_line(way):
    model = TOY.remembering(way)
    _, _, new = model(torch.tensor([[4, 5]]), past_kvs=prefill(model, [1, 2, 3]))
    for slots in (range(2), [0, 1, 3], [1, 2, 3]):
        with pytest.raises(ValueError, match="a state has no slots: after a pass over 2") as said:
            new.gathered(slots)
        assert "\n" not in str(said.value)
    with pytest.raises(ValueError, match="goes back to 3 or more, in their order, not to 5"):
        new.gathered([0, 1, 2, 4, 3])
    again = new.kept(4 if way != "snapshot" else 5)
    with pytest.raises(ValueError, match="read the text anew"):
        again.kept(2)


@every_way
def test_it_goes_back_twice_within_the_same_pass(way):
    model = TOY.remembering(way)
    _, _, new = model(torch.tensor([[4, 5, 6]]), past_kvs=prefill(model, [1, 2, 3]))
    back = new.kept(5).kept(4) if way != "snapshot" else new.kept(6).kept(3)
    assert same_cache(back, prefill(TOY, [1, 2, 3, 4][: cache_length(back)]))


@pytest.mark.parametrize("way", ["states", "inputs"])
def test_it_goes_back_along_a_path_that_was_kept(way):
    model, mask = TOY.remembering(way), tree_mask([-1, -1, 0, 0, 1, 4], 3)
    idx = torch.tensor([[4, 5, 6, 0, 1, 2, 3]])
    _, _, new = model(idx, None, mask.sum(-1) - 1, prefill(model, [1, 2, 3]), mask)
    back = keep_path(new, [1, 4, 5], 3).kept(6)
    assert same_cache(back, prefill(TOY, [1, 2, 3, 4, 6, 2]))


def test_a_snapshot_is_taken_after_the_tokens_that_are_read_again():
    model = TOY.remembering("snapshot")
    _, _, new = model(torch.tensor([[4, 5, 6]]), past_kvs=prefill(model, [1, 2, 3]))
    back = new.kept(5)
    assert back.length == 3 and back.due == (2,)
    _, _, new = model(torch.tensor([[4, 5, 0, 6]]), past_kvs=back)
    back = new.kept(6)
    assert back.length == 5 and back.due == (1,), "what was due is in it, and only that"
    assert same_cache(back, prefill(TOY, [1, 2, 3, 4, 5]))


def test_remembering_leaves_the_model_itself_as_it_was():
    assert TOY.remembering("states").way is WAYS["states"] and TOY.way is WAYS["inputs"]


@pytest.mark.two_ways
@every_way
@pytest.mark.parametrize("more", [[2, 4], None], ids=str)
def test_a_batch_of_uneven_texts_leaves_each_text_its_own_cache(way, more):
    model, texts = TOY.remembering(way), [[1, 2], [3, 4, 5, 6]]
    read = [[5, 6, 0, 0], [1, 2, 3, 4]]  # of the first text, two are padding
    joined = StateCache.joined([prefill(model, t) for t in texts], more)
    mask = torch.zeros(2, 4, 8, dtype=torch.bool)
    for b, text in enumerate(texts):
        P = len(text)
        mask[b, :, : P + 4] = tree_mask([-1, 0, 1], P)
    pos = torch.tensor([[2, 3, 4, 5], [4, 5, 6, 7]])
    logits, _, new = model(torch.tensor(read), None, pos, joined, mask)
    for b, (own, cache) in enumerate(zip((2, 4), new.rows([4, 8]), strict=True)):
        whole = [*texts[b], *read[b][:own]]
        assert equal(logits[b, :own], TOY(torch.tensor([whole]))[0][0, -own:])
        back = cache.kept(len(whole))
        assert same_cache(back, prefill(TOY, whole[: cache_length(back)]))
        if more:
            assert cache_length(back) == len(whole), "all of its own tokens were kept"
            assert same_cache(cache, back)


def test_check_states_meets_a_round_without_a_guess_after_one_with_some():
    assert 0 in GUESSES and any(GUESSES[i] and not n for i, n in enumerate(GUESSES[1:])), (
        "a round without a guess follows one with some"
    )


@pytest.mark.two_ways
@pytest.mark.parametrize("rounds", [200, pytest.param(1000, marks=pytest.mark.wide)])
def test_random_rounds_leave_the_cache_of_a_fresh_prefill(rounds):
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        return int(torch.randint(n, (1,), generator=generator))

    model, deep = None, toy_states(7, 48, seed=1)
    text, cache, cases = [0], None, set()
    for turn in range(rounds):
        if len(text) > 40 or cache is None:
            text, cache, model = [0], None, deep.remembering([*WAYS][turn % 3])
        unread, n, branching = text[cache_length(cache) : -1], draw(6), draw(2)
        parents = [draw(i + 1) - 1 if branching else i - 1 for i in range(n)]
        guesses, path = [draw(7) for _ in range(n)], []
        while below := [i for i in range(n) if parents[i] == (path or [-1])[-1]]:
            if draw(3) == 0:
                break
            path.append(below[draw(len(below))])
        P, u = cache_length(cache), len(unread)
        mask = tree_mask([*range(-1, u - 1), *(u + p for p in parents)], P)
        idx = torch.tensor([[*unread, text[-1], *guesses]])
        logits, _, new = model(idx, None, mask.sum(-1) - 1, cache, mask)
        cases.add((n > 0, len(path) == n, bool(path), u > 0))
        for node in range(n):
            own = text + [guesses[i] for i in up(parents, node)]
            if node % 3 == 0:
                assert equal(logits[0, u + 1 + node], deep(torch.tensor([own]))[0][0, -1])
        cache = keep_path(new, path, len(text) - 1)
        text += [*(guesses[i] for i in path), draw(7)]
        if P := cache_length(cache):
            assert same_cache(cache, prefill(deep, text[:P])), f"round {turn}"
    assert len(cases) == 8, "no guess; none, some or all kept; each with tokens unread and without"


# ---- The text


PLAIN = toy_states(2, 4)
BY_POLICY = replace(CHAIN, draft=adaptive(lambda rounds: (len(rounds) % 3, None)))
LOOPS = {
    "chain": (speculative_generate, random_draft(2), {"K": 2}),
    "chain, by a policy": (speculative_generate, random_draft(2), {"K": 2, "steps": BY_POLICY}),
    **{
        f"tree {how}": (tree_generate, Grown(random_draft(2), [2, 1], how), {})
        for how in ("with", "without", "fixed")
    },
}


@pytest.mark.parametrize(
    "loop, way",
    [  # each kind of siblings by one way, each way by one kind; the other trees are wide
        pytest.param(
            *(loop, way), marks=pytest.mark.wide if loop.startswith("tree") and (i + j) % 3 else ()
        )
        for i, loop in enumerate(LOOPS)
        for j, way in enumerate(WAYS)
    ],
)
def test_by_enumeration_the_distribution_is_the_targets_own(way, loop):
    generate, draft, how = LOOPS[loop]
    assert off(generate, PLAIN.remembering(way), draft, 4, own=PLAIN, **how) <= 1e-12


@pytest.fixture(scope="module", name="shipped")
def fixture_shipped():
    return shipped()


@functools.cache
def shipped():
    """The shipped target in float64, three prompts, its own greedy texts, tokens to count."""
    target, (_, tokenizer) = state.load().double(), checkpoint.load()
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    prompts = prompts_of(held_out, 3)
    own = [autoregressive_generate(target, p, 40, **GREEDY).tokens for p in prompts]
    return target, prompts, own, tokens


def test_it_is_shipped_small_and_trained(shipped):
    target, *_ = shipped
    facts = checkpoint.read_header(state.SHIPPED)["facts"]
    assert target.config.recurrent == (2, 4) and target.config.n_layer == 4
    assert not target.training
    assert 1.4 < facts["state_val_loss"] < 2.3 and facts["steps"] == 800
    assert state.SHIPPED.stat().st_size < 1e6


TREE_NAMES = ["tree", "jacobi", "lookahead"]  # those of PROPOSERS that read tokens only


@functools.cache
def counted(name):
    """A draft that reads tokens and nothing of the target: one for all ways and loops."""
    return DRAFTS[name](shipped()[3], 65)


@functools.cache
def made_by(name, way, loop):
    """The greedy texts by this draft: asked by the case itself, and by others of the same draft."""
    target, prompts = shipped()[0], shipped()[1][:2]
    model, n, each = target.remembering(way), 14, {"samplings": Sampling(0)}
    K = BEST_PROPOSED[name] if name in PROPOSERS else BEST[name]
    draft = counted(name) if name in DRAFTS else proposer(name, model, ngram.load(), K)
    if loop == "batch":
        return batch_generate(model, draft, prompts, n, K, **each)
    if loop == "server":
        return server_decoder(model, draft, prompts, n, K, **each)
    if name in DRAFTS:
        return [speculative_generate(model, draft, p, n, K, **GREEDY) for p in prompts]
    return [tree_generate(model, draft, p, n, **GREEDY) for p in prompts]


@pytest.mark.pairs
@pytest.mark.parametrize("loop", ["alone", "batch", "server"])
@every_way
@pytest.mark.parametrize("name", [*DRAFTS, *TREE_NAMES])
def test_every_draft_that_reads_tokens_guesses_for_it_in_every_loop(shipped, name, way, loop):
    """Whatever is remembered, as many guesses are kept, and in a batch as many as alone."""
    made = made_by(name, way, loop)
    assert [g.tokens for g in made] == [text[:14] for text in shipped[2][:2]]
    first = made_by(name, "states", "server" if loop == "server" else "alone")
    assert [g.tokens_per_pass for g in made] == [g.tokens_per_pass for g in first]


@every_way
def test_a_server_that_throws_texts_out_reads_their_states_anew(shipped, way):
    target, prompts, own, tokens = shipped
    draft = DRAFTS["counts"](tokens, 65)
    limits = Limits(max_num_seqs=3, num_blocks=130)
    server = Server(target.remembering(way), draft, 4, limits, seed=0)
    thrown_out, preempt = [], server.preempt
    server.preempt = lambda: thrown_out.append(preempt())
    numbers = [server.submit(p, 40, Sampling(0)) for p in prompts]
    answers = drained(server)
    assert [answers[n].tokens for n in numbers] == own
    assert thrown_out


@pytest.mark.two_ways
@every_way
def test_texts_of_any_length_stand_side_by_side_and_write_what_they_write_alone(way):
    model, prompts = TOY.remembering(way), [[0, 1, 2], [3], [4, 5, 6, 0, 1, 2, 3, 4, 5], [1, 1]]
    lengths, draft = [20, 30, 5, 13], random_draft(7, 1)
    alone = [
        speculative_generate(TOY, draft, p, n, 3, Sampling(), RandomSource(i))
        for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
    ]
    rngs = [RandomSource(i) for i in range(4)]
    made = batch_generate(model, draft, prompts, lengths, 3, Sampling(), rngs)
    assert [m.tokens for m in made] == [a.tokens for a in alone]
    assert [m.tokens_per_pass for m in made] == [a.tokens_per_pass for a in alone]


@functools.cache
def by_plain_decoding():
    return same_decoder(TOY, None, [0, 1], 60, rng=SameDice(5, 2)).tokens


@every_way
def test_by_the_same_dice_it_is_plain_decodings_text(way):
    model, decode = TOY.remembering(way), same_decoder
    for draft in (random_draft(7), Grown(random_draft(7), [2, 1], "fixed")):
        made = decode(model, draft, [0, 1], 60, rng=SameDice(5, 2))
        assert made.tokens == by_plain_decoding()


@every_way
def test_under_constraints_the_distribution_is_plain_decodings_under_them(way):
    decode, rules = constrained_decoder, Constraints(presence=0.7, bias={1: 0.5})
    found, exact = (
        enumerate_outcomes(
            lambda rng, m=model, d=draft: tuple(
                decode(m, d, [0, 1], 4, 2, rng=rng, constraints=rules).tokens
            )
        )
        for model, draft in ((PLAIN.remembering(way), random_draft(2)), (PLAIN, None))
    )
    assert total_variation(found, exact) <= 1e-12


# ---- What does not work says so


OF_FEATURES = sorted(set(PROPOSERS) - set(TREE_NAMES) - {"exit", "mtp"})  # mtp has its own target


def test_what_needs_keys_and_values_of_every_layer_is_refused():
    for refused in (lambda: FusedLanguageModel(TOY), lambda: on_pool(TOY, 4)):
        with pytest.raises(ValueError, match="a layer with a state has no keys and values"):
            refused()


@pytest.mark.parametrize("name", OF_FEATURES)
def test_a_draft_trained_on_another_targets_features_guesses_badly_and_changes_nothing(name):
    target, prompts = state.load(), [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    draft = proposer(name, target, ngram.load(), BEST_PROPOSED[name])
    own = [autoregressive_generate(target, p, 8, **GREEDY).tokens for p in prompts]
    assert [tree_generate(target, draft, p, 8, **GREEDY).tokens for p in prompts] == own
    made = batch_generate(target, draft, prompts, 8, 4, Sampling(0))
    assert [g.tokens for g in made] == own


def test_an_early_exit_is_refused(shipped):
    target, prompts, *_ = shipped
    draft = proposer("exit", target, ngram.load(), 4)
    with pytest.raises(ValueError, match="an early exit leaves its states after its own guesses"):
        tree_generate(target, draft, prompts[0], 10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TOY.remembering("memory"), r"way is 'memory'; it is one of \['states'"),
        (lambda: StateConfig(7, n_layer=2, recurrent=(3,)), r"layer 3; there are layers 1 … 2"),
        (
            lambda: TOY(torch.tensor([[1]]), past_kvs=prefill(toy_target(7, 16), [1])),
            "past_kvs are a tuple, another model's",
        ),
        (lambda: StateCache.joined([None, None]), "no text has a cache"),
        (
            lambda: TOY(
                torch.tensor([[1]]),
                None,
                torch.tensor([2]),
                prefill(TOY, [1, 2]),
                torch.tensor([[True, False, True]]),
            ),
            "the mask hides a cached token",
        ),
        (
            lambda: TOY(
                torch.tensor([[1], [1]]),
                past_kvs=StateCache.joined([prefill(TOY, [1, 2]), prefill(TOY, [1])]),
            ),
            "texts of different lengths need pos and attn_mask",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---- What it costs


def test_states_grow_with_the_guesses_inputs_slowly_and_a_snapshot_not_at_all():
    def held(way, K):
        model = TOY.remembering(way)
        _, _, new = model(torch.zeros(1, K + 1, dtype=torch.int64), past_kvs=prefill(TOY, [1]))
        return new.held

    hs, H, size = 2, 2, 8  # of the toy, in float64
    one = H * hs * hs * size
    for K in (1, 4, 8):
        assert held("states", K) == (K + 2) * one
        assert held("snapshot", K) == 2 * one
        assert held("inputs", K) == one + (K + 1) * H * (2 * hs + 1) * size


# ---- The bugs


NAMED = [bug for bug in BUGS if bug.decoder == "state"]


def test_the_stale_state_needs_a_round_without_a_guess_to_be_seen(monkeypatch):
    [stale] = [bug for bug in NAMED if "without guesses" in bug.title]
    with pytest.raises(AssertionError, match=r"^states, "):
        check_states(mutant(stale))
    monkeypatch.setattr("nanogpt.proof.checks.GUESSES", (3, 2, 3, 2, 3, 2, 3))
    check_states(mutant(stale))  # always a guess: nothing is seen


def test_a_state_that_is_never_taken_back_costs_alpha_and_text():
    class Never(Inputs):
        def after(self, rows):
            return super().after(range(self.what[1].shape[2]))

    wrong = TOY.remembering("inputs")
    wrong.way = Never
    prompt, n = [0, 1, 2], 100
    right = autoregressive_generate(TOY, prompt, n, **GREEDY).tokens
    assert speculative_generate(wrong, random_draft(7), prompt, n, 3, **GREEDY).tokens != right


@every_way
def test_a_first_pass_over_texts_of_two_lengths_leaves_each_its_own_state(way):
    """The shorter one's row is filled up, and no state may have read that."""
    target, prompts, said = TOY.remembering(way), [[0, 1], [3, 2, 4, 1, 5]], 6
    texts = [ReadText(target, prompt, 5) for prompt in prompts]
    verified = verify_batch(target, texts, [Tree.empty(7)] * 2, [Sampling()] * 2)
    for prompt, (_, _, cache) in zip(prompts, verified, strict=True):
        whole = target.states(torch.tensor([[*prompt, said]]))[0][-1][:, -1]
        cache = trim_kv_cache(cache, len(prompt), 0)
        rest = torch.tensor([[*prompt[cache_length(cache) :], said]])
        mine = target.states(rest, past_kvs=cache)[0][-1][:, -1]
        torch.testing.assert_close(mine, whole)


@pytest.mark.parametrize("layer", [0, -1, -2, 3])
def test_a_layer_that_is_not_there_can_have_no_state(layer):
    with pytest.raises(ValueError, match=f"recurrent layer {layer}; there are layers 1 … 2"):
        StateConfig(7, n_layer=2, recurrent=(1, layer))


def test_texts_that_share_a_pass_keep_each_its_own_debt():
    """Of a snapshot: one text owes two tokens, one owes one and one none; then each goes on."""
    model, begun, owed = TOY.remembering("snapshot"), [], (2, 1, 0)
    for b, due in enumerate(owed):
        _, _, new = model(torch.tensor([[4, b, 6]]), past_kvs=prefill(model, [1, 2, 3][: 3 - b]))
        begun.append(new.kept(3 - b + (due or 3)))
    texts = [[1, 2, 3, 4, 0], [1, 2, 4], [1, 4, 2, 6]]
    assert [cache.due for cache in begun] == [(2,), (1,), (0,)]
    joined = StateCache.joined(begun, [4, 4, 4])
    assert joined.due == owed, "what each is to read again"
    mask, rest, pos = torch.zeros(3, 4, joined.length + 4, dtype=torch.bool), [], []
    for b, (text, cache) in enumerate(zip(texts, begun, strict=True)):
        P = cache.length
        mask[b, :, : P + 4] = tree_mask([-1, 0, 1], P)
        rest.append([*text[P:], 5, 0, 1, 2][:4])
        pos.append(range(P, P + 4))
    read, pos = torch.tensor(rest), torch.tensor(pos)
    one = StateCache.joined(begun, [1, 1, 1])
    _, _, part = model(read[:, :1], None, pos[:, :1], one, mask[:, :1, :-3])
    each = part.rows([cache.length + 1 for cache in begun])
    assert [cache.due for cache in each] == [(1,), (0,), (0,)], "one of two was read"
    _, _, new = model(read, None, pos, joined, mask)
    each = new.rows([cache.length + 4 for cache in begun])
    for text, cache, before in zip(texts, each, begun, strict=True):
        back = cache.kept(before.length + 3)  # one of the four is rejected
        assert back.length == len(text), "what was owed is read, and no more of it is owed"
        assert same_cache(back, prefill(TOY, text))
