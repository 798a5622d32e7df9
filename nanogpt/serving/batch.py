"""Several texts in one target pass, each as long as it is and accepting as much as it may.

`verify_batch` checks the guesses of all rows at once; a text in a batch is what it is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanogpt.cache import KVCache, cache_length
from nanogpt.drafts.protocol import lifted
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.generate import Generation, check_whole
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Constraints, Obedient, Reply, for_pass
from nanogpt.speculative import Draft, Steps, check_vocabulary, draft_chain
from nanogpt.trees.loop import TREE, check_target, commit, propose_tree, with_unread
from nanogpt.trees.tree import Proposer, ReadText, Tree, side_by_side, tree_mask


def batch_mask(
    trees: Sequence[Tree], lengths: Sequence[int], before: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Positions (B, T) and mask (B, T, P+T) of a pass over a tree for each of B texts.

    lengths: how many tokens each text has cached; before: in how many columns before them it has
    nothing. T is the current token and the largest tree; in a smaller one, the rest of the row sees
    what its current token sees, and is to be dropped.
    """
    sizes = torch.tensor([1 + len(tree.tokens) for tree in trees])[:, None]
    P = max(a + n for a, n in zip(before, lengths, strict=True))
    T = int(sizes.max())
    step = torch.arange(T) * (torch.arange(T) < sizes)  # 0, 1, … and then 0 again
    pos = torch.tensor(lengths)[:, None] + step  # as in chains
    first, column = torch.tensor(before)[:, None, None], torch.arange(P + T)
    mask = (first <= column) & (column <= first + pos[..., None])
    for b, tree in enumerate(trees):
        N = len(tree.tokens)
        if not tree.is_chain:
            own = tree_mask(tree.parents, lengths[b])
            mask[b, : N + 1, before[b] : before[b] + own.shape[1]] = own
            pos[b, : N + 1] = own.sum(-1) - 1
    return pos, mask


def padded(tokens: Sequence[Sequence[int]]) -> Tensor:
    """Rows of tokens as a rectangle (B, T): after those of a shorter row come zeros."""
    T = max(map(len, tokens))
    return torch.tensor([[*row, *[0] * (T - len(row))] for row in tokens])


