"""The benchmark measures pairs, and says what it measured."""

import json
import math
import re
import time
from dataclasses import replace
from functools import partial
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts import ngram
from nanogpt.drafts.best import BestFirst
from nanogpt.drafts.shipped import BEST, BEST_BLOCKS, BEST_PROPOSED, DRAFTS, NODES, PROPOSERS
from nanogpt.generate import Generation, Round
from nanogpt.measure import bench, clock, costs
from nanogpt.measure.bench import (
    ALL,
    POLICIES,
    RULES,
    SHORT,
    Pair,
    Setting,
    TimedTarget,
    bending,
    line,
    main,
    measure,
    parse_arguments,
    picture,
    policy_of,
    run,
    settings_of,
    summary,
    tokens_a_pass,
)
from nanogpt.measure.clock import free_cores, prompts_of
from nanogpt.measure.costs import calibrate, cost_growth, expected_blocks
from nanogpt.proof.exact import enumerate_outcomes
from nanogpt.proof.toys import random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import CHAIN, Draft, speculative_generate
from nanogpt.targets.fused import TARGETS, FusedLanguageModel
from nanogpt.theory import best_K, expected_tokens
from nanogpt.trees.loop import TREE, tree_generate
from nanogpt.trees.rules import accept_blockwise, accept_traversal, accept_tree
from nanogpt.trees.tree import TreeRound


@pytest.fixture
def quick(monkeypatch):
    """For who looks at what is printed, and not at the times."""
    monkeypatch.setattr(bench, "cost_growth", partial(cost_growth, times=2))


def test_it_prints_a_row_for_each_combination(quick, capsys, tmp_path):
    out, png = tmp_path / "rows.json", tmp_path / "rows.png"
    rows = ["--draft", "bigram", "--K", "1", "3", "--temperature", "0", "1.5"]
    rows += ["--rule", "block", "token"]
    main([*rows, "--pairs=2", "--tokens=4", f"--json={out}", f"--picture={png}"])
    printed, progress = capsys.readouterr()
    assert re.search(r"16 rows, about \d+\.\d minutes", progress) and "pairs: 100%" in progress
    assert re.search(r"bigram draft: built in \d+\.\d\d s", printed)
    rows = [text.split() for text in printed.splitlines() if "│" in text][1:]
    assert len(rows) == 2 * 2 * 2 * 2 == len(json.loads(out.read_text()))
    assert {row[0] for row in rows} == set(TARGETS) and {row[2] for row in rows} == {"1", "3"}
    assert {row[4] for row in rows} == set(RULES)
    assert all("×" in " ".join(row) and row[-1].endswith("%") for row in rows)
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("targets", [["fused"], pytest.param([*TARGETS], marks=pytest.mark.wide)])
def test_drafts_that_propose_trees_are_raced_as_well(quick, capsys, targets):
    main(["--draft", *PROPOSERS, "--target", *targets, "--pairs=1", "--tokens=6"])
    rows = [text.split() for text in capsys.readouterr()[0].splitlines() if "│" in text][1:]
    assert [row[1] for row in rows] == list(PROPOSERS) * len(targets)
    for row in rows:
        assert "×" in " ".join(row) and row[2].strip(",") == str(BEST_PROPOSED[row[1]])
        assert row[1] not in NODES or row[3:5] == [str(NODES[row[1]]), "n"]


def test_the_parts_of_a_trees_round_are_clocked():
    target, _ = checkpoint.load()
    draft = PROPOSERS["exit"](target, None, 2)
    pair = measure(target, draft, [1, 2, 3], 12, 2, Sampling(), seed=1)
    assert all(pair.shares[part] > 0 for part in ("target", "draft", "accept", "cache", "prefill"))
    assert sum(pair.shares.values()) < 1 and pair.made.rounds[0].path is not None


def test_the_short_tour_is_the_default_and_has_winners_and_losers():
    settings = settings_of(parse_arguments([]))
    assert settings == SHORT and len(SHORT) <= 10
    assert {s.target for s in settings} == set(TARGETS)
    assert {"distilled", "bigram", "lookup"} < {s.draft for s in settings}
    assert {s.rule for s in settings} == set(RULES)


