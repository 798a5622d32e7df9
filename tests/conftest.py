"""What the tests share: one thread per process, tiny models, and the real corpus's place."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the notebooks' kernels inherit it

import pytest
import torch

from nanogpt.model import GPTConfig, GPTLanguageModel

torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whole files to one worker each, as loadfile does, but long tests that need no other alone."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid):
            alone = nodeid.startswith("tests/test_notebooks_alone.py")
            return nodeid if alone else super()._split_scope(nodeid)

    return Scheduler(config, log)


TINY = GPTConfig(vocab_size=11, block_size=12, n_layer=2, n_head=2, n_embd=8)


def make_model(config=TINY, seed=0, dtype=torch.float64):
    """A random model, in eval mode, with weights large enough that every token matters."""
    torch.manual_seed(seed)
    model = GPTLanguageModel(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()


@pytest.fixture
def tiny():
    return make_model()
