"""Writes data/stand_in.txt, the text that steps in where Tiny Shakespeare is not to be had.

It is sampled from the shipped target at temperature 1, one piece for each character of the
vocabulary, which is the piece's prompt: so every character occurs. All pieces grow side by side.

    python data/make_stand_in.py
"""

import torch
from tqdm import trange

from nanogpt import checkpoint
from nanogpt.cache import cache_length
from nanogpt.data import CORPUS_FILE, DATA_DIR, STAND_IN_FILE, read_corpus, write_atomically
from nanogpt.sampling import RandomSource, Sampling

PIECE = 17_160  # characters; 65 pieces are about as long as Tiny Shakespeare


@torch.no_grad()
def write_pieces(target, length: int) -> torch.Tensor:
    """(V, length) tokens: row i starts with token i and is drawn by RandomSource(i)."""
    tokens = torch.empty(target.config.vocab_size, length, dtype=torch.int64)
    tokens[:, 0] = torch.arange(target.config.vocab_size)
    sources = [RandomSource(i) for i in range(len(tokens))]
    past_kvs, half = None, target.config.block_size // 2
    for i in trange(length - 1, desc="stand-in"):
        if cache_length(past_kvs) == target.config.block_size:
            _, _, past_kvs = target(tokens[:, i - half : i])  # the decoders' restart
        logits, _, past_kvs = target(tokens[:, i : i + 1], past_kvs=past_kvs)
        p = Sampling().probs(logits[:, 0])  # (V pieces, V)
        drawn = [source.categorical(row) for source, row in zip(sources, p, strict=True)]
        tokens[:, i + 1] = torch.tensor(drawn)
    return tokens


def longest_common_substring(a: str, b: str) -> str:
    """The longest string that occurs in both, found by bisecting its length."""
    found, low, high = "", 0, min(len(a), len(b))
    while low < high:
        length = min((low + high + 1) // 2, 2 * low + 16)
        windows = {a[i : i + length] for i in range(len(a) - length + 1)}
        parts = (b[i : i + length] for i in range(len(b) - length + 1))
        common = next((part for part in parts if part in windows), None)
        if common is None:
            high = length - 1
        else:
            found, low = common, length
    return found


def main() -> None:
    target, tokenizer = checkpoint.load()
    text = "".join(tokenizer.decode(piece) for piece in write_pieces(target, PIECE).tolist())
    write_atomically(DATA_DIR / STAND_IN_FILE, text.encode("ascii"))
    print(f"{len(text):,} characters, {len(set(text))} different ones")
    original = DATA_DIR / CORPUS_FILE
    if original.exists():
        common = longest_common_substring(read_corpus(original).text, text)
        print(f"longest stretch in common with Tiny Shakespeare: {len(common)} characters")


if __name__ == "__main__":
    main()
