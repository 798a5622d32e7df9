"""Training learns, can be stopped anywhere, and goes on to the very same weights."""

import functools
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import make_model

from nanogpt import checkpoint, data, train
from nanogpt.__main__ import main as command_line
from nanogpt.drafts.eagle import EagleHead
from nanogpt.drafts.itself import OwnBlock
from nanogpt.drafts.parallel import BlockDrafter
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.targets.state import StateConfig, StateLanguageModel
from nanogpt.train import evaluate, learning_rate, main, make_optimizer, on_text

SMALL = [
    "--steps=30",
    "--n-layer=1",
    "--n-embd=8",
    "--n-head=2",
    "--block-size=16",
    "--batch-size=4",
]


TEXT = "to be or not to be, that is the question.\n" * 40
ALONE = f"""import sys; from nanogpt import data, train; from nanogpt.__main__ import main
train.load_corpus, train.SAVE_EVERY = lambda: data.Corpus("a toy", {TEXT!r}, ""), 7
sys.exit(main())"""  # the same in a process of its own


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    """A short text, so that evaluating it takes no time; and frequent checkpoints."""
    monkeypatch.setattr(train, "load_corpus", lambda: data.Corpus("a toy", TEXT, "0" * 64))
    monkeypatch.setattr(train, "SAVE_EVERY", 7)
    monkeypatch.setattr(train, "EVALUATE_EVERY", 10)


def weights(path):
    return checkpoint.load(path)[0].state_dict()


@functools.cache
def whole(dropout, folder):
    """The weights of a training that nobody stopped; `folder` is one for all tests."""
    main([f"--out={folder / str(dropout)}", *SMALL, f"--dropout={dropout}"])
    return weights(folder / str(dropout))


def assert_equal_weights(a, b):
    assert all(torch.equal(a[name], b[name]) for name in a | b)


def test_the_batch_loss_falls_and_the_file_tells_how_it_was_made(tmp_path, capsys):
    out = tmp_path / "m.safetensors"
    main([f"--out={out}", *SMALL, "--steps=200"])
    header = checkpoint.read_header(out)
    assert header["facts"]["val_loss"] < 0.6 * math.log(len(header["vocabulary"]))
    assert (
        header["facts"]["settings"] | {"steps": 200, "seed": 1337, "n_embd": 8}
        == (header["facts"]["settings"])
    )
    assert header["facts"]["settings"]["corpus_sha256"] == "0" * 64
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.safetensors"]
    assert "validation loss" in capsys.readouterr().out


# Dropout draws, so that to go on with it asks for more.
WIDE = pytest.mark.wide
STOPS = [(stop_at, 0.2) for stop_at in (1, 7, 20, 29)] + [(7, 0.0)]
STOPS += [pytest.param(stop_at, 0.0, marks=WIDE) for stop_at in (1, 20, 29)]


@pytest.mark.parametrize("stop_at, dropout", STOPS)
def test_a_training_that_was_stopped_reaches_the_same_weights(
    tmp_path, tmp_path_factory, monkeypatch, stop_at, dropout
):
    arguments = [*SMALL, f"--dropout={dropout}"]
    right = whole(dropout, tmp_path_factory.getbasetemp())

    def interrupted(*args):
        for step, loss in real_train(*args):
            yield step, loss
            if step == stop_at:
                raise KeyboardInterrupt

    real_train = train.train
    out = tmp_path / "parts.safetensors"
    monkeypatch.setattr(train, "train", interrupted)
    with pytest.raises(KeyboardInterrupt, match="goes on from the last checkpoint"):
        main([f"--out={out}", *arguments])
    assert not out.exists()
    monkeypatch.setattr(train, "train", real_train)
    torch.manual_seed(12345)  # a new process would have another global state
    main([f"--out={out}", *arguments])
    assert_equal_weights(weights(out), right)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_ctrl_c_in_a_real_process_leaves_a_whole_checkpoint(tmp_path):
    out = tmp_path / "m.safetensors"
    small = [*SMALL, "--steps=100000"]  # never done within the test
    command = [sys.executable, "-c", ALONE, "train", f"--out={out}", *small]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # what runs in a shell's background ignores Ctrl-C, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    state, deadline = out.with_suffix(".training.safetensors"), time.monotonic() + 300
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    said = "stopped; the same command goes on from the last checkpoint"
    assert err.splitlines()[-1] == said
    assert checkpoint.read_header(state)["facts"]["step"] >= 7
    assert not out.exists()


