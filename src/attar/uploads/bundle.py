"""Upload <-> one ``.attar`` file, checked on the way in.

The file is a plain safetensors file. Its only metadata entry, ``attar``, is the JSON manifest;
the tensors of part ``p`` are called ``p/<name>``. The manifest's ``sha256`` is taken over the
whole file with that field blanked by zeros, so no byte of header, manifest or weights can change
unnoticed. (It proves integrity, not who wrote it.)

Nothing of a file is used before it is checked, and nothing is built from a file that has a
single problem: size limits -> container -> hash -> manifest -> shapes against the architecture
(on the meta device) -> values.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from attar.core import Broadcast, ModelSpec, Part, Preprocess, Upload
from attar.errors import BundleError
from attar.internal.files import write_atomic
from attar.internal.text import human_bytes
from attar.uploads import container
from attar.uploads.checks import (
    cap,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)
from attar.uploads.claims import claim_from_json, claim_problems, claim_to_json
from attar.uploads.container import (
    BLANK,
    Content,
    InvalidFile,
    TensorTable,
    header_end,
    open_checked,
    read_digest,
    seal,
    view_tensors,
)
from attar.uploads.lazy import leave_in_file
from attar.uploads.manifest import (
    SCHEMA,
    SCHEMA_WITH_CLAIM,
    client_looks,
    count_problems,
    manifest_problems,
    part_from_json,
    part_to_json,
)
from attar.uploads.mixtures import MIXTURES, mixtures_problems
from attar.uploads.reading import FIX_FOLDER, UnreadFile, read_file
from attar.uploads.statistics import possible_statistics
from attar.uploads.sums import sums_problems
from attar.version import __version__

FIX_SENDER = (
    "ask the sender for the file again, written by `attar train`, `attar pack` or "
    "`attar.write_bundle`"
)
FIX_NAMES = "have one of them train or pack again with --client NAME, or leave one of the files out"

# Parts that a fusion adds up one client at a time: a thousand of them need no memory.
READ_ONCE = frozenset({"sums", MIXTURES})
MANY = 16  # files
SMALL = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Received:
    """An upload and the file that it arrived in.

    Attributes:
        path: the file.
        upload: its content.
        bytes: the size of the file.
        sha256: the hash over the whole file, in hex.
    """

    path: Path
    upload: Upload
    bytes: int
    sha256: str


def encode(upload: Upload) -> bytes:
    """Write an upload as the bytes of its file; equal uploads give equal bytes.

    Args:
        upload: what a client sends. Its tensors may lie on any device and share memory.

    Returns:
        The file.

    Raises:
        BundleError: if ``decode`` would refuse the file, with every reason.
    """
    tensors = {
        # A copy, since two parts may share their weights and a safetensors file may not.
        f"{name}/{key}": tensor.detach().cpu().contiguous().clone()
        for name, part in upload.parts.items()
        for key, tensor in part.state.items()
    }
    manifest = describe(upload)
    _check_before_writing(upload, manifest)
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
    file = save(tensors, metadata={"attar": text})
    size = len(file)
    header = header_end(file) - 8
    if size > container.MAX_FILE or header > container.MAX_HEADER:
        sizes = f"{human_bytes(size)}, of which {human_bytes(header)} are its header"
        limit = human_bytes(container.MAX_FILE)
        names = human_bytes(container.MAX_HEADER)
        raise BundleError(
            f"The upload of {upload.client!r} is too large: {sizes}.",
            fix=f"stay below {limit}, and {names} of tensor and class names",
        )
    return seal(file)


def describe(upload: Upload) -> dict[str, Any]:
    """The manifest of an upload, with a blank in the place of its hash."""
    counts = upload.label_counts
    claim = {} if upload.privacy is None else {"privacy": claim_to_json(upload.privacy)}
    return {
        "schema": SCHEMA_WITH_CLAIM if claim else SCHEMA,
        "attar": __version__,
        "client": upload.client,
        "num_examples": upload.num_examples,
        "label_counts": None if counts is None else list(counts),
        "round": upload.round,
        "local_steps": upload.local_steps,
        "parts": {name: part_to_json(part) for name, part in sorted(upload.parts.items())},
        "sha256": BLANK.decode(),
        **claim,
    }


def encode_broadcast(broadcast: Broadcast) -> bytes:
    """Write what the server sends in a round as bytes, in the format of uploads.

    The format requires a client and a number of examples: these are ``"server"`` and 1.
    """
    return encode(Upload("server", broadcast.parts, 1, round=broadcast.round))


def decode(data: Content, where: str = "upload", *, most_copied: int | None = None) -> Upload:
    """Read and check an upload.

    Args:
        data: the whole file, from an untrusted sender.
        where: what the error calls the file.
        most_copied: refuse larger files whose tensors would have to be copied, which those that
            ``encode`` writes need not; None: copy whatever has to be.

    Returns:
        The upload, with its tensors on the CPU.

    Raises:
        BundleError: with everything that is wrong with the file.
    """
    try:
        return _decode(data, most_copied)
    except InvalidFile as error:
        problems = error.printable_reasons()
        raise BundleError(f"{where} cannot be used:", problems=problems, fix=FIX_SENDER) from None


def write_bundle(path: str | Path, upload: Upload) -> int:
    """Write one upload to one file, whole or not at all.

    Args:
        path: the file to write; missing folders are made.
        upload: what a client sends.

    Returns:
        The size of the file in bytes.

    Raises:
        BundleError: if the upload could not be read again.
    """
    data = encode(upload)
    write_atomic(Path(path), data)
    return len(data)


def read_bundle(path: str | Path) -> Upload:
    """Read and check one upload file.

    Raises:
        BundleError: with everything that is wrong with the file.
    """
    return read_bundles([path])[0]


def read_bundles(paths: Iterable[str | Path], *, resident: bool = True) -> list[Upload]:
    """Read and check upload files.

    Args:
        paths: the files, of different clients.
        resident: False to leave the weights in the files: each file is still read and checked
            whole, and a tensor is read again when it is used. Sums of features are always left
            there.

    Returns:
        The uploads in the order of ``paths``.

    Raises:
        BundleError: with all problems of all files.
    """
    return [received.upload for received in receive(paths, resident=resident)]


def receive(paths: Iterable[str | Path], *, resident: bool = True) -> list[Received]:
    """Read and check upload files, and keep path, size and hash of each.

    Args:
        paths: the files, of different clients.
        resident: as in ``read_bundles``.

    Returns:
        The uploads in the order of ``paths``.

    Raises:
        BundleError: with all problems of all files.
    """
    received: list[Received] = []
    problems: list[str] = []
    unread: list[tuple[Path, str]] = []
    for path, one in _receive_each([Path(path) for path in paths], resident=resident):
        if isinstance(one, Received):
            received.append(one)
            continue
        problems += [f"{path}: {reason}" for reason in one.printable_reasons()]
        if isinstance(one, UnreadFile):
            unread.append((path, one.fix))
    duplicates = _duplicate_problems(received)
    problems += duplicates
    if problems:
        fix = _choose_fix(len(problems), len(duplicates), unread)
        raise BundleError("These uploads cannot be used:", problems=problems, fix=fix)
    return received


def _receive_each(
    paths: Sequence[Path], *, resident: bool
) -> Iterator[tuple[Path, Received | InvalidFile]]:
    """Each file in order, read and checked, or why it is not used.

    Of many small files two are read at a time: while one is hashed, the other can be checked.
    """
    read = partial(_receive_one, resident=resident)
    if len(paths) < MANY or any(path.is_file() and path.stat().st_size > SMALL for path in paths):
        yield from zip(paths, map(read, paths), strict=True)
        return
    with ThreadPoolExecutor(2) as pool:
        yield from zip(paths, pool.map(read, paths), strict=True)


def _receive_one(path: Path, *, resident: bool) -> Received | InvalidFile:
    try:
        data, seen = read_file(path)
        upload = _decode(data)
        if not resident:
            upload = leave_in_file(path, upload, seen)
        elif READ_ONCE & upload.parts.keys():
            upload = leave_in_file(path, upload, seen, READ_ONCE)
    except InvalidFile as error:
        return error
    return Received(path, upload, len(data), read_digest(data))


def _choose_fix(problems: int, duplicates: int, unread: Sequence[tuple[Path, str]]) -> str:
    """The advice that repairs all problems, if there is one; else to ask the senders."""
    repairs = Counter(fix for _, fix in unread)  # each unread file has exactly one problem
    repairs[FIX_NAMES] = duplicates
    fix = next((fix for fix, count in repairs.items() if count == problems), FIX_SENDER)
    if fix == FIX_FOLDER:
        return f"{fix}: {' '.join(f'{folder}/*.attar' for folder, _ in unread)}"
    return fix


def _duplicate_problems(received: Sequence[Received]) -> list[str]:
    first: dict[str, Received] = {}
    problems = []
    for one in received:
        client = one.upload.client
        looks = client_looks(client)
        other = next((first[look] for look in sorted(looks) if look in first), None)
        first |= {look: one for look in looks if look not in first}
        if other is None:
            continue
        if (known := other.upload.client) == client:
            problems.append(f"{one.path}: client {client!r} has sent {other.path} already")
        else:
            alike = f"client {client!r} looks like {known!r}, who has sent {other.path}"
            problems.append(f"{one.path}: {alike}")
    return problems


def _decode(data: Content, most_copied: int | None = None) -> Upload:
    table, manifest = open_checked(data)
    problems = manifest_problems(manifest)
    if problems:
        raise InvalidFile(problems)
    descriptions: dict[str, tuple[ModelSpec, tuple[str, ...], Preprocess]] = {}
    for name, value in manifest["parts"].items():
        try:
            descriptions[name] = part_from_json(value)
        except ValueError as error:
            problems += [f"part {name}: {reason}" for reason in error.args]
    problems += count_problems(manifest, [classes for _, classes, _ in descriptions.values()])
    problems += claim_problems(manifest)
    shapes, unassigned = _split_table(table, manifest["parts"])
    problems += unassigned
    for name, (spec, classes, preprocess) in descriptions.items():
        reasons = role_problems(name, spec)
        reasons = reasons or shape_problems(spec, classes, preprocess, shapes[name])
        problems += [f"part {name}: {reason}" for reason in reasons]
    if problems:
        raise InvalidFile(problems)
    tensors = view_tensors(data)
    if tensors is None and most_copied is not None and len(data) > most_copied:
        raise InvalidFile(["its tensors do not lie one after another, each at its place in memory"])
    try:
        tensors = tensors or load(bytes(data))
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise InvalidFile([f"not a readable safetensors file ({error})"]) from None
    parts = {}
    for name, (spec, classes, preprocess) in descriptions.items():
        state = {key: tensors[f"{name}/{key}"] for key in shapes[name]}
        parts[name] = Part(spec, state, classes, preprocess)
        problems += [f"part {name}: {reason}" for reason in value_problems(state)]
    problems += statistics_problems(parts.get("classifier"), parts.get("statistics"))
    if not problems:
        problems += possible_statistics(parts.get("statistics"))
    counts = manifest["label_counts"]
    label_counts = None if counts is None else tuple(counts)
    problems += sums_problems(parts, manifest["num_examples"], label_counts)
    problems += mixtures_problems(parts)
    if problems:
        raise InvalidFile(problems)
    return Upload(
        client=manifest["client"],
        parts=parts,
        num_examples=manifest["num_examples"],
        label_counts=label_counts,
        round=manifest["round"],
        local_steps=manifest["local_steps"],
        privacy=claim_from_json(manifest),
    )


def _split_table(
    table: TensorTable, parts: Iterable[str]
) -> tuple[dict[str, TensorTable], list[str]]:
    """The table of each part, by the names of its own tensors; problems with all others."""
    shapes: dict[str, TensorTable] = {name: {} for name in parts}
    problems = []
    for full_name, entry in table.items():
        part, _, key = full_name.partition("/")
        if part in shapes:
            shapes[part][key] = entry
        else:
            problems.append(f"tensor {full_name[:80]} belongs to no part")
    return shapes, cap(problems)


def _check_before_writing(upload: Upload, manifest: dict[str, Any]) -> None:
    """Raise where ``decode`` would refuse the file, before anything is written."""
    problems = manifest_problems(manifest)
    if not problems:
        problems += count_problems(manifest, [part.classes for part in upload.parts.values()])
        problems += claim_problems(manifest)
    for name, part in upload.parts.items():
        try:
            part_from_json(manifest["parts"][name])
        except ValueError as error:
            problems += [f"part {name}: {reason}" for reason in error.args]
            continue
        shapes = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in part.state.items()}
        reasons = role_problems(name, part.spec)
        reasons = reasons or shape_problems(part.spec, part.classes, part.preprocess, shapes)
        reasons += value_problems(part.state)
        problems += [f"part {name}: {reason}" for reason in reasons]
    if not problems:
        statistics = upload.parts.get("statistics")
        problems = statistics_problems(upload.parts.get("classifier"), statistics)
        problems += possible_statistics(statistics)
        problems += sums_problems(upload.parts, upload.num_examples, upload.label_counts)
        problems += mixtures_problems(upload.parts)
    if problems:
        raise BundleError(f"The upload of {upload.client!r} cannot be written:", problems=problems)
