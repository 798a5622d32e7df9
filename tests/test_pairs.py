"""A draft on byte pairs: its tokenizer, what it says of letters, the same text in every loop."""

import dataclasses
import functools
import itertools
import random

import numpy as np
import pytest
import torch
from conftest import drained
from texts import off

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, load_corpus, read_stand_in, train_val_split
from nanogpt.drafts import pairs
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.pairs import (
    PairDraft,
    PairTokenizer,
    SharedDraft,
    Spelling,
    TextDraft,
    learn_merges,
    words,
)
from nanogpt.drafts.protocol import Chain
from nanogpt.engines.export import export, tokenizer_json
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.clock import prompts_of
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import check_spelling
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import from_memory, toy_pairs, toy_target
from nanogpt.same import SAME, SAME_TREE, Favourites, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.paged import on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import ReadText

TOY = toy_pairs(3)
DRAFTS = {
    "pairs": lambda: toy_pairs(3),
    "pairs, passes where likely": lambda: toy_pairs(3, 0.5),
    "pairs, one pass a token": lambda: toy_pairs(3, 1.0),
    "shared": lambda: SharedDraft(TOY.net, TOY.tokenizer),
    "text": lambda: TextDraft(TOY.net, TOY.tokenizer),
}
every_draft = pytest.mark.parametrize("make", DRAFTS.values(), ids=DRAFTS)


# ---- The tokenizer


def test_words_take_what_stands_before_them_along_and_lose_nothing():
    assert words("low, lower\n\nLowest!") == ["low", ",", " lower", "\n", "\nLowest", "!"]
    text = load_corpus().text[:20_000]
    assert "".join(words(text)) == text


def test_the_commonest_pair_is_merged_first_and_a_tie_goes_to_the_last_in_the_alphabet():
    assert learn_merges("low low lower newest newest newest", 3) == [
        ("w", "e"),  # 4 times, and "e", "s" 3 times
        ("we", "s"),
        ("wes", "t"),
    ]
    assert learn_merges("ab ab cd cd", 1) == [("c", "d")], "twice, as are ab, and c after a blank"


def test_fewer_merges_where_no_pair_is_left():
    assert learn_merges("ab ab", 9) == [("a", "b"), (" ", "ab")]
    assert learn_merges("a", 9) == learn_merges("", 9) == []


def plainly_merged(word, merges):
    """The word's tokens, merge after merge in the order in which they were learnt."""
    parts = list(word)
    for left, right in merges:
        i = 0
        while i < len(parts) - 1:
            if (parts[i], parts[i + 1]) == (left, right):
                parts[i : i + 2] = [left + right]
            i += 1
    return parts


def test_a_text_is_split_as_the_merges_say_in_their_order_and_comes_back():
    text = load_corpus().text[:30_000]
    merges = learn_merges(text, 60)
    tokenizer = PairTokenizer(CharTokenizer.from_text(text).chars, merges)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text and len(tokens) < 0.75 * len(text)
    for word in sorted(set(words(text)))[:800]:
        assert [tokenizer.tokens[t] for t in tokenizer.encode(word)] == plainly_merged(word, merges)


def test_the_same_text_gives_the_same_merges_and_every_part_is_a_token():
    text = load_corpus().text[:30_000]
    merges = learn_merges(text, 40)
    assert merges == learn_merges(text, 40) and len(merges) == 40
    tokenizer = PairTokenizer(CharTokenizer.from_text(text).chars, merges)
    assert tokenizer.vocab_size == len(set(tokenizer.tokens)) <= tokenizer.letters.vocab_size + 40


