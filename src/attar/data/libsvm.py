"""USPS in LIBSVM's text format: ``label index:value …``.

Labels are 1 to 10 for the digits 0 to 9, values from -1 to 1.
"""

from __future__ import annotations

import bz2
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attar.data.archive import damage_error
from attar.data.dataset import Dataset, Split
from attar.data.names import DIGITS

_SIDE = 16


def read_usps(paths: Sequence[Path], name: str) -> Dataset:
    """Read USPS.

    Args:
        paths: ``usps.bz2`` and ``usps.t.bz2``, compressed as published or unpacked.
        name: of the source.

    Raises:
        DataError: if a file is damaged.
    """
    train, test = (_split(path) for path in paths)
    return Dataset(name, DIGITS, train, test)


def _split(path: Path) -> Split:
    try:
        data = path.read_bytes()
        if data[:3] == b"BZh":
            data = bz2.decompress(data)
        rows = [
            np.array([float(word) for word in line.replace(b":", b" ").split()])
            for line in data.splitlines()
            if line
        ]
    except (OSError, EOFError, ValueError) as error:
        raise damage_error(path, str(error)) from None
    images = np.zeros((len(rows), _SIDE * _SIDE))  # LIBSVM leaves zeros out
    labels = np.zeros(len(rows), np.int64)
    for number, row in enumerate(rows):
        index = row[1::2]
        value = row[2::2]
        outside = ((index < 1) | (index > _SIDE**2) | (index % 1 != 0)).any()
        if len(row) % 2 == 0 or not 1 <= row[0] <= 10 or outside:
            expected = "'label index:value …' with labels 1-10 and indices 1-256"
            raise damage_error(path, f"line {number + 1} is not {expected}")
        labels[number] = row[0] - 1
        images[number, index.astype(np.int64) - 1] = value
    pixels = np.rint((images.clip(-1, 1) + 1) / 2 * 255).astype(np.uint8)
    return Split(pixels.reshape(-1, _SIDE, _SIDE, 1), labels)
