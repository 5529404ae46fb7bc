"""Statistics of a client's features: the optional part ``statistics`` of an upload.

They are, for each class that the client holds, the mean of the penultimate features, one
covariance around these means, and how far its own images lie from them (``nets/statistics.py``
turns that into distances). With ``epsilon`` all of it is released by the Gaussian mechanism.

**Noise.** Two uploads are neighbours if one client has one image more. Features are clipped to
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
and Wang, 2018). The guarantee is about this part alone: the weights that travel with it, and the
label counts unless withheld, are sent without noise.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attar.core import ModelSpec, Part, Upload
from attar.errors import DataError, NeedsError, SettingsError
from attar.nets.statistics import FeatureStatistics
from attar.training.batches import to_floats
from attar.training.clients import ClientData
from attar.training.gaussian import MAX_EPSILON, add_noise, gaussian_mu, system_draws

STATISTICS = "statistics"
BATCH_SIZE = 500  # images whose features are computed at a time
FIRST_RELEASE = 0.9  # of mu^2; the rest is for the two numbers of the own distances
SENSITIVITY = math.sqrt(3)  # of either release, see above
NOISY_DIMENSIONS = 16  # with noise: in a covariance of more numbers the noise prevails
FEWEST = 4  # dimensions
# A covariance of D numbers measured on hardly more than D images fits these images: the distance to
# their class tells a client's own images from others with an AUC of 0.6 to 0.9 at one image a
# dimension, 0.55 to 0.65 at three, 0.50 to 0.54 at ten.
IMAGES_A_DIMENSION = 10


@dataclass(frozen=True)
class StatisticsSettings:
    """How statistics of features are measured.

    Raises:
        SettingsError: A value is out of range; the error names all of them.
    """

    dimensions: int = 64  # wider features are projected to so many
    least: int = 5  # images of a class below which nothing is said of it
    shrinkage: float = 0.01  # of the covariance towards a multiple of the identity
    epsilon: float | None = None  # of differential privacy; None: no noise
    delta: float = 1e-5
    # B, the longest projected feature: needed with noise, and not to be read off private images
    clip: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.dimensions < 1 or self.least < 2:
            problems.append("dimensions from 1, least from 2")
        if not 0 < self.shrinkage <= 1:
            problems.append(f"shrinkage = {self.shrinkage}: above 0, at most 1")
        if self.epsilon is not None:
            if not (0 < self.epsilon <= MAX_EPSILON and 0 < self.delta < 1):
                problems.append(
                    f"epsilon = {self.epsilon}, delta = {self.delta}: epsilon above 0, at most "
                    f"{MAX_EPSILON:g}, delta below 1"
                )
            if self.clip is None or self.clip <= 0:
                problems.append(
                    "epsilon without clip: noise is scaled by the length that features are "
                    "clipped to"
                )
        if problems:
            raise SettingsError("Statistics cannot be measured like this:", problems=problems)


PLAIN = StatisticsSettings()


def add_statistics(
    upload: Upload, client: ClientData, settings: StatisticsSettings = PLAIN, device: str = "cpu"
) -> Upload:
    """Return the upload with the statistics of its classifier on the client's images.

    Args:
        upload: Of the client.
        client: Whose images are measured.
        settings: How.
        device: Where the net runs.

    Returns:
        The upload itself where it has no classifier, or the client holds too few images.

    Raises:
        DataError: The client has images of classes that the net does not know.
        NeedsError: The net does not end in a linear layer.
    """
    part = upload.parts.get("classifier")
    if part is None:  # a decoder has no features
        return upload
    if unknown := [name for name in client.classes if name not in part.classes]:
        raise DataError(
            f"{upload.client} has images of classes that its net does not know: "
            f"{', '.join(unknown[:5])}.",
            fix=f"the net's classes are {', '.join(part.classes[:10])}",
        )
    places = torch.tensor([part.classes.index(name) for name in client.classes])
    features = penultimate_features(part, client.pixels, device)
    measured = measure_statistics(features, places[client.labels], part, settings)
    if measured is None:
        return upload
    return replace(upload, parts={**upload.parts, STATISTICS: measured})


@torch.no_grad()
def penultimate_features(part: Part, pixels: Tensor, device: str = "cpu") -> Tensor:
    """Return the features that a net's last layer sees.

    Args:
        part: The net.
        pixels: uint8 (N, C, H, W).
        device: Where the net runs.

    Returns:
        (N, F), on the CPU.

    Raises:
        NeedsError: The net does not end in a linear layer of its own.
    """
    net = part.build().to(device)
    heads = [module for name, module in net.named_children() if name == "head"]
    if not heads:
        raise NeedsError(
            f"{part.spec} does not end in a linear layer of its own: there are no penultimate "
            "features to measure.",
            fix="leave the statistics out, or pack the net with a linear head",
        )
    features: list[Tensor] = []
    hook = heads[0].register_forward_pre_hook(
        lambda _, inputs: features.append(inputs[0].float().cpu())
    )
    for batch in pixels.split(BATCH_SIZE):
        net(part.preprocess(to_floats(batch.to(device), torch.float32)))
    hook.remove()
    return torch.cat(features)


def measure_statistics(
    features: Tensor,
    labels: Tensor,
    classifier: Part,
    settings: StatisticsSettings = PLAIN,
    mechanism: "GaussianMechanism | None" = None,
) -> Part | None:
    """Return the statistics of features as a part.

    Args:
        features: (N, F).
        labels: (N,), indices into the classes of ``classifier``.
        classifier: The net that the features are of.
        settings: How they are measured.
        mechanism: Adds the noise. Unless given, it draws from the system's randomness, never from
            a run's seed.

    Returns:
        None where no class has ``least`` images, or there are too few images in all.
    """
    spec = _choose_spec(features.shape[1], len(features), settings)
    if spec is None:
        return None
    net = spec.build(classifier.preprocess.input_shape, len(classifier.classes), seed=0)
    assert isinstance(net, FeatureStatistics)
    phi = net.project(features).double()
    mechanism = mechanism or GaussianMechanism(settings)
    one_hot = torch.nn.functional.one_hot(labels, len(classifier.classes)).double()
    counts = mechanism.release_first(one_hot.sum(0), 1.0)
    sums = mechanism.release_first(one_hot.T @ phi, mechanism.clip)
    squares = mechanism.release_first_symmetric(phi.T @ phi, mechanism.clip**2)
    held = counts >= max(settings.least, 3 * mechanism.first_scale)
    if not bool(held.any()):
        return None
    if not mechanism.is_on:  # images of classes that are left out do not enter the covariance
        chosen = held[labels]
        phi = phi[chosen]
        squares = phi.T @ phi
    means = torch.where(held[:, None], sums / counts.clamp(min=1)[:, None], 0.0)
    noise = mechanism.first_scale * mechanism.clip**2
    covariance = pool_covariance(squares, torch.where(held, counts, 0.0), means, noise)
    whitening = whitening_matrix(shrink_covariance(covariance, settings.shrinkage))
    net.means.copy_(means)
    net.held.copy_(held)
    net.whitening.copy_(whitening[torch.tril_indices(*covariance.shape).unbind()])
    _measure_distances(net, phi, mechanism)
    return Part(spec, net.state_dict(), classifier.classes, classifier.preprocess)


def _measure_distances(net: FeatureStatistics, phi: Tensor, mechanism: "GaussianMechanism") -> None:
    """Set mean and standard deviation of the distances of the client's own images, (N, D)."""
    longest = 3 * math.sqrt(phi.shape[1]) if mechanism.is_on else math.inf
    distances = net.distances(phi.float()).double().clamp(max=longest)
    size = torch.tensor(float(len(distances)), dtype=torch.float64)
    number = mechanism.release_second(size, 1.0).clamp(min=1)
    mean = mechanism.release_second(distances.sum(), longest) / number
    mean_square = mechanism.release_second(distances.square().sum(), longest**2) / number
    net.own_mean.copy_(mean)
    net.own_spread.copy_((mean_square - mean.square()).clamp(min=1e-4).sqrt())


