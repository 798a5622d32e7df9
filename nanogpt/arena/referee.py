"""The arena's judge: may a reader's draft race? `nanogpt.arena` asks it before every race.

It asks whether it is a draft, whether q depends on the context alone, whether what is drawn is
drawn from the q that is claimed, and whether the text remains the target's own: by enumeration of
the real loop, and greedily. The first fault ends it, in one line. `nanogpt.arena.inquiry` asks
again when the race is over, of its very rounds; `nanogpt.arena.seal` knows what nobody may touch.

Chance refuses a right draft in one test of three million: a χ² is refused five standard deviations
up. Other bounds are for rounding, far above what it does: 1e-4 in float32, 1e-12 in float64.

What none of them sees: a draft that has learned the held-out text by heart, from the file instead
of from `tokens`; one that works in another thread or process while the clock is on the target; one
that changes the package or the target, and changes it back before anybody looks; one that changes
Python or PyTorch beneath them; a lie so small, or so rare, that a race is too short to show it. It
runs your code as it is: judge nobody's file that you would not run.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from nanogpt import checkpoint
from nanogpt.arena.seal import Parts, changed, package_parts, tampered
from nanogpt.data import CharTokenizer, load_corpus, train_val_split
from nanogpt.generate import autoregressive_generate, prefill
from nanogpt.measure.bench import POLICIES, RULES
from nanogpt.measure.clock import clock, prompts_of
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.proof.toys import context_start
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, Draft, speculative_generate
from nanogpt.targets.fused import TARGETS
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import Proposer, ReadText, Tree

FRESH = "nanogpt arena --new"  # what writes a file to begin with
MOST_RUNS = 600  # of the loop, in one enumeration
SIGMAS = 5.0  # chance passes it in one χ² of three million


class Refused(ValueError):
    """A draft that may not race. Its one sentence says what is wrong with it, and what to do."""


@dataclass(frozen=True)
class Arena:
    """What drafts meet here.

    target: as it races; exact: the same weights in float64. tokens (N,) int64 are for a draft to
    learn from, held_out (M,) int64 hold the prompts; corpus: whose text it is. parts: what the
    package held when the arena opened.
    """

    name: str
    target: GPTLanguageModel
    exact: GPTLanguageModel
    tokenizer: CharTokenizer
    tokens: Tensor
    held_out: Tensor
    corpus: str
    parts: Parts = field(default_factory=package_parts, repr=False)


def open_arena(name: str = "fused") -> Arena:
    """The arena of the shipped target in one of TARGETS' forms, and of the corpus."""
    model, tokenizer = checkpoint.load()
    corpus = load_corpus()
    text = train_val_split(torch.tensor(tokenizer.encode(corpus.text)))
    exact = TARGETS[name](copy.deepcopy(model).double())
    return Arena(name, TARGETS[name](model), exact, tokenizer, *text, corpus.name)


# ---- The reader's file


@dataclass(frozen=True)
class Entry:
    """A draft that has entered: from which file, with its K (or None) and rule, made in seconds."""

    path: Path
    draft: object
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
    """Inside, any error of the reader's code becomes a Refused that names the file's line."""
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        trace = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in trace if frame.filename == str(path)]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines = [error.lineno]
        where = f", line {lines[-1]}" if lines else ""
        said = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise Refused(f"{doing}{where}: {type(error).__name__}: {said}") from error


def load_file(path: Path) -> dict:
    """What a reader's file defines, by name. Raises Refused if it cannot be run."""
    module = types.ModuleType("your_draft")
    module.__file__ = str(path)
    sys.modules["your_draft"] = module  # dataclasses look for it
    with blamed(path, "its code fails"):
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    return vars(module)


def enter(path: Path, arena: Arena) -> Entry:
    """The draft of a reader's file, made.

    Random numbers may be used in making it, for training say. Raises Refused if there is none, or
    making it changes the target.
    """
    dtype = torch.get_default_dtype()
    try:
        return enter_with(load_file(path), path, arena)
    finally:
        torch.set_num_threads(1)
        torch.set_default_dtype(dtype)


