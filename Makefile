# Every command of the project. PYTHON is what makes .venv; TORCH is what pip is asked for (the CPU build where the
# index has one).
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
TSC := .venv/node/node_modules/.bin/tsc

.PHONY: install demo test test-web lint fix bench soak clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install  ## a server and two ranks that overflow within a minute; Ctrl-C ends it
	$(BIN)/rangewatch demo

test: install test-web  ## everything: unit, property, end to end on two ranks, browser
	$(BIN)/pytest -n 2 --dist loadscope

test-web:
	node --test tests/web/

lint: install $(TSC)  ## style, types, import rules, the pages' types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TSC) -p web/jsconfig.json

$(TSC):
	npm install --silent --no-fund --no-audit --prefix .venv/node typescript@5

fix: install  ## what ruff can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## prints each claim's figure beside a baseline; some 40 minutes on an idle machine (bench/README.md)
	$(BIN)/pip install --quiet --constraint constraints.txt tensorboard wandb
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/kernel.py
	$(BIN)/python bench/ingest.py
	$(BIN)/python bench/fleet.py
	$(BIN)/python bench/fleet.py --find-limit
	$(BIN)/python bench/query.py
	$(BIN)/python bench/server_away.py
	$(BIN)/python bench/collectives.py

soak: install  ## the long runs of the same tests
	RANGEWATCH_SOAK=1 $(BIN)/pytest --timeout 3600 tests/server tests/e2e tests/agent/linkcheck tests/agent/test_bad_models.py tests/agent/test_many_steps.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
