"""Shrinkage chosen at a server that has no image: fitted to one half, scored on the other.

What is chosen    from what
ridge             the squared error of the other half: exact
LDA, QDA          accuracy of scores drawn from the other half's classes, where squares were sent
                  for each class
LDA               otherwise the squared error of ridge with the same penalty: the regression of
                  one-hot labels spans the directions of LDA with that penalty (Hastie, Buja and
                  Tibshirani, 1995)
naive Bayes       otherwise the likelihood of the other half: exact

Each half is fitted and scored once. The head itself is fitted to both halves together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from attar.blocks.heads.heads import (
    Head,
    Kind,
    LinearHead,
    Regression,
    gaussian_head,
    regression,
)
from attar.blocks.heads.moments import Moments, moments_of
from attar.blocks.heads.scoring import (
    Drawn,
    diagonal_likelihood,
    draw_scores,
    fit_temperature,
    join_draws,
    plausible,
    squared_error,
)
from attar.blocks.heads.totals import Totals

SHRINKAGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.2, 0.4, 0.7, 0.9)
MOST_DRAWING = 2e10  # products of one pass of draws; beyond it, LDA is chosen by squared error
Criterion = Literal["given", "squared error", "drawn accuracy", "likelihood"]
Fit = Callable[[Moments], Head]


@dataclass(frozen=True)
class Choice:
    """A shrinkage and why it was chosen.

    Attributes:
        shrinkage: a.
        criterion: what was compared.
        scores: of each candidate, larger is better; empty where it was given.
    """

    shrinkage: float
    criterion: Criterion
    scores: tuple[tuple[float, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "shrinkage": self.shrinkage,
            "criterion": self.criterion,
            "scores": [list(pair) for pair in self.scores],
        }


@dataclass(frozen=True)
class Halves:
    """The two halves of the images, each to be scored by what was fitted to the other."""

    first: Moments
    second: Moments

    @classmethod
    def of(cls, totals: Totals) -> "Halves":
        """The halves of the sums of all clients."""
        return cls(moments_of(totals, 0), moments_of(totals, 1))

    @property
    def usable(self) -> bool:
        """Whether both have images."""
        return self.first.number >= 1 and self.second.number >= 1

    def directions(self) -> list[tuple[Moments, Moments, float]]:
        """(fitted to, scored on, share of all images that are scored), both ways."""
        total = self.first.number + self.second.number
        return [
            (self.first, self.second, self.second.number / total),
            (self.second, self.first, self.first.number / total),
        ]


def choose_ridge(halves: Halves, *, intercept: bool = True) -> Choice:
    """The shrinkage with the least squared error on the other half."""
    if not halves.usable:
        return Choice(SHRINKAGES[len(SHRINKAGES) // 2], "given")
    scores = dict.fromkeys(SHRINKAGES, 0.0)
    for fitted, test, share in halves.directions():
        equations: Regression = regression(fitted, intercept=intercept)
        for candidate in SHRINKAGES:
            scores[candidate] -= share * squared_error(equations.head(candidate), test)
    return _best(scores, "squared error")


def choose_gaussian(halves: Halves, kind: Kind, fit: Callable[[Moments, float], Head]) -> Choice:
    """The shrinkage of a Gaussian head.

    Args:
        halves: of the images.
        kind: of the head.
        fit: moments and a shrinkage -> the head.
    """
    if kind == "nearest-mean" or not halves.usable:
        return Choice(1.0 if kind == "nearest-mean" else SHRINKAGES[len(SHRINKAGES) // 2], "given")
    classes, width = halves.first.sums.shape
    affordable = kind == "qda" or float(classes * width) ** 2 <= MOST_DRAWING
    if halves.first.per_class and affordable:
        scores = dict.fromkeys(SHRINKAGES, 0.0)
        for fitted, test, share in halves.directions():
            for candidate in SHRINKAGES:
                head = fit(fitted, candidate)
                scores[candidate] += share * draw_scores(head, test).accuracy()
        return _best(scores, "drawn accuracy")
    if kind == "naive-bayes":
        return _choose_by_likelihood(halves)
    return _choose_by_regression(halves)


def _choose_by_regression(halves: Halves) -> Choice:
    """For LDA: (1 - a) S + a v I is n S + l I up to a factor, with l = n v a / (1 - a)."""
    scores = dict.fromkeys(SHRINKAGES, 0.0)
    for fitted, test, share in halves.directions():
        equations = regression(fitted)
        size = float(equations.scatter.diagonal().mean())
        spread = fitted.number * float(fitted.within.diagonal().mean())
        for candidate in SHRINKAGES:
            penalty = spread * candidate / (1 - candidate)
            same = penalty / max(penalty + size, 1e-12)
            scores[candidate] -= share * squared_error(equations.head(same), test)
    return _best(scores, "squared error")


def _choose_by_likelihood(halves: Halves) -> Choice:
    scores = dict.fromkeys(SHRINKAGES, 0.0)
    for fitted, test, share in halves.directions():
        variances = fitted.within.diagonal()
        for candidate in SHRINKAGES:
            shrunk = (1 - candidate) * variances + candidate * variances.mean()
            likelihood = diagonal_likelihood(fitted.means, shrunk.clamp(min=1e-12), test)
            scores[candidate] += share * likelihood
    return _best(scores, "likelihood")


def _best(scores: dict[float, float], criterion: Criterion) -> Choice:
    """The candidate with the highest score; of equal ones the larger shrinkage."""
    best = max(scores, key=lambda candidate: (scores[candidate], candidate))
    return Choice(best, criterion, tuple(scores.items()))


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the halves say about a head.

    Attributes:
        accuracy: of drawn scores, heads fitted to one half and drawn from the other; too high.
        low: from where to where the accuracy of real images is to be expected.
        high: the same.
        temperature: by which logits are divided to be log-odds.
        squared_error: of a linear head of one half on the other, exact; None for others.
    """

    accuracy: float
    low: float
    high: float
    temperature: float
    squared_error: float | None

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "accuracy of drawn scores": round(self.accuracy, 4),
            "plausible accuracy": [round(self.low, 4), round(self.high, 4)],
            "temperature": self.temperature,
            "squared error": self.squared_error,
        }


