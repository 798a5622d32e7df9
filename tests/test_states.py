"""The residual stream, block by block, of both targets: all at once, or begun by a draft."""

import dataclasses

import pytest
import torch
from conftest import TINY, make_model

from nanogpt.cache import cache_length, trim_kv_cache
from nanogpt.generate import prefill
from nanogpt.model import Begun
from nanogpt.proof.checks import tensors
from nanogpt.targets.fused import TARGETS
from nanogpt.trees.tree import tree_mask

DEEP = dataclasses.replace(TINY, n_layer=4)
TOKENS, NEW = [3, 1, 4, 1, 5], torch.tensor([[9, 2, 6, 5]])
both = pytest.mark.parametrize("form", TARGETS)
pytestmark = pytest.mark.two_ways


def same(mine, right):
    torch.testing.assert_close(mine, right, rtol=0, atol=1e-9)


def same_caches(mine, right):
    for a, b in zip(tensors(mine), tensors(right), strict=True):
        same(a, b)


def begun_by_a_draft(target, past_kvs, tokens, depth):
    """The first blocks' work on these tokens, one after another, as a draft does it."""
    rows, kvs = [], past_kvs
    for token in tokens:
        streams, kvs = target.states(torch.tensor([[token]]), past_kvs=kvs, depth=depth)
        rows.append(streams[-1])
    return Begun(depth, torch.cat(rows, dim=1), kvs)


@both
@torch.no_grad()
def test_the_last_stream_is_the_trunks(form):
    target = TARGETS[form](make_model(DEEP))
    hidden, right = target.trunk(NEW, past_kvs=prefill(target, TOKENS))
    same_right = [t.clone() for t in tensors(right)]
    streams, cache = target.states(NEW, past_kvs=prefill(target, TOKENS))
    assert len(streams) == 4 and all(x.shape == (1, 4, 8) for x in streams)
    same(target.ln_f(streams[-1]), hidden)
    for mine, kv in zip(tensors(cache), same_right, strict=True):
        same(mine, kv)


@both
@torch.no_grad()
def test_fewer_blocks_are_the_first_of_all(form):
    model = make_model(DEEP)
    target = TARGETS[form](model)
    whole, right = model.states(NEW)
    for depth in (1, 2, 3):
        streams, cache = target.states(NEW, depth=depth)
        assert len(streams) == depth
        for x, right_x in zip(streams, whole, strict=False):
            same(x, right_x)
        for layer in range(depth):
            same_caches((cache[layer],), (right[layer],))


@both
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("m", [1, 3, 4])
@torch.no_grad()
def test_what_a_draft_began_is_not_done_again(form, depth, m):
    """The first m of four tokens went through the first blocks one by one, to the same end."""
    model = make_model(DEEP)
    target = TARGETS[form](model)
    whole, _ = model.states(NEW, past_kvs=prefill(model, TOKENS))
    hidden, right = model.trunk(NEW, past_kvs=prefill(model, TOKENS))
    past_kvs = prefill(target, TOKENS)
    begun = begun_by_a_draft(target, past_kvs, NEW[0, :m].tolist(), depth)
    seen = []
    handle = model.blocks[0].ffwd.register_forward_hook(lambda _, x, __: seen.append(x[0].shape[1]))
    streams, cache = target.states(NEW, past_kvs=past_kvs, begun=begun)
    handle.remove()
    assert len(streams) == 4 and cache_length(cache) == 9
    assert streams[: depth - 1] == [None] * (depth - 1), "nobody has worked these out"
    for x, right_x in zip(streams[depth - 1 :], whole[depth - 1 :], strict=True):
        same(x, right_x)
    assert sum(seen) == 4 - m, "the first block reads only what it has not read"
    same(target.ln_f(streams[-1]), hidden)
    same_caches(cache, right)
    kept = trim_kv_cache(cache, 2, 5)
    same_caches(kept, prefill(model, [*TOKENS, 9, 2]))
    assert cache_length(past_kvs) == 5, "the cache before is left as it was"


@torch.no_grad()
def test_begun_in_another_buffer_than_the_pass_is_copied():
    """A tree may be wider than the buffer: then the pass, or the draft, has one of its own."""
    model = make_model(DEEP)
    target = TARGETS["fused"](model)
    parents = [-1] * 12  # thirteen entries after five, in a window of twelve
    idx, mask = torch.tensor([[9, *range(11), 0]]), tree_mask(parents, 5)
    pos = mask.sum(-1) - 1
    right, wide = model.trunk(idx, pos, prefill(model, TOKENS), mask)
    past_kvs = prefill(target, TOKENS)
    begun = begun_by_a_draft(target, past_kvs, [9], 2)
    streams, cache = target.states(idx, pos, past_kvs, mask, begun=begun)
    assert cache.buffer is not begun.past_kvs.buffer
    same(target.ln_f(streams[-1]), right)
    same_caches(cache, wide)


@both
@torch.no_grad()
def test_a_tree_may_be_begun(form):
    """The draft took the current token and two siblings through two blocks, with their mask."""
    model = make_model(DEEP)
    target, parents = TARGETS[form](model), [-1, -1, 0, 1, 2]
    idx, mask = torch.tensor([[9, 2, 6, 5, 3, 5]]), tree_mask(parents, 5)
    pos = mask.sum(-1) - 1
    right, _ = model.trunk(idx, pos, prefill(model, TOKENS), mask)
    past_kvs = prefill(target, TOKENS)
    streams, lower = target.states(idx[:, :3], pos[:3], past_kvs, mask[:3, :8], depth=2)
    begun = Begun(2, streams[-1], lower)
    streams, _ = target.states(idx, pos, past_kvs, mask, begun=begun)
    same(target.ln_f(streams[-1]), right)
