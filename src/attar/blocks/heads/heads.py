"""Heads: phi (B, D) -> logits (B, C), in double precision.

With mu_c, S and S_c as in ``moments.py``, pi_c the prior and S(a) = (1 - a) S + a (tr S / D) I

    nearest mean   l_c = (mu_c^T phi - |mu_c|^2 / 2) / v              v = tr S / D
    naive Bayes    l_c = mu_c^T V^-1 phi - mu_c^T V^-1 mu_c / 2 + log pi_c      V = diag S(a)
    LDA            l_c = mu_c^T S(a)^-1 phi - mu_c^T S(a)^-1 mu_c / 2 + log pi_c
    QDA            l_c = -(phi - mu_c)^T S_c(a)^-1 (phi - mu_c) / 2 - log det S_c(a) / 2 + log pi_c
                   S_c(a) = (1 - a) S_c + a S(a)
    ridge          W = (X + l I)^-1 Y, l = a / (1 - a) tr X / D, X the scatter of phi around its
                   mean, Y that of phi and the one-hot labels; intercept from the means

Naive Bayes, LDA and QDA are the heads of GH-OFL (Turazza, Picone and Mamei, ICLR 2026). Ridge is
what AFL (He et al., CVPR 2025) aggregates: its clients send the solutions of their own normal
equations and the server combines them to the solution of the sum; here the sums themselves are
added, which gives the same normal equations. One setting ``a`` from 0 to 1 stands for all of
them, so that it does not depend on the scale of the features.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attar.blocks.heads.moments import Moments, shrink

Kind = Literal["nearest-mean", "naive-bayes", "lda", "qda"]
Prior = Literal["counts", "even"]
MOST_SHRINKAGE = 0.9999  # of ridge, whose penalty is infinite at 1
ABSENT = -1e4  # the logit of a class without images, which is below all others


@dataclass(frozen=True, eq=False)
class LinearHead:
    """logits = weight phi + bias.

    Attributes:
        weight: (C, D).
        bias: (C,).
    """

    weight: Tensor
    bias: Tensor

    def logits(self, phi: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        return phi @ self.weight.T + self.bias

    def divided(self, temperature: float) -> "LinearHead":
        """The same head with its logits divided by a temperature."""
        return LinearHead(self.weight / temperature, self.bias / temperature)

    def of_classes(self, rows: Tensor) -> "LinearHead":
        """The head of some of the classes, by number."""
        return LinearHead(self.weight[rows], self.bias[rows])


@dataclass(frozen=True, eq=False)
class QuadraticHead:
    """``logits_c = bias_c - |factor_c^T (phi - mean_c)|^2 / 2``.

    Attributes:
        means: (C, D).
        factors: (C, D, D) lower triangular, factor factor^T = S_c^-1.
        bias: (C,).
    """

    means: Tensor
    factors: Tensor
    bias: Tensor

    def logits(self, phi: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        columns = [
            bias - ((phi - mean) @ factor).square().sum(1) / 2
            for mean, factor, bias in zip(self.means, self.factors, self.bias, strict=True)
        ]
        return torch.stack(columns, 1)

    def divided(self, temperature: float) -> "QuadraticHead":
        """The same head with its logits divided by a temperature."""
        return QuadraticHead(self.means, self.factors / temperature**0.5, self.bias / temperature)

    def of_classes(self, rows: Tensor) -> "QuadraticHead":
        """The head of some of the classes, by number."""
        return QuadraticHead(self.means[rows], self.factors[rows], self.bias[rows])


Head = LinearHead | QuadraticHead


def gaussian_head(
    moments: Moments, kind: Kind, shrinkage: float, log_prior: Tensor | None = None
) -> Head:
    """The head of Gaussian classes.

    Args:
        moments: of the images.
        kind: what the classes share; see the module.
        shrinkage: a; nearest mean takes none.
        log_prior: (C,), up to a constant; None for even priors. Nearest mean takes none.
    """
    prior = torch.zeros_like(moments.counts) if log_prior is None else log_prior
    covariance = moments.within
    if kind == "qda":
        return _quadratic(moments, shrinkage, prior)
    if kind == "nearest-mean":
        spread = float(covariance.diagonal().mean())
        directions = moments.means / (spread if spread > 0 else 1.0)
        prior = torch.zeros_like(prior)
    elif kind == "naive-bayes":
        variances = covariance.diagonal()
        shrunk = ((1 - shrinkage) * variances + shrinkage * variances.mean()).clamp(min=1e-12)
        directions = moments.means / (shrunk if float(variances.sum()) > 0 else 1.0)
    else:
        factor = factorise(shrink(covariance, shrinkage))
        directions = torch.cholesky_solve(moments.means.T, factor).T
    bias = prior - (directions * moments.means).sum(1) / 2
    return _centred(directions, bias, moments.held)


@dataclass(frozen=True, eq=False)
class Regression:
    """The normal equations of the regression of one-hot labels on features.

    Attributes:
        scatter: X, of the features, (D, D).
        cross: Y, of features and labels, (D, C).
        mean: what the features are taken around, (D,): their mean, or 0 without intercept.
        target: the same of the labels, (C,).
    """

    scatter: Tensor
    cross: Tensor
    mean: Tensor
    target: Tensor

    def head(self, shrinkage: float) -> LinearHead:
        """The ridge head with this shrinkage a."""
        share = min(shrinkage, MOST_SHRINKAGE)
        factor = factorise(shrink(self.scatter, share))
        weight = (1 - share) * torch.cholesky_solve(self.cross, factor).T
        return LinearHead(weight, self.target - weight @ self.mean)


def regression(moments: Moments, *, intercept: bool = True) -> Regression:
    """The normal equations of some images.

    Args:
        moments: of the images.
        intercept: whether a constant is fitted, which is not shrunk.
    """
    number = max(1.0, moments.number)
    mean = moments.sums.sum(0) / number
    target = moments.counts / number
    if not intercept:
        mean, target = torch.zeros_like(mean), torch.zeros_like(target)
    scatter = moments.positive(moments.gram - number * torch.outer(mean, mean))
    cross = moments.sums.T - number * torch.outer(mean, target)
    return Regression(scatter, cross, mean, target)


def hide_absent(head: LinearHead, held: Tensor) -> LinearHead:
    """The head whose classes without images are never chosen."""
    return LinearHead(head.weight * held[:, None], head.bias.masked_fill(~held, ABSENT))


def factorise(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a matrix, to whose diagonal the least is added that makes it
    positive; nothing where it is.
    """
    size = max(float(matrix.abs().max()), 1e-12)
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    for power in range(-16, 6):  # from D times the largest entry on, the diagonal dominates
        if not int(failed):
            break
        factor, failed = torch.linalg.cholesky_ex(matrix + size * 10.0**power * identity)
    triangle: Tensor = factor
    return triangle


