# Checks and tests. Included by the Makefile, which names the interpreter and the virtual environment.

## Test (ARGS="-k order" chooses among the tests)

# Two workers: more of them disturb each other's timing on a small machine. PYTEST_WORKERS=0 for a debugger.
PYTEST_WORKERS ?= 2
PYTEST = $(VENV_PYTHON) -m pytest -n $(PYTEST_WORKERS) --max-worker-restart=0
# What touches a database runs on each of them; unit and packaging run once.
DATABASE_LAYERS = $(filter-out tests/unit/ tests/packaging/ tests/__pycache__/,$(wildcard tests/*/))

.PHONY: check
check: lint types layers audit test ## all that CI runs: linters, types, import layers, advisories, tests

.PHONY: test
test: $(VENV)/.stamp-dev ## all tests: everything on SQLite, then what touches a database on PostgreSQL
	@failed=0; \
	DELAYTASKS_TEST_DB=sqlite $(PYTEST) $(ARGS) || failed=1; \
	DELAYTASKS_TEST_DB=postgres $(PYTEST) $(DATABASE_LAYERS) $(ARGS) || failed=1; \
	exit $$failed

.PHONY: test-sqlite
test-sqlite: $(VENV)/.stamp-dev ## all tests, on SQLite alone
	DELAYTASKS_TEST_DB=sqlite $(PYTEST) $(ARGS)

.PHONY: test-postgres
test-postgres: $(VENV)/.stamp-dev ## what touches a database, on PostgreSQL alone
	DELAYTASKS_TEST_DB=postgres $(PYTEST) $(DATABASE_LAYERS) $(ARGS)

.PHONY: acceptance-test
acceptance-test: $(VENV)/.stamp-dev ## real beat and worker processes: kills, outages, bursts
	$(PYTEST) tests/acceptance $(ARGS)

# The figures in docs/promises.md: run it on both databases, on a machine with nothing else to do, then `make promises`.
.PHONY: torture
torture: MINUTES ?= 20
torture: SEED ?= 1
torture: DATABASE ?= postgres
torture: $(VENV)/.stamp-dev ## an installation hurt in every way, then at random: MINUTES=20 SEED=1 DATABASE=postgres
	$(VENV_PYTHON) -m tests.torture --minutes $(MINUTES) --seed $(SEED) --database $(DATABASE) --report var/torture $(ARGS)

.PHONY: load
load: $(VENV)/.stamp-dev ## a million jobs pending, a hundred thousand due in the same second: ARGS="--due 10000"
	$(VENV_PYTHON) -m tests.torture.load $(ARGS)

.PHONY: soak
soak: MINUTES ?= 30
soak: SEED ?= 1
soak: $(VENV)/.stamp-dev ## work with a fault each 20 s, and nothing grows beyond its bound: MINUTES=30 SEED=1
	$(VENV_PYTHON) -m tests.torture.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: promises
promises: $(VENV)/.stamp-dev ## write what the last `make torture` of each database saw into docs/promises.md
	$(VENV_PYTHON) -m tests.torture --publish var/torture/*.json

.PHONY: wheel-test
wheel-test: $(VENV)/.stamp-dev ## a wheel from this tree, installed into a bare project elsewhere
	$(PYTEST) tests/packaging $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-dev ## ruff's rules and its format
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

.PHONY: format
format: $(VENV)/.stamp-dev ## put right what ruff can put right by itself
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

.PHONY: types
types: $(VENV)/.stamp-dev ## mypy
	$(VENV)/bin/mypy

.PHONY: layers
layers: $(VENV)/.stamp-dev ## imports point down
	$(VENV)/bin/lint-imports --no-logo --no-cache

.PHONY: audit
audit: $(VENV)/.stamp-dev ## advisories against anything that is installed; needs a network, says so loudly without
	@$(VENV_PYTHON) .ci/audit.py

# It wants a machine with nothing else to do. How long it takes is said at the end of its report.
.PHONY: bench
bench: SCENARIOS ?=
bench: DATABASE ?= both
bench: $(VENV)/.stamp-bench ## against the peers, in the same run: SCENARIOS="burst cancel" DATABASE=both ARGS="--jobs 2000 --only celery"
	$(VENV_PYTHON) -m benchmarks $(SCENARIOS) --database $(DATABASE) $(ARGS)

.PHONY: bench-compare
bench-compare: OLD ?= var/bench/previous.json
bench-compare: NEW ?= var/bench/last.json
bench-compare: $(VENV)/.stamp-dev ## what has changed between two runs of `make bench`: OLD=file.json NEW=file.json
	@$(VENV_PYTHON) -m benchmarks.compare $(OLD) $(NEW)

.PHONY: bench-admin
bench-admin: $(VENV)/.stamp-dev ## how long each page of the admin takes on five million jobs (10 min; PAGES="list board")
	@$(VENV_PYTHON) -m benchmarks.admin_pages $(PAGES)

.PHONY: bench-pipeline
bench-pipeline: SIZES ?= 1 3 10
bench-pipeline: QUESTIONS ?=
bench-pipeline: $(VENV)/.stamp-bench ## the data pipeline as rows grow, beside DuckDB and PostgreSQL: SIZES="1 3 10" QUESTIONS="report archive"
	@$(VENV_PYTHON) -m benchmarks.pipeline $(QUESTIONS) --sizes "$(SIZES)" $(ARGS)

.PHONY: openapi
openapi: $(VENV)/.stamp-dev ## write docs/openapi.yaml anew, from the code
	@DJANGO_SETTINGS_MODULE=project.settings $(VENV_PYTHON) -m delaytasks.api > $(VENV)/openapi.yaml
	@mv $(VENV)/openapi.yaml docs/openapi.yaml

.PHONY: messages
messages: $(VENV)/.stamp-dev ## bring the translations up to date with the sources, and compile them
	@$(VENV_PYTHON) .ci/messages.py

.PHONY: screenshots
screenshots: $(VENV)/.stamp-dev ## take the README's pictures of a running shop, into docs/images or OUT=folder; needs Chromium
	@$(VENV_PYTHON) -m tests.screenshots

# Made again when the requirements change, or when the environment was made anew.
$(VENV)/.stamp-dev: requirements.txt requirements-pipeline.txt requirements-dev.txt $(if $(shell $(VENV_PYTHON) -c 'print(1)' 2>/dev/null),,always)
	@$(PYTHON) project/venv.py $(VENV) requirements-dev.txt
	@touch $@

# The peers' packages; whoever does not compare need not have them.
$(VENV)/.stamp-bench: requirements-bench.txt $(VENV)/.stamp-dev
	@$(PYTHON) project/venv.py $(VENV) requirements-bench.txt
	@touch $@
