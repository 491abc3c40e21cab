# Two commands do everything: `make demo` and `make test`. Both set up .venv on first use.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow bench format clean

demo: .venv/installed
	@$(BIN)/python examples/demo.py

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

slow: .venv/installed
	$(BIN)/pytest -m slow

bench: .venv/installed
	$(BIN)/python benchmarks/planning.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv out dist build
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Dovetail needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@
