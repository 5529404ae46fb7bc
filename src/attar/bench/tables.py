"""Records as tables: mean and deviation over seeds beside the published number.

Where there is no record, the table says "not run".
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attar.bench.cells import Cell
from attar.bench.compare import CostToAccuracy, bytes_to_accuracy
from attar.bench.grid import cells_of
from attar.bench.metadata import short_commit
from attar.bench.oracles import SEES
from attar.bench.recipe import Labels, Published, Recipe
from attar.bench.records import FINISHED, Record
from attar.internal.text import escape_cell

NOT_RUN = "not run"


Place = tuple[Any, ...]  # labels, row and seed of a number


@dataclass(frozen=True)
class Line:
    """One number of a published table and the same number as measured, in percent.

    Attributes:
        recipe: The name of the recipe.
        labels: The place of the grid: the label of each axis.
        row: The label of the row.
        method: The method's name.
        seed: Where the paper prints a number for each seed, else None.
        published: The number of the paper, where it prints one.
        accuracies: One for each seed.
        bests: The best on the test images on the way, one for each seed; never the headline.
        records: The finished runs.
        status: ``""``, ``"not run"``, ``"not run (missing: ...)"`` or ``"failed: ..."``.
        oracle: The real images that the row sees and no federation has, in words; else None.
    """

    recipe: str
    labels: Labels
    row: str
    method: str
    seed: int | None
    published: Published | None
    accuracies: tuple[float, ...]
    bests: tuple[float, ...]
    records: tuple[Record, ...]
    status: str
    oracle: str | None = None

    @property
    def mean(self) -> float | None:
        """Mean accuracy over seeds."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the sample of seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def best(self) -> float | None:
        """Mean of the best accuracies on the way."""
        return statistics.fmean(self.bests) if self.bests else None

    @property
    def difference(self) -> float | None:
        """Points above the published number."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.value


def table_of(recipe: Recipe, records: Iterable[Record]) -> list[Line]:
    """Every number of a recipe's table, in its order, whether it was run or not.

    Runs of each precision are apart. A number that was run in some precision is not also "not
    run" in another.

    Args:
        recipe: The recipe.
        records: Those of other recipes are ignored, unless they share a run.
    """
    by_key = {record["key"]: record for record in records}
    precisions = sorted({record["precision"] for record in by_key.values()}) or ["fp32"]
    lines = []
    for precision in precisions:
        groups: dict[Place, list[Cell]] = {}
        for cell in cells_of(recipe, precision):
            seed = cell.seed if recipe.per_seed else None
            groups.setdefault((*cell.labels.items(), cell.row.label, seed), []).append(cell)
        for (*_, seed), cells in groups.items():
            runs = [by_key[cell.key] for cell in cells if cell.key in by_key]
            lines.append(_make_line(recipe, cells[0], seed, runs))
    return _drop_repeats(lines)


def _drop_repeats(lines: list[Line]) -> list[Line]:
    """For each place its lines with numbers; where it has none, one without."""
    places: dict[Place, list[Line]] = {}
    for line in lines:
        places.setdefault((*line.labels.items(), line.row, line.seed), []).append(line)
    unique: list[Line] = []
    for same in places.values():
        unique += [line for line in same if line.accuracies] or same[:1]
    return unique


def _make_line(recipe: Recipe, cell: Cell, seed: int | None, records: Sequence[Record]) -> Line:
    """The line of a place; ``cell`` is one of those that differ in their seeds alone."""
    finished = [record for record in records if record["ending"] == FINISHED]
    failed = [record for record in records if record["ending"] != FINISHED]
    accuracies = [accuracy_of(record, cell.row.output, cell.after) for record in finished]
    is_headline = cell.row.output is None and cell.after is None
    return Line(
        recipe=recipe.name,
        labels=cell.labels,
        row=cell.row.label,
        method=cell.row.method,
        seed=seed,
        published=cell.published,
        accuracies=tuple(100 * value for value in accuracies if value is not None),
        bests=tuple(100 * record["best_on_test"] for record in finished if is_headline),
        records=tuple(finished),
        status="" if finished else _describe_status(cell, failed),
        oracle=SEES.get(cell.row.method),
    )


def _describe_status(cell: Cell, failed: Sequence[Record]) -> str:
    if failed:
        return f"failed: {failed[0]['error'].splitlines()[0]}"
    # Data may be available elsewhere.
    missing = [reason for reason in cell.missing if not reason.startswith("data ")]
    return f"{NOT_RUN} (missing: {', '.join(missing)})" if missing else NOT_RUN


def accuracy_of(
    record: Record, output: str | None = None, after: int | None = None
) -> float | None:
    """The accuracy that a table is about.

    Args:
        record: A finished run.
        output: A model of its result; None: the headline.
        after: The headline after so many rounds; None: after the last.

    Returns:
        None where the run has no such model or round.
    """
    if after is not None:
        points = (point for point in record["curve"] if point["step"] == after)
        return next((float(point["accuracy"]) for point in points), None)
    if output is None:
        return float(record["accuracy"])
    model = record["models"].get(output)
    return None if model is None else float(model["accuracy"])


def as_csv(recipe: Recipe, lines: Sequence[Line]) -> str:
    """A recipe's table as CSV: one line for each number, with what is known of its runs."""
    seed = ["seed"] if recipe.per_seed else []
    costs = bytes_to_accuracy(record for line in lines for record in line.records)
    columns = [*recipe.axes, *seed, "row", "method", "published", "published_std", "ours", "std",
               "n", "difference", "best_on_test", "seeds", "steps", "precision", "device",
               "seconds", "commit", "status", "sees"]  # fmt: skip
    columns += ["bytes", "all_reach", "rounds_to_it", "bytes_to_it"] if costs else []
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        row = {
            **line.labels,
            **_csv_row(line),
            **(_csv_costs(line.records, costs) if costs else {}),
        }
        if seed:
            row["seed"] = line.seed
        writer.writerow({key: escape_cell(value) for key, value in row.items()})
    return text.getvalue()


