"""The plan and the results of a bench, as tables on the terminal or as records for ``--json``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attar.bench import (
    BenchResult,
    Cell,
    ClientSet,
    Costs,
    Line,
    Recipe,
    Record,
    bundle_folder,
    bytes_to_accuracy,
    cell_text,
    read_training,
    unique_client_sets,
)
from attar.cli.output import console
from attar.cli.output.console import human_seconds
from attar.internal.text import human_bytes

MOST_COLUMNS = 4  # of a table on a terminal


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What a bench would run, what is there, what is missing, and what it would cost.

    Attributes:
        recipes: Of the bench.
        cells: All cells that are asked for.
        done: Those with a valid record.
        again: Why cells with a record run once more, by key.
        costs: Estimates of time.
        out: The folder of the bench.
    """

    recipes: Sequence[Recipe]
    cells: Sequence[Cell]
    done: Sequence[Cell]
    again: Mapping[str, Sequence[str]]
    costs: Costs
    out: Path

    @cached_property
    def finished(self) -> frozenset[str]:
        """Keys of the cells with a valid record."""
        return frozenset(cell.key for cell in self.done)

    @cached_property
    def to_run(self) -> list[Cell]:
        """Cells without record that have what they need."""
        return [cell for cell in self.cells if not cell.missing and cell.key not in self.finished]

    @cached_property
    def sets_to_train(self) -> list[ClientSet]:
        """Sets of clients of these cells that are not trained yet."""
        return [
            clients
            for clients in unique_client_sets(self.to_run).values()
            if read_training(bundle_folder(self.out, clients)) is None
        ]

    @cached_property
    def training_seconds(self) -> float:
        """Expected, of all sets of clients, one after the other."""
        return sum(self.costs.clients(clients).seconds for clients in self.sets_to_train)

    @cached_property
    def cell_seconds(self) -> float:
        """Expected, of all cells, one after the other."""
        return sum(self.costs.cell(cell).seconds for cell in self.to_run)

    def why_again(self) -> list[str]:
        """Why cells that have a record run once more, a sentence for each reason."""
        counts = Counter(reason for reasons in self.again.values() for reason in reasons)
        return [
            f"{f'{count} cells have records' if count > 1 else '1 cell has a record'} "
            f"that will be replaced: {reason}."
            for reason, count in sorted(counts.items())
        ]

    def as_record(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "recipes": [recipe.name for recipe in self.recipes],
            "cells": len(self.cells),
            "finished": len(self.done),
            "to_run": len(self.to_run),
            "client_sets_to_train": len(self.sets_to_train),
            "missing": sorted({reason for cell in self.cells for reason in cell.missing}),
            "estimated_seconds": round(self.training_seconds + self.cell_seconds, 1),
            "plan": [self._cell_record(cell) for cell in self.cells],
        }

    def _cell_record(self, cell: Cell) -> dict[str, Any]:
        return {
            "row": cell.row.label,
            "labels": dict(cell.labels),
            "seed": cell.seed,
            "method": cell.row.method,
            "published": None if cell.published is None else cell.published.value,
            "finished": cell.key in self.finished,
            "again": list(self.again.get(cell.key, ())),
            "missing": list(cell.missing),
            "estimated_seconds": round(self.costs.cell(cell).seconds, 2),
        }

    def show(self) -> None:
        """A table of each recipe, and the sums."""
        columns = ("row", "method", "cells", "finished", "expected", "missing")
        for recipe in self.recipes:
            title = f"{recipe.title} ({recipe.name})"
            console.show_table(title, columns, self._rows(recipe), right=columns[2:5])
            if recipe.notes:
                console.say(" ".join(recipe.notes.split()))
        lacking = len(self.cells) - len(self.to_run) - len(self.done)
        console.say(
            f"{len(self.to_run)} cells to run, {len(self.done)} finished, "
            f"{lacking} lack something. "
            f"{len(self.sets_to_train)} sets of clients to train: "
            f"{human_seconds(self.training_seconds)}; "
            f"cells: {human_seconds(self.cell_seconds)}, one after the other. "
            "Estimates, set right by the records of earlier runs where there are any."
        )
        for sentence in self.why_again():
            console.say(sentence)

    def _rows(self, recipe: Recipe) -> list[tuple[object, ...]]:
        """One for each row of the recipe that has cells here."""
        of_recipe = [cell for cell in self.cells if cell.recipe == recipe.name]
        rows: list[tuple[object, ...]] = []
        for row in recipe.rows:
            cells = [cell for cell in of_recipe if cell.row.label == row.label]
            if cells:
                finished = sum(cell.key in self.finished for cell in cells)
                expected = self._expected([cell for cell in cells if cell in self.to_run])
                missing = sorted({reason for cell in cells for reason in cell.missing})
                rows.append(
                    (row.label, row.method, len(cells), finished, expected, ", ".join(missing))
                )
        return rows

    def _expected(self, cells: Sequence[Cell]) -> str:
        """The time of some cells; with a question mark where no record is behind it."""
        if not cells:
            return ""
        costs = [self.costs.cell(cell) for cell in cells]
        mark = "" if all(cost.measured for cost in costs) else " ?"
        return human_seconds(sum(cost.seconds for cost in costs)) + mark


