"""The queue: its order, what fits into a piece of time, the time limit, and what is resumed."""

import json
import multiprocessing
import os
import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attar.bench import QueuePlan, pack_bench, read_queue, read_records, take_records
from attar.bench.cells import unique_client_sets
from attar.bench.clients import bundle_folder, train_clients
from attar.bench.engines import JobResult, Processes, inline, jobs, schedule
from attar.bench.engines.jobs import perform
from attar.bench.engines.schedule import Piece, run_bench, simulate_bench
from attar.bench.grid import cells_of
from attar.bench.locks import identify
from attar.bench.parse import parse_recipe
from attar.bench.queue import Ledger
from attar.bench.records import drop_volatile, read_record, write_record
from attar.cli import main
from attar.errors import OutOfTime, SettingsError

RECIPE = """
title = "{name}"
source = "nowhere"
seeds = [0, 1]
[axes]
alpha = [0.5, 0.1]
[federation]
rule = "dirichlet:{{alpha}}"
clients = 3
hold_out = 0.8
min_size = 10
training = {{ epochs = 2, lr = 0.02, batch_size = 64 }}
[methods.FedAvg]
method = "fedavg"
[methods.FedDF]
method = "feddf"
set = {{ steps = {steps}, batch_size = 16 }}
curve = 1
"""
QUEUE = """
records = ["elsewhere"]
[[entry]]
recipe = "b.toml"
only = ["alpha=0.1", "method=FedDF"]
seeds = 1
seconds = 100
training_seconds = 40
why = "first"

[[entry]]
recipe = "a.toml"
only = ["alpha=0.1"]
seeds = [0]
seconds = 50
why = "second"

[[entry]]
recipe = "b.toml"
only = ["alpha=0.1", "alpha=0.5", "method=FedDF"]
seeds = 1
set = { steps = 6 }
seconds = 10
why = "third"
"""


@pytest.fixture
def home(tmp_path):
    """Two recipes and a queue of them."""
    (tmp_path / "a.toml").write_text(RECIPE.format(name="a", steps=5))
    (tmp_path / "b.toml").write_text(RECIPE.format(name="b", steps=8))
    (tmp_path / "queue.toml").write_text(QUEUE)
    return tmp_path


@pytest.fixture
def cells():
    """Four cells of two sets of clients: rows A and B on the first, then both on the second."""
    tables = {
        "title": "t",
        "source": "s",
        "axes": {"alpha": [0.5, 0.1]},
        "federation": {"rule": "dirichlet:{alpha}", "clients": 3},
        "methods": {"A": {"method": "fedavg"}, "B": {"method": "ensemble"}},
    }
    return sorted(cells_of(parse_recipe(tables, "t")), key=lambda cell: cell.labels["alpha"])


