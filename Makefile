# Every command of the project. PYTHON is what makes .venv; TORCH is what pip is asked for (the CPU build where the
# index has one). The demo trains on the CPU: it asks TORCH_CPU first, since PyPI's build for Linux brings gigabytes of CUDA.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_CPU ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
TSC := .venv/node/node_modules/.bin/tsc
AXE := .venv/node/node_modules/axe-core/axe.min.js
# Tools that look at dependencies, apart from what the project runs with. uv is asked for by `make lock` only.
AUDIT := .venv/audit/bin
AUDIT_TOOLS := pip-audit==2.10.1 cyclonedx-bom==7.5.0
UV := uv==0.13.9
# Processes that run tests; one that has nothing left to do takes half of another's. What Python compiles is kept, since
# tests start processes that import it again.
WORKERS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
IN_WORKERS := -n $(WORKERS) --dist worksteal
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: install demo test test-all test-slow test-recipes test-gpu bench-gpu gpu-wheels test-web coverage lint fix bench docs docs-diagnosis docs-tables docs-images soak lock vendor sbom clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/demo $@

# Of .venv what the demo needs: torch and the server, and none of the tools for development.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --retries 1 --timeout 15 --index-url $(TORCH_CPU) $(TORCH) 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[agent,server]'
	touch $@

demo: .venv/demo  ## a server and two ranks that overflow within a minute; Ctrl-C ends it
	$(BIN)/rangewatch demo

# The tiers of tests: CONTRIBUTING.md.
test: install $(AXE) test-web  ## for each commit: says of every part whether it works; aim: five minutes on two cores
	$(PYTEST) $(IN_WORKERS)

test-all: install $(AXE) test-web  ## all but what takes hours or a GPU
	$(PYTEST) $(IN_WORKERS) -m 'not soak and not gpu'

test-slow: install $(AXE)  ## what test-all has beyond test
	$(PYTEST) $(IN_WORKERS) -m 'slow and not soak and not gpu'

# What the trainers' recipes want beside what the tests have: 400 MB. torchtitan names older releases than the tests run with.
test-recipes: install  ## the scripts of docs/recipes/, each trained for a few steps on the CPU
	$(BIN)/pip install --quiet --constraint constraints.txt ray trl
	$(BIN)/pip install --quiet --no-deps torchtitan==0.3.0 torchdata torch_checkpointing spmd_types==0.2.3 tyro docstring_parser typeguard
	$(PYTEST) -m slow tests/docs/test_recipes.py tests/docs/test_torchtitan.py

# By the machine's own python3, without .venv: docs/gpu.md.
gpu-wheels:  ## in gpu-wheels/, what a GPU machine without a package index lacks
	$(PYTHON) bench/gpu/wheels.py

test-gpu:  ## what needs a CUDA device, in one report; ARGS=--dry-run: what can be seen without one
	$(PYTHON) bench/gpu test $(ARGS)

bench-gpu:  ## what the agent costs on a CUDA device, in one report
	$(PYTHON) bench/gpu bench $(ARGS)

coverage: install $(AXE)  ## lines that `make test` reaches, those of servers and ranks included, in .coverage
	rm -f .coverage .coverage.*
	PYTHONDONTWRITEBYTECODE= $(BIN)/coverage run -m pytest $(IN_WORKERS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort cover

# Without the folder as an argument, which newer Nodes refuse.
test-web:
	cd tests/web && node --test

lint: install $(TSC) $(AUDIT)/python  ## style, types, import rules, the pages' types, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TSC) -p web/jsconfig.json
	$(BIN)/python tools/audit_dependencies.py $(AUDIT)/pip-audit requirements-server.txt

# Where they cannot be installed the audit says so and is skipped.
$(AUDIT)/python:
	$(PYTHON) -m venv .venv/audit
	$(AUDIT)/pip install --quiet $(AUDIT_TOOLS) || true

lock: $(AUDIT)/python  ## requirements-*.txt by hash, within constraints.txt
	$(AUDIT)/pip install --quiet $(UV)
	tools/lock.sh $(AUDIT)/uv

vendor: install  ## the pages' Plotly.js, after the plotly package was moved to another version
	$(BIN)/python -m tools.vendor_plotly

sbom: $(AUDIT)/python  ## what the server is made of, as CycloneDX, for the notes of a release
	mkdir -p dist
	$(AUDIT)/cyclonedx-py requirements requirements-server.txt --pyproject pyproject.toml --output-reproducible --of JSON -o dist/rangewatch-$(VERSION).cdx.json
	$(PYTHON) tools/sbom_vendored.py dist/rangewatch-$(VERSION).cdx.json

# The types of the pages, and what checks their accessibility in tests/browser.
$(TSC) $(AXE) &:
	npm install --silent --no-fund --no-audit --prefix .venv/node typescript@5 axe-core@4.14

fix: install  ## what ruff can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## prints each claim's figure beside a baseline; some 85 minutes on an idle machine (bench/README.md)
	$(BIN)/pip install --quiet --constraint constraints.txt wandb
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/kernel.py
	$(BIN)/python bench/ingest.py
	$(BIN)/python bench/fleet.py
	$(BIN)/python bench/fleet.py --find-limit
	$(BIN)/python bench/start.py
	$(BIN)/python bench/query.py
	$(BIN)/python bench/web.py
	$(BIN)/python bench/server_away.py
	$(BIN)/python bench/spool.py
	$(BIN)/python bench/collectives.py
	$(BIN)/python bench/stragglers.py
	$(BIN)/python bench/diagnosis.py
	$(BIN)/python bench/unseen.py
	$(BIN)/python bench/rules.py

docs: install  ## the site of docs/, in site/, which needs no server; a link or anchor that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-tables: install  ## the pages of docs/ that are made from the shelves
	$(BIN)/python -m tools.docs_tables

docs-images: install  ## docs/images/*.png: the pages over made-up runs, in Chromium
	$(BIN)/python -m tools.docs_screenshots

docs-diagnosis: install  ## docs/diagnosis.md from the rules, and what they say of made-up runs
	$(BIN)/python -m tests.faults.make_docs

soak: install $(AXE)  ## hours: the same tests with many seeds, kills, ranks and examples
	RANGEWATCH_FUZZ_S=3600 $(PYTEST) -m soak --timeout 3600

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
