"""One JSON file for each run: what it was, where and how long it ran, what came out.

Fields that may differ between two runs of the same cell on the same kind of machine are
``VOLATILE``; all others are equal, whatever the engine.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from attar.bench.grid import Cell
from attar.core import Result, Upload
from attar.errors import RunError
from attar.internal.files import write_atomic
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


def read_record(path: Path) -> Record:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read: {error}", fix="delete it; the next bench runs that cell again"
        ) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RunError(f"{path} is no record of attar bench.", fix="move it elsewhere")
    return record


def read_records(folder: Path) -> list[Record]:
    """Every record below ``folder`` that is one of ours, by name."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        if path.parent.name == "records":
            found.append(read_record(path))
    return found


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
    path = record_file(out, cell.name)
    record = read_record(path) if path.exists() else None
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
