"""Training a model on text, or on the probabilities of another one (distilling).

`nanogpt train` trains the target; `--help` says what can be set. The defaults are those
of the shipped target. Training can be stopped at any time; the same command goes on from the last
checkpoint and reaches the same weights, bit for bit, on the same machine.

The functions that train a draft take tokens that lie where the target and the draft do; `train`
and `evaluate` bring each batch there.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR, CharTokenizer, get_batch, load_corpus, train_val_split
from nanogpt.model import GPTConfig, GPTLanguageModel, side_by_side

MY_TARGET = DATA_DIR / "checkpoints" / "my_target.safetensors"
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


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    """Learning rate of update `step` (from 0): a linear warm-up under a cosine that falls to 0."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1, (step + 1) / warmup) * cosine


def update(model, optimizer, loss, rate: float) -> None:
    """One step down the gradient of `loss`, clipped to length 1, at this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train(model, optimizer, tokens, steps, batch_size=16, peak=6e-3, seed=0, start=0) -> Iterator:
    """Run updates start … steps-1 on random windows of `tokens`; yield (updates done, loss).

    The loss is the batch's mean cross-entropy in nats. An update's batch is drawn from `seed` and
    its own number alone, so that training can go on anywhere and meet the same batches.
    """
    model.train()
    for step in range(start, steps):
        generator = torch.manual_seed(seed * 1_000_000 + step)  # dropout draws from it too
        x, y = get_batch(tokens, batch_size, model.config.block_size, generator)
        _, loss, _ = model(x.to(model.device), y.to(model.device))
        update(model, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def distil(
    model: GPTLanguageModel,
    target: GPTLanguageModel,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    steps: int,
    batch_size: int = 16,
    peak: float = 6e-3,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train `model` to give the target's probabilities (Hinton et al. 2015); yield (updates, loss).

    The loss is the cross-entropy of the model's q under the target's p, in nats: KL(p‖q) and the
    entropy of p, which no training removes. tokens (N,): any text; the target's own is best.
    """
    model.train()
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, _ = get_batch(tokens, batch_size, model.config.block_size, generator)
        with torch.no_grad():
            p = torch.softmax(target(x)[0], dim=-1)  # (B, T, V)
        loss = F.cross_entropy(model(x)[0].flatten(0, 1), p.flatten(0, 1))
        update(model, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def train_exits(
    exits: torch.nn.ModuleDict,
    target: GPTLanguageModel,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    steps: int,
    batch_size: int = 16,
    peak: float = 6e-3,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Teach heads to say early what the frozen target will say; yield (updates, mean loss).

    exits: a head (..., C) -> (..., V) by the number of blocks before it, as text ("1", "2", …). The
    loss of each is the cross-entropy of its q under the target's p, in nats, as in `distil`; all
    learn from the same pass. tokens (N,): any text that is like the target's.
    """
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, _ = get_batch(tokens, batch_size, target.config.block_size, generator)
        with torch.no_grad():
            streams, _ = target.states(x)
            p = torch.softmax(target.lm_head(target.ln_f(streams[-1])), dim=-1).flatten(0, 1)
        losses = [
            F.cross_entropy(head(streams[int(depth) - 1]).flatten(0, 1), p)
            for depth, head in exits.items()
        ]
        loss = torch.stack(losses).mean()
        update(exits, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def layer_dropout(layer: int, n_layer: int, most: float) -> float:
    """How often LayerSkip leaves out block `layer` (from 0) in training: from 0 up to `most`.

    D(l) · most, D(l) = 2^(l/(L-1)) - 1 (Elhoushi et al. 2024, arXiv 2404.16710).
    """
    return most * (2 ** (layer / max(1, n_layer - 1)) - 1)


def train_layerskip(
    model: GPTLanguageModel,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    steps: int,
    batch_size: int = 16,
    peak: float = 6e-3,
    seed: int = 0,
    most: float = 0.1,
) -> Iterator[tuple[int, float]]:
    """Train a model that can be left early, as in LayerSkip; yield (updates, last layer's loss).

    Blocks are left out at random, text by text, the later the likelier (`layer_dropout`), and one
    head, the model's own, is judged after every block. Block l weighs l in the loss, counted from
    1, and the last as much as all others together. tokens (N,): the corpus.
    """
    model.train()
    L = model.config.n_layer
    weights = [*range(1, L), max(1, L * (L - 1) // 2)]
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, y = get_batch(tokens, batch_size, model.config.block_size, generator)
        stream, attn_bias = model.embed(x, None, None, None)
        losses = []
        for layer, block in enumerate(model.blocks):
            kept = torch.rand(len(x), 1, 1, generator=generator) >= layer_dropout(layer, L, most)
            stream = torch.where(kept.to(x.device), block(stream, attn_bias)[0], stream)
            logits = model.lm_head(model.ln_f(stream))
            losses.append(F.cross_entropy(logits.flatten(0, 1), y.flatten()))
        loss = sum(w * each for w, each in zip(weights, losses, strict=True)) / sum(weights)
        update(model, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, losses[-1].item()


def medusa_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Σ .8^i times the cross-entropy of head i, in nats (Cai et al. 2024, equation 1).

    logits (B, T, n_heads, V) after each of tokens (B, T). lm_head predicts the next token; head i,
    from 1, is asked for the token i places further on.
    """
    loss = logits.new_zeros(())
    for i in range(1, logits.shape[2] + 1):
        guesses, labels = logits[:, : -1 - i, i - 1], tokens[:, 1 + i :]
        loss = loss + 0.8**i * F.cross_entropy(guesses.flatten(0, 1), labels.flatten())
    return loss


def train_heads(
    heads, optimizer, hidden, tokens, steps, batch_size=16, peak=6e-3, seed=0
) -> Iterator:
    """Train Medusa's heads on a trunk that stays as it is (Medusa-1); yield (updates, loss).

    hidden (N, T, C): the trunk's hidden states of tokens (N, T), N windows of text.
    """
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        rows = torch.randint(len(tokens), (batch_size,), generator=generator)
        loss = medusa_loss(heads(hidden[rows]), tokens[rows])
        update(heads, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def train_eagle(
    head,
    target: GPTLanguageModel,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    steps: int,
    unroll: int = 1,
    decay: float = 0.8,
    match: bool = False,
    noise: float = 0.0,
    batch_size: int = 16,
    peak: float = 6e-3,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train an EagleHead on a target that stays as it is; yield (updates, loss).

    The loss of a step is the cross-entropy of q under the target's p (its probabilities, not the
    next token: the same gradient on average, with less noise), in nats. unroll: how many steps,
    each on the outputs of the one before, as in EAGLE-3's training-time test; step s, from 0,
    weighs decay^s. match: EAGLE's loss instead, smooth L1 between output and true feature plus a
    tenth of the cross-entropy, for a head whose output is a hidden state. noise: the true features
    are moved by up to this much, uniformly, so that the head bears with features that are nearly
    right. tokens (N,): text like the target's; its own is best.
    """
    head.share(target)
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, _ = get_batch(tokens, batch_size, target.config.block_size, generator)
        with torch.no_grad():
            features, hidden = head.features_of(target, x)
            p = torch.softmax(target.lm_head(hidden[:, 1:]), dim=-1)  # after the pairs' tokens
            moved = 2 * torch.rand(features.shape, generator=generator) - 1
            features = features + noise * moved.to(features.device)
        loss = 0.0
        for s, out in enumerate(head.unrolled(features[:, :-1], x[:, 1:], unroll)):
            out, right = out[:, s:], hidden[:, 1 + s :]  # before place s, step s means nothing
            asked = F.cross_entropy(head.logits(out).flatten(0, 1), p[:, s:].flatten(0, 1))
            if match:
                asked = F.smooth_l1_loss(out, right) + 0.1 * asked
            loss = loss + decay**s * asked
        update(head, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


def mtp_loss(head, hidden: Tensor, tokens: Tensor, steps: int = 1) -> Tensor:
    """How badly the layer guesses the token after next: mean cross-entropy, in nats.

    hidden (B, T, C): the target's hidden states of the first T of tokens (B, T+1). The layer reads
    that of token i and token i+1, and is asked for token i+2 (DeepSeek-V3, arXiv 2412.19437,
    section 2.2). steps > 1: it then goes on from its own outputs, as a draft does (the head's
    `unrolled`), and the loss is the mean over the steps.
    """
    outs = head.unrolled(hidden[:, :-1], tokens[:, 1:-1], steps)
    losses = [
        F.cross_entropy(head.logits(out[:, s:]).flatten(0, 1), tokens[:, 2 + s :].flatten())
        for s, out in enumerate(outs)
    ]
    return torch.stack(losses).mean()


def train_mtp(
    target: GPTLanguageModel,
    head: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    steps: int,
    batch_size: int = 16,
    peak: float = 6e-3,
    seed: int = 0,
    unroll: int = 1,
) -> Iterator[tuple[int, float, float]]:
    """Train a target and its layer together; yield (updates, the target's loss, the layer's).

    The loss is the target's own plus λ times `mtp_loss`, with λ = .3 for the first 10 / 14.8 of the
    updates and .1 for the rest, as DeepSeek-V3 did with its tokens (section 4.2). Batches are those
    that `train` draws from this seed, and tokens (N,) the corpus. `unroll` is mtp_loss's `steps`. A
    target that is frozen, and not in the optimizer, stays as it is.
    """
    both = torch.nn.ModuleList([target, head.share(target)])
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, y = get_batch(tokens, batch_size, target.config.block_size, generator)
        hidden, _ = target.trunk(x)
        own = F.cross_entropy(target.lm_head(hidden).flatten(0, 1), y.flatten())
        ahead = mtp_loss(head, hidden, torch.cat([x, y[:, -1:]], dim=1), unroll)
        weight = 0.3 if step < steps * 10 / 14.8 else 0.1
        update(both, optimizer, own + weight * ahead, learning_rate(step, steps, peak))
        yield step + 1, own.item(), ahead.item()


def guess_blocks(drafter, target, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
    """What a block drafter guesses in the middle of texts x (B, T), where the future is known.

    starts (B, A): where the current tokens of A blocks a text stand, from 1 to T-K. Returns logits
    (B A, K, V), not corrected; the token (B A, K) before each place; the target's p (B A, K, V).
    """
    rows = torch.arange(len(x))[:, None, None]
    back = starts[..., None] + torch.arange(-drafter.reach, 0)  # (B, A, reach)
    places = starts[..., None] + torch.arange(drafter.K)  # (B, A, K)
    with torch.no_grad():
        streams, _ = target.states(x)
        p = torch.softmax(target.lm_head(target.ln_f(streams[-1])), dim=-1)
    features = drafter.project(side_by_side(streams, drafter.layers))  # (B, T, C)
    seen = features[rows, back.clamp(min=0)].flatten(0, 1)
    before = x[rows, places].flatten(0, 1)
    may = F.pad(back >= 0, (0, drafter.K), value=True).flatten(0, 1)[:, None, None]
    hidden = drafter(seen, before[:, 0], may.to(x.device))
    return target.lm_head(hidden), before, p[rows, places].flatten(0, 1)


def train_block(
    drafter, target, optimizer, tokens, steps, n_starts=24, peak=6e-3, seed=0
) -> Iterator:
    """Train a block drafter on a target that stays as it is; yield (updates, loss).

    The loss is the cross-entropy under the target's p, in nats, of each place's q as it is, and of
    the same told the token before; place i, from 0, weighs .9^i. tokens (N,): any text; the
    target's own is best. Of each of 8 windows, n_starts blocks are guessed.
    """
    far = 0.9 ** torch.arange(drafter.K, device=tokens.device)
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        x, _ = get_batch(tokens, 8, target.config.block_size, generator)
        end = x.shape[1] - drafter.K + 1
        starts = torch.randint(1, end, (8, n_starts), generator=generator)
        apart, before, p = guess_blocks(drafter, target, x, starts)
        told = drafter.corrected(apart, before)
        said = torch.log_softmax(apart, -1) + torch.log_softmax(told, -1)  # (8 n_starts, K, V)
        nats = -(p * said).sum(-1).mean(0)  # (K)
        loss = (far * nats).sum() / far.sum()
        update(drafter, optimizer, loss, learning_rate(step, steps, peak))
        yield step + 1, loss.item()


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
        tokens,
        steps,
        settings["batch_size"],
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

    Raises ValueError for settings out of range, and SystemExit with one line for Ctrl-C.
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
        raise SystemExit("stopped; the same command goes on from the last checkpoint") from None
    facts |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    checkpoint.save(out, model, tokenizer, facts)
    state.unlink()
    print(f"validation loss {facts['val_loss']:.4f} after {facts['seconds']:.0f} s; saved to {out}")
