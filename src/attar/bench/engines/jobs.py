"""What an engine carries out: train a set of clients, or run a cell. A job is plain data and
goes anywhere; its outcome comes back.
"""

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from attar.bench.cell import run_cell
from attar.bench.clients import train_clients
from attar.bench.grid import Cell, ClientSet
from attar.bench.records import FAILED, Record, of_run, write_record
from attar.errors import AttarError, OutOfTime, Stopped
from attar.internal.files import write_atomic
from attar.running import ProgressReport, Watch

HEARTBEAT = 1.0  # seconds between two words about a running job
LAST_LINES = 12  # of a traceback, in a record


@dataclass(frozen=True)
class Job:
    """Clients to train or a cell to run, and where."""

    work: ClientSet | Cell
    out: Path
    device: str
    engine: str
    threads: int = 1
    deadline: float | None = None  # by time.time()
    keep_runs: bool = False

    @property
    def key(self) -> str:
        return self.work.key

    @property
    def title(self) -> str:
        if isinstance(self.work, Cell):
            return self.work.title
        federation = self.work.federation
        return f"train {self.work.spec.net} on {federation.data}, {federation.rule}, seed {self.work.seed}"


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    key: str
    status: Literal["done", "late", "stopped", "failed"]
    error: str = ""
    record: Record | None = None


def perform(job: Job, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
    """Carry out a job in this process. Whatever goes wrong is told, not raised; only Ctrl-C ends
    the process.

    ``meanwhile`` is called about once a second.
    """
    torch.set_num_threads(job.threads)  # as many for every engine: sums depend on it
    heart = _heartbeat(job, meanwhile)
    try:
        if isinstance(job.work, ClientSet):
            train_clients(job.work, job.out, job.device, deadline=job.deadline, watch=heart)
            return Outcome(job.key, "done")
        record = run_cell(
            job.work,
            job.out,
            job.device,
            engine=job.engine,
            deadline=job.deadline,
            watch=heart,
            keep_runs=job.keep_runs,
        )
        return Outcome(job.key, "done", record=record)
    except OutOfTime as late:
        return Outcome(job.key, "late", late.what)
    except Stopped as stopped:
        return Outcome(job.key, "stopped", stopped.what)
    except AttarError as error:
        return _failed(job, str(error))
    except Exception as error:  # a bench goes on with its other cells
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        return _failed(job, "\n".join([f"{type(error).__name__}: {error}", *lines[-LAST_LINES:]]))
    finally:
        progress_file(job.out, job.key).unlink(missing_ok=True)


def _failed(job: Job, error: str) -> Outcome:
    if isinstance(job.work, Cell):
        write_failure(job, job.work, error)
    return Outcome(job.key, "failed", error)


def write_failure(job: Job, cell: Cell, error: str) -> None:
    """A record that says why there is no number."""
    record = of_run(cell, job.device) | {"engine": job.engine, "ending": FAILED, "error": error}
    write_record(job.out, record)


def progress_file(out: Path, key: str) -> Path:
    return out / "progress" / f"{key}.json"


def _heartbeat(job: Job, meanwhile: Callable[[], None]) -> Watch:
    """Tells whoever waits how far the job is, through a small file."""
    path, last = progress_file(job.out, job.key), 0.0

    def beat(moment: ProgressReport) -> None:
        nonlocal last
        if time.monotonic() - last > HEARTBEAT:
            last = time.monotonic()
            write_atomic(
                path,
                json.dumps(
                    {"done": moment.done, "left": moment.seconds_left, "phase": moment.phase}
                ),
            )
            meanwhile()

    return beat


def share_done(out: Path, key: str) -> float:
    """How far a running job is, 0 to 1; 0 where nobody has said so yet."""
    try:
        return float(json.loads(progress_file(out, key).read_text())["done"])
    except (OSError, ValueError):
        return 0.0