def enter_with(names: dict, path: Path, arena: Arena) -> Entry:
    """`enter`, from what the file defines. Raises Refused as it does."""
    make = names.get("make_draft")
    if not callable(make):
        raise Refused(
            f"it has no function make_draft(tokens, vocab_size); `{FRESH} other.py` shows one"
        )
    given = [arena.tokens.clone(), arena.tokenizer.vocab_size, arena.target]
    takes = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    if len(takes) not in (2, 3) or any(p.kind not in (0, 1) for p in takes):
        raise Refused("make_draft must take (tokens, vocab_size) or (tokens, vocab_size, target)")
    with blamed(path, "make_draft fails"):
        seconds, draft = clock(lambda: make(*given[: len(takes)]))
    check_untouched(arena)
    K, rule, policy = names.get("K"), names.get("RULE", "token"), names.get("POLICY")
    entry, window = Entry(path, draft, K, rule, seconds, policy), arena.target.config.block_size
    check_interface(draft, arena.target)
    if rule not in list(RULES):
        raise Refused(f"RULE is {rule!r}; it must be one of {', '.join(RULES)}")
    if entry.proposes and (K is not None or policy is not None or rule != "token"):
        raise Refused("a Proposer decides itself how much it guesses: leave K, POLICY, RULE out")
    whole = isinstance(K, int) and not isinstance(K, bool)
    if not (K is None or (whole and 1 <= K < window)):
        raise Refused(f"K is {K!r}; it must be a whole number in 1 … {window - 1}")
    if policy is not None and (K is not None or policy not in POLICIES):
        known = ", ".join(map(repr, POLICIES))
        raise Refused(f"POLICY is {policy!r}; it must be one of {known}, and K left out beside it")
    return entry


def check_untouched(arena: Arena) -> None:
    """Raise Refused unless the target, the package and the clock are what they were."""
    fault = tampered(arena.target, arena.exact, arena.held_out[None, :12])
    if fault:
        raise Refused(f"it changes {fault}")
    name = changed(arena.parts)
    if name:
        raise Refused(f"it puts something else in the place of {name}; leave the package as it is")


def check_interface(draft, target: GPTLanguageModel) -> None:
    """Raise Refused unless it has what a draft has, and the target's vocabulary."""
    vocab_size = target.config.vocab_size
    if draft is None:
        raise Refused("make_draft returns None; end it with `return draft`")
    if not isinstance(draft, (Draft, Proposer)):
        kind = f"the class {draft.__name__}" if isinstance(draft, type) else type(draft).__name__
        raise Refused(
            f"make_draft returns {kind}, not an object of a class that inherits Draft, of "
            "nanogpt.speculative, or Proposer, of nanogpt.trees.tree"
        )
    size = draft.vocab_size if "vocab_size" in dir(draft) else "missing"
    if size != vocab_size:
        raise Refused(
            f"its vocab_size is {size}; the target has {vocab_size} tokens, and they must share "
            "one tokenizer"
        )
    if isinstance(draft, Proposer) and draft.target not in (None, target):
        raise Refused("its attribute `target` is another model; that name is for the given target")


# ---- The judge


def judge(entry: Entry, arena: Arena) -> Iterator[tuple[str, str]]:
    """What is asked of a draft, check by check: its name, and what was seen.

    Raises Refused at the first fault.
    """
    with blamed(entry.path, "it fails while it is judged"):
        if entry.proposes:
            yield "trees", check_trees(entry, arena)
        else:
            yield "q", check_q(entry, arena)
            if getattr(entry.draft.draw, "__func__", None) is not Draft.draw:
                yield "chain", check_chain(entry, arena)
        yield "exact", check_joint(entry, arena)
        yield "greedy", check_same_text(entry, arena)
    check_untouched(arena)


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Inside, torch's, NumPy's and Python's own generators start from `seed`. After, as before.

    Nothing of ours draws from them; a draft that does gives itself away.
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])


