"""The honest benchmark: speculative decoding against cached autoregressive decoding, in pairs.

One process, one thread, warmed up; for each prompt both decoders in turn, now one first, now the
other, so that a machine that slows down slows both; medians of the pairwise ratios with their
quartiles, and the time of all texts together. The baseline of a fused target is the fused target.
Prompts are from the validation split; drafts (and seeds) are ready before the clock starts, and
their building is shown apart. Of blocks it also says, without a clock and without a coin, how many
tokens one brings on average: that tells two drafts apart long before the seconds do.

`nanogpt bench` takes a short tour, `--all` the long one of book/measured.md, `--settings` one of
temperatures and cuts that people use. With --target, --draft, --K, --temperature or --rule it
measures every combination of what is given: `--draft distilled --K 4 8 12 acceptance`. After the
warm-up it says how long it will take. `--records` prints the rows as book/records.md has them.

`--device cuda` (or mps) puts the target and every draft that is a network there; tables, and all
that is drawn or judged, stay on the CPU. The clock waits for a GPU before it starts and stops.
Products are in full float32 there as well, torch's default: TF32 stays off.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from nanogpt import checkpoint
from nanogpt.data import check_folders, load_corpus, train_val_split
from nanogpt.drafts import adaptive
from nanogpt.drafts.shipped import (
    BEST,
    BEST_BLOCKS,
    BEST_PROPOSED,
    DRAFTS,
    NODES,
    PROPOSERS,
    proposer,
)
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.measure.clock import DEVICES, clock, frozen, prompts_of, wait
from nanogpt.measure.costs import calibrate, cost_growth, expected_blocks
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.show import figures
from nanogpt.speculative import CHAIN, Draft, Steps, accept_reject, speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.theory import expected_tokens, speed_up
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.rules import accept_blockwise, accept_traversal, accept_tree
from nanogpt.trees.tree import Proposer, TreeRound

BLOCK_TEXTS = 400  # after which blocks are drafted to see what they bring
POLICIES = ("acceptance", "entropy")
RULES = {"token": accept_reject, "block": accept_blockwise}
TREE_RULES = {"token": accept_tree, "block": accept_traversal}


@dataclass(frozen=True)
class Setting:
    """One row of the table: what is decoded with what, and judged by which of RULES.

    K: how deep the draft guesses; policy: one of POLICIES, which chooses it instead; nodes: of a
    tree; temperature, top_k and top_p: of target and draft alike. A draft of PROPOSERS is judged by
    accept_tree.
    """

    target: str
    draft: str
    K: int | None
    temperature: float
    rule: str = "token"
    policy: str | None = None
    nodes: int | None = None
    top_k: int | None = None
    top_p: float | None = None

    @property
    def sampling(self) -> Sampling:
        """What bends the probabilities."""
        return Sampling(self.temperature, self.top_k, self.top_p)


BLOCKS = [
    Setting(target, "distilled", BEST_BLOCKS["distilled"], 1.0, "block") for target in TARGETS
]
SHORT = BLOCKS + [
    Setting(target, draft, BEST[draft], 1.0)
    for target in TARGETS
    for draft in ("distilled", "bigram", "transformer-distilled", "lookup")
]
ALL = BLOCKS + [Setting(target, draft, K, 1.0) for target in TARGETS for draft, K in BEST.items()]
ALL += [Setting(target, "distilled", K, 1.0) for target in TARGETS for K in (1, 2, 4, 8, 12, 16)]
ALL += [Setting(target, "distilled", K, 1.0, "block") for target in TARGETS for K in (15, 23, 31)]
ALL += [Setting(target, "confident", BEST_BLOCKS["confident"], 1.0, "block") for target in TARGETS]
ALL += [Setting(target, "distilled", None, 1.0, policy=p) for target in TARGETS for p in POLICIES]
ALL += [
    Setting(target, "distilled", BEST["distilled"], T) for target in TARGETS for T in (0.0, 1.5)
]
ALL += [
    Setting(target, name, K, 1.0, nodes=NODES.get(name))
    for target in TARGETS
    for name, K in BEST_PROPOSED.items()
]


BENDING = ((1, None, None), (0, None, None), (0.7, None, None), (0.7, None, 0.9), (1, 20, None))
SETTINGS = [  # as people sample, with the best draft here
    dataclasses.replace(block, temperature=T, top_k=top_k, top_p=top_p)
    for T, top_k, top_p in BENDING
    for block in BLOCKS
]


class Timed:
    """A function whose calls are timed: `seconds` is their sum, `calls` their number."""

    def __init__(self, timed: Callable):
        self.timed, self.seconds, self.calls = timed, 0.0, 0

    def __call__(self, *args, **kwargs):
        wait()
        started = time.perf_counter()
        result = self.timed(*args, **kwargs)
        wait()
        self.seconds += time.perf_counter() - started
        self.calls += 1
        return result


class TimedTarget(Timed):
    """A target whose passes are timed, through its `states` as well; then `ln_f` and `lm_head`.

    Everything else of it is passed on.
    """

    def __init__(self, target):
        super().__init__(target)
        self.config, self.device = target.config, target.device  # asked for in every round
        self.states = Timed(target.states)
        self.ln_f, self.lm_head = Timed(target.ln_f), Timed(target.lm_head)

    def __getattr__(self, name):
        return getattr(self.timed, name)

    @property
    def spent(self) -> float:
        """Seconds in the target, all together."""
        return sum(part.seconds for part in (self, self.states, self.ln_f, self.lm_head))

    @property
    def passes(self) -> int:
        """How many passes there were."""
        return self.calls + self.states.calls


@dataclass(frozen=True)
class Pair:
    """One prompt, decoded both ways: seconds of each, and of the speculative one's target passes.

    shares: of the speculative seconds, in the prefill, the other passes, and the parts.
    """

    plain_seconds: float
    seconds: float
    target_seconds: float
    shares: dict[str, float]
    made: Generation

    @property
    def speed_up(self) -> float:
        """Autoregressive over speculative seconds."""
        return self.plain_seconds / self.seconds

    @property
    def outside(self) -> float:
        """The speculative seconds that were not spent in the target's passes."""
        return self.seconds - self.target_seconds


