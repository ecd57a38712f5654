# Everything runs in .venv; `make VENV=somewhere demo` uses another folder.
VENV   ?= .venv
NEW    := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c '$(NEW)' 2>/dev/null && echo $$python && break; done)
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# What releases are made and looked at with, apart from .venv so that its versions stay as they are.
TOOLS  ?= build/tools
LOCKED := install --quiet --require-hashes --no-deps --only-binary :all: -r
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/confide/version.py)

# `make sbom` looks at SITE. If that is not an environment of your own, it is made of these:
SITE   ?= build/site
LOCK   ?= locks/site.txt
TORCH  ?= $(shell sed -n '/^torch==/p' constraints.txt)
BOM    ?= dist/confide-$(VERSION).cdx.json

# Which pairs `make test-real` runs over real processes.
REAL   ?= fedavg-tagger or fedner-tagger or feded-relations or lazy-mil-bags-pcnn

.PHONY: release demo test test-real test-slow test-browser fuzz lint format docs tables lock wheel dist try-wheel sbom audit clean help
.DEFAULT_GOAL := help

help:       ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

demo: $(VENV)/.installed  ## install into .venv, then train one model for three made-up sites (three minutes)
	PYTHONDONTWRITEBYTECODE= $(BIN)/confide demo
	@command -v confide >/dev/null || echo "To call it by its name in this shell: source $(BIN)/activate"

test: $(VENV)/.installed-dev  ## every test but the slow ones (seven minutes on two cores)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test-real: $(VENV)/.installed-dev  ## of the slow tests: the numbers over real processes and TLS, and no text in their frames (three minutes)
	$(BIN)/python -m pytest -m slow tests/flare/test_real_methods.py -k "($(REAL)) and not context and not take_model"

test-slow: $(VENV)/.installed-dev  ## the slow tests, two at a time (three quarters of an hour on two cores: processes, networks, disks and certificates)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile many -n 2 --dist loadgroup

test-browser: $(VENV)/.installed-browser  ## of the slow tests: the pages and the report in Debian's chromium (two minutes)
	@command -v chromium >/dev/null || { echo "chromium is missing: apt-get install --no-install-recommends chromium"; exit 1; }
	$(BIN)/python -m pytest -m slow tests/serve/test_browser.py tests/report/test_widths.py

fuzz: $(VENV)/.installed-dev  ## a month of nights of fuzzers, each date a seed; stop it, and it goes on (NIGHTS=1: tonight's)
	@mkdir -p build
	$(BIN)/python benchmarks/security/fuzz/run.py all --nights $(or $(NIGHTS),30) --record build/fuzz.jsonl

lint: $(VENV)/.installed-dev  ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## put the code in its style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-docs  ## the docs as a site in build/docs; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/docs/index.html

tables: $(VENV)/.installed-dev  ## write the tables of the docs that come from the code: settings, command line, wire, formats, codes
	$(BIN)/python tests/doctables.py
	$(BIN)/python tests/wire/test_wire.py
	PYTHONPATH=tests $(BIN)/python tests/text/formats/test_pages.py
	PYTHONPATH=tests $(BIN)/python tests/flare/test_deployment_page.py

lock: $(TOOLS)/.installed  ## make the lock files in locks/ anew, from constraints.txt and the package index
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/python locks/make.py

wheel: $(TOOLS)/.installed  ## build the wheel into dist/, and print its sha256
	rm -rf build/lib build/bdist.* dist/confide-*.whl
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)} \
	    $(TOOLS)/bin/python -m build --wheel --no-isolation --outdir dist . > build/wheel.log || { cat build/wheel.log; exit 1; }
	@cd dist && sha256sum confide-$(VERSION)-*.whl | tee SHA256SUMS
	@echo "confide==$(VERSION) --hash=sha256:$$(cut -d' ' -f1 dist/SHA256SUMS)" > dist/confide.txt

