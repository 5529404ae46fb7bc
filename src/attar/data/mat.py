"""MATLAB files of 32x32 colour digits: SVHN and SynthDigits. Reading them needs scipy."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.archive import damaged, member, open_archive
from attar.data.dataset import Dataset, Split
from attar.data.names import DIGITS
from attar.errors import DataError


def read_svhn(paths: Sequence[Path], name: str) -> Dataset:
    """``train_32x32.mat``, ``test_32x32.mat`` and perhaps ``extra_32x32.mat``, which joins the
    training part.
    """
    train, test, *extra = (_split(path, path.read_bytes()) for path in paths)
    if extra:
        parts = [train, *extra]
        train = Split(
            np.concatenate([s.images for s in parts]), np.concatenate([s.labels for s in parts])
        )
    return Dataset(name, DIGITS, train, test)


def read_synth_digits(path: Path, name: str) -> Dataset:
    """``SynthDigits.zip`` with ``synth_train_32x32.mat`` and ``synth_test_32x32.mat``, or the
    folder unpacked from it.
    """
    archive = open_archive(path)
    train, test = (
        _split(path / file, member(archive, file))
        for file in ("synth_train_32x32.mat", "synth_test_32x32.mat")
    )
    return Dataset(name, DIGITS, train, test)


def _split(path: Path, data: bytes) -> Split:
    """X is (32, 32, 3, N); y is (N, 1), where 10 stands for the digit 0."""
    content = _load(path, data)
    images, labels = np.asarray(content.get("X")), np.asarray(content.get("y"))
    if (
        images.ndim != 4
        or images.dtype != np.uint8
        or labels.size != images.shape[3]
        or labels.dtype.kind not in "iuf"
    ):
        raise damaged(path, "expected bytes 'X' of shape (32, 32, 3, N) and N labels 'y'")
    return Split(
        np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels.reshape(-1).astype(np.int64) % 10
    )


def _load(path: Path, data: bytes) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise DataError(
            f"Reading {path.name} needs scipy.", fix="pip install 'attar[mat]'"
        ) from None
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
        raise damaged(path, str(error)) from None
    return content
