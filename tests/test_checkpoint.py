"""Checkpoints hold a model, its vocabulary and its facts, run no code, and fail with a way out."""

import json
import pickle

import pytest
import safetensors.torch
import torch
from conftest import TINY, make_model

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer

TOKENIZER = CharTokenizer("\n abcdefghi")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "model.safetensors"
    checkpoint.save(path, make_model(dtype=torch.float32), TOKENIZER, {"steps": 3})
    return path


def test_what_was_saved_is_loaded(path):
    model, tokenizer = checkpoint.load(path)
    assert model.config == TINY and tokenizer.chars == TOKENIZER.chars
    assert not model.training
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
