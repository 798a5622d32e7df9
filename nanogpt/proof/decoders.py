"""Decoders to be checked, all with `speculative_generate`'s arguments.

`decoder(accept=mine)` is the package's loop with a step of your own; the others put a tree, a
batch, a server, a paged cache, a second process, the same dice, constraints, a target with a state
or drafts that learn behind the same signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanogpt import generate, same, speculative
from nanogpt.drafts import adaptive, ahead, best, eagle, grown, hybrid, learning, pairs
from nanogpt.drafts.protocol import lifted
from nanogpt.generate import Generation
from nanogpt.proof.toys import Watched, random_draft, random_head, toy_pairs
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving import batch, budget, constraints, paged, server
from nanogpt.serving.server import Limits
from nanogpt.speculative import CHAIN, speculative_generate
from nanogpt.trees import loop as tree_loop

Decoder = Callable[..., Generation]
BatchDecoder = Callable[..., list[Generation]]


def decoder(draft: Callable | None = None, **steps: Callable) -> Decoder:
    """`speculative_generate` with some of its steps replaced: verify, accept, trim.

    draft: in place of draft_tokens; it takes and returns what that does.
    """
    if draft:
        steps["draft"] = lambda own, text, K, *how: draft(own, text.tokens, min(K, text.room), *how)
    return functools.partial(speculative_generate, steps=replace(CHAIN, **steps))


def tree_decoder(
    siblings: str, widths: Sequence[int] = (2, 1), accept=None, module=tree_loop, drafts=grown
) -> Decoder:
    """`tree_generate` with speculative_generate's arguments: K is the depth of the tree.

    The first levels have these `widths`, the rest 1; `siblings` is as in Grown. At temperature 0
    the tree grows from the draft's q at temperature 1: of the sampled one, all siblings would be
    the same. accept: another rule than accept_tree. module, drafts: where the loop and Grown are.
    """

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        trees = drafts.Grown(draft, [*widths[:K], *[1] * (K - len(widths))], siblings)
        if sampling.temperature == 0:
            propose = trees.propose
            trees.propose = lambda text, most, _, rng: propose(text, most, Sampling(), rng)
        steps = replace(module.TREE, accept=accept) if accept else module.TREE
        return module.tree_generate(
            target, trees, prompt_tokens, max_new_tokens, sampling, rng, steps=steps, **kwargs
        )

    return generate


def eagle_decoder(module=eagle, loop=tree_loop) -> Decoder:
    """`tree_generate` with an EagleDraft of K guesses, and speculative_generate's arguments.

    The draft given is an EagleHead; in place of any other, there is a random one, on the hidden
    states. module, loop: where the draft and tree_generate come from.
    """

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        given = isinstance(draft, module.EagleHead)
        head = draft if given else random_head(target, cls=module.EagleHead)
        return loop.tree_generate(
            target,
            module.EagleDraft(target, head, K),
            prompt_tokens,
            max_new_tokens,
            sampling=sampling,
            rng=rng,
            **kwargs,
        )

    return generate


def paged_decoder(module=batch, pages=paged, blocks: int = 1024, size: int = 3) -> BatchDecoder:
    """`batch_generate` with texts that share blocks, on a pool, the target's own if it has one.

    A text that is done is dropped, and its blocks with it. module, pages: where batch_round and
    SharedText come from.
    """

    def generate(
        target,
        draft,
        prompts,
        max_new_tokens,
        K=4,
        samplings=Sampling(),
        rngs=None,
        stop_token=None,
    ):
        if not hasattr(getattr(target, "cache", None), "free"):
            inner = target.target if isinstance(target, Watched) else target
            pool = pages.on_pool(inner, blocks, size)
            target = target.around(pool) if isinstance(target, Watched) else pool
        B = len(prompts)
        each = (module.one_each(x, B) for x in (max_new_tokens, stop_token, K, samplings))
        rngs = [RandomSource(b) for b in range(B)] if rngs is None else rngs
        running, answers = {}, {}
        for b, (prompt, n, stop, *own) in enumerate(zip(prompts, *each, strict=True)):
            of = target, prompt, n, stop  # no name is kept for the text: it would hold its blocks
            K, sampling = own
            chain = module.lifted(draft, K)
            running[b] = module.Seat(pages.SharedText(*of), chain, sampling, rngs[b])
        while running:
            for b in [b for b, seat in running.items() if seat.text.done]:
                answers[b] = running.pop(b).text.generation()
            if running:
                module.batch_round(target, list(running.values()))
        return [answers[b] for b in range(B)]

    return generate


def server_decoder(module=server) -> BatchDecoder:
    """A `Server` with batch_generate's arguments, and its own by name. K is the largest of all.

    Its seed is 0.
    """

    def generate(
        target,
        draft,
        prompts,
        max_new_tokens,
        K=4,
        samplings=Sampling(),
        rngs=None,
        stop_token=None,
        **own,
    ):
        B = len(prompts)
        own = {"limits": Limits(B, max(256, B)), "seed": 0} | own
        server = module.Server(target, draft, max(batch.one_each(K, B)), **own)
        each = (batch.one_each(x, B) for x in (max_new_tokens, samplings, rngs, stop_token))
        order = [server.submit(*request) for request in zip(prompts, *each, strict=True)]
        answers = {}
        while len(answers) < B:
            answers |= server.step()
        return [answers[number] for number in order]

    return generate


def ahead_decoder(module=ahead, loop=tree_loop, fan: int = 1) -> Decoder:
    """`tree_generate` with an AheadDraft, and speculative_generate's arguments.

    Its drafter runs in this process and draws from the same rng, so that all of it is enumerated.
    fan: how many outcomes it prepares for each number of accepted guesses; the others are misses.
    """

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        by = module.Inline(module.Drafter(draft, K, [fan] * (K + 1)))
        ahead = module.AheadDraft(by, shared=True)
        return loop.tree_generate(
            target,
            ahead,
            prompt_tokens,
            max_new_tokens,
            sampling=sampling,
            rng=rng or RandomSource(0),
            **kwargs,
        )

    return generate


def same_decoder(module=same, plain=generate, chains=speculative, trees=tree_loop) -> Decoder:
    """Chains by SAME, trees by SAME_TREE, with speculative_generate's arguments.

    A draft of None is none: plain decoding, by the same dice. The rng is a SameDice, by default of
    seed 0. A Proposer has a depth of its own. The modules: where the steps and loops come from.
    """

    def decode(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        rng = rng or module.SameDice(0, len(prompt_tokens))
        asked = {"sampling": sampling, "rng": rng, **kwargs}
        if draft is None:
            return plain.autoregressive_generate(target, prompt_tokens, max_new_tokens, **asked)
        if isinstance(draft, trees.Proposer):
            given = target, draft, prompt_tokens, max_new_tokens
            return trees.tree_generate(*given, steps=module.SAME_TREE, **asked)
        given = target, draft, prompt_tokens, max_new_tokens, K
        return chains.speculative_generate(*given, steps=module.SAME, **asked)

    return decode


def constrained_decoder(module=constraints) -> Decoder:
    """`complete` with speculative_generate's arguments, and `constraints` by name.

    A draft of None is none: plain decoding under the same constraints. module: where complete and
    Constraints come from.
    """

    def decode(
        target,
        draft,
        prompt_tokens,
        max_new_tokens,
        K=4,
        sampling=Sampling(),
        rng=None,
        stop_token=None,
        constraints=None,
    ):
        asked = module.Constraints() if constraints is None else constraints
        return module.complete(
            target, prompt_tokens, max_new_tokens, asked, draft, K, sampling, rng, stop_token
        )

    return decode


def state_decoder(chains=speculative, trees=tree_loop) -> Decoder:
    """Chains, or trees where the draft is a Proposer, with speculative_generate's arguments.

    For targets with a state. policy: of a chain. The modules: where the loops come from.
    """

    def generate(target, draft, prompt_tokens, max_new_tokens, K=4, *given, policy=None, **named):
        if isinstance(draft, trees.Proposer):
            return trees.tree_generate(
                target, draft, prompt_tokens, max_new_tokens, *given, **named
            )
        if policy:
            named["steps"] = replace(chains.CHAIN, draft=adaptive.adaptive(policy))
        return chains.speculative_generate(
            target, draft, prompt_tokens, max_new_tokens, K, *given, **named
        )

    return generate


def pairs_decoder(module=pairs, loop=speculative) -> Decoder:
    """`speculative_generate` with a draft that reads byte pairs, in place of any that does not.

    module, loop: where PairDraft and speculative_generate come from.
    """

    def generate(target, draft, *given, **named):
        if not isinstance(draft, module.PairDraft):
            draft = toy_pairs(target.config.vocab_size, module=module)
        return loop.speculative_generate(target, draft, *given, **named)

    return generate


TABLE = {"first": 0, "order": 2, "prior": 1.0}  # of a SoftTable in a learning_decoder
NET = {"every": 2, "rate": 0.05}  # of a NetStudent there


def learning_decoder(module=learning, loop=batch) -> BatchDecoder:
    """`batch_generate` with drafts that learn, each text for itself or, with `shared`, from all.

    A TransformerDraft becomes a NetStudent, any other draft with get_probs a SoftTable over it; of
    a Grown one, the draft that it grows from. module, loop: where they and batch_generate are.
    """

    def generate(target, draft, prompts, max_new_tokens, K=4, *given, shared=False, **named):
        draft = getattr(draft, "draft", draft)
        if getattr(draft, "model", None) is None:
            student = module.SoftTable(draft, **TABLE)
        else:
            student = module.NetStudent(draft, **NET).copy()
        Ks = loop.one_each(K, len(prompts))
        made = {k: module.LearningDraft(student, k, shared) for k in set(Ks)}
        drafts = [made[k] for k in Ks]
        return loop.batch_generate(target, drafts, prompts, max_new_tokens, Ks, *given, **named)

    return generate


def budget_decoder(module=budget, trees=best) -> BatchDecoder:
    """`budget_generate` with batch_generate's arguments: the sum of all K is one budget.

    Guesses are drawn, siblings as well. module, trees: where budget_generate and BestFirst are.
    """

    def generate(target, draft, prompts, max_new_tokens, K=4, *given, **named):
        nodes = sum(batch.one_each(K, len(prompts)))
        growing = trees.BestFirst(draft, nodes, sure=lambda q: float(q.max()) ** 0.5)
        return module.budget_generate(target, growing, prompts, max_new_tokens, *given, **named)

    return generate


def hybrid_decoder(module=hybrid, loop=tree_loop) -> Decoder:
    """`tree_generate` with a Hybrid of the draft and a random one, both drawn; K is its depth.

    module, loop: where Hybrid and tree_generate come from.
    """

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        other = random_draft(target.config.vocab_size, seed=7)
        both = module.Hybrid(
            lambda context: module.repeats(context, 1), lifted(draft, K), lifted(other, K)
        )
        asked = target, both, prompt_tokens, max_new_tokens, sampling, rng
        return loop.tree_generate(*asked, **kwargs)

    return generate
