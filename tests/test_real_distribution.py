"""Slow (`pytest -m slow`): the shipped target, sampled 20,000 times, against its own probabilities.

The token at each of three positions, conditional on the likeliest text before it, by a χ² test.
"""

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts.bigram import BigramDraftModel
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.gallery import mutant
from nanogpt.proof.statistics import chi_squared, chi_squared_limit
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate

SAMPLES, PROMPT = 20_000, "What's in a na"
SAMPLINGS = [Sampling(0.5), Sampling(1.0), Sampling(1.5), Sampling(top_k=5), Sampling(top_p=0.9)]


class Remembering:
    """The shipped target, with the logits of every context computed once.

    Its "cache" holds the tokens themselves, so that trimming it is trimming them.
    """

    def __init__(self):
        self.model, self.tokenizer = checkpoint.load()
        self.config, self.device, self.known = self.model.config, self.model.device, {}

    def __call__(self, idx, past_kvs=None):
        old = past_kvs[0][0][0] if past_kvs else torch.empty(1, 0, 1)
        tokens = torch.cat([old, idx[..., None].float()], dim=1)  # (1, P+T, 1)
        context = tuple(tokens.flatten().int().tolist())
        if context not in self.known:
            self.known[context] = self.model(torch.tensor([context]))[0]
        logits = self.known[context][:, -idx.shape[1] :]
        return logits, None, (((tokens, tokens),),)


@torch.no_grad()
def suspicious_positions(generate, sampling):
    """Those of the three positions whose tokens are not spread as the target's probabilities."""
    target = Remembering()
    tokenizer = target.tokenizer
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    draft, rng = BigramDraftModel(tokens, tokenizer.vocab_size), RandomSource(0)
    prompt = tokenizer.encode(PROMPT)
    texts = [tuple(generate(target, draft, prompt, 3, 3, sampling, rng).tokens)
             for _ in range(SAMPLES)]  # fmt: skip
    suspicious, before = [], ()
    for i in range(3):
        reached = [text[i] for text in texts if text[:i] == before]
        p = sampling.probs(target(torch.tensor([[*prompt, *before]]))[0][0, -1])
        exact = {token: x for token, x in enumerate(p.tolist()) if x > 0}
        counts = {token: reached.count(token) for token in set(reached)}
        assert counts.keys() <= exact.keys(), f"position {i}: a token of probability 0"
        statistic, freedom = chi_squared(counts, exact, len(reached))
        if freedom and statistic > chi_squared_limit(freedom):
            suspicious.append(i)
        before += (int(p.argmax()),)
    return suspicious


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_position_is_spread_as_the_target(sampling):
    assert suspicious_positions(speculative_generate, sampling) == []


@pytest.mark.slow
def test_the_test_has_the_power_to_see_bug_1():
    assert suspicious_positions(mutant(BUGS[0]), Sampling()) != []
