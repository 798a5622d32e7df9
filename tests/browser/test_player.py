"""The live page's recorded traces: it shows what the package really decoded, to the last number."""

import functools
import json
import subprocess
import sys

import pytest
import torch
from pages import PHONE, out_of_sight
from series import ROOT

from nanogpt import checkpoint
from nanogpt.data import load_corpus, train_val_split
from nanogpt.drafts.shipped import BEST_PROPOSED, PROPOSERS, proposer
from nanogpt.measure.bench import DRAFTS
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate
from nanogpt.trees.loop import tree_generate
from nanogpt.trees.tree import TreeRound

MARKS = {"accepted": "✓", "rejected": "✗", "resampled": "↻", "bonus": "★"}
BLANKS = str.maketrans({" ": "␣", "\n": "⏎"})
CHAINS, TREE = range(4), 4
SHOWN = {  # of the draft: where its trace is, its chapter, and a word of its description
    "exit": (5, 14, "first of its four blocks"),
    "medusa-tree": (6, 16, "hidden state of the target"),
    "eagle3": (7, 19, "three of the target's blocks"),
    "eagle-tree": (8, 19, "three of the target's blocks"),
    "mtp": (9, 20, "target's hidden state"),
    "lookahead": (10, 21, "the target's former answers"),
    "block-markov": (11, 22, "three of the target's blocks"),
}
TRACES = range(12)
BRANCHING, ONE_HOT = (TREE, 6, 8, 10), (2, 6, 8, 10)  # 2: at temperature 0


PAGE, RECORDED = ROOT / "book" / "live.html", ROOT / "book" / "live" / "recorded.json"