def pool_covariance(squares: Tensor, counts: Tensor, means: Tensor, noise: float = 0.0) -> Tensor:
    """Return the covariance within classes.

        (sum of phi phi^T - sum_c n_c m_c m_c^T) / (n - number of classes)

    Args:
        squares: The sum of phi phi^T, (D, D).
        counts: n_c, (C,); 0 for classes that are left out.
        means: m_c, (C, D).
        noise: The standard deviation of the noise on every sum. It moves eigenvalues by up to
            2 sqrt(D) of it, so they are raised to at least that.
    """
    freedom = (counts.sum() - (counts > 0).sum()).clamp(min=1)
    within = (squares - (counts[:, None] * means).T @ means) / freedom
    values, vectors = torch.linalg.eigh((within + within.mT) / 2)
    least = 2 * math.sqrt(len(within)) * noise / freedom
    covariance: Tensor = (vectors * values.clamp(min=least)) @ vectors.mT
    return covariance


def shrink_covariance(covariance: Tensor, share: float) -> Tensor:
    """Return (1 - a) S + a (trace S / D) I; the identity where S has no trace.

    Args:
        covariance: S, (D, D).
        share: a.
    """
    size = covariance.diagonal().mean()
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    return (1 - share) * covariance + share * size * identity if bool(size > 0) else identity


