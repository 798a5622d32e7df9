"""The audit passes right engines, refuses wrong ones in one line, and knows what it can see."""

import copy
import dataclasses
import itertools
import json
import re
from collections import Counter
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from conftest import make_model
from tqdm import tqdm

from nanogpt.__main__ import main as nanogpt
from nanogpt.data import DATA_DIR
from nanogpt.drafts import transformer
from nanogpt.engines import adapters, audit, places
from nanogpt.engines.adapters import Engine
from nanogpt.engines.audit import Plan, Truth, behind_the_best, powers, resampled
from nanogpt.engines.export import export_pair
from nanogpt.generate import autoregressive_generate
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.checks import exact_continuations
from nanogpt.proof.decoders import constrained_decoder
from nanogpt.proof.exact import enumerate_outcomes, total_variation
from nanogpt.proof.gallery import mutant
from nanogpt.proof.statistics import (
    LEVEL,
    by_rank,
    chi_squared,
    draws,
    exact_joint,
    marginal,
    merged,
    next_probs,
    own_probs,
    p_text,
    p_value,
    power,
    score,
    surely_seen,
)
from nanogpt.proof.toys import Deaf, TableDraft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.grammar import Grammar
from nanogpt.targets.fused import FusedLanguageModel


@pytest.fixture(scope="module")
def shipped(pair):
    """As Truth.of makes it, of two greedy texts and two tokens: three are 65 times more."""
    target, draft = (copy.deepcopy(model).double() for model in pair[:2])
    tokenizer = pair[-1]
    tokens = tokenizer.encode("and a")
    tables = []
    for probs in (next_probs(target, tokens), resampled(target, draft, tokens)):
        joint = exact_joint(probs, tokens, 2)
        tables.append({tokens: marginal(joint, tokens) for tokens in ((1,), (0, 1))})
    greedy = [tokenizer.encode(text) for text in audit.GREEDY[:2]]
    return Truth(target, greedy, tokens, "and a", *tables)


class Letters:
    """Text as tokens of a toy's small vocabulary."""

    def encode(self, text):
        return [ord(char) % 7 for char in text]


@pytest.fixture(scope="module")
def truth():
    return Truth.of(toy_target(7, 128), toy_target(7, 128, seed=1), Letters(), "toy")


@pytest.fixture(scope="module")
def faithful(truth):
    """A right mode that costs little: known greedy texts, and draws from the target's own p."""
    known = {
        tuple(prompt): autoregressive_generate(truth.target, prompt, 100, Sampling(0)).tokens
        for prompt in truth.greedy
    }

    def generate(prompts, n, sampling, seed):
        if sampling.temperature == 0:
            return [list(known[tuple(prompt)]) for prompt in prompts]
        return drawn(truth.target, prompts, n, sampling, seed).tolist()

    return generate


def drawn(target, prompts, n, sampling, seed, change=lambda i, p: p):
    """n tokens after each prompt, all of one length, by the target's p; change(i, p) spoils it."""
    generator = torch.Generator().manual_seed(seed)
    rows, T = torch.tensor(prompts), len(prompts[0])
    for i in range(n):
        with torch.no_grad():
            p = sampling.probs(target(rows)[0][:, -1])
        rows = torch.cat([rows, torch.multinomial(change(i, p), 1, generator=generator)], dim=1)
    return rows[:, T:]


def audited(truth, *modes, samples=400, counts=None):
    modes = {f"mode {i}": mode for i, mode in enumerate(modes, 1)}
    return audit.audit(Engine("ours", "1", modes, counts), Plan(truth, samples=samples))


def only(engine, *modes):
    return dataclasses.replace(engine, modes={mode: engine.modes[mode] for mode in modes})


# The truth


def test_the_exact_joint_is_what_enumeration_of_the_decoder_gives():
    target = toy_target(3, 8, seed=1)
    joint = exact_joint(next_probs(target), [0, 1], 3)
    right = exact_continuations(target, 3, Sampling())
    assert len(joint) == 27 and total_variation(joint, right) < 1e-12
    assert list(joint) == list(itertools.product(range(3), repeat=3))


def test_samples_are_as_far_off_as_what_comes_too_often_or_not_at_all():
    exact = {(0,): {(0,): 0.5, (1,): 0.3, (2,): 0.2}}
    [test] = audit.compare(Counter({(0,): 80, (1,): 20}), exact)
    assert test.total_variation == pytest.approx((0.3 + 0.1 + 0.2) / 2)


def test_marginals_are_sums_of_the_joint():
    joint = {(0, 1): 0.5, (0, 0): 0.25, (1, 1): 0.25}
    assert marginal(joint, (1,)) == {(1,): 0.75, (0,): 0.25}
    assert marginal(joint, (0, 1)) == joint


def test_resampled_is_what_bug_1_makes_by_enumeration():
    target, table = toy_target(3, 8, seed=1), torch.tensor([[0.5, 0.25, 0.25]] * 3)

    class AsModel(TableDraft):  # a table of q, where a model is asked for logits
        def __call__(self, rows):
            return (table.log()[rows], None, ())

    joint = exact_joint(resampled(target, AsModel(table)), [0, 1], 2)
    decode = mutant(BUGS[0])
    draft = TableDraft(table)
    made = enumerate_outcomes(
        lambda rng: tuple(decode(target, draft, [0, 1], 3, 2, Sampling(), rng).tokens[:2])
    )
    assert total_variation(joint, made) < 1e-9
    assert total_variation(joint, exact_joint(next_probs(target), [0, 1], 2)) > 0.05


def test_a_prompt_that_does_not_fit_the_window_is_refused(pair):
    for prompt in ("", "a" * 125):
        with pytest.raises(ValueError, match="take 1 to 124"):
            Truth.of(*pair, prompt)


# The test and its power


@pytest.mark.parametrize(
    "statistic,freedom,p", [(3.841459, 1, 0.05), (18.307038, 10, 0.05), (0.0, 5, 1.0)]
)
def test_p_values_are_those_of_the_tables(statistic, freedom, p):
    assert p_value(statistic, freedom) == pytest.approx(p, abs=1e-6)
    assert p_value(float("inf"), freedom) == 0


def test_power_is_the_level_where_there_is_no_bias_and_grows_with_it():
    for level in (0.01, 1e-6):
        assert power(20, 0.0, level) == pytest.approx(level, rel=0.1)
    found = [power(20, shift) for shift in (0.0, 10.0, 50.0, 200.0, float("inf"))]
    assert found == sorted(found) and found[-2] > 0.999 and found[-1] == 1


def test_power_agrees_with_simulation(truth):
    for tokens in ((0,), (1,)):
        exact, other, level = truth.exact[tokens], truth.other[tokens], LEVEL
        [stated] = powers({tokens: exact}, {tokens: other}, 1000, level)
        seen = [compare_one(draws(other, 1000, seed), exact) < level for seed in range(150)]
        assert 0.2 < stated.power < 0.98, f"a power of {stated.power} tests nothing"
        assert abs(sum(seen) / 150 - stated.power) < 0.13, "3 to 4 standard errors"


