"""Constraints of a request: the reply is that of plain decoding under them, in every loop."""

import itertools
import math
import re

import pytest
import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.adaptive import adaptive, by_entropy
from nanogpt.drafts.ahead import AheadDraft, Drafter, Inline
from nanogpt.drafts.grown import Grown
from nanogpt.drafts.protocol import lifted
from nanogpt.drafts.shipped import BEST_PROPOSED, DRAFTS, proposer
from nanogpt.generate import Round
from nanogpt.measure.clock import prompts_of
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.toys import Deaf, context_start, random_draft, toy_target
from nanogpt.same import SAME, SAME_TREE, SameDice
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.batch import batch_generate
from nanogpt.serving.constraints import FREE, Constraints, Past, Reply, complete
from nanogpt.serving.grammar import Grammar
from nanogpt.serving.paged import BlockPool
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import CHAIN, Draft
from nanogpt.targets.fused import FusedLanguageModel
from nanogpt.trees.loop import TREE
from nanogpt.trees.rules import accept_blockwise, accept_traversal

# ---- Grammars

PATTERNS = ["(ab|c)*b", "a+b?c", "[^a]*a", "(a|b)(a|c)*", "a{3}b*", "((a|b)*c)+", "(a*b*)*c"]
PATTERNS += ["a|", "(ab|ac)b", "(a?b){2}", ".[a-b]*c", "(a|ab)(c|bc)"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_automaton_matches_what_its_pattern_does_and_allows_what_can_go_on(pattern):
    grammar, most = Grammar(pattern, "abc"), 7
    texts = ["".join(t) for n in range(most + 1) for t in itertools.product("abc", repeat=n)]
    matching = [text for text in texts if re.fullmatch(pattern, text)]
    begun = {text[:n] for text in matching for n in range(len(text) + 1)}
    for text in (text for text in texts if len(text) <= 3):  # a match is at most 4 letters away
        state = grammar.state(["abc".index(letter) for letter in text])
        assert grammar.matches[state] == (text in matching)
        going_on = [text + letter in begun for letter in "abc"]
        over = text in matching and not any(going_on)
        if text not in begun:
            assert state == Grammar.LEFT
        elif over:
            assert grammar.over[state] and grammar.allowed[state].all()
        else:
            assert not grammar.over[state]
            assert grammar.allowed[state].tolist() == going_on


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", "a ( that nothing closes in the pattern '(a' at index 2"),
        ("a)", "a ) that nothing opens in the pattern 'a)' at index 1"),
        ("*a", "nothing to repeat in the pattern '*a' at index 0"),
        ("[ab", "no letter where one must come in the pattern '[ab' at index 3"),
        ("[c-a]", "a range from 'c' back to 'a' in the pattern '[c-a]' at index 4"),
        ("(a|b)*a" + "(a|b)" * 13, "over 5,000 states: shorten the pattern"),
        ("a{²}", "{ without a whole number and }"),
        ("[]a", "[ ] without a letter in the pattern '[]a' at index 2"),
        ("[^a-c]", "[ ] without a letter in the pattern '[^a-c]' at index 6"),
        ("a{x}", "{ without a whole number and } in the pattern 'a{x}' at index 2"),
        ("a{2", "{ without a whole number and } in the pattern 'a{2' at index 2"),
        ("ad", "'d', which is not in the vocabulary, in the pattern 'ad' at index 1"),
        ("[ad]", "'d', which is not in the vocabulary, in the pattern '[ad]' at index 2"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused_with_the_place(pattern, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Grammar(pattern, "abc")


def test_states_that_are_the_same_are_one():
    """However the pattern is put in brackets: what follows is written in one form."""
    sizes = {"(ab|c)*b": 3, "[^a]*a": 2, "a{3}b*": 4, "((a|b)*c)+": 2, "(ab|ac)b": 4}
    sizes |= {"((((ab)c)a)b)c": 7, "(a(b(c(abc))))": 7, "a((bc)a)|b(b(ca))": 5}
    sizes["ab" * 600] = 1201  # long, not deep
    assert {pattern: len(Grammar(pattern, "abc")) for pattern in sizes} == sizes


def test_a_pattern_knows_the_end_of_a_line_and_signs_taken_as_letters():
    letters = "\n.a*-"
    for pattern, text in ((r"a\n", "a\n"), ("a\n", "a\n"), (r"\.\*", ".*"), ("[a-]+", "-a")):
        grammar = Grammar(pattern, letters)
        assert grammar.matches[grammar.state([letters.index(x) for x in text])]
    assert not Grammar(r"\.", letters).matches[Grammar(r"\.", letters).state([2])]


# ---- The distribution: the real code enumerated, beside a reference that shares none of it

V, N = 3, 3
TOY = toy_target(V, 8, seed=3)
LETTERS = "abc"
PATTERN = "(ab?|c)(c|ba)+b"
CASES = {
    "grammar": (Constraints(grammar=Grammar(PATTERN, LETTERS)), Sampling()),
    "penalties": (Constraints(presence=0.7, frequency=0.4, repetition=1.6), Sampling()),
    "bias": (Constraints(bias={0: 1.5, 2: -0.5}), Sampling(0.7)),
    "min-p": (Constraints(min_p=0.4), Sampling()),
    "all": (
        Constraints(Grammar("[ab]+c.*", LETTERS), {1: 0.5}, 0.5, 0.3, 0.8, 0.1),
        Sampling(0.8, top_p=0.9),
    ),
}


def reference(target, prompt, n, rules, sampling):
    """{reply: probability}, by the definition: one text at a time, no cache, patterns by `re`."""
    texts = ["".join(t) for k in range(n + 5) for t in itertools.product(LETTERS, repeat=k)]
    grammar = rules.grammar and rules.grammar.pattern
    begun = set()
    for text in texts:
        if grammar and re.fullmatch(grammar, text):
            begun |= {text[:k] for k in range(len(text) + 1)}
    found = {}

    def go_on(reply, chance):
        spelled = "".join(LETTERS[token] for token in reply)
        over = grammar and re.fullmatch(grammar, spelled)
        over = over and not any(spelled + letter in begun for letter in LETTERS)
        if len(reply) == n or over:
            found[reply] = found.get(reply, 0.0) + chance
            return
        context = [*prompt, *reply]
        start = context_start(len(context), len(prompt), target.config.block_size)
        logits = target(torch.tensor([context[start:]]))[0][0, -1].tolist()
        for token in range(V):
            if rules.repetition != 1 and token in context:
                by = rules.repetition
                logits[token] = logits[token] / by if logits[token] > 0 else logits[token] * by
            logits[token] -= rules.frequency * reply.count(token)
            logits[token] -= rules.presence * (token in reply)
            logits[token] += rules.bias.get(token, 0.0)
            if grammar and spelled + LETTERS[token] not in begun:
                logits[token] = -math.inf
        if rules.min_p:
            top = max(logits)
            logits = [x if math.exp(x - top) >= rules.min_p else -math.inf for x in logits]
        for token, p in enumerate(
            sampling.probs(torch.tensor(logits, dtype=torch.float64)).tolist()
        ):
            if p > 0:
                go_on((*reply, token), chance * p)

    go_on((), 1.0)
    return found


def test_each_row_has_a_likeliest_token_of_its_own():
    logits = torch.tensor([[0.0, -0.5, -3.0], [10.0, 9.5, 7.0], [-9.5, -10.0, -13.0]]).double()
    ruled = Constraints(min_p=0.4).logits(logits, [Past()] * 3)
    assert ruled.isfinite().tolist() == [[True, True, False]] * 3


class Kept(Draft):
    """A table that is a Draft, so that a reply's memory of it has the constraints in it."""

    def __init__(self, seed):
        self.table, self.vocab_size = random_draft(V, seed), V

    def get_probs(self, context):
        return self.table.get_probs(context)


def block(tree, p, rng):
    """accept_blockwise as a rule of tree_generate."""
    emitted = accept_blockwise(tree.tokens, tree.q, p, rng)
    return list(range(len(emitted) - 1)), emitted[-1]


LOOPS = {
    "plain": {},
    "chain": {"draft": Kept(1), "K": 2},
    "chain that does not obey": {"draft": Deaf(random_draft(V, 1)), "K": 2},
    "block": {"draft": Kept(1), "K": 2, "steps": CHAIN.__class__(
        CHAIN.draft, CHAIN.verify, accept_blockwise, CHAIN.trim)},
    "tree": {"draft": Grown(Kept(1), [2, 1], "without")},
    "tree, replaced": {"draft": Grown(Kept(1), [2, 1], "with")},
    "tree that does not obey": {"draft": Grown(Deaf(Kept(2)), [2], "fixed")},
    "traversal": {"draft": Grown(Kept(1), [2, 1]), "steps": TREE.__class__(
        TREE.draft, TREE.verify, accept_traversal, TREE.trim)},
}  # fmt: skip


# Each case meets two rules for trees, each rule all cases at once: that some kinds of siblings, or
# another order of a walk, go with one case but not with the others has no way to happen.
LONG = [(x, loop) for x in ("penalties", "bias") for loop in ("tree, replaced", "traversal")]
REPLIES = [pair for pair in itertools.product(CASES, LOOPS) if pair not in LONG]
# In make test each loop meets all rules at once, and each rule alone meets plain decoding and a
# chain: a loop asks for the rows of its candidates, and does not know which rules make them.
PLAIN = [("all", loop) for loop in LOOPS if loop not in ("tree, replaced", "traversal")]
PLAIN += [("grammar", "tree, replaced"), ("min-p", "traversal")]  # all rules take seconds there
PLAIN += [(case, loop) for case in CASES for loop in ("plain", "chain")]
PLAIN += [("grammar", "tree"), ("min-p", "tree")]
PLAIN += [("grammar", "chain that does not obey"), ("min-p", "tree that does not obey")]
WIDE = pytest.mark.wide
REPLIES = [pytest.param(*pair, marks=() if pair in PLAIN else WIDE) for pair in REPLIES]


@pytest.mark.parametrize(("case", "loop"), REPLIES)
def test_a_reply_has_the_distribution_of_plain_decoding_under_its_constraints(case, loop):
    rules, sampling = CASES[case]
    asked = {"sampling": sampling, "constraints": rules} | LOOPS[loop]

    def program(rng):
        return tuple(complete(TOY, [2, 0], N, rng=rng, **asked).tokens)

    right = reference(TOY, [2, 0], N, rules, sampling)
    assert abs(sum(right.values()) - 1) < 1e-12
    assert total_variation(enumerate_outcomes(program), right) < 1e-12


@pytest.mark.parametrize("case", CASES)
def test_so_has_a_reply_that_goes_past_the_window(case):
    rules, sampling = CASES[case]
    small, prompt = toy_target(V, 4, seed=3), [2, 0, 1]
    asked = {"sampling": sampling, "constraints": rules, "draft": Kept(1), "K": 2}

    def program(rng):
        return tuple(complete(small, prompt, N, rng=rng, **asked).tokens)

    right = reference(small, prompt, N, rules, sampling)
    assert total_variation(enumerate_outcomes(program), right) < 1e-12


SERVES = ["batch", "server", "server in parts"]
SHARED = [("all", serve) for serve in SERVES]  # in make test: all rules in each, each rule in one
SHARED += [(case, SERVES[i % 3]) for i, case in enumerate(CASES)]
SHARES = [pytest.param(*pair, marks=() if pair in SHARED else WIDE)
          for pair in itertools.product(CASES, SERVES)]  # fmt: skip


@pytest.mark.parametrize(("case", "serve"), SHARES)
def test_two_requests_that_share_passes_have_each_their_own(case, serve):
    """One under constraints, one free: the joint distribution is the product."""
    rules, sampling = CASES[case]
    prompts, n = [[2, 0], [1]], [2, 1 if case in ("penalties", "bias") else 2]

    def program(rng):
        if serve == "batch":
            made = batch_generate(
                TOY, Kept(1), prompts, n, 2, [sampling, Sampling()], [rng, rng],
                constraints=[rules, FREE],
            )  # fmt: skip
            return tuple(tuple(one.tokens) for one in made)
        limits = Limits(prefill_chunk=1 if serve == "server in parts" else 16)
        server = Server(TOY, Kept(1), 2, limits)
        server.submit(prompts[0], n[0], sampling, rng, constraints=rules)
        server.submit(prompts[1], n[1], rng=rng)
        done = {}
        while server.requests or server.finished:
            done |= server.step()
        return tuple(done[0].tokens), tuple(done[1].tokens)

    one = reference(TOY, prompts[0], n[0], rules, sampling)
    two = reference(TOY, prompts[1], n[1], FREE, Sampling())
    right = {(a, b): p * q for (a, p), (b, q) in itertools.product(one.items(), two.items())}
    assert total_variation(enumerate_outcomes(program), right) < 1e-12


def test_so_has_one_whose_draft_stops_by_its_own_q_or_works_ahead():
    """A policy sees q under the rules; a drafter that works ahead knows nothing of them."""
    rules, sampling = CASES["all"]
    right = reference(TOY, [2, 0], N, rules, sampling)

    def stopping(rng):
        asked = [[2, 0]], N, 3, sampling, [rng]
        guesses = lifted(Kept(1), 3, adaptive(by_entropy(0.9)))
        [made] = batch_generate(TOY, guesses, *asked, constraints=rules)
        return tuple(made.tokens)

    def ahead(rng):
        draft = AheadDraft(Inline(Drafter(random_draft(V, 1), 2, [1, 1, 1])), shared=True)
        return tuple(complete(TOY, [2, 0], N, rules, draft, sampling=sampling, rng=rng).tokens)

    for program in (stopping, ahead):
        assert total_variation(enumerate_outcomes(program), right) < 1e-12


# ---- Token for token, where it is long


@pytest.fixture(scope="module")
def real():
    """The fused target, rules, prompts, and what drafts are counted from."""
    target, tokenizer = checkpoint.load()
    corpus = torch.tensor(tokenizer.encode(load_corpus().text))
    train, val = train_val_split(corpus)
    lines = r"[A-Z][a-z' ,;:-]*[.!?]\n(\n|[A-Z][a-z' ,;:-]*[.!?]\n)*ZZZ"
    rules = {
        "grammar": Constraints(grammar=Grammar(lines, tokenizer.chars)),
        "penalties": Constraints(presence=0.4, frequency=0.1, repetition=1.1),
    }
    return FusedLanguageModel(target), rules, prompts_of(val, 2), train


RULES = ["grammar", "penalties"]  # in make test each draft meets one of them, the next the other
NAMED = [pytest.param(name, rule, marks=() if rule == RULES[i % 2] else WIDE)
         for i, name in enumerate([*DRAFTS, *BEST_PROPOSED]) for rule in RULES]  # fmt: skip


@pytest.mark.parametrize(("name", "rule"), NAMED)
def test_every_shipped_draft_writes_the_plain_reply_of_the_same_dice(name, rule, real):
    fused, rules, prompts, train = real
    table = ngram.load()
    if name in DRAFTS:
        draft, steps = DRAFTS[name](train, table.vocab_size), SAME
    else:
        draft, steps = proposer(name, fused, table, BEST_PROPOSED[name]), SAME_TREE
    target = getattr(draft, "target", None) or fused  # a layer that the target was trained with
    passes = 0
    for seed, prompt in enumerate(prompts):
        own = written(target, tuple(prompt), rules[rule], seed)
        rng = SameDice(seed, len(prompt))
        made = complete(target, prompt, 32, rules[rule], draft, 5, rng=rng, steps=steps)
        assert made.tokens == own.tokens
        passes += made.target_passes
    assert passes < 2 * 32


WRITTEN = {}


def written(target, prompt, rules, seed):
    """The plain reply of 32 tokens by these dice, written once."""
    key = id(target), prompt, id(rules), seed
    if key not in WRITTEN:
        WRITTEN[key] = complete(target, prompt, 32, rules, rng=SameDice(seed, len(prompt)))
    return WRITTEN[key]


FORMS = {
    "per-head": lambda blocks: TOY,
    "fused": lambda blocks: FusedLanguageModel(TOY),
    "paged": lambda blocks: FusedLanguageModel(
        TOY, BlockPool(TOY.config, blocks, 2, torch.zeros(1, dtype=torch.float64))
    ),
}
REQUESTS = [
    ([2, 0], 9, Constraints(grammar=Grammar("((ab?|c)(c|ba)+b)+cc", LETTERS))),
    ([1] * 5, 9, Constraints(presence=0.7, frequency=0.4, repetition=1.6, logprobs=True)),
    ([0, 2, 1], 9, Constraints(stop=[[0, 1, 2], [2, 2]], logprobs=True)),
    ([2], 9, FREE),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("capacity", [None, 12])
def test_a_request_in_company_is_its_plain_reply_with_all_that_is_said_of_it(form, capacity):
    """Preempted, in parts of two tokens, over restarts: tokens, reason and logprobs."""
    target = FORMS[form](40 if capacity is None else 6)
    server = Server(target, Kept(1), 3, Limits(3, 12, 2, None if form == "paged" else capacity))
    for seed, (prompt, n, rules) in enumerate(REQUESTS):
        rng = SameDice(seed, len(prompt))
        server.submit(prompt, n, Sampling(0.9), rng, constraints=rules, steps=SAME_TREE)
    requests, done = server.requests, {}
    while server.requests or server.finished:
        done |= server.step()
    assert any(r.preempted for r in requests) == (capacity is not None)
    rngs = [SameDice(seed, len(request[0])) for seed, request in enumerate(REQUESTS)]
    prompts, lengths, rules = zip(*REQUESTS, strict=True)
    together = batch_generate(
        FORMS[form](40), Kept(1), prompts, lengths, 2, Sampling(0.9), rngs,
        constraints=rules, steps=SAME_TREE,
    )  # fmt: skip
    for seed, (prompt, n, asked) in enumerate(REQUESTS):
        rng = SameDice(seed, len(prompt))
        own = complete(TOY, prompt, n, asked, sampling=Sampling(0.9), rng=rng)
        for made in (done[seed], together[seed]):
            assert (made.tokens, made.finish_reason) == (own.tokens, own.finish_reason)
            for one, other in zip(
                (made.logprobs, made.processed), (own.logprobs, own.processed), strict=True
            ):
                assert one.shape == other.shape == (len(own.tokens) * asked.logprobs, V)
                torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_tokens_per_pass_alone_in_a_batch_and_in_a_server_are_equal(real):
    """Exact and slow would be no news: guesses obey wherever a reply is written."""
    fused, rules, prompts, _ = real
    draft, n = ngram.load(), 40
    for rule in rules.values():
        alone = [complete(fused, x, n, rule, draft, 6, Sampling(0)) for x in prompts]
        batch = batch_generate(fused, draft, prompts, n, 6, Sampling(0), constraints=rule)
        server, done = Server(fused, draft, 6), {}
        for prompt in prompts:
            server.submit(prompt, n, Sampling(0), constraints=rule)
        while server.requests or server.finished:
            done |= server.step()
        for i, one in enumerate(alone):
            assert one.tokens == batch[i].tokens == done[i].tokens
            assert one.target_passes == batch[i].target_passes == done[i].target_passes


def test_a_draft_that_obeys_is_kept_more_often_than_one_that_does_not(real):
    fused, rules, prompts, _ = real
    table = ngram.load()

    for rule in rules.values():
        passes = [
            sum(complete(fused, x, 60, rule, draft, 6, Sampling(0)).target_passes for x in prompts)
            for draft in (table, Deaf(table))
        ]
        assert passes[0] < passes[1]


def test_where_one_token_alone_may_come_the_draft_is_not_asked():
    asked = []

    class Asked(Draft):
        vocab_size = V

        def get_probs(self, context):
            asked.append(list(context))
            return torch.full((V,), 1 / V, dtype=torch.float64)

    rules = Constraints(grammar=Grammar("abcabc(a|b)", LETTERS))
    made = complete(TOY, [0], 9, rules, Asked(), K=6)
    assert made.tokens[:6] == [0, 1, 2, 0, 1, 2] and len(made.tokens) == 7
    assert made.finish_reason == "stop" and made.target_passes == 1 and not asked


def test_a_draft_that_knows_none_of_the_allowed_tokens_guesses_one_of_them():
    class Only(Draft):  # it would always say a
        vocab_size = V

        def get_probs(self, context):
            return torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)

    rules = Constraints(grammar=Grammar("([bc][bc])+a", LETTERS))
    made = complete(TOY, [0], 6, rules, Only(), K=2, rng=RandomSource(0))
    first = made.rounds[0]
    assert first.candidates and set(first.candidates) <= {1, 2}
    assert first.draft_probs[0].tolist() == [0.0, 0.5, 0.5]


def test_a_stop_token_is_the_last_of_its_reply_and_a_reason():
    free = complete(TOY, [0], 9, rng=RandomSource(1))
    stop = free.tokens[3]
    made = complete(TOY, [0], 9, rng=RandomSource(1), stop_token=stop)
    assert made.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert (made.finish_reason, free.finish_reason) == ("stop", "length")


# ---- Stop strings and streaming


def splits(n):
    """All ways to cut n tokens into rounds: the sizes."""
    for cuts in itertools.product([False, True], repeat=n - 1):
        sizes, size = [], 1
        for cut in cuts:
            sizes, size = ([*sizes, size], 1) if cut else (sizes, size + 1)
        yield [*sizes, size]


STOPS = [
    [[0, 1]],
    [[1], [0, 1]],
    [[2, 2, 0]],
    [[0, 0, 1], [1, 2]],
    [[1], [0, 1, 1]],
    [[0, 1, 0, 1]],
    [[2]],
]


@pytest.mark.parametrize("n", [4, pytest.param(5, marks=WIDE)])
@pytest.mark.parametrize("stops", STOPS, ids=str)
def test_a_stop_string_ends_a_reply_however_rounds_are_cut_and_is_never_sent(stops, n):
    rules = Constraints(stop=stops, logprobs=True)
    even = {size: torch.full((size, V), 1 / V, dtype=torch.float64) for size in range(1, n + 1)}
    even = {size: (p, p.log()) for size, p in even.items()}
    for text in itertools.product(range(V), repeat=n):
        text, ends = list(text), []
        for end in range(1, n + 1):
            found = [len(s) for s in stops if text[:end][-len(s) :] == s]
            if found:
                ends = text[: end - max(found)]
                break
        else:
            ends = text
        stopped = ends != text
        for sizes in splits(n):
            reply, at, sent = Reply(TOY, [0], n, constraints=rules), 0, []
            for size in sizes:
                if reply.done:
                    break
                emitted, at = text[at : at + size], at + size
                p, reply.said = even[size]
                reply.take(Round(emitted[:-1], p[:-1], p, emitted, reply.position), None)
                now = reply.sendable
                assert now[: len(sent)] == sent  # nothing is taken back
                sent = now
            made = reply.generation()
            assert made.tokens == sent == ends
            assert made.finish_reason == ("stop" if stopped else "length")
            assert len(made.logprobs) == len(made.processed) == len(ends)
    held = Constraints(stop=[[0, 0, 1]]).held_back
    assert [held(x) for x in ([], [0], [0, 0], [1, 0, 0, 0], [0, 1], [0, 0, 1, 0])] == [
        *(0, 1, 2),
        *(2, 0, 1),
    ]


def test_a_stream_holds_back_what_may_become_a_stop_string_and_sends_it_if_it_does_not():
    reasons = set()
    for seed in range(24):
        prompt, stop = [2, 0], [[0, 0, 2], [1, 1]]
        rules, dice = Constraints(stop=stop), SameDice(seed, 2)
        own = complete(TOY, prompt, 12, rules, rng=SameDice(seed, 2))
        server = Server(TOY, Kept(1), 4)
        id = server.submit(prompt, 12, rng=dice, constraints=rules, steps=SAME_TREE)
        assert list(server.stream(id)) == own.tokens
        assert not any(own.tokens[i : i + len(x)] == x for x in stop for i in range(12))
        reasons.add(own.finish_reason)
    assert reasons == {"stop", "length"}


# ---- logprobs


def test_logprobs_are_those_of_the_model_and_processed_those_that_were_drawn_from():
    rules = Constraints(bias={0: 1.0}, presence=0.5, logprobs=True)
    for draft in (None, Kept(1), Grown(Kept(1), [2, 1])):
        for seed in range(10):
            made = complete(TOY, [2, 0], 5, rules, draft, 3, Sampling(0.7), RandomSource(seed))
            text = [2, 0, *made.tokens]
            logits = TOY(torch.tensor([text]))[0][0, 1:-1]
            right = logits.log_softmax(-1)
            torch.testing.assert_close(made.logprobs, right, rtol=0, atol=1e-9)
            for i, row in enumerate(logits):
                row = row.clone()
                row[0] += 1.0
                for token in set(made.tokens[:i]):
                    row[token] -= 0.5
                own = (row / 0.7).log_softmax(-1)
                torch.testing.assert_close(made.processed[i], own, rtol=0, atol=1e-9)


def test_a_reply_that_is_cancelled_says_no_reason():
    server = Server(TOY, Kept(1), 2)
    id = server.submit([1], 9, constraints=Constraints(logprobs=True))
    server.step()
    made = server.cancel(id)
    assert made.finish_reason is None and len(made.logprobs) == len(made.tokens) > 0


# ---- Bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"presence": math.nan}, "presence is nan; it must be finite (0 changes nothing)"),
        ({"frequency": math.inf}, "frequency is inf; it must be finite (0 changes nothing)"),
        ({"bias": {3: math.nan}}, "bias of token 3 is nan; it must be finite"),
        ({"repetition": 0}, "repetition is 0; it must be above 0 (1 changes nothing)"),
        ({"repetition": math.inf}, "repetition is inf; it must be above 0"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be from 0 (no change) to 1"),
        ({"min_p": math.nan}, "min_p is nan; it must be from 0 (no change) to 1"),
        ({"stop": "end"}, "stop is a list of strings as tokens"),
        ({"stop": ["end"]}, "stop is a list of strings as tokens"),
        ({"stop": [1, 2]}, "stop is a list of strings as tokens"),
        ({"stop": [[1], []]}, "a stop string is empty"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Constraints(**given)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (Constraints(grammar=Grammar("a", "ab")), "the grammar is over 2 tokens and the target"),
        (Constraints(grammar=Grammar("", LETTERS)), "matches the empty text alone"),
        (Constraints(bias={3: 1.0}), "bias or stop names token 3; tokens are 0 to 2"),
        (Constraints(stop=[[0, -1]]), "bias or stop names token -1; tokens are 0 to 2"),
    ],
)
def test_constraints_that_do_not_fit_the_target_are_refused_before_any_pass(rules, said):
    for ask in (
        lambda: complete(TOY, [1], 3, rules),
        lambda: batch_generate(TOY, Kept(1), [[1]], 3, constraints=rules),
        lambda: Server(TOY).submit([1], 3, constraints=rules),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            ask()


# ---- Several ends at once


def cut_by_hand(tokens, n, stop_token, stops):
    """What a reply of these tokens is, and why it ends: looked at token by token."""
    for end in range(1, n + 1):
        reply = tokens[:end]
        found = [len(s) for s in stops if reply[-len(s) :] == s]
        if found:
            return reply[: end - max(found)], "stop"
        if reply[-1] == stop_token:
            return reply, "stop"
    return tokens[:n], "length"


def reply_of(loop, prompt, n, rules, stop_token, dice):
    """A reply by the same dice, from a loop."""
    drafts = {"chain": Kept(1), "tree": Grown(Kept(1), [2, 1])}
    if loop in ("plain", *drafts):
        steps = SAME_TREE if loop == "tree" else SAME
        return complete(TOY, prompt, n, rules, drafts.get(loop), 3, FREELY, dice, stop_token, steps)
    if loop == "batch":
        given = {"stop_token": stop_token, "constraints": rules, "steps": SAME_TREE}
        return batch_generate(TOY, Kept(1), [prompt], n, 3, rngs=[dice], **given)[0]
    server = Server(TOY, Kept(1), 3)
    id = server.submit(prompt, n, FREELY, dice, stop_token, rules, SAME_TREE)
    while True:
        if id in (finished := server.step()):
            return finished[id]


FREELY = Sampling()


AT_ONCE = [("token", 2), ("string", 2), ("token string", 2), ("grammar", 3), ("grammar token", 3)]


@pytest.mark.parametrize(("ends", "place"), AT_ONCE)
def test_ends_that_come_at_once_or_in_any_order_make_one_reply_and_one_reason(ends, place):
    """Budget, stop token, stop string, grammar and window, one token apart or at the same one."""
    for full, budget in itertools.product((0, 1), (-1, 0, 1)):
        prompt, n, free = [0] * (TOY.config.block_size + full - place), place + budget, [0]
        seeds = itertools.count()
        while len({*free[:place]}) < place:  # what comes last is not there before
            seed = next(seeds)
            free = complete(TOY, prompt, place + 1, rng=SameDice(seed, len(prompt))).tokens
        stop_token = free[place - 1] if "token" in ends else None
        stops = [free[place - 2 : place]] if "string" in ends else []
        grammar = None
        if "grammar" in ends:
            grammar = Grammar("".join(LETTERS[token] for token in free[:place]), LETTERS)
        rules = Constraints(grammar, stop=stops, logprobs=True)
        right = cut_by_hand(free[:place] if grammar else free, n, stop_token, stops)
        if grammar and n >= place:
            right = (right[0], "stop")
        for loop in ("plain", "chain", "tree", "batch", "server"):
            dice = SameDice(seed, len(prompt))
            made = reply_of(loop, prompt, n, rules, stop_token, dice)
            assert (made.tokens, made.finish_reason) == right, (loop, full, budget)
            assert len(made.logprobs) == len(made.processed) == len(made.tokens)


def test_tokens_just_at_the_border_of_min_p_stay():
    """With min_p = 1, the likeliest tokens alone: all of them, as none is below itself."""
    changed = Constraints(min_p=1).logits(torch.tensor([[0.5, 2.0, 2.0]]), [Past()])
    assert changed.tolist() == [[-torch.inf, 2.0, 2.0]]
