"""Sums of a backbone's features over a client's images: what they are, and their noise.

The images are in two halves by a hash of their bytes. Each half has its counts, sums and squares
(``nets/feature_sums.py``), added up in double precision and rounded once, to multiples of 2^-bits.

**Noise.** Two clients are neighbours if one has one image more. That image is in one half, the
half is decided by the image alone, and with phi clipped to length B (``clip``) it changes

    the counts of its half     by 1 in one entry
    the sums of its half       by phi in one row: a vector of length at most B
    the squares of its half    by phi phi^T, in one matrix: Frobenius length |phi|^2, at most B^2

and nothing of the other half. The three are released together with Gaussian noise of standard
deviations s_c, s_s and s_q on every number of a count, of a sum, and of a whole D x D matrix. In
units of its noise the image moves the release by at most

    mu = sqrt((1 / s_c)^2 + (B / s_s)^2 + (B^2 / s_q)^2)

so the release is mu-GDP, which ``gaussian.py`` turns into one (epsilon, delta) for all of it. The
matrix with its noise is made symmetric, (Q + Q^T) / 2, which only looks at what was released; so
a number beside the diagonal has noise of s_q / sqrt(2). ``SHARES`` says which part of mu^2 each
of the three has. The halves are of different images, so both together keep the same (epsilon,
delta).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.backbones import Backbone
from attar.core import ModelSpec, Part
from attar.errors import DataError, SettingsError
from attar.nets.feature_mixtures import MAX_COMPONENTS, Covariance, spread_size
from attar.nets.feature_sums import HALVES, MAX_BITS, MAX_DIMENSIONS
from attar.training.gaussian import MAX_EPSILON, add_noise, gaussian_mu, system_draws
from attar.uploads import LARGEST_SUM, MAX_FILE

SUMS = "sums"
# Of mu^2. A class mean is a sum divided by a count, so the sums decide most; the squares have so
# many numbers that for a small epsilon little of them is seen.
SHARES = {"counts": 0.1, "sums": 0.5, "squares": 0.4}


@dataclass(frozen=True)
class SumsSettings:
    """How features are summed; equal at all clients of a federation, but for the noise.

    Raises:
        SettingsError: A value is out of range; the error names all of them.
    """

    features: int = 0  # to which a backbone's are projected; 0: as many as it has
    per_class: bool = False  # a matrix of squares for each class
    clip: float = 0.0  # B, the longest phi; 0: not clipped. Not to be read off private images
    epsilon: float | None = None  # of differential privacy; None: no noise
    delta: float = 1e-5
    bits: int = 24  # numbers are multiples of 2^-bits
    mixture: int = 0  # Gaussians for each class beside the sums; 0: none
    mixture_covariance: Covariance = "diagonal"  # of each
    seed: int = 0  # of the mixtures

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.features <= MAX_DIMENSIONS:
            problems.append(f"features = {self.features}: 0 to {MAX_DIMENSIONS}")
        if not 1 <= self.bits <= MAX_BITS:
            problems.append(f"bits = {self.bits}: 1 to {MAX_BITS}")
        if not 0 <= self.clip <= MAX_DIMENSIONS:
            problems.append(f"clip = {self.clip}: 0 to {MAX_DIMENSIONS}")
        if not 0 <= self.mixture <= MAX_COMPONENTS:
            problems.append(f"mixture = {self.mixture}: 0 to {MAX_COMPONENTS}")
        if self.mixture and self.epsilon is not None:
            problems.append("epsilon with mixture: noise in the sums does not cover mixtures")
        if self.epsilon is not None:
            if not (0 < self.epsilon <= MAX_EPSILON and 0 < self.delta < 1):
                problems.append(
                    f"epsilon = {self.epsilon}, delta = {self.delta}: epsilon above 0, at most "
                    f"{MAX_EPSILON:g}, delta above 0, below 1"
                )
            if not self.clip:
                problems.append(
                    "epsilon without clip: noise is scaled by the length that features are "
                    "clipped to"
                )
        if problems:
            raise SettingsError("Features cannot be summed like this:", problems=problems)


class SumTables:
    """Counts, sums and squares that grow batch by batch, in double precision.

    Attributes:
        counts: (2, C), whole.
        sums: (2, C, D).
        squares: (2, 1 or C, D, D).
    """

    def __init__(
        self, classes: int, width: int, *, per_class: bool, device: torch.device | str = "cpu"
    ) -> None:
        """Start at 0.

        Args:
            classes: C.
            width: D.
            per_class: Whether there is a matrix of squares for each class.
            device: Where they are added up.
        """
        matrices = classes if per_class else 1
        self.per_class = per_class
        self.counts = torch.zeros(HALVES, classes, dtype=torch.float64)
        self.sums = torch.zeros(HALVES, classes, width, dtype=torch.float64, device=device)
        size = (HALVES, matrices, width, width)
        self.squares = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, phi: Tensor, labels: Tensor, halves: Tensor) -> None:
        """Add a batch.

        Args:
            phi: (B, D), double precision.
            labels: (B,) int64, on the CPU.
            halves: (B,) int64, 0 or 1, on the CPU.
        """
        for half in range(HALVES):
            chosen = (halves == half).nonzero().flatten()
            if not len(chosen):
                continue
            own = labels[chosen]
            one_hot = torch.nn.functional.one_hot(own, self.counts.shape[1]).double()
            self.counts[half] += one_hot.sum(0)
            rows = phi[chosen.to(phi.device)]
            self.sums[half] += one_hot.to(phi.device).T @ rows
            if not self.per_class:
                self.squares[half, 0] += rows.T @ rows
                continue
            for label in own.unique().tolist():
                of_class = rows[(own == label).nonzero().flatten().to(phi.device)]
                self.squares[half, label] += of_class.T @ of_class

    def state(self) -> dict[str, Tensor]:
        """The tables by name, on the CPU."""
        return {"counts": self.counts, "sums": self.sums.cpu(), "squares": self.squares.cpu()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take tables that were saved.

        Raises:
            ValueError: They are of another size.
        """
        for name, table in vars(self).items():
            if isinstance(table, Tensor):
                if state[name].shape != table.shape:
                    raise ValueError(f"{name} is of another size")
                table.copy_(state[name])


