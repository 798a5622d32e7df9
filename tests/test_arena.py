"""The arena lets right drafts race, and refuses the others in one line that says why."""

import copy
import itertools
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from nanogpt.__main__ import main as nanogpt
from nanogpt.arena import race as arenas
from nanogpt.arena import template
from nanogpt.arena.inquiry import Run, check_texts, exact_rows
from nanogpt.arena.race import (
    AGAINST,
    YOURS,
    compete,
    main,
    place,
    placing,
    progress,
    settings_of,
    suited_K,
    table,
)
from nanogpt.arena.referee import (
    Arena,
    Entry,
    Refused,
    check_drawn,
    check_joint,
    check_same_text,
    enter,
    judge,
    open_arena,
    spread,
)
from nanogpt.arena.seal import changed, package_parts, tampered
from nanogpt.cache import first
from nanogpt.data import CharTokenizer
from nanogpt.drafts import bigram, ngram
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft
from nanogpt.drafts.lookup import SuffixDraft
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import autoregressive_generate
from nanogpt.measure import bench
from nanogpt.measure.bench import Row, Setting
from nanogpt.measure.clock import prompts_of
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.toys import SelfDraft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN as CHAIN_STEPS
from nanogpt.speculative import speculative_generate
from nanogpt.targets.fused import PreallocatedCache

V = 7


@pytest.fixture(scope="module")
def toy():
    """An arena of seven letters, whose target is a toy: the judge is the same, and sooner done."""
    target = toy_target(V, 16)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(V, (3000,), generator=generator)
    text = text * torch.randint(2, (3000,), generator=generator)
    exact = copy.deepcopy(target)
    text = text[:2000], text[2000:]
    return Arena("per-head", target, exact, CharTokenizer("abcdefg"), *text, "toy")


def seen(draft, arena, **how):
    """{check: what was seen} of a draft that is right."""
    return dict(judge(Entry(Path("x.py"), draft, how.get("K"), "token", 0.0), arena))


# ---- right drafts

RIGHT = {
    "bigram": lambda a: bigram.BigramDraftModel(a.tokens, V),
    "template": lambda a: template.make_draft(a.tokens, V),
    "counts": lambda a: ngram.count_ngrams(a.tokens, V, order=3),
    "suffix": lambda a: SuffixDraft(V),
    "target": lambda a: SelfDraft(a.target, 3),
    "transformer": lambda a: TransformerDraft(toy_target(V, 8, seed=5)),
    "transformer-float32": lambda a: TransformerDraft(cast(toy_target(V, 8, seed=5))),
}
PROPOSE = {
    "eagle": lambda a: EagleDraft(a.target, random_head(a.target), 2),
    "tree": lambda a: Grown(bigram.BigramDraftModel(a.tokens, V), [2, 1], "without"),
    "with": lambda a: Grown(bigram.BigramDraftModel(a.tokens, V), [2], "with"),
    "fixed": lambda a: Grown(bigram.BigramDraftModel(a.tokens, V), [2, 2], "fixed"),
    "jacobi": lambda a: JacobiDraft(V, 3),
    "lookahead": lambda a: LookaheadDraft(V, 3, G=3),
}


def cast(model):
    """The same model in float32."""
    copied = type(model)(model.config)
    copied.load_state_dict(model.state_dict())
    return copied.eval()


# Another of its kind is judged in make test, and asked the same, or it races there.
LIKE = ["bigram", "counts", "transformer", "transformer-float32"]
LIKE += ["with", "fixed", "jacobi", "eagle", "lookahead"]


def named(drafts):
    """The names of drafts; those that another is like are wide."""
    return [pytest.param(x, marks=pytest.mark.wide if x in LIKE else ()) for x in drafts]


@pytest.mark.parametrize("name", named(RIGHT))
def test_a_right_draft_passes(name, toy):
    found = seen(RIGHT[name](toy), toy)
    assert list(found) == ["q", "exact", "greedy"]
    assert float(found["exact"].split("total variation ")[1]) < 1e-12


@pytest.mark.parametrize("name", named(PROPOSE))
def test_a_right_draft_that_proposes_passes(name, toy):
    found = seen(PROPOSE[name](toy), toy)
    assert list(found) == ["trees", "exact", "greedy"] and "χ²" in found["trees"]
    assert float(found["exact"].split("total variation ")[1]) < 1e-4


class Chained(bigram.BigramDraftModel):
    """A right draft with a chain."""

    def draw(self, context, K, sampling, rng):
        if sampling.temperature != 1:
            return super().draw(context, K, sampling, rng)
        tokens, rows = list(context), []
        for _ in range(K):
            rows.append(self.get_probs(tokens))
            tokens.append(rng.categorical(rows[-1]))
        return tokens[len(context) :], torch.stack(rows) if rows else torch.empty(0, V).double()


def test_a_right_chain_passes(toy):
    found = seen(Chained(toy.tokens, V), toy, K=3)
    assert list(found) == ["q", "chain", "exact", "greedy"]
    assert "by enumeration of 1 and 2 guesses; χ² of" in found["chain"]


def test_a_chain_is_asked_for_no_guesses_as_it_is_at_the_end_of_a_text(entered):
    with pytest.raises(Refused, match=r"draw fails for no guesses \(K = 0: return \[\] and torch"):
        entered(HEAD + CHAIN.format(draw="rng.categorical(q)", claim="q", first=0))


def test_blocks_are_judged_by_their_own_rule(toy):
    entry = Entry(Path("x.py"), template.make_draft(toy.tokens, V), 4, "block", 0.0)
    assert list(dict(judge(entry, toy))) == ["q", "exact", "greedy"]


# ---- files


@pytest.fixture
def entered(tmp_path, toy):
    """entered(code): the entry of a file with this code, judged to the end, or by some checks."""

    def run(code, *checks):
        path = tmp_path / "my_draft.py"
        path.write_text(dedent(code))
        entry = enter(path, toy)
        for _ in [check(entry, toy) for check in checks] or judge(entry, toy):
            pass
        return entry

    return run


