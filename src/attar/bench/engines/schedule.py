"""Drives a bench: trains clients before the cells that need them, and nothing twice.

Nothing is started that cannot end in time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from attar.bench.cell import MARGIN
from attar.bench.cells import Cell, ClientSet, unique_client_sets, unique_runs
from attar.bench.clients import bundle_folder, read_training
from attar.bench.cost import Costs
from attar.bench.engines.engine import Engine, Job, JobResult
from attar.bench.engines.jobs import progress_file, share_done, write_failure
from attar.bench.finished import find_finished
from attar.bench.records import Record
from attar.errors import Stopped
from attar.running import ProgressReport, Watch

POLL_SECONDS = 1.0
LEAST_SECONDS = 15.0  # a job that has less is not started
GRACE_SECONDS = 20  # for running jobs after Ctrl-C
SAVING_SECONDS = 3.0  # of a piece: its jobs are to have saved that long before its end
HARD_SECONDS = 3.0  # after the end of a piece; jobs that still run are ended then
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
        part: How much is done of the cells and client sets that ran out of time, by key.
    """

    done: list[Cell] = field(default_factory=list)
    before: list[Cell] = field(default_factory=list)
    missing: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[Cell] = field(default_factory=list)
    trained: int = 0
    seconds: float = 0.0
    part: dict[str, float] = field(default_factory=dict)


def _forget(key: str, seconds: float, share: float) -> None:
    """Note nothing."""


@dataclass(frozen=True)
class Piece:
    """A stretch of machine time: cells run in the order given, and the time limit is hard.

    Attributes:
        expected: Seconds that are left of each cell and each training of clients, by key.
        fit: Keys of the cells that are started only where they fit into the time left.
        on_end: Is called when work ends, for now or for good, with its key, the seconds that
            it took in this piece, and the share of it that is done.
    """

    expected: Mapping[str, float]
    fit: frozenset[str] = frozenset()
    on_end: Callable[[str, float, float], None] = _forget


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
    piece: Piece | None = None,
    track: tuple[str, ...] = (),
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
        piece: Cells run in their order, and jobs that have not saved what they have soon after
            ``seconds`` are ended; the engine ``inline`` waits for them. None: cells whose
            clients are trained come first, and every job ends by itself.
        track: Trackers of all jobs, ``KIND:PLACE``.

    Raises:
        Stopped: Ctrl-C was pressed; the same bench resumes what was running.
    """
    start = time.monotonic()
    deadline = None if seconds is None else time.time() + seconds
    job_deadline = deadline if deadline is None or piece is None else deadline - SAVING_SECONDS
    state = _BenchState(list(cells), out, device, costs or Costs(device), piece)

    def report_progress() -> None:
        if watch is not None:
            watch(state.progress(start))

    try:
        while state.unfinished:
            left = inf if deadline is None else deadline - time.time()
            for work in state.ready(engine.workers, left):
                state.begin(work, time.monotonic())
                about = (engine.name, threads, job_deadline, keep_runs, track)
                engine.submit(Job(work, out, device, *about))
            if not state.running:
                break  # out of time, or what is left cannot run
            if piece is not None and left < -HARD_SECONDS:
                state.give_up(engine.name)
                break
            report_progress()
            results = engine.collect(POLL_SECONDS, report_progress)
            for result in results:
                record = state.accept(result, engine.name, time.monotonic())
                if record is not None:
                    on_record(record)
            if any(result.status == "stopped" for result in results):
                raise KeyboardInterrupt
        report_progress()
    except KeyboardInterrupt:
        for _ in range(GRACE_SECONDS):  # running jobs save what they have, at the end of a step
            for result in engine.collect(1.0, report_progress) if state.running else ():
                state.accept(result, engine.name, time.monotonic())
        number = len(state.result(0.0).left)
        raise Stopped(
            f"Stopped by Ctrl-C: {number} cells are left.",
            fix="run the same command again: it goes on from here",
        ) from None
    finally:
        engine.close()
    return state.result(time.monotonic() - start)


def simulate_bench(
    cells: Sequence[Cell], out: Path, piece: Piece, *, workers: int, seconds: float | None
) -> BenchResult:
    """What ``run_bench`` would do with a piece if everything took as long as expected.

    Args:
        cells: The cells.
        out: The bench's folder; nothing is written.
        piece: The piece.
        workers: How many jobs run at once.
        seconds: The length of the piece; None: as long as it takes.
    """
    state = _BenchState(list(cells), out, "cpu", Costs("cpu"), piece, simulated=True)
    now = 0.0
    ends: dict[str, float] = {}
    whole = inf if seconds is None else seconds
    while state.unfinished:
        for work in state.ready(workers, whole - now):
            state.begin(work, now)
            ends[work.key] = now + piece.expected[work.key]
        if not ends:
            break
        key = min(ends, key=lambda key: ends[key])
        now = ends.pop(key)
        late = now > whole
        share = (whole - state.begun[key]) / (now - state.begun[key]) if late else 1.0
        result = JobResult(key, "late" if late else "done", share=share)
        state.accept(result, "inline", now)
    return state.result(min(now, whole))


class _BenchState:
    """Which jobs are done, running, ready or waiting."""

    def __init__(
        self,
        cells: list[Cell],
        out: Path,
        device: str,
        costs: Costs,
        piece: Piece | None = None,
        *,
        simulated: bool = False,
    ) -> None:
        self._out = out
        self._device = device
        self._piece = piece
        self._on_end = _forget if piece is None or simulated else piece.on_end
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
        self.begun: dict[str, float] = {}  # when each job began, by some clock

    @property
    def unfinished(self) -> bool:
        """Whether a job runs, or a cell is left that may run."""
        return bool(self.running) or any(key not in self._over for key in self._cells)

    def ready(self, workers: int, left: float) -> list[ClientSet | Cell]:
        """Jobs to start now.

        Args:
            workers: How many run at once.
            left: Seconds until the time limit.
        """
        free = workers - len(self.running)
        if free <= 0 or left <= LEAST_SECONDS:
            return []
        waiting = [cell for key, cell in self._cells.items() if self._is_waiting(key)]
        if self._piece is None:
            return self._used_clients_first(waiting)[:free]
        return self._in_order(waiting, self._piece, left)[:free]

    def _used_clients_first(self, waiting: Sequence[Cell]) -> list[ClientSet | Cell]:
        """Cells come first, so that trained clients are used before others are trained."""
        jobs: list[ClientSet | Cell] = [
            cell
            for cell in waiting
            if all(clients.key in self._trained for clients in cell.client_sets)
        ]
        sets = unique_client_sets(waiting)
        return jobs + [clients for key, clients in sets.items() if self._is_waiting(key)]

    def _in_order(
        self, waiting: Sequence[Cell], piece: Piece, left: float
    ) -> list[ClientSet | Cell]:
        """The cells in their order, a cell whose clients are not trained by their training."""
        jobs: dict[str, ClientSet | Cell] = {}
        for cell in waiting:
            untrained = [each for each in cell.client_sets if each.key not in self._trained]
            keys = [cell.key, *(each.key for each in untrained)]
            needed = sum(piece.expected[key] for key in keys)
            if cell.key in piece.fit and needed > left - SAVING_SECONDS - MARGIN:
                continue  # a smaller one after it may fit
            works: Sequence[ClientSet | Cell] = untrained or [cell]
            for work in works:
                if self._is_waiting(work.key):
                    jobs.setdefault(work.key, work)
        return list(jobs.values())

    def begin(self, work: ClientSet | Cell, now: float) -> None:
        """Note that a job starts."""
        self.running[work.key] = work
        self.begun[work.key] = now

    def give_up(self, engine: str) -> None:
        """Count the jobs that still run as out of time; the engine ends them when it is closed."""
        for key in list(self.running):
            share = share_done(self._out, key)
            progress_file(self._out, key).unlink(missing_ok=True)
            self.accept(JobResult(key, "late", share=share), engine, time.monotonic())

    def _is_waiting(self, key: str) -> bool:
        return key not in self._over and key not in self.running

    def accept(self, result: JobResult, engine: str, now: float) -> Record | None:
        """Take the result of a job; returns the record of a cell that finished."""
        work = self.running.pop(result.key)
        self._over.add(result.key)
        share = 1.0 if result.status == "done" else result.share
        self._on_end(result.key, now - self.begun[result.key], share)
        if result.status in ("late", "stopped"):
            self._result.part[result.key] = share
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
