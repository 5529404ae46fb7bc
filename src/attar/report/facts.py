"""Records and recipes as the plain values that the page draws."""

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attar.bench import (
    CENTRAL,
    FINISHED,
    CostToAccuracy,
    Recipe,
    Record,
    bytes_to_accuracy,
    short_commit,
)
from attar.federation import cumulative_bytes
from attar.report.number_tables import make_tables
from attar.report.standings import place_of, standings_of

MOST_CLASSES = 30  # of a confusion matrix that a page can show
MOST_PICTURES = 3_000_000  # bytes of galleries in one page
STEPPED = ("steps",)  # settings that count steps; others count epochs
UNKNOWN = "unknown"  # the commit of an installed package


def facts_of(records: Sequence[Record], recipes: Sequence[Recipe], folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON can hold it; ``standings`` as ``Standing``.

    Args:
        records: All of them; failed ones are only counted.
        recipes: Those whose tables are shown.
        folder: Holds the pictures, beside the records.
    """
    finished = sorted(
        (record for record in records if record["ending"] == FINISHED),
        key=lambda record: record["seed"],
    )
    federations = federations_of(finished)
    pictures = _Pictures(folder)
    costs = bytes_to_accuracy(finished)
    tables = make_tables(finished, recipes)
    runs = [_run(record, federations, pictures, costs.get(record["key"])) for record in finished]
    return {
        "summary": _summary(records, finished),
        "standings": [standing for table in tables for standing in standings_of(table)],
        "tables": [table.as_json() for table in tables],
        "federations": list({one["number"]: one for one in federations.values()}.values()),
        "runs": runs,
        "left_out": pictures.left_out,
    }


def _summary(records: Sequence[Record], finished: Sequence[Record]) -> dict[str, Any]:
    return {
        "runs": len(finished),
        "of": "run",
        "failed": len(records) - len(finished),
        "seconds": round(sum(record["seconds"] for record in finished), 1),
        "devices": sorted({record["device"] for record in finished}),
        "precisions": sorted({record["precision"] for record in finished}),
        "commits": sorted({short_commit(record["commit"]) for record in finished} - {UNKNOWN}),
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


def federations_of(records: Sequence[Record]) -> dict[frozenset[str], dict[str, Any]]:
    """What the clients hold and send, by the set of their files.

    A method that uses some of the files alone belongs to the federation of all of them.
    """
    own = [record for record in records if record["method"] != CENTRAL]
    keys = {_federation_key(record): record for record in reversed(own)}
    wholes = {key: _whole(key, keys) for key in reversed(keys)}
    numbers = {key: place for place, key in enumerate(dict.fromkeys(wholes.values()))}
    return {
        key: _federation(keys[whole], numbers[whole], place_of(keys[key]))
        for key, whole in wholes.items()
    }


def _whole(key: frozenset[str], keys: Collection[frozenset[str]]) -> frozenset[str]:
    """The largest set of files that has all of these."""
    return max((other for other in keys if key <= other), key=len)


def _federation(record: Record, number: int, place: str) -> dict[str, Any]:
    clients = record["clients"]
    counts = [client["label_counts"] for client in clients]
    return {
        "number": number,
        "place": place,
        "title": f"{record['federation']['data']}, {record['federation']['rule']}, "
        f"{len(clients)} clients, seed {record['seed']}",
        "clients": [client["client"] for client in clients],
        "sends": [_sent(client["parts"]) for client in clients],
        "images": [client["num_examples"] for client in clients],
        "bytes": [client["bytes"] for client in clients],
        "alone": [_percent(client["accuracy"]) for client in clients],
        "classes": record["classes"],
        "counts": None if any(row is None for row in counts) else counts,
    }


def _sent(parts: Mapping[str, str]) -> str:
    return ", ".join(
        spec if part == "classifier" else f"{part} {spec}" for part, spec in parts.items()
    )


def _federation_key(record: Record) -> frozenset[str]:
    return frozenset(client["sha256"] for client in record["clients"])


def _run(
    record: Record,
    federations: Mapping[frozenset[str], dict[str, Any]],
    pictures: "_Pictures",
    cost: CostToAccuracy | None,
) -> dict[str, Any]:
    headline = next(iter(record["models"].values()))
    few = len(record["classes"]) <= MOST_CLASSES
    federation = federations.get(_federation_key(record))
    return {
        "row": record["row"],
        "place": place_of(record),
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
