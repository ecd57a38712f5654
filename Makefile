# Everything runs in .venv; `make VENV=somewhere demo` uses another folder.
VENV   ?= .venv
NEW    := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c '$(NEW)' 2>/dev/null && echo $$python && break; done)
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-real test-slow lint format clean help
.DEFAULT_GOAL := help

help:       ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

demo: $(VENV)/.installed  ## install into .venv, then train on three made-up sites (about two minutes)
	$(BIN)/confide demo

test: $(VENV)/.installed-dev  ## every test but the slow ones (under ten minutes)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-real: $(VENV)/.installed-dev  ## of the slow tests: the numbers over real processes and TLS, and no text in their frames (five minutes)
	$(BIN)/python -m pytest -m slow tests/flare/test_real_methods.py -k "(ner-fedavg or ner-fedner or re-feded or bags-lazy-mil-pcnn) and not context and not take_model"

test-slow: $(VENV)/.installed-dev  ## the slow tests, two at a time (under an hour: processes, networks, disks and certificates)
	$(BIN)/python -m pytest -m slow -n 2 --dist loadgroup

lint: $(VENV)/.installed-dev  ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## put the code in its style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:      ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamps are older than pyproject.toml or constraints.txt only when something must be installed anew.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "confide needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@ $(VENV)/.installed
