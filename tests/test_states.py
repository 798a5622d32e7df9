"""The residual stream, block by block, of both targets."""

import dataclasses

import pytest
import torch
from conftest import TINY, make_model

from nanogpt.generate import prefill
from nanogpt.proof.checks import tensors
from nanogpt.targets.fused import TARGETS

DEEP = dataclasses.replace(TINY, n_layer=4)
TOKENS, NEW = [3, 1, 4, 1, 5], torch.tensor([[9, 2, 6, 5]])
both = pytest.mark.parametrize("form", TARGETS)
pytestmark = pytest.mark.two_ways


def same(mine, right):
    torch.testing.assert_close(mine, right, rtol=0, atol=1e-9)


def same_caches(mine, right):
    for a, b in zip(tensors(mine), tensors(right), strict=True):
        same(a, b)


@both
@torch.no_grad()
def test_the_last_stream_is_what_lm_head_reads(form):
    target = TARGETS[form](make_model(DEEP))
    logits, _, right = target(NEW, past_kvs=prefill(target, TOKENS))
    same_right = [t.clone() for t in tensors(right)]
    streams, cache = target.states(NEW, past_kvs=prefill(target, TOKENS))
    assert len(streams) == 4 and all(x.shape == (1, 4, 8) for x in streams)
    same(target.lm_head(target.ln_f(streams[-1])), logits)
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
