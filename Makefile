# Two commands do everything: `make demo` and `make test`. Both set up .venv on first use, `make test` with its tools.

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
PARALLEL := --numprocesses $(JOBS) --dist worksteal
MAKEFLAGS += --jobs=2
unexport PYTHONDONTWRITEBYTECODE  # the suite starts hundreds of processes, and each would compile all it imports

.PHONY: demo test docs quick quick-tests check kernels coverage other-kernels slow bench format clean

# The main job in seven steps, and a report; `make demo ALL=1` has the rest.
demo: .venv/installed
	@$(BIN)/python examples/demo.py $(if $(ALL),--all)

# The documentation as a site, in out/site; a warning is an error.
docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "built: out/site/index.html"

# Everything: lint, types, import rules and tests, those that need the machine for themselves last.
test: check kernels
	$(BIN)/pytest $(PARALLEL) -m 'not slow and not alone'
	$(BIN)/pytest -m 'alone and not slow'

# Under a minute: the same without tests that start processes, train or measure time; the type checker beside the tests.
quick: check quick-tests

quick-tests: .venv/installed-dev
	$(BIN)/pytest $(PARALLEL) -m 'not slow and not alone and not processes'

# Beside the type checker, which takes one core: what both processes of the tests would otherwise compile.
kernels: .venv/installed-dev
	$(BIN)/python .ci/compile.py

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# How much of each package the tests run; the same tests take half as long again.
coverage: kernels
	$(BIN)/pytest $(PARALLEL) --cov --cov-report= -m 'not slow and not alone'
	$(BIN)/pytest --cov --cov-append --cov-report= -m 'alone and not slow'
	$(BIN)/python .ci/packages.py

# What compares computed numbers, with the kernels that other processors get: none may hang on one maker's last bits.
other-kernels: .venv/installed-dev
	set -e; for kernels in ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE; do \
	  echo "$$kernels"; env $$kernels $(BIN)/pytest $(PARALLEL) -m 'numbers and not slow and not alone'; \
	done

slow: .venv/installed-dev
	$(BIN)/pytest --hypothesis-profile anew -m 'slow or hypothesis'

bench: .venv/installed-dev
	$(BIN)/python benchmarks/planning.py

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .coverage out dist build
	find src tests testbed benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Dovetail needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dashboard,serve]"
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@
