SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
CODE := src tests bench dev

##@ Use
.PHONY: help install demo bench
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/spark.stamp ## Set up .venv, the dependencies and Spark's jars; quick when nothing changed

demo: install ## Keep a changing Postgres current in Delta and DuckDB, and compare them at the end
	$(BIN)/cdc demo

PARTS :=
bench: install ## Measure all that is fast, or PARTS of it (bench/__main__.py has the names); results go to bench/results
	$(BIN)/python -m bench $(PARTS)

##@ Prove
.PHONY: test check lint test-unit test-spark test-servers test-service test-e2e fuzz kills sleeps poison convex-histories flows airbyte mutants
test: check ## Everything: the cheap checks first, then the tier that computes beside those that wait for servers
	@echo "spark, and beside it service and e2e: each is shown when it is done"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-spark test-servers

check: install ## Format, lint, types, architecture and unit tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-unit lint

lint: install ## Format, lint, types, architecture
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-unit: install ## No Spark, no network: seconds
	$(PYTEST) tests/unit

test-spark: install ## One Spark session
	$(PYTEST) tests/spark

test-service: install ## Real servers
	$(PYTEST) tests/service

test-servers: install ## Real servers, then the command
	$(PYTEST) tests/service
	$(PYTEST) tests/e2e

test-e2e: install ## The command, killed and started again
	$(PYTEST) tests/e2e

SECONDS := 600
SEED :=
fuzz: install ## Try random histories against the oracle for SECONDS, from SEED if given
	$(BIN)/python -m tests.spark.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

TARGETS :=
kills: install ## Kill the command twice at every failpoint of every target, or of TARGETS, in an order from SEED
	$(BIN)/python -m tests.e2e.kills $(if $(SEED),--seed $(SEED)) $(if $(TARGETS),--targets $(TARGETS))

sleeps: install ## Stop the command with a batch of every target, or of TARGETS, in hand, while another one goes on
	$(BIN)/python -m tests.e2e.sleeps $(if $(TARGETS),--targets $(TARGETS))

poison: install ## Read poison in the middle of a million good messages of a real Kafka
	$(BIN)/python -m bench.poison

SEEDS := 20
TRANSACTIONS := 10000
convex-histories: install ## Long random histories of Convex into every target, against the deployment
	$(BIN)/python -m tests.spark.convex_histories --seeds $(SEEDS) --transactions $(TRANSACTIONS)

build/spark43/done:
	$(PYTHON) -m venv build/spark43
	build/spark43/bin/pip install --quiet "pyspark[pipelines]==4.3.0"
	@touch $@

flows: install build/spark43/done ## Have Spark's own pipelines judge the AUTO CDC flows of a bundle, in an environment of its own
	$(BIN)/python -m tests.spark.dry_run --environment build/spark43

build/airbyte/done:
	$(PYTHON) -m venv build/airbyte
	build/airbyte/bin/pip install --quiet "airbyte-source-convex==0.4.51"
	@touch $@

airbyte: install build/airbyte/done ## Have Airbyte's connector for Convex read the emulator, in an environment of its own (Python 3.11)
	$(BIN)/python -m tests.e2e.airbyte --environment build/airbyte

mutants: install ## Plant bugs into the apply engine, and see that each is caught
	$(BIN)/python -m tests.spark.mutants

##@ Work
.PHONY: services fmt lock clean
SERVICES :=
services: install ## Run the servers that tests use, or those in SERVICES, until Ctrl-C
	$(BIN)/python -m dev.services up $(SERVICES)

fmt: install ## Format the code and repair what ruff can repair
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lock: python-is-ready ## Resolve the dependencies again into requirements.txt
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile pyproject.toml --quiet --all-extras --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --output-file requirements.txt
	rm -rf build/lock

clean: ## Remove .venv and everything that was generated here; the jar cache stays
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .tailrace bench/results
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: python-is-ready java-is-ready
python-is-ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'error[python-too-old]: Python 3.11 or newer is needed: install it, or name it with "make PYTHON=...".' >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'error[python-venv-missing]: Python has no venv module: install it (on Debian, package python3-venv).' >&2; exit 3; }

java-is-ready:
	@version=$$("$(JAVA)" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1); \
	if [ -z "$$version" ]; then \
		echo 'error[java-missing]: Java 17 or newer is needed: install it, or set JAVA_HOME.' >&2; exit 3; \
	elif [ "$$version" -lt 17 ]; then \
		echo "error[java-too-old]: Java 17 or newer is needed, found is $$version: install it, or set JAVA_HOME." >&2; exit 3; \
	fi

.venv/python.stamp: requirements.txt pyproject.toml | python-is-ready java-is-ready
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/spark.stamp: .venv/python.stamp src/tailrace/spark/jars.lock src/tailrace/demo/rehearse.py
	$(BIN)/python -m tailrace.spark.prepare
	$(BIN)/python -m tailrace.demo.rehearse
	@touch $@
