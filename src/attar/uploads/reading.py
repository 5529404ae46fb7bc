"""The bytes of an upload file, or why it cannot be read."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attar.uploads import container
from attar.uploads.container import MAY_RUN_CODE, Content, InvalidFile

FIX_MISSING = "check the path: there is no such file"
FIX_LOCKED = "make it readable for you, for example with chmod u+r, or by its owner"
FIX_FOLDER = "name the files"
FIX_MODEL = "leave it out: a model folder is the result of a fusion; uploads end in .attar"

_PICKLES = {".pt2", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"}


@dataclass
class UnreadFile(InvalidFile):
    """A file that could not be read at all, which the user can repair without its sender."""

    fix: str


def read_file(path: Path) -> Content:
    """The bytes of a file, which tensors can share.

    Raises:
        InvalidFile: if it is too large, no plain file, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InvalidFile(["this is not a plain file"])
        if path.is_file() and path.suffix.lower() in _PICKLES:
            raise InvalidFile([MAY_RUN_CODE])
        size = path.stat().st_size
        if size > container.MAX_FILE:
            raise InvalidFile([container.too_large(size)])
        return _read_content(path)
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


def _read_content(path: Path) -> memoryview:
    content = memoryview(np.empty(path.stat().st_size, np.uint8))  # type: ignore[arg-type]
    with path.open("rb") as file:
        if file.readinto(content) != len(content) or file.read(1):
            raise InvalidFile(["the file changed while it was read"])
    return content
