"""The arena lets right drafts race, and refuses the others in one line that says why."""

import copy
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from nanogpt.__main__ import main as nanogpt
from nanogpt.arena import race as arenas
from nanogpt.arena import referee, template
from nanogpt.arena.race import AGAINST, YOURS, compete, main, placing, settings_of
from nanogpt.arena.referee import (
    Arena,
    Entry,
    Refused,
    check_exact,
    check_guesses,
    check_text,
    check_untouched,
    enter,
    judge,
    open_arena,
)
from nanogpt.data import CharTokenizer
from nanogpt.drafts import bigram
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.lookahead import LookaheadDraft
from nanogpt.drafts.lookup import SuffixDraft
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Generation, Round, autoregressive_generate
from nanogpt.measure import bench
from nanogpt.measure.bench import Row, Setting
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.toys import SelfDraft, random_head, toy_target
from nanogpt.sampling import Sampling
from nanogpt.targets.fused import FusedLanguageModel

V = 7


@pytest.fixture
def toy(monkeypatch):
    """An arena of seven letters, whose target is a toy: the judge is the same, and sooner done."""
    monkeypatch.setattr(referee, "TEXTS", 3)
    monkeypatch.setattr(referee, "TOKENS", 60)
    target = copy.deepcopy(toy_target(V, 32))
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(V, (3000,), generator=generator)
    text = text * torch.randint(2, (3000,), generator=generator)
    text = text[:2000], text[2000:]
    return Arena("per-head", target, copy.deepcopy(target), CharTokenizer("abcdefg"), *text, "toy")


def entry_of(draft, K=None, rule="token"):
    """The entry of a draft that comes from no file."""
    return Entry(Path("x.py"), draft, K, rule, 0.0)


# ---- right drafts

RIGHT = {  # a q, float32 and a memory, a text's own, states that are read, siblings, no draws
    "template": lambda a: template.make_draft(a.tokens, V),
    "transformer": lambda a: TransformerDraft(copy.deepcopy(toy_target(V, 8, seed=5)).float()),
    "suffix": lambda a: SuffixDraft(V),
    "target": lambda a: SelfDraft(a.target, 20),
    "eagle": lambda a: EagleDraft(a.target, random_head(a.target), 2),
    "tree": lambda a: Grown(bigram.BigramDraftModel(a.tokens, V), [2, 1], "without"),
    "fixed": lambda a: Grown(bigram.BigramDraftModel(a.tokens, V), [2, 2], "fixed"),
    "lookahead": lambda a: LookaheadDraft(V, 3, G=3),
}
WIDE = ["suffix", "target", "fixed"]  # asked the same as another


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.wide if x in WIDE else ()) for x in RIGHT]
)
def test_a_right_draft_passes_and_so_does_its_race(name, toy):
    entry = entry_of(RIGHT[name](toy))
    found = dict(judge(entry, toy))
    assert [*found] == ["q", "guesses", "exact", "greedy"][entry.proposes :]
    assert float(found["exact"].split("total variation ")[1]) < 1e-12
    rows, seen = compete(entry, toy, [], pairs=2, tokens=12)
    assert "χ² by rank" in seen and len(rows) == 1 and rows[0].tokens_per_pass > 1


def test_blocks_are_judged_by_their_own_rule(toy, monkeypatch):
    entry = entry_of(template.make_draft(toy.tokens, V), 4, "block")
    assert "total variation" in check_exact(entry, toy)
    lenient = lambda x, q, p, rng: [*x, rng.categorical(p[-1])]  # noqa: E731
    monkeypatch.setitem(bench.RULES, "block", lenient)
    with pytest.raises(AssertionError, match="the output is not the target's"):
        check_exact(entry, toy)


# ---- files


