# Everything runs in .venv: from requirements/run.lock for the demo, from requirements/dev.lock for all else.
# `make demo` and `make test` need no other step.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
INSTALL := $(BIN)/python -m pip install --quiet
ARGS ?=

.PHONY: help demo test check format bench lock generate clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(RUNNABLE): requirements/run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "PyDanube needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements/run.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(READY): $(RUNNABLE) requirements/dev.lock
	$(INSTALL) --require-hashes -r requirements/dev.lock
	@touch $@

demo: $(RUNNABLE)  ## Run a broker, a producer and two subscriptions (ARGS="--seconds 10" ends it).
	$(BIN)/danube demo $(ARGS)

test: $(READY)  ## Run the whole suite.
	$(BIN)/python tools/install_peers.py
	$(BIN)/python tools/run_tests.py $(ARGS)

check: $(READY)  ## Lint, types, import contracts, generated files.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/generate_stubs.py --check
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/python tools/generate_reference.py --check

format: $(READY)  ## Format the code, wrap the pages, apply safe fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/markdown.py

bench: $(READY)  ## Print the figures of docs/performance.md.
	$(BIN)/python -m benchmarks $(ARGS)

generate: $(READY)  ## Write the gRPC stubs, the blocking client and the reference pages anew.
	$(BIN)/python tools/generate_stubs.py
	$(BIN)/python tools/generate_sync.py
	$(BIN)/python tools/generate_reference.py

COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-header --no-annotate pyproject.toml

lock: $(READY)  ## Resolve requirements/dev.lock and requirements/run.lock anew from pyproject.toml.
	$(INSTALL) uv
	$(COMPILE) --upgrade --group dev -o requirements/dev.lock
	$(COMPILE) --upgrade --group build --constraint requirements/dev.lock -o requirements/run.lock

clean:  ## Remove the environment and every cache.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache
