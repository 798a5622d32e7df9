"""Answers to the turn (0) and exercises of chapter 13: right ones of several kinds, wrong ones."""

TURN = """
def my_fair_clock(old, new, prompts):
    old(prompts[0]), new(prompts[0])
    ratios = []
    for i, prompt in enumerate(prompts):
        runs = (old, new) if i % 2 == 0 else (new, old)
        seconds = {who: clock(lambda: who(prompt))[0] for who in runs}
        ratios.append(seconds[old] / seconds[new])
    return median(ratios)
"""

RIGHT = {
    0: [
        """
def my_fair_clock(old, new, prompts):
    old(prompts[0])
    new(prompts[0])
    ratios = []
    for i, prompt in enumerate(prompts):
        seconds = {}
        for who in (old, new) if i % 2 == 0 else (new, old):
            seconds[who], _ = clock(lambda who=who: who(prompt))
        ratios.append(seconds[old] / seconds[new])
    return median(ratios)
""",
        """
def my_fair_clock(old, new, prompts):  # the first pair is the warm-up; its own clock
    times = np.zeros((len(prompts), 2))
    for i, prompt in [(0, prompts[0]), *enumerate(prompts)]:
        for j in (0, 1) if i % 2 else (1, 0):
            started = time.perf_counter_ns()
            (old, new)[j](prompt)
            times[i, j] = time.perf_counter_ns() - started
    return np.median(times[:, 0] / times[:, 1])
""",
        """
def my_fair_clock(old, new, prompts):  # old, new, new, old on every prompt
    def seconds(who, prompt):
        started = time.perf_counter()
        who(prompt)
        return time.perf_counter() - started

    for _ in range(3):
        seconds(old, prompts[0]), seconds(new, prompts[0])
    ratios = []
    for prompt in prompts:
        before, first, second, after = (seconds(who, prompt) for who in (old, new, new, old))
        ratios.append((before + after) / (first + second))
    return torch.tensor(ratios, dtype=torch.float64).quantile(0.5)
""",
        """
def my_fair_clock(old, new, prompts):  # a coin says who goes first
    import random

    for who in (old, new):
        who(prompts[-1])
    ratios = []
    for prompt in prompts:
        runs = [("old", old), ("new", new)]
        random.shuffle(runs)
        took = {name: clock(lambda: who(prompt))[0] for name, who in runs}
        ratios.append(took["old"] / took["new"])
    ratios.sort()
    n = len(ratios)
    return (ratios[(n - 1) // 2] + ratios[n // 2]) / 2
""",
        """
def my_fair_clock(old, new, prompts):  # the first pair runs, but does not count twice
    ratios = []
    for i, prompt in enumerate([prompts[0], *prompts]):
        if i % 2:
            fast = clock(lambda: new(prompt))[0]
            slow = clock(lambda: old(prompt))[0]
        else:
            slow = clock(lambda: old(prompt))[0]
            fast = clock(lambda: new(prompt))[0]
        ratios.append(slow / fast)
    return median(ratios[1:])
""",
    ],
    1: [
        """
def my_limit(pair, draft, rest):
    share, left = pair.shares, 1.0
    left -= (1 - draft) * share["draft"]
    for part in ("accept", "cache"):
        left -= (1 - rest) * share[part]
    left -= (1 - rest) * (1 - sum(share.values()))  # the loop
    return pair.speed_up / left
""",
        """
def my_limit(pair, draft, rest):
    seconds = {part: share * pair.seconds for part, share in pair.shares.items()}
    seconds["loop"] = pair.seconds - sum(seconds.values())
    factor = {"prefill": 1, "target": 1, "draft": draft}
    new = sum(s * factor.get(part, rest) for part, s in seconds.items())
    return np.float64(pair.plain_seconds) / new
""",
    ],
    2: [
        """
def my_entries_written(rounds):
    copied = written = 0
    for r in rounds:
        written += len(r.candidates) + 1
        copied += r.position + len(r.candidates) + 1
    return copied, written
""",
        """
def my_entries_written(rounds):
    before = np.array([r.position for r in rounds])
    new = np.array([1 + len(r.candidates) for r in rounds])
    return [(before + new).sum(), new.sum()]
""",
    ],
}