class Clock:
    """Time that passes only when an engine says so."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    monotonic = time


class Rehearsal:
    """An engine whose jobs take as long as a table says, by the fake clock; none is run."""

    name = "rehearsal"

    def __init__(self, clock, seconds, workers=1, *, obeys=True):
        self.workers = workers
        self.started = []
        self.closed = False
        self._clock = clock
        self._seconds = seconds
        self._obeys = obeys
        self._running = {}

    def submit(self, job):
        assert job.key not in self._running
        self.started.append(job)
        self._running[job.key] = (self._clock.now + self._seconds[job.key], job)

    def collect(self, seconds, meanwhile):
        """Wait until the first job ends, or so many seconds."""
        end, job = min(self._running.values(), key=lambda entry: entry[0])
        late = self._obeys and job.deadline is not None and end > job.deadline
        end = job.deadline if late else end
        if end > self._clock.now + seconds:
            self._clock.now += seconds
            return []
        self._clock.now = max(end, self._clock.now)
        del self._running[job.key]
        return [JobResult(job.key, "late" if late else "done", share=0.25 if late else 1.0)]

    def close(self):
        self.closed = True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    return clock


def _names(cells, jobs):
    """``train 0.1`` or ``A 0.1`` for each job."""
    sets = {key: cell for cell in cells for key in unique_client_sets([cell])}
    by_key = {cell.key: cell for cell in cells}
    return [
        f"{by_key[job.key].row.label} {by_key[job.key].labels['alpha']}"
        if job.key in by_key
        else f"train {sets[job.key].labels['alpha']}"
        for job in jobs
    ]


def _seconds(cells, *seconds, training=30):
    """The time of each cell, and of each training."""
    table = {cell.key: value for cell, value in zip(cells, seconds, strict=True)}
    return table | dict.fromkeys(unique_client_sets(cells), training)


def test_read_queue(home):
    queue = read_queue(home / "queue.toml")
    assert [entry.why for entry in queue.entries] == ["first", "second", "third"]
    assert queue.records == (home / "elsewhere",)
    assert queue.entries[0].title == "b: alpha 0.1; FedDF; seeds 0"
    first, second, third = queue.cells()
    assert [(cell.recipe, cell.row.label, cell.seed) for cell in first] == [("b", "FedDF", 0)]
    assert [cell.row.label for cell in second] == ["FedAvg", "FedDF"]
    assert [cell.settings["steps"] for cell in third] == [6, 6]
    assert [recipe.name for recipe in queue.recipes()] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no [[entry]]"),
        ('[[entry]]\nrecipe = "a.toml"', "entry 1: why is missing"),
        ('[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nseeds = "1"', "entry 1: seeds = '1'"),
        ('[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nseconds = true', "entry 1: seconds = True"),
        ('[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nseconds = 0', "expected a number above 0"),
        ('[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nprecision = "fp8"', "precision: one of"),
        ('[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nmore = 1', "more: an entry has no such key"),
        ('colour = "red"\n[[entry]]\nrecipe = "a.toml"\nwhy = "x"', "colour: a queue has no"),
    ],
)
def test_read_queue_names_problems(home, text, problem):
    (home / "queue.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_queue(home / "queue.toml")
    assert problem in "\n".join(caught.value.problems)


def test_queue_names_entries_without_cells(home):
    text = '[[entry]]\nrecipe = "a.toml"\nwhy = "x"\nonly = ["alpha=7"]\n'
    (home / "queue.toml").write_text(text + text.replace("a.toml", "z.toml"))
    with pytest.raises(SettingsError) as caught:
        read_queue(home / "queue.toml").cells()
    assert len(caught.value.problems) == 2
    assert "alpha=7" in caught.value.problems[0]
    assert "There is no recipe" in caught.value.problems[1]


def test_run_bench_keeps_order_of_piece(cells, clock, tmp_path):
    seconds = _seconds(cells, 5, 5, 5, 5)
    order = [cells[0], cells[2], cells[1], cells[3]]
    engine = Rehearsal(clock, seconds)
    result = run_bench(order, tmp_path, engine, seconds=500, piece=Piece(seconds))
    assert _names(cells, engine.started) == [
        "train 0.1", "A 0.1", "train 0.5", "A 0.5", "B 0.1", "B 0.5"
    ]  # fmt: skip
    assert (len(result.done), result.trained, result.left) == (4, 2, [])
    assert engine.closed


def test_run_bench_trains_clients_once_for_all_lanes(cells, clock, tmp_path):
    seconds = _seconds(cells, 50, 50, 50, 50)
    engine = Rehearsal(clock, seconds, workers=3)
    run_bench(cells, tmp_path, engine, seconds=500, piece=Piece(seconds))
    names = _names(cells, engine.started)
    assert sorted(names) == ["A 0.1", "A 0.5", "B 0.1", "B 0.5", "train 0.1", "train 0.5"]
    assert names[:2] == ["train 0.1", "train 0.5"]  # no lane waits for the first training


def test_run_bench_packs_smaller_cells(cells, clock, tmp_path):
    seconds = _seconds(cells, 20, 300, 200, 15)
    everything = Piece(seconds, fit=frozenset(cell.key for cell in cells))
    engine = Rehearsal(clock, seconds)
    result = run_bench(cells, tmp_path, engine, seconds=150, piece=everything)
    # 150 seconds: 50 for the first; B 0.1 and A 0.5 do not fit, B 0.5 does with its training
    assert _names(cells, engine.started) == ["train 0.1", "A 0.1", "train 0.5", "B 0.5"]
    assert [cell.row.label for cell in result.left] == ["B", "A"]
    assert result.part == {}


def test_run_bench_begins_what_can_be_resumed(cells, clock, tmp_path):
    seconds = _seconds(cells, 20, 300, 200, 15)
    noted = {}
    piece = Piece(
        seconds, on_end=lambda key, spent, share: noted.update({key: (round(spent), share)})
    )
    engine = Rehearsal(clock, seconds)
    result = run_bench(cells, tmp_path, engine, seconds=150, piece=piece)
    assert _names(cells, engine.started) == ["train 0.1", "A 0.1", "B 0.1"]
    assert result.part == {cells[1].key: 0.25}
    assert noted[cells[0].key] == (20, 1.0)
    assert noted[cells[1].key] == (97, 0.25)  # to 3 seconds before the end
    assert clock.now <= 1000 + 150


def test_run_bench_ends_jobs_that_do_not_stop(cells, clock, tmp_path):
    seconds = _seconds(cells, 20, 9999, 9999, 9999)
    noted = {}
    engine = Rehearsal(clock, seconds, workers=2, obeys=False)
    (tmp_path / "progress").mkdir()
    jobs.progress_file(tmp_path, cells[1].key).write_text('{"done": 0.5}')
    piece = Piece(seconds, on_end=lambda key, spent, share: noted.update({key: share}))
    result = run_bench(cells, tmp_path, engine, seconds=150, piece=piece)
    assert engine.closed
    assert clock.now <= 1000 + 150 + schedule.HARD_SECONDS + 2 * schedule.POLL_SECONDS
    assert result.part[cells[1].key] == noted[cells[1].key] == 0.5
    assert len(result.left) == 3
    assert not list((tmp_path / "progress").iterdir())


def test_run_bench_waits_for_jobs_without_piece(cells, clock, tmp_path):
    seconds = _seconds(cells, 20, 999, 20, 20)
    engine = Rehearsal(clock, seconds, obeys=False)
    run_bench(cells, tmp_path, engine, seconds=150)
    assert clock.now > 1000 + 999


def test_simulate_bench_agrees_with_run(cells, clock, tmp_path):
    for lanes in (1, 2):
        for fit in (frozenset(), frozenset(cell.key for cell in cells)):
            seconds = _seconds(cells, 20, 300, 200, 15)
            engine = Rehearsal(clock, seconds, workers=lanes)
            ran = run_bench(cells, tmp_path, engine, seconds=150, piece=Piece(seconds, fit))
            planned = simulate_bench(
                cells, tmp_path, Piece(seconds, fit), workers=lanes, seconds=150
            )
            assert planned.done == ran.done
            assert planned.part.keys() == ran.part.keys()


def test_processes_end_with_piece(cells, monkeypatch, tmp_path):
    monkeypatch.setattr(schedule, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "SAVING_SECONDS", -100.0)  # the worker knows of no limit
    monkeypatch.setattr(schedule, "HARD_SECONDS", 0.5)
    begun = time.monotonic()
    result = run_bench(
        cells, tmp_path, Processes(1), seconds=0.5, piece=Piece(_seconds(cells, 1, 1, 1, 1))
    )
    assert time.monotonic() - begun < 30  # its worker was still importing torch
    assert len(result.left) == 4
    deadline = time.monotonic() + 30
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ledger_adds_seconds(tmp_path):
    Ledger(tmp_path).add("x", 10, 0.25)
    Ledger(tmp_path).add("x", 5, 0.5)
    assert (Ledger(tmp_path).seconds("x"), Ledger(tmp_path).share("x")) == (15, 0.5)
    assert (Ledger(tmp_path).seconds("y"), Ledger(tmp_path).share("y")) == (0, 0)
    (tmp_path / "queue.json").write_text("{")
    assert Ledger(tmp_path).share("x") == 0


def test_queue_plan_expects_what_is_left(home):
    queue, out = read_queue(home / "queue.toml"), home / "out"
    plan = QueuePlan(queue, out, "cpu")
    (cell,) = queue.cells()[0]
    (clients,) = cell.client_sets
    assert (plan.expect_cell(cell), plan.expect_training(clients, cell)) == (100, 40)
    assert [work.seconds for work in plan.work()[0]] == [140]  # both
    assert plan.piece().expected[cell.key] == 100
    # What is half done takes half the time, where what was done is still there.
    plan.ledger.add(cell.key, 50, 0.5)
    assert plan.work()[0][0].state == "not run"
    (out / "runs" / f"{cell.name}-01234567").mkdir(parents=True)
    (work,) = QueuePlan(queue, out, "cpu").work()[0]
    assert (work.state, work.seconds, work.used) == ("part done", 90, 50)
    # Clients are counted for the first cell alone that needs them: in row order b, a, b.
    seconds = [[work.seconds for work in works] for works in plan.work()]
    assert seconds[1] == [50, 50]
    assert seconds[2][1] == 10


def test_queue_plan_slows_lanes_of_a_gpu(home):
    queue = read_queue(home / "queue.toml")
    (cell,) = queue.cells()[0]
    one, two = (QueuePlan(queue, home / "out", "cuda", lanes=lanes) for lanes in (1, 2))
    assert two.piece().expected[cell.key] == pytest.approx(150)
    assert two.left_seconds(two.work()) == pytest.approx(0.75 * one.left_seconds(one.work()))
    whole = QueuePlan(queue, home / "out", "cuda", whole=True)
    assert whole.piece().fit == set(whole.cells)
    assert one.piece().fit == set()


def test_queue_plan_uses_records(home):
    """A record of another seed and split says how long a row takes, wherever it lies."""
    (home / "queue.toml").write_text(QUEUE.replace("steps = 6", "steps = 8"))
    queue = read_queue(home / "queue.toml")
    other = queue.entries[2].read_recipe()
    done = next(
        cell
        for cell in cells_of(replace(other, seeds=(1,)))
        if cell.row.label == "FedDF" and cell.labels["alpha"] == "0.5"
    )
    record = {
        "format": "attar-record/1", "name": done.name, "key": done.key, "recipe": "b",
        "row": "FedDF", "method": "feddf", "given": dict(done.settings), "settings": {},
        "federation": {**vars(done.federation), "groups": {}}, "device": "cpu",
        "ending": "finished", "seconds": 7.0, "precision": "fp32", "versions": {},
    }  # fmt: skip
    write_record(home / "elsewhere", record)
    plan = QueuePlan(queue, home / "out", "cpu")
    assert [plan.expect_cell(cell) for cell in queue.cells()[0]] == [7.0]
    assert [plan.expect_cell(cell) for cell in queue.cells()[1]] == [50, 50]  # another recipe
    on_gpu = QueuePlan(queue, home / "out", "cuda")
    assert [on_gpu.expect_cell(cell) for cell in queue.cells()[0]] == [100]
    # The very cell counts as done there.
    (cell,) = queue.cells()[0]
    write_record(home / "elsewhere", record | {"name": cell.name, "key": cell.key})
    assert QueuePlan(queue, home / "out", "cpu").work()[0][0].state == "recorded"


def test_queue_plan_puts_failed_cells_last(home):
    queue, out = read_queue(home / "queue.toml"), home / "out"
    (first,) = queue.cells()[0]
    order = [cell.key for cell in QueuePlan(queue, out, "cpu").to_run]
    assert order[0] == first.key
    record = {"format": "attar-record/1", "name": first.name, "ending": "failed"}
    write_record(out, record)
    plan = QueuePlan(queue, out, "cpu")
    assert [cell.key for cell in plan.to_run] == [*order[1:], first.key]
    assert plan.work()[0][0].state == "failed"


def test_take_records_copies_new_ones(tmp_path):
    record = {"format": "attar-record/1", "name": "x", "ending": "finished", "recipe": "a/b"}
    write_record(tmp_path / "came", record)
    write_record(tmp_path / "came", record | {"name": "y", "ending": "failed"})
    assert take_records(tmp_path / "came", tmp_path / "results") == 1
    assert take_records(tmp_path / "came", tmp_path / "results") == 0
    assert read_record(tmp_path / "results" / "records" / "x.json") == record
    write_record(tmp_path / "came", record | {"seconds": 1})
    assert take_records(tmp_path / "came", tmp_path / "results") == 1


def test_pack_bench_packs_what_next_cells_need(cells, tmp_path):
    out = tmp_path / "out"
    first, second = (bundle_folder(out, cell.client_sets[0]) for cell in (cells[0], cells[2]))
    files = {
        out / "records" / "x.json": 10,
        out / "queue.json": 10,
        out / "progress" / "x.json": 10,
        first / "client-0.attar": 20_000,
        first / ".training.lock": 10,
        first / ".client-1.attar.x.part": 10,
        second / "client-0.attar": 50_000,
        out / "runs" / f"{cells[0].name}-1" / "checkpoint.safetensors": 90_000,
        out / "runs" / f"{cells[1].name}-1" / "checkpoint.safetensors": 30_000,
        out / "runs" / f"{cells[2].name}-1" / "checkpoint.safetensors": 10,
    }
    for file, size in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    carried = pack_bench(cells, out, tmp_path / "carry.tar", 80_000)
    assert carried.bytes <= 80_000 + 10_240  # tar fills its last record
    with tarfile.open(tmp_path / "carry.tar") as archive:
        names = {name.split("/")[0]: name for name in archive.getnames()}
        assert len(archive.getnames()) == 4
    assert names["clients"] == f"clients/{first.name}/client-0.attar"
    assert names["runs"].startswith(f"runs/{cells[1].name}-1/")
    # The second clients do not fit, so what was done with them is of no use, small as it is.
    assert carried.left_out == (
        f"runs/{cells[0].name}-1", f"clients/{second.name}", f"runs/{cells[2].name}-1"
    )  # fmt: skip
    everything = pack_bench(cells, out, tmp_path / "carry.tar")
    assert everything.left_out == ()
    nothing = pack_bench([], out, tmp_path / "carry.tar", 0)
    with tarfile.open(tmp_path / "carry.tar") as archive:
        assert set(archive.getnames()) == {"queue.json", "records/x.json"}
    assert nothing.left_out == ()


def test_lock_of_another_machine_is_void(cells, tmp_path):
    (clients,) = cells[0].client_sets
    clients = replace(
        clients, federation=replace(clients.federation, training={"epochs": 1, "lr": 0.01})
    )
    folder = bundle_folder(tmp_path, clients)
    folder.mkdir(parents=True)
    lock = folder / ".training.lock"
    parent = os.getppid()  # runs, as some process of that number does on the next machine
    lock.write_text(f"{parent} another-machine 1\n")
    train_clients(clients, tmp_path, "cpu")
    assert not lock.exists()
    (folder / "clients.json").unlink()
    lock.write_text(f"{identify(parent)}\n")
    with pytest.raises(OutOfTime, match=f"Process {parent}, another bench"):
        train_clients(clients, tmp_path, "cpu", deadline=time.time() + 0.1)


def _bench(home, *flags):
    words = ["bench", "--queue", str(home / "queue.toml"), "--engine", "inline", *flags]
    return main([*words, "--device", "cpu", "--json"])


def test_main_bench_queue_in_two_pieces(home, tmp_path, capsys, monkeypatch):
    """Two pieces on two machines give the records of one run, and a client trains once."""
    assert _bench(home, "--out", str(tmp_path / "whole")) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["run"], whole["left"]) == (5, 0)
    begun = []

    def cut_short(job, meanwhile):
        """The second job and those after it come to the end of the time in their first step."""
        begun.append(job.key)
        return perform(job if len(begun) < 2 else replace(job, deadline=time.time() + 0.05))

    first, second = tmp_path / "first", tmp_path / "second"
    with monkeypatch.context() as patch:
        patch.setattr(inline, "perform", cut_short)
        carry = ["--carry", str(tmp_path / "carry.tar")]
        assert _bench(home, "--out", str(first), "--seconds", "500", *carry) == 0
    piece = json.loads(capsys.readouterr().out)
    states = [cell["state"] for entry in piece["entries"] for cell in entry["cells"]]
    assert "part done" in states
    assert 0 < piece["left"] == 5 - piece["run"]
    assert list((first / "runs").glob("*/checkpoint.safetensors"))
    with tarfile.open(tmp_path / "carry.tar") as archive:  # to another machine
        archive.extractall(second, filter="data")
    shutil.rmtree(first)
    assert _bench(home, "--out", str(second), "--dry-run", "--seconds", "500") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["left"] == piece["left"]
    assert _bench(home, "--out", str(second)) == 0
    rest = json.loads(capsys.readouterr().out)
    assert piece["run"] + rest["run"] == 5
    assert piece["client_sets_trained"] + rest["client_sets_trained"] == 2
    records = [
        {record["name"]: drop_volatile(record) for record in read_records(folder)}
        for folder in (tmp_path / "whole", second)
    ]
    assert records[0] == records[1]
    assert len(list((second / "clients").iterdir())) == 2  # recipes a and b share theirs

    results = tmp_path / "results"
    results.mkdir()
    words = ["report", str(results), "--take", str(second), "--queue", str(home / "queue.toml")]
    flags = ["--pack", "--tables", str(results), "--out", str(tmp_path / "r.html"), "--json"]
    assert main([*words, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["taken"], report["packed"]) == (5, 5)
    packed = {file.name for file in (results / "records").iterdir()}
    assert packed == {"a.jsonl.xz", "b.jsonl.xz"}
    assert set(report["tables"]) == {"a", "b"}


def test_main_bench_queue_refuses_flags_of_entries(home, capsys):
    assert _bench(home, "--out", str(home / "out"), "--set", "steps=3") == 2
    assert "--set" in capsys.readouterr().err


def test_main_bench_queue_shows_table(home, capsys):
    words = ["bench", "--queue", str(home / "queue.toml"), "--dry-run", "--device", "cpu"]
    assert main([*words, "--seconds", "100", "--out", str(home / "out")]) == 0
    shown = capsys.readouterr().out
    assert "5 cells are left" in shown
    assert "would begin" in shown


def test_recipes_queue_can_run():
    """Every entry of the repository's queue names cells that its recipe has."""
    queue = read_queue(Path(__file__).parents[2] / "recipes" / "queue.toml")
    assert all(queue.cells())
