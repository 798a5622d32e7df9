"""What the tests share: one thread per process, tiny models, and the devices to run them on."""

import copy
import functools
import gc
import itertools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the notebooks' kernels inherit it
# So that all that is tested, here and in processes that tests start, is the package beside it,
# whatever checkout was installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.getenv("PYTHONPATH")]))

import budget
import pytest
import torch
import warm
from jupyter_client.provisioning import local_provisioner
from pretend import Pretend

from nanogpt import checkpoint, data
from nanogpt.drafts import ngram, transformer
from nanogpt.model import GPTConfig, GPTLanguageModel
from nanogpt.proof import toys
from nanogpt.trees.tree import ReadText

torch.set_num_threads(1)
local_provisioner.launch_kernel = warm.launcher(local_provisioner.launch_kernel)

SHARED = []  # (a toy, its weights as it was made)


def words_in(picture):
    """What is written in a picture, in the order of drawing."""
    texts = (text.get_text() for text in picture.axes[0].texts)
    return [text.replace("\n", " ") for text in texts if text]


def weights(toy):
    """Type, place and count of changes of each weight."""
    return [(p.dtype, p.device, p._version) for p in toy.parameters()]


@functools.cache
def shipped_tree():
    return load_tree()


def load_once(path=ngram.DISTILLED, least=0.0):
    """ngram.load; the shipped tree, which takes a second and nothing writes into, is read once."""
    if path != ngram.DISTILLED or not 0 <= least <= 1:
        return load_tree(path, least)
    tree = copy.copy(shipped_tree())
    tree.least = least
    return tree


load_tree, ngram.load = ngram.load, load_once


def watched(make):
    """`make`, of which every test gets the same toys; `toys_stay_as_they_are` knows them."""

    @functools.cache
    def made(*args, **more):
        toy = make.__wrapped__(*args, **more)
        SHARED.append((toy, weights(toy)))
        return toy

    return functools.wraps(make)(made)


toys.toy_target, toys.toy_states = watched(toys.toy_target), watched(toys.toy_states)


@pytest.fixture(autouse=True)
def toys_stay_as_they_are():
    """What moves a toy to another device or type, or trains it, does so to a copy of its own."""
    with torch.inference_mode(False), torch.enable_grad():  # the next test is not to blame
        yield
        assert torch.is_grad_enabled(), "gradients were left off: something was ended half-way"
    changed = [toy for toy, was in SHARED if weights(toy) != was]
    SHARED[:] = [pair for pair in SHARED if pair[0] not in changed]  # the next test is not to blame
    if changed:
        toys.toy_target.cache_clear()
        toys.toy_states.cache_clear()
    assert not changed, "a toy that all tests share was changed: copy.deepcopy it first"


def pytest_configure(config):
    """Where there is no corpus, it is asked for once; without an answer, no process asks again."""
    if hasattr(config, "workerinput") or (data.CORPUS_DIR / data.CORPUS_FILE).exists():
        return
    if data.load_corpus().name == "stand-in":
        offline = Path(__file__).with_name("offline")
        os.environ["PYTHONPATH"] += os.pathsep + str(offline)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whole files to one worker each, as loadfile does, but long tests that need no other alone."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid):
            alone = nodeid.startswith("tests/test_notebooks_alone.py")
            return nodeid if alone else super()._split_scope(nodeid)

    return Scheduler(config, log)


def pytest_collection_finish():
    """What is loaded by now stays: no collection of garbage need look through it again."""
    gc.collect()
    gc.freeze()


def covering(cases):
    """Of cases (tuples of one length), indices of some in which each pair of values occurs.

    Taken one after another: each time the case with the most pairs that did not occur before.
    """
    pairs = [{*itertools.combinations(enumerate(case), 2)} or {case} for case in cases]
    missing, taken = set().union(*pairs), []
    while missing:
        taken.append(max(range(len(cases)), key=lambda i: len(pairs[i] & missing)))
        missing -= pairs[taken[-1]]
    return taken