def timed_steps(steps: Steps, target: TimedTarget) -> tuple[Steps, dict[str, Callable[[], float]]]:
    """The same steps with a clock on each, and of each part what it took so far, in seconds.

    "prefill": the passes that a draft has the target make before it guesses, which are not its own.
    """
    timed = {field.name: Timed(getattr(steps, field.name)) for field in dataclasses.fields(steps)}
    before = 0.0

    def draft(*args):
        nonlocal before
        started = target.spent
        result = timed["draft"](*args)
        before += target.spent - started
        return result

    spent = {
        "prefill": lambda: before,
        "target": lambda: target.spent - before,
        "draft": lambda: timed["draft"].seconds - before,
        "accept": lambda: timed["accept"].seconds,
        "cache": lambda: timed["trim"].seconds,
    }
    return Steps(**{**timed, "draft": draft}), spent


def loop_of(
    draft: Draft | Proposer, K: int | None, rule: str, policy: adaptive.Policy | None
) -> tuple[Steps, Callable]:
    """The steps of the loop that a draft asks for, and that loop with the draft in it."""
    if isinstance(draft, Proposer):
        steps = dataclasses.replace(TREE, accept=TREE_RULES[rule])
        return steps, functools.partial(tree_generate, draft=draft)
    step = CHAIN.draft if policy is None else adaptive.adaptive(policy)
    steps = dataclasses.replace(CHAIN, draft=step, accept=RULES[rule])
    return steps, functools.partial(speculative_generate, draft=draft, K=4 if K is None else K)


def measure(
    target,
    draft: Draft | Proposer,
    prompt: list[int],
    n: int,
    K: int | None,
    sampling: Sampling,
    seed: int,
    rule: str = "token",
    policy: adaptive.Policy | None = None,
) -> Pair:
    """Both decoders on one prompt, n tokens each; an odd seed lets the speculative one go first.

    Then the speculative one again, the same tokens from the same seed, with the clock on its parts.
    K and `rule` are as in a Setting.
    """
    request = {"prompt_tokens": prompt, "max_new_tokens": n, "sampling": sampling}
    steps, decode = loop_of(draft, K, rule, policy)
    passes, watched = TimedTarget(target), TimedTarget(target)
    clocked, spent = timed_steps(steps, watched)
    one, other, again = (RandomSource(seed) for _ in range(3))
    decoders = [
        lambda: autoregressive_generate(target, **request, rng=one),
        lambda: decode(passes, **request, rng=other, steps=steps),
    ]
    first = seed % 2
    timed = {which: clock(decoders[which]) for which in (first, 1 - first)}
    (plain, _), (seconds, made) = timed[0], timed[1]
    whole, _ = clock(lambda: decode(watched, **request, rng=again, steps=clocked))
    shares = {name: of() / whole for name, of in spent.items()}
    return Pair(plain, seconds, passes.spent, shares, made)


