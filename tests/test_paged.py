"""A pool's books are right whatever happens, and a paged cache is the contiguous one."""

import functools
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TINY, make_model, read_text

from nanogpt import checkpoint
from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.itself import EarlyExitDraft, going_on
from nanogpt.drafts.protocol import Chain
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.proof.checks import CHECKS, tensors
from nanogpt.proof.checks_serving import beginnings
from nanogpt.proof.toys import Watched, deep_toy, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_generate, batch_round, joined
from nanogpt.serving.paged import BlockPool, PagedCache, PoolFull, on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import speculative_generate
from nanogpt.trees.loop import TREE, tree_generate, verify_tree
from nanogpt.trees.tree import ReadText, keep_path, tree_mask

SIZES = (1, 3, 4, 16)


def paged(target, size=3):
    """The target on a pool, or the one that is being watched."""
    if isinstance(target, Watched):
        return target.around(on_pool(target.target, 400, size))
    return on_pool(target, 400, size)


def generate(target, *args, **kwargs):
    return speculative_generate(paged(target), *args, **kwargs)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_paged_target_passes_the_whole_test_bench(check):
    check(generate)


def same(cache, target, tokens):
    """Whether a cache is that of a fresh prefill of `tokens`, to 1e-9."""
    fresh = tensors(prefill(target, tokens)) if tokens else []
    mine = tensors(cache) if cache is not None else []
    return len(mine) == len(fresh) and all(
        torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(mine, fresh, strict=True)
    )


PLAIN, TABLE = toy_target(7, 16), random_draft(7)
TREES = Grown(TABLE, (2, 2, 1))


def batch_of(draft):
    """Three texts of unlike lengths, each with a K of its own, in one batch."""
    prompts, lengths = [[1, 2], [3], [4, 5, 6] * 4], [40, 20, 50]
    return lambda t, sampling: batch_generate(t, draft, prompts, lengths, [3, 1, 4], sampling)


DECODERS = {  # of a target and a sampling: texts
    "plain": lambda t, s: [autoregressive_generate(t, [1, 2], 60, s, RandomSource(1))],
    "chain": lambda t, s: [speculative_generate(t, TABLE, [1], 60, 5, s, RandomSource(1))],
    "tree": lambda t, s: [tree_generate(t, TREES, [1, 2, 3], 60, s, RandomSource(2))],
    "batch of chains": batch_of(TABLE),
    "batch of trees": batch_of(TREES),
}


@functools.cache
def without_a_pool(decoder, sampling):
    return [made.tokens for made in DECODERS[decoder](PLAIN, sampling)]


@pytest.mark.two_ways
@pytest.mark.pairs
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sampling", [Sampling(0), Sampling()], ids=["greedy", "sampled"])
def test_every_decoder_writes_what_it_writes_without_a_pool(decoder, size, sampling):
    target = on_pool(PLAIN, 300, size)
    made = DECODERS[decoder](target, sampling)
    assert [one.tokens for one in made] == without_a_pool(decoder, sampling)
    del made
    assert target.cache.free == 300
    target.cache.check([])


@pytest.mark.parametrize("prompt", [[1], [1, 2, 0]], ids=["from nothing", "from a prompt"])
def test_a_draft_that_begins_with_the_targets_first_blocks(prompt):
    plain, head = deep_toy(3)
    steps = replace(TREE, verify=going_on(verify_tree))
    for size, depth, K in ((1, 2, 4), (2, 1, 2), (3, 2, 3), (16, 1, 4)):
        target, made = on_pool(plain, 60, size), []
        for t in (target, plain):
            draft = EarlyExitDraft(t, depth, head, K)
            made.append(
                tree_generate(t, draft, prompt, 40, rng=RandomSource(2), steps=steps).tokens
            )
        assert made[0] == made[1]
        target.cache.check([])
        assert target.cache.free == 60


