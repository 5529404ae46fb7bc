"""Files are written whole or not at all."""

import os
import tempfile
from pathlib import Path

Stamp = tuple[int, int, int, int]
"""Inode, size in bytes, and times of change of a file: of its content, and of anything about it.

The first time can be set back by whoever writes the file, the second only by whoever can set the
clock of the machine.
"""


def write_atomic(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Write a file so that a reader sees either the old one or the new one.

    The content is written beside ``path``, flushed to disk, and renamed.

    Args:
        path: the file; missing folders are made.
        content: bytes, or text for UTF-8.
        mode: permissions of the file, for example 0o600; None follows the umask. The temporary
            file is never readable by others.

    Raises:
        OSError: naming ``path``, not the temporary file.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _replace(path, data, mode)
    except OSError as error:
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


def remove_partial(folder: Path) -> None:
    """Delete the temporary files that a killed ``write_atomic`` left below ``folder``.

    Only for a folder that no other process writes to.
    """
    for partial in folder.rglob(".*.part"):
        partial.unlink()


def stamp(path: Path) -> Stamp | None:
    """What changes when a file is written anew; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp in what ``stat`` or ``fstat`` said."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
