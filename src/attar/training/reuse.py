"""Uploads that exist already: reused where the same training made them, else refused.

An upload says nothing about settings, seed and images, since it is sent. So training writes them
to a hidden file beside it, which is never sent.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from attar.errors import RunError
from attar.internal.files import write_atomic
from attar.internal.tensors import hash_tensors
from attar.training.clients import ClientData, split
from attar.training.loop import (
    LocalStack,
    describe_training,
    expected_uploads,
    upload_differences,
)
from attar.training.statistics import StatisticsSettings
from attar.training.verdict import Verdict
from attar.uploads import read_bundle, read_digest

Metadata = Mapping[str, Any]


def check_reuse(
    stacks: Sequence[LocalStack],
    paths: Mapping[str, Path],
    precision: str = "fp32",
    *,
    withhold_counts: bool = False,
    statistics: StatisticsSettings | None = None,
) -> list[Path]:
    """Check that existing uploads are those that these trainings would make.

    Args:
        stacks: The trainings that the uploads would come from.
        paths: By client, the existing upload.
        precision: Of the training.
        withhold_counts: Whether it leaves out the number of images of each class.
        statistics: How it measures feature statistics; None where it sends none.

    Returns:
        The uploads without metadata, of which only the content could be compared.

    Raises:
        RunError: Some upload is of another training; the error says in what each differs.
    """
    problems = []
    unknown = []
    for stack in stacks:
        expected = expected_uploads(stack, withhold_counts=withhold_counts)
        for client, upload in zip(stack.clients, expected, strict=True):
            path = paths[client.name]
            found = read_bundle(path)
            if stack.training.patience:  # when each client ended, nobody knows beforehand
                found = replace(found, local_steps=upload.local_steps)
            differences = upload_differences(found, upload)
            metadata = read_metadata(path)
            if metadata is None:
                unknown.append(path)
            elif not differences:
                wanted = training_metadata(stack, client, precision, statistics)
                differences = metadata_differences(metadata, wanted)
            if differences:
                problems.append(f"{path}: {'; '.join(differences)}")
    if problems:
        raise RunError(
            "Existing uploads are not those that this command would make:",
            problems=problems,
            fix="delete them, or name another --out",
        )
    return unknown


def training_metadata(
    stack: LocalStack,
    client: ClientData,
    precision: str,
    statistics: StatisticsSettings | None = None,
) -> dict[str, Any]:
    """Return everything that decides a client's upload, as JSON would give it back.

    Args:
        stack: The training.
        client: One of its clients.
        precision: Of the training.
        statistics: How it measures feature statistics; None where it sends none.
    """
    metadata = {
        **describe_training(stack, precision),
        "statistics": None if statistics is None else asdict(statistics),
        "images": hash_tensors((client.pixels, client.labels)),
    }
    del metadata["clients"]
    decoded: dict[str, Any] = json.loads(json.dumps(metadata))
    return decoded


def metadata_path(upload: Path) -> Path:
    """Return the file beside an upload that its metadata is in."""
    return upload.with_name(f".{upload.stem}.trained")


def write_metadata(upload: Path, metadata: Metadata, verdict: Verdict | None = None) -> None:
    """Write how an upload was trained, and what it has learned, to a hidden file beside it."""
    content = {
        "of": read_digest(upload.read_bytes()),
        "how": metadata,
        "verdict": None if verdict is None else verdict.as_json(),
    }
    write_atomic(metadata_path(upload), json.dumps(content, indent=1) + "\n")


def read_metadata(upload: Path) -> Metadata | None:
    """Return how an upload was trained; None where no file says so of just this upload."""
    try:
        content = json.loads(metadata_path(upload).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if (
        not isinstance(content, dict)
        or content.get("of") != read_digest(upload.read_bytes())
        or not isinstance(content.get("how"), dict)
    ):
        return None
    metadata: Metadata = content["how"]
    return metadata


def trained_on_other_images(upload: Path, client: ClientData) -> bool:
    """Return whether the metadata of an upload says that it was trained on other images."""
    metadata = read_metadata(upload)
    if metadata is None:
        return False
    return metadata.get("images") != hash_tensors((client.pixels, client.labels))


def split_trained(metadata: Metadata | None, client: ClientData) -> tuple[Tensor, Tensor]:
    """Return which images a net was trained on, and which its training held out.

    Args:
        metadata: Of its upload; None where nothing is known: then all were trained on.
        client: The images that it had.
    """
    known = metadata or {}
    training = known.get("training")
    share = training.get("validation", 0.0) if isinstance(training, dict) else 0.0
    return split(client, share, known.get("seed", 0))


def metadata_differences(metadata: Metadata, expected: Metadata) -> list[str]:
    """Return in what two trainings differ."""
    have = _flatten(metadata)
    want = _flatten(expected)
    differences = []
    for name in dict.fromkeys([*want, *have]):
        if have.get(name) == want.get(name):
            continue
        if name == "images":
            differences.append("trained on other images")
        else:
            differences.append(f"{name}: {have.get(name)} in place of {want.get(name)}")
    return differences


def _flatten(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata with the hyper-parameters beside the other values."""
    others = {name: value for name, value in metadata.items() if name != "training"}
    return {**others, **metadata.get("training", {})}
