# `make demo` and `make test` do all set-up: .venv is built from requirements.lock with pip, or with uv when it is on PATH.

PYTHON ?= python3
WORKERS ?= 2
UPGRADE ?=
FUZZ_HOURS ?= 0.05
FUZZ_SEED ?= 0
FUZZ_JUDGE ?=

BIN := .venv/bin
LOCKED := .venv/.locked
READY := .venv/.ready

# One thread per worker. Tests share what they compile in a folder of their own run (tests/conftest.py); benchmarks share nothing.
ONE_THREAD := OMP_NUM_THREADS=1 MPLBACKEND=Agg \
	XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: demo test test-full test-latest pytest lint docs bench fuzz lock clean help

demo: $(READY)  ## Write the first figures to figures/ and print the agreement table
	MPLBACKEND=Agg $(BIN)/widefield gallery run segadlo-1 prior-regression bauer-transition --out figures

test: lint pytest  ## Lint, types and tests

test-full: lint  ## The same with the long statistics
	$(PYTEST) -m "full or not full"

test-latest:  ## The tests with the newest releases of all dependencies, in an environment of their own
	$(PYTHON) -m venv --clear .venv-latest
	.venv-latest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[cluster,data,dev]"
	$(MAKE) pytest BIN=.venv-latest/bin

pytest:
	$(PYTEST)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## HTML pages in docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(READY)  ## Benchmarks: ratios within one run, one thread
	$(ONE_THREAD) JAX_ENABLE_COMPILATION_CACHE=false $(BIN)/python benchmarks/run.py

fuzz: $(READY)  ## Random questions against independent judges: FUZZ_HOURS=0.05 FUZZ_SEED=0 FUZZ_JUDGE=
	$(ONE_THREAD) $(BIN)/python -m fuzz --hours $(FUZZ_HOURS) --seed $(FUZZ_SEED) --judge "$(FUZZ_JUDGE)"

lock:  ## Refresh requirements.lock (UPGRADE=1 also moves to newer versions); needs uv
	@command -v uv >/dev/null || { echo "make lock needs uv on PATH (pip install uv)." >&2; exit 1; }
	uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links \
		--extra cluster --extra data --extra dev --extra docs $(if $(UPGRADE),--upgrade) \
		--custom-compile-command "make lock" --quiet \
		--output-file requirements.lock pyproject.toml requirements.in

clean:  ## Remove the environment, figures, pages and caches
	rm -rf .venv .venv-latest figures docs/_build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

# Everything that is locked. Built from scratch, so that nothing of an older lock stays behind.
$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found=$$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo "not found"); \
		echo "widefield needs Python 3.11 or newer; '$(PYTHON)' is $$found." >&2; \
		echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	rm -rf .venv
	@set -e; if command -v uv >/dev/null; then \
		echo "Building .venv with uv"; \
		uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv; \
		uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; \
	else \
		echo "Building .venv with pip (a few minutes)"; \
		$(PYTHON) -m venv .venv; \
		$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock; \
		$(BIN)/python -m pip uninstall --quiet --yes setuptools; \
	fi
	@touch $@

# The package itself, editable.
$(READY): $(LOCKED) pyproject.toml
	@set -e; if command -v uv >/dev/null; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .; \
	else \
		$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	fi
	@touch $@
