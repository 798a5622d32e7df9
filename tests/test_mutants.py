"""Every bug of the gallery is caught by the check that is meant for it; correct code passes all."""

import dataclasses
import functools
import sys

import pytest

from nanogpt.checks import CHECKS, SLOW_CHECKS, TREE_CHECKS, decoder, eagle_decoder, tree_decoder
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.gallery import BUGS, edited, mutant
from nanogpt.generate import Generation
from nanogpt.rules import accept_blockwise
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import accept_reject, speculative_generate
from nanogpt.toys import random_draft, toy_target


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_correct_decoder_passes(check):
    check(speculative_generate)


DECODERS = {
    "block": functools.partial(speculative_generate, accept=accept_blockwise),
    "with": tree_decoder("with"),
    "without": tree_decoder("without"),
    "fixed": tree_decoder("fixed", (2, 2)),
}
CASES = [(name, check) for name in DECODERS for check in TREE_CHECKS]
CASES.remove(("block", "acceptance"))  # a block keeps more than Σ min(p, q)
CASES += [("chain", check) for check in TREE_CHECKS if check not in CHECKS or check == "acceptance"]
DECODERS["chain"] = speculative_generate
DECODERS["eagle"] = eagle_decoder()
CASES += [("eagle", check) for check in TREE_CHECKS if check != "draft"]  # it has no get_probs
CASES += [("eagle", "incremental"), ("eagle", "alpha"), ("fixed", "second")]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_the_correct_trees_and_blocks_pass(name, check):
    SLOW_CHECKS[check](DECODERS[name])


def test_the_checks_of_trees_come_through_a_second_sibling():
    """A path that is the first nodes in order would hide a wrong mask, position or cache."""
    for siblings in ("with", "without", "fixed"):
        draft, rng = random_draft(7), RandomSource(3)
        made = tree_decoder(siblings)(toy_target(7, 8), draft, [0, 1, 2], 20, 3, Sampling(), rng)
        assert any(r.path[:1] == [1] for r in made.rounds), "as check_cache runs it"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number}-{bug.caught_by}")
def test_a_bug_is_caught_by_its_check(bug):
    with pytest.raises(AssertionError) as caught:
        SLOW_CHECKS[bug.caught_by](mutant(bug))
    assert str(caught.value), "the check says what is wrong"


@pytest.mark.parametrize("bug", BUGS[46:49], ids=lambda bug: bug.number)
def test_a_bug_that_costs_many_guesses_shows_in_alpha(bug):
    """The next three cost few, if any, on a head as small as ours."""
    with pytest.raises(AssertionError, match="own α says"):
        SLOW_CHECKS["alpha"](mutant(bug))


@pytest.mark.parametrize("decoder_of", ["block", "with", "without", "fixed", "eagle"])
def test_an_unedited_mutant_of_a_tree_or_block_is_correct(decoder_of):
    same = dataclasses.replace(BUGS[0], new=BUGS[0].old, decoder=decoder_of)
    for check in ("greedy", "cache", "nodes", "accounting"):
        TREE_CHECKS[check](mutant(same))
    own = {"eagle": "incremental", "fixed": "second"}.get(decoder_of)
    if own:
        SLOW_CHECKS[own](mutant(same))


def test_the_draft_check_sees_a_wrong_entry_that_only_full_acceptance_makes():
    """vllm-project/vllm#9730: another token is read in place of the last accepted one."""
    wrong = dataclasses.replace(
        next(bug for bug in BUGS if bug.number == 24),
        new="torch.tensor([context[-1:] * (len(context) - kept) if kept else context]",
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


def test_an_unedited_mutant_is_the_correct_decoder():
    """What catches a mutant is its bug, not the way in which mutants are made."""
    same = dataclasses.replace(BUGS[0], new=BUGS[0].old)
    for check in CHECKS.values():
        check(mutant(same))


def test_the_gallery_has_53_different_bugs():
    assert [bug.number for bug in BUGS] == [*range(1, 54)]
    assert len({(bug.module, bug.old, bug.new) for bug in BUGS}) == 53
    assert {bug.decoder for bug in BUGS[:32]} == {"chain"}, "chapter 08's"
    assert {bug.kind for bug in BUGS} <= {"biased", "slow", "error"}


def test_an_edit_that_no_longer_fits_is_an_error():
    with pytest.raises(ValueError, match=r"bug 1 edits .* speculative.py does not have"):
        edited(dataclasses.replace(BUGS[0], old="no such code"), "speculative")


def test_a_decoder_is_made_of_the_loop_and_the_readers_part():
    calls = []

    def mine(*args):
        calls.append(args)
        return accept_reject(*args)

    CHECKS["cache"](decoder(accept_reject=mine))
    assert calls
    with pytest.raises(ValueError, match="no part accept"):
        decoder(accept=mine)
