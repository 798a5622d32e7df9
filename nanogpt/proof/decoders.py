"""Decoders to be checked, with `speculative_generate`'s arguments or with `batch_generate`'s.

`decoder(accept=mine)` is the package's loop with a step of your own; the others put a tree, a
batch, a server, a paged cache, a second process, the same dice, constraints, a target with a state
or drafts that learn behind the same signature. `KINDS` is the table of them all: what holds them to
their word, and the chapter that shows their bugs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from nanogpt.drafts.adaptive import adaptive
from nanogpt.drafts.ahead import AheadDraft, Drafter, Inline
from nanogpt.drafts.best import BestFirst
from nanogpt.drafts.eagle import EagleDraft, EagleHead
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.hybrid import Hybrid, repeats
from nanogpt.drafts.learning import LearningDraft, NetStudent, SoftTable
from nanogpt.drafts.pairs import PairDraft
from nanogpt.drafts.protocol import lifted
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.proof import toys
from nanogpt.same import SAME, SAME_TREE, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate, one_each
from nanogpt.serving.budget import budget_generate
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.overlap import OverlapServer
from nanogpt.serving.paged import BlockPool, on_pool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.trees.loop import TREE, propose_tree, tree_generate
from nanogpt.trees.rules import accept_blockwise
from nanogpt.trees.tree import Proposer

Decoder = Callable[..., Generation]
BatchDecoder = Callable[..., list[Generation]]


def decoder(draft: Callable | None = None, **steps: Callable) -> Decoder:
    """`speculative_generate` with some of its steps replaced: verify, accept, trim.

    draft: in place of draft_tokens; it takes and returns what that does.
    """
    if draft:
        steps["draft"] = lambda own, text, K, *how: draft(own, text.tokens, min(K, text.room), *how)
    return functools.partial(speculative_generate, steps=replace(CHAIN, **steps))


def one_by_one(decode: Callable[..., Generation]) -> Callable[..., list[Generation]]:
    """A decoder of one text as one of several, with the arguments of batch_generate."""

    def generate(target, draft, prompts, n, K, sampling, rngs, **asked):
        pairs = zip(prompts, rngs, strict=True)
        return [
            decode(target, draft, prompt, n, K, sampling, rng, **asked) for prompt, rng in pairs
        ]

    return generate


def tree_decoder(siblings: str, widths: Sequence[int] = (2, 1), **steps: Callable) -> Decoder:
    """`tree_generate` with speculative_generate's arguments: K is the depth of the tree.

    The first levels have these `widths`, the rest 1; `siblings` is as in Grown. At temperature 0
    the tree grows from the draft's q at temperature 1: of the sampled one, all siblings would be
    the same. steps: in place of TREE's, verify, accept and trim.
    """

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **named
    ):
        trees = Grown(draft, [*widths[:K], *[1] * (K - len(widths))], siblings)
        if sampling.temperature == 0:
            propose = trees.propose
            trees.propose = lambda text, most, _, rng: propose(text, most, Sampling(), rng)
        asked = target, trees, prompt_tokens, max_new_tokens, sampling, rng
        return tree_generate(*asked, steps=replace(TREE, **steps), **named)

    return generate


def eagle_decoder(target, draft, prompt_tokens, max_new_tokens, K=4, *given, **named) -> Generation:
    """`tree_generate` with an EagleDraft of K guesses, and speculative_generate's arguments.

    The draft given is an EagleHead; in place of any other, there is a random one, on the hidden
    states.
    """
    head = draft if isinstance(draft, EagleHead) else toys.random_head(target)
    chain = EagleDraft(target, head, K)
    return tree_generate(target, chain, prompt_tokens, max_new_tokens, *given, **named)


def ahead_decoder(
    target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **named
) -> Generation:
    """`tree_generate` with an AheadDraft, and speculative_generate's arguments.

    Its drafter runs in this process and draws from the same rng, so that all of it is enumerated.
    It prepares one outcome for each number of accepted guesses; the others are misses.
    """
    ahead = AheadDraft(Inline(Drafter(draft, K, [1] * (K + 1))), shared=True)
    rng = rng or RandomSource(0)
    return tree_generate(target, ahead, prompt_tokens, max_new_tokens, sampling, rng, **named)


def hybrid_decoder(
    target, draft, prompt_tokens, max_new_tokens, K=4, *given, **named
) -> Generation:
    """`tree_generate` with a Hybrid of the draft and a random one, both drawn; K is its depth."""
    other = toys.random_draft(target.config.vocab_size, seed=7)
    both = Hybrid(lambda context: repeats(context, 1), lifted(draft, K), lifted(other, K))
    return tree_generate(target, both, prompt_tokens, max_new_tokens, *given, **named)


def pairs_decoder(target, draft, *given, **named) -> Generation:
    """`speculative_generate` with a draft that reads byte pairs, in place of any that does not."""
    if not isinstance(draft, PairDraft):
        draft = toys.toy_pairs(target.config.vocab_size)
    return speculative_generate(target, draft, *given, **named)


def same_decoder(
    target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **named
) -> Generation:
    """Chains by SAME, trees by SAME_TREE, with speculative_generate's arguments.

    A draft of None is none: plain decoding, by the same dice. The rng is a SameDice, by default of
    seed 0. A Proposer has a depth of its own.
    """
    named |= {"sampling": sampling, "rng": rng or SameDice(0, len(prompt_tokens))}
    if draft is None:
        return autoregressive_generate(target, prompt_tokens, max_new_tokens, **named)
    asked = target, draft, prompt_tokens, max_new_tokens
    if isinstance(draft, Proposer):
        return tree_generate(*asked, steps=SAME_TREE, **named)
    return speculative_generate(*asked, K, steps=SAME, **named)


def constrained_decoder(
    target,
    draft,
    prompt_tokens,
    max_new_tokens,
    K=4,
    *given,
    constraints=Constraints(),
    **named,
) -> Generation:
    """`complete` with speculative_generate's arguments, and `constraints` by name.

    A draft of None is none: plain decoding under the same constraints.
    """
    asked = prompt_tokens, max_new_tokens, constraints
    return complete(target, *asked, draft, K, *given, **named)


def state_decoder(
    target, draft, prompt_tokens, max_new_tokens, K=4, *given, policy=None, **named
) -> Generation:
    """Chains, or trees where the draft is a Proposer, with speculative_generate's arguments.

    For targets with a state. policy: of a chain.
    """
    asked = target, draft, prompt_tokens, max_new_tokens
    if isinstance(draft, Proposer):
        return tree_generate(*asked, *given, **named)
    if policy:
        named["steps"] = replace(CHAIN, draft=adaptive(policy))
    return speculative_generate(*asked, K, *given, **named)


def server_decoder(
    target,
    draft,
    prompts,
    max_new_tokens,
    K=4,
    samplings=Sampling(),
    rngs=None,
    stop_token=None,
    constraints=Constraints(),
    in_turn=False,
    kind=Server,
    **settings,
) -> list[Generation]:
    """A server of a kind, with batch_generate's arguments, and its own by name. Its seed is 0.

    The server's K is the largest of all, and a request's draft step guesses no more than its own.
    in_turn: each request comes when the one before is answered.
    """
    B, Ks = len(prompts), one_each(K, len(prompts))
    settings = {"limits": Limits(B, max(256, B)), "seed": 0} | settings
    server = kind(target, draft, max(Ks), **settings)

    def steps(K):
        def propose(draft, text, most, *how):
            return propose_tree(draft, text, min(most, K), *how)

        return TREE if isinstance(draft, Proposer) else replace(TREE, draft=propose)

    asked = max_new_tokens, samplings, rngs, stop_token, constraints
    each = [one_each(x, B) for x in asked]
    order, answers = [], {}
    for *request, own in zip(prompts, *each, Ks, strict=True):
        order.append(server.submit(*request, steps=steps(own)))
        while in_turn and order[-1] not in answers:
            answers |= server.step()
    while len(answers) < B:
        answers |= server.step()
    return [answers[number] for number in order]


def paged_decoder(target, *given, **named) -> list[Generation]:
    """server_decoder on a pool of blocks, the target's own if it has one."""
    pooled = isinstance(getattr(target, "cache", None), BlockPool)
    return server_decoder(target if pooled else on_pool(target, 1024, 3), *given, **named)


