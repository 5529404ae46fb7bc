"""What methods that play rounds have sent when each is as good as all of them become (FedKEM,
Figure 6).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attar.bench.records import FINISHED, Record
from attar.federation import highest_common_accuracy, rounds_to_accuracy


@dataclass(frozen=True)
class Reached:
    """The highest accuracy that every run of a federation has in some round, and what it took
    one of them.
    """

    accuracy: float
    rounds: int
    bytes: int  # up and down, until the end of that round


def reached(records: Iterable[Record]) -> dict[str, Reached]:
    """By the key of a record. A run that has no other to be compared with is absent, as are runs
    of a single round.

    A record may come several times: one run fills the columns of several rounds.
    """
    federations: dict[tuple[Any, ...], list[Record]] = {}
    for record in {record["key"]: record for record in records}.values():
        if record["ending"] == FINISHED and record.get("rounds"):
            place = (
                record["recipe"],
                *record["labels"].items(),
                record["seed"],
                record["precision"],
            )
            federations.setdefault(place, []).append(record)
    found = {}
    for runs in federations.values():
        common = highest_common_accuracy([record["rounds"] for record in runs])
        if common is None or len(runs) == 1:
            continue
        for record in runs:
            first = rounds_to_accuracy(record["rounds"], common)
            assert first is not None, "every run reaches what all of them reach"
            found[record["key"]] = Reached(common, **first)
    return found