@pytest.fixture
def entered(tmp_path, toy):
    """entered(code): the entry of a file with this code, judged to the end."""

    def run(code):
        path = tmp_path / "my_draft.py"
        path.write_text(dedent(code))
        entry = enter(path, toy)
        assert all(seen for _, seen in judge(entry, toy))
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
LIARS = {  # what get_probs returns, after `q = …` of the bigram; and what the refusal says
    "NaN": ("q / 0 * 0", "its q holds a negative number or NaN; is a count of 0 divided by a sum"),
    "huge": ("q * float('inf')", "its q (holds|sums to 1 within inf)"),
    "counts": ("q * 1000", r"its q sums to 1 within 1\.0e\+03; divide it by its sum"),
    "off": ("q * (1 + 1e-9)", r"its q sums to 1 within 1\.0e-09; divide it by its sum, in float64"),
    "float32": ("q.float() * (1 + 1e-5)", r"its q is a torch.float32 \(7,\); it .*: call \.d"),
    "shape": ("q[None]", r"is a torch.float64 \(1, 7\); it must be a tensor, torch.float64 \(7,\)"),
    "array": ("q.numpy()", "its q is a ndarray; it must be a tensor"),
    "torch": ("torch.softmax(torch.rand(len(q)).double(), 0)", "q is another, off by"),
    "numpy": ("torch.softmax(torch.tensor(np.random.rand(len(q))), 0)", "q is another"),
    "random": ("0.5 * q + 0.5 * torch.eye(len(q)).double()[random.randrange(7)]", "q is another"),
    "own": ("torch.tensor(np.random.default_rng().dirichlet([1] * 7))", "q is another"),
    "fails": ("self.table[context[-2]]", "get_probs fails after 'a', line 16: IndexError"),
}  # fmt: skip
STATEFUL = {  # the lines that do so
    "count": ("self.calls += 1\nreturn q.roll(self.calls)", "q is another, .* on the context"),
    "last": ("last, self.calls = self.calls, context[0]\nreturn q.roll(last)", "asked before"),
    "writes": ("context.append(0)\nreturn q", r"changes the context .*; copy it with list"),
    "buffer": ("self.q = getattr(self, 'q', q.clone())\nself.q[:] = q\nreturn self.q",
               "changes a q that it gave earlier"),
}  # fmt: skip
WRONG_Q = {name: (f"return {value}", says) for name, (value, says) in LIARS.items()} | STATEFUL


@pytest.mark.parametrize("lines, says", WRONG_Q.values(), ids=WRONG_Q)
def test_a_q_that_is_none_or_depends_on_more_than_the_context_is_refused(lines, says, entered):
    lines = ["q = super().get_probs(context)", *lines.split("\n")]
    with pytest.raises(Refused, match=says) as refused:
        entered(GET + "".join(f"        {line}\n" for line in lines))
    assert "\n" not in str(refused.value)


CHAIN = """
calls = []
class Mine(Bigram):
    def draw(self, context, K, sampling, rng):
        if sampling.temperature != 1:
            return super().draw(context, K, sampling, rng)
        tokens, rows = list(context), [torch.empty(0, 7).double()]
        for i in range(K):
            q = self.get_probs(tokens)
            tokens.append({draw} if i >= {first} else rng.categorical(q))
            rows.append({claim}[None])
        return tokens[len(context):], torch.cat(rows)
"""
SPREAD = r"\d+ guesses are not spread as their claimed q says: χ² by (token|rank) is \d+ \(.*; draw"
SHARP = "rng.categorical(q**2 / (q**2).sum())"
AGAIN = "it guesses otherwise when the same texts are decoded again: what it draws must come from"
CHAINS = {
    "argmax": ("int(q.argmax())", "q", 0, SPREAD),
    "sharper": (SHARP, "q", 0, SPREAD),
    "a little sharper": ("rng.categorical(q**1.05 / (q**1.05).sum())", "q", 0,
                         r"draw claims q = \S+ for '.*, and draws it with probability"),
    "from its third guess on": ("rng.categorical(q**1.3 / (q**1.3).sum())", "q", 2, SPREAD),
    "in long texts": (f"{SHARP} if len(context) > 40 else rng.categorical(q)", "q", 0, SPREAD),
    "uniform": ("rng.categorical(torch.full_like(q, 1 / 7))", "torch.full_like(q, 1 / 7)", 0,
                "q is another, off by .* when get_probs is asked again after"),
    "sums": ("rng.categorical(q, (q**4 / (q**4).sum()).cumsum(0).tolist())", "q", 0,
             "it hands rng.categorical running sums that are not those of its q, and so draws"),
    "own": ("int(torch.multinomial(q, 1))", "q", 0, AGAIN),
    "count": ("(len(calls), calls.append(0))[0] % 7", "q", 0, AGAIN),
    "text": ("torch.tensor(rng.categorical(q))", "q", 0, "it guesses tensor.*; a token is an int"),
    "zero": ("0", "torch.eye(7).double()[1]", 0, "candidate 0 at index 0 has q = 0"),
}  # fmt: skip


