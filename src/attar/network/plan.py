"""The plan of a round: who takes part, until when it waits, how many uploads suffice."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from attar.errors import RunError, SettingsError
from attar.internal.files import write_atomic

PlanState = Literal["waiting", "complete", "quorum", "deadline"]


@dataclass(frozen=True)
class Plan:
    """The terms of one round.

    Attributes:
        partners: Names of those who take part.
        quorum: So many uploads suffice.
        deadline: In seconds since 1970, so that a server that is started again means the same
            moment.
        late_seconds: How long late uploads are accepted once the round is closed.
        inbox: Folder of the uploads.
    """

    partners: tuple[str, ...]
    quorum: int
    deadline: float
    late_seconds: float
    inbox: str

    def __post_init__(self) -> None:
        problems = []
        if not self.partners or len({name.lower() for name in self.partners}) < len(self.partners):
            problems.append(
                "partners: expected at least one, none twice "
                "(large and small letters are the same in some file systems)"
            )
        if not 1 <= self.quorum <= len(self.partners):
            problems.append(
                f"quorum = {self.quorum}: expected 1 to {len(self.partners)}, the number of "
                "partners"
            )
        if self.late_seconds < 0:
            problems.append(f"late_seconds = {self.late_seconds}: expected 0 or more")
        if problems:
            raise SettingsError("This round cannot be held:", problems=problems)

    def state(self, arrived: Collection[str], now: float) -> PlanState:
        """Whether the round goes on, or why it closes.

        Args:
            arrived: Names of those whose uploads are there.
            now: The time in seconds since 1970.

        Returns:
            "waiting"; "complete" when all partners have arrived; "quorum" when enough have;
            "deadline" when the time is over.
        """
        number = len(set(arrived) & set(self.partners))
        if number == len(self.partners):
            return "complete"
        if number >= self.quorum:
            return "quorum"
        return "deadline" if now >= self.deadline else "waiting"

    def missing(self, arrived: Collection[str]) -> tuple[str, ...]:
        """The partners who have not arrived."""
        return tuple(name for name in self.partners if name not in set(arrived))

    def write(self, path: Path) -> None:
        """Write the plan as JSON."""
        write_atomic(path, json.dumps(asdict(self), indent=2) + "\n")


def read_plan(path: str | Path) -> Plan:
    """The plan that ``Plan.write`` wrote; a RunError where the file is no plan."""
    try:
        fields = json.loads(Path(path).read_text())
        return Plan(**{**fields, "partners": tuple(fields["partners"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is not the plan of a round ({error}).",
            fix="start `attar network server` again",
        ) from None
