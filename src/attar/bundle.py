"""Upload <-> one ``.attar`` file, checked on the way in.

The file is a plain safetensors file. Its only metadata entry, ``attar``, is the JSON manifest; the tensors of part ``p`` are
called ``p/<name>``. The manifest's ``sha256`` is taken over the whole file with that field blanked by zeros, so no byte of
header, manifest or weights can change unnoticed. (It proves integrity, not who wrote it.)

Nothing of a file is trusted before it is checked, and nothing is built from a file that has a single problem:
size limits -> container -> hash -> manifest -> shapes against the architecture (on the meta device) -> values.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from attar.core import Part, Upload
from attar.errors import BundleError
from attar.files import human_bytes, write_atomic
from attar.manifest import (
    brief,
    capped,
    is_int,
    part_from_json,
    part_to_json,
    role_problems,
    shape_problems,
    value_problems,
)
from attar.strict import strict_json
from attar.version import __version__

SCHEMA = 1
MAX_FILE = 4 * 2**30
MAX_HEADER = 16 * 2**20
MAX_TENSORS = 20_000
MAX_PARTS = 8
MAX_REASON = 500  # letters of one problem: a stranger chose some of them

_BLANK = b"0" * 64
_DIGEST = re.compile(rb'\\"sha256\\":\\"([0-9a-f]{64})\\"')
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+ -]{0,63}")
_PART = re.compile(r"[a-z][a-z0-9-]{0,31}")
_KEYS = {"schema", "attar", "client", "num_examples", "label_counts", "round", "local_steps", "parts", "sha256"}
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def encode(upload: Upload) -> bytes:
    """The bytes of an upload's file; the same upload always gives the same bytes."""
    tensors = {
        f"{name}/{key}": tensor.detach().cpu().contiguous().clone()  # two parts may share their weights, a file's may not
        for name, part in upload.parts.items()
        for key, tensor in part.state.items()
    }
    manifest = {
        "schema": SCHEMA,
        "attar": __version__,
        "client": upload.client,
        "num_examples": upload.num_examples,
        "label_counts": None if upload.label_counts is None else list(upload.label_counts),
        "round": upload.round,
        "local_steps": upload.local_steps,
        "parts": {name: part_to_json(part) for name, part in sorted(upload.parts.items())},
        "sha256": _BLANK.decode(),
    }
    _check_before_writing(upload, manifest)
    file = save(tensors, metadata={"attar": _compact(manifest)})
    header = _header_end(file) - 8
    if len(file) > MAX_FILE or header > MAX_HEADER:
        raise BundleError(
            f"The upload of {upload.client!r} is too large: {human_bytes(len(file))}, {human_bytes(header)} of them header.",
            fix=f"stay below {human_bytes(MAX_FILE)}, and {human_bytes(MAX_HEADER)} of tensor and class names",
        )
    return _sealed(file)


def decode(data: bytes, where: str = "upload") -> Upload:
    """The upload in ``data``, or a BundleError with everything that is wrong with it."""
    try:
        return _decode(data)
    except _Refused as refused:
        raise BundleError(f"{where} cannot be used:", problems=refused.readable(), fix=_FIX) from None


def write_bundle(path: str | Path, upload: Upload) -> int:
    """Write one upload to one file, whole or not at all; returns the bytes that will travel."""
    data = encode(upload)
    write_atomic(Path(path), data)
    return len(data)


def read_bundle(path: str | Path) -> Upload:
    """Read one upload file."""
    return read_bundles([path])[0]


def read_bundles(paths: Iterable[str | Path], *, resident: bool = True) -> list[Upload]:
    """Read upload files; all problems of all files in one BundleError.

    Not ``resident``: every file is checked whole, but its weights stay there and are read again when they are needed.
    """
    return [received.upload for received in receive(paths, resident=resident)]


@dataclass(frozen=True)
class Received:
    """An upload as it arrived: in which file, how many bytes, and the sha256 that seals every one of them."""

    path: Path
    upload: Upload
    bytes: int
    sha256: str


