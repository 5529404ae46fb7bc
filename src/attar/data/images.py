"""PNG and JPEG files as arrays, decoded in threads; all broken files are named at once."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attar.data.dataset import Pixels, Progress
from attar.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
NAMED = 10  # broken files named in a message; the others are counted
_BROKEN = (  # what Pillow and archives raise on damaged bytes
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
_DEEP = ("I;16", "I;16B", "I;16L", "I")  # 16 bits a pixel
_GREY = ("1", "L", "LA", "La", "F", *_DEEP)


@dataclass(frozen=True)
class ImageFile:
    """An image that is not decoded yet.

    Attributes:
        name: for messages.
        read: gives its bytes.
    """

    name: str
    read: Callable[[], bytes]

    @classmethod
    def at(cls, path: Path) -> ImageFile:
        """The image in a file."""
        return cls(str(path), path.read_bytes)


@dataclass(frozen=True)
class _Head:
    size: tuple[int, int]  # width, height
    grey: bool


def read_images(
    pictures: Sequence[ImageFile],
    *,
    source: str,
    size: int | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Decode images.

    Args:
        pictures: the images.
        source: where they come from, for messages.
        size: to which each is stretched, in pixels; None if they all have one size.
        progress: told about decoding.

    Returns:
        uint8, (N, H, W, C): one channel if every image is grey, otherwise three.

    Raises:
        DataError: if there are none, they differ in size without ``size``, or some cannot be read.
    """
    if not pictures:
        fix = f"images end in {', '.join(SUFFIXES)}, in any case"
        raise DataError(f"{source!r} holds no images.", fix=fix)
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1)) as pool:
        # Pillow's remarks on metadata and palettes; damaged files raise errors.
        warnings.simplefilter("ignore")
        heads = list(pool.map(_read_head, pictures))
        readable = [head for head in heads if isinstance(head, _Head)]
        broken = [head for head in heads if isinstance(head, str)]
        sizes = {head.size for head in readable}
        channels = 1 if all(head.grey for head in readable) else 3
        if len(sizes) > 1 and size is None and not broken:
            examples = _show_two_sizes(pictures, readable)
            raise DataError(
                f"The images of {source!r} differ in size ({len(sizes)} sizes):",
                problems=examples,
                fix="have them stretched to one size, for example by adding ?size=64 to the source",
            )
        width, height = (size, size) if size else min(sizes, default=(1, 1))
        out = np.empty((0 if broken else len(pictures), height, width, channels), np.uint8)

        def fill(index: int) -> str | None:
            if isinstance(heads[index], str):
                return None
            pixels = _decode(pictures[index], channels, size)
            if isinstance(pixels, str):
                return pixels
            if not broken:
                out[index] = pixels
            return None

        every = max(1, len(pictures) // 200)
        failures = []
        for done, failure in enumerate(pool.map(fill, range(len(pictures))), start=1):
            if failure:
                failures.append(failure)
            if progress and (done % every == 0 or done == len(pictures)):
                progress("decoding images", done, len(pictures))
    if broken or failures:
        raise _broken_error(source, sorted([*broken, *failures]))
    return out


def _broken_error(source: str, problems: list[str]) -> DataError:
    count = len(problems)
    shown = problems[:NAMED] + ([f"and {count - NAMED} more"] if count > NAMED else [])
    what = "an image that cannot" if count == 1 else f"{count} images that cannot"
    fix = "replace or remove these files"
    return DataError(f"{source!r} holds {what} be read:", problems=shown, fix=fix)


def _show_two_sizes(pictures: Sequence[ImageFile], heads: Sequence[_Head]) -> list[str]:
    """Two pictures of different sizes; every picture has a head."""
    pairs = list(zip(pictures, heads, strict=True))
    first = pairs[0]
    other = next(pair for pair in pairs if pair[1].size != first[1].size)
    return [f"{picture.name}: {head.size[0]}x{head.size[1]}" for picture, head in (first, other)]


def _open(picture: ImageFile) -> Image:
    from PIL import Image

    return Image.open(io.BytesIO(picture.read()), formats=("PNG", "JPEG"))


def _read_head(picture: ImageFile) -> _Head | str:
    from PIL import Image

    try:
        with _open(picture) as image:
            width, height = image.size
            # EXIF orientation: the camera was held upright.
            turned = image.getexif().get(0x0112, 1) >= 5
            return _Head((height, width) if turned else (width, height), image.mode in _GREY)
    except (*_BROKEN, Image.DecompressionBombError) as error:
        return _reason(picture, error)


def read_size(name: str, data: bytes) -> tuple[int, int] | str:
    """Width and height of an image before it is decoded.

    Args:
        name: for messages.
        data: the bytes of its file.

    Returns:
        Pixels, upright; a sentence if it cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = _read_head(ImageFile(name, lambda: data))
    return head if isinstance(head, str) else head.size


def decode_image(name: str, data: bytes, size: int | None, shown: int) -> Pixels | str:
    """Decode one image in its own size and colours.

    Args:
        name: for messages.
        data: the bytes of its file.
        size: to which it is stretched, in pixels; None keeps its own.
        shown: side in pixels at which it is used later: a photograph of at least twice that is
            decoded at a coarser scale.

    Returns:
        uint8, (H, W, C), with one channel if it is grey; a sentence if it cannot be read.
    """
    return _decode(ImageFile(name, lambda: data), None, size, size or shown)


def _decode(
    picture: ImageFile, channels: int | None, size: int | None, shown: int | None = None
) -> Pixels | str:
    """Decode an image; ``channels`` None keeps grey images grey."""
    from PIL import Image, ImageOps

    shown = shown or size
    try:
        with _open(picture) as opened:
            image: Image.Image = opened
            channels = channels or (1 if image.mode in _GREY else 3)
            if shown and image.format == "JPEG":  # decode large photographs at a coarser scale
                image.draft(image.mode, (2 * shown, 2 * shown))
            image = ImageOps.exif_transpose(image)
            if image.mode in _DEEP:  # Pillow would clip at 255
                deep = np.asarray(image).astype(np.int64).clip(0, 65535)
                image = Image.fromarray((deep // 257).astype(np.uint8))
            if image.mode == "P" and "transparency" in image.info:
                image = image.convert("RGBA")
            image = image.convert("L" if channels == 1 else "RGB")
            if size:
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(image.height, image.width, channels)
    except (*_BROKEN, Image.DecompressionBombError) as error:
        return _reason(picture, error)


def _reason(picture: ImageFile, error: Exception) -> str:
    from PIL import UnidentifiedImageError

    reason = "not a PNG or JPEG image" if isinstance(error, UnidentifiedImageError) else str(error)
    return f"{picture.name}: {reason or type(error).__name__}"
