"""The adviser: what guesses bring, by hand; its verdicts; a server's counters; bad input."""

import gc
import itertools
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import NormalDist

import numpy as np
import pytest
import torch
from series import ROOT, module_of

from nanogpt.__main__ import main as nanogpt
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.engines import advise
from nanogpt.measure import size
from nanogpt.proof.toys import random_draft
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate

THREE = np.array([[4.0, 3, 1], [2, 0, 0], [4, 4, 4]])  # rounds, with one accepted, with two
MANY = np.array([[10.0, 8, 6], [10, 7, 5], [10, 9, 7], [10, 8, 5], [10, 7, 6], [10, 9, 8]])


def cost(*seconds, last=4):
    """A Cost of rounds with 0, 1, … guesses, the same for any number of texts."""
    return advise.Cost(lambda B, K: seconds[K], lambda B, K: 0.0, last)


# --- what guesses bring


def test_tokens_of_every_smaller_K_by_hand():
    assert advise.brought(THREE.sum(0)).tolist() == [1, 1.7, 2.2]  # 10 rounds; 7 and 5 accepted
    assert advise.brought(THREE).tolist() == [[1, 1.75, 2], [1, 1, 1], [1, 2, 3]]


def test_the_bootstrap_draws_prompts_and_pools_their_rounds():
    """Of three prompts there are 27 draws, in 10 kinds, each as often as by hand."""
    drawn = Counter(map(tuple, advise.drawn_anew(THREE, seed=1, times=27_000).tolist()))
    right = Counter(tuple(sum(some).tolist()) for some in itertools.product(THREE, repeat=3))
    assert set(drawn) == set(right) and len(right) == 10
    assert all(abs(drawn[x] - 1000 * n) < 5 * (1000 * n) ** 0.5 for x, n in right.items())
    again = advise.drawn_anew(THREE, seed=1, times=27_000)
    assert Counter(map(tuple, again.tolist())) == drawn, "by its seed alone"


def test_the_interval_is_the_middle_of_what_the_draws_bring_wider_for_few():
    """Of six: t is 2.015 with five degrees of freedom, and so 1.4 % at each end are left out."""
    gain = advise.best(MANY, cost(1, 1.25, 1.5), 1)
    pooled = [sum(x)[1:].sum() / 60 for x in itertools.product(MANY, repeat=6)]
    end = NormalDist().cdf(-2.015 * (6 / 5) ** 0.5)
    low, high = (1 + np.quantile(pooled, (end, 1 - end))) / 1.5
    assert (gain.K, gain.texts, gain.takes) == (2, 1, 1.5)
    assert gain.brings == pytest.approx(1 + 48 / 60 + 37 / 60)
    assert gain.gain == pytest.approx(gain.brings / 1.5)
    assert (gain.low, gain.high) == pytest.approx((low, high), abs=0.01)


def test_of_the_intervals_of_few_prompts_nine_in_ten_hold_the_truth():
    rng, held = np.random.default_rng(0), 0
    for i in range(400):
        right = rng.beta(4, 2, size=6)  # of each prompt, whose rounds are many: the mean is 2/3
        low, high = advise.interval(np.stack([np.ones(6), right], axis=1), i)[:, 1]
        held += low < 1 + 2 / 3 < high
    assert 0.85 < held / 400 < 0.95


def test_a_text_counts_the_rounds_that_had_room_and_how_far_each_came(tiny):
    draft, K = random_draft(tiny.config.vocab_size), 2
    tokens, counts = advise.write(tiny, draft, [1, 2], 40, K, Sampling(), 3)
    made = speculative_generate(tiny, draft, [1, 2], 40, K, Sampling(), RandomSource(3))
    whole = [r for r in made.rounds if len(r.candidates) == K]
    assert tokens[-40:] == made.tokens and len(whole) < len(made.rounds)
    right = [sum(r.n_accepted >= i for r in whole) for i in range(K + 1)]
    assert counts.tolist() == right and 0 < right[2] <= right[1] < right[0]
    _, counts = advise.write(tiny, TransformerDraft(tiny), [1, 2], 30, K, Sampling(), 3)
    assert counts[0] == counts[2] > 0, "a draft that is the target"


# --- what rounds cost, and the verdict


def test_between_the_timed_cells_lie_straight_lines_and_plain_steps_on_none():
    times = {(1, 0): 1, (1, 1): 3, (1, 5): 5, (9, 0): 2, (9, 1): 4, (9, 5): 14}
    found = advise.between(times)
    asked = {(1, 3): 4, (9, 2): 6.5, (5, 0): 1.5, (5, 5): 9.5, (3, 3): 4 + (9 - 4) / 4}
    assert {cell: found.seconds(*cell) for cell in asked} == asked and found.last == 9