def record(path):
    command = [sys.executable, ROOT / "book" / "record.py", path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.parent.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recorded():
    """What the page plays."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recorded_here(tmp_path_factory):
    """What the command records on this machine, to the last bit."""
    return record(tmp_path_factory.mktemp("new") / "book" / "recorded.json")


@pytest.fixture(scope="module")
def shared(module_page):
    return opened(module_page())


@pytest.fixture
def page(shared):
    """The page at the first recorded trace, as if it had just been opened there."""
    shared.get_by_label("Speed").select_option("3")
    shared.evaluate("player.choose(0)")
    shared.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    return shared


def opened(page):
    page.goto(PAGE.as_uri())
    page.wait_for_function("window.live && live.ready")
    page.locator("#steps summary").click()
    page.get_by_label("What to watch").select_option("0")
    return page


def stopped_clock(page):
    """The page with a clock that goes only where a test moves it on."""
    page.clock.install(time=0)
    opened(page)
    page.clock.pause_at(60_000)


def state(page):
    return page.evaluate("player.state")


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def choose(page, i):
    page.get_by_label("What to watch").select_option(str(i))


@functools.cache
def parts():
    torch.set_num_threads(1)
    target, tokenizer = checkpoint.load()
    tokens, _ = train_val_split(torch.tensor(tokenizer.encode(load_corpus().text)))
    return target, tokenizer, {n: DRAFTS[n](tokens, 65) for n in ("bigram", "distilled")}


@functools.cache
def decoded(draft, K, temperature, seed, prompt, n):
    target, tokenizer, drafts = parts()
    prompt, how = tokenizer.encode(prompt), {"sampling": Sampling(temperature)}
    if draft in PROPOSERS:
        made = proposer(draft, target, drafts["distilled"], K)
        target = made.target or target
        return tree_generate(target, made, prompt, n, **how, rng=RandomSource(seed))
    return speculative_generate(target, drafts[draft], prompt, n, K, **how, rng=RandomSource(seed))


def generation_of(trace):
    names = ("draft", "K", "temperature", "seed", "prompt", "tokens")
    return decoded(*(trace[name] for name in names))


# ---- what is recorded


def test_the_traces_are_those_that_the_page_promises(recorded):
    assert [(t["draft"], t["K"], t["temperature"]) for t in recorded["traces"]] == [
        ("bigram", 4, 1.0),
        ("distilled", 8, 1.0),
        ("distilled", 8, 0.0),
        ("distilled", 8, 1.0),
        ("tree", 4, 1.0),
        *((draft, BEST_PROPOSED[draft], 1.0) for draft in SHOWN),
    ]
    restarts = [sum(r["restart"] for r in t["rounds"]) for t in recorded["traces"]]
    assert restarts[3] >= 1 and sum(restarts) == restarts[3]


@pytest.mark.parametrize("i", TRACES)
def test_every_round_is_the_packages_own(recorded_here, i):
    """The path that was kept is accepted, the siblings tried before it are rejected, no others."""
    trace, decode = recorded_here["traces"][i], parts()[1].decode
    made, fates = generation_of(trace), []
    assert len(trace["rounds"]) == len(made.rounds)
    for shown, r in zip(trace["rounds"], made.rounds, strict=True):
        tree = isinstance(r, TreeRound)
        parents = r.parents if tree else list(range(-1, len(r.candidates) - 1))
        path = r.path if tree else list(range(r.n_accepted))
        drafts = shown["drafts"]
        assert "".join(d["text"] for d in drafts) == decode(r.candidates)
        assert [d.get("parent", n - 1) for n, d in enumerate(drafts)] == parents
        for node, draft in enumerate(drafts):
            parent, token = parents[node], r.candidates[node]
            assert draft["p"] == float(r.target_probs[parent + 1, token])
            assert draft["q"] == float(r.draft_probs[node, token])
            reached = parent == -1 or parent in path
            examined = reached and not any(n < node for n in path if parents[n] == parent)
            fate = "accepted" if node in path else "rejected" if examined else "unexamined"
            assert draft["fate"] == fate and (draft["u"] is None) == (fate == "unexamined")
            first = node == parents.index(parent)
            assert ("left" in draft) == (examined and not first)
            fates.append((fate, first))
        end = path[-1] if path else -1
        assert shown["last"]["text"] == decode(r.emitted[-1:])
        assert shown["last"]["fate"] == ("resampled" if end in parents else "bonus")
        assert ("residual" in shown["last"]) == (end in parents)
        assert shown["last"]["p"] == float(r.target_probs[end + 1, r.emitted[-1]])
        assert shown["cache"][0] == r.position
    if i in BRANCHING:
        assert ("accepted", False) in fates, "a second sibling is among those that were kept"


@pytest.mark.parametrize("i", TRACES)
def test_each_u_agrees_with_its_mark(recorded, i):
    for r in recorded["traces"][i]["rounds"]:
        for draft in r["drafts"]:
            if draft["fate"] == "unexamined":
                assert draft["u"] is None
            else:
                accepted = draft["u"] < min(1, draft.get("left", draft["p"]) / draft["q"])
                assert 0 <= draft["u"] < 1 and accepted == (draft["fate"] == "accepted")


@pytest.mark.parametrize("i", TRACES)
def test_the_cache_is_one_behind_after_every_trim_and_restart(recorded, i):
    trace, held, window = recorded["traces"][i], len(recorded["traces"][i]["prompt"]) - 1, 128
    for r in trace["rounds"]:
        before, after, trimmed = r["cache"]
        accepted = sum(d["fate"] == "accepted" for d in r["drafts"])
        assert r["restart"] == (held == window)
        assert before == (window // 2 if r["restart"] else held)
        assert after == before + len(r["drafts"]) + 1 <= window
        assert trimmed == before + accepted + 1
        held = trimmed
    whole = len(trace["prompt"]) + trace["tokens"]
    if not any(r["restart"] for r in trace["rounds"]):
        assert held == whole - 1


def test_what_is_stored_is_what_the_command_records(recorded, recorded_here):
    """Another processor makes other last bits, and may decide a narrow case otherwise, far on."""
    assert recorded["corpus"] == "Tiny Shakespeare"
    same_corpus = recorded_here["corpus"] == recorded["corpus"]
    for kept, made in zip(recorded["traces"], recorded_here["traces"], strict=True):
        assert {k: v for k, v in kept.items() if k != "rounds"} == {
            k: v for k, v in made.items() if k != "rounds"
        }
        first = list(zip(kept["rounds"], made["rounds"], strict=False))[: 5 * same_corpus]
        for old, new in first:
            assert old["last"]["text"] == new["last"]["text"]
            for a, b in zip(
                [*old["drafts"], old["last"]], [*new["drafts"], new["last"]], strict=True
            ):
                assert a["p"] == pytest.approx(b["p"], abs=1e-4)
                assert a.get("q", 0) == pytest.approx(b.get("q", 0), abs=1e-4)
    if same_corpus:
        assert recorded_here["counts"] == recorded["counts"]


# ---- what is shown


def marked_text(page):
    """The text on the page and its marks, from the letters that are not hidden."""
    read = "tokens => tokens.filter(t => !t.parentNode.hidden).map(t => t.textContent)"
    tokens = page.locator("button.token").evaluate_all(read)
    return "".join(t[0] for t in tokens), "".join(t[1:] for t in tokens)


@pytest.mark.parametrize("i", (TREE, 3))
def test_a_trace_plays_to_its_end_and_stops_there(open_page, i):
    page = open_page()
    stopped_clock(page)
    choose(page, i)
    page.get_by_label("Speed").select_option("40")
    press(page, "Play")
    assert state(page)["playing"] and page.get_by_role("button", name="Pause").is_visible()
    with out_of_sight(page):
        page.clock.run_for(60_000)
    at_end = state(page)
    assert not at_end["playing"] and at_end["round"] == at_end["rounds"] - 1
    assert at_end["steps"][at_end["step"]] == "trim"


@pytest.mark.parametrize("i", TRACES)
def test_every_trace_ends_with_what_the_package_decodes(page, recorded, i):
    choose(page, i)
    page.evaluate("player.go(1e9, 1e9)")
    trace, at_end = recorded["traces"][i], state(page)
    made, text = generation_of(trace), parts()[1].decode(generation_of(trace).tokens)
    assert at_end["round"] == len(made.rounds) - 1 and at_end["text"] == text
    kept = [*(d for r in trace["rounds"] for d in [*r["drafts"], r["last"]])]
    marks = "".join(MARKS[d["fate"]] for d in kept if d["fate"] not in ("rejected", "unexamined"))
    assert marked_text(page) == (text.translate(BLANKS), marks)
    assert at_end["tokensPerPass"] == pytest.approx(made.tokens_per_pass, abs=1e-12)
    assert at_end["alpha"] == pytest.approx(made.alpha, abs=1e-12)
    assert page.inner_text("#passes") == str(made.target_passes)
    assert page.inner_text("#tokens") == str(len(made.tokens))
    assert page.inner_text("#rate") == f"{made.tokens_per_pass:.2f}"
    assert page.inner_text("#alpha") == f"{made.alpha:.2f}"
    assert page.inner_text("#plain") == f"{len(made.tokens)} passes"


ROWS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"


def branch_by_branch(drafts, parent=-1):
    """The guesses in the order of the table's rows: each before those that follow it."""
    for i, draft in enumerate(drafts):
        if draft.get("parent", i - 1) == parent:
            yield draft
            yield from branch_by_branch(drafts, i)


def strip(page):
    cells = page.locator("#strip .cell").evaluate_all("cells => cells.map(c => c.className)")
    assert len(cells) == 128
    return [c.removeprefix("cell ") for c in cells if c != "cell "]


@pytest.mark.parametrize("i", TRACES)
def test_every_step_shows_its_guesses_and_its_cache(page, recorded, i):
    choose(page, i)
    with out_of_sight(page):
        assert_every_step_is_shown(page, recorded["traces"][i])


def assert_every_step_is_shown(page, trace):
    text = trace["prompt"]
    for n, r in enumerate(trace["rounds"]):
        page.evaluate("n => player.go(n, 0)", n)
        before, after, trimmed = r["cache"]
        accepted = [d for d in r["drafts"] if d["fate"] == "accepted"]
        steps = state(page)["steps"]
        order = ["start", *["restart"] * r["restart"], *["draft"] * len(r["drafts"]), "verify"]
        order += ["judge"] * sum(d["u"] is not None for d in r["drafts"])
        assert steps == [*order, "last", "trim"]
        assert strip(page) == ["cached"] * (128 if r["restart"] else before)
        page.evaluate("([n, s]) => player.go(n, s)", [n, steps.index("verify")])
        assert len(strip(page)) == after
        assert strip(page)[before:] == ["current", *["drafted"] * len(r["drafts"])]
        assert state(page)["text"] == text[len(trace["prompt"]) :]
        page.evaluate("([n, s]) => player.go(n, s)", [n, len(steps) - 2])
        assert strip(page)[before:] == ["current", *(d["fate"] for d in r["drafts"])]
        page.evaluate("([n, s]) => player.go(n, s)", [n, len(steps) - 1])
        assert strip(page) == ["cached"] * (before + 1) + ["accepted"] * len(accepted)
        assert len(strip(page)) == trimmed
        text += "".join(d["text"] for d in accepted) + r["last"]["text"]
        assert trace["prompt"] + state(page)["text"] == text
        rows = page.locator("#rows tr").evaluate_all(ROWS)
        shown = [*branch_by_branch(r["drafts"]), r["last"]]
        names = [row[0].lstrip("\u00a0└") for row in rows if row[0]]
        assert names == [d["text"].translate(BLANKS) for d in shown]
        for row, draft in zip(rows, shown, strict=False):
            mark = MARKS.get(draft["fate"], "· never examined")
            assert row[5].startswith(mark)
            assert bool(row[4]) == (draft.get("u") is not None)


def test_the_sentence_of_a_decision_says_u_and_the_ratio_truly(page, recorded):
    said = set()
    for n, r in enumerate(recorded["traces"][0]["rounds"]):
        first = 2 + len(r["drafts"]) + r["restart"]
        for i, draft in enumerate(d for d in r["drafts"] if d["u"] is not None):
            page.evaluate("([n, s]) => player.go(n, s)", [n, first + i])
            sentence = page.inner_text("#sentence")
            sign = "<" if draft["fate"] == "accepted" else "≥"
            u, bound = sentence.split(" → ")[0].removeprefix("u = ").split(f" {sign} ")
            bound = 1.0 if bound.startswith("1 (") else float(bound.removeprefix("p/q = "))
            assert float(u) == pytest.approx(draft["u"], abs=0.006)
            assert bound == pytest.approx(min(1, draft["p"] / draft["q"]), abs=0.006)
            assert (float(u) < bound) == (sign == "<"), sentence
            assert f"→ {MARKS[draft['fate']]}" in sentence
            said.add(draft["fate"])
    assert said == {"accepted", "rejected"}
    assert page.evaluate("digits(0.4561, 0.4563)") == "0.4561"  # never u = 0.46 < 0.46


@functools.cache
def sentences(page, i):
    """What the page says of a trace: (kind of the step, the draft drawn in it, sentence, round)."""
    choose(page, i)
    read = """() => player.traces[player.state.trace].rounds.flatMap((round, n) => {
        player.go(n, 0);
        let drafted = 0;
        return player.state.steps.map((kind, s) => {
            player.go(n, s);
            const draft = kind === "draft" ? round.drafts[drafted++] : null;
            return [kind, draft, document.getElementById("sentence").textContent, n];
        });
    })"""
    with out_of_sight(page):
        return page.evaluate(read)


@pytest.mark.parametrize("i", BRANCHING)
def test_a_tree_shows_its_branches_and_whom_it_refused(page, recorded, i):
    every = " ".join(said for *_, said, _ in sentences(page, i))
    for part in ("one of several", "Each sees its own branch only", "its sibling, is next",
                 "left it", "on to what follows it", "entries move together"):  # fmt: skip
        assert part in every, part
    choose(page, i)
    for n, r in enumerate(recorded["traces"][i]["rounds"]):
        page.evaluate("n => player.go(n, 1e9)", n)
        names = [row[0] for row in page.locator("#rows tr").evaluate_all(ROWS)]
        deep = any(d.get("parent", j - 1) >= 0 for j, d in enumerate(r["drafts"]))
        assert any("└" in name for name in names) == deep


@pytest.mark.parametrize("i", sorted(set(TRACES) - set(BRANCHING)))
def test_a_chain_reads_like_a_chain_however_it_was_decoded(page, i):
    for *_, said, _ in sentences(page, i):
        assert not [w for w in ("one of several", "ranch", "sibling", "move together") if w in said]
    assert "rejected" in " ".join(said for *_, said, _ in sentences(page, i))
    choose(page, i)
    page.evaluate("player.go(5, 1e9)")
    assert "└" not in page.inner_text("#rows")


@pytest.mark.parametrize("i", TRACES)
def test_every_sentence_is_whole_and_says_whether_the_guess_was_drawn(page, recorded, i):
    trace, written = recorded["traces"][i], 0
    deepest = 8 if i < 4 else 4
    for kind, draft, said, n in sentences(page, i):
        assert "undefined" not in said and "NaN" not in said and "null" not in said
        if kind == "draft":
            assert f"guesses “{draft['text'].translate(BLANKS)}”" in said
            assert ("not drawn, so q = 1 and it is accepted with" in said) == (i in ONE_HOT), said
            assert ("drawn from its q" in said) == (i not in ONE_HOT), said
            likeliest = "window or its pool" if trace["draft"] == "lookahead" else "likeliest"
            assert (likeliest in said) == (i in ONE_HOT), said
        if kind == "last" and "↻" in said:
            assert ("which is p without what was refused" in said) == (i in ONE_HOT), said
        if "the text is nearly done" in said:
            assert trace["tokens"] - written <= deepest
        if kind == "trim":
            r = trace["rounds"][n]
            written += r["cache"][2] - r["cache"][0]
    assert written == trace["tokens"]


def test_a_second_sibling_of_a_fixed_tree_is_the_second_likeliest(page, recorded):
    said = [s for kind, _, s, n in sentences(page, 6) if kind == "draft" and n == 0]
    ranks = [s.split(", its ")[1].split("likeliest")[0].strip() for s in said]
    assert ranks[:3] == ["", "second", "third"] and "fifth" not in ranks and "5th" in ranks
    assert said[0].endswith("accepted with probability p.")
    assert said[1].endswith("accepted with probability p, earlier siblings left out.")


@pytest.mark.parametrize("draft", SHOWN)
def test_a_description_names_the_method_its_chapter_and_what_it_reads(page, recorded, draft):
    i, chapter, reads = SHOWN[draft]
    trace = recorded["traces"][i]
    assert trace["draft"] == draft and f"(chapter {chapter})" in trace["name"]
    assert list((ROOT / "notebooks").glob(f"{chapter}_*.ipynb"))
    choose(page, i)
    about = page.inner_text("#about")
    assert f"(chapter {chapter})" in about and f" read{'' if 'heads' in about else 's'} " in about
    assert reads in about and "{" not in about and "undefined" not in about
    most = max(len(r["drafts"]) for r in trace["rounds"])
    assert f"{most} guesses" in about or f"{most} most promising guesses" in about
    assert about.endswith(f"temperature 1, seed 0, {trace['tokens']} tokens.")


def test_the_descriptions_of_the_first_traces(page):
    ends = [
        "a bigram counted in Tiny Shakespeare, which sees one letter back. K = 4 guesses a round",
        *["an n-gram tree distilled from the target (chapter 10). K = 8 guesses a round"] * 3,
        "an n-gram tree distilled from the target (chapter 10). A tree of up to 14 guesses a "
        "round, 2 · 2 · 1 · 1 after each",
    ]
    corpus = json.loads(page.text_content("#recorded"))["corpus"]
    for i, end in enumerate(ends):
        choose(page, i)
        expected = f"Draft: {end}, temperature".replace("Tiny Shakespeare", corpus)
        assert page.inner_text("#about").startswith(expected)


def test_a_restart_is_seen(page, recorded):
    choose(page, 3)
    n = next(n for n, r in enumerate(recorded["traces"][3]["rounds"]) if r["restart"])
    page.evaluate("n => player.go(n, 0)", n)
    assert "full" in page.inner_text("#sentence") and len(strip(page)) == 128
    press(page, "Step")
    assert page.inner_text("#sentence").startswith("Restart: the 64 tokens before the current one")
    assert len(strip(page)) == 64


# ---- how it is worked


def place(page):
    return state(page)["round"], state(page)["step"]


def test_buttons_slider_and_select(page):
    assert place(page) == (0, 0)
    press(page, "Step")
    press(page, "Step")
    assert place(page) == (0, 2)
    press(page, "Back")
    assert place(page) == (0, 1)
    press(page, "Next round")
    last = len(state(page)["steps"]) - 1
    assert place(page) == (0, last)
    press(page, "Step")
    assert place(page) == (1, 0)
    press(page, "Back")
    assert place(page) == (0, last)
    slider = page.get_by_label("Round", exact=True)
    slider.fill("10")
    assert state(page)["round"] == 9
    assert slider.get_attribute("aria-valuetext").startswith("round 10 of ")
    slider.press("ArrowRight")
    assert state(page)["round"] == 10
    press(page, "To the start")
    assert place(page) == (0, 0) and state(page)["text"] == ""
    press(page, "Back")  # nothing before the start
    assert place(page) == (0, 0)
    choose(page, 2)
    assert state(page)["trace"] == 2 and "temperature 0" in page.inner_text("#about")


def test_keys(page):
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)]:
        page.keyboard.press(key)
        assert place(page) == (0, step)
    page.keyboard.press("Space")
    assert state(page)["playing"]
    page.keyboard.press("Space")
    assert not state(page)["playing"]
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")  # a step by hand stops the playing
    assert not state(page)["playing"]


