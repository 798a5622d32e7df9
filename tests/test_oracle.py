"""Our logits equal those of an implementation that we did not write: transformers' GPT-2."""

import os

import pytest
import torch

from nanogpt import checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")


def as_gpt2(model):
    """The same weights in GPT-2's layout: fused QKV, Conv1D weights transposed, zero biases."""
    c = model.config
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=c.vocab_size,
            n_positions=c.block_size,
            n_embd=c.n_embd,
            n_layer=c.n_layer,
            n_head=c.n_head,
            activation_function="relu",
            tie_word_embeddings=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    weights = {
        "transformer.wte.weight": model.token_embedding_table.weight,
        "transformer.wpe.weight": model.position_embedding_table.weight,
        "transformer.ln_f.weight": model.ln_f.weight,
        "transformer.ln_f.bias": model.ln_f.bias,
        "lm_head.weight": model.lm_head.weight,
    }
    for i, block in enumerate(model.blocks):
        h, heads = f"transformer.h.{i}.", block.sa.heads
        qkv = [getattr(head, name).weight for name in ("query", "key", "value") for head in heads]
        weights[h + "attn.c_attn.weight"] = torch.cat(qkv).T
        weights[h + "attn.c_attn.bias"] = torch.zeros(3 * c.n_embd)
        for theirs, ours in (
            ("attn.c_proj", block.sa.proj),
            ("mlp.c_fc", block.ffwd.net[0]),
            ("mlp.c_proj", block.ffwd.net[2]),
        ):
            weights[h + theirs + ".weight"] = ours.weight.T
            weights[h + theirs + ".bias"] = ours.bias
        for theirs, ours in (("ln_1", block.ln1), ("ln_2", block.ln2)):
            weights[h + theirs + ".weight"] = ours.weight
            weights[h + theirs + ".bias"] = ours.bias
    gpt2.load_state_dict({name: w.detach() for name, w in weights.items()})
    return gpt2.to(model.lm_head.weight.dtype)


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