def policy_of(name: str | None, target, draft, sampling: Sampling = Sampling()):
    """The policy of a Setting, by its name; None for none."""
    if name == "acceptance":
        return adaptive.by_acceptance(**calibrate(target, draft, sampling))
    if name == "entropy":
        return adaptive.by_entropy(budget=16.0)
    return None


def passes(made: Generation) -> tuple[int, int]:
    """A text's tokens, and its passes."""
    return len(made.tokens), made.target_passes


def acceptance(made: Generation) -> tuple[int, int]:
    """A text's accepted guesses, and its examined ones: their ratio is α."""
    return sum(r.n_accepted for r in made.rounds), sum(r.n_examined for r in made.rounds)


def pooled(made: Sequence[Generation], of: Callable = passes) -> tuple[float, float]:
    """A ratio of several texts, all a over all b, and its standard error; by default tokens a pass.

    of: a text's (a, b). The error comes from the differences between texts (n of them):
    sqrt(n/(n-1) · Σ (a - ratio · b)²) / Σ b. NaN for one text, or where all b are 0.
    """
    a, b = torch.tensor([of(one) for one in made], dtype=torch.float64).T
    ratio, n = float(a.sum() / b.sum()), len(made)
    off = float((a - ratio * b).square().sum()) * n / (n - 1) if n > 1 else float("nan")
    return ratio, off**0.5 / float(b.sum()) if b.any() else float("nan")


def tokens_a_pass(
    target,
    draft: Draft | Proposer,
    starts: Sequence[Sequence[int]],
    K: int | None = None,
    rule: str = "token",
    sampling: Sampling = Sampling(),
    n: int = 100,
) -> tuple[float, float]:
    """Tokens a pass of texts of n tokens, pooled, and the error: by the loop that is timed."""
    steps, decode = loop_of(draft, K, rule, None)
    made = []
    for seed, start in enumerate(starts):
        asked = {"prompt_tokens": start, "max_new_tokens": n, "sampling": sampling}
        made.append(decode(target, **asked, rng=RandomSource(seed), steps=steps))
    return pooled(made)


@dataclass(frozen=True)
class Row:
    """What was measured at a Setting: of all pairs, and shares of the whole time.

    speed_up and quartiles: of the pairs' ratios; together: of the time of all texts (the harmonic
    mean of the ratios, if plain decoding took as long for each). predicted: the speed-up equation
    at the measured α and times. α, with its error from text to text, is the parameter of the
    token-wise rule, so blocks have neither, and trees no prediction (None): tokens counted over
    time measured would predict nothing, but be `together` once more. drafted: mean tokens per
    round; tokens_per_pass and its standard error: `pooled`; outside: seconds of a round outside the
    target's passes; guess_seconds: of drafting, per drafted token (NaN where none was drafted).
    """

    setting: Setting
    speed_up: float
    quartiles: tuple[float, float]
    together: float
    predicted: float | None
    alpha: float | None
    alpha_error: float | None
    drafted: float
    tokens_per_pass: float
    error: float
    outside: float
    shares: dict[str, float]
    guess_seconds: float


