"""Checking an upload without holding it in memory."""

import mmap
from pathlib import Path

from attar.core import Upload
from attar.errors import BundleError
from attar.uploads import container
from attar.uploads.bundle import decode
from attar.uploads.container import too_large

MOST_COPIED = 32 * 2**20  # bytes of a file whose tensors are not aligned as attar writes them


def check_file(path: Path, where: str) -> Upload:
    """Read and check an upload whose bytes stay in its file.

    The file is mapped: a tensor that is checked is read piece by piece through the page cache,
    which the system takes back when memory is short. The file must not be cut off meanwhile, so
    this is for files that no other process writes to.

    Args:
        path: the file.
        where: what errors call it.

    Returns:
        The upload. Its tensors are views of the file and are not to be changed.

    Raises:
        BundleError: with everything that is wrong with the file.
    """
    size = path.stat().st_size
    if size > container.MAX_FILE:
        raise BundleError(f"{where} cannot be used:", problems=[too_large(size)])
    if not size:
        return decode(b"", where)
    with path.open("rb") as file:
        # Written pages would be copies of this process; none is written.
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return decode(memoryview(pages), where, most_copied=MOST_COPIED)
