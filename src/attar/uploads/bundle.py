"""Upload <-> one ``.attar`` file, checked on the way in.

The file is a plain safetensors file. Its only metadata entry, ``attar``, is the JSON manifest;
the tensors of part ``p`` are called ``p/<name>``. The manifest's ``sha256`` is taken over the
whole file with that field blanked by zeros, so no byte of header, manifest or weights can change
unnoticed. (It proves integrity, not who wrote it.)

Nothing of a file is trusted before it is checked, and nothing is built from a file that has a
single problem: size limits -> container -> hash -> manifest -> shapes against the architecture
(on the meta device) -> values.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from attar.core import Broadcast, Part, Upload
from attar.errors import BundleError
from attar.internal.files import human_bytes, stamp, write_atomic
from attar.uploads import container
from attar.uploads.container import (
    BLANK,
    MAY_RUN_CODE,
    Refused,
    digest_of,
    header_end,
    opened,
    sealed,
)
from attar.uploads.manifest import (
    brief,
    capped,
    is_int,
    part_from_json,
    part_to_json,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)
from attar.version import __version__

SCHEMA = 1
MAX_PARTS = 8

_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+ -]{0,63}")
_PART = re.compile(r"[a-z][a-z0-9-]{0,31}")
_KEYS = {
    "schema",
    "attar",
    "client",
    "num_examples",
    "label_counts",
    "round",
    "local_steps",
    "parts",
    "sha256",
}


def encode(upload: Upload) -> bytes:
    """The bytes of an upload's file; the same upload always gives the same bytes."""
    tensors = {
        f"{name}/{key}": tensor.detach()
        .cpu()
        .contiguous()
        .clone()  # two parts may share their weights, a file's may not
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
        "sha256": BLANK.decode(),
    }
    _check_before_writing(upload, manifest)
    file = save(tensors, metadata={"attar": _compact(manifest)})
    header = header_end(file) - 8
    if len(file) > container.MAX_FILE or header > container.MAX_HEADER:
        raise BundleError(
            f"The upload of {upload.client!r} is too large: {human_bytes(len(file))}, {human_bytes(header)} of them header.",
            fix=f"stay below {human_bytes(container.MAX_FILE)}, and {human_bytes(container.MAX_HEADER)} of tensor and class names",
        )
    return sealed(file)


def encode_broadcast(broadcast: Broadcast) -> bytes:
    """What the server sends, in the same file format: an upload of its own (of one example,
    since the format wants one).
    """
    return encode(Upload("server", broadcast.parts, 1, round=broadcast.round))


