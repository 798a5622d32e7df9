"""An engine: a server that steps by itself, and any number of threads that ask and listen.

`Server.stream` is pulled: whoever listens makes the passes, and while they sleep nobody's text
grows. Here a thread of its own makes them, and it alone touches the server. Others leave it notes
in a queue, and it leaves them news in another. Neither is bounded, so it never waits for a reader.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from queue import SimpleQueue
from typing import NamedTuple

from torch import Tensor

from nanogpt.generate import Generation
from nanogpt.serving.constraints import Completion
from nanogpt.serving.server import Request, Server


class News(NamedTuple):
    """What a pass brought: new tokens that may be sent, and log p (V,) of each if it was asked for.

    end: with the last news, all that was made of the request, or the error that ended it.
    """

    tokens: list[int]
    logprobs: list[Tensor]
    end: Generation | Exception | None = None


class Listener:
    """Who waits for one request's tokens, in a thread of their own.

    news: (listener, its news), in order; several share a queue where somebody reads them all.
    """

    def __init__(self, engine: Engine, news: SimpleQueue[tuple[Listener, News]]):
        self.engine, self.news, self.read = engine, news, News([], [])
        self.request: Request | None = None  # the engine's, as is the next
        self.shown = 0

    def __iter__(self) -> Iterator[int]:
        """The tokens of a queue of its own, as they come; whoever stops listening cancels.

        Raises what ended the request: ValueError if it was refused.
        """
        try:
            while self.read.end is None:
                _, self.read = self.news.get()
                yield from self.read.tokens
            if isinstance(self.read.end, Exception):
                raise self.read.end
        finally:
            self.cancel()

    def result(self) -> Completion:
        """All of it, once it is there. Raises what ended the request."""
        for _ in self:
            pass
        return self.read.end  # type: ignore[return-value]  # no error: it was not raised

    def cancel(self) -> None:
        """Drop the request, if it is still there; its last news is what it has written so far."""
        with contextlib.suppress(RuntimeError):  # closed: it is dropped already
            self.engine.note(self.engine.end, self)


class Engine:
    """The loop around a new server, which nobody else may touch from now on; `close` ends it.

    A request that fails ends alone. Where a pass fails for all, those that run end with its error
    (or, where nobody could begin, the first that waits), and the others go on.
    """

    def __init__(self, server: Server):
        self.server, self.open, self.lock = server, True, threading.Lock()
        self.notes: SimpleQueue[tuple[Callable, tuple] | None] = SimpleQueue()
        self.listening: dict[int, Listener] = {}
        self.thread = threading.Thread(target=self.loop, name="engine", daemon=True)
        self.thread.start()

    # From any thread

    def submit(self, *asked, news: SimpleQueue | None = None, **how) -> Listener:
        """Line up a request, given as to `Server.submit`, and return at once. news: Listener's.

        Raises RuntimeError once the engine is closed; the request's own errors are its news.
        """
        listener = Listener(self, SimpleQueue() if news is None else news)
        self.note(self.begin, listener, asked, how)
        return listener

    def note(self, do: Callable, *args) -> None:
        """Let the loop do this before the next pass. Raises RuntimeError once it is closed."""
        with self.lock:
            if not self.open:
                raise RuntimeError("the engine is closed; open another")
            self.notes.put((do, args))

    def close(self) -> None:
        """End the loop after this pass; whoever still listens is told, by a RuntimeError."""
        with self.lock:
            self.open = False
            self.notes.put(None)
        self.thread.join()

    # In the loop's own thread

    def loop(self) -> None:
        """Read the notes, and step while there is work; without any, sleep until a note comes."""
        try:
            while True:
                for _ in range(self.notes.qsize() or not len(self.server.queue)):
                    if (note := self.notes.get()) is None:
                        return
                    note[0](*note[1])
                self.step()
        finally:
            with self.lock:
                self.open = False
            for listener in [*self.listening.values()]:
                self.end(listener, RuntimeError("the engine was closed"))

    def begin(self, listener: Listener, asked: tuple, how: dict) -> None:
        """Line a request up, or tell its listener why not."""
        try:
            id = self.server.submit(*asked, **how)
        except Exception as error:
            return listener.news.put((listener, News([], [], error)))
        listener.request = self.server.queue.by_id[id]
        self.listening[id] = listener

    def end(self, listener: Listener, error: Exception | None = None) -> None:
        """Drop a listener's request if it is still there, for an error if there is one."""
        if (request := listener.request) is not None and request.id in self.listening:
            request.error = error
            self.server.cancel(request.id)
            self.tell(listener)

    def step(self) -> None:
        """One pass, and news of those that it may have touched: who waits further back has none."""
        queue, most = self.server.queue, self.server.limits.max_num_seqs
        near = [*queue.running, *islice(queue.waiting, most)]
        touched = [self.listening[request.id] for request in near]
        try:
            self.server.step()
        except Exception as error:
            if not any(request.error for request in near):  # it is nobody's own
                for request in queue.running[:] or [*islice(queue.waiting, 1)]:
                    self.end(self.listening[request.id], error)
            self.server.errors.clear()  # each is told
        for listener in touched:
            self.tell(listener)

    def tell(self, listener: Listener) -> None:
        """What is new of its request, if anything is."""
        request = listener.request
        if request is None or request.id not in self.listening:  # it was told all
            return
        new, over = request.sendable[listener.shown :], request.id not in self.server.queue.by_id
        if new or over:
            rows = request.raw[listener.shown : listener.shown + len(new)]
            listener.shown += len(new)
            end = (request.error or request.generation()) if over else None
            listener.news.put((listener, News(new, rows, end)))
        if over:
            del self.listening[request.id]
