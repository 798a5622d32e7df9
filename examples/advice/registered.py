"""Is the advice right? Predictions of `nanogpt advise`, written down before the real loops run.

    python examples/advice/registered.py predictions.json

For each of PAIRS, KS and BATCHES it predicts α, tokens a round, and how many times as fast as plain
decoding the loop is, from 60 prompts; all of it is in the file before the first loop starts. Then
it decodes the same prompts by other dice: one text with speculative_generate, from its prompt to
its end, beside autoregressive_generate; a batch of texts of all ages up to half of TOKENS, as in a
server, from the second round on until the first ends. All K in turn, one thread, medians of BLOCKS.
About an hour.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from nanogpt.drafts.protocol import lifted
from nanogpt.engines import advise, causal
from nanogpt.engines.export import export_pair
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.clock import frozen
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_round
from nanogpt.serving.constraints import Reply
from nanogpt.speculative import speculative_generate

KS, BATCHES, MOST = (1, 3, 5, 8), (1, 8, 32), 8
PROMPTS, TOKENS, BLOCKS, OVER = 60, 100, 8, 4  # OVER: times that each text is decoded


def of_ours(target, draft):
    """A pair by its names in `nanogpt bench`: target, encode, draft."""
    return advise.ours(target, draft)[:3]


def of_folders():
    """Our exported pair, in transformers."""
    with tempfile.TemporaryDirectory() as folder:
        export_pair(Path(folder))
        target, reader, draft = causal.load_pair(f"{folder}/target", f"{folder}/draft")
    return target, reader.encode, draft


def of_chance(layers):
    """Two Llamas of random weights, a target of 2 layers and a draft of so many."""
    transformers, (_, encode, _) = causal.quiet(), of_ours("fused", "lookup")
    models = []
    for seed, n_layer in enumerate((2, layers)):
        torch.manual_seed(seed)
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
        config = transformers.LlamaConfig(
            vocab_size=65, num_hidden_layers=n_layer, max_position_embeddings=256, **shape
        )
        model = transformers.AutoModelForCausalLM.from_config(config)
        torch.nn.init.normal_(model.lm_head.weight, std=0.15)
        models.append(causal.CausalModel(model))
    return models[0], encode, causal.CausalDraft(models[1], 65)


PAIRS = {
    "per-head, table": partial(of_ours, "per-head", "distilled"),
    "fused, table": partial(of_ours, "fused", "distilled"),
    "fused, transformer": partial(of_ours, "fused", "transformer-fused"),
    "per-head, transformer": partial(of_ours, "per-head", "transformer-distilled"),
    "exported, transformer": of_folders,
    "chance, 2 layers for 2": partial(of_chance, 2),
}


def alpha_of(counts, K):
    """Accepted over examined guesses with K of them, from counts as `advise.write` has them."""
    return float(counts[1 : K + 1].sum() / counts[:K].sum())


def predicted(pair, prompts, Ks, batches, clocked=True):
    """{"K, B": what is predicted} of a pair; without the clock, α and tokens alone."""
    target, encode, draft = pair
    made = [
        advise.write(target, draft, encode(prompt), TOKENS, MOST, Sampling(), seed)
        for seed, prompt in enumerate(prompts)
    ]
    counts = np.array([row for _, row in made])
    brings = advise.brought(counts.sum(0))
    low, high = advise.interval(counts)
    if clocked:
        timed = {K: brings[K] for K in (0, 1, (MOST + 1) // 2, MOST)}
        texts = [text for text, _ in made]
        cost = advise.between(
            *advise.round_times(target, draft, texts, TOKENS, BATCHES, timed, Sampling())
        )
    found = {}
    for K, B in itertools.product(Ks, batches):
        off = cost.off(B, K) if clocked else 0
        takes = cost.seconds(B, K) / cost.seconds(B, 0) if clocked else 1
        found[f"{K}, {B}"] = {
            "alpha": alpha_of(counts.sum(0), K),
            "examined": float(counts[:, :K].sum()),
            "tokens": float(brings[K]),
            "takes": takes,
            "gain": float(brings[K] / takes),
            "low": float(low[K] / takes) * (1 - off),
            "high": float(high[K] / takes) * (1 + off),
        }
    return found


def one_text(target, draft, prompts, K, seed):
    """Yields seconds, tokens, steps, accepted and examined guesses of a whole text."""
    for i, prompt in enumerate(prompts):
        asked = {"prompt_tokens": prompt, "max_new_tokens": TOKENS, "rng": RandomSource(seed + i)}
        plain = partial(autoregressive_generate, target, **asked)
        fast = partial(speculative_generate, target, draft, K=K, **asked)
        took, made = advise.spent(fast if K else plain, target.device)
        yield took, TOKENS, len(made.rounds), *judged(made.rounds)


def batch(target, draft, prompts, B, K, seed):
    """The same of B texts at once, of rounds from the second until one ends, over and over."""
    guesses, half = lifted(draft, K), TOKENS // 2
    begun = [
        autoregressive_generate(target, prompt, half, rng=RandomSource(seed + i)).tokens
        for i, prompt in enumerate(prompts)
    ]
    for first in itertools.count(0, B):
        seats = []
        for i in range(first, first + B):
            prompt, more = prompts[i % len(prompts)], begun[i % len(prompts)]
            age = int(i * 0.618034 % 1 * half)
            text = Reply(target, [*prompt, *more[:age]], TOKENS - age)
            seats.append(Seat(text, guesses, Sampling(), RandomSource(seed + len(prompts) + i)))
        batch_round(target, seats)
        seconds, rounds = 0.0, []
        while not any(seat.text.done for seat in seats):
            seconds += advise.spent(partial(batch_round, target, seats), target.device)[0]
            rounds += [seat.text.rounds[-1] for seat in seats]
        yield seconds, sum(len(r.emitted) for r in rounds), len(rounds), *judged(rounds)


def judged(rounds):
    """Accepted guesses, and examined ones."""
    return sum(r.n_accepted for r in rounds), sum(r.n_examined for r in rounds)


@frozen()
def happened(pair, prompts, Ks, batches, blocks=BLOCKS, over=1):
    """{"K, B": what the real loops did}: α and tokens of all, the gain in the median of blocks."""
    target, encode, draft = pair
    encoded, found = [encode(prompt) for prompt in prompts], {}
    for B in batches:
        loops = {
            K: one_text(target, draft, encoded * over, K, 1000)
            if B == 1
            else batch(target, draft, encoded, B, K, 1000)
            for K in (0, *Ks)
        }
        rows = {K: [] for K in loops}
        for _ in range(over * (len(encoded) if B == 1 else max(2, 24 * blocks // B))):
            for K, row in rows.items():  # in turn
                row.append(next(loops[K]))
        rows = {K: np.array(row) for K, row in rows.items()}
        pace = {}  # of each block
        for K, row in rows.items():
            sums = [part.sum(0) for part in np.array_split(row, min(blocks, len(row)))]
            pace[K] = [took / tokens for took, tokens, *_ in sums]
        for K in Ks:
            _, tokens, steps, accepted, examined = rows[K].sum(0)
            gains = [plain / fast for plain, fast in zip(pace[0], pace[K], strict=True)]
            found[f"{K}, {B}"] = {
                "alpha": float(accepted / examined),
                "examined": float(examined),
                "tokens": float(tokens / steps),
                "gain": median(gains),
                "gains": gains,  # of each block
            }
    return found


def quartiles(off):
    """Median and quartiles, in words."""
    low, middle, high = np.quantile(off, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def compared(before, after):
    """The lines that hold the predictions of all pairs against what happened."""
    cells = [(name, cell) for name, row in before.items() for cell in row]
    rows = [(before[name][cell], after[name][cell]) for name, cell in cells]
    off = {
        "alpha": [abs(p["alpha"] - m["alpha"]) for p, m in rows],
        "tokens": [abs(p["tokens"] / m["tokens"] - 1) for p, m in rows],
        "cost": [abs(p["takes"] / (m["tokens"] / m["gain"]) - 1) for p, m in rows],
        "speed": [abs(p["gain"] / m["gain"] - 1) for p, m in rows],
    }
    for (name, cell), (p, m) in zip(cells, rows, strict=True):
        yield (
            f"{name:24} K, B = {cell:6} alpha {p['alpha']:.3f} {m['alpha']:.3f}  tokens "
            f"{p['tokens']:.2f} {m['tokens']:.2f}  gain {p['gain']:.2f} {m['gain']:.2f}"
        )
    for what, found in off.items():
        yield f"{what:7} off by {quartiles(found)}, {len(found)} cells"
    halves = [(median(m["gains"][::2]), median(m["gains"][1::2])) for _, m in rows]
    yield f"the loops differ from themselves by {quartiles([abs(a / b - 1) for a, b in halves])}"
    for B in sorted({int(cell.split(", ")[1]) for _, cell in cells}):
        its = [
            x for x, (_, cell) in zip(off["speed"], cells, strict=True) if cell.endswith(f", {B}")
        ]
        yield f"speed, {B} at once, off by {quartiles(its)}"
    no = [m["gain"] < 1 for p, m in rows if p["high"] < 1]
    yes = [m["gain"] > 1 for p, m in rows if p["low"] > 1]
    lost = [p["high"] < 1 for p, m in rows if m["gain"] < 1]
    yield f"no: right in {sum(no)} of {len(no)}; yes: right in {sum(yes)} of {len(yes)}"
    yield f"{sum(lost)} of {len(lost)} that lose were told; {len(rows) - len(no) - len(yes)} open"


def main():
    """Write the predictions, run the loops, and compare."""
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f}")
    prompts = advise.ours("fused", "lookup", n=PROMPTS)[3]
    pairs = {name: make() for name, make in PAIRS.items()}
    before = {name: predicted(pair, prompts, KS, BATCHES) for name, pair in pairs.items()}
    path.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")
    print(f"{path} is written; now the loops run", flush=True)
    after = {name: happened(pair, prompts, KS, BATCHES, over=OVER) for name, pair in pairs.items()}
    path.with_suffix(".after.json").write_text(json.dumps(after, indent=1) + "\n")
    print(*compared(before, after), f"load {os.getloadavg()[0]:.1f}", sep="\n")


if __name__ == "__main__":
    main()
