.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
RUN_ARGS ?=

.PHONY: help setup run test check format bench soak clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

# Each stamp is touched by scripts/setup.sh when its part is installed; pyproject.toml decides what that is.
$(VENV)/.installed: pyproject.toml scripts/setup.sh
	@scripts/setup.sh

$(VENV)/.installed-%: $(VENV)/.installed
	@scripts/setup.sh $*

setup: $(VENV)/.installed ## Install what Penstock needs: .venv, dependencies, Java 17+

run: setup ## Start Penstock with its data under ./penstock-data (RUN_ARGS="--http-port 0" adds flags)
	@exec $(BIN)/penstock up --data-dir ./penstock-data $(RUN_ARGS)

test: $(VENV)/.installed-dev ## Run every test
	@scripts/setup-tests.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.installed-dev ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(VENV)/.installed-dev ## Format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench ## Measure beside NATS JetStream, Valkey, moto and ministack
	@scripts/setup-bench.sh
	$(BIN)/python -m bench

soak: $(VENV)/.installed-dev ## Run the long form of the crash and fault tests
	@scripts/setup-tests.sh
	PENSTOCK_SOAK=1 $(BIN)/python -m pytest --timeout 7200

clean: ## Remove everything that setup and the tests made (never ./penstock-data)
	rm -rf $(VENV) .venvs node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './penstock-data/*' -prune -exec rm -rf {} +
