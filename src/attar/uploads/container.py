"""The container of an upload: a safetensors file with one metadata entry and a hash over all.

These checks come before anything in a foreign file is interpreted: the size, the header, and the
hash, which shows that every byte arrived unchanged.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attar.errors import BundleError
from attar.internal.strict_json import strict_json
from attar.internal.text import human_bytes
from attar.uploads.manifest import brief, is_int

MAX_FILE = 4 * 2**30  # bytes
START = 9  # bytes: the length of the header, and its first character
MAX_HEADER = 16 * 2**20  # bytes
MAX_TENSORS = 20_000
MAX_REASON = 500  # characters of one problem, since the sender chose some of them

BLANK = b"0" * 64  # stands in the place of the hash while the hash is computed
DIGEST = re.compile(rb'\\"sha256\\":\\"([0-9a-f]{64})\\"')
MAY_RUN_CODE = (
    "not an .attar file but a pickle or PyTorch archive, and opening one can run code of "
    "whoever wrote it: its owner packs the model with `attar pack --module package.module:factory "
    "--weights FILE --sample-shape 3,224,224 --classes a,b --out x.attar`"
)

Shape = tuple[int, ...]
Content = bytes | memoryview
"""The bytes of a file."""

TensorTable = dict[str, tuple[torch.dtype, Shape]]
"""Data type and shape of each tensor of a file, by its full name ``part/tensor``."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass
class InvalidFile(Exception):
    """A file that is not used, with every reason; becomes a ``BundleError`` with its path.

    Attributes:
        reasons: one sentence each. They may hold text from the file.
    """

    reasons: Sequence[str]

    def printable_reasons(self) -> list[str]:
        """The reasons made safe for a terminal: cut to ``MAX_REASON``, no control characters."""
        printable = []
        for reason in self.reasons:
            short = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"
            printable.append("".join(c if c.isprintable() else "?" for c in short))
        return printable


def header_end(file: Content) -> int:
    """Where the header of a safetensors file ends and the weights begin, in bytes."""
    return 8 + int.from_bytes(file[:8], "little")


def seal(file: bytes) -> bytes:
    """Write the hash of a file into its manifest.

    Args:
        file: the whole file, with ``BLANK`` in the place of the hash.

    Returns:
        The same file with the sha256 of ``file`` in that place.

    Raises:
        BundleError: if a name in the manifest looks like the hash field.
    """
    digest = hashlib.sha256(file).hexdigest().encode()
    starts = [match.start(1) for match in DIGEST.finditer(file[: header_end(file)])]
    if len(starts) != 1:
        raise BundleError("A class or client name looks like the file's hash.", fix="rename it")
    start = starts[0]
    return file[:start] + digest + file[start + 64 :]


def read_digest(file: Content) -> str:
    """The sha256 that an upload's file states, in hex; ``file`` has been checked or encoded."""
    match = DIGEST.search(file, 0, header_end(file))
    assert match is not None, "encode() seals every file"
    return match[1].decode()


def open_checked(data: Content) -> tuple[TensorTable, dict[str, Any]]:
    """Check the container of an upload: size, header, tensor table and hash.

    Args:
        data: the whole file.

    Returns:
        The table of tensors and the manifest, whose entries are still unchecked.

    Raises:
        InvalidFile: if the file is too large, cut off, changed, or of another format.
    """
    check_start(data[:START], len(data))
    end = header_end(data)
    table, text, alone = read_header(data[:end], len(data))
    _check_hash(data, end)
    try:
        manifest = strict_json(text)
    except ValueError as error:
        raise InvalidFile([f"the manifest is damaged ({error})"]) from None
    if not alone or not isinstance(manifest, dict):
        raise InvalidFile(["the manifest is not a JSON object, or not alone"])
    return table, manifest