def probs_of_rows(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """p (B, T, V), float64, of logits (B, T, V): each row's by its own sampling.

    Rows that share a sampling share a call. A row with a logit that is no number has p = NaN.
    """
    p = torch.full(logits.shape, torch.nan, dtype=torch.float64)
    sound = logits.amax(-1).isfinite().all(-1).tolist()  # amax of a NaN is NaN
    for sampling in set(samplings):
        its = [b for b, one in enumerate(samplings) if one == sampling and sound[b]]
        p[its] = sampling.probs(logits[its])
    return p


@torch.no_grad()
def verify_batch(
    target: GPTLanguageModel,
    texts: Sequence[ReadText],
    trees: Sequence[Tree],
    samplings: Sequence[Sampling],
    layers: Sequence[Sequence[int] | None] | None = None,
) -> list[tuple[Tensor, Tensor, KVCache]]:
    """verify_tree for several texts in one pass: of each, p (N+1, V), hidden (u+N+1, C), new cache.

    Texts differ in length, and in how much of them is unread (u); trees in size (N). The pass is as
    wide as the largest of them; in the other rows, the surplus is computed and dropped. `layers` of
    each text are as in verify_tree.
    Raises ValueError unless there is a tree and a sampling for each text, and past the window.
    """
    if not len(texts) == len(trees) == len(samplings) > 0:
        raise ValueError("give a tree and a sampling for each text, and one text at least")
    pairs = list(zip(texts, trees, strict=True))
    tokens = [[*text.unread, text.tokens[-1], *tree.tokens] for text, tree in pairs]
    lengths = [text.cache_length for text in texts]
    past_kvs, before = joined([text.past_kvs for text in texts], [len(own) for own in tokens])
    pos, mask = batch_mask([with_unread(*pair) for pair in pairs], lengths, before)
    idx, pos, mask = (x.to(target.device) for x in (padded(tokens), pos, mask))

    streams, new_kvs = target.states(idx, pos, past_kvs, mask)
    hidden = target.ln_f(streams[-1])  # (B, T, C)
    p = probs_of_rows(target.lm_head(hidden).cpu(), samplings)  # (B, T, V)

    ends = [P + len(own) for P, own in zip(lengths, tokens, strict=True)]
    verified = []
    for b, own in enumerate(rows(new_kvs, before, ends)):
        n, u, wanted = len(tokens[b]), len(texts[b].unread), layers and layers[b]
        seen = hidden[b, :n]
        if wanted:
            seen = side_by_side([stream[b, :n] for stream in streams], wanted)
        verified.append((p[b, u:n], seen, own))
    return verified


class Part(NamedTuple):
    """What a pass needs to know of a text: its next token, after those in its cache."""

    tokens: list[int]
    past_kvs: KVCache | None
    cache_length: int
    unread: tuple[int, ...] = ()  # the tokens after the first come as a tree


class Seat(NamedTuple):
    """A text's place in a batch, with what is its own; of the steps, the batch verifies for all."""

    text: ReadText
    draft: Proposer
    sampling: Sampling
    rng: RandomSource
    steps: Steps = TREE


# Guesses


def of_transformers(
    drafts: Sequence[TransformerDraft], contexts: Sequence[Sequence[int]]
) -> list[Tensor]:
    """What each says, one pass for all that are of one model."""
    said: dict[int, Tensor] = {}
    for model in {draft.model for draft in drafts}:
        its = [b for b, draft in enumerate(drafts) if draft.model is model]
        views = []
        for b in its:
            draft, unread = drafts[b], drafts[b].begin(contexts[b])
            cached = len(draft.tokens) - len(unread)
            views.append(Part(draft.tokens, draft.past_kvs, cached, tuple(unread[:-1])))
        B, no_guess = len(its), Tree.empty(model.config.vocab_size)
        read = verify_batch(model, views, [no_guess] * B, [Sampling()] * B)  # type: ignore[arg-type]
        for b, (q, _, past_kvs) in zip(its, read, strict=True):
            said[b], drafts[b].past_kvs = q[0], past_kvs
    return [said[b] for b in range(len(drafts))]


# How drafts of a kind say at once what each says after a context: (drafts, contexts) -> q of each.
TOGETHER: dict[type, Callable] = {TransformerDraft: of_transformers}


def probs_of(drafts: Sequence[Draft], contexts: Sequence[Sequence[int]]) -> list[Tensor]:
    """q (V,) of each draft after its own context; of a kind that is in TOGETHER, at once.

    Those that obey constraints are asked with those that do not, and ruled at once where they share
    the constraints.
    """
    obey = [b for b, draft in enumerate(drafts) if isinstance(draft, Obedient)]
    known = {b: drafts[b].forced(contexts[b]) for b in obey}  # type: ignore[attr-defined]
    qs = {b: q for b, q in known.items() if q is not None}
    kinds: dict[type, list[int]] = {}
    inner = [draft.draft if isinstance(draft, Obedient) else draft for draft in drafts]
    for b in range(len(drafts)):
        if b not in qs:
            kinds.setdefault(type(inner[b]), []).append(b)
    for kind, its in kinds.items():
        if len(its) > 1 and kind in TOGETHER:
            said = TOGETHER[kind]([inner[b] for b in its], [contexts[b] for b in its])
        else:
            said = [inner[b].get_probs(contexts[b]) for b in its]
        qs |= dict(zip(its, said, strict=True))

    alike: dict[tuple, list[int]] = {}
    for b in (b for b, q in known.items() if q is None):
        reply = drafts[b].reply  # type: ignore[attr-defined]  # it is Obedient
        alike.setdefault((id(reply.constraints), reply.prompt), []).append(b)
    for (_, prompt), its in alike.items():
        rules = drafts[its[0]].reply.constraints  # type: ignore[attr-defined]
        pasts = [drafts[b].past(contexts[b]) for b in its]  # type: ignore[attr-defined]
        ruled = rules.ruled(torch.stack([qs[b] for b in its]), pasts, prompt)
        qs |= dict(zip(its, ruled, strict=True))
    return [qs[b] for b in range(len(drafts))]


def propose_all(seats: Sequence[Seat]) -> list[Tree]:
    """What each seat drafts, as deep as it has room: chains side by side, all else text by text."""
    trees = drawn_together(seats, [seat.text.room for seat in seats])
    for b, x in enumerate(seats):
        if b not in trees:
            trees[b] = x.steps.draft(x.draft, x.text, x.text.room, x.sampling, x.rng)
    return [trees[b] for b in range(len(seats))]


def drawn_together(seats: Sequence[Seat], most: Sequence[int]) -> dict[int, Tree]:
    """{seat: its chain, at most so long} of those whose drafts can be asked at once, if some can.

    They are drawn a token at a time, side by side: a guess costs one pass of the draft, and not one
    for each text. Each text draws from its own source, in the order that it would alone.
    """
    own = {b: draft for b, x in enumerate(seats) if (draft := drawn_by_token(x))}
    if len(own) < 2:
        return {}
    tokens = {b: list(seats[b].text.tokens) for b in own}
    deep = {b: min(seats[b].draft.K, most[b]) for b in own}  # type: ignore[attr-defined]  # Chains
    qs: dict[int, list[Tensor]] = {b: [] for b in own}
    while going := [b for b in own if len(qs[b]) < deep[b]]:
        said = probs_of([own[b] for b in going], [tokens[b] for b in going])
        for b, q in zip(going, said, strict=True):
            try:
                qs[b].append(seats[b].sampling.of_probs(q))
                tokens[b].append(seats[b].rng.categorical(qs[b][-1]))
            except Exception:  # nobody else's: it is raised where this one is asked alone
                del own[b]
    trees = {}
    for b, draft in own.items():
        q = torch.stack(qs[b]) if qs[b] else torch.empty(0, draft.vocab_size).double()
        trees[b] = Tree.chain(tokens[b][len(tokens[b]) - len(q) :], q)
    return trees


def drawn_by_token(seat: Seat) -> Draft | None:
    """The seat's own draft, if it draws chains token by token and can be asked with others."""
    chain: Any = seat.draft
    if getattr(chain, "step", None) is not draft_chain or seat.steps.draft is not propose_tree:
        return None
    own = seat.text.memory(chain, chain.draft.fresh)
    return own if isinstance(own, Obedient) or type(own) in TOGETHER else None


@torch.inference_mode()
def batch_round(target: GPTLanguageModel, seats: Sequence[Seat]) -> None:
    """One round of every text: each drafts, one pass verifies all, each keeps what it accepts."""
    for seat in seats:
        seat.text.restart_if_full()
    texts = [seat.text for seat in seats]
    trees = propose_all(seats)
    samplings = [
        for_pass(x.text, x.sampling, tree, skip=len(x.text.unread))
        for x, tree in zip(seats, trees, strict=True)
    ]
    layers = [seat.draft.layers for seat in seats]
    verified = verify_batch(target, texts, trees, samplings, layers)
    for seat, tree, (p, hidden, new_kvs) in zip(seats, trees, verified, strict=True):
        text = seat.text
        path, token = seat.steps.accept(tree, p, seat.rng)
        past_kvs = seat.steps.trim(new_kvs, path, text.position)
        commit(text, tree, p, path, token, past_kvs, hidden if seat.draft.reads else None)


def one_each(given, B: int) -> list:
    """`given` if it is a list of B things, one for each row; else the same thing for all rows.

    Raises ValueError for a list of another length.
    """
    if not isinstance(given, (list, tuple)):
        return [given] * B
    if len(given) != B:
        raise ValueError(f"{len(given)} values for {B} prompts; give one for each, or one for all")
    return list(given)


@torch.inference_mode()
def batch_generate(
    target: GPTLanguageModel,
    draft: Draft | Proposer | Sequence[Draft | Proposer],
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    K: int | Sequence[int] = 4,
    samplings: Sampling | Sequence[Sampling] = Sampling(),
    rngs: Sequence[RandomSource] | None = None,
    stop_token: int | Sequence[int | None] | None = None,
    constraints: Constraints | Sequence[Constraints] = Constraints(),
    steps: Steps | Sequence[Steps] = TREE,
) -> list[Generation]:
    """The target's continuation of each prompt, all of them in shared passes.

    rngs is a list, by default RandomSource(0), RandomSource(1), …; of all other arguments, one is
    for all rows, or a list has one for each. A finished row leaves the batch. Each row is what it
    is alone: in speculative_generate, or in tree_generate for a Proposer, which has a depth of its
    own (`lifted`, by a policy say). steps: how a row drafts, accepts and trims. Returns the
    generations in the order of the prompts.
    Raises ValueError for a list of the wrong length, and as speculative_generate does.
    """
    if any(isinstance(prompt, int) for prompt in prompts):
        raise ValueError("prompts are lists of tokens; write [prompt] for one")
    B = len(prompts)
    rngs = [RandomSource(b) for b in range(B)] if rngs is None else rngs
    if not isinstance(rngs, (list, tuple)):
        raise ValueError("give rngs as a list, one random source for each row")
    drafts, Ks, samplings = (one_each(x, B) for x in (draft, K, samplings))
    lengths, stops = one_each(max_new_tokens, B), one_each(stop_token, B)
    rngs = one_each(rngs, B)
    asked, steps, seats = one_each(constraints, B), one_each(steps, B), []
    for b, prompt in enumerate(prompts):
        text = Reply(target, prompt, lengths[b], stops[b], asked[b])
        check_whole(1, K=Ks[b])
        proposer = lifted(drafts[b], Ks[b])
        check_vocabulary(proposer.vocab_size, target.config.vocab_size)
        seats.append(Seat(text, proposer, samplings[b], rngs[b], steps[b]))
        check_target(proposer, target)
    while running := [seat for seat in seats if not seat.text.done]:
        batch_round(target, running)
    return [seat.text.generation() for seat in seats]


def joined(
    caches: Sequence[KVCache | None], more: Sequence[int] | None = None
) -> tuple[KVCache | None, list[int]]:
    """One cache for a batch of texts, and the column where each text's own entries begin.

    caches: of one text each; None is an empty one. more: of each text, how many tokens the next
    pass has that are its own; by default all. Tuples are moved to the right, zeros before
    them, so that the entries of the next pass follow in the same column for all; caches of another
    kind begin in column 0 and let each text go on in a column of its own.
    """
    some = next((cache for cache in caches if cache is not None), None)
    if some is None:
        return None, [0] * len(caches)
    if len(caches) == 1:
        return some, [0]
    if not isinstance(some, tuple):
        kind: Any = type(some)  # a cache object knows how to stand in a batch
        return kind.joined(caches, more), [0] * len(caches)
    lengths = torch.tensor([cache_length(cache) for cache in caches])[:, None]  # (B, 1)
    P = int(lengths.max())
    before = P - lengths
    # All texts' entries in one row, zeros in front; then each slot's place in that row.
    place = torch.arange(P) - before + lengths.cumsum(0) - lengths + 1  # (B, P)
    place = place.where(torch.arange(P) >= before, 0)
    place = place.to(some[0][0][0].device)

    def column(layer: int, head: int, which: int) -> Tensor:
        own = [cache[layer][head][which] for cache in caches if cache is not None]
        nothing = torch.zeros_like(own[0][:, :1])  # as wide: keys may be wider than values
        return torch.cat([nothing, *own], dim=1)[0, place]  # (B, P, hs)

    return tuple(
        tuple((column(i, h, 0), column(i, h, 1)) for h in range(len(layer)))
        for i, layer in enumerate(some)
    ), before[:, 0].tolist()


def rows(new_kvs: KVCache, before: Sequence[int], lengths: Sequence[int]) -> list[KVCache]:
    """The batch's cache as one for each text: its first `lengths` entries from its column on."""
    if not isinstance(new_kvs, tuple):
        return new_kvs.rows(lengths)  # type: ignore[attr-defined]  # as in `joined`
    return [
        tuple(tuple((k[own], v[own]) for k, v in layer) for layer in new_kvs)
        for b, (s, n) in enumerate(zip(before, lengths, strict=True))
        for own in [(slice(b, b + 1), slice(s, s + n))]
    ]
