"""How well a head does on images of which only counts, sums and squares are known.

squared error   sum over images of |one-hot - logits|^2 / n: exact for a linear head, since
                it is a quadratic function of phi
likelihood      mean log density of Gaussian classes with one diagonal covariance: exact, too
drawn scores    logits drawn from what Gaussian classes with these means and covariances would
                give. Features are no Gaussians, so accuracies of drawn scores are too high:
                with the covariance of each class by 3 to 4 points where it was measured, with
                one covariance for all by 10 and more. They rank, they do not measure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attar.blocks.heads.heads import Head, LinearHead
from attar.blocks.heads.moments import Moments
from attar.seeds import rng

DRAWS = 400  # scores of each class
# By how much accuracies of drawn scores were too high: from, to.
TOO_HIGH = {"by class": (0.01, 0.06), "shared": (0.08, 0.18), "quadratic": (0.10, 0.21)}
TEMPERATURES = (1e-3, 1e3)
_SEARCH_STEPS = 60
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Drawn:
    """Logits of images that were never seen.

    Attributes:
        logits: (N, C).
        labels: (N,).
        weights: (N,), what each counts; they add up to 1.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor

    def accuracy(self) -> float:
        """The share whose largest logit is that of the label."""
        return float((self.weights * (self.logits.argmax(1) == self.labels)).sum())

    def cross_entropy(self, temperature: float = 1.0) -> float:
        """Mean of -log softmax(logits / temperature) of the label."""
        losses = torch.nn.functional.cross_entropy(
            self.logits / temperature, self.labels, reduction="none"
        )
        return float((self.weights * losses).sum())


def squared_error(head: LinearHead, test: Moments) -> float:
    """Mean over images of ``|one-hot(y) - logits|^2``.

    Args:
        head: fitted to other images.
        test: the images; with noise, as noisy as they are.
    """
    total = test.sums.sum(0)
    right = (head.weight * test.sums).sum() + (head.bias * test.counts).sum()
    squares = ((head.weight @ test.gram) * head.weight).sum()
    lengths = squares + 2 * head.bias @ (head.weight @ total)
    lengths = lengths + test.number * head.bias.square().sum()
    return float((test.number - 2 * right + lengths) / max(1.0, test.number))


def diagonal_likelihood(means: Tensor, variances: Tensor, test: Moments) -> float:
    """Mean log density of features given their class, up to a constant.

    Args:
        means: of each class, (C, D).
        variances: of each feature, (D,), positive.
        test: the images.
    """
    around = test.gram.diagonal() - 2 * (means * test.sums).sum(0)
    around = around + (test.counts[:, None] * means.square()).sum(0)
    spread = around.clamp(min=0) / max(1.0, test.number)
    return -float((variances.log() + spread / variances).sum()) / 2


def draw_scores(head: Head, test: Moments, draws: int = DRAWS) -> Drawn:
    """Logits drawn from Gaussian classes with the means and covariances of ``test``.

    The random numbers are the same for every head, so that differences between heads are hardly
    due to chance.

    Args:
        head: fitted to other images.
        test: the images that are imitated.
        draws: of each class.
    """
    logits = []
    present = test.held.nonzero().squeeze(1).tolist()
    linear = isinstance(head, LinearHead)
    shared = None if test.per_class else _spread_of_scores(head, test.within)
    for label in present:
        spread = shared
        if spread is None:
            spread = _spread_of_scores(head, test.covariance(label))
        size = spread.shape[1]
        noise = rng(0, "head scores", label, size)
        z = torch.randn(draws, size, generator=noise, dtype=torch.float64)
        mean = test.means[label][None]
        if linear:
            logits.append(head.logits(mean) + z @ spread.T)
        else:
            logits.append(head.logits(mean + z @ spread.T))
    labels = torch.tensor(present).repeat_interleave(draws)
    shares = test.counts[present] / test.counts[present].sum() / draws
    return Drawn(torch.cat(logits), labels, shares.repeat_interleave(draws))


def join_draws(parts: list[tuple[Drawn, float]]) -> Drawn:
    """Several sets of drawn scores as one, each with its share of the weight."""
    return Drawn(
        torch.cat([drawn.logits for drawn, _ in parts]),
        torch.cat([drawn.labels for drawn, _ in parts]),
        torch.cat([share * drawn.weights for drawn, share in parts]),
    )


def fit_temperature(drawn: Drawn) -> float:
    """The temperature with the least cross entropy, by golden-section search on its logarithm."""
    low, high = (torch.tensor(end).log().item() for end in TEMPERATURES)
    for _ in range(_SEARCH_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        ends = [drawn.cross_entropy(float(torch.tensor(end).exp())) for end in (left, right)]
        low, high = (low, right) if ends[0] < ends[1] else (left, high)
    return float(torch.tensor((low + high) / 2).exp())


def plausible(accuracy: float, drawn: Drawn, source: str) -> tuple[float, float]:
    """Where the accuracy of real images is to be expected, given that of drawn scores.

    Args:
        accuracy: of the drawn scores.
        drawn: the scores.
        source: how they were drawn, one of ``TOO_HIGH``.
    """
    chance = 2 * (accuracy * (1 - accuracy) * float(drawn.weights.square().sum())) ** 0.5
    least, most = TOO_HIGH[source]
    return max(0.0, accuracy - most - chance), min(1.0, accuracy - least + chance)


def _spread_of_scores(head: Head, covariance: Tensor) -> Tensor:
    """A root of the covariance of the logits, or of phi where logits are no linear function."""
    if isinstance(head, LinearHead):
        covariance = head.weight @ covariance @ head.weight.T
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    root: Tensor = vectors * values.clamp(min=0).sqrt()
    return root
