# make lab   opens the series in JupyterLab        make test  runs the package's tests and every notebook
# make tiny  runs what to run first after a change, in a minute
# make test-all  make test, and what it leaves out: full products, each notebook elsewhere, offline, answered
# Needs Python 3.10 to 3.14 with venv. Another one than python3: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# Arguments for JupyterLab. No browser is opened where there is no screen; the URL is printed anyway.
SCREEN := $(if $(SSH_CONNECTION),,$(if $(filter Darwin,$(shell uname)),yes,$(DISPLAY)$(WAYLAND_DISPLAY)))
LAB := --allow-root $(if $(SCREEN),,--no-browser)
# Linux without an NVIDIA GPU: PyTorch's CPU build, 1.6 GB with all the rest instead of 5. Empty: pip's own choice.
TORCH_INDEX ?= $(if $(filter Linux,$(shell uname)),$(if $(shell command -v nvidia-smi 2> /dev/null),,https://download.pytorch.org/whl/cpu))

.PHONY: lab test tiny test-all rest demo bench notebooks minutes book browser check lint
# The reader works in a copy, without outputs: no prediction is answered before it is made.
lab: .venv/installed
	$(BIN)/nanogpt data
	$(BIN)/nanogpt course --copy my_notebooks
	$(BIN)/jupyter lab $(LAB) --LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb

test: .venv/installed
	$(BIN)/python -m pytest

# The decoder's five files, chapter 07 as nbval runs it, and one bug caught.
tiny: .venv/installed
	$(BIN)/python -m pytest -n 2 notebooks/07_speculative_generate.ipynb tests/test_model.py tests/test_sampling.py tests/test_generate.py tests/test_speculative.py tests/test_tiny.py

test-all: test rest

# What make test leaves out.
rest: .venv/installed
	$(BIN)/python -m pytest -m '(alone or wide) and not slow' tests

# Other settings: make demo DEMO="--prompt JULIET: --K 2 --temperature 0.8 --seed 1 --tokens 200"
demo: .venv/installed
	$(BIN)/nanogpt demo $(DEMO)

# The long tour, book/measured.md: make bench BENCH=--all
bench: .venv/installed
	$(BIN)/nanogpt bench $(BENCH)

# Executes the notebooks top to bottom and stores their outputs; one alone: make notebooks NB=notebooks/01_nanogpt.ipynb
NB ?= notebooks/*.ipynb
notebooks: .venv/installed
	$(BIN)/jupyter nbconvert --to notebook --inplace --execute --ExecutePreprocessor.record_timing=False $(NB)
	$(BIN)/jupyter nbconvert --to notebook --inplace --coalesce-streams --log-level=WARN $(NB)
	$(BIN)/python tests/minutes.py

# Counts words, lines and exercises, and writes the minutes into each opening and the README.
minutes: .venv/installed
	$(BIN)/python tests/minutes.py

# The reading copy in build/book: a static site, and beside it an EPUB and a page to print.
book: .venv/book
	$(BIN)/python book/build.py

# The book, its two pages to play with, and every chapter in JupyterLab, in a real Chromium (from
# the PATH, or $CHROMIUM). Skipped where there is none.
browser: .venv/browser book
	$(BIN)/python -m pytest -n 2 tests/browser

# What is quick to say of a change: style, form, and whether notebooks, prose and package agree.
check: lint
	$(BIN)/python -m pytest tests/test_series.py tests/test_project.py tests/test_docstrings.py tests/test_figures.py

# Style, types and form. Where a chapter leaves the form of the others is a warning, and fails nothing.
lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/check_form.py
	$(BIN)/python tests/minutes.py --check
	$(BIN)/python tests/budget.py --check

# What these two need besides, once.
.venv/book .venv/browser: .venv/installed
	$(PIP) -q -e '.[series,$(@F)]'
	@touch $@

.venv/installed: pyproject.toml
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 14) or sys.exit(f'error: $(PYTHON) is Python {v[0]}.{v[1]}; this needs 3.10 to 3.14: make PYTHON=python3.12 …')"
	@[ -w . ] || { echo "error: $(CURDIR) cannot be written: copy the project to where you may write" >&2; exit 1; }
	@mkdir .installing 2> /dev/null || { echo "error: another make is installing into .venv: run this again when it is done (if there is none: rmdir .installing)" >&2; exit 1; }
	@trap 'rmdir .installing' EXIT; trap 'exit 1' INT TERM; set -e; \
	echo "installing PyTorch, JupyterLab and the rest into .venv: once, a few minutes"; \
	$(PYTHON) -m venv .venv; \
	torch=$$(sed -n 's/^ *"\(torch==.*\)",/\1/p' pyproject.toml); \
	[ -z "$(TORCH_INDEX)" ] || $(PIP) --no-deps --retries 1 --timeout 20 --index-url "$(TORCH_INDEX)" "$$torch" \
	|| echo "note: $$torch did not come from $(TORCH_INDEX): pip takes its usual build instead, on Linux with several GB of GPU libraries"; \
	$(PIP) -e '.[series]'; \
	mkdir -p .venv/share/jupyter/lab/settings; \
	echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' > .venv/share/jupyter/lab/settings/overrides.json; \
	touch $@
