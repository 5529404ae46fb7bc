"""Image sets of the Hugging Face hub, through the package ``datasets`` (the extra ``hf``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attar.data.dataset import Dataset, Progress, Split, cut_test_part
from attar.data.images import ImageFile, read_images
from attar.errors import DataError

OPTIONS = ("size", "image", "label", "config")


def read_hub(
    repository: str,
    name: str,
    options: Mapping[str, str],
    size: int | None,
    progress: Progress | None,
) -> Dataset:
    """Load an image set of the hub.

    Args:
        repository: its name on the hub.
        name: of the source, for messages.
        options: ``image`` and ``label`` name the columns if there are several of the type;
            ``config`` chooses one of the set's versions.
        size: to which images are stretched, in pixels; None keeps their own.
        progress: told about decoding.

    Returns:
        Its training part and its test or validation part; without one, a fifth of each class.

    Raises:
        DataError: if the package is missing, the set cannot be loaded, or a column is not clear.
    """
    try:
        import datasets
    except ImportError:
        what = f"{name!r} needs the package datasets."
        raise DataError(what, fix="pip install 'attar[hf]'") from None
    try:
        parts = datasets.load_dataset(repository, options.get("config"))
    except (OSError, ValueError, RuntimeError) as error:
        what = f"{name!r} could not be loaded from the hub:"
        raise DataError(what, problems=[str(error)]) from None
    if "train" not in parts:
        raise DataError(f"{name!r} has no part 'train'; it has {', '.join(parts)}.")
    features = parts["train"].features
    image = _find_column(name, "image", features, options.get("image"), datasets.Image)
    label = _find_column(name, "label", features, options.get("label"), datasets.ClassLabel)
    chosen = ["train", *[key for key in ("test", "validation", "valid") if key in parts][:1]]
    tables = [parts[key].cast_column(image, datasets.Image(decode=False)) for key in chosen]
    rows = [(table, index) for table in tables for index in range(len(table))]
    pictures = [
        ImageFile(f"{name}: {key} {index}", partial(_read_bytes, table, index, image))
        for key, table in zip(chosen, tables, strict=True)
        for index in range(len(table))
    ]
    labels = np.concatenate([np.asarray(list(table[label]), np.int64) for table in tables])
    whole = Split(read_images(pictures, source=name, size=size, progress=progress), labels)
    if len(tables) == 2:
        border = len(tables[0])
        train = whole.take(np.arange(border))
        test = whole.take(np.arange(border, len(rows)))
    else:
        train, test = cut_test_part(whole, [str(index) for index in range(len(rows))])
    classes = [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
    if isinstance(features[label], datasets.ClassLabel):
        classes = features[label].names
    return Dataset(name, tuple(classes), train, test, was_cut=len(tables) == 1)


def _find_column(
    name: str, what: str, features: Mapping[str, Any], asked: str | None, kind: type
) -> str:
    fitting = [column for column, feature in features.items() if isinstance(feature, kind)]
    if asked in fitting or (asked in features and what == "label"):  # labels may be plain numbers
        assert asked is not None
        return asked
    if asked is None and len(fitting) == 1:
        return fitting[0]
    columns = f"{', '.join(fitting) or 'none'} (of {', '.join(features)})"
    raise DataError(
        f"{name!r}: which column is the {what}? Of type {kind.__name__} there are: {columns}.",
        fix=f"name it by ?{what}=COLUMN",
    )


def _read_bytes(table: Any, index: int, column: str) -> bytes:
    cell = table[index][column]
    data: bytes | None = cell["bytes"]
    return Path(cell["path"]).read_bytes() if data is None else data