def test_everything_is_reached_with_tab_and_seen(open_page):
    page = opened(open_page())
    reached = []
    for _ in range(10):  # from the choice of recorded traces on
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "(e => [e.id || e.getAttribute('href'), getComputedStyle(e).outlineWidth])"
            "(document.activeElement)"
        )
        reached.append(name)
        assert float(outline.removesuffix("px")) >= 3, f"no focus to be seen on {name}"
        if name == "slider":
            break
    assert reached == ["trace", "start", "back", "play", "step", "next", "speed", "slider"]


def test_a_click_on_a_letter_shows_how_it_came(page, recorded):
    rounds = recorded["traces"][0]["rounds"]
    page.evaluate("player.go(20, 99)")
    before = marked_text(page)[0]
    n = sum(sum(d["fate"] == "accepted" for d in r["drafts"]) + 1 for r in rounds[:5])
    page.locator("button.token").nth(n).click()  # the first letter of round 6
    assert state(page)["round"] == 5
    made = state(page)["steps"][state(page)["step"]]
    assert made == ("judge" if rounds[5]["drafts"][0]["fate"] == "accepted" else "last")
    assert state(page)["tokens"] == n + 1
    assert marked_text(page)[0] == before  # what is further on stays there, to be clicked
    page.locator("button.token").nth(len(before) - 1).click()
    assert state(page)["round"] == 20


