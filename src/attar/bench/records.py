"""One record for each run: what it was, where and how long it ran, what came out.

A run writes its record as a file of its own, ``records/NAME.json``. ``pack_records`` moves
finished records into one file for each recipe, ``records/RECIPE.jsonl.xz`` (``archive.py``).
Both are read. A record is known by its name, which ends in its key, so several recipes share it
in whatever file it is. A file of its own counts before a packed line, a later line before an
earlier one.

Fields that may differ between two runs of the same cell on the same kind of machine are
``VOLATILE``; all others are equal, whatever the engine.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attar.bench.archive import SUFFIX, append_lines, cut_damage, read_lines
from attar.errors import RunError
from attar.internal.files import Stamp, stamp, write_atomic
from attar.running import RunFolder

FORMAT = "attar-record/1"
VOLATILE = (
    "seconds",
    "seconds_by_phase",
    "seconds_of_training",
    "engine",
    "host",
    "commit",
    "recipe",
)
FINISHED = "finished"
FAILED = "failed"
MOST_FILES = 2048  # whose text is remembered

Record = dict[str, Any]


def drop_volatile(record: Record) -> Record:
    """A record without what may differ between two runs of the same cell."""
    stable = {key: value for key, value in record.items() if key not in VOLATILE}
    return json.loads(json.dumps(stable))  # type: ignore[no-any-return]


def record_file(out: Path, name: str) -> Path:
    """Where the record of a run has a file of its own."""
    return out / "records" / f"{name}.json"


def write_record(out: Path, record: Record) -> Path:
    """Write a record as a file of its own in a bench's folder.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    path = record_file(out, record["name"])
    write_atomic(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return path


def read_record(path: Path) -> Record | None:
    """The record of a file; None where there is no such file, for example because it was packed.

    A file is read once until it changes.

    Raises:
        RunError: The file cannot be read, or holds something else.
    """
    fix = "delete it; the next bench runs that cell again"
    try:
        text = _read_text(path, stamp(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}", fix=fix) from None
    return _parse_record(text, path, fix)


@lru_cache(maxsize=MOST_FILES)
def _read_text(path: Path, _stamp: Stamp | None) -> str:
    return path.read_text()


def _parse_record(text: str, path: Path, fix: str) -> Record:
    """The record that a file, or a line of it, holds."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}", fix=fix) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RunError(f"{path} is no record of attar bench.", fix="move it elsewhere")
    return record


def find_record(out: Path, name: str) -> Record | None:
    """The record of a run in a bench's folder, as a file of its own or packed; None: there is none.

    Raises:
        RunError: A file cannot be read.
    """
    record = read_record(record_file(out, name))
    if record is not None:
        return record
    packed = _packed(out / "records").get(name)
    return None if packed is None else packed.record


def read_records(folder: Path) -> list[Record]:
    """All records in folders ``records`` below ``folder``, in the order of their names.

    Raises:
        RunError: A record cannot be read.
    """
    found: dict[Path, Record] = {}
    for home in _record_folders(folder):
        # Files first: while another process packs, a record is in both places before it leaves the
        # first.
        single = {path: read_record(path) for path in home.glob("*.json")}
        packed = {home / f"{name}.json": line.record for name, line in _packed(home).items()}
        found |= packed | {path: record for path, record in single.items() if record is not None}
    return [found[path] for path in sorted(found)]


def take_records(source: Path, folder: Path) -> int:
    """Copy finished records from a bench's folder to another, as files of their own.

    Pictures stay where they are. A record that the other folder has, word for word, is left out.

    Args:
        source: A folder below which records are looked for.
        folder: The bench's folder that gets them.

    Returns:
        Number of records that were copied.

    Raises:
        RunError: A record cannot be read.
    """
    taken = 0
    for record in read_records(source):
        if record["ending"] == FINISHED and find_record(folder, record["name"]) != record:
            write_record(folder, record)
            taken += 1
    return taken


@dataclass(frozen=True)
class Packing:
    """What ``pack_records`` did.

    Attributes:
        records: Number of records that had files of their own and have none now.
        files: The files to which records were appended.
        damage: A sentence for each packed file that could not be read to its end.
    """

    records: int
    files: tuple[Path, ...]
    damage: tuple[str, ...]


def pack_records(folder: Path) -> Packing:
    """Move finished records from files of their own into one file for each recipe.

    In every folder ``records`` below ``folder``. A record goes to the packed file that has an
    earlier record of its name, otherwise to that of the recipe that ran it. Records of runs that
    failed keep their files, because the next bench runs these cells again.

    A file is removed only when its record is on disk in the packed file and nobody has written
    to it since. So a process that is killed loses nothing: a record may then exist in both
    forms, and the next call removes the first. Only one process at a time may pack a folder; a
    bench may run in it meanwhile.

    Raises:
        RunError: A record cannot be read. Nothing of its folder is moved then.
    """
    moved = 0
    files: list[Path] = []
    damage: list[str] = []
    for home in _record_folders(folder):
        for file in sorted(home.glob(f"*{SUFFIX}")):
            cut = cut_damage(file)
            damage += [] if cut is None else [cut]
        stamps = {path: stamp(path) for path in sorted(home.glob("*.json"))}
        records = {path: record for path in stamps if (record := read_record(path)) is not None}
        finished = {
            path: record for path, record in records.items() if record["ending"] == FINISHED
        }
        for file, lines in _lines_to_append(home, finished.values()).items():
            append_lines(file, lines)
            files.append(file)
        for path in finished:
            if stamp(path) == stamps[path]:
                path.unlink()
                moved += 1
    return Packing(moved, tuple(files), tuple(damage))


def _lines_to_append(home: Path, records: Iterable[Record]) -> dict[Path, list[str]]:
    """The lines that are not packed yet, by the file to which they belong."""
    packed = _packed(home)
    lines: dict[Path, list[str]] = {}
    for record in records:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False)
        before = packed.get(record["name"])
        file = packed_file(home.parent, record["recipe"]) if before is None else before.file
        if before is None or before.line != line:
            lines.setdefault(file, []).append(line)
    return lines


def packed_file(out: Path, recipe: str) -> Path:
    """The file of a recipe's packed records: ``records/accord-table1.jsonl.xz``."""
    return out / "records" / f"{recipe.replace('/', '-')}{SUFFIX}"


@dataclass(frozen=True)
class _Packed:
    """A record as a line of a packed file."""

    file: Path
    line: str

    @property
    def record(self) -> Record:
        return _parse_record(self.line, self.file, "take it from a copy, such as git's")


def _record_folders(folder: Path) -> list[Path]:
    """The folders ``records`` below ``folder``, which may be one itself."""
    homes = (folder, *sorted(folder.rglob("records")))
    return [home for home in homes if home.name == "records" and home.is_dir()]


def _packed(home: Path) -> Mapping[str, _Packed]:
    """The packed records of a folder by name, the last line of each."""
    return _index(tuple((path, stamp(path)) for path in sorted(home.glob(f"*{SUFFIX}"))))


@lru_cache(maxsize=4)
def _index(files: tuple[tuple[Path, Stamp | None], ...]) -> Mapping[str, _Packed]:
    """Made once until a file changes: a bench asks for its cells one by one."""
    lines = [_Packed(path, line) for path, _ in files for line in read_lines(path)]
    return {line.record["name"]: line for line in lines}


def remove_finished_run(run: Path) -> None:
    """Remove the folder of a run that ended and was killed before its record was written.

    To run it again is quicker than to read its outcome back.
    """
    if RunFolder(run).finished:
        shutil.rmtree(run)
