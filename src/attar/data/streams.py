"""Labelled images that are read one by one, so that a set need not fit into memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from attar.data.dataset import Dataset, Labels, Pixels, Progress, Split
from attar.data.folders import list_folder
from attar.data.images import decode_image
from attar.data.sources import load_data, parse_size, parse_source
from attar.errors import DataError

AHEAD = 2  # batches that are read before they are asked for
Prepared = TypeVar("Prepared")


class ReadImage(NamedTuple):
    """An image that was read.

    Attributes:
        pixels: uint8, (H, W, C); a sentence if it cannot be read.
        digest: sha256 of the bytes of its file, or of its pixels where it is part of an array.
    """

    pixels: Pixels | str
    digest: bytes


@dataclass(frozen=True, eq=False)
class ImageStream:
    """The training images of a client.

    Attributes:
        name: of the source, for messages.
        classes: names by label.
        labels: numbers of classes, (N,).
        read: reads image i, decoded for a side of so many pixels.
        identity: changes whenever the images may be others.
        was_cut: whether a test part was cut off, chosen by comparing images with each other.
    """

    name: str
    classes: tuple[str, ...]
    labels: Labels
    read: Callable[[int, int], ReadImage]
    identity: str
    was_cut: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self,
        size: int,
        prepare: Callable[[Pixels], Prepared],
        *,
        shown: int,
        workers: int,
        first: int = 0,
    ) -> Iterator[list[tuple[Prepared | str, bytes]]]:
        """Read the images in order, in a few threads ahead of their use.

        Args:
            size: of a batch; the last one may be smaller.
            prepare: what the threads make of the pixels of an image.
            shown: side in pixels at which the images are used.
            workers: threads that read, decode and prepare.
            first: image to begin with.

        Yields:
            For each image what ``prepare`` made, or a sentence why it cannot be read; and its
            digest.
        """

        def work(index: int) -> tuple[Prepared | str, bytes]:
            pixels, digest = self.read(index, shown)
            return pixels if isinstance(pixels, str) else prepare(pixels), digest

        waiting: deque[list[Future[tuple[Prepared | str, bytes]]]] = deque()
        pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        try:
            for start in range(first, len(self), size):
                stop = min(start + size, len(self))
                waiting.append([pool.submit(work, i) for i in range(start, stop)])
                if len(waiting) > AHEAD:
                    yield [future.result() for future in waiting.popleft()]
            while waiting:
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


def open_stream(source: str, progress: Progress | None = None) -> ImageStream:
    """The training images of a source.

    Those of ``folder:DIR`` are decoded when they are read; of other sources the decoded images
    are in memory.

    Args:
        source: as for ``load_data``.
        progress: told about downloads and decoding; None for nobody.

    Raises:
        DataError: if there is no such source, or its files are missing or damaged.
    """
    name, options = parse_source(source)
    kind, _, rest = name.partition(":")
    if kind != "folder" or not rest or set(options) - {"size"}:
        dataset: Dataset = load_data(source, progress)
        stream = stream_split(dataset.train, dataset.classes, source)
        return replace(stream, was_cut=dataset.was_cut)
    return _stream_folder(Path(rest).expanduser(), source, parse_size(source, options))


def stream_split(split: Split, classes: tuple[str, ...], name: str) -> ImageStream:
    """Images that are in memory as a stream.

    Args:
        split: the images.
        classes: names by label.
        name: of the source.
    """
    images = split.images
    hasher = hashlib.sha256(np.ascontiguousarray(split.labels).tobytes())
    hasher.update(np.ascontiguousarray(images).data)

    def read(index: int, _: int) -> ReadImage:
        pixels = np.ascontiguousarray(images[index])
        return ReadImage(pixels, hashlib.sha256(pixels.data).digest())

    return ImageStream(name, classes, split.labels, read, hasher.hexdigest())


def _stream_folder(path: Path, source: str, size: int | None) -> ImageStream:
    listing = list_folder(path, source)
    chosen = np.flatnonzero(~listing.is_test)
    files = [listing.files[index] for index in chosen]
    if not files:
        raise DataError(f"{source!r} holds no training images.", fix="add images to its classes")
    hasher = hashlib.sha256(repr((listing.classes, size)).encode())
    for file in files:
        status = file.stat()
        place = file.relative_to(path).as_posix()
        hasher.update(repr((place, status.st_size, status.st_mtime_ns)).encode())

    def read(index: int, shown: int) -> ReadImage:
        file = files[index]
        try:
            data = file.read_bytes()
        except OSError as error:
            return ReadImage(f"{file}: {error.strerror or error}", bytes(32))
        pixels = decode_image(str(file), data, size, shown)
        return ReadImage(pixels, hashlib.sha256(data).digest())

    labels = listing.labels[chosen]
    identity = hasher.hexdigest()
    return ImageStream(source, listing.classes, labels, read, identity, listing.was_cut)
