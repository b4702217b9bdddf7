# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.PHONY: demo test test-compiled compiled-wheel test-engines test-web compile web check fast format lint types imports docs install install-dev clean

demo: $(RUN_STAMP)
	$(BIN)/sooner demo

# Two at once, whole files at a time, so that what a file's tests share is made once, in the order of tests/conftest.py: first the
# tests that compute, then those with services, which mostly wait. In the end those that ask how long something takes, alone.
TWO = -n 2 --dist loadfile --no-loadscope-reorder
# The tests that compute wait, too, for processes and for the disk: three at once keep two cores busy.
THREE = -n 3 --dist loadfile --no-loadscope-reorder
test: $(DEV_STAMP) format lint types imports
	failed=0; \
	$(BIN)/python -m pytest $(THREE) -m "not services and not alone and not compiled and not engines and not web" || failed=1; \
	$(BIN)/python -m pytest $(TWO) -m services tests/crash tests/e2e || failed=1; \
	$(BIN)/python -m pytest -m alone tests/e2e || failed=1; \
	exit $$failed

# The hot modules compiled from the same source, into build/compiled (see docs/how-to/compile.md). Needs a C compiler.
compile: $(DEV_STAMP)
	$(BIN)/python -m compilation
	@echo "To run them: PYTHONPATH=build/compiled $(BIN)/sooner --version"

# Builds the compiled wheel, unless one of the same source is there, and runs on it what defines the scheduler.
test-compiled: $(DEV_STAMP)
	$(BIN)/python -m tests.compiled.run $(TWO)

# The wheel alone. In the background, at the lowest priority, it takes the time in which other tests wait.
compiled-wheel: $(DEV_STAMP)
	$(BIN)/python -m tests.compiled.run --build

# With a real Slurm (Debian's packages, installed where they are missing), as root and in namespaces of its own.
test-engines: $(DEV_STAMP)
	$(BIN)/python -m tests.engines.run

# The dashboard in a real Chromium (Node, npm and Chromium of Debian, installed where they are missing).
test-web: $(DEV_STAMP)
	$(BIN)/python -m tests.web.run $(TWO) tests/web

# The scripts and styles of the dashboard, from service/web/src into service/web/static.
web:
	cd service/web && npm ci && npx tsc --noEmit && node build.mjs

check: $(DEV_STAMP) format lint types imports fast

fast: $(DEV_STAMP)
	$(BIN)/python -m pytest -q $(TWO) -m "not slow and not traces and not services and not alone and not engines and not web"

format: $(DEV_STAMP)
	$(BIN)/ruff format --check .

lint: $(DEV_STAMP)
	$(BIN)/ruff check .

types: $(DEV_STAMP)
	$(BIN)/mypy

imports: $(DEV_STAMP)
	$(BIN)/lint-imports

# The documentation site, which the service serves at /docs/. Installing builds it too.
docs: $(DEV_STAMP)
	$(BIN)/python -m docs.site

install: $(RUN_STAMP)
install-dev: $(DEV_STAMP)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Sooner needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# The build backend comes from the lock as well, so nothing is installed that the lock does not name.
$(RUN_STAMP): $(BIN)/python requirements.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(DEV_STAMP): $(BIN)/python requirements-dev.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@ $(RUN_STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist service/_site *.egg-info

# The lock is universal (every platform and Python that pyproject.toml admits) and holds no index address.
UV_FLAGS = --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet
UV_COMPILE = $(BIN)/uv pip compile $(UV_FLAGS) pyproject.toml
.PHONY: lock
lock: $(BIN)/python
	$(BIN)/python -m pip install --quiet uv
	$(UV_COMPILE) --extra build -o requirements.lock
	$(UV_COMPILE) --extra dev -o requirements-dev.lock
	$(UV_COMPILE) --extra build --extra ray --constraint requirements-dev.lock -o requirements-ray.lock
	$(BIN)/uv pip compile $(UV_FLAGS) --group models -o requirements-torch.lock
