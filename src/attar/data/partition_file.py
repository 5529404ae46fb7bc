"""A partition as a JSON file that knows which data its indices belong to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attar.data.partition import Partition
from attar.data.shares import Indices
from attar.errors import DataError
from attar.internal.files import write_atomic

FORMAT = "attar-partition/1"
_FIELDS = {"source": str, "rule": str, "seed": int, "images": int, "fingerprint": str}
_LISTS = ("held_out", "left_out")


@dataclass(frozen=True, eq=False)
class PartitionFile:
    """What a partition file says."""

    source: str
    partition: Partition
    fingerprint: str  # of the labels that were dealt

    def check(self, labels: NDArray[np.integer]) -> None:
        """Refuse data whose labels are not the ones that were dealt."""
        if fingerprint(labels) != self.fingerprint:
            raise DataError(
                f"This partition was made for other data: its source was {self.source!r}.",
                problems=[f"labels {fingerprint(labels)[:12]}…, expected {self.fingerprint[:12]}…"],
                fix="give the same source as then, or make the partition anew",
            )


def fingerprint(labels: NDArray[np.integer]) -> str:
    """SHA-256 of the labels as little-endian 64-bit numbers."""
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def write_partition(
    path: Path, partition: Partition, source: str, labels: NDArray[np.integer]
) -> None:
    """Write all or nothing."""
    head = {
        "format": FORMAT,
        "source": source,
        "rule": partition.rule,
        "seed": partition.seed,
        "images": len(labels),
        "fingerprint": fingerprint(labels),
        "held_out": partition.held_out.tolist(),
        "left_out": partition.left_out.tolist(),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = ",\n  ".join(
        json.dumps(part.tolist()) for part in partition.clients
    )  # one line for each client
    text = "{\n" + ",\n".join([*lines, f' "clients": [\n  {rows}\n ]']) + "\n}\n"
    try:
        write_atomic(path, text)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from None


def read_partition(path: Path) -> PartitionFile:
    """A partition whose indices are whole, in range and disjoint; all that is wrong in one
    DataError.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}", fix="make it by attar partition"
        ) from None
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _refused(path, f"not a file of the format {FORMAT}")
    problems = [
        f"{key}: missing, or not {kind.__name__}"
        for key, kind in _FIELDS.items()
        if type(content.get(key)) is not kind
    ]
    clients = content.get("clients")
    if not isinstance(clients, list) or not clients:
        problems.append("clients: missing, or not a list of lists")
    if problems or not isinstance(clients, list):
        raise _refused(path, *problems)
    named = {f"client {number}": part for number, part in enumerate(clients)}
    named |= {key: content.get(key, []) for key in _LISTS}
    arrays = {name: _indices(part) for name, part in named.items()}
    problems = [
        f"{name}: not a list of whole numbers" for name, array in arrays.items() if array is None
    ]
    whole = {name: array for name, array in arrays.items() if array is not None}
    problems += _collisions(whole, content["images"])
    if problems:
        raise _refused(path, *problems)
    held_out, left_out = (whole.pop(key) for key in _LISTS)
    partition = Partition(
        content["rule"], content["seed"], tuple(whole.values()), held_out, left_out
    )
    return PartitionFile(content["source"], partition, content["fingerprint"])


def _indices(part: Any) -> Indices | None:
    if not isinstance(part, list) or not all(
        type(item) is int and abs(item) < 1 << 62 for item in part
    ):
        return None
    return np.sort(np.array(part, np.int64))


def _collisions(lists: dict[str, Indices], images: int) -> list[str]:
    problems = [
        f"{name}: {int(outside.sum())} indices outside 0 to {images - 1}"
        for name, part in lists.items()
        if (outside := (part < 0) | (part >= images)).any()
    ]
    everything = np.concatenate([*lists.values(), np.empty(0, np.int64)])
    owners = np.repeat(np.arange(len(lists)), [len(part) for part in lists.values()])
    order = np.argsort(everything, kind="stable")
    twice = np.flatnonzero(np.diff(everything[order]) == 0)
    names = list(lists)
    problems += [
        f"image {everything[order[at]]}: in {names[owners[order[at]]]} and in {names[owners[order[at + 1]]]}"
        for at in twice[:10]
    ]
    if len(twice) > 10:
        problems.append(f"and {len(twice) - 10} more given twice")
    return problems


def _refused(path: Path, *problems: str) -> DataError:
    return DataError(
        f"{path} is not a sound partition file:",
        problems=problems,
        fix="make it anew by attar partition",
    )
