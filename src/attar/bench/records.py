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
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch

from attar.bench.archive import SUFFIX, append_lines, cut_damage, read_lines
from attar.bench.grid import Cell
from attar.core import Result, Upload
from attar.errors import RunError
from attar.internal.files import Stamp, stamp, write_atomic
from attar.models import Evaluation
from attar.running import RunFolder
from attar.settings import flatten
from attar.version import __version__

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
FINISHED, FAILED = "finished", "failed"

Record = dict[str, Any]


def described(cell: Cell) -> Record:
    """What a run is, before it begins."""
    return {
        "format": FORMAT,
        "recipe": cell.recipe,
        "row": cell.row.label,
        "labels": dict(cell.labels),
        "key": cell.key,
        "name": cell.name,
        "method": cell.row.method,
        "given": dict(cell.settings),
        "federation": asdict(cell.federation),
        "groups": list(cell.row.groups or cell.federation.group_names),
        "student": cell.student,
        "seed": cell.seed,
        "precision": cell.precision,
        "compiled": cell.compile,
    }


@cache
def surroundings(device: str) -> Record:
    """Where a run takes place."""
    cuda = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "versions": {"attar": __version__, "torch": torch.__version__, "numpy": numpy.__version__,
                     "python": platform.python_version()},
        "commit": commit(),
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }  # fmt: skip


def of_run(cell: Cell, device: str) -> Record:
    """What a run is, where it takes place, and by whose code, where some of it is another package's."""
    place = surroundings(device)
    lent = {name: asdict(origin) for name, origin in cell.plugins.items()}
    versions = {"versions": {**place["versions"], "plugins": lent}} if lent else {}
    return described(cell) | place | versions


@cache
def commit() -> str:
    """Of the source tree that attar runs from, with a mark where files were changed since;
    ``$ATTAR_COMMIT`` where there is no git.
    """
    if told := os.environ.get("ATTAR_COMMIT"):
        return told
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", str(here.parent)) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def short_commit(text: str) -> str:
    """Its first twelve signs, and whether files were changed since."""
    number, changed, _ = text.partition("+")
    return number[:12] + changed + ("changes" if changed else "")


def evaluation_json(found: Evaluation) -> Record:
    return {
        "accuracy": found.accuracy,
        "balanced_accuracy": found.balanced_accuracy,
        "calibration_error": found.calibration_error,
        "per_class": list(found.per_class),
        "confusion": found.confusion.tolist(),
    }


def curve_of(history: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The accuracies on the way; steps of one phase follow each other."""
    return [
        {key: point[key] for key in ("phase", "step", "accuracy")}
        for point in history
        if point.get("accuracy") is not None
    ]


def thinned(history: Sequence[Mapping[str, Any]], most: int = 100) -> list[Record]:
    """Evenly spread points of each phase, its first and last among them; accuracies are in the
    curve.
    """
    kept = []
    for phase in dict.fromkeys(point["phase"] for point in history):
        points = [
            {key: value for key, value in point.items() if key != "accuracy"}
            for point in history
            if point["phase"] == phase
        ]
        every = max(1, -(-len(points) // most))
        kept += [
            point
            for place, point in enumerate(points)
            if place % every == 0 or place == len(points) - 1
        ]
    return kept


def outcome_json(models: Mapping[str, Evaluation], history: Sequence[Mapping[str, Any]]) -> Record:
    """How good the models of a result are; the first is the headline. The best on the way is
    told apart from the last.
    """
    headline = next(iter(models.values()))
    curve = curve_of(history)
    return {
        "accuracy": headline.accuracy,
        "best_on_test": max([headline.accuracy, *(point["accuracy"] for point in curve)]),
        "curve": curve,
        "history": thinned(history),
        "models": {name: evaluation_json(found) for name, found in models.items()},
    }


def arrays_json(result: Result) -> Record:
    """Weights and tables of clients and classes, as lists."""
    tables = {
        name: table.detach().cpu().double()
        for name, table in result.arrays.items()
        if table.ndim <= 2
    }
    return {name: torch.round(table, decimals=6).tolist() for name, table in tables.items()}


def clients_json(
    uploads: Sequence[Upload], files: Mapping[str, tuple[int, str]], own: Mapping[str, float]
) -> list[Record]:
    """What each client sent, and how good its own net is."""
    return [
        {
            "client": upload.client,
            "parts": {name: str(part.spec) for name, part in upload.parts.items()},
            "num_examples": upload.num_examples,
            "label_counts": None if upload.label_counts is None else list(upload.label_counts),
            "bytes": files[upload.client][0],
            "sha256": files[upload.client][1],
            "accuracy": own.get(upload.client),
        }
        for upload in uploads
    ]


def comparable(record: Record) -> Record:
    """A record without what may differ between two runs of the same cell."""
    kept = {key: value for key, value in record.items() if key not in VOLATILE}
    return json.loads(json.dumps(kept))  # type: ignore[no-any-return]


def record_file(out: Path, name: str) -> Path:
    return out / "records" / f"{name}.json"


def write_record(out: Path, record: Record) -> Path:
    path = record_file(out, record["name"])
    write_atomic(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return path


def read_record(path: Path) -> Record | None:
    """The record of a file; None where there is no such file, for example because it was packed."""
    fix = "delete it; the next bench runs that cell again"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}", fix=fix) from None
    return _parsed(text, path, fix)


def _parsed(text: str, path: Path, fix: str) -> Record:
    """The record that a file, or a line of it, holds."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}", fix=fix) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RunError(f"{path} is no record of attar bench.", fix="move it elsewhere")
    return record


def read_records(folder: Path) -> list[Record]:
    """All records in folders ``records`` below ``folder``, by name; each has a file of its own
    or is packed.
    """
    found: dict[Path, Record] = {}
    for home in _homes(folder):
        # Files first: while another process packs, a record is in both places before it leaves the
        # first.
        own = {path: read_record(path) for path in home.glob("*.json")}
        packed = {home / f"{name}.json": one.record for name, one in _packed(home).items()}
        found |= packed | {path: record for path, record in own.items() if record is not None}
    return [found[path] for path in sorted(found)]


@dataclass(frozen=True)
class Packing:
    """What ``pack_records`` did."""

    records: int  # that had files of their own and have none now
    files: tuple[Path, ...]  # to which records were appended
    damage: tuple[str, ...]  # a sentence for each packed file that could not be read to its end


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
    for home in _homes(folder):
        for file in sorted(home.glob(f"*{SUFFIX}")):
            cut = cut_damage(file)
            damage += [] if cut is None else [cut]
        stamps = {path: stamp(path) for path in sorted(home.glob("*.json"))}
        found = {path: record for path in stamps if (record := read_record(path)) is not None}
        own = {path: record for path, record in found.items() if record["ending"] == FINISHED}
        for file, lines in _to_append(home, own.values()).items():
            append_lines(file, lines)
            files.append(file)
        for path in own:
            if stamp(path) == stamps[path]:
                path.unlink()
                moved += 1
    return Packing(moved, tuple(files), tuple(damage))


def _to_append(home: Path, records: Iterable[Record]) -> dict[Path, list[str]]:
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
    """``accord/table1`` -> ``records/accord-table1.jsonl.xz``."""
    return out / "records" / f"{recipe.replace('/', '-')}{SUFFIX}"


@dataclass(frozen=True)
class _Packed:
    """A record as a line of a packed file."""

    file: Path
    line: str

    @property
    def record(self) -> Record:
        return _parsed(self.line, self.file, "take it from a copy, such as git's")


def _homes(folder: Path) -> list[Path]:
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
    return {one.record["name"]: one for one in lines}


def forget_if_finished(run: Path) -> None:
    """A run that came to its end and was killed before its record was written: quicker done
    again than read back.
    """
    if RunFolder(run).finished:
        shutil.rmtree(run)


def finished(out: Path, cell: Cell) -> Record | None:
    """The record of a cell that ran to its end; None where there is none, or where it does not
    count any more (``outdated``).
    """
    record = _ended(out, cell)
    return None if record is None or _changes(cell, record) else record


def outdated(out: Path, cell: Cell) -> list[str]:
    """Why the record of a cell that ran to its end does not count any more; empty where it does,
    or where there is none.
    """
    record = _ended(out, cell)
    return [] if record is None else _changes(cell, record)


def _ended(out: Path, cell: Cell) -> Record | None:
    record = read_record(record_file(out, cell.name))
    if record is None:
        packed = _packed(out / "records").get(cell.name)
        record = None if packed is None else packed.record
    return record if record is not None and record["ending"] == FINISHED else None


def _changes(cell: Cell, record: Record) -> list[str]:
    defaults = changed_defaults(cell, record)
    told = [f"made under other defaults ({', '.join(defaults)})"] if defaults else []
    return told + [f"made by other code of {name}" for name in changed_plugins(cell, record)]


def changed_defaults(cell: Cell, record: Record) -> list[str]:
    """Settings whose value today is not the one of the record; settings that are new do not count."""
    then = record.get("settings") or {}
    if cell.missing or not then:
        return []
    now = json.loads(json.dumps(flatten(cell.method())))
    return [
        f"{key}: {then[key]} then, {value} now"
        for key, value in now.items()
        if key in then and then[key] != value
    ]


def changed_plugins(cell: Cell, record: Record) -> list[str]:
    """Packages whose source today is not the one of the record; where it says nothing of them,
    or cannot, they count as they were.
    """
    then = record["versions"].get("plugins", {})
    if cell.missing or not then:
        return []
    sources = {name: told["source"] for name, told in then.items() if told["source"] is not None}
    changed = [
        origin.name
        for name, origin in cell.plugins.items()
        if name in sources and origin.source not in (None, sources[name])
    ]
    return list(dict.fromkeys(changed))