def check_start(start: Content, size: int) -> None:
    """Check the size of a file and its first ``START`` bytes, before any other is read.

    Args:
        start: the first bytes, fewer of a shorter file.
        size: of the file.

    Raises:
        InvalidFile: if it is too large, too short, a pickle or an archive, or has a header that is
            too long.
    """
    if size > MAX_FILE:
        raise InvalidFile([too_large(size)])
    if len(start) < 8:
        raise InvalidFile(["the file is cut off: it has no header"])
    # The length of a valid header may begin like a pickle, but then "{" follows it.
    is_pickle = start[0] == 0x80 and 2 <= start[1] <= 5 and start[8:9] != b"{"
    is_zip = start[:4] == b"PK\x03\x04"
    if is_zip or is_pickle:
        raise InvalidFile([MAY_RUN_CODE])
    end = header_end(start)
    if end - 8 > MAX_HEADER:
        limit = human_bytes(MAX_HEADER)
        raise InvalidFile([f"not an .attar file, or its header is larger than {limit}"])
    if end > size:
        raise InvalidFile(["the file is cut off inside its header"])


def read_header(head: Content, size: int) -> tuple[TensorTable, str, bool]:
    """Check the header of a file, before its weights are read.

    Args:
        head: the file up to the end of its header, after ``check_start``.
        size: of the whole file.

    Returns:
        The table of tensors, the text of the manifest, and whether it is the only metadata.

    Raises:
        InvalidFile: if it is damaged or of another format, or announces weights of another size.
    """
    try:
        header = strict_json(bytes(head[8:]))
    except ValueError as error:
        reason = f"the header is damaged, or this is not an .attar file ({error})"
        raise InvalidFile([reason]) from None
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attar"), str):
        raise InvalidFile(["not an .attar file: it has no manifest"])
    table, length = _read_table(header)
    present = size - len(head)
    if length != present:
        announced = f"{length} bytes of weights announced, {present} present"
        raise InvalidFile([f"the file is cut off or padded: {announced}"])
    return table, metadata["attar"], len(metadata) == 1


def view_tensors(data: Content) -> dict[str, Tensor] | None:
    """The tensors of a checked file, as views of its bytes.

    Args:
        data: the whole file, after ``open_checked``.

    Returns:
        None where the bytes cannot be written to, or the tensors do not lie one after another,
        aligned and without gaps: then safetensors reads them, or says what is wrong.
    """
    if not isinstance(data, memoryview) or data.readonly:
        return None
    end = header_end(data)
    header = strict_json(bytes(data[8:end]))
    assert isinstance(header, dict), "open_checked read it"
    header.pop("__metadata__")
    tensors: dict[str, Tensor] = {}
    place = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        count = math.prod(shape)
        unaligned = (end + first) % dtype.itemsize
        if first != place or last - first != count * dtype.itemsize or unaligned:
            return None
        place = last
        if not count:
            return None
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=end + first)
        tensors[name] = flat.reshape(shape)
    return tensors


def too_large(size: int) -> str:
    """The reason why a file of ``size`` bytes is not read."""
    return f"{human_bytes(size)} is larger than the limit of {human_bytes(MAX_FILE)}"


def _read_table(header: dict[str, Any]) -> tuple[TensorTable, int]:
    """The table of tensors, and how many bytes of weights it announces."""
    if len(header) > MAX_TENSORS:
        raise InvalidFile([f"{len(header)} tensors are more than the limit of {MAX_TENSORS}"])
    table: TensorTable = {}
    length = 0
    for name, entry in header.items():
        tensor = f"tensor {name[:80]}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise InvalidFile([f"{tensor} is not described as safetensors requires"])
        shape = entry["shape"]
        offsets = entry["data_offsets"]
        if not _is_shape(shape) or not _is_range(offsets):
            raise InvalidFile([f"{tensor} has an impossible shape or place"])
        dtype = entry["dtype"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise InvalidFile([f"{tensor} has the unsupported type {brief(dtype)}"])
        table[name] = (_DTYPES[dtype], tuple(shape))
        length = max(length, offsets[1])
    return table, length


def _is_shape(value: object) -> bool:
    if not isinstance(value, list) or len(value) > 8:
        return False
    return all(is_int(side, 0, 2**40) for side in value)


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(is_int(offset, 0, MAX_FILE) for offset in value)


def _check_hash(data: Content, end: int) -> None:
    places = list(DIGEST.finditer(data[:end]))
    if len(places) != 1:
        raise InvalidFile(["the manifest has no sha256, or more than one"])
    start = places[0].start(1)
    hasher = hashlib.sha256(data[:start])
    hasher.update(BLANK)
    hasher.update(memoryview(data)[start + 64 :])
    if hasher.hexdigest().encode() != places[0][1]:
        raise InvalidFile(["sha256 mismatch: the file was changed or damaged on its way"])
