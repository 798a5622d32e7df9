"""A clock that is fair: runs in turn, memory kept, and nothing else at work while it ticks."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from nanogpt.generate import Generation

PROMPT = 20  # characters
DEVICES = ("cpu", "cuda", "mps")


def quick(n: int) -> int:
    """How many pairs, texts or rounds an experiment takes: n, and a fifth where pytest runs it.

    The tests ask whether a chapter runs and what it asserts holds, not for its figures: there at
    least 3 are enough. NANOGPT_FULL=1 has them run it whole.
    """
    tested = "PYTEST_VERSION" in os.environ  # pytest's own, which kernels inherit
    whole = os.environ.get("NANOGPT_FULL", "0") not in ("", "0")
    return n if whole or not tested else min(n, max(3, n // 5))


def wait() -> None:
    """Until a GPU that is in use has done all that it was asked to do.

    What works on one returns before it is done. Nothing is waited for on a CPU.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available() and torch.mps.current_allocated_memory():
        torch.mps.synchronize()


def clock(decode: Callable[[], Generation]) -> tuple[float, Generation]:
    """Seconds that `decode` took, and what it returned."""
    wait()
    started = time.perf_counter()
    made = decode()
    wait()
    return time.perf_counter() - started, made


def free_cores(wanted: int, seconds: float = 0.2) -> int:
    """How many cores this process gets now, of those that it wants: it takes them, and looks.

    As many threads as cores are wanted compute for so long; the processor time that they got, over
    the time that went by, is the answer, where a core that is a quarter somebody else's still
    counts. Neither the number of cores nor the load says this: a container may own half of a core,
    and a load is an average over the last minute.
    """
    block = bytes(2**20)  # hashed without the interpreter's lock, about a millisecond each

    def compute() -> None:
        while time.perf_counter() < until:
            hashlib.sha256(block)

    threads = [threading.Thread(target=compute) for _ in range(wanted)]
    began, used = time.perf_counter(), time.process_time()
    until = began + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = (time.process_time() - used) / (time.perf_counter() - began)
    return min(wanted, int(got + 0.25))


def keep_memory() -> None:
    """Have large buffers stay with the process when they are freed, as small ones do.

    glibc gives a large one back to the system after each use, and maps it anew, page by page, for
    the next: times jump. From the first larger one that is freed on, it no longer does (mallopt(3),
    M_MMAP_THRESHOLD). Other allocators do not mind.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)  # it learns from up to 32 MB; none is touched


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Keep the garbage collector from what is there now: a sweep through it takes a tenth of a
    second, in somebody's turn. Engines do so when they have started (vLLM #24008, SGLang #34999).
    """
    outer = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not outer:
            gc.unfreeze()


def in_turn(
    calls: Mapping[Hashable, Callable[[], object]],
    repeats: int = 40,
    warm_up: int = 3,
    quantile: float = 0.5,
) -> dict:
    """{name: seconds} of calls without arguments, of each the median, or another quantile.

    They are timed in turn, so that other programs on the machine, and the processor's own caches,
    affect them all alike.
    """
    keep_memory()
    seconds = {name: [] for name in calls}
    for _ in range(warm_up + repeats):
        for name, call in calls.items():
            seconds[name].append(clock(call)[0])
    return {name: float(np.quantile(s[warm_up:], quantile)) for name, s in seconds.items()}


def prompts_of(tokens: Tensor, n: int) -> list[list[int]]:
    """n prompts at even distances in `tokens` (N,). Raises ValueError if they do not fit."""
    distance = (len(tokens) - PROMPT) // n
    if distance < 1:
        raise ValueError(f"{n} prompts of {PROMPT} tokens do not fit into {len(tokens)} tokens")
    return [tokens[i * distance :][:PROMPT].tolist() for i in range(n)]
