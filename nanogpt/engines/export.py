"""The shipped models as folders that other engines load: GPT-2's layout and a fast tokenizer.

`nanogpt export --out DIR` writes the target. `--draft` adds the distilled one-layer
draft, and settings to start servers with the pair; `--wide` makes heads twice as large.
transformers' `AutoModelForCausalLM` and `AutoTokenizer` load what is written, and so does whatever
reads such folders.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer, write_atomically
from nanogpt.drafts import transformer
from nanogpt.drafts.pairs import PairTokenizer
from nanogpt.model import GPTLanguageModel


def gpt2_config(model: GPTLanguageModel, wide: bool = False) -> dict:
    """The config.json of a GPT2LMHeadModel with this model's shape; wide: as `widened` makes it."""
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


def gpt2_weights(model: GPTLanguageModel) -> dict[str, Tensor]:
    """The model's weights under GPT-2's names: the same function, up to rounding.

    Queries, keys and values of all heads stand side by side in one matrix. GPT-2 multiplies from
    the right, so its matrices are ours transposed, (in, out). Biases that we do not have are 0.
    """
    weights = {
        "transformer.wte.weight": model.token_embedding_table.weight,
        "transformer.wpe.weight": model.position_embedding_table.weight,
        "transformer.ln_f.weight": model.ln_f.weight,
        "transformer.ln_f.bias": model.ln_f.bias,
        "lm_head.weight": model.lm_head.weight,  # an nn.Linear there, too
    }
    for i, block in enumerate(model.blocks):
        up, _, down, _ = block.ffwd.net
        parts = {"ln_1": block.ln1, "ln_2": block.ln2}
        parts |= {"attn.c_proj": block.sa.proj, "mlp.c_fc": up, "mlp.c_proj": down}
        for name, part in parts.items():
            weights[f"transformer.h.{i}.{name}.weight"] = part.weight.t()  # a norm's (C,) stays
            weights[f"transformer.h.{i}.{name}.bias"] = part.bias
        kinds = "query", "key", "value"
        rows = [getattr(head, kind).weight for kind in kinds for head in block.sa.heads]
        fused = torch.cat(rows)  # (3C, C): every head's queries, then keys, then values
        weights[f"transformer.h.{i}.attn.c_attn.weight"] = fused.T
        weights[f"transformer.h.{i}.attn.c_attn.bias"] = torch.zeros(len(fused), dtype=fused.dtype)
    return {name: w.detach().contiguous() for name, w in weights.items()}


def widened(weights: Mapping[str, Tensor], n_head: int) -> dict[str, Tensor]:
    """The same function with twice the width, for engines that want larger heads.

    weights: what gpt2_weights returns, (V, C), (C, 3C) and so on; each C is doubled. The residual
    stream holds x twice, which LayerNorm maps to its result twice; what reads the stream reads the
    first half. Each head is padded with zeros, and its queries grow by √2, since scores are divided
    by the square root of the head's size.
    """

    def twice(w: Tensor) -> Tensor:  # (..., C) -> (..., 2C): written to both halves
        return torch.cat([w, w], dim=-1)

    def first(w: Tensor) -> Tensor:  # (C, n) -> (2C, n): only the first half is read
        return torch.cat([w, 0 * w])

    def padded(w: Tensor, heads: int = n_head) -> Tensor:  # (..., C) -> (..., 2C): zeros per head
        w = w.unflatten(-1, (heads, -1))
        return torch.cat([w, 0 * w], dim=-1).flatten(-2)

    made = {}
    for name, w in weights.items():
        if name == "lm_head.weight":
            w = first(w.T).T
        elif name.endswith("attn.c_attn.weight"):
            query, key, value = w.chunk(3, dim=-1)
            w = padded(first(torch.cat([query * 2**0.5, key, value], dim=-1)), 3 * n_head)
        elif name.endswith("attn.c_attn.bias"):
            w = twice(w)  # zeros
        elif name.endswith("attn.c_proj.weight"):
            w = twice(padded(w.T).T)
        elif name.endswith("mlp.c_fc.weight"):
            w = first(w)
        elif not name.endswith("mlp.c_fc.bias"):
            w = twice(w)  # tables, norms, and what is added to the stream
        made[name] = w.contiguous()
    return made


