"""A folder, a zip or a tar file as names and bytes; nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attar.errors import DataError

LARGEST = 4 << 30  # bytes in an archive once unpacked; the largest official one has 0.5 GB


class Archive(Protocol):
    """Files by their path in the archive, with forward slashes.

    Attributes:
        path: of the archive.
    """

    path: Path

    def names(self) -> Sequence[str]:
        """The paths of all files, sorted."""

    def read(self, name: str) -> bytes:
        """The bytes of a file."""


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> Sequence[str]:
        # as in the archive it was unpacked from, names start with the folder's own name
        top = self.path.parent
        return sorted(
            file.relative_to(top).as_posix() for file in self.path.rglob("*") if file.is_file()
        )

    def read(self, name: str) -> bytes:
        return (self.path.parent / name).read_bytes()


class _Zip:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = zipfile.ZipFile(path)
        check_size(self._file)

    def names(self) -> Sequence[str]:
        return sorted(info.filename for info in self._file.infolist() if not info.is_dir())

    def read(self, name: str) -> bytes:
        return self._file.read(name)


class _Tar:
    """A compressed tar can only be read from front to back, so its members are kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members: dict[str, bytes] = {}
        held = 0
        with tarfile.open(path) as tar:
            for member in tar:
                held += member.size
                if held > LARGEST:
                    raise tarfile.TarError(f"it unpacks to more than {LARGEST >> 30} GiB")
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None:
                    self._members[member.name.removeprefix("./")] = stream.read()

    def names(self) -> Sequence[str]:
        return sorted(self._members)

    def read(self, name: str) -> bytes:
        return self._members[name]


def check_size(archive: zipfile.ZipFile) -> None:
    """Refuse a zip file whose members announce too much; none is read beyond what it announces.

    Raises:
        BadZipFile: if they unpack to more than ``LARGEST``.
    """
    if sum(member.file_size for member in archive.infolist()) > LARGEST:
        raise zipfile.BadZipFile(f"it unpacks to more than {LARGEST >> 30} GiB")


def decompress(data: bytes) -> bytes:
    """Unpack gzip, at most ``LARGEST`` bytes.

    Raises:
        OSError: if there are more, or it is damaged.
        EOFError: if it is cut off.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise OSError(f"it unpacks to more than {LARGEST >> 30} GiB")
    return unpacked


def open_archive(path: Path) -> Archive:
    """Open a folder, a zip or a tar file.

    Raises:
        DataError: if it is damaged.
    """
    try:
        if path.is_dir():
            return _Folder(path)
        return _Zip(path) if zipfile.is_zipfile(path) else _Tar(path)
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise damage_error(path, str(error)) from None


def read_member(archive: Archive, ending: str) -> bytes:
    """Read the file whose path ends in ``ending``.

    Raises:
        DataError: if there is none, or it is damaged.
    """
    for name in archive.names():
        if f"/{name}".endswith(f"/{ending}"):
            try:
                return archive.read(name)
            except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise damage_error(archive.path, f"{name}: {error}") from None
    raise damage_error(archive.path, f"{ending} is missing in it")


def damage_error(path: Path, *problems: str) -> DataError:
    """The error for a file that is not what its name says, with problems; the caller raises it."""
    fix = "delete it, so that it is fetched or copied again"
    if path.is_dir():
        fix = "put the official files there, complete"
    return DataError(f"{path} cannot be read:", problems=problems, fix=fix)