def compare_one(counts, exact):
    return p_value(*chi_squared(counts, exact, sum(counts.values())))


def test_right_samples_have_even_p_values(truth):
    found = [compare_one(draws(truth.exact[(0,)], 1000, seed), truth.exact[(0,)])
             for seed in range(200)]  # fmt: skip
    assert 5 <= sum(p < 0.1 for p in found) <= 37 and 70 <= sum(p < 0.5 for p in found) <= 130


def test_what_is_surely_seen_is_seen_whatever_the_bias():
    n, V = 1000, 20
    exact = {(x,): 1 / V for x in range(V)}
    t = surely_seen(V - 1, n)
    assert power(V - 1, 4 * n * t * t) == pytest.approx(0.99, abs=1e-6)
    even = {(x,): (1 + 2 * t * (-1) ** x) / V for x in range(V)}  # the hardest to see
    assert chi_squared({x: n * p for x, p in even.items()}, exact, n)[0] == pytest.approx(
        4 * n * t * t
    )
    one = {(x,): 1 / V + t * ((x == 0) - (x == 1) / 1) for x in range(V)}
    assert chi_squared({x: n * p for x, p in one.items() if p > 0}, exact, n)[0] > 4 * n * t * t
    missed = sum(compare_one(draws(even, n, seed), exact) >= LEVEL for seed in range(200))
    assert missed <= 8, "1 in 100 may be"


def test_too_few_samples_are_no_test(truth, faithful):
    with pytest.raises(ValueError, match="10 samples are too few"):
        audited(truth, faithful, samples=10)


# Each sample's own p


def test_with_equal_rows_the_score_is_pearsons():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    came = torch.tensor([0] * 90 + [1] * 70 + [2] * 33 + [3] * 7)
    statistic, freedom = score(p.expand(200, -1), came)
    counts, exact = dict(Counter(came.tolist())), dict(enumerate(p.tolist()))
    assert (statistic, freedom) == pytest.approx(chi_squared(counts, exact, 200)) and freedom == 3


def test_the_rarest_cells_are_put_together_until_five_are_expected():
    for expected, cells in (
        ([50.0, 3, 40, 4, 0], [2, 0, 1, 0, 0]),
        ([50.0, 3, 40, 1, 0], [1, 0, 0, 0, 0]),  # 4 are too few: the 40 join them
        ([6.0, 7, 8], [0, 1, 2]),
    ):
        assert merged(torch.tensor(expected)).tolist() == cells


def test_what_cannot_come_and_comes_is_infinite():
    rows = torch.tensor([[0.5, 0.5, 0.0]] * 40, dtype=torch.float64)
    assert score(rows, torch.tensor([0, 1] * 20))[0] < 1e-9
    assert score(rows, torch.tensor([0, 1] * 19 + [0, 2])) == (float("inf"), 2)


def test_where_all_is_certain_nothing_is_unlikely():
    """Where top-k leaves one token, say: no freedom, and still a p-value."""
    p = torch.nn.functional.one_hot(torch.tensor([1, 3] * 30), 5).double()

    def certain(came):
        listed = places.Listed.whole(p, torch.tensor(came * 30))
        return places.Places(listed, torch.zeros(60, dtype=torch.int64)).found()[0]

    place = certain([1, 3])
    assert place.letters == place.ranks == 1 and place.total_variation == 0 and place.alike > 0.1
    assert certain([1, 2]).p == 0


def test_ranks_are_of_each_samples_own_p():
    p = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], dtype=torch.float64)
    rows, cells = by_rank(p, torch.tensor([2, 0]))
    assert torch.allclose(rows, torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]]).double())
    assert cells.tolist() == [1, 0]
    wide = torch.arange(12, 0, -1).double()[None] / 78
    rows, cells = by_rank(wide.expand(12, -1), torch.arange(12))
    assert rows[0].tolist() == pytest.approx([x / 78 for x in (12, 11, 10, 17, 22, 6)])
    assert cells.tolist() == [0, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5]


def test_a_bias_that_differs_from_text_to_text_is_seen_where_texts_are_alike():
    """Over all texts each letter, and each rank, comes as often as it should."""
    p = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.1], [0.3, 0.4, 0.1, 0.1, 0.1]], dtype=torch.float64)
    off = torch.tensor([[0, 0, 0.08, -0.08, 0], [0, 0, -0.08, 0.08, 0]], dtype=torch.float64)
    torch.manual_seed(0)
    for wrong in (True, False):
        rows = p.repeat(750, 1)
        came = torch.multinomial(rows + wrong * off.repeat(750, 1), 1)[:, 0]
        place = places.Places(places.Listed.whole(rows, came), 0 * came).found()[0]
        assert (place.alike < LEVEL) == (place.p < LEVEL) == wrong
        assert min(place.letters, place.ranks) > 0.001


def several(seed, n=1500):
    """p (n, 30) after one of 30 letters each, at random."""
    torch.manual_seed(seed)
    return torch.softmax(2 * torch.randn(30, 30).double(), -1)[torch.randint(30, (n,))]


def test_texts_that_are_alike_are_no_oftener_off_than_the_level_says():
    """The sum's variance is exact, and its tail no heavier than that of the χ² it is held to."""
    p = several(5, 300)
    listed = places.Listed.whole(p, p.argmax(-1))
    cells = listed.letters(listed.group)
    came = torch.multinomial(listed.p, 20_000, replacement=True)
    values, freedom = places.Trials(listed).agree(cells.gather(1, came))
    off = values - freedom
    assert abs(off.mean()) < 0.05 * freedom**0.5 and abs(off.var() / (2 * freedom) - 1) < 0.06
    assert (off**3).mean() < 1.1 * 8 * freedom
    ps = places.p_values(values, freedom)
    assert (ps < 0.01).sum() < 250 and (ps < 0.0001).sum() < 10 and ps.min() > 1e-6


def test_what_would_have_been_refused_is_told_by_kinds_and_grows_with_the_samples():
    for n, least in ((1500, 18), (100, 0)):
        p = several(6, n)
        listed = places.Listed.whole(p, torch.multinomial(p, 1)[:, 0])
        kinds = places.Places(listed, torch.arange(n) % 5).kinds(LEVEL)
        assert [x.name for x in kinds[:2]] == [
            "one token in 5 the likeliest (a bonus by argmax)",
            "one token in 5 from a draft 0.35 away",
        ]
        assert all(x.refused >= least for x in kinds[:2])
        assert n > 100 or not any(x.refused for x in kinds[1:3])


