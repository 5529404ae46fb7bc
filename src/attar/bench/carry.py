"""One file with what the next piece of machine time needs of a bench's folder.

A machine may lend little room for what leaves it. Records come first, then, in the order of the
queue, the clients of the cells that are left and what is done of these cells. A cell that was
begun goes on only from the same clients, so it is of no use without them.
"""

import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from attar.bench.cells import Cell
from attar.bench.clients import bundle_folder

ALWAYS = ("queue.json", "recipes", "records", "measured")
LOCK = ".training.lock"
PARTIAL = ".part"  # ending of what a killed process was writing
HEADER = 1024  # bytes of a file's header in an archive, and of what fills its last block


@dataclass(frozen=True)
class Carried:
    """What was packed.

    Attributes:
        bytes: The size of the file.
        left_out: Folders that the cells need and that were too large, beside the bench's folder.
    """

    bytes: int
    left_out: tuple[str, ...]


def pack_bench(cells: Iterable[Cell], out: Path, file: Path, most_bytes: float = inf) -> Carried:
    """Pack what is needed to go on with some cells; ``tar -xf FILE -C FOLDER`` unpacks it.

    Args:
        cells: The cells that are left, the most important first.
        out: The bench's folder.
        file: The archive.
        most_bytes: What does not fit is left out, but records are always packed.
    """
    chosen = [path for name in ALWAYS for path in _files(out / name)]
    total = _size(chosen)
    packed: set[Path] = set()
    left_out: list[Path] = []
    for cell in cells:
        runs = sorted((out / "runs").glob(f"{cell.name}-*"))
        clients = [bundle_folder(out, each) for each in cell.client_sets]
        complete = True
        for folders in (clients, runs):
            new = [folder for folder in folders if folder not in packed and folder.exists()]
            files = [path for folder in new for path in _files(folder)]
            complete = complete and total + _size(files) <= most_bytes
            if not complete:
                left_out += new
                continue
            chosen += files
            total += _size(files)
            packed.update(new)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    with tarfile.open(partial, "w") as archive:
        for path in chosen:
            archive.add(path, path.relative_to(out).as_posix())
    partial.replace(file)
    names = dict.fromkeys(path.relative_to(out).as_posix() for path in left_out)
    return Carried(file.stat().st_size, tuple(names))


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [
        each for each in found if each.is_file() and each.name != LOCK and each.suffix != PARTIAL
    ]


def _size(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size + HEADER for file in files)