HEAD = """
import random, time
import numpy as np
import torch
from nanogpt.drafts.bigram import BigramDraftModel as Bigram
from nanogpt.trees.tree import Proposer, Tree


def make_draft(tokens, vocab_size):
    return Mine(tokens, vocab_size)

"""
GET = HEAD + "class Mine(Bigram):\n    calls = 0\n    def get_probs(self, context):\n"
LIARS = {  # the body of get_probs, after `q = …` of the bigram; and what the refusal says
    "NaN": ("q / 0 * 0", "q holds NaN; is a count of 0 divided by a sum of 0"),
    "negative": ("q - 0.5", r"q holds -0\.\d+; it must hold probabilities"),
    "huge": ("q * float('inf')", "q holds inf; it must hold"),
    "counts": ("q * 1000", r"q sums to 1000; divide it by its sum"),
    "off": ("q * (1 + 1e-9)", r"q sums to 1 \+ 1\.0e-09; divide it by its sum, in float64"),
    "float32": ("q.float() * (1 + 1e-5)", r"q is float32; call \.double\(\), then divide"),
    "shape": ("q[None]", r"q has the shape \(1, 7\); it must be \(7,\)"),
    "array": ("q.numpy()", r"q is a ndarray; it must be a tensor \(7,\)"),
    "None": ("None", "q is a NoneType"),
    "torch": ("torch.softmax(torch.rand(len(q)).double(), 0)", "random state of torch, NumPy"),
    "numpy": ("torch.softmax(torch.tensor(np.random.rand(len(q))), 0)", "random state of torch"),
    "random": ("0.5 * q + 0.5 * torch.eye(len(q)).double()[random.randrange(7)]", "random state"),
    "own": ("torch.tensor(np.random.default_rng().dirichlet([1] * 7))", "from call to call"),
    "time": ("torch.softmax(q * time.perf_counter_ns() % 3, 0)", "changes from call to call"),
}


@pytest.mark.parametrize("wrong, says", LIARS.values(), ids=LIARS)
def test_a_q_that_is_none_is_refused(wrong, says, entered):
    with pytest.raises(Refused, match=says) as refused:
        entered(f"{GET}        q = super().get_probs(context)\n        return {wrong}\n")
    assert "\n" not in str(refused.value)


def test_a_q_that_depends_on_more_than_the_context_is_refused(entered):
    start = GET + "        q = super().get_probs(context)\n"
    with pytest.raises(Refused, match="changes from call to call"):
        entered(start + "        self.calls += 1\n        return q.roll(self.calls)\n")
    with pytest.raises(Refused, match="depends on what was asked before"):
        entered(
            start
            + "        last, self.calls = self.calls, context[0]\n        return q.roll(last)\n"
        )
    with pytest.raises(Refused, match=r"changes the context that it is given; copy it with list"):
        entered(start + "        context.append(0)\n        return q\n")
    with pytest.raises(Refused, match="changes a q that it gave earlier"):
        entered(
            start + "        self.q = getattr(self, 'q', q.clone())\n"
            "        self.q[:] = q\n        return self.q\n"
        )
    with pytest.raises(
        Refused, match=r"get_probs fails after 'a', line 16: IndexError: list index"
    ):
        entered(start + "        return self.rows[context[-2]]\n")


CHAINS = {
    "argmax": ("int(q.argmax())", "q", r"draw claims q = 0\.\d+ for '.' after .*probability 1"),
    "sharper": ("rng.categorical(q**2 / (q**2).sum())", "q", r"draw claims q = "),
    "uniform": ("rng.categorical(q)", "torch.full_like(q, 1 / 7)", "off by .* from that of get_p"),
    "own": ("int(torch.multinomial(q, 1))", "q", "again with the same rng; draw with rng.categor"),
    "text": ("torch.tensor(rng.categorical(q))", "q", r"must return a list of \d tokens, as int"),
    "single": ("rng.categorical(q)", "q.float()", "draw: q is float32"),
}
CHAIN = """
class Mine(Bigram):
    def draw(self, context, K, sampling, rng):
        if sampling.temperature != 1:
            return super().draw(context, K, sampling, rng)
        tokens, rows = list(context), []
        for i in range(K):
            q = self.get_probs(tokens[:len(context) + i] if not i else [tokens[-1]])
            tokens.append({draw} if i >= {first} else rng.categorical(q))
            rows.append({claim})
        return tokens[len(context):], torch.stack(rows)
"""


@pytest.mark.parametrize("draw, claim, says", CHAINS.values(), ids=CHAINS)
def test_a_chain_that_draws_from_another_q_is_refused(draw, claim, says, entered):
    with pytest.raises(Refused, match=says):
        entered(HEAD + CHAIN.format(draw=draw, claim=claim, first=0))


def test_who_always_draws_the_likeliest_token_is_seen_by_its_rank_where_tokens_even_out():
    q = torch.tensor([0.6] + [0.4 / 6] * 6, dtype=torch.float64)
    with pytest.raises(Refused, match="χ² by rank is"):
        check_drawn([(0, i % 7, q.roll(i)) for i in range(700)])


def test_a_draw_of_the_object_itself_is_judged_as_one_of_its_class(entered):
    lies = "lambda context, K, sampling, rng: ([0] * K, self.table[[context[-1], *[0] * K][:K]])"
    mine = "class Mine(Bigram):\n    def __init__(self, *given):\n"
    with pytest.raises(Refused, match="draw claims q = "):
        entered(f"{HEAD}{mine}        super().__init__(*given)\n        self.draw = {lies}\n")


def test_a_chain_may_not_write_into_the_context(entered):
    code = (
        "class Mine(Bigram):\n"
        "    def draw(self, context, K, sampling, rng):\n        context += [0] * K\n"
    )
    with pytest.raises(Refused, match="draw changes the context that it is given; copy it with"):
        entered(f"{HEAD}{code}        return [0] * K, torch.eye(7).double()[[0] * K]\n")