def summary(setting: Setting, pairs: list[Pair]) -> Row:
    """The row of a setting's pairs."""
    ratios = sorted(pair.speed_up for pair in pairs)
    quartiles = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    rounds = [r for pair in pairs for r in pair.made.rounds]
    texts, alpha, alpha_error = [pair.made for pair in pairs], None, None
    if setting.rule == "token":
        alpha, alpha_error = pooled(texts, acceptance)
    chain = alpha is not None and not any(isinstance(r, TreeRound) for r in rounds)
    tokens = sum(len(pair.made.tokens) for pair in pairs)
    seconds = sum(pair.seconds for pair in pairs)
    shares = {
        name: sum(pair.shares[name] * pair.seconds for pair in pairs) / seconds
        for name in pairs[0].shares
    }
    shares["rest"] = 1 - sum(shares.values())
    plain = sum(pair.plain_seconds for pair in pairs)
    unit = plain / tokens  # one token, one pass
    K = sum(len(r.candidates) for r in rounds) / len(rounds)
    per_round = {name: share * seconds / len(rounds) / unit for name, share in shares.items()}
    verify = per_round.pop("target")
    rest = sum(per_round.values()) - per_round["draft"]
    k, predicted = max(1, round(K)), None  # a draft may hardly ever guess
    if chain:
        brings = expected_tokens(alpha, round(K))
        predicted = speed_up(brings, k, per_round["draft"] / k, verify, rest)
    return Row(
        setting,
        median(ratios),
        quartiles,
        plain / seconds,
        predicted,
        alpha,
        alpha_error,
        K,
        *pooled(texts),
        sum(pair.outside for pair in pairs) / len(rounds),
        shares,
        shares["draft"] * seconds / (K * len(rounds)) if K else float("nan"),
    )


HEADER = (
    "target    draft                  K           T         rule   speed-up  quartiles     together"
    "  predicted  α            tokens/pass  outside │ target draft accept cache rest"
)


def depth(s: Setting) -> str:
    """How deep a setting's draft guesses, or who says so, and the nodes of its tree."""
    return f"{s.policy or s.K or 'own'}" + (f", {s.nodes} n" if s.nodes else "")


def bending(s: Setting) -> str:
    """A setting's temperature, and what else bends its probabilities."""
    cuts = (f" k {s.top_k}" if s.top_k else "") + (f" p {s.top_p:g}" if s.top_p else "")
    return f"{s.temperature:g}{cuts}"


def line(row: Row) -> str:
    """A row of the table on screen."""
    s, (low, high) = row.setting, row.quartiles
    share = {name: f"{100 * part:.0f}" for name, part in row.shares.items()}
    target = f"{100 * (row.shares['target'] + row.shares['prefill']):.0f}"
    alpha = "–" if row.alpha is None else f"{row.alpha:.2f} ± {row.alpha_error:.2f}"
    predicted = "–" if row.predicted is None else f"{row.predicted:.2f}×"
    return (
        f"{s.target:9} {s.draft:22} {depth(s):11} {bending(s):9} {s.rule:6} "
        f"{row.speed_up:6.2f}×   {low:5.2f} … {high:5.2f} {row.together:6.2f}×   "
        f"{predicted:>7}    {alpha:<11} {row.tokens_per_pass:6.2f} ± {row.error:4.2f}"
        f"{row.outside * 1e6:6.0f} µs │ {target:>5}% {share['draft']:>4}% "
        f"{share['accept']:>5}% {share['cache']:>4}% {share['rest']:>3}%"
    )


def record(row: Row, where: str, pairs: int, tokens: int, text: str) -> dict[str, str]:
    """A row in the fields of the records; its source is the command that measures it again."""
    s, (low, high) = row.setting, row.quartiles
    command = f"nanogpt bench --records --target {s.target} --draft {s.draft}"
    command += f" --policy {s.policy}" if s.policy else f" --K {s.K}"
    command += f" --nodes {s.nodes}" if s.nodes else ""
    command += f" --temperature {s.temperature:g} --pairs {pairs} --tokens {tokens}"
    command += f" --rule {s.rule}" if s.rule != "token" else ""
    command += f" --top-k {s.top_k}" if s.top_k else ""
    command += f" --top-p {s.top_p:g}" if s.top_p else ""
    speed = f"{row.speed_up:.2f} ({low:.2f} to {high:.2f}, quartiles of {pairs} pairs)"
    return {
        "method": f"{s.draft}: ours, {s.rule} rule",
        "speed-up": f"{speed}; {row.tokens_per_pass:.2f} ± {row.error:.2f} tokens a pass",
        "model": f"this course's target, {s.target}",
        "task": f"{tokens} letters in the style of {text}",
        "temperature": bending(s).replace(" k ", ", top-k ").replace(" p ", ", top-p "),
        "batch": "1",
        "machine": f"{platform.processor() or platform.machine()}, {where}",
        "budget": f"{s.nodes} nodes, {s.K} deep" if s.nodes else f"K = {s.policy or s.K}",
        "baseline": "plain decoding of the same target, cached",
        "date": datetime.date.today().isoformat(),
        "source": f"`{command}`",
    }