@pytest.mark.parametrize("draw, claim, first, says", CHAINS.values(), ids=CHAINS)
def test_a_chain_that_draws_from_another_q_is_refused(
    draw, claim, first, says, entered, monkeypatch
):
    monkeypatch.setattr(referee, "TEXTS", 12 if first else 3)  # a late lie takes as many as readers
    with pytest.raises(Refused, match=says) as refused:
        entered(HEAD + CHAIN.format(draw=draw, claim=claim, first=first))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change, says",
    [
        ("K += 1", "it guesses 5 tokens ahead; 4 at most are wanted"),
        ("context.append(0)", "it changes the context that it is given; copy it with"),
    ],
)
def test_a_draw_hands_over_what_it_is_asked_for_and_writes_into_nothing(change, says, entered):
    lines = f"        if sampling.temperature == 1:\n            {change}\n"
    draw = "    def draw(self, context, K, sampling, rng):\n" + lines
    rest = "        return super().draw(context, K, sampling, rng)\n"
    with pytest.raises(Refused, match=says):
        entered(f"{HEAD}class Mine(Bigram):\n{draw}{rest}")


def test_a_draw_may_guess_nothing(entered):
    draw = "    def draw(self, context, K, sampling, rng):\n"
    draw += "        if len(context) % 2 == 0:\n"
    silent = "            return [], torch.empty(0, 7).double()\n"
    rest = "        return super().draw(context, K, sampling, rng)\n"
    entered(f"{HEAD}class Mine(Bigram):\n{draw}{silent}{rest}")


def test_a_text_that_is_not_drawn_from_p_is_refused():
    p = torch.full((1, 7), 1 / 7, dtype=torch.float64)
    even = [Round([], p[:0], p, [i % 7], i) for i in range(700)]
    check_text([Generation([], even)])
    with pytest.raises(Refused, match="its text is not drawn from the target's p"):
        check_text([Generation([], [Round([], p[:0], p, [i % 2], i) for i in range(700)])])


def test_a_change_of_what_the_fused_target_made_of_its_weights_is_seen(toy):
    fused = FusedLanguageModel(toy.target)
    arena = replace(toy, target=fused, untouched=copy.deepcopy(fused))
    check_untouched(arena)
    fused.qkv[0][0, 0] += 1
    with pytest.raises(Refused, match="it changes the target's weights"):
        check_untouched(arena)


def test_who_always_draws_the_likeliest_token_is_seen_by_its_rank_where_tokens_even_out(toy):
    q = torch.tensor([0.6] + [0.4 / 6] * 6, dtype=torch.float64)
    entry = entry_of(RIGHT["lookahead"](toy))
    rounds = [Round([i % 7], q.roll(i)[None], None, [0], i) for i in range(700)]
    with pytest.raises(Refused, match=r"700 guesses .* χ² by rank is"):
        check_guesses(entry, toy, [[0]], [Generation([], rounds)])


