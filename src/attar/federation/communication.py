"""What the rounds of a federation cost in communication: bytes against accuracy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def sampled_clients(clients: int, fraction: float) -> int:
    """How many clients take part in a round, FedKEM, Algorithm 2: m = max(floor(N f), 1).

    0.29 of 100 clients are 29, though 100 * 0.29 < 29 in binary.
    """
    return max(math.floor(clients * fraction + 1e-9), 1)


def communication_cost(clients: int, fraction: float, rounds: int, model_bytes: int) -> int:
    """FedKEM, Eq. (6): the clients of all rounds times the exchanged model, sent down and up."""
    return sampled_clients(clients, fraction) * rounds * 2 * model_bytes


def cumulative_bytes(rounds: Sequence[Mapping[str, Any]]) -> list[int]:
    """Bytes up and down until the end of each round, from the rounds of a record."""
    total = 0
    sums = []
    for record in rounds:
        total += record["bytes_up"] + record["bytes_down"]
        sums.append(total)
    return sums


def rounds_to_accuracy(rounds: Sequence[Mapping[str, Any]], target: float) -> dict[str, int] | None:
    """Rounds and bytes until the accuracy is first at least ``target`` (FedKEM, Fig. 6); None
    where it never is.
    """
    numbered = enumerate(zip(rounds, cumulative_bytes(rounds), strict=True), start=1)
    for number, (record, total) in numbered:
        if record["accuracy"] is not None and record["accuracy"] >= target:
            return {"rounds": number, "bytes": total}
    return None


def highest_common_accuracy(runs: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """The highest accuracy that every run reaches in some round; None where one was never
    measured.
    """
    best = [
        max(
            (record["accuracy"] for record in rounds if record["accuracy"] is not None),
            default=None,
        )
        for rounds in runs
    ]
    measured = [accuracy for accuracy in best if accuracy is not None]
    return min(measured) if measured and len(measured) == len(best) else None
