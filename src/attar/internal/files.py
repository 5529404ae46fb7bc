"""Files are written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Write beside ``path``, flush to disk, then rename over it: a reader sees the old file or
    the new one.

    ``mode``: the file's permissions, which it has from its first byte on where they are 600; the
    umask's unless given.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _replace(path, data, mode)
    except (
        OSError
    ) as error:  # it names the half beside the target, which nobody has heard of, or no file at all
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask() if mode is None else mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_halves(folder: Path) -> None:
    """Delete what a process that was killed in the middle of ``write_atomic`` left below a
    folder that nobody else writes to.
    """
    for half in folder.rglob(".*.part"):
        half.unlink()


Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """What changes when a file is written anew; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