def make_sums(
    tables: SumTables,
    backbone: Backbone,
    classes: tuple[str, ...],
    settings: SumsSettings,
    draws: torch.Generator | None = None,
) -> Part:
    """Round sums, with noise if the settings ask for it, to the part of an upload.

    Args:
        tables: Of all images.
        backbone: That the features are of.
        classes: Names of the rows.
        settings: How they were summed.
        draws: Where noise comes from; the system's randomness unless given.

    Raises:
        DataError: A number is too large to be added to those of other clients.
    """
    counts = tables.counts
    sums = tables.sums.cpu()
    squares = tables.squares.cpu()
    if settings.epsilon is not None:
        counts, sums, squares = _release(counts, sums, squares, settings, draws or system_draws())
    rows, columns = torch.tril_indices(*squares.shape[-2:]).unbind()
    triangle = squares[..., rows, columns]
    scale = 2.0**settings.bits
    state = {
        "counts": counts.round(),
        "sums": (sums * scale).round(),
        "squares": (triangle * scale).round(),
    }
    largest = max(float(value.abs().max()) for value in state.values())
    if not largest <= LARGEST_SUM:  # also true for NaN
        raise DataError(
            f"The sums of {backbone.name}'s features are too large for a grid of "
            f"2^-{settings.bits}: the sums of many clients would overflow.",
            fix="clip the features (--clip), the same at every client",
        )
    return Part(
        sums_spec(backbone, settings),
        {name: value.to(torch.int64) for name, value in state.items()},
        classes,
        backbone.preprocess,
    )


def sums_spec(backbone: Backbone, settings: SumsSettings) -> ModelSpec:
    """Return what the sums of these settings are, as options of ``feature-sums``."""
    options: dict[str, str | int | float | bool] = {
        "backbone": backbone.name,
        "fingerprint": backbone.fingerprint(settings.features, settings.clip, settings.bits),
        "features": backbone.features,
        "dimensions": settings.features,
        "clip": settings.clip,
        "bits": settings.bits,
        "per_class": settings.per_class,
    }
    if settings.epsilon is not None:
        options |= {"epsilon": settings.epsilon, "delta": settings.delta}
    return ModelSpec.of("feature-sums", options)


def check_size(backbone: Backbone, classes: int, settings: SumsSettings) -> None:
    """Refuse sums that do not fit into a file, before any image is read.

    Raises:
        SettingsError: They do not, or the projection is no projection.
    """
    width = settings.features or backbone.features
    if settings.features and settings.features >= backbone.features:
        raise SettingsError(
            f"--features {settings.features}: {backbone.name} has {backbone.features}.",
            fix="name fewer, or leave --features out",
        )
    if width > MAX_DIMENSIONS:
        raise SettingsError(
            f"{backbone.name} has {width} features; sums are of at most {MAX_DIMENSIONS}.",
            fix="project them, for example by --features 256",
        )
    matrices = classes if settings.per_class else 1
    size = 8 * HALVES * (classes * (1 + width) + matrices * width * (width + 1) // 2)
    gaussian = 1 + width + spread_size(width, settings.mixture_covariance)
    size += 4 * classes * settings.mixture * gaussian
    if size > MAX_FILE - 2**20:
        raise SettingsError(
            f"The sums would take {size / 2**30:.1f} GiB, a file holds {MAX_FILE / 2**30:.0f}.",
            fix="project the features, for example by --features 256",
        )


def noise_scales(epsilon: float, delta: float, clip: float) -> dict[str, float]:
    """Return the standard deviations s_c, s_s and s_q of the noise on counts, sums and squares.

    Args:
        epsilon: Of differential privacy.
        delta: Of the same.
        clip: B.
    """
    mu = gaussian_mu(epsilon, delta)
    units = {"counts": 1.0, "sums": clip, "squares": clip**2}
    return {name: unit / (mu * math.sqrt(SHARES[name])) for name, unit in units.items()}


def _release(
    counts: Tensor, sums: Tensor, squares: Tensor, settings: SumsSettings, draws: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, sums and squares with noise."""
    assert settings.epsilon is not None
    scales = noise_scales(settings.epsilon, settings.delta, settings.clip)
    noisy = torch.stack(
        [
            torch.stack([add_noise(matrix, scales["squares"], draws) for matrix in half])
            for half in squares
        ]
    )
    return (
        add_noise(counts, scales["counts"], draws),
        add_noise(sums, scales["sums"], draws),
        (noisy + noisy.mT) / 2,
    )
