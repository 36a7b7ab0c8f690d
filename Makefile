# `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python

.DEFAULT_GOAL := help

## Use

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "make run and its environment:"
	@echo "  ORDERS=file.csv SPEED=3600    replay a real order history, an hour in a second, then end with a summary;"
	@echo "                                a small one to begin with: ORDERS=project/shop/sample_orders.csv SPEED=300"
	@echo "  PORT=8000                     of the web server; without it the first free one from 8000 on"
	@echo "  DATABASE_URL, REDIS_URL, CELERY_BROKER_URL    real servers instead of the embedded ones"
	@echo "  SHOP_PAY_WITHIN_SECONDS=20    how long an order may stay unpaid; SHOP_SEED=7: the same customers each time"
	@echo "  VAR_DIR=var                   everything that is written lies there"

.PHONY: run
run: $(VENV)/.stamp ## start everything, play the shop in this terminal, stop everything on Ctrl-C
	@exec $(VENV_PYTHON) -m project.run

.PHONY: pipeline-demo
pipeline-demo: $(VENV)/.stamp-pipeline ## a month of the shop archived, reported and audited by Spark, with faults to find: ORDERS=2000
	@exec $(VENV_PYTHON) -m project.demo

include .ci/test.mk

## The virtual environment

.PHONY: venv
venv: $(VENV)/.stamp ## make .venv and install requirements.txt; done by itself where it is needed

# Made again when requirements.txt changes, or when the environment's Python has gone.
$(VENV)/.stamp: requirements.txt $(if $(shell $(VENV_PYTHON) -c 'print(1)' 2>/dev/null),,always)
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) was found: install Python 3.11, or name one with PYTHON=." >&2; exit 1; }
	@$(PYTHON) project/venv.py $(VENV) requirements.txt
	@touch $@

# Spark and what it needs, half of it in one package; whoever does not ask for it need not have it.
$(VENV)/.stamp-pipeline: requirements-pipeline.txt $(VENV)/.stamp
	@$(PYTHON) project/venv.py $(VENV) requirements-pipeline.txt
	@touch $@

.PHONY: always
always:
