"""The bench: clients and cells run once, are resumed, and give the same records on every engine."""

import csv
import importlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attar.bench import decoder_fid, nets, provenance
from attar.bench.cell import run_cell
from attar.bench.cells import digest, unique_runs
from attar.bench.clients import bundle_folder, read_uploads, train_clients
from attar.bench.compare import CostToAccuracy, bytes_to_accuracy
from attar.bench.cost import Costs
from attar.bench.engines import Inline, Job, JobResult, Processes, jobs, open_engine
from attar.bench.engines.jobs import perform
from attar.bench.engines.schedule import LEAST_SHARE, run_bench
from attar.bench.epoch_images import draw_epoch_images, save_epoch_images
from attar.bench.federation_data import load_federation
from attar.bench.finished import changed_defaults, find_finished, find_outdated
from attar.bench.grid import cells_of
from attar.bench.outcome import thin_history
from attar.bench.parse import parse_recipe
from attar.bench.records import (
    FAILED,
    FINISHED,
    drop_volatile,
    pack_records,
    read_records,
    remove_finished_run,
    write_record,
)
from attar.bench.tables import as_csv, table_of
from attar.cli import main
from attar.core import Result
from attar.errors import BundleError, OutOfTime, SettingsError, Stopped
from attar.methods import METHODS
from attar.nets.registry import NETS
from attar.report.facts import facts_of
from attar.report.page import write_report

