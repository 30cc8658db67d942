# Two commands are enough: `make run` shows it, `make test` proves it. Each sets up what it needs.

SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

VENDOR := src/headwater/console/static/vendor

SITE := src/headwater/console/site

.PHONY: run test test-all test-fast pytest pytest-fast lint bench docs docs-site lock messages system clean
.DEFAULT_GOAL := run

run: $(VENV)/.run $(VENV)/.classes $(VENDOR)/htmx.min.js docs-site  ## the demo
	@$(BIN)/headwater demo

# docs/testing.md describes the tiers. In six processes on two cores, because most tests
# wait for a disk, a client or a child more than they compute; lint is a seventh for a minute.
# What holds the broker to a time under load comes afterwards, by itself.
JOBS ?= 6
WORKERS := -n $(JOBS) --dist loadfile --no-loadscope-reorder
TIMED := tests/broker/network/test_backpressure.py

test: system $(VENV)/.dev $(VENV)/.classes $(VENDOR)/htmx.min.js docs-site  ## every promise, in some 15 minutes
	@$(MAKE) --no-print-directory -j 2 lint pytest
	$(BIN)/python -m pytest $(TIMED)

# Collected once before, while lint is busy: otherwise each process would compile every test.
pytest:
	@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1 || true
	$(BIN)/python -m pytest $(WORKERS) $(TIMED:%=--ignore=%)

test-all: export HEADWATER_LONG ?= 1
test-all: test  ## and all kills, seeds, values, stores and foreign clients: hours

FAST := tests/protocol tests/broker/api tests/broker/groups tests/testing \
	tests/test_config.py tests/test_documentation.py \
	$(addprefix tests/log/test_,partition.py log_store.py recovery.py retention.py \
	transactions.py committer.py snapshots.py files.py compaction.py)

test-fast: $(VENV)/.dev  ## the core, in a minute: no foreign clients, no kills
	@$(MAKE) --no-print-directory -j 2 lint pytest-fast

pytest-fast:
	$(BIN)/python -m pytest -n 2 -m "not slow and not java" $(FAST)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

bench: system $(VENV)/.dev  ## beside real Kafka, in one sitting
	$(BIN)/python -m bench

docs: $(VENV)/.dev  ## the generated pages of docs/
	$(BIN)/python tools/generate_api_docs.py
	$(BIN)/python tools/generate_cli_docs.py
	$(BIN)/python tools/generate_module_map.py

docs-site: $(SITE)/index.html  ## docs/ as a site, which the console serves under /docs

$(SITE)/index.html: $(wildcard *.md) $(shell find docs examples tools/site -type f) \
		tools/build_site.py $(VENV)/.docs
	@echo "Building the documentation …"
	@$(BIN)/python tools/build_site.py
	@touch $@

lock: $(VENV)/.dev  ## new versions of everything, within pyproject.toml's ranges
	$(BIN)/uv pip compile --universal --no-emit-index-url --no-header --no-annotate --upgrade \
		--quiet pyproject.toml --extra all --extra demo -o requirements.txt
	$(BIN)/uv pip compile --universal --no-emit-index-url --no-header --no-annotate --upgrade \
		--quiet pyproject.toml --extra all --extra demo --group dev -o requirements-dev.txt
	$(BIN)/uv pip compile --universal --no-emit-index-url --no-header --no-annotate --upgrade \
		--quiet --group docs -c requirements-dev.txt -o requirements-docs.txt

messages: $(VENV)/.dev  ## src/headwater/protocol/messages from Kafka's own schemas
	$(BIN)/python -m bench.peers.kafka --fetch
	$(BIN)/python tools/generate_messages.py .work/kafka/libs/kafka-clients-*.jar \
		.work/kafka/libs/kafka-{group,transaction,share}-coordinator-[0-9]*.jar
	$(BIN)/ruff format --quiet src/headwater/protocol/messages

system:  ## kcat, Java, Maven, Chromium …, for the tests with those
	@bash tools/install_system_packages.sh

$(VENV)/.run: requirements.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Headwater into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt hatchling editables
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.classes: $(VENV)/.run
	@echo "Preparing Spark, so that it starts sooner …"
	@$(BIN)/python -m headwater.pipelines.class_archive > /dev/null || true
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.run
	@echo "Installing what the tests need …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(VENV)/.docs: requirements-docs.txt $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

$(VENDOR)/htmx.min.js: package-lock.json tools/install_console_assets.sh $(VENV)/.run
	@bash tools/install_console_assets.sh $(BIN)

clean:
	rm -rf $(VENV) node_modules $(VENDOR) $(SITE) .work .headwater .mypy_cache .ruff_cache .pytest_cache .hypothesis
