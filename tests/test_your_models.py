"""Models of transformers as targets and drafts: the contract, losslessness, what is refused."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import drained
from texts import off

from nanogpt import checkpoint
from nanogpt.__main__ import main as nanogpt
from nanogpt.cache import first
from nanogpt.course import demo
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.lookup import WideLookupDraft
from nanogpt.drafts.pairs import PairTokenizer, learn_merges
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.engines import causal, check, own
from nanogpt.engines.export import export_pair
from nanogpt.engines.places import Kind, Place, Report, Row
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.toys import context_start, random_draft
from nanogpt.same import SAME, SAME_TREE, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.server import Server
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.rules import accept_blockwise
from nanogpt.trees.tree import ReadText, select

transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")

AUTO = "AutoModelForCausalLM"
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
KINDS = {
    "GPT2": {"n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2},
    "Llama": {**SMALL, **HEADS},  # two heads share keys and values
    "Qwen3": {**SMALL, **HEADS, "head_dim": 4},
    "Mistral": {**SMALL, **HEADS, "sliding_window": 8},  # as long as the window
    "DeepseekV3": {  # keys are wider than values
        **SMALL, **HEADS, "num_key_value_heads": 4, "q_lora_rank": 4, "kv_lora_rank": 4,
        "qk_rope_head_dim": 2, "qk_nope_head_dim": 4, "v_head_dim": 3, "first_k_dense_replace": 9,
    },
}  # fmt: skip


def config(kind, **more):
    return getattr(transformers, f"{kind}Config")(**(NONE | KINDS.get(kind, {}) | more))


def made(kind, vocab_size=3, std=0.7, seed=0, **more):
    """A model of random weights in float64, large ones: all that it reads matters."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config(kind, vocab_size=vocab_size, **more)
    ).double()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=std)
    return model