def test_a_token_that_two_merges_make_is_one_token():
    tokenizer = PairTokenizer("abc", [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")])
    assert tokenizer.tokens == ["a", "b", "c", "bc", "ab", "abc"]
    assert tokenizer.encode("abc") == [5]


BAD = [
    (lambda: TOY.tokenizer.encode("abz"), "character 'z' at index 2"),
    (lambda: PairTokenizer("ab", [("a", "c")]), "'c', which is no token yet"),
    (lambda: PairTokenizer("aa", []), "occurs twice"),
    (lambda: PairDraft(toy_target(3, 8), TOY.tokenizer), "3 tokens and its tokenizer 6"),
    (lambda: PairDraft(TOY.net, TOY.tokenizer, 1.5), "least is 1.5"),
    (lambda: speculative_generate(toy_target(7, 8), toy_pairs(3), [0], 3), "of 3 tokens and the"),
]


@pytest.mark.parametrize("make, says", BAD, ids=[says for _, says in BAD])
def test_what_is_wrong_is_said_in_a_line(make, says):
    with pytest.raises(ValueError, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)


# ---- What tokens say of letters


def summed(q, tokens, chars, begun):
    """Spelling.after by its definition, q in the order of the tokens."""
    letters = [
        sum(p for p, token in zip(q, tokens, strict=True) if token.startswith(begun + char))
        for char in chars
    ]
    return sum(p for p, token in zip(q, tokens, strict=True) if token == begun), letters


def test_what_follows_is_the_sum_over_the_tokens_that_begin_so():
    text = load_corpus().text[:30_000]
    tokenizer = PairTokenizer(CharTokenizer.from_text(text).chars, learn_merges(text, 60))
    tokens, chars = tokenizer.tokens, tokenizer.letters.chars
    spelling = Spelling(tokens, chars)
    q = np.random.default_rng(0).dirichlet(np.full(len(tokens), 0.3))
    for begun in ["", *tokens, *(token[:-1] for token in tokens), "zq", " thez"]:
        ends, letters = spelling.after(q[spelling.order], begun)
        expected, sums = summed(q, tokens, chars, begun)
        assert np.isclose(ends, expected, atol=1e-15) and np.allclose(letters, sums, atol=1e-15)


def by_definition(draft, context):
    """PairDraft.get_probs: all places where the next letter's token may begin, each pass anew."""
    tokenizer, block = draft.tokenizer, draft.net.config.block_size
    chars = tokenizer.letters.chars
    tokens = tokenizer.encode("".join(chars[x] for x in context))
    half = block // 2
    while len(tokens) > block:
        tokens = tokens[half:]

    def q_after(n):
        logits = draft.net(torch.tensor([tokens[:n]]))[0][0, -1]
        return torch.softmax(logits, -1, dtype=torch.float64).numpy()

    total, longest = np.zeros(len(chars)), max(map(len, tokenizer.tokens))
    for n in range(1, len(tokens) + 1):
        begun = tokenizer.decode(tokens[n:])
        if len(begun) < longest:
            _, letters = summed(q_after(n), tokenizer.tokens, chars, begun)
            weight = np.prod([q_after(i)[tokens[i]] for i in range(n)[1:]])
            total += weight * np.array(letters)
    return total / total.sum()


@pytest.mark.two_ways
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(1, 4))]
)
def test_q_is_the_sum_over_every_place_where_the_token_may_begin(seed):
    draw = random.Random(seed)
    draft = toy_pairs(3)
    for _ in range(12):
        context = [draw.randrange(3) for _ in range(draw.randrange(1, 24))]
        right = by_definition(draft, context)
        assert np.allclose(draft.fresh().get_probs(context).numpy(), right, atol=1e-9)
        assert np.allclose(draft.get_probs(context).numpy(), right, atol=1e-9), "and with a cache"


def test_a_chain_begins_with_what_get_probs_says_and_claims_what_it_drew_from():
    for least in (0, 0.5, 1):
        draft = toy_pairs(3, least)
        for seed in range(20):
            letters, q = draft.draw([0, 1, seed % 3], 5, Sampling(), RandomSource(seed))
            assert torch.allclose(q[0], draft.fresh().get_probs([0, 1, seed % 3]), atol=1e-9)
            assert q.shape == (5, 3) and torch.allclose(q.sum(-1), torch.ones(5).double())
            assert all(q[i, x] > 0 for i, x in enumerate(letters))
    assert draft.draw([0, 1], 0, Sampling(), RandomSource(0))[1].shape == (0, 3)


class Counted:
    """A model that counts its passes, and fails at the one that is to fail."""

    def __init__(self, net, fails=None):
        self.net, self.passes, self.fails = net, 0, fails
        self.config, self.device = net.config, net.device

    def __call__(self, *given, **named):
        self.passes += 1
        if self.passes == self.fails:
            raise RuntimeError("out of memory")
        return self.net(*given, **named)


