# `make demo` and `make test` set up their own environment in .venv; nothing is installed outside this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Without "compat" each Python of the environment would first load a finder of this package: half of what a start takes.
INSTALL := $(PIP) -c constraints.txt --config-settings editable_mode=compat

.PHONY: demo demo-fleet test soak slurm audit lint lint-types lint-rest compiled-tests bench simulation setup clean

demo: $(VENV)/.installed
	@$(BIN)/python -m tests.demo.demo

demo-fleet: $(VENV)/.installed
	@$(BIN)/python -m tests.fleet.demo

# One process compiles the tests for the six that run them: each would compile all of them otherwise.
test: $(VENV)/.installed-dev compiled-tests
	$(BIN)/python -m pytest

soak: $(VENV)/.installed-dev
	FUZZ=soak $(BIN)/python -m pytest -n 4 -m 'soak or fuzz'

# On a real Slurm of four nodes on this machine: root, and Debian's slurm-wlm.
slurm: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 0 -m optin -rs --timeout 400 tests/slurm

audit: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.audit

lint: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory -j2 lint-types lint-rest

lint-types:
	$(BIN)/mypy

lint-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m bench.house --check
	$(BIN)/python docs/words.py

compiled-tests: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n 0 --collect-only -qq >/dev/null || true

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench

simulation: $(VENV)/.installed-dev
	$(BIN)/python -m bench.decisions --quick --output build/simulation.txt

setup: $(VENV)/.installed-dev

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "rl-supervisor needs Python 3.11 or newer: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rl-supervisor needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1): install a newer one and call make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: apt-get install $(notdir $(PYTHON))-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@command -v cc >/dev/null || command -v gcc >/dev/null || $(PIP) ziglang
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .demo .bench build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