def receive(paths: Iterable[str | Path], *, resident: bool = True) -> list[Received]:
    """``read_bundles``, with what the files themselves are known by."""
    found: list[Received] = []
    problems = []
    for path in map(Path, paths):
        try:
            data = _read(path)
            upload = _decode(data)
            if not resident:
                upload = _left_in_file(path, upload)
        except _Refused as refused:
            problems += [f"{path}: {reason}" for reason in refused.readable()]
            continue
        found.append(Received(path, upload, len(data), digest_of(data)))
    problems += _same_names([(received.path, received.upload) for received in found])
    if problems:
        raise BundleError("These uploads cannot be used:", problems=problems, fix=_FIX)
    return found


class WeightsInFile(Mapping[str, Tensor]):
    """The weights of one part of an upload file that was checked: read when asked for, and only if the file is still the same."""

    def __init__(self, path: Path, part: str, names: Sequence[str]) -> None:
        self._path, self._part, self._names = path, part, dict.fromkeys(names)
        self._seen = _stamp(path)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        if _stamp(self._path) != self._seen:
            raise BundleError(f"{self._path} was changed while it was in use.", fix="start again with the file as it is now")
        with safe_open(self._path, framework="pt") as file:
            weights: Tensor = file.get_tensor(f"{self._part}/{name}")
            return weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _left_in_file(path: Path, upload: Upload) -> Upload:
    parts = {name: replace(part, state=WeightsInFile(path, name, list(part.state))) for name, part in upload.parts.items()}
    return replace(upload, parts=parts)


def is_client_name(name: object) -> bool:
    """1 to 64 plain characters: harmless in a terminal, in a path and in a table."""
    return isinstance(name, str) and _CLIENT.fullmatch(name) is not None


def digest_of(file: bytes) -> str:
    """The sha256 that stands in the bytes of an upload's file."""
    match = _DIGEST.search(file, 0, _header_end(file))
    assert match is not None, "encode() seals every file"
    return match[1].decode()