def log_prior_of(counts: Tensor, prior: Prior) -> Tensor:
    """log pi_c of counts (C,): their shares, or even; 0 images count as one here."""
    if prior == "even":
        return torch.zeros_like(counts)
    return (counts.clamp(min=1) / counts.clamp(min=1).sum()).log()


def _quadratic(moments: Moments, shrinkage: float, prior: Tensor) -> QuadraticHead:
    pooled = shrink(moments.within, shrinkage)
    factors = []
    biases = []
    identity = torch.eye(moments.width, dtype=pooled.dtype)
    for label in range(len(moments.counts)):
        own = (1 - shrinkage) * moments.covariance(label) + shrinkage * pooled
        root = factorise(own)
        precision = torch.cholesky_solve(identity, root)
        factors.append(factorise((precision + precision.mT) / 2))
        biases.append(prior[label] - root.diagonal().log().sum())
    bias = torch.stack(biases).masked_fill(~moments.held, ABSENT * moments.width)
    return QuadraticHead(moments.means, torch.stack(factors), bias)


def _centred(weight: Tensor, bias: Tensor, held: Tensor) -> LinearHead:
    """The same softmax with small numbers: what all held classes have in common is taken off."""
    weight = (weight - weight[held].mean(0)) * held[:, None]
    bias = (bias - bias[held].mean()).masked_fill(~held, ABSENT)
    return LinearHead(weight, bias)