@dataclass(frozen=True, kw_only=True)
class BenchResults:
    """What came out of a bench.

    Attributes:
        recipes: Of the bench.
        records: All records in its folder.
        lines: The table of each recipe, by name.
        result: What became of the cells this time.
        out: The folder of the bench.
        page: The report.
    """

    recipes: Sequence[Recipe]
    records: Sequence[Record]
    lines: Mapping[str, Sequence[Line]]
    result: BenchResult
    out: Path
    page: Path

    def as_record(self) -> dict[str, Any]:
        """For ``--json``."""
        result = self.result
        return {
            "out": str(self.out),
            "report": str(self.page),
            "run": len(result.done),
            "finished_before": len(result.before),
            "failed": result.failed,
            "left": len(result.left),
            "missing": len(result.missing),
            "client_sets_trained": result.trained,
            "seconds": round(result.seconds, 1),
            "tables": {
                name: [_line_record(line) for line in lines] for name, lines in self.lines.items()
            },
        }

    def show(self) -> None:
        """The tables, and a word about what is left."""
        for recipe in self.recipes:
            _show_table(recipe, self.lines[recipe.name])
            _show_reached(
                recipe, [record for record in self.records if record["recipe"] == recipe.name]
            )
        result = self.result
        console.say(
            f"{len(result.done)} cells run in {human_seconds(result.seconds)}, "
            f"{len(result.before)} were finished before, {len(result.failed)} failed, "
            f"{len(result.left)} left, {len(result.missing)} lack something."
        )
        if reasons := sorted({reason for cell in result.missing for reason in cell.missing}):
            console.say(f"Missing: {', '.join(reasons)}.")
        if result.left:
            console.say("What is left goes on when the same command is given again.")
        folders = f"records: {self.out / 'records'}   tables: {self.out / 'tables'}"
        console.say(f"Report: {self.page}   {folders}")


def _show_table(recipe: Recipe, lines: Sequence[Line]) -> None:
    """A row for each method, a column for each place of the grid: ours | published."""
    places = list(dict.fromkeys(" ".join(line.labels.values()) for line in lines))
    if len(places) > MOST_COLUMNS:
        _show_lines(recipe, lines)
        return
    rows = []
    for label in dict.fromkeys(line.row for line in lines):
        of_row = {" ".join(line.labels.values()): line for line in lines if line.row == label}
        rows.append((label, *(_ours_and_published(of_row.get(place)) for place in places)))
    columns = ("row", *(place or "accuracy" for place in places))
    console.show_table(
        f"{recipe.title}: accuracy in %, ours | published", columns, rows, right=columns[1:]
    )


def _show_lines(recipe: Recipe, lines: Sequence[Line]) -> None:
    """A large table, line by line: only what has a record. The page and the CSV have all of it."""
    run = [line for line in lines if line.status == "" or line.status.startswith("failed")]
    rows = [
        (
            ", ".join(line.labels.values()),
            line.row,
            cell_text(line),
            "" if line.published is None else f"{line.published.value:.1f}",
            "" if line.difference is None else f"{line.difference:+.1f}",
        )
        for line in run
    ]
    title = f"{recipe.title}: {len(run)} of {len(lines)} numbers, in %"
    columns = (", ".join(recipe.axes), "row", "ours", "published", "difference")
    console.show_table(title, columns, rows, right=columns[2:])


def _show_reached(recipe: Recipe, records: Sequence[Record]) -> None:
    """Rounds and bytes of each method to the accuracy that all of them reach."""
    costs = bytes_to_accuracy(records)
    rows = [
        (
            ", ".join((*record["labels"].values(), f"seed {record['seed']}")),
            record["row"],
            f"{100 * cost.accuracy:.1f} %",
            cost.rounds,
            human_bytes(cost.bytes),
        )
        for record in records
        if (cost := costs.get(record["key"]))
    ]
    if rows:
        columns = ("federation", "row", "all reach", "rounds to it", "bytes to it")
        console.show_table(
            f"{recipe.title}: rounds and bytes to the same accuracy",
            columns,
            rows,
            right=columns[2:],
        )


def _ours_and_published(line: Line | None) -> str:
    if line is None:
        return ""
    published = "" if line.published is None else f" | {line.published.value:.1f}"
    return f"{cell_text(line)}{published}"


def _line_record(line: Line) -> dict[str, Any]:
    return {
        "labels": dict(line.labels),
        "row": line.row,
        "seed": line.seed,
        "mean": line.mean,
        "std": line.deviation,
        "n": len(line.accuracies),
        "published": None if line.published is None else line.published.value,
        "difference": line.difference,
        "status": line.status,
    }
