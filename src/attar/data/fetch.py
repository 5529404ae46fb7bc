"""Where data files are stored, and how they are downloaded: whole, checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from attar.data.dataset import Progress
from attar.errors import DataError

TIMEOUT = 10.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file that a source reads, in the folder of the source.

    Attributes:
        name: "." is the folder itself.
        url: where to download it; None if no program can.
        checksum: "sha256:…" or "md5:…"; None if none is published, and the reader's checks must do.
        also: files or unpacked folders that may be there in its place.
        hint: what to put there, and where people find it.
    """

    name: str
    url: str | None = None
    checksum: str | None = None
    also: tuple[str, ...] = ()
    hint: str = ""

    def at(self, folder: Path) -> Path | None:
        """The file or what is there in its place; None if nothing is."""
        for name in (self.name, *self.also):
            path = folder if name == "." else folder / name
            if path.exists() and not (name == "." and _is_empty(folder)):
                return path
        return None


def _is_empty(folder: Path) -> bool:
    return not folder.is_dir() or all(entry.name.startswith(".") for entry in folder.iterdir())


def data_root() -> Path:
    """The folder of all data: ``$ATTAR_DATA``, or ``attar`` in the user's cache folder."""
    if root := os.environ.get("ATTAR_DATA"):
        return Path(root).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "attar"


def locate(
    source: str, folder: Path, files: Sequence[SourceFile], progress: Progress | None = None
) -> list[Path]:
    """Find the files of a source, and download those that are missing.

    Args:
        source: its name, for messages.
        folder: of the source.
        files: that it needs.
        progress: told about downloads.

    Returns:
        One path for each file.

    Raises:
        DataError: saying which files go where, if one can be neither found nor downloaded.
    """
    missing = [file for file in files if file.at(folder) is None]
    reason = "no program can fetch these" if any(file.url is None for file in missing) else None
    for file in missing if reason is None else ():
        try:
            fetch(file, folder, progress)
        except (OSError, HTTPException) as error:  # the other files would fail in the same way
            reason = f"{type(error).__name__}: {error}"
            break
    located = [file.at(folder) for file in files]
    if missing := [file for file, path in zip(files, located, strict=True) if path is None]:
        raise DataError(
            f"The files of {source!r} are not here, and could not be fetched ({reason}).",
            problems=[_describe_file(file, folder) for file in missing],
            fix=f"put them there by hand, or set ATTAR_DATA (now: {data_root()}) to the folder "
            "that holds them",
        )
    return [path for path in located if path is not None]


def _describe_file(file: SourceFile, folder: Path) -> str:
    text = str(folder if file.name == "." else folder / file.name)
    if file.hint:
        text += f": {file.hint}"
    if file.url:
        text += f" from {file.url}"
    if file.checksum:
        text += f" ({file.checksum})"
    if file.also:
        others = ["its files" if name == "." else name for name in file.also]
        text += f"; or in its place {', '.join(others)}"
    return text


def _open(file: SourceFile) -> Any:
    """Open a file's address: over https, also where http is published and the host has both.

    Plain http is the last resort, and only for a file with a published checksum.

    Raises:
        OSError: if the host does not answer.
        DataError: if only plain http would be left, and there is no checksum.
    """
    assert file.url is not None
    if not file.url.startswith("http://"):
        return urllib.request.urlopen(file.url, timeout=TIMEOUT)
    secure = "https://" + file.url.removeprefix("http://")
    try:
        return urllib.request.urlopen(secure, timeout=TIMEOUT)
    except OSError:
        if file.checksum is None:
            raise DataError(
                f"{secure} does not answer, and over plain http nothing would tell a forged file.",
                fix=f"fetch {file.name} by hand from a source that you trust",
            ) from None
    return urllib.request.urlopen(file.url, timeout=TIMEOUT)


def fetch(file: SourceFile, folder: Path, progress: Progress | None = None) -> Path:
    """Download a file: to a temporary file beside the target, which is renamed after the check.

    Args:
        file: with a URL.
        folder: where to.
        progress: told about the download.

    Returns:
        The path of the file.

    Raises:
        DataError: if it has another checksum.
        OSError: if the download fails or is incomplete.
    """
    assert file.url is not None
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    algorithm, _, expected = (file.checksum or "sha256:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as out, _open(file) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            done = 0
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress(f"fetching {file.name}", done, total)
        if total and done != total:
            raise OSError(f"{done} of {total} bytes of {file.url} arrived")
        if expected and digest.hexdigest() != expected:
            raise DataError(
                f"{file.url} is not the file it should be.",
                problems=[f"{algorithm} {digest.hexdigest()}, expected {expected}"],
                fix=f"try again, or put the right file at {target}",
            )
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target
