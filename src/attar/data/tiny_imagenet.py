"""Tiny-ImageNet; its validation part serves as test part."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from attar.data.archive import damage_error, open_archive, read_member
from attar.data.dataset import Dataset, Progress, Split
from attar.data.images import ImageFile, read_images


def read_tiny_imagenet(
    path: Path, name: str, size: int | None, progress: Progress | None
) -> Dataset:
    """Read Tiny-ImageNet.

    It has ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with the classes in
    ``val/val_annotations.txt``; names are in ``words.txt``.

    Args:
        path: ``tiny-imagenet-200.zip`` or the folder unpacked from it.
        name: of the source.
        size: to which images are stretched, in pixels; None keeps their own.
        progress: told about decoding.

    Raises:
        DataError: if a file is missing or damaged.
    """
    archive = open_archive(path)
    wnids = sorted(read_member(archive, "wnids.txt").decode().split())
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    annotations = read_member(archive, "val/val_annotations.txt").decode()
    rows = [line.split("\t") for line in annotations.splitlines()]
    validation = {row[0]: row[1] for row in rows if len(row) > 1}
    files: list[tuple[str, int, bool]] = []  # name, label, whether it is a test image
    problems = []
    for entry in archive.names():
        parts = entry.split("/")
        if not entry.lower().endswith(".jpeg") or len(parts) < 3:
            continue
        if parts[-2] == "images" and len(parts) > 3 and parts[-4] == "train":
            wnid = parts[-3]
        elif parts[-3:-1] == ["val", "images"]:
            wnid = validation.get(parts[-1], "")
        else:
            continue
        if wnid in numbers:
            files.append((entry, numbers[wnid], parts[-3] == "val"))
        else:
            named = wnid or "(none in val_annotations.txt)"
            problems.append(f"{entry}: its class {named} is not in wnids.txt")
    if problems:
        raise damage_error(path, *problems[:10])
    pictures = [
        ImageFile(f"{path}: {entry}", partial(archive.read, entry)) for entry, _, _ in files
    ]
    images = read_images(pictures, source=name, size=size, progress=progress)
    whole = Split(images, np.array([label for _, label, _ in files], np.int64))
    is_test = np.array([test for _, _, test in files], np.bool_)
    return Dataset(
        name,
        _class_names(wnids, read_member(archive, "words.txt").decode()),
        whole.take(np.flatnonzero(~is_test)),
        whole.take(np.flatnonzero(is_test)),
    )


def _class_names(wnids: list[str], text: str) -> tuple[str, ...]:
    """The first word for each class; with its WordNet number if two classes share the word."""
    words = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    short = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    pairs = zip(short, wnids, strict=True)
    return tuple(word if short.count(word) == 1 else f"{word} ({wnid})" for word, wnid in pairs)
