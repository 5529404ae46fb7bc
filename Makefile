# make demo   the whole path in a minute          make test   all tests
# make lint   style and types                     make clean  remove what the others made
# make test-network   the round over Flower on this machine, with TLS and partners that fail
# Each sets up .venv by itself; only Python 3.11+ and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-network test-page lint format clean

demo: $(READY)
	rm -rf demo
	$(BIN)/attar demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow and not gpu and not network and not browser"

test-network: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "network and not slow" tests/e2e/test_network.py

test-page: $(READY)
	$(BIN)/python -m pytest -q -m browser tests/unit/test_page.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "attar needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