def test_the_long_tour_visits_what_it_must():
    settings = settings_of(parse_arguments(["--all"]))
    assert settings == list(dict.fromkeys(ALL))
    for target in TARGETS:
        mine = [s for s in settings if s.target == target]
        assert {s.draft for s in mine} == set(DRAFTS) | set(PROPOSERS)
        assert set(DRAFTS) == set(BEST)
        assert {s.temperature for s in mine} == {0.0, 1.0, 1.5}
        assert {1, 16} <= {s.K for s in mine if s.draft == "distilled"}
        assert {*POLICIES} <= {s.policy for s in mine if s.draft == "distilled"}
        assert {15, 23, 31} <= {s.K for s in mine if s.rule == "block"}
    for tour, more in (
        ("--all", ["--K", "4"]),
        ("--settings", ["--K", "4"]),
        ("--all", ["--settings"]),
    ):
        with pytest.raises(ValueError, match=f"{tour} is a tour of its own; leave out --"):
            settings_of(parse_arguments([tour, *more]))
    tour = settings_of(parse_arguments(["--settings"]))
    assert {bending(s) for s in tour} == {"1", "0", "0.7", "0.7 p 0.9", "1 k 20"}
    assert tour[-1].sampling == Sampling(1, top_k=20) and len(tour) == 10
    words = "--temperature 0 0.7 --top-k 9 --top-p 0.9"
    cut = settings_of(parse_arguments(words.split()))
    assert {s.sampling for s in cut} == {Sampling(T, 9, 0.9) for T in (0, 0.7)}
    with pytest.raises(ValueError, match="top_k is 0"):
        main(["--top-k", "0", "--pairs", "1"])


def test_the_best_draft_is_the_default():
    settings = settings_of(parse_arguments(["--target", "fused"]))
    assert settings == [Setting("fused", "distilled", BEST["distilled"], 1.0)]
    blocks = settings_of(parse_arguments(["--rule", "block"]))
    assert blocks == [
        Setting(target, "distilled", BEST_BLOCKS["distilled"], 1.0, "block") for target in TARGETS
    ]
    assert all((s.K + 1) % 8 == 0 for s in blocks), "passes are cheapest over multiples of 8 rows"


MADE = Generation(
    [1, 2, 3, 4, 5],
    [
        Round([1, 2], torch.empty(0), torch.empty(0), [1, 2, 3], 0),
        Round([4, 4], torch.empty(0), torch.empty(0), [4, 5], 3),
    ],
)
SHARES = {"prefill": 0.1, "target": 0.6, "draft": 0.1, "accept": 0.05, "cache": 0.05}


def test_the_speed_up_is_a_ratio_of_seconds_and_the_time_outside_a_difference():
    pair = Pair(3.0, 2.0, 1.5, SHARES, MADE)
    assert pair.speed_up == 1.5 and pair.outside == 0.5


def test_a_row_shows_the_pairs_all_texts_together_and_the_equations_prediction():
    setting = Setting("fused", "bigram", 2, 1.0)
    pairs = [Pair(ratio, 1.0, 0.7, SHARES, MADE) for ratio in (1.0, 9.0, 2.0)]
    row = summary(setting, pairs)
    assert row.speed_up == 2.0 and row.quartiles == (1.0, 9.0)
    assert row.together == pytest.approx(4.0), "12 s of plain decoding over 3, no median of ratios"
    assert row.alpha == 3 / 4 and row.drafted == 2 and row.tokens_per_pass == 2.5
    assert row.error == 0, "three equal texts"
    assert row.shares["rest"] == pytest.approx(0.1)
    assert row.outside == pytest.approx(0.15), "0.3 s of each text, in two rounds"
    plain = (1.0 + 9.0 + 2.0) / 15  # seconds per token
    assert row.predicted == pytest.approx(expected_tokens(0.75, 2) / (3 / 6 / plain))
    assert line(row).split()[:2] == ["fused", "bigram"] and "2.00×" in line(row)
    assert "4.00×" in line(row) and "2.50 ± 0.00" in line(row) and "150000 µs" in line(row)
    assert row.guess_seconds == pytest.approx(0.1 * 3 / 12)