class Walk:
    """Texts in a pool, and their tokens: random operations on both."""

    def __init__(self, seed, blocks=60, size=4):
        self.model = make_model()
        self.target = on_pool(self.model, blocks, size)
        self.pool, self.rng = self.target.cache, np.random.default_rng(seed)
        self.texts = []  # [tokens, cache], the cache of all the tokens
        self.first = self.tokens(9)  # what many begin with

    def tokens(self, n):
        return self.rng.integers(TINY.vocab_size, size=n).tolist()

    def any(self):
        return self.texts[self.rng.integers(len(self.texts))]

    def step(self):
        """One operation; says what it was, and which texts it changed."""
        names = ("prefill", "found", "grow", "rewind", "fork", "drop", "tree", "batch")
        name = self.rng.choice(names if 0 < len(self.texts) < 6 else names[4:] + names[2:4])
        if not self.texts:
            name = "prefill"
        return name, getattr(self, str(name))()

    def look(self, texts, where):
        """Each cache is that of a fresh prefill of its tokens."""
        for tokens, cache in texts:
            assert cache_length(cache) == len(tokens)
            assert same(cache, self.model, tokens), where

    def prefill(self):
        tokens = self.first[: self.rng.integers(1, 9)] + self.tokens(self.rng.integers(3))
        self.texts.append([tokens, prefill(self.target, tokens)])
        self.pool.publish(tokens, self.texts[-1][1])
        return self.texts[-1:]

    def found(self):
        cache = self.pool.found(self.first)
        if cache is None:
            return []
        self.texts.append([self.first[: cache.length], cache])
        return self.texts[-1:]

    def passed(self, text, new):
        with torch.no_grad():
            text[1] = self.target(torch.tensor([new]), past_kvs=text[1])[2]
        text[0] = text[0] + new

    def grow(self):
        text = self.any()
        if len(text[0]) < 8:
            self.passed(text, self.tokens(self.rng.integers(1, 4)))
        return [text]

    def rewind(self):
        """Rejected guesses: what was published is final and stays."""
        text = self.any()
        if len(text[0]) < 8:
            P, T = len(text[0]), int(self.rng.integers(1, 5))
            self.passed(text, self.tokens(T))
            text[0] = text[0][: P + int(self.rng.integers(0, T + 1))]
            text[1] = trim_kv_cache(text[1], len(text[0]) - P, P)
        return [text]

    def fork(self):
        tokens, cache = self.any()
        self.texts.append([tokens, cache.fork()])
        return self.texts[-1:]

    def drop(self):
        del self.texts[self.rng.integers(len(self.texts))]
        return []

    def tree(self):
        text = self.any()
        P, parents = len(text[0]), [-1, -1, 0, 0, 1, 4]
        if P < 8:
            new, mask = self.tokens(7), tree_mask(parents, P)
            with torch.no_grad():
                *_, new_kvs = self.target(
                    torch.tensor([new]), pos=mask.sum(-1) - 1, past_kvs=text[1], attn_mask=mask
                )
            path = [[], [1], [0, 3], [1, 4, 5], [0, 2]][self.rng.integers(5)]
            text[1] = keep_path(new_kvs, path, P)
            text[0] = text[0] + [new[0], *(new[1 + node] for node in path)]
        return [text]

    def batch(self):
        some = [text for text in self.texts if len(text[0]) < 9]
        if some:
            cache, _ = joined([text[1] for text in some])
            idx = torch.tensor([self.tokens(3) for _ in some])
            with torch.no_grad():
                cache = self.target(idx, past_kvs=cache)[2]
            keep = self.rng.integers(1, 4, size=len(some)).tolist()
            lengths = [len(text[0]) + n for text, n in zip(some, keep, strict=True)]
            done = zip(some, idx.tolist(), keep, cache.rows(lengths), strict=True)
            for text, new, n, own in done:
                text[0], text[1] = text[0] + new[:n], own
        return some


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.wide)])
@pytest.mark.parametrize("seed,size", [(0, 4), (1, 1), (2, 3)])
def test_after_any_operation_the_cache_is_contiguous_and_the_books_are_right(seed, size, steps):
    walk, seen = Walk(seed, size=size), set()
    for i in range(steps):
        name, changed = walk.step()
        seen.add(str(name))
        walk.look(walk.texts if i % 10 == 0 else changed, f"operation {i}, {name}")
        changed = None  # or it would hold a text that the next operation drops
        walk.pool.check([cache for _, cache in walk.texts])
    assert len(seen) == 8
    walk.texts.clear()
    assert walk.pool.free == walk.pool.blocks
    walk.pool.check([])


