"""The explorer page: its numbers are those of p and q, and its throws are the package's rule."""

import bisect
import itertools
import math
from collections import Counter

import pytest
import torch
from pages import PHONE, assert_leads_back
from series import ROOT

from nanogpt.speculative import accept_reject

ADDRESS = (ROOT / "book" / "explorer.html").as_uri()
THROWS = 20_000
PRESETS = ["Three letters", "Two letters", "Four letters", "p = q", "Almost disjoint"]
PRESETS += ["Overconfident draft", "Flat draft"]


@pytest.fixture
def page(open_page):
    return opened(open_page())


def opened(page, hash=""):
    page.goto(ADDRESS + hash)
    return page


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def choose(page, preset):
    page.get_by_label("Example").select_option(preset)


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def state(page):
    return page.evaluate("explorer.state")


def numbers(page, row):
    """The numbers of a row of the first table, as they stand on the page."""
    cells = page.locator("#numbers tr", has_text=row).first.locator("td").all_text_contents()
    return [None if cell == "–" else float(cell) for cell in cells]


def check_numbers(page):
    """All that the page says of p and q, worked out again from the p and q that it shows."""
    p, q = numbers(page, "target p"), numbers(page, "draft q")
    shown = state(page)
    assert shown["p"] == pytest.approx(p, abs=5.1e-4)
    assert shown["q"] == pytest.approx(q, abs=5.1e-4)
    assert sum(shown["p"]) == pytest.approx(1, abs=1e-9)
    assert sum(shown["q"]) == pytest.approx(1, abs=1e-9)
    pairs = list(zip(p, q, strict=True))
    rounding = 5.1e-4 * (len(p) + 1)
    alpha = sum(min(pair) for pair in pairs)
    for place, value in {"alpha": alpha, "reject": 1 - alpha}.items():
        assert float(page.inner_text(f"#{place}")) == pytest.approx(value, abs=rounding), place
    assert numbers(page, "overlap") == pytest.approx([min(pair) for pair in pairs], abs=1e-3)
    assert numbers(page, "q too much") == pytest.approx([max(0, b - a) for a, b in pairs], abs=2e-3)
    missing = [max(0, a - b) for a, b in pairs]
    assert numbers(page, "residual max") == pytest.approx(missing, abs=2e-3)
    residual = numbers(page, "normalised")
    assert residual == [None] * len(p) or sum(residual) == pytest.approx(1, abs=rounding)
    for (a, b), ratio in zip(pairs, numbers(page, "accepted with"), strict=True):
        assert ratio is None if b == 0 else ratio == pytest.approx(min(1, a / b), abs=2e-3 / b)


def drag(page, name, up):
    box = slider(page, name).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for part in range(1, 6):
        page.mouse.move(x, y - up * part / 5)
    page.mouse.up()


def test_a_drag_moves_one_bar_and_the_others_give_way(page):
    drag(page, "draft q of c", up=-120)
    p, q = state(page)["p"], state(page)["q"]
    assert p == [0.5, 0.3, 0.2]
    assert 0.2 < q[2] < 0.5 and q[0] == pytest.approx(q[1])
    check_numbers(page)
    drag(page, "target p of a", up=500)  # far above the picture
    assert state(page)["p"] == [1, 0, 0]
    check_numbers(page)
    drag(page, "target p of a", up=-70)  # from 1 downward: the others share what is left
    p = state(page)["p"]
    assert p[1] == pytest.approx(p[2]) and p[0] < 0.9
    check_numbers(page)


