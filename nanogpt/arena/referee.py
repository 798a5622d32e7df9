"""The arena's judge: may a reader's draft race? `nanogpt.arena` asks it before every race.

It asks whether q depends on the context alone, whether guesses are drawn from the q that is
claimed, and whether the text remains the target's own, as `nanogpt.proof.checks` asks of any
decoder: by enumeration, and greedily. The first fault ends it, in one line. Chance refuses a right
draft in one χ² of a million; other bounds are for rounding, far above what it does.

It looks for slips, and trusts you for the rest: your code runs as it is, in this process. Judge
nobody's file that you would not run. A draft that knows the held-out text by heart, or changes the
package beneath its judge, is not found out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, load_corpus, train_val_split
from nanogpt.drafts.parallel import depths_of
from nanogpt.engines.adapters import failure
from nanogpt.generate import Generation
from nanogpt.measure.bench import POLICIES, RULES
from nanogpt.measure.clock import clock, prompts_of
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.checks import check_joint, check_same_text, contexts, parents_of
from nanogpt.proof.exact import enumerate_outcomes
from nanogpt.proof.statistics import LEVEL, by_rank, p_value, score
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, Draft, speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.tree import Proposer, Tree, TreeRound

FRESH = "nanogpt arena --new"  # what writes a file to begin with
USUAL_K = 4  # of a file that does not say it
TEXTS, TOKENS = 12, 60  # that are decoded to see what it guesses
MOST_RUNS = 300  # of the loop, in one enumeration


class Refused(ValueError):
    """A draft that may not race. Its one sentence says what is wrong with it, and what to do."""


class Failed(Refused):
    """A draft whose code fails, so that it cannot be judged."""


@dataclass(frozen=True)
class Arena:
    """What drafts meet here.

    target: as it races; untouched: a copy, which no draft is handed. tokens (N,) int64 are for a
    draft to learn from, held_out (M,) int64 hold the prompts; corpus: whose text it is.
    """

    name: str
    target: GPTLanguageModel
    untouched: GPTLanguageModel
    tokenizer: CharTokenizer
    tokens: Tensor
    held_out: Tensor
    corpus: str


def open_arena(name: str = "fused") -> Arena:
    """The arena of the shipped target in one of TARGETS' forms, and of the corpus."""
    model, tokenizer = checkpoint.load()
    corpus = load_corpus()
    text = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    target = TARGETS[name](model)
    return Arena(name, target, copy.deepcopy(target), tokenizer, *text, corpus.name)


# ---- The reader's file


@dataclass(frozen=True)
class Entry:
    """A draft that has entered: from which file, with its K (or None) and rule, made in seconds."""

    path: Path
    draft: Draft | Proposer
    K: int | None
    rule: str
    seconds: float
    policy: str | None = None

    @property
    def proposes(self) -> bool:
        """Whether it makes trees, and is decoded by tree_generate."""
        return isinstance(self.draft, Proposer)