def test_right_samples_have_p_values_that_are_spread_evenly():
    """200 draws of 300 outcomes, each by a row of its own: neither too small nor too large."""
    generator, low = torch.Generator().manual_seed(2), 0
    for _ in range(200):
        logits = 2 * torch.randn(300, 9, generator=generator, dtype=torch.float64)
        rows = torch.softmax(logits, dim=-1)
        came = torch.multinomial(rows, 1, generator=generator)[:, 0]
        for test in (score(rows, came), score(*by_rank(rows, came))):
            low += p_value(*test) < 0.1
    assert 20 < low < 62, "of 400, about 40"  # more than three standard errors either way


def test_own_probs_are_those_of_each_text_alone():
    model, made = toy_target(5, 16), torch.tensor([[1, 2, 3], [4, 0, 0]])
    for sampling in (Sampling(), Sampling(0.7, top_p=0.9), Sampling(top_k=2)):
        p = own_probs(model, [3, 1], made, sampling)
        for row, tokens in zip(p, made.tolist(), strict=True):
            for i in range(3):
                logits = model(torch.tensor([[3, 1, *tokens[:i]]]))[0][0, -1]
                assert torch.allclose(row[i], sampling.probs(logits), atol=1e-12)


SPOILED = {
    "even": lambda p: torch.full_like(p, 1 / p.shape[-1]),
    "likeliest": lambda p: torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1]).double(),
    "flat": lambda p: torch.softmax(p.log() / 1.5, dim=-1),
}


@pytest.mark.parametrize("place, change", [(5, "even"), (5, "likeliest"), (6, "flat")])
def test_a_place_where_no_joint_test_looks_is_seen(truth, faithful, change, place):
    """A bonus token, say: K = 4 puts the first of them at token 5, or at 6."""

    def mode(prompts, n, sampling, seed):
        if not sampling.temperature:
            return faithful(prompts, n, sampling, seed)
        spoil = SPOILED[change]
        at = lambda i, p: spoil(p) if i == place - 1 else p  # noqa: E731
        return drawn(truth.target, prompts, n, sampling, seed, at).tolist()

    [bad] = audited(truth, mode, samples=1500).rows
    assert re.match(rf"(token {place}|all places) off by a total variation", bad.refusal)
    assert min(bad.places["T 1"][1:], key=lambda x: x.p).place == f"token {place}"
    assert min(test.p for test in bad.tests) > LEVEL, "the first three tokens are right"


@pytest.mark.parametrize("setting", ["T .7, top-p .9", "top-k 4"])
def test_an_engine_that_leaves_a_setting_out_is_refused_there(
    truth, faithful, setting, monkeypatch
):
    settings = {"T 1": Sampling(), "T .7, top-p .9": Sampling(0.7, top_p=0.9)}
    settings["top-k 4"] = Sampling(top_k=4)
    monkeypatch.setattr(audit, "SETTINGS", settings)

    def deaf(prompts, n, sampling, seed):
        heard = Sampling() if sampling == settings[setting] else sampling
        return faithful(prompts, n, heard, seed)

    engine = Engine("ours", "1", {"deaf": deaf, "right": faithful})
    report = audit.audit(engine, Plan(truth, [*settings], 400))
    bad, good = report.rows
    assert bad.refusal.startswith(f"{setting}, ") and not good.refusal
    assert list(good.places) == [*settings] and len(good.places["T 1"]) == 11
    table = "\n".join(places.table(report))
    assert table.count("right, K = 4") == 2 + len(settings)


def test_a_cut_that_float32_makes_one_token_later_is_not_wrong(truth):
    """By less than ROUNDING of top-p; by more it is."""
    made = drawn(truth.target, [truth.prompt], 4, Sampling(), 1)
    ranked = own_probs(truth.target, truth.prompt, made, Sampling())[0, 0].sort(descending=True)
    made[0, 0] = late = ranked.indices[3]
    for off, forgiven in ((0.5, True), (2, False)):
        cut = Sampling(top_p=float(ranked.values[:3].sum()) - off * audit.ROUNDING)
        assert own_probs(truth.target, truth.prompt, made, cut)[0, 0, late] == 0
        assert bool(audit.rounded(truth, made, cut)[0, 0, late] > 0) == forgiven
    whole = own_probs(truth.target, truth.prompt, made, Sampling())
    assert torch.equal(audit.rounded(truth, made, Sampling()), whole)


def test_the_same_samples_for_two_seeds_are_no_samples(truth, faithful):
    def seedless(prompts, n, sampling, seed):
        return faithful(prompts, n, sampling, 5)

    [row] = audited(truth, seedless).rows
    assert row.refusal == "the same 100 samples came for two seeds: is the seed used?"


def test_a_mode_that_drafts_nothing_has_not_met_its_rule(truth, faithful):
    report = audited(truth, faithful, counts=lambda: {"drafted": 0})
    assert places.verdicts(report)[0].endswith("; but no guess was drafted, so its accept rule was "
                                              "not met")  # fmt: skip
    plain = audit.audit(Engine("o", "1", {"plain": faithful}, lambda: {"drafted": 0}), Plan(truth))
    assert plain.rows[0].K is None and "no guess" not in places.verdicts(plain)[0]


def test_a_control_that_passes_says_that_the_samples_are_too_few(
    truth, faithful, capsys, monkeypatch
):
    report = audited(truth, faithful)
    report.controls = [places.Row("bug 8", K=4, refusal="token 6"), places.Row("bug 1", K=4)]
    assert report.right and report.blind
    assert places.verdicts(report)[1:] == [
        "control, bug 8, K = 4: refused, token 6",
        "control, bug 1, K = 4: NOT SEEN: take more samples",
        "no verdict: with so few samples, a bug that is there was not seen, either",
    ]
    monkeypatch.setattr(audit, "audited", lambda given: report)
    assert audit.main(["nanogpt"]) == 2
    report.controls[1].refusal = "token 2"
    assert audit.main(["nanogpt"]) == 0
    assert not any("no verdict" in said for said in places.verdicts(report))
    report.rows[0].refusal = "token 1"
    assert audit.main(["nanogpt"]) == 1
    assert "WRONG, token 1" in capsys.readouterr().out


# Engines


def test_a_right_engine_is_right_and_its_counts_are_told(truth, faithful):
    so_far = {"passes": 0}

    def counting(prompts, n, sampling, seed):
        so_far["passes"] += n * len(prompts)
        return faithful(prompts, n, sampling, seed)

    report = audited(truth, counting, faithful, counts=lambda: dict(so_far))
    assert report.right and [row.greedy for row in report.rows] == [5, 5]
    assert report.rows[0].counts == {"greedy": {"passes": 500}, "at 1": {"passes": 4400}}
    assert report.rows[1].counts == {"greedy": {"passes": 0}, "at 1": {"passes": 0}}
    table = places.table(report)
    assert "5/5" in table[3] and "1.00" in table[3] and "1.00" not in table[4]
    for i, said in enumerate(places.verdicts(report), 1):
        assert re.match(rf"mode {i}, K = 4: right; would have refused: one token in 5 the l", said)


