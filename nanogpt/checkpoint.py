"""Checkpoints: weights with what made them, in one safetensors file that holds no code.

The file's header carries, as JSON, the model's config, its vocabulary and the facts of its
training. Reading one never runs code (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from nanogpt.data import DATA_DIR, INSTALLED, CharTokenizer, bring_back, write_atomically
from nanogpt.model import GPTConfig, GPTLanguageModel

TARGET = DATA_DIR / "checkpoints" / "target.safetensors"
HEADER = "nanogpt"  # the key of our JSON in the file's metadata

Modules = nn.Module | Mapping[str, nn.Module]  # one, or several by name
Built = TypeVar("Built", bound=Modules)


def save(
    path: Path,
    model: GPTLanguageModel,
    tokenizer: CharTokenizer,
    facts: dict,
    extra: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write the model, its vocabulary and `facts` (anything JSON can hold) to `path`, whole or not.

    `extra` tensors are stored beside the weights; training keeps its optimizer there.
    """
    header = {
        "config": dataclasses.asdict(model.config),
        "vocabulary": tokenizer.chars,
        "facts": facts,
    }
    save_tensors(path, weights_of(model) | (extra or {}), header)


def save_module(
    path: Path,
    module: Modules,
    tokenizer: CharTokenizer,
    facts: dict,
    dtype: torch.dtype = torch.float16,
    **shape,
) -> None:
    """Write a draft's module, or several by name, with what `load_module` needs to build it again.

    The header: `shape` (its config, say), the vocabulary and `facts`, all of what JSON can hold.
    """
    header = {**shape, "vocabulary": tokenizer.chars, "facts": facts}
    save_tensors(path, weights_of(module, dtype), header)


def by_prefix(module: Modules) -> dict[str, nn.Module]:
    """A module by the prefix of its weights' names: none for a single one, else "its name/"."""
    if isinstance(module, nn.Module):
        return {"": module}
    return {f"{name}/": each for name, each in module.items()}


def weights_of(module: Modules, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """All weights by name, on the CPU; in `dtype`, by default each in its own."""
    return {
        prefix + name: t.detach().cpu().to(dtype or t.dtype).contiguous()
        for prefix, each in by_prefix(module).items()
        for name, t in each.state_dict().items()
    }


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], header: dict) -> None:
    """Write tensors and a header (anything JSON can hold) to `path`, whole or not at all."""
    content = safetensors.torch.save(tensors, {HEADER: json.dumps(header)})
    write_atomically(Path(path), content)


def remedy(path: Path, make_one: str) -> str:
    """What to do about a checkpoint that is missing or no good: get it back, or make one."""
    make = f"make one with `{make_one}`"
    if Path(path).resolve().parent != TARGET.parent:
        return make + " in a clone of the project" * (INSTALLED and make_one.startswith("python"))
    back = bring_back(Path(path).resolve())
    return back if INSTALLED else f"{back}, or {make}"


def read_header(path: Path, make_one: str = "nanogpt train") -> dict:
    """The header of a checkpoint: `config`, `vocabulary` and `facts`.

    `make_one` is the command that the messages name.
    Raises FileNotFoundError if there is no such file, ValueError if it is no checkpoint of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}; {remedy(path, make_one)}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); {remedy(path, make_one)}"
        ) from error
    if HEADER not in metadata:
        raise ValueError(
            f"{path} has no {HEADER!r} header, so it is not ours; {remedy(path, make_one)}"
        )
    return json.loads(metadata[HEADER])


def load_tensors(
    path: Path, names: Iterable[str], make_one: str
) -> tuple[dict, dict[str, torch.Tensor]]:
    """The header and the tensors of a file that `save_tensors` wrote.

    Raises what read_header raises, and ValueError if one of `names` is missing.
    """
    header, tensors = read_header(path, make_one), safetensors.torch.load_file(path)
    missing = set(names) - tensors.keys()
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; {remedy(path, make_one)}")
    return header, tensors


def usable_device(name: str | torch.device) -> torch.device:
    """The device of this name: cpu, cuda or mps. Raises ValueError if torch cannot use it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # there and back: on "meta" there is nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise ValueError(
            f"device {str(name)!r} cannot be used here ({why}); use cpu, or a PyTorch that has it"
        ) from None
    return device


def load_module(
    path: Path,
    build: Callable[[dict, dict[str, torch.Tensor]], Built],
    what: str,
    make_one: str,
    device: str | torch.device = "cpu",
) -> Built:
    """What `save_module` wrote, on a device: in float32, in eval mode, and frozen.

    build(header, tensors) makes the module, or the modules by name, that these weights are for;
    `what` is its name in messages.
    Raises what read_header and usable_device raise, and ValueError if something is missing.
    """
    device = usable_device(device)
    header, tensors = load_tensors(path, (), make_one)
    try:
        made = build(header, tensors)
        for prefix, each in by_prefix(made).items():
            each.load_state_dict({name: tensors[prefix + name] for name in each.state_dict()})
            each.to(device).requires_grad_(False).eval()
    except KeyError as error:
        why = f"it lacks {error.args[0]}"
        raise ValueError(f"{path} holds no {what} ({why}); {remedy(path, make_one)}") from error
    return made


def load(
    path: Path = TARGET, device: str | torch.device = "cpu", make_one: str = "nanogpt train"
) -> tuple[GPTLanguageModel, CharTokenizer]:
    """The model in a checkpoint, in eval mode on `device`, and its tokenizer.

    Raises FileNotFoundError if there is no such file, ValueError if it is no checkpoint of ours,
    and as usable_device does.
    """
    model = load_module(
        path,
        lambda header, _: GPTLanguageModel(GPTConfig(**header["config"])),
        "model",
        make_one,
        device,
    )
    tokenizer = CharTokenizer(read_header(path)["vocabulary"])
    return model.requires_grad_(), tokenizer  # it may be trained on