def test_a_draft_that_never_guesses_has_a_row_too():
    made = Generation([1], [TreeRound([], torch.empty(0), torch.empty(0), [1], 0, [], [])])
    row = summary(Setting("fused", "mine", None, 1.0), [Pair(1.0, 1.0, 0.7, SHARES, made)])
    assert row.drafted == 0 and row.predicted is None and math.isnan(row.guess_seconds)


def test_blocks_have_no_alpha_and_neither_they_nor_trees_a_prediction():
    """From what the same rounds emitted and took it would be `together` under another name."""
    row = summary(Setting("fused", "bigram", 2, 1.0, "block"), [Pair(2.0, 1.0, 0.7, SHARES, MADE)])
    assert row.alpha is None and "block" in line(row) and "–" in line(row)
    grown = replace(MADE, rounds=[TreeRound(*vars(r).values(), [-1, 0], []) for r in MADE.rounds])
    tree = summary(Setting("fused", "mine", 2, 1.0), [Pair(2.0, 1.0, 0.7, SHARES, grown)])
    assert row.predicted is None and tree.predicted is None and tree.alpha is not None
    chain = summary(Setting("fused", "tree", 2, 1.0), [Pair(2.0, 1.0, 0.7, SHARES, MADE)])
    assert chain.predicted is not None, "rounds say what a draft is, names do not"
    assert picture([replace(row, setting=replace(row.setting, K=K)) for K in (2, 4)])


def test_a_timed_target_is_the_same_target():
    target, draft = toy_target(7, 8), random_draft(7)
    timed = TimedTarget(target)
    same = [
        speculative_generate(t, draft, [0], 20, 2, rng=RandomSource(1)) for t in (target, timed)
    ]
    assert same[0].tokens == same[1].tokens and timed.spent > 0
    assert timed.passes == same[1].target_passes


def test_a_pair_is_measured_on_the_same_text():
    target, draft = toy_target(7, 32), random_draft(7)
    pair = measure(target, draft, [0, 1], 20, 3, Sampling(), 5)
    same = speculative_generate(target, draft, [0, 1], 20, 3, Sampling(), RandomSource(5))
    assert pair.made.tokens == same.tokens
    assert 0 < pair.target_seconds < pair.seconds and pair.plain_seconds > 0
    assert set(pair.shares) == set(SHARES)
    assert pair.shares.pop("prefill") == 0, "what is unread enters with the first guesses"
    assert all(0 < s < 1 for s in pair.shares.values()) and sum(pair.shares.values()) < 1
    request = target, draft, [0, 1], 20, 3, Sampling()
    block = speculative_generate(
        *request, RandomSource(5), steps=replace(CHAIN, accept=accept_blockwise)
    )
    pair = measure(*request, 5, "block")
    assert pair.made.tokens == block.tokens and pair.shares["accept"] > 0


def test_the_decoders_take_turns_at_going_first(monkeypatch):
    order = []
    for name in ("autoregressive_generate", "speculative_generate"):

        def decode(*_, name=name, real=getattr(bench, name), **request):
            order.append(name.split("_")[0])
            return real(*_, **request)

        monkeypatch.setattr(bench, name, decode)
    target, draft = toy_target(7, 32), random_draft(7)
    pairs = [measure(target, draft, [0, 1], 20, 3, Sampling(), seed) for seed in (0, 1)]
    first, second = order[:3], order[3:]  # the third of each is the one with the clock on its parts
    assert first == ["autoregressive", "speculative", "speculative"]
    assert second == ["speculative", "autoregressive", "speculative"]
    assert all(pair.plain_seconds > 0 < pair.seconds for pair in pairs)


