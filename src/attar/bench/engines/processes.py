"""Several processes on this machine, each with its own CUDA context, so several cells share a GPU.

A worker that dies breaks the pool; a new pool is started and the jobs that were running are
carried out again from their last checkpoints. A worker whose parent has ended ends itself, so a
killed bench leaves no process behind that writes into its folder. Ctrl-C while workers start up
ends them silently.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from attar.bench.engines.engine import ATTEMPTS, Job, JobResult
from attar.bench.engines.jobs import perform

PARENT_SECONDS = 0.5  # between two looks whether the parent still runs


class Processes:
    """A pool of processes of the standard library.

    Args:
        workers: How many jobs run at once.
    """

    name = "processes"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = self._start()
        self._running: dict[Future[JobResult], Job] = {}
        self._attempts: dict[str, int] = {}

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_start_worker, initargs=(os.getpid(),)
        )

    def submit(self, job: Job) -> None:
        """Hand a job to the pool."""
        self._attempts[job.key] = self._attempts.get(job.key, 0) + 1
        with _block_interrupts():  # workers may be started here
            self._running[self._pool.submit(perform, job)] = job

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[JobResult]:
        """Return the results of jobs that have ended; jobs of a broken pool start again."""
        done, _ = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        results = []
        broken = []
        for future in done:
            job = self._running.pop(future)
            try:
                results.append(future.result())
            except BrokenProcessPool:
                broken.append(job)
        if broken:
            results += self._restart(broken)
        return results

    def _restart(self, broken: list[Job]) -> list[JobResult]:
        """Start a new pool for the jobs of a broken one; a job that ran each time is given up."""
        broken += self._running.values()
        self._running.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start()
        given_up = [job for job in broken if self._attempts[job.key] >= ATTEMPTS]
        for job in broken:
            if job not in given_up:
                self.submit(job)
        error = "The worker process died; out of memory? Fewer --workers may help."
        return [JobResult(job.key, "failed", error) for job in given_up]

    def close(self) -> None:
        """End the pool; workers that run jobs are terminated."""
        children = multiprocessing.active_children() if self._running else []
        self._pool.shutdown(wait=not self._running, cancel_futures=True)
        for child in children:
            child.terminate()


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until afterwards; in workers that are started here, until ``_start_worker``."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int) -> None:
    """Unblock Ctrl-C, and end this process when its parent has ended."""
    if sys.platform != "win32":
        if signal.SIGINT in signal.sigpending():
            os._exit(130)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()
