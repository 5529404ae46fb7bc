"""What methods that run in rounds have sent when each is as good as all of them become (FedKEM,
Figure 6).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attar.bench.records import FINISHED, Record
from attar.federation import highest_common_accuracy, rounds_to_accuracy


@dataclass(frozen=True)
class CostToAccuracy:
    """What a run has spent when it first reaches an accuracy.

    Attributes:
        accuracy: The highest that every run of the federation has in some round.
        rounds: The number of the round in which this run has it first.
        bytes: What was sent up and down until the end of that round.
    """

    accuracy: float
    rounds: int
    bytes: int


def bytes_to_accuracy(records: Iterable[Record]) -> dict[str, CostToAccuracy]:
    """Compare the runs of each federation at the highest accuracy that all of them reach.

    Args:
        records: A record may come several times, because one run fills the columns of several
            rounds.

    Returns:
        The cost of each run by the key of its record. Runs of a single round are left out, and
        runs that have no other run to compare with.
    """
    unique = {record["key"]: record for record in records}
    costs = {}
    for runs in _by_federation(unique.values()):
        common = highest_common_accuracy([record["rounds"] for record in runs])
        if common is None or len(runs) == 1:
            continue
        for record in runs:
            first = rounds_to_accuracy(record["rounds"], common)
            assert first is not None, "every run reaches what all of them reach"
            costs[record["key"]] = CostToAccuracy(common, **first)
    return costs


def _by_federation(records: Iterable[Record]) -> list[list[Record]]:
    """The finished runs of several rounds that differ in their method alone."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record["ending"] == FINISHED and record.get("rounds"):
            labels = record["labels"].items()
            place = (record["recipe"], *labels, record["seed"], record["precision"])
            groups.setdefault(place, []).append(record)
    return list(groups.values())