def test_a_full_disk_ends_training_in_one_line_and_leaves_no_half_of_a_file(tmp_path, capsys):
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    out = tmp_path / "m.safetensors"
    state = out.with_suffix(".training.safetensors")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        assert command_line(["train", f"--out={out}", *SMALL]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {state} cannot be written (file too large), and is as it was")
    assert not list(tmp_path.iterdir())


def test_going_on_with_other_settings_is_refused_and_loses_nothing(tmp_path, monkeypatch):
    out = tmp_path / "m.safetensors"
    monkeypatch.setattr(train.checkpoint, "save", stop_after_state(train.checkpoint.save))
    with pytest.raises(KeyboardInterrupt):
        main([f"--out={out}", *SMALL])
    state = out.with_suffix(".training.safetensors")
    before = state.read_bytes()
    with pytest.raises(ValueError, match="seed 1337, now 2"):
        main([f"--out={out}", *SMALL, "--seed=2"])
    assert state.read_bytes() == before


def stop_after_state(save):
    def saved(*args):
        save(*args)
        raise KeyboardInterrupt

    return saved


def test_a_finished_model_is_not_overwritten(tmp_path):
    out = tmp_path / "m.safetensors"
    out.write_text("mine")
    with pytest.raises(ValueError, match="exists"):
        main([f"--out={out}", *SMALL])
    assert out.read_text() == "mine"


@pytest.mark.parametrize("wrong", ["--steps=0", "--batch-size=-1", "--learning-rate=nan"])
def test_impossible_settings_are_refused_by_name(tmp_path, wrong):
    name = wrong[2:].split("=")[0].replace("-", "_")
    with pytest.raises(ValueError, match=f"{name} is .*above 0"):
        main([f"--out={tmp_path / 'm.safetensors'}", *SMALL, wrong])


@pytest.mark.parametrize("device", ["cuda", "mps", "nowhere", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused_in_one_line(tmp_path, device):
    if device in ("cuda", "mps") and getattr(torch, device).is_available():
        pytest.skip(f"{device} is there")
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here") as raised:
        main(["--device", device, "--out", str(tmp_path / "x.safetensors")])
    assert (
        "\n" not in str(raised.value)
        and "use cpu" in str(raised.value)
        and len(str(raised.value)) < 400
    )
    assert list(tmp_path.iterdir()) == []


def test_evaluate_is_the_mean_over_all_consecutive_windows(tiny):
    tokens = torch.randint(11, (12 * 7 + 5,), generator=torch.Generator().manual_seed(0))
    losses = [
        tiny(w[None, :-1], w[None, 1:])[1].item() for w in tokens[: 12 * 7 + 1].unfold(0, 13, 12)
    ]
    assert len(losses) == 7
    assert evaluate(tiny, tokens, batch_size=3) == pytest.approx(sum(losses) / 7, abs=1e-12)


def test_evaluate_leaves_the_mode_as_it_was(tiny):
    tokens = torch.zeros(30, dtype=torch.int64)
    for mode in (True, False):
        tiny.train(mode)
        evaluate(tiny, tokens)
        assert tiny.training is mode


def test_evaluate_refuses_a_text_shorter_than_a_window(tiny):
    with pytest.raises(ValueError, match="12 tokens are too few"):
        evaluate(tiny, torch.zeros(12, dtype=torch.int64))


def test_the_learning_rate_warms_up_and_falls():
    rates = [learning_rate(step, 1000, 4e-3) for step in range(1000)]
    assert rates[0] == pytest.approx(4e-5) and max(rates) < 4e-3
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)


def test_an_update_draws_from_the_seed_and_its_own_number_alone():
    """Where training starts does not matter, nor what was drawn before; dropout is seeded, too."""
    drawn = []

    def loss_of(generator):
        drawn.append((torch.rand(3, generator=generator).tolist(), torch.rand(2).tolist()))
        return model(torch.ones(1, 2)).sum()

    model = torch.nn.Linear(2, 1)
    runs = {}
    for start in (0, 2):
        drawn.clear()
        torch.manual_seed(start)  # of no use
        run = train.train(model, make_optimizer(model), loss_of, 5, seed=7, start=start)
        assert [step for step, _ in run] == [*range(start + 1, 6)]
        runs[start] = [*drawn]
    assert runs[2] == runs[0][2:]
    for step, (own, everywhere) in enumerate(runs[0]):
        generator = torch.Generator().manual_seed(7_000_000 + step)
        assert own == torch.rand(3, generator=generator).tolist()
        assert everywhere == torch.rand(2, generator=generator).tolist()


def test_the_loop_is_the_one_that_is_written_out_by_hand():
    """Batches, rates, clipping and the optimizer: the same weights, bit for bit."""
    tokens = torch.randint(11, (300,), generator=torch.Generator().manual_seed(0))
    model, other = (make_model(dtype=torch.float32).requires_grad_() for _ in range(2))
    of_text = on_text(model, tokens, 4)
    optimizer = make_optimizer(model)  # 100 times: so that the gradient is long enough to clip
    said = list(train.train(model, optimizer, lambda g: 100 * of_text(g), 6, peak=0.3, seed=2))
    optimizer = make_optimizer(other)
    for step in range(6):
        generator = torch.Generator().manual_seed(2_000_000 + step)
        x, y = data.get_batch(tokens, 4, 12, generator)
        loss = 100 * other(x, y)[1]
        for group in optimizer.param_groups:
            group["lr"] = 0.3 * (step + 1) / 100 * 0.5 * (1 + math.cos(math.pi * step / 6))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
        assert said[step] == (step + 1, loss.item())
    assert_equal_weights(model.state_dict(), other.state_dict())


def test_the_optimizer_decays_matrices_only():
    model = make_model()
    decayed, plain = make_optimizer(model).param_groups
    assert {p.dim() for p in decayed["params"]} == {2} and decayed["weight_decay"] > 0
    assert {p.dim() for p in plain["params"]} == {1} and plain["weight_decay"] == 0
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


WIDE = GPTConfig(65, 32, n_layer=2, n_head=2, n_embd=64)
NEW = {  # what is trained, and of which of its matrices torch's own beginnings are kept
    "target": (lambda: GPTLanguageModel(WIDE), ()),
    "with states": (lambda: StateLanguageModel(StateConfig(65, 32, 2, 2, 64, recurrent=(1,))), ()),
    "head": (lambda: EagleHead(WIDE, (1, 2)), ("mix.weight", "fc.weight")),
    "own block": (lambda: OwnBlock(WIDE).qkv, ()),
    "tables": (lambda: BlockDrafter(WIDE, (1,), 4), ("project", "block", "w2")),
}


@pytest.mark.parametrize("name", NEW)
def test_matrices_begin_around_0_with_a_spread_of_a_tenth(name):
    torch.manual_seed(3)
    make, torchs = NEW[name]
    for what, p in make().named_parameters():
        if p.dim() == 2 and not what.startswith(torchs or "-"):
            few = 5 * 0.1 / p.numel() ** 0.5  # five standard errors
            assert abs(float(p.detach().mean())) < few, what
            assert abs(float(p.detach().std()) - 0.1) < few, what


@pytest.mark.parametrize("name", ["target", "with states"])
def test_biases_begin_at_0_and_layer_norms_change_nothing(name):
    for what, p in NEW[name][0]().named_parameters():
        if p.dim() == 1:
            assert p.eq(float("ln" in what and what.endswith("weight"))).all(), what