@contextlib.contextmanager
def blamed(path: Path, doing: str) -> Iterator[None]:
    """Inside, an error becomes a Failed with the file's line; a verdict of a check, a Refused."""
    try:
        yield
    except (Refused, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, too
        where, said = failure(error, path)
        if isinstance(error, AssertionError) and not where:  # a check of ours
            raise Refused(" ".join(str(error).split())) from None
        raise Failed(f"{doing}{where}: {said}") from error


def enter(path: Path, arena: Arena) -> Entry:
    """The draft of a reader's file, made.

    Random numbers may be used in making it, for training say. Raises Refused if there is none, or
    making it changes the target.
    """
    module = types.ModuleType("your_draft")
    module.__file__ = str(path)
    sys.modules["your_draft"] = module  # dataclasses look for it
    with blamed(path, "its code fails"):
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    make = vars(module).get("make_draft")
    if not callable(make):
        raise Refused(
            f"it has no function make_draft(tokens, vocab_size); `{FRESH} other.py` shows one"
        )
    handed = [arena.tokens.clone(), arena.tokenizer.vocab_size, arena.target]
    takes = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    if len(takes) not in (2, 3) or any(p.kind not in (0, 1) for p in takes):
        raise Refused("make_draft must take (tokens, vocab_size) or (tokens, vocab_size, target)")
    with blamed(path, "make_draft fails"):
        seconds, draft = clock(lambda: make(*handed[: len(takes)]))
    torch.set_num_threads(1)  # it may have trained with more
    torch.set_default_dtype(torch.float32)
    check_untouched(arena)
    check_interface(draft, arena.target)
    K, rule, policy = (vars(module).get(name) for name in ("K", "RULE", "POLICY"))
    entry = Entry(path, draft, K, rule or "token", seconds, policy)
    check_options(entry, arena.target.config.block_size)
    return entry


def check_options(entry: Entry, window: int) -> None:
    """Raise Refused unless K, RULE and POLICY, as the file has them, are some of ours."""
    K, rule, policy = entry.K, entry.rule, entry.policy
    if entry.proposes and (K is not None or policy is not None or rule != "token"):
        raise Refused("a Proposer decides itself how much it guesses: leave K, POLICY, RULE out")
    if rule not in [*RULES]:
        raise Refused(f"RULE is {rule!r}; it must be one of {', '.join(RULES)}")
    if K is not None and (type(K) is not int or not 1 <= K < window):
        raise Refused(f"K is {K!r}; it must be a whole number in 1 … {window - 1}")
    if policy is not None and (K is not None or policy not in POLICIES):
        known = ", ".join(map(repr, POLICIES))
        raise Refused(f"POLICY is {policy!r}; it must be one of {known}, and K left out beside it")


def weights_of(target: GPTLanguageModel) -> list[Tensor]:
    """All tensors that it computes with, those that are made of its parameters as well."""
    made = [x for x in vars(target).values() if isinstance(x, (Tensor, list))]
    return [*target.state_dict().values(), *(t for x in made for t in x)]


def check_untouched(arena: Arena) -> None:
    """Raise Refused unless the target's weights are what they were."""
    if not all(map(torch.equal, weights_of(arena.target), weights_of(arena.untouched))):
        raise Refused("it changes the target's weights; copy.deepcopy(target) before training")


def check_interface(draft, target: GPTLanguageModel) -> None:
    """Raise Refused unless it has what a draft has, and the target's vocabulary."""
    if draft is None:
        raise Refused("make_draft returns None; end it with `return draft`")
    if not isinstance(draft, (Draft, Proposer)):
        kind = f"the class {draft.__name__}" if isinstance(draft, type) else type(draft).__name__
        raise Refused(
            f"make_draft returns {kind}, not an object of a class that inherits Draft, of "
            "nanogpt.speculative, or Proposer, of nanogpt.trees.tree"
        )
    size, own = getattr(draft, "vocab_size", "missing"), target.config.vocab_size
    if size != own:
        raise Refused(
            f"its vocab_size is {size}; the target has {own} tokens, and they must share one "
            "tokenizer"
        )
    if isinstance(draft, Proposer) and draft.target not in (None, target):
        raise Refused("its attribute `target` is another model; that name is for the given target")


# ---- The judge


def judge(entry: Entry, arena: Arena) -> Iterator[tuple[str, str]]:
    """What is asked of a draft, check by check: its name, and what was seen.

    Raises Refused at the first fault.
    """
    with blamed(entry.path, "it fails while it is judged"):
        if not entry.proposes:
            yield "q", check_q(entry, arena)
        yield "guesses", check_again(entry, arena)
        if not entry.proposes and getattr(entry.draft.draw, "__func__", None) is not Draft.draw:
            yield "claims", check_claims(entry, arena)
        yield "exact", check_exact(entry, arena)
        n, own = arena.target.config.block_size, functools.partial(decode, entry)
        for prompt in prompts_of(arena.held_out, 3):  # each over a restart of the window
            check_same_text(own, arena.target, entry.draft, prompt, n, USUAL_K, 0)
        yield "greedy", f"3 texts of {n} tokens equal the target's own, over a restart"
    check_untouched(arena)


def decode(entry: Entry, target, draft, prompt, n: int, K: int, sampling, rng) -> Generation:
    """A text of the real loop with a draft: K guesses a round and the entry's rule, or trees."""
    if entry.proposes:
        steps = replace(TREE, draft=checked(TREE.draft, draft.vocab_size))
        return tree_generate(target, draft, prompt, n, sampling, rng, steps=steps)
    step = checked(CHAIN.draft, draft.vocab_size)
    steps = replace(CHAIN, draft=step, accept=RULES[entry.rule])
    return speculative_generate(target, draft, prompt, n, K, sampling, rng, steps=steps)


def checked(step: Callable, V: int) -> Callable:
    """A draft step whose guesses are looked at before they are verified: raises Refused."""

    def draft(own, text, most, *how):
        before = list(text.tokens)
        guesses = step(own, text, most, *how)
        if text.tokens != before:
            raise Refused("it changes the context that it is given; copy it with list(…)")
        tree = isinstance(guesses, Tree)
        tokens, q = (guesses.tokens, guesses.q) if tree else guesses
        wanted = min(most, text.room)
        if len(tokens) > wanted and not tree:
            raise Refused(f"it guesses {len(tokens)} tokens ahead; {wanted} at most are wanted")
        strange = [x for x in tokens if not isinstance(x, int) or not 0 <= x < V]
        if strange:
            raise Refused(f"it guesses {strange[0]!r:.40}; a token is an int in 0 … {V - 1}")
        check_distributions(q, (len(tokens), V), "the q of its guesses")
        return guesses

    return draft


def check_distributions(q, shape: tuple[int, ...], whose: str) -> None:
    """Raise Refused unless q (shape) is probabilities in float64, which sum to 1 within 1e-12."""
    kind = f"{q.dtype} {tuple(q.shape)}" if isinstance(q, Tensor) else type(q).__name__
    if kind != f"torch.float64 {shape}":
        raise Refused(
            f"{whose} is a {kind}; it must be a tensor, torch.float64 {shape}: call .double(), "
            "then divide by the sum"
        )
    if not (q >= 0).all():
        raise Refused(
            f"{whose} holds a negative number or NaN; is a count of 0 divided by a sum of 0?"
        )
    off = (q.sum(-1) - 1).abs().max().item() if q.numel() else 0.0
    if off > 1e-12:
        raise Refused(f"{whose} sums to 1 within {off:.1e}; divide it by its sum, in float64")


def questions(arena: Arena) -> list[list[int]]:
    """The contexts that a draft is asked about: each token, pairs rarely seen, and real text.

    From 1 token to more than two windows; some begin alike, as they do after a rejection.
    """
    V, window, text = arena.tokenizer.vocab_size, arena.target.config.block_size, arena.held_out
    asked = [[i] for i in range(V)] + [[i, (7 * i + 3) % V] for i in range(V)]
    lengths = (3, 5, 10, 20, 60, window - 1, window, window + 1, 2 * window + 10)
    asked += [text[97 * i :][:n].tolist() for i, n in enumerate(lengths)]
    a = text[:40].tolist()
    return [*asked, a[:10], a[:20], [*a[:12], 0, 0, 0], a[:30], a[:12], a[:20]]


def quoted(context: Sequence[int], arena: Arena) -> str:
    """The end of a context, for a message."""
    text = arena.tokenizer.decode(context[-12:])
    return f"after {f'{len(context)} tokens, the last ' * (len(context) > 12)}{text!r}"


@torch.inference_mode()
def answers(entry: Entry, arena: Arena, asked: Sequence[list[int]]) -> list[Tensor]:
    """A copy of the q (V,) that each question gets. Raises Refused for one that is none."""
    found, copies = [], []
    for context in asked:
        handed = list(context)
        with blamed(entry.path, f"get_probs fails {quoted(context, arena)}"):
            q = entry.draft.get_probs(handed)
        if handed != context:
            raise Refused("get_probs changes the context that it is given; copy it with list(…)")
        check_distributions(q, (arena.tokenizer.vocab_size,), f"{quoted(context, arena)}, its q")
        found.append(q)
        copies.append(q.clone())
    if not all(map(torch.equal, found, copies)):
        raise Refused(
            "get_probs changes a q that it gave earlier, so what was drawn was drawn from another; "
            "return a new tensor, or a .clone()"
        )
    return copies


def check_asked_again(entry: Entry, arena: Arena, asked: list[list[int]], first) -> None:
    """get_probs gives the first q (V,) of each context when it is asked again, backwards.

    To 1e-4: a draft with a cache rounds by what it happens to have read. Raises Refused.
    """
    seed_all(2)
    again = answers(entry, arena, asked[::-1])[::-1]
    for context, q, other in zip(asked, first, again, strict=True):
        off = float((q - other).abs().max())
        if off > 1e-4:
            raise Refused(
                f"q is another, off by {off:.2g}, when get_probs is asked again "
                f"{quoted(context, arena)}: it must depend on the context alone, not on time, "
                "chance, or what was asked before (a cache that is not trimmed?)"
            )


def seed_all(seed: int) -> None:
    """Start torch's, NumPy's and Python's generators anew: who draws from them gives itself away.

    Nothing of ours does.
    """
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def check_q(entry: Entry, arena: Arena) -> str:
    """q is a distribution after every context, and depends on nothing else. Raises Refused."""
    asked = questions(arena)
    seed_all(1)
    check_asked_again(entry, arena, asked, answers(entry, arena, asked))
    return f"{len(asked)} contexts, each asked twice: probabilities, by the context alone"


class CheckedSource(RandomSource):
    """A RandomSource that is handed no running sums but those of the probabilities."""

    def categorical(self, probs, cdf: Sequence[float] | None = None) -> int:
        """As the source's. Raises Refused for other sums."""
        if cdf is not None and np.abs(np.asarray(probs).cumsum() - cdf).max() > 1e-9:
            raise Refused(
                "it hands rng.categorical running sums that are not those of its q, and so draws "
                "from another: if rows have changed since their sums were made, make them anew"
            )
        return super().categorical(probs, cdf)


def check_again(entry: Entry, arena: Arena) -> str:
    """check_guesses, of some texts that are decoded twice: the guesses come from the rng alone.

    Raises Refused.
    """
    prompts, how = prompts_of(arena.held_out, TEXTS), (TOKENS, entry.K or USUAL_K, Sampling())

    def decoded(i: int) -> Generation:
        return decode(entry, arena.target, entry.draft, prompts[i], *how, CheckedSource(i))

    seed_all(1)
    made = [decoded(i) for i in range(len(prompts))]
    seed_all(2)
    again = [decoded(i) for i in reversed(range(len(prompts)))][::-1]
    if guessed(made) != guessed(again):
        raise Refused(
            "it guesses otherwise when the same texts are decoded again: what it draws must come "
            "from the rng that it is given, and what it remembers must belong to one text"
        )
    if not any(guessed(made)):
        raise Refused(f"it never guessed in {len(prompts)} texts")
    return f"{len(prompts)} texts, each decoded twice: {check_guesses(entry, arena, prompts, made)}"


def guessed(made: Sequence[Generation]) -> list[list[int]]:
    """The candidates of all rounds."""
    return [list(r.candidates) for text in made for r in text.rounds]


def check_guesses(
    entry: Entry, arena: Arena, prompts: Sequence[list[int]], made: Sequence[Generation]
) -> str:
    """Guesses of texts come as often as the q that they claim says, by χ²; a chain's is get_probs'.

    By the token, and by its rank in q, which sees best who draws likely tokens too often; all of
    them, and those from each depth on. Raises Refused.
    """
    tokens = [token for candidates in guessed(made) for token in candidates]
    if not tokens:
        return "no guesses"
    q, came = torch.cat([r.draft_probs for text in made for r in text.rounds]), torch.tensor(tokens)
    depth = torch.tensor(
        [d for text in made for r in text.rounds for d in depths_of(parents_of(r))]
    )
    seen = []
    for at in (depth >= d for d in depth.unique()):  # all of them, then those from the second on, …
        for cells, (rows, cell) in {"token": (q, came), "rank": by_rank(q, came)}.items():
            statistic, freedom = score(rows[at], cell[at])
            seen.append(f"χ² by {cells} is {statistic:.0f} ({freedom} degrees of freedom)")
            if p_value(statistic, max(1, freedom)) < LEVEL:
                raise Refused(
                    f"{int(at.sum())} guesses are not spread as their claimed q says: {seen[-1]}; "
                    "draw each with rng.categorical(q), and return that q"
                )
    if not entry.proposes:
        asked = []
        for prompt, text in zip(prompts, made, strict=True):
            known = list(prompt)
            for r in text.rounds:
                after = contexts(r, known)
                asked += [after[parent + 1] for parent in parents_of(r)]
                known += r.emitted
        check_asked_again(entry, arena, asked, q)
    return f"of {len(tokens)} guesses {', '.join(seen[:2])}"


def check_text(made: Sequence[Generation]) -> None:
    """The tokens of texts at temperature 1 come as often as the target's p says. Raises Refused."""
    rounds = [r for text in made for r in text.rounds]
    paths = [r.path if isinstance(r, TreeRound) else range(r.n_accepted) for r in rounds]
    p = [r.target_probs[[0, *(i + 1 for i in path)]] for r, path in zip(rounds, paths, strict=True)]
    came = torch.tensor([token for r in rounds for token in r.emitted])
    for rows, cell in ((torch.cat(p), came), by_rank(torch.cat(p), came)):
        statistic, freedom = score(rows, cell)
        if p_value(statistic, max(1, freedom)) < LEVEL:
            raise Refused(f"its text is not drawn from the target's p: χ² is {statistic:.0f}")


class TooMany(Exception):
    """More branches than an enumeration may have."""


def check_claims(entry: Entry, arena: Arena) -> str:
    """`draw` draws its guess from the q that it claims, by enumeration of one. Raises Refused."""
    runs, context = itertools.count(1), arena.held_out[:20].tolist()

    def program(rng) -> tuple:
        if next(runs) > MOST_RUNS:
            raise TooMany
        tokens, q = entry.draft.fresh().draw(list(context), 1, Sampling(), rng)
        return (tokens[0], float(q[0, tokens[0]])) if tokens else (None, 0.0)

    try:
        outcomes = enumerate_outcomes(program)
    except TooMany:
        return "too many branches to enumerate a guess; the χ² stands alone"
    silent = sum(chance for (token, _), chance in outcomes.items() if token is None)
    for (token, q), chance in outcomes.items():
        if token is not None and abs(chance - q * (1 - silent)) > 1e-12:
            raise Refused(
                f"draw claims q = {q:.3g} for {arena.tokenizer.decode([token])!r} "
                f"{quoted(context, arena)}, and draws it with probability {chance:.3g}: return the "
                "q that was drawn from, by rng.categorical(q)"
            )
    return f"a guess has the q that it claims, by enumeration of {len(outcomes)}"


def check_exact(entry: Entry, arena: Arena) -> str:
    """The real loop with this draft gives three tokens the target's own joint distribution.

    By enumeration, with top-k so that it ends, to 1e-4. Raises AssertionError.
    """
    prompt, draft = prompts_of(arena.held_out, 1)[0], entry.draft
    for n in (3, 2):
        runs = itertools.count(1)

        def counted(*request, runs=runs) -> Generation:
            if next(runs) > MOST_RUNS:
                raise TooMany
            return decode(entry, *request)

        request = arena.target, draft, prompt, n, 2, Sampling(top_k=2)
        with contextlib.suppress(TooMany):
            off = check_joint(counted, request, type(draft).__name__, bound=1e-4)
            return f"{n} tokens have the target's joint distribution: total variation {off:.0e}"
    return f"too many branches to enumerate within {MOST_RUNS} runs; the χ² stands alone"
