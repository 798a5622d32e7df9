"""Training: one loop for every model and every draft, and the target's own training.

`nanogpt train` trains the target; `--help` says what can be set. The defaults are those
of the shipped target. Training can be stopped at any time; the same command goes on from the last
checkpoint and reaches the same weights, bit for bit, on the same machine.

`on_text` and `evaluate` bring each batch to the model's device. What the loss of a draft takes lies
where the target and the draft do.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, INSTALLED, CharTokenizer, get_batch, load_corpus, train_val_split
from nanogpt.model import GPTConfig, GPTLanguageModel

# in a clone beside the shipped one, otherwise in the current folder
MY_TARGET = (Path() if INSTALLED else DATA_DIR / "checkpoints") / "my_target.safetensors"
SETTINGS = {  # those of the shipped target; the names are also the command line's
    "steps": 7500,
    "batch_size": 16,
    "learning_rate": 6e-3,
    "seed": 1337,
}
SHAPE = {f.name: f.default for f in dataclasses.fields(GPTConfig) if f.name != "vocab_size"}
EVALUATE_EVERY, SAVE_EVERY = 1000, 500  # steps


def make_optimizer(model: torch.nn.Module, weight_decay: float = 0.1) -> torch.optim.AdamW:
    """AdamW that decays matrices only: no biases, no LayerNorms. `train` sets its learning rate."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=weight_decay, fused=True)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Learning rate of update `step` (from 0): 100 to warm up, under a cosine that falls to 0."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1, (step + 1) / 100) * cosine


