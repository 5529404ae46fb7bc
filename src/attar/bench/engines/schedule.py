"""Drives a bench: clients before the cells that need them, nothing twice, nothing begun that
cannot end in time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attar.bench.clients import bundle_folder, trained
from attar.bench.cost import Costs
from attar.bench.engines.engine import Engine
from attar.bench.engines.jobs import Job, Outcome, share_done, write_failure
from attar.bench.grid import Cell, ClientSet, named_by_headline, shared_sets
from attar.bench.records import Record, finished
from attar.errors import Stopped
from attar.running import ProgressReport, Watch

POLL_SECONDS = 1.0
LEAST_SECONDS = 15.0  # a job that has less is not begun
GRACE_SECONDS = 20  # for running jobs after Ctrl-C
ENOUGH = 0.005  # of the whole work: a pace measured on less promises days


@dataclass
class Tally:
    """What became of the cells."""

    done: list[Cell] = field(default_factory=list)
    before: list[Cell] = field(default_factory=list)  # finished in an earlier bench
    missing: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # title -> why
    left: list[Cell] = field(default_factory=list)  # out of time; the next bench goes on with them
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
) -> Tally:
    """Run every cell that has no record yet; ``on_record`` is called with each new record."""
    begun = time.monotonic()
    deadline = None if seconds is None else time.time() + seconds
    bench = _Bench(list(cells), out, device, costs or Costs(device))

    def look() -> None:
        if watch is not None:
            watch(bench.moment(begun))

    try:
        while bench.unfinished:
            in_time = deadline is None or deadline - time.time() > LEAST_SECONDS
            for work in bench.ready(engine.workers) if in_time else ():
                bench.running[work.key] = work
                engine.submit(Job(work, out, device, engine.name, threads, deadline, keep_runs))
            if not bench.running:
                break  # out of time, or what is left cannot run
            look()
            outcomes = engine.collect(POLL_SECONDS, look)
            for outcome in outcomes:
                record = bench.take(outcome, engine.name)
                if record is not None:
                    on_record(record)
            if any(outcome.status == "stopped" for outcome in outcomes):
                raise KeyboardInterrupt
        look()
    except KeyboardInterrupt:
        for _ in range(GRACE_SECONDS):  # running jobs save what they have, at the end of a step
            for outcome in engine.collect(1.0, look) if bench.running else ():
                bench.take(outcome, engine.name)
        left = len(bench.tally(0.0).left)
        raise Stopped(
            f"Stopped by Ctrl-C: {left} cells are left.",
            fix="run the same command again: it goes on from here",
        ) from None
    finally:
        engine.close()
    return bench.tally(time.monotonic() - begun)


class _Bench:
    """Which jobs are done, under way, ready or waiting."""

    def __init__(self, cells: list[Cell], out: Path, device: str, costs: Costs) -> None:
        self.out, self.device = out, device
        self._tally = Tally(missing=[cell for cell in cells if cell.missing])
        able = named_by_headline(cell for cell in cells if not cell.missing)
        self._tally.before = [cell for cell in able.values() if finished(out, cell)]
        self._cells = {key: cell for key, cell in able.items() if cell not in self._tally.before}
        self._sets = shared_sets(self._cells.values())
        self._trained = {
            key for key, one in self._sets.items() if trained(bundle_folder(out, one)) is not None
        }
        self._costs = {key: costs.cell(cell).seconds for key, cell in self._cells.items()}
        self._costs |= {
            key: costs.clients(one).seconds
            for key, one in self._sets.items()
            if key not in self._trained
        }
        self._all = sum(self._costs.values()) or 1.0
        self._over: set[str] = set(
            self._trained
        )  # keys that need no more work, or cannot be done now
        self.running: dict[str, ClientSet | Cell] = {}

    @property
    def unfinished(self) -> bool:
        return bool(self.running) or any(key not in self._over for key in self._cells)

    def ready(self, workers: int) -> list[ClientSet | Cell]:
        """Jobs that can begin, cells first: what is trained is used before more is trained."""
        room = workers - len(self.running)
        waiting = [
            cell
            for key, cell in self._cells.items()
            if key not in self._over and key not in self.running
        ]
        found: list[ClientSet | Cell] = [
            cell for cell in waiting if all(one.key in self._trained for one in cell.client_sets)
        ]
        wanted = {one.key: one for cell in waiting for one in cell.client_sets}
        found += [
            one for key, one in wanted.items() if key not in self._over and key not in self.running
        ]
        return found[:room] if room > 0 else []

    def take(self, outcome: Outcome, engine: str) -> Record | None:
        work = self.running.pop(outcome.key)
        self._over.add(outcome.key)
        if isinstance(work, Cell):
            if outcome.status == "done":
                self._tally.done.append(work)
            elif outcome.status == "failed":
                self._fail(work, outcome.error, engine)
            return outcome.record
        if outcome.status == "done":
            self._trained.add(work.key)
            self._tally.trained += 1
            return None
        for key, cell in self._cells.items():  # their clients will not come
            if key not in self._over and any(one.key == work.key for one in cell.client_sets):
                self._over.add(key)
                if outcome.status == "failed":
                    self._fail(cell, f"Its clients could not be trained. {outcome.error}", engine)
        return None

    def _fail(self, cell: Cell, error: str, engine: str) -> None:
        self._tally.failed[cell.title] = error.splitlines()[0]
        write_failure(Job(cell, self.out, self.device, engine), cell, error)

    def moment(self, begun: float) -> ProgressReport:
        """How far the whole is, by cost; time left by the pace so far."""
        done = sum(cost for key, cost in self._costs.items() if key in self._over)
        done += sum(self._costs.get(key, 0.0) * share_done(self.out, key) for key in self.running)
        share, gone = min(1.0, done / self._all), time.monotonic() - begun
        left = gone * (1 - share) / share if share >= ENOUGH else None
        cells = sum(key in self._over for key in self._cells)
        return ProgressReport(
            "cells", cells, len(self._cells), share, left, {"running": float(len(self.running))}
        )

    def tally(self, seconds: float) -> Tally:
        ended = {*(cell.key for cell in self._tally.done)}
        failed = self._tally.failed
        self._tally.left = [
            cell
            for key, cell in self._cells.items()
            if key not in ended and cell.title not in failed
        ]
        self._tally.seconds = seconds
        return self._tally
