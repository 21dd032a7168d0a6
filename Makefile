PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint bench clean

demo: $(STAMP)  ## train, poke holes, compare; the plot and the report land in out/
	$(BIN)/knothole demo

test: $(STAMP) lint  ## everything CI runs
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## ratios against the libraries themselves, measured in one run
	$(BIN)/python -m bench

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $(STAMP)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis out
