"""Engines that can be audited, each opened by one function on the exported pair of models.

An adapter is such a function, and returns an `Engine`. Two are here; any other is `open_engine` in
a file, called with the folder, and with K if it takes one. The folder holds what `export_pair`
writes: `target` and `draft`, and in `wide` the same with heads of 32. The repository's
`examples/engines/` shows two more.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt import checkpoint
from nanogpt.data import CharTokenizer
from nanogpt.drafts import transformer
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.drafts.protocol import lifted
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.bugs import BUGS, Bug
from nanogpt.proof.gallery import mutant
from nanogpt.proof.toys import Deaf
from nanogpt.sampling import RandomSource
from nanogpt.serving.batch import TOGETHER, batch_generate, probs_of
from nanogpt.serving.constraints import Constraints
from nanogpt.speculative import Draft
from nanogpt.targets.fused import FusedLanguageModel

# prompts, max_new_tokens, sampling, seed -> the new tokens of each prompt, exactly so many;
# with constraints=… as well, where the engine takes them
Generate = Callable[..., list[list[int]]]


@dataclass(frozen=True)
class Engine:
    """What is audited: its modes by name, such as "plain", which drafts nothing, and "draft".

    A mode is called as `generate(prompts, max_new_tokens, sampling, seed)` and returns the new
    tokens of each prompt, exactly so many. sampling has a temperature, where 0 is greedy, a top_k
    and a top_p, which are None where all tokens are wanted. The samples of a call must be
    independent of each other, and of those of another seed. counts: the passes of the target, and
    guesses drafted and accepted, all since the start, as far as the engine tells them. name: of the
    distribution that was installed, which need not be the module's. options: what was set that
    bears on the result: the precision, how a draft guesses. takes: which fields of `Constraints`
    the modes understand, such as "grammar" or "presence". Where an audit asks for these alone, a
    mode is called with `constraints=` as well, at temperature 1; otherwise never.
    """

    name: str
    version: str
    modes: dict[str, Generate]
    counts: Callable[[], dict[str, int]] | None = None
    options: str = ""
    takes: Collection[str] = ()


class Known(Draft):
    """A draft whose q after each context is asked for once, whatever text it comes up in.

    The samples of an audit begin alike, so that many of them ask for the same.
    """

    def __init__(self, draft: Draft, known: dict[tuple[int, ...], Tensor] | None = None):
        self.draft, self.vocab_size = draft, draft.vocab_size
        self.known = {} if known is None else known

    def get_probs(self, context: Sequence[int]) -> Tensor:
        """q (V,) of the token after `context`."""
        if (key := tuple(context)) not in self.known:
            self.known[key] = self.draft.get_probs(context)
        return self.known[key]

    def fresh(self) -> Known:
        """The same for another text, which knows what this one does."""
        return Known(self.draft.fresh(), self.known)


def of_known(drafts: Sequence[Known], contexts: Sequence[Sequence[int]]) -> list[Tensor]:
    """What each says; what nobody knows is asked for at once."""
    new = {}
    for draft, context in zip(drafts, contexts, strict=True):
        if (key := tuple(context)) not in draft.known:
            new[key] = draft
    said = probs_of([draft.draft for draft in new.values()], [*new])
    for (key, draft), q in zip(new.items(), said, strict=True):
        draft.known[key] = q
    return [x.known[tuple(context)] for x, context in zip(drafts, contexts, strict=True)]


TOGETHER[Known] = of_known


def plain_generate(target, draft, prompt, n, K, sampling, rng) -> Generation:
    """`autoregressive_generate` with speculative_generate's arguments; draft and K are not used."""
    return autoregressive_generate(target, prompt, n, sampling, rng)


def own_version() -> str:
    """The version of this package; "uninstalled" where it runs from its folder alone.

    So it does in the environment of an engine whose needs are not ours.
    """
    try:
        return version("nanogpt")
    except PackageNotFoundError:
        return "uninstalled"


TAKEN = ("grammar", "bias", "presence", "frequency", "repetition", "min_p")  # all that is asked


