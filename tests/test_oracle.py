"""Our logits equal those of an implementation that we did not write: transformers' GPT-2."""

import os

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.engines import export

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")


def as_gpt2(model):
    """The same weights in their GPT-2, whose forward pass is their own."""
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**export.gpt2_config(model)))
    gpt2.to(model.lm_head.weight.dtype).load_state_dict(export.gpt2_weights(model))
    return gpt2.eval()


@pytest.mark.two_ways
@pytest.mark.parametrize("seed", range(3))
def test_our_logits_equal_gpt2s_over_the_whole_window_with_and_without_a_cache(seed):
    model = checkpoint.load()[0].double()  # the same function: to 1e-9, on any processor
    gpt2, T = as_gpt2(model), model.config.block_size
    generator = torch.Generator().manual_seed(seed)
    idx = torch.randint(model.config.vocab_size, (2, T), generator=generator)
    with torch.no_grad():
        theirs = gpt2(idx).logits
        whole = model(idx)[0]
        past_kvs, one_by_one = None, []
        for i in range(T):
            logits, _, past_kvs = model(idx[:, i : i + 1], past_kvs=past_kvs)
            one_by_one.append(logits)
        past_kvs, in_fives = None, []
        for chunk in idx.split(5, dim=1):
            logits, _, past_kvs = model(chunk, past_kvs=past_kvs)
            in_fives.append(logits)
    for ours in (whole, torch.cat(one_by_one, 1), torch.cat(in_fives, 1)):
        assert (ours - theirs).abs().max() < 1e-9
