"""The judge of chapter 19's *Your turn*: which feature stands beside which token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def feature_pairs(mine: Callable) -> None:
    """Judges my_pairs(hidden (P, F), tokens, known): the pairs that the drafter has not read yet.

    It is asked in the middle of a text, at its start, after a restart, and for the last pair alone.
    Raises AssertionError for a token beside its own feature, or two places on, for pairs that are
    counted from the text's start, for those known already, and for wrong shapes.
    """
    for n, P, known, where in (
        (9, 8, 5, "three tokens were accepted"),
        (6, 5, 0, "nothing is known yet"),
        (9, 4, 1, "a restart has dropped the oldest features"),
        (12, 5, 0, "a restart has just happened"),
        (7, 6, 5, "one pair is new"),
    ):
        hidden = torch.arange(1.0, 2 * P + 1).view(P, 2)
        tokens = [(7 * i + 3) % 11 for i in range(n)]
        case = f"{n} tokens, {P} features, {known} pairs known ({where})"
        given = list(tokens), hidden.clone()
        got = mine(hidden, tokens, known)
        assert isinstance(got, (tuple, list)) and len(got) == 2, (
            f"{case}: {type(got).__name__} came back; return two things, the features and the "
            "tokens beside them"
        )
        assert tokens == given[0] and torch.equal(hidden, given[1]), (
            f"{case}: the text's own tokens or features were changed; copy what you need"
        )
        try:
            features = torch.as_tensor(got[0]).double().view(-1, 2)
            after = torch.as_tensor(got[1]).long().flatten().tolist()
        except (TypeError, ValueError, RuntimeError):
            raise AssertionError(
                f"{case}: {got[0]!r} and {got[1]!r} came; the features are a tensor "
                f"{(P - known, 2)}, the tokens a list or a tensor of {P - known} whole numbers"
            ) from None
        right = tokens[known - P :]
        fault = slip(features, after, hidden.double(), tokens, known)
        new = hidden[known:].double()
        assert features.shape == new.shape and torch.equal(features, new), (
            f"{case}: {len(features)} features came, where the last {len(new)} are wanted, those "
            f"of the tokens whose pairs are new{fault}"
        )
        assert after == right, (
            f"{case}: the tokens beside the features are {after}, not {right}, of {tokens}{fault}"
        )


def slip(features: Tensor, after: list, hidden: Tensor, tokens: list, known: int) -> str:
    """What is wrong with these pairs, features (n, F) and the tokens after them, or "".

    hidden (P, F): those of the cached tokens; tokens: all, the current one last.
    """
    n, P = len(tokens), len(hidden)
    own = tokens[n - 1 - P : n - 1]  # the tokens that the features belong to
    slips = [
        ("; all pairs came again: leave out those that are known", len(features) == P > P - known),
        (
            "; each feature stands beside its own token: it meets the one that was drawn from it, "
            "the token after",
            after in (own[known:], own),
        ),
        (
            "; a token two places on is not drawn yet when the guess is made: the last pair ends "
            "with the current token",
            len(after) > 1 and after[:-1] == tokens[known - P :][1:],
        ),
        (
            "; the current token is missing: it stands beside the last feature",
            after == tokens[known - P : -1],
        ),
        (
            "; you counted from the text's start: after a restart the first feature is not the "
            "first token's, so count from the end",
            n - 1 > P and after[:1] == tokens[known + 1 : known + 2],
        ),
        (
            "; you counted from the text's start: after a restart the first feature is not the "
            "first token's, so count from the end",
            n - 1 > P and after[:1] == tokens[known : known + 1],
        ),
    ]
    return next((said for said, holds in slips if holds), "")
