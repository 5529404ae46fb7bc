"""Uploads that are there already: kept where the same training made them, refused where another
one did.

Of settings, seed and images an upload says nothing, and shall not. So training leaves a note
beside it, a hidden file, which is the client's own and never sent.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attar.errors import RunError
from attar.internal.files import write_atomic
from attar.internal.tensors import hash_tensors
from attar.training.clients import ClientData
from attar.training.loop import LocalStack, described, promise, unlike
from attar.training.statistics import StatisticsSettings
from attar.uploads import read_bundle, read_digest

Note = Mapping[str, Any]


def check_kept(
    stacks: Sequence[LocalStack],
    paths: Mapping[str, Path],
    precision: str = "fp32",
    *,
    withhold_counts: bool = False,
    statistics: StatisticsSettings | None = None,
) -> list[Path]:
    """Refuse uploads of another training that lie in the places of those that these would make;
    those without a note.
    """
    problems, unknown = [], []
    for stack in stacks:
        for client, wanted in zip(
            stack.clients, promise(stack, withhold_counts=withhold_counts), strict=True
        ):
            path = paths[client.name]
            differs, note = unlike(read_bundle(path), wanted), read_note(path)
            if note is None:
                unknown.append(path)
            elif not differs:
                differs = differences(note, note_for(stack, client, precision, statistics))
            if differs:
                problems.append(f"{path}: {'; '.join(differs)}")
    if problems:
        raise RunError(
            "Uploads that are there already are not those that this command would make:",
            problems=problems,
            fix="delete them, or name another --out",
        )
    return unknown


def note_for(
    stack: LocalStack,
    client: ClientData,
    precision: str,
    statistics: StatisticsSettings | None = None,
) -> dict[str, Any]:
    """What decides this client's upload, as JSON would give it back."""
    told = {
        **described(stack, precision),
        "statistics": None if statistics is None else asdict(statistics),
        "images": hash_tensors((client.pixels, client.labels)),
    }
    return {
        name: value for name, value in json.loads(json.dumps(told)).items() if name != "clients"
    }


def place_of(upload: Path) -> Path:
    return upload.with_name(f".{upload.stem}.trained")


def write_note(upload: Path, note: Note) -> None:
    write_atomic(
        place_of(upload),
        json.dumps({"of": read_digest(upload.read_bytes()), "how": note}, indent=1) + "\n",
    )


def read_note(upload: Path) -> Note | None:
    """The note beside an upload that was read and checked; None where there is none, or that of
    another file.
    """
    try:
        found = json.loads(place_of(upload).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if (
        not isinstance(found, dict)
        or found.get("of") != read_digest(upload.read_bytes())
        or not isinstance(found.get("how"), dict)
    ):
        return None
    how: Note = found["how"]
    return how


def of_other_images(upload: Path, client: ClientData) -> bool:
    """Whether the note beside an upload says that it was trained on other images than these."""
    note = read_note(upload)
    return note is not None and note.get("images") != hash_tensors((client.pixels, client.labels))


def differences(found: Note, wanted: Note) -> list[str]:
    """In what two trainings differ, in words."""
    have, want = _flat(found), _flat(wanted)
    told = []
    for name in dict.fromkeys([*want, *have]):
        if have.get(name) == want.get(name):
            continue
        told.append(
            "trained on other images"
            if name == "images"
            else f"{name}: {have.get(name)} in place of {want.get(name)}"
        )
    return told


def _flat(note: Note) -> dict[str, Any]:
    """The settings of training by their own names."""
    return {
        **{name: value for name, value in note.items() if name != "training"},
        **note.get("training", {}),
    }
