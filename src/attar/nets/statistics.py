"""Statistics of a client's penultimate features, as a net: features -> distances from them.

A ``FeatureStatistics`` has no trained weights. Its buffers are what a client measured
(``training/statistics.py``): the mean of every class that it holds, one matrix that whitens the
spread around these means, and the distances of its own images.

    phi(x)   the features, projected to ``dimensions`` by signs that everybody knows, and clipped
             to length ``clip`` if noise was added
    d(x)     min over held c of ||W^T (phi(x) - mean_c)||, the Mahalanobis distance:
             W W^T is the inverse of the shrunk covariance
    z(x)     (d(x) - mean of own distances) / their standard deviation: 0 for an image like the
             client's own, large for an unfamiliar one

W is lower triangular with a positive diagonal, so it is the covariance in another form, of the
same size. Unlike for a covariance, every W that a file may hold gives distances.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from attar.nets.limits import require_options
from attar.nets.registry import Shape, register
from attar.settings import Scalar

MAX_DIMENSIONS = 512
_TINY = 1e-12
_LEAST_SPREAD = 1e-6
_FAR = 1e12  # the squared distance of a class that is not held


class FeatureStatistics(nn.Module):
    """Features (B, F) -> distances and z-scores, each (B,).

    Args:
        num_classes: C.
        features: F.
        dimensions: D; 0 takes the features without projection, D = F.
        clip: length to which features are clipped; 0 for none.

    Attributes:
        means: (C, D), 0 where a class is not held.
        held: (C,) bool.
        whitening: (D (D + 1) / 2,), the lower triangle of W row by row.
        own_mean: mean of the client's own distances.
        own_spread: their standard deviation.
        projection: (F, D).
        places: (D, D), where an entry of W is in ``whitening``.
        lower: (D, D), 1 on and below the diagonal.
    """

    means: Tensor
    held: Tensor
    whitening: Tensor
    own_mean: Tensor
    own_spread: Tensor
    projection: Tensor
    places: Tensor
    lower: Tensor

    def __init__(self, num_classes: int, features: int, dimensions: int, clip: float) -> None:
        super().__init__()
        self.features = features
        self.clip = clip
        self.projected = dimensions > 0
        width = dimensions or features
        rows, columns = torch.tril_indices(width, width, device="cpu")
        places = torch.zeros(width, width, dtype=torch.int64, device="cpu")
        places[rows, columns] = torch.arange(len(rows), device="cpu")
        self.register_buffer("means", torch.zeros(num_classes, width))
        self.register_buffer("held", torch.ones(num_classes, dtype=torch.bool))
        self.register_buffer("whitening", torch.zeros(len(rows)))
        self.register_buffer("own_mean", torch.zeros(()))
        self.register_buffer("own_spread", torch.ones(()))
        signs = shared_signs(features, dimensions) if dimensions else torch.zeros(0, device="cpu")
        self.register_buffer("projection", signs, persistent=False)
        self.register_buffer("places", places, persistent=False)
        lower = torch.ones(width, width, device="cpu").tril()
        self.register_buffer("lower", lower, persistent=False)

    def project(self, features: Tensor) -> Tensor:
        """phi: (B, F) -> (B, D), in single precision."""
        short = features.float() @ self.projection if self.projected else features.float()
        return clip_length(short, self.clip) if self.clip else short

    def class_distances(self, phi: Tensor) -> Tensor:
        """||W^T (phi - mean_c)|| for every class, (B, D) -> (B, C); very large if c is not held."""
        whiten = self.whitening[self.places] * self.lower
        held = self.held[:, None].to(self.means)
        # Around the middle, since far from 0 TF32 loses the differences.
        middle = (self.means * held).sum(0) / held.sum().clamp(min=1)
        points = (phi - middle) @ whiten
        centres = (self.means - middle) @ whiten
        lengths = points.square().sum(-1, keepdim=True) + centres.square().sum(-1)
        squared = lengths - 2 * points @ centres.mT
        return torch.where(self.held, squared.clamp(min=_TINY), _FAR).sqrt()

    def distances(self, phi: Tensor) -> Tensor:
        """d(x), (B, D) -> (B,)."""
        return self.class_distances(phi).amin(-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """d(x) and z(x) of features (B, F)."""
        with torch.autocast(features.device.type, enabled=False):  # squares of small differences
            distance = self.distances(self.project(features))
            return distance, (distance - self.own_mean) / self.own_spread.clamp(min=_LEAST_SPREAD)


def clip_length(vectors: Tensor, length: float) -> Tensor:
    """Shorten vectors to a length.

    Args:
        vectors: (..., D).
        length: the most that they keep.
    """
    norms = vectors.norm(dim=-1, keepdim=True).clamp(min=_TINY)
    shorter: Tensor = vectors * (length / norms).clamp(max=1)
    return shorter


def shared_signs(features: int, dimensions: int) -> Tensor:
    """A random projection that everybody can compute, so that it need not be sent.

    Args:
        features: F.
        dimensions: D.

    Returns:
        (F, D) of +-1 / sqrt(D), which keeps lengths on average (Achlioptas, 2003).
    """
    bits = hashlib.shake_256(f"attar feature statistics {features} x {dimensions}".encode())
    raw = bits.digest(-(-features * dimensions // 8))
    drawn = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
    signs = 2.0 * drawn[: features * dimensions].reshape(features, dimensions) - 1.0
    return torch.from_numpy((signs / dimensions**0.5).astype(np.float32))


def _title(options: Mapping[str, Scalar]) -> str:
    width = options.get("dimensions") or options.get("features")
    epsilon = options.get("epsilon")
    noise = f", epsilon {epsilon}" if epsilon else ""
    return f"{width} features{noise}"


@register(
    "feature-statistics",
    "Means, spread and distances of a client's features.",
    kind="statistics",
    title=_title,
)
def feature_statistics(
    input_shape: Shape,
    num_classes: int,
    *,
    features: int,
    dimensions: int = 0,
    clip: float = 0.0,
    epsilon: float = 0.0,
    delta: float = 0.0,
) -> nn.Module:
    """A module for the statistics of a client.

    Args:
        input_shape: of the images; not used.
        num_classes: of the task.
        features: width of the classifier's penultimate layer.
        dimensions: to which they are projected; 0 for no projection.
        clip: length to which features were clipped; 0 for none.
        epsilon: of the differential privacy that the noise gives; 0 for no noise.
        delta: of the same.
    """
    width = dimensions or features
    problems = [f"features = {features}: at least 1"] if features < 1 else []
    if width > MAX_DIMENSIONS:
        limit = f"at most {MAX_DIMENSIONS}, wider features are projected"
        problems.append(f"{width} dimensions: {limit}")
    require_options("feature-statistics", problems)
    return FeatureStatistics(num_classes, features, dimensions, clip)
