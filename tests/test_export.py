"""The exported folders: the same function, the same characters, the same texts, elsewhere."""

import copy
import json
import os
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

from nanogpt import checkpoint
from nanogpt.__main__ import main as nanogpt
from nanogpt.data import CharTokenizer
from nanogpt.drafts import transformer
from nanogpt.engines import export
from nanogpt.engines.audit import TIE, behind_the_best
from nanogpt.measure.clock import prompts_of
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof.toys import toy_target

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
FILES |= {"tokenizer_config.json"}
forms = pytest.mark.parametrize("wide", [False, True], ids=["as it is", "wide"])


def gpt2_logits(weights, n_head, idx):
    """GPT-2's forward pass (B, T) -> (B, T, V), from the paper's formulas and nothing of ours."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    T, layer = idx.shape[1], 0
    x = w["wte.weight"][idx] + w["wpe.weight"][:T]
    while f"h.{layer}.ln_1.weight" in w:
        h = f"h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn")
        heads = [z.unflatten(-1, (n_head, -1)).transpose(1, 2) for z in qkv.chunk(3, dim=-1)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).flatten(-2), h + "attn.c_proj")
        x = x + linear(linear(norm(x, h + "ln_2"), h + "mlp.c_fc").relu(), h + "mlp.c_proj")
        layer += 1
    return norm(x, "ln_f") @ w["lm_head.weight"].T


def weights_of(model, wide):
    weights = export.gpt2_weights(model)
    return export.widened(weights, model.config.n_head) if wide else weights


@pytest.mark.two_ways
@forms
@pytest.mark.parametrize(
    "file", [checkpoint.TARGET, transformer.DISTILLED], ids=["target", "draft"]
)
def test_the_weights_are_the_same_function_in_gpt2s_layout(file, wide):
    model = checkpoint.load(file)[0].double()
    T, V = model.config.block_size, model.config.vocab_size
    idx = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = gpt2_logits(weights_of(model, wide), model.config.n_head, idx)
        assert (theirs - model(idx)[0]).abs().max() < 1e-9


@pytest.mark.two_ways
@forms
def test_the_weights_of_another_shape_are_too(wide):
    model = toy_target(7, 16).double()
    idx = torch.arange(14).remainder(7).view(2, 7)
    with torch.no_grad():
        theirs = gpt2_logits(weights_of(model, wide), model.config.n_head, idx)
        assert (theirs - model(idx)[0]).abs().max() < 1e-9


def test_exporting_changes_nothing_of_the_model():
    model = checkpoint.load()[0]
    before = copy.deepcopy(model.state_dict())
    weights = export.gpt2_weights(model)
    export.widened(weights, model.config.n_head)
    for tensor in weights.values():
        assert not tensor.requires_grad and tensor.is_contiguous()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@forms
def test_what_is_written_is_whole_and_says_its_shape(tmp_path, wide):
    export.export_pair(tmp_path / "new" / "pair", wide)
    for name, file in (("target", checkpoint.TARGET), ("draft", transformer.DISTILLED)):
        folder, (model, _) = tmp_path / "new" / "pair" / name, checkpoint.load(file)
        assert {path.name for path in folder.iterdir()} == FILES
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["n_embd"] == (1 + wide) * model.config.n_embd
        stored = safetensors.torch.load_file(folder / "model.safetensors")
        weights = weights_of(model, wide)
        assert stored.keys() == weights.keys()
        assert all(torch.equal(stored[key], weights[key]) for key in weights)


SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


@forms
def test_every_key_that_another_engine_reads(tmp_path, wide):
    """Of a toy of 2 blocks, 3 heads of 4 and a window of 24; wide, its heads have 8."""
    model = GPTLanguageModel(GPTConfig(5, 24, n_layer=2, n_head=3, n_embd=12))
    export.export(model, CharTokenizer("\n a~Z"), tmp_path, wide)
    read = {path.name: path for path in tmp_path.glob("*.json")}
    read = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in read.items()}
    assert read.pop("config.json") == {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 5,
        "n_positions": 24,
        "n_embd": 24 if wide else 12,
        "n_inner": 48,  # as it is trained, in either form
        "n_layer": 2,
        "n_head": 3,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,  # no character ends a text
        "torch_dtype": "float32",
    }
    assert read.pop("generation_config.json") == SAMPLED
    assert read.pop("tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 24,
        "clean_up_tokenization_spaces": False,
    }
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    bytewise["use_regex"] = False
    none = ("truncation", "padding", "normalizer", "post_processor")
    own = read.pop("tokenizer.json")
    assert own.pop("model") == {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {"Ċ": 0, "Ġ": 1, "a": 2, "~": 3, "Z": 4},
        "merges": [],
    }
    assert own == dict.fromkeys(none) | {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": bytewise,
        "decoder": bytewise,
    }
    assert not read


def test_the_constants_of_the_format_are_the_models_own():
    """What config.json says of norms, feed-forward part and window is true of the model itself."""
    for model in (checkpoint.load()[0], checkpoint.load(transformer.DISTILLED)[0]):
        config, block = export.gpt2_config(model), model.blocks[0]
        norms = [norm for b in model.blocks for norm in (b.ln1, b.ln2)]
        assert {norm.eps for norm in [*norms, model.ln_f]} == {config["layer_norm_epsilon"]}
        up, activation, down, _ = block.ffwd.net
        assert up.out_features == down.in_features == config["n_inner"]
        assert type(activation).__name__.lower() == config["activation_function"]
        assert model.lm_head.weight is not model.token_embedding_table.weight
        assert model.position_embedding_table.num_embeddings == config["n_positions"]
        assert config["torch_dtype"] == str(model.lm_head.weight.dtype).removeprefix("torch.")


@pytest.mark.parametrize("K", [1, 3])
def test_every_setting_that_a_server_is_started_with(tmp_path, K):
    """K guesses are K steps of a chain; SGLang counts the current token among its draft tokens."""
    target, draft = (str(tmp_path.resolve() / name) for name in ("target", "draft"))
    guesses = {"method": "draft_model", "model": draft, "num_speculative_tokens": K}
    assert export.server_settings(tmp_path, K) == {
        "vllm.yaml": {"model": target, "dtype": "float32", "speculative-config": guesses},
        "sglang.yaml": {
            "model-path": target,
            "dtype": "float32",
            "speculative-algorithm": "STANDALONE",
            "speculative-draft-model-path": draft,
            "speculative-num-steps": K,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": K + 1,
        },
    }


def test_every_character_is_one_entry_and_nothing_is_merged():
    _, tokenizer = checkpoint.load()
    model = export.tokenizer_json(tokenizer)["model"]
    assert sorted(model["vocab"].values()) == list(range(65)) and model["merges"] == []
    assert model["vocab"]["Ġ"] == tokenizer.encode(" ")[0]
    assert model["vocab"]["Ċ"] == tokenizer.encode("\n")[0]


def test_a_vocabulary_that_is_not_ascii_is_refused_before_anything_is_written(tmp_path):
    model = SimpleNamespace(config=toy_target(2, 8).config)
    with pytest.raises(ValueError) as raised:
        export.export(model, CharTokenizer("aé"), tmp_path / "out")
    assert str(raised.value) == "'é' is no ASCII character, so no single token of bytes"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_or_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert nanogpt(["export", "--out", str(tmp_path / "file")]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    assert "cannot be written" in error and str(tmp_path / "file") in error
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root"
)
def test_a_folder_that_is_not_writable_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot be written"):
        export.main(["--out", str(tmp_path / "out")])
    tmp_path.chmod(0o700)


def test_the_command_writes_what_was_asked_for(tmp_path, capsys):
    export.main(["--out", str(tmp_path / "one")])
    export.main(["--out", str(tmp_path / "two"), "--draft", "--wide"])
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["target"]
    written = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert written == ["draft", "sglang.yaml", "target", "vllm.yaml"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5 and sum("parameters" in line for line in said) == 3


def test_the_servers_settings_are_yaml_and_name_the_folders(tmp_path):
    yaml = pytest.importorskip("yaml")  # JupyterLab brings it
    export.main(["--out", str(tmp_path), "--draft"])
    for name, settings in export.server_settings(tmp_path).items():
        assert yaml.safe_load((tmp_path / name).read_text(encoding="utf-8")) == settings
        assert str(tmp_path.resolve() / "draft") in str(settings)


# --- with transformers, which CI has


@pytest.fixture(scope="module", params=[False, True], ids=["as it is", "wide"])
def loaded(request, tmp_path_factory):
    """Their target, draft and tokenizer, from exported folders; and whether those are wide."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]'")
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    folder = tmp_path_factory.mktemp("pair")
    export.export_pair(folder, wide=request.param)
    load = transformers.AutoModelForCausalLM.from_pretrained
    target, draft = load(folder / "target").eval(), load(folder / "draft").eval()
    draft.generation_config.num_assistant_tokens = 4
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "target")
    return target, draft, tokenizer, request.param


