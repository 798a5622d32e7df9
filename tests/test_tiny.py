"""What `make tiny` asks of the checks: they pass the decoder as it is, and catch one bug in it."""

import pytest

from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import check_lossless
from nanogpt.proof.gallery import mutant
from nanogpt.speculative import speculative_generate


def test_the_exact_check_passes_the_decoder_and_catches_a_draw_from_p_in_place_of_the_residual():
    check_lossless(speculative_generate)
    with pytest.raises(AssertionError):
        check_lossless(mutant(BUGS[0]))
