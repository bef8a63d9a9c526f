# Thin targets over `uv` and the `standfast` command. A fresh machine needs python3 (3.11 or later) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
ifndef UV
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
endif
OUR_UV := $(filter .tools/bin/uv,$(UV))

# uv reads neither pip's variables nor pip.conf: pass on what is set.
INDEXES := $(foreach place,$(PIP_FIND_LINKS),--find-links $(place)) \
	$(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL)) \
	$(foreach url,$(PIP_EXTRA_INDEX_URL),--index $(url))
INSTALL := $(UV) pip install --quiet --python $(BIN)/python $(INDEXES)

.DEFAULT_GOAL := help
.PHONY: help quickstart up down test lint typecheck unit bench lock clean

help: ## Show the targets.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name does; do \
		printf '  make %-12s %s\n' "$$name" "$$does"; done

# -- running ------------------------------------------------------------------------------------------------------

quickstart: $(VENV)/.runtime ## Start the stack, deploy a small real model, ask it a question.
	@$(BIN)/standfast quickstart

up: $(VENV)/.runtime ## Start the embedded stack in the foreground.
	@$(BIN)/standfast up

down: ## Stop the stack and the models of this machine.
	@if [ -x $(BIN)/standfast ]; then $(BIN)/standfast down; fi

# -- developing ---------------------------------------------------------------------------------------------------

test: lint typecheck ## Everything that CI runs: lint, types, import rules, all tests.
	$(BIN)/pytest -n 2 tests/unit tests/workflows tests/integration
	$(BIN)/pytest tests/e2e

lint: $(VENV)/.dev ## Style, format and import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

typecheck: $(VENV)/.dev ## The strict type checker.
	$(BIN)/mypy

unit: $(VENV)/.dev ## The quick tests alone.
	$(BIN)/pytest -n 2 tests/unit tests/workflows

bench: $(VENV)/.dev ## Measure speed and size, side by side, and print ratios.
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lock: | $(OUR_UV) ## Pin the dependencies of pyproject.toml anew.
	$(UV) pip compile --quiet --universal --generate-hashes --custom-compile-command "make lock" \
		--python-version 3.11 pyproject.toml --output-file requirements.lock
	$(UV) pip compile --quiet --universal --generate-hashes --custom-compile-command "make lock" \
		--python-version 3.11 pyproject.toml --group dev --output-file requirements-dev.lock

clean: ## Remove the environment and caches; deployments and their state stay.
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist

# -- the environment ----------------------------------------------------------------------------------------------

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing Standfast into $(VENV)"
	@$(INSTALL) -r requirements.lock
	@$(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing Standfast and its development tools into $(VENV)"
	@$(INSTALL) -r requirements-dev.lock
	@$(INSTALL) --no-deps -e .
	@touch $@ $(VENV)/.runtime

$(VENV)/bin/python: | $(OUR_UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Standfast needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)

.tools/bin/uv:
	@echo "Fetching uv $(UV_VERSION)"
	@rm -rf .tools
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		$(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv==$(UV_VERSION); \
	else \
		echo "$(PYTHON) has neither venv nor pip. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	fi
