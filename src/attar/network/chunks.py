"""Split a file into pieces and join them: Flower carries arrays of a few megabytes best."""

from collections.abc import Mapping

from attar.errors import BundleError
from attar.internal.text import human_bytes
from attar.uploads import MAX_FILE

CHUNK = 4 * 2**20  # Flower splits arrays above 5 MiB itself; below, one array is one message
# The type of an array's data: bytes as they are, which "numpy.ndarray" would have parsed.
STYLE = "attar.bytes"


def split(data: bytes, chunk: int = CHUNK) -> list[bytes]:
    """The pieces of ``data`` in order, each at most ``chunk`` bytes."""
    return [data[start : start + chunk] for start in range(0, len(data), chunk)]


def names(count: int) -> list[str]:
    """The names of ``count`` pieces; sorted as text they are in order."""
    return [f"{place:06d}" for place in range(count)]


def join(pieces: Mapping[str, bytes], limit: int = MAX_FILE) -> bytes:
    """The file from its pieces.

    Args:
        pieces: By name, as they came over the network.
        limit: The most bytes a file may have.

    Raises:
        BundleError: Pieces are missing, or the file is too large.
    """
    if sorted(pieces) != names(len(pieces)):
        raise BundleError("Pieces of the file are missing or have other names.")
    total = sum(map(len, pieces.values()))
    if total > limit:
        raise BundleError(f"{human_bytes(total)} is larger than the limit of {human_bytes(limit)}.")
    return b"".join(pieces[name] for name in sorted(pieces))
