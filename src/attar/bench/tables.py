"""Records as tables: mean and deviation over seeds beside the published number, "not run" where
there is none.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attar.bench.grid import Cell, cells_of
from attar.bench.oracles import SEES
from attar.bench.reached import Reached, reached
from attar.bench.recipe import Labels, Published, Recipe
from attar.bench.records import FINISHED, Record, short_commit

NOT_RUN = "not run"


@dataclass(frozen=True)
class Line:
    """One number of a published table and ours beside it, in percent."""

    recipe: str
    labels: Labels
    row: str
    method: str
    seed: int | None  # where the paper prints a number for each seed
    published: Published | None
    accuracies: tuple[float, ...]  # one for each seed
    bests: tuple[float, ...]  # the best on the test set on the way: never the headline
    records: tuple[Record, ...]
    status: str  # "", "not run", "not run (missing: ...)", "failed: ..."
    oracle: str | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def best(self) -> float | None:
        return statistics.fmean(self.bests) if self.bests else None

    @property
    def difference(self) -> float | None:
        return (
            None
            if self.mean is None or self.published is None
            else self.mean - self.published.value
        )


def table_of(recipe: Recipe, records: Iterable[Record]) -> list[Line]:
    """Every number of a recipe's table, in its order, whether it was run or not; runs of each
    precision apart.
    """
    known = {record["key"]: record for record in records}
    used = sorted({record["precision"] for record in known.values()}) or ["fp32"]
    lines = []
    for precision in used:
        grid = cells_of(recipe, precision)
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in grid:
            seed = cell.seed if recipe.per_seed else None
            groups.setdefault((tuple(cell.labels.items()), cell.row.label, seed), []).append(cell)
        for (_, _, seed), cells in groups.items():
            lines.append(_line(recipe, cells, seed, [known.get(cell.key) for cell in cells]))
    return _without_repeats(lines)


def _without_repeats(lines: list[Line]) -> list[Line]:
    """A number that was run in some precision is not also "not run" in another."""
    places: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        places.setdefault((tuple(line.labels.items()), line.row, line.seed), []).append(line)
    return [
        line
        for same in places.values()
        for line in ([one for one in same if one.accuracies] or same[:1])
    ]


def _line(
    recipe: Recipe, cells: Sequence[Cell], seed: int | None, found: Sequence[Record | None]
) -> Line:
    cell = cells[0]
    ran = [record for record in found if record is not None and record["ending"] == FINISHED]
    failed = [record for record in found if record is not None and record["ending"] != FINISHED]
    accuracies = [accuracy_of(record, cell.row.output, cell.after) for record in ran]
    status = ""
    if not ran:
        lacking = [
            reason for reason in cell.missing if not reason.startswith("data ")
        ]  # data may be at hand elsewhere
        status = f"{NOT_RUN} (missing: {', '.join(lacking)})" if lacking else NOT_RUN
        status = f"failed: {failed[0]['error'].splitlines()[0]}" if failed else status
    bests = [
        100 * record["best_on_test"]
        for record in ran
        if cell.row.output is None and cell.after is None
    ]
    return Line(
        recipe.name,
        cell.labels,
        cell.row.label,
        cell.row.method,
        seed,
        cell.published,
        tuple(100 * value for value in accuracies if value is not None),
        tuple(bests),
        tuple(ran),
        status,
        SEES.get(cell.row.method),
    )


def accuracy_of(
    record: Record, output: str | None = None, after: int | None = None
) -> float | None:
    """Of the headline, of another model of the result, or of the headline after so many rounds."""
    if after is not None:
        return next(
            (float(point["accuracy"]) for point in record["curve"] if point["step"] == after), None
        )
    if output is None:
        return float(record["accuracy"])
    model = record["models"].get(output)
    return None if model is None else float(model["accuracy"])


def as_csv(recipe: Recipe, lines: Sequence[Line]) -> str:
    """One line for each number, with what stands behind it."""
    seed = ["seed"] if recipe.per_seed else []
    together = reached(record for line in lines for record in line.records)
    columns = [*recipe.axes, *seed, "row", "method", "published", "published_std", "ours", "std", "n", "difference", "best_on_test",
               "seeds", "steps", "precision", "device", "seconds", "commit", "status", "sees"]  # fmt: skip
    columns += ["bytes", "all_reach", "rounds_to_it", "bytes_to_it"] if together else []
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(
            {
                **line.labels,
                **({"seed": line.seed} if seed else {}),
                "row": line.row,
                "method": line.method,
                "published": None if line.published is None else line.published.value,
                "published_std": None if line.published is None else line.published.deviation,
                "ours": _two(line.mean),
                "std": _two(line.deviation),
                "n": len(line.accuracies),
                "difference": _two(line.difference),
                "best_on_test": _two(line.best),
                "seeds": " ".join(str(record["seed"]) for record in line.records),
                "steps": " ".join(dict.fromkeys(_steps(record) for record in line.records)),
                "precision": " ".join(
                    dict.fromkeys(record["precision"] for record in line.records)
                ),
                "device": " ".join(dict.fromkeys(record["device"] for record in line.records)),
                "seconds": _two(
                    statistics.fmean(record["seconds"] for record in line.records)
                    if line.records
                    else None
                ),
                "commit": " ".join(
                    dict.fromkeys(short_commit(record["commit"]) for record in line.records)
                ),
                "status": line.status,
                "sees": line.oracle or "",
                **(_spent(line.records, together) if together else {}),
            }
        )
    return text.getvalue()


def _spent(records: Sequence[Record], together: Mapping[str, Reached]) -> dict[str, str]:
    """Means over seeds: all bytes, and what it took to the accuracy that all methods of the
    federation reach.
    """
    found = [together[record["key"]] for record in records if record["key"] in together]
    if not found:
        return {}
    return {
        "bytes": f"{statistics.fmean(record['bytes_up'] + record['bytes_down'] for record in records):.0f}",
        "all_reach": f"{100 * statistics.fmean(one.accuracy for one in found):.2f}",
        "rounds_to_it": f"{statistics.fmean(one.rounds for one in found):g}",
        "bytes_to_it": f"{statistics.fmean(one.bytes for one in found):.0f}",
    }


def _steps(record: Record) -> str:
    """The last phase's, as "500 of 500"."""
    return list(record["steps"].values())[-1].replace(" ", "") if record["steps"] else ""


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cell_text(line: Line) -> str:
    """``71.2 ± 0.4 (3)``, or why there is nothing."""
    if line.mean is None:
        return line.status or NOT_RUN
    spread = "" if line.deviation is None else f" ± {line.deviation:.1f}"
    return f"{line.mean:.1f}{spread} ({len(line.accuracies)})"
