# make demo   train a small model on generated data, score it, translate with it (5 minutes on 2 cores)
# make test   lint and every test
# make lint   ruff and mypy
# make check  for a change in progress: lint, the tests of changed files, and the contract of a mechanism (BASE=main: since main)
# make release   sdist and wheel in dist, built twice with the same bytes; the wheel is tried in an empty environment
#                (URL=https://HOST/OWNER/NAME: the public address of the repository, for [project.urls])
# make minimum   the tests with the oldest versions that pyproject.toml allows, in .venv-minimum (TESTS=tests: all of them)
# make results   docs/results.md from its data in docs/results
# make sbom   packages of weft and its extras, and their licences, in dist/sbom.json; ADVISORIES=all.zip adds known advisories
# make docs   the documentation as a site in docs/_build/html, which needs no network and no server
#
# Each sets up .venv on a fresh machine first, and again only when pyproject.toml or constraints.txt have changed.
# PYTHON chooses the interpreter (3.11 or newer), JOBS the number of test processes.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
INPUTS := pyproject.toml constraints.txt

BASE ?= HEAD

.PHONY: demo test check lint style docs release minimum results sbom browser clients clean
.DELETE_ON_ERROR:

demo: $(VENV)/.weft-installed
	$(BIN)/weft demo

# A command with mypy beside it, which uses one core, and whose messages come last.
WITH_MYPY = $(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & mypy=$$!; ( $(1) ); tests=$$?; \
  wait $$mypy || tests=1; cat $(VENV)/mypy.txt; exit $$tests

# One thread a process: the processes share the cores already. Bytecode is written, for tests start many processes. Each process
# begins with a part of the tests in their order, so that a fixture of a module is made once, and takes over from the other.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: style browser clients
	@$(call WITH_MYPY,$(PYTEST))

check: style
	@$(call WITH_MYPY,$(BIN)/python -m tests.helpers.changed_tests $(BASE) | while read -r line; do \
	  echo "pytest $$line"; eval "$(PYTEST) -q $$line" || exit 1; done)

lint: style
	$(BIN)/mypy

style: $(VENV)/.weft-dev-installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# Warnings are errors: a broken link, a page in no table of contents, a docstring that cannot be shown.
docs: $(VENV)/.weft-docs-installed
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Of the last commit. setuptools builds without a network; the smoke test installs the dependencies from the package index.
release: $(VENV)/.weft-dev-installed
	$(PIP) install --quiet -c constraints.txt setuptools
	$(BIN)/python deploy/release.py $(if $(URL),--url '$(URL)')

# Everything that weft needs at its oldest version, every extra included, with the tools of the tests.
TESTS ?= tests
EVERY := dev,hub,datasets,languages,ja,ko,trackio,wandb,mlflow,docs,notebooks
OLD := .venv-minimum/bin/python
minimum:
	@test -x $(OLD) || $(PYTHON) -m venv .venv-minimum
	$(PYTHON) deploy/minimum_versions.py > .venv-minimum/constraints.txt
	$(OLD) -m pip install --quiet -c .venv-minimum/constraints.txt -e '.[$(EVERY)]'
	OMP_NUM_THREADS=1 $(OLD) -m pytest -q -n $(JOBS) --dist worksteal $(TESTS)

results: $(VENV)/.weft-installed
	$(BIN)/python docs/results.py

sbom: $(VENV)/.weft-installed
	$(BIN)/python deploy/sbom.py --extras all --out dist/sbom.json $(if $(ADVISORIES),--advisories $(ADVISORIES))

# Tests of pages drive Debian's Chromium; without it they are skipped, and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } || \
	  echo "NO BROWSER TESTS: install chromium and chromium-driver to run them"

# Tests of the server ask it with programs of others; without them they are skipped, and say so.
clients: $(VENV)/.weft-dev-installed
	@test -d $(VENV)/clients/node_modules/axe-core || \
	  { command -v npm >/dev/null && mkdir -p $(VENV)/clients && \
	    npm install --silent --prefix $(VENV)/clients libretranslate@1.0.1 translate@3.1.0 axe-core@4.14.0 >/dev/null 2>&1; } || \
	  echo "NO TESTS WITH npm's CLIENTS AND axe: install node and npm to run them"
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light >/dev/null; } || \
	  echo "NO TESTS WITH nginx: install it to run them"
	@test -x $(VENV)/fuzz/bin/schemathesis || \
	  { $(BIN)/python -m venv $(VENV)/fuzz && $(VENV)/fuzz/bin/pip --disable-pip-version-check install --quiet schemathesis==4.32.5; } || \
	  echo "NO TESTS WITH schemathesis: it cannot be installed"

clean:
	rm -rf $(VENV) .venv-minimum docs/_build

$(VENV)/.weft-torch-installed: $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit("weft needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "$(TORCH)"
	@touch $@

$(VENV)/.weft-installed: $(VENV)/.weft-torch-installed
	$(PIP) install --quiet -c constraints.txt -e '.[dates,plots]'
	@touch $@

$(VENV)/.weft-dev-installed: $(VENV)/.weft-torch-installed
	$(PIP) install --quiet -c constraints.txt -e '.[dev,docs,notebooks]'
	@touch $@ $(VENV)/.weft-installed $(VENV)/.weft-docs-installed

$(VENV)/.weft-docs-installed: $(VENV)/.weft-torch-installed
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.weft-installed