def test_a_chain_that_lies_from_its_third_guess_on_is_seen_by_its_frequencies(entered):
    sharper = "rng.categorical(q**1.3 / (q**1.3).sum())"
    with pytest.raises(Refused, match=r"2000 guesses are not spread .* χ² by (token|rank) is \d+"):
        entered(HEAD + CHAIN.format(draw=sharper, claim="q", first=2))


PROPOSALS = {
    "argmax": ("[int(q.argmax())]", "[-1]", "q[None]", "not spread as their claimed q says"),
    "sharper": ("[rng.categorical(q**2 / (q**2).sum())]", "[-1]", "q[None]", "not spread as"),
    "pruned": (
        "[max(rng.categorical(q) for _ in range(4))]",
        "[-1]",
        "q[None]",
        "not spread as",
    ),
    "sums": (
        "[rng.categorical(q, q.roll(1).cumsum(0).tolist())]",
        "[-1]",
        "q[None]",
        "running sums that are not those of its q",
    ),
    "own": ("[int(torch.multinomial(q, 1))]", "[-1]", "q[None]", "changes with the random state"),
    "count": (
        "[(len(calls), calls.append(0))[0] % 7]",
        "[-1]",
        "q[None]",
        "guesses otherwise when the same text is decoded again with the same rng",
    ),
    "buffer": (
        "[(q0.copy_(q), rng.categorical(q))[1]]",
        "[-1]",
        "q0[None]",
        "propose changes a q that it returned earlier",
    ),
    "parent": ("[rng.categorical(q)]", "[0]", "q[None]", "gives node 0 the parent 0"),
    "deep": ("[0] * 40", "range(-1, 39)", "q[None].repeat(40, 1)", "a tree 40 deep, where"),
    "rows": ("[rng.categorical(q)]", "[-1]", "q", r"propose: q has the shape \(7,\)"),
    "token": ("[7]", "[-1]", "q[None]", r"returns tokens \[7\] with 1 parents; it must"),
    "zero": ("[0]", "[-1]", "torch.eye(7).double()[1:2]", "a token that has q = 0 in its own row"),
    "empty": ("[]", "[]", "q[None][:0]", "propose never guessed in 6 texts"),
}


# A chain that draws so is refused in make test, and "sharper" lies less.
LESS = [pytest.param(*how, id=name, marks=pytest.mark.wide if name in ("argmax", "pruned") else ())
        for name, how in PROPOSALS.items()]  # fmt: skip


@pytest.mark.parametrize("tokens, parents, q, says", LESS)
def test_a_tree_that_was_not_drawn_from_its_q_is_refused(tokens, parents, q, says, entered):
    with pytest.raises(Refused, match=says):
        entered(
            f"""{HEAD}
calls, q0 = [], torch.full((7,), 1 / 7).double()
class Mine(Bigram, Proposer):
    def propose(self, text, most, sampling, rng):
        q = self.get_probs(text.tokens)
        if most < 1:
            return Tree([], [], q[None][:0])
        return Tree({tokens}, list({parents}), {q})
"""
        )


def test_a_tree_that_reads_the_text_may_not_change_it(entered):
    code = HEAD + "class Mine(Bigram, Proposer):\n"
    code += "    def propose(self, text, most, sampling, rng):\n        "
    with pytest.raises(Refused, match="propose changes the text"):
        entered(code + "text.tokens.append(0)\n")
    with pytest.raises(Refused, match=r"propose returns a list; it must be a trees.tree.Tree"):
        entered(code + "return []\n")


def test_a_tree_that_lies_for_some_samplings_only_is_seen_by_enumeration(entered):
    with pytest.raises(Refused, match=r"the text is not the target's: after .* comes with probab"):
        entered(
            HEAD
            + """
class Mine(Bigram, Proposer):
    def propose(self, text, most, sampling, rng):
        q = self.get_probs(text.tokens)
        token = int(q.argmax()) if sampling.top_k else rng.categorical(q)
        return Tree([token][:most], [-1][:most], q[None][:most])
""",
            check_joint,
        )


def test_a_draft_that_writes_into_the_targets_cache_is_seen_by_its_text(entered):
    code = """
class Mine(Bigram, Proposer):
    reads = True
    def propose(self, text, most, sampling, rng):
        if len(text.rounds) >= {rounds}:
            text.past_kvs[0][0][1].mul_(-3)
        likeliest = [int(self.get_probs(text.tokens).argmax())]
        return Tree(likeliest[:most], [-1][:most], torch.eye(7).double()[likeliest][:most])
"""
    with pytest.raises(Refused, match="the text is not the target's: after"):
        entered(HEAD + code.format(rounds=0), check_joint)
    with pytest.raises(Refused, match=r"greedily, token \d+ of 40 is '.' instead of '.' after"):
        entered(HEAD + code.format(rounds=5), check_same_text)


def test_a_target_that_is_changed_while_it_is_judged_is_seen_in_the_end(entered):
    """By so little that no text shows it, and after everything was asked that is asked of q."""
    target = toy_target(V, 16)
    bias, code = target.ln_f.bias.clone(), HEAD.replace("vocab_size):", "vocab_size, target):")
    code = (
        code.replace("    return Mine", "    Mine.its = target\n    return Mine")
        + """
class Mine(Bigram):
    calls = 0
    def get_probs(self, context):
        self.calls += 1
        if self.calls == {calls}:
            self.its.ln_f.bias.data += 1e-9
        return super().get_probs(context)
"""
    )
    last = entered(code.format(calls=0)).draft.calls
    with pytest.raises(Refused, match=r"it changes the target's weights; copy\.deepcopy"):
        try:
            entered(code.format(calls=last))
        finally:
            target.ln_f.bias.data.copy_(bias)


