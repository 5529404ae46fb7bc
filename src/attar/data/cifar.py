"""CIFAR-10 and CIFAR-100, from the binary or the python version of the official archives.

The python version is made of pickles, and a pickle can run any program: it is read by an
unpickler that knows numpy arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.archive import Archive, damage_error, open_archive, read_member
from attar.data.dataset import Dataset, Split
from attar.data.names import CIFAR10, CIFAR100

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class _Layout:
    train: tuple[str, ...]
    test: str
    label_bytes: int  # in the binary version; CIFAR-100 writes the coarse label before the fine
    label_key: str  # in the python version
    classes: tuple[str, ...]


_LAYOUTS = {
    "cifar10": _Layout(
        tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", 1, "labels", CIFAR10
    ),
    "cifar100": _Layout(("train",), "test", 2, "fine_labels", CIFAR100),
}


def read_cifar(path: Path, name: str, kind: str) -> Dataset:
    """Read an archive as published, or the folder unpacked from it.

    Args:
        path: of the archive or the folder.
        name: of the source, for messages.
        kind: ``"cifar10"`` or ``"cifar100"``.

    Raises:
        DataError: if a file is missing or damaged.
    """
    archive = open_archive(path)
    layout = _LAYOUTS[kind]
    binary = any(entry.endswith(".bin") for entry in archive.names())
    read = _read_binary if binary else _read_python
    train = _join([read(archive, file, layout) for file in layout.train])
    test = _join([read(archive, layout.test, layout)])
    return Dataset(name, layout.classes, train, test)


def _join(splits: Sequence[Split]) -> Split:
    images = np.concatenate([split.images for split in splits])
    return Split(images, np.concatenate([split.labels for split in splits]))


def _split(planes: np.ndarray[Any, np.dtype[np.uint8]], labels: Any) -> Split:
    # Red, green and blue planes -> (N, H, W, C).
    images = planes.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64))


def _read_binary(archive: Archive, file: str, layout: _Layout) -> Split:
    data = np.frombuffer(read_member(archive, f"{file}.bin"), np.uint8)
    record = layout.label_bytes + _PIXELS
    if not len(data) or len(data) % record:
        reason = f"{len(data)} bytes, not a multiple of {record}"
        raise damage_error(archive.path, f"{file}.bin: {reason}")
    rows = data.reshape(-1, record)
    return _split(rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1])


def _read_python(archive: Archive, file: str, layout: _Layout) -> Split:
    try:
        batch = _ArraysOnly(io.BytesIO(read_member(archive, file)), encoding="latin1").load()
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        ImportError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise damage_error(archive.path, f"{file}: {error}") from None
    pixels = _get_entry(batch, "data")
    labels = _get_entry(batch, layout.label_key)
    expected = f"expected 'data' (N, {_PIXELS}) of bytes and a list {layout.label_key!r}"
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise damage_error(archive.path, f"{file}: {expected}")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise damage_error(archive.path, f"{file}: {expected}")
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise damage_error(archive.path, f"{file}: {expected}")
    return _split(pixels, labels)


def _get_entry(batch: object, key: str) -> object:
    if not isinstance(batch, Mapping):
        return None
    return batch.get(key, batch.get(key.encode()))


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding}, expected latin1")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays of plain numbers; every other name in a pickle is refused."""

    _rebuild = np.empty(0).__reduce__()[0]
    _known = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _rebuild,
        ("numpy._core.multiarray", "_reconstruct"): _rebuild,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in the old protocols
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._known[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"refused: it asks for {module}.{name}, which is not data"
            ) from None
