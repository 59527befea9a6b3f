# Everything runs in .venv, built from dev.lock. `make demo` and `make test` need no other step.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.PHONY: help demo test check format bench lock generate clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "PyDanube needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## Run a broker, a producer and two subscriptions (ARGS="--seconds 10" ends it).
	$(BIN)/danube demo $(ARGS)

test: $(READY)  ## Run the whole suite.
	$(BIN)/python tools/run_tests.py $(ARGS)

check: $(READY)  ## Lint, types, import contracts, generated files.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/generate_stubs.py --check
	$(BIN)/python tools/generate_reference.py --check

format: $(READY)  ## Format the code and apply safe fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## Print the figures of docs/performance.md.
	$(BIN)/python -m benchmarks $(ARGS)

generate: $(READY)  ## Write the gRPC stubs and the reference pages anew.
	$(BIN)/python tools/generate_stubs.py
	$(BIN)/python tools/generate_reference.py

lock: $(READY)  ## Resolve dev.lock anew from pyproject.toml.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
		--group dev --no-header --no-annotate --upgrade pyproject.toml -o dev.lock

clean:  ## Remove the environment and every cache.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
