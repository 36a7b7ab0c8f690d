# Checks and tests. Included by the Makefile, which names the interpreter and the virtual environment.

## Test (ARGS="-k order" selects tests)

# Of each pass, which wait for half of their time. More would disturb each other's timing on a small machine. Use
# PYTEST_WORKERS=0 with a debugger: then the passes run one after the other, each in one process.
export PYTEST_WORKERS ?= 3
# Where the environment forbids bytecode, each of the hundreds of processes of a run would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=
PYTEST = $(VENV_PYTHON) -m pytest -n $(PYTEST_WORKERS) --max-worker-restart=0
# tests/conftest.py decides which tests run on which database: SQL on both, pages on SQLite, processes on PostgreSQL.
PRODUCT = -m "not tools"
# Folders that `make test-quick` skips: pages, processes, Spark, tests that start servers, and years of dates.
SLOW_FOLDERS = acceptance admin api deploy forwarding http inbox packaging pipeline project property recurrence server \
	tools torture

.PHONY: check
check: lint checks-at-once test ## everything that CI runs: linters, types, import layers, advisories, documents, tests
	@if [ -e $(VENV)/.suites-not-run ]; then echo "PASSED, but NOT RUN: a part of the reference suites. Run make reference-suites with a network and Python 3.12." >&2; fi
	@if [ -e $(VENV)/.audit-not-run ]; then echo "PASSED, but NOT RUN: the audit of dependencies. Run make audit with a network." >&2; fi

# Most of them use one core, so two run at a time. The tests, which use all cores, run alone.
.PHONY: checks-at-once
checks-at-once: $(VENV)/.stamp-docs
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target \
		types layers docs audit-if-possible reference-suites-if-possible

.PHONY: test
test: spark-classes ## all product tests: on SQLite, and at the same time those about the database or real processes on PostgreSQL
	@$(VENV_PYTHON) .ci/test_passes.py $(PYTEST) $(PRODUCT) $(ARGS)

# The tests would make it, too, but half of their processes would wait for it.
.PHONY: spark-classes
spark-classes: $(VENV)/.stamp-dev
	@$(VENV_PYTHON) -c "from tests.support import spark_classes; spark_classes.make()"

.PHONY: test-quick
test-quick: $(VENV)/.stamp-dev ## the engine's tests on SQLite, in less than two minutes
	DELAYTASKS_TEST_DB=sqlite $(PYTEST) $(PRODUCT) $(addprefix --ignore=tests/,$(SLOW_FOLDERS)) $(ARGS)

.PHONY: test-tools
test-tools: $(VENV)/.stamp-dev ## before a release: tests of the torture tool and the benchmarks, and long variants, on both databases
	@failed=0; \
	DELAYTASKS_TEST_DB=sqlite $(PYTEST) -m tools $(ARGS) || failed=1; \
	DELAYTASKS_TEST_DB=postgres $(PYTEST) -m tools $(ARGS) || failed=1; \
	exit $$failed

.PHONY: test-sqlite
test-sqlite: $(VENV)/.stamp-dev ## the product tests on SQLite
	DELAYTASKS_TEST_DB=sqlite $(PYTEST) $(PRODUCT) $(ARGS)

.PHONY: test-postgres
test-postgres: $(VENV)/.stamp-dev ## the product tests on PostgreSQL
	DELAYTASKS_TEST_DB=postgres $(PYTEST) $(PRODUCT) $(ARGS)

.PHONY: acceptance-test
acceptance-test: $(VENV)/.stamp-dev ## tests with real beat and worker processes: kills, outages, bursts
	$(PYTEST) tests/acceptance $(ARGS)

.PHONY: schemathesis
schemathesis: MINUTES ?= 10
schemathesis: $(VENV)/.stamp-dev ## call the HTTP API with requests generated from its document, in all phases: MINUTES=10
	SCHEMATHESIS_MINUTES=$(MINUTES) DELAYTASKS_TEST_DB=postgres $(VENV_PYTHON) -m pytest -n 0 -o faulthandler_timeout=0 \
		tests/server/test_schemathesis.py $(ARGS)

# The figures in docs/explanation/promises.md: run it on both databases, on an idle machine, then `make promises`.
.PHONY: torture
torture: MINUTES ?= 60
torture: SEED ?= 1
torture: DATABASE ?= postgres
torture: $(VENV)/.stamp-dev ## inject every fault, then random ones, into an installation: MINUTES=60 SEED=1 DATABASE=postgres
	$(VENV_PYTHON) -m tests.torture --minutes $(MINUTES) --seed $(SEED) --database $(DATABASE) --report var/torture $(ARGS)

