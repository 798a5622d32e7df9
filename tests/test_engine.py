"""An engine's loop: threads ask and listen, and each text is what it is alone."""

import statistics
import threading
import time
from collections import deque
from contextlib import closing

import pytest
import torch

from nanogpt.generate import autoregressive_generate
from nanogpt.proof.toys import random_draft, toy_target
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.engine import Engine
from nanogpt.serving.server import Limits, Request, Server
from nanogpt.speculative import Draft, speculative_generate

V, WINDOW = 5, 12
TOY, DRAFT = toy_target(V, WINDOW), random_draft(V)
SOON = 6  # seconds in which whatever should come must have come


def engine_of(draft=DRAFT, K=None, seats=8, target=TOY):
    """An engine that never drops a guess: what is drawn is what is drawn alone."""
    return closing(Engine(Server(target, draft, K, Limits(seats, seats * 32))))


def at_once(do, n):
    """do(0), …, do(n - 1), each in a thread of its own, all let in together: what each returned."""
    gate, came = threading.Barrier(n), {}

    def one(i):
        gate.wait(SOON)
        came[i] = do(i)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    return [came[i] for i in range(n)]


@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "drafted"])
def test_fifty_threads_get_what_each_would_get_alone(draft):
    """More than have a seat; some restart past the window, some ask for nothing, or for rules."""
    rules = [Constraints(), Constraints(stop=[[1, 2]]), Constraints(presence=1.0, logprobs=True)]

    def asked(i):
        return [i % V] * (1 + i % 15), (3 * i) % 31, Sampling((0, 1.0, 0.7)[i % 3]), RandomSource(i)

    with engine_of(draft) as engine:

        def streamed(i):
            listener = engine.submit(*asked(i), constraints=rules[i % 3])
            return [*listener], listener.result()

        for i, (tokens, made) in enumerate(at_once(streamed, 50)):
            prompt, n, sampling, rng = asked(i)
            right = complete(TOY, prompt, n, rules[i % 3], draft, 4, sampling, rng)
            assert tokens == made.tokens == right.tokens, i
            assert made.finish_reason == right.finish_reason or n == 0
            torch.testing.assert_close(made.logprobs, right.logprobs)
            if i % 3 == 0:
                plain = autoregressive_generate(TOY, prompt, n, sampling)
                assert tokens == plain.tokens, "greedy, by the plain loop"
        assert not engine.server.requests and not engine.listening


def test_tokens_come_while_others_are_served_and_a_slow_reader_holds_nobody_up():
    with engine_of(None) as engine:
        slow = engine.submit([0], 50, Sampling(0))
        slowly = iter(slow)
        first = next(slowly)
        quick = engine.submit([1], 30, Sampling(0)).result()  # nobody reads the slow one meanwhile
        assert quick.tokens == autoregressive_generate(TOY, [1], 30, Sampling(0)).tokens
        right = autoregressive_generate(TOY, [0], 50, Sampling(0)).tokens
        assert [first, *slowly] == right


def test_a_token_is_there_before_the_next_pass():
    """The target waits until the listener has the token before."""
    go, made = threading.Semaphore(0), []

    class Waits:
        def __getattr__(self, name):
            return getattr(TOY, name)

        def states(self, *given, **named):
            assert go.acquire(timeout=SOON)
            return TOY.states(*given, **named)

    with engine_of(None, target=Waits()) as engine:
        listener = iter(engine.submit([0, 1], 6, Sampling(0)))
        for _ in range(6):
            go.release()
            made.append(next(listener))
        assert made == autoregressive_generate(TOY, [0, 1], 6, Sampling(0)).tokens


def test_what_a_stop_string_may_take_back_is_not_sent():
    for seed in range(8):
        free = speculative_generate(TOY, DRAFT, [0], 20, rng=RandomSource(seed)).tokens
        rules = Constraints(stop=[free[4:7], [4, 4, 4, 4]])
        with engine_of() as engine:
            listener = engine.submit([0], 20, rng=RandomSource(seed), constraints=rules)
            assert [*listener] == listener.result().tokens
            assert listener.result().finish_reason == "stop"


def until(true, said):
    """Wait until something is true, and say so if it never is."""
    end = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < end, said
        time.sleep(0.001)


def test_a_reader_that_leaves_cancels_and_so_does_cancel():
    with engine_of(seats=2) as engine:
        leaves, stays, waits = (engine.submit([i], 10**6, Sampling(0)) for i in range(3))
        for token, _ in zip(leaves, range(2), strict=False):
            assert token in range(V)
        del token
        until(lambda: waits.shown > 2, "a seat came free, and the next one sat down")
        stays.cancel()
        cut = stays.result()
        assert cut.finish_reason is None and len(cut.tokens) >= 1
        waits.cancel()
        waits.cancel()
        assert len(waits.result().tokens) > 2
        until(lambda: not len(engine.server.queue), "all have left")


class Breaks(Draft):
    """A draft that fails in one text, after a few tokens."""

    vocab_size = V

    def get_probs(self, context):
        if list(context[:2]) == [4, 4] and len(context) > 8:
            raise KeyError("no guess after this")
        return DRAFT.get_probs(context)


class Dry(RandomSource):
    """A random source that runs dry after n numbers."""

    def __init__(self, n):
        super().__init__(0, self)
        self.left, self.own = n, RandomSource(0)._uniforms

    def random(self):
        if self.left == 0:
            raise OSError("no numbers left")
        self.left -= 1
        return self.own.random()


