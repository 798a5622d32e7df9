"""The gallery's machine: the whole package a second time, with one bug in it.

A bug is a piece of the package's source and what stands there instead. `mutant(bug)` serves the
package under another name and with that edit, and returns its decoder; if the code changes so that
an edit no longer fits, that is an error.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType

from torch import Tensor, nn

from nanogpt.model import GPTLanguageModel
from nanogpt.proof.bugs import Bug
from nanogpt.proof.decoders import Decoder
from nanogpt.proof.toys import Watched, from_memory

PACKAGE = Path(__file__).resolve().parent.parent
SECOND = "nanogpt_with_a_bug"  # the name that edited modules are served under


def edited(bug: Bug, module: str) -> str:
    """The source of `module`, a path below the package, with the bug in it if it is the bug's.

    Raises ValueError if the code that the bug replaces is not there.
    """
    source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    if module == bug.module:
        for old, new in ((bug.old, bug.new), *bug.also):
            if old not in source:
                raise ValueError(f"bug {bug.number} edits {old!r}, which {module}.py does not have")
            source = source.replace(old, new)
    return source


class Edited(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the package's modules under the name SECOND, one of them with a bug in it."""

    def __init__(self, bug: Bug):
        self.bug = bug

    def find_spec(self, fullname, path=None, target=None):
        """Where to load a module of SECOND from: here. Others are left to others."""
        first, *below = fullname.split(".")
        if first != SECOND:
            return None
        file, search = PACKAGE.joinpath(*below), None
        if file.is_dir():
            file, search = file / "__init__", []
        return importlib.util.spec_from_file_location(
            fullname, f"{file}.py", loader=self, submodule_search_locations=search
        )

    def exec_module(self, module) -> None:
        """Run the module's source. What it imports of the package comes from SECOND as well."""
        name = Path(module.__file__).relative_to(PACKAGE).with_suffix("").as_posix()
        source = edited(self.bug, name).replace("from nanogpt", f"from {SECOND}")
        where = f"{name}.py" + f" with bug {self.bug.number}" * (name == self.bug.module)
        exec(compiled(source, where), vars(module))


@functools.cache
def compiled(source: str, where: str) -> CodeType:
    """The source's code: a bug edits one module of those served, so most are needed again."""
    return compile(source, where, "exec")


def served(bug: Bug) -> dict:
    """{name: module} of the package with the bug in it. Nothing of it stays in sys.modules."""
    finder = Edited(bug)
    sys.meta_path.insert(0, finder)
    try:
        for name in ("proof.decoders", "drafts.shipped"):  # and what they import
            importlib.import_module(f"{SECOND}.{name}")
    finally:
        sys.meta_path.remove(finder)
        names = [name for name in sys.modules if name.partition(".")[0] == SECOND]
        modules = {name: sys.modules.pop(name) for name in names}
    return modules


def twin(thing, modules: dict, made: dict | None = None, model_of: Callable | None = None):
    """The same thing as an object of the classes in `modules`; the caller's stays as it is.

    What is not the package's own comes back as it is. Tensors and random numbers are shared. A
    class of the package comes back as its second self. made: the twins so far, by id; model_of:
    makes those of language models.
    """
    if isinstance(thing, int | float | str | Tensor | None):
        return thing
    if model_of and isinstance(thing, GPTLanguageModel):
        return model_of(thing)
    made = {} if made is None else made
    if id(thing) in made:
        return made[id(thing)]
    if isinstance(thing, (list, tuple, set, frozenset, collections.deque)):
        return type(thing)(twin(x, modules, made, model_of) for x in thing)
    if isinstance(thing, dict):
        return type(thing)((key, twin(x, modules, made, model_of)) for key, x in thing.items())
    cls = thing if isinstance(thing, type) else type(thing)
    if cls.__module__.startswith("nanogpt."):
        home = modules.get(cls.__module__.replace("nanogpt", SECOND, 1))
        cls = getattr(home, cls.__name__, None)  # none: not served, a model of the checks, say
    elif not isinstance(thing, nn.Module):  # a module of torch may hold some of ours
        cls = None
    if cls is None:
        return thing
    if isinstance(thing, type):
        return cls
    made[id(thing)] = new = object.__new__(cls)
    vars(new).update(twin(vars(thing), modules, made, model_of))
    return new


def mutant(bug: Bug, each: bool = False) -> Decoder:
    """A decoder with the bug in it: the package served a second time, with the one edit.

    each: of several texts, one by one.
    """
    modules = served(bug)
    decoders = modules[f"{SECOND}.proof.decoders"]
    decode = decoders.KINDS[bug.decoder].decoder
    decode = decoders.one_by_one(decode) if each else decode
    models = weakref.WeakKeyDictionary()  # the twin of each, made once
    targets = weakref.WeakKeyDictionary()

    def model_of(model):
        if model not in models:
            models[model] = twin(model, modules)
        return models[model]

    def target_of(target):
        if isinstance(target, Watched):
            return target.around(target_of(target.target))
        if target not in targets:
            made = model_of(target)
            targets[target] = from_memory(made) if isinstance(target, GPTLanguageModel) else made
        return targets[target]

    def generate(target, *given, **named):
        given, named = (twin(x, modules, model_of=model_of) for x in (given, named))
        return decode(target_of(target), *given, **named)

    return generate