def whitening_matrix(covariance: Tensor) -> Tensor:
    """Return W, lower triangular, with W W^T the inverse of the covariance."""
    triangle: Tensor = torch.linalg.cholesky(torch.linalg.inv(covariance))
    return triangle


class GaussianMechanism:
    """Adds noise to what is released first (counts, sums, squares) and second (own distances).

    Attributes:
        is_on: Whether there is noise at all.
        clip: B, the longest feature.
        first_scale: The standard deviation of the noise on a number of the first release that one
            image changes by at most 1.
        second_scale: The same of the second release.
    """

    def __init__(self, settings: StatisticsSettings, draws: torch.Generator | None = None) -> None:
        """Derive the noise from epsilon and delta.

        Args:
            settings: With ``epsilon`` None there is no noise.
            draws: Where the noise comes from; the system's randomness unless given.
        """
        self.is_on = settings.epsilon is not None
        self.clip = settings.clip or 1.0
        self.first_scale = 0.0
        self.second_scale = 0.0
        self._draws = draws
        if settings.epsilon is not None:
            mu = gaussian_mu(settings.epsilon, settings.delta)
            self.first_scale = SENSITIVITY / (mu * math.sqrt(FIRST_RELEASE))
            self.second_scale = SENSITIVITY / (mu * math.sqrt(1 - FIRST_RELEASE))
            self._draws = draws or system_draws()

    def release_first(self, exact: Tensor, unit: float) -> Tensor:
        """Return numbers of the first release with noise.

        Args:
            exact: The numbers.
            unit: How much one image changes them at most.
        """
        return self._add_noise(exact, self.first_scale * unit)

    def release_first_symmetric(self, exact: Tensor, unit: float) -> Tensor:
        """Return a symmetric matrix of the first release: noise on its upper triangle, mirrored."""
        upper = self.release_first(exact, unit).triu()
        return upper + upper.triu(1).mT

    def release_second(self, exact: Tensor, unit: float) -> Tensor:
        """Return numbers of the second release with noise; see ``release_first``."""
        return self._add_noise(exact, self.second_scale * unit)

    def _add_noise(self, exact: Tensor, scale: float) -> Tensor:
        if not self.is_on or self._draws is None:
            return exact
        return add_noise(exact, scale, self._draws)


def _choose_spec(features: int, images: int, settings: StatisticsSettings) -> ModelSpec | None:
    """Return features in as many dimensions as so many images can describe.

    None where these are fewer than ``FEWEST``.
    """
    most = settings.dimensions
    if settings.epsilon is not None:
        most = min(most, NOISY_DIMENSIONS)
    while most * IMAGES_A_DIMENSION > images:
        most //= 2
    if most < min(FEWEST, features):
        return None
    options: dict[str, int | float] = {
        "features": features,
        "dimensions": most if features > most else 0,
        "clip": settings.clip or 0.0,
    }
    if settings.epsilon is not None:
        options |= {"epsilon": settings.epsilon, "delta": settings.delta}
    return ModelSpec.of("feature-statistics", options)
