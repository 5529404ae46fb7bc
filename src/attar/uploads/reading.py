"""The bytes of an upload file, or why it cannot be read."""

import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from attar.internal.files import Stamp, stamp_of
from attar.uploads import container
from attar.uploads.container import (
    MAY_RUN_CODE,
    START,
    Content,
    InvalidFile,
    check_start,
    header_end,
    read_header,
)

CHANGED = "the file changed while it was read"
FIX_MISSING = "check the path: there is no such file"
FIX_LOCKED = "make it readable for you, for example with chmod u+r, or by its owner"
FIX_FOLDER = "name the files"
FIX_MODEL = "leave it out: a model folder is the result of a fusion; uploads end in .attar"

_PICKLES = {".pt2", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"}


@dataclass
class UnreadFile(InvalidFile):
    """A file that could not be read at all, which the user can repair without its sender."""

    fix: str


def read_file(path: Path) -> tuple[Content, Stamp]:
    """The bytes of a file, which tensors can share, and its stamp while they were read.

    Nothing but the header is read before that was checked.

    Raises:
        InvalidFile: if it is too large, no plain file, cannot be read, has no header of an
            upload, or changed while it was read.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InvalidFile(["this is not a plain file"])
        if path.is_file() and path.suffix.lower() in _PICKLES:
            raise InvalidFile([MAY_RUN_CODE])
        if (size := path.stat().st_size) > container.MAX_FILE:
            raise InvalidFile([container.too_large(size)])
        with path.open("rb") as file:
            return _read_content(file)
    except IsADirectoryError:
        if (path / "config.json").is_file():
            raise UnreadFile(["this is a model folder, not an upload"], FIX_MODEL) from None
        raise UnreadFile(["this is a folder, not a file"], FIX_FOLDER) from None
    except FileNotFoundError as error:
        raise UnreadFile([error.strerror or str(error)], FIX_MISSING) from None
    except PermissionError as error:
        raise UnreadFile([error.strerror or str(error)], FIX_LOCKED) from None
    except OSError as error:
        raise InvalidFile([error.strerror or str(error)]) from None


def _read_content(file: BufferedReader) -> tuple[Content, Stamp]:
    """All from one open file, so that no other can take its place on the way."""
    before = os.fstat(file.fileno())
    if not stat.S_ISREG(before.st_mode):  # it took the place of the file that was looked at
        raise InvalidFile(["this is not a plain file"])
    size = before.st_size
    start = file.read(START)
    check_start(start, size)
    header = start + file.read(max(0, header_end(start) - START))
    read_header(header, size)
    content = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
    content[: len(header)] = header
    if file.readinto(content[len(header) :]) != size - len(header) or file.read(1):
        raise InvalidFile([CHANGED])
    if (stamp := stamp_of(before)) != stamp_of(os.fstat(file.fileno())):
        raise InvalidFile([CHANGED])
    return content, stamp