def met(bug: Bug) -> bool:
    """Whether an audit brings it out: it asks for no same dice, no stop strings, and no state."""
    return bug.decoder not in ("same", "state", "prefix") and bug.caught_by != "stops"


def target_of(bug: int | None) -> tuple[GPTLanguageModel, CharTokenizer]:
    """The shipped target, fused unless a bug is in what that does not run, and its tokenizer."""
    target, tokenizer = checkpoint.load()
    whole = bug is not None and BUGS[bug - 1].module in ("cache", "model", "trees/tree")
    return target if whole else FusedLanguageModel(target), tokenizer


def open_nanogpt(folder: Path, K: int = 4, bug: int | None = None) -> Engine:
    """Our own decoder, or one with a bug of the gallery. It needs no folder.

    Raises ValueError if there is no such bug, or an audit cannot meet it.
    """
    if bug is not None and not 1 <= bug <= len(BUGS):
        raise ValueError(f"there is no bug {bug}; the gallery has 1 to {len(BUGS)}")
    if bug is not None and not met(BUGS[bug - 1]):
        unmet = ", ".join(str(one.number) for one in BUGS if not met(one))
        raise ValueError(
            f"bug {bug} shows only by the same dice, in stop strings, in a target with a state or "
            "by --prefix, which no engine is asked for; --bug takes 1 to "
            f"{len(BUGS)} without {unmet}"
        )
    target, _ = target_of(bug)
    kind = "chain" if bug is None else BUGS[bug - 1].decoder
    takes = TAKEN if kind == "constrained" or bug is None else ()
    decode = batch_generate
    if bug is not None:
        kind = "batch" if bug == 71 else kind  # it shows there too, and sooner
        batch = kind in ("batch", "paged", "server", "learning", "budget")
        decode = mutant(dataclasses.replace(BUGS[bug - 1], decoder=kind), each=not batch)
    counts = Counter(passes=0, drafted=0, accepted=0)

    def mode(decode, draft) -> Generate:
        def generate(prompts, n, sampling, seed, **constraints):
            rngs = [RandomSource(seed + i) for i in range(len(prompts))]
            made = decode(target, draft, prompts, n, K, sampling, rngs, **constraints)
            for r in (r for one in made for r in one.rounds):
                counts.update(passes=1, drafted=len(r.candidates), accepted=r.n_accepted)
            return [one.tokens for one in made]

        return generate

    small, lookup = transformer.load().model, PromptLookupDraft(target.config.vocab_size)
    draft = Known(transformer.TransformerDraft(FusedLanguageModel(small)))
    modes = {
        "plain": mode(batch_generate, lifted(lookup, 0)),  # no guesses
        # Bug 70 drops guesses that are forbidden: it shows with a draft that makes some.
        "draft": mode(decode, Deaf(draft) if bug == 70 else draft),
        "lookup": mode(decode, lookup),
    }
    name = "nanogpt" if bug is None else f"nanogpt with bug {bug}"
    return Engine(name, own_version(), modes, lambda: dict(counts), "float32", takes)


def for_transformers(constraints: Constraints | None, prompt: Sequence[int]) -> dict:
    """Constraints as arguments of transformers' `generate`, which knows no presence or frequency.

    What a grammar allows is told by `prefix_allowed_tokens_fn`, of the reply so far. Everything is
    allowed where a guess has left the grammar, as nothing after it is read.
    """
    if constraints is None:
        return {}
    told, grammar = {}, constraints.grammar
    if grammar is not None:

        def allowed(_, ids):
            return np.flatnonzero(grammar.allowed[grammar.state(ids[len(prompt) :])]).tolist()

        told["prefix_allowed_tokens_fn"] = allowed
    if constraints.bias:
        told["sequence_bias"] = {(token,): by for token, by in constraints.bias.items()}
    if constraints.repetition != 1:
        told["repetition_penalty"] = constraints.repetition
    if constraints.min_p:
        told["min_p"] = constraints.min_p
    return told