def test_a_text_that_is_wrong_after_a_restart_only_is_seen_by_the_third_prompt(toy):
    """The other two end within the window of 64, and so do all texts that are enumerated."""

    class Late(Grown):
        reads = True

        def propose(self, text, most, sampling, rng):
            if sampling.temperature == 0 and text.start > 0:
                text.past_kvs[0][0][1].mul_(-3)  # what the target reads of its context
            return super().propose(text, most, sampling, rng)

    target = toy_target(V, 64)
    wide = replace(toy, target=target, exact=copy.deepcopy(target))
    draft = Late(bigram.BigramDraftModel(wide.tokens, V), [1])
    with pytest.raises(Refused, match=r"greedily, token \d+ of 40 is"):
        check_same_text(Entry(Path("x.py"), draft, None, "token", 0.0), wide)


FILES = {
    "no function": ("x = 1", "it has no function make_draft"),
    "syntax": ("def make_draft(:", r"its code fails, line 1: SyntaxError: "),
    "import": ("\nimport nothing_such", "fails, line 2: ModuleNotFoundError: No module named"),
    "exits": ("raise SystemExit(0)", "its code fails, line 1: SystemExit: 0"),
    "arguments": ("def make_draft(): ...", r"must take \(tokens, vocab_size\)"),
    "raises": ("def make_draft(tokens, V):\n    return {}[V]", "fails, line 2: KeyError: 7"),
    "None": ("def make_draft(tokens, V): ...", "make_draft returns None; end it with `return"),
    "class": ("class A: get_probs = 1\ndef make_draft(t, V): return A", "not an object of a class"),
    "nothing": ("def make_draft(t, V): return 5", "returns int, not an object of a class"),
    "vocabulary": (HEAD + "class Mine(Bigram):\n    vocab_size = property(lambda s: 65, print)",
                   "vocab_size is 65; the target has 7 tokens, and they must share one tokenizer"),
    "K": (HEAD + "Mine = Bigram\nK = 0", r"K is 0; it must be a whole number in 1 … 15$"),
    "huge K": (HEAD + "Mine = Bigram\nK = 10**6", r"K is 1000000; it must be a whole number in"),
    "both": (HEAD + "class Mine(Bigram, Proposer):\n    propose = print\nK = 3",
             "leave K, POLICY, RULE out"),
    "own policy": (HEAD + "class Mine(Bigram, Proposer):\n    propose = print\nPOLICY = 'entropy'",
                   "leave K, POLICY, RULE out"),
    "POLICY": (HEAD + "Mine = Bigram\nPOLICY = 'lossy'", "POLICY is 'lossy'; it must be one of '"),
    "POLICY and K": (HEAD + "Mine = Bigram\nPOLICY = 'entropy'\nK = 3", "and K left out beside it"),
    "K for a policy": (HEAD + "Mine = Bigram\nK = 'entropy'", "K is 'entropy'; it must be a whole"),
    "propose alone": ("class A:\n    vocab_size, propose = 7, print\n"
                      "def make_draft(t, V): return A()", "returns A, not .* Proposer, of nanogpt"),
    "RULE": (HEAD + "Mine = Bigram\nRULE = 'lossy'", "RULE is 'lossy'; it must be one of token"),
    "target": ("def make_draft(tokens, V, target):\n    target.lm_head.weight.data *= 1\n"
               "    target.ln_f.bias.data += 1e-6", "it changes the target's weights; copy.deep"),
    "forward": ("def make_draft(tokens, V, target):\n    old = target.forward\n"
                "    target.forward = lambda *a, **k: (old(*a, **k)[0] * 2, *old(*a, **k)[1:])",
                r"changes what the target computes .*; a draft may only read the target"),
    "other": (HEAD + "class Mine(Bigram, Proposer):\n    target = 5", "`target` is another model"),
}  # fmt: skip


@pytest.mark.parametrize("code, says", FILES.values(), ids=FILES)
def test_a_file_that_makes_no_draft_is_refused(code, says, entered):
    target = toy_target(V, 16)
    bias = target.ln_f.bias.clone()
    try:
        with pytest.raises(Refused, match=says) as refused:
            entered(code)
    finally:
        target.ln_f.bias.data.copy_(bias)
        vars(target).pop("forward", None)
    assert "\n" not in str(refused.value)


def test_a_draft_may_read_the_target_and_leave_torch_otherwise(entered, toy):
    entry = entered(
        """
        from __future__ import annotations
        from dataclasses import dataclass
        import torch
        from nanogpt.proof.toys import SelfDraft

        torch.set_default_dtype(torch.float64)
        POLICY = "entropy"

        @dataclass
        class Options:
            n: int = 3

        def make_draft(tokens, vocab_size, target, options=Options()):
            tokens[:] = 0  # a copy
            return SelfDraft(target, options.n)
        """
    )
    assert (entry.policy, entry.K) == ("entropy", None)
    assert torch.get_default_dtype() == torch.float32 and toy.tokens.any()


# ---- the race


def row(draft, low, middle, high, rule="token"):
    """A row of a race that was never run."""
    setting = Setting("fused", draft, 4, 1.0, rule)
    return Row(setting, middle, (low, high), middle, 1.0, 0.5, 4.0, 2.0, 0.1, 2e-4, {}, 1e-5)


ROWS = [
    row("distilled", 3.5, 4.0, 4.5, "block"),
    row("counts", 1.9, 2.1, 2.3),
    row(YOURS, 1.6, 1.8, 2.0),
    row("bigram", 1.1, 1.3, 1.5),
    row("transformer", 0.8, 0.9, 1.1),
]


def test_a_place_is_told_as_far_as_the_quartiles_tell_it():
    assert place(ROWS) == (2, 3)
    said = placing(ROWS)
    assert said == (
        "place 2 to 3 of 6: its quartiles overlap with those of counts; faster than "
        "bigram, transformer, plain; slower than distilled blocks"
    )
    assert place([row(YOURS, 1.6, 1.8, 2.0), row("bigram", 1.5, 1.6, 1.7)]) == (1, 2)
    alone = [r for r in ROWS if r.setting.draft != "counts"]
    assert place(alone) == (2, 2)
    assert placing(alone).startswith("place 2 of 5: no other's quartiles overlap with its own; fas")
    slow = [*ROWS[:2], row(YOURS, 0.9, 0.95, 1.0)]
    assert place(slow) == (3, 4) and "overlap with those of plain" in placing(slow)


