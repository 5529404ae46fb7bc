"""Who is ahead: the models of a place by their accuracy, beside the clients alone and central
training.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from attar.bench import CENTRAL, LOCAL, Line, Record
from attar.report.number_tables import NumberTable

Kind = Literal["fused", "client", "sees more"]


@dataclass(frozen=True)
class Entry:
    """A model, or the mean of those of several seeds or places. Accuracies are in percent.

    Attributes:
        label: Its row.
        accuracies: One for each seed, or for each place.
        kind: A fused model, a client's own, or one that sees more than a federation has.
        sees: What it sees, in words.
    """

    label: str
    accuracies: tuple[float, ...]
    kind: Kind = "fused"
    sees: str | None = None

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return fmean(self.accuracies)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the sample; None for a single accuracy."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None


@dataclass(frozen=True)
class Standing:
    """All models of one place, or of all places of a table, the most accurate first.

    Attributes:
        title: Of the table.
        name: Of the place, in words.
        place: As runs are found by it.
        entries: The models, except central training.
        client: Mean accuracy of the best single client; None: the clients were not measured.
        central: Mean accuracy of central training; None: not run.
        runs: How many runs the table is of.
        places: Over how many places the accuracies are a mean.
        wins: At how many places the best fused model is ahead of the other fused ones.
        left_out: Rows that were not run at all of the places.
        images: On which the accuracies were measured, in words.
        without_client: Why there is no ``client``, where there is none.
        without_central: Why there is no ``central``, where there is none.
    """

    title: str
    name: str
    place: str
    entries: tuple[Entry, ...]
    client: float | None
    central: float | None
    runs: int
    places: int = 1
    wins: int | None = None
    left_out: tuple[str, ...] = ()
    images: str = "the test images"
    without_client: str = "not measured"
    without_central: str = "not run (a recipe has it with a row of the method central)"

    @property
    def fused(self) -> tuple[Entry, ...]:
        """The fused models, the most accurate first."""
        return tuple(entry for entry in self.entries if entry.kind == "fused")


def place_of(record: Record) -> str:
    """The recipe and the place of its grid that a record is of; of no grid, data and split."""
    words = [f"{axis} {label}" for axis, label in record["labels"].items()]
    federation = record["federation"]
    words = words or [federation["data"], federation["rule"]]
    return f"{record['recipe']}: {', '.join(words)}"


def standings_of(table: NumberTable) -> list[Standing]:
    """The standing of each place of a table that was run.

    Where several places were run, the mean over all of them comes first. Means are over the rows
    that were run at every one of these places.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Line]] = {}
    for line in table.lines:
        if line.accuracies:
            groups.setdefault(tuple(line.labels.items()), []).append(line)
    each = [_standing(table, lines) for lines in groups.values()]
    each = [standing for standing in each if standing.fused] or each
    overall = _overall(table, each) if len(each) > 1 else None
    return each if overall is None else [overall, *each]


def _standing(table: NumberTable, lines: Sequence[Line]) -> Standing:
    central = [value for line in lines if line.method == CENTRAL for value in line.accuracies]
    entries = _sort_entries(
        Entry(label, tuple(value for line in same for value in line.accuracies), *_kind(same[0]))
        for label, same in _by_label(lines).items()
        if same[0].method != CENTRAL
    )
    records = [record for line in lines if line.method != CENTRAL for record in line.records]
    labels = ", ".join(f"{axis} {label}" for axis, label in lines[0].labels.items())
    place = place_of(records[0] if records else lines[0].records[0])
    return Standing(
        title=table.title,
        name=labels or place.partition(": ")[2],
        place=place,
        entries=entries,
        client=_best_client(records),
        central=fmean(central) if central else None,
        runs=table.runs,
    )


def _by_label(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of each row.

    A row that was run in several precisions is several rows; that of the most runs keeps its
    label.
    """
    rows: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        of_row = rows.setdefault(line.row, {})
        of_row.setdefault(line.records[0]["precision"], []).append(line)
    labelled = {}
    for row, precisions in rows.items():
        main = max(
            precisions, key=lambda name: sum(len(one.accuracies) for one in precisions[name])
        )
        for name, same in precisions.items():
            labelled[row if name == main else f"{row} ({name})"] = same
    return labelled


def _kind(line: Line) -> tuple[Kind, str | None]:
    if line.oracle is not None:
        return "sees more", line.oracle
    return ("client" if line.method == LOCAL else "fused"), None


def _best_client(records: Iterable[Record]) -> float | None:
    """The most accurate client's own net, in the mean over sets of clients."""
    best = {}
    for record in records:
        alone = [client["accuracy"] for client in record["clients"]]
        known = [100 * accuracy for accuracy in alone if accuracy is not None]
        if known:
            best[frozenset(client["sha256"] for client in record["clients"])] = max(known)
    return fmean(best.values()) if best else None


def _overall(table: NumberTable, each: Sequence[Standing]) -> Standing | None:
    """The mean over all places; None where no fused model was run at all of them."""
    rows: dict[str, list[Entry]] = {}
    for standing in each:
        for entry in standing.entries:
            rows.setdefault(entry.label, []).append(entry)
    entries = _sort_entries(
        replace(same[0], accuracies=tuple(entry.mean for entry in same))
        for same in rows.values()
        if len(same) == len(each)
    )
    best = next((entry for entry in entries if entry.kind == "fused"), None)
    if best is None:
        return None
    kept = {entry.label for entry in entries if entry.kind == "fused"}
    return Standing(
        title=table.title,
        name=f"mean over {len(each)} places",
        place=each[0].place,
        entries=entries,
        client=_mean_of_all([standing.client for standing in each]),
        central=_mean_of_all([standing.central for standing in each]),
        runs=table.runs,
        places=len(each),
        wins=sum(_leader(standing, kept) == best.label for standing in each),
        left_out=tuple(label for label, same in rows.items() if len(same) < len(each)),
    )


def _leader(standing: Standing, labels: set[str]) -> str:
    return next(entry.label for entry in standing.entries if entry.label in labels)


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _sort_entries(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: -entry.mean))
