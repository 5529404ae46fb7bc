"""Several processes on this machine, started afresh (spawn): each has its own CUDA context, so
several cells share one GPU.

A worker that dies takes the pool with it; a new one is started and the jobs that were under way
are done again, from their last checkpoints. A worker whose parent is gone ends itself: a killed
bench leaves nobody behind that writes into its folder. Ctrl-C while workers start up ends them
without a word.
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

from attar.bench.engines.engine import ATTEMPTS
from attar.bench.engines.jobs import Job, Outcome, perform

LOOK_SECONDS = 0.5


class Processes:
    """A pool of processes without further dependencies."""

    name = "processes"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = self._start()
        self._running: dict[Future[Outcome], Job] = {}
        self._attempts: dict[str, int] = {}

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_follow, initargs=(os.getpid(),)
        )

    def submit(self, job: Job) -> None:
        self._attempts[job.key] = self._attempts.get(job.key, 0) + 1
        with _deaf():
            self._running[self._pool.submit(perform, job)] = (
                job  # starts workers that are not there yet
            )

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[Outcome]:
        done, _ = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        outcomes, broken = [], []
        for future in done:
            job = self._running.pop(future)
            try:
                outcomes.append(future.result())
            except BrokenProcessPool:
                broken.append(job)
        if broken:
            outcomes += self._again(broken)
        return outcomes

    def _again(self, broken: list[Job]) -> list[Outcome]:
        """A new pool for the jobs of the broken one; a job that was there at every death is given up."""
        broken += self._running.values()
        self._running.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start()
        given_up = [job for job in broken if self._attempts[job.key] >= ATTEMPTS]
        for job in broken:
            if job not in given_up:
                self.submit(job)
        died = "The worker process died; out of memory? Fewer --workers may help."
        return [Outcome(job.key, "failed", died) for job in given_up]

    def close(self) -> None:
        children = multiprocessing.active_children() if self._running else []
        self._pool.shutdown(wait=not self._running, cancel_futures=True)
        for child in children:
            child.terminate()


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C waits until afterwards; for processes that are started meanwhile, until they
    ``_follow``.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(parent: int) -> None:
    """Listen to Ctrl-C from now on, and end this process when its parent is gone."""
    if sys.platform != "win32":
        if signal.SIGINT in signal.sigpending():
            os._exit(130)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