TABLE = {"first": 0, "order": 2, "prior": 1.0}  # of a SoftTable in a learning_decoder
NET = {"every": 2, "rate": 0.05}  # of a NetStudent there


def learning_decoder(
    target, draft, prompts, max_new_tokens, K=4, *given, shared=False, **named
) -> list[Generation]:
    """`batch_generate` with drafts that learn, each text for itself or, with `shared`, from all.

    A TransformerDraft becomes a NetStudent, any other draft with get_probs a SoftTable over it; of
    a Grown one, the draft that it grows from.
    """
    draft = draft.draft if isinstance(draft, Grown) else draft
    if isinstance(draft, TransformerDraft):
        student = NetStudent(draft, **NET).copy()
    else:
        student = SoftTable(draft, **TABLE)
    Ks = one_each(K, len(prompts))
    made = {k: LearningDraft(student, k, shared) for k in set(Ks)}
    drafts = [made[k] for k in Ks]
    return batch_generate(target, drafts, prompts, max_new_tokens, Ks, *given, **named)


def budget_decoder(target, draft, prompts, max_new_tokens, K=4, *given, **named):
    """`budget_generate` with batch_generate's arguments: the sum of all K is one budget.

    Guesses are drawn, siblings as well. Of a Grown draft, the one that it grows from guesses.
    """
    draft = draft.draft if isinstance(draft, Grown) else draft
    nodes = sum(one_each(K, len(prompts)))
    growing = BestFirst(draft, nodes, sure=lambda q: float(q.max()) ** 0.5)
    return budget_generate(target, growing, prompts, max_new_tokens, *given, **named)


