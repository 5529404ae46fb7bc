"""Data sources by name, and three forms for one's own files.

A source is written ``NAME``, ``npz:FILE``, ``folder:DIR`` or ``hf:NAME``, with options after a
question mark: ``folder:pets?size=64``. Files of named sources are in ``<root>/<folder>/``,
where the root is ``$ATTAR_DATA`` or ``attar`` in the user's cache folder; what is missing is
downloaded. ``<root>/<name>.npz`` (``:`` written ``-``) has precedence, for any name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from attar.data.catalogue import SOURCES, Request
from attar.data.dataset import Dataset, Pixels, Progress, resize
from attar.data.fetch import data_root, locate
from attar.data.folders import read_folder, read_unlabelled
from attar.data.hub import OPTIONS as HUB_OPTIONS
from attar.data.hub import read_hub
from attar.data.npz import read_npz
from attar.errors import DataError

FORMS = {
    "npz:FILE": "x_train, y_train, x_test, y_test (or x, y): uint8 images (N, H, W, C), "
    "whole labels; perhaps class names",
    "folder:DIR": "one sub-folder per class with PNG or JPEG files, "
    "or train/ and test/ made like that",
    "hf:NAME": "an image set of the Hugging Face hub (pip install 'attar[hf]'); "
    "?image=COLUMN&label=COLUMN&config=NAME",
}
"""How to name one's own files, and what they must hold."""


@dataclass(frozen=True)
class SourceInfo:
    """One line of ``attar ls data``.

    Attributes:
        name: of the source.
        summary: what it is, in a line.
        shape: of its images, (C, H, W).
        classes: how many.
        licence: as its authors state it.
        available: whether it is on this machine.
    """

    name: str
    summary: str
    shape: tuple[int, int, int]
    classes: int
    licence: str
    available: bool


def load_data(source: str, progress: Progress | None = None) -> Dataset:
    """Load the images of a source.

    Args:
        source: for example ``"cifar10"`` or ``"folder:pets?size=64"``.
        progress: told about downloads and decoding; None for nobody.

    Returns:
        Training and test part as uint8 arrays.

    Raises:
        DataError: if there is no such source, or its files are missing or damaged.
    """
    name, options = parse_source(source)
    kind, _, rest = name.partition(":")
    known = HUB_OPTIONS if kind == "hf" else ("size",)
    if unknown := [key for key in options if key not in known]:
        raise DataError(
            f"{source!r} has unknown options:",
            problems=unknown,
            fix=f"known are {', '.join(known)}",
        )
    size = parse_size(source, options)
    if kind in ("npz", "folder", "hf") and not rest:
        raise DataError(f"{source!r} does not say which.", fix=f"write {', '.join(FORMS)}")
    if kind == "folder":
        dataset = read_folder(Path(rest).expanduser(), source, size, progress)
    elif kind == "hf":
        dataset = read_hub(rest, source, options, size, progress)
    elif kind == "npz":
        dataset = read_npz(Path(rest).expanduser(), source)
    else:
        dataset = _load_named(name, source, size, progress)
    return resize(dataset, size) if size else dataset


def _load_named(name: str, source: str, size: int | None, progress: Progress | None) -> Dataset:
    entry = SOURCES.get(name)
    if (arrays := _find_npz(name)) is not None:
        classes = entry.classes if entry and isinstance(entry.classes, tuple) else ()
        return read_npz(arrays, source, classes)
    if entry is None:
        guess = _guess_meaning(name)
        question = f" Did you mean {guess!r}?" if guess else ""
        if guess and ":" in guess:  # a path that is there
            raise DataError(
                f"There is no data source {name!r}.{question}",
                fix=f"write {guess}; `attar ls data` names all forms",
            )
        file = f"{data_root() / name}.npz"
        raise DataError(
            f"There is no data source {name!r}.{question}",
            problems=[f"{form}: {text}" for form, text in FORMS.items()],
            fix=f"use one of these forms, a file {file}, or a name: {', '.join(SOURCES)}",
        )
    paths = locate(name, entry.home, entry.files, progress)
    return entry.read(Request(source, paths, size, progress))


def _guess_meaning(name: str) -> str | None:
    """What somebody who wrote ``name`` may have meant: a path without its form, a similar name."""
    for text in (name, name.partition(":")[2]):
        path = Path(text).expanduser()
        if text and path.is_dir():
            return f"folder:{text}"
        if path.suffix == ".npz" and path.is_file():
            return f"npz:{text}"
    return next(iter(get_close_matches(name, SOURCES, 1)), None)


def _find_npz(name: str) -> Path | None:
    if any(mark in name for mark in "/\\"):
        return None
    path = data_root() / f"{name.replace(':', '-')}.npz"
    return path if path.is_file() else None


def parse_source(source: str) -> tuple[str, dict[str, str]]:
    """Split ``NAME?key=value&key=value`` into name and options.

    Raises:
        DataError: with every option that is not ``key=value``.
    """
    name, _, text = source.partition("?")
    items = [item.partition("=") for item in text.split("&") if item]
    if bad := [key for key, sign, value in items if not (key and sign and value)]:
        raise DataError(
            f"Options of {source!r} that are not key=value:",
            problems=bad,
            fix="write NAME?key=value&key=value",
        )
    return name, {key: value for key, _, value in items}


def load_unlabelled(source: str, progress: Progress | None = None) -> Pixels:
    """Load all images of a folder and the folders below it, without labels.

    Args:
        source: ``images:DIR`` or ``images:DIR?size=64``.
        progress: told about decoding; None for nobody.

    Returns:
        uint8, (N, H, W, C).

    Raises:
        DataError: if there is no such folder, or images cannot be read.
    """
    name, options = parse_source(source)
    if unknown := [key for key in options if key != "size"]:
        raise DataError(f"{source!r} has unknown options:", problems=unknown, fix="known is size")
    path = Path(name.partition(":")[2]).expanduser()
    return read_unlabelled(path, source, parse_size(source, options), progress)


def parse_size(source: str, options: Mapping[str, str]) -> int | None:
    """The option ``size`` of a source in pixels; None if it is not given."""
    if "size" not in options:
        return None
    return parse_whole_option(source, options, "size", 1024, what="number of pixels")


def parse_whole_option(
    source: str,
    options: Mapping[str, str],
    key: str,
    most: int,
    otherwise: int = 0,
    *,
    what: str = "whole number",
) -> int:
    """Read an option of a source that is a whole number from 1.

    Args:
        source: for messages.
        options: of the source.
        key: the option.
        most: the largest value.
        otherwise: the value if it is not given.
        what: the word for the number in messages.

    Raises:
        DataError: if it is no such number.
    """
    text = options.get(key, str(otherwise))
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise DataError(
            f"{source!r}: {key}={text} is not a {what} from 1 to {most}.",
            fix=f"for example ?{key}={min(64, most)}",
        )
    return int(text)


def is_available(name: str) -> bool:
    """Whether a named source can be read on this machine without a download."""
    if _find_npz(name) is not None:
        return True
    entry = SOURCES.get(name)
    return entry is not None and all(file.at(entry.home) is not None for file in entry.files)


def list_sources() -> list[SourceInfo]:
    """List every named source, for ``attar ls data``."""
    return [
        SourceInfo(
            name=entry.name,
            summary=entry.summary,
            shape=entry.shape,
            classes=entry.classes if isinstance(entry.classes, int) else len(entry.classes),
            licence=entry.licence,
            available=is_available(entry.name),
        )
        for entry in SOURCES.values()
    ]
