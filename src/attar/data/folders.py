"""Image folders: class by class, or domain by domain and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attar.data.dataset import Dataset, Pixels, Progress, Split, cut
from attar.data.images import SUFFIXES, Picture, read_images
from attar.errors import DataError

_LAYOUT = f"one sub-folder per class with images ({', '.join(SUFFIXES)}), or train/ and test/ made like that"


def read_folder(path: Path, name: str, size: int | None, progress: Progress | None) -> Dataset:
    """``path/<class>/*.png``, cut 80/20 by file name; or ``path/train/<class>/…`` and
    ``path/test/<class>/…``.
    """
    if not path.is_dir():
        raise DataError(f"There is no folder {path}.", fix=f"folder:DIR needs {_LAYOUT}")
    tops = [path / "train", path / "test"]
    there = [top for top in tops if top.is_dir()]
    if len(there) == 1 and any(entry.is_dir() for entry in there[0].iterdir()):
        (lone,), (absent,) = there, set(tops) - set(there)
        raise DataError(
            f"{path} has {lone.name}/ but no {absent.name}/.",
            fix=f"add {absent.name}/, or name folder:{lone}, whose images are then cut 80/20",
        )
    if len(there) < 2:
        tops = [path]
    listings = [_class_files(top, name) for top in tops]
    classes = tuple(listings[0])
    if strangers := sorted(set(listings[-1]) - set(classes)):
        raise DataError(
            f"{path / 'test'} has classes that {path / 'train'} lacks:", problems=strangers
        )
    files = [file for listing in listings for group in listing.values() for file in group]
    labels = np.array(
        [classes.index(key) for listing in listings for key in listing for _ in listing[key]],
        np.int64,
    )
    whole = Split(
        read_images(
            [Picture.at(file) for file in files], source=name, size=size, progress=progress
        ),
        labels,
    )
    if len(tops) == 1:
        train, test = cut(whole, [file.relative_to(path).as_posix() for file in files])
    else:
        border = sum(map(len, listings[0].values()))
        train, test = whole.take(np.arange(border)), whole.take(np.arange(border, len(files)))
    return Dataset(name, classes, train, test, was_cut=len(tops) == 1)


def read_unlabelled(path: Path, name: str, size: int | None, progress: Progress | None) -> Pixels:
    """Every image in a folder and below it, in the order of their names, whatever the folders mean."""
    if not path.is_dir():
        raise DataError(
            f"There is no folder {path}.",
            fix="name one that holds images, also in folders of its own",
        )
    files = sorted(file for file in path.rglob("*") if _is_image(file))
    return read_images(
        [Picture.at(file) for file in files], source=name, size=size, progress=progress
    )


def read_classes(path: Path, name: str, size: int, progress: Progress | None) -> Dataset:
    """Mini-ImageNet: class folders, directly or under the few-shot split's train/, val/ and
    test/, which are put together.
    """
    if pickles := sorted(
        file.name for file in path.iterdir() if file.suffix in (".pkl", ".pickle")
    ):
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
    images = read_images(
        [Picture.at(file) for file in files], source=name, size=size, progress=progress
    )
    train, test = cut(Split(images, labels), [f"{file.parent.name}/{file.name}" for file in files])
    return Dataset(name, classes, train, test, was_cut=True)


def read_domains(
    path: Path, name: str, domains: Sequence[str], size: int, progress: Progress | None
) -> Dataset:
    """``<domain>/<class>/*.jpg`` in ``path`` or up to two folders below it; cut 80/20 in each
    domain and class.
    """
    top = _domain_folder(path, domains)
    listings = [_class_files(top / domain, name) for domain in domains]
    classes = tuple(sorted({key for listing in listings for key in listing}))
    rows = [
        (file, classes.index(key), number)
        for number, listing in enumerate(listings)
        for key, group in listing.items()
        for file in group
    ]
    images = read_images(
        [Picture.at(file) for file, _, _ in rows], source=name, size=size, progress=progress
    )
    labels, numbers = np.array([row[1:] for row in rows], np.int64).T
    whole = Split(images, np.ascontiguousarray(labels), np.ascontiguousarray(numbers))
    train, test = cut(whole, [file.relative_to(top).as_posix() for file, _, _ in rows])
    return Dataset(name, classes, train, test, tuple(domains), was_cut=True)


def _domain_folder(path: Path, domains: Sequence[str]) -> Path:
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
    folders = sorted(
        entry for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    listing = {
        folder.name: sorted(file for file in folder.iterdir() if _is_image(file))
        for folder in folders
    }
    if not listing:
        raise DataError(
            f"{top} has no class folders.",
            fix=f"{name!r} needs {_LAYOUT}; without labels, --public images:DIR will do",
        )
    if empty := [str(top / key) for key, group in listing.items() if not group]:
        raise DataError(
            f"Class folders of {name!r} without images:", problems=empty, fix=f"it needs {_LAYOUT}"
        )
    return listing


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
