"""The bug gallery: real bugs of real speculative decoders, each a small edit of our own code.

A bug is a piece of the package's source and what stands there instead. `mutant(bug)` runs the
edited source and returns the decoder that comes of it; if the code changes so that an edit no
longer fits, that is an error.
"""

from __future__ import annotations
import __future__

import copy
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from nanogpt.checks import Decoder, Watched
from nanogpt.drafts import transformer
from nanogpt.drafts.transformer import TransformerDraft
from nanogpt.model import GPTLanguageModel
from nanogpt.sampling import RandomSource, Sampling

PACKAGE = Path(__file__).resolve().parent
MODULES = (  # in the order of their imports
    "cache",
    "model",
    "sampling",
    "generate",
    "drafts/transformer",
    "speculative",
)


@dataclass(frozen=True)
class Bug:
    """One bug: `old` in `module` is replaced by `new`.

    kind: "biased" output, "slow" only, or an "error" of length or count. caught_by: the check that
    is meant for it. seen_in: where it was found, if it is public.
    """

    number: int
    title: str
    kind: str
    module: str
    old: str
    new: str
    caught_by: str
    seen_in: str = ""


BUGS = [
    Bug(1, "on rejection, resample from p instead of the residual", "biased", "speculative",
        "residual(p[i], q[i])", "p[i]",
        "exact", "romsto/Speculative-Decoding"),
    Bug(2, "residual not clamped at 0: the sign is dropped", "biased", "speculative",
        "(p - q).clip(0)", "abs(p - q)", "exact"),
    Bug(3, "p where q belongs in the residual, so that it is empty and falls back to p", "biased",
        "speculative", "residual(p[i], q[i])", "residual(p[i], p[i])",
        "exact", "a widely read tutorial"),
    Bug(4, "on rejection, only the rejected token is removed from p", "biased", "speculative",
        "residual(p[i], q[i])",
        "np.where(np.arange(len(p[i])) == token, 0, p[i]) / (1 - p[i, token])",
        "exact", "SafeAILab/EAGLE#20"),
    Bug(5, "candidates are drawn from another q than the one that is divided by", "biased",
        "speculative", "rng.categorical(q)", "rng.categorical(draft.get_probs(tokens))",
        "exact", "huggingface/transformers#47932, #32867; jaymody/speculative-sampling#3"),
    Bug(6, "accept test and resampling share one random number", "biased", "sampling",
        "return bool(self._uniforms.random() < probability)",
        "before = self._uniforms.bit_generator.state\n"
        "        accept = bool(self._uniforms.random() < probability)\n"
        "        if not accept:\n"
        "            self._uniforms.bit_generator.state = before  # the next draw repeats u\n"
        "        return accept",
        "frequencies", "sgl-project/sglang#7207; vllm-project/vllm#54282"),
    Bug(7, "the generator is seeded again in each round", "biased", "speculative",
        "        candidates, q = draft_tokens(",
        "        rng = RandomSource(0)\n        candidates, q = draft_tokens(",
        "exact", "feifeibear/LLMSpeculativeSampling"),
    Bug(8, "bonus token by argmax while sampling", "biased", "speculative",
        "rng.categorical(p[len(candidates)])",
        "int(p[len(candidates)].argmax())", "exact", "shreyansh26/Speculative-Decoding"),
    Bug(9, "bonus token drawn from row K-1 instead of K", "biased", "speculative",
        "p[len(candidates)])]", "p[len(candidates) - 1])]", "exact"),
    Bug(10, "candidates after a rejection are kept", "biased", "speculative",
        "q[i]))]", "q[i])), *candidates[i + 1 :]]", "exact"),
    Bug(11, "every draft is accepted", "biased", "speculative",
        "rng.bernoulli(min(1.0, p[i, token] / q[i, token]))", "rng.bernoulli(1.0)",
        "exact", "huggingface/transformers#28508"),
    Bug(12, "p is read one position off", "biased", "speculative",
        "min(1.0, p[i, token] / q", "min(1.0, p[i + 1, token] / q",
        "exact", "huggingface/transformers#28166"),
    Bug(13, "trim keeps one entry too many: a rejected token stays", "biased", "cache",
        "cache_len_before_verify + num_accepted\n", "cache_len_before_verify + num_accepted + 1\n",
        "cache", "mmcmanus1/Torch-Velocity"),
    Bug(14, "trim keeps one entry too few", "biased", "cache",
        "cache_len_before_verify + num_accepted\n", "cache_len_before_verify + num_accepted - 1\n",
        "cache", "lablup/mlxcel#994"),
    Bug(15, "no trim at all", "biased", "speculative",
        "trim_kv_cache(new_kvs, len(accepted), cache_len)", "new_kvs", "cache"),
    Bug(16, "the prompt's last token is cached, then fed again", "biased", "speculative",
        "prefill(target, tokens[:-1])", "prefill(target, tokens)",
        "cache", "mmcmanus1/Torch-Velocity"),
    Bug(17, "positions restart at 0 with a cache", "biased", "model",
        "torch.arange(P, P + T, device", "torch.arange(0, T, device",
        "greedy", "czhou578/nanoGPT-inference"),
    Bug(18, "several tokens behind a cache, and no causal mask", "biased", "model",
        ".tril(diagonal=P)", ".tril(diagonal=P + T if P else 0)",
        "greedy", "czhou578/nanoGPT-inference"),
    Bug(19, "greedy compares softmax probabilities at temperature 1", "biased", "sampling",
        "if self.temperature == 0:\n",
        "if self.temperature == 0:\n            return torch.softmax(logits, dim=-1)\n",
        "greedy", "romsto/Speculative-Decoding"),
    Bug(20, "a stop rule looks at a drafted token, discards it, and p is sampled instead", "biased",
        "speculative", "        draft_probs.append(q)\n        tokens.append(rng.categorical(q))\n",
        "        token = rng.categorical(q)\n"
        "        if q[token] < 0.3:\n"
        "            break\n"
        "        draft_probs.append(q)\n        tokens.append(token)\n",
        "exact", "by enumeration"),
    Bug(21, "u <= p/q accepts a token of probability 0 at u = 0", "biased", "sampling",
        "self._uniforms.random() < probability", "self._uniforms.random() <= probability",
        "support", "sgl-project/sglang#35771"),
    Bug(22, "nucleus drops the token that crosses the threshold", "biased", "sampling",
        "ranked.cumsum(-1) - ranked < self.top_p",
        "(ranked.cumsum(-1) < self.top_p) | (ranked == ranked[..., :1])",
        "exact", "shreyansh26/Speculative-Decoding"),
    Bug(23, "the draft's cache is not rewound after a rejection", "slow", "drafts/transformer",
        "if kept < len(self.tokens):", "if kept < 0:", "draft"),
    Bug(24, "the draft's cache misses the last accepted token", "slow", "drafts/transformer",
        "torch.tensor([context[kept:]]", "torch.tensor([context[kept:][-1:]]",
        "draft", "vllm-project/vllm#9730"),
    Bug(25, "the draft's positions are one ahead", "slow", "drafts/transformer",
        "self.model(idx, past_kvs=self.past_kvs)",
        "self.model(\n            idx, past_kvs=self.past_kvs, "
        "pos=torch.arange(kept + 1, kept + 1 + idx.shape[1])\n        )",
        "draft", "sgl-project/sglang#25015"),
    Bug(26, "the draft sees a shorter context than it may", "slow", "drafts/transformer",
        "context[window_start(len(context), self.model.config.block_size) :]", "context[-2:]",
        "draft"),
    Bug(27, "a stop token inside an accepted block is ignored", "error", "speculative",
        "accepted.index(stop_token) + 1 if stop_token in accepted else len(accepted)",
        "len(accepted)", "accounting", "huggingface/transformers#47912"),
    Bug(28, "more tokens than max_new_tokens", "error", "speculative",
        "min(max_new_tokens - len(new_tokens), target.config.block_size - cache_len)",
        "(target.config.block_size - cache_len)",
        "accounting", "jaymody/speculative-sampling; beyond-nanogpt"),
    Bug(29, "a rejection in the last place is counted as accepted", "error", "generate",
        "accepted = sum(len(r.accepted) - 1 for",
        "accepted = sum(min(len(r.accepted), len(r.candidates)) for",
        "accounting", "czhou578/nanoGPT-inference"),
    Bug(30, "tokens past the stop are counted in the tokens per pass", "error", "generate",
        "return len(self.tokens) / self.target_passes if",
        "return sum(len(r.accepted) for r in self.rounds) / self.target_passes if",
        "accounting", "vllm-project/vllm#56101"),
    Bug(31, "silently short output when the window is full", "error", "speculative",
        "while len(new_tokens) < max_new_tokens and ",
        "while len(tokens) < target.config.block_size and len(new_tokens) < max_new_tokens and ",
        "accounting", "czhou578/nanoGPT-inference"),
    Bug(32, "stop token 0 is treated as no stop token", "error", "speculative",
        "+ 1 if stop_token in accepted else", "+ 1 if stop_token and stop_token in accepted else",
        "accounting", "feifeibear/LLMSpeculativeSampling"),
]  # fmt: skip


