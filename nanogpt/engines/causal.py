"""Any causal language model of transformers as a target, or as a draft: `load("a/folder")`.

`CausalModel` has the contract of `nanogpt.model.GPTLanguageModel`: logits and a cache come back as
values, and nothing is kept between calls. So every loop, rule and check takes one, and so does
every draft that looks at tokens or hidden states alone. Of the cache, each layer is one pair of
tensors, (k, v), each (B, P, heads, hs): tuples, which `nanogpt.cache` trims and gathers as it does
ours.

A model is refused, in one line and before it writes anything, where its cache cannot be trimmed
(a state, as chapter 33's; a window that slides) or where its attention takes no mask of a tree's.
Texts are plain: chat templates are not applied. How a model's `generation_config` would sample is
not read: `Sampling` says it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from nanogpt import checkpoint
from nanogpt.cache import KVCache
from nanogpt.data import write_atomically
from nanogpt.drafts.lookup import WideLookupDraft
from nanogpt.drafts.pairs import PairTokenizer
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.engines.export import tokenizer_json
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.serving.batch import TOGETHER, of_transformers
from nanogpt.speculative import Draft
from nanogpt.trees.tree import tree_mask

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TAKES_MASKS = ("eager", "sdpa")  # the attention implementations that are given one of 4 dimensions
# How far two ways to compute the same logits may be apart, of the largest: by rounding alone. In
# float64 as well, transformers computes norms, angles and a softmax in float32.
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2**-5}
POINTER = b"version https://git-lfs.github.com/spec/"  # begins what stands for a large file
PROBES = (
    "To be, or not to be: that is the question.\n",
    "def f(x):\n    return x[0] + 3.14  # twice\n",
    "  three  spaces,\tand a tab; l'été, 東京, 🙂",
)


def quiet():
    """transformers, without its progress bars and warnings. Raises ImportError without it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            f"transformers is not installed ({error}); the extra oracle brings it: "
            "pip install -e '.[oracle]'"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def check_trimmable(model, window: int | None) -> None:
    """Raise ValueError if some layer keeps no entry of each token, for as long as `window`.

    What transformers would build to remember the text is asked: one kind of cache for each layer.
    LongRoPE (https://arxiv.org/abs/2402.13753) has angles of its own for texts past some length.
    """
    name, has = type(model).__name__, model.config
    if "local" in getattr(has, "attention_layers", ()) and (window or 0) > has.window_size:
        raise ValueError(f"a layer of {name} sees {has.window_size} tokens: give that window")
    for number, layer in enumerate(quiet().DynamicCache(config=model.config).layers):
        kind, slides = type(layer).__name__, getattr(layer, "sliding_window", None)
        if "Linear" in kind:
            raise ValueError(
                f"layer {number} of {name} keeps a state, not an entry for each "
                "token, so no rejected guess can be trimmed from it; chapter 33 "
                "has three ways back"
            )
        if slides is not None and (window is None or slides < window):
            raise ValueError(
                f"layer {number} of {name} drops what is {slides} tokens back, and "
                f"no trim brings it again; with window={slides} or less, it never "
                "drops any"
            )
        if slides is None and kind != "DynamicLayer":
            raise ValueError(f"layer {number} of {name} has a {kind}: no trim is known")
    rope = getattr(has.get_text_config(decoder=True), "rope_parameters", None) or {}
    for kind in [rope, *rope.values()]:  # of all layers, or of each type of layers
        if isinstance(kind, dict) and kind.get("rope_type") == "longrope":
            most = kind["original_max_position_embeddings"]
            if window is None or most < window:
                raise ValueError(
                    f"{name} rotates all keys differently past {most} tokens, and those in the "
                    f"cache stay as they are; with window={most} or less, it never does"
                )