QUICK = {"epochs": 2, "generator_steps": 2, "batch_size": 16, "generator_width": 8}
TINY = {
    "title": "tiny",
    "source": "nowhere",
    "federation": {
        "data": "fashion-mini",
        "rule": "dirichlet:0.5",
        "clients": 3,
        "hold_out": 0.05,
        "min_size": 50,
        "training": {"epochs": 1, "batch_size": 64, "lr": 0.02},
    },
    "methods": {
        "FedAvg": {"method": "fedavg"},
        "Hydra": {"method": "fedhydra", "set": QUICK, "curve": 2},
        "first": {"method": "local"},
        "weights": {"method": "oracle-weights", "set": {"steps": 20}},
        "distil": {"method": "feddf", "set": {"steps": 8, "start_from": "fresh"}},
        "all": {"method": "central"},
        "broken": {"method": "local", "set": {"client": 7}},
    },
    "published": {"columns": ["FedAvg", "Hydra"], "rows": [["30.0±1.5", 50]]},
}
RECIPE = parse_recipe(TINY, "tiny")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The tiny recipe, run once in this process."""
    out = tmp_path_factory.mktemp("bench")
    reported = []
    result = run_bench(cells_of(RECIPE), out, Inline(), on_record=reported.append)
    return out, result, {record["row"]: record for record in read_records(out)}, reported


def test_run_bench_records_every_cell(bench):
    out, result, records, reported = bench
    assert len(result.done) == 6
    assert list(result.failed) == ["broken, seed 0"]
    assert result.trained == 2  # one set for all methods, one for everything in one place
    assert records["broken"]["ending"] == FAILED
    assert "no client 7" in records["broken"]["error"]
    assert [record["ending"] for record in reported] == [FINISHED] * 6
    assert not list((out / "runs").iterdir())  # what counts is on record
    assert not list((out / "progress").iterdir())


def test_run_cell_records_outcome(bench):
    _, _, records, _ = bench
    record = records["Hydra"]
    assert record["recipe"] == "tiny"
    assert len(record["key"]) == 32
    assert record["versions"]["torch"] == torch.__version__
    assert set(record["seconds_by_phase"]) == {"stratify", "distil", "evaluation"}
    assert sum(record["seconds_by_phase"].values()) <= record["seconds"]
    assert record["bytes_up"] == sum(client["bytes"] for client in record["clients"]) > 0
    assert record["bytes_down"] == 0
    assert [point["step"] for point in record["curve"] if point["phase"] == "distil"] == [1, 2]
    assert record["accuracy"] == record["curve"][-1]["accuracy"] <= record["best_on_test"]
    assert set(record["models"]) == {"student", "ensemble"}
    assert sum(map(sum, record["models"]["student"]["confusion"])) == 1000
    assert len(record["models"]["student"]["per_class"]) == 10
    assert len(record["arrays"]["guidance"]) == 3  # U: clients x classes
    assert all(0 <= client["accuracy"] <= 1 for client in record["clients"])
    assert 0 <= record["ensemble_accuracy"] <= 1
    assert record["gallery"]["steps"] == [1, 2]
    assert record["settings"]["generator_steps"] == 2
    json.dumps(record, allow_nan=False)


def test_run_cell_records_what_oracles_see(bench):
    _, _, records, _ = bench
    assert records["weights"]["oracle"] == "labelled real images that were held out"
    assert records["distil"]["oracle"] is None  # images without labels: a federation may have them
    assert records["all"]["oracle"] == "the images of all clients"
    assert records["FedAvg"]["oracle"] is None
    assert sum(records["weights"]["arrays"]["weights"]) == pytest.approx(1)
    assert [client["num_examples"] for client in records["all"]["clients"]] == [6000]
    assert records["first"]["accuracy"] == records["Hydra"]["clients"][0]["accuracy"]


def test_oracle_weights_lower_loss(bench):
    _, _, records, _ = bench
    losses = [point["loss"] for point in records["weights"]["history"]]
    assert losses[-1] < losses[0]


class Listing(Inline):
    """Lists the titles of the cells that it is given."""

    def __init__(self):
        super().__init__()
        self.titles = []

    def submit(self, job):
        self.titles.append(job.work.title)
        super().submit(job)


def test_run_bench_keeps_finished_cells(bench):
    out, _, records, _ = bench
    before = {
        path: path.stat().st_mtime_ns
        for path in [*out.rglob("*.attar"), *(out / "records").glob("*.json")]
    }
    engine = Listing()
    result = run_bench(cells_of(RECIPE), out, engine)
    assert engine.titles == ["broken, seed 0"]  # what failed is tried again
    assert len(result.before) == 6
    assert result.trained == 0
    after = {path: path.stat().st_mtime_ns for path in before}
    assert [path.name for path in before if before[path] != after[path]] == [
        f"{records['broken']['name']}.json"
    ]


def test_pack_records_keeps_records_valid(bench, tmp_path):
    out, _, records, _ = bench
    shutil.copytree(out / "records", tmp_path / "records")
    page = write_report(tmp_path, tmp_path / "before.html", [RECIPE])
    table = as_csv(RECIPE, table_of(RECIPE, read_records(out)))
    assert pack_records(tmp_path).records == 6
    assert [path.stem for path in (tmp_path / "records").glob("*.json")] == [
        records["broken"]["name"]
    ]
    assert write_report(tmp_path, tmp_path / "after.html", [RECIPE]).read_text() == page.read_text()
    assert as_csv(RECIPE, table_of(RECIPE, read_records(tmp_path))) == table
    hydra = next(cell for cell in cells_of(RECIPE) if cell.row.label == "Hydra")
    assert find_finished(tmp_path, hydra) == records["Hydra"]
    result = run_bench(
        [cell for cell in cells_of(RECIPE) if cell.row.label != "broken"], tmp_path, Inline()
    )
    assert (len(result.before), result.done, result.trained) == (6, [], 0)
    write_record(
        tmp_path,
        {**records["Hydra"], "settings": {**records["Hydra"]["settings"], "diversity": 99.0}},
    )
    assert pack_records(tmp_path).records == 1
    assert find_outdated(tmp_path, hydra) == [
        "made under other defaults (diversity: 99.0 then, 0.5 now)"
    ]
    assert find_finished(tmp_path, hydra) is None


def test_read_uploads_reads_changed_files_again(bench, tmp_path):
    (clients,) = next(cell for cell in cells_of(RECIPE) if cell.row.label == "FedAvg").client_sets
    folder = bundle_folder(tmp_path, clients)
    shutil.copytree(bundle_folder(bench[0], clients), folder)
    first = read_uploads([clients], tmp_path)
    assert [one.path.name for one in first] == [
        "client-0.attar",
        "client-1.attar",
        "client-2.attar",
    ]
    again = read_uploads([clients], tmp_path)
    assert [id(one) for one in again] == [id(one) for one in first], "they are not read again"
    (folder / "client-1.attar").write_bytes((folder / "client-1.attar").read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"client-1\.attar"):
        read_uploads([clients], tmp_path)
    (folder / "client-1.attar").unlink()
    with pytest.raises(BundleError, match=r"client-1\.attar"):
        read_uploads([clients], tmp_path)


def test_find_finished_ignores_changed_defaults(bench, tmp_path):
    out, _, records, _ = bench
    cell = next(cell for cell in cells_of(RECIPE) if cell.row.label == "Hydra")
    assert find_finished(out, cell)
    then = {**records["Hydra"], "settings": {**records["Hydra"]["settings"], "diversity": 99.0}}
    assert changed_defaults(cell, then) == ["diversity: 99.0 then, 0.5 now"]
    write_record(tmp_path, then)
    assert find_finished(tmp_path, cell) is None
    del then["settings"]["diversity"]  # a setting that is new
    assert not changed_defaults(cell, then)
    write_record(tmp_path, then)
    assert find_finished(tmp_path, cell)


def test_table_of_has_published_numbers(bench):
    _, _, records, _ = bench
    lines = {line.row: line for line in table_of(RECIPE, records.values())}
    assert lines["FedAvg"].difference == pytest.approx(100 * records["FedAvg"]["accuracy"] - 30)
    assert lines["broken"].status.startswith("failed: There is no client 7")
    assert lines["Hydra"].published is not None
    rows = {
        row["row"]: row for row in csv.DictReader(io.StringIO(as_csv(RECIPE, list(lines.values()))))
    }
    assert rows["Hydra"]["n"] == "1"
    assert rows["Hydra"]["std"] == ""
    assert rows["FedAvg"]["published_std"] == "1.5"
    assert rows["all"]["sees"] == "the images of all clients"
    nothing = table_of(RECIPE, [])
    assert {line.status for line in nothing} == {"not run"}


def test_table_of_averages_seeds():
    recipe = parse_recipe(
        {**TINY, "seeds": [0, 1, 2], "methods": {"FedAvg": {"method": "fedavg"}}, "published": {}},
        "tiny",
    )
    records = [
        {
            "key": cell.key,
            "precision": "fp32",
            "ending": FINISHED,
            "accuracy": value,
            "best_on_test": 0.9,
            "seed": cell.seed,
        }
        for cell, value in zip(cells_of(recipe), (0.5, 0.6, 0.7), strict=True)
    ]
    (line,) = table_of(recipe, records)
    assert line.mean == pytest.approx(60)
    assert line.deviation == pytest.approx(10)  # of the sample: sqrt((10^2 + 0 + 10^2) / 2)


def test_table_of_reads_named_output(bench):
    _, _, records, _ = bench
    hydra = {"method": "fedhydra", "set": QUICK, "curve": 2}
    both = parse_recipe(
        {
            **TINY,
            "methods": {"student": hydra, "ensemble": {**hydra, "output": "ensemble"}},
            "published": {},
        },
        "two",
    )
    lines = {line.row: line for line in table_of(both, records.values())}
    models = records["Hydra"]["models"]
    assert lines["student"].mean == pytest.approx(100 * models["student"]["accuracy"])
    assert lines["ensemble"].mean == pytest.approx(100 * models["ensemble"]["accuracy"])
    assert lines["ensemble"].best is None  # the curve is the headline's
    for cells in (cells_of(both), cells_of(both)[::-1]):
        (cell,) = unique_runs(cells).values()
        assert cell.row.label == "student"  # whose accuracy the record tells


def test_run_bench_starts_student_from_average(bench, tmp_path):
    out, _, records, _ = bench
    (tmp_path / "clients").symlink_to(out / "clients")
    rows = {
        "average": {"method": "dense", "set": {"epochs": 0}, "start": "average"},
        "fresh": {"method": "dense", "set": {"epochs": 0}},
    }
    recipe = parse_recipe({**TINY, "methods": rows, "published": {}}, "start")
    run_bench(cells_of(recipe), tmp_path, Inline())
    found = {record["row"]: record["accuracy"] for record in read_records(tmp_path)}
    assert found["average"] == records["FedAvg"]["accuracy"] != found["fresh"]


def test_run_bench_shares_clients_with_statistics(tmp_path):
    rows = {
        "all": {"method": "accord", "set": QUICK, "curve": 0},
        "its teacher": {"method": "accord", "set": QUICK, "curve": 0, "output": "teacher"},
        "models": {"method": "accord", "set": {**QUICK, "use": "models"}, "curve": 0},
        "FedENS": {"method": "ensemble"},
    }
    tables = {
        **TINY,
        "federation": {**TINY["federation"], "statistics": True},
        "methods": rows,
        "published": {},
    }
    recipe = parse_recipe(tables, "statistics")
    result = run_bench(cells_of(recipe), tmp_path, Inline())
    assert not result.failed
    assert result.trained == 1
    records = {
        record["settings"].get("use", "ensemble"): record for record in read_records(tmp_path)
    }
    assert all(
        set(client["parts"]) == {"classifier", "statistics"}
        for client in records["ensemble"]["clients"]
    )
    assert "Familiarity gate: from the statistics of 3 of 3 clients." in records["all"]["remarks"]
    assert "Familiarity gate: none." in records["models"]["remarks"]
    lines = {
        line.row: line for line in table_of(recipe, records.values())
    }  # the teacher's row is the same run
    assert lines["its teacher"].mean == pytest.approx(
        100 * records["all"]["models"]["teacher"]["accuracy"]
    )


class Means(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def test_run_cell_uses_other_public_data(tmp_path, monkeypatch):
    """The clients are the same ones; a cell whose other data are not at hand says so; oracles
    keep their labelled images.
    """
    root = tmp_path / "data"
    root.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 1), np.uint8)
    np.savez(
        root / "other.npz",
        x_train=noise,
        y_train=np.arange(40) % 2,
        x_test=noise[:4],
        y_test=np.arange(4) % 2,
    )
    rows = {"distil": TINY["methods"]["distil"], "weights": TINY["methods"]["weights"]}
    other = {
        name: {**row, "federation": {"public": f"npz:{root / 'other.npz'}"}}
        for name, row in rows.items()
    }
    lost = {"lost": {**rows["distil"], "federation": {"public": "mnist"}}}
    monkeypatch.setenv("ATTAR_DATA", str(root))
    own, other_data = (
        parse_recipe({**TINY, "methods": rows, "published": {}}, "own"),
        parse_recipe({**TINY, "methods": {**other, **lost}, "published": {}}, "other"),
    )
    distilled, weighed, missing = cells_of(other_data)
    assert missing.missing == ("data set mnist",)
    assert {one.key for cell in cells_of(own) for one in cell.client_sets} == {
        one.key for one in distilled.client_sets
    }
    assert distilled.key != cells_of(own)[0].key
    data = load_federation(distilled.federation, 0)
    images = data.public(distilled.federation, labelled=False)
    assert (len(images.pixels), images.labels) == (40, None)
    assert torch.equal(images.pixels, torch.from_numpy(noise.transpose(0, 3, 1, 2)))
    assert len(data.public(weighed.federation, labelled=True).labels) == len(
        data.partition.held_out
    )
    train_clients(distilled.client_sets[0], tmp_path, "cpu")
    assert run_cell(distilled, tmp_path, "cpu")["steps"] == {
        "ask": "1 of 1",
        "distil": "8 of 8",
    }  # 40 images are one batch


def test_run_bench_measures_fid_of_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_fid, "FID_IMAGES", 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Means()).save(str(tmp_path / "inception.pt"))
    groups = {
        "strong": {"clients": "0", "net": "lenet5", "training": {"epochs": 0}},
        "weak": {"clients": "1-2", "net": "cvae-small", "training": {"epochs": 0}},
        "unused": {"clients": "all", "net": "mlp"},
    }
    row = {
        "method": "fedmho",
        "set": {"samples": 20, "epochs": 1},
        "groups": ["strong", "weak"],
        "curve": 0,
    }
    methods = {"with": {**row, "fid": str(tmp_path / "inception.pt")}}
    recipe = parse_recipe(
        {
            **TINY,
            "federation": {**TINY["federation"], "groups": groups},
            "methods": methods,
            "published": {},
        },
        "x",
    )
    result = run_bench(cells_of(recipe), tmp_path / "out", Inline())
    assert not result.failed
    assert result.trained == 2
    (record,) = read_records(tmp_path / "out")
    assert [list(client["parts"]) for client in record["clients"]] == [
        ["classifier"],
        ["decoder"],
        ["decoder"],
    ]
    assert record["clients"][1]["accuracy"] is None
    assert record["fid"] > 0


def test_client_set_key_has_training_version(monkeypatch):
    (clients,) = cells_of(RECIPE)[0].client_sets
    before = clients.key
    monkeypatch.setattr("attar.bench.versions.TRAINING_VERSION", 2)
    assert clients.key != before


def test_bundle_folder_finds_first_release(tmp_path, bench):
    """Release 0.1 named them by a hash of its sources, which depends on Python's version."""
    (clients,) = cells_of(RECIPE)[0].client_sets
    described = clients.describe()
    assert described["code"] == "41b72f376a008ca3"
    for code in ("41b72f376a008ca3", "0f8cf0bdf82f87a8"):
        out = tmp_path / code
        old = out / "clients" / digest({**described, "code": code})
        shutil.copytree(bundle_folder(bench[0], clients), old)
        before = sorted((file.name, file.stat().st_mtime_ns) for file in old.iterdir())
        train_clients(clients, out, "cpu")
        assert bundle_folder(out, clients) == old
        assert [file.name for file in (out / "clients").iterdir()] == [old.name]
        assert sorted((file.name, file.stat().st_mtime_ns) for file in old.iterdir()) == before
    assert bundle_folder(tmp_path / "empty", clients).name == clients.key


