"""Where images come from: one table of named sources, and three forms for one's own files.

A source is written ``NAME``, ``npz:FILE``, ``folder:DIR`` or ``hf:NAME``, with options after a
question mark: ``folder:pets?size=64``. Files of named sources live in ``<root>/<folder>/``,
where the root is ``$ATTAR_DATA`` or ``attar`` in the user's cache folder; what is missing is
fetched. ``<root>/<name>.npz`` (``:`` written ``-``) comes first, for any name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from attar.data.catalogue import SOURCES, Request
from attar.data.dataset import Dataset, Pixels, Progress, resized
from attar.data.fetch import data_root, locate
from attar.data.folders import read_folder, read_unlabelled
from attar.data.hub import OPTIONS as HUB_OPTIONS
from attar.data.hub import read_hub
from attar.data.npz import read_npz
from attar.errors import DataError

FORMS = {
    "npz:FILE": "x_train, y_train, x_test, y_test (or x, y): uint8 images (N, H, W, C), whole labels; perhaps class names",
    "folder:DIR": "one sub-folder per class with PNG or JPEG files, or train/ and test/ made like that",
    "hf:NAME": "an image set of the Hugging Face hub (pip install 'attar[hf]'); ?image=COLUMN&label=COLUMN&config=NAME",
}


@dataclass(frozen=True)
class SourceInfo:
    """One line of ``attar ls data``."""

    name: str
    summary: str
    shape: tuple[int, int, int]
    classes: int
    licence: str
    available: bool  # on this machine, without fetching


def load_data(source: str, progress: Progress | None = None) -> Dataset:
    """The images of a source, as uint8 arrays; ``progress(what, done, total)`` hears of fetching
    and decoding.
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
    size = _size(source, options)
    if kind in ("npz", "folder", "hf") and not rest:
        raise DataError(f"{source!r} does not say which.", fix=f"write {', '.join(FORMS)}")
    if kind == "folder":
        dataset = read_folder(Path(rest).expanduser(), source, size, progress)
    elif kind == "hf":
        dataset = read_hub(rest, source, options, size, progress)
    elif kind == "npz":
        dataset = read_npz(Path(rest).expanduser(), source)
    else:
        dataset = _named(name, source, size, progress)
    return resized(dataset, size) if size else dataset


def _named(name: str, source: str, size: int | None, progress: Progress | None) -> Dataset:
    entry = SOURCES.get(name)
    if (arrays := _npz(name)) is not None:
        classes = entry.classes if entry and isinstance(entry.classes, tuple) else ()
        return read_npz(arrays, source, classes)
    if entry is None:
        meant = _meant(name)
        raise DataError(
            f"There is no data source {name!r}.{f' Did you mean {meant!r}?' if meant else ''}",
            problems=[f"{form}: {text}" for form, text in FORMS.items()],
            fix=f"one of these forms, a file {data_root() / name}.npz, or a name: {', '.join(SOURCES)}",
        )
    paths = locate(name, entry.home, entry.files, progress)
    return entry.read(Request(source, paths, size, progress))


def _meant(name: str) -> str | None:
    """What somebody who wrote ``name`` may have had in mind: a path that is there without its
    form, or a name with a slip.
    """
    for text in (name, name.partition(":")[2]):
        path = Path(text).expanduser()
        if text and path.is_dir():
            return f"folder:{text}"
        if path.suffix == ".npz" and path.is_file():
            return f"npz:{text}"
    return next(iter(get_close_matches(name, SOURCES, 1)), None)


def _npz(name: str) -> Path | None:
    if any(mark in name for mark in "/\\"):
        return None
    path = data_root() / f"{name.replace(':', '-')}.npz"
    return path if path.is_file() else None


def parse_source(source: str) -> tuple[str, dict[str, str]]:
    """``NAME?key=value&key=value`` as a name and its options."""
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
    """``images:DIR`` or ``images:DIR?size=64``: uint8 (N, H, W, C) of all images there and below."""
    name, options = parse_source(source)
    if unknown := [key for key in options if key != "size"]:
        raise DataError(f"{source!r} has unknown options:", problems=unknown, fix="known is size")
    return read_unlabelled(
        Path(name.partition(":")[2]).expanduser(), source, _size(source, options), progress
    )


def _size(source: str, options: Mapping[str, str]) -> int | None:
    return (
        whole_option(source, options, "size", 1024, what="number of pixels")
        if "size" in options
        else None
    )


def whole_option(
    source: str,
    options: Mapping[str, str],
    key: str,
    most: int,
    otherwise: int = 0,
    *,
    what: str = "whole number",
) -> int:
    """An option that is a whole number from 1 to ``most``; ``otherwise`` where it was not given."""
    text = options.get(key, str(otherwise))
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise DataError(
            f"{source!r}: {key}={text} is not a {what} from 1 to {most}.",
            fix=f"for example ?{key}={min(64, most)}",
        )
    return int(text)


def available(name: str) -> bool:
    """Whether a named source can be read here without fetching."""
    if _npz(name) is not None:
        return True
    entry = SOURCES.get(name)
    return entry is not None and all(file.at(entry.home) is not None for file in entry.files)


def list_sources() -> list[SourceInfo]:
    """Every named source, for ``attar ls data``."""
    return [
        SourceInfo(
            entry.name,
            entry.summary,
            entry.shape,
            entry.classes if isinstance(entry.classes, int) else len(entry.classes),
            entry.licence,
            available(entry.name),
        )
        for entry in SOURCES.values()
    ]
