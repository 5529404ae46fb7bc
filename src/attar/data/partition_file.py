"""A partition as a JSON file, with a hash of the labels that its indices belong to."""

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
    """The content of a partition file.

    Attributes:
        source: of the data.
        partition: the indices.
        fingerprint: ``hash_labels`` of the data.
    """

    source: str
    partition: Partition
    fingerprint: str

    def check(self, labels: NDArray[np.integer]) -> None:
        """Refuse data whose labels are not those of the partition.

        Raises:
            DataError: if the labels differ.
        """
        if hash_labels(labels) != self.fingerprint:
            raise DataError(
                f"This partition was made for other data: its source was {self.source!r}.",
                problems=[f"labels {hash_labels(labels)[:12]}…, expected {self.fingerprint[:12]}…"],
                fix="name the same source as then, or make the partition anew",
            )


def hash_labels(labels: NDArray[np.integer]) -> str:
    """The sha256 of labels as little-endian 64-bit numbers, in hex."""
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def write_partition(
    path: Path, partition: Partition, source: str, labels: NDArray[np.integer]
) -> None:
    """Write a partition to a file, whole or not at all.

    Args:
        path: the file.
        partition: the indices.
        source: of the data.
        labels: of all training images of the source.

    Raises:
        DataError: if the file cannot be written.
    """
    head = {
        "format": FORMAT,
        "source": source,
        "rule": partition.rule,
        "seed": partition.seed,
        "images": len(labels),
        "fingerprint": hash_labels(labels),
        "held_out": partition.held_out.tolist(),
        "left_out": partition.left_out.tolist(),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    # One line for each client.
    rows = ",\n  ".join(json.dumps(part.tolist()) for part in partition.clients)
    text = "{\n" + ",\n".join([*lines, f' "clients": [\n  {rows}\n ]']) + "\n}\n"
    try:
        write_atomic(path, text)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from None


def read_partition(path: Path) -> PartitionFile:
    """Read a partition file and check that its indices are in range and disjoint.

    Raises:
        DataError: with everything that is wrong with the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        fix = "make it by `attar partition`"
        raise DataError(f"{path} cannot be read: {reason}", fix=fix) from None
    except (ValueError, RecursionError) as error:
        raise _invalid_file(path, f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _invalid_file(path, f"not a file of the format {FORMAT}")
    problems = [
        f"{key}: missing, or not {kind.__name__}"
        for key, kind in _FIELDS.items()
        if type(content.get(key)) is not kind
    ]
    clients = content.get("clients")
    if not isinstance(clients, list) or not clients:
        problems.append("clients: missing, or not a list of lists")
    if problems or not isinstance(clients, list):
        raise _invalid_file(path, *problems)
    lists = {f"client {number}": part for number, part in enumerate(clients)}
    lists |= {key: content.get(key, []) for key in _LISTS}
    arrays: dict[str, Indices] = {}
    for name, part in lists.items():
        array = _read_indices(part)
        if array is None:
            problems.append(f"{name}: not a list of whole numbers")
        else:
            arrays[name] = array
    problems += _find_duplicates(arrays, content["images"])
    if problems:
        raise _invalid_file(path, *problems)
    held_out, left_out = (arrays.pop(key) for key in _LISTS)
    partition = Partition(
        rule=content["rule"],
        seed=content["seed"],
        clients=tuple(arrays.values()),
        held_out=held_out,
        left_out=left_out,
    )
    return PartitionFile(content["source"], partition, content["fingerprint"])


def _read_indices(part: Any) -> Indices | None:
    if not isinstance(part, list):
        return None
    if not all(type(item) is int and abs(item) < 1 << 62 for item in part):
        return None
    return np.sort(np.array(part, np.int64))


def _find_duplicates(lists: dict[str, Indices], images: int) -> list[str]:
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
    for at in twice[:10]:
        first = names[owners[order[at]]]
        second = names[owners[order[at + 1]]]
        problems.append(f"image {everything[order[at]]}: in {first} and in {second}")
    if len(twice) > 10:
        problems.append(f"and {len(twice) - 10} more that occur twice")
    return problems


def _invalid_file(path: Path, *problems: str) -> DataError:
    return DataError(
        f"{path} is not a valid partition file:",
        problems=problems,
        fix="make it anew by `attar partition`",
    )