def tiny(kind, window=8, **more):
    return causal.CausalModel(made(kind, **more), window)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Our pair as exported, and one on byte pairs, of random weights."""
    path = tmp_path_factory.mktemp("models")
    export_pair(path)
    text = "def f(x): return x\n" * 3 + "To be, or not to be: that is the question.\n" * 3
    chars = "".join(sorted({*text, *map(chr, range(32, 127)), "\t"}))
    tokenizer = PairTokenizer(chars, learn_merges(text, 40))
    for name, seed in (("big", 0), ("small", 1)):
        more = {"max_position_embeddings": 256, "hidden_size": 16}
        model = made("Llama", tokenizer.vocab_size, 0.3, seed, **more)
        causal.save(model.float(), tokenizer, path / name)
    return path


# --- the same distribution


# Of each kind: chains over a restart, and trees by the same dice, below.
@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=() if x == "Llama" else pytest.mark.wide) for x in KINDS]
)
def test_chains_blocks_and_trees_are_lossless_on_models_of_transformers(kind):
    target, draft = tiny(kind), random_draft(3)
    exact = exact_continuations(target, 3)
    assert len(exact) == 27 and max(exact.values()) < 0.6
    for steps in (CHAIN, replace(CHAIN, accept=accept_blockwise)):
        assert off(speculative_generate, target, draft, 3, K=2, steps=steps) <= 1e-12, steps
    assert off(tree_generate, target, Grown(draft, [2, 1]), 3) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_over_a_restart_with_a_model_as_draft_it_is_lossless(kind):
    """A window of 4: the third new token begins again from half of it."""
    target = tiny(kind, window=4)
    draft = causal.CausalDraft(tiny("Llama", seed=3), 3)
    assert off(speculative_generate, target, draft, 3, prompt=[0, 1, 2], K=2) <= 1e-12


@pytest.mark.two_ways
@pytest.mark.parametrize("kind", KINDS)
def test_by_the_same_dice_chains_and_trees_write_the_text_of_plain_decoding(kind):
    target, draft = tiny(kind), random_draft(3)
    for seed in range(3):
        asked = {"sampling": Sampling(), "rng": SameDice(seed, 2)}
        right = autoregressive_generate(target, [0, 1], 20, **asked).tokens
        asked["rng"] = SameDice(seed, 2)
        assert speculative_generate(target, draft, [0, 1], 20, 3, **asked, steps=SAME).tokens == (
            right
        )
        asked["rng"] = SameDice(seed, 2)
        grown = Grown(draft, [2, 2, 1])
        made_ = tree_generate(target, grown, [0, 1], 20, **asked, steps=SAME_TREE)
        assert made_.tokens == right


# --- passes and caches


@pytest.mark.two_ways
@pytest.mark.parametrize("kind", KINDS)
def test_passes_agree_with_and_without_cache_after_trims_in_trees_and_in_batches(kind):
    more = {"n_positions": 64} if kind == "GPT2" else {"max_position_embeddings": 64}
    more |= {"sliding_window": 64} if kind == "Mistral" else {}
    target = tiny(kind, 48, vocab_size=7, **more)
    tokens = torch.randint(7, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    for name, ask in own.PASSES.items():
        assert ask(target, tokens) < 1e-6, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_leaves_the_cache_that_it_was_handed_as_it_was(kind):
    target = tiny(kind)
    before = target(target.row([0, 1, 2]))[2]
    copies = [(k.clone(), v.clone()) for ((k, v),) in before]
    once = target(target.row([1, 1]), past_kvs=before)[0]
    target(target.row([2]), past_kvs=before)
    assert torch.equal(once, target(target.row([1, 1]), past_kvs=before)[0])
    for ((k, v),), (old_k, old_v) in zip(before, copies, strict=True):
        assert torch.equal(k, old_k) and torch.equal(v, old_v)
    assert first(before, 2)[0][0][0].shape[1] == 2 and select(before, [0, 2])[0][0][0].shape[1] == 2


def broken(name):
    """An adapter with one thing wrong, made after it has been let in."""

    class Broken(causal.CausalModel):
        def run(self, idx, pos, past_kvs, attn_mask, **asked):
            if name == "slots for positions":
                P = 0 if past_kvs is None else past_kvs[0][0][0].shape[1]
                pos = None if P + idx.shape[1] <= self.config.block_size else pos
            if name == "no mask":
                attn_mask = None
            if name == "positions from 0":
                pos = torch.arange(idx.shape[1]) if pos is None else pos
            out, kvs = super().run(idx, pos, past_kvs, attn_mask, **asked)
            if name == "one short":
                kvs = first(kvs, kvs[0][0][0].shape[1] - (past_kvs is not None))
            return out, kvs

        def probe(self):
            """Nothing is asked of it."""

    return Broken


@pytest.mark.parametrize(
    "name, seen",
    [
        ("slots for positions", "tree"),
        ("no mask", "tree"),
        ("positions from 0", "cache"),
        ("one short", "cache"),
    ],
)
def test_a_broken_adapter_is_seen_by_the_passes(name, seen):
    target = broken(name)(made("Llama", 7, max_position_embeddings=64), 48)
    tokens = torch.randint(7, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    ask = next(ask for what, ask in own.PASSES.items() if what.startswith(seen))
    try:
        off = ask(target, tokens)
    except (RuntimeError, ValueError):
        return  # seen as well
    assert off > 1e-3


def test_a_wrong_trim_is_seen(monkeypatch):
    target = tiny("Llama", 48, vocab_size=7, max_position_embeddings=64)
    tokens = torch.randint(7, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    monkeypatch.setattr(own, "first", lambda kvs, n: first(kvs, n + 1))
    assert own.trimmed(target, tokens) > 1e-3


@pytest.mark.parametrize("name", ["slots for positions", "no mask"])
def test_the_probe_refuses_a_model_that_does_not_heed_a_trees_mask_or_positions(name):
    class Broken(broken(name)):
        probe = causal.CausalModel.probe

    with pytest.raises(ValueError, match="does not heed"):
        Broken(made("Llama", 7), 16)


# --- the joints


@pytest.mark.two_ways
def test_batches_servers_and_constraints_take_one():
    target, draft = tiny("Llama", 16, vocab_size=5), random_draft(5)
    prompts, lengths = [[0, 1], [3, 2, 1, 4], [2]], [20, 7, 12]
    alone = [
        speculative_generate(target, draft, p, n, 3, Sampling(), RandomSource(b)).tokens
        for b, (p, n) in enumerate(zip(prompts, lengths, strict=True))
    ]
    rngs = [RandomSource(b) for b in range(3)]
    together = batch_generate(target, draft, prompts, lengths, 3, Sampling(), rngs)
    assert [one.tokens for one in together] == alone

    server = Server(target, draft, K=3)
    dice = [SameDice(b, len(p)) for b, p in enumerate(prompts)]
    for p, n, one in zip(prompts, lengths, dice, strict=True):
        server.submit(p, n, Sampling(), one, steps=SAME_TREE)
    done = drained(server)
    for b, (p, n) in enumerate(zip(prompts, lengths, strict=True)):
        dice = SameDice(b, len(p))
        assert done[b].tokens == autoregressive_generate(target, p, n, Sampling(), dice).tokens

    never = Constraints(bias={0: -1e9})
    assert 0 not in complete(target, [0, 1], 15, never, draft, 3).tokens


def test_models_as_drafts_are_asked_together_in_a_batch_and_say_what_they_say_alone():
    target, model = tiny("Llama", 16, vocab_size=5), tiny("GPT2", 16, vocab_size=7)
    draft, passes, run = causal.CausalDraft(model, 5), [], model.run
    model.run = lambda idx, *given, **asked: passes.append(len(idx)) or run(idx, *given, **asked)
    prompts, rngs = [[0, 1], [3, 2, 1, 4], [2]], [RandomSource(b) for b in range(3)]
    together = batch_generate(target, draft, prompts, 9, 3, Sampling(), rngs)
    assert max(passes) == 3
    for b, one in enumerate(together):
        alone = speculative_generate(target, draft, prompts[b], 9, 3, Sampling(), RandomSource(b))
        assert one.tokens == alone.tokens


def test_hidden_states_are_kept_for_drafts_that_read_them():
    target = tiny("Qwen3", 16)
    streams, _ = target.states(target.row([0, 1, 2]))
    assert len(streams) == 2
    assert torch.equal(target.lm_head(streams[-1]), target(target.row([0, 1, 2]))[0])
    text = ReadText(target, [0, 1, 2], 4)
    text.read()
    assert text.hidden.shape == (2, 8)
    with pytest.raises(ValueError, match="no early exit"):
        target.states(target.row([0]), depth=1)


def test_wide_lookup_tells_as_many_tokens_apart_as_there_are():
    q = WideLookupDraft(151_936).get_probs([150_000, 55_555, 7, 150_000])  # 55,555: a surrogate
    assert q.shape == (151_936,) and q[55_555] == 1


def test_a_grown_tree_needs_no_table_of_all_pairs_of_tokens():
    draft = WideLookupDraft(151_936)
    grown = Grown(draft, [2, 2])  # a table would have 23,000,000,000 numbers
    text = ReadText(tiny("Llama", vocab_size=5), [1, 2, 3, 1], 4)
    assert grown.propose(text, 2, Sampling(), RandomSource(0)).tokens == [2, 3]


# --- vocabularies


def test_a_draft_with_more_or_fewer_tokens_is_fitted_and_lossless():
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert causal.fitted(q, 5).tolist() == [0.5, 0.3, 0.2, 0.0, 0.0]
    assert causal.fitted(q, 2).tolist() == pytest.approx([0.625, 0.375], abs=1e-12)
    assert causal.fitted(q, 3) is q or torch.equal(causal.fitted(q, 3), q)
    with pytest.raises(ValueError, match="all of q"):
        causal.fitted(torch.tensor([0.0, 1.0]).double(), 1)
    for size in (2, 5):
        draft = causal.CausalDraft(tiny("GPT2", vocab_size=size), 3)
        assert off(speculative_generate, tiny("Llama"), draft, 3, prompt=[1, 1], K=2) <= 1e-12


def test_tokenizers_are_compared_by_what_they_read(folder):
    _, ours = causal.load(folder / "target")
    _, pairs = causal.load(folder / "big")
    causal.check_readers(pairs, causal.load(folder / "small")[1])
    with pytest.raises(ValueError, match="chapter 32"):
        causal.load_pair(folder / "big", folder / "draft")
    assert pairs.decode(pairs.encode("def f(x): return x")) == "def f(x): return x"

    class Lowers:
        """The same tokens, by the same numbers, and it reads them otherwise."""

        eos_token_id = None

        def get_vocab(self):
            return pairs.tokenizer.get_vocab()

        def __len__(self):
            return len(pairs.tokenizer)

        def __call__(self, text):
            return pairs.tokenizer(text.lower())

    with pytest.raises(ValueError, match="target and draft read 'To be"):
        causal.check_readers(pairs, causal.Reader(Lowers()))
    assert len(pairs.encode("def f(x)")) < len(ours.encode("def f(x)".replace("(", ",")))


# --- our own pair, loaded by the same code


@pytest.mark.two_ways
def test_our_exported_pair_is_our_pair(folder):
    target, reader, draft = causal.load_pair(folder / "target", folder / "draft", "float64")
    shipped, tokenizer = checkpoint.load()
    shipped, prompt = shipped.double(), reader.encode("ROMEO:\nWhat is")
    assert prompt == tokenizer.encode("ROMEO:\nWhat is")
    idx = torch.tensor([prompt])
    assert torch.allclose(target(idx)[0], shipped(idx)[0], rtol=0, atol=1e-9)
    right = autoregressive_generate(shipped, prompt, 150, Sampling(0)).tokens  # past the window
    made_ = speculative_generate(target, draft, prompt, 150, 4, Sampling(0))
    assert made_.tokens == right and made_.alpha > 0.4
    assert isinstance(draft, TransformerDraft)


def test_bfloat16_computes_in_bfloat16_and_draws_in_float64(folder):
    target, reader, draft = causal.load_pair(folder / "target", folder / "draft", "bfloat16")
    made_ = speculative_generate(target, draft, reader.encode("ROMEO:"), 20)
    assert target.dtype == torch.bfloat16
    assert made_.rounds[0].target_probs.dtype == torch.float64


# --- refusals: one line, before anything is written

LONG = {
    **SMALL, **HEADS, "original_max_position_embeddings": 6, "sliding_window": None,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
}  # fmt: skip
INSIDE = {"original_max_position_embeddings": 6, "short_mscale": 1.0, "long_mscale": 1.2}


@pytest.mark.parametrize(
    "kind, more, said",
    [
        ("Mistral", {"sliding_window": 5}, "drops what is 5 tokens back.*window=5"),
        ("Gemma3Text", {**SMALL, **HEADS, "head_dim": 4, "sliding_window": 5}, "drops what is 5"),
        ("Phi3", LONG, "past 6 tokens.*window=6"),
        (
            "Phimoe",
            {**LONG, "rope_scaling": LONG["rope_scaling"] | INSIDE},
            "past 6 tokens.*window=6",
        ),
        ("Mamba", {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2}, "keeps a state"),
        ("Qwen3Next", {**SMALL, **HEADS, "head_dim": 4}, "keeps a state.*chapter 33"),
        ("Cohere", {**SMALL, **HEADS, "logit_scale": 0.06}, "scales or caps its logits"),
        ("Gemma2", {**SMALL, **HEADS, "head_dim": 4, "sliding_window": 99}, "caps its logits"),
        ("Bloom", {"hidden_size": 8, "n_layer": 2, "n_head": 2}, "is not called as other models"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_in_one_line(kind, more, said):
    model = transformers.AutoModelForCausalLM.from_config(config(kind, vocab_size=5, **more))
    with pytest.raises(ValueError, match=said) as refused:
        causal.CausalModel(model, 12)
    assert "\n" not in str(refused.value)


def test_within_the_switch_of_its_angles_a_model_is_right():
    target = tiny("Phi3", 6, **LONG)
    whole = target(target.row([0, 1, 2, 1, 0, 2]))[0]
    past = target(target.row([0, 1, 2, 1]))[2]
    assert causal.relative(target(target.row([0, 2]), past_kvs=past)[0], whole[:, 4:]) < 1e-6
    with pytest.raises(ValueError, match=r"past 6 tokens.*window=6"):
        tiny("Phi3", 7, **LONG)
    target.model.config.rope_parameters = {"full_attention": target.model.config.rope_parameters}
    with pytest.raises(ValueError, match="window=6"):
        causal.check_trimmable(target.model, 7)


def test_windows_and_attention_are_checked():
    with pytest.raises(ValueError, match="window is 17; take 4 or more, of its 16"):
        tiny("GPT2", window=17)
    model = made("Llama", 5)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="takes no mask of a tree"):
        causal.CausalModel(model)


def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path, folder, monkeypatch):
    with pytest.raises(OSError, match="no model") as refused:
        causal.load(tmp_path)
    assert "\n" not in str(refused.value)
    for name in (tmp_path / "nothing", "./nothing"):
        with pytest.raises(OSError, match=r"no folder .*nothing'; give one"):
            causal.load(name)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        causal.load(folder / "big", "int8")
    with pytest.raises(ValueError, match="device 'meta' cannot be used here"):
        causal.load(folder / "big", device="meta")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="the extra oracle brings it"):
        causal.load(folder / "big")


POINTER = causal.POINTER + b"v1\noid sha256:00\nsize 1234\n"
FAULTS = {  # what becomes of a file, and what is said
    "a pointer": ("model.safetensors", lambda _: POINTER, "model.safetensors is a Git LFS pointer"),
    "another": ("tokenizer.json", lambda _: POINTER, "tokenizer.json is a Git LFS pointer"),
    "half": (
        "model.safetensors",
        lambda x: x[: len(x) // 2],
        "model.safetensors is not a complete",
    ),
    "its header": ("model.safetensors", lambda x: x[:40], "model.safetensors is not a complete"),
    "nothing": ("model.safetensors", lambda _: b"", "model.safetensors is not a complete"),
    "no tensor": ("model.safetensors", lambda x: without(x, "layers.1.mlp.up"), "such as model.la"),
    "no vector": ("model.safetensors", lambda x: without(x, "model.norm"), "such as model.norm"),
    "no config": ("config.json", lambda x: x[:99], "config.json is not a complete json file"),
    "no kind": ("config.json", lambda _: b"{}", "model_type"),
    "no tokenizer": (
        "tokenizer.json",
        lambda x: x[:99],
        "tokenizer.json is not a complete json file",
    ),
    "no tokens": ("tokenizer.json", lambda _: b"{}", "KeyError: 'added_tokens'"),
    "no numbers": ("model.safetensors", lambda x: without(x, ""), "logits that are not numbers"),
    "sizes": ("config.json", lambda x: x.replace(b": 16,", b": 24,"), "21 .* the wrong shape"),
}


def without(file, name):
    """A file of weights that lacks one; of all of them, NaN in their place."""
    weights = safetensors.torch.load(file)
    weights = {one: x if name else x * math.nan for one, x in weights.items()}
    if name:
        del weights[next(one for one in weights if name in one)]
    return safetensors.torch.save(weights, {"format": "pt"})


@pytest.mark.parametrize("name, change, said", FAULTS.values(), ids=FAULTS)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(
    name, change, said, folder, tmp_path, capsys
):
    shutil.copytree(folder / "big", tmp_path / "big")
    file = tmp_path / "big" / name
    file.write_bytes(change(file.read_bytes()))
    assert nanogpt(["check", str(tmp_path / "big")]) == 2
    told = capsys.readouterr().err
    assert re.search(said, told) and told.startswith("error: ") and told.count("\n") == 1


def test_no_code_of_a_folder_is_run(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "y")
    for kind in ("llama", "mine"):  # one that transformers knows, and one that it does not
        shutil.copytree(folder / "big", tmp_path / kind)
        has = json.loads((tmp_path / kind / "config.json").read_text())
        has |= {"model_type": kind, "auto_map": {x: f"own.{x}" for x in ("AutoConfig", AUTO)}}
        (tmp_path / kind / "config.json").write_text(json.dumps(has))
        (tmp_path / kind / "own.py").write_text("raise SystemExit(0)")
    assert type(causal.load(tmp_path / "llama")[0].model).__name__ == "LlamaForCausalLM"
    with pytest.raises(OSError, match=r"no model .*mine': it needs code of its own"):
        causal.load(tmp_path / "mine")


@pytest.mark.parametrize("name", ["./gone", "~/gone", "a/b/c", "gone/", "there/gone", "there/file"])
def test_what_can_only_be_a_path_is_no_name_on_the_hub(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for word in (["check"], ["demo", "--model"]):
        assert nanogpt([*word, name]) == 2
        assert capsys.readouterr().err.startswith(f"error: no folder '{name}'; give one")
    assert nanogpt(["audit", name]) == 2
    why = " is no file that ends in .py" if name != "there/file" else ": 0 tokens came"  # a log
    assert f"{Path(name)}{why}" in capsys.readouterr().err


def test_a_name_that_is_no_folder_either_is_said_to_be_none(monkeypatch):
    def nothing(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", nothing)
    with pytest.raises(OSError, match="no folder 'models/x', and no model of this name: no netw"):
        causal.load("models/x")


# --- the commands


def test_check_says_right_of_a_right_pair(folder, capsys):
    names = [str(folder / name) for name in ("big", "small")]
    code = check.main([*names, "--samples", "12", "--tokens", "12"])
    said, ends = capsys.readouterr().out, {0: "verdict: right\n", 2: "wrong; give more\n"}
    assert said.endswith(ends[code]) and said.count("3 of 3 texts equal") == 2
    assert "LlamaForCausalLM" in said and re.search(r"α 0\.\d\d ± 0\.\d\d, .* tokens a pass", said)


def test_check_takes_a_window_and_writes_what_it_found(folder, tmp_path, capsys):
    model = made("Mistral", 128, 0.3, max_position_embeddings=256, sliding_window=40)
    model.float().save_pretrained(tmp_path)
    for file in (folder / "big").glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    asked = ["check", str(tmp_path), "--samples", "12", "--tokens", "50", "--prompt", "def"]
    assert nanogpt(asked) == 2 and "with window=40 or less" in capsys.readouterr().err
    code = nanogpt([*asked, "--window", "40", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert "window 40," in capsys.readouterr().out and code == found["exit_code"] != 1
    assert found["wrong"] == [] and [*found["passes"]] == [*own.PASSES]
    assert found["greedy"]["chain of 4"] == [{"place": None, "margin": 0.0}]
    assert found["samples"]["tree 2 2 1"]["rows"] and found["at_1"]["tokens_a_pass"] >= 1
    pair = ["--model", str(tmp_path), "--draft", str(tmp_path)]
    assert nanogpt(["demo", *pair, "--window", "40", "--tokens", "50"]) == 0
    assert nanogpt(["demo", "--window", "40"]) == 2


@pytest.mark.parametrize("blind", [(False, False), (True, False), (False, True)])
def test_samples_that_are_too_few_for_one_loop_are_too_few(blind, capsys, monkeypatch):
    """Right is not said of what a wrong decoder passes."""
    each = iter(blind)

    def sampled(*_):
        kinds = [Kind("", 0 if next(each) else 20)]
        row = Row("", places={"": [Place("all places", 0.5, 0.5, 0.0)]}, kinds=kinds)
        return Report("", "", "", "", 0, 40, 1e-6, 0, rows=[row])

    monkeypatch.setattr(check.own, "sampled", sampled)
    target = tiny("Llama", 40, max_position_embeddings=40)
    given = target, random_draft(3), [[0, 1]], [0, 1, 2, 2, 1, 0] * 6
    assert check.check(*given, n=4, samples=40)["exit_code"] == 2 * any(blind)
    few = "none: 40 samples are too few to see what is grossly wrong; give more"
    assert capsys.readouterr().out.endswith(f"verdict: {few if any(blind) else 'right'}\n")


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_asked(folder, capsys):
    with pytest.raises(ValueError, match="a prompt has 120 tokens, and 10 more are drawn"):
        check.main([str(folder / "target"), str(folder / "draft"), "--prompt", "a" * 120])
    with pytest.raises(ValueError, match="samples is 9; it must be a whole number from 10"):
        check.main([str(folder / "target"), "--samples", "9"])
    assert "passes of the target" not in capsys.readouterr().out


def test_check_is_1_where_a_decoder_is_wrong(folder, capsys, monkeypatch):
    target, reader, draft = causal.load_pair(folder / "target", folder / "draft")
    wrong = broken("no mask")(target.model)
    prompts = [reader.encode("ROMEO:")]
    found = check.check(wrong, draft, prompts, list(range(40)), n=12, samples=12)
    assert found["exit_code"] == 1 and "tree" in found["wrong"]
    assert "WRONG in tree" in capsys.readouterr().out


def test_samples_of_a_wrong_rule_are_refused(folder):
    target, reader, draft = causal.load_pair(folder / "target", folder / "draft")

    def from_p(candidates, q, p, rng):  # gallery, 1: on rejection, draws from p
        for i, token in enumerate(candidates):
            if not rng.bernoulli(min(1.0, float(p[i, token] / q[i, token]))):
                return [*candidates[:i], rng.categorical(p[i])]
        return [*candidates, rng.categorical(p[len(candidates)])]

    def decode(prompt, n, sampling, rng):
        steps = replace(CHAIN, accept=from_p)
        return speculative_generate(target, draft, prompt, n, 4, sampling, rng, steps=steps)

    report = own.sampled(target, decode, reader.encode("No more, no more, no "), 2, 400)
    assert not report.right


@pytest.mark.parametrize("place", [3, 9])
def test_a_greedy_text_that_parts_is_told_with_the_margin_of_its_two_tokens(place):
    """The least likely token is no tie, however near the two best are; after a restart, too."""
    target, prompt = tiny("Llama", 8, vocab_size=5), [0, 1]
    right = autoregressive_generate(target, prompt, 18, Sampling(0)).tokens
    start = context_start(2 + place, 2, 8)
    assert 2 + place - start < 8, "a window that is not full: its last 8 tokens are others"
    logits = own.logits_of(target, [*prompt, *right[:place]][start:])[-1]
    least, a = int(logits.argmin()), right[place]
    assert int(logits.argmax()) == a

    def decode(prompt, n, sampling, rng):
        made_ = autoregressive_generate(target, prompt, n, sampling)
        made_.tokens[place] = least
        return made_

    found = own.greedy(target, decode, prompt, 18)
    apart = float((logits[a] - logits[least]) / logits.abs().max())
    assert found.place == place and found.margin == pytest.approx(apart, abs=1e-9)
    assert found.margin > own.bound_of(target)


def test_the_demo_shows_any_pair(folder, capsys):
    asked = ["--model", str(folder / "big"), "--tokens", "12", "--prompt", "def f"]
    asked += ["--temperature", "0"]
    small = str(folder / "small")
    for draft, said in (([], "lookup draft, K = 4"), (["--draft", small], "K = 4")):
        demo.main([*asked, *draft])
        out = capsys.readouterr().out
        assert said in out and "speculative: 12 tokens in" in out
        text = [part.split("\n", 1)[1] for part in out.split("--- ")[1:]]
        assert text[1].startswith(text[0].rstrip()), "greedy: both decoders write the same"
    demo.main([*asked, "--draft", small, "--tree", "2", "1"])
    assert "a tree of widths 2 1" in capsys.readouterr().out
    with pytest.raises(OSError, match="no folder"):
        demo.main([*asked, "--draft", "./nothing"])
    with pytest.raises(ValueError, match="--target is a form of our own model"):
        demo.main([*asked, "--target", "fused"])


def test_without_transformers_the_command_says_what_to_install(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert nanogpt(["check", str(folder / "big")]) == 2
    said = capsys.readouterr().err
    assert "pip install -e '.[oracle]'" in said and said.count("\n") == 1