def open_transformers(folder: Path, K: int = 4) -> Engine:
    """Hugging Face's `generate`: plain, assisted by the draft, and with prompt lookup."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    load = transformers.AutoModelForCausalLM.from_pretrained
    target, draft = load(folder / "target").eval(), load(folder / "draft").eval()
    draft.generation_config.num_assistant_tokens = K  # heeded here, not as an argument
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    counts = Counter(passes=0)
    target.register_forward_hook(lambda *_: counts.update(passes=1))

    def mode(**extra) -> Generate:
        def generate(prompts, n, sampling, seed, constraints=None):
            transformers.set_seed(seed)
            settings = {"do_sample": False}
            if sampling.temperature:
                settings = {"do_sample": True, "temperature": sampling.temperature}
                settings |= {"top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
            made = []
            for prompt in prompts:  # with a draft, it takes one at a time
                idx = torch.tensor([prompt])
                settings |= {"attention_mask": torch.ones_like(idx), "min_new_tokens": n}
                ruled = settings | for_transformers(constraints, prompt)
                out = target.generate(idx, max_new_tokens=n, **ruled, **extra)
                made.append(out[0, len(prompt) :].tolist())
            return made

        return generate

    modes = {
        "plain": mode(),
        "draft": mode(assistant_model=draft),
        "lookup": mode(prompt_lookup_num_tokens=K),
    }
    told = "float32"  # as the folders say
    takes = "grammar", "bias", "repetition", "min_p"
    return Engine(
        "transformers", transformers.__version__, modes, lambda: dict(counts), told, takes
    )


def failure(error: BaseException, path: Path) -> tuple[str, str]:
    """What the code of a file raised, in one line, after ", line 7" of that file, or ""."""
    trace, said = traceback.extract_tb(error.__traceback__), str(error)
    lines = [frame.lineno for frame in trace if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, said = [error.lineno], error.msg
    said = " ".join(f"{type(error).__name__}: {said}".split())
    return f", line {lines[-1]}" if lines else "", said.removesuffix(":")


def open_file(path: Path, folder: Path, K: int = 4) -> Engine:
    """What `open_engine(folder)` of a file returns, or `open_engine(folder, K=K)` if it takes K.

    Raises ValueError if the file has no such function, if its code fails, in whichever way, or if
    it returns no Engine; FileNotFoundError if there is no such file.
    """
    path = path.absolute()  # as it stands in a traceback
    if path.suffix != ".py" or not path.is_file():
        raise FileNotFoundError(f"{path} is no file that ends in .py; give one with open_engine")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)

    def do(what: Callable, *given, **more):
        try:
            return what(*given, **more)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too
            raise ValueError("{} fails{}: {}".format(path, *failure(error, path))) from error

    do(spec.loader.exec_module, module)
    if not callable(getattr(module, "open_engine", None)):
        raise ValueError(f"{path} has no function open_engine(folder)")
    takes_K = "K" in inspect.signature(module.open_engine).parameters
    engine = do(module.open_engine, folder, **({"K": K} if takes_K else {}))
    if not isinstance(engine, Engine):
        raise ValueError(f"open_engine of {path} returned {engine!r}, which is no adapters.Engine")
    return engine


ENGINES = {"nanogpt": open_nanogpt, "transformers": open_transformers}
EXTRA = {"transformers": "oracle"}  # the extra of this package that brings an engine


def open_any(name: str, folder: Path, K: int, bug: int | None) -> Engine:
    """The engine of a name in ENGINES, or of a file of the reader's.

    Raises ValueError if there is none such, ImportError, with what to install, without it.
    """
    if name.endswith(".py") or Path(name).name != name:
        return open_file(Path(name), folder, K)
    if name not in ENGINES:
        raise ValueError(
            f"no engine {name!r}; there are {', '.join(ENGINES)}, or a file.py with open_engine"
        )
    try:
        return ENGINES[name](folder, K, *([] if bug is None else [bug]))
    except ImportError as error:
        extra = f"the extra {EXTRA.get(name)} brings it: pip install -e '.[{EXTRA.get(name)}]'"
        raise ImportError(f"{name} is not installed ({error}); {extra}") from error