def test_the_table_is_sorted_marks_the_entry_and_knows_plain_decoding():
    head, *lines = table(ROWS)
    assert [line.split()[0] for line in lines] == [
        *("distilled", "counts", "→", "bigram", "plain", "transformer")
    ]
    mine = next(line for line in lines if line.startswith("→"))
    assert mine.split()[1:9] == [YOURS, "4", "token", "0.50", "2.00", "10", "1.80×", "1.60"]
    assert re.search(r"│ +├─*●─*┤$", mine), "a bar at 1, and the quartiles"
    assert mine.index("●") < lines[0].index("●") and "0 … 4.5×" in head


def test_the_race_on_a_toy(toy):
    target = toy_target(V, 128)  # whose window has room for the prompts
    toy = replace(toy, target=target, exact=target)
    entry = Entry(Path("x.py"), template.make_draft(toy.tokens, V), None, "token", 0.0)
    K = suited_K(entry, toy, prompts_of(toy.held_out, 2))
    assert 1 <= K <= 15
    rows, judged = compete(entry, toy, ["bigram", "counts"], pairs=2, tokens=12)
    says = r"\d+ rounds: guesses χ² of \d+: .*; p of \d+ off by .*; tokens χ² of 24: "
    assert re.match(says, judged)
    assert {r.setting.draft for r in rows} == {YOURS, "bigram", "counts"}
    assert [r.speed_up for r in rows] == sorted((r.speed_up for r in rows), reverse=True)
    assert all(0 < r.guess_seconds < 1 and r.alpha > 0 for r in rows)
    proposing = Entry(Path("x.py"), PROPOSE["eagle"](toy), None, "token", 0.0)
    mine = settings_of(proposing, toy, AGAINST)[0]
    assert mine.K is None and mine.policy is None
    assert compete(proposing, toy, [], pairs=2, tokens=12)[0][0].tokens_per_pass > 1


# ---- the race, judged


@pytest.fixture
def wide(toy, monkeypatch):
    """The toy arena with a window for the race's prompts, a target and a package to tamper with."""
    target = copy.deepcopy(toy_target(V, 128))
    monkeypatch.setitem(bench.RULES, "token", bench.RULES["token"])  # to be put back at the end
    for of, name in ((bench.Pair, "speed_up"), (bench, "autoregressive_generate"), (time, "time")):
        monkeypatch.setattr(of, name, vars(of)[name])
    return replace(toy, target=target, exact=copy.deepcopy(target), parts=package_parts())


@pytest.fixture
def raced(tmp_path, wide):
    """raced(code): a file with this code, raced; `late` is True in it from then on.

    Before that, it is asked the first so many questions of the judge.
    """

    def run(code, pairs=3, judged=0):
        path = tmp_path / "my_draft.py"
        K = "" if "Proposer)" in code else "K = 4\n"  # else the K that suits it is looked for
        path.write_text("late = False\n" + K + dedent(code))
        entry = enter(path, wide)
        for _ in itertools.islice(judge(entry, wide), judged):
            pass
        sys.modules["your_draft"].late = True  # it behaved for so many guesses
        return compete(entry, wide, [], pairs, tokens=40)[1]

    return run


