# make demo   the whole path in minutes           make test   all tests
# make lint   style and types                     make docs   the documentation site: docs/_build/html/index.html
# make wheel  dist/*.whl                          make test-wheel  install it into an empty environment and use it
# make clean  remove what the others made
# make test-network   the inbox, and the round over Flower, on this machine: TLS, strangers, partners that fail
# make test-page      the report and the formulas of the documentation in headless Chromium
# make test-hostile   files, names and numbers made to do harm, and the fuzzers: build/hostile.json
# make test-examples  the notebooks, and the commands of the pages that take longer
# make sbom   what is installed, as CycloneDX JSON: dist/attar.cdx.json      make audit  known vulnerabilities of it
# make lock   what pip would install, with hashes: build/requirements.lock
# make demo sets up .venv-demo, with the packages of attar alone; the others set up .venv, with those of its developers.
# Only Python 3.11+ and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := .venv-demo
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
OLD_ENOUGH := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "attar needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }

.PHONY: demo test test-examples test-network test-page test-hostile sbom audit lock lint format docs wheel test-wheel clean

demo: $(DEMO)/.ready
	@echo "The demo trains five clients and fuses their files in nine ways: two to four minutes."
	rm -rf demo
	$(DEMO)/bin/attar demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow and not gpu and not network and not browser and not docs"

test-examples: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests/e2e/test_notebooks.py tests/e2e/test_page_commands.py

test-network: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "network and not slow" tests/e2e/test_inbox_round.py tests/e2e/test_network.py tests/e2e/test_documents.py

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
	build/wheel/venv/bin/python $(PIP) dist/*.whl
	cd build/wheel && PYTHONPATH= venv/bin/attar demo --short --out demo
	cd build/wheel && PYTHONPATH= venv/bin/python ../../tests/e2e/whole_path.py path

$(READY): pyproject.toml constraints.txt
	@$(OLD_ENOUGH)
	@echo "Installing attar and all that its developers need into $(VENV): 1.6 GB, one to two minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --editable '.[dev]'
	touch $(READY)

$(DEMO)/.ready: pyproject.toml constraints.txt
	@$(OLD_ENOUGH)
	@echo "Installing attar and what it needs to run into $(DEMO): 1.0 GB on disk, half a minute to two minutes."
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) --editable .
	touch $(DEMO)/.ready

clean:
	rm -rf $(VENV) $(DEMO) demo dist build docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