def test_at_one_a_pass_is_made_only_where_no_token_goes_on():
    """And at 0, wherever a token may have ended, that is after every letter: each is one itself."""
    passes = {}
    for least in (0, 1):
        draft = toy_pairs(3, least)
        draft.net = Counted(draft.net)
        for seed in range(20):
            draft.fresh().draw([0, 1], 6, Sampling(), RandomSource(seed))
        passes[least] = draft.net.passes
    assert passes[0] == 20 * 6 and passes[1] < 0.75 * passes[0]


def test_a_pass_that_fails_leaves_the_books_right():
    draft = toy_pairs(3)
    draft.net = Counted(draft.net, fails=2)
    before = draft.get_probs([0, 1, 2])
    with pytest.raises(RuntimeError):
        draft.get_probs([0, 1, 2, 0, 0])
    assert torch.equal(draft.get_probs([0, 1, 2]), before)
    right = toy_pairs(3).get_probs([0, 1, 2, 0, 0])
    assert torch.allclose(draft.get_probs([0, 1, 2, 0, 0]), right, atol=1e-9)


def test_the_spelling_check_sees_a_cache_that_keeps_tokens_by_their_number():
    """Letters that join the last token split it anew, and as many tokens are others."""
    bug = dataclasses.replace(
        next(bug for bug in BUGS if bug.number == 74),
        old="sum(takewhile(bool, map(operator.eq, self.tokens, tokens)))",
        new="min(len(self.tokens), len(tokens))",
    )
    with pytest.raises(AssertionError, match="reads it anew"):
        check_spelling(mutant(bug))


# ---- Exact, and the same in every loop


@pytest.mark.pairs
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5), Sampling(top_k=2)], ids=str)
@pytest.mark.parametrize("K", [1, 2, 3])
@every_draft
def test_the_joint_distribution_is_the_targets_own_over_a_restart(make, K, sampling):
    target, prompt = from_memory(toy_target(3, 4, seed=1)), (0, 1, 2)
    n = 4 if sampling == Sampling() and K == 3 else 3
    assert off(speculative_generate, target, make(), n, sampling, prompt, K=K) < 1e-12


# A tree asks for q alone, and `least` is a matter of chains: those two say what "pairs" says. How
# siblings are drawn is no matter of the draft's.
TREES = [("pairs", "fixed"), ("shared", "fixed"), ("text", "with"), ("text", "without")]
TREES += [
    pytest.param(name, siblings, marks=pytest.mark.wide)
    for name in DRAFTS
    for siblings in ("with", "without", "fixed")
    if (name, siblings) not in TREES
]


@pytest.mark.parametrize(("name", "siblings"), TREES)
def test_trees_grown_from_it_are_exact(name, siblings):
    target = from_memory(toy_target(3, 8, seed=1))
    assert off(tree_generate, target, Grown(DRAFTS[name](), [2, 1], siblings), 3) < 1e-12


PROMPTS = [[0, 1], [2], [1, 1, 0, 2, 0, 1, 0, 1, 2, 2], [2, 0, 1]]


@functools.cache
def greedy_texts():
    own = toy_target(3, 8, seed=8)
    return [autoregressive_generate(own, prompt, 12, Sampling(0)).tokens for prompt in PROMPTS]


@pytest.mark.pairs
@pytest.mark.parametrize("loop", ["chain", "tree", "batch", "server"])
@pytest.mark.parametrize("form", [lambda t: t, FusedLanguageModel, lambda t: on_pool(t, 64, 4)])
@every_draft
def test_greedy_texts_are_the_targets_own_in_every_loop(make, form, loop):
    target, draft, greedy = form(toy_target(3, 8, seed=8)), make(), Sampling(0)
    if loop == "chain":
        made = [speculative_generate(target, draft, p, 12, 3, greedy) for p in PROMPTS]
    elif loop == "tree":
        tree = Grown(draft, [2, 1, 1], "fixed")
        made = [tree_generate(target, tree, p, 12, greedy) for p in PROMPTS]
    elif loop == "batch":
        made = batch_generate(target, draft, PROMPTS, 12, 3, greedy)
    else:
        server = Server(target, draft, 3, Limits(max_num_seqs=3, max_num_batched_tokens=64))
        numbers = [server.submit(prompt, 12, greedy) for prompt in PROMPTS]
        done = drained(server)
        made = [done[n] for n in numbers]
    assert [g.tokens for g in made] == greedy_texts()


