"""Every bug of the gallery is caught by the check that is meant for it; correct code passes all.

Most bugs are caught in a chapter, which shows it and asserts it: see `shown`. `make test` catches
here those that no chapter plants, and the wide tests catch all of them once more.
"""

import ast
import copy
import dataclasses
import itertools
import re
import sys

import pytest
import torch
from series import NOTEBOOKS, cells, output_text

from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Generation
from nanogpt.proof import bugs
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import CHECKS, SLOW_CHECKS
from nanogpt.proof.checks_promises import PROMISE_CHECKS
from nanogpt.proof.checks_serving import SERVING_CHECKS, WatchedRows
from nanogpt.proof.decoders import KINDS, decoder, server_decoder, tree_decoder
from nanogpt.proof.gallery import edited, mutant, served, twin
from nanogpt.proof.toys import from_memory, random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import server
from nanogpt.serving.paged import block_key, on_pool
from nanogpt.speculative import accept_reject, speculative_generate
from nanogpt.targets.fused import PreallocatedCache

ALL_CHECKS = SLOW_CHECKS | SERVING_CHECKS | PROMISE_CHECKS


def unedited(kind):
    """The package's own decoder, made as a mutant is."""
    return mutant(dataclasses.replace(BUGS[0], new=BUGS[0].old, decoder=kind))