def edited(bug: Bug, module: str) -> str:
    """The source of `module` with the bug in it, if it is the bug's; without package imports.

    Raises ValueError if the code that the bug replaces is not there.
    """
    source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    if module == bug.module:
        if bug.old not in source:
            raise ValueError(f"bug {bug.number} edits {bug.old!r}, which {module}.py does not have")
        source = source.replace(bug.old, bug.new)
    source = source.replace("from __future__ import annotations\n", "")
    return re.sub(r"(?m)^from nanogpt[^\n(]*(\([^)]*\)|[^\n]*)\n", "", source)


def of_class(target, model_class: type):
    """The same weights as a model of another class; what is no model of ours stays as it is."""
    other = copy.copy(target)
    if isinstance(target, Watched):
        other.target = of_class(target.target, model_class)
    elif isinstance(target, GPTLanguageModel):
        other.__class__ = model_class
    return other


def mutant(bug: Bug) -> Decoder:
    """A decoder with the bug in it: all modules of the loop run again, one of them edited."""
    names: dict = {**vars(transformer), "__name__": __name__}
    for module in MODULES:
        code = compile(
            edited(bug, module),
            f"{module}.py with bug {bug.number}",
            "exec",
            __future__.annotations.compiler_flag,
        )
        exec(code, names)

    def generate(
        target, draft, prompt_tokens, max_new_tokens, K=4, sampling=Sampling(), rng=None, **kwargs
    ):
        target = of_class(target, names["GPTLanguageModel"])
        if isinstance(draft, TransformerDraft):
            model = of_class(draft.model, names["GPTLanguageModel"])
            draft = names["TransformerDraft"](model)
        sampling = names["Sampling"](**dataclasses.asdict(sampling))
        if isinstance(rng, RandomSource):
            rng.__class__ = names["RandomSource"]
        return names["speculative_generate"](
            target, draft, prompt_tokens, max_new_tokens, K, sampling, rng, **kwargs
        )

    return generate
