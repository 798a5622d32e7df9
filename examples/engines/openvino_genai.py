"""OpenVINO GenAI's LLMPipeline as an engine: plain, with the draft, and with prompt lookup.

    nanogpt audit examples/engines/openvino_genai.py

`data/audits.md` says how to install it, and what the audit said of it. To write such a file for
another engine: load the folders, and return an `Engine` with a function for each of its modes.
"""

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from nanogpt.engines.adapters import Engine, Generate
from nanogpt.sampling import Sampling
from nanogpt.serving.constraints import Constraints


def open_engine(folder: Path, K: int = 4, exact: bool = True) -> Engine:
    """The engine on the pair of models in `folder`. Raises ValueError if they cannot be converted.

    exact: float32 for inference and cache, which is not the default. Without it, both have the
    default precision, and on record the greedy texts are then not the target's. The weights are
    float32 in either case.
    """
    import openvino_genai as genai

    for name in ("target", "draft"):
        add_end_token(folder / name)  # its tokenizer wants one
        convert(folder, name)
    hints = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"} if exact else {}
    counts = Counter(drafted=0, accepted=0)

    def mode(settings: dict, **options) -> Generate:
        """One way to write: `options` are of the pipeline, `settings` of each text."""
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        pipe = genai.LLMPipeline(
            folder / "openvino-target", "CPU", scheduler_config=scheduler, **options, **hints
        )

        def generate(prompts, n, sampling, seed, constraints=None):
            made, asked = [], settings | settings_of(constraints)
            for i, prompt in enumerate(prompts):
                out = ask(pipe, prompt, n, sampling, seed + i, asked)
                made.append(out.tokens[0])
                count(counts, out.extended_perf_metrics)
            return made

        return generate

    draft = genai.draft_model(folder / "openvino-draft", "CPU", **hints)
    guesses = {"num_assistant_tokens": K}
    modes = {
        "plain": mode({}),
        "draft": mode(guesses, draft_model=draft),
        "lookup": mode(guesses | {"max_ngram_size": 2}, prompt_lookup=True),
    }
    told = "float32" if exact else "default precision"
    name, takes = "openvino-genai", ("grammar", "presence", "frequency", "repetition", "min_p")
    return Engine(name, version(name), modes, lambda: dict(counts), told, takes)


def settings_of(constraints: Constraints | None) -> dict:
    """Constraints under the names of a GenerationConfig, which has no bias."""
    if constraints is None:
        return {}
    told = {"presence_penalty": constraints.presence, "frequency_penalty": constraints.frequency}
    told |= {"repetition_penalty": constraints.repetition, "min_p": constraints.min_p}
    if constraints.grammar is not None:
        import openvino_genai as genai

        regex = constraints.grammar.pattern
        told["structured_output_config"] = genai.StructuredOutputConfig(regex=regex)
    return told


def ask(pipe, prompt: list[int], n: int, sampling: Sampling, seed: int, settings: dict):
    """What a pipeline returns for one prompt: n new tokens, and what it counted."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    config = genai.GenerationConfig(max_new_tokens=n)  # no least: its end is no logit
    config.ignore_eos, config.rng_seed = True, seed
    if sampling.temperature:
        config.do_sample, config.temperature = True, sampling.temperature
        if sampling.top_k is not None:
            config.top_k = sampling.top_k
        if sampling.top_p is not None:
            config.top_p = sampling.top_p
    for name, value in settings.items():
        setattr(config, name, value)
    return pipe.generate(openvino.Tensor(np.array([prompt])), config)


def count(counts: Counter, metrics) -> None:
    """Add to the guesses drafted and accepted; only some pipelines tell them."""
    if metrics:
        counts["drafted"] += metrics.get_num_draft_tokens()
        counts["accepted"] += metrics.get_num_accepted_tokens()


def convert(folder: Path, name: str) -> None:
    """Make folder/openvino-NAME of folder/NAME by optimum-intel's command, beside Python's own."""
    command = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino"]
    command += ["--task", "text-generation-with-past", "--weight-format", "fp32"]
    command += ["--model", folder / name, folder / f"openvino-{name}"]
    ended = subprocess.run(command, capture_output=True)
    if ended.returncode:
        last = ended.stderr.decode().strip().splitlines()[-1:]
        raise ValueError(f"optimum-cli could not convert the {name}: {last}")


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
