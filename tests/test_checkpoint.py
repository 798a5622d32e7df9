"""Checkpoints hold a model, its vocabulary and its facts, run no code, and fail with a way out."""

import json
import pickle
import re

import pytest
import safetensors.torch
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer
from nanogpt.drafts import eagle, itself, parallel, transformer
from nanogpt.model import GPTConfig

TOKENIZER = CharTokenizer("\n abcdefghi")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "model.safetensors"
    checkpoint.save(path, make_model(dtype=torch.float32), TOKENIZER, {"steps": 3})
    return path


def test_what_was_saved_is_loaded(path):
    model, tokenizer = checkpoint.load(path)
    assert model.config == TINY and tokenizer.chars == TOKENIZER.chars
    assert not model.training and all(p.requires_grad for p in model.parameters())  # to go on
    for name, weight in make_model(dtype=torch.float32).state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert checkpoint.read_header(path)["facts"] == {"steps": 3}


def test_the_same_model_makes_the_same_file(path, tmp_path):
    again = tmp_path / "again.safetensors"
    checkpoint.save(again, make_model(dtype=torch.float32), TOKENIZER, {"steps": 3})
    assert again.read_bytes() == path.read_bytes()


def test_extra_tensors_do_not_disturb_loading(path, tmp_path):
    extra = tmp_path / "extra.safetensors"
    checkpoint.save(extra, *checkpoint.load(path), {}, {"optimizer/x": torch.ones(2)})
    assert checkpoint.load(extra)[0].config == TINY


def written_plainly(path, tensors, header):
    """The bytes of a file of these tensors and this header, by safetensors alone."""
    safetensors.torch.save_file(tensors, path, {checkpoint.HEADER: json.dumps(header)})
    return path.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_module_is_saved_whole_and_comes_back_frozen(tmp_path, dtype):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3, affine=False))
    checkpoint.save_module(tmp_path / "it", module, TOKENIZER, {"steps": 3}, dtype, width=2)
    plain = {name: t.to(dtype) for name, t in module.state_dict().items()}  # buffers, too
    header = {"width": 2, "vocabulary": TOKENIZER.chars, "facts": {"steps": 3}}
    plainly = written_plainly(tmp_path / "plain", plain, header)
    assert (tmp_path / "it").read_bytes() == plainly

    def build(header, tensors):
        assert tensors.keys() == plain.keys()
        linear = torch.nn.Linear(header["width"], 3)
        return torch.nn.Sequential(linear, torch.nn.BatchNorm1d(3, affine=False))

    made = checkpoint.load_module(tmp_path / "it", build, "pair", "make it")
    assert not made.training and not any(p.requires_grad for p in made.parameters())
    for name, t in made.state_dict().items():
        assert t.dtype == module.state_dict()[name].dtype
        assert torch.equal(t, plain[name].to(t.dtype))


