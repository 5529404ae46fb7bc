"""Many records in one compressed file, to which records are appended and in which nothing changes.

A file is a sequence of xz streams. Each append adds one stream, which has a line of JSON for each
record; the bytes before it stay as they are. So git stores an append as the new bytes alone, and
``cat A B > C`` joins two files. ``xz -dc FILE`` prints the lines.

Why compressed: 1,417 records are 12.4 MB as lines, 2.2 MB as gzip and 1.5 MB as xz, and every clone
of a repository has them twice, in its history and in its working tree. Pictures are no part of a
file, because they do not compress; they stay where the run wrote them.
"""

import lzma
from collections.abc import Iterable
from pathlib import Path

from attar.errors import RunError
from attar.internal.files import write_atomic

SUFFIX = ".jsonl.xz"
DAMAGED = ".damaged"  # ending of the file that gets what was cut off
# lc and pb: the values that xz recommends for text
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]


def read_lines(path: Path) -> list[str]:
    """All lines of a file, the oldest first.

    Args:
        path: A file that ``append_lines`` wrote, or several of them joined.

    Raises:
        RunError: The file cannot be read to its end. The lines before the damage are not returned
            either: a bench that misses a record spends hours on a cell that is finished.
    """
    return [line for text in _texts(_content(path), path) for line in _lines(text)]


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines behind those of a file, which is made where there is none.

    The new file takes the place of the old one in one step: a process that is killed leaves one of
    the two, whole. Only one process at a time may append to a file.

    Raises:
        RunError: The file is damaged (see ``read_lines``).
    """
    before = _content(path) if path.exists() else b""
    _texts(before, path)
    text = "".join(f"{line}\n" for line in lines)
    write_atomic(path, before + lzma.compress(text.encode(), filters=FILTERS))


def cut_damage(path: Path) -> str | None:
    """Cut a file off behind its last whole stream; what is cut off is kept beside it.

    Returns:
        What was done, as a sentence; None where the file is whole.
    """
    data = _content(path)
    texts, whole = _streams(data)
    if whole == len(data):
        return None
    rest = path.with_name(f"{path.name}{DAMAGED}")
    write_atomic(rest, data[whole:])
    write_atomic(path, data[:whole])
    return (
        f"{path} was damaged: {_records(texts)} at its front could be read and stay in it, "
        f"the {len(data) - whole:,} bytes after them are now in {rest.name}."
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None


def _texts(data: bytes, path: Path) -> list[bytes]:
    """The texts of a file's streams, all of which must be whole."""
    texts, whole = _streams(data)
    if whole < len(data):
        raise RunError(
            f"{path} is damaged: the {_records(texts)} before byte {whole:,} can be read, "
            f"the {len(data) - whole:,} bytes after it cannot.",
            fix="take the file from a copy, such as git's; or cut the damage off with "
            "`attar report FOLDER --pack`, and the next bench runs again what is lost",
        )
    return texts


def _streams(data: bytes) -> tuple[list[bytes], int]:
    """The texts of the whole streams at the front of a file, and how many bytes they take."""
    texts: list[bytes] = []
    place = 0
    while place < len(data):
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        try:
            text = stream.decompress(data[place:])
        except lzma.LZMAError:
            break
        if not stream.eof:
            break
        texts.append(text)
        place = len(data) - len(stream.unused_data)
    return texts, place


def _lines(text: bytes) -> list[str]:
    return [line for line in text.decode().split("\n") if line]


def _records(texts: Iterable[bytes]) -> str:
    count = sum(len(_lines(text)) for text in texts)
    return f"{count:,} record{'' if count == 1 else 's'}"
