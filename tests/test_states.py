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


same = torch.testing.assert_close


@both
@torch.no_grad()
def test_the_last_stream_is_what_lm_head_reads(form):
    target = TARGETS[form](make_model(DEEP))
    logits, _, right = target(NEW, past_kvs=prefill(target, TOKENS))
    same_right = [t.clone() for t in tensors(right)]
    streams, cache = target.states(NEW, past_kvs=prefill(target, TOKENS))
    assert len(streams) == 4 and all(x.shape == (1, 4, 8) for x in streams)
    same(target.lm_head(target.ln_f(streams[-1])), logits)
    same(tensors(cache), same_right)


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
            same(tensors((cache[layer],)), tensors((right[layer],)))
