"""Which cells have a record that counts, and why that of another does not count any more."""

import json
from pathlib import Path

from attar.bench.cells import Cell
from attar.bench.records import FINISHED, Record, find_record
from attar.settings import flatten


def find_finished(out: Path, cell: Cell) -> Record | None:
    """The record of a cell that ran to its end and still counts (see ``find_outdated``)."""
    record = _find_ended(out, cell)
    return None if record is None or _list_changes(cell, record) else record


def find_outdated(out: Path, cell: Cell) -> list[str]:
    """Why the record of a cell that ran to its end does not count any more.

    Returns:
        The reasons in words; empty where the record counts, or where there is none.
    """
    record = _find_ended(out, cell)
    return [] if record is None else _list_changes(cell, record)


def _find_ended(out: Path, cell: Cell) -> Record | None:
    record = find_record(out, cell.name)
    return record if record is not None and record["ending"] == FINISHED else None


def _list_changes(cell: Cell, record: Record) -> list[str]:
    defaults = changed_defaults(cell, record)
    reasons = [f"made under other defaults ({', '.join(defaults)})"] if defaults else []
    return reasons + [f"made by other code of {name}" for name in changed_plugins(cell, record)]


def changed_defaults(cell: Cell, record: Record) -> list[str]:
    """Settings whose value today is not that of the record; new settings do not count."""
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
    """Packages whose source today is not that of the record.

    Packages of which the record has no source count as unchanged.
    """
    plugins = record["versions"].get("plugins", {})
    if cell.missing or not plugins:
        return []
    then = {
        name: origin["source"] for name, origin in plugins.items() if origin["source"] is not None
    }
    changed = [
        origin.name
        for name, origin in cell.plugins.items()
        if name in then and origin.source not in (None, then[name])
    ]
    return list(dict.fromkeys(changed))
