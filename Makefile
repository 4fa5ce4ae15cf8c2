# Everything a person or a CI machine does with this tree. `make` alone lists it.
#
# One environment, `.venv`, holds Hatchway and every tool; nothing here uses what happens to be on PATH except
# a Python that creates it. Versions are pinned by constraints.txt.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help install demo demo-docker dev test test-unit lint bench chaos fmt clean compose-secrets

# The first of these that is 3.11 or newer makes the environment; `make PYTHON=/path/to/python3 install` overrides it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ command -v $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := hatchway workflows activities worker.py tests bench
# How many streams of tests run side by side: most of them wait. TEST_STREAMS=0 runs one after another, in this process.
TEST_STREAMS ?= 2

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

install: $(STAMP) ## create .venv with hatchway and every tool in it

# The stamp is written last, so an install that was cut short runs again.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Hatchway needs Python 3.11 or newer and found none: install it (Debian: apt-get install python3 python3-venv), or name one with make PYTHON=/path/to/python3 $(MAKECMDGOALS)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian: apt-get install python3-venv) and run make again." >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing Hatchway into $(VENV) (once; a minute or so)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,test,lint]'
	@touch $@

demo: $(STAMP) ## one provision from end to end, on embedded servers
	@$(BIN)/hatchway demo

demo-docker: $(STAMP) ## the same as a container, pulled from a password-protected registry
	@$(BIN)/hatchway demo --docker

dev: $(STAMP) ## embedded Temporal, Postgres, a worker and a gateway, until Ctrl-C
	@$(BIN)/hatchway dev

test: $(STAMP) ## every test but chaos; what a missing service hides is named in one line
	@$(BIN)/python -m pytest --ignore=tests/chaos -n $(TEST_STREAMS) $(PYTEST_ARGS)

test-unit: $(STAMP) ## the tests that need no service
	@$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

chaos: $(STAMP) ## kill everything at every point, then random chaos for CHAOS_MINUTES (3)
	@$(BIN)/python -m pytest tests/chaos $(PYTEST_ARGS)

lint: $(STAMP) ## ruff, format, mypy --strict, import contracts
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: $(STAMP) ## format, and fix what ruff can fix
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

bench: $(STAMP) ## ratios against floors; exits 1 under a floor
	@$(BIN)/python -m bench

compose-secrets: ## the passwords that docker-compose.yml reads, made once
	@sh deploy/compose-secrets.sh

clean: ## remove the environment, caches and the dev servers' data
	@rm -rf $(VENV) .hatchway .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
