"""What every engine does: take jobs and give their results."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from attar.bench.cells import Cell, ClientSet
from attar.bench.records import Record

ATTEMPTS = 3  # of a job whose worker died


@dataclass(frozen=True)
class Job:
    """Clients to train or a cell to run, and where.

    Attributes:
        work: The clients or the cell.
        out: The bench's folder.
        device: Where it runs.
        engine: The engine's name, for the record.
        threads: CPU threads.
        deadline: By ``time.time()``; None: no limit.
        keep_runs: Whether the run's folder with its models stays.
        track: Trackers, ``KIND:PLACE``.
    """

    work: ClientSet | Cell
    out: Path
    device: str
    engine: str
    threads: int = 1
    deadline: float | None = None
    keep_runs: bool = False
    track: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of the clients or the cell."""
        return self.work.key


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        key: The job's key.
        status: ``late``: out of time; ``stopped``: by Ctrl-C. Both are resumed by the next bench.
        error: Why it did not finish.
        record: Of a cell that finished.
        share: How much is done of what did not finish, 0 to 1.
    """

    key: str
    status: Literal["done", "late", "stopped", "failed"]
    error: str = ""
    record: Record | None = None
    share: float = 0.0


class Engine(Protocol):
    """Takes jobs and returns their results, in whatever order."""

    @property
    def name(self) -> str:
        """The name by which the engine is chosen."""
        ...

    @property
    def workers(self) -> int:
        """How many jobs it carries out at once."""
        ...

    def submit(self, job: Job) -> None:
        """Take a job."""
        ...

    def collect(self, seconds: float, meanwhile: Callable[[], None]) -> list[JobResult]:
        """Return the results since the last call.

        Args:
            seconds: How long to wait for a result.
            meanwhile: An engine that works in this process calls it about once a second.
        """
        ...

    def close(self) -> None:
        """End everything, also what is running."""
        ...
