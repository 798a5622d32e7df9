"""The examples are engines as a reader writes them, run here on a stand-in for each one's module.

The stand-in records how it is called and answers with tokens; nothing is installed for it.
"""

import itertools
import json
import os
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from series import ROOT, module_of

from nanogpt.engines import adapters
from nanogpt.engines.export import export_pair
from nanogpt.measure import sizing
from nanogpt.sampling import Sampling

EXAMPLES = ROOT / "examples" / "engines"
PROMPTS = [[1, 2], [3]]


@pytest.fixture
def installed(monkeypatch):
    """installed(name, module, ...): makes modules importable for a test, and their versions."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"of {name}")

    def put(**modules):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return put


def test_every_example_is_tried_here():
    names = {path.name for path in ROOT.glob("examples/*/*.py")}
    assert names == {"openvino_genai.py", "vllm_cpu.py", "pass_times.py", "registered.py"}


# ---- the time of passes


def pass_times():
    """The example as a module."""
    return module_of(ROOT / "examples" / "gpu" / "pass_times.py")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b"])
def test_what_is_timed_has_the_named_models_weights_and_cache(name, monkeypatch):
    module, shape = pass_times(), sizing.MODELS[name]
    monkeypatch.setattr(module, "DEVICE", "meta")  # sizes, and nothing in them
    model = module.Llama(module.MODELS[name])
    model.fill(3, 40, 5)
    weights = sum(w.numel() for w in [model.head, *itertools.chain(*model.layers)])
    tied = name == "llama-3.2-1b"
    assert abs(weights + (not tied) * model.tokens.numel() - shape.parameters) < 5e-3 * weights
    assert sum(kv.numel() * kv.element_size() for kv in model.cache) == 3 * shape.cached(45)


def test_passes_are_timed_here_too(monkeypatch, capsys):
    module = pass_times()
    monkeypatch.setattr(module, "DEVICE", "cpu")
    module.main()
    said = capsys.readouterr().out
    assert said.startswith("no GPU here") and said.count("B = ") == 2
    rows = [line.split() for line in said.splitlines() if line.startswith("B = ")]
    assert all(float(ms) > 0 for row in rows for ms in row[3:8])


# ---- OpenVINO GenAI


class Pipelines:
    """A stand-in for openvino_genai: the pipelines that were opened, and the texts asked of them.

    A pipeline with guesses tells of 3 drafted and 1 accepted for each text, another of nothing.
    """

    def __init__(self):
        self.drafts, self.opened, self.asked = [], [], []
        self.SchedulerConfig = self.GenerationConfig = SimpleNamespace

    def draft_model(self, folder, device, **options):
        self.drafts.append((folder.name, options))
        return "the draft"

    def LLMPipeline(self, folder, device, scheduler_config, **options):
        assert device == "CPU" and (folder / "model.xml").is_file()
        self.opened.append((folder.name, options))
        guesses = "draft_model" in options or "prompt_lookup" in options
        metrics = SimpleNamespace(get_num_draft_tokens=lambda: 3, get_num_accepted_tokens=lambda: 1)

        def generate(given, config):
            self.asked.append((given.tolist(), vars(config)))
            tokens = [7] * config.max_new_tokens
            return SimpleNamespace(
                tokens=[tokens], extended_perf_metrics=metrics if guesses else None
            )

        return SimpleNamespace(generate=generate)


@pytest.fixture
def openvino(installed, monkeypatch, tmp_path):
    """(the stand-in, the commands that convert): a conversion leaves a file in its last folder."""
    genai, commands = Pipelines(), []

    def converted(command, capture_output):
        commands.append([str(part) for part in command])
        command[-1].mkdir(exist_ok=True)
        (command[-1] / "model.xml").write_text("")
        return SimpleNamespace(returncode=0)

    installed(openvino=SimpleNamespace(Tensor=np.array), openvino_genai=genai)
    monkeypatch.setattr("subprocess.run", converted)
    export_pair(tmp_path)
    return genai, commands


def open_example(name, folder, **options):
    """open_engine of an example, called as `audit` calls it, or with more."""
    if not options:
        return adapters.open_file(EXAMPLES / name, folder, 3)
    return module_of(EXAMPLES / name).open_engine(folder, 3, **options)


@pytest.mark.parametrize("exact, told", [(None, "float32"), (False, "default precision")])
def test_openvino_is_opened_in_the_precision_that_it_says(openvino, tmp_path, exact, told):
    genai, commands = openvino
    options = {} if exact is None else {"exact": exact}
    engine = open_example("openvino_genai.py", tmp_path, **options)
    assert (engine.name, engine.version) == ("openvino-genai", "of openvino-genai")
    assert engine.options == told
    hints = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    hints = hints if exact is None else {}
    assert genai.drafts == [("openvino-draft", hints)]
    modes = {}, {"draft_model": "the draft"}, {"prompt_lookup": True}
    assert genai.opened == [("openvino-target", mode | hints) for mode in modes]
    assert [command[0].rpartition(os.sep)[2] for command in commands] == ["optimum-cli"] * 2
    assert [command[-3:] for command in commands] == [
        ["--model", str(tmp_path / name), str(tmp_path / f"openvino-{name}")]
        for name in ("target", "draft")
    ]
    assert all("fp32" in command for command in commands)


def test_openvino_writes_what_is_asked_and_counts_its_guesses(openvino, tmp_path):
    genai, _ = openvino
    engine = open_example("openvino_genai.py", tmp_path)
    assert list(engine.modes) == ["plain", "draft", "lookup"]
    guesses = {"num_assistant_tokens": 3}
    own = {}, guesses, guesses | {"max_ngram_size": 2}
    drawn = {"do_sample": True, "temperature": 0.5}
    common = {"max_new_tokens": 4, "ignore_eos": True}
    for generate, settings in zip(engine.modes.values(), own, strict=True):
        for temperature, more in ((0.5, drawn), (0.0, {})):
            genai.asked.clear()
            assert generate(PROMPTS, 4, Sampling(temperature), 10) == [[7] * 4] * 2
            assert genai.asked == [
                ([prompt], common | {"rng_seed": 10 + i} | more | settings)
                for i, prompt in enumerate(PROMPTS)
            ]
    assert engine.counts() == {"drafted": 8 * 3, "accepted": 8}


def test_openvino_gets_a_tokenizer_with_an_end_that_no_text_has(openvino, tmp_path):
    open_example("openvino_genai.py", tmp_path)
    for name in ("target", "draft"):
        tokenizer = json.loads((tmp_path / name / "tokenizer.json").read_text(encoding="utf-8"))
        [end] = tokenizer["added_tokens"]
        assert (end["id"], end["content"], end["special"]) == (65, "<end>", True)
        config = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert config["eos_token"] == "<end>" and config["model_max_length"] == 128


def test_a_conversion_that_fails_says_so_in_one_line(openvino, monkeypatch, tmp_path):
    failed = SimpleNamespace(returncode=1, stderr=b"Traceback\nKeyError: 'gpt2'\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match=r"could not convert the target.*KeyError: 'gpt2'"):
        open_example("openvino_genai.py", tmp_path)


# ---- vllm-cpu


class Servers:
    """A stand-in for vllm: the LLMs that were started, and what was asked of them.

    An LLM with guesses counts 5 drafted and 2 accepted for each call.
    """

    __version__ = "0.32.0"

    def __init__(self):
        servers = self
        once = iter([None])  # a second LLM of a process trips over it
        here = SimpleNamespace(register_triton_kernel_overrides=lambda: next(once))
        self.platforms = SimpleNamespace(current_platform=here)
        self.started, self.asked, self.SamplingParams = [], [], SimpleNamespace

        class LLM:
            alive = 0

            def __init__(self, model, **settings):
                assert not LLM.alive, "the one before must have ended"
                LLM.alive += 1
                servers.platforms.current_platform.register_triton_kernel_overrides()
                servers.started.append((model, settings))
                self.calls = 0
                self.guesses = settings["speculative_config"] is not None

            def __del__(self):
                LLM.alive -= 1

            def get_metrics(self):
                counted = {"draft": 5, "accepted": 2, "emitted": 9}
                return [
                    SimpleNamespace(
                        name=f"vllm:spec_decode_num_{name}_tokens", value=n * self.calls
                    )
                    for name, n in counted.items()
                    if self.guesses
                ]

            def generate(self, given, settings, use_tqdm):
                self.calls += 1
                servers.asked.append((given, [vars(one) for one in settings]))
                made = [SimpleNamespace(token_ids=(7,) * one.max_tokens) for one in settings]
                return [SimpleNamespace(outputs=[one]) for one in made]

        self.LLM = LLM


@pytest.fixture
def vllm(installed, monkeypatch):
    """(the stand-in, the distributions that bring each module)."""
    servers, brings = Servers(), {"vllm": ["vllm-cpu", "vllm-cpu"], "torch": ["torch"]}
    installed(vllm=servers)
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: brings)
    return servers, brings


@pytest.mark.parametrize(
    "method, told", [(None, "one-hot drafts"), ("probabilistic", "drawn drafts")]
)
def test_vllm_is_named_by_its_distribution_and_set_as_it_says(vllm, tmp_path, method, told):
    servers, _ = vllm
    options = {} if method is None else {"draft_sample_method": method}
    engine = open_example("vllm_cpu.py", tmp_path, **options)
    assert (engine.name, engine.version) == ("vllm-cpu", "0.32.0")
    assert engine.options == f"float32, {told}"
    assert os.environ["HF_HUB_OFFLINE"] == "1" and "VLLM_CPU_KVCACHE_SPACE" in os.environ
    assert list(engine.modes) == ["plain", "draft", "lookup"] and not servers.started
    for generate in engine.modes.values():
        assert generate(PROMPTS, 4, Sampling(), 0) == [[7] * 4] * 2
    models, settings = zip(*servers.started, strict=True)
    assert set(models) == {str(tmp_path / "wide" / "target")}
    assert all(given["dtype"] == "float32" for given in settings)
    plain, draft, lookup = (given["speculative_config"] for given in settings)
    assert plain is None
    assert draft == {
        "method": "draft_model",
        "model": str(tmp_path / "wide" / "draft"),
        "draft_sample_method": method or "greedy",
        "num_speculative_tokens": 3,
        "max_model_len": 128,
    }
    assert lookup == {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
        "num_speculative_tokens": 3,
    }


def test_vllm_writes_what_is_asked_with_a_seed_for_each_text(vllm, tmp_path):
    servers, _ = vllm
    engine = open_example("vllm_cpu.py", tmp_path)
    engine.modes["draft"](PROMPTS, 4, Sampling(0.5, top_p=0.9), 10)
    [(given, settings)] = servers.asked
    assert given == [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    common = {"temperature": 0.5, "max_tokens": 4, "ignore_eos": True, "detokenize": False}
    common |= {"top_k": 0, "top_p": 0.9}
    assert settings == [common | {"seed": 10}, common | {"seed": 11}]


def test_vllm_starts_an_engine_a_mode_and_counts_over_all_of_them(vllm, tmp_path):
    servers, _ = vllm
    engine, counts = open_example("vllm_cpu.py", tmp_path), Counter()
    for mode in ("plain", "draft", "draft", "lookup", "plain"):
        engine.modes[mode](PROMPTS, 4, Sampling(), 0)
        counts.update(drafted=5 * (mode != "plain"), accepted=2 * (mode != "plain"))
        assert engine.counts() == counts
    assert len(servers.started) == 4


@pytest.mark.parametrize("names, told", [(["vllm", "vllm-cpu"], "vllm or vllm-cpu"), ([], "vllm")])
def test_vllm_says_what_may_have_brought_it(vllm, tmp_path, names, told):
    vllm[1]["vllm"] = names
    assert open_example("vllm_cpu.py", tmp_path).name == told