def test_playing_takes_the_speed_that_was_chosen_and_starts_again_at_the_end(open_page):
    page = open_page()
    stopped_clock(page)
    page.get_by_label("Speed").select_option("1")
    press(page, "Play")
    page.clock.run_for(3_100)
    assert place(page) == (0, 3)
    page.get_by_label("Speed").select_option("10")
    page.clock.run_for(210)
    assert place(page) == (0, 5)
    press(page, "Pause")
    page.clock.run_for(5_000)
    assert place(page) == (0, 5)
    page.evaluate("player.go(1e9, 1e9)")
    press(page, "Play")
    assert place(page) == (0, 0)


def test_a_listener_hears_steps_by_hand_and_only_rounds_while_it_plays(open_page):
    page = open_page()
    stopped_clock(page)
    press(page, "Step")
    assert page.inner_text("#status") == page.inner_text("#sentence")
    press(page, "Play")
    heard = page.inner_text("#status")
    page.clock.run_for(700)
    assert page.inner_text("#status") == heard != page.inner_text("#sentence")
    page.clock.run_for(10_000)
    assert page.inner_text("#status").startswith("Round ")


def test_nothing_moves_by_itself_where_motion_is_unwelcome(open_page):
    page = opened(open_page())
    seconds = "e => getComputedStyle(e).transitionDuration"
    assert page.locator("#strip .cell").first.evaluate(seconds) == "0s"
    page.emulate_media(reduced_motion="no-preference")
    assert page.locator("#strip .cell").first.evaluate(seconds) != "0s"


def test_on_paper_the_whole_text_stands_there(open_page, recorded):
    page = opened(open_page())
    choose(page, 3)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})  # about a sheet
    assert state(page)["tokens"] == recorded["traces"][3]["tokens"]
    assert not page.get_by_role("button", name="Play").is_visible()
    box = page.locator("#text").evaluate("e => [e.scrollHeight, e.clientHeight]")
    assert box[0] <= box[1]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert place(page) == (0, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_sideways_scroll_on_a_phone(open_page, scheme):
    page = opened(open_page(size=PHONE, color_scheme=scheme, has_touch=True))
    for i in TRACES:
        choose(page, i)
        for step in ("0, 0", "7, 9", "12, 5"):
            page.evaluate(f"player.go({step})")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        widths = """player.traces[player.state.trace].rounds.map((_, n) => {
            player.go(n, 1e9);
            return document.documentElement.scrollWidth;
        })"""
        assert max(page.evaluate(widths)) <= PHONE[0]  # in every round
    assert page.locator("#strip .cell").first.bounding_box()["width"] >= 10  # room for a letter
    page.get_by_role("button", name="To the start").tap()
    page.get_by_role("button", name="Step").tap()
    assert place(page) == (0, 1)
