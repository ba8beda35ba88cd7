# Every target does its own set-up: a fresh clone needs python3 (>= 3.11), and `go` for the tests' real control plane.
PYTHON ?= python3
BIN := .venv/bin
# Not compiled ahead: what runs is compiled at its first import, and most of what is installed never runs here.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Every test of a process starts some: without compiled modules each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

TRAIN := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vramcast/train-$(shell sha256sum requirements/train.txt | cut -c1-12)

.DEFAULT_GOAL := help
.PHONY: help install run controlplane test test-units test-e2e test-fast lint format dist bench predictors lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/serve.stamp: requirements/serve.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("vramcast needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing vramcast into .venv"
	@$(PIP) install --no-compile --require-hashes -r requirements/build.txt -r requirements/serve.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: .venv/serve.stamp requirements/dev.txt
	@echo "installing the development tools into .venv"
	@$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

# torch is gigabytes and only training needs it: once per pinned version, in the user's cache.
$(TRAIN)/ready:
	@echo "installing what training needs into $(TRAIN) (some minutes, once)"
	@rm -rf $(TRAIN) && mkdir -p $(dir $(TRAIN)) && $(PYTHON) -m venv $(TRAIN)
	@$(TRAIN)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --no-cache-dir \
	  --require-hashes -r requirements/train.txt
	@touch $@

install: .venv/serve.stamp ## put vramcast into .venv/bin

run: .venv/serve.stamp ## the service on an embedded demo cluster, with a scripted day of training pods
	@$(BIN)/vramcast demo

controlplane: .venv/dev.stamp
	@$(BIN)/python -m tests.controlplane build

test: lint controlplane $(TRAIN)/ready ## everything: linters, units, training, and end to end on a real control plane
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-units test-e2e

# Side by side: what runs end to end waits most of the time.
test-units: .venv/dev.stamp $(TRAIN)/ready
	@$(BIN)/python -m pytest --ignore=tests/e2e --ignore=tests/chart --ignore=tests/train --ignore=tests/profiling
	@PYTHONPATH=service $(TRAIN)/bin/python -m pytest tests/train tests/profiling

test-e2e: .venv/dev.stamp
	@$(BIN)/python -m pytest tests/e2e tests/chart

test-fast: .venv/dev.stamp ## the unit tests alone: seconds
	@$(BIN)/python -m pytest -m "not e2e" --ignore=tests/train --ignore=tests/profiling

lint: .venv/dev.stamp ## ruff, mypy --strict, import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: .venv/dev.stamp ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

DIST ?= dist

dist: .venv/dev.stamp controlplane ## the wheel and the chart, into dist/
	@mkdir -p $(DIST)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@$(BIN)/python -m tests.controlplane helm package helm/vramcast --destination $(DIST)

bench: .venv/dev.stamp controlplane ## every benchmark; results go to docs/benchmarks
	@$(BIN)/python bench/filter.py --out docs/benchmarks/filter.md
	@$(BIN)/python -m bench.scheduler --out docs/benchmarks/scheduler.md

predictors: $(TRAIN)/ready ## every predictor on the same rows into docs/predictors.md: make predictors DATA=DIR
	@test -n "$(DATA)" || { echo "which measurements? make predictors DATA=DIR" >&2; exit 1; }
	@$(TRAIN)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes \
	  -r requirements/predictors.txt
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.predictors --data $(DATA) --out docs/predictors.md $(ARGS)

lock: .venv/dev.stamp ## pin every dependency with hashes (no index address is written)
	@$(PIP) install uv
	@for target in "build requirements/build.in" "serve pyproject.toml" "dev pyproject.toml --extra dev" \
	    "train pyproject.toml --extra train --extra catalog --extra dev" \
	    "predictors pyproject.toml --extra train --extra predictors --constraints requirements/train.txt"; do \
	  set -- $$target; name=$$1; shift; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	    --custom-compile-command "make lock" "$$@" --output-file requirements/$$name.txt || exit 1; \
	done

clean: ## remove what was installed here (the built control plane stays in the user's cache)
	@rm -rf .venv build dist