def test_costs_are_positive_and_a_policy_is_made_of_them():
    target, draft = toy_target(7, 128), random_draft(7)
    costs = calibrate(target, draft)
    assert costs["draft_cost"] > 0 < costs["rest"] and costs["verify_cost"](4) >= 1
    assert 1 <= best_K(0.5, **costs) <= 16, "they are what the equation takes"
    for name in POLICIES:
        most, _ = policy_of(name, target, draft)([])
        assert 1 <= most <= 16
    assert policy_of(None, target, draft) is None


def test_prompts_are_spread_over_the_text():
    prompts = prompts_of(torch.arange(1000), 4)
    assert [prompt[0] for prompt in prompts] == [0, 245, 490, 735]
    assert all(len(prompt) == 20 for prompt in prompts)
    with pytest.raises(ValueError, match="do not fit"):
        prompts_of(torch.arange(30), 20)


def test_tokens_per_pass_are_pooled_in_a_row():
    """The median of 100 / passes can only be 100/9, 100/10, …: it hides a gain of a tenth."""
    rounds = [Round([1], torch.empty(0), torch.empty(0), [1], 0)] * 12
    texts = [Generation([0] * 100, rounds[:n]) for n in (10, 10, 12, 10, 9)]
    row = summary(Setting("fused", "mine", 1, 1.0), [Pair(1, 1, 0.7, SHARES, g) for g in texts])
    assert row.tokens_per_pass == pytest.approx(500 / 51) and 0.2 < row.error < 0.6


class Own(Draft):
    """Guesses by a target's own p, made a little flatter."""

    def __init__(self, target, flatter=0.0):
        self.target, self.flatter, self.vocab_size = target, flatter, target.config.vocab_size

    def draw(self, context, K, sampling, rng):
        tokens, rows = list(context), []
        for _ in range(K):
            p = Sampling().probs(self.target(torch.tensor([tokens]))[0][0, -1])
            rows.append((1 - self.flatter) * p + self.flatter / self.vocab_size)
            tokens.append(rng.categorical(rows[-1]))
        return tokens[len(context) :], torch.stack(rows)


@pytest.mark.parametrize("form", TARGETS)
def test_a_block_of_the_targets_own_guesses_brings_all_of_them(form):
    toy = toy_target(5, 16, seed=1).double()
    prompts = [[0, 1], [2, 3], [4, 4]]
    found = expected_blocks(TARGETS[form](toy), Own(toy), prompts, [1, 4], cuts=3)
    assert found == {
        1: (pytest.approx(2), pytest.approx(0)),
        4: (pytest.approx(5), pytest.approx(0)),
    }


def test_what_a_block_brings_is_what_decoding_keeps_of_it():
    """One block after one known context: enumerated, guesses and coins."""
    toy = toy_target(3, 6, seed=3).double()
    draft, context, K = Own(toy, 0.9), [0, 1], 2

    def program(rng):
        guesses, q = draft.draw(context, K, Sampling(), rng)
        p = Sampling().probs(toy(torch.tensor([context + guesses]))[0][0, len(context) - 1 :])
        return tuple(accept_blockwise(guesses, q, p, rng))

    right = sum(chance * len(came) for came, chance in enumerate_outcomes(program).items())
    # With one cut, the context is the prompt.
    many = expected_blocks(toy, draft, [context] * 2000, [K], cuts=1)[K]
    assert abs(many[0] - right) < 5 * many[1] and many[1] < 0.02
    assert 1.5 < right < 2.85


def test_a_chain_that_stops_early_brings_what_its_guesses_bring():
    """One row, whose alpha allows a single guess a chain."""
    toy, root = toy_target(3, 16, seed=1), np.zeros(1, dtype=int)
    table = torch.tensor([[0.2, 0.3, 0.5]])
    stops = ngram.NGramAutomaton(root, root, table, np.array([0.5]), least=0.5)
    goes_on = ngram.NGramAutomaton(root, root, table)
    prompts = [[0, 1]] * 20
    found = expected_blocks(toy, stops, prompts, [1, 4])
    assert found[1] == found[4] and 1 < found[1][0] < 2
    assert expected_blocks(toy, goes_on, prompts, [4])[4][0] > found[4][0]


