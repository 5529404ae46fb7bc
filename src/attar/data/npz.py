"""Arrays in one ``.npz`` file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.dataset import Dataset, Labels, Pixels, Split, cut
from attar.errors import DataError

_LAYOUT = "x_train, y_train, x_test and y_test (or x and y alone): images uint8 (N, H, W, C) or (N, H, W), whole labels"


def read_npz(path: Path, name: str, classes: tuple[str, ...] = ()) -> Dataset:
    """Optional arrays: ``classes`` (names); ``domains`` (names) with ``d_train`` and ``d_test``,
    or ``d``.
    """
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise ValueError("not an .npz file")
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
        raise DataError(
            f"{path} cannot be read:", problems=[reason], fix=f"an .npz file with {_LAYOUT}"
        ) from None
    parts = ("_train", "_test") if "x_train" in arrays else ("",)
    needed = [f"{letter}{part}" for part in parts for letter in "xy"]
    problems = [f"{key}: missing" for key in needed if key not in arrays]
    problems += [fault for key in needed if key in arrays and (fault := _fault(key, arrays[key]))]
    if not problems:
        splits = [_split(arrays, part) for part in parts]
        problems = [
            fault
            for part, split in zip(parts, splits, strict=True)
            for fault in _uneven(part, split)
        ]
    if problems:
        present = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} does not fit (it holds {present}):",
            problems=problems,
            fix=f"it should hold {_LAYOUT}",
        )
    names = tuple(_text(item) for item in arrays["classes"]) if "classes" in arrays else classes
    largest = max((int(split.labels.max(initial=-1)) for split in splits), default=-1)
    if not names or ("classes" not in arrays and len(names) <= largest):
        names = tuple(str(label) for label in range(largest + 1))
    domains = tuple(_text(item) for item in arrays.get("domains", ()))
    was_cut = len(splits) == 1
    if was_cut:
        splits = list(cut(splits[0], [str(index) for index in range(len(splits[0]))]))
    return Dataset(name, names, splits[0], splits[1], domains, was_cut)


def _fault(key: str, array: Any) -> str | None:
    if key.startswith("y"):
        whole = array.dtype.kind in "iu" and (array.ndim == 1 or array.shape[1:] == (1,))
        return (
            None
            if whole
            else f"{key}: labels must be whole numbers (N,), got {array.dtype} {array.shape}"
        )
    if array.dtype != np.uint8:
        return f"{key}: images must be uint8, got {array.dtype} (from 0..1: (x * 255).round().astype('uint8'))"
    return (
        None
        if array.ndim in (3, 4)
        else f"{key}: images must be (N, H, W, C) or (N, H, W), got {array.shape}"
    )


def _uneven(part: str, split: Split) -> list[str]:
    """Before anything is cut: a part cut off arrays of unequal length would look whole."""
    images, labels, domains = split.images, split.labels, split.domains
    problems = []
    if len(images) != len(labels):
        problems.append(
            f"x{part}, y{part}: {len(images)} images but labels of shape {labels.shape}"
        )
    if domains is not None and domains.shape != labels.shape:
        problems.append(
            f"y{part}, d{part}: {len(labels)} labels but domains of shape {domains.shape}"
        )
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


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)
