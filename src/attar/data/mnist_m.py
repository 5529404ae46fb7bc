"""MNIST-M from ``mnist_m.tar.gz`` (Ganin's unpacked version) or the folder unpacked from it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from attar.data.archive import damaged, member, open_archive
from attar.data.dataset import Dataset, Progress, Split
from attar.data.images import Picture, read_images
from attar.data.names import DIGITS


def read_mnist_m(path: Path, name: str, size: int | None, progress: Progress | None) -> Dataset:
    """``mnist_m_train/*.png`` with ``mnist_m_train_labels.txt`` (``00000000.png 5``), and the
    same for test.
    """
    archive = open_archive(path)
    entries = {entry.split("/", 1)[-1]: entry for entry in archive.names()}
    splits: list[Split] = []
    for part in ("mnist_m_train", "mnist_m_test"):
        rows = [
            line.split()
            for line in member(archive, f"{part}_labels.txt").decode().splitlines()
            if line.strip()
        ]
        bad = [
            f"{part}_labels.txt: {' '.join(row)!r}"
            for row in rows
            if len(row) != 2 or row[1] not in DIGITS
        ]
        bad += [f"{part}/{row[0]} is missing" for row in rows if f"{part}/{row[0]}" not in entries]
        if bad:
            raise damaged(path, *bad[:10])
        files = [entries[f"{part}/{row[0]}"] for row in rows]
        pictures = [Picture(f"{path}: {file}", partial(archive.read, file)) for file in files]
        images = read_images(pictures, source=name, size=size, progress=progress)
        splits.append(Split(images, np.array([int(row[1]) for row in rows], np.int64)))
    train, test = splits
    return Dataset(name, DIGITS, train, test)