class Kind(NamedTuple):
    """A kind of decoder: its function, the names of the checks that it has to pass, and a chapter.

    The bugs of its kind are shown there.
    """

    decoder: Decoder | BatchDecoder
    checks: str
    chapter: str


ONE = "exact greedy cache accounting"  # text
TREES = ONE + " frequencies acceptance draft support nodes rounds"
SOME = "alone product independent ragged leaving"  # texts

KINDS = {
    "chain": Kind(speculative_generate, TREES, "08"),
    "block": Kind(decoder(accept=accept_blockwise), TREES.replace(" acceptance", ""), "17"),
    "with": Kind(tree_decoder("with"), TREES, "17"),
    "without": Kind(tree_decoder("without"), TREES, "17"),
    "fixed": Kind(tree_decoder("fixed", (2, 2)), TREES + " second", "17"),
    "eagle": Kind(eagle_decoder, TREES.replace(" draft", " incremental alpha"), "19"),
    "batch": Kind(batch_generate, SOME, "23"),
    "server": Kind(server_decoder, SOME + " preemption turns held memory", "24"),
    "overlap": Kind(
        functools.partial(server_decoder, kind=OverlapServer),
        SOME + " preemption turns held memory",
        "24",
    ),
    "paged": Kind(paged_decoder, SOME + " pool publish leftovers", "25"),
    "ahead": Kind(ahead_decoder, ONE + " acceptance draft outcomes", "26"),
    "same": Kind(same_decoder, "same fair", "30"),
    "constrained": Kind(constrained_decoder, "constraints stops logprobs", "31"),
    "pairs": Kind(pairs_decoder, ONE + " spelling", "32"),
    "state": Kind(state_decoder, ONE + " states", "33"),
    "prefix": Kind(functools.partial(server_decoder, in_turn=True), "prefix", "33"),
    "learning": Kind(
        learning_decoder, "product independent ragged leaving taught apart lessons", "34"
    ),
    "budget": Kind(budget_decoder, "product independent ragged", "35"),
    "hybrid": Kind(hybrid_decoder, ONE, "35"),
}