_FIX = "ask the sender for the file again, written by `attar train`, `attar pack` or `attar.write_bundle`"
_FOREIGN = {".pt2", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"}
_MAY_RUN_CODE = (
    "not an .attar file but a pickle or PyTorch archive, and opening those can run code of whoever wrote it: its owner packs the "
    "model with `attar pack --module package.module:factory --weights FILE --sample-shape 3,224,224 --classes a,b --out x.attar`"
)


@dataclass
class _Refused(Exception):
    reasons: Sequence[str]

    def readable(self) -> list[str]:
        """The reasons with a stranger's control characters made harmless: they are printed on a terminal."""
        short = [reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…" for reason in self.reasons]
        return ["".join(letter if letter.isprintable() else "?" for letter in reason) for reason in short]


def _sealed(file: bytes) -> bytes:
    """Put the hash of the blanked file into its manifest."""
    digest = hashlib.sha256(file).hexdigest().encode()
    places = [match.start(1) for match in _DIGEST.finditer(file[: _header_end(file)])]
    if len(places) != 1:
        raise BundleError("A class or client name looks like the file's own hash field.", fix="rename it")
    return file[: places[0]] + digest + file[places[0] + 64 :]


def _header_end(file: bytes) -> int:
    return 8 + int.from_bytes(file[:8], "little")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise _Refused(["this is not a plain file"])
        if path.is_file() and path.suffix.lower() in _FOREIGN:
            raise _Refused([_MAY_RUN_CODE])
        size = path.stat().st_size
        if size > MAX_FILE:
            raise _Refused([f"{human_bytes(size)} is larger than the limit of {human_bytes(MAX_FILE)}"])
        return path.read_bytes()
    except IsADirectoryError:
        raise _Refused(["this is a folder, not a file"]) from None
    except OSError as error:
        raise _Refused([error.strerror or str(error)]) from None


def _decode(data: bytes) -> Upload:
    table, manifest = _container(data)
    problems = _manifest_problems(manifest)
    if problems:
        raise _Refused(problems)
    described = {}
    for name, given in manifest["parts"].items():
        try:
            described[name] = part_from_json(given)
        except ValueError as error:
            problems += [f"part {name}: {reason}" for reason in error.args]
    problems += _count_problems(manifest, [classes for _, classes, _ in described.values()])
    shapes: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {name: {} for name in manifest["parts"]}
    homeless = []
    for full_name, entry in table.items():
        part, _, key = full_name.partition("/")
        if part not in shapes:
            homeless.append(f"tensor {full_name[:80]} belongs to no part")
        else:
            shapes[part][key] = entry
    problems += capped(homeless)
    for name, (spec, classes, preprocess) in described.items():
        reasons = role_problems(name, spec) or shape_problems(spec, classes, preprocess, shapes[name])
        problems += [f"part {name}: {reason}" for reason in reasons]
    if problems:
        raise _Refused(problems)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _Refused([f"not a readable safetensors file ({error})"]) from None
    parts = {
        name: Part(spec, {key: tensors[f"{name}/{key}"] for key in shapes[name]}, classes, preprocess)
        for name, (spec, classes, preprocess) in described.items()
    }
    problems += [f"part {name}: {reason}" for name, part in parts.items() for reason in value_problems(part.state)]
    if problems:
        raise _Refused(problems)
    counts = manifest["label_counts"]
    return Upload(
        client=manifest["client"],
        parts=parts,
        num_examples=manifest["num_examples"],
        label_counts=None if counts is None else tuple(counts),
        round=manifest["round"],
        local_steps=manifest["local_steps"],
    )


def _container(data: bytes) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], dict[str, Any]]:
    """The tensor table and the manifest of a file whose bytes are all there and unchanged."""
    if len(data) > MAX_FILE:
        raise _Refused([f"{human_bytes(len(data))} is larger than the limit of {human_bytes(MAX_FILE)}"])
    if len(data) < 8:
        raise _Refused(["the file is cut off: it has no header"])
    pickled = data[0] == 0x80 and 2 <= data[1] <= 5 and data[8:9] != b"{"  # our own header may be of such a length
    if data[:4] == b"PK\x03\x04" or pickled:  # a zip archive, a pickle
        raise _Refused([_MAY_RUN_CODE])
    end = _header_end(data)
    if end - 8 > MAX_HEADER:
        raise _Refused([f"not an .attar file, or its header is larger than {human_bytes(MAX_HEADER)}"])
    if end > len(data):
        raise _Refused(["the file is cut off inside its header"])
    try:
        header = strict_json(data[8:end])
    except ValueError as error:
        raise _Refused([f"the header is damaged, or this is not an .attar file ({error})"]) from None
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attar"), str):
        raise _Refused(["not an .attar file: it has no manifest"])
    table, length = _table(header)
    if length != len(data) - end:
        raise _Refused([f"the file is cut off or padded: {length} bytes of weights announced, {len(data) - end} there"])
    _check_hash(data, end)
    try:
        manifest = strict_json(metadata["attar"])
    except ValueError as error:
        raise _Refused([f"the manifest is damaged ({error})"]) from None
    if len(metadata) != 1 or not isinstance(manifest, dict):
        raise _Refused(["the manifest is not a JSON object, or not alone"])
    return table, manifest


def _table(header: dict[str, Any]) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], int]:
    """Name -> (dtype, shape) of every tensor, and the bytes they need together."""
    if len(header) > MAX_TENSORS:
        raise _Refused([f"{len(header)} tensors are more than the limit of {MAX_TENSORS}"])
    table, length = {}, 0
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise _Refused([f"tensor {name[:80]} is not described as safetensors demands"])
        shape, offsets = entry["shape"], entry["data_offsets"]
        if (
            not isinstance(shape, list)
            or len(shape) > 8
            or not all(is_int(side, 0, 2**40) for side in shape)
            or not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(is_int(offset, 0, MAX_FILE) for offset in offsets)
        ):
            raise _Refused([f"tensor {name[:80]} has an impossible shape or place"])
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in _DTYPES:
            raise _Refused([f"tensor {name[:80]} has the unsupported type {brief(entry['dtype'])}"])
        table[name] = (_DTYPES[entry["dtype"]], tuple(shape))
        length = max(length, offsets[1])
    return table, length


