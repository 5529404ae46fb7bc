"""Uploads whose weights stay in their files and are read when they are used."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from attar.core import Upload
from attar.errors import BundleError
from attar.internal.files import Stamp, stamp


class WeightsInFile(Mapping[str, Tensor]):
    """The weights of one part of a checked upload file, each read when it is asked for.

    Args:
        path: the upload file.
        part: the part's name.
        names: the names of its tensors.
        seen: the stamp of the file while it was read and checked.

    Raises:
        BundleError: on access, if the file was changed since it was read.
    """

    def __init__(self, path: Path, part: str, names: Sequence[str], seen: Stamp) -> None:
        self._path = path
        self._part = part
        self._names = dict.fromkeys(names)
        self._stamp = seen

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        self._check()
        with safe_open(self._path, framework="pt") as file:
            weights: Tensor = file.get_tensor(f"{self._part}/{name}")
        self._check()  # it may have been exchanged after the first look
        return weights

    def _check(self) -> None:
        if stamp(self._path) != self._stamp:
            raise BundleError(
                f"{self._path} was changed while it was in use.",
                fix="start again with the file as it is now",
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def leave_in_file(
    path: Path, upload: Upload, seen: Stamp, only: Collection[str] | None = None
) -> Upload:
    """The same upload with ``WeightsInFile`` in place of its tensors.

    Args:
        path: the file that ``upload`` was read from and checked in.
        upload: its content; its tensors can be freed afterwards.
        seen: the stamp of the file while it was read.
        only: the names of the parts that are left in the file; None: all of them.
    """
    parts = dict(upload.parts)
    for name, part in upload.parts.items():
        if only is not None and name not in only:
            continue
        state = WeightsInFile(path, name, list(part.state), seen)
        parts[name] = replace(part, state=state)
    return replace(upload, parts=parts)