def test_our_own_decoder_is_right_and_a_greedy_test_alone_does_not_see_bug_1(shipped, tmp_path):
    right = audit.audit(
        only(adapters.open_nanogpt(tmp_path, K=2), "draft"), Plan(shipped, samples=60), K=2
    )
    assert right.right and right.rows[0].counts["greedy"]["accepted"] > 0
    wrong = adapters.open_nanogpt(tmp_path, K=1, bug=1)  # of K tokens so many places are tested
    wrong = audit.audit(only(wrong, "lookup"), Plan(shipped, samples=300), K=1)
    [row] = wrong.rows
    assert row.greedy == 2 and row.refusal and not wrong.right
    assert min(test.p for test in row.tests + row.places["T 1"]) < 1e-9
    assert " off by a total variation of " in row.refusal and ", p " in row.refusal


def test_no_sample_of_a_call_is_anothers_copy(tmp_path):
    """Of 6 texts of 16 tokens, drawn in one call, no two are alike: each has a seed of its own."""
    for name, generate in adapters.open_nanogpt(tmp_path).modes.items():
        made = generate([[1, 2, 3]] * 6, 16, Sampling(), 5)
        assert len({tuple(tokens) for tokens in made}) == 6, name
        assert made[3:5] == generate([[1, 2, 3]] * 2, 16, Sampling(), 8), (
            "by the seed and its place"
        )


def test_no_call_is_given_the_seeds_of_another(truth, faithful):
    """A call's seed and those after it, one a sample, are its own; a report's seed comes first."""
    given = []

    def listening(prompts, n, sampling, seed):
        if sampling.temperature:
            given.extend(range(seed, seed + len(prompts)))
        return faithful(prompts, n, sampling, seed)

    audit.audit(Engine("ours", "1", {"mode": listening}), Plan(truth, samples=250, seed=40))
    assert given == list(range(40, 290))


def test_the_level_that_is_told_is_the_level_that_refuses(truth, faithful):
    """One and the same samples: refused at a level just above their p, and right just below it."""
    engine = Engine("ours", "1", {"mode": faithful})
    [row] = audit.audit(engine, Plan(truth, samples=400)).rows
    least = min(test.p for test in row.tests + row.places["T 1"])
    assert 1e-6 < least < 0.99
    for level, right in ((least * 1.001, False), (least, True), (least * 0.999, True)):
        report = audit.audit(engine, Plan(truth, samples=400, level=level))
        assert report.right == right and report.level == level
        assert report.power == powers(truth.exact, truth.other, 400, level)
    refused = audit.audit(engine, Plan(truth, samples=400, level=least * 1.001)).rows[0].refusal
    assert refused.endswith(f"p {p_text(least)}")


def test_a_wrong_greedy_text_is_named_and_a_tie_is_none(truth, faithful):
    def astray(prompts, n, sampling, seed):
        made = faithful(prompts, n, sampling, seed)
        if sampling.temperature == 0:
            made[2][40] = (made[2][40] + 1) % 7
        return made

    [row] = audited(truth, astray).rows
    assert row.greedy == 4 and row.refusal.startswith("greedy text 3, token 41:")
    assert row.tests, "the samples are tested all the same"


def test_behind_the_best_goes_on_after_a_tie():
    model = make_model()
    prompt = [1, 2, 3]
    tokens = autoregressive_generate(model, prompt, 5, Sampling(0)).tokens
    assert behind_the_best(model, prompt, tokens).tolist() == [0] * 5
    with torch.no_grad():
        last = model(torch.tensor([[*prompt, *tokens[:2]]]))[0][0, -1]
    second = int(last.topk(2).indices[1])
    after = autoregressive_generate(model, [*prompt, *tokens[:2], second], 2, Sampling(0)).tokens
    behind = behind_the_best(model, prompt, [*tokens[:2], second, *after])
    gap = float(last.max() - last[second])
    assert behind.tolist() == pytest.approx([0, 0, gap, 0, 0], abs=1e-9) and gap > 0


def test_the_other_token_of_a_tie_is_no_difference_and_is_told(truth, faithful, monkeypatch):
    prompt, right = truth.greedy[1], faithful(truth.greedy, 100, Sampling(0), 0)[1]
    logits = truth.target(torch.tensor([[*prompt, *right[:9]]]))[0][0, -1]
    best, second = logits.topk(2).values.tolist()
    other = [*right[:9], int(logits.topk(2).indices[1])]
    rest = autoregressive_generate(truth.target, [*prompt, *other], 90, Sampling(0)).tokens

    def tied(prompts, n, sampling, seed):
        made = faithful(prompts, n, sampling, seed)
        return made if sampling.temperature else [made[0], [*other, *rest], *made[2:]]

    for tie, right, ties in ((best - second + 1e-9, 5, 1), (best - second - 1e-9, 4, 0)):
        monkeypatch.setattr(audit, "TIE", tie)
        report = audited(truth, tied)
        [row] = report.rows
        assert (row.greedy, row.ties, report.right) == (right, ties, right == 5)
        assert ("1 greedy token from a tie" in places.verdicts(report)[0]) == bool(ties)


def spoiled(change):
    """A right mode whose answers are changed where it samples."""
    return lambda mode: (
        lambda prompts, n, sampling, seed: (
            change(mode(prompts, n, sampling, seed))
            if sampling.temperature
            else mode(prompts, n, Sampling(0), seed)
        )
    )


def test_an_engine_that_leaves_while_it_is_timed_is_asked_all_the_same(truth):
    engine = Engine("mine", "7", {"plain": lambda *_: exit(3)}, dict)
    assert audit.seconds(engine, "plain", audit.Plan(truth, ["T 1"], 100, 0), 4) == 0.0


@pytest.mark.parametrize(
    "change,why",
    [
        (lambda made: [[float("nan")] * len(made[0])] * len(made), "nan came"),
        (lambda made: [tokens[:-1] for tokens in made], "10 tokens came where 11 were asked for"),
        (lambda made: [[*tokens, 0] for tokens in made], "12 tokens came where 11"),
        (lambda made: made[1:], "99 answers came to 100 prompts"),
        (lambda made: [[*tokens[:-1], 7] for tokens in made], "7 came, which is none of the"),
        (lambda made: [[*tokens[:-1], -1] for tokens in made], "-1 came"),
        (lambda made: [[*tokens[:-1], "a"] for tokens in made], "'a' came"),
        (lambda made: [None for _ in made], "it raised TypeError"),
        (lambda made: 1 / 0, "it raised ZeroDivisionError: division by zero"),
        (lambda made: [made[0]] * len(made), "tokens? .* off by a total"),  # one for all
        (lambda made: [[tokens[0], *made[0][1:]] for tokens in made], "tokens? .* off by a total"),
    ],
    ids=["nan", "short", "long", "missing", "outside", "negative", "text", "none", "raises",
         "copies", "the rest copied"],
)  # fmt: skip
def test_what_is_no_answer_or_no_sample_is_refused_in_one_line(truth, faithful, change, why):
    report = audited(truth, spoiled(change)(faithful), faithful)
    (bad, good), fails = report.rows, why.startswith("it raised")
    assert good.refusal == "", "the other modes are audited all the same"
    assert re.search(why, bad.failure if fails else bad.refusal) and "\n" not in bad.refusal
    assert report.exit_code == (2 if fails else 1), "what fails is not wrong"
    assert re.search("no verdict; it raised" if fails else "WRONG", places.verdicts(report)[0])