def test_what_fails_for_one_request_is_its_own_end_and_nobody_elses():
    """A draft, a random source, a prompt that is none; each listener has the very error."""
    with engine_of(Breaks()) as engine:
        failing = (
            (engine.submit([4, 4], 25, rng=RandomSource(9)), KeyError, "no guess after this"),
            (engine.submit([0], 40, rng=Dry(9)), OSError, "no numbers left"),
            (engine.submit([0], 40, rng=Dry(0)), OSError, "no numbers left"),
            (engine.submit([V], 5), ValueError, "token 5 at index 0"),
            (engine.submit([0], 5, seed=3), TypeError, "seed"),
        )
        others = [engine.submit([i], 25, rng=RandomSource(i)) for i in range(4)]
        for listener, kind, said in failing:
            for _ in range(2):  # asked again, it says it again
                with pytest.raises(kind, match=said):
                    listener.result()
        for i, listener in enumerate(others):
            right = speculative_generate(TOY, DRAFT, [i], 25, rng=RandomSource(i))
            assert listener.result().tokens == right.tokens
        assert failing[0][0].shown > 0, "it had heard of the tokens before"
        assert not engine.server.requests and not engine.listening and engine.thread.is_alive()


def test_where_a_pass_fails_for_all_those_that_run_end_and_the_next_are_served():
    left = [3]

    class Fails:
        def __getattr__(self, name):
            return getattr(TOY, name)

        def states(self, *given, **named):
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("out of memory")
            return TOY.states(*given, **named)

    with engine_of(None, seats=2, target=Fails()) as engine:
        asked = [engine.submit([i], 9, Sampling(0)) for i in range(4)]
        for i, listener in enumerate(asked):
            if i < 2:
                with pytest.raises(RuntimeError, match="out of memory"):
                    listener.result()
            else:
                right = autoregressive_generate(TOY, [i], 9, Sampling(0))
                assert listener.result().tokens == right.tokens


def test_a_closed_engine_ends_who_listens_and_takes_nobody():
    engine = Engine(Server(TOY))
    long = engine.submit([0], 10**6)
    assert next(iter(long)) in range(V)
    waits = engine.submit([0], 10**6)
    engine.close()
    engine.close()
    assert not engine.thread.is_alive()
    with pytest.raises(RuntimeError, match="the engine was closed"):
        waits.result()
    waits.cancel()
    with pytest.raises(RuntimeError, match="the engine is closed; open another"):
        engine.submit([0], 3)


# What a step costs


DONE = Request.done.fget


class Counted(deque):
    """A deque that counts how many of its items are looked at."""

    looked = 0

    def __iter__(self):
        for item in super().__iter__():
            type(self).looked += 1
            yield item


def full(waiting, seats=4):
    """A server with all seats taken and so many that wait, after its first step."""
    server = Server(TOY, DRAFT, limits=Limits(seats, seats * 32))
    for i in range(seats + waiting):
        server.submit([i % V] * 3, 10**6, rng=RandomSource(i) if i < seats else Dry(0))
    server.step()
    assert (server.running, server.waiting) == (seats, waiting)
    return server


def test_a_step_looks_at_no_more_requests_however_many_wait(monkeypatch):
    counted = {}
    for waiting in (20, 2000):
        server, asked = full(waiting), []
        server.queue.waiting = Counted(server.queue.waiting)
        Counted.looked = 0
        with monkeypatch.context() as here:
            here.setattr(Request, "done", property(lambda r, a=asked: a.append(r) or DONE(r)))
            for _ in range(3):
                server.step()
        counted[waiting] = len(asked), Counted.looked
    assert counted[20] == counted[2000] and 0 < counted[20][0] < 60


def test_a_step_takes_no_longer_however_many_wait():
    few, many, ratios = full(20), full(20_000), []
    for turn in range(21):
        seconds = {}
        for server in (few, many)[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            server.step()
            seconds[server.waiting] = time.perf_counter() - begin
        ratios.append(seconds[20_000] / seconds[20])
    assert statistics.median(ratios) < 1.5, sorted(ratios)


@pytest.mark.parametrize("running", [0, 3])
def test_who_asks_for_nothing_does_not_wait(running):
    """Done as it comes: retired by the next step, whoever waits before it."""
    server = Server(TOY, limits=Limits(2))
    for i in range(running):
        server.submit([i], 50)
    server.step()
    id = server.submit([0, 1], 0)
    assert id not in [request.id for request in server.queue.waiting]
    assert server.step()[id].tokens == [] and server.running == min(2, running)
    assert server.cancel(server.submit([0], 0)).tokens == []


def test_nobody_who_waits_is_ever_done(monkeypatch):
    """Preempted, restarted or new: whatever retire does not look at has more to write."""
    preempted = 0
    for seed in range(6):
        server = Server(TOY, DRAFT, 2, Limits(3, num_blocks=14), seed=seed)
        for i in range(8):
            server.submit([i % V] * (1 + i), (5 * i) % 17, stop_token=seed % V)
        while len(server.queue):
            server.step()
            assert not any(request.done for request in server.queue.waiting)
            preempted += sum(request.preempted for request in server.queue.waiting)
    assert preempted
