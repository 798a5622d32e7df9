"""The project's files agree: pins stand once, commands and layout are what the README says."""

import re
import subprocess
import sys

import pytest
from series import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # tomllib came with Python 3.11; pip brings the same parser under another name
    from pip._vendor import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERIES = PROJECT["optional-dependencies"]["series"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_dependency_is_pinned_in_pyproject():
    assert all(re.match(r"[a-z-]+==[\d.]+(; |$)", pin) for pin in SERIES)
    pinned = {pin.split("==")[0] for pin in SERIES}
    assert {re.split(r"[>=]", d)[0] for d in PROJECT["dependencies"]} <= pinned


def test_versions_are_pinned_nowhere_else():
    for name in ("Makefile", "environment.yml", "README.md", ".ci/run"):
        assert not re.search(r"==\s*\d", read(name)), f"{name} pins a version"


def test_make_conda_and_readme_install_the_same_pins():
    assert "-e '.[series]'" in read("Makefile")
    assert "-e .[series]" in read("environment.yml")
    assert '-e ".[series]"' in read("README.md")


def test_make_and_environment_offer_a_python_that_the_package_allows():
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert f"(3, {low}) <= v <= (3, {int(high) - 1})" in read("Makefile")
    conda = int(re.search(r"python=3\.(\d+)", read("environment.yml")).group(1))
    assert int(low) <= conda < int(high)


def imports_of(path):
    return re.findall(
        r"(?m)^(?:from|import) nanogpt(?:\.(\w+))?(?: import (.*))?", path.read_text()
    )


ORDER = [
    *("data", "cache", "model", "checkpoint", "train", "sampling", "generate", "drafts"),
    *("speculative", "exact", "checks", "gallery", "theory", "adaptive", "fused", "figures"),
    *("bench", "demo"),
]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "nanogpt").rglob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_imports_run_downward_only(path):
    above = ORDER[: ORDER.index(path.relative_to(ROOT / "nanogpt").parts[0].removesuffix(".py"))]
    for module, names in imports_of(path):
        for name in [module] if module else names.split(", "):
            assert name in above, f"{path.name} imports {name}, which stands below it"


def test_nothing_but_random_source_and_training_draws_random_numbers():
    draws = r"manual_seed|np\.random|torch\.rand|multinomial|import random"
    for path in (ROOT / "nanogpt").rglob("*.py"):
        own = r"torch\.Generator\(\)\.manual_seed|torch\.rand\w*\([^\n]*generator=generator\)"
        found = re.findall(draws, re.sub(own, "", read(path)))
        allowed = {
            "sampling.py": ["np.random"],
            "train.py": ["manual_seed"] * 2,
        }
        assert found == allowed.get(path.name, []), f"{path.name}: {found}"


def test_the_corpus_is_not_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert "tinyshakespeare" not in listed.stdout


def test_the_modules_run_from_any_folder(tmp_path):
    for module in ("nanogpt.data", "nanogpt.train"):
        command = [sys.executable, "-m", module] + ["--help"] * (module == "nanogpt.train")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
