"""The Shape of a model from its config.json, as Hugging Face's folders have it.

Counted are attention (of shared heads, or latent), feed-forward parts or experts, routers, norms
and tables; no biases. A `model_type` that is not in FAMILIES is refused: layers of another kind,
such as Mamba's or linear attention, have other sizes under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn

from nanogpt.measure.sizing import MXFP4, Shape, grouped, latent

NVFP4 = 9 / 16  # 16 weights of 4 bits and a scale of 8 (NVIDIA's TensorRT Model Optimizer)
NAMES = {  # what families call a field: the name that we read
    "moe_k": "num_experts_per_tok",
    "moe_layer_start_index": "first_k_dense_replace",
    "moe_num_experts": "num_experts",
    "moe_num_shared_experts": "n_shared_experts",
    "moe_topk": "num_experts_per_tok",
    "n_routed_experts": "num_experts",
    "num_local_experts": "num_experts",
    "num_shared_expert": "n_shared_experts",
    "num_shared_experts": "n_shared_experts",
    "shared_intermediate_size": "shared_expert_intermediate_size",
    "_sliding_window_pattern": "sliding_window_pattern",
}
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
UNKNOWN = ("index_topk", "linear_num_key_heads", "interleave_moe_layer_step", "kv_channels")


def sizes(
    width: int, inner: int, layers: int, heads: int, cached: int, vocab: int, **more: int
) -> dict:
    """A family's fields: what its class in transformers takes where a file leaves one out.

    `cached` 0: as many as `heads`. In `more`, `matrices` of a feed-forward part are 3, with a gate,
    unless it says 2; `sliding_window_pattern` n: every n-th layer has no window.
    """
    return more | {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": cached,
        "vocab_size": vocab,
    }


def mixed(number: int, chosen: int, inner: int = 0, shared: int = 0, dense: int = 0) -> dict:
    """A family's experts, as `sizes`: `inner` 0 is the width of a layer without experts."""
    names = "num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"
    return dict(
        zip((*names, "first_k_dense_replace"), (number, chosen, inner, shared, dense), strict=True)
    )


def ranks(cached: int, queries: int, rotary: int, plain: int, value: int) -> dict:
    """A family's latent attention, as `sizes`."""
    names = "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"
    return dict(zip(names, (cached, queries, rotary, plain, value), strict=True))