PROPOSALS = {  # the lines that follow `q = …` of the bigram, and what the refusal says
    "argmax": ("return one(int(q.argmax()))", SPREAD),
    "sharper": (f"return one({SHARP})", SPREAD),
    "pruned": ("return one(max(rng.categorical(q) for _ in range(4)))", SPREAD),
    "own": ("return one(int(torch.multinomial(q, 1)))", AGAIN),
    "parent": ("return Tree([rng.categorical(q)], [0], q[None])", r"ValueError: parents are \[0\]"),
    "deep": ("return Tree([0] * 40, list(range(-1, 39)), q[None].repeat(40, 1))",
             r"ValueError: 41 tokens .* \(block_size\); pass fewer"),
    "rows": ("return Tree([rng.categorical(q)], [-1], q)", r"guesses is a torch.float64 \(7,\)"),
    "token": ("return one(7)", "it guesses 7; a token is an int in 0 … 6"),
    "zero": ("q = torch.eye(7).double()[1]\nreturn one(0)", "q = 0"),
    "empty": ("return Tree.empty(7)", "it never guessed in 3 texts"),
    "fails": ("return Tree([1 / 0], [-1], q)", "it fails while it is judged, line 19: Zero"),
    "for some samplings": ("return one(int(q.argmax()) if sampling.top_k else rng.categorical(q))",
                           "the output is not the target's: with Mine, K = 2 and"),
    "writes a cache": ("if sampling.top_k: text.past_kvs[0][0][1].mul_(-3)\n"
                       "return one(rng.categorical(q))", "the output is not the target's: with Mi"),
    "and after a restart": ("if sampling.temperature == 0 and text.start > 0:\n"
                            "    text.past_kvs[0][0][1].mul_(-3)\nreturn one(rng.categorical(q))",
                            r"greedy decoding differs .*: prompt .*, Mine: token \d+ of 32 is"),
}  # fmt: skip


@pytest.mark.parametrize("lines, says", PROPOSALS.values(), ids=PROPOSALS)
def test_a_proposer_whose_trees_or_texts_are_wrong_is_refused(lines, says, entered):
    code = """
class Mine(Bigram, Proposer):
    reads = True
    def propose(self, text, most, sampling, rng):
        def one(token):
            return Tree([token][:most], [-1][:most], q[None][:most])
        q = sampling.of_probs(self.get_probs(text.tokens))
"""
    with pytest.raises(Refused, match=says) as refused:
        entered(HEAD + code + "".join(f"        {line}\n" for line in lines.split("\n")))
    assert "\n" not in str(refused.value)


def test_a_target_that_is_changed_while_it_is_judged_is_seen_in_the_end(entered):
    """By so little that no text shows it."""
    code = HEAD.replace("vocab_size):", "vocab_size, target):")
    code = (
        code.replace("    return Mine", "    Mine.its = target\n    return Mine")
        + """
class Mine(Bigram):
    def get_probs(self, context):
        self.its.ln_f.bias.data += 1e-12
        return super().get_probs(context)
"""
    )
    with pytest.raises(Refused, match=r"it changes the target's weights; copy\.deepcopy"):
        entered(code)


SLIP = """
import numpy as np, torch
from nanogpt.drafts.bigram import BigramDraftModel as Bigram
from nanogpt.drafts.ngram import NGramAutomaton

def make_draft(tokens, vocab_size):
    table = Bigram(tokens, vocab_size).table
    table = torch.cat([table.mean(0, keepdim=True), table])
    return Changed(np.zeros(8, int), np.arange(-1, 7).clip(0), table)

class Changed(NGramAutomaton):
    def row(self, i, sampling=None):
        q, sums = super().row(i, sampling)  # the sums are those of q as it was
        return q ** {power} / (q ** {power}).sum(), sums
"""


def test_a_table_that_was_changed_in_place_is_refused_for_its_sums(entered):
    entered(SLIP.format(power=1))
    with pytest.raises(Refused, match=r"if rows have changed .*, make them anew"):
        entered(SLIP.format(power=1.05))


