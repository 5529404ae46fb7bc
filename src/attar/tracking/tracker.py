"""What a tracker is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Setting = str | int | float | bool | None
Outcome = Literal["finished", "deadline", "stopped", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """A run that begins.

    Attributes:
        name: of the run, which is a file name.
        verb: that began it: fuse, train, federate or bench.
        settings: what it was begun with, by flat names. No paths, no names of clients.
    """

    name: str
    verb: str
    settings: Mapping[str, Setting]


class Tracker(Protocol):
    """Gets what happens in one run, from the thread and the process of the run."""

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Take the metrics of a step.

        Args:
            group: a phase of the run; its steps count from 1.
            values: by name.
            step: of the group.
        """
        ...

    def finish(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        """Take how the run ended; nothing is logged after that.

        Args:
            outcome: how.
            result: numbers of the whole run, such as ``accuracy``.
        """
        ...


Factory = Callable[[str, TrackedRun], Tracker]
"""A place, as the user wrote it after ``KIND:``, and a run that begins -> its tracker."""
