# Everything sets itself up: Python 3.11 or newer, make and the package registries are enough.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: help setup demo test test-stores test-fleet lint types imports check clean

help:
	@echo 'make demo    see a gated workflow from the first call to the last'
	@echo 'make test    run the tests'
	@echo 'make test-stores   those of the stores, with SQLite, Redis and PostgreSQL; nothing is skipped'
	@echo 'make test-fleet    replicas on one store under load, while they are killed and the engine is restarted: some 10 minutes'
	@echo 'make check   everything that CI checks: lint, types, imports, tests'

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("needs Python 3.11 or newer: make PYTHON=/path/to/python3" if sys.version_info < (3, 11) else 0)'
	@$(PY) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	$(PY) -m pip install -q -c constraints.txt -e '.[all]' --group dev
	@touch $@

demo: setup
	@$(VENV)/bin/mcpfusion demo

# A file's tests run one after the other in one process; their servers are shared.
test: setup
	$(PY) -m pytest --numprocesses auto --dist loadfile

test-stores: setup
	MCPFUSION_REQUIRE_ENGINES=1 $(PY) -m pytest tests/stores $(wildcard $(foreach of,store redis postgres,tests/swarm/test_*$(of)*.py))

test-fleet: setup
	MCPFUSION_FLEET_SECONDS=$${MCPFUSION_FLEET_SECONDS:-30} $(PY) -m pytest tests/fleet -rP

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup
	$(PY) -m pyright

imports: setup
	$(VENV)/bin/lint-imports

check: lint types imports test

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
