"""Draft lengths chosen while decoding: `adaptive(policy)` is a draft step that chooses them.

Before each round, policy(rounds so far) returns the most tokens to draft, and `more`, or None.
Before each draw, more(q, n) says whether to make it. Neither ever sees a token that may be dropped
again. That keeps the output exact: a rule that looks at a drawn token, and then leaves it out, is
biased (unless the token was never drawn, but is a function of q).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import DATA_DIR
from nanogpt.generate import Round, Text
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import Draft
from nanogpt.theory import best_K

MOST = 16  # tokens drafted in a round
STOP = DATA_DIR / "checkpoints" / "stop.safetensors"
More = Callable[[Tensor, int], bool]
Policy = Callable[[list[Round]], tuple[int, More | None]]


def draft_while(
    draft: Draft,
    context: Sequence[int],
    most: int,
    sampling: Sampling,
    rng: RandomSource,
    more: More,
) -> tuple[list[int], Tensor]:
    """What draft_tokens returns, of the tokens that are drawn while `more` says so, and `most`.

    more(q, n) is asked before each draw, after n tokens have been drawn, whether to draw from q at
    all. It never sees the token.
    """
    tokens, draft_probs = list(context), []
    for n in range(most):
        q = sampling.of_probs(draft.get_probs(tokens))  # (V,)
        if not more(q, n):
            break
        draft_probs.append(q)
        tokens.append(rng.categorical(q))
    q = torch.stack(draft_probs) if draft_probs else torch.empty(0, draft.vocab_size).double()
    return tokens[len(context) :], q


def adaptive(policy: Policy) -> Callable:
    """The draft step in which a policy chooses how many tokens, in place of K."""

    def draft(own: Draft, text: Text, K: int, sampling: Sampling, rng: RandomSource):
        most, more = policy(text.rounds)
        asked = text.tokens, min(most, text.room), sampling, rng
        return draft_while(own, *asked, more) if more else own.draw(*asked)

    return draft


def by_acceptance(
    draft_cost: float,
    verify_cost: Callable[[int], float],
    rest: float = 0.0,
    memory: int = 24,
    imagined: tuple[int, int] = (16, 13),
) -> Policy:
    """The K that the speed-up equation calls best at the α of the last `memory` rounds.

    draft_cost, verify_cost, rest: as in nanogpt.theory.best_K. imagined: candidates examined and
    accepted before anything is known, so that the first rounds cannot throw the estimate off.
    """
    best = [best_K(i / 100, draft_cost, verify_cost, rest, MOST) for i in range(101)]

    def policy(rounds):
        examined, accepted = imagined
        for r in rounds[-memory:]:
            examined += r.n_examined
            accepted += r.n_accepted
        return best[round(100 * accepted / examined)], None

    return policy


def while_it_pays(K: int, low: float, high: float, memory: float = 8, pause: int = 16) -> Policy:
    """K guesses a round while they pay, and none for a while where they do not.

    low: the tokens a round at which guessing is just as fast as not, what a round of K guesses
    costs in passes; high: more than that. The mean of about the last `memory` rounds with guesses
    begins between the two. Below low, guessing pauses, for `pause` rounds, and is then tried anew.
    Until the mean exceeds high, each pause is twice as long as the one before.
    Each text is judged by its own rounds, also where one policy serves several; with one for each,
    no round is read twice. Raises ValueError unless low < high, or it would flip at
    random, and pause and memory are at least 1.
    """
    if not (low < high and memory >= 1 and pause >= 1):
        raise ValueError(
            f"low is {low}, high {high}, memory {memory} and pause {pause}; it takes low < high, "
            "and the others from 1"
        )
    begin = (low + high) / 2, 0, pause  # the mean, rounds left of a pause, the next pause
    known: tuple = [], 0, begin

    def policy(rounds):
        nonlocal known
        its, n, (mean, left, wait) = known
        if its is not rounds or len(rounds) < n:  # another text
            n, (mean, left, wait) = 0, begin
        for r in rounds[n:]:
            if left:
                left -= 1
            elif r.candidates:  # a round without room for guesses says nothing of them
                mean += (len(r.emitted) - mean) / memory
                if mean > high:
                    wait = pause
                elif mean < low:
                    mean, left, wait = begin[0], wait, 2 * wait
        known = rounds, len(rounds), (mean, left, wait)
        return 0 if left else K, None

    return policy


def draft_entropy(q: Tensor) -> float:
    """The entropy of q (V,) in nats: 0 where the draft is sure, log V where it knows nothing."""
    q = q.numpy()
    return -float(q @ np.log(np.maximum(q, 1e-300)))


def by_entropy(budget: float) -> Policy:
    """Drafts while the entropies of the drafted tokens' q add up to at most `budget` nats.

    At least 1 token and at most 16. A rule of our own: AdaEDL (Agrawal et al. 2024) looks at the
    same entropy, but compares a bound on the acceptance of the one coming token to a threshold.
    """

    def policy(rounds):
        spent = 0.0

        def more(q, n):
            nonlocal spent
            spent += draft_entropy(q)
            return n == 0 or spent <= budget

        return MOST, more

    return policy


def features(q: Tensor) -> tuple[float, float, float]:
    """What the learned stop sees of q (V,): 1, the largest probability, the sum of squares."""
    q = q.numpy()
    return 1.0, float(q.max()), float(q @ q)


class StopRule:
    """Predicts from q alone how likely a draw from it is to be accepted: a logistic function.

    weights (3,): of `features`.
    """

    def __init__(self, weights: list[float]):
        self.weights = weights

    def __call__(self, q: Tensor) -> float:
        score = sum(w * x for w, x in zip(self.weights, features(q), strict=True))
        return 1 / (1 + math.exp(-score))


def fit_stop(x: Tensor, alpha: Tensor) -> StopRule:
    """The stop rule of the largest likelihood, by Newton's method.

    x (N, 3): features; alpha (N,): how likely each was accepted, Σ min(p, q). Logistic regression
    on probabilities instead of outcomes, so that no sampling noise is in it.
    """
    weights = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(30):
        predicted = torch.sigmoid(x @ weights)
        gradient = x.T @ (alpha - predicted)
        curvature = (x * (predicted * (1 - predicted))[:, None]).T @ x
        weights += torch.linalg.solve(curvature, gradient)
    return StopRule(weights.tolist())


def save_stop(stop: StopRule, facts: dict, path: Path = STOP) -> None:
    """Write a stop rule and the facts of its fit."""
    weights = torch.tensor(stop.weights, dtype=torch.float64)
    checkpoint.save_tensors(path, {"weights": weights}, {"facts": facts})


def load_stop(path: Path = STOP) -> StopRule:
    """The stop rule in a file.

    Raises FileNotFoundError if there is no such file, ValueError if it is none of ours.
    """
    _, tensors = checkpoint.load_tensors(path, ["weights"], "python data/make_drafts.py stop")
    return StopRule(tensors["weights"].tolist())
