"""An upload that is on its way: its bytes so far, and what was announced of the whole file.

    partial/<partner>.part   the bytes, in order
    partial/<partner>.json   the size of the whole file, and its sha256 where the sender said it
    partial/<partner>.sig    its signature, where there is one

After a crash the file may be longer or shorter than anybody knows: its size is the offset.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from attar.internal.files import write_atomic


@dataclass(frozen=True)
class Announced:
    """What a sender said about the whole file.

    Attributes:
        size: in bytes.
        sha256: in hex; None where it was not said.
    """

    size: int
    sha256: str | None = None

    def fits(self, size: int, sha256: str | None) -> bool:
        """Whether a later request may speak of the same file."""
        return size == self.size and (None in (sha256, self.sha256) or sha256 == self.sha256)


class Partial:
    """The partial upload of one partner; nothing needs to be there yet.

    Attributes:
        path: the file with the bytes.
    """

    def __init__(self, inbox: Path, partner: str) -> None:
        self.path = inbox / "partial" / f"{partner}.part"
        self._about = inbox / "partial" / f"{partner}.json"
        self._signature = inbox / "partial" / f"{partner}.sig"

    def offset(self) -> int:
        """How many bytes are here."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def announced(self) -> Announced | None:
        """What was said about the whole file; None before the first byte."""
        try:
            fields = json.loads(self._about.read_text())
            return Announced(int(fields["size"]), fields["sha256"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def is_complete(self) -> bool:
        """Whether all bytes are here."""
        announced = self.announced()
        return announced is not None and self.offset() == announced.size

    def announce(self, announced: Announced) -> None:
        """Begin anew, with what the sender says about the whole file."""
        self.remove()
        write_atomic(self._about, json.dumps(asdict(announced)) + "\n")

    def cut(self, size: int) -> None:
        """Drop the bytes after the first ``size``."""
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(handle, size)
        finally:
            os.close(handle)

    def append(self, data: bytes | bytearray) -> None:
        """Write the next bytes."""
        with self.path.open("ab", buffering=0) as file:
            file.write(data)

    def sign(self, signature: bytes) -> None:
        """Keep the signature of the whole file."""
        write_atomic(self._signature, signature)

    def signature(self) -> bytes | None:
        """The signature of the whole file; None where there is none."""
        return self._signature.read_bytes() if self._signature.exists() else None

    def remove(self) -> None:
        """Delete what is here."""
        self.path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)
        self._signature.unlink(missing_ok=True)
