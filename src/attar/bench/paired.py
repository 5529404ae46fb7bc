"""Is one row of a table ahead of another: the paired difference over places and seeds.

A split moves all methods together by more than they differ. So two rows are compared run by run:
same place of the grid, same seed, and so the same split and the same clients.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from attar.bench.grid import Filters, cells_of
from attar.bench.recipe import Labels, Recipe
from attar.bench.records import FINISHED, Record
from attar.bench.tables import accuracy_of
from attar.errors import SettingsError

CONFIDENCE = 0.95
Place = tuple[tuple[tuple[str, str], ...], int]  # labels and seed
PRECISIONS = ("fp32", "tf32", "bf16")  # a pair is two runs of one precision, the first that has it


@dataclass(frozen=True)
class Pair:
    """Two runs that differ in their row alone.

    Attributes:
        labels: The place of the grid: the label of each axis.
        seed: The seed of both.
        first: The accuracy of the one row, in percent.
        second: The accuracy of the other.
    """

    labels: Labels
    seed: int
    first: float
    second: float

    @property
    def difference(self) -> float:
        """How many points the first is ahead."""
        return self.first - self.second


@dataclass(frozen=True)
class Comparison:
    """One row of a recipe beside another.

    Attributes:
        recipe: The name of the recipe.
        first: The label of the one row.
        second: The label of the other.
        pairs: All places and seeds at which both were run.
    """

    recipe: str
    first: str
    second: str
    pairs: tuple[Pair, ...]

    @property
    def differences(self) -> list[float]:
        """How many points the first is ahead, in each pair."""
        return [pair.difference for pair in self.pairs]

    @property
    def mean(self) -> float | None:
        """The mean difference in points; None without a pair."""
        return statistics.fmean(self.differences) if self.pairs else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by Student's t; None for fewer than two pairs."""
        if self.mean is None or len(self.pairs) < 2:
            return None
        error = statistics.stdev(self.differences) / math.sqrt(len(self.pairs))
        half = t_quantile(len(self.pairs) - 1) * error
        return self.mean - half, self.mean + half

    @property
    def wins(self) -> int:
        """The number of pairs in which the first is ahead."""
        return sum(difference > 0 for difference in self.differences)


def compare_rows(
    recipe: Recipe,
    records: Iterable[Record],
    first: str,
    second: str,
    filters: Filters | None = None,
) -> Comparison:
    """Pair the finished runs of two rows.

    Args:
        recipe: The recipe.
        records: Those of other recipes are ignored, unless they share a run.
        first: The label of a row.
        second: The label of another one.
        filters: Which places and seeds count, see ``parse_filters``.

    Raises:
        SettingsError: The recipe has no such row, or the two are one.
    """
    labels = [row.label for row in recipe.rows]
    unknown = [label for label in dict.fromkeys((first, second)) if label not in labels]
    if unknown or first == second:
        raise SettingsError(
            f"Nothing to compare in recipe {recipe.name}:",
            problems=[f"there is no row {label!r}" for label in unknown]
            or [f"{first!r} is named twice"],
            fix=f"rows of {recipe.name}: {', '.join(labels)}",
        )
    finished = {record["key"]: record for record in records if record["ending"] == FINISHED}
    wanted = {**(filters or {}), "method": {first, second}}
    pairs: dict[Place, Pair] = {}
    for precision in PRECISIONS:
        found: dict[Place, dict[str, float]] = {}
        for cell in cells_of(recipe, precision, wanted):
            record = finished.get(cell.key)
            value = None if record is None else accuracy_of(record, cell.row.output, cell.after)
            if value is not None:
                place = (tuple(cell.labels.items()), cell.seed)
                found.setdefault(place, {})[cell.row.label] = 100 * value
        for place, values in found.items():
            if len(values) == 2:
                labels_there, seed = place
                pair = Pair(dict(labels_there), seed, values[first], values[second])
                pairs.setdefault(place, pair)
    return Comparison(recipe.name, first, second, tuple(pairs.values()))


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """How far Student's t lies from 0 with this probability at most.

    Args:
        freedom: Degrees of freedom, from 1.
        confidence: The probability.
    """
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _t_within(bound: float, freedom: int) -> float:
    """P(|T| < bound) of Student's t, the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(bound / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= square * (power - 1) / power
        total += term
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