# Of each loop, a chain's and a tree's, one decoder meets the long checks in make test. That trees
# and blocks of every kind are exact is enumerated in test_rules, other drafts in their own files.
# Chapters 24 and 34, and test_the_checks_of_servers_preempt, meet checks with the package's own.
WIDE = pytest.mark.wide
LONG = {
    "chain": "exact",
    "block": "rounds frequencies",
    "with": "exact rounds frequencies greedy cache accounting nodes",
    "without": "greedy cache accounting nodes",  # as fixed ones, in the same loop
    "fixed": "rounds frequencies",
    "eagle": "exact rounds frequencies",
    "server": "preemption held memory",
    "overlap": "alone preemption held memory",  # test_overlap
    "ahead": "exact greedy",  # test_ahead
    "learning": "taught",
    "pairs": "exact",
}
CASES = [
    pytest.param(name, check, marks=WIDE if check in LONG.get(name, "").split() else ())
    for name, kind in KINDS.items()
    for check in kind.checks.split()
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_the_correct_decoder_passes_the_checks_of_its_kind(name, check):
    """As a mutant without its edit: what catches the others is their bug, not how they are made."""
    ALL_CHECKS[check](unedited(name))


@pytest.mark.parametrize("check", ["exact", "acceptance"])
def test_the_correct_chain_passes_the_checks_that_chains_have_to_themselves(check):
    assert CHECKS[check] is not ALL_CHECKS[check]
    CHECKS[check](unedited("chain"))


def test_the_checks_of_trees_come_through_a_second_sibling():
    """A path that is the first nodes in order would hide a wrong mask, position or cache."""
    for siblings in ("with", "without", "fixed"):
        draft, rng = random_draft(7), RandomSource(3)
        made = tree_decoder(siblings)(toy_target(7, 8), draft, [0, 1, 2], 20, 3, Sampling(), rng)
        assert any(r.path[:1] == [1] for r in made.rounds), "as check_cache runs it"


HERE = {*range(40, 73), 82, 83}  # no chapter plants these: caught here


def taken(node):
    """The bugs that a node of a chapter's code takes from the gallery: a part of it, or some."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("BUGS", "bugs.BUGS"):
        code = ast.unparse(node)
    elif isinstance(node, ast.comprehension) and ast.unparse(node.iter) == "BUGS" and node.ifs:
        bug, asked = ast.unparse(node.target), " and ".join(map(ast.unparse, node.ifs))
        code = f"[{bug} for {bug} in BUGS if {asked}]"
    else:
        return []
    try:
        made = eval(code, {"BUGS": BUGS, "bugs": bugs})
    except NameError:  # it needs the chapter's own names
        return []
    return made if isinstance(made, list) else [made]


def shown(chapter):
    """The numbers of the bugs that a chapter's code cells plant and see caught.

    They are taken from the gallery and put into our code; each one's title stands in what the
    planting cells put out, or their matrix has a row for it; and the chapter fails if one is not
    caught. Either it asserts so of `caught_by`, or it prints what an AssertionError says, and
    nbval compares that.
    """
    plants = [cell for cell in chapter if "mutant(" in cell.source]
    sure = [
        cell
        for cell in chapter
        if re.search(r"(?m)^ *assert ", cell.source) and "caught_by" in cell.source
    ]
    sure += [
        cell
        for cell in plants
        if cell.source.startswith("# NBVAL_CHECK_OUTPUT") and "except AssertionError" in cell.source
    ]
    if not plants or not sure:
        return set()
    grids = [cell for cell in chapter if "figures.grid(" in cell.source]
    said = " ".join("\n".join(map(output_text, plants + grids)).split())
    nodes = [node for cell in chapter for node in ast.walk(ast.parse(cell.source))]
    found = {bug.number: bug.title in said for node in nodes for bug in taken(node)}
    rows = sum(map(int, re.findall(r"(\d+) rows", said)))  # a matrix names its first and its last
    enough = len(found) <= rows + sum(found.values())
    return {number for number, named in found.items() if named or (rows and enough)}


def test_the_chapters_and_this_file_catch_every_bug_of_the_gallery():
    by_chapter = {path.stem[:2]: shown(cells(path, "code")) for path in NOTEBOOKS}
    of = {name: sorted(found) for name, found in by_chapter.items() if found}
    caught = set().union(*by_chapter.values())
    assert caught | HERE == {bug.number for bug in BUGS}, of
    assert not caught & HERE, "a chapter has it: it need not be caught here again"
    assert of["08"] == [*range(1, 33)], "its own text says so"


@pytest.mark.parametrize(
    ("number", "was", "becomes"),
    [
        ("08", "bugs.BUGS[:32]", "bugs.BUGS[:31]"),
        ("08", "assert all(bug.number in caught[bug.caught_by] for bug in BUGS)", ""),
        ("17", "BUGS[32:46]", "BUGS[33:46]"),
        ("32", "# NBVAL_CHECK_OUTPUT", ""),
        ("33", 'in ("state", "prefix")', 'in ("state", "prefix") and bug.number > 76'),
        ("34", 'bug.decoder == "learning"', 'bug.decoder == "eagle"'),
    ],
)
def test_a_bug_that_a_chapter_no_longer_catches_is_missed(number, was, becomes):
    [path] = [path for path in NOTEBOOKS if path.stem[:2] == number]
    chapter = copy.deepcopy(cells(path, "code"))
    for cell in chapter:
        if "bug" in cell.source:
            cell.source = cell.source.replace(was, becomes)
    assert shown(chapter) < shown(cells(path, "code"))


SEEN = {  # each serving bug, and which of the checks of its decoder see it
    54: "alone product independent leaving",
    55: "independent",
    56: "alone ragged",
    57: "alone product independent ragged leaving",
    58: "alone product independent ragged leaving",
    59: "pool",
    60: "publish",
    61: "pool leftovers",  # which finds no block
    62: "exact outcomes",
    63: "exact acceptance outcomes",
    64: "preemption held",
    65: "memory",
    66: "memory",
    67: "leftovers",
    68: "same",  # 300 texts do not show how far off it is
    69: "fair",  # plain decoding does it, too
    70: "constraints",
    71: "constraints logprobs",
    72: "stops",
    79: "taught",
    80: "leaving apart",
    81: "lessons",
    90: "alone preemption",
    91: "alone product ragged preemption held memory",
    92: "preemption",
}


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            bug, id=f"{bug.number}-{bug.caught_by}", marks=() if bug.number in HERE else WIDE
        )
        for bug in BUGS
        if bug.number in HERE or bug.number not in SEEN
    ],
)
def test_a_bug_is_caught_by_its_check(bug):
    with pytest.raises(AssertionError) as caught:
        ALL_CHECKS[bug.caught_by](mutant(bug))
    assert str(caught.value), "the check says what is wrong"


@pytest.mark.parametrize(
    "bug", [BUGS[46], *(pytest.param(bug, marks=WIDE) for bug in BUGS[47:49])],
    ids=lambda bug: bug.number,
)  # fmt: skip
def test_a_bug_that_costs_many_guesses_shows_in_alpha(bug):
    """The next three cost few, if any, on a head as small as ours."""
    with pytest.raises(AssertionError, match="own α says"):
        SLOW_CHECKS["alpha"](mutant(bug))


@pytest.mark.wide
@pytest.mark.parametrize("number", SEEN)
def test_which_checks_see_a_serving_bug(number):
    """A crash is no answer: where a bug makes one, the check that is meant for it must say so."""
    seen, bug = [], BUGS[number - 1]
    wrong = mutant(bug)
    for name in KINDS[bug.decoder].checks.split():
        try:
            ALL_CHECKS[name](wrong)
        except AssertionError as caught:
            assert str(caught), "the check says what is wrong"
            seen.append(name)
        except (IndexError, RuntimeError, ValueError):
            assert name != bug.caught_by
    assert seen == SEEN[bug.number].split() and bug.caught_by in seen


def test_the_checks_of_servers_preempt(monkeypatch):
    for check in ("preemption", "held"):
        lost, preempt = [], server.Queue.preempt
        monkeypatch.setattr(
            server.Queue, "preempt", lambda self, of=preempt, to=lost: to.append(1) or of(self)
        )
        SERVING_CHECKS[check](server_decoder)
        monkeypatch.undo()
        assert len(lost) > 5, check


def test_the_preemption_check_sees_too_few_places_reserved():
    """Bug 59, in the scheduler: no place for the current token."""
    few = dataclasses.replace(
        BUGS[63],
        module="serving/memory",
        old="return n - request.cache_length",
        new="return n - 1 - request.cache_length",
        also=(),
    )
    with pytest.raises(AssertionError, match="places of the cache where there are"):
        SERVING_CHECKS["preemption"](mutant(few))


GREEDY_FOR_TOKENS = (("(r.to_do, self.memory", "(r.to_do + self.policy(1), self.memory"),)


@pytest.mark.parametrize(
    "check, module, old, new, also, message",
    [
        ("turns", "serving/server", "behind = max(0, running - i - 1)", "behind = 0",
         GREEDY_FOR_TOKENS, "whose guesses come before"),
        ("held", "serving/memory", "return self.pool.free",
         "return self.pool.blocks - sum(len(r.past_kvs.tables[0].blocks) for r in running "
         "if r.past_kvs)", (), "nobody makes room"),
    ],
)  # fmt: skip
def test_the_checks_of_servers_see(check, module, old, new, also, message):
    wrong = dataclasses.replace(BUGS[63], module=module, old=old, new=new, also=also)
    with pytest.raises(AssertionError, match=message):
        SERVING_CHECKS[check](mutant(wrong))


RESIDUAL = "(done.target_probs[row] - done.draft_probs[row]).clip(0).log()"
REJECTED = "row < len(done.draft_probs) and token != done.candidates[row]"


@pytest.mark.parametrize(
    "check, module, old, new, message",
    [
        ("same", "same", "        rng.index = start\n", "", "without a draft"),
        ("same", "same", "        start = rng.index\n", "        start, rng.index = rng.index, 7\n",
         "whose noise are they drawn by"),
        ("fair", "same", "SeedSequence(seed, ", "SeedSequence(0, ", "not spread as the target's"),
        ("fair", "same", ".gumbel(", ".gumbel(scale=0.5, ", "without a draft, the texts of 300"),
        ("constraints", "serving/constraints",
         "            self.past = self.constraints.after(self.past, "
         "token)\n", "            if row == self.rows_of(done)[len(new) - 1]:\n"
         "                self.past = self.constraints.after(self.past, token)\n",
         "under a grammar"),  # sglang#33643
        ("constraints", "generate", "            self.past_kvs = None\n",
         "            self.past_kvs = None\n"
         "            if hasattr(self, 'past'):\n                self.past = type(self.past)()\n",
         "under all of them"),  # a grammar that begins anew with the window
        ("stops", "serving/constraints", "found(self.tokens[self.n_prompt :])",
         "found(self.tokens[-1 - self.rows_of(done).index(row) :])", "by what comes first"),
        ("stops", "serving/constraints",
         "                del self.raw[found:], self.processed[found:]\n",
         "", r"rows of log p come with"),  # vllm#47616
        ("stops", "serving/constraints",
         '"stop" if new[-1] == self.stop_token else "length"', '"stop"',
         "'stop', not 'length'"),
        ("logprobs", "serving/constraints", "self.raw.append(self.said[row])",
         "self.raw.append(self.said[0])", "log p before the rules is"),
        ("logprobs", "serving/constraints", "self.processed.append(done.target_probs[row].log())",
         "self.processed.append(done.target_probs[row].log() if not (" + REJECTED + ") else "
         + RESIDUAL + ")", "log p after them is"),
    ],
)  # fmt: skip
def test_the_checks_of_promises_see(check, module, old, new, message):
    kind = next(name for name, kind in KINDS.items() if check in kind.checks.split())
    wrong = dataclasses.replace(BUGS[67], module=module, old=old, new=new, also=(), decoder=kind)
    with pytest.raises(AssertionError, match=message):
        PROMISE_CHECKS[check](mutant(wrong))


MEETS = """        here, reply, past = "", self.tokens[self.n_prompt :], self.past
        for row, token in enumerate(done.emitted):
            reply, past = [*reply, token], self.constraints.after(past, token)
            here += "token " * (token == self.stop_token)
            here += "string " * (self.constraints.found(reply) is not None)
            here += "grammar " * self.constraints.ended(past)
            here += "budget " * (self.n_prompt + len(reply) == self.end)
            here += "window " * (done.position + row + 1 == self.block_size)
        if SHARED[0] == {rows} and "{one}" in here and "{other}" in here:
            {hide}
        SHARED[1] = 0
        before = len(self.tokens)
"""  # of a round of {rows} rows, one thing that is in it is hidden by another that is
COUNTED = (
    ("def for_pass(", "SHARED = [1, 0]  # rows of this pass\n\n\ndef for_pass("),
    (
        "    if isinstance(text, Reply) and",
        "    SHARED[:] = [SHARED[1] + 1] * 2\n    if isinstance(text, Reply) and",
    ),
)
HIDE = {
    "token": "self.stop_token = None",
    "string": "self.constraints = replace(self.constraints, stop=())",
    "grammar": "self.constraints = replace(self.constraints, grammar=None)",
    "budget": "self.end += 1",
}
MEETINGS = [
    (one, other)
    for one in ("token", "string", "grammar")
    for other in (*HIDE, "window")
    if one != other
] + [("budget", "window")]
MEETINGS = [
    pytest.param(*ends, decoder, rows, marks=() if i % 5 + 1 == rows * (i % 2 == odd) else WIDE)
    for i, ends in enumerate(MEETINGS) for odd, decoder in enumerate(("batch", "server"))
    for rows in range(1, 6)
] + [(*ends, "constrained", 1) for ends in MEETINGS]  # fmt: skip


def put(module, old, new, decoder, also=()):
    """A bug of no number."""
    return dataclasses.replace(BUGS[53], module=f"serving/{module}", old=old, new=new,
                               decoder=decoder, also=also)  # fmt: skip


@pytest.mark.parametrize("one, other, decoder, rows", MEETINGS)
def test_no_end_of_a_reply_hides_another(one, other, decoder, rows):
    new = MEETS.format(one=one, other=other, rows=rows, hide=HIDE[one])
    wrong = put("constraints", "        before = len(self.tokens)\n", new, decoder, COUNTED)
    with pytest.raises(AssertionError, match=r"what comes first|, not '|instead of"):
        ALL_CHECKS["stops" if decoder == "constrained" else "alone"](mutant(wrong))


def test_the_longest_of_two_stop_strings_goes():
    with pytest.raises(AssertionError, match="by what comes first"):
        PROMISE_CHECKS["stops"](mutant(put("constraints", "max(ends)", "ends[0]", "constrained")))


@pytest.mark.parametrize(
    "decoder, check, module, old, new",
    [
        ("batch", "alone", "constraints", "found(self.tokens[self.n_prompt :])",
         "found(self.tokens[max(self.n_prompt, self.start) :])"),
        *(("batch", "alone", "batch", "        seat.text.restart_if_full()\n    texts",
           "        if seat.text.position == seat.text.block_size:\n            seat.text." + lost +
           "\n        seat.text.restart_if_full()\n    texts")
          for lost in ("past = type(seat.text.past)()", "raw.clear()")),
        ("server", "alone", "server", "                request.restart_if_full()\n      ",
         "                request.past = type(request.past)()\n"
         "                request.restart_if_full()\n      "),
        *(("server", "preemption", "server", "        request.tree, request.preempted",
           f"        request.{lost}\n        request.tree, request.preempted")
          for lost in ("past = type(request.past)()", "raw.clear()")),
    ],
)  # fmt: skip
def test_what_a_reply_knows_outlives_its_context(decoder, check, module, old, new):
    with pytest.raises(AssertionError):
        SERVING_CHECKS[check](mutant(put(module, old, new, decoder)))


VERIFIED, PASS = "    ends = [P + len(own)", "    streams, new_kvs = target"
BATCH, SERVER = (
    "    for seat in seats:\n        seat.text.rest",
    "        if batch:\n            rows",
)
BATCH_AFTER = "    for seat, tree, (p, hidden, new_kvs) in zip("
SERVER_AFTER = "            for (request, n), (p, hidden, new_kvs) in zip(batch"
TURN = """if len({pass_}) == {{rows}}:
    own = [{owners} in {pass_}]
    for x, y in zip(own, [({field}) for x in [*own[1:], own[0]]]):
        {field} = {kept}
"""


def turned(field, place, kept="y"):
    """Each row of a pass has what is the next one's."""
    batch, indent = "seat" in place, " " * (len(place) - len(place.lstrip(" ")))
    names = ("seats", "x.text for x") if batch else ("batch", "x for x, _")
    lines = TURN.format(field=field, kept=kept, pass_=names[0], owners=names[1]).splitlines()
    return "batch" if batch else "server", place, "".join(f"{indent}{x}\n" for x in lines) + place


MIXED = {  # what is another row's, where {rows} of them share a pass
    **{("batch", x): ("batch", place, f"    {x} = {x}.roll(1, 0) if len(texts) == {{rows}} else {x}"
                      f"\n{place}")
       for x, place in {"p": VERIFIED, "idx": PASS, "pos": PASS, "hidden": VERIFIED}.items()},
    ("batch", "cache"): ("batch", "0, place]  #",
                         "0, place.roll(1, 0) if len(caches) == {rows} else place]  #"),
    ("batch", "new cache"): (
        "batch", "        for own in [(slice(b",
        "        for b in [(b + 1) % {rows} if len(lengths) == {rows} else b]\n"
        "        for own in [(slice(b"),
    **{("batch", x): ("batch", BATCH, "    if len(seats) == {rows}:\n        seats = [x._replace("
                      f"{x}=y.{x}) for x, y in zip(seats, [*seats[1:], seats[0]])]\n{BATCH}")
       for x in ("draft", "sampling", "rng")},
    **{("server", x): turned(f"x.{x}", SERVER) for x in ("sampling", "rng", "steps")},
    **{(decoder, x): turned(f"x.{x}", place) for x in ("stop_token", "past")
       for decoder, place in (("batch", BATCH), ("server", SERVER))},
    **{(decoder, "rules"): turned("x.constraints, x.past", place)
       for decoder, place in (("batch", BATCH), ("server", SERVER))},
    **{(decoder, "end"): turned("x.end", place, "max(y, len(x.tokens) + 1)")
       for decoder, place in (("batch", BATCH), ("server", SERVER))},
    **{(decoder, x): turned(f"x.{x}", place) for x in ("raw", "processed")
       for decoder, place in (("batch", BATCH_AFTER), ("server", SERVER_AFTER))},
    **{(decoder, "said"): turned("x.said", place, "y if y.shape == x.said.shape else x.said")
       for decoder, place in (("batch", BATCH_AFTER), ("server", SERVER_AFTER))},
}  # fmt: skip
MIXED["server", "hidden"] = MIXED.pop(("batch", "hidden"))  # its draft reads
MIXED["budget", "p"] = MIXED["batch", "p"]


@pytest.mark.parametrize(
    "decoder, what, rows",
    [
        pytest.param(*case, rows, marks=() if i % 4 + 2 == rows else WIDE)
        for i, case in enumerate(MIXED) for rows in range(2, 6)
    ],
)  # fmt: skip
def test_rows_that_are_mixed_up_are_seen_however_many_share_a_pass(decoder, what, rows):
    module, old, new = MIXED[decoder, what]
    wrong = put(module, old, new.replace("{rows}", str(rows)), decoder)
    check = {"budget": "ragged"}.get(decoder, "memory" if what == "hidden" else "alone")
    with pytest.raises(AssertionError):
        SERVING_CHECKS[check](mutant(wrong))


def test_a_block_that_was_published_too_early_misleads_another_text():
    """Bug 60 biases: a text that begins as the guesses did finds entries that were written over."""
    own, off = toy_target(7, 8), []
    for seed in range(6):
        draft, early = random_draft(7, seed), mutant(BUGS[59])
        target = WatchedRows(on_pool(own, blocks=64, size=4))
        early(target, draft, [[0, 1]], 12, 3, Sampling(), [RandomSource(seed)])
        fours = [list(four) for four in itertools.product(range(7), repeat=4)]
        for found in [x for x in fours if block_key(b"", x) in target.pool.published]:
            (made,) = early(target, draft, [[*found, 2]], 1)
            p = Sampling().probs(own(torch.tensor([[*found, 2]]))[0][0, -1])
            off.append(float((made.rounds[0].target_probs[0] - p).abs().max()))
    assert max(off) > 0.005


def test_a_roll_out_for_another_outcome_is_only_slower_where_its_own_q_comes_with_it():
    """The output is the target's for any q that the guesses were drawn from; q itself shows it."""
    other = dataclasses.replace(
        BUGS[61],
        old="        if outcome in self.prepared:\n            rollout = self.prepared[outcome]\n",
        new="        for rollout in self.prepared.values():\n",
    )
    CHECKS["exact"](mutant(other))
    with pytest.raises(AssertionError, match="q is off by"):
        SERVING_CHECKS["outcomes"](mutant(other))


def test_rows_that_take_turns_with_one_stream_are_not_what_they_are_alone():
    """The other bug of one rng: right in distribution, but a row's text hangs on its neighbours."""
    shared = dataclasses.replace(
        BUGS[54], old="samplings[b], rngs[b], ", new="samplings[b], rngs[0], "
    )
    with pytest.raises(AssertionError, match="not what it is alone"):
        SERVING_CHECKS["alone"](mutant(shared))
    for blind in ("product", "independent"):
        SERVING_CHECKS[blind](mutant(shared))


def test_the_draft_check_sees_a_wrong_entry_that_only_full_acceptance_makes():
    """vllm-project/vllm#9730: another token is read in place of the last accepted one."""
    wrong = dataclasses.replace(
        next(bug for bug in BUGS if bug.number == 24),
        new="return context[-1:] * (len(context) - kept) if kept else context",
    )
    with pytest.raises(AssertionError, match="draft's q is off by"):
        CHECKS["draft"](mutant(wrong))


def test_a_mutant_leaves_the_callers_objects_and_the_import_system_alone():
    target, draft, rng = toy_target(7, 64), TransformerDraft(toy_target(7, 64, 3)), RandomSource(1)
    things = [target, target.blocks[0], draft, draft.model, rng]
    before = [(type(thing), dict(vars(thing))) for thing in things]
    known, finders = set(sys.modules), list(sys.meta_path)
    made = mutant(BUGS[12])(target, draft, [0, 1], 12, 3, Sampling(0.7), rng)
    after = [(type(thing), dict(vars(thing))) for thing in things]
    assert [x[0] for x in after] == [x[0] for x in before] and draft.tokens == []
    assert all(a.keys() == b.keys() for (_, a), (_, b) in zip(after, before, strict=True))
    assert type(made) is not Generation, "its own package's"
    assert sys.meta_path == finders and not [n for n in set(sys.modules) - known if "bug" in n]


def test_a_twin_has_the_classes_and_the_sharing_of_the_original():
    """A class held as an attribute, an object held twice, one that holds itself."""
    modules = served(BUGS[58])
    target = on_pool(toy_target(7, 8), blocks=8, size=2)
    target.also, target.cache.itself, target.kind = target.cache, target.cache, PreallocatedCache
    other = twin(target, modules)
    assert other.also is other.cache is other.cache.itself is not target.cache
    assert {type(x).__module__ for x in (other, other.cache)} == {
        "nanogpt_with_a_bug.targets.fused",
        "nanogpt_with_a_bug.serving.paged",
    }
    assert other.kind is not PreallocatedCache and other.kind.__name__ == "PreallocatedCache"
    assert other.cache.unused is not target.cache.unused, "the caller's pool stays as it is"
    assert other.cache.entries is target.cache.entries


def test_a_pass_from_memory_is_the_models_own_and_nobody_writes_into_it(monkeypatch):
    toy, done = toy_target(7, 8), []
    passes = type(toy).states
    monkeypatch.setattr(type(toy), "states", lambda *x, **y: done.append(1) or passes(*x, **y))
    again, idx = from_memory(toy), torch.tensor([[1, 2, 3]])
    _, kvs = passes(toy, idx)
    others = tuple(((k + 1, v), (k, v)) for (k, v), _ in kvs)
    asked = [{}, {"pos": idx[0]}, {"past_kvs": kvs}, {"past_kvs": others}, {"depth": 1}]
    for more in asked * 3:
        streams, new_kvs = again.states(idx, **more)
        own = passes(toy, idx, **more)
        assert all(torch.equal(a, b) for a, b in zip(streams, own[0], strict=True))
        for x in [*streams, *(t for layer in new_kvs for kv in layer for t in kv)]:
            x.zero_()
    assert len(done) == len(asked)
    assert torch.equal(again(idx)[0], toy(idx)[0])


def test_every_draft_can_be_edited():
    """The whole package is served, drafts that no bug of today edits as well."""
    bug = dataclasses.replace(
        BUGS[0],
        module="drafts/lookup",
        old="return self.rows[text[-1]]\n",
        new="return self.rows[0]\n",
    )
    draft = PromptLookupDraft(7)
    decode = [mutant(bug), speculative_generate]
    q = [d(toy_target(7, 64), draft, [3], 2, 1).rounds[0].draft_probs[0] for d in decode]
    assert [int(row.argmax()) for row in q] == [0, 3]


def test_the_bugs_of_the_gallery_are_numbered_and_all_different():
    assert [bug.number for bug in BUGS] == [*range(1, len(BUGS) + 1)]
    assert len({(bug.module, bug.old, bug.new) for bug in BUGS}) == len(BUGS) >= 78
    assert {bug.decoder for bug in BUGS[:32]} == {"chain"}, "chapter 08's"
    assert {bug.kind for bug in BUGS} <= {"biased", "slow", "error"}
    for bug in BUGS:
        assert bug.caught_by in KINDS[bug.decoder].checks.split(), bug.number


def test_an_edit_that_no_longer_fits_is_an_error():
    with pytest.raises(ValueError, match=r"bug 1 edits .* speculative.py does not have"):
        edited(dataclasses.replace(BUGS[0], old="no such code"), "speculative")


def test_a_decoder_is_made_of_the_loop_and_the_readers_part():
    calls = []

    def mine(*args):
        calls.append(args)
        return accept_reject(*args)

    CHECKS["cache"](decoder(accept=mine))
    assert calls
    with pytest.raises(TypeError, match="accept_reject"):
        decoder(accept_reject=mine)