def byte_letters(text: str) -> str:
    """Text in GPT-2's alphabet of bytes: the printable ones are themselves, others from 256 on.

    Raises ValueError for a character that is more than one byte in UTF-8.
    """
    for char in text:
        if not char.isascii():
            raise ValueError(f"{char!r} is no ASCII character, so no single token of bytes")
    return "".join(char if "!" <= char <= "~" else chr(256 + ord(char)) for char in text)


def tokenizer_json(tokenizer: CharTokenizer | PairTokenizer) -> dict:
    """A tokenizer.json: byte-level BPE with an entry for each token.

    Of characters there are no merges; of byte pairs, theirs. Words need no cutting: no merge of
    theirs reaches from one into the next.
    Raises ValueError for a character that is more than one byte in UTF-8.
    """
    paired = isinstance(tokenizer, PairTokenizer)
    tokens = tokenizer.tokens if paired else tokenizer.chars
    merges = [[byte_letters(a), byte_letters(b)] for a, b in tokenizer.merges] if paired else []
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
            "vocab": {byte_letters(token): i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def export(
    model: GPTLanguageModel,
    tokenizer: CharTokenizer | PairTokenizer,
    folder: Path,
    wide: bool = False,
) -> None:
    """Write config, weights and tokenizer to `folder`, which is made if need be.

    wide: with `widened` weights. Raises ValueError as tokenizer_json does, before anything is
    written, and OSError if the folder cannot be written.
    """
    files = {
        "config.json": gpt2_config(model, wide),
        # Without it, transformers would keep the 50 likeliest of our 65 tokens: its own default.
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
    weights = gpt2_weights(model)
    weights = widened(weights, model.config.n_head) if wide else weights
    content = safetensors.torch.save(weights, {"format": "pt"})
    write_atomically(folder / "model.safetensors", content)


def server_settings(folder: Path, K: int = 4) -> dict[str, dict]:
    """{file: settings} to start vLLM and SGLang with the pair in `folder`, K guesses a round.

    The names are their options on the command line, in November 2026.
    """
    target, draft = (str((folder / name).resolve()) for name in ("target", "draft"))
    guesses = {"method": "draft_model", "model": draft, "num_speculative_tokens": K}
    return {
        "vllm.yaml": {"model": target, "dtype": "float32", "speculative-config": guesses},
        "sglang.yaml": {
            "model-path": target,
            "dtype": "float32",
            "speculative-algorithm": "STANDALONE",
            "speculative-draft-model-path": draft,
            "speculative-num-steps": K,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": K + 1,
        },
    }


def export_pair(folder: Path, wide: bool = False) -> None:
    """Write the shipped target and its distilled draft to folder/target and folder/draft."""
    export(*checkpoint.load(), folder / "target", wide)
    export(*checkpoint.load(transformer.DISTILLED), folder / "draft", wide)


def main(arguments: list[str] | None = None) -> None:
    """Write the folders and say what was written."""
    parser = argparse.ArgumentParser(prog="nanogpt export", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--draft", action="store_true", help="the distilled one-layer draft, too")
    parser.add_argument(
        "--wide", action="store_true", help="heads twice as large, for engines that want them"
    )
    given = parser.parse_args(arguments)
    files = {"target": checkpoint.TARGET}
    if given.draft:
        files["draft"] = transformer.DISTILLED
    for name, file in files.items():
        model, tokenizer = checkpoint.load(file)
        export(model, tokenizer, given.out / name, given.wide)
        print(f"{given.out / name}: {sum(p.numel() for p in model.parameters()):,} parameters")
    for name, settings in server_settings(given.out).items() if given.draft else ():
        lines = [f"{option}: {json.dumps(value)}\n" for option, value in settings.items()]
        write_atomically(given.out / name, "".join(lines).encode())
        print(f"{given.out / name}: for {name.removesuffix('.yaml')}'s --config")