@pytest.mark.parametrize("requests", [1000, pytest.param(10_000, marks=pytest.mark.wide)])
def test_thousands_of_requests_leave_nothing_behind(requests):
    target = on_pool(toy_target(7, 16), 24, 4)
    for i in range(requests):
        tokens = [i % 7, i % 5, 1, 2, 3, i % 3]
        cache = target.cache.found(tokens) or prefill(target, tokens)
        target.cache.publish(tokens, cache)
    del cache
    assert target.cache.free == 24
    target.cache.check([])


def leak(pool):
    pool.references[pool.take()] += 1


def lose(pool):
    pool.unused.popitem()


def give_twice(pool):
    pool.unused[next(block for block, held in enumerate(pool.references) if held)] = None


def forget_one(pool):
    pool.keys.popitem()


@pytest.mark.parametrize(
    "wrong, says",
    [
        (leak, "are not the blocks' entries in tables"),
        (lambda pool: pool.references.__setitem__(0, 2), "are not the blocks' entries in tables"),
        (lambda pool: pool.references.__setitem__(0, 0), "are not the blocks' entries in tables"),
        (lose, r"5 free and 2 used blocks are not 8"),
        (give_twice, r"free and 2 used blocks are not 8"),
        (lambda pool: (lose(pool), give_twice(pool)), r"6 free and 2 used blocks are not 8"),
        (forget_one, "are not the keys by block"),
    ],
    ids=["a leak", "too many", "too few", "lost", "given twice", "exchanged", "a key"],
)
def test_the_books_of_a_pool_are_checked(wrong, says):
    """Each page of them by itself: references, free blocks, what is published."""
    target = on_pool(toy_target(7, 16), 8, 2)
    cache = prefill(target, [1, 2, 3, 4])
    target.cache.publish([1, 2, 3, 4], cache)
    target.cache.check([cache])
    wrong(target.cache)
    with pytest.raises(AssertionError, match=says):
        target.cache.check([cache])


def test_a_texts_last_blocks_are_free_first_and_taken_first():
    """So that of what it published, its beginning is found longest."""
    target = on_pool(toy_target(7, 16), 5, 2)
    pool, tokens = target.cache, [1, 2, 3, 4, 5, 6]
    cache = prefill(target, tokens)
    pool.publish(tokens, cache)
    blocks = list(cache.tables[0].blocks)
    del cache
    assert list(pool.unused)[-3:] == blocks[::-1]
    held = prefill(target, [0] * 6)  # in the two that were never used, and one of these
    assert pool.found(tokens).length == 4
    pool.check([held])


def test_a_fork_holds_the_blocks_of_its_own_entries_only():
    """Its text may have more by then: room for a pass, or what a later pass wrote."""
    target = on_pool(make_model(), 9, 2)
    cache = prefill(target, [1, 2, 3])
    cache.reserve(5)
    assert len(cache.tables[0].blocks) == 4
    fork = cache.fork()
    assert fork.tables[0].blocks == cache.tables[0].blocks[:2]
    assert target.cache.references[:4] == [2, 2, 1, 1]
    target.cache.check([cache, fork])


def test_a_text_costs_no_memory_before_it_is_written():
    target = on_pool(toy_target(7, 16), 8, 4)
    cache = target.cache.empty(target.config, 3, target.qkv[0])
    assert cache.length == 0 and target.cache.free == 8
    text = ReadText(target, [1, 2, 3, 4, 5], 9)
    assert target.cache.free == 8
    text.read()
    assert target.cache.free == 7 and len(text.past_kvs.tables[0].blocks) == 1