TARGET = (
    HEAD.replace("vocab_size):", "vocab_size, target):")
    + """
def sharpened(q):
    return q**4 / (q**4).sum()
"""
)
DRAWS = (
    TARGET
    + """
class Mine(Bigram):
    def draw(self, context, K, sampling, rng):
        if sampling.temperature != 1:
            return super().draw(context, K, sampling, rng)
        tokens, rows = list(context), [torch.empty(0, 7).double()]
        for _ in range(K):
            q = self.get_probs(tokens)
            rows.append(q[None])
            tokens.append({draw})
        return tokens[len(context):], torch.cat(rows)
"""
)
OTHER = (
    TARGET
    + """
class Other(torch.Tensor):
    def __array__(self, *args, **kwargs):
        return sharpened(self.as_subclass(torch.Tensor)).numpy()

class Mine(Bigram):
    def get_probs(self, context):
        q = super().get_probs(context)
        return q.as_subclass(Other) if {when} else q
"""
)
BEHIND = (
    TARGET.replace("    return", "    cheat(target)\n    return")
    + """
Mine = Bigram

def cheat(target):
    honest, likely = target.forward, torch.eye(7).double() * 20
    def forward(idx, targets=None, pos=None, past_kvs=None, attn_mask=None):
        if past_kvs is None or idx.shape[1] < 2:
            return honest(idx, targets, pos, past_kvs, attn_mask)
        {answer}
    target.forward = forward
"""
)
PATCHED = (
    TARGET
    + """
from nanogpt.measure import bench
Mine, real = Bigram, bench.autoregressive_generate
def lenient(candidates, q, p, rng):
    return [*candidates, rng.categorical(p[-1])]
def slow(*args, **kwargs):
    time.sleep(0.02)
    return real(*args, **kwargs)
"""
)
SLIP = (
    TARGET
    + """
from nanogpt.drafts.ngram import NGramAutomaton

def make_draft(tokens, vocab_size):
    table = Bigram(tokens, vocab_size).table
    table = torch.cat([table.mean(0, keepdim=True), table])
    draft = NGramAutomaton(np.zeros(8, int), np.arange(-1, 7).clip(0), table)
    for i in range(8):
        row = draft.row(i)
        row **= {power}  # its running sums were made before
        row /= row.sum()
    return draft
"""
)
FRAME = (
    TARGET
    + """
import sys
class Mine(Bigram):
    def get_probs(self, context):
        q = super().get_probs(context)
        if sys._getframe(1).f_code.co_name == "draft_tokens":
            return torch.eye(7).double()[int(q.argmax())]
        return q
"""
)
ELSE = "in the place of nanogpt.measure.bench"
CHEATS = {  # what was tried on this arena, and how it is refused
    "a chain draws argmax": (DRAWS.format(draw="int(q.argmax())"), "draw claims q = "),
    "it does in long texts": (
        DRAWS.format(draw="int(q.argmax()) if len(context) > 34 else rng.categorical(q)"),
        r"^2000 guesses are not spread as",
    ),
    "sums of another q": (
        DRAWS.format(draw="rng.categorical(q, sharpened(q).cumsum(0).tolist())"),
        "running sums that are not those of its q, off by 0",
    ),
    "an array of its own": (OTHER.format(when=True), "is a Other, whose numbers may be anything"),
    "a target's answers": (
        BEHIND.format(answer="return likely[idx], *honest(idx, None, pos, past_kvs)[1:]"),
        r"what the target computes \(its `forward`\); a draft may only read the target",
    ),
    "a target's work": (
        BEHIND.format(answer="return likely[idx], *honest(idx[:, :1], None, pos, past_kvs)[1:]"),
        r"what the target computes \(its `forward`\); a draft may only read the target",
    ),
    "a rule": (PATCHED + "bench.RULES['token'] = lenient", rf"{ELSE}.RULES\['token'\]; leave the"),
    "a result": (PATCHED + "bench.Pair.speed_up = 99", f"{ELSE}.Pair.speed_up; leave the package"),
    "a baseline": (PATCHED + "bench.autoregressive_generate = slow", f"{ELSE}.autoregressive_gen"),
    "its code": (PATCHED + "bench.accept_reject.__code__ = lenient.__code__",
                 r"in the place of nanogpt\..*accept_reject\.__code__"),
    "a clock": (PATCHED + "time.time = slow", "in the place of time.time; leave the package"),
    "a slip in place": (SLIP.format(power=1.05), r"if rows have changed .* make the sums anew"),
    "its caller's frame": (FRAME, "in the race q was another: asked again after"),
    "it behaves, then draws argmax": (
        DRAWS.format(draw="int(q.argmax()) if late else rng.categorical(q)"),
        r"in the race \d+ guesses are not spread as their claimed q says: χ² by token",
    ),
    "it behaves, then has an array": (OTHER.format(when="late"), "in the race .* are not spread"),
}  # fmt: skip


@pytest.mark.parametrize("code, says", CHEATS.values(), ids=CHEATS)
def test_a_cheat_is_refused(code, says, raced):
    code_of_rule = bench.accept_reject.__code__
    try:
        with pytest.raises(Refused, match=says) as refused:
            raced(code, judged=0 if "in the race" in says else 2)
    finally:
        bench.accept_reject.__code__ = code_of_rule
    assert "\n" not in str(refused.value)


def test_the_same_slip_without_a_change_is_right(raced):
    assert "tokens χ² of 120" in raced(SLIP.format(power=1), judged=2)


def test_a_draft_that_computes_the_targets_own_p_is_right_if_slow(raced):
    code = "from nanogpt.proof.toys import SelfDraft\n"
    code += "def make_draft(tokens, vocab_size, target):\n    return SelfDraft(target, 20)\n"
    assert "tokens χ² of 120" in raced(code)


LATE = {  # what happens in get_probs, in the race
    "weights": ("its.ln_f.bias.data += 1e-9", "it changes the target's weights; copy.deepcopy"),
    "function": ("its.states = its.states", r"what the target computes \(its `states`\)"),
    "rule": ("bench.RULES['token'] = lenient", rf"{ELSE}.RULES\['token'\]; leave"),
    "result": ("bench.Pair.speed_up = 99", f"{ELSE}.Pair.speed_up; leave the package as it is"),
}


@pytest.mark.parametrize("does, says", LATE.values(), ids=LATE)
def test_what_is_tampered_with_during_the_race_is_seen_after_it(does, says, raced):
    code = PATCHED.replace("    return Mine", "    Mine.its = target\n    return Mine")
    code += f"""
class Mine(Bigram):
    def get_probs(self, context):
        if late:
            its = self.its
            {does}
        return super().get_probs(context)
"""
    with pytest.raises(Refused, match=says):
        raced(code, pairs=1)


def test_who_puts_another_hand_on_a_kind_of_cache_is_seen():
    before = package_parts()
    try:
        first.register(PreallocatedCache, lambda kvs, n: kvs)
        assert changed(before) == "nanogpt.cache.first of a PreallocatedCache"
    finally:
        first.register(PreallocatedCache, PreallocatedCache.kept)
    assert changed(before) is None


def test_guesses_that_change_after_they_were_judged_are_refused(raced):
    draws = "rng.categorical(q)"
    code = (
        DRAWS.format(draw=draws)
        + """
    def draw(self, context, K, sampling, rng, honest=Mine.draw, last=[[]]):
        last[0][:] = last[0][::-1]
        candidates, q = honest(self, context, K, sampling, rng)
        last[0] = candidates if late else []
        return candidates, q
""".replace("=Mine.draw", "=draw")
    )
    with pytest.raises(
        Refused, match="in the race its guesses changed after they were judged; ret"
    ):
        raced(code)


def test_a_target_that_reads_another_cache_is_seen_by_its_p(raced):
    """By a draft that lies at temperature 1 alone, where nobody looked at the text before."""
    code = (
        TARGET
        + """
class Mine(Bigram, Proposer):
    reads = True
    def propose(self, text, most, sampling, rng):
        if sampling.temperature == 1 and sampling.top_k is None:
            text.past_kvs[0][0][1].mul_(-3)
        q = sampling.of_probs(self.get_probs(text.tokens))
        return Tree([rng.categorical(q)][:most], [-1][:most], q[None][:most])
"""
    )
    with pytest.raises(
        Refused, match=r"in the race the target's p after .* was off by 0\.\d+ from"
    ):
        raced(code)


