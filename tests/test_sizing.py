"""Operations, bytes and parameters are those of real tensors; rooflines are sums done by hand."""

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sizing import (
    Machine,
    arithmetic_intensity,
    kv_cache_bytes,
    parameters,
    pass_bytes,
    pass_flops,
    pass_seconds,
)


def test_a_roofline_is_flat_until_the_ridge():
    machine = Machine(flops=1e15, bandwidth=2e12)
    assert machine.ridge == 500
    weights = 7e10
    seconds = [
        machine.seconds(pass_flops(weights, T), pass_bytes(weights, 2)) for T in (1, 500, 1000)
    ]
    assert seconds == pytest.approx([0.07, 0.07, 0.14])
    assert arithmetic_intensity(500, 2) == 500


def test_the_memory_of_a_cache_is_what_its_tensors_take():
    config = GPTConfig(vocab_size=7, block_size=16, n_layer=2, n_head=2, n_embd=8)
    _, _, cache = GPTLanguageModel(config)(torch.zeros(1, 10, dtype=torch.int64))
    real = sum(t.numel() * t.element_size() for layer in cache for kv in layer for t in kv)
    assert kv_cache_bytes(config.n_layer, config.n_embd, 10) == real


def test_parameters_are_counted_as_the_model_has_them():
    for config in (GPTConfig(), GPTConfig(11, 12, 3, 2, 8), checkpoint.load()[0].config):
        model = GPTLanguageModel(config)
        assert parameters(config) == sum(p.numel() for p in model.parameters())


def test_kernels_run_one_after_the_other():
    machine = Machine(flops=100, bandwidth=10)
    assert pass_seconds(machine, 20, 1, 2) == pytest.approx(4.0)  # 40 bytes; .4 s of products
    assert pass_seconds(machine, 20, 50, 2) == pytest.approx(20.0)  # 2,000 operations
    both = pass_seconds(machine, 20, 50, 2, cache_bytes=30)
    assert both == pytest.approx(23.0), "reading the cache is not hidden behind the products"
