"""Image folders: class by class, or domain by domain and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attar.data.dataset import (
    Dataset,
    Labels,
    Pixels,
    Progress,
    Split,
    choose_test,
    cut_test_part,
)
from attar.data.images import SUFFIXES, ImageFile, read_images
from attar.errors import DataError

_LAYOUT = (
    f"one sub-folder per class with images ({', '.join(SUFFIXES)}), or train/ and test/ made "
    "like that"
)


def read_folder(path: Path, name: str, size: int | None, progress: Progress | None) -> Dataset:
    """Read class folders: ``path/<class>/*.png``, or ``path/train/<class>/…`` and ``path/test/…``.

    Args:
        path: the folder.
        name: of the source, for messages.
        size: to which images are stretched, in pixels; None keeps their own.
        progress: told about decoding.

    Returns:
        A data set; without train/ and test/, a fifth of each class is the test part, chosen by
        file name.

    Raises:
        DataError: if the folder has another layout, or images cannot be read.
    """
    listing = list_folder(path, name)
    pictures = [ImageFile.at(file) for file in listing.files]
    images = read_images(pictures, source=name, size=size, progress=progress)
    whole = Split(images, listing.labels)
    return Dataset(
        name,
        listing.classes,
        whole.take(np.flatnonzero(~listing.is_test)),
        whole.take(np.flatnonzero(listing.is_test)),
        was_cut=listing.was_cut,
    )


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of class folders, not decoded.

    Attributes:
        classes: names by label.
        files: of all images.
        labels: numbers of classes, (N,).
        is_test: which of them are the test part, (N,).
        was_cut: whether the test part is a fifth of each class.
    """

    classes: tuple[str, ...]
    files: list[Path]
    labels: Labels
    is_test: NDArray[np.bool_]
    was_cut: bool


def list_folder(path: Path, name: str) -> Listing:
    """List what ``read_folder`` would read.

    Args:
        path: the folder.
        name: of the source, for messages.

    Raises:
        DataError: if the folder has another layout.
    """
    if not path.is_dir():
        raise DataError(f"There is no folder {path}.", fix=f"folder:DIR needs {_LAYOUT}")
    tops = [path / "train", path / "test"]
    present = [top for top in tops if top.is_dir()]
    if len(present) == 1 and any(entry.is_dir() for entry in present[0].iterdir()):
        (one,) = present
        (other,) = set(tops) - set(present)
        raise DataError(
            f"{path} has {one.name}/ but no {other.name}/.",
            fix=f"add {other.name}/, or name folder:{one}, whose images are then cut 80/20",
        )
    if len(present) < 2:
        tops = [path]
    listings = [_class_files(top, name) for top in tops]
    classes = tuple(listings[0])
    if unknown := sorted(set(listings[-1]) - set(classes)):
        what = f"{path / 'test'} has classes that {path / 'train'} lacks:"
        raise DataError(what, problems=unknown)
    files = [file for listing in listings for group in listing.values() for file in group]
    number = {key: label for label, key in enumerate(classes)}
    names = [key for listing in listings for key in listing for _ in listing[key]]
    labels = np.array([number[key] for key in names], np.int64)
    if len(tops) == 1:
        is_test = choose_test([file.relative_to(path).as_posix() for file in files], labels)
    else:
        is_test = np.arange(len(files)) >= sum(map(len, listings[0].values()))
    return Listing(classes, files, labels, is_test, was_cut=len(tops) == 1)


def read_unlabelled(path: Path, name: str, size: int | None, progress: Progress | None) -> Pixels:
    """Read every image in a folder and below it, in the order of their names.

    Args:
        path: the folder.
        name: of the source, for messages.
        size: to which images are stretched, in pixels; None keeps their own.
        progress: told about decoding.

    Raises:
        DataError: if there is no such folder, or images cannot be read.
    """
    if not path.is_dir():
        raise DataError(
            f"There is no folder {path}.",
            fix="name one that holds images, or folders with images",
        )
    files = sorted(file for file in path.rglob("*") if _is_image(file))
    pictures = [ImageFile.at(file) for file in files]
    return read_images(pictures, source=name, size=size, progress=progress)


def read_classes(path: Path, name: str, size: int, progress: Progress | None) -> Dataset:
    """Read Mini-ImageNet: class folders, or train/, val/ and test/ of a few-shot split with them.

    The few-shot split has other classes in each part; they are put together, and a fifth of each
    class becomes the test part.

    Args:
        path: the folder.
        name: of the source, for messages.
        size: to which images are stretched, in pixels.
        progress: told about decoding.

    Raises:
        DataError: if the folder has another layout, or images cannot be read.
    """
    suffixes = (".pkl", ".pickle")
    if pickles := sorted(file.name for file in path.iterdir() if file.suffix in suffixes):
        raise DataError(
            f"{path} holds pickles, which are refused because a pickle can run any program:",
            problems=pickles,
            fix="use the image folders, one per class",
        )
    tops = [path / part for part in ("train", "val", "test") if (path / part).is_dir()] or [path]
    listing: dict[str, list[Path]] = {}
    for top in tops:
        for key, group in _class_files(top, name).items():
            listing.setdefault(key, []).extend(group)
    classes = tuple(sorted(listing))
    files = [file for key in classes for file in listing[key]]
    labels = np.array([label for label, key in enumerate(classes) for _ in listing[key]], np.int64)
    pictures = [ImageFile.at(file) for file in files]
    images = read_images(pictures, source=name, size=size, progress=progress)
    names = [f"{file.parent.name}/{file.name}" for file in files]
    train, test = cut_test_part(Split(images, labels), names)
    return Dataset(name, classes, train, test, was_cut=True)


def read_domains(
    path: Path, name: str, domains: Sequence[str], size: int, progress: Progress | None
) -> Dataset:
    """Read ``<domain>/<class>/*.jpg``; a fifth of each class of each domain is the test part.

    Args:
        path: the folder, with the domains in it or up to two folders below.
        name: of the source, for messages.
        domains: names of their folders.
        size: to which images are stretched, in pixels.
        progress: told about decoding.

    Raises:
        DataError: if the folder has another layout, or images cannot be read.
    """
    top = _find_domains(path, domains)
    listings = [_class_files(top / domain, name) for domain in domains]
    classes = tuple(sorted({key for listing in listings for key in listing}))
    rows = [
        (file, classes.index(key), number)
        for number, listing in enumerate(listings)
        for key, group in listing.items()
        for file in group
    ]
    pictures = [ImageFile.at(file) for file, _, _ in rows]
    images = read_images(pictures, source=name, size=size, progress=progress)
    labels, numbers = np.array([row[1:] for row in rows], np.int64).T
    whole = Split(images, np.ascontiguousarray(labels), np.ascontiguousarray(numbers))
    train, test = cut_test_part(whole, [file.relative_to(top).as_posix() for file, _, _ in rows])
    return Dataset(name, classes, train, test, tuple(domains), was_cut=True)


def _find_domains(path: Path, domains: Sequence[str]) -> Path:
    for pattern in (".", "*", "*/*"):
        for top in sorted(path.glob(pattern)) if pattern != "." else [path]:
            if all((top / domain).is_dir() for domain in domains):
                return top
    raise DataError(
        f"{path} lacks domain folders.",
        fix=f"it needs {', '.join(domains)} side by side, each with one folder per class",
    )


def _class_files(top: Path, name: str) -> dict[str, list[Path]]:
    """Class name -> its images, both sorted; a class without images is an error."""
    listing: dict[str, list[Path]] = {}
    for folder in sorted(top.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            listing[folder.name] = sorted(file for file in folder.iterdir() if _is_image(file))
    if not listing:
        raise DataError(
            f"{top} has no class folders.",
            fix=f"{name!r} needs {_LAYOUT}; without labels, use --public images:DIR",
        )
    if empty := [str(top / key) for key, group in listing.items() if not group]:
        what = f"Class folders of {name!r} without images:"
        raise DataError(what, problems=empty, fix=f"it needs {_LAYOUT}")
    return listing


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