def test_places_that_are_right_one_by_one_and_wrong_together_are_seen(truth, faithful):
    def paired(made):  # each place's tokens stay, and their pairing becomes another
        firsts = sorted(tokens[0] for tokens in made)
        rest = sorted(tokens[1:] for tokens in made)
        return [[first, *after] for first, after in zip(firsts, rest, strict=True)]

    [row] = audited(truth, spoiled(paired)(faithful), samples=2000).rows
    assert row.refusal.startswith("tokens 1-3")
    assert all(test.p > LEVEL for test in row.tests[:3])


# Constraints


def asked_together(letters="abcdefg"):
    """All of them at once, over a small vocabulary: the truth has to keep their order."""
    return Constraints(
        grammar=Grammar("([a-c][b-g]){9}", letters),
        bias={1: 0.7},
        presence=0.8,
        frequency=0.3,
        repetition=1.4,
        min_p=0.05,
    )


def test_the_truth_under_constraints_is_what_enumeration_of_the_decoder_gives():
    target, rules = toy_target(3, 8, seed=1), asked_together("abc")
    draft = TableDraft(torch.tensor([[0.5, 0.25, 0.25]] * 3))
    truth = Truth(target, [], [0, 1], "toy", {}, {})
    pairs = torch.tensor([*itertools.product(range(3), repeat=2)])  # (9, 2)
    p = audit.ruled(truth, pairs, rules).gather(-1, pairs[..., None])[..., 0].prod(-1)
    joint = dict(zip(map(tuple, pairs.tolist()), p.tolist(), strict=True))
    made = enumerate_outcomes(
        lambda rng: tuple(complete(target, [0, 1], 2, rules, draft, 2, Sampling(), rng).tokens)
    )
    assert total_variation(joint, made) < 1e-9 and sum(p > 0) == 4, "[a-c] twice, less [b-c]"
    assert total_variation(joint, exact_continuations(target, 2, Sampling())) > 0.1


TOY_RULES = {
    "grammar": Constraints(grammar=Grammar("([a-d][c-g]){9}", "abcdefg")),
    "penalties": Constraints(presence=2.0, frequency=1.0),
}


@pytest.fixture(scope="module")
def toys(truth):
    """A truth under constraints; and a mode of our decoder by these steps, with a bad draft."""
    q = torch.full((7, 7), 0.05, dtype=torch.float64)
    q[:, 0], q[:, 5] = 0.4, 0.35  # where p has its share, and where the grammar forbids it

    def engine(bug):
        decode = constrained_decoder if bug is None else mutant(BUGS[bug - 1])
        target = FusedLanguageModel(truth.target)

        def mode(prompts, n, sampling, seed, constraints=None):
            return [
                decode(
                    target, Deaf(TableDraft(q)), prompt, n, 2, sampling, RandomSource(seed + i),
                    constraints=constraints,
                ).tokens
                for i, prompt in enumerate(prompts)
            ]  # fmt: skip

        return Engine("ours", "1", {"draft": mode}, takes=adapters.TAKEN)

    return dataclasses.replace(truth, greedy=[], rules=TOY_RULES), engine


@pytest.mark.parametrize(
    "bug,refused", [(None, ()), (70, ["grammar"]), (71, [*TOY_RULES])], ids=str
)
def test_a_right_engine_passes_under_constraints_and_the_wrong_ones_do_not(toys, bug, refused):
    truth, engine = toys
    report = audit.audit(engine(bug), Plan(truth, [*TOY_RULES], 200), K=2)
    [row] = report.rows
    said = [name for name in TOY_RULES if re.search(rf"(^|; ){name}, ", row.refusal)]
    assert said == [*refused], row.refusal
    assert all(len(row.places[name]) == 7 for name in TOY_RULES) and not row.tests
    if "penalties" in refused:
        assert re.match(
            r"grammar, \d+ of 100 texts hold a letter that must not come, ", row.refusal
        )


def test_a_guess_that_is_dropped_gives_what_the_fractions_say():
    """p = (.7, .3, 0) and q = (.2, .2, .6): kept, (.7, .3); dropped, (.62, .38)."""

    class Target:
        config, device = toy_target(3, 8).config, torch.device("cpu")

        def __call__(self, idx, past_kvs=None):
            logits = torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64).log()
            held = 0 if past_kvs is None else past_kvs[0][0][0].shape[1]
            entries = torch.zeros(1, held + idx.shape[1], 1)
            return logits.expand(1, idx.shape[1], 3), None, (((entries, entries),),)

    rules = Constraints(grammar=Grammar("[ab]{9}", "abc"))
    q = torch.tensor([[0.2, 0.2, 0.6]] * 3, dtype=torch.float64)

    def first(decode):
        asked = Target(), Deaf(TableDraft(q)), [0], 2, 1, Sampling()
        made = enumerate_outcomes(lambda rng: decode(*asked, rng, constraints=rules).tokens[0])
        return [made.get(x, 0.0) for x in range(3)]

    assert first(mutant(BUGS[69])) == pytest.approx([0.62, 0.38, 0], abs=1e-9)
    assert first(constrained_decoder) == pytest.approx([0.7, 0.3, 0], abs=1e-9)


def test_what_an_engine_does_not_take_is_not_asked_and_said_so(truth, faithful):
    """An adapter of old has no fifth argument, and goes on working."""
    ruled, settings = dataclasses.replace(truth, rules=TOY_RULES), ["T 1", *TOY_RULES]
    report = audit.audit(Engine("ours", "1", {"mode": faithful}), Plan(ruled, settings, 400))
    assert report.right and list(report.rows[0].places) == ["T 1"]
    assert places.verdicts(report)[-1] == (
        "the engine takes no such constraints: grammar, penalties"
    )
    asked = []

    def generate(prompts, n, sampling, seed, **constraints):
        asked.append(constraints)
        return faithful(prompts, n, sampling, seed)

    engine = Engine("ours", "1", {"mode": generate}, takes=("presence", "frequency", "min_p"))
    report = audit.audit(engine, Plan(ruled, settings, 400))
    assert report.untaken == ["grammar"] and not report.right, "it leaves the penalties out"
    penalties = {"constraints": TOY_RULES["penalties"]}
    assert asked == [{}] * 5 + [penalties], "what the first call shows is not asked again"


