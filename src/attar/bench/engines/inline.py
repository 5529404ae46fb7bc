"""One job after the other in this process: nothing to start, easy to debug."""

from collections import deque
from collections.abc import Callable

from attar.bench.engines.engine import Job, JobResult
from attar.bench.engines.jobs import perform


class Inline:
    """Carries out each job when its result is asked for."""

    name = "inline"
    workers = 1

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[JobResult]:
        """Carry out the oldest job."""
        return [perform(self._waiting.popleft(), meanwhile)] if self._waiting else []

    def close(self) -> None:
        """Forget the jobs that wait."""
        self._waiting.clear()