# Its table goes into docs/howto/gameday.md. Needs Debian's packages prometheus and libfaketime, and root for a small disk.
.PHONY: gameday
gameday: $(VENV)/.stamp-dev ## make twelve failures in turn: which alert fires, and does its page of the runbook help (14 min): ARGS="--only beat"
	$(VENV_PYTHON) -m tests.gameday $(ARGS)

.PHONY: load
load: $(VENV)/.stamp-dev ## load test: a million pending jobs, 100,000 of them due in one second: ARGS="--due 10000"
	$(VENV_PYTHON) -m tests.torture.load $(ARGS)

.PHONY: declared-load
declared-load: $(VENV)/.stamp-dev ## a million orders with a declared timeout while workers are killed: ARGS="--orders 20000 --minutes 1"
	$(VENV_PYTHON) -m tests.torture.declared_load $(ARGS)

.PHONY: fleet
fleet: $(VENV)/.stamp-dev ## three databases and one fleet of workers, one of them killed, silent or slow in turn: ARGS="--seconds 8"
	$(VENV_PYTHON) -m tests.torture.fleet $(ARGS)

# Its figures go into docs/howto/high-availability.md. Wrong clocks need Debian's package libfaketime.
.PHONY: failover
failover: $(VENV)/.stamp-dev ## kill a PostgreSQL primary under load and promote its standby (8 min): ARGS="--seconds 15 synchronous"
	$(VENV_PYTHON) -m tests.torture.failover $(ARGS)

.PHONY: same-rows
same-rows: $(VENV)/.stamp-dev ## play 500 random histories in the test kit and with real workers, and compare: ARGS="--histories 50 --unit 2"
	$(VENV_PYTHON) -m tests.torture.same_rows $(ARGS)

.PHONY: soak
soak: MINUTES ?= 30
soak: SEED ?= 1
soak: $(VENV)/.stamp-dev ## soak test: a fault every 20 s while resource usage stays bounded: MINUTES=30 SEED=1
	$(VENV_PYTHON) -m tests.torture.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: promises