def picture(rows: list[Row]) -> figures.Picture:
    """Speed-up against K of the first row's draft, temperature and rule, beside the predicted one.

    Raises ValueError if no row has a number as its K.
    """
    first = rows[0].setting
    curves = {}
    numbers = [r for r in rows if r.setting.policy is None]
    for row in sorted(numbers, key=lambda r: r.setting.K):
        s = row.setting
        if s == dataclasses.replace(first, target=s.target, K=s.K, policy=None):
            curves.setdefault(s.target, []).append(row)
    if not curves:
        raise ValueError("no row to draw: give K as numbers")
    return figures.measured_beside_predicted(
        {
            target: (
                [r.setting.K for r in mine],
                [r.speed_up for r in mine],
                [r.quartiles for r in mine],
                [float("nan") if r.predicted is None else r.predicted for r in mine],
            )
            for target, mine in curves.items()
        },
        f"Speed-up with the {first.draft} draft, temperature {first.temperature:g}",
        "K, drafted tokens a round",
        "times as fast as one token a pass",
    )


def run(
    settings: list[Setting], targets: dict, drafts: dict, prompts: list[list[int]], n: int
) -> list[list[Pair]]:
    """Each setting's pairs, n tokens each: all settings on a prompt before the next one.

    After the warm-up, a line on stderr says about how long the rest will take.
    """
    ready, seconds, short = [], 0.0, min(n, 40)
    for s in tqdm(settings, desc="warm-up"):
        target, sampling = targets[s.target], s.sampling
        if s.draft in PROPOSERS:
            draft = proposer(s.draft, target, drafts.get("distilled"), s.K, s.nodes)
            target = draft.target or target  # a draft may have one of its own
        else:
            draft = drafts[s.draft]
        policy = policy_of(s.policy, target, draft, sampling)
        how = {"draft": draft, "K": s.K, "policy": policy, "rule": s.rule}
        how |= {"sampling": sampling, "target": target}
        ready.append(how)
        seconds += clock(functools.partial(measure, prompt=prompts[0], n=short, seed=0, **how))[0]
    minutes = seconds * n / short * len(prompts) / 60
    print(f"{len(settings)} rows, about {minutes:.1f} minutes", file=sys.stderr)
    pairs: list[list[Pair]] = [[] for _ in settings]
    with frozen(), tqdm(total=len(prompts) * len(settings), desc="pairs") as bar:
        for seed, prompt in enumerate(prompts):
            for how, mine in zip(ready, pairs, strict=True):
                mine.append(measure(prompt=prompt, n=n, seed=seed, **how))
                bar.update()
    return pairs


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings of a run."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nanogpt bench", description=__doc__, formatter_class=how)
    parser.add_argument("--all", action="store_true", help="the long tour: every draft, many K")
    parser.add_argument("--settings", action="store_true", help="the best draft, as people sample")
    parser.add_argument("--target", nargs="+", choices=list(TARGETS))
    parser.add_argument("--draft", nargs="+", choices=[*DRAFTS, *PROPOSERS])
    parser.add_argument("--K", nargs="+", type=int, help="how deep the draft guesses")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, help="chooses K, round by round")
    parser.add_argument("--nodes", nargs="+", type=int, help=f"of the trees of {', '.join(NODES)}")
    parser.add_argument("--temperature", nargs="+", type=float)
    parser.add_argument("--top-k", type=int, help="keep the k likeliest tokens")
    parser.add_argument("--top-p", type=float, help="of those, as many as have this probability")
    parser.add_argument("--rule", nargs="+", choices=list(RULES))
    parser.add_argument("--pairs", type=int, default=20, help="prompts, default: %(default)s")
    parser.add_argument("--tokens", type=int, default=100, help="each, default: %(default)s")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--records", action="store_true", help="print them as records, too")
    parser.add_argument("--picture", type=Path, help="draw the speed-ups into this PNG")
    return parser.parse_args(arguments)