def test_the_arrow_keys_move_a_bar(page):
    handle = slider(page, "target p of b")
    handle.focus()
    keys = {"ArrowUp": 0.31, "PageUp": 0.41, "ArrowDown": 0.4, "End": 1, "PageDown": 0.9, "Home": 0}
    for key, value in keys.items():
        page.keyboard.press(key)
        assert state(page)["p"][1] == pytest.approx(value)
        assert handle.get_attribute("aria-valuetext") == f"p of b is {value:.2f}"
        check_numbers(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "target p of b"


# ---- throws


def counted(page, n=THROWS):
    page.evaluate("n => explorer.throwMany(n)", n)
    return state(page)


def errors_away(shares, probs, n):
    """How many standard errors of n throws the shares lie from the probabilities, at most."""
    return max(
        abs(share - p) / max(math.sqrt(p * (1 - p) / n), 1 / n)
        for share, p in zip(shares, probs, strict=True)
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_what_comes_out_is_p_and_what_is_accepted_is_alpha(page, preset):
    choose(page, preset)
    check_numbers(page)
    made = counted(page)
    assert made["throws"] == sum(made["counts"]) == THROWS
    shares = [n / THROWS for n in made["counts"]]
    assert errors_away(shares, made["p"], THROWS) < 4  # by chance once in some thousand seeds
    alpha = sum(map(min, made["p"], made["q"]))
    assert errors_away([made["accepted"] / THROWS], [min(1, alpha)], THROWS) < 4
    said = f"{made['accepted'] / THROWS:.3f}, beside α = {alpha:.3f}."
    assert page.inner_text("#measured").endswith(said)


@pytest.mark.parametrize("preset", ["Three letters", "Two letters", "Flat draft"])
def test_the_mistake_leads_elsewhere_and_the_page_says_where(page, preset):
    choose(page, preset)
    page.get_by_label("well-known mistake").check()
    made = counted(page)
    p, q = made["p"], made["q"]
    rejected = 1 - sum(map(min, p, q))
    limit = [min(a, b) + rejected * a for a, b in zip(p, q, strict=True)]
    shares = [n / THROWS for n in made["counts"]]
    assert made["limit"] == pytest.approx(limit, abs=1e-12)
    assert errors_away(shares, limit, THROWS) < 4
    assert errors_away(shares, p, THROWS) > 12
    row = page.locator("#counts tr", has_text="P(reject)").locator("td").all_text_contents()
    assert [float(cell) for cell in row] == pytest.approx(limit, abs=5.1e-4)
    bias = sum(abs(a - b) for a, b in zip(limit, p, strict=True)) / 2
    assert f"leads {bias:.3f} away from p" in page.inner_text("#verdict")


class Mulberry32:
    """The page's random numbers, as a source that the package draws from."""

    def __init__(self, seed):
        self.a, self.accepted = seed, False

    def uniform(self):
        mask = 0xFFFFFFFF
        self.a = (self.a + 0x6D2B79F5) & mask
        t = ((self.a ^ (self.a >> 15)) * (1 | self.a)) & mask
        t = ((t + ((t ^ (t >> 7)) * (61 | t) & mask)) & mask) ^ t
        return (t ^ (t >> 14)) / 2**32

    def bernoulli(self, probability):
        self.accepted = self.uniform() < probability
        return self.accepted

    def categorical(self, probs):
        if self.accepted:  # the package's bonus token, which the page does not draw
            self.accepted = False
            return 0
        return bisect.bisect_right(list(itertools.accumulate(probs.tolist())), self.uniform())


@pytest.mark.parametrize("preset", ["Three letters", "Four letters", "Flat draft"])
def test_the_throws_are_those_of_accept_reject(page, preset):
    choose(page, preset)
    page.get_by_text("and the seed").click()
    page.get_by_label("Seed").fill("7")
    made, rng = counted(page, 2000), Mulberry32(7)
    p, q = (torch.tensor(made[name], dtype=torch.float64) for name in "pq")
    tokens = Counter()
    for _ in range(2000):
        guess = rng.categorical(q)
        tokens[accept_reject([guess], q[None], torch.stack([p, p]), rng)[0]] += 1
    assert made["counts"] == [tokens[x] for x in range(len(p))]


def test_the_same_seed_gives_the_same_throws(page):
    page.get_by_text("and the seed").click()
    first = counted(page, 500)
    press(page, "Reset")
    assert state(page)["throws"] == 0
    assert counted(page, 500) == first
    seed = page.get_by_label("Seed")
    seed.fill("1")
    other = counted(page, 500)
    assert other["counts"] != first["counts"] and other["throws"] == 500
    seed.fill("0")
    for _ in range(3):
        press(page, "Throw")
    page.evaluate("explorer.throwMany(497)")  # one by one or all at once
    assert state(page)["counts"] == first["counts"]


def test_a_change_of_p_q_or_rule_empties_the_counter(page):
    for change in (
        lambda: slider(page, "draft q of a").press("ArrowUp"),
        lambda: choose(page, "Flat draft"),
        lambda: page.get_by_label("well-known mistake").check(),
        lambda: page.evaluate("explorer.set([.5, .5], [.9, .1])"),
    ):
        assert counted(page, 10)["throws"] == 10
        change()
        assert state(page)["throws"] == 0


def test_one_throw_is_told_as_it_was(page):
    fates = set()
    for n in range(1, 30):
        press(page, "Throw")
        last, q = state(page)["last"], state(page)["q"]
        story = page.inner_text("#headline") + page.inner_text("#steps")
        guess, token = "abc"[last["guess"]], "abc"[last["token"]]
        assert story.startswith(f"Throw {n}: the guess {guess} is ")
        assert f"u₁ = {last['u1']:.3f} falls on {guess}" in story
        assert sum(q[: last["guess"]]) <= last["u1"] < sum(q[: last["guess"] + 1])
        assert last["accepted"] == (last["u2"] < min(1, last["ratio"]))
        assert ("accepted ✓" in story) == last["accepted"] != ("rejected ✗" in story)
        assert (f"falls on ↻ {token}." in story) == (not last["accepted"])
        fates.add(last["accepted"])
    assert fates == {True, False}


def test_the_distance_falls_with_more_throws(page):
    early = counted(page, 30)
    late = counted(page, THROWS)
    assert late["history"][: len(early["history"])] == early["history"]
    assert late["history"][-1]["tv"] < 0.02 < early["history"][0]["tv"]
    assert page.locator("#distance polyline").count() == 2  # the counter, and what chance leaves


# ---- the address


def test_the_address_holds_what_was_chosen_and_opens_it_again(page, open_page):
    slider(page, "draft q of c").press("PageDown")
    page.get_by_label("well-known mistake").check()
    page.get_by_text("and the seed").click()
    page.get_by_label("Seed").fill("7")
    page.wait_for_function("location.hash.includes('seed=7')")
    again = opened(open_page(), page.url.removeprefix(ADDRESS))
    assert again.get_by_label("well-known mistake").is_checked()
    assert counted(again, 500) == counted(page, 500)
    page.evaluate("location.hash = 'p=0.7,0.3&q=0.4,0.6'")  # a link, while the page is open
    page.wait_for_function("document.querySelector('#example').value === 'Two letters'")
    assert state(page)["seed"] == state(page)["throws"] == 0 and not state(page)["mistake"]
    choose(page, "Three letters")
    page.wait_for_url(ADDRESS)


BROKEN = ["p=&q=", "p=1", "p=0.5,0.6,-0.1", "q=0.1,0.1", "p=a,b,c", "p=NaN,0,1", "q=Infinity,0,0"]
BROKEN += ["p=0.5,0.5", f"q={'0.1,' * 9}0.1", "seed=-1", "seed=1.5", "seed=4294967296", "seed=x"]
BROKEN += ["mistake=perhaps", "%E0%A4%A&&=#", "toString=1"]


def test_what_cannot_be_in_an_address_is_as_on_the_bare_page(page):
    for sent in BROKEN:
        page.evaluate("sent => { location.hash = sent; }", sent)
        page.wait_for_function("location.hash === ''")  # put right there, too
        shown = state(page)
        assert (shown["p"], shown["q"]) == ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8]), sent
        assert (shown["seed"], shown["mistake"]) == (0, False), sent
    page.goto(f"{ADDRESS}#p=0.2,0.3,0.5&q=7&mistake=true&seed=")
    page.wait_for_function("explorer.state.mistake")
    assert (state(page)["p"], state(page)["q"]) == ([0.2, 0.3, 0.5], [0.1, 0.1, 0.8])