TIED = {"tie_word_embeddings": True}
OPTION = {"use_sliding_window": False}
GEMMA = {"head_dim": 256, "sliding_window": 4096} | TIED
TWO = {"matrices": 2}
DEEPSEEK = sizes(
    7168, 18432, 61, 128, 128, 129280, **ranks(512, 1536, 64, 128, 128), **mixed(256, 8, 2048, 1, 3)
)
QWEN_VL = sizes(8192, 29568, 80, 64, 8, 152064, **OPTION)
FAMILIES = {  # model_type: the defaults of transformers' class
    "apertus": sizes(4096, 14336, 32, 32, 0, 131072, **TWO),
    "arcee": sizes(2560, 18432, 32, 32, 0, 32000, **TWO),
    "bitnet": sizes(2560, 6912, 30, 20, 5, 128256),
    "cohere": sizes(8192, 22528, 40, 64, 0, 256000, **TIED),
    "cohere2": sizes(
        8192, 22528, 40, 64, 0, 256000, sliding_window=4096, sliding_window_pattern=4, **TIED
    ),
    "deepseek_v2": sizes(
        4096, 11008, 32, 32, 0, 102400, **ranks(512, 1536, 64, 128, 128), **mixed(64, 0, 1407, 2)
    ),
    "deepseek_v3": DEEPSEEK,
    "dots1": sizes(4608, 10944, 62, 32, 32, 152064, **mixed(0, 0, 1408), max_window_layers=62),
    "ernie4_5": sizes(1024, 3072, 18, 16, 2, 103424, head_dim=128, **TIED),
    "ernie4_5_moe": sizes(2560, 12288, 28, 20, 4, 103424, **mixed(64, 6, 1536, 2, 1), **TIED),
    "exaone4": sizes(
        4096, 16384, 32, 32, 32, 102400, sliding_window=4096, sliding_window_pattern=4
    ),
    "exaone_moe": sizes(
        4096, 16384, 32, 32, 32, 102400, **mixed(64, 8, 1024, 1, 1),
        sliding_window=4096, sliding_window_pattern=4,
    ),
    "flex_olmo": sizes(4096, 11008, 32, 32, 0, 100352, **mixed(7, 5)),
    "gemma": sizes(3072, 24576, 28, 16, 16, 256000, head_dim=256, **TIED),
    "gemma2": sizes(2304, 9216, 26, 8, 4, 256000, sliding_window_pattern=2, **GEMMA),
    "gemma3_text": sizes(2304, 9216, 26, 8, 4, 262208, sliding_window_pattern=6, **GEMMA),
    "glm": sizes(4096, 13696, 40, 32, 2, 151552, head_dim=128),
    "glm4": sizes(4096, 13696, 40, 32, 2, 151552, head_dim=128),
    "glm4_moe": sizes(4096, 10944, 46, 96, 8, 151552, **mixed(128, 8, 1408, 1, 1)),
    "glm4_moe_lite": sizes(
        2048, 10240, 47, 20, 20, 154880, **ranks(512, 768, 64, 192, 256), **mixed(64, 4, 1536, 1, 1)
    ),
    "gpt_neox": sizes(6144, 24576, 44, 64, 0, 50432, **TWO),
    "gpt_oss": sizes(
        2880, 2880, 36, 64, 8, 201088, **mixed(128, 4),
        head_dim=64, sliding_window=128, sliding_window_pattern=2,
    ),
    "granite": sizes(4096, 11008, 32, 32, 0, 32000),
    "granitemoe": sizes(4096, 11008, 32, 32, 0, 32000, **mixed(8, 2)),
    "granitemoeshared": sizes(4096, 11008, 32, 32, 0, 32000, **mixed(8, 2)),
    "helium": sizes(2560, 7040, 24, 20, 20, 48000, head_dim=128),
    "hunyuan_v1_dense": sizes(4096, 11008, 32, 32, 0, 290943),
    "hunyuan_v1_moe": sizes(4096, 11008, 32, 32, 0, 290943, **mixed(1, 1, shared=1)),
    "hy_v3": sizes(4096, 13312, 80, 64, 8, 120832, head_dim=128, **mixed(192, 8, 1536, 1, 1)),
    "internlm3": sizes(4096, 10240, 48, 32, 2, 128512, head_dim=128),
    "jais2": sizes(3328, 26624, 32, 26, 0, 150272, **TWO),
    "kimi_k2": DEEPSEEK,
    "llama": sizes(4096, 11008, 32, 32, 0, 32000),
    "minicpm3": sizes(2560, 6400, 62, 40, 40, 73448, **ranks(256, 768, 32, 64, 0), **TIED),
    "minimax_m2": sizes(3072, 1536, 62, 48, 8, 200064, head_dim=128, **mixed(256, 8)),
    "ministral3": sizes(4096, 14336, 34, 32, 8, 131072, head_dim=128),
    "mistral": sizes(4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    "mistral4": sizes(
        4096, 12288, 36, 32, 32, 131072, **ranks(256, 1024, 64, 64, 128), **mixed(128, 4, 2048, 1)
    ),
    "mixtral": sizes(4096, 14336, 32, 32, 8, 32000, **mixed(8, 2)),
    "nanochat": sizes(768, 8192, 12, 6, 0, 50304, **TWO),
    "nemotron": sizes(6144, 24576, 32, 48, 0, 256000, **TWO),
    "olmo": sizes(4096, 11008, 32, 32, 0, 50304),
    "olmo2": sizes(4096, 11008, 32, 32, 0, 50304),
    "olmo3": sizes(4096, 11008, 32, 32, 0, 50304, sliding_window=4096, sliding_window_pattern=4),
    "olmoe": sizes(2048, 2048, 16, 16, 0, 50304, **mixed(64, 8)),
    "persimmon": sizes(4096, 16384, 36, 64, 0, 262144, **TWO),
    "phi": sizes(2048, 8192, 24, 32, 0, 51200, **TWO),
    "phi3": sizes(3072, 8192, 32, 32, 0, 32064),
    "phimoe": sizes(4096, 6400, 32, 32, 8, 32064, **mixed(16, 2)),
    "qwen2": sizes(4096, 22016, 32, 32, 32, 151936, **OPTION),
    "qwen2_5_vl": QWEN_VL,
    "qwen2_5_vl_text": QWEN_VL,
    "qwen2_moe": sizes(
        2048, 5632, 24, 16, 16, 151936, **mixed(60, 4, 1408),
        shared_expert_intermediate_size=5632, **OPTION,
    ),
    "qwen2_vl": QWEN_VL,
    "qwen2_vl_text": QWEN_VL,
    "qwen3": sizes(4096, 22016, 32, 32, 32, 151936, head_dim=128, **OPTION),
    "qwen3_moe": sizes(2048, 6144, 24, 32, 4, 151936, **mixed(128, 8, 768), **OPTION),
    "qwen3_vl_moe_text": sizes(2048, 5632, 24, 16, 16, 151936, **mixed(60, 4, 1408), **TIED),
    "qwen3_vl_text": sizes(4096, 22016, 32, 32, 32, 151936, head_dim=128),
    "seed_oss": sizes(4096, 27648, 64, 80, 8, 155136, head_dim=128),
    "smollm3": sizes(2048, 11008, 36, 16, 4, 128256, **OPTION, **TIED),
    "solar_open": sizes(4096, 0, 48, 64, 8, 196608, head_dim=128, **mixed(128, 8, 1280, 1)),
    "stablelm": sizes(2560, 6912, 32, 32, 32, 50304),
    "starcoder2": sizes(3072, 12288, 30, 24, 2, 49152, **TWO, **TIED),
    "vaultgemma": sizes(2304, 9216, 26, 8, 4, 256000, sliding_window_pattern=2, **GEMMA),
    "youtu": sizes(2048, 6144, 32, 16, 16, 128256, **ranks(512, 1536, 64, 128, 128), **TIED),
}  # fmt: skip
READ = set().union(*FAMILIES.values())


class Experts(NamedTuple):
    """Of a mixture of experts: their number, how many a token uses, and their inner width.

    shared: the inner width of what every token uses besides; dense: layers without experts.
    """

    number: int
    chosen: int
    inner: int
    shared: int
    dense: int


def experts_of(config: Mapping) -> Experts | None:
    """The experts of a config whose fields have our names; None where there are none."""
    if not config.get("num_experts"):
        return None
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = (config.get("n_shared_experts") or 0) * inner
    shared = shared or config.get("shared_expert_intermediate_size") or 0
    layers, kinds = config["num_hidden_layers"], config.get("mlp_layer_types")
    if kinds:
        dense = kinds.count("dense")
    else:
        last = config.get("moe_layer_end_index", -1)
        mixed = range(config.get("first_k_dense_replace") or 0, last + 1 if last >= 0 else layers)
        step = config.get("decoder_sparse_step") or config.get("moe_layer_interval") or 1
        plain = config.get("mlp_only_layers") or ()
        dense = layers - sum((i + 1) % step == 0 and i not in plain for i in mixed)
    return Experts(config["num_experts"], config["num_experts_per_tok"], inner, shared, dense)


def attention_weights(config: Mapping) -> int:
    """Weights of a layer's attention: queries, keys, values and outputs."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if not config.get("kv_lora_rank"):
        return 2 * width * config["head_dim"] * (heads + config["num_key_value_heads"])
    rank, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    queries = config.get("q_lora_rank")
    asked = heads * (plain + rotary)
    query = queries * (width + asked) if queries else width * asked
    return query + width * (rank + rotary) + heads * (rank * (plain + value) + value * width)


def parameters_of(config: Mapping, experts: Experts | None) -> tuple[int, int]:
    """(all parameters, those that one token uses)."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    tables = config["vocab_size"] * width * (1 if config.get("tie_word_embeddings") else 2)
    every = layers * (attention_weights(config) + 2 * width) + tables + width
    part = config.get("matrices", 3) * width  # of a feed-forward part, for each inner number
    if not experts:
        return (every + layers * part * config["intermediate_size"],) * 2
    every += experts.dense * part * config["intermediate_size"]
    sparse = layers - experts.dense
    every += sparse * (part * experts.shared + width * experts.number)
    one = sparse * part * experts.inner
    return every + experts.number * one, every + experts.chosen * one


def windows_of(config: Mapping, source: str) -> tuple[int, int]:
    """(layers that see only a window, its tokens). Raises ValueError for other kinds of layers."""
    kinds, layers = config.get("layer_types") or [], config["num_hidden_layers"]
    other = set(kinds) - {"full_attention", "sliding_attention"}
    if other:
        refuse(source, f"has layers of {min(other)}")
    window = config.get("sliding_window") or 0
    if not window or (config.get("use_sliding_window") is False and not kinds):
        return 0, 0
    every = config.get("sliding_window_pattern")
    if kinds:
        windowed = kinds.count("sliding_attention")
    elif every:
        windowed = layers - layers // (len(every) if isinstance(every, str) else every)
    else:
        windowed = max(0, layers - (config.get("max_window_layers") or 0))
    return (windowed, window) if windowed else (0, 0)


def bytes_of(config: Mapping, source: str, experts: bool = False) -> tuple[float, float]:
    """(bytes a weight, bytes a weight of the experts or 0 for the same) as they are stored.

    Raises ValueError for a way of quantising that it does not know.
    """
    quantised = config.get("quantization_config") or config.get("compression_config") or {}
    if not quantised:
        return 2, 0
    if not isinstance(quantised, Mapping):
        refuse(source, f"has quantization_config {quantised!r}")
    method, algorithm = quantised.get("quant_method"), quantised.get("quant_algo")
    if method == "mxfp4":
        return 2, MXFP4
    groups = (quantised.get("config_groups") or {}).values()
    bits = {(group.get("weights") or {}).get("num_bits") for group in groups}
    names = "ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"
    left = next((quantised[name] for name in names if quantised.get(name)), [])
    width = 0.0
    if algorithm == "NVFP4" and left:
        width = NVFP4
    elif method in ("fp8", "fbgemm_fp8") or algorithm == "FP8" or quantised.get("load_in_8bit"):
        width = 1
    elif quantised.get("load_in_4bit") or algorithm == "W4A16_AWQ":
        width = 0.5
    elif isinstance(quantised.get("bits"), int):
        width = quantised["bits"] / 8
    elif algorithm is None and len(bits) == 1 and isinstance(min(bits), int):
        width = min(bits) / 8
    wide = [x for x in left if "self_attn" in x and not any(y in x for y in ("vis", "audio"))]
    every = any(x.rstrip("*.$").endswith("self_attn") and not re.search(r"\d", x) for x in wide)
    whole = every or len(wide) >= config["num_hidden_layers"]
    if not width or (whole and not experts):
        raise ValueError(
            f"{source} is quantised by {algorithm or method!r}: say how many bytes with --bytes"
        )
    return (2, width) if whole else (width, 0)


def refuse(source: str, why: str) -> NoReturn:
    """Raises ValueError: why a config cannot be counted, and what to give instead."""
    raise ValueError(
        f"{source} {why}, so it cannot be counted; give the model as PARAMETERS,LAYERS,ENTRY, "
        "such as 70B,80,2x8x128, or with experts 30B:3B,48,2x4x128,8/128"
    )


def filled(config: Mapping, source: str) -> dict:
    """The part of a config that describes text: our names, with what the file leaves out.

    Raises ValueError if it cannot be counted.
    """
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) and text else config
    around = {
        key: config[key]
        for key in ("tie_word_embeddings", "quantization_config", "compression_config")
        if config.get(key) is not None
    }
    kind = text.get("model_type")
    odd = [key for key in UNKNOWN if text.get(key)]
    if odd:
        refuse(source, f"has {odd[0]}")
    if kind not in FAMILIES:
        refuse(source, f"has model_type {kind!r}" if kind else "has no model_type")
    given = {NAMES.get(key, key): value for key, value in text.items()}
    found = FAMILIES[kind] | around | given
    for key in READ & found.keys():
        value = found[key]
        if isinstance(value, list) and value == value[:1] * len(value):  # the same in each layer
            value = found[key] = value[0] if value else None
        if not isinstance(value or 0, int) and key != "sliding_window_pattern":
            refuse(source, f"has {key} {value!r}")
    missing = [key for key in NEEDED if not found[key] or found[key] < 1]
    if missing:
        refuse(source, f"has no {missing[0]}")
    heads = found["num_attention_heads"]
    found["num_key_value_heads"] = found["num_key_value_heads"] or heads
    found["head_dim"] = found.get("head_dim") or found["hidden_size"] // heads
    if found.get("kv_lora_rank"):
        found["v_head_dim"] = found["v_head_dim"] or found["head_dim"]
    return found


def counted(config: Mapping, source: str, weight_bytes: float | None = None) -> Shape:
    """The Shape that a config.json describes; `source` is for messages.

    weight_bytes replaces what the config says. Raises ValueError for a model it cannot count.
    """
    config = filled(config, source)
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    experts = experts_of(config)
    if experts and not 0 < (experts.chosen or 0) < experts.number:
        why = f"has num_experts_per_tok {experts.chosen} of num_experts {experts.number}"
        refuse(source, why)
    total, active = parameters_of(config, experts)
    if config.get("kv_lora_rank"):
        ranks = config["kv_lora_rank"], config["qk_rope_head_dim"]
        heads_own = config["qk_nope_head_dim"], config["v_head_dim"]
        shape = latent(total, layers, heads, *ranks, *heads_own)
    else:
        shape = grouped(total, layers, heads, config["num_key_value_heads"], config["head_dim"])
    if experts:
        shape = replace(shape, active=active, experts=experts.number, chosen=experts.chosen)
    stored = (weight_bytes, 0) if weight_bytes else bytes_of(config, source, bool(experts))
    windowed, window = windows_of(config, source)
    return replace(
        shape, weight_bytes=stored[0], expert_bytes=stored[1], windowed=windowed, window=window
    )
