"""Every shipped draft in every loop: what it is alone it is in a batch and in a server, as fast.

Exact and slow is the commonest failure, and no test of the text sees it: at temperature 0 the text
is the target's own whatever is guessed. So the passes are compared.
"""

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.eagle import EagleDraft
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.protocol import Proposer
from nanogpt.drafts.shipped import BEST, BEST_PROPOSED, DRAFTS, proposer
from nanogpt.fused import TARGETS, FusedLanguageModel
from nanogpt.generate import autoregressive_generate
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import SelfDraft, deep_toy, random_draft, random_head, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.server import Server
from nanogpt.speculative import speculative_generate
from nanogpt.tree import tree_generate

GREEDY, NEW = Sampling(0), 60
AMPLE = {"width": 128, "budget": 10_000, "nodes": 100}


@pytest.fixture(scope="module")
def shipped():
    """The fused target, three prompts, and the tokens that drafts are counted from."""
    target, tokenizer = checkpoint.load()
    tokens, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    return FusedLanguageModel(target), prompts_of(held_out, 3), tokens


def in_each_loop(target, draft, K, prompts, n=NEW):
    """{loop: the generations of the prompts}: one draft serves all texts of a loop."""
    alone = tree_generate if isinstance(draft, Proposer) else speculative_generate
    how = {} if isinstance(draft, Proposer) else {"K": K}
    server = Server(target, draft, K, **AMPLE)
    ids = [server.submit(prompt, n, GREEDY) for prompt in prompts]
    done = {}
    while server.requests or server.finished:
        done |= server.step()
    return {
        "alone": [alone(target, draft, prompt, n, sampling=GREEDY, **how) for prompt in prompts],
        "batch": batch_generate(target, draft, prompts, n, K, GREEDY),
        "server": [done[id] for id in ids],
    }


@pytest.mark.parametrize("name", [*DRAFTS, *BEST_PROPOSED])
def test_a_draft_gives_as_many_tokens_a_pass_in_every_loop(name, shipped):
    """Prompts whose text is one in every loop: in float32, it may part at a tie of two logits."""
    target, prompts, tokens = shipped
    K = (BEST | BEST_PROPOSED)[name]
    if name in DRAFTS:
        draft = DRAFTS[name](tokens, target.config.vocab_size)
    else:
        draft = proposer(name, target, ngram.load(), K)
        target = draft.target or target
    loops = in_each_loop(target, draft, K, prompts)
    same = [
        made
        for made in zip(*loops.values(), strict=True)
        if len({tuple(g.tokens) for g in made}) == 1
    ]
    assert same, f"{name}: no text is the same in every loop"
    passes = [sum(g.target_passes for g in made) for made in zip(*same, strict=True)]
    pairs = zip(loops, passes, strict=True)
    said = ", ".join(f"{loop} {len(same) * NEW / n:.3f}" for loop, n in pairs)
    assert len(set(passes)) == 1, f"{name}, tokens a pass: {said}"


@pytest.mark.parametrize("form", TARGETS.values(), ids=TARGETS)
def test_over_restarts_the_text_is_the_targets_own_where_unread_tokens_and_guesses_share_a_pass(
    form,
):
    """By enumeration, against p of fresh contexts: plain, with a chain, and with a tree."""
    own, prompt, n = toy_target(2, 4, seed=1), [0, 1, 1], 5  # a window of 4: two restarts
    fresh, draft, target = SelfDraft(own, len(prompt)), random_draft(2), form(own)
    exact = {(): 1.0}
    for _ in range(n):
        exact = {
            (*tokens, token): p * float(row[token])
            for tokens, p in exact.items()
            for row in [fresh.get_probs([*prompt, *tokens])]
            for token in range(2)
        }
    for decode in (
        lambda rng: autoregressive_generate(target, prompt, n, rng=rng),
        lambda rng: speculative_generate(target, draft, prompt, n, 3, rng=rng),
        lambda rng: tree_generate(target, Grown(draft, (2, 1)), prompt, n, rng=rng),
    ):
        got = enumerate_outcomes(lambda rng, decode=decode: tuple(decode(rng).tokens))
        assert total_variation(got, exact) < 1e-12


def test_one_eagle_reads_each_pair_of_each_text_once():
    """Four texts in a batch, one draft: as many pairs as four drafts read, and no more."""
    target, _ = deep_toy()
    prompts = [[0, 1], [2], [1, 1, 0, 2], [0, 2, 1]]

    def pairs_read(drafts):
        head = random_head(target)
        read, forward = [], head.forward

        def watched(features, tokens, past=None, mask=None):
            read.append(tokens.shape[1])
            return forward(features, tokens, past, mask)

        head.forward = watched
        rngs = [RandomSource(b) for b in range(4)]
        batch_generate(target, drafts(head), prompts, 30, rngs=rngs)
        return sum(read)

    one = pairs_read(lambda head: EagleDraft(target, head, 2))
    each = pairs_read(lambda head: [EagleDraft(target, head, 2) for _ in prompts])
    assert one == each