def test_their_tokenizer_gives_every_character_back(loaded):
    _, tokenizer = checkpoint.load()
    theirs = loaded[2]
    assert len(theirs) == 65
    for text in (*tokenizer.chars, tokenizer.chars, "ROMEO:\n  What, ho!"):
        ids = theirs(text)["input_ids"]
        assert ids == tokenizer.encode(text) and theirs.decode(ids) == text


@pytest.mark.two_ways
def test_their_logits_are_ours(loaded):
    """As stored, in float32; and in float64, where √2 is not rounded to float32 on its way."""
    theirs, ours = loaded[0], checkpoint.load()[0]
    idx = torch.randint(65, (2, 128), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (theirs(idx).logits - ours(idx)[0]).abs().max() <= 1e-4
        doubled, ours = copy.deepcopy(theirs).double(), ours.double()
        doubled.load_state_dict(weights_of(ours, wide=loaded[3]))
        assert (doubled(idx).logits - ours(idx)[0]).abs().max() <= 1e-9


@pytest.mark.two_ways
def test_with_nothing_but_its_defaults_generate_samples_as_we_do(loaded):
    """As many tokens as asked for, newlines among them; no token cut off, none made likelier."""
    import transformers

    theirs, ours, n = loaded[0], checkpoint.load()[0], 120
    transformers.set_seed(0)
    prompt = torch.tensor([[1, 2, 3]])
    made = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=n,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens, scores = made.sequences, torch.stack(made.scores, dim=1)  # (1, 3 + n), (1, n, V)
    assert tokens.shape == (1, 3 + n) and 0 in tokens[0, 3:-1], "a newline ends nothing"
    with torch.no_grad():
        logits = ours(tokens[:, :-1])[0][:, 2:]
    torch.testing.assert_close(scores, logits, rtol=0, atol=1e-4)
    assert (tokens[0, 3:] != logits[0].argmax(-1)).any(), "they are drawn"


@pytest.mark.two_ways
def test_their_greedy_texts_are_ours(loaded):
    """3 prompts of 60 tokens; of the wide form, 2. With a draft, fewer passes."""
    target, draft, _, wide = loaded
    ours, tokenizer = checkpoint.load()
    exact = ours.double()
    text = torch.tensor(
        tokenizer.encode("What say you to my suit? I will not hear thee speak. " * 9)
    )
    prompts = [prompt[: 5 + i] for i, prompt in enumerate(prompts_of(text, 2 if wide else 3))]
    passes = []
    hook = target.register_forward_hook(lambda *_: passes.append(1))
    modes = {"plain": {}, "assisted": {"assistant_model": draft}}
    modes["lookup"] = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 3}
    needed = {}
    for mode, extra in modes.items():
        passes.clear()
        for prompt in prompts:
            idx = torch.tensor([prompt])
            what = {"attention_mask": torch.ones_like(idx), "max_new_tokens": 60, **extra}
            theirs = target.generate(idx, do_sample=False, **what)[0, len(prompt) :].tolist()
            assert len(theirs) == 60
            behind = behind_the_best(exact, prompt, theirs)  # 0, but at a tie: in float32
            assert behind.max() <= TIE, f"{mode}: {tokenizer.decode(prompt)!r}"
        needed[mode] = len(passes) / len(prompts)
    hook.remove()
    assert needed["plain"] == 60 and needed["assisted"] < 36 and needed["lookup"] < 60
