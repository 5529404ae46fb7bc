"""What heads are computed from: counts, sums and squares of features in double precision."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attar.blocks.heads.totals import Totals

_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts, sums and squares of some images.

    Attributes:
        counts: n_c, (C,), none of them negative.
        sums: sum of phi for each class, (C, D).
        squares: sum of phi phi^T, (1 or C, D, D), symmetric.
        noisy: whether noise was added, so that matrices may be indefinite.
        unit: to multiples of which the clients rounded; smaller variances are none.
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor
    noisy: bool = False
    unit: float = 0.0

    @property
    def width(self) -> int:
        """D."""
        return self.sums.shape[1]

    @property
    def per_class(self) -> bool:
        """Whether there is a matrix of squares for each class."""
        return len(self.squares) == len(self.counts)

    @property
    def held(self) -> Tensor:
        """(C,) bool, which classes have images."""
        return self.counts > 0

    @cached_property
    def number(self) -> float:
        """n, the number of images."""
        return float(self.counts.sum())

    @cached_property
    def means(self) -> Tensor:
        """mu_c = sum_c / n_c, (C, D); 0 without images."""
        return self.sums / self.counts.clamp(min=1)[:, None] * self.held[:, None]

    @cached_property
    def gram(self) -> Tensor:
        """sum of phi phi^T over all images, (D, D)."""
        return self.squares.sum(0)

    @cached_property
    def within(self) -> Tensor:
        """The covariance within classes: (Gram - sum_c n_c mu_c mu_c^T) / (n - held classes)."""
        scatter = self.gram - (self.counts[:, None] * self.means).T @ self.means
        freedom = max(1.0, self.number - float(self.held.sum()))
        return self._spread(scatter / freedom)

    def covariance(self, label: int) -> Tensor:
        """S_c of one class, (D, D); ``within`` where squares are not by class or n_c < 2."""
        count = float(self.counts[label])
        if not self.per_class or count < 2:
            return self.within
        mean = self.means[label]
        scatter = self.squares[label] - count * torch.outer(mean, mean)
        return self._spread(scatter / (count - 1))

    def _spread(self, covariance: Tensor) -> Tensor:
        """A covariance, ``positive``; 0 where it is but the rounding of equal features."""
        rounding = 4 * self.unit * (1 + float(self.means.abs().max()))
        if float(covariance.diagonal().mean()) <= rounding:
            return torch.zeros_like(covariance)
        return self.positive(covariance)

    def positive(self, matrix: Tensor) -> Tensor:
        """A matrix made symmetric; with noise, its negative eigenvalues become 0."""
        matrix = (matrix + matrix.mT) / 2
        if not self.noisy:
            return matrix
        values, vectors = torch.linalg.eigh(matrix)
        positive: Tensor = (vectors * values.clamp(min=0)) @ vectors.mT
        return positive


def moments_of(totals: Totals, half: int | None = None) -> Moments:
    """Integers to double precision.

    Args:
        totals: sums of clients.
        half: 0 or 1 for one half of the images, None for all of them. Halves are added as
            integers.
    """
    halves = [half] if half is not None else [0, 1]
    unit = 2.0**-totals.bits
    counts, sums, squares = (
        values[halves].sum(0).double() for values in (totals.counts, totals.sums, totals.squares)
    )
    return Moments(counts.clamp(min=0), sums * unit, unpack(squares * unit), totals.noisy, unit)


def unpack(triangles: Tensor) -> Tensor:
    """Lower triangles row by row, (..., D (D + 1) / 2), to symmetric matrices (..., D, D)."""
    width = width_of_triangle(triangles.shape[-1])
    rows, columns = torch.tril_indices(width, width)
    matrices = triangles.new_empty(*triangles.shape[:-1], width, width)
    matrices[..., rows, columns] = triangles
    matrices[..., columns, rows] = triangles
    return matrices


def width_of_triangle(entries: int) -> int:
    """D of a triangle with D (D + 1) / 2 entries."""
    return (math.isqrt(8 * entries + 1) - 1) // 2


def shrink(covariance: Tensor, share: float) -> Tensor:
    """(1 - a) S + a (trace S / D) I; the identity where S has no trace.

    Args:
        covariance: S, (D, D).
        share: a.
    """
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    size = covariance.diagonal().mean()
    if float(size) <= _TINY:
        return identity
    return (1 - share) * covariance + share * size * identity
