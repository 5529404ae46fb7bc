"""Who takes part in the round, until when it waits, how many suffice."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from attar.errors import RunError, SettingsError
from attar.internal.files import write_atomic

Standing = Literal["waiting", "complete", "quorum", "deadline"]


@dataclass(frozen=True)
class Plan:
    """One waiting for uploads. Times are seconds since 1970, so that a server started again
    means the same moment.
    """

    partners: tuple[str, ...]
    quorum: int
    deadline: float
    late_seconds: float  # for which late uploads are taken, once the round is closed
    inbox: str

    def __post_init__(self) -> None:
        wrong = []
        if not self.partners or len({name.lower() for name in self.partners}) < len(self.partners):
            wrong.append(
                "partners: expected at least one, none twice (large and small letters are the same in some file systems)"
            )
        if not 1 <= self.quorum <= len(self.partners):
            wrong.append(
                f"quorum = {self.quorum}: expected 1 to {len(self.partners)}, the number of partners"
            )
        if self.late_seconds < 0:
            wrong.append(f"late_seconds = {self.late_seconds}: expected 0 or more")
        if wrong:
            raise SettingsError("This round cannot be held:", problems=wrong)

    def standing(self, arrived: Collection[str], now: float) -> Standing:
        """Wait on, or why not: everybody is there, enough are, or time is over."""
        there = len(set(arrived) & set(self.partners))
        if there == len(self.partners):
            return "complete"
        if there >= self.quorum:
            return "quorum"
        return "deadline" if now >= self.deadline else "waiting"

    def missing(self, arrived: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.partners if name not in set(arrived))

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(asdict(self), indent=2) + "\n")


def read_plan(path: str | Path) -> Plan:
    """The plan that ``Plan.write`` wrote."""
    try:
        given = json.loads(Path(path).read_text())
        return Plan(**{**given, "partners": tuple(given["partners"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is not the plan of a round ({error}).",
            fix="start `attar network server` again",
        ) from None
