"""One job after the other in this process: nothing to start, easy to debug."""

from collections import deque
from collections.abc import Callable

from attar.bench.engines.jobs import Job, Outcome, perform


class Inline:
    """The engine that needs nothing."""

    name = "inline"
    workers = 1

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[Outcome]:
        return [perform(self._waiting.popleft(), meanwhile)] if self._waiting else []

    def close(self) -> None:
        self._waiting.clear()
