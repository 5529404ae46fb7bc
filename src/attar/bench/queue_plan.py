"""What is left of a queue: what each cell and each training is expected to take, and its state."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attar.bench.cells import Cell, ClientSet, unique_client_sets
from attar.bench.clients import bundle_folder, read_training
from attar.bench.cost import Costs
from attar.bench.engines.schedule import BenchResult, Piece, simulate_bench
from attar.bench.finished import find_finished
from attar.bench.queue import Ledger, Queue, QueueEntry
from attar.bench.recipe import Federation
from attar.bench.records import FAILED, FINISHED, Record, find_record, read_records

GAIN_OF_LANES = 4 / 3  # the most that cells side by side on one GPU gain
# What does not change how long training takes: all clients together hold as many images.
NOT_OF_TIME = ("seed", "rule", "min_size", "least_share", "clients")
OUTCOME = ("labels", "counts", "classes", "seconds")  # beside the description in clients.json


@dataclass(frozen=True)
class Work:
    """A cell with the time that is left of it.

    Attributes:
        cell: The cell.
        state: recorded, ran (in this piece), part done, failed, not run, or missing.
        seconds: Expected until it ends, with the training of its clients where no cell before it
            in the queue needs the same.
        used: The time that was spent on it so far.
    """

    cell: Cell
    state: str
    seconds: float
    used: float


class QueuePlan:
    """A queue beside what is there of it.

    Args:
        queue: The queue.
        out: The bench's folder.
        device: Where cells run.
        lanes: How many run side by side.
        whole: Whether cells are only started where they fit into the time left.
    """

    def __init__(
        self, queue: Queue, out: Path, device: str, *, lanes: int = 1, whole: bool = False
    ) -> None:
        self.queue = queue
        self.out = out
        self.device = device
        self.lanes = lanes
        self.ledger = Ledger(out)
        self._whole = whole
        self._cells_of_entries = queue.cells()
        self._entry_of: dict[str, QueueEntry] = {}
        self.cells: dict[str, Cell] = {}
        for entry, cells in zip(queue.entries, self._cells_of_entries, strict=True):
            for cell in cells:
                if cell.key not in self.cells:
                    self.cells[cell.key] = cell
                    self._entry_of[cell.key] = entry
        homes = [out, *queue.records]
        records = [record for home in homes if home.is_dir() for record in read_records(home)]
        self.costs = Costs(device, records)
        self._measured = _measure_rows(records, on_cpu=device == "cpu")
        self._measured_sets = _measure_sets(out)
        self.recorded = {
            key
            for key, cell in self.cells.items()
            if any(find_finished(home, cell) is not None for home in homes)
        }

    @cached_property
    def to_run(self) -> list[Cell]:
        """Cells without record that have what they need, in the order of the queue.

        Those that failed in an earlier piece come last: they may fail again.
        """
        cells = [
            cell
            for key, cell in self.cells.items()
            if key not in self.recorded and not cell.missing
        ]
        return sorted(cells, key=self._has_failed)

    def _has_failed(self, cell: Cell) -> bool:
        record = find_record(self.out, cell.name)
        return record is not None and record["ending"] == FAILED

    def expect_cell(self, cell: Cell) -> float:
        """How long the whole of a cell takes, when it has the machine for itself."""
        measured = self._measured.get(_row_key(cell))
        if measured is not None:
            return measured
        given = self._entry_of[cell.key].seconds
        return self.costs.cell(cell).seconds if given is None else given

    def expect_training(self, clients: ClientSet, cell: Cell) -> float:
        """How long the whole training of a set of clients takes, for a cell that needs it."""
        measured = self._measured_sets.get(_training_key(clients.describe()))
        if measured is not None:
            return measured
        given = self._entry_of[cell.key].training_seconds
        return self.costs.clients(clients).seconds if given is None else given

    def _cell_left(self, cell: Cell) -> float:
        done = self.ledger.share(cell.key) if self._is_begun(cell) else 0.0
        return self.expect_cell(cell) * (1 - done)

    def _training_left(self, clients: ClientSet, cell: Cell) -> float:
        folder = bundle_folder(self.out, clients)
        if read_training(folder) is not None:
            return 0.0
        done = self.ledger.share(clients.key) if folder.exists() else 0.0
        return self.expect_training(clients, cell) * (1 - done)

    def _is_begun(self, cell: Cell) -> bool:
        """Whether there is something here from which the cell goes on."""
        return any((self.out / "runs").glob(f"{cell.name}-*"))

    def _has_clients_begun(self, cell: Cell) -> bool:
        return any(bundle_folder(self.out, clients).exists() for clients in cell.client_sets)

    def piece(self) -> Piece:
        """What a piece of machine time needs to know of the cells that are left."""
        slow = _slowdown(self.device, self.lanes)
        expected: dict[str, float] = {}
        for cell in self.to_run:
            expected[cell.key] = slow * self._cell_left(cell)
            for clients in cell.client_sets:
                expected.setdefault(clients.key, slow * self._training_left(clients, cell))
        fit = {
            cell.key for cell in self.to_run if self._whole or not self._entry_of[cell.key].resume
        }
        return Piece(expected, frozenset(fit), self.ledger.add)

    def simulate(self, seconds: float | None) -> BenchResult:
        """What would become of the cells in so many seconds."""
        return simulate_bench(
            self.to_run, self.out, self.piece(), workers=self.lanes, seconds=seconds
        )

    def work(self, result: BenchResult | None = None) -> list[list[Work]]:
        """Each entry's cells as they are now.

        Args:
            result: What the last piece did; None: nothing yet.
        """
        ran = {cell.key for cell in result.done} if result is not None else set()
        failed = result.failed if result is not None else {}
        counted: set[str] = set()
        entries = []
        for cells in self._cells_of_entries:
            entries.append([self._work(cell, ran, failed, counted) for cell in cells])
        return entries

    def _work(
        self, cell: Cell, ran: set[str], failed: Mapping[str, str], counted: set[str]
    ) -> Work:
        """The state of a cell; what is in ``counted`` was counted for a cell before it."""
        if cell.key in ran:
            state = "ran"
        elif cell.key in self.recorded:
            state = "recorded"
        elif cell.missing:
            state = "missing"
        elif cell.title in failed or self._has_failed(cell):
            state = "failed"
        else:
            begun = self._is_begun(cell) or self._has_clients_begun(cell)
            state = "part done" if begun else "not run"
        seconds = used = 0.0
        if cell.key not in counted:
            used = self.ledger.seconds(cell.key)
            if state in ("part done", "not run", "failed"):
                seconds = self._cell_left(cell)
        counted.add(cell.key)
        for key, clients in unique_client_sets([cell]).items():
            if key not in counted and state not in ("missing", "recorded"):
                counted.add(key)
                used += self.ledger.seconds(key)
                seconds += self._training_left(clients, cell)
        return Work(cell, state, seconds, used)

    def left_seconds(self, entries: Iterable[Sequence[Work]]) -> float:
        """How long all that is left takes with these lanes."""
        seconds = sum(work.seconds for cells in entries for work in cells)
        return seconds * _slowdown(self.device, self.lanes) / self.lanes


def _slowdown(device: str, lanes: int) -> float:
    """How much longer a cell takes where others run beside it."""
    return lanes / GAIN_OF_LANES if device.startswith("cuda") and lanes > 1 else 1.0


def _nets(federation: Mapping[str, Any] | Federation) -> str:
    values = federation if isinstance(federation, Mapping) else vars(federation)
    groups = values["groups"].values()
    nets = [group["net"] if isinstance(group, Mapping) else group.net for group in groups]
    return ",".join(nets) or str(values["net"])


def _row_key(cell: Cell) -> str:
    """A row on some data: its runs take about the same time, whatever the split and the seed."""
    federation = cell.federation
    shape = [federation.data, federation.clients, federation.rounds, _nets(federation)]
    return json.dumps([cell.recipe, cell.row.label, *shape, dict(cell.settings)], sort_keys=True)


def _measure_rows(records: Iterable[Record], *, on_cpu: bool) -> dict[str, float]:
    """The median seconds of the runs of each row on some data, on this kind of device."""
    seconds: dict[str, list[float]] = {}
    for record in records:
        if record["ending"] != FINISHED or (record["device"] == "cpu") != on_cpu:
            continue
        federation = record["federation"]
        shape = [federation["data"], federation["clients"], federation["rounds"]]
        row = [record["recipe"], record["row"], *shape, _nets(federation), record["given"]]
        seconds.setdefault(json.dumps(row, sort_keys=True), []).append(record["seconds"])
    return {key: statistics.median(values) for key, values in seconds.items()}


def _training_key(description: Mapping[str, Any]) -> str:
    """Trainings of one kind: other seeds and splits of the same data take about the same time."""
    kind = {key: value for key, value in description.items() if key not in NOT_OF_TIME}
    return json.dumps(kind, sort_keys=True)


def _measure_sets(out: Path) -> dict[str, float]:
    """The median seconds of the finished trainings of each kind in a bench's folder."""
    ledger = Ledger(out)
    seconds: dict[str, list[float]] = {}
    for folder in sorted((out / "clients").glob("*")):
        training = read_training(folder)
        if training is not None:
            kind = {key: value for key, value in training.items() if key not in OUTCOME}
            took = ledger.seconds(folder.name) or training["seconds"]
            seconds.setdefault(_training_key(kind), []).append(took)
    return {key: statistics.median(values) for key, values in seconds.items()}
