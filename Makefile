# make book   everything from a bare machine to a rendered, checked book
# make test   everything from a bare machine to a tested package
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
LAB := $(VENV)/.lab

.DEFAULT_GOAL := help
.PHONY: help book lab archive test lint seeds fuzz hunt faults bench size clean pdf wheel-check gpu-check golden gpu-queue

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradleak needs Python 3.11 or newer; name one with make PYTHON=python3.12"; exit 1; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing (several minutes the first time: torch is large)"
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[book,dev]'
	@touch $(READY)

book: $(READY) ## run every page at the quick profile and build the book
	@$(RUN) -m gradleak book

pdf: $(READY) ## print the book into one PDF; needs Chromium
	@$(RUN) -m gradleak book --pdf

$(LAB): $(READY)
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[lab]'
	@touch $(LAB)

lab: $(LAB) ## open the notebooks in JupyterLab
	@$(RUN) -m jupyterlab --ServerApp.root_dir=notebooks $(ARGS)

archive: $(READY) ## pack sources, records, the built book and its PDF into one zip with checksums
	@$(RUN) -m gradleak archive $(ARGS)

test: $(READY) ## run the tests, those on the pretended GPU in a run of their own
	@failed=0; $(RUN) -m pytest $(ARGS) || failed=1; \
	$(if $(filter tests/%,$(ARGS)),,$(RUN) -m pytest tests/gpu --dist worksteal || failed=1;) exit $$failed

lint: $(READY) ## check style and types
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

wheel-check: $(READY) ## build the wheel and try it where nothing else is installed; several GB
	@$(RUN) -m tests.acceptance.wheel $(ARGS)

fuzz: $(READY) ## try many more damaged files, odd texts and malformed calls than the tests do
	@GRADLEAK_FUZZ=50 $(RUN) -m pytest tests/auditing/test_fuzz.py tests/test_refusals.py $(ARGS)

seeds: $(READY) ## run every page with another seed than the tests do, and its open cells with two more
	@GRADLEAK_SEEDS=1 $(RUN) -m pytest tests/studies/test_seeds.py --dist load $(ARGS)

hunt: $(READY) ## hunt for wrong certificates with new seeds; ARGS="--minutes 30"
	@$(RUN) -m gradleak hunt $(ARGS)

faults: $(READY) ## kill runs before random file operations, fill disks, run twice at once
	@GRADLEAK_FAULTS=20 $(RUN) -m pytest -n 0 tests/book/test_faults.py $(ARGS)

golden: $(READY) ## write the rows of the pages' smallest runs anew where they changed; ARGS="peeling noise"
	@$(RUN) -m tests.studies.golden $(ARGS)

gpu-queue: $(READY) ## pack the trials that decide most claims, for a machine with a GPU and torch
	@$(RUN) -m tests.gpu.queue $(ARGS)

gpu-check: $(READY) ## try every page and attack on a GPU, beside the CPU; minutes
	@$(RUN) -m tests.gpu.check $(ARGS)

bench: $(READY) ## measure speed; a table and benchmarks/results.json
	@$(RUN) -m benchmarks

size: $(READY) ## count lines of code, and the built book's pages, words, tables and figures
	@$(RUN) -m tests.acceptance.size $(ARGS)

clean: ## remove everything that can be made again, the environment too
	@rm -rf $(VENV) .cache _build runs book/executed book/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis
