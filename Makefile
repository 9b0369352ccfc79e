# `make run` and `make test` set everything up themselves, in .venv, from a bare Python 3.10+ with pip.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
NATIVE := CMakeLists.txt $(wildcard src/kvpact/native/*.?pp src/kvpact/native/kernels/*)
NATIVE_TESTS := $(MAKE) -j2 --no-print-directory --directory src/kvpact/native/tests OUT=$(CURDIR)/build
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test lint docs slow invariance bench sanitize clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

run: $(STAMP) ## a real model answers a batch of very different prompts; ARGS="..." goes to `kvpact run`
	@$(BIN)/kvpact run $(ARGS)

test: lint ## lint, types and every test but the slow ones
	$(BIN)/python -m pytest -n 2

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(STAMP) ## write docs/rules and docs/symptoms.md from the doctor's rules; ARGS=--repeats runs their first doubles again
	@$(BIN)/python -m kvpact.doctor.report.docs $(ARGS)

slow: $(STAMP) ## the tests marked slow: half an hour and more
	$(BIN)/python -m pytest -n 2 -m slow

invariance: $(STAMP) ## the promise bit for bit: every axis and every pair of axes, on every architecture and the built-in model
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m invariance

bench: $(STAMP) ## kvpact against each peer that installs, then every script in benchmarks/; ARGS="..." goes to the comparison
	@$(BIN)/python benchmarks/peers/setup.py
	@$(BIN)/python benchmarks/peers/compare.py $(ARGS)
	@set -e; for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(BIN)/python "$$script"; done

sanitize: ## the compiled core's own tests under AddressSanitizer, UBSan and ThreadSanitizer; needs only a C++ compiler
	+@$(NATIVE_TESTS)/asan SANITIZE=address,undefined
	+@$(NATIVE_TESTS)/tsan SANITIZE=thread PROGRAMS='core threads'

clean: ## remove the environment and everything built
	rm -rf $(VENV) .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Build isolation is off so that the build tools, too, are the pinned ones.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10 python; do \
	  if "$$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "kvpact needs Python 3.10 or newer with venv and pip; name one: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$("$$found" --version): once, a few minutes" >&2; \
	"$$found" -m venv $(VENV)
	@echo "  1 of 2: build tools" >&2
	@$(PIP) scikit-build-core nanobind cmake ninja
	@echo "  2 of 2: torch and the other packages, and the compiled core; silent until it is done" >&2
	@if [ -z "$$KVPACT_PURE" ] && ! command -v "$${CXX:-c++}" g++ clang++ >/dev/null; then \
	  echo "no C++ compiler found: KVPACT_PURE=1, kvpact goes in without its compiled core" >&2; export KVPACT_PURE=1; \
	fi; \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --editable '.[test]'
	@touch $@