WRONG = {
    0: [
        (  # upside down
            TURN.replace("[old] / seconds[new]", "[new] / seconds[old]"),
            "upside down",
        ),
        (  # upside down in the swapped pairs
            """
def my_fair_clock(old, new, prompts):
    old(prompts[0]), new(prompts[0])
    ratios = []
    for i, prompt in enumerate(prompts):
        first, second = (old, new) if i % 2 == 0 else (new, old)
        before = clock(lambda: first(prompt))[0]
        ratios.append(before / clock(lambda: second(prompt))[0])
    return median(ratios)
""",
            "in half of your pairs the ratio is upside down",
        ),
        (  # the clock is given a result
            TURN.replace("lambda: who", "who"),
            "give clock a function: clock(lambda: old(prompt))",
        ),
        (  # no warm-up
            TURN.replace("old(prompts[0]), new(prompts[0])", "# nothing is run before"),
            "a slow first call must not count",
        ),
        (  # only one decoder is warmed up
            TURN.replace(", new(prompts[0])", ""),
            "a slow first call must not count",
        ),
        (  # the mean of the ratios
            TURN.replace("median", "mean"),
            "accidents (here on two prompts) must not count",
        ),
        (  # always the same one first
            TURN.replace("(old, new) if i % 2 == 0 else (new, old)", "(old, new)"),
            "who goes first in each pair?",
        ),
        (  # all of one, then all of the other
            """
def my_fair_clock(old, new, prompts):
    old(prompts[0]), new(prompts[0])
    slow = [clock(lambda: old(prompt))[0] for prompt in prompts]
    fast = [clock(lambda: new(prompt))[0] for prompt in prompts]
    return median(a / b for a, b in zip(slow, fast))
""",
            "one decoder ran long after the other",
        ),
        (  # the ratio of the sums
            """
def my_fair_clock(old, new, prompts):
    old(prompts[0]), new(prompts[0])
    total = {old: 0.0, new: 0.0}
    for i, prompt in enumerate(prompts):
        for who in (old, new) if i % 2 == 0 else (new, old):
            total[who] += clock(lambda: who(prompt))[0]
    return total[old] / total[new]
""",
            "prompt by prompt, the ratios are 1, 3 and 2",
        ),
        (  # the ratio of the medians
            """
def my_fair_clock(old, new, prompts):
    old(prompts[0]), new(prompts[0])
    seconds = {old: [], new: []}
    for i, prompt in enumerate(prompts):
        for who in (old, new) if i % 2 == 0 else (new, old):
            seconds[who].append(clock(lambda: who(prompt))[0])
    return median(seconds[old]) / median(seconds[new])
""",
            "prompt by prompt, the ratios are 1, 3 and 2",
        ),
        (  # all ratios
            TURN.replace("median(ratios)", "ratios"),
            "return one number",
        ),
        (  # nothing is returned
            TURN.replace("median(ratios)", "None"),
            "return one number",
        ),
        (  # a clock that nobody can set
            """
def my_fair_clock(old, new, prompts):
    from datetime import datetime

    ratios = []
    for prompt in [prompts[0], *prompts]:
        start = datetime.now()
        old(prompt)
        between = datetime.now()
        new(prompt)
        end = datetime.now()
        slow, fast = (between - start).total_seconds(), (end - between).total_seconds()
        ratios.append((slow + 1e-9) / (fast + 1e-9))
    return median(ratios[1:])
""",
            "you never looked at the clock",
        ),
        (  # old first in two pairs of three
            TURN.replace(
                "(old, new) if i % 2 == 0 else (new, old)",
                "(new, old) if i % 3 == 2 else (old, new)",
            ),
            "who goes first in each pair?",
        ),
        (  # says 2 whatever the clock says
            """
def my_fair_clock(old, new, prompts):
    for i, prompt in enumerate([prompts[0], *prompts]):
        for who in (old, new) if i % 2 == 0 else (new, old):
            clock(lambda: who(prompt))
    return 2.0
""",
            "the speed-up is 3; you report 2.00",
        ),
        (  # the last pair only
            """
def my_fair_clock(old, new, prompts):
    ratio = 0.0
    for i, prompt in enumerate([prompts[0], *prompts]):
        runs = (old, new) if i % 2 == 0 else (new, old)
        seconds = {who: clock(lambda: who(prompt))[0] for who in runs}
        ratio = seconds[old] / seconds[new]
    return ratio
""",
            "prompt by prompt, the ratios are 2, 1 and 3",
        ),
        (  # swapped once, half-way
            TURN.replace("% 2 == 0", "< len(prompts) / 2"),
            "swap who goes first from pair to pair, not once",
        ),
        (  # the mean of all but the best and the worst
            TURN.replace("median(ratios)", "mean(sorted(ratios)[1:-1] or ratios)"),
            "accidents (here on two prompts) must not count",
        ),
        (  # a warm-up before every pair
            TURN.replace(":\n    old(prompts[0]), new(prompts[0])", ":").replace(
                "(prompts):",
                "(prompts):\n        for _ in range(5):\n            old(prompt), new(prompt)",
            ),
            "and did not time 3000 of them",
        ),
    ],
    1: [
        (  # the prefill is the target's, too
            """
def my_limit(pair, draft, rest):
    in_target, in_draft = pair.shares["target"], pair.shares["draft"]
    left = in_target + draft * in_draft + rest * (1 - in_target - in_draft)
    return pair.speed_up / left
""",
            "prefill and target",
        ),
        (  # the loop is forgotten
            """
def my_limit(pair, draft, rest):
    s = pair.shares
    left = s["prefill"] + s["target"] + draft * s["draft"]
    return pair.speed_up / (left + rest * (s["accept"] + s["cache"]))
""",
            "the pair's own speed-up",
        ),
        (  # upside down
            """
def my_limit(pair, draft, rest):
    in_target = pair.shares["prefill"] + pair.shares["target"]
    in_draft = pair.shares["draft"]
    left = in_target + draft * in_draft + rest * (1 - in_target - in_draft)
    return pair.speed_up * left
""",
            "a free draft saves",
        ),
    ],
    2: [
        (  # the current token is in the pass, too
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) for r in rounds)
    return sum(r.position for r in rounds) + new, new
""",
            "not (11, 1)",
        ),
        (  # after the trim
            """
def my_entries_written(rounds):
    new = sum(len(r.emitted) for r in rounds)
    return sum(r.position for r in rounds) + new, new
""",
            "not (15, 5)",
        ),
        (  # in the wrong order
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) + 1 for r in rounds)
    return new, sum(r.position for r in rounds) + new
""",
            "not (11, 1)",
        ),
        (  # the old entries only
            """
def my_entries_written(rounds):
    new = sum(len(r.candidates) + 1 for r in rounds)
    return sum(r.position for r in rounds), new
""",
            "not (11, 1)",
        ),
    ],
}