FILES = {
    "no function": ("x = 1", "it has no function make_draft"),
    "syntax": ("def make_draft(:", r"its code fails, line 1: SyntaxError: "),
    "import": ("\nimport nothing_such", "fails, line 2: ModuleNotFoundError: No module named"),
    "exits": ("raise SystemExit(0)", "its code fails, line 1: SystemExit: 0"),
    "arguments": ("def make_draft(): ...", r"must take \(tokens, vocab_size\)"),
    "raises": ("def make_draft(tokens, V):\n    return {}[V]", "fails, line 2: KeyError: 7"),
    "None": ("def make_draft(tokens, V): ...", "make_draft returns None; end it with `return"),
    "class": ("class A: get_probs = 1\ndef make_draft(t, V): return A", "not an object of a class"),
    "vocabulary": (HEAD + "class Mine(Bigram):\n    vocab_size = property(lambda s: 65, print)",
                   "vocab_size is 65; the target has 7 tokens, and they must share one tokenizer"),
    "K": (HEAD + "Mine = Bigram\nK = 0", r"K is 0; it must be a whole number in 1 … 31$"),
    "both": (HEAD + "class Mine(Bigram, Proposer):\n    propose = print\nK = 3",
             "leave K, POLICY, RULE out"),
    "POLICY": (HEAD + "Mine = Bigram\nPOLICY = 'lossy'", "POLICY is 'lossy'; it must be one of '"),
    "POLICY and K": (HEAD + "Mine = Bigram\nPOLICY = 'entropy'\nK = 3", "and K left out beside it"),
    "propose alone": ("def make_draft(t, V): return type('A', (), {'propose': print})()",
                      "returns A, not .* Proposer, of nanogpt"),
    "RULE": (HEAD + "Mine = Bigram\nRULE = 'lossy'", "RULE is 'lossy'; it must be one of token"),
    "target": ("def make_draft(tokens, V, target):\n    target.lm_head.weight.data *= 1\n"
               "    target.ln_f.bias.data += 1e-6", "it changes the target's weights; copy.deep"),
    "other": (HEAD + "class Mine(Bigram, Proposer):\n    target = 5", "`target` is another model"),
}  # fmt: skip


@pytest.mark.parametrize("code, says", FILES.values(), ids=FILES)
def test_a_file_that_makes_no_draft_is_refused(code, says, entered):
    with pytest.raises(Refused, match=says) as refused:
        entered(code)
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
    return Row(setting, middle, (low, high), middle, 1.0, 0.5, 0.1, 4.0, 2.0, 0.1, 2e-4, {}, 1e-5)


ROWS = [
    row("distilled", 3.5, 4.0, 4.5, "block"),
    row("counts", 1.9, 2.1, 2.3),
    row(YOURS, 1.6, 1.8, 2.0),
    row("bigram", 1.1, 1.3, 1.5),
    row("transformer", 0.8, 0.9, 1.1),
]


def test_a_place_is_told_as_far_as_the_quartiles_tell_it():
    assert placing(ROWS) == (
        (2, 3),
        "place 2 to 3 of 6: its quartiles overlap with those of counts; faster than "
        "bigram, transformer, plain; slower than distilled blocks",
    )
    assert placing([row(YOURS, 1.6, 1.8, 2.0), row("bigram", 1.5, 1.6, 1.7)])[0] == (1, 2)
    where, said = placing([r for r in ROWS if r.setting.draft != "counts"])
    assert where == (2, 2)
    assert said.startswith("place 2 of 5: no other's quartiles overlap with its own; faster than")
    where, said = placing([*ROWS[:2], row(YOURS, 0.9, 0.95, 1.0)])
    assert where == (3, 4) and "overlap with those of plain" in said


