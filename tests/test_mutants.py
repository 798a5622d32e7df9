"""Every bug of the gallery is caught by the check that is meant for it; correct code passes all."""

import dataclasses

import pytest

from nanogpt.checks import CHECKS, decoder
from nanogpt.gallery import BUGS, edited, mutant
from nanogpt.speculative import accept_reject, speculative_generate


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_correct_decoder_passes(check):
    check(speculative_generate)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number}-{bug.caught_by}")
def test_a_bug_is_caught_by_its_check(bug):
    with pytest.raises(AssertionError) as caught:
        CHECKS[bug.caught_by](mutant(bug))
    assert str(caught.value), "the check says what is wrong"


def test_an_unedited_mutant_is_the_correct_decoder():
    """What catches a mutant is its bug, not the way in which mutants are made."""
    same = dataclasses.replace(BUGS[0], new=BUGS[0].old)
    for check in CHECKS.values():
        check(mutant(same))


def test_the_gallery_has_32_different_bugs():
    assert [bug.number for bug in BUGS] == [*range(1, 33)]
    assert len({(bug.module, bug.old, bug.new) for bug in BUGS}) == 32
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