# ---- for everyone


SCREENS = [((1280, 800), "headline measured bars steps"), ((390, 844), "headline measured bars")]


@pytest.mark.parametrize(("size", "seen"), [*SCREENS, ((640, 400), "headline")])
def test_throw_and_what_comes_of_it_stand_in_the_first_screen(open_page, size, seen):
    page = opened(open_page(size=size))
    page.evaluate("document.querySelector('nav').hidden = false")  # as in the book
    page.get_by_label("well-known mistake").check()
    for preset in PRESETS:
        choose(page, preset)
        for _ in range(3):
            press(page, "Throw")
            for name in ["throw", *seen.split()]:
                box = page.locator(f"#{name}").bounding_box()
                assert box["y"] + box["height"] <= size[1], f"{name} of {preset}"
    assert page.evaluate("scrollY") == 0


FOCUS = """() => {
    const e = document.activeElement, grip = e.querySelector('.grip');
    return [e.getAttribute('aria-label') || e.id || e.tagName,
        grip ? getComputedStyle(grip).strokeWidth : getComputedStyle(e).outlineWidth];
}"""


def test_everything_works_from_the_keyboard_alone(page):
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, line = page.evaluate(FOCUS)
        if name == "SUMMARY":
            break
        reached.append(name)
        assert float(line.removesuffix("px")) >= 3, f"no focus to be seen on {name}"
    sliders = [f"{name} of {x}" for x in "abc" for name in ("target p", "draft q")]
    assert reached == ["example", "throw", "many", "reset", "mistake", *sliders]
    for key in ("Enter", "Tab", "ArrowUp"):
        page.keyboard.press(key)
    assert state(page)["seed"] == 1
    page.locator("#mistake").focus()
    page.keyboard.press("Space")
    assert state(page)["mistake"]
    for key, throws in [("Shift+Tab", 0), ("Enter", 0), ("Shift+Tab", 0), ("Enter", 1000)]:
        page.keyboard.press(key)
        assert state(page)["throws"] == throws
    for key in ("Shift+Tab", "Space", "Shift+Tab", "ArrowDown"):
        page.keyboard.press(key)
    assert state(page)["p"] == [0.7, 0.3]