def test_blocks_that_do_not_fit_into_the_window_are_refused():
    toy = toy_target(3, 8)
    with pytest.raises(ValueError, match="2 tokens of prompt, 3 cuts and blocks of 4 do not fit"):
        expected_blocks(toy, Own(toy), [[0, 1]], [4], cuts=3)


def test_what_blocks_bring_is_printed_below_the_table(quick, capsys, monkeypatch):
    monkeypatch.setattr(bench, "BLOCK_TEXTS", 4)
    main(["--rule", "block", "--K", "3", "5", "--target", "fused", "--pairs=1", "--tokens=8"])
    (said,) = [x for x in capsys.readouterr().out.splitlines() if "no coin" in x]
    assert re.fullmatch(
        r"distilled: a block brings, no coin tossed, on average "
        r"3\.\d\d ± \d\.\d\d tokens at K = 3, [45]\.\d\d ± \d\.\d\d tokens at K = 5",
        said,
    ), said


def test_a_picture_needs_a_number():
    setting = Setting("fused", "bigram", None, 1.0, policy="entropy")
    row = summary(setting, [Pair(1, 1, 0.7, SHARES, MADE)])
    with pytest.raises(ValueError, match="no row to draw"):
        picture([row])
    assert picture([row, replace(row, setting=Setting("fused", "bigram", 2, 1.0))])