def _check_hash(data: bytes, end: int) -> None:
    places = list(_DIGEST.finditer(data[:end]))
    if len(places) != 1:
        raise _Refused(["the manifest has no sha256, or more than one"])
    start = places[0].start(1)
    hasher = hashlib.sha256(data[:start])
    hasher.update(_BLANK)
    hasher.update(memoryview(data)[start + 64 :])
    if hasher.hexdigest().encode() != places[0][1]:
        raise _Refused(["the file was changed or damaged on its way: its sha256 does not fit"])


def _manifest_problems(manifest: dict[str, Any]) -> list[str]:
    schema = manifest.get("schema")
    if not is_int(schema, SCHEMA, SCHEMA):
        return [f"written in schema {brief(schema)}, this attar reads schema {SCHEMA}: update one of the two"]
    if set(manifest) != _KEYS:
        return [f"the manifest must have exactly the entries {', '.join(sorted(_KEYS))}"]
    problems = [f"{key} must be a text" for key in ("attar", "sha256") if not isinstance(manifest[key], str)]
    if not is_client_name(manifest["client"]):
        problems.append("client must be 1 to 64 letters, digits, spaces or . _ @ + - and start with a letter or digit")
    for key, low in (("num_examples", 1), ("round", 1), ("local_steps", 0)):
        if not is_int(manifest[key], low):
            problems.append(f"{key} must be a whole number from {low}")
    counts = manifest["label_counts"]
    if counts is not None and not (isinstance(counts, list) and all(is_int(count, 0) for count in counts)):
        problems.append("label_counts must be null or a list of whole numbers")
    parts = manifest["parts"]
    if not isinstance(parts, dict) or not 1 <= len(parts) <= MAX_PARTS or not all(_PART.fullmatch(name) for name in parts):
        problems.append(f"parts must be 1 to {MAX_PARTS} parts with short lower-case names")
    return problems


def _count_problems(manifest: dict[str, Any], class_lists: Sequence[Sequence[str]]) -> list[str]:
    counts = manifest["label_counts"]
    if counts is None:
        return []
    problems = []
    if any(len(classes) != len(counts) for classes in class_lists):
        problems.append(f"label_counts has {len(counts)} entries, which is not the number of classes")
    if sum(counts) != manifest["num_examples"]:
        problems.append(f"label_counts add up to {sum(counts)}, num_examples is {manifest['num_examples']}")
    return problems


def _check_before_writing(upload: Upload, manifest: dict[str, Any]) -> None:
    """A file that we would refuse to read is never written."""
    problems = _manifest_problems(manifest)
    if not problems:
        problems += _count_problems(manifest, [part.classes for part in upload.parts.values()])
    for name, part in upload.parts.items():
        try:
            part_from_json(manifest["parts"][name])
        except ValueError as error:
            problems += [f"part {name}: {reason}" for reason in error.args]
            continue
        shapes = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in part.state.items()}
        reasons = role_problems(name, part.spec) or shape_problems(part.spec, part.classes, part.preprocess, shapes)
        reasons += value_problems(part.state)
        problems += [f"part {name}: {reason}" for reason in reasons]
    if problems:
        raise BundleError(f"The upload of {upload.client!r} cannot be written:", problems=problems)


def _same_names(uploads: Sequence[tuple[Path, Upload]]) -> list[str]:
    first: dict[str, Path] = {}
    problems = []
    for path, upload in uploads:
        if upload.client in first:
            problems.append(f"{path}: client {upload.client!r} has sent {first[upload.client]} already")
        first.setdefault(upload.client, path)
    return problems