KIT_NET = """
from torch import nn
from attar.nets.registry import register
class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU())
        self.head = nn.Linear(8, classes)
    def features(self, x):
        return self.trunk(x)
    def forward(self, x):
        return self.head(self.features(x))
@register("kitnet", "somebody else's")
def kitnet(input_shape, num_classes):
    return Net(input_shape[0] * input_shape[1] * input_shape[2], num_classes)
"""
KIT_METHOD = '''
from dataclasses import dataclass
from attar.methods import FedAvg
@dataclass(frozen=True)
class Kit(FedAvg):
    """Somebody else's."""
    def start(self, context):
        scale = 1.0
        return super().start(context)
'''
KIT = {
    "title": "kit",
    "source": "nowhere",
    "federation": {
        "clients": 2,
        "min_size": 50,
        "net": "kitnet",
        "training": {"epochs": 1, "lr": 0.02},
    },
    "methods": {
        "Kit": {"method": "kit"},
        "FedAvg": {"method": "fedavg"},
        "ours": {"method": "fedavg", "federation": {"net": "mlp"}},
    },
}


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """An installed package with a net and a method; called with their texts, it is installed
    anew, as a new process would find it.
    """
    home = tmp_path / "site"
    (home / "kit-1.2.dist-info").mkdir(parents=True)
    (home / "kit-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kit\nVersion: 1.2\n"
    )
    points = (
        "[attar.nets]\nkitnet = attarkit_net:kitnet\n[attar.methods]\nkit = attarkit_method:Kit\n"
    )
    (home / "kit-1.2.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(home)

    def forget():
        for name in ("attarkit_net", "attarkit_method"):
            sys.modules.pop(name, None)
        NETS.pop("kitnet", None)
        METHODS.pop("kit", None)
        for kept in (provenance._entry_points, provenance.hash_source, nets.resolve_nets):
            kept.cache_clear()
        importlib.invalidate_caches()

    def install(net, method):
        forget()
        (home / "attarkit_net.py").write_text(net)
        (home / "attarkit_method.py").write_text(method)
        NETS.pop("kitnet", None)
        importlib.import_module("attarkit_net")  # an entry point is loaded once in a process
        METHODS["kit"] = importlib.import_module("attarkit_method").Kit
        return {cell.row.label: cell for cell in cells_of(parse_recipe(KIT, "kit"))}

    yield install
    forget()


def test_run_bench_repeats_changed_plugins(kit, tmp_path, capsys):
    out, recipe = tmp_path / "out", tmp_path / "kit.toml"
    cells = kit(KIT_NET, KIT_METHOD)
    result = run_bench(list(cells.values()), out, Inline())
    assert (len(result.done), result.trained) == (3, 2)
    records = {record["row"]: record for record in read_records(out)}
    plugins = records["Kit"]["versions"]["plugins"]
    assert list(plugins) == ["method kit", "net kitnet"]
    sources = {name: origin.pop("source") for name, origin in plugins.items()}
    assert plugins["net kitnet"] == {
        "module": "attarkit_net",
        "distribution": "kit",
        "version": "1.2",
    }
    assert all(len(source) == 16 for source in sources.values())
    assert list(records["FedAvg"]["versions"]["plugins"]) == ["net kitnet"]
    assert "plugins" not in records["ours"]["versions"]
    assert "kit 1.2" in facts_of(list(records.values()), [], out)["summary"]["versions"]

    assert cells["Kit"].plugin_sources == [sources]
    assert cells["ours"].plugin_sources == []
    clients = cells["FedAvg"].client_sets[0].key
    same = kit(f"# a word\n{KIT_NET}", KIT_METHOD.replace("Somebody else's", "Another's"))
    assert all(find_finished(out, cell) for cell in same.values())
    assert same["FedAvg"].client_sets[0].key == clients

    other = kit(KIT_NET, KIT_METHOD.replace("1.0", "2.0"))
    assert {
        row: find_outdated(out, cell) for row, cell in other.items() if not find_finished(out, cell)
    } == {"Kit": ["made by other code of kit"]}
    assert other["Kit"].client_sets[0].key == clients  # trained without it
    assert other["Kit"].key == cells["Kit"].key
    assert other["Kit"].plugin_sources != [sources]  # a run that was killed begins anew
    with_none = json.loads(json.dumps(records["Kit"]))
    del with_none["versions"]["plugins"]  # of before
    write_record(tmp_path / "old", with_none)
    assert find_finished(tmp_path / "old", other["Kit"])
    assert not find_outdated(tmp_path / "old", other["Kit"])
    assert find_finished(
        out, replace(other["Kit"], missing=("data set x",))
    )  # it could not be made again
    again = run_bench(list(other.values()), out, Inline())
    assert [cell.row.label for cell in again.done] == ["Kit"]
    assert again.trained == 0

    net = kit(KIT_NET.replace("ReLU", "Tanh"), KIT_METHOD.replace("1.0", "2.0"))
    assert net["FedAvg"].client_sets[0].key != clients
    assert [row for row, cell in net.items() if find_outdated(out, cell)] == ["Kit", "FedAvg"]
    rows = "".join(
        f'[methods.{label}]\nmethod = "{row["method"]}"\n'
        for label, row in list(KIT["methods"].items())[:2]
    )
    federation = (
        'clients = 2\nmin_size = 50\nnet = "kitnet"\ntraining = { epochs = 1, lr = 0.02 }\n'
    )
    recipe.write_text(f'title = "kit"\nsource = "nowhere"\n[federation]\n{federation}{rows}')
    words = ["bench", str(recipe), "--out", str(out)]
    assert main([*words, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["to_run"], planned["client_sets_to_train"]) == (2, 1)
    assert [row["again"] for row in planned["plan"]] == [["made by other code of kit"]] * 2
    assert main([*words, "--dry-run"]) == 0
    assert "2 cells have records that will be replaced: made by other code of kit." in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(words) == 0
    said = capsys.readouterr()
    assert "2 cells run" in said.out
    assert "made by other code of kit" in " ".join((said.out + said.err).split())
    assert {row: record["accuracy"] for row, record in records.items()} != {
        record["row"]: record["accuracy"] for record in read_records(out)
    }


def test_origin_of_method_without_package(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Means)
    found = provenance.origin_of_method("mine")
    assert (found.name, found.distribution, len(found.source)) == (__name__, None, 16)
    assert provenance.origin_of_method("fedavg") is provenance.origin_of_net("lenet5") is None
    assert provenance.origin_of_net("nobody") is provenance.origin_of_method("nobody") is None


@pytest.mark.parametrize(
    "blow", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C while it starts up"]
)
def test_processes_repeat_job_of_dead_worker(bench, tmp_path, blow, capfd):
    out, _, records, _ = bench
    (tmp_path / "clients").symlink_to(out / "clients")
    cell = next(cell for cell in cells_of(RECIPE) if cell.row.label == "FedAvg")
    engine = Processes(1)
    try:
        engine.submit(Job(cell, tmp_path, "cpu", engine.name))
        (worker,) = multiprocessing.active_children()
        status = Path(f"/proc/{worker.pid}/status")
        if (
            status.exists()
        ):  # a Ctrl-C waits for it to be up: in the midst of importing it would end in a traceback
            (blocked,) = [
                line.split()[1]
                for line in status.read_text().splitlines()
                if line.startswith("SigBlk")
            ]
            assert int(blocked, 16) & 1 << signal.SIGINT - 1
        os.kill(worker.pid, blow)
        outcomes = []
        while not outcomes:
            outcomes = engine.collect(60, lambda: None)
    finally:
        engine.close()
    assert [outcome.status for outcome in outcomes] == ["done"]
    assert drop_volatile(outcomes[0].record) == drop_volatile(records["FedAvg"])
    assert capfd.readouterr().err == ""
    assert signal.SIGINT not in signal.pthread_sigmask(
        signal.SIG_BLOCK, []
    )  # here it is reported again


class Interrupted(Inline):
    """Ctrl-C in the middle of the first job."""

    def collect(self, seconds, meanwhile):
        return [JobResult(self._waiting.popleft().key, "stopped")] if self._waiting else []


def test_run_bench_stops_at_ctrl_c(tmp_path):
    with pytest.raises(Stopped, match="7 cells are left"):
        run_bench(cells_of(RECIPE), tmp_path, Interrupted())


def test_run_bench_reports_progress_within_job(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "PROGRESS_SECONDS", 0.0)
    chosen, seen = [cell for cell in cells_of(RECIPE) if cell.row.label == "Hydra"], []
    run_bench(chosen, tmp_path, Inline(), watch=seen.append)
    shares = [moment.done for moment in seen]
    assert len(shares) > 5  # two jobs alone would be seen three times: before each, and at the end
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all((moment.seconds_left is None) == (moment.done < LEAST_SHARE) for moment in seen)


def test_processes_give_same_records(bench, tmp_path):
    _, _, records, _ = bench
    chosen = [cell for cell in cells_of(RECIPE) if cell.row.label in ("FedAvg", "Hydra", "broken")]
    result = run_bench(chosen, tmp_path, Processes(1))
    assert len(result.done) == 2
    for record in read_records(tmp_path):
        assert record["engine"] == "processes"
        assert drop_volatile(record) == drop_volatile(records[record["row"]])


@pytest.mark.ray
def test_ray_gives_same_records(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'attar[ray]'")
    recipe = tmp_path / "killed.toml"
    recipe.write_text(KILLED)
    found = []
    for engine in ("inline", "ray"):  # in processes of their own: Ray warns on its way out
        words = [
            "bench",
            str(recipe),
            "--out",
            str(tmp_path / engine),
            "--engine",
            engine,
            "--workers",
            "2",
            "--json",
        ]
        subprocess.run([sys.executable, "-m", "attar", *words], check=True, capture_output=True)
        found.append([drop_volatile(record) for record in read_records(tmp_path / engine)])
    assert len(found[0]) == 4
    assert found[0] == found[1]
    for file in (tmp_path / "inline" / "clients").rglob(
        "*.attar"
    ):  # the bundles have travelled back
        assert (
            file.read_bytes()
            == (tmp_path / "ray" / file.relative_to(tmp_path / "inline")).read_bytes()
        )


def test_open_engine_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match="needs Ray"):
        open_engine("ray", 1)


@pytest.mark.parametrize("row", ["Hydra", "weights"])
def test_run_cell_resumes_to_same_record(bench, tmp_path, row):
    out, _, records, _ = bench
    (tmp_path / "clients").symlink_to(out / "clients")
    cell = next(cell for cell in cells_of(RECIPE) if cell.row.label == row)
    with pytest.raises(OutOfTime):
        run_cell(cell, tmp_path, "cpu", deadline=time.time())
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "checkpoint.safetensors").exists()
    assert not (tmp_path / "records").exists()
    record = run_cell(cell, tmp_path, "cpu")
    assert drop_volatile(record) == drop_volatile(records[row])


def test_train_clients_resumes(tmp_path):
    (clients,) = replace(cells_of(RECIPE)[0]).client_sets
    spec = replace(
        clients, federation=replace(clients.federation, training={"epochs": 2, "lr": 0.02})
    )
    with pytest.raises(OutOfTime):
        train_clients(spec, tmp_path / "a", "cpu", deadline=time.time() + 0.05)
    assert not list(bundle_folder(tmp_path / "a", spec).glob("*.attar"))
    train_clients(spec, tmp_path / "a", "cpu")
    train_clients(spec, tmp_path / "b", "cpu")
    for file in bundle_folder(tmp_path / "a", spec).glob("*.attar"):
        assert file.read_bytes() == (bundle_folder(tmp_path / "b", spec) / file.name).read_bytes()


def test_run_bench_without_time_starts_nothing(tmp_path):
    result = run_bench(cells_of(RECIPE), tmp_path, Inline(), seconds=1)
    assert len(result.left) == 7
    assert not (tmp_path / "records").exists()


def test_run_bench_fails_cells_of_failed_clients(tmp_path):
    bad = {**TINY["federation"], "training": {"epochs": 1, "lr": -1}}
    methods = {"FedAvg": {"method": "fedavg", "federation": bad}, "all": {"method": "central"}}
    recipe = parse_recipe({**TINY, "methods": methods, "published": {}}, "tiny")
    result = run_bench(cells_of(recipe), tmp_path, Inline())
    assert list(result.failed) == ["FedAvg, seed 0"]
    assert [cell.title for cell in result.done] == ["all, seed 0"]
    (failed,) = [record for record in read_records(tmp_path) if record["ending"] == FAILED]
    assert "lr: above 0" in failed["error"]


def test_perform_records_traceback(bench, tmp_path, monkeypatch):
    def burst(*words, **flags):
        raise ZeroDivisionError("burst")

    monkeypatch.setattr("attar.bench.engines.jobs.run_cell", burst)
    outcome = perform(Job(cells_of(RECIPE)[0], tmp_path, "cpu", "inline"))
    assert outcome.status == "failed"
    (record,) = read_records(tmp_path)
    assert "ZeroDivisionError: burst" in record["error"]


KILLED = """
title = "killed"
source = "nowhere"
seeds = [0, 1]
[federation]
clients = 3
hold_out = 0.05
min_size = 20
training = { epochs = 1, lr = 0.02 }
[methods.FedAvg]
method = "fedavg"
[methods.FedDF]
method = "feddf"
set = { steps = 40 }
curve = 1
"""


def test_killed_bench_resumes(tmp_path):
    recipe, out = tmp_path / "killed.toml", tmp_path / "out"
    recipe.write_text(KILLED)
    words = [sys.executable, "-m", "attar", "bench", str(recipe), "--out", str(out), "--json"]
    parallel = [*words, "--engine", "processes", "--workers", "1"]
    with subprocess.Popen(parallel, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        records = out / "records"
        while not list(records.glob("*.json")):
            assert first.poll() is None
            time.sleep(0.05)
        workers = _children(first.pid)
        os.kill(first.pid, signal.SIGKILL)
    deadline = (
        time.monotonic() + 60
    )  # workers look twice a second; a busy machine may take longer to end them
    while alive := [worker for worker in workers if _is_alive(worker)]:
        assert time.monotonic() < deadline, f"left behind: {alive}"
        time.sleep(0.05)
    before = {path.name: path.stat().st_mtime_ns for path in records.glob("*.json")}
    assert 1 <= len(before) < 4
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["finished_before"] == len(before)
    assert summary["run"] == 4 - len(before)
    assert {name: (records / name).stat().st_mtime_ns for name in before} == before
    assert (out / "report.html").exists()


def _is_alive(process):
    """Also false for one that has ended and that nobody has asked about yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(parent):
    """Processes that this one has started, where the system tells."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return path.read_text().split() if path.exists() else []


def test_main_bench_names_shared_run_after_headline(tmp_path):
    recipe, out = tmp_path / "shared.toml", tmp_path / "out"
    rows = (
        '[methods.headline]\nmethod = "ensemble"\n\n'
        '[methods.other]\nmethod = "ensemble"\noutput = "mean-logits"\n'
    )
    recipe.write_text(
        KILLED[: KILLED.index("[methods.")].replace("seeds = [0, 1]", "seeds = [0]") + rows
    )
    assert main(["bench", str(recipe), "--out", str(out)]) == 0
    (only,) = read_records(out)
    assert only["row"] == "headline"
    assert (
        "other,ensemble" in (out / "tables" / "shared.csv").read_text()
    )  # and both rows have its numbers


def test_main_bench_plans_runs_and_reports(tmp_path, capsys):
    recipe = tmp_path / "small.toml"
    recipe.write_text(KILLED.replace("seeds = [0, 1]", "seeds = [0]"))
    out = tmp_path / "out"
    assert main(["bench", str(recipe), "--dry-run", "--json", "--out", str(out)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cells"], plan["to_run"], plan["missing"]) == (2, 2, [])
    assert plan["estimated_seconds"] > 0
    assert (
        main(["bench", str(recipe), "--dry-run", "--device", "cuda", "--json", "--out", str(out)])
        == 0
    )  # planned anywhere
    assert 0 < json.loads(capsys.readouterr().out)["estimated_seconds"] <= plan["estimated_seconds"]
    assert not out.exists()
    assert main(["bench", str(recipe), "--only", "method=FedAvg", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1 cells run" in said
    assert str(out / "report.html") in said.replace("\n", "")
    # which the recipe does not say
    assert json.loads((out / "recipes" / "small.json").read_text())["defaults"] == "0.2"
    page, tables = tmp_path / "page.html", tmp_path / "tables"
    assert main(["report", str(out), "-o", str(page), "--tables", str(tables), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == page.stat().st_size
    assert "not run" in (tables / "small.csv").read_text()
    assert main(["bench", str(recipe), "--only", "method=Nobody", "--out", str(out)]) == 2
    capsys.readouterr()
    assert main(["bench", str(recipe), "--set", "step=1", "--dry-run", "--out", str(out)]) == 2
    assert "did you mean steps?" in capsys.readouterr().err
    assert (
        main(
            [
                "bench",
                str(recipe),
                "--set",
                "steps=1",
                "--only",
                "method=FedAvg",
                "--dry-run",
                "--out",
                str(out),
            ]
        )
        == 0
    )


def test_main_bench_lists_missing(bench, tmp_path, capsys, monkeypatch):
    recipe, out = tmp_path / "lost.toml", tmp_path / "out"
    text = KILLED.replace("clients = 3", 'data = "cifar10"\nclients = 3')
    recipe.write_text(text.replace('"feddf"', '"fedfd"'))
    monkeypatch.setenv("ATTAR_DATA", str(tmp_path))
    words = ["bench", str(recipe), "--out", str(out)]
    assert main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    for part in (
        "No cell of lost can run here.",
        "- data set cifar10, in 4 cells",
        "- method fedfd (did you mean 'feddf'?), in 2",
    ):
        assert part in said
    assert not out.exists()
    assert main([*words, "--dry-run"]) == 0  # a plan is one all the same
    recipe.write_text(text.replace("steps = 40", "stepps = 40"))
    assert main(words) == 2  # a wrong setting is reported before what is missing
    assert "stepps: method feddf has no such setting" in capsys.readouterr().err
    recipe.write_text(text.replace("seeds = [0, 1]", "seeds = [0]"))
    (cell, _) = cells_of(parse_recipe(tomllib.loads(recipe.read_text()), "lost"))
    write_record(
        out, {**bench[2]["FedAvg"], "key": cell.key, "name": cell.name}
    )  # made on another machine
    assert main(words) == 0
    assert "2 lack something" in " ".join(capsys.readouterr().out.split())


def test_costs_use_records(bench):
    _, _, records, _ = bench
    cell = next(cell for cell in cells_of(RECIPE) if cell.row.label == "Hydra")
    guess, learned = Costs("cpu").cell(cell), Costs("cpu", records.values()).cell(cell)
    assert not guess.measured
    assert learned.measured
    assert learned.seconds == pytest.approx(records["Hydra"]["seconds"], rel=1e-6)


def test_costs_read_flat_settings():
    def seconds(**settings):
        recipe = {**TINY, "methods": {"FTG": {"method": "fedftg", "set": settings}}}
        del recipe["published"]
        cell = cells_of(parse_recipe(recipe, "tiny"))[0]
        return Costs("cpu").cell(cell).seconds

    assert seconds(generator_steps=4) > seconds(generator_steps=1)
    assert seconds(student_steps=4) > seconds(student_steps=1)


def test_thin_history_by_phase():
    history = [{"phase": "a", "step": n, "loss": 0.0, "accuracy": 1.0} for n in range(500)]
    kept = thin_history([*history, {"phase": "b", "step": 1, "loss": 1.0}])
    assert len(kept) <= 102
    assert kept[-2]["step"] == 499
    assert "accuracy" not in kept[0]


def test_draw_epoch_images_shows_each_class_once(tmp_path):
    classes = (
        torch.arange(10).div(10).view(10, 1, 1, 1, 1).expand(10, 5, 1, 4, 4)
    )  # five images of each class, one grey
    save = save_epoch_images(tmp_path / "run")
    for step, images in enumerate([classes, classes, 1 - classes, 1 - classes], start=1):
        save("train", step, Result({}, images={"synthetic": images}))
    assert len(set(np.load(tmp_path / "run" / "looks" / "0000001.npy")[:, 0, 0, 0].tolist())) == 10
    (tmp_path / "records").mkdir()
    sheet = draw_epoch_images(tmp_path / "run", tmp_path / "records" / "cell.png")
    assert sheet is not None
    assert sheet["steps"] == [1, 3]


@pytest.mark.parametrize(
    ("left", "stays"),
    [(("record.json",), False), (("record.json", "checkpoint.safetensors"), True)],
)
def test_remove_finished_run(tmp_path, left, stays):
    run = tmp_path / "run"
    run.mkdir()
    for name in left:
        (run / name).touch()
    remove_finished_run(run)
    assert run.exists() == stays


def test_table_of_reads_accuracy_after_rounds(tmp_path):
    federation = {**TINY["federation"], "hold_out": 0.0, "rounds": 2}
    recipe = parse_recipe(
        {
            "title": "t",
            "source": "s",
            "axes": {"after": [1, 2]},
            "federation": federation,
            "methods": {"A": {"method": "fedavg"}},
        },
        "rounds",
    )
    cells = cells_of(recipe)
    assert len(cells) == 2
    assert len({cell.key for cell in cells}) == 1
    run_bench(cells, tmp_path, Inline())
    (record,) = read_records(tmp_path)
    assert "after" not in record["federation"]
    first, second = table_of(recipe, [record])
    assert [line.accuracies for line in (first, second)] == [
        (100 * point["accuracy"],) for point in record["curve"]
    ]
    assert second.accuracies == (100 * record["accuracy"],)
    with pytest.raises(SettingsError, match="after is 3, with 2 in rounds"):
        cells_of(parse_recipe({**TINY, "federation": {**federation, "after": 3}}, "late"))


def _played(row, seed, accuracies, size, **changed):
    rounds = [
        {"round": n, "accuracy": value, "bytes_up": size, "bytes_down": size}
        for n, value in enumerate(accuracies, 1)
    ]
    record = {
        "recipe": "r",
        "labels": {"alpha": "0.1"},
        "row": row,
        "key": f"{row} {seed}",
        "seed": seed,
        "precision": "fp32",
    }
    return {**record, "ending": "finished", "rounds": rounds, **changed}


def test_bytes_to_accuracy_at_common_accuracy():
    """Seed 0: the large model ends at 0.4, its best is 0.5 in round 2; the small one passes 0.5
    in round 3. Seed 1: 0.2 and 0.3.
    """
    records = [
        _played("large", 0, [0.3, 0.5, 0.4], 100),
        _played("small", 0, [0.1, 0.2, 0.6], 1),
        _played("large", 1, [0.2], 100),
        _played("small", 1, [0.3], 1),
        *[_played("alone", 2, [0.9], 7)] * 2,  # twice the same run: nobody to compare with
        _played("broken", 0, [0.1], 7, ending="failed"),
        {**_played("one-shot", 0, [], 7), "rounds": []},
    ]
    assert bytes_to_accuracy(records) == {
        "large 0": CostToAccuracy(0.5, 2, 400),
        "small 0": CostToAccuracy(0.5, 3, 6),
        "large 1": CostToAccuracy(0.2, 1, 200),
        "small 1": CostToAccuracy(0.2, 1, 2),
    }


def test_run_rounds_with_all_training_images_at_the_server(tmp_path):
    """The record says that the server has the clients' own images, and where accuracy was measured."""
    federation = {**TINY["federation"], "rounds": 3, "evaluate_every": 2}
    code = {"variant": "code", "knowledge": "lenet5", "steps": 2, "drawn": 16, "labels": 1.0}
    recipe = parse_recipe(
        {
            "title": "t",
            "source": "s",
            "federation": {**federation, "hold_out": 0.0, "server_images": "training"},
            "methods": {"A": {"method": "fedkem", "set": code}},
        },
        "rounds",
    )
    (cell,) = cells_of(recipe)
    held_out = replace(cell, federation=replace(cell.federation, server_images="held-out"))
    assert cell.key != held_out.key
    data = load_federation(cell.federation, 0)
    images = data.public(cell.federation, labelled=True)
    assert len(images.labels) == len(data.dataset.train) > sum(map(len, data.partition.clients)) - 1
    run_bench([cell], tmp_path, Inline())
    (record,) = read_records(tmp_path)
    assert record["federation"]["server_images"] == "training"
    assert "all training images, the clients' own included" in record["remarks"][0]
    assert [one["accuracy"] is None for one in record["rounds"]] == [True, False, False]
    assert [point["step"] for point in record["curve"]] == [2, 3]
    assert record["settings"]["peer"] == "accumulated"


def test_as_csv_has_cost_of_rounds(tmp_path):
    federation = {**TINY["federation"], "hold_out": 0.0, "rounds": 2}
    methods = {"A": {"method": "fedavg"}, "B": {"method": "fedprox"}}
    recipe = parse_recipe(
        {"title": "t", "source": "s", "federation": federation, "methods": methods}, "rounds"
    )
    run_bench(cells_of(recipe), tmp_path, Inline())
    records = read_records(tmp_path)
    for record in records:
        assert [one["accuracy"] for one in record["rounds"]] == [
            point["accuracy"] for point in record["curve"]
        ]
        assert sum(one["bytes_up"] for one in record["rounds"]) == record["bytes_up"]
    lines = list(csv.DictReader(io.StringIO(as_csv(recipe, table_of(recipe, records)))))
    spent = bytes_to_accuracy(records)
    assert [line["bytes_to_it"] for line in lines] == [
        str(spent[record["key"]].bytes) for record in records
    ]
    assert [float(line["all_reach"]) for line in lines] == pytest.approx(
        [100 * spent[records[0]["key"]].accuracy] * 2, abs=0.01
    )
