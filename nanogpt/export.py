"""The shipped models as folders that other engines load: GPT-2's layout and a fast tokenizer.

`python -m nanogpt.export --out DIR` writes the target, `--draft` the distilled one-layer draft
beside it, `--wide` both with heads of 32. transformers' `AutoModelForCausalLM` and `AutoTokenizer`
load what is written, and so does whatever reads such folders.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, write_atomically
from nanogpt.drafts import transformer
from nanogpt.model import GPTLanguageModel


def gpt2_config(model: GPTLanguageModel, wide: bool = False) -> dict:
    """The config.json of a GPT2LMHeadModel with this model's shape; `wide` as in gpt2_weights."""
    c = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": c.vocab_size,
        "n_positions": c.block_size,
        "n_embd": c.n_embd * (1 + wide),
        "n_inner": 4 * c.n_embd,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }


def gpt2_weights(model: GPTLanguageModel, wide: bool = False) -> dict[str, Tensor]:
    """The model's weights in GPT-2's layout: the same function, up to rounding.

    Queries, keys and values stand side by side, products are transposed (GPT-2 multiplies from the
    right), and the biases that we do not have are 0. wide: with twice the width, for engines that
    want larger heads. The residual stream then holds x twice, which LayerNorm maps to twice its
    result; what reads the stream reads the first half. Heads are padded with zeros, and queries
    grow by √2 since scores are divided by the square root of the head size.
    """
    c, copies = model.config, 1 + wide
    hs, own = c.n_embd // c.n_head, torch.zeros(copies)
    own[0] = 1.0  # which copy is read

    def twice(x: Tensor) -> Tensor:  # (..., C) -> (..., copies C): written to both halves
        return torch.cat([x] * copies, dim=-1)

    def first(x: Tensor) -> Tensor:  # (C, n) -> (copies C, n): only the first half is read
        return torch.cat([x * on for on in own])

    def padded(x: Tensor) -> Tensor:  # (..., C) -> (..., copies C): every head has zeros after it
        heads = x.unflatten(-1, (c.n_head, hs))
        return torch.cat([heads * on for on in own], dim=-1).flatten(-2)

    weights = {
        "transformer.wte.weight": twice(model.token_embedding_table.weight),
        "transformer.wpe.weight": twice(model.position_embedding_table.weight),
        "transformer.ln_f.weight": twice(model.ln_f.weight),
        "transformer.ln_f.bias": twice(model.ln_f.bias),
        "lm_head.weight": first(model.lm_head.weight.T).T,
    }
    for i, block in enumerate(model.blocks):
        h = f"transformer.h.{i}."
        for theirs, norm in (("ln_1", block.ln1), ("ln_2", block.ln2)):
            weights[f"{h}{theirs}.weight"] = twice(norm.weight)
            weights[f"{h}{theirs}.bias"] = twice(norm.bias)
        qkv = []
        for name, scale in (("query", copies**0.5), ("key", 1.0), ("value", 1.0)):
            heads = torch.cat([getattr(head, name).weight for head in block.sa.heads])  # (C, C)
            qkv.append(padded(first(heads.T * scale)))
        weights[f"{h}attn.c_attn.weight"] = torch.cat(qkv, dim=-1)
        weights[f"{h}attn.c_attn.bias"] = torch.zeros(3 * copies * c.n_embd)
        weights[f"{h}attn.c_proj.weight"] = twice(padded(block.sa.proj.weight).T)
        weights[f"{h}attn.c_proj.bias"] = twice(block.sa.proj.bias)
        up, _, down, _ = block.ffwd.net
        weights[f"{h}mlp.c_fc.weight"] = first(up.weight.T)
        weights[f"{h}mlp.c_fc.bias"] = up.bias
        weights[f"{h}mlp.c_proj.weight"] = twice(down.weight.T)
        weights[f"{h}mlp.c_proj.bias"] = twice(down.bias)
    return {name: w.detach().contiguous() for name, w in weights.items()}


def tokenizer_json(tokenizer: CharTokenizer) -> dict:
    """A tokenizer.json: byte-level BPE with one entry a character and no merges.

    Raises ValueError for a character that is more than one byte in UTF-8.
    """
    for char in tokenizer.chars:
        if not char.isascii():
            raise ValueError(f"{char!r} is no ASCII character, so no single token of bytes")
    # GPT-2's alphabet of bytes: the printable ones are themselves, the others follow from 256 on.
    shown = {char: char if "!" <= char <= "~" else chr(256 + ord(char)) for char in tokenizer.chars}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = False
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {shown[char]: i for i, char in enumerate(tokenizer.chars)},
            "merges": [],
        },
    }


def export(
    model: GPTLanguageModel, tokenizer: CharTokenizer, folder: Path, wide: bool = False
) -> None:
    """Write config, weights and tokenizer to `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": gpt2_config(model, wide),
        "generation_config.json": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
        "tokenizer.json": tokenizer_json(tokenizer),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.block_size,
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / name, text.encode())
    weights = safetensors.torch.save(gpt2_weights(model, wide), {"format": "pt"})
    write_atomically(folder / "model.safetensors", weights)


def main(arguments: list[str] | None = None) -> None:
    """Write the folders and say what was written."""
    parser = argparse.ArgumentParser(prog="python -m nanogpt.export", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--draft", action="store_true", help="the distilled one-layer draft, too")
    parser.add_argument(
        "--wide", action="store_true", help="heads of 32, for engines that want them"
    )
    given = parser.parse_args(arguments)
    models = {"target": checkpoint.load()}
    if given.draft:
        models["draft"] = checkpoint.load(transformer.DISTILLED)
    for name, (model, tokenizer) in models.items():
        export(model, tokenizer, given.out / name, given.wide)
        print(f"{given.out / name}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