def test_stretches_lie_about_the_middle_of_the_texts_whatever_K_is(monkeypatch):
    seen = {}

    def timed(target, draft, starts, seed, K, rounds, sampling):
        assert gc.get_freeze_count() > 10_000, "no sweep through all that is loaded in a turn"
        seen.setdefault((len(starts), K), []).extend((len(x), rounds) for x in starts)
        unrest = 1.1 if K == 8 and seed // len(starts) % 2 else 1  # in every other turn
        return [0.01 * unrest * (1 + seed // len(starts))] * rounds  # slower by and by

    monkeypatch.setattr(advise, "timed", timed)
    monkeypatch.setenv("NANOGPT_FULL", "1")
    brings = {0: 1, 1: 1.8, 8: 5.5}
    texts = [list(range(120))] * 3
    gc.unfreeze()
    times, off = advise.round_times(None, None, texts, 100, (1, 8), brings, Sampling())
    assert gc.get_freeze_count() == 0 and set(times) == set(itertools.product((1, 8), brings))
    gc.freeze()  # as it was
    assert (off, times[8, 8] / times[8, 0]) == pytest.approx((0.1 / 1.1 / 2, 1.05))
    for (_, K), starts in seen.items():
        ends = [length + rounds * brings[K] for length, rounds in starts]
        assert max(ends) <= 121 and min(length for length, _ in starts) >= 20
        middle = np.mean([length for length, _ in starts]) / 2 + np.mean(ends) / 2
        assert abs(middle - 70) < 5


@pytest.mark.parametrize("B", [1, 3])
def test_what_is_timed_are_rounds_of_so_many_texts_and_guesses(tiny, monkeypatch, B):
    made, steps = [], []

    def spent(step, device):
        made.append(step())
        steps.append(step)
        return len(made), made[-1]

    monkeypatch.setattr(advise, "spent", spent)
    draft = random_draft(tiny.config.vocab_size)
    for K in (0, 2):
        made.clear()
        assert advise.timed(tiny, draft, [[1, 2]] * B, 0, K, 5, Sampling()) == [3, 4, 5]
        rounds = made if B == 1 else [x.text.rounds[i] for x in steps[-1].args[1] for i in range(5)]
        assert [len(r.candidates) for r in rounds][:3] == [K] * 3 and len(rounds) == 5 * B


def test_no_for_a_draft_as_slow_as_its_target_even_if_all_is_accepted():
    all_of_it = np.array([[7.0, 7, 7, 7]] * 8)
    gain = advise.best(all_of_it, cost(1, 2.1, 3.2, 4.3), 1)
    assert gain.verdict == "no" and gain.low == gain.high == gain.gain < 1
    assert advise.best(all_of_it[:1], cost(1, 2.1, 3.2, 4.3), 1).verdict == "no", "nothing can help"


def test_it_cannot_tell_from_few_prompts_or_where_the_interval_holds_1():
    few, close = advise.best(MANY[:4], cost(1, 1.25, 1.5), 1), advise.best(MANY, cost(1, 1.8, 3), 1)
    assert (few.low, few.high) == (1 / 1.5, 3 / 1.5) and few.verdict == "cannot tell"
    assert close.low < 1 < close.high and close.verdict == "cannot tell"
    less = advise.best(MANY, cost(1, 1.83, 3), 1)
    assert less.gain < 1 < less.high and less.verdict == "cannot tell"
    assert "the interval of any prompts, as 4 show too little, holds 1" in advise.concluded(few, 4)
    assert advise.best(MANY, cost(1, 1.25, 1.5), 1).verdict == "yes"


def test_it_says_no_only_where_no_K_may_pay():
    """One guess is likelier to pay than two; but of two prompts in ten, two guesses might."""
    two = np.array([[10.0, 5, 5], [10, 5, 0]] * 3)
    gain = advise.best(two, cost(1, 1.55, 1.82), 1)
    assert gain.K == 1 and gain.gain < 1 and gain.low == gain.gain
    assert gain.high > 1 and gain.verdict == "cannot tell"
    one = advise.best(np.array([[10.0, 0, 0]]), cost(1, 2.1, 2.5), 1)
    assert one.high == 3 / 2.5 and one.verdict == "cannot tell"


def test_it_loses_from_where_no_larger_batch_pays():
    uneven = advise.Cost(lambda B, K: 1 + K * (0.5 if 2 <= B <= 4 else 0.1), lambda B, K: 0.0, 8)
    counts = np.array([[10.0, 3]] * 12)
    assert advise.advised(["1"] * 12, counts, uneven, [1, 8])["off_from"] is None
    found = advise.advised(["1"] * 12, counts, uneven._replace(last=4), [1, 4])
    assert found["off_from"] == 2
    assert [x.split()[0] for x in advise.table(found)[4:7]] == ["1", "4", "1"]


def test_kinds_are_told_apart_and_the_first_batch_that_loses_is_named():
    growing = advise.Cost(lambda B, K: 1 + K * B / 4, lambda B, K: 0.0, 8)
    kinds = ["code", "chat"] * 6
    counts = np.array([[10.0, 9], [10, 2]] * 6)
    found = advise.advised(kinds, counts, growing, [1, 4, 16])
    assert [x["texts"] for x in found["gains"]] == [1, 4], "16 do not fit"
    assert found["off_from"] == 3  # 1.55 tokens against 1 + B / 4
    gains = {kind: one["gain"] for kind, one in found["kinds"].items()}
    assert gains == pytest.approx({"code": 1.9 / 1.25, "chat": 1.2 / 1.25})
    assert found["alpha"] == [66 / 120] and found["exit_code"] == 0
    lines = advise.table(found)
    assert "loses from 3 at once on" in lines and lines[-1].startswith("yes: K = 1, 1.24 (")
    assert advise.advised([""] * 12, counts, cost(1, 2), [1])["exit_code"] == 1


def test_on_another_machine_a_round_takes_what_size_says_with_its_band():
    how = ["fused", "--gpu", "L4", "--target-size", "llama-3.1-8b", "--draft-size", "llama-3.2-1b"]
    there = advise.elsewhere(advise.parse_arguments(how), folders=False)
    asked = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "L4"]
    plan = size.plan_of(size.parse_arguments(asked))
    gain = advise.best(MANY, there, 1)
    takes = plan.round_seconds(1, gain.K) / plan.round_seconds(1, 0)
    assert gain.takes == takes and there.off(21, 2) == 0 and there.off(22, 2) == size.BAND
    assert there.last == plan.texts()
    wide = advise.best(MANY, there._replace(off=lambda B, K: 0.2), 1)
    assert (wide.low, wide.high) == pytest.approx((0.8 * gain.low, 1.2 * gain.high))


# --- a running server


class Stub(BaseHTTPRequestHandler):
    """Counts as vLLM does: each text adds a row of TOLD, in the labels of two engines."""

    TOLD, told, counters = [(9, 9, 9), *[(4, 3, 1), (2, 0, 0), (4, 4, 4)] * 2], 0, True
    asked = None

    def do_GET(self):
        if self.path == "/v1/models":
            return self.out({"data": [{"id": "m"}]})
        name, text = "vllm:spec_decode_num_", "# HELP\nvllm:spec_decode_num_drafts_created 1e9\n"
        sums = np.sum([(0, 0, 0), *self.TOLD[: type(self).told]], axis=0)
        for engine, part in ((0, 1), (1, 2)):
            text += f'{name}drafts_total{{engine="{engine}"}} {part * sums[0]:.1f}\n'
            for i, n in enumerate(sums[1:]):
                labels = f'engine="{engine}",position="{i}"'
                text += f"{name}accepted_tokens_per_pos_total{{{labels}}} {part * n:.1f}\n"
        return self.out(text if self.counters else "up 1\n")

    def do_POST(self):
        type(self).asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).told += 1
        self.out({"choices": [{"text": "x"}]})

    def out(self, said):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((said if isinstance(said, str) else json.dumps(said)).encode())

    def log_message(self, *_):
        """Nothing."""