def fault_of(q, shape: tuple[int, ...]) -> str | None:
    """What is wrong with q, which should be probabilities of this shape (..., V); None if nothing.

    They are float64 on the CPU, and sum to 1 within 1e-12: the q that is claimed is to be drawn.
    """
    if not isinstance(q, Tensor):
        return f"is a {type(q).__name__}; it must be a tensor {shape}"
    if type(q) not in (Tensor, Parameter):
        return f"is a {type(q).__name__}, whose numbers may be anything; return a torch.Tensor"
    if tuple(q.shape) != shape:
        return f"has the shape {tuple(q.shape)}; it must be {shape}"
    if q.dtype != torch.float64:
        return f"is {str(q.dtype).removeprefix('torch.')}; call .double(), then divide by the sum"
    if q.device.type != "cpu" or q.requires_grad:
        return "is on another device, or carries a gradient; call .detach().cpu()"
    if q.isnan().any():
        return "holds NaN; is a count of 0 divided by a sum of 0?"
    if not (q >= 0).all() or q.isinf().any():
        return f"holds {float(q[(q < 0) | q.isinf()][0]):.3g}; it must hold probabilities"
    sums = q.sum(-1)
    off = float((sums - 1).abs().max()) if q.numel() else 0.0
    if off > 1e-12:
        one = float(sums.flatten()[(sums - 1).abs().argmax()])
        said = f"{one:.4g}" if off > 1e-3 else f"1 {'+' if one > 1 else '-'} {off:.1e}"
        return f"sums to {said}; divide it by its sum, in float64"
    return None


