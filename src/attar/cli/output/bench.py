"""A plan and its outcome for people, as tables on the terminal, or as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attar.bench import BenchResult as Tally
from attar.bench import (
    Cell,
    Costs,
    Line,
    Recipe,
    Record,
    bundle_folder,
    cell_text,
    table_of,
)
from attar.bench import bytes_to_accuracy as reached
from attar.bench import read_training as trained
from attar.bench import unique_client_sets as shared_sets
from attar.cli.output import console
from attar.cli.output.console import human_seconds
from attar.internal.text import human_bytes

MOST_COLUMNS = 4  # of a table on a terminal


def show_plan(
    recipes: Sequence[Recipe],
    cells: Sequence[Cell],
    done: Sequence[Cell],
    again: Mapping[str, Sequence[str]],
    costs: Costs,
    out: Path,
    *,
    json: bool,
) -> None:
    """What would run, what is there, what is missing, and what it would cost; ``again``: cells
    by key whose record does not count.
    """
    finished = {cell.key for cell in done}
    todo = [cell for cell in cells if not cell.missing and cell.key not in finished]
    sets = [one for one in shared_sets(todo).values() if trained(bundle_folder(out, one)) is None]
    training = sum(costs.clients(one).seconds for one in sets)
    fusing = sum(costs.cell(cell).seconds for cell in todo)
    lacking = sorted({reason for cell in cells for reason in cell.missing})
    if json:
        plan = [_row(cell, cell.key in finished, again.get(cell.key, ()), costs) for cell in cells]
        summary = {"cells": len(cells), "finished": len(done), "to_run": len(todo), "client_sets_to_train": len(sets),
                   "missing": lacking, "estimated_seconds": round(training + fusing, 1)}  # fmt: skip
        console.show_json({"recipes": [recipe.name for recipe in recipes], **summary, "plan": plan})
        return
    for recipe in recipes:
        mine = [cell for cell in cells if cell.recipe == recipe.name]
        rows = [
            (
                row.label,
                row.method,
                len(of_row),
                sum(cell.key in finished for cell in of_row),
                _expected([cell for cell in of_row if cell in todo], costs),
                ", ".join(sorted({reason for cell in of_row for reason in cell.missing})),
            )
            for row in recipe.rows
            if (of_row := [cell for cell in mine if cell.row.label == row.label])
        ]
        columns = ("row", "method", "cells", "finished", "expected", "missing")
        console.show_table(f"{recipe.title} ({recipe.name})", columns, rows, right=columns[2:5])
        if recipe.notes:
            console.say(" ".join(recipe.notes.split()))
    console.say(
        f"{len(todo)} cells to run, {len(done)} finished, {len(cells) - len(todo) - len(done)} lack something. "
        f"{len(sets)} sets of clients to train: {human_seconds(training)}; cells: {human_seconds(fusing)}, one after the other. "
        "Estimates, set right by the records of earlier runs where there are any."
    )
    for told in told_again(again):
        console.say(told)


def told_again(again: Mapping[str, Sequence[str]]) -> list[str]:
    """Why cells that have a record run once more, a sentence for each reason."""
    counts = Counter(reason for reasons in again.values() for reason in reasons)
    return [f"{f'{count} cells have records' if count > 1 else '1 cell has a record'} that will be replaced: {reason}."
            for reason, count in sorted(counts.items())]  # fmt: skip


def _row(cell: Cell, done: bool, again: Sequence[str], costs: Costs) -> dict[str, Any]:
    return {
        "row": cell.row.label,
        "labels": dict(cell.labels),
        "seed": cell.seed,
        "method": cell.row.method,
        "published": None if cell.published is None else cell.published.value,
        "finished": done,
        "again": list(again),
        "missing": list(cell.missing),
        "estimated_seconds": round(costs.cell(cell).seconds, 2),
    }


def _expected(cells: Sequence[Cell], costs: Costs) -> str:
    if not cells:
        return ""
    found = [costs.cell(cell) for cell in cells]
    return f"{human_seconds(sum(cost.seconds for cost in found))}{'' if all(cost.measured for cost in found) else ' ?'}"


def show_results(
    recipes: Sequence[Recipe],
    records: Sequence[Record],
    tally: Tally,
    out: Path,
    page: Path,
    *,
    json: bool,
) -> None:
    counts = {"run": len(tally.done), "finished_before": len(tally.before), "failed": tally.failed, "left": len(tally.left),
              "missing": len(tally.missing), "client_sets_trained": tally.trained, "seconds": round(tally.seconds, 1)}  # fmt: skip
    lines = {recipe.name: table_of(recipe, records) for recipe in recipes}
    if json:
        told = {name: [_line_json(line) for line in found] for name, found in lines.items()}
        console.show_json({"out": str(out), "report": str(page), **counts, "tables": told})
        return
    for recipe in recipes:
        _show_table(recipe, lines[recipe.name])
        _show_reached(recipe, [record for record in records if record["recipe"] == recipe.name])
    console.say(
        f"{len(tally.done)} cells run in {human_seconds(tally.seconds)}, {len(tally.before)} were finished before, "
        f"{len(tally.failed)} failed, {len(tally.left)} left, {len(tally.missing)} lack something."
    )
    if lacking := sorted({reason for cell in tally.missing for reason in cell.missing}):
        console.say(f"Missing: {', '.join(lacking)}.")
    if tally.left:
        console.say("What is left goes on when the same command is given again.")
    console.say(f"Report: {page}   records: {out / 'records'}   tables: {out / 'tables'}")


def _show_table(recipe: Recipe, lines: Sequence[Line]) -> None:
    """A row for each method, a column for each place of the grid; ours, and the paper's behind a
    bar.
    """
    places = list(dict.fromkeys(" ".join(line.labels.values()) for line in lines))
    if len(places) > MOST_COLUMNS:
        _show_lines(recipe, lines)
        return
    rows = []
    for label in dict.fromkeys(line.row for line in lines):
        found = {" ".join(line.labels.values()): line for line in lines if line.row == label}
        rows.append((label, *(_ours_and_theirs(found.get(place)) for place in places)))
    columns = ("row", *(place or "accuracy" for place in places))
    console.show_table(
        f"{recipe.title}: accuracy in %, ours | published", columns, rows, right=columns[1:]
    )


def _show_lines(recipe: Recipe, lines: Sequence[Line]) -> None:
    """A large table, line by line: what there is a record of. The page and the CSV have all of it."""
    there = [line for line in lines if line.status == "" or line.status.startswith("failed")]
    rows = [
        (
            ", ".join(line.labels.values()),
            line.row,
            cell_text(line),
            "" if line.published is None else f"{line.published.value:.1f}",
            "" if line.difference is None else f"{line.difference:+.1f}",
        )
        for line in there
    ]
    title = f"{recipe.title}: {len(there)} of {len(lines)} numbers, in %"
    columns = (", ".join(recipe.axes), "row", "ours", "published", "difference")
    console.show_table(title, columns, rows, right=columns[2:])


def _show_reached(recipe: Recipe, records: Sequence[Record]) -> None:
    """What rounds cost until each method is as good as all of them become."""
    found = reached(records)
    rows = [
        (
            ", ".join((*record["labels"].values(), f"seed {record['seed']}")),
            record["row"],
            f"{100 * one.accuracy:.1f} %",
            one.rounds,
            human_bytes(one.bytes),
        )
        for record in records
        if (one := found.get(record["key"]))
    ]
    if rows:
        columns = ("federation", "row", "all reach", "rounds to it", "bytes to it")
        console.show_table(
            f"{recipe.title}: rounds and bytes to the same accuracy",
            columns,
            rows,
            right=columns[2:],
        )


def _ours_and_theirs(line: Line | None) -> str:
    if line is None:
        return ""
    theirs = "" if line.published is None else f" | {line.published.value:.1f}"
    return f"{cell_text(line)}{theirs}"


def _line_json(line: Line) -> dict[str, Any]:
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
