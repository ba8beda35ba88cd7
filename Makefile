# A fresh clone needs Python 3.11, plus Go for everything that starts a real control plane or lints the workflows, and
# cc for the end-to-end test that steps a clock.
# Every target installs what it needs; .venv and the user's cache keep it.
PYTHON_VERSION := $(shell cat .python-version)
PYTHON ?= $(if $(shell python$(PYTHON_VERSION) -c 'print(1)' 2>/dev/null),python$(PYTHON_VERSION),python3)
BIN := .venv/bin
# --no-compile below: Python compiles a module when it is first imported, and most of what is installed never is.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Many tests start processes. Without bytecode files each process would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

# torch takes gigabytes and only training needs it: one environment per lock file, in the user's cache.
TRAIN := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vramcast/train-$(shell sha256sum requirements/train.txt | cut -c1-12)

# $(call timed,PART,COMMAND): run the command, print how long it took and keep that for the summary of `make test`.
timed = @begin=$$(date +%s); $(2); code=$$?; \
	printf '%-14s %5d s\n' "$(1)" $$(($$(date +%s) - begin)) | tee ".venv/$(1).time"; exit $$code

.DEFAULT_GOAL := help
.PHONY: help install run controlplane test test-computing test-units test-train test-e2e test-chart test-busy test-fast \
	test-browser screenshots lint format dist bench chaos cluster replay first-answer predictors profiles recordings step-picture lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/serve.stamp: requirements/serve.txt requirements/build.txt pyproject.toml service/build_hook.py \
		service/vramcast/forecast/allocator.c
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("vramcast needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import sys; have = "%d.%d" % sys.version_info[:2]; want = "$(PYTHON_VERSION)"; have == want or \
	  print("note: .venv has Python " + have + "; the image has " + want + ", so tests/image will fail here")'
	@echo "installing vramcast into .venv"
	@$(PIP) install --no-compile --require-hashes -r requirements/build.txt -r requirements/serve.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: .venv/serve.stamp requirements/dev.txt
	@echo "installing the development tools into .venv"
	@$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

$(TRAIN)/ready:
	@echo "installing torch and the rest of training into $(TRAIN) (once, takes minutes)"
	@rm -rf $(TRAIN) && mkdir -p $(dir $(TRAIN)) && $(PYTHON) -m venv $(TRAIN)
	@$(TRAIN)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --no-cache-dir \
	  --require-hashes -r requirements/train.txt
	@touch $@

# Only what the image has: some packages import others, and take more memory, where the development tools are installed.
.venv/serving.stamp: .venv/serve.stamp
	@rm -rf .venv/serving && $(PYTHON) -m venv .venv/serving
	@.venv/serving/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes \
	  -r requirements/build.txt -r requirements/serve.txt
	@.venv/serving/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

install: .venv/serve.stamp ## install vramcast into .venv/bin

run: .venv/serve.stamp ## run the service on an embedded demo cluster with a scripted day of training pods
	@$(BIN)/vramcast demo

controlplane: .venv/dev.stamp
	$(call timed,control-plane,$(BIN)/python -m tests.controlplane build)

PARTS := lint control-plane units browser training end-to-end chart

# Three lanes: one computes, the other two mostly wait. All of them end, and the times are printed, if a test fails.
test: ## linters, unit tests, training tests, end-to-end tests on a real control plane
	@rm -f $(PARTS:%=.venv/%.time)
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory lint controlplane $(TRAIN)/ready && \
	$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target test-computing test-e2e test-chart; \
	code=$$?; echo "time per part:"; cat $(PARTS:%=.venv/%.time) 2>/dev/null; \
	printf '%-14s %5d s\n' "all" $$(($$(date +%s) - begin)); exit $$code

test-computing:
	@$(MAKE) --no-print-directory --keep-going test-units test-browser; units=$$?; \
	$(MAKE) --no-print-directory test-train && exit $$units

test-units: .venv/dev.stamp
	$(call timed,units,$(BIN)/python -m pytest --ignore=tests/e2e --ignore=tests/chart --ignore=tests/browser \
	  --ignore=tests/train --ignore=tests/profiling)

# Chromium comes from Debian. The page is also tested on the real control plane, in tests/e2e.
test-browser: .venv/dev.stamp
	@$(BIN)/python -m tests.browser.chromium > .venv/chromium.path
	$(call timed,browser,$(BIN)/python -m pytest tests/browser)

test-train: $(TRAIN)/ready
	$(call timed,training,PYTHONPATH=service $(TRAIN)/bin/python -m pytest tests/train tests/profiling)

test-e2e: .venv/dev.stamp
	$(call timed,end-to-end,$(BIN)/python -m pytest tests/e2e)

test-chart: .venv/dev.stamp
	$(call timed,chart,$(BIN)/python -m pytest tests/chart)

RUNS ?= 5

test-busy: ## make test RUNS times (default 5) on a machine that is kept busy
	@.ci/busy $(RUNS)

test-fast: .venv/dev.stamp ## the unit tests only, without Go
	@$(BIN)/python -m pytest -m "not e2e" --ignore=tests/browser --ignore=tests/train --ignore=tests/profiling

lint: .venv/dev.stamp ## ruff, mypy --strict, import layers, shellcheck, actionlint
	$(call timed,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache \
	  && $(BIN)/shellcheck .ci/run .ci/busy service/image/install.sh \
	  && $(BIN)/python -m tests.controlplane actionlint -shellcheck $(BIN)/shellcheck)

format: .venv/dev.stamp ## let ruff fix and format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

DIST ?= dist

# Where releases are published, for the krew manifest.
RELEASES ?= https://vramcast.dev/releases

dist: .venv/dev.stamp ## build the wheels, the SBOM (CycloneDX), the chart and the kubectl plugin into dist/
	@mkdir -p $(DIST)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(DIST) . ./service/report
	@$(BIN)/python requirements/sbom.py $(DIST)/vramcast-$$($(BIN)/vramcast version).cdx.json
	@$(BIN)/python -m tests.controlplane helm package helm/vramcast --destination $(DIST)
	@$(BIN)/python service/build_plugin.py --out $(DIST) --releases $(RELEASES)

screenshots: .venv/dev.stamp ## take the pictures of docs/page.md and docs/recommend.md
	@$(BIN)/python -m tests.browser.screenshots --out docs/images/page
	@$(BIN)/python -m tests.recommend.picture --out docs/images/recommend.png

bench: .venv/dev.stamp .venv/serving.stamp controlplane ## run the benchmarks and write docs/benchmarks
	@$(BIN)/python bench/filter.py --python .venv/serving/bin/python --out docs/benchmarks/filter.md
	@$(BIN)/python -m bench.page --python .venv/serving/bin/python --out docs/benchmarks/page.md
	@$(BIN)/python -m bench.scheduler --vramcast ".venv/serving/bin/python -m vramcast serve --port {port}" \
	  --out docs/benchmarks/scheduler.md
	@$(BIN)/python -m bench.waits --out docs/benchmarks/waits.md
	@$(BIN)/python bench/names.py --out docs/benchmarks/names.md
	@$(BIN)/python -m bench.admission --python .venv/serving/bin/python --out docs/benchmarks/admission.md

chaos: .venv/dev.stamp controlplane ## run 100,000 binds through all kinds of faults and write docs/benchmarks/chaos.md
	@$(BIN)/python -m bench.chaos --out docs/benchmarks/chaos.md $(ARGS)

predictors: $(TRAIN)/ready ## compare the predictors and write docs/predictors.md: make predictors DATA=DIR
	@test -n "$(DATA)" || { echo "error: name the directory of the measurements: make predictors DATA=DIR" >&2; exit 1; }
	@$(TRAIN)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes \
	  -r requirements/predictors.txt
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.predictors --data $(DATA) --out docs/predictors.md $(ARGS)

cluster: $(TRAIN)/ready ## simulate clusters and write docs/what-it-buys.md, docs/benchmarks/packing.md and interference.md: make cluster DATA=DIR
	@test -n "$(DATA)" || { echo "error: name the directory of the traces: make cluster DATA=DIR" >&2; exit 1; }
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.cluster --data $(DATA) --out docs/what-it-buys.md $(ARGS)
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.cluster.packing --data $(DATA) --out docs/benchmarks/packing.md
	@$(TRAIN)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes \
	  -r requirements/predictors.txt
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.interference --gavel $(DATA)/extra/gavel_colocation.csv \
	  --lucid-alone $(DATA)/clusters/lucid_alone.csv --lucid-pairs $(DATA)/clusters/lucid_pairs.csv \
	  --out docs/benchmarks/interference.md

replay: .venv/dev.stamp ## pack a large cluster on a real kube-scheduler and write docs/benchmarks/packing-replay.md: make replay DATA=DIR
	@test -n "$(DATA)" || { echo "error: name the directory of the traces: make replay DATA=DIR" >&2; exit 1; }
	@PYTHONPATH=service .venv/bin/python -m bench.cluster.replay --data $(DATA) --out docs/benchmarks/packing-replay.md

profiles: $(TRAIN)/ready ## compare recordings with fresh ones and write docs/benchmarks/profiles.md; takes an hour
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.profiles --out docs/benchmarks/profiles.md $(ARGS)

first-answer: .venv/dev.stamp ## time the first answer of the commands and write docs/benchmarks/first-answer.md
	@$(BIN)/python -m bench.first_answer

step-picture: $(TRAIN)/ready ## draw the picture of docs/forecast.md
	@PYTHONPATH=service $(TRAIN)/bin/python -m vramcast profile transformers:GPT2Config --sequence-length 1024 \
	  --batch-size 8 --precision bf16 --optimizer adamw --plot docs/images/step.png > /dev/null

recordings: $(TRAIN)/ready ## compare recordings with measured runs and write docs/benchmarks: make recordings DATA=DIR
	@test -n "$(DATA)" || { echo "error: name the directory of the measurements: make recordings DATA=DIR" >&2; exit 1; }
	@PYTHONPATH=service $(TRAIN)/bin/python -m bench.recordings --data $(DATA) --out docs/benchmarks/recordings.md $(ARGS)

# An empty UPGRADE keeps every pin that still resolves: make lock UPGRADE=
UPGRADE ?= --upgrade
UV := uv==0.13.8

# --fork-strategy fewest: one version of a package for every Python, or the image could run another one than the tests.
lock: .venv/dev.stamp ## pin every dependency, with hashes, to its newest version
	@$(PIP) install $(UV)
	@for target in "build requirements/build.in" "serve pyproject.toml --extra agent --fork-strategy fewest" \
	    "dev pyproject.toml --extra dev --extra tools --constraints requirements/serve.txt" \
	    "train pyproject.toml --extra train --extra catalog --extra dev" \
	    "predictors pyproject.toml --extra train --extra predictors --constraints requirements/train.txt"; do \
	  set -- $$target; name=$$1; shift; \
	  $(BIN)/uv pip compile --quiet --universal --python-version $(PYTHON_VERSION) --generate-hashes $(UPGRADE) \
	    --custom-compile-command "make lock" "$$@" --output-file requirements/$$name.txt || exit 1; \
	done

clean: ## remove .venv, build and dist; the user's cache stays
	@rm -rf .venv build dist