def update(model, optimizer, loss, rate: float) -> None:
    """One step down the gradient of `loss`, clipped to length 1, at this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train(model, optimizer, loss_of, steps, peak=6e-3, seed=0, start=0) -> Iterator:
    """Do updates start … steps-1 of `model`; yield (updates done, loss).

    loss_of(generator) gives an update's loss, and draws all that is random in it, such as its
    batch, from the generator, which is set by `seed` and the update's own number alone. So training
    can go on anywhere and meet the same batches. The losses of the drafts stand with the drafts;
    `on_text` is that of a model of its own.
    """
    model.train()
    for step in range(start, steps):
        generator = torch.manual_seed(seed * 1_000_000 + step)  # dropout draws from it too
        loss = loss_of(generator)
        update(model, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def on_text(model: GPTLanguageModel, tokens: Tensor, batch_size: int = 16) -> Callable:
    """For `train`: the mean cross-entropy, in nats, of the next token in windows of tokens (N,)."""

    def loss_of(generator):
        x, y = get_batch(tokens, batch_size, model.config.block_size, generator)
        _, loss, _ = model(x.to(model.device), y.to(model.device))
        return loss

    return loss_of


@torch.no_grad()
def evaluate(model: GPTLanguageModel, tokens: torch.Tensor, batch_size: int = 64) -> float:
    """Mean cross-entropy in nats per token over all of `tokens` (N,), in consecutive windows.

    Each window sees its own tokens only. The last (N-1) mod block_size tokens are not asked for.
    Raises ValueError if `tokens` is too short for one window.
    """
    T = model.config.block_size
    windows = (len(tokens) - 1) // T
    if windows < 1:
        raise ValueError(f"{len(tokens)} tokens are too few for one window of {T} and its next one")
    x = tokens[: windows * T].view(windows, T)
    y = tokens[1 : windows * T + 1].view(windows, T)
    was_training = model.training
    model.eval()
    losses = []
    for xb, yb in zip(x.split(batch_size), y.split(batch_size), strict=True):
        _, loss, _ = model(xb.to(model.device), yb.to(model.device))
        losses.append(loss.item() * len(xb))
    model.train(was_training)
    return sum(losses) / windows


def save_state(path: Path, model, tokenizer, optimizer, facts: dict) -> None:
    """Write all that going on needs: weights, optimizer and facts, in one file or not at all."""
    state = {
        f"optimizer/{name}/{key}": value.detach().cpu()
        for name, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }
    checkpoint.save(path, model, tokenizer, facts, state)


def load_state(path: Path, model, optimizer, settings: dict) -> dict:
    """Put the weights and the optimizer of `path` in place and return its facts.

    Raises ValueError if that training had other settings.
    """
    facts = checkpoint.read_header(path)["facts"]
    if facts["settings"] != settings:
        was = facts["settings"]
        others = [f"{k} {was.get(k)}, now {v}" for k, v in settings.items() if was.get(k) != v]
        raise ValueError(
            f"{path} holds a training with other settings (it has {'; '.join(others)}): use those "
            "to go on with it, give another --out, or delete the file to start again"
        )
    tensors = safetensors.torch.load_file(path)
    model.load_state_dict({name: tensors[name] for name in model.state_dict()})
    for name, p in model.named_parameters():
        prefix = f"optimizer/{name}/"
        mine = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        optimizer.state[p] = {k: t.to(p.device) if t.dim() else t for k, t in mine.items()}
    return facts


def train_with_checkpoints(model, tokenizer, tokens, val_tokens, settings: dict, path: Path):
    """Train to the last step, from the state at `path` if there is one; return the facts.

    A progress bar shows the losses. The state is written to `path` every SAVE_EVERY steps.
    """
    optimizer = make_optimizer(model)
    facts = {"settings": settings, "step": 0, "seconds": 0.0, "val_loss": None}
    if path.exists():
        facts = load_state(path, model, optimizer, settings)
        print(f"going on at step {facts['step']:,} from {path}")
    steps, started = settings["steps"], time.monotonic() - facts["seconds"]
    updates = train(
        model,
        optimizer,
        on_text(model, tokens, settings["batch_size"]),
        steps,
        settings["learning_rate"],
        settings["seed"],
        facts["step"],
    )
    with tqdm(total=steps, initial=facts["step"], desc="training") as bar:
        for step, loss in updates:
            bar.update()
            if step % EVALUATE_EVERY == 0 or step == steps:
                facts["val_loss"] = evaluate(model, val_tokens)
            bar.set_postfix(loss=f"{loss:.3f}", val=f"{facts['val_loss'] or math.nan:.4f}")
            if step % SAVE_EVERY == 0 or step == steps:
                facts |= {"step": step, "seconds": round(time.monotonic() - started, 1)}
                save_state(path, model, tokenizer, optimizer, facts)
    return facts


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings, all defaults those of the shipped target."""
    parser = argparse.ArgumentParser(prog="nanogpt train", description=__doc__)
    parser.add_argument("--out", type=Path, default=MY_TARGET, help="default: %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps; default: %(default)s")
    for name, default in (SETTINGS | SHAPE).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train, or go on with a training that was stopped, and save the result.

    Raises ValueError for settings out of range, and KeyboardInterrupt for Ctrl-C, with what to do.
    """
    given = vars(parse_arguments(arguments))
    out = given.pop("out")
    for name in ("steps", "batch_size", "learning_rate"):
        if not given[name] > 0:
            raise ValueError(f"{name} is {given[name]}; it must be above 0")
    if out.exists():
        raise ValueError(f"{out} exists: give another --out, or delete it to train again")
    device = checkpoint.usable_device(given["device"])
    corpus = load_corpus()
    tokenizer = CharTokenizer.from_text(corpus.text)
    tokens, val_tokens = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    torch.manual_seed(given["seed"])
    shape = {name: given[name] for name in SHAPE}
    model = GPTLanguageModel(GPTConfig(tokenizer.vocab_size, **shape)).to(device)
    settings = given | {"corpus": corpus.name, "corpus_sha256": corpus.sha256}
    state = out.with_suffix(".training.safetensors")
    print("Ctrl-C stops; the same command goes on from the last checkpoint")
    try:
        facts = train_with_checkpoints(model, tokenizer, tokens, val_tokens, settings, state)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on from the last checkpoint") from None
    facts |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    checkpoint.save(out, model, tokenizer, facts)
    state.unlink()
    print(f"validation loss {facts['val_loss']:.4f} after {facts['seconds']:.0f} s; saved to {out}")
