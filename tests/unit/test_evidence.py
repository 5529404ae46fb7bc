"""The tables of evidence: every row names a method and settings that exist, and groups that its federation has."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from attar.core import ModelSpec
from attar.data.partition import partition
from attar.methods import find_method
from attar.settings import configure, pairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name):
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


FEDERATIONS = load("evidence").FEDERATIONS


@pytest.mark.parametrize("name", FEDERATIONS)
def test_every_row_can_be_run(name):
    federation = FEDERATIONS[name]
    for row in federation.rows:
        configure(find_method(row.method), pairs(row.settings), of=row.name)
        assert set(row.groups) <= set(federation.groups)
        assert row.start in ("", "average", "start")
        assert row.student is None or ModelSpec.parse(row.student).kind == "classifier"
    names = [row.name for row in federation.rows]
    assert len(set(names)) == len(names)
    partition([number % 10 for number in range(1000)], federation.rule, federation.clients, 0)


def test_fedmitr_s_tables():
    rows = {row.name: row for row in FEDERATIONS["mitr-0.1"].rows}
    method = configure(find_method("fedmitr"), pairs(rows["DeepInversion"].settings), of="DeepInversion")
    assert (method.mask_ratio, method.pseudo_labels, method.relabel, method.distil) == (0, 0, 0, 1)
    assert [rows[name].published for name in ("FedAvg", "DeepInversion", "Inversion + PL", "FedMITR")] == [
        24.3,
        33.77,
        34.72,
        36.97,
    ]
    assert FEDERATIONS["mitr-3cc"].rule == "classes:3"


def test_sparse_inversion_saves_arithmetic_in_one_run(tmp_path, monkeypatch):
    net, out = "vit:depth=2,width=24,hidden=96", tmp_path / "speed" / "sparse.json"
    words = [
        "--net",
        net,
        "--clients",
        "2",
        "--batch",
        "2",
        "--steps",
        "5",
        "--repeats",
        "1",
        "--device",
        "cpu",
        "-o",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["sparse_inversion.py", *words])
    load("sparse_inversion").main()
    record = json.loads(out.read_text())
    assert record["sparse"]["patches"] == [64, 45, 32, 23, 17]
    assert record["dense"]["patches"] == [64]
    # Tokens at the five steps: 65 + 46 + 33 + 24 + 18 of 5 * 65, and attention falls with their square.
    assert record["teraflops_sparse_to_dense"] < 186 / 325 + 0.01
    assert record["sparse"]["seconds"] > 0
