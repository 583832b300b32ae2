# Everstep: everything a developer types. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
CLUSTER ?= everstep
.DEFAULT_GOAL := help
.PHONY: help venv lint test test-fast tidy unit contract component sim property histories crash chart e2e bench demo demo-local cluster cluster-down images clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

venv: $(VENV)/.ready ## Make the virtual environment with everything in it
$(VENV)/.ready: pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --editable '.[dev]'
	@touch $@

lint: venv ## ruff, mypy --strict, import-linter, everstep check of the examples
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	cd agent_image/examples && PYTHONPATH=.. $(abspath $(PY)) -m everstep.cli check *.py

test: lint tidy unit contract component sim property histories crash chart e2e ## Everything, on a real cluster too; what CI runs

test-fast: tidy unit ## What needs no server: seconds

tidy unit contract component sim property histories crash chart: venv ## One tier of tests
	$(PYTEST) tests/$@

e2e: venv cluster images ## Real failures on a real three-node kind cluster
	$(PYTEST) tests/e2e

bench: venv ## Everstep and its peers side by side: cost per step, fsyncs, crashes, memory (BENCH_QUICK=1: 8 min)
	$(PY) -m tests.bench $(BENCH)

cluster: venv ## Bring up a kind cluster (one control plane, two workers) anywhere
	$(PY) -m tests.kind up --name $(CLUSTER)

cluster-down: venv ## Delete the cluster, keep the caches
	$(PY) -m tests.kind down --name $(CLUSTER)

images: venv cluster ## Build the images and load them into the cluster
	$(PY) -m tests.kind load --name $(CLUSTER)

demo: venv cluster images ## An agent on a real cluster; its process, pod, node and operator are taken away
	$(PY) -m tests.demo.cluster --name $(CLUSTER)

demo-local: venv ## The same story on a laptop, in under a minute
	$(PY) -m tests.demo.local

clean: ## Remove what the tools left (not the cluster, not its caches)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
