"""The container of an upload: a safetensors file with one metadata entry, sealed by a hash over
all of it.

What is known of a stranger's file before anything in it is understood: that its bytes are all
there, few enough, and unchanged.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attar.errors import BundleError
from attar.internal.files import human_bytes
from attar.internal.strict_json import strict_json
from attar.uploads.manifest import brief, is_int

MAX_FILE = 4 * 2**30
MAX_HEADER = 16 * 2**20
MAX_TENSORS = 20_000
MAX_REASON = 500  # letters of one problem: a stranger chose some of them

BLANK = b"0" * 64
DIGEST = re.compile(rb'\\"sha256\\":\\"([0-9a-f]{64})\\"')
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
MAY_RUN_CODE = (
    "not an .attar file but a pickle or PyTorch archive, and opening those can run code of whoever wrote it: its owner packs the "
    "model with `attar pack --module package.module:factory --weights FILE --sample-shape 3,224,224 --classes a,b --out x.attar`"
)


@dataclass
class Refused(Exception):
    reasons: Sequence[str]

    def readable(self) -> list[str]:
        """The reasons with a stranger's control characters made harmless: they are printed on a
        terminal.
        """
        short = [
            reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"
            for reason in self.reasons
        ]
        return [
            "".join(letter if letter.isprintable() else "?" for letter in reason)
            for reason in short
        ]


def sealed(file: bytes) -> bytes:
    """Put the hash of the blanked file into its manifest."""
    digest = hashlib.sha256(file).hexdigest().encode()
    places = [match.start(1) for match in DIGEST.finditer(file[: header_end(file)])]
    if len(places) != 1:
        raise BundleError(
            "A class or client name looks like the file's own hash field.", fix="rename it"
        )
    return file[: places[0]] + digest + file[places[0] + 64 :]


def header_end(file: bytes) -> int:
    return 8 + int.from_bytes(file[:8], "little")


def digest_of(file: bytes) -> str:
    """The sha256 that stands in the bytes of an upload's file."""
    match = DIGEST.search(file, 0, header_end(file))
    assert match is not None, "encode() seals every file"
    return match[1].decode()


def opened(data: bytes) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], dict[str, Any]]:
    """The tensor table and the manifest of a file whose bytes are all there and unchanged."""
    if len(data) > MAX_FILE:
        raise Refused(
            [f"{human_bytes(len(data))} is larger than the limit of {human_bytes(MAX_FILE)}"]
        )
    if len(data) < 8:
        raise Refused(["the file is cut off: it has no header"])
    pickled = (
        data[0] == 0x80 and 2 <= data[1] <= 5 and data[8:9] != b"{"
    )  # our own header may be of such a length
    if data[:4] == b"PK\x03\x04" or pickled:  # a zip archive, a pickle
        raise Refused([MAY_RUN_CODE])
    end = header_end(data)
    if end - 8 > MAX_HEADER:
        raise Refused(
            [f"not an .attar file, or its header is larger than {human_bytes(MAX_HEADER)}"]
        )
    if end > len(data):
        raise Refused(["the file is cut off inside its header"])
    try:
        header = strict_json(data[8:end])
    except ValueError as error:
        raise Refused([f"the header is damaged, or this is not an .attar file ({error})"]) from None
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attar"), str):
        raise Refused(["not an .attar file: it has no manifest"])
    table, length = _table(header)
    if length != len(data) - end:
        raise Refused(
            [
                f"the file is cut off or padded: {length} bytes of weights announced, {len(data) - end} there"
            ]
        )
    _check_hash(data, end)
    try:
        manifest = strict_json(metadata["attar"])
    except ValueError as error:
        raise Refused([f"the manifest is damaged ({error})"]) from None
    if len(metadata) != 1 or not isinstance(manifest, dict):
        raise Refused(["the manifest is not a JSON object, or not alone"])
    return table, manifest


def _table(header: dict[str, Any]) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], int]:
    """Name -> (dtype, shape) of every tensor, and the bytes they need together."""
    if len(header) > MAX_TENSORS:
        raise Refused([f"{len(header)} tensors are more than the limit of {MAX_TENSORS}"])
    table, length = {}, 0
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise Refused([f"tensor {name[:80]} is not described as safetensors demands"])
        shape, offsets = entry["shape"], entry["data_offsets"]
        if (
            not isinstance(shape, list)
            or len(shape) > 8
            or not all(is_int(side, 0, 2**40) for side in shape)
            or not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(is_int(offset, 0, MAX_FILE) for offset in offsets)
        ):
            raise Refused([f"tensor {name[:80]} has an impossible shape or place"])
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in _DTYPES:
            raise Refused([f"tensor {name[:80]} has the unsupported type {brief(entry['dtype'])}"])
        table[name] = (_DTYPES[entry["dtype"]], tuple(shape))
        length = max(length, offsets[1])
    return table, length


def _check_hash(data: bytes, end: int) -> None:
    places = list(DIGEST.finditer(data[:end]))
    if len(places) != 1:
        raise Refused(["the manifest has no sha256, or more than one"])
    start = places[0].start(1)
    hasher = hashlib.sha256(data[:start])
    hasher.update(BLANK)
    hasher.update(memoryview(data)[start + 64 :])
    if hasher.hexdigest().encode() != places[0][1]:
        raise Refused(["the file was changed or damaged on its way: its sha256 does not fit"])