def questions(arena: Arena) -> list[list[int]]:
    """The contexts that a draft is asked about: each token, pairs rarely seen, and real text.

    From 1 token to more than two windows; some begin alike, as they do after a rejection.
    """
    V, window, text = arena.tokenizer.vocab_size, arena.target.config.block_size, arena.held_out
    asked = [[i] for i in range(V)] + [[i, (7 * i + 3) % V] for i in range(V)]
    lengths = (3, 5, 10, 20, 60, window - 1, window, window + 1, 2 * window + 10)
    asked += [text[97 * i :][:n].tolist() for i, n in enumerate(lengths)]
    a, b = text[:40].tolist(), [V // 2] * 3
    return [*asked, list(range(V)), b, a[:10], a[:20], a[:12] + b, a[:30], a[:12], a[:20]]


def quoted(context: Sequence[int], arena: Arena) -> str:
    """The end of a context, for a message."""
    text = arena.tokenizer.decode(context[-12:])
    return f"after {f'{len(context)} tokens, the last ' * (len(context) > 12)}{text!r}"


@torch.inference_mode()
def answers(entry: Entry, arena: Arena, asked: Sequence[list[int]]) -> list[Tensor]:
    """A copy of the q (V,) that each question gets. Raises Refused for one that is none."""
    V, got, kept = arena.tokenizer.vocab_size, [], []
    for context in asked:
        own = list(context)
        with blamed(entry.path, f"get_probs fails {quoted(context, arena)}"):
            q = entry.draft.get_probs(own)
        if own != context:
            raise Refused("get_probs changes the context that it is given; copy it with list(…)")
        fault = fault_of(q, (V,))
        if fault:
            raise Refused(f"get_probs: {quoted(context, arena)}, q {fault}")
        got.append(q)
        kept.append(q.clone())
    if not all(map(torch.equal, got, kept)):
        raise Refused(
            "get_probs changes a q that it gave earlier, so what was drawn was drawn from another; "
            "return a new tensor, or a .clone()"
        )
    return kept


def check_q(entry: Entry, arena: Arena) -> str:
    """q is a distribution after every context, and depends on nothing else.

    To 1e-4: a draft with a cache rounds by what it happens to have read. Raises Refused.
    """
    asked = questions(arena)

    def differs(seed: int, backwards: bool, why: str) -> None:
        with global_seed(seed):
            again = answers(entry, arena, asked[::-1] if backwards else asked)
        again = again[::-1] if backwards else again
        for context, q, other in zip(asked, first, again, strict=True):
            off = float((q - other).abs().max())
            if off > 1e-4:
                raise Refused(
                    f"q {why}: asked again {quoted(context, arena)}, get_probs gives another, off "
                    f"by {off:.2g}; it must depend on the context alone"
                )

    answers(entry, arena, asked[-1:])  # so that the first time begins as the others do
    with global_seed(1):
        first = answers(entry, arena, asked)
    differs(1, False, "changes from call to call (time, a count, a generator of its own?)")
    differs(2, False, "changes with the random state of torch, NumPy or random")
    differs(1, True, "depends on what was asked before (a cache that is not trimmed?)")
    return f"{len(asked)} contexts, each asked four times: probabilities, by the context alone"


def check_chain(entry: Entry, arena: Arena, n: int = 2000) -> str:
    """draw draws what get_probs says, with the rng it is given, and claims what it drew from.

    By enumeration for the first guess or two, and by χ² for about n of chains of K. Raises Refused.
    """
    asked, K = [c for c in questions(arena) if len(c) > 2], entry.K or 4
    for context in asked:
        check_one_chain(entry, arena, context, K)
    depths = [str(depth) for depth in (1, 2) if check_claims(entry, arena, asked[0], depth)]
    nodes, rng, window = [], RandomSource(5), arena.target.config.block_size
    for i, start in enumerate(np.linspace(0, len(arena.held_out) - 31, -(-n // K)).astype(int)):
        context = arena.held_out[start:][: 2 + 7 * i % (2 * window)].tolist()
        nodes += zip(range(K), *chained(entry, arena, context, K, rng), strict=True)
    said = check_drawn(nodes)
    chained(entry, arena, asked[0], 0, rng)  # as at the last token of a text
    return f"claimed q = drawn q, by enumeration of {' and '.join(depths)} guesses; {said}"


def check_one_chain(entry: Entry, arena: Arena, context: list[int], K: int) -> None:
    """The same rng gives the same chain, and its q is that of get_probs. Raises Refused."""
    with global_seed(1):
        candidates, q = chained(entry, arena, context, K, RandomSource(3))
        kept = q.clone()
    with global_seed(2):
        again, _ = chained(entry, arena, context, K, RandomSource(3))
    if candidates != again or not torch.equal(q, kept):
        raise Refused(
            "draw gives other guesses when it is called again with the same rng; draw with "
            "rng.categorical(q) alone, and return new tensors"
        )
    right = answers(entry, arena, [[*context, *candidates[:i]] for i in range(K)])
    off = float((q - torch.stack(right)).abs().max())
    if off > 1e-4:
        raise Refused(f"draw claims a q that is off by {off:.2g} from that of get_probs")


def check_claims(entry: Entry, arena: Arena, context: list[int], K: int) -> bool:
    """Chains of K guesses come as often as their q says, by enumeration; whether one was possible.

    Raises Refused.
    """
    most = arena.tokenizer.vocab_size**K
    outcomes = enumerated(lambda rng: claimed(*chained(entry, arena, context, K, rng)), most)
    for (guesses, says), probability in (outcomes or {}).items():
        if abs(probability - says) > 1e-12:
            text = arena.tokenizer.decode(guesses)
            raise Refused(
                f"draw claims q = {says:.3g} for {text!r} {quoted(context, arena)}, and "
                f"draws it with probability {probability:.3g}: return the q that was drawn "
                "from, by rng.categorical(q)"
            )
    return outcomes is not None


@torch.inference_mode()
def chained(entry: Entry, arena: Arena, context, K: int, rng) -> tuple[list[int], Tensor]:
    """What the draft's draw returns: K tokens, and q (K, V). Raises Refused if it does not."""
    own = list(context)
    none = "for no guesses (K = 0: return [] and torch.empty(0, V).double()) " * (K == 0)
    with blamed(entry.path, f"draw fails {none}{quoted(context, arena)}"):
        candidates, q = entry.draft.draw(own, K, Sampling(), Attended(rng))
    V = arena.tokenizer.vocab_size
    if own != list(context):
        raise Refused("draw changes the context that it is given; copy it with list(…)")
    if not isinstance(candidates, list) or len(candidates) != K or not_tokens(candidates, V):
        raise Refused(
            f"draw returns {candidates!r:.60}; it must return a list of {K} tokens, as int"
        )
    fault = fault_of(q, (K, V))
    if fault:
        raise Refused(f"draw: q {fault}")
    return candidates, q


def not_tokens(tokens: Sequence, V: int) -> bool:
    """Whether some of them are no whole numbers in 0 … V-1."""
    return any(not isinstance(token, int) or not 0 <= token < V for token in tokens)


def claimed(tokens: Sequence[int], q: Tensor) -> tuple[tuple[int, ...], float]:
    """The tokens, and how likely q (K, V) says that they are."""
    return tuple(tokens), float(q[range(len(tokens)), list(tokens)].prod())


OTHERWISE = (
    "it draws otherwise when it is asked the same again with the same rng: all that it draws must "
    "come from the rng, and what it remembers must not change what it guesses"
)


class Attended:
    """A source of random numbers that looks at what it is asked, for one that draws from it.

    rng: a RandomSource, or the Branch of an enumeration.
    """

    def __init__(self, rng):
        self.rng = rng

    def categorical(self, probs, cdf: Sequence[float] | None = None) -> int:
        """As the source's. Raises Refused for running sums that are not those of probs."""
        if cdf is not None:
            off = float(np.abs(np.asarray(cdf) - np.asarray(probs).cumsum()).max())
            if off > 1e-9:
                raise Refused(
                    "it hands rng.categorical running sums that are not those of its q, off by "
                    f"{off:.2g}, and so draws from another: if rows have changed since their sums "
                    "were made (in place?), make the sums anew"
                )
        return self.again(self.rng.categorical, probs, cdf)

    def bernoulli(self, probability: float) -> bool:
        """As the source's."""
        return self.again(self.rng.bernoulli, probability)

    def again(self, draw: Callable, *asked):
        """A draw. Raises Refused where an enumeration finds that it cannot come out as before."""
        try:
            return draw(*asked)
        except KeyError:  # the branch has chosen what now has probability 0
            raise Refused(OTHERWISE) from None


class TooMany(Exception):
    """More branches than an enumeration may have."""


def enumerated(program: Callable, most: int = MOST_RUNS) -> dict | None:
    """What `enumerate_outcomes` returns, or None where branches are TooMany: more than `most`.

    Raises Refused where branches do not add up: runs do not repeat.
    """
    runs = 0

    def counted(rng):
        nonlocal runs
        runs += 1
        if runs > most:
            raise TooMany
        return program(Attended(rng))

    try:
        found = enumerate_outcomes(counted)
    except TooMany:
        return None
    if abs(sum(found.values()) - 1) > 1e-9:
        raise Refused(OTHERWISE)
    return found


Node = tuple[int, int, Tensor]  # a guess: its depth, its token, and its q (V,)


def check_drawn(nodes: Sequence[Node], where: str = "") -> str:
    """Guesses come as often as the q that they claim says. Raises Refused."""
    return check_spread(
        nodes,
        f"{where}{len(nodes)} guesses are not spread as their claimed q says",
        "; draw each with rng.categorical(q), and return that q",
    )


def check_spread(nodes: Sequence[Node], fault: str, advice: str = "") -> str:
    """The two χ² tests of `spread`, and what they found. Raises Refused, with the fault."""
    said = []
    for cells, (statistic, limit) in spread(nodes).items():
        chance = f"chance stays below {limit:.0f}"
        if statistic > limit:
            raise Refused(f"{fault}: χ² by {cells} is {statistic:.0f}, and {chance}{advice}")
        said.append(f"{statistic:.0f} by {cells} ({chance})")
    return f"χ² of {len(nodes)}: {', '.join(said)}"


def spread(nodes: Sequence[Node]) -> dict[str, tuple[float, float]]:
    """{how tokens are put into cells: their χ², and what chance stays below}.

    By the token; and by its depth and its rank in q, which sees best who draws likely tokens too
    often. Rows of q may differ: that only makes counts vary less than χ² expects.
    """
    q = torch.stack([row for _, _, row in nodes])  # (N, V)
    tokens = torch.tensor([token for _, token, _ in nodes])
    depths = [min(depth, 7) for depth, _, _ in nodes]
    ranked, order = q.sort(dim=-1, descending=True, stable=True)
    ranks = (order == tokens[:, None]).int().argmax(-1).tolist()
    likely = {}
    for depth in set(depths):
        mine = ranked[[d == depth for d in depths]].sum(0) / len(nodes)
        likely |= {(depth, rank): p for rank, p in enumerate(mine.tolist()) if p > 0}
    tests = {
        "token": (Counter(tokens.tolist()), dict(enumerate(q.mean(0).tolist()))),
        "rank": (Counter(zip(depths, ranks, strict=True)), likely),
    }
    found = {}
    for cells, (counts, expected) in tests.items():
        statistic, freedom = chi_squared(counts, expected, len(nodes))
        # one cell is as full as it must be, up to the few that are in none
        limit = chi_squared_limit(freedom, SIGMAS) if freedom > 0 else SIGMAS**2
        found[cells] = statistic, limit
    return found


class Heard(Proposer):
    """A draft whose trees are looked at, one by one, before they are verified.

    nodes: its guesses.
    """

    def __init__(self, entry: Entry, arena: Arena):
        self.entry, self.vocab_size = entry, arena.tokenizer.vocab_size
        self.reads, self.layers = entry.draft.reads, entry.draft.layers
        self.nodes: list[Node] = []

    def propose(self, text: ReadText, most: int, sampling: Sampling, rng) -> Tree:
        """The draft's tree. Raises Refused if it is none."""
        tokens, rounds = list(text.tokens), len(text.rounds)
        with blamed(self.entry.path, "propose fails"):
            tree = self.entry.draft.propose(text, most, sampling, Attended(rng))
        if text.tokens != tokens or len(text.rounds) != rounds:
            raise Refused("propose changes the text that it is given; it may only read it")
        if not isinstance(tree, Tree):
            raise Refused(f"propose returns a {type(tree).__name__}; it must be a trees.tree.Tree")
        N = len(tree.tokens)
        if not_tokens(tree.tokens, self.vocab_size) or len(tree.parents) != N:
            raise Refused(
                f"propose returns tokens {tree.tokens!r:.60} with {len(tree.parents)} parents; it "
                f"must be a list of int in 0 … {self.vocab_size - 1}, and a parent for each"
            )
        depths = []
        for node, parent in enumerate(tree.parents):
            if not -1 <= parent < node:
                raise Refused(f"propose gives node {node} the parent {parent}; parents come first")
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        if max(depths, default=0) > most:
            raise Refused(f"propose returns a tree {max(depths)} deep, where {most} were allowed")
        fault = fault_of(tree.q, (N, self.vocab_size))
        if fault:
            raise Refused(f"propose: q {fault}")
        for node, (token, q) in enumerate(zip(tree.tokens, tree.q, strict=True)):
            if q[token] == 0:
                raise Refused(f"propose returns node {node}, a token that has q = 0 in its own row")
        self.nodes += zip(depths, tree.tokens, tree.q.clone(), strict=True)
        return tree


def check_trees(entry: Entry, arena: Arena, n: int = 60) -> str:
    """What it proposes are trees, whose q is what their tokens were drawn from, with the rng alone.

    By χ² over the rounds of six texts of n tokens, each decoded twice. Raises Refused.
    """
    prompts, nodes = prompts_of(arena.held_out, 6), []

    def decoded(prompt: list[int], seed: int) -> tuple[list, list]:
        heard = Heard(entry, arena)
        with global_seed(seed):
            made = tree_generate(arena.target, heard, prompt, n, rng=RandomSource(len(nodes)))
        found = [row for r in made.rounds for row in r.draft_probs]
        if not all(torch.equal(q, row) for (*_, q), row in zip(heard.nodes, found, strict=True)):
            raise Refused("propose changes a q that it returned earlier; return new tensors")
        return heard.nodes, [r.candidates for r in made.rounds]

    for prompt in prompts:
        mine, first = decoded(prompt, 1)
        if decoded(prompt, 2)[1] != first:
            if decoded(prompt, 1)[1] == first:
                raise Refused(
                    "propose changes with the random state of torch, NumPy or random; draw with "
                    "rng.categorical(q)"
                )
            raise Refused(
                "propose guesses otherwise when the same text is decoded again with the same rng; "
                "what it remembers must belong to one text, and what it draws come from the rng"
            )
        nodes += mine
    if not nodes:
        raise Refused(f"propose never guessed in {len(prompts)} texts; it returns empty trees")
    return f"those of {len(prompts)} texts, each decoded twice; {check_drawn(nodes)}"


class Remembered(Draft):
    """A draft asked once about each context, so that all branches find one q, to the last bit."""

    def __init__(self, draft):
        self.draft, self.vocab_size, self.known = draft, draft.vocab_size, {}

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`."""
        key = tuple(context)
        if key not in self.known:
            self.known[key] = self.draft.get_probs(context).clone()
        return self.known[key]


def check_joint(entry: Entry, arena: Arena) -> str:
    """The real loop with this draft gives three tokens the target's own joint distribution.

    By enumeration, with top-k so that it ends. In float64 to 1e-12; a draft that proposes reads
    the target's own states, and so is judged on the target as it is, to 1e-4. Raises Refused.
    """
    prompt = prompts_of(arena.held_out, 1)[0]
    draft, target, bound = Remembered(entry.draft), arena.exact, 1e-12
    if entry.proposes:
        draft, target, bound = entry.draft, arena.target, 1e-4
    for n, kept in ((3, 3), (3, 2), (2, 2)):
        sampling = Sampling(top_k=kept)
        got = enumerated(
            lambda rng, n=n, sampling=sampling: decoded_by(
                draft, entry.rule, target, prompt, n, 2, sampling, rng
            )
        )
        if got is None:  # too many branches: it draws from all tokens, whatever the sampling
            continue
        exact = enumerate_outcomes(
            lambda rng, n=n, sampling=sampling: tuple(
                autoregressive_generate(target, prompt, n, sampling, rng).tokens
            )
        )
        distance = total_variation(got, exact)
        if distance > bound:
            worst = max(got | exact, key=lambda x: abs(got.get(x, 0) - exact.get(x, 0)))
            raise Refused(
                f"the text is not the target's: {quoted(prompt, arena)}, "
                f"{arena.tokenizer.decode(worst)!r} comes with probability {got.get(worst, 0):.4f} "
                f"instead of {exact.get(worst, 0):.4f} (top_k = {kept}): either q is not what "
                "was drawn from, or what the target reads was changed"
            )
        return (
            f"{n} tokens have the target's joint distribution, by enumeration (top_k = {kept}): "
            f"total variation {distance:.0e}"
        )
    return f"too many branches to enumerate within {MOST_RUNS} runs; the χ² stands alone"


def decoded_by(draft, rule: str, target, prompt, n: int, K: int, sampling, rng) -> tuple[int, ...]:
    """n tokens of the real loop with a draft: K guesses a round and a rule, or what it proposes."""
    if isinstance(draft, Proposer):
        made = tree_generate(target, draft, prompt, n, sampling, rng)
    else:
        steps = replace(CHAIN, accept=RULES[rule])
        made = speculative_generate(target, draft, prompt, n, K, sampling, rng, steps=steps)
    return tuple(made.tokens)


def check_same_text(entry: Entry, arena: Arena, n: int = 40) -> str:
    """Greedy texts of three prompts are the target's own, over a restart of the window as well.

    In float32 they may part where the two best logits lie within 1e-4. Raises Refused.
    """
    target = arena.target if entry.proposes else arena.exact
    window = target.config.block_size
    for start, length in enumerate((2, min(20, window), window - 4)):
        prompt = arena.held_out[1000 * start % len(arena.held_out) // 2 :][:length].tolist()
        right = tuple(autoregressive_generate(target, prompt, n, Sampling(0)).tokens)
        got = decoded_by(
            entry.draft, entry.rule, target, prompt, n, 4, Sampling(0), RandomSource(0)
        )
        same = next((i for i, (x, y) in enumerate(zip(got, right, strict=False)) if x != y), n)
        if got != right and not nearly_tied(target, [*prompt, *right[:same]], length):
            raise Refused(
                f"greedily, token {same + 1} of {n} is {arena.tokenizer.decode(got[same:][:1])!r} "
                f"instead of {arena.tokenizer.decode(right[same:][:1])!r} "
                f"{quoted(prompt + list(right[:same]), arena)}"
            )
    return f"3 texts of {n} tokens equal the target's own, one over a restart of the window"


@torch.inference_mode()
def nearly_tied(target: GPTLanguageModel, tokens: list[int], n_prompt: int) -> bool:
    """Whether float32 may take either of the two best tokens after these."""
    kept = tokens[context_start(len(tokens), n_prompt, target.config.block_size) :]
    logits, *_ = target(torch.tensor([kept[-1:]]), past_kvs=prefill(target, kept[:-1]))
    best, second = logits[0, -1].topk(2).values.tolist()
    return best - second < 1e-4