def test_a_full_pool_is_one_clear_line_and_nothing_is_lost():
    plain = toy_target(7, 16)
    target = on_pool(plain, 4, 4)
    texts = [read_text(target, tokens, 9) for tokens in ([1, 2, 3, 4, 5, 6], [3, 2, 1, 0, 1])]
    before = [text.past_kvs for text in texts]
    assert target.cache.free == 1
    with pytest.raises(PoolFull, match="blocks of 4 wanted 3, free 1 of 4, for 5 entries"):
        joined(before)[0].grown(5)
    with pytest.raises(PoolFull, match="drop a text, or make the pool larger"):
        read_text(target, [1, 2, 3, 4, 5, 6], 9)
    assert [text.past_kvs for text in texts] == before
    for text in texts:
        assert same(text.past_kvs, plain, text.tokens[:-1])
    target.cache.check(before)
    assert before[0].wanted(3) == 0 and before[0].wanted(5) == 1 and before[1].wanted(9) == 3
    before[0].reserve(5)  # before drafting: the pass finds the block
    assert target.cache.free == 0 and before[0].wanted(5) == 0
    texts.pop(0), before.pop(0)
    gc.collect()
    assert target.cache.free == 3
    texts[0].past_kvs.free()
    assert target.cache.free == 4
    with pytest.raises(ValueError, match="given back"):
        texts[0].past_kvs.grown(1)


def test_a_request_longer_than_the_pool():
    target = on_pool(toy_target(7, 16), 2, 4)
    with pytest.raises(PoolFull, match="blocks of 4 wanted 4, free 2 of 2"):
        speculative_generate(target, random_draft(7), [1] * 12, 5)
    with pytest.raises(PoolFull):
        speculative_generate(target, random_draft(7), [1], 12)
    assert target.cache.free == 2


def test_a_rejection_gives_blocks_back():
    target = on_pool(toy_target(7, 16), 8, 2)
    cache = prefill(target, [1, 2, 3])
    with torch.no_grad():
        grown = target(torch.tensor([[4, 5, 6, 0]]), past_kvs=cache)[2]
    assert target.cache.free == 8 - 4
    kept = trim_kv_cache(grown, 1, 3)
    assert target.cache.free == 8 - 2 and kept.length == 4
    with pytest.raises(ValueError, match="given back"):
        grown.check()
    cache.check()


def test_a_write_into_a_shared_block_goes_to_a_copy():
    model = make_model()
    target = on_pool(model, 8, 4)
    cache = prefill(target, [1, 2, 3, 4, 5, 6])
    forks = [cache.fork() for _ in range(3)]
    assert target.cache.free == 6 and target.cache.references[:2] == [4, 4]
    assert forks[0].wanted(1) == 1 and PagedCache.joined([cache, *forks]).wanted(1) == 3
    with torch.no_grad():
        new = target(torch.tensor([[0], [1], [2], [3]]), past_kvs=joined([cache, *forks])[0])[2]
    rows = new.rows([7] * 4)
    for last, row in enumerate(rows):
        assert same(row, model, [1, 2, 3, 4, 5, 6, last])
    assert target.cache.free == 8 - 5
    target.cache.check(rows)


def test_a_path_that_is_kept_moves_and_the_longer_cache_is_stale():
    target = on_pool(make_model(), 4, 8)
    cache = prefill(target, [1, 2, 3, 4, 5])
    before = [t.clone() for t in tensors(cache)]
    kept = cache.gathered([0, 1, 3])
    for mine, right in zip(tensors(kept), before, strict=True):
        assert torch.equal(mine, right[:, [0, 1, 3]])
    with pytest.raises(ValueError, match="overwritten"):
        cache.check()
    fork = kept.fork()
    assert kept.gathered([0, 2]).length == 2 and target.cache.free == 2, "not into a shared block"
    for mine, right in zip(tensors(fork), before, strict=True):
        assert torch.equal(mine, right[:, [0, 1, 3]])


def test_the_same_text_twice_in_a_batch_goes_on_as_two():
    model = make_model()
    target = on_pool(model, 8, 4)
    cache = prefill(target, [1, 2, 3])
    with torch.no_grad():
        new = target(torch.tensor([[4], [5]]), past_kvs=joined([cache, cache])[0])[2]
    assert same(new.rows([4, 4])[0], model, [1, 2, 3, 4])
    assert same(new.rows([4, 4])[1], model, [1, 2, 3, 5])


