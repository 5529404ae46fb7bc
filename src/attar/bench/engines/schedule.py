"""Drives a bench: trains clients before the cells that need them, and nothing twice.

Nothing is started that cannot end in time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attar.bench.cells import Cell, ClientSet, unique_client_sets, unique_runs
from attar.bench.clients import bundle_folder, read_training
from attar.bench.cost import Costs
from attar.bench.engines.engine import Engine, Job, JobResult
from attar.bench.engines.jobs import share_done, write_failure
from attar.bench.finished import find_finished
from attar.bench.records import Record
from attar.errors import Stopped
from attar.running import ProgressReport, Watch

POLL_SECONDS = 1.0
LEAST_SECONDS = 15.0  # a job that has less is not started
GRACE_SECONDS = 20  # for running jobs after Ctrl-C
LEAST_SHARE = 0.005  # of the whole work: a pace measured on less makes the time left useless


@dataclass
class BenchResult:
    """What became of the cells.

    Attributes:
        done: Finished in this bench.
        before: Finished in an earlier bench.
        missing: They need something that is not available.
        failed: The error of each cell that failed, by its title.
        left: Out of time; the next bench runs or resumes them.
        trained: Number of client sets that were trained.
        seconds: How long the bench took.
    """

    done: list[Cell] = field(default_factory=list)
    before: list[Cell] = field(default_factory=list)
    missing: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[Cell] = field(default_factory=list)
    trained: int = 0
    seconds: float = 0.0


def run_bench(
    cells: Sequence[Cell],
    out: Path,
    engine: Engine,
    *,
    device: str = "cpu",
    threads: int = 1,
    seconds: float | None = None,
    keep_runs: bool = False,
    watch: Watch | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
    costs: Costs | None = None,
) -> BenchResult:
    """Run every cell that has no record that counts.

    Args:
        cells: The cells; several of one run are run once.
        out: The bench's folder, with the records of earlier benches.
        engine: Where jobs run; it is closed at the end.
        device: Where clients train and uploads are fused.
        threads: CPU threads of a job.
        seconds: Time limit; None: none.
        keep_runs: Whether folders of runs with their models stay.
        watch: Is called with the progress.
        on_record: Is called with each new record.
        costs: Estimates for the progress; None: without earlier records.

    Raises:
        Stopped: Ctrl-C was pressed; the same bench resumes what was running.
    """
    start = time.monotonic()
    deadline = None if seconds is None else time.time() + seconds
    state = _BenchState(list(cells), out, device, costs or Costs(device))

    def report_progress() -> None:
        if watch is not None:
            watch(state.progress(start))

    try:
        while state.unfinished:
            in_time = deadline is None or deadline - time.time() > LEAST_SECONDS
            for work in state.ready(engine.workers) if in_time else ():
                state.running[work.key] = work
                engine.submit(Job(work, out, device, engine.name, threads, deadline, keep_runs))
            if not state.running:
                break  # out of time, or what is left cannot run
            report_progress()
            results = engine.collect(POLL_SECONDS, report_progress)
            for result in results:
                record = state.accept(result, engine.name)
                if record is not None:
                    on_record(record)
            if any(result.status == "stopped" for result in results):
                raise KeyboardInterrupt
        report_progress()
    except KeyboardInterrupt:
        for _ in range(GRACE_SECONDS):  # running jobs save what they have, at the end of a step
            for result in engine.collect(1.0, report_progress) if state.running else ():
                state.accept(result, engine.name)
        left = len(state.result(0.0).left)
        raise Stopped(
            f"Stopped by Ctrl-C: {left} cells are left.",
            fix="run the same command again: it goes on from here",
        ) from None
    finally:
        engine.close()
    return state.result(time.monotonic() - start)


class _BenchState:
    """Which jobs are done, running, ready or waiting."""

    def __init__(self, cells: list[Cell], out: Path, device: str, costs: Costs) -> None:
        self._out = out
        self._device = device
        self._result = BenchResult(missing=[cell for cell in cells if cell.missing])
        runs = unique_runs(cell for cell in cells if not cell.missing)
        before = {key: cell for key, cell in runs.items() if find_finished(out, cell)}
        self._result.before = list(before.values())
        self._cells = {key: cell for key, cell in runs.items() if key not in before}
        self._sets = unique_client_sets(self._cells.values())
        self._trained = {
            key
            for key, clients in self._sets.items()
            if read_training(bundle_folder(out, clients)) is not None
        }
        self._costs = {key: costs.cell(cell).seconds for key, cell in self._cells.items()}
        self._costs |= {
            key: costs.clients(clients).seconds
            for key, clients in self._sets.items()
            if key not in self._trained
        }
        self._total_cost = sum(self._costs.values()) or 1.0
        # Keys that need no more work, or cannot be done now.
        self._over: set[str] = set(self._trained)
        self.running: dict[str, ClientSet | Cell] = {}

    @property
    def unfinished(self) -> bool:
        """Whether a job runs, or a cell is left that may run."""
        return bool(self.running) or any(key not in self._over for key in self._cells)

    def ready(self, workers: int) -> list[ClientSet | Cell]:
        """Jobs to start now.

        Cells come first, so that trained clients are used before others are trained.
        """
        free = workers - len(self.running)
        if free <= 0:
            return []
        waiting = [cell for key, cell in self._cells.items() if self._is_waiting(key)]
        jobs: list[ClientSet | Cell] = [
            cell
            for cell in waiting
            if all(clients.key in self._trained for clients in cell.client_sets)
        ]
        sets = unique_client_sets(waiting)
        jobs += [clients for key, clients in sets.items() if self._is_waiting(key)]
        return jobs[:free]

    def _is_waiting(self, key: str) -> bool:
        return key not in self._over and key not in self.running

    def accept(self, result: JobResult, engine: str) -> Record | None:
        """Take the result of a job; returns the record of a cell that finished."""
        work = self.running.pop(result.key)
        self._over.add(result.key)
        if isinstance(work, Cell):
            if result.status == "done":
                self._result.done.append(work)
            elif result.status == "failed":
                self._fail(work, result.error, engine)
            return result.record
        if result.status == "done":
            self._trained.add(work.key)
            self._result.trained += 1
        else:
            self._drop_cells_of(work, result, engine)
        return None

    def _drop_cells_of(self, clients: ClientSet, result: JobResult, engine: str) -> None:
        """Give up the cells of clients that were not trained."""
        for key, cell in self._cells.items():
            keys = [each.key for each in cell.client_sets]
            if key not in self._over and clients.key in keys:
                self._over.add(key)
                if result.status == "failed":
                    error = f"Its clients could not be trained. {result.error}"
                    self._fail(cell, error, engine)

    def _fail(self, cell: Cell, error: str, engine: str) -> None:
        self._result.failed[cell.title] = error.splitlines()[0]
        write_failure(Job(cell, self._out, self._device, engine), cell, error)

    def progress(self, start: float) -> ProgressReport:
        """How far the whole bench is by estimated cost, and the time left at the pace so far."""
        done = sum(cost for key, cost in self._costs.items() if key in self._over)
        for key in self.running:
            done += self._costs.get(key, 0.0) * share_done(self._out, key)
        share = min(1.0, done / self._total_cost)
        elapsed = time.monotonic() - start
        left = elapsed * (1 - share) / share if share >= LEAST_SHARE else None
        cells = sum(key in self._over for key in self._cells)
        running = {"running": float(len(self.running))}
        return ProgressReport("cells", cells, len(self._cells), share, left, running)

    def result(self, seconds: float) -> BenchResult:
        """What became of the cells until now."""
        done = {cell.key for cell in self._result.done}
        self._result.left = [
            cell
            for key, cell in self._cells.items()
            if key not in done and cell.title not in self._result.failed
        ]
        self._result.seconds = seconds
        return self._result
