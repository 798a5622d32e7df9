"""Makes the shipped drafts from the shipped target, and the targets that were trained for theirs.

    python data/make_drafts.py                 all of them
    python data/make_drafts.py ngram           one of: ngram, greedy, trained, distilled, stop,
                                               exits, layerskip,
                                               control (into layerskip's file),
                                               medusa, medusa_kept, mtp,
                                               ahead (into mtp's file), eagle, eagle3,
                                               ablation (into eagle's file), block, pairs,
                                               moved, learning (into moved's file),
                                               state

For the tree of contexts the target writes fifteen million characters, 256 texts side by side, and
its probabilities are kept: part by part, in data/parts (2 GB, to be deleted by hand), so that a run
that was stopped goes on where it was. Then the tree takes several gigabytes of memory.
"""

import copy
import dataclasses
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm, trange

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.data import (
    DATA_DIR,
    STAND_IN_FILE,
    get_batch,
    load_corpus,
    read_stand_in,
    train_val_split,
)
from nanogpt.drafts import adaptive, eagle, itself, ngram, pairs, parallel, transformer
from nanogpt.drafts.parallel import hidden_states
from nanogpt.generate import prefill
from nanogpt.measure import learning as moving
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.sampling import RandomSource
from nanogpt.targets import state
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.train import evaluate, make_optimizer, on_text, train

PARTS, TEXTS, LENGTH = 10, 256, 6_000  # what the tree is made from
ORDER, NODES = 12, 240_000  # of the tree
STEPS = 4000  # of a draft that learns from the frozen target, 16 windows each