def test_a_shared_prompt_is_that_of_a_fresh_prefill_and_costs_no_pass():
    plain = toy_target(7, 16)
    target = on_pool(plain, 20, 4)
    server = Server(target, limits=Limits(max_num_seqs=4), seed=0)
    prompt = [1, 2, 3, 4, 5, 6, 0, 1, 2, 5]
    asked = [prompt, prompt, prompt[:9], [*prompt[:5], 2, *prompt[6:]]]
    for each in asked:
        server.submit(each, 5)
        server.step()
    one, other, third, strange = server.requests
    assert [r.shared for r in server.requests] == [0, 8, 8, 4]
    blocks = [r.past_kvs.tables[0].blocks for r in server.requests]
    assert blocks[0][:2] == blocks[1][:2] == blocks[2][:2] and blocks[3][0] == blocks[0][0]
    assert third.prefills == 0, "all that it needs lies there"
    for text in (one, other, third, strange):
        assert same(text.past_kvs, plain, text.tokens[:-1])
    target.cache.check([text.past_kvs for text in (one, other, third, strange)])


def test_a_server_publishes_only_what_is_final_in_every_pass():
    """And it can be found from then on, whatever the texts do: generated tokens, too."""
    plain, found = toy_target(7, 16), 0
    target = on_pool(plain, 200, 3)
    server, pool = Server(target, random_draft(7), K=3, seed=0), target.cache
    for prompt in ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4]):
        server.submit(prompt, 60)
    for _ in range(12):
        server.step()
        known = {}
        for text in server.requests:
            for start in range(len(text.tokens)):
                known |= beginnings(text.tokens[start:], 3)
        for key in pool.published:
            assert same(pool.found(known[key]), plain, list(known[key]))
            found = max(found, len(known[key]))
        pool.check([text.past_kvs for text in server.requests])
    assert found > 6, "longer than any prompt"


@pytest.mark.two_ways
def test_requests_of_a_server_share_what_begins_alike():
    """A prompt's blocks are there for those that come later; a restart finds what others wrote."""
    plain, draft, greedy = toy_target(7, 16), random_draft(7), Sampling(0)
    prompts = [[1, 2, 3, 4, 5, 6, n] for n in range(7)] * 3
    alone = [speculative_generate(plain, draft, prompt, 20, 2, greedy) for prompt in prompts]
    for share in (False, True):
        target = on_pool(plain, 200, 3)
        limits = Limits(max_num_seqs=6, prefill_chunk=4)
        server, made = Server(target, draft, 2, limits, share=share), {}
        asked = [server.submit(prompt, 20, greedy) for prompt in prompts]
        requests = server.requests
        while server.requests:
            made |= server.step()
            target.cache.check([r.past_kvs for r in server.requests if r.past_kvs])
        assert [made[id].tokens for id in asked] == [one.tokens for one in alone]
        assert target.cache.free == 200
        shared = [request.shared for request in requests]
        assert all(shared[6:]) == share and any(shared) == share
        assert any(shared[:6]) == share, "the first six begin at once: only a restart finds blocks"


def test_blocks_that_were_free_longest_are_taken_first_and_forgotten():
    target = on_pool(toy_target(7, 16), 4, 2)
    pool = target.cache
    for tokens in ([1, 2, 3, 4], [5, 6]):
        pool.publish(tokens, prefill(target, tokens))
    assert pool.free == 4 and len(pool.published) == 3
    found = pool.found([1, 2, 3, 4, 0])
    assert found.length == 4 and pool.free == 2
    held = prefill(target, [0, 0, 0])
    assert pool.found([5, 6]) is None and pool.free == 0
    pool.check([found, held])


def test_rejected_guesses_push_nothing_out_that_can_be_found():
    """Round after round takes a block and gives it back: the one spare block, each time."""
    target, six = on_pool(toy_target(7, 16), 9, 2), [1, 2, 3, 4, 5, 6]
    pool = target.cache
    gone = prefill(target, six)
    pool.publish(six, gone)
    gone.free()
    text = prefill(target, [6, 5])
    for _ in range(9):
        with torch.no_grad():
            text = target(torch.tensor([[1, 2]]), past_kvs=text)[2].kept(2)
    assert len(pool.known(six)[0]) == 3 and pool.free == 8


