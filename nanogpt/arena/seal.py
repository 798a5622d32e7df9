"""What no entry may touch: the package's functions, the clock, and the target that it races with.

The package is compared with what it was when the arena opened, name by name; the target with its
copy in float64, function by function, weight by weight, and by what it computes.
"""

from __future__ import annotations

import itertools
import sys
import time
import types
from collections.abc import Iterator

import torch
from torch import Tensor

from nanogpt.model import GPTLanguageModel

Parts = dict[str, object]  # {name: the object that stands there}


def package_parts() -> Parts:
    """All that the package's loaded modules, their classes and their tables hold, and the clock."""
    modules = [m for name, m in [*sys.modules.items()] if name.split(".")[0] == "nanogpt"]
    return dict(itertools.chain(*map(parts_of, [*filter(None, modules), time])))


def parts_of(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """A module's names, those of its own classes and tables, and the code of its functions."""
    for name, value in [*vars(module).items()]:
        if name.startswith("__"):
            continue
        name = f"{module.__name__}.{name}"
        yield from with_code(name, value)
        own = getattr(value, "__module__", None) == module.__name__
        inside = vars(value) if isinstance(value, type) and own else value
        if isinstance(inside, dict | types.MappingProxyType):
            for key, part in [*inside.items()]:
                yield from with_code(
                    f"{name}[{key!r}]" if inside is value else f"{name}.{key}", part
                )


def with_code(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The object by its name; a function's code and defaults as well: they can be replaced, too."""
    yield name, value
    if isinstance(value, property | staticmethod | classmethod):
        value = value.fget if isinstance(value, property) else value.__func__
    if isinstance(value, types.FunctionType):
        yield f"{name}.__code__", value.__code__
        yield f"{name}.__defaults__", value.__defaults__
        if hasattr(value, "registry"):  # singledispatch: what it does with each kind
            for kind in (tuple, type(None), *value.registry):
                yield f"{name} of a {kind.__name__}", value.dispatch(kind)


def changed(before: Parts) -> str | None:
    """The first name in the package where something else stands than before; None if there is none.

    New names are nobody's loss: modules are loaded when they are needed.
    """
    now = package_parts()
    return next((name for name, part in before.items() if now.get(name) is not part), None)


# ---- The target


def weights_of(target: GPTLanguageModel) -> list[Tensor]:
    """All that a target computes with: its parameters, and what a fused one adds."""
    added = [*getattr(target, "qkv", ()), getattr(target, "bias", None)]
    return [*target.parameters(), *(tensor for tensor in added if tensor is not None)]


def functions_of(target: GPTLanguageModel) -> Parts:
    """What it computes with them: each module's class, functions of its own, and hooks."""
    found: Parts = {}
    for place, module in target.named_modules():
        place = f"{place}." * bool(place)
        found[f"{place}__class__"] = type(module)
        for name, value in vars(module).items():
            if callable(value):
                found[place + name] = value
            elif name.endswith("_hooks") and value:
                found[place + name] = None
    return found


@torch.inference_mode()
def logits_of(target: GPTLanguageModel, text: Tensor) -> Tensor:
    """Logits (4 T, V) of text (1, T), made in each of the ways that decoders make them.

    At once, and 5 tokens, 1, and the others behind a cache; by `forward`, and by `states`.
    """
    found = [target(text)[0][0]]
    streams, _ = target.states(text)
    found.append(target.lm_head(target.ln_f(streams[-1]))[0])
    by_forward = by_states = None
    for part in text.split([5, 1, text.shape[1] - 6], dim=1):
        logits, _, by_forward = target(part, past_kvs=by_forward)
        streams, by_states = target.states(part, past_kvs=by_states)
        found += [logits[0], target.lm_head(target.ln_f(streams[-1]))[0]]
    return torch.cat(found)


def tampered(target: GPTLanguageModel, exact: GPTLanguageModel, text: Tensor) -> str | None:
    """What is wrong with a target, against its copy in float64; None if nothing is.

    text (1, T): some that both read, T at least 7. Logits agree to 1e-4: float32 is off by 1e-5.
    """
    ours, theirs = functions_of(target), functions_of(exact)
    other = sorted(ours.keys() ^ theirs.keys())
    other += [name for name in ours if ours[name] is not theirs.get(name)]
    if other or target.config != exact.config:
        other = [*other, "config"]
        return f"what the target computes (its `{other[0]}`); a draft may only read the target"
    mine, right = weights_of(target), weights_of(exact)
    same = len(mine) == len(right) and all(
        type(a) is type(b) and torch.equal(a.double(), b) for a, b in zip(mine, right, strict=True)
    )
    if not same:
        return "the target's weights; copy.deepcopy(target) before training"
    if not torch.allclose(logits_of(target, text).double(), logits_of(exact, text), 1e-4, 1e-4):
        return "what the target computes; a draft may only read the target"
    return None