class CausalModel(GPTLanguageModel):
    """A model of transformers with the contract of GPTLanguageModel.

    window: after how many tokens the context restarts (`config.block_size`), by default as many as
    the model has positions for. `states` has what the model calls hidden states; of those, the
    last has been through the final norm already, so `ln_f` does nothing.
    Raises ValueError if the model cannot be used: see the module.
    """

    def __init__(self, model, window: int | None = None):
        nn.Module.__init__(self)  # nothing of ours is initialised
        has = model.config.get_text_config(decoder=True)
        positions = getattr(has, "max_position_embeddings", None)
        window = positions if window is None else window
        check_trimmable(model, window)
        # Small logits would not show it:
        if getattr(has, "final_logit_softcapping", None):
            raise ValueError(f"{type(model).__name__} caps its logits, which is not done here")
        if window is None or not 4 <= window <= (positions or window):
            raise ValueError(f"window is {window}; take 4 or more, of its {positions} positions")
        attention = model.config._attn_implementation
        if attention not in TAKES_MASKS:
            raise ValueError(
                f"attention {attention!r} takes no mask of a tree's; load the "
                f"model with attn_implementation={TAKES_MASKS[0]!r} or "
                f"{TAKES_MASKS[1]!r}"
            )
        self.lm_head, self.ln_f = model.get_output_embeddings(), nn.Identity()
        V, C = self.lm_head.weight.shape
        n_head = getattr(has, "num_attention_heads", 1)
        n_head = n_head if C % n_head == 0 else 1  # nothing here counts on it
        self.config = GPTConfig(V, window, has.num_hidden_layers, n_head, C)
        self.model, self.blocks = model.eval().requires_grad_(False), ()
        self.probe()

    @property
    def dtype(self) -> torch.dtype:
        """In which numbers it computes."""
        return self.lm_head.weight.dtype

    def probe(self) -> None:
        """A few tokens, to see that the model can be used. Raises ValueError if it cannot be.

        It returns entries of each token; its logits are `lm_head` of its hidden states; and in a
        tree, it heeds mask and positions.
        """
        name = type(self.model).__name__
        last = self.config.vocab_size - 1
        a, b, c = 0, min(1, last), last
        try:
            streams, kvs = self.states(self.row([a, b]))
            whole = self.model(input_ids=self.row([a, b]), use_cache=False).logits
            parts = [self.states(self.row(x))[0][-1][:, -1] for x in ([a, b, c], [a, c])]
            mask = tree_mask([-1, 0, -1], 0).to(self.device)  # after a: b and then c, or c
            idx = self.row([a, b, c, c])
            (*_, tree), _ = self.states(idx, mask.sum(-1) - 1, None, mask)
        except (TypeError, RuntimeError, AttributeError, ValueError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{name} is not called as other models are: {said}") from error
        if len(kvs) != self.config.n_layer or any(k.shape[1] != 2 for ((k, _),) in kvs):
            raise ValueError(f"{name} does not return an entry of each token in each layer")
        most = BOUNDS[self.dtype]
        if not whole.isfinite().all():
            raise ValueError(f"{name} has logits that are not numbers: check its weights")
        if relative(self.lm_head(streams[-1]), whole) > most:
            raise ValueError(f"{name} scales or caps its logits, which is not done here")
        if relative(tree[:, 2], parts[0]) > most or relative(tree[:, 3], parts[1]) > most:
            raise ValueError(f"{name} does not heed the mask or the positions of a tree")

    def row(self, tokens: Sequence[int]) -> Tensor:
        """The tokens as idx (1, T), where the model is."""
        return torch.tensor([list(tokens)], device=self.device)

    def states(
        self,
        idx: Tensor,
        pos: Tensor | None = None,
        past_kvs: KVCache | None = None,
        attn_mask: Tensor | None = None,
        depth: int | None = None,
    ) -> tuple[list[Tensor], KVCache]:
        """As GPTLanguageModel.states: the streams (B, T, C) after all blocks, and the cache.

        Raises ValueError past the window, and for a part of the blocks.
        """
        if depth is not None:
            raise ValueError("this model runs all of its blocks or none: no early exit")
        out, kvs = self.run(idx, pos, past_kvs, attn_mask, output_hidden_states=True)
        return [*out.hidden_states[1:-1], out.last_hidden_state], kvs

    @torch.no_grad()
    def run(self, idx, pos, past_kvs, attn_mask, **asked):
        """The model's own output for idx (B, T), and the cache: what it kept, as values.

        Its cache is an object that a pass changes. So each pass gets one of its own, and the
        tensors in it are never written to: a pass puts longer ones in their place.
        """
        P = 0 if past_kvs is None else past_kvs[0][0][0].shape[1]
        pos = self.positions(idx, P, pos).expand(len(idx), -1)  # (B, T)
        if attn_mask is not None:  # (B, 1, T, P+T), to be added to the scores
            attn_mask = attn_mask if attn_mask.dim() == 3 else attn_mask[None]
            bias = torch.zeros(attn_mask.shape, dtype=self.dtype, device=idx.device)
            attn_mask = bias.masked_fill(~attn_mask, torch.finfo(self.dtype).min)[:, None]
        out = self.model.base_model(
            input_ids=idx, position_ids=pos, attention_mask=attn_mask, use_cache=True,
            past_key_values=theirs(past_kvs), **asked,
        )  # fmt: skip
        return out, ours(out.past_key_values)


def theirs(past_kvs: KVCache | None):
    """A DynamicCache that holds a cache of tuples, (k, v) of each layer; empty for None."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache()
    for ((k, v),) in past_kvs or ():
        layer = DynamicLayer()
        layer.lazy_initialization(k, v)
        layer.keys = k.transpose(1, 2)  # no copy is made
        layer.values = v.transpose(1, 2)
        cache.layers.append(layer)
    return cache


def ours(cache) -> KVCache:
    """The tuples of a DynamicCache: of each layer (k, v), each (B, P, heads, hs). Views."""
    return tuple(
        ((layer.keys.transpose(1, 2), layer.values.transpose(1, 2)),) for layer in cache.layers
    )


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors, as a share of the largest number in b."""
    a, b = a.cpu().double(), b.cpu().double()
    return float((a - b).abs().max() / b.abs().max())


def fitted(q: Tensor, vocab_size: int) -> Tensor:
    """q (W,) over the target's vocabulary (V,): models of one tokenizer pad theirs differently.

    Tokens that the draft lacks get 0; of those that the target lacks, none is drawn, and the rest
    sums to 1 again. Raises ValueError if nothing is left.
    """
    if len(q) <= vocab_size:
        return torch.cat([q, q.new_zeros(vocab_size - len(q))])
    kept = q[:vocab_size]
    if not kept.sum() > 0:
        raise ValueError(f"all of q is on tokens from {vocab_size} on, which the target lacks")
    return kept / kept.sum()


class CausalDraft(TransformerDraft):
    """A model as a draft for a target of `vocab_size` tokens, of the same tokenizer."""

    def __init__(self, model: GPTLanguageModel, vocab_size: int):
        super().__init__(model)
        self.vocab_size = vocab_size

    def known(self, context: Sequence[int]) -> list[int]:
        """A token that the draft lacks is read as its first: any q the context settles will do."""
        own = self.model.config.vocab_size
        return [token if token < own else 0 for token in context]

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`, at temperature 1."""
        return fitted(super().get_probs(self.known(context)), self.vocab_size)


def of_models(drafts: Sequence[CausalDraft], contexts: Sequence[Sequence[int]]) -> list[Tensor]:
    """q (V,) of each draft after its own context, one pass for all that are of one model."""
    pairs = list(zip(drafts, contexts, strict=True))
    said = of_transformers(drafts, [draft.known(context) for draft, context in pairs])
    return [fitted(q, draft.vocab_size) for draft, q in zip(drafts, said, strict=True)]


TOGETHER[CausalDraft] = of_models  # in a batch


class Reader:
    """A tokenizer of transformers, with the two calls that ours have."""

    def __init__(self, tokenizer):
        self.tokenizer, self.vocab_size = tokenizer, len(tokenizer)
        self.end = tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, and of its beginning if the model wants one."""
        return self.tokenizer(text)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special ones shown. Of a part of a character, �."""
        return self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)


def check_readers(one: Reader, other: Reader) -> None:
    """Raise ValueError unless two tokenizers read alike: what they are called says nothing."""
    mine, yours = one.tokenizer.get_vocab(), other.tokenizer.get_vocab()
    for token, number in mine.items():
        if yours.get(token, number) != number:
            raise ValueError(
                f"token {token!r} is {number} for the target and {yours[token]} for the draft; "
                "chapter 32 has drafts with another tokenizer"
            )
    for text in PROBES:
        a, b = one.encode(text), other.encode(text)
        if a != b:
            raise ValueError(
                f"target and draft read {text[:20]!r} as {a[:6]} … and {b[:6]} …; chapter 32 has "
                "drafts with another tokenizer"
            )


def load(
    name: str | Path, dtype: str = "float32", window: int | None = None, device: str = "cpu"
) -> tuple[CausalModel, Reader]:
    """A model and its tokenizer, from a folder or, by name, from the hub. No code is run for it.

    dtype: one of DTYPES. window: as CausalModel has it. Raises ValueError if it cannot be used, if
    dtype is none of them, or for a device that torch cannot use; OSError if it cannot be had whole,
    ImportError without transformers.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it is one of {', '.join(DTYPES)}")
    folder, what = Path(name), f"no model {str(name)!r}"
    if not folder.is_dir():
        if is_path(str(name)):
            raise OSError(f"no folder {str(name)!r}; give one with a model, or a name on the hub")
        what = f"no folder {str(name)!r}, and no model of this name"
    device, transformers = checkpoint.usable_device(device), quiet()
    asked = {"local_files_only": folder.is_dir(), "trust_remote_code": False}
    told = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are told, below
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=DTYPES[dtype], use_safetensors=True, **told, **asked
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **asked)
    except Exception as error:  # what is there may be no model; tokenizers has no error of its own
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if "trust_remote_code" in said:
            said = "it needs code of its own, as its auto_map says, and none is run here"
        said = not_whole(folder) or said.removeprefix("OSError: ").removeprefix("ValueError: ")
        raise OSError(f"{what}: {said}") from error
    if lost := sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])}):
        raise OSError(
            f"{what} that is complete: {len(lost)} of its tensors, such as {lost[0]}, are missing "
            "from its files or have the wrong shape; download it again"
        )
    return CausalModel(model.to(device), window), Reader(tokenizer)


def is_path(name: str) -> bool:
    """Whether a name can only be a path: names on the hub are `model` or `owner/model`."""
    path = Path(name)
    looks = name.startswith((".", "~")) or name.endswith(("/", os.sep)) or len(path.parts) > 2
    return looks or path.exists() or (len(path.parts) == 2 and path.parent.is_dir())


def not_whole(folder: Path) -> str:
    """Which file of a folder is not what it should be, and what to do; "" if none is seen."""
    for path in sorted(path for path in folder.glob("*.*") if path.is_file()):
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                return f"{path.name} is a Git LFS pointer; `git lfs pull` brings the file itself"
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            if path.suffix == ".safetensors":
                safetensors.safe_open(path, framework="pt")
        except (ValueError, safetensors.SafetensorError) as error:
            return (
                f"{path.name} is not a complete {path.suffix[1:]} file ({error}); download it again"
            )
    return ""


def load_pair(
    target: str | Path,
    draft: str | Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    window: int | None = None,
) -> tuple[CausalModel, Reader, Draft]:
    """A target, its tokenizer, and a draft for it: a model, or prompt lookup for None.

    window: of both. Raises ValueError if the two read differently, and as load does.
    """
    big, reader = load(target, dtype, window, device)
    if draft is None:
        return big, reader, WideLookupDraft(big.config.vocab_size)
    small, other = load(draft, dtype, window, device)
    check_readers(reader, other)
    return big, reader, CausalDraft(small, big.config.vocab_size)


def save(model, tokenizer: PairTokenizer, folder: Path) -> None:
    """Write a model of transformers and a tokenizer of chapter 32 to a folder that `load` reads.

    Raises ValueError as tokenizer_json does, OSError if the folder cannot be written.
    """
    files = {
        "tokenizer.json": tokenizer_json(tokenizer),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / name, text.encode())
    model.save_pretrained(folder)
