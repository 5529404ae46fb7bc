"""A file in pieces and back: what Flower carries well is many arrays of a few megabytes."""

from collections.abc import Mapping

from attar.errors import BundleError
from attar.internal.text import human_bytes
from attar.uploads import MAX_FILE

CHUNK = (
    4 * 2**20
)  # Flower cuts arrays above 5 MiB itself; below, one array is one object on its way
# how an array's data is to be read: as it is, without the parser that "numpy.ndarray" would call
# for
STYLE = "attar.bytes"


def split(data: bytes, chunk: int = CHUNK) -> list[bytes]:
    """``data`` in its order, each piece at most ``chunk`` bytes."""
    return [data[start : start + chunk] for start in range(0, len(data), chunk)]


def names(count: int) -> list[str]:
    """The names under which pieces travel: their order as text is their order."""
    return [f"{place:06d}" for place in range(count)]


def join(pieces: Mapping[str, bytes], limit: int = MAX_FILE) -> bytes:
    """The file again, or a BundleError: pieces come from outside."""
    if sorted(pieces) != names(len(pieces)):
        raise BundleError("Pieces of the file are missing or have other names.")
    total = sum(map(len, pieces.values()))
    if total > limit:
        raise BundleError(f"{human_bytes(total)} is larger than the limit of {human_bytes(limit)}.")
    return b"".join(pieces[name] for name in sorted(pieces))
