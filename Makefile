# `make` lists the targets. Each sets itself up: all it needs is python3 (3.10 or newer) and make.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROJECT := -e '.[dev,demo]'
# Generated messages must load with the oldest protobuf that pyproject.toml allows, so they come from the
# release of the tools that belongs to it, kept apart from the newer packages in $(VENV).
PROTO_TOOLS := grpcio-tools==1.76.0
PROTO_VENV := build/proto-tools
WIRE := airflow_provider/runtime/wire
# SkyPilot, in a virtualenv of its own: what the agent and the client are tested and measured against.
PEER := build/skypilot/ready
WITH_AIRFLOW := tests/e2e
# Most of their time is waiting, for networks and processes.
WITH_HOSTS := tests/hosts tests/integration/ssh tests/integration/transport tests/integration/infra

# Airflow starts many Python processes; without bytecode each of them would compile all of Airflow again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check bench proto clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## a training chain in a real Airflow loses its machine half-way and finishes (KEEP=1: leave the UI up)
	@KEEP="$(KEEP)" $(BIN)/python -m demo

test: $(READY) $(PEER) ## the whole test suite (ARGS="-k name" to choose)
	@sh tests/hosts/packages.sh
	@if [ -n '$(ARGS)' ]; then exec $(BIN)/python -m pytest $(ARGS); fi; \
	mkdir -p build; \
	echo "The tests with a real Airflow and those with SSH hosts run beside the others; their output follows at the end."; \
	$(BIN)/python -m pytest $(WITH_AIRFLOW) >build/airflow.log 2>&1 & airflow=$$!; \
	$(BIN)/python -m pytest $(WITH_HOSTS) >build/hosts.log 2>&1 & hosts=$$!; \
	code=0; $(BIN)/python -m pytest $(addprefix --ignore=,$(WITH_AIRFLOW) $(WITH_HOSTS)) || code=$$?; \
	wait $$hosts || code=$$?; cat build/hosts.log; \
	wait $$airflow || code=$$?; cat build/airflow.log; exit $$code

check: $(READY) ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) $(PEER) ## measure and print the figures of docs/benchmarks.md (NAMES="agent" to choose)
	@sh tests/hosts/packages.sh
	@$(BIN)/python -m benchmarks $(NAMES)

proto: $(PROTO_VENV)/.ready ## regenerate the messages from the .proto files
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(wildcard $(WIRE)/*.proto)

clean: ## remove the virtualenv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call setup,FOLDER,PIP ARGUMENTS): a virtualenv with these packages, bytecode compiled.
define setup
	command -v "$(PYTHON)" >/dev/null || { \
	  echo "No $(PYTHON) found. Install Python 3.10 or newer, or say where it is: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$$("$(PYTHON)" --version) is too old: Python 3.10 or newer is needed. Name another: make PYTHON=python3.12" >&2; exit 1; }; \
	if command -v uv >/dev/null; then \
	  [ -x $(1)/bin/python ] || uv venv --quiet --python "$(PYTHON)" $(1); \
	  uv pip install --quiet --python $(1)/bin/python --compile-bytecode $(2); \
	else \
	  "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtualenvs. Install them (Debian, Ubuntu: apt install python3-venv), or install uv." >&2; exit 1; }; \
	  [ -x $(1)/bin/pip ] || "$(PYTHON)" -m venv $(1); \
	  $(1)/bin/python -m pip install --quiet --compile $(2); \
	fi
endef

$(READY): pyproject.toml
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@$(call setup,$(VENV),$(PROJECT))
	@touch $@

$(PEER): $(READY) tests/interop/environment.py
	@echo "Setting up SkyPilot beside it, for the tests that speak to it (once; a minute) ..."
	@$(BIN)/python -m tests.interop.environment >/dev/null
	@touch $@

$(PROTO_VENV)/.ready: Makefile
	@$(call setup,$(PROTO_VENV),$(PROTO_TOOLS))
	@touch $@