def test_the_last_token_that_min_p_keeps_may_be_float32s(truth):
    made = drawn(truth.target, [truth.prompt], 3, Sampling(), 1)
    ranked = own_probs(truth.target, truth.prompt, made, Sampling())[0, 0].sort(descending=True)
    made[0, 0] = ranked.indices[3]
    for above, forgiven in ((0.5 * audit.TIE, True), (2 * audit.TIE, False)):
        rules = Constraints(min_p=float(ranked.values[3] / ranked.values[0]) * (1 + above))
        p = audit.ruled(truth, made, rules)[0, 0]
        assert bool(p[made[0, 0]] > 0) == forgiven
        assert float(p.sum()) == pytest.approx(1)


def test_the_rules_that_are_asked_for_never_end_and_forbid_what_the_draft_guesses(pair):
    tokenizer = pair[-1]
    rules = audit.rules_of(tokenizer)
    assert list(rules) == list(audit.RULES)
    assert [audit.asks(x) for x in rules.values()] == [set(x) for x in audit.RULES.values()]
    assert set().union(*map(set, audit.RULES.values())) == set(adapters.TAKEN)
    grammar, states = rules["grammar"].grammar, {0}
    for _ in range(2 * 4 + 3):  # one more than is tested
        assert not grammar.matches[[*states]].any()
        states = {int(x) for at in states for x in grammar.next[at][grammar.next[at] >= 0]}
        assert states, "it goes on"
    context = [*tokenizer.encode(audit.PROMPT), *tokenizer.encode("o")]
    q = transformer.load().get_probs(context)
    assert 0.3 < float(q[~grammar.allowed[grammar.next[0, tokenizer.encode("o")[0]]]].sum()) < 0.6


def test_a_control_under_constraints_runs_where_they_were_asked_for(truth, monkeypatch):
    ran = []

    def audit_mode(engine, mode, K, plan, bar):
        ran.append((engine.name, plan.settings))
        return places.Row(mode, K=K)

    monkeypatch.setattr(audit, "audit_mode", audit_mode)
    assert audit.controls(Plan(truth), 4) == []
    rows = audit.controls(Plan(truth, ["grammar", "bias"]), 4)
    assert [row.mode for row in rows] == ["dropped", "first row"]
    assert ran == [("nanogpt with bug 70", ("grammar",)), ("nanogpt with bug 71", ("grammar",))]


@pytest.mark.parametrize(
    "flags,first,settings",
    [
        ([], 4, [*audit.SETTINGS, *audit.RULES]),
        (["--quick"], 4, ["T 1"]),
        (["--constraints"], 4, ["T 1", *audit.RULES]),
    ],
)
def test_what_a_run_asks(flags, first, settings, monkeypatch, shipped, capsys):
    asked = []

    def one(engine, plan, K, progress):
        asked.append((K, [*engine.modes], plan.settings))
        return places.Report("o", "1", "", "", 5, plan.samples, plan.level, plan.seed)

    monkeypatch.setattr(Truth, "of", lambda *_: shipped)
    monkeypatch.setattr(audit, "audit", one)
    monkeypatch.setattr(audit, "controls", lambda *_: [])
    monkeypatch.setattr(audit, "export_pair", lambda folder, wide=False: None)
    audit.audited(audit.parse_arguments(["nanogpt", *flags]))
    assert asked[0] == (first, ["plain", "draft", "lookup"], settings)
    assert asked[1:] == ([] if flags else [(1, ["draft", "lookup"], [*audit.SETTINGS])])
    assert capsys.readouterr().out.startswith("Working out what comes after ")


def test_what_all_rows_begin_with_is_read_once():
    target, prompt = toy_target(3, 8, seed=1), [0, 1, 2]
    rows = torch.tensor([[*prompt, *more] for more in itertools.product(range(3), repeat=2)])
    whole, once = next_probs(target)(rows), next_probs(target, prompt)(rows)
    assert torch.allclose(whole, once, atol=1e-12)
    assert torch.allclose(
        next_probs(target)(rows[:1, :3]), next_probs(target, prompt)(rows[:1, :3])
    )


def test_constraints_in_transformers_own_words():
    asked = adapters.for_transformers(asked_together(), [6, 1])
    allowed = asked.pop("prefix_allowed_tokens_fn")
    assert asked == {"sequence_bias": {(1,): 0.7}, "repetition_penalty": 1.4, "min_p": 0.05}
    assert allowed(0, torch.tensor([6, 1])) == [0, 1, 2], "the prompt is no part of the text"
    assert allowed(0, torch.tensor([6, 1, 2])) == [1, 2, 3, 4, 5, 6]
    assert allowed(0, torch.tensor([6, 1, 6, 6])) == [*range(7)], "a guess has left the grammar"
    assert adapters.for_transformers(None, [0]) == adapters.for_transformers(Constraints(), [0])


def test_transformers_writes_under_constraints_what_we_do(pair, tmp_path):
    """Greedily, so that there is one right text, whatever drafts it."""
    pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")
    target, _, tokenizer = pair
    export_pair(tmp_path)
    engine, prompt = adapters.open_transformers(tmp_path), tokenizer.encode(audit.PROMPT)
    made = set()
    for name, rules in audit.rules_of(tokenizer).items():
        if audit.asks(rules) <= set(engine.takes):
            right = complete(target, prompt, 12, rules, sampling=Sampling(0)).tokens
            made.add(tuple(right))
            for mode, generate in engine.modes.items():
                text = generate([prompt], 12, Sampling(0), 0, constraints=rules)
                assert text == [right], (name, mode)
    assert len(made) == 4 and set(engine.takes) == {"grammar", "bias", "repetition", "min_p"}


# The command


OWN = """
from nanogpt.engines import adapters

def open_engine(folder):
    assert (folder / "target" / "config.json").is_file()
    assert (folder / "wide" / "draft" / "model.safetensors").is_file()
    ours = adapters.open_nanogpt(folder)
    return adapters.Engine("mine", "7", {"plain": ours.modes["plain"]}, ours.counts)
"""