@pytest.mark.two_ways
@every_draft
def test_a_row_of_a_batch_is_what_it_is_alone(make):
    target, draft = toy_target(3, 8, seed=1), make()
    rngs = [RandomSource(seed) for seed in range(len(PROMPTS))]
    rows = batch_generate(target, draft, PROMPTS, 20, 3, Sampling(), rngs)
    for seed, (prompt, row) in enumerate(zip(PROMPTS, rows, strict=True)):
        chain = Chain(make(), 3)
        alone = tree_generate(target, chain, prompt, 20, rng=RandomSource(seed))
        assert row.tokens == alone.tokens
        assert [r.candidates for r in row.rounds] == [r.candidates for r in alone.rounds]


@every_draft
def test_two_texts_that_take_turns_are_each_what_they_are_alone(make):
    """One draft; what it has read of one text is no business of the other's."""
    target, draft = toy_target(3, 8, seed=1), Chain(make(), 3)
    texts = [ReadText(target, prompt, 12) for prompt in PROMPTS[:2]]
    q = [[], []]
    for step in range(4):
        for own, text in zip(q, texts, strict=True):
            tree = draft.propose(text, 3, Sampling(), RandomSource(step))
            own.append(tree.q)
            text.tokens += tree.tokens
    for prompt, own in zip(PROMPTS[:2], q, strict=True):
        alone, text = Chain(make(), 3), ReadText(target, prompt, 12)
        for step in range(4):
            tree = alone.propose(text, 3, Sampling(), RandomSource(step))
            assert torch.allclose(tree.q, own[step], rtol=0, atol=1e-9)
            text.tokens += tree.tokens


@pytest.mark.pairs
@pytest.mark.parametrize("seed", range(len(PROMPTS)))
@pytest.mark.parametrize("K", [1, 3, 5, None], ids=["1", "3", "5", "tree"])
@every_draft
def test_with_the_same_dice_the_text_is_plain_decodings(make, K, seed):
    target, prompt = toy_target(3, 8, seed=1), PROMPTS[seed]
    mine, plain = SameDice(seed, len(prompt)), SameDice(seed, len(prompt))
    if K:
        made = speculative_generate(target, make(), prompt, 25, K, rng=mine, steps=SAME)
    else:
        tree = Favourites(make(), 5)
        made = tree_generate(target, tree, prompt, 25, rng=mine, steps=SAME_TREE)
    assert made.tokens == autoregressive_generate(target, prompt, 25, rng=plain).tokens


def test_a_guess_by_text_is_certain_of_itself_and_goes_on_where_it_was_right():
    draft = TextDraft(TOY.net, TOY.tokenizer)
    draft.net = Counted(draft.net)
    context = [0, 1]
    for _ in range(12):
        q = draft.get_probs(context)
        assert sorted(q.tolist()) == [0, 0, 1]
        context.append(int(q.argmax()))
    assert draft.net.passes < 12, "a token of several letters needs one pass"


def test_shared_tokens_are_the_letters_in_proportion():
    draft, context = SharedDraft(TOY.net, TOY.tokenizer), [0, 1, 2, 0]
    tokens = TOY.tokenizer.encode("abca")
    q = torch.softmax(TOY.net(torch.tensor([tokens]))[0][0, -1], -1, dtype=torch.float64)[:3]
    assert torch.allclose(draft.get_probs(context), q / q.sum(), atol=1e-12)


# ---- The shipped one


@pytest.fixture(scope="module")
def shipped():
    """The fused target, prompts of the validation split, and the shipped draft."""
    target, tokenizer = checkpoint.load()
    _, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    return FusedLanguageModel(target), prompts_of(held_out, 5), pairs.load()


def test_the_shipped_draft_is_small_and_its_merges_are_the_corpus_own(shipped):
    draft = shipped[2]
    assert pairs.PAIRS.stat().st_size < 200_000
    header = checkpoint.read_header(pairs.PAIRS)
    assert header["facts"]["steps"] == 4000 and len(header["merges"]) == pairs.MERGES
    letters = sum(p.numel() for p in GPTLanguageModel(GPTConfig(n_layer=1, n_head=2)).parameters())
    assert 0.9 * letters < sum(p.numel() for p in draft.net.parameters()) < letters
    corpus = load_corpus()
    if corpus.name == "Tiny Shakespeare":
        assert [*draft.tokenizer.merges][:40] == learn_merges(corpus.text, 40)
    text = corpus.text[:100_000]
    assert 1.8 < len(text) / len(draft.tokenizer.encode(text)) < 2.3


