"""MATLAB files of 32 x 32 colour digits: SVHN and SynthDigits. Reading them needs scipy."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.archive import damage_error, open_archive, read_member
from attar.data.dataset import Dataset, Split
from attar.data.names import DIGITS
from attar.errors import DataError


def read_svhn(paths: Sequence[Path], name: str) -> Dataset:
    """Read SVHN.

    Args:
        paths: ``train_32x32.mat``, ``test_32x32.mat`` and perhaps ``extra_32x32.mat``, which joins
            the training part.
        name: of the source.

    Raises:
        DataError: if a file is damaged, or scipy is missing.
    """
    train, test, *extra = (_split(path, path.read_bytes()) for path in paths)
    if extra:
        train = train.join(extra[0])
    return Dataset(name, DIGITS, train, test)


def read_synth_digits(path: Path, name: str) -> Dataset:
    """Read SynthDigits.

    Args:
        path: ``SynthDigits.zip`` with ``synth_train_32x32.mat`` and ``synth_test_32x32.mat``, or
            the folder unpacked from it.
        name: of the source.

    Raises:
        DataError: if a file is missing or damaged, or scipy is missing.
    """
    archive = open_archive(path)
    files = ("synth_train_32x32.mat", "synth_test_32x32.mat")
    train, test = (_split(path / file, read_member(archive, file)) for file in files)
    return Dataset(name, DIGITS, train, test)


def _split(path: Path, data: bytes) -> Split:
    """X is (32, 32, 3, N); y is (N, 1), where 10 stands for the digit 0."""
    content = _load_mat(path, data)
    images = np.asarray(content.get("X"))
    labels = np.asarray(content.get("y"))
    are_images = images.ndim == 4 and images.dtype == np.uint8
    if not are_images or labels.size != images.shape[3] or labels.dtype.kind not in "iuf":
        raise damage_error(path, "expected bytes 'X' of shape (32, 32, 3, N) and N labels 'y'")
    pixels = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return Split(pixels, labels.reshape(-1).astype(np.int64) % 10)


def _load_mat(path: Path, data: bytes) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        fix = "pip install 'attar[mat]'"
        raise DataError(f"Reading {path.name} needs scipy.", fix=fix) from None
    try:
        content: dict[str, Any] = loadmat(io.BytesIO(data), variable_names=["X", "y"])
    except (
        MatReadError,
        NotImplementedError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        zlib.error,
    ) as error:
        raise damage_error(path, str(error)) from None
    return content