def test_a_finger_drags_a_bar_and_the_page_stays(open_page):
    page = opened(open_page(size=PHONE, has_touch=True, is_mobile=True))
    handle = slider(page, "draft q of c")
    handle.scroll_into_view_if_needed()
    box, scrolled = handle.bounding_box(), page.evaluate("scrollY")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    finger = page.context.new_cdp_session(page)
    for kind, dy in [("touchStart", 0), ("touchMove", 40), ("touchMove", 90), ("touchEnd", None)]:
        points = [] if dy is None else [{"x": x, "y": y + dy}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        page.evaluate("new Promise(requestAnimationFrame)")  # moves are handed on once a frame
    assert state(page)["q"][2] < 0.6
    assert page.evaluate("scrollY") == scrolled
    check_numbers(page)
    page.get_by_role("button", name="Throw 1,000").tap()
    assert state(page)["throws"] == 1000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_sideways_scroll_on_a_narrow_phone(open_page, scheme):
    page = opened(open_page(size=(320, 640), color_scheme=scheme))
    page.get_by_label("well-known mistake").check()
    for preset in PRESETS:
        choose(page, preset)
        page.evaluate("explorer.throwMany(12345)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        clipped = "e => e.filter(e => e.getBoundingClientRect().right > innerWidth).length"
        assert page.locator("main *").evaluate_all(clipped) == 0


def test_the_page_asks_for_nothing_and_leads_back_to_the_book(open_page):
    page, asked = open_page(), []
    page.on("request", lambda request: asked.append(request.url))
    opened(page)
    press(page, "Throw 1,000")
    assert_leads_back(page, asked, ADDRESS, "Accept or reject")