def test_the_shipped_draft_guesses_as_well_as_it_is_said_to_and_several_letters_a_pass(shipped):
    target, prompts, draft = shipped
    alphas, per_pass = {}, {}
    for least in (0.0, 0.5, 1.0):
        net = Counted(FusedLanguageModel(draft.net))
        own = PairDraft(net, draft.tokenizer, least)
        made = [
            speculative_generate(target, own, prompt, 100, 4, rng=RandomSource(seed))
            for seed, prompt in enumerate(prompts)
        ]
        rounds = [r for g in made for r in g.rounds]
        alphas[least] = sum(r.n_accepted for r in rounds) / sum(r.n_examined for r in rounds)
        per_pass[least] = sum(len(r.candidates) for r in rounds) / net.passes
    assert 0.74 < alphas[0] < 0.87 and 0.7 < alphas[0.5] < 0.84 and alphas[1] < alphas[0] - 0.03
    assert per_pass[0] < 1.05 and 1.45 < per_pass[0.5] < per_pass[1.0] < 2.3


def test_what_the_draft_learnt_from_was_written_by_the_target():
    tokens = pairs.load().tokenizer.encode(read_stand_in(checkpoint.DATA_DIR / "stand_in.txt").text)
    facts = checkpoint.read_header(pairs.PAIRS)["facts"]
    assert facts["tokens"] == int(len(tokens) * 0.9) and 1.4 < facts["val_loss"] < 1.7


def test_a_saved_draft_says_what_it_said_but_for_rounding(tmp_path):
    tokenizer = PairTokenizer("ab", [("a", "b")])
    torch.manual_seed(0)
    net = GPTLanguageModel(GPTConfig(3, 8, 1, 1, 4)).eval()
    pairs.save(tmp_path / "mine", net, tokenizer, {"steps": 0})
    loaded = pairs.load(tmp_path / "mine")
    assert loaded.tokenizer.tokens == ["a", "b", "ab"]
    own = PairDraft(net, tokenizer)
    assert torch.allclose(loaded.get_probs([0, 1]), own.get_probs([0, 1]), atol=2e-3)
    with pytest.raises(FileNotFoundError, match=r"make_drafts\.py pairs"):
        pairs.load(tmp_path / "none")
    with pytest.raises(ValueError, match="no draft on byte pairs"):
        pairs.load(checkpoint.DATA_DIR / "checkpoints" / "stop.safetensors")


# ---- For other engines


def test_the_exported_tokenizer_has_every_token_and_merge(shipped):
    reader = shipped[2].tokenizer
    content = tokenizer_json(reader)["model"]
    assert [*content["vocab"].values()] == [*range(reader.vocab_size)]
    assert len(content["merges"]) == pairs.MERGES and content["merges"][0] == ["Ġ", "t"]


def test_transformers_reads_the_exported_pair_and_writes_the_targets_greedy_text(shipped, tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]'")
    target, tokenizer = checkpoint.load()
    draft = shipped[2]
    export(target, tokenizer, tmp_path / "target")
    export(draft.net, draft.tokenizer, tmp_path / "draft")
    readers = [
        transformers.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("target", "draft")
    ]
    text = load_corpus().text[:5000]
    assert readers[1](text)["input_ids"] == draft.tokenizer.encode(text)
    load = transformers.AutoModelForCausalLM.from_pretrained
    big, small = (load(tmp_path / name).eval() for name in ("target", "draft"))
    ids = readers[0]("ROMEO:\nWhat is th", return_tensors="pt")
    both = {"tokenizer": readers[0], "assistant_tokenizer": readers[1], "assistant_model": small}
    greedy = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(big.generate(**ids, **greedy), big.generate(**ids, **greedy, **both))


def test_a_guess_by_text_depends_on_its_context_alone_also_on_a_shorter_one():
    """What it wrote was asked for after the context: of the letters before, it wrote none."""
    draft, others = TextDraft(TOY.net, TOY.tokenizer), 0
    for context in itertools.product(range(3), repeat=4):
        draft.get_probs(context)
        for n in (3, 2, 1):
            fresh = TextDraft(TOY.net, TOY.tokenizer).get_probs(context[:n])
            assert torch.equal(draft.get_probs(context[:n]), fresh)
            others += int(fresh.argmax()) != context[n]
    assert others > 40, "most texts do not go on as the draft would"
