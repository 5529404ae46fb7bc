"""Jobs on a Ray cluster, which is started here when no address is given (extra ``ray``).

Nodes need not share a disk. Every node has a folder of its own. The uploads that a job needs are
sent to it, and what it made is sent back: the uploads of trained clients, or a record and its
picture. Ray carries out a job again whose worker died.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attar.bench.cells import Cell
from attar.bench.clients import bundle_folder
from attar.bench.engines.engine import ATTEMPTS, Job, JobResult
from attar.bench.engines.jobs import perform
from attar.bench.records import record_file
from attar.errors import SettingsError
from attar.internal.files import write_atomic

Files = dict[str, bytes]  # path inside the bench's folder -> content


@dataclass(frozen=True)
class Delivery:
    """What comes back from a node."""

    result: JobResult
    files: Files


class Ray:
    """Jobs as Ray tasks.

    Args:
        workers: How many jobs run at once.
        address: The cluster; None: one is started here.

    Raises:
        SettingsError: Ray is not installed.
    """

    name = "ray"

    def __init__(self, workers: int, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise SettingsError(
                "The engine ray needs Ray.", fix="pip install 'attar[ray]', or --engine processes"
            ) from None
        # Otherwise Ray warns about a coming change.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray: Any = ray
        self.workers = workers
        options: dict[str, Any] = (
            {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        )
        ray.init(**options, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        self._task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(perform_on_node)
        self._running: dict[Any, Job] = {}
        self._sent: dict[str, Any] = {}  # uploads that are in Ray's store already, by key

    def submit(self, job: Job) -> None:
        """Send a job to the cluster, with the uploads that it needs."""
        sets = job.work.client_sets if isinstance(job.work, Cell) else ()
        needed = [self._send_uploads(job, clients.key) for clients in sets]
        gpus = 1.0 / self.workers if job.device.startswith("cuda") else 0
        self._running[self._task.options(num_gpus=gpus).remote(job, *needed)] = job

    def _send_uploads(self, job: Job, key: str) -> Any:
        if key not in self._sent:
            folder = job.out / "clients" / key
            files = {
                file.relative_to(job.out).as_posix(): file.read_bytes()
                for file in sorted(folder.iterdir())
                if file.is_file()
            }
            self._sent[key] = self._ray.put(files)
        return self._sent[key]

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[JobResult]:
        """Return the results of jobs that have ended, and write their files."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        results = []
        for reference in ready:
            job = self._running.pop(reference)
            try:
                delivery: Delivery = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                results.append(JobResult(job.key, "failed", f"The worker died: {error}"))
                continue
            for name, content in delivery.files.items():
                write_atomic(job.out / name, content)
            results.append(delivery.result)
        return results

    def close(self) -> None:
        """Cancel what is running and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def perform_on_node(job: Job, *needed: Files) -> Delivery:
    """Carry out a job on a node, in a folder of the node's own.

    Args:
        job: The job.
        needed: The uploads of trained clients.
    """
    number = hashlib.sha256(str(job.out.resolve()).encode()).hexdigest()[:12]
    home = Path(tempfile.gettempdir()) / f"attar-bench-{number}"
    for files in needed:
        for name, content in files.items():
            if not (home / name).exists():
                write_atomic(home / name, content)
    result = perform(replace(job, out=home))
    made: list[Path] = []
    if isinstance(job.work, Cell):
        record = record_file(home, job.work.name)
        made = [file for file in (record, record.with_suffix(".png")) if file.exists()]
    elif result.status == "done":
        made = [file for file in bundle_folder(home, job.work).iterdir() if file.is_file()]
    return Delivery(result, {file.relative_to(home).as_posix(): file.read_bytes() for file in made})