def texts_of(arena, n, made_by=autoregressive_generate):
    """Runs of n texts, each with 60 tokens."""
    prompts = prompts_of(arena.held_out, n)
    made = [made_by(arena.target, p, 60, rng=RandomSource(i)) for i, p in enumerate(prompts)]
    return [Run(p, m) for p, m in zip(prompts, made, strict=True)]


def test_texts_that_are_not_the_targets_are_refused_whoever_made_them_so(wide):
    draft = bigram.BigramDraftModel(wide.tokens, V)
    lenient = replace(CHAIN_STEPS, accept=lambda x, q, p, rng: [*x, rng.categorical(p[-1])])

    def lie(target, prompt, n, rng):
        return speculative_generate(target, draft, prompt, n, rng=rng, steps=lenient)

    assert "tokens χ² of 600: " in check_texts(wide, texts_of(wide, 10))
    lied = texts_of(wide, 10, lie)
    with pytest.raises(Refused, match=r"in the race 600 tokens are not spread as the target's own"):
        check_texts(wide, lied)


def test_the_p_of_a_whole_text_are_those_of_each_token_alone_over_restarts(toy):
    prompt, tokens = toy.held_out[:5].tolist(), toy.held_out[5:55].tolist()
    alone = SelfDraft(toy.exact, 5)
    rows = [alone.get_probs([*prompt, *tokens[:i]]) for i in range(50)]
    assert torch.allclose(exact_rows(toy, prompt, tokens), torch.stack(rows), atol=1e-12)


RACE = RIGHT | PROPOSE | {"chain": lambda a: Chained(a.tokens, V)}
# What the judge of a race sees of a draft: a q or a chain, float32, states that are read, trees of
# siblings, guesses that are no draws. The others differ in nothing that it asks.
RACED = ["counts", "transformer-float32", "chain", "fixed", "lookahead"]
RACERS = [pytest.param(x, marks=() if x in RACED else pytest.mark.wide) for x in RACE]


@pytest.mark.parametrize("name", RACERS)
def test_the_race_of_a_right_draft_is_accepted(name, wide):
    """Of few tokens as well as of more; those that are judged before have three times 40."""
    K = None if name in PROPOSE else 4
    entry = Entry(Path("x.py"), RACE[name](wide), K, "token", 0.0)
    for pairs, tokens in ((1, 2), (2, 16)):
        assert f"tokens χ² of {pairs * tokens}" in compete(entry, wide, [], pairs, tokens)[1]


def test_chance_refuses_nobody_where_nearly_all_is_one_cell():
    q = torch.tensor([0.92] + [0.08 / 6] * 6, dtype=torch.float64)
    for wrong in range(5):
        check_drawn([(0, 0, q)] * (25 - wrong) + [(0, i + 1, q) for i in range(wrong)])


