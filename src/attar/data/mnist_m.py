"""MNIST-M from ``mnist_m.tar.gz`` (Ganin's unpacked version) or the folder unpacked from it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from attar.data.archive import damage_error, open_archive, read_member
from attar.data.dataset import Dataset, Progress, Split
from attar.data.images import ImageFile, read_images
from attar.data.names import DIGITS


def read_mnist_m(path: Path, name: str, size: int | None, progress: Progress | None) -> Dataset:
    """Read MNIST-M.

    For training and test part it has a folder of images, ``mnist_m_train/*.png``, and a list of
    labels, ``mnist_m_train_labels.txt`` with lines ``00000000.png 5``.

    Args:
        path: the archive or the folder unpacked from it.
        name: of the source.
        size: to which images are stretched, in pixels; None keeps their own.
        progress: told about decoding.

    Raises:
        DataError: if a file is missing or damaged.
    """
    archive = open_archive(path)
    entries = {entry.split("/", 1)[-1]: entry for entry in archive.names()}
    splits: list[Split] = []
    for part in ("mnist_m_train", "mnist_m_test"):
        text = read_member(archive, f"{part}_labels.txt").decode()
        rows = [line.split() for line in text.splitlines() if line.strip()]
        invalid = [row for row in rows if len(row) != 2 or row[1] not in DIGITS]
        missing = [row[0] for row in rows if f"{part}/{row[0]}" not in entries]
        problems = [f"{part}_labels.txt: {' '.join(row)!r}" for row in invalid]
        problems += [f"{part}/{file} is missing" for file in missing]
        if problems:
            raise damage_error(path, *problems[:10])
        files = [entries[f"{part}/{row[0]}"] for row in rows]
        pictures = [ImageFile(f"{path}: {file}", partial(archive.read, file)) for file in files]
        images = read_images(pictures, source=name, size=size, progress=progress)
        splits.append(Split(images, np.array([int(row[1]) for row in rows], np.int64)))
    train, test = splits
    return Dataset(name, DIGITS, train, test)