@torch.no_grad()
def write_texts(target, texts: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts by the target, and its p of each token but the first.

    Returns tokens (texts, length) uint8 and probabilities (texts, length-1, V) float16.
    """
    target, V = FusedLanguageModel(target), target.config.vocab_size
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.empty(texts, length, dtype=torch.int64)
    probs = np.empty((length - 1, texts, V), dtype=np.float16)
    tokens[:, 0] = torch.randint(V, (texts,), generator=generator)
    past_kvs = None
    for i in trange(length - 1, desc="texts by the target"):
        if cache_length(past_kvs) == target.config.block_size:  # as Text does
            past_kvs = prefill(target, tokens[:, i - target.config.block_size // 2 : i])
        logits, _, past_kvs = target(tokens[:, i : i + 1], past_kvs=past_kvs)
        p = torch.softmax(logits[:, 0], dim=-1)  # (texts, V)
        tokens[:, i + 1] = torch.multinomial(p, 1, generator=generator)[:, 0]
        probs[i] = p.numpy()
    return tokens.numpy().astype(np.uint8), probs.transpose(1, 0, 2)


def part_of(target, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """What write_texts makes of one seed, and the seconds it took; kept in data/parts."""
    path = DATA_DIR / "parts" / f"{seed}.npz"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        started = time.monotonic()
        tokens, probs = write_texts(target, TEXTS, LENGTH, seed)
        half = path.with_suffix(".part")
        with half.open("wb") as file:
            np.savez(file, tokens=tokens, probs=probs, seconds=time.monotonic() - started)
        half.replace(path)  # whole, or not there
    with np.load(path) as kept:
        return kept["tokens"], kept["probs"], float(kept["seconds"])


def make_ngram(target, tokenizer) -> None:
    parts = [part_of(target, seed) for seed in range(1, PARTS + 1)]
    started = time.monotonic() - sum(seconds for _, _, seconds in parts)
    tokens, probs = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    del parts
    parents, edges, means = ngram.distil_ngrams(tokens, probs, ORDER, NODES)
    rows = ngram.fit_rows(parents, edges, means, tokens, probs)
    facts = {
        "target": checkpoint.read_header(checkpoint.TARGET)["facts"]["val_loss"],
        "texts": len(tokens),
        "characters": tokens.size,
        "order": ORDER,
        "nodes": len(parents),
        "seconds": round(time.monotonic() - started, 1),
    }
    alphas = ngram.row_alphas(parents, edges, rows, tokens, probs)
    ngram.save(ngram.DISTILLED, tokenizer, facts, parents, edges, rows, alphas)


@torch.no_grad()
def write_greedy(target, texts: int, burn: int, start: int, length: int, seed: int) -> np.ndarray:
    """(texts, start + length) uint8: the end of a text that the target drew, then its best tokens.

    `burn` tokens are drawn before the `start` that are kept.
    """
    target, V = FusedLanguageModel(target), target.config.vocab_size
    generator = torch.Generator().manual_seed(seed)
    new = torch.randint(V, (texts, 1), generator=generator)
    written, past_kvs = [new], None
    for i in range(burn + start + length - 1):
        logits, _, past_kvs = target(new, past_kvs=past_kvs)
        new = logits[:, -1].argmax(-1, keepdim=True)
        if i < burn + start - 1:
            new = torch.multinomial(torch.softmax(logits[:, -1], dim=-1), 1, generator=generator)
        written.append(new)
        if i == burn + start - 2:  # a request begins here: the target has read no more than this
            new, past_kvs = torch.cat(written[burn:], dim=1), None
    return torch.cat(written[burn:], dim=1).numpy().astype(np.uint8)


def vote(texts: np.ndarray, start: int, order: int, least: int, best: dict) -> dict[bytes, int]:
    """{context: the token that most often follows it}, where a shorter context says another.

    texts (B, T): the tokens from `start` on vote, for every context up to `order` tokens that was
    seen `least` times. best: what follows contexts of which no text, or too few of them, say it.
    """
    kept: dict[bytes, int] = {}
    for n in trange(order + 1, desc="votes"):
        votes: dict[bytes, Counter] = defaultdict(Counter)
        for text in texts:
            whole = text.tobytes()
            for i in range(max(start, n), len(whole)):
                votes[whole[i - n : i]][whole[i]] += 1
        said = {context: token for context, token in best.items() if len(context) == n}
        for context, counts in votes.items():
            if context in said or counts.total() >= least:
                [(said[context], _)] = counts.most_common(1)
        for context, token in said.items():
            ends = (context[i:] for i in range(1, n + 1))
            if kept.get(next((end for end in ends if end in kept), None)) != token:
                kept[context] = token
    return kept


def make_greedy(target, tokenizer) -> None:
    started, start, length, order = time.monotonic(), 20, 106, 24
    texts = [write_greedy(target, 512, 41, start, length, seed) for seed in trange(100, 124)]
    tree = ngram.load()
    parents, tokens = ngram.load_bytes(ngram.DISTILLED, ("tokens",), ngram.MAKE)[1]
    contexts = [b""]
    for parent, token in zip(parents[1:].tolist(), tokens[1:].tolist(), strict=True):
        contexts.append(bytes([token]) + contexts[parent])
    best = dict(zip(contexts, tree.table.argmax(-1).tolist(), strict=True))
    kept = vote(np.concatenate(texts), start, order, 2, best)
    ends = {context[i:] for context in kept for i in range(len(context) + 1)}
    nodes = sorted(ends, key=lambda context: (len(context), context[::-1]))  # as `link` has them
    number = {context: i for i, context in enumerate(nodes)}
    parents, says = [0], [kept[b""]]
    for context in nodes[1:]:
        parents.append(number[context[1:]])
        says.append(kept.get(context, says[parents[-1]]))
    facts = {
        "texts": sum(map(len, texts)),
        "order": order,
        "nodes": len(nodes),
        "seconds": round(time.monotonic() - started, 1),
    }
    first = [0, *(context[0] for context in nodes[1:])]
    ngram.save_greedy(ngram.GREEDY, tokenizer, facts, *map(np.array, (parents, first, says)))


def on_windows(loss, tokens, model, batch_size: int = 16) -> Callable:
    """For `train`: loss(x, y, generator) of random windows x, y of tokens, as long as the model's.

    y is one token later.
    """

    def loss_of(generator):
        x, y = get_batch(tokens, batch_size, model.config.block_size, generator)
        return loss(x, y, generator)

    return loss_of


def run(name: str, model, optimizer, loss_of, steps: int, **how) -> list[float]:
    """Train, with a bar that says `name`; the losses of all updates."""
    return [x for _, x in tqdm(train(model, optimizer, loss_of, steps, **how), name, steps)]


def make_transformer(target, tokenizer, distilled: bool) -> None:
    torch.manual_seed(1)
    model = GPTLanguageModel(transformer.SMALL)
    optimizer, corpus = make_optimizer(model), load_corpus()
    data, held_out = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    started = time.monotonic()
    if distilled:
        texts, _ = write_texts(target, 256, 4000, seed=2)
        data = torch.from_numpy(texts.reshape(-1).astype(np.int64))
        loss = on_windows(lambda x, y, rng: transformer.distil_loss(model, target, x), data, model)
    else:
        loss = on_text(model, data)
    run("distilled" if distilled else "trained", model, optimizer, loss, STEPS)
    facts = {
        "steps": STEPS,
        "seconds": round(time.monotonic() - started, 1),
        "val_loss": evaluate(model, held_out),
        "corpus": "the target's own texts" if distilled else corpus.name,
    }
    path = transformer.DISTILLED if distilled else transformer.TRAINED
    checkpoint.save(path, model, tokenizer, facts)
    print(path.relative_to(DATA_DIR), facts)


def make_exits(target, tokenizer) -> None:
    """Train exits of the target as it stands, with each adapter, all from the same passes.

    On its own texts instead of the corpus, linear ones came out the same to 0.001 in α.
    """
    depths = {"linear": (1, 2, 3), "hidden layer": (1, 2), "block": (1, 2)}
    torch.manual_seed(1)
    exits = torch.nn.ModuleDict(
        {f"{E} {name}": itself.exit_head(target, name) for name in depths for E in depths[name]}
    )
    corpus, fast = load_corpus(), FusedLanguageModel(target.requires_grad_(False))
    data, _ = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    started = time.monotonic()
    loss = on_windows(lambda x, y, rng: itself.exit_loss(exits, fast, x), data, target)
    losses = run("exits", exits, make_optimizer(exits, weight_decay=0.0), loss, STEPS)
    facts = {
        "steps": STEPS,
        "seed": 1,
        "seconds": round(time.monotonic() - started, 1),
        "loss": sum(losses[-100:]) / len(losses[-100:]),
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
    }
    itself.save_exits(itself.EXITS, exits, target.config, tokenizer, facts)
    print(itself.EXITS.relative_to(DATA_DIR), facts)


def train_on(name: str, target, tokenizer, loss: Callable, steps: int, peak: float) -> dict:
    """Train the target on, on the corpus, and round its weights to float16; how that went."""
    torch.manual_seed(1)
    optimizer, corpus = make_optimizer(target), load_corpus()
    data, held_out = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    started = time.monotonic()
    run(name, target, optimizer, on_windows(loss, data, target), steps, peak=peak)
    seconds = round(time.monotonic() - started, 1)
    model = GPTLanguageModel(target.config).eval()
    model.load_state_dict(target.half().state_dict())  # float32 again, rounded
    return {
        "from": "target.safetensors",
        "steps": steps,
        "peak": peak,
        "seconds": seconds,
        "val_loss": evaluate(model, held_out),
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def make_layerskip(target, tokenizer, steps: int = 4000, peak: float = 3e-3) -> None:
    """Train the target on, so that it can be left early; its weights are stored as float16."""

    def loss(x, y, generator):
        return itself.layerskip_loss(target, x, y, generator)

    facts = train_on("layerskip", target, tokenizer, loss, steps, peak)
    checkpoint.save(itself.LAYERSKIP, target, tokenizer, facts)
    print(itself.LAYERSKIP.relative_to(DATA_DIR), facts)


def make_control(target, tokenizer) -> None:
    """LayerSkip's control, into its facts: as many updates on the same batches, the plain loss."""
    facts = checkpoint.read_header(itself.LAYERSKIP)["facts"]

    def loss(x, y, generator):
        return target(x, y)[1]

    found = train_on("control", target, tokenizer, loss, facts["steps"], facts["peak"])
    facts["control"] = {name: found[name] for name in ("seconds", "val_loss", "torch", "threads")}
    checkpoint.save(itself.LAYERSKIP, itself.load_layerskip().half(), tokenizer, facts)
    print(itself.LAYERSKIP.relative_to(DATA_DIR), facts)


def make_medusa(target, tokenizer, path=parallel.MEDUSA, steps=STEPS, n_heads=4) -> None:
    """Heads on the target as it is, trained on a text that it wrote: the stand-in.

    path: MEDUSA for heads that learn which token came, KEPT for heads that learn to be kept.
    """
    started, text = time.monotonic(), read_stand_in(DATA_DIR / STAND_IN_FILE).text
    size = target.config.block_size
    windows, unseen = (
        part.unfold(0, size, size // 2)
        for part in train_val_split(torch.tensor(tokenizer.encode(text)))
    )
    with torch.no_grad():
        hidden = torch.cat([hidden_states(target, some) for some in windows.split(64)])
    heads = parallel.MedusaHeads.on(target, n_heads)

    def loss_of(generator):
        rows = torch.randint(len(windows), (16,), generator=generator)
        if path == parallel.MEDUSA:
            return parallel.medusa_loss(heads(hidden[rows]), windows[rows])
        with torch.no_grad():
            p = torch.softmax(target.lm_head(hidden[rows]), dim=-1)
        return parallel.overlap_loss(heads(hidden[rows]), p)

    losses = run(path.stem, heads, make_optimizer(heads), loss_of, steps)
    facts = {
        "steps": steps,
        "seconds": round(time.monotonic() - started, 1),
        "loss": float(np.mean(losses[-500:])),
        "corpus": "stand-in",
        "accuracies": accuracies_on(target, heads, unseen),
    }
    parallel.save(path, heads, tokenizer, facts)
    print(path.relative_to(DATA_DIR), facts)


def eagle_loss(head, target, tokens, batch_size: int, how: dict) -> Callable:
    """For `train`: the loss of an EAGLE head, trained as `how` says."""
    return on_windows(
        lambda x, y, rng: eagle.eagle_loss(head, target, x, rng, **how), tokens, target, batch_size
    )


def make_eagle(
    target, tokenizer, path, layers=None, steps=STEPS, batch_size=16, peak=1e-2, **how
) -> None:
    """A head on the target as it is, trained on a text that it wrote: the stand-in."""
    started, text = time.monotonic(), read_stand_in(DATA_DIR / STAND_IN_FILE).text
    data, unseen = train_val_split(torch.tensor(tokenizer.encode(text)))
    windows = unseen.unfold(0, target.config.block_size, target.config.block_size)
    target.requires_grad_(False)
    torch.manual_seed(1)
    head, fast = eagle.EagleHead(target.config, layers), FusedLanguageModel(target)
    optimizer = make_optimizer(head, weight_decay=0.0)
    loss = eagle_loss(head, fast, data, batch_size, how)
    losses = run(path.stem, head, optimizer, loss, steps, peak=peak)
    head = head.half().float()  # as it is stored
    alphas = eagle.alpha_by_depth(head, fast, windows[:512])
    facts = {
        "steps": steps,
        "seed": 1,
        **how,
        "batch_size": batch_size,
        "peak": peak,
        "seconds": round(time.monotonic() - started, 1),
        "loss": float(np.mean(losses[-200:])),
        "corpus": "stand-in",
        "alpha": [[round(x, 5) for x in pair] for pair in alphas],  # with its standard error
    }
    eagle.save(path, head, tokenizer, facts)
    print(path.relative_to(DATA_DIR), facts)


class Blinkered(eagle.EagleHead):
    """A head that lacks something, at every depth.

    shifted: False pairs each feature with its own token. instead (T, C): what stands where the
    features stood, a row for each place, or None.
    """

    shifted, instead = True, None

    def forward(self, features, tokens, past=None, mask=None):
        if not self.shifted:
            tokens = F.pad(tokens[:, :-1], (1, 0))  # the first of a window has no token of its own
        if self.instead is not None:
            features = self.instead[: tokens.shape[1]].expand(len(tokens), -1, -1)
        return super().forward(features, tokens, past, mask)


@torch.no_grad()
def alphas_of_net(model, target, windows: torch.Tensor) -> list[tuple[float, float]]:
    """`eagle.alpha_by_depth` of a model of tokens alone: no depth but the first places differs."""
    p, q = (torch.softmax(each(windows)[0][:, 1:], -1) for each in (target, model))
    overlap = torch.minimum(p, q).sum(-1)  # (N, T-1)
    means = [overlap[:, d:].mean(1) for d in range(4)]
    return [(float(m.mean()), float(m.std() / len(m) ** 0.5)) for m in means]


def make_ablation(target, tokenizer, steps: int = 400, batch_size: int = 8) -> None:
    """What each ingredient of EAGLE is worth: a short training of each, into EAGLE's facts."""
    started, text = time.monotonic(), read_stand_in(DATA_DIR / STAND_IN_FILE).text
    data, unseen = train_val_split(torch.tensor(tokenizer.encode(text)))
    windows = unseen.unfold(0, target.config.block_size, target.config.block_size)[:512]
    fast = FusedLanguageModel(target.requires_grad_(False))
    places = target.position_embedding_table.weight[1:]  # of the pairs' tokens
    whole, found = {"match": True, "noise": 0.1}, {}
    rows = {  # what is said of it: what it lacks, its layers, how it is trained
        "EAGLE": ({}, None, whole),
        "without the shift": ({"shifted": False}, None, whole),
        "without the feature": ({"instead": torch.zeros_like(places)}, None, whole),
        "the place instead of the feature": ({"instead": places}, None, whole),
        "without noise": ({}, None, {"match": True}),
        "without the feature loss": ({}, None, {}),
        "and unrolled three steps": ({}, None, {"unroll": 3}),
        "three layers, one step": ({}, (1, 2, 4), {}),
        "EAGLE-3: three layers, three steps": ({}, (1, 2, 4), {"unroll": 3}),
    }
    for name, (lacks, layers, how) in rows.items():
        torch.manual_seed(1)
        head = Blinkered(target.config, layers)
        vars(head).update(lacks)
        loss = eagle_loss(head, fast, data, batch_size, how)
        run(name, head, make_optimizer(head, weight_decay=0.0), loss, steps, peak=1e-2)
        found[name] = eagle.alpha_by_depth(head, fast, windows)
    torch.manual_seed(1)
    net = GPTLanguageModel(transformer.SMALL)
    loss = on_windows(
        lambda x, y, rng: transformer.distil_loss(net, fast, x), data, net, batch_size
    )
    run("one layer", net, make_optimizer(net), loss, steps)
    found["a one-layer net, no feature"] = alphas_of_net(net, fast, windows)
    facts = checkpoint.read_header(eagle.EAGLE)["facts"]
    facts["ablation"] = {
        "steps": steps,
        "batch_size": batch_size,
        "seed": 1,
        "seconds": round(time.monotonic() - started, 1),
        "alpha": {name: [[round(x, 5) for x in y] for y in found[name]] for name in found},
    }
    eagle.save(eagle.EAGLE, eagle.load(), tokenizer, facts)
    print(facts["ablation"])


@torch.no_grad()
def accuracies_on(target, heads, windows: torch.Tensor) -> list[list[float]]:
    """How often each head's guesses of each rank are right on windows (B, T)."""
    logits = torch.cat([heads(hidden_states(target, some)) for some in windows.split(64)])
    return [[round(a, 4) for a in row] for row in parallel.accuracies(logits, windows)]


def make_block(target, tokenizer, steps: int = STEPS, batch_size: int = 16) -> None:
    """A block drafter on the target as it is, trained on a text that it wrote: the stand-in."""
    text = read_stand_in(DATA_DIR / STAND_IN_FILE).text
    data, unseen = train_val_split(torch.tensor(tokenizer.encode(text)))
    torch.manual_seed(1)
    target = FusedLanguageModel(target.requires_grad_(False))
    drafter = parallel.BlockDrafter(target.config, layers=(1, 2, 4), K=8)
    started = time.monotonic()
    loss = on_windows(
        lambda x, y, rng: parallel.block_loss(drafter, target, x, rng), data, target, batch_size
    )
    losses = run("block", drafter, make_optimizer(drafter), loss, steps)
    facts = {
        "steps": steps,
        "batch_size": batch_size,
        "seconds": round(time.monotonic() - started, 1),
        "loss": float(np.mean(losses[-500:])),
        "corpus": "stand-in",
        "seed": 1,
        "alphas": alphas_on(target, drafter, unseen),
    }
    parallel.save_block(parallel.BLOCK, drafter, tokenizer, facts)
    print(parallel.BLOCK.relative_to(DATA_DIR), facts)


@torch.no_grad()
def alphas_on(target, drafter, tokens: torch.Tensor) -> dict[str, list[float]]:
    """Σ min(p, q) by place in texts that are known: drawn apart, and told the token before."""
    size = target.config.block_size
    windows = tokens.unfold(0, size, size)[:256]
    starts = torch.arange(8, size - drafter.K, 8).expand(len(windows), -1)
    apart, before, p = parallel.guess_blocks(drafter, target, windows, starts)
    said = {"apart": apart, "markov": drafter.corrected(apart, before)}
    overlaps = {name: torch.minimum(p, q.softmax(-1)).sum(-1).mean(0) for name, q in said.items()}
    return {name: [round(a, 4) for a in row.tolist()] for name, row in overlaps.items()}


def on_pairs(joint: eagle.JointLoss, tokens) -> Callable:
    """For `train`: what a target and its MTP layer learn together."""
    return on_windows(lambda x, y, rng: joint(x, y), tokens, joint.target)


def make_mtp(tokenizer, steps: int = 7500, more: int = 1000) -> None:
    """A target that is trained with an MTP layer, and otherwise as the shipped one was.

    The same start, batches, rates and number of updates. Then the layer alone is trained on, on its
    own outputs, while the target stays.
    """
    corpus, plain = load_corpus(), checkpoint.read_header(checkpoint.TARGET)["facts"]
    data, held_out = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    seed = plain["settings"]["seed"]
    torch.manual_seed(seed)
    target = GPTLanguageModel(GPTConfig(tokenizer.vocab_size))
    once = eagle.EagleHead(target.config, norms=True)
    joint, started = eagle.JointLoss(target, once, steps), time.monotonic()
    both = torch.nn.ModuleList([target, once])
    run("mtp", both, make_optimizer(both), on_pairs(joint, data), steps, seed=seed)
    between = time.monotonic()
    target = target.requires_grad_(False).half().float()  # as it is stored
    fast, again = FusedLanguageModel(target), copy.deepcopy(once)
    alone = on_pairs(eagle.JointLoss(fast, again, more, unroll=3), data)
    # both: what the target's training left of its gradient counts where the layer's is clipped
    both = torch.nn.ModuleList([fast, again])
    run("mtp, on its own outputs", both, make_optimizer(again), alone, more, peak=3e-3)
    own, ahead = np.mean(joint.said[-200:], axis=0)
    facts = {
        "steps": steps,
        "seed": seed,
        "seconds": round(between - started, 1),
        "loss": [round(float(own), 4), round(float(ahead), 4)],  # in training
        "val_loss": evaluate(target, held_out),
        "again": {"steps": more, "seconds": round(time.monotonic() - between, 1)},
        "without": {"file": "target.safetensors", "val_loss": plain["val_loss"]},
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    layers = {"once": once, "again": again}
    eagle.save_mtp(eagle.MTP, target, layers, tokenizer, facts)
    print(eagle.MTP.relative_to(DATA_DIR), facts)


def make_ahead(tokenizer, steps: int = 200, seeds: int = 3, pairs: int = 10) -> None:
    """Did the trunk that mtp trained learn to look ahead? For several seeds, into mtp's facts.

    The same fresh layer learns on frozen trunks, from the same batches: the shipped one, mtp's, and
    LayerSkip's, a training that differs, too, and never asked the second question. And chapter 20's
    pairs of small targets, trained with and without a layer.
    """
    started = time.monotonic()
    corpus = torch.tensor(tokenizer.encode(load_corpus().text))
    facts = checkpoint.read_header(eagle.MTP)["facts"]
    trunks = {
        "plain": checkpoint.load()[0],
        "mtp": eagle.load_mtp()[0],
        "layerskip": itself.load_layerskip(),
    }
    found = {
        f"{name}, own embeddings" if own else name: np.transpose(
            [fresh_layer(trunk, corpus, steps, seed, own) for seed in range(1, seeds + 1)]
        ).round(4)
        for own in (False, True)
        for name, trunk in trunks.items()
        if not (own and name == "layerskip")
    }
    facts["ahead"] = {
        "steps": steps,
        "nats": {name: nats.tolist() for name, (nats, _) in found.items()},
        "alpha": {name: alpha.tolist() for name, (_, alpha) in found.items()},
        "pairs": [round(gap_of_a_pair(corpus, seed), 4) for seed in range(1, pairs + 1)],
        "seconds": round(time.monotonic() - started, 1),
    }
    eagle.save_mtp(eagle.MTP, *eagle.load_mtp(), tokenizer, facts)
    print(eagle.MTP.relative_to(DATA_DIR), facts["ahead"])


def fresh_layer(trunk, corpus, steps: int, seed: int, own: bool) -> tuple[float, float]:
    """A layer that learns on a frozen trunk: its nats per token, and α, where it never learned.

    own: it learns embeddings and an lm_head of its own, too, so that only the states differ.
    """
    data, unseen = train_val_split(corpus)
    torch.manual_seed(seed)
    layer, others = eagle.EagleHead(trunk.config, norms=True), GPTLanguageModel(trunk.config)
    layer.share(others if own else trunk)
    learns = torch.nn.ModuleList([layer, *(layer.shared if own else ())])
    fast = FusedLanguageModel(trunk.requires_grad_(False))

    def loss(x, y, generator):
        return eagle.mtp_loss(layer, hidden_states(fast, x), torch.cat([x, y[:, -1:]], dim=1))

    batches, optimizer = on_windows(loss, data, fast, 8), make_optimizer(learns)
    run(f"fresh, seed {seed}", learns, optimizer, batches, steps, seed=seed)
    found = []
    with torch.no_grad():
        for x in unseen.unfold(0, trunk.config.block_size, trunk.config.block_size).split(64):
            hidden = hidden_states(fast, x)
            p = torch.softmax(fast.lm_head(hidden[:, 1:-1]), dim=-1)
            said = layer.logits(layer(hidden[:, :-2], x[:, 1:-1])[0])
            nats = F.cross_entropy(said.transpose(1, 2), x[:, 2:], reduction="none")
            alpha = torch.minimum(p, torch.softmax(said, dim=-1)).sum(-1)
            found.append(torch.stack([nats.mean(1), alpha.mean(1)]))
    return tuple(torch.cat(found, dim=1).mean(1).tolist())


def gap_of_a_pair(corpus, seed: int, steps: int = 100) -> float:
    """Validation nats of a small target trained with a layer, minus those of one without.

    The same start and the same batches, as chapter 20 shows them.
    """
    data, unseen = train_val_split(corpus)
    small = GPTConfig(block_size=64, n_layer=2, n_head=2, n_embd=32)
    torch.manual_seed(seed)
    alone = GPTLanguageModel(small)
    joined, head = copy.deepcopy(alone), eagle.EagleHead(small, norms=True)
    run(f"alone {seed}", alone, make_optimizer(alone), on_text(alone, data), steps, seed=seed)
    both, joint = torch.nn.ModuleList([joined, head]), eagle.JointLoss(joined, head, steps)
    run(f"joined {seed}", both, make_optimizer(both), on_pairs(joint, data), steps, seed=seed)
    return evaluate(joined, unseen) - evaluate(alone, unseen)


def make_stop(target, positions: int = 50_000) -> None:
    """Fit the stop rule to how much of q the target shares, on texts that the tree has not seen."""
    tokens, probs = write_texts(target, 64, 1000, seed=3)
    draft = ngram.load()
    choose = np.random.default_rng(0)
    x, alpha = [], []
    for text, i in zip(
        choose.integers(len(tokens), size=positions).tolist(),
        choose.integers(32, tokens.shape[1] - 1, size=positions).tolist(),
        strict=True,
    ):
        q = draft.get_probs(tokens[text, max(0, i - 32) : i + 1].tolist())
        p = probs[text, i].astype(float)
        x.append(adaptive.features(q))
        alpha.append(np.minimum(p / p.sum(), q.numpy()).sum())
    x, alpha = torch.tensor(x, dtype=torch.float64), torch.tensor(alpha, dtype=torch.float64)
    stop = adaptive.fit_stop(x, alpha)
    facts = {"positions": positions, "alpha": float(alpha.mean())}
    adaptive.save_stop(stop, facts)
    print(f"α {facts['alpha']:.4f}; weights {stop.weights}")


def make_pairs(target, tokenizer, steps: int = STEPS) -> None:
    """A model on byte pairs, merged as the corpus says, trained on a text that the target wrote."""
    corpus, text = load_corpus(), read_stand_in(DATA_DIR / STAND_IN_FILE).text
    reader = pairs.PairTokenizer(tokenizer.chars, pairs.learn_merges(corpus.text, pairs.MERGES))
    data, unseen = train_val_split(torch.tensor(reader.encode(text)))
    torch.manual_seed(1)
    net, started = GPTLanguageModel(GPTConfig(reader.vocab_size, **pairs.SHAPE)), time.monotonic()
    run("pairs", net, make_optimizer(net), on_text(net, data), steps)
    facts = {
        "steps": steps,
        "seed": 1,
        "seconds": round(time.monotonic() - started, 1),
        "letters": len(reader.decode(data.tolist())),
        "tokens": len(data),
        "val_loss": evaluate(net, unseen) / len(reader.decode(unseen.tolist())) * len(unseen),
        "merges_from": corpus.name,
        "corpus": "stand-in, which the target wrote",
    }
    pairs.save(pairs.PAIRS, net, reader, facts)
    print(pairs.PAIRS.relative_to(DATA_DIR), facts)


def make_state(tokenizer, steps: int = 800) -> None:
    """A target with states in two of four layers, and the loss of a twin that has only attention.

    Both see the same batches, in a tenth of the shipped target's updates.
    """
    corpus, config = load_corpus(), state.StateConfig(tokenizer.vocab_size)
    data, unseen = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    facts = {"steps": steps, "batch_size": 16, "seed": 1, "corpus": corpus.name}
    for name, cls in ("state", state.StateLanguageModel), ("twin", GPTLanguageModel):
        torch.manual_seed(1)
        model, started = cls(config), time.monotonic()
        run(name, model, make_optimizer(model), on_text(model, data), steps)
        facts[f"{name}_seconds"] = round(time.monotonic() - started, 1)
        facts[f"{name}_val_loss"] = evaluate(model, unseen)
        facts[f"{name}_parameters"] = sum(p.numel() for p in model.parameters())
        if name == "state":
            made = model
        shape = dataclasses.asdict(config)
        checkpoint.save_module(state.SHIPPED, made, tokenizer, facts, config=shape)
        print(state.SHIPPED.relative_to(DATA_DIR), facts)


def make_moved(target, tokenizer, steps: int = 200, lines: int = 4000) -> None:
    """The target, fine-tuned on programs of our own making; its weights are stored as float16."""
    text, started = moving.program(lines, RandomSource(0)), time.monotonic()
    data, unseen = train_val_split(torch.tensor(tokenizer.encode(text)))
    before, optimizer = evaluate(target, unseen), make_optimizer(target)
    run("moved", target, optimizer, on_text(target, data, 8), steps, peak=2e-3)
    facts = {
        "steps": steps,
        "letters": len(data),
        "seconds": round(time.monotonic() - started, 1),
        "loss_before": before,
        "val_loss": evaluate(target, unseen),
        "corpus": "programs, made up by nanogpt.measure.learning",
    }
    checkpoint.save(moving.MOVED, target.half(), tokenizer, facts)
    print(moving.MOVED.relative_to(DATA_DIR), facts)


def make_learning(seeds: int = 6, width: int = 96, windows: int = 12) -> None:
    """What drafts learn while they serve the moved target, and by which loss, into its facts."""
    own, tokenizer = checkpoint.load(moving.MOVED)
    target, old = FusedLanguageModel(own), FusedLanguageModel(checkpoint.load()[0])
    net, facts = transformer.load().model, checkpoint.read_header(moving.MOVED)["facts"]
    served = served_by(target, moving.drafters(net=net), tokenizer, seeds, width, windows)
    rates = {}
    for rate in (1e-3, 3e-3, 1e-2):
        got = [
            moving.by_loss(target, net, 100 + s, rate=rate) for s in trange(seeds, desc=f"{rate}")
        ]
        rates[str(rate)] = {name: [one[name] for one in got] for name in got[0]}
    first = {"old target": kept_by(old, net, seeds), "moved target": kept_by(target, net, seeds)}
    facts["learning"] = {
        "width": width,
        "seeds": seeds,
        "served": served,
        "rates": rates,
        "first": first,
    }
    checkpoint.save(moving.MOVED, own.half(), tokenizer, rounded(facts))
    print(moving.MOVED.relative_to(DATA_DIR), rounded(facts["learning"]))


def served_by(target, drafters, tokenizer, seeds, width=96, windows=12) -> dict:
    """By drafter: α by letters served and by place, tokens and passes, a number or list a seed."""
    served = {}
    for name, new in drafters.items():
        runs = [moving.serve(target, new(), tokenizer, s) for s in trange(seeds, desc=name)]
        served[name] = {
            "served": [moving.alphas(run, width, windows) for run in runs],
            "place": [moving.alphas(run, 24, 4, "place") for run in runs],
            "tokens": [sum(seen.emitted for seen in run) for run in runs],
            "passes": [len(run) for run in runs],
        }
    return served


def kept_by(target, net, seeds: int) -> list[tuple[float, float]]:
    """α and tokens a pass of the net as it is, for texts of this target, seed by seed."""
    return [moving.kept(net, *moving.sampled(target, 64, 64, 201 + 2 * s)) for s in range(seeds)]


def rounded(thing, digits: int = 4):
    """The same lists and dictionaries, with shorter numbers."""
    if isinstance(thing, dict):
        return {key: rounded(value, digits) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [rounded(value, digits) for value in thing]
    return round(thing, digits) if isinstance(thing, float) else thing


def main(names: list[str]) -> None:
    target, tokenizer = checkpoint.load()
    makers = {
        "ngram": lambda: make_ngram(target, tokenizer),
        "greedy": lambda: make_greedy(target, tokenizer),
        "trained": lambda: make_transformer(target, tokenizer, distilled=False),
        "distilled": lambda: make_transformer(target, tokenizer, distilled=True),
        "stop": lambda: make_stop(target),
        "exits": lambda: make_exits(target, tokenizer),
        "layerskip": lambda: make_layerskip(*checkpoint.load()),
        "control": lambda: make_control(*checkpoint.load()),  # into layerskip's file
        "medusa": lambda: make_medusa(target, tokenizer),
        "medusa_kept": lambda: make_medusa(target, tokenizer, parallel.KEPT),
        "mtp": lambda: make_mtp(tokenizer),
        "ahead": lambda: make_ahead(tokenizer),  # into mtp's file
        "eagle": lambda: make_eagle(*checkpoint.load(), eagle.EAGLE, match=True, noise=0.1),
        "eagle3": lambda: make_eagle(*checkpoint.load(), eagle.EAGLE3, (1, 2, 4), unroll=3),
        "ablation": lambda: make_ablation(*checkpoint.load()),  # into eagle's file
        "block": lambda: make_block(target, tokenizer),
        "pairs": lambda: make_pairs(target, tokenizer),
        "state": lambda: make_state(tokenizer),
        "moved": lambda: make_moved(*checkpoint.load()),
        "learning": make_learning,  # into moved's file
    }
    unknown = set(names) - set(makers)
    if unknown:
        raise ValueError(
            f"no draft is called {', '.join(sorted(unknown))}; use {', '.join(makers)}"
        )
    for name in names or makers:
        makers[name]()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