def test_a_pool_of_other_types_and_bad_sizes():
    model = checkpoint.load()[0]
    target = on_pool(model, 20, 16)
    assert target.cache.entries.dtype == torch.float32
    with torch.inference_mode():
        inside = on_pool(model, 20, 16)
    prefill(inside, [1, 2, 3])  # a pool that was made there serves outside
    for bad in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="whole number from 1"):
            BlockPool(model.config, bad, 16, like=model.lm_head.weight)
        with pytest.raises(ValueError, match="whole number from 1"):
            BlockPool(model.config, 16, bad, like=model.lm_head.weight)
    with pytest.raises(ValueError, match="no text has a cache"):
        PagedCache.joined([None, None])


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_restart_lacks_any_number_of_tokens_and_reads_them_later(missing):
    """Half a window of four: so many of them are found, and the pool is full before the others."""
    own = toy_target(7, 8)
    target = on_pool(own, 30, 1)
    text = ReadText(target, [0, 1, 2, 3, 4, 5, 6, 0, 1], 9)
    text.tokens.append(2)  # the window is full now
    text.past_kvs = prefill(target, text.tokens[-9:-1])
    right = text.tokens[-5:-1]
    held = [text.past_kvs.fork(), prefill(target, right[: 4 - missing] or [6])]
    if missing < 4:
        target.cache.publish(right[: 4 - missing], held[1])
    hogs = [prefill(target, [6]) for _ in range(target.cache.free)]
    text.restart_if_full()
    text.past_kvs = target.cache.found(right)
    with pytest.raises(PoolFull):
        text.read()
    assert text.cache_length == 4 - missing and text.unread == right[4 - missing :]
    del hogs
    text.read()
    assert same(text.past_kvs, own, right) and text.prefills == 1
    text.read()
    assert text.prefills == 1, "there is nothing more to read"
    target.cache.check([text.past_kvs, *held])


def test_a_restart_that_finds_the_pool_full_is_made_later():
    """Dropping its own blocks frees few of them where others share them."""
    own = toy_target(7, 8)
    target, prompt = on_pool(own, 9, 1), [0, 1, 2, 3, 4, 5, 6, 0]
    seats, first = [], prefill(target, prompt[:-1])
    for _ in range(2):
        text = ReadText(target, prompt, 12)
        text.past_kvs = first.fork()
        seats.append(Seat(text, Chain(random_draft(7), 2), Sampling(0), RandomSource(3)))
    del first
    batch_round(target, seats)
    with pytest.raises(PoolFull):
        batch_round(target, seats)
    stays = seats.pop(0)
    assert stays.text.cache_length == 0
    seats.clear()
    while not stays.text.done:
        batch_round(target, [stays])
    alone = speculative_generate(own, stays.draft.draft, prompt, 12, 2, Sampling(0))
    assert stays.text.tokens[8:] == alone.tokens


def test_a_shared_block_that_was_cut_in_the_middle_gets_a_name_of_its_own():
    """So what follows is found after its own tokens, and never after those that it began with."""
    plain, alike, other = toy_target(7, 16), [1, 2, 3, 4, 5, 6], [1, 2, 3, 0, 6, 5]
    target = on_pool(plain, 20, 2)
    pool, first = target.cache, prefill(target, alike)
    pool.publish(alike, first)
    with torch.no_grad():
        cut = pool.found(alike[:4]).kept(3)
        second = target(torch.tensor([other[3:]]), past_kvs=cut)[2]
    pool.publish(other, second)
    for tokens in (alike, other):
        assert same(pool.found(tokens), plain, tokens)
    assert pool.found([*alike[:4], *other[4:]]).length == 4
    pool.check([first, second])


def test_a_cache_whose_last_entry_alone_was_written_anew_is_stale():
    """The shortest way back, and the least that is lost: one token."""
    target = on_pool(toy_target(7, 16), 8, 2)
    for length in (3, 4):  # within a block, and where it gives one back
        whole = prefill(target, [1, 2, 3, 4][:length])
        target(torch.tensor([[5]]), past_kvs=whole.kept(length - 1))
        with pytest.raises(ValueError, match="overwritten or given back"):
            target(torch.tensor([[5]]), past_kvs=whole)