@pytest.mark.parametrize(
    "wrong",
    [
        *(["--pairs=0"], ["--tokens=0"], ["--K=0"], ["--temperature=-1"], ["--K", "2", "-1"]),
        *(
            ["--draft=exit", "--rule=block"],
            ["--draft=tree", "--policy=entropy"],
            ["--draft=bigram", "--nodes=4"],
            ["--policy=entropy", "--K=4"],
            ["--draft=exit", "--K=0"],
        ),
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        main(wrong)


@pytest.mark.parametrize(
    ("share", "free"), [(1.0, 2), (0.9, 2), (0.67, 1), (0.5, 1), (0.4, 1), (0.3, 0)]
)
def test_a_core_that_is_a_quarter_anothers_is_free_and_a_third_is_not(monkeypatch, share, free):
    """Two threads that got such a share of the time that went by, on a clock of the test's own.

    It goes on by a hundredth of a second whenever it is looked at.
    """
    now = [0.0]

    def look():
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr(time, "perf_counter", look)
    monkeypatch.setattr(time, "process_time", lambda: 2 * share * now[0])
    assert free_cores(2, seconds=1.0) == free


def test_the_cores_are_asked_by_that_many_threads_at_once():
    """On a machine with more cores than threads, or fewer, none is counted that is not wanted."""
    assert free_cores(1, seconds=0.05) <= 1
    used, began = time.process_time(), time.perf_counter()
    free_cores(2, seconds=0.05)
    assert 0 < time.process_time() - used and time.perf_counter() - began >= 0.05


@pytest.mark.slow
def test_the_bars_of_the_design_hold():
    """On a quiet machine: a minute or two. Times are not tested where others run beside it."""
    torch.set_num_threads(1)
    target, tokenizer = checkpoint.load()
    _, held_out = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    targets = {name: make(target) for name, make in TARGETS.items()}
    settings = [
        Setting(name, "distilled", K, 1.0, "block") for name in targets for K in (15, 23, 31)
    ]
    pairs = run(settings, targets, {"distilled": ngram.load()}, prompts_of(held_out, 40), 100)
    rows = [summary(setting, mine) for setting, mine in zip(settings, pairs, strict=True)]
    for name, speed, outside in (("per-head", 7.5, 350e-6), ("fused", 6.0, 260e-6)):
        mine = (row for row in rows if row.setting.target == name)
        best = max(mine, key=lambda row: row.speed_up)
        assert best.speed_up >= speed and best.outside <= outside, best
    growth = median(cost_growth(FusedLanguageModel(target)) for _ in range(3))
    assert growth <= 1.15


def test_a_policy_can_be_measured_on_rows_that_decoding_makes(quick, capsys):
    """Counted tables make rows in inference mode; the second target meets them."""
    main(["--draft", "counts", "--policy", "entropy", "--pairs=1", "--tokens=8"])
    assert capsys.readouterr().out.count("counts ") >= 2


@pytest.mark.parametrize(("rule", "accept"), [("token", accept_tree), ("block", accept_traversal)])
def test_a_tree_is_timed_and_counted_by_the_rule_that_is_asked_for(rule, accept):
    target, draft = toy_target(5, 32), BestFirst(random_draft(5), 6, lambda q: float(q.max()))
    steps = replace(TREE, accept=accept)
    made = tree_generate(target, draft, [0, 1], 60, rng=RandomSource(3), steps=steps)
    pair = measure(target, draft, [0, 1], 60, None, Sampling(), 3, rule)
    assert pair.made.tokens == made.tokens
    ratio, _ = tokens_a_pass(target, draft, [[0, 1]], rule=rule, n=60)
    one = tree_generate(target, draft, [0, 1], 60, rng=RandomSource(0), steps=steps)
    assert ratio == len(one.tokens) / one.target_passes


def test_tokens_a_pass_are_pooled_with_the_error_of_a_ratio():
    def text(tokens, passes):
        return Generation([0] * tokens, [None] * passes)

    ratio, error = bench.pooled([text(10, 5), text(12, 4), text(8, 3)])
    assert ratio == 30 / 12  # not the mean of 2, 3 and 2.67
    off = [10 - 12.5, 12 - 10.0, 8 - 7.5]
    assert error == pytest.approx((1.5 * sum(x**2 for x in off)) ** 0.5 / 12)
    assert math.isnan(bench.pooled([text(10, 5)])[1])
    assert bench.pooled([text(6, 3)] * 4) == (2, 0)
    four = Generation([], [Round([1] * 4, None, None, [1, 1, 1, 2], 0)])  # 3 of 4 were right
    two = Generation([], [Round([1] * 2, None, None, [1, 2], 0)])  # 1 of 2
    alpha, error = bench.pooled([four, two], bench.acceptance)
    assert alpha == 4 / 6 and error == pytest.approx((2 * 2 / 9) ** 0.5 / 6)
    assert all(map(math.isnan, bench.pooled([Generation([], [])] * 2, bench.acceptance)))


def test_costs_are_in_passes_over_one_token_by_a_clock_of_our_own(monkeypatch):
    """A pass over T tokens takes 3 + T seconds, a guess 2, a verdict 1.5 and a trim half a one."""
    now, toy = [0.0], toy_target(7, 128)

    def taking(seconds, do):
        def timed(*args, **more):
            now[0] += seconds
            return do(*args, **more)

        return timed

    def target(idx, past_kvs=None):
        return taking(3 + idx.shape[1], toy)(idx, past_kvs=past_kvs)

    target.config, target.device, draft = toy.config, toy.device, random_draft(7)
    draft.get_probs = taking(2, draft.get_probs)
    monkeypatch.setattr(costs, "accept_reject", taking(1.5, costs.accept_reject))
    monkeypatch.setattr(costs, "first", taking(0.5, costs.first))
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = calibrate(target, draft, times=2)
    assert found["draft_cost"] == 2 / 4 and found["rest"] == (1.5 + 0.5) / 4
    assert [found["verify_cost"](K) for K in (0, 4, 16)] == [1, (3 + 5) / 4, (3 + 17) / 4]


def test_the_minutes_that_are_told_are_those_of_all_pairs(monkeypatch, capsys):
    """A warm-up of 40 tokens takes 30 s: 80 tokens of 2 rows on 3 prompts, 6 minutes."""
    monkeypatch.setattr(bench, "clock", lambda do: (30.0, None))
    monkeypatch.setattr(bench, "measure", lambda **how: 7)
    settings = [Setting("fused", "bigram", K, 1.0) for K in (1, 2)]
    assert run(settings, {"fused": None}, {"bigram": None}, [[0]] * 3, 80) == [[7] * 3] * 2
    assert "2 rows, about 6.0 minutes" in capsys.readouterr().err
