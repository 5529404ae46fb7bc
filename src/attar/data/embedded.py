"""``fashion-mini``: 6,000 / 1,000 images of Fashion-MNIST (MIT licence), inside the package.

The sheet has 70 rows of 100 images of 28 x 28: for each class six rows of training images, then
for each class one row of test images. Images are read class by class in turn, so image i has
label i mod 10 and every prefix is balanced.
"""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np

from attar.data.dataset import Dataset, Pixels, Split
from attar.data.names import FASHION

_SIDE = 28
_COLUMNS = 100
_TRAIN_ROWS = 60


def read_fashion_mini(name: str) -> Dataset:
    """Read the images that are shipped with the package."""
    from PIL import Image

    data = files("attar.data").joinpath("fashion-mini.png").read_bytes()
    with Image.open(io.BytesIO(data)) as sheet:
        pixels = np.asarray(sheet)
    rows = pixels.reshape(-1, _SIDE, _COLUMNS, _SIDE).swapaxes(1, 2)
    return Dataset(name, FASHION, _interleave(rows[:_TRAIN_ROWS]), _interleave(rows[_TRAIN_ROWS:]))


def _interleave(rows: Pixels) -> Split:
    classes = len(FASHION)
    by_class = rows.reshape(classes, -1, _SIDE, _SIDE, 1)
    images = np.ascontiguousarray(by_class.swapaxes(0, 1)).reshape(-1, _SIDE, _SIDE, 1)
    return Split(images, np.arange(len(images), dtype=np.int64) % classes)