@pytest.mark.parametrize("counters", [True, False])
def test_a_servers_counters_by_place_are_read_before_and_after_each_prompt(
    counters, tmp_path, capsys
):
    handler = type("One", (Stub,), {"counters": counters})
    (tmp_path / "p").write_text("\n".join("abcdef"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        how = ["--prompts", str(tmp_path / "p"), "--gpu", "H100", "--target-size", "llama-3-8b"]
        code = nanogpt(["advise", url, *how, "--json"])
        out, said = capsys.readouterr()
        server.shutdown()
    if not counters:
        assert code == 2 and "its /metrics has no vllm:spec_decode_num_accepted_" in said
        assert handler.told == 2, "it was not asked for all"
        return
    found = json.loads(out)
    assert (code, found["prompts"], found["rounds"]) == (0, 6, 60)  # both engines
    assert found["alpha"] == [42 / 60, 30 / 42] and found["gains"][0]["brings"] == 2.2
    assert found["verdict"].endswith("; without a --draft-size, guesses cost nothing")
    assert (handler.asked["max_tokens"], handler.asked["min_p"]) == (100, 0), "no default is left"


# --- the command


def test_a_pair_of_folders_and_its_prompts_are_advised(tmp_path, capsys):
    pytest.importorskip("transformers", reason="pip install -e '.[oracle]' to run it")
    assert nanogpt(["export", "--draft", "--out", str(tmp_path)]) == 0
    (tmp_path / "p").write_text("play\tROMEO:\nplay\tJULIET:\n\nprose\tThe king is\n" * 2)
    pair, how = [str(tmp_path / x) for x in ("target", "draft")], ["--tokens", "30", "--K", "3"]
    code = nanogpt(["advise", *pair, *how, "--prompts", str(tmp_path / "p"), "--batch", "1", "2"])
    places, accepted, _, one, two, play, prose, _, last = capsys.readouterr().out.splitlines()[-9:]
    assert places.split()[1:] == ["1", "2", "3"] and 0.5 < float(accepted.split()[1]) < 1
    assert [x.split()[0] for x in (one, two, play, prose)] == ["1", "2", "play", "prose"]
    assert code == {"yes": 0, "no": 1, "cannot tell": 2}[last.split(":")[0]]
    sizes = ["--target-size", "216K,4,2x4x16", "--draft-size", "66K,1,2x2x32", "--gpu", "1G,1T,1T"]
    code = nanogpt(["advise", *pair, *how, *sizes, "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == code
    assert nanogpt(["advise", *pair, *how, *sizes[-2:]]) == 2  # read from the folders
    assert "target/config.json has model_type 'gpt2'" in capsys.readouterr().err


def test_a_prompt_ends_at_a_newline_alone(tmp_path):
    (tmp_path / "p").write_text("a\u2028b\n\nkind\tc ", encoding="utf-8")
    assert advise.read_prompts(tmp_path / "p") == [("", "a\u2028b"), ("kind", "c ")]


BAD = {
    "no file": (["nanogpt", "--prompts", "none"], "No such file"),
    "empty": (["nanogpt", "--prompts", "empty"], "empty has no prompt; write one a line"),
    "kind": (["nanogpt", "--prompts", "kind"], "kind, line 2: write KIND, a tab and a prompt"),
    "K": (["nanogpt", "--K", "0"], "K is 0; it must be a whole number from 1"),
    "batch": (["nanogpt", "--batch", "4", "0"], "batch is 0; it must be"),
    "draft": (["fused", "best"], "no draft 'best' of ours; use one of bigram, "),
    "no room": (["fused", "lookup", "--tokens", "5"], "no round had room for K guesses"),
    "size": (["fused", "lookup", "--gpu", "H100"], "--gpu needs a --target-size"),
    "fit": (["fused", "--gpu", "L4", "--target-size", "llama-3-70b"], "weights and one text"),
    "server": (["http://127.0.0.1:1/v1"], "cannot be timed from here: say its --gpu"),
    "its draft": (["http://127.0.0.1:1/v1", "x", "--gpu", "L4"], "a draft of its own"),
    "batch fit": (
        ["fused", "--gpu", "L4", "--target-size", "llama-3.1-8b", "--batch", "64", "1"],
        "texts fit at once; the first of --batch is 64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_advised_is_one_line_and_2(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n  \n")
    (tmp_path / "kind").write_text("chat\tHello\ncode\t\n")
    arguments, said = BAD[name]
    assert nanogpt(["advise", *arguments]) == 2
    out, error = capsys.readouterr()
    assert not out and said in error.strip().splitlines()[-1]


def test_a_draft_of_another_vocabulary_is_refused(tmp_path, capsys):
    causal = pytest.importorskip("nanogpt.engines.causal")
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[oracle]'")
    assert nanogpt(["export", "--out", str(tmp_path)]) == 0
    tokenizer = causal.PairTokenizer("abc ", [])
    config = transformers.GPT2Config(vocab_size=4, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    causal.save(transformers.GPT2LMHeadModel(config), tokenizer, tmp_path / "small")
    assert nanogpt(["advise", str(tmp_path / "target"), str(tmp_path / "small")]) == 2
    assert "chapter 32 has drafts with another tokenizer" in capsys.readouterr().err


def test_alpha_is_predicted_before_the_loops_run(monkeypatch):
    """The example's quick form: two pairs, two K, two batch sizes, without a clock."""
    monkeypatch.setenv("NANOGPT_FULL", "1")  # all prompts
    example = module_of(ROOT / "examples" / "advice" / "registered.py")
    torch.set_num_threads(1)
    prompts = advise.ours("fused", "lookup", n=15)[3]
    for name in ("fused, table", "fused, transformer"):
        pair = example.PAIRS[name]()
        before = example.predicted(pair, prompts, (1, 5), (1, 4), clocked=False)
        after = example.happened(pair, prompts, (1, 5), (1, 4), blocks=2)
        for cell, row in before.items():
            a, n = row["alpha"], min(row["examined"], after[cell]["examined"])
            assert 0.3 < a < 0.95 and n > 100
            assert abs(a - after[cell]["alpha"]) < 4 * (2 * a * (1 - a) / n) ** 0.5, (name, cell)
        assert len(before) == 4
