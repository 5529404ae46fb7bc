"""A file as arrays of bytes and back: what Flower carries well is many arrays of a few megabytes."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attar.bundle import MAX_FILE
from attar.errors import BundleError
from attar.files import human_bytes

CHUNK = 4 * 2**20  # Flower cuts arrays above 5 MiB itself; below, one array is one object on its way

Bytes = NDArray[np.uint8]


def split(data: bytes, chunk: int = CHUNK) -> list[Bytes]:
    """``data`` in its order, each piece at most ``chunk`` bytes; nothing is copied."""
    whole = np.frombuffer(data, dtype=np.uint8)
    return [whole[start : start + chunk] for start in range(0, len(whole), chunk)]


def names(count: int) -> list[str]:
    """The names under which pieces travel: their order as text is their order."""
    return [f"{place:06d}" for place in range(count)]


def join(pieces: Mapping[str, Bytes], limit: int = MAX_FILE) -> bytes:
    """The file again, or a BundleError: pieces come from outside."""
    if sorted(pieces) != names(len(pieces)):
        raise BundleError("Pieces of the file are missing or have other names.")
    arrays: Sequence[Bytes] = [pieces[name] for name in sorted(pieces)]
    wrong = [name for name, piece in pieces.items() if piece.dtype != np.uint8 or piece.ndim != 1]
    if wrong:
        raise BundleError("Pieces of the file are not plain bytes:", problems=wrong[:5])
    total = sum(piece.nbytes for piece in arrays)
    if total > limit:
        raise BundleError(f"{human_bytes(total)} is larger than the limit of {human_bytes(limit)}.")
    return b"".join(piece.tobytes() for piece in arrays)
