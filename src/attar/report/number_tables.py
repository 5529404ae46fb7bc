"""Every number of the records, as a table for each recipe; runs outside a recipe have their own."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from attar.bench import Line, Recipe, Record, table_of

NO_LABEL = "–"  # of an axis that a run's recipe did not have then


@dataclass(frozen=True)
class NumberTable:
    """The numbers of a recipe, or of runs that are in no recipe's table.

    Attributes:
        name: Of the recipe, and whether its runs had other settings.
        title: In words.
        source: Of the published numbers.
        notes: Of the recipe.
        axes: Their labels in order.
        lines: A number each.
    """

    name: str
    title: str
    source: str
    notes: str
    axes: dict[str, list[str]]
    lines: tuple[Line, ...]

    @property
    def runs(self) -> int:
        """How many finished runs the numbers are of."""
        return len({record["key"] for line in self.lines for record in line.records})

    def as_json(self) -> dict[str, Any]:
        """The table as the page has it."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "notes": self.notes,
            "axes": self.axes,
            "lines": [_line_json(line) for line in self.lines],
        }


def make_tables(finished: Sequence[Record], recipes: Sequence[Recipe]) -> list[NumberTable]:
    """The tables of the recipes, then those of all other runs.

    Other runs are the demo's, of recipes that are not at hand, or ran with other settings.

    Args:
        finished: Records of finished runs.
        recipes: Those whose tables are shown.
    """
    tables = [
        NumberTable(
            name=recipe.name,
            title=recipe.title,
            source=recipe.source,
            notes=" ".join(recipe.notes.split()),
            axes={axis: list(labels) for axis, labels in recipe.axes.items()},
            lines=tuple(table_of(recipe, finished)),
        )
        for recipe in recipes
    ]
    shown = {record["key"] for one in tables for line in one.lines for record in line.records}
    groups: dict[str, list[Record]] = {}
    for record in finished:
        if record["key"] not in shown:
            groups.setdefault(record["recipe"], []).append(record)
    named = {recipe.name for recipe in recipes}
    return tables + [_other_table(name, group, finished, named) for name, group in groups.items()]


def _other_table(
    name: str, records: Sequence[Record], finished: Sequence[Record], recipes: Collection[str]
) -> NumberTable:
    """The table of some runs of one recipe."""
    of_recipe = [record for record in finished if record["recipe"] == name]
    cells: dict[tuple[str, tuple[tuple[str, str], ...]], list[Record]] = {}
    for record, row in _label_rows(records, of_recipe):
        cells.setdefault((row, tuple(record["labels"].items())), []).append(record)
    lines = [_line_of_runs(name, row, dict(place), runs) for (row, place), runs in cells.items()]
    # A recipe may have got an axis since.
    names = list(dict.fromkeys(axis for line in lines for axis in line.labels))
    lines = [
        replace(line, labels={axis: line.labels.get(axis, NO_LABEL) for axis in names})
        for line in lines
    ]
    title = f"{name}, other settings" if name in recipes else name
    return NumberTable(
        name=title,
        title=title,
        source="not the recipe's own settings" if name in recipes else "",
        notes="",
        axes={axis: list(dict.fromkeys(line.labels[axis] for line in lines)) for axis in names},
        lines=tuple(sorted(lines, key=lambda line: -_mean_of_row(lines, line.row))),
    )


def _mean_of_row(lines: Sequence[Line], row: str) -> float:
    return fmean(value for line in lines if line.row == row for value in line.accuracies)


def _line_of_runs(recipe: str, row: str, labels: dict[str, str], runs: Sequence[Record]) -> Line:
    return Line(
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


def _line_json(line: Line) -> dict[str, Any]:
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
