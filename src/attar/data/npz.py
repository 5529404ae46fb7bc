"""Arrays in one ``.npz`` file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.archive import check_size
from attar.data.dataset import Dataset, Labels, Pixels, Split, cut_test_part
from attar.errors import DataError

# The names of MedMNIST's arrays. Its validation part is not read.
MEDMNIST = {
    "x_train": "train_images",
    "y_train": "train_labels",
    "x_test": "test_images",
    "y_test": "test_labels",
}
_LAYOUT = (
    "x_train, y_train, x_test and y_test (or x and y alone): images uint8 (N, H, W, C) or "
    "(N, H, W), whole labels"
)


def read_npz(path: Path, name: str, classes: tuple[str, ...] = ()) -> Dataset:
    """Read a data set from an ``.npz`` file.

    The arrays are ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y`` alone, of
    which a fifth of each class becomes the test part. Optional are ``classes`` (names), and
    ``domains`` (names) with ``d_train`` and ``d_test``, or ``d``.

    Args:
        path: the file.
        name: of the source, for messages.
        classes: names to use if the file has none.

    Raises:
        DataError: with everything that is missing or of another kind.
    """
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise ValueError("not an .npz file")
        with zipfile.ZipFile(path) as archive:
            check_size(archive)
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {key: file[key] for key in file.files}
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        fix = f"name an .npz file with {_LAYOUT}"
        raise DataError(f"{path} cannot be read:", problems=[reason], fix=fix) from None
    for ours, theirs in MEDMNIST.items():
        if ours not in arrays and theirs in arrays:
            arrays[ours] = arrays.pop(theirs)
    parts = ("_train", "_test") if "x_train" in arrays else ("",)
    needed = [f"{letter}{part}" for part in parts for letter in "xy"]
    problems = [f"{key}: missing" for key in needed if key not in arrays]
    for key in needed:
        if key in arrays and (problem := _array_problem(key, arrays[key])):
            problems.append(problem)
    if not problems:
        splits = [_split(arrays, part) for part in parts]
        for part, split in zip(parts, splits, strict=True):
            problems += _length_problems(part, split)
    if problems:
        present = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} has another layout (it holds {present}):",
            problems=problems,
            fix=f"it should hold {_LAYOUT}",
        )
    names = tuple(_to_text(item) for item in arrays["classes"]) if "classes" in arrays else classes
    largest = max((int(split.labels.max(initial=-1)) for split in splits), default=-1)
    if not names or ("classes" not in arrays and len(names) <= largest):
        names = tuple(str(label) for label in range(largest + 1))
    domains = tuple(_to_text(item) for item in arrays.get("domains", ()))
    was_cut = len(splits) == 1
    if was_cut:
        splits = list(cut_test_part(splits[0], [str(index) for index in range(len(splits[0]))]))
    return Dataset(name, names, splits[0], splits[1], domains, was_cut)


def _array_problem(key: str, array: Any) -> str | None:
    if key.startswith("y"):
        if array.dtype.kind in "iu" and (array.ndim == 1 or array.shape[1:] == (1,)):
            return None
        return f"{key}: labels must be whole numbers (N,), got {array.dtype} {array.shape}"
    if array.dtype != np.uint8:
        conversion = "(x * 255).round().astype('uint8')"
        return f"{key}: images must be uint8, got {array.dtype} (from 0..1: {conversion})"
    if array.ndim not in (3, 4):
        return f"{key}: images must be (N, H, W, C) or (N, H, W), got {array.shape}"
    return None


def _length_problems(part: str, split: Split) -> list[str]:
    """Arrays of unequal length; checked before a test part is cut, which would hide it."""
    images = len(split.images)
    labels = split.labels
    domains = split.domains
    problems = []
    if images != len(labels):
        problems.append(f"x{part}, y{part}: {images} images but labels of shape {labels.shape}")
    if domains is not None and domains.shape != labels.shape:
        shape = f"domains of shape {domains.shape}"
        problems.append(f"y{part}, d{part}: {len(labels)} labels but {shape}")
    return problems


def _split(arrays: dict[str, Any], part: str) -> Split:
    images: Pixels = arrays[f"x{part}"]
    labels: Labels = arrays[f"y{part}"].reshape(-1).astype(np.int64)
    domains = arrays.get(f"d{part}")
    return Split(
        images[..., None] if images.ndim == 3 else images,
        labels,
        None if domains is None else domains.astype(np.int64),
    )


def _to_text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)