def test_the_race_is_the_benchmarks_of_the_entry_and_the_shipped(toy):
    entry = entry_of(template.make_draft(toy.tokens, V))
    rows, judged = compete(entry, toy, ["bigram", "counts", "bigram"], pairs=2, tokens=12)
    assert re.match(r"of \d+ guesses χ² by token is .*, χ² by rank is", judged)
    assert {r.setting.draft for r in rows} == {YOURS, "bigram", "counts"}
    assert [r.speed_up for r in rows] == sorted((r.speed_up for r in rows), reverse=True)
    assert settings_of(entry, toy, [])[0] == Setting("per-head", YOURS, 4, 1.0)
    assert settings_of(entry_of(RIGHT["eagle"](toy)), toy, AGAINST)[0].K is None
    policy = settings_of(replace(entry, policy="entropy"), toy, [])[0]
    assert (policy.K, policy.policy) == (None, "entropy")
    assert compete(entry_of(RIGHT["fixed"](toy)), toy, [], pairs=1, tokens=1)[1] == "no guesses"


def test_what_behaved_until_the_race_is_refused_by_its_guesses(entered, toy):
    draw = "int(q.argmax()) if late else rng.categorical(q)"
    entry = entered("late = False" + HEAD + CHAIN.format(draw=draw, claim="q", first=0))
    sys.modules["your_draft"].late = True
    with pytest.raises(Refused, match=SPREAD):
        compete(entry, toy, [], pairs=3, tokens=40)
    sys.modules["your_draft"].late = None  # and who fails is named
    entry.draft.get_probs = {}.pop
    with pytest.raises(Refused, match=r"it fails in the race, line .*Error"):
        compete(entry, toy, [], pairs=1, tokens=4)


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
    """At the same K, by tokens a pass: times are not tested where others run beside."""
    out = tmp_path / "rows.json"
    main([str(mine), "--against=bigram", "--pairs=2", "--tokens=12", f"--json={out}"])
    printed, progress = capsys.readouterr()
    assert re.findall(r"(?m)^ok  (\w+)", printed) == ["q", "guesses", "exact", "greedy", "race"]
    assert re.search(r"(?m)^fused +yours +4 +1 +token ", printed) and "pairs: 100%" in progress
    assert re.search(r"(?m)^yours: place .* of 3: ", printed.splitlines()[-1])
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 2 and 1 <= found["place"][0] <= found["place"][1] <= 3


def test_the_template_overlaps_more_with_the_target_than_the_bigram(mine):
    arena = open_arena("fused")
    trigram, two = enter(mine, arena).draft, bigram.BigramDraftModel(arena.tokens, 65)
    texts, overlap = prompts_of(arena.held_out, 50), {trigram: 0.0, two: 0.0}
    for text in texts:
        with torch.inference_mode():
            p = Sampling().probs(arena.target(torch.tensor([text]))[0][0, -1])
        for draft in overlap:
            overlap[draft] += float(torch.minimum(p, draft.get_probs(text)).sum()) / len(texts)
    assert overlap[trigram] > overlap[two] + 0.05


def test_no_greedy_text_of_the_arena_hangs_on_rounding():
    """Else float32 could part the draft's way of reading it from the target's own."""
    arena = open_arena()
    window = arena.target.config.block_size
    for prompt in prompts_of(arena.held_out, 3):
        text = prompt + autoregressive_generate(arena.target, prompt, window, Sampling(0)).tokens
        own = SelfDraft(arena.target, len(prompt))
        for i in range(len(prompt), len(text)):
            best, second = own.logits(text[:i]).topk(2).values.tolist()
            assert best - second > 2e-4


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
    assert re.match(r"my_draft\.py is refused: after .*, its q sums to 1 within inf; ", refused)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ([], "give the file of your draft; `nanogpt arena --new my_draft.py` writes one"),
        (["nothing.py"], "there is no file nothing.py; `nanogpt arena --new nothing.py` writes"),
        (["x.py", "--pairs=0"], "must be at least 1"),
    ],
)
def test_impossible_arguments_are_refused(wrong, says, monkeypatch, toy):
    monkeypatch.setattr(arenas, "open_arena", lambda name: toy)
    with pytest.raises(ValueError, match=says):
        main(wrong)
