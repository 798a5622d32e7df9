"""The judge of chapter 09's *Your turn*: the expected tokens of a round."""

from __future__ import annotations

from collections.abc import Callable

from nanogpt.exact import enumerate_outcomes


def expected_tokens(mine: Callable) -> None:
    """Judges the mean tokens of a round (chapter 09) by all ways its coins can fall.

    Raises AssertionError with the name of the slip, where it is a well-known one.
    """

    def coins(rng, alpha, K):
        kept = 0
        while kept < K and rng.bernoulli(alpha):
            kept += 1
        return kept + 1

    cases = [(0.6, 3), (0.3, 1), (0.8, 5), (1.0, 4), (0.0, 3), (0.5, 0), (1.0, 0), (0.0, 0)]
    for alpha, K in cases:
        outcomes = enumerate_outcomes(lambda rng, a=alpha, k=K: coins(rng, a, k))
        right = sum(tokens * probability for tokens, probability in outcomes.items())
        where = f"α = {alpha}, K = {K}"
        try:
            got = mine(alpha, K)
        except ZeroDivisionError as error:
            raise AssertionError(f"{where}: a division by zero, but the mean is {right}") from error
        assert got is not None, f"{where}: it returns nothing; the mean of a round is a number"
        try:
            got = float(got + 0)  # float alone would take a string
        except (TypeError, ValueError, RuntimeError):
            raise AssertionError(f"{where}: return one number, the mean, not {got!r}") from None
        slips = {
            right + alpha**K: "the bonus token is counted twice; it is in the sum already",
            right + alpha ** (K + 1): "one term too many; K candidates bring at most K + 1 tokens",
            right - 1: "that counts the accepted candidates; the target adds one token of its own",
            right - alpha**K: "one term too few: α^K, for the round in which all are accepted",
            right - (K + 1) * alpha**K: "the outcome in which all are accepted is missing",
            1 + K * alpha: "that examines candidate i even where an earlier one was rejected",
        }
        near = [why for slip, why in slips.items() if abs(slip - got) < 1e-4]
        if not near and 1e-4 <= abs(got - right) < 0.1:
            near = ["close; if you toss coins, do not: work out the exact mean"]
        assert abs(got - right) < 1e-4, (  # an answer in float32 is right, too
            f"{where}: {got:.4f}, but all ways a round can go give {right:.4f} on average"
            f"{': ' + near[0] if near else ''}"
        )
