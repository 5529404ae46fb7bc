"""What rounds cost on the line: bytes against accuracy, as a federation's record has them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def drawn(clients: int, fraction: float) -> int:
    """FedKEM, Algorithm 2: m = max(floor(N f), 1). (0.29 of 100 clients are 29, though 100 *
    0.29 < 29 in binary.)
    """
    return max(math.floor(clients * fraction + 1e-9), 1)


def communication_cost(clients: int, fraction: float, rounds: int, model_bytes: int) -> int:
    """FedKEM, Eq. (6): N f T times the round cost, which is the exchanged model sent down and up."""
    return drawn(clients, fraction) * rounds * 2 * model_bytes


def running_bytes(rounds: Sequence[Mapping[str, Any]]) -> list[int]:
    """Bytes up and down until the end of each round."""
    total, sums = 0, []
    for one in rounds:
        total += one["bytes_up"] + one["bytes_down"]
        sums.append(total)
    return sums


def to_target(rounds: Sequence[Mapping[str, Any]], target: float) -> dict[str, int] | None:
    """Rounds and bytes until the accuracy is first at least ``target`` (Fig. 6); None where it
    never is.
    """
    for number, (one, spent) in enumerate(zip(rounds, running_bytes(rounds), strict=True), start=1):
        if one["accuracy"] is not None and one["accuracy"] >= target:
            return {"rounds": number, "bytes": spent}
    return None


def highest_common(runs: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """The highest accuracy that every run reaches in some round; None where one was never measured."""
    best = [
        max((one["accuracy"] for one in rounds if one["accuracy"] is not None), default=None)
        for rounds in runs
    ]
    found = [accuracy for accuracy in best if accuracy is not None]
    return min(found) if found and len(found) == len(best) else None