def estimate_head(halves: Halves, fit: Fit, *, exact: bool) -> Estimate | None:
    """What the halves say about a head; None where one of them is empty.

    Args:
        halves: of the images.
        fit: moments -> the head, with a fixed shrinkage.
        exact: whether the squared error of the logits means something, as for ridge.
    """
    if not halves.usable:
        return None
    parts: list[tuple[Drawn, float]] = []
    error = 0.0
    for fitted, test, share in halves.directions():
        head = fit(fitted)
        parts.append((draw_scores(head, test), share))
        if exact:
            error += share * squared_error(head, test)  # type: ignore[arg-type]
    drawn = join_draws(parts)
    accuracy = drawn.accuracy()
    source = "by class" if halves.first.per_class else "shared"
    if not isinstance(head, LinearHead):
        source = "quadratic"
    low, high = plausible(accuracy, drawn, source)
    return Estimate(accuracy, low, high, fit_temperature(drawn), error if exact else None)


def fit_gaussian(kind: Kind, shrinkage: float, log_prior: Tensor | None) -> Fit:
    """A function that fits a Gaussian head to moments."""

    def fit(moments: Moments) -> Head:
        return gaussian_head(moments, kind, shrinkage, log_prior)

    return fit


def fit_ridge(shrinkage: float, *, intercept: bool = True) -> Fit:
    """A function that fits a ridge head to moments."""

    def fit(moments: Moments) -> Head:
        return regression(moments, intercept=intercept).head(shrinkage)

    return fit
