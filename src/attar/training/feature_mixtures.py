"""A mixture of Gaussians for each class of a client's features, fitted by EM (for FedPFT).

The features of all images lie in a file beside the upload while a client works, since EM passes
over them many times; the file is deleted at the end and never sent. They are read ``ROWS`` at a
time, so memory holds ``ROWS`` features and the mixture of one class, however many images there are.

A class gets one Gaussian for every ``LEAST`` of its images, and as many as were asked for at most.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attar.backbones import Backbone
from attar.core import ModelSpec, Part
from attar.errors import DataError
from attar.nets.feature_mixtures import Covariance, spread_size
from attar.seeds import rng
from attar.uploads import AGREED, MIXTURES

ROWS = 2048  # features in memory at once
LEAST = 5  # images for each Gaussian
MAX_STEPS = 100  # of EM
ENOUGH = 1e-3  # gain of the mean log-likelihood below which EM ends
FLOOR = 1e-3  # smallest variance, of the mean variance of the class


class FeatureFile:
    """Features of all images of a client, in single precision, on disk.

    Args:
        path: where; None for a temporary file, which disappears with this object.
        width: D.
    """

    def __init__(self, path: Path | None, width: int) -> None:
        self._width = width
        if path is None:
            handle, name = tempfile.mkstemp(prefix="attar-", suffix=".features")
            os.close(handle)
            path = Path(name)
            weakref.finalize(self, path.unlink, missing_ok=True)
        path.touch()
        self._path = path

    def write(self, first: int, phi: Tensor) -> None:
        """Write the features of images ``first`` and following."""
        with self._path.open("r+b") as file:
            file.seek(4 * self._width * first)
            file.write(phi.float().cpu().numpy().tobytes())

    def holds(self, number: int) -> bool:
        """Whether the features of so many images are there."""
        return self._path.stat().st_size >= 4 * self._width * number

    def rows(self, places: np.ndarray) -> Iterator[Tensor]:
        """The features of some images, (at most ``ROWS``, D) at a time, in double precision."""
        whole = np.memmap(self._path, np.float32, "r").reshape(-1, self._width)
        for start in range(0, len(places), ROWS):
            chosen = whole[places[start : start + ROWS]]
            yield torch.from_numpy(np.ascontiguousarray(chosen)).double()


@dataclass(frozen=True, eq=False)
class Fitted:
    """A mixture of Gaussians.

    Attributes:
        weights: (K,).
        means: (K, D).
        spreads: (K, 1 or D) variances, or (K, D, D) lower triangular factors.
    """

    weights: Tensor
    means: Tensor
    spreads: Tensor


def make_mixtures(
    features: FeatureFile,
    labels: np.ndarray,
    backbone: Backbone,
    sums: Part,
    components: int,
    covariance: Covariance,
    seed: int,
) -> Part:
    """Fit a mixture to each class.

    Args:
        features: of all images.
        labels: (N,), of the same.
        backbone: that they are of.
        sums: of the same images; gives classes and what is agreed.
        components: Gaussians of a class, at most.
        covariance: of each.
        seed: of the first means.

    Raises:
        DataError: features of a class cannot be described.
    """
    spec = mixtures_spec(sums.spec, components, covariance)
    width = sums.state["sums"].shape[-1]
    classes = len(sums.classes)
    state = {
        "counts": torch.from_numpy(np.bincount(labels, minlength=classes)).to(torch.int64),
        "weights": torch.zeros(classes, components),
        "means": torch.zeros(classes, components, width),
        "spreads": torch.zeros(classes, components, spread_size(width, covariance)),
    }
    rows, columns = torch.tril_indices(width, width).unbind()
    for label in np.unique(labels).tolist():
        places = np.flatnonzero(labels == label)
        draws = rng(seed, MIXTURES, sums.classes[label])
        number = max(1, min(components, len(places) // LEAST))
        fitted = fit_mixture(features, places, number, covariance, draws)
        spreads = fitted.spreads
        if covariance == "full":
            spreads = spreads[:, rows, columns]
        state["weights"][label, :number] = fitted.weights.float()
        state["means"][label, :number] = fitted.means.float()
        state["spreads"][label, :number] = spreads.float()
    if not all(bool(values.isfinite().all()) for values in state.values()):
        raise DataError(
            f"No mixture of Gaussians fits the features of {backbone.name}.",
            fix="use fewer components (--mixture), or clip the features (--clip)",
        )
    return Part(spec, state, sums.classes, backbone.preprocess)


def mixtures_spec(sums: ModelSpec, components: int, covariance: Covariance) -> ModelSpec:
    """Return what mixtures of these settings are, as options of ``feature-mixtures``.

    Args:
        sums: spec of the sums of the same images.
        components: Gaussians of a class, at most.
        covariance: of each.
    """
    options = dict(sums.options)
    agreed = {name: options[name] for name in AGREED if name in options}
    return ModelSpec.of(
        "feature-mixtures", {**agreed, "components": components, "covariance": covariance}
    )


def fit_mixture(
    features: FeatureFile,
    places: np.ndarray,
    components: int,
    covariance: Covariance,
    draws: torch.Generator,
) -> Fitted:
    """Fit Gaussians to the features of some images by EM, from k-means++.

    Args:
        features: of all images.
        places: which images.
        components: K.
        covariance: of each Gaussian.
        draws: of the first means.
    """
    middle, variances = _mean_and_variances(features, places)
    floor = FLOOR * float(variances.mean()) + torch.finfo(torch.float32).tiny
    sample = np.sort(places[torch.randperm(len(places), generator=draws)[:ROWS].numpy()])
    first = next(features.rows(sample)) - middle
    means = _spread_out(first, components, draws)
    weights = torch.full((components,), 1 / components, dtype=torch.float64)
    start = variances.clamp(min=floor)
    if covariance == "full":
        spreads = start.sqrt().diag().repeat(components, 1, 1)
    else:
        spreads = start.repeat(components, 1)
        if covariance == "spherical":
            spreads = spreads.mean(1, keepdim=True)
    fitted = Fitted(weights, means, spreads)
    before = -math.inf
    for _ in range(MAX_STEPS if components > 1 else 2):
        likelihood, fitted = _em_step(features, places, middle, fitted, covariance, floor)
        if likelihood - before < ENOUGH:
            break
        before = likelihood
    return Fitted(fitted.weights, fitted.means + middle, fitted.spreads)


def _mean_and_variances(features: FeatureFile, places: np.ndarray) -> tuple[Tensor, Tensor]:
    number = len(places)
    middle = torch.stack([rows.sum(0) for rows in features.rows(places)]).sum(0) / number
    squares = [(rows - middle).square().sum(0) for rows in features.rows(places)]
    return middle, torch.stack(squares).sum(0) / number


def _spread_out(rows: Tensor, number: int, draws: torch.Generator) -> Tensor:
    """First means far from each other: k-means++ (Arthur and Vassilvitskii, 2007)."""
    chosen = [int(torch.randint(len(rows), (), generator=draws))]
    nearest = (rows - rows[chosen[0]]).square().sum(1)
    while len(chosen) < number:
        odds = nearest + torch.finfo(torch.float64).tiny  # equal images may all be chosen already
        chosen.append(int(torch.multinomial(odds, 1, generator=draws)))
        nearest = torch.minimum(nearest, (rows - rows[chosen[-1]]).square().sum(1))
    return rows[chosen]


def _em_step(
    features: FeatureFile,
    places: np.ndarray,
    middle: Tensor,
    fitted: Fitted,
    covariance: Covariance,
    floor: float,
) -> tuple[float, Fitted]:
    """One step of EM: the mean log-likelihood before it, and the new mixture."""
    components, width = fitted.means.shape
    total = torch.zeros(components, dtype=torch.float64)
    first = torch.zeros(components, width, dtype=torch.float64)
    size = (components, width, width) if covariance == "full" else (components, width)
    second = torch.zeros(size, dtype=torch.float64)
    likelihood = 0.0
    for chunk in features.rows(places):
        rows = chunk - middle
        joint = log_density(rows, fitted) + fitted.weights.log()
        evidence = joint.logsumexp(1, keepdim=True)
        likelihood += float(evidence.sum())
        shares = (joint - evidence).exp()
        total += shares.sum(0)
        first += shares.T @ rows
        if covariance == "full":
            for k in range(components):
                second[k] += (rows * shares[:, k : k + 1]).T @ rows
        else:
            second += shares.T @ rows.square()
    count = total.clamp(min=torch.finfo(torch.float64).tiny)
    means = first / count[:, None]
    weights = total / total.sum()
    return likelihood / len(places), Fitted(
        weights, means, _spreads(second, count, means, covariance, floor)
    )


def _spreads(
    second: Tensor, count: Tensor, means: Tensor, covariance: Covariance, floor: float
) -> Tensor:
    """Variances, or factors of covariances, of weighted squares."""
    if covariance == "full":
        matrices = second / count[:, None, None] - means[:, :, None] * means[:, None, :]
        identity = torch.eye(means.shape[1], dtype=torch.float64)
        factors: Tensor = torch.linalg.cholesky((matrices + matrices.mT) / 2 + floor * identity)
        return factors
    variances = (second / count[:, None] - means.square()).clamp(min=floor)
    return variances.mean(1, keepdim=True) if covariance == "spherical" else variances


def log_density(rows: Tensor, fitted: Fitted) -> Tensor:
    """log N(row; mean_k, S_k), (N, K).

    Args:
        rows: (N, D).
        fitted: the Gaussians.
    """
    width = rows.shape[1]
    constant = width * math.log(2 * math.pi)
    if fitted.spreads.dim() == 3:
        columns = []
        for mean, factor in zip(fitted.means, fitted.spreads, strict=True):
            white = torch.linalg.solve_triangular(factor, (rows - mean).T, upper=False)
            size = 2 * factor.diagonal().log().sum()
            columns.append(-0.5 * (white.square().sum(0) + size + constant))
        return torch.stack(columns, 1)
    variances = fitted.spreads.expand_as(fitted.means)
    precise = 1 / variances
    distances = (
        rows.square() @ precise.T
        - 2 * rows @ (fitted.means * precise).T
        + (fitted.means.square() * precise).sum(1)
    )
    return -0.5 * (distances + variances.log().sum(1) + constant)
