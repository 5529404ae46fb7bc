"""Tiny-ImageNet from ``tiny-imagenet-200.zip`` or the folder unpacked from it; its validation
part serves as test part.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from attar.data.archive import damaged, member, open_archive
from attar.data.dataset import Dataset, Progress, Split
from attar.data.images import Picture, read_images


def read_tiny_imagenet(
    path: Path, name: str, size: int | None, progress: Progress | None
) -> Dataset:
    """``train/<wnid>/images/*.JPEG``; ``val/images/*.JPEG`` with ``val/val_annotations.txt``;
    names from ``words.txt``.
    """
    archive = open_archive(path)
    wnids = sorted(member(archive, "wnids.txt").decode().split())
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    rows = [
        line.split("\t")
        for line in member(archive, "val/val_annotations.txt").decode().splitlines()
    ]
    answers = {row[0]: row[1] for row in rows if len(row) > 1}
    files: list[tuple[str, int, bool]] = []  # name, label, whether it is a test image
    problems = []
    for entry in archive.names():
        parts = entry.split("/")
        if not entry.lower().endswith(".jpeg") or len(parts) < 3:
            continue
        if parts[-2] == "images" and len(parts) > 3 and parts[-4] == "train":
            wnid, test = parts[-3], False
        elif parts[-3:-1] == ["val", "images"]:
            wnid, test = answers.get(parts[-1], ""), True
        else:
            continue
        if wnid in numbers:
            files.append((entry, numbers[wnid], test))
        else:
            problems.append(
                f"{entry}: its class {wnid or '(none in val_annotations.txt)'} is not in wnids.txt"
            )
    if problems:
        raise damaged(path, *problems[:10])
    pictures = [Picture(f"{path}: {entry}", partial(archive.read, entry)) for entry, _, _ in files]
    images = read_images(pictures, source=name, size=size, progress=progress)
    whole = Split(images, np.array([label for _, label, _ in files], np.int64))
    is_test = np.array([test for _, _, test in files], np.bool_)
    return Dataset(
        name,
        _words(wnids, member(archive, "words.txt").decode()),
        whole.take(np.flatnonzero(~is_test)),
        whole.take(np.flatnonzero(is_test)),
    )


def _words(wnids: list[str], text: str) -> tuple[str, ...]:
    """The first word of each class; where two classes share it, or have none, the WordNet number
    tells them apart.
    """
    words = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    short = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(
        word if short.count(word) == 1 else f"{word} ({wnid})"
        for word, wnid in zip(short, wnids, strict=True)
    )
