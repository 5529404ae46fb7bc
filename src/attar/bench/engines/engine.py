"""What every engine does: take jobs, give outcomes."""

from collections.abc import Callable
from typing import Protocol

from attar.bench.engines.jobs import Job, Outcome

ATTEMPTS = 3  # of a job whose worker died


class Engine(Protocol):
    """Takes jobs and hands back how they ended, in whatever order."""

    @property
    def name(self) -> str: ...
    @property
    def workers(self) -> int:
        """How many jobs it carries out at once."""
        ...

    def submit(self, job: Job) -> None: ...

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[Outcome]:
        """The outcomes since the last call; waits up to so many seconds for one. An engine that
        works here calls ``meanwhile``.
        """
        ...

    def close(self) -> None:
        """End everything, also what is running."""
        ...
