"""Records and recipes as the plain values that the page draws."""

import base64
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attar.bench import (
    FINISHED,
    CostToAccuracy,
    Line,
    Recipe,
    Record,
    bytes_to_accuracy,
    short_commit,
    table_of,
)
from attar.federation import cumulative_bytes

MOST_CLASSES = 30  # of a confusion matrix that a page can show
MOST_PICTURES = 3_000_000  # bytes of galleries in one page
STEPPED = ("steps",)  # settings that count steps; others count epochs
NO_LABEL = "–"  # of an axis that a run's recipe did not have then


def facts_of(records: Sequence[Record], recipes: Sequence[Recipe], folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON can hold it.

    Args:
        records: All of them; failed ones are only counted.
        recipes: Those whose tables are shown.
        folder: Holds the pictures, beside the records.
    """
    finished = sorted(
        (record for record in records if record["ending"] == FINISHED),
        key=lambda record: record["seed"],
    )
    federations = _federations(finished)
    pictures = _Pictures(folder)
    costs = bytes_to_accuracy(finished)
    tables = [(recipe, table_of(recipe, finished)) for recipe in recipes]
    shown = {record["key"] for _, lines in tables for line in lines for record in line.records}
    others = [record for record in finished if record["key"] not in shown]
    return {
        "summary": _summary(records, finished),
        "tables": [
            *(_table(recipe, lines) for recipe, lines in tables),
            *_other_tables(others, finished, {recipe.name for recipe in recipes}),
        ],
        "federations": [
            {key: value for key, value in federation.items() if key != "key"}
            for federation in federations.values()
        ],
        "runs": [
            _run(record, federations, pictures, costs.get(record["key"])) for record in finished
        ],
        "left_out": pictures.left_out,
    }


def _summary(records: Sequence[Record], finished: Sequence[Record]) -> dict[str, Any]:
    return {
        "runs": len(finished),
        "failed": len(records) - len(finished),
        "seconds": round(sum(record["seconds"] for record in finished), 1),
        "devices": sorted({record["device"] for record in finished}),
        "precisions": sorted({record["precision"] for record in finished}),
        "commits": sorted({short_commit(record["commit"]) for record in finished}),
        "versions": sorted({text for record in finished for text in _versions(record["versions"])}),
    }


def _versions(versions: dict[str, Any]) -> list[str]:
    """Our versions, and those of the packages that a method or a net came from."""
    plugins = [
        f"{plugin['distribution']} {plugin['version']}"
        for plugin in versions.get("plugins", {}).values()
        if plugin["distribution"] is not None
    ]
    return [f"attar {versions['attar']}, torch {versions['torch']}", *plugins]


def _table(recipe: Recipe, lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.title,
        "source": recipe.source,
        "notes": " ".join(recipe.notes.split()),
        "axes": {axis: list(labels) for axis, labels in recipe.axes.items()},
        "lines": [_line(line) for line in lines],
    }


def _other_tables(
    records: Sequence[Record], finished: Sequence[Record], recipes: Collection[str]
) -> list[dict[str, Any]]:
    """Tables of the runs that are in no recipe's table.

    They are the demo's, of recipes that are not at hand, or ran with other settings.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["recipe"], []).append(record)
    return [
        _other_table(
            name,
            group,
            [record for record in finished if record["recipe"] == name],
            name in recipes,
        )
        for name, group in groups.items()
    ]


def _other_table(
    name: str, records: Sequence[Record], of_recipe: Sequence[Record], has_recipe: bool
) -> dict[str, Any]:
    """The table of some runs of one recipe; ``of_recipe``: all its runs."""
    cells: dict[tuple[str, tuple[tuple[str, str], ...]], list[Record]] = {}
    for record, row in _label_rows(records, of_recipe):
        cells.setdefault((row, tuple(record["labels"].items())), []).append(record)
    lines = [_line_of_runs(name, row, dict(place), runs) for (row, place), runs in cells.items()]
    # A recipe may have got an axis since.
    names = list(dict.fromkeys(axis for line in lines for axis in line["labels"]))
    lines = [
        {**line, "labels": {axis: line["labels"].get(axis, NO_LABEL) for axis in names}}
        for line in lines
    ]
    title = f"{name}, other settings" if has_recipe else name
    return {
        "name": title,
        "title": title,
        "source": "not the recipe's own" if has_recipe else "no recipe",
        "notes": "",
        "axes": {
            axis: list(dict.fromkeys(line["labels"][axis] for line in lines)) for axis in names
        },
        "lines": lines,
    }


def _line_of_runs(
    recipe: str, row: str, labels: dict[str, str], runs: Sequence[Record]
) -> dict[str, Any]:
    return _line(
        Line(
            recipe,
            labels,
            row,
            runs[0]["method"],
            None,
            None,
            tuple(100 * run["accuracy"] for run in runs),
            tuple(100 * run["best_on_test"] for run in runs),
            tuple(runs),
            "",
            runs[0]["oracle"],
        )
    )


def _label_rows(records: Sequence[Record], of_recipe: Sequence[Record]) -> list[tuple[Record, str]]:
    """Each record with the label of its row.

    Where runs of one row had different settings, the label names them.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in of_recipe:
        rows.setdefault(record["row"], []).append(_settings_given(record))
    differing = {row: _differing_keys(settings) for row, settings in rows.items()}
    labelled = []
    for record in records:
        settings = _settings_given(record)
        words = ", ".join(
            f"{key} {settings.get(key, 'not given')}" for key in differing[record["row"]]
        )
        labelled.append((record, f"{record['row']} ({words})" if words else record["row"]))
    return labelled


def _differing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not equal in all."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({json.dumps(values.get(key)) for values in settings}) > 1]


def _settings_given(record: Record) -> dict[str, Any]:
    """The settings that a run was given, of the method and of the clients' training."""
    federation = record["federation"]
    training = {f"local {key}": value for key, value in federation.get("training", {}).items()}
    for name, group in federation.get("groups", {}).items():
        training |= {f"{name} {key}": value for key, value in group["training"].items()}
    return {**record.get("given", {}), **training}


def _line(line: Line) -> dict[str, Any]:
    return {
        "labels": dict(line.labels),
        "row": line.row,
        "seed": line.seed,
        "published": None if line.published is None else line.published.value,
        "published_std": None if line.published is None else line.published.deviation,
        # Not rounded: the page rounds once, as the terminal does.
        "mean": line.mean,
        "std": line.deviation,
        "n": len(line.accuracies),
        "difference": line.difference,
        "best": line.best,
        "status": line.status,
        "oracle": line.oracle,
    }


def _federations(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """The label counts of the clients, once for each federation and seed."""
    federations: dict[str, dict[str, Any]] = {}
    for record in records:
        key = _federation_key(record)
        counts = [client["label_counts"] for client in record["clients"]]
        if key in federations or any(row is None for row in counts):
            continue
        federations[key] = {
            "key": key,
            "number": len(federations),
            "title": f"{record['federation']['data']}, {record['federation']['rule']}, "
            f"{len(counts)} clients, seed {record['seed']}",
            "clients": [client["client"] for client in record["clients"]],
            "classes": record["classes"],
            "counts": counts,
        }
    return federations


def _federation_key(record: Record) -> str:
    return " ".join(client["sha256"] for client in record["clients"])


def _run(
    record: Record,
    federations: dict[str, dict[str, Any]],
    pictures: "_Pictures",
    cost: CostToAccuracy | None,
) -> dict[str, Any]:
    headline = next(iter(record["models"].values()))
    few = len(record["classes"]) <= MOST_CLASSES
    federation = federations.get(_federation_key(record))
    place = ", ".join(f"{axis} {label}" for axis, label in record["labels"].items())
    return {
        "row": record["row"],
        "place": place or f"{record['federation']['data']}, {record['federation']['rule']}",
        "recipe": record["recipe"],
        "seed": record["seed"],
        "oracle": record["oracle"],
        "federation": None if federation is None else federation["number"],
        "accuracy": _percent(record["accuracy"]),
        "best": _percent(record["best_on_test"]),
        "ensemble": _percent(record["ensemble_accuracy"]),
        "clients": [client["client"] for client in record["clients"]],
        "alone": [_percent(client["accuracy"]) for client in record["clients"]],
        "classes": record["classes"],
        "per_class": [_percent(value) for value in headline["per_class"]],
        "confusion": headline["confusion"] if few else None,
        "curve": _curve(record),
        "unit": "steps" if any(name in STEPPED for name in record["settings"]) else "epochs",
        "bytes": record["bytes_up"] + record["bytes_down"],
        "rounds": _rounds(record.get("rounds", [])),
        "reached": None if cost is None else asdict(cost) | {"accuracy": _percent(cost.accuracy)},
        "seconds": record["seconds"],
        "phases": record["seconds_by_phase"],
        "arrays": record["arrays"],
        "gallery": pictures.of(record),
    }


def _curve(record: Record) -> list[list[float]]:
    """[step, accuracy in percent] of the last phase, which trains the student."""
    curve = record["curve"]
    last = curve[-1]["phase"] if curve else ""
    return [
        [point["step"], round(100 * point["accuracy"], 2)]
        for point in curve
        if point["phase"] == last
    ]


def _rounds(rounds: Sequence[Record]) -> list[list[float]]:
    """[bytes until then, accuracy in percent] after each round."""
    return [
        [sent, round(100 * entry["accuracy"], 2)]
        for entry, sent in zip(rounds, cumulative_bytes(rounds), strict=True)
        if entry["accuracy"] is not None
    ]


class _Pictures:
    """Galleries as data URLs, up to ``MOST_PICTURES`` bytes in all."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: path for path in folder.rglob("*.png") if path.parent.name == "records"
        }
        self._spent = 0  # bytes
        self.left_out = 0  # pictures

    def of(self, record: Record) -> dict[str, Any] | None:
        gallery = record.get("gallery")
        path = None if gallery is None else self._files.get(gallery["file"])
        if gallery is None or path is None:
            return None
        data = path.read_bytes()
        if self._spent + len(data) > MOST_PICTURES:
            self.left_out += 1
            return None
        self._spent += len(data)
        return {
            "src": f"data:image/png;base64,{base64.b64encode(data).decode()}",
            "steps": gallery["steps"],
        }


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)
