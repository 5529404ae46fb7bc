"""The idx format: MNIST, Fashion-MNIST and EMNIST."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attar.data.archive import Archive, damage_error, decompress, open_archive, read_member
from attar.data.dataset import Dataset, Split
from attar.data.fetch import SourceFile
from attar.data.names import EMNIST


def idx_files(base: str, md5s: Sequence[str]) -> tuple[SourceFile, ...]:
    """The four files of a set like MNIST, gzipped as published or unpacked.

    Args:
        base: the address of their folder.
        md5s: their checksums: training images and labels, test images and labels.
    """
    kinds = ("images-idx3", "labels-idx1")
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds]
    return tuple(
        SourceFile(f"{name}.gz", f"{base}{name}.gz", f"md5:{md5}", also=(name,))
        for name, md5 in zip(names, md5s, strict=True)
    )


def read_mnist(paths: Sequence[Path], name: str, classes: tuple[str, ...]) -> Dataset:
    """Read a set like MNIST.

    Args:
        paths: training images and labels, test images and labels.
        name: of the source.
        classes: names by label.

    Raises:
        DataError: if a file is damaged.
    """
    arrays = [_parse_idx(path, path.read_bytes()) for path in paths]
    train_images, train_labels, test_images, test_labels = arrays
    train = _split(train_images, train_labels)
    test = _split(test_images, test_labels)
    return Dataset(name, classes, train, test)


def read_emnist(path: Path, name: str, split: str) -> Dataset:
    """Read one split of EMNIST, whose images are published with rows and columns exchanged.

    Args:
        path: NIST's ``gzip.zip`` or the folder unpacked from it.
        name: of the source.
        split: for example ``"letters"``.

    Raises:
        DataError: if a file is missing or damaged.
    """
    archive = open_archive(path)
    first = 1 if split == "letters" else 0  # letters are numbered from 1
    parts = []
    for part in ("train", "test"):
        images = _read_emnist(archive, f"emnist-{split}-{part}-images-idx3-ubyte.gz")
        labels = _read_emnist(archive, f"emnist-{split}-{part}-labels-idx1-ubyte.gz")
        parts.append(_split(images.swapaxes(1, 2), labels, first))
    train, test = parts
    return Dataset(name, EMNIST[split], train, test)


def _read_emnist(archive: Archive, name: str) -> NDArray[np.uint8]:
    return _parse_idx(archive.path / name, read_member(archive, name))


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8], first: int = 0) -> Split:
    return Split(np.ascontiguousarray(images)[..., None], labels.astype(np.int64) - first)


def _parse_idx(path: Path, data: bytes) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type (8: bytes), the number of axes, lengths, values.

    Lengths are big-endian int32.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise damage_error(path, str(error)) from None
    axes = 3 if "idx3" in path.name else 1
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < start:
        raise damage_error(path, f"not an idx file of bytes with {axes} axes")
    shape = tuple(int(length) for length in np.frombuffer(data, ">u4", axes, offset=4))
    needed = np.prod(shape, dtype=object)
    if len(data) - start != needed:
        sizes = f"needs {needed} bytes, there are {len(data) - start}"
        raise damage_error(path, f"shape {shape} {sizes}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