@pytest.hookimpl(tryfirst=True)  # before pytest itself leaves out what -m does not ask for
def pytest_collection_modifyitems(items):
    """Of a product's cases, what no pair of values needs is wide.

    And a test that is known to take minutes may take an hour before it counts as hung.
    """
    products = {}
    for item in items:
        if item.get_closest_marker("pairs"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in products.values():
        needed = covering([tuple(map(id, item.callspec.params.values())) for item in cases])
        for i, item in enumerate(cases):
            if i not in needed:
                item.add_marker(pytest.mark.wide)
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.timeout(3600))


LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
STARTED, DURATIONS = time.monotonic(), {}


def pytest_runtest_logreport(report):
    """Set-up, call and tear-down of a test add up."""
    DURATIONS[report.nodeid] = DURATIONS.get(report.nodeid, 0) + report.duration


def pytest_unconfigure(config):
    """The last line of a whole run says what it took, beside what is promised."""
    whole = config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword
    if DURATIONS and whole and not hasattr(config, "workerinput"):
        seconds = time.monotonic() - STARTED
        budget.remember(seconds, LOAD, DURATIONS)
        print(budget.took(seconds, LOAD))


def under_the_rule(compare, rtol, atol):
    """`compare` of two tensors, refusing a float32 bound that holds on some processors only.

    float32 sums come in another order, and end in other bits, on another processor: 1e-4 is close
    enough to decode. "The same function" is compared in float64 (CONTRIBUTING, *Floats*).
    """

    @functools.wraps(compare)
    def compared(actual, expected, rtol=rtol, atol=atol, **options):
        if getattr(actual, "dtype", None) == torch.float32 and actual.numel():
            reach = atol + rtol * float(torch.as_tensor(expected).abs().max())
            exact = rtol == atol == 0  # bits, copied and not computed
            assert exact or reach >= 1e-4, (
                f"float32 is compared to {reach:.0e}: allow 1e-4, or compare in float64"
            )
        return compare(actual, expected, rtol=rtol, atol=atol, **options)

    return compared


torch.allclose = under_the_rule(torch.allclose, rtol=1e-5, atol=1e-8)
torch.testing.assert_close = under_the_rule(torch.testing.assert_close, rtol=0, atol=1e-9)


TINY = GPTConfig(vocab_size=11, block_size=12, n_layer=2, n_head=2, n_embd=8)


def read_text(target, prompt, n, layers=None):
    """A text of which all but the current token has been read, in a pass of its own."""
    text = ReadText(target, prompt, n)
    text.read(layers)
    return text


def restarts(made):
    """How often a generation's context began anew: not where the last round left it."""
    pairs = itertools.pairwise(made.rounds)
    return sum(after.position != r.position + len(r.emitted) for r, after in pairs)


def make_model(config=TINY, seed=0, dtype=torch.float64):
    """A random model, in eval mode, with weights large enough that every token matters."""
    torch.manual_seed(seed)
    model = GPTLanguageModel(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()


def random_weights(module, seed=0):
    """The module in float64, frozen, with large random weights: it knows nothing."""
    toys.at_random(seed, module)
    return module


@pytest.fixture
def tiny():
    return make_model()


@pytest.fixture(scope="module")
def pair():
    """The shipped target, its distilled draft, and their tokenizer."""
    target, tokenizer = checkpoint.load()
    return target, checkpoint.load(transformer.DISTILLED)[0], tokenizer


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def whole(low, high, generator):
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def sure(q):
    """How likely a guess is kept, says somebody who does not know."""
    return float(q.max()) ** 0.5


def drained(server):
    """{id: generation} of all that a server has been asked."""
    done = {}
    while server.requests or server.finished:
        done |= server.step()
    return done


def ended(pid, seconds=60.0):
    """Whether the process is gone (or a zombie of somebody else's) within some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


GPUS = ("cuda", "mps")
REAL = [name for name in GPUS if getattr(torch, name).is_available()]
NAMES = [name if name in REAL else f"pretended {name}" for name in GPUS]


@pytest.fixture(params=NAMES)
def device(request):
    """A GPU of each kind that the package runs on: torch's own, or a pretended one (Pretend)."""
    name = request.param.split()[-1]
    if name in REAL:
        yield torch.device(name)
    else:
        with Pretend(name):
            yield torch.device(name)


@pytest.fixture
def floats(device):
    """float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
