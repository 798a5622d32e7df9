"""What a decoder writes, by enumeration, beside what its target writes alone."""

from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.sampling import Sampling


def off(generate, target, draft, n, sampling=Sampling(), prompt=(0, 1), own=None, look=None, **how):
    """Total variation between n tokens by `generate` and by the plain decoding of `own`.

    own: the same target in its plain form, where `target` is another; look: is shown each
    generation; how: what else `generate` is given.
    """

    def program(rng):
        made = generate(target, draft, list(prompt), n, sampling=sampling, rng=rng, **how)
        if look is not None:
            look(made)
        return tuple(made.tokens)

    exact = exact_continuations(target if own is None else own, n, sampling, tuple(prompt))
    return total_variation(enumerate_outcomes(program), exact)