def test_several_modules_share_a_file_each_under_its_name(tmp_path):
    pair = {"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2, bias=False)}
    checkpoint.save_module(tmp_path / "pair", pair, TOKENIZER, {})
    tensors = safetensors.torch.load_file(tmp_path / "pair")
    assert sorted(tensors) == ["a/bias", "a/weight", "b/weight"]

    def build(*_):
        return {"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2, bias=False)}

    made = checkpoint.load_module(tmp_path / "pair", build, "pair", "make it")
    for name, module in made.items():
        assert torch.equal(module.weight, pair[name].weight.half().float())
        assert not module.training and not module.weight.requires_grad


@pytest.mark.parametrize("lost", ["weight", "bias", "config"])
def test_a_file_that_lacks_something_of_a_module_is_refused(tmp_path, lost):
    path, linear = tmp_path / "it", torch.nn.Linear(2, 2)
    checkpoint.save_module(path, linear, TOKENIZER, {}, **{"config": 2} if lost != "config" else {})
    tensors = safetensors.torch.load_file(path)
    tensors.pop(lost, None)
    checkpoint.save_tensors(path, tensors, checkpoint.read_header(path))
    why = f"{path} holds no layer (it lacks {lost}); make one with `make it`"

    def build(header, _):
        return torch.nn.Linear(header["config"], 2)

    with pytest.raises(ValueError, match=re.escape(why)):
        checkpoint.load_module(path, build, "layer", "make it")


def exits_again(path, tokenizer, facts):
    header = checkpoint.read_header(itself.EXITS)
    loaded = {name: itself.load_exits(adapter=name) for name in itself.ADAPTERS}
    exits = {name: loaded[name.split(" ", 1)[1]][int(name[0])] for name in header["exits"]}
    config = GPTConfig(**header["config"])
    itself.save_exits(path, torch.nn.ModuleDict(exits), config, tokenizer, facts)


SHIPPED = {  # file: how it is loaded and saved again
    checkpoint.TARGET: lambda path, *rest: checkpoint.save(path, checkpoint.load()[0], *rest),
    transformer.DISTILLED: lambda path, *rest: checkpoint.save(
        path, transformer.load().model, *rest
    ),
    itself.EXITS: exits_again,
    parallel.MEDUSA: lambda path, *rest: parallel.save(path, parallel.load(), *rest),
    parallel.KEPT: lambda path, *rest: parallel.save(path, parallel.load(parallel.KEPT), *rest),
    parallel.BLOCK: lambda path, *rest: parallel.save_block(path, parallel.load_block(), *rest),
    eagle.EAGLE: lambda path, *rest: eagle.save(path, eagle.load(), *rest),
    eagle.EAGLE3: lambda path, *rest: eagle.save(path, eagle.load(eagle.EAGLE3), *rest),
    eagle.MTP: lambda path, *rest: eagle.save_mtp(path, *eagle.load_mtp(), *rest),
}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_that_is_loaded_and_saved_again_is_the_same_file(path, tmp_path):
    header = checkpoint.read_header(path)
    SHIPPED[path](tmp_path / "again", CharTokenizer(header["vocabulary"]), header["facts"])
    plainly = written_plainly(tmp_path / "plain", safetensors.torch.load_file(path), header)
    assert (tmp_path / "again").read_bytes() == plainly


def refused(path, error, why):
    with pytest.raises(error) as raised:
        checkpoint.load(path)
    message = str(raised.value)
    assert str(path) in message and why in message and "nanogpt train" in message
    assert "\n" not in message


def test_a_missing_checkpoint_names_path_and_command(tmp_path):
    refused(tmp_path / "none.safetensors", FileNotFoundError, "no checkpoint")


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_truncated_checkpoint_is_refused(path, size):
    path.write_bytes(path.read_bytes()[:size])
    refused(path, ValueError, "not a whole safetensors file")


def test_a_file_that_is_no_safetensors_is_refused_and_none_of_it_runs(path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("code in a checkpoint was run",))

    path.write_bytes(pickle.dumps(Bomb()))
    refused(path, ValueError, "not a whole safetensors file")


def test_a_safetensors_file_of_somebody_else_is_refused(path):
    safetensors.torch.save_file({"w": torch.ones(1)}, path)
    refused(path, ValueError, "no 'nanogpt' header")


def test_a_checkpoint_without_one_of_its_tensors_is_refused(path):
    tensors = safetensors.torch.load_file(path)
    del tensors["ln_f.weight"]
    header = {checkpoint.HEADER: json.dumps(checkpoint.read_header(path))}
    safetensors.torch.save_file(tensors, path, header)
    refused(path, ValueError, "ln_f.weight")


def test_the_shipped_target_is_what_it_says():
    header = checkpoint.read_header(checkpoint.TARGET)
    assert len(header["vocabulary"]) == header["config"]["vocab_size"] == 65
    assert header["facts"]["val_loss"] <= 1.60
    assert header["facts"]["seconds"] <= 600
    assert header["facts"]["settings"]["corpus"] == "Tiny Shakespeare"
    assert checkpoint.TARGET.stat().st_size < 1_000_000