dist: wheel  ## the wheel, and the sdist beside it; both reproducible, with their sha256
	rm -f dist/confide-*.tar.gz
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)} \
	    $(TOOLS)/bin/python .ci/sdist.py dist > build/sdist.log || { cat build/sdist.log; exit 1; }
	@cd dist && sha256sum confide-$(VERSION).tar.gz | tee -a SHA256SUMS

release: dist try-wheel sbom docs  ## a version from a clean commit: wheel, sdist, bill of materials, hashes, docs, and the tag to push
	@test -z "$$(git status --porcelain)" || { echo "commit first: a release is made from a commit"; exit 1; }
	@grep -q '^## \[$(VERSION)\]' CHANGELOG.md || { echo "CHANGELOG.md has no section [$(VERSION)]"; exit 1; }
	@grep -q '^version: $(VERSION)$$' CITATION.cff || { echo "CITATION.cff names another version"; exit 1; }
	tar -C build -czf dist/confide-$(VERSION)-docs.tar.gz docs
	cd dist && sha256sum confide-$(VERSION)-*.whl confide-$(VERSION).tar.gz confide-$(VERSION).cdx.json confide-$(VERSION)-docs.tar.gz > SHA256SUMS
	git tag --annotate v$(VERSION) --message "confide $(VERSION)"
	@echo "dist/ holds the release; push it: git push origin v$(VERSION)"

try-wheel: dist  ## install the wheel and nothing else into a fresh environment, and use it outside this folder
	$(PYTHON) -m venv --clear build/try
	build/try/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt dist/confide-$(VERSION)-*.whl
	cd build/try && bin/python $(CURDIR)/.ci/try_wheel.py

sbom: $(TOOLS)/.installed $(if $(filter build/site,$(SITE)),build/site/.installed)  ## CycloneDX bill of materials into dist/
	@mkdir -p $(dir $(BOM)) build && cp LICENSE build/
	@sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/pyproject.toml
	$(TOOLS)/bin/cyclonedx-py environment --pyproject build/pyproject.toml --mc-type application \
	    --gather-license-texts --output-reproducible --validate --output-file $(BOM) $(SITE)/bin/python
	@echo $(BOM)

audit: $(TOOLS)/.installed  ## look all locked packages up among known vulnerabilities (asks the internet)
	@$(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off $(AUDIT) \
	    -r locks/site.txt -r locks/torch.txt || { echo; \
	    echo "audit: FAILED. Either vulnerabilities are named above, or the service that knows them was not"; \
	    echo "reached, or does not know a package: then nothing can be said of the packages. Ask again where the"; \
	    echo "internet is, or another service: make audit AUDIT='--vulnerability-service osv'"; exit 1; } >&2

clean:      ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# pip compiles every file on one core; Python compiles what a demo imports when it is imported.
# The stamps are older than pyproject.toml or constraints.txt only when something must be installed anew.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "confide needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "pip installs into $(VENV) without a word: a minute or more"
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	-@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-browser: pyproject.toml constraints.txt | $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint constraints.txt --editable ".[browser]"
	@touch $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

$(TOOLS)/.installed: locks/tools.txt
	@test -n "$(PYTHON)" || { echo "confide needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check $(LOCKED) locks/tools.txt
	@touch $@

# PyTorch's build for processors is on PyTorch's own index: TORCH may be a file, or options of pip.
build/site/.installed: $(LOCK) pyproject.toml $(shell find src -name '*.py' 2>/dev/null)
	$(MAKE) --no-print-directory wheel
	$(PYTHON) -m venv --clear build/site
	build/site/bin/python -m pip --disable-pip-version-check $(LOCKED) $(LOCK)
	build/site/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: $(TORCH)
	build/site/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-index dist/confide-$(VERSION)-*.whl
	build/site/bin/python -m pip --disable-pip-version-check check || { \
	    echo "for PyTorch's build for processors: make sbom TORCH=path/to/its.whl"; \
	    echo "for its CUDA build: make sbom TORCH='--require-hashes -r locks/torch.txt'"; exit 1; }
	@touch $@
