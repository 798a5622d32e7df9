"""Bad input: what is refused, and in which words. The messages stand here whole, to be read aloud.

One line each: what was given, what is allowed, what to do. Nothing is decoded before a refusal.
Those of files, and what becomes of the files, are tested where files are: test_data,
test_checkpoint, test_train.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nanogpt import theory
from nanogpt.data import CharTokenizer
from nanogpt.drafts.ahead import Drafter, fan_out
from nanogpt.drafts.best import BestFirst
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.drafts.eagle import EagleDraft, EagleHead, EagleTree
from nanogpt.drafts.grown import Grown, counted_tree, sparse_tree
from nanogpt.drafts.itself import CopyDraft, EarlyExitDraft, round_to
from nanogpt.drafts.learning import LearningDraft, SoftTable
from nanogpt.drafts.lookahead import JacobiDraft, LookaheadDraft
from nanogpt.drafts.lookup import PromptLookupDraft, SuffixDraft, WideLookupDraft
from nanogpt.drafts.ngram import NGramAutomaton, count_ngrams
from nanogpt.drafts.parallel import BlockDraft, BlockDrafter
from nanogpt.drafts.protocol import Chain
from nanogpt.engines import serve
from nanogpt.engines.adapters import open_nanogpt
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.clock import prompts_of
from nanogpt.measure.service import Load
from nanogpt.measure.sizing import GPUS, Gpu, Plan, Shape, alpha_from_tokens, fit
from nanogpt.measure.traffic import arrivals, on_line
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.toys import random_draft, random_head, toy_target
from nanogpt.same import Favourites, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Constraints
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import accept_reject, speculative_generate
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.lossy import accept_fly, accept_mixture, accept_typical


class NoPass:
    """A target of three tokens that fails the test if a pass is made."""

    config, device = toy_target(3, 8).config, torch.device("cpu")

    def __call__(self, *_, **__):
        raise AssertionError("a pass was made")


def refusal(call) -> str:
    """The message with which `call` is refused: one line."""
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


def rows(*lists):
    return torch.tensor(lists, dtype=torch.float64)


@pytest.mark.parametrize("K", [0, -1, 2.0, None, True])
def test_K(K):
    assert refusal(lambda: speculative_generate(NoPass(), random_draft(3), [0], 5, K)) == (
        f"K is {K}; it must be a whole number from 1"
    )


DECODERS = {
    "autoregressive": autoregressive_generate,
    "speculative": lambda target, *request: speculative_generate(target, random_draft(3), *request),
}
OF_PROMPT = (
    "of the prompt is no whole number in 0 … 2; make tokens of text with this model's tokenizer"
)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "prompt,n,message",
    [
        ([], 5, "the prompt is empty; give at least one token to start from"),
        ([1, 3], 5, f"token 3 at index 1 {OF_PROMPT}"),
        ([-1], 5, f"token -1 at index 0 {OF_PROMPT}"),
        ("ROMEO:", 5, f"token 'R' at index 0 {OF_PROMPT}"),
        ([0.0], 5, f"token 0.0 at index 0 {OF_PROMPT}"),
        (torch.tensor([2]), 5, f"token tensor(2) at index 0 {OF_PROMPT}"),
        ([0], -1, "max_new_tokens is -1; it must be a whole number from 0"),
        ([0], 2.5, "max_new_tokens is 2.5; it must be a whole number from 0"),
        ([0], True, "max_new_tokens is True; it must be a whole number from 0"),
    ],
    ids=str,
)
def test_the_request(decoder, prompt, n, message):
    assert refusal(lambda: DECODERS[decoder](NoPass(), prompt, n)) == message


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_tokens_are_no_mistake(decoder):
    assert DECODERS[decoder](toy_target(3, 8), [0], 0).tokens == []


def test_a_draft_that_inherits_from_nothing():
    bare = SimpleNamespace(vocab_size=3, get_probs=random_draft(3).get_probs)
    says = "the draft is a SimpleNamespace; let its class inherit from nanogpt.speculative.Draft"
    for use, *more in (Chain, 0), (Grown, [2]), (BestFirst, 4), (Favourites, 4), (SoftTable, 0):
        assert refusal(lambda use=use, more=more: use(bare, *more)) == says
    for draft, said in (bare, says), (SimpleNamespace, says.replace("SimpleNamespace", "type")):
        assert refusal(lambda draft=draft: speculative_generate(NoPass(), draft, [0], 5)) == said


def test_a_draft_in_the_loop_of_trees():
    assert refusal(lambda: tree_generate(toy_target(3, 8), random_draft(3), [0], 5)) == (
        "the draft is a TableDraft and proposes no tree; `lifted`, of nanogpt.drafts.protocol, "
        "makes its chains trees"
    )


def test_vocabularies():
    assert refusal(lambda: speculative_generate(NoPass(), random_draft(4), [0], 5)) == (
        "the draft has a vocabulary of 4 tokens and the target one of 3; they must share one "
        "tokenizer"
    )


@pytest.mark.parametrize(
    "given,message",
    [
        *(
            (
                {"temperature": t},
                f"temperature is {t}; it must be finite and at least 0 (0 is greedy)",
            )
            for t in (-0.1, math.nan, math.inf)
        ),
        *(
            ({"top_k": k}, f"top_k is {k}; it must be a whole number from 1, or None")
            for k in (0, 2.5)
        ),
        *(
            ({"top_p": p}, f"top_p is {p}; it must be above 0 and at most 1, or None")
            for p in (0.0, 1.01, math.nan)
        ),
    ],
    ids=str,
)
def test_the_sampling_rule(given, message):
    assert refusal(lambda: Sampling(**given)) == message


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_the_seed(seed):
    assert (
        refusal(lambda: RandomSource(seed)) == f"seed is {seed}; it must be a whole number from 0"
    )


NEGATIVE = "probabilities hold a negative number or NaN; check the logits or weights"
OFF = "probabilities sum to 1 within {}, more than 1e-06; divide them by their sum"


@pytest.mark.parametrize(
    "wrong,message",
    [
        ([0.5, math.nan], NEGATIVE),
        ([1.5, -0.5], NEGATIVE),
        ([0.5, 0.4], OFF.format("1.0e-01")),
        ([0.5, 0.5 + 2e-6], OFF.format("2.0e-06")),
        ([math.inf, 0.0], OFF.format("inf")),
    ],
    ids=str,
)
def test_probabilities(wrong, message):
    p, wrong = rows([0.5, 0.5], [0.5, 0.5]), rows(wrong)
    rng = RandomSource(0)
    assert refusal(lambda: rng.categorical(wrong[0])) == message
    assert refusal(lambda: accept_reject([0], wrong, p, rng)) == message, "of the draft"
    for i in range(2):  # of the target, at the candidate or behind it
        broken = p.clone()
        broken[i] = wrong
        assert refusal(lambda p=broken: accept_reject([0], rows([0.5, 0.5]), p, rng)) == message


@pytest.mark.parametrize("probability", [-1e-9, 1.1, math.nan])
def test_a_probability(probability):
    assert refusal(lambda: RandomSource(0).bernoulli(probability)) == (
        f"probability is {probability}; it must be in [0, 1]"
    )


def test_a_candidate_that_the_draft_cannot_draw():
    p, q = rows(*[[0.5, 0.5]] * 3), rows([0.5, 0.5], [1.0, 0.0])
    assert refusal(lambda: accept_reject([0, 1], q, p, RandomSource(0))) == (
        "candidate 1 at index 1 has q = 0: the draft returned a token that it says it cannot draw; "
        "return the q that the token was drawn from"
    )


def test_a_character():
    assert refusal(lambda: CharTokenizer.from_text("caf").encode("café")) == (
        "character 'é' at index 3 is not among the 3 of the vocabulary; leave it out or write it "
        "with characters of the corpus"
    )


# ---- Every other bound of the package: just below it, far below, and, where there is one, above


def outside(make, what, *numbers):
    """Cases: what make(number) refuses with a message in which `what` stands."""
    return [pytest.param(make, what, x, id=f"{what.split()[0]} {x}") for x in numbers]


TOY, DRAFT = toy_target(3, 8), random_draft(3)
HEAD, BLOCKS = random_head(TOY), BlockDrafter(TOY.config, (1,), K=2)
ONE_ROW = np.zeros(1, int), np.zeros(1, int), torch.full((1, 3), 1 / 3)
MODEL = {"parameters": 7e9, "n_layer": 32, "entry": 2048}
SPARSE = MODEL | {"active": 1e9, "experts": 8, "chosen": 2}
PLAN = {"target": Shape(**MODEL), "gpu": GPUS["H100"]}
FIT = {(b, n): 1.0 for b in (1, 2) for n in (1, 2)}
BOUNDS = [
    *outside(lambda x: Constraints(min_p=x), "min_p", -0.1, -1, 1.1),
    *outside(lambda x: Constraints(repetition=x), "repetition", 0, -1, -2),
    *outside(lambda x: Constraints(bias={x: 1}).check(3), "token", -1, -2, 3, 4),
    *outside(lambda x: Constraints(stop=[[x]]).check(3), "token", -1, -2, 3, 4),
    *outside(lambda x: SameDice(0, x), "index", -1, -2, 0.5),
    *outside(lambda x: SameDice(x, 1), "seed", -1, -2, 0.5),
    *outside(lambda x: Favourites(DRAFT, x), "nodes", 0, -1, -2),
    *outside(lambda x: Favourites(DRAFT, 1, x), "sharpness", 0, -1, -2),
    *outside(lambda x: accept_typical(epsilon=x), "epsilon", -0.1, -1, math.nan),
    *outside(lambda x: accept_typical(delta=x), "delta", -0.1, -1, math.nan),
    *outside(lambda x: accept_fly(window=x), "window", 0, -1, -2),
    *outside(lambda x: accept_fly(threshold=x), "threshold", -0.1, -1, math.nan),
    *outside(lambda x: accept_fly(top_k=x), "top_k", 0, -1, -2),
    *outside(accept_mixture, "weight", -0.1, -1, 1.1, math.nan),
    *outside(lambda x: theory.expected_tokens(x, 2), "alpha", -0.1, -1, 1.1, math.nan),
    *outside(lambda x: theory.expected_tokens(0.5, x), "K", -1, -2),
    *outside(lambda x: BigramDraftModel(torch.tensor([1, x]), 3), "train_data", -1, -2, 3),
    *outside(lambda x: count_ngrams(torch.arange(3), 3, x), "order", -1, -2),
    *outside(lambda x: NGramAutomaton(*ONE_ROW, least=x), "least", -0.1, -1, 1.1, math.nan),
    *outside(lambda x: PromptLookupDraft(3, x), "most", 0, -1, -2),
    *outside(lambda x: WideLookupDraft(3, x), "most", 0, -1, -2),
    *outside(lambda x: SuffixDraft(3, x), "least", 0, -1, -2),
    *outside(lambda x: Grown(DRAFT, [2, x]), "widths", 0, -1, -2),
    *outside(lambda x: sparse_tree([[0.5]], x), "nodes", 0, -1, -2),
    *outside(lambda x: counted_tree([[0]], x), "nodes", 0, -1, -2),
    *outside(lambda x: BestFirst(DRAFT, x), "nodes", 0, -1, -2, 2.5, True),
    *outside(lambda x: JacobiDraft(3, x), "m is", 0, -1, -2),
    *outside(lambda x: LookaheadDraft(3, W=x), "W, N, G", 0, -1, -2),
    *outside(lambda x: LookaheadDraft(3, N=x), "W, N, G", 1, 0, -1),
    *outside(lambda x: LookaheadDraft(3, G=x), "W, N, G", -1, -2),
    *outside(lambda x: EarlyExitDraft(TOY, x, None), "blocks", 0, -1, -2, 2),
    *outside(lambda x: EarlyExitDraft(TOY, 1, None, x), "K", 0, -1, -2, 1.5, True),
    *outside(lambda x: CopyDraft(TOY, x), "K", 0, -1, -2, 1.5, True),
    *outside(lambda x: CopyDraft(TOY, window=x), "window", 0, -1, -2, "8"),
    *outside(lambda x: CopyDraft(TOY, window=1, sink=x), "sink", -1, -2),
    *outside(lambda x: round_to(torch.eye(2), x), "whole number from 2", 1, 0, -4, 2.0, True, None),
    *outside(lambda x: EagleHead(TOY.config, x), "two or more", (), (1,), (1, 0), (1, -1), (1, 2)),
    *outside(lambda x: EagleDraft(TOY, HEAD, x), "K", 0, -1, -2, 1.5, True),
    *outside(lambda x: EagleTree(TOY, HEAD, k=x), "k is", 0, -1, -2),
    *outside(lambda x: EagleTree(TOY, HEAD, nodes=x), "nodes", 0, -1, -2),
    *outside(lambda x: EagleTree(TOY, HEAD, K=x), "K is", 0, -1),
    *outside(lambda x: BlockDraft(TOY, BLOCKS, x), "has 1 to 2 places", 0, -1, -2, 3),
    *outside(lambda x: SoftTable(DRAFT, first=x), "first", -1, -2, 7),
    *outside(lambda x: SoftTable(DRAFT, prior=x), "prior", 0, -1, math.nan),
    *outside(lambda x: LearningDraft(SoftTable(DRAFT), x), "K", 0, -1, -2, 1.5, True),
    *outside(lambda x: fan_out(x, 2, 0.5), "budget", 0, -1, -2),
    *outside(lambda x: fan_out(2, x, 0.5), "K", 0, -1, -2),
    *outside(lambda x: fan_out(2, 2, x), "a ", 0, -1, 1, 2),
    *outside(lambda x: fan_out(2, 2, 0.5, x), "r ", 0, -1, -2),
    *outside(lambda x: Drafter(DRAFT, 1, [1, x]), "fans", -1, -2),
    *outside(lambda x: Drafter(DRAFT, x, [1] * (x + 1)), "K", 0, -1, -2),
    *outside(lambda x: Drafter(DRAFT, 1, [1] * x), "fans", 0, 1, 3),
    *outside(lambda x: Drafter(DRAFT, 1, [1, 1], x), "C", 0, -1, 1.1, math.nan),
    *outside(lambda x: BlockPool(TOY.config, x, 1, torch.zeros(1)), "blocks", 0, -1, True),
    *outside(lambda x: BlockPool(TOY.config, 1, x, torch.zeros(1)), "size", 0, -1, True),
    *[
        case
        for name in Limits.__dataclass_fields__
        for case in outside(lambda x, name=name: Limits(**{name: x}), name, 0, -1, -2, True)
    ],
    *outside(lambda x: Server(TOY, DRAFT, K=x), "K", -1, -2, True),
    *outside(lambda x: Server(TOY, DRAFT, nodes=x), "nodes", -1, -2, True),
    *outside(lambda x: Server(TOY, DRAFT, policy=lambda _: x), "policy", -1, -2, True),
    *outside(lambda x: Server(TOY).submit([x], 1), "prompt", -1, -2, 3),
    *outside(lambda x: Server(TOY).cancel(x), "request", -1, 0, 1),
    *outside(lambda x: open_nanogpt(None, bug=x), "bug", 0, -1, -2, len(BUGS) + 1),
    *outside(lambda x: serve.open_server(x), "bug", 0, -1, -2, len(BUGS) + 1),
    *outside(lambda x: serve.open_server(K=x), "K", 0, -1, -2, True),
    *outside(lambda x: serve.open_server(port=x), "port", -1, 70000, True),
    *outside(lambda x: arrivals(x, 2), "rate", 0, -1, math.inf, math.nan),
    *outside(lambda x: arrivals(1, 2, 0, x), "burstiness", 0, -1, math.inf, math.nan),
    *outside(lambda x: on_line(x, [2, 4], [1.0, 2.0]), "measured", 1, 0, -1),
    *outside(lambda x: on_line(x, [2], [1.0]), "measured", 1, 3),
    *outside(lambda x: Load([None] * 2, None).after(x), "requests", -1, -2, 2, 3),
    *outside(lambda x: prompts_of(torch.arange(22), x), "prompts", 3, 4),
    *[
        case
        for name in ("parameters", "n_layer", "entry", "weight_bytes", "value_bytes")
        for case in outside(lambda x, name=name: Shape(**MODEL | {name: x}), name, 0, -1, math.inf)
    ],
    *[
        case
        for name in ("cached_heads", "attention", "expert_bytes", "window")
        for case in outside(lambda x, name=name: Shape(**MODEL | {name: x}), name, -1, math.nan)
    ],
    *outside(lambda x: Shape(**SPARSE | {"active": x}), "active", -1, -2, 8e9),
    *outside(lambda x: Shape(**SPARSE | {"chosen": x}), "active", 0, -1, 8, 9),
    *[
        case
        for name in ("gpus", "context")
        for case in outside(lambda x, name=name: Plan(**PLAN, **{name: x}), name, 0, -1, math.nan)
    ],
    *outside(lambda x: Plan(**PLAN, alpha=x), "alpha", -0.1, -1, 1.1, math.nan),
    *outside(lambda x: Plan(**PLAN, utilisation=x), "utilisation", 0, -0.1, 1.1, math.nan),
    *outside(lambda x: Plan(**PLAN, overhead=x), "overhead", -1, math.inf),
    *outside(lambda x: Plan(PLAN["target"], Gpu(x, 1, 1)), "memory", 0, -1),
    *outside(lambda x: Plan(PLAN["target"], Gpu(1, x, 1)), "bandwidth", 0, -1),
    *outside(lambda x: Plan(PLAN["target"], Gpu(1, 1, x)), "flops", 0, -1),
    *outside(lambda x: Plan(PLAN["target"], Gpu(1, 1, 1, x)), "narrow", -1, -2),
    *outside(lambda x: Plan(PLAN["target"], Gpu(1, 1, 1, 0, x)), "narrow", -1, -2),
    *outside(lambda x: alpha_from_tokens(x, 3), "tokens", 0, 0.9, -1, 4.1, math.nan),
    *outside(lambda x: alpha_from_tokens(1, x), "K", 0, -1),
    *outside(lambda x: fit(FIT | {(1, 1): x}), "cells", 0, -1, math.nan),
]


OF_ALL = "train_data", "blocks", "fans", "active", "cells"  # these say what is there, or allowed


@pytest.mark.parametrize(("make", "what", "number"), BOUNDS)
def test_a_number_outside_its_bounds_is_refused_by_its_name(make, what, number):
    message = refusal(lambda: make(number))
    assert what in message and (str(number) in message or what in OF_ALL)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda x: Constraints(min_p=x), (0, 1)),
        (lambda x: Constraints(bias={x: 1}).check(3), (0, 2)),
        (lambda x: SameDice(x, x), (0,)),
        (lambda x: accept_typical(x, x), (0,)),
        (lambda x: accept_fly(1, x, 1), (0,)),
        (accept_mixture, (0, 1)),
        (lambda x: theory.expected_tokens(x, 0), (0, 1)),
        (lambda x: count_ngrams(torch.arange(3), 3, x), (0,)),
        (lambda x: LookaheadDraft(3, 1, 2, x), (0,)),
        (lambda x: CopyDraft(TOY, window=1, sink=x), (0,)),
        (lambda x: BlockDraft(TOY, BLOCKS, x), (1, 2, None)),
        (lambda x: Drafter(DRAFT, 1, [x, x]), (0,)),
        (lambda x: Drafter(DRAFT, 1, [1, 1], x), (0.1, 1)),
        (lambda x: Server(TOY, DRAFT, K=x), (0, None)),
        (lambda x: Server(TOY, DRAFT, nodes=x), (0, None)),
        (lambda x: on_line(x, [2, 4], [1.0, 2.0]), (2, 3, 4, 5)),
        (lambda x: Load([None] * 2, None).after(x), (0, 1)),
        (lambda x: prompts_of(torch.arange(22), x), (1, 2)),
        (lambda x: Plan(**PLAN, alpha=x), (0, 1)),
        (lambda x: Plan(**PLAN, utilisation=x), (0.1, 1)),
        (lambda x: alpha_from_tokens(x, 3), (1, 4)),
    ],
)
def test_a_number_on_its_bound_is_taken(make, number):
    for one in number:
        make(one)


def test_a_pass_has_no_half_token():
    assert "tokens is 40.5" in refusal(lambda: Limits(max_num_batched_tokens=40.5))


def test_no_guesses_are_a_number_of_guesses_and_none_is_the_default():
    policies = [Server(TOY, DRAFT, K=K).policy for K in (0, 1, None)]
    assert [policy(1) for policy in policies] == [0, 1, 4]