def test_honest_draws_stay_far_below_the_limit():
    """Of 100 races the largest χ² is where chance has it, and no limit is come near to."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for seed in range(100):
        q = torch.softmax(2 * torch.randn(300, V, generator=generator).double(), -1)
        rng = RandomSource(seed)
        nodes = [(i % 3, rng.categorical(row), row) for i, row in enumerate(q)]
        worst = max(worst, *(statistic / limit for statistic, limit in spread(nodes).values()))
    assert 0.2 < worst < 0.9


TAMPERED = {  # when a pass computes something else: given its tokens and its cache
    "at once": lambda T, cache: cache is None and T > 5,
    "behind a cache": lambda T, cache: cache is not None,
    "one token": lambda T, cache: cache is not None and T == 1,
    "several behind a cache": lambda T, cache: cache is not None and T > 1,
}


@pytest.mark.parametrize("when", TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize("name", ["forward", "states"])
def test_a_target_is_asked_in_each_of_the_ways_that_decoders_ask_it(name, when, wide, monkeypatch):
    """A class that computes something else for one of its targets: no name of that one says so."""
    honest = getattr(GPTLanguageModel, name)

    def other(self, idx, *args, past_kvs=None, **kwargs):
        made = list(honest(self, idx, *args, past_kvs=past_kvs, **kwargs))
        if self is wide.target and when(idx.shape[1], past_kvs):
            made[0] = [x.flip(-1) for x in made[0]] if name == "states" else made[0] * 1.01
        return tuple(made)

    text = wide.held_out[None, :12]
    assert tampered(wide.target, wide.exact, text) is None
    monkeypatch.setattr(GPTLanguageModel, name, other)
    assert tampered(wide.target, wide.exact, text).startswith("what the target computes; a draft")


def test_what_a_fused_target_adds_is_looked_at_too():
    house = open_arena("fused")
    text, target = house.held_out[None, :12], house.target
    for tensor in (target.qkv[2], target.bias):
        tensor[3, 1] += 1
        assert tampered(target, house.exact, text).startswith("the target's weights")
        tensor[3, 1] -= 1
    hook = target.ln_f.register_forward_hook(lambda *given: None)
    assert "`ln_f._forward_hooks`" in tampered(target, house.exact, text)
    hook.remove()
    target.lm_head.__class__ = type("Mine", (torch.nn.Linear,), {})
    assert "`lm_head.__class__`" in tampered(target, house.exact, text)


AGAIN = {
    "another q": "rng.categorical(torch.eye(7).double()[q.argmax()])",
    "none": "int(q.argmax())",
}


@pytest.mark.parametrize("draw", AGAIN.values(), ids=AGAIN)
def test_a_chain_that_does_not_repeat_is_refused_in_a_clear_line(draw, raced):
    """It tires of what it is asked a sixth time."""
    code = DRAWS.format(draw=f"{draw} if tired else rng.categorical(q)")
    code = code.replace(
        "tokens, rows = ",
        "asked.append((*context, K))\n"
        "        tired = asked.count(asked[-1]) > 5\n"
        "        tokens, rows = ",
    )
    with pytest.raises(Refused, match="it draws otherwise when it is asked the same again with"):
        raced(code + "asked = []\n", judged=2)


def test_where_nobody_watches_progress_is_a_few_lines(capsys):
    with progress(30, "pairs") as bar:
        for _ in range(30):
            time.sleep(0.02)
            bar.update()
    lines = re.split(r"[\r\n]+", capsys.readouterr().err.strip())
    assert len(lines) <= 3 and "100%" in lines[-1]


# ---- the command, on the real target


@pytest.fixture
def mine(tmp_path):
    """A file as --new writes it."""
    main(["--new", str(tmp_path / "my_draft.py")])
    return tmp_path / "my_draft.py"


def test_new_writes_the_template_and_never_over_a_file(mine):
    command = f"nanogpt arena {mine}"
    assert mine.read_text(encoding="utf-8").splitlines()[0].endswith(command)
    source = Path(template.__file__).read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8").splitlines()[1:] == source.splitlines()[1:]
    mine.write_text("my own work")
    with pytest.raises(
        ValueError, match="is there already, and stays as it is; give --new another"
    ):
        main(["--new", str(mine)])
    assert mine.read_text() == "my own work"
    with pytest.raises(ValueError, match=r"should end in \.py"):
        main(["--new", str(mine.parent / "draft")])
    with pytest.raises(ValueError, match="is no folder"):
        main(["--new", str(mine.parent / "none" / "draft.py")])


def test_the_template_is_a_worked_example_of_twenty_lines():
    source = Path(template.__file__).read_text(encoding="utf-8")
    code = re.sub(r'""".*?"""|#.*', "", source, flags=re.DOTALL).splitlines()
    body = [line for line in code if line.strip() and not line.startswith(("import", "from", "K"))]
    assert len(body) <= 20


def test_the_template_passes_and_guesses_better_than_the_bigram(mine, tmp_path, capsys):
    """At the same K, by α and so by tokens a pass: times are not tested where others run beside."""
    arena = open_arena("fused")
    trigram, two = enter(mine, arena).draft, bigram.BigramDraftModel(arena.tokens, 65)
    texts, overlap = prompts_of(arena.held_out, 50), {trigram: 0.0, two: 0.0}
    for text in texts:
        with torch.inference_mode():
            p = Sampling().probs(arena.target(torch.tensor([text]))[0][0, -1])
        for draft in overlap:
            overlap[draft] += float(torch.minimum(p, draft.get_probs(text)).sum()) / len(texts)
    assert overlap[trigram] > overlap[two] + 0.05
    out = tmp_path / "rows.json"
    main([str(mine), "--against=bigram", "--pairs=2", "--tokens=12", f"--json={out}"])
    printed, progress = capsys.readouterr()
    assert re.findall(r"(?m)^ok  (\w+)", printed) == ["q", "exact", "greedy", "race"]
    assert re.search(r"(?m)^→ yours +4 token +0\.\d\d ", printed) and "pairs: 100%" in progress
    assert re.search(r"(?m)^yours: place .* of 3: ", printed.splitlines()[-1])
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 2 and 1 <= found["place"][0] <= found["place"][1] <= 3


@pytest.mark.slow
def test_the_template_beats_the_bigram(mine):
    """On a quiet machine: half a minute. Times are not tested where others run beside it."""
    arena = open_arena("fused")
    rows, _ = compete(enter(mine, arena), arena, ["bigram"], pairs=20)
    assert [r.setting.draft for r in rows] == [YOURS, "bigram"]
    assert rows[0].quartiles[0] > rows[1].speed_up


def test_the_command_says_in_one_line_why_it_refuses(tmp_path, monkeypatch, capsys):
    path = tmp_path / "my_draft.py"
    path.write_text(GET + "        return super().get_probs(context) / 0\n")
    monkeypatch.chdir(tmp_path)
    code, (out, error) = nanogpt(["arena", path.name, "--judge-only"]), capsys.readouterr()
    # without a corpus and a network, a line says so
    told = [line for line in error.splitlines() if "using the stand-in corpus" not in line]
    made, refused = out.splitlines()
    assert code == 1 and told == [] and made.startswith("my_draft.py: made in ")
    assert re.match(r"my_draft\.py is refused: get_probs: after .*, q holds inf; it must", refused)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ([], "give the file of your draft; `nanogpt arena --new my_draft.py` writes one"),
        (
            ["nothing.py"],
            "there is no file nothing.py; `nanogpt arena --new nothing.py` writes",
        ),
        (["x.py", "--pairs=0"], "must be at least 1"),
        (["x.py", "--json=none/x.json"], "none is no folder: make it, or write x.json elsewhere"),
    ],
)
def test_impossible_arguments_are_refused(wrong, says, monkeypatch, toy):
    monkeypatch.setattr(arenas, "open_arena", lambda name: toy)
    with pytest.raises(ValueError, match=says):
        main(wrong)


def test_a_functions_defaults_are_looked_at_too(monkeypatch):
    """Whoever changes them changes what each call does that leaves the argument out."""
    before, values = package_parts(), speculative_generate.__defaults__
    assert changed(before) is None
    monkeypatch.setattr(speculative_generate, "__defaults__", (5, *values[1:]))
    assert changed(before).endswith("speculative_generate.__defaults__")


def test_the_minutes_that_are_told_are_those_of_all_pairs(monkeypatch, capsys):
    """A warm-up of 40 tokens takes 30 s: 80 tokens of 2 rows on 3 prompts, 6 minutes."""
    monkeypatch.setattr(arenas, "clock", lambda do: (30.0, None))
    monkeypatch.setattr(arenas, "ready", lambda *_: {})
    monkeypatch.setattr(arenas.bench, "measure", lambda **how: 7)
    assert arenas.run([None] * 2, None, {}, [[0]] * 3, 80) == [[7] * 3] * 2
    assert "2 rows, about 6.0 minutes" in capsys.readouterr().err
