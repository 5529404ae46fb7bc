"""Images with labels, as plain arrays: what every source delivers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attar.errors import DataError
from attar.internal.text import list_some

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and how much there is (0 if unknown)."""

PartName = Literal["test", "train", "all"]
PARTS: dict[PartName, str] = {
    "test": "the test part of",
    "train": "the training part of",
    "all": "all of",
}
TEST_SHARE = 0.2  # of each class, where a source has no test part of its own


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set.

    Attributes:
        images: uint8, (N, H, W, C).
        labels: numbers of classes, (N,).
        domains: numbers of domains, (N,); None for a source without domains.
    """

    images: Pixels
    labels: Labels
    domains: Labels | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.images.shape[1:]))
        return f"Split({len(self):,} images of {size})"

    def take(self, indices: ArrayLike) -> Split:
        """Some of the images, in the order of ``indices``."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Split(
            self.images[chosen],
            self.labels[chosen],
            None if self.domains is None else self.domains[chosen],
        )

    def join(self, other: Split) -> Split:
        """These images, then the other's."""
        domains = None
        if self.domains is not None and other.domains is not None:
            domains = np.concatenate([self.domains, other.domains])
        images = np.concatenate([self.images, other.images])
        return Split(images, np.concatenate([self.labels, other.labels]), domains)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part and a test part over the same classes.

    Attributes:
        name: of the source.
        classes: names by label.
        train: the training part.
        test: the test part.
        domains: names by domain number; empty for a source without domains.
        was_cut: whether the source has one part, of which a fifth is the test part
            (``cut_test_part``).

    Raises:
        DataError: with everything about the parts that is inconsistent.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    domains: tuple[str, ...] = ()
    was_cut: bool = False

    def __post_init__(self) -> None:
        problems = [
            *_problems("train", self.train, len(self.classes), len(self.domains)),
            *_problems("test", self.test, len(self.classes), len(self.domains)),
        ]
        if len(set(self.classes)) != len(self.classes):
            repeated = sorted({name for name in self.classes if self.classes.count(name) > 1})
            problems.append(f"class names that occur twice: {', '.join(repeated)}")
        if not problems and self.train.images.shape[1:] != self.test.images.shape[1:]:
            shapes = f"{self.train.images.shape[1:]} and {self.test.images.shape[1:]}"
            problems.append(f"train and test images differ in shape (H, W, C): {shapes}")
        if problems:
            fix = None
            if "test: no images" in problems or "train: no images" in problems:
                fix = (
                    "each part needs an image: name data with both (train/ and test/ of a folder), "
                    "or two images of some class"
                )
            what = f"The data of {self.name!r} are inconsistent:"
            raise DataError(what, problems=problems, fix=fix)

    def __repr__(self) -> str:
        cut = ", a fifth that was cut off" if self.was_cut else ""
        return (
            f"Dataset({self.name!r}, {len(self.classes)} classes: {list_some(self.classes)}; "
            f"train: {self.train}; test: {self.test}{cut})"
        )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W), as nets take it."""
        height, width, channels = self.train.images.shape[1:]
        return channels, height, width

    def part(self, name: PartName = "test") -> Split:
        """The ``test`` part, the ``train`` part, or ``all`` images, those of training first.

        Raises:
            DataError: there is no such part.
        """
        if name not in PARTS:
            raise DataError(f"There is no part {name!r}.", fix=f"name one of: {', '.join(PARTS)}")
        return {"test": self.test, "train": self.train}.get(name) or self.train.join(self.test)


def _problems(part: str, split: Split, classes: int, domains: int) -> list[str]:
    images = split.images
    labels = split.labels
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
        return [f"{part}: images must be uint8 (N, H, W, C), got {images.dtype} {images.shape}"]
    if images.shape[3] not in (1, 3):
        wanted = "1 or 3 channels in the last place"
        return [f"{part}: images must have {wanted}, got shape {images.shape}"]
    if labels.shape != (len(images),):
        return [f"{part}: {len(images)} images but labels of shape {labels.shape}"]
    if not len(labels):
        return [f"{part}: no images"]
    problems = []
    if labels.min() < 0 or labels.max() >= classes:
        span = f"labels from {labels.min()} to {labels.max()}"
        problems.append(f"{part}: {span}, but {classes} classes (0 to {classes - 1})")
    if (split.domains is None) != (domains == 0):
        both = "domain names and domain numbers belong together"
        problems.append(f"{part}: {both}, one of them is missing")
    elif split.domains is not None:
        if split.domains.shape != labels.shape:
            shape = split.domains.shape
            problems.append(f"{part}: {len(labels)} labels but domains of shape {shape}")
        elif split.domains.min() < 0 or split.domains.max() >= domains:
            problems.append(f"{part}: domain numbers outside 0 to {domains - 1}")
    return problems


def choose_test(names: Sequence[str], groups: Labels) -> NDArray[np.bool_]:
    """Choose a fifth of each group as test images, at least one of two, by the hash of the name.

    The choice depends on the names alone: not on their order, nor on a seed, and a file that is
    added later moves few of the others.

    Args:
        names: of the images.
        groups: of the images, (N,).

    Returns:
        Which of them are test images, (N,).
    """
    digests = [hashlib.sha256(name.encode()).digest()[:8] for name in names]
    numbers = np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)
    order = np.lexsort((numbers, groups))
    _, start, counts = np.unique(groups[order], return_index=True, return_counts=True)
    wanted = np.where(counts > 1, np.maximum(1, np.rint(counts * TEST_SHARE)), 0)
    rank = np.arange(len(order)) - np.repeat(start, counts)
    chosen = np.zeros(len(order), dtype=np.bool_)
    chosen[order] = rank < np.repeat(wanted, counts)
    return chosen


def cut_test_part(whole: Split, names: Sequence[str]) -> tuple[Split, Split]:
    """Cut images into a training and a test part, balanced over classes and domains.

    Args:
        whole: all images.
        names: by which ``choose_test`` chooses.

    Returns:
        Training and test part.
    """
    groups = whole.labels
    if whole.domains is not None:
        groups = groups + whole.domains * (int(groups.max(initial=0)) + 1)
    chosen = choose_test(names, groups)
    return whole.take(np.flatnonzero(~chosen)), whole.take(np.flatnonzero(chosen))


def resize(dataset: Dataset, size: int) -> Dataset:
    """Resize every image to size x size (bilinear, antialiased)."""
    if dataset.train.images.shape[1:3] == (size, size):
        return dataset
    train = replace(dataset.train, images=_resize_images(dataset.train.images, size))
    test = replace(dataset.test, images=_resize_images(dataset.test.images, size))
    return replace(dataset, train=train, test=test)


def _resize_images(images: Pixels, size: int) -> Pixels:
    from PIL import Image

    out = np.empty((len(images), size, size, images.shape[3]), np.uint8)
    for row, pixels in zip(out, images, strict=True):
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        resized = image.resize((size, size), Image.Resampling.BILINEAR)
        row[...] = np.asarray(resized).reshape(row.shape)
    return out