def test_a_file_with_an_engine_is_audited_and_reported(tmp_path, capsys, monkeypatch, shipped):
    asked = []
    monkeypatch.setattr(Truth, "of", lambda *given: asked.append(given[-1]) or shipped)
    own, out = tmp_path / "my_engine.py", tmp_path / "report.json"
    own.write_text(OWN)
    monkeypatch.setattr(audit, "controls", lambda *_: [])  # they take seconds
    code = audit.main([str(own), "--samples", "100", "--prompt", "no ", "--json", str(out)])
    printed = capsys.readouterr().out
    assert code == 0 and "mine 7: 100 samples after 'and a'" in printed and asked == ["no "]
    assert printed.endswith(f"\nplain: right\n{NONE}")
    assert re.match(
        "Working out what comes after 'no ' how often …\n"
        r"mine, K = 4: 300 samples, about \d+ s\nplain: done in ",
        printed,
    )
    assert printed.count("\nplain  ") == 1 + len(audit.SETTINGS), "once, whatever K is"
    report = json.loads(out.read_text())
    assert report["rows"][0]["greedy"] == 2 and len(report["power"]) == 2


NONE = "the engine takes no such constraints: grammar, penalties, repetition, bias, min-p\n"


@pytest.mark.parametrize(
    "writes, samples, code, says",
    [
        (
            "{'plain': lambda *_: [[1]]}",
            "100",
            1,
            "prompts; 1 answers came to 100 prompts\n" + NONE,
        ),
        ("{'plain': ours.modes['plain']}", "1", 2, "error: 1 samples are too few"),
    ],
)
def test_the_command_ends_with_the_code_of_a_readers_engine(
    writes, samples, code, says, tmp_path, capsys, monkeypatch, shipped
):
    own = tmp_path / "my_engine.py"
    own.write_text(OWN.replace('{"plain": ours.modes["plain"]}', writes))
    monkeypatch.setattr(Truth, "of", lambda *_: shipped)
    monkeypatch.setattr(audit, "controls", lambda *_: [])
    assert nanogpt(["audit", str(own), "--samples", samples]) == code
    assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments,why",
    [
        (["nope"], "no engine 'nope'; there are nanogpt, transformers, or a file.py with open"),
        (["vllm"], "no engine 'vllm'; there are"),
        (["nanogpt", "--bug", f"{len(BUGS) + 1}"], f"the gallery has 1 to {len(BUGS)}"),
        (["nanogpt", "--bug", "0"], "there is no bug 0"),
        (["nanogpt", "--bug", "68"], "without 68, 69, 72, 76, 77, 78, 84"),
        (["transformers", "--bug", "1"], "--bug goes with"),
        (["nanogpt", "--level", "2"], "level is 2.0"),
        (["nanogpt", "--K", "0"], "K is 0"),
        (["nanogpt", "--prompt", "é"], "'é'"),
        (["nanogpt", "--seed", "-1"], "seed is -1"),
        (["gone.py"], "gone.py"),
        (["imports.py"], "imports.py fails, line 1: ModuleNotFoundError: No"),
        (
            ["transformers"],
            "transformers is not installed (No module named 'of_its_own'); the extra oracle brings "
            "it: pip install -e '.[oracle]'",
        ),
    ],
    ids=[*"abcdefghijklm"],
)
def test_what_cannot_be_audited_is_said_in_one_line(arguments, why, monkeypatch, capsys, tmp_path):
    def missing(folder, K):
        import of_its_own

        return of_its_own

    monkeypatch.chdir(tmp_path)
    (tmp_path / "imports.py").write_text("import of_its_own")
    monkeypatch.setattr(audit, "export_pair", lambda folder, wide=False: None)
    monkeypatch.setattr(Truth, "of", lambda *_: pytest.fail("the work has begun"))
    monkeypatch.setitem(adapters.ENGINES, "transformers", missing)
    assert nanogpt(["audit", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and why in said and said.count("\n") == 1


def test_files_without_an_engine_are_refused(tmp_path):
    own = tmp_path / "own.py"
    returns = "def open_engine(folder): return 3"
    for text, why in (("x = 1", "has no function open_engine"), (returns, "returned 3, which is")):
        own.write_text(text)
        with pytest.raises(ValueError, match=why):
            adapters.open_file(own, tmp_path)


def test_a_file_is_given_K_if_it_takes_one(tmp_path):
    own = tmp_path / "own.py"
    for takes, K in (("folder", 4), ("folder, K=4", 7)):
        own.write_text(
            "from nanogpt.engines.adapters import Engine\n"
            f"def open_engine({takes}): return Engine('mine', str(locals().get('K', 4)), {{}})\n"
        )
        assert adapters.open_any(str(own), tmp_path, 7, None).version == str(K)


def test_the_controls_run_where_this_package_is_not_installed(monkeypatch, tmp_path):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(adapters, "version", missing)  # as beside an engine, in this folder
    assert adapters.open_nanogpt(tmp_path, bug=1).version == "uninstalled"


def test_transformers_is_right(shipped, tmp_path):
    pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")
    export_pair(tmp_path)
    engine = adapters.open_transformers(tmp_path, K=2)
    report = audit.audit(engine, Plan(shipped, samples=60), K=2)
    assert report.right, places.verdicts(report)
    plain, draft, lookup = (row.counts["greedy"]["passes"] for row in report.rows)
    assert plain == 200 and draft < 100 and lookup < 180, "drafts save passes"


# The record


def as_report(kept):
    """The Report whose dataclasses.asdict is `kept`."""

    def as_row(row):
        each = {x: [places.Place(**one) for one in y] for x, y in row["places"].items()}
        tests = [places.Test(**test) for test in row["tests"]]
        return places.Row(**row | {"tests": tests, "places": each})

    parts = {
        "rows": [as_row(row) for row in kept["rows"]],
        "controls": [as_row(row) for row in kept["controls"]],
        "power": [places.Power(**each) for each in kept["power"]],
        "chance": [places.Test(**each) for each in kept["chance"]],
    }
    return places.Report(**kept | parts)


@pytest.fixture(scope="module")
def record():
    return json.loads((DATA_DIR / "audits.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page():
    """Its part under constraints, and the rest."""
    whole = (DATA_DIR / "audits.md").read_text(encoding="utf-8")
    before, _, after = whole.partition("## Under constraints\n")
    under, old, after = after.partition("## Runs of the first form\n")
    return under, before + old + after


@pytest.fixture(scope="module")
def told(page):
    return page[1]


def test_the_tables_of_the_record_are_the_stored_reports(record, page):
    for made, part in zip((record["constraints"], record["audits"]), page, strict=True):
        shows(made, part)
    assert record["date"] in page[1]


AT = 80  # columns of a line of places, up to the last: these reports have no texts that are alike


def shows(runs, told):
    """Each run's table stands in the text, and no other."""
    for report in (as_report(made["report"]) for made in runs):
        heading, *lines = places.table(report)
        start = told.index(heading)
        shown = told[start : told.index("```", start)]
        named = tuple(row.name for row in report.rows + report.controls)
        kept = [line for line in lines if line.startswith(named)]
        kept = [line[:AT].rstrip() for line in kept]
        kept += "; ".join(places.verdicts(report)).split("; ")
        assert len(kept) > 2 * len(named) and all(line in shown for line in kept), heading
    assert told.count(" samples after ") == len(runs)


def test_every_run_of_the_record_had_todays_form_and_refused_both_controls(record):
    for made in record["audits"]:
        report = as_report(made["report"])
        assert made["date"] == record["date"] and report.samples == audit.SAMPLES
        assert [row.mode for row in report.controls] == ["bug 1", "bug 8"]
        assert not report.blind, made["name"]
        for row in report.rows:
            assert set(row.places) <= set(made["settings"]) <= set(audit.SETTINGS), row.name
            assert row.K in [None, *made["K"]]
            for found in row.places.values():
                assert len(found) == 1 + max(2 * (row.K or 0) + 2, audit.DEPTH), row.name


def test_runs_of_the_first_form_are_told_apart_from_todays(record, told):
    page, old = told.split("## Runs of the first form")
    for made in record["first form"]:
        ran = f"`{made['engine']}` {made['version']}, {made['options']}"
        greedy = {row["greedy"] for row in made["report"]["rows"]}
        assert made["date"] in old and ran in old and f"{max(greedy)} of 5" in old, ran
        assert f"({made['options']}): " not in page
        for row in made["report"]["rows"]:
            off = [x["total_variation"] for x in row["tests"][:3] if x["p"] < audit.LEVEL]
            assert not off or f"{off[0]:.2f}" in old.split(ran)[1].split("\n")[0], (
                ran,
                row["mode"],
            )


def unclear(said):
    """What a name of an engine's run leaves open: its version, its precision, how it drafts."""
    wanted = {r"\d+\.\d+": "version", "float32|default precision": "precision"}
    if "vllm" in said.lower():
        wanted |= {r"\bvllm-cpu\b": "distribution", "(one-hot|drawn) drafts": "drafts"}
    return [what for pattern, what in wanted.items() if not re.search(pattern, said)]


def test_the_record_names_the_distributions_that_were_installed(record):
    for made in record["audits"] + record["constraints"]:
        report, keys = made["report"], ("engine", "version", "options")
        assert [made[key] for key in keys] == [report[key] for key in keys]
        ran = f"{made['engine']} {made['version']}"
        assert ran in made["installed"], ran
        assert not unclear(f"{ran} ({made['options']})"), ran
        assert made["precision"] in made["options"]


def found(made, setting):
    """{mode: what the record's row says of it}, over both K, of a run at one setting."""
    said = {}
    for row in as_report(made["report"]).rows:
        off = [x.total_variation for x in row.places.get(setting, [])[1:] if x.p < audit.LEVEL]
        word = f"wrong, {max(off):.2f}".replace("0.", ".") if off else "right"
        said.setdefault(row.mode, []).append(word if setting in row.places else "raised an error")
    return {mode: max(words, key=lambda x: (x != "right", x)) for mode, words in said.items()}


def test_every_row_that_is_told_says_exactly_what_was_run_and_found(record, told):
    lines = told.splitlines()
    rows = [line for line in lines if re.match(r"\| `", line)]
    headings = [line.partition(": 1,000 samples")[0] for line in lines if " samples after " in line]
    assert len(rows) == len(headings) == len(record["audits"])
    for said in rows + headings:
        assert not unclear(said), said
    for row, made in zip(rows, record["audits"], strict=True):
        name, version, options, K, greedy, *cells = row.strip("| ").split(" | ")
        assert f"`{made['engine']}`" in name and made["version"] == version
        assert options.startswith(made["options"]) and K == ", ".join(map(str, made["K"]))
        right = {x["mode"]: f"{x['greedy']} of 5" for x in made["report"]["rows"]}
        assert in_words(greedy, r": (\d of 5)") == right
        for setting, cell in zip(audit.SETTINGS, cells, strict=True):
            if setting in made["settings"]:
                words = in_words(cell, r" (right|wrong, \.\d\d|raised an error)")
                assert words == found(made, setting)
            else:
                assert cell == "not run"


def test_the_runs_under_constraints_say_what_was_asked_and_refused_all_controls(record, page):
    under, _ = page
    rows = [line for line in under.splitlines() if re.match(r"\| `", line)]
    assert len(rows) == len(record["constraints"])
    for row, made in zip(rows, record["constraints"], strict=True):
        name, version, options, *cells = row.strip("| ").split(" | ")
        assert f"`{made['engine']}`" in name and made["version"] == version
        assert options.startswith(made["options"]) and made["date"] in under
        report = as_report(made["report"])
        assert report.samples == audit.SAMPLES and not report.blind
        ruled = [name for name in audit.RULES if name not in report.untaken]
        assert made["settings"] == ["T 1", *ruled] and made["K"] == [4]
        wrong = [name for name, _, rules in audit.CONTROLS if rules in ruled]
        assert [x.mode for x in report.controls] == ["bug 1", "bug 8", *wrong]
        for setting, cell in zip(audit.RULES, cells, strict=True):
            if setting in ruled:
                words = in_words(cell, r" (right|wrong, \.\d\d|raised an error)")
                assert words == found(made, setting), (made["name"], setting)
            else:
                assert cell == "not taken"


def in_words(cell, said):
    """{mode: what is said of it} in a cell such as `**draft wrong, .27**; plain, lookup right`."""
    parts = [re.match(rf"([a-z, ]+?){said}", part) for part in cell.replace("*", "").split("; ")]
    return {mode: part[2] for part in parts for mode in part[1].split(", ")}


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "data/README.md"])
def test_no_other_page_says_that_vllm_itself_was_run(name):
    told = (DATA_DIR.parent / name).read_text(encoding="utf-8")
    said = re.sub(r"the vLLM project|https?://\S+", "", told)
    assert not re.findall(r"(?i)\bvllm\b(?!-cpu)[^|.]*", said)


def test_what_chapter_29_draws_has_the_names_of_the_record():
    chapter = json.loads((DATA_DIR.parent / "notebooks/29_production.ipynb").read_text("utf-8"))
    code = ["".join(x["source"]) for x in chapter["cells"] if x["cell_type"] == "code"]
    assert not re.findall(r"(?i)\bvllm\b(?!-cpu)", "".join(code))
    [drawn] = [cell for cell in code if "audits.json" in cell]
    names = ("engine", "version", "options")
    assert all(f"{kept}['{key}']" in drawn for kept in ("report", "made") for key in names)


def test_an_engine_is_asked_for_a_token_more_than_is_tested(truth):
    """Engines do not guess the last one, so that a wrong guess would not show there."""
    asked = []

    def generate(prompts, n, sampling, seed):
        asked.append(n)
        return [[(seed + i) % 3] * (n - 1) + [4] for i in range(len(prompts))]

    plan = Plan(truth, (), 6, 0, LEVEL)
    [made] = audit.samples_of(generate, plan, 4, Sampling(), tqdm(disable=True))
    assert asked == [5] and made.shape == (6, 4) and (made == made[:, :1]).all()
