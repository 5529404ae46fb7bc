# make demo   the whole path in minutes           make test   all tests
# make lint   style and types                     make docs   the documentation site: docs/_build/html/index.html
# make wheel  dist/*.whl                          make test-wheel  install it into an empty environment and use it
# make clean  remove what the others made
# make test-network   the inbox, and the round over Flower, on this machine: TLS, strangers, partners that fail
# make test-page      the report and the formulas of the documentation in headless Chromium
# make test-hostile   files, names and numbers made to do harm, and the fuzzers: build/hostile.json
# make sbom   what is installed, as CycloneDX JSON: dist/attar.cdx.json      make audit  known vulnerabilities of it
# make lock   what pip would install, with hashes: build/requirements.lock
# Each sets up .venv by itself; only Python 3.11+ and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-network test-page test-hostile sbom audit lock lint format docs wheel test-wheel clean

demo: $(READY)
	rm -rf demo
	$(BIN)/attar demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow and not gpu and not network and not browser and not docs"

test-network: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "network and not slow" tests/e2e/test_inbox.py tests/e2e/test_network.py

test-page: docs
	$(BIN)/python -m pytest -q -m browser tests/unit/test_page.py tests/unit/test_service.py tests/unit/test_site.py

test-hostile: $(READY)
	mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/record.py --out build/hostile.json

sbom: $(READY)
	mkdir -p dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
	$(BIN)/python -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible --of JSON -o dist/attar.cdx.json $(BIN)/python

audit: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip_audit --skip-editable

lock: $(READY)
	mkdir -p build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report build/pip-report.json --constraint constraints.txt '.[dev]'
	$(BIN)/python .ci/lock.py build/pip-report.json > build/requirements.lock

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	rm -rf docs/_build
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --builder html docs docs/_build/html
	$(BIN)/python -m pytest -q -m "docs and not browser" tests/unit/test_site.py

wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

test-wheel: wheel
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build/wheel && PYTHONPATH= venv/bin/attar demo --short --out demo

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "attar needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }
	@echo "Installing attar and all that its developers need into $(VENV): 1.6 GB, one to two minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo dist build docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
