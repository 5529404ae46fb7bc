"""The folder of what arrived, which is the truth, and the journal beside it, which explains.

<client>.attar               arrived in time: what `attar fuse inbox/*.attar` takes
late/<client>.attar          arrived after the round was closed
again/<client>-<hash>.attar  another file of a client that is here already
journal.jsonl                who was asked, who answered, who failed and why, one line each

A file that somebody carried here by hand counts like one that came over the network.
"""

import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attar.errors import BundleError
from attar.internal.files import write_atomic
from attar.uploads import decode

Kept = Literal["arrived", "late", "again", "same"]


@dataclass(frozen=True)
class Receipt:
    """What became of one upload."""

    partner: str
    kept: Kept
    path: Path
    sha256: str
    size: int


class Inbox:
    """One inbox on disk; several threads, and a process that was started again, may write to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> dict[str, Path]:
        """From now on uploads are late; what had arrived in time."""
        with self._lock:
            self._closed = True
            return self.files()

    def files(self) -> dict[str, Path]:
        """Client -> file, of those that arrived in time."""
        return {path.stem: path for path in sorted(self.path.glob("*.attar"))}

    def late_files(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted((self.path / "late").glob("*.attar"))}

    def holds(self, partner: str) -> Path | None:
        """The partner's file, in time or late."""
        return self.files().get(partner) or self.late_files().get(partner)

    def keep(self, partner: str, data: bytes) -> Receipt:
        """Check an upload and write it, whole or not at all; what cannot be used is refused and
        not kept.

        ``partner`` is who the connection belongs to, not who the file claims to come from: the
        two must agree.
        """
        upload = decode(data, where=f"What {partner} sent")
        if upload.client != partner:
            raise BundleError(
                f"{partner} sent an upload that calls its client {upload.client!r}.",
                fix=f"train again with --client {partner}, or correct the name in the partner list",
            )
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            before = self.holds(partner)
            kept: Kept
            if before is not None and file_digest(before) == digest:
                return Receipt(partner, "same", before, digest, len(data))
            if before is not None:
                kept, path = "again", self.path / "again" / f"{partner}-{digest[:12]}.attar"
            elif self._closed:
                kept, path = "late", self.path / "late" / f"{partner}.attar"
            else:
                kept, path = "arrived", self.path / f"{partner}.attar"
            write_atomic(path, data)
            _flush_folder(path.parent)
            return Receipt(partner, kept, path, digest, len(data))


def file_digest(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_folder(path: Path) -> None:
    """A renamed file survives a power cut only when its folder is on disk, too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    time: float
    event: str
    partner: str | None
    details: dict[str, Any]


class Journal:
    """Lines are only ever added; one that a crash tore is skipped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def write(self, event: str, partner: str | None = None, /, **details: Any) -> None:
        line = json.dumps(
            {"time": round(time.time(), 3), "event": event, "partner": partner, **details}
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("a+b") as file:
            torn = file.tell() > 0 and not _ends_in_newline(file)
            file.write(b"\n" * torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Entry]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [entry for line in lines if (entry := _entry(line)) is not None]


def _ends_in_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def _entry(line: bytes) -> Entry | None:
    try:
        fields = json.loads(line)
        return Entry(fields.pop("time"), fields.pop("event"), fields.pop("partner"), fields)
    except (ValueError, KeyError, AttributeError):
        return None
