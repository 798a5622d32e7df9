"""Models of transformers behind the target's contract: exact losslessness, caches, refusals."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from nanogpt import checkpoint  # noqa: E402
from nanogpt.commands import check, demo  # noqa: E402
from nanogpt.drafts.grown import Grown  # noqa: E402
from nanogpt.engines.causal import CausalModel, load, load_pair  # noqa: E402
from nanogpt.engines.export import export_pair  # noqa: E402
from nanogpt.generate import autoregressive_generate  # noqa: E402
from nanogpt.proof.exact import enumerate_outcomes, total_variation  # noqa: E402
from nanogpt.proof.toys import random_draft  # noqa: E402
from nanogpt.sampling import Sampling  # noqa: E402
from nanogpt.speculative import speculative_generate  # noqa: E402
from nanogpt.tree import tree_generate  # noqa: E402

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
WIDE = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
FORMS = ("gpt2", "llama", "qwen2", "qwen3")
# In float64 weights, transformers still computes norms, angles or a softmax in float32.
MOST = 1e-6


def config(form, **more):
    if form == "gpt2":
        return transformers.GPT2Config(
            vocab_size=3, n_positions=16, n_embd=8, n_layer=2, n_head=2, **NO_TOKENS
        )
    kinds = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
    kind = getattr(transformers, kinds.get(form, form))
    more = {"head_dim": 4, **more} if form == "qwen3" else more
    return kind(vocab_size=3, **WIDE, **HEADS, **NO_TOKENS, **more)


def tiny(form, window=8, **how):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(form), **how).double()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.7)
    return CausalModel(model, window)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    export_pair(folder)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_chains_and_trees_are_lossless(form):
    model, draft, ask = tiny(form), random_draft(3), ([0, 1], 3)
    exact = enumerate_outcomes(
        lambda rng: tuple(autoregressive_generate(model, *ask, Sampling(), rng).tokens)
    )
    chain = enumerate_outcomes(
        lambda rng: tuple(speculative_generate(model, draft, *ask, 2, Sampling(), rng).tokens)
    )
    grown = Grown(draft, [2, 1])
    tree = enumerate_outcomes(
        lambda rng: tuple(tree_generate(model, grown, *ask, Sampling(), rng).tokens)
    )
    assert len(exact) == 27 and max(exact.values()) < 0.9
    assert total_variation(chain, exact) <= MOST
    assert total_variation(tree, exact) <= MOST


@pytest.mark.parametrize("form", FORMS)
def test_cache_tree_mask_and_trim(form):
    model, tokens = tiny(form, window=16), [0, 1, 2, 2, 0]
    for error in (check.cache_error, check.tree_error, check.trim_error):
        assert error(model, tokens) <= MOST  # infinite if a pass changes the cache handed in


def test_the_exported_pair_is_our_model(pair):
    ours, tokenizer = checkpoint.load()
    model, reader = load(pair / "target")
    prompt = tokenizer.encode("ROMEO: what")
    assert reader.encode("ROMEO: what") == prompt
    idx = torch.tensor([prompt])
    torch.testing.assert_close(model(idx)[0], ours(idx)[0], rtol=0, atol=1e-3)
    greedy = [autoregressive_generate(m, prompt, 30, Sampling(0)).tokens for m in (ours, model)]
    assert greedy[0] == greedy[1]


def test_check_says_that_it_holds(pair, capsys):
    ask = [str(pair / "target"), str(pair / "draft"), "--prompt", "ROMEO: what"]
    assert check.main([*ask, "--tokens", "20", "--samples", "100"]) == 0
    assert capsys.readouterr().out.endswith("verdict: it holds\n")


@pytest.mark.parametrize(
    "form, more, said",
    [
        ("MistralConfig", {"sliding_window": 4}, "drops what is 4 tokens back"),
        ("MambaConfig", None, "keeps a state"),
    ],
)
def test_no_trim_no_use(form, more, said):
    made = (
        config(form, **more)
        if more is not None
        else transformers.MambaConfig(
            vocab_size=3, hidden_size=8, state_size=4, num_hidden_layers=2, **NO_TOKENS
        )
    )
    model = transformers.AutoModelForCausalLM.from_config(made)
    with pytest.raises(ValueError, match=said) as refused:
        CausalModel(model, 16)
    assert "\n" not in str(refused.value)


def test_no_folder_no_model(tmp_path):
    with pytest.raises((ValueError, OSError)):
        load_pair(tmp_path)
    for name in (tmp_path / "nothing", "./nothing"):
        with pytest.raises(OSError, match=r"no folder .*nothing'; give one"):
            load_pair(name)


def test_the_demo_shows_any_pair(pair, capsys):
    asked = ["--model", str(pair / "target"), "--tokens", "20", "--temperature", "0"]
    for draft, said in (([], "lookup draft, K = 4"), (["--draft", str(pair / "draft")], "K = 4")):
        demo.main([*asked, *draft])
        out = capsys.readouterr().out
        assert said in out and "speculative: 20 tokens in" in out and "accepted" in out
        text = [part.split("\n", 1)[1] for part in out.split("--- ")[1:]]
        assert text[1].startswith(text[0].rstrip()), "greedy: both decoders write the same"
    demo.main([*asked, "--tree", "2", "1"])
    assert "a tree of widths 2 1" in capsys.readouterr().out
    with pytest.raises(OSError, match="no folder"):
        demo.main([*asked, "--draft", "./nothing"])
