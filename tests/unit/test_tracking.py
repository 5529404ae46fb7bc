"""Trackers: what they are told, in which order, and that none of them ends a run."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import attar
from attar.bench import cells_of, parse_recipe
from attar.bench.engines.engine import Job
from attar.bench.engines.jobs import perform
from attar.cli import main
from attar.errors import OutOfTime, SettingsError, Stopped
from attar.running import RunOptions
from attar.testing import tiny_upload
from attar.tracking import TrackedRun, check_trackers, kinds, track, with_whole_paths
from attar.training import TrainingFlags, make_client, make_stacks, train_stack

RUN = ("fused", "fuse", {"method": "feddf", "lr": 0.1, "nothing": None})
POINT = {"phase": "distil", "step": 3, "loss": 0.5, "accuracy": None}


class Recorder:
    """A tracker that remembers; ``broken`` names the call that fails."""

    runs: list["Recorder"]

    def __init__(self, place, run):
        self.run, self.place, self.logged, self.ended = run, place, [], None
        self.fail("start")
        self.runs.append(self)

    def fail(self, call):
        if self.place == call:
            raise ConnectionError("the server is away")

    def log(self, group, values, step):
        self.fail("log")
        self.logged.append((group, dict(values), step))

    def finish(self, outcome, result):
        self.fail("finish")
        self.ended = (outcome, dict(result))


@pytest.fixture
def recorder(monkeypatch):
    """The kind ``recorder``, offered by another package."""
    Recorder.runs = []
    monkeypatch.setattr(kinds, "_plugins", lambda: ({"recorder": Recorder}, {}))
    return Recorder


def test_track_tells_settings_points_and_the_end(recorder):
    with track(["recorder:here"], *RUN) as tracking:
        tracking.log_point(POINT)
        tracking.log_point({"phase": "distil", "step": 4, "loss": float("nan")})
        tracking.describe_end({"accuracy": 0.75, "name": "x", "seconds": None}, "deadline")
    (one,) = recorder.runs
    assert one.place == "here"
    assert one.run == TrackedRun("fused", "fuse", {"method": "feddf", "lr": 0.1, "nothing": None})
    assert one.logged == [("distil", {"loss": 0.5}, 3)]
    assert one.ended == ("deadline", {"accuracy": 0.75})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Stopped("x"), "stopped"), (OutOfTime("x"), "stopped"), (KeyboardInterrupt(), "stopped"),
     (ValueError("x"), "failed"), (attar.AttarError("x"), "failed")],
)  # fmt: skip
def test_track_says_how_a_run_was_broken_off(recorder, error, outcome):
    with pytest.raises(type(error)), track(["recorder:here"], *RUN):
        raise error
    assert recorder.runs[0].ended == (outcome, {})


@pytest.mark.parametrize("call", ["start", "log", "finish"])
def test_track_goes_on_without_a_tracker_that_fails(recorder, call):
    told = []
    with track([f"recorder:{call}", "recorder:here"], *RUN, warn=told.append) as tracking:
        for _ in range(3):
            tracking.log_point(POINT)
    assert len(told) == 1
    assert "the server is away" in told[0]
    assert "the run goes on" in told[0]
    assert recorder.runs[-1].logged == 3 * [("distil", {"loss": 0.5}, 3)]
    assert recorder.runs[-1].ended == ("finished", {})


def test_track_survives_a_kind_that_vanished(recorder):
    """In a worker of another machine a package may be missing."""
    told = []
    with track(["gone:here"], *RUN, warn=told.append) as tracking:
        tracking.log_point(POINT)
    assert "no tracker 'gone'" in told[0]


def test_check_trackers_refuses_before_the_run(recorder, monkeypatch):
    check_trackers(["recorder:x"])
    with pytest.raises(SettingsError, match="did you mean wandb"):
        check_trackers(["wandbb:x"])
    for text in ("tensorboard", "wandb:"):
        with pytest.raises(SettingsError, match="does not say where"):
            check_trackers([text])
    monkeypatch.setattr(kinds, "_is_there", lambda package: False)
    with pytest.raises(SettingsError, match="needs the package mlflow") as refused:
        check_trackers(["mlflow:runs"])
    assert "attar[mlflow]" in str(refused.value)


def test_trackers_of_other_packages(monkeypatch):
    points = [
        EntryPoint("mine", "builtins:dict", kinds.GROUP),
        EntryPoint("wandb", "builtins:dict", kinds.GROUP),
        EntryPoint("number", "sys:maxsize", kinds.GROUP),
    ]
    monkeypatch.setattr("attar.internal.plugins.entry_points", lambda group: points)
    kinds._plugins.cache_clear()
    try:
        check_trackers(["mine:x"])
        refused = kinds.refused_trackers()
        assert "attar's is used" in refused["wandb"]
        assert "cannot be called" in refused["number"]
        with pytest.raises(SettingsError, match="cannot be called"):
            check_trackers(["number:x"])
    finally:
        kinds._plugins.cache_clear()


def test_with_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["tensorboard:logs", "mlflow:store", "mlflow:http://h:1", "wandb:me/p"]
    assert with_whole_paths(given) == (
        f"tensorboard:{tmp_path / 'logs'}", f"mlflow:{tmp_path / 'store'}", *given[2:]
    )  # fmt: skip


# --- where they are attached ----------------------------------------------------------------------


def test_fuse_reports_every_recorded_point():
    points = []
    server = attar.server_for(
        uploads := [tiny_upload(f"c{place}", "mlp:hidden=8", ("a", "b", "c")) for place in "xy"],
        public=attar.Images(torch.zeros(12, 3, 8, 8, dtype=torch.uint8), None, "grey"),
    )
    method = attar.find_method("feddf")(steps=4, batch_size=4)
    fused = attar.fuse(uploads, method, server, options=RunOptions(on_point=points.append))
    assert points == fused.record["history"]
    assert len(points) == 4
    without = attar.fuse(uploads, method, server)
    assert without.result.models["student"].fingerprint() == (
        fused.result.models["student"].fingerprint()
    )


def test_train_stack_reports_every_epoch():
    images = torch.zeros(12, 8, 8, 1, dtype=torch.uint8).numpy()
    split = attar.Split(images, (torch.arange(12) % 2).numpy())
    client = make_client("a", split, ("x", "y"))
    spec = attar.ModelSpec.parse("mlp:hidden=4")
    (stack,) = make_stacks(
        [client],
        [spec],
        TrainingFlags(epochs=3),
        preset="auto",
        seed=0,
        device="cpu",
        initial=None,
    )
    points = []
    train_stack(stack, on_point=points.append)
    assert [point["step"] for point in points] == [1, 2, 3]
    assert "loss" in points[0]


def test_bench_tracks_cells_and_clients(recorder, tmp_path):
    federation = {
        "data": "fashion-mini", "rule": "iid", "clients": 2, "net": "mlp:hidden=4",
        "training": {"epochs": 1},
    }  # fmt: skip
    table = {"title": "t", "source": "s", "seeds": [0], "federation": federation}
    recipe = parse_recipe({**table, "methods": {"A": {"method": "ensemble"}}}, "tiny")
    (cell,) = cells_of(recipe)
    for work in (*cell.client_sets, cell):
        result = perform(Job(work, tmp_path, "cpu", "inline", track=("recorder:here",)))
        assert result.status == "done", result.error
    clients, run = recorder.runs
    assert clients.run.name.startswith("clients-")
    assert clients.logged[0][2] == 1
    assert run.run.name == cell.name
    assert run.run.settings["method"] == "ensemble"
    assert run.ended[0] == "finished"
    assert run.ended[1]["accuracy"] == result.record["accuracy"]


def test_verbs_take_trackers_and_a_file_names_them(recorder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "xy":
        upload = tiny_upload(f"c{name}", "mlp:hidden=8", ("a", "b", "c"))
        attar.write_bundle(tmp_path / f"{name}.attar", upload)
    (tmp_path / "run.toml").write_text('track = ["recorder:file"]\nmethod = "fedavg"\n')
    words = ["fuse", "x.attar", "y.attar", "--config", "run.toml", "--out", "fused", "--quiet"]
    assert main([*words, "--track", "recorder:typed"]) == 0
    assert sorted(one.place for one in recorder.runs) == ["file", "typed"]
    settings = recorder.runs[0].run.settings
    assert settings["uploads"] == 2
    assert settings["method"] == "fedavg"
    assert "cx" not in json.dumps(settings)
    assert recorder.runs[0].ended[0] == "finished"
    assert "recorder:typed" in (tmp_path / "fused" / "command.toml").read_text()
    assert main([*words, "--track", "nothing:here"]) == 2
    assert "no tracker 'nothing'" in capsys.readouterr().err


def test_train_is_tracked(recorder, tmp_path):
    words = ["train", "--data", "fashion-mini", "--net", "mlp:hidden=4", "--epochs", "2"]
    more = ["--defaults", "plain", "--client", "berlin", "--quiet", "--track", "recorder:x"]
    assert main([*words, *more, "--out", str(tmp_path / "berlin.attar")]) == 0
    (one,) = recorder.runs
    assert one.run.name == "berlin"
    assert one.run.settings["epochs"] == 2
    assert [step for _, _, step in one.logged] == [1, 2]
    assert one.ended[0] == "finished"


# --- the tools ------------------------------------------------------------------------------------


def go(place):
    """A short run with every call."""
    told = []
    with track([place], *RUN, warn=told.append) as tracking:
        tracking.log_point(POINT)
        tracking.log_point({**POINT, "step": 4, "loss": 0.25})
        tracking.describe_end({"accuracy": 0.75})
    assert told == []


def test_tensorboard_writes_event_files(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    go(f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path / "fused"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("distil/loss")] == [(3, 0.5), (4, 0.25)]
    assert events.Scalars("final/accuracy")[0].value == 0.75
    assert "feddf" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()


@pytest.mark.filterwarnings("ignore")  # of MLflow's own packages
def test_mlflow_writes_a_local_store(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="MLflow is not installed")
    go(f"mlflow:{tmp_path / 'store'}")
    client = tracking.MlflowClient(tracking_uri=str(tmp_path / "store"))
    experiment = client.get_experiment_by_name("attar")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "fused"
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "feddf"
    assert run.data.metrics["final/accuracy"] == 0.75
    history = client.get_metric_history(run.info.run_id, "distil/loss")
    assert [(one.step, one.value) for one in history] == [(3, 0.5), (4, 0.25)]
    assert "mlflow.user" not in run.data.tags or not run.data.tags["mlflow.user"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_works_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="W&B is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    go("wandb:one-shot")
    (run,) = tmp_path.rglob("offline-run-*/run-*.wandb")
    assert not list(run.parent.rglob("requirements.txt"))
    told = run.read_bytes()
    assert b"feddf" in told
    assert str(Path.cwd()).encode() not in told


def test_mlflow_is_called_as_its_client_wants(monkeypatch):
    """Without the package: a module with the same calls."""
    calls = []

    class Client:
        def __init__(self, tracking_uri):
            calls.append(("open", tracking_uri))

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return name

        def create_run(self, experiment, run_name):
            calls.append(("run", experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="7"))

        def log_batch(self, run, metrics=(), params=()):
            calls.extend(metrics or params)

        def set_tag(self, run, key, value):
            calls.append((key, value))

        def set_terminated(self, run, status):
            calls.append(("end", status))

    def entity(name):
        return lambda *values: (name, *values[:2], *values[3:])

    entities = SimpleNamespace(Metric=entity("metric"), Param=entity("param"))
    modules = {"mlflow.tracking": SimpleNamespace(MlflowClient=Client), "mlflow.entities": entities}
    monkeypatch.setattr("attar.tracking.mlflow.import_module", modules.__getitem__)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    for name in ("MAX_RETRIES", "TIMEOUT"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "1")
    go("mlflow:http://host:5000")
    assert calls[:2] == [("open", "http://host:5000"), ("run", "ours", "fused")]
    assert ("param", "method", "feddf") in calls
    assert ("metric", "distil/loss", 0.5, 3) in calls
    assert calls[-3:] == [
        ("metric", "final/accuracy", 0.75, 0),
        ("outcome", "finished"),
        ("end", "FINISHED"),
    ]


def test_wandb_is_called_as_it_wants(monkeypatch):
    calls = []

    summary = {}

    class Run:
        def __init__(self):
            self.summary = summary

        def define_metric(self, name, step_metric):
            calls.append((name, step_metric))

        def log(self, values):
            calls.append(values)

        def finish(self, exit_code):
            calls.append(exit_code)

    def start(**settings):
        calls.append(settings)
        return Run()

    package = ModuleType("wandb")
    package.init, package.Settings = start, SimpleNamespace
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    go("wandb:me/one-shot")
    began, defined, first, second, code = calls
    assert (began["entity"], began["project"], began["name"]) == ("me", "one-shot", "fused")
    assert began["mode"] == "offline"
    assert began["settings"].disable_git
    assert defined == ("distil/*", "distil/step")
    assert (first, second["distil/step"]) == ({"distil/loss": 0.5, "distil/step": 3}, 4)
    assert summary == {"final/accuracy": 0.75, "outcome": "finished"}
    assert code == 0
    monkeypatch.setenv("WANDB_API_KEY", "k")
    go("wandb:one-shot")
    assert calls[5]["mode"] == "online"
