"""The folder of uploads, which decides what has arrived, and the journal of events beside it.

<client>.attar               arrived in time: what `attar fuse inbox/*.attar` takes
<client>.attar.sig           its signature, where one came with it
late/<client>.attar          arrived after the round was closed
again/<client>-<hash>.attar  another file of a client that is here already
journal.jsonl                who was asked, who answered, who failed and why, one line each

A file that was copied here by hand counts like one that came over the network.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attar.core import Upload
from attar.errors import BundleError
from attar.internal.files import write_atomic
from attar.uploads import decode, signature_path

Stored = Literal["arrived", "late", "again", "same"]


@dataclass(frozen=True)
class Receipt:
    """What became of one upload.

    Attributes:
        partner: Who sent it.
        stored: "arrived" in time, "late", "again" beside another file of the partner, or "same":
            it was there already.
        path: The file.
        sha256: Of its bytes.
        size: In bytes.
    """

    partner: str
    stored: Stored
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
        """Treat uploads as late from now on; returns the files that arrived in time."""
        with self._lock:
            self._closed = True
            return self.files()

    def files(self) -> dict[str, Path]:
        """The files that arrived in time, by client."""
        return {path.stem: path for path in sorted(self.path.glob("*.attar"))}

    def late_files(self) -> dict[str, Path]:
        """The files that arrived late, by client."""
        return {path.stem: path for path in sorted((self.path / "late").glob("*.attar"))}

    def find(self, partner: str) -> Path | None:
        """The partner's file, in time or late; None where there is none."""
        return self.files().get(partner) or self.late_files().get(partner)

    def store(self, partner: str, data: bytes) -> Receipt:
        """Check an upload and write it, whole or not at all.

        Args:
            partner: Who the connection belongs to; the client in the file must be the same.
            data: The bytes of the file.

        Raises:
            BundleError: The upload is invalid or of another client; nothing is written.
        """
        check_sender(decode(data, where=f"What {partner} sent"), partner)
        digest = hashlib.sha256(data).hexdigest()
        return self._place(partner, digest, len(data), lambda path: write_atomic(path, data))

    def take(
        self, partner: str, file: Path, digest: str, signature: bytes | None = None
    ) -> Receipt:
        """Move a checked file to its place.

        Args:
            partner: Whose upload it is.
            file: In the file system of this folder; it is gone afterwards.
            digest: The sha256 of its bytes.
            signature: What to write beside it; whoever uses the upload looks whether it is right.
        """

        def move(path: Path) -> None:
            if signature is not None:
                write_atomic(signature_path(path), signature)
            _move(file, path)

        receipt = self._place(partner, digest, file.stat().st_size, move)
        file.unlink(missing_ok=True)  # where it was here already
        return receipt

    def _place(
        self, partner: str, digest: str, size: int, write: Callable[[Path], None]
    ) -> Receipt:
        with self._lock:
            before = self.find(partner)
            stored: Stored
            if before is not None and hash_file(before) == digest:
                return Receipt(partner, "same", before, digest, size)
            if before is not None:
                stored = "again"
                path = self.path / "again" / f"{partner}-{digest[:12]}.attar"
            elif self._closed:
                stored = "late"
                path = self.path / "late" / f"{partner}.attar"
            else:
                stored = "arrived"
                path = self.path / f"{partner}.attar"
            write(path)
            _sync_folder(path.parent)
            return Receipt(partner, stored, path, digest, size)


def check_sender(upload: Upload, partner: str) -> None:
    """Refuse an upload that names another client than the partner who sends it.

    Raises:
        BundleError: The names differ.
    """
    if upload.client != partner:
        raise BundleError(
            f"{partner} sent an upload of a client {upload.client!r}.",
            fix=f"train again with --client {partner}, or correct the name in the partner list",
        )


def _move(file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    os.replace(file, path)


def hash_file(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    """Write a folder to disk: without it a renamed file is lost in a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Entry:
    """One line of the journal: when (seconds since 1970), what, of whom, and the details."""

    time: float
    event: str
    partner: str | None
    details: dict[str, Any]


class Journal:
    """An append-only file of events; a line that a crash cut off is skipped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def write(self, event: str, partner: str | None = None, /, **details: Any) -> Entry:
        """Append an event with the time, and write it to disk; returns the line."""
        entry = Entry(round(time.time(), 3), event, partner, details)
        line = json.dumps({"time": entry.time, "event": event, "partner": partner, **details})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("a+b") as file:
            cut_off = file.tell() > 0 and not _ends_in_newline(file)
            file.write(b"\n" * cut_off + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return entry

    def read(self) -> list[Entry]:
        """All events, the oldest first; none where there is no file."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [entry for line in lines if (entry := _parse_entry(line)) is not None]


def _ends_in_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def _parse_entry(line: bytes) -> Entry | None:
    try:
        fields = json.loads(line)
        return Entry(fields.pop("time"), fields.pop("event"), fields.pop("partner"), fields)
    except (ValueError, KeyError, AttributeError):
        return None
