"""MNIST's idx files: MNIST, Fashion-MNIST and EMNIST."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attar.data.archive import Archive, damaged, member, open_archive
from attar.data.dataset import Dataset, Split
from attar.data.fetch import Needed
from attar.data.names import EMNIST


def idx_files(base: str, md5s: Sequence[str]) -> tuple[Needed, ...]:
    """The four files, gzipped as published or unpacked, with their MD5 sums."""
    names = [
        f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
    ]  # fmt: skip
    return tuple(
        Needed(f"{name}.gz", f"{base}{name}.gz", f"md5:{md5}", also=(name,))
        for name, md5 in zip(names, md5s, strict=True)
    )


def read_mnist(paths: Sequence[Path], name: str, classes: tuple[str, ...]) -> Dataset:
    """Train images, train labels, test images, test labels."""
    train_images, train_labels, test_images, test_labels = (
        _array(path, path.read_bytes()) for path in paths
    )
    return Dataset(
        name, classes, _split(train_images, train_labels), _split(test_images, test_labels)
    )


def read_emnist(path: Path, name: str, split: str) -> Dataset:
    """NIST's ``gzip.zip`` or the folder unpacked from it. Its images lie on their side: rows and
    columns are swapped.
    """
    archive = open_archive(path)
    first = 1 if split == "letters" else 0  # letters are numbered from 1
    train, test = (
        _split(
            _emnist(archive, f"emnist-{split}-{part}-images-idx3-ubyte.gz").swapaxes(1, 2),
            _emnist(archive, f"emnist-{split}-{part}-labels-idx1-ubyte.gz"),
            first,
        )
        for part in ("train", "test")
    )
    return Dataset(name, EMNIST[split], train, test)


def _emnist(archive: Archive, name: str) -> NDArray[np.uint8]:
    return _array(archive.path / name, member(archive, name))


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8], first: int = 0) -> Split:
    return Split(np.ascontiguousarray(images)[..., None], labels.astype(np.int64) - first)


def _array(path: Path, data: bytes) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type (8: bytes), the number of axes, each length as
    big-endian int32, the values.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, str(error)) from None
    axes = 3 if "idx3" in path.name else 1
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < start:
        raise damaged(path, f"not an idx file of bytes with {axes} axes")
    shape = tuple(int(length) for length in np.frombuffer(data, ">u4", axes, offset=4))
    if len(data) - start != np.prod(shape, dtype=object):
        raise damaged(
            path,
            f"shape {shape} needs {np.prod(shape, dtype=object)} bytes, there are {len(data) - start}",
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
