"""Carries out a job: trains a set of clients, or runs a cell."""

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attar.bench.cell import run_cell
from attar.bench.cells import Cell, ClientSet
from attar.bench.clients import train_clients
from attar.bench.engines.engine import Job, JobResult
from attar.bench.finished import find_finished
from attar.bench.locks import hold
from attar.bench.metadata import run_metadata
from attar.bench.records import FAILED, write_record
from attar.errors import AttarError, OutOfTime, Stopped
from attar.internal.files import write_atomic
from attar.running import ProgressReport, Watch
from attar.tracking import track

PROGRESS_SECONDS = 1.0  # between two reports of a running job
RESULTS = ("accuracy", "balanced_accuracy", "best_on_test", "ensemble_accuracy", "seconds")
LAST_LINES = 12  # of a traceback, in a record


def perform(job: Job, meanwhile: Callable[[], None] = lambda: None) -> JobResult:
    """Carry out a job in this process.

    Args:
        job: The job.
        meanwhile: Is called about once a second.

    Returns:
        How it ended. Errors are returned, not raised; only a second Ctrl-C ends the process.
    """
    torch.set_num_threads(job.threads)  # as many for every engine: sums depend on it
    watch = _watch_job(job, meanwhile)
    try:
        return _carry_out(job, watch)
    except OutOfTime as late:
        return JobResult(job.key, "late", late.what, share=share_done(job.out, job.key))
    except Stopped as stopped:
        share = share_done(job.out, job.key)
        return JobResult(job.key, "stopped", stopped.what, share=share)
    except AttarError as error:
        return _failed(job, str(error))
    except Exception as error:  # a bench goes on with its other cells
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        return _failed(job, "\n".join([f"{type(error).__name__}: {error}", *lines[-LAST_LINES:]]))
    finally:
        progress_file(job.out, job.key).unlink(missing_ok=True)


def _carry_out(job: Job, watch: Watch) -> JobResult:
    """Train the clients or run the cell, tracked."""
    work = job.work
    if isinstance(work, ClientSet):
        settings = {**dict(work.spec.training), "net": work.spec.net, "seed": work.seed}
        with track(job.track, f"clients-{job.key}", "bench", settings) as tracking:
            train_clients(
                work,
                job.out,
                job.device,
                deadline=job.deadline,
                watch=watch,
                on_point=tracking.log_point,
            )
        return JobResult(job.key, "done")
    with hold(progress_file(job.out, job.key).with_suffix(".lock"), job.deadline) as waited:
        # Another bench in this folder may have run the cell meanwhile.
        record = find_finished(job.out, work) if waited else None
        if record is None:
            with track(job.track, work.name, "bench", _settings(work)) as tracking:
                record = run_cell(
                    work,
                    job.out,
                    job.device,
                    engine=job.engine,
                    deadline=job.deadline,
                    watch=watch,
                    keep_runs=job.keep_runs,
                    on_point=tracking.log_point,
                )
                tracking.describe_end({key: record.get(key) for key in RESULTS})
    return JobResult(job.key, "done", record=record)


def _settings(cell: Cell) -> dict[str, Any]:
    """What a cell is, for trackers."""
    return {
        "recipe": cell.recipe,
        "row": cell.row.label,
        "method": cell.row.method,
        **dict(cell.labels),
        **dict(cell.settings),
        "student": cell.student,
        "seed": cell.seed,
        "precision": cell.precision,
    }


def _failed(job: Job, error: str) -> JobResult:
    if isinstance(job.work, Cell):
        write_failure(job, job.work, error)
    return JobResult(job.key, "failed", error)


def write_failure(job: Job, cell: Cell, error: str) -> None:
    """Write a record that says why there is no number."""
    outcome = {"engine": job.engine, "ending": FAILED, "error": error}
    write_record(job.out, run_metadata(cell, job.device) | outcome)


def progress_file(out: Path, key: str) -> Path:
    """Where a running job writes how far it is."""
    return out / "progress" / f"{key}.json"


def _watch_job(job: Job, meanwhile: Callable[[], None]) -> Watch:
    """Make a function that writes how far the job is into a small file, for the bench to read."""
    path = progress_file(job.out, job.key)
    last = 0.0

    def watch(progress: ProgressReport) -> None:
        nonlocal last
        if time.monotonic() - last <= PROGRESS_SECONDS:
            return
        last = time.monotonic()
        values = {
            "done": progress.done,
            "left": progress.seconds_left,
            "phase": progress.phase,
        }
        write_atomic(path, json.dumps(values))
        meanwhile()

    return watch


def share_done(out: Path, key: str) -> float:
    """How far a running job is, 0 to 1; 0 where that is not known yet."""
    try:
        return float(json.loads(progress_file(out, key).read_text())["done"])
    except (OSError, ValueError):
        return 0.0