def decode(data: bytes, where: str = "upload") -> Upload:
    """The upload in ``data``, or a BundleError with everything that is wrong with it."""
    try:
        return _decode(data)
    except Refused as refused:
        raise BundleError(
            f"{where} cannot be used:", problems=refused.readable(), fix=_FIX
        ) from None


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

    Not ``resident``: every file is checked whole, but its weights stay there and are read again
    when they are needed.
    """
    return [received.upload for received in receive(paths, resident=resident)]


@dataclass(frozen=True)
class Received:
    """An upload as it arrived: in which file, how many bytes, and the sha256 that seals every
    one of them.
    """

    path: Path
    upload: Upload
    bytes: int
    sha256: str


def receive(paths: Iterable[str | Path], *, resident: bool = True) -> list[Received]:
    """``read_bundles``, with what the files themselves are known by."""
    found: list[Received] = []
    problems: list[str] = []
    unopened: list[tuple[Path, str]] = []
    for path in map(Path, paths):
        try:
            data = _read(path)
            upload = _decode(data)
            if not resident:
                upload = _left_in_file(path, upload)
        except Refused as refused:
            problems += [f"{path}: {reason}" for reason in refused.readable()]
            if isinstance(refused, _Unopened):
                unopened.append((path, refused.fix))
            continue
        found.append(Received(path, upload, len(data), digest_of(data)))
    twice = _same_names([(received.path, received.upload) for received in found])
    problems += twice
    if problems:
        fixes = Counter(
            fix for _, fix in unopened
        )  # how many problems each would repair; what cannot be opened is one each
        fixes[_FIX_TWICE] = len(twice)
        fix = next((fix for fix, count in fixes.items() if count == len(problems)), _FIX)
        if fix == _FIX_FOLDER:
            fix = f"{fix}: {' '.join(f'{folder}/*.attar' for folder, _ in unopened)}"
        raise BundleError("These uploads cannot be used:", problems=problems, fix=fix)
    return found


class WeightsInFile(Mapping[str, Tensor]):
    """The weights of one part of an upload file that was checked: read when asked for, and only
    if the file is still the same.
    """

    def __init__(self, path: Path, part: str, names: Sequence[str]) -> None:
        self._path, self._part, self._names = path, part, dict.fromkeys(names)
        self._seen = stamp(path)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        if stamp(self._path) != self._seen:
            raise BundleError(
                f"{self._path} was changed while it was in use.",
                fix="start again with the file as it is now",
            )
        with safe_open(self._path, framework="pt") as file:
            weights: Tensor = file.get_tensor(f"{self._part}/{name}")
            return weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _left_in_file(path: Path, upload: Upload) -> Upload:
    parts = {
        name: replace(part, state=WeightsInFile(path, name, list(part.state)))
        for name, part in upload.parts.items()
    }
    return replace(upload, parts=parts)


CLIENT_NAME = "1 to 64 letters a to z, digits, spaces or . _ @ + - and start with a letter or digit"


def is_client_name(name: object) -> bool:
    """1 to 64 plain characters: harmless in a terminal, in a path and in a table."""
    return isinstance(name, str) and _CLIENT.fullmatch(name) is not None


_FIX = "ask the sender for the file again, written by `attar train`, `attar pack` or `attar.write_bundle`"
_FIX_ABSENT = "check the path: there is no such file"
_FIX_LOCKED = "make it readable for you, for example with chmod u+r, or by its owner"
_FIX_FOLDER = "name the files"
_FIX_MODEL = (
    "leave it out: a model folder is what comes of uploads, and those are files that end in .attar"
)
_FIX_TWICE = (
    "have one of them train or pack again with --client NAME, or leave one of the files out"
)
_FOREIGN = {".pt2", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"}


@dataclass
class _Unopened(Refused):
    """A file that was not read at all: whoever named it can repair that, and its sender cannot."""

    fix: str


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise Refused(["this is not a plain file"])
        if path.is_file() and path.suffix.lower() in _FOREIGN:
            raise Refused([MAY_RUN_CODE])
        size = path.stat().st_size
        if size > container.MAX_FILE:
            raise Refused(
                [
                    f"{human_bytes(size)} is larger than the limit of {human_bytes(container.MAX_FILE)}"
                ]
            )
        return path.read_bytes()
    except IsADirectoryError:
        if (path / "config.json").is_file():
            raise _Unopened(["this is a model folder, not an upload"], _FIX_MODEL) from None
        raise _Unopened(["this is a folder, not a file"], _FIX_FOLDER) from None
    except FileNotFoundError as error:
        raise _Unopened([error.strerror or str(error)], _FIX_ABSENT) from None
    except PermissionError as error:
        raise _Unopened([error.strerror or str(error)], _FIX_LOCKED) from None
    except OSError as error:
        raise Refused([error.strerror or str(error)]) from None


def _decode(data: bytes) -> Upload:
    table, manifest = opened(data)
    problems = _manifest_problems(manifest)
    if problems:
        raise Refused(problems)
    described = {}
    for name, given in manifest["parts"].items():
        try:
            described[name] = part_from_json(given)
        except ValueError as error:
            problems += [f"part {name}: {reason}" for reason in error.args]
    problems += _count_problems(manifest, [classes for _, classes, _ in described.values()])
    shapes: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {
        name: {} for name in manifest["parts"]
    }
    homeless = []
    for full_name, entry in table.items():
        part, _, key = full_name.partition("/")
        if part not in shapes:
            homeless.append(f"tensor {full_name[:80]} belongs to no part")
        else:
            shapes[part][key] = entry
    problems += capped(homeless)
    for name, (spec, classes, preprocess) in described.items():
        reasons = role_problems(name, spec) or shape_problems(
            spec, classes, preprocess, shapes[name]
        )
        problems += [f"part {name}: {reason}" for reason in reasons]
    if problems:
        raise Refused(problems)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise Refused([f"not a readable safetensors file ({error})"]) from None
    parts = {
        name: Part(
            spec, {key: tensors[f"{name}/{key}"] for key in shapes[name]}, classes, preprocess
        )
        for name, (spec, classes, preprocess) in described.items()
    }
    problems += [
        f"part {name}: {reason}"
        for name, part in parts.items()
        for reason in value_problems(part.state)
    ]
    problems += statistics_problems(parts.get("classifier"), parts.get("statistics"))
    if problems:
        raise Refused(problems)
    counts = manifest["label_counts"]
    return Upload(
        client=manifest["client"],
        parts=parts,
        num_examples=manifest["num_examples"],
        label_counts=None if counts is None else tuple(counts),
        round=manifest["round"],
        local_steps=manifest["local_steps"],
    )


def _manifest_problems(manifest: dict[str, Any]) -> list[str]:
    schema = manifest.get("schema")
    if not is_int(schema, SCHEMA, SCHEMA):
        return [
            f"written in schema {brief(schema)}, this attar reads schema {SCHEMA}: update one of the two"
        ]
    if set(manifest) != _KEYS:
        return [f"the manifest must have exactly the entries {', '.join(sorted(_KEYS))}"]
    problems = [
        f"{key} must be a text" for key in ("attar", "sha256") if not isinstance(manifest[key], str)
    ]
    if not is_client_name(manifest["client"]):
        problems.append(f"client must be {CLIENT_NAME}")
    for key, low in (("num_examples", 1), ("round", 1), ("local_steps", 0)):
        if not is_int(manifest[key], low):
            problems.append(f"{key} must be a whole number from {low}")
    counts = manifest["label_counts"]
    if counts is not None and not (
        isinstance(counts, list) and all(is_int(count, 0) for count in counts)
    ):
        problems.append("label_counts must be null or a list of whole numbers")
    parts = manifest["parts"]
    if (
        not isinstance(parts, dict)
        or not 1 <= len(parts) <= MAX_PARTS
        or not all(_PART.fullmatch(name) for name in parts)
    ):
        problems.append(f"parts must be 1 to {MAX_PARTS} parts with short lower-case names")
    return problems


def _count_problems(manifest: dict[str, Any], class_lists: Sequence[Sequence[str]]) -> list[str]:
    counts = manifest["label_counts"]
    if counts is None:
        return []
    problems = []
    if any(len(classes) != len(counts) for classes in class_lists):
        problems.append(
            f"label_counts has {len(counts)} entries, which is not the number of classes"
        )
    if sum(counts) != manifest["num_examples"]:
        problems.append(
            f"label_counts add up to {sum(counts)}, num_examples is {manifest['num_examples']}"
        )
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
        reasons = role_problems(name, part.spec) or shape_problems(
            part.spec, part.classes, part.preprocess, shapes
        )
        reasons += value_problems(part.state)
        problems += [f"part {name}: {reason}" for reason in reasons]
    problems = problems or statistics_problems(
        upload.parts.get("classifier"), upload.parts.get("statistics")
    )
    if problems:
        raise BundleError(f"The upload of {upload.client!r} cannot be written:", problems=problems)


def _same_names(uploads: Sequence[tuple[Path, Upload]]) -> list[str]:
    first: dict[str, Path] = {}
    problems = []
    for path, upload in uploads:
        if upload.client in first:
            problems.append(
                f"{path}: client {upload.client!r} has sent {first[upload.client]} already"
            )
        first.setdefault(upload.client, path)
    return problems
