"""Decoders that are known to be wrong under constraints: controls of an audit that asks for them.

Each is our own loop with one step spoiled, as an engine of record spoiled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nanogpt import checkpoint
from nanogpt.cache import KVCache
from nanogpt.constraints import CONSTRAINED, Constraints, Obedient, Reply, RowSampling
from nanogpt.drafts import transformer
from nanogpt.engines.adapters import TAKEN, Engine, Generate, own_version
from nanogpt.generate import Draft
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource
from nanogpt.speculative import Steps, draw_chain, speculative_rounds, verify_candidates


def draw_and_drop(draft: Draft, context, K, sampling: RowSampling, rng, more=None):
    """Guesses of a draft that knows no grammar, cut off before the first that is forbidden.

    What follows the cut is then drawn from the masked p, as if nothing had been guessed there. So
    does vLLM's synchronous scheduler. Right is to keep the guess, which is rejected, and to draw
    from the residual: (.7, .3, 0) for p and (.2, .2, .6) for q give (.62, .38, 0) here.
    """
    raw = draft.draft if isinstance(draft, Obedient) else draft
    candidates, q = draw_chain(raw, context, K, sampling.sampling, rng, more)
    rules, past = sampling.reply.constraints, sampling.reply.past
    for i, token in enumerate(candidates if rules.grammar is not None else ()):
        if not rules.grammar.allowed[past.state, token]:
            return candidates[:i], q[:i]
        past = rules.after(past, token)
    return candidates, q


class FirstRow:
    """A sampling of all rows of a pass by the rules after its first token alone."""

    def __init__(self, sampling: RowSampling):
        self.sampling, self.reply = sampling.sampling, sampling.reply

    def probs(self, logits: Tensor) -> Tensor:
        """logits (R, V) -> p (R, V): each row as if no guess came before it."""
        pasts = [self.reply.past] * len(logits)
        ruled = self.reply.constraints.logits(logits.detach(), pasts, self.reply.prompt)
        return self.sampling.probs(ruled)


def verify_by_first_row(
    target: GPTLanguageModel,
    current_token: int,
    candidates: Sequence[int],
    past_kvs: KVCache | None,
    sampling: RowSampling,
    unread: Sequence[int] = (),
) -> tuple[Tensor, KVCache]:
    """verify_candidates with rules that do not count the guesses.

    A penalty is the weaker, the better the draft: sgl-project/sglang#22049.
    """
    rows = FirstRow(sampling)
    return verify_candidates(target, current_token, candidates, past_kvs, rows, unread)


WRONG = {
    "dropped": replace(CONSTRAINED, draft=draw_and_drop),
    "first row": replace(CONSTRAINED, verify=verify_by_first_row),
}


def open_wrong(name: str, K: int = 4) -> Engine:
    """Our own decoder with the shipped draft, wrong under constraints: one of WRONG."""
    target, _ = checkpoint.load()
    mode = mode_of(target, transformer.load(), K, WRONG[name])
    return Engine(f"nanogpt, {name}", own_version(), {"draft": mode}, takes=TAKEN)


def mode_of(target: GPTLanguageModel, draft: Draft, K: int, steps: Steps) -> Generate:
    """A mode that writes by these steps, under the constraints that it is asked for, or none."""

    def generate(prompts, n, sampling, seed, constraints=Constraints()):
        made = []
        for i, prompt in enumerate(prompts):
            reply = Reply(target, prompt, n, None, constraints)
            rows, rng = RowSampling(sampling, reply), RandomSource(seed + i)
            for _ in speculative_rounds(reply, draft, K, rows, rng, steps=steps):
                pass
            made.append(reply.tokens[reply.n_prompt :])
        return made

    return generate
