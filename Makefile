# Run `make help` for a list of targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python

.DEFAULT_GOAL := help

## Use

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Environment variables of make run:"
	@echo "  ORDERS=file.csv SPEED=3600    replay an order history at one hour per second, then print a summary;"
	@echo "                                a small example: ORDERS=project/demo/sample_orders.csv SPEED=300"
	@echo "  ORDERS=file.csv SPEED=virtual replay it without waiting: two years in about a minute"
	@echo "  PORT=8000                     port of the web server; default: the first free port from 8000 on"
	@echo "  DATABASE_URL, REDIS_URL, CELERY_BROKER_URL    servers to use instead of the embedded ones"
	@echo "  SHOP_PAY_WITHIN_SECONDS=20    time to pay an order; SHOP_SEED=7: the same customers in each run"
	@echo "  VAR_DIR=var                   directory for all files"

.PHONY: run
run: $(VENV)/.stamp ## run the whole shop with simulated customers; Ctrl-C stops it
	@exec $(VENV_PYTHON) -m project.run

.PHONY: pipeline-demo
pipeline-demo: $(VENV)/.stamp-pipeline ## simulate a month of the shop, plant faults, run the data pipeline on it: ORDERS=2000
	@exec $(VENV_PYTHON) -m project.demo

include .ci/test.mk

## The virtual environment

.PHONY: venv
venv: $(VENV)/.stamp ## create .venv and install requirements.txt; other targets do this when needed

# Rebuilt when requirements.txt changes or the environment's Python is gone.
$(VENV)/.stamp: requirements.txt $(if $(shell $(VENV_PYTHON) -c 'print(1)' 2>/dev/null),,always)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or set PYTHON." >&2; exit 1; }
	@$(PYTHON) .ci/venv.py $(VENV) requirements.txt
	@touch $@

# Spark and its dependencies: a large download, so installed only for the targets that need it.
$(VENV)/.stamp-pipeline: requirements-pipeline.txt $(VENV)/.stamp
	@$(PYTHON) .ci/venv.py $(VENV) requirements-pipeline.txt
	@touch $@

.PHONY: always
always:
