"""What a client measures of its features before it sends them, when it agrees to: the part
``statistics`` of an upload.

Per class that it holds the mean of the penultimate features, one covariance around these means,
and how far its own images lie from them (``nets/statistics.py`` turns that into distances). With
``epsilon`` all of it is released by the Gaussian mechanism.

Noise. Two uploads are neighbours if one client has one image more. Features are clipped to
length B (``clip``), so one image changes

    the table of class counts            by 1 in one entry
    the sums of features of each class   by a vector of length at most B, in one row
    the sum of phi phi^T                 by a matrix of Frobenius norm |phi|^2 at most B^2

and, these divided by 1, B and B^2, the whole first release by at most sqrt(3). Means and
covariance follow from it without looking at the images again. The own distances are measured
with what was released and cut off at R = 3 sqrt(D): the sums of d and d^2, divided by R and R^2,
change by at most sqrt(2), their number by 1: sqrt(3) again. Gaussian noise of sensitivity / mu
on every number is mu-GDP (Dong, Roth and Su, 2022), two releases with mu_1 and mu_2 are
sqrt(mu_1^2 + mu_2^2)-GDP also where the second depends on the first, and mu-GDP is (epsilon,
delta)-DP for delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) (Balle
and Wang, 2018). The promise is about this part alone: the weights that travel with it, and the
label counts unless withheld, were made without noise.
"""

import math
import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attar.core import ModelSpec, Part, Upload
from attar.errors import DataError, NeedsError, SettingsError
from attar.nets.statistics import FeatureStatistics
from attar.training.batches import canonical
from attar.training.clients import ClientData

STATISTICS = "statistics"
MEASURED = 500  # images at a time
FIRST_RELEASE = 0.9  # of mu^2; the rest is for the two numbers of the own distances
SENSITIVITY = math.sqrt(3)  # of either release, see above
MAX_EPSILON = 100.0  # who promises more promises nothing
NOISY_DIMENSIONS = 16  # with noise: a covariance of more numbers drowns in it
FEWEST = 4  # dimensions
# A covariance of D numbers measured on hardly more than D images fits these images: the distance to
# their class tells a client's own
# images from others with an AUC of 0.6 to 0.9 at one image a dimension, 0.55 to 0.65 at three, 0.50
# to 0.54 at ten.
IMAGES_A_DIMENSION = 10


@dataclass(frozen=True)
class StatisticsSettings:
    """How statistics of features are measured."""

    dimensions: int = 64  # wider features are projected to so many
    least: int = 5  # images of a class below which nothing is said of it
    shrinkage: float = 0.01  # of the covariance towards a multiple of the identity
    epsilon: float | None = None  # of differential privacy; None: no noise
    delta: float = 1e-5
    clip: float | None = (
        # B, the longest projected feature: where there is noise, and not found on private images
        None
    )

    def __post_init__(self) -> None:
        problems = []
        if self.dimensions < 1 or self.least < 2:
            problems.append("dimensions from 1, least from 2")
        if not 0 < self.shrinkage <= 1:
            problems.append(f"shrinkage = {self.shrinkage}: above 0, at most 1")
        if self.epsilon is not None and not (
            0 < self.epsilon <= MAX_EPSILON and 0 < self.delta < 1
        ):
            problems.append(
                f"epsilon = {self.epsilon}, delta = {self.delta}: epsilon above 0, at most {MAX_EPSILON:g}, delta below 1"
            )
        if self.epsilon is not None and (self.clip is None or self.clip <= 0):
            problems.append(
                "epsilon without clip: noise is measured against the longest feature that is let through"
            )
        if problems:
            raise SettingsError("Statistics cannot be measured like this:", problems=problems)


PLAIN = StatisticsSettings()


def with_statistics(
    upload: Upload, client: ClientData, settings: StatisticsSettings = PLAIN, device: str = "cpu"
) -> Upload:
    """The upload with the statistics of its classifier on the client's images; as it was where
    it holds too few of every class.
    """
    part = upload.parts.get("classifier")
    if part is None:  # a decoder has no features
        return upload
    if unknown := [name for name in client.classes if name not in part.classes]:
        raise DataError(
            f"{upload.client} has images of classes that its net does not know: {', '.join(unknown[:5])}.",
            fix=f"the net's classes are {', '.join(part.classes[:10])}",
        )
    places = torch.tensor([part.classes.index(name) for name in client.classes])
    measured = measure(
        penultimate(part, client.pixels, device), places[client.labels], part, settings
    )
    return (
        upload
        if measured is None
        else replace(upload, parts={**upload.parts, STATISTICS: measured})
    )


@torch.no_grad()
def penultimate(part: Part, pixels: Tensor, device: str = "cpu") -> Tensor:
    """The features (N, F) that the part's head sees, on the CPU."""
    net = part.build().to(device)
    heads = [module for name, module in net.named_children() if name == "head"]
    if not heads:
        raise NeedsError(
            f"{part.spec} does not end in a linear layer of its own: there are no penultimate features to measure.",
            fix="leave the statistics out, or pack the net with a linear head",
        )
    found: list[Tensor] = []
    hook = heads[0].register_forward_pre_hook(
        lambda _, inputs: found.append(inputs[0].float().cpu())
    )
    for some in pixels.split(MEASURED):
        net(part.preprocess(canonical(some.to(device), torch.float32)))
    hook.remove()
    return torch.cat(found)


def measure(
    features: Tensor,
    labels: Tensor,
    of: Part,
    settings: StatisticsSettings = PLAIN,
    draws: torch.Generator | None = None,
) -> Part | None:
    """The part of some features (N, F) and their labels; None where no class has ``least``
    images, or there are too few in all.

    Noise comes from the system's randomness, never from a run's seed, unless a test brings its
    own.
    """
    spec = _spec(features.shape[1], len(features), settings)
    if spec is None:
        return None
    net = spec.build(of.preprocess.input_shape, len(of.classes), seed=0)
    assert isinstance(net, FeatureStatistics)
    phi = net.project(features).double()
    noise = _Noise(settings, draws)
    one_hot = torch.nn.functional.one_hot(labels, len(of.classes)).double()
    counts = noise.first(one_hot.sum(0), 1.0)
    sums = noise.first(one_hot.T @ phi, noise.clip)
    squares = noise.first_symmetric(phi.T @ phi, noise.clip**2)
    held = counts >= max(settings.least, 3 * noise.first_scale)
    if not bool(held.any()):
        return None
    if not noise.is_on:  # what is said of nothing is not measured on it, either
        kept = held[labels]
        phi, squares = phi[kept], phi[kept].T @ phi[kept]
    means = torch.where(held[:, None], sums / counts.clamp(min=1)[:, None], 0.0)
    covariance = pooled(
        squares, torch.where(held, counts, 0.0), means, noise.first_scale * noise.clip**2
    )
    net.means.copy_(means)
    net.held.copy_(held)
    net.whitening.copy_(
        whitening(shrunk(covariance, settings.shrinkage))[
            torch.tril_indices(*covariance.shape).unbind()
        ]
    )
    longest = 3 * math.sqrt(phi.shape[1]) if noise.is_on else math.inf
    own = net.distances(phi.float()).double().clamp(max=longest)
    number = noise.second(torch.tensor(float(len(own)), dtype=torch.float64), 1.0).clamp(min=1)
    first = noise.second(own.sum(), longest) / number
    second = noise.second(own.square().sum(), longest**2) / number
    net.own_mean.copy_(first)
    net.own_spread.copy_((second - first.square()).clamp(min=1e-4).sqrt())
    return Part(spec, net.state_dict(), of.classes, of.preprocess)


def pooled(squares: Tensor, counts: Tensor, means: Tensor, noise: float = 0.0) -> Tensor:
    """The covariance within classes: (sum of phi phi^T - sum_c n_c m_c m_c^T) / (n - number of
    classes).

    Noise of this size on every sum moves its eigenvalues by up to 2 sqrt(D) of it; none is
    believed to be smaller.
    """
    freedom = (counts.sum() - (counts > 0).sum()).clamp(min=1)
    within = (squares - (counts[:, None] * means).T @ means) / freedom
    values, vectors = torch.linalg.eigh((within + within.mT) / 2)
    least = 2 * math.sqrt(len(within)) * noise / freedom
    believed: Tensor = (vectors * values.clamp(min=least)) @ vectors.mT
    return believed


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """(1 - a) S + a (trace S / D) I; the identity where there is no spread at all."""
    size, width = covariance.diagonal().mean(), len(covariance)
    identity = torch.eye(width, dtype=covariance.dtype)
    return (1 - share) * covariance + share * size * identity if bool(size > 0) else identity


def whitening(covariance: Tensor) -> Tensor:
    """W, lower triangular, with W W^T the inverse of the covariance."""
    triangle: Tensor = torch.linalg.cholesky(torch.linalg.inv(covariance))
    return triangle


class _Noise:
    """The Gaussian mechanism on what is released first (counts, sums, squares) and second (own
    distances).
    """

    def __init__(self, settings: StatisticsSettings, draws: torch.Generator | None) -> None:
        self.is_on = settings.epsilon is not None
        self.clip = settings.clip or 1.0
        self.first_scale = self._second_scale = (
            0.0  # standard deviations, where one image changes a release by at most 1
        )
        self._draws = draws
        if settings.epsilon is not None:
            mu = gaussian_privacy(settings.epsilon, settings.delta)
            self.first_scale = SENSITIVITY / (mu * math.sqrt(FIRST_RELEASE))
            self._second_scale = SENSITIVITY / (mu * math.sqrt(1 - FIRST_RELEASE))
            self._draws = draws or torch.Generator().manual_seed(
                int.from_bytes(os.urandom(8), "big") >> 1
            )

    def first(self, exact: Tensor, unit: float) -> Tensor:
        return self._added(exact, self.first_scale * unit)

    def first_symmetric(self, exact: Tensor, unit: float) -> Tensor:
        """Noise on the upper triangle, mirrored."""
        upper = self.first(exact, unit).triu()
        return upper + upper.triu(1).mT

    def second(self, exact: Tensor, unit: float) -> Tensor:
        return self._added(exact, self._second_scale * unit)

    def _added(self, exact: Tensor, scale: float) -> Tensor:
        if not self.is_on:
            return exact
        return exact + scale * torch.randn(exact.shape, generator=self._draws, dtype=exact.dtype)


def gaussian_privacy(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian mechanism (noise of sensitivity / mu) keeps (epsilon,
    delta): by bisection.
    """
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if privacy_loss(middle, epsilon) <= delta else (low, middle)
    return low


def privacy_loss(mu: float, epsilon: float) -> float:
    """delta(epsilon) of the Gaussian mechanism with sensitivity / sigma = mu (Balle and Wang,
    2018, Theorem 8).
    """
    if mu == 0:
        return 0.0
    return _normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * _normal(-mu / 2 - epsilon / mu)


def _normal(value: float) -> float:
    """Phi, the standard normal's distribution function."""
    return 0.5 * math.erfc(-value / math.sqrt(2))


def _spec(features: int, images: int, settings: StatisticsSettings) -> ModelSpec | None:
    """Features in as many dimensions as so many images may describe; None for fewer than ``FEWEST``."""
    most = (
        settings.dimensions
        if settings.epsilon is None
        else min(settings.dimensions, NOISY_DIMENSIONS)
    )
    while most * IMAGES_A_DIMENSION > images:
        most //= 2
    if most < min(FEWEST, features):
        return None
    options: dict[str, int | float] = {
        "features": features,
        "dimensions": most if features > most else 0,
    }
    options["clip"] = settings.clip or 0.0
    if settings.epsilon is not None:
        options |= {"epsilon": settings.epsilon, "delta": settings.delta}
    return ModelSpec.of("feature-statistics", options)