promises: $(VENV)/.stamp-dev ## write the results of the last `make torture` of each database into docs/explanation/promises.md
	$(VENV_PYTHON) -m tests.torture --publish var/torture/*.json

# Their tests come with the source distributions on PyPI. Django 6 is run too where a Python 3.12 is found.
.PHONY: reference-suites
reference-suites: $(VENV)/.stamp-dev ## run the suites of Django's Tasks and of django-tasks-db against our backend: ARGS="--verbose"
	@$(VENV_PYTHON) -m tests.reference_suites $(if $(SUITES),--suites $(SUITES)) $(ARGS)

# For `make check`, as audit-if-possible is.
.PHONY: reference-suites-if-possible
reference-suites-if-possible: $(VENV)/.stamp-dev
	@rm -f $(VENV)/.suites-not-run; $(VENV_PYTHON) -m tests.reference_suites || { [ $$? -eq 3 ] && touch $(VENV)/.suites-not-run; }

.PHONY: wheel-test
wheel-test: $(VENV)/.stamp-dev ## build a wheel and install it into an empty project
	$(PYTEST) tests/packaging $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-dev ## run ruff: rules and format
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

.PHONY: format
format: $(VENV)/.stamp-dev ## apply ruff's automatic fixes and format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

.PHONY: types
types: $(VENV)/.stamp-dev ## run mypy
	$(VENV)/bin/mypy

.PHONY: layers
layers: $(VENV)/.stamp-dev ## check that imports follow the layers
	$(VENV)/bin/lint-imports --no-logo --no-cache

.PHONY: audit
audit: $(VENV)/.stamp-dev ## check installed packages for known vulnerabilities; fails without a network (error 3)
	@$(VENV_PYTHON) .ci/audit.py

# For `make check`: a build without a network goes on, and its last line says what was not run.
.PHONY: audit-if-possible
audit-if-possible: $(VENV)/.stamp-dev
	@rm -f $(VENV)/.audit-not-run; $(VENV_PYTHON) .ci/audit.py || { [ $$? -eq 3 ] && touch $(VENV)/.audit-not-run; }

# Needs an idle machine. The end of the report says how long it took.
.PHONY: bench
bench: SCENARIOS ?=
bench: DATABASE ?= both
bench: $(VENV)/.stamp-bench ## benchmark against other queues in one run: SCENARIOS="burst cancel" DATABASE=both ARGS="--jobs 2000 --only celery"
	$(VENV_PYTHON) -m benchmarks $(SCENARIOS) --database $(DATABASE) $(ARGS)

.PHONY: bench-compare
bench-compare: OLD ?= var/bench/previous.json
bench-compare: NEW ?= var/bench/last.json
bench-compare: $(VENV)/.stamp-dev ## compare two runs of `make bench`: OLD=file.json NEW=file.json
	@$(VENV_PYTHON) -m benchmarks.compare $(OLD) $(NEW)

.PHONY: bench-admin
bench-admin: $(VENV)/.stamp-dev ## time each admin page on five million jobs (10 min; PAGES="list board")
	@$(VENV_PYTHON) -m benchmarks.admin_pages $(PAGES)

.PHONY: bench-pipeline
bench-pipeline: SIZES ?= 1 3 10
bench-pipeline: QUESTIONS ?=
bench-pipeline: $(VENV)/.stamp-bench ## time the data pipeline against DuckDB and PostgreSQL: SIZES="1 3 10" QUESTIONS="report archive"
	@$(VENV_PYTHON) -m benchmarks.pipeline $(QUESTIONS) --sizes "$(SIZES)" $(ARGS)

.PHONY: alerts
alerts: ## check the alert rules for Prometheus and run their unit tests; needs promtool (Debian: prometheus)
	@command -v promtool >/dev/null || { echo "promtool was not found: install Debian's package prometheus." >&2; exit 1; }
	promtool check config deploy/prometheus/prometheus.yml
	promtool test rules deploy/prometheus/alerts_test.yml

.PHONY: release
release: $(VENV)/.stamp-dev ## build sdist, wheel, SBOM and hashes of the commit into dist/
	@$(VENV_PYTHON) .ci/release.py

.PHONY: lock
lock: $(VENV)/.stamp-dev ## lock the versions and hashes of what the image installs, after a change of its requirements
	@$(VENV_PYTHON) .ci/lock.py

.PHONY: openapi
openapi: $(VENV)/.stamp-dev ## generate docs/openapi.yaml
	@DJANGO_SETTINGS_MODULE=project.settings $(VENV_PYTHON) -m delaytasks.api > $(VENV)/openapi.yaml
	@mv $(VENV)/openapi.yaml docs/openapi.yaml

.PHONY: clients
clients: $(VENV)/.stamp-dev ## generate typed clients of the HTTP API into var/clients: Python, TypeScript, PHP and Go
	@$(VENV_PYTHON) .ci/clients.py

.PHONY: lifecycle
lifecycle: $(VENV)/.stamp-dev ## generate docs/lifecycle.md from the table of state transitions
	@$(VENV_PYTHON) .ci/lifecycle.py > docs/lifecycle.md

.PHONY: reference
reference: $(VENV)/.stamp-dev ## write the generated pages of docs/reference/ anew, from the code
	@$(VENV_PYTHON) .ci/reference.py

.PHONY: docs
docs: $(VENV)/.stamp-docs ## the documents as a site in var/docs; fails on a broken link or reference
	$(VENV)/bin/sphinx-build -q -W --keep-going -n -b html docs var/docs
	@echo "The site is in var/docs/index.html."

.PHONY: messages
messages: $(VENV)/.stamp-dev ## update the translations from the sources and compile them
	@$(VENV_PYTHON) .ci/messages.py

.PHONY: screenshots
screenshots: $(VENV)/.stamp-dev ## take the README's screenshots, into docs/images or OUT=folder; needs Chromium
	@$(VENV_PYTHON) -m tests.tools.screenshots

# Rebuilt when the requirements or the environment change.
$(VENV)/.stamp-dev: requirements.txt requirements-pipeline.txt requirements-dev.txt $(if $(shell $(VENV_PYTHON) -c 'print(1)' 2>/dev/null),,always)
	@$(PYTHON) .ci/venv.py $(VENV) requirements-dev.txt
	@touch $@

# Packages of the queues to compare with; installed only for the benchmarks.
$(VENV)/.stamp-bench: requirements-bench.txt $(VENV)/.stamp-dev
	@$(PYTHON) .ci/venv.py $(VENV) requirements-bench.txt
	@touch $@

# Sphinx and its theme, for `make docs`.
$(VENV)/.stamp-docs: requirements-docs.txt $(VENV)/.stamp-dev
	@$(PYTHON) .ci/venv.py $(VENV) requirements-docs.txt
	@touch $@