def settings_of(given: argparse.Namespace) -> list[Setting]:
    """A tour, or every combination of what was given; draft and K default to the best.

    The rule defaults to the token-wise one. Raises ValueError for a tour beside a combination, and
    for a rule or a policy beside a draft of PROPOSERS.
    """
    chosen = ("target", "draft", "K", "policy", "nodes", "temperature", "top_k", "top_p", "rule")
    tours = {"--all": given.all and ALL, "--settings": given.settings and SETTINGS}
    [tour, *more] = [name for name, rows in tours.items() if rows] or [None]
    if not more and all(getattr(given, name) is None for name in chosen):
        return list(dict.fromkeys(tours.get(tour, SHORT)))
    if tour:
        words = ", ".join([*more, *(f"--{name.replace('_', '-')}" for name in chosen)])
        raise ValueError(f"{tour} is a tour of its own; leave out {words}")
    proposers = [draft for draft in given.draft or [] if draft in PROPOSERS]
    if proposers and (given.rule or given.policy):
        raise ValueError(
            f"{proposers[0]} has a rule and a depth of its own; no --rule, no --policy"
        )
    if given.policy and given.K:
        raise ValueError("a policy chooses K; leave out --K or --policy")
    free = [draft for draft in given.draft or ["distilled"] if draft not in NODES]
    if given.nodes and free:
        raise ValueError(f"{free[0]} has no nodes to choose; --nodes is for {' and '.join(NODES)}")
    settings, cuts = [], (given.top_k, given.top_p)
    for target, draft, temperature, rule in itertools.product(
        given.target or TARGETS,
        given.draft or ["distilled"],
        given.temperature or [1.0],
        given.rule or ["token"],
    ):
        best = ((BEST if rule == "token" else BEST_BLOCKS) | BEST_PROPOSED)[draft]
        for nodes in given.nodes or [NODES.get(draft)]:
            Ks = [(None, policy) for policy in given.policy or []] or [
                (K, None) for K in given.K or [best]
            ]
            how = temperature, rule
            settings += [Setting(target, draft, K, *how, p, nodes, *cuts) for K, p in Ks]
    return settings


def main(arguments: list[str] | None = None) -> None:
    """Print the table. Raises ValueError for settings out of range."""
    given = parse_arguments(arguments)
    if given.pairs < 1 or given.tokens < 1:
        raise ValueError(f"pairs {given.pairs} and tokens {given.tokens} must be at least 1")
    check_folders(given.json, given.picture)
    settings = settings_of(given)
    torch.set_num_threads(1)
    corpus = load_corpus()
    target, tokenizer = checkpoint.load(device=given.device)
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    targets = {name: make(target) for name, make in TARGETS.items()}
    drafts = {}
    wanted = dict.fromkeys("distilled" if s.draft == "tree" else s.draft for s in settings)
    for name in [name for name in wanted if name in DRAFTS]:
        made_of = tokens, tokenizer.vocab_size, target.device
        seconds, drafts[name] = clock(functools.partial(DRAFTS[name], *made_of))
        print(f"{name} draft: built in {seconds:.2f} s")
    prompts = prompts_of(held_out, given.pairs)
    measured = run(settings, targets, drafts, prompts, given.tokens)
    rows = [summary(s, pairs) for s, pairs in zip(settings, measured, strict=True)]
    where = "1 thread" if given.device == "cpu" else f"on {given.device}"
    print(f"{given.pairs} pairs of {given.tokens} tokens each, {where}, {corpus.name}")
    print(HEADER, *map(line, rows), sep="\n")
    if given.records:
        how = where, given.pairs, given.tokens, corpus.name
        print(json.dumps([record(row, *how) for row in rows], ensure_ascii=False, indent=1))
    many = prompts_of(held_out, BLOCK_TEXTS)
    for name, draft in drafts.items():
        Ks = sorted({s.K for s in settings if s.rule == "block" and s.draft == name})
        if Ks and type(draft).draw is not Draft.draw:  # a whole chain in one go
            print(f"{name}: a block brings, no coin tossed, on average", end=" ")
            expected = expected_blocks(targets["fused"], draft, many, Ks)
            said = (f"{x:.2f} ± {e:.2f} tokens at K = {K}" for K, (x, e) in expected.items())
            print(*said, sep=", ")
    growth = cost_growth(targets["fused"])
    print(f"fused target: a pass at position 120 costs {growth:.2f}× one at position 20")
    if given.json:
        given.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    if given.picture:
        given.picture.write_bytes(picture(rows)._repr_png_()[0])
