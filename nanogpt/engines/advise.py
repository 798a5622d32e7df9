"""Should you speculate? Your pair and prompts: which K, what it gains, and from where it loses.

TARGET and DRAFT are folders or names as `nanogpt check` takes them (without a DRAFT, guesses are
looked up in the text), or names of `nanogpt bench` (without one, the distilled draft guesses);
`nanogpt` alone is our fused target. FILE has a prompt a line, or KIND, a tab and a prompt: then the
answer comes for each kind, too. Without it, prompts are Shakespeare's.

Each prompt is continued once, with K guesses a round. How often each place was accepted, where all
before it were, tells what every smaller K brings. Then whole rounds are timed in turn, with 0, 1,
about K/2 and K guesses, overhead included; the rest is interpolated. Several texts at once are of
all ages, as in a server. (Of texts begun together, all are as long, plain steps are cheaper, and
guesses gain a little less.) The interval is over prompts drawn with replacement, from the 5th
percentile of the best K to the highest 95th of any K, widened by the noise of the clock. Reading
the prompt, and the end of a text, are left out; so is, on a CPU under Linux and macOS, the time
that other programs take. A + says that the best K is the largest tried.

With --gpu, rounds take what `nanogpt size` says of hardware that is not here, with its band. With
it, TARGET may also be a server, http://…/v1, with a draft and K of its own, that counts by place as
vLLM does: send it nothing else meanwhile. Exit code: 0, yes, for the first of --batch; 1, no; 2, it
cannot be told.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import load_corpus, read_text, train_val_split
from nanogpt.drafts.protocol import lifted
from nanogpt.drafts.shipped import DRAFTS
from nanogpt.engines import causal
from nanogpt.engines.endpoint import Endpoint, is_address
from nanogpt.generate import Text, autoregressive_rounds, check_whole
from nanogpt.measure import size
from nanogpt.measure.clock import DEVICES, clock, frozen, keep_memory, prompts_of, quick
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import Seat, batch_round
from nanogpt.serving.constraints import Reply
from nanogpt.speculative import Draft, speculative_rounds
from nanogpt.targets.fused import TARGETS

OURS = {"nanogpt": TARGETS["fused"], **TARGETS}
FEWEST = 5  # prompts: fewer do not show how prompts differ
STRETCH = 20  # rounds of a text, or fewer, before another begins; a third only warms up
MOST = 60  # seconds, after which no turn of the clock begins
PLACES = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
COUNTED = rf"(?:{PLACES}|vllm:spec_decode_num_drafts_total)"


def write(
    target, draft: Draft, prompt: list[int], n: int, K: int, sampling: Sampling, seed: int
) -> tuple[list[int], np.ndarray]:
    """A text with n new tokens, and counts (K+1,): its rounds, and those that accepted 1, …, K.

    Rounds that had no room for K guesses do not count.
    """
    text, counts = Text(target, prompt, n), np.zeros(K + 1)
    rounds = speculative_rounds(text, draft, K, sampling, RandomSource(seed))
    while not text.done:
        text.restart_if_full()
        whole = text.room >= K
        counts[: next(rounds).n_accepted + 1] += whole
    return text.tokens, counts


def brought(counts: np.ndarray) -> np.ndarray:
    """Tokens a round with 0, 1, …, K guesses (…, K+1), of counts (…, K+1) as `write` has them."""
    return (counts / counts[..., :1]).cumsum(-1)


def drawn_anew(counts: np.ndarray, seed: int = 0, times: int = 1000) -> np.ndarray:
    """Counts (times, K+1) of as many prompts as there are, (N, K+1), drawn with replacement."""
    N = len(counts)
    return counts[np.random.default_rng(seed).integers(N, size=(times, N))].sum(1)


def interval(counts: np.ndarray, seed: int = 0) -> np.ndarray:
    """Between what (2, K+1) N prompts like these bring in nine of ten cases, of counts (N, K+1).

    The bootstrap of few is too narrow, so its percentiles lie further out: by Student's t, and by
    N / (N-1) of its variance (Hesterberg 2015, "What teachers should know about the bootstrap").
    Of fewer than FEWEST, it is all that any prompts could give: 1 to K+1 tokens a round.
    """
    (N, places), normal = counts.shape, NormalDist()
    if N < FEWEST:
        return np.array([np.ones(places), np.arange(1, places + 1)])
    z, n = normal.inv_cdf(0.95), N - 1
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    level = normal.cdf(-t * (N / n) ** 0.5)
    return np.quantile(brought(drawn_anew(counts, seed)), (level, 1 - level), axis=0)


def spent(step: Callable, device: torch.device) -> tuple[float, Any]:
    """Seconds that a step took and what it returned: of a CPU, those that this process had it."""
    if device.type != "cpu" or os.name != "posix":
        return clock(step)
    began = time.process_time()
    made = step()
    return time.process_time() - began, made


def timed(
    target, draft: Draft, starts: Sequence[list[int]], seed: int, K: int, rounds: int, sampling
) -> list[float]:
    """Seconds of real rounds with K guesses of texts begun before; with K = 0, of plain ones."""
    most, rngs = (rounds + 1) * (K + 1), [RandomSource(seed + i) for i in range(len(starts))]
    if len(starts) == 1:
        text, how = Text(target, starts[0], most), (sampling, rngs[0])
        chain = speculative_rounds(text, draft, K, *how) if K else None
        step = partial(next, chain or autoregressive_rounds(text, *how))
    else:
        guesses, pairs = lifted(draft, K), zip(starts, rngs, strict=True)
        seats = [Seat(Reply(target, x, most), guesses, sampling, rng) for x, rng in pairs]
        step = partial(batch_round, target, seats)
    # The first read the starts and lay a batch's rows side by side, and the caches forget others.
    return [spent(step, target.device)[0] for _ in range(rounds)][1 + rounds // 3 :]


@frozen()
def round_times(
    target, draft, texts: Sequence, n: int, Bs, brings: Mapping[int, float], sampling: Sampling
) -> tuple[dict[tuple[int, int], float], float]:
    """{(B, K): seconds of a round}: a plain one's, times the middle ratio of all turns, as what
    slows the machine slows a whole turn. And the part by which halves of the turns differ in it.

    Of the texts, n tokens or fewer are new. Stretches are spread over them by the golden ratio, so
    that the middle of n is that of all stretches. brings: {K: tokens of a round}.
    """
    keep_memory()
    cells, began = list(itertools.product(Bs, brings)), time.monotonic()
    times: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}  # of each turn
    for turn in tqdm(range(quick(30)), desc="rounds", disable=None):
        if turn >= 3 and time.monotonic() - began > MOST:
            break
        for B, K in cells:
            rounds = max(3, min(STRETCH, int(n / 2 / brings[K])))
            starts, room = [], max(0, n - rounds * brings[K])
            for i in range(turn * B, turn * B + B):
                text = texts[i % len(texts)]
                starts.append(text[: max(1, len(text) - n + int(i * 0.618034 % 1 * room))])
            took = timed(target, draft, starts, turn * B, K, rounds, sampling)
            times[B, K].append(sum(took) / len(took))

    def ratio(B: int, K: int, turns: slice = slice(None)) -> float:
        return float(np.median(np.divide(times[B, K][turns], times[B, 0][turns])))

    one, two = slice(0, None, 2), slice(1, None, 2)
    differ = [abs(ratio(B, K, one) / ratio(B, K, two) - 1) for B, K in cells if K]
    plain = {B: float(np.median(times[B, 0])) for B in Bs}
    return {(B, K): plain[B] * ratio(B, K) for B, K in cells}, float(np.median(differ))


class Cost(NamedTuple):
    """seconds(B, K) of a round; off(B, K): by which part of it; `last`: the most texts."""

    seconds: Callable[[int, int], float]
    off: Callable[[int, int], float]
    last: int


def between(times: Mapping[tuple[int, int], float], off: float = 0.0) -> Cost:
    """Straight lines between {(B, K): seconds}, every B with every K; K = 0 lies on none."""
    Bs, (_, *Ks) = (sorted({*x}) for x in zip(*times, strict=True))

    def seconds(B: int, K: int) -> float:
        of_K = [np.interp(K, Ks, [times[b, k] for k in Ks]) if K else times[b, 0] for b in Bs]
        return float(np.interp(B, Bs, of_K))

    return Cost(seconds, lambda B, K: off, Bs[-1])


def elsewhere(given: argparse.Namespace, folders: bool) -> Cost:
    """What `nanogpt size` says of the GPUs.

    Raises ValueError as it does, without a size, and if the first batch does not fit.
    """
    target = given.target_size or (given.target if folders else None)
    draft = given.draft_size or (given.draft if folders else None)
    if not target:
        raise ValueError("--gpu needs a --target-size, as `nanogpt size --target` takes it")
    asked = ["--target", target, "--gpu", given.gpu, "--gpus", str(given.gpus)]
    asked += ["--context", str(given.context), *(["--draft", draft] if draft else [])]
    plan = size.plan_of(size.parse_arguments(asked))
    last, first = size.batches_of(plan, 256)[-1], given.batch[0]
    if last < first:
        raise ValueError(f"{last} texts fit at once; the first of --batch is {first}")
    return Cost(plan.round_seconds, lambda *cell: size.BAND * (plan.rows(*cell) > size.FEW), last)


class Gain(NamedTuple):
    """The best K for so many texts at once: times as fast as plain, at least, and any K at most.

    brings: tokens a round; takes: how many plain steps it is as long as.
    """

    texts: int
    K: int
    gain: float
    low: float
    high: float
    brings: float
    takes: float

    @property
    def verdict(self) -> str:
        """yes, no, or cannot tell."""
        return "yes" if self.low > 1 else "no" if self.high < 1 else "cannot tell"

    def __str__(self):
        return f"{self.gain:.2f} ({self.low:.2f} to {self.high:.2f})"


def best(counts: np.ndarray, cost: Cost, B: int, seed: int = 0) -> Gain:
    """The best K for B texts, of counts (N, K+1) of N prompts."""
    tokens, takes = brought(counts.sum(0)), takes_of(cost, B, counts.shape[1])
    K = int((tokens / takes)[1:].argmax()) + 1
    low, high = interval(counts, seed) / takes
    high = max(high[k] * (1 + cost.off(B, k)) for k in range(1, len(takes)))
    ratios = tokens[K] / takes[K], low[K] * (1 - cost.off(B, K)), high
    return Gain(B, K, *map(float, (*ratios, tokens[K], takes[K])))


def takes_of(cost: Cost, B: int, places: int) -> np.ndarray:
    """How many plain steps a round takes with 0, 1, …, places - 1 guesses, (places,)."""
    return np.array([cost.seconds(B, K) for K in range(places)]) / cost.seconds(B, 0)


def concluded(gain: Gain, prompts: int) -> str:
    """The last line: the verdict and why."""
    found = f"{gain.verdict}: K = {gain.K}, {gain}"
    if gain.verdict == "cannot tell":
        few = f" of any prompts, as {prompts} show too little," * (prompts < FEWEST)
        return f"{found}: the interval{few} holds 1; more prompts may tell, or a quieter machine"
    why = f"a round brings {gain.brings:.2f} tokens and takes {gain.takes:.2f} plain steps"
    return f"{found} times as fast as plain decoding: {why}"


def advised(
    kinds: Sequence[str], counts: np.ndarray, cost: Cost, Bs: Sequence[int]
) -> dict[str, Any]:
    """What is found, for a program, of the kind of each prompt and of counts (N, K+1) of all."""
    seen = counts[:, 0] > 0
    kinds, counts = [kind for kind, kept in zip(kinds, seen, strict=True) if kept], counts[seen]
    gains, total = [best(counts, cost, B) for B in Bs if B <= cost.last], counts.sum(0)
    ratios = {
        B: (brought(total) / takes_of(cost, B, len(total)))[1:].max()
        for B in range(min(Bs), cost.last + 1)
    }
    off = max([min(Bs) - 1, *(B for B, ratio in ratios.items() if ratio >= 1)]) + 1
    parts = {x: counts[[x == kind for kind in kinds]] for x in dict.fromkeys(kinds) if x}
    return {
        "prompts": len(counts),
        "rounds": int(total[0]),
        "alpha": (total[1:] / np.maximum(1, total[:-1])).tolist(),  # of each place
        "gains": [one._asdict() for one in gains],
        "kinds": {x: best(own, cost, Bs[0])._asdict() for x, own in parts.items()},
        "off_from": off if off <= cost.last else None,
        "tried_up_to": cost.last,
        "verdict": concluded(gains[0], len(counts)),
        "exit_code": {"yes": 0, "no": 1}.get(gains[0].verdict, 2),
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """The same in lines."""
    rows = [*((str(one["texts"]), one) for one in found["gains"]), *found["kinds"].items()]
    off, last, most = found["off_from"], found["tried_up_to"], len(found["alpha"])
    return [
        f"{found['prompts']} prompts, {found['rounds']:,} rounds",
        "place     " + "".join(f"{i:5}" for i in range(1, len(found["alpha"]) + 1)),
        "accepted  " + "".join(f"{alpha:5.2f}" for alpha in found["alpha"]),
        "texts     best K  times as fast",
        *(f"{name:10}{one['K']:6}{' +'[one['K'] == most]} {Gain(**one)}" for name, one in rows),
        f"loses from {off} at once on"
        if off
        else f"pays with up to {last} at once, the most tried",
        found["verdict"],
    ]


def read_prompts(path: Path) -> list[tuple[str, str]]:
    """Kind ("" where there is none) and prompt of each line. Raises ValueError for a bad one."""
    pairs = []
    for i, line in enumerate(read_text(path).split("\n"), 1):
        kind, tab, prompt = line.partition("\t") if "\t" in line else ("", "", line)
        if tab and not (kind.strip() and prompt.strip()):
            raise ValueError(f"{path}, line {i}: write KIND, a tab and a prompt; one is empty")
        pairs += [(kind.strip(), prompt)] * bool(prompt.strip())
    if not pairs:
        raise ValueError(f"{path} has no prompt; write one a line, or KIND, a tab and a prompt")
    return pairs


def ours(target: str, draft: str | None, device: str = "cpu", n: int = 40) -> tuple:
    """A pair of ours by its names in `nanogpt bench`: target, encode, draft, and n prompts.

    Raises ValueError for a draft that it does not name.
    """
    name = draft or "distilled"
    if name not in DRAFTS:
        raise ValueError(f"no draft {name!r} of ours; use one of {', '.join(DRAFTS)}")
    model, tokenizer = checkpoint.load(device=device)
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    prompts = [tokenizer.decode(prompt) for prompt in prompts_of(held_out, quick(n))]
    guesses = DRAFTS[name](tokens, tokenizer.vocab_size, model.device)
    return OURS[target](model), tokenizer.encode, guesses, prompts


def counted(server: Endpoint) -> dict[str, int]:
    """Since it started: {"": rounds, "0": those that accepted the first place, "1": …}."""
    counts: dict[str, int] = {}
    for labels, number in re.findall(rf"(?m)^{COUNTED}(?:{{(.*)}})? (\S+)$", server.metrics()):
        place = "".join(re.findall(r'position="(\d+)"', labels))
        counts[place] = counts.get(place, 0) + int(float(number))
    return counts


def served(server: Endpoint, prompts: Sequence[str], n: int, sampling: Sampling) -> np.ndarray:
    """Counts (N, K+1) of a server, with its own K: what each of the prompts added to its counters.

    Raises ValueError if it has none, or guessed nothing.
    """
    fields = {name: x for name, x in vars(sampling).items() if x is not None}
    fields, *_ = server.settle(prompts[0], 1, 1, 0, fields)  # with no defaults of its own
    seen = [counted(server)]
    for prompt in tqdm(prompts, desc="prompts", disable=None):
        server.complete(prompt, n, **fields)
        seen.append(counted(server))
        if not {"", "0"} <= {*seen[-1]}:
            raise ValueError(f"{server.url}: its /metrics has no {PLACES}, as vLLM's has")
    places = sorted(seen[-1], key=lambda place: int(place or -1))
    counts = np.diff([[one.get(x, 0) for x in places] for one in seen], axis=0).astype(float)
    if not counts[:, 0].any():
        raise ValueError(f"{server.url} guessed nothing: its counters stayed as they were")
    return counts


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of an advice."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("nanogpt advise", description=__doc__, formatter_class=how)
    add = parser.add_argument
    add("target", metavar="TARGET", help=f"a folder, {', '.join(OURS)}, or an address")
    add("draft", metavar="DRAFT", nargs="?", help=f"a folder, or of ours {', '.join(DRAFTS)}")
    add("--prompts", type=Path, metavar="FILE", help="default: 40 of 20 letters, Shakespeare's")
    add("--K", type=int, default=8, help="guesses a round at most, default: %(default)s")
    add("--tokens", type=int, default=100, help="new ones a prompt, default: %(default)s")
    add("--batch", type=int, nargs="+", default=[1, 8, 32], help="texts at once, default: 1 8 32")
    add("--temperature", type=float, default=1.0, help="default: %(default)s")
    add("--top-k", type=int, help="default: all tokens")
    add("--top-p", type=float, help="default: 1, all of them")
    add("--dtype", choices=[*causal.DTYPES], default="float32", help="of folders")
    add("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    add("--gpu", help="hardware that is not here, as `nanogpt size` takes it")
    add("--gpus", type=int, default=1, help="of them, default: %(default)s")
    add("--target-size", help="what runs there, as `nanogpt size --target`; default: the folder's")
    add("--draft-size", help="and its draft; default: the folder's")
    add("--context", type=int, default=2000, help="tokens a text there, default: %(default)s")
    add("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the advice. Returns the exit code. Raises ValueError or OSError if there is none."""
    given = parse_arguments(arguments)
    check_whole(1, K=given.K, tokens=given.tokens, batch=min(given.batch))
    sampling, Bs = Sampling(given.temperature, given.top_k, given.top_p), [*given.batch]
    remote, mine = is_address(given.target), given.target in OURS
    if remote and not given.gpu:
        raise ValueError("a server's passes cannot be timed from here: say its --gpu")
    if remote and given.draft:
        raise ValueError("a server has a draft of its own; leave DRAFT out, and say --draft-size")
    cost = elsewhere(given, not (mine or remote)) if given.gpu else None
    if given.device == "cpu":
        torch.set_num_threads(1)
    pairs = read_prompts(given.prompts) if given.prompts else []
    if mine or not pairs:
        own = (given.target, given.draft) if mine else ("nanogpt", None)
        target, encode, draft, shown = ours(*own, given.device)
    kinds, prompts = zip(*(pairs or [("", text) for text in shown]), strict=True)
    if remote:
        counts = served(Endpoint(given.target), prompts, given.tokens, sampling)
    else:
        if not mine:
            pair = causal.load_pair(given.target, given.draft, given.dtype, given.device)
            target, encode, draft = pair[0], pair[1].encode, pair[2]
        made = [
            write(target, draft, encode(text), given.tokens, given.K, sampling, seed)
            for seed, text in enumerate(tqdm(prompts, desc="prompts", disable=None))
        ]
        texts, counts = [text for text, _ in made], np.array([row for _, row in made])
        if not counts.any():
            raise ValueError("no round had room for K guesses; take a smaller K, or more tokens")
        if not cost:
            brings = brought(counts.sum(0))
            some = {K: brings[K] for K in sorted({0, 1, (given.K + 1) // 2, given.K})}
            n = given.tokens
            cost = between(*round_times(target, draft, texts, n, sorted({*Bs}), some, sampling))
    found = advised(kinds, counts, cost, Bs)
    if given.gpu and (mine or remote) and not given.draft_size:
        found["verdict"] += "; without a --draft-size, guesses cost nothing"
    print(json.dumps(found, indent=1) if given.json else "\n".join(table(found)))
    return found["exit_code"]
