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
    """Everything on the page. Pictures come from beside the records."""
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
            {key: value for key, value in one.items() if key != "key"}
            for one in federations.values()
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


def _versions(told: dict[str, Any]) -> list[str]:
    """Ours, and those of the packages that a method or a net came from."""
    lent = [one for one in told.get("plugins", {}).values() if one["distribution"] is not None]
    return [
        f"attar {told['attar']}, torch {told['torch']}",
        *(f"{one['distribution']} {one['version']}" for one in lent),
    ]


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
    """Runs that are no number of a recipe's table: the demo's, those of recipes that are not at
    hand or ran with other settings.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["recipe"], []).append(record)
    tables = []
    for name, found in groups.items():
        labels = _told_apart(found, [record for record in finished if record["recipe"] == name])
        lines = []
        for row, place in dict.fromkeys(
            (label, tuple(record["labels"].items())) for record, label in labels
        ):
            ran = [
                record
                for record, label in labels
                if label == row and tuple(record["labels"].items()) == place
            ]
            accuracies = tuple(100 * record["accuracy"] for record in ran)
            bests = tuple(100 * record["best_on_test"] for record in ran)
            first = ran[0]
            line = Line(
                name,
                dict(place),
                row,
                first["method"],
                None,
                None,
                accuracies,
                bests,
                tuple(ran),
                "",
                first["oracle"],
            )
            lines.append(_line(line))
        names = list(
            dict.fromkeys(axis for one in lines for axis in one["labels"])
        )  # a recipe may have got an axis since
        lines = [
            {**one, "labels": {axis: one["labels"].get(axis, NO_LABEL) for axis in names}}
            for one in lines
        ]
        axes = {axis: list(dict.fromkeys(one["labels"][axis] for one in lines)) for axis in names}
        title, source = (
            (f"{name}, other settings", "not the recipe's own")
            if name in recipes
            else (name, "no recipe")
        )
        tables.append(
            {
                "name": title,
                "title": title,
                "source": source,
                "notes": "",
                "axes": axes,
                "lines": lines,
            }
        )
    return tables


def _told_apart(records: Sequence[Record], known: Sequence[Record]) -> list[tuple[Record, str]]:
    """Each record with its row's label; where the ``known`` runs of one row had different
    settings, with its own.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in known:
        rows.setdefault(record["row"], []).append(_given(record))
    apart = {row: [key for key in dict.fromkeys(key for one in all_given for key in one)
                   if len({json.dumps(one.get(key)) for one in all_given}) > 1]
             for row, all_given in rows.items()}  # fmt: skip
    found = []
    for record in records:
        own = _given(record)
        words = ", ".join(f"{key} {own.get(key, 'not given')}" for key in apart[record["row"]])
        found.append((record, f"{record['row']} ({words})" if words else record["row"]))
    return found


def _given(record: Record) -> dict[str, Any]:
    """What a run was told: the method, and its clients."""
    federation = record["federation"]
    trained = {f"local {key}": value for key, value in federation.get("training", {}).items()}
    for name, group in federation.get("groups", {}).items():
        trained |= {f"{name} {key}": value for key, value in group["training"].items()}
    return {**record.get("given", {}), **trained}


def _line(line: Line) -> dict[str, Any]:
    return {
        "labels": dict(line.labels),
        "row": line.row,
        "seed": line.seed,
        "published": None if line.published is None else line.published.value,
        "published_std": None if line.published is None else line.published.deviation,
        "mean": _rounded(line.mean),
        "std": _rounded(line.deviation),
        "n": len(line.accuracies),
        "difference": _rounded(line.difference),
        "best": _rounded(line.best),
        "status": line.status,
        "oracle": line.oracle,
    }


def _federations(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Who held what, once for each federation and seed."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        key = _federation_key(record)
        counts = [client["label_counts"] for client in record["clients"]]
        if key in found or any(row is None for row in counts):
            continue
        found[key] = {
            "key": key,
            "number": len(found),
            "title": f"{record['federation']['data']}, {record['federation']['rule']}, {len(counts)} clients, seed {record['seed']}",
            "clients": [client["client"] for client in record["clients"]],
            "classes": record["classes"],
            "counts": counts,
        }
    return found


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
    """[step, accuracy in percent] of the last phase, which is the one that learns."""
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
        [sent, round(100 * one["accuracy"], 2)]
        for one, sent in zip(rounds, cumulative_bytes(rounds), strict=True)
        if one["accuracy"] is not None
    ]


class _Pictures:
    """Galleries as data addresses, up to a size that a page can bear."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: path for path in folder.rglob("*.png") if path.parent.name == "records"
        }
        self._spent, self.left_out = 0, 0

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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
