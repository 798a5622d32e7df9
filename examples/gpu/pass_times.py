"""What passes cost on this GPU: bare Llamas in bfloat16, random weights, CUDA graphs.

    python examples/gpu/pass_times.py

For each model, context and batch it prints the median milliseconds of a pass over n new tokens of
every text, as `nanogpt.course.chapter_28` records them of an H200. Weights, cache and products are
those of the named models; sampling, paging and the network are not there, and the n new tokens of a
text all see one another, which costs what a causal mask costs. Without a GPU it times a toy.
"""

import itertools
import time
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTHS = (1, 2, 3, 5, 9)
BATCHES = {500: (1, 4, 16, 64, 128), 2000: (1, 4, 16, 64)}  # by the tokens in each text's cache


class Sizes(NamedTuple):
    """A Llama: layers, width, query heads, key heads, head size, inner width, vocabulary."""

    layers: int
    width: int
    heads: int
    cached: int
    size: int
    inner: int
    vocabulary: int


MODELS = {
    "llama-3.1-8b": Sizes(32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.2-1b": Sizes(16, 2048, 32, 8, 64, 8192, 128256),
}


def normal(*shape: int) -> Tensor:
    """Random numbers in bfloat16, small enough for a deep model."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * shape[-1] ** -0.5


class Llama:
    """The products and the attention of a Llama, and a cache of fixed size."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        L, C, H, G, D, M, V = sizes
        self.tokens, self.head = normal(V, C), normal(V, C)
        self.layers = [
            (normal((H + 2 * G) * D, C), normal(C, H * D), normal(2 * M, C), normal(C, M))
            for _ in range(L)
        ]

    def fill(self, B: int, context: int, n: int) -> None:
        """A cache of B texts with room for n tokens more, their positions' angles, and tokens."""
        L, _, _, G, D, _, V = self.sizes
        self.context = context
        self.cache = [normal(2, B, G, context + n, D) for _ in range(L)]
        self.cos, self.sin = normal(2, n, D)
        self.idx = torch.randint(V, (B, n), device=DEVICE)

    def turned(self, x: Tensor) -> Tensor:
        """Rotary positions."""
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat([-right, left], -1) * self.sin

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """The likeliest next tokens (B, n)."""
        _, C, H, G, D, _, _ = self.sizes
        B, n = self.idx.shape
        seen, x = self.context + n, self.tokens[self.idx]
        for (qkv, out, up, down), kv in zip(self.layers, self.cache, strict=True):
            made = F.linear(F.rms_norm(x, (C,)), qkv).view(B, n, -1, D).transpose(1, 2)
            q, k, v = made.split([H, G, G], 1)
            kv[0, :, :, self.context : seen], kv[1, :, :, self.context : seen] = self.turned(k), v
            q = self.turned(q).reshape(B, G, H // G * n, D)  # those that share a key, in one row
            a = F.scaled_dot_product_attention(q, kv[0, :, :, :seen], kv[1, :, :, :seen])
            a = a.view(B, G, H // G, n, D).permute(0, 3, 1, 2, 4).reshape(B, n, -1)
            x = x + F.linear(a, out)
            gate, value = F.linear(F.rms_norm(x, (C,)), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * value, down)
        return F.linear(F.rms_norm(x, (C,)), self.head).argmax(-1)


def times(run, runs: int) -> list[float]:
    """Seconds of each run, the GPU's own clock where there is one."""
    if DEVICE == "cpu":
        ticks = [time.perf_counter()]
        for _ in range(runs):
            run()
            ticks.append(time.perf_counter())
        return [b - a for a, b in itertools.pairwise(ticks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def captured(run):
    """`run` as a CUDA graph: its kernels are started at once, not one by one from Python."""
    if DEVICE == "cpu":
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(model: Llama, B: int, context: int, n: int, runs: int = 15) -> tuple[float, float]:
    """Median seconds of a pass: as a graph, and started kernel by kernel."""
    model.fill(B, context, n)
    for _ in range(3):
        model()
    one_by_one = median(times(model, 5))
    replay = captured(model)
    times(replay, 3)
    return median(times(replay, runs)), one_by_one


def main() -> None:
    """Prints the tables."""
    models, batches = MODELS, BATCHES
    if DEVICE == "cpu":
        models, batches = {"a toy": Sizes(2, 64, 4, 2, 16, 128, 100)}, {100: (1, 4)}
        print("no GPU here: a toy on this processor")
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, sizes in models.items():
        model = Llama(sizes)
        for context, texts in batches.items():
            print(f"{name}, {context} tokens cached; ms a pass over n = {WIDTHS} tokens of a text")
            for B in texts:
                cells = [measure(model, B, context, n) for n in WIDTHS]
                row = "  ".join(f"{1e3 * graph:6.2f}" for graph, _ in cells)
                print(f"B = {B:3}  {row}   without graphs, n = 1: {1e3 * cells[0][1]:.2f}")
        del model


if __name__ == "__main__":
    main()