def _csv_row(line: Line) -> dict[str, Any]:
    published = line.published
    records = line.records
    seconds = [record["seconds"] for record in records]
    commits = [short_commit(record["commit"]) for record in records]
    return {
        "row": line.row,
        "method": line.method,
        "published": None if published is None else published.value,
        "published_std": None if published is None else published.deviation,
        "ours": _two_digits(line.mean),
        "std": _two_digits(line.deviation),
        "n": len(line.accuracies),
        "difference": _two_digits(line.difference),
        "best_on_test": _two_digits(line.best),
        "seeds": " ".join(str(record["seed"]) for record in records),
        "steps": " ".join(dict.fromkeys(_last_steps(record) for record in records)),
        "precision": " ".join(dict.fromkeys(record["precision"] for record in records)),
        "device": " ".join(dict.fromkeys(record["device"] for record in records)),
        "seconds": _two_digits(statistics.fmean(seconds) if seconds else None),
        "commit": " ".join(dict.fromkeys(commits)),
        "status": line.status,
        "sees": line.oracle or "",
    }


def _csv_costs(records: Sequence[Record], costs: Mapping[str, CostToAccuracy]) -> dict[str, str]:
    """Means over seeds: all bytes, and the cost to the accuracy that all methods reach."""
    found = [costs[record["key"]] for record in records if record["key"] in costs]
    if not found:
        return {}
    sent = [record["bytes_up"] + record["bytes_down"] for record in records]
    return {
        "bytes": f"{statistics.fmean(sent):.0f}",
        "all_reach": f"{100 * statistics.fmean(cost.accuracy for cost in found):.2f}",
        "rounds_to_it": f"{statistics.fmean(cost.rounds for cost in found):g}",
        "bytes_to_it": f"{statistics.fmean(cost.bytes for cost in found):.0f}",
    }


def _last_steps(record: Record) -> str:
    """The steps of the last phase, as ``500of500``."""
    return list(record["steps"].values())[-1].replace(" ", "") if record["steps"] else ""


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cell_text(line: Line) -> str:
    """A line in short: ``71.2 ± 0.4 (3)``, or why there is no number."""
    if line.mean is None:
        return line.status or NOT_RUN
    spread = "" if line.deviation is None else f" ± {line.deviation:.1f}"
    return f"{line.mean:.1f}{spread} ({len(line.accuracies)})"
