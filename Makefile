# Everything a user or a contributor runs; plain venv and pip.
#
#   make train                        install, then the main job: two minutes on two cores
#   make train ARGS="--steps 10"      any flag of `arl train`
#   make test | test-fast | lint      all tests | under two minutes | ruff and pyright
#   make clean                        remove what make made, never runs/

PYTHON ?= python3
VENV ?= .venv
# Installed first and alone: a bare range would pull the newest CUDA build, gigabytes of it.
TORCH ?= torch==2.13.0
# Package index to take torch from, e.g. one with CPU builds; empty: pip's own setting.
TORCH_INDEX ?=
ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install
say = @printf '\033[1m==>\033[0m %s\n'

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help train install install-test test test-fast lint clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

train: install
	$(BIN)/arl train --env math --agent react $(ARGS)

test: install-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: install-test
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find agentgym_rl envs agents sandboxes tests examples benchmarks \
	    -name __pycache__ -prune -exec rm -rf {} +

# Stamps: a repeated run installs nothing unless pyproject.toml changed.
install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	    f"agentgym-rl needs Python 3.11 or newer; $(PYTHON) is {v.major}.{v.minor}: make PYTHON=...")'
	$(say) "virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.venv
	$(say) "installing $(TORCH) (the largest download)"
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(say) "installing agentgym-rl and what it needs"
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(say) "installing the test tools"
	$(PIP) -e '.[test]'
	@touch $@
