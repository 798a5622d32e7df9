"""The Shape of a model from its config.json, as Hugging Face's folders have it.

Llama and its like (Mistral, Qwen), mixtures of experts (Mixtral, Qwen3-MoE, gpt-oss, DeepSeek),
latent attention (DeepSeek-V2, V3, R1, Kimi-K2), sliding windows (gpt-oss, Mistral), and weights
of fewer bits. Counted are attention, three matrices a feed-forward part or expert, routers, norms
and tables; no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from nanogpt.measure.sizing import MXFP4, Shape, grouped, latent

NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
NEEDED += ("vocab_size",)
UNKNOWN = ("index_topk", "linear_num_key_heads", "interleave_moe_layer_step", "kv_channels")


class Experts(NamedTuple):
    """Of a mixture of experts: their number, how many a token uses, and their inner width.

    shared: the inner width of what every token uses besides; dense: layers without experts.
    """

    number: int = 0
    chosen: int = 0
    inner: int = 0
    shared: int = 0
    dense: int = 0


def experts_of(config: Mapping) -> Experts:
    """The experts of a config, under the names of Mixtral, gpt-oss, Qwen-MoE or DeepSeek."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    number = next((config[name] for name in names if config.get(name)), 0)
    if not number:
        return Experts()
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = (config.get("n_shared_experts") or 0) * inner
    shared = shared or config.get("shared_expert_intermediate_size") or 0
    dense = config.get("first_k_dense_replace") or len(config.get("mlp_only_layers") or ())
    return Experts(number, config.get("num_experts_per_tok") or 0, inner, shared, dense)


def attention_weights(config: Mapping) -> int:
    """Weights of a layer's attention: queries, keys, values and outputs."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if not config.get("kv_lora_rank"):
        cached = config.get("num_key_value_heads") or heads
        return 2 * width * head_size(config) * (heads + cached)
    rank, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    queries = config.get("q_lora_rank")
    asked = heads * (plain + rotary)
    query = queries * (width + asked) if queries else width * asked
    return query + width * (rank + rotary) + heads * (rank * (plain + value) + value * width)


def head_size(config: Mapping) -> int:
    """Numbers of a head: a share of the width, unless the config says otherwise."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def parameters_of(config: Mapping, experts: Experts) -> tuple[int, int]:
    """(all parameters, those that one token uses)."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    tables = config["vocab_size"] * width * (1 if config.get("tie_word_embeddings") else 2)
    every = layers * (attention_weights(config) + 2 * width) + tables + width
    dense = experts.dense if experts.number else layers
    every += dense * 3 * width * config["intermediate_size"]
    sparse = layers - dense
    every += sparse * width * (3 * experts.shared + experts.number)
    one = sparse * 3 * width * experts.inner
    return every + experts.number * one, every + experts.chosen * one


def windows_of(config: Mapping, source: str) -> tuple[int, int]:
    """(layers that see only a window, its tokens). Raises ValueError for other kinds of layers."""
    kinds = config.get("layer_types") or []
    other = set(kinds) - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(f"{source} has layers of {sorted(other)[0]}: they cannot be counted")
    window = config.get("sliding_window") or 0
    if kinds and window:
        return kinds.count("sliding_attention"), window
    if window and config.get("model_type") in ("mistral", "mixtral"):
        return config["num_hidden_layers"], window
    return 0, 0


def bytes_of(config: Mapping, source: str) -> tuple[float, float]:
    """(bytes a weight, bytes a weight of the experts or 0 for the same) as they are stored.

    Raises ValueError for a way of quantising that it does not know.
    """
    quantised = config.get("quantization_config") or {}
    method = quantised.get("quant_method")
    if not quantised:
        return 2, 0
    if method == "mxfp4":
        return 2, MXFP4
    if method == "fp8":
        return 1, 0
    if isinstance(quantised.get("bits"), int):
        return quantised["bits"] / 8, 0
    raise ValueError(f"{source} is quantised by {method!r}: say how many bytes with --bytes")


def checked(config: Mapping, source: str) -> Mapping:
    """The part of a config that describes text. Raises ValueError if it cannot be counted."""
    config = config.get("text_config") or config
    missing = [key for key in NEEDED if not isinstance(config.get(key), int)]
    odd = [key for key in UNKNOWN if config.get(key)]
    if missing or odd:
        why = f"has no {missing[0]}" if missing else f"has {odd[0]}"
        raise ValueError(
            f"{source} {why}, so it cannot be counted; give the model as PARAMETERS,LAYERS,ENTRY, "
            "such as 70B,80,2x8x128, or with experts 30B:3B,48,2x4x128,8/128"
        )
    return config


def counted(config: Mapping, source: str, weight_bytes: float | None = None) -> Shape:
    """The Shape that a config.json describes; `source` is for messages.

    weight_bytes replaces what the config says. Raises ValueError for a model it cannot count.
    """
    config = checked(config, source)
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    experts = experts_of(config)
    total, active = parameters_of(config, experts)
    if config.get("kv_lora_rank"):
        ranks = config["kv_lora_rank"], config["qk_rope_head_dim"]
        heads_own = config["qk_nope_head_dim"], config["v_head_dim"]
        shape = latent(total, layers, heads, *ranks, *heads_own)
    else:
        cached = config.get("num_key_value_heads") or heads
        shape = grouped(total, layers, heads, cached, head_size(config))
    if experts.number:
        shape = replace(shape, active=active, experts=experts.number, chosen=experts.chosen)
    stored = (weight_bytes, 0) if weight_bytes else bytes_of(config, source)
    windowed, window = windows_of(config, source)
    return replace(
        shape, weight_bytes=stored[0], expert_bytes=stored[1], windowed=windowed, window=window
    )
